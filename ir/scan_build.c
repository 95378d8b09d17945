/* scan_build.c - lifts nodes over holes out of a graph into a body, and lays a body back into a
 * graph.
 *
 * A node belongs to the body where a hole of this loop is below it; all others are outside: small
 * constants and iotas are copied in, reshapes, transposes and expansions of outer values are done
 * again inside (so that no step reads a copy), anything else becomes an invariant. A carry that no
 * step changes is its first value. What is known of all steps ahead becomes one more slice: the row
 * of an outer value that the step's number chooses, of as many as there are steps, and the product
 * of a slice and an outer matrix, which is one product then. Nodes keep their order, and outer
 * values come in where they are first read, so the same ops over other holes make an equal body.
 * Slices that nothing reads are left out. Loops inside keep their bodies, shared. */
#include "scan.h"
#include "intern.h"
#include <assert.h>
#include <string.h>

enum { COPIED_BYTES = 1024 }; /* constants up to here are written into the body */

Value scan_hole(Graph *g, TypeId type) {
    const char *name = arena_printf(g->arena, "%%%u", g->n_nodes);
    AttrField f = attr_str(A_NAME, name);
    return graph_emit(g, OP_input, NULL, 0, graph_attr(g, &f, 1), type);
}

bool is_hole(const Graph *g, Value v) {
    return graph_op(g, v) == OP_input && attr_s(g, v, A_NAME)[0] == '%';
}

/* ---------------------------------------------------------------- nodes from graph to graph */

LocId loc_carry_over(Graph *to, const Graph *from, LocId id) {
    if (!id) return 0;
    Loc l = from->locs[id];
    l.parent = loc_carry_over(to, from, l.parent);
    return graph_loc(to, l);
}

static AttrId attr_carry_over(Graph *to, const Graph *from, Value v) {
    const Attr *a = &from->attrs[from->nodes[v].attr];
    AttrField fields[N_ATTRS];
    for (uint32_t i = 0; i < a->n; i++) {
        fields[i] = a->fields[i];
        if (fields[i].key == A_BODY)
            fields[i].u.i = graph_add_body(to, *graph_body(from, (uint32_t)fields[i].u.i));
    }
    return graph_attr(to, fields, a->n);
}

Value node_carry_over(Graph *to, const Graph *from, Value v, const Value *operands) {
    LocId loc = to->loc;
    to->loc = loc_carry_over(to, from, from->nodes[v].loc);
    Value made = graph_emit(to, graph_op(from, v), operands, from->nodes[v].n_operands,
                            attr_carry_over(to, from, v), graph_type(to, *graph_type_at(from, v)));
    to->loc = loc;
    return made;
}

/* ---------------------------------------------------------------- out of the graph */

typedef struct Lift {
    const Graph *from;
    Graph *to;
    Arena *scratch;
    bool *inside, *needed; /* see mark_inside */
    Value *map;
    Value *invariants;
    uint32_t n_invariants, cap_invariants;
    Value *ahead; /* nodes of the step that are scanned instead */
    uint32_t n_scanned, n_ahead, cap_ahead;
} Lift;

static Value as_input(Graph *to, char kind, uint32_t i, Type type) {
    char name[BODY_LEAF];
    TypeId t = graph_type(to, type);
    graph_add_input(to, (Input){.name = body_leaf(name, kind, i), .type = t, .batch_axis = -1});
    return build_input(to, name);
}

static Value as_carry(Graph *to, uint32_t i, Type type) {
    char name[BODY_LEAF];
    TypeId t = graph_type(to, type);
    graph_add_state(to, (State){.name = body_leaf(name, 'c', i), .type = t, .cls = STATE_CARRY});
    return build_state(to, name);
}

static bool is_copied_in(const Graph *g, Value v) {
    const AttrField *data = graph_op(g, v) == OP_const ? attr_find(g, v, A_DATA) : NULL;
    return graph_op(g, v) == OP_iota || (data && data->n <= COPIED_BYTES);
}

static bool is_view_within(const Graph *g, Value v) {
    OpCode op = graph_op(g, v);
    return op == OP_reshape || op == OP_transpose || op == OP_expand;
}

static Value lift_outer(Lift *l, Value v) {
    if (l->map[v]) return l->map[v];
    if (is_copied_in(l->from, v)) return l->map[v] = node_carry_over(l->to, l->from, v, NULL);
    if (is_view_within(l->from, v)) {
        Value a = lift_outer(l, graph_operand(l->from, v, 0));
        return l->map[v] = node_carry_over(l->to, l->from, v, &a);
    }
    LIST_RESERVE(l->scratch, l->invariants, l->n_invariants, l->cap_invariants);
    l->invariants[l->n_invariants] = v;
    l->map[v] = as_input(l->to, 'w', l->n_invariants++, *graph_type_at(l->from, v));
    return l->map[v];
}

