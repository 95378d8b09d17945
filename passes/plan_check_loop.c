/* plan_check_loop.c - does a LOOP group hold? Its body must be the one that its nodes name, with
 * every root that the outs and each other need; the body's own plan must be sound; and each of the
 * body's buffers must lie where the plan around it says that the value is.
 *
 * plan_check.c proves the rest: that operands are in memory, that what a loop writes overlaps
 * nothing that it reads. Together with the body's proof, in which every lasting buffer lies apart
 * and changes by its root alone, one turn leaves to the next just the carries. */
#include "planning.h"
#include "scan.h"
#include <stdarg.h>
#include <string.h>

typedef struct LoopCheck {
    const Graph *g;
    const Plan *plan;
    const Group *group;
    const EntryPlan *ep;
    const PlanLoop *loop;
    const Body *body;
    const bool *live; /* of loop->body */
    FILE *out;
} LoopCheck;

static bool fault(const LoopCheck *c, const char *format, ...) {
    if (!c->out) return false;
    va_list args;
    va_start(args, format);
    fprintf(c->out, "plan: ");
    vfprintf(c->out, format, args);
    fputc('\n', c->out);
    va_end(args);
    return false;
}

static Value out_with(const LoopCheck *c, uint32_t result) {
    for (uint32_t i = 0; i < c->group->n_outs; i++)
        if (attr_i(c->g, c->group->outs[i], A_RESULT, -1) == (int64_t)result)
            return c->group->outs[i];
    return 0;
}

/* The buffer in which the whole operand lies from the first byte on; 0: it does not. */
static uint32_t dense_operand(const LoopCheck *c, uint32_t i) {
    int64_t offset, strides[MAX_RANK];
    Value v = graph_operand(c->g, c->group->anchor, i),
          base = plan_view_affine(c->g, c->ep->buffer_of, v, &offset, strides);
    bool fits = base && offset == 0 && type_is_dense(graph_type_at(c->g, v), strides);
    return fits ? c->ep->buffer_of[base] : 0;
}

static bool check_nodes(const LoopCheck *c) {
    const Group *group = c->group;
    for (uint32_t i = 0; i < group->n_nodes; i++)
        if (!scans_are_siblings(c->g, group->anchor, group->nodes[i]))
            return fault(c, "nodes of one loop differ in more than their result");
    for (uint32_t i = 0; i < group->n_outs; i++)
        if (out_with(c, (uint32_t)attr_i(c->g, group->outs[i], A_RESULT, 0)) != group->outs[i])
            return fault(c, "two outs of a loop are one result");
    for (uint32_t i = 0; i < graph_node(c->g, group->anchor)->n_operands; i++) {
        double number;
        if (i < c->body->n_carries &&
            const_splat(c->g, graph_operand(c->g, group->anchor, i), &number))
            continue;
        if (!dense_operand(c, i)) return fault(c, "operand %u of a loop is not dense in memory", i);
    }
    return c->loop->trips == attr_i(c->g, group->anchor, A_TRIPS, -1) &&
           c->loop->is_reverse == (attr_i(c->g, group->anchor, A_REVERSE, 0) != 0);
}

/* ---------------------------------------------------------------- the body's roots */

static bool is_root(const LoopCheck *c, bool is_update, char kind, uint32_t i) {
    char name[BODY_LEAF];
    return graph_root(c->loop->body, ENTRY_MICRO, is_update, body_leaf(name, kind, i)) != NULL;
}

/* Is the leaf of that name live in what is planned? */
static bool is_read(const LoopCheck *c, OpCode op, const char *name) {
    for (Value v = 1; v < c->loop->body->n_nodes; v++)
        if (c->live[v] && graph_op(c->loop->body, v) == op &&
            !strcmp(attr_s(c->loop->body, v, A_NAME), name))
            return true;
    return false;
}

static bool check_roots(const LoopCheck *c) {
    const Entry *have = &c->loop->body->entries[ENTRY_MICRO];
    for (uint32_t i = 0; i < have->n; i++) {
        const Root *r = &have->roots[i],
                   *all = graph_root(c->body->g, ENTRY_MICRO, r->is_update, r->name);
        if (!all || all->value != r->value)
            return fault(c, "a loop runs another body's %s", r->name);
    }
    for (uint32_t i = 0; i < c->body->n_ys; i++)
        if (out_with(c, c->body->n_carries + i) && !is_root(c, false, 'y', i))
            return fault(c, "a loop does not make its result %u", c->body->n_carries + i);
    for (uint32_t i = 0; i < c->body->n_carries; i++) {
        char name[BODY_LEAF];
        body_leaf(name, 'c', i);
        bool changes = graph_root(c->body->g, ENTRY_MICRO, true, name) != NULL;
        if ((out_with(c, i) || is_read(c, OP_state, name)) && changes && !is_root(c, true, 'c', i))
            return fault(c, "a loop leaves out the update of %s", name);
    }
    return true;
}

