/* rule_match.c - does the graph at a value match a pattern, or all but one edge of it? For
 * simplification, for finding macros and for saying why one was not found.
 *
 * Goals (a term, the value it must match) form a list on the stack; each goal is solved together
 * with all that follow it, so that the other order of a commutative op is tried again when a later
 * part of the pattern fails. A form matches through `expand`, for that is how broadcasting was made
 * explicit: the caller expands what it builds to the dims of v.
 *
 * A product is matched as a set of factors: its goal holds the values that are still to be taken
 * apart and the terms that no factor has yet; all constants together must make the product of the
 * pattern's numbers. */
#include "rule.h"
#include <math.h>
#include <string.h>

typedef struct Bound {
    const char *name;
    uint32_t len;
    Value value;
} Bound;
typedef struct Matcher {
    const Graph *g;
    const Rule *rule;
    uint32_t n;
    RuleMiss *miss; /* NULL: all must match */
    bool has_missed;
    Bound binds[RULE_MAX_BINDS];
} Matcher;
typedef struct Number {
    double value;
    DType dtype; /* of its constant: a number of few bits matches what rounds to it */
} Number;
/* What is left of a product: values to be taken apart, terms to be met, and the constants so far.
 */
typedef struct Factors {
    Value values[RULE_MAX_ARGS];
    uint16_t terms[RULE_MAX_ARGS];
    uint32_t n_values, n_terms;
    double wanted, found;
    Number coarse; /* the one constant of few bits; value 0: none */
    bool is_divisor;
    Value product;
} Factors;
typedef struct Goal {
    uint32_t term;
    Value v, user; /* user: whose operand v is; 0 for the root */
    const Factors *factors;
    const struct Goal *rest;
} Goal;

static bool is_commutative(OpCode op) {
    switch ((int)op) {
    case OP_add:
    case OP_mul:
    case OP_max:
    case OP_min:
    case OP_eq:
    case OP_ne:
    case OP_and:
    case OP_or:
    case OP_xor:
    case OP_bitand:
    case OP_bitor:
    case OP_bitxor:
        return true;
    }
    return false;
}

static Value skip_expand(const Graph *g, Value v) {
    while (graph_op(g, v) == OP_expand) v = graph_operand(g, v, 0);
    return v;
}

/* A constant of one repeated element, through expand and cast. */
static bool number_at(const Graph *g, Value v, Number *number) {
    while (!const_splat(g, v, &number->value)) {
        if (graph_op(g, v) != OP_expand && graph_op(g, v) != OP_cast) return false;
        v = graph_operand(g, v, 0);
    }
    number->dtype = (DType)graph_type_at(g, v)->dtype;
    return true;
}

static bool is_near(double value, double wanted) {
    return value == wanted || fabs(value - wanted) <= 1e-6 * fabs(wanted);
}

static bool is_coarse(const Number *n) {
    return dtype_info[n->dtype].cls == CLASS_FLT && dtype_info[n->dtype].bytes < 4;
}

static bool number_fits(const Number *n, double wanted) {
    char bytes[8] = {0};
    if (is_near(n->value, wanted)) return true;
    if (!is_coarse(n)) return false;
    elem_store(n->dtype, bytes, wanted);
    return elem_load(n->dtype, bytes) == n->value;
}

static bool is_number(const Graph *g, Value v, double wanted) {
    Number n;
    return number_at(g, v, &n) && number_fits(&n, wanted);
}

static bool solve(Matcher *m, const Goal *goal);

/* Binds the name and solves the rest; takes the name back where that fails. */
static bool solve_bound(Matcher *m, const char *name, uint32_t len, Value v, const Goal *rest) {
    if (m->n == RULE_MAX_BINDS) return false;
    m->binds[m->n++] = (Bound){name, len, v};
    if (solve(m, rest)) return true;
    m->n--;
    return false;
}

static const Bound *find_bound(const Matcher *m, const char *name, uint32_t len) {
    for (uint32_t i = 0; i < m->n; i++)
        if (m->binds[i].len == len && memcmp(m->binds[i].name, name, len) == 0) return &m->binds[i];
    return NULL;
}

static bool fields_equal(const AttrField *a, const AttrField *b) {
    if (!a || !b || a->key != b->key || a->n != b->n) return false;
    switch (attr_info[a->key].kind) {
    case ATTR_INT:
        return a->u.i == b->u.i;
    case ATTR_FLOAT:
        return a->u.f == b->u.f;
    case ATTR_INTS:
        return memcmp(a->u.ints, b->u.ints, a->n * sizeof *a->u.ints) == 0;
    case ATTR_STR:
        return strcmp(a->u.str, b->u.str) == 0;
    case ATTR_BYTES:
        return memcmp(a->u.bytes, b->u.bytes, a->n) == 0;
    }
    return false;
}

