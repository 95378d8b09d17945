/* ops_contrib.c - com.microsoft operators that optimizers of ONNX Runtime leave in a model, but the
 * attention ones (ops_contrib_attention.c): fused products, GELUs, norms with a residual, BERT's
 * embedding layer. Each is written as what it was fused from, so that the same macros are found in
 * it. */
#include "import.h"
#include <string.h>

static DType type_of(ImportNode *n, Value v) { return (DType)node_type(n, v)->dtype; }

static Value added(ImportNode *n, Value a, Value b) {
    return a && b ? build_binary(n->g, OP_add, a, b) : a;
}

/* ---------------------------------------------------------------- products */

/* transBatchA: [m, batch.., k] is read as [batch.., m, k] */
static Value batch_first(ImportNode *n, Value v, const char *attribute) {
    uint32_t rank = node_type(n, v)->rank;
    int64_t perm[MAX_RANK];
    if (!node_int(n, attribute, 0) || rank < 3) return v;
    for (uint32_t i = 0; i + 2 < rank; i++) perm[i] = i + 1;
    perm[rank - 2] = 0;
    perm[rank - 1] = rank - 1;
    return build_transpose(n->g, v, perm);
}

void import_fused_matmul(ImportNode *n) {
    Value a = batch_first(n, n->in[0], "transBatchA"), b = batch_first(n, n->in[1], "transBatchB");
    bool ta = node_int(n, "transA", 0) != 0 && node_type(n, a)->rank > 1;
    bool tb = node_int(n, "transB", 0) != 0 && node_type(n, b)->rank > 1;
    Value y = build_dot(n->g, a, b, ta, tb);
    double alpha = node_float(n, "alpha", 1);
    n->out[0] =
        y && alpha != 1 ? build_binary(n->g, OP_mul, y, node_number(n, type_of(n, y), alpha)) : y;
}

/* Activations by name, with the numbers that activation_params (or the defaults of ONNX) give. */
static const struct Activation {
    const char *name, *rule;
    int n_numbers;
    float numbers[2];
} activations[] = {
    {"Relu", "(relu y)", 0, {0}},
    {"Tanh", "(tanh y)", 0, {0}},
    {"Sigmoid", "(sigmoid y)", 0, {0}},
    {"LeakyRelu", "(where (lt y 0) (mul p y) y)", 1, {0.01f}},
    {"Clip", "(clip y p q)", 2, {-3.402823466e38f, 3.402823466e38f}},
    {"HardSigmoid", "(clip (add (mul p y) q) 0 1)", 2, {0.2f, 0.5f}},
};

static Value activated(ImportNode *n, Value y, const char *attribute) {
    const char *name = node_string(n, attribute, "");
    uint32_t given = 0;
    const float *params = node_floats(n, "activation_params", &given);
    if (!y || !*name) return y;
    for (size_t i = 0; i < sizeof activations / sizeof *activations; i++) {
        const struct Activation *a = &activations[i];
        if (strcmp(name, a->name)) continue;
        RuleBind binds[] = {{"y", y}, {"p", 0}, {"q", 0}};
        for (uint32_t k = 0; k < 2; k++)
            binds[1 + k].value =
                node_number(n, type_of(n, y), (double)(k < given ? params[k] : a->numbers[k]));
        return node_rule(n, a->rule, binds, 3);
    }
    node_fail(n, attribute, "%s is unknown", name);
    return 0;
}

/* X, W, bias, and Z that is added before the activation */
void import_fused_conv(ImportNode *n) {
    import_conv(n);
    Value y = n->out[0];
    if (y) n->out[0] = activated(n, added(n, y, node_in(n, 3)), "activation");
}

void import_fused_gemm(ImportNode *n) {
    import_gemm(n);
    n->out[0] = activated(n, n->out[0], "activation");
}

/* ---------------------------------------------------------------- GELUs */

void import_fast_gelu(ImportNode *n) {
    n->out[0] = build_unary(n->g, OP_gelu_tanh, added(n, n->in[0], node_in(n, 1)));
}

