/* Tests that random typed graphs, fused, lowered, printed as C and compiled, compute what the
 * interpreter computes: the kernels of hundreds of graphs in one translation unit. A fixed sample;
 * TRAINC_FUZZ=first:count runs others. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdlib.h>
#include "../fuzz/found.h"
#include "run.h"

enum { PER_SOURCE = 100, SAMPLE = 300 };

static bool run_case(const Case *c, uint64_t seed, double tolerance, void *lib) {
    static const EntryKind kinds[2] = {ENTRY_EVAL, ENTRY_MICRO};
    FuzzData data = {c->g, seed + 1000, arena_new()};
    InterpEnv env = fuzz_env(&data);
    bool ok = true;
    for (int e = 0; e < 2; e++) {
        unsigned char *memory = case_memory(c, &data);
        case_run(c, lib, kinds[e], &env, memory, false);
        ok = case_equal(c, kinds[e], &data, &env, memory, tolerance) && ok;
        free(memory);
    }
    arena_free(data.arena);
    return ok;
}

static int run_batch(uint64_t first, int n) {
    static Case cases[PER_SOURCE];
    double tolerance[PER_SOURCE];
    Text source = {.arena = arena_new()};
    int wrong = 0;
    target_c_prelude(&source);
    for (int i = 0; i < n; i++) {
        Graph *g = fuzz_graph(first + (uint64_t)i);
        tolerance[i] = fuzz_tolerance(g); /* before macros are expanded */
        case_make(&cases[i], g, arena_printf(source.arena, "g%d", (int)first + i), &source);
    }
    void *lib = cases_build(&source);
    for (int i = 0; i < n; i++)
        wrong += !run_case(&cases[i], first + (uint64_t)i, tolerance[i], lib);
    dlclose(lib);
    for (int i = 0; i < n; i++) graph_free(cases[i].g);
    arena_free(source.arena);
    return wrong;
}

Test(fuzz, random_graphs_equal_the_interpreter) {
    long long first = 1, count = SAMPLE;
    const char *given = getenv("TRAINC_FUZZ");
    int wrong = 0;
    if (given) sscanf(given, "%lld:%lld", &first, &count);
    fprintf(stderr, "random graphs %lld to %lld\n", first, first + count - 1);
    for (; count > 0; first += PER_SOURCE, count -= PER_SOURCE)
        wrong += run_batch((uint64_t)first, count < PER_SOURCE ? (int)count : PER_SOURCE);
    cr_assert_eq(wrong, 0, "%d graphs differ", wrong);
}

/* A layer norm of a layer norm of close bf16 numbers; a thousand graphs more than the sample hold
 * one. */
Test(fuzz, seed_730_differs_by_rounding_alone) { cr_assert_eq(run_batch(730, 1), 0); }

Test(fuzz, graphs_that_found_faults) {
    for (int i = 0; i < N_FOUND; i++) {
        Case c;
        Text source = {.arena = arena_new()};
        target_c_prelude(&source);
        case_make(&c, graph_parse(fuzz_found[i], "found", stderr), "found", &source);
        void *lib = cases_build(&source);
        cr_expect(run_case(&c, 1, 1e-6, lib), "graph %d", i);
        dlclose(lib);
        graph_free(c.g);
        arena_free(source.arena);
    }
}