static const AttrField *named_field(const Matcher *m, const Term *t, Value v) {
    AttrKey key = rule_attr_key(t->text, t->len);
    return attr_find(m->g, v, key == A_NONE ? op_info[graph_op(m->g, v)].attrs[0] : key);
}

/* @name after an op: binds "@name" to the node that has the attributes, or compares the field with
 * what it is bound to. */
static bool solve_field(Matcher *m, const Term *t, Value v, const Goal *rest) {
    const Bound *bound = find_bound(m, t->text - 1, t->len + 1);
    if (!named_field(m, t, v)) return false;
    if (bound)
        return fields_equal(named_field(m, t, bound->value), named_field(m, t, v)) &&
               solve(m, rest);
    return solve_bound(m, t->text - 1, t->len + 1, v, rest);
}

/* The children of a form against the operands of v, which carries the attributes too. `swap`:
 * operands 0 and 1 trade places. */
static bool solve_children(Matcher *m, uint32_t child, Value v, bool swap, const Goal *rest) {
    Goal goals[2 * RULE_MAX_ARGS];
    uint32_t n = 0, i = 0;
    for (; child; child = m->rule->terms[child].next, n++) {
        if (n == 2 * RULE_MAX_ARGS) return false;
        goals[n] = (Goal){.term = child, .v = v, .user = v, .rest = rest};
        if (m->rule->terms[child].kind != TERM_FIELD) {
            goals[n].v = graph_operand(m->g, v, swap && i < 2 ? 1 - i : i);
            i++;
        }
        rest = &goals[n];
    }
    return solve(m, rest);
}

static bool solve_op(Matcher *m, const Term *form, Value v, const Goal *rest) {
    if (graph_op(m->g, v) != form->op || graph_node(m->g, v)->n_operands != form->n_args)
        return false;
    if (solve_children(m, form->first, v, false, rest)) return true;
    return is_commutative(form->op) && solve_children(m, form->first, v, true, rest);
}

static bool solve_square(Matcher *m, const Term *form, Value v, const Goal *rest) {
    if (graph_node(m->g, v)->n_operands != 2) return false;
    Goal base = {.term = form->first, .v = graph_operand(m->g, v, 0), .user = v, .rest = rest};
    bool product =
        graph_op(m->g, v) == OP_mul && graph_operand(m->g, v, 0) == graph_operand(m->g, v, 1);
    bool power = graph_op(m->g, v) == OP_pow && is_number(m->g, graph_operand(m->g, v, 1), 2);
    return (product || power) && solve(m, &base);
}

/* sum times 1/n or by n, n the elements that a result element sums over */
static bool solve_mean(Matcher *m, const Term *form, Value v, const Goal *rest) {
    OpCode op = graph_op(m->g, v);
    if (op != OP_mul && op != OP_div) return false;
    for (uint32_t i = 0; i < (op == OP_mul ? 2u : 1u); i++) {
        Value sum = skip_expand(m->g, graph_operand(m->g, v, i));
        if (graph_op(m->g, sum) != OP_sum) continue;
        double n = (double)type_elems(graph_type_at(m->g, graph_operand(m->g, sum, 0))) /
                   (double)type_elems(graph_type_at(m->g, sum));
        if (!is_number(m->g, graph_operand(m->g, v, 1 - i), op == OP_mul ? 1 / n : n)) continue;
        if (solve_children(m, form->first, sum, false, rest)) return true;
    }
    return false;
}

/* ---- products ---- */

static bool solve_factors(Matcher *m, const Factors *f, const Goal *rest);

/* One constant of few bits is compared after rounding what it would have to be. */
static bool constants_fit(const Factors *f) {
    if (is_near(f->found, f->wanted)) return true;
    if (f->coarse.value == 0 || f->found == 0 || f->wanted == 0) return false;
    double others = f->is_divisor ? f->found * f->coarse.value : f->found / f->coarse.value;
    return number_fits(&f->coarse, f->is_divisor ? others / f->wanted : f->wanted / others);
}

/* The constant as a factor, or as a divisor; false where two of few bits would blur each other. */
static bool take_constant(Factors *f, const Number *n, bool is_divisor) {
    f->found = is_divisor ? f->found / n->value : f->found * n->value;
    if (!is_coarse(n) || n->value * 2 == floor(n->value * 2)) return true; /* said exactly */
    if (f->coarse.value != 0) return false;
    f->coarse = *n;
    f->is_divisor = is_divisor;
    return true;
}

