/* census.c - what the forward graph is made of: how many of each kind of layer, and what is left
 * outside them.
 *
 * One walk over the nodes that the loss reaches (without training: that the outputs reach), after
 * macros were found. Where the graph has a macro the macro is counted; other kinds are recognised
 * by what they read. A weight is a value that depends on parameters and not on what is fed, however
 * it is turned or scaled. Nothing is changed. */
#include "attention.h"
#include "pass.h"
#include <stdarg.h>
#include <string.h>

const char *const census_name[N_CENSUS] = {
#define CENSUS(id, text, meaning) text,
#include "census.def"
#undef CENSUS
};
const char *const census_meaning[N_CENSUS] = {
#define CENSUS(id, text, meaning) meaning,
#include "census.def"
#undef CENSUS
};

enum { MAX_SCORES = 32, FED_INPUT = 1, FED_DRAW = 2 };
typedef struct Scores {
    int64_t samples, heads, rows, columns;
} Scores;
typedef struct Taking {
    PassContext *ctx;
    const Graph *g;
    bool *live;
    uint8_t *fed, *learnt; /* does the value depend on an input, on a draw; on a parameter */
    uint8_t *after_conv, *before_conv, *in_glu;
    Scores scores[MAX_SCORES];
    uint32_t n_scores;
} Taking;

void match_note(PassContext *ctx, const char *macro, LocId at, const char *fmt, ...) {
    Census *c = &ctx->census;
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    for (uint32_t i = 0; i < c->n_notes; i++)
        if (c->notes[i].at == at && !strcmp(c->notes[i].macro, macro) &&
            !strcmp(c->notes[i].why, text))
            return;
    if (c->n_notes == c->cap_notes) {
        uint32_t cap = c->cap_notes ? 2 * c->cap_notes : 16;
        c->notes = arena_grow(ctx->arena, c->notes, sizeof *c->notes * c->cap_notes,
                              sizeof *c->notes * cap);
        c->cap_notes = cap;
    }
    c->notes[c->n_notes++] = (MatchNote){macro, at, arena_strdup(ctx->arena, text)};
}

static void count(Taking *t, CensusId kind) { t->ctx->census.count[kind]++; }

/* ---- what a value depends on ---- */

static void find_dependences(Taking *t) {
    const Graph *g = t->g;
    for (Value v = 1; v < g->n_nodes; v++) {
        OpCode op = graph_op(g, v);
        t->fed[v] = op == OP_random ? FED_DRAW : op == OP_input || op == OP_scalar ? FED_INPUT : 0;
        t->learnt[v] = op == OP_state;
        for (uint32_t i = 0; i < graph_node(g, v)->n_operands; i++) {
            t->fed[v] |= t->fed[graph_operand(g, v, i)];
            t->learnt[v] |= t->learnt[graph_operand(g, v, i)];
        }
    }
}

static bool is_weight(const Taking *t, Value v) { return t->learnt[v] && !t->fed[v]; }

static bool is_view(OpCode op) {
    return op == OP_reshape || op == OP_transpose || op == OP_expand || op == OP_slice ||
           op == OP_cast;
}

static Value through_views(const Graph *g, Value v) {
    while (is_view(graph_op(g, v))) v = graph_operand(g, v, 0);
    return v;
}

/* A 1-D convolution that looks at one position at a time. */
static bool is_pointwise(const Graph *g, Value v) {
    const Type *w = graph_type_at(g, graph_operand(g, v, 1));
    uint32_t n;
    const int64_t *strides = attr_list(g, v, A_STRIDES, &n), *low = attr_list(g, v, A_LOW, &n),
                  *high = attr_list(g, v, A_HIGH, &n);
    return graph_op(g, v) == OP_conv && w->rank == 3 && w->dims[2] == 1 && strides[0] == 1 &&
           !low[0] && !high[0] && attr_i(g, v, A_GROUPS, 1) == 1;
}

static bool is_linear(const Taking *t, Value v) {
    const Graph *g = t->g;
    if (graph_op(g, v) == OP_dot) {
        Value a = graph_operand(g, v, 0), b = graph_operand(g, v, 1);
        return (t->fed[a] && is_weight(t, b)) || (is_weight(t, a) && t->fed[b]);
    }
    return graph_op(g, v) == OP_conv && is_pointwise(g, v) && is_weight(t, graph_operand(g, v, 1));
}

