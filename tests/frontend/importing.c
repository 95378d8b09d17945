/* Tests that dimensions, parameters, versions and obstacles of a model are read as interface.md
 * says. */
#include "import_helpers.h"

/* ---------------------------------------------------------------- dimensions */

Test(dims, every_unbound_dimension_is_listed_at_once) {
    import_bad((ImportOptions){.path = MODEL("inputs")}, 2,
               STRINGS("batch", "width", "y[0]", "--dim batch=N", "--dim y[0]=N"));
}

Test(dims, a_misspelt_name_is_answered_with_the_closest) {
    import_bad((ImportOptions){.path = MODEL("inputs"), DIMS({"bacth", 2})}, 2,
               STRINGS("E_DIM_UNKNOWN", "bacth", "did you mean batch?"));
}

Test(dims, two_values_for_one_dimension_conflict) {
    import_bad((ImportOptions){.path = MODEL("inputs"),
                               DIMS({"batch", 2}, {"x[0]", 3}, {"width", 4}, {"y[0]", 1})},
               2, STRINGS("E_DIM_CONFLICT", "2 and to 3"));
}

Test(dims, inputs_that_share_no_first_axis_need_a_batch_dim) {
    ImportOptions o = {
        .path = MODEL("inputs"), DIMS({"batch", 6}, {"width", 4}, {"y[0]", 1}), .batch = 6};
    import_bad(o, 2, STRINGS("E_BATCH", "--batch-dim"));
    o.batch_dim = "batch";
    o.micro_batch = 3;
    Model m = import_good(o);
    cr_assert(m.batch == 6 && m.micro_batch == 3);
    cr_assert_eq(graph_input(m.graph, "x")->batch_axis, 0);
    cr_assert_eq(graph_input(m.graph, "y")->batch_axis, 1);
    cr_assert_eq(graph_input(m.graph, "sr")->batch_axis, -1);
    cr_assert_eq(output_type(&m, ENTRY_MICRO, "out")->dims[0], 3);
    model_free(&m);
}

Test(dims, a_batch_that_the_micro_batch_does_not_divide_is_refused) {
    import_bad((ImportOptions){.path = MODEL("tiny"), DIMS({"batch", 6}), .micro_batch = 4}, 2,
               STRINGS("E_BATCH", "6", "4"));
}

Test(dims, batch_binds_the_first_axis_that_all_inputs_share) {
    Model m = import_good((ImportOptions){.path = MODEL("tiny"), .batch = 8, .micro_batch = 2});
    cr_assert(m.batch == 8 && m.micro_batch == 2);
    cr_assert_eq(output_type(&m, ENTRY_EVAL, "y")->dims[0], 2);
    model_free(&m);
}

Test(dims, a_bound_batch_dimension_that_divides_the_batch_is_the_micro_batch) {
    Model m = import_good((ImportOptions){.path = MODEL("tiny"), DIMS({"batch", 2}), .batch = 8});
    cr_assert(m.batch == 8 && m.micro_batch == 2);
    model_free(&m);
    import_bad((ImportOptions){.path = MODEL("tiny"), DIMS({"batch", 3}), .batch = 8}, 2,
               STRINGS("E_DIM_CONFLICT", "batch"));
}

Test(dims, a_set_input_is_a_constant) {
    double rate = 3;
    InputValue set = {.name = "sr", .numbers = &rate, .n_numbers = 1};
    Model m = import_good((ImportOptions){.path = MODEL("inputs"),
                                          DIMS({"batch", 2}, {"width", 4}, {"y[0]", 1}),
                                          .sets = &set,
                                          .n_sets = 1});
    cr_assert(!graph_input(m.graph, "sr"));
    set.name = "ssr";
    import_bad((ImportOptions){.path = MODEL("inputs"),
                               DIMS({"batch", 2}, {"width", 4}, {"y[0]", 1}),
                               .sets = &set,
                               .n_sets = 1},
               2, STRINGS("ssr", "did you mean sr?"));
    model_free(&m);
}

/* ---------------------------------------------------------------- parameters */

