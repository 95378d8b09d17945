/* differences.c - central differences of second order, extrapolated once (Richardson), in double.
 *
 * D(h) = (f(x+h) - f(x-h)) / 2h is off by h^2 f'''/6, (4 D(h/2) - D(h)) / 3 by a multiple of h^4:
 * with h = 1e-3 about 1e-12 for functions of order one, against 1e-13 of rounding. A smaller h is
 * tried where the function bends more. At a kink or a step the one-sided differences keep a gap
 * while h falls; where the function is smooth the gap falls with h. Where it jumps, the quotient
 * grows. */
#include "differences.h"
#include <math.h>
#include <string.h>

static const Tensor *leaf_state(void *user, const char *name) {
    const Function *f = user;
    for (uint32_t i = 0; i < f->g->n_states; i++)
        if (!strcmp(f->g->states[i].name, name)) return &f->values[i];
    return NULL;
}

static const Tensor *leaf_input(void *user, const char *name) {
    const Function *f = user;
    return f->input(f->user, name);
}

static double leaf_scalar(void *user, const char *name) {
    (void)user;
    return !strcmp(name, "loss_scale") ? 1 : !strcmp(name, "samples") ? 1e6 : 0;
}

static bool evaluate(Function *f, const char *root, Tensor *result) {
    const InterpEnv env = {.input = leaf_input,
                           .state = leaf_state,
                           .scalar = leaf_scalar,
                           .user = f,
                           .seed = 1,
                           .step = 1};
    const Entry *e = &f->g->entries[ENTRY_MICRO];
    Tensor *results = arena_alloc(f->arena, (e->n + 1) * sizeof *results);
    const Root *r = graph_root(f->g, ENTRY_MICRO, true, root);
    if (!r || !interp_entry(f->g, ENTRY_MICRO, &env, f->arena, results, stderr)) return false;
    *result = results[r - e->roots];
    return true;
}

double function_value(Function *f, bool *ok) {
    const ArenaMark mark = arena_mark(f->arena);
    Tensor t = {0};
    *ok = evaluate(f, "loss_sum", &t);
    const double y = *ok ? t.u.f[0] / f->static_count : NAN;
    arena_release(f->arena, mark);
    return y;
}

Tensor function_root(Function *f, const char *name) {
    Tensor t = {0};
    evaluate(f, name, &t);
    return t;
}

static double value_at(Function *f, double *x, double at) {
    const double before = *x;
    bool ok;
    *x = at;
    const double y = function_value(f, &ok);
    *x = before;
    return y;
}

/* Do the one-sided differences stay apart as the step falls? */
static bool is_kink(Function *f, double *x, double scale) {
    const double y = value_at(f, x, *x), unit = 1 + fabs(*x);
    double gap[3];
    for (int k = 0; k < 3; k++) {
        const double h = 1e-3 * unit * pow(0.05, k);
        gap[k] = fabs((value_at(f, x, *x + h) - y) / h - (y - value_at(f, x, *x - h)) / h);
        if (!isfinite(gap[k])) return true; /* the edge of where the function is defined */
    }
    return gap[2] > 1e-5 * scale && (gap[2] > 0.3 * gap[1] || gap[1] > 0.3 * gap[0]);
}

/* Does the quotient grow as the step falls, as where the function jumps? */
static bool is_jump(Function *f, double *x) {
    const double h = 1e-3 * (1 + fabs(*x)), small = h / 400;
    const double wide = (value_at(f, x, *x + h) - value_at(f, x, *x - h)) / (2 * h),
                 narrow = (value_at(f, x, *x + small) - value_at(f, x, *x - small)) / (2 * small);
    return fabs(narrow) > 50 * fabs(wide) && fabs(narrow) > 1;
}

Slope function_slope(Function *f, uint32_t s, int64_t i, double gradient, double scale,
                     double *slope) {
    double *x = &f->values[s].u.f[i], best = INFINITY;
    const double unit = 1 + fabs(*x);
    for (double h = 1e-3 * unit; h > 1e-6 * unit; h /= 8) {
        double d[2];
        for (int k = 0; k < 2; k++) {
            const double step = k ? h / 2 : h;
            d[k] = (value_at(f, x, *x + step) - value_at(f, x, *x - step)) / (2 * step);
        }
        const double found = (4 * d[1] - d[0]) / 3, off = fabs(found - gradient);
        if (off < best || isnan(*slope)) best = off, *slope = found;
        if (off <= 1e-6 * fmax(fabs(found), 1e-2 * scale) + 1e-12) return SLOPE_EQUAL;
    }
    return is_kink(f, x, fmax(scale, 1)) || is_jump(f, x) ? SLOPE_KINK : SLOPE_DIFFERS;
}
