/* Tests of storage types: 16-bit floats against their definition, what converts into what. */
#include "rt_dtype.h"
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static double read16(trainc_dtype t, uint16_t bits) { return rt_read_float(&bits, t, 0); }

static uint16_t write16(trainc_dtype t, double x) {
    uint16_t bits;
    rt_write_float(&bits, t, 0, x);
    return bits;
}

/* Every finite value comes back; the midpoint of two neighbours goes to the even one, and beside it
 * to the nearer. */
static void check_type(trainc_dtype t, uint16_t infinity) {
    for (uint32_t i = 0; i < infinity; i++) {
        uint16_t low = (uint16_t)i, next = (uint16_t)(i + 1);
        double a = read16(t, low),
               b = i + 1 < infinity ? read16(t, next) : 2 * a - read16(t, (uint16_t)(low - 1)),
               mid = a + (b - a) / 2;
        uint16_t even = low & 1 ? next : low;
        cr_assert_eq(write16(t, a), low);
        cr_assert_eq(write16(t, mid), even, "midpoint above %04x", low);
        cr_assert_eq(write16(t, nextafter(mid, 0)), low);
        cr_assert_eq(write16(t, nextafter(mid, (double)INFINITY)), next);
        cr_assert_eq(write16(t, -a), low | 0x8000);
    }
    cr_assert_eq(write16(t, (double)INFINITY), infinity);
    cr_assert(isnan(read16(t, write16(t, (double)NAN))));
}

Test(dtype, half_rounds_to_nearest_even_everywhere) { check_type(TRAINC_F16, 0x7c00); }
Test(dtype, bfloat16_rounds_to_nearest_even_everywhere) { check_type(TRAINC_BF16, 0x7f80); }

Test(dtype, half_has_the_values_of_ieee_754) {
    cr_assert_eq(read16(TRAINC_F16, 0x3c00), 1.0);
    cr_assert_eq(read16(TRAINC_F16, 0x7bff), 65504.0);
    cr_assert_eq(read16(TRAINC_F16, 0x0001), ldexp(1, -24));
    cr_assert_eq(read16(TRAINC_F16, 0xc000), -2.0);
    cr_assert_eq(read16(TRAINC_BF16, 0x4049), 3.140625);
}

Test(dtype, integers_narrow_only_where_every_value_fits) {
    const int64_t wide[] = {0, 127, -128, 128};
    int8_t narrow[4];
    uint64_t big = UINT64_MAX;
    int64_t out;
    cr_assert_eq(rt_convert(narrow, TRAINC_I8, wide, TRAINC_I64, 3), -1);
    cr_assert(narrow[1] == 127 && narrow[2] == -128);
    cr_assert_eq(rt_convert(narrow, TRAINC_I8, wide, TRAINC_I64, 4), 3);
    cr_assert_eq(rt_convert(&out, TRAINC_I64, &big, TRAINC_U64, 1), 0);
}

Test(dtype, unsigned_tokens_are_not_read_as_signed) {
    const uint16_t ids[] = {40000, 65535};
    int64_t out[2];
    cr_assert_eq(rt_convert(out, TRAINC_I64, ids, TRAINC_U16, 2), -1);
    cr_assert(out[0] == 40000 && out[1] == 65535);
}

Test(dtype, conversions_that_lose_are_refused) {
    cr_assert(rt_converts(TRAINC_F64, TRAINC_F32) && rt_converts(TRAINC_BF16, TRAINC_F32) &&
              rt_converts(TRAINC_U8, TRAINC_F32));
    cr_assert(rt_converts(TRAINC_U16, TRAINC_I64) && rt_converts(TRAINC_I64, TRAINC_I32));
    cr_assert_not(rt_converts(TRAINC_F32, TRAINC_I64));
    cr_assert_not(rt_converts(TRAINC_I32, TRAINC_F32));
    cr_assert_not(rt_converts(TRAINC_I64, TRAINC_F64));
    cr_assert_not(rt_converts(TRAINC_U16, TRAINC_BF16));
}
