/* Tests that builders broadcast as numpy does, drop what does nothing, and keep splats in one form.
 */
#include "text_helpers.h"

#define SETUP Graph *g = graph_new("t")
#define DONE                                                                                       \
    do {                                                                                           \
        cr_assert_eq(g->diags.n, 0);                                                               \
        cr_assert(graph_verify(g, stderr));                                                        \
        graph_free(g);                                                                             \
    } while (0)

Test(build, maps_broadcast_with_explicit_nodes) {
    SETUP;
    Value a = input_of(g, "a", DT_F32, DIMS(4, 1, 3)), b = input_of(g, "b", DT_F32, DIMS(5, 1));
    Value y = build_binary(g, OP_add, a, b);
    expect_type(g, y, "f32[4,5,3]");
    Value left = graph_operand(g, y, 0), right = graph_operand(g, y, 1);
    cr_assert(graph_op(g, left) == OP_expand && graph_operand(g, left, 0) == a);
    cr_assert(graph_op(g, right) == OP_expand &&
              graph_op(g, graph_operand(g, right, 0)) == OP_reshape);
    Value c = input_of(g, "c", DT_BOOL, 0, NULL);
    expect_type(g, build_map(g, OP_where, (Value[]){c, a, b}, 3), "f32[4,5,3]");
    DONE;
}

Test(build, what_does_nothing_makes_no_node) {
    SETUP;
    Value a = input_of(g, "a", DT_F32, DIMS(2, 3));
    cr_assert_eq(build_cast(g, a, DT_F32), a);
    cr_assert_eq(build_reshape(g, a, DIMS(2, 3)), a);
    cr_assert_eq(build_expand(g, a, DIMS(2, 3)), a);
    cr_assert_eq(build_transpose(g, a, (int64_t[]){0, 1}), a);
    cr_assert_eq(build_slice(g, a, (int64_t[]){0, 0}, (int64_t[]){2, 3}, NULL), a);
    cr_assert_eq(build_pad(g, a, (int64_t[]){0, 0}, (int64_t[]){0, 0}, NULL, 1), a);
    cr_assert_eq(build_concat(g, &a, 1, 0), a);
    cr_assert_eq(build_reduce(g, OP_sum, a, NULL, 0), a);
    cr_assert_eq(build_reshape(g, build_reshape(g, a, DIMS(6)), DIMS(2, 3)), a);
    cr_assert_eq(g->n_nodes, 3);
    DONE;
}

Test(build, splats_are_one_const_whatever_their_dims) {
    SETUP;
    TypeId t = graph_type_of(g, DT_F32, DIMS(2, 3));
    Value s = build_splat(g, t, 0.5);
    float same[6] = {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f};
    cr_assert_eq(build_const(g, t, same), s);
    cr_assert_eq(attr_find(g, s, A_DATA)->n, 4);
    cr_assert_eq(
        build_expand(g, build_splat(g, graph_type_of(g, DT_F32, 0, NULL), 0.5), DIMS(2, 3)), s);
    cr_assert_eq(
        build_reshape(g, build_splat(g, graph_type_of(g, DT_F32, DIMS(6)), 0.5), DIMS(2, 3)), s);
    cr_assert_eq(build_cast(g, build_splat(g, graph_type_of(g, DT_F64, DIMS(2, 3)), 0.5), DT_F32),
                 s);
    double value;
    cr_assert(const_splat(g, s, &value) && value == 0.5);
    DONE;
}

Test(build, const_splat_looks_through_views_and_casts_and_only_there) {
    SETUP;
    double value;
    Value s = build_splat(g, graph_type_of(g, DT_F32, DIMS(2, 1)), 1.75);
    Value e = graph_emit(g, OP_expand, &s, 1, 0, graph_type_of(g, DT_F32, DIMS(2, 3)));
    Value c = graph_emit(g, OP_cast, &e, 1, 0, graph_type_of(g, DT_I32, DIMS(2, 3)));
    cr_assert(const_splat(g, c, &value) && value == 1);
    cr_assert(!const_splat(g, build_unary(g, OP_neg, s), &value));
    float differ[2] = {1, 2};
    cr_assert(!const_splat(g, build_const(g, graph_type_of(g, DT_F32, DIMS(2)), differ), &value));
    int64_t huge = INT64_MAX;
    cr_assert(!const_splat(g, build_const(g, graph_type_of(g, DT_I64, 0, NULL), &huge), &value));
    DONE;
}

