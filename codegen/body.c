/* body.c - prints one statement as C: the one place that does. What it prints is valid C17 and HIP
 * alike.
 *
 * Lets are constants of float, int32_t, int64_t, uint32_t (u32) or uint64_t (u64); narrower
 * integers are wrapped after each map; only LOAD, STORE and UPDATE know storage types. A map is the
 * body of its row in op.def with a b c replaced by the argument lets. Conditions are joined by `&`,
 * not `&&`, so that loops stay free of branches; what the proven range of an index already decides
 * is not tested. */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "kernel.h"

const char *body_ctype(DType d) {
    if (dtype_info[d].cls == CLASS_FLT) return "float";
    if (d == DT_U32) return "uint32_t";
    if (d == DT_U64) return "uint64_t";
    return dtype_info[d].bytes <= 4 ? "int32_t" : "int64_t";
}

static bool power_of_two(int64_t v, int *shift) {
    *shift = 0;
    while (*shift < 62 && (INT64_C(1) << *shift) < v) ++*shift;
    return (INT64_C(1) << *shift) == v;
}

static void print_int(int64_t v, Text *out) {
    text_printf(out, v > INT32_MAX || v < -INT32_MAX ? "%lldLL" : "%lld", (long long)v);
}

static bool is_atom(const IxNode *n) {
    return n->kind == IX_AXIS || n->kind == IX_LET || (n->kind == IX_CONST && n->value >= 0);
}

static void print_factor(const Kernel *k, Ix ix, const BodyTarget *t, Text *out) {
    bool bare = is_atom(&k->ix[ix]);
    if (!bare) text_printf(out, "(");
    body_index(k, ix, t, out);
    if (!bare) text_printf(out, ")");
}

static void print_division(const Kernel *k, const IxNode *n, const BodyTarget *t, Text *out) {
    int shift;
    bool is_negative = k->ix[n->a].lo < 0, is_div = n->kind == IX_DIV;
    if (is_negative && !power_of_two(n->value, &shift)) {
        text_printf(out, is_div ? "tc_floor_div(" : "tc_floor_mod(");
        body_index(k, n->a, t, out);
        text_printf(out, ", %lld)", (long long)n->value);
        return;
    }
    if (is_negative) text_printf(out, "("); /* weaker than the sums around it */
    print_factor(k, n->a, t, out);
    if (!is_negative)
        text_printf(out, is_div ? " / %lld" : " %% %lld", (long long)n->value);
    else if (is_div)
        text_printf(out, " >> %d)", shift);
    else
        text_printf(out, " & %lld)", (long long)(n->value - 1));
}

void body_index(const Kernel *k, Ix ix, const BodyTarget *t, Text *out) {
    const IxNode *n = &k->ix[ix];
    switch (n->kind) {
    case IX_CONST:
        print_int(n->value, out);
        return;
    case IX_AXIS:
        text_printf(out, "%s", t->axis_name[n->value]);
        return;
    case IX_LET:
        text_printf(out, "v%lld", (long long)n->value);
        return;
    case IX_ADD: {
        const IxNode *b = &k->ix[n->b];
        body_index(k, n->a, t, out);
        if (b->kind == IX_CONST && b->value < 0)
            text_printf(out, " - "), print_int(-b->value, out);
        else if (b->kind == IX_MUL && b->value == -1)
            text_printf(out, " - "), print_factor(k, b->a, t, out);
        else {
            text_printf(out, " + ");
            if (b->kind == IX_DIV || b->kind == IX_MOD)
                print_factor(k, n->b, t, out);
            else
                body_index(k, n->b, t, out);
        }
        return;
    }
    case IX_MUL:
        if (n->value == -1) text_printf(out, "-");
        print_factor(k, n->a, t, out);
        if (n->value != -1) text_printf(out, " * "), print_int(n->value, out);
        return;
    case IX_DIV:
    case IX_MOD:
        print_division(k, n, t, out);
        return;
    case IX_MIN:
    case IX_MAX:
        text_printf(out, n->kind == IX_MIN ? "tc_ix_min(" : "tc_ix_max(");
        body_index(k, n->a, t, out);
        text_printf(out, ", ");
        body_index(k, n->b, t, out);
        text_printf(out, ")");
        return;
    }
}

static void print_test(const Kernel *k, Ix ix, const char *relation, int64_t v, uint32_t *n,
                       const BodyTarget *t, Text *out) {
    text_printf(out, (*n)++ ? " & (" : "(");
    body_index(k, ix, t, out);
    text_printf(out, " %s ", relation);
    print_int(v, out);
    text_printf(out, ")");
}

