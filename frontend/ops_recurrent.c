/* ops_recurrent.c - LSTM, GRU and RNN become loops of the IR, one per direction.
 *
 * What does not depend on the step before is taken out: x W' of all steps is one product, with the
 * biases that are only added. A step is the product with R and elementwise ops. Sequences shorter
 * than the longest keep their carries and leave zeros at steps beyond their length; running the
 * steps from the last to the first then begins each sequence at its own end. Formulas and gate
 * orders (iofc, zrh) are those of the ONNX specification. */
#include "import.h"
#include "scan.h"
#include <string.h>
#include <strings.h>

/* The activations that may be named: a rule over a, and al(pha), be(ta) where it has them. */
typedef struct Activation {
    const char *name, *rule;
    bool has_alpha, has_beta;
    double alpha, beta;
} Activation;
static const Activation activations[] = {
    {"Sigmoid", "(sigmoid a)", false, false, 0, 0},
    {"Tanh", "(tanh a)", false, false, 0, 0},
    {"Relu", "(relu a)", false, false, 0, 0},
    {"Affine", "(add (mul al a) be)", true, true, 1, 0},
    {"LeakyRelu", "(where (gt a 0) a (mul al a))", true, false, 0.01, 0},
    {"ThresholdedRelu", "(where (gt a al) a 0)", true, false, 1, 0},
    {"ScaledTanh", "(mul al (tanh (mul be a)))", true, true, 1, 1},
    {"HardSigmoid", "(clip (add (mul al a) be) 0 1)", true, true, 0.2, 0.5},
    {"Elu", "(where (gt a 0) a (mul al (expm1 (where (gt a 0) 0 a))))", true, false, 1, 0},
    {"Softsign", "(div a (add 1 (abs a)))", false, false, 0, 0},
    {"Softplus", "(add (max a 0) (log1p (exp (neg (abs a)))))", false, false, 0, 0},
};
enum { N_ACTIVATIONS = sizeof activations / sizeof *activations, MAX_FUNCTIONS = 6 };

typedef struct Function {
    const Activation *kind;
    double alpha, beta;
} Function;

typedef enum CellKind { CELL_RNN, CELL_GRU, CELL_LSTM } CellKind;
typedef struct Recurrent {
    ImportNode *n;
    CellKind kind;
    int64_t gates, functions, directions; /* per cell; functions per direction */
    int64_t steps, batch, inputs, hidden;
    bool layout_batch; /* layout 1: the batch stands first */
    bool is_reversed;  /* the only direction is reverse */
    Function function[MAX_FUNCTIONS];
    double clip; /* 0: none */
    DType dtype;
    Value x;    /* [steps * batch, inputs] */
    Value lens; /* i64 [batch, 1], or 0: all sequences are full */
} Recurrent;

/* ---------------------------------------------------------------- attributes */

static const Activation *activation_named(const char *name, size_t len) {
    for (size_t i = 0; i < N_ACTIVATIONS; i++)
        if (strlen(activations[i].name) == len && !strncasecmp(activations[i].name, name, len))
            return &activations[i];
    return NULL;
}

static const char *default_activation(const Recurrent *r, int64_t i) {
    return r->kind == CELL_RNN || i % r->functions ? "Tanh" : "Sigmoid";
}

/* alpha and beta are consumed in order, by those functions that have one. */
static bool read_functions(Recurrent *r) {
    ImportNode *n = r->n;
    const char *const *names;
    uint32_t n_names, n_alpha, n_beta, alpha = 0, beta = 0;
    const float *alphas = node_floats(n, "activation_alpha", &n_alpha);
    const float *betas = node_floats(n, "activation_beta", &n_beta);
    names = node_strings(n, "activations", &n_names);
    int64_t wanted = r->functions * r->directions;
    if (n_names && n_names != wanted) {
        node_fail(n, "activations", "%u functions, not %lld", n_names, (long long)wanted);
        return false;
    }
    for (int64_t i = 0; i < wanted; i++) {
        const char *name = n_names ? names[i] : default_activation(r, i);
        const Activation *a = activation_named(name, strlen(name));
        if (!a) {
            node_fail(n, "activations", "'%s' is not known", name);
            return false;
        }
        Function *f = &r->function[i];
        *f = (Function){a, a->alpha, a->beta};
        if (a->has_alpha && alpha < n_alpha) f->alpha = (double)alphas[alpha++];
        if (a->has_beta && beta < n_beta) f->beta = (double)betas[beta++];
    }
    return true;
}

