/* onnx_list.c - lists the folders of ONNX's test data and says by a fixed rule which of them are
 * tests of dense tensors: those an importer of dense tensors owes an answer to. The rule reads the
 * model alone, not what trainc can do. */
#include "onnx.pb-c.h"
#include "onnx_case.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

const char *onnx_cases_installed(void) {
    const char *other = getenv("ONNX_CASES");
    return other ? other : "/usr/share/libonnx-testdata/data";
}

const char *onnx_cases_newer(void) { return BUILD_DIR "/onnx_nodes"; }

/* ---- what is not dense ---- */

static const char *const quantized[] = {
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv",
    "QLinearMatMul",  "ConvInteger",      "MatMulInteger"};
static const char *const data_dependent[] = {"NonZero", "Unique", "Compress", "NonMaxSuppression",
                                             "ImageDecoder"};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static bool is_one_of(const char *op, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(op, list[i])) return true;
    return false;
}

static const char *not_dense_element(int elem_type) {
    switch (elem_type) {
    case ONNX__TENSOR_PROTO__DATA_TYPE__STRING:
        return "strings";
    case ONNX__TENSOR_PROTO__DATA_TYPE__COMPLEX64:
    case ONNX__TENSOR_PROTO__DATA_TYPE__COMPLEX128:
        return "complex numbers";
    case 17:
    case 18:
    case 19:
    case 20:
        return NULL; /* float8 */
    }
    return dtype_from_onnx(elem_type) ? NULL : "packed or unknown elements";
}

static const char *not_dense_value(const Onnx__ValueInfoProto *v) {
    if (!v->type || v->type->value_case == ONNX__TYPE_PROTO__VALUE__NOT_SET) return "no type";
    if (v->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE)
        return "sequences, optionals or maps";
    return not_dense_element(v->type->tensor_type->elem_type);
}

static const char *not_dense_graph(const Onnx__GraphProto *g);

static const char *not_dense_attribute(const Onnx__AttributeProto *a) {
    if (a->g) return not_dense_graph(a->g);
    return a->t ? not_dense_element(a->t->data_type) : NULL;
}

static const char *not_dense_node(const Onnx__NodeProto *n) {
    const char *why = NULL;
    if (n->domain && !strcmp(n->domain, "ai.onnx.ml")) return "of ai.onnx.ml";
    if (is_one_of(n->op_type, quantized, COUNT(quantized))) return "quantized arithmetic";
    if (is_one_of(n->op_type, data_dependent, COUNT(data_dependent)))
        return "shapes that depend on data";
    for (size_t i = 0; !why && i < n->n_attribute; i++) why = not_dense_attribute(n->attribute[i]);
    return why;
}

static const char *not_dense_graph(const Onnx__GraphProto *g) {
    const char *why = NULL;
    for (size_t i = 0; !why && i < g->n_node; i++) why = not_dense_node(g->node[i]);
    for (size_t i = 0; !why && i < g->n_input; i++) why = not_dense_value(g->input[i]);
    for (size_t i = 0; !why && i < g->n_output; i++) why = not_dense_value(g->output[i]);
    return why;
}

/* What lies in a function is judged by its nodes. */
static const char *not_dense_model(const Onnx__ModelProto *m) {
    const char *why = not_dense_graph(m->graph);
    for (size_t f = 0; f < m->n_functions; f++)
        for (size_t i = 0; !why && i < m->functions[f]->n_node; i++)
            why = not_dense_node(m->functions[f]->node[i]);
    return why;
}

/* ---- the list ---- */

static Onnx__ModelProto *read_model(const char *path, Arena *arena) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    const size_t n = (size_t)ftell(f);
    uint8_t *bytes = arena_alloc(arena, n + 1);
    rewind(f);
    const bool is_read = fread(bytes, 1, n, f) == n;
    fclose(f);
    return is_read ? onnx__model_proto__unpack(NULL, n, bytes) : NULL;
}

