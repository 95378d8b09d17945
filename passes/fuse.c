/* fuse.c - groups the nodes of each entry into kernels.
 *
 * Every computed value begins as a group of its own; groups are then joined in rounds until nothing
 * changes. In an ABSORB round a value whose every reader is in one group moves there and is never
 * stored: on a CPU into row kernels before contraction epilogues (a library's epilogue is a pass of
 * its own there), on a GPU after them. In a SHARE round a value that is stored anyway is read where
 * it is made; first of all what a reduction gives back to its rows. Then siblings: reductions over
 * the same memory, and single elements. Each join is checked against the forms of plan.h
 * (fuse_merge.c) and against cycles (fuse_quotient.c).
 *
 * Then values are sought that are stored for groups which could as well compute them; those become
 * maps that every reader evaluates for itself, and grouping starts over, once. Linear in practice:
 * a round is one loop over the reads, and the search for cycles is bounded. */
#include "planning.h"
#include "scan.h"
#include <string.h>

enum { MAX_ROUNDS = 8, MAX_SIBLINGS = 8, CLONE_COST = 40, CLONE_NODES = 16, SMALL_PART = 8 };

static Fuse *fuse_new(PassContext *ctx, EntryKind entry, const bool *inlined) {
    uint32_t n = ctx->g->n_nodes + 1;
    Fuse *f = arena_alloc(ctx->arena, sizeof *f);
    *f = (Fuse){.g = ctx->g,
                .arena = ctx->arena,
                .entry = entry,
                .for_gpu = ctx->options && ctx->options->for_gpu,
                .is_body = ctx->options && ctx->options->is_body};
    f->live = graph_reachable(ctx->g, ctx->arena, entry);
    f->computed = arena_alloc(ctx->arena, n);
    f->stored = arena_alloc(ctx->arena, n);
    f->inlined = arena_alloc(ctx->arena, n);
    f->forced = arena_alloc(ctx->arena, n);
    f->is_updated = arena_alloc(ctx->arena, n);
    f->updates = arena_alloc(ctx->arena, n);
    f->level = arena_alloc(ctx->arena, n);
    f->parent = arena_alloc(ctx->arena, n * sizeof *f->parent);
    f->next = arena_alloc(ctx->arena, n * sizeof *f->next);
    f->repeat = arena_alloc(ctx->arena, n * sizeof *f->repeat);
    f->groups = arena_alloc(ctx->arena, n * sizeof *f->groups);
    f->stamp = arena_alloc(ctx->arena, n * sizeof *f->stamp);
    f->held = arena_alloc(ctx->arena, n * sizeof *f->held);
    f->region = arena_alloc(ctx->arena, FUSE_REGION * sizeof *f->region);
    if (inlined) memcpy(f->inlined, inlined, ctx->g->n_nodes);
    return f;
}

static FuseClass first_class(const Graph *g, Value v) {
    switch (op_info[graph_op(g, v)].lower) {
    case LOWER_REDUCE:
        return is_row_reduction(g, v) ? FUSE_ROW : FUSE_ANCHOR;
    case LOWER_CONTRACT:
        return FUSE_CONTRACT;
    case LOWER_SCATTER:
        return FUSE_SCATTER;
    case LOWER_LOOP:
        return FUSE_LOOP;
    case LOWER_LEAF:
    case LOWER_VIEW:
    case LOWER_MAP:
    case LOWER_MACRO:
        break;
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
        f->groups[v] = (FuseGroup){.cls = cls,
                                   .anchor = cls == FUSE_MAP ? 0 : v,
                                   .first = v,
                                   .last = v,
                                   .n_members = 1,
                                   .n_reductions = cls == FUSE_ROW,
                                   .cost = node_cost(f->g, v),
                                   .elems = type_elems(graph_type_at(f->g, v)),
                                   .ord = v};
    }
}

/* Nodes that are one loop are one group from the beginning: they read the same, so the first one's
 * place in the order serves all. */
