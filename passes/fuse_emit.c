/* fuse_emit.c - the groups that fuse formed, as the plan's; and COPY groups for roots that no group
 * stores in place.
 *
 * A value has one home: the buffer of a root where it may be stored there directly, else an
 * internal one. An update root may be the home where every group that reads the old state can run
 * before the group that makes the new one, and that group itself reads the state at the element it
 * writes; all other roots are copies at the end of the entry. */
#include "planning.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b) {
    Value x = *(const Value *)a, y = *(const Value *)b;
    return x < y ? -1 : x > y;
}

/* Members in graph order, inlined maps among them. */
static void emit_nodes(Fuse *f, const FuseGroup *fg, Group *group, uint32_t hold, Value *scratch) {
    uint32_t n = 0;
    for (Value v = fg->first; v; v = f->next[v]) {
        scratch[n++] = v;
        f->held[v] = hold;
    }
    for (Value v = fg->first; v; v = f->next[v]) fuse_inlined_maps(f, v, hold, scratch, &n);
    qsort(scratch, n, sizeof *scratch, by_value);
    group->nodes = arena_alloc(f->arena, sizeof *scratch * (n + 1));
    memcpy(group->nodes, scratch, sizeof *scratch * n);
    group->n_nodes = n;
}

static void emit_outs(Fuse *f, const FuseGroup *fg, Group *group) {
    group->outs = arena_alloc(f->arena, sizeof *group->outs * (fg->n_members + 1));
    for (Value v = fg->first; v; v = f->next[v])
        if (fuse_is_out(f, v)) group->outs[group->n_outs++] = v;
    qsort(group->outs, group->n_outs, sizeof *group->outs, by_value);
}

/* Marks what v needs within its group, through views and maps that are computed again. */
static void mark_needed(Fuse *f, Value v, uint32_t hold) {
    bool is_elsewhere = f->computed[v] && f->held[v] != hold;
    if (f->stamp[v] == f->now || is_elsewhere) return;
    f->stamp[v] = f->now;
    for (uint32_t i = 0; !f->stored[v] && i < graph_node(f->g, v)->n_operands; i++)
        mark_needed(f, graph_operand(f->g, v, i), hold);
}

/* A map whose every reader saw through it may have moved into a group that needs nothing of it;
 * what it reads need not be there when that group runs. */
static void drop_unneeded(Fuse *f, Group *group, uint32_t hold) {
    uint32_t n = 0;
    f->now += N_READ_KINDS;
    for (uint32_t i = 0; i < group->n_outs; i++) mark_needed(f, group->outs[i], hold);
    for (uint32_t i = 0; i < group->n_nodes; i++)
        if (op_info[graph_op(f->g, group->nodes[i])].lower != LOWER_MAP)
            mark_needed(f, group->nodes[i], hold);
    for (uint32_t i = 0; i < group->n_nodes; i++)
        if (f->stamp[group->nodes[i]] == f->now) group->nodes[n++] = group->nodes[i];
    group->n_nodes = n;
}

/* A library needs an out that can hold the raw result. */
static void add_raw_out(Fuse *f, Group *group) {
    uint8_t raw = graph_type_at(f->g, group->anchor)->dtype;
    for (uint32_t i = 0; i < group->n_outs; i++)
        if (graph_type_at(f->g, group->outs[i])->dtype == raw) return;
    group->outs[group->n_outs++] = group->anchor;
    qsort(group->outs, group->n_outs, sizeof *group->outs, by_value);
}

static bool has_full_out(Fuse *f, const Group *group) {
    for (uint32_t i = 0; i < group->n_outs; i++)
        if (f->level[group->outs[i]] == LEVEL_FULL) return true;
    return false;
}

static void emit_row_space(Fuse *f, Group *group) {
    Value anchor = group->anchor;
    uint32_t n;
    group->dims = *graph_type_at(f->g, graph_operand(f->g, anchor, 0));
    const int64_t *axes = attr_list(f->g, anchor, A_AXES, &n);
    group->n_axes = n;
    memcpy(group->axes, axes, n * sizeof *axes);
}

/* All readers of a map may see through it: then nothing of it remains. */
static bool has_out(Fuse *f, const FuseGroup *fg) {
    for (Value v = fg->first; v; v = f->next[v])
        if (fuse_is_out(f, v)) return true;
    return false;
}

