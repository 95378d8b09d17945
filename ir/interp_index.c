/* interp_index.c - gathers and scatters in the reference interpreter: index maps that read data.
 *
 * Indices are checked, for here nobody else has. Scatters run in index order. */
#include "interp.h"
#include <string.h>

static int64_t product(const int64_t *dims, uint32_t n) {
    int64_t p = 1;
    for (uint32_t i = 0; i < n; i++) p *= dims[i];
    return p;
}

static bool index_fits(const Eval *e, int64_t at, int64_t limit) {
    return (at >= 0 && at < limit) ||
           eval_fail(e, "index %lld is outside [0, %lld)", (long long)at, (long long)limit);
}

static void copy_base(Eval *e) {
    memcpy(e->out.u.p, e->in[0]->u.p, (size_t)type_elems(&e->out.type) * sizeof(double));
}

static WalkMode scatter_walk(const Eval *e) {
    switch ((ScatterMode)attr_i(e->g, e->v, A_MODE, SCATTER_ADD)) {
    case SCATTER_ADD:
        return WALK_ADD;
    case SCATTER_SET:
        return WALK_COPY;
    case SCATTER_MUL:
        return WALK_MUL;
    case SCATTER_MIN:
        return e->out.type.dtype == DT_U64 ? WALK_UMIN : WALK_MIN;
    case SCATTER_MAX:
        return e->out.type.dtype == DT_U64 ? WALK_UMAX : WALK_MAX;
    }
    return WALK_ADD;
}

/* ---------------------------------------------------------------- whole slices along one axis */

/* whole[p.., idx[r], q..] and picked[p.., r.., q..]: one way or the other */
static bool along_axis(Eval *e, const Tensor *whole, const Tensor *idx, const Tensor *picked,
                       bool scatters, WalkMode mode) {
    int64_t axis = attr_i(e->g, e->v, A_AXIS, 0);
    const Type *t = &whole->type;
    int64_t outer = product(t->dims, (uint32_t)axis), extent = t->dims[axis];
    int64_t inner = product(t->dims + axis + 1, t->rank - (uint32_t)axis - 1),
            n = type_elems(&idx->type);
    for (int64_t p = 0; p < outer; p++)
        for (int64_t r = 0; r < n; r++) {
            if (!index_fits(e, idx->u.i[r], extent)) return false;
            int64_t *at = whole->u.i + (p * extent + idx->u.i[r]) * inner,
                    *row = picked->u.i + (p * n + r) * inner;
            walk_row(mode, e->is_float, inner, scatters ? at : row, scatters ? row : at);
        }
    return true;
}

bool eval_gather(Eval *e) { return along_axis(e, e->in[0], e->in[1], &e->out, false, WALK_COPY); }

bool eval_scatter(Eval *e) {
    copy_base(e);
    bool ok = along_axis(e, &e->out, e->in[1], e->in[2], true, scatter_walk(e));
    tensor_wrap(&e->out);
    return ok;
}

/* ---------------------------------------------------------------- element by element along one
 * axis */

/* whole[i with i_axis := idx[i]] and picked[i] */
static bool by_element(Eval *e, const Tensor *whole, const Tensor *idx, const Tensor *picked,
                       bool scatters, WalkMode mode) {
    int64_t axis = attr_i(e->g, e->v, A_AXIS, 0), s[MAX_RANK], i[MAX_RANK] = {0}, flat = 0;
    const Type *t = &idx->type;
    strides_of(&whole->type, s);
    if (!type_elems(t)) return true;
    do {
        int64_t offset = (idx->u.i[flat] - i[axis]) * s[axis];
        if (!index_fits(e, idx->u.i[flat], whole->type.dims[axis])) return false;
        for (uint32_t j = 0; j < t->rank; j++) offset += i[j] * s[j];
        int64_t *at = whole->u.i + offset, *element = picked->u.i + flat++;
        walk_row(mode, e->is_float, 1, scatters ? at : element, scatters ? element : at);
    } while (index_next(i, t->dims, t->rank));
    return true;
}

bool eval_take(Eval *e) { return by_element(e, e->in[0], e->in[1], &e->out, false, WALK_COPY); }

bool eval_put(Eval *e) {
    copy_base(e);
    bool ok = by_element(e, &e->out, e->in[1], e->in[2], true, scatter_walk(e));
    tensor_wrap(&e->out);
    return ok;
}

/* ---------------------------------------------------------------- index vectors */

/* whole[b.., idx[b.., j.., :], q..] and picked[b.., j.., q..], `batch` leading axes shared */
static bool by_vector(Eval *e, const Tensor *whole, const Tensor *idx, const Tensor *picked,
                      bool scatters, WalkMode mode) {
    uint32_t batch = (uint32_t)attr_i(e->g, e->v, A_BATCH, 0), rank = idx->type.rank;
    const Type *t = &whole->type;
    uint32_t depth = (uint32_t)idx->type.dims[rank - 1];
    int64_t n_batch = product(t->dims, batch),
            inner = product(t->dims + batch + depth, t->rank - batch - depth);
    int64_t cells = product(t->dims + batch, depth),
            n = product(idx->type.dims + batch, rank - 1 - batch);
    for (int64_t b = 0; b < n_batch; b++)
        for (int64_t j = 0; j < n; j++) {
            const int64_t *vector = idx->u.i + (b * n + j) * depth;
            int64_t cell = 0;
            for (uint32_t k = 0; k < depth; k++) {
                if (!index_fits(e, vector[k], t->dims[batch + k])) return false;
                cell = cell * t->dims[batch + k] + vector[k];
            }
            int64_t *at = whole->u.i + (b * cells + cell) * inner,
                    *row = picked->u.i + (b * n + j) * inner;
            walk_row(mode, e->is_float, inner, scatters ? at : row, scatters ? row : at);
        }
    return true;
}

bool eval_gather_nd(Eval *e) { return by_vector(e, e->in[0], e->in[1], &e->out, false, WALK_COPY); }

bool eval_scatter_nd(Eval *e) {
    copy_base(e);
    bool ok = by_vector(e, &e->out, e->in[1], e->in[2], true, scatter_walk(e));
    tensor_wrap(&e->out);
    return ok;
}
