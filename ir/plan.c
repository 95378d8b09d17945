/* plan.c - what both the passes and the code generators ask of a plan: names, views as strides, work and traffic of a group.
 *
 * A chain of views over a stored value is one affine map where every step keeps it so: transpose permutes strides, expand sets them
 * to 0, slice scales and shifts, reshape splits and merges axes whose strides fit together. */
#include "ir.h"
#include <assert.h>
#include <string.h>

const char *const group_kind_name[N_GROUP_KINDS] = {"map", "row", "reduce", "contract", "scatter", "copy"};
const char *const buffer_class_name[N_BUFFER_CLASSES] = {"weights", "master", "optimizer", "gradients",
                                                         "activations", "workspace", "inputs", "io"};

Value plan_view_base(const Graph *g, Value v) {
    for (;;) {
        switch ((int)graph_op(g, v)) {
        case OP_reshape: case OP_transpose: case OP_expand: case OP_slice: v = graph_operand(g, v, 0); break;
        case OP_pad: case OP_concat: case OP_window: case OP_gather: case OP_take: case OP_gather_nd: return 0;
        default: return op_info[graph_op(g, v)].lower == LOWER_MAP ? 0 : v;
        }
    }
}

/* ---------------------------------------------------------------- strides */

static void dense_strides(const Type *t, int64_t *strides) {
    int64_t step = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        strides[i] = step;
        step *= t->dims[i];
    }
}

bool type_is_dense(const Type *t, const int64_t *strides) {
    int64_t dense[MAX_RANK];
    dense_strides(t, dense);
    for (int i = 0; i < t->rank; i++)
        if (t->dims[i] != 1 && strides[i] != dense[i]) return false;
    return true;
}

/* Splits one run of axes that together step evenly (`n` elements, innermost stride `step`) over the trailing axes of `to`. */
static bool split_run(const Type *to, int64_t *strides, int *axis, int64_t n, int64_t step) {
    while (*axis >= 0 && (n > 1 || to->dims[*axis] == 1)) {
        int64_t extent = to->dims[*axis];
        if (extent == 0 || n % extent) return false;
        strides[*axis] = step;
        step *= extent;
        n /= extent;
        --*axis;
    }
    return n == 1;
}

/* Strides of `to`, a reshape of `from` with `strides`, in place. */
static bool reshape_strides(const Type *from, const Type *to, int64_t *strides) {
    int64_t result[MAX_RANK] = {0};
    int axis = to->rank - 1;
    for (int i = from->rank - 1; i >= 0;) {
        if (from->dims[i] == 1) {
            i--;
            continue;
        }
        int64_t n = from->dims[i], step = strides[i];
        int j = i - 1;
        for (; j >= 0 && (from->dims[j] == 1 || strides[j] == n * step); j--) n *= from->dims[j];
        if (!split_run(to, result, &axis, n, step)) return false;
        i = j;
    }
    memcpy(strides, result, sizeof result);
    return true;
}

static void permute(int64_t *strides, const int64_t *perm, uint32_t rank) {
    int64_t old[MAX_RANK];
    memcpy(old, strides, sizeof old);
    for (uint32_t i = 0; i < rank; i++) strides[i] = old[perm[i]];
}

static void slice_strides(const Graph *g, Value v, int64_t *offset, int64_t *strides) {
    uint32_t n, n_step;
    const int64_t *start = attr_list(g, v, A_START, &n), *step = attr_list(g, v, A_STEP, &n_step);
    for (uint32_t i = 0; i < n; i++) {
        *offset += start[i] * strides[i];
        if (i < n_step) strides[i] *= step[i];
    }
}

Value plan_view_affine(const Graph *g, const uint32_t *stored, Value v, int64_t *offset, int64_t strides[MAX_RANK]) {
    const Type *t = graph_type_at(g, v);
    if (stored[v]) {
        *offset = 0;
        memset(strides, 0, MAX_RANK * sizeof *strides);
        dense_strides(t, strides);
        return v;
    }
    OpCode op = graph_op(g, v);
    if (op != OP_reshape && op != OP_transpose && op != OP_expand && op != OP_slice) return 0;
    Value from = graph_operand(g, v, 0), base = plan_view_affine(g, stored, from, offset, strides);
    const Type *ft = graph_type_at(g, from);
    if (!base) return 0;
    if (op == OP_reshape) return reshape_strides(ft, t, strides) ? base : 0;
    if (op == OP_transpose) permute(strides, attr_list(g, v, A_PERM, NULL), t->rank);
    if (op == OP_slice) slice_strides(g, v, offset, strides);
    for (int i = 0; op == OP_expand && i < t->rank; i++)
        if (ft->dims[i] == 1 && t->dims[i] != 1) strides[i] = 0;
    return base;
}

