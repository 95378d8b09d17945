/* shape_contract.c - types of windows, dot, convolutions and their adjoints, gathers and scatters.
 *
 * An adjoint's type is given (several operands of the forward op have the same result type); its
 * rule runs the forward rule on it and compares.
 */
#include "shape_rules.h"
#include <string.h>

/* ---------------------------------------------------------------- windows */

int64_t window_extent(int64_t s, int64_t k, int64_t stride, int64_t dilation, int64_t low,
                      int64_t high) {
    int64_t room = s + low + high - ((k - 1) * dilation + 1);
    return room < 0 || k < 1 || stride < 1 || dilation < 1 ? -1 : room / stride + 1;
}

/* dims of window over a: leading ones, positions, kernel; false where it fits nowhere */
static bool window_dims(const Graph *g, AttrId attr, const Type *a, Type *out) {
    Axes k = shape_axes(g, attr, A_KERNEL), stride = shape_axes(g, attr, A_STRIDES),
         dilation = shape_axes(g, attr, A_DILATIONS);
    Axes low = shape_axes(g, attr, A_LOW), high = shape_axes(g, attr, A_HIGH);
    if (k.n > a->rank || a->rank + k.n > MAX_RANK) return false;
    *out = *a;
    out->rank = (uint8_t)(a->rank + k.n);
    for (uint32_t i = 0, at = a->rank - k.n; i < k.n; i++, at++) {
        out->dims[at] = window_extent(a->dims[at], k.at[i], stride.at[i], dilation.at[i], low.at[i],
                                      high.at[i]);
        out->dims[at + k.n] = k.at[i];
        if (out->dims[at] < 0) return false;
    }
    return true;
}

TypeId shape_window(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                    TypeId given) {
    (void)given;
    Type t;
    if (!shape_lists_are(g, op, attr, shape_axes(g, attr, A_KERNEL).n))
        return shape_refuse(g, op, operands, n, "lists have different lengths");
    if (!window_dims(g, attr, graph_type_at(g, operands[0]), &t))
        return shape_refuse(g, op, operands, n, "the window does not fit");
    return shape_done(g, op, operands, n, &t);
}

TypeId shape_fold(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                  TypeId given) {
    const Type *a = graph_type_at(g, operands[0]);
    if (!given) return shape_refuse(g, op, operands, n, "the type is not given");
    Type t = g->types[given], windows;
    t.dtype = a->dtype;
    if (dtype_class(a->dtype) == CLASS_BOOL)
        return shape_refuse_dtype(g, op, DT_BOOL, "needs floats or integers");
    if (!shape_lists_are(g, op, attr, shape_axes(g, attr, A_KERNEL).n))
        return shape_refuse(g, op, operands, n, "lists have different lengths");
    if (!window_dims(g, attr, &t, &windows) || !dims_equal(&windows, a))
        return shape_refuse(g, op, operands, n,
                            arena_printf(g->arena, "these are no windows of %s", type_text(g, &t)));
    return shape_done(g, op, operands, n, &t);
}

/* ---------------------------------------------------------------- contractions */

static bool one_number_type(Graph *g, OpCode op, const Type *a, const Type *b) {
    if (a->dtype != b->dtype)
        return shape_refuse_dtype(g, op, (DType)a->dtype,
                                  arena_printf(g->arena, "the other operand is %s",
                                               dtype_info[b->dtype].name)) != 0;
    if (dtype_class(a->dtype) == CLASS_BOOL)
        return shape_refuse_dtype(g, op, DT_BOOL, "needs floats or integers") != 0;
    return true;
}

TypeId shape_dot(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                 TypeId given) {
    (void)given;
    const Type *a = graph_type_at(g, operands[0]), *b = graph_type_at(g, operands[1]);
    int64_t ta = shape_int(g, attr, A_TA), tb = shape_int(g, attr, A_TB);
    Type t = *a;
    if (!one_number_type(g, op, a, b)) return 0;
    if (a->rank < 2 || a->rank != b->rank)
        return shape_refuse(g, op, operands, n, "ranks differ or are below 2");
    uint32_t batch = a->rank - 2u;
    for (uint32_t i = 0; i < batch; i++)
        if (a->dims[i] != b->dims[i]) return shape_refuse(g, op, operands, n, "batch dims differ");
    int64_t a_inner = a->dims[batch + (ta ? 0 : 1)], b_inner = b->dims[batch + (tb ? 1 : 0)];
    if (a_inner != b_inner) {
        diag_add(g, E_DOT_INNER, g->loc, (long long)a_inner, (long long)b_inner);
        return 0;
    }
    t.dims[batch] = a->dims[batch + (ta ? 1 : 0)];
    t.dims[batch + 1] = b->dims[batch + (tb ? 0 : 1)];
    return shape_done(g, op, operands, n, &t);
}