static void join_loops(Fuse *f) {
    for (Value v = 1; v < f->g->n_nodes; v++) {
        if (!f->computed[v] || graph_op(f->g, v) != OP_scan) continue;
        for (Value u = 1; u < v; u++) {
            if (!f->computed[u] || f->parent[u] != u || !scans_are_siblings(f->g, u, v)) continue;
            f->parent[v] = u;
            f->next[f->groups[u].last] = v;
            f->groups[u].last = v;
            f->groups[u].n_members++;
            break;
        }
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

typedef enum Round { ABSORB, ABSORB_ROWS, SHARE, SHARE_ROWS } Round;

static bool round_wants(Fuse *f, const Read *r, Value p, Value c, Round round, bool epilogues) {
    bool is_epilogue = f->groups[p].cls == FUSE_CONTRACT, from_row = f->groups[p].cls == FUSE_ROW;
    if (is_epilogue != epilogues) return false;
    switch (round) {
    case ABSORB:
        return read_only_by(f, r->base, c);
    case ABSORB_ROWS:
        return (from_row || f->groups[c].cls == FUSE_ROW) && read_only_by(f, r->base, c);
    case SHARE_ROWS:
        return from_row && r->kind == READ_BCAST;
    case SHARE:
        break;
    }
    return true;
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
            if (p == c || !round_wants(f, &f->reads[i], p, c, round, epilogues)) continue;
            changed |= fuse_merge(f, p, c);
        }
    }
    return changed;
}

static void sweeps(Fuse *f, Round round, bool epilogues) {
    for (int i = 0; i < MAX_ROUNDS && sweep(f, round, epilogues); i++) {
    }
}

/* Row kernels among the readers of one value, each with the few before it. */
static void row_siblings(Fuse *f) {
    for (Value v = 1; v < f->g->n_nodes; v++) {
        Value before[MAX_SIBLINGS];
        uint32_t n = 0;
        for (uint32_t i = f->first_reader[v];
             (f->stored[v] || f->computed[v]) && i < f->first_reader[v + 1]; i++) {
            Value c = fuse_find(f, f->readers[i].node);
            if (f->groups[c].cls != FUSE_ROW) continue;
            bool joined = false;
            for (uint32_t k = 0; k < n && !joined; k++) {
                Value b = fuse_find(f, before[k]);
                joined = b == c || fuse_merge_siblings(f, b, c);
            }
            if (!joined && n < MAX_SIBLINGS) before[n++] = c;
        }
    }
}

/* Single elements one after another. */
static void scalar_siblings(Fuse *f) {
    Value last = 0;
    for (Value v = 1; v < f->g->n_nodes; v++) {
        if (!f->computed[v]) continue;
        Value own = fuse_find(f, v);
        if (f->groups[own].cls != FUSE_MAP || f->groups[own].elems != 1) continue;
        if (last && fuse_find(f, last) != own) fuse_merge_siblings(f, fuse_find(f, last), own);
        last = v;
    }
}

/* In the body of a loop: maps of as many elements, whatever they read, each with the few of that
 * size before it. What a launch costs counts once per turn. */
static void map_siblings(Fuse *f) {
    for (Value v = 1; v < f->g->n_nodes; v++) {
        if (!f->computed[v] || fuse_find(f, v) != v || f->groups[v].cls != FUSE_MAP) continue;
        int tries = 0;
        for (Value u = v; --u && tries < MAX_SIBLINGS;) {
            if (!f->computed[u] || fuse_find(f, u) != u || f->groups[u].cls != FUSE_MAP ||
                f->groups[u].elems != f->groups[v].elems)
                continue;
            tries++;
            if (fuse_merge_siblings(f, u, v)) break;
        }
    }
}

static void form_groups(Fuse *f) {
    fuse_classify(f);
    fuse_resolve(f);
    begin_groups(f);
    join_loops(f);
    if (f->for_gpu) sweeps(f, ABSORB, true);
    sweeps(f, ABSORB_ROWS, false);
    sweeps(f, ABSORB, false);
    sweeps(f, ABSORB, true);
    sweeps(f, SHARE_ROWS, false);
    sweeps(f, ABSORB, false);
    row_siblings(f);
    sweeps(f, ABSORB, false);
    if (f->for_gpu) sweeps(f, SHARE, true);
    sweeps(f, SHARE, false);
    sweeps(f, SHARE, true);
    sweeps(f, ABSORB, false);
    row_siblings(f);
    scalar_siblings(f);
    if (f->is_body) map_siblings(f);
}

/* ---------------------------------------------------------------- values cheaper computed again
 * than stored */

typedef struct Cone {
    Value maps[CLONE_NODES], bases[CLONE_NODES];
    uint32_t n_maps, n_bases, cost;
    bool legal;
} Cone;

static int64_t elems_of(const Fuse *f, Value v) { return type_elems(graph_type_at(f->g, v)); }
static uint64_t bytes_of(const Fuse *f, Value v) { return type_bytes(graph_type_at(f->g, v)); }

static bool is_listed(const Value *list, uint32_t n, Value v) {
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == v) return true;
    return false;
}

/* The maps above v down to what lies in memory or will, is made by no map, or is small beside `of`.
 */
