/* rt_dtype.c - storage types at run time: sizes, names in files, and conversion between any two.
 *
 * Every list of types is ir/dtype.def, included as data. Elements are read and written with memcpy, since tensors inside files stand
 * at any byte. Floats pass through double, integers through int64_t. Rounding from double to a 16-bit float goes through float after
 * the sticky bit was kept, so that the result is the nearest even one (no double rounding). */
#include "rt_dtype.h"
#include "../ir/small_float.h"
#include <math.h>
#include <string.h>

enum { CLS_FLT = RT_FLT, CLS_INT = RT_INT, CLS_BOOL = RT_BOOL };
const RtDtype rt_dtype[N_RT_DTYPES] = {
    [0] = {"none", 0, RT_NONE, 0, "", ""},
#define DTYPE(id, text, size, cls, onnx, st, npy, c) [TRAINC_##id] = {#text, size, (RtClass)CLS_##cls, onnx, st, npy},
#include "../ir/dtype.def"
#undef DTYPE
};

static const SmallFloat small_floats[N_RT_DTYPES] = {
#define SMALL_FLOAT(id, ...) [TRAINC_##id] = {__VA_ARGS__},
#include "../ir/small_float.def"
#undef SMALL_FLOAT
};

trainc_dtype rt_dtype_from_name(const char *s, size_t n) {
    for (int i = 1; i < N_RT_DTYPES; i++)
        if (strlen(rt_dtype[i].name) == n && memcmp(rt_dtype[i].name, s, n) == 0)
            return (trainc_dtype)i;
    return (trainc_dtype)0;
}

trainc_dtype rt_dtype_from_safetensors(const char *s) {
    for (int i = 1; i < N_RT_DTYPES && *s; i++)
        if (strcmp(rt_dtype[i].safetensors, s) == 0)
            return (trainc_dtype)i;
    return (trainc_dtype)0;
}

trainc_dtype rt_dtype_from_onnx(int64_t code) {
    for (int i = 1; i < N_RT_DTYPES; i++)
        if (rt_dtype[i].onnx == code)
            return (trainc_dtype)i;
    return (trainc_dtype)0;
}

static double half_to_double(uint16_t h) {
    int exp = h >> 10 & 31;
    double m = h & 1023, v;
    if (exp == 31)
        v = m != 0 ? (double)NAN : (double)INFINITY;
    else
        v = exp == 0 ? ldexp(m, -24) : ldexp(m + 1024, exp - 25);
    return h & 0x8000 ? -v : v;
}

static double bf16_to_double(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return (double)f;
}

/* Round to odd: a float whose last bit remembers that something was cut off, so a later rounding is right. */
static uint32_t float_bits_odd(double d) {
    float f = (float)d;
    uint32_t u;
    if ((double)f != d && isfinite(d)) {
        if (isinf(f) || fabs((double)f) > fabs(d))
            f = nextafterf(f, 0.0f);
        memcpy(&u, &f, sizeof u);
        return u | 1;
    }
    memcpy(&u, &f, sizeof u);
    return u;
}

static uint16_t double_to_bf16(double d) {
    uint32_t u = float_bits_odd(d);
    if (isnan(d))
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static uint16_t double_to_half(double d) {
    uint16_t sign = signbit(d) ? 0x8000 : 0;
    double a = fabs(d);
    if (isnan(d))
        return (uint16_t)(sign | 0x7e00);
    if (a >= 65520)
        return (uint16_t)(sign | 0x7c00);
    if (a < ldexp(1, -14))
        return (uint16_t)(sign | (uint32_t)nearbyint(ldexp(a, 24)));
    int exp;
    double m = nearbyint(ldexp(frexp(a, &exp), 11)); /* 1024 .. 2048 */
    return (uint16_t)(sign | (((uint32_t)(exp + 14) << 10) + (uint32_t)m - 1024));
}

#define AT(T, p, i) ((const char *)(p) + (size_t)(i) * sizeof(T))
#define READ(T) { T x; memcpy(&x, AT(T, src, i), sizeof x); return

int64_t rt_read_int(const void *src, trainc_dtype t, int64_t i) {
    switch (t) {
    case TRAINC_I64: READ(int64_t) x; }
    case TRAINC_I32: READ(int32_t) x; }
    case TRAINC_I16: READ(int16_t) x; }
    case TRAINC_I8: case TRAINC_I4: case TRAINC_I2: READ(int8_t) x; }
    case TRAINC_U64: READ(uint64_t) x > INT64_MAX ? INT64_MAX : (int64_t)x; }
    case TRAINC_U32: READ(uint32_t) x; }
    case TRAINC_U16: READ(uint16_t) x; }
    case TRAINC_U8: case TRAINC_U4: case TRAINC_U2: READ(uint8_t) x; }
    case TRAINC_BOOL: READ(uint8_t) x != 0; }
    default: break;
    }
    return (int64_t)rt_read_float(src, t, i);
}

