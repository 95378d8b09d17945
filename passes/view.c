/* view.c - cancels and merges views: what is left reads its operand through one index map each.
 *
 * reshape of reshape, transpose of transpose, expand of expand and slice of slice become one; what
 * changes nothing goes away; a transposed operand of a dot becomes its ta or tb; a map of repeats
 * is repeated itself; a sum over repeats is a product. Values do not change, but for that product,
 * which rounds once where the sum rounded often. */
#include "pass.h"
#include "simplify.h"
#include "strided.h"
#include <string.h>

static Type type_of(const Graph *g, Value v) { return *graph_type_at(g, v); }

static Value operand_if(const Graph *g, Value v, OpCode op) {
    Value a = graph_operand(g, v, 0);
    return graph_op(g, a) == op ? graph_operand(g, a, 0) : 0;
}

static Value view_reshape(Graph *g, Value v) {
    Type t = type_of(g, v);
    Value a = graph_operand(g, v, 0), inner = operand_if(g, v, OP_reshape);
    if (dims_equal(graph_type_at(g, a), &t)) return a;
    return inner ? build_reshape(g, inner, t.rank, t.dims) : 0;
}

static bool copy_list(const Graph *g, Value v, AttrKey key, int64_t *out) {
    uint32_t n;
    const int64_t *list = attr_list(g, v, key, &n);
    if (list && n) memcpy(out, list, n * sizeof *out);
    return list != NULL;
}

/* A transpose that only moves axes of extent 1 is a reshape. */
static bool keeps_order(const Type *t, const int64_t *perm) {
    int64_t last = -1;
    for (uint32_t i = 0; i < t->rank; i++) {
        if (t->dims[perm[i]] == 1) continue;
        if (perm[i] < last) return false;
        last = perm[i];
    }
    return true;
}

static Value view_transpose(Graph *g, Value v) {
    int64_t outer[MAX_RANK], perm[MAX_RANK];
    Value a = graph_operand(g, v, 0), inner = operand_if(g, v, OP_transpose);
    Type t = type_of(g, v), from = type_of(g, a);
    copy_list(g, v, A_PERM, outer);
    if (keeps_order(&from, outer)) return build_reshape(g, a, t.rank, t.dims);
    if (!inner) return 0;
    copy_list(g, a, A_PERM, perm);
    for (uint32_t i = 0; i < t.rank; i++) outer[i] = perm[outer[i]];
    return build_transpose(g, inner, outer);
}

static Value view_expand(Graph *g, Value v) {
    Type t = type_of(g, v);
    Value a = graph_operand(g, v, 0), inner = operand_if(g, v, OP_expand);
    if (dims_equal(graph_type_at(g, a), &t)) return a;
    return inner ? build_expand(g, inner, t.rank, t.dims) : 0;
}

static Value slice_of_slice(Graph *g, Value v, Value inner) {
    int64_t start[MAX_RANK], step[MAX_RANK], start2[MAX_RANK], step2[MAX_RANK];
    Type t = type_of(g, v);
    copy_list(g, graph_operand(g, v, 0), A_START, start);
    copy_list(g, graph_operand(g, v, 0), A_STEP, step);
    copy_list(g, v, A_START, start2);
    copy_list(g, v, A_STEP, step2);
    for (uint32_t i = 0; i < t.rank; i++) {
        start[i] += start2[i] * step[i];
        step[i] *= step2[i];
    }
    return build_slice(g, inner, start, t.dims, step);
}

/* The operand of a concat that the slice lies within, and the slice of that alone. */
static Value slice_of_concat(Graph *g, Value v) {
    int64_t start[MAX_RANK], step[MAX_RANK];
    Value cat = graph_operand(g, v, 0);
    Type t = type_of(g, v);
    int64_t axis = attr_i(g, cat, A_AXIS, 0), at = 0;
    copy_list(g, v, A_START, start);
    copy_list(g, v, A_STEP, step);
    int64_t first = start[axis], last = start[axis] + (t.dims[axis] - 1) * step[axis];
    if (last < first) return 0;
    for (uint32_t i = 0; i < graph_node(g, cat)->n_operands; i++) {
        Value part = graph_operand(g, cat, i);
        int64_t extent = graph_type_at(g, part)->dims[axis];
        if (first >= at && last < at + extent) {
            start[axis] -= at;
            return build_slice(g, part, start, t.dims, step);
        }
        at += extent;
    }
    return 0;
}

