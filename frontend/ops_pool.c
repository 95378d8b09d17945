/* ops_pool.c - MaxPool, AveragePool, LpPool, their global forms: reductions over a window view.
 *
 * MaxPool takes the first of equal elements, and its gradient goes there alone, as in PyTorch: y =
 * sum(where(tap == argmax, window, 0)). */
#include "ops_window.h"
#include <math.h>

static Value last_axis(Graph *g, OpCode op, Value v) {
    return v ? build_reduce(g, op, v, (int64_t[]){graph_type_at(g, v)->rank - 1}, 1) : 0;
}

static Value drop_last(Graph *g, Value v) {
    return v ? build_squeeze(g, v, (int64_t[]){graph_type_at(g, v)->rank - 1}, 1) : 0;
}

/* [.., K] -> bool [.., K]: is this tap the first greatest? */
static Value is_first_max(Graph *g, Value taps) {
    if (!taps) return 0;
    Type t = *graph_type_at(g, taps);
    int64_t axis = t.rank - 1;
    Value best = graph_emit(g, OP_argmax, &taps, 1,
                            graph_attr(g, (AttrField[]){attr_int(A_AXIS, axis)}, 1), 0);
    t.dtype = DT_I64;
    return build_binary(g, OP_eq, build_iota(g, graph_type(g, t), axis), best);
}

static Value pick(Graph *g, Value mask, Value taps) {
    if (!mask || !taps) return 0;
    Value zero = build_splat(g, graph_node(g, taps)->type, 0);
    return drop_last(g,
                     last_axis(g, OP_sum, build_map(g, OP_where, (Value[]){mask, taps, zero}, 3)));
}

static bool read_kernel(ImportNode *n, Window *w) {
    uint32_t have;
    const int64_t *kernel = node_ints(n, "kernel_shape", &have);
    const Type *t = node_type(n, node_in(n, 0));
    if (!kernel || t->rank < 3 || have != t->rank - 2u) {
        node_fail(n, "kernel_shape", "one extent per spatial axis is wanted");
        return false;
    }
    return window_read(n, node_in(n, 0), kernel, w);
}

/* MaxPool's second output: the place of the maximum in the flattened tensor (storage_order 1:
 * column-major planes). */
static Value max_places(ImportNode *n, const Window *w, Value mask) {
    Graph *g = n->g;
    Type t = *node_type(n, node_in(n, 0));
    int64_t stride[MAX_RANK], run = 1;
    bool columns = node_int(n, "storage_order", 0) != 0;
    for (uint32_t k = 0; k < w->rank; k++) {
        uint32_t i = columns ? k + 2 : t.rank - 1 - k;
        stride[i] = run, run *= t.dims[i];
    }
    stride[1] = run, stride[0] = run * t.dims[1];
    t.dtype = DT_I64;
    TypeId type = graph_type(g, t);
    Value place = build_splat(g, type, 0);
    for (uint32_t i = 0; i < t.rank; i++)
        place = build_binary(g, OP_add, place,
                             build_binary(g, OP_mul, build_iota(g, type, i),
                                          build_splat(g, type, (double)stride[i])));
    return pick(g, mask, window_view(g, place, w, 0));
}

void import_max_pool(ImportNode *n) {
    Window w;
    if (!read_kernel(n, &w)) return;
    const Type *t = node_type(n, node_in(n, 0));
    bool is_float = dtype_info[t->dtype].cls == CLASS_FLT;
    Value taps = window_view(n->g, node_in(n, 0), &w, is_float ? -INFINITY : -128);
    Value mask = is_first_max(n->g, taps);
    n->out[0] = pick(n->g, mask, taps);
    if (n->n_out > 1 && node_wants(n, 1)) n->out[1] = max_places(n, &w, mask);
}

/* How many taps of window o along axis i count: those inside the input, or inside the input and its
 * stated padding. */
static int64_t tap_count(const Window *w, uint32_t i, int64_t o, bool with_pad) {
    int64_t count = 0, at = o * w->strides[i] - w->low[i];
    int64_t from = with_pad ? -w->low[i] : 0, to = w->in[i] + (with_pad ? w->stated_high[i] : 0);
    for (int64_t k = 0; k < w->kernel[i]; k++, at += w->dilations[i])
        count += at >= from && at < to;
    return count;
}

/* [1,1,o..]: 1 / number of counted taps */
static Value inverse_counts(ImportNode *n, const Window *w, DType dtype, bool with_pad) {
    Graph *g = n->g;
    Value all = 0;
    for (uint32_t i = 0; i < w->rank; i++) {
        int64_t dims[MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
        dims[i + 2] = w->out[i];
        float *part = arena_alloc(n->arena, sizeof(float) * (size_t)w->out[i]);
        for (int64_t o = 0; o < w->out[i]; o++) part[o] = (float)tap_count(w, i, o, with_pad);
        Value c = build_const(g, graph_type_of(g, DT_F32, w->rank + 2, dims), part);
        all = all ? build_binary(g, OP_mul, all, c) : c;
    }
    return build_cast(g, all, dtype);
}

void import_average_pool(ImportNode *n) {
    Window w;
    if (!read_kernel(n, &w)) return;
    Value sum = drop_last(n->g, last_axis(n->g, OP_sum, window_view(n->g, node_in(n, 0), &w, 0)));
    if (!sum) return;
    Value counts = inverse_counts(n, &w, (DType)node_type(n, sum)->dtype,
                                  node_int(n, "count_include_pad", 0) != 0);
    n->out[0] = build_binary(n->g, OP_div, sum, counts);
}

static Value norm_of(ImportNode *n, Value taps, int64_t p) {
    if (!taps) return 0;
    DType dt = (DType)node_type(n, taps)->dtype;
    Value powers =
        build_binary(n->g, OP_pow, build_unary(n->g, OP_abs, taps), node_number(n, dt, (double)p));
    Value sum = drop_last(n->g, last_axis(n->g, OP_sum, powers));
    return sum ? build_binary(n->g, OP_pow, sum, node_number(n, dt, 1.0 / (double)p)) : 0;
}

void import_lp_pool(ImportNode *n) {
    Window w;
    if (read_kernel(n, &w))
        n->out[0] = norm_of(n, window_view(n->g, node_in(n, 0), &w, 0), node_int(n, "p", 2));
}

/* x[N,C,s..] -> [N,C,1..,K] */
static Value whole_plane(ImportNode *n) {
    const Type *t = node_type(n, node_in(n, 0));
    if (t->rank < 2 || t->rank >= MAX_RANK) {
        node_fail_shapes(n, "[N, C, spatial...] is wanted, the rank is %u", t->rank);
        return 0;
    }
    int64_t dims[MAX_RANK + 1] = {t->dims[0], t->dims[1]}, taps = 1;
    for (uint32_t i = 2; i < t->rank; i++) dims[i] = 1, taps *= t->dims[i];
    dims[t->rank] = taps;
    return build_reshape(n->g, node_in(n, 0), t->rank + 1u, dims);
}

void import_global_max_pool(ImportNode *n) {
    Value taps = whole_plane(n);
    n->out[0] = pick(n->g, is_first_max(n->g, taps), taps);
}

void import_global_average_pool(ImportNode *n) {
    Value taps = whole_plane(n);
    if (taps)
        n->out[0] =
            drop_last(n->g, build_mean(n->g, taps, (int64_t[]){node_type(n, taps)->rank - 1}, 1));
}

void import_global_lp_pool(ImportNode *n) {
    n->out[0] = norm_of(n, whole_plane(n), node_int(n, "p", 2));
}
