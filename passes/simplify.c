/* simplify.c - folds constants, cancels and canonicalises, bottom up.
 *
 * In one walk every node is copied with its operands already simple; then constants fold through
 * the interpreter, views merge (view.c) and the rules of simplify.def for its op are tried, until
 * nothing changes. A rule may leave nodes that a further walk simplifies, so walks repeat while
 * they find something, a few times at most. Results keep their type exactly. */
#include "simplify.h"
#include "pass.h"
#include <math.h>
#include <string.h>

enum { MAX_WALKS = 4, MAX_STEPS = 32, MAX_FOLD_ELEMS = 262144, MAX_RULES = 128 };
typedef enum RuleDomain { ON_ANY, ON_INT } RuleDomain;
typedef struct RuleRow {
    const char *name;
    RuleDomain on;
    const char *pattern, *replacement;
} RuleRow;
static const RuleRow rules[] = {
#define RULE(name, on, pattern, replacement) {#name, ON_##on, pattern, replacement},
#include "simplify.def"
#undef RULE
};
enum { N_RULES = sizeof rules / sizeof *rules };
_Static_assert(sizeof rules / sizeof *rules < 128, "raise MAX_RULES");

typedef struct Simplify {
    PassContext *ctx;
    uint8_t first[N_OPS], next[MAX_RULES]; /* 1 + index of the rules by the pattern's op */
    uint32_t n_changed;
    Layout *layout;
} Simplify;

OpCode pattern_op(const char *pattern) {
    char name[32] = "";
    size_t n = strcspn(pattern + 1, " )");
    if (*pattern != '(' || n >= sizeof name) return OP_NONE;
    memcpy(name, pattern + 1, n);
    return op_from_name(name);
}

static void index_rules(Simplify *s) {
    for (uint32_t i = N_RULES; i-- > 0;) {
        OpCode op = pattern_op(rules[i].pattern);
        s->next[i] = s->first[op];
        s->first[op] = (uint8_t)(i + 1);
    }
}

/* ---- constants ---- */

static bool operands_constant(const Graph *g, Value v) {
    for (uint32_t i = 0; i < graph_node(g, v)->n_operands; i++)
        if (graph_op(g, graph_operand(g, v, i)) != OP_const) return false;
    return graph_node(g, v)->n_operands > 0;
}

static bool operands_splat(const Graph *g, Value v) {
    double ignored;
    for (uint32_t i = 0; i < graph_node(g, v)->n_operands; i++)
        if (!const_splat(g, graph_operand(g, v, i), &ignored)) return false;
    return true;
}

static Value fold_here(Simplify *s, Graph *g, Value v) {
    ArenaMark mark = arena_mark(s->ctx->arena);
    Tensor t;
    Value r = 0;
    if (interp_fold(g, v, s->ctx->arena, &t, MAX_FOLD_ELEMS)) {
        void *bytes = arena_alloc(s->ctx->arena, type_bytes(&t.type) + 16);
        tensor_to_bytes(&t, bytes);
        r = build_const(g, graph_node(g, v)->type, bytes);
    }
    arena_release(s->ctx->arena, mark);
    return r;
}

/* A map of repeated elements is one element, whatever its dims. */
static Value fold_splat(Simplify *s, Graph *g, Value v) {
    Value operands[8];
    const Node *n = graph_node(g, v);
    Type t = *graph_type_at(g, v);
    uint32_t count = n->n_operands;
    OpCode op = graph_op(g, v);
    AttrId attr = n->attr;
    for (uint32_t i = 0; i < count; i++) {
        double x;
        Value o = graph_operand(g, v, i);
        const_splat(g, o, &x);
        operands[i] =
            build_splat(g, graph_type_of(g, (DType)graph_type_at(g, o)->dtype, 0, NULL), x);
    }
    Value one = graph_emit(g, op, operands, count, attr, graph_type_of(g, (DType)t.dtype, 0, NULL));
    Value folded = one ? fold_here(s, g, one) : 0;
    return folded ? build_expand(g, folded, t.rank, t.dims) : 0;
}

/* Is the data the same for every index along the axis? */
static bool repeats_along(const char *bytes, const Type *t, uint32_t axis) {
    size_t inner = dtype_info[t->dtype].bytes, outer = 1, extent = (size_t)t->dims[axis];
    for (uint32_t i = axis + 1; i < t->rank; i++) inner *= (size_t)t->dims[i];
    for (uint32_t i = 0; i < axis; i++) outer *= (size_t)t->dims[i];
    for (size_t o = 0; o < outer;
         o++) /* each block equals the next: the whole is its own shift by one block */
        if (memcmp(bytes + o * extent * inner, bytes + (o * extent + 1) * inner,
                   (extent - 1) * inner))
            return false;
    return true;
}

/* A constant that repeats itself along axes is a smaller one, expanded: masks come written out for
 * every sample and head. */
