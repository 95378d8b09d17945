/* strided.c - chains of views as strides over their base, and the shortest chain for such strides.
 *
 * Exporters write a transpose of the last axes as six reshapes and transposes around three
 * dimensions; as strides all these are one. Merging axes follows what array libraries do: axes
 * whose strides continue each other are one run, and new axes must divide the runs. The way back
 * sorts axes by stride: they nest, so the base is reshaped to that order, sliced, and transposed.
 */
#include "strided.h"
#include <string.h>

static Strided contiguous(const Graph *g, Value v) {
    const Type *t = graph_type_at(g, v);
    Strided s = {.base = v, .rank = t->rank};
    int64_t stride = 1;
    for (uint32_t i = t->rank; i-- > 0;) {
        s.dims[i] = t->dims[i];
        s.strides[i] = t->dims[i] == 1 ? 0 : stride;
        stride *= t->dims[i];
    }
    return s;
}

bool strided_reshape(Strided *s, uint32_t rank, const int64_t *dims) {
    Strided r = {.base = s->base, .rank = rank, .depth = s->depth, .offset = s->offset};
    int64_t run[MAX_RANK], step[MAX_RANK], filled = 1;
    uint32_t n = 0, at; /* runs of axes, innermost first: elements and stride of the innermost */
    for (uint32_t i = s->rank; i-- > 0;) {
        if (s->dims[i] == 1) continue;
        if (n && s->strides[i] == step[n - 1] * run[n - 1]) {
            run[n - 1] *= s->dims[i];
        } else {
            run[n] = s->dims[i];
            step[n++] = s->strides[i];
        }
    }
    at = 0;
    for (uint32_t i = rank; i-- > 0;) {
        r.dims[i] = dims[i];
        if (dims[i] == 1) continue;
        if (at == n || run[at] % (filled * dims[i])) return false;
        r.strides[i] = step[at] * filled;
        filled *= dims[i];
        if (filled == run[at]) {
            at++;
            filled = 1;
        }
    }
    if (at != n) return false;
    *s = r;
    return true;
}

static void strided_transpose(const Graph *g, Value v, Strided *s) {
    uint32_t n;
    const int64_t *perm = attr_list(g, v, A_PERM, &n);
    Strided from = *s;
    for (uint32_t i = 0; i < n; i++) {
        s->dims[i] = from.dims[perm[i]];
        s->strides[i] = from.strides[perm[i]];
    }
}

static void strided_slice(const Graph *g, Value v, Strided *s) {
    uint32_t n;
    const int64_t *start = attr_list(g, v, A_START, &n), *step = attr_list(g, v, A_STEP, NULL);
    for (uint32_t i = 0; i < n; i++) {
        s->offset += start[i] * s->strides[i];
        s->dims[i] = graph_type_at(g, v)->dims[i];
        s->strides[i] *= s->dims[i] == 1 ? 0 : step[i];
    }
}

Strided strided_of(const Graph *g, Value v) {
    const Type *t = graph_type_at(g, v);
    OpCode op = graph_op(g, v);
    if (op != OP_reshape && op != OP_transpose && op != OP_expand && op != OP_slice)
        return contiguous(g, v);
    if (!type_elems(t) || !type_elems(graph_type_at(g, graph_operand(g, v, 0))))
        return contiguous(g, v);
    Strided s = strided_of(g, graph_operand(g, v, 0));
    if (op == OP_reshape && !strided_reshape(&s, t->rank, t->dims)) {
        s = contiguous(g, v); /* elements keep their number through a reshape */
        s.base = graph_operand(g, v, 0);
    }
    if (op == OP_transpose) strided_transpose(g, v, &s);
    if (op == OP_slice) strided_slice(g, v, &s);
    for (uint32_t i = 0; op == OP_expand && i < t->rank; i++) s.dims[i] = t->dims[i];
    s.depth++;
    return s;
}

/* ---------------------------------------------------------------- the way back */

typedef struct Chain { /* what to emit over the base, in this order */
    uint32_t n;        /* axes of the reshaped base */
    int64_t levels[MAX_RANK + 1], start[MAX_RANK + 1], extent[MAX_RANK + 1];
    int64_t perm[MAX_RANK], once[MAX_RANK]; /* once: the dims before axes are repeated */
    bool slices, moves, squeezes, repeats;
} Chain;

/* Axis numbers in the order of the base: those that step sorted by stride, the others where they
 * are. */
static void order_axes(const Strided *s, const int64_t *once, uint32_t *order) {
    uint32_t sorted[MAX_RANK], n = 0;
    for (uint32_t i = 0; i < s->rank; i++) {
        if (once[i] == 1) continue;
        uint32_t at = n++;
        while (at > 0 && s->strides[sorted[at - 1]] < s->strides[i]) {
            sorted[at] = sorted[at - 1];
            at--;
        }
        sorted[at] = i;
    }
    n = 0;
    for (uint32_t i = 0; i < s->rank; i++) order[i] = once[i] == 1 ? i : sorted[n++];
}

static bool plan_chain(const Graph *g, const Strided *s, Chain *c) {
    int64_t outer = type_elems(graph_type_at(g, s->base)), left = s->offset;
    uint32_t order[MAX_RANK];
    *c = (Chain){.n = s->rank};
    for (uint32_t i = 0; i < s->rank; i++) {
        if (s->strides[i] < 0) return false;
        c->once[i] = s->strides[i] ? s->dims[i] : 1;
        c->repeats |= c->once[i] != s->dims[i];
    }
    order_axes(s, c->once, order);
    for (uint32_t i = 0; i < s->rank; i++) {
        uint32_t axis = order[i];
        c->perm[axis] = i;
        c->moves |= axis != i;
        c->levels[i] = c->extent[i] = 1;
        if (c->once[axis] == 1) continue;
        int64_t stride = s->strides[axis];
        if (outer % stride) return false;
        c->levels[i] = outer / stride;
        c->start[i] = left / stride;
        c->extent[i] = c->once[axis];
        if (c->start[i] + c->extent[i] > c->levels[i]) return false;
        c->slices |= c->extent[i] != c->levels[i];
        left %= stride;
        outer = stride;
    }
    if (outer == 1) return true;
    c->levels[c->n] = outer; /* one element of what is left */
    c->start[c->n] = left;
    c->extent[c->n++] = 1;
    c->slices = c->squeezes = true;
    return c->n <= MAX_RANK;
}

static uint32_t chain_ops(const Graph *g, Value base, const Chain *c) {
    const Type *t = graph_type_at(g, base);
    bool reshapes = t->rank != c->n || memcmp(t->dims, c->levels, c->n * sizeof *c->levels) != 0;
    return (uint32_t)reshapes + c->slices + c->squeezes + c->moves + c->repeats;
}

Value strided_build(Graph *g, const Strided *s, uint32_t max_ops) {
    Chain c;
    if (!plan_chain(g, s, &c) || chain_ops(g, s->base, &c) > max_ops) return 0;
    Value v = build_reshape(g, s->base, c.n, c.levels);
    if (c.slices) v = build_slice(g, v, c.start, c.extent, NULL);
    if (c.squeezes) v = build_reshape(g, v, s->rank, c.extent);
    return build_expand(g, build_transpose(g, v, c.perm), s->rank, s->dims);
}

Value strided_shortest(Graph *g, Value v) {
    Strided s = strided_of(g, v);
    if (s.depth < 2) return v;
    Value shorter = strided_build(g, &s, s.depth - 1);
    return shorter ? shorter : v;
}
