/* fuzz.c - tests over random graphs: they verify, evaluate to finite values, and survive a round
 * trip through text. */
#include "check.h"
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
            for (uint32_t i = 0; i < g->entries[kind].n && !fuzz_has_specials(g); i++)
                expect_finite(&values[i], seed);
        }
        arena_free(arena);
        graph_free(g);
    }
}

/* TRAINC_FUZZ=first:count runs others than the sample. */
Test(fuzz, graphs_survive_text) {
    unsigned long long first = 0, count = N_GRAPHS;
    const char *given = getenv("TRAINC_FUZZ");
    if (given) sscanf(given, "%llu:%llu", &first, &count);
    for (uint64_t seed = first; seed < first + count; seed++) {
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

/* ---------------------------------------------------------------- gradients of whole graphs */

/* Leaves off the grid of fuzz_tensor, where kinks lie, and moved by t along a random direction. */
typedef struct Line {
    FuzzData data;
    double t;
} Line;

static double direction(const char *name, int64_t i) {
    uint64_t h = 1469598103934665603u + (uint64_t)i * 0x9E3779B97F4A7C15u;
    for (const char *p = name; *p; p++) h = (h ^ (unsigned char)*p) * 1099511628211u;
    h = (h ^ (h >> 31)) * 0x94D049BB133111EBu;
    return (double)(h >> 11) * 0x1p-52 - 1;
}

static const Tensor *leaf_on_line(void *user, const char *name) {
    Line *line = user;
    Tensor *t = arena_alloc(line->data.arena, sizeof *t);
    *t = fuzz_tensor(line->data.g, name, line->data.seed, line->data.arena);
    if (dtype_info[t->type.dtype].cls == CLASS_FLT)
        for (int64_t i = 0; i < type_elems(&t->type); i++)
            t->u.f[i] += 0.0071 * direction(name, -1 - i) + line->t * direction(name, i);
    return t;
}

static double scalar_on_line(void *user, const char *name) {
    (void)user;
    return name[0] == 'l' ? 0.25 : 3;
}

/* The sum of y at t, or (with n gradients) the derivative along the direction. */
static double on_line(Graph *g, uint64_t seed, double t, Value y, const Value *leaves,
                      const Value *d, uint32_t n) {
    Arena *arena = arena_new();
    Line line = {{g, seed, arena}, t};
    InterpEnv env = {.input = leaf_on_line,
                     .state = leaf_on_line,
                     .scalar = scalar_on_line,
                     .user = &line,
                     .step = 1};
    Tensor *r = arena_alloc(arena, (n + 1) * sizeof *r);
    double sum = 0;
    g->entries[ENTRY_INIT].n = 0;
    if (!n) graph_add_root(g, ENTRY_INIT, false, "y", y);
    for (uint32_t i = 0; i < n; i++)
        graph_add_root(g, ENTRY_INIT, false, graph_str(g, arena_printf(arena, "d%u", i)), d[i]);
    cr_assert(interp_entry(g, ENTRY_INIT, &env, arena, r, stderr));
    for (uint32_t k = 0; k < (n ? n : 1); k++)
        for (int64_t i = 0; i < type_elems(&r[k].type); i++)
            sum += r[k].u.f[i] * (n ? direction(attr_s(g, leaves[k], A_NAME), i) : 1);
    arena_free(arena);
    return sum;
}

/* Central differences of sixth order. */
static double slope(Graph *g, uint64_t seed, Value y, double h) {
    static const double weights[] = {45, -9, 1};
    double sum = 0;
    for (int k = 1; k <= 3; k++)
        sum += weights[k - 1] * (on_line(g, seed, k * h, y, NULL, NULL, 0) -
                                 on_line(g, seed, -k * h, y, NULL, NULL, 0));
    return sum / (60 * h);
}

static uint32_t float_leaves(const Graph *g, Value *leaves, uint32_t cap) {
    uint32_t n = 0;
    for (Value v = 1; v < g->n_nodes && n < cap; v++)
        if ((graph_op(g, v) == OP_input || graph_op(g, v) == OP_state) &&
            dtype_info[graph_type_at(g, v)->dtype].cls == CLASS_FLT)
            leaves[n++] = v;
    return n;
}

/* Small floats round the numbers of gradient rules, detach keeps its gradient to itself, and a SET
 * of equal indices gives its gradient to each update, as in torch, not to the last alone. */
static bool is_comparable(const Graph *g) {
    if (fuzz_has_specials(g)) return false;
    for (Value v = 1; v < g->n_nodes; v++) {
        const DTypeInfo *type = &dtype_info[graph_type_at(g, v)->dtype];
        if ((type->cls == CLASS_FLT && type->bytes < 4) || graph_op(g, v) == OP_detach)
            return false;
        if (op_info[graph_op(g, v)].lower == LOWER_SCATTER &&
            attr_i(g, v, A_MODE, 0) == SCATTER_SET)
            return false;
        if (graph_op(g, v) == OP_scan && !is_comparable(scan_body(g, v)->g)) return false;
    }
    return true;
}

/* Smooth graphs only: where the differences of two widths disagree there is a kink or a jump. */
Test(fuzz, gradients_agree_with_finite_differences) {
    unsigned long long first = 0, count = N_GRAPHS, n_compared = 0;
    const char *given = getenv("TRAINC_FUZZ");
    if (given) sscanf(given, "%llu:%llu", &first, &count);
    for (uint64_t seed = first; seed < first + count; seed++) {
        Graph *g = fuzz_graph(seed);
        Value leaves[64], d[64], y = graph_root(g, ENTRY_EVAL, false, "y0")->value;
        bool is_float = dtype_info[graph_type_at(g, y)->dtype].cls == CLASS_FLT,
             smooth = is_comparable(g);
        uint32_t n = 0, n_leaves = float_leaves(g, leaves, 64);
        if (is_float) {
            check_backward(g, y, build_splat(g, graph_node(g, y)->type, 1), leaves, n_leaves, d);
            cr_assert(!diag_has_errors(g) && graph_verify(g, stderr), "graph %llu",
                      (unsigned long long)seed);
            for (uint32_t i = 0; i < n_leaves; i++)
                if (d[i]) leaves[n] = leaves[i], d[n++] = d[i];
        }
        if (n && smooth) {
            double exact = on_line(g, seed, 0, y, leaves, d, n), coarse = slope(g, seed, y, 4e-5),
                   fine = slope(g, seed, y, 2e-5);
            double scale = fmax(fabs(exact), 1);
            if (fabs(coarse - fine) < 2e-7 * scale) {
                cr_assert(fabs(exact - fine) < 1e-6 * scale,
                          "graph %llu: %.12g, finite differences say %.12g",
                          (unsigned long long)seed, exact, fine);
                n_compared++;
            }
        }
        graph_free(g);
    }
    cr_assert(n_compared > count / 8, "only %llu graphs were compared", n_compared);
    fprintf(stderr, "%llu gradients of graphs %llu to %llu compared\n", n_compared, first,
            first + count - 1);
}
