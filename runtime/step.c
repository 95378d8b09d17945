/* step.c - opens a program on a device and runs optimizer steps: micro-batches, then apply.
 *
 * A step is begun when its inputs are valid. Gradients are accumulated without normalisation by
 * `micro` and normalised by `apply`, so a micro-batch without samples is simply not run, and a step
 * in which nothing counted never reaches `apply`. All buffers are reserved by trainc_open; later
 * calls allocate nothing. */
#include "step.h"
#include "rt_dtype.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *trainc_version(void) { return TRAINC_VERSION; }

const char *trainc_error(const trainc_step *s) { return s ? s->fail.text : "no memory"; }

uint64_t trainc_arena_bytes(const trainc_step *s) {
    return s->device ? s->device->reserved_bytes : 0;
}

Hyper hyper_defaults(const char *optimizer) {
    static const struct {
        const char *name;
        Hyper h;
    } rows[] = {
#define OPTIMIZER(name, lr, wd, b1, b2, eps, momentum, takes)                                      \
    {#name, {lr, wd, b1, b2, eps, momentum, (double)INFINITY, 0}},
#include "optimizer_defaults.def"
#undef OPTIMIZER
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, optimizer) == 0) return rows[i].h;
    return rows[0].h;
}

const trainc_symbol *step_symbol(const trainc_step *s, const char *name, trainc_symbol_class cls) {
    for (uint32_t i = 0; i < s->plan->n_symbols; i++)
        if (s->plan->symbols[i].cls == cls && strcmp(s->plan->symbols[i].name, name) == 0)
            return &s->plan->symbols[i];
    return NULL;
}

bool step_needs_full_batch(const trainc_step *s) {
    return s->program->samples_mix || strncmp(s->program->loss, "output", 6) == 0;
}

double step_static_count(const trainc_step *s) {
    const trainc_symbol *labels = step_symbol(s, "labels", TRAINC_SYM_INPUT);
    double k = (double)s->program->accumulation_steps;
    if (strncmp(s->program->loss, "output", 6) == 0) return k;
    if (!s->program->mean_counts_labels || !labels) return (double)s->program->batch;
    return (double)(labels->bytes / rt_dtype[labels->dtype].bytes) * k;
}

/* ---------------------------------------------------------------- opening */

static void apply_options(trainc_step *s, const trainc_options *o) {
    Hyper *h = &s->hyper;
    *h = hyper_defaults(s->program->optimizer);
    if (!o) return;
    s->seed = o->seed;
    h->nesterov = o->nesterov;
    const struct {
        unsigned bit;
        float value;
        double *to;
    } rows[] = {{TRAINC_SET_LR, o->lr, &h->lr},
                {TRAINC_SET_WEIGHT_DECAY, o->weight_decay, &h->weight_decay},
                {TRAINC_SET_BETA1, o->beta1, &h->beta1},
                {TRAINC_SET_BETA2, o->beta2, &h->beta2},
                {TRAINC_SET_EPS, o->eps, &h->eps},
                {TRAINC_SET_MOMENTUM, o->momentum, &h->momentum},
                {TRAINC_SET_CLIP, o->clip, &h->clip}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (o->set & rows[i].bit) *rows[i].to = (double)rows[i].value;
}

static const trainc_plan *plan_for(const trainc_program *p, const char *kind) {
    for (uint32_t i = 0; i < p->n_plans; i++)
        if (strcmp(p->plans[i].device, kind) == 0) return &p->plans[i];
    return NULL;
}

static trainc_status open_on(trainc_step *s, const DeviceVtable *vt, int ordinal, int threads) {
    const char *bad;
    s->plan = plan_for(s->program, vt->kind);
    if (!s->plan)
        return STEP_FAIL(s, TRAINC_USAGE, "%s was not compiled for device %s", s->program->name,
                         vt->kind);
    if (!device_args_valid(s->plan, &bad))
        return STEP_FAIL(s, TRAINC_BAD_MODEL,
                         "the library's tables are broken or from another version: %s", bad);
    DeviceSetup setup = {s->plan, s->scalars, ordinal, threads};
    return vt->open(&setup, &s->device, &s->fail);
}

/* "hip:1" -> hip, 1. The first usable target, in the library's order, where no device is asked for.
 */
static trainc_status open_device(trainc_step *s, const trainc_options *o) {
    static const DeviceVtable *const devices[] = {&cpu_device, &hip_device};
    const char *want = o ? o->device : NULL;
    int threads = o ? o->threads : 0;
    trainc_status r = TRAINC_OK;
    for (uint32_t p = 0; !want && p < s->program->n_plans; p++)
        for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
            if (strcmp(devices[i]->kind, s->program->plans[p].device) == 0) {
                r = open_on(s, devices[i], 0, threads);
                if (r != TRAINC_DEVICE) return r;
            }
    if (!want)
        return r != TRAINC_OK ? r : STEP_FAIL(s, TRAINC_BAD_MODEL, "the library holds no target");
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        size_t n = strlen(devices[i]->kind);
        char *end = NULL;
        if (strncmp(want, devices[i]->kind, n) != 0 || (want[n] != 0 && want[n] != ':')) continue;
        long ordinal = want[n] == ':' ? strtol(want + n + 1, &end, 10) : 0;
        if (want[n] == ':' && (end == want + n + 1 || *end != 0 || ordinal < 0 || ordinal > 1023))
            break;
        return open_on(s, devices[i], (int)ordinal, threads);
    }
    return STEP_FAIL(s, TRAINC_USAGE, "no such device: %s (cpu, hip or hip:N)", want);
}