static void print_conds(const Kernel *k, const Stmt *s, const BodyTarget *t, Text *out) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_conds; i++) {
        const Cond *c = &s->conds[i];
        const IxNode *x = &k->ix[c->ix];
        int shift;
        if (c->lo == c->hi)
            print_test(k, c->ix, "==", c->lo, &n, t, out);
        else {
            if (x->lo < c->lo) print_test(k, c->ix, ">=", c->lo, &n, t, out);
            if (x->hi > c->hi) print_test(k, c->ix, "<=", c->hi, &n, t, out);
        }
        if (c->modulus <= 1) continue;
        bool is_power = power_of_two(c->modulus, &shift);
        text_printf(out, n++ ? " & ((" : "((");
        print_factor(k, c->ix, t, out);
        text_printf(out, is_power ? " & %lld) == 0)" : " %% %lld) == 0)",
                    (long long)(is_power ? c->modulus - 1 : c->modulus));
    }
    if (!n) text_printf(out, "1");
}

static void print_number(DType d, double v, Text *out) {
    if (dtype_info[d].cls != CLASS_FLT) {
        if (d == DT_U64 && v >= 9223372036854775807.0)
            text_printf(out, "%lluULL",
                        v < 18446744073709551615.0 ? (unsigned long long)v
                                                   : 18446744073709551615ULL);
        else if (v <= -9223372036854775808.0)
            text_printf(out, "(-9223372036854775807LL - 1)");
        else if (v >= 9223372036854775807.0)
            text_printf(out, "9223372036854775807LL");
        else
            print_int((int64_t)v, out);
        return;
    }
    float f = (float)v;
    if (isnan(f))
        text_printf(out, "NAN");
    else if (isinf(f))
        text_printf(out, f > 0 ? "INFINITY" : "-INFINITY");
    else {
        char number[40];
        snprintf(number, sizeof number, "%.9g", (double)f);
        text_printf(out, strpbrk(number, ".e") ? "%sf" : "%s.0f", number);
    }
}

/* The storage form of a let's text and back: "tc_load_bf16(%s)". */
static const char *load_format(DType d) {
    switch (d) {
    case DT_BF16:
        return "tc_load_bf16(%s)";
    case DT_F16:
        return "tc_load_f16(%s)";
    case DT_F64:
        return "(float)%s";
#define SMALL_FLOAT(id, ...)                                                                       \
    case DT_##id:                                                                                  \
        return "tc_load_f8(%s, " #__VA_ARGS__ ")";
#include "small_float.def"
#undef SMALL_FLOAT
    default:
        return "%s";
    }
}

/* A value of wider integers back into the range of an integer type: what int32 lets of it hold. */
static const char *wrap_format(DType d) {
    switch (d) {
    case DT_I16:
        return "(int16_t)(%s)";
    case DT_I8:
        return "(int8_t)(%s)";
    case DT_U16:
        return "(uint16_t)(%s)";
    case DT_U8:
        return "(uint8_t)(%s)";
    case DT_I4:
        return "((((%s) & 15) ^ 8) - 8)";
    case DT_U4:
        return "((%s) & 15)";
    case DT_I2:
        return "((((%s) & 3) ^ 2) - 2)";
    case DT_U2:
        return "((%s) & 3)";
    default:
        return "%s";
    }
}

static const char *store_format(DType d) {
    switch (d) {
    case DT_BF16:
        return "tc_to_bf16(%s)";
    case DT_F16:
        return "tc_to_f16(%s)";
    case DT_F64:
        return "(double)(%s)";
    case DT_BOOL:
        return "(uint8_t)(%s)";
#define SMALL_FLOAT(id, ...)                                                                       \
    case DT_##id:                                                                                  \
        return "tc_to_f8(%s, " #__VA_ARGS__ ")";
#include "small_float.def"
#undef SMALL_FLOAT
    default:
        return wrap_format(d);
    }
}

static const char *format_one(Arena *arena, const char *format, const char *text) {
    const char *at = strstr(format, "%s");
    return arena_printf(arena, "%.*s%s%s", (int)(at - format), format, text, at + 2);
}

static const char *element(const Kernel *k, const Stmt *s, const BodyTarget *t, Arena *arena) {
    Text x = {.arena = arena};
    text_printf(&x, "p%u[", s->param);
    body_index(k, s->ix, t, &x);
    text_printf(&x, "]");
    return x.s;
}

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* The body of an op with a b c replaced. */
static void print_map(OpCode op, const char *const args[3], Text *out) {
    for (const char *s = op_info[op].body; *s;) {
        const char *e = s;
        while (is_word(*e)) e++;
        if (e == s)
            text_printf(out, "%c", *s++);
        else if (e == s + 1 && *s >= 'a' && *s <= 'c')
            text_printf(out, "%s", args[*s - 'a']), s = e;
        else
            text_printf(out, "%.*s", (int)(e - s), s), s = e;
    }
}

