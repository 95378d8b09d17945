/* Scalar float math without a library: straight-line code, so that compilers vectorize the loops around it. Within a few units in
 * the last place, right for infinities, NaN and arguments of any size. Polynomials are near-minimax fits of their own intervals.
 * A sign is given last, after every choice: clang 19 with AVX-512 at -O1 makes of a choice between x and a number given x's sign
 * one wrong vpternlog. */
TC_FN uint32_t tc_bits(float x) { union { float f; uint32_t u; } c; c.f = x; return c.u; }
TC_FN float tc_float(uint32_t u) { union { float f; uint32_t u; } c; c.u = u; return c.f; }
TC_FN uint64_t tc_bits64(double x) { union { double f; uint64_t u; } c; c.f = x; return c.u; }
TC_FN double tc_float64(uint64_t u) { union { double f; uint64_t u; } c; c.u = u; return c.f; }
TC_FN float tc_fabsf(float x) { return tc_float(tc_bits(x) & 0x7fffffffu); }
TC_FN float tc_with_sign(float x, float sign) { return tc_float((tc_bits(x) & 0x7fffffffu) | (tc_bits(sign) & 0x80000000u)); }
TC_FN float tc_sqrtf(float x) { return __builtin_sqrtf(x); }
TC_FN float tc_power_of_two(int n) { return tc_float((uint32_t)(n + 127) << 23); } /* -126 <= n <= 127 */

/* Nearest integers: adding and taking away 2^23 rounds to even; larger numbers are integers. */
TC_FN float tc_rintf(float x)
{
    const float a = tc_fabsf(x), r = (a + 8388608.0f) - 8388608.0f;
    return tc_with_sign(a < 8388608.0f ? r : a, x);
}
TC_FN float tc_truncf(float x)
{
    const float a = tc_fabsf(x), r = (a + 8388608.0f) - 8388608.0f, t = r > a ? r - 1.0f : r;
    return tc_with_sign(a < 8388608.0f ? t : a, x);
}
TC_FN float tc_floorf(float x) { const float t = tc_truncf(x); return t > x ? t - 1.0f : t; }
TC_FN float tc_ceilf(float x) { const float t = tc_truncf(x); return t < x ? tc_with_sign(t + 1.0f, x) : t; }

/* x = n ln2 + r, |r| <= ln2 / 2: returns e^r - 1, *n. Clamped: outside, the result overflows or vanishes all the same. */
TC_FN float tc_exp_reduced(float x, int *n)
{
    const float c = x > 89.5f ? 89.5f : x < -104.5f ? -104.5f : x;
    const float shifted = c * 1.442695041f + 12582912.0f, k = shifted - 12582912.0f;
    const float r = (c - k * 0.693145751953125f) - k * 1.42860682030941723e-6f;
    float p = 1.381445908e-03f;
    p = p * r + 8.368781225e-03f;
    p = p * r + 4.166839438e-02f;
    p = p * r + 1.666652010e-01f;
    p = p * r + 4.999999341e-01f;
    *n = (int)(tc_bits(shifted) & 0x7fffffu) - 0x400000;
    *n = *n > 130 ? 130 : *n < -152 ? -152 : *n;             /* NaN: any number, the product is NaN */
    return p * (r * r) + r;
}
TC_FN float tc_expf(float x)
{
    int n;
    const float p = tc_exp_reduced(x, &n);
    const int half = n >> 1;
    return (p + 1.0f) * tc_power_of_two(half) * tc_power_of_two(n - half);
}
TC_FN float tc_expm1f(float x)
{
    int n;
    const float p = tc_exp_reduced(x, &n), t = tc_power_of_two((n < -64 ? -64 : n) - 1);
    const float y = (t * p + (t - 0.5f)) * 2.0f;
    return x > 88.73f ? INFINITY : tc_with_sign(tc_fabsf(x) < 1e-4f ? x + x * x * 0.5f : y, x);
}

