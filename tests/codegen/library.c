/* Tests that a step folder holds what it should, the same bytes wherever it is written, and that
 * failures are said. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "codegen.h"
#include "passes.h"
#include "../../runtime/trainc_program.h"

static Graph *training_graph(void) {
    static const char text[] = "graph toy\nstate w : f32[4,3] param trains\nstate b : f32[3] param "
                               "trains\ninput x : f32[8,4]\n"
                               "%1 = input : f32[8,4] name=x\n%2 = state : f32[4,3] name=w\n%3 = "
                               "dot %1 %2 : f32[8,3] ta=0 tb=0\n%4 = state : f32[3] name=b\n"
                               "%5 = reshape %4 : f32[1,3]\n%6 = expand %5 : f32[8,3]\n%7 = add %3 "
                               "%6 : f32[8,3]\n%8 = tanh %7 : f32[8,3]\n"
                               "entry micro\noutput y = %8\nentry eval\noutput y = %8\n";
    Graph *g = graph_parse(text, "toy", stderr);
    cr_assert(g);
    return g;
}

static Arena *arena; /* of the compiles of a test; the graph stays in *graph */

static bool compile(const char *folder, const char *emit, bool plan_only, Graph **graph) {
    if (!arena) arena = arena_new();
    if (*graph) graph_free(*graph);
    Graph *g = training_graph();
    PassOptions options = {
        .ignore_index = -100, .fuel = -1, .forward_only = true, .keep_outputs = true};
    PassContext ctx = {.g = g, .arena = arena, .options = &options, .log = stderr};
    cr_assert(passes_run(&ctx, "expand,fuse,schedule,memplan"));
    if (ctx.g != g) graph_free(g);
    CodegenOptions o = {.name = "toy",
                        .out_dir = folder,
                        .model_path = "/models/toy.onnx",
                        .runtime_include = SOURCE_DIR "/runtime",
                        .runtime_lib = "/lib/libtrainc_runtime.a",
                        .optimizer = "sgd",
                        .loss = "mse",
                        .emit = emit,
                        .plan_only = plan_only,
                        .ignore_index = -100};
    PhaseTimes times;
    *graph = ctx.g;
    return codegen_library(&(TargetPlan){"cpu", ctx.g, ctx.plan}, 1, &o, &times);
}

static void release(Graph *g) {
    if (g) graph_free(g);
    if (arena) arena_free(arena);
    arena = NULL;
}

static const char *new_folder(char *path) {
    strcpy(path, "/tmp/trainc-library-XXXXXX");
    return mkdtemp(path);
}

static bool exists(const char *folder, const char *file) {
    char path[300];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return stat(path, &st) == 0 && st.st_size > 0;
}

static void run(const char *format, const char *a, const char *b) {
    char command[700];
    snprintf(command, sizeof command, format, a, b);
    cr_assert_eq(system(command), 0, "%s", command);
}

Test(library, two_folders_hold_the_same_bytes_and_nothing_else) {
    static const char *const files[] = {"libtoy.a",         "libtoy.so", "toy.h",        "toy.c",
                                        "toy_cpu0.c",       "plan.json", "weights.json", "toy.pc",
                                        "toy-config.cmake", "emit/toy.c"};
    char a[64], b[64];
    Graph *g = NULL;
    cr_assert(compile(new_folder(a), "c", false, &g) && compile(new_folder(b), "c", false, &g));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        cr_assert(exists(a, files[i]), "%s", files[i]);
    run("diff -r %s %s", a, b);
    run("test $(ls %s | wc -l) = 10 && test -d %s", a, b);
    run("rm -r %s %s", a, b);
    release(g);
}

Test(library, the_shared_object_loads_alone_and_gives_the_program) {
    char folder[64], path[300];
    Graph *g = NULL;
    cr_assert(compile(new_folder(folder), NULL, false, &g));
    snprintf(path, sizeof path, "%s/libtoy.so", folder);
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL),
         *symbol = lib ? dlsym(lib, "toy_program") : NULL;
    cr_assert(symbol, "%s", dlerror());
    const trainc_program *(*get)(void);
    memcpy(&get, &symbol, sizeof get);
    const trainc_program *p = get();
    cr_assert(p->abi == TRAINC_ABI && p->n_plans == 1 && strcmp(p->name, "toy") == 0 &&
              strcmp(p->plans[0].device, "cpu") == 0);
    cr_assert(p->plans[0].n_kernels > 0 && p->plans[0].kernels[0].host);
    run("rm -r %s%s", folder, "");
    release(g);
}

Test(library, plan_alone_writes_plan_json_alone) {
    char folder[64];
    Graph *g = NULL;
    cr_assert(compile(new_folder(folder), NULL, true, &g));
    run("test \"$(ls %s)\" = plan.json%s", folder, "");
    run("rm -r %s%s", folder, "");
    release(g);
}

Test(library, a_compiler_that_fails_is_named) {
    char folder[64];
    Graph *g = NULL;
    setenv("CC", "false", 1);
    cr_assert(!compile(new_folder(folder), NULL, false, &g));
    cr_assert(g->diags.n == 1 && g->diags.items[0].code == E_TOOL);
    setenv("CC", "/nowhere/cc", 1);
    setenv("PATH", "/nowhere", 1);
    cr_assert(!compile(folder, NULL, false, &g) && g->diags.items[0].code == E_TOOL);
    setenv("PATH", "/bin:/usr/bin", 1);
    run("rm -r %s%s", folder, "");
    release(g);
}

Test(library, a_folder_that_cannot_be_made_is_an_output_error) {
    Graph *g = NULL;
    cr_assert(!compile("/proc/nowhere/step", NULL, false, &g));
    cr_assert(g->diags.n == 1 && g->diags.items[0].code == E_OUTPUT);
    release(g);
}

Test(targets, names_imply_canonical_targets) {
    const char *canonical = NULL;
    cr_assert(target_known("mi300x", &canonical) && strcmp(canonical, "gfx942") == 0);
    cr_assert(target_known("strix-halo", &canonical) && strcmp(canonical, "gfx1151") == 0);
    cr_assert(target_known("cpu", &canonical) && !target_is_gpu(canonical) &&
              target_memory_bytes("cpu") > 0);
    cr_assert(!target_known("gfx906", &canonical) && target_memory_bytes("mi300x") == UINT64_C(192)
                                                                                          << 30);
}