static void print_cast(const Kernel *k, const Stmt *s, Text *out) {
    DType from = k->let_type[s->args[0]];
    bool from_flt = dtype_info[from].cls == CLASS_FLT;
    const char *let = arena_printf(out->arena, "v%u", s->args[0]);
    if (s->dtype == DT_BOOL)
        text_printf(out, "%s != 0", let);
    else if (dtype_info[s->dtype].cls == CLASS_FLT) {
        const char *x = arena_printf(out->arena, "(float)%s", let);
        bool is_rounded = s->dtype != DT_F32 && s->dtype != DT_F64;
        if (is_rounded) x = format_one(out->arena, store_format(s->dtype), x);
        text_printf(out, "%s", is_rounded ? format_one(out->arena, load_format(s->dtype), x) : x);
    } else if (s->dtype == DT_U64 && from_flt)
        text_printf(out, "tc_to_u64(%s)", let);
    else if (s->dtype == DT_I64 || s->dtype == DT_U64)
        text_printf(out, "(%s)%s", body_ctype(s->dtype), let);
    else if (s->dtype == DT_I32 || s->dtype == DT_U32)
        text_printf(out, "(%s)%s%s", body_ctype(s->dtype),
                    from_flt && s->dtype == DT_U32 ? "(int64_t)" : "", let);
    else
        text_printf(out, "%s",
                    format_one(out->arena, wrap_format(s->dtype),
                               arena_printf(out->arena, "(int32_t)%s", let)));
}

static void print_store(const Kernel *k, const Stmt *s, const BodyTarget *t, Text *out) {
    Text v = {.arena = out->arena};
    const char *at = element(k, s, t, out->arena),
               *old = format_one(out->arena, load_format(s->dtype), at);
    const char *let = arena_printf(out->arena, "v%u", s->args[0]);
    if (s->kind == ST_STORE || s->op == OP_NONE)
        text_printf(&v, "%s", let);
    else
        print_map(s->op, (const char *const[]){old, let, ""}, &v);
    if (s->n_conds) text_printf(out, "if ("), print_conds(k, s, t, out), text_printf(out, ") ");
    text_printf(out, "%s = %s;", at, format_one(out->arena, store_format(s->dtype), v.s));
}

/* Sums and products of integers are computed without a sign: that wraps, where C leaves it open. */
static const char *modular(Arena *arena, DType d, const char *text) {
    if (dtype_info[d].cls != CLASS_INT) return text;
    return arena_printf(arena, "(%s)%s", dtype_info[d].bytes <= 4 ? "uint32_t" : "uint64_t", text);
}

static bool is_modular(OpCode op) {
    return op == OP_add || op == OP_sub || op == OP_mul || op == OP_neg;
}

/* Narrow integers wrap after every map, as in the interpreter; what selects or compares stays in
 * range. */
static void print_wrapped_map(const Stmt *s, const char *const args[3], Text *out) {
    OpClass cls = op_info[s->op].cls;
    const char *format = cls == OPC_NUM || cls == OPC_INT ? wrap_format(s->dtype) : "%s";
    const char *own[3] = {args[0], args[1], args[2]};
    Text x = {.arena = out->arena};
    for (int i = 0; i < 3 && is_modular(s->op); i++) own[i] = modular(out->arena, s->dtype, own[i]);
    print_map(s->op, own, &x);
    text_printf(out, "%s", format_one(out->arena, format, x.s));
}

static void print_load(const Kernel *k, const Stmt *s, const BodyTarget *t, Text *out) {
    if (s->n_conds) print_conds(k, s, t, out), text_printf(out, " ? ");
    text_printf(out, "%s",
                format_one(out->arena, load_format(k->params[s->param].dtype),
                           element(k, s, t, out->arena)));
    if (s->n_conds) text_printf(out, " : 0");
}

static void print_random(const Kernel *k, const Stmt *s, const BodyTarget *t, Text *out) {
    text_printf(out, "tc_random(v%u, v%u, (uint32_t)p%u, (uint64_t)(", s->args[0], s->args[1],
                s->param);
    body_index(k, s->ix, t, out);
    text_printf(out, " + v%u * %lldLL))", s->args[2], (long long)s->value);
}

