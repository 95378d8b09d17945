/* fuse.c - groups the nodes of each entry into kernels.
 *
 * Every computed value begins as a group of its own; groups are then joined in rounds until nothing changes:
 *   absorb    a value whose every reader is in one group moves there: it is never stored. Row kernels before contraction epilogues on a CPU
 *             (a library's epilogue is a pass of its own there), after them on a GPU
 *   share     a value that is stored anyway is read where it is made
 *   siblings  reductions over the same memory; single elements
 * Each join is checked against the forms of plan.h (fuse_merge.c) and against cycles (fuse_quotient.c). Then values are sought that
 * are stored for a group which could compute them from what it reads anyway; those are inlined, and grouping starts over, once.
 * Linear in practice: a round is one loop over the reads, and the search for cycles is bounded. */
#include "planning.h"
#include <string.h>

enum { MAX_ROUNDS = 8, CLONE_COST = 40, CLONE_NODES = 12 };

static Fuse *fuse_new(PassContext *ctx, EntryKind entry, const bool *inlined) {
    uint32_t n = ctx->g->n_nodes + 1;
    Fuse *f = arena_alloc(ctx->arena, sizeof *f);
    *f = (Fuse){.g = ctx->g, .arena = ctx->arena, .entry = entry, .for_gpu = ctx->options && ctx->options->for_gpu};
    f->live = graph_reachable(ctx->g, ctx->arena, entry);
    f->computed = arena_alloc(ctx->arena, n);
    f->stored = arena_alloc(ctx->arena, n);
    f->inlined = arena_alloc(ctx->arena, n);
    f->forced = arena_alloc(ctx->arena, n);
    f->is_updated = arena_alloc(ctx->arena, n);
    f->level = arena_alloc(ctx->arena, n);
    f->parent = arena_alloc(ctx->arena, n * sizeof *f->parent);
    f->next = arena_alloc(ctx->arena, n * sizeof *f->next);
    f->repeat = arena_alloc(ctx->arena, n * sizeof *f->repeat);
    f->groups = arena_alloc(ctx->arena, n * sizeof *f->groups);
    f->stamp = arena_alloc(ctx->arena, n * sizeof *f->stamp);
    f->held = arena_alloc(ctx->arena, n * sizeof *f->held);
    f->region = arena_alloc(ctx->arena, 512 * sizeof *f->region);
    if (inlined) memcpy(f->inlined, inlined, ctx->g->n_nodes);
    return f;
}

static FuseClass first_class(const Graph *g, Value v) {
    switch (op_info[graph_op(g, v)].lower) {
    case LOWER_REDUCE: return is_row_reduction(g, v) ? FUSE_ROW : FUSE_ANCHOR;
    case LOWER_CONTRACT: return FUSE_CONTRACT;
    case LOWER_SCATTER: return FUSE_SCATTER;
    case LOWER_LEAF: case LOWER_VIEW: case LOWER_MAP: case LOWER_MACRO: break;
    }
    return FUSE_MAP;
}

static void begin_groups(Fuse *f) {
    fuse_groups_init(f);
    for (Value v = 1; v < f->g->n_nodes; v++) {
        if (!f->computed[v]) continue;
        FuseClass cls = first_class(f->g, v);
        f->level[v] = cls == FUSE_ROW ? LEVEL_ROW : LEVEL_FULL;
        f->repeat[v] = 1;
        f->groups[v] = (FuseGroup){.cls = cls, .anchor = cls == FUSE_MAP ? 0 : v, .first = v, .last = v, .n_members = 1,
                                   .n_reductions = cls == FUSE_ROW, .cost = node_cost(f->g, v),
                                   .elems = type_elems(graph_type_at(f->g, v)), .ord = v};
    }
}

/* Are all readers of v in its own group or in c? */
static bool read_only_by(Fuse *f, Value v, Value c) {
    if (f->forced[v]) return false;
    Value own = fuse_find(f, v);
    for (uint32_t i = f->first_reader[v]; i < f->first_reader[v + 1]; i++) {
        Value reader = fuse_find(f, f->readers[i].node);
        if (reader != own && reader != c) return false;
    }
    return true;
}

