/* Tests that arithmetic and traffic of groups are what a pencil says. */
#include "text_helpers.h"

Test(plan, view_base_goes_through_views_and_stops_at_what_computes_an_index) {
    Graph *g = graph_new("t");
    Value a = input_of(g, "a", DT_F32, DIMS(2, 3)), n = build_unary(g, OP_neg, a);
    Value v = build_expand(
        g, build_transpose(g, build_reshape(g, a, DIMS(3, 2, 1)), (int64_t[]){1, 0, 2}),
        DIMS(2, 3, 4));
    cr_assert_eq(plan_view_base(g, v), a);
    cr_assert_eq(plan_view_base(g, build_reshape(g, n, DIMS(6))), n);
    cr_assert_eq(
        plan_view_base(
            g, build_reshape(g, build_pad(g, a, (int64_t[]){1, 0}, (int64_t[]){0, 0}, NULL, 0),
                             DIMS(9))),
        0);
    graph_free(g);
}

static uint64_t flops_of(Graph *g, Value v) {
    Group group = {.nodes = &v, .n_nodes = 1};
    return group_flops(g, &group);
}

Test(plan, flops_of_contractions_reductions_and_maps) {
    Graph *g = graph_new("t");
    Value a = input_of(g, "a", DT_F32, DIMS(2, 3)), b = input_of(g, "b", DT_F32, DIMS(3, 5));
    cr_assert_eq(flops_of(g, build_dot(g, a, b, false, false)), 2 * 2 * 3 * 5);
    cr_assert_eq(flops_of(g, build_dot(g, a, a, true, false)), 2 * 2 * 3 * 3);
    cr_assert_eq(flops_of(g, build_reduce(g, OP_sum, a, (int64_t[]){1}, 1)), 6);
    cr_assert_eq(flops_of(g, build_unary(g, OP_exp, a)), 8 * 6);
    Value x = input_of(g, "x", DT_F32, DIMS(1, 4, 6)), w = input_of(g, "w", DT_F32, DIMS(8, 4, 3)),
          y = input_of(g, "y", DT_F32, DIMS(1, 8, 4));
    uint64_t conv = 2 * (8 * 4) * (4 * 3); /* outputs times multiply-adds of each */
    cr_assert_eq(flops_of(g, graph_emit(g, OP_conv, (Value[]){x, w}, 2, 0, 0)), conv);
    cr_assert_eq(
        flops_of(g, graph_emit(g, OP_conv_dx, (Value[]){y, w}, 2, 0, graph_node(g, x)->type)),
        conv);
    cr_assert_eq(
        flops_of(g, graph_emit(g, OP_conv_dw, (Value[]){x, y}, 2, 0, graph_node(g, w)->type)),
        conv);
    graph_free(g);
}

Test(plan, traffic_counts_each_buffer_once_and_gathers_by_what_they_touch) {
    Graph *g = graph_new("t");
    Value a = input_of(g, "a", DT_F32, DIMS(8, 4)),
          table = input_of(g, "table", DT_F32, DIMS(1000, 4)),
          idx = input_of(g, "i", DT_I64, DIMS(8));
    Value rows = build_gather(g, table, idx, 0), sum = build_binary(g, OP_add, a, rows),
          y = build_binary(g, OP_mul, sum, a);
    uint32_t buffer_of[16] = {0};
    buffer_of[a] = 1, buffer_of[table] = 2, buffer_of[idx] = 3;
    Value members[] = {sum, y};
    Group group = {.entry = ENTRY_MICRO, .nodes = members, .n_nodes = 2, .outs = &y, .n_outs = 1};
    Plan plan = {.entries[ENTRY_MICRO].buffer_of = buffer_of};
    cr_assert_eq(group_moved_bytes(g, &plan, &group), 8 * 4 * 4 + 8 * 4 * 4 + 8 * 8 + 8 * 4 * 4);
    graph_free(g);
}
