/* Tests that attention under random masks, biases and scales is found, and computes what was
 * written.
 *
 * Masks are random expressions over rows and columns (ranges, constants, sums, comparisons, and,
 * or, not), a padding mask and constants written out; they are added as numbers, by products, or
 * select. The interpreter judges, in double, on random leaves: rows without a key are among them.
 */
#include "env.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

enum { N_MASKED = 1500 };
typedef struct Gen {
    Graph *g;
    uint64_t seed;
    int64_t dims[4]; /* B H S T */
} Gen;

static int64_t pick(Gen *r, int64_t n) {
    r->seed = r->seed * 6364136223846793005ull + 1442695040888963407ull;
    return (int64_t)((r->seed >> 33) % (uint64_t)n);
}

static Value input(Gen *r, const char *name, DType d, const int64_t *dims) {
    if (!graph_input(r->g, name))
        graph_add_input(r->g, (Input){.name = name,
                                      .type = graph_type_of(r->g, d, 4, dims),
                                      .batch_axis = -1,
                                      .index_limit = d == DT_I64 ? 2 : 0});
    return build_input(r->g, name);
}

static TypeId scores(Gen *r, DType d) {
    return graph_type_of(r->g, d, 4, (int64_t[]){1, 1, r->dims[2], r->dims[3]});
}

static Value integer(Gen *r, int64_t x) {
    return build_splat(r->g, graph_type_of(r->g, DT_I64, 0, NULL), (double)x);
}

/* Rows (axis 2) or columns: a range of its own, a constant along one axis, or one written out. */
static Value position(Gen *r, int64_t axis) {
    Gen *g = r;
    int64_t n = r->dims[axis], dims[] = {1, 1, axis == 2 ? n : 1, axis == 3 ? n : 1}, x[16];
    if (pick(g, 2)) return build_iota(r->g, scores(r, DT_I64), axis);
    for (int64_t i = 0; i < n; i++) x[i] = i;
    Value v = build_const(r->g, graph_type_of(r->g, DT_I64, 4, dims), x);
    return pick(g, 3) ? v : build_cast(r->g, v, DT_F32);
}

static Value comparison(Gen *r) {
    static const OpCode ops[] = {OP_lt, OP_le, OP_gt, OP_ge, OP_lt, OP_le, OP_eq, OP_ne};
    Value i = position(r, 2), j = position(r, 3), v = 0;
    i = build_cast(r->g, i, DT_I64);
    if (pick(r, 3))
        j = build_cast(r->g, j, DT_I64);
    else
        j = build_cast(r->g, build_cast(r->g, j, DT_F32), DT_I64);
    switch (pick(r, 5)) {
    case 0: /* |j - i| against a width */
        v = build_unary(r->g, OP_abs, build_binary(r->g, OP_sub, j, i));
        return build_binary(r->g, ops[pick(r, 8)], v, integer(r, pick(r, 4)));
    case 1: /* a column alone */
        j = build_expand(r->g, j, 4, (int64_t[]){1, 1, r->dims[2], r->dims[3]});
        return build_binary(r->g, ops[pick(r, 8)], j, integer(r, pick(r, 5)));
    case 2:
        v = build_binary(r->g, OP_mul, build_binary(r->g, OP_sub, i, j), integer(r, 2));
        return build_binary(r->g, ops[pick(r, 8)], v, integer(r, pick(r, 7) - 3));
    case 3:
        v = build_binary(r->g, OP_sub, i, integer(r, pick(r, 4)));
        return build_binary(r->g, ops[pick(r, 8)], j, v);
    default:
        v = build_binary(r->g, OP_add, i, integer(r, pick(r, 5) - 2));
        return build_binary(r->g, ops[pick(r, 8)], v, j);
    }
}

static Value written_out(Gen *r) {
    unsigned char seen[256];
    int64_t first = pick(r, 5) - 4, last = pick(r, 4) - 1;
    for (int64_t i = 0; i < r->dims[2]; i++)
        for (int64_t j = 0; j < r->dims[3]; j++)
            seen[i * r->dims[3] + j] = j - i >= first && j - i <= last;
    if (!pick(r, 4)) seen[pick(r, r->dims[2] * r->dims[3])] ^= 1;
    return build_const(r->g, scores(r, DT_BOOL), seen);
}

static Value mask(Gen *r, int depth) {
    int64_t pad[] = {r->dims[0], 1, 1, r->dims[3]};
    if (depth > 0 && pick(r, 2)) {
        OpCode op = pick(r, 4) ? OP_and : OP_or;
        return build_binary(r->g, op, mask(r, depth - 1), mask(r, depth - 1));
    }
    switch (pick(r, 6)) {
    case 0:
        return build_cast(r->g, input(r, "m", DT_I64, pad), DT_BOOL);
    case 1:
        return build_unary(r->g, OP_not, mask(r, depth - 1));
    case 2:
        return written_out(r);
    case 3: /* a number that says so */
        return build_binary(r->g, pick(r, 2) ? OP_ne : OP_gt,
                            build_cast(r->g, comparison(r), DT_F32),
                            build_splat(r->g, graph_type_of(r->g, DT_F32, 0, NULL), 0));
    default:
        return comparison(r);
    }
}

static Value number(Gen *r, double x) {
    return build_splat(r->g, graph_type_of(r->g, DT_F32, 0, NULL), x);
}

