/* compile.c - `trainc MODEL.onnx` and `trainc plan MODEL.onnx`.
 *
 * One planned step per kind of target: the cpu has its own, all GPU targets share one (one HIP
 * source, a code object each). */
#include "codegen.h"
#include "eval_engine.h"
#include "step_plan.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* "models/gpt2 small.onnx" -> "gpt2 small" */
static char *model_stem(const Options *o) {
    const char *base = strrchr(o->model, '/');
    char *name = arena_strdup(o->arena, base ? base + 1 : o->model);
    char *dot = strrchr(name, '.');
    if (dot) *dot = 0;
    return name;
}

/* "models/gpt2 small.onnx" -> "gpt2_small": a C identifier */
char *library_name(const Options *o) {
    char *name = model_stem(o);
    for (char *c = name; *c; c++)
        if (!(*c == '_' || (*c >= '0' && *c <= '9') || (*c >= 'a' && *c <= 'z') ||
              (*c >= 'A' && *c <= 'Z')))
            *c = '_';
    return *name >= '0' && *name <= '9' ? arena_printf(o->arena, "m%s", name) : name;
}

/* Where trainc.h and the runtime library lie: beside an installed trainc, else where they were
 * built. */
void find_runtime(const Options *o, CodegenOptions *c) {
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    c->runtime_include = RUNTIME_INCLUDE;
    c->runtime_lib = RUNTIME_LIB;
    if (n <= 0) return;
    exe[n] = 0;
    for (int i = 0; i < 2 && strrchr(exe, '/'); i++) *strrchr(exe, '/') = 0; /* PREFIX/bin/trainc */
    const char *prefix = exe;
    const char *header = arena_printf(o->arena, "%s/include/trainc_program.h", prefix);
    if (access(header, R_OK)) return;
    c->runtime_include = arena_printf(o->arena, "%s/include", prefix);
    c->runtime_lib = arena_printf(o->arena, "%s/lib/libtrainc_runtime.a", prefix);
}

int make_folders(const char *path) {
    char part[PATH_MAX];
    for (size_t i = 1; path[i - 1] && i < sizeof part; i++) {
        if (path[i] && path[i] != '/') continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, 0777) && errno != EEXIST) {
            fprintf(stderr, "trainc: cannot create %s: %s\n", part, strerror(errno));
            return 5;
        }
    }
    return 0;
}

static uint64_t budget_of(const Options *o, bool for_gpu) {
    if (o->mem_bytes) return o->mem_bytes;
    uint64_t least = 0;
    for (uint32_t i = 0; i < o->n_targets; i++) {
        uint64_t bytes = target_memory_bytes(o->targets[i]);
        if (target_is_gpu(o->targets[i]) == for_gpu && bytes && (!least || bytes < least))
            least = bytes;
    }
    return least;
}

typedef struct Steps {
    PlannedStep kind[2];
    bool have[2];
    TargetPlan plans[MAX_TARGETS];
    uint32_t n;
} Steps;

static int plan_all(const Options *o, Steps *s) {
    for (uint32_t i = 0; i < o->n_targets; i++) {
        bool gpu = target_is_gpu(o->targets[i]);
        PlannedStep *p = &s->kind[gpu];
        if (!s->have[gpu]) {
            int status = step_plan(p, o, gpu, budget_of(o, gpu));
            s->have[gpu] = true;
            if (status) return status;
        }
        s->plans[s->n++] = (TargetPlan){o->targets[i], p->passes.g, &p->plan};
    }
    return 0;
}

static void free_all(Steps *s) {
    for (int i = 0; i < 2; i++)
        if (s->have[i]) step_free(&s->kind[i]);
}

static CodegenOptions codegen_options(const Options *o, const Steps *s) {
    CodegenOptions c = {.name = library_name(o),
                        .out_dir = o->out,
                        .emit = o->emit,
                        .cpu = o->cpu,
                        .optimizer = o->optimizer,
                        .verbose = o->verbose,
                        .mem_limit_bytes = o->mem_bytes
                                               ? o->mem_bytes
                                               : budget_of(o, target_is_gpu(o->targets[0]))};
    const PlannedStep *p = &s->kind[target_is_gpu(s->plans[0].target)];
    c.loss = p->options.loss ? p->options.loss : "output";
    c.ignore_index = o->ignore_index;
    c.samples_mix = p->model.samples_mix;
    c.macro_names = census_name;
    c.macro_counts = p->passes.census.count;
    c.n_macros = N_CENSUS;
    char *full = realpath(o->model, NULL);
    c.model_path = arena_strdup(o->arena, full ? full : o->model);
    free(full);
    find_runtime(o, &c);
    return c;
}