Test(build, ints_scalars_iota) {
    SETUP;
    Value v = build_ints(g, (int64_t[]){3, 1, 2}, 3);
    expect_type(g, v, "i64[3]");
    cr_assert_eq(((const int64_t *)attr_find(g, v, A_DATA)->u.bytes)[2], 2);
    expect_type(g, build_ints(g, NULL, 0), "i64[0]");
    expect_type(g, build_scalar(g, "lr", DT_F32), "f32[]");
    expect_type(g, build_iota(g, graph_type_of(g, DT_I64, DIMS(2, 3)), 1), "i64[2,3]");
    DONE;
}

Test(build, reductions_take_axes_in_any_order_and_from_the_end) {
    SETUP;
    Value a = input_of(g, "a", DT_F32, DIMS(2, 3, 4));
    Value y = build_reduce(g, OP_rmax, a, (int64_t[]){-1, 0, 2}, 3);
    expect_type(g, y, "f32[1,3,1]");
    cr_assert_eq(y, build_reduce(g, OP_rmax, a, (int64_t[]){0, 2}, 2));
    Value m = build_mean(g, a, (int64_t[]){1, 2}, 2);
    expect_type(g, m, "f32[2,1,1]");
    double count;
    cr_assert(graph_op(g, m) == OP_div && const_splat(g, graph_operand(g, m, 1), &count) &&
              count == 12);
    expect_type(g, build_squeeze(g, m, (int64_t[]){-1, 1}, 2), "f32[2]");
    DONE;
}

Test(build, sum_to_is_the_adjoint_of_expand) {
    SETUP;
    Value a = input_of(g, "a", DT_F32, DIMS(5, 2, 3));
    Type to = {.dtype = DT_F32, .rank = 2, .dims = {2, 1}}, none = {.dtype = DT_F32},
         same = *graph_type_at(g, a);
    expect_type(g, build_sum_to(g, a, &to), "f32[2,1]");
    expect_type(g, build_sum_to(g, a, &none), "f32[]");
    cr_assert_eq(build_sum_to(g, a, &same), a);
    DONE;
}

Test(build, slices_pads_concats) {
    SETUP;
    Value a = input_of(g, "a", DT_F32, DIMS(4, 6));
    expect_type(g, build_slice(g, a, (int64_t[]){3, 0}, (int64_t[]){4, 3}, (int64_t[]){-1, 2}),
                "f32[4,3]");
    expect_type(g, build_pad(g, a, (int64_t[]){1, 0}, (int64_t[]){0, 2}, NULL, 0), "f32[5,8]");
    expect_type(g, build_concat(g, (Value[]){a, a}, 2, 1), "f32[4,12]");
    Value idx = input_of(g, "i", DT_I64, DIMS(7));
    expect_type(g, build_gather(g, a, idx, 1), "f32[4,7]");
    DONE;
}

static Value under_reshape(const Graph *g, Value v) {
    return graph_op(g, v) == OP_reshape ? graph_operand(g, v, 0) : v;
}

Test(build, dot_folds_the_batch_into_rows_where_b_has_none) {
    SETUP;
    Value a = input_of(g, "a", DT_F32, DIMS(2, 5, 3)), b = input_of(g, "b", DT_F32, DIMS(4, 3)),
          c = input_of(g, "c", DT_F32, DIMS(1, 3, 4));
    Value y = build_dot(g, a, b, false, true);
    expect_type(g, y, "f32[2,5,4]");
    expect_type(g, under_reshape(g, y), "f32[10,4]");
    cr_assert_eq(attr_i(g, under_reshape(g, y), A_TB, 0), 1);
    expect_type(g, under_reshape(g, build_dot(g, a, c, false, false)), "f32[10,4]");
    DONE;
}

Test(build, dot_broadcasts_batches) {
    SETUP;
    Value a = input_of(g, "a", DT_F32, DIMS(2, 1, 5, 3)),
          b = input_of(g, "b", DT_F32, DIMS(7, 3, 4)), m = input_of(g, "m", DT_F32, DIMS(5, 3));
    expect_type(g, build_dot(g, a, b, false, false), "f32[2,7,5,4]");
    expect_type(g, build_dot(g, m, b, false, false), "f32[7,5,4]");
    expect_type(g, build_dot(g, a, m, true, false), "f32[2,1,3,3]");
    DONE;
}

Test(build, dot_of_vectors_is_numpys) {
    SETUP;
    Value v = input_of(g, "v", DT_F32, DIMS(3)), m = input_of(g, "m", DT_F32, DIMS(3, 4)),
          b = input_of(g, "b", DT_F32, DIMS(2, 5, 3));
    expect_type(g, build_dot(g, v, m, false, false), "f32[4]");
    expect_type(g, build_dot(g, v, v, false, false), "f32[]");
    expect_type(g, build_dot(g, b, v, false, false), "f32[2,5]");
    DONE;
}
