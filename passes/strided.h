/* strided.h - views as strides over one value, and integers as affine functions of coordinates;
 * private to passes/. */
#ifndef TRAINC_STRIDED_H
#define TRAINC_STRIDED_H
#include "ir.h"

/* Element (i0, i1, ..) is element offset + sum of i_k strides[k] of the base, row-major. A repeated
 * axis has stride 0. */
typedef struct Strided {
    Value base;
    uint32_t rank, depth; /* depth: views between the base and the value */
    int64_t offset, dims[MAX_RANK], strides[MAX_RANK];
} Strided;

/* v through the reshapes, transposes, expands and slices that strides can follow; v itself where
 * there is none. */
Strided strided_of(const Graph *, Value v);
/* Other dims over the same elements; false where strides do not follow. */
bool strided_reshape(Strided *, uint32_t rank, const int64_t *dims);
/* Reshape, slice, transpose, reshape, expand, as far as needed, that read the base this way; 0 where
 * that takes more than max_ops of them or cannot be said. */
Value strided_build(Graph *, const Strided *, uint32_t max_ops);
/* v by fewer views where there is a shorter way, else v. */
Value strided_shortest(Graph *, Value v);

/* c + sum of a[k] i_k over the coordinates of a value; a[k] is 0 on axes of extent 1. */
typedef struct Affine {
    int64_t c, a[MAX_RANK];
} Affine;

/* Is v (integers, or floats that hold some) an affine function of its coordinates? Costs a look at
 * every element of the constants it is made of. */
bool affine_of(const Graph *, Value v, Affine *);
int64_t affine_min(const Affine *, const Type *); /* over all coordinates of the type */
int64_t affine_max(const Affine *, const Type *);
#endif
