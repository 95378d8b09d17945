/* lower_view.c - views: an index vector of the result becomes index vectors of the operands; no
 * view ever costs a kernel.
 *
 * reshape linearises and takes apart again (the index algebra makes that affine where it is); pad,
 * window and concat add conditions; gathers make the loaded index a term of the operand's index. */
#include <assert.h>
#include "lower.h"

/* Axes of a group: those of `to` (ends at n_to) hold as many elements as those of `from`. Each is
 * the smallest, counted from the last axis, so that an axis which a reshape leaves alone keeps its
 * index. false where the extents have no such groups (an extent is 0). */
static bool next_group(const Type *to, const Type *from, uint32_t *n_to, uint32_t *n_from) {
    int64_t a = 1, b = 1;
    bool starts = true;
    while (starts || a != b) {
        bool takes_to = starts || a < b, takes_from = starts || a > b;
        if ((takes_to && !*n_to && !starts) || (takes_from && !*n_from && !starts)) return false;
        if (takes_to && *n_to) a *= to->dims[--*n_to];
        if (takes_from && *n_from) b *= from->dims[--*n_from];
        if (!a || !b) return false;
        starts = false;
    }
    return true;
}

/* The index of the axes [from, to) of t, linearised. */
static Ix linear_part(Lower *L, const Type *t, const Ix *idx, uint32_t from, uint32_t to) {
    Type part = {.dtype = t->dtype, .rank = (uint8_t)(to - from)};
    for (uint32_t d = from; d < to; d++) part.dims[d - from] = t->dims[d];
    return lower_linear(L, &part, idx + from);
}

/* Takes a linear index apart into the axes [from, to) of t. */
static void split_part(Lower *L, const Type *t, Ix rest, uint32_t from, uint32_t to, Ix *in) {
    uint32_t outermost = to;
    for (uint32_t d = to; d-- > from;)
        if (t->dims[d] > 1) outermost = d;
    for (uint32_t d = to; d-- > from;) {
        if (t->dims[d] <= 1) {
            in[d] = ix_const(L->k, L->arena, 0);
            continue;
        }
        in[d] = d == outermost ? rest : ix_mod(L->k, L->arena, rest, t->dims[d]);
        rest = ix_div(L->k, L->arena, rest, t->dims[d]);
    }
}

static Let view_reshape(Lower *L, Value v, const Ix *idx, Guard guard) {
    Value a = graph_operand(L->g, v, 0);
    const Type *to = graph_type_at(L->g, v), *from = graph_type_at(L->g, a);
    uint32_t n_to = to->rank, n_from = from->rank;
    Ix in[MAX_RANK];
    while (n_to || n_from) {
        uint32_t end_to = n_to, end_from = n_from;
        if (!next_group(to, from, &n_to, &n_from)) n_to = n_from = 0;
        split_part(L, from, linear_part(L, to, idx, n_to, end_to), n_from, end_from, in);
    }
    return lower_value(L, a, in, guard);
}

static Let view_slice(Lower *L, Value v, const Ix *idx, Guard guard) {
    uint32_t n, n_steps;
    const int64_t *start = attr_list(L->g, v, A_START, &n),
                  *step = attr_list(L->g, v, A_STEP, &n_steps);
    Ix in[MAX_RANK];
    for (uint32_t d = 0; d < graph_type_at(L->g, v)->rank; d++)
        in[d] = ix_add(L->k, L->arena, ix_mul(L->k, L->arena, idx[d], d < n_steps ? step[d] : 1),
                       ix_const(L->k, L->arena, start[d]));
    return lower_value(L, graph_operand(L->g, v, 0), in, guard);
}

