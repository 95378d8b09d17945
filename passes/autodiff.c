/* autodiff.c - appends d loss_sum / d parameter for every parameter that trains.
 *
 * In: the output loss_sum of micro. Out: an output grad.NAME of micro for each parameter that the
 * loss reaches, of the parameter's dims, times loss_scale / static_count; nothing else changes.
 * Operands precede users, so one loop from the loss down meets every node after all its users: its
 * gradient is complete and its row in the registry says what the operands get. Only nodes between a
 * training parameter and the loss are visited. Every op without a gradient on that road is
 * reported, all in one run. A parameter that the loss does not reach stops training, with a
 * warning. Where that leaves none, it is an error. */
#include "pass.h"
#include "scan.h"
#include <string.h>

typedef struct Autodiff {
    PassContext *ctx;
    Graph *g;
    bool *depends; /* float, and made from a parameter that trains */
    Value *grads;
} Autodiff;

static bool trains(const Graph *g, Value v) {
    if (graph_op(g, v) != OP_state) return false;
    const State *s = graph_state(g, attr_s(g, v, A_NAME));
    return s && s->trains;
}

static bool *find_dependent(Autodiff *p, Value loss) {
    const Graph *g = p->g;
    bool *depends = arena_alloc(p->ctx->arena, loss + 1);
    for (Value v = 1; v <= loss; v++) {
        if (dtype_info[graph_type_at(g, v)->dtype].cls != CLASS_FLT) continue;
        depends[v] = trains(g, v);
        for (uint32_t i = 0; i < graph_node(g, v)->n_operands && !depends[v]; i++)
            depends[v] = depends[graph_operand(g, v, i)];
    }
    return depends;
}

/* Some training parameter that v is made from. */
static const char *parameter_behind(const Autodiff *p, Value v) {
    const Graph *g = p->g;
    while (graph_op(g, v) != OP_state) {
        uint32_t i = 0;
        while (!p->depends[graph_operand(g, v, i)]) i++;
        v = graph_operand(g, v, i);
    }
    return attr_s(g, v, A_NAME);
}

static bool has_gradient(OpCode op) {
    return op_info[op].grad || op_info[op].vjp || op_info[op].lower == LOWER_LEAF;
}

/* All nodes that are one loop have their gradients when the first of them is met. */
static bool is_first_of_loop(const Graph *g, Value v) {
    for (Value u = 1; u < v; u++)
        if (graph_op(g, u) == OP_scan && scans_are_siblings(g, u, v)) return false;
    return true;
}

static void visit_loop(Autodiff *p, Value v, Value loss, Value *d) {
    Graph *g = p->g;
    const Body *b = scan_body(g, v);
    uint32_t n = graph_node(g, v)->n_operands;
    Value *dy = arena_alloc(p->ctx->arena, sizeof *dy * (b->n_carries + b->n_ys + 1));
    bool *needs = arena_alloc(p->ctx->arena, n + 1), any = false;
    for (Value u = v; u <= loss; u++) {
        if (!p->grads[u] || !p->depends[u] || !scans_are_siblings(g, u, v)) continue;
        dy[attr_i(g, u, A_RESULT, 0)] = p->grads[u];
        any = true;
    }
    for (uint32_t i = 0; i < n; i++) needs[i] = p->depends[graph_operand(g, v, i)];
    if (!any) return;
    g->loc = graph_loc_derived(g, LOC_GRADIENT, graph_node(g, v)->loc);
    scan_vjp(g, v, dy, needs, parameter_behind(p, v), d);
}

static void visit(Autodiff *p, Value v, Value loss, Value *d) {
    Graph *g = p->g;
    OpCode op = graph_op(g, v);
    LocId loc = graph_node(g, v)->loc;
    if (!has_gradient(op)) {
        diag_no_gradient(g, E_NO_GRADIENT, v, parameter_behind(p, v));
        return;
    }
    uint32_t n = graph_node(g, v)->n_operands;
    if (!n) return;
    g->loc = graph_loc_derived(g, LOC_GRADIENT, loc);
    for (uint32_t i = 0; i < n; i++) d[i] = 0;
    if (op == OP_scan)
        visit_loop(p, v, loss, d);
    else
        op_vjp(g, v, p->grads[v], d);
    for (uint32_t i = 0; i < n; i++) {
        Value o = graph_operand(g, v, i);
        if (d[i] && p->depends[o]) p->grads[o] = gradient_add(g, p->grads[o], d[i]);
    }
}

/* A loop waits for its first node, whichever of its nodes has a gradient. */
static bool is_visited(const Autodiff *p, Value v) {
    const Graph *g = p->g;
    if (graph_op(g, v) != OP_scan) return p->depends[v] && p->grads[v];
    bool any = false; /* its own result may be an integer */
    for (uint32_t i = 0; i < graph_node(g, v)->n_operands; i++)
        any |= p->depends[graph_operand(g, v, i)];
    return any && is_first_of_loop(g, v);
}

static uint32_t most_operands(const Graph *g, Value last) {
    uint32_t most = 1;
    for (Value v = 1; v <= last; v++)
        if (graph_node(g, v)->n_operands > most) most = graph_node(g, v)->n_operands;
    return most;
}

static Value seed(Graph *g, Value loss) {
    const Root *r = graph_root(g, ENTRY_APPLY, false, "static_count");
    g->loc = graph_loc_derived(g, LOC_GRADIENT, graph_node(g, loss)->loc);
    DType dtype = (DType)graph_type_at(g, loss)->dtype;
    return build_cast(g, build_binary(g, OP_div, build_scalar(g, "loss_scale", DT_F32), r->value),
                      dtype);
}

/* ---- what got no gradient ---- */

/* The first op on a road from the state to the loss that lets no gradient through; 0 where no road
 * leads there. */
