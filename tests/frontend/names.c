/* Tests that parameters have the names, the layout and the identity that PyTorch's state_dict gives
 * them; models of tests/names, by both exporters. */
#include "import_helpers.h"

#define NAMES(file) SOURCE_DIR "/tests/names/" file ".onnx"
#define TIED DIMS({"batch", 4}, {"sequence", 6})

static const State *find(const Model *m, const char *name) {
    const State *s = graph_state(m->graph, name);
    cr_assert(s, "%s", name);
    return s;
}

static void has_shape(const Model *m, const char *name, int64_t rows, int64_t columns) {
    const Type *t = &m->graph->types[find(m, name)->type];
    cr_assert_eq(t->rank, columns ? 2 : 1, "%s", name);
    cr_assert(t->dims[0] == rows && (!columns || t->dims[1] == columns), "%s", name);
}

static void says(const Model *m, DiagCode code, const char *text) {
    for (uint32_t i = 0; i < m->graph->diags.n; i++)
        if (m->graph->diags.items[i].code == code) {
            cr_assert(strstr(m->graph->diags.items[i].text, text), "%s",
                      m->graph->diags.items[i].text);
            return;
        }
    cr_assert(false, "%s is not said", diag_info[code].code);
}

static bool is_silent(const Model *m, DiagCode code) {
    for (uint32_t i = 0; i < m->graph->diags.n; i++)
        if (m->graph->diags.items[i].code == code) return false;
    return true;
}

Test(names, a_folded_matrix_has_the_modules_name_and_pytorchs_layout) {
    const char *const files[] = {NAMES("steps/tied/model_dynamo"), NAMES("steps/tied/model_ts")};
    for (int i = 0; i < 2; i++) {
        Model m = import_good((ImportOptions){.path = files[i], TIED});
        has_shape(&m, "transformer.h.0.fc.weight", 16, 8);
        has_shape(&m, "transformer.h.1.proj.weight", 8, 16);
        cr_assert(find(&m, "transformer.h.0.fc.weight")->source.is_transposed);
        cr_assert(is_silent(&m, N_NAMES));
        model_free(&m);
    }
}

Test(names, what_recurrent_layers_pack_is_the_modules_parameters) {
    const char *const files[] = {NAMES("steps/recurrent/model_dynamo"),
                                 NAMES("steps/recurrent/model_ts")};
    for (int i = 0; i < 2; i++) {
        Model m = import_good((ImportOptions){.path = files[i], DIMS({"batch", 4})});
        has_shape(&m, "lstm.weight_ih_l0", 12, 8);
        has_shape(&m, "lstm.weight_ih_l1_reverse", 12, 6);
        has_shape(&m, "lstm.bias_hh_l1", 12, 0);
        has_shape(&m, "inner.first.weight_hh_l1", 12, 4);
        has_shape(&m, "rnn.weight_hh_l0", 3, 3);
        cr_assert(!graph_state(m.graph, "inner.first.bias_ih_l0"));
        cr_assert_str_eq(find(&m, "lstm.weight_hh_l1_reverse")->source.blocks, "0231");
        cr_assert_str_eq(find(&m, "inner.second.bias_hh_l0")->source.blocks, "102");
        const Holder *h = find(&m, "lstm.bias_hh_l0_reverse")->holders;
        cr_assert(h->first == 36 && type_elems(&h->type) == 48, "the last of four vectors of 12");
        cr_assert(is_silent(&m, N_NAMES) && is_silent(&m, N_LOST));
        model_free(&m);
    }
}

Test(names, a_tied_matrix_is_one_parameter_with_every_name_of_the_state_dict) {
    const char *const files[] = {NAMES("steps/tied/model_dynamo"), NAMES("steps/tied/model_ts")};
    for (int i = 0; i < 2; i++) {
        Model m = import_good((ImportOptions){.path = files[i], TIED});
        const State *s = find(&m, "transformer.wte.weight");
        cr_assert_eq(s->n_aliases, 1);
        cr_assert_str_eq(s->aliases[0], "lm_head.weight");
        cr_assert_eq(s->n_holders, 2, "the table, and its transpose for the last layer");
        cr_assert(!graph_state(m.graph, "lm_head.weight"));
        model_free(&m);
    }
}

