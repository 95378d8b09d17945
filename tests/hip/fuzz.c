/* Tests that random typed graphs compute on the shim what the interpreter computes: hundreds of
 * kernels in one translation unit. A fixed sample; TRAINC_FUZZ=first:count runs others. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "../fuzz/found.h"
#include "../fuzz/gen.h"
#include "host.h"
#include "passes.h"

enum { PER_SOURCE = 100, SAMPLE = 100 };
typedef struct Case {
    uint64_t seed;
    double tolerance;
    Graph *g;
    const Plan *plan;
    HostEntry entry[2];
} Case;
static const EntryKind kinds[2] = {ENTRY_EVAL, ENTRY_MICRO};
static FuzzData data;
static InterpEnv interp;

static double scalar_of(const char *name) {
    if (!strcmp(name, "seed")) return (double)interp.seed;
    if (!strcmp(name, "step")) return (double)interp.step;
    if (!strcmp(name, "micro")) return (double)interp.micro;
    return interp.scalar(interp.user, name);
}

static void plan_case(Case *c, Graph *g, Text *out) {
    PassOptions options = {.ignore_index = -100, .fuel = -1, .for_gpu = true};
    PassContext ctx = {.g = g, .arena = out->arena, .options = &options, .log = stderr};
    cr_assert(passes_run(&ctx, "expand,fuse,schedule,memplan"), "graph %d cannot be planned",
              (int)c->seed);
    if (ctx.g != g) graph_free(g);
    c->g = ctx.g, c->plan = ctx.plan;
    for (int e = 0; e < 2; e++)
        c->entry[e] = host_print_entry(
            c->g, c->plan, kinds[e],
            arena_printf(out->arena, "g%d_%s", (int)c->seed, entry_name[kinds[e]]), out);
}

static void make_case(Case *c, uint64_t seed, Text *out) {
    Graph *g = fuzz_graph(seed);
    *c = (Case){.seed = seed, .tolerance = fuzz_tolerance(g)}; /* before macros are expanded */
    plan_case(c, g, out);
}

static void fill(const Graph *g, const Plan *plan, unsigned char *memory) {
    for (uint32_t i = 0; i < plan->n_buffers; i++) {
        const Buffer *b = &plan->buffers[i];
        Tensor t;
        if (b->constant) {
            cr_assert(interp_fold(g, b->constant, data.arena, &t, 1 << 20));
            tensor_to_bytes(&t, memory + b->offset);
        } else if (b->symbol && (graph_input(g, b->symbol) || graph_state(g, b->symbol))) {
            t = fuzz_tensor(g, b->symbol, data.seed, data.arena);
            tensor_to_bytes(&t, memory + b->offset);
        }
    }
}

static const Buffer *buffer_of_root(const Plan *plan, EntryKind entry, const Root *r) {
    for (uint32_t i = 0; i < plan->n_buffers; i++) {
        const Buffer *b = &plan->buffers[i];
        const bool fits = r->is_update ? b->cls != BUF_IO && b->cls != BUF_INPUTS
                                       : b->cls == BUF_IO && b->entry == entry;
        if (fits && b->symbol && !strcmp(b->symbol, r->name)) return b;
    }
    return NULL;
}

static void compare(const Case *c, const Root *root, const Tensor *want, const unsigned char *bytes,
                    const char *arch) {
    const Tensor got = tensor_from_bytes(data.arena, want->type, bytes);
    char why[96];
    cr_assert(fuzz_agrees(want, &got, c->tolerance, why), "graph %d on %s: %s %s", (int)c->seed,
              arch, root->name, why);
}

static void run_case(const Case *c, Host *h, const char *arch) {
    data = (FuzzData){c->g, c->seed + 1000, arena_new()};
    interp = fuzz_env(&data);
    for (int e = 0; e < 2; e++) {
        const Entry *entry = &c->g->entries[kinds[e]];
        Tensor *want = arena_alloc(data.arena, (entry->n + 1) * sizeof *want);
        cr_assert(interp_entry(c->g, kinds[e], &interp, data.arena, want, stderr));
        unsigned char *memory = host_alloc(c->plan->arena_bytes);
        fill(c->g, c->plan, memory);
        cr_assert(host_run_entry(h, &c->entry[e], memory, scalar_of), "graph %d on %s: %s",
                  (int)c->seed, arch, host_error());
        for (uint32_t i = 0; i < entry->n; i++) {
            const Buffer *b = buffer_of_root(c->plan, kinds[e], &entry->roots[i]);
            cr_assert(b, "graph %d: no buffer of %s", (int)c->seed, entry->roots[i].name);
            compare(c, &entry->roots[i], &want[i], memory + b->offset, arch);
        }
        host_release(memory, c->plan->arena_bytes);
    }
    arena_free(data.arena);
}

static void run_batch(uint64_t first, int n, const char *arch) {
    static Case cases[PER_SOURCE];
    Text source = {.arena = arena_new()};
    target_hip_prelude(&source);
    for (int i = 0; i < n; i++) make_case(&cases[i], first + (uint64_t)i, &source);
    Host *h = host_build(source.s, arch);
    for (int i = 0; i < n; i++) run_case(&cases[i], h, arch);
    host_free(h);
    for (int i = 0; i < n; i++) graph_free(cases[i].g);
    arena_free(source.arena);
}

static void run_sample(const char *arch) {
    long long first = 1, count = SAMPLE;
    const char *given = getenv("TRAINC_FUZZ");
    if (given) sscanf(given, "%lld:%lld", &first, &count);
    fprintf(stderr, "random graphs %lld to %lld\n", first, first + count - 1);
    for (; count > 0; first += PER_SOURCE, count -= PER_SOURCE)
        run_batch((uint64_t)first, count < PER_SOURCE ? (int)count : PER_SOURCE, arch);
}

Test(fuzz, random_graphs_equal_the_interpreter_on_waves_of_64) { run_sample("gfx90a"); }
Test(fuzz, random_graphs_equal_the_interpreter_on_waves_of_32) { run_sample("gfx1100"); }
Test(fuzz, seed_730_differs_by_rounding_alone) {
    for (int i = 0; i < 2; i++) run_batch(730, 1, host_archs[i]);
}

Test(fuzz, graphs_that_found_faults) {
    for (int i = 0; i < 2 * N_FOUND; i++) {
        Text source = {.arena = arena_new()};
        Case c = {.seed = 1, .tolerance = 1e-6};
        target_hip_prelude(&source);
        plan_case(&c, graph_parse(fuzz_found[i / 2], "found", stderr), &source);
        Host *h = host_build(source.s, host_archs[i % 2]);
        run_case(&c, h, host_archs[i % 2]);
        host_free(h);
        graph_free(c.g);
        arena_free(source.arena);
    }
}
