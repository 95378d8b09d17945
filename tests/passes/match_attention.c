/* Tests that what is nearly attention is left alone and that the note names the edge that broke it.
 */
#include "env.h"
#include <criterion/criterion.h>
#include <string.h>

typedef struct NearMiss {
    const char *body,
        *why; /* body: %1 to %3 are q, k, v, %4 is a float, %5 a bool like the scores */
} NearMiss;

static const char head[] =
    "graph near\n"
    "input q : f32[1,2,4,4]\ninput k : f32[1,2,4,4]\ninput v : f32[1,2,4,4]\n"
    "input s : f32[1,2,4,4]\ninput m : bool[1,2,4,4]\n"
    "%1 = input : f32[1,2,4,4] name=q\n%2 = input : f32[1,2,4,4] name=k\n"
    "%3 = input : f32[1,2,4,4] name=v\n%4 = input : f32[1,2,4,4] name=s\n"
    "%5 = input : bool[1,2,4,4] name=m\n%6 = dot %1 %2 ta=0 tb=1\n";

static const NearMiss misses[] = {
    {"%7 = softmax %6 axes=[2]\n%8 = dot %7 %3 ta=0 tb=0\n", "(softmax) is not over the last axis"},
    {"%7 = mul %6 %4\n%10 = softmax %7 axes=[3]\n%8 = dot %10 %3 ta=0 tb=0\n",
     "(mul) scales scores by no constant"},
    {"%7 = where %5 %6 %4\n%10 = softmax %7 axes=[3]\n%8 = dot %10 %3 ta=0 tb=0\n",
     "(where) chooses scores by more than one number"},
    {"%7 = add %6 %4\n%10 = tanh %7\n%11 = softmax %10 axes=[3]\n%8 = dot %11 %3 ta=0 tb=0\n",
     "(add) masks scores before their cap"},
    {"%7 = tanh %6\n%10 = tanh %7\n%11 = softmax %10 axes=[3]\n%8 = dot %11 %3 ta=0 tb=0\n",
     "(tanh) caps scores twice"},
    {"%7 = exp %6\n%10 = softmax %7 axes=[3]\n%8 = dot %10 %3 ta=0 tb=0\n",
     "(exp) is between the softmax and a product"},
    {"%7 = const : f32[1,2,4,4] data=[-2]\n%10 = where %5 %6 %7\n%11 = const : f32[1,2,4,4] "
     "data=[-3]\n"
     "%12 = cast %4 : bool[1,2,4,4]\n%13 = where %12 %10 %11\n%14 = softmax %13 axes=[3]\n"
     "%8 = dot %14 %3 ta=0 tb=0\n",
     "(softmax) scores are masked twice, with different numbers"},
    {"%7 = softmax %6 axes=[3]\n%10 = mul %7 %4\n%11 = isnan %10\n%12 = const : f32[1,2,4,4] "
     "data=[0]\n"
     "%13 = where %11 %12 %10\n%8 = dot %13 %3 ta=0 tb=0\n",
     "(mul) scales weights before the guard"},
};

static bool has_op(const Graph *g, OpCode op) {
    Arena *a = arena_new();
    bool *live = graph_reachable(g, a, ENTRY_EVAL), found = false;
    for (Value v = 1; v < g->n_nodes; v++) found |= live[v] && graph_op(g, v) == op;
    arena_free(a);
    return found;
}

static bool is_noted(const Census *c, const char *why) {
    for (uint32_t i = 0; i < c->n_notes; i++)
        if (!strcmp(c->notes[i].macro, "attention") && strstr(c->notes[i].why, why)) return true;
    return false;
}

Test(match_attention, tests_that_a_near_miss_names_its_edge) {
    for (size_t i = 0; i < sizeof misses / sizeof *misses; i++) {
        Arena *a = arena_new();
        const char *text =
            arena_printf(a, "%s%sentry eval\noutput y = %%8\n", head, misses[i].body);
        Graph *given = parse_or_fail(text, "near");
        PassOptions options = default_options();
        PassContext ctx = {.g = given, .arena = a, .options = &options};
        cr_assert(passes_run(&ctx, "simplify,match"));
        cr_assert(!has_op(ctx.g, OP_attention), "%s", misses[i].body);
        cr_assert(is_noted(&ctx.census, misses[i].why), "no note says: %s", misses[i].why);
        if (ctx.g != given) graph_free(ctx.g);
        graph_free(given);
        arena_free(a);
    }
}