/* The linear layer whose result, with a bias or without, v shows; 0 where it shows none. */
static Value linear_behind(const Taking *t, Value v) {
    const Graph *g = t->g;
    for (;;) {
        v = through_views(g, v);
        if (is_linear(t, v)) return v;
        if (graph_op(g, v) != OP_add) return 0;
        Value a = graph_operand(g, v, 0), b = graph_operand(g, v, 1);
        if (is_weight(t, b))
            v = a;
        else if (is_weight(t, a))
            v = b;
        else
            return 0;
    }
}

/* ---- norms ---- */

static const char *onnx_op(const Graph *g, Value v) {
    const char *op = g->locs[graph_node(g, v)->loc].op;
    return op ? op : "";
}

static bool are_from(const int64_t *axes, uint32_t n, uint32_t first, uint32_t rank) {
    for (uint32_t i = 0; i < n; i++)
        if (axes[i] != first + i) return false;
    return first + n == rank;
}

/* [N,C,..] seen as [N,G,..] with G groups of whole channels. */
static bool is_grouped(const Graph *g, Value x) {
    if (graph_op(g, x) != OP_reshape) return false;
    const Type *t = graph_type_at(g, x), *from = graph_type_at(g, graph_operand(g, x, 0));
    return from->rank >= 3 && t->rank >= 3 && from->dims[0] == t->dims[0] &&
           t->dims[1] < from->dims[1] && from->dims[1] % t->dims[1] == 0;
}

static CensusId norm_kind(Taking *t, Value v) {
    const Graph *g = t->g;
    Value x = graph_operand(g, v, 0);
    uint32_t n, rank = graph_type_at(g, x)->rank;
    const int64_t *axes = attr_list(g, v, A_AXES, &n);
    bool is_layer = !strcmp(onnx_op(g, v), "LayerNormalization");
    if (!strcmp(onnx_op(g, v),
                "BatchNormalization")) /* of one sample, it has the axes of a plane */
        return CENSUS_BATCH_NORM;
    if (!is_layer && n && axes[0] == 0 && n < rank) return CENSUS_BATCH_NORM;
    if (!is_layer && are_from(axes, n, 2, rank) && is_grouped(g, x)) return CENSUS_GROUP_NORM;
    if (!is_layer && are_from(axes, n, 2, rank) &&
        (rank >= 4 || !strcmp(onnx_op(g, v), "InstanceNormalization")))
        return CENSUS_INSTANCE_NORM;
    if (rank >= 4 && n + 2 == rank && axes[0] == 1 && are_from(axes, n, 1, rank - 1))
        return CENSUS_INSTANCE_NORM; /* channels last */
    return CENSUS_LAYER_NORM;
}

static void note_axes(Taking *t, Value v, const char *macro) {
    uint32_t n, rank = graph_type_at(t->g, v)->rank;
    const int64_t *axes = attr_list(t->g, v, A_AXES, &n);
    if (n && !are_from(axes, n, rank - n, rank))
        match_note(t->ctx, macro, graph_node(t->g, v)->loc,
                   "found, but axis %lld is no trailing one: its rows do not lie together",
                   (long long)axes[0]);
}

static void take_norm(Taking *t, Value v) {
    CensusId kind = graph_op(t->g, v) == OP_rms_norm ? CENSUS_RMS_NORM : norm_kind(t, v);
    count(t, kind);
    if (kind == CENSUS_RMS_NORM || kind == CENSUS_LAYER_NORM) note_axes(t, v, census_name[kind]);
}

/* Batch norm by running statistics: its mean and variance are weights. */
static bool is_inference_norm(const Taking *t, Value v) {
    static const char *const spellings[] = {"(mul (sub a m) (rsqrt (add v e)))",
                                            "(mul (sub a m) (recip (sqrt (add v e))))",
                                            "(div (sub a m) (sqrt (add v e)))"};
    for (uint32_t s = 0; s < sizeof spellings / sizeof *spellings; s++) {
        RuleBind binds[8];
        uint32_t n = 0;
        if (!rule_match(t->g, spellings[s], v, binds, &n, 8)) continue;
        bool all = true;
        for (uint32_t i = 0; i < n; i++)
            if (binds[i].name[0] == 'm' || binds[i].name[0] == 'v')
                all &= graph_op(t->g, through_views(t->g, binds[i].value)) == OP_state;
        if (all) return true;
    }
    return false;
}

/* ---- activations ---- */

