/* ops_reduce.c - reductions: the axes are an attribute in old versions, an input since 13
 * (ReduceSum) or 18; core reductions keep the axes at extent 1 and a reshape drops them. ArgMax and
 * CumSum stand here too. */
#include "import.h"

typedef struct Reduction {
    Value a;
    int64_t axes[MAX_RANK];
    uint32_t n;
    bool keeps;
} Reduction;

/* false after a diagnostic. No axes at all (noop_with_empty_axes): n is 0, and build_reduce does
 * nothing. */
static bool reduction_read(ImportNode *n, Reduction *r) {
    const int64_t *axes;
    r->a = n->in[0];
    r->keeps = node_int(n, "keepdims", 1) != 0;
    if (!node_ints_of(n, "axes", 1, &axes, &r->n)) return false;
    uint32_t rank = node_type(n, r->a)->rank;
    if (r->n == 0 && node_int(n, "noop_with_empty_axes", 0)) return true;
    if (r->n) return node_axes(n, axes, r->n, rank, r->axes);
    for (r->n = 0; r->n < rank; r->n++) r->axes[r->n] = r->n;
    return true;
}

static Value reduced(ImportNode *n, const Reduction *r, OpCode op, Value v) {
    return build_reduce(n->g, op, v, r->axes, r->n);
}

static void reduction_end(ImportNode *n, const Reduction *r, Value v) {
    n->out[0] = r->keeps ? v : build_squeeze(n->g, v, r->axes, r->n);
}

void import_reduce_sum(ImportNode *n) {
    Reduction r;
    if (reduction_read(n, &r)) reduction_end(n, &r, reduced(n, &r, OP_sum, r.a));
}

void import_reduce_mean(ImportNode *n) {
    Reduction r;
    if (reduction_read(n, &r)) reduction_end(n, &r, build_mean(n->g, r.a, r.axes, r.n));
}

void import_reduce_prod(ImportNode *n) {
    Reduction r;
    if (reduction_read(n, &r)) reduction_end(n, &r, reduced(n, &r, OP_prod, r.a));
}

/* Since 20 also of truth values. */
static void reduce_extreme(ImportNode *n, OpCode op) {
    Reduction r;
    if (!reduction_read(n, &r)) return;
    DType type = (DType)node_type(n, r.a)->dtype;
    Value v = reduced(n, &r, op, type == DT_BOOL ? build_cast(n->g, r.a, DT_U8) : r.a);
    reduction_end(n, &r, v ? build_cast(n->g, v, type) : 0);
}

void import_reduce_max(ImportNode *n) { reduce_extreme(n, OP_rmax); }
void import_reduce_min(ImportNode *n) { reduce_extreme(n, OP_rmin); }

void import_reduce_l1(ImportNode *n) {
    Reduction r;
    if (reduction_read(n, &r))
        reduction_end(n, &r, reduced(n, &r, OP_sum, build_unary(n->g, OP_abs, r.a)));
}

static Value sum_of_squares(ImportNode *n, const Reduction *r) {
    return reduced(n, r, OP_sum, build_binary(n->g, OP_mul, r->a, r->a));
}

void import_reduce_sum_square(ImportNode *n) {
    Reduction r;
    if (reduction_read(n, &r)) reduction_end(n, &r, sum_of_squares(n, &r));
}

/* Of integers: through f64. The norm of zeros has the gradient 0, as in PyTorch. */
void import_reduce_l2(ImportNode *n) {
    Reduction r;
    if (!reduction_read(n, &r)) return;
    DType type = (DType)node_type(n, r.a)->dtype;
    if (dtype_info[type].cls != CLASS_FLT) r.a = build_cast(n->g, r.a, DT_F64);
    RuleBind binds[] = {{"a", sum_of_squares(n, &r)}};
    Value norm = node_rule(n, "(let z (eq a 0) (where z 0 (sqrt (where z 1 a))))", binds, 1);
    reduction_end(n, &r, build_cast(n->g, norm, type));
}

void import_reduce_log_sum(ImportNode *n) {
    Reduction r;
    if (reduction_read(n, &r))
        reduction_end(n, &r, build_unary(n->g, OP_log, reduced(n, &r, OP_sum, r.a)));
}

/* log sum exp(a - m) + m with m the largest, 0 where that is infinite */
void import_reduce_log_sum_exp(ImportNode *n) {
    Reduction r;
    if (!reduction_read(n, &r)) return;
    Value top = reduced(n, &r, OP_rmax, r.a);
    Value m = node_rule(n, "(where (isinf m) 0 m)", (RuleBind[]){{"m", top}}, 1);
    Value sum =
        reduced(n, &r, OP_sum, build_unary(n->g, OP_exp, build_binary(n->g, OP_sub, r.a, m)));
    reduction_end(n, &r, build_binary(n->g, OP_add, build_unary(n->g, OP_log, sum), m));
}

/* ---------------------------------------------------------------- ArgMax, ArgMin */

