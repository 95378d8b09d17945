/* ops_nn.c - MatMul, Gemm, Softmax, Hardmax, LayerNormalization, RMSNormalization, Dropout. */
#include "import.h"

void import_matmul(ImportNode *n) { n->out[0] = build_dot(n->g, n->in[0], n->in[1], false, false); }

static Value scaled(ImportNode *n, Value v, double by) {
    return !v || by == 1
               ? v
               : build_binary(n->g, OP_mul, v, node_number(n, (DType)node_type(n, v)->dtype, by));
}

/* alpha A' B' + beta C */
void import_gemm(ImportNode *n) {
    if (node_type(n, n->in[0])->rank != 2 || node_type(n, n->in[1])->rank != 2) {
        node_fail_shapes(n, "Gemm takes matrices");
        return;
    }
    Value y = build_dot(n->g, n->in[0], n->in[1], node_int(n, "transA", 0) != 0,
                        node_int(n, "transB", 0) != 0);
    y = scaled(n, y, node_float(n, "alpha", 1));
    double beta = node_float(n, "beta", 1);
    n->out[0] =
        node_in(n, 2) && beta != 0 ? build_binary(n->g, OP_add, y, scaled(n, n->in[2], beta)) : y;
}

/* ---------------------------------------------------------------- over axes */

static Value over_axes(ImportNode *n, OpCode op, Value v, int64_t first, int64_t last, double eps) {
    int64_t axes[MAX_RANK];
    uint32_t count = 0;
    for (int64_t i = first; i <= last; i++) axes[count++] = i;
    AttrField fields[] = {attr_ints(A_AXES, axes, count), attr_float(A_EPS, eps)};
    return graph_emit(n->g, op, &v, 1,
                      graph_attr(n->g, fields, op == OP_layer_norm || op == OP_rms_norm ? 2 : 1),
                      0);
}

/* Before 13 the axis (default 1) begins the part that is normalised as one; since 13 it is the one
 * axis (default -1). */
/* In half precision, powers and sums are made in f32: what PyTorch's kernels do, and what code asks
 * for (softmax(dtype=float32).to(dtype)) that loses its casts in an export. */
static void import_softmax_of(ImportNode *n, OpCode op) {
    int64_t axis, rank = node_type(n, n->in[0])->rank;
    bool is_one = n->opset >= 13;
    DType type = (DType)node_type(n, n->in[0])->dtype;
    bool is_half = type == DT_BF16 || type == DT_F16;
    if (rank == 0) {
        node_fail_shapes(n, "a scalar has no axis");
        return;
    }
    if (!node_axis(n, node_int(n, "axis", is_one ? -1 : 1), (uint32_t)rank, &axis)) return;
    Value x = is_half ? build_cast(n->g, n->in[0], DT_F32) : n->in[0];
    n->out[0] = build_cast(n->g, over_axes(n, op, x, axis, is_one ? axis : rank - 1, 0), type);
    if (is_half && n->training && node_from_pytorch(n)) diag_add(n->g, N_SOFTMAX, 0);
}

void import_softmax(ImportNode *n) { import_softmax_of(n, OP_softmax); }
void import_log_softmax(ImportNode *n) { import_softmax_of(n, OP_log_softmax); }

/* 1 at the first largest element, else 0; the axes as in Softmax. */
void import_hardmax(ImportNode *n) {
    Type t = *node_type(n, n->in[0]), flat = t;
    int64_t axis;
    bool is_one = n->opset >= 13;
    if (!node_axis(n, node_int(n, "axis", is_one ? -1 : 1), t.rank, &axis)) return;
    for (int64_t i = axis + 1; i < t.rank && !is_one; i++) flat.dims[axis] *= t.dims[i];
    if (!is_one) flat.rank = (uint8_t)(axis + 1);
    Value v = build_reshape(n->g, n->in[0], flat.rank, flat.dims);
    Value top = graph_emit(n->g, OP_argmax, &v, 1,
                           graph_attr(n->g, (AttrField[]){attr_int(A_AXIS, axis)}, 1), 0);
    flat.dtype = DT_I64;
    Value hit = build_binary(n->g, OP_eq, build_iota(n->g, graph_type(n->g, flat), axis), top);
    n->out[0] = build_reshape(n->g, build_cast(n->g, hit, (DType)t.dtype), t.rank, t.dims);
}

/* The stash type is f32: narrower inputs are normalised there. */
static Value widened(ImportNode *n, Value v) {
    DType type = (DType)node_type(n, v)->dtype;
    return type == DT_F16 || type == DT_BF16 ? build_cast(n->g, v, DT_F32) : v;
}

