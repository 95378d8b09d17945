/* Tests that text and graph are the same thing: round trips of every kind of statement, exact
 * numbers, errors with their line. */
#include "text_helpers.h"
#include <math.h>

static const char whole[] =
    "graph \"a model\"\n"
    "loc 1 node 0 /h/MatMul MatMul \"h \\\"x\\\" \\\\ \\x01\"\n"
    "loc 2 gradient 1\n"
    "state w : f32[4,3] param trains file=w.bin offset=128 bytes=48\n"
    "state running : f32[3] param buffer data=[0.100000001, -0, 1e+30]\n"
    "state m.w : f32[4,3] optimizer fill=0.1 of=w\n"
    "state packed : f32[4,3] param file=w.bin offset=176 bytes=48 blocks=1302\n"
    "state odd : f16[2] master data=[0.3335, inf]\n"
    "input x : f32[2,4] batch=0 loc=1\n"
    "input \"ids:0\" : i64[2] batch=0 limit=10\n"
    "%1 = input : f32[2,4] name=x\n"
    "%2 = state : f32[4,3] name=w loc=1\n"
    "%3 = dot %1 %2 : f32[2,3] ta=0 tb=0 loc=1\n"
    "%4 = pad %3 : f32[4,3] low=[1,0] high=[1,0] interior=[0,0] value=-inf\n"
    "%5 = const : f32[4,3] data=[0.100000001]\n"
    "%6 = add %4 %5 : f32[4,3] loc=2\n"
    "%7 = add %4 %5 : f32[4,3] loc=2 epoch=1\n"
    "%8 = const : u64[2] data=[18446744073709551615, 0]\n"
    "%9 = const : f32[2] data=hex:0100c07f0000803f\n"
    "%10 = softmax %6 : f32[4,3] axes=[1]\n"
    "%11 = layer_norm %10 : f32[4,3] axes=[1] eps=1e-05\n"
    "entry micro\n"
    "update @w = %7\n"
    "output \"the loss\" = %6\n"
    "entry eval\n"
    "output y = %11\n";

Test(text, a_whole_graph_comes_back_letter_for_letter) {
    Graph *g = parse(whole, NULL);
    char *text = printed(g), *verdict = complaints(g);
    /* numbers print in their shortest form */
    char *expected = strdup(whole), *at;
    while ((at = strstr(expected, "0.100000001"))) memmove(at + 3, at + 11, strlen(at + 11) + 1);
    cr_assert_str_eq(text, expected);
    cr_assert_str_empty(verdict);
    free(text), free(verdict), free(expected);
    graph_free(g);
}

Test(text, what_it_says_is_what_the_graph_holds) {
    Graph *g = parse(whole, NULL);
    State *w = graph_state(g, "w"), *m = graph_state(g, "m.w");
    cr_assert(w->trains && !w->is_buffer && w->cls == STATE_PARAM && w->source.offset == 128 &&
              w->source.bytes == 48);
    cr_assert_str_eq(w->source.file, "w.bin");
    cr_assert(m->fill == 0.1 && strcmp(m->of, "w") == 0 && m->cls == STATE_OPTIMIZER);
    const float *running = graph_state(g, "running")->source.data;
    cr_assert(running[0] == 0.1f && running[1] == 0 && signbit(running[1]) && running[2] == 1e30f);
    cr_assert(graph_input(g, "ids:0")->index_limit == 10 && graph_input(g, "x")->loc == 1);
    cr_assert_str_eq(g->locs[1].scope, "h \"x\" \\ \x01");
    cr_assert(g->locs[2].kind == LOC_GRADIENT && g->locs[2].parent == 1);
    cr_assert(isinf(attr_f(g, 4, A_VALUE, 0)));
    cr_assert(graph_node(g, 7)->epoch == 1);
    cr_assert_eq(graph_root(g, ENTRY_MICRO, true, "w")->value, 7);
    cr_assert_eq(graph_root(g, ENTRY_EVAL, false, "y")->value, 11);
    graph_free(g);
}

Test(text, doubles_are_exact) {
    double xs[] = {0.1, 1.0 / 3, -0.0, 5e-324, 1.7976931348623157e308, INFINITY, 123456789.125};
    for (size_t i = 0; i < sizeof xs / sizeof *xs; i++) {
        Graph *g = graph_new("t");
        Value x = input_of(g, "x", DT_F64, DIMS(2));
        build_pad(g, x, (int64_t[]){1}, (int64_t[]){0}, NULL, xs[i]);
        Value c = build_splat(g, graph_type_of(g, DT_F64, 0, NULL), xs[i]);
        char *text = printed(g);
        Graph *again = parse(text, NULL);
        double pad = attr_f(again, 2, A_VALUE, 0), element;
        cr_assert(memcmp(&pad, &xs[i], sizeof pad) == 0);
        cr_assert(const_splat(again, c, &element) && memcmp(&element, &xs[i], sizeof element) == 0);
        free(text);
        graph_free(again);
        graph_free(g);
    }
}