static Value shrink_const(Simplify *s, Graph *g, Value v) {
    Type t = *graph_type_at(g, v), small = t;
    const AttrField *data = attr_find(g, v, A_DATA);
    uint64_t n = type_bytes(&t);
    double x;
    if (type_elems(&t) <= 1 || data->n != n || const_splat(g, v, &x)) return 0;
    ArenaMark mark = arena_mark(s->ctx->arena);
    char *bytes = arena_alloc(s->ctx->arena, n);
    memcpy(bytes, data->u.bytes, n);
    for (uint32_t i = 0; i < t.rank; i++) {
        if (small.dims[i] == 1 || !repeats_along(bytes, &small, i)) continue;
        size_t inner = dtype_info[t.dtype].bytes, outer = 1, extent = (size_t)small.dims[i];
        for (uint32_t k = i + 1; k < t.rank; k++) inner *= (size_t)small.dims[k];
        for (uint32_t k = 0; k < i; k++) outer *= (size_t)small.dims[k];
        for (size_t o = 1; o < outer; o++)
            memmove(bytes + o * inner, bytes + o * extent * inner, inner);
        small.dims[i] = 1;
    }
    Value r = dims_equal(&small, &t)
                  ? 0
                  : build_expand(g, build_const(g, graph_type(g, small), bytes), t.rank, t.dims);
    arena_release(s->ctx->arena, mark);
    return r;
}

/* Is v, a view or a sum, one repeated element because its operand is? */
static bool repeats_one(const Graph *g, Value v, double *x) {
    double first;
    uint32_t n = graph_node(g, v)->n_operands;
    OpCode op = graph_op(g, v);
    if (!n || !const_splat(g, graph_operand(g, v, 0), &first)) return false;
    *x = first;
    if (op == OP_pad || op == OP_window) return attr_f(g, v, A_VALUE, 0) == first;
    if (op == OP_gather || op == OP_take || op == OP_gather_nd) return true;
    if (op == OP_sum) {
        *x *= (double)type_elems(graph_type_at(g, graph_operand(g, v, 0))) /
              (double)type_elems(graph_type_at(g, v));
        return fabs(*x) < 0x1p53;
    }
    return op_info[op].lower == LOWER_VIEW && n == 1 && const_splat(g, v, x);
}

static Value fold(Simplify *s, Graph *g, Value v) {
    LowerClass lower = op_info[graph_op(g, v)].lower;
    double x;
    if (graph_op(g, v) == OP_const) return shrink_const(s, g, v);
    if (lower == LOWER_LEAF || lower == LOWER_MACRO) return 0;
    int64_t elems = type_elems(graph_type_at(g, v));
    if (elems && repeats_one(g, v, &x)) return build_splat(g, graph_node(g, v)->type, x);
    if (!operands_constant(g, v) || graph_op(g, v) == OP_expand)
        return 0; /* repeats stay repeats */
    if (lower == LOWER_MAP && elems && operands_splat(g, v)) return fold_splat(s, g, v);
    return elems <= MAX_FOLD_ELEMS ? fold_here(s, g, v) : 0;
}

/* ---- rules ---- */

/* Patterns match numbers to 1e-6, but 0.9999999 is not 1: all that rules speak of are multiples of
 * a half. */
static bool numbers_exact(const Graph *g, Value v) {
    for (uint32_t i = 0; i < graph_node(g, v)->n_operands; i++) {
        double x;
        if (const_splat(g, graph_operand(g, v, i), &x) && x * 2 != floor(x * 2)) return false;
    }
    return true;
}

static Value apply_rule(Graph *g, const RuleRow *r, Value v) {
    RuleBind binds[8];
    uint32_t n = 0;
    Type t = *graph_type_at(g, v);
    if (strpbrk(r->pattern, "0123456789") && !numbers_exact(g, v)) return 0;
    if (r->on == ON_INT &&
        dtype_info[graph_type_at(g, graph_operand(g, v, 0))->dtype].cls != CLASS_INT)
        return 0;
    if (!rule_match(g, r->pattern, v, binds, &n, 8)) return 0;
    Value to = rule_build(g, r->replacement, binds, n, v);
    if (!to || graph_type_at(g, to)->dtype != t.dtype || graph_type_at(g, to)->rank != t.rank)
        return 0;
    return build_expand(g, to, t.rank, t.dims); /* a pattern also matches through expand */
}

static Value simpler(Simplify *s, Graph *g, Value v) {
    Value to = fold(s, g, v);
    if (!to) to = view_simplify(g, v);
    for (uint32_t i = s->first[graph_op(g, v)]; i && !to; i = s->next[i - 1])
        to = apply_rule(g, &rules[i - 1], v);
    return to == v ? 0 : to;
}

static Value visit(void *pass, const Graph *from, Value v, Graph *to, const Value *map) {
    Simplify *s = pass;
    Value now = node_copied(from, v, to, map), next;
    for (uint32_t i = 0; i < MAX_STEPS; i++) {
        next = simpler(s, to, now);
        if (!next && s->layout) next = layout_sink(s->layout, v, to, now);
        if (!next || !pass_fuel(s->ctx)) break;
        now = next;
        s->n_changed++;
    }
    return now;
}

bool pass_simplify(PassContext *ctx) {
    Simplify s = {.ctx = ctx};
    Graph *given = ctx->g;
    index_rules(&s);
    for (uint32_t walk = 0; walk <= MAX_WALKS; walk++) {
        Graph *before = ctx->g;
        bool last = walk == MAX_WALKS || (walk && !s.n_changed);
        s.n_changed = 0;
        s.layout = last ? NULL : layout_wanted(before, ctx->arena);
        pass_rewrite(ctx, last ? NULL : visit,
                     &s); /* the last walk only leaves dead nodes behind */
        if (before != given) graph_free(before);
        if (last) break;
    }
    return pass_bodies(ctx, pass_simplify) && !diag_has_errors(ctx->g);
}
