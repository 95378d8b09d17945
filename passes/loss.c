/* loss.c - from the model's outputs to loss_sum and loss_count.
 *
 * In: the model's outputs as output roots of micro and eval. Out: both entries give `loss_sum` (the
 * sum of the losses that count) and `loss_count` (how many count), f32 scalars; apply gives
 * `static_count`, the count of a whole optimizer step when nothing is left out; micro loses the
 * model's outputs, eval keeps them where asked and gives `accuracy_sum` for losses over classes.
 * The mean is taken once per step in apply, so any split into micro-batches gives the same mean.
 *
 * Class losses count labels other than `ignore_index`; losses against a tensor count samples and
 * mean over the elements of one; the model's own scalar counts micro-batches. Labels arrive as the
 * input `labels`, which the model may have already. Runs first, where the frontend's table of
 * tensors still names the nodes of this graph. */
#include "pass.h"
#include <string.h>

typedef enum Takes { TAKES_LOGITS, TAKES_LOGPROBS, TAKES_PROBS, TAKES_ANY } Takes;
typedef enum Labels { LABELS_NONE, LABELS_CLASSES, LABELS_SAME } Labels;
typedef struct LossRow {
    const char *name;
    Takes takes;
    Labels labels;
    const char *rule;
} LossRow;
static const LossRow rows[N_LOSSES] = {
    [LOSS_OUTPUT] = {"output", TAKES_ANY, LABELS_NONE, ""},
#define LOSS(id, text, takes, labels, rule)                                                        \
    [LOSS_##id] = {text, TAKES_##takes, LABELS_##labels, rule},
#include "loss.def"
#undef LOSS
};

typedef struct Target {
    const char *name;
    Value micro, eval;
} Target;
typedef struct Terms {
    Value sum, count;
    double static_count;
    Value hits;
} Terms; /* hits: labels that the largest logit names; 0: no classes */
typedef struct LossPass {
    PassContext *ctx;
    Graph *g;
    LossKind kind;
    Target target;
    int64_t class_axis;
} LossPass;

/* ---- which loss, which tensor ---- */

static bool find_tensor(const PassContext *ctx, const char *name, Target *t) {
    const PassOptions *o = ctx->options;
    for (uint32_t i = 0; i < o->n_tensors; i++) {
        if (strcmp(o->tensor_names[i], name)) continue;
        *t = (Target){name, o->tensor_values[i], o->eval_values[i]};
        return t->micro && t->eval;
    }
    const Root *m = graph_root(ctx->g, ENTRY_MICRO, false, name),
               *e = graph_root(ctx->g, ENTRY_EVAL, false, name);
    if (!m || !e) return false;
    *t = (Target){name, m->value, e->value};
    return true;
}

/* The i-th output of the model, by the frontend's list or by the roots of micro; NULL past the end.
 */
static const char *output_at(const PassContext *ctx, uint32_t i) {
    if (ctx->options->n_outputs)
        return i < ctx->options->n_outputs ? ctx->options->output_names[i] : NULL;
    const Entry *e = &ctx->g->entries[ENTRY_MICRO];
    for (uint32_t k = 0; k < e->n; k++)
        if (!e->roots[k].is_update && i-- == 0) return e->roots[k].name;
    return NULL;
}

static const char *outputs_text(const PassContext *ctx) {
    const char *s = "", *name;
    Target t;
    for (uint32_t i = 0; (name = output_at(ctx, i)); i++)
        if (find_tensor(ctx, name, &t))
            s = arena_printf(ctx->arena, "%s%s%s %s", s, *s ? ", " : "", name,
                             type_text(ctx->g, graph_type_at(ctx->g, t.micro)));
    return s;
}

static const char *kinds_text(const PassContext *ctx) {
    const char *s = "output";
    for (int k = LOSS_OUTPUT + 1; k < N_LOSSES; k++)
        s = arena_printf(ctx->arena, "%s, %s", s, rows[k].name);
    return s;
}

static bool is_float(const Type *t) { return dtype_info[t->dtype].cls == CLASS_FLT; }

static bool suits(LossKind kind, const Type *t) {
    if (!is_float(t)) return false;
    if (kind == LOSS_OUTPUT) return type_elems(t) == 1;
    if (kind == LOSS_CAUSAL_LM) return t->rank == 3;
    return rows[kind].labels == LABELS_SAME || t->rank >= 2;
}

/* The one output that suits the loss; of several, the one called logits. */
static bool pick_output(const PassContext *ctx, LossKind kind, Target *found) {
    uint32_t n = 0;
    const char *name;
    bool logits = false;
    for (uint32_t i = 0; (name = output_at(ctx, i)); i++) {
        Target t;
        if (!find_tensor(ctx, name, &t) || !suits(kind, graph_type_at(ctx->g, t.micro))) continue;
        if (logits) continue;
        logits = !strcmp(name, "logits");
        *found = t;
        n++;
    }
    return n == 1 || logits;
}

bool loss_kind(PassContext *ctx, LossKind *kind) {
    const char *text = ctx->options->loss, *tensor = text ? strchr(text, ':') : NULL;
    size_t n = !text ? 0 : tensor ? (size_t)(tensor - text) : strlen(text);
    *kind = text ? LOSS_NONE : LOSS_OUTPUT;
    for (int k = LOSS_OUTPUT; text && k < N_LOSSES; k++)
        if (strlen(rows[k].name) == n && !memcmp(rows[k].name, text, n)) *kind = (LossKind)k;
    if (*kind) return true;
    const char *names[N_LOSSES];
    for (int k = LOSS_OUTPUT; k < N_LOSSES; k++) names[k - LOSS_OUTPUT] = rows[k].name;
    const char *given = arena_printf(ctx->arena, "%.*s", (int)n, text);
    diag_add(ctx->g, E_LOSS_UNKNOWN, 0, text);
    diag_hint(ctx->g, "%sone of %s", did_you_mean(ctx->arena, given, names, N_LOSSES - LOSS_OUTPUT),
              kinds_text(ctx));
    return false;
}

static void report_no_tensor(PassContext *ctx, const char *tensor) {
    const PassOptions *o = ctx->options;
    diag_add(ctx->g, E_LOSS_TENSOR, 0, tensor);
    diag_hint(ctx->g, "%soutputs: %s",
              did_you_mean(ctx->arena, tensor, o->tensor_names, o->n_tensors), outputs_text(ctx));
}

static bool choose(LossPass *p) {
    PassContext *ctx = p->ctx;
    const char *text = ctx->options->loss, *tensor = text ? strchr(text, ':') : NULL;
    if (!loss_kind(ctx, &p->kind)) return false;
    if (tensor && !find_tensor(ctx, tensor + 1, &p->target)) {
        report_no_tensor(ctx, tensor + 1);
        return false;
    }
    if (tensor || pick_output(ctx, p->kind, &p->target)) return true;
    const char *why =
        text ? arena_printf(ctx->arena, "%s needs a tensor: give --loss %s:TENSOR; outputs: %s",
                            text, text, outputs_text(ctx))
             : arena_printf(ctx->arena,
                            "the model has no single scalar float output; give --loss "
                            "KIND[:TENSOR], KIND one of %s; outputs: %s",
                            kinds_text(ctx), outputs_text(ctx));
    diag_add(p->g, E_LOSS_CHOICE, 0, why);
    return false;
}

/* The softmax or sigmoid that v is, through views that move nothing between classes; 0 where it is
 * neither. */
static Value probability(const Graph *g, Value v) {
    for (OpCode op = graph_op(g, v);; v = graph_operand(g, v, 0), op = graph_op(g, v)) {
        if (op == OP_softmax || op == OP_sigmoid) return v;
        if (op != OP_reshape && op != OP_transpose && op != OP_cast) return 0;
    }
}

static const char *name_of(const PassContext *ctx, Value v) {
    for (uint32_t i = 0; i < ctx->options->n_tensors; i++)
        if (ctx->options->tensor_values[i] == v) return ctx->options->tensor_names[i];
    return NULL;
}

static bool suitable(LossPass *p) {
    Graph *g = p->g;
    Type t = *graph_type_at(g, p->target.micro);
    LocId loc = graph_node(g, p->target.micro)->loc;
    if (!suits(p->kind, &t)) {
        diag_add(g, E_LOSS_SHAPE, loc, rows[p->kind].name,
                 arena_printf(p->ctx->arena, "%s, %s", p->target.name, type_text(p->g, &t)));
        return false;
    }
    Value prob = rows[p->kind].takes == TAKES_LOGITS ? probability(g, p->target.micro) : 0;
    if (!prob) return true;
    const char *before = name_of(p->ctx, graph_operand(g, prob, 0));
    diag_add(g, E_LOSS_PROBS, loc, p->target.name, op_info[graph_op(g, prob)].name,
             rows[p->kind].name);
    if (before) diag_hint(g, "take the tensor before it: --loss %s:%s", rows[p->kind].name, before);
    return false;
}

/* ---- labels ---- */

/* The axis that counts samples: the first of the micro-batch's extent; axis 0 where the batch is
 * unknown; else -1. */
static int batch_axis(const PassContext *ctx, const Type *t) {
    int64_t micro = ctx->options->micro_batch;
    if (micro <= 0) return t->rank ? 0 : -1;
    for (int i = 0; i < t->rank; i++)
        if (t->dims[i] == micro) return i;
    return -1;
}

static Type without_axis(const Type *t, int64_t axis, DType dtype) {
    Type r = {.dtype = (uint8_t)dtype};
    for (int64_t i = 0; i < t->rank; i++)
        if (i != axis) r.dims[r.rank++] = t->dims[i];
    return r;
}

/* [batch * s, ..] is fed as [batch, s, ..], the shape that the user's samples have. */
static Type split_batch(const PassContext *ctx, Type t) {
    int64_t micro = ctx->options->micro_batch;
    if (micro <= 0 || !t.rank || t.rank == MAX_RANK || batch_axis(ctx, &t) >= 0 ||
        t.dims[0] % micro)
        return t;
    memmove(&t.dims[1], &t.dims[0], sizeof t.dims[0] * t.rank++);
    t.dims[1] /= micro;
    t.dims[0] = micro;
    return t;
}

static int64_t default_class_axis(LossKind kind, const Type *t) {
    return kind != LOSS_CAUSAL_LM && t->rank >= 4 ? 1 : t->rank - 1;
}

/* Chooses the class axis and makes sure that an input `labels` of a fitting type exists. */
static bool class_labels(LossPass *p) {
    Graph *g = p->g;
    Type t = *graph_type_at(g, p->target.micro);
    const Input *in = graph_input(g, "labels");
    p->class_axis = default_class_axis(p->kind, &t);
    if (!in) {
        Type lt = split_batch(p->ctx, without_axis(&t, p->class_axis, DT_I64));
        graph_add_input(g, (Input){"labels", graph_type(g, lt), batch_axis(p->ctx, &lt),
                                   t.dims[p->class_axis], 0});
        return true;
    }
    Type lt = g->types[in->type], one = without_axis(&t, 1, DT_I64),
         last = without_axis(&t, t.rank - 1, DT_I64);
    bool integer = dtype_info[lt.dtype].cls == CLASS_INT;
    if (integer && p->kind != LOSS_CAUSAL_LM && dims_equal(&lt, &one))
        p->class_axis = 1;
    else if (integer && (dims_equal(&lt, &last) || type_elems(&lt) == type_elems(&last)))
        p->class_axis = t.rank - 1;
    else {
        diag_add(g, E_LOSS_SHAPE, 0, rows[p->kind].name,
                 arena_printf(p->ctx->arena, "%s, %s, against labels %s", p->target.name,
                              type_text(p->g, &t), type_text(p->g, &lt)));
        return false;
    }
    Input *mutable_in = graph_input(g, "labels");
    if (!mutable_in->index_limit) mutable_in->index_limit = t.dims[p->class_axis];
    return true;
}

static bool same_labels(LossPass *p) {
    Graph *g = p->g;
    Type t = *graph_type_at(g, p->target.micro);
    const Input *in = graph_input(g, "labels");
    if (in && dims_equal(&g->types[in->type], &t)) return true;
    if (in) {
        diag_add(g, E_LOSS_SHAPE, 0, rows[p->kind].name,
                 arena_printf(p->ctx->arena, "%s, %s, against labels %s", p->target.name,
                              type_text(p->g, &t), type_text(p->g, &g->types[in->type])));
        return false;
    }
    t.dtype = DT_F32;
    Type lt = split_batch(p->ctx, t);
    graph_add_input(g, (Input){"labels", graph_type(g, lt), batch_axis(p->ctx, &lt), 0, 0});
    return true;
}

/* ---- the terms ---- */

static Value total(Graph *g, Value v) {
    int64_t axes[MAX_RANK];
    uint32_t rank = graph_type_at(g, v)->rank;
    for (uint32_t i = 0; i < rank; i++) axes[i] = i;
    return build_reshape(g, rank ? build_reduce(g, OP_sum, v, axes, rank) : v, 0, NULL);
}

static Value f32_splat(Graph *g, double x) {
    return build_splat(g, graph_type_of(g, DT_F32, 0, NULL), x);
}

static Value splat_like(Graph *g, Value v, double x) {
    return build_splat(g, graph_node(g, v)->type, x);
}

/* Labels of position t become those of t + 1; the last position has none. */
static Value shift(const LossPass *p, Value labels) {
    Type t = *graph_type_at(p->g, labels);
    int64_t low[MAX_RANK] = {0}, high[MAX_RANK] = {0}, interior[MAX_RANK] = {0};
    low[t.rank - 1] = -1;
    high[t.rank - 1] = 1;
    return build_pad(p->g, labels, low, high, interior, (double)p->ctx->options->ignore_index);
}

/* Negative log-likelihood of the labels that count under log-probabilities; 0 elsewhere. */
static Value nll(const LossPass *p, Value logp, Value labels, Value counts) {
    Graph *g = p->g;
    Value zero = splat_like(g, labels, 0);
    Value index = build_map(g, OP_where, (Value[]){counts, labels, zero}, 3);
    AttrId axis = graph_attr(g, (AttrField[]){attr_int(A_AXIS, p->class_axis)}, 1);
    Value picked =
        build_unary(g, OP_neg, graph_emit(g, OP_take, (Value[]){logp, index}, 2, axis, 0));
    return build_map(g, OP_where, (Value[]){counts, picked, splat_like(g, picked, 0)}, 3);
}

/* How many labels are those that the largest logit names. */
static Value hits(const LossPass *p, Value logits, Value labels, Value counts) {
    Graph *g = p->g;
    Value best = graph_emit(g, OP_argmax, (Value[]){logits}, 1,
                            graph_attr(g, (AttrField[]){attr_int(A_AXIS, p->class_axis)}, 1), 0);
    Value hit = build_cast(g, build_binary(g, OP_eq, best, labels), DT_F32);
    return total(g, build_map(g, OP_where, (Value[]){counts, hit, splat_like(g, hit, 0)}, 3));
}

static Terms class_terms(const LossPass *p, Value logits) {
    Graph *g = p->g;
    int64_t ignore = p->ctx->options->ignore_index;
    Type t = *graph_type_at(g, logits);
    Value labels = build_cast(g, build_input(g, "labels"), DT_I64);
    Type lt = without_axis(&t, p->class_axis, DT_I64);
    labels = build_reshape(g, labels, lt.rank, lt.dims);
    if (p->kind == LOSS_CAUSAL_LM) labels = shift(p, labels);
    t.dims[p->class_axis] = 1;
    labels = build_reshape(g, labels, t.rank, t.dims);
    Value counts = build_binary(g, OP_ne, labels, splat_like(g, labels, (double)ignore));
    Value losses;
    if (p->kind == LOSS_NLL)
        losses = nll(p, logits, labels, counts);
    else {
        AttrField fields[] = {attr_int(A_AXIS, p->class_axis), attr_int(A_IGNORE, ignore)};
        losses = graph_emit(g, OP_xent, (Value[]){logits, labels}, 2, graph_attr(g, fields, 2), 0);
    }
    return (Terms){total(g, losses), total(g, build_cast(g, counts, DT_F32)),
                   (double)type_elems(&t), hits(p, logits, labels, counts)};
}

static Terms same_terms(const LossPass *p, Value v) {
    Graph *g = p->g;
    Type t = *graph_type_at(g, v);
    Value labels = build_cast(g, build_input(g, "labels"), DT_F32);
    labels = build_reshape(g, labels, t.rank, t.dims);
    Value losses = rule_build(g, rows[p->kind].rule, (RuleBind[]){{"a", v}, {"b", labels}}, 2, 0);
    Type shape = split_batch(p->ctx, t); /* where samples have an axis of their own */
    int axis = batch_axis(p->ctx, &shape);
    Value count = f32_splat(g, 1);
    int64_t samples = 1;
    if (axis >= 0) {
        Value counted = build_scalar(g, "samples", DT_I64);
        Type line = {.dtype = DT_I64, .rank = shape.rank};
        for (uint32_t i = 0; i < shape.rank; i++) line.dims[i] = (int)i == axis ? shape.dims[i] : 1;
        Value row = build_iota(g, graph_type(g, line), axis);
        Value mask = build_binary(g, OP_lt, row, build_expand(g, counted, line.rank, line.dims));
        losses = build_reshape(g, losses, shape.rank, shape.dims);
        losses = build_map(g, OP_where, (Value[]){mask, losses, splat_like(g, losses, 0)}, 3);
        count = build_cast(g, counted, DT_F32);
        samples = shape.dims[axis];
    }
    Value elems = f32_splat(g, (double)(type_elems(&t) / samples)); /* of one sample */
    return (Terms){build_binary(g, OP_div, total(g, losses), elems), count, (double)samples, 0};
}

static Terms terms(const LossPass *p, Value v) {
    Graph *g = p->g;
    g->loc = graph_loc_derived(g, LOC_LOSS, graph_node(g, v)->loc);
    v = build_cast(g, v, DT_F32);
    switch (rows[p->kind].labels) {
    case LABELS_NONE:
        return (Terms){build_reshape(g, v, 0, NULL), f32_splat(g, 1), 1, 0};
    case LABELS_CLASSES:
        return class_terms(p, v);
    case LABELS_SAME:
        return same_terms(p, v);
    }
    return (Terms){0};
}

static void drop_outputs(Entry *e) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n; i++)
        if (e->roots[i].is_update) e->roots[n++] = e->roots[i];
    e->n = n;
}

