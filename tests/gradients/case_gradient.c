/* case_gradient.c - a case of ONNX's node tests as a function of its float inputs, differentiated
 * and compared with differences; see case_gradient.h. */
#include "case_gradient.h"
#include "differences.h"
#include "passes.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_COORDINATES = 8, FEW = 2, MANY_ELEMENTS = 20000 };

/* ---- the function ---- */

static bool is_float(const Graph *g, Value v) {
    return dtype_info[graph_type_at(g, v)->dtype].cls == CLASS_FLT;
}

/* Loops have bodies of their types: their graphs stay in them. The interpreter computes all in
 * double. */
typedef struct Rewrite {
    Arena *arena;
    bool keeps_types;
} Rewrite;

static Type in_double(const Rewrite *r, Type t) {
    if (!r->keeps_types && dtype_info[t.dtype].cls == CLASS_FLT) t.dtype = DT_F64;
    return t;
}

static bool has_loop(const Graph *g) {
    for (Value v = 1; v < g->n_nodes; v++)
        if (graph_op(g, v) == OP_scan) return true;
    return false;
}

static Value as_state(const Graph *from, Value v, Graph *to, Type t) {
    const char *name = attr_s(from, v, A_NAME);
    if (!graph_state(to, name))
        graph_add_state(to, (State){.name = graph_str(to, name),
                                    .type = graph_type(to, t),
                                    .cls = STATE_PARAM,
                                    .trains = true});
    return build_state(to, name);
}

/* The node in double; a float input is a parameter. */
static Value visit(void *rewrite, const Graph *from, Value v, Graph *to, const Value *map) {
    const Rewrite *r = rewrite;
    const Node *n = graph_node(from, v);
    const Type t = in_double(r, from->types[n->type]);
    Tensor folded;
    if (!is_float(from, v)) return 0;
    if (n->op == OP_input) return as_state(from, v, to, t);
    if (r->keeps_types) return 0;
    if (n->op == OP_const && interp_fold(from, v, r->arena, &folded, INT64_MAX))
        return build_const(to, graph_type(to, t), folded.u.f);
    Value *operands = arena_alloc(to->arena, (n->n_operands + 1u) * sizeof *operands);
    for (uint32_t i = 0; i < n->n_operands; i++) operands[i] = map[graph_operand(from, v, i)];
    if (n->op == OP_cast && is_float(to, operands[0])) return operands[0];
    to->loc = n->loc;
    AttrId attr = n->attr ? graph_attr(to, from->attrs[n->attr].fields, from->attrs[n->attr].n) : 0;
    return graph_emit(to, (OpCode)n->op, operands, n->n_operands, attr, graph_type(to, t));
}

static Value weighted_sum(Graph *g, Value y, uint64_t *seed, Arena *arena) {
    const Type t = *graph_type_at(g, y);
    const int64_t n = type_elems(&t);
    double *w = arena_alloc(arena, (size_t)(n + 1) * sizeof *w);
    int64_t axes[MAX_RANK];
    for (int64_t i = 0; i < n; i++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        w[i] = (double)(*seed >> 40) / (double)(1 << 24) + 0.25; /* a sum of all must count, too */
        if (*seed >> 63) w[i] = -w[i];
    }
    for (uint32_t i = 0; i < t.rank; i++) axes[i] = i;
    const Tensor weights = {.type = t, .u.f = w};
    void *bytes = arena_alloc(arena, type_bytes(&t) + 1);
    tensor_to_bytes(&weights, bytes);
    Value s = build_binary(g, OP_mul, y, build_const(g, graph_type(g, t), bytes));
    if (t.rank) s = build_reduce(g, OP_sum, s, axes, t.rank);
    return build_reshape(g, s, 0, NULL);
}

/* The case's outputs as one scalar, output root `loss` of micro and eval; 0: no output is a float.
 */
static Value add_loss(Graph *g, Entry outputs, const Value *map, Arena *arena) {
    uint64_t seed = 1;
    Value loss = 0;
    for (uint32_t i = 0; i < outputs.n; i++) {
        const Value y = map[outputs.roots[i].value];
        if (outputs.roots[i].is_update || !is_float(g, y) || !type_elems(graph_type_at(g, y)))
            continue;
        const Value s = weighted_sum(g, y, &seed, arena);
        loss = loss ? build_binary(g, OP_add, loss, s) : s;
    }
    for (int e = 0; loss && e < 2; e++)
        graph_add_root(g, e ? ENTRY_EVAL : ENTRY_MICRO, false, "loss", loss);
    return loss;
}

static Graph *function_graph(OnnxCase *c, Arena *arena) {
    Graph *from = c->model.graph;
    const Entry outputs = from->entries[c->entry];
    Graph *to = graph_copy_empty(from);
    Value *map = arena_alloc(arena, from->n_nodes * sizeof *map);
    Rewrite rewrite = {arena, has_loop(from)};
    for (uint32_t i = 0; i < to->n_states; i++) {
        const Type t = in_double(&rewrite, to->types[to->states[i].type]);
        to->states[i].type = graph_type(to, t);
        to->states[i].trains = dtype_info[t.dtype].cls == CLASS_FLT;
    }
    for (int e = 0; e < N_ENTRIES; e++)
        if (e != (int)c->entry) from->entries[e].n = 0;
    graph_rewrite(from, to, visit, &rewrite, map);
    for (int e = 0; e < N_ENTRIES; e++) to->entries[e].n = 0;
    if (add_loss(to, outputs, map, arena)) return to;
    graph_free(to);
    return NULL;
}