/* v as a factor of its own: some term that none has yet. */
static bool solve_factor(Matcher *m, const Factors *f, Value v, const Goal *rest) {
    for (uint32_t i = 0; i < f->n_terms; i++) {
        Factors left = *f;
        left.terms[i] = left.terms[--left.n_terms];
        Goal others = {.factors = &left, .rest = rest};
        Goal here = {.term = f->terms[i], .v = v, .user = v, .rest = &others};
        if (solve(m, &here)) return true;
    }
    return false;
}

/* v taken apart: the operands of a product, or what a number divides or a minus negates. */
static bool solve_apart(Matcher *m, const Factors *f, Value v, const Goal *rest) {
    Factors left = *f;
    Value p = skip_expand(m->g, v);
    OpCode op = graph_op(m->g, p);
    Number n;
    if (op == OP_mul && left.n_values + 2 <= RULE_MAX_ARGS) {
        left.values[left.n_values++] = graph_operand(m->g, p, 1);
        left.values[left.n_values++] = graph_operand(m->g, p, 0);
    } else if (op == OP_div && number_at(m->g, graph_operand(m->g, p, 1), &n) && n.value != 0) {
        if (!take_constant(&left, &n, true)) return false;
        left.values[left.n_values++] = graph_operand(m->g, p, 0);
    } else if (op == OP_neg) {
        left.found = -left.found;
        left.values[left.n_values++] = graph_operand(m->g, p, 0);
    } else
        return false;
    return solve_factors(m, &left, rest);
}

/* The constant as the one edge that does not match. */
static bool solve_other_constant(Matcher *m, const Factors *f, const Goal *rest) {
    if (!m->miss || m->has_missed) return false;
    m->has_missed = true;
    const char *wanted = arena_printf(m->g->arena, "the constant %g", f->wanted);
    *m->miss = (RuleMiss){f->product, f->product, 0, 0, wanted};
    if (solve(m, rest)) return true;
    m->has_missed = false;
    return false;
}

static bool solve_factors(Matcher *m, const Factors *f, const Goal *rest) {
    if (!f->n_values && f->n_terms) return false;
    if (!f->n_values) return constants_fit(f) ? solve(m, rest) : solve_other_constant(m, f, rest);
    Factors left = *f;
    Value v = left.values[--left.n_values];
    Number n;
    if (number_at(m->g, v, &n))
        return take_constant(&left, &n, false) && solve_factors(m, &left, rest);
    return solve_factor(m, &left, v, rest) || solve_apart(m, &left, v, rest);
}

static bool solve_product(Matcher *m, const Term *form, Value v, const Goal *rest) {
    Factors f = {.values = {v}, .n_values = 1, .wanted = 1, .found = 1, .product = v};
    OpCode op = graph_op(m->g, v);
    if (op != OP_mul && op != OP_div && op != OP_neg) return false;
    for (uint32_t child = form->first; child; child = m->rule->terms[child].next) {
        const Term *t = &m->rule->terms[child];
        if (t->kind == TERM_NUMBER)
            f.wanted *= t->number;
        else
            f.terms[f.n_terms++] = (uint16_t)child;
    }
    return solve_factors(m, &f, rest);
}

/* ---- goals ---- */

static bool solve_form(Matcher *m, const Term *form, Value v, const Goal *rest) {
    bool ok = false;
    switch (form->kind) {
    case TERM_OP:
        ok = solve_op(m, form, v, rest);
        break;
    case TERM_MEAN:
        ok = solve_mean(m, form, v, rest);
        break;
    case TERM_SQUARE:
        ok = solve_square(m, form, v, rest);
        break;
    case TERM_PRODUCT:
        ok = solve_product(m, form, v, rest);
        break;
    case TERM_NAME:
    case TERM_NUMBER:
    case TERM_FIELD:
    case TERM_VALUE:
    case TERM_LET:
    case TERM_CALL:
        return false;
    }
    return ok ||
           (graph_op(m->g, v) == OP_expand && solve_form(m, form, graph_operand(m->g, v, 0), rest));
}

static bool solve_goal(Matcher *m, const Goal *goal) {
    const Term *t = &m->rule->terms[goal->term];
    const Bound *bound;
    switch (t->kind) {
    case TERM_NUMBER:
        return is_number(m->g, goal->v, t->number) && solve(m, goal->rest);
    case TERM_NAME:
        bound = find_bound(m, t->text, t->len);
        if (bound) return bound->value == goal->v && solve(m, goal->rest);
        return solve_bound(m, t->text, t->len, goal->v, goal->rest);
    case TERM_FIELD:
        return solve_field(m, t, goal->v, goal->rest);
    case TERM_OP:
    case TERM_MEAN:
    case TERM_SQUARE:
    case TERM_PRODUCT:
        return solve_form(m, t, goal->v, goal->rest);
    case TERM_VALUE:
    case TERM_LET:
    case TERM_CALL:
        break;
    }
    return false;
}

