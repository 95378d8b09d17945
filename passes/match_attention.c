/* match_attention.c - finds attention in the core ops that exporters write for it.
 *
 * The anchor is the last product, weights times values. From it the weights are followed down to a
 * softmax over the last axis, through casts, dropout and the guard against rows without a key; from
 * there the scores down to the product of queries and keys, through casts, reshapes, scales, masks,
 * biases and a cap. Scales on q and k, on either side of a view, become one number. All values are
 * brought to four dimensions; keys and values repeated for groups of heads are read as they were
 * before. Whatever else stands on the way breaks the match, and the place is noted. */
#include "match_attention.h"
#include <math.h>
#include <string.h>

enum { MAX_WALK = 64 }; /* nodes looked at on the way */
typedef struct Found {
    PassContext *ctx;
    Graph *g;
    Value product;         /* the last dot */
    Value softmax, scores; /* scores: the first dot */
    bool guard;
    Value drop; /* what multiplies the weights, of their dims; 0 */
    double drop_scale;
    double scale, softcap;
    int64_t dims[MAX_RANK]; /* of the scores where they have the most axes */
    uint32_t rank;
    struct {
        Value value; /* added, or the condition */
        double fill, times;
        bool is_choice, negate;
    } steps[MAX_SCORE_TERMS]; /* from the outermost inwards */
    uint32_t n_steps;
} Found;

static const char *place(const Found *f, Value v) {
    const Loc *l = &f->g->locs[graph_node(f->g, v)->loc];
    return arena_printf(f->ctx->arena, "%s (%s)", l->name && *l->name ? l->name : "a constant",
                        l->op && *l->op ? l->op : op_info[graph_op(f->g, v)].name);
}

static bool miss(const Found *f, Value at, const char *why) {
    match_note(f->ctx, "attention", graph_node(f->g, f->product)->loc, "%s %s", place(f, at), why);
    return false;
}

static bool is_float(const Graph *g, Value v) {
    return dtype_info[graph_type_at(g, v)->dtype].cls == CLASS_FLT;
}

/* A number other than 0, infinity and NaN, repeated. */
static bool factor(const Graph *g, Value v, double *x) {
    while (graph_op(g, v) == OP_expand || graph_op(g, v) == OP_cast) v = graph_operand(g, v, 0);
    return const_splat(g, v, x) && *x != 0 && isfinite(*x);
}

static int64_t extent_from_last(const Graph *g, Value v, uint32_t k) {
    const Type *t = graph_type_at(g, v);
    return t->rank > k ? t->dims[t->rank - 1 - k] : 1;
}

/* Casts between floats, and reshapes of all but the keys. */
static bool is_passage(const Graph *g, Value v) {
    OpCode op = graph_op(g, v);
    if (op == OP_cast) return is_float(g, v) && is_float(g, graph_operand(g, v, 0));
    return op == OP_reshape && graph_type_at(g, v)->rank > 1 &&
           extent_from_last(g, v, 0) == extent_from_last(g, graph_operand(g, v, 0), 0);
}

/* ---- from the last product to the softmax ---- */

static bool is_guard(const Graph *g, Value v) {
    double zero;
    Value cond = graph_operand(g, v, 0);
    return graph_op(g, cond) == OP_isnan && graph_operand(g, cond, 0) == graph_operand(g, v, 2) &&
           const_splat(g, graph_operand(g, v, 1), &zero) && zero == 0;
}

/* Does the value, read as weights, come from a softmax? The way is walked twice: to see, to
 * collect. */
static bool leads_to_softmax(const Graph *g, Value v, int *left) {
    double zero;
    if (--*left < 0) return false;
    if (graph_op(g, v) == OP_softmax) return true;
    if (is_passage(g, v)) return leads_to_softmax(g, graph_operand(g, v, 0), left);
    if (graph_op(g, v) == OP_mul)
        return leads_to_softmax(g, graph_operand(g, v, 0), left) ||
               leads_to_softmax(g, graph_operand(g, v, 1), left);
    if (graph_op(g, v) != OP_where) return false;
    if (is_guard(g, v)) return leads_to_softmax(g, graph_operand(g, v, 2), left);
    return const_splat(g, graph_operand(g, v, 2), &zero) && zero == 0 &&
           leads_to_softmax(g, graph_operand(g, v, 1), left);
}

