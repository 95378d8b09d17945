/* fuzz.c - tests over random graphs: they verify, evaluate to finite values, and survive a round
 * trip through text. */
#include "gen.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_GRAPHS = 400 };

static char *text_of(const Graph *g) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    graph_print(g, out);
    fclose(out);
    return text;
}

/* The values of the roots of an entry; asserts that they are finite. */
static Tensor *values_of(const Graph *g, EntryKind kind, uint64_t seed, Arena *arena) {
    FuzzData data = {g, seed, arena};
    InterpEnv env = fuzz_env(&data);
    Tensor *results = arena_alloc(arena, (g->entries[kind].n + 1) * sizeof *results);
    cr_assert(interp_entry(g, kind, &env, arena, results, stderr), "graph %llu does not evaluate",
              (unsigned long long)seed);
    return results;
}

static void expect_finite(const Tensor *t, uint64_t seed) {
    if (dtype_info[t->type.dtype].cls != CLASS_FLT) return;
    for (int64_t i = 0; i < type_elems(&t->type); i++)
        cr_assert(isfinite(t->u.f[i]), "graph %llu is not finite", (unsigned long long)seed);
}

Test(fuzz, graphs_verify_and_are_finite) {
    for (uint64_t seed = 0; seed < N_GRAPHS; seed++) {
        Graph *g = fuzz_graph(seed);
        Arena *arena = arena_new();
        cr_assert(graph_verify(g, stderr), "graph %llu", (unsigned long long)seed);
        for (int kind = 0; kind < N_ENTRIES; kind++) {
            Tensor *values = values_of(g, (EntryKind)kind, seed, arena);
            for (uint32_t i = 0; i < g->entries[kind].n; i++) expect_finite(&values[i], seed);
        }
        arena_free(arena);
        graph_free(g);
    }
}

Test(fuzz, graphs_reach_every_op) {
    uint32_t n_seen[N_OPS] = {0};
    for (uint64_t seed = 0; seed < N_GRAPHS; seed++) {
        Graph *g = fuzz_graph(seed);
        for (Value v = 1; v < g->n_nodes; v++) n_seen[graph_op(g, v)]++;
        graph_free(g);
    }
    for (int op = 1; op < N_OPS; op++)
        if (op != OP_fmod && op != OP_trunc_div)
            cr_expect(n_seen[op] > 0, "no graph has %s", op_info[op].name);
}

Test(fuzz, graphs_survive_text) {
    for (uint64_t seed = 0; seed < N_GRAPHS; seed++) {
        Graph *g = fuzz_graph(seed), *back;
        Arena *arena = arena_new();
        char *text = text_of(g), *again;
        back = graph_parse(text, "fuzz.tir", stderr);
        cr_assert(back, "graph %llu does not parse:\n%s", (unsigned long long)seed, text);
        again = text_of(back);
        cr_assert_str_eq(again, text, "graph %llu changes", (unsigned long long)seed);
        for (int kind = 0; kind < N_ENTRIES; kind++) {
            Tensor *a = values_of(g, (EntryKind)kind, seed, arena),
                   *b = values_of(back, (EntryKind)kind, seed, arena);
            for (uint32_t i = 0; i < g->entries[kind].n; i++)
                cr_assert(memcmp(a[i].u.p, b[i].u.p,
                                 (size_t)type_elems(&a[i].type) * sizeof(double)) == 0,
                          "graph %llu means something else", (unsigned long long)seed);
        }
        free(text), free(again);
        arena_free(arena);
        graph_free(g), graph_free(back);
    }
}
