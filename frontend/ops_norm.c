/* ops_norm.c - normalisations with statistics over batch, plane or group: BatchNormalization in
 * every version and form, InstanceNormalization, GroupNormalization, LRN, LpNormalization,
 * MeanVarianceNormalization.
 *
 * Statistics are two-pass: mean, then the mean of squared differences. LayerNormalization and
 * RMSNormalization stand in ops_nn.c. */
#include "import.h"

/* [C] or [C,1..] -> [1,C,1..] of the given rank */
static Value channelwise(ImportNode *n, Value v, uint32_t rank) {
    if (!v) return 0;
    int64_t dims[MAX_RANK] = {1, type_elems(node_type(n, v)), 1, 1, 1, 1, 1, 1};
    return build_reshape(n->g, v, rank, dims);
}

static Value affine(ImportNode *n, Value x, Value scale, Value bias) {
    uint32_t rank = node_type(n, x)->rank;
    x = build_binary(n->g, OP_mul, x, channelwise(n, scale, rank));
    return build_binary(n->g, OP_add, x, channelwise(n, bias, rank));
}

static Value normalise(ImportNode *n, Value x, Value mean, Value var, double eps) {
    return node_rule(n, "(mul (sub x m) (rsqrt (add v e)))",
                     (RuleBind[]){{"x", x},
                                  {"m", mean},
                                  {"v", var},
                                  {"e", node_number(n, (DType)node_type(n, var)->dtype, eps)}},
                     4);
}

static Value variance(ImportNode *n, Value x, Value mean, const int64_t *axes, uint32_t n_axes) {
    Value d = build_binary(n->g, OP_sub, x, mean);
    return build_mean(n->g, build_binary(n->g, OP_mul, d, d), axes, n_axes);
}

/* ---- batch statistics ---- */

static Value flat(ImportNode *n, Value v) {
    return v ? build_reshape(n->g, v, 1, (int64_t[]){type_elems(node_type(n, v))}) : 0;
}

static Value blend(ImportNode *n, Value running, Value now, double keep, double factor) {
    DType dt = (DType)node_type(n, running)->dtype;
    return node_rule(n, "(add (mul r k) (mul b f))",
                     (RuleBind[]){{"r", running},
                                  {"k", node_number(n, dt, keep)},
                                  {"b", build_cast(n->g, now, dt)},
                                  {"f", node_number(n, dt, (1 - keep) * factor)}},
                     4);
}

static void update_running(ImportNode *n, Value mean, Value var, int64_t count) {
    double keep = node_float(n, "momentum", 0.9f);
    bool unbiased = node_unbiased_variance(n) && count > 1;
    Value new_mean = blend(n, node_in(n, 3), flat(n, mean), keep, 1);
    Value new_var = blend(n, node_in(n, 4), flat(n, var), keep,
                          unbiased ? (double)count / (double)(count - 1) : 1);
    node_update(n, node_in(n, 3), new_mean);
    node_update(n, node_in(n, 4), new_var);
    if (n->n_out > 1) n->out[1] = new_mean;
    if (n->n_out > 2) n->out[2] = new_var;
}

static void batch_statistics(ImportNode *n, double eps) {
    Value x = node_in(n, 0);
    Type t = *node_type(n, x);
    int64_t axes[MAX_RANK] = {0};
    uint32_t n_axes = 1;
    for (uint32_t i = 2; i < t.rank; i++) axes[n_axes++] = i;
    Value mean = build_mean(n->g, x, axes, n_axes), var = variance(n, x, mean, axes, n_axes);
    if (!var) return;
    n->out[0] = affine(n, normalise(n, x, mean, var, eps), node_in(n, 1), node_in(n, 2));
    update_running(n, mean, var, type_elems(&t) / (t.dims[1] ? t.dims[1] : 1));
    node_mixes(n);
}

static void running_statistics(ImportNode *n, double eps) {
    Value x = node_in(n, 0);
    uint32_t rank = node_type(n, x)->rank;
    Value mean = channelwise(n, node_in(n, 3), rank), var = channelwise(n, node_in(n, 4), rank);
    n->out[0] = affine(n, normalise(n, x, mean, var, eps), node_in(n, 1), node_in(n, 2));
    if (n->n_out > 1) n->out[1] = node_in(n, 3);
    if (n->n_out > 2) n->out[2] = node_in(n, 4);
}

void import_batch_norm(ImportNode *n) {
    if (node_type(n, node_in(n, 0))->rank < 2) {
        node_fail_shapes(n, "[N, C, ...] is wanted");
        return;
    }
    bool graph_trains = n->opset >= 14 ? node_int(n, "training_mode", 0) != 0 : n->n_out > 1;
    double eps = node_float(n, "epsilon", 1e-5f);
    node_buffer(n, node_in(n, 3));
    node_buffer(n, node_in(n, 4));
    if (n->training && (graph_trains || n->batchnorm_train)) {
        batch_statistics(n, eps);
        return;
    }
    if (n->training) diag_add(n->g, W_BATCHNORM, 0);
    running_statistics(n, eps);
}

/* ---- statistics within a sample ---- */

static uint32_t spatial_axes(uint32_t rank, uint32_t first, int64_t *axes) {
    uint32_t n_axes = 0;
    for (uint32_t i = first; i < rank; i++) axes[n_axes++] = i;
    return n_axes;
}

static Value normalise_over(ImportNode *n, Value x, const int64_t *axes, uint32_t n_axes,
                            double eps) {
    Value mean = build_mean(n->g, x, axes, n_axes);
    return normalise(n, x, mean, variance(n, x, mean, axes, n_axes), eps);
}

