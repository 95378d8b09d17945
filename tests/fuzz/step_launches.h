/* step_launches.h - for tests that run a step's table themselves: its loops as the runtime's, so that device_next says what comes next. */
#ifndef TRAINC_STEP_LAUNCHES_H
#define TRAINC_STEP_LAUNCHES_H
#include "../../runtime/device.h"
#include "step_table.h"

static inline trainc_entry step_launches(const StepTable *t, EntryKind e, Arena *arena) {
    trainc_loop *loops = arena_alloc(arena, (t->n_loops[e] + 1) * sizeof *loops);
    for (uint32_t i = 0; i < t->n_loops[e]; i++)
        loops[i] = (trainc_loop){t->loops[e][i].first, t->loops[e][i].n, t->loops[e][i].trips};
    return (trainc_entry){NULL, t->n_launches[e], loops, t->n_loops[e]};
}
#endif
