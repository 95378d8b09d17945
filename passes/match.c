/* match.c - finds macro ops in the core ops that exporters write for them.
 *
 * One walk copies the graph; at every node the patterns of match.def for its op are tried on the
 * copy. A match emits the macro over the matched operand; what it was made of stays behind unless
 * something else reads it. The macro's own gradient is better conditioned than that of the parts,
 * and its expansion is spelled one way, so that later passes see one form. */
#include "pass.h"
#include <string.h>

enum { N_BINDS = 8 };
typedef struct MatchRow {
    OpCode macro;
    const char *pattern;
} MatchRow;
static const MatchRow rows[] = {
#define MATCH(macro, pattern) {OP_##macro, pattern},
#include "match.def"
#undef MATCH
};
enum { N_ROWS = sizeof rows / sizeof *rows };
_Static_assert(sizeof rows / sizeof *rows < 255, "indices are bytes");

typedef struct Match {
    PassContext *ctx;
    uint8_t first[N_OPS], next[N_ROWS]; /* 1 + index of the rows by the pattern's op */
} Match;

static const RuleBind *find_bind(const RuleBind *binds, uint32_t n, const char *name) {
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(binds[i].name, name)) return &binds[i];
    return NULL;
}

/* The macro's fields from what the pattern bound: false where one is missing or eps is no constant.
 */
static bool macro_fields(const Graph *g, OpCode macro, const RuleBind *binds, uint32_t n,
                         AttrField *fields, uint32_t *n_fields) {
    for (uint32_t i = 0; i < op_info[macro].n_attrs; i++) {
        AttrKey key = op_info[macro].attrs[i];
        const RuleBind *b = find_bind(binds, n, key == A_EPS ? "e" : "@axes");
        double eps;
        if (!b) return false;
        const AttrField *axes = attr_find(g, b->value, key);
        if (key == A_EPS && const_splat(g, b->value, &eps))
            fields[(*n_fields)++] = attr_float(A_EPS, eps);
        else if (key == A_AXES && axes)
            fields[(*n_fields)++] = *axes;
        else
            return false;
    }
    return true;
}

static Value try_row(Graph *g, const MatchRow *row, Value v) {
    RuleBind binds[N_BINDS];
    AttrField fields[N_BINDS];
    uint32_t n = 0, n_fields = 0;
    if (!rule_match(g, row->pattern, v, binds, &n, N_BINDS)) return 0;
    const RuleBind *a = find_bind(binds, n, "a");
    if (!a || graph_node(g, a->value)->type != graph_node(g, v)->type) return 0;
    if (!macro_fields(g, row->macro, binds, n, fields, &n_fields)) return 0;
    return graph_emit(g, row->macro, &a->value, 1, graph_attr(g, fields, n_fields), 0);
}

static Value visit(void *pass, const Graph *from, Value v, Graph *to, const Value *map) {
    Match *m = pass;
    Value now = node_copied(from, v, to, map), found = 0;
    for (uint32_t i = m->first[graph_op(to, now)]; i && !found; i = m->next[i - 1])
        found = try_row(to, &rows[i - 1], now);
    if (!found || !pass_fuel(m->ctx)) return now;
    to->loc = graph_node(from, v)->loc;
    return found;
}

bool pass_match(PassContext *ctx) {
    Match m = {.ctx = ctx};
    Graph *given = ctx->g;
    for (uint32_t i = N_ROWS; i-- > 0;) {
        OpCode op = pattern_op(rows[i].pattern);
        m.next[i] = m.first[op];
        m.first[op] = (uint8_t)(i + 1);
    }
    pass_rewrite(ctx, visit, &m);
    Graph *matched = ctx->g;
    pass_rewrite(ctx, NULL, NULL); /* leaves the parts behind */
    if (matched != given) graph_free(matched);
    return !diag_has_errors(ctx->g);
}
