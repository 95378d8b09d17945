/* run_options.c - reads the command line of `trainc run` through the table run_option.def and
 * checks what can be checked without the program. Every error is collected; unknown names get the
 * closest known one. */
#include "run_options.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum OptionKind {
    OPTION_FLAG,
    OPTION_COUNT,
    OPTION_REAL,
    OPTION_TEXT,
    OPTION_DATA,
    OPTION_PAIR
} OptionKind;
typedef struct OptionRow {
    const char *name;
    OptionKind kind;
    const char *argument, *what;
} OptionRow;
static const OptionRow rows[N_RUN_OPTIONS] = {
#define OPTION(id, name, kind, argument, what) {name, OPTION_##kind, argument, what},
#include "run_option.def"
#undef OPTION
};

void errors_add(char *errors, size_t cap, const char *fmt, ...) {
    size_t n = strlen(errors);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(errors + n, cap - n, fmt, ap);
    va_end(ap);
    n = strlen(errors);
    snprintf(errors + n, cap - n, "\n");
}

static size_t min3(size_t a, size_t b, size_t c) {
    return a < b ? (a < c ? a : c) : (b < c ? b : c);
}

/* Edit distance; names longer than the row are never close. */
static size_t distance(const char *a, const char *b) {
    enum { MOST = 96 };
    size_t row[MOST + 1], n = strlen(b);
    if (n > MOST || strlen(a) > MOST) return MOST;
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t up = row[j];
            row[j] = min3(up + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = up;
        }
    }
    return row[n];
}

const char *run_closest_name(const char *name, const char *const *candidates, size_t n) {
    size_t best = strlen(name) / 3 + 2;
    const char *found = NULL;
    for (size_t i = 0; i < n; i++) {
        size_t d = distance(name, candidates[i]);
        if (d < best) {
            best = d;
            found = candidates[i];
        }
    }
    return found;
}

void run_options_help(void) {
    printf("usage: trainc run DIR --data NAME=FILE [--data ...] [options]\n\n"
           "Trains a step library that trainc compiled into DIR.\n\n");
    for (int i = 0; i < N_RUN_OPTIONS; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s %s", rows[i].name, rows[i].argument);
        printf("  %-27s %s\n", left, rows[i].what);
    }
    printf("\nWhere --lr and the like are not given, PyTorch's defaults for the optimizer hold. A "
           ".bin file is a flat stream that is cut into\n"
           "samples of the bound size; with :shape (24x16, or -1x16) it has that shape. For "
           "causal_lm, labels default to the inputs.\n\n"
           "Exit status: 0 done, 2 wrong usage, 3 no memory, 4 step folder, weights or checkpoint "
           "invalid, 5 data invalid or not\n"
           "writable, 6 the device failed, 130 interrupted (saved, where --save was given).\n");
}

static bool parse_count(const char *s, int64_t *out) {
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    *out = v;
    return isdigit((unsigned char)*s) && *end == 0 && errno == 0;
}

static bool parse_real(const char *s, char stop, double *out, const char **rest) {
    char *end;
    *out = strtod(s, &end);
    *rest = end;
    return end != s && !isspace((unsigned char)*s) && *end == stop && isfinite(*out);
}

static const char *parse_data(RunOptions *o, RunOptionId id, char *value) {
    char *equals = strchr(value, '=');
    int *n = id == RUN_DATA ? &o->n_data : &o->n_eval;
    DataOption *list = id == RUN_DATA ? o->data : o->eval;
    if (!equals || equals == value || !equals[1]) return "is not NAME=FILE";
    if (*n == MAX_DATA) return "is one input too many";
    *equals = 0;
    list[(*n)++] = (DataOption){value, equals + 1};
    return NULL;
}

/* What is wrong with the value, or NULL. */
static const char *parse_value(RunOptions *o, RunOptionId id, char *value) {
    const char *rest;
    o->text[id] = value;
    switch (rows[id].kind) {
    case OPTION_COUNT:
        return parse_count(value, &o->count[id]) ? NULL : "is not a whole number";
    case OPTION_REAL:
        return parse_real(value, 0, &o->real[id], &rest) ? NULL : "is not a number";
    case OPTION_PAIR:
        return parse_real(value, ',', &o->real[id], &rest) &&
                       parse_real(rest + 1, 0, &o->second[id], &rest)
                   ? NULL
                   : "is not two numbers A,B";
    case OPTION_DATA:
        return parse_data(o, id, value);
    case OPTION_TEXT:
        return *value ? NULL : "is empty";
    case OPTION_FLAG:
        break;
    }
    return NULL;
}

