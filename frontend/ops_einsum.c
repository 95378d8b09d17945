/* ops_einsum.c - Einsum as transposes, reshapes and one batched product per pair of operands.
 *
 * Labels are numbered in order of appearance, those of an ellipsis first. Operands are joined from
 * left to right; in each join a label is batch       in both operands, and needed later contracted
 * in both, and not needed any more own         in one of them alone (summed beforehand where not
 * needed) so that a becomes [batch, own a, contracted], b [batch, contracted, own b]. A label twice
 * in one operand takes the diagonal. */
#include "import.h"
#include <ctype.h>
#include <string.h>

enum { MAX_LABELS = 64, MAX_TERMS = 16 };
typedef struct Term {
    uint8_t labels[2 * MAX_RANK];
    uint32_t n;
    Value v;
} Term; /* labels[i] is that of axis i */
typedef struct Einsum {
    ImportNode *n;
    Term terms[MAX_TERMS], out;
    uint32_t n_terms;
    bool has_out;
} Einsum;

static bool term_has(const Term *t, uint8_t label) {
    return memchr(t->labels, label, t->n) != NULL;
}
static bool term_add(Term *t, uint8_t label) {
    if (t->n < sizeof t->labels) t->labels[t->n++] = label;
    return t->n < sizeof t->labels;
}

static uint8_t label_of(char c) {
    return (uint8_t)(MAX_RANK + (isupper((unsigned char)c) ? c - 'A' : c - 'a' + 26));
}

/* One term of the equation; the ellipsis stands for `rank` less the letters, right-aligned in
 * labels 0..MAX_RANK-1. */
static bool term_parse(Term *t, const char *from, const char *to, uint32_t rank) {
    uint32_t letters = 0;
    for (const char *p = from; p < to; p++) letters += isalpha((unsigned char)*p) != 0;
    for (const char *p = from; p < to; p++) {
        if (isspace((unsigned char)*p)) continue;
        if (isalpha((unsigned char)*p)) {
            if (!term_add(t, label_of(*p))) return false;
        } else if (*p == '.' && to - p >= 3 && p[1] == '.' && p[2] == '.' && rank >= letters) {
            for (uint32_t i = rank - letters; i > 0; i--) term_add(t, (uint8_t)(MAX_RANK - i));
            p += 2;
        } else
            return false;
    }
    return true;
}

/* Without "->": the ellipsis, then the letters that stand once, in alphabetical order. */
static void default_output(Einsum *e) {
    for (uint8_t label = 0; label < MAX_LABELS; label++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < e->n_terms; i++)
            for (uint32_t k = 0; k < e->terms[i].n; k++) count += e->terms[i].labels[k] == label;
        if (count && (label < MAX_RANK || count == 1)) term_add(&e->out, label);
    }
}

static bool equation_parse(Einsum *e, const char *text) {
    const char *arrow = strstr(text, "->"), *end = arrow ? arrow : text + strlen(text),
               *from = text;
    uint32_t ellipsis = 0;
    for (e->n_terms = 0; e->n_terms < MAX_TERMS && e->n_terms < e->n->n_in; e->n_terms++) {
        const char *to = from;
        Term *t = &e->terms[e->n_terms];
        while (to < end && *to != ',') to++;
        t->v = e->n->in[e->n_terms];
        uint32_t rank = node_type(e->n, t->v)->rank;
        if (!term_parse(t, from, to, rank) || t->n != rank) return false;
        for (uint32_t i = 0, dots = 0; i < t->n; i++) {
            dots += t->labels[i] < MAX_RANK;
            if (dots > ellipsis) ellipsis = dots;
        }
        from = to + (to < end);
    }
    if (from != end || e->n_terms != e->n->n_in) return false;
    if (!arrow) {
        default_output(e);
        return true;
    }
    uint32_t letters = 0;
    for (const char *p = arrow + 2; *p; p++) letters += isalpha((unsigned char)*p) != 0;
    return term_parse(&e->out, arrow + 2, arrow + strlen(arrow), letters + ellipsis);
}

/* ---------------------------------------------------------------- one operand */

static bool is_needed(const Einsum *e, uint8_t label, uint32_t after) {
    for (uint32_t i = after; i < e->n_terms; i++)
        if (term_has(&e->terms[i], label)) return true;
    return term_has(&e->out, label);
}

/* Keeps axes i = k of a label that stands twice: all else is masked away, then axis k is summed. */
static void diagonal(Einsum *e, Term *t, uint32_t i, uint32_t k) {
    ImportNode *n = e->n;
    Type type = *node_type(n, t->v);
    DType dtype = (DType)type.dtype;
    int64_t axis = k;
    type.dtype = DT_I64;
    TypeId at = graph_type(n->g, type);
    Value is_on = build_binary(n->g, OP_eq, build_iota(n->g, at, i), build_iota(n->g, at, k));
    Value kept = build_map(n->g, OP_where, (Value[]){is_on, t->v, node_number(n, dtype, 0)}, 3);
    t->v = build_squeeze(n->g, build_reduce(n->g, OP_sum, kept, &axis, 1), &axis, 1);
    memmove(t->labels + k, t->labels + k + 1, t->n - k - 1);
    t->n--;
}

static void term_diagonals(Einsum *e, Term *t) {
    for (uint32_t k = 1; k < t->n; k++)
        for (uint32_t i = 0; i < k; i++)
            if (t->labels[i] == t->labels[k]) {
                diagonal(e, t, i, k--);
                break;
            }
}

