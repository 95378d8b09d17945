/* memplan_loop.c - a loop in the plan: its body is planned by the same passes, and the body's
 * buffers get places in the plan around it.
 *
 * Only what the loop's outs need is planned: the stacked results that are read, and the carries
 * that those and each other read. Slices and results lie in the buffers of the loop's operands and
 * outs, one step further with each turn; a carry lies in the buffer of its last value where that is
 * an out. What the body alone knows is the workspace of the launch. */
#include "planning.h"
#include "scan.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

uint32_t loop_leaf_number(const char *name) { return (uint32_t)strtoul(name + 1, NULL, 10); }

/* The out that is this result of the loop; 0: nothing reads it. */
static Value out_of(const Graph *g, const Group *group, uint32_t result) {
    for (uint32_t i = 0; i < group->n_outs; i++)
        if (attr_i(g, group->outs[i], A_RESULT, 0) == result) return group->outs[i];
    return 0;
}

/* ---------------------------------------------------------------- the body */

/* Marks what the wanted roots reach. */
static void mark_live(const Graph *body, const bool *wanted, bool *live) {
    const Entry *e = &body->entries[ENTRY_MICRO];
    memset(live, 0, body->n_nodes);
    for (uint32_t i = 0; i < e->n; i++)
        if (wanted[i]) live[e->roots[i].value] = true;
    for (Value v = body->n_nodes; v-- > 1;)
        for (uint32_t i = 0; live[v] && i < graph_node(body, v)->n_operands; i++)
            live[graph_operand(body, v, i)] = true;
}

static bool reads_carry(const Graph *body, const bool *live, const char *name) {
    for (Value v = 1; v < body->n_nodes; v++)
        if (live[v] && graph_op(body, v) == OP_state && !strcmp(attr_s(body, v, A_NAME), name))
            return true;
    return false;
}

/* A copy of the body that lists the roots which the outs need, alone. */
static Graph *body_with_needed_roots(const Graph *g, const Group *group, Arena *arena) {
    const Body *b = scan_body(g, group->anchor);
    const Entry *e = &b->g->entries[ENTRY_MICRO];
    bool *wanted = arena_alloc(arena, e->n + 1), *live = arena_alloc(arena, b->g->n_nodes);
    for (uint32_t i = 0; i < e->n; i++) {
        uint32_t at = loop_leaf_number(e->roots[i].name);
        wanted[i] = out_of(g, group, e->roots[i].is_update ? at : b->n_carries + at) != 0;
    }
    for (bool changed = true; changed;) {
        changed = false;
        mark_live(b->g, wanted, live);
        for (uint32_t i = 0; i < e->n; i++) {
            if (wanted[i] || !e->roots[i].is_update || !reads_carry(b->g, live, e->roots[i].name))
                continue;
            wanted[i] = changed = true;
        }
    }
    Graph *body = arena_alloc(arena, sizeof *body);
    *body = *b->g;
    Entry kept = {.roots = arena_alloc(arena, sizeof *kept.roots * (e->n + 1))};
    for (uint32_t i = 0; i < e->n; i++)
        if (wanted[i]) kept.roots[kept.n++] = e->roots[i];
    kept.cap = kept.n;
    body->entries[ENTRY_MICRO] = kept;
    return body;
}

static bool is_lasting(const Buffer *b) { return b->symbol || b->constant; }

PlanLoop *loop_plan(PassContext *ctx, const Group *group) {
    const Graph *g = ctx->g;
    PlanLoop *l = arena_alloc(ctx->arena, sizeof *l);
    fuse_detach_states(scan_body(g, group->anchor)->g, ENTRY_MICRO);
    Graph *body = body_with_needed_roots(g, group, ctx->arena);
    PassOptions *o = arena_alloc(ctx->arena, sizeof *o);
    *o = (PassOptions){.batch = 1,
                       .micro_batch = 1,
                       .for_gpu = ctx->options->for_gpu,
                       .is_body = true,
                       .fuel = -1,
                       .pack = PACK_NEVER,
                       .scratch_bytes = ctx->options->scratch_bytes};
    PassContext sub = {.g = body, .arena = ctx->arena, .options = o, .log = ctx->log};
    bool planned = pass_fuse(&sub) && pass_schedule(&sub) && pass_memplan(&sub);
    assert(planned && "the body of a loop cannot be planned");
    (void)planned;
    *l = (PlanLoop){.body = body,
                    .plan = sub.plan,
                    .trips = attr_i(g, group->anchor, A_TRIPS, 0),
                    .is_reverse = attr_i(g, group->anchor, A_REVERSE, 0) != 0};
    for (uint32_t i = 0; i < l->plan->n_buffers; i++) {
        const Buffer *b = &l->plan->buffers[i];
        uint64_t end = b->offset + b->bytes;
        if (is_lasting(b) && end > l->own_offset) l->own_offset = end;
    }
    return l;
}

