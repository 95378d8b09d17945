/* cmd_eval_engine.c - the two engines of `trainc eval`: the reference interpreter, and a library
 * compiled into a temporary folder. */
#include "eval_engine.h"
#include "step_plan.h"
#include "trainc.h"
#include <dlfcn.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

static int import(const Options *o, Model *m) {
    ImportOptions io = {.path = o->model,
                        .dims = o->dims,
                        .n_dims = o->n_dims,
                        .sets = o->sets,
                        .n_sets = o->n_sets,
                        .eval_only = true};
    bool ok = model_import(&io, m);
    if (m->graph && (!ok || m->graph->diags.n)) diag_print(m->graph, stderr);
    return ok ? 0 : m->graph ? diag_exit_status(m->graph) : 4;
}

/* Every input of the graph has data of its shape, and no data is left over. */
static int check_inputs(const Graph *g, const EvalInput *in, uint32_t n) {
    int status = 0;
    const char **names = arena_alloc(g->arena, (g->n_inputs + 1) * sizeof *names);
    for (uint32_t i = 0; i < g->n_inputs; i++) names[i] = g->inputs[i].name;
    for (uint32_t i = 0; i < n; i++)
        if (!graph_input(g, in[i].name))
            fprintf(stderr, "trainc: --data %s: the model has no such input %s\n", in[i].name,
                    did_you_mean(g->arena, in[i].name, names, g->n_inputs)),
                status = 2;
    for (uint32_t i = 0; i < g->n_inputs; i++) {
        const Input *want = &g->inputs[i];
        const EvalInput *have = NULL;
        for (uint32_t k = 0; k < n; k++)
            if (!strcmp(in[k].name, want->name)) have = &in[k];
        if (!have)
            fprintf(stderr, "trainc: input %s is not given: --data %s=FILE\n", want->name,
                    want->name),
                status = 2;
        else if (!dims_equal(&have->type, &g->types[want->type]))
            fprintf(stderr, "trainc: --data %s: not the shape of the input\n", want->name),
                status = 5;
    }
    return status;
}

/* ---- interpreter ---- */

typedef struct Leaves {
    const Graph *g;
    Arena *arena;
    const EvalInput *in;
    uint32_t n;
} Leaves;

static const Tensor *as_class(Arena *a, Tensor t, DType want) {
    bool to_float = dtype_info[want].cls == CLASS_FLT,
         is_float = dtype_info[t.type.dtype].cls == CLASS_FLT;
    for (int64_t i = 0, n = type_elems(&t.type); to_float != is_float && i < n; i++) {
        if (to_float)
            t.u.f[i] = (double)t.u.i[i];
        else
            t.u.i[i] = (int64_t)t.u.f[i];
    }
    t.type.dtype = (uint8_t)want;
    Tensor *kept = arena_alloc(a, sizeof *kept);
    *kept = t;
    return kept;
}

static const Tensor *leaf_input(void *user, const char *name) {
    const Leaves *l = user;
    for (uint32_t i = 0; i < l->n; i++)
        if (!strcmp(l->in[i].name, name))
            return as_class(l->arena, tensor_from_bytes(l->arena, l->in[i].type, l->in[i].data),
                            (DType)l->g->types[graph_input(l->g, name)->type].dtype);
    return NULL;
}

static const Tensor *leaf_state(void *user, const char *name) {
    const Leaves *l = user;
    const State *s = graph_state(l->g, name);
    if (!s) return NULL;
    const Type *t = &l->g->types[s->type];
    Tensor *out = arena_alloc(l->arena, sizeof *out);
    if (s->source.data)
        *out = tensor_from_bytes(l->arena, *t, s->source.data);
    else if (s->source.file) {
        void *bytes = arena_alloc(l->arena, type_bytes(t) + 1);
        int fd = open(s->source.file, O_RDONLY);
        ssize_t got = fd < 0 ? -1 : pread(fd, bytes, type_bytes(t), (off_t)s->source.offset);
        if (fd >= 0) close(fd);
        if (got != (ssize_t)type_bytes(t)) return NULL;
        *out = tensor_from_source(l->arena, *t, &s->source, bytes);
    } else {
        *out = (Tensor){.type = *t, .u.f = arena_alloc(l->arena, 8 * (size_t)type_elems(t) + 8)};
        for (int64_t i = 0; i < type_elems(t); i++) out->u.f[i] = s->fill;
    }
    return out;
}

static double leaf_scalar(void *user, const char *name) { return (void)user, (void)name, 0; }

int eval_interpreted(const Options *o, const EvalInput *in, uint32_t n, EvalOutput **outs,
                     uint32_t *n_out) {
    Model m = {0};
    int status = import(o, &m);
    if (!status) status = check_inputs(m.graph, in, n);
    if (!status) {
        const Entry *e = &m.graph->entries[ENTRY_EVAL];
        Leaves leaves = {m.graph, o->arena, in, n};
        InterpEnv env = {
            .input = leaf_input, .state = leaf_state, .scalar = leaf_scalar, .user = &leaves};
        Tensor *results = arena_alloc(o->arena, (e->n + 1) * sizeof *results);
        status = interp_entry(m.graph, ENTRY_EVAL, &env, o->arena, results, stderr) ? 0 : 1;
        *outs = arena_alloc(o->arena, (e->n + 1) * sizeof **outs);
        for (uint32_t i = 0; !status && i < e->n; i++) {
            void *bytes = arena_alloc(o->arena, type_bytes(&results[i].type) + 1);
            tensor_to_bytes(&results[i], bytes);
            (*outs)[(*n_out)++] =
                (EvalOutput){arena_strdup(o->arena, e->roots[i].name), results[i].type, bytes};
        }
    }
    model_free(&m);
    return status;
}

