/* inline.c - nodes that stand for other nodes: `If` whose condition is known becomes its branch, a
 * call of a local function becomes the function's body. Names of the body live in a scope of their
 * own; locations get the calling node's name as a prefix. */
#include "context.h"
#include <string.h>

enum { MAX_NESTING = 32 };

bool nests_too_deep(ImportNode *n) {
    if (n->im->scope->depth < MAX_NESTING) return false;
    diag_add(n->g, E_MODEL_INVALID, n->g->loc, "functions or branches are nested too deeply");
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
                     .calling = im->scope->calling};
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

static void import_branch(ImportNode *n, const Onnx__GraphProto *body) {
    Scope inner;
    subgraph_open(n, body, &inner);
    subgraph_import(n, &inner, body, "", n->n_out, n->out);
}

static void import_if(ImportNode *n) {
    Tensor condition;
    if (!node_known(n, node_in(n, 0), &condition) || type_elems(&condition.type) != 1) {
        diag_add(n->g, E_OP_UNSUPPORTED, n->g->loc, "If",
                 " where the condition depends on the data");
        return;
    }
    const char *name = condition.u.i[0] ? "then_branch" : "else_branch";
    const Onnx__AttributeProto *branch = find_attribute(n->im->scope, n->proto, name);
    if (!branch || !branch->g)
        node_fail(n, name, "is missing");
    else
        import_branch(n, branch->g);
}

static const Onnx__FunctionProto *function_find(const Import *im, const Onnx__NodeProto *p) {
    const Onnx__ModelProto *m = im->file->proto;
    for (size_t i = 0; i < m->n_functions; i++) {
        const Onnx__FunctionProto *f = m->functions[i];
        if (f->name && !strcmp(f->name, p->op_type) &&
            !strcmp(f->domain ? f->domain : "", p->domain ? p->domain : ""))
            return f;
    }
    return NULL;
}

static void import_function(ImportNode *n, const Onnx__FunctionProto *f) {
    Scope inner = {.opsets = f->opset_import,
                   .n_opsets = f->n_opset_import,
                   .caller = n->proto,
                   .calling = n->im->scope};
    for (uint32_t i = 0; i < f->n_input; i++)
        names_set(n->arena, &inner.values, graph_str(n->g, f->input[i]),
                  i < n->proto->n_input && *n->proto->input[i] ? node_in(n, i) : OMITTED);
    import_body(n, &inner, "", f->node, f->n_node, f->output, f->n_output, n->n_out, n->out);
}

bool import_inline(ImportNode *n, bool is_open) {
    const Onnx__FunctionProto *f = function_find(n->im, n->proto);
    bool is_if = !strcmp(n->proto->op_type, "If");
    if (!f && !is_if) return false;
    if (nests_too_deep(n)) return true;
    if (f)
        import_function(n, f);
    else if (is_open)
        import_if(n);
    return true;
}
