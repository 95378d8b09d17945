/* memplan.c - gives every stored value its bytes of the one arena.
 *
 * States, inputs, constants and outputs keep their place for good, one after another. Entries never
 * run at the same time, so the internal buffers of all four share the space behind. A value whose
 * group can write it over one that dies there (elementwise, read at the same element, of equal
 * element size) takes that buffer over. Offsets: memplan_offsets.c. */
#include "planning.h"
#include "scan.h"
#include <string.h>

enum { ALIGN = 256, CAN_TAKE = 32 };

static uint64_t rounded(uint64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

static BufferClass state_buffer_class(StateClass c) {
    switch (c) {
    case STATE_PARAM:
    case STATE_PACKED:
        return BUF_WEIGHTS;
    case STATE_MASTER:
        return BUF_MASTER;
    case STATE_OPTIMIZER:
    case STATE_COUNTER:
    case STATE_CARRY: /* lives in bodies, which plan theirs */
        return BUF_OPTIMIZER;
    case STATE_GRADIENT:
        return BUF_GRADIENTS;
    case N_STATE_CLASSES:
        break;
    }
    return BUF_WEIGHTS;
}

typedef struct Memory {
    const Graph *g;
    Plan *plan;
    Arena *arena;
    uint32_t cap;
    uint32_t *root_buffer[N_ENTRIES]; /* 1 + buffer of each root */
    uint32_t *constant;               /* per Value */
} Memory;

static uint32_t add_buffer(Memory *m, Buffer b) {
    Plan *p = m->plan;
    if (p->n_buffers == m->cap) {
        uint32_t cap = m->cap * 2 + 64;
        p->buffers = arena_grow(m->arena, p->buffers, sizeof *p->buffers * p->n_buffers,
                                sizeof *p->buffers * cap);
        m->cap = cap;
    }
    p->buffers[p->n_buffers] = b;
    return ++p->n_buffers;
}

/* Buffers of states come first, in their order, then those of inputs. */
static uint32_t state_buffer(const Graph *g, const char *name) {
    return (uint32_t)(graph_state(g, name) - g->states) + 1;
}
static uint32_t input_buffer(const Graph *g, const char *name) {
    return g->n_states + (uint32_t)(graph_input(g, name) - g->inputs) + 1;
}

/* A library's own layout may be padded. */
static uint64_t state_bytes(const Memory *m, const PassOptions *o, const State *s) {
    uint64_t bytes = type_bytes(&m->g->types[s->type]), most = bytes;
    for (Value v = 1; s->cls == STATE_PACKED && o->packed_bytes && v < m->g->n_nodes; v++) {
        if (plan_packed_operand(m->g, v) != s) continue;
        bytes = o->packed_bytes(m->g, v, 1);
        return bytes > most ? bytes : most;
    }
    return most;
}

/* States, inputs, constants that an entry reads, outputs. */
static void add_lasting(Memory *m, const PassOptions *o) {
    const Graph *g = m->g;
    for (uint32_t i = 0; i < g->n_states; i++) {
        const State *s = &g->states[i];
        add_buffer(m, (Buffer){.cls = state_buffer_class(s->cls),
                               .type = s->type,
                               .symbol = s->name,
                               .bytes = rounded(state_bytes(m, o, s))});
    }
    for (uint32_t i = 0; i < g->n_inputs; i++)
        add_buffer(m, (Buffer){.cls = BUF_INPUTS,
                               .type = g->inputs[i].type,
                               .symbol = g->inputs[i].name,
                               .bytes = rounded(type_bytes(&g->types[g->inputs[i].type]))});
    for (int e = 0; e < N_ENTRIES; e++) {
        const bool *live = graph_reachable(g, m->arena, (EntryKind)e);
        for (Value v = 1; v < g->n_nodes; v++)
            if (live[v] && !m->constant[v] && graph_op(g, v) == OP_const && leaf_in_memory(g, v))
                m->constant[v] =
                    add_buffer(m, (Buffer){.cls = BUF_WEIGHTS,
                                           .type = graph_node(g, v)->type,
                                           .constant = v,
                                           .bytes = rounded(type_bytes(graph_type_at(g, v)))});
    }
    for (int e = 0; e < N_ENTRIES; e++) {
        const Entry *entry = &g->entries[e];
        m->root_buffer[e] = arena_alloc(m->arena, sizeof(uint32_t) * (entry->n + 1));
        for (uint32_t i = 0; i < entry->n; i++) {
            const Root *r = &entry->roots[i];
            TypeId type = graph_node(g, r->value)->type;
            Buffer b = {.cls = BUF_IO,
                        .type = type,
                        .symbol = r->name,
                        .bytes = rounded(type_bytes(&g->types[type])),
                        .entry = (EntryKind)e};
            m->root_buffer[e][i] = r->is_update ? state_buffer(g, r->name) : add_buffer(m, b);
        }
    }
}

/* ---------------------------------------------------------------- internal buffers of one entry */

typedef struct Ranges {
    EntryKind entry;
    GroupRead **reads;
    uint32_t *n_reads, *last, *home;
} Ranges; /* last: per Value, launch */

static void leaf_buffers(Memory *m, EntryKind e) {
    const Graph *g = m->g;
    uint32_t *of = m->plan->entries[e].buffer_of;
    for (Value v = 1; v < g->n_nodes; v++) {
        OpCode op = graph_op(g, v);
        if (op == OP_state) of[v] = state_buffer(g, attr_s(g, v, A_NAME));
        if (op == OP_input) of[v] = input_buffer(g, attr_s(g, v, A_NAME));
        if (op == OP_const) of[v] = m->constant[v];
    }
}

/* The buffer of a value that the launch reads for the last time and that v may be written over; 0
 * where there is none. */
static uint32_t buffer_to_take(Memory *m, const Ranges *r, uint32_t at, Value v,
                               const bool *taken) {
    const Group *group = &m->plan->groups[m->plan->entries[r->entry].order[at]];
    const Type *t = graph_type_at(m->g, v);
    if (group->kind != GROUP_MAP || !type_bytes(t)) return 0;
    for (uint32_t k = 0; k < r->n_reads[at] && k < CAN_TAKE; k++) {
        Value b = r->reads[at][k].value;
        const Type *bt = graph_type_at(m->g, b);
        bool dies = !taken[k] && r->reads[at][k].same_element && !leaf_in_memory(m->g, b) &&
                    !r->home[b] && r->last[b] == at;
        bool fits = dtype_info[bt->dtype].bytes == dtype_info[t->dtype].bytes &&
                    type_elems(bt) == type_elems(t);
        if (dies && fits) return k + 1;
    }
    return 0;
}

static void place_out(Memory *m, const Ranges *r, uint32_t at, Value v, bool *taken) {
    EntryPlan *ep = &m->plan->entries[r->entry];
    uint32_t b = 0;
    if (r->home[v])
        b = m->root_buffer[r->entry][r->home[v] - 1];
    else {
        uint32_t k = buffer_to_take(m, r, at, v, taken);
        uint32_t last = r->last[v] > at ? r->last[v] : at;
        if (k) {
            taken[k - 1] = true;
            b = ep->buffer_of[r->reads[at][k - 1].value];
            m->plan->buffers[b - 1].last = last;
        } else {
            TypeId type = graph_node(m->g, v)->type;
            b = add_buffer(m, (Buffer){.cls = BUF_ACTIVATIONS,
                                       .type = type,
                                       .bytes = rounded(type_bytes(&m->g->types[type])),
                                       .entry = r->entry,
                                       .first = at,
                                       .last = last});
        }
    }
    ep->buffer_of[v] = ep->out_buffer_of[v] = b;
}

static void add_workspace(Memory *m, EntryKind e, uint32_t at, Group *group) {
    if (!group->workspace_bytes) return;
    group->workspace_bytes = rounded(group->workspace_bytes);
    add_buffer(m, (Buffer){.cls = BUF_WORKSPACE,
                           .bytes = group->workspace_bytes,
                           .entry = e,
                           .first = at,
                           .last = at});
}

/* A loop: its body is planned, carries whose last value is no out get a buffer for the launch. */
static void add_loop(Memory *m, PassContext *ctx, EntryKind e, uint32_t at, Group *group) {
    const Body *b = scan_body(m->g, group->anchor);
    uint32_t *carries = arena_alloc(m->arena, sizeof *carries * (b->n_carries + 1));
    PlanLoop *l = group->loop = loop_plan(ctx, group);
    for (uint32_t i = 0; i < group->n_outs; i++) {
        int64_t result = attr_i(m->g, group->outs[i], A_RESULT, 0);
        if (result < b->n_carries) carries[result] = m->plan->entries[e].buffer_of[group->outs[i]];
    }
    for (uint32_t i = 0; i < b->n_carries; i++) {
        if (carries[i] || !loop_needs_carry(l, i)) continue;
        TypeId type = graph_node(m->g, graph_operand(m->g, group->anchor, i))->type;
        carries[i] = add_buffer(m, (Buffer){.cls = BUF_ACTIVATIONS,
                                            .type = type,
                                            .bytes = rounded(type_bytes(&m->g->types[type])),
                                            .entry = e,
                                            .first = at,
                                            .last = at});
    }
    loop_bind(ctx, group, carries);
    group->workspace_bytes = l->plan->arena_bytes - l->own_offset;
}

static void add_internal(Memory *m, PassContext *ctx, EntryKind e) {
    Plan *plan = m->plan;
    EntryPlan *ep = &plan->entries[e];
    uint32_t n_nodes = m->g->n_nodes;
    ep->buffer_of = arena_alloc(m->arena, sizeof *ep->buffer_of * n_nodes);
    ep->out_buffer_of = arena_alloc(m->arena, sizeof *ep->out_buffer_of * n_nodes);
    leaf_buffers(m, e);
    bool *stored = plan_stored(m->g, plan, e, m->arena);
    Ranges r = {.entry = e, .home = plan_home_roots(m->g, plan, e, m->arena)};
    r.last = arena_alloc(m->arena, sizeof *r.last * n_nodes);
    r.reads = arena_alloc(m->arena, sizeof *r.reads * (ep->n + 1));
    r.n_reads = arena_alloc(m->arena, sizeof *r.n_reads * (ep->n + 1));
    for (uint32_t i = 0; i < ep->n; i++) {
        r.reads[i] =
            group_reads(m->g, stored, &plan->groups[ep->order[i]], m->arena, &r.n_reads[i]);
        for (uint32_t k = 0; k < r.n_reads[i]; k++) r.last[r.reads[i][k].value] = i;
    }
    for (uint32_t i = 0; i < ep->n; i++) {
        Group *group = &plan->groups[ep->order[i]];
        bool taken[CAN_TAKE] = {false};
        for (uint32_t k = 0; k < group->n_outs; k++) place_out(m, &r, i, group->outs[k], taken);
        if (group->kind == GROUP_COPY) group->to = m->root_buffer[e][group->root - 1];
        if (group->kind == GROUP_CONTRACT && ctx->options->scratch_bytes)
            group->workspace_bytes = ctx->options->scratch_bytes(m->g, group->anchor);
        if (group->kind == GROUP_LOOP) add_loop(m, ctx, e, i, group);
        add_workspace(m, e, i, group);
    }
}

/* ---------------------------------------------------------------- offsets and sums */

static bool is_lasting(const Buffer *b) { return b->symbol || b->constant; }

static uint64_t place_lasting(Plan *p) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < p->n_buffers; i++) {
        if (!is_lasting(&p->buffers[i])) continue;
        p->buffers[i].offset = at;
        at += p->buffers[i].bytes;
        p->bytes[p->buffers[i].cls] += p->buffers[i].bytes;
    }
    return at;
}