/* ---------------------------------------------------------------- work and traffic */

static uint64_t product(const Type *t, int from, int to) {
    uint64_t n = 1;
    for (int i = from; i < to; i++) n *= (uint64_t)t->dims[i];
    return n;
}

static uint64_t contraction_flops(const Graph *g, Value v) {
    const Type *t = graph_type_at(g, v), *a = graph_type_at(g, graph_operand(g, v, 0)), *b = graph_type_at(g, graph_operand(g, v, 1));
    uint64_t n = (uint64_t)type_elems(t);
    switch ((int)graph_op(g, v)) {
    case OP_dot: return 2 * n * (uint64_t)a->dims[attr_i(g, v, A_TA, 0) ? a->rank - 2 : a->rank - 1];
    case OP_conv: return 2 * n * product(b, 1, b->rank);
    case OP_conv_dx: return 2 * (uint64_t)type_elems(a) * product(b, 1, b->rank);   /* dy, w */
    case OP_conv_dw: return 2 * (uint64_t)type_elems(b) * product(t, 1, t->rank);   /* x, dy */
    default: assert(!"not a contraction"); return 0;
    }
}

uint64_t group_flops(const Graph *g, const Group *group) {
    uint64_t flops = 0;
    for (uint32_t i = 0; i < group->n_nodes; i++) {
        Value v = group->nodes[i];
        const OpInfo *op = &op_info[graph_op(g, v)];
        if (op->lower == LOWER_CONTRACT) flops += contraction_flops(g, v);
        else if (op->lower == LOWER_REDUCE) flops += (uint64_t)type_elems(graph_type_at(g, graph_operand(g, v, 0)));
        else if (op->lower == LOWER_SCATTER) flops += (uint64_t)type_elems(graph_type_at(g, graph_operand(g, v, 2)));
        else flops += op->cost * (uint64_t)type_elems(graph_type_at(g, v));
    }
    return flops;
}

typedef struct Traffic { const Graph *g; const uint32_t *stored; const Group *group; Value seen[64]; uint32_t n_seen; uint64_t bytes; } Traffic;

static bool is_member(const Group *group, Value v) {
    uint32_t lo = 0, hi = group->n_nodes;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (group->nodes[mid] < v) lo = mid + 1;
        else hi = mid;
    }
    return lo < group->n_nodes && group->nodes[lo] == v;
}

/* Adds what one read of v moves, through views that touch at most `elems` elements; each stored value once. */
static void traffic_read(Traffic *t, Value v, uint64_t elems) {
    if (is_member(t->group, v)) return;
    for (uint32_t i = 0; i < t->n_seen; i++)
        if (t->seen[i] == v) return;
    if (t->n_seen < 64) t->seen[t->n_seen++] = v;
    const Type *type = graph_type_at(t->g, v);
    uint64_t own = (uint64_t)type_elems(type);
    if (own < elems) elems = own;
    if (t->stored[v]) {
        t->bytes += elems * dtype_info[type->dtype].bytes;
        return;
    }
    for (uint32_t i = 0; i < graph_node(t->g, v)->n_operands; i++) traffic_read(t, graph_operand(t->g, v, i), elems);
}

uint64_t group_moved_bytes(const Graph *g, const Plan *plan, const Group *group) {
    Traffic t = {.g = g, .stored = plan->entries[group->entry].buffer_of, .group = group};
    if (group->kind == GROUP_COPY) return 2 * type_bytes(graph_type_at(g, group->nodes[0]));
    for (uint32_t i = 0; i < group->n_nodes; i++)
        for (uint32_t k = 0; k < graph_node(g, group->nodes[i])->n_operands; k++)
            traffic_read(&t, graph_operand(g, group->nodes[i], k), UINT64_MAX);
    for (uint32_t i = 0; i < group->n_outs; i++) t.bytes += type_bytes(graph_type_at(g, group->outs[i]));
    return t.bytes;
}
