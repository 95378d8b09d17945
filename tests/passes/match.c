/* Tests that macros are found in every spelling, that what is nearly one is none, and that values
 * stay. A spelling is a rule over a [2,3,8], weights g b [8] and m, another value like a; @axes is
 * the last axis, or all but it. */
#include "env.h"
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

typedef struct Spelling {
    const char *rule, *macro; /* macro: the op that must be there once; "-": no macro at all */
    const char *rest;         /* ops that must not be left; "" for none */
    DType dtype;
} Spelling;

#define VAR "(add (mean (square (sub a (mean a @axes))) @axes) 1e-5)"
#define FAST "(sub (mean (square a) @axes) (square (mean a @axes)))"
#define POW "(add (mean (square a) @axes) 1e-6)"
#define ERF "(add 1 (erf (div a 1.4142135)))"
#define TANH "(tanh (mul 0.7978846 (add a (mul 0.044715 (pow a 3)))))"

static const Spelling spellings[] = {
    /* layer norms */
    {"(add (mul (div (sub a (mean a @axes)) (sqrt " VAR ")) g) b)", "layer_norm", "sqrt", DT_F32},
    {"(mul (sub a (mean a @axes)) (pow " VAR " -0.5))", "layer_norm", "rsqrt", DT_F32},
    {"(mul (sub a (mean a @axes)) (div 1 (sqrt " VAR ")))", "layer_norm", "sqrt", DT_F32},
    {"(add b (div (mul g (sub a (mean a @axes))) (sqrt " VAR ")))", "layer_norm", "sqrt", DT_F32},
    {"(mul (mul g (sub a (mean a @axes))) (rsqrt " VAR "))", "layer_norm", "rsqrt", DT_F32},
    {"(mul (sub a (mean a @axes)) (mul g (rsqrt " VAR ")))", "layer_norm", "rsqrt", DT_F32},
    {"(mul (sub a (mean a @axes)) (mul (recip (sqrt " VAR ")) g))", "layer_norm", "sqrt", DT_F32},
    {"(mul (sub a (mean a @axes)) (rsqrt (add (max 0 " FAST ") 1e-5)))", "layer_norm", "rsqrt",
     DT_F32},
    {"(div (sub a (mean a @axes)) (sqrt (add " FAST " 1e-5)))", "layer_norm", "sqrt", DT_F32},
    {"(let s (mul (rsqrt " VAR ") g) (add (mul a s) (sub b (mul (mean a @axes) s))))", "layer_norm",
     "rsqrt", DT_F32},
    {"(let s (mul g (recip (sqrt " VAR "))) (add (mul a s) (sub b (mul s (mean a @axes)))))",
     "layer_norm", "sqrt", DT_F32},
    {"(let s (rsqrt " VAR ") (add (sub b (mul (mean a @axes) s)) (mul a s)))", "layer_norm",
     "rsqrt", DT_F32},
    {"(let s (mul (rsqrt " VAR ") g) (sub (mul a s) (mul (mean a @axes) s)))", "layer_norm",
     "rsqrt", DT_F32},
    {"(let s (rsqrt " VAR ") (sub (mul a s) (mul s (mean a @axes))))", "layer_norm", "rsqrt",
     DT_F32},
    {"(div (sub a (mean a @axes)) (sqrt " VAR "))", "layer_norm", "sqrt", DT_F16},
    {"(div (sub a (mean a @axes)) (add (sqrt (mean (square (sub a (mean a @axes))) @axes)) 1e-5))",
     "-", "", DT_F32},
    {"(div (sub a (mean a @axes)) (sqrt (mean (square (sub a (mean a @axes))) @axes)))",
     "layer_norm", "sqrt", DT_F32},
    {"(mul a (rsqrt (mean (square a) @axes)))", "rms_norm", "rsqrt", DT_F32},
    {"(div (sub a (mean m @axes)) (sqrt " VAR "))", "-", "", DT_F32},
    {"(let s (mul (rsqrt " VAR ") g) (add (mul a s) (sub b (mul (mean m @axes) s))))", "-", "",
     DT_F32},
    /* RMS norms */
    {"(mul g (mul a (recip (sqrt " POW "))))", "rms_norm", "sqrt", DT_F32},
    {"(mul (pow " POW " -0.5) a)", "rms_norm", "rsqrt", DT_F32},
    {"(mul (mul g a) (rsqrt " POW "))", "rms_norm", "rsqrt", DT_F32},
    {"(mul a (mul (rsqrt " POW ") g))", "rms_norm", "rsqrt", DT_F32},
    {"(div (mul a g) (sqrt " POW "))", "rms_norm", "sqrt", DT_F32},
    {"(div a (sqrt (add (mul (sum (pow a 2) @axes) 0.125) 1e-6)))", "rms_norm", "sqrt", DT_F32},
    {"(mul a (rsqrt " POW "))", "rms_norm", "rsqrt", DT_F16},
    {"(mul m (rsqrt " POW "))", "-", "", DT_F32},
    {"(div a (add (sqrt (mean (square a) @axes)) 1e-6))", "-", "", DT_F32},
    {"(mul a (rsqrt (add (mul (sum (pow a 2) @axes) 0.25) 1e-6)))", "-", "", DT_F32},
    /* GELU by erf */
    {"(mul 0.5 (mul a " ERF "))", "gelu", "erf", DT_F32},
    {"(mul (mul a 0.5) " ERF ")", "gelu", "erf", DT_F32},
    {"(div (mul a (add (erf (mul a 0.70710677)) 1)) 2)", "gelu", "erf", DT_F32},
    {"(mul a (add 0.5 (mul 0.5 (erf (div a 1.4142135)))))", "gelu", "erf", DT_F32},
    {"(mul a (div " ERF " 2))", "gelu", "erf", DT_F32},
    {"(mul (mul a 0.5) " ERF ")", "gelu", "erf", DT_F16},
    {"(mul (mul a 0.5) (add 1 (erf (mul a 0.70710678))))", "gelu", "erf", DT_BF16},
    {"(mul (mul m 0.5) " ERF ")", "-", "", DT_F32},
    {"(mul (mul a 0.5) (add 1 (erf (mul a 0.7))))", "-", "", DT_F32},
    {"(mul (mul a 0.5) (add 1 (erf a)))", "-", "", DT_F32},
    {"(mul a " ERF ")", "-", "", DT_F32},
    /* by tanh */
    {"(mul (mul 0.5 a) (add 1 " TANH "))", "gelu_tanh", "tanh", DT_F32},
    {"(mul 0.5 (mul a (add 1 (tanh (mul 0.79788456 (add a (mul (mul (mul 0.044715 a) a) a)))))))",
     "gelu_tanh", "tanh", DT_F32},
    {"(mul (mul a (add 1 (tanh (mul (mul a 0.7978845608) (add 1 (mul (mul 0.044715 a) a)))))) 0.5)",
     "gelu_tanh", "tanh", DT_F32},
    {"(mul a (mul 0.5 (add 1 (tanh (add (mul a 0.7978845608) (mul 0.0356774081 (pow a 3)))))))",
     "gelu_tanh", "tanh", DT_F32},
    {"(mul a (add 0.5 (mul 0.5 " TANH ")))", "gelu_tanh", "tanh", DT_F32},
    {"(mul (mul 0.5 a) (add 1 " TANH "))", "gelu_tanh", "tanh", DT_F16},
    {"(mul (mul 0.5 a) (add 1 (tanh (mul 0.7978846 (add a (mul 0.044715 (pow a 2)))))))", "-", "",
     DT_F32},
    {"(mul (mul 0.5 a) (add 1 (tanh (mul 0.7978846 (add m (mul 0.044715 (pow a 3)))))))", "-", "",
     DT_F32},
    {"(mul a (sigmoid (mul 1.5957691216 (add a (mul 0.044715 (pow a 3))))))", "gelu_tanh",
     "sigmoid", DT_F32},
    /* SiLU, sigmoid */
    {"(mul (sigmoid a) a)", "silu", "sigmoid", DT_F32},
    {"(div a (add 1 (exp (neg a))))", "silu", "exp", DT_F32},
    {"(mul a (div 1 (add 1 (exp (neg a)))))", "silu", "exp", DT_F32},
    {"(recip (add (exp (neg a)) 1))", "sigmoid", "exp", DT_F32},
    {"(mul m (sigmoid a))", "-", "", DT_F32},
    /* softmax */
    {"(let e (exp (sub a (rmax a @axes))) (div e (sum e @axes)))", "softmax", "exp", DT_F32},
    {"(let e (exp (sub a (rmax a @axes))) (mul e (recip (sum e @axes))))", "softmax", "exp",
     DT_F32},
    {"(let s (sub a (rmax a @axes)) (sub s (log (sum (exp s) @axes))))", "log_softmax", "exp",
     DT_F32},
    {"(let t (rmax a @axes) (sub a (add t (log (sum (exp (sub a t)) @axes)))))", "log_softmax",
     "exp", DT_F32},
    {"(let s (sub a (rmax a @axes)) (exp (sub s (log (sum (exp s) @axes)))))", "softmax", "log",
     DT_F32},
    {"(let e (exp (sub m (rmax a @axes))) (div e (sum e @axes)))", "-", "", DT_F32},
};
enum { N_SPELLINGS = sizeof spellings / sizeof *spellings };

