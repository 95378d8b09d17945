/* plan.c - what plan and code generators both ask of groups: names, the stored value behind a view,
 * arithmetic, traffic.
 *
 * Traffic counts each buffer that a launch reads once, and no more of it than the reading view can
 * touch (a gather of 8 rows reads 8 rows, not the table).
 */
#include "ir.h"
#include <string.h>

const char *const group_kind_name[N_GROUP_KINDS] = {"map",     "row",  "reduce", "contract",
                                                    "scatter", "copy", "loop"};
const char *const buffer_class_name[N_BUFFER_CLASSES] = {
    "weights", "master", "optimizer", "gradients", "activations", "workspace", "inputs", "io"};

Value plan_view_base(const Graph *g, Value v) {
    OpCode op = graph_op(g, v);
    while (op == OP_reshape || op == OP_transpose || op == OP_expand || op == OP_slice) {
        v = graph_operand(g, v, 0);
        op = graph_op(g, v);
    }
    return op_info[op].lower == LOWER_VIEW ? 0 : v;
}

const State *plan_packed_operand(const Graph *g, Value contraction) {
    if (op_info[graph_op(g, contraction)].lower != LOWER_CONTRACT) return NULL;
    Value b = plan_view_base(g, graph_operand(g, contraction, 1));
    const State *s = b && graph_op(g, b) == OP_state ? graph_state(g, attr_s(g, b, A_NAME)) : NULL;
    return s && s->cls == STATE_PACKED ? s : NULL;
}

/* ---------------------------------------------------------------- arithmetic */

static uint64_t elems_at(const Graph *g, Value v) {
    return (uint64_t)type_elems(graph_type_at(g, v));
}

static uint64_t contraction_flops(const Graph *g, Value v) {
    Value a = graph_operand(g, v, 0), b = graph_operand(g, v, 1);
    const Type *ta = graph_type_at(g, a);
    if (graph_op(g, v) == OP_dot)
        return 2 * elems_at(g, v) * (uint64_t)ta->dims[ta->rank - (attr_i(g, v, A_TA, 0) ? 2 : 1)];
    /* every element of y meets the C/G * kernel elements of one output channel of w */
    Value w = graph_op(g, v) == OP_conv_dw ? v : b;
    uint64_t y_elems = graph_op(g, v) == OP_conv      ? elems_at(g, v)
                       : graph_op(g, v) == OP_conv_dx ? elems_at(g, a)
                                                      : elems_at(g, b);
    int64_t channels = graph_type_at(g, w)->dims[0];
    return channels ? 2 * y_elems * (elems_at(g, w) / (uint64_t)channels) : 0;
}

static uint64_t node_flops(const Graph *g, Value v) {
    const OpInfo *info = &op_info[graph_op(g, v)];
    switch (info->lower) {
    case LOWER_CONTRACT:
        return contraction_flops(g, v);
    case LOWER_REDUCE:
        return info->cost * elems_at(g, graph_operand(g, v, 0));
    case LOWER_SCATTER:
        return info->cost * elems_at(g, graph_operand(g, v, 2));
    case LOWER_LEAF:
    case LOWER_VIEW:
    case LOWER_MAP:
    case LOWER_LOOP:
    case LOWER_MACRO:
        break;
    }
    return info->cost * elems_at(g, v);
}

static uint64_t loop_flops(const PlanLoop *l) {
    const EntryPlan *ep = &l->plan->entries[ENTRY_MICRO];
    uint64_t flops = 0;
    for (uint32_t i = 0; i < ep->n; i++)
        flops += group_flops(l->body, &l->plan->groups[ep->order[i]]);
    return flops * (uint64_t)l->trips;
}

uint64_t group_flops(const Graph *g, const Group *group) {
    uint64_t flops = 0;
    if (group->loop) return loop_flops(group->loop);
    for (uint32_t i = 0; i < group->n_nodes; i++) flops += node_flops(g, group->nodes[i]);
    return flops;
}

/* ---------------------------------------------------------------- traffic */

typedef struct Reads {
    const Graph *g;
    const uint32_t *buffer_of;
    uint64_t *elems;
} Reads; /* at most, per value */

static bool is_member(const Group *group, Value v) {
    for (uint32_t i = 0; i < group->n_nodes; i++)
        if (group->nodes[i] == v) return true;
    return false;
}

/* A member reads v: of v, and of each stored value below it, it touches at most `elems` elements.
 */
static void reads_add(const Reads *r, const Group *group, Value v, uint64_t elems) {
    const Graph *g = r->g;
    if (elems_at(g, v) < elems) elems = elems_at(g, v);
    if (r->elems[v] >= elems || is_member(group, v)) return;
    r->elems[v] = elems;
    if (r->buffer_of[v]) return;
    for (uint32_t i = 0; i < g->nodes[v].n_operands; i++) {
        bool is_index =
            i == 1 && op_info[graph_op(g, v)].lower == LOWER_VIEW && graph_op(g, v) != OP_concat;
        reads_add(r, group, graph_operand(g, v, i), is_index ? UINT64_MAX : elems);
    }
}

static uint64_t loop_moved_bytes(const Graph *g, const Plan *plan, const PlanLoop *l) {
    const EntryPlan *ep = &l->plan->entries[ENTRY_MICRO];
    uint64_t moved = 0;
    for (uint32_t i = 0; i < ep->n; i++)
        moved += group_moved_bytes(l->body, l->plan, &l->plan->groups[ep->order[i]]);
    moved *= (uint64_t)l->trips;
    for (uint32_t i = 0; i < l->n_inits; i++) moved += group_moved_bytes(g, plan, &l->inits[i]);
    return moved;
}

uint64_t group_moved_bytes(const Graph *g, const Plan *plan, const Group *group) {
    if (group->loop) return loop_moved_bytes(g, plan, group->loop);
    Arena *scratch = arena_new();
    Reads r = {g, plan->entries[group->entry].buffer_of,
               arena_alloc(scratch, g->n_nodes * sizeof(uint64_t))};
    uint64_t moved = 0;
    for (uint32_t i = 0; i < group->n_nodes; i++)
        for (uint32_t j = 0; j < g->nodes[group->nodes[i]].n_operands; j++)
            reads_add(&r, group, graph_operand(g, group->nodes[i], j), UINT64_MAX);
    for (Value v = 1; v < g->n_nodes; v++)
        if (r.buffer_of[v]) moved += r.elems[v] * dtype_info[graph_type_at(g, v)->dtype].bytes;
    for (uint32_t i = 0; i < group->n_outs; i++)
        moved += type_bytes(graph_type_at(g, group->outs[i]));
    arena_free(scratch);
    return moved;
}
