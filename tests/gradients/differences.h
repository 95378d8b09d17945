/* differences.h - a function of a graph's parameters in double, and its slopes by differences. */
#ifndef TRAINC_GRADIENTS_DIFFERENCES_H
#define TRAINC_GRADIENTS_DIFFERENCES_H
#include "ir.h"

typedef struct Function {                                    /* loss_sum / static_count of entry micro */
    const Graph *g;
    Arena *arena;
    Tensor *values; uint32_t n_values;                       /* of the states, in their order */
    const Tensor *(*input)(void *user, const char *name); void *user;
    double static_count;
} Function;
typedef enum Slope { SLOPE_EQUAL, SLOPE_KINK, SLOPE_DIFFERS } Slope;

double function_value(Function *, bool *ok);
/* The value of an update root (grad.NAME) at the current point. */
Tensor function_root(Function *, const char *name);
/* Is `gradient` the slope in element i of state s to 1e-6 (relative, or of `scale`, the size of the gradient)? KINK: no slope is there,
 * as the differences to both sides do not come together. *slope is what was found. */
Slope function_slope(Function *, uint32_t s, int64_t i, double gradient, double scale, double *slope);
#endif
