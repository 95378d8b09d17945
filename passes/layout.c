/* layout.c - pairs of inverse transposes around elementwise work cancel.
 *
 * Exporters from frameworks with channels last put a transpose before and after each convolution;
 * between two convolutions stand one transpose, bias, activation and sum of branches, and the
 * inverse. A value that has a transpose by p among its operands, and a reader, through other such
 * values, that transposes by the inverse of p, is computed in the layout in front of the transpose,
 * which moves behind it: f(T x, T y) = T f(x, y). There it meets the inverse, or the next such
 * value. Operands that are no transpose must be repeats whose transpose is a reshape: numbers,
 * biases, statistics. Transposes that meet no inverse stay where they are. */
#include "simplify.h"
#include <string.h>

typedef struct Perm {
    uint32_t rank;
    int64_t axis[MAX_RANK];
} Perm;

static bool perm_of(const Graph *g, Value v, Perm *p) {
    if (graph_op(g, v) != OP_transpose) return false;
    const int64_t *axis = attr_list(g, v, A_PERM, &p->rank);
    memcpy(p->axis, axis, p->rank * sizeof *axis);
    return true;
}

static Perm inverse(const Perm *p) {
    Perm q = {.rank = p->rank};
    for (uint32_t i = 0; i < p->rank; i++) q.axis[p->axis[i]] = i;
    return q;
}

static bool same_perm(const Perm *a, const Perm *b) {
    return a->rank == b->rank && !memcmp(a->axis, b->axis, a->rank * sizeof *a->axis);
}

/* ---- who reads transposed ---- */

/* Ops that are the same work in any order of axes. */
static bool is_any_layout(OpCode op) {
    switch ((int)op) {
    case OP_expand:
    case OP_slice:
    case OP_pad:
    case OP_concat:
    case OP_sum:
    case OP_prod:
    case OP_rmax:
    case OP_rmin:
    case OP_softmax:
    case OP_log_softmax:
    case OP_layer_norm:
    case OP_rms_norm:
    case OP_gelu:
    case OP_gelu_tanh:
    case OP_silu:
        return true;
    }
    return op_info[op].lower == LOWER_MAP;
}

struct Layout {
    Perm perms[32];
    uint32_t n;
    uint32_t *wanted; /* per value: a bit per perm by which some reader transposes */
};

static uint32_t perm_bit(Layout *l, const Perm *p) {
    uint32_t i = 0;
    while (i < l->n && !same_perm(&l->perms[i], p)) i++;
    if (i == sizeof l->perms / sizeof *l->perms) return 0;
    if (i == l->n) l->perms[l->n++] = *p;
    return UINT32_C(1) << i;
}

Layout *layout_wanted(const Graph *g, Arena *arena) {
    Layout *l = arena_alloc(arena, sizeof *l);
    Perm p;
    for (Value v = 1; v < g->n_nodes && !l->n; v++)
        if (perm_of(g, v, &p)) perm_bit(l, &p);
    if (!l->n) return NULL;
    l->wanted = arena_alloc(arena, sizeof *l->wanted * g->n_nodes);
    for (Value v = g->n_nodes; v-- > 1;) {
        uint32_t bits = perm_of(g, v, &p)               ? perm_bit(l, &p)
                        : is_any_layout(graph_op(g, v)) ? l->wanted[v]
                                                        : 0;
        for (uint32_t i = 0; bits && i < graph_node(g, v)->n_operands; i++)
            l->wanted[graph_operand(g, v, i)] |= bits;
    }
    return l;
}

/* ---- the same work in the other layout ---- */

/* A list by axes of the transposed value, by axes of its source. */
static void reorder(const Perm *p, const int64_t *list, int64_t *out) {
    for (uint32_t i = 0; i < p->rank; i++) out[p->axis[i]] = list[i];
}

/* Does a transpose of these dims by the inverse of p move axes of extent 1 alone? */
static bool is_reshape(const Type *t, const Perm *p) {
    int64_t last = -1;
    Perm back = inverse(p);
    for (uint32_t i = 0; i < t->rank; i++) {
        if (t->dims[back.axis[i]] == 1) continue;
        if (back.axis[i] < last) return false;
        last = back.axis[i];
    }
    return true;
}