static int64_t opset_of(const Onnx__ModelProto *m) {
    int64_t version = m->n_opset_import ? m->opset_import[0]->version : 1;
    for (size_t i = 0; i < m->n_opset_import; i++)
        if (!m->opset_import[i]->domain || !*m->opset_import[i]->domain)
            version = m->opset_import[i]->version;
    return version;
}

static bool is_initializer(const Onnx__GraphProto *g, const char *name) {
    for (size_t i = 0; i < g->n_initializer; i++)
        if (!strcmp(g->initializer[i]->name, name)) return true;
    return false;
}

static Type declared(const Onnx__TypeProto__Tensor *tensor) {
    Type t = {.dtype = (uint8_t)dtype_from_onnx(tensor->elem_type)};
    for (size_t i = 0; tensor->shape && i < tensor->shape->n_dim && i < MAX_RANK; i++)
        t.dims[t.rank++] = tensor->shape->dim[i]->dim_value;
    return t;
}

static CaseValue *values_of(const Onnx__GraphProto *g, Onnx__ValueInfoProto **values, size_t n,
                            uint32_t *count, Arena *arena) {
    CaseValue *list = arena_alloc(arena, (n + 1) * sizeof *list);
    *count = 0;
    for (size_t i = 0; i < n; i++) {
        const Onnx__TypeProto *t = values[i]->type;
        if (is_initializer(g, values[i]->name)) continue;
        list[(*count)++] = (CaseValue){arena_strdup(arena, values[i]->name),
                                       t && t->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE
                                           ? declared(t->tensor_type)
                                           : (Type){0}};
    }
    return list;
}

static void list_op(ListedCase *c, const Onnx__NodeProto *n, Arena *arena) {
    const bool is_main = !n->domain || !strcmp(n->domain, "ai.onnx");
    c->op = arena_strdup(arena, n->op_type);
    c->domain = is_main ? "" : arena_strdup(arena, n->domain);
    c->op_inputs = arena_alloc(arena, (n->n_input + 1) * sizeof *c->op_inputs);
    for (size_t i = 0; i < n->n_input; i++)
        c->op_inputs[c->n_op_inputs++] = arena_strdup(arena, n->input[i]);
}

static void list_case(ListedCase *c, Arena *arena) {
    Onnx__ModelProto *m = read_model(arena_printf(arena, "%s/model.onnx", c->folder), arena);
    c->not_dense = "no model";
    if (!m || !m->graph) return;
    c->not_dense = not_dense_model(m);
    c->opset = opset_of(m);
    c->n_nodes = (uint32_t)m->graph->n_node;
    c->inputs = values_of(m->graph, m->graph->input, m->graph->n_input, &c->n_inputs, arena);
    c->outputs = values_of(m->graph, m->graph->output, m->graph->n_output, &c->n_outputs, arena);
    if (m->graph->n_node == 1 && !m->n_functions) list_op(c, m->graph->node[0], arena);
    onnx__model_proto__free_unpacked(m, NULL);
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_test(const struct dirent *e) { return !strncmp(e->d_name, "test_", 5); }

CaseList onnx_cases(const char *root, Arena *arena) {
    static const char *const suites[] = {"node", "pytorch-converted", "pytorch-operator", "simple"};
    CaseList list = {arena_alloc(arena, 8192 * sizeof *list.items), 0};
    for (size_t s = 0; s < COUNT(suites); s++) {
        struct dirent **entries;
        int n = scandir(arena_printf(arena, "%s/%s", root, suites[s]), &entries, is_test, by_name);
        for (int i = 0; i < n; i++) {
            ListedCase *c = &list.items[list.n];
            c->suite = suites[s], c->name = arena_strdup(arena, entries[i]->d_name);
            c->folder = arena_printf(arena, "%s/%s/%s", root, suites[s], c->name);
            if (list.n < 8192) list_case(c, arena), list.n++;
            free(entries[i]);
        }
        if (n >= 0) free(entries);
    }
    return list;
}
