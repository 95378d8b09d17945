/* vjp_scan.c - the gradient of a loop is one loop the other way round.
 *
 * The forward loop also stacks each carry as it was before the step, and its contractions or the
 * sums that they go into; the step of the backward loop lays the forward step over holes that read
 * those stacks (so all cheap values are computed again, no contraction is) and walks it from its
 * roots down with op_vjp. What it carries are the gradients of the carries; gradients of slices are
 * stacked; those of invariants are sums over the steps, see scan_sum.c. Carries that no gradient
 * reaches, and operands that no trained parameter is behind, take no part. */
#include "intern.h"
#include "scan_sum.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

static bool is_float(const Graph *g, Value v) {
    return dtype_info[graph_type_at(g, v)->dtype].cls == CLASS_FLT;
}

/* ---------------------------------------------------------------- what the forward loop keeps */

/* The output of the body that is node v; n_ys where there is none. */
static uint32_t output_of(const Body *b, Value v) {
    const Entry *entry = &b->g->entries[ENTRY_MICRO];
    for (uint32_t i = 0; i < entry->n; i++)
        if (!entry->roots[i].is_update && entry->roots[i].value == v)
            return (uint32_t)strtoul(entry->roots[i].name + 1, NULL, 10);
    return b->n_ys;
}

static Value carry_node(const Body *b, uint32_t i) {
    char name[BODY_LEAF];
    body_leaf(name, 'c', i);
    for (Value v = 1; v < b->g->n_nodes; v++)
        if (graph_op(b->g, v) == OP_state && strcmp(attr_s(b->g, v, A_NAME), name) == 0) return v;
    return 0;
}

/* The only node that reads v; 0 where there are others or none. */
static Value only_user(const Graph *g, const bool *live, Value v) {
    Value user = 0;
    for (Value u = v + 1; u < g->n_nodes; u++)
        for (uint32_t i = 0; live[u] && i < graph_node(g, u)->n_operands; i++) {
            if (graph_operand(g, u, i) != v) continue;
            if (user) return 0;
            user = u;
        }
    return user;
}

/* kept[v]: the contractions, or the sum that alone reads one: then what was added to it need not be
 * kept as well. */
static bool *kept_nodes(const Graph *g, Arena *arena) {
    bool *kept = arena_alloc(arena, g->n_nodes);
    const bool *live = graph_reachable(g, arena, ENTRY_MICRO);
    for (Value v = 1; v < g->n_nodes; v++) {
        Value last = v, u;
        if (!live[v] || !is_float(g, v) || op_info[graph_op(g, v)].lower != LOWER_CONTRACT)
            continue;
        while ((u = only_user(g, live, last)) &&
               (graph_op(g, u) == OP_add || graph_op(g, u) == OP_sub))
            last = u;
        kept[last] = graph_type_at(g, last)->rank < MAX_RANK;
    }
    return kept;
}

static void add_output(Body *b, Value v) {
    char name[BODY_LEAF];
    if (output_of(b, v) < b->n_ys) return;
    graph_add_root(b->g, ENTRY_MICRO, false, body_leaf(name, 'y', b->n_ys), v);
    b->n_ys++;
}

uint32_t scan_extended(Graph *g, uint32_t body) {
    Body b = *graph_body(g, body);
    Arena *scratch = arena_new();
    const Graph *from = b.g;
    b.g = graph_copy_empty(from);
    graph_rewrite(from, b.g, NULL, NULL, arena_alloc(scratch, from->n_nodes * sizeof(Value)));
    for (uint32_t i = 0; i < b.n_carries; i++)
        if (carry_node(&b, i) && graph_type_at(b.g, carry_node(&b, i))->rank < MAX_RANK)
            add_output(&b, carry_node(&b, i));
    const bool *kept = kept_nodes(b.g, scratch);
    for (Value v = 1, n = b.g->n_nodes; v < n; v++)
        if (kept[v]) add_output(&b, v);
    arena_free(scratch);
    return graph_add_body(g, b);
}