/* y[N,O,o..] of x[N,C,s..] and w[O,C/G,k..]; NULL, or why they do not fit */
static const char *conv_dims(const Graph *g, AttrId attr, const Type *x, const Type *w, Type *y) {
    Axes stride = shape_axes(g, attr, A_STRIDES), dilation = shape_axes(g, attr, A_DILATIONS);
    Axes low = shape_axes(g, attr, A_LOW), high = shape_axes(g, attr, A_HIGH);
    int64_t groups = shape_int(g, attr, A_GROUPS);
    if (x->rank < 3 || x->rank != w->rank) return "ranks differ or are below 3";
    if (groups < 1 || groups > INT32_MAX || w->dims[0] % groups ||
        x->dims[1] != w->dims[1] * groups)
        return "channels and groups do not fit";
    *y = *x;
    y->dims[1] = w->dims[0];
    for (uint32_t i = 2; i < x->rank; i++) {
        uint32_t s = i - 2;
        y->dims[i] = window_extent(x->dims[i], w->dims[i], stride.at[s], dilation.at[s], low.at[s],
                                   high.at[s]);
        if (y->dims[i] < 0) return "the kernel does not fit";
    }
    return NULL;
}

static TypeId conv_rule(Graph *g, OpCode op, const Value *operands, AttrId attr, Type x, Type w,
                        const Type *y, TypeId result) {
    Type expected;
    const Type *first = graph_type_at(g, operands[0]);
    if (!one_number_type(g, op, first, graph_type_at(g, operands[1]))) return 0;
    uint32_t n_lists = first->rank < 2 ? 0 : first->rank - 2u;
    if (!shape_lists_are(g, op, attr, n_lists))
        return shape_refuse(g, op, operands, 2, "lists need one element per spatial axis");
    const char *why = conv_dims(g, attr, &x, &w, &expected);
    if (!why && y && !dims_equal(&expected, y)) why = "the given type does not fit";
    if (why) return shape_refuse(g, op, operands, 2, why);
    Type t = y ? g->types[result] : expected;
    t.dtype = first->dtype;
    return shape_done(g, op, operands, 2, &t);
}

TypeId shape_conv(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                  TypeId given) {
    (void)n, (void)given;
    return conv_rule(g, op, operands, attr, *graph_type_at(g, operands[0]),
                     *graph_type_at(g, operands[1]), NULL, 0);
}

TypeId shape_conv_dx(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                     TypeId given) {
    if (!given) return shape_refuse(g, op, operands, n, "the type is not given");
    Type y = *graph_type_at(g, operands[0]);
    return conv_rule(g, op, operands, attr, g->types[given], *graph_type_at(g, operands[1]), &y,
                     given);
}

TypeId shape_conv_dw(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                     TypeId given) {
    if (!given) return shape_refuse(g, op, operands, n, "the type is not given");
    Type y = *graph_type_at(g, operands[1]);
    return conv_rule(g, op, operands, attr, *graph_type_at(g, operands[0]), g->types[given], &y,
                     given);
}

/* ---------------------------------------------------------------- indexing */

/* Appends dims [from, to) of src; false past MAX_RANK. */
static bool dims_append(Type *t, const Type *src, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) {
        if (t->rank == MAX_RANK) return false;
        t->dims[t->rank++] = src->dims[i];
    }
    return true;
}

static const char *gather_dims(const Type *a, const Type *idx, int64_t axis, Type *out) {
    *out = (Type){.dtype = a->dtype};
    if (axis < 0 || axis >= a->rank) return "the axis is out of range";
    bool fits = dims_append(out, a, 0, axis) && dims_append(out, idx, 0, idx->rank) &&
                dims_append(out, a, axis + 1, a->rank);
    return fits ? NULL : "the rank is too high";
}