static int describe_rank(const trainc_symbol *y) {
    switch ((trainc_symbol_class)y->cls) {
    case TRAINC_SYM_PARAM:
        return 0;
    case TRAINC_SYM_MASTER:
        return 1;
    case TRAINC_SYM_OPTIMIZER:
        return 2;
    case TRAINC_SYM_GRADIENT:
        return 3;
    case TRAINC_SYM_INPUT:
        return 4;
    case TRAINC_SYM_OUTPUT:
        return 5;
    case TRAINC_SYM_COUNTER:
    case TRAINC_SYM_PACKED:
    case TRAINC_SYM_CONST:
        break;
    }
    return -1;
}

static trainc_status order_symbols(trainc_step *s) {
    s->order = calloc(s->plan->n_symbols ? s->plan->n_symbols : 1, sizeof *s->order);
    if (!s->order) return STEP_FAIL(s, TRAINC_NO_MEMORY, "no memory for the symbols");
    for (int rank = 0; rank <= 5; rank++)
        for (uint32_t i = 0; i < s->plan->n_symbols; i++)
            if (describe_rank(&s->plan->symbols[i]) == rank)
                s->order[s->n_order++] = &s->plan->symbols[i];
    return TRAINC_OK;
}

static trainc_status check_program(trainc_step *s) {
    const trainc_program *p = s->program;
    if (p->abi != TRAINC_ABI)
        return STEP_FAIL(s, TRAINC_BAD_MODEL,
                         "the library speaks version %u of the tables, this runtime version %d: "
                         "compile the model again",
                         p->abi, TRAINC_ABI);
    return TRAINC_OK;
}

static void find_outputs(trainc_step *s) {
    s->out_loss = step_symbol(s, "loss", TRAINC_SYM_OUTPUT);
    s->out_grad_norm = step_symbol(s, "grad_norm", TRAINC_SYM_OUTPUT);
    s->out_eval_sum = step_symbol(s, "loss_sum", TRAINC_SYM_OUTPUT);
    s->out_eval_count = step_symbol(s, "loss_count", TRAINC_SYM_OUTPUT);
    s->sum_loss_count = step_symbol(s, "loss_count", TRAINC_SYM_COUNTER);
    for (uint32_t i = 0; i < s->plan->n_symbols && s->n_metrics < MAX_METRICS; i++) {
        const trainc_symbol *y = &s->plan->symbols[i];
        size_t n = strlen(y->name);
        Metric *m = &s->metrics[s->n_metrics];
        if (y->cls != TRAINC_SYM_OUTPUT || y->dtype != TRAINC_F32 || y->bytes != 4 ||
            y == s->out_eval_sum || n < 5 || n - 4 >= sizeof m->name ||
            strcmp(y->name + n - 4, "_sum") != 0)
            continue;
        m->symbol = y;
        memcpy(m->name, y->name, n - 4);
        s->n_metrics++;
    }
}

