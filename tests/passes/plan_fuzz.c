/* Tests that plans of random typed graphs are sound and compute what the interpreter computes. A
 * fixed sample; TRAINC_FUZZ=first:count runs others. */
#include "../fuzz/gen.h"
#include "plan_run.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLE = 300 };

/* Rounding to bf16 at other places than the interpreter, which rounds nowhere, is no fault; losing
 * a value is. */
static double tolerance_of(const Graph *g) {
    for (Value v = 1; v < g->n_nodes; v++)
        if (graph_type_at(g, v)->dtype == DT_BF16 || graph_type_at(g, v)->dtype == DT_F16)
            return 0.25;
    return 1e-4;
}

static Graph *without_macros(Graph *g) {
    PassOptions options = default_options();
    Arena *a = arena_new();
    Plan plan = {0};
    PassContext ctx = {.g = g, .plan = &plan, .arena = a, .options = &options, .log = stderr};
    cr_assert(passes_run(&ctx, "expand"));
    if (ctx.g != g) graph_free(g);
    arena_free(a);
    return ctx.g;
}

static void run_seed(uint64_t seed, bool gpu) {
    Planned p = plan_graph(without_macros(fuzz_graph(seed)), gpu);
    FuzzData data = {p.g, seed, p.arena};
    InterpEnv env = fuzz_env(&data);
    for (int e = 0; e < N_ENTRIES; e++)
        if (p.g->entries[e].n) plan_run_entry(&p, (EntryKind)e, &env, tolerance_of(p.g));
    planned_free(&p);
}

Test(plan_fuzz, random_graphs) {
    unsigned long long first = 1, count = SAMPLE;
    const char *range = getenv("TRAINC_FUZZ");
    if (range) sscanf(range, "%llu:%llu", &first, &count);
    for (uint64_t seed = first; seed < first + count; seed++) {
        if (range) fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
        run_seed(seed, seed % 2);
    }
}
