/* identity_path.c - names of parameters from TorchScript's node names.
 *
 * TorchScript calls a node after the module that made it, "/layer1/layer1.0/conv1/Conv": without
 * the operator and without elements that the next one repeats ("layer1") this is the module's
 * path, and an input's role in the node gives the last word, "layer1.0.conv1.weight". A weight
 * whose transpose was folded is called onnx::MatMul_12 and stands for the .weight of the module
 * that multiplies by it, if that module has no modules inside: an outer one may multiply by
 * anything. The bias that is added next names it better where its module is another (registered
 * twice) or its own name is not "bias" (in_proj_bias). A path lacks containers that are never
 * called; parameters that kept their names show what stands before it. Parameters of equal values
 * are one initializer, and an Identity for each other one, called after it. */
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

/* ONNX Runtime's optimizer calls what it fused "/a/b/MatMul/MatMulAddFusion" (or with a '/'
 * behind): without that it is the path of the first of the fused nodes. */
static const char *before_fusion(Identity *id, const char *path) {
    static const char fusion[] = "Fusion";
    for (;;) {
        size_t n = strlen(path), word = sizeof fusion - 1;
        if (n && path[n - 1] == '/') n--;
        if (n < word || strncmp(path + n - word, fusion, word)) return path;
        while (n && path[n - 1] != '/') n--;
        if (n < 2) return path;
        path = arena_printf(id->im->arena, "%.*s", (int)(n - 1), path);
    }
}