/* ---------------------------------------------------------------- one backward step */

typedef struct Back {
    Graph *g;
    Arena *scratch;
    Body held; /* the extended body */
    const Value *operands;
    uint32_t body_index;
    int64_t trips;
    bool is_reverse;
    const Value *dy; /* per result */
    const char *parameter;
    bool *active;            /* per node of the body: float, and made from what needs a gradient */
    bool *carries;           /* per carry: takes part */
    bool *kept;              /* per node of the body: read from its stack */
    Value *map;              /* node of the body -> node over holes */
    Value *grads;            /* per node of the body */
    Value *d_carry, *d_next; /* per carry: hole, and what the step before gets */
    Value *xs, *x;           /* what the step scans, and holes */
    uint32_t n_x;
    Value t;
} Back;

static Value result_of(Back *p, uint32_t result) {
    return scan_emit(p->g, p->operands, p->body_index, p->trips, p->is_reverse, result);
}

static Value slice_hole(Back *p, Value whole) {
    Type t = *graph_type_at(p->g, whole);
    memmove(t.dims, t.dims + 1, (MAX_RANK - 1) * sizeof *t.dims);
    t.dims[--t.rank] = 0;
    for (uint32_t i = 0; i < p->n_x; i++)
        if (p->xs[i] == whole) return p->x[i];
    p->xs[p->n_x] = whole;
    p->x[p->n_x] = scan_hole(p->g, graph_type(p->g, t));
    return p->x[p->n_x++];
}

static const char *leaf_name(const Graph *g, Value v) {
    OpCode op = graph_op(g, v);
    return op == OP_state || op == OP_input ? attr_s(g, v, A_NAME) : NULL;
}

/* The forward step over holes. */
static void lay_forward(Back *p) {
    const Body *b = &p->held;
    uint32_t n = body_n_operands(b);
    Value *operands = arena_alloc(p->scratch, (n + 1) * sizeof *operands);
    for (uint32_t i = 0; i < n; i++) {
        Value carry = i < b->n_carries ? carry_node(b, i) : 0;
        uint32_t kept = carry ? output_of(b, carry) : b->n_ys;
        if (i >= b->n_carries + b->n_scanned)
            operands[i] = p->operands[i];
        else if (i >= b->n_carries)
            operands[i] = slice_hole(p, p->operands[i]);
        else if (kept < b->n_ys)
            operands[i] = slice_hole(p, result_of(p, b->n_carries + kept));
        else
            operands[i] = p->operands[i]; /* the body does not read it */
    }
    p->t = scan_hole(p->g, graph_type_of(p->g, DT_I64, 0, NULL));
    for (Value v = 1; v < b->g->n_nodes; v++)
        if (p->kept[v] && output_of(b, v) < b->n_ys)
            p->map[v] = slice_hole(p, result_of(p, b->n_carries + output_of(b, v)));
    body_lay(p->g, b, operands, p->t, p->map);
}

/* A kept node over what it is made from. */
static Value real_node(Back *p, Value v) {
    const Graph *from = p->held.g;
    uint32_t n = graph_node(from, v)->n_operands;
    Value operands[2];
    if (!p->kept[v]) return p->map[v];
    assert(n <= 2);
    for (uint32_t i = 0; i < n; i++) operands[i] = p->map[graph_operand(from, v, i)];
    return node_carry_over(p->g, from, v, operands);
}

