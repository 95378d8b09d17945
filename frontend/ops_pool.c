/* ops_pool.c - MaxPool, AveragePool, LpPool, their global forms: reductions over a window view; and
 * MaxUnpool, a scatter.
 *
 * MaxPool takes the first of equal elements, and its gradient goes there alone, as in PyTorch: y =
 * sum(where(tap == argmax, window, 0)). */
#include "ops_window.h"
#include <math.h>

enum { MAX_EXTENT = 1 << 24 }; /* of an axis with a table of counts */

/* Taps of a window stay on axes of their own, [N,C,o..,k..], so that an adjoint's index of an
 * output is that of its axis; only argmax sees them in one row. */
static uint32_t tap_axes(const Window *w, int64_t *axes) {
    for (uint32_t i = 0; i < w->rank; i++) axes[i] = 2 + w->rank + i;
    return w->rank;
}

static Value sum_of_taps(ImportNode *n, Value taps, const Window *w) {
    int64_t axes[MAX_RANK];
    uint32_t count = tap_axes(w, axes);
    return build_squeeze(n->g, build_reduce(n->g, OP_sum, taps, axes, count), axes, count);
}

/* The first greatest tap by its number, i64 [N,C,o..,1] */
static Value first_max(ImportNode *n, Value taps, const Window *w) {
    if (!taps) return 0;
    Type t = *node_type(n, taps);
    t.rank = (uint8_t)(w->rank + 3);
    t.dims[w->rank + 2] = 1;
    for (uint32_t i = 0; i < w->rank; i++) t.dims[w->rank + 2] *= w->kernel[i];
    taps = build_reshape(n->g, taps, t.rank, t.dims);
    return graph_emit(n->g, OP_argmax, &taps, 1,
                      graph_attr(n->g, (AttrField[]){attr_int(A_AXIS, w->rank + 2)}, 1), 0);
}

