/* run_options.h - the command line of `trainc run` as a struct. Not public. */
#ifndef TRAINC_RUN_OPTIONS_H
#define TRAINC_RUN_OPTIONS_H
#include "schedule.h"
#include "step.h"
typedef enum RunOptionId {
#define OPTION(id, ...) RUN_##id,
#include "run_option.def"
#undef OPTION
    N_RUN_OPTIONS
} RunOptionId;
typedef struct DataOption { const char *name, *file; } DataOption;   /* NAME=FILE, split in place */
enum { MAX_DATA = 64 };
typedef struct RunOptions {
    const char *dir;
    unsigned char given[N_RUN_OPTIONS];
    int64_t count[N_RUN_OPTIONS];          /* COUNT */
    double real[N_RUN_OPTIONS], second[N_RUN_OPTIONS]; /* REAL, PAIR */
    const char *text[N_RUN_OPTIONS];
    DataOption data[MAX_DATA], eval[MAX_DATA]; int n_data, n_eval;
    ScheduleKind schedule;
    Scaler scaler;
} RunOptions;
/* run_options_parse - fills `o`. All usage errors at once, one per line, into `errors` (empty: none). Splits argv's texts in place. */
void run_options_parse(int argc, char **argv, RunOptions *o, char *errors, size_t cap);
void run_options_check_optimizer(const RunOptions *, const char *optimizer, char *errors, size_t cap);
void run_options_help(void);
/* run_closest_name - the candidate nearest to `name` within a third of its length; NULL: none is near. */
const char *run_closest_name(const char *name, const char *const *candidates, size_t n);
void errors_add(char *errors, size_t cap, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
#endif
