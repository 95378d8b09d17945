/* attention.c - the macro `attention`: its shape, its expansion in core ops, its gradients.
 *
 * attention.h says what it computes. Grouped heads need no copies: the queries of the heads that
 * share a group are rows of one matrix, q[B,H,S,D] = [B,G,H/G*S,D]. The gradients are those of
 * flash attention (Dao et al. 2022, algorithm 4): with delta = sum over E of dy y, the score's
 * gradient is p (dp - delta). Everything is emitted anew by each of the functions; equal nodes are
 * one, so forward and the five gradients share what they have in common. */
#include "attention.h"
#include "shape_rules.h"
#include "rule.h"
#include <math.h>

/* ---------------------------------------------------------------- form */

AttentionForm attention_form_plain(void) {
    return (AttentionForm){
        .scale = 1, .fill = -INFINITY, .first = BAND_FIRST, .last = BAND_LAST, .guard = false};
}

AttentionForm attention_form(const Graph *g, Value v) {
    return (AttentionForm){.scale = attr_f(g, v, A_SCALE, 1),
                           .softcap = attr_f(g, v, A_SOFTCAP, 0),
                           .fill = attr_f(g, v, A_FILL, -INFINITY),
                           .first = attr_i(g, v, A_FIRST, BAND_FIRST),
                           .last = attr_i(g, v, A_LAST, BAND_LAST),
                           .masked = attr_i(g, v, A_MASKED, 0),
                           .guard = attr_i(g, v, A_GUARD, 0) != 0};
}

static const double neutral[N_ATTENTION_OPERANDS] = {
    [ATTENTION_BIAS] = 0, [ATTENTION_KEEP] = 1, [ATTENTION_DROP] = 1};

bool attention_has(const Graph *g, Value v, uint32_t operand) {
    double x;
    return !const_splat(g, graph_operand(g, v, operand), &x) || x != neutral[operand];
}

static Value none(Graph *g, uint32_t operand, DType dtype) {
    int64_t ones[] = {1, 1, 1, 1};
    if (operand == ATTENTION_KEEP) dtype = DT_BOOL;
    return build_splat(g, graph_type_of(g, dtype, 4, ones), neutral[operand]);
}

Value build_attention(Graph *g, const Value *x, AttentionForm f) {
    Value all[N_ATTENTION_OPERANDS];
    double splat;
    for (uint32_t i = 0; i < N_ATTENTION_OPERANDS; i++) {
        all[i] = x[i];
        bool is_none =
            i > ATTENTION_V && x[i] && const_splat(g, x[i], &splat) && splat == neutral[i];
        if (i > ATTENTION_V && (!x[i] || is_none))
            all[i] = none(g, i, (DType)graph_type_at(g, x[ATTENTION_Q])->dtype);
        if (!all[i]) return 0;
    }
    const Type *q = graph_type_at(g, x[ATTENTION_Q]), *k = graph_type_at(g, x[ATTENTION_K]);
    if (q->rank == 4 && k->rank == 4) {
        if (f.first <= 1 - q->dims[2]) f.first = BAND_FIRST;
        if (f.last >= k->dims[2] - 1) f.last = BAND_LAST;
    }
    bool hides = f.first != BAND_FIRST || f.last != BAND_LAST ||
                 !const_splat(g, all[ATTENTION_KEEP], &splat) || splat != 1;
    if (const_splat(g, all[ATTENTION_BIAS], &splat) && splat == 0)
        f.masked &= ~(int64_t)HIDDEN_BIAS;
    if (!hides || f.fill == -INFINITY) f.masked = 0;
    if (!hides) f.fill = -INFINITY;
    AttrField fields[] = {attr_float(A_SCALE, f.scale), attr_float(A_SOFTCAP, f.softcap),
                          attr_float(A_FILL, f.fill),   attr_int(A_FIRST, f.first),
                          attr_int(A_LAST, f.last),     attr_int(A_MASKED, f.masked),
                          attr_int(A_GUARD, f.guard)};
    return graph_emit(g, OP_attention, all, N_ATTENTION_OPERANDS,
                      graph_attr(g, fields, sizeof fields / sizeof *fields), 0);
}