/* t, or where(t < 0, .., t) as importers of indices write it */
static bool is_number_of_step(const Graph *g, Value v, Value t) {
    if (!t) return false;
    if (v == t) return true;
    double zero;
    if (graph_op(g, v) != OP_where || graph_operand(g, v, 2) != t) return false;
    Value test = graph_operand(g, v, 0);
    return graph_op(g, test) == OP_lt && graph_operand(g, test, 0) == t &&
           const_splat(g, graph_operand(g, test, 1), &zero) && zero == 0;
}

static bool is_row_of_step(const Lift *l, const ScanSpec *s, Value v) {
    const Graph *g = l->from;
    if (graph_op(g, v) != OP_gather || l->inside[graph_operand(g, v, 0)]) return false;
    int64_t axis = attr_i(g, v, A_AXIS, 0);
    return is_number_of_step(g, graph_operand(g, v, 1), s->t) &&
           graph_type_at(g, graph_operand(g, v, 0))->dims[axis] == s->trips;
}

static uint32_t slice_index(const ScanSpec *s, Value hole) {
    uint32_t i = 0;
    while (i < s->n_scanned && s->x[i] != hole) i++;
    return i;
}

/* The product of a slice and an outer matrix: of all steps it is one product. */
static bool is_product_of_slice(const Lift *l, const ScanSpec *s, Value v) {
    const Graph *g = l->from;
    if (graph_op(g, v) != OP_dot || graph_type_at(g, v)->rank != 2 || attr_i(g, v, A_TA, 0))
        return false;
    Value a = graph_operand(g, v, 0);
    return !l->inside[graph_operand(g, v, 1)] &&
           (slice_index(s, a) < s->n_scanned || is_row_of_step(l, s, a));
}

/* What is known of all steps before the loop begins. */
static bool is_ahead(const Lift *l, const ScanSpec *s, Value v) {
    return is_row_of_step(l, s, v) || is_product_of_slice(l, s, v);
}

static Value lift_ahead(Lift *l, Value v) {
    LIST_RESERVE(l->scratch, l->ahead, l->n_ahead, l->cap_ahead);
    l->ahead[l->n_ahead] = v;
    return as_input(l->to, 'x', l->n_scanned + l->n_ahead++, *graph_type_at(l->from, v));
}

/* The outer value of which v is the row of a step, that axis first. */
static Value all_rows(Graph *g, Value v) {
    Value whole = graph_operand(g, v, 0);
    int64_t axis = attr_i(g, v, A_AXIS, 0), perm[MAX_RANK] = {axis};
    for (int64_t i = 0, k = 1; i < graph_type_at(g, whole)->rank; i++)
        if (i != axis) perm[k++] = i;
    return axis ? build_transpose(g, whole, perm) : whole;
}

/* v of all steps, stacked. */
static Value stack_ahead(Graph *g, const ScanSpec *s, Value v) {
    if (graph_op(g, v) == OP_gather) return all_rows(g, v);
    Value a = graph_operand(g, v, 0), b = graph_operand(g, v, 1);
    uint32_t i = slice_index(s, a);
    return build_dot(g, i < s->n_scanned ? s->xs[i] : all_rows(g, a), b, false,
                     attr_i(g, v, A_TB, 0) != 0);
}

static void lift_node(Lift *l, Value v) {
    uint32_t n = graph_node(l->from, v)->n_operands;
    Value *operands = arena_alloc(l->scratch, (n + 1) * sizeof *operands);
    for (uint32_t i = 0; i < n; i++) {
        Value o = graph_operand(l->from, v, i);
        operands[i] = l->inside[o] ? l->map[o] : lift_outer(l, o);
    }
    l->map[v] = node_carry_over(l->to, l->from, v, operands);
}

static bool is_carried(const ScanSpec *s, uint32_t i) {
    return s->next[i] && s->next[i] != s->carry[i];
}

static uint32_t n_carried(const ScanSpec *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_carries; i++) n += is_carried(s, i);
    return n;
}

static void declare(Lift *l, const ScanSpec *s) {
    for (uint32_t i = 0, k = 0; i < s->n_carries; i++)
        l->map[s->carry[i]] = is_carried(s, i)
                                  ? as_carry(l->to, k++, *graph_type_at(l->from, s->carry[i]))
                                  : lift_outer(l, s->first[i]);
    for (uint32_t i = 0; i < s->n_scanned; i++)
        if (l->needed[s->x[i]])
            l->map[s->x[i]] =
                as_input(l->to, 'x', l->n_scanned++, *graph_type_at(l->from, s->x[i]));
    if (s->t) l->map[s->t] = build_scalar(l->to, "t", DT_I64);
}