/* A slice that takes back exactly what a pad put around. */
static Value slice_of_pad(Graph *g, Value v) {
    int64_t start[MAX_RANK], step[MAX_RANK], low[MAX_RANK], interior[MAX_RANK];
    Value pad = graph_operand(g, v, 0), a = graph_operand(g, pad, 0);
    Type t = type_of(g, v), from = type_of(g, a);
    if (!dims_equal(&t, &from)) return 0;
    copy_list(g, v, A_START, start);
    copy_list(g, v, A_STEP, step);
    copy_list(g, pad, A_LOW, low);
    copy_list(g, pad, A_INTERIOR, interior);
    for (uint32_t i = 0; i < t.rank; i++)
        if (start[i] != low[i] || (t.dims[i] > 1 && step[i] != interior[i] + 1)) return 0;
    return a;
}

static Value view_slice(Graph *g, Value v) {
    int64_t start[MAX_RANK], step[MAX_RANK];
    Type t = type_of(g, v);
    Value a = graph_operand(g, v, 0);
    copy_list(g, v, A_START, start);
    copy_list(g, v, A_STEP, step);
    if (!type_elems(&t)) return 0;
    Value whole = build_slice(g, a, start, t.dims, step);
    if (whole != v) return whole;
    switch ((int)graph_op(g, a)) {
    case OP_slice:
        return slice_of_slice(g, v, graph_operand(g, a, 0));
    case OP_concat:
        return slice_of_concat(g, v);
    case OP_pad:
        return slice_of_pad(g, v);
    }
    return 0;
}

static bool all_zero(const int64_t *list, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (list[i]) return false;
    return true;
}

static Value view_pad(Graph *g, Value v) {
    int64_t low[MAX_RANK] = {0}, high[MAX_RANK] = {0}, interior[MAX_RANK] = {0};
    uint32_t rank = type_of(g, v).rank;
    copy_list(g, v, A_LOW, low);
    copy_list(g, v, A_HIGH, high);
    copy_list(g, v, A_INTERIOR, interior);
    if (dims_equal(graph_type_at(g, v), graph_type_at(g, graph_operand(g, v, 0))) &&
        all_zero(low, rank) && all_zero(high, rank) && all_zero(interior, rank))
        return graph_operand(g, v, 0);
    return 0;
}

/* Slices of one value that lie side by side, over all of it, are that value. */
static Value view_concat(Graph *g, Value v) {
    uint32_t n = graph_node(g, v)->n_operands;
    Value first = graph_operand(g, v, 0), full[8];
    if (n == 1) return first;
    uint32_t n_full = 0;
    for (uint32_t i = 0; i < n && n <= 8; i++)
        if (type_elems(graph_type_at(g, graph_operand(g, v, i))))
            full[n_full++] = graph_operand(g, v, i);
    if (n_full && n_full < n && n <= 8)
        return build_concat(g, full, n_full, attr_i(g, v, A_AXIS, 0));
    if (graph_op(g, first) != OP_slice) return 0;
    Value whole = graph_operand(g, first, 0);
    Type t = type_of(g, v);
    if (graph_node(g, whole)->type != graph_node(g, v)->type) return 0;
    int64_t axis = attr_i(g, v, A_AXIS, 0), at = 0;
    for (uint32_t i = 0; i < n; i++) {
        int64_t start[MAX_RANK], step[MAX_RANK];
        Value part = graph_operand(g, v, i);
        if (graph_op(g, part) != OP_slice || graph_operand(g, part, 0) != whole) return 0;
        copy_list(g, part, A_START, start);
        copy_list(g, part, A_STEP, step);
        for (uint32_t d = 0; d < t.rank; d++)
            if (step[d] != 1 || start[d] != (d == (uint32_t)axis ? at : 0)) return 0;
        at += graph_type_at(g, part)->dims[axis];
    }
    return whole;
}

