/* Tests that every shape rule gives the type worked out by hand, and refuses what does not fit, naming op and types. */
#include "text_helpers.h"

typedef struct Case { const char *operands, *node, *expected; } Case;

/* The type of `node` over inputs %a %b %c of the given types, or the complaint. To be freed. */
static char *infer(const Case *c) {
    char text[2048] = "", *errors, types[256], *save = NULL;
    const char *names[] = {"a", "b", "c"};
    int n = 0;
    size_t at = 0;
    snprintf(types, sizeof types, "%s", c->operands);
    for (char *t = strtok_r(types, " ", &save); t; t = strtok_r(NULL, " ", &save), n++)
        at += (size_t)snprintf(text + at, sizeof text - at, "input %s : %s\n%%%s = input name=%s\n", names[n], t, names[n], names[n]);
    snprintf(text + at, sizeof text - at, "%%r = %s\n", c->node);
    Graph *g = parse(text, &errors);
    if (!g) return errors;
    free(errors);
    char *type = strdup(type_text(g, graph_type_at(g, g->n_nodes - 1)));
    char *verdict = complaints(g);
    cr_assert_str_empty(verdict);
    free(verdict);
    graph_free(g);
    return type;
}

static void check(const Case *cases, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char *got = infer(&cases[i]);
        bool is_type = strncmp(got, "t:", 2) != 0;
        cr_expect(is_type ? strcmp(got, cases[i].expected) == 0 : strstr(got, cases[i].expected) != NULL, "%s over %s: got %s, expected %s",
                  cases[i].node, cases[i].operands, got, cases[i].expected);
        free(got);
    }
}
#define CHECK(...) check((Case[]){__VA_ARGS__}, sizeof((Case[]){__VA_ARGS__}) / sizeof(Case))

Test(shape, leaves) {
    CHECK({"", "const : f32[2] data=[1, 2]", "f32[2]"}, {"", "const : f32[2,3] data=[1]", "f32[2,3]"},
          {"", "const : f32[2] data=[1, 2, 3]", "12 bytes do not fill f32[2]"}, {"", "const : f32[0] data=[]", "f32[0]"},
          {"f32[2]", "input : f32[3] name=a", "a is f32[2], not f32[3]"}, {"", "input : f32[3] name=q", "q is not declared"},
          {"", "scalar : f32[] name=lr", "f32[]"}, {"", "scalar : f32[1] name=lr", "rank 0"}, {"", "iota : i64[2,3] axis=1", "i64[2,3]"},
          {"", "iota : i64[2,3] axis=2", "out of range"}, {"", "random : f32[2] stream=1", "f32[2]"}, {"", "random : i32[2] stream=1", "needs floats"},
          {"", "const data=hex:00", "type is not given"});
}

Test(shape, maps_need_equal_dims_and_the_right_class) {
    CHECK({"f32[2,3] f32[2,3]", "add %a %b", "f32[2,3]"}, {"f32[2,3] f32[3]", "add %a %b", "add(f32[2,3], f32[3]): dims differ"},
          {"i32[2] i32[2]", "add %a %b", "i32[2]"}, {"bool[2] bool[2]", "add %a %b", "type bool is not possible here: add: needs floats or integers"},
          {"f32[2] f64[2]", "mul %a %b", "the other operand is f64"}, {"i64[2] i64[2]", "div %a %b", "needs floats"},
          {"i64[2] i64[2]", "idiv %a %b", "i64[2]"}, {"f32[2] f32[2]", "lt %a %b", "bool[2]"}, {"bool[2] bool[2]", "eq %a %b", "bool[2]"},
          {"f32[2]", "isnan %a", "bool[2]"}, {"i32[2]", "isnan %a", "needs floats"}, {"bool[2] bool[2]", "and %a %b", "bool[2]"},
          {"i32[2] i32[2]", "and %a %b", "needs bool"}, {"bool[2] i64[2] i64[2]", "where %a %b %c", "i64[2]"},
          {"i64[2] i64[2] i64[2]", "where %a %b %c", "the condition must be bool"}, {"bool[2] f32[2] f64[2]", "where %a %b %c", "the other operand is f64"},
          {"f32[2] f32[2] f32[2]", "clip %a %b %c", "f32[2]"}, {"bf16[2] bf16[2]", "add %a %b", "bf16[2]"});
}