/* log(1 + f) of a mantissa in [sqrt(1/2), sqrt(2)): f - f^2/2 + s (f^2/2 + R(s^2)), s = f / (2 + f) */
TC_FN float tc_log_mantissa(float f)
{
    const float s = f / (2.0f + f), z = s * s, h = 0.5f * f * f;
    const float r = z * (6.666666560e-01f + z * (4.000034558e-01f + z * (2.853660230e-01f + z * 2.359634254e-01f)));
    return f - (h - s * (h + r));
}
TC_FN float tc_logf(float x)
{
    const int is_small = x < 1.17549435e-38f;
    const uint32_t u = tc_bits(is_small ? x * 8388608.0f : x) - 0x3f3504f3u; /* from sqrt(1/2) */
    const int e = ((int)u >> 23) - (is_small ? 23 : 0);
    const float m = tc_float((u & 0x7fffffu) + 0x3f3504f3u), k = (float)e;
    const float y = (tc_log_mantissa(m - 1.0f) + k * 1.42860682030941723e-6f) + k * 0.693145751953125f;
    return x > 0.0f ? (x < INFINITY ? y : x) : x == 0.0f ? -INFINITY : NAN;
}
TC_FN float tc_log1pf(float x)
{
    const float u = 1.0f + x, d = u - 1.0f, lost = (x - d) / u;
    const float y = tc_logf(u) + (u > 0.0f && u < INFINITY ? lost : 0.0f);
    return d == 0.0f ? x : y;
}

/* |x| = quadrant * pi/2 + r, |r| <= pi/4, by integer multiplication with the bits of 2/pi that matter (Payne and Hanek). */
TC_FN float tc_quadrant(float x, int *quadrant)
{
    const uint32_t two_over_pi[9] = {0, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu, 0xdebbc561u};
    const float a = tc_fabsf(x);
    const int is_small = a < 0.78539816f, is_big = !(a < INFINITY);
    const uint32_t u = is_small || is_big ? 0x3f800000u : tc_bits(a), m = (u & 0x7fffffu) | 0x800000u;
    const int first = (int)(u >> 23) - 150 - 2 + 32, word = first >> 5, shift = first & 31; /* the bit worth 4 and up drops out */
    const uint64_t high = (uint64_t)two_over_pi[word] << 32 | two_over_pi[word + 1];
    const uint64_t low = (uint64_t)two_over_pi[word + 2] << 32 | two_over_pi[word + 3];
    const uint64_t w = (high << shift) | ((low >> 32 << shift) >> 32);
    const uint64_t v = (low << shift) >> 32;
    const uint64_t p = m * w + (m * v >> 32), q = (p + 0x2000000000000000u) >> 62;
    const float r = (float)(int64_t)(p - (q << 62)) * 3.40612158008655459e-19f; /* pi/2 * 2^-62 */
    *quadrant = is_small ? 0 : (int)(q & 3u);
    return is_big ? NAN : is_small ? a : r;
}
TC_FN float tc_sin_poly(float r)
{
    const float z = r * r;
    return r + r * z * (-1.666666664e-01f + z * (8.333329281e-03f + z * (-1.983930446e-04f + z * 2.718046860e-06f)));
}
TC_FN float tc_cos_poly(float r)
{
    const float z = r * r;
    return 1.0f - (0.5f * z - z * z * (4.166664675e-02f + z * (-1.388736142e-03f + z * 2.443772737e-05f)));
}
TC_FN float tc_sinf(float x)
{
    int q;
    const float r = tc_quadrant(x, &q), s = tc_sin_poly(r), c = tc_cos_poly(r), y = q & 1 ? c : s;
    return tc_float(tc_bits(y) ^ (tc_bits(x) & 0x80000000u) ^ (uint32_t)(q & 2) << 30);
}
TC_FN float tc_cosf(float x)
{
    int q;
    const float r = tc_quadrant(x, &q), s = tc_sin_poly(r), c = tc_cos_poly(r), y = q & 1 ? s : c;
    return tc_float(tc_bits(y) ^ (uint32_t)((q + 1) & 2) << 30);
}
TC_FN float tc_tanf(float x)
{
    int q;
    const float r = tc_quadrant(x, &q), s = tc_sin_poly(r), c = tc_cos_poly(r);
    const float y = (q & 1 ? -c : s) / (q & 1 ? s : c);
    return tc_float(tc_bits(y) ^ (tc_bits(x) & 0x80000000u));
}

