/* Tests that passes keep what random typed graphs and their gradients mean: outputs and the
 * derivatives of one of them, interpreted in double before and after simplify, match and expand. A
 * fixed sample; TRAINC_FUZZ=first:count runs others. */
#include "../fuzz/gen.h"
#include "passes.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLE = 400, MAX_LEAVES = 64 };

static void add_part(Graph *g, Value *adjoint, Value a, Value part) {
    if (part) adjoint[a] = gradient_add(g, adjoint[a], part);
}

/* Reverse mode over every node below y, as far as gradients flow; each leaf's as an output. */
static uint32_t add_gradients(Graph *g, Value y) {
    Arena *arena = arena_new();
    Value *adjoint = arena_alloc(arena, (y + 1) * sizeof *adjoint);
    uint32_t n = 0;
    adjoint[y] = build_splat(g, graph_node(g, y)->type, 1);
    for (Value v = y; v > 0; v--) {
        uint32_t n_operands = graph_node(g, v)->n_operands;
        Value *parts = arena_alloc(arena, (n_operands + 1) * sizeof *parts);
        if (!adjoint[v]) continue;
        op_vjp(g, v, adjoint[v], parts);
        for (uint32_t i = 0; i < n_operands; i++)
            add_part(g, adjoint, graph_operand(g, v, i), parts[i]);
        bool is_leaf = graph_op(g, v) == OP_input || graph_op(g, v) == OP_state;
        if (is_leaf && n < MAX_LEAVES)
            graph_add_root(g, ENTRY_EVAL, false, graph_str(g, arena_printf(g->arena, "d%u", n++)),
                           adjoint[v]);
    }
    arena_free(arena);
    return n;
}

static Tensor *values_of(const Graph *g, uint64_t seed, Arena *arena) {
    FuzzData data = {g, seed, arena};
    InterpEnv env = fuzz_env(&data);
    Tensor *results = arena_alloc(arena, (g->entries[ENTRY_EVAL].n + 1) * sizeof *results);
    cr_assert(interp_entry(g, ENTRY_EVAL, &env, arena, results, stderr), "graph %llu",
              (unsigned long long)seed);
    return results;
}

/* Macros hold numbers to all digits, the spellings that they are found in to those of the type. */
static double tolerance_of(const Graph *g) {
    double compiled = fuzz_tolerance(g);
    return compiled > 1e-5 ? compiled : 1e-6;
}

/* A gradient that passes through a float of eight bits is rounded to it, or not where casts cancel.
 */
static bool has_bytes(const Graph *g) {
    for (Value v = 1; v < g->n_nodes; v++) {
        const DTypeInfo *type = &dtype_info[graph_type_at(g, v)->dtype];
        if (type->cls == CLASS_FLT && type->bytes == 1) return true;
    }
    return false;
}

static bool run_seed(uint64_t seed, const char *passes, uint32_t *n_gradients) {
    Graph *g = fuzz_graph(seed);
    Arena *arena = arena_new();
    Value y = graph_root(g, ENTRY_EVAL, false, "y0")->value;
    double tolerance = tolerance_of(g);
    bool same = true, is_float = dtype_info[graph_type_at(g, y)->dtype].cls == CLASS_FLT;
    if (is_float && !has_bytes(g)) *n_gradients += add_gradients(g, y);
    const Tensor *before = values_of(g, seed, arena);
    /* A choice between a product and 0 becomes a factor of 0 where it is found to be a dropout. */
    if (fuzz_has_specials(g)) passes = "simplify,expand,simplify";
    PassOptions options = {.ignore_index = -100, .fuel = -1};
    PassContext ctx = {.g = g, .arena = arena, .options = &options, .log = stderr};
    cr_assert(passes_run(&ctx, passes), "graph %llu: %s", (unsigned long long)seed, passes);
    const Tensor *after = values_of(ctx.g, seed, arena);
    for (uint32_t i = 0; i < ctx.g->entries[ENTRY_EVAL].n; i++) {
        char why[96];
        if (fuzz_agrees(&before[i], &after[i], tolerance, why)) continue;
        fprintf(stderr, "graph %llu after %s: %s %s\n", (unsigned long long)seed, passes,
                ctx.g->entries[ENTRY_EVAL].roots[i].name, why);
        same = false;
    }
    if (ctx.g != g) graph_free(ctx.g);
    graph_free(g);
    arena_free(arena);
    return same;
}

Test(gradient_fuzz, passes_keep_values_and_gradients) {
    static const char *const pipelines[] = {"simplify,match", "simplify,match,expand",
                                            "expand,simplify"};
    unsigned long long first = 0, count = SAMPLE;
    const char *range = getenv("TRAINC_FUZZ");
    uint32_t wrong = 0, n_gradients = 0;
    if (range) sscanf(range, "%llu:%llu", &first, &count);
    for (uint64_t seed = first; seed < first + count; seed++)
        wrong += !run_seed(seed, pipelines[seed % 3], &n_gradients);
    fprintf(stderr, "%u gradients of graphs %llu to %llu\n", n_gradients, first, first + count - 1);
    cr_assert_eq(wrong, 0, "%u graphs mean something else", wrong);
    cr_assert_gt(n_gradients, count / 2);
}