static bool is_quick_gelu(const Graph *g, Value v) {
    RuleBind binds[8];
    uint32_t n = 0;
    return graph_op(g, v) == OP_mul &&
           rule_match(g, "(mul a (sigmoid (mul a 1.702)))", v, binds, &n, 8);
}

/* The kind of gated unit that act(gate) * up is, and the activation in it; N_CENSUS where v is
 * none. */
static CensusId glu_kind(const Taking *t, Value v, Value *act) {
    const Graph *g = t->g;
    if (graph_op(g, v) != OP_mul) return N_CENSUS;
    for (uint32_t i = 0; i < 2; i++) {
        Value a = through_views(g, graph_operand(g, v, i)), up = graph_operand(g, v, 1 - i);
        OpCode op = graph_op(g, a);
        bool is_gelu = op == OP_gelu || op == OP_gelu_tanh || is_quick_gelu(g, a);
        if ((!is_gelu && op != OP_silu) || !linear_behind(t, up) ||
            !linear_behind(t, graph_operand(g, a, 0)))
            continue;
        *act = a;
        return is_gelu ? CENSUS_GEGLU : CENSUS_SWIGLU;
    }
    return N_CENSUS;
}

static void find_glus(Taking *t) {
    Value act;
    for (Value v = 1; v < t->g->n_nodes; v++) {
        CensusId kind = t->live[v] ? glu_kind(t, v, &act) : N_CENSUS;
        if (kind == N_CENSUS) continue;
        count(t, kind);
        t->in_glu[act] = 1;
    }
}

/* ---- attention ---- */

/* Is the value rotated, on the way through views and scales? */
static bool is_rotated(const Taking *t, Value v) {
    double x;
    for (;;) {
        v = through_views(t->g, v);
        OpCode op = graph_op(t->g, v);
        if (op == OP_rope) return true;
        if (op != OP_mul && op != OP_div) return false;
        if (const_splat(t->g, graph_operand(t->g, v, 1), &x))
            v = graph_operand(t->g, v, 0);
        else if (const_splat(t->g, graph_operand(t->g, v, 0), &x))
            v = graph_operand(t->g, v, 1);
        else
            return false;
    }
}

static void add_scores(Taking *t, Scores s) {
    for (uint32_t i = 0; i < t->n_scores; i++)
        if (!memcmp(&t->scores[i], &s, sizeof s)) return;
    if (t->n_scores < MAX_SCORES) t->scores[t->n_scores++] = s;
}

static void take_attention(Taking *t, Value v) {
    Value q = graph_operand(t->g, v, ATTENTION_Q), k = graph_operand(t->g, v, ATTENTION_K);
    const Type *qt = graph_type_at(t->g, q), *kt = graph_type_at(t->g, k);
    count(t, CENSUS_ATTENTION);
    if (is_rotated(t, q) && is_rotated(t, k)) count(t, CENSUS_ROTARY);
    add_scores(t, (Scores){qt->dims[0], qt->dims[1], qt->dims[2], kt->dims[2]});
}

static bool is_product(const Taking *t, Value v) {
    return graph_op(t->g, v) == OP_dot && t->fed[graph_operand(t->g, v, 0)] &&
           t->fed[graph_operand(t->g, v, 1)];
}

/* The product that a softmax is taken of, behind views, scales, masks and guards; 0: none. */
static Value product_behind(const Taking *t, Value v) {
    for (uint32_t steps = 0; steps < 32; steps++) {
        v = through_views(t->g, v);
        if (is_product(t, v)) return v;
        if (op_info[graph_op(t->g, v)].lower != LOWER_MAP) return 0;
        Value next = 0;
        for (uint32_t i = 0; i < graph_node(t->g, v)->n_operands && !next; i++) {
            Value o = graph_operand(t->g, v, i);
            const Type *ot = graph_type_at(t->g, o);
            if (t->learnt[o] && dtype_info[ot->dtype].cls == CLASS_FLT && t->fed[o]) next = o;
        }
        if (!next) return 0;
        v = next;
    }
    return 0;
}

/* Did the matcher say why not, of something in the same module? */
static bool is_noted(const Taking *t, LocId at) {
    const Census *c = &t->ctx->census;
    for (uint32_t i = 0; i < c->n_notes; i++) {
        const char *scope = t->g->locs[c->notes[i].at].scope, *here = t->g->locs[at].scope;
        bool is_here = c->notes[i].at == at || (scope && here && *here && !strcmp(scope, here));
        if (is_here && !strcmp(c->notes[i].macro, "attention")) return true;
    }
    return false;
}