static Value reversed(ImportNode *n, Value v, int64_t axis) {
    Type t = *node_type(n, v);
    int64_t start[MAX_RANK] = {0}, step[MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    start[axis] = t.dims[axis] - 1;
    step[axis] = -1;
    return build_slice(n->g, v, start, t.dims, step);
}

/* select_last_index: the first of the reversed axis, counted back. */
static void import_arg(ImportNode *n, OpCode op) {
    int64_t axis;
    Type t = *node_type(n, n->in[0]);
    if (!node_axis(n, node_int(n, "axis", 0), t.rank, &axis)) return;
    bool is_last = node_int(n, "select_last_index", 0) != 0;
    Value a = is_last ? reversed(n, n->in[0], axis) : n->in[0];
    Value at =
        graph_emit(n->g, op, &a, 1, graph_attr(n->g, (AttrField[]){attr_int(A_AXIS, axis)}, 1), 0);
    if (is_last)
        at = build_binary(n->g, OP_sub, node_number(n, DT_I64, (double)(t.dims[axis] - 1)), at);
    n->out[0] = node_int(n, "keepdims", 1) ? at : build_squeeze(n->g, at, &axis, 1);
}

void import_arg_max(ImportNode *n) { import_arg(n, OP_argmax); }
void import_arg_min(ImportNode *n) { import_arg(n, OP_argmin); }

/* ---------------------------------------------------------------- CumSum, CumProd */

enum { MAX_WINDOWED = 256 };

/* Elements moved `by` places to the end of the axis 1 of [rows, extent], `fill` before them. */
static Value moved(ImportNode *n, Value v, int64_t by, double fill) {
    const int64_t low[2] = {0, by}, high[2] = {0, -by};
    return build_pad(n->g, v, low, high, NULL, fill);
}

/* log2(extent) passes: after each an element holds twice as many as before (Hillis and Steele,
 * "Data parallel algorithms", 1986). */
static Value by_doubling(ImportNode *n, Value v, OpCode op, double fill, bool is_exclusive) {
    int64_t extent = node_type(n, v)->dims[1];
    if (is_exclusive) v = moved(n, v, 1, fill);
    for (int64_t by = 1; v && by < extent; by *= 2)
        v = build_binary(n->g, op, v, moved(n, v, by, fill));
    return v;
}

/* The sum of the window that ends at each element: low padding of extent - 1 zeros, or of extent
 * where exclusive. */
static Value by_windows(ImportNode *n, Value v, OpCode op, double fill, bool is_exclusive) {
    int64_t extent = node_type(n, v)->dims[1], one = 1, low = extent - 1 + is_exclusive,
            high = -(int64_t)is_exclusive, axis = 2;
    AttrField fields[] = {attr_ints(A_KERNEL, &extent, 1), attr_ints(A_STRIDES, &one, 1),
                          attr_ints(A_DILATIONS, &one, 1), attr_ints(A_LOW, &low, 1),
                          attr_ints(A_HIGH, &high, 1),     attr_float(A_VALUE, fill)};
    Value windows = graph_emit(n->g, OP_window, &v, 1, graph_attr(n->g, fields, 6), 0);
    return build_reduce(n->g, op, windows, &axis, 1);
}

static Value running(ImportNode *n, Value v, OpCode reduce, bool is_exclusive) {
    Type t = *node_type(n, v);
    int64_t extent = t.dims[t.rank - 1];
    double fill = reduce == OP_prod ? 1 : 0;
    v = build_reshape(n->g, v, 2, (int64_t[]){type_elems(&t) / extent, extent});
    v = extent <= MAX_WINDOWED
            ? by_windows(n, v, reduce, fill, is_exclusive)
            : by_doubling(n, v, reduce == OP_prod ? OP_mul : OP_add, fill, is_exclusive);
    return build_reshape(n->g, v, t.rank, t.dims);
}

static void import_running(ImportNode *n, OpCode reduce) {
    const int64_t *list;
    uint32_t count;
    int64_t axis, perm[MAX_RANK];
    if (!node_ints_at(n, 1, &list, &count)) return;
    Type t = *node_type(n, n->in[0]);
    if (!node_axis(n, count ? list[0] : 0, t.rank, &axis)) return;
    if (type_elems(&t) == 0) {
        n->out[0] = n->in[0];
        return;
    }
    for (int64_t i = 0; i < t.rank; i++)
        perm[i] = i == axis ? t.rank - 1 : i == t.rank - 1 ? axis : i;
    bool is_reverse = node_int(n, "reverse", 0) != 0;
    Value v = is_reverse ? reversed(n, n->in[0], axis) : n->in[0];
    v = running(n, build_transpose(n->g, v, perm), reduce, node_int(n, "exclusive", 0) != 0);
    v = v ? build_transpose(n->g, v, perm) : 0;
    n->out[0] = v && is_reverse ? reversed(n, v, axis) : v;
}

void import_cum_sum(ImportNode *n) { import_running(n, OP_sum); }
void import_cum_prod(ImportNode *n) { import_running(n, OP_prod); }
