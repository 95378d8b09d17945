/* C17 for a CPU: what every generated translation unit begins with. No library but OpenMP's is called. */
#include <stdint.h>
#define TC_FN static inline __attribute__((always_inline, unused)) /* loops around them vectorize */
#define TC_CALL static __attribute__((noinline, unused))
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

TC_FN float tc_max_float(float a, float b) { return (b > a) | (b != b) ? b : a; }
TC_FN float tc_min_float(float a, float b) { return (b < a) | (b != b) ? b : a; }
#pragma omp declare reduction(tc_max : float : omp_out = tc_max_float(omp_out, omp_in)) initializer(omp_priv = -INFINITY)
#pragma omp declare reduction(tc_min : float : omp_out = tc_min_float(omp_out, omp_in)) initializer(omp_priv = INFINITY)
#pragma omp declare reduction(tc_max : int32_t, int64_t, uint32_t, uint64_t : omp_out = omp_out > omp_in ? omp_out : omp_in) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(tc_min : int32_t, int64_t, uint32_t, uint64_t : omp_out = omp_out < omp_in ? omp_out : omp_in) initializer(omp_priv = omp_orig)
