/* fuse_reads.c - which nodes are computed, which are memory, which are mere index maps; and who
 * reads what, through views.
 *
 * Views, splats, iota, random and step scalars are never computed by themselves: a read goes
 * through them to its bases. So do maps that every reader evaluates for itself. A view that must
 * lie in memory (a root, the operand of a contraction that no strides describe) becomes computed
 * like a map. One loop over the nodes; a concat costs one step per operand and reader. */
#include "planning.h"
#include "scan.h"
#include <string.h>

enum { CHEAP_CONE = 24, SEE_THROUGH_DEPTH = 4, SEE_THROUGH_GAIN = 8 };

bool leaf_in_memory(const Graph *g, Value v) {
    double splat;
    switch ((int)graph_op(g, v)) {
    case OP_input:
    case OP_state:
        return true;
    case OP_const:
        return !const_splat(g, v, &splat);
    default:
        return false;
    }
}

uint32_t node_cost(const Graph *g, Value v) { return op_info[graph_op(g, v)].cost; }

static LowerClass lower_class(const Graph *g, Value v) { return op_info[graph_op(g, v)].lower; }

/* ---------------------------------------------------------------- what is computed */

/* Maps over iota, random, scalars and splats alone: no memory is read, so no kernel should write
 * them. Single elements that cost something are worth a kernel of their own, for every reader would
 * repeat them. */
static void inline_pure_maps(Fuse *f) {
    const Graph *g = f->g;
    uint32_t *cone = arena_alloc(f->arena, sizeof *cone * g->n_nodes);
    for (Value v = 1; v < g->n_nodes; v++) {
        LowerClass l = lower_class(g, v);
        if (!f->live[v] || f->stored[v]) continue;
        bool pure = l == LOWER_LEAF || l == LOWER_MAP || l == LOWER_VIEW;
        uint64_t cost = node_cost(g, v);
        for (uint32_t i = 0; i < graph_node(g, v)->n_operands; i++) {
            Value o = graph_operand(g, v, i);
            pure = pure && cone[o];
            cost += cone[o] ? cone[o] - 1 : 0;
        }
        int64_t limit = type_elems(graph_type_at(g, v)) == 1 ? 2 : CHEAP_CONE;
        if (!pure || (int64_t)cost > limit) continue;
        cone[v] = (uint32_t)cost + 1;
        if (l == LOWER_MAP) f->inlined[v] = true;
    }
}

/* Does the affine view v of a stored value serve as operand of the contraction? */
static bool operand_fits(const Fuse *f, const uint32_t *in_memory, Value contraction, Value v,
                         Value *base) {
    int64_t offset, strides[MAX_RANK];
    const Type *t = graph_type_at(f->g, v);
    *base = plan_view_affine(f->g, in_memory, v, &offset, strides);
    if (!*base) return false;
    if (!type_elems(t)) return true;
    if (graph_op(f->g, contraction) != OP_dot) return offset == 0 && type_is_dense(t, strides);
    int unit = 0;
    for (int i = 0; i < t->rank; i++) {
        bool is_matrix_axis = i >= t->rank - 2;
        if (t->dims[i] == 1)
            unit += is_matrix_axis;
        else if (strides[i] < 0 || (is_matrix_axis && strides[i] == 0))
            return false;
        else
            unit += is_matrix_axis && strides[i] == 1;
    }
    return unit > 0;
}

/* Does the view v of a stored value lie there as it is, from the first byte on? Every turn of a
 * loop reads its operands, or a slice of them; only a first value may be one number. */
static bool loop_operand_fits(const Fuse *f, const uint32_t *in_memory, Value scan, uint32_t i,
                              Value *base) {
    int64_t offset, strides[MAX_RANK];
    double number;
    Value v = graph_operand(f->g, scan, i);
    *base = 0;
    if (i < scan_body(f->g, scan)->n_carries && const_splat(f->g, v, &number)) return true;
    *base = plan_view_affine(f->g, in_memory, v, &offset, strides);
    return *base && offset == 0 && type_is_dense(graph_type_at(f->g, v), strides);
}

/* Forces the operands of contractions and loops into memory; a view that does not fit is itself
 * computed. A view that becomes computed changes what others resolve to, so this repeats until
 * nothing changes. */