Test(params, later_rules_win) {
    Model m = import_good((ImportOptions){
        .path = MODEL("training"), DIMS({"batch", 2}), FREEZES({false, "*"}, {true, "b*"})});
    cr_assert(!graph_state(m.graph, "scale")->trains && graph_state(m.graph, "bias")->trains);
    model_free(&m);
}

Test(params, a_glob_without_a_match_is_an_error_that_names_a_close_one) {
    import_bad((ImportOptions){.path = MODEL("training"),
                               DIMS({"batch", 2}),
                               FREEZES({false, "scael"}, {true, "nothing*"})},
               2, STRINGS("--freeze scael", "scale", "--train nothing*"));
}

Test(params, running_statistics_never_train) {
    Model m = import_good(
        (ImportOptions){.path = MODEL("training"), DIMS({"batch", 2}), FREEZES({true, "*"})});
    cr_assert(!graph_state(m.graph, "mean")->trains && graph_state(m.graph, "mean")->is_buffer);
    cr_assert(!graph_state(m.graph, "var")->trains);
    model_free(&m);
}

static void expect_fresh_statistics(const char *path) {
    Model m = import_good((ImportOptions){.path = path, DIMS({"batch", 2})});
    const State *mean = graph_state(m.graph, "mean"), *var = graph_state(m.graph, "var");
    cr_assert(!mean->source.file && !mean->source.data && mean->fill == 0);
    cr_assert(!var->source.file && !var->source.data && var->fill == 1);
    cr_assert_eq(m.graph->diags.items[0].code, N_STATISTICS);
    model_free(&m);
}

Test(params, statistics_that_only_the_export_moved_start_afresh) {
    expect_fresh_statistics(MODEL("moved_once"));
    expect_fresh_statistics(MODEL("moved_once_9"));
}

Test(params, an_inference_export_keeps_its_statistics_and_says_so) {
    ImportOptions o = {.path = MODEL("inference_norm"), DIMS({"batch", 2})};
    Model m = import_good(o);
    cr_assert_eq(m.graph->diags.items[0].code, W_BATCHNORM);
    cr_assert(!m.samples_mix && !graph_root(m.graph, ENTRY_MICRO, true, "mean"));
    model_free(&m);
    o.batchnorm_train = true;
    m = import_good(o);
    cr_assert_eq(m.graph->diags.n, 0);
    cr_assert(m.samples_mix && graph_root(m.graph, ENTRY_MICRO, true, "mean"));
    model_free(&m);
}

Test(params, trained_statistics_and_those_of_an_evaluation_stay) {
    Model m = import_good((ImportOptions){.path = MODEL("trained"), DIMS({"batch", 2})});
    cr_assert(graph_state(m.graph, "mean")->source.file &&
              graph_state(m.graph, "var")->source.file);
    model_free(&m);
    m = import_good(
        (ImportOptions){.path = MODEL("moved_once"), DIMS({"batch", 2}), .eval_only = true});
    cr_assert(graph_state(m.graph, "mean")->source.file);
    model_free(&m);
}

Test(params, what_the_exporter_marks_a_buffer_does_not_train) {
    Model m = import_good((ImportOptions){.path = MODEL("exporters"), DIMS({"batch", 2})});
    cr_assert(graph_state(m.graph, "p")->trains);
    cr_assert(!graph_state(m.graph, "rope.inv_freq")->trains);
    model_free(&m);
}

Test(params, a_folded_weight_trains_and_what_dynamo_lifted_out_of_the_code_does_not) {
    Model m = import_good((ImportOptions){.path = MODEL("lifted"), DIMS({"batch", 2})});
    const State *w = graph_state(m.graph, "l.weight");
    cr_assert(w->trains && w->source.is_transposed && graph_state(m.graph, "p")->trains);
    cr_assert_eq(m.graph->types[w->type].dims[0], 2, "val_0 is [3, 2], l.weight [2, 3]");
    cr_assert_eq(m.graph->n_states, 2);
    model_free(&m);
}

