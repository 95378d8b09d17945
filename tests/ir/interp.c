/* interp.c - tests that the reference interpreter gives hand-computed values, for on it rests every
 * other comparison. */
#include "check.h"
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static Value floats(Check *c, uint32_t rank, const int64_t *dims, const double *elements) {
    return build_const(c->g, graph_type_of(c->g, DT_F64, rank, dims), elements);
}

static Value vector(Check *c, int64_t n, const double *elements) {
    return floats(c, 1, &n, elements);
}

static void expect(Check *c, Value v, int64_t n, const double *expected) {
    Tensor t = check_eval(c, v);
    cr_assert(type_elems(&t.type) == n);
    for (int64_t i = 0; i < n; i++)
        cr_assert(fabs(t.u.f[i] - expected[i]) <= 1e-12 ||
                      (isnan(t.u.f[i]) && isnan(expected[i])) || t.u.f[i] == expected[i],
                  "%s[%lld] is %.17g, not %.17g", op_info[graph_op(c->g, v)].name, (long long)i,
                  t.u.f[i], expected[i]);
}

static void expect_ints(Check *c, Value v, int64_t n, const int64_t *expected) {
    Tensor t = check_eval(c, v);
    cr_assert(type_elems(&t.type) == n);
    for (int64_t i = 0; i < n; i++)
        cr_assert(t.u.i[i] == expected[i], "%s[%lld] is %lld, not %lld",
                  op_info[graph_op(c->g, v)].name, (long long)i, (long long)t.u.i[i],
                  (long long)expected[i]);
}

static Value emit(Check *c, OpCode op, Value a, Value b, const AttrField *fields, uint32_t n,
                  TypeId given) {
    return graph_emit(c->g, op, (Value[]){a, b}, b ? 2 : 1, graph_attr(c->g, fields, n), given);
}

#define LIST(...)                                                                                  \
    (double[]) { __VA_ARGS__ }
#define INTS(...)                                                                                  \
    (int64_t[]) { __VA_ARGS__ }

/* ---------------------------------------------------------------- random */