static Let view_pad(Lower *L, Value v, const Ix *idx, Guard guard) {
    uint32_t n, n_interior;
    const int64_t *low = attr_list(L->g, v, A_LOW, &n),
                  *interior = attr_list(L->g, v, A_INTERIOR, &n_interior);
    Value a = graph_operand(L->g, v, 0);
    const Type *t = graph_type_at(L->g, a);
    Ix in[MAX_RANK];
    Cond conds[MAX_RANK];
    for (uint32_t d = 0; d < t->rank; d++) {
        int64_t pitch = 1 + (d < n_interior ? interior[d] : 0);
        Ix at = ix_add(L->k, L->arena, idx[d], ix_const(L->k, L->arena, -low[d]));
        conds[d] = (Cond){at, 0, (t->dims[d] - 1) * pitch, pitch};
        in[d] = ix_div(L->k, L->arena, at, pitch);
    }
    return lower_guarded(L, a, in, guard, conds, t->rank, attr_f(L->g, v, A_VALUE, 0));
}

static Let view_window(Lower *L, Value v, const Ix *idx, Guard guard) {
    uint32_t n;
    attr_list(L->g, v, A_KERNEL, &n);
    const int64_t *strides = attr_list(L->g, v, A_STRIDES, &n),
                  *dilations = attr_list(L->g, v, A_DILATIONS, &n);
    const int64_t *low = attr_list(L->g, v, A_LOW, &n);
    Value a = graph_operand(L->g, v, 0);
    const Type *t = graph_type_at(L->g, a);
    uint32_t lead = t->rank - n;
    Ix in[MAX_RANK];
    Cond conds[MAX_RANK];
    for (uint32_t d = 0; d < lead; d++) in[d] = idx[d];
    for (uint32_t s = 0; s < n; s++) {
        Ix at = ix_add(L->k, L->arena, ix_mul(L->k, L->arena, idx[lead + s], strides[s]),
                       ix_mul(L->k, L->arena, idx[lead + n + s], dilations[s]));
        in[lead + s] = ix_add(L->k, L->arena, at, ix_const(L->k, L->arena, -low[s]));
        conds[s] = (Cond){in[lead + s], 0, t->dims[lead + s] - 1, 1};
    }
    return lower_guarded(L, a, in, guard, conds, n, attr_f(L->g, v, A_VALUE, 0));
}

/* The parts in order, each chosen by its range of the axis; a part that the range excludes is not
 * there at all. */
static Let view_concat(Lower *L, Value v, const Ix *idx, Guard guard) {
    const Node *n = graph_node(L->g, v);
    uint32_t axis = (uint32_t)attr_i(L->g, v, A_AXIS, 0);
    DType dtype = (DType)graph_type_at(L->g, v)->dtype;
    int64_t start = 0;
    Let let = 0;
    for (uint32_t i = 0; i < n->n_operands; i++) {
        Value part = graph_operand(L->g, v, i);
        const Type *t = graph_type_at(L->g, part);
        Ix in[MAX_RANK];
        for (uint32_t d = 0; d < t->rank; d++) in[d] = idx[d];
        in[axis] = ix_add(L->k, L->arena, idx[axis], ix_const(L->k, L->arena, -start));
        start += t->dims[axis];
        int outcome;
        Guard inner = lower_guard(L, guard, (Cond){in[axis], 0, t->dims[axis] - 1, 1}, &outcome);
        if (outcome < 0 || t->dims[axis] == 0) continue;
        Let here = lower_value(L, part, in, inner);
        if (!let || inner == guard) {
            let = here;
            continue;
        }
        Cond cond = L->guards[inner].cond;
        let = lower_emit(L, (Stmt){.kind = ST_SELECT,
                                   .dtype = dtype,
                                   .args = {here, let},
                                   .conds = &cond,
                                   .n_conds = 1,
                                   .loc = n->loc});
    }
    return let ? let : lower_constant(L, 0, dtype);
}

/* The value of an index tensor as a term of an index; in range by contract, so proven so. Constants
 * fold. */
