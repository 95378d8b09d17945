/* build.c - builders: the convenient way to emit nodes, with numpy's broadcasting made explicit.
 *
 * They drop what does nothing (a reshape to the same dims, an identity transpose, a cast to the
 * same type) and keep constants of one repeated element in one form: a const whose data is that
 * element and whose type has any dims. All rewriting beyond that is simplify's. Operand 0 (an error
 * before) gives 0.
 */
#include "op_functions.h"
#include <assert.h>
#include <math.h>
#include <string.h>

static const Type *type_at(const Graph *g, Value v) { return graph_type_at(g, v); }

/* ---------------------------------------------------------------- leaves */

static bool repeats(const unsigned char *bytes, size_t n, size_t elem) {
    return n > elem && memcmp(bytes, bytes + elem, n - elem) == 0;
}

static Value const_emit(Graph *g, TypeId type, const void *data, uint32_t bytes) {
    AttrId attr = graph_attr(g, (AttrField[]){attr_bytes(A_DATA, data, bytes)}, 1);
    return graph_emit(g, OP_const, NULL, 0, attr, type);
}

Value build_const(Graph *g, TypeId type, const void *elements) {
    uint64_t bytes = type_bytes(&g->types[type]);
    uint32_t elem = dtype_info[g->types[type].dtype].bytes;
    assert(bytes <= UINT32_MAX);
    if (repeats(elements, bytes, elem)) bytes = elem;
    return const_emit(g, type, elements, (uint32_t)bytes);
}

Value build_splat(Graph *g, TypeId type, double value) {
    unsigned char element[8];
    const Type *t = &g->types[type];
    if (type_elems(t) == 0) return const_emit(g, type, NULL, 0);
    elem_store((DType)t->dtype, element, value);
    return const_emit(g, type, element, dtype_info[t->dtype].bytes);
}

Value build_ints(Graph *g, const int64_t *ints, uint32_t n) {
    return build_const(g, graph_type_of(g, DT_I64, 1, (int64_t[]){n}), ints);
}

static Value leaf_named(Graph *g, OpCode op, const char *name, TypeId type) {
    return graph_emit(g, op, NULL, 0, graph_attr(g, (AttrField[]){attr_str(A_NAME, name)}, 1),
                      type);
}

Value build_input(Graph *g, const char *name) {
    const Input *in = graph_input(g, name);
    assert(in);
    return leaf_named(g, OP_input, name, in->type);
}

Value build_state(Graph *g, const char *name) {
    const State *s = graph_state(g, name);
    assert(s);
    return leaf_named(g, OP_state, name, s->type);
}

Value build_scalar(Graph *g, const char *name, DType d) {
    return leaf_named(g, OP_scalar, name, graph_type_of(g, d, 0, NULL));
}

Value build_iota(Graph *g, TypeId type, int64_t axis) {
    return graph_emit(g, OP_iota, NULL, 0, graph_attr(g, (AttrField[]){attr_int(A_AXIS, axis)}, 1),
                      type);
}

/* The element of a const of one repeated element, or NULL. */
static const unsigned char *splat_element(const Graph *g, Value v) {
    if (graph_op(g, v) != OP_const) return NULL;
    const AttrField *data = attr_find(g, v, A_DATA);
    uint32_t elem = dtype_info[type_at(g, v)->dtype].bytes;
    return data->n == elem || repeats(data->u.bytes, data->n, elem) ? data->u.bytes : NULL;
}

/* The same repeated element with other dims. */
static Value splat_with_dims(Graph *g, const unsigned char *element, DType d, uint32_t rank,
                             const int64_t *dims) {
    unsigned char own[8];
    TypeId type = graph_type_of(g, d, rank, dims);
    uint32_t bytes = type_elems(&g->types[type]) ? dtype_info[d].bytes : 0;
    memcpy(own, element, dtype_info[d].bytes);
    return const_emit(g, type, own, bytes);
}

static bool double_is_exact(DType d, const unsigned char *element, double value) {
    if (dtype_info[d].cls == CLASS_FLT) return true;
    return fabs(value) <= 0x1p53 && elem_load_int(d, element) == (int64_t)value;
}

bool const_splat(const Graph *g, Value v, double *value) {
    unsigned char element[8];
    OpCode op = graph_op(g, v);
    if (op == OP_reshape || op == OP_transpose || op == OP_expand || op == OP_slice)
        return const_splat(g, graph_operand(g, v, 0), value);
    if (op == OP_cast && const_splat(g, graph_operand(g, v, 0), value)) {
        DType d = (DType)type_at(g, v)->dtype;
        elem_store(d, element, *value);
        *value = elem_load(d, element);
        return double_is_exact(d, element, *value);
    }
    if (op != OP_const) return false;
    const unsigned char *at = splat_element(g, v);
    if (!at) return false;
    *value = elem_load((DType)type_at(g, v)->dtype, at);
    return double_is_exact((DType)type_at(g, v)->dtype, at, *value);
}

