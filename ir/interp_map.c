/* interp_map.c - every elementwise op, compiled from the body in its row of op.def: once over
 * double, once over int64_t, once over uint64_t (for u64).
 *
 * In the double version the names of the float functions mean the double ones (expf is exp), so
 * that the interpreter is the exact reference of both code generators. Which of the two versions a
 * class of ops has is said by FLOAT_CLS and INT_CLS. */
#include "interp.h"
#include <math.h>
#include <string.h>

#define expf exp
#define exp2f exp2
#define expm1f expm1
#define logf log
#define log2f log2
#define log10f log10
#define log1pf log1p
#define sqrtf sqrt
#define cbrtf cbrt
#define sinf sin
#define cosf cos
#define tanf tan
#define asinf asin
#define acosf acos
#define atanf atan
#define atan2f atan2
#define sinhf sinh
#define coshf cosh
#define tanhf tanh
#define asinhf asinh
#define acoshf acosh
#define atanhf atanh
#define erff erf
#define erfcf erfc
#define lgammaf lgamma
#define tgammaf tgamma
#define powf pow
#define hypotf hypot
#define fmodf fmod
#define floorf floor
#define ceilf ceil
/* of a value as kernels hold it: at ties a double that no float could be decides otherwise */
#define rintf(x) rint((double)(float)(x))
#define roundf round
#define truncf trunc
#define fabsf fabs
#define fminf fmin
#define fmaxf fmax
#define copysignf copysign

/* a != a is how a body asks for NaN; over integers it is plainly false */
#pragma GCC diagnostic ignored "-Wtautological-compare"

/* EACH(TA, T, R, body): r[i] = body over the operands, the first of type TA and the others of type
 * T */
#define EACH(TA, T, R, body)                                                                       \
    for (int64_t i = 0; i < n; i++) {                                                              \
        const TA a = ((const TA *)pa)[i];                                                          \
        const T b = ((const T *)pb)[i], c = ((const T *)pc)[i];                                    \
        (void)a, (void)b, (void)c;                                                                 \
        ((R *)r)[i] = (R)(body);                                                                   \
    }                                                                                              \
    break;
#define NOTHING break;

#define FLOAT_NUM(body) EACH(double, double, double, body)
#define FLOAT_FLT(body) EACH(double, double, double, body)
#define FLOAT_INT(body) NOTHING
#define FLOAT_CMP(body) EACH(double, double, int64_t, body)
#define FLOAT_BOOL(body) NOTHING
#define FLOAT_SEL(body) EACH(int64_t, double, double, body)
#define FLOAT_TEST(body) EACH(double, double, int64_t, body)

#define INT_NUM(body) EACH(int64_t, int64_t, int64_t, body)
#define INT_FLT(body) NOTHING
#define INT_INT(body) EACH(int64_t, int64_t, int64_t, body)
#define INT_CMP(body) EACH(int64_t, int64_t, int64_t, body)
#define INT_BOOL(body) EACH(int64_t, int64_t, int64_t, body)
#define INT_SEL(body) EACH(int64_t, int64_t, int64_t, body)
#define INT_TEST(body) NOTHING

static void map_float(OpCode op, int64_t n, void *r, const void *pa, const void *pb,
                      const void *pc) {
    switch ((int)op) {
#define MAP(name, arity, cls, cast, cost, body, grad)                                              \
    case OP_##name:                                                                                \
        FLOAT_##cls(body)
#include "op.def"
    }
}

/* Integers wrap, as they do on every target; the standard alone calls that undefined. */
__attribute__((no_sanitize("undefined"))) static void
map_int(OpCode op, int64_t n, void *r, const void *pa, const void *pb, const void *pc) {
    switch ((int)op) {
#define MAP(name, arity, cls, cast, cost, body, grad)                                              \
    case OP_##name:                                                                                \
        INT_##cls(body)
#include "op.def"
    }
}

/* u64 alone needs its own: the others fit int64_t. Truth is int64_t in both. */
#undef INT_NUM
#undef INT_INT
#undef INT_CMP
#undef INT_SEL
#define INT_NUM(body) EACH(uint64_t, uint64_t, uint64_t, body)
#define INT_INT(body) EACH(uint64_t, uint64_t, uint64_t, body)
#define INT_CMP(body) EACH(uint64_t, uint64_t, int64_t, body)
#define INT_SEL(body) EACH(int64_t, uint64_t, uint64_t, body)

#pragma GCC diagnostic ignored "-Wtype-limits"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wsign-conversion"
static void map_unsigned(OpCode op, int64_t n, void *r, const void *pa, const void *pb,
                         const void *pc) {
    switch ((int)op) {
#define MAP(name, arity, cls, cast, cost, body, grad)                                              \
    case OP_##name:                                                                                \
        INT_##cls(body)
#include "op.def"
    }
}

bool eval_map(Eval *e) {
    OpCode op = graph_op(e->g, e->v);
    const void *p[3] = {e->in[0]->u.p, e->in[0]->u.p, e->in[0]->u.p};
    for (uint32_t i = 1; i < e->n_in; i++) p[i] = e->in[i]->u.p;
    if (e->n_in == 2) p[2] = p[1];
    bool is_float = dtype_is_float(e->in[e->n_in - 1]->type.dtype);
    int64_t n = type_elems(&e->out.type);
    bool is_unsigned = e->in[e->n_in - 1]->type.dtype == DT_U64;
    (is_float      ? map_float
     : is_unsigned ? map_unsigned
                   : map_int)(op, n, e->out.u.p, p[0], p[1], p[2]);
    if (!is_float && op_info[op].cls != OPC_SEL) tensor_wrap(&e->out);
    return true;
}

bool eval_cast(Eval *e) {
    int64_t n = type_elems(&e->out.type);
    const Tensor *a = e->in[0];
    DType to = (DType)e->out.type.dtype;
    bool from_float = dtype_is_float(a->type.dtype);
    uint64_t element;
    if (from_float && (to == DT_F32 || to == DT_F64)) {
        memcpy(e->out.u.p, a->u.p, (size_t)n * sizeof(double));
        return true;
    }
    for (int64_t i = 0; i < n; i++) {
        bool is_u64 = a->type.dtype == DT_U64;
        double x = from_float ? a->u.f[i]
                   : is_u64   ? (double)(uint64_t)a->u.i[i]
                              : (double)a->u.i[i];
        if (e->is_float && !from_float && (to == DT_F32 || to == DT_F64)) {
            e->out.u.f[i] = x;
            continue;
        }
        if (from_float || (is_u64 && e->is_float))
            elem_store(to, &element, x);
        else
            elem_store_int(to, &element, a->u.i[i]);
        if (e->is_float)
            e->out.u.f[i] = elem_load(to, &element);
        else
            e->out.u.i[i] = elem_load_int(to, &element);
    }
    return true;
}