Test(names, a_broken_tie_is_said_and_stays_broken_where_that_is_wanted) {
    Model m = import_good((ImportOptions){.path = NAMES("steps/tied/model_ts"), TIED});
    says(&m, N_TIED, "onnx::MatMul");
    model_free(&m);
    m = import_good((ImportOptions){.path = NAMES("steps/tied/model_ts"), TIED, .tie_none = true});
    has_shape(&m, "transformer.wte.weight", 11, 8);
    has_shape(&m, "lm_head.weight", 11, 8);
    cr_assert(is_silent(&m, N_TIED));
    model_free(&m);
}

Test(names, a_tie_can_be_given) {
    Model m = import_good(
        (ImportOptions){.path = NAMES("steps/tied/model_ts"),
                        TIED,
                        .tie_none = true,
                        .ties = (TieRule[]){{"transformer.wte.weight", "lm_head.weight"}},
                        .n_ties = 1});
    cr_assert(!graph_state(m.graph, "lm_head.weight"));
    cr_assert_str_eq(find(&m, "transformer.wte.weight")->aliases[0], "lm_head.weight");
    model_free(&m);
    import_bad(
        (ImportOptions){.path = NAMES("steps/tied/model_ts"),
                        TIED,
                        .ties = (TieRule[]){{"transformer.wte.weight", "transformer.wpe.weight"}},
                        .n_ties = 1},
        2, STRINGS("E_OPTION", "other shapes"));
    import_bad((ImportOptions){.path = NAMES("steps/tied/model_ts"),
                               TIED,
                               .ties = (TieRule[]){{"transformer.wte.weight", "lm_heat.weight"}},
                               .n_ties = 1},
               2, STRINGS("E_GLOB_UNMATCHED", "--tie lm_heat.weight"));
}

Test(names, every_name_of_a_parameter_works_in_a_glob) {
    const char *const globs[] = {"lm_head.weight", "transformer.wte.*", "onnx::MatMul_*"};
    for (int i = 0; i < 3; i++) {
        Model m = import_good((ImportOptions){
            .path = NAMES("steps/tied/model_ts"), TIED, FREEZES({false, globs[i]})});
        cr_assert(!find(&m, "transformer.wte.weight")->trains, "%s", globs[i]);
        cr_assert(find(&m, "transformer.ln_f.weight")->trains);
        model_free(&m);
    }
}

Test(names, parameters_of_equal_values_are_parameters_of_their_own) {
    const char *const files[] = {NAMES("steps/scaled/model_dynamo"),
                                 NAMES("steps/scaled/model_ts")};
    for (int i = 0; i < 2; i++) {
        Model m = import_good((ImportOptions){.path = files[i], DIMS({"batch", 4})});
        says(&m, N_SPLIT, "blocks.1.norm.weight");
        const char *const ones[] = {"blocks.0.norm.weight", "blocks.0.gamma", "norm.weight"};
        for (int k = 0; k < 3; k++) has_shape(&m, ones[k], 8, 0);
        cr_assert_eq(find(&m, "norm.weight")->source.offset,
                     find(&m, "blocks.0.gamma")->source.offset, "they start from the same bytes");
        model_free(&m);
    }
}

Test(names, what_the_exporter_dropped_is_said) {
    Model m = import_good(
        (ImportOptions){.path = NAMES("steps/scaled/model_dynamo"), DIMS({"batch", 4})});
    says(&m, N_LOST, "scale");
    model_free(&m);
}

Test(names, what_cannot_be_told_keeps_the_graphs_name_and_is_listed) {
    Model m = import_good((ImportOptions){.path = NAMES("models/unnamed"), DIMS({"batch", 2})});
    has_shape(&m, "onnx::MatMul_3", 3, 4);
    says(&m, N_NAMES, "onnx::MatMul_3");
    says(&m, N_TABLES, "table f32[4] read by Mul");
    model_free(&m);
    m = import_good((ImportOptions){.path = NAMES("models/twice"), DIMS({"batch", 2})});
    cr_assert(!graph_state(m.graph, "low.weight"));
    says(&m, N_NAMES, "2 parameters");
    model_free(&m);
}