double rt_read_float(const void *src, trainc_dtype t, int64_t i) {
    switch (t) {
    case TRAINC_F32: READ(float) (double)x; }
    case TRAINC_F64: READ(double) x; }
    case TRAINC_F16: READ(uint16_t) half_to_double(x); }
    case TRAINC_BF16: READ(uint16_t) bf16_to_double(x); }
    case TRAINC_U64: READ(uint64_t) (double)x; }
    default: break;
    }
    if (small_floats[t].largest)
        return small_float_load(&small_floats[t], ((const uint8_t *)src)[i]);
    return (double)rt_read_int(src, t, i);
}

#define WRITE(T, value) { T x = (T)(value); memcpy((char *)dst + (size_t)i * sizeof x, &x, sizeof x); return; }

static void write_int(void *dst, trainc_dtype t, int64_t i, int64_t v) {
    switch (t) {
    case TRAINC_I64: WRITE(int64_t, v)
    case TRAINC_I32: WRITE(int32_t, v)
    case TRAINC_I16: WRITE(int16_t, v)
    case TRAINC_I8: WRITE(int8_t, v)
    case TRAINC_U64: WRITE(uint64_t, v)
    case TRAINC_U32: WRITE(uint32_t, v)
    case TRAINC_U16: WRITE(uint16_t, v)
    case TRAINC_U8: WRITE(uint8_t, v)
    case TRAINC_BOOL: WRITE(uint8_t, v != 0)
    case TRAINC_I4: WRITE(int8_t, ((v & 15) ^ 8) - 8)
    case TRAINC_U4: WRITE(uint8_t, v & 15)
    case TRAINC_I2: WRITE(int8_t, ((v & 3) ^ 2) - 2)
    case TRAINC_U2: WRITE(uint8_t, v & 3)
    default: rt_write_float(dst, t, i, (double)v); return;
    }
}

void rt_write_float(void *dst, trainc_dtype t, int64_t i, double v) {
    switch (t) {
    case TRAINC_F32: WRITE(float, v)
    case TRAINC_F64: WRITE(double, v)
    case TRAINC_F16: WRITE(uint16_t, double_to_half(v))
    case TRAINC_BF16: WRITE(uint16_t, double_to_bf16(v))
    default: break;
    }
    if (small_floats[t].largest)
        ((uint8_t *)dst)[i] = (uint8_t)small_float_store(&small_floats[t], v);
    else
        write_int(dst, t, i, (int64_t)v);
}

bool rt_converts(trainc_dtype from, trainc_dtype to) {
    if (from == to)
        return true;
    if (rt_dtype[from].cls == RT_FLT)
        return rt_dtype[to].cls == RT_FLT;
    if (rt_dtype[to].cls != RT_FLT)
        return true;
    if (small_floats[to].largest)
        return false;
    uint32_t held = to == TRAINC_F64 ? 4 : to == TRAINC_F32 ? 2 : 1; /* bytes of the widest integer that is exact */
    return rt_dtype[from].bytes <= held && !(to == TRAINC_BF16 && rt_dtype[from].bytes > 1);
}

static bool int_fits(trainc_dtype t, int64_t v) {
    switch (t) {
    case TRAINC_I32: return v >= INT32_MIN && v <= INT32_MAX;
    case TRAINC_I16: return v >= INT16_MIN && v <= INT16_MAX;
    case TRAINC_I8: return v >= INT8_MIN && v <= INT8_MAX;
    case TRAINC_U64: return v >= 0;
    case TRAINC_U32: return v >= 0 && v <= UINT32_MAX;
    case TRAINC_U16: return v >= 0 && v <= UINT16_MAX;
    case TRAINC_U8: return v >= 0 && v <= UINT8_MAX;
    case TRAINC_BOOL: return v == 0 || v == 1;
    case TRAINC_I4: return v >= -8 && v < 8;
    case TRAINC_U4: return v >= 0 && v < 16;
    case TRAINC_I2: return v >= -2 && v < 2;
    case TRAINC_U2: return v >= 0 && v < 4;
    default: break;
    }
    return true;
}

int64_t rt_convert(void *dst, trainc_dtype to, const void *src, trainc_dtype from, int64_t n) {
    if (from == to) {
        memmove(dst, src, (size_t)n * rt_dtype[to].bytes);
        return -1;
    }
    bool floats = rt_dtype[from].cls == RT_FLT;
    for (int64_t i = 0; i < n; i++) {
        if (floats) {
            rt_write_float(dst, to, i, rt_read_float(src, from, i));
            continue;
        }
        int64_t v = rt_read_int(src, from, i);
        if (!int_fits(to, v) || (from == TRAINC_U64 && v == INT64_MAX))
            return i;
        write_int(dst, to, i, v);
    }
    return -1;
}