static bool read_direction(Recurrent *r) {
    const char *direction = node_string(r->n, "direction", "forward");
    r->directions = strcmp(direction, "bidirectional") ? 1 : 2;
    r->is_reversed = !strcmp(direction, "reverse");
    if (r->directions == 2 || r->is_reversed || !strcmp(direction, "forward")) return true;
    node_fail(r->n, "direction", "'%s' is not known", direction);
    return false;
}

static bool has_dims(ImportNode *n, uint32_t input, const char *what, uint32_t rank, int64_t a,
                     int64_t b, int64_t c) {
    Value v = node_in(n, input);
    const Type *t = v ? node_type(n, v) : NULL;
    int64_t dims[] = {a, b, c};
    bool ok = !v || t->rank == rank;
    for (uint32_t i = 0; v && ok && i < rank; i++) ok = t->dims[i] == dims[i];
    if (!ok)
        node_fail_shapes(n, "%s is %s, not [%lld, %lld%s]", what, type_text(n->g, t), (long long)a,
                         (long long)b,
                         rank == 3 ? arena_printf(n->arena, ", %lld", (long long)c) : "");
    return ok;
}

/* All but the lengths are of X's type. */
static bool has_one_type(ImportNode *n) {
    uint8_t dtype = node_type(n, n->in[0])->dtype;
    for (uint32_t i = 1; i < n->n_in; i++) {
        uint8_t given = i != 4 && n->in[i] ? node_type(n, n->in[i])->dtype : dtype;
        if (given == dtype) continue;
        diag_add(n->g, E_DTYPE, n->g->loc, dtype_info[given].name,
                 arena_printf(n->arena, "X is %s", dtype_info[dtype].name));
        return false;
    }
    return true;
}

static bool read_shapes(Recurrent *r) {
    ImportNode *n = r->n;
    const Type *x = node_type(n, n->in[0]), *w = node_type(n, n->in[2]);
    r->layout_batch = node_int(n, "layout", 0) != 0;
    if (x->rank != 3 || node_type(n, n->in[1])->rank != 3 || w->rank != 3) {
        node_fail_shapes(n, "X, W and R have three axes");
        return false;
    }
    if (!has_one_type(n)) return false;
    r->dtype = (DType)x->dtype;
    r->steps = x->dims[r->layout_batch];
    r->batch = x->dims[!r->layout_batch];
    r->inputs = x->dims[2];
    r->hidden = w->dims[2];
    int64_t d = r->directions, h = r->hidden, first = r->layout_batch ? r->batch : d,
            second = r->layout_batch ? d : r->batch;
    return has_dims(n, 1, "W", 3, d, r->gates * h, r->inputs) &&
           has_dims(n, 2, "R", 3, d, r->gates * h, h) &&
           has_dims(n, 3, "B", 2, d, 2 * r->gates * h, 0) &&
           has_dims(n, 5, "initial_h", 3, first, second, h) &&
           (r->kind != CELL_LSTM || (has_dims(n, 6, "initial_c", 3, first, second, h) &&
                                     has_dims(n, 7, "P", 2, d, 3 * h, 0)));
}

/* Lengths that are known to be full are none. */
static bool read_lengths(Recurrent *r) {
    ImportNode *n = r->n;
    Value lens = node_in(n, 4);
    Tensor known;
    if (!lens) return true;
    const Type *t = node_type(n, lens);
    if (t->rank != 1 || t->dims[0] != r->batch || dtype_info[t->dtype].cls != CLASS_INT) {
        node_fail_shapes(n, "sequence_lens is %s, not [%lld]", type_text(n->g, t),
                         (long long)r->batch);
        return false;
    }
    bool is_full = node_known(n, lens, &known);
    for (int64_t i = 0; is_full && i < r->batch; i++) is_full = known.u.i[i] >= r->steps;
    if (!is_full)
        r->lens = build_reshape(n->g, build_cast(n->g, lens, DT_I64), 2, (int64_t[]){r->batch, 1});
    return true;
}