/* inside[v]: a hole of this loop is at or below v; needed[v]: the roots reach it. */
static void mark_inside(Lift *l, const ScanSpec *s) {
    const Graph *g = l->from;
    bool *needed = l->needed;
    for (uint32_t i = 0; i < s->n_carries; i++) {
        l->inside[s->carry[i]] = true;
        if (s->next[i]) needed[s->next[i]] = true;
    }
    for (uint32_t i = 0; i < s->n_scanned; i++) l->inside[s->x[i]] = true;
    if (s->t) l->inside[s->t] = true;
    for (uint32_t i = 0; i < s->n_ys; i++) needed[s->ys[i]] = true;
    for (Value v = 1; v < g->n_nodes; v++)
        for (uint32_t i = 0; !l->inside[v] && i < graph_node(g, v)->n_operands; i++)
            l->inside[v] = l->inside[graph_operand(g, v, i)];
    for (Value v = g->n_nodes; v-- > 1;)
        for (uint32_t i = 0;
             needed[v] && l->inside[v] && !is_ahead(l, s, v) && i < graph_node(g, v)->n_operands;
             i++)
            needed[graph_operand(g, v, i)] = true;
}

static Value lifted(Lift *l, Value v) { return l->inside[v] ? l->map[v] : lift_outer(l, v); }

static void add_roots(Lift *l, const ScanSpec *s) {
    char name[BODY_LEAF];
    for (uint32_t i = 0, k = 0; i < s->n_carries; i++)
        if (is_carried(s, i))
            graph_add_root(l->to, ENTRY_MICRO, true, body_leaf(name, 'c', k++),
                           lifted(l, s->next[i]));
    for (uint32_t i = 0; i < s->n_ys; i++)
        graph_add_root(l->to, ENTRY_MICRO, false, body_leaf(name, 'y', i), lifted(l, s->ys[i]));
}

/* A loop that reads nothing at all still needs an operand. */
static void add_operand_for_none(Lift *l, Graph *g, const ScanSpec *s) {
    if (n_carried(s) + l->n_scanned + l->n_ahead + l->n_invariants) return;
    Value zero = build_splat(g, graph_type_of(g, DT_I64, 0, NULL), 0);
    LIST_RESERVE(l->scratch, l->invariants, l->n_invariants, l->cap_invariants);
    l->invariants[l->n_invariants] = zero;
    as_input(l->to, 'w', l->n_invariants++, *graph_type_at(g, zero));
}

static bool is_complete(const ScanSpec *s) {
    bool ok = true;
    for (uint32_t i = 0; i < s->n_carries; i++) ok &= s->first[i] && s->carry[i];
    for (uint32_t i = 0; i < s->n_scanned; i++) ok &= s->xs[i] && s->x[i];
    for (uint32_t i = 0; i < s->n_ys; i++) ok &= s->ys[i] != 0;
    return ok;
}

static uint32_t lift_body(Graph *g, const ScanSpec *s, Lift *l) {
    mark_inside(l, s);
    declare(l, s);
    for (Value v = 1; v < g->n_nodes; v++)
        if (l->needed[v] && l->inside[v] && !l->map[v]) {
            if (is_ahead(l, s, v))
                l->map[v] = lift_ahead(l, v);
            else
                lift_node(l, v);
        }
    add_roots(l, s);
    add_operand_for_none(l, g, s);
    return graph_add_body(g, (Body){s->name, l->to, n_carried(s), l->n_scanned + l->n_ahead,
                                    l->n_invariants, s->n_ys});
}

/* ---------------------------------------------------------------- into the graph */

/* What the leaf v of the body stands for; 0: it is no leaf of the interface. */
static Value laid_leaf(const Body *b, Value v, const Value *operands, Value t) {
    OpCode op = graph_op(b->g, v);
    if (op == OP_scalar) return t;
    if (op != OP_state && op != OP_input) return 0;
    return operands[body_operand(b, attr_s(b->g, v, A_NAME))];
}

void body_lay(Graph *g, const Body *b, const Value *operands, Value t, Value *map) {
    const Graph *from = b->g;
    Arena *scratch = arena_new();
    bool *needed = graph_reachable(from, scratch, ENTRY_MICRO);
    for (Value v = 1; v < from->n_nodes; v++) {
        if (!needed[v] || map[v]) continue;
        map[v] = laid_leaf(b, v, operands, t);
        if (map[v]) continue;
        uint32_t n = graph_node(from, v)->n_operands;
        Value *mapped = arena_alloc(scratch, (n + 1) * sizeof *mapped);
        for (uint32_t i = 0; i < n; i++) mapped[i] = map[graph_operand(from, v, i)];
        map[v] = node_carry_over(g, from, v, mapped);
        assert(map[v]);
    }
    arena_free(scratch);
}

