/* ops_math.c - elementwise importers that a rule cannot say: the op depends on the element type, an
 * attribute picks among ops, or the number of inputs is free. */
#include "loader.h"
#include <string.h>

static DTypeClass class_of(const ImportNode *n, Value v) {
    return dtype_info[node_type(n, v)->dtype].cls;
}

static Value rule_ab(ImportNode *n, const char *rule, Value a, Value b) {
    return node_rule(n, rule, (RuleBind[]){{"a", a}, {"b", b}}, 2);
}

void import_identity(ImportNode *n) { n->out[0] = n->in[0]; }

void import_div(ImportNode *n) {
    bool is_float = class_of(n, n->in[0]) == CLASS_FLT;
    n->out[0] = build_binary(n->g, is_float ? OP_div : OP_idiv, n->in[0], n->in[1]);
}

/* A known whole power of integers is a product, exact and wrapping. */
static Value whole_power(ImportNode *n, Value base, int64_t exponent) {
    Value result = node_number(n, (DType)node_type(n, base)->dtype, 1);
    for (bool is_first = true; exponent > 0; exponent >>= 1) {
        if (exponent & 1) {
            result = is_first ? base : build_binary(n->g, OP_mul, result, base);
            is_first = false;
        }
        if (exponent > 1) base = build_binary(n->g, OP_mul, base, base);
    }
    return result;
}

static bool is_known_number(ImportNode *n, Value v, double *x) {
    Tensor t;
    if (!node_known(n, v, &t) || type_elems(&t.type) != 1) return false;
    *x = dtype_info[t.type.dtype].cls == CLASS_FLT ? t.u.f[0] : (double)t.u.i[0];
    return true;
}

/* The result has the base's type; other powers of integers go through floats. */
void import_pow(ImportNode *n) {
    DType type = (DType)node_type(n, n->in[0])->dtype;
    bool is_float = class_of(n, n->in[0]) == CLASS_FLT;
    double e;
    bool is_whole = !is_float && is_known_number(n, n->in[1], &e) && e >= 0 && e <= 1024 &&
                    e == (double)(int64_t)e && node_type(n, n->in[1])->rank == 0;
    if (is_whole) {
        Type t = *node_type(n, n->in[0]);
        n->out[0] = build_expand(n->g, whole_power(n, n->in[0], (int64_t)e), t.rank, t.dims);
        return;
    }
    DType wide = is_float ? type : DT_F64;
    Value base = build_cast(n->g, n->in[0], wide), exponent = build_cast(n->g, n->in[1], wide);
    n->out[0] = build_cast(n->g, build_binary(n->g, OP_pow, base, exponent), type);
}

/* fmod=1: the sign of a; else that of b, as in Python (floats too: a zero takes the sign of b, and
 * an infinite b keeps a or becomes b). */
void import_mod(ImportNode *n) {
    bool is_float = class_of(n, n->in[0]) == CLASS_FLT;
    Value a = n->in[0], b = n->in[1];
    if (node_int(n, "fmod", 0))
        n->out[0] = build_binary(n->g, is_float ? OP_fmod : OP_irem, a, b);
    else if (is_float)
        n->out[0] = rule_ab(n,
                            "(let r (fmod a b) (where (eq r 0) (mul 0 (where (lt b 0) -1 1)) "
                            "(where (xor (lt r 0) (lt b 0)) (add r b) r)))",
                            a, b);
    else
        n->out[0] = rule_ab(
            n, "(let r (irem a b) (where (and (ne r 0) (xor (lt r 0) (lt b 0))) (add r b) r))", a,
            b);
}

void import_bit_shift(ImportNode *n) {
    const char *direction = node_string(n, "direction", "");
    bool is_left = !strcmp(direction, "LEFT");
    if (!is_left && strcmp(direction, "RIGHT"))
        node_fail(n, "direction", "'%s' is neither LEFT nor RIGHT", direction);
    else
        n->out[0] = build_binary(n->g, is_left ? OP_shl : OP_shr, n->in[0], n->in[1]);
}