/* asin(a) of 0 <= a <= 1/2 */
TC_FN float tc_asin_poly(float a)
{
    const float z = a * a;
    return a + a * z * (1.666675448e-01f + z * (7.495207860e-02f + z * (4.548268949e-02f + z * (2.411394073e-02f + z * 4.228528055e-02f))));
}
TC_FN float tc_asinf(float x)
{
    const float a = tc_fabsf(x), p = tc_asin_poly(a > 0.5f ? tc_sqrtf((1.0f - a) * 0.5f) : a);
    return !(a <= 1.0f) ? NAN : tc_with_sign(a > 0.5f ? 1.57079637f - (2.0f * p + 4.37113883e-8f) : p, x);
}
TC_FN float tc_acosf(float x)
{
    const float a = tc_fabsf(x), p = tc_asin_poly(a > 0.5f ? tc_sqrtf((1.0f - a) * 0.5f) : a);
    const float near = 1.57079637f - (tc_with_sign(p, x) + 4.37113883e-8f);
    const float far = x > 0.0f ? 2.0f * p : 3.14159274f - (2.0f * p + 8.74227766e-8f);
    return !(a <= 1.0f) ? NAN : a > 0.5f ? far : near;
}
/* |x| > tan(3/8 pi): pi/2 - atan(1/x); > tan(pi/8): pi/4 + atan((x - 1) / (x + 1)) */
TC_FN float tc_atanf(float x)
{
    const float a = tc_fabsf(x);
    const int is_far = a > 2.41421356f, is_mid = a > 0.414213562f;
    const float n = is_far ? -1.0f : is_mid ? a - 1.0f : a, d = is_far ? a : is_mid ? a + 1.0f : 1.0f, t = n / d, z = t * t;
    const float p = t * z * (-3.333294856e-01f + z * (1.997768544e-01f + z * (-1.387738892e-01f + z * 8.052714419e-02f)));
    const float base = is_far ? 1.57079637f : is_mid ? 0.785398185f : 0.0f, rest = is_far ? -4.37113883e-8f : is_mid ? -2.18556941e-8f : 0.0f;
    return tc_with_sign(x != x ? x : (base + (t + (p + rest))), x);
}

TC_FN float tc_sinhf(float x)
{
    const float a = tc_fabsf(x), t = tc_expm1f(a > 80.0f ? 80.0f : a), h = tc_expf(a * 0.5f);
    const float y = a > 16.0f ? 0.5f * h * h : 0.5f * (t + t / (t + 1.0f));
    return tc_with_sign(x != x ? x : (a < 1e-4f ? a : y), x);
}
TC_FN float tc_coshf(float x)
{
    const float a = tc_fabsf(x), e = tc_expf(a > 80.0f ? 80.0f : a), h = tc_expf(a * 0.5f);
    return x != x ? x : a > 16.0f ? 0.5f * h * h : 0.5f * e + 0.5f / e;
}
TC_FN float tc_tanhf(float x)
{
    const float a = tc_fabsf(x), t = tc_expm1f(2.0f * (a > 10.0f ? 10.0f : a));
    return tc_with_sign(x != x ? x : (t / (t + 2.0f)), x);
}
TC_FN float tc_asinhf(float x)
{
    const float a = tc_fabsf(x), b = a > 1e9f ? 1.0f : a, s = b * b;
    const float small = tc_log1pf(b + s / (1.0f + tc_sqrtf(1.0f + s))), large = tc_logf(a) + 0.693147181f;
    return tc_with_sign(x != x ? x : (a > 1e9f ? large : small), x);
}
TC_FN float tc_acoshf(float x)
{
    const float t = x - 1.0f, b = x > 1e9f ? 1.0f : t;
    const float small = tc_log1pf(b + tc_sqrtf(2.0f * b + b * b)), large = tc_logf(x) + 0.693147181f;
    return x < 1.0f ? NAN : x > 1e9f ? large : small;
}
TC_FN float tc_atanhf(float x)
{
    const float a = tc_fabsf(x);
    return x != x || a > 1.0f ? NAN : tc_with_sign(0.5f * tc_log1pf(2.0f * a / (1.0f - a)), x);
}