static void unknown(const char *arg, char *errors, size_t cap) {
    const char *names[N_RUN_OPTIONS];
    for (int i = 0; i < N_RUN_OPTIONS; i++) names[i] = rows[i].name;
    const char *near = run_closest_name(arg, names, N_RUN_OPTIONS);
    errors_add(errors, cap, "unknown option %s%s%s%s", arg, near ? " (did you mean " : "",
               near ? near : "", near ? "?)" : "");
}

/* One argument, `--name value`, `--name=value` or the folder; returns how many were used. */
static int parse_one(int left, char **argv, RunOptions *o, char *errors, size_t cap) {
    char *arg = argv[0];
    if (strcmp(arg, "-h") == 0) {
        o->given[RUN_HELP] = 1;
        return 1;
    }
    if (arg[0] != '-') {
        if (o->dir)
            errors_add(errors, cap, "%s: one step folder is enough, %s was given", arg, o->dir);
        o->dir = arg;
        return 1;
    }
    size_t n = strcspn(arg, "=");
    int id = 0;
    while (id < N_RUN_OPTIONS &&
           !(strlen(rows[id].name) == n && memcmp(rows[id].name, arg, n) == 0))
        id++;
    if (id == N_RUN_OPTIONS) {
        unknown(arg, errors, cap);
        return 1;
    }
    char *value = arg[n] == '=' ? arg + n + 1 : NULL;
    int used = 1;
    if (rows[id].kind == OPTION_FLAG && value)
        errors_add(errors, cap, "%s takes no value", rows[id].name);
    if (rows[id].kind != OPTION_FLAG && !value) {
        if (left < 2) {
            errors_add(errors, cap, "%s needs %s", rows[id].name, rows[id].argument);
            return 1;
        }
        value = argv[1];
        used = 2;
    }
    if (o->given[id] && rows[id].kind != OPTION_DATA)
        errors_add(errors, cap, "%s is given twice", rows[id].name);
    o->given[id] = 1;
    const char *wrong = value ? parse_value(o, (RunOptionId)id, value) : NULL;
    if (wrong) errors_add(errors, cap, "%s %s %s", rows[id].name, value, wrong);
    return used;
}

static void need_range(const RunOptions *o, RunOptionId id, double low, double high, bool open,
                       char *errors, size_t cap) {
    double v = o->real[id];
    if (o->given[id] && (v < low || (open ? v >= high : v > high)))
        errors_add(errors, cap, "%s %s is out of range", rows[id].name, o->text[id]);
}

static void parse_schedule(RunOptions *o, char *errors, size_t cap) {
    const char *name = o->text[RUN_SCHEDULE];
    int k = 0;
    while (name && k < N_SCHEDULES && strcmp(schedule_name[k], name) != 0) k++;
    o->schedule = name && k < N_SCHEDULES ? (ScheduleKind)k : SCHEDULE_CONSTANT;
    if (k == N_SCHEDULES) {
        const char *near = run_closest_name(name, schedule_name, N_SCHEDULES);
        errors_add(errors, cap, "no such schedule: %s (%s%s)", name,
                   near ? "did you mean " : "constant, linear, cosine or wsd", near ? near : "");
        return;
    }
    if (o->schedule == SCHEDULE_WSD && !o->given[RUN_DECAY])
        errors_add(errors, cap, "--schedule wsd needs --decay N, the length of its last phase");
    if (o->schedule != SCHEDULE_WSD && o->given[RUN_DECAY])
        errors_add(errors, cap, "--decay belongs to --schedule wsd");
    if (o->schedule == SCHEDULE_CONSTANT && o->given[RUN_MIN_LR])
        errors_add(errors, cap, "--min-lr needs a schedule that falls: linear, cosine or wsd");
}

