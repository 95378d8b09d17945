/* import.c - walks the ONNX graph into the IR graph: once in training form for the outputs of
 * `micro`, once in inference form for `eval`.
 *
 * Both walks emit into one hash-consed graph, so what does not differ (all but dropout and batch
 * statistics) is one set of nodes. ONNX nodes are in topological order; each finds its row in
 * onnx.def by op and version, emits core ops, and has its outputs folded where they are constant. A
 * node that cannot be imported is reported with the parameters behind it and its outputs are
 * blocked; what reads a blocked value is checked for support but not imported, so every obstacle of
 * a model is reported once, in one run.
 */
#include "context.h"
#include <stdlib.h>
#include <string.h>

typedef enum RowKind { ROW_RULE, ROW_C, ROW_SEQUENCE, ROW_DATA, ROW_DOMAIN } RowKind;
typedef struct OnnxRow {
    const char *op; /* DOMAIN: of the rows that follow */
    RowKind kind;
    uint32_t needs; /* inputs that must be there; a rule says it itself */
    int64_t since, until;
    const char *rule, *attributes;
    ImportFn *import;
} OnnxRow;
static const OnnxRow rows[] = {
#define ONNX(op, since, until, rule, attributes)                                                   \
    {#op, ROW_RULE, 0, since, until, rule, attributes, NULL},
#define ONNX_C(op, needs, since, until, fn) {#op, ROW_C, needs, since, until, NULL, NULL, fn},
#define ONNX_SEQUENCE(op, needs, since, until, fn)                                                 \
    {#op, ROW_SEQUENCE, needs, since, until, NULL, NULL, fn},
#define ONNX_DATA(op, needs, since, until, fn) {#op, ROW_DATA, needs, since, until, NULL, NULL, fn},
#define ONNX_DOMAIN(name) {name, ROW_DOMAIN, 0, 0, 0, NULL, NULL, NULL},
#include "onnx.def"
#undef ONNX
#undef ONNX_C
#undef ONNX_SEQUENCE
#undef ONNX_DATA
};
enum {
    N_ROWS = sizeof rows / sizeof *rows,
    NODE_METADATA = 9,
    MAX_RULE_INPUTS = 5,
    MAX_RULE_ATTRIBUTES = 4
};

/* ---------------------------------------------------------------- scopes */

bool scope_find(Import *im, const Scope *scope, const char *name, Value *value) {
    const char *key = graph_str(im->g, name);
    for (const Scope *s = scope; s; s = s->outer) {
        if (!names_get(&s->values, key, value)) continue;
        for (; scope != s; scope = scope->outer)
            if (scope->gate) *value = branch_gate(im, scope, *value);
        return true;
    }
    *value = 0;
    return false;
}

void scope_define(Import *im, const char *name, Value value) {
    if (*name) names_set(im->arena, &im->scope->values, graph_str(im->g, name), value);
}

static bool is_main_domain(const char *domain) {
    return !domain || !*domain || !strcmp(domain, "ai.onnx");
}

static int64_t opset_among(Onnx__OperatorSetIdProto *const *opsets, size_t n, const char *domain) {
    for (size_t i = 0; i < n; i++) {
        const char *d = opsets[i]->domain;
        if (is_main_domain(d) ? is_main_domain(domain) : domain && !strcmp(d, domain))
            return opsets[i]->version;
    }
    return 0;
}

/* What a function does not import, the model does; a domain that nobody imports is of version 1. */
static int64_t opset_of(const Import *im, const char *domain) {
    const Onnx__ModelProto *m = im->file->proto;
    int64_t version = opset_among(im->scope->opsets, im->scope->n_opsets, domain);
    if (!version) version = opset_among(m->opset_import, m->n_opset_import, domain);
    return version || is_main_domain(domain) ? version : 1;
}

/* ---------------------------------------------------------------- locations */

/* dynamo: "['', 'layer3', 'layer3.0', 'relu_24']", the last but one is the module. TorchScript: the
 * path in the node's name. */
static const char *module_of(Import *im, const Onnx__NodeProto *node, const char *label) {
    char *scopes = node->base.n_unknown_fields
                       ? metadata_find(im->file->arena, &node->base, NODE_METADATA,
                                       "pkg.torch.onnx.name_scopes")
                       : NULL;
    if (!scopes) {
        const char *end = strrchr(label, '/');
        if (*label != '/' || end == label) return "";
        char *path = arena_printf(im->arena, "%.*s", (int)(end - label - 1), label + 1);
        for (char *p = path; (p = strchr(p, '/'));) *p = '.';
        return path;
    }
    char *last = strrchr(scopes, ',');
    if (!last) return "";
    *last = 0;
    char *start = strrchr(scopes, ',');
    start = start ? start : scopes;
    start += strspn(start, "[, '");
    start[strcspn(start, "'")] = 0;
    return start;
}

static LocId node_loc(Import *im, const Onnx__NodeProto *node) {
    const char *name = node->name && *node->name ? node->name
                       : node->n_output          ? node->output[0]
                                                 : "";
    const char *label = arena_printf(im->arena, "%s%s", im->scope->prefix, name);
    return graph_loc(im->g, (Loc){LOC_NODE, label, node->op_type, module_of(im, node, label), 0});
}

/* ---------------------------------------------------------------- one node */

/* Binds the attributes of a rule row ("alpha=0.01 beta=1") as numbers of the first input's type. */
static uint32_t bind_attributes(ImportNode *n, const char *list, RuleBind *binds) {
    uint32_t count = 0;
    while (*list && count < MAX_RULE_ATTRIBUTES) {
        char name[32], *end;
        size_t length = strcspn(list, "=");
        snprintf(name, sizeof name, "%.*s", (int)length, list);
        double value = node_float(n, name, strtod(list + length + 1, &end));
        binds[count++] = (RuleBind){arena_strdup(n->arena, name),
                                    node_number(n, (DType)node_type(n, n->in[0])->dtype, value)};
        list = end + strspn(end, " ");
    }
    return count;
}

/* How many of the inputs a b c d e a rule reads. */
static uint32_t rule_needs(const char *rule) {
    uint32_t needs = 0;
    for (const char *p = rule; *p; p += strcspn(p, " ()") + (*p == ' ' || *p == '(' || *p == ')')) {
        uint32_t letter = (uint32_t)(*p - 'a') + 1;
        if (strcspn(p, " ()") == 1 && letter <= MAX_RULE_INPUTS && letter > needs) needs = letter;
    }
    return needs;
}

static void import_rule(ImportNode *n, const OnnxRow *row) {
    static const char *const names[MAX_RULE_INPUTS] = {"a", "b", "c", "d", "e"};
    RuleBind binds[MAX_RULE_INPUTS + MAX_RULE_ATTRIBUTES];
    uint32_t count = 0;
    for (; count < n->n_in && count < MAX_RULE_INPUTS; count++)
        binds[count] = (RuleBind){names[count], n->in[count]};
    if (count && n->in[0]) count += bind_attributes(n, row->attributes, binds + count);
    n->out[0] = node_rule(n, row->rule, binds, count);
}

/* What a row is found by: the op, behind its domain where that is not ai.onnx. */
static const char *row_key(Import *im, const char *domain, const char *op) {
    return graph_str(im->g,
                     is_main_domain(domain) ? op : arena_printf(im->arena, "%s:%s", domain, op));
}

static const OnnxRow *row_find(Import *im, const char *domain, const char *op, int64_t opset,
                               bool *is_known) {
    uint32_t first;
    *is_known = names_get(&im->rows, row_key(im, domain, op), &first);
    for (uint32_t i = *is_known ? first - 1 : N_ROWS; i < N_ROWS && rows[i].kind != ROW_DOMAIN; i++)
        if (!strcmp(rows[i].op, op) && rows[i].since <= opset && opset <= rows[i].until)
            return &rows[i];
    return NULL;
}

typedef struct OpHint {
    const char *op, *text;
} OpHint;
static const OpHint op_hints[] = {
#define HINT(op, text) {#op, text},
#include "hints.def"
#undef HINT
};

/* What to do about an op that is not to be had; the row of diag.def otherwise. */
static void hint_op(ImportNode *n) {
    const Onnx__NodeProto *p = n->proto;
    const Diag *last = &n->g->diags.items[n->g->diags.n - 1];
    DiagCode code = last->code;
    bool is_general = !strcmp(last->hint, diag_info[code].hint);
    if (!is_general || (code != E_OP_UNSUPPORTED && code != E_DYNAMIC_SHAPE)) return;
    for (size_t i = 0; i < sizeof op_hints / sizeof *op_hints; i++)
        if (!strcmp(op_hints[i].op, p->op_type)) diag_hint(n->g, "%s", op_hints[i].text);
    if (code == E_OP_UNSUPPORTED && !is_main_domain(p->domain))
        diag_hint(n->g, "export it as a local function of ONNX ops, or without the optimizer that "
                        "put it there");
}

static void report_unsupported(ImportNode *n, bool is_known) {
    const Onnx__NodeProto *p = n->proto;
    if (!n->opset)
        diag_add(n->g, E_MODEL_INVALID, n->g->loc,
                 arena_printf(n->arena, "%s is of a domain whose opset the model does not import",
                              p->op_type));
    else if (is_known)
        diag_add(n->g, E_OP_VERSION, n->g->loc, p->op_type, (int)n->opset);
    else
        diag_add(n->g, E_OP_UNSUPPORTED, n->g->loc, p->op_type,
                 is_main_domain(p->domain) ? ""
                                           : arena_printf(n->arena, " (domain %s)", p->domain));
}

static bool has_sequence(const ImportNode *n) {
    for (uint32_t i = 0; i < n->n_in; i++)
        if (n->in[i] & SEQUENCE_BIT) return true;
    return false;
}

static bool has_inputs(ImportNode *n, uint32_t needs) {
    uint32_t i = 0;
    while (i < needs && node_in(n, i)) i++;
    if (i == needs) return true;
    diag_add(n->g, E_MODEL_INVALID, n->g->loc,
             arena_printf(n->arena, "%s lacks its input %u", n->proto->op_type, i + 1));
    return false;
}

/* is_open: no input is blocked. Behind a block only what no input could change is reported: there
 * is no such op, or no static shape. */
static void import_by_row(ImportNode *n, bool is_open) {
    bool is_known = false;
    const OnnxRow *row = row_find(n->im, n->proto->domain, n->proto->op_type, n->opset, &is_known);
    if (!row || (is_open && has_sequence(n) && row->kind != ROW_SEQUENCE)) {
        report_unsupported(n, is_known && !row);
        return;
    }
    if (!is_open && row->kind != ROW_DATA) return;
    uint32_t needs = row->kind == ROW_RULE ? rule_needs(row->rule) : row->needs;
    if (is_open && !has_inputs(n, needs)) return;
    switch (row->kind) {
    case ROW_RULE:
        import_rule(n, row);
        break;
    case ROW_C:
    case ROW_SEQUENCE:
        row->import(n);
        break;
    case ROW_DATA:
        if (is_open)
            row->import(n);
        else
            node_fail_dynamic(n);
        break;
    case ROW_DOMAIN:
        break;
    }
}

/* Reads the inputs. false where one is blocked, or not defined at all (which is reported). */
static bool inputs_read(Import *im, const Onnx__NodeProto *p, Value *in) {
    bool is_open = true;
    for (size_t i = 0; i < p->n_input; i++) {
        if (!*p->input[i]) continue;
        if (!scope_find(im, im->scope, p->input[i], &in[i]))
            diag_add(im->g, E_MODEL_INVALID, im->g->loc,
                     arena_printf(im->arena, "nothing before this node defines its input %s",
                                  p->input[i]));
        is_open &= in[i] != 0;
        if (in[i] == OMITTED) in[i] = 0;
    }
    return is_open;
}

static bool is_any_made(const ImportNode *n) {
    for (uint32_t i = 0; i < n->n_out; i++)
        if (n->out[i]) return true;
    return !n->n_out;
}

/* The version of the op and the types of what it is given: "opset 18; inputs x f32[2,4], w f32[4]".
 */
static const char *node_about(const ImportNode *n) {
    const Onnx__NodeProto *p = n->proto;
    const char *text = arena_printf(n->arena, "opset %lld%s%s", (long long)n->opset,
                                    is_main_domain(p->domain) ? "" : " of ",
                                    is_main_domain(p->domain) ? "" : p->domain);
    for (uint32_t i = 0, k = 0; i < n->n_in; i++) {
        if (!*p->input[i]) continue;
        bool is_tensor = n->in[i] && !(n->in[i] & SEQUENCE_BIT);
        text = arena_printf(n->arena, "%s%s %s%s%s", text, k++ ? "," : "; inputs", p->input[i],
                            is_tensor ? " " : "",
                            is_tensor ? type_text(n->g, node_type(n, n->in[i])) : "");
    }
    return text;
}

/* Says of the obstacle what it is given, which parameters it cuts off, and what to do. */
static void describe_obstacle(ImportNode *n) {
    Import *im = n->im;
    if (im->g->diags.items[im->g->diags.n - 1].about) return; /* told at a node of its body */
    const char *behind = im->top_node ? params_behind(im, im->top_node) : NULL;
    hint_op(n);
    diag_detail(im->g, node_about(n),
                behind ? arena_printf(im->arena, "no gradient: %s would not train", behind) : NULL);
}

/* A node that is not imported: who knows which gradients it would pass on? */
static void note_blocked(Import *im, const Value *in, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!in[i] || in[i] & SEQUENCE_BIT) continue;
        if (im->n_blocked == im->cap_blocked) {
            im->cap_blocked = 2 * im->cap_blocked + 16;
            im->blocked = arena_grow(im->arena, im->blocked, im->n_blocked * sizeof *in,
                                     im->cap_blocked * sizeof *in);
        }
        im->blocked[im->n_blocked++] = in[i];
    }
}

