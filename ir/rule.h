/* rule.h - private to ir/: a parsed S-expression of the rule language, shared by building and
 * matching.
 *
 * Terms lie in one array in the order of the text; children are linked by `first` and `next` (0:
 * none, so term 0 is unused). Nothing is allocated: a Rule lives on the caller's stack, names point
 * into the text. */
#ifndef TRAINC_RULE_H
#define TRAINC_RULE_H
#include "ir.h"

enum { RULE_MAX_TERMS = 200, RULE_MAX_ARGS = 8, RULE_MAX_BINDS = 32 };
typedef enum TermKind {
    TERM_NAME,
    TERM_NUMBER,
    TERM_FIELD,
    TERM_VALUE,
    TERM_OP,
    TERM_MEAN,
    TERM_SQUARE,
    TERM_PRODUCT,
    TERM_LET,
    TERM_CALL
} TermKind;
typedef struct Term {
    TermKind kind;
    uint16_t first, next, n_args; /* n_args: children that are values, not fields */
    OpCode op;                    /* TERM_OP */
    uint32_t len;
    const char *
        text; /* NAME, FIELD, VALUE: the name without its sigil; CALL, LET: what is called, bound */
    double number;
} Term;
typedef struct Rule {
    uint32_t n, root;
    const char *error; /* what is wrong, where root is 0 */
    Term terms[RULE_MAX_TERMS];
} Rule;

/* Parses text[0..len); false with rule->error set where it is no S-expression of known ops. */
bool rule_parse(Rule *, const char *text, size_t len);
/* The i-th part of "r1; r2; ..." without surrounding space; NULL past the end. */
const char *rule_span(const char *rules, uint32_t i, size_t *len);
/* The attribute key of a field's name; A_NONE where there is none. */
AttrKey rule_attr_key(const char *name, size_t len);
bool name_is(const char *z, const char *text, size_t len); /* z is NUL-terminated */

/* xent.c: a macro whose rules are too long for the language. dy is 0 in an expansion. */
Value expand_xent(Graph *, Value v, Value dy);
Value vjp_xent(Graph *, Value v, Value dy);
/* attention.c, rope.c: likewise; one gradient per operand, 0 where the operand is absent. */
Value expand_attention(Graph *, Value v, Value dy);
Value vjp_attention_q(Graph *, Value v, Value dy);
Value vjp_attention_k(Graph *, Value v, Value dy);
Value vjp_attention_v(Graph *, Value v, Value dy);
Value vjp_attention_bias(Graph *, Value v, Value dy);
Value vjp_attention_drop(Graph *, Value v, Value dy);
Value expand_rope(Graph *, Value v, Value dy);
Value vjp_rope_x(Graph *, Value v, Value dy);
Value vjp_rope_cos(Graph *, Value v, Value dy);
Value vjp_rope_sin(Graph *, Value v, Value dy);
#endif