static void force_operands(Fuse *f) {
    const Graph *g = f->g;
    uint32_t *in_memory = arena_alloc(f->arena, sizeof *in_memory * g->n_nodes);
    for (Value v = 1; v < g->n_nodes; v++) in_memory[v] = f->computed[v] || f->stored[v];
    for (bool changed = true; changed;) {
        changed = false;
        for (Value v = 1; v < g->n_nodes; v++) {
            bool loops = lower_class(g, v) == LOWER_LOOP;
            if (!f->live[v] || (lower_class(g, v) != LOWER_CONTRACT && !loops)) continue;
            for (uint32_t i = 0; i < graph_node(g, v)->n_operands; i++) {
                Value o = graph_operand(g, v, i), base;
                if (loops ? !loop_operand_fits(f, in_memory, v, i, &base)
                          : !operand_fits(f, in_memory, v, o, &base)) {
                    changed = true;
                    base = o;
                    f->computed[o] = true;
                    f->inlined[o] = false;
                    in_memory[o] = 1;
                }
                f->forced[base] = true;
            }
        }
    }
}

static void force_roots(Fuse *f) {
    const Graph *g = f->g;
    const Entry *e = &g->entries[f->entry];
    for (uint32_t i = 0; i < e->n; i++) {
        Value v = e->roots[i].value;
        if (lower_class(g, v) == LOWER_LEAF) continue; /* a COPY, or nothing */
        f->computed[v] = f->forced[v] = true;
        f->inlined[v] = false;
    }
    for (uint32_t i = 0; i < e->n; i++) f->updates[e->roots[i].value] |= e->roots[i].is_update;
    for (Value v = 1; v < g->n_nodes; v++)
        if (f->live[v] && graph_op(g, v) == OP_state)
            f->is_updated[v] = graph_root(g, f->entry, true, attr_s(g, v, A_NAME)) != NULL;
}

void fuse_classify(Fuse *f) {
    const Graph *g = f->g;
    for (Value v = 1; v < g->n_nodes; v++) f->stored[v] = f->live[v] && leaf_in_memory(g, v);
    inline_pure_maps(f);
    for (Value v = 1; v < g->n_nodes; v++) {
        LowerClass l = lower_class(g, v);
        f->computed[v] = f->live[v] && l != LOWER_LEAF && l != LOWER_VIEW && !f->inlined[v];
    }
    force_roots(f);
    force_operands(f);
}

/* ---------------------------------------------------------------- reads */

/* maps: collects inlined maps instead of reads. */
typedef struct Walk {
    int64_t evals;
    bool may_see_through;
    uint32_t mark, hold;
    Value *maps;
    uint32_t *n_maps;
} Walk;

static void add_read(Fuse *f, const Walk *w, Value base, ReadKind kind, Value by) {
    if (w->maps) return;
    if (f->n_reads == f->cap_reads) {
        uint32_t cap = f->cap_reads * 2 + 256;
        f->reads =
            arena_grow(f->arena, f->reads, sizeof *f->reads * f->n_reads, sizeof *f->reads * cap);
        f->cap_reads = cap;
    }
    f->reads[f->n_reads++] = (Read){base, by, kind, w->evals};
}

/* Few elements of a large cheap map: better evaluated there than stored for it. */
static bool sees_through(const Fuse *f, const Walk *w, Value v, ReadKind kind, uint32_t depth) {
    if (kind < READ_TAKE || !w->may_see_through || f->forced[v] || depth >= SEE_THROUGH_DEPTH)
        return false;
    return lower_class(f->g, v) == LOWER_MAP && node_cost(f->g, v) <= 8 &&
           w->evals * SEE_THROUGH_GAIN <= type_elems(graph_type_at(f->g, v));
}

/* Does the expand undo the take: from extent 1 along the taken axis alone, where the take's result
 * has extent 1 too? */
static bool undoes_take(const Graph *g, Value expand, Value take) {
    const Type *t = graph_type_at(g, expand), *from = graph_type_at(g, graph_operand(g, expand, 0)),
               *row = graph_type_at(g, take);
    int64_t axis = attr_i(g, take, A_AXIS, 0);
    if (t->rank != row->rank || row->dims[axis] != 1) return false;
    return dims_equal(from, row) && dims_equal(t, graph_type_at(g, graph_operand(g, take, 0)));
}

