/* ops_sort.c - TopK, and with it every sort, median and k-th value of an exporter: the places of
 * the k first elements of an order become a tensor of indices, and the values are taken by them (so
 * that the gradient flows back to those places alone).
 *
 * All in core ops that depend on no data: rows are [rows, n], the order is total (equal elements in
 * order of their index; NaN counts as infinity), and the places come from one of three ways, by
 * cost: few of many by repeated argmax (k passes over n); short rows by counting for each element
 * how many stand before it (n * n comparisons, nothing stored); long ones by Batcher's bitonic
 * network (log2(n) (log2(n) + 1) / 2 passes over n). */
#include "import.h"
#include <math.h>

enum { MAX_PASSES = 64, MAX_COUNTED = 2048 };

typedef struct Order {
    ImportNode *n;
    Value key; /* [rows, length] */
    int64_t rows, length, k;
    bool is_largest;
} Order;

static double worst_of(DType d, bool is_largest) {
    const DTypeInfo *info = &dtype_info[d];
    bool is_unsigned = d == DT_U64 || d == DT_U32 || d == DT_U16 || d == DT_U8;
    int bits = (int)info->bytes * 8 - !is_unsigned;
    if (info->cls == CLASS_FLT) return is_largest ? -INFINITY : INFINITY;
    return is_largest ? (is_unsigned ? 0 : -ldexp(1, bits)) : ldexp(1, bits) - 1;
}

/* The last possible element in storage form: 64-bit bounds are no doubles. */
static Value worst(const Order *o) {
    Graph *g = o->n->g;
    DType d = (DType)node_type(o->n, o->key)->dtype;
    TypeId type = graph_type_of(g, d, 0, NULL);
    bool is_wide = dtype_info[d].cls == CLASS_INT && dtype_info[d].bytes == 8;
    if (!is_wide || o->is_largest) return build_splat(g, type, worst_of(d, o->is_largest));
    return build_const(g, type, d == DT_U64 ? (int64_t[]){-1} : (int64_t[]){INT64_MAX});
}

static Value places(const Order *o, uint32_t rank, const int64_t *dims, int64_t axis) {
    return build_iota(o->n->g, graph_type_of(o->n->g, DT_I64, rank, dims), axis);
}

/* Does (a, i) stand before (b, j)? Pairs are never equal. */
static Value before(const Order *o, Value a, Value i, Value b, Value j) {
    return node_rule(o->n,
                     o->is_largest ? "(or (gt a b) (and (eq a b) (lt i j)))"
                                   : "(or (lt a b) (and (eq a b) (lt i j)))",
                     (RuleBind[]){{"a", a}, {"i", i}, {"b", b}, {"j", j}}, 4);
}

/* ---------------------------------------------------------------- few of many */

/* In each pass the best of what stands behind the last one found; where all of that is of the worst
 * value, the first of it. */
static Value by_passes(const Order *o) {
    Graph *g = o->n->g;
    const int64_t axis = 1, dims[2] = {o->rows, o->length};
    Value at = places(o, 2, dims, 1), bad = worst(o), last = 0,
          *found = arena_alloc(o->n->arena, ((size_t)o->k + 1) * sizeof *found);
    Value left = build_splat(g, graph_type_of(g, DT_BOOL, 2, dims), 1);
    Value end = node_number(o->n, DT_I64, (double)o->length);
    for (int64_t i = 0; i < o->k; i++) {
        if (i) left = before(o, last, found[i - 1], o->key, at);
        Value key = build_map(g, OP_where, (Value[]){left, o->key, bad}, 3);
        Value best = graph_emit(g, o->is_largest ? OP_argmax : OP_argmin, &key, 1,
                                graph_attr(g, (AttrField[]){attr_int(A_AXIS, 1)}, 1), 0);
        last = build_reduce(g, o->is_largest ? OP_rmax : OP_rmin, key, &axis, 1);
        Value first =
            build_reduce(g, OP_rmin, build_map(g, OP_where, (Value[]){left, at, end}, 3), &axis, 1);
        found[i] =
            build_map(g, OP_where, (Value[]){build_binary(g, OP_eq, last, bad), first, best}, 3);
    }
    return build_concat(g, found, (uint32_t)o->k, 1);
}

/* ---------------------------------------------------------------- short rows */

/* An element's place is the number of those before it; the element at place r is the sum of the
 * indices whose place is r. */
static Value by_counting(const Order *o) {
    Graph *g = o->n->g;
    int64_t own[3] = {o->rows, o->length, 1}, all[3] = {o->rows, 1, o->length},
            pairs[3] = {o->rows, o->length, o->length}, axis = 2;
    int64_t picked[3] = {o->rows, o->k, o->length};
    Value a = build_reshape(g, o->key, 3, all), b = build_reshape(g, o->key, 3, own);
    Value is_before = before(o, a, places(o, 3, pairs, 2), b, places(o, 3, pairs, 1));
    Value place = build_reduce(g, OP_sum, build_cast(g, is_before, DT_I32), &axis, 1);
    Value rank = build_cast(g, places(o, 3, picked, 1), DT_I32);
    Value hit = build_binary(g, OP_eq, build_reshape(g, place, 3, all), rank);
    Value index = build_map(
        g, OP_where, (Value[]){hit, places(o, 3, picked, 2), node_number(o->n, DT_I64, 0)}, 3);
    return build_reshape(g, build_reduce(g, OP_sum, index, &axis, 1), 2,
                         (int64_t[]){o->rows, o->k});
}

