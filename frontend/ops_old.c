/* ops_old.c - the forms that ops had before opset 7 (and BatchNormalization before 9): broadcasting
 * by `broadcast` and `axis` instead of numpy's rules, attributes where inputs are now, modes of
 * inference as attributes. Each is brought into the present form and built like it. */
#include "import.h"
#include <string.h>

/* ---------------------------------------------------------------- two operands */

/* Operand b as numpy broadcasts it: its dims lie at `axis` of a, by default at the end. */
static Value aligned(ImportNode *n, Value a, Value b) {
    Type t = *node_type(n, a), s = *node_type(n, b);
    int64_t axis = node_int(n, "axis", (int64_t)t.rank - s.rank);
    if (!node_int(n, "broadcast", 0) || s.rank == 0) return b;
    axis += axis < 0 ? t.rank : 0;
    if (axis < 0 || axis + s.rank > t.rank) {
        node_fail(n, "axis", "%lld leaves no room for rank %d", (long long)axis, s.rank);
        return 0;
    }
    uint32_t rank = t.rank - (uint32_t)axis;
    for (uint32_t i = s.rank; i < rank; i++) s.dims[i] = 1;
    return build_reshape(n->g, b, rank, s.dims);
}

static void old_binary(ImportNode *n, OpCode op) {
    Value b = aligned(n, n->in[0], n->in[1]);
    if (b) n->out[0] = build_binary(n->g, op, n->in[0], b);
}

/* The same node with another value as one input; outputs are shared. */
static ImportNode with_input(ImportNode *n, uint32_t input, Value v) {
    ImportNode same = *n;
    Value *in = arena_alloc(n->arena, (n->n_in + 1u) * sizeof *in);
    memcpy(in, n->in, n->n_in * sizeof *in);
    in[input] = v;
    same.in = in;
    return same;
}

static void old_as(ImportNode *n, ImportFn *present) {
    Value b = aligned(n, n->in[0], n->in[1]);
    ImportNode same = with_input(n, 1, b);
    if (b) present(&same);
}

void import_old_add(ImportNode *n) { old_binary(n, OP_add); }
void import_old_sub(ImportNode *n) { old_binary(n, OP_sub); }
void import_old_mul(ImportNode *n) { old_binary(n, OP_mul); }
void import_old_and(ImportNode *n) { old_binary(n, OP_and); }
void import_old_or(ImportNode *n) { old_binary(n, OP_or); }
void import_old_xor(ImportNode *n) { old_binary(n, OP_xor); }
void import_old_equal(ImportNode *n) { old_binary(n, OP_eq); }
void import_old_less(ImportNode *n) { old_binary(n, OP_lt); }
void import_old_greater(ImportNode *n) { old_binary(n, OP_gt); }
void import_old_div(ImportNode *n) { old_as(n, import_div); }
void import_old_pow(ImportNode *n) { old_as(n, import_pow); }

/* One slope per channel, or one for all. */
void import_old_prelu(ImportNode *n) {
    Type t = *node_type(n, n->in[0]), s = *node_type(n, n->in[1]);
    int64_t dims[MAX_RANK] = {type_elems(&s), 1, 1, 1, 1, 1, 1, 1};
    Value slope = n->in[1];
    if (s.rank == 1 && s.dims[0] != 1 && t.rank > 2)
        slope = build_reshape(n->g, slope, t.rank - 1u, dims);
    RuleBind binds[] = {{"a", n->in[0]}, {"b", slope}};
    n->out[0] = node_rule(n, "(where (gt a 0) a (mul b a))", binds, 2);
}

/* ---------------------------------------------------------------- modes of inference */

/* is_test: without it, it is a training graph. */
void import_old_dropout(ImportNode *n) {
    if (node_int(n, "is_test", 0)) n->training = false;
    import_dropout(n);
}

/* spatial=0 keeps statistics per element of a sample: the same over [N, elements]. */
void import_old_batch_norm(ImportNode *n) {
    Type t = *node_type(n, n->in[0]);
    if (node_int(n, "spatial", 1) || t.rank < 2) {
        if (node_int(n, "is_test", 0) && !n->batchnorm_train) n->n_out = 1;
        import_batch_norm(n);
        return;
    }
    if (n->training && (n->n_out > 1 || n->batchnorm_train)) {
        node_fail(n, "spatial", "batch statistics per element are not supported");
        return;
    }
    int64_t rows[] = {t.dims[0], t.dims[0] ? type_elems(&t) / t.dims[0] : 0};
    ImportNode flat = with_input(n, 0, build_reshape(n->g, n->in[0], 2, rows));
    import_batch_norm(&flat);
    n->out[0] = build_reshape(n->g, n->out[0], t.rank, t.dims);
}

/* ---------------------------------------------------------------- attributes for inputs */

/* Cast-1 names the type. */
void import_old_cast(ImportNode *n) {
    static const struct {
        const char *name;
        DType type;
    } names[] = {{"FLOAT", DT_F32},  {"DOUBLE", DT_F64}, {"FLOAT16", DT_F16}, {"INT64", DT_I64},
                 {"INT32", DT_I32},  {"INT16", DT_I16},  {"INT8", DT_I8},     {"UINT64", DT_U64},
                 {"UINT32", DT_U32}, {"UINT16", DT_U16}, {"UINT8", DT_U8},    {"BOOL", DT_BOOL}};
    const char *to = node_string(n, "to", "");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i].name, to)) n->out[0] = build_cast(n->g, n->in[0], names[i].type);
    if (!n->out[0]) node_fail(n, "to", "element type %s is not supported", to);
}

static bool known_number(ImportNode *n, Value v, int64_t *x) {
    Tensor t;
    if (!node_known(n, v, &t) || type_elems(&t.type) != 1) {
        node_fail_dynamic(n);
        return false;
    }
    *x = dtype_info[t.type.dtype].cls == CLASS_FLT ? (int64_t)t.u.f[0] : t.u.i[0];
    return true;
}

/* Tile-1 repeats one axis: inputs are the number of tiles and the axis. */
void import_old_tile(ImportNode *n) {
    int64_t times, axis, start[MAX_RANK] = {0};
    Type t = *node_type(n, n->in[0]);
    if (!known_number(n, n->in[1], &times) || !known_number(n, n->in[2], &axis) ||
        !node_axis(n, axis, t.rank, &axis))
        return;
    if (times < 0 || times > UINT16_MAX) {
        node_fail_shapes(n, "%lld tiles", (long long)times);
        return;
    }
    Value *copies = arena_alloc(n->arena, ((size_t)times + 1) * sizeof *copies);
    for (int64_t i = 0; i < times; i++) copies[i] = n->in[0];
    t.dims[axis] = 0;
    n->out[0] = times ? build_concat(n->g, copies, (uint32_t)times, axis)
                      : build_slice(n->g, n->in[0], start, t.dims, NULL);
}