/* ---------------------------------------------------------------- shape */

static bool broadcasts_to(const Type *t, const int64_t *dims) {
    if (t->rank != 4) return false;
    for (int i = 0; i < 4; i++)
        if (t->dims[i] != 1 && t->dims[i] != dims[i]) return false;
    return true;
}

TypeId shape_attention(Graph *g, OpCode op, const Value *x, uint32_t n, AttrId attr, TypeId given) {
    (void)attr, (void)given;
    const Type *t[N_ATTENTION_OPERANDS];
    for (uint32_t i = 0; i < N_ATTENTION_OPERANDS; i++) {
        t[i] = graph_type_at(g, x[i]);
        DTypeClass cls = dtype_info[t[i]->dtype].cls;
        if (cls != (i == ATTENTION_KEEP ? CLASS_BOOL : CLASS_FLT))
            return shape_refuse_dtype(g, op, (DType)t[i]->dtype,
                                      i == ATTENTION_KEEP ? "keep is bool" : "needs floats");
        if (t[i]->rank != 4) return shape_refuse(g, op, x, n, "operands have rank 4");
    }
    const int64_t *q = t[0]->dims, *k = t[1]->dims, *v = t[2]->dims;
    if (t[1]->dtype != t[0]->dtype || t[2]->dtype != t[0]->dtype)
        return shape_refuse_dtype(g, op, (DType)t[1]->dtype, "q, k and v have one type");
    if (q[0] != k[0] || k[0] != v[0] || k[1] != v[1] || k[2] != v[2] || q[3] != k[3])
        return shape_refuse(g, op, x, n, "q[B,H,S,D], k[B,G,T,D] and v[B,G,T,E] do not fit");
    if (k[1] < 1 || q[1] % k[1]) return shape_refuse(g, op, x, n, "groups do not divide heads");
    int64_t scores[4] = {q[0], q[1], q[2], k[2]};
    for (uint32_t i = ATTENTION_BIAS; i < N_ATTENTION_OPERANDS; i++)
        if (!broadcasts_to(t[i], scores))
            return shape_refuse(g, op, x, n, "bias, keep and drop broadcast to [B,H,S,T]");
    Type y = *t[0];
    y.dims[3] = v[3];
    return shape_done(g, op, x, n, &y);
}

/* ---------------------------------------------------------------- expansion */

typedef struct Parts { /* of one attention node, all in core ops; [B,H,S,T] unless said */
    Graph *g;
    Value v, x[N_ATTENTION_OPERANDS];
    AttentionForm f;
    Type q, k, e; /* of the operands q, k, v */
    bool has[N_ATTENTION_OPERANDS];
    Value capped; /* tanh, 0 without a cap */
    Value seen;   /* bool, 0 where nothing is hidden; may be broadcast */
    Value p;      /* probabilities */
} Parts;

static Value number(Graph *g, Value like, double x) {
    return build_splat(g, graph_type_of(g, (DType)graph_type_at(g, like)->dtype, 0, NULL), x);
}

static Value times(Graph *g, Value v, double by) {
    return by == 1 ? v : build_binary(g, OP_mul, v, number(g, v, by));
}

static Value select(Graph *g, Value cond, Value yes, Value no) {
    return build_map(g, OP_where, (Value[]){cond, yes, no}, 3);
}

/* [B,H,S,..] <-> [B,G,H/G*S,..] */
static Value grouped(const Parts *a, Value v) {
    const Type *t = graph_type_at(a->g, v);
    int64_t groups = a->k.dims[1];
    return build_reshape(
        a->g, v, 4,
        (int64_t[]){t->dims[0], groups, a->q.dims[1] / groups * a->q.dims[2], t->dims[3]});
}

