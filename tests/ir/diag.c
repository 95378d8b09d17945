/* Tests that diagnostics are collected, kept once, and print as text, node and hint; and that ir/
 * provokes its rows. */
#include "text_helpers.h"

static void expect_print(Graph *g, const char *expected) {
    char *text = diags_printed(g);
    cr_expect_str_eq(text, expected);
    free(text);
    graph_free(g);
}

Test(diag, prints_code_text_node_module_and_hint) {
    Graph *g = graph_new("t");
    Value a = input_of(g, "a", DT_F32, DIMS(2, 3)), b = input_of(g, "b", DT_F32, DIMS(4, 5));
    g->loc = graph_loc(g, (Loc){LOC_NODE, "/h/MatMul", "MatMul", "h", 0});
    cr_assert_eq(build_dot(g, a, b, false, false), 0);
    diag_hint(g, "transpose %s", "b");
    expect_print(g, "error[E_DOT_INNER]: inner dimensions differ: 3 and 4\n  node /h/MatMul "
                    "(MatMul), module h\n  hint: transpose b\n");
}

Test(diag, a_derived_place_names_the_node_it_comes_from) {
    Graph *g = graph_new("t");
    LocId node = graph_loc(g, (Loc){LOC_NODE, "n", "Conv", "", 0});
    diag_add(g, E_SHAPES, graph_loc_derived(g, LOC_GRADIENT, node), "x");
    diag_hint(g, "h");
    expect_print(g,
                 "error[E_SHAPES]: shapes do not fit: x\n  gradient of node n (Conv)\n  hint: h\n");
}

Test(diag, hints_take_the_same_arguments) {
    Graph *g = graph_new("t");
    diag_add(g, E_DIM_UNBOUND, 0, "batch", "x");
    expect_print(g, "error[E_DIM_UNBOUND]: unbound dimension batch of input x\n  hint: bind it "
                    "with --dim batch=N\n");
}

Test(diag, equal_ones_are_kept_once_and_others_all) {
    Graph *g = graph_new("t");
    for (int i = 0; i < 3; i++) diag_add(g, E_SHAPES, 0, "x");
    cr_assert_eq(g->diags.n, 1);
    for (int i = 0; i < 50; i++) diag_add(g, E_DOT_INNER, 0, (long long)i, (long long)i);
    cr_assert_eq(g->diags.n, 51);
    graph_free(g);
}

Test(diag, exit_status_is_that_of_the_first_error) {
    Graph *g = graph_new("t");
    cr_assert_eq(diag_exit_status(g), 0);
    diag_add(g, W_UNTRAINED, 0, "w");
    cr_assert(!diag_has_errors(g) && diag_exit_status(g) == 0);
    diag_add(g, E_DIM_UNKNOWN, 0, "q");
    diag_add(g, E_SHAPES, 0, "x");
    cr_assert(diag_has_errors(g));
    cr_assert_eq(diag_exit_status(g), 2);
    graph_free(g);
}

Test(diag, severities_print_as_words) {
    Graph *g = graph_new("t");
    diag_add(g, N_TRAINS, 0, 3LL, 4LL, ": a, b, c", "");
    diag_add(g, W_UNTRAINED, 0, "w");
    expect_print(
        g,
        "note[N_TRAINS]: 3 of 4 parameters train: a, b, c\nwarning[W_UNTRAINED]: parameter w does "
        "not reach the loss and will not train\n  hint: --freeze says that it need not\n");
}

Test(diag, equal_obstacles_of_one_op_are_told_once_with_all_places) {
    Graph *g = graph_new("t");
    const char *const names[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) {
        diag_add(g, E_OP_ATTRIBUTE, graph_loc(g, (Loc){LOC_NODE, names[i], "Pad", "", 0}), "Pad",
                 "mode", "odd");
        diag_hint(g, "h");
        if (!i) diag_detail(g, "opset 9", "no gradient: w would not train");
    }
    diag_add(g, E_OP_ATTRIBUTE, graph_loc(g, (Loc){LOC_NODE, "d", "Pad", "", 0}), "Pad", "mode",
             "even");
    diag_hint(g, "h");
    expect_print(
        g,
        "error[E_OP_ATTRIBUTE]: op Pad: attribute mode: odd\n  node a (Pad)\n  and 2 more: b, c\n"
        "  opset 9\n  no gradient: w would not train\n  hint: h\n"
        "error[E_OP_ATTRIBUTE]: op Pad: attribute mode: even\n  node d (Pad)\n  hint: h\n");
}

Test(diag, all_wrong_shapes_of_a_graph_are_collected) {
    Graph *g = graph_new("t");
    Value a = input_of(g, "a", DT_F32, DIMS(2)), b = input_of(g, "b", DT_F32, DIMS(3)),
          c = input_of(g, "c", DT_I64, DIMS(2));
    Value bad = build_binary(g, OP_add, a, b);
    cr_assert_eq(build_unary(g, OP_exp, bad), 0);
    cr_assert_eq(build_unary(g, OP_exp, c), 0);
    expect_print(g, "error[E_SHAPES]: shapes do not fit: add(f32[2], f32[3]): dims differ\n"
                    "  hint: are the --dim values those that the model was exported for?\n"
                    "error[E_DTYPE]: type i64 is not possible here: exp: needs floats\n"
                    "  hint: export the model with another type there, or put a Cast before it\n");
}

Test(diag, a_rule_that_does_not_build_is_a_fault_of_ours) {
    Graph *g = graph_new("t");
    cr_assert_eq(rule_build(g, "(frob a)", NULL, 0, 0), 0);
    cr_assert_eq(g->diags.n, 1);
    cr_assert_eq(g->diags.items[0].code, E_RULE);
    cr_assert_eq(diag_exit_status(g), 1);
    graph_free(g);
}

Test(diag, every_row_has_a_format_and_errors_an_exit_status) {
    for (int i = 1; i < N_DIAGS; i++) {
        cr_assert(diag_info[i].format[0] && diag_info[i].code[1] == '_');
        cr_assert((diag_info[i].severity == SEV_ERROR) == (diag_info[i].exit_status != 0), "%s",
                  diag_info[i].code);
    }
}
