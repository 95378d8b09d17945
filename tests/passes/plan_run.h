/* plan_run.h - builds plans for tests, and runs them: groups in launch order over the bytes of one
 * arena.
 *
 * What a group reads is taken from the arena's bytes, its outs are computed by the reference
 * interpreter and written back as storage types. Everything internal is NaN before. So a wrong
 * order, offset or live range shows in the results. */
#ifndef TEST_PLAN_RUN_H
#define TEST_PLAN_RUN_H
#include "env.h"
#include "planning.h"

#define DIMS(...)                                                                                  \
    (uint32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }

typedef struct Planned {
    Graph *g;
    Plan *plan;
    Arena *arena;
    PassOptions options;
    PassContext ctx;
} Planned;
Value plan_input(Graph *, const char *name, DType, uint32_t rank, const int64_t *dims);
Value plan_state(Graph *, const char *name, StateClass, DType, uint32_t rank, const int64_t *dims);
/* Fuses, schedules and places; fails the test where a pass does or where the plan is not sound.
 * Takes the graph over. */
Planned plan_graph(Graph *, bool for_gpu);
void planned_free(Planned *);
uint32_t plan_count(const Planned *, EntryKind, GroupKind); /* groups of that kind */
uint32_t plan_launches(const Planned *, EntryKind);
void plan_run_entry(Planned *, EntryKind, const InterpEnv *, double tolerance);
/* Runs the plan of every entry that has roots and compares all roots with the interpreter's. */
void plan_run_and_compare(Planned *, double tolerance);
#endif