static bool weights_of_softmax(const Graph *g, Value v) {
    int left = MAX_WALK;
    return leads_to_softmax(g, v, &left);
}

static void add_drop(Found *f, Value v) {
    Graph *g = f->g;
    Type t = *graph_type_at(g, v);
    if (f->drop) {
        f->drop = build_reshape(g, f->drop, t.rank, t.dims);
        v = build_binary(g, OP_mul, f->drop,
                         build_cast(g, v, (DType)graph_type_at(g, f->drop)->dtype));
    }
    f->drop = v;
}

static bool walk_weights(Found *f, Value v) {
    Graph *g = f->g;
    double x;
    Value inner = 0, chosen = 0; /* chosen: the mask of a dropout, which waits for its scale */
    f->drop_scale = 1;
    while (graph_op(g, v) != OP_softmax) {
        OpCode op = graph_op(g, v);
        if (is_passage(g, v)) {
            v = graph_operand(g, v, 0);
        } else if (op == OP_mul) {
            uint32_t at = weights_of_softmax(g, graph_operand(g, v, 0)) ? 0 : 1;
            Value other = graph_operand(g, v, 1 - at);
            if (f->guard) return miss(f, v, "scales weights before the guard");
            if (const_splat(g, other, &x))
                f->drop_scale *= x;
            else
                add_drop(f, other);
            v = graph_operand(g, v, at);
        } else if (is_guard(g, v)) {
            f->guard = true;
            v = graph_operand(g, v, 2);
        } else {
            if (f->guard) return miss(f, v, "masks weights before the guard");
            inner = graph_operand(g, v, 0);
            if (chosen) {
                Type t = *graph_type_at(g, inner);
                inner = build_binary(g, OP_and, build_reshape(g, chosen, t.rank, t.dims), inner);
            }
            chosen = inner;
            v = graph_operand(g, v, 1);
        }
    }
    f->softmax = v;
    if (chosen) {
        TypeId one = graph_type_of(g, DT_F32, 0, NULL);
        Value scaled[] = {chosen, build_splat(g, one, f->drop_scale), build_splat(g, one, 0)};
        add_drop(f, build_map(g, OP_where, scaled, 3));
    } else if (f->drop_scale != 1) {
        add_drop(f, build_splat(g, graph_node(g, v)->type, f->drop_scale));
    }
    uint32_t n;
    const int64_t *axes = attr_list(g, v, A_AXES, &n);
    if (n == 1 && axes[0] == graph_type_at(g, v)->rank - 1) return true;
    return miss(f, v, "is not over the last axis");
}

/* ---- from the softmax to the first product ---- */

/* The operand that scores come through: from a dot, or one with a scale, cap, mask or bias. */
static bool leads_to_scores(const Graph *g, Value v, int *left) {
    double x;
    OpCode op = graph_op(g, v);
    if (--*left < 0) return false;
    if (op == OP_dot) return true;
    if (is_passage(g, v) || op == OP_tanh) return leads_to_scores(g, graph_operand(g, v, 0), left);
    if (op == OP_mul && factor(g, graph_operand(g, v, 0), &x))
        return leads_to_scores(g, graph_operand(g, v, 1), left);
    if ((op == OP_mul || op == OP_div) && factor(g, graph_operand(g, v, 1), &x))
        return leads_to_scores(g, graph_operand(g, v, 0), left);
    if (op == OP_add || op == OP_mul) /* by 0 or 1, or else a near miss */
        return leads_to_scores(g, graph_operand(g, v, 0), left) ||
               leads_to_scores(g, graph_operand(g, v, 1), left);
    if (op == OP_sub) return leads_to_scores(g, graph_operand(g, v, 0), left);
    if (op == OP_where)
        return leads_to_scores(g, graph_operand(g, v, 1), left) ||
               leads_to_scores(g, graph_operand(g, v, 2), left);
    return false;
}