/* How the operand of a view is read, by whom the view is read so. */
static ReadKind kind_through(const Graph *g, Value view, ReadKind kind, Value *by) {
    OpCode op = graph_op(g, view);
    if (op == OP_reshape) return kind == READ_TAKE ? READ_OTHER : kind;
    if (op == OP_take && kind == READ_SAME) {
        *by = view;
        return READ_TAKE;
    }
    if (op != OP_expand) return READ_OTHER;
    if (dims_equal(graph_type_at(g, view), graph_type_at(g, graph_operand(g, view, 0))))
        return kind;
    if (kind == READ_TAKE && undoes_take(g, view, *by)) return READ_SAME;
    if (kind != READ_SAME) return READ_OTHER;
    *by = view;
    return READ_BCAST;
}

static void walk(Fuse *f, Walk *w, Value v, ReadKind kind, Value by, uint32_t depth) {
    bool through = f->computed[v] && sees_through(f, w, v, kind, depth);
    if (f->stored[v] || (f->computed[v] && !through)) {
        add_read(f, w, v, kind, by);
        return;
    }
    uint32_t mark = w->mark + (uint32_t)kind;
    if (f->stamp[v] == mark) return;
    f->stamp[v] = mark;
    LowerClass l = lower_class(f->g, v);
    if (l == LOWER_MAP && w->maps && f->held[v] != w->hold) {
        f->held[v] = w->hold;
        w->maps[(*w->n_maps)++] = v;
    }
    ReadKind next = l == LOWER_VIEW ? kind_through(f->g, v, kind, &by) : kind;
    for (uint32_t i = 0; i < graph_node(f->g, v)->n_operands; i++) {
        bool is_index = graph_op(f->g, v) == OP_take && i == 1; /* read at the very element */
        walk(f, w, graph_operand(f->g, v, i), is_index ? kind : next, by, depth + through);
    }
}

/* The roads from node v, which is computed: from its operands, or where it is a view, from itself.
 */
static void walk_node(Fuse *f, Walk *w, Value v) {
    const Node *n = graph_node(f->g, v);
    LowerClass l = lower_class(f->g, v);
    ReadKind kind = READ_SAME;
    w->may_see_through = l == LOWER_MAP || l == LOWER_VIEW;
    w->evals = type_elems(graph_type_at(f->g, v));
    Value by = 0;
    if (l == LOWER_VIEW) kind = kind_through(f->g, v, READ_SAME, &by);
    for (uint32_t i = 0; i < n->n_operands; i++) {
        Value o = graph_operand(f->g, v, i);
        if (l == LOWER_REDUCE) w->evals = type_elems(graph_type_at(f->g, o));
        walk(f, w, o, kind, by, 0);
    }
}

static void build_readers(Fuse *f) {
    uint32_t n = f->g->n_nodes;
    f->first_reader = arena_alloc(f->arena, sizeof *f->first_reader * (n + 2));
    f->readers = arena_alloc(f->arena, sizeof *f->readers * (f->n_reads + 1));
    for (uint32_t i = 0; i < f->n_reads; i++) f->first_reader[f->reads[i].base + 2]++;
    for (Value v = 2; v < n + 2; v++) f->first_reader[v] += f->first_reader[v - 1];
    for (Value v = 1; v < n; v++)
        for (uint32_t i = f->first_read[v]; i < f->first_read[v + 1]; i++)
            f->readers[f->first_reader[f->reads[i].base + 1]++] = (Reader){v, i};
}

static void read_node(Fuse *f, Value v) {
    f->now += N_READ_KINDS;
    Walk w = {.mark = f->now};
    walk_node(f, &w, v);
}

/* Operands of scatters are walked over and over: they must lie in memory. */
static void force_scatter_operands(Fuse *f) {
    for (Value v = 1; v < f->g->n_nodes; v++) {
        if (!f->live[v] || lower_class(f->g, v) != LOWER_SCATTER) continue;
        f->n_reads = 0;
        read_node(f, v);
        for (uint32_t i = 0; i < f->n_reads; i++) f->forced[f->reads[i].base] = true;
    }
    f->n_reads = 0;
}

void fuse_resolve(Fuse *f) {
    uint32_t n = f->g->n_nodes;
    force_scatter_operands(f);
    f->first_read = arena_alloc(f->arena, sizeof *f->first_read * (n + 1));
    for (Value v = 1; v < n; v++) {
        f->first_read[v] = f->n_reads;
        if (f->computed[v]) read_node(f, v);
    }
    f->first_read[n] = f->n_reads;
    build_readers(f);
}

void fuse_inlined_maps(Fuse *f, Value v, uint32_t hold, Value *list, uint32_t *n) {
    f->now += N_READ_KINDS;
    Walk w = {.mark = f->now, .hold = hold, .maps = list, .n_maps = n};
    walk_node(f, &w, v);
}