static void mark_active(Back *p, const bool *needs) {
    const Body *b = &p->held;
    const Graph *g = b->g;
    bool *is_carry_active = arena_alloc(p->scratch, b->n_carries + 1), changed = true;
    for (uint32_t i = 0; i < b->n_carries; i++) is_carry_active[i] = needs[i];
    while (changed) {
        changed = false;
        for (Value v = 1; v < g->n_nodes; v++) {
            const char *leaf = leaf_name(g, v);
            p->active[v] = leaf && (leaf[0] == 'c' ? is_carry_active[body_operand(b, leaf)]
                                                   : needs[body_operand(b, leaf)]);
            for (uint32_t i = 0; !p->active[v] && i < graph_node(g, v)->n_operands; i++)
                p->active[v] = p->active[graph_operand(g, v, i)];
            p->active[v] &= is_float(g, v);
        }
        for (uint32_t i = 0; i < g->entries[ENTRY_MICRO].n; i++) {
            const Root *r = &g->entries[ENTRY_MICRO].roots[i];
            uint32_t at = r->is_update ? body_operand(b, r->name) : 0;
            if (!r->is_update || !p->active[r->value] || is_carry_active[at]) continue;
            is_carry_active[at] = changed = true;
        }
    }
    for (uint32_t i = 0; i < b->n_carries; i++) p->carries[i] = is_carry_active[i] && p->dy[i];
}

static void seed_roots(Back *p) {
    const Entry *entry = &p->held.g->entries[ENTRY_MICRO];
    for (uint32_t i = 0; i < entry->n; i++) {
        const Root *r = &entry->roots[i];
        if (!p->active[r->value]) continue;
        uint32_t at = (uint32_t)strtoul(r->name + 1, NULL, 10);
        Value dy = r->is_update ? 0 : p->dy[p->held.n_carries + at];
        Value d = r->is_update ? p->d_carry[at] : dy ? slice_hole(p, dy) : 0;
        p->grads[r->value] = gradient_add(p->g, p->grads[r->value], d);
    }
}

static bool has_gradient(OpCode op) {
    return op_info[op].grad || op_info[op].vjp || op_info[op].lower == LOWER_LEAF;
}

static void report(Back *p, Value v) {
    const Graph *b = p->held.g;
    const Loc *loc = &b->locs[graph_node(b, v)->loc];
    const char *op = *loc->op ? loc->op : op_info[graph_op(b, v)].name;
    diag_add(p->g, E_NO_GRADIENT, loc_carry_over(p->g, b, graph_node(b, v)->loc), op, p->parameter);
}

/* Loops within: all nodes that are one loop together, at the first of them. */
static bool inner_loop(Back *p, Value v, Value *d) {
    const Graph *from = p->held.g;
    const Body *inner = scan_body(from, v);
    for (Value u = 1; u < v; u++)
        if (scans_are_siblings(from, u, v)) return false;
    uint32_t n = inner->n_carries + inner->n_ys;
    Value *dy = arena_alloc(p->scratch, (n + 1) * sizeof *dy);
    bool *needs = arena_alloc(p->scratch, body_n_operands(inner) + 1);
    for (Value u = v; u < from->n_nodes; u++)
        if (scans_are_siblings(from, u, v) && p->active[u])
            dy[attr_i(from, u, A_RESULT, 0)] = p->grads[u];
    for (uint32_t i = 0; i < body_n_operands(inner); i++)
        needs[i] = p->active[graph_operand(from, v, i)];
    return scan_vjp(p->g, p->map[v], dy, needs, p->parameter, d);
}

static void visit(Back *p, Value v) {
    const Graph *from = p->held.g;
    uint32_t n = graph_node(from, v)->n_operands;
    Value *d = arena_alloc(p->scratch, (n + 1) * sizeof *d);
    if (!has_gradient(graph_op(from, v))) {
        report(p, v);
        return;
    }
    p->g->loc =
        graph_loc_derived(p->g, LOC_GRADIENT, loc_carry_over(p->g, from, graph_node(from, v)->loc));
    if (graph_op(from, v) == OP_scan)
        inner_loop(p, v, d);
    else if (n)
        op_vjp(p->g, real_node(p, v), p->grads[v], d);
    for (uint32_t i = 0; i < n; i++) {
        Value o = graph_operand(from, v, i);
        if (d[i] && p->active[o]) p->grads[o] = gradient_add(p->g, p->grads[o], d[i]);
    }
}