bool loop_needs_carry(const PlanLoop *l, uint32_t carry) {
    char name[BODY_LEAF];
    body_leaf(name, 'c', carry);
    if (graph_root(l->body, ENTRY_MICRO, true, name)) return true;
    Arena *scratch = arena_new();
    bool reads = reads_carry(l->body, graph_reachable(l->body, scratch, ENTRY_MICRO), name);
    arena_free(scratch);
    return reads;
}

/* ---------------------------------------------------------------- places */

typedef struct Bind {
    const Graph *g;
    const EntryPlan *ep;
    const Group *group;
    const PlanLoop *loop;
    const Body *body;
} Bind;

/* One step after another, from the first or the last on. */
static PlanPlace moving(const Bind *b, uint32_t buffer, TypeId step) {
    int64_t bytes = (int64_t)type_bytes(&b->loop->body->types[step]);
    int64_t last = b->loop->trips > 0 ? (b->loop->trips - 1) * bytes : 0;
    return (PlanPlace){.is_bound = buffer != 0,
                       .buffer = buffer,
                       .offset = b->loop->is_reverse ? (uint64_t)last : 0,
                       .stride = b->loop->is_reverse ? -bytes : bytes};
}

static uint32_t operand_buffer(const Bind *b, uint32_t operand) {
    int64_t offset, strides[MAX_RANK];
    Value base = plan_view_affine(b->g, b->ep->buffer_of,
                                  graph_operand(b->g, b->group->anchor, operand), &offset, strides);
    return base ? b->ep->buffer_of[base] : 0;
}

static PlanPlace place_of(const Bind *b, const Buffer *buffer, const uint32_t *carries) {
    if (!buffer->symbol) {
        assert(!buffer->constant && "constants of a body are operands of its loop");
        return (PlanPlace){.is_bound = true, .offset = buffer->offset - b->loop->own_offset};
    }
    uint32_t i = loop_leaf_number(buffer->symbol), first_x = b->body->n_carries;
    if (buffer->cls == BUF_IO) {
        Value out = out_of(b->g, b->group, b->body->n_carries + i);
        return moving(b, out ? b->ep->buffer_of[out] : 0, buffer->type);
    }
    if (buffer->cls != BUF_INPUTS)
        return (PlanPlace){.is_bound = carries[i] != 0, .buffer = carries[i]};
    if (buffer->symbol[0] == 'x') return moving(b, operand_buffer(b, first_x + i), buffer->type);
    uint32_t whole = operand_buffer(b, first_x + b->body->n_scanned + i);
    return (PlanPlace){.is_bound = whole != 0, .buffer = whole};
}

void loop_bind(PassContext *ctx, Group *group, const uint32_t *carries) {
    PlanLoop *l = group->loop;
    Bind b = {.g = ctx->g,
              .ep = &ctx->plan->entries[group->entry],
              .group = group,
              .loop = l,
              .body = scan_body(ctx->g, group->anchor)};
    l->places = arena_alloc(ctx->arena, sizeof *l->places * (l->plan->n_buffers + 1));
    for (uint32_t i = 0; i < l->plan->n_buffers; i++)
        l->places[i] = place_of(&b, &l->plan->buffers[i], carries);
    l->inits = arena_alloc(ctx->arena, sizeof *l->inits * (b.body->n_carries + 1));
    for (uint32_t i = 0; i < b.body->n_carries; i++) {
        if (!carries[i]) continue;
        Group *init = &l->inits[l->n_inits++];
        Value first = graph_operand(ctx->g, group->anchor, i);
        *init = (Group){.kind = GROUP_COPY,
                        .entry = group->entry,
                        .dims = *graph_type_at(ctx->g, first),
                        .n_nodes = 1,
                        .nodes = arena_alloc(ctx->arena, sizeof *init->nodes),
                        .to = carries[i]};
        init->nodes[0] = first;
    }
}