/* ---------------------------------------------------------------- long rows */

static Value half(const Order *o, Value v, int64_t which) {
    Type t = *node_type(o->n, v);
    const int64_t start[4] = {0, 0, which, 0};
    t.dims[2] = 1;
    return build_slice(o->n->g, v, start, t.dims, NULL);
}

static Value choose(const Order *o, Value swap, Value v) {
    Graph *g = o->n->g;
    Value low = half(o, v, 0), high = half(o, v, 1);
    Value pair[2] = {build_map(g, OP_where, (Value[]){swap, high, low}, 3),
                     build_map(g, OP_where, (Value[]){swap, low, high}, 3)};
    return build_concat(g, pair, 2, 2);
}

/* One layer: elements `stride` apart are put in order, blocks of `size` alternately forward and
 * backward. */
static void exchange(const Order *o, Value *key, Value *at, int64_t size, int64_t stride,
                     int64_t length) {
    Graph *g = o->n->g;
    int64_t dims[4] = {o->rows, length / (2 * stride), 2, stride};
    Value k = build_reshape(g, *key, 4, dims), i = build_reshape(g, *at, 4, dims);
    Value is_wrong = before(o, half(o, k, 1), half(o, i, 1), half(o, k, 0), half(o, i, 0));
    if (size < length) {
        dims[2] = 1;
        Value block = places(o, 4, dims, 1);
        Value turn =
            node_rule(o->n, "(ne (bitand b s) 0)",
                      (RuleBind[]){{"b", block},
                                   {"s", node_number(o->n, DT_I64, (double)(size / (2 * stride)))}},
                      2);
        is_wrong = build_binary(g, OP_ne, is_wrong, turn);
    }
    *key = build_reshape(g, choose(o, is_wrong, k), 2, (int64_t[]){o->rows, length});
    *at = build_reshape(g, choose(o, is_wrong, i), 2, (int64_t[]){o->rows, length});
}

static Value by_network(const Order *o) {
    Graph *g = o->n->g;
    int64_t length = 1, start[2] = {0, 0}, extent[2] = {o->rows, o->k};
    while (length < o->length) length *= 2;
    int64_t dims[2] = {o->rows, length - o->length};
    Value at = places(o, 2, (int64_t[]){o->rows, length}, 1);
    Value parts[2] = {o->key, build_expand(g, worst(o), 2, dims)};
    Value key = dims[1] ? build_concat(g, parts, 2, 1) : o->key;
    for (int64_t size = 2; size <= length; size *= 2)
        for (int64_t stride = size / 2; stride >= 1; stride /= 2)
            exchange(o, &key, &at, size, stride, length);
    return build_slice(g, at, start, extent, NULL);
}

/* ---------------------------------------------------------------- TopK */

static Value indices(const Order *o) {
    if (o->k <= MAX_PASSES && o->k * 4 <= o->length) return by_passes(o);
    return o->length <= MAX_COUNTED ? by_counting(o) : by_network(o);
}

static Value without_nan(ImportNode *n, Value v) {
    if (dtype_info[node_type(n, v)->dtype].cls != CLASS_FLT) return v;
    RuleBind binds[] = {{"a", v}, {"i", node_number(n, (DType)node_type(n, v)->dtype, INFINITY)}};
    return node_rule(n, "(where (isnan a) i a)", binds, 2);
}

static Value to_last(ImportNode *n, Value v, int64_t axis) {
    int64_t perm[MAX_RANK], rank = node_type(n, v)->rank;
    for (int64_t i = 0; i < rank; i++) perm[i] = i == axis ? rank - 1 : i == rank - 1 ? axis : i;
    return build_transpose(n->g, v, perm);
}

static bool top_count(ImportNode *n, int64_t *k) {
    const int64_t *list;
    uint32_t count;
    *k = node_int(n, "k", -1);
    if (n->opset < 10) return true;
    if (!node_ints_at(n, 1, &list, &count)) return false;
    *k = count == 1 ? list[0] : -1;
    return true;
}

/* TopK-1: k is an attribute; since 10 an input; since 11 smallest ones and other orders. */
void import_top_k(ImportNode *n) {
    int64_t axis, k;
    Type t = *node_type(n, n->in[0]);
    if (!top_count(n, &k) || !node_axis(n, node_int(n, "axis", -1), t.rank, &axis)) return;
    if (k < 0 || k > t.dims[axis]) {
        node_fail(n, "k", "%lld of an axis of %lld", (long long)k, (long long)t.dims[axis]);
        return;
    }
    Type moved = *node_type(n, to_last(n, n->in[0], axis));
    moved.dims[t.rank - 1] = k;
    moved.dtype = DT_I64;
    Value index = build_splat(n->g, graph_type(n->g, moved), 0);
    if (type_elems(&moved)) {
        Order o = {.n = n, .k = k, .length = t.dims[axis], .is_largest = node_int(n, "largest", 1)};
        o.rows = type_elems(&t) / o.length;
        o.key = build_reshape(n->g, to_last(n, without_nan(n, n->in[0]), axis), 2,
                              (int64_t[]){o.rows, o.length});
        index = build_reshape(n->g, indices(&o), moved.rank, moved.dims);
    }
    index = index ? to_last(n, index, axis) : 0;
    n->out[0] = graph_emit(n->g, OP_take, (Value[]){n->in[0], index}, 2,
                           graph_attr(n->g, (AttrField[]){attr_int(A_AXIS, axis)}, 1), 0);
    if (n->n_out > 1) n->out[1] = index;
}
