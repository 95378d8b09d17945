/* match.c - finds macro ops in the core ops that exporters write for them.
 *
 * One walk copies the graph; at every node the patterns of match.def for its op are tried on the
 * copy. A match emits the macro over the matched operand; what it was made of stays behind unless
 * something else reads it. The macro's own gradient is better conditioned than that of the parts,
 * and its expansion is spelled one way, so that later passes see one form. A match is exact or it
 * is none; where all but one edge of a pattern is there, that edge is noted for trainc plan -v. */
#include "match_attention.h"
#include "pass.h"
#include <string.h>

enum { N_BINDS = 12 };
typedef struct MatchRow {
    OpCode macro;
    const char *pattern, *result;
} MatchRow;
static const MatchRow rows[] = {
#define MATCH(macro, pattern, result) {OP_##macro, pattern, result},
#include "match.def"
#undef MATCH
};
enum { N_ROWS = sizeof rows / sizeof *rows };
_Static_assert(2 * sizeof rows / sizeof *rows < 255, "indices are bytes");

typedef struct Match {
    PassContext *ctx;
    uint8_t first[N_OPS], next[2 * N_ROWS], row[2 * N_ROWS]; /* 1 + index, by the pattern's op */
    uint32_t n;
} Match;

static void add_row(Match *m, OpCode op, uint32_t row) {
    m->row[m->n] = (uint8_t)row;
    m->next[m->n] = m->first[op];
    m->first[op] = (uint8_t)(++m->n);
}

static void index_rows(Match *m) {
    for (uint32_t i = N_ROWS; i-- > 0;) {
        OpCode op = pattern_op(rows[i].pattern);
        add_row(m, op ? op : OP_mul, i); /* a product ends in a mul or a div */
        if (!op) add_row(m, OP_div, i);
    }
}

/* ---- rules ---- */

static const RuleBind *find_bind(const RuleBind *binds, uint32_t n, const char *name) {
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(binds[i].name, name)) return &binds[i];
    return NULL;
}

/* The macro's fields from what the pattern bound: false where axes are missing or eps is no
 * constant.
 */
static bool macro_fields(const Graph *g, OpCode macro, const RuleBind *binds, uint32_t n,
                         AttrField *fields, uint32_t *n_fields) {
    const RuleBind *axes = find_bind(binds, n, "@axes"), *e = find_bind(binds, n, "e");
    double eps = 0;
    for (uint32_t i = 0; i < op_info[macro].n_attrs; i++) {
        AttrKey key = op_info[macro].attrs[i];
        const AttrField *field = key == A_AXES && axes ? attr_find(g, axes->value, key) : NULL;
        if (key == A_EPS && (!e || const_splat(g, e->value, &eps)))
            fields[(*n_fields)++] = attr_float(A_EPS, eps);
        else if (field)
            fields[(*n_fields)++] = *field;
        else
            return false;
    }
    return true;
}

static Value try_row(Graph *g, const MatchRow *row, Value v) {
    RuleBind binds[N_BINDS + 1];
    AttrField fields[N_BINDS];
    uint32_t n = 0, n_fields = 0;
    Type t = *graph_type_at(g, v);
    if (!rule_match(g, row->pattern, v, binds, &n, N_BINDS)) return 0;
    const RuleBind *a = find_bind(binds, n, "a");
    if (!a || graph_node(g, a->value)->type != graph_node(g, v)->type) return 0;
    if (!macro_fields(g, row->macro, binds, n, fields, &n_fields)) return 0;
    Value y = graph_emit(g, row->macro, &a->value, 1, graph_attr(g, fields, n_fields), 0);
    if (!strcmp(row->result, "y")) return y;
    binds[n++] = (RuleBind){"y", y};
    y = rule_build(g, row->result, binds, n, 0);
    return build_expand(g, y, t.rank, t.dims);
}

/* ---- the loss of one label, picked from log-probabilities ---- */

/* -take(log_softmax(a), labels): a cross-entropy. Labels that take reads are in range, so none is
 * -1 and all count. */
