/* match_rope.c - finds rotary embeddings in the core ops that exporters write for them.
 *
 * Three spellings: x cos + turn(x) sin, with turn a concatenation of the halves, or of the pairs
 * behind a reshape; both halves, or the interleaved elements, computed apart and put together; and
 * either of these on the first elements, with the rest put behind. Slices are compared as strides.
 */
#include "match_attention.h"
#include <string.h>

static Value skip_expand(const Graph *g, Value v) {
    while (graph_op(g, v) == OP_expand) v = graph_operand(g, v, 0);
    return v;
}

static int64_t last_extent(const Graph *g, Value v) {
    const Type *t = graph_type_at(g, v);
    return t->dims[t->rank - 1];
}

/* Is v the elements from, from + step, .. of the last axis of x? */
static bool is_part(const Graph *g, Value v, const Strided *x, int64_t from, int64_t step,
                    int64_t count) {
    Strided s = strided_of(g, v), want = *x;
    uint32_t last = x->rank - 1;
    want.offset += from * x->strides[last];
    want.strides[last] *= count == 1 ? 0 : step;
    want.dims[last] = count;
    if (s.rank == x->rank + 1 && s.dims[x->rank] == 1) s.rank--; /* a pair's element: [.., n, 1] */
    if (s.base != want.base || s.rank != want.rank || s.offset != want.offset) return false;
    for (uint32_t i = 0; i < s.rank; i++)
        if (s.dims[i] != want.dims[i] || (s.dims[i] > 1 && s.strides[i] != want.strides[i]))
            return false;
    return true;
}

/* Is v x with each pair turned: (-b, a)? */
static bool is_turned(const Graph *g, Value v, Value x, bool *is_interleaved) {
    int64_t extent = last_extent(g, x), half = extent / 2;
    Strided s = strided_of(g, x);
    *is_interleaved = graph_op(g, v) == OP_reshape;
    if (*is_interleaved) v = graph_operand(g, v, 0);
    if (graph_op(g, v) != OP_concat || graph_node(g, v)->n_operands != 2 || extent % 2)
        return false;
    const Type *t = graph_type_at(g, v), *of = graph_type_at(g, x);
    if (attr_i(g, v, A_AXIS, 0) != t->rank - 1 || t->rank != of->rank + *is_interleaved)
        return false;
    Value b = graph_operand(g, v, 0), a = graph_operand(g, v, 1);
    if (*is_interleaved && graph_op(g, b) == OP_reshape) b = graph_operand(g, b, 0);
    if (graph_op(g, b) != OP_neg) return false;
    b = graph_operand(g, b, 0);
    int64_t step = *is_interleaved ? 2 : 1;
    return is_part(g, a, &s, 0, step, half) &&
           is_part(g, b, &s, *is_interleaved ? 1 : half, step, half);
}

/* The table that multiplies x, not repeated along other axes than the last; 0 where it is none. */
static Value table_of(Graph *g, Value v, Value x) {
    v = skip_expand(g, v);
    Type t = *graph_type_at(g, v);
    if (t.rank != graph_type_at(g, x)->rank) return 0;
    t.dims[t.rank - 1] = last_extent(g, x);
    return build_expand(g, v, t.rank, t.dims);
}

/* x cos + turn(x) sin */
static Value match_sum(Graph *g, Value v) {
    for (uint32_t swap = 0; swap < 2; swap++) {
        Value straight = graph_operand(g, v, swap), across = graph_operand(g, v, 1 - swap);
        if (graph_op(g, straight) != OP_mul || graph_op(g, across) != OP_mul) return 0;
        for (uint32_t k = 0; k < 4; k++) {
            bool is_interleaved;
            Value x = graph_operand(g, straight, k & 1),
                  cos = graph_operand(g, straight, 1 - (k & 1)),
                  turned = graph_operand(g, across, k >> 1),
                  sin = graph_operand(g, across, 1 - (k >> 1));
            if (!graph_type_at(g, x)->rank || !is_turned(g, turned, x, &is_interleaved)) continue;
            cos = table_of(g, cos, x);
            sin = table_of(g, sin, x);
            if (cos && sin) return build_rope(g, x, cos, sin, is_interleaved);
        }
    }
    return 0;
}

/* a c - b s and b c + a s: the halves, or the elements of the pairs. */
static bool match_pair(const Graph *g, Value first, Value second, Value *a, Value *b, Value *c,
                       Value *s) {
    if (graph_op(g, first) != OP_sub || graph_op(g, second) != OP_add) return false;
    Value p = graph_operand(g, first, 0), m = graph_operand(g, first, 1);
    if (graph_op(g, p) != OP_mul || graph_op(g, m) != OP_mul) return false;
    for (uint32_t k = 0; k < 4; k++) {
        *a = graph_operand(g, p, k & 1), *c = graph_operand(g, p, 1 - (k & 1));
        *b = graph_operand(g, m, k >> 1), *s = graph_operand(g, m, 1 - (k >> 1));
        for (uint32_t j = 0; j < 8; j++) {
            Value bc = graph_operand(g, second, j & 1), as = graph_operand(g, second, 1 - (j & 1));
            if (graph_op(g, bc) != OP_mul || graph_op(g, as) != OP_mul) return false;
            uint32_t x = j >> 1 & 1, y = j >> 2;
            if (graph_operand(g, bc, x) == *b && graph_operand(g, bc, 1 - x) == *c &&
                graph_operand(g, as, y) == *a && graph_operand(g, as, 1 - y) == *s)
                return true;
        }
    }
    return false;
}

