/* Tests of quantised weights as states, of random operators' statistics and streams, and that what
 * operators on types, indices and sequences cannot do is refused by name, all in one run. */
#include "import_helpers.h"
#include "passes.h"
#include <math.h>

/* ---------------------------------------------------------------- quantised weights */

Test(quantised, weights_stay_bytes_of_the_file_and_do_not_train) {
    Model m = import_good(
        (ImportOptions){.path = MODEL("quantised"), DIMS({"batch", 2}), FREEZES({true, "*"})});
    const State *w8 = graph_state(m.graph, "w8"), *w4 = graph_state(m.graph, "w4");
    cr_assert(w8 && w4 && !w8->trains && !w4->trains);
    cr_assert_eq(m.graph->types[w8->type].dtype, DT_I8);
    cr_assert(w8->source.file && w8->source.bytes == 48);
    cr_assert_eq(m.graph->types[w4->type].dtype, DT_I4);
    const int8_t *four = w4->source.data;
    for (int i = 0; i < 24; i++) cr_assert(four[i] >= -8 && four[i] < 8);
    const char *const scales[] = {"s8", "s4", "xs"};
    for (int i = 0; i < 3; i++) {
        const State *s = graph_state(m.graph, scales[i]);
        cr_assert(!s || !s->trains, "%s trains", scales[i]);
    }
    cr_assert(graph_state(m.graph, "a")->trains);
    model_free(&m);
}

/* What lies behind rounded activations is said not to train. */
Test(quantised, gradients_flow_around_weights_and_end_at_rounding) {
    Arena *arena = arena_new();
    Model m = import_good((ImportOptions){.path = MODEL("quantised"), DIMS({"batch", 2})});
    PassOptions o = {.ignore_index = -100, .fuel = -1, .batch = 2, .micro_batch = 2};
    o.loss = "mse:y", o.tensor_names = m.tensor_names, o.tensor_values = m.tensor_values;
    o.eval_values = m.eval_values, o.n_tensors = m.n_tensors;
    PassContext ctx = {.g = m.graph, .arena = arena, .options = &o, .log = stderr};
    cr_assert(passes_run(&ctx, "loss,simplify,autodiff"));
    cr_assert(graph_root(ctx.g, ENTRY_MICRO, false, "grad.a"));
    cr_assert(!graph_root(ctx.g, ENTRY_MICRO, false, "grad.s8"));
    if (ctx.g != m.graph) graph_free(ctx.g);
    model_free(&m);
    m = import_good((ImportOptions){.path = MODEL("quantised"), DIMS({"batch", 2})});
    o.loss = "mse:z", o.tensor_names = m.tensor_names, o.tensor_values = m.tensor_values;
    o.eval_values = m.eval_values, o.n_tensors = m.n_tensors;
    ctx = (PassContext){.g = m.graph, .arena = arena, .options = &o, .log = stderr};
    cr_assert(!passes_run(&ctx, "loss,simplify,autodiff"));
    char *text = diag_text(ctx.g);
    cr_assert(strstr(text, "QuantizeLinear") && strstr(text, "early"), "%s", text);
    free(text);
    if (ctx.g != m.graph) graph_free(ctx.g);
    model_free(&m);
    arena_free(arena);
}

/* ---------------------------------------------------------------- random numbers */

typedef struct Drawn {
    Model m;
    Arena *arena;
    Tensor *all;
} Drawn;

static const Tensor *input_of(void *user, const char *name) {
    Drawn *d = user;
    Tensor *t = arena_alloc(d->arena, sizeof *t);
    *t = tensor_from_bytes(d->arena, d->m.graph->types[graph_input(d->m.graph, name)->type],
                           &(float){1});
    return t;
}

static Drawn draw(EntryKind entry, uint64_t seed, uint64_t step) {
    Drawn d = {.arena = arena_new()};
    d.m = import_good((ImportOptions){.path = MODEL("random"), DIMS({"batch", 1})});
    InterpEnv env = {.input = input_of, .user = &d, .seed = seed, .step = step};
    d.all = arena_alloc(d.arena, d.m.graph->entries[entry].n * sizeof *d.all);
    cr_assert(interp_entry(d.m.graph, entry, &env, d.arena, d.all, stderr));
    return d;
}