static Value try_xent(Graph *g, Value v) {
    if (graph_op(g, v) != OP_neg) return 0;
    Value take = graph_operand(g, v, 0), logp, labels;
    if (graph_op(g, take) != OP_take) return 0;
    logp = graph_operand(g, take, 0), labels = graph_operand(g, take, 1);
    if (graph_op(g, logp) != OP_log_softmax) return 0;
    int64_t axis = attr_i(g, take, A_AXIS, 0);
    uint32_t n;
    const int64_t *axes = attr_list(g, logp, A_AXES, &n);
    Type kept = *graph_type_at(g, logp), t = *graph_type_at(g, v);
    kept.dims[axis] = 1;
    if (n != 1 || axes[0] != axis || !dims_equal(&kept, graph_type_at(g, labels))) return 0;
    AttrField fields[] = {attr_int(A_AXIS, axis), attr_int(A_IGNORE, -1)};
    Value operands[] = {graph_operand(g, logp, 0), build_cast(g, labels, DT_I64)};
    Value xent = graph_emit(g, OP_xent, operands, 2, graph_attr(g, fields, 2), 0);
    return build_reshape(g, xent, t.rank, t.dims);
}

static Value visit(void *pass, const Graph *from, Value v, Graph *to, const Value *map) {
    Match *m = pass;
    Value now = strided_shortest(to, node_copied(from, v, to, map)), found = try_xent(to, now);
    for (uint32_t i = m->first[graph_op(to, now)]; i && !found; i = m->next[i - 1])
        found = try_row(to, &rows[m->row[i - 1]], now);
    if (!found) found = match_rope(to, now);
    if (!found) found = match_attention(m->ctx, to, now);
    if (!found || !pass_fuel(m->ctx)) return now;
    to->loc = graph_node(from, v)->loc;
    return found;
}

/* ---- near misses ---- */

static const char *place(PassContext *ctx, Value v) {
    const Graph *g = ctx->g;
    const Loc *l = &g->locs[graph_node(g, v)->loc];
    return arena_printf(ctx->arena, "%s (%s)", l->name && *l->name ? l->name : "a constant",
                        l->op && *l->op ? l->op : op_info[graph_op(g, v)].name);
}

static void note_near_miss(PassContext *ctx, const MatchRow *row, Value v) {
    RuleMiss miss;
    const Graph *g = ctx->g;
    const char *macro = op_info[row->macro].name;
    LocId at = graph_node(g, v)->loc;
    if (!rule_nearly(g, row->pattern, v, &miss)) return;
    if (miss.user == miss.value)
        match_note(ctx, macro, at, "%s has not %s", place(ctx, miss.user), miss.wanted);
    else if (miss.bound)
        match_note(ctx, macro, at, "%s reads %s where %s is wanted", place(ctx, miss.user),
                   place(ctx, miss.value), place(ctx, miss.bound));
    else
        match_note(ctx, macro, at, "%s reads %s where %s is wanted", place(ctx, miss.user),
                   place(ctx, miss.value), miss.wanted);
}

static void note_near_misses(const Match *m) {
    PassContext *ctx = m->ctx;
    const Graph *g = ctx->g;
    EntryKind entry = g->entries[ENTRY_MICRO].n ? ENTRY_MICRO : ENTRY_EVAL;
    const bool *live = graph_reachable(g, ctx->arena, entry);
    for (Value v = 1; v < g->n_nodes; v++) {
        uint32_t before = ctx->census.n_notes;
        for (uint32_t i = live[v] ? m->first[graph_op(g, v)] : 0;
             i && ctx->census.n_notes == before; i = m->next[i - 1])
            note_near_miss(ctx, &rows[m->row[i - 1]], v);
    }
}

bool pass_match(PassContext *ctx) {
    Match m = {.ctx = ctx};
    Graph *given = ctx->g;
    index_rows(&m);
    pass_rewrite(ctx, visit, &m);
    Graph *matched = ctx->g;
    pass_rewrite(ctx, NULL, NULL); /* leaves the parts behind */
    if (matched != given) graph_free(matched);
    if (ctx->options->verbose) note_near_misses(&m);
    return pass_bodies(ctx, pass_match) && !diag_has_errors(ctx->g);
}
