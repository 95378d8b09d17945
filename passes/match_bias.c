/* match_bias.c - what is added to scores and what hides them, as one attention's bias, mask and
 * fill.
 *
 * A value that is added is taken apart: sums into their terms, a choice between 0 and a number into
 * a mask, a choice between a value and a number into a bias and a mask, anything else is a bias.
 * Then terms are merged from the innermost outwards. An attention has one fill: masks of -infinity
 * are one mask, of several finite ones the one that is a band is kept as such and the others stay
 * biases, for their numbers add up. */
#include "match_attention.h"
#include <math.h>

static Value number(Graph *g, Value like, double x) {
    return build_splat(g, graph_type_of(g, (DType)graph_type_at(g, like)->dtype, 0, NULL), x);
}

static bool push(ScoreTerm *terms, uint32_t *n, ScoreTerm t) {
    if (*n == MAX_SCORE_TERMS) return false;
    terms[(*n)++] = t;
    return true;
}

static bool push_bias(Graph *g, Value x, double times, ScoreTerm *terms, uint32_t *n) {
    if (times != 1) x = build_binary(g, OP_mul, x, number(g, x, times));
    return push(terms, n, (ScoreTerm){.kind = SCORE_ADDED, .value = x});
}

/* "value + x is 0" asked of a value that is 0 there or hides anyway: x is 0. Else cond as it is. */
static Value asked_of_rest(Graph *g, Value cond, Value value, const ScoreDims *d) {
    double zero;
    if (graph_op(g, cond) == OP_expand) cond = graph_operand(g, cond, 0);
    if (graph_op(g, cond) != OP_eq) return cond;
    Value sum = graph_operand(g, cond, 0), like = mask_compact(g, value, d);
    if (!const_splat(g, graph_operand(g, cond, 1), &zero) || zero != 0) return cond;
    if (graph_op(g, sum) == OP_expand) sum = graph_operand(g, sum, 0);
    if (graph_op(g, sum) != OP_add || !like) return cond;
    for (uint32_t k = 0; k < 2; k++) {
        Value x = mask_compact(g, graph_operand(g, sum, k), d),
              rest = mask_compact(g, graph_operand(g, sum, 1 - k), d);
        if (x != like || !rest) continue;
        return build_binary(g, OP_eq, rest, number(g, rest, 0));
    }
    return cond;
}

/* Is the value that a mask replaces itself 0 or the same number, by another mask? Both are one
 * then. Where the first asks whether the sum of the value and x is 0, it asks that of x: where the
 * value is not 0 it is the number already. */
static bool same_mask(Graph *g, Value cond, bool negate, Value value, double times,
                      const ScoreDims *d, ScoreTerm *t) {
    ScoreTerm inner[MAX_SCORE_TERMS];
    uint32_t n = 0;
    if (!bias_terms(g, value, times, d, inner, &n) || n != 1 || inner[0].kind != SCORE_HIDDEN ||
        inner[0].fill != t->fill)
        return false;
    Mask rest = mask_of(g, asked_of_rest(g, cond, value, d), negate, d);
    t->kind = SCORE_HIDDEN;
    t->mask = inner[0].mask;
    mask_and(g, &t->mask, &rest);
    return true;
}

/* c ? a : b, one of them a number. false where it is a bias like any other. */
static bool choice(Graph *g, Value x, double times, const ScoreDims *d, ScoreTerm *t) {
    Value cond = graph_operand(g, x, 0), a = graph_operand(g, x, 1), b = graph_operand(g, x, 2);
    double yes = NAN, no = NAN;
    const_splat(g, a, &yes);
    const_splat(g, b, &no);
    bool hides_no = no < 0 && (yes == 0 || isnan(yes)),
         hides_yes = yes < 0 && (no == 0 || isnan(no));
    if (!hides_no && !hides_yes) return false;
    Value value = hides_no ? a : b;
    double zero;
    bool is_zero = const_splat(g, value, &zero) && zero == 0;
    /* where(x, fill, x): where x is not chosen it is 0 */
    if (hides_yes && !is_zero && graph_op(g, cond) == OP_cast && graph_operand(g, cond, 0) == b)
        is_zero = true;
    *t = (ScoreTerm){.kind = is_zero ? SCORE_HIDDEN : SCORE_REPLACED,
                     .mask = mask_of(g, cond, hides_yes, d),
                     .fill = times * (hides_no ? no : yes)};
    if (is_zero || same_mask(g, cond, hides_yes, value, times, d, t)) return true;
    t->value = mask_compact(g, value, d);
    if (times != 1) t->value = build_binary(g, OP_mul, t->value, number(g, value, times));
    return true;
}