static Value ungrouped(const Parts *a, Value v) {
    const Type *t = graph_type_at(a->g, v);
    return build_reshape(a->g, v, 4,
                         (int64_t[]){t->dims[0], a->q.dims[1], a->q.dims[2], t->dims[3]});
}

static DType wide(DType d) { return dtype_info[d].bytes < 4 ? DT_F32 : d; }

static Value band(const Parts *a) {
    Graph *g = a->g;
    TypeId type = graph_type_of(g, DT_I64, 4, (int64_t[]){1, 1, a->q.dims[2], a->k.dims[2]});
    Value i = build_iota(g, type, 2), j = build_iota(g, type, 3), in = 0;
    if (a->f.last != BAND_LAST)
        in = build_binary(g, OP_le, j, build_binary(g, OP_add, i, number(g, i, (double)a->f.last)));
    if (a->f.first != BAND_FIRST) {
        Value low =
            build_binary(g, OP_ge, j, build_binary(g, OP_add, i, number(g, i, (double)a->f.first)));
        in = in ? build_binary(g, OP_and, in, low) : low;
    }
    return in;
}

static Value masked_scores(Parts *a, Value score) {
    Graph *g = a->g;
    Value bias = a->has[ATTENTION_BIAS]
                     ? build_cast(g, a->x[ATTENTION_BIAS], (DType)graph_type_at(g, score)->dtype)
                     : 0;
    Value with_bias = bias ? build_binary(g, OP_add, score, bias) : score;
    a->seen = band(a);
    if (a->has[ATTENTION_KEEP])
        a->seen =
            a->seen ? build_binary(g, OP_and, a->seen, a->x[ATTENTION_KEEP]) : a->x[ATTENTION_KEEP];
    if (!a->seen) return with_bias;
    Value fill = number(g, score, a->f.fill), hidden = fill;
    bool keeps_bias = bias && (a->f.masked & HIDDEN_BIAS);
    if (a->f.masked & HIDDEN_SCORE)
        hidden = build_binary(g, OP_add, keeps_bias ? with_bias : score, fill);
    else if (keeps_bias)
        hidden = build_binary(g, OP_add, bias, fill);
    return select(g, a->seen, with_bias, hidden);
}

static Value probabilities(Parts *a) {
    Graph *g = a->g;
    AttrField axes = attr_ints(A_AXES, (const int64_t[]){3}, 1);
    Value s =
        ungrouped(a, build_dot(g, grouped(a, a->x[ATTENTION_Q]), a->x[ATTENTION_K], false, true));
    s = build_cast(g, s, wide((DType)a->q.dtype));
    if (a->f.softcap > 0) {
        a->capped = build_unary(g, OP_tanh, times(g, s, a->f.scale / a->f.softcap));
        s = times(g, a->capped, a->f.softcap);
    } else {
        s = times(g, s, a->f.scale);
    }
    s = masked_scores(a, s);
    Value p = macro_expand(g, graph_emit(g, OP_softmax, &s, 1, graph_attr(g, &axes, 1), 0));
    return a->f.guard ? select(g, build_unary(g, OP_isnan, p), number(g, p, 0), p) : p;
}

static Parts parts_of(Graph *g, Value v) {
    Parts a = {.g = g, .v = v, .f = attention_form(g, v)};
    for (uint32_t i = 0; i < N_ATTENTION_OPERANDS; i++) {
        a.x[i] = graph_operand(g, v, i);
        a.has[i] = i <= ATTENTION_V || attention_has(g, v, i);
    }
    a.q = *graph_type_at(g, a.x[ATTENTION_Q]);
    a.k = *graph_type_at(g, a.x[ATTENTION_K]);
    a.e = *graph_type_at(g, a.x[ATTENTION_V]);
    a.p = probabilities(&a);
    return a;
}