static void set_workspace_offsets(Plan *p, EntryKind e) {
    for (uint32_t i = 0; i < p->n_buffers; i++) {
        const Buffer *b = &p->buffers[i];
        if (b->cls == BUF_WORKSPACE && b->entry == e)
            p->groups[p->entries[e].order[b->first]].workspace_offset = b->offset;
    }
}

/* Places the internal buffers of an entry from `base` on; returns their height, and the least
 * possible one in *bound. */
static uint64_t place_entry(Memory *m, EntryKind e, uint64_t base, uint64_t *bound,
                            uint64_t *workspace) {
    Plan *p = m->plan;
    Span *spans = arena_alloc(m->arena, sizeof *spans * (p->n_buffers + 1));
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_buffers; i++) {
        const Buffer *b = &p->buffers[i];
        if (is_lasting(b) || b->entry != e) continue;
        spans[n++] = (Span){b->bytes, 0, b->first, b->last};
        if (b->cls == BUF_WORKSPACE && b->bytes > *workspace) *workspace = b->bytes;
    }
    *bound = spans_lower_bound(spans, n, m->arena);
    uint64_t height = place_spans(spans, n, *bound, m->arena);
    n = 0;
    for (uint32_t i = 0; i < p->n_buffers; i++)
        if (!is_lasting(&p->buffers[i]) && p->buffers[i].entry == e)
            p->buffers[i].offset = base + spans[n++].offset;
    set_workspace_offsets(p, e);
    return height;
}