/* ---- one case ---- */

static const Tensor *input_of(void *user, const char *name) { return onnx_case_input(user, name); }

/* Some cases hold infinities, NaN, or bytes that nobody meant as numbers: a function has no slope
 * at 1e200. */
static Tensor moderate(Tensor t) {
    for (int64_t i = 0; dtype_info[t.type.dtype].cls == CLASS_FLT && i < type_elems(&t.type); i++)
        if (!(fabs(t.u.f[i]) <= 1e6)) t.u.f[i] = 0.5 + 0.01 * (double)i;
    return t;
}

static void read_values(OnnxCase *c, Function *f, const Graph *imported) {
    f->n_values = f->g->n_states;
    f->values = arena_alloc(f->arena, (f->n_values + 1) * sizeof *f->values);
    for (uint32_t i = 0; i < f->n_values; i++) {
        const State *s = &f->g->states[i];
        const Tensor *t = onnx_case_input(c, s->name);
        if (!t && s->cls == STATE_PARAM) t = onnx_case_state(c, imported, s->name);
        if (t)
            f->values[i] = moderate(*t), f->values[i].type.dtype = f->g->types[s->type].dtype;
        else { /* gradients and counters of the passes */
            const Type type = f->g->types[s->type];
            const size_t bytes = (size_t)(type_elems(&type) + 1) * sizeof(double);
            f->values[i] = (Tensor){.type = type, .u.p = arena_alloc(f->arena, bytes)};
        }
    }
}

static double size_of(const Tensor *t) {
    double most = 0;
    for (int64_t i = 0; i < type_elems(&t->type); i++)
        if (fabs(t->u.f[i]) > most) most = fabs(t->u.f[i]);
    return most;
}

/* Cases whose gradient is NaN, as PyTorch's is: a choice between two values passes zero to the one
 * that is not taken, and there zero meets an infinity or NaN (a softmax over a row that is masked
 * as a whole; the correction of Adam's first step, 0 / 0 where no step was made). */
static const char *const untaken[] = {
    "test_adam",
    "test_attention_23_boolmask_fullymasked_row_nan_robustness_expanded",
    "test_attention_23_fullymasked_qk_matmul_output_mode3_zero_expanded",
    "test_attention_24_fullymasked_qk_matmul_output_mode3_zero_expanded",
    "test_attention_24_qk_matmul_output_mode3_softmax_precision_expanded",
    "test_attention_4d_causal_nonpad_negative_offset_structural_empty_expanded",
    "test_attention_4d_causal_padded_kv_bf16_expanded",
    "test_attention_causal_boolmask_nan_robustness_expanded",
    "test_attention_local_window_gqa_rank4_mask_expanded"};

static bool is_untaken(const char *name, double gradient) {
    for (size_t i = 0; i < sizeof untaken / sizeof *untaken; i++)
        if (isnan(gradient) && !strncmp(name, untaken[i], strlen(untaken[i]))) return true;
    return false;
}

/* Ops that let no gradient through, by the diagnostic that says so. */
static const struct {
    const char *op, *why;
} without[] = {
    {"Bernoulli", "a draw"},           {"Greater", "a truth value (in the body of Bernoulli)"},
    {"Ceil", "constant in pieces"},    {"Floor", "constant in pieces"},
    {"Round", "constant in pieces"},   {"Sign", "constant in pieces"},
    {"Hardmax", "constant in pieces"}, {"OneHot", "of its indices"}};

static bool is_explained(const Graph *g) {
    const Diag *d = g->diags.n ? &g->diags.items[0] : NULL;
    if (!d) return false;
    if (d->code == E_NOTHING_TRAINS) return true; /* no output depends on a float input */
    for (size_t i = 0; d->code == E_NO_GRADIENT && i < sizeof without / sizeof *without; i++)
        if (strstr(d->text, arena_printf(g->arena, "op %s has", without[i].op))) return true;
    return false;
}

/* Coordinates of an input to look at: fewer where the graph is large. ONNX_CASES_ALL=1: all. */
static int64_t coordinates(const Graph *g) {
    int64_t elements = 0;
    for (Value v = 1; v < g->n_nodes; v++) elements += type_elems(graph_type_at(g, v));
    if (getenv("ONNX_CASES_ALL")) return INT64_MAX;
    return elements > MANY_ELEMENTS ? FEW : MOST_COORDINATES;
}

/* One input, or initializer. Where autodiff gave it no gradient, the slope must be none. */
typedef struct Check {
    OnnxCase *c;
    Function *f;
    GradientTally *tally;
    bool *checked;
} Check;

