/* Tests that what autodiff appends is the derivative of loss_sum: central differences through the
 * interpreter, in double, over every element of every parameter, on small nets that meet each loss
 * and the macros. */
#include "env.h"
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static double loss_of(Env *e, const Graph *g) {
    return env_root(e, g, ENTRY_MICRO, true, "loss_sum").u.f[0];
}

static void check_parameter(Env *e, const Graph *g, const State *s, double static_count) {
    const char *grad = arena_printf(e->arena, "grad.%s", s->name);
    Tensor d = env_root(e, g, ENTRY_MICRO, true, grad);
    Tensor *w = env_state(e, s->name);
    for (int64_t i = 0; i < type_elems(&w->type); i++) {
        double at = w->u.f[i], h = 1e-5;
        w->u.f[i] = at + h;
        double up = loss_of(e, g);
        w->u.f[i] = at - h;
        double down = loss_of(e, g);
        w->u.f[i] = at;
        double slope = (up - down) / (2 * h) / static_count;
        cr_assert(fabs(slope - d.u.f[i]) <= 1e-6 * (0.01 + fabs(slope)),
                  "%s[%lld]: %.12g by differences, %.12g by autodiff", s->name, (long long)i, slope,
                  d.u.f[i]);
    }
}

static PassContext run(Arena *a, Graph *g, const char *options_text, const char *passes,
                       PassOptions *options) {
    *options = default_options();
    cr_assert(pass_options_parse(options_text, a, options));
    PassContext ctx = {.g = g, .arena = a, .options = options, .log = stderr};
    bool ok = passes_run(&ctx, passes);
    if (!ok) diag_print(ctx.g, stderr);
    cr_assert(ok);
    return ctx;
}

static void check(const char *text, const char *options_text) {
    Arena *a = arena_new();
    PassOptions options;
    Graph *given = parse_or_fail(text, "net");
    PassContext ctx = run(a, given, options_text,
                          "loss,simplify,match,autodiff,accumulate,expand,simplify", &options);
    Graph *g = ctx.g;
    double static_count = 0;
    cr_assert(
        const_splat(g, graph_root(g, ENTRY_APPLY, false, "static_count")->value, &static_count));
    Env e;
    env_init(&e, g, a);
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_states; i++)
        if (g->states[i].trains) check_parameter(&e, g, &g->states[i], static_count), n++;
    cr_assert(n > 0);
    graph_free(g);
    graph_free(given);
    arena_free(a);
}

static const char mlp[] = "graph mlp\n"
                          "state w1 : f32[3,4] param trains\nstate b1 : f32[4] param trains\nstate "
                          "w2 : f32[5,4] param trains\ninput x : f32[4,3] batch=0\n"
                          "%1 = input : f32[4,3] name=x\n%2 = state : f32[3,4] name=w1\n%3 = state "
                          ": f32[4] name=b1\n%4 = state : f32[5,4] name=w2\n"
                          "%5 = dot %1 %2 ta=0 tb=0\n%6 = reshape %3 : f32[1,4]\n%7 = expand %6 : "
                          "f32[4,4]\n%8 = add %5 %7\n%9 = gelu %8\n"
                          "%10 = dot %9 %4 ta=0 tb=1\n";

static void check_mlp(const char *tail, const char *options) {
    char text[4096];
    snprintf(text, sizeof text, "%s%sentry micro\noutput y = %s\nentry eval\noutput y = %s\n", mlp,
             tail, *tail ? "%11" : "%10", *tail ? "%11" : "%10");
    check(text, options);
}

Test(gradient, of_cross_entropy) { check_mlp("", "loss=cross_entropy batch=4 micro_batch=4"); }
Test(gradient, of_cross_entropy_in_micro_batches) {
    check_mlp("", "loss=cross_entropy batch=12 micro_batch=4");
}
Test(gradient, of_mse) { check_mlp("", "loss=mse batch=4 micro_batch=4"); }
Test(gradient, of_l1) { check_mlp("", "loss=l1 batch=4 micro_batch=4"); }
Test(gradient, of_bce_with_logits) { check_mlp("", "loss=bce_with_logits batch=8 micro_batch=4"); }
Test(gradient, of_bce) { check_mlp("%11 = sigmoid %10\n", "loss=bce batch=4 micro_batch=4"); }
Test(gradient, of_nll) {
    check_mlp("%11 = log_softmax %10 axes=[1]\n", "loss=nll batch=4 micro_batch=4");
}

