/* Tests that geometric operators compute what PyTorch computes, and have its gradients, where it is
 * easy to go wrong: on borders and ties, at infinities, NaN and least integers.
 * models/geometry.onnx is written by tests/gradients/torch_geometry.py, with what PyTorch says as
 * outputs NAME.grad and NAME.want (torch_model.c). */
#include "import_helpers.h"
#include "torch_model.h"

Test(geometry, odd_numbers_give_what_pytorch_gives) { torch_model_values(MODEL("geometry"), 15); }

Test(geometry, gradients_are_pytorchs_on_borders_and_ties) {
    torch_model_gradients(MODEL("geometry"), 100);
}

Test(geometry, what_cannot_be_is_refused_at_once_and_by_name) {
    import_bad((ImportOptions){.path = MODEL("geometry_refused")}, 4,
               STRINGS("'quintic' is not known", "'mirror' is not known", "grid f32[3,4]",
                       "7 x 7 matrices", "f32[3,4] holds no square", "samples a bin has",
                       "'median' is not known", "[boxes, 5]", "length 0",
                       "f32[1,2,7,7] is no signal", "frames of 90", "from 7 to -1",
                       "'crop' is not known", "3 does not divide", "values and indices",
                       "an extent of -1", "offset f32[1,2,7,7]", "blocks of 90"));
}

/* Constants are tables of one axis at most, whatever the extents. */
Test(geometry, wide_images_and_long_signals_make_no_large_constants) {
    Model m = import_good((ImportOptions){.path = MODEL("geometry_wide")});
    Arena *arena = arena_new();
    const bool *is_reached = graph_reachable(m.graph, arena, ENTRY_EVAL);
    uint64_t bytes = 0;
    for (Value v = 1; v < m.graph->n_nodes; v++)
        if (is_reached[v] && graph_op(m.graph, v) == OP_const)
            bytes += attr_find(m.graph, v, A_DATA)->n;
    cr_assert_lt(bytes, 1 << 20);
    cr_assert_eq(output_type(&m, ENTRY_EVAL, "h")->dims[1], 998);
    model_free(&m);
    arena_free(arena);
}
