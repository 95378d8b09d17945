/* library.c - the step folder: tables to sources, sources to lib<name>.a and lib<name>.so, and all
 * files beside them.
 *
 * One plan per kind of target; all GPU targets share one HIP source and get a code object each.
 * Kernels of the CPU are split over two units that compile at once; code objects compile two at a
 * time and are embedded with their source. Objects are temporary. lib<name>.so holds the generated
 * code alone and exports <name>_program; applications link the runtime beside it. It is never
 * unloaded (nodelete): OpenMP's threads outlive a dlclose. Nothing that
 * is written depends on the folder, the time or the number of processors. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "step_table.h"

enum { MAX_PLANS = 32, MAX_PARTS = 2, SPLIT_BYTES = 30000, N_KINDS = 2 };

typedef struct Library {
    const TargetPlan *plans;
    uint32_t n;
    const CodegenOptions *o;
    Arena *arena;
    Graph *g; /* whose diagnostics take our errors */
    StepTable tables[N_KINDS];
    uint32_t n_tables; /* in the order of the plans */
    uint32_t table_of[MAX_PLANS];
    const char *co_path[MAX_PLANS];
    const char *objects[MAX_PARTS + 2];
    uint32_t n_objects;
    PhaseTimes times;
} Library;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool has_emit(const CodegenOptions *o, const char *what) {
    size_t n = strlen(what);
    for (const char *s = o->emit; s && *s; s += strcspn(s, ","), s += *s == ',')
        if (strcspn(s, ",") == n && strncmp(s, what, n) == 0) return true;
    return false;
}

static const char *in_folder(const Library *l, const char *file) {
    return arena_printf(l->arena, "%s/%s", l->o->out_dir, file);
}

static bool make_folder(Library *l, const char *path) {
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return true;
    diag_add(l->g, E_OUTPUT, 0, path, strerror(errno));
    return false;
}

static bool write_text(Library *l, const char *file, const Text *t) {
    const char *path = in_folder(l, file);
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(t->s ? t->s : "", 1, t->n, f) == t->n;
    int saved = errno;
    if (f && fclose(f) != 0) ok = false;
    if (!ok) diag_add(l->g, E_OUTPUT, 0, path, strerror(saved));
    return ok;
}

/* ---- tables ---- */

static bool build_tables(Library *l) {
    for (uint32_t i = 0; i < l->n; i++) {
        uint32_t t = 0;
        while (t < l->n_tables && l->tables[t].plan != l->plans[i].plan) t++;
        if (t == l->n_tables) {
            if (t == N_KINDS) return false;
            l->tables[l->n_tables++] = step_table_build(
                l->plans[i].g, l->plans[i].plan, target_is_gpu(l->plans[i].target), l->arena);
        }
        l->table_of[i] = t;
    }
    return true;
}

static const StepTable *table_of_kind(const Library *l, bool gpu) {
    for (uint32_t i = 0; i < l->n_tables; i++)
        if (l->tables[i].is_gpu == gpu) return &l->tables[i];
    return NULL;
}

static bool write_plan(Library *l) {
    ManifestTarget *targets = arena_alloc(l->arena, l->n * sizeof *targets);
    Text out = {.arena = l->arena};
    for (uint32_t i = 0; i < l->n; i++)
        targets[i] = (ManifestTarget){&l->plans[i], &l->tables[l->table_of[i]], l->co_path[i]};
    manifest_plan(&out, targets, l->n, l->o);
    return write_text(l, "plan.json", &out);
}

/* ---- host compiler ---- */

static bool tool_failed(Library *l, const char *what, const char *error) {
    diag_add(l->g, E_TOOL, 0, what, error);
    return false;
}

/* Starts compiling a unit of the folder. */
static Job start_unit(Library *l, const char *cc, const char *unit) {
    const char *object = arena_printf(l->arena, "%s.o", unit);
    const char *march = arena_printf(l->arena, "-march=%s", l->o->cpu ? l->o->cpu : "native");
    const char *include = arena_printf(l->arena, "-I%s", l->o->runtime_include);
    const char *const argv[] = {cc,
                                "-std=gnu17",
                                "-O2",
                                march,
                                "-ftree-vectorize",
                                "-fopenmp",
                                "-fPIC",
                                "-fno-math-errno",
                                "-fno-trapping-math",
                                "-ffp-contract=fast",
                                "-fvisibility=hidden",
                                "-w",
                                include,
                                "-c",
                                arena_printf(l->arena, "%s.c", unit),
                                "-o",
                                object,
                                NULL};
    l->objects[l->n_objects++] = object;
    return job_start(l->arena, l->o->out_dir, argv, arena_printf(l->arena, "%s.log", unit));
}