/* Names are defined once in a graph; a second maker would be read in silence by some. */
static void check_outputs(Import *im, const Onnx__NodeProto *p) {
    Value known;
    for (size_t i = 0; i < p->n_output; i++)
        if (*p->output[i] && names_get(&im->scope->values, graph_str(im->g, p->output[i]), &known))
            diag_add(im->g, E_MODEL_INVALID, im->g->loc,
                     arena_printf(im->arena, "%s is defined twice", p->output[i]));
}

static void import_node(Import *im, const Onnx__NodeProto *p) {
    Graph *g = im->g;
    uint32_t before = g->diags.n;
    if (!p->n_output) return;
    Value *in = arena_alloc(im->arena, (p->n_input + 1) * sizeof *in),
          *out = arena_alloc(im->arena, (p->n_output + 1) * sizeof *out);
    g->loc = node_loc(im, p);
    ImportNode n = {.im = im,
                    .g = g,
                    .arena = im->arena,
                    .proto = p,
                    .opset = opset_of(im, p->domain),
                    .training = im->training,
                    .batchnorm_train = im->options->batchnorm_train,
                    .n_in = (uint32_t)p->n_input,
                    .n_out = (uint32_t)p->n_output,
                    .in = in,
                    .out = out};
    bool is_open = inputs_read(im, p, in);
    if (is_open && im->n_dropouts && !strcmp(p->op_type, "MatMul"))
        in[0] = node_lost_dropout(&n, in[0]);
    if (!import_inline(&n, is_open)) import_by_row(&n, is_open);
    check_outputs(im, p);
    if (is_open && !is_any_made(&n) && g->diags.n == before)
        diag_add(g, E_OP_UNSUPPORTED, g->loc, p->op_type, " in this form");
    bool is_obstacle =
        g->diags.n > before && diag_info[g->diags.items[g->diags.n - 1].code].severity == SEV_ERROR;
    if (is_obstacle) describe_obstacle(&n);
    if (!is_open || !is_any_made(&n)) note_blocked(im, in, p->n_input);
    for (size_t i = 0; i < p->n_output; i++) scope_define(im, p->output[i], fold_value(im, out[i]));
}