static void sum_work(Memory *m) {
    Plan *p = m->plan;
    for (int e = 0; e < N_ENTRIES; e++) {
        uint64_t times = e == ENTRY_MICRO ? (uint64_t)p->accumulation_steps : e == ENTRY_APPLY;
        for (uint32_t i = 0; times && i < p->entries[e].n; i++) {
            const Group *group = &p->groups[p->entries[e].order[i]];
            p->total_flops += times * group_flops(m->g, group);
            p->moved_bytes += times * group_moved_bytes(m->g, p, group);
        }
    }
}

bool pass_memplan(PassContext *ctx) {
    Memory m = {.g = ctx->g, .plan = ctx->plan, .arena = ctx->arena};
    m.constant = arena_alloc(m.arena, sizeof *m.constant * ctx->g->n_nodes);
    add_lasting(&m, ctx->options);
    for (int e = 0; e < N_ENTRIES; e++) add_internal(&m, ctx, (EntryKind)e);
    uint64_t base = place_lasting(ctx->plan), height = 0, least = 0, workspace = 0;
    for (int e = 0; e < N_ENTRIES; e++) {
        uint64_t bound, h = place_entry(&m, (EntryKind)e, base, &bound, &workspace);
        if (h > height) height = h;
        if (bound > least) least = bound;
    }
    ctx->plan->bytes[BUF_WORKSPACE] = workspace;
    ctx->plan->bytes[BUF_ACTIVATIONS] += height - workspace;
    ctx->plan->arena_bytes =
        base + height > 0 ? base + height : 1; /* of a model without elements */
    ctx->plan->lower_bound_bytes = base + least;
    sum_work(&m);
    return true;
}
