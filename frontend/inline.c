/* inline.c - nodes that stand for other nodes: `If` whose condition is known becomes its branch, a
 * call of a local function becomes the function's body. Names of the body live in a scope of their
 * own; locations get the calling node's name as a prefix.
 *
 * `If` whose condition depends on the data becomes both branches and a choice between their
 * results. As in PyTorch only the branch that was taken passes gradients on: what a branch reads
 * from outside is where(taken, v, detach(v)), so that a NaN or an infinite slope of the other one
 * ends there. */
#include "context.h"
#include <string.h>

enum { MAX_NESTING = 32, MAX_INLINED = 1 << 20, OVERLOAD_OF_NODE = 8, OVERLOAD_OF_FUNCTION = 13 };

bool nests_too_deep(ImportNode *n) {
    if (n->im->scope->depth < MAX_NESTING && n->im->n_inlined < MAX_INLINED) return false;
    diag_add(n->g, E_MODEL_INVALID, n->g->loc,
             n->im->n_inlined < MAX_INLINED
                 ? "functions or branches are nested too deeply"
                 : "functions that call functions stand for more than a million bodies");
    return true;
}

/* Imports the body in `inner`, then reads its outputs by name. */
static void import_body(ImportNode *n, Scope *inner, const char *suffix,
                        Onnx__NodeProto *const *nodes, size_t n_nodes, char *const *outputs,
                        size_t n_outputs, uint32_t n_out, Value *out) {
    Import *im = n->im;
    Scope *outer = im->scope;
    LocId loc = n->g->loc;
    inner->prefix = arena_printf(n->arena, "%s%s/", n->g->locs[loc].name, suffix);
    inner->depth = outer->depth + 1;
    im->n_inlined++;
    im->scope = inner;
    import_nodes(im, nodes, n_nodes);
    for (uint32_t i = 0; i < n_out && i < n_outputs; i++)
        if (!scope_find(im, inner, outputs[i], &out[i]))
            diag_add(n->g, E_MODEL_INVALID, loc,
                     arena_printf(n->arena, "its body does not define %s", outputs[i]));
    im->scope = outer;
    n->g->loc = loc;
}

void subgraph_open(ImportNode *n, const Onnx__GraphProto *body, Scope *inner) {
    Import *im = n->im;
    *inner = (Scope){.outer = im->scope,
                     .opsets = im->scope->opsets,
                     .n_opsets = im->scope->n_opsets,
                     .caller = im->scope->caller,
                     .calling = im->scope->calling,
                     .function = im->scope->function,
                     .defaults = im->scope->defaults,
                     .n_defaults = im->scope->n_defaults};
    for (size_t i = 0; i < body->n_initializer; i++) {
        TensorSource s;
        Value v = 0;
        if (tensor_source(im->file, n->g, body->initializer[i], &s))
            v = build_const(n->g, graph_type(n->g, s.type), s.data);
        names_set(n->arena, &inner->values, graph_str(n->g, body->initializer[i]->name), v);
    }
}

void subgraph_import(ImportNode *n, Scope *inner, const Onnx__GraphProto *body, const char *suffix,
                     uint32_t n_out, Value *out) {
    char **outputs = arena_alloc(n->arena, (body->n_output + 1) * sizeof *outputs);
    for (size_t i = 0; i < body->n_output; i++) outputs[i] = body->output[i]->name;
    import_body(n, inner, suffix, body->node, body->n_node, outputs, body->n_output, n_out, out);
}

static const Onnx__GraphProto *branch_of(ImportNode *n, const char *name) {
    const Onnx__AttributeProto *branch = find_attribute(n->im->scope, n->proto, name);
    if (!branch || !branch->g) node_fail(n, name, "is missing");
    return branch ? branch->g : NULL;
}

/* ---------------------------------------------------------------- If */

static bool is_trained_or_made(Import *im, Value v) {
    if (graph_op(im->g, v) != OP_state) return !fold_is_constant(im, v);
    State *s = graph_state(im->g, attr_s(im->g, v, A_NAME));
    return s && s->trains;
}

Value branch_gate(Import *im, const Scope *s, Value v) {
    Graph *g = im->g;
    if (!v || v == OMITTED) return v;
    if (v & SEQUENCE_BIT) {
        diag_add(g, E_OP_UNSUPPORTED, g->loc, "If",
                 " that reads a sequence where the condition depends on the data");
        return 0;
    }
    if (dtype_info[graph_type_at(g, v)->dtype].cls != CLASS_FLT || !is_trained_or_made(im, v))
        return v;
    Value still = build_unary(g, OP_detach, v);
    return build_map(g, OP_where,
                     (Value[]){s->gate, s->is_else ? still : v, s->is_else ? v : still}, 3);
}