/* Of moderate size mostly, so that what a hidden score keeps shows. */
static double fill(Gen *r) {
    static const double fills[] = {-2, -2, -0.5, -1e4, -1e30, -INFINITY};
    return fills[pick(r, 6)];
}

static Value bias(Gen *r) {
    int64_t dims[] = {1, pick(r, 2) ? r->dims[1] : 1, pick(r, 2) ? r->dims[2] : 1, r->dims[3]};
    return input(r, "b", DT_F32, dims);
}

static Value added(Gen *r) {
    Value one;
    double f = fill(r);
    switch (pick(r, 5)) {
    case 0:
        return build_map(r->g, OP_where, (Value[]){mask(r, 1), number(r, 0), number(r, f)}, 3);
    case 1:
        return build_map(r->g, OP_where, (Value[]){mask(r, 1), number(r, f), number(r, 0)}, 3);
    case 2:
        return build_map(r->g, OP_where, (Value[]){mask(r, 1), bias(r), number(r, f)}, 3);
    case 3:
        one = build_binary(r->g, OP_sub, number(r, 1), build_cast(r->g, mask(r, 1), DT_F32));
        return build_binary(r->g, OP_mul, one, number(r, isinf(f) ? -3 : f));
    default:
        return bias(r);
    }
}

static Graph *random_attention(uint64_t seed) {
    Gen r = {.g = graph_new("masked"), .seed = seed * 2654435761u + 1};
    r.dims[0] = 1 + pick(&r, 2);
    r.dims[1] = 1 + pick(&r, 2);
    r.dims[2] = 1 + pick(&r, 4);
    r.dims[3] = 1 + pick(&r, 5);
    int64_t q[] = {r.dims[0], r.dims[1], r.dims[2], 2}, k[] = {r.dims[0], r.dims[1], r.dims[3], 2};
    Value s = build_dot(r.g, input(&r, "q", DT_F32, q), input(&r, "k", DT_F32, k), false, true);
    s = build_reshape(r.g, s, 4, r.dims); /* the builder folds what has no batch */
    if (pick(&r, 2)) s = build_binary(r.g, OP_mul, s, number(&r, 0.25));
    if (!pick(&r, 4)) s = build_binary(r.g, OP_mul, number(&r, 3), build_unary(r.g, OP_tanh, s));
    for (int64_t n = pick(&r, 4); n > 0; n--) {
        bool selects = !pick(&r, 3);
        s = selects ? build_map(r.g, OP_where, (Value[]){mask(&r, 2), s, number(&r, fill(&r))}, 3)
                    : build_binary(r.g, OP_add, s, added(&r));
        if (!pick(&r, 4)) s = build_binary(r.g, OP_mul, s, number(&r, 2));
    }
    AttrField axes = attr_ints(A_AXES, (const int64_t[]){3}, 1);
    Value p = graph_emit(r.g, OP_softmax, &s, 1, graph_attr(r.g, &axes, 1), 0);
    if (pick(&r, 2))
        p = build_map(r.g, OP_where, (Value[]){build_unary(r.g, OP_isnan, p), number(&r, 0), p}, 3);
    graph_add_root(r.g, ENTRY_EVAL, false, "y",
                   build_dot(r.g, p, input(&r, "v", DT_F32, k), false, false));
    return r.g;
}

static bool has_op(const Graph *g, OpCode op) {
    Arena *a = arena_new();
    bool *live = graph_reachable(g, a, ENTRY_EVAL), found = false;
    for (Value v = 1; v < g->n_nodes; v++) found |= live[v] && graph_op(g, v) == op;
    arena_free(a);
    return found;
}

static bool same(double x, double y) {
    return fabs(x - y) <= 1e-7 * (1 + fabs(x)) || (isnan(x) && isnan(y)) || x == y;
}

/* Whether attention was found; values must be those of before either way. */
static bool masked_attention(uint64_t seed) {
    Arena *a = arena_new();
    Graph *before = random_attention(seed), *given = random_attention(seed);
    PassOptions options = default_options();
    PassContext ctx = {.g = given, .arena = a, .options = &options};
    cr_assert(passes_run(&ctx, "simplify,match"), "seed %llu", (unsigned long long)seed);
    Env e1, e2;
    env_init(&e1, before, a);
    env_init(&e2, ctx.g, a);
    Tensor x = env_root(&e1, before, ENTRY_EVAL, false, "y"),
           y = env_root(&e2, ctx.g, ENTRY_EVAL, false, "y");
    for (int64_t i = 0; i < type_elems(&x.type); i++)
        if (!same(x.u.f[i], y.u.f[i])) {
            graph_print(before, stderr);
            graph_print(ctx.g, stderr);
            cr_assert(0, "seed %llu: element %lld: %.17g became %.17g", (unsigned long long)seed,
                      (long long)i, x.u.f[i], y.u.f[i]);
        }
    bool found = has_op(ctx.g, OP_attention);
    if (ctx.g != given) graph_free(ctx.g);
    graph_free(given);
    graph_free(before);
    arena_free(a);
    return found;
}

/* A few cannot be one attention: masks of different numbers that select, or bias between them. */
Test(match_masks, tests_that_attention_under_random_masks_keeps_its_values) {
    int n_found = 0;
    for (uint64_t seed = 0; seed < N_MASKED; seed++) n_found += masked_attention(seed);
    cr_assert(n_found > N_MASKED * 8 / 10, "attention was found in %d of %d", n_found, N_MASKED);
}
