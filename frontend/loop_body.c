/* loop_body.c - what Loop and Scan share: attempts that leave nothing behind, random numbers of a
 * body, and the loop that one step over holes makes; see loop.h. */
#include "loop.h"
#include <string.h>

/* ---------------------------------------------------------------- attempts */

Attempt attempt_begin(const Graph *g) {
    Attempt a = {.n_diags = g->diags.n};
    for (int e = 0; e < N_ENTRIES; e++) a.n_roots[e] = g->entries[e].n;
    return a;
}

bool attempt_failed(const Graph *g, const Attempt *a) {
    for (uint32_t i = a->n_diags; i < g->diags.n; i++)
        if (diag_info[g->diags.items[i].code].severity == SEV_ERROR) return true;
    return false;
}

static void roots_undo(Graph *g, const Attempt *a) {
    for (int e = 0; e < N_ENTRIES; e++) g->entries[e].n = a->n_roots[e];
}

void attempt_undo(Graph *g, const Attempt *a) {
    g->diags.n = a->n_diags;
    roots_undo(g, a);
}

bool adds_roots(const Graph *g, const Attempt *a) {
    bool any = false;
    for (int e = 0; e < N_ENTRIES; e++) any |= g->entries[e].n > a->n_roots[e];
    return any;
}

/* Statistics that several steps would move have no one value at the end of a micro-batch. */
bool moves_statistics(ImportNode *n, const Attempt *a) {
    if (!adds_roots(n->g, a)) return false;
    roots_undo(n->g, a);
    diag_add(n->g, E_OP_UNSUPPORTED, n->g->loc, n->proto->op_type,
             " with running statistics in its body");
    return true;
}

/* ---------------------------------------------------------------- random numbers of a body */

/* The random nodes that the body's own ops have made: known by the streams under its prefix. */
static bool is_own_stream(const Import *im, int64_t stream, const char *prefix) {
    for (uint32_t i = 0; i < im->streams.cap; i++)
        if (im->streams.names[i] && im->streams.values[i] == stream)
            return !strncmp(im->streams.names[i], prefix, strlen(prefix));
    return false;
}

typedef struct Randoms {
    Value xs[MAX_LOOP_VALUES], x[MAX_LOOP_VALUES];
    uint32_t n;
    Value *map; /* what a node becomes where random numbers are below it */
} Randoms;

static Value hole_of_random(Graph *g, Randoms *r, Value v, int64_t trips) {
    Type t = *graph_type_at(g, v);
    if (r->n == MAX_LOOP_VALUES || t.rank == MAX_RANK) return 0;
    memmove(t.dims + 1, t.dims, t.rank * sizeof *t.dims);
    t.dims[0] = trips;
    t.rank++;
    AttrId attr = graph_node(g, v)->attr;
    r->xs[r->n] = graph_emit(g, OP_random, NULL, 0, attr, graph_type(g, t));
    r->x[r->n] = scan_hole(g, graph_node(g, v)->type);
    return r->x[r->n++];
}

/* The body's nodes again, over slices of random numbers of all steps. */
static bool replace_randoms(Loop *l, Randoms *r) {
    const char *prefix = arena_printf(l->n->arena, "%s/", l->n->g->locs[l->n->g->loc].name);
    Graph *g = l->n->g;
    uint32_t n = g->n_nodes;
    bool any = false;
    r->map = arena_alloc(l->n->arena, n * sizeof *r->map);
    for (Value v = 1; v < n; v++) {
        const Node node = *graph_node(g, v);
        Value *operands = NULL;
        if (node.op == OP_random && is_own_stream(l->n->im, attr_i(g, v, A_STREAM, 0), prefix)) {
            if (!(r->map[v] = hole_of_random(g, r, v, l->trips))) return false;
            any = true;
            continue;
        }
        for (uint32_t i = 0; any && i < node.n_operands; i++)
            if (r->map[graph_operand(g, v, i)])
                operands = arena_alloc(l->n->arena, node.n_operands * sizeof *operands);
        for (uint32_t i = 0; operands && i < node.n_operands; i++) {
            Value o = graph_operand(g, v, i);
            operands[i] = r->map[o] ? r->map[o] : o;
        }
        if (operands)
            r->map[v] =
                graph_emit(g, (OpCode)node.op, operands, node.n_operands, node.attr, node.type);
    }
    return true;
}

static Value replaced(const Randoms *r, uint32_t n, Value v) {
    return v < n && r->map[v] ? r->map[v] : v;
}

/* ---------------------------------------------------------------- the body */

bool define_inputs(Loop *l, Scope *inner, const Value *values, uint32_t n) {
    if (l->body->n_input > n) {
        diag_add(l->n->g, E_MODEL_INVALID, l->n->g->loc,
                 arena_printf(l->n->arena, "the body has %zu inputs, not %u", l->body->n_input, n));
        return false;
    }
    for (uint32_t i = 0; i < l->body->n_input; i++)
        names_set(l->n->arena, &inner->values, graph_str(l->n->g, l->body->input[i]->name),
                  values[i]);
    return true;
}

bool keeps_types(const Loop *l, const Value *next) {
    const Graph *g = l->n->g;
    for (uint32_t i = 0; i < l->n_carried + l->n_stacked; i++) {
        if (!next[i] || next[i] & SEQUENCE_BIT) return false;
        if (i < l->n_carried && graph_node(g, next[i])->type != graph_node(g, l->first[i])->type)
            return false;
    }
    return true;
}

bool build_loop(Loop *l, const Holes *h, Value *next) {
    Graph *g = l->n->g;
    uint32_t n = g->n_nodes;
    Randoms r = {.n = h->n_x};
    for (uint32_t i = 0; i < h->n_x; i++) r.xs[i] = h->xs[i], r.x[i] = h->x[i];
    if (!replace_randoms(l, &r)) return false;
    for (uint32_t i = 0; i < l->n_carried + l->n_stacked; i++) next[i] = replaced(&r, n, next[i]);
    ScanSpec spec = {.name = l->body->name ? l->body->name : "",
                     .n_carries = l->n_carried,
                     .first = l->first,
                     .carry = h->carry,
                     .next = next,
                     .n_scanned = r.n,
                     .xs = r.xs,
                     .x = r.x,
                     .t = h->t,
                     .n_ys = l->n_stacked,
                     .ys = next + l->n_carried,
                     .trips = l->trips,
                     .is_reverse = h->is_reverse};
    return scan_build(g, &spec, l->finals, l->stacks);
}

const Onnx__GraphProto *body_of_node(ImportNode *n) {
    const Onnx__AttributeProto *a = find_attribute(n->im->scope, n->proto, "body");
    if (a && a->g) return a->g;
    node_fail(n, "body", "is missing");
    return NULL;
}