/* (1 - b) * fill or b * fill, b 0 or 1 */
static bool product(Graph *g, Value x, double times, const ScoreDims *d, ScoreTerm *t) {
    for (uint32_t i = 0; i < 2; i++) {
        double fill, one;
        Value b = graph_operand(g, x, 1 - i);
        if (!const_splat(g, graph_operand(g, x, i), &fill) || !(fill * times < 0) || isinf(fill))
            continue;
        if (graph_op(g, b) == OP_expand) b = graph_operand(g, b, 0);
        bool is_rest =
            graph_op(g, b) == OP_sub && const_splat(g, graph_operand(g, b, 0), &one) && one == 1;
        Value seen = mask_of_ones(g, is_rest ? graph_operand(g, b, 1) : b);
        if (!seen) continue;
        *t = (ScoreTerm){
            .kind = SCORE_HIDDEN, .mask = mask_of(g, seen, !is_rest, d), .fill = fill * times};
        return true;
    }
    return false;
}

/* A constant of zeros and one other, negative number. */
static bool constant_mask(Graph *g, Value x, double times, const ScoreDims *d, ScoreTerm *t) {
    const AttrField *data = graph_op(g, x) == OP_const ? attr_find(g, x, A_DATA) : NULL;
    Type type = *graph_type_at(g, x);
    int64_t n = type_elems(&type);
    double fill = 0;
    if (!data || data->n != type_bytes(&type) || n < 2) return false;
    uint32_t bytes = dtype_info[type.dtype].bytes;
    for (int64_t i = 0; i < n; i++) {
        double e = elem_load((DType)type.dtype, (const char *)data->u.bytes + i * bytes);
        if (e == 0) continue;
        if (!(e * times < 0) || (fill != 0 && e != fill)) return false;
        fill = e;
    }
    if (fill == 0) return false;
    Arena *scratch = arena_new();
    char *seen = arena_alloc(scratch, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        seen[i] = elem_load((DType)type.dtype, (const char *)data->u.bytes + i * bytes) == 0;
    type.dtype = DT_BOOL;
    Value cond = build_const(g, graph_type(g, type), seen);
    arena_free(scratch);
    *t =
        (ScoreTerm){.kind = SCORE_HIDDEN, .mask = mask_of(g, cond, false, d), .fill = fill * times};
    return true;
}

bool bias_terms(Graph *g, Value given, double times, const ScoreDims *d, ScoreTerm *terms,
                uint32_t *n) {
    Value x = mask_compact(g, given, d), pushed;
    ScoreTerm t;
    double splat;
    if (!x) return false;
    if (const_splat(g, x, &splat) && splat == 0) return true;
    switch ((int)graph_op(g, x)) {
    case OP_add:
        return bias_terms(g, graph_operand(g, x, 0), times, d, terms, n) &&
               bias_terms(g, graph_operand(g, x, 1), times, d, terms, n);
    case OP_sub:
        return bias_terms(g, graph_operand(g, x, 0), times, d, terms, n) &&
               bias_terms(g, graph_operand(g, x, 1), -times, d, terms, n);
    case OP_neg:
        return bias_terms(g, graph_operand(g, x, 0), -times, d, terms, n);
    case OP_cast:
        if (dtype_info[graph_type_at(g, graph_operand(g, x, 0))->dtype].cls != CLASS_FLT) break;
        return bias_terms(g, graph_operand(g, x, 0), times, d, terms, n);
    case OP_where:
        if (times > 0 && choice(g, x, times, d, &t)) return push(terms, n, t);
        break;
    case OP_mul:
        if (product(g, x, times, d, &t)) return push(terms, n, t);
        break;
    case OP_const:
        if (constant_mask(g, x, times, d, &t)) return push(terms, n, t);
        break;
    case OP_reshape:
    case OP_transpose:
    case OP_slice:
    case OP_expand:
        pushed = view_pushed(g, x);
        if (pushed && graph_op(g, pushed) != OP_cast)
            return bias_terms(g, pushed, times, d, terms, n);
        break;
    }
    return push_bias(g, x, times, terms, n);
}

/* ---- merging ---- */

typedef struct Merge {
    Graph *g;
    const ScoreDims *d;
    DType dtype;
    AttentionForm *f;
    Value bias;
    Mask mask;
    bool has_mask, has_bias_before; /* a bias from before the mask, one from behind it */
    bool has_bias_behind;
} Merge;

static void add_bias(Merge *m, Value v) {
    v = build_cast(m->g, v, m->dtype);
    m->bias = m->bias ? build_binary(m->g, OP_add, m->bias, v) : v;
}

static Value where_seen(Merge *m, const Mask *mask, Value yes, double fill) {
    Graph *g = m->g;
    Value cond = mask->keep;
    TypeId type = graph_type_of(g, DT_I64, 4, (int64_t[]){1, 1, m->d->s, m->d->t});
    Value i = build_iota(g, type, 2), j = build_iota(g, type, 3), bound;
    if (mask->never) cond = build_splat(g, graph_type_of(g, DT_BOOL, 0, NULL), 0);
    if (mask->last != BAND_LAST) {
        bound =
            build_binary(g, OP_le, j, build_binary(g, OP_add, i, number(g, i, (double)mask->last)));
        cond = cond ? build_binary(g, OP_and, cond, bound) : bound;
    }
    if (mask->first != BAND_FIRST) {
        bound = build_binary(g, OP_ge, j,
                             build_binary(g, OP_add, i, number(g, i, (double)mask->first)));
        cond = cond ? build_binary(g, OP_and, cond, bound) : bound;
    }
    if (!cond) return yes;
    return build_map(g, OP_where, (Value[]){cond, yes, number(g, yes, fill)}, 3);
}

/* The term as what it adds, a tensor. */
static void add_as_bias(Merge *m, const ScoreTerm *t) {
    int64_t ones[] = {1, 1, 1, 1};
    Value yes = t->kind == SCORE_REPLACED
                    ? t->value
                    : build_splat(m->g, graph_type_of(m->g, m->dtype, 4, ones), 0);
    add_bias(m, where_seen(m, &t->mask, yes, t->fill));
}

static bool is_band(const Mask *m) { return m->first != BAND_FIRST || m->last != BAND_LAST; }

static bool hides(const Mask *m) { return m->never || m->keep || is_band(m); }

/* The mask that becomes the attention's: one that selects, else the first that is a band, else the
 * first. One that replaces a bias only where nothing else is added. */
static int choose_mask(const ScoreTerm *terms, uint32_t n) {
    int best = -1;
    for (uint32_t i = 0; i < n; i++) {
        if (terms[i].kind == SCORE_ADDED || (terms[i].kind == SCORE_REPLACED && n > 1)) continue;
        bool better = best < 0 ||
                      (terms[i].kind == SCORE_SELECTED && terms[best].kind != SCORE_SELECTED) ||
                      (terms[best].kind != SCORE_SELECTED && is_band(&terms[i].mask) &&
                       !is_band(&terms[best].mask));
        if (better) best = (int)i;
    }
    return best;
}

static bool all_infinite(const ScoreTerm *terms, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (terms[i].kind != SCORE_ADDED && terms[i].fill != -INFINITY) return false;
    return true;
}

/* Masks of -infinity: what is hidden once stays hidden. */
static void merge_infinite(Merge *m, const ScoreTerm *terms, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (terms[i].kind == SCORE_ADDED || terms[i].kind == SCORE_REPLACED)
            add_bias(m, terms[i].value);
        if (terms[i].kind == SCORE_ADDED) continue;
        mask_and(m->g, &m->mask, &terms[i].mask);
        m->f->fill = -INFINITY;
    }
}