static void emit_group(Fuse *f, Value rep, Group *group, uint32_t hold, Value *scratch) {
    const FuseGroup *fg = &f->groups[rep];
    *group = (Group){.entry = f->entry, .anchor = fg->anchor};
    emit_nodes(f, fg, group, hold, scratch);
    emit_outs(f, fg, group);
    drop_unneeded(f, group, hold);
    switch (fg->cls) {
    case FUSE_MAP:
        group->kind = GROUP_MAP;
        group->dims = *graph_type_at(f->g, group->outs[group->n_outs - 1]);
        break;
    case FUSE_ROW:
        emit_row_space(f, group);
        group->kind = fg->n_reductions == 1 && !has_full_out(f, group) ? GROUP_REDUCE : GROUP_ROW;
        if (group->kind == GROUP_ROW) group->anchor = 0;
        break;
    case FUSE_ANCHOR:
        group->kind = GROUP_REDUCE;
        group->dims = *graph_type_at(f->g, graph_operand(f->g, fg->anchor, 0));
        break;
    case FUSE_CONTRACT:
        group->kind = GROUP_CONTRACT;
        group->dims = *graph_type_at(f->g, fg->anchor);
        add_raw_out(f, group);
        break;
    case FUSE_SCATTER:
        group->kind = GROUP_SCATTER;
        group->dims = *graph_type_at(f->g, fg->anchor);
        break;
    case FUSE_LOOP:
        group->kind = GROUP_LOOP;
        break;
    }
}

typedef struct Placed {
    uint32_t ord;
    Value group;
} Placed;
static int by_ord(const void *a, const void *b) {
    uint32_t x = ((const Placed *)a)->ord, y = ((const Placed *)b)->ord;
    return x < y ? -1 : x > y;
}

void fuse_emit(Fuse *f, Plan *plan) {
    uint32_t n_nodes = f->g->n_nodes, n = 0;
    Placed *placed = arena_alloc(f->arena, sizeof *placed * (n_nodes + 1));
    Value *scratch = arena_alloc(f->arena, sizeof *scratch * (n_nodes + 1));
    for (Value v = 1; v < n_nodes; v++)
        if (f->computed[v] && fuse_find(f, v) == v && has_out(f, &f->groups[v]))
            placed[n++] = (Placed){f->groups[v].ord, v};
    qsort(placed, n, sizeof *placed, by_ord);
    for (uint32_t i = 0; i < n; i++)
        emit_group(f, placed[i].group, &plan->groups[plan->n_groups++], i + 1, scratch);
}

/* ---------------------------------------------------------------- roots */

typedef struct Edge {
    uint32_t to, next;
} Edge;
typedef struct Homes { /* the groups of one entry as a graph, with the orders that updates in place
                          ask for */
    const Graph *g;
    Plan *plan;
    Arena *arena;
    EntryKind entry;
    bool for_gpu;
    uint32_t first, n; /* its groups */
    uint32_t *maker;   /* per Value: 1 + group */
    uint32_t *head;
    Edge *edges;
    uint32_t n_edges, cap_edges;
    GroupRead **reads;
    uint32_t *n_reads;
    bool *claimed; /* per Value: has a home at a root */
} Homes;

static void add_edge(Homes *h, uint32_t from, uint32_t to) {
    if (h->n_edges == h->cap_edges) {
        uint32_t cap = h->cap_edges * 2 + 64;
        h->edges =
            arena_grow(h->arena, h->edges, sizeof *h->edges * h->n_edges, sizeof *h->edges * cap);
        h->cap_edges = cap;
    }
    h->edges[h->n_edges] = (Edge){to, h->head[from]};
    h->head[from] = ++h->n_edges;
}

static void homes_init(Homes *h) {
    const Graph *g = h->g;
    bool *stored = plan_stored(g, h->plan, h->entry, h->arena);
    for (uint32_t i = 0; i < h->n; i++)
        for (uint32_t k = 0; k < h->plan->groups[h->first + i].n_outs; k++)
            h->maker[h->plan->groups[h->first + i].outs[k]] = i + 1;
    for (uint32_t i = 0; i < h->n; i++) {
        h->reads[i] =
            group_reads(g, stored, &h->plan->groups[h->first + i], h->arena, &h->n_reads[i]);
        for (uint32_t k = 0; k < h->n_reads[i]; k++)
            if (h->maker[h->reads[i][k].value]) add_edge(h, h->maker[h->reads[i][k].value] - 1, i);
    }
}

static bool leads_to(Homes *h, uint32_t from, uint32_t to) {
    ArenaMark mark = arena_mark(h->arena);
    bool *seen = arena_alloc(h->arena, h->n), found = false;
    uint32_t *stack = arena_alloc(h->arena, sizeof *stack * (h->n + 1)), n = 0;
    stack[n++] = from;
    seen[from] = true;
    while (n && !found) {
        uint32_t at = stack[--n];
        for (uint32_t e = h->head[at]; e && !found; e = h->edges[e - 1].next) {
            uint32_t next = h->edges[e - 1].to;
            found = next == to;
            if (!seen[next]) stack[n++] = next;
            seen[next] = true;
        }
    }
    arena_release(h->arena, mark);
    return found;
}