/* The known answers of Random123's kat_vectors. */
Test(interp, philox_gives_the_known_answers) {
    uint32_t out[4];
    philox4x32((uint32_t[]){0, 0, 0, 0}, (uint32_t[]){0, 0}, out);
    cr_assert(memcmp(out, (uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}, 16) == 0);
    philox4x32((uint32_t[]){~0u, ~0u, ~0u, ~0u}, (uint32_t[]){~0u, ~0u}, out);
    cr_assert(memcmp(out, (uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}, 16) == 0);
    philox4x32((uint32_t[]){0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
               (uint32_t[]){0xa4093822, 0x299f31d0}, out);
    cr_assert(memcmp(out, (uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}, 16) == 0);
}

Test(interp, random_counts_on_through_micro_batches) {
    Check *c = check_new(1);
    Tensor two[2], one;
    AttrField stream = attr_int(A_STREAM, 3);
    InterpEnv env = {.seed = 5, .step = 2};
    Value small = graph_emit(c->g, OP_random, NULL, 0, graph_attr(c->g, &stream, 1),
                             graph_type_of(c->g, DT_F32, 1, INTS(6)));
    Value large = graph_emit(c->g, OP_random, NULL, 0, graph_attr(c->g, &stream, 1),
                             graph_type_of(c->g, DT_F32, 1, INTS(12)));
    graph_add_root(c->g, ENTRY_MICRO, false, "small", small);
    graph_add_root(c->g, ENTRY_APPLY, false, "large", large);
    cr_assert(interp_entry(c->g, ENTRY_MICRO, &env, c->arena, &two[0], stderr));
    env.micro = 1;
    cr_assert(interp_entry(c->g, ENTRY_MICRO, &env, c->arena, &two[1], stderr));
    env.micro = 0;
    cr_assert(interp_entry(c->g, ENTRY_APPLY, &env, c->arena, &one, stderr));
    for (int i = 0; i < 12; i++) {
        cr_assert(one.u.f[i] == two[i / 6].u.f[i % 6]);
        cr_assert(one.u.f[i] >= 0 && one.u.f[i] < 1);
    }
    check_free(c);
}

/* ---------------------------------------------------------------- casts */

Test(interp, casts_round_truncate_and_wrap) {
    Check *c = check_new(1);
    Value x = vector(c, 5, LIST(1.00390625, -2.75, 300, 65520, 0));
    expect(c, build_cast(c->g, x, DT_BF16), 5, LIST(1, -2.75, 300, 65536, 0));
    expect(c, build_cast(c->g, x, DT_F16), 5, LIST(1.00390625, -2.75, 300, INFINITY, 0));
    expect_ints(c, build_cast(c->g, x, DT_I64), 5, INTS(1, -2, 300, 65520, 0));
    expect_ints(c, build_cast(c->g, x, DT_U8), 5, INTS(1, 254, 44, 240, 0));
    expect_ints(c, build_cast(c->g, x, DT_BOOL), 5, INTS(1, 1, 1, 1, 0));
    expect(c, build_cast(c->g, build_ints(c->g, INTS(-7, 9), 2), DT_F32), 2, LIST(-7, 9));
    check_free(c);
}

Test(interp, narrow_integers_wrap) {
    Check *c = check_new(1);
    Value x = build_cast(c->g, build_ints(c->g, INTS(100, -100), 2), DT_I8);
    expect_ints(c, build_binary(c->g, OP_add, x, x), 2, INTS(-56, 56));
    expect_ints(c,
                build_binary(c->g, OP_irem, build_ints(c->g, INTS(-7, 7), 2),
                             build_ints(c->g, INTS(3, -3), 2)),
                2, INTS(-1, 1));
    check_free(c);
}

/* ---------------------------------------------------------------- views */

Test(interp, views_move_elements) {
    Check *c = check_new(1);
    Value x = floats(c, 2, INTS(2, 3), LIST(1, 2, 3, 4, 5, 6));
    expect(c, build_transpose(c->g, x, INTS(1, 0)), 6, LIST(1, 4, 2, 5, 3, 6));
    expect(c, build_slice(c->g, x, INTS(1, 2), INTS(1, 2), INTS(1, -2)), 2, LIST(6, 4));
    expect(c, build_pad(c->g, x, INTS(0, -1), INTS(1, 1), INTS(1, 0), 9), 12,
           LIST(2, 3, 9, 9, 9, 9, 5, 6, 9, 9, 9, 9));
    expect(
        c,
        build_concat(c->g, (Value[]){x, build_slice(c->g, x, INTS(0, 0), INTS(2, 1), NULL)}, 2, 1),
        8, LIST(1, 2, 3, 1, 4, 5, 6, 4));
    expect(c, build_expand(c->g, vector(c, 2, LIST(1, 2)), 2, INTS(2, 2)), 4, LIST(1, 2, 1, 2));
    expect_ints(c, build_iota(c->g, graph_type_of(c->g, DT_I64, 2, INTS(2, 2)), 1), 4,
                INTS(0, 1, 0, 1));
    check_free(c);
}

Test(interp, window_and_fold_are_adjoint_copies) {
    Check *c = check_new(1);
    AttrField f[] = {attr_ints(A_KERNEL, INTS(2), 1),    attr_ints(A_STRIDES, INTS(2), 1),
                     attr_ints(A_DILATIONS, INTS(2), 1), attr_ints(A_LOW, INTS(1), 1),
                     attr_ints(A_HIGH, INTS(1), 1),      attr_float(A_VALUE, 7)};
    Value x = vector(c, 4, LIST(1, 2, 3, 4));
    Value w = emit(c, OP_window, x, 0, f, 6, 0);
    expect(c, w, 4, LIST(7, 2, 2, 4));
    expect(c, emit(c, OP_fold, w, 0, f, 5, graph_type_of(c->g, DT_F64, 1, INTS(4))), 4,
           LIST(0, 4, 0, 4));
    check_free(c);
}

/* ---------------------------------------------------------------- reductions and contractions */

Test(interp, reductions_keep_their_axes) {
    Check *c = check_new(1);
    Value x = floats(c, 2, INTS(2, 3), LIST(1, -2, 3, 4, 5, NAN));
    expect(c, build_reduce(c->g, OP_sum, x, INTS(0), 1), 3, LIST(5, 3, NAN));
    expect(c, build_reduce(c->g, OP_prod, x, INTS(1), 1), 2, LIST(-6, NAN));
    expect(c, build_reduce(c->g, OP_rmax, x, INTS(1), 1), 2, LIST(3, NAN));
    expect(c, build_reduce(c->g, OP_rmin, x, INTS(1), 1), 2, LIST(-2, NAN));
    AttrField axis = attr_int(A_AXIS, 1);
    expect_ints(c, emit(c, OP_argmax, x, 0, &axis, 1, 0), 2, INTS(2, 2));
    expect_ints(c, emit(c, OP_argmin, x, 0, &axis, 1, 0), 2, INTS(1, 2));
    expect_ints(c,
                emit(c, OP_argmax, build_ints(c->g, INTS(4, 9, 9), 3), 0,
                     (AttrField[]){attr_int(A_AXIS, 0)}, 1, 0),
                1, INTS(1));
    check_free(c);
}

Test(interp, dot_in_all_four_forms) {
    Check *c = check_new(1);
    Value a = floats(c, 2, INTS(2, 3), LIST(1, 2, 3, 4, 5, 6)),
          b = floats(c, 2, INTS(3, 2), LIST(1, 0, 2, 1, 0, 3));
    Value at = floats(c, 2, INTS(3, 2), LIST(1, 4, 2, 5, 3, 6)),
          bt = floats(c, 2, INTS(2, 3), LIST(1, 2, 0, 0, 1, 3));
    for (int form = 0; form < 4; form++)
        expect(c, build_dot(c->g, form & 1 ? at : a, form & 2 ? bt : b, form & 1, form & 2), 4,
               LIST(5, 11, 14, 23));
    check_free(c);
}

Test(interp, conv_with_stride_dilation_padding_and_groups) {
    Check *c = check_new(1);
    AttrField f[] = {attr_ints(A_STRIDES, INTS(2), 1), attr_ints(A_DILATIONS, INTS(2), 1),
                     attr_ints(A_LOW, INTS(1), 1), attr_ints(A_HIGH, INTS(2), 1),
                     attr_int(A_GROUPS, 2)};
    Value x = floats(c, 3, INTS(1, 2, 4), LIST(1, 2, 3, 4, 5, 6, 7, 8)),
          w = floats(c, 3, INTS(2, 1, 2), LIST(1, 10, 2, 3));
    /* positions -1, 1, 3 and two further: y0 = [0+10*2, 2+10*4, 4+0], y1 = [3*6, 2*6+3*8, 2*8] */
    Value y = emit(c, OP_conv, x, w, f, 5, 0);
    expect(c, y, 6, LIST(20, 42, 4, 18, 36, 16));
    Value ones = build_splat(c->g, graph_type_of(c->g, DT_F64, 3, INTS(1, 2, 3)), 1);
    expect(c, emit(c, OP_conv_dx, ones, w, f, 5, graph_type_of(c->g, DT_F64, 3, INTS(1, 2, 4))), 8,
           LIST(0, 11, 0, 11, 0, 5, 0, 5));
    expect(c, emit(c, OP_conv_dw, x, ones, f, 5, graph_type_of(c->g, DT_F64, 3, INTS(2, 1, 2))), 4,
           LIST(6, 6, 14, 14));
    check_free(c);
}

/* ---------------------------------------------------------------- gathers and scatters */

Test(interp, gathers_pick_and_scatters_put) {
    Check *c = check_new(1);
    Value x = floats(c, 2, INTS(2, 3), LIST(1, 2, 3, 4, 5, 6));
    Value idx = build_const(c->g, graph_type_of(c->g, DT_I64, 2, INTS(2, 1)), INTS(2, 0));
    AttrField axis = attr_int(A_AXIS, 1), batch = attr_int(A_BATCH, 1);
    expect(c, emit(c, OP_gather, x, build_ints(c->g, INTS(2, 2), 2), &axis, 1, 0), 4,
           LIST(3, 3, 6, 6));
    expect(c, emit(c, OP_take, x, idx, &axis, 1, 0), 2, LIST(3, 4));
    expect(c, emit(c, OP_gather_nd, x, idx, &batch, 1, 0), 2, LIST(3, 4));
    const double results[][6] = {{1, 2, 8, 9, 5, 6},
                                 {1, 2, 5, 5, 5, 6},
                                 {1, 2, 15, 20, 5, 6},
                                 {1, 2, 3, 4, 5, 6},
                                 {1, 2, 5, 5, 5, 6}};
    Value upd = build_splat(c->g, graph_type_of(c->g, DT_F64, 2, INTS(2, 1)), 5);
    for (int mode = SCATTER_ADD; mode <= SCATTER_MAX; mode++) {
        AttrField f[] = {axis, attr_int(A_MODE, mode)};
        expect(c, graph_emit(c->g, OP_put, (Value[]){x, idx, upd}, 3, graph_attr(c->g, f, 2), 0), 6,
               results[mode]);
    }
    AttrField f[] = {attr_int(A_AXIS, 0), attr_int(A_MODE, SCATTER_ADD)};
    Value twice = build_ints(c->g, INTS(1, 1), 2);
    expect(c, graph_emit(c->g, OP_scatter, (Value[]){x, twice, x}, 3, graph_attr(c->g, f, 2), 0), 6,
           LIST(1, 2, 3, 9, 12, 15));
    check_free(c);
}

Test(interp, an_index_out_of_range_is_an_error) {
    Check *c = check_new(1);
    AttrField axis = attr_int(A_AXIS, 0);
    Tensor t;
    Value v =
        emit(c, OP_gather, vector(c, 2, LIST(1, 2)), build_ints(c->g, INTS(0, 2), 2), &axis, 1, 0);
    char *text = NULL;
    size_t size;
    FILE *errors = open_memstream(&text, &size);
    graph_add_root(c->g, ENTRY_EVAL, false, "y", v);
    cr_assert(!interp_entry(c->g, ENTRY_EVAL, &(InterpEnv){0}, c->arena, &t, errors));
    fclose(errors);
    cr_assert(strstr(text, "gather") && strstr(text, "index 2 is outside [0, 2)"), "%s", text);
    free(text);
    check_free(c);
}

/* ---------------------------------------------------------------- macros, folding, storage */

Test(interp, cross_entropy_ignores_what_does_not_count) {
    Check *c = check_new(1);
    Value x = floats(c, 2, INTS(2, 2), LIST(0, log(3), 5, 5)),
          labels = build_const(c->g, graph_type_of(c->g, DT_I64, 2, INTS(2, 1)), INTS(1, -100));
    AttrField f[] = {attr_int(A_AXIS, 1), attr_int(A_IGNORE, -100)};
    Value d[2], y = emit(c, OP_xent, x, labels, f, 2, 0);
    expect(c, y, 2, LIST(-log(0.75), 0));
    op_vjp(c->g, y, build_splat(c->g, graph_node(c->g, y)->type, 2), d);
    expect(c, d[0], 4, LIST(0.5, -0.5, 0, 0));
    check_free(c);
}

Test(interp, macros_are_evaluated_through_their_expansion) {
    Check *c = check_new(1);
    AttrField f[] = {attr_ints(A_AXES, INTS(1), 1), attr_float(A_EPS, 0)};
    Value x = floats(c, 2, INTS(2, 2), LIST(0, log(3), 4, 4));
    expect(c, emit(c, OP_softmax, x, 0, f, 1, 0), 4, LIST(0.25, 0.75, 0.5, 0.5));
    expect(c, emit(c, OP_layer_norm, floats(c, 2, INTS(1, 2), LIST(3, 7)), 0, f, 2, 0), 2,
           LIST(-1, 1));
    check_free(c);
}

Test(interp, folds_constants_and_nothing_else) {
    Check *c = check_new(1);
    Tensor t;
    Value shape = build_ints(c->g, INTS(2, 3, 4), 3), x = check_floats(c, 1, INTS(3));
    Value last = build_slice(c->g, shape, INTS(1), INTS(2), NULL);
    cr_assert(interp_fold(c->g, build_binary(c->g, OP_mul, last, last), c->arena, &t, 100));
    cr_assert(type_elems(&t.type) == 2 && t.u.i[0] == 9 && t.u.i[1] == 16);
    cr_assert(!interp_fold(c->g, build_unary(c->g, OP_neg, x), c->arena, &t, 100));
    cr_assert(!interp_fold(c->g, shape, c->arena, &t, 2));
    check_free(c);
}

Test(interp, tensors_round_to_nearest_even_in_storage) {
    Check *c = check_new(1);
    Type t = {.dtype = DT_F16, .rank = 1, .dims = {5}};
    double elements[] = {1 + 0x1p-11, 1 + 0x1.8p-10, -0x1p-25, 65519, 1e-7};
    uint16_t bits[5];
    tensor_to_bytes(&(Tensor){.type = t, .u.f = elements}, bits);
    cr_assert(memcmp(bits, (uint16_t[]){0x3c00, 0x3c02, 0x8000, 0x7bff, 0x0002}, sizeof bits) == 0);
    Tensor back = tensor_from_bytes(c->arena, t, bits);
    cr_assert(back.u.f[1] == 1 + 0x1p-9 && back.u.f[3] == 65504 && back.u.f[4] == 0x1p-23);
    check_free(c);
}