/* p * drop, in the type of v */
static Value weights(const Parts *a) {
    Graph *g = a->g;
    Value p = a->p;
    if (a->has[ATTENTION_DROP])
        p = build_binary(g, OP_mul, p,
                         build_cast(g, a->x[ATTENTION_DROP], (DType)graph_type_at(g, p)->dtype));
    return build_cast(g, p, (DType)a->e.dtype);
}

Value expand_attention(Graph *g, Value v, Value dy) {
    Parts a = parts_of(g, v);
    (void)dy;
    return ungrouped(&a, build_dot(g, grouped(&a, weights(&a)), a.x[ATTENTION_V], false, false));
}

/* ---------------------------------------------------------------- gradients */

/* d loss / d (p * drop) */
static Value d_weights(const Parts *a, Value dy) {
    Value d = build_dot(a->g, grouped(a, dy), a->x[ATTENTION_V], false, true);
    return build_cast(a->g, ungrouped(a, d), (DType)graph_type_at(a->g, a->p)->dtype);
}

/* d loss / d softmax's operand */
static Value d_masked(const Parts *a, Value dy) {
    Graph *g = a->g;
    DType dtype = (DType)graph_type_at(g, a->p)->dtype;
    Value dp = d_weights(a, dy);
    if (a->has[ATTENTION_DROP])
        dp = build_binary(g, OP_mul, dp, build_cast(g, a->x[ATTENTION_DROP], dtype));
    Value product = build_binary(g, OP_mul, build_cast(g, dy, dtype), build_cast(g, a->v, dtype));
    Value delta = build_reduce(g, OP_sum, product, (int64_t[]){3}, 1);
    return build_binary(g, OP_mul, a->p, build_binary(g, OP_sub, dp, delta));
}

/* What flows to the score, or to the bias: all, or only where keys are seen. */
static Value d_through_mask(const Parts *a, Value d, int64_t stays) {
    return a->seen && !(a->f.masked & stays) ? select(a->g, a->seen, d, number(a->g, d, 0)) : d;
}

/* d loss / d (q k^T), in the type of q, as [B,G,H/G*S,T] */
static Value d_product(const Parts *a, Value dy) {
    Graph *g = a->g;
    Value d = d_through_mask(a, d_masked(a, dy), HIDDEN_SCORE);
    if (a->capped) {
        Value square = build_binary(g, OP_mul, a->capped, a->capped);
        d = build_binary(g, OP_mul, d, build_binary(g, OP_sub, number(g, d, 1), square));
    }
    return grouped(a, build_cast(g, times(g, d, a->f.scale), (DType)a->q.dtype));
}

Value vjp_attention_q(Graph *g, Value v, Value dy) {
    Parts a = parts_of(g, v);
    return ungrouped(&a, build_dot(g, d_product(&a, dy), a.x[ATTENTION_K], false, false));
}

Value vjp_attention_k(Graph *g, Value v, Value dy) {
    Parts a = parts_of(g, v);
    return build_dot(g, d_product(&a, dy), grouped(&a, a.x[ATTENTION_Q]), true, false);
}

Value vjp_attention_v(Graph *g, Value v, Value dy) {
    Parts a = parts_of(g, v);
    return build_dot(g, grouped(&a, weights(&a)), grouped(&a, dy), true, false);
}

Value vjp_attention_bias(Graph *g, Value v, Value dy) {
    Parts a = parts_of(g, v);
    if (!a.has[ATTENTION_BIAS]) return 0;
    Value d = d_through_mask(&a, d_masked(&a, dy), HIDDEN_BIAS);
    return build_sum_to(g, d, graph_type_at(g, a.x[ATTENTION_BIAS]));
}

Value vjp_attention_drop(Graph *g, Value v, Value dy) {
    Parts a = parts_of(g, v);
    if (!a.has[ATTENTION_DROP]) return 0;
    Value d = build_binary(g, OP_mul, d_weights(&a, dy), a.p);
    return build_sum_to(g, d, graph_type_at(g, a.x[ATTENTION_DROP]));
}