void import_is_inf(ImportNode *n) {
    bool positive = node_int(n, "detect_positive", 1), negative = node_int(n, "detect_negative", 1);
    const char *rule = positive && negative ? "(isinf a)"
                       : positive           ? "(and (isinf a) (gt a 0))"
                                            : "(and (isinf a) (lt a 0))";
    if (positive || negative)
        n->out[0] = node_rule(n, rule, (RuleBind[]){{"a", n->in[0]}}, 1);
    else
        n->out[0] = build_splat(n->g,
                                graph_type_of(n->g, DT_BOOL, node_type(n, n->in[0])->rank,
                                              node_type(n, n->in[0])->dims),
                                0);
}

/* ---------------------------------------------------------------- any number of inputs */

static Value fold_inputs(ImportNode *n, OpCode op) {
    Value v = n->in[0];
    for (uint32_t i = 1; i < n->n_in; i++) v = build_binary(n->g, op, v, n->in[i]);
    return v;
}

void import_max(ImportNode *n) { n->out[0] = fold_inputs(n, OP_max); }
void import_min(ImportNode *n) { n->out[0] = fold_inputs(n, OP_min); }
void import_sum(ImportNode *n) { n->out[0] = fold_inputs(n, OP_add); }

void import_mean(ImportNode *n) {
    Value sum = fold_inputs(n, OP_add);
    if (sum)
        n->out[0] = build_binary(n->g, OP_div, sum,
                                 node_number(n, (DType)node_type(n, sum)->dtype, n->n_in));
}

/* ---------------------------------------------------------------- clip, casts */

/* Known bounds: the gradient stops at them, as PyTorch's does. What may train, or be fed, shares it
 * evenly where it is met (torch.clamp of tensors). Where bounds may be crossed, the upper one wins:
 * two steps. */
static Value clip_to(ImportNode *n, Value a, Value low, Value high) {
    double l = 0, h = 0;
    bool is_low_known = low && graph_op(n->g, low) != OP_state && is_known_number(n, low, &l);
    bool is_high_known = high && graph_op(n->g, high) != OP_state && is_known_number(n, high, &h);
    if (is_low_known && is_high_known && l <= h)
        return node_rule(n, "(clip a b c)", (RuleBind[]){{"a", a}, {"b", low}, {"c", high}}, 3);
    if (low) a = rule_ab(n, is_low_known ? "(where (le a b) b a)" : "(max a b)", a, low);
    if (!high) return a;
    return rule_ab(n, is_high_known ? "(where (ge a b) b a)" : "(min a b)", a, high);
}

/* Clip-6: bounds are attributes; since 11 they are inputs, either may be missing. */
void import_clip(ImportNode *n) {
    DType type = (DType)node_type(n, n->in[0])->dtype;
    Value low = node_in(n, 1), high = node_in(n, 2);
    if (n->opset < 11) {
        low = node_has(n, "min") ? node_number(n, type, node_float(n, "min", 0)) : 0;
        high = node_has(n, "max") ? node_number(n, type, node_float(n, "max", 0)) : 0;
    }
    n->out[0] = clip_to(n, n->in[0], low, high);
}

static bool is_f8(DType d) {
    return d == DT_F8E4M3FN || d == DT_F8E4M3FNUZ || d == DT_F8E5M2 || d == DT_F8E5M2FNUZ;
}

/* The largest number of a type, from its storage form. */
static double largest_f8(DType d) {
    uint8_t code[1] = {d == DT_F8E4M3FN ? 0x7e : d == DT_F8E5M2 ? 0x7b : 0x7f};
    return elem_load(d, code);
}

/* Powers of two: the core's cast rounds to the nearest, here corrected up or down. */
static Value cast_power(ImportNode *n, Value v) {
    const char *mode = node_string(n, "round_mode", "up");
    bool is_up = !strcmp(mode, "up"), is_down = !strcmp(mode, "down");
    Value wide = build_cast(n->g, v, DT_F32), near = build_cast(n->g, wide, DT_F8E8M0);
    if (!is_up && !is_down) return near;
    RuleBind binds[] = {{"a", wide}, {"b", build_cast(n->g, near, DT_F32)}};
    Value exact = node_rule(
        n, is_up ? "(where (lt b a) (mul b 2) b)" : "(where (gt b a) (mul b 0.5) b)", binds, 2);
    return build_cast(n->g, exact, DT_F8E8M0);
}