/* ---------------------------------------------------------------- parts of the inputs */

/* One direction of [directions, ..], without that axis, and of it [from, from + count) along the
 * next axis. */
static Value part(Recurrent *r, Value v, int64_t direction, int64_t from, int64_t count) {
    if (!v) return 0;
    Type t = *node_type(r->n, v);
    int64_t start[MAX_RANK] = {direction, from};
    t.dims[0] = 1;
    t.dims[1] = count;
    return build_reshape(r->n->g, build_slice(r->n->g, v, start, t.dims, NULL), t.rank - 1u,
                         t.dims + 1);
}

/* A carry's first value [batch, hidden]; zeros where the input is omitted. */
static Value initial(Recurrent *r, uint32_t input, int64_t direction) {
    Graph *g = r->n->g;
    Value v = node_in(r->n, input);
    int64_t dims[] = {r->batch, r->hidden};
    if (!v) return build_splat(g, graph_type_of(g, r->dtype, 2, dims), 0);
    if (r->layout_batch) v = build_transpose(g, v, (int64_t[]){1, 0, 2});
    return part(r, v, direction, 0, r->batch);
}

/* x W' + biases of all steps, [steps, batch, count * hidden], for gates from `gate` on. */
static Value project(Recurrent *r, int64_t d, int64_t gate, int64_t count, Value bias) {
    Graph *g = r->n->g;
    Value w = part(r, r->n->in[1], d, gate * r->hidden, count * r->hidden);
    Value y = build_dot(g, r->x, w, false, true);
    if (bias) y = build_binary(g, OP_add, y, bias);
    return build_reshape(g, y, 3, (int64_t[]){r->steps, r->batch, count * r->hidden});
}

/* A bias of the input (half 0) or of the recurrence (half 1), of `count` gates. */
static Value bias_of(Recurrent *r, int64_t d, int half, int64_t gate, int64_t count) {
    return part(r, node_in(r->n, 3), d, (half * r->gates + gate) * r->hidden, count * r->hidden);
}

static Value both_biases(Recurrent *r, int64_t d, int64_t gate, int64_t count) {
    Value a = bias_of(r, d, 0, gate, count), b = bias_of(r, d, 1, gate, count);
    return a ? build_binary(r->n->g, OP_add, a, b) : 0;
}

/* ---------------------------------------------------------------- one step */

static Value activate(Recurrent *r, int64_t d, int64_t i, Value a) {
    const Function *f = &r->function[d * r->functions + i];
    if (r->clip > 0) {
        RuleBind binds[] = {{"a", a}, {"c", node_number(r->n, r->dtype, r->clip)}};
        a = node_rule(r->n, "(clip a (neg c) c)", binds, 2);
    }
    RuleBind binds[] = {{"a", a},
                        {"al", node_number(r->n, r->dtype, f->alpha)},
                        {"be", node_number(r->n, r->dtype, f->beta)}};
    return node_rule(r->n, f->kind->rule, binds, 3);
}

static Value gate_of(Recurrent *r, Value gates, int64_t i) {
    int64_t start[] = {0, i * r->hidden}, extent[] = {r->batch, r->hidden};
    return build_slice(r->n->g, gates, start, extent, NULL);
}

static Value add(Recurrent *r, Value a, Value b) {
    return a && b ? build_binary(r->n->g, OP_add, a, b) : a ? a : b;
}

static Value mul(Recurrent *r, Value a, Value b) { return build_binary(r->n->g, OP_mul, a, b); }

/* Peephole i of [3 * hidden] on a cell; 0 where there are none. */
static Value peephole(Recurrent *r, int64_t d, int64_t i, Value c) {
    Value p = part(r, node_in(r->n, 7), d, i * r->hidden, r->hidden);
    return p ? mul(r, p, c) : 0;
}

typedef struct Cell { /* one direction: holes of the carries and of the slice, and what a step makes
                       */
    Value h, c, x, next_h, next_c;
} Cell;