static uint32_t count(const Graph *g, const char *op) {
    uint32_t n = 0;
    for (Value v = 1; v < g->n_nodes; v++) n += !strcmp(op_info[graph_op(g, v)].name, op);
    return n;
}

static uint32_t count_macros(const Graph *g) {
    uint32_t n = 0;
    for (Value v = 1; v < g->n_nodes; v++) n += op_info[graph_op(g, v)].lower == LOWER_MACRO;
    return n;
}

static Value leaf(Graph *g, const char *name, DType dtype, uint32_t rank) {
    const int64_t dims[] = {2, 3, 8};
    TypeId type = graph_type_of(g, dtype, rank, dims + 3 - rank);
    graph_add_input(g, (Input){name, type, -1, 0, 0});
    return build_input(g, name);
}

/* The spelling as the one output of eval, reduced over the axes. */
static Graph *spelled(const Spelling *s, const int64_t *axes, uint32_t n_axes) {
    Graph *g = graph_new("spelling");
    Value a = leaf(g, "a", s->dtype, 3), m = leaf(g, "m", s->dtype, 3);
    AttrField field = attr_ints(A_AXES, axes, n_axes);
    Value context = graph_emit(g, OP_sum, &m, 1, graph_attr(g, &field, 1), 0);
    RuleBind binds[] = {
        {"a", a}, {"m", m}, {"g", leaf(g, "g", s->dtype, 1)}, {"b", leaf(g, "b", s->dtype, 1)}};
    Value v = rule_build(g, s->rule, binds, 4, context);
    cr_assert(v && !diag_has_errors(g), "%s", s->rule);
    graph_add_root(g, ENTRY_EVAL, false, "y", v);
    return g;
}

