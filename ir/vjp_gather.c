/* vjp_gather.c - the gradient of gather: a scatter, or gathers again where the indices are known.
 *
 * The element i of the operand gets the sum of dy over the places that read i. Where the index is a
 * constant and no element is read often (interpolation, reflection, reordering), the t-th place
 * that reads i is a table, and the gradient is a sum over t of gathers from dy: no scatter, which
 * is one loop over all updates per element on a GPU. The order of the sum is that of the scatter.
 */
#include "op_functions.h"

enum { MAX_READS = 8, MAX_PLACES = 1 << 16 };

typedef struct Places { /* where the axis of extent `extent` is read: place t of element i is at[t *
                           extent + i], -1 none */
    int64_t extent, count;
    int64_t reads;  /* most of one element */
    int64_t *index; /* [count] */
} Places;

static int64_t most_reads(Arena *a, const Places *p) {
    int64_t *reads = arena_alloc(a, ((size_t)p->extent + 1) * sizeof *reads), most = 0;
    for (int64_t k = 0; k < p->count; k++) {
        if (p->index[k] < 0 || p->index[k] >= p->extent) return INT64_MAX;
        if (++reads[p->index[k]] > most) most = reads[p->index[k]];
    }
    return most;
}

/* false where the index is no constant, or a scatter is the shorter way. */
static bool known_places(Graph *g, Value idx, int64_t extent, Places *p) {
    const Type t = *graph_type_at(g, idx);
    const AttrField *data = graph_op(g, idx) == OP_const ? attr_find(g, idx, A_DATA) : NULL;
    const uint32_t one = dtype_info[t.dtype].bytes;
    *p = (Places){.extent = extent, .count = type_elems(&t)};
    if (!data || !p->count || p->count > MAX_PLACES || data->n != p->count * one) return false;
    p->index = arena_alloc(g->arena, (size_t)p->count * sizeof *p->index);
    for (int64_t k = 0; k < p->count; k++)
        p->index[k] = elem_load_int((DType)t.dtype, (const char *)data->u.bytes + k * one);
    p->reads = most_reads(g->arena, p);
    return p->reads <= MAX_READS && (p->reads - 1) * extent <= 3 * p->count;
}

/* The t-th read of every element, 0 where there is none; is_read says which have one. */
static bool nth_places(const Places *p, int64_t nth, int64_t *at, uint8_t *is_read) {
    bool all = true;
    int64_t *seen = at + p->extent; /* reads so far */
    for (int64_t i = 0; i < p->extent; i++) at[i] = 0, is_read[i] = 0, seen[i] = 0;
    for (int64_t k = 0; k < p->count; k++)
        if (seen[p->index[k]]++ == nth) at[p->index[k]] = k, is_read[p->index[k]] = 1;
    for (int64_t i = 0; i < p->extent; i++) all &= is_read[i];
    return all;
}

/* dy[p.., r.., q..] with the axes r of the index as one */
static Value one_axis(Graph *g, Value dy, const Type *a, int64_t axis, int64_t count) {
    Type t = *a;
    t.dims[axis] = count;
    return build_reshape(g, dy, t.rank, t.dims);
}

static Value gathered_back(Graph *g, Value a, Value dy, int64_t axis, const Places *p) {
    const Type t = *graph_type_at(g, a);
    int64_t dims[MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    int64_t *at = arena_alloc(g->arena, 2 * (size_t)p->extent * sizeof *at);
    uint8_t *is_read = arena_alloc(g->arena, (size_t)p->extent);
    Value sum = 0, zero = build_splat(g, graph_type_of(g, (DType)t.dtype, 0, NULL), 0);
    dims[axis] = p->extent;
    dy = one_axis(g, dy, &t, axis, p->count);
    for (int64_t nth = 0; nth < p->reads; nth++) {
        bool all = nth_places(p, nth, at, is_read);
        Value part = build_gather(g, dy, build_ints(g, at, (uint32_t)p->extent), axis);
        if (!all) {
            Value mask = build_const(g, graph_type_of(g, DT_BOOL, t.rank, dims), is_read);
            part = build_map(g, OP_where, (Value[]){mask, part, zero}, 3);
        }
        sum = nth ? build_binary(g, OP_add, sum, part) : part;
    }
    return sum;
}

void vjp_gather(Graph *g, Value v, Value dy, Value *d) {
    Value a = graph_operand(g, v, 0), idx = graph_operand(g, v, 1);
    int64_t axis = attr_i(g, v, A_AXIS, 0);
    Places p;
    if (known_places(g, idx, graph_type_at(g, a)->dims[axis], &p)) {
        d[0] = gathered_back(g, a, dy, axis, &p);
        return;
    }
    AttrField fields[] = {attr_int(A_AXIS, axis), attr_int(A_MODE, SCATTER_ADD)};
    Value base = build_splat(g, graph_node(g, a)->type, 0);
    d[0] = graph_emit(g, OP_scatter, (Value[]){base, idx, dy}, 3, graph_attr(g, fields, 2), 0);
}
