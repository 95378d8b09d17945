/* match_mask.c - which keys a mask lets a query see: a band along the diagonal, and what is left.
 *
 * A mask is read as a conjunction. Comparisons of affine functions of the coordinates (affine.c)
 * are always true, never, or say a (j - i) + c >= 0, a bound of the band; constants are compared
 * element by element; small masks that no fed value enters are computed and compared likewise. What
 * is none of these, such as a padding mask, is kept as a value as small as it is before it was
 * repeated. */
#include "match_attention.h"
#include <string.h>

enum { MAX_COMPUTED_ELEMS = 1 << 20 };

static const Mask all_seen = {.first = BAND_FIRST, .last = BAND_LAST};

/* ---- views ---- */

static Value emit_like(Graph *g, Value v, Value operand) {
    Type t = *graph_type_at(g, v);
    t.dtype = graph_type_at(g, operand)->dtype;
    return graph_emit(g, graph_op(g, v), &operand, 1, graph_node(g, v)->attr, graph_type(g, t));
}

Value view_pushed(Graph *g, Value v) {
    OpCode op = graph_op(g, v);
    Value parts[8];
    if (op != OP_reshape && op != OP_transpose && op != OP_expand && op != OP_slice) return 0;
    Value map = graph_operand(g, v, 0);
    uint32_t n = graph_node(g, map)->n_operands;
    if (op_info[graph_op(g, map)].lower != LOWER_MAP || n > 8) return 0;
    for (uint32_t i = 0; i < n; i++)
        parts[i] = strided_shortest(g, emit_like(g, v, graph_operand(g, map, i)));
    return graph_emit(g, graph_op(g, map), parts, n, graph_node(g, map)->attr,
                      graph_node(g, v)->type);
}

static Value with_dims(Graph *g, Value v, const ScoreDims *d) {
    Type t = *graph_type_at(g, v);
    int64_t full[] = {d->b, d->h, d->s, d->t};
    if (t.rank == 4) {
        bool fits = true;
        for (int i = 0; i < 4; i++) fits = fits && (t.dims[i] == 1 || t.dims[i] == full[i]);
        if (fits) return v;
    }
    return type_elems(&t) == d->b * d->h * d->s * d->t ? build_reshape(g, v, 4, full) : 0;
}

Value mask_compact(Graph *g, Value v, const ScoreDims *d) {
    double splat;
    v = with_dims(g, v, d);
    if (!v) return 0;
    if (const_splat(g, v, &splat))
        return build_splat(
            g, graph_type_of(g, (DType)graph_type_at(g, v)->dtype, 4, (int64_t[]){1, 1, 1, 1}),
            splat);
    Strided s = strided_of(g, v);
    bool repeats = false;
    for (uint32_t i = 0; i < 4; i++) {
        if (s.strides[i] || s.dims[i] == 1) continue;
        s.dims[i] = 1;
        repeats = true;
    }
    Value small = repeats ? strided_build(g, &s, 5) : 0;
    return small ? small : v;
}

/* ---- bounds ---- */

static int64_t floor_div(int64_t a, int64_t b) { /* b > 0 */
    return a / b - (a % b < 0);
}

static void bound_last(Mask *m, int64_t last) {
    if (last < m->last) m->last = last;
}

static void bound_first(Mask *m, int64_t first) {
    if (first > m->first) m->first = first;
}

/* Where the function is >= 0. false: it depends on more than j - i. */
static bool at_least_zero(const Affine *f, const Type *t, const ScoreDims *d, Mask *m) {
    if (affine_min(f, t) >= 0) return true;
    if (affine_max(f, t) < 0) {
        m->never = true;
        return true;
    }
    int64_t a = f->a[3] ? f->a[3] : -f->a[2];
    bool diagonal =
        f->a[0] == 0 && f->a[1] == 0 && (f->a[3] == a || d->t == 1) && (f->a[2] == -a || d->s == 1);
    if (!diagonal) return false;
    if (a > 0)
        bound_first(m, -floor_div(f->c, a));
    else
        bound_last(m, floor_div(f->c, -a));
    return true;
}