void import_nodes(Import *im, Onnx__NodeProto *const *nodes, size_t n) {
    for (size_t i = 0; i < n; i++) import_node(im, nodes[i]);
}

/* ---------------------------------------------------------------- one walk */

/* Inputs whose dims are not bound block what reads them, so that other obstacles are told as well.
 */
static void define_unbound(Import *im) {
    const Onnx__GraphProto *graph = im->file->proto->graph;
    for (size_t i = 0; i < graph->n_input; i++) {
        const char *name = graph_str(im->g, graph->input[i]->name);
        uint32_t known;
        if (!names_get(&im->initializers, name, &known) && !graph_input(im->g, name))
            scope_define(im, name, 0);
    }
}

static void define_leaves(Import *im) {
    im->g->loc = 0;
    for (uint32_t i = 0; i < im->g->n_inputs; i++)
        scope_define(im, im->g->inputs[i].name, build_input(im->g, im->g->inputs[i].name));
    define_unbound(im);
    for (uint32_t i = 0; i < im->sets.cap; i++)
        if (im->sets.names[i]) scope_define(im, im->sets.names[i], im->sets.values[i]);
    for (uint32_t i = 0; i < im->n_shown; i++)
        scope_define(im, im->shown[i].value, shown_value(im, &im->shown[i]));
}

