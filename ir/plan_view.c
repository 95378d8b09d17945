/* plan_view.c - chains of views over a stored value as strides.
 *
 * Such a chain is one affine map where every step keeps it so: transpose permutes strides, expand
 * sets them to 0, slice scales and shifts, reshape splits and merges axes whose strides fit
 * together. */
#include "ir.h"
#include <string.h>

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

/* Splits one run of axes that together step evenly (`n` elements, innermost stride `step`) over the
 * trailing axes of `to`. */
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

Value plan_view_affine(const Graph *g, const uint32_t *stored, Value v, int64_t *offset,
                       int64_t strides[MAX_RANK]) {
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