/* ---------------------------------------------------------------- views */

static bool has_dims(const Type *t, uint32_t rank, const int64_t *dims) {
    return t->rank == rank && (!rank || memcmp(t->dims, dims, rank * sizeof *dims) == 0);
}

Value build_cast(Graph *g, Value v, DType d) {
    if (!v) return 0;
    Type t = *type_at(g, v);
    double value;
    if (t.dtype == d) return v;
    if (graph_op(g, v) == OP_const && const_splat(g, v, &value)) {
        unsigned char element[8];
        elem_store(d, element, value);
        return splat_with_dims(g, element, d, t.rank, t.dims);
    }
    t.dtype = (uint8_t)d;
    return graph_emit(g, OP_cast, &v, 1, 0, graph_type(g, t));
}

/* reshape and expand alike: the type is given, splats stay splats */
static Value view_given(Graph *g, OpCode op, Value v, uint32_t rank, const int64_t *dims) {
    int64_t own[MAX_RANK]; /* dims may lie in the type list, which moves */
    assert(rank <= MAX_RANK);
    if (has_dims(type_at(g, v), rank, dims)) return v;
    if (rank) memcpy(own, dims, rank * sizeof *own);
    TypeId type = graph_type_of(g, (DType)type_at(g, v)->dtype, rank, own);
    const unsigned char *element = splat_element(g, v);
    if (element && op_info[op].shape(g, op, &v, 1, 0, type))
        return splat_with_dims(g, element, (DType)type_at(g, v)->dtype, rank, own);
    return graph_emit(g, op, &v, 1, 0, type);
}

Value build_reshape(Graph *g, Value v, uint32_t rank, const int64_t *dims) {
    if (!v) return 0;
    while (graph_op(g, v) == OP_reshape && !has_dims(type_at(g, v), rank, dims))
        v = graph_operand(g, v, 0);
    return view_given(g, OP_reshape, v, rank, dims);
}

Value build_expand(Graph *g, Value v, uint32_t rank, const int64_t *dims) {
    int64_t target[MAX_RANK], aligned[MAX_RANK];
    if (!v) return 0;
    Type t = *type_at(g, v);
    assert(rank <= MAX_RANK);
    for (uint32_t i = 0; i < rank; i++) {
        target[i] = dims[i];
        aligned[i] = i + t.rank >= rank ? t.dims[i + t.rank - rank] : 1;
    }
    if (rank > t.rank) v = build_reshape(g, v, rank, aligned);
    return v ? view_given(g, OP_expand, v, rank, target) : 0;
}

Value build_transpose(Graph *g, Value v, const int64_t *perm) {
    if (!v) return 0;
    uint32_t rank = type_at(g, v)->rank, i = 0;
    while (i < rank && perm[i] == i) i++;
    if (i == rank) return v;
    return graph_emit(g, OP_transpose, &v, 1,
                      graph_attr(g, (AttrField[]){attr_ints(A_PERM, perm, rank)}, 1), 0);
}