Test(names, the_bias_names_a_module_that_is_registered_twice) {
    Model m = import_good((ImportOptions){.path = NAMES("models/registered"), DIMS({"batch", 2})});
    has_shape(&m, "first.weight", 4, 3);
    model_free(&m);
}

Test(names, a_name_can_be_given) {
    Model m = import_good(
        (ImportOptions){.path = NAMES("models/unnamed"),
                        DIMS({"batch", 2}),
                        .renames = (RenameRule[]){{"onnx::MatMul_3", "proj.weight", true},
                                                  {"table", "scale", false}},
                        .n_renames = 2});
    has_shape(&m, "proj.weight", 4, 3);
    has_shape(&m, "scale", 4, 0);
    cr_assert_str_eq(find(&m, "proj.weight")->holders[0].initializer, "onnx::MatMul_3");
    cr_assert(is_silent(&m, N_NAMES));
    model_free(&m);
    import_bad((ImportOptions){.path = NAMES("models/unnamed"),
                               DIMS({"batch", 2}),
                               .renames = (RenameRule[]){{"tabel", "scale", false}},
                               .n_renames = 1},
               2, STRINGS("E_GLOB_UNMATCHED", "--rename tabel", "table"));
    import_bad((ImportOptions){.path = NAMES("models/unnamed"),
                               DIMS({"batch", 2}),
                               .renames = (RenameRule[]){{"table", "onnx::MatMul_3", false}},
                               .n_renames = 1},
               2, STRINGS("E_OPTION", "another parameter is called"));
}

Test(names, attention_dropout_that_dynamo_lost_is_said_and_put_back) {
    ImportOptions o = {.path = NAMES("models/dropout"), DIMS({"batch", 2})};
    Model m = import_good(o);
    says(&m, N_DROPOUT, "0.25 on the weights of 1 ");
    cr_assert_eq(count_op(m.graph, ENTRY_MICRO, OP_random), 0);
    model_free(&m);
    o.attention_dropout = true;
    m = import_good(o);
    says(&m, N_DROPOUT_BACK, "0.25");
    cr_assert_eq(count_op(m.graph, ENTRY_MICRO, OP_random), 1);
    cr_assert_eq(count_op(m.graph, ENTRY_EVAL, OP_random), 0);
    model_free(&m);
}

Test(names, a_softmax_of_half_precision_is_computed_in_fp32) {
    Model m = import_good((ImportOptions){.path = NAMES("models/half"), DIMS({"batch", 2})});
    says(&m, N_SOFTMAX, "fp32");
    for (Value v = 1; v < m.graph->n_nodes; v++)
        cr_assert(graph_op(m.graph, v) != OP_softmax || graph_type_at(m.graph, v)->dtype == DT_F32);
    cr_assert_eq(output_type(&m, ENTRY_MICRO, "y")->dtype, DT_BF16);
    model_free(&m);
}

Test(names, biases_of_zeros_that_dynamo_dropped_are_parameters_again) {
    Model m = import_good(
        (ImportOptions){.path = NAMES("steps/copied/model_dynamo"), DIMS({"batch", 4})});
    says(&m, N_ZEROS, "encoder.layers.1.self_attn.out_proj.bias");
    has_shape(&m, "encoder.layers.0.self_attn.out_proj.bias", 8, 0);
    const float *zeros = find(&m, "encoder.layers.0.self_attn.out_proj.bias")->source.data;
    for (int i = 0; i < 8; i++) cr_assert_eq(zeros[i], 0);
    cr_assert(is_silent(&m, N_LOST));
    model_free(&m);
}

Test(names, a_tie_is_found_where_nothing_has_a_path) {
    Model m = import_good((ImportOptions){.path = NAMES("models/old"), DIMS({"batch", 2})});
    says(&m, N_TIED, "7 and wte.weight");
    cr_assert_eq(m.graph->n_states, 1);
    model_free(&m);
}
