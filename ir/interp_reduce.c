/* interp_reduce.c - reductions and contractions in the reference interpreter.
 *
 * A reduction is a walk whose destination stands still along the reduced axes; dot is one
 * multiply-add walk; the three convolutions are the same walk per kernel position with y, x or w as
 * the destination: y[n, g*O+o, q] += x[n, g*C+c, q*stride + k*dilation - low] * w[g*O+o, c, k]. */
#include "interp.h"
#include <math.h>
#include <string.h>

static bool reduce(Eval *e, WalkMode mode, double identity) {
    const Type *t = &e->in[0]->type;
    int64_t a[MAX_RANK], d[MAX_RANK];
    Walk w = {0};
    strides_of(t, a);
    strides_of(&e->out.type, d);
    tensor_fill(&e->out, identity);
    for (uint32_t i = 0; i < t->rank; i++)
        walk_axis(&w, t->dims[i], e->out.type.dims[i] == t->dims[i] ? d[i] : 0, a[i], 0);
    if (type_elems(t)) walk(mode, e->is_float, &w, e->out.u.p, e->in[0]->u.p, NULL);
    tensor_wrap(&e->out);
    return true;
}

bool eval_sum(Eval *e) { return reduce(e, WALK_ADD, 0); }
bool eval_prod(Eval *e) { return reduce(e, WALK_MUL, 1); }

static bool is_u64(const Eval *e) { return e->in[0]->type.dtype == DT_U64; }

bool eval_rmax(Eval *e) {
    return is_u64(e) ? reduce(e, WALK_UMAX, 0) : reduce(e, WALK_MAX, -INFINITY);
}
/* -1 is the largest of all there */
bool eval_rmin(Eval *e) {
    return is_u64(e) ? reduce(e, WALK_UMIN, -1) : reduce(e, WALK_MIN, INFINITY);
}

/* Is element i better than j? NaN is best of all, as in PyTorch. */
static bool is_better(const Tensor *t, bool largest, int64_t i, int64_t j) {
    uint64_t a = (uint64_t)t->u.i[i], b = (uint64_t)t->u.i[j];
    if (t->type.dtype == DT_U64) return largest ? a > b : a < b;
    if (!dtype_is_float(t->type.dtype))
        return largest ? t->u.i[i] > t->u.i[j] : t->u.i[i] < t->u.i[j];
    double x = t->u.f[i], y = t->u.f[j];
    if (isnan(x) || isnan(y)) return isnan(x) && !isnan(y);
    return largest ? x > y : x < y;
}

static bool arg_reduce(Eval *e, bool largest) {
    const Type *t = &e->in[0]->type;
    int64_t axis = attr_i(e->g, e->v, A_AXIS, 0), s[MAX_RANK], n = type_elems(&e->out.type);
    strides_of(t, s);
    if (n && t->dims[axis] == 0) return eval_fail(e, "arg reduction of nothing");
    for (int64_t i = 0; i < n; i++) {
        int64_t base = i / s[axis] * s[axis] * t->dims[axis] + i % s[axis], best = 0;
        for (int64_t k = 1; k < t->dims[axis]; k++)
            if (is_better(e->in[0], largest, base + k * s[axis], base + best * s[axis])) best = k;
        e->out.u.i[i] = best;
    }
    return true;
}

bool eval_argmax(Eval *e) { return arg_reduce(e, true); }
bool eval_argmin(Eval *e) { return arg_reduce(e, false); }

bool eval_dot(Eval *e) {
    const Type *ta = &e->in[0]->type, *tb = &e->in[1]->type, *t = &e->out.type;
    uint32_t m = t->rank - 2u, n = t->rank - 1u;
    bool flip_a = attr_i(e->g, e->v, A_TA, 0), flip_b = attr_i(e->g, e->v, A_TB, 0);
    int64_t a[MAX_RANK], b[MAX_RANK], d[MAX_RANK];
    Walk w = {0};
    strides_of(ta, a);
    strides_of(tb, b);
    strides_of(t, d);
    tensor_fill(&e->out, 0);
    if (!type_elems(ta) || !type_elems(tb)) return true;
    for (uint32_t i = 0; i < m; i++) walk_axis(&w, t->dims[i], d[i], a[i], b[i]);
    int64_t k = ta->dims[flip_a ? m : n], a_k = a[flip_a ? m : n], b_k = b[flip_b ? n : m];
    walk_axis(&w, t->dims[m], d[m], a[flip_a ? n : m], 0);
    if (!flip_b) walk_axis(&w, k, 0, a_k, b_k);
    walk_axis(&w, t->dims[n], d[n], 0, b[flip_b ? m : n]);
    if (flip_b) walk_axis(&w, k, 0, a_k, b_k);
    walk(WALK_MADD, e->is_float, &w, e->out.u.p, e->in[0]->u.p, e->in[1]->u.p);
    tensor_wrap(&e->out);
    return true;
}

