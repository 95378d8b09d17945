/* small_float.h - one element of a float type of small_float.def, to and from double: round to nearest even. Needs libc alone, so that
 * the runtime includes it too. */
#ifndef TRAINC_SMALL_FLOAT_H
#define TRAINC_SMALL_FLOAT_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct SmallFloat { uint32_t sign; int mantissa, smallest; uint32_t largest, above, nan; } SmallFloat;

static inline double small_float_load(const SmallFloat *f, uint32_t code)
{
    uint32_t magnitude = code & (f->sign ? f->sign - 1 : 0xff), exponent = magnitude >> f->mantissa;
    uint32_t fraction = magnitude & ((1u << f->mantissa) - 1);
    double x = !exponent && !f->sign ? ldexp(1, f->smallest - 1)
             : !exponent             ? ldexp(fraction, f->smallest - f->mantissa)
                                     : ldexp(fraction + (1u << f->mantissa), (int)exponent - 1 + f->smallest - f->mantissa);
    if (magnitude > f->largest)
        x = magnitude == f->above && f->above != f->nan ? (double)INFINITY : (double)NAN;
    if (code == f->nan && f->above > f->largest)
        return (double)NAN;
    return code & f->sign ? -x : x;
}

/* |x| is q * 2^(e - mantissa) with q below 2^(mantissa + 1): the code is (e - smallest) << mantissa plus q, normal or not. */
static inline uint32_t small_float_store(const SmallFloat *f, double x)
{
    int e = 0;
    bool has_one_zero = f->nan == f->sign && f->above > f->largest;
    if (isnan(x))
        return f->nan;
    uint32_t sign = signbit(x) ? f->sign : 0, code = f->above;
    if (!isinf(x)) {
        frexp(x, &e);
        e = x == 0 || e - 1 < f->smallest ? f->smallest : e - 1;
        double q = nearbyint(ldexp(fabs(x), f->mantissa - e));
        if (e - f->smallest < 512)
            code = ((uint32_t)(e - f->smallest) << f->mantissa) + (uint32_t)q;
        if (code > f->largest)
            code = f->above;
    }
    return has_one_zero && !code ? 0 : code | sign;
}
#endif