Test(params, what_was_lifted_trains_where_train_names_it) {
    Model m = import_good((ImportOptions){
        .path = MODEL("lifted"), DIMS({"batch", 2}), FREEZES({false, "ones*"}, {true, "half"})});
    cr_assert(graph_state(m.graph, "half")->trains && !graph_state(m.graph, "ones_1"));
    model_free(&m);
}

Test(params, a_frozen_scalar_that_the_exporter_lifted_is_a_number) {
    Model m = import_good(
        (ImportOptions){.path = MODEL("exporters"), DIMS({"batch", 2}), FREEZES({false, "val_*"})});
    cr_assert_eq(count_op(m.graph, ENTRY_MICRO, OP_state), 2);
    model_free(&m);
}

Test(params, evaluation_alone_trains_nothing) {
    Model m = import_good(
        (ImportOptions){.path = MODEL("training"), DIMS({"batch", 2}), .eval_only = true});
    cr_assert(!graph_state(m.graph, "scale")->trains);
    cr_assert_eq(m.graph->entries[ENTRY_MICRO].n, 0);
    model_free(&m);
}

/* ---------------------------------------------------------------- the walk */

Test(walk, locations_are_the_node_and_its_module) {
    Model m = import_good((ImportOptions){.path = MODEL("exporters"), DIMS({"batch", 2})});
    const Loc *loc =
        &m.graph
             ->locs[graph_node(m.graph, graph_root(m.graph, ENTRY_EVAL, false, "y")->value)->loc];
    cr_assert_str_eq(loc->name, "node_mul");
    cr_assert_str_eq(loc->op, "Mul");
    cr_assert_str_eq(loc->scope, "model.layers.0");
    model_free(&m);
}

static void expect_left_out(const char *path, const char *loss, bool is_left_out) {
    ImportOptions o = {.path = path, DIMS({"batch", 2}), .loss = loss};
    if (!is_left_out) {
        import_bad(o, 4, STRINGS("op Strange", "com.example"));
        return;
    }
    Model m = import_good(o);
    cr_assert_eq(m.graph->diags.items[0].code, W_OUTPUT);
    cr_assert(!graph_root(m.graph, ENTRY_MICRO, false, "boxes"));
    model_free(&m);
}

Test(walk, an_obstacle_beside_the_loss_is_none) {
    expect_left_out(MODEL("beside_logits"), "cross_entropy", true);
    expect_left_out(MODEL("beside_logits"), "mse:h", true);
    expect_left_out(MODEL("beside_logits"), "mse:boxes", false);
    expect_left_out(MODEL("beside_logits"), "mse:misspelt", false);
    expect_left_out(MODEL("beside_logits"), NULL, false);
    expect_left_out(MODEL("beside_logits"), "output", false); /* neither is it */
    expect_left_out(MODEL("beside_scalar"), "output", true);
    expect_left_out(MODEL("beside_scalar"), "mse", false);
}

Test(walk, all_obstacles_come_in_one_run_with_what_they_cut_off) {
    import_bad(
        (ImportOptions){.path = MODEL("obstacles"), DIMS({"batch", 2})}, 4,
        STRINGS("first", "Strange", "a.weight", "second", "Unique", "third", "Odd", "b.weight"));
}

Test(walk, what_no_output_needs_is_no_obstacle) {
    Model m;
    ImportOptions o = {.path = MODEL("obstacles"), DIMS({"batch", 2})};
    cr_assert(!model_import(&o, &m));
    char *text = diag_text(m.graph);
    cr_assert(!strstr(text, "Dead") && !strstr(text, "NonZero"), "%s", text);
    free(text);
    model_free(&m);
}

static void op_sequence(const char *path, char *text, size_t n) {
    Model m = import_good((ImportOptions){.path = path, DIMS({"batch", 2})});
    Arena *arena = arena_new();
    bool *is_reached = graph_reachable(m.graph, arena, ENTRY_EVAL);
    *text = 0;
    for (Value v = 1; v < m.graph->n_nodes; v++)
        if (is_reached[v] && op_info[graph_op(m.graph, v)].lower != LOWER_LEAF)
            snprintf(text + strlen(text), n - strlen(text), "%s ",
                     op_info[graph_op(m.graph, v)].name);
    arena_free(arena);
    model_free(&m);
}

