#include "onnx_case.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool read_tensors(OnnxCase *c, const char *kind, onnx_tensors *list, uint32_t *n) {
    for (*n = 0; *n < MAX_CASE_TENSORS; ++*n) {
        char *error = NULL;
        const char *path =
            arena_printf(c->arena, "%s/test_data_set_0/%s_%u.pb", c->folder, kind, *n);
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

static const Tensor *case_input(void *user, const char *name) {
    OnnxCase *c = user;
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
typedef struct CaseUser {
    OnnxCase *c;
    Graph *g;
} CaseUser;

static const Tensor *user_input(void *user, const char *name) {
    return case_input(((CaseUser *)user)->c, name);
}

static const Tensor *user_state(void *user, const char *name) {
    CaseUser *u = user;
    const State *s = graph_state(u->g, name);
    void *bytes = arena_alloc(u->c->arena, s->source.bytes + 1);
    FILE *f = s->source.file ? fopen(s->source.file, "rb") : NULL;
    if (f) {
        bool is_read = fseek(f, (long)s->source.offset, SEEK_SET) == 0 &&
                       fread(bytes, 1, s->source.bytes, f) == s->source.bytes;
        fclose(f);
        if (!is_read) return NULL;
    }
    Tensor *result = arena_alloc(u->c->arena, sizeof *result);
    *result = tensor_from_bytes(u->c->arena, u->g->types[s->type], f ? bytes : s->source.data);
    return result;
}

static double no_scalar(void *user, const char *name) { return (void)user, (void)name, 0; }

static bool is_close(double got, double want, double rtol, double atol) {
    if (isnan(want) || isinf(want)) return (isnan(want) && isnan(got)) || got == want;
    return fabs(got - want) <= atol + rtol * fabs(want);
}

static const char *compare(OnnxCase *c, const onnx_tensor *want, const Tensor *got) {
    Type t = type_of(want);
    Tensor w = tensor_from_bytes(c->arena, t, want->data);
    if (!dims_equal(&t, &got->type) || t.dtype != got->type.dtype)
        return arena_printf(c->arena, "output %s has another type", want->name);
    bool is_float = dtype_info[t.dtype].cls == CLASS_FLT;
    double rtol = t.dtype == DT_BF16  ? 1.6e-2
                  : t.dtype == DT_F16 ? 2e-3
                                      : 1e-4,
           atol = rtol / 100; /* results are not rounded here */
    for (int64_t i = 0; i < type_elems(&t); i++) {
        bool is_same =
            is_float ? is_close(got->u.f[i], w.u.f[i], rtol, atol) : got->u.i[i] == w.u.i[i];
        if (!is_same)
            return arena_printf(c->arena, "output %s[%lld] is %.9g, not %.9g", want->name,
                                (long long)i, is_float ? got->u.f[i] : (double)got->u.i[i],
                                is_float ? w.u.f[i] : (double)w.u.i[i]);
    }
    return NULL;
}

static CaseResult interpret(OnnxCase *c, Graph *g, EntryKind entry, const char **why) {
    CaseUser user = {c, g};
    InterpEnv env = {.input = user_input, .state = user_state, .scalar = no_scalar, .user = &user};
    const Entry *e = &g->entries[entry];
    Tensor *results = arena_alloc(c->arena, (e->n + 1) * sizeof *results);
    *why = "the interpreter refuses";
    if (!interp_entry(g, entry, &env, c->arena, results, stderr)) return CASE_WRONG;
    for (uint32_t i = 0; i < c->n_outputs; i++) {
        const onnx_tensor *want = &c->outputs[i].items[0];
        const Root *root = graph_root(g, entry, false, want->name);
        *why = arena_printf(c->arena, "output %s is missing", want->name);
        if (!root) return CASE_WRONG;
        *why = compare(c, want, &results[root - e->roots]);
        if (*why) return CASE_WRONG;
    }
    return CASE_PASSED;
}

/* Which inputs become constants (as --set does): none; integers and truth values; all but the
 * first; all. */
static bool is_set(int attempt, uint32_t i, int dtype) {
    bool is_float = dtype_info[dtype].cls == CLASS_FLT;
    return attempt == 3 || (attempt == 2 && i > 0) || (attempt == 1 && !is_float);
}

static bool import_attempt(OnnxCase *c, int attempt, Model *m) {
    InputValue sets[MAX_CASE_TENSORS];
    ImportOptions o = {.path = arena_printf(c->arena, "%s/model.onnx", c->folder), .sets = sets};
    for (uint32_t i = 0; i < c->n_inputs; i++) {
        const onnx_tensor *t = &c->inputs[i].items[0];
        if (is_set(attempt, i, t->dtype))
            sets[o.n_sets++] = (InputValue){.name = t->name, .data = t->data, .type = type_of(t)};
    }
    return model_import(&o, m);
}

static void name_tensor(onnx_tensor *t, const char *name) {
    if (*t->name) return;
    free(t->name);
    t->name = strdup(name);
}

/* Cases that PyTorch made leave the tensors unnamed: they follow the order of the graph. */
static void name_tensors(OnnxCase *c) {
    Model m;
    import_attempt(c, 0, &m);
    for (uint32_t i = 0; i < c->n_inputs && i < m.graph->n_inputs; i++)
        name_tensor(&c->inputs[i].items[0], m.graph->inputs[i].name);
    for (uint32_t i = 0; i < c->n_outputs && i < m.n_outputs; i++)
        name_tensor(&c->outputs[i].items[0], m.output_names[i]);
    model_free(&m);
}

static CaseResult import_and_run(OnnxCase *c, EntryKind entry, const char **why) {
    CaseResult result = CASE_REFUSED;
    *why = "";
    if (!*c->inputs[0].items[0].name || !*c->outputs[0].items[0].name) name_tensors(c);
    for (int attempt = 0; attempt < 4 && result == CASE_REFUSED; attempt++) {
        Model m;
        if (import_attempt(c, attempt, &m))
            result = interpret(c, m.graph, entry, why);
        else
            *why = arena_printf(c->arena, "%s: %s", diag_info[m.graph->diags.items[0].code].code,
                                m.graph->diags.items[0].text);
        if (*why) *why = arena_strdup(c->arena, *why);
        model_free(&m);
    }
    return result;
}

CaseResult onnx_case_run(const char *folder, EntryKind entry, const char **why, Arena *arena) {
    OnnxCase c = {.folder = folder, .arena = arena};
    CaseResult result = CASE_UNREADABLE;
    *why = "holds strings, sequences or other types";
    bool is_read = read_tensors(&c, "input", c.inputs, &c.n_inputs) &&
                   read_tensors(&c, "output", c.outputs, &c.n_outputs);
    if (is_read && c.n_inputs && c.n_outputs) result = import_and_run(&c, entry, why);
    for (uint32_t i = 0; i < c.n_inputs; i++) onnx_wire_free(&c.inputs[i]);
    for (uint32_t i = 0; i < c.n_outputs; i++) onnx_wire_free(&c.outputs[i]);
    return result;
}
