/* rt_dtype.h - storage types at run time: sizes, names in files, conversion between any two. Rows: ir/dtype.def. */
#ifndef TRAINC_RT_DTYPE_H
#define TRAINC_RT_DTYPE_H
#include "trainc.h"
#include <stdbool.h>
enum { N_RT_DTYPES = TRAINC_U2 + 1 };
typedef enum RtClass { RT_NONE, RT_FLT, RT_INT, RT_BOOL } RtClass;
typedef struct RtDtype { const char *name; uint32_t bytes; RtClass cls; int onnx; const char *safetensors, *npy; } RtDtype;
extern const RtDtype rt_dtype[N_RT_DTYPES];              /* row 0 is "none" */
trainc_dtype rt_dtype_from_name(const char *, size_t n);  /* "u16"; 0 where there is none */
trainc_dtype rt_dtype_from_safetensors(const char *);
trainc_dtype rt_dtype_from_onnx(int64_t code);
/* rt_converts - may elements of type `from` be fed to `to`: the same type, float to float, an integer or bool to any number that
 *   can hold it (integers narrow only where every value fits; rt_convert checks). */
bool rt_converts(trainc_dtype from, trainc_dtype to);
/* rt_convert - writes n elements of `to` from n elements of `from` (no alignment needed; may not overlap unless the types are equal).
 *   Floats round to nearest even. Returns the index of the first element that does not fit, or -1. */
int64_t rt_convert(void *dst, trainc_dtype to, const void *src, trainc_dtype from, int64_t n);
int64_t rt_read_int(const void *src, trainc_dtype, int64_t i);    /* u64 above INT64_MAX saturates */
double rt_read_float(const void *src, trainc_dtype, int64_t i);   /* any type */
void rt_write_float(void *dst, trainc_dtype, int64_t i, double);  /* rounds floats to nearest even, truncates to integers */
#endif
