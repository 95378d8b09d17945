/* run_data.c - files by input name, the order of samples, and batches.
 *
 * The order of an epoch is a Fisher-Yates shuffle by a generator seeded with (seed, epoch) alone,
 * so a resumed run finds its place without any state but the position. Batches are gathered into
 * buffers that are reserved once. */
#include "run_data.h"
#include "rt_dtype.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const trainc_symbol *input_named(const trainc_step *s, const char *name) {
    return step_symbol(s, name, TRAINC_SYM_INPUT);
}

static void unknown_input(const trainc_step *s, const char *name, char *errors, size_t cap) {
    const char *names[256], *near;
    char list[600] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_inputs && n < 256; i++) {
        names[n++] = s->inputs[i].symbol->name;
        size_t k = strlen(list);
        snprintf(list + k, sizeof list - k, "%s%s", i ? ", " : "", s->inputs[i].symbol->name);
    }
    near = run_closest_name(name, names, n);
    errors_add(errors, cap, "the program has no input %s (%s%s%s)", name,
               near ? "did you mean " : "it has ", near ? near : list, near ? "?" : "");
}

/* A file type too narrow for the table it points into is legal, and worth a word. */
static void warn_narrow(const Feed *d, const trainc_symbol *y) {
    uint32_t bits = rt_dtype[d->stored].bytes * 8;
    bool is_unsigned = d->stored == TRAINC_U8 || d->stored == TRAINC_U16;
    if (rt_dtype[d->stored].cls == RT_INT && bits <= 16 &&
        y->index_limit > (int64_t)1 << (is_unsigned ? bits : bits - 1))
        fprintf(stderr, "trainc: note: %s: %s cannot hold every index of %s (%lld rows)\n", d->path,
                rt_dtype[d->stored].name, y->name, (long long)y->index_limit);
    if (d->left_over)
        fprintf(
            stderr,
            "trainc: note: %s: the last %lld elements are no whole sample of %s and are not used\n",
            d->path, (long long)d->left_over, y->name);
}

static trainc_status open_files(RunData *r, trainc_step *s, const DataOption *list, int n,
                                char *errors, size_t cap) {
    trainc_status first = TRAINC_OK;
    for (int i = 0; i < n; i++) {
        const trainc_symbol *y = input_named(s, list[i].name);
        trainc_status status = TRAINC_USAGE;
        Fail f;
        if (!y) {
            unknown_input(s, list[i].name, errors, cap);
        } else {
            status = feed_open(&r->feeds[r->n++], y, list[i].file, &f);
            if (status != TRAINC_OK)
                errors_add(errors, cap, "%s", f.text);
            else
                warn_narrow(&r->feeds[r->n - 1], y);
        }
        first = first == TRAINC_OK ? status : first;
    }
    return first;
}

static trainc_status reserve_batch(RunData *r, trainc_step *s, bool shuffle) {
    int64_t batch = s->program->batch;
    bool good = (r->row_names = calloc((size_t)batch, sizeof *r->row_names)) != NULL;
    for (int i = 0; i < r->n && good; i++) {
        const trainc_tensor *t = &r->feeds[i].tensor;
        r->batch[i] = *t;
        if (input_named(s, t->name)->batch_axis < 0) continue;
        r->sample_bytes[i] = rt_dtype[t->dtype].bytes;
        for (int k = 1; k < t->rank; k++) r->sample_bytes[i] *= (uint64_t)t->dims[k];
        r->buffers[i] = malloc(r->sample_bytes[i] * (uint64_t)batch + 1);
        r->batch[i].data = r->buffers[i];
        good = r->buffers[i] != NULL;
    }
    if (good && shuffle) good = (r->order = calloc((size_t)r->rows, sizeof *r->order)) != NULL;
    r->ordered_epoch = -1;
    return good ? TRAINC_OK : STEP_FAIL(s, TRAINC_NO_MEMORY, "no memory for a batch");
}

trainc_status data_open(RunData *r, trainc_step *s, const DataOption *list, int n, bool shuffle,
                        char *errors, size_t cap) {
    trainc_tensor all[MAX_DATA];
    *r = (RunData){0};
    trainc_status status = open_files(r, s, list, n, errors, cap);
    if (status != TRAINC_OK) return status;
    for (int i = 0; i < r->n; i++) all[i] = r->feeds[i].tensor;
    status = inputs_bind(s, all, (size_t)r->n, 0, &r->rows);
    r->usable = r->rows;
    if (status == TRAINC_OK && step_needs_full_batch(s))
        r->usable = r->rows / s->program->batch * s->program->batch;
    if (status == TRAINC_OK && r->usable == 0)
        status = STEP_FAIL(s, TRAINC_BAD_DATA,
                           "the data hold %lld samples, one batch has %lld, and a part of a batch "
                           "cannot be used here",
                           (long long)r->rows, (long long)s->program->batch);
    if (status == TRAINC_OK) status = reserve_batch(r, s, shuffle);
    if (status != TRAINC_OK) errors_add(errors, cap, "%s", s->fail.text);
    return status;
}

void data_close(RunData *r) {
    for (int i = 0; i < r->n; i++) {
        feed_close(&r->feeds[i]);
        free(r->buffers[i]);
    }
    free(r->order);
    free(r->row_names);
    *r = (RunData){0};
}

int64_t data_steps_per_epoch(const RunData *r, int64_t batch) {
    return (r->usable + batch - 1) / batch;
}

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void shuffle_epoch(RunData *r, uint64_t seed, int64_t epoch) {
    uint64_t state = seed ^ 0x7472616e63u;
    state = mix(&state) + (uint64_t)epoch;
    for (int64_t i = 0; i < r->rows; i++) r->order[i] = i;
    for (int64_t i = r->rows - 1; i > 0; i--) {
        uint64_t n = (uint64_t)i + 1, limit = UINT64_MAX - UINT64_MAX % n, x;
        do x = mix(&state);
        while (x >= limit);
        int64_t j = (int64_t)(x % n), t = r->order[i];
        r->order[i] = r->order[j];
        r->order[j] = t;
    }
    r->ordered_epoch = epoch;
}

int64_t data_next(RunData *r, trainc_step *s, int64_t batch) {
    DataPosition *at = &s->data;
    if (at->next >= r->usable) {
        at->epoch++;
        at->next = 0;
    }
    if (r->order && r->ordered_epoch != at->epoch) shuffle_epoch(r, s->seed, at->epoch);
    int64_t left = r->usable - at->next, n = left < batch ? left : batch;
    for (int64_t i = 0; i < n; i++)
        r->row_names[i] = r->order ? r->order[at->next + i] : at->next + i;
    for (int k = 0; k < r->n; k++) {
        if (!r->buffers[k]) continue;
        for (int64_t i = 0; i < n; i++)
            memcpy((char *)r->buffers[k] + (uint64_t)i * r->sample_bytes[k],
                   (const char *)r->feeds[k].tensor.data +
                       (uint64_t)r->row_names[i] * r->sample_bytes[k],
                   r->sample_bytes[k]);
        r->batch[k].dims[0] = n;
    }
    at->next += n;
    return n;
}