/* Sums the labels that neither `other` (NULL: none) nor anything later needs. */
static void term_sum(Einsum *e, Term *t, const Term *other, uint32_t after) {
    int64_t axes[MAX_RANK];
    uint32_t count = 0, kept = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        bool is_kept =
            is_needed(e, t->labels[i], after) || (other && term_has(other, t->labels[i]));
        if (is_kept)
            t->labels[kept++] = t->labels[i];
        else
            axes[count++] = i;
    }
    if (!count) return;
    t->v = build_squeeze(e->n->g, build_reduce(e->n->g, OP_sum, t->v, axes, count), axes, count);
    t->n = kept;
}

/* Brings the axes into the order of `order`; labels that t lacks get extent 1. */
static Value term_arrange(Einsum *e, const Term *t, const uint8_t *order, uint32_t n) {
    int64_t perm[MAX_RANK], dims[MAX_RANK];
    uint32_t k = 0;
    Type type = *node_type(e->n, t->v);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *at = memchr(t->labels, order[i], t->n);
        dims[i] = at ? type.dims[at - t->labels] : 1;
        if (at) perm[k++] = at - t->labels;
    }
    return build_reshape(e->n->g, build_transpose(e->n->g, t->v, perm), n, dims);
}

/* ---------------------------------------------------------------- two operands */

typedef struct LabelGroup {
    uint8_t labels[2 * MAX_RANK];
    uint32_t n;
    int64_t dims[2 * MAX_RANK], size;
} LabelGroup;

static int64_t extent_of(const Einsum *e, const Term *t, uint8_t label) {
    const uint8_t *at = memchr(t->labels, label, t->n);
    return at ? node_type(e->n, t->v)->dims[at - t->labels] : 1;
}

static void group_add(LabelGroup *g, uint8_t label, int64_t extent) {
    g->labels[g->n] = label;
    g->dims[g->n++] = extent;
    g->size *= extent;
}

/* [batch, first, second], each group one axis; batch and contracted extents of 1 are stretched. */
static Value operand(Einsum *e, const Term *t, const LabelGroup *batch, const LabelGroup *first,
                     const LabelGroup *second) {
    uint8_t order[3 * MAX_RANK];
    int64_t dims[3 * MAX_RANK];
    uint32_t n = 0;
    const LabelGroup *groups[3] = {batch, first, second};
    for (int i = 0; i < 3; i++)
        for (uint32_t k = 0; k < groups[i]->n && n < 3 * MAX_RANK; k++) {
            order[n] = groups[i]->labels[k];
            dims[n++] = groups[i]->dims[k];
        }
    if (n > MAX_RANK) return 0;
    Value v = build_expand(e->n->g, term_arrange(e, t, order, n), n, dims);
    return build_reshape(e->n->g, v, 3, (int64_t[]){batch->size, first->size, second->size});
}

static bool join(Einsum *e, Term *a, Term *b, uint32_t after) {
    LabelGroup batch = {.size = 1}, mine = {.size = 1}, yours = {.size = 1}, shared = {.size = 1};
    Term result = {.n = 0};
    int64_t dims[MAX_RANK];
    term_sum(e, a, b, after);
    term_sum(e, b, a, after);
    for (uint32_t i = 0; i < a->n; i++) {
        int64_t x = extent_of(e, a, a->labels[i]), y = extent_of(e, b, a->labels[i]);
        bool is_both = term_has(b, a->labels[i]),
             is_batch = is_both && is_needed(e, a->labels[i], after);
        if (is_both && x != y && x != 1 && y != 1) return false;
        group_add(is_batch ? &batch : is_both ? &shared : &mine, a->labels[i], x > y ? x : y);
    }
    for (uint32_t i = 0; i < b->n; i++)
        if (!term_has(a, b->labels[i]))
            group_add(&yours, b->labels[i], extent_of(e, b, b->labels[i]));
    Value x = operand(e, a, &batch, &mine, &shared), y = operand(e, b, &batch, &shared, &yours);
    const LabelGroup *groups[3] = {&batch, &mine, &yours};
    for (int i = 0; i < 3; i++)
        for (uint32_t k = 0; k < groups[i]->n; k++) {
            if (result.n == MAX_RANK) return false;
            dims[result.n] = groups[i]->dims[k];
            term_add(&result, groups[i]->labels[k]);
        }
    result.v =
        build_reshape(e->n->g, x && y ? build_dot(e->n->g, x, y, false, false) : 0, result.n, dims);
    *a = result;
    return result.v != 0;
}

void import_einsum(ImportNode *n) {
    Einsum e = {.n = n};
    const char *equation = node_string(n, "equation", "");
    if (!n->n_in || !equation_parse(&e, equation)) {
        node_fail(n, "equation", "'%s' does not fit the operands", equation);
        return;
    }
    for (uint32_t i = 0; i < e.n_terms; i++) term_diagonals(&e, &e.terms[i]);
    for (uint32_t i = 1; i < e.n_terms; i++)
        if (!join(&e, &e.terms[0], &e.terms[i], i + 1)) {
            node_fail(n, "equation", "'%s': extents differ, or the rank is too high", equation);
            return;
        }
    term_sum(&e, &e.terms[0], NULL, e.n_terms);
    if (e.out.n == e.terms[0].n)
        n->out[0] = term_arrange(&e, &e.terms[0], e.out.labels, e.out.n);
    else
        node_fail(n, "equation", "'%s': the result has labels that no operand has", equation);
}