trainc_status trainc_open(const trainc_program *p, const trainc_options *o, trainc_step **out) {
    trainc_step *s = calloc(1, sizeof *s);
    *out = s;
    if (!s) return TRAINC_NO_MEMORY;
    s->program = p;
    s->scaler = (Scaler){SCALER_OFF, 1, 0};
    trainc_status r = check_program(s);
    if (r == TRAINC_OK) {
        apply_options(s, o);
        r = open_device(s, o);
    }
    if (r == TRAINC_OK && (r = inputs_init(s)) == TRAINC_OK &&
        (r = order_symbols(s)) == TRAINC_OK) {
        find_outputs(s);
        if (s->staging_bytes < 1 << 16) s->staging_bytes = 1 << 16;
        s->staging = malloc(s->staging_bytes);
        r = s->staging ? state_constants(s)
                       : STEP_FAIL(s, TRAINC_NO_MEMORY, "no memory for staging");
    }
    if (r != TRAINC_OK && s->device) {
        s->device->vt->close(s->device);
        s->device = NULL;
    }
    return r;
}

void trainc_close(trainc_step *s) {
    if (!s) return;
    if (s->device) s->device->vt->close(s->device);
    free(s->inputs);
    free(s->order);
    free(s->staging);
    free(s);
}

trainc_status trainc_set_lr(trainc_step *s, float lr) {
    s->hyper.lr = (double)lr;
    return TRAINC_OK;
}

/* ---------------------------------------------------------------- running */

trainc_status step_scalar_out(trainc_step *s, const trainc_symbol *y, double *out) {
    float x = 0;
    *out = NAN;
    if (!y) return TRAINC_OK;
    trainc_status r = s->device->vt->download(s->device, y->offset, &x, sizeof x, &s->fail);
    *out = (double)x;
    return r;
}

/* The bias corrections use the betas as the kernels see them, rounded to float: then the first step
 * is exact. */
static void set_scalars(trainc_step *s) {
    ScalarValue *v = s->scalars;
    const Hyper *h = &s->hyper;
    double t = (double)(s->taken + 1);
    v[SCALAR_lr].f = (float)h->lr;
    v[SCALAR_weight_decay].f = (float)h->weight_decay;
    v[SCALAR_beta1].f = (float)h->beta1;
    v[SCALAR_beta2].f = (float)h->beta2;
    v[SCALAR_bias1].f = (float)(1 - pow((double)v[SCALAR_beta1].f, t));
    v[SCALAR_bias2].f = (float)(1 - pow((double)v[SCALAR_beta2].f, t));
    v[SCALAR_eps].f = (float)h->eps;
    v[SCALAR_momentum].f = (float)h->momentum;
    v[SCALAR_nesterov].f = h->nesterov ? 1 : 0;
    v[SCALAR_first].f = s->taken == 0 ? 1 : 0;
    v[SCALAR_taken].f = (float)t;
    v[SCALAR_decay].f = (float)pow(t, -0.8);
    v[SCALAR_clip].f = h->clip > 0 ? (float)h->clip : INFINITY;
    v[SCALAR_loss_scale].f = (float)s->scaler.scale;
    v[SCALAR_step].i = s->begun;
    v[SCALAR_seed].i = (int64_t)s->seed;
}

trainc_status step_ready(trainc_step *s) {
    trainc_status r = TRAINC_OK;
    if (!s->is_loaded && (r = trainc_load(s, NULL)) != TRAINC_OK) return r;
    if (!s->is_derived) {
        set_scalars(s);
        r = s->device->vt->run(s->device, ENTRY_OF_INIT, &s->fail);
        s->is_derived = r == TRAINC_OK;
    }
    return r;
}

static trainc_status run_micro(trainc_step *s, int entry, int64_t m, int64_t samples) {
    int64_t rows = s->program->micro_batch, left = samples - m * rows,
            count = left < rows ? left : rows;
    s->scalars[SCALAR_micro].i = m;
    s->scalars[SCALAR_samples].i = count;
    trainc_status r = inputs_upload(s, m * rows, count);
    return r == TRAINC_OK ? s->device->vt->run(s->device, entry, &s->fail) : r;
}

static void scaler_update(Scaler *c, bool overflow) {
    if (c->mode != SCALER_DYNAMIC) return;
    if (overflow) {
        c->scale *= 0.5;
        c->good_steps = 0;
    } else if (++c->good_steps == 2000) {
        c->scale *= 2;
        c->good_steps = 0;
    }
}

