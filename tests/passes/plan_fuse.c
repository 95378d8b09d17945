/* Tests that known patterns become the kernels they should, and that every plan computes what the
 * graph means. */
#include "plan_run.h"
#include <criterion/criterion.h>

static Value matrix(Graph *g, const char *name) {
    return plan_input(g, name, DT_F32, DIMS(32, 24));
}

static Value macro(Graph *g, OpCode op, Value x, int64_t axis, bool eps) {
    AttrField fields[] = {attr_ints(A_AXES, &axis, 1), attr_float(A_EPS, 1e-5)};
    return graph_emit(g, op, &x, 1, graph_attr(g, fields, eps ? 2 : 1), 0);
}

static Value expanded(Graph *g, OpCode op, Value x, int64_t axis, bool eps) {
    return macro_expand(g, macro(g, op, x, axis, eps));
}

static void output(Graph *g, const char *name, Value v) {
    graph_add_root(g, ENTRY_EVAL, false, name, v);
}

static void expect_one(Graph *g, GroupKind kind) {
    for (int gpu = 0; gpu < 2; gpu++) {
        Planned p = plan_graph(g, gpu);
        cr_expect_eq(plan_launches(&p, ENTRY_EVAL), 1, "%u launches",
                     plan_launches(&p, ENTRY_EVAL));
        cr_expect_eq(plan_count(&p, ENTRY_EVAL, kind), 1);
        plan_run_and_compare(&p, 1e-5);
        arena_free(p.arena);
    }
    graph_free(g);
}

Test(plan_fuse, a_chain_of_maps_is_one_kernel) {
    Graph *g = graph_new("t");
    Value x = matrix(g, "x"),
          y = build_unary(g, OP_exp, build_binary(g, OP_add, x, build_unary(g, OP_tanh, x)));
    output(g, "y", build_binary(g, OP_mul, y, x));
    expect_one(g, GROUP_MAP);
}

Test(plan_fuse, maps_of_one_input_with_two_outputs_are_one_kernel_where_one_feeds_the_other) {
    Graph *g = graph_new("t");
    Value x = matrix(g, "x"), y = build_unary(g, OP_exp, x);
    output(g, "y", y);
    output(g, "z", build_binary(g, OP_add, y, x));
    expect_one(g, GROUP_MAP);
}

Test(plan_fuse, softmax_is_one_row_kernel) {
    Graph *g = graph_new("t");
    output(g, "y", expanded(g, OP_softmax, matrix(g, "x"), 1, false));
    expect_one(g, GROUP_ROW);
}

Test(plan_fuse, log_softmax_is_one_row_kernel) {
    Graph *g = graph_new("t");
    output(g, "y", expanded(g, OP_log_softmax, matrix(g, "x"), 1, false));
    expect_one(g, GROUP_ROW);
}

Test(plan_fuse, layer_norm_with_scale_and_shift_is_one_row_kernel) {
    Graph *g = graph_new("t");
    Value w = plan_input(g, "w", DT_F32, DIMS(24)), b = plan_input(g, "b", DT_F32, DIMS(24));
    Value n = expanded(g, OP_layer_norm, matrix(g, "x"), 1, true);
    output(g, "y", build_binary(g, OP_add, build_binary(g, OP_mul, n, w), b));
    expect_one(g, GROUP_ROW);
}

Test(plan_fuse, residual_then_layer_norm_stores_both_in_one_row_kernel) {
    Graph *g = graph_new("t");
    Value r = build_binary(g, OP_add, matrix(g, "x"), matrix(g, "z"));
    output(g, "r", r);
    output(g, "y", expanded(g, OP_layer_norm, r, 1, true));
    expect_one(g, GROUP_ROW);
}

/* The graph with macros written out, as the pipeline gives it to fuse. */
static Graph *expanded_graph(Graph *g) {
    PassOptions options = default_options();
    Arena *a = arena_new();
    Plan plan = {0};
    PassContext ctx = {.g = g, .plan = &plan, .arena = a, .options = &options, .log = stderr};
    cr_assert(passes_run(&ctx, "expand,simplify"));
    if (ctx.g != g) graph_free(g);
    arena_free(a);
    return ctx.g;
}

Test(plan_fuse, the_gradient_of_layer_norm_is_one_row_kernel) {
    Graph *g = graph_new("t");
    Value y = macro(g, OP_layer_norm, matrix(g, "x"), 1, true), d[4] = {0};
    op_vjp(g, y, matrix(g, "dy"), d);
    output(g, "dx", d[0]);
    expect_one(expanded_graph(g), GROUP_ROW);
}

