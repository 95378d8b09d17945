/* ops_deform.c - DeformConv: a convolution whose taps are read at positions that the input gives.
 *
 * Every tap of every output position is one bilinear sample of its group of channels (zeros
 * outside), times the mask; the samples are the columns of a matrix product per group. Gradients of
 * x, offsets, mask and weights are those of the sampler and of the product. */
#include "ops_sample.h"
#include "ops_window.h"

typedef struct Deform {
    ImportNode *n;
    Window w;
    int64_t groups, offset_groups, taps, points;
} Deform;

static bool deform_read(ImportNode *n, Deform *d) {
    Type x = *node_type(n, n->in[0]), w = *node_type(n, n->in[1]), o = *node_type(n, n->in[2]);
    *d = (Deform){.n = n,
                  .groups = node_int(n, "group", 1),
                  .offset_groups = node_int(n, "offset_group", 1),
                  .taps = 1,
                  .points = 1};
    if (x.rank < 3 || x.rank > 5 || w.rank != x.rank || o.rank != x.rank) {
        node_fail_shapes(n, "X %s, W %s and offset %s have different ranks", type_text(n->g, &x),
                         type_text(n->g, &w), type_text(n->g, &o));
        return false;
    }
    if (d->groups < 1 || d->groups > INT32_MAX || d->offset_groups < 1 ||
        d->offset_groups > INT32_MAX) {
        node_fail(n, "group", "group or offset_group is out of range");
        return false;
    }
    if (!window_read(n, n->in[0], w.dims + 2, &d->w)) return false;
    bool fits = dtype_info[x.dtype].cls == CLASS_FLT && dtype_info[o.dtype].cls == CLASS_FLT &&
                x.dims[1] == w.dims[1] * d->groups && w.dims[0] % d->groups == 0 &&
                x.dims[1] % d->offset_groups == 0;
    for (uint32_t i = 0; i < d->w.rank; i++) {
        fits = fits && o.dims[i + 2] == d->w.out[i];
        d->taps *= d->w.kernel[i], d->points *= d->w.out[i];
    }
    fits = fits && o.dims[0] == x.dims[0] && o.dims[1] == d->offset_groups * d->taps * d->w.rank;
    if (!fits)
        node_fail_shapes(n, "groups, kernel and offset %s do not fit X %s and W %s",
                         type_text(n->g, &o), type_text(n->g, &x), type_text(n->g, &w));
    return fits;
}

/* Where tap k of output o stands along axis i without an offset: [1,1,K,P] */
static Value base_position(const Deform *d, DType dtype, uint32_t i) {
    Graph *g = d->n->g;
    const Window *w = &d->w;
    int64_t dims[MAX_RANK];
    for (uint32_t k = 0; k < w->rank; k++) dims[k] = w->kernel[k], dims[w->rank + k] = w->out[k];
    TypeId type = graph_type_of(g, dtype, 2 * w->rank, dims);
    RuleBind b[] = {{"k", build_iota(g, type, i)},
                    {"o", build_iota(g, type, w->rank + i)},
                    {"d", node_number(d->n, dtype, (double)w->dilations[i])},
                    {"s", node_number(d->n, dtype, (double)w->strides[i])},
                    {"p", node_number(d->n, dtype, (double)w->low[i])}};
    Value at = node_rule(d->n, "(sub (add (mul o s) (mul k d)) p)", b, 5);
    return build_reshape(g, at, 4, (int64_t[]){1, 1, d->taps, d->points});
}

/* x at all taps: [N,C,K,P] */
static Value sampled(const Deform *d) {
    ImportNode *n = d->n;
    Graph *g = n->g;
    Type x = *node_type(n, n->in[0]);
    int64_t batch = x.dims[0], og = d->offset_groups, rank = d->w.rank;
    int64_t grouped[] = {batch, og, d->taps, rank, d->points};
    Value offset = build_reshape(g, sample_position(n, n->in[2]), 5, grouped), at[MAX_RANK];
    for (uint32_t i = 0; i < d->w.rank; i++) {
        Value part = build_slice(g, offset, (int64_t[]){0, 0, 0, i, 0},
                                 (int64_t[]){batch, og, d->taps, 1, d->points}, NULL);
        part = build_reshape(g, part, 4, (int64_t[]){batch, og, d->taps, d->points});
        part =
            build_binary(g, OP_add, part, base_position(d, (DType)node_type(n, offset)->dtype, i));
        at[i] = build_reshape(g, part, 2, (int64_t[]){batch * og, d->taps * d->points});
    }
    Sampler s = {.n = n, .mode = SAMPLE_LINEAR, .padding = SAMPLE_ZEROS};
    int64_t dims[MAX_RANK] = {batch * og, x.dims[1] / og};
    for (uint32_t i = 2; i < x.rank; i++) dims[i] = x.dims[i];
    Value v = sample_points(&s, build_reshape(g, n->in[0], x.rank, dims), at);
    Value mask = node_in(n, 4);
    if (mask) {
        v = build_reshape(g, v, 5, (int64_t[]){batch, og, x.dims[1] / og, d->taps, d->points});
        mask = build_reshape(g, mask, 5, (int64_t[]){batch, og, 1, d->taps, d->points});
        v = build_binary(g, OP_mul, v, mask);
    }
    return build_reshape(g, v, 4, (int64_t[]){batch, x.dims[1], d->taps, d->points});
}

void import_deform_conv(ImportNode *n) {
    Graph *g = n->g;
    Deform d;
    if (!deform_read(n, &d)) return;
    Type x = *node_type(n, n->in[0]), w = *node_type(n, n->in[1]);
    int64_t inner = w.dims[1] * d.taps, outer = w.dims[0] / d.groups;
    Value columns =
        build_reshape(g, sampled(&d), 4, (int64_t[]){x.dims[0], d.groups, inner, d.points});
    Value weights = build_reshape(g, n->in[1], 4, (int64_t[]){1, d.groups, outer, inner});
    Value y = build_dot(g, weights, columns, false, false);
    int64_t dims[MAX_RANK] = {x.dims[0], w.dims[0]}, ones[MAX_RANK] = {1, w.dims[0], 1, 1, 1};
    for (uint32_t i = 0; i < d.w.rank; i++) dims[i + 2] = d.w.out[i];
    y = build_reshape(g, y, x.rank, dims);
    Value bias = build_reshape(g, node_in(n, 3), x.rank, ones);
    n->out[0] = bias ? build_binary(g, OP_add, y, bias) : y;
}