/* bool [N,C,o..,k..]: is this the tap of number `best`? */
static Value is_tap(ImportNode *n, Value best, const Window *w) {
    if (!best) return 0;
    Type t = *node_type(n, best);
    Value number = 0;
    for (uint32_t i = 0; i < w->rank; i++) {
        int64_t dims[MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
        dims[w->rank + 2 + i] = w->kernel[i];
        Value k =
            build_iota(n->g, graph_type_of(n->g, DT_I64, 2 * w->rank + 2, dims), w->rank + 2 + i);
        if (number)
            number =
                build_binary(n->g, OP_mul, number, node_number(n, DT_I64, (double)w->kernel[i]));
        number = number ? build_binary(n->g, OP_add, number, k) : k;
        t.dims[w->rank + 2 + i] = 1;
    }
    return build_binary(n->g, OP_eq, number, build_reshape(n->g, best, 2 * w->rank + 2, t.dims));
}

static Value pick(ImportNode *n, Value mask, Value taps, const Window *w) {
    RuleBind b[] = {{"m", mask}, {"t", taps}};
    return mask && taps ? sum_of_taps(n, node_rule(n, "(where m t 0)", b, 2), w) : 0;
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
    return pick(n, mask, window_view(g, place, w, 0), w);
}

/* The first tap of each window that is no padding, i64 [1,1,o..,1]. */
static Value first_inside(ImportNode *n, const Window *w) {
    Value all = 0;
    for (uint32_t i = 0; i < w->rank; i++) {
        int64_t dims[MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
        dims[i + 2] = w->out[i];
        RuleBind b[] = {
            {"o", build_iota(n->g, graph_type_of(n->g, DT_I64, w->rank + 3, dims), i + 2)},
            {"l", node_number(n, DT_I64, (double)w->low[i])},
            {"s", node_number(n, DT_I64, (double)w->strides[i])},
            {"d", node_number(n, DT_I64, (double)w->dilations[i])},
            {"k", node_number(n, DT_I64, (double)w->kernel[i])}};
        Value one = node_rule(
            n, "(min (idiv (add (max (sub l (mul o s)) 0) (sub d 1)) d) (sub k 1))", b, 5);
        if (all) all = build_binary(n->g, OP_mul, all, b[4].value);
        all = all ? build_binary(n->g, OP_add, all, one) : one;
    }
    return all;
}

/* Less than or equal to every element: what padding reads as */
static double least(DType d) {
    static const double small[N_DTYPES] = {
        [DT_I8] = -0x1p7, [DT_I16] = -0x1p15, [DT_I32] = -0x1p31, [DT_I64] = -0x1p63};
    return dtype_info[d].cls == CLASS_FLT ? -INFINITY : small[d];
}

static bool pads_below(const Window *w) {
    for (uint32_t i = 0; i < w->rank; i++)
        if (w->low[i] > 0) return true;
    return false;
}

/* Where a whole window equals its padding (-inf, or the least integer), the first element wins. */
void import_max_pool(ImportNode *n) {
    Window w;
    if (!read_kernel(n, &w)) return;
    DType d = (DType)node_type(n, node_in(n, 0))->dtype;
    Value taps = window_view(n->g, node_in(n, 0), &w, least(d)), best = first_max(n, taps, &w);
    if (best && pads_below(&w)) best = build_binary(n->g, OP_max, best, first_inside(n, &w));
    Value mask = is_tap(n, best, &w);
    n->out[0] = pick(n, mask, taps, &w);
    if (n->n_out > 1 && node_wants(n, 1)) n->out[1] = max_places(n, &w, mask);
}

/* How many taps of window o along axis i count: those inside the input, or inside the input and its
 * stated padding. */
static int64_t tap_count(const Window *w, uint32_t i, int64_t o, bool with_pad) {
    int64_t d = w->dilations[i], at = o * w->strides[i] - w->low[i];
    int64_t from = with_pad ? -w->low[i] : 0, to = w->in[i] + (with_pad ? w->stated_high[i] : 0);
    int64_t first = at < from ? (from - at + d - 1) / d : 0,
            past = to > at ? (to - at + d - 1) / d : 0;
    if (past > w->kernel[i]) past = w->kernel[i];
    return past > first ? past - first : 0;
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
    for (uint32_t i = 0; i < w.rank; i++)
        if (w.out[i] > MAX_EXTENT) {
            node_fail_shapes(n, "an output extent of %lld", (long long)w.out[i]);
            return;
        }
    Value sum = sum_of_taps(n, window_view(n->g, node_in(n, 0), &w, 0), &w);
    if (!sum) return;
    Value counts = inverse_counts(n, &w, (DType)node_type(n, sum)->dtype,
                                  node_int(n, "count_include_pad", 0) != 0);
    n->out[0] = build_binary(n->g, OP_div, sum, counts);
}

/* The root of the sum of powers over axes, which keep extent 1; no gradient flows where all are 0,
 * as in PyTorch. */
static Value norm_over(ImportNode *n, Value x, const int64_t *axes, uint32_t n_axes) {
    int64_t p = node_int(n, "p", 2);
    if (!x) return 0;
    DType dt = (DType)node_type(n, x)->dtype;
    RuleBind b[] = {{"x", x}, {"p", node_number(n, dt, (double)p)}};
    Value powers = node_rule(n,
                             p == 2   ? "(mul x x)"
                             : p == 1 ? "(abs x)"
                                      : "(pow (abs x) p)",
                             b, 2);
    Value sum = build_reduce(n->g, OP_sum, powers, axes, n_axes);
    if (!sum || p == 1) return sum;
    RuleBind r[] = {{"s", sum}, {"q", node_number(n, dt, 1.0 / (double)p)}};
    return node_rule(n,
                     p == 2 ? "(where (eq s 0) 0 (sqrt (where (eq s 0) 1 s)))"
                            : "(where (eq s 0) 0 (pow (where (eq s 0) 1 s) q))",
                     r, 2);
}

void import_lp_pool(ImportNode *n) {
    Window w;
    int64_t axes[MAX_RANK];
    if (!read_kernel(n, &w)) return;
    uint32_t count = tap_axes(&w, axes);
    Value norm = norm_over(n, window_view(n->g, node_in(n, 0), &w, 0), axes, count);
    n->out[0] = build_squeeze(n->g, norm, axes, count);
}

/* ---- whole planes ---- */

static bool plane_axes(ImportNode *n, int64_t *axes, uint32_t *count) {
    const Type *t = node_type(n, node_in(n, 0));
    *count = t->rank < 2 ? 0 : t->rank - 2u;
    for (uint32_t i = 0; i < *count; i++) axes[i] = i + 2;
    if (t->rank < 2) node_fail_shapes(n, "[N, C, spatial...] is wanted, the rank is %u", t->rank);
    return t->rank >= 2;
}

void import_global_max_pool(ImportNode *n) {
    Graph *g = n->g;
    int64_t axes[MAX_RANK];
    uint32_t count;
    if (!plane_axes(n, axes, &count)) return;
    Type t = *node_type(n, node_in(n, 0));
    int64_t pixels = 1, row[3] = {t.dims[0], t.dims[1]};
    for (uint32_t i = 2; i < t.rank; i++) pixels *= t.dims[i], t.dims[i] = 1;
    row[2] = pixels;
    Value x = build_reshape(g, node_in(n, 0), 3, row);
    Value best =
        graph_emit(g, OP_argmax, &x, 1, graph_attr(g, (AttrField[]){attr_int(A_AXIS, 2)}, 1), 0);
    RuleBind b[] = {
        {"x", x},
        {"b", best},
        {"i", build_iota(g, graph_type_of(g, DT_I64, 3, (int64_t[]){1, 1, pixels}), 2)}};
    Value y = best ? node_rule(n, "(where (eq i b) x 0)", b, 3) : 0;
    n->out[0] = build_reshape(g, build_reduce(g, OP_sum, y, (int64_t[]){2}, 1), t.rank, t.dims);
}

void import_global_average_pool(ImportNode *n) {
    int64_t axes[MAX_RANK];
    uint32_t count;
    if (plane_axes(n, axes, &count)) n->out[0] = build_mean(n->g, node_in(n, 0), axes, count);
}

void import_global_lp_pool(ImportNode *n) {
    int64_t axes[MAX_RANK];
    uint32_t count;
    if (plane_axes(n, axes, &count)) n->out[0] = norm_over(n, node_in(n, 0), axes, count);
}

/* ---- MaxUnpool ---- */

/* Extents that the pool had as input, as far as its attributes tell. */
static bool unpooled(ImportNode *n, const Type *x, Type *y) {
    uint32_t n_kernel, rank = x->rank < 2 ? 0 : x->rank - 2u;
    int64_t kernel[MAX_RANK], strides[MAX_RANK], pads[2 * MAX_RANK];
    *y = *x;
    node_ints(n, "kernel_shape", &n_kernel);
    if (!rank || n_kernel != rank) {
        node_fail(n, "kernel_shape", "one extent per spatial axis of %s is wanted",
                  type_text(n->g, x));
        return false;
    }
    if (!window_list(n, "kernel_shape", rank, 1, kernel) ||
        !window_list(n, "strides", rank, 1, strides) || !window_list(n, "pads", 2 * rank, 0, pads))
        return false;
    for (uint32_t i = 0; i < rank; i++) {
        int64_t steps = x->dims[i + 2] > INT32_MAX ? INT32_MAX : x->dims[i + 2] - 1;
        y->dims[i + 2] = steps * strides[i] + kernel[i] - pads[i] - pads[rank + i];
    }
    if (type_fits(y)) return true;
    node_fail_shapes(n, "the extents that were pooled are negative, or too large");
    return false;
}

/* Indices count in the extents that follow from the attributes; output_shape then pads or crops at
 * the end. */
void import_max_unpool(ImportNode *n) {
    Graph *g = n->g;
    Type x = *node_type(n, n->in[0]), y;
    const int64_t *shape;
    uint32_t count;
    int64_t low[MAX_RANK] = {0}, high[MAX_RANK] = {0}, flat = type_elems(&x);
    if (!dims_equal(&x, node_type(n, n->in[1]))) {
        node_fail_shapes(n, "values and indices have different dims");
        return;
    }
    if (!unpooled(n, &x, &y) || !node_ints_at(n, 2, &shape, &count)) return;
    if (shape && count != y.rank) {
        node_fail_shapes(n, "output_shape has %u extents", count);
        return;
    }
    for (uint32_t i = 0; shape && i < count; i++) {
        high[i] = shape[i] - y.dims[i];
        if (shape[i] >= 0 && shape[i] <= INT32_MAX) continue;
        node_fail_shapes(n, "an output extent of %lld", (long long)shape[i]);
        return;
    }
    int64_t total = type_elems(&y);
    Value base = build_splat(g, graph_type_of(g, (DType)x.dtype, 1, &total), 0);
    Value index = node_index(n, build_reshape(g, n->in[1], 1, &flat), total);
    AttrField fields[] = {attr_int(A_AXIS, 0), attr_int(A_MODE, SCATTER_SET)};
    Value v =
        graph_emit(g, OP_scatter, (Value[]){base, index, build_reshape(g, n->in[0], 1, &flat)}, 3,
                   graph_attr(g, fields, 2), 0);
    n->out[0] = build_pad(g, build_reshape(g, v, y.rank, y.dims), low, high, NULL, 0);
}