/* One mask is `at`, of a finite fill or mixed; the others are added. What a hidden score keeps: of
 * a mask that selects, what was added behind it; of others the score, and all biases but those that
 * it replaces. */
static const char *merge_finite(Merge *m, const ScoreTerm *terms, uint32_t n, int at) {
    static const ScoreTerm none = {.kind = SCORE_ADDED,
                                   .mask = {.first = BAND_FIRST, .last = BAND_LAST}};
    const ScoreTerm *mask = at < 0 ? &none : &terms[at];
    bool before = false, behind = false;
    for (int i = 0; i < (int)n; i++) {
        const ScoreTerm *t = &terms[i];
        if (t->kind == SCORE_SELECTED && i != at) {
            if (mask->kind != SCORE_SELECTED || t->fill != mask->fill)
                return "scores are masked twice, with different numbers";
            for (int k = i < at ? i : at; k < (i < at ? at : i); k++)
                if (terms[k].kind != SCORE_SELECTED) return "something is added between two masks";
            mask_and(m->g, &m->mask, &t->mask);
            continue;
        }
        if (i == at) continue;
        if (t->kind == SCORE_ADDED)
            add_bias(m, t->value);
        else
            add_as_bias(m, t);
        *(i < at ? &before : &behind) = true;
    }
    mask_and(m->g, &m->mask, &mask->mask);
    if (at >= 0) m->f->fill = mask->fill;
    if (mask->kind == SCORE_REPLACED) add_bias(m, mask->value);
    switch (mask->kind) {
    case SCORE_ADDED:
        break;
    case SCORE_HIDDEN:
        m->f->masked = HIDDEN_SCORE | HIDDEN_BIAS;
        break;
    case SCORE_REPLACED:
        m->f->masked = HIDDEN_SCORE;
        break;
    case SCORE_SELECTED:
        if (before && behind) return "biases before and behind a mask that selects";
        m->f->masked = behind ? HIDDEN_BIAS : 0;
        break;
    }
    return NULL;
}