Test(text, large_constants_come_back) {
    float data[200];
    for (int i = 0; i < 200; i++) data[i] = (float)i / 7;
    Graph *g = graph_new("t");
    build_const(g, graph_type_of(g, DT_F32, DIMS(200)), data);
    char *text = printed(g);
    Graph *again = parse(text, NULL);
    cr_assert(memcmp(attr_find(again, 1, A_DATA)->u.bytes, data, sizeof data) == 0);
    free(text);
    graph_free(again);
    graph_free(g);
}

Test(text, types_and_neutral_fields_may_be_left_out_and_values_may_have_names) {
    Graph *g = parse("# a comment\ninput x : f32[2,3]\n%x = input name=x\n\n%y = dot %x, %x tb=1 # "
                     "and another\nentry eval\noutput y = %y\n",
                     NULL);
    expect_type(g, graph_root(g, ENTRY_EVAL, false, "y")->value, "f32[2,2]");
    cr_assert_eq(attr_i(g, graph_root(g, ENTRY_EVAL, false, "y")->value, A_TA, -1), 0);
    graph_free(g);
}

Test(text, errors_name_the_line_and_what_is_wrong) {
    const char *cases[][2] = {
        {"graph g\n\nfoo", "t:3: foo is no statement\n"},
        {"%1 = frob %2", "t:1: frob is no op\n"},
        {"%1 = neg %2", "t:1: %2 is not defined before this line\n"},
        {"%1 = const data=[1]", "t:1: elements need a type before them\n"},
        {"%1 = const : f32[2", "t:1: ',' expected\n"},
        {"%1 = const : f99[2] data=[1]", "t:1: f99 is no type\n"},
        {"%1 = const : f32[2]", "t:1: const: field data is missing or does not belong here\n"},
        {"%1 = const : f32[2] data=[1] axis=2",
         "t:1: const: field axis is missing or does not belong here\n"},
        {"%1 = const : f32[2] data=[1] data=[1]", "t:1: field data stands twice\n"},
        {"%1 = const : f32[2] data=hex:123", "t:1: bytes are two hex digits each\n"},
        {"%1 = const : f32[2] data=[1] loc=4", "t:1: location 4 is not defined\n"},
        {"%1 = const : f32[2] data=[1] frob=4", "t:1: frob is no field\n"},
        {"%1 = const : f32[2] data=[1]\n%1 = neg %1", "t:2: %1 is defined twice\n"},
        {"%1 = const : f32[2] data=[1]\n%2 = add %1", "t:2: add has 1 operands\n"},
        {"%1 = const : f32[2] data=[1]\n%2 = neg %1 : f32[3]",
         "t:2: type is f32[3], inferred is f32[2]\n"},
        {"%1 = const : f32[2] data=[1]\noutput y = %1", "t:2: a root outside an entry\n"},
        {"entry nope", "t:1: nope is no entry\n"},
        {"loc 2 node 0", "t:1: locations are numbered from 1 on, in order\n"},
        {"loc 1 frob 0", "t:1: frob is no kind of location\n"},
        {"state w : f32[2] frob", "t:1: a class of state expected\n"},
        {"state w : f32[2] param frob", "t:1: a state is not frob\n"},
        {"state w : f32[2] param frob=1", "t:1: a state has no frob\n"},
        {"state w : f32[2] param blocks=11", "t:1: 11 is no order\n"},
        {"state w : f32[2] param blocks=102", "t:1: the rows are no 3 blocks\n"},
        {"state w : f32[2] param data=[1]", "t:1: 4 bytes do not fill the state\n"},
        {"state w : f32[2] param\nstate w : f32[2] param", "t:2: state w is declared twice\n"},
        {"input x : f32[2]\ninput x : f32[2]", "t:2: input x is declared twice\n"},
        {"input x : f32[2] batch=1", "t:1: no such axis\n"},
        {"input x : f32[2] frob=1", "t:1: an input has no frob\n"},
        {"input \"x : f32[2]\n", "t:1: '\"' expected\n"},
        {"input x : f32[2] limit=99999999999999999999", "t:1: an integer expected\n"},
        {"graph g h", "t:1: more on the line than its statement\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *errors;
        Graph *g = parse(cases[i][0], &errors);
        cr_expect(!g, "%s", cases[i][0]);
        if (!g) cr_expect_str_eq(errors, cases[i][1], "%s: %s", cases[i][0], errors);
        free(errors);
    }
}

/* Damages a good text in every place in turn: the parser answers, and what it accepts verifies and
 * prints. */
Test(text, damaged_text_is_refused_or_is_a_graph) {
    static const char junk[] = "\"%=[]:-9\n #x\\@";
    size_t n = strlen(whole);
    for (size_t at = 0; at < n; at++)
        for (size_t j = at % 3; j < sizeof junk; j += 3) {
            char *text = strdup(whole), *errors;
            text[at] = junk[j];
            Graph *g = parse(text, &errors);
            if (g) {
                char *out = printed(g);
                graph_verify(g, NULL);
                free(out);
            } else
                cr_assert(errors[0]);
            graph_free(g);
            free(errors), free(text);
        }
}
