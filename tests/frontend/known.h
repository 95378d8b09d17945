/* known.h - models that hold what is known of them: a result NAME beside an output NAME.want, the
 * gradient of the output `loss` in an initializer NAME beside an output NAME.grad. */
#ifndef TRAINC_TEST_KNOWN_H
#define TRAINC_TEST_KNOWN_H
#include "ir.h"

typedef struct Known {
    Graph *g;
    Arena *arena;
} Known;
/* Interprets entry eval on the input `one` = [1] and compares; how many results it has compared.
 * An element agrees within `tolerance` of the largest of its tensor (or of 1e-3). */
uint32_t known_results(Known *, double tolerance);
/* Differentiates, interprets entry micro and compares; how many gradients. An initializer without a
 * gradient must have been known to have none. */
uint32_t known_gradients(Graph *, Arena *, double tolerance);
#endif