/* Out of the range of four or two bits: 0, as ONNX's own tests have it. */
static Value cast_narrow(ImportNode *n, Value v, DType to) {
    DType type = (DType)node_type(n, v)->dtype;
    bool is_signed = to == DT_I4 || to == DT_I2;
    double codes = to == DT_I4 || to == DT_U4 ? 16 : 4, low = is_signed ? -codes / 2 : 0;
    RuleBind binds[] = {{"a", v},
                        {"l", node_number(n, type, low - 1)},
                        {"h", node_number(n, type, low + codes)},
                        {"z", node_number(n, type, 0)}};
    return build_cast(n->g, node_rule(n, "(where (and (gt a l) (lt a h)) a z)", binds, 4), to);
}

/* To f8 what is too large becomes the largest (saturate, the default), or infinity or NaN. */
static Value cast_to(ImportNode *n, Value v, DType to) {
    DType from = (DType)node_type(n, v)->dtype;
    bool is_narrow = to == DT_I4 || to == DT_U4 || to == DT_I2 || to == DT_U2;
    if (to == DT_F8E8M0 && from != to) return cast_power(n, v);
    if (is_narrow && dtype_info[from].cls == CLASS_FLT) return cast_narrow(n, v, to);
    if (is_f8(to) && from != to && node_int(n, "saturate", 1)) {
        if (from == DT_F16 || dtype_info[from].cls != CLASS_FLT) v = build_cast(n->g, v, DT_F32);
        DType type = (DType)node_type(n, v)->dtype;
        RuleBind binds[] = {{"a", v},
                            {"l", node_number(n, type, -largest_f8(to))},
                            {"h", node_number(n, type, largest_f8(to))}};
        v = node_rule(n, "(clip a l h)", binds, 3);
    }
    return build_cast(n->g, v, to);
}

void import_cast(ImportNode *n) {
    int64_t code = node_int(n, "to", 0);
    DType to = dtype_from_onnx((int)code);
    if (to == DT_NONE)
        node_fail(n, "to", "element type %s is not supported", element_type_name(n->g, code));
    else
        n->out[0] = cast_to(n, n->in[0], to);
}

void import_cast_like(ImportNode *n) {
    n->out[0] = cast_to(n, n->in[0], (DType)node_type(n, n->in[1])->dtype);
}

/* The bits as another type of that size: integers by a cast; what is known by its bytes. */
void import_bit_cast(ImportNode *n) {
    Type t = *node_type(n, n->in[0]);
    DType to = dtype_from_onnx((int)node_int(n, "to", 0));
    Tensor known;
    if (to == DT_NONE || dtype_info[to].bytes != dtype_info[t.dtype].bytes) {
        node_fail(n, "to", "is no type of %u bytes", dtype_info[t.dtype].bytes);
        return;
    }
    if (dtype_info[to].cls != CLASS_FLT && dtype_info[t.dtype].cls != CLASS_FLT) {
        n->out[0] = build_cast(n->g, n->in[0], to);
        return;
    }
    if (!node_known(n, n->in[0], &known)) {
        node_fail(n, "to", "the bits of a float are known of constants alone");
        return;
    }
    void *bytes = arena_alloc(n->arena, type_bytes(&t) + 1);
    tensor_to_bytes(&known, bytes);
    t.dtype = (uint8_t)to;
    n->out[0] = build_const(n->g, graph_type(n->g, t), bytes);
}

void import_gelu(ImportNode *n) {
    const char *approximate = node_string(n, "approximate", "none");
    bool is_tanh = !strcmp(approximate, "tanh");
    if (!is_tanh && strcmp(approximate, "none"))
        node_fail(n, "approximate", "'%s' is not known", approximate);
    else
        n->out[0] = build_unary(n->g, is_tanh ? OP_gelu_tanh : OP_gelu, n->in[0]);
}