/* gates i o f c; peepholes i o f */
static void lstm_step(Recurrent *r, int64_t d, Cell *cell) {
    Graph *g = r->n->g;
    Value w = part(r, r->n->in[2], d, 0, 4 * r->hidden);
    Value gates = add(r, cell->x, build_dot(g, cell->h, w, false, true));
    Value i = add(r, gate_of(r, gates, 0), peephole(r, d, 0, cell->c));
    Value f = add(r, gate_of(r, gates, 2), peephole(r, d, 2, cell->c));
    Value o = gate_of(r, gates, 1), c = activate(r, d, 1, gate_of(r, gates, 3));
    i = activate(r, d, 0, i);
    if (node_int(r->n, "input_forget", 0))
        f = build_binary(g, OP_sub, node_number(r->n, r->dtype, 1), i);
    else
        f = activate(r, d, 0, f);
    cell->next_c = add(r, mul(r, f, cell->c), mul(r, i, c));
    o = activate(r, d, 0, add(r, o, peephole(r, d, 1, cell->next_c)));
    cell->next_h = mul(r, o, activate(r, d, 2, cell->next_c));
}

/* gates z r h; the reset gate acts on the product with R (linear_before_reset) or on h before it.
 */
static void gru_step(Recurrent *r, int64_t d, Cell *cell) {
    Graph *g = r->n->g;
    bool is_linear = node_int(r->n, "linear_before_reset", 0) != 0;
    Value w = part(r, r->n->in[2], d, 0, (is_linear ? 3 : 2) * r->hidden);
    Value product = build_dot(g, cell->h, w, false, true);
    Value z = activate(r, d, 0, add(r, gate_of(r, cell->x, 0), gate_of(r, product, 0)));
    Value reset = activate(r, d, 0, add(r, gate_of(r, cell->x, 1), gate_of(r, product, 1)));
    Value candidate;
    if (is_linear)
        candidate = mul(r, reset, add(r, gate_of(r, product, 2), bias_of(r, d, 1, 2, 1)));
    else
        candidate = build_dot(g, mul(r, reset, cell->h),
                              part(r, r->n->in[2], d, 2 * r->hidden, r->hidden), false, true);
    candidate = activate(r, d, 1, add(r, gate_of(r, cell->x, 2), candidate));
    Value kept = build_binary(g, OP_sub, node_number(r->n, r->dtype, 1), z);
    cell->next_h = add(r, mul(r, kept, candidate), mul(r, z, cell->h));
}

static void rnn_step(Recurrent *r, int64_t d, Cell *cell) {
    Value w = part(r, r->n->in[2], d, 0, r->hidden);
    Value sum = add(r, cell->x, build_dot(r->n->g, cell->h, w, false, true));
    cell->next_h = activate(r, d, 0, sum);
}

static Value project_cell(Recurrent *r, int64_t d) {
    bool is_linear = r->kind == CELL_GRU && node_int(r->n, "linear_before_reset", 0);
    Value bias = is_linear ? 0 : both_biases(r, d, 0, r->gates);
    if (is_linear && node_in(r->n, 3)) {
        Value parts[] = {both_biases(r, d, 0, 2), bias_of(r, d, 0, 2, 1)};
        bias = build_concat(r->n->g, parts, 2, 0);
    }
    return project(r, d, 0, r->gates, bias);
}

/* ---------------------------------------------------------------- one direction */

typedef struct Result {
    Value y, h, c; /* [steps, batch, hidden], [batch, hidden] twice */
} Result;

/* Where the sequence has ended the carries stay and the output is 0. */
static Value masked(Recurrent *r, Value t, Cell *cell) {
    Graph *g = r->n->g;
    if (!r->lens) return cell->next_h;
    Value is_active = build_binary(g, OP_lt, t, r->lens);
    Value y = build_map(g, OP_where,
                        (Value[]){is_active, cell->next_h, node_number(r->n, r->dtype, 0)}, 3);
    cell->next_h = build_map(g, OP_where, (Value[]){is_active, cell->next_h, cell->h}, 3);
    if (cell->next_c)
        cell->next_c = build_map(g, OP_where, (Value[]){is_active, cell->next_c, cell->c}, 3);
    return y;
}