static void add_terms(Graph *g, EntryKind e, Terms t) {
    graph_add_root(g, e, false, "loss_sum", t.sum);
    graph_add_root(g, e, false, "loss_count", t.count);
}

bool pass_loss(PassContext *ctx) {
    Graph *g = ctx->g;
    LossPass p = {.ctx = ctx, .g = g};
    if (!choose(&p) || !suitable(&p)) return false;
    if (rows[p.kind].labels == LABELS_CLASSES && !class_labels(&p)) return false;
    if (rows[p.kind].labels == LABELS_SAME && !same_labels(&p)) return false;
    Terms micro = terms(&p, p.target.micro), eval = terms(&p, p.target.eval);
    if (diag_has_errors(g)) return false;
    drop_outputs(&g->entries[ENTRY_MICRO]);
    if (!ctx->options->keep_outputs) drop_outputs(&g->entries[ENTRY_EVAL]);
    add_terms(g, ENTRY_MICRO, micro);
    add_terms(g, ENTRY_EVAL, eval);
    if (eval.hits) graph_add_root(g, ENTRY_EVAL, false, "accuracy_sum", eval.hits);
    int64_t batch = ctx->options->batch, n = ctx->options->micro_batch;
    double steps = batch > 0 && n > 0 ? (double)(batch / n) : 1;
    graph_add_root(g, ENTRY_APPLY, false, "static_count", f32_splat(g, micro.static_count * steps));
    ctx->options->loss_is_output = p.kind == LOSS_OUTPUT;
    g->loc = 0;
    return true;
}
