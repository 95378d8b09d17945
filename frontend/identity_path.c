/* identity_path.c - names of parameters from TorchScript's node names.
 *
 * TorchScript calls a node after the module that made it, "/layer1/layer1.0/conv1/Conv": without
 * the operator and without elements that the next one repeats ("layer1") this is the module's
 * path, and an input's role in the node gives the last word, "layer1.0.conv1.weight". A weight
 * whose transpose was folded is called onnx::MatMul_12 and stands for the .weight of the module
 * that multiplies by it, if that module has no modules inside: an outer one may multiply by
 * anything. The bias that is added next names a module that stands in the state_dict under another
 * name than its path (modules that are registered twice). */
#include "identity.h"
#include <string.h>

enum { MODULE_LEAF = 1, MODULE_INNER = 2, MAX_DEPTH = 64 };

const char *name_suffix(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

const char *name_module(Identity *id, const char *name) {
    const char *dot = strrchr(name, '.');
    return dot ? arena_printf(id->im->arena, "%.*s", (int)(dot - name), name) : "";
}

/* Names that the last layer goes by, the one that shares its matrix with the embedding. */
bool path_is_head(const char *name) {
    static const char *const heads[] = {"lm_head",   "proj_out",  "decoder", "output_projection",
                                        "embed_out", "generator", "output",  "head"};
    const char *dot = strrchr(name, '.'), *end = dot ? dot : name + strlen(name), *from = end;
    while (from > name && from[-1] != '.') from--;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (strlen(heads[i]) == (size_t)(end - from) &&
            !strncmp(heads[i], from, (size_t)(end - from)))
            return true;
    return false;
}

/* ---------------------------------------------------------------- paths */

/* Elements of "/a/a.0/b/Op": a.0, b. 0 where it is no path. */
static uint32_t path_elements(Identity *id, const char *path, const char **elements) {
    uint32_t n = 0, kept = 0;
    if (!path || *path != '/') return 0;
    while (path && n < MAX_DEPTH) {
        const char *from = path + 1, *end = strchr(from, '/');
        if (end) elements[n++] = arena_printf(id->im->arena, "%.*s", (int)(end - from), from);
        path = end;
    }
    for (uint32_t i = 0; i < n; i++) {
        size_t length = strlen(elements[i]);
        bool is_repeated = i + 1 < n && !strncmp(elements[i], elements[i + 1], length) &&
                           elements[i + 1][length] == '.';
        if (!is_repeated) elements[kept++] = elements[i];
    }
    return kept;
}

static const char *join(Identity *id, const char **elements, uint32_t n) {
    const char *path = "";
    for (uint32_t i = 0; i < n; i++)
        path = arena_printf(id->im->arena, "%s%s%s", path, i ? "." : "", elements[i]);
    return graph_str(id->im->g, path);
}

const char *path_module(Identity *id, const Onnx__NodeProto *node) {
    const char *elements[MAX_DEPTH];
    if (!node->name || *node->name != '/') return NULL;
    return join(id, elements, path_elements(id, node->name, elements));
}

void path_read(Identity *id) {
    for (size_t i = 0; i < id->graph->n_node; i++) {
        const char *elements[MAX_DEPTH];
        uint32_t n = path_elements(id, id->graph->node[i]->name, elements), known;
        for (uint32_t k = 1; k < n; k++)
            names_set(id->im->arena, &id->modules, join(id, elements, k), MODULE_INNER);
        const char *module = join(id, elements, n);
        id->has_paths |= n > 0;
        if (n && !names_get(&id->modules, module, &known))
            names_set(id->im->arena, &id->modules, module, MODULE_LEAF);
    }
}

static bool is_leaf(Identity *id, const char *module) {
    uint32_t kind;
    return names_get(&id->modules, module, &kind) && kind == MODULE_LEAF;
}

/* ---------------------------------------------------------------- claims */

typedef struct PathRole {
    const char *onnx;
    int input; /* -1: any */
    const char *suffix;
} PathRole;
static const PathRole path_roles[] = {
    {"LayerNormalization", 1, "weight"},
    {"LayerNormalization", 2, "bias"},
    {"InstanceNormalization", 1, "weight"},
    {"InstanceNormalization", 2, "bias"},
    {"GroupNormalization", 1, "weight"},
    {"GroupNormalization", 2, "bias"},
    {"BatchNormalization", 1, "weight"},
    {"BatchNormalization", 2, "bias"},
    {"BatchNormalization", 3, "running_mean"},
    {"BatchNormalization", 4, "running_var"},
    {"Conv", 1, "weight"},
    {"Conv", 2, "bias"},
    {"ConvTranspose", 1, "weight"},
    {"ConvTranspose", 2, "bias"},
    {"Gemm", 1, "weight"},
    {"Gemm", 2, "bias"},
    {"MatMul", 1, "weight"},
    {"Transpose", 0, "weight"},
    {"Gather", 0, "weight"},
    {"PRelu", 1, "weight"},
};

static const char *role_suffix(const Reader *r, const char *own) {
    for (size_t i = 0; i < sizeof path_roles / sizeof *path_roles; i++)
        if (!strcmp(path_roles[i].onnx, r->node->op_type) &&
            (path_roles[i].input < 0 || path_roles[i].input == (int)r->input))
            return path_roles[i].suffix;
    return name_suffix(own);
}

/* The module of the bias that the node after r's adds to its result; NULL where there is none. */
static const char *module_of_bias(Identity *id, const Reader *r) {
    const char *result = r->node->output[0];
    for (uint32_t i = r->index + 1; i < id->graph->n_node && i < r->index + 4; i++) {
        const Onnx__NodeProto *node = id->graph->node[i];
        if (strcmp(node->op_type, "Add") || node->n_input != 2) continue;
        bool is_second = !strcmp(node->input[1], result);
        const char *other = node->input[is_second ? 0 : 1];
        uint32_t known;
        if ((is_second || !strcmp(node->input[0], result)) && !strcmp(name_suffix(other), "bias") &&
            names_get(&id->im->initializers, graph_str(id->im->g, other), &known))
            return name_module(id, other);
    }
    return NULL;
}

static bool is_inside(const char *module, const char *outer) {
    size_t n = strlen(outer);
    return !n || (!strncmp(module, outer, n) && (!module[n] || module[n] == '.'));
}

static Claim claim_folded(Identity *id, const Reader *r, const char *module) {
    const Type *t = &id->im->sources[r->initializer].type;
    if (strcmp(r->node->op_type, "MatMul") || r->input != 1 || t->rank != 2) return (Claim){0};
    const char *of_bias = module_of_bias(id, r);
    if (of_bias && !is_inside(module, of_bias)) module = of_bias;
    return (Claim){CLAIM_PARAM,
                   graph_str(id->im->g, arena_printf(id->im->arena, "%s.weight", module)),
                   LAYOUT_TRANSPOSED, false, false};
}

static bool has_node(Identity *id, const Reader *r, const char *op) {
    const char *module = path_module(id, r->node);
    for (uint32_t i = r->index > 8 ? r->index - 8 : 0; i < r->index; i++)
        if (!strcmp(id->graph->node[i]->op_type, op) &&
            path_module(id, id->graph->node[i]) == module)
            return true;
    return false;
}

/* Group norm's scale and shift, folded to [C,1,1]. */
static Claim claim_column(Identity *id, const Reader *r, const char *module) {
    const Type *t = &id->im->sources[r->initializer].type;
    bool is_scale = !strcmp(r->node->op_type, "Mul"), is_shift = !strcmp(r->node->op_type, "Add");
    bool is_column = t->rank > 1;
    for (int d = 1; d < t->rank; d++) is_column &= t->dims[d] == 1;
    if (!is_column || (!is_scale && !is_shift) || !has_node(id, r, "InstanceNormalization"))
        return (Claim){0};
    return (Claim){CLAIM_PARAM,
                   graph_str(id->im->g, arena_printf(id->im->arena, "%s.%s", module,
                                                     is_scale ? "weight" : "bias")),
                   LAYOUT_RESHAPED, false, false};
}

Claim path_claim(Identity *id, const Reader *r) {
    const char *own = id->graph->initializer[r->initializer]->name;
    const char *module = path_module(id, r->node);
    if (!module || !*module) return (Claim){0};
    if (name_is_made(own)) {
        if (!is_leaf(id, module)) return (Claim){0};
        Claim c = claim_folded(id, r, module);
        return c.kind ? c : claim_column(id, r, module);
    }
    bool is_own =
        !strcmp(module, name_module(id, own)) &&
        strcmp(r->node->op_type, "BatchNormalization"); /* a module may call it as it likes */
    const char *name =
        graph_str(id->im->g,
                  is_own ? own : arena_printf(id->im->arena, "%s.%s", module, role_suffix(r, own)));
    bool is_buffer = !strncmp(name_suffix(name), "running_", 8);
    if (!is_leaf(id, module) && strcmp(name, own)) return (Claim){0};
    return (Claim){is_buffer ? CLAIM_BUFFER : CLAIM_PARAM, name, LAYOUT_KEPT, false, false};
}