Value build_slice(Graph *g, Value v, const int64_t *start, const int64_t *extent,
                  const int64_t *step) {
    static const int64_t ones[MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (!v) return 0;
    Type t = *type_at(g, v);
    bool is_whole = true;
    if (!step) step = ones;
    for (uint32_t i = 0; i < t.rank; i++) {
        is_whole =
            is_whole && start[i] == 0 && extent[i] == t.dims[i] && (step[i] == 1 || extent[i] < 2);
        t.dims[i] = extent[i];
    }
    if (is_whole) return v;
    AttrField fields[] = {attr_ints(A_START, start, t.rank), attr_ints(A_STEP, step, t.rank)};
    return graph_emit(g, OP_slice, &v, 1, graph_attr(g, fields, 2), graph_type(g, t));
}

Value build_pad(Graph *g, Value v, const int64_t *low, const int64_t *high, const int64_t *interior,
                double value) {
    static const int64_t zeros[MAX_RANK];
    if (!v) return 0;
    uint32_t rank = type_at(g, v)->rank, i = 0;
    if (!interior) interior = zeros;
    while (i < rank && !low[i] && !high[i] && !interior[i]) i++;
    if (i == rank) return v;
    AttrField fields[] = {attr_ints(A_LOW, low, rank), attr_ints(A_HIGH, high, rank),
                          attr_ints(A_INTERIOR, interior, rank), attr_float(A_VALUE, value)};
    return graph_emit(g, OP_pad, &v, 1, graph_attr(g, fields, 4), 0);
}

Value build_concat(Graph *g, const Value *operands, uint32_t n, int64_t axis) {
    if (n == 1) return operands[0];
    return graph_emit(g, OP_concat, operands, n,
                      graph_attr(g, (AttrField[]){attr_int(A_AXIS, axis)}, 1), 0);
}

Value build_squeeze(Graph *g, Value v, const int64_t *axes, uint32_t n) {
    int64_t dims[MAX_RANK];
    if (!v) return 0;
    Type t = *type_at(g, v);
    uint32_t rank = 0;
    for (uint32_t i = 0; i < t.rank; i++) {
        bool drop = false;
        for (uint32_t j = 0; j < n; j++)
            drop = drop || (axes[j] < 0 ? axes[j] + t.rank : axes[j]) == i;
        if (!drop) dims[rank++] = t.dims[i];
    }
    return build_reshape(g, v, rank, dims);
}

Value build_gather(Graph *g, Value v, Value idx, int64_t axis) {
    return graph_emit(g, OP_gather, (Value[]){v, idx}, 2,
                      graph_attr(g, (AttrField[]){attr_int(A_AXIS, axis)}, 1), 0);
}

/* ---------------------------------------------------------------- maps */

/* numpy's common dims of all operands: leading axes added, extents of 1 stretched. Where they do
 * not fit, the larger: the expand that follows refuses. */
static uint32_t broadcast_dims(const Graph *g, const Value *operands, uint32_t n, int64_t *dims) {
    uint32_t rank = 0;
    for (uint32_t i = 0; i < n; i++)
        if (type_at(g, operands[i])->rank > rank) rank = type_at(g, operands[i])->rank;
    for (uint32_t i = 0; i < rank; i++) dims[i] = 1;
    for (uint32_t i = 0; i < n; i++) {
        const Type *t = type_at(g, operands[i]);
        for (uint32_t j = 0; j < t->rank; j++) {
            int64_t *d = &dims[rank - t->rank + j];
            if (*d == 1) *d = t->dims[j];
        }
    }
    return rank;
}

static bool broadcasts(const Type *t, uint32_t rank, const int64_t *dims) {
    for (uint32_t j = 0; j < t->rank; j++)
        if (t->dims[j] != 1 && t->dims[j] != dims[rank - t->rank + j]) return false;
    return true;
}

Value build_map(Graph *g, OpCode op, const Value *operands, uint32_t n) {
    Value fitted[8];
    int64_t dims[MAX_RANK];
    assert(n > 0 && n <= 8);
    for (uint32_t i = 0; i < n; i++)
        if (!operands[i]) return 0;
    uint32_t rank = broadcast_dims(g, operands, n, dims);
    for (uint32_t i = 0; i < n; i++)
        if (!broadcasts(type_at(g, operands[i]), rank, dims))
            return graph_emit(g, op, operands, n, 0, 0); /* refuses, naming all */
    for (uint32_t i = 0; i < n; i++) fitted[i] = build_expand(g, operands[i], rank, dims);
    return graph_emit(g, op, fitted, n, 0, 0);
}

Value build_unary(Graph *g, OpCode op, Value a) { return graph_emit(g, op, &a, 1, 0, 0); }

Value build_binary(Graph *g, OpCode op, Value a, Value b) {
    return build_map(g, op, (Value[]){a, b}, 2);
}

/* ---------------------------------------------------------------- reductions */

/* Non-negative, ascending, each once. */
static uint32_t axes_sorted(int64_t *sorted, const int64_t *axes, uint32_t n, int64_t rank) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        int64_t axis = axes[i] < 0 ? axes[i] + rank : axes[i];
        uint32_t at = 0;
        while (at < count && sorted[at] < axis) at++;
        if (at < count && sorted[at] == axis) continue;
        assert(count < MAX_RANK);
        memmove(&sorted[at + 1], &sorted[at], (count - at) * sizeof *sorted);
        sorted[at] = axis;
        count++;
    }
    return count;
}

Value build_reduce(Graph *g, OpCode op, Value v, const int64_t *axes, uint32_t n) {
    int64_t sorted[MAX_RANK + 1];
    if (!v || n == 0) return v;
    n = axes_sorted(sorted, axes, n, type_at(g, v)->rank);
    return graph_emit(g, op, &v, 1, graph_attr(g, (AttrField[]){attr_ints(A_AXES, sorted, n)}, 1),
                      0);
}

Value build_mean(Graph *g, Value v, const int64_t *axes, uint32_t n) {
    Value sum = build_reduce(g, OP_sum, v, axes, n);
    if (!sum || sum == v) return sum;
    int64_t count = type_elems(type_at(g, v)), kept = type_elems(type_at(g, sum));
    Value divisor = build_splat(g, graph_node(g, sum)->type, kept ? (double)(count / kept) : 1);
    bool is_float = dtype_info[type_at(g, v)->dtype].cls == CLASS_FLT;
    return build_binary(g, is_float ? OP_div : OP_idiv, sum, divisor);
}

