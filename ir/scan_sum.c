/* scan_sum.c - sums over the steps of a loop, taken out of the loop where that is cheaper.
 *
 * sum_t a_t' b_t over [k, m] and [k, n] is one product of the stacks [trips * k, m] and [trips * k,
 * n]: a weight's gradient reads and writes the weight once instead of once per step. Views, signs
 * and additions between the product and the sum commute with it. */
#include "scan_sum.h"
#include "intern.h"
#include <string.h>

void loop_carry(LoopSum *s, Value first, Value hole, Value next) {
    uint32_t n = s->n_carries++;
    LIST_RESERVE(s->scratch, s->first, n, s->cap_first);
    LIST_RESERVE(s->scratch, s->carry, n, s->cap_carry);
    LIST_RESERVE(s->scratch, s->next, n, s->cap_next);
    s->first[n] = first;
    s->carry[n] = hole;
    s->next[n] = next;
}

uint32_t loop_stack(LoopSum *s, Value v) {
    for (uint32_t i = 0; i < s->n_ys; i++)
        if (s->ys[i] == v) return i;
    LIST_RESERVE(s->scratch, s->ys, s->n_ys, s->cap_ys);
    s->ys[s->n_ys] = v;
    return s->n_ys++;
}

static void mark_inside(LoopSum *s) {
    const Graph *g = s->g;
    s->n_inside = g->n_nodes;
    s->inside = arena_alloc(s->scratch, g->n_nodes);
    for (uint32_t i = 0; i < s->n_carries; i++) s->inside[s->carry[i]] = true;
    for (uint32_t i = 0; i < s->n_x; i++) s->inside[s->x[i]] = true;
    s->inside[s->t] = true;
    for (Value v = 1; v < g->n_nodes; v++)
        for (uint32_t i = 0; !s->inside[v] && i < graph_node(g, v)->n_operands; i++)
            s->inside[v] = s->inside[graph_operand(g, v, i)];
}

static bool is_stacked(const LoopSum *s, Value v) {
    for (uint32_t i = 0; i < s->n_x; i++)
        if (s->x[i] == v) return true;
    for (uint32_t i = 0; i < s->n_ys; i++)
        if (s->ys[i] == v) return true;
    return false;
}

static bool can_be_stacked(const LoopSum *s, Value v) {
    return s->inside[v] && graph_type_at(s->g, v)->rank < MAX_RANK;
}

/* dot over the rows of both operands: [k, m] x [k, n] */
static bool is_outer_product(const LoopSum *s, Value v) {
    const Graph *g = s->g;
    return graph_op(g, v) == OP_dot && graph_type_at(g, v)->rank == 2 &&
           attr_i(g, v, A_TA, 0) == 1 && attr_i(g, v, A_TB, 0) == 0 &&
           can_be_stacked(s, graph_operand(g, v, 0)) && can_be_stacked(s, graph_operand(g, v, 1));
}

static bool commutes(OpCode op) {
    return op == OP_reshape || op == OP_transpose || op == OP_expand || op == OP_neg ||
           op == OP_add || op == OP_sub;
}

/* Can the sum of v over the steps be taken after the loop, from stacks? */
static bool is_taken_out(const LoopSum *s, Value v) {
    const Graph *g = s->g;
    if (!s->inside[v]) return false;
    if (is_stacked(s, v) || is_outer_product(s, v)) return true;
    if (graph_op(g, v) == OP_sum) return is_taken_out(s, graph_operand(g, v, 0));
    bool ok = commutes(graph_op(g, v));
    for (uint32_t i = 0; ok && i < graph_node(g, v)->n_operands; i++)
        ok = is_taken_out(s, graph_operand(g, v, i));
    return ok;
}

static void stack_products(LoopSum *s, Value v) {
    uint32_t n = graph_node(s->g, v)->n_operands;
    if (is_stacked(s, v)) return;
    if (!is_outer_product(s, v)) {
        for (uint32_t i = 0; i < n; i++) stack_products(s, graph_operand(s->g, v, i));
        return;
    }
    for (uint32_t i = 0; i < 2; i++)
        if (!is_stacked(s, graph_operand(s->g, v, i))) loop_stack(s, graph_operand(s->g, v, i));
}

/* ---------------------------------------------------------------- after the loop */

static Value stack_of(const LoopSum *s, Value v) {
    for (uint32_t i = 0; i < s->n_x; i++)
        if (s->x[i] == v) return s->xs[i];
    for (uint32_t i = 0; i < s->n_ys; i++)
        if (s->ys[i] == v) return s->stacks[i];
    return 0;
}

static Value rows_of_all_steps(const LoopSum *s, Value v) {
    const Type *t = graph_type_at(s->g, v);
    int64_t dims[] = {s->trips * t->dims[0], t->dims[1]};
    return build_reshape(s->g, stack_of(s, v), 2, dims);
}

static Value sum_of_stack(const LoopSum *s, Value v) {
    Type t = *graph_type_at(s->g, v);
    int64_t first = 0;
    return build_reshape(s->g, build_reduce(s->g, OP_sum, stack_of(s, v), &first, 1), t.rank,
                         t.dims);
}