const char *bias_merge(Graph *g, const ScoreTerm *given, uint32_t n_given, const ScoreDims *d,
                       DType dtype, AttentionForm *f, Value *bias, Value *keep) {
    Merge m = {
        .g = g, .d = d, .dtype = dtype, .f = f, .mask = {.first = BAND_FIRST, .last = BAND_LAST}};
    ScoreTerm terms[MAX_SCORE_TERMS];
    uint32_t n = 0;
    const char *why = NULL;
    for (uint32_t i = 0; i < n_given; i++) { /* a mask that hides nothing is none */
        terms[n] = given[i];
        if (given[i].kind != SCORE_ADDED && !hides(&given[i].mask)) {
            if (given[i].kind != SCORE_REPLACED) continue;
            terms[n].kind = SCORE_ADDED;
        }
        n++;
    }
    for (uint32_t i = 1; i < n;) { /* hidden scores made a number, and another added to the same */
        ScoreTerm *inner = &terms[i - 1], *outer = &terms[i];
        bool same = inner->kind == SCORE_SELECTED && outer->kind == SCORE_HIDDEN &&
                    inner->mask.first == outer->mask.first &&
                    inner->mask.last == outer->mask.last && inner->mask.keep == outer->mask.keep &&
                    inner->mask.never == outer->mask.never;
        if (!same) {
            i++;
            continue;
        }
        inner->fill += outer->fill;
        for (uint32_t k = i + 1; k < n; k++) terms[k - 1] = terms[k];
        n--;
    }
    int at = choose_mask(terms, n);
    if (all_infinite(terms, n))
        merge_infinite(&m, terms, n);
    else
        why = merge_finite(&m, terms, n, at);
    f->first = m.mask.first;
    f->last = m.mask.last;
    *bias = m.bias;
    *keep = m.mask.keep;
    if (m.mask.never)
        *keep = build_splat(g, graph_type_of(g, DT_BOOL, 4, (int64_t[]){1, 1, 1, 1}), 0);
    return why;
}