Value build_sum_to(Graph *g, Value v, const Type *dims) {
    int64_t axes[MAX_RANK];
    uint32_t n = 0;
    if (!v) return 0;
    Type to = *dims, t = *type_at(g, v);
    assert(to.rank <= t.rank);
    for (uint32_t i = 0; i < t.rank; i++) {
        uint32_t lead = (uint32_t)t.rank - to.rank;
        if (i < lead || (to.dims[i - lead] == 1 && t.dims[i] != 1)) axes[n++] = i;
    }
    return build_reshape(g, build_reduce(g, OP_sum, v, axes, n), to.rank, to.dims);
}

/* ---------------------------------------------------------------- dot */

static Value dot_emit(Graph *g, Value a, Value b, bool ta, bool tb) {
    AttrField fields[] = {attr_int(A_TA, ta), attr_int(A_TB, tb)};
    return graph_emit(g, OP_dot, (Value[]){a, b}, 2, graph_attr(g, fields, 2), 0);
}

/* a[..,m,k] x b[k,n]: batch folded into m, and back */
static Value dot_folded(Graph *g, Value a, Value b, bool tb) {
    Type t = *type_at(g, a), b_type = *type_at(g, b);
    int64_t rows = 1, k = t.dims[t.rank - 1];
    for (int i = 0; i < t.rank - 1; i++) rows *= t.dims[i];
    a = build_reshape(g, a, 2, (int64_t[]){rows, k});
    b = build_reshape(g, b, 2, &b_type.dims[b_type.rank - 2]);
    Value y = dot_emit(g, a, b, false, tb);
    if (!y) return 0;
    t.dims[t.rank - 1] = type_at(g, y)->dims[1];
    return build_reshape(g, y, t.rank, t.dims);
}

static Value with_batch(Graph *g, Value v, uint32_t rank, const int64_t *batch) {
    int64_t dims[MAX_RANK];
    Type t = *type_at(g, v);
    for (uint32_t i = 0; i + 2 < rank; i++) dims[i] = batch[i];
    dims[rank - 2] = t.dims[t.rank - 2];
    dims[rank - 1] = t.dims[t.rank - 1];
    return build_expand(g, v, rank, dims);
}

static Value dot_batched(Graph *g, Value a, Value b, bool ta, bool tb) {
    int64_t batch[MAX_RANK];
    Type ts[2] = {*type_at(g, a), *type_at(g, b)};
    uint32_t rank = ts[0].rank > ts[1].rank ? ts[0].rank : ts[1].rank;
    for (uint32_t i = 0; i + 2 < rank; i++) {
        batch[i] = 1;
        for (int j = 0; j < 2; j++)
            if (i + ts[j].rank >= rank && batch[i] == 1)
                batch[i] = ts[j].dims[i + ts[j].rank - rank];
    }
    return dot_emit(g, with_batch(g, a, rank, batch), with_batch(g, b, rank, batch), ta, tb);
}

static bool has_no_batch(const Type *t) {
    for (int i = 0; i + 2 < t->rank; i++)
        if (t->dims[i] != 1) return false;
    return true;
}

/* numpy's matmul of a vector: an axis is added and taken away again */
static Value dot_of_vector(Graph *g, Value a, Value b, bool ta, bool tb) {
    Type x = *type_at(g, a), w = *type_at(g, b);
    assert(!(x.rank == 1 && ta) && !(w.rank == 1 && tb));
    Value row = x.rank == 1 ? build_reshape(g, a, 2, (int64_t[]){1, x.dims[0]}) : a;
    Value column = w.rank == 1 ? build_reshape(g, b, 2, (int64_t[]){w.dims[0], 1}) : b;
    Value y = build_dot(g, row, column, ta, tb);
    int64_t gone[2] = {-1, -2};
    if (x.rank == 1 && w.rank == 1) return build_squeeze(g, y, gone, 2);
    return build_squeeze(g, y, x.rank == 1 ? &gone[1] : &gone[0], 1);
}

Value build_dot(Graph *g, Value a, Value b, bool ta, bool tb) {
    if (!a || !b) return 0;
    const Type *x = type_at(g, a), *w = type_at(g, b);
    if (x->rank == 0 || w->rank == 0) return dot_emit(g, a, b, ta, tb); /* refuses */
    if (x->rank == 1 || w->rank == 1) return dot_of_vector(g, a, b, ta, tb);
    if (x->rank == 2 && w->rank == 2) return dot_emit(g, a, b, ta, tb);
    if (!ta && w->rank <= x->rank && has_no_batch(w)) return dot_folded(g, a, b, tb);
    return dot_batched(g, a, b, ta, tb);
}