/* Elements of "/a/a.0/b/Op": a.0, b. 0 where it is no path. */
static uint32_t path_elements(Identity *id, const char *path, const char **elements) {
    uint32_t n = 0, kept = 0;
    if (!path || *path != '/') return 0;
    path = before_fusion(id, path);
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

/* "transformer.h.0.ln_1", "h.0" -> where "h.0" begins in it, as whole elements; NULL where nowhere
 */
static const char *find_path(const char *name, const char *path) {
    size_t n = strlen(path);
    for (const char *at = strstr(name, path); at; at = strstr(at + 1, path))
        if ((at == name || at[-1] == '.') && (!at[n] || at[n] == '.')) return at;
    return NULL;
}

/* Does a parameter lie in the module that this is the path of? */
static bool has_parameter(const Identity *id, const char *path) {
    for (uint32_t i = 0; i < id->graph->n_initializer; i++)
        if (find_path(id->graph->initializer[i]->name, path)) return true;
    return false;
}

/* A module that is called again has a number behind its name: "mix", "mix_1". */
static const char *first_call(Identity *id, const char **elements, uint32_t n) {
    const char *last = elements[n - 1], *underscore = strrchr(last, '_');
    if (!underscore || !underscore[1] || underscore[1 + strspn(underscore + 1, "0123456789")])
        return last;
    uint32_t known;
    const char *path = join(id, elements, n);
    elements[n - 1] = arena_printf(id->im->arena, "%.*s", (int)(underscore - last), last);
    bool is_again =
        names_get(&id->modules, join(id, elements, n), &known) && !has_parameter(id, path);
    return is_again ? elements[n - 1] : last;
}

const char *path_module(Identity *id, const Onnx__NodeProto *node) {
    const char *elements[MAX_DEPTH];
    if (!node->name || *node->name != '/') return NULL;
    uint32_t n = path_elements(id, node->name, elements);
    for (uint32_t k = 1; k <= n; k++) elements[k - 1] = first_call(id, elements, k);
    return join(id, elements, n);
}

/* ---------------------------------------------------------------- what stands before a path */

static const char *outer_path(Identity *id, const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? graph_str(id->im->g, arena_printf(id->im->arena, "%.*s", (int)(dot - path), path))
               : NULL;
}

/* The path and all that encloses it stand behind `prefix`, if nothing says otherwise. */
static void prefix_note(Identity *id, const char *path, const char *prefix) {
    if (id->n_prefixes == id->cap_prefixes) {
        uint32_t cap = id->cap_prefixes ? id->cap_prefixes * 2 : 16;
        id->prefix = arena_grow(id->im->arena, id->prefix, id->n_prefixes * sizeof *id->prefix,
                                cap * sizeof *id->prefix);
        id->cap_prefixes = cap;
    }
    id->prefix[id->n_prefixes++] = prefix;
    for (; path; path = outer_path(id, path)) {
        uint32_t at;
        bool is_known = names_get(&id->prefixes, path, &at);
        bool is_same = is_known && at != UINT32_MAX && id->prefix[at - 1] == prefix;
        if (!is_same)
            names_set(id->im->arena, &id->prefixes, path, is_known ? UINT32_MAX : id->n_prefixes);
    }
}

static void prefixes_read(Identity *id) {
    for (uint32_t i = 0; i < id->n_readers; i++) {
        const Reader *r = &id->readers[i];
        const char *own = id->graph->initializer[r->initializer]->name;
        const char *module = name_module(id, own), *path = path_module(id, r->node);
        const char *at = path && *path && !name_is_made(own) ? find_path(module, path) : NULL;
        if (at)
            prefix_note(id, path,
                        graph_str(id->im->g,
                                  arena_printf(id->im->arena, "%.*s", (int)(at - module), module)));
    }
}

/* The module's name in the state_dict; NULL where that is not to be told. */
static const char *module_name(Identity *id, const char *path) {
    for (const char *p = path; p; p = outer_path(id, p)) {
        uint32_t at;
        if (!names_get(&id->prefixes, p, &at)) continue;
        if (at == UINT32_MAX) return NULL;
        return graph_str(id->im->g, arena_printf(id->im->arena, "%s%s", id->prefix[at - 1], path));
    }
    return path;
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
    if (id->has_paths) prefixes_read(id);
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

/* The bias that one of the next nodes adds to r's result; NULL where there is none. */
static const char *bias_of(Identity *id, const Reader *r) {
    const char *result = r->node->n_output ? r->node->output[0] : "";
    for (uint32_t i = r->index + 1; i < id->graph->n_node && i < r->index + 4; i++) {
        const Onnx__NodeProto *node = id->graph->node[i];
        if (strcmp(node->op_type, "Add") || node->n_input != 2) continue;
        bool is_second = !strcmp(node->input[1], result);
        const char *other = node->input[is_second ? 0 : 1];
        size_t n = strlen(other);
        if ((is_second || !strcmp(node->input[0], result)) && n >= 4 &&
            !strcmp(other + n - 4, "bias") && *other != '/' && !name_is_made(other))
            return other;
    }
    return NULL;
}

static bool is_inside(const char *module, const char *outer) {
    size_t n = strlen(outer);
    return !n || (!strncmp(module, outer, n) && (!module[n] || module[n] == '.'));
}

static Claim claim_of(Identity *id, const char *module, const char *suffix, Layout layout) {
    const char *name = graph_str(id->im->g, arena_printf(id->im->arena, "%s.%s", module, suffix));
    bool is_buffer = !strncmp(suffix, "running_", 8);
    return (Claim){.kind = is_buffer ? CLAIM_BUFFER : CLAIM_PARAM, .name = name, .layout = layout};
}

/* MatMul, or Gemm that an optimizer made of MatMul and Add. */
static bool is_product(const Onnx__NodeProto *node) {
    if (!strcmp(node->op_type, "MatMul")) return true;
    const Onnx__AttributeProto *turned = find_attribute(NULL, node, "transB");
    return !strcmp(node->op_type, "Gemm") && !(turned && turned->i);
}

static Claim claim_folded(Identity *id, const Reader *r, const char *module) {
    const Type *t = &id->im->sources[r->initializer].type;
    if (!is_product(r->node) || r->input != 1 || t->rank != 2) return (Claim){0};
    const char *bias = strcmp(r->node->op_type, "Gemm") ? bias_of(id, r) : NULL;
    const char *of_bias = bias ? name_module(id, bias) : NULL;
    if (!of_bias || (strcmp(of_bias, module) && is_inside(module, of_bias)))
        return claim_of(id, module, "weight", LAYOUT_TRANSPOSED);
    const char *word = name_suffix(bias);
    return claim_of(id, of_bias,
                    arena_printf(id->im->arena, "%.*sweight", (int)strlen(word) - 4, word),
                    LAYOUT_TRANSPOSED);
}

static bool has_node(Identity *id, const Reader *r, const char *op) {
    const char *module = path_module(id, r->node);
    for (uint32_t i = r->index > 8 ? r->index - 8 : 0; i < r->index; i++)
        if (!strcmp(id->graph->node[i]->op_type, op) &&
            path_module(id, id->graph->node[i]) == module)
            return true;
    return false;
}

/* Group norm's scale and shift and PRelu's slope, folded to [C,1,1]. */
static Claim claim_column(Identity *id, const Reader *r, const char *module) {
    const Type *t = &id->im->sources[r->initializer].type;
    bool is_scale = !strcmp(r->node->op_type, "Mul"), is_shift = !strcmp(r->node->op_type, "Add");
    bool is_column = t->rank > 1;
    for (int d = 1; d < t->rank; d++) is_column &= t->dims[d] == 1;
    if (is_column && !strcmp(r->node->op_type, "PRelu") && r->input == 1)
        return claim_of(id, module, "weight", LAYOUT_RESHAPED);
    if (!is_column || (!is_scale && !is_shift) || !has_node(id, r, "InstanceNormalization"))
        return (Claim){0};
    return claim_of(id, module, is_scale ? "weight" : "bias", LAYOUT_RESHAPED);
}

const char *path_leaf(Identity *id, const Onnx__NodeProto *node) {
    const char *path = path_module(id, node);
    return path && (!*path || is_leaf(id, path)) ? module_name(id, path) : NULL;
}

static Claim claim_made(Identity *id, const Reader *r) {
    const char *module = path_leaf(id, r->node);
    if (!module || !*module) return (Claim){0};
    Claim c = claim_folded(id, r, module);
    return c.kind ? c : claim_column(id, r, module);
}

/* The only reader of a value. */
static bool reader_of(const Identity *id, const char *value, uint32_t initializer, Reader *reader) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < id->graph->n_node; i++)
        for (uint32_t k = 0; k < id->graph->node[i]->n_input; k++) {
            if (strcmp(id->graph->node[i]->input[k], value)) continue;
            *reader = (Reader){
                .node = id->graph->node[i], .index = i, .input = k, .initializer = initializer};
            n++;
        }
    return n == 1;
}