Test(plan_fuse, the_gradient_of_softmax_is_one_row_kernel) {
    Graph *g = graph_new("t");
    Value y = macro(g, OP_softmax, matrix(g, "x"), 1, false), d[4] = {0};
    op_vjp(g, y, matrix(g, "dy"), d);
    output(g, "dx", d[0]);
    expect_one(expanded_graph(g), GROUP_ROW);
}

Test(plan_fuse, cross_entropy_and_its_gradient_read_the_logits_in_one_row_kernel) {
    Graph *g = graph_new("t");
    Value x = matrix(g, "x"), d[4] = {0};
    graph_add_input(g, (Input){.name = "labels",
                               .type = graph_type_of(g, DT_I64, DIMS(32, 1)),
                               .batch_axis = 0,
                               .index_limit = 24});
    AttrField fields[] = {attr_int(A_AXIS, 1), attr_int(A_IGNORE, -100)};
    Value loss = graph_emit(g, OP_xent, (Value[]){x, build_input(g, "labels")}, 2,
                            graph_attr(g, fields, 2), 0);
    op_vjp(g, loss, build_splat(g, graph_node(g, loss)->type, 0.5), d);
    output(g, "dx", d[0]);
    output(g, "loss", build_reduce(g, OP_sum, loss, (int64_t[]){0, 1}, 2));
    Planned p = plan_graph(expanded_graph(g), false);
    cr_expect_eq(plan_count(&p, ENTRY_EVAL, GROUP_ROW), 1);
    cr_expect_eq(plan_launches(&p, ENTRY_EVAL),
                 2); /* and one that picks the labels' terms and sums them */
    plan_run_and_compare(&p, 1e-5);
    planned_free(&p);
}

static Value linear(Graph *g, Value x, const char *w, const char *b, int64_t in, int64_t out) {
    Value y = build_dot(g, x, plan_input(g, w, DT_F32, DIMS(in, out)), false, false);
    return build_binary(g, OP_add, y, plan_input(g, b, DT_F32, DIMS(out)));
}

Test(plan_fuse, linear_with_bias_and_gelu_is_one_contraction) {
    Graph *g = graph_new("t");
    Value h = linear(g, matrix(g, "x"), "w", "b", 24, 40);
    output(g, "y", macro_expand(g, graph_emit(g, OP_gelu, &h, 1, 0, 0)));
    expect_one(g, GROUP_CONTRACT);
}

Test(plan_fuse, a_reshape_between_product_and_bias_does_not_part_them) {
    Graph *g = graph_new("t");
    Value x = plan_input(g, "x", DT_F32, DIMS(4, 8, 24)), h = linear(g, x, "w", "b", 24, 40);
    output(g, "y",
           build_binary(g, OP_add, build_unary(g, OP_relu, h),
                        plan_input(g, "r", DT_F32, DIMS(4, 8, 40))));
    expect_one(g, GROUP_CONTRACT);
}

Test(plan_fuse, column_sums_take_their_maps_as_prologue_and_share_one_kernel) {
    Graph *g = graph_new("t");
    Value dy = matrix(g, "dy"), x = matrix(g, "x");
    output(g, "db", build_reduce(g, OP_sum, dy, (int64_t[]){0}, 1));
    output(g, "dw", build_reduce(g, OP_sum, build_binary(g, OP_mul, dy, x), (int64_t[]){0}, 1));
    expect_one(g, GROUP_ROW);
}

Test(plan_fuse, a_sum_with_prologue_and_epilogue_is_one_reduction) {
    Graph *g = graph_new("t");
    Value s = build_reduce(g, OP_sum, build_binary(g, OP_mul, matrix(g, "x"), matrix(g, "y")),
                           (int64_t[]){0, 1}, 2);
    output(g, "y", build_unary(g, OP_sqrt, build_unary(g, OP_abs, build_reshape(g, s, 0, NULL))));
    expect_one(g, GROUP_REDUCE);
}