/* An operand that a transpose leaves with the innermost axis of its source second to last is read
 * by the other flag of the dot: rows stay contiguous, and a plain matrix transpose goes away. Gives
 * the operand to read then, else 0. */
static Value untransposed(Graph *g, Value v) {
    int64_t perm[MAX_RANK];
    uint32_t n = type_of(g, v).rank;
    if (graph_op(g, v) != OP_transpose) return 0;
    copy_list(g, v, A_PERM, perm);
    if (perm[n - 2] != (int64_t)n - 1) return 0;
    perm[n - 2] = perm[n - 1];
    perm[n - 1] = n - 1;
    return build_transpose(g, graph_operand(g, v, 0), perm);
}

static Value view_dot(Graph *g, Value v) {
    Value a = graph_operand(g, v, 0), b = graph_operand(g, v, 1);
    bool ta = attr_i(g, v, A_TA, 0), tb = attr_i(g, v, A_TB, 0);
    Value other_a = untransposed(g, a), other_b = untransposed(g, b);
    if (!other_a && !other_b) return 0;
    AttrField fields[] = {attr_int(A_TA, ta ^ (other_a != 0)), attr_int(A_TB, tb ^ (other_b != 0))};
    return graph_emit(g, OP_dot, (Value[]){other_a ? other_a : a, other_b ? other_b : b}, 2,
                      graph_attr(g, fields, 2), 0);
}

/* Axes of extent 1 need no sum; axes that an expand made multiply. */
static Value view_sum(Graph *g, Value v) {
    Value a = graph_operand(g, v, 0), inner = operand_if(g, v, OP_expand);
    int64_t axes[MAX_RANK], left[MAX_RANK], times = 1;
    uint32_t n, n_left = 0;
    attr_list(g, v, A_AXES, &n);
    copy_list(g, v, A_AXES, axes);
    Type t = type_of(g, a), from = inner ? type_of(g, inner) : t, result = type_of(g, v);
    for (uint32_t i = 0; i < n; i++) {
        int64_t axis = axes[i];
        bool repeated = from.dims[axis] == 1;
        if (repeated)
            times *= t.dims[axis];
        else
            left[n_left++] = axis;
    }
    if (n_left == n) return 0;
    for (uint32_t i = 0; i < n; i++)
        if (from.dims[axes[i]] == 1) t.dims[axes[i]] = 1;
    Value x = inner ? build_expand(g, inner, t.rank, t.dims) : a;
    x = build_reduce(g, OP_sum, x, left, n_left);
    if (times == 1) return x;
    return build_binary(
        g, OP_mul, x,
        build_splat(g, graph_type_of(g, (DType)result.dtype, 0, NULL), (double)times));
}

/* Wider and back, or twice the same way: one cast, or none. */
static Value view_cast(Graph *g, Value v) {
    Value inner = operand_if(g, v, OP_cast);
    DType to = (DType)graph_type_at(g, v)->dtype,
          mid = (DType)graph_type_at(g, graph_operand(g, v, 0))->dtype;
    if (to == mid) return graph_operand(g, v, 0);
    if (!inner) return 0;
    DType from = (DType)graph_type_at(g, inner)->dtype;
    bool floats = dtype_info[from].cls == CLASS_FLT && dtype_info[mid].cls == CLASS_FLT;
    bool widens = from == DT_BOOL || (floats && dtype_info[mid].bytes > dtype_info[from].bytes);
    if (!widens || to == DT_BOOL) return 0;
    return build_cast(g, inner, to);
}

/* ---- gathers of known places ---- */

/* Indices that are affine in their coordinates pick at even distances: axis k of the result steps
 * by what an index steps there, times the stride of the axis it picks from. `axis` of the operand
 * is read at element idx. false where an index is out of range somewhere. */
static bool add_index(const Affine *idx, const Type *coordinates, int64_t extent, int64_t stride,
                      uint32_t at, Strided *s) {
    if (affine_min(idx, coordinates) < 0 || affine_max(idx, coordinates) >= extent) return false;
    s->offset += idx->c * stride;
    for (uint32_t i = 0; i < coordinates->rank; i++) s->strides[at + i] += idx->a[i] * stride;
    return true;
}

enum { GATHER_VIEWS = 5 };