/* An Identity is called after the parameter that it stands for, or reads for it. */
static Claim claim_identity(Identity *id, const Reader *r) {
    const char *name = r->node->output[0];
    Reader next;
    if (*name == '/') return (Claim){0};
    if (name_is_made(name)) {
        Claim c = reader_of(id, name, r->initializer, &next) ? claim_made(id, &next) : (Claim){0};
        c.is_exact = c.kind != CLAIM_NONE;
        return c;
    }
    bool is_buffer = !strncmp(name_suffix(name), "running_", 8);
    return (Claim){.kind = is_buffer ? CLAIM_BUFFER : CLAIM_PARAM,
                   .name = graph_str(id->im->g, name),
                   .is_exact = true};
}

Claim path_claim(Identity *id, const Reader *r) {
    const char *own = id->graph->initializer[r->initializer]->name;
    if (!strcmp(r->node->op_type, "Identity") && r->node->n_output == 1)
        return claim_identity(id, r);
    if (name_is_made(own)) return claim_made(id, r);
    const char *path = path_module(id, r->node);
    const char *module = path && *path ? module_name(id, path) : NULL;
    if (!module || (!is_leaf(id, path) && strcmp(module, name_module(id, own)))) return (Claim){0};
    bool is_own = is_inside(name_module(id, own), module) &&
                  strcmp(r->node->op_type, "BatchNormalization"); /* it may be called anything */
    if (is_own) return (Claim){.kind = CLAIM_PARAM, .name = graph_str(id->im->g, own)};
    return claim_of(id, module, role_suffix(r, own), LAYOUT_KEPT);
}