static int generate(const Options *o, Steps *s, bool plan_only, double started) {
    CodegenOptions c = codegen_options(o, s);
    PhaseTimes times = {0};
    c.plan_only = plan_only;
    int status = make_folders(o->out);
    if (status) return status;
    double before = now_s();
    if (!codegen_library(s->plans, s->n, &c, &times)) {
        const Graph *g = s->plans[0].g;
        diag_print(g, stderr);
        status = diag_exit_status(g);
        return status ? status : 1;
    }
    if (o->verbose)
        fprintf(stderr, "own work %.3f s, host compiler %.3f s, GPU compiler %.3f s\n",
                before - started + times.own_s, times.host_compile_s, times.gpu_compile_s);
    return 0;
}

int command_compile(const Options *given) {
    double started = now_s();
    Options o = *given;
    if (!o.out) o.out = arena_printf(o.arena, "%s-step", model_stem(&o));
    Steps s = {0};
    int status =
        o.emit ? make_folders(arena_printf(
                     o.arena, strstr(o.emit, "tir") && o.n_targets > 1 ? "%s/emit/gpu" : "%s/emit",
                     o.out))
               : 0;
    if (!status) status = plan_all(&o, &s);
    if (!status) status = generate(&o, &s, false, started);
    free_all(&s);
    return status;
}

/* ---- trainc plan ---- */

static void print_plan(const Options *o, const Steps *s) {
    const Plan *p = s->plans[0].plan;
    const Graph *g = s->plans[0].g;
    Arena *a = o->arena;
    uint64_t trained = 0, frozen = 0;
    for (uint32_t i = 0; i < g->n_states; i++)
        if (g->states[i].cls == STATE_PARAM)
            *(g->states[i].trains ? &trained : &frozen) +=
                (uint64_t)type_elems(&g->types[g->states[i].type]);
    printf("%s for %s\n\n", o->model, s->plans[0].target);
    printf("  %-26s %16llu   trained; %llu frozen\n", "parameters", (unsigned long long)trained,
           (unsigned long long)frozen);
    printf("  %-26s %16lld   = %lld x micro-batch %lld\n", "batch", (long long)p->batch,
           (long long)p->accumulation_steps, (long long)p->micro_batch);
    for (int c = 0; c < N_BUFFER_CLASSES; c++)
        printf("  %-26s %16llu   %s\n", buffer_class_name[c], (unsigned long long)p->bytes[c],
               format_bytes(a, p->bytes[c]));
    printf("  %-26s %16llu   %s\n", "peak_bytes", (unsigned long long)p->arena_bytes,
           format_bytes(a, p->arena_bytes));
    printf("  %-26s %16llu   no order of these kernels needs less\n", "lower_bound_bytes",
           (unsigned long long)p->lower_bound_bytes);
    printf("  %-26s %16.3f   GFLOP a step, %.3f recomputed\n", "total_flops",
           1e-9 * (double)p->total_flops, 1e-9 * (double)p->recomputed_flops);
    printf("  %-26s %16llu   %s a step\n", "moved_bytes", (unsigned long long)p->moved_bytes,
           format_bytes(a, p->moved_bytes));
    for (int e = 0; e < N_ENTRIES; e++)
        printf("  %-26s %16u   launches\n", entry_name[e], p->entries[e].n);
}

/* Other names of the parameter, and where the model's file has it. */
static void print_names(const State *s, int64_t n_elems) {
    for (uint32_t i = 0; i < s->n_aliases; i++) printf(" = %s", s->aliases[i]);
    for (uint32_t i = 0; i < s->n_holders; i++)
        if (s->holders[i].from)
            printf(", split from %s", s->holders[i].from);
        else if (s->holders[i].first || s->holders[i].blocks ||
                 type_elems(&s->holders[i].type) != n_elems)
            printf(", in the file as rows of %s%s", s->holders[i].initializer,
                   s->holders[i].blocks ? ", gates in ONNX's order" : "");
        else if (s->holders[i].is_transposed)
            printf(", in the file as %s, transposed", s->holders[i].initializer);
        else if (strcmp(s->holders[i].initializer, s->name))
            printf(", in the file as %s", s->holders[i].initializer);
    printf("\n");
}

static void print_parameters(const Graph *g) {
    printf("\n  parameters:\n");
    for (uint32_t i = 0; i < g->n_states; i++) {
        const State *st = &g->states[i];
        if (st->cls != STATE_PARAM) continue;
        const Type *t = &g->types[st->type];
        printf("    %-7s %-5s [",
               st->trains      ? "trains"
               : st->is_buffer ? "buffer"
                               : "frozen",
               dtype_info[t->dtype].name);
        for (uint32_t d = 0; d < t->rank; d++)
            printf("%s%lld", d ? ", " : "", (long long)t->dims[d]);
        printf("] %s", st->name);
        print_names(st, type_elems(t));
    }
}

int command_plan(const Options *o) {
    double started = now_s();
    Steps s = {0};
    int status = plan_all(o, &s);
    if (o->verbose && s.have[target_is_gpu(o->targets[0])]) /* also where the step does not fit */
        print_census(&s.kind[target_is_gpu(o->targets[0])]);
    if (!status) {
        print_plan(o, &s);
        if (o->verbose) print_parameters(s.plans[0].g);
        if (o->out) status = generate(o, &s, true, started);
    }
    free_all(&s);
    return status;
}
