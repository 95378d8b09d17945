/* Tests that the row of an embedding that starts as zeros in a PyTorch model is read like any other
 * and gets no gradient. */
#include "import_helpers.h"

Test(padding, a_row_of_zeros_passes_no_gradient_in_training_alone) {
    Model m = import_good((ImportOptions){.path = MODEL("padding"), DIMS({"batch", 2})});
    cr_assert_eq(count_op(m.graph, ENTRY_MICRO, OP_detach), 1);
    cr_assert_eq(count_op(m.graph, ENTRY_EVAL, OP_detach), 0);
    cr_assert_eq(m.graph->diags.n, 1);
    cr_assert_eq(m.graph->diags.items[0].code, N_PADDING);
    Value y = graph_root(m.graph, ENTRY_MICRO, false, "y")->value;
    Value dy = build_splat(m.graph, graph_node(m.graph, y)->type, 1), d[3] = {0};
    cr_assert_eq(graph_op(m.graph, y), OP_where);
    op_vjp(m.graph, y, dy, d);
    cr_assert(d[1] && d[2]);
    Value detached = graph_operand(m.graph, y, 1), through[3] = {0};
    op_vjp(m.graph, detached, d[1], through);
    cr_assert(!through[0], "rows of the padding index get nothing");
    op_vjp(m.graph, graph_operand(m.graph, y, 2), d[2], through);
    cr_assert(through[0], "all others do");
    model_free(&m);
}

Test(padding, another_producer_has_no_such_rule) {
    Model m = import_good((ImportOptions){.path = MODEL("padding_other"), DIMS({"batch", 2})});
    cr_assert_eq(count_op(m.graph, ENTRY_MICRO, OP_detach), 0);
    model_free(&m);
}

Test(padding, dynamo_tells_the_row) {
    Model m = import_good((ImportOptions){.path = MODEL("padding_traced"), DIMS({"batch", 2})});
    cr_assert_eq(count_op(m.graph, ENTRY_MICRO, OP_detach), 1);
    cr_assert_eq(m.graph->diags.n, 0, "that is no guess");
    Value y = graph_root(m.graph, ENTRY_MICRO, false, "y")->value;
    cr_assert_eq(graph_op(m.graph, y), OP_where);
    model_free(&m);
}

Test(padding, a_row_of_zeros_trains_where_dynamo_tells_that_there_is_none) {
    Model m = import_good((ImportOptions){.path = MODEL("padding_none"), DIMS({"batch", 2})});
    cr_assert_eq(count_op(m.graph, ENTRY_MICRO, OP_detach), 0);
    cr_assert_eq(m.graph->diags.n, 0);
    model_free(&m);
}