void import_instance_norm(ImportNode *n) {
    Value x = node_in(n, 0);
    int64_t axes[MAX_RANK];
    uint32_t n_axes = spatial_axes(node_type(n, x)->rank, 2, axes);
    Value y = normalise_over(n, x, axes, n_axes, node_float(n, "epsilon", 1e-5f));
    if (y) n->out[0] = affine(n, y, node_in(n, 1), node_in(n, 2));
}

/* scale and bias are per group before opset 21, per channel from then on */
static Value per_channel(ImportNode *n, Value v, int64_t channels) {
    int64_t have = type_elems(node_type(n, v));
    if (have == channels) return v;
    Value wide = build_expand(n->g, build_reshape(n->g, v, 2, (int64_t[]){have, 1}), 2,
                              (int64_t[]){have, channels / have});
    return build_reshape(n->g, wide, 1, &channels);
}

void import_group_norm(ImportNode *n) {
    Value x = node_in(n, 0);
    Type t = *node_type(n, x);
    int64_t groups = node_int(n, "num_groups", 0);
    if (t.rank < 2 || groups < 1 || t.dims[1] % groups) {
        node_fail(n, "num_groups", "%lld does not divide the channels", (long long)groups);
        return;
    }
    int64_t size = t.dims[0] ? type_elems(&t) / (t.dims[0] * groups) : 0;
    Value rows = build_reshape(n->g, x, 3, (int64_t[]){t.dims[0], groups, size});
    Value y = normalise_over(n, rows, (int64_t[]){2}, 1, node_float(n, "epsilon", 1e-5f));
    y = build_reshape(n->g, y, t.rank, t.dims);
    if (y)
        n->out[0] = affine(n, y, per_channel(n, node_in(n, 1), t.dims[1]),
                           per_channel(n, node_in(n, 2), t.dims[1]));
}

void import_mean_variance_norm(ImportNode *n) {
    uint32_t n_axes;
    const int64_t *given = node_ints(n, "axes", &n_axes), standard[] = {0, 2, 3};
    int64_t axes[MAX_RANK];
    if (!given) given = standard, n_axes = 3;
    if (node_axes(n, given, n_axes, node_type(n, node_in(n, 0))->rank, axes))
        n->out[0] = normalise_over(n, node_in(n, 0), axes, n_axes, 1e-9);
}

void import_lp_norm(ImportNode *n) {
    Value x = node_in(n, 0);
    int64_t axis, p = node_int(n, "p", 2);
    if (!node_axis(n, node_int(n, "axis", -1), node_type(n, x)->rank, &axis)) return;
    Value size = p == 1 ? build_unary(n->g, OP_abs, x) : build_binary(n->g, OP_mul, x, x);
    size = build_reduce(n->g, OP_sum, size, &axis, 1);
    size = node_rule(n, "(where (eq s 0) 1 s)", (RuleBind[]){{"s", size}},
                     1); /* a line of zeros stays zeros */
    if (p != 1) size = build_unary(n->g, OP_sqrt, size);
    n->out[0] = build_binary(n->g, OP_div, x, size);
}

/* x / (bias + alpha / size * sum of squares over `size` neighbouring channels) ^ beta */
void import_lrn(ImportNode *n) {
    Value x = node_in(n, 0);
    Type t = *node_type(n, x);
    int64_t size = node_int(n, "size", 1), one = 1;
    if (t.rank < 2) {
        node_fail_shapes(n, "[N, C, ...] is wanted");
        return;
    }
    if (size < 1 || size > INT32_MAX) {
        node_fail(n, "size", "%lld is out of range", (long long)size);
        return;
    }
    int64_t low = (size - 1) / 2, high = size / 2;
    int64_t plane = t.dims[0] && t.dims[1] ? type_elems(&t) / (t.dims[0] * t.dims[1]) : 0;
    Value sq = build_reshape(n->g, build_binary(n->g, OP_mul, x, x), 3,
                             (int64_t[]){t.dims[0], t.dims[1], plane});
    Value turned = build_transpose(n->g, sq, (int64_t[]){0, 2, 1});
    AttrId a =
        graph_attr(n->g,
                   (AttrField[]){attr_ints(A_KERNEL, &size, 1), attr_ints(A_STRIDES, &one, 1),
                                 attr_ints(A_DILATIONS, &one, 1), attr_ints(A_LOW, &low, 1),
                                 attr_ints(A_HIGH, &high, 1), attr_float(A_VALUE, 0)},
                   6);
    Value sum = build_reduce(n->g, OP_sum, graph_emit(n->g, OP_window, &turned, 1, a, 0),
                             (int64_t[]){3}, 1);
    sum =
        build_transpose(n->g, build_reshape(n->g, sum, 3, (int64_t[]){t.dims[0], plane, t.dims[1]}),
                        (int64_t[]){0, 2, 1});
    DType dt = (DType)t.dtype;
    n->out[0] = node_rule(
        n, "(div x (pow (add k (mul f s)) p))",
        (RuleBind[]){{"x", x},
                     {"k", node_number(n, dt, node_float(n, "bias", 1))},
                     {"f", node_number(n, dt, node_float(n, "alpha", 1e-4f) / (double)size)},
                     {"s", build_reshape(n->g, sum, t.rank, t.dims)},
                     {"p", node_number(n, dt, node_float(n, "beta", 0.75f))}},
        5);
}
