/* interp_view.c - leaves, views and window/fold in the reference interpreter, as strided walks.
 *
 * A view copies: out-of-range parts (padding) are filled first, then the part in range is one walk.
 * window and fold are one walk per kernel position over the output positions that fall inside the
 * operand. */
#include "interp.h"
#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- leaves */

bool eval_const(Eval *e) {
    const AttrField *f = attr_find(e->g, e->v, A_DATA);
    const DTypeInfo *info = &dtype_info[e->out.type.dtype];
    int64_t n = type_elems(&e->out.type);
    bool one = f && f->n == info->bytes;
    if (!f || (!one && f->n < (uint64_t)n * info->bytes)) return eval_fail(e, "const without data");
    for (int64_t i = 0; i < n; i++) {
        const char *at = (const char *)f->u.bytes + (one ? 0 : (size_t)i * info->bytes);
        if (e->is_float)
            e->out.u.f[i] = elem_load((DType)e->out.type.dtype, at);
        else
            e->out.u.i[i] = elem_load_int((DType)e->out.type.dtype, at);
    }
    return true;
}

static bool eval_named(Eval *e, const Tensor *(*find)(void *, const char *), const char *what) {
    const char *name = attr_s(e->g, e->v, A_NAME);
    const Tensor *t = find ? find(e->env->user, name) : NULL;
    if (!t) return eval_fail(e, "no value for %s %s", what, name);
    if (t->type.dtype != e->out.type.dtype || !dims_equal(&t->type, &e->out.type))
        return eval_fail(e, "the value of %s %s has another type", what, name);
    memcpy(e->out.u.p, t->u.p, (size_t)type_elems(&t->type) * sizeof(double));
    return true;
}

bool eval_input(Eval *e) { return e->env && eval_named(e, e->env->input, "input"); }
bool eval_state(Eval *e) { return e->env && eval_named(e, e->env->state, "state"); }

bool eval_scalar(Eval *e) {
    const char *name = attr_s(e->g, e->v, A_NAME);
    if (!e->env) return false;
    if (!e->env->scalar) return eval_fail(e, "no value for scalar %s", name);
    tensor_fill(&e->out, e->env->scalar(e->env->user, name));
    return true;
}

bool eval_iota(Eval *e) {
    int64_t axis = attr_i(e->g, e->v, A_AXIS, 0), strides[MAX_RANK], n = type_elems(&e->out.type);
    strides_of(&e->out.type, strides);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = i / strides[axis] % e->out.type.dims[axis];
        if (e->is_float)
            e->out.u.f[i] = (double)at;
        else
            e->out.u.i[i] = at;
    }
    tensor_wrap(&e->out);
    return true;
}

/* ---------------------------------------------------------------- views */

bool eval_reshape(Eval *e) {
    memcpy(e->out.u.p, e->in[0]->u.p, (size_t)type_elems(&e->out.type) * sizeof(double));
    return true;
}

/* out[i] = a[offset + i . strides] */
static bool copy_strided(Eval *e, const int64_t *strides, int64_t offset) {
    const Type *t = &e->out.type;
    int64_t to[MAX_RANK];
    Walk w = {0};
    strides_of(t, to);
    for (uint32_t i = 0; i < t->rank; i++) walk_axis(&w, t->dims[i], to[i], strides[i], 0);
    if (type_elems(t)) walk(WALK_COPY, false, &w, e->out.u.p, e->in[0]->u.i + offset, NULL);
    return true;
}

bool eval_transpose(Eval *e) {
    int64_t perm[MAX_RANK], from[MAX_RANK], strides[MAX_RANK] = {0};
    uint32_t rank = e->out.type.rank;
    list_of(e->g, e->v, A_PERM, 0, rank, perm);
    strides_of(&e->in[0]->type, from);
    for (uint32_t i = 0; i < rank; i++) strides[i] = from[perm[i]];
    return copy_strided(e, strides, 0);
}

bool eval_expand(Eval *e) {
    int64_t strides[MAX_RANK];
    strides_of(&e->in[0]->type, strides);
    for (uint32_t i = 0; i < e->out.type.rank; i++)
        if (e->in[0]->type.dims[i] == 1) strides[i] = 0;
    return copy_strided(e, strides, 0);
}

bool eval_slice(Eval *e) {
    int64_t start[MAX_RANK], step[MAX_RANK], strides[MAX_RANK], offset = 0;
    uint32_t rank = e->out.type.rank;
    list_of(e->g, e->v, A_START, 0, rank, start);
    list_of(e->g, e->v, A_STEP, 1, rank, step);
    strides_of(&e->in[0]->type, strides);
    for (uint32_t i = 0; i < rank; i++) {
        offset += start[i] * strides[i];
        strides[i] *= step[i];
    }
    return copy_strided(e, strides, offset);
}

/* Of the points i in [0, n), those with 0 <= i*step - low < limit, as [*first, *first + return).
 * step > 0. */
static int64_t points_inside(int64_t n, int64_t step, int64_t low, int64_t limit, int64_t *first) {
    int64_t last = limit + low > 0 ? (limit - 1 + low) / step : -1;
    *first = low > 0 ? (low + step - 1) / step : 0;
    if (last > n - 1) last = n - 1;
    return last - *first + 1;
}

