/* check.h - what the tests of ir/ share: small random inputs, evaluation through the interpreter,
 * and gradients against finite differences.
 *
 * The differences are central, of fourth order, in double: with h = 1e-4 their own error is near
 * 1e-11. Where those of h and h/2 disagree the function has a kink within reach, and the element is
 * left out; most must remain. */
#ifndef TRAINC_TEST_CHECK_H
#define TRAINC_TEST_CHECK_H
#include "ir.h"

enum { CHECK_MAX = 8 };
typedef struct Check {
    Graph *g;
    Arena *arena;
    uint64_t rng;
    uint32_t n;
    char names[CHECK_MAX][8];
    Tensor tensors[CHECK_MAX];
    Value inputs[CHECK_MAX];
} Check;

Check *check_new(uint64_t seed);
void check_free(Check *);
uint64_t check_random(Check *);                     /* 64 bits */
int64_t check_int(Check *, int64_t lo, int64_t hi); /* lo <= x <= hi */
double check_real(Check *, double lo, double hi);
/* A new input with random elements in [lo, hi], never closer than 0.02 to a multiple of 1/2 (where
 * roundings jump). */
Value check_input(Check *, DType, uint32_t rank, const int64_t *dims, double lo, double hi);
Value check_floats(Check *, uint32_t rank, const int64_t *dims); /* f64 in [-2, 2] */
Value check_indices(Check *, uint32_t rank, const int64_t *dims,
                    int64_t limit); /* i64 in [0, limit) */
/* The value of v in the check's arena; asserts that it evaluates. */
Tensor check_eval(Check *, Value v);
/* d (sum of dy * y) / d x by reverse mode, for every input; d[i] = 0 where none flows. */
void check_backward(Graph *, Value y, Value dy, const Value *x, uint32_t n, Value *d);
/* Asserts that the gradient of y in every float input agrees with finite differences (relative
 * 1e-6). */
void check_gradient(Check *, Value y, const char *what);
/* Asserts that the values of a and b agree to `tolerance`, relative to the largest. */
void check_same(Check *, Value a, Value b, double tolerance, const char *what);
bool check_is_finite(Check *, Value);
#endif
