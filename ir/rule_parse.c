/* rule_parse.c - the text of a rule into terms.
 *
 *   term  = NAME | NUMBER | @FIELD | $FIELD | (OP term ...) | (mean term @axes) | (square term) |
 * (product term ...) | (let NAME term term) | (C NAME)
 *
 * Recursive descent in one pass over the text, without allocation, so that a rule can be parsed
 * each time it is used: about a microsecond for the gradient of a map. */
#include "rule.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct Cursor {
    const char *p, *end;
    Rule *rule;
    uint32_t depth;
} Cursor;

bool name_is(const char *z, const char *text, size_t len) {
    return strncmp(z, text, len) == 0 && z[len] == '\0';
}

AttrKey rule_attr_key(const char *name, size_t len) {
    for (uint32_t k = 1; k < N_ATTRS; k++)
        if (name_is(attr_info[k].name, name, len)) return (AttrKey)k;
    return A_NONE;
}

const char *rule_span(const char *rules, uint32_t i, size_t *len) {
    const char *p = rules, *end;
    for (; i; i--) {
        p = strchr(p, ';');
        if (!p) return NULL;
        p++;
    }
    while (isspace((unsigned char)*p)) p++;
    end = strchr(p, ';');
    if (!end) end = p + strlen(p);
    while (end > p && isspace((unsigned char)end[-1])) end--;
    *len = (size_t)(end - p);
    return p;
}

static uint16_t fail(Cursor *c, const char *why) {
    if (!c->rule->error) c->rule->error = why;
    return 0;
}

static void skip_space(Cursor *c) {
    while (c->p < c->end && isspace((unsigned char)*c->p)) c->p++;
}

static uint32_t token(Cursor *c, const char **text) {
    skip_space(c);
    *text = c->p;
    while (c->p < c->end && !isspace((unsigned char)*c->p) && *c->p != '(' && *c->p != ')') c->p++;
    return (uint32_t)(c->p - *text);
}

static uint16_t term_new(Cursor *c, TermKind kind, const char *text, uint32_t len) {
    if (c->rule->n == RULE_MAX_TERMS) return fail(c, "the rule is too long");
    c->rule->terms[c->rule->n] = (Term){.kind = kind, .text = text, .len = len};
    return (uint16_t)c->rule->n++;
}

static bool is_number(const char *s, uint32_t len, double *value) {
    char copy[40], *end;
    if (!len || len >= sizeof copy) return false;
    if (!isdigit((unsigned char)s[0]) && !strchr("-+.", s[0]) && !name_is("inf", s, len))
        return false;
    memcpy(copy, s, len);
    copy[len] = '\0';
    *value = strtod(copy, &end);
    return *end == '\0';
}

static uint16_t parse_atom(Cursor *c) {
    const char *text;
    uint32_t len = token(c, &text);
    double number;
    if (!len) return fail(c, "a term is missing");
    if (*text == '@') return term_new(c, TERM_FIELD, text + 1, len - 1);
    if (*text == '$') return term_new(c, TERM_VALUE, text + 1, len - 1);
    if (!is_number(text, len, &number)) return term_new(c, TERM_NAME, text, len);
    uint16_t t = term_new(c, TERM_NUMBER, text, len);
    if (t) c->rule->terms[t].number = number;
    return t;
}

static TermKind head_kind(const char *text, uint32_t len, OpCode *op) {
    char name[32];
    *op = OP_NONE;
    if (name_is("mean", text, len)) return TERM_MEAN;
    if (name_is("square", text, len)) return TERM_SQUARE;
    if (name_is("product", text, len)) return TERM_PRODUCT;
    if (name_is("let", text, len)) return TERM_LET;
    if (name_is("C", text, len)) return TERM_CALL;
    if (len < sizeof name) {
        memcpy(name, text, len);
        name[len] = '\0';
        *op = op_from_name(name);
    }
    return TERM_OP;
}

static uint16_t parse_term(Cursor *c);

static bool arity_fits(const Term *t) {
    switch (t->kind) {
    case TERM_OP:
        return op_info[t->op].arity < 0 || t->n_args == op_info[t->op].arity;
    case TERM_MEAN:
    case TERM_SQUARE:
        return t->n_args == 1;
    case TERM_PRODUCT:
        return t->n_args > 0;
    case TERM_LET:
        return t->n_args == 2;
    case TERM_CALL:
        return t->n_args == 0;
    case TERM_NAME:
    case TERM_NUMBER:
    case TERM_FIELD:
    case TERM_VALUE:
        break;
    }
    return true;
}

static uint16_t parse_children(Cursor *c, uint16_t form) {
    uint16_t last = 0;
    for (skip_space(c); c->p < c->end && *c->p != ')'; skip_space(c)) {
        uint16_t child = parse_term(c);
        if (!child) return 0;
        Term *t = &c->rule->terms[form];
        if (last)
            c->rule->terms[last].next = child;
        else
            t->first = child;
        last = child;
        if (c->rule->terms[child].kind != TERM_FIELD) t->n_args++;
        if (t->n_args > RULE_MAX_ARGS) return fail(c, "too many operands");
    }
    if (c->p == c->end) return fail(c, "a parenthesis is not closed");
    c->p++;
    return arity_fits(&c->rule->terms[form]) ? form : fail(c, "wrong number of operands");
}

static uint16_t parse_term(Cursor *c) {
    const char *text;
    OpCode op;
    skip_space(c);
    if (c->p == c->end || *c->p != '(') return parse_atom(c);
    if (++c->depth > 40) return fail(c, "the rule nests too deeply");
    c->p++;
    uint32_t len = token(c, &text);
    TermKind kind = head_kind(text, len, &op);
    if (kind == TERM_OP && op == OP_NONE) return fail(c, "unknown op");
    if (kind == TERM_LET || kind == TERM_CALL) len = token(c, &text);
    uint16_t form = term_new(c, kind, text, len);
    if (!form) return 0;
    c->rule->terms[form].op = op;
    form = parse_children(c, form);
    c->depth--;
    return form;
}

bool rule_parse(Rule *rule, const char *text, size_t len) {
    Cursor c = {text, text + len, rule, 0};
    rule->n = 1;
    rule->error = NULL;
    rule->root = parse_term(&c);
    skip_space(&c);
    if (rule->root && c.p != c.end) rule->root = fail(&c, "text after the rule");
    return rule->root != 0;
}