static void parse_scale(RunOptions *o, char *errors, size_t cap) {
    const char *s = o->text[RUN_LOSS_SCALE], *rest;
    double x = 0;
    o->scaler = (Scaler){SCALER_OFF, 1, 0};
    if (!s) return;
    if (strcmp(s, "dynamic") == 0)
        o->scaler = (Scaler){SCALER_DYNAMIC, 65536, 0};
    else if (parse_real(s, 0, &x, &rest) && x > 0)
        o->scaler = (Scaler){SCALER_FIXED, x, 0};
    else
        errors_add(errors, cap, "--loss-scale %s is neither dynamic nor a number above 0", s);
}

static void check_pairs(const RunOptions *o, char *errors, size_t cap) {
    static const struct {
        RunOptionId has, lacks;
    } needs[] = {
        {RUN_SAVE_EVERY, RUN_SAVE}, {RUN_EVAL_EVERY, RUN_EVAL_DATA}, {RUN_NESTEROV, RUN_MOMENTUM}};
    static const struct {
        RunOptionId a, b;
    } apart[] = {{RUN_STEPS, RUN_EPOCHS}, {RUN_RESUME, RUN_INIT}};
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (o->given[needs[i].has] && !o->given[needs[i].lacks])
            errors_add(errors, cap, "%s needs %s", rows[needs[i].has].name,
                       rows[needs[i].lacks].name);
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++)
        if (o->given[apart[i].a] && o->given[apart[i].b])
            errors_add(errors, cap, "%s and %s exclude each other", rows[apart[i].a].name,
                       rows[apart[i].b].name);
    static const RunOptionId positive[] = {RUN_EPOCHS, RUN_SAVE_EVERY, RUN_EVAL_EVERY,
                                           RUN_SCHEDULE_STEPS, RUN_THREADS};
    for (size_t i = 0; i < sizeof positive / sizeof *positive; i++)
        if (o->given[positive[i]] && o->count[positive[i]] == 0)
            errors_add(errors, cap, "%s must be at least 1", rows[positive[i]].name);
}

void run_options_parse(int argc, char **argv, RunOptions *o, char *errors, size_t cap) {
    static const RunOptionId from_zero[] = {RUN_LR,       RUN_WEIGHT_DECAY, RUN_EPS,
                                            RUN_MOMENTUM, RUN_MIN_LR,       RUN_CLIP};
    *o = (RunOptions){0};
    errors[0] = 0;
    for (int i = 1; i < argc;) i += parse_one(argc - i, argv + i, o, errors, cap);
    if (o->given[RUN_HELP]) return;
    if (!o->dir) errors_add(errors, cap, "which step folder? trainc run DIR --data NAME=FILE");
    for (size_t i = 0; i < sizeof from_zero / sizeof *from_zero; i++)
        need_range(o, from_zero[i], 0, (double)INFINITY, false, errors, cap);
    if (o->given[RUN_CLIP] && o->real[RUN_CLIP] == 0)
        errors_add(errors, cap, "--clip must be above 0");
    need_range(o, RUN_BETAS, 0, 1, true, errors, cap);
    if (o->given[RUN_BETAS] && (o->second[RUN_BETAS] < 0 || o->second[RUN_BETAS] >= 1))
        errors_add(errors, cap, "--betas %s is out of range", o->text[RUN_BETAS]);
    parse_schedule(o, errors, cap);
    parse_scale(o, errors, cap);
    check_pairs(o, errors, cap);
}

void run_options_check_optimizer(const RunOptions *o, const char *optimizer, char *errors,
                                 size_t cap) {
    static const struct {
        const char *name, *takes;
    } table[] = {
#define OPTIMIZER(name, lr, wd, b1, b2, eps, momentum, takes) {#name, takes},
#include "optimizer_defaults.def"
#undef OPTIMIZER
    };
    static const RunOptionId special[] = {RUN_BETAS, RUN_EPS, RUN_MOMENTUM, RUN_NESTEROV};
    for (size_t t = 0; t < sizeof table / sizeof *table; t++)
        for (size_t i = 0;
             i < sizeof special / sizeof *special && strcmp(table[t].name, optimizer) == 0; i++)
            if (o->given[special[i]] && !strstr(table[t].takes, rows[special[i]].name + 2))
                errors_add(errors, cap, "%s has no %s", optimizer, rows[special[i]].name);
}
