/* affine.c - which integers are affine functions of their coordinates.
 *
 * Positions, and masks and gathers made of them, come as constants in arithmetic progression,
 * ranges, and sums, differences and views of such. Floats count where all they hold are integers
 * that a double has exactly. */
#include "strided.h"
#include <math.h>
#include <string.h>

static bool element_at(DType d, const char *bytes, int64_t at, int64_t *x) {
    bytes += at * dtype_info[d].bytes;
    if (dtype_info[d].cls != CLASS_FLT) {
        *x = elem_load_int(d, bytes);
        return *x > -((int64_t)1 << 52) && *x < (int64_t)1 << 52;
    }
    double f = elem_load(d, bytes);
    if (!(fabs(f) < 0x1p52) || f != floor(f)) return false;
    *x = (int64_t)f;
    return true;
}

/* A constant, or views of one: the differences between neighbours, then every element held against
 * them. */
static bool affine_const(const Graph *g, const Strided *s, Affine *r) {
    const Type *t = graph_type_at(g, s->base);
    const AttrField *data = attr_find(g, s->base, A_DATA);
    int64_t at[MAX_RANK] = {0}, once[MAX_RANK], n = 1, x; /* once: repeats are looked at once */
    DType d = (DType)t->dtype;
    const char *bytes = data->u.bytes;
    if (data->n != type_bytes(t)) return element_at(d, bytes, 0, &r->c); /* one repeated element */
    if (!element_at(d, bytes, s->offset, &r->c)) return false;
    for (uint32_t i = 0; i < s->rank; i++) {
        once[i] = s->strides[i] ? s->dims[i] : 1;
        n *= once[i];
        if (once[i] == 1) continue;
        if (!element_at(d, bytes, s->offset + s->strides[i], &x)) return false;
        r->a[i] = x - r->c;
    }
    int64_t want = r->c, where = s->offset;
    for (int64_t e = 0; e < n; e++) {
        if (!element_at(d, bytes, where, &x) || x != want) return false;
        for (uint32_t i = s->rank; i-- > 0;) {
            want += r->a[i];
            where += s->strides[i];
            if (++at[i] < once[i]) break;
            want -= at[i] * r->a[i];
            where -= at[i] * s->strides[i];
            at[i] = 0;
        }
    }
    return true;
}

/* Views permute, drop and scale coefficients as they do strides. */
static bool affine_view(const Graph *g, Value v, Affine *r) {
    Affine of;
    Strided whole = strided_of(g, v);
    if (graph_op(g, whole.base) == OP_const) return affine_const(g, &whole, r);
    Value a = graph_operand(g, v, 0);
    const Type *t = graph_type_at(g, v), *from = graph_type_at(g, a);
    Strided s = {.rank = from->rank};
    if (!affine_of(g, a, &of)) return false;
    for (uint32_t i = 0; i < from->rank; i++) {
        s.dims[i] = from->dims[i];
        s.strides[i] = from->dims[i] == 1 ? 0 : of.a[i];
    }
    const int64_t *perm = attr_list(g, v, A_PERM, NULL), *start = attr_list(g, v, A_START, NULL),
                  *step = attr_list(g, v, A_STEP, NULL);
    r->c = of.c;
    if (graph_op(g, v) == OP_reshape && !strided_reshape(&s, t->rank, t->dims)) return false;
    for (uint32_t i = 0; i < t->rank; i++) {
        int64_t stride = perm ? s.strides[perm[i]] : s.strides[i];
        if (start) r->c += start[i] * stride;
        r->a[i] = t->dims[i] == 1 ? 0 : stride * (step ? step[i] : 1);
    }
    return true;
}

static bool affine_sum(const Graph *g, Value v, int64_t sign, Affine *r) {
    Affine b;
    if (!affine_of(g, graph_operand(g, v, 0), r) || !affine_of(g, graph_operand(g, v, 1), &b))
        return false;
    r->c += sign * b.c;
    for (int i = 0; i < MAX_RANK; i++) r->a[i] += sign * b.a[i];
    return true;
}

static bool is_flat(const Affine *r) {
    for (int i = 0; i < MAX_RANK; i++)
        if (r->a[i]) return false;
    return true;
}

static bool affine_product(const Graph *g, Value v, Affine *r) {
    Affine b;
    if (!affine_of(g, graph_operand(g, v, 0), r) || !affine_of(g, graph_operand(g, v, 1), &b))
        return false;
    if (is_flat(r)) {
        Affine swap = *r;
        *r = b;
        b = swap;
    }
    if (!is_flat(&b)) return false;
    r->c *= b.c;
    for (int i = 0; i < MAX_RANK; i++) r->a[i] *= b.c;
    return true;
}

bool affine_of(const Graph *g, Value v, Affine *r) {
    const Type *t = graph_type_at(g, v);
    *r = (Affine){0};
    if (dtype_info[t->dtype].cls == CLASS_BOOL || !type_elems(t)) return false;
    switch ((int)graph_op(g, v)) {
    case OP_iota:
        r->a[attr_i(g, v, A_AXIS, 0)] = t->dims[attr_i(g, v, A_AXIS, 0)] > 1;
        return true;
    case OP_const:
    case OP_reshape:
    case OP_transpose:
    case OP_expand:
    case OP_slice:
        return affine_view(g, v, r);
    case OP_add:
        return affine_sum(g, v, 1, r);
    case OP_sub:
        return affine_sum(g, v, -1, r);
    case OP_mul:
        return affine_product(g, v, r);
    case OP_neg:
        if (!affine_of(g, graph_operand(g, v, 0), r)) return false;
        r->c = -r->c;
        for (int i = 0; i < MAX_RANK; i++) r->a[i] = -r->a[i];
        return true;
    case OP_cast: /* exact where the narrower type holds the range: up to 2^24 all floats but the
                     small */
        return dtype_info[t->dtype].bytes >= 4 && affine_of(g, graph_operand(g, v, 0), r) &&
               affine_min(r, t) > -(1 << 24) && affine_max(r, t) < 1 << 24;
    }
    return false;
}

int64_t affine_min(const Affine *r, const Type *t) {
    int64_t x = r->c;
    for (uint32_t i = 0; i < t->rank; i++)
        if (r->a[i] < 0) x += r->a[i] * (t->dims[i] - 1);
    return x;
}

int64_t affine_max(const Affine *r, const Type *t) {
    int64_t x = r->c;
    for (uint32_t i = 0; i < t->rank; i++)
        if (r->a[i] > 0) x += r->a[i] * (t->dims[i] - 1);
    return x;
}