static void take_softmax(Taking *t, Value v) {
    Value p = product_behind(t, graph_operand(t->g, v, 0));
    LocId at = graph_node(t->g, v)->loc;
    count(t, CENSUS_SOFTMAX);
    if (!p) return;
    const Type *pt = graph_type_at(t->g, p);
    Scores s = {1, 1, pt->dims[pt->rank - 2], pt->dims[pt->rank - 1]};
    if (pt->rank > 2) s.heads = pt->dims[pt->rank - 3];
    if (pt->rank > 3) s.samples = pt->dims[pt->rank - 4];
    add_scores(t, s);
    if (!is_noted(t, at))
        match_note(t->ctx, "attention", at, "a softmax over a product that is no attention");
}

/* Has the type the extents of the scores, or of what broadcasts to them over samples and heads? */
static bool is_score_type(const Scores *s, const Type *t) {
    int64_t outer = 1, inner = 1;
    if (t->rank < 2 || s->rows == 1 || s->columns == 1) return false;
    if (t->dims[t->rank - 2] != s->rows || t->dims[t->rank - 1] != s->columns) return false;
    if (t->rank > 2) inner = t->dims[t->rank - 3];
    for (uint32_t i = 0; i + 3 < t->rank; i++) outer *= t->dims[i];
    return (inner == 1 || inner == s->heads || (t->rank == 3 && inner == s->heads * s->samples)) &&
           (outer == 1 || outer == s->samples || outer == s->samples * s->heads);
}

/* The row of a value as large as scores that some kernel may store; N_CENSUS: none. What is drawn
 * alone is dropout. */
static CensusId score_kind(const Taking *t, Value v) {
    OpCode op = graph_op(t->g, v);
    LowerClass lower = op_info[op].lower;
    double x;
    if (op == OP_attention || lower == LOWER_VIEW || is_linear(t, v)) return N_CENSUS;
    if (lower == LOWER_LEAF && (op != OP_const || const_splat(t->g, v, &x))) return N_CENSUS;
    for (uint32_t i = 0; i < t->n_scores; i++) {
        if (!is_score_type(&t->scores[i], graph_type_at(t->g, v))) continue;
        if (t->learnt[v] || t->fed[v] & FED_INPUT) return CENSUS_SCORES;
        return t->fed[v] ? N_CENSUS : CENSUS_POSITIONS;
    }
    return N_CENSUS;
}

/* ---- losses ---- */

static const char *why_no_linear(const Taking *t, Value logits) {
    Value v = through_views(t->g, logits);
    return arena_printf(t->ctx->arena, "between the linear layer and the loss stands %s",
                        op_info[graph_op(t->g, v)].name);
}

static void take_xent(Taking *t, Value v) {
    Value logits = graph_operand(t->g, v, 0), linear = linear_behind(t, logits);
    count(t, linear ? CENSUS_LINEAR_XENT : CENSUS_XENT);
    if (!linear)
        match_note(t->ctx, "linear+cross_entropy", graph_node(t->g, v)->loc, "%s",
                   why_no_linear(t, logits));
}

/* ---- tables ---- */

static bool is_embedding(const Taking *t, Value v) {
    const Graph *g = t->g;
    Value table = graph_operand(g, v, 0);
    if (!is_weight(t, table) || graph_op(g, through_views(g, table)) != OP_state) return false;
    switch ((int)graph_op(g, v)) {
    case OP_gather:
        return attr_i(g, v, A_AXIS, 0) == 0;
    case OP_gather_nd:
        return attr_i(g, v, A_BATCH, 0) == 0;
    case OP_slice: /* rows at known places */
        return !strcmp(onnx_op(g, v), "Gather") || !strcmp(onnx_op(g, v), "GatherND");
    }
    return false;
}

/* ---- layout ---- */

static bool keeps_layout(OpCode op) {
    LowerClass lower = op_info[op].lower;
    return lower == LOWER_MAP || op == OP_transpose || op == OP_reshape || op == OP_expand ||
           op == OP_pad || op == OP_concat || op == OP_slice || op == OP_layer_norm ||
           op == OP_silu || op == OP_gelu || op == OP_gelu_tanh || op == OP_window || op == OP_rmax;
}