static bool wait_all(Library *l, Job *jobs, uint32_t n) {
    bool ok = true;
    for (uint32_t i = 0; i < n; i++) {
        char *error = NULL;
        if (!job_wait(l->arena, l->o->out_dir, &jobs[i], &error))
            ok = tool_failed(l, jobs[i].what, error);
    }
    return ok;
}

static uint64_t kernels_bytes(const StepTable *t) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < t->n_kernels; i++) n += strlen(t->kernels[i].text);
    return n;
}

/* Writes the CPU's kernels and starts compiling them; *n jobs. */
static bool start_kernels(Library *l, const char *cc, Job *jobs, uint32_t *n) {
    const StepTable *t = table_of_kind(l, false);
    *n = 0;
    if (!t) return true;
    uint32_t parts = kernels_bytes(t) > SPLIT_BYTES ? MAX_PARTS : 1;
    for (uint32_t p = 0; p < parts; p++) {
        Text out = {.arena = l->arena};
        const char *unit = arena_printf(l->arena, "%s_cpu%u", l->o->name, p);
        step_source_kernels(&out, t, l->o, p, parts);
        if (!write_text(l, arena_printf(l->arena, "%s.c", unit), &out)) return false;
        jobs[(*n)++] = start_unit(l, cc, unit);
    }
    return true;
}

static bool run_tool(Library *l, const char *const *argv) {
    Job job = job_start(l->arena, l->o->out_dir, argv, "link.log");
    return wait_all(l, &job, 1);
}

static bool link_library(Library *l, const char *cc) {
    const char *argv[16], *archive = arena_printf(l->arena, "lib%s.a", l->o->name),
                          *shared = arena_printf(l->arena, "lib%s.so", l->o->name);
    uint32_t n = 0;
    unlink(in_folder(l, archive));
    argv[n++] = "ar", argv[n++] = "rcD", argv[n++] = archive;
    for (uint32_t i = 0; i < l->n_objects; i++) argv[n++] = l->objects[i];
    argv[n] = NULL;
    if (!run_tool(l, argv)) return false;
    n = 0;
    argv[n++] = cc, argv[n++] = "-shared", argv[n++] = "-fopenmp",
    argv[n++] = "-Wl,--build-id=none", argv[n++] = "-Wl,-z,nodelete", argv[n++] = "-s",
    argv[n++] = "-o", argv[n++] = shared;
    for (uint32_t i = 0; i < l->n_objects; i++) argv[n++] = l->objects[i];
    argv[n] = NULL;
    bool ok = run_tool(l, argv);
    for (uint32_t i = 0; i < l->n_objects; i++) unlink(in_folder(l, l->objects[i]));
    return ok;
}

/* ---- GPU compiler ---- */

/* Assembly and code objects of all GPU targets, two compilers at a time. */
static bool compile_gpu(Library *l, const char *hip) {
    GpuJob jobs[2 * MAX_PLANS];
    const char *hip_path = in_folder(l, hip);
    bool keep = has_emit(l->o, "co"), assembly = has_emit(l->o, "asm"), ok = true;
    uint32_t n = 0, done = 0;
    double before = now_s();
    for (uint32_t i = 0; i < l->n; i++) {
        const char *target = l->plans[i].target;
        if (!target_is_gpu(target)) continue;
        l->co_path[i] =
            arena_printf(l->arena, keep ? "%s/emit/%s.co" : "%s/%s.co", l->o->out_dir, target);
        for (int pass = 0; pass <= assembly; pass++) {
            if (n - done == 2) ok = gpu_compile_wait(&jobs[done++], l->arena) && ok;
            const char *path = pass ? arena_printf(l->arena, "%s/emit/%s.s", l->o->out_dir, target)
                                    : l->co_path[i];
            jobs[n++] = gpu_compile_start(hip_path, target, path, pass == 1, l->arena);
        }
    }
    while (done < n) ok = gpu_compile_wait(&jobs[done++], l->arena) && ok;
    for (uint32_t i = 0; i < n; i++)
        if (jobs[i].error) tool_failed(l, "the GPU compiler", jobs[i].error);
    l->times.gpu_compile_s += now_s() - before;
    return ok;
}

/* NAME.hip, its code objects, and NAME_hip.c which embeds both. */
static bool build_gpu(Library *l, StepImages *images) {
    const StepTable *t = table_of_kind(l, true);
    Text hip = {.arena = l->arena}, unit = {.arena = l->arena};
    const char **arch = arena_alloc(l->arena, l->n * sizeof *arch),
               **path = arena_alloc(l->arena, l->n * sizeof *path);
    const char *file = arena_printf(l->arena, "%s.hip", l->o->name);
    if (!t) return true;
    step_source_hip(&hip, t);
    if (!write_text(l, file, &hip) || !compile_gpu(l, file)) return false;
    *images = (StepImages){.arch = arch,
                           .path = path,
                           .source = hip.s,
                           .bytes = arena_alloc(l->arena, l->n * sizeof(uint64_t))};
    for (uint32_t i = 0; i < l->n; i++)
        if (l->co_path[i]) arch[images->n] = l->plans[i].target, path[images->n++] = l->co_path[i];
    if (!step_source_images(&unit, l->arena, l->o, images))
        return tool_failed(l, "the GPU compiler", "a code object cannot be read");
    return write_text(l, arena_printf(l->arena, "%s_hip.c", l->o->name), &unit);
}

