/* Tests that the generated code's scalar math is within a few units in the last place of the C
 * library's in double, over all floats in steps, and right for infinities, NaN, zeros of both
 * signs, subnormals and huge arguments. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#define TC_FN static inline __attribute__((unused))
#include "../../codegen/prelude/math.h"
#undef expf

static double units_off(float got, double want) {
    const float w = (float)want, a = w < 0 ? -w : w;
    if (w != w || got != got) return (w != w) == (got != got) ? 0 : 1e30;
    if (isinf(w) || isinf(got)) return got == w ? 0 : 1e30;
    if (w == 0 && got == 0) return tc_bits(w) == tc_bits(got) ? 0 : 1e30;
    const double unit = tc_bits(a) < 0x00800000u ? 1.401298464324817e-45
                                                 : (double)tc_float(tc_bits(a) + 1) - (double)a;
    return fabs((double)got - want) / unit;
}

typedef float FloatFn(float);
typedef double DoubleFn(double);
typedef struct Row {
    const char *name;
    FloatFn *f;
    DoubleFn *d;
    double limit;
} Row;

static void check(const Row *r, float x) {
    const double off = units_off(r->f(x), r->d((double)x));
    cr_assert(off <= r->limit, "%s(%.9g) is %.9g, not %.9g: %.3g units", r->name, (double)x,
              (double)r->f(x), r->d((double)x), off);
}

Test(math, functions_of_one_argument_are_within_a_few_units) {
    static const Row rows[] = {{"exp", tc_expf, exp, 2},       {"expm1", tc_expm1f, expm1, 2},
                               {"log", tc_logf, log, 1.5},     {"log1p", tc_log1pf, log1p, 2},
                               {"sin", tc_sinf, sin, 3},       {"cos", tc_cosf, cos, 3},
                               {"tan", tc_tanf, tan, 5},       {"asin", tc_asinf, asin, 3},
                               {"acos", tc_acosf, acos, 2},    {"atan", tc_atanf, atan, 3},
                               {"sinh", tc_sinhf, sinh, 3},    {"cosh", tc_coshf, cosh, 3},
                               {"tanh", tc_tanhf, tanh, 3},    {"asinh", tc_asinhf, asinh, 3},
                               {"acosh", tc_acoshf, acosh, 3}, {"atanh", tc_atanhf, atanh, 3},
                               {"erf", tc_erff, erf, 2},       {"floor", tc_floorf, floor, 0},
                               {"ceil", tc_ceilf, ceil, 0},    {"rint", tc_rintf, rint, 0},
                               {"trunc", tc_truncf, trunc, 0}, {"sqrt", tc_sqrtf, sqrt, 0.5}};
    static const uint32_t special[] = {0,           0x80000000u, 0x7f800000u, 0xff800000u,
                                       0x7fc00000u, 0x3f800000u, 0xbf800000u, 1,
                                       0x80000001u, 0x7f7fffffu, 0xff7fffffu};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t s = 0; s < sizeof special / sizeof *special; s++)
            check(&rows[i], tc_float(special[s]));
        for (uint64_t u = 0; u < UINT64_C(1) << 32; u += 49999)
            check(&rows[i], tc_float((uint32_t)u));
    }
}

Test(math, pow_and_fmod_agree_with_the_library_in_double) {
    static const float special[] = {0,   -0.0f,  1,     -1,         2,      -2,       3,
                                    -3,  0.5f,   -0.5f, 1e30f,      -1e30f, INFINITY, -INFINITY,
                                    NAN, 1e-40f, 7,     16777217.f, 1e-20f, -7};
    uint32_t s = 1;
    for (int i = 0; i < 100000; i++) {
        float x = special[i % 20], y = special[i / 20 % 20];
        if (i >= 400) {
            s = s * 1664525u + 1013904223u,
            x = i & 1 ? tc_float(0x3f000000u + (s >> 9)) : tc_float(s);
            s = s * 1664525u + 1013904223u,
            y = (float)(int32_t)s * (1.0f / 2147483648.0f) * (i % 3 ? 10 : 100);
            if (i % 5 == 0) y = rintf(y);
        }
        cr_assert(units_off(tc_powf(x, y), pow((double)x, (double)y)) <= 1,
                  "pow(%.9g, %.9g) is %.9g", (double)x, (double)y, (double)tc_powf(x, y));
        cr_assert_eq(units_off(tc_fmodf(x, y), fmod((double)x, (double)y)), 0,
                     "fmod(%.9g, %.9g) is %.9g", (double)x, (double)y, (double)tc_fmodf(x, y));
    }
}

Test(math, storage_conversions_round_to_nearest_even) {
    for (uint64_t u = 0; u < UINT64_C(1) << 32; u += 4999) {
        const float x = tc_float((uint32_t)u);
        const uint16_t h = tc_to_bf16(x);
        if (x != x) {
            cr_assert(tc_load_bf16(h) != tc_load_bf16(h) &&
                      tc_load_f16(tc_to_f16(x)) != tc_load_f16(tc_to_f16(x)));
            continue;
        }
        const float below = tc_load_bf16((uint16_t)(u >> 16)),
                    above = tc_load_bf16((uint16_t)((u >> 16) + 1));
        const double to_below = fabs((double)x - (double)below),
                     to_above = fabs((double)above - (double)x);
        if (!isinf(x) && !isinf(above))
            cr_assert(to_below < to_above   ? tc_load_bf16(h) == below
                      : to_above < to_below ? tc_load_bf16(h) == above
                                            : (h & 1) == 0,
                      "bf16 of %.9g", (double)x);
#ifdef __FLT16_MAX__
        const _Float16 f = (_Float16)x;
        uint16_t bits;
        __builtin_memcpy(&bits, &f, 2);
        cr_assert_eq(tc_to_f16(x), bits, "f16 of %.9g", (double)x);
#endif
    }
    for (uint32_t h = 0; h < 65536; h++)
        if ((h & 0x7c00u) != 0x7c00u) cr_assert_eq(tc_to_f16(tc_load_f16((uint16_t)h)), h);
}