void body_print(const Graph *g, const Kernel *k, const Stmt *s, const BodyTarget *t, Text *out) {
    (void)g;
    text_printf(out, "%s", t->indent);
    if (s->kind == ST_STORE || s->kind == ST_UPDATE) {
        print_store(k, s, t, out);
        text_printf(out, "\n");
        return;
    }
    if (s->kind == ST_ACCUM) {
        const char *a = arena_printf(out->arena, "v%u", s->args[0]),
                   *b = arena_printf(out->arena, "v%u", s->args[1]);
        bool is_arg = s->op == OP_argmax || s->op == OP_argmin;
        BodyTarget bare = *t;
        bare.indent = "";
        body_accum_merge(k, s, is_arg ? b : a, is_arg ? a : "", &bare, out);
        return;
    }
    text_printf(out, "const %s v%u = ", body_ctype(s->dtype), s->dst);
    const char *args[3];
    for (uint32_t i = 0; i < 3; i++) args[i] = arena_printf(out->arena, "v%u", s->args[i]);
    switch (s->kind) {
    case ST_CONST:
        print_number(s->dtype, s->value, out);
        break;
    case ST_SCALAR:
        text_printf(out, "p%u", s->param);
        break;
    case ST_INDEX:
        text_printf(out, dtype_info[s->dtype].cls == CLASS_FLT ? "(float)(" : "(");
        body_index(k, s->ix, t, out);
        text_printf(out, ")");
        break;
    case ST_LOAD:
        print_load(k, s, t, out);
        break;
    case ST_MAP:
        print_wrapped_map(s, args, out);
        break;
    case ST_CAST:
        print_cast(k, s, out);
        break;
    case ST_SELECT:
        print_conds(k, s, t, out);
        text_printf(out, " ? %s : %s", args[0], args[1]);
        break;
    case ST_RANDOM:
        print_random(k, s, t, out);
        break;
    case ST_ACCUM:
    case ST_STORE:
    case ST_UPDATE:
        break;
    }
    text_printf(out, ";\n");
}

static DType accum_value_type(const Kernel *k, const Stmt *s) {
    return s->op == OP_argmax || s->op == OP_argmin ? k->let_type[s->args[0]] : s->dtype;
}

void body_accum_init(const Kernel *k, const Stmt *s, const BodyTarget *t, Text *out) {
    DType d = accum_value_type(k, s);
    bool is_flt = dtype_info[d].cls == CLASS_FLT, is_wide = dtype_info[d].bytes > 4;
    const char *low = is_flt                       ? "-INFINITY"
                      : d == DT_U64 || d == DT_U32 ? "0"
                      : is_wide                    ? "(-9223372036854775807LL - 1)"
                                                   : "(-2147483647 - 1)";
    const char *high = is_flt        ? "INFINITY"
                       : d == DT_U64 ? "18446744073709551615ULL"
                       : d == DT_U32 ? "4294967295u"
                       : is_wide     ? "9223372036854775807LL"
                                     : "2147483647";
    const char *init = "0";
    bool is_arg = s->op == OP_argmax || s->op == OP_argmin;
    if (s->op == OP_sum)
        init = is_flt ? "0.0f" : "0";
    else if (s->op == OP_prod)
        init = is_flt ? "1.0f" : "1";
    else if (s->op == OP_rmax || s->op == OP_argmax)
        init = low;
    else if (s->op == OP_rmin || s->op == OP_argmin)
        init = high;
    else
        assert(0 && "no reduction");
    text_printf(out, "%s%s %s%u = %s;\n", t->indent, body_ctype(d), is_arg ? "b" : "v", s->dst,
                init);
    if (is_arg) text_printf(out, "%sint64_t v%u = 9223372036854775807LL;\n", t->indent, s->dst);
}

void body_accum_merge(const Kernel *k, const Stmt *s, const char *x, const char *best,
                      const BodyTarget *t, Text *out) {
    (void)k;
    const unsigned n = s->dst;
    const bool adds = s->op == OP_sum;
    const char *v = arena_printf(out->arena, "v%u", n);
    text_printf(out, "%s", t->indent);
    switch (s->op) {
    case OP_sum:
    case OP_prod:
        text_printf(
            out, "v%u = %s;\n", n,
            format_one(out->arena, wrap_format(s->dtype),
                       arena_printf(out->arena, "%s %c %s", modular(out->arena, s->dtype, v),
                                    adds ? '+' : '*', modular(out->arena, s->dtype, x))));
        return;
    case OP_rmax:
        text_printf(out, "v%u = (%s > v%u) | (%s != %s) ? %s : v%u;\n", n, x, n, x, x, x, n);
        return;
    case OP_rmin:
        text_printf(out, "v%u = (%s < v%u) | (%s != %s) ? %s : v%u;\n", n, x, n, x, x, x, n);
        return;
    case OP_argmax:
    case OP_argmin: { /* NaN is best of all; of equals the smaller index */
        const char *r = s->op == OP_argmax ? ">" : "<";
        text_printf(out,
                    "if ((%s %s b%u) | ((%s != %s) & (b%u == b%u)) | (((%s == b%u) | ((%s != %s) & "
                    "(b%u != b%u))) & (%s < v%u))) "
                    "b%u = %s, v%u = %s;\n",
                    best, r, n, best, best, n, n, best, n, best, best, n, n, x, n, n, best, n, x);
        return;
    }
    default:
        assert(0 && "no reduction");
    }
}