static void same_values(const char *rule, Arena *arena, const Graph *before, const Graph *after) {
    Env env;
    env_init(&env, before, arena);
    Tensor x = env_root(&env, before, ENTRY_EVAL, false, "y");
    env.g = after;
    Tensor y = env_root(&env, after, ENTRY_EVAL, false, "y");
    for (int64_t i = 0; i < type_elems(&x.type); i++) /* constants are rounded to their dtype */
        cr_assert(fabs(x.u.f[i] - y.u.f[i]) < (x.type.dtype == DT_F32 ? 1e-6 : 2e-2),
                  "%s: %g is %g", rule, x.u.f[i], y.u.f[i]);
}

static void check_spelling(const Spelling *s, const int64_t *axes, uint32_t n_axes) {
    Arena *arena = arena_new();
    Graph *g = spelled(s, axes, n_axes);
    PassOptions options = default_options();
    PassContext ctx = {.g = g, .arena = arena, .options = &options, .log = stderr};
    cr_assert(passes_run(&ctx, "simplify,match"));
    if (!strcmp(s->macro, "-"))
        cr_assert(!count_macros(ctx.g), "%s is no macro", s->rule);
    else
        cr_assert(count(ctx.g, s->macro) == 1, "%s holds %u of %s", s->rule, count(ctx.g, s->macro),
                  s->macro);
    cr_assert(!*s->rest || !count(ctx.g, s->rest), "%s leaves %s", s->rule, s->rest);
    same_values(s->rule, arena, g, ctx.g);
    graph_free(ctx.g);
    graph_free(g);
    arena_free(arena);
}

Test(match, finds_every_spelling_and_nothing_else) {
    for (size_t i = 0; i < N_SPELLINGS; i++) check_spelling(&spellings[i], (int64_t[]){2}, 1);
}

Test(match, finds_norms_over_leading_axes_too) {
    for (size_t i = 0; i < N_SPELLINGS; i++)
        if (!strstr(spellings[i].rule, "0.125")) /* 1 over the elements of the last axis */
            check_spelling(&spellings[i], (int64_t[]){0, 1}, 2);
}

/* ---- near misses ---- */

static const char *miss_of(const char *rule, Arena *arena) {
    Spelling s = {rule, "-", "", DT_F32};
    Graph *g = spelled(&s, (int64_t[]){2}, 1);
    PassOptions options = default_options();
    options.verbose = true;
    PassContext ctx = {.g = g, .arena = arena, .options = &options, .log = NULL};
    cr_assert(passes_run(&ctx, "simplify,match"));
    const Census *c = &ctx.census;
    const char *text =
        c->n_notes ? arena_printf(arena, "%s: %s", c->notes[0].macro, c->notes[0].why) : "none";
    graph_free(ctx.g);
    graph_free(g);
    return text;
}

Test(match, says_which_edge_broke_a_pattern) {
    Arena *arena = arena_new();
    const char *near[][2] = {
        {"(mul m (rsqrt " POW "))", "rms_norm"},
        {"(mul (mul a 0.5) (add 1 (erf (mul a 0.7))))", "gelu"},
        {"(div (sub a (mean m @axes)) (sqrt " VAR "))", "layer_norm"},
    };
    for (size_t i = 0; i < sizeof near / sizeof *near; i++) {
        const char *miss = miss_of(near[i][0], arena);
        cr_assert(!strncmp(miss, near[i][1], strlen(near[i][1])), "%s: %s", near[i][0], miss);
    }
    const char *far[] = {"(mul (mul a g) m)", "(exp (sub a m))", "(mul a (sigmoid m))",
                         "(mul (mul a 0.5) " ERF ")"};
    for (size_t i = 0; i < sizeof far / sizeof *far; i++)
        cr_assert_str_eq(miss_of(far[i], arena), "none", "%s: %s", far[i], miss_of(far[i], arena));
    arena_free(arena);
}