typedef enum Round { ABSORB, ABSORB_ROWS, SHARE } Round;

static bool round_wants(Fuse *f, Value base, Value p, Value c, Round round, bool epilogues) {
    bool is_epilogue = f->groups[p].cls == FUSE_CONTRACT;
    if (is_epilogue != epilogues) return false;
    if (round != SHARE && !read_only_by(f, base, c)) return false;
    return round != ABSORB_ROWS || f->groups[p].cls == FUSE_ROW || f->groups[c].cls == FUSE_ROW;
}

/* One loop over all reads in graph order. */
static bool sweep(Fuse *f, Round round, bool epilogues) {
    bool changed = false;
    for (Value v = 1; v < f->g->n_nodes; v++) {
        if (!f->computed[v]) continue;
        for (uint32_t i = f->first_read[v]; i < f->first_read[v + 1]; i++) {
            Value base = f->reads[i].base;
            if (!f->computed[base]) continue;
            Value p = fuse_find(f, base), c = fuse_find(f, v);
            if (p == c || !round_wants(f, base, p, c, round, epilogues)) continue;
            changed |= fuse_merge(f, p, c);
        }
    }
    return changed;
}

static void sweeps(Fuse *f, Round round, bool epilogues) {
    for (int i = 0; i < MAX_ROUNDS && sweep(f, round, epilogues); i++) {}
}

/* Neighbours among the readers of one value, and single elements one after another. */
static void siblings(Fuse *f) {
    Value last_scalar = 0;
    for (Value v = 1; v < f->g->n_nodes; v++) {
        Value last = 0;
        for (uint32_t i = f->first_reader[v]; (f->stored[v] || f->computed[v]) && i < f->first_reader[v + 1]; i++) {
            Value c = fuse_find(f, f->readers[i].node);
            if (f->groups[c].cls != FUSE_ROW || c == last) continue;
            if (last) fuse_merge_siblings(f, last, c);
            last = fuse_find(f, c);
        }
        if (!f->computed[v]) continue;
        Value own = fuse_find(f, v);
        if (f->groups[own].cls != FUSE_MAP || f->groups[own].elems != 1) continue;
        if (last_scalar && fuse_find(f, last_scalar) != own) fuse_merge_siblings(f, fuse_find(f, last_scalar), own);
        last_scalar = fuse_find(f, v);
    }
}

static void form_groups(Fuse *f) {
    fuse_classify(f);
    fuse_resolve(f);
    begin_groups(f);
    if (f->for_gpu) sweeps(f, ABSORB, true);
    sweeps(f, ABSORB_ROWS, false);
    sweeps(f, ABSORB, false);
    sweeps(f, ABSORB, true);
    if (f->for_gpu) sweeps(f, SHARE, true);
    sweeps(f, SHARE, false);
    sweeps(f, SHARE, true);
    sweeps(f, ABSORB, false);
    siblings(f);
}

/* ---------------------------------------------------------------- values cheaper computed again than stored */

typedef struct Cone { Value maps[CLONE_NODES], bases[CLONE_NODES]; uint32_t n_maps, n_bases, cost; bool legal; } Cone;

/* The maps above v up to values that are stored anyway. */
static void cone_add(Fuse *f, Cone *cone, Value v) {
    for (uint32_t i = 0; i < cone->n_maps; i++)
        if (cone->maps[i] == v) return;
    bool is_map = op_info[graph_op(f->g, v)].lower == LOWER_MAP && !f->forced[v];
    if (!is_map || cone->n_maps == CLONE_NODES) {
        cone->legal = false;
        return;
    }
    cone->maps[cone->n_maps++] = v;
    cone->cost += node_cost(f->g, v);
    for (uint32_t i = f->first_read[v]; i < f->first_read[v + 1] && cone->legal; i++) {
        const Read *r = &f->reads[i];
        bool is_base = f->stored[r->base] || f->forced[r->base] || op_info[graph_op(f->g, r->base)].lower != LOWER_MAP;
        if (r->kind != READ_SAME && !is_base) cone->legal = false;
        else if (!is_base) cone_add(f, cone, r->base);
        else if (cone->n_bases < CLONE_NODES) cone->bases[cone->n_bases++] = r->base;
        else cone->legal = false;
    }
}