/* left * gelu(right) of the halves of x + bias */
void import_bias_split_gelu(ImportNode *n) {
    Value x = added(n, n->in[0], node_in(n, 1)), half[2];
    if (!x) return;
    Type t = *node_type(n, x);
    if (!t.rank || t.dims[t.rank - 1] % 2) {
        node_fail_shapes(n, "the last axis has no halves");
        return;
    }
    t.dims[t.rank - 1] /= 2;
    for (int i = 0; i < 2; i++) {
        int64_t start[MAX_RANK] = {0};
        start[t.rank - 1] = i * t.dims[t.rank - 1];
        half[i] = build_slice(n->g, x, start, t.dims, NULL);
    }
    n->out[0] = build_binary(n->g, OP_mul, half[0], build_unary(n->g, OP_gelu, half[1]));
}

/* ---------------------------------------------------------------- norms */

/* Normalises over the last axis, in f32 at least. *mean and *inverse may be NULL. */
static Value last_axis_norm(ImportNode *n, OpCode op, Value x, double eps, Value *mean,
                            Value *inverse) {
    DType type = type_of(n, x);
    Value wide = type == DT_F16 || type == DT_BF16 ? build_cast(n->g, x, DT_F32) : x;
    int64_t axis = node_type(n, x)->rank - 1;
    AttrField fields[] = {attr_ints(A_AXES, &axis, 1), attr_float(A_EPS, eps)};
    Value y = graph_emit(n->g, op, &wide, 1, graph_attr(n->g, fields, 2), 0);
    Value middle = op == OP_layer_norm ? build_mean(n->g, wide, &axis, 1) : 0;
    Value centred = middle ? build_binary(n->g, OP_sub, wide, middle) : wide;
    if (mean) *mean = middle;
    if (inverse)
        *inverse = node_rule(
            n, "(rsqrt (add v e))",
            (RuleBind[]){
                {"v", build_mean(n->g, build_binary(n->g, OP_mul, centred, centred), &axis, 1)},
                {"e", node_number(n, type_of(n, wide), eps)}},
            2);
    return build_cast(n->g, y, type);
}

/* in: the sum is normalised, scaled and shifted; outputs: result, mean, 1 / deviation, the sum */
static void skip_norm(ImportNode *n, OpCode op, uint32_t scale, uint32_t shift, uint32_t bias) {
    Value x = build_binary(n->g, OP_add, n->in[0], n->in[1]), mean, inverse;
    x = added(n, x, node_in(n, bias));
    if (!x || node_type(n, x)->rank == 0) return;
    double eps = node_float(n, "epsilon", (double)1e-12f);
    Value y = last_axis_norm(n, op, x, eps, &mean, &inverse);
    y = build_binary(n->g, OP_mul, y, n->in[scale]);
    n->out[0] = shift ? added(n, y, node_in(n, shift)) : y;
    if (n->n_out > 1) n->out[1] = mean;
    if (n->n_out > 2) n->out[2] = inverse;
    if (n->n_out > 3) n->out[3] = x;
}

void import_skip_layer_norm(ImportNode *n) { skip_norm(n, OP_layer_norm, 2, 3, 4); }
void import_skip_rms_norm(ImportNode *n) { skip_norm(n, OP_rms_norm, 2, 0, 3); }

/* x[N, H, W, C] (channels_last, the default) or x[N, C, H, W]; SkipGroupNorm adds skip and bias
 * before. Groups of neighbouring channels share mean and variance; activation 1 is SiLU. */