/* ---------------------------------------------------------------- convolutions */

typedef struct Conv {
    uint32_t n; /* spatial axes */
    int64_t groups, strides[MAX_RANK], dilations[MAX_RANK], low[MAX_RANK];
    int64_t sx[MAX_RANK], sw[MAX_RANK], sy[MAX_RANK];
    const Tensor *x, *w, *y;
} Conv;

static void conv_init(const Eval *e, Conv *c) {
    c->n = c->x->type.rank - 2u;
    c->groups = attr_i(e->g, e->v, A_GROUPS, 1);
    list_of(e->g, e->v, A_STRIDES, 1, c->n, c->strides);
    list_of(e->g, e->v, A_DILATIONS, 1, c->n, c->dilations);
    list_of(e->g, e->v, A_LOW, 0, c->n, c->low);
    strides_of(&c->x->type, c->sx);
    strides_of(&c->w->type, c->sw);
    strides_of(&c->y->type, c->sy);
}

static int64_t ceil_div(int64_t a, int64_t b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }

/* The loops of one kernel position, strides as d = y, a = x, b = w; false where no output position
 * falls inside. */
static bool conv_position(const Conv *c, const int64_t *k, Walk *w, int64_t *x_at, int64_t *w_at,
                          int64_t *y_at) {
    const Type *x = &c->x->type, *f = &c->w->type, *y = &c->y->type;
    int64_t out = f->dims[0] / c->groups, in = f->dims[1];
    *w = (Walk){0};
    *x_at = *w_at = *y_at = 0;
    walk_axis(w, x->dims[0], c->sy[0], c->sx[0], 0);
    walk_axis(w, c->groups, out * c->sy[1], in * c->sx[1], out * c->sw[0]);
    walk_axis(w, out, c->sy[1], 0, c->sw[0]);
    walk_axis(w, in, 0, c->sx[1], c->sw[1]);
    for (uint32_t j = 0; j < c->n; j++) {
        int64_t shift = k[j] * c->dilations[j] - c->low[j], limit = x->dims[2 + j];
        int64_t first = ceil_div(-shift, c->strides[j]),
                end = ceil_div(limit - shift, c->strides[j]);
        if (first < 0) first = 0;
        if (end > y->dims[2 + j]) end = y->dims[2 + j];
        if (end <= first) return false;
        walk_axis(w, end - first, c->sy[2 + j], c->sx[2 + j] * c->strides[j], 0);
        *x_at += (first * c->strides[j] + shift) * c->sx[2 + j];
        *y_at += first * c->sy[2 + j];
        *w_at += k[j] * c->sw[2 + j];
    }
    return true;
}

/* d += a * b, each with its own strides through the loops of w. A source that stands still in the
 * innermost loop comes as a. */
static void multiply_add(const Walk *w, bool is_float, void *d, const int64_t *ds, const void *a,
                         const int64_t *as, const void *b, const int64_t *bs) {
    Walk to = *w;
    for (uint32_t i = 0; i < w->rank; i++) to.d[i] = ds[i], to.a[i] = as[i], to.b[i] = bs[i];
    walk(WALK_MADD, is_float, &to, d, a, b);
}

static bool conv_any(Eval *e, Conv *c) {
    int64_t k[MAX_RANK] = {0};
    Walk w;
    int64_t x_at, w_at, y_at;
    conv_init(e, c);
    tensor_fill(&e->out, 0);
    if (!type_elems(&c->x->type) || !type_elems(&c->w->type)) return true;
    do {
        if (!conv_position(c, k, &w, &x_at, &w_at, &y_at)) continue;
        int64_t *x = c->x->u.i + x_at, *f = c->w->u.i + w_at, *y = c->y->u.i + y_at;
        if (c->y == &e->out)
            multiply_add(&w, e->is_float, y, w.d, f, w.b, x, w.a);
        else if (c->x == &e->out)
            multiply_add(&w, e->is_float, x, w.a, f, w.b, y, w.d);
        else
            multiply_add(&w, e->is_float, f, w.b, x, w.a, y, w.d);
    } while (index_next(k, c->w->type.dims + 2, c->n));
    tensor_wrap(&e->out);
    return true;
}

bool eval_conv(Eval *e) { return conv_any(e, &(Conv){.x = e->in[0], .w = e->in[1], .y = &e->out}); }
bool eval_conv_dx(Eval *e) {
    return conv_any(e, &(Conv){.x = &e->out, .w = e->in[1], .y = e->in[0]});
}
bool eval_conv_dw(Eval *e) {
    return conv_any(e, &(Conv){.x = e->in[0], .w = &e->out, .y = e->in[1]});
}