static bool equals_zero(const Affine *f, const Type *t, const ScoreDims *d, Mask *m) {
    Affine minus = {.c = -f->c};
    for (int i = 0; i < MAX_RANK; i++) minus.a[i] = -f->a[i];
    Mask both = *m;
    if (!at_least_zero(f, t, d, &both) || !at_least_zero(&minus, t, d, &both)) return false;
    *m = both;
    return true;
}

/* b - a, less `less` */
static bool difference(const Graph *g, Value a, Value b, int64_t less, Affine *f) {
    Affine other;
    if (!affine_of(g, b, f) || !affine_of(g, a, &other)) return false;
    f->c -= other.c + less;
    for (int i = 0; i < MAX_RANK; i++) f->a[i] -= other.a[i];
    return true;
}

/* |x| <= limit - less, x and the limit affine */
static bool compare_abs(const Graph *g, Value x, Value limit, int64_t less, const ScoreDims *d,
                        Mask *m) {
    const Type *t = graph_type_at(g, x);
    Affine f, c, side;
    if (graph_op(g, x) == OP_expand) x = graph_operand(g, x, 0);
    if (graph_op(g, x) != OP_abs || !affine_of(g, graph_operand(g, x, 0), &f) ||
        !affine_of(g, limit, &c))
        return false;
    Mask both = *m;
    for (int sign = -1; sign <= 1; sign += 2) {
        side.c = c.c - less + sign * f.c;
        for (int i = 0; i < MAX_RANK; i++) side.a[i] = c.a[i] + sign * f.a[i];
        if (!at_least_zero(&side, t, d, &both)) return false;
    }
    *m = both;
    return true;
}

/* A comparison of two affine functions, as a bound; false where it is something else. */
static bool compare(const Graph *g, Value v, bool negate, const ScoreDims *d, Mask *m) {
    Value a = graph_operand(g, v, 0), b = graph_operand(g, v, 1);
    const Type *t = graph_type_at(g, v);
    OpCode op = graph_op(g, v);
    Affine f;
    bool strict = op == OP_lt || op == OP_gt;
    if (op == OP_ge || op == OP_gt) {
        Value swap = a;
        a = b;
        b = swap;
    }
    if (negate && op != OP_eq && op != OP_ne) { /* not a <= b: b < a */
        Value swap = a;
        a = b;
        b = swap;
        strict = !strict;
    }
    if (op == OP_eq || op == OP_ne) {
        if (!difference(g, a, b, 0, &f)) return false;
        if ((op == OP_eq) != negate) return equals_zero(&f, t, d, m);
        if (affine_min(&f, t) > 0 || affine_max(&f, t) < 0) return true;
        if (affine_min(&f, t) != 0 || affine_max(&f, t) != 0) return false;
        m->never = true;
        return true;
    }
    if (compare_abs(g, a, b, strict, d, m)) return true;
    return difference(g, a, b, strict, &f) && at_least_zero(&f, t, d, m);
}

/* ---- constants ---- */

/* A bool constant, or a view of one, that is a band. */
static bool constant_band(const Graph *g, Value v, bool negate, const ScoreDims *d, Mask *m) {
    Strided s = strided_of(g, v);
    const Type *from = graph_type_at(g, s.base);
    const AttrField *data = graph_op(g, s.base) == OP_const ? attr_find(g, s.base, A_DATA) : NULL;
    if (!data || data->n != type_bytes(from) || s.rank != 4 || s.dims[0] != 1 || s.dims[1] != 1 ||
        s.dims[2] != d->s || s.dims[3] != d->t)
        return false;
    const char *bytes = (const char *)data->u.bytes + s.offset;
    int64_t first = INT64_MAX, last = INT64_MIN;
    for (int64_t i = 0; i < d->s; i++)
        for (int64_t j = 0; j < d->t; j++) {
            if ((bytes[i * s.strides[2] + j * s.strides[3]] != 0) == negate) continue;
            if (j - i < first) first = j - i;
            if (j - i > last) last = j - i;
        }
    for (int64_t i = 0; i < d->s; i++)
        for (int64_t j = 0; j < d->t; j++)
            if (((bytes[i * s.strides[2] + j * s.strides[3]] != 0) != negate) !=
                (j - i >= first && j - i <= last))
                return false;
    if (first > last) m->never = true;
    if (first > 1 - d->s) bound_first(m, first);
    if (last < d->t - 1) bound_last(m, last);
    return true;
}