static void add_axis(Strided *s, int64_t extent, int64_t stride) {
    s->dims[s->rank] = extent;
    s->strides[s->rank++] += extent == 1 ? 0 : stride;
}

static void row_major(const Type *t, int64_t *strides) {
    int64_t stride = 1;
    for (uint32_t i = t->rank; i-- > 0; stride *= t->dims[i]) strides[i] = stride;
}

static Value gather_affine(Graph *g, Value v) {
    Value a = graph_operand(g, v, 0), idx = graph_operand(g, v, 1);
    Type from = type_of(g, a), at = type_of(g, idx);
    uint32_t axis = (uint32_t)attr_i(g, v, A_AXIS, 0);
    int64_t strides[MAX_RANK];
    Strided s = {.base = a};
    Affine f;
    row_major(&from, strides);
    if (!affine_of(g, idx, &f)) return 0;
    for (uint32_t i = 0; i < axis; i++) add_axis(&s, from.dims[i], strides[i]);
    if (!add_index(&f, &at, from.dims[axis], strides[axis], s.rank, &s)) return 0;
    for (uint32_t i = 0; i < at.rank; i++) add_axis(&s, at.dims[i], 0);
    for (uint32_t i = axis + 1; i < from.rank; i++) add_axis(&s, from.dims[i], strides[i]);
    return strided_build(g, &s, GATHER_VIEWS);
}

/* One index of the vectors in idx: [.., n] -> [.., 1]. */
static Value index_column(Graph *g, Value idx, int64_t column) {
    Type t = type_of(g, idx);
    int64_t start[MAX_RANK] = {0};
    start[t.rank - 1] = column;
    t.dims[t.rank - 1] = 1;
    Value v = build_slice(g, idx, start, t.dims, NULL), simpler;
    while (graph_op(g, v) == OP_slice && (simpler = view_simplify(g, v))) v = simpler;
    return v;
}

static Value gather_nd_affine(Graph *g, Value v) {
    Value a = graph_operand(g, v, 0), idx = graph_operand(g, v, 1);
    Type from = type_of(g, a), at = type_of(g, idx);
    uint32_t batch = (uint32_t)attr_i(g, v, A_BATCH, 0), n = (uint32_t)at.dims[at.rank - 1];
    int64_t strides[MAX_RANK];
    Strided s = {.base = a};
    row_major(&from, strides);
    for (uint32_t k = 0; k < n; k++) {
        Affine f;
        Value column = index_column(g, idx, k);
        Type t = type_of(g, column);
        if (!affine_of(g, column, &f) ||
            !add_index(&f, &t, from.dims[batch + k], strides[batch + k], 0, &s))
            return 0;
    }
    s.strides[at.rank - 1] = 0;
    for (uint32_t i = 0; i + 1 < at.rank; i++) add_axis(&s, at.dims[i], i < batch ? strides[i] : 0);
    for (uint32_t i = batch + n; i < from.rank; i++) add_axis(&s, from.dims[i], strides[i]);
    return strided_build(g, &s, GATHER_VIEWS);
}

/* The first index and the step where a constant's elements are evenly spaced. One element: step 1.
 */
static bool progression(const Graph *g, Value idx, int64_t *first, int64_t *step) {
    double x;
    *step = 1;
    int64_t n = type_elems(graph_type_at(g, idx));
    if (n == 1 && const_splat(g, idx, &x)) {
        *first = (int64_t)x;
        return true;
    }
    const AttrField *data = graph_op(g, idx) == OP_const ? attr_find(g, idx, A_DATA) : NULL;
    DType dtype = (DType)graph_type_at(g, idx)->dtype;
    if (!data || n < 2 || data->n != type_bytes(graph_type_at(g, idx))) return false;
    const char *bytes = data->u.bytes;
    *first = elem_load_int(dtype, bytes);
    *step = elem_load_int(dtype, bytes + dtype_info[dtype].bytes) - *first;
    for (int64_t i = 2; i < n; i++)
        if (elem_load_int(dtype, bytes + (uint64_t)i * dtype_info[dtype].bytes) !=
            *first + i * *step)
            return false;
    return *step != 0;
}

/* Rows at even distances are a slice, in backward a pad; through a gather they would be read, and
 * scattered, one by one. */