static Value sum_of_sum(const LoopSum *s, Value v) {
    Type t = *graph_type_at(s->g, v);
    Value a = graph_operand(s->g, v, 0);
    uint32_t n;
    const int64_t *axes = attr_list(s->g, v, A_AXES, &n);
    int64_t all[MAX_RANK] = {0};
    for (uint32_t i = 0; i < n; i++) all[i + 1] = axes[i] + 1;
    return build_reshape(s->g, build_reduce(s->g, OP_sum, stack_of(s, a), all, n + 1), t.rank,
                         t.dims);
}

static Value sum_after(const LoopSum *s, Value v) {
    Graph *g = s->g;
    OpCode op = graph_op(g, v);
    if (is_stacked(s, v)) return sum_of_stack(s, v);
    Value a = graph_operand(g, v, 0);
    if (op == OP_dot)
        return build_dot(g, rows_of_all_steps(s, a), rows_of_all_steps(s, graph_operand(g, v, 1)),
                         true, false);
    if (op == OP_sum && is_stacked(s, a) && graph_type_at(g, a)->rank < MAX_RANK)
        return sum_of_sum(s, v);
    Value operands[2];
    uint32_t n = graph_node(g, v)->n_operands;
    for (uint32_t i = 0; i < n; i++) operands[i] = sum_after(s, graph_operand(g, v, i));
    return graph_emit(g, op, operands, n, graph_node(g, v)->attr, graph_node(g, v)->type);
}

/* ---------------------------------------------------------------- the whole */

typedef struct Term {
    Value v;
    uint32_t of; /* which of the sums it belongs to */
    bool after;
} Term;
typedef struct Terms {
    Term *at;
    uint32_t n, cap;
} Terms;

static void split_terms(LoopSum *s, Terms *terms, Value v, uint32_t of) {
    if (graph_op(s->g, v) == OP_add && s->inside[v]) {
        split_terms(s, terms, graph_operand(s->g, v, 0), of);
        split_terms(s, terms, graph_operand(s->g, v, 1), of);
        return;
    }
    LIST_RESERVE(s->scratch, terms->at, terms->n, terms->cap);
    terms->at[terms->n++] = (Term){v, of, false};
}

/* What is taken out, in two rounds: products say what is stacked, sums use it. */
static void choose_terms(LoopSum *s, Terms *terms) {
    for (int round = 0; round < 2; round++)
        for (uint32_t i = 0; i < terms->n; i++) {
            Term *t = &terms->at[i];
            if (t->after || !is_taken_out(s, t->v)) continue;
            t->after = true;
            stack_products(s, t->v);
        }
}

/* One carry per sum for the terms that stay inside; its index + 1, or 0. */
static uint32_t add_accumulator(LoopSum *s, const Terms *terms, uint32_t of) {
    Value sum = 0;
    for (uint32_t i = 0; i < terms->n; i++)
        if (terms->at[i].of == of && !terms->at[i].after)
            sum = gradient_add(s->g, sum, terms->at[i].v);
    if (!sum) return 0;
    TypeId type = graph_node(s->g, sum)->type;
    Value hole = scan_hole(s->g, type);
    loop_carry(s, build_splat(s->g, type, 0), hole, gradient_add(s->g, hole, sum));
    return s->n_carries;
}

static bool build(LoopSum *s) {
    ScanSpec spec = {.name = s->name,
                     .n_carries = s->n_carries,
                     .first = s->first,
                     .carry = s->carry,
                     .next = s->next,
                     .n_scanned = s->n_x,
                     .xs = s->xs,
                     .x = s->x,
                     .t = s->t,
                     .n_ys = s->n_ys,
                     .ys = s->ys,
                     .trips = s->trips,
                     .is_reverse = s->is_reverse};
    s->finals = arena_alloc(s->scratch, (s->n_carries + 1) * sizeof *s->finals);
    s->stacks = arena_alloc(s->scratch, (s->n_ys + 1) * sizeof *s->stacks);
    return scan_build(s->g, &spec, s->finals, s->stacks);
}

bool loop_sums(LoopSum *s, Value *v, uint32_t n) {
    Terms terms = {0};
    uint32_t *accumulator = arena_alloc(s->scratch, (n + 1) * sizeof *accumulator);
    mark_inside(s);
    for (uint32_t i = 0; i < n; i++)
        if (v[i]) split_terms(s, &terms, v[i], i);
    choose_terms(s, &terms);
    for (uint32_t i = 0; i < n; i++) accumulator[i] = v[i] ? add_accumulator(s, &terms, i) : 0;
    if (!build(s)) return false;
    for (uint32_t i = 0; i < n; i++) {
        v[i] = accumulator[i] ? s->finals[accumulator[i] - 1] : 0;
        for (uint32_t k = 0; k < terms.n; k++)
            if (terms.at[k].of == i && terms.at[k].after)
                v[i] = gradient_add(s->g, v[i], sum_after(s, terms.at[k].v));
    }
    return true;
}