/* after_conv: all that the value reads of what is fed comes out of convolutions; before_conv: a
 * convolution reads it, through such values alone. */
static void find_conv_regions(Taking *t) {
    const Graph *g = t->g;
    for (Value v = 1; v < g->n_nodes; v++) {
        bool all = true, any = false;
        for (uint32_t i = 0; i < graph_node(g, v)->n_operands; i++) {
            Value o = graph_operand(g, v, i);
            if (!t->fed[o]) continue;
            all &= t->after_conv[o];
            any = true;
        }
        t->after_conv[v] =
            (graph_op(g, v) == OP_conv) || (all && any && keeps_layout(graph_op(g, v)));
    }
    for (Value v = g->n_nodes; v-- > 1;) {
        if (!t->live[v] || !(graph_op(g, v) == OP_conv || (t->before_conv[v] && t->after_conv[v])))
            continue;
        for (uint32_t i = 0; i < graph_node(g, v)->n_operands; i++)
            t->before_conv[graph_operand(g, v, i)] = 1;
    }
}

/* ---- the walk ---- */

static bool is_drawn_mask(const Graph *g, Value v) {
    OpCode op = graph_op(g, v);
    if (op != OP_lt && op != OP_le && op != OP_gt && op != OP_ge) return false;
    return graph_op(g, through_views(g, graph_operand(g, v, 0))) == OP_random ||
           graph_op(g, through_views(g, graph_operand(g, v, 1))) == OP_random;
}

static void take_node(Taking *t, Value v) {
    const Graph *g = t->g;
    OpCode op = graph_op(g, v);
    if (is_linear(t, v)) count(t, CENSUS_LINEAR);
    if (is_product(t, v)) count(t, CENSUS_PRODUCT);
    if (is_drawn_mask(g, v)) count(t, CENSUS_DROPOUT);
    if ((op == OP_mul || op == OP_div) && is_inference_norm(t, v)) count(t, CENSUS_BATCH_NORM);
    if (is_quick_gelu(g, v) && !t->in_glu[v]) count(t, CENSUS_GELU_QUICK);
    switch ((int)op) {
    case OP_attention:
        take_attention(t, v);
        break;
    case OP_rms_norm:
    case OP_layer_norm:
        take_norm(t, v);
        break;
    case OP_gelu:
    case OP_gelu_tanh:
    case OP_silu:
        if (!t->in_glu[v])
            count(t, op == OP_gelu        ? CENSUS_GELU
                     : op == OP_gelu_tanh ? CENSUS_GELU_TANH
                                          : CENSUS_SILU);
        break;
    case OP_softmax:
        take_softmax(t, v);
        break;
    case OP_xent:
        take_xent(t, v);
        break;
    case OP_conv:
    case OP_conv_dx:
        if (!is_linear(t, v)) count(t, CENSUS_CONV);
        break;
    case OP_gather:
    case OP_gather_nd:
    case OP_slice:
        if (is_embedding(t, v)) count(t, CENSUS_EMBEDDING);
        break;
    case OP_transpose:
        if (t->fed[v]) count(t, CENSUS_TRANSPOSE);
        if (t->after_conv[v] && t->before_conv[v]) count(t, CENSUS_LAYOUT);
        break;
    }
}

bool pass_census(PassContext *ctx) {
    const Graph *g = ctx->g;
    uint32_t n = g->n_nodes;
    EntryKind entry = g->entries[ENTRY_MICRO].n ? ENTRY_MICRO : ENTRY_EVAL;
    Taking t = {.ctx = ctx,
                .g = g,
                .live = graph_reachable(g, ctx->arena, entry),
                .fed = arena_alloc(ctx->arena, n),
                .learnt = arena_alloc(ctx->arena, n),
                .after_conv = arena_alloc(ctx->arena, n),
                .before_conv = arena_alloc(ctx->arena, n),
                .in_glu = arena_alloc(ctx->arena, n)};
    memset(ctx->census.count, 0, sizeof ctx->census.count);
    find_dependences(&t);
    find_conv_regions(&t);
    find_glus(&t);
    for (Value v = 1; v < n; v++)
        if (t.live[v]) take_node(&t, v);
    for (Value v = 1; v < n; v++) {
        CensusId kind = t.live[v] ? score_kind(&t, v) : N_CENSUS;
        if (kind != N_CENSUS) count(&t, kind);
    }
    return true;
}