static Tensor gradient_of(Function *f, uint32_t s) {
    const State *state = &f->g->states[s];
    if (state->trains) return function_root(f, arena_printf(f->arena, "grad.%s", state->name));
    const Type t = f->values[s].type;
    return (Tensor){.type = t,
                    .u.p = arena_alloc(f->arena, (size_t)(type_elems(&t) + 1) * sizeof(double))};
}

static void report(const Check *k, const char *what, uint32_t s, int64_t i, double slope,
                   double gradient) {
    fprintf(stderr, "%s: %sd/d%s[%d] is %.12g by differences, %.12g by autodiff\n",
            k->c->listed->name, what, k->f->g->states[s].name, (int)i, slope, gradient);
}

/* Inputs that get no gradient though the result moves with them, as in PyTorch. */
static bool is_cut(const Check *k, const char *name) {
    return !strncmp(k->c->listed->name, "test_roialign", 13) && !strcmp(name, "rois");
}

static void mark_checked(const Check *k, const char *name) {
    for (uint32_t i = 0; k->checked && i < k->c->listed->n_op_inputs; i++)
        if (!strcmp(k->c->listed->op_inputs[i], name)) k->checked[i] = true;
}

static int check_state(const Check *k, uint32_t s) {
    Function *f = k->f;
    const Tensor d = gradient_of(f, s);
    const int64_t n = type_elems(&f->values[s].type), most = coordinates(f->g),
                  step = n > most ? n / most : 1;
    int equal = 0;
    for (int64_t i = 0; d.u.p && i < n; i += step) {
        double slope = NAN;
        if (is_untaken(k->c->listed->name, d.u.f[i])) return equal;
        const Slope r = function_slope(f, s, i, d.u.f[i], size_of(&d), &slope);
        equal += r == SLOPE_EQUAL;
        k->tally->kinks += r == SLOPE_KINK;
        if (r == SLOPE_KINK && getenv("ONNX_CASES_VERBOSE"))
            report(k, "kink: ", s, i, slope, d.u.f[i]);
        if (r != SLOPE_DIFFERS) continue;
        report(k, "", s, i, slope, d.u.f[i]);
        k->tally->wrong++;
        break;
    }
    k->tally->coordinates += equal;
    if (equal && f->g->states[s].trains) mark_checked(k, f->g->states[s].name);
    return equal;
}

static bool differentiate(PassContext *ctx, const char *passes) {
    Graph *before = ctx->g;
    const bool ok = passes_run(ctx, passes);
    if (ctx->g != before) graph_free(before);
    return ok;
}

static bool is_parameter(const Graph *g, const State *s) {
    return s->cls == STATE_PARAM && dtype_info[g->types[s->type].dtype].cls == CLASS_FLT;
}

static void check_function(OnnxCase *c, const Graph *g, const Graph *imported, GradientTally *tally,
                           bool *checked) {
    Function f = {.g = g, .arena = c->arena, .input = input_of, .user = c};
    const Check k = {c, &f, tally, checked};
    int equal = 0;
    const_splat(g, graph_root(g, ENTRY_APPLY, false, "static_count")->value, &f.static_count);
    read_values(c, &f, imported);
    for (uint32_t s = 0; s < g->n_states; s++)
        if (is_parameter(g, &g->states[s]) && !is_cut(&k, g->states[s].name))
            equal += check_state(&k, s);
    tally->differentiated += equal > 0;
}

static void report_without(const OnnxCase *c, const Graph *g, GradientTally *tally) {
    const bool is_known = is_explained(g);
    tally->without++;
    tally->unexplained += !is_known;
    if (!is_known || getenv("ONNX_CASES_VERBOSE"))
        fprintf(stderr, "%s: no gradient: %s\n", c->listed->name,
                g->diags.n ? g->diags.items[0].text : "a fault");
}

static void check_graph(OnnxCase *c, Graph *g, const char *passes, const Graph *imported,
                        GradientTally *tally, bool *checked) {
    PassOptions options = {
        .ignore_index = -100, .fuel = -1, .loss = "output", .batch = 1, .micro_batch = 1};
    PassContext ctx = {.g = g, .arena = c->arena, .options = &options, .log = stderr};
    if (differentiate(&ctx, passes))
        check_function(c, ctx.g, imported, tally, checked);
    else
        report_without(c, ctx.g, tally);
    graph_free(ctx.g);
}

void gradient_check(const ListedCase *listed, GradientTally *tally, bool *checked) {
    static const char *const roads[] = {"loss,autodiff,accumulate",
                                        "loss,simplify,match,autodiff,accumulate,expand,simplify"};
    Arena *arena = arena_new();
    for (size_t i = 0; i < sizeof roads / sizeof *roads; i++) {
        OnnxCase c;
        Graph *g = NULL;
        if (onnx_case_open(&c, listed, arena) == CASE_PASSED) g = function_graph(&c, arena);
        if (g) check_graph(&c, g, roads[i], c.model.graph, tally, checked);
        onnx_case_free(&c);
    }
    arena_free(arena);
}
