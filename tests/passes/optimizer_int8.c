/* Tests that moments in 8 bits are the nearest codes of the format, per block of 256, and that the
 * next step reads back what they say. The codes are listed here from the format's own description:
 * the middles of equal parts of each decade, 0, and 1. */
#include "env.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ELEMS = 4100, BLOCK = 256, BLOCKS = 17 };
static const double beta1 = 0.75, beta2 = 0.5, lr = 0.25, eps = 1e-3;

/* shares[code]; with a sign, codes from 127 down are negative */
static void list_codes(double *shares, bool is_signed) {
    int zero = is_signed ? 127 : 0, n = 0;
    for (int decade = 0; decade < 7; decade++) {
        int parts = 1 << (is_signed ? decade : decade + 1);
        for (int i = 0; i < parts; i++) {
            double x = pow(10, decade - 6) * (0.1 + 0.9 * (i + 0.5) / parts);
            n++;
            shares[zero + n] = x;
            if (is_signed) shares[zero - n] = -x;
        }
    }
    shares[zero] = 0;
    shares[255] = 1;
}

/* Is the code the nearest to the share? Between equals, and within rounding of f32, either will do.
 */
static void check_nearest(const double *shares, double share, int64_t code) {
    double best = INFINITY, got = fabs(shares[code] - share);
    for (int i = 0; i < 256; i++) best = fmin(best, fabs(shares[i] - share));
    cr_assert(got <= best * 1.0001 + 1e-7 * fabs(share),
              "share %g has code %lld: off by %g, %g is possible", share, (long long)code, got,
              best);
}

static double random_number(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    double x = ((double)(*seed >> 8) / 8388608 - 1);
    return x * pow(10, -(double)(*seed >> 4 & 7)); /* eight decades */
}

static const char net[] =
    "graph net\nstate w : f32[4100] param trains\ninput x : f32[4100]\n"
    "%1 = state : f32[4100] name=w\n%2 = input : f32[4100] name=x\n%3 = mul %1 %2\n%4 = sum %3 "
    "axes=[0]\n%5 = reshape %4 : f32[]\nentry micro\noutput loss = %5\nentry eval\noutput loss = "
    "%5\n";

typedef struct Moments {
    double m[ELEMS], v[ELEMS]; /* what the codes say */
} Moments;

static void set_scalars(Env *e, int step) {
    const char *names[] = {"lr",    "beta1", "beta2", "eps",       "weight_decay",
                           "bias1", "bias2", "clip",  "loss_scale"};
    double values[] = {lr,       beta1, beta2, eps, 0, 1 - pow(beta1, step), 1 - pow(beta2, step),
                       INFINITY, 1};
    for (uint32_t i = 0; i < sizeof names / sizeof *names; i++)
        env_set_scalar(e, names[i], values[i]);
}

static void apply(Env *e, const Graph *g) {
    Tensor *results = env_run(e, g, ENTRY_APPLY);
    for (uint32_t i = 0; i < g->entries[ENTRY_APPLY].n; i++) {
        const Root *r = &g->entries[ENTRY_APPLY].roots[i];
        if (r->is_update)
            memcpy(env_state(e, r->name)->u.p, results[i].u.p,
                   (size_t)type_elems(&results[i].type) * 8);
    }
}

/* Checks the codes against the true moments, and reads them back. */
static void check_codes(Env *e, const char *moment, bool is_signed, const double *truth,
                        double *says) {
    double shares[256];
    char largest[32];
    snprintf(largest, sizeof largest, "%s.absmax", moment);
    const Tensor *codes = env_state(e, moment), *most = env_state(e, largest);
    cr_assert(codes->type.dtype == DT_U8 && type_elems(&codes->type) == BLOCKS * BLOCK);
    cr_assert(type_elems(&most->type) == BLOCKS);
    list_codes(shares, is_signed);
    for (int b = 0; b < BLOCKS; b++) {
        double peak = 0;
        for (int i = b * BLOCK; i < (b + 1) * BLOCK && i < ELEMS; i++)
            peak = fmax(peak, fabs(truth[i]));
        cr_assert_float_eq(most->u.f[b], peak, 1e-6 * peak);
        for (int i = b * BLOCK; i < (b + 1) * BLOCK && i < ELEMS; i++) {
            int64_t code = codes->u.i[i];
            cr_assert(code >= 0 && code < 256);
            if (peak > 0) check_nearest(shares, truth[i] / most->u.f[b], code);
            says[i] = shares[code] * most->u.f[b];
        }
    }
}

static void step_once(Env *e, const Graph *g, int step, Moments *says, uint32_t *seed) {
    double *w = env_state(e, "w")->u.f, before[ELEMS];
    static Moments truth;
    double *grad = env_state(e, "grad.w")->u.f;
    memcpy(before, w, sizeof before);
    for (int i = 0; i < ELEMS; i++) {
        grad[i] = i / BLOCK == 3 ? 0 : random_number(seed); /* a block of zeros */
        truth.m[i] = beta1 * says->m[i] + (1 - beta1) * grad[i];
        truth.v[i] = beta2 * says->v[i] + (1 - beta2) * grad[i] * grad[i];
    }
    set_scalars(e, step);
    apply(e, g);
    w = env_state(e, "w")->u.f;
    for (int i = 0; i < ELEMS; i++) {
        double d = sqrt(truth.v[i] / (1 - pow(beta2, step))) + eps;
        double want = before[i] - lr / (1 - pow(beta1, step)) * truth.m[i] / d;
        cr_assert_float_eq(w[i], want, 1e-5 * (1 + fabs(want)), "step %d, w[%d]: %g, not %g", step,
                           i, w[i], want);
    }
    check_codes(e, "m.w", true, truth.m, says->m);
    check_codes(e, "v.w", false, truth.v, says->v);
}

static void run(const char *optimizer, bool is_int8) {
    Arena *a = arena_new();
    Graph *given = parse_or_fail(net, "net");
    PassOptions options = default_options();
    options.optimizer = optimizer;
    options.state_int8 = is_int8;
    options.loss = "output";
    options.batch = options.micro_batch = 1;
    PassContext ctx = {.g = given, .arena = a, .options = &options, .log = stderr};
    cr_assert(
        passes_run(&ctx, "loss,simplify,match,autodiff,accumulate,optimizer,expand,simplify"));
    Env e;
    env_init(&e, ctx.g, a);
    static Moments says;
    memset(&says, 0, sizeof says);
    for (uint32_t i = 0; i < ctx.g->n_states; i++)
        if (ctx.g->states[i].cls == STATE_OPTIMIZER) {
            Tensor *t = env_state(&e, ctx.g->states[i].name);
            memset(t->u.p, 0, (size_t)type_elems(&t->type) * 8);
        }
    env_state(&e, "loss_count")->u.f[0] = 1;
    uint32_t seed = 5;
    for (int step = 1; step <= 3; step++) step_once(&e, ctx.g, step, &says, &seed);
    graph_free(ctx.g);
    graph_free(given);
    arena_free(a);
}

Test(optimizer_int8, codes_are_the_nearest_and_are_read_back) { run("adamw8bit", false); }
Test(optimizer_int8, is_a_state_of_any_optimizer) { run("adamw", true); }