static void add_outputs(Import *im, EntryKind entry) {
    const Onnx__GraphProto *graph = im->file->proto->graph;
    for (size_t i = 0; i < graph->n_output; i++) {
        Value v;
        const char *name = graph_str(im->g, graph->output[i]->name);
        bool is_defined = scope_find(im, im->scope, name, &v);
        bool is_left_out = !v || v & SEQUENCE_BIT;
        if (is_left_out && !output_is_needed(im, i))
            diag_add(im->g, W_OUTPUT, 0, name);
        else if (v & SEQUENCE_BIT || !is_defined)
            diag_add(
                im->g, E_MODEL_INVALID, 0,
                arena_printf(im->arena,
                             is_defined ? "output %s is a sequence" : "nothing defines output %s",
                             name));
        else if (v)
            graph_add_root(im->g, entry, false, name, v);
        else if (!diag_has_errors(im->g))
            diag_add(im->g, E_OP_UNSUPPORTED, 0, "behind an output",
                     arena_printf(im->arena, ": output %s", name));
    }
}

static void walk(Import *im, int which) {
    const Onnx__ModelProto *proto = im->file->proto;
    im->training = which == WALK_MICRO;
    im->main[which] =
        (Scope){.opsets = proto->opset_import, .n_opsets = proto->n_opset_import, .prefix = ""};
    im->scope = &im->main[which];
    define_leaves(im);
    const bool *is_live = live_nodes(im);
    for (size_t i = 0; i < proto->graph->n_node; i++) {
        uint32_t n_diags = im->g->diags.n;
        im->top_node = proto->graph->node[i];
        import_node(im, im->top_node);
        if (!is_live[i]) im->g->diags.n = n_diags;
    }
    im->g->loc = 0;
    add_outputs(im, which == WALK_MICRO ? ENTRY_MICRO : ENTRY_EVAL);
}

