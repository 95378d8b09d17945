/* run_log.h - what a run says: JSON lines, a progress bar on a terminal, a line now and then elsewhere. Not public. */
#ifndef TRAINC_RUN_LOG_H
#define TRAINC_RUN_LOG_H
#include "step.h"
#include <stdio.h>
typedef struct StepReport {
    trainc_result result;
    int64_t samples, tokens, total_steps;
    uint64_t arena_bytes;
    double eval_loss; bool has_eval;
    const Metric *metrics; uint32_t n_metrics;
} StepReport;
typedef struct RunLog { FILE *file; char *buffer; bool is_terminal; double begun_ms, drawn_ms; int64_t first; } RunLog;
/* log_open - path NULL: no file. `append`: a resumed run goes on in the same file. TRAINC_BAD_DATA: cannot be written. */
trainc_status log_open(RunLog *, const char *path, bool append, Fail *);
trainc_status log_step(RunLog *, const StepReport *, const char *path, Fail *);   /* allocates nothing */
void log_say(RunLog *, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* a whole line, above the bar */
trainc_status log_close(RunLog *, const char *path, Fail *);
#endif