Test(shape, casts_keep_dims) {
    CHECK({"f32[2,3]", "cast %a : bf16[2,3]", "bf16[2,3]"}, {"f32[2,3]", "cast %a : bf16[3,2]", "type is bf16[3,2], inferred is bf16[2,3]"},
          {"f32[2]", "cast %a", "type is not given"});
}

Test(shape, views) {
    CHECK({"f32[2,3]", "reshape %a : f32[6]", "f32[6]"}, {"f32[2,3]", "reshape %a : f32[7]", "f32[7] has another number of elements"},
          {"f32[2,3,4]", "transpose %a perm=[2,0,1]", "f32[4,2,3]"}, {"f32[2,3]", "transpose %a perm=[0,0]", "no permutation"},
          {"f32[2,3]", "transpose %a perm=[0]", "another rank"}, {"f32[2,3]", "transpose %a perm=[0,2]", "no permutation"},
          {"f32[2,1]", "expand %a : f32[2,5]", "f32[2,5]"}, {"f32[2,3]", "expand %a : f32[2,5]", "does not broadcast to f32[2,5]"},
          {"f32[3]", "expand %a : f32[2,3]", "does not broadcast"}, {"f32[10]", "slice %a : f32[3] start=[1] step=[3]", "f32[3]"},
          {"f32[10]", "slice %a : f32[4] start=[1] step=[3]", "leaves axis 0"}, {"f32[10]", "slice %a : f32[4] start=[9] step=[-3]", "f32[4]"},
          {"f32[10]", "slice %a : f32[4] start=[8] step=[-3]", "leaves axis 0"}, {"f32[10]", "slice %a : f32[8] start=[2]", "f32[8]"},
          {"f32[10]", "slice %a : f32[2] start=[1] step=[0]", "leaves axis 0"}, {"f32[10]", "slice %a : f32[0] start=[99]", "f32[0]"},
          {"f32[2,3]", "slice %a : f32[2,3] start=[0]", "ranks differ"});
}

Test(shape, pad_and_concat) {
    CHECK({"f32[3]", "pad %a low=[1] high=[2] interior=[1] value=0", "f32[8]"}, {"f32[3]", "pad %a low=[-1]", "f32[2]"},
          {"f32[3]", "pad %a low=[-4]", "negative extents"}, {"f32[3]", "pad %a interior=[-1]", "impossible holes"},
          {"f32[0]", "pad %a low=[2] interior=[5]", "f32[2]"}, {"f32[3]", "pad %a low=[1,1]", "another rank"},
          {"f32[2,3] f32[2,1]", "concat %a %b axis=1", "f32[2,4]"}, {"f32[2,3] f32[1,3]", "concat %a %b axis=1", "dims beside the axis differ"},
          {"f32[2,3] f64[2,3]", "concat %a %b axis=1", "operands have one type"}, {"f32[2,3] f32[3]", "concat %a %b axis=0", "dims beside the axis differ"},
          {"f32[2]", "concat %a axis=1", "out of range"});
}

Test(shape, windows_and_their_adjoint) {
    CHECK({"f32[1,7]", "window %a kernel=[3] strides=[2] dilations=[1] low=[0] high=[0] value=0", "f32[1,3,3]"},
          {"f32[1,7]", "window %a kernel=[3] dilations=[3]", "f32[1,1,3]"}, {"f32[1,7]", "window %a kernel=[3] dilations=[4]", "does not fit"},
          {"f32[5,6]", "window %a kernel=[2,3] low=[1,0] high=[0,1]", "f32[5,5,2,3]"}, {"f32[5]", "window %a kernel=[2,3]", "does not fit"},
          {"f32[5]", "window %a kernel=[2] strides=[0]", "does not fit"}, {"f32[5]", "window %a kernel=[2] strides=[1,1]", "different lengths"},
          {"f32[1,3,3]", "fold %a : f32[1,7] kernel=[3] strides=[2]", "f32[1,7]"}, {"f32[1,3,3]", "fold %a : f32[1,8] kernel=[3] strides=[2]", "f32[1,8]"},
          {"f32[1,3,3]", "fold %a : f32[1,9] kernel=[3] strides=[2]", "these are no windows of f32[1,9]"}, {"f32[1,3,3]", "fold %a kernel=[3]", "type is not given"});
}

