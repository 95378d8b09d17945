/* dtype.c - the tables of storage types and attribute fields, and single elements in storage form.
 *
 * elem_load and elem_store are the one definition of how a value becomes bytes: floats round to
 * nearest even straight from double (no double rounding through float), integers wrap, bool is 0
 * or 1.
 */
#include "ir.h"
#include "small_float.h"
#include <assert.h>
#include <string.h>

const DTypeInfo dtype_info[N_DTYPES] = {
    [DT_NONE] = {"none", 0, 0, 0, "", "", ""},
#define DTYPE(id, text, bytes, cls, onnx, safetensors, npy, c_type)                                \
    [DT_##id] = {#text, bytes, CLASS_##cls, onnx, safetensors, npy, #c_type},
#include "dtype.def"
#undef DTYPE
};

const AttrInfo attr_info[N_ATTRS] = {
    [A_NONE] = {"none", 0},
#define ATTR(id, text, kind) [A_##id] = {#text, ATTR_##kind},
#include "attr.def"
#undef ATTR
};

DType dtype_from_onnx(int code) {
    for (int d = 1; d < N_DTYPES; d++)
        if (dtype_info[d].onnx == code) return (DType)d;
    return DT_NONE;
}

DType dtype_from_name(const char *name) {
    for (int d = 1; d < N_DTYPES; d++)
        if (strcmp(dtype_info[d].name, name) == 0) return (DType)d;
    return DT_NONE;
}

static const SmallFloat small_floats[N_DTYPES] = {
#define SMALL_FLOAT(id, ...) [DT_##id] = {__VA_ARGS__},
#include "small_float.def"
#undef SMALL_FLOAT
};

static bool is_small_float(DType d) { return small_floats[d].largest != 0; }

/* The bits of x in a format with `man` mantissa bits and the exponents from `emin` up to the
 * infinity at `inf`. With |x| = q * 2^(E - man), q an integer below 2^(man+1), the bits are (E -
 * emin) << man plus q, normal or not. */
static uint16_t half_float_bits(double x, int man, int emin, uint32_t inf) {
    uint32_t sign = signbit(x) ? 0x8000u : 0;
    if (isnan(x)) return (uint16_t)(sign | inf | 1u << (man - 1));
    if (isinf(x)) return (uint16_t)(sign | inf);
    if (x == 0) return (uint16_t)sign;
    int e;
    frexp(x, &e);
    if (--e < emin) e = emin;
    if (e > 1 - emin) return (uint16_t)(sign | inf);
    uint32_t q = (uint32_t)nearbyint(ldexp(fabs(x), man - e));
    uint32_t bits = ((uint32_t)(e - emin) << man) + q;
    return (uint16_t)(sign | (bits < inf ? bits : inf));
}

static double half_float_value(uint16_t bits, int man, int emin) {
    int exponent_bits = 15 - man;
    uint32_t exponent = (uint32_t)(bits & 0x7fff) >> man, mantissa = bits & ((1u << man) - 1);
    double x;
    if (exponent == (1u << exponent_bits) - 1)
        x = mantissa ? NAN : INFINITY;
    else if (exponent == 0)
        x = ldexp(mantissa, emin - man);
    else
        x = ldexp(mantissa + (1u << man), (int)exponent - 1 + emin - man);
    return bits & 0x8000 ? -x : x;
}

int64_t elem_load_int(DType d, const void *at) {
#define LOAD(type)                                                                                 \
    {                                                                                              \
        type x;                                                                                    \
        memcpy(&x, at, sizeof x);                                                                  \
        return (int64_t)x;                                                                         \
    }
    switch (d) {
    case DT_I64:
        LOAD(int64_t)
    case DT_I32:
        LOAD(int32_t)
    case DT_I16:
        LOAD(int16_t)
    case DT_I8:
    case DT_I4:
    case DT_I2:
        LOAD(int8_t)
    case DT_U64:
        LOAD(uint64_t)
    case DT_U32:
        LOAD(uint32_t)
    case DT_U16:
        LOAD(uint16_t)
    case DT_U8:
    case DT_U4:
    case DT_U2:
        LOAD(uint8_t)
    case DT_BOOL:
        return *(const uint8_t *)at != 0;
    default:
        break;
    }
#undef LOAD
    assert(0 && "an integer element");
    return 0;
}

double elem_load(DType d, const void *at) {
    uint16_t half = 0;
    if (d == DT_F32) {
        float x;
        memcpy(&x, at, sizeof x);
        return x;
    }
    if (d == DT_F64) {
        double x;
        memcpy(&x, at, sizeof x);
        return x;
    }
    if (d == DT_F16 || d == DT_BF16) memcpy(&half, at, sizeof half);
    if (d == DT_F16) return half_float_value(half, 10, -14);
    if (d == DT_BF16) return half_float_value(half, 7, -126);
    if (is_small_float(d)) return small_float_load(&small_floats[d], *(const uint8_t *)at);
    if (d == DT_U64) return (double)(uint64_t)elem_load_int(d, at);
    return (double)elem_load_int(d, at);
}

void elem_store_int(DType d, void *at, int64_t i) {
    uint8_t truth = i != 0;
    switch (d) {
    case DT_BOOL:
        memcpy(at, &truth, 1);
        return;
#define STORE(type)                                                                                \
    {                                                                                              \
        type x = (type)i;                                                                          \
        memcpy(at, &x, sizeof x);                                                                  \
        return;                                                                                    \
    }
    case DT_I64:
    case DT_U64:
        STORE(uint64_t)
    case DT_I32:
    case DT_U32:
        STORE(uint32_t)
    case DT_I16:
    case DT_U16:
        STORE(uint16_t)
    case DT_I8:
    case DT_U8:
        STORE(uint8_t)
#undef STORE
    case DT_I4:
        *(int8_t *)at = (int8_t)(((i & 15) ^ 8) - 8);
        return;
    case DT_U4:
        *(uint8_t *)at = (uint8_t)(i & 15);
        return;
    case DT_I2:
        *(int8_t *)at = (int8_t)(((i & 3) ^ 2) - 2);
        return;
    case DT_U2:
        *(uint8_t *)at = (uint8_t)(i & 3);
        return;
    default:
        assert(dtype_info[d].cls == CLASS_FLT);
        elem_store(d, at, (double)i);
    }
}

/* Truncates; what int64 cannot hold saturates, NaN is 0: defined, where C is not. */
static int64_t int_of(double f) {
    if (f != f) return 0;
    if (f >= 0x1p63) return INT64_MAX;
    if (f < -0x1p63) return INT64_MIN;
    return (int64_t)f;
}

void elem_store(DType d, void *at, double f) {
    float single = (float)f;
    uint16_t half = 0;
    uint8_t truth = f != 0;
    switch (d) {
    case DT_F32:
        memcpy(at, &single, sizeof single);
        return;
    case DT_F64:
        memcpy(at, &f, sizeof f);
        return;
    case DT_F16:
        half = half_float_bits(f, 10, -14, 0x7c00);
        break;
    case DT_BF16:
        half = half_float_bits(f, 7, -126, 0x7f80);
        break;
    case DT_BOOL:
        memcpy(at, &truth, 1);
        return;
    case DT_U64:
        elem_store_int(d, at, f < 0x1p63 ? int_of(f) : f < 0x1p64 ? (int64_t)(uint64_t)f : -1);
        return;
    default:
        if (is_small_float(d))
            *(uint8_t *)at = (uint8_t)small_float_store(&small_floats[d], f);
        else
            elem_store_int(d, at, int_of(f));
        return;
    }
    memcpy(at, &half, sizeof half);
}
