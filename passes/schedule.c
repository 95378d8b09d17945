/* schedule.c - the order of launches of each entry, for a low peak of memory.
 *
 * A group runs after those that make what it reads; a group that reads a state runs before the one
 * that overwrites it. Among those, list scheduling: three rules choose among the ready groups, each
 * order is simulated, and the lowest peak wins. The first rule is graph order, but what frees more
 * than it takes goes first: so a weight gradient follows its dY at once, and copies and updates
 * come as soon as they may. Deterministic: ties go to graph order. */
#include "planning.h"
#include <string.h>

typedef enum Rule { RULE_FREES_FIRST, RULE_GRAPH_ORDER, RULE_LEAST_GROWTH, N_RULES } Rule;

typedef struct Launches {
    const Graph *g;
    Plan *plan;
    Arena *arena;
    EntryKind entry;
    uint32_t first, n;
    uint32_t *maker;     /* per Value: 1 + group */
    uint64_t *bytes;     /* per Value: of its internal buffer, 0 where it has none */
    uint32_t *n_readers; /* per Value: groups that read it */
    GroupRead **reads;
    uint32_t *n_reads;
    uint32_t *n_before; /* per group: how many must run before */
    uint32_t *first_after, *after;
    uint32_t n_edges;
} Launches;

static const Group *group_at(const Launches *l, uint32_t i) {
    return &l->plan->groups[l->first + i];
}

static void find_values(Launches *l) {
    bool *stored = plan_stored(l->g, l->plan, l->entry, l->arena);
    uint32_t *home = plan_home_roots(l->g, l->plan, l->entry, l->arena);
    for (uint32_t i = 0; i < l->n; i++)
        for (uint32_t k = 0; k < group_at(l, i)->n_outs; k++) {
            Value v = group_at(l, i)->outs[k];
            l->maker[v] = i + 1;
            l->bytes[v] = home[v] ? 0 : type_bytes(graph_type_at(l->g, v));
        }
    for (uint32_t i = 0; i < l->n; i++) {
        l->reads[i] = group_reads(l->g, stored, group_at(l, i), l->arena, &l->n_reads[i]);
        for (uint32_t k = 0; k < l->n_reads[i]; k++) l->n_readers[l->reads[i][k].value]++;
    }
}

typedef struct Edges {
    uint32_t (*pairs)[2];
    uint32_t n, cap;
} Edges;

static void add_edge(Launches *l, Edges *e, uint32_t from, uint32_t to) {
    if (from == to) return;
    if (e->n == e->cap) {
        uint32_t cap = e->cap * 2 + 256;
        e->pairs = arena_grow(l->arena, e->pairs, sizeof *e->pairs * e->n, sizeof *e->pairs * cap);
        e->cap = cap;
    }
    e->pairs[e->n][0] = from;
    e->pairs[e->n++][1] = to;
}

/* Readers of a state before the group that stores the root's value into it. */
static void order_updates(Launches *l, Edges *edges) {
    const Entry *entry = &l->g->entries[l->entry];
    uint32_t *home = plan_home_roots(l->g, l->plan, l->entry, l->arena);
    uint32_t *writer = arena_alloc(l->arena, sizeof *writer * (entry->n + 1));
    for (uint32_t i = 0; i < l->n; i++) {
        const Group *group = group_at(l, i);
        if (group->root) writer[group->root - 1] = i + 1;
        for (uint32_t k = 0; k < group->n_outs; k++)
            if (home[group->outs[k]]) writer[home[group->outs[k]] - 1] = i + 1;
    }
    for (uint32_t i = 0; i < l->n; i++)
        for (uint32_t k = 0; k < l->n_reads[i]; k++) {
            Value v = l->reads[i][k].value;
            if (graph_op(l->g, v) != OP_state) continue;
            const Root *r = graph_root(l->g, l->entry, true, attr_s(l->g, v, A_NAME));
            if (r && writer[r - entry->roots]) add_edge(l, edges, i, writer[r - entry->roots] - 1);
        }
}

static void find_order_constraints(Launches *l) {
    Edges edges = {0};
    for (uint32_t i = 0; i < l->n; i++)
        for (uint32_t k = 0; k < l->n_reads[i]; k++)
            if (l->maker[l->reads[i][k].value])
                add_edge(l, &edges, l->maker[l->reads[i][k].value] - 1, i);
    order_updates(l, &edges);
    l->n_edges = edges.n;
    l->after = arena_alloc(l->arena, sizeof *l->after * (edges.n + 1));
    for (uint32_t i = 0; i < edges.n; i++) l->first_after[edges.pairs[i][0] + 2]++;
    for (uint32_t i = 2; i < l->n + 2; i++) l->first_after[i] += l->first_after[i - 1];
    for (uint32_t i = 0; i < edges.n; i++) {
        l->after[l->first_after[edges.pairs[i][0] + 1]++] = edges.pairs[i][1];
        l->n_before[edges.pairs[i][1]]++;
    }
}

/* ---------------------------------------------------------------- one order */

typedef struct Run {
    Rule rule;
    uint32_t *left, *waits, *ready, *order;
    uint32_t n_ready, n_order;
    uint64_t live, peak;
} Run;