static bool computed_band(Graph *g, Value v, bool negate, const ScoreDims *d, Mask *m) {
    Tensor t;
    const Type *type = graph_type_at(g, v);
    TypeId id = graph_node(g, v)->type;
    if (graph_op(g, strided_of(g, v).base) == OP_const || type->dims[2] != d->s ||
        type->dims[3] != d->t || type_elems(type) > MAX_COMPUTED_ELEMS)
        return false;
    Arena *scratch = arena_new();
    bool found = interp_fold(g, v, scratch, &t, MAX_COMPUTED_ELEMS);
    if (found) {
        void *bytes = arena_alloc(scratch, type_bytes(&t.type) + 16);
        tensor_to_bytes(&t, bytes);
        found = constant_band(g, build_const(g, id, bytes), negate, d, m);
    }
    arena_free(scratch);
    return found;
}

/* ---- the conjunction ---- */

static Value both(Graph *g, OpCode op, Value a, Value b) {
    return a && b ? build_binary(g, op, a, b) : a ? a : b;
}

void mask_and(Graph *g, Mask *m, const Mask *other) {
    bound_first(m, other->first);
    bound_last(m, other->last);
    m->never |= other->never;
    m->keep = both(g, OP_and, m->keep, other->keep);
}

static Value splat_of(const Graph *g, Value v, double *x) { return const_splat(g, v, x) ? v : 0; }

Value mask_truth(Graph *g, Value x, bool *negate) {
    double a, b;
    for (;;) {
        OpCode op = graph_op(g, x);
        if (graph_type_at(g, x)->dtype == DT_BOOL) return x;
        if (op == OP_cast) {
            Value of = graph_operand(g, x, 0);
            if (dtype_info[graph_type_at(g, of)->dtype].cls == CLASS_FLT &&
                dtype_info[graph_type_at(g, x)->dtype].cls == CLASS_INT)
                return 0; /* truncates */
            x = of;
        } else if (op == OP_sub && splat_of(g, graph_operand(g, x, 0), &a) && a == 1) {
            bool inner = false;
            Value of = mask_truth(g, graph_operand(g, x, 1), &inner);
            if (!of || graph_op(g, graph_operand(g, x, 1)) != OP_cast) return 0; /* 0 or 1? */
            *negate ^= !inner;
            return of;
        } else if (op == OP_where && splat_of(g, graph_operand(g, x, 1), &a) &&
                   splat_of(g, graph_operand(g, x, 2), &b) && (a == 0) != (b == 0)) {
            *negate ^= a == 0;
            return graph_operand(g, x, 0);
        } else if (op == OP_expand || op == OP_reshape || op == OP_transpose || op == OP_slice) {
            Value pushed = view_pushed(g, x);
            if (!pushed) return 0;
            x = pushed;
        } else {
            return 0;
        }
    }
}

Value mask_of_ones(Graph *g, Value x) {
    Strided s = strided_of(g, x);
    Type t = *graph_type_at(g, s.base);
    if (graph_op(g, x) == OP_expand) return mask_of_ones(g, graph_operand(g, x, 0));
    if (graph_op(g, x) == OP_cast && graph_type_at(g, graph_operand(g, x, 0))->dtype == DT_BOOL)
        return graph_operand(g, x, 0);
    const AttrField *data = graph_op(g, s.base) == OP_const ? attr_find(g, s.base, A_DATA) : NULL;
    if (!data || data->n != type_bytes(&t)) return 0;
    int64_t n = type_elems(&t);
    uint32_t bytes = dtype_info[t.dtype].bytes;
    Arena *scratch = arena_new();
    char *seen = arena_alloc(scratch, (size_t)n);
    bool fits = true;
    for (int64_t i = 0; i < n && fits; i++) {
        double e = elem_load((DType)t.dtype, (const char *)data->u.bytes + i * bytes);
        seen[i] = e == 1;
        fits = e == 0 || e == 1;
    }
    t.dtype = DT_BOOL;
    if (fits) s.base = build_const(g, graph_type(g, t), seen);
    arena_free(scratch);
    return fits ? strided_build(g, &s, 5) : 0;
}

