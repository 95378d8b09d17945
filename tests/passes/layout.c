/* Tests that moving transposes keeps values: random work on values in two orders of axes, with
 * transposes to and fro between them. */
#include "env.h"
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { RANK = 4, N_GRAPHS = 400, N_STEPS = 14, MAX_VALUES = N_STEPS + 2 };
static const int64_t perms[][RANK] = {
    {0, 2, 3, 1}, {0, 3, 1, 2}, {1, 0, 2, 3}, {0, 2, 1, 3}, {3, 1, 0, 2}};

typedef struct Work {
    Graph *g;
    uint64_t rng;
    const int64_t *perm;
    Value values[2][MAX_VALUES]; /* in the first order of axes, and in the other */
    uint32_t n[2];
} Work;

static uint32_t draw(Work *w, uint32_t n) {
    w->rng = w->rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(w->rng >> 33) % n;
}

static Value some(Work *w, uint32_t order) { return w->values[order][draw(w, w->n[order])]; }

static Value reduced(Work *w, OpCode op, Value v, bool to_macro) {
    int64_t axes[RANK];
    uint32_t n = 0;
    for (uint32_t i = 0; i < RANK; i++)
        if (draw(w, 2)) axes[n++] = i;
    if (!n) axes[n++] = draw(w, RANK);
    Type t = *graph_type_at(w->g, v);
    if (!to_macro) return build_expand(w->g, build_reduce(w->g, op, v, axes, n), t.rank, t.dims);
    AttrField fields[] = {attr_ints(A_AXES, axes, n), attr_float(A_EPS, 1e-3)};
    return graph_emit(w->g, op, &v, 1, graph_attr(w->g, fields, op == OP_softmax ? 1 : 2), 0);
}

/* A line of numbers along one axis, as a bias is. */
static Value biased(Work *w, Value v) {
    Type t = *graph_type_at(w->g, v), line = {.dtype = DT_F32, .rank = RANK, .dims = {1, 1, 1, 1}};
    uint32_t axis = draw(w, RANK);
    line.dims[axis] = t.dims[axis];
    Value numbers = build_cast(w->g, build_iota(w->g, graph_type(w->g, line), axis), DT_F32);
    return build_binary(w->g, OP_add, v, build_unary(w->g, OP_cos, numbers));
}

/* Cut off at one side, padded at the other. */
static Value moved(Work *w, Value v) {
    Type t = *graph_type_at(w->g, v);
    int64_t start[RANK] = {0}, low[RANK] = {0}, high[RANK] = {0}, interior[RANK] = {0};
    uint32_t axis = draw(w, RANK);
    start[axis] = high[axis] = t.dims[axis] > 1;
    t.dims[axis] -= start[axis];
    return build_pad(w->g, build_slice(w->g, v, start, t.dims, NULL), low, high, interior, 0.5);
}

static Value joined(Work *w, Value a, Value b) {
    Type t = *graph_type_at(w->g, a);
    uint32_t axis = draw(w, RANK);
    int64_t start[RANK] = {0};
    start[axis] = draw(w, (uint32_t)t.dims[axis] + 1);
    return build_slice(w->g, build_concat(w->g, (Value[]){a, b}, 2, axis), start, t.dims, NULL);
}

static void step(Work *w) {
    uint32_t order = draw(w, 2);
    if (!w->n[order]) order = !order;
    Value v = some(w, order), other = some(w, order), made = 0;
    int64_t back[RANK];
    for (uint32_t i = 0; i < RANK; i++) back[w->perm[i]] = i;
    switch (draw(w, 10)) {
    case 0:
    case 1:
    case 2:
        made = build_transpose(w->g, v, order ? back : w->perm);
        order = !order;
        break;
    case 3:
        made = build_unary(w->g, OP_tanh, v);
        break;
    case 4:
        made = build_binary(w->g, OP_add, v, other);
        break;
    case 5:
        made = biased(w, v);
        break;
    case 6:
        made = build_binary(w->g, OP_sub, v, reduced(w, draw(w, 2) ? OP_sum : OP_rmax, v, false));
        break;
    case 7:
        made = reduced(w, draw(w, 2) ? OP_softmax : OP_layer_norm, v, true);
        break;
    case 8:
        made = moved(w, v);
        break;
    case 9:
        made = joined(w, v, other);
        break;
    }
    w->values[order][w->n[order]++] = made;
}

static Graph *random_work(uint64_t seed) {
    Work w = {.g = graph_new("layout"), .rng = seed};
    int64_t dims[RANK];
    for (int i = 0; i < 3; i++) draw(&w, 2);
    w.perm = perms[draw(&w, sizeof perms / sizeof *perms)];
    for (uint32_t i = 0; i < RANK; i++) dims[i] = 1 + draw(&w, 4);
    graph_add_input(w.g, (Input){"x", graph_type_of(w.g, DT_F32, RANK, dims), -1, 0, 0});
    w.values[0][w.n[0]++] = build_input(w.g, "x");
    for (int i = 0; i < N_STEPS; i++) step(&w);
    for (uint32_t order = 0; order < 2; order++)
        if (w.n[order])
            graph_add_root(w.g, ENTRY_EVAL, false, order ? "b" : "a",
                           w.values[order][w.n[order] - 1]);
    return w.g;
}

static uint32_t check_one(uint64_t seed) {
    Arena *arena = arena_new();
    Graph *g = random_work(seed);
    PassOptions options = default_options();
    PassContext ctx = {.g = g, .arena = arena, .options = &options, .log = stderr};
    cr_assert(passes_run(&ctx, "simplify"), "seed %llu", (unsigned long long)seed);
    Env env;
    env_init(&env, g, arena);
    Tensor *before = env_run(&env, g, ENTRY_EVAL);
    env.g = ctx.g;
    Tensor *after = env_run(&env, ctx.g, ENTRY_EVAL);
    for (uint32_t r = 0; r < g->entries[ENTRY_EVAL].n; r++)
        for (int64_t i = 0; i < type_elems(&before[r].type); i++) {
            double x = before[r].u.f[i], y = after[r].u.f[i];
            cr_assert(fabs(x - y) <= 1e-6 * (1 + fabs(x)), "seed %llu: %g became %g",
                      (unsigned long long)seed, x, y);
        }
    uint32_t gone = 0;
    for (Value v = 1; v < g->n_nodes; v++) gone += graph_op(g, v) == OP_transpose;
    for (Value v = 1; v < ctx.g->n_nodes; v++) gone -= graph_op(ctx.g, v) == OP_transpose;
    graph_free(ctx.g);
    graph_free(g);
    arena_free(arena);
    return gone;
}

Test(layout, transposes_that_move_keep_values) {
    int64_t gone = 0;
    for (uint64_t seed = 1; seed <= N_GRAPHS; seed++) gone += (int32_t)check_one(seed);
    cr_assert(gone > N_GRAPHS, "%lld transposes cancelled", (long long)gone);
}