/* ---- compiled ---- */

static int remove_one(const char *path, const struct stat *s, int flag, struct FTW *f) {
    return (void)s, (void)flag, (void)f, remove(path);
}

static int plan_and_compile(const Options *o, Model *m, const char *folder, const char *name) {
    Plan plan = {0};
    PassOptions po = {.forward_only = true,
                      .keep_outputs = true,
                      .batch = m->batch,
                      .micro_batch = m->micro_batch,
                      .fuel = -1,
                      .verbose = o->verbose,
                      .optimizer = "sgd",
                      .tensor_names = m->tensor_names,
                      .tensor_values = m->tensor_values,
                      .eval_values = m->eval_values,
                      .n_tensors = m->n_tensors,
                      .output_names = m->output_names,
                      .n_outputs = m->n_outputs,
                      .scratch_bytes = library_scratch_bytes};
    PassContext ctx = {
        .g = m->graph, .plan = &plan, .arena = o->arena, .options = &po, .log = stderr};
    CodegenOptions co = {.name = name,
                         .out_dir = folder,
                         .cpu = o->cpu,
                         .optimizer = "sgd",
                         .loss = "none",
                         .ignore_index = -100};
    char *full = realpath(o->model, NULL);
    co.model_path = full ? full : o->model;
    find_runtime(o, &co);
    PhaseTimes times = {0};
    bool ok = passes_run(&ctx, NULL) &&
              codegen_library(&(TargetPlan){"cpu", ctx.g, &plan}, 1, &co, &times);
    if (!ok) diag_print(ctx.g, stderr);
    int status = ok ? 0 : diag_exit_status(ctx.g);
    m->graph = ctx.g;
    free(full);
    return ok ? 0 : status ? status : 1;
}

static int fetch_outputs(const Options *o, trainc_step *step, const Model *m, EvalOutput **outs,
                         uint32_t *n_out) {
    *outs = arena_alloc(o->arena, (m->n_outputs + 1) * sizeof **outs);
    for (size_t i = 0; i < trainc_count(step); i++) {
        trainc_info info;
        if (trainc_describe(step, i, &info) || strcmp(info.cls, "output")) continue;
        Type t = {.dtype = (uint8_t)info.dtype, .rank = (uint8_t)info.rank};
        for (int d = 0; d < info.rank; d++) t.dims[d] = info.dims[d];
        void *bytes = arena_alloc(o->arena, type_bytes(&t) + 1);
        int status = (int)trainc_get(step, info.name, bytes, type_bytes(&t));
        if (status) return fprintf(stderr, "trainc: %s\n", trainc_error(step)), status;
        (*outs)[(*n_out)++] = (EvalOutput){arena_strdup(o->arena, info.name), t, bytes};
    }
    return 0;
}

static int run_library(const Options *o, const char *folder, const char *name, const Model *m,
                       const EvalInput *in, uint32_t n, EvalOutput **outs, uint32_t *n_out) {
    void *lib = dlopen(arena_printf(o->arena, "%s/lib%s.so", folder, name), RTLD_NOW | RTLD_LOCAL);
    const trainc_program *(*program)(void) = NULL;
    if (lib) *(void **)&program = dlsym(lib, arena_printf(o->arena, "%s_program", name));
    if (!program)
        return fprintf(stderr, "trainc: the compiled library does not load: %s\n", dlerror()), 1;
    trainc_tensor *t = arena_alloc(o->arena, (n + 1) * sizeof *t);
    for (uint32_t i = 0; i < n; i++) {
        t[i] = (trainc_tensor){.name = in[i].name,
                               .dtype = (trainc_dtype)in[i].type.dtype,
                               .rank = in[i].type.rank,
                               .data = in[i].data};
        memcpy(t[i].dims, in[i].type.dims, sizeof t[i].dims);
    }
    trainc_step *step = NULL;
    trainc_result result;
    int status = (int)trainc_open(program(), &(trainc_options){.device = "cpu"}, &step);
    if (!status) status = (int)trainc_load(step, NULL);
    if (!status) status = (int)trainc_evaluate(step, t, n, &result);
    if (status)
        fprintf(stderr, "trainc: %s\n", trainc_error(step));
    else
        status = fetch_outputs(o, step, m, outs, n_out);
    trainc_close(step);
    dlclose(lib);
    return status;
}

int eval_compiled(const Options *o, const EvalInput *in, uint32_t n, EvalOutput **outs,
                  uint32_t *n_out) {
    Model m = {0};
    const char *temp = getenv("TMPDIR"), *name = library_name(o);
    char *folder = arena_printf(o->arena, "%s/trainc-eval-XXXXXX", temp ? temp : "/tmp");
    int status = import(o, &m);
    if (!status) status = check_inputs(m.graph, in, n);
    if (!status && !mkdtemp(folder)) status = (perror(folder), 5);
    if (!status) {
        status = plan_and_compile(o, &m, folder, name);
        if (!status) status = run_library(o, folder, name, &m, in, n, outs, n_out);
        nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    }
    model_free(&m);
    return status;
}