Test(shape, reductions_keep_reduced_axes_at_extent_1) {
    CHECK({"f32[2,3,4]", "sum %a axes=[0,2]", "f32[1,3,1]"}, {"f32[2,3]", "sum %a axes=[1,0]", "sorted and in range"},
          {"f32[2,3]", "sum %a axes=[2]", "in range"}, {"f32[2,3]", "sum %a axes=[0,0]", "sorted"}, {"bool[2]", "sum %a axes=[0]", "needs floats or integers"},
          {"i64[2,3]", "rmax %a axes=[1]", "i64[2,1]"}, {"f32[2,3]", "argmax %a axis=1", "i64[2,1]"}, {"f32[2,3]", "argmin %a axis=-1", "out of range"},
          {"f32[2,0]", "argmin %a axis=1", "nothing to choose from"}, {"f32[2,3]", "prod %a axes=[]", "f32[2,3]"});
}

Test(shape, dot) {
    CHECK({"f32[2,3] f32[3,4]", "dot %a %b", "f32[2,4]"}, {"f32[3,2] f32[4,3]", "dot %a %b ta=1 tb=1", "f32[2,4]"},
          {"f32[2,3] f32[4,5]", "dot %a %b", "inner dimensions differ: 3 and 4"}, {"f32[5,2,3] f32[5,3,4]", "dot %a %b", "f32[5,2,4]"},
          {"f32[5,2,3] f32[1,3,4]", "dot %a %b", "batch dims differ"}, {"f32[3] f32[3]", "dot %a %b", "below 2"},
          {"f32[2,3] bf16[3,4]", "dot %a %b", "the other operand is bf16"}, {"bool[2,3] bool[3,4]", "dot %a %b", "needs floats or integers"});
}

Test(shape, convolutions_and_their_adjoints) {
    CHECK({"f32[2,4,9,8] f32[6,2,3,3]", "conv %a %b strides=[2,1] low=[1,1] high=[1,1] groups=2", "f32[2,6,5,8]"},
          {"f32[2,4,9] f32[6,4,3]", "conv %a %b", "f32[2,6,7]"}, {"f32[2,4,9] f32[6,3,3]", "conv %a %b", "channels and groups do not fit"},
          {"f32[2,4,9] f32[5,2,3]", "conv %a %b groups=2", "channels and groups"}, {"f32[2,4,9] f32[6,4,10]", "conv %a %b", "kernel does not fit"},
          {"f32[2,4] f32[6,4]", "conv %a %b", "below 3"}, {"f32[2,4,9] f32[6,4,3]", "conv %a %b strides=[1,1]", "one element per spatial axis"},
          {"f32[2,6,4] f32[6,4,3]", "conv_dx %a %b : f32[2,4,9] strides=[2]", "f32[2,4,9]"},
          {"f32[2,6,4] f32[6,4,3]", "conv_dx %a %b : f32[2,4,10] strides=[2]", "f32[2,4,10]"},
          {"f32[2,6,4] f32[6,4,3]", "conv_dx %a %b : f32[2,4,11] strides=[2]", "given type does not fit"},
          {"f32[2,4,9] f32[2,6,4]", "conv_dw %a %b : f32[6,4,3] strides=[2]", "f32[6,4,3]"},
          {"f32[2,4,9] f32[2,6,4]", "conv_dw %a %b : f32[6,4,4] strides=[2]", "given type does not fit"},
          {"f32[2,4,9] f32[2,6,4]", "conv_dw %a %b", "type is not given"}, {"f32[1,1,5,5,5] f32[1,1,3,3,3]", "conv %a %b", "f32[1,1,3,3,3]"});
}

