/* Tests that elements become bytes and come back: every half and bfloat16 value, rounding to
 * nearest even, integers. */
#include "text_helpers.h"
#include <math.h>

Test(dtype, every_half_and_bf16_comes_back_as_the_same_bits) {
    DType types[] = {DT_F16, DT_BF16};
    for (int t = 0; t < 2; t++)
        for (uint32_t bits = 0; bits < 0x10000; bits++) {
            uint16_t in = (uint16_t)bits, out;
            double x = elem_load(types[t], &in);
            if (isnan(x)) continue;
            elem_store(types[t], &out, x);
            cr_assert_eq(in, out, "%s %04x became %04x", dtype_info[types[t]].name, in, out);
        }
}

Test(dtype, bf16_is_the_upper_half_of_a_float) {
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        uint16_t in = (uint16_t)bits;
        uint32_t wide = bits << 16;
        float f;
        memcpy(&f, &wide, sizeof f);
        double x = elem_load(DT_BF16, &in);
        cr_assert(isnan(f) ? isnan(x) : x == (double)f);
    }
}

Test(dtype, half_agrees_with_the_compilers_own) {
#ifdef __FLT16_MAX__
    double xs[] = {0.1,     1.0 / 3, 65504,           65519.99, 65520, 1e-8,  5.9e-8, 3e-8,
                   2.98e-8, 6.1e-5,  6.103515625e-05, -2049,    2051,  1e300, -1e-300};
    for (size_t i = 0; i < sizeof xs / sizeof *xs; i++) {
        _Float16 expected = (_Float16)xs[i];
        uint16_t bits, got;
        memcpy(&bits, &expected, 2);
        elem_store(DT_F16, &got, xs[i]);
        cr_assert_eq(bits, got, "%g: %04x, not %04x", xs[i], got, bits);
    }
#endif
}

Test(dtype, ties_go_to_even_straight_from_double) {
    uint16_t bits;
    elem_store(DT_BF16, &bits, 1 + 0x1p-8);
    cr_assert_eq(bits, 0x3f80);
    elem_store(DT_BF16, &bits, 1 + 3 * 0x1p-8);
    cr_assert_eq(bits, 0x3f82);
    elem_store(DT_BF16, &bits, 1 + 0x1p-8 + 0x1p-40); /* through float this would be a tie */
    cr_assert_eq(bits, 0x3f81);
}

Test(dtype, integers_are_exact_wrap_and_truncate) {
    int64_t big = INT64_MIN + 1, i64;
    elem_store_int(DT_I64, &i64, big);
    cr_assert_eq(elem_load_int(DT_I64, &i64), big);
    uint8_t u8;
    elem_store_int(DT_U8, &u8, 258);
    cr_assert_eq(u8, 2);
    int32_t i32;
    elem_store(DT_I32, &i32, -2.9);
    cr_assert_eq(i32, -2);
    elem_store(DT_I64, &i64, 1e300);
    cr_assert_eq(i64, INT64_MAX);
    elem_store(DT_BOOL, &u8, 0.25);
    cr_assert_eq(u8, 1);
}

Test(dtype, names_and_onnx_codes_find_their_row) {
    for (int d = 1; d < N_DTYPES; d++) {
        cr_assert_eq(dtype_from_name(dtype_info[d].name), d);
        cr_assert_eq(dtype_from_onnx(dtype_info[d].onnx), d);
    }
    cr_assert_eq(dtype_from_name("f33"), DT_NONE);
    cr_assert_eq(dtype_from_onnx(8), DT_NONE);
}

Test(op_table, every_op_is_found_by_its_name_and_lists_its_fields) {
    for (int op = 1; op < N_OPS; op++) {
        cr_assert_eq(op_from_name(op_info[op].name), op);
        cr_assert(op_info[op].shape);
        for (uint32_t i = 0; i < 8; i++)
            cr_assert((op_info[op].attrs[i] != A_NONE) == (i < op_info[op].n_attrs), "%s",
                      op_info[op].name);
    }
    cr_assert_eq(op_from_name("none"), OP_NONE);
    cr_assert_eq(op_info[OP_conv].n_attrs, 5);
    cr_assert_eq(op_info[OP_reshape].n_attrs, 0);
}