static bool is_scores(const Graph *g, Value v) {
    int left = MAX_WALK;
    return leads_to_scores(g, v, &left);
}

static bool step(Found *f, Value at, Value value, double times, double fill, bool is_choice,
                 bool negate) {
    if (f->softcap != 0) return miss(f, at, "masks scores before their cap");
    if (f->n_steps == MAX_SCORE_TERMS) return miss(f, at, "is one mask too many");
    f->steps[f->n_steps].value = value;
    f->steps[f->n_steps].times = times;
    f->steps[f->n_steps].fill = fill;
    f->steps[f->n_steps].is_choice = is_choice;
    f->steps[f->n_steps++].negate = negate;
    return true;
}

static void note_dims(Found *f, Value v) {
    const Type *t = graph_type_at(f->g, v);
    if (t->rank <= f->rank) return;
    f->rank = t->rank;
    memcpy(f->dims, t->dims, sizeof f->dims);
}

/* One op of the scores; *v becomes the operand below it. */
static bool walk_score(Found *f, Value *v) {
    Graph *g = f->g;
    double x;
    Value at = *v, a = graph_operand(g, at, 0),
          b = graph_node(g, at)->n_operands > 1 ? graph_operand(g, at, 1) : 0;
    OpCode op = graph_op(g, at);
    if (is_passage(g, at)) {
        *v = a;
    } else if (op == OP_mul && (factor(g, b, &x) || factor(g, a, &x))) {
        f->scale *= x;
        *v = factor(g, b, &x) ? a : b;
    } else if (op == OP_div && factor(g, b, &x)) {
        f->scale /= x;
        *v = a;
    } else if (op == OP_mul && (mask_of_ones(g, a) || mask_of_ones(g, b))) { /* times 0 or 1 */
        Value seen = mask_of_ones(g, b);
        *v = seen ? a : b;
        return step(f, at, seen ? seen : mask_of_ones(g, a), 1, 0, true, false);
    } else if (op == OP_tanh) {
        if (f->softcap != 0) return miss(f, at, "caps scores twice");
        f->softcap = f->scale;
        f->scale = 1;
        *v = a;
    } else if (op == OP_add) {
        bool first = is_scores(g, a);
        if (!first && !is_scores(g, b)) return miss(f, at, "adds no product of two matrices");
        *v = first ? a : b;
        return step(f, at, first ? b : a, f->scale, 0, false, false);
    } else if (op == OP_sub) {
        *v = a;
        return step(f, at, b, -f->scale, 0, false, false);
    } else if (op == OP_where) {
        Value c = graph_operand(g, at, 2);
        bool hides_c = const_splat(g, c, &x);
        if (!hides_c && !const_splat(g, b, &x))
            return miss(f, at, "chooses scores by more than one number");
        *v = hides_c ? b : c;
        return step(f, at, a, 1, x * f->scale, true, !hides_c);
    } else {
        return miss(f, at,
                    op == OP_mul ? "scales scores by no constant"
                                 : "is between the softmax and a product");
    }
    return true;
}

static bool walk_scores(Found *f) {
    const Graph *g = f->g;
    Value v = graph_operand(g, f->softmax, 0);
    f->scale = 1;
    note_dims(f, v);
    while (graph_op(g, v) != OP_dot) {
        if (graph_node(g, v)->n_operands == 0 || !walk_score(f, &v))
            return graph_node(g, v)->n_operands
                       ? false
                       : miss(f, f->softmax, "is of no product of two matrices");
        note_dims(f, v);
    }
    f->scores = v;
    if (extent_from_last(g, v, 0) != extent_from_last(g, f->softmax, 0))
        return miss(f, v, "has other keys than the softmax");
    return f->softcap >= 0 || miss(f, f->softmax, "is of scores with a negative cap");
}