static uint32_t count_ops(const Rule *rule, uint32_t term) {
    TermKind kind = rule->terms[term].kind;
    uint32_t n =
        kind == TERM_OP || kind == TERM_MEAN || kind == TERM_SQUARE || kind == TERM_PRODUCT;
    for (uint32_t c = rule->terms[term].first; c; c = rule->terms[c].next) n += count_ops(rule, c);
    return n;
}

/* The goal as the one edge that does not match: at most one op of the pattern may go with it. */
static bool solve_without(Matcher *m, const Goal *goal) {
    const Term *t = &m->rule->terms[goal->term];
    const Bound *bound = t->kind == TERM_NAME ? find_bound(m, t->text, t->len) : NULL;
    if (m->has_missed || !goal->user || count_ops(m->rule, goal->term) > 1) return false;
    m->has_missed = true;
    *m->miss = (RuleMiss){goal->user, goal->v, bound ? bound->value : 0, goal->term, NULL};
    if (solve(m, goal->rest)) return true;
    m->has_missed = false;
    return false;
}

static bool solve(Matcher *m, const Goal *goal) {
    if (!goal) return true;
    if (goal->factors) return solve_factors(m, goal->factors, goal->rest);
    return solve_goal(m, goal) || (m->miss && solve_without(m, goal));
}

/* Whether the pattern's first op can be the one at v at all: most patterns end here, unparsed. */
static bool head_fits(const Graph *g, const char *pattern, Value v) {
    if (pattern[0] != '(') return true;
    const char *name = pattern + 1;
    size_t len = strcspn(name, " ()");
    if (name_is("mean", name, len)) return true;
    OpCode op = graph_op(g, skip_expand(g, v));
    if (name_is("square", name, len)) return op == OP_mul || op == OP_pow;
    if (name_is("product", name, len)) return op == OP_mul || op == OP_div || op == OP_neg;
    return name_is(op_info[op].name, name, len) || name_is(op_info[graph_op(g, v)].name, name, len);
}

/* Names of one letter, which nearly all are, need no memory. */
static const char *stable_name(const Graph *g, const char *name, uint32_t len) {
    static const char letters[26][2] = {"a", "b", "c", "d", "e", "f", "g", "h", "i",
                                        "j", "k", "l", "m", "n", "o", "p", "q", "r",
                                        "s", "t", "u", "v", "w", "x", "y", "z"};
    if (len == 1 && *name >= 'a' && *name <= 'z') return letters[*name - 'a'];
    return arena_printf(g->arena, "%.*s", (int)len, name);
}

bool rule_match(const Graph *g, const char *pattern, Value v, RuleBind *binds, uint32_t *n_binds,
                uint32_t cap) {
    Rule rule;
    Matcher m = {.g = g, .rule = &rule, .n = *n_binds};
    if (!v || !head_fits(g, pattern, v) || !rule_parse(&rule, pattern, strlen(pattern)))
        return false;
    for (uint32_t i = 0; i < m.n; i++)
        m.binds[i] = (Bound){binds[i].name, (uint32_t)strlen(binds[i].name), binds[i].value};
    Goal goal = {.term = rule.root, .v = v};
    if (!solve(&m, &goal) || m.n > cap) return false;
    for (uint32_t i = *n_binds; i < m.n; i++)
        binds[i] = (RuleBind){stable_name(g, m.binds[i].name, m.binds[i].len), m.binds[i].value};
    *n_binds = m.n;
    return true;
}

/* The text of a form up to its closing parenthesis, or of an atom. */
static const char *term_text(const Graph *g, const char *pattern, const Term *t) {
    const char *at = t->text, *end;
    uint32_t depth = 0;
    while (at > pattern && *at != '(' && t->kind != TERM_NAME && t->kind != TERM_NUMBER &&
           t->kind != TERM_FIELD)
        at--;
    if (t->kind == TERM_FIELD) at--;
    for (end = at; *end && !(depth == 0 && end > at && (*end == ' ' || *end == ')')); end++)
        if (*end == '(')
            depth++;
        else if (*end == ')' && --depth == 0) {
            end++;
            break;
        }
    return arena_printf(g->arena, "%.*s", (int)(end - at), at);
}

bool rule_nearly(const Graph *g, const char *pattern, Value v, RuleMiss *miss) {
    Rule rule;
    Matcher m = {.g = g, .rule = &rule, .miss = miss};
    if (!v || !head_fits(g, pattern, v) || !rule_parse(&rule, pattern, strlen(pattern)))
        return false;
    Goal goal = {.term = rule.root, .v = v};
    if (count_ops(&rule, rule.root) < 4 || !solve(&m, &goal) || !m.has_missed) return false;
    if (miss->term) miss->wanted = term_text(g, pattern, &rule.terms[miss->term]);
    return true;
}