/* A loop is visited at its first node, where any of its nodes has a gradient. */
static bool is_reached(const Back *p, Value v) {
    const Graph *g = p->held.g;
    bool any = p->grads[v] && p->active[v];
    if (graph_op(g, v) == OP_scan)
        for (Value u = v + 1; !any && u < g->n_nodes; u++)
            any = p->grads[u] && p->active[u] && scans_are_siblings(g, u, v);
    return any;
}

/* One step, with the carries of p->carries; true where no other carry turns out to get a gradient.
 */
static bool lay_backward(Back *p) {
    const Body *b = &p->held;
    const Entry *entry = &b->g->entries[ENTRY_MICRO];
    memset(p->grads, 0, b->g->n_nodes * sizeof *p->grads);
    for (uint32_t i = 0; i < b->n_carries; i++) {
        TypeId type = graph_node(p->g, p->operands[i])->type;
        p->d_carry[i] = p->carries[i] ? scan_hole(p->g, type) : 0;
        p->d_next[i] = p->d_carry[i];
    }
    for (uint32_t i = 0; i < entry->n; i++)
        if (entry->roots[i].is_update) p->d_next[strtoul(entry->roots[i].name + 1, NULL, 10)] = 0;
    seed_roots(p);
    for (Value v = b->g->n_nodes; v-- > 1;)
        if (is_reached(p, v)) visit(p, v);
    bool ok = true;
    for (uint32_t i = 0; i < b->n_carries; i++) {
        Value leaf = carry_node(b, i);
        if (leaf && p->active[leaf])
            p->d_next[i] = gradient_add(p->g, p->d_next[i], p->grads[leaf]);
        ok &= !p->d_next[i] || p->carries[i];
    }
    return ok;
}

/* ---------------------------------------------------------------- the backward loop */

static Value zeros(Graph *g, Value like) { return build_splat(g, graph_node(g, like)->type, 0); }

static Value leaf_grad(const Back *p, char kind, uint32_t i) {
    const Graph *g = p->held.g;
    char name[BODY_LEAF];
    body_leaf(name, kind, i);
    for (Value v = 1; v < g->n_nodes; v++) {
        const char *leaf = leaf_name(g, v);
        if (leaf && strcmp(leaf, name) == 0 && p->active[v]) return p->grads[v];
    }
    return 0;
}

static void add_carries(Back *p, LoopSum *s) {
    for (uint32_t i = 0; i < p->held.n_carries; i++) {
        if (!p->carries[i]) continue;
        Value like = p->operands[i];
        loop_carry(s, p->dy[i] ? p->dy[i] : zeros(p->g, like), p->d_carry[i],
                   p->d_next[i] ? p->d_next[i] : zeros(p->g, like));
    }
}

static bool build_backward(Back *p, const bool *needs, Value *d) {
    const Body *b = &p->held;
    uint32_t x0 = b->n_carries, w0 = x0 + b->n_scanned, n = 0;
    LoopSum s = {.g = p->g,
                 .scratch = p->scratch,
                 .trips = p->trips,
                 .n_x = p->n_x,
                 .xs = p->xs,
                 .x = p->x,
                 .t = p->t,
                 .is_reverse = !p->is_reverse};
    s.name = arena_printf(p->g->arena, "%s.gradient", b->name);
    uint32_t *y_of = arena_alloc(p->scratch, (b->n_scanned + 1) * sizeof *y_of);
    Value *dw = arena_alloc(p->scratch, (b->n_invariants + 1) * sizeof *dw);
    add_carries(p, &s);
    for (uint32_t i = 0; i < b->n_scanned; i++) {
        Value dx = needs[x0 + i] ? leaf_grad(p, 'x', i) : 0;
        y_of[i] = dx ? loop_stack(&s, dx) + 1 : 0;
    }
    for (uint32_t i = 0; i < b->n_invariants; i++) dw[i] = needs[w0 + i] ? leaf_grad(p, 'w', i) : 0;
    if (!loop_sums(&s, dw, b->n_invariants)) return false;
    for (uint32_t i = 0; i < b->n_carries; i++)
        if (p->carries[i]) d[i] = s.finals[n++];
    for (uint32_t i = 0; i < b->n_scanned; i++)
        if (y_of[i]) d[x0 + i] = s.stacks[y_of[i] - 1];
    for (uint32_t i = 0; i < b->n_invariants; i++) d[w0 + i] = dw[i];
    return true;
}