static Value find_cut(const Autodiff *p, const char *state, Value loss) {
    const Graph *g = p->g;
    bool *below = arena_alloc(p->ctx->arena, loss + 1),
         *on_road = arena_alloc(p->ctx->arena, loss + 1);
    on_road[loss] = true;
    for (Value v = loss; v > 0; v--)
        for (uint32_t i = 0; on_road[v] && i < graph_node(g, v)->n_operands; i++)
            on_road[graph_operand(g, v, i)] = true;
    for (Value v = 1; v <= loss; v++) {
        if (!on_road[v]) continue;
        below[v] = graph_op(g, v) == OP_state && !strcmp(attr_s(g, v, A_NAME), state);
        for (uint32_t i = 0; i < graph_node(g, v)->n_operands && !below[v]; i++)
            below[v] = below[graph_operand(g, v, i)];
        if (below[v] && graph_op(g, v) != OP_state && (p->grads[v] || !p->depends[v])) return v;
    }
    return 0;
}

/* A parameter that the loss does not reach, or reaches only through ops without a gradient, stops
 * training. Where none is left, the ops that cut them off are what is wrong. */
static void report_untrained(Autodiff *p, const Value *of_state, uint32_t n_trained, Value loss) {
    Graph *g = p->g;
    ArenaMark mark = arena_mark(p->ctx->arena);
    for (uint32_t i = 0; i < g->n_states; i++) {
        State *s = &g->states[i];
        if (!s->trains || of_state[i]) continue;
        Value cut = find_cut(p, s->name, loss);
        diag_no_gradient(g, cut && !n_trained ? E_NO_GRADIENT : W_UNTRAINED, cut, s->name);
        s->trains = false;
        arena_release(p->ctx->arena, mark);
    }
    if (!n_trained && !diag_has_errors(g)) diag_add(g, E_NOTHING_TRAINS, 0);
}

/* Outputs in the order of the states. */
static void add_outputs(Autodiff *p, Value loss) {
    Graph *g = p->g;
    Value *of_state = arena_alloc(p->ctx->arena, sizeof *of_state * (g->n_states + 1));
    uint32_t n = 0;
    for (Value v = 1; v <= loss; v++)
        if (p->grads[v] && trains(g, v))
            of_state[graph_state(g, attr_s(g, v, A_NAME)) - g->states] = p->grads[v];
    for (uint32_t i = 0; i < g->n_states; i++) {
        if (!of_state[i]) continue;
        graph_add_root(g, ENTRY_MICRO, false, grad_name(g, g->states[i].name), of_state[i]);
        n++;
    }
    report_untrained(p, of_state, n, loss);
}

/* The loop of which the gradient reads more than the model does stands in the place of the model's.
 */
static Value extend_loop(void *pass, const Graph *from, Value v, Graph *to, const Value *map) {
    const bool *depends = pass;
    if (graph_op(from, v) != OP_scan || !depends[v]) return 0;
    uint32_t n = graph_node(from, v)->n_operands;
    Value *operands = arena_alloc(to->arena, n * sizeof *operands);
    for (uint32_t i = 0; i < n; i++) operands[i] = map[graph_operand(from, v, i)];
    return scan_emit(to, operands, scan_extended(to, (uint32_t)attr_i(from, v, A_BODY, 0)),
                     attr_i(from, v, A_TRIPS, 0), attr_i(from, v, A_REVERSE, 0) != 0,
                     (uint32_t)attr_i(from, v, A_RESULT, 0));
}

/* Is v a loop that depends on a parameter? With its siblings it may lie beyond the loss: marked are
 * all that have a dependent operand. */
static bool extend_loops(PassContext *ctx, Value loss) {
    Graph *g = ctx->g;
    bool *depends = arena_alloc(ctx->arena, g->n_nodes), any = false;
    memcpy(depends, find_dependent(&(Autodiff){.ctx = ctx, .g = g}, loss), loss + 1);
    for (Value v = 1; v < g->n_nodes; v++) {
        if (graph_op(g, v) != OP_scan) continue;
        for (uint32_t i = 0; i < graph_node(g, v)->n_operands; i++)
            depends[v] |= depends[graph_operand(g, v, i)];
        any |= depends[v];
    }
    if (any) pass_rewrite(ctx, extend_loop, depends);
    return any;
}

bool pass_autodiff(PassContext *ctx) {
    Graph *given = ctx->g, *g = given;
    Value loss = graph_root(g, ENTRY_MICRO, false, "loss_sum")
                     ? graph_root(g, ENTRY_MICRO, false, "loss_sum")->value
                     : 0;
    if (!loss || !graph_root(g, ENTRY_APPLY, false, "static_count")) {
        diag_add(g, E_OPTION, 0, "this graph has its gradients already");
        return false;
    }
    if (extend_loops(ctx, loss)) {
        g = ctx->g;
        loss = graph_root(g, ENTRY_MICRO, false, "loss_sum")->value;
    }
    Autodiff p = {.ctx = ctx, .g = g};
    p.depends = find_dependent(&p, loss);
    p.grads = arena_alloc(ctx->arena, sizeof *p.grads * (loss + 1));
    Value *d = arena_alloc(ctx->arena, sizeof *d * most_operands(g, loss));
    p.grads[loss] = seed(g, loss);
    for (Value v = loss; v > 0; v--)
        if (is_visited(&p, v)) visit(&p, v, loss, d);
    g->loc = 0;
    if (diag_has_errors(g)) return false;
    add_outputs(&p, loss);
    if (diag_has_errors(g)) return false;
    pass_rewrite(ctx, NULL,
                 NULL); /* leaves behind what nothing reads, such as the gradients of inputs */
    if (g != given) graph_free(g);
    return true;
}