static void cone_add(Fuse *f, Cone *cone, Value v, Value of, const bool *inlined) {
    if (is_listed(cone->maps, cone->n_maps, v)) return;
    if (cone->n_maps == CLONE_NODES || op_info[graph_op(f->g, v)].lower != LOWER_MAP) {
        cone->legal = false;
        return;
    }
    cone->maps[cone->n_maps++] = v;
    cone->cost += node_cost(f->g, v);
    for (uint32_t i = f->first_read[v]; i < f->first_read[v + 1] && cone->legal; i++) {
        const Read *r = &f->reads[i];
        bool small = elems_of(f, r->base) * SMALL_PART <= elems_of(f, of);
        bool is_out = f->computed[r->base] && !inlined[r->base] && fuse_is_out(f, r->base);
        bool is_base = small || is_out || f->stored[r->base] || f->forced[r->base] ||
                       op_info[graph_op(f->g, r->base)].lower != LOWER_MAP;
        if (is_listed(cone->bases, cone->n_bases, r->base)) continue;
        if (f->is_updated[r->base])
            cone->legal = false; /* must not be read late */
        else if (is_base ? cone->n_bases == CLONE_NODES : r->kind != READ_SAME)
            cone->legal = false;
        else if (is_base)
            cone->bases[cone->n_bases++] = r->base;
        else
            cone_add(f, cone, r->base, of, inlined);
    }
}

/* The one base that is not small beside v; 0 where there are more, or none. */
static Value big_base(const Fuse *f, const Cone *cone, Value v, uint32_t *n) {
    Value big = 0;
    *n = 0;
    for (uint32_t i = 0; i < cone->n_bases; i++) {
        if (elems_of(f, cone->bases[i]) * SMALL_PART <= elems_of(f, v)) continue;
        big = cone->bases[i];
        ++*n;
    }
    return *n == 1 ? big : 0;
}

static bool reads_directly(Fuse *f, Value group, Value base, const Cone *cone) {
    for (uint32_t k = f->first_reader[base]; k < f->first_reader[base + 1]; k++) {
        Value c = f->readers[k].node;
        if (!is_listed(cone->maps, cone->n_maps, c) && fuse_find(f, c) == group) return true;
    }
    return false;
}

/* Groups that read map v of the cone must do so element by element and, where `need` says so, read
 * all large bases themselves. */
static bool readers_fit(Fuse *f, Value v, const Cone *cone, bool need) {
    Value own = fuse_find(f, v);
    for (uint32_t i = f->first_reader[v]; i < f->first_reader[v + 1]; i++) {
        Value c = fuse_find(f, f->readers[i].node);
        if (c == own) continue;
        if (f->reads[f->readers[i].read].kind != READ_SAME || f->groups[c].cls >= FUSE_SCATTER)
            return false;
        for (uint32_t b = 0; need && b < cone->n_bases; b++) {
            bool small = elems_of(f, cone->bases[b]) * SMALL_PART <= elems_of(f, cone->maps[0]);
            if (!small && !reads_directly(f, c, cone->bases[b], cone)) return false;
        }
    }
    return true;
}

static bool cone_of(Fuse *f, Value v, Cone *cone, const bool *inlined) {
    if (!f->computed[v] || f->forced[v] || f->level[v] != LEVEL_FULL || !fuse_is_out(f, v))
        return false;
    *cone = (Cone){.legal = true};
    cone_add(f, cone, v, v, inlined);
    return cone->legal && cone->cost <= CLONE_COST;
}

/* Is v, stored for other groups, better computed again there? Where they read its bases anyway; or
 * it has one large base, no larger than itself, that is stored anyway or stands for several such
 * values: what is kept in memory is then no more, and v is not written. */
static bool clone(Fuse *f, Value v, const uint16_t *votes, bool *inlined) {
    Cone cone;
    if (!cone_of(f, v, &cone, inlined)) return false;
    uint32_t n_big;
    Value big = big_base(f, &cone, v, &n_big);
    bool stands_for = big && bytes_of(f, big) <= bytes_of(f, v) &&
                      (f->stored[big] || fuse_is_out(f, big) || votes[big] > 1);
    for (uint32_t i = 0; i < cone.n_maps; i++)
        if (!readers_fit(f, cone.maps[i], &cone, !stands_for && n_big)) return false;
    for (uint32_t i = 0; i < cone.n_maps; i++) inlined[cone.maps[i]] = true;
    return true;
}

