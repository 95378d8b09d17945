/* Tests that the apply entry does what torch.optim and clip_grad_norm_ do: three steps in double
 * against optimizer_steps.inc. */
#include "env.h"
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

typedef struct Golden {
    const char *name;
    int rank;
    double lr, weight_decay, beta1, beta2, eps, momentum;
    int nesterov;
    double clip, w[3][4], norm[3];
} Golden;
static const Golden golden[] = {
#include "optimizer_steps.inc"
};
static const double start[4] = {0.5, -1.25, 2, 0.03125};
static const double grads[3][4] = {
    {0.25, -0.5, 1, 0}, {-0.125, 0.75, 0.5, 2}, {0.0625, 0.25, -3, 0.5}};

static const char net[] =
    "graph net\nstate w : f32[4] param trains\ninput x : f32[4]\ninput labels : i64[1] batch=0\n"
    "%1 = state : f32[4] name=w\n%2 = input : f32[4] name=x\n%3 = mul %1 %2\n%4 = sum %3 "
    "axes=[0]\n%5 = reshape %4 : f32[]\n%6 = reshape %3 : f32[1,4]\n"
    "entry micro\noutput loss = %5\noutput logits = %6\nentry eval\noutput loss = %5\noutput "
    "logits = %6\n";

static const char square_net[] =
    "graph net\nstate w : f32[2,2] param trains\ninput x : f32[2,2]\n"
    "%1 = state : f32[2,2] name=w\n%2 = input : f32[2,2] name=x\n%3 = mul %1 %2\n%4 = sum %3 "
    "axes=[0,1]\n%5 = reshape %4 : f32[]\nentry micro\noutput loss = %5\nentry eval\noutput loss "
    "= %5\n";

static PassContext run(Arena *a, Graph *g, const char *optimizer, const char *loss,
                       PassOptions *options) {
    *options = default_options();
    options->optimizer = optimizer;
    options->loss = loss;
    options->batch = options->micro_batch = 1;
    PassContext ctx = {.g = g, .arena = a, .options = options, .log = stderr};
    cr_assert(
        passes_run(&ctx, "loss,simplify,match,autodiff,accumulate,optimizer,expand,simplify"));
    return ctx;
}

static void set(Env *e, const char *state, const double *values, uint32_t n) {
    memcpy(env_state(e, state)->u.f, values, n * sizeof *values);
}

static void set_scalars(Env *e, const Golden *t, int step) {
    const char *names[] = {"lr",       "weight_decay", "beta1", "beta2", "eps",
                           "momentum", "nesterov",     "clip",  "bias1", "bias2",
                           "first",    "taken",        "decay"};
    double values[] = {t->lr,
                       t->weight_decay,
                       t->beta1,
                       t->beta2,
                       t->eps,
                       t->momentum,
                       t->nesterov,
                       t->clip,
                       1 - pow(t->beta1, step),
                       1 - pow(t->beta2, step),
                       step == 1,
                       step,
                       pow(step, -0.8)};
    for (uint32_t i = 0; i < sizeof names / sizeof *names; i++)
        env_set_scalar(e, names[i], values[i]);
}

static void follow(const Golden *t) {
    Arena *a = arena_new();
    PassOptions options;
    Graph *given = parse_or_fail(t->rank == 2 ? square_net : net, "net");
    PassContext ctx = run(a, given, t->name, "output", &options);
    const Graph *g = ctx.g;
    Env e;
    env_init(&e, g, a);
    set(&e, "w", start, 4);
    set(&e, "loss_count", (double[]){1}, 1);
    for (uint32_t i = 0; i < g->n_states; i++)
        if (g->states[i].cls == STATE_OPTIMIZER)
            set(&e, g->states[i].name, (double[4]){0},
                (uint32_t)type_elems(&g->types[g->states[i].type]));
    for (int step = 1; step <= 3; step++) {
        set_scalars(&e, t, step);
        set(&e, "grad.w", grads[step - 1], 4);
        Tensor *results = env_run(&e, g, ENTRY_APPLY);
        for (uint32_t i = 0; i < g->entries[ENTRY_APPLY].n; i++) {
            const Root *r = &g->entries[ENTRY_APPLY].roots[i];
            if (r->is_update)
                memcpy(env_state(&e, r->name)->u.f, results[i].u.f,
                       (size_t)type_elems(&results[i].type) * sizeof(double));
            else if (!strcmp(r->name, "grad_norm"))
                cr_assert(fabs(results[i].u.f[0] - t->norm[step - 1]) < 1e-12);
        }
        for (int i = 0; i < 4; i++)
            cr_assert(fabs(env_state(&e, "w")->u.f[i] - t->w[step - 1][i]) < 1e-12,
                      "%s step %d w[%d]: %.17g, torch has %.17g", t->name, step, i,
                      env_state(&e, "w")->u.f[i], t->w[step - 1][i]);
    }
    graph_free(ctx.g);
    graph_free(given);
    arena_free(a);
}

Test(optimizer, steps_as_torch_optim) {
    for (uint32_t i = 0; i < sizeof golden / sizeof *golden; i++) follow(&golden[i]);
}

Test(optimizer, keeps_every_value_where_no_label_counts) {
    Arena *a = arena_new();
    PassOptions options;
    Graph *given = parse_or_fail(net, "net");
    PassContext ctx = run(a, given, "adamw", "cross_entropy:logits", &options);
    Env e;
    env_init(&e, ctx.g, a);
    set(&e, "loss_count", (double[]){0}, 1);
    Tensor *results = env_run(&e, ctx.g, ENTRY_APPLY);
    const Entry *apply = &ctx.g->entries[ENTRY_APPLY];
    uint32_t n = 0;
    for (uint32_t i = 0; i < apply->n; i++) {
        if (!apply->roots[i].is_update) continue;
        cr_assert(
            !memcmp(results[i].u.f, env_state(&e, apply->roots[i].name)->u.f, 4 * sizeof(double)),
            "%s moved", apply->roots[i].name);
        n++;
    }
    cr_assert(n == 3);
    graph_free(ctx.g);
    graph_free(given);
    arena_free(a);
}

Test(optimizer, means_over_what_counted_and_unscales) {
    Arena *a = arena_new();
    PassOptions options;
    Graph *given = parse_or_fail(net, "net");
    PassContext ctx = run(a, given, "sgd", "cross_entropy:logits", &options);
    Env e;
    env_init(&e, ctx.g, a);
    set(&e, "loss_count", (double[]){0.5}, 1);
    set(&e, "loss_sum", (double[]){3}, 1);
    set(&e, "grad.w", (double[]){8, 0, 0, 0}, 4);
    env_set_scalar(&e, "loss_scale", 16);
    cr_assert(env_root(&e, ctx.g, ENTRY_APPLY, false, "loss").u.f[0] == 6);
    cr_assert(env_root(&e, ctx.g, ENTRY_APPLY, false, "grad_norm").u.f[0] == 1);
    cr_assert(env_root(&e, ctx.g, ENTRY_APPLY, false, "grad_scale").u.f[0] == 0.125);
    graph_free(ctx.g);
    graph_free(given);
    arena_free(a);
}