Test(shape, gathers) {
    CHECK({"f32[5,6,7] i64[2,3]", "gather %a %b axis=1", "f32[5,2,3,7]"}, {"f32[5,6] i64[]", "gather %a %b axis=0", "f32[6]"},
          {"f32[5,6] f32[2]", "gather %a %b axis=0", "indices are integers"}, {"f32[5] i64[2]", "gather %a %b axis=1", "out of range"},
          {"f32[2,2,2,2,2] i64[1,1,1,1,1]", "gather %a %b axis=0", "rank is too high"},
          {"f32[5,6] i64[5,2]", "take %a %b axis=1", "f32[5,2]"}, {"f32[5,6] i64[3,9]", "take %a %b axis=1", "f32[3,9]"},
          {"f32[5,6] i64[6,2]", "take %a %b axis=1", "exceed the dims"}, {"f32[5,6] i64[5]", "take %a %b axis=1", "ranks differ"},
          {"f32[5,6,7] i64[3,2]", "gather_nd %a %b", "f32[3,7]"}, {"f32[5,6,7] i64[5,3,1]", "gather_nd %a %b batch=1", "f32[5,3,7]"},
          {"f32[5,6,7] i64[4,3,1]", "gather_nd %a %b batch=1", "batch dims differ"}, {"f32[5,6] i64[3,3]", "gather_nd %a %b", "longer than the rank"},
          {"f32[5] i64[2]", "gather_nd %a %b batch=1", "too many batch dims"});
}

Test(shape, scatters_have_the_type_of_their_base) {
    CHECK({"f32[5,6] i64[3] f32[3,6]", "scatter %a %b %c axis=0", "f32[5,6]"}, {"f32[5,6] i64[3] f32[3,5]", "scatter %a %b %c axis=0", "updates do not fit"},
          {"f32[5,6] i64[5,2] f32[5,2]", "put %a %b %c axis=1", "f32[5,6]"}, {"f32[5,6] i64[3,1] f32[3,6]", "scatter_nd %a %b %c", "f32[5,6]"},
          {"f32[5] i64[3] f64[3]", "scatter %a %b %c axis=0", "updates have the type of the base"}, {"f32[5] i64[3] f32[3]", "scatter %a %b %c axis=0 mode=9", "no such mode"},
          {"bool[5] i64[3] bool[3]", "scatter %a %b %c axis=0", "bool can only be set"}, {"bool[5] i64[3] bool[3]", "scatter %a %b %c axis=0 mode=1", "bool[5]"},
          {"f32[5] f32[3] f32[3]", "scatter %a %b %c axis=0", "indices are integers"});
}

Test(shape, macros) {
    CHECK({"f32[2,3]", "softmax %a axes=[1]", "f32[2,3]"}, {"i32[2,3]", "softmax %a axes=[1]", "needs floats"}, {"f32[2,3]", "softmax %a axes=[2]", "in range"},
          {"f32[2,3]", "layer_norm %a axes=[1] eps=1e-5", "f32[2,3]"}, {"f32[2,3]", "gelu %a", "f32[2,3]"},
          {"f32[4,10] i64[4,1]", "xent %a %b axis=1 ignore=-100", "f32[4,1]"}, {"f32[4,10] i64[4]", "xent %a %b axis=1 ignore=-100", "one class"},
          {"f32[4,10] i32[4,1]", "xent %a %b axis=1 ignore=-100", "labels are i64"}, {"i64[4,10] i64[4,1]", "xent %a %b axis=1 ignore=-100", "logits are floats"},
          {"f32[4,10] i64[4,1]", "xent %a %b axis=2 ignore=0", "out of range"});
}

Test(shape, absurd_extents_are_refused) {
    CHECK({"f32[1099511627776]", "reshape %a : f32[1099511627777]", "too large"}, {"f32[1048576,1] f32[1,1048576]", "dot %a %b", "f32[1048576,1048576]"},
          {"f32[1099511627776,1] f32[1,1099511627776]", "dot %a %b", "the result is too large"}, {"f32[2]", "pad %a low=[9223372036854775807]", "paddings"},
          {"f32[1099511627776]", "pad %a interior=[2147483647]", "impossible holes"}, {"f32[9]", "window %a kernel=[9223372036854775807]", "lengths"},
          {"f32[-1]", "neg %a", "the type is too large"});
}