/* What a launch takes less what dies with it. */
static int64_t growth(const Launches *l, const Run *run, uint32_t i) {
    int64_t bytes = 0;
    for (uint32_t k = 0; k < group_at(l, i)->n_outs; k++) {
        Value v = group_at(l, i)->outs[k];
        if (l->n_readers[v]) bytes += (int64_t)l->bytes[v];
    }
    for (uint32_t k = 0; k < l->n_reads[i]; k++) {
        Value v = l->reads[i][k].value;
        if (run->left[v] == 1) bytes -= (int64_t)l->bytes[v];
    }
    return bytes;
}

static uint32_t choose(const Launches *l, const Run *run) {
    uint32_t best = 0;
    int64_t best_key = INT64_MAX;
    for (uint32_t i = 0; i < run->n_ready; i++) {
        uint32_t at = run->ready[i];
        int64_t grows = growth(l, run, at), key = 0;
        if (run->rule == RULE_LEAST_GROWTH) key = grows;
        if (run->rule == RULE_FREES_FIRST) key = grows <= 0 ? -1 : 0;
        if (key < best_key || (key == best_key && at < run->ready[best])) {
            best = i;
            best_key = key;
        }
    }
    return best;
}

static void launch(const Launches *l, Run *run, uint32_t i) {
    run->order[run->n_order++] = i;
    for (uint32_t k = 0; k < group_at(l, i)->n_outs; k++)
        run->live += l->bytes[group_at(l, i)->outs[k]];
    if (run->live > run->peak) run->peak = run->live;
    for (uint32_t k = 0; k < group_at(l, i)->n_outs; k++)
        if (!l->n_readers[group_at(l, i)->outs[k]]) run->live -= l->bytes[group_at(l, i)->outs[k]];
    for (uint32_t k = 0; k < l->n_reads[i]; k++)
        if (--run->left[l->reads[i][k].value] == 0) run->live -= l->bytes[l->reads[i][k].value];
    for (uint32_t k = l->first_after[i]; k < l->first_after[i + 1]; k++)
        if (--run->waits[l->after[k]] == 0) run->ready[run->n_ready++] = l->after[k];
}

static Run run_rule(const Launches *l, Rule rule) {
    uint32_t n_nodes = l->g->n_nodes;
    Run run = {.rule = rule};
    run.left = arena_alloc(l->arena, sizeof *run.left * n_nodes);
    memcpy(run.left, l->n_readers, sizeof *run.left * n_nodes);
    run.waits = arena_alloc(l->arena, sizeof *run.waits * (l->n + 1));
    memcpy(run.waits, l->n_before, sizeof *run.waits * l->n);
    run.ready = arena_alloc(l->arena, sizeof *run.ready * (l->n + 1));
    run.order = arena_alloc(l->arena, sizeof *run.order * (l->n + 1));
    for (uint32_t i = 0; i < l->n; i++)
        if (!run.waits[i]) run.ready[run.n_ready++] = i;
    while (run.n_ready) {
        uint32_t at = choose(l, &run), i = run.ready[at];
        run.ready[at] = run.ready[--run.n_ready];
        launch(l, &run, i);
    }
    return run;
}

static bool schedule_entry(PassContext *ctx, EntryKind e) {
    Plan *plan = ctx->plan;
    uint32_t first = 0, n = 0, n_nodes = ctx->g->n_nodes;
    while (first < plan->n_groups && plan->groups[first].entry != e) first++;
    while (first + n < plan->n_groups && plan->groups[first + n].entry == e) n++;
    Launches l = {
        .g = ctx->g, .plan = plan, .arena = ctx->arena, .entry = e, .first = first, .n = n};
    l.maker = arena_alloc(l.arena, sizeof *l.maker * n_nodes);
    l.bytes = arena_alloc(l.arena, sizeof *l.bytes * n_nodes);
    l.n_readers = arena_alloc(l.arena, sizeof *l.n_readers * n_nodes);
    l.reads = arena_alloc(l.arena, sizeof *l.reads * (n + 1));
    l.n_reads = arena_alloc(l.arena, sizeof *l.n_reads * (n + 1));
    l.n_before = arena_alloc(l.arena, sizeof *l.n_before * (n + 1));
    l.first_after = arena_alloc(l.arena, sizeof *l.first_after * (n + 3));
    find_values(&l);
    find_order_constraints(&l);
    Run best = {.n_order = 0};
    for (Rule rule = 0; rule < N_RULES; rule++) {
        Run run = run_rule(&l, rule);
        if (run.n_order != n) return false; /* a cycle: fuse left none */
        if (rule == 0 || run.peak < best.peak) best = run;
    }
    for (uint32_t i = 0; i < n; i++) best.order[i] += first;
    plan->entries[e] = (EntryPlan){.order = best.order, .n = n};
    return true;
}

bool pass_schedule(PassContext *ctx) {
    for (int e = 0; e < N_ENTRIES; e++)
        if (!schedule_entry(ctx, (EntryKind)e)) return false;
    return true;
}
