/* property.c - the checkers behind property.def.
 *
 * Each proves one claim about the graph (and the plan) from what stands there, and answers a
 * failure with one sentence. They share nothing with the passes that make the claims. */
#include "planning.h"
#include <stdlib.h>
#include <string.h>

const PropertyInfo property_info[N_PROPERTIES] = {
#define PROPERTY(id, meaning) {#id, check_##id, meaning},
#include "property.def"
#undef PROPERTY
};

static bool complain(FILE *f, const char *what, const char *name) {
    if (f) fprintf(f, "%s %s\n", what, name);
    return false;
}

static bool is_float(const Graph *g, Value v) {
    return dtype_info[graph_type_at(g, v)->dtype].cls == CLASS_FLT;
}

/* An output or an update of that name. */
static const Root *any_root(const Graph *g, EntryKind e, const char *name) {
    const Root *r = graph_root(g, e, false, name);
    return r ? r : graph_root(g, e, true, name);
}

static bool float_scalar(const Graph *g, EntryKind e, const char *name, FILE *f) {
    const Root *r = any_root(g, e, name);
    if (!r) return complain(f, "no root", name);
    if (graph_type_at(g, r->value)->rank || !is_float(g, r->value))
        return complain(f, "no float scalar:", name);
    return true;
}

bool check_HAS_LOSS(const PassContext *ctx, FILE *f) {
    const Graph *g = ctx->g;
    bool counted = graph_root(g, ENTRY_APPLY, false, "static_count") ||
                   graph_root(g, ENTRY_APPLY, false, "loss");
    if (!counted) return complain(f, "apply lacks", "static_count");
    return float_scalar(g, ENTRY_MICRO, "loss_sum", f) &&
           float_scalar(g, ENTRY_MICRO, "loss_count", f) &&
           float_scalar(g, ENTRY_EVAL, "loss_sum", f) &&
           float_scalar(g, ENTRY_EVAL, "loss_count", f);
}

static bool gradients(const PassContext *ctx, FILE *f, bool as_update) {
    Graph *g = ctx->g;
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_states; i++) {
        const State *s = &g->states[i];
        if (!s->trains) continue;
        const char *name = grad_name(g, s->name);
        const Root *r =
            as_update ? graph_root(g, ENTRY_MICRO, true, name) : any_root(g, ENTRY_MICRO, name);
        if (!r) return complain(f, "micro has no root", name);
        if (!dims_equal(graph_type_at(g, r->value), &g->types[s->type]))
            return complain(f, "wrong dims:", name);
        n++;
    }
    return n ? true : complain(f, "no parameter", "trains");
}

bool check_HAS_GRADIENT(const PassContext *ctx, FILE *f) { return gradients(ctx, f, false); }

bool check_ACCUMULATED(const PassContext *ctx, FILE *f) {
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "loss_count" : "loss_sum";
        if (!graph_root(ctx->g, ENTRY_MICRO, true, name))
            return complain(f, "micro does not update", name);
    }
    return gradients(ctx, f, true);
}

