/* expand.c - macros and huge reductions, written out in core ops; detach, which only autodiff
 * reads, goes away.
 *
 * Every macro becomes its expansion from the registry; those of backward share their subexpressions
 * with it, since equal nodes are one. A sum of very many elements to few results would be one long
 * chain on one thread: it becomes sums of chunks, then the sum of those, in a fixed order; reduced
 * axes that lie apart are summed from the innermost outwards. */
#include "pass.h"

enum { HUGE_ELEMS = 65536, FEW_RESULTS = 16, CHUNK_ELEMS = 4096 };

static Value expand_macro(void *pass, const Graph *from, Value v, Graph *to, const Value *map) {
    (void)pass;
    if (graph_op(from, v) == OP_detach)
        return map[graph_operand(from, v, 0)]; /* backward is there: nothing more to keep from it */
    if (op_info[graph_op(from, v)].lower != LOWER_MACRO) return 0;
    return macro_expand(to, node_copied(from, v, to, map));
}

/* The divisor of n nearest to the chunk size from below, 0 where none is of use. */
static int64_t chunk(int64_t n) {
    for (int64_t c = CHUNK_ELEMS; c >= CHUNK_ELEMS / 16; c--)
        if (n % c == 0) return c;
    return 0;
}

/* Sums the middle of [before, n, after] in two levels: [before, 1, after]. Pads with zeros to whole
 * chunks. */
static Value sum_in_chunks(Graph *g, Value v, int64_t before, int64_t n, int64_t after) {
    int64_t len = chunk(n);
    if (!len) {
        int64_t zero[3] = {0}, high[3] = {0, (CHUNK_ELEMS - n % CHUNK_ELEMS) % CHUNK_ELEMS, 0};
        v = build_pad(g, build_reshape(g, v, 3, (int64_t[]){before, n, after}), zero, high, zero,
                      0);
        n += high[1];
        len = CHUNK_ELEMS;
    }
    v = build_reshape(g, v, 4, (int64_t[]){before, n / len, len, after});
    return build_reduce(g, OP_sum, build_reduce(g, OP_sum, v, (int64_t[]){2}, 1), (int64_t[]){1},
                        1);
}

/* The innermost run of neighbouring reduced axes: [*first, *end). Axes of extent 1 belong to any
 * run. */
static void innermost_run(const Type *t, const bool *reduced, uint32_t *first, uint32_t *end) {
    *end = t->rank;
    while (*end > 0 && !(reduced[*end - 1] && t->dims[*end - 1] > 1)) --*end;
    *first = *end;
    while (*first > 0 && (reduced[*first - 1] || t->dims[*first - 1] == 1)) --*first;
}

static int64_t product(const Type *t, uint32_t first, uint32_t end) {
    int64_t p = 1;
    for (uint32_t i = first; i < end; i++) p *= t->dims[i];
    return p;
}

/* Sum over one run of axes, whose reduced result is `result`. */
static Value sum_run(Graph *g, Value v, uint32_t first, uint32_t end) {
    Type t = *graph_type_at(g, v), result = t;
    int64_t n = product(&t, first, end), axes[MAX_RANK];
    for (uint32_t i = first; i < end; i++) {
        result.dims[i] = 1;
        axes[i - first] = i;
    }
    if (n < HUGE_ELEMS || type_elems(&result) > FEW_RESULTS)
        return build_reduce(g, OP_sum, v, axes, end - first);
    v = sum_in_chunks(g, v, product(&t, 0, first), n, product(&t, end, t.rank));
    return build_reshape(g, v, result.rank, result.dims);
}

static Value split_sum(void *pass, const Graph *from, Value v, Graph *to, const Value *map) {
    (void)pass;
    if (graph_op(from, v) != OP_sum) return 0;
    Type t = *graph_type_at(from, graph_operand(from, v, 0)), result = *graph_type_at(from, v);
    uint32_t n_axes, first, end;
    const int64_t *axes = attr_list(from, v, A_AXES, &n_axes);
    bool reduced[MAX_RANK] = {false};
    for (uint32_t i = 0; i < n_axes; i++) reduced[axes[i]] = true;
    if (!type_elems(&t) || type_elems(&t) / type_elems(&result) < HUGE_ELEMS) return 0;
    innermost_run(&t, reduced, &first, &end);
    bool apart = product(&t, first, end) < type_elems(&t) / type_elems(&result);
    if (!apart && type_elems(&result) > FEW_RESULTS) return 0;
    to->loc = graph_node(from, v)->loc;
    to->epoch = graph_node(from, v)->epoch;
    Value sum = map[graph_operand(from, v, 0)];
    while (innermost_run(&t, reduced, &first, &end), end > 0) {
        sum = sum_run(to, sum, first, end);
        t = *graph_type_at(to, sum);
    }
    return sum;
}

bool pass_expand(PassContext *ctx) {
    Graph *given = ctx->g;
    pass_rewrite(ctx, expand_macro, NULL);
    Graph *expanded = ctx->g;
    pass_rewrite(ctx, split_sum, NULL);
    if (expanded != given) graph_free(expanded);
    return pass_bodies(ctx, pass_expand) && !diag_has_errors(ctx->g);
}
