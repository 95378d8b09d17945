/* Tests the inlining of local functions and of `If`: refusals, overloads, --set. Values and slopes,
 * also beside a branch that is not taken and makes NaN, are the cases of
 * tests/onnx_nodes/functions.tar.xz. Models: make_functions.py. */
#include "import_helpers.h"

Test(functions, that_call_themselves_are_refused) {
    import_bad((ImportOptions){.path = MODEL("function_recursive")}, 4,
               STRINGS("E_MODEL_INVALID", "the local function ping calls itself"));
}

/* each of 30 functions calls the next twice: 2^30 bodies */
Test(functions, that_stand_for_too_much_are_refused, .timeout = 120) {
    import_bad((ImportOptions){.path = MODEL("function_doubling")}, 4,
               STRINGS("E_MODEL_INVALID", "more than a million bodies"));
}

Test(functions, an_overload_is_found_by_its_name) {
    Model m = import_good((ImportOptions){.path = MODEL("function_overload")});
    cr_assert_eq(graph_op(m.graph, graph_root(m.graph, ENTRY_EVAL, false, "y")->value), OP_tanh);
    cr_assert_eq(graph_op(m.graph, graph_root(m.graph, ENTRY_EVAL, false, "z")->value), OP_relu);
    model_free(&m);
}

Test(branches, of_other_shapes_need_a_known_condition) {
    import_bad((ImportOptions){.path = MODEL("branches_shapes")}, 4,
               STRINGS("E_OP_UNSUPPORTED", "the branches make f32[3] and f32[1]",
                       "--set gives an input a constant value"));
    const double one = 1;
    const InputValue yes = {.name = "c", .numbers = &one, .n_numbers = 1};
    Model m =
        import_good((ImportOptions){.path = MODEL("branches_shapes"), .sets = &yes, .n_sets = 1});
    cr_assert_eq(output_type(&m, ENTRY_EVAL, "y")->dims[0], 3);
    model_free(&m);
}

Test(branches, that_make_sequences_need_a_known_condition) {
    import_bad((ImportOptions){.path = MODEL("branches_sequences")}, 4,
               STRINGS("E_OP_UNSUPPORTED", "that makes a sequence where the condition depends",
                       "--set gives an input a constant value"));
}
