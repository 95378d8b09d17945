/* bodies.c - the bodies of loops go through the passes that rewrite nodes; constants that they read
 * become operands of their loops.
 *
 * In: a graph that the calling pass has just rewritten. Out: every body rewritten by the same pass,
 * in a copy of its own. A body has no memory but what its loop is given, so a constant of more than
 * one number is emitted in the graph around the loop and read as one more invariant. */
#include "pass.h"
#include "scan.h"
#include <string.h>

static bool *bodies_in_use(const PassContext *ctx) {
    const Graph *g = ctx->g;
    bool *used = arena_alloc(ctx->arena, g->n_bodies + 1);
    for (int e = 0; e < N_ENTRIES; e++) {
        const bool *live = graph_reachable(g, ctx->arena, (EntryKind)e);
        for (Value v = 1; v < g->n_nodes; v++)
            if (live[v] && graph_op(g, v) == OP_scan) used[attr_i(g, v, A_BODY, 0)] = true;
    }
    return used;
}

/* ---------------------------------------------------------------- constants */

typedef struct Lift {
    PassContext *ctx;
    const Graph *from; /* whose loops are rewritten */
    uint32_t *body;    /* per body of `from`: the one that takes its place */
    Value **constants; /* per body of `from`: the nodes of its graph that become invariants */
    uint32_t *n_constants;
    uint32_t n_invariants; /* of the body that is rewritten now */
    uint32_t n_done;
} Lift;

static bool in_memory(const Graph *g, Value v) {
    double splat;
    return graph_op(g, v) == OP_const && !const_splat(g, v, &splat);
}

static Value visit_body(void *pass, const Graph *from, Value v, Graph *to, const Value *map) {
    Lift *l = pass;
    (void)map;
    if (!in_memory(from, v)) return 0;
    char name[BODY_LEAF];
    body_leaf(name, 'w', l->n_invariants + l->n_done++);
    graph_add_input(
        to,
        (Input){.name = name, .type = graph_type(to, *graph_type_at(from, v)), .batch_axis = -1});
    return build_input(to, name);
}

/* The body with inputs in place of its constants, in the order of its nodes. */
static void lift_body(Lift *l, uint32_t i, Graph *g) {
    const Body *b = graph_body(l->from, i);
    const bool *live = graph_reachable(b->g, l->ctx->arena, ENTRY_MICRO);
    uint32_t n = 0;
    l->body[i] = i;
    for (Value v = 1; v < b->g->n_nodes; v++) n += live[v] && in_memory(b->g, v);
    if (!n) return;
    l->constants[i] = arena_alloc(l->ctx->arena, sizeof(Value) * n);
    for (Value v = 1; v < b->g->n_nodes; v++)
        if (live[v] && in_memory(b->g, v)) l->constants[i][l->n_constants[i]++] = v;
    Graph *to = graph_copy_empty(b->g);
    l->n_invariants = b->n_invariants;
    l->n_done = 0;
    graph_rewrite(b->g, to, visit_body, l,
                  arena_alloc(l->ctx->arena, sizeof(Value) * b->g->n_nodes));
    l->body[i] = graph_add_body(g, body_of(b->name, to));
}

static Value constant_of_body(const Graph *body, Value v, Graph *to) {
    const AttrField *data = attr_find(body, v, A_DATA);
    AttrField field = attr_bytes(A_DATA, data->u.bytes, data->n);
    return graph_emit(to, OP_const, NULL, 0, graph_attr(to, &field, 1),
                      graph_type(to, *graph_type_at(body, v)));
}

static Value visit_scan(void *pass, const Graph *from, Value v, Graph *to, const Value *map) {
    const Lift *l = pass;
    uint32_t body = graph_op(from, v) == OP_scan ? (uint32_t)attr_i(from, v, A_BODY, 0) : 0;
    if (!body || !l->n_constants[body]) return 0;
    const Node *n = graph_node(from, v);
    Value *operands =
        arena_alloc(l->ctx->arena, sizeof *operands * (n->n_operands + l->n_constants[body]));
    to->loc = n->loc;
    to->epoch = n->epoch;
    for (uint32_t i = 0; i < n->n_operands; i++) operands[i] = map[graph_operand(from, v, i)];
    for (uint32_t i = 0; i < l->n_constants[body]; i++)
        operands[n->n_operands + i] =
            constant_of_body(graph_body(from, body)->g, l->constants[body][i], to);
    return scan_emit(to, operands, l->body[body], attr_i(from, v, A_TRIPS, 0),
                     attr_i(from, v, A_REVERSE, 0) != 0, (uint32_t)attr_i(from, v, A_RESULT, 0));
}

static void lift_constants(PassContext *ctx, const bool *used) {
    Graph *from = ctx->g;
    const uint32_t n = from->n_bodies;
    Lift l = {.ctx = ctx,
              .from = from,
              .body = arena_alloc(ctx->arena, sizeof *l.body * (n + 1)),
              .constants = arena_alloc(ctx->arena, sizeof *l.constants * (n + 1)),
              .n_constants = arena_alloc(ctx->arena, sizeof *l.n_constants * (n + 1))};
    bool any = false;
    for (uint32_t i = 1; i <= n; i++) {
        if (used[i]) lift_body(&l, i, from);
        any |= l.n_constants[i] > 0;
    }
    if (!any) return;
    pass_rewrite(ctx, visit_scan, &l);
    graph_free(from);
}

bool pass_bodies(PassContext *ctx, PassFn *pass) {
    if (!ctx->g->n_bodies) return true;
    const bool *used = bodies_in_use(ctx);
    bool holds = true;
    for (uint32_t i = 1; i <= ctx->g->n_bodies && holds; i++) {
        if (!used[i]) continue;
        PassContext sub = *ctx;
        sub.g = graph_body(ctx->g, i)->g;
        holds = pass(&sub);
        if (holds && sub.g != graph_body(ctx->g, i)->g) graph_set_body(ctx->g, i, sub.g);
    }
    if (holds) lift_constants(ctx, used);
    return holds;
}