static void group_norm(ImportNode *n, Value x) {
    Type t = *node_type(n, x);
    int64_t groups = node_int(n, "groups", 1);
    bool last = node_int(n, "channels_last", 1) != 0;
    if (t.rank != 4 || groups < 1 || t.dims[last ? 3 : 1] % groups) {
        node_fail(n, "groups", "%lld do not divide the channels", (long long)groups);
        return;
    }
    if (last) x = build_transpose(n->g, x, (int64_t[]){0, 3, 1, 2});
    Type planes = *node_type(n, x);
    int64_t c = planes.dims[1], size = c / groups * planes.dims[2] * planes.dims[3];
    Value y = build_reshape(n->g, x, 3, (int64_t[]){planes.dims[0], groups, size});
    y = last_axis_norm(n, OP_layer_norm, y, node_float(n, "epsilon", (double)1e-5f), NULL, NULL);
    y = build_reshape(n->g, y, 4, planes.dims);
    int64_t channel[] = {1, c, 1, 1};
    y = build_binary(n->g, OP_mul, y, build_reshape(n->g, n->in[1], 4, channel));
    y = build_binary(n->g, OP_add, y, build_reshape(n->g, n->in[2], 4, channel));
    if (y && node_int(n, "activation", 0)) y = build_unary(n->g, OP_silu, y);
    n->out[0] = last ? build_transpose(n->g, y, (int64_t[]){0, 2, 3, 1}) : y;
}

void import_contrib_group_norm(ImportNode *n) { group_norm(n, n->in[0]); }

void import_skip_group_norm(ImportNode *n) {
    Value skip = n->in[3], x;
    Type t = *node_type(n, n->in[0]), s = *node_type(n, skip);
    bool last = node_int(n, "channels_last", 1) != 0;
    if (s.rank == 2 && t.rank == 4) {
        int64_t dims[] = {s.dims[0], last ? 1 : s.dims[1], 1, last ? s.dims[1] : 1};
        skip = build_reshape(n->g, skip, 4, dims);
    }
    x = build_binary(n->g, OP_add, n->in[0], skip);
    if (x && node_in(n, 4)) {
        int64_t c = type_elems(node_type(n, n->in[4]));
        int64_t dims[] = {1, last ? 1 : c, 1, last ? c : 1};
        x = added(n, x, build_reshape(n->g, n->in[4], 4, dims));
    }
    if (!x) return;
    group_norm(n, x);
    if (n->n_out > 1) n->out[1] = x;
}

/* ---------------------------------------------------------------- embeddings of BERT */

static Value rows_at(ImportNode *n, Value table, Value ids) {
    ids = node_index(n, ids, node_type(n, table)->dims[0]);
    return ids ? build_gather(n->g, table, ids, 0) : 0;
}

/* input_ids, segment_ids, word, position and segment tables, gamma, beta, mask, position_ids ->
 * normalised sum, the number of tokens that the mask keeps per sample, the sum */
void import_embed_layer_norm(ImportNode *n) {
    Type ids = *node_type(n, n->in[0]);
    if (!node_in(n, 2) || !node_in(n, 3) || !node_in(n, 5) || !node_in(n, 6)) {
        node_fail_shapes(n, "word and position tables, gamma and beta are wanted");
        return;
    }
    if (ids.rank != 2 || node_type(n, n->in[3])->rank != 2) {
        node_fail_shapes(n, "ids [batch, sequence] and tables [rows, size] are wanted");
        return;
    }
    int64_t batch = ids.dims[0], sequence = ids.dims[1];
    TypeId row = graph_type_of(n->g, DT_I64, 2, (int64_t[]){1, sequence});
    Value positions = node_in(n, 8) ? n->in[8] : build_iota(n->g, row, 1);
    Value x =
        build_binary(n->g, OP_add, rows_at(n, n->in[2], n->in[0]), rows_at(n, n->in[3], positions));
    if (x && node_in(n, 1) && node_in(n, 4)) x = added(n, x, rows_at(n, n->in[4], n->in[1]));
    if (!x) return;
    Value y =
        last_axis_norm(n, OP_layer_norm, x, node_float(n, "epsilon", (double)1e-12f), NULL, NULL);
    n->out[0] = added(n, build_binary(n->g, OP_mul, y, n->in[5]), n->in[6]);
    if (n->n_out > 1) {
        Value mask =
            node_in(n, 7)
                ? n->in[7]
                : build_splat(n->g, graph_type_of(n->g, DT_I32, 2, (int64_t[]){batch, sequence}),
                              0);
        const int64_t axis = 1;
        n->out[1] = build_reshape(n->g, build_reduce(n->g, OP_sum, mask, &axis, 1), 1, &batch);
    }
    if (n->n_out > 2) n->out[2] = x;
}
