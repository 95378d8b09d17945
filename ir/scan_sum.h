/* scan_sum.h - private to ir/: a loop under construction some of whose results are sums over its steps. */
#ifndef TRAINC_SCAN_SUM_H
#define TRAINC_SCAN_SUM_H
#include "scan.h"

typedef struct LoopSum {
    Graph *g;
    Arena *scratch;
    const char *name;
    int64_t trips;
    bool is_reverse;
    const Value *xs, *x;                                     /* what is scanned, and the holes of the slices */
    uint32_t n_x;
    Value t;
    Value *first, *carry, *next;                             /* loop_carry adds to these */
    uint32_t n_carries, cap_first, cap_carry, cap_next;
    Value *ys;                                               /* loop_stack adds to these */
    uint32_t n_ys, cap_ys;
    bool *inside;                                            /* per node: made from holes */
    uint32_t n_inside;
    Value *finals, *stacks;                                  /* when loop_sums has built it */
} LoopSum;

void loop_carry(LoopSum *, Value first, Value hole, Value next);
uint32_t loop_stack(LoopSum *, Value);                       /* which of ys it is */
/* Builds the loop; each v[i] that is not 0, a value of one step, is replaced by its sum over the steps. A product that contracts
 * over rows becomes one product over the rows of all steps, after the loop; a sum over what is stacked anyway one sum; anything
 * else is added up by a carry. */
bool loop_sums(LoopSum *, Value *v, uint32_t n);
#endif