/* ---- queries, keys, values ---- */

static Value swap_last(Graph *g, Value v) {
    int64_t perm[MAX_RANK];
    uint32_t rank = graph_type_at(g, v)->rank;
    for (uint32_t i = 0; i < rank; i++) perm[i] = i;
    perm[rank - 2] = rank - 1;
    perm[rank - 1] = rank - 2;
    return strided_shortest(g, build_transpose(g, v, perm));
}

/* v without the numbers it is multiplied by, which go to *scale; views are kept. */
static Value strip_scale(Graph *g, Value v, double *scale) {
    double x;
    OpCode op = graph_op(g, v);
    if (op == OP_mul || op == OP_div) {
        uint32_t at = factor(g, graph_operand(g, v, 1), &x)                   ? 1
                      : op == OP_mul && factor(g, graph_operand(g, v, 0), &x) ? 0
                                                                              : 2;
        if (at == 2) return v;
        *scale *= op == OP_mul ? x : 1 / x;
        return strip_scale(g, graph_operand(g, v, 1 - at), scale);
    }
    if (op != OP_reshape && op != OP_transpose && op != OP_expand && op != OP_slice) return v;
    Value from = graph_operand(g, v, 0), inner = strip_scale(g, from, scale);
    if (inner == from) return v;
    return strided_shortest(
        g, graph_emit(g, op, &inner, 1, graph_node(g, v)->attr, graph_node(g, v)->type));
}

/* [.., S, D] as [B, heads, S, D]; rows of several heads in one are taken apart. */
static Value four_dims(Graph *g, Value v, int64_t b, int64_t heads, int64_t rows) {
    int64_t dims[] = {b, heads, rows, extent_from_last(g, v, 0)};
    return strided_shortest(g, build_reshape(g, v, 4, dims));
}

/* Heads and samples of the scores: [B,H,S,T], [B,G,H/G,S,T], or [B*H,S,T] as queries are split
 * before. */
static void find_heads(Found *f, Value q, ScoreDims *d) {
    const Graph *g = f->g;
    d->s = extent_from_last(g, f->scores, 1);
    d->t = extent_from_last(g, f->scores, 0);
    d->b = d->h = 1;
    if (f->rank >= 4) {
        d->b = f->dims[0];
        d->s = f->dims[f->rank - 2];
        for (uint32_t i = 1; i + 2 < f->rank; i++) d->h *= f->dims[i];
    } else if (graph_type_at(g, f->scores)->rank == 3) {
        Value split = graph_op(g, q) == OP_reshape ? graph_operand(g, q, 0) : q;
        const Type *from = graph_type_at(g, split);
        d->b = extent_from_last(g, f->scores, 2);
        if (from->rank == 4 && extent_from_last(g, split, 1) == d->s &&
            extent_from_last(g, split, 0) == extent_from_last(g, q, 0)) {
            d->b = from->dims[0];
            d->h = from->dims[1];
        }
    }
}

/* Heads by indices 0 0 1 1 ..: the value gathered from, *times how often each is read. */
static Value ungather(Graph *g, Value v, int64_t *times) {
    Affine f;
    Type t = *graph_type_at(g, v);
    if (graph_op(g, v) != OP_gather || attr_i(g, v, A_AXIS, 0) != 1) return 0;
    Value from = graph_operand(g, v, 0), idx = graph_operand(g, v, 1);
    int64_t groups = graph_type_at(g, from)->dims[1];
    if (graph_type_at(g, idx)->rank != 1 || groups < 1 || t.dims[1] % groups) return 0;
    *times = t.dims[1] / groups;
    Value pairs = build_reshape(g, idx, 2, (int64_t[]){groups, *times});
    bool in_groups = *times > 1 && affine_of(g, pairs, &f) && f.c == 0 && f.a[1] == 0 &&
                     (groups == 1 || f.a[0] == 1);
    return in_groups ? from : 0;
}