/* ---- all of it ---- */

static bool write_beside(Library *l) {
    Text header = {.arena = l->arena}, pc = {.arena = l->arena}, cmake = {.arena = l->arena},
         weights = {.arena = l->arena};
    package_header(&header, l->o);
    package_pkg_config(&pc, l->o);
    package_cmake(&cmake, l->o);
    manifest_weights(&weights, l->plans[0].g, l->o);
    return write_text(l, arena_printf(l->arena, "%s.h", l->o->name), &header) &&
           write_text(l, arena_printf(l->arena, "%s.pc", l->o->name), &pc) &&
           write_text(l, arena_printf(l->arena, "%s-config.cmake", l->o->name), &cmake) &&
           write_text(l, "weights.json", &weights);
}

static bool emit_sources(Library *l) {
    const StepTable *cpu = table_of_kind(l, false), *gpu = table_of_kind(l, true);
    Text c = {.arena = l->arena}, hip = {.arena = l->arena};
    bool ok = true;
    if (cpu && has_emit(l->o, "c")) {
        step_source_kernels(&c, cpu, l->o, 0, 1);
        ok = write_text(l, arena_printf(l->arena, "emit/%s.c", l->o->name), &c);
    }
    if (gpu && has_emit(l->o, "hip")) {
        step_source_hip(&hip, gpu);
        ok = write_text(l, arena_printf(l->arena, "emit/%s.hip", l->o->name), &hip) && ok;
    }
    return ok;
}

static bool build_all(Library *l) {
    const char *cc = host_compiler(l->arena);
    const StepTable *tables[N_KINDS];
    StepImages images = {.n = 0};
    Job jobs[MAX_PARTS + 2];
    uint32_t n_jobs = 0;
    Text program = {.arena = l->arena};
    if (!cc) return tool_failed(l, "the host compiler", "no cc, gcc or clang found on the PATH");
    if (l->o->emit && !make_folder(l, in_folder(l, "emit"))) return false;
    if (!write_beside(l) || !emit_sources(l)) return false;
    double before = now_s();
    bool ok = start_kernels(l, cc, jobs, &n_jobs);
    ok = wait_all(l, jobs, n_jobs) && ok;
    l->times.host_compile_s += now_s() - before;
    if (!ok || !build_gpu(l, &images) || !write_plan(l)) return false;
    for (uint32_t i = 0; i < l->n_tables; i++) tables[i] = &l->tables[i];
    step_source_program(&program, tables, l->n_tables, l->o, &images);
    if (!write_text(l, arena_printf(l->arena, "%s.c", l->o->name), &program)) return false;
    before = now_s();
    n_jobs = 0;
    jobs[n_jobs++] = start_unit(l, cc, l->o->name);
    if (images.n) jobs[n_jobs++] = start_unit(l, cc, arena_printf(l->arena, "%s_hip", l->o->name));
    ok = wait_all(l, jobs, n_jobs) && link_library(l, cc);
    l->times.host_compile_s += now_s() - before;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->co_path[i] && !has_emit(l->o, "co")) unlink(l->co_path[i]);
    return ok;
}

bool codegen_library(const TargetPlan *plans, uint32_t n, const CodegenOptions *o,
                     PhaseTimes *times) {
    double start = now_s();
    Library l = {.plans = plans, .n = n, .o = o, .arena = arena_new()};
    l.g = (Graph *)(uintptr_t)plans[0].g; /* only its diagnostics change */
    bool ok = n <= MAX_PLANS && make_folder(&l, o->out_dir) && build_tables(&l) &&
              (o->plan_only ? write_plan(&l) : build_all(&l));
    l.times.own_s = now_s() - start - l.times.host_compile_s - l.times.gpu_compile_s;
    if (times) *times = l.times;
    arena_free(l.arena);
    return ok;
}

char *codegen_source(const TargetPlan *plan, Arena *arena) {
    Text out = {.arena = arena};
    StepTable t = step_table_build(plan->g, plan->plan, target_is_gpu(plan->target), arena);
    if (t.is_gpu)
        step_source_hip(&out, &t);
    else
        step_source_kernels(&out, &t, &(CodegenOptions){.name = "step"}, 0, 1);
    return out.s;
}