Test(walk, opset_9_and_opset_18_say_the_same) {
    char old[1024], new[1024];
    op_sequence(MODEL("versions_9"), old, sizeof old);
    op_sequence(MODEL("versions_18"), new, sizeof new);
    cr_assert_str_eq(old, new);
    cr_assert_str_eq(old,
                     "reshape expand add slice pad clip slice slice concat softmax sum reshape ");
}

Test(walk, shape_arithmetic_folds_to_constants) {
    Model m =
        import_good((ImportOptions){.path = MODEL("fold"), DIMS({"batch", 2}, {"sequence", 3})});
    for (uint32_t i = 0; i < m.n_tensors; i++) {
        if (strcmp(m.tensor_names[i], "bias") != 0) continue;
        Arena *arena = arena_new();
        Tensor t;
        cr_assert_eq(graph_op(m.graph, m.tensor_values[i]), OP_const);
        cr_assert(interp_fold(m.graph, m.tensor_values[i], arena, &t, 100));
        static const double want[9] = {0, -1, -1, 0, 0, -1, 0, 0, 0};
        cr_assert_arr_eq(t.u.f, want, sizeof want);
        arena_free(arena);
    }
    cr_assert_eq(graph_input(m.graph, "ids")->index_limit, 7);
    cr_assert_eq(count_op(m.graph, ENTRY_MICRO, OP_le), 0);
    model_free(&m);
}

Test(walk, functions_and_known_branches_are_inlined) {
    Model m = import_good((ImportOptions){.path = MODEL("inlining"), DIMS({"batch", 2})});
    Value y = graph_root(m.graph, ENTRY_EVAL, false, "y")->value;
    double slope;
    cr_assert_eq(graph_op(m.graph, y), OP_add);
    Value s = graph_operand(m.graph, y, 0), scaled = graph_operand(m.graph, s, 2);
    cr_assert_eq(graph_op(m.graph, s), OP_where);
    cr_assert(const_splat(m.graph, graph_operand(m.graph, scaled, 0), &slope) && slope == 0.5);
    model_free(&m);
}

Test(walk, dropout_and_batch_statistics_are_in_the_training_entry_alone) {
    Model m = import_good((ImportOptions){.path = MODEL("training"), DIMS({"batch", 2})});
    cr_assert(m.samples_mix && m.from_pytorch);
    cr_assert_eq(count_op(m.graph, ENTRY_MICRO, OP_random), 2);
    cr_assert_eq(count_op(m.graph, ENTRY_EVAL, OP_random), 0);
    cr_assert(graph_root(m.graph, ENTRY_MICRO, true, "mean") &&
              graph_root(m.graph, ENTRY_MICRO, true, "var"));
    cr_assert_eq(count_op(m.graph, ENTRY_EVAL, OP_sum), 0);
    model_free(&m);
}

Test(walk, each_fault_of_a_node_has_its_diagnostic) {
    static const struct {
        const char *path, *code, *words;
    } faults[] = {
        {MODEL("fault_version"), "E_OP_VERSION", "Upsample at opset 17"},
        {MODEL("fault_attribute"), "E_OP_ATTRIBUTE", "approximate"},
        {MODEL("fault_shapes"), "E_SHAPES", "[2,4]"},
        {MODEL("fault_undefined"), "E_MODEL_INVALID", "nowhere"},
        {MODEL("fault_missing"), "E_MODEL_INVALID", "MatMul lacks its input 2"},
        {MODEL("fault_dtype"), "E_DTYPE", "f64"},
        {MODEL("fault_inner"), "E_DOT_INNER", "4 and 3"},
        {MODEL("fault_index"), "E_SHAPES", "index 4 is outside an axis of 4"},
        {MODEL("fault_elements"), "E_MODEL_INVALID", "tensor w holds 12 bytes, its dims say 16"},
        {MODEL("fault_string"), "E_DTYPE", "tensor w"}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        import_bad((ImportOptions){.path = faults[i].path, DIMS({"batch", 2})}, 4,
                   STRINGS(faults[i].code, faults[i].words));
}
