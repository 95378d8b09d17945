/* run.c - `trainc run`: opens a step library, feeds it, and writes what comes out.
 *
 * The library's own copy of the runtime is not used: the driver asks it for its tables alone and
 * runs them itself, so the driver may set what trainc.h does not offer. Everything is opened and
 * checked before the first step; usage errors come out together. Ctrl-C is seen between steps: the
 * step is finished, saved where --save was given, and the exit status is 130. */
#include "run.h"
#include "file.h"
#include "names.h"
#include "run_data.h"
#include "run_log.h"
#include "rt_dtype.h"
#include <dirent.h>
#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ERROR_BYTES = 16384, INTERRUPTED = 130 };
static volatile sig_atomic_t interrupted;

typedef struct Run {
    RunOptions o;
    trainc_step *step;
    RunData data, eval;
    RunLog log;
    Schedule schedule;
    int64_t total; /* --steps, or what the epochs make */
    bool grads_saved;
    char errors[ERROR_BYTES];
} Run;

static int print_errors(const char *errors, int status) {
    for (const char *p = errors; *p;) {
        size_t n = strcspn(p, "\n");
        fprintf(stderr, "trainc: error: %.*s\n", (int)n, p);
        p += n + (p[n] == '\n');
    }
    return status;
}

static trainc_status fail(Run *r, trainc_status status, const char *text) {
    errors_add(r->errors, sizeof r->errors, "%s", text);
    return status;
}

/* ---------------------------------------------------------------- the library */

static trainc_status find_library(Run *r, char *path, size_t cap, char *symbol, size_t symbol_cap) {
    char name[256] = "", text[512];
    DIR *d = opendir(r->o.dir);
    int n = 0;
    if (!d) {
        snprintf(text, sizeof text, "%s is no step folder (trainc MODEL.onnx -o %s makes one)",
                 r->o.dir, r->o.dir);
        return fail(r, TRAINC_BAD_MODEL, text);
    }
    for (struct dirent *e; (e = readdir(d));) {
        size_t k = strlen(e->d_name);
        if (k > 6 && k < sizeof name && strncmp(e->d_name, "lib", 3) == 0 &&
            strcmp(e->d_name + k - 3, ".so") == 0) {
            snprintf(name, sizeof name, "%s", e->d_name);
            n++;
        }
    }
    closedir(d);
    if (n != 1) {
        snprintf(text, sizeof text, "%s holds %s step library (lib*.so)", r->o.dir,
                 n ? "more than one" : "no");
        return fail(r, TRAINC_BAD_MODEL, text);
    }
    snprintf(path, cap, "%s%s/%s", r->o.dir[0] == '/' ? "" : "./", r->o.dir, name);
    snprintf(symbol, symbol_cap, "%.*s_program", (int)(strlen(name) - 6), name + 3);
    return TRAINC_OK;
}

static trainc_status open_library(Run *r, const trainc_program **program) {
    char path[4600], symbol[300], text[5200];
    const trainc_program *(*get)(void);
    trainc_status s = find_library(r, path, sizeof path, symbol, sizeof symbol);
    if (s != TRAINC_OK) return s;
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *p = lib ? dlsym(lib, symbol) : NULL;
    if (!p) {
        const char *why = dlerror();
        snprintf(text, sizeof text, "cannot load the step library: %s", why ? why : path);
        return fail(r, TRAINC_BAD_MODEL, text);
    }
    memcpy(&get, &p, sizeof get);
    *program = get();
    return TRAINC_OK;
}

/* ---------------------------------------------------------------- preparing */