/* ---------------------------------------------------------------- the model */

typedef struct TensorList {
    Import *im;
    const char **names;
    Value *values, *evals;
    uint32_t n;
} TensorList;

static void list_tensor(TensorList *l, const char *name) {
    Value v = 0, eval = 0;
    const char *key = graph_str(l->im->g, name);
    names_get(&l->im->main[WALK_EVAL].values, key, &eval);
    if (l->im->options->eval_only)
        v = eval;
    else
        names_get(&l->im->main[WALK_MICRO].values, key, &v);
    if (!v || (v | eval) & SEQUENCE_BIT) return;
    l->names[l->n] = key;
    l->values[l->n] = v;
    l->evals[l->n++] = eval;
}

/* In the file's order: inputs, initializers, then what the nodes make. */
static void list_tensors(Import *im) {
    const Onnx__GraphProto *graph = im->file->proto->graph;
    Model *m = im->model;
    size_t total = graph->n_input + graph->n_initializer + 1;
    for (size_t i = 0; i < graph->n_node; i++) total += graph->node[i]->n_output;
    TensorList l = {.im = im,
                    .names = arena_alloc(im->arena, total * sizeof *l.names),
                    .values = arena_alloc(im->arena, total * sizeof *l.values),
                    .evals = arena_alloc(im->arena, total * sizeof *l.evals)};
    uint32_t known;
    for (size_t i = 0; i < graph->n_input; i++)
        if (!names_get(&im->initializers, graph_str(im->g, graph->input[i]->name), &known))
            list_tensor(&l, graph->input[i]->name);
    for (size_t i = 0; i < graph->n_initializer; i++) list_tensor(&l, graph->initializer[i]->name);
    for (size_t i = 0; i < graph->n_node; i++)
        for (size_t k = 0; k < graph->node[i]->n_output; k++)
            list_tensor(&l, graph->node[i]->output[k]);
    m->tensor_names = l.names;
    m->tensor_values = l.values;
    m->eval_values = l.evals;
    m->n_tensors = l.n;
}

