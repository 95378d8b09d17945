/* fuse_groups.c - what later passes ask of groups: which stored values they read, and at which root
 * a value is at home. */
#include "planning.h"
#include <string.h>

bool *plan_stored(const Graph *g, const Plan *plan, EntryKind e, Arena *arena) {
    bool *stored = arena_alloc(arena, g->n_nodes);
    for (Value v = 1; v < g->n_nodes; v++) stored[v] = leaf_in_memory(g, v);
    for (uint32_t i = 0; i < plan->n_groups; i++)
        for (uint32_t k = 0; plan->groups[i].entry == e && k < plan->groups[i].n_outs; k++)
            stored[plan->groups[i].outs[k]] = true;
    return stored;
}

bool root_is_idle(const Graph *g, const Root *r) {
    return r->is_update && graph_op(g, r->value) == OP_state &&
           !strcmp(attr_s(g, r->value, A_NAME), r->name);
}

uint32_t *plan_home_roots(const Graph *g, const Plan *plan, EntryKind e, Arena *arena) {
    const Entry *entry = &g->entries[e];
    uint32_t *home = arena_alloc(arena, sizeof *home * g->n_nodes);
    bool *copied = arena_alloc(arena, entry->n + 1);
    for (uint32_t i = 0; i < plan->n_groups; i++)
        if (plan->groups[i].entry == e && plan->groups[i].root)
            copied[plan->groups[i].root - 1] = true;
    for (uint32_t i = 0; i < entry->n; i++)
        if (!copied[i] && !root_is_idle(g, &entry->roots[i])) home[entry->roots[i].value] = i + 1;
    return home;
}

/* ---------------------------------------------------------------- reads */

/* A small open hash of (value, how it is read), so that a group costs what it reads and not the
 * size of the graph. */
typedef struct Seen {
    Value value;
    uint8_t ways;
} Seen; /* ways: 1 same element, 2 otherwise */
typedef struct Reads {
    const Graph *g;
    const bool *stored;
    const Group *group;
    Arena *arena;
    Seen *seen;
    uint32_t n, cap;
} Reads;

static Seen *seen_slot(Seen *seen, uint32_t cap, Value v) {
    uint32_t i = v * 2654435761u & (cap - 1);
    while (seen[i].value && seen[i].value != v) i = (i + 1) & (cap - 1);
    return &seen[i];
}

static Seen *seen_find(Reads *r, Value v) {
    if (2 * r->n >= r->cap) {
        uint32_t cap = r->cap * 2;
        Seen *bigger = arena_alloc(r->arena, sizeof *bigger * cap);
        for (uint32_t i = 0; i < r->cap; i++)
            if (r->seen[i].value) *seen_slot(bigger, cap, r->seen[i].value) = r->seen[i];
        r->seen = bigger;
        r->cap = cap;
    }
    Seen *s = seen_slot(r->seen, r->cap, v);
    if (!s->value) {
        s->value = v;
        r->n++;
    }
    return s;
}

static bool is_own_out(const Reads *r, Value v) {
    for (uint32_t i = 0; i < r->group->n_outs; i++)
        if (r->group->outs[i] == v) return true;
    return false;
}

static void read_down(Reads *r, Value v, uint8_t way, bool is_start) {
    Seen *s = seen_find(r, v);
    if (s->ways & way) return;
    s->ways |= way;
    if (!is_start && r->stored[v] && !is_own_out(r, v)) return;
    const Graph *g = r->g;
    LowerClass l = op_info[graph_op(g, v)].lower;
    if (l != LOWER_MAP && graph_op(g, v) != OP_reshape) way = 2;
    for (uint32_t i = 0; i < graph_node(g, v)->n_operands; i++)
        read_down(r, graph_operand(g, v, i), way, false);
}

static void sort_reads(GroupRead *reads, uint32_t n) {
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t k = i; k > 0 && reads[k].value < reads[k - 1].value; k--) {
            GroupRead t = reads[k];
            reads[k] = reads[k - 1];
            reads[k - 1] = t;
        }
}

GroupRead *group_reads(const Graph *g, const bool *stored, const Group *group, Arena *arena,
                       uint32_t *n) {
    Reads r = {g, stored, group, arena, arena_alloc(arena, sizeof(Seen) * 64), 0, 64};
    if (group->kind == GROUP_COPY) {
        *n = stored[group->nodes[0]];
        GroupRead *one = arena_alloc(arena, sizeof *one);
        *one = (GroupRead){group->nodes[0], true};
        return one;
    }
    for (uint32_t i = 0; i < group->n_outs; i++) read_down(&r, group->outs[i], 1, true);
    GroupRead *reads = arena_alloc(arena, sizeof *reads * (r.n + 1));
    *n = 0;
    for (uint32_t i = 0; i < r.cap; i++) {
        const Seen *s = &r.seen[i];
        if (s->value && stored[s->value] && !is_own_out(&r, s->value))
            reads[(*n)++] = (GroupRead){s->value, s->ways == 1};
    }
    sort_reads(reads, *n);
    return reads;
}
