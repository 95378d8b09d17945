/* onnx_case.c - reads, imports and checks one case of ONNX's test data. */
#include "onnx_case.h"
#include "onnx_expect.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the data set ---- */

static bool read_tensors(OnnxCase *c, const char *kind, onnx_tensors *list, uint32_t *n) {
    for (*n = 0; *n < MAX_CASE_TENSORS; ++*n) {
        char *error = NULL;
        const char *path =
            arena_printf(c->arena, "%s/test_data_set_0/%s_%u.pb", c->listed->folder, kind, *n);
        if (access(path, R_OK) != 0) return true;
        bool is_read = onnx_wire_tensor(path, &list[*n], &error) == TRAINC_OK;
        free(error);
        if (!is_read) {
            onnx_wire_free(&list[*n]);
            return false;
        }
    }
    return false;
}

static Type type_of(const onnx_tensor *t) {
    Type type = {.dtype = (uint8_t)t->dtype, .rank = (uint8_t)t->rank};
    memcpy(type.dims, t->dims, (size_t)t->rank * sizeof *t->dims);
    return type;
}

/* Releases up to 1.12 wrote bf16 as 16-bit integers of the same bits, and of a tensor that only
 * gives its type one element: the model says what they are. */
static void restore(onnx_tensor *t, const Type *declared) {
    const int64_t n = type_elems(declared);
    if (declared->dtype == DT_BF16 && t->dtype == (int)DT_U16) t->dtype = DT_BF16;
    const size_t size = dtype_info[t->dtype].bytes;
    if (t->dtype != declared->dtype || n <= 1 || t->bytes != size) return;
    char *data = malloc((size_t)n * size);
    for (int64_t i = 0; i < n; i++) memcpy(data + i * (int64_t)size, t->data, size);
    free(t->data);
    t->data = data, t->bytes = (uint64_t)n * size;
    t->rank = declared->rank;
    memcpy(t->dims, declared->dims, sizeof t->dims);
}

/* Cases that PyTorch made leave the tensors unnamed: they follow the order of the graph. */
static void name_tensors(onnx_tensors *tensors, uint32_t n, const CaseValue *values,
                         uint32_t n_values) {
    for (uint32_t i = 0; i < n; i++) {
        onnx_tensor *t = &tensors[i].items[0];
        if (!*t->name && i < n_values) {
            free(t->name);
            t->name = strdup(values[i].name);
        }
        for (uint32_t k = 0; k < n_values; k++)
            if (!strcmp(values[k].name, t->name)) restore(t, &values[k].type);
    }
}

/* ---- leaves ---- */

const Tensor *onnx_case_input(OnnxCase *c, const char *name) {
    for (uint32_t i = 0; i < c->n_inputs; i++) {
        const onnx_tensor *t = &c->inputs[i].items[0];
        if (strcmp(t->name, name) != 0) continue;
        Tensor *result = arena_alloc(c->arena, sizeof *result);
        *result = tensor_from_bytes(c->arena, type_of(t), t->data);
        return result;
    }
    return NULL;
}

/* Initializers are states: their bytes are in the file. */
const Tensor *onnx_case_state(OnnxCase *c, const Graph *g, const char *name) {
    const State *s = graph_state(g, name);
    if (!s) return NULL;
    void *bytes = arena_alloc(c->arena, s->source.bytes + 1);
    FILE *f = s->source.file ? fopen(s->source.file, "rb") : NULL;
    if (f) {
        bool is_read = fseek(f, (long)s->source.offset, SEEK_SET) == 0 &&
                       fread(bytes, 1, s->source.bytes, f) == s->source.bytes;
        fclose(f);
        if (!is_read) return NULL;
    }
    Tensor *result = arena_alloc(c->arena, sizeof *result);
    *result = tensor_from_bytes(c->arena, g->types[s->type], f ? bytes : s->source.data);
    return result;
}

/* ---- import ---- */

/* Which inputs become constants (as --set does): none; integers and truth values; all but the
 * first; all. */
static bool is_set(int attempt, uint32_t i, int dtype) {
    bool is_float = dtype_info[dtype].cls == CLASS_FLT;
    return attempt == 3 || (attempt == 2 && i > 0) || (attempt == 1 && !is_float);
}

/* Every extent comes from the data, as for `trainc eval`. */
static void bind_dims(OnnxCase *c, const onnx_tensor *t, DimBinding *dims, uint32_t *n) {
    for (int axis = 0; axis < t->rank; axis++)
        dims[(*n)++] = (DimBinding){arena_printf(c->arena, "%s[%d]", t->name, axis), t->dims[axis]};
}

