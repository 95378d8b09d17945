/* pack.c - large products read a copy of their weights in the layout that the library wants.
 *
 * In: dots whose operand b is a whole parameter, or its transpose. Out: they read a state
 * `pack.NAME.k` of class STATE_PACKED in its place: of the type and value of the parameter, made
 * from it by an update root in init and renewed by one in apply, where it trains. Nothing else may
 * read such a state. So packing is a copy to whoever computes values (interpreter, verifier, own
 * loops); only the launch that makes the copy and the library product that reads it know that its
 * bytes lie otherwise (codegen/step_pack.c).
 *
 * One copy serves all products of the same extents that read the weight the same way, those of eval
 * too; forward and backward want two. Whether one pays is decided by `pays` alone. */
#include "pass.h"
#include <string.h>

typedef struct Packed {
    const char *weight, *name;
    int64_t m, n, k, uses; /* uses: launches per micro-batch */
    bool turned, is_made;  /* turned: b is the transpose of what lies in memory */
} Packed;
typedef struct Pack {
    PassContext *ctx;
    uint32_t *stored, *of; /* per Value: a parameter; 1 + what a dot reads */
    Packed *list;
    uint32_t n;
} Pack;

static double ns_per_weight(const Packed *x) {
    enum { LONG_SUM = 1 << 14 };
    return x->k >= LONG_SUM && !x->turned ? 0.7 : 0.1;
}

/* The cost model, in nanoseconds per weight on two cores with AVX-512; docs/why.md has the figures.
 * A product over a plain b packs it for itself each time (a long sum over few columns does so
 * badly); packing in a step reads and writes memory, and costs nothing where the weight is frozen.
 */
static bool pays(const Packed *x, int64_t micro_batches, bool trains) {
    const double pack_ns = trains ? 0.65 : 0, least_flops = 1 << 23;
    double uses = (double)(x->uses * micro_batches);
    double flops = 2.0 * (double)x->m * (double)x->n * (double)x->k;
    return flops >= least_flops && uses * ns_per_weight(x) > pack_ns;
}

/* A parameter that changes in apply alone, or never. */
static bool is_weight(const Graph *g, const State *s) {
    for (int e = 0; e < N_ENTRIES; e++)
        if (e != ENTRY_APPLY && graph_root(g, (EntryKind)e, true, s->name)) return false;
    return s->cls == STATE_PARAM;
}

static bool is_f32(const Graph *g, Value v) { return graph_type_at(g, v)->dtype == DT_F32; }

/* Reads v the whole of a weight as operand b, row by row or column by column? */
static bool product_of(const Pack *p, Value v, Packed *x) {
    const Graph *g = p->ctx->g;
    if (graph_op(g, v) != OP_dot || !is_f32(g, v)) return false;
    int64_t offset, strides[MAX_RANK], batch = 1;
    Value a = graph_operand(g, v, 0), b = graph_operand(g, v, 1);
    Value w = plan_view_affine(g, p->stored, b, &offset, strides);
    const Type *t = graph_type_at(g, v);
    uint32_t row = t->rank - 2u, column = t->rank - 1u;
    if (!w || offset || !is_f32(g, a) || !is_f32(g, w)) return false;
    if (type_elems(graph_type_at(g, b)) != type_elems(graph_type_at(g, w))) return false;
    for (uint32_t i = 0; i < row; i++) batch *= t->dims[i];
    if (batch != 1) return false;
    bool tb = attr_i(g, v, A_TB, 0) != 0;
    int64_t k = graph_type_at(g, b)->dims[tb ? column : row];
    int64_t by_k = strides[tb ? column : row], by_n = strides[tb ? row : column];
    bool plain = by_n == 1 && by_k == t->dims[column], turned = by_k == 1 && by_n == k;
    *x = (Packed){.weight = attr_s(g, w, A_NAME),
                  .m = t->dims[row],
                  .n = t->dims[column],
                  .k = k,
                  .turned = !plain};
    return plain || turned;
}

static uint32_t find(const Pack *p, const Packed *x) {
    for (uint32_t i = 0; i < p->n; i++) {
        const Packed *y = &p->list[i];
        if (!strcmp(x->weight, y->weight) && x->m == y->m && x->n == y->n && x->k == y->k &&
            x->turned == y->turned)
            return i + 1;
    }
    return 0;
}

static void find_products(Pack *p, EntryKind e) {
    const Graph *g = p->ctx->g;
    const bool *live = graph_reachable(g, p->ctx->arena, e);
    for (Value v = 1; v < g->n_nodes; v++) {
        Packed x;
        if (!live[v] || !product_of(p, v, &x)) continue;
        uint32_t i = find(p, &x);
        if (!i && e == ENTRY_MICRO) {
            p->list[p->n] = x;
            i = ++p->n;
        }
        p->of[v] = i;
        if (i && e == ENTRY_MICRO) p->list[i - 1].uses++;
    }
}