static void import_branch(ImportNode *n, bool is_else, Value gate, Value *out) {
    const Onnx__GraphProto *body = branch_of(n, is_else ? "else_branch" : "then_branch");
    Scope inner;
    if (!body) return;
    subgraph_open(n, body, &inner);
    inner.gate = gate;
    inner.is_else = is_else;
    n->im->n_gates += gate != 0;
    subgraph_import(n, &inner, body, !gate ? "" : is_else ? "/else" : "/then", n->n_out, out);
    n->im->n_gates -= gate != 0;
}

static Value chosen(ImportNode *n, Value condition, Value yes, Value no) {
    Graph *g = n->g;
    if (!yes || !no) return 0;
    if ((yes | no) & SEQUENCE_BIT) {
        diag_add(g, E_OP_UNSUPPORTED, g->loc, "If",
                 " that makes a sequence where the condition depends on the data");
        return 0;
    }
    if (graph_node(g, yes)->type != graph_node(g, no)->type) {
        diag_add(g, E_OP_UNSUPPORTED, g->loc, "If",
                 arena_printf(n->arena,
                              " where the condition depends on the data and the branches make %s "
                              "and %s",
                              type_text(g, node_type(n, yes)), type_text(g, node_type(n, no))));
        return 0;
    }
    return build_map(g, OP_where, (Value[]){condition, yes, no}, 3);
}

static void import_either(ImportNode *n, Value condition) {
    Value *no = arena_alloc(n->arena, (n->n_out + 1) * sizeof *no);
    import_branch(n, false, condition, n->out);
    import_branch(n, true, condition, no);
    for (uint32_t i = 0; i < n->n_out; i++) n->out[i] = chosen(n, condition, n->out[i], no[i]);
}

static void import_if(ImportNode *n) {
    Value condition = node_in(n, 0);
    Tensor known;
    if (!condition || condition & SEQUENCE_BIT || node_type(n, condition)->dtype != DT_BOOL ||
        type_elems(node_type(n, condition)) != 1) {
        node_fail_shapes(n, "the condition of If is one bool");
        return;
    }
    if (node_known(n, condition, &known))
        import_branch(n, !known.u.i[0], 0, n->out);
    else
        import_either(n, build_reshape(n->g, condition, 0, NULL));
}

/* ---------------------------------------------------------------- local functions */

static bool is_same_domain(const char *a, const char *b) {
    const char *x = a && strcmp(a, "ai.onnx") ? a : "", *y = b && strcmp(b, "ai.onnx") ? b : "";
    return !strcmp(x, y);
}

/* By name, domain and overload (which only files of IR 10 have). */
static const Onnx__FunctionProto *function_find(const Import *im, const Onnx__NodeProto *p) {
    const Onnx__ModelProto *m = im->file->proto;
    for (size_t i = 0; i < m->n_functions; i++) {
        const Onnx__FunctionProto *f = m->functions[i];
        if (!f->name || strcmp(f->name, p->op_type) || !is_same_domain(f->domain, p->domain))
            continue;
        if (!strcmp(newer_string(im->arena, &p->base, OVERLOAD_OF_NODE),
                    newer_string(im->arena, &f->base, OVERLOAD_OF_FUNCTION)))
            return f;
    }
    return NULL;
}

static bool is_inside(const Scope *s, const Onnx__FunctionProto *f) {
    for (; s; s = s->calling)
        if (s->function == f) return true;
    return false;
}

/* What the body sees of input i: omitted by the call, or by the call of the function around it. */
static Value passed_input(const ImportNode *n, uint32_t i) {
    Value v = 0;
    if (i >= n->proto->n_input || !*n->proto->input[i]) return OMITTED;
    if (node_in(n, i)) return n->in[i];
    scope_find(n->im, n->im->scope, n->proto->input[i], &v);
    return v;
}

static void import_function(ImportNode *n, const Onnx__FunctionProto *f) {
    Scope inner = {.opsets = f->opset_import,
                   .n_opsets = f->n_opset_import,
                   .caller = n->proto,
                   .calling = n->im->scope,
                   .function = f};
    if (is_inside(n->im->scope, f)) {
        diag_add(n->g, E_MODEL_INVALID, n->g->loc,
                 arena_printf(n->arena, "the local function %s calls itself", f->name));
        return;
    }
    inner.defaults = function_defaults(n->im->file->arena, f, &inner.n_defaults);
    for (uint32_t i = 0; i < f->n_input; i++)
        names_set(n->arena, &inner.values, graph_str(n->g, f->input[i]), passed_input(n, i));
    import_body(n, &inner, "", f->node, f->n_node, f->output, f->n_output, n->n_out, n->out);
}

bool import_inline(ImportNode *n, bool is_open) {
    const Onnx__FunctionProto *f = function_find(n->im, n->proto);
    bool is_if = !strcmp(n->proto->op_type, "If") && is_same_domain(n->proto->domain, "");
    if (!f && !is_if) return false;
    if (nests_too_deep(n)) return true;
    if (f)
        import_function(n, f);
    else if (is_open)
        import_if(n);
    return true;
}