static bool import_attempt(OnnxCase *c, int attempt) {
    InputValue sets[MAX_CASE_TENSORS];
    DimBinding dims[MAX_CASE_TENSORS * MAX_RANK];
    ImportOptions o = {.path = arena_printf(c->arena, "%s/model.onnx", c->listed->folder),
                       .sets = sets,
                       .dims = dims};
    for (uint32_t i = 0; i < c->n_inputs; i++) {
        const onnx_tensor *t = &c->inputs[i].items[0];
        if (is_set(attempt, i, t->dtype))
            sets[o.n_sets++] = (InputValue){.name = t->name, .data = t->data, .type = type_of(t)};
        else
            bind_dims(c, t, dims, &o.n_dims);
    }
    c->attempt = attempt;
    return model_import(&o, &c->model);
}

/* The refusal of the first attempt is the one that a user sees. */
static CaseResult import(OnnxCase *c) {
    for (int attempt = 0; attempt < 4; attempt++) {
        if (import_attempt(c, attempt)) return CASE_PASSED;
        Graph *g = c->model.graph;
        if (attempt == 0)
            c->exit_status = diag_exit_status(g),
            c->why = arena_printf(c->arena, "%s: %s", diag_info[g->diags.items[0].code].code,
                                  g->diags.items[0].text);
        model_free(&c->model);
        c->model = (Model){0};
    }
    return CASE_REFUSED;
}

CaseResult onnx_case_open(OnnxCase *c, const ListedCase *listed, Arena *arena) {
    *c = (OnnxCase){.listed = listed, .arena = arena};
    c->entry = strstr(listed->name, "training") ? ENTRY_MICRO : ENTRY_EVAL;
    c->why = "holds strings, sequences or other types";
    bool is_read = read_tensors(c, "input", c->inputs, &c->n_inputs) &&
                   read_tensors(c, "output", c->outputs, &c->n_outputs);
    if (!is_read || !c->n_outputs) return CASE_UNREADABLE;
    name_tensors(c->inputs, c->n_inputs, listed->inputs, listed->n_inputs);
    name_tensors(c->outputs, c->n_outputs, listed->outputs, listed->n_outputs);
    return import(c);
}

void onnx_case_free(OnnxCase *c) {
    for (uint32_t i = 0; i < MAX_CASE_TENSORS; i++)
        onnx_wire_free(&c->inputs[i]), onnx_wire_free(&c->outputs[i]);
    if (c->model.graph) model_free(&c->model);
    c->model = (Model){0};
}

/* ---- results ---- */

const char *onnx_case_check(OnnxCase *c, const Tensor *const *got) {
    Tensor want[MAX_CASE_TENSORS];
    for (uint32_t i = 0; i < c->n_outputs; i++) {
        const onnx_tensor *t = &c->outputs[i].items[0];
        want[i] = tensor_from_bytes(c->arena, type_of(t), t->data);
        if (!got[i]) return arena_printf(c->arena, "output %s is missing", t->name);
        if (!dims_equal(&want[i].type, &got[i]->type) || want[i].type.dtype != got[i]->type.dtype)
            return arena_printf(c->arena, "output %s has another type", t->name);
    }
    return onnx_expect(c, want, got);
}

static const Tensor *leaf_input(void *user, const char *name) {
    return onnx_case_input(user, name);
}
static const Tensor *leaf_state(void *user, const char *name) {
    OnnxCase *c = user;
    return onnx_case_state(c, c->model.graph, name);
}
static double no_scalar(void *user, const char *name) { return (void)user, (void)name, 0; }

CaseResult onnx_case_interpret(OnnxCase *c) {
    const Graph *g = c->model.graph;
    InterpEnv env = {.input = leaf_input, .state = leaf_state, .scalar = no_scalar, .user = c};
    const Entry *e = &g->entries[c->entry];
    Tensor *results = arena_alloc(c->arena, (e->n + 1) * sizeof *results);
    const Tensor *got[MAX_CASE_TENSORS] = {0};
    c->why = "the interpreter refuses";
    if (!interp_entry(g, c->entry, &env, c->arena, results, stderr)) return CASE_WRONG;
    for (uint32_t i = 0; i < c->n_outputs; i++) {
        const Root *root = graph_root(g, c->entry, false, c->outputs[i].items[0].name);
        got[i] = root ? &results[root - e->roots] : NULL;
    }
    c->why = onnx_case_check(c, got);
    return c->why ? CASE_WRONG : CASE_PASSED;
}
