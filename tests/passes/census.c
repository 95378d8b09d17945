/* Tests that the census names what a graph is made of, whichever way it is written. */
#include "env.h"
#include <criterion/criterion.h>
#include <string.h>

typedef struct Sample {
    const char *what, *text; /* text: nodes; the last root is y = %99 */
    const char *counts;      /* "linear=1 silu=1": all that is counted but transposes */
} Sample;

#define LEAVES                                                                                     \
    "graph sample\nstate w : f32[6,8] param trains\nstate b : f32[6] param trains\n"               \
    "state w2 : f32[6,8] param trains\nstate wide : f32[12,8] param trains\n"                      \
    "state table : f32[9,8] param trains\nstate c : f32[4] param trains\n"                         \
    "state rm : f32[4] param buffer\nstate rv : f32[4] param buffer\n"                             \
    "state k : f32[4,4,3,3] param trains\nstate k1 : f32[5,4,1] param trains\n"                    \
    "input x : f32[3,8]\ninput ids : i64[3] limit=9\ninput labels : i64[3,1] limit=6\n"            \
    "input im : f32[2,4,5,5]\ninput seq : f32[2,4,7]\n"                                            \
    "%1 = input : f32[3,8] name=x\n%2 = state : f32[6,8] name=w\n%3 = state : f32[6] name=b\n"
#define DOT "%4 = dot %1 %2 : f32[3,6] ta=0 tb=1\n"
#define LABELS "%50 = input : i64[3,1] name=labels\n"
#define IMAGE "%60 = input : f32[2,4,5,5] name=im\n"

static const Sample samples[] = {
    {"a product with a weight", DOT "%99 = relu %4\n", "linear=1"},
    {"a weight that is scaled and turned first",
     "%4 = const : f32[6,8] data=[0.3]\n%5 = mul %2 %4\n%6 = transpose %5 perm=[1,0]\n"
     "%7 = dot %1 %6 : f32[3,6] ta=0 tb=0\n%99 = relu %7\n",
     "linear=1"},
    {"a product of two fed values", "%4 = dot %1 %1 : f32[3,3] ta=0 tb=1\n%99 = relu %4\n",
     "product=1"},
    {"a convolution of one position",
     "%4 = input : f32[2,4,7] name=seq\n%5 = state : f32[5,4,1] name=k1\n"
     "%6 = conv %4 %5 : f32[2,5,7] strides=[1] dilations=[1] low=[0] high=[0] groups=1\n"
     "%99 = relu %6\n",
     "linear=1"},
    {"a loss behind linear layer and bias",
     DOT LABELS "%5 = reshape %3 : f32[1,6]\n%6 = expand %5 : f32[3,6]\n%7 = add %6 %4\n"
                "%99 = xent %7 %50 : f32[3,1] axis=1 ignore=-100\n",
     "linear=1 linear+cross_entropy=1"},
    {"a loss in the graph, behind a hidden state that is scaled",
     LABELS "%4 = const : f32[3,8] data=[0.036]\n%5 = mul %1 %4\n"
            "%6 = dot %5 %2 : f32[3,6] ta=0 tb=1\n%7 = log_softmax %6 axes=[1]\n"
            "%8 = take %7 %50 axis=1\n%99 = neg %8\n",
     "linear=1 linear+cross_entropy=1"},
    {"a loss of logits that are capped",
     DOT LABELS "%5 = tanh %4\n%99 = xent %5 %50 : f32[3,1] axis=1 ignore=-100\n",
     "linear=1 cross_entropy=1"},
    {"a SwiGLU of two layers",
     DOT "%5 = state : f32[6,8] name=w2\n%6 = dot %1 %5 : f32[3,6] ta=0 tb=1\n%7 = sigmoid %4\n"
         "%8 = mul %4 %7\n%99 = mul %8 %6\n",
     "linear=2 swiglu=1"},
    {"a GEGLU of one",
     "%4 = state : f32[12,8] name=wide\n%5 = dot %1 %4 : f32[3,12] ta=0 tb=1\n"
     "%6 = slice %5 : f32[3,6] start=[0,0] step=[1,1]\n%7 = slice %5 : f32[3,6] start=[0,6] "
     "step=[1,1]\n"
     "%8 = gelu %7\n%99 = mul %6 %8\n",
     "linear=1 geglu=1"},
    {"a gate that is no layer",
     DOT "%5 = sigmoid %4\n%6 = mul %4 %5\n%7 = exp %6\n%99 = mul %7 %6\n", "linear=1 silu=1"},
    {"a quick GELU",
     DOT "%5 = const : f32[3,6] data=[1.702]\n%6 = mul %5 %4\n%7 = sigmoid %6\n%99 = mul %7 %4\n",
     "linear=1 gelu_quick=1"},
    {"rows of a table by index",
     "%4 = state : f32[9,8] name=table\n%5 = input : i64[3] name=ids\n%6 = gather %4 %5 "
     "axis=0\n%99 = relu %6\n",
     "embedding=1"},
    {"a group norm",
     IMAGE "%4 = reshape %60 : f32[2,2,50]\n%5 = layer_norm %4 axes=[2] eps=1e-5\n%99 = reshape %5 "
           ": f32[2,4,5,5]\n",
     "group_norm=1"},
    {"an instance norm", IMAGE "%99 = layer_norm %60 axes=[2,3] eps=1e-5\n", "instance_norm=1"},
    {"a norm by statistics of the batch", IMAGE "%99 = layer_norm %60 axes=[0,2,3] eps=1e-5\n",
     "batch_norm=1"},
    {"a norm by running statistics",
     IMAGE
     "%4 = state : f32[4] name=rm\n%5 = reshape %4 : f32[1,4,1,1]\n%6 = expand %5 : f32[2,4,5,5]\n"
     "%7 = sub %60 %6\n%8 = state : f32[4] name=rv\n%9 = reshape %8 : f32[1,4,1,1]\n"
     "%10 = const : f32[1,4,1,1] data=[1e-5]\n%11 = add %9 %10\n%12 = rsqrt %11\n"
     "%13 = expand %12 : f32[2,4,5,5]\n%99 = mul %7 %13\n",
     "batch_norm=1"},
    {"a norm over the last axis", IMAGE "%99 = rms_norm %60 axes=[3] eps=1e-5\n", "rms_norm=1"},
    {"dropout",
     "%4 = random : f32[3,8] stream=1\n%5 = const : f32[3,8] data=[0.1]\n%6 = ge %4 %5\n"
     "%7 = const : f32[3,8] data=[0]\n%99 = where %6 %1 %7\n",
     "dropout=1"},
    {"a transpose between convolutions only",
     IMAGE
     "%4 = state : f32[4,4,3,3] name=k\n"
     "%5 = conv %60 %4 : f32[2,4,5,5] strides=[1,1] dilations=[1,1] low=[1,1] high=[1,1] groups=1\n"
     "%6 = transpose %5 perm=[0,1,3,2]\n%7 = relu %6\n"
     "%99 = conv %7 %4 : f32[2,4,5,5] strides=[1,1] dilations=[1,1] low=[1,1] high=[1,1] "
     "groups=1\n",
     "conv=2 conv_transpose=1"},
};