/* What stands before a transpose by p, or before a reshape that is one; else 0. */
static Value before_transpose(const Graph *g, Value o, const Perm *p) {
    Perm q;
    const Type *t = graph_type_at(g, o);
    if (t->rank != p->rank) return 0;
    if (perm_of(g, o, &q)) return same_perm(&q, p) ? graph_operand(g, o, 0) : 0;
    if (graph_op(g, o) != OP_reshape || !is_reshape(t, p)) return 0;
    Type turned = *t;
    reorder(p, t->dims, turned.dims);
    return dims_equal(&turned, graph_type_at(g, graph_operand(g, o, 0))) ? graph_operand(g, o, 0)
                                                                         : 0;
}

/* The operand in the order of axes before the transpose by p; 0 where it would have to be
 * transposed back. */
static Value source_of(Graph *g, Value o, const Perm *p) {
    double x;
    Type t = *graph_type_at(g, o), turned = t;
    Value source = before_transpose(g, o, p), line = o;
    if (source || t.rank != p->rank || graph_op(g, o) == OP_transpose) return source;
    reorder(p, t.dims, turned.dims);
    if (const_splat(g, o, &x)) return build_splat(g, graph_type(g, turned), x);
    while (graph_op(g, line) == OP_expand) line = graph_operand(g, line, 0);
    if (!is_reshape(graph_type_at(g, line), p)) return 0;
    Type small = *graph_type_at(g, line), kept = small;
    reorder(p, small.dims, kept.dims);
    return build_expand(g, build_reshape(g, line, kept.rank, kept.dims), turned.rank, turned.dims);
}

/* The attribute fields of v for the source's order of axes. */
static AttrId fields_before(Graph *g, Value v, const Perm *p) {
    AttrId attr = graph_node(g, v)->attr;
    if (!attr) return 0;
    AttrField fields[8];
    int64_t lists[8][MAX_RANK];
    uint32_t n = g->attrs[attr].n;
    for (uint32_t i = 0; i < n; i++) {
        fields[i] = g->attrs[attr].fields[i];
        if (fields[i].key == A_AXIS) fields[i].u.i = p->axis[fields[i].u.i];
        if (attr_info[fields[i].key].kind != ATTR_INTS) continue;
        if (fields[i].key == A_AXES) {
            bool is_reduced[MAX_RANK] = {false};
            uint32_t k = 0;
            for (uint32_t a = 0; a < fields[i].n; a++)
                is_reduced[p->axis[fields[i].u.ints[a]]] = true;
            for (uint32_t a = 0; a < p->rank; a++)
                if (is_reduced[a]) lists[i][k++] = a;
        } else
            reorder(p, fields[i].u.ints, lists[i]);
        fields[i].u.ints = lists[i];
    }
    return graph_attr(g, fields, n);
}

/* The perm that some operand of v is transposed by and a reader transposes back; false: none. */
static bool perm_to_sink(const Layout *l, Value wanted_of, const Graph *g, Value v, Perm *p) {
    for (uint32_t k = 0; k < l->n; k++) {
        if (!(l->wanted[wanted_of] & (UINT32_C(1) << k))) continue;
        *p = inverse(&l->perms[k]);
        for (uint32_t i = 0; i < graph_node(g, v)->n_operands; i++)
            if (before_transpose(g, graph_operand(g, v, i), p)) return true;
    }
    return false;
}

Value layout_sink(const Layout *l, Value wanted_of, Graph *g, Value v) {
    Perm p = {0};
    Value operands[8];
    uint32_t n = graph_node(g, v)->n_operands;
    OpCode op = graph_op(g, v);
    if (!l->wanted[wanted_of] || !is_any_layout(op) || !n || n > 8) return 0;
    if (!perm_to_sink(l, wanted_of, g, v, &p)) return 0;
    for (uint32_t i = 0; i < n; i++)
        if (!(operands[i] = source_of(g, graph_operand(g, v, i), &p))) return 0;
    Type t = *graph_type_at(g, v), turned = t;
    reorder(&p, t.dims, turned.dims);
    Value before = graph_emit(g, op, operands, n, fields_before(g, v, &p), graph_type(g, turned));
    return before ? build_transpose(g, before, p.axis) : 0;
}