/* Near 0 a polynomial in x^2, from 1 on 1 - exp(-g(x)), g = -log(erfc). */
TC_FN float tc_erff(float x)
{
    const float a = tc_fabsf(x), z = x * x, b = a > 4.0f ? 4.0f : a;
    float p = 7.854215657e-05f;
    p = p * z + -8.010309516e-04f;
    p = p * z + 5.188342279e-03f;
    p = p * z + -2.685382077e-02f;
    p = p * z + 1.128358541e-01f;
    p = p * z + -3.761262586e-01f;
    p = p * z + 1.283791657e-01f;
    float g = -2.514372974e-07f;
    g = g * b + 2.531636208e-05f;
    g = g * b + -4.637973564e-04f;
    g = g * b + 4.282414022e-03f;
    g = g * b + -2.537362039e-02f;
    g = g * b + 1.086390813e-01f;
    g = g * b + 6.330395465e-01f;
    g = g * b + 1.129661186e+00f;
    g = g * b + -2.043655034e-04f;
    return tc_with_sign(x != x ? x : a < 1.0f ? x + x * p : 1.0f - tc_expf(-g), x);
}

/* x^y = 2^(y log2 |x|) in double, then the sign and the special cases of C. */
TC_FN float tc_powf(float x, float y)
{
    const double a = (double)tc_fabsf(x);
    const uint64_t u = tc_bits64(a) - 0x3fe6a09e667f3bcdu;
    const double m = tc_float64((u & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu), s = (m - 1.0) / (m + 1.0), z = s * s;
    const double odd = s + s * z * (1.0 / 3 + z * (1.0 / 5 + z * (1.0 / 7 + z * (1.0 / 9 + z * (1.0 / 11 + z * (1.0 / 13))))));
    const double log2 = odd * 2.88539008177792681 + (double)((int)(u >> 32) >> 20);
    const double raw = (double)y * log2, t = raw > 200.0 ? 200.0 : raw < -200.0 ? -200.0 : raw;
    const double shifted = t + 6755399441055744.0, k = shifted - 6755399441055744.0, f = (t - k) * 0.693147180559945309;
    double p = 1.0 / 362880;
    p = p * f + 1.0 / 40320;
    p = p * f + 1.0 / 5040;
    p = p * f + 1.0 / 720;
    p = p * f + 1.0 / 120;
    p = p * f + 1.0 / 24;
    p = p * f + 1.0 / 6;
    p = p * f + 0.5;
    p = p * f + 1.0;
    p = p * f + 1.0;
    const int n = (int)(tc_bits64(shifted) & 0x7ffu), e = n >= 1024 ? n - 2048 : n;
    const float r = (float)(p * tc_float64((uint64_t)(e + 1023) << 52));
    const float b = tc_fabsf(y), half = y * 0.5f;
    const int is_integer = tc_truncf(y) == y && b < INFINITY, is_odd = is_integer && tc_truncf(half) != half && b < 16777216.0f;
    const float zero_inf = y < 0.0f ? (a == 0.0 ? INFINITY : 0.0f) : (a == 0.0 ? 0.0f : INFINITY);
    const float limit = a == 1.0 ? 1.0f : (a > 1.0) == (y > 0.0f) ? INFINITY : 0.0f;
    const float value = a == 0.0 || !(a < (double)INFINITY) ? zero_inf : !(b < INFINITY) ? limit : r;
    const float with_sign = is_odd && (tc_bits(x) >> 31) ? -value : value;
    const float real = x < 0.0f && !is_integer && a < (double)INFINITY && b < INFINITY ? NAN : with_sign;
    return y == 0.0f || x == 1.0f ? 1.0f : x != x || y != y ? NAN : real;
}
/* Exact: the quotient in steps of 28 bits, every remainder a double without rounding. */
TC_FN float tc_fmodf(float x, float y)
{
    const double d = (double)tc_fabsf(y);
    double r = (double)tc_fabsf(x);
    for (int step = 9; step >= 0; step--) {
        const double unit = d * tc_float64((uint64_t)(28 * step + 1023) << 52), t = r / unit, q = (double)(int64_t)(t >= 1.0 && t < 1e9 ? t : 0.0);
        r = r - q * unit;
        r = r < 0.0 ? r + unit : r >= unit ? r - unit : r;
    }
    const float a = tc_fabsf(x);
    return tc_with_sign(a < INFINITY && d > 0.0 ? (d < (double)INFINITY ? (float)r : a) : NAN, x);
}

#define expf tc_expf
#define expm1f tc_expm1f
#define logf tc_logf
#define log1pf tc_log1pf
#define sqrtf tc_sqrtf
#define fabsf tc_fabsf
#define floorf tc_floorf
#define ceilf tc_ceilf
#define rintf tc_rintf
#define truncf tc_truncf
#define fmodf tc_fmodf
#define sinf tc_sinf
#define cosf tc_cosf
#define tanf tc_tanf
#define asinf tc_asinf
#define acosf tc_acosf
#define atanf tc_atanf
#define sinhf tc_sinhf
#define coshf tc_coshf
#define tanhf tc_tanhf
#define asinhf tc_asinhf
#define acoshf tc_acoshf
#define atanhf tc_atanhf
#define erff tc_erff
#define powf tc_powf

/* Storage types, floor division of indices, and the counter-based generator: what statements of kernels call. */
TC_FN float tc_load_bf16(uint16_t h) { return tc_float((uint32_t)h << 16); }
TC_FN uint16_t tc_to_bf16(float x)
{
    const uint32_t u = tc_bits(x);
    return (uint16_t)(x != x ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
TC_FN float tc_load_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, body = (uint32_t)(h & 0x7fffu) << 13;
    const float x = tc_float(body) * 5.19229686e33f;         /* 2^112: also what makes subnormals right */
    return tc_float(tc_bits(body >= 0x0f800000u ? tc_float(body | 0x7f800000u) : x) | sign);
}
TC_FN uint16_t tc_to_f16(float x)
{
    const uint32_t u = tc_bits(x), a = u & 0x7fffffffu;
    const uint32_t small = tc_bits(tc_float(a) + 0.5f) - 0x3f000000u; /* the addition rounds to a multiple of 2^-24 */
    const uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    const uint32_t h = a > 0x7f800000u ? 0x7e00u : a >= 0x477ff000u ? 0x7c00u : a < 0x38800000u ? small : normal;
    return (uint16_t)(h | (u >> 16 & 0x8000u));
}
/* Floats of eight bits and fewer: the columns of ir/small_float.def. */
TC_FN float tc_load_f8(uint32_t code, uint32_t sign, int man, int least, uint32_t largest, uint32_t above, uint32_t nan)
{
    const uint32_t magnitude = code & (sign ? sign - 1u : 0xffu), e = magnitude >> man, m = magnitude & ((1u << man) - 1u);
    const float normal = tc_float(((e + (uint32_t)(least + 126)) << 23) | (m << (23 - man)));
    const float small = sign ? (float)m * tc_float((uint32_t)(least - man + 127) << 23) : tc_float(0x00400000u);
    const float x = e == 0 ? small : normal, odd = ((above != nan) & (magnitude == above)) ? INFINITY : NAN;
    const float y = magnitude > largest ? odd : ((code == nan) & (above > largest)) ? NAN : x;
    return (code & sign) != 0 ? -y : y;
}
TC_FN uint8_t tc_to_f8(float x, uint32_t sign, int man, int least, uint32_t largest, uint32_t above, uint32_t nan)
{
    const uint32_t u = tc_bits(x), a = u & 0x7fffffffu;
    const int e = (int)(a >> 23) - 127, from = e < least ? least : e;
    const float scaled = e < least ? tc_float(a) * tc_float((uint32_t)(man - least + 127) << 23)
                                   : tc_float((a & 0x7fffffu) | 0x3f800000u) * (float)(1u << man);
    const uint32_t q = ((uint32_t)(from - least) << man) + (uint32_t)rintf(scaled), code = q > largest ? above : q;
    const uint32_t s = (u >> 31) != 0 ? sign : 0u, one_zero = (nan == sign) & (above > largest) & (code == 0);
    return (uint8_t)(a > 0x7f800000u ? nan : one_zero ? 0u : code | s);
}
TC_FN uint64_t tc_to_u64(float x) { return x >= 9223372036854775808.0f ? (uint64_t)x : (uint64_t)(int64_t)x; }
TC_FN int64_t tc_floor_div(int64_t a, int64_t b) { const int64_t q = a / b; return q - (a - q * b < 0); }
TC_FN int64_t tc_floor_mod(int64_t a, int64_t b) { const int64_t r = a % b; return r < 0 ? r + b : r; }

/* Philox 4x32-10 (Salmon and others, 2011): element e of stream s at step t under a seed, uniform in [0, 1) with 24 bits. */
typedef struct tc_philox { uint32_t c0, c1, c2, c3; } tc_philox;
TC_FN tc_philox tc_philox_round(tc_philox c, uint32_t k0, uint32_t k1)
{
    const uint64_t a = (uint64_t)0xd2511f53u * c.c0, b = (uint64_t)0xcd9e8d57u * c.c2;
    tc_philox n;
    n.c0 = (uint32_t)(b >> 32) ^ c.c1 ^ k0, n.c1 = (uint32_t)b, n.c2 = (uint32_t)(a >> 32) ^ c.c3 ^ k1, n.c3 = (uint32_t)a;
    return n;
}
TC_FN float tc_random(int64_t seed, int64_t step, uint32_t stream, uint64_t element)
{
    const uint32_t k0 = (uint32_t)(uint64_t)seed, k1 = (uint32_t)((uint64_t)seed >> 32), u = 0x9e3779b9u, v = 0xbb67ae85u;
    tc_philox c;
    c.c0 = (uint32_t)(element >> 2), c.c1 = (uint32_t)(element >> 34), c.c2 = (uint32_t)(uint64_t)step, c.c3 = stream;
    c = tc_philox_round(c, k0, k1);                          /* written out: a loop here would keep the loop around from vectorizing */
    c = tc_philox_round(c, k0 + u, k1 + v);
    c = tc_philox_round(c, k0 + 2 * u, k1 + 2 * v);
    c = tc_philox_round(c, k0 + 3 * u, k1 + 3 * v);
    c = tc_philox_round(c, k0 + 4 * u, k1 + 4 * v);
    c = tc_philox_round(c, k0 + 5 * u, k1 + 5 * v);
    c = tc_philox_round(c, k0 + 6 * u, k1 + 6 * v);
    c = tc_philox_round(c, k0 + 7 * u, k1 + 7 * v);
    c = tc_philox_round(c, k0 + 8 * u, k1 + 8 * v);
    c = tc_philox_round(c, k0 + 9 * u, k1 + 9 * v);
    const uint32_t which = (uint32_t)element & 3u, low = which & 1u ? c.c1 : c.c0, high = which & 1u ? c.c3 : c.c2, w = which & 2u ? high : low;
    return (float)(w >> 8) * 5.96046448e-8f;
}