static void describe_model(Import *im) {
    const Onnx__ModelProto *proto = im->file->proto;
    Model *m = im->model;
    m->producer = arena_strdup(im->arena, proto->producer_name ? proto->producer_name : "");
    m->producer_version =
        arena_strdup(im->arena, proto->producer_version ? proto->producer_version : "");
    m->from_pytorch = !strcmp(m->producer, "pytorch");
    const char **outputs = arena_alloc(im->arena, (proto->graph->n_output + 1) * sizeof *outputs);
    for (size_t i = 0; i < proto->graph->n_output; i++)
        outputs[i] = graph_str(im->g, proto->graph->output[i]->name);
    m->output_names = outputs;
    m->n_outputs = (uint32_t)proto->graph->n_output;
}

static void index_rows(Import *im) {
    const char *domain = "";
    uint32_t known;
    for (uint32_t i = 0; i < N_ROWS; i++) {
        if (rows[i].kind == ROW_DOMAIN) domain = rows[i].op;
        const char *key = row_key(im, domain, rows[i].op);
        if (rows[i].kind != ROW_DOMAIN && !names_get(&im->rows, key, &known))
            names_set(im->arena, &im->rows, key, i + 1);
    }
}

static bool sources_read(Import *im) {
    const Onnx__GraphProto *graph = im->file->proto->graph;
    bool is_valid = true;
    im->sources = arena_alloc(im->arena, (graph->n_initializer + 1) * sizeof *im->sources);
    for (uint32_t i = 0; i < graph->n_initializer; i++) {
        const char *name = graph->initializer[i]->name;
        uint32_t known;
        is_valid &= tensor_source(im->file, im->g, graph->initializer[i], &im->sources[i]);
        if (!name || !*name || names_get(&im->initializers, graph_str(im->g, name), &known)) {
            diag_add(im->g, E_MODEL_INVALID, 0,
                     arena_printf(im->arena, "two initializers are called '%s'", name ? name : ""));
            is_valid = false;
        } else
            names_set(im->arena, &im->initializers, graph_str(im->g, name), i + 1);
    }
    if (graph->n_sparse_initializer)
        diag_add(im->g, E_MODEL_INVALID, 0, "sparse initializers are not supported");
    return is_valid;
}

static bool import_all(Import *im) {
    describe_model(im);
    if (!im->model->n_outputs)
        diag_add(im->g, E_MODEL_INVALID, 0, "the graph has no outputs: nothing depends on it");
    index_rows(im);
    if (!sources_read(im)) return false;
    bool is_bound = dims_bind(im);
    is_bound &= params_add(im);
    statistics_restore(im);
    dropouts_find(im);
    if (!im->options->eval_only) walk(im, WALK_MICRO);
    if (is_bound && !diag_has_errors(im->g)) walk(im, WALK_EVAL);
    if (diag_has_errors(im->g) && !im->options->eval_only) {
        cut_report(im);
        loss_report(im);
    }
    list_tensors(im);
    return is_bound && !diag_has_errors(im->g);
}

static const char *name_of_path(Graph *g, const char *path) {
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path, *dot = strrchr(base, '.');
    return arena_printf(g->arena, "%.*s", (int)(dot ? (size_t)(dot - base) : strlen(base)), base);
}

bool model_import(const ImportOptions *options, Model *model) {
    *model = (Model){.graph = graph_new("")};
    ModelFile file;
    Import im = {.g = model->graph,
                 .arena = model->graph->arena,
                 .file = &file,
                 .options = options,
                 .model = model};
    model->graph->name = name_of_path(model->graph, options->path);
    bool is_open = model_file_open(&file, model->graph, options->path);
    bool is_imported = is_open && import_all(&im);
    model_file_close(&file);
    return is_imported;
}

void model_free(Model *m) {
    if (m->graph) graph_free(m->graph);
    *m = (Model){0};
}
