/* schedule.h - the learning rate of every optimizer step. */
#ifndef TRAINC_SCHEDULE_H
#define TRAINC_SCHEDULE_H
#include <stdint.h>
typedef enum ScheduleKind {
#define SCHEDULE(id, name, what) SCHEDULE_##id,
#include "schedule.def"
#undef SCHEDULE
    N_SCHEDULES
} ScheduleKind;
extern const char *const schedule_name[N_SCHEDULES];
extern const char *const schedule_what[N_SCHEDULES];
typedef struct Schedule { ScheduleKind kind; double lr, min_lr; int64_t warmup, decay, steps; } Schedule; /* min_lr absolute */
/* schedule_lr - the rate of the optimizer step number `taken` from 0 (steps that were skipped do not count).
 *   Source: transformers.optimization, get_{constant,linear,cosine_with_min_lr,wsd}_schedule*. */
double schedule_lr(const Schedule *, int64_t taken);
#endif