bool eval_pad(Eval *e) {
    const Type *from = &e->in[0]->type, *to = &e->out.type;
    int64_t low[MAX_RANK], interior[MAX_RANK], a[MAX_RANK], d[MAX_RANK], a_at = 0, d_at = 0;
    Walk w = {0};
    list_of(e->g, e->v, A_LOW, 0, to->rank, low);
    list_of(e->g, e->v, A_INTERIOR, 0, to->rank, interior);
    strides_of(from, a);
    strides_of(to, d);
    tensor_fill(&e->out, attr_f(e->g, e->v, A_VALUE, 0));
    for (uint32_t i = 0; i < to->rank; i++) {
        int64_t first,
            n = points_inside(from->dims[i], interior[i] + 1, -low[i], to->dims[i], &first);
        if (n <= 0) return true;
        walk_axis(&w, n, d[i] * (interior[i] + 1), a[i], 0);
        a_at += first * a[i];
        d_at += (first * (interior[i] + 1) + low[i]) * d[i];
    }
    walk(WALK_COPY, false, &w, e->out.u.i + d_at, e->in[0]->u.i + a_at, NULL);
    return true;
}

bool eval_concat(Eval *e) {
    int64_t axis = attr_i(e->g, e->v, A_AXIS, 0), d[MAX_RANK], a[MAX_RANK], at = 0;
    strides_of(&e->out.type, d);
    for (uint32_t k = 0; k < e->n_in; k++) {
        const Type *t = &e->in[k]->type;
        Walk w = {0};
        strides_of(t, a);
        for (uint32_t i = 0; i < t->rank; i++) walk_axis(&w, t->dims[i], d[i], a[i], 0);
        if (type_elems(t))
            walk(WALK_COPY, false, &w, e->out.u.i + at * d[axis], e->in[k]->u.p, NULL);
        at += t->dims[axis];
    }
    return true;
}

/* ---------------------------------------------------------------- window and fold */

typedef struct Geometry {
    uint32_t n;
    int64_t kernel[MAX_RANK], strides[MAX_RANK], dilations[MAX_RANK], low[MAX_RANK];
} Geometry;

static void geometry_of(const Eval *e, Geometry *geo) {
    const int64_t *kernel = attr_list(e->g, e->v, A_KERNEL, &geo->n);
    memcpy(geo->kernel, kernel, geo->n * sizeof *kernel);
    list_of(e->g, e->v, A_STRIDES, 1, geo->n, geo->strides);
    list_of(e->g, e->v, A_DILATIONS, 1, geo->n, geo->dilations);
    list_of(e->g, e->v, A_LOW, 0, geo->n, geo->low);
}

/* For the kernel position k: wide[.., o, k] is whole[.., o*stride + k*dilation - low]; copied out
 * of or added onto the whole. */
static void window_position(const Geometry *geo, const int64_t *k, const Tensor *whole,
                            const Tensor *wide, bool folds, bool is_float) {
    uint32_t lead = whole->type.rank - geo->n;
    int64_t s[MAX_RANK], u[MAX_RANK], s_at = 0, u_at = 0;
    Walk w = {0};
    strides_of(&whole->type, s);
    strides_of(&wide->type, u);
    for (uint32_t i = 0; i < whole->type.rank; i++) {
        uint32_t j = i - lead;
        int64_t first = 0, n = whole->type.dims[i], step = 1;
        if (i >= lead) {
            int64_t low = geo->low[j] - k[j] * geo->dilations[j];
            step = geo->strides[j];
            n = points_inside(wide->type.dims[i], step, low, whole->type.dims[i], &first);
            s_at += (first * step - low) * s[i];
            u_at += first * u[i] + k[j] * u[lead + geo->n + j];
        }
        if (n <= 0) return;
        walk_axis(&w, n, folds ? s[i] * step : u[i], folds ? u[i] : s[i] * step, 0);
    }
    if (folds)
        walk(WALK_ADD, is_float, &w, whole->u.i + s_at, wide->u.i + u_at, NULL);
    else
        walk(WALK_COPY, is_float, &w, wide->u.i + u_at, whole->u.i + s_at, NULL);
}

static bool eval_windows(Eval *e, bool folds) {
    Geometry geo;
    int64_t k[MAX_RANK] = {0};
    geometry_of(e, &geo);
    tensor_fill(&e->out, folds ? 0 : attr_f(e->g, e->v, A_VALUE, 0));
    for (uint32_t i = 0; i < geo.n; i++)
        if (geo.kernel[i] == 0) return true;
    do
        window_position(&geo, k, folds ? &e->out : e->in[0], folds ? e->in[0] : &e->out, folds,
                        e->is_float);
    while (index_next(k, geo.kernel, geo.n));
    if (folds) tensor_wrap(&e->out);
    return true;
}

bool eval_window(Eval *e) { return eval_windows(e, false); }
bool eval_fold(Eval *e) { return eval_windows(e, true); }