static void back_alloc(Back *p, uint32_t n_nodes) {
    const Body *b = &p->held;
    uint32_t n_x = b->n_carries + b->n_scanned + 2 * b->n_ys + 1;
    p->active = arena_alloc(p->scratch, n_nodes * sizeof *p->active);
    p->carries = arena_alloc(p->scratch, b->n_carries + 1);
    p->kept = kept_nodes(b->g, p->scratch);
    p->map = arena_alloc(p->scratch, n_nodes * sizeof *p->map);
    p->grads = arena_alloc(p->scratch, n_nodes * sizeof *p->grads);
    p->d_carry = arena_alloc(p->scratch, (b->n_carries + 1) * sizeof *p->d_carry);
    p->d_next = arena_alloc(p->scratch, (b->n_carries + 1) * sizeof *p->d_next);
    p->xs = arena_alloc(p->scratch, n_x * sizeof *p->xs);
    p->x = arena_alloc(p->scratch, n_x * sizeof *p->x);
}

/* dy of the extended body's results: those it adds have none. */
static const Value *extended_dy(const Back *p, const Value *dy, uint32_t n) {
    Value *all = arena_alloc(p->scratch, (p->held.n_carries + p->held.n_ys + 1) * sizeof *all);
    memcpy(all, dy, n * sizeof *all);
    return all;
}

bool scan_vjp(Graph *g, Value scan, const Value *dy, const bool *needs, const char *parameter,
              Value *d) {
    Back p = {.g = g,
              .scratch = arena_new(),
              .parameter = parameter,
              .trips = attr_i(g, scan, A_TRIPS, 0),
              .is_reverse = attr_i(g, scan, A_REVERSE, 0) != 0};
    LocId loc = g->loc;
    uint32_t n = graph_node(g, scan)->n_operands;
    Body given = *scan_body(g, scan);
    p.body_index = scan_extended(g, (uint32_t)attr_i(g, scan, A_BODY, 0));
    p.held = *graph_body(g, p.body_index);
    Value *operands = arena_alloc(p.scratch, (n + 1) * sizeof *operands);
    for (uint32_t i = 0; i < n; i++) operands[i] = graph_operand(g, scan, i);
    p.operands = operands;
    p.dy = extended_dy(&p, dy, given.n_carries + given.n_ys);
    back_alloc(&p, p.held.g->n_nodes);
    mark_active(&p, needs);
    lay_forward(&p);
    while (!lay_backward(&p) && !diag_has_errors(g))
        for (uint32_t i = 0; i < p.held.n_carries; i++) p.carries[i] |= p.d_next[i] != 0;
    g->loc = loc;
    bool ok = !diag_has_errors(g) && build_backward(&p, needs, d);
    arena_free(p.scratch);
    return ok;
}

void vjp_scan(Graph *g, Value v, Value dy, Value *d) {
    const Body *b = scan_body(g, v);
    Arena *scratch = arena_new();
    uint32_t n = graph_node(g, v)->n_operands;
    Value *all = arena_alloc(scratch, (b->n_carries + b->n_ys) * sizeof *all);
    bool *needs = arena_alloc(scratch, n + 1);
    all[attr_i(g, v, A_RESULT, 0)] = dy;
    for (uint32_t i = 0; i < n; i++) needs[i] = is_float(g, graph_operand(g, v, i));
    scan_vjp(g, v, all, needs, "of a loop", d);
    arena_free(scratch);
}