/* Tied embedding and head, layer norm, causal attention, a shift of the labels by one. */
static const char transformer[] =
    "graph transformer\n"
    "state wte : f32[6,4] param trains\nstate q : f32[4,4] param trains\nstate s : f32[4] param "
    "trains\ninput ids : i64[2,3] batch=0 limit=6\n"
    "%1 = state : f32[6,4] name=wte\n%2 = input : i64[2,3] name=ids\n%3 = gather %1 %2 axis=0\n"
    "%4 = layer_norm %3 axes=[2] eps=1e-05\n%5 = state : f32[4] name=s\n%6 = reshape %5 : "
    "f32[1,1,4]\n%7 = expand %6 : f32[2,3,4]\n%8 = mul %4 %7\n"
    "%9 = reshape %8 : f32[6,4]\n%10 = state : f32[4,4] name=q\n%11 = dot %9 %10 ta=0 tb=0\n%12 = "
    "reshape %11 : f32[2,3,4]\n"
    "%13 = dot %12 %8 ta=0 tb=1\n%14 = iota : i64[2,3,3] axis=1\n%15 = iota : i64[2,3,3] "
    "axis=2\n%16 = le %15 %14\n"
    "%17 = const : f32[2,3,3] data=[-1e9]\n%18 = where %16 %13 %17\n%19 = softmax %18 "
    "axes=[2]\n%20 = dot %19 %8 ta=0 tb=0\n%21 = silu %20\n"
    "%22 = rms_norm %21 axes=[2] eps=1e-06\n%23 = gelu_tanh %22\n%24 = reshape %23 : f32[6,4]\n%25 "
    "= dot %24 %1 ta=0 tb=1\n%26 = reshape %25 : f32[2,3,6]\n"
    "entry micro\noutput logits = %26\nentry eval\noutput logits = %26\n";

Test(gradient, of_a_transformer_with_tied_embedding) {
    check(transformer, "loss=causal_lm batch=4 micro_batch=2");
}

static const char convolution[] =
    "graph convolution\n"
    "state w : f32[4,2,3,3] param trains\nstate scale : f32[4] param trains\ninput x : "
    "f32[2,2,5,5] batch=0\n"
    "%1 = input : f32[2,2,5,5] name=x\n%2 = state : f32[4,2,3,3] name=w\n"
    "%3 = conv %1 %2 strides=[2,2] dilations=[1,1] low=[1,1] high=[1,1] groups=1\n"
    "%4 = window %3 kernel=[2,2] strides=[1,1] dilations=[1,1] low=[0,0] high=[0,0] "
    "value=-1e30\n%5 = rmax %4 axes=[4,5]\n%6 = reshape %5 : f32[2,4,4]\n"
    "%7 = state : f32[4] name=scale\n%8 = reshape %7 : f32[1,4,1]\n%9 = expand %8 : "
    "f32[2,4,4]\n%10 = mul %6 %9\n%11 = transpose %10 perm=[0,2,1]\n"
    "%12 = tanh %11\n%13 = slice %12 : f32[2,4,2] start=[0,0,1] step=[1,1,2]\n%14 = concat %13 %12 "
    "axis=2\n"
    "%15 = sum %14 axes=[0,1,2]\n%16 = reshape %15 : f32[]\nentry micro\noutput loss = %16\nentry "
    "eval\noutput loss = %16\n";

Test(gradient, of_convolution_and_pooling_with_the_models_own_loss) {
    check(convolution, "loss=output batch=2 micro_batch=2");
}

Test(accumulate, adds_to_the_gradient_of_earlier_micro_batches_alone) {
    Arena *a = arena_new();
    PassOptions options;
    Graph *given = parse_or_fail(transformer, "net");
    PassContext ctx =
        run(a, given, "loss=causal_lm batch=4 micro_batch=2", "loss,autodiff,accumulate", &options);
    Env e;
    env_init(&e, ctx.g, a);
    Tensor first = env_root(&e, ctx.g, ENTRY_MICRO, true, "grad.wte"),
           count = env_root(&e, ctx.g, ENTRY_MICRO, true, "loss_count");
    env_set_scalar(&e, "micro", 1);
    Tensor second = env_root(&e, ctx.g, ENTRY_MICRO, true, "grad.wte"),
           count2 = env_root(&e, ctx.g, ENTRY_MICRO, true, "loss_count");
    Tensor *held = env_state(&e, "grad.wte");
    for (int64_t i = 0; i < 24; i++)
        cr_assert(fabs(second.u.f[i] - first.u.f[i] - held->u.f[i]) < 1e-12);
    cr_assert(count.u.f[0] == 4, "two sequences of three tokens have two labels each");
    cr_assert(fabs(count2.u.f[0] - 4 - env_state(&e, "loss_count")->u.f[0]) < 1e-12);
    graph_free(ctx.g);
    graph_free(given);
    arena_free(a);
}

Test(loss, samples_beyond_the_last_do_not_count) {
    Arena *a = arena_new();
    PassOptions options;
    char text[4096];
    snprintf(text, sizeof text, "%sentry micro\noutput y = %%10\nentry eval\noutput y = %%10\n",
             mlp);
    Graph *given = parse_or_fail(text, "net");
    PassContext ctx =
        run(a, given, "loss=mse batch=4 micro_batch=4 keep_outputs=1", "loss,simplify", &options);
    Env e;
    env_init(&e, ctx.g, a);
    env_set_scalar(&e, "samples", 3);
    Tensor y = env_root(&e, ctx.g, ENTRY_EVAL, false, "y"),
           sum = env_root(&e, ctx.g, ENTRY_EVAL, false, "loss_sum");
    Tensor *labels = env_input(&e, "labels");
    double want = 0;
    for (int i = 0; i < 15; i++)
        want += (y.u.f[i] - labels->u.f[i]) * (y.u.f[i] - labels->u.f[i]) / 5;
    cr_assert(fabs(sum.u.f[0] - want) < 1e-12 * want);
    cr_assert(env_root(&e, ctx.g, ENTRY_EVAL, false, "loss_count").u.f[0] == 3);
    graph_free(ctx.g);
    graph_free(given);
    arena_free(a);
}