static Value view_gather(Graph *g, Value v) {
    int64_t start[MAX_RANK] = {0}, steps[MAX_RANK], first, step, axis = attr_i(g, v, A_AXIS, 0);
    Value a = graph_operand(g, v, 0), idx = graph_operand(g, v, 1);
    Type from = type_of(g, a), t = type_of(g, v);
    if (!progression(g, idx, &first, &step)) return gather_affine(g, v);
    int64_t n = type_elems(graph_type_at(g, idx)), last = first + (n - 1) * step;
    if (first < 0 || last < 0 || first >= from.dims[axis] || last >= from.dims[axis]) return 0;
    for (uint32_t i = 0; i < from.rank; i++) steps[i] = 1;
    start[axis] = first;
    steps[axis] = step;
    from.dims[axis] = n;
    return build_reshape(g, build_slice(g, a, start, from.dims, steps), t.rank, t.dims);
}

/* ---- maps of repeats ---- */

/* A map whose operands all repeat along an axis is made once and repeated: axes where every operand
 * is an expand from extent 1 (or a repeated element) become 1 in *small. false where there is none.
 */
static bool common_repeats(const Graph *g, Value v, Type *small) {
    bool expands = false, shrinks = false;
    *small = type_of(g, v);
    Type full = *small;
    for (uint32_t i = 0; i < full.rank; i++) small->dims[i] = 1;
    for (uint32_t k = 0; k < graph_node(g, v)->n_operands; k++) {
        double x;
        Value o = graph_operand(g, v, k);
        if (const_splat(g, o, &x)) continue;
        if (graph_op(g, o) != OP_expand) return false;
        expands = true;
        for (uint32_t i = 0; i < full.rank; i++)
            if (graph_type_at(g, graph_operand(g, o, 0))->dims[i] != 1)
                small->dims[i] = full.dims[i];
    }
    for (uint32_t i = 0; i < full.rank; i++) shrinks |= small->dims[i] != full.dims[i];
    return expands && shrinks;
}

static Value map_of_repeats(Graph *g, Value v) {
    Value operands[8];
    Type small, full = type_of(g, v);
    uint32_t n = graph_node(g, v)->n_operands;
    OpCode op = graph_op(g, v);
    if (!type_elems(&full) || !common_repeats(g, v, &small)) return 0;
    for (uint32_t k = 0; k < n; k++) {
        double x;
        Value o = graph_operand(g, v, k);
        Type t = small;
        t.dtype = graph_type_at(g, o)->dtype;
        operands[k] = const_splat(g, o, &x)
                          ? build_splat(g, graph_type(g, t), x)
                          : build_expand(g, graph_operand(g, o, 0), t.rank, t.dims);
    }
    Value once = graph_emit(g, op, operands, n, 0, graph_type(g, small));
    return build_expand(g, once, full.rank, full.dims);
}

static Value view_of_one(Graph *g, Value v) {
    Value to = 0;
    switch ((int)graph_op(g, v)) {
    case OP_reshape:
        to = view_reshape(g, v);
        break;
    case OP_transpose:
        to = view_transpose(g, v);
        break;
    case OP_expand:
        to = view_expand(g, v);
        break;
    case OP_slice:
        to = view_slice(g, v);
        break;
    default:
        return 0;
    }
    if (!to) to = strided_shortest(g, v);
    return to == v ? 0 : to;
}

Value view_simplify(Graph *g, Value v) {
    if (op_info[graph_op(g, v)].lower == LOWER_MAP) {
        Value repeated = map_of_repeats(g, v);
        if (repeated) return repeated;
    }
    switch ((int)graph_op(g, v)) {
    case OP_reshape:
    case OP_transpose:
    case OP_expand:
    case OP_slice:
        return view_of_one(g, v);
    case OP_pad:
        return view_pad(g, v);
    case OP_concat:
        return view_concat(g, v);
    case OP_gather:
        return view_gather(g, v);
    case OP_gather_nd:
        return gather_nd_affine(g, v);
    case OP_dot:
        return view_dot(g, v);
    case OP_sum:
        return view_sum(g, v);
    case OP_cast:
        return view_cast(g, v);
    }
    return 0;
}