/* ONNX GatherElements: the indices may cover less than the other axes. */
static const char *take_dims(const Type *a, const Type *idx, int64_t axis, Type *out) {
    *out = *idx;
    out->dtype = a->dtype;
    if (axis < 0 || axis >= a->rank) return "the axis is out of range";
    if (idx->rank != a->rank) return "ranks differ";
    for (int64_t i = 0; i < a->rank; i++)
        if (i != axis && idx->dims[i] > a->dims[i]) return "indices exceed the dims";
    return NULL;
}

static const char *gather_nd_dims(const Type *a, const Type *idx, int64_t batch, Type *out) {
    *out = (Type){.dtype = a->dtype};
    if (batch < 0 || batch >= idx->rank || batch > a->rank) return "too many batch dims";
    int64_t depth = idx->dims[idx->rank - 1];
    if (batch + depth > a->rank) return "indices are longer than the rank";
    for (int64_t i = 0; i < batch; i++)
        if (idx->dims[i] != a->dims[i]) return "batch dims differ";
    bool fits =
        dims_append(out, idx, 0, idx->rank - 1) && dims_append(out, a, batch + depth, a->rank);
    return fits ? NULL : "the rank is too high";
}

static TypeId index_refuse(Graph *g, OpCode op, const Type *idx) {
    return shape_refuse_dtype(g, op, (DType)idx->dtype, "indices are integers");
}

TypeId shape_gather(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                    TypeId given) {
    (void)given;
    Type t;
    const Type *a = graph_type_at(g, operands[0]), *idx = graph_type_at(g, operands[1]);
    if (dtype_class(idx->dtype) != CLASS_INT) return index_refuse(g, op, idx);
    const char *why = gather_dims(a, idx, shape_int(g, attr, A_AXIS), &t);
    return why ? shape_refuse(g, op, operands, n, why) : shape_done(g, op, operands, n, &t);
}

TypeId shape_take(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                  TypeId given) {
    (void)given;
    Type t;
    const Type *a = graph_type_at(g, operands[0]), *idx = graph_type_at(g, operands[1]);
    if (dtype_class(idx->dtype) != CLASS_INT) return index_refuse(g, op, idx);
    const char *why = take_dims(a, idx, shape_int(g, attr, A_AXIS), &t);
    return why ? shape_refuse(g, op, operands, n, why) : shape_done(g, op, operands, n, &t);
}

TypeId shape_gather_nd(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                       TypeId given) {
    (void)given;
    Type t;
    const Type *a = graph_type_at(g, operands[0]), *idx = graph_type_at(g, operands[1]);
    if (dtype_class(idx->dtype) != CLASS_INT) return index_refuse(g, op, idx);
    const char *why = gather_nd_dims(a, idx, shape_int(g, attr, A_BATCH), &t);
    return why ? shape_refuse(g, op, operands, n, why) : shape_done(g, op, operands, n, &t);
}

/* scatter, put, scatter_nd: the updates have the type that gather, take, gather_nd of base and
 * indices would have */
TypeId shape_scatter(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                     TypeId given) {
    (void)given;
    Type t;
    const Type *base = graph_type_at(g, operands[0]), *idx = graph_type_at(g, operands[1]),
               *upd = graph_type_at(g, operands[2]);
    int64_t mode = shape_int(g, attr, A_MODE), axis = shape_int(g, attr, A_AXIS);
    if (dtype_class(idx->dtype) != CLASS_INT) return index_refuse(g, op, idx);
    if (upd->dtype != base->dtype)
        return shape_refuse_dtype(g, op, (DType)upd->dtype, "updates have the type of the base");
    if (mode < SCATTER_ADD || mode > SCATTER_MAX)
        return shape_refuse(g, op, operands, n, "no such mode");
    if (mode != SCATTER_SET && dtype_class(base->dtype) == CLASS_BOOL)
        return shape_refuse_dtype(g, op, DT_BOOL, "bool can only be set");
    const char *why = op == OP_scatter ? gather_dims(base, idx, axis, &t)
                      : op == OP_put   ? take_dims(base, idx, axis, &t)
                                       : gather_nd_dims(base, idx, shape_int(g, attr, A_BATCH), &t);
    if (!why && !dims_equal(&t, upd)) why = "the updates do not fit";
    return why ? shape_refuse(g, op, operands, n, why) : graph_node(g, operands[0])->type;
}
