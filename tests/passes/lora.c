/* Tests of adapters: y with them is what the matrix W + alpha / rank B A gives, however the graph
 * reads W; they begin as peft's do. */
#include "env.h"
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { IN = 4, RANK = 2 };
static const double ALPHA = 6, SCALE = 3; /* ALPHA / RANK */

static const char head[] =
    "graph g\nstate m.weight : f32[5,4] param\nstate t.weight : f32[4,5] param\n"
    "state one.weight : f32[1,4] param\ninput x : f32[3,4]\ninput u : f32[3,5]\n"
    "input many : f32[2,3,4]\n%1 = state : f32[5,4] name=m.weight\n"
    "%2 = state : f32[4,5] name=t.weight\n%3 = input : f32[3,4] name=x\n"
    "%4 = input : f32[3,5] name=u\n%5 = input : f32[2,3,4] name=many\n"
    "%6 = state : f32[1,4] name=one.weight\n";

/* One way to read a matrix; `weight` is it. */
typedef struct Form {
    const char *weight, *text;
} Form;
static const Form forms[] = {
    {"m", "%7 = dot %3 %1 : f32[3,5] ta=0 tb=1\noutput y = %7"},
    {"m",
     "%7 = transpose %1 : f32[4,5] perm=[1,0]\n%8 = dot %3 %7 : f32[3,5] ta=0 tb=0\noutput y = %8"},
    {"t", "%7 = dot %3 %2 : f32[3,5] ta=0 tb=0\noutput y = %7"},
    {"m", "%7 = dot %1 %3 : f32[5,3] ta=0 tb=1\noutput y = %7"},
    {"t", "%7 = dot %2 %3 : f32[5,3] ta=1 tb=1\noutput y = %7"},
    {"m",
     "%7 = transpose %3 : f32[4,3] perm=[1,0]\n%8 = dot %7 %1 : f32[3,5] ta=1 tb=1\noutput y = %8"},
    {"m", "%7 = reshape %1 : f32[1,5,4]\n%8 = expand %7 : f32[2,5,4]\n"
          "%9 = dot %5 %8 : f32[2,3,5] ta=0 tb=1\noutput y = %9"},
    {"m", "%7 = reshape %1 : f32[1,5,4]\n%8 = expand %7 : f32[2,5,4]\n"
          "%9 = dot %8 %5 : f32[2,5,3] ta=0 tb=1\noutput y = %9"},
    {"one", "%7 = reshape %6 : f32[4,1]\n%8 = dot %3 %7 : f32[3,1] ta=0 tb=0\noutput y = %8"},
    /* and back again through the same matrix, as in a tied autoencoder */
    {"m",
     "%7 = dot %3 %1 : f32[3,5] ta=0 tb=1\n%8 = dot %7 %1 : f32[3,4] ta=0 tb=0\noutput y = %8"},
    {"m",
     "%7 = dot %4 %1 : f32[3,4] ta=0 tb=0\n%8 = dot %7 %1 : f32[3,5] ta=0 tb=1\noutput y = %8"},
};

static Graph *parsed(Arena *a, const char *form) {
    const char *root = strstr(form, "output");
    return parse_or_fail(
        arena_printf(a, "%s%.*sentry micro\n%s\n", head, (int)(root - form), form, root), "form");
}

static Graph *adapted(Arena *a, const char *form, double alpha, const char *glob) {
    Plan plan = {0};
    PassOptions o = default_options();
    o.lora_rank = RANK;
    o.lora_alpha = alpha;
    o.lora_glob = glob;
    Graph *given = parsed(a, form);
    PassContext ctx = {.g = given, .plan = &plan, .arena = a, .options = &o, .log = stderr};
    cr_assert(passes_run(&ctx, "lora"), "%s", form);
    graph_free(given);
    return ctx.g;
}

static const char *name(Arena *a, const char *weight, char which) {
    return arena_printf(a, "base_model.model.%s.lora_%c.weight", weight, which);
}

/* W + alpha / RANK B A into the state of the other environment; [in, out] where it is so kept. */
static void merge(Arena *a, Env *with, Env *plain, const char *weight) {
    Tensor *w = env_state(plain, arena_printf(a, "%s.weight", weight)),
           *low = env_state(with, name(a, weight, 'A')),
           *wide = env_state(with, name(a, weight, 'B'));
    int64_t in = low->type.dims[1], out = wide->type.dims[0];
    cr_assert_eq(low->type.dims[0], RANK);
    cr_assert_eq(wide->type.dims[1], RANK);
    bool is_turned = w->type.dims[0] != out || w->type.dims[1] != in;
    cr_assert_eq(w->type.dims[is_turned ? 0 : 1], in);
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++)
            for (int64_t r = 0; r < RANK; r++)
                w->u.f[is_turned ? i * out + o : o * in + i] +=
                    SCALE * wide->u.f[o * RANK + r] * low->u.f[r * in + i];
}

static void form_agrees(const Form *form) {
    Arena *a = arena_new();
    Graph *before = parsed(a, form->text),
          *after = adapted(a, form->text, ALPHA, arena_printf(a, "%s.weight", form->weight));
    Env plain, with;
    env_init(&plain, before, a);
    env_init(&with, after, a);
    merge(a, &with, &plain, form->weight);
    Tensor want = env_root(&plain, before, ENTRY_MICRO, false, "y"),
           have = env_root(&with, after, ENTRY_MICRO, false, "y");
    cr_assert(dims_equal(&want.type, &have.type));
    for (int64_t i = 0; i < type_elems(&want.type); i++)
        cr_assert_float_eq(have.u.f[i], want.u.f[i], 1e-12 * (1 + fabs(want.u.f[i])), "%s",
                           form->text);
    graph_free(after);
    graph_free(before);
    arena_free(a);
}

Test(lora, is_the_merged_matrix_in_every_form) {
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) form_agrees(&forms[i]);
}

/* A uniform in +-1/sqrt(in), another in each adapter, the same each time; B zero. */
Test(lora, begins_as_peft_does) {
    static const char text[] = "%7 = dot %3 %1 : f32[3,5] ta=0 tb=1\n"
                               "%8 = dot %7 %2 : f32[3,4] ta=0 tb=1\noutput y = %8";
    Arena *a = arena_new();
    Graph *g = adapted(a, text, 0, "*"), *again = adapted(a, text, 0, "*");
    const State *m = graph_state(g, name(a, "m", 'A')), *t = graph_state(g, name(a, "t", 'A')),
                *b = graph_state(g, name(a, "m", 'B'));
    const float *x = m->source.data, *y = graph_state(again, m->name)->source.data;
    double most = 0;
    for (int i = 0; i < RANK * IN; i++) {
        most = fmax(most, fabs((double)x[i]));
        cr_assert_eq(x[i], y[i]);
    }
    cr_assert(most <= 0.5 && most > 0.25, "%g", most);
    cr_assert(memcmp(x, t->source.data, sizeof(float) * RANK * IN));
    cr_assert(b->trains && m->trains && !b->source.data && b->fill == 0);
    cr_assert(!graph_state(g, "m.weight")->trains);
    graph_free(again);
    graph_free(g);
    arena_free(a);
}