static bool find_clones(Fuse *f, bool *inlined) {
    bool any = false;
    uint16_t *votes = arena_alloc(f->arena, sizeof *votes * f->g->n_nodes);
    for (Value v = 1; v < f->g->n_nodes; v++) {
        Cone cone;
        uint32_t n;
        Value big = cone_of(f, v, &cone, inlined) ? big_base(f, &cone, v, &n) : 0;
        if (big && votes[big] < UINT16_MAX) votes[big]++;
    }
    for (Value v = 1; v < f->g->n_nodes; v++) any |= clone(f, v, votes, inlined);
    return any;
}

static void fuse_entry(PassContext *ctx, EntryKind e) {
    bool *inlined = arena_alloc(ctx->arena, ctx->g->n_nodes);
    Fuse *f = fuse_new(ctx, e, NULL);
    form_groups(f);
    if (find_clones(f, inlined)) {
        f = fuse_new(ctx, e, inlined);
        form_groups(f);
    }
    fuse_emit(f, ctx->plan);
    fuse_copies(ctx, e);
}

/* A state that becomes another one which is itself overwritten (two that change places). */
static bool is_moving_state(const Graph *g, EntryKind e, const Root *r) {
    return r->is_update && graph_op(g, r->value) == OP_state && !root_is_idle(g, r) &&
           graph_root(g, e, true, attr_s(g, r->value, A_NAME));
}

/* What a step of a loop leaves that is one of its carries, as it was or as it becomes. */
static bool is_stacked_carry(const Graph *g, EntryKind e, const Root *r) {
    if (r->is_update) return false;
    if (graph_op(g, r->value) == OP_state)
        return graph_state(g, attr_s(g, r->value, A_NAME))->cls == STATE_CARRY;
    bool is_view = graph_op(g, r->value) == OP_reshape; /* it may stand behind one by now */
    for (uint32_t i = 0; i < g->entries[e].n && !is_view; i++) {
        const Root *u = &g->entries[e].roots[i];
        if (u->is_update && u->value == r->value && graph_state(g, u->name)->cls == STATE_CARRY)
            return true;
    }
    return false;
}

/* Behind a view it is a value of its own, which a group may keep until the state is read, or store
 * beside the state: no copy. */
void fuse_detach_states(Graph *g, EntryKind e) {
    for (uint32_t i = 0; i < g->entries[e].n; i++) {
        Root *r = &g->entries[e].roots[i];
        if (is_moving_state(g, e, r) || is_stacked_carry(g, e, r))
            r->value = graph_emit(g, OP_reshape, &r->value, 1, 0, graph_node(g, r->value)->type);
    }
}

enum { MAX_LOOP_DEPTH = 2 }; /* strides that an argument has, runtime/trainc_program.h */

/* How many loops lie one in the other, at most, at or below g's; *deepest is g's node of that
 * chain. */
static uint32_t loop_depth(const Graph *g, Value *deepest) {
    uint32_t depth = 0;
    for (Value v = 1; v < g->n_nodes; v++) {
        Value inner;
        uint32_t d = graph_op(g, v) == OP_scan ? 1 + loop_depth(scan_body(g, v)->g, &inner) : 0;
        if (d <= depth) continue;
        depth = d;
        *deepest = v;
    }
    return depth;
}

bool pass_fuse(PassContext *ctx) {
    Value deepest = 0;
    if (ctx->g->n_bodies && loop_depth(ctx->g, &deepest) > MAX_LOOP_DEPTH) {
        diag_add(ctx->g, E_OP_UNSUPPORTED, graph_node(ctx->g, deepest)->loc, "scan",
                 ": loops lie more than two deep within each other");
        return false;
    }
    for (int e = 0; e < N_ENTRIES; e++) fuse_detach_states(ctx->g, (EntryKind)e);
    Plan *plan = ctx->plan
                     ? ctx->plan
                     : arena_alloc(ctx->arena, sizeof *plan); /* the caller's, where it gave one */
    *plan = (Plan){.groups = NULL};
    plan->batch = ctx->options->batch;
    plan->micro_batch = ctx->options->micro_batch;
    plan->accumulation_steps = plan->micro_batch > 0 ? plan->batch / plan->micro_batch : 1;
    size_t n = (size_t)ctx->g->n_nodes * N_ENTRIES;
    for (int e = 0; e < N_ENTRIES; e++) n += ctx->g->entries[e].n;
    plan->groups = arena_alloc(ctx->arena, sizeof *plan->groups * n);
    ctx->plan = plan;
    for (int e = 0; e < N_ENTRIES; e++)
        if (ctx->g->entries[e].n) fuse_entry(ctx, (EntryKind)e);
    return true;
}