/* Optional outputs of LayerNormalization: mean and 1 / standard deviation over the axes. */
static void norm_statistics(ImportNode *n, Value wide, int64_t first, double eps) {
    int64_t axes[MAX_RANK];
    uint32_t count = 0, rank = node_type(n, wide)->rank;
    for (int64_t i = first; i < rank; i++) axes[count++] = i;
    Value mean = build_mean(n->g, wide, axes, count),
          centred = build_binary(n->g, OP_sub, wide, mean);
    Value variance = build_mean(n->g, build_binary(n->g, OP_mul, centred, centred), axes, count);
    n->out[1] = mean;
    Value shifted =
        build_binary(n->g, OP_add, variance, node_number(n, (DType)node_type(n, wide)->dtype, eps));
    if (n->n_out > 2) n->out[2] = build_unary(n->g, OP_rsqrt, shifted);
}

static void import_norm(ImportNode *n, OpCode op) {
    int64_t axis, rank = node_type(n, n->in[0])->rank;
    DType type = (DType)node_type(n, n->in[0])->dtype;
    double eps = node_float(n, "epsilon", (double)1e-5f);
    if (!node_axis(n, node_int(n, "axis", -1), (uint32_t)rank, &axis)) return;
    Value wide = widened(n, n->in[0]);
    Value y = build_cast(n->g, over_axes(n, op, wide, axis, rank - 1, eps), type);
    if (node_in(n, 1)) y = build_binary(n->g, OP_mul, y, n->in[1]);
    if (node_in(n, 2)) y = build_binary(n->g, OP_add, y, n->in[2]);
    n->out[0] = y;
    if (node_wants(n, 1) || node_wants(n, 2)) norm_statistics(n, wide, axis, eps);
}

void import_layer_norm(ImportNode *n) { import_norm(n, OP_layer_norm); }
void import_rms_norm(ImportNode *n) { import_norm(n, OP_rms_norm); }

/* ---------------------------------------------------------------- Dropout */

/* Is it active in the training walk? Before 12 always; since then where the graph's training_mode
 * says so. */
static bool dropout_trains(ImportNode *n, bool *is_known) {
    Tensor mode;
    *is_known = true;
    if (n->opset < 12 || !n->training) return n->training;
    if (!node_in(n, 2)) return false;
    *is_known = node_known(n, n->in[2], &mode) && type_elems(&mode.type) == 1;
    return *is_known && mode.u.i[0] != 0;
}

static bool dropout_ratio(ImportNode *n, double *ratio) {
    Tensor t;
    *ratio = node_float(n, "ratio", 0.5);
    if (!node_in(n, 1)) return true;
    if (!node_known(n, n->in[1], &t) || type_elems(&t.type) != 1) return false;
    *ratio = t.u.f[0];
    return true;
}

Value node_dropout(ImportNode *n, Value x, double ratio, Value *mask) {
    Type t = *node_type(n, x);
    DType type = (DType)t.dtype;
    t.dtype = DT_F32;
    AttrId stream = graph_attr(n->g, (AttrField[]){attr_int(A_STREAM, node_stream(n))}, 1);
    Value random = graph_emit(n->g, OP_random, NULL, 0, stream, graph_type(n->g, t));
    *mask = build_binary(n->g, OP_ge, random, node_number(n, DT_F32, ratio));
    RuleBind binds[] = {
        {"a", x}, {"m", *mask}, {"s", node_number(n, type, ratio < 1 ? 1 / (1 - ratio) : 0)}};
    return node_rule(n, "(where m (mul a s) 0)", binds, 3);
}

void import_dropout(ImportNode *n) {
    Type mask_type = *node_type(n, n->in[0]);
    bool is_known;
    double ratio;
    bool trains = dropout_trains(n, &is_known);
    if (!is_known || !dropout_ratio(n, &ratio)) {
        node_fail(n, "ratio", "ratio and training_mode must be constants");
        return;
    }
    mask_type.dtype = DT_BOOL;
    Value mask = build_splat(n->g, graph_type(n->g, mask_type), 1);
    n->out[0] = n->in[0];
    if (trains && ratio > 0) n->out[0] = node_dropout(n, n->in[0], ratio, &mask);
    if (n->n_out > 1) /* before 10 the mask has the data's type */
        n->out[1] =
            n->opset < 10 ? build_cast(n->g, mask, (DType)node_type(n, n->in[0])->dtype) : mask;
}