static bool is_state(const Graph *g, Value v, const char *name) {
    return graph_op(g, v) == OP_state && !strcmp(attr_s(g, v, A_NAME), name);
}

/* May the maker read the state that it overwrites with v? At the element that it writes, and only
 * where nothing rereads it. */
static bool reads_in_step(const Homes *h, const Group *group, Value v, const GroupRead *r) {
    if (!r->same_element ||
        type_elems(graph_type_at(h->g, r->value)) != type_elems(graph_type_at(h->g, v)))
        return false;
    switch (group->kind) {
    case GROUP_MAP:
        return true;
    case GROUP_REDUCE:
        return true;
    case GROUP_ROW:
        return type_elems(graph_type_at(h->g, v)) != type_elems(&group->dims);
    case GROUP_CONTRACT:
        return h->for_gpu;
    case GROUP_SCATTER:
    case GROUP_COPY:
    case GROUP_LOOP:
    case N_GROUP_KINDS:
        break;
    }
    return false;
}

/* Can root r be the home of its value? Then the orders that this asks for are added. */
static bool update_in_place(Homes *h, const Root *r) {
    uint32_t at = h->maker[r->value] - 1;
    const State *s = graph_state(h->g, r->name);
    const Type *t = graph_type_at(h->g, r->value);
    if (!s || h->g->types[s->type].dtype != t->dtype ||
        type_elems(&h->g->types[s->type]) != type_elems(t))
        return false;
    uint32_t before = h->n_edges;
    for (uint32_t i = 0; i < h->n; i++)
        for (uint32_t k = 0; k < h->n_reads[i]; k++) {
            const GroupRead *read = &h->reads[i][k];
            if (!is_state(h->g, read->value, r->name)) continue;
            bool fits = i == at ? reads_in_step(h, &h->plan->groups[h->first + i], r->value, read)
                                : !leads_to(h, at, i);
            if (!fits) {
                while (h->n_edges > before) { /* forget what was added for this root */
                    h->n_edges--;
                    for (uint32_t from = 0; from < h->n; from++)
                        if (h->head[from] == h->n_edges + 1)
                            h->head[from] = h->edges[h->n_edges].next;
                }
                return false;
            }
            if (i != at) add_edge(h, i, at);
        }
    return true;
}

/* What a kernel stores is row-major; bytes that lie otherwise are made by a copy. */
static bool is_packed(const Graph *g, const Root *r) {
    return r->is_update && graph_state(g, r->name)->cls == STATE_PACKED;
}

static void emit_copy(Homes *h, uint32_t root) {
    Value v = h->g->entries[h->entry].roots[root].value;
    Group *group = &h->plan->groups[h->plan->n_groups++];
    *group = (Group){.kind = GROUP_COPY,
                     .entry = h->entry,
                     .dims = *graph_type_at(h->g, v),
                     .root = root + 1,
                     .n_nodes = 1};
    group->nodes = arena_alloc(h->arena, sizeof *group->nodes);
    group->nodes[0] = v;
}

void fuse_copies(PassContext *ctx, EntryKind e) {
    const Entry *entry = &ctx->g->entries[e];
    uint32_t first = 0, n_nodes = ctx->g->n_nodes;
    while (first < ctx->plan->n_groups && ctx->plan->groups[first].entry != e) first++;
    uint32_t n = ctx->plan->n_groups - first;
    Homes h = {.g = ctx->g,
               .plan = ctx->plan,
               .arena = ctx->arena,
               .entry = e,
               .first = first,
               .n = n,
               .for_gpu = ctx->options && ctx->options->for_gpu};
    h.maker = arena_alloc(h.arena, sizeof *h.maker * n_nodes);
    h.head = arena_alloc(h.arena, sizeof *h.head * (n + 1));
    h.reads = arena_alloc(h.arena, sizeof *h.reads * (n + 1));
    h.n_reads = arena_alloc(h.arena, sizeof *h.n_reads * (n + 1));
    h.claimed = arena_alloc(h.arena, n_nodes);
    homes_init(&h);
    bool *homed = arena_alloc(h.arena, entry->n + 1);
    for (int outputs = 0; outputs < 2; outputs++)
        for (uint32_t i = 0; i < entry->n; i++) {
            const Root *r = &entry->roots[i];
            if (r->is_update == outputs || h.claimed[r->value] || !h.maker[r->value] ||
                is_packed(ctx->g, r))
                continue;
            homed[i] = h.claimed[r->value] = outputs || update_in_place(&h, r);
        }
    for (uint32_t i = 0; i < entry->n; i++) {
        if (homed[i] || root_is_idle(ctx->g, &entry->roots[i])) continue;
        emit_copy(&h, i);
    }
}