static trainc_status apply(trainc_step *s, trainc_result *out) {
    trainc_status r = s->device->vt->run(s->device, ENTRY_OF_APPLY, &s->fail);
    if (r == TRAINC_OK) r = step_scalar_out(s, s->out_loss, &out->loss);
    if (r == TRAINC_OK) r = step_scalar_out(s, s->out_grad_norm, &out->grad_norm);
    if (r != TRAINC_OK) return r;
    bool overflow = s->scaler.mode != SCALER_OFF && !isfinite(out->grad_norm);
    out->skipped = overflow;
    s->taken += !overflow;
    scaler_update(&s->scaler, overflow);
    return TRAINC_OK;
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

trainc_status trainc_train(trainc_step *s, const trainc_tensor *inputs, size_t n,
                           trainc_result *out) {
    int64_t samples;
    double counted = 0, begin = now_ms();
    if (!s->device) return TRAINC_USAGE; /* open failed, and its sentence stands */
    trainc_status r = inputs_bind(s, inputs, n, s->program->batch, &samples);
    if (r == TRAINC_OK && samples < s->program->batch && step_needs_full_batch(s))
        r = STEP_FAIL(s, TRAINC_BAD_DATA,
                      "%lld samples for a batch of %lld: this loss takes whole batches only",
                      (long long)samples, (long long)s->program->batch);
    if (r == TRAINC_OK) r = step_ready(s);
    if (r != TRAINC_OK) return r;
    s->begun++;
    set_scalars(s);
    trainc_result result = {.loss = NAN,
                            .grad_norm = NAN,
                            .lr = s->hyper.lr,
                            .loss_scale = s->scaler.scale,
                            .skipped = 1,
                            .step = s->begun};
    for (int64_t m = 0; m < s->program->accumulation_steps &&
                        m * s->program->micro_batch < samples && r == TRAINC_OK;
         m++)
        r = run_micro(s, ENTRY_OF_MICRO, m, samples);
    if (r == TRAINC_OK)
        r = s->sum_loss_count ? step_scalar_out(s, s->sum_loss_count, &counted) : TRAINC_OK;
    result.counted = (int64_t)counted;
    if (r == TRAINC_OK && (counted > 0 || !s->sum_loss_count)) r = apply(s, &result);
    result.ms = now_ms() - begin;
    if (out && r == TRAINC_OK) *out = result;
    return r;
}

/* Adds what the eval entry has just computed. */
static trainc_status add_eval(trainc_step *s, double *sum, double *count) {
    double part = 0;
    if (!s->out_eval_sum) return TRAINC_OK;
    trainc_status r = step_scalar_out(s, s->out_eval_sum, &part);
    *sum += part;
    if (r == TRAINC_OK) r = step_scalar_out(s, s->out_eval_count, &part);
    *count += part;
    for (uint32_t i = 0; i < s->n_metrics && r == TRAINC_OK; i++) {
        r = step_scalar_out(s, s->metrics[i].symbol, &part);
        s->metrics[i].value += part;
    }
    return r;
}

trainc_status trainc_evaluate(trainc_step *s, const trainc_tensor *inputs, size_t n,
                              trainc_result *out) {
    int64_t samples;
    double sum = 0, count = 0, begin = now_ms();
    if (!s->device) return TRAINC_USAGE;
    trainc_status r = inputs_bind(s, inputs, n, 0, &samples);
    if (r == TRAINC_OK) r = step_ready(s);
    if (r != TRAINC_OK) return r;
    set_scalars(s);
    for (uint32_t i = 0; i < s->n_metrics; i++) s->metrics[i].value = 0;
    for (int64_t m = 0; m * s->program->micro_batch < samples && r == TRAINC_OK; m++) {
        r = run_micro(s, ENTRY_OF_EVAL, m, samples);
        if (r == TRAINC_OK) r = add_eval(s, &sum, &count);
    }
    for (uint32_t i = 0; i < s->n_metrics; i++)
        s->metrics[i].value = count > 0 ? s->metrics[i].value / count : (double)NAN;
    if (out && r == TRAINC_OK)
        *out = (trainc_result){.loss = count > 0 ? sum / count : NAN,
                               .grad_norm = NAN,
                               .lr = s->hyper.lr,
                               .loss_scale = s->scaler.scale,
                               .step = s->begun,
                               .counted = (int64_t)count,
                               .ms = now_ms() - begin};
    return r;
}