static bool run_direction(Recurrent *r, int64_t d, Result *result) {
    Graph *g = r->n->g;
    bool has_c = r->kind == CELL_LSTM;
    Value first[] = {initial(r, 5, d), has_c ? initial(r, 6, d) : 0}, xs = project_cell(r, d);
    if (!first[0] || !xs || (has_c && !first[1])) return false;
    TypeId slice = graph_type_of(g, r->dtype, 2, (int64_t[]){r->batch, r->gates * r->hidden});
    TypeId state = graph_node(g, first[0])->type;
    Cell cell = {.h = scan_hole(g, state), .x = scan_hole(g, slice)};
    if (has_c) cell.c = scan_hole(g, state);
    Value t = r->lens ? scan_hole(g, graph_type_of(g, DT_I64, 0, NULL)) : 0;
    switch (r->kind) {
    case CELL_RNN:
        rnn_step(r, d, &cell);
        break;
    case CELL_GRU:
        gru_step(r, d, &cell);
        break;
    case CELL_LSTM:
        lstm_step(r, d, &cell);
        break;
    }
    Value y = masked(r, t, &cell), carry[] = {cell.h, cell.c}, next[] = {cell.next_h, cell.next_c};
    Value finals[2] = {0};
    ScanSpec spec = {.name = r->n->proto->op_type,
                     .n_carries = has_c ? 2 : 1,
                     .first = first,
                     .carry = carry,
                     .next = next,
                     .n_scanned = 1,
                     .xs = &xs,
                     .x = &cell.x,
                     .t = t,
                     .n_ys = 1,
                     .ys = &y,
                     .trips = r->steps,
                     .is_reverse = r->is_reversed || d == 1};
    if (!scan_build(g, &spec, finals, &result->y)) return false;
    result->h = finals[0];
    result->c = finals[1];
    return true;
}

/* ---------------------------------------------------------------- outputs */

/* [steps, batch, hidden] of each direction to [steps, directions, batch, hidden] or [batch, steps,
 * directions, hidden]. */
static Value join_steps(Recurrent *r, const Result *results) {
    Graph *g = r->n->g;
    Value parts[2];
    for (int64_t d = 0; d < r->directions; d++)
        parts[d] = build_reshape(g, results[d].y, 4, (int64_t[]){r->steps, 1, r->batch, r->hidden});
    Value y = build_concat(g, parts, (uint32_t)r->directions, 1);
    return r->layout_batch ? build_transpose(g, y, (int64_t[]){2, 0, 1, 3}) : y;
}

static Value join_states(Recurrent *r, Value first, Value second) {
    Graph *g = r->n->g;
    Value parts[] = {first, second};
    for (int64_t d = 0; d < r->directions; d++)
        parts[d] = build_reshape(g, parts[d], 3, (int64_t[]){1, r->batch, r->hidden});
    Value y = build_concat(g, parts, (uint32_t)r->directions, 0);
    return r->layout_batch ? build_transpose(g, y, (int64_t[]){1, 0, 2}) : y;
}

static void import_recurrent(ImportNode *n, CellKind kind, int64_t gates, int64_t functions) {
    Recurrent r = {.n = n,
                   .kind = kind,
                   .gates = gates,
                   .functions = functions,
                   .clip = node_float(n, "clip", 0)};
    Result results[2] = {{0}};
    if (!read_direction(&r) || !read_functions(&r) || !read_shapes(&r) || !read_lengths(&r)) return;
    Value x = n->in[0];
    if (r.layout_batch) x = build_transpose(n->g, x, (int64_t[]){1, 0, 2});
    r.x = build_reshape(n->g, x, 2, (int64_t[]){r.steps * r.batch, r.inputs});
    for (int64_t d = 0; d < r.directions; d++)
        if (!run_direction(&r, d, &results[d])) return;
    n->out[0] = join_steps(&r, results);
    if (n->n_out > 1) n->out[1] = join_states(&r, results[0].h, results[1].h);
    if (n->n_out > 2 && kind == CELL_LSTM) n->out[2] = join_states(&r, results[0].c, results[1].c);
}

void import_lstm(ImportNode *n) { import_recurrent(n, CELL_LSTM, 4, 3); }
void import_gru(ImportNode *n) { import_recurrent(n, CELL_GRU, 3, 2); }
void import_rnn(ImportNode *n) { import_recurrent(n, CELL_RNN, 1, 1); }