static Value one_axis_less(Graph *g, Value v) {
    Type t = *graph_type_at(g, v);
    return t.rank && t.dims[t.rank - 1] == 1
               ? strided_shortest(g, build_reshape(g, v, t.rank - 1u, t.dims))
               : 0;
}

/* Each element twice: behind one another as halves, or side by side. */
static Value doubled(Graph *g, Value v, bool is_interleaved) {
    Type t = *graph_type_at(g, v), pairs = t;
    if (!is_interleaved) return build_concat(g, (Value[]){v, v}, 2, t.rank - 1);
    pairs.dims[pairs.rank++] = 1;
    v = build_reshape(g, v, pairs.rank, pairs.dims);
    pairs.dims[t.rank] = 2;
    t.dims[t.rank - 1] *= 2;
    return build_reshape(g, build_expand(g, v, pairs.rank, pairs.dims), t.rank, t.dims);
}

/* The value of which a and b are the halves, or every other element of the last axis. */
static Value joined(Graph *g, Value a, Value b, bool is_interleaved) {
    Strided whole = strided_of(g, a);
    uint32_t last = whole.rank - 1;
    int64_t half = whole.dims[last];
    if (half < 2 || (is_interleaved && whole.strides[last] % 2)) return 0;
    whole.dims[last] *= 2;
    if (is_interleaved) whole.strides[last] /= 2;
    bool fits =
        is_interleaved ? is_part(g, b, &whole, 1, 2, half) : is_part(g, b, &whole, half, 1, half);
    return fits ? strided_build(g, &whole, 5) : 0;
}

/* concat(a c - b s, b c + a s) of halves, or of pairs [.., n, 1] */
static Value match_halves(Graph *g, Value v) {
    Type t = *graph_type_at(g, v);
    if (graph_node(g, v)->n_operands != 2 || !t.rank || attr_i(g, v, A_AXIS, 0) != t.rank - 1)
        return 0;
    bool is_interleaved = t.dims[t.rank - 1] == 2;
    Value parts[2], x[4]; /* a b c s */
    for (uint32_t i = 0; i < 2; i++) {
        parts[i] = graph_operand(g, v, i);
        if (is_interleaved && graph_op(g, parts[i]) == OP_reshape)
            parts[i] = graph_operand(g, parts[i], 0);
    }
    if (!match_pair(g, parts[0], parts[1], &x[0], &x[1], &x[2], &x[3])) return 0;
    uint32_t rank = t.rank - (is_interleaved ? 1u : 0u);
    for (uint32_t i = 0; i < 4; i++) {
        if (i > 1) x[i] = skip_expand(g, x[i]);
        if (is_interleaved && graph_type_at(g, x[i])->rank == t.rank) x[i] = one_axis_less(g, x[i]);
        if (!x[i] || graph_type_at(g, x[i])->rank != rank) return 0;
    }
    Value whole = joined(g, x[0], x[1], is_interleaved), tables[2];
    for (uint32_t i = 0; i < 2; i++) {
        tables[i] = table_of(g, x[2 + i], x[0]);
        if (!whole || !tables[i]) return 0;
        tables[i] = doubled(g, tables[i], is_interleaved);
    }
    return build_reshape(g, build_rope(g, whole, tables[0], tables[1], is_interleaved), t.rank,
                         t.dims);
}

/* concat(rope(x[:R]), x[R:]) */
static Value match_part(Graph *g, Value v) {
    if (graph_node(g, v)->n_operands != 2) return 0;
    Value turned = graph_operand(g, v, 0), rest = graph_operand(g, v, 1);
    Type t = *graph_type_at(g, v);
    if (graph_op(g, turned) != OP_rope || attr_i(g, v, A_AXIS, 0) != t.rank - 1) return 0;
    Value part = graph_operand(g, turned, 0);
    int64_t extent = last_extent(g, part);
    if (extent != last_extent(g, graph_operand(g, turned, 1))) return 0;
    Strided whole = strided_of(g, part);
    whole.dims[t.rank - 1] = t.dims[t.rank - 1];
    if (!is_part(g, rest, &whole, extent, 1, last_extent(g, rest))) return 0;
    Value x = strided_build(g, &whole, 5);
    if (!x) return 0;
    return build_rope(g, x, graph_operand(g, turned, 1), graph_operand(g, turned, 2),
                      attr_i(g, turned, A_INTERLEAVED, 0) != 0);
}

Value match_rope(Graph *g, Value v) {
    Value found = 0;
    if (dtype_info[graph_type_at(g, v)->dtype].cls != CLASS_FLT || !type_elems(graph_type_at(g, v)))
        return 0;
    switch ((int)graph_op(g, v)) {
    case OP_add:
        return match_sum(g, v);
    case OP_concat:
        found = match_part(g, v);
        return found ? found : match_halves(g, v);
    }
    return 0;
}