Test(plan_fuse, max_pooling_and_relu_are_one_reduction) {
    Graph *g = graph_new("t");
    Value x = plan_input(g, "x", DT_F32, DIMS(2, 3, 8, 8));
    AttrField f[] = {attr_ints(A_KERNEL, (int64_t[]){2, 2}, 2),
                     attr_ints(A_STRIDES, (int64_t[]){2, 2}, 2)};
    Value w = graph_emit(g, OP_window, &x, 1, graph_attr(g, f, 2), 0);
    Value m =
        build_squeeze(g, build_reduce(g, OP_rmax, w, (int64_t[]){4, 5}, 2), (int64_t[]){4, 5}, 2);
    output(g, "y", build_unary(g, OP_relu, m));
    expect_one(g, GROUP_REDUCE);
}

Test(plan_fuse, a_mask_over_coordinates_is_computed_where_it_is_read) {
    Graph *g = graph_new("t");
    TypeId t = graph_type_of(g, DT_I64, DIMS(32, 24));
    Value mask = build_binary(g, OP_ge, build_iota(g, t, 0), build_iota(g, t, 1));
    Value x = matrix(g, "x"), none = build_splat(g, graph_node(g, x)->type, -1e9);
    Value y =
        expanded(g, OP_softmax, build_map(g, OP_where, (Value[]){mask, x, none}, 3), 1, false);
    Value z = build_dot(g, y, plan_input(g, "w", DT_F32, DIMS(24, 4)), false, false);
    output(g, "z", z);
    output(g, "masked",
           build_map(g, OP_where, (Value[]){mask, build_unary(g, OP_exp, y), none}, 3));
    Planned p = plan_graph(g, false);
    for (uint32_t i = 0; i < p.plan->n_groups; i++)
        for (uint32_t k = 0; k < p.plan->groups[i].n_outs; k++)
            cr_expect_neq(graph_type_at(g, p.plan->groups[i].outs[k])->dtype, DT_BOOL);
    plan_run_and_compare(&p, 1e-5);
    planned_free(&p);
}

Test(plan_fuse, an_operand_that_no_strides_describe_is_stored_first) {
    Graph *g = graph_new("t");
    Value x = plan_input(
        g, "x", DT_F32,
        DIMS(2, 3, 4, 5)); /* heads before positions: rows of the product are not evenly spaced */
    Value merged = build_reshape(g, build_transpose(g, x, (int64_t[]){0, 2, 1, 3}), DIMS(8, 15));
    output(g, "y", build_dot(g, merged, plan_input(g, "w", DT_F32, DIMS(15, 4)), false, false));
    Planned p = plan_graph(g, false);
    cr_expect_eq(plan_count(&p, ENTRY_EVAL, GROUP_MAP), 1);
    cr_expect_eq(plan_count(&p, ENTRY_EVAL, GROUP_CONTRACT), 1);
    plan_run_and_compare(&p, 1e-5);
    planned_free(&p);
}

Test(plan_fuse, heads_cut_from_one_projection_are_read_by_strides) {
    Graph *g = graph_new("t");
    Value qkv = plan_input(g, "qkv", DT_F32, DIMS(2, 8, 24)), part[2];
    for (int64_t i = 0; i < 2; i++) {
        Value s = build_slice(g, qkv, (int64_t[]){0, 0, i * 8}, (int64_t[]){2, 8, 8}, NULL);
        part[i] =
            build_transpose(g, build_reshape(g, s, DIMS(2, 8, 2, 4)), (int64_t[]){0, 2, 1, 3});
    }
    output(g, "y", build_dot(g, part[0], part[1], false, true));
    expect_one(g, GROUP_CONTRACT);
}

Test(plan_fuse, an_expensive_value_read_along_an_expand_is_stored_once) {
    Graph *g = graph_new("t");
    Value row =
        build_unary(g, OP_tanh, build_unary(g, OP_exp, plan_input(g, "w", DT_F32, DIMS(24))));
    output(g, "y", build_binary(g, OP_mul, matrix(g, "x"), row));
    Planned p = plan_graph(g, false);
    cr_expect_eq(plan_launches(&p, ENTRY_EVAL), 2);
    plan_run_and_compare(&p, 1e-5);
    planned_free(&p);
}

Test(plan_fuse, groups_never_form_a_cycle) {
    Graph *g = graph_new("t"); /* x -> sum over columns -> back to every element: neither half may
                                  swallow the other */
    Value e = build_unary(g, OP_exp, matrix(g, "x"));
    Value s = build_reduce(g, OP_sum, e, (int64_t[]){0}, 1);
    output(g, "y", build_binary(g, OP_div, e, s));
    Planned p = plan_graph(g, false);
    plan_run_and_compare(&p, 1e-5);
    planned_free(&p);
}