static void set_hyper(Run *r) {
    const RunOptions *o = &r->o;
    Hyper *h = &r->step->hyper;
    const struct {
        RunOptionId id;
        double value;
        double *to;
    } rows[] = {{RUN_LR, o->real[RUN_LR], &h->lr},
                {RUN_WEIGHT_DECAY, o->real[RUN_WEIGHT_DECAY], &h->weight_decay},
                {RUN_BETAS, o->real[RUN_BETAS], &h->beta1},
                {RUN_BETAS, o->second[RUN_BETAS], &h->beta2},
                {RUN_EPS, o->real[RUN_EPS], &h->eps},
                {RUN_MOMENTUM, o->real[RUN_MOMENTUM], &h->momentum},
                {RUN_CLIP, o->real[RUN_CLIP], &h->clip}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (o->given[rows[i].id]) *rows[i].to = rows[i].value;
    h->nesterov = o->given[RUN_NESTEROV];
    r->step->scaler = o->scaler;
    if (o->given[RUN_SEED]) r->step->seed = (uint64_t)o->count[RUN_SEED];
}

static trainc_status open_step(Run *r) {
    const trainc_program *program = NULL;
    trainc_status s = open_library(r, &program);
    if (s != TRAINC_OK) return s;
    trainc_options options = {.device = r->o.text[RUN_DEVICE],
                              .threads = (int)r->o.count[RUN_THREADS]};
    s = trainc_open(program, &options, &r->step);
    if (s != TRAINC_OK) return fail(r, s, trainc_error(r->step));
    run_options_check_optimizer(&r->o, program->optimizer, r->errors, sizeof r->errors);
    set_hyper(r);
    return r->errors[0] ? TRAINC_USAGE : TRAINC_OK;
}

static trainc_status open_data(Run *r) {
    const RunOptions *o = &r->o;
    trainc_status s = data_open(&r->data, r->step, o->data, o->n_data, o->given[RUN_SHUFFLE],
                                r->errors, sizeof r->errors);
    if (o->n_eval > 0) {
        trainc_status e =
            data_open(&r->eval, r->step, o->eval, o->n_eval, false, r->errors, sizeof r->errors);
        s = s == TRAINC_OK ? e : s;
    }
    if (s == TRAINC_OK && r->data.usable < r->data.rows)
        fprintf(stderr,
                "trainc: note: the last %lld samples of an epoch are left out: %s, so a part of a "
                "batch cannot be padded\n",
                (long long)(r->data.rows - r->data.usable),
                r->step->program->samples_mix ? "samples of a batch depend on one another"
                                              : "the loss is the model's own output");
    return s;
}

static trainc_status load_init(Run *r) {
    const char *path = r->o.text[RUN_INIT], *missing = NULL;
    int64_t taken = 0;
    trainc_status s = trainc_load(r->step, NULL);
    if (s == TRAINC_OK) s = weights_load(r->step, path, &taken, &missing);
    if (s == TRAINC_OK && missing)
        fprintf(stderr,
                "trainc: note: %s holds %lld of the parameters; others, such as %s, start as in "
                "the model\n",
                path, (long long)taken, missing);
    return s;
}

static trainc_status load_weights(Run *r) {
    const RunOptions *o = &r->o;
    trainc_step *step = r->step;
    trainc_status s;
    if (o->given[RUN_RESUME]) {
        if (!path_is_folder(o->text[RUN_RESUME])) {
            STEP_FAIL(step, TRAINC_BAD_MODEL, "%s is no checkpoint folder", o->text[RUN_RESUME]);
            return fail(r, TRAINC_BAD_MODEL, step->fail.text);
        }
        Scaler scaler = step->scaler;
        uint64_t seed = step->seed;
        s = trainc_load(step, o->text[RUN_RESUME]);
        step->scaler.mode = scaler.mode;
        if (scaler.mode != SCALER_DYNAMIC) step->scaler.scale = scaler.scale;
        if (o->given[RUN_SEED]) step->seed = seed;
    } else {
        s = o->given[RUN_INIT] ? load_init(r) : trainc_load(step, NULL);
    }
    return s == TRAINC_OK ? s : fail(r, s, trainc_error(step));
}

static void plan_steps(Run *r) {
    const RunOptions *o = &r->o;
    int64_t epochs = o->given[RUN_EPOCHS] ? o->count[RUN_EPOCHS] : 1;
    r->total = o->given[RUN_STEPS]
                   ? o->count[RUN_STEPS]
                   : epochs * data_steps_per_epoch(&r->data, r->step->program->batch);
    r->schedule =
        (Schedule){o->schedule,
                   r->step->hyper.lr,
                   o->real[RUN_MIN_LR],
                   o->count[RUN_WARMUP],
                   o->count[RUN_DECAY],
                   o->given[RUN_SCHEDULE_STEPS] ? o->count[RUN_SCHEDULE_STEPS] : r->total};
}

/* What is written after hours of training must not fail then for a mistyped path. */
static trainc_status try_outputs(Run *r) {
    static const RunOptionId files[] = {RUN_EXPORT, RUN_SAVE_GRADS};
    FileOut out;
    Fail f;
    trainc_status s = r->o.given[RUN_SAVE] ? save_try(r->o.text[RUN_SAVE], &f) : TRAINC_OK;
    for (size_t i = 0; s == TRAINC_OK && i < sizeof files / sizeof *files; i++) {
        if (!r->o.given[files[i]]) continue;
        s = file_create(&out, r->o.text[files[i]], &f);
        if (s == TRAINC_OK) file_abandon(&out);
    }
    return s == TRAINC_OK ? s : fail(r, s, f.text);
}

static trainc_status prepare(Run *r) {
    trainc_status s = open_step(r);
    if (s == TRAINC_OK) s = open_data(r);
    if (s == TRAINC_OK) s = load_weights(r);
    if (s != TRAINC_OK) return s;
    plan_steps(r);
    s = try_outputs(r);
    if (s != TRAINC_OK) return s;
    Fail f;
    s = log_open(&r->log, r->o.text[RUN_LOG], r->o.given[RUN_RESUME], &f);
    return s == TRAINC_OK ? s : fail(r, s, f.text);
}

/* ---------------------------------------------------------------- running */

static trainc_status save_grads(Run *r, const trainc_result *result) {
    const trainc_step *s = r->step;
    double factor = result->counted > 0
                        ? step_static_count(s) / ((double)result->counted * result->loss_scale)
                        : 1 / result->loss_scale;
    r->grads_saved = true;
    return grads_save(r->step, r->o.text[RUN_SAVE_GRADS], factor);
}

static trainc_status evaluate(Run *r, StepReport *p) {
    trainc_result e;
    trainc_tensor all[MAX_DATA];
    for (int i = 0; i < r->eval.n; i++) {
        all[i] = r->eval.feeds[i].tensor;
        if (r->eval.buffers[i] && step_needs_full_batch(r->step) && !r->step->program->samples_mix)
            all[i].dims[0] = r->eval.usable;
    }
    r->step->row_names = NULL;
    trainc_status s = trainc_evaluate(r->step, all, (size_t)r->eval.n, &e);
    p->has_eval = s == TRAINC_OK;
    p->eval_loss = e.loss;
    p->metrics = r->step->metrics;
    p->n_metrics = r->step->n_metrics;
    return s;
}

static bool every(const RunOptions *o, RunOptionId id, int64_t step) {
    return o->given[id] && step % o->count[id] == 0;
}

static trainc_status one_step(Run *r) {
    trainc_step *s = r->step;
    const RunOptions *o = &r->o;
    StepReport p = {.total_steps = r->total, .arena_bytes = trainc_arena_bytes(s)};
    s->hyper.lr = schedule_lr(&r->schedule, s->taken);
    p.samples = data_next(&r->data, s, s->program->batch);
    p.tokens = p.samples * s->program->tokens_per_sample;
    s->row_names = r->data.row_names;
    trainc_status status = trainc_train(s, r->data.batch, (size_t)r->data.n, &p.result);
    bool last = s->begun >= r->total;
    if (status == TRAINC_OK && o->given[RUN_SAVE_GRADS] && !r->grads_saved && !p.result.skipped)
        status = save_grads(r, &p.result);
    if (status == TRAINC_OK && r->eval.n > 0 &&
        (o->given[RUN_EVAL_EVERY] ? every(o, RUN_EVAL_EVERY, s->begun) : last))
        status = evaluate(r, &p);
    if (status == TRAINC_OK) status = log_step(&r->log, &p, o->text[RUN_LOG], &s->fail);
    if (status == TRAINC_OK && every(o, RUN_SAVE_EVERY, s->begun) && !last)
        status = trainc_save(s, o->text[RUN_SAVE]);
    return status;
}

static void on_interrupt(int signal) {
    (void)signal;
    interrupted = 1;
}

static trainc_status train(Run *r) {
    struct sigaction action = {.sa_handler = on_interrupt,
                               .sa_flags = (int)SA_RESETHAND}; /* a second Ctrl-C ends at once */
    trainc_status s = TRAINC_OK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    while (s == TRAINC_OK && !interrupted && r->step->begun < r->total) s = one_step(r);
    return s == TRAINC_OK ? s : fail(r, s, trainc_error(r->step));
}

/* ---------------------------------------------------------------- ending */

static trainc_status finish(Run *r) {
    trainc_status s = TRAINC_OK;
    if (r->o.given[RUN_SAVE]) s = trainc_save(r->step, r->o.text[RUN_SAVE]);
    if (s == TRAINC_OK && r->o.given[RUN_EXPORT] && !interrupted)
        s = model_export(r->step, r->o.text[RUN_EXPORT]);
    if (s == TRAINC_OK && r->o.given[RUN_SAVE_GRADS] && !r->grads_saved && !interrupted)
        fprintf(stderr, "trainc: note: no step was taken, so %s is not written\n",
                r->o.text[RUN_SAVE_GRADS]);
    return s == TRAINC_OK ? s : fail(r, s, trainc_error(r->step));
}

int trainc_run_main(int argc, char **argv) {
    Run *r = calloc(1, sizeof *r);
    Fail f;
    if (!r) return print_errors("no memory", TRAINC_NO_MEMORY);
    run_options_parse(argc, argv, &r->o, r->errors, sizeof r->errors);
    int status = r->errors[0] ? TRAINC_USAGE : TRAINC_OK;
    if (status == TRAINC_OK && r->o.given[RUN_HELP]) {
        run_options_help();
    } else if (status == TRAINC_OK) {
        status = (int)prepare(r);
        if (status == TRAINC_OK) status = (int)train(r);
        if (status == TRAINC_OK) status = (int)finish(r);
        trainc_status s = log_close(&r->log, r->o.text[RUN_LOG], &f);
        if (status == TRAINC_OK && s != TRAINC_OK) status = (int)fail(r, s, f.text);
    }
    if (status == TRAINC_OK && interrupted) status = INTERRUPTED;
    print_errors(r->errors, status);
    data_close(&r->data);
    data_close(&r->eval);
    trainc_close(r->step);
    free(r);
    return status;
}