static bool group_reads_all(Fuse *f, Value group, const Cone *cone) {
    for (uint32_t i = 0; i < cone->n_bases; i++) {
        bool reads = type_elems(graph_type_at(f->g, cone->bases[i])) == 1;
        Value b = cone->bases[i];
        for (uint32_t k = f->first_reader[b]; k < f->first_reader[b + 1] && !reads; k++) {
            Value c = f->readers[k].node;
            bool in_cone = false;
            for (uint32_t m = 0; m < cone->n_maps; m++) in_cone |= cone->maps[m] == c;
            reads = !in_cone && fuse_find(f, c) == group;
        }
        if (!reads) return false;
    }
    return true;
}

/* Does every other group that reads map v read all of the cone's bases too, and at the same element? */
static bool readers_read_all(Fuse *f, Value v, const Cone *cone) {
    Value own = fuse_find(f, v);
    for (uint32_t i = f->first_reader[v]; i < f->first_reader[v + 1]; i++) {
        Value c = fuse_find(f, f->readers[i].node);
        if (c == own) continue;
        if (f->reads[f->readers[i].read].kind != READ_SAME || f->groups[c].cls == FUSE_SCATTER) return false;
        if (!group_reads_all(f, c, cone)) return false;
    }
    return true;
}

/* Is v stored for groups that all read what it is made of? Then its cone becomes inlined. */
static bool clone(Fuse *f, Value v, bool *inlined) {
    if (!f->computed[v] || f->forced[v] || f->level[v] != LEVEL_FULL || !fuse_is_out(f, v)) return false;
    Cone cone = {.legal = true};
    cone_add(f, &cone, v);
    if (!cone.legal || cone.cost > CLONE_COST) return false;
    for (uint32_t i = 0; i < cone.n_maps; i++)
        if (!readers_read_all(f, cone.maps[i], &cone)) return false;
    for (uint32_t i = 0; i < cone.n_maps; i++) inlined[cone.maps[i]] = true;
    return true;
}

static bool find_clones(Fuse *f, bool *inlined) {
    bool any = false;
    for (Value v = 1; v < f->g->n_nodes; v++) any |= clone(f, v, inlined);
    return any;
}

static bool fuse_entry(PassContext *ctx, EntryKind e) {
    bool *inlined = arena_alloc(ctx->arena, ctx->g->n_nodes);
    Fuse *f = fuse_new(ctx, e, NULL);
    form_groups(f);
    if (find_clones(f, inlined)) {
        f = fuse_new(ctx, e, inlined);
        form_groups(f);
    }
    fuse_emit(f, ctx->plan);
    return fuse_copies(ctx, e);
}

bool pass_fuse(PassContext *ctx) {
    Plan *plan = arena_alloc(ctx->arena, sizeof *plan);
    plan->batch = ctx->options->batch;
    plan->micro_batch = ctx->options->micro_batch;
    plan->accumulation_steps = plan->micro_batch > 0 ? plan->batch / plan->micro_batch : 1;
    size_t n = ctx->g->n_nodes * N_ENTRIES;
    for (int e = 0; e < N_ENTRIES; e++) n += ctx->g->entries[e].n;
    plan->groups = arena_alloc(ctx->arena, sizeof *plan->groups * n);
    ctx->plan = plan;
    for (int e = 0; e < N_ENTRIES; e++)
        if (ctx->g->entries[e].n && !fuse_entry(ctx, (EntryKind)e)) return false;
    return true;
}