static Ix index_term(Lower *L, Value idx, const Ix *at, Guard guard, int64_t extent) {
    double splat;
    if (const_splat(L->g, idx, &splat)) return ix_const(L->k, L->arena, (int64_t)splat);
    return ix_let(L->k, L->arena, lower_value(L, idx, at, guard), 0, extent - 1);
}

static Let view_gather(Lower *L, Value v, const Ix *idx, Guard guard) {
    Value a = graph_operand(L->g, v, 0), from = graph_operand(L->g, v, 1);
    const Type *t = graph_type_at(L->g, a);
    uint32_t axis = (uint32_t)attr_i(L->g, v, A_AXIS, 0), r = graph_type_at(L->g, from)->rank;
    Ix in[MAX_RANK];
    for (uint32_t d = 0; d < t->rank; d++)
        in[d] = d < axis ? idx[d] : d > axis ? idx[d + r - 1] : 0;
    in[axis] = index_term(L, from, idx + axis, guard, t->dims[axis]);
    return lower_value(L, a, in, guard);
}

static Let view_take(Lower *L, Value v, const Ix *idx, Guard guard) {
    Value a = graph_operand(L->g, v, 0);
    const Type *t = graph_type_at(L->g, a);
    uint32_t axis = (uint32_t)attr_i(L->g, v, A_AXIS, 0);
    Ix in[MAX_RANK];
    for (uint32_t d = 0; d < t->rank; d++) in[d] = idx[d];
    in[axis] = index_term(L, graph_operand(L->g, v, 1), idx, guard, t->dims[axis]);
    return lower_value(L, a, in, guard);
}

/* a[batch.., x1..xk, q..] at idx[batch.., r.., k] -> [batch.., r.., q..] */
static Let view_gather_nd(Lower *L, Value v, const Ix *idx, Guard guard) {
    Value a = graph_operand(L->g, v, 0), from = graph_operand(L->g, v, 1);
    const Type *t = graph_type_at(L->g, a), *ti = graph_type_at(L->g, from);
    uint32_t batch = (uint32_t)attr_i(L->g, v, A_BATCH, 0), n = (uint32_t)ti->dims[ti->rank - 1];
    Ix in[MAX_RANK], at[MAX_RANK];
    for (uint32_t d = 0; d + 1 < ti->rank; d++) at[d] = idx[d];
    for (uint32_t d = 0; d < batch; d++) in[d] = idx[d];
    for (uint32_t i = 0; i < n; i++) {
        at[ti->rank - 1] = ix_const(L->k, L->arena, i);
        in[batch + i] = index_term(L, from, at, guard, t->dims[batch + i]);
    }
    for (uint32_t d = batch + n; d < t->rank; d++) in[d] = idx[ti->rank - 1 + d - batch - n];
    return lower_value(L, a, in, guard);
}

Let lower_view(Lower *L, Value v, const Ix *idx, Guard guard) {
    uint32_t n;
    Ix in[MAX_RANK];
    switch (graph_op(L->g, v)) {
    case OP_reshape:
        return view_reshape(L, v, idx, guard);
    case OP_transpose: {
        const int64_t *perm = attr_list(L->g, v, A_PERM, &n);
        for (uint32_t d = 0; d < n; d++) in[perm[d]] = idx[d];
        return lower_value(L, graph_operand(L->g, v, 0), in, guard);
    }
    case OP_expand:
        return lower_value(L, graph_operand(L->g, v, 0), idx,
                           guard); /* repeated axes have extent 1: index 0 */
    case OP_slice:
        return view_slice(L, v, idx, guard);
    case OP_pad:
        return view_pad(L, v, idx, guard);
    case OP_window:
        return view_window(L, v, idx, guard);
    case OP_concat:
        return view_concat(L, v, idx, guard);
    case OP_gather:
        return view_gather(L, v, idx, guard);
    case OP_take:
        return view_take(L, v, idx, guard);
    case OP_gather_nd:
        return view_gather_nd(L, v, idx, guard);
    default:
        break;
    }
    assert(0 && "no view");
    return 0;
}