/* The axes of [B,H/times,times,T,D] that are longer than 1, outermost first in the numbering of the
 * base of s; 0 where s is no permutation of its base. */
static uint32_t base_order(const Graph *g, const Strided *s, int64_t times, int64_t *dims,
                           uint32_t *axes) {
    const int64_t extents[5] = {s->dims[0], s->dims[1] / times, times, s->dims[2], s->dims[3]},
                  strides[5] = {s->strides[0], s->strides[1] * times, s->strides[1], s->strides[2],
                                s->strides[3]};
    uint32_t n = 0;
    int64_t left = type_elems(graph_type_at(g, s->base));
    while (left > 1) {
        uint32_t k = 0;
        while (k < 5 && (extents[k] == 1 || strides[k] * extents[k] != left)) k++;
        if (k == 5) return 0;
        axes[n] = k;
        dims[n++] = extents[k];
        left = strides[k];
    }
    return n;
}

/* The value whose heads v[B,H,T,D] repeats, each *times in a row, as [B,H/times,T,D]; 0 where it
 * repeats none. */
static Value ungroup(Graph *g, Value v, int64_t *times) {
    Strided s = strided_of(g, v), inner = strided_of(g, s.base);
    int64_t heads = s.dims[1], dims[5];
    uint32_t axes[5];
    if (heads > 1 && s.strides[1] == 0) { /* one group */
        *times = heads;
        s.dims[1] = 1;
        return strided_build(g, &s, 5);
    }
    for (*times = heads; *times > 1; --*times) {
        Strided r = inner, k = {.base = inner.base, .rank = 4, .offset = inner.offset};
        if (heads % *times || s.offset) continue;
        uint32_t n = base_order(g, &s, *times, dims, axes);
        if (!n || !strided_reshape(&r, n, dims)) continue;
        bool repeats = false;
        for (uint32_t i = 0; i < 4; i++) k.dims[i] = i == 1 ? heads / *times : s.dims[i];
        for (uint32_t i = 0; i < n; i++) {
            repeats |= axes[i] == 2 && r.strides[i] == 0;
            if (axes[i] != 2) k.strides[axes[i] < 2 ? axes[i] : axes[i] - 1] = r.strides[i];
        }
        if (repeats) return strided_build(g, &k, 5);
    }
    return ungather(g, v, times);
}

/* q, k, v as [B,H,S,D], [B,G,T,D], [B,G,T,E]. */
static bool find_operands(Found *f, Value values, ScoreDims *d, Value *x) {
    Graph *g = f->g;
    double scale = 1;
    Value kv[2][2]; /* keys and values, as they are and without the repeats of heads */
    Value a = graph_operand(g, f->scores, 0), b = graph_operand(g, f->scores, 1);
    if (attr_i(g, f->scores, A_TA, 0)) a = swap_last(g, a);
    if (!attr_i(g, f->scores, A_TB, 0)) b = swap_last(g, b);
    a = strip_scale(g, a, &scale);
    b = strip_scale(g, b, &scale);
    f->scale *= scale;
    find_heads(f, a, d);
    if (type_elems(graph_type_at(g, f->scores)) != d->b * d->h * d->s * d->t ||
        extent_from_last(g, f->scores, 1) % d->s || extent_from_last(g, values, 1) != d->t)
        return miss(f, f->scores, "has other dims than the softmax");
    x[ATTENTION_Q] = four_dims(g, a, d->b, d->h, d->s);
    for (int i = 0; i < 2; i++) {
        Value v = i ? values : b;
        int64_t times, rows = type_elems(graph_type_at(g, v)) / extent_from_last(g, v, 0),
                       heads = rows / d->t / d->b;
        if (heads * d->t * d->b != rows || heads < 1 || d->h % heads)
            return miss(f, v, "has heads that are no groups of those of the queries");
        kv[i][0] = four_dims(g, v, d->b, heads, d->t);
        kv[i][1] = ungroup(g, kv[i][0], &times);
    }
    for (int k = 3; k >= 0; k--) { /* the most repeats left out first */
        Value keys = kv[0][k & 1], vals = kv[1][k >> 1];
        if (!keys || !vals || graph_type_at(g, keys)->dims[1] != graph_type_at(g, vals)->dims[1])
            continue;
        x[ATTENTION_K] = keys;
        x[ATTENTION_V] = vals;
        return true;
    }
    return miss(f, b, "and the values are grouped in different ways");
}