static bool changes_in_apply(const Graph *g, const char *weight) {
    const Root *r = graph_root(g, ENTRY_APPLY, true, weight);
    return r && graph_op(g, r->value) != OP_state;
}

static uint32_t copies_of(const Pack *p, const char *weight) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++)
        n += p->list[i].is_made && !strcmp(p->list[i].weight, weight);
    return n;
}

/* Does the library take the product, and does its copy pay? `v` is one that reads it. */
static bool wanted(const Pack *p, const Packed *x, Value v) {
    const PassOptions *o = p->ctx->options;
    int64_t micro_batches = o->micro_batch > 0 ? o->batch / o->micro_batch : 1;
    bool forced = o->pack == PACK_ALWAYS;
    if (!forced && !pays(x, micro_batches, changes_in_apply(p->ctx->g, x->weight))) return false;
    return o->packed_bytes ? o->packed_bytes(p->ctx->g, v, 1) > 0 : forced;
}

static bool add_states(Pack *p) {
    Graph *g = p->ctx->g;
    bool any = false, *asked = arena_alloc(p->ctx->arena, p->n + 1);
    for (Value v = 1; v < g->n_nodes; v++) {
        if (!p->of[v] || asked[p->of[v] - 1]) continue;
        Packed *x = &p->list[p->of[v] - 1];
        asked[p->of[v] - 1] = true;
        if (!wanted(p, x, v)) continue;
        x->name = arena_printf(g->arena, "pack.%s.%u", x->weight, copies_of(p, x->weight));
        any = x->is_made = true;
        graph_add_state(g, (State){.name = x->name,
                                   .type = graph_state(g, x->weight)->type,
                                   .cls = STATE_PACKED,
                                   .of = x->weight});
    }
    return any;
}

/* The views between a weight and a product, over its copy. */
static Value over(const Graph *from, Value v, Graph *to, const char *name) {
    const Node *n = graph_node(from, v);
    if (n->op == OP_state) return build_state(to, name);
    Value below = over(from, graph_operand(from, v, 0), to, name);
    AttrId attr = n->attr ? graph_attr(to, from->attrs[n->attr].fields, from->attrs[n->attr].n) : 0;
    return graph_emit(to, (OpCode)n->op, &below, 1, attr, graph_type(to, from->types[n->type]));
}

static Value visit(void *pass, const Graph *from, Value v, Graph *to, const Value *map) {
    const Pack *p = pass;
    if (!p->of[v] || !p->list[p->of[v] - 1].is_made) return 0;
    const Node *n = graph_node(from, v);
    to->loc = n->loc;
    to->epoch = n->epoch;
    Value operands[2] = {map[graph_operand(from, v, 0)],
                         over(from, graph_operand(from, v, 1), to, p->list[p->of[v] - 1].name)};
    AttrId attr = n->attr ? graph_attr(to, from->attrs[n->attr].fields, from->attrs[n->attr].n) : 0;
    return graph_emit(to, OP_dot, operands, 2, attr, 0);
}

static void add_roots(Pack *p) {
    Graph *g = p->ctx->g;
    for (uint32_t i = 0; i < p->n; i++) {
        const Packed *x = &p->list[i];
        if (!x->is_made) continue;
        graph_add_root(g, ENTRY_INIT, true, x->name, build_state(g, x->weight));
        if (changes_in_apply(g, x->weight))
            graph_add_root(g, ENTRY_APPLY, true, x->name,
                           graph_root(g, ENTRY_APPLY, true, x->weight)->value);
    }
}

bool pass_pack(PassContext *ctx) {
    const PassOptions *o = ctx->options;
    bool asked = o->pack == PACK_ALWAYS || (o->pack == PACK_PAYS && o->packed_bytes);
    if (o->for_gpu || !asked) return true;
    const Graph *g = ctx->g;
    Pack p = {.ctx = ctx};
    p.stored = arena_alloc(ctx->arena, sizeof *p.stored * g->n_nodes);
    p.of = arena_alloc(ctx->arena, sizeof *p.of * g->n_nodes);
    p.list = arena_alloc(ctx->arena, sizeof *p.list * g->n_nodes);
    for (Value v = 1; v < g->n_nodes; v++)
        p.stored[v] =
            graph_op(g, v) == OP_state && is_weight(g, graph_state(g, attr_s(g, v, A_NAME)));
    find_products(&p, ENTRY_MICRO);
    find_products(&p, ENTRY_EVAL);
    if (!add_states(&p)) return true;
    pass_rewrite(ctx, visit, &p);
    add_roots(&p);
    return !diag_has_errors(ctx->g);
}