/* ---------------------------------------------------------------- the loop */

static void build_loop(Graph *g, const ScanSpec *s, uint32_t body, const Value *operands,
                       Value *finals, Value *stacks) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_carries; i++)
        finals[i] = is_carried(s, i) ? scan_emit(g, operands, body, s->trips, s->is_reverse, n++)
                                     : s->first[i];
    for (uint32_t i = 0; i < s->n_ys; i++)
        stacks[i] = scan_emit(g, operands, body, s->trips, s->is_reverse, n + i);
}

/* One step is no loop: the body over what the operands are in step 0. */
static void build_once(Graph *g, const ScanSpec *s, const Body *b, Value *operands, Value *finals,
                       Value *stacks) {
    Graph *from = b->g;
    Value *map = arena_alloc(g->arena, from->n_nodes * sizeof *map);
    for (uint32_t i = 0; i < b->n_scanned; i++) {
        const Type *t = body_type(b, 'x', i);
        Value *x = &operands[b->n_carries + i];
        *x = build_reshape(g, *x, t->rank, t->dims);
    }
    body_lay(g, b, operands, build_splat(g, graph_type_of(g, DT_I64, 0, NULL), 0), map);
    char name[BODY_LEAF];
    for (uint32_t i = 0, k = 0; i < s->n_carries; i++) {
        finals[i] = s->first[i];
        if (!is_carried(s, i)) continue;
        finals[i] = map[graph_root(from, ENTRY_MICRO, true, body_leaf(name, 'c', k++))->value];
    }
    for (uint32_t i = 0; i < s->n_ys; i++) {
        Value y = map[graph_root(from, ENTRY_MICRO, false, body_leaf(name, 'y', i))->value];
        Type t = *graph_type_at(g, y);
        memmove(t.dims + 1, t.dims, (MAX_RANK - 1) * sizeof *t.dims);
        t.dims[0] = 1;
        stacks[i] = build_reshape(g, y, t.rank + 1u, t.dims);
    }
}

/* No step leaves the carries as they were, and empty stacks. */
static void build_none(Graph *g, const ScanSpec *s, Value *finals, Value *stacks) {
    for (uint32_t i = 0; i < s->n_carries; i++) finals[i] = s->first[i];
    for (uint32_t i = 0; i < s->n_ys; i++) {
        Type t = *graph_type_at(g, s->ys[i]);
        memmove(t.dims + 1, t.dims, (MAX_RANK - 1) * sizeof *t.dims);
        t.rank++;
        t.dims[0] = 0;
        stacks[i] = build_splat(g, graph_type(g, t), 0);
    }
}

bool scan_build(Graph *g, const ScanSpec *s, Value *finals, Value *stacks) {
    if (!is_complete(s)) return false;
    for (uint32_t i = 0; i < s->n_ys; i++)
        if (graph_type_at(g, s->ys[i])->rank == MAX_RANK) return false;
    if (s->trips == 0) {
        build_none(g, s, finals, stacks);
        return true;
    }
    Arena *scratch = arena_new();
    Lift l = {.from = g, .to = graph_new(s->name), .scratch = scratch};
    l.inside = arena_alloc(scratch, g->n_nodes * sizeof *l.inside);
    l.needed = arena_alloc(scratch, g->n_nodes * sizeof *l.needed);
    l.map = arena_alloc(scratch, g->n_nodes * sizeof *l.map);
    uint32_t body = lift_body(g, s, &l), n = 0;
    Value *operands =
        arena_alloc(scratch, (body_n_operands(graph_body(g, body)) + 1) * sizeof *operands);
    for (uint32_t i = 0; i < s->n_carries; i++)
        if (is_carried(s, i)) operands[n++] = s->first[i];
    for (uint32_t i = 0; i < s->n_scanned; i++)
        if (l.needed[s->x[i]]) operands[n++] = s->xs[i];
    for (uint32_t i = 0; i < l.n_ahead; i++) operands[n++] = stack_ahead(g, s, l.ahead[i]);
    for (uint32_t i = 0; i < l.n_invariants; i++) operands[n++] = l.invariants[i];
    if (s->trips == 1)
        build_once(g, s, graph_body(g, body), operands, finals, stacks);
    else
        build_loop(g, s, body, operands, finals, stacks);
    arena_free(scratch);
    return true;
}