bool check_HAS_UPDATES(const PassContext *ctx, FILE *f) {
    const Graph *g = ctx->g;
    static const char *const outputs[] = {"loss", "grad_norm", "count", "grad_scale"};
    for (uint32_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        if (!graph_root(g, ENTRY_APPLY, false, outputs[i]))
            return complain(f, "apply does not give", outputs[i]);
    for (uint32_t i = 0; i < g->n_states; i++)
        if (g->states[i].trains && !graph_root(g, ENTRY_APPLY, true, g->states[i].name))
            return complain(f, "apply does not update", g->states[i].name);
    return true;
}

/* In the entry, and in the bodies of the loops that it reaches. */
static bool has_no_macros(const Graph *g, EntryKind e, Arena *arena, FILE *f) {
    const bool *reached = graph_reachable(g, arena, e);
    for (Value v = 1; v < g->n_nodes; v++) {
        if (!reached[v]) continue;
        if (op_info[graph_op(g, v)].lower == LOWER_MACRO)
            return complain(f, "an entry reaches macro", op_info[graph_op(g, v)].name);
        if (graph_op(g, v) == OP_scan && !has_no_macros(scan_body(g, v)->g, ENTRY_MICRO, arena, f))
            return false;
    }
    return true;
}

bool check_NO_MACROS(const PassContext *ctx, FILE *f) {
    ArenaMark mark = arena_mark(ctx->arena);
    bool holds = true;
    for (int e = 0; e < N_ENTRIES && holds; e++)
        holds = has_no_macros(ctx->g, (EntryKind)e, ctx->arena, f);
    arena_release(ctx->arena, mark);
    return holds;
}

/* ---- the plan ---- */

/* Values that no group holds: views and leaves are index maps that readers inline. */
static bool needs_kernel(const Graph *g, Value v) {
    LowerClass l = op_info[graph_op(g, v)].lower;
    return l != LOWER_LEAF && l != LOWER_VIEW;
}

bool check_FUSED(const PassContext *ctx, FILE *f) {
    const Graph *g = ctx->g;
    const Plan *p = ctx->plan;
    if (!p || !p->n_groups) return complain(f, "no", "groups");
    ArenaMark mark = arena_mark(ctx->arena);
    bool holds = true;
    for (int e = 0; e < N_ENTRIES && holds; e++) {
        const bool *reached = graph_reachable(g, ctx->arena, (EntryKind)e);
        bool *held = arena_alloc(ctx->arena, g->n_nodes);
        for (uint32_t i = 0; i < p->n_groups; i++)
            for (uint32_t k = 0; (int)p->groups[i].entry == e && k < p->groups[i].n_nodes; k++)
                held[p->groups[i].nodes[k]] = true;
        for (Value v = 1; v < g->n_nodes && holds; v++) {
            double splat;
            if (reached[v] && needs_kernel(g, v) && !held[v] && !const_splat(g, v, &splat))
                holds = complain(f, "no group makes a", op_info[graph_op(g, v)].name);
        }
    }
    arena_release(ctx->arena, mark);
    return holds;
}

/* Walks back from the operands of a member, through views, to values that groups store. */
static bool made_before(const Graph *g, const uint32_t *maker, Value v, uint32_t at,
                        uint32_t depth) {
    if (!needs_kernel(g, v)) {
        for (uint32_t i = 0; depth < 64 && i < graph_node(g, v)->n_operands; i++)
            if (!made_before(g, maker, graph_operand(g, v, i), at, depth + 1)) return false;
        return true;
    }
    return maker[v] <= at;
}

static bool order_sound(const PassContext *ctx, EntryKind e, FILE *f) {
    const Graph *g = ctx->g;
    const Plan *p = ctx->plan;
    const EntryPlan *ep = &p->entries[e];
    uint32_t *maker = arena_alloc(ctx->arena, sizeof *maker * g->n_nodes), in_entry = 0;
    for (uint32_t i = 0; i < p->n_groups; i++) in_entry += p->groups[i].entry == e;
    if (in_entry != ep->n) return complain(f, "not every group is launched once in", entry_name[e]);
    for (uint32_t i = ep->n; i-- > 0;) {
        const Group *grp = &p->groups[ep->order[i]];
        for (uint32_t k = 0; k < grp->n_nodes; k++) maker[grp->nodes[k]] = i;
    }
    for (uint32_t i = 0; i < ep->n; i++) {
        const Group *grp = &p->groups[ep->order[i]];
        for (uint32_t k = 0; k < grp->n_nodes; k++)
            for (uint32_t o = 0; o < graph_node(g, grp->nodes[k])->n_operands; o++)
                if (!made_before(g, maker, graph_operand(g, grp->nodes[k], o), i, 0))
                    return complain(f, "a launch reads what a later one makes, for",
                                    op_info[graph_op(g, grp->nodes[k])].name);
    }
    return true;
}

bool check_SCHEDULED(const PassContext *ctx, FILE *f) {
    if (!ctx->plan || !ctx->plan->n_groups) return complain(f, "no", "groups");
    ArenaMark mark = arena_mark(ctx->arena);
    bool holds = true;
    for (int e = 0; e < N_ENTRIES && holds; e++) holds = order_sound(ctx, (EntryKind)e, f);
    arena_release(ctx->arena, mark);
    return holds;
}

static int by_offset(const void *a, const void *b) {
    const Buffer *x = *(const Buffer *const *)a, *y = *(const Buffer *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Symbols and constants live always; internal buffers for launches first..last of their entry. */
static bool meet(const Buffer *a, const Buffer *b) {
    bool a_always = a->symbol || a->constant, b_always = b->symbol || b->constant;
    if (a_always || b_always) return true;
    return a->entry == b->entry && a->first <= b->last && b->first <= a->last;
}

bool check_PLANNED(const PassContext *ctx, FILE *f) {
    const Plan *p = ctx->plan;
    if (!p || !p->arena_bytes) return complain(f, "no", "arena");
    ArenaMark mark = arena_mark(ctx->arena);
    const Buffer **sorted = arena_alloc(ctx->arena, sizeof *sorted * (p->n_buffers + 1));
    for (uint32_t i = 0; i < p->n_buffers; i++) sorted[i] = &p->buffers[i];
    qsort(sorted, p->n_buffers, sizeof *sorted, by_offset);
    bool holds = true;
    for (uint32_t i = 0; i < p->n_buffers && holds; i++) {
        uint64_t end = sorted[i]->offset + sorted[i]->bytes;
        if (end > p->arena_bytes)
            holds = complain(f, "outside the arena: buffer",
                             sorted[i]->symbol ? sorted[i]->symbol : "");
        for (uint32_t k = i + 1; k < p->n_buffers && sorted[k]->offset < end && holds; k++)
            if (sorted[k]->bytes && meet(sorted[i], sorted[k]))
                holds = complain(
                    f, "buffers overlap:", sorted[i]->symbol ? sorted[i]->symbol : "internal");
    }
    arena_release(ctx->arena, mark);
    return holds && plan_check(ctx->g, p, f);
}
