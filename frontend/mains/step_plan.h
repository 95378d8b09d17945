/* step_plan.h - model and options to a planned step, for one kind of target: what compile and plan
 * share. */
#ifndef TRAINC_STEP_PLAN_H
#define TRAINC_STEP_PLAN_H
#include "options.h"

typedef struct PlannedStep {
    Model model;
    PassContext passes; /* g and plan of the finished pipeline */
    PassOptions options;
    Plan plan;
} PlannedStep;

/* step_plan - imports the model and runs all passes. The micro-batch is the one given, else the
 * largest divisor of the batch whose plan fits `budget` (0: no limit). Diagnostics are printed to
 * stderr. returns 0 or the exit status            owner  caller: step_free */
int step_plan(PlannedStep *, const Options *, bool for_gpu, uint64_t budget);
void step_free(PlannedStep *);
/* print_census - what the forward graph is made of, and near misses, to stdout. */
void print_census(const PlannedStep *);
/* library_scratch_bytes - PassOptions.scratch_bytes of the cpu target. */
uint64_t library_scratch_bytes(const Graph *, Value contraction);
/* library_packed_bytes - PassOptions.packed_bytes of the cpu target. */
uint64_t library_packed_bytes(const Graph *, Value contraction, int which);
#endif