/* ---- all of it ---- */

static bool find_mask(Found *f, const ScoreDims *d, AttentionForm *form, Value *x) {
    Graph *g = f->g;
    ScoreTerm terms[MAX_SCORE_TERMS];
    uint32_t n = 0;
    for (uint32_t i = f->n_steps; i-- > 0;) {
        if (!f->steps[i].is_choice) {
            if (!bias_terms(g, f->steps[i].value, f->steps[i].times, d, terms, &n))
                return miss(f, f->steps[i].value, "adds more terms than are followed");
            continue;
        }
        if (n == MAX_SCORE_TERMS) return miss(f, f->softmax, "has too many masks");
        terms[n++] = (ScoreTerm){.kind = SCORE_SELECTED,
                                 .mask = mask_of(g, f->steps[i].value, f->steps[i].negate, d),
                                 .fill = f->steps[i].fill};
    }
    DType wide = (DType)graph_type_at(g, f->softmax)->dtype;
    const char *why =
        bias_merge(g, terms, n, d, wide, form, &x[ATTENTION_BIAS], &x[ATTENTION_KEEP]);
    return !why || miss(f, f->softmax, why);
}

static Value attention_of(Found *f, Value weights, Value values) {
    Graph *g = f->g;
    Value x[N_ATTENTION_OPERANDS] = {0};
    AttentionForm form = attention_form_plain();
    ScoreDims d;
    if (!walk_weights(f, weights) || !walk_scores(f) || !find_operands(f, values, &d, x)) return 0;
    if (graph_type_at(g, x[ATTENTION_Q])->dtype != graph_type_at(g, x[ATTENTION_V])->dtype) {
        miss(f, f->scores, "and the values have different types");
        return 0;
    }
    if (!find_mask(f, &d, &form, x)) return 0;
    form.guard = f->guard;
    form.softcap = f->softcap;
    form.scale = f->softcap > 0 ? f->scale * f->softcap : f->scale;
    if (f->drop) x[ATTENTION_DROP] = mask_compact(g, f->drop, &d);
    return build_attention(g, x, form);
}

Value match_attention(PassContext *ctx, Graph *g, Value v) {
    if (graph_op(g, v) != OP_dot || !is_float(g, v)) return 0;
    Type t = *graph_type_at(g, v);
    Value a = graph_operand(g, v, 0), b = graph_operand(g, v, 1), y;
    bool ta = attr_i(g, v, A_TA, 0) != 0, tb = attr_i(g, v, A_TB, 0) != 0;
    Found f = {.ctx = ctx, .g = g, .product = v};
    if (!type_elems(&t)) return 0;
    if (!ta && weights_of_softmax(g, a)) {
        y = attention_of(&f, a, tb ? swap_last(g, b) : b);
    } else if (tb && weights_of_softmax(g, b)) { /* (p v)' = v' p' */
        y = attention_of(&f, b, ta ? a : swap_last(g, a));
        if (y && graph_type_at(g, y)->dims[2] != t.dims[t.rank - 1])
            return 0; /* rows of several heads */
        if (y) y = build_transpose(g, y, (int64_t[]){0, 1, 3, 2});
    } else {
        return 0;
    }
    return y ? build_reshape(g, y, t.rank, t.dims) : 0;
}