static const char *counted(const Census *c, Arena *arena) {
    const char *text = "";
    for (int i = 0; i < N_CENSUS; i++)
        if (c->count[i] && i != CENSUS_TRANSPOSE)
            text = arena_printf(arena, "%s%s%s=%u", text, *text ? " " : "", census_name[i],
                                c->count[i]);
    return text;
}

Test(census, names_what_a_graph_is_made_of) {
    Arena *arena = arena_new();
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const Sample *s = &samples[i];
        Graph *g = parse_or_fail(
            arena_printf(arena, "%s%sentry eval\noutput y = %%99\n", LEAVES, s->text), s->what);
        PassOptions options = default_options();
        PassContext ctx = {.g = g, .arena = arena, .options = &options, .log = stderr};
        cr_assert(passes_run(&ctx, "simplify,match,census"), "%s", s->what);
        const char *found = counted(&ctx.census, arena);
        size_t same = 0;
        for (const char *word = s->counts; *word; word += strcspn(word, " "), word += *word == ' ')
            same +=
                strstr(found, arena_printf(arena, "%.*s", (int)strcspn(word, " "), word)) != NULL;
        size_t n = 1;
        for (const char *p = s->counts; *p; p++) n += *p == ' ';
        cr_assert(same == n && strlen(found) == strlen(s->counts), "%s: %s", s->what, found);
        graph_free(ctx.g);
        graph_free(g);
    }
    arena_free(arena);
}

Test(census, says_what_stands_between_a_layer_and_its_loss) {
    Arena *arena = arena_new();
    Graph *g =
        parse_or_fail(LEAVES DOT LABELS
                      "%5 = tanh %4\n"
                      "%6 = xent %5 %50 : f32[3,1] axis=1 ignore=-100\nentry eval\noutput y = %6\n",
                      "capped");
    PassOptions options = default_options();
    PassContext ctx = {.g = g, .arena = arena, .options = &options, .log = stderr};
    cr_assert(passes_run(&ctx, "match,census"));
    cr_assert(ctx.census.n_notes == 1 && strstr(ctx.census.notes[0].why, "tanh"));
    cr_assert_str_eq(ctx.census.notes[0].macro, "linear+cross_entropy");
    graph_free(ctx.g);
    graph_free(g);
    arena_free(arena);
}