static const Tensor *drawn(const Drawn *d, EntryKind entry, const char *name) {
    const Root *r = graph_root(d->m.graph, entry, false, name);
    cr_assert(r, "%s", name);
    return &d->all[r - d->m.graph->entries[entry].roots];
}

static void drawn_free(Drawn *d) {
    model_free(&d->m);
    arena_free(d->arena);
}

/* Mean and variance of n independent numbers, within five standard errors. */
static void expect_moments(const Tensor *t, double mean, double variance, double fourth) {
    double n = (double)type_elems(&t->type), sum = 0, square = 0;
    for (int64_t i = 0; i < (int64_t)n; i++) sum += t->u.f[i];
    double m = sum / n;
    for (int64_t i = 0; i < (int64_t)n; i++) square += (t->u.f[i] - m) * (t->u.f[i] - m);
    cr_expect_lt(fabs(m - mean), 5 * sqrt(variance / n), "the mean is %g", m);
    cr_expect_lt(fabs(square / n - variance), 5 * sqrt((fourth - variance * variance) / n),
                 "the variance is %g", square / n);
}

Test(randomness, moments_are_those_asked_for) {
    Drawn d = draw(ENTRY_EVAL, 11, 0);
    expect_moments(drawn(&d, ENTRY_EVAL, "normal"), 2, 9, 3 * 81);
    expect_moments(drawn(&d, ENTRY_EVAL, "uniform"), 1.5, 25. / 12, 625. / 80);
    expect_moments(drawn(&d, ENTRY_EVAL, "like"), 0, 1, 3);
    const Tensor *truth = drawn(&d, ENTRY_EVAL, "truth"), *choice = drawn(&d, ENTRY_EVAL, "choice");
    const double chances[] = {0.2, 0.5, 0.3};
    double n_true = 0, n_of[3] = {0};
    for (int i = 0; i < 40000; i++) n_true += (double)truth->u.i[i];
    for (int i = 0; i < 30000; i++) n_of[choice->u.i[i]]++;
    cr_expect_lt(fabs(n_true / 40000 - 0.3), 5 * sqrt(0.21 / 40000));
    for (int k = 0; k < 3; k++)
        cr_expect_lt(fabs(n_of[k] / 30000 - chances[k]),
                     5 * sqrt(chances[k] * (1 - chances[k]) / 30000));
    drawn_free(&d);
}

static double first_of(EntryKind entry, const char *name, uint64_t seed, uint64_t step) {
    Drawn d = draw(entry, seed, step);
    double x = drawn(&d, entry, name)->u.f[5];
    drawn_free(&d);
    return x;
}

Test(randomness, streams_differ_by_node_seed_and_step_alone) {
    double x = first_of(ENTRY_EVAL, "uniform", 11, 0);
    cr_expect_eq(x, first_of(ENTRY_EVAL, "uniform", 11, 0));
    cr_expect_eq(x, first_of(ENTRY_MICRO, "uniform", 11, 0));
    cr_expect_neq(x, first_of(ENTRY_EVAL, "other", 11, 0));
    cr_expect_neq(x, first_of(ENTRY_EVAL, "uniform", 12, 0));
    cr_expect_neq(x, first_of(ENTRY_EVAL, "uniform", 11, 1));
    cr_expect_eq(first_of(ENTRY_EVAL, "seeded", 11, 0), first_of(ENTRY_EVAL, "again", 11, 0));
}

/* ---------------------------------------------------------------- refusals */

Test(types, what_cannot_be_is_refused_by_name_in_one_run) {
    import_bad((ImportOptions){.path = MODEL("types_refused")}, 4,
               STRINGS("9 of an axis of 3", "Unique", "Compress", "NonZero", "'mean' is not known",
                       "index 3 is outside", "a scale of f32[2] for u8[2,3]",
                       "is no quantised type", "random numbers are floats", "[batch, classes]",
                       "lengths of i64[2,3]", "position 5 in a sequence of 2",
                       "this optional is empty", "neither LEFT nor RIGHT", "element type string",
                       "no pool of integers", "op OneHot has a result", "no type of 4 bytes",
                       "NonMaxSuppression", "an update of f32[2,3]", "op Range has a result",
                       "--set"));
}