/* x ? 0, x ? 1 where x is 0 or 1 by a bool: that bool, *negate where it must not hold; 0 else. */
static Value compared_bool(Graph *g, Value v, bool *negate) {
    OpCode op = graph_op(g, v);
    double with;
    bool inner = false;
    Value x = graph_operand(g, v, 0);
    if (!const_splat(g, graph_operand(g, v, 1), &with)) return 0;
    if (graph_op(g, x) != OP_cast || graph_type_at(g, graph_operand(g, x, 0))->dtype != DT_BOOL)
        return 0;
    Value of = mask_truth(g, x, &inner);
    bool is_true = (op == OP_ne && with == 0) || (op == OP_gt && with == 0) ||
                   (op == OP_eq && with == 1) || (op == OP_ge && with == 1);
    bool is_false = (op == OP_eq && with == 0) || (op == OP_lt && with == 1) ||
                    (op == OP_ne && with == 1) || (op == OP_le && with == 0);
    if (!of || (!is_true && !is_false)) return 0;
    *negate ^= inner ^ is_false;
    return of;
}

static bool holds_always(const Mask *m) {
    return !m->never && !m->keep && m->first == BAND_FIRST && m->last == BAND_LAST;
}

/* One of both holds: nothing is said where one always does, one is left where the other never does.
 */
static bool either(Graph *g, Value v, bool negate, const ScoreDims *d, Mask *m) {
    Mask a = mask_of(g, graph_operand(g, v, 0), negate, d),
         b = mask_of(g, graph_operand(g, v, 1), negate, d);
    if (holds_always(&a) || holds_always(&b)) return true;
    if (!a.never && !b.never) return false;
    mask_and(g, m, a.never ? &b : &a);
    return true;
}

static bool split(Graph *g, Value v, bool negate, const ScoreDims *d, Mask *m) {
    double splat;
    OpCode op = graph_op(g, v);
    Value of;
    if (const_splat(g, v, &splat)) {
        m->never |= (splat != 0) == negate;
        return true;
    }
    switch ((int)op) {
    case OP_not:
        *m = mask_of(g, graph_operand(g, v, 0), !negate, d);
        return true;
    case OP_and:
    case OP_or:
        if ((op == OP_and) == negate) return either(g, v, negate, d, m);
        *m = mask_of(g, graph_operand(g, v, 0), negate, d);
        Mask other = mask_of(g, graph_operand(g, v, 1), negate, d);
        mask_and(g, m, &other);
        return true;
    case OP_where: /* c ? a : false */
        if (negate || !const_splat(g, graph_operand(g, v, 2), &splat) || splat != 0) break;
        *m = mask_of(g, graph_operand(g, v, 0), false, d);
        Mask chosen = mask_of(g, graph_operand(g, v, 1), false, d);
        mask_and(g, m, &chosen);
        return true;
    case OP_cast:
        of = mask_truth(g, graph_operand(g, v, 0), &negate);
        if (!of) break;
        *m = mask_of(g, of, negate, d);
        return true;
    case OP_le:
    case OP_lt:
    case OP_ge:
    case OP_gt:
    case OP_eq:
    case OP_ne:
        of = compared_bool(g, v, &negate);
        if (of) *m = mask_of(g, of, negate, d);
        if (of || compare(g, v, negate, d, m)) return true;
        break;
    case OP_reshape:
    case OP_transpose:
    case OP_slice:
    case OP_expand:
        of = view_pushed(g, v);
        if (!of) break;
        *m = mask_of(g, of, negate, d);
        return true;
    }
    return constant_band(g, v, negate, d, m) || computed_band(g, v, negate, d, m);
}

Mask mask_of(Graph *g, Value cond, bool negate, const ScoreDims *d) {
    Mask m = all_seen;
    Value v = mask_compact(g, cond, d);
    if (!v) v = cond;
    if (!split(g, v, negate, d, &m)) {
        m = all_seen;
        m.keep = negate ? build_unary(g, OP_not, v) : v;
    }
    return m;
}