/* ---------------------------------------------------------------- places */

static bool same_place(const PlanPlace *p, uint32_t buffer, int64_t step_bytes, const PlanLoop *l) {
    int64_t first = l->is_reverse && l->trips > 0 ? (l->trips - 1) * step_bytes : 0;
    return p->is_bound && buffer && p->buffer == buffer && p->offset == (uint64_t)first &&
           p->stride == (l->is_reverse ? -step_bytes : step_bytes);
}

static bool holds_all(const LoopCheck *c, uint32_t buffer, uint64_t bytes) {
    return bytes <= c->plan->buffers[buffer - 1].bytes;
}

/* Slices, whole operands, stacked results: `moves` says whether they lie one step further each
 * turn. */
static bool check_moving(const LoopCheck *c, const PlanPlace *p, const Buffer *b, uint32_t buffer,
                         bool moves) {
    uint64_t bytes = type_bytes(&c->loop->body->types[b->type]);
    uint64_t all = moves ? bytes * (uint64_t)c->loop->trips : bytes;
    return (same_place(p, buffer, moves ? (int64_t)bytes : 0, c->loop) &&
            holds_all(c, buffer, all)) ||
           fault(c, "%s of a loop's body lies elsewhere than its operand or out", b->symbol);
}

static bool check_carry(const LoopCheck *c, const PlanPlace *p, const Buffer *b, uint32_t i) {
    Value out = out_with(c, i), first = graph_operand(c->g, c->group->anchor, i);
    bool needed = out || is_read(c, OP_state, b->symbol);
    uint32_t n = 0;
    if (!needed && !p->is_bound) return true;
    if (!p->is_bound || !p->buffer || p->offset || p->stride ||
        (out && p->buffer != c->ep->buffer_of[out]) ||
        !holds_all(c, p->buffer, type_bytes(&c->loop->body->types[b->type])))
        return fault(c, "carry %s lies elsewhere than its last value", b->symbol);
    for (uint32_t k = 0; k < c->loop->n_inits; k++) {
        const Group *init = &c->loop->inits[k];
        if (init->to != p->buffer) continue;
        if (init->kind != GROUP_COPY || init->nodes[0] != first)
            return fault(c, "carry %s begins with another's first value", b->symbol);
        n++;
    }
    return n == 1 || fault(c, "carry %s gets %u first values", b->symbol, n);
}

static bool check_place(const LoopCheck *c, uint32_t i) {
    const Buffer *b = &c->loop->plan->buffers[i];
    const PlanPlace *p = &c->loop->places[i];
    if (b->constant) return fault(c, "a body reads a constant that is no operand of its loop");
    if (!b->symbol)
        return (b->offset >= c->loop->own_offset && p->is_bound && !p->buffer && !p->stride &&
                p->offset == b->offset - c->loop->own_offset &&
                p->offset + b->bytes <= c->group->workspace_bytes) ||
               fault(c, "a buffer of a loop's body lies outside the workspace");
    if (b->offset + b->bytes > c->loop->own_offset)
        return fault(c, "%s lies among what the body alone knows", b->symbol);
    uint32_t at = loop_leaf_number(b->symbol), n_carries = c->body->n_carries;
    if (b->cls == BUF_IO) {
        Value out = out_with(c, n_carries + at);
        return check_moving(c, p, b, out ? c->ep->buffer_of[out] : 0, true);
    }
    if (b->cls != BUF_INPUTS) return check_carry(c, p, b, at);
    if (!is_read(c, OP_input, b->symbol)) return true;
    bool moves = b->symbol[0] == 'x';
    uint32_t operand = n_carries + at + (moves ? 0 : c->body->n_scanned);
    return check_moving(c, p, b, dense_operand(c, operand), moves);
}

bool plan_check_loop(const Graph *g, const Plan *plan, const Group *group, FILE *out) {
    LoopCheck c = {.g = g,
                   .plan = plan,
                   .group = group,
                   .ep = &plan->entries[group->entry],
                   .loop = group->loop,
                   .body = scan_body(g, group->anchor),
                   .out = out};
    if (!c.loop || !c.loop->plan) return fault(&c, "the body of a loop is not planned");
    Arena *arena = arena_new();
    c.live = graph_reachable(c.loop->body, arena, ENTRY_MICRO);
    bool holds = (check_nodes(&c) || fault(&c, "a loop's nodes do not fit")) && check_roots(&c);
    for (uint32_t i = 0; i < c.loop->plan->n_buffers && holds; i++) holds = check_place(&c, i);
    holds = holds && plan_check(c.loop->body, c.loop->plan, out);
    arena_free(arena);
    return holds;
}
