/* export.c - the trained model as ONNX again: every initializer in the form in which the file has
 * it, whatever PyTorch calls the parameter and however it lays it out. What the exporter had merged
 * is written apart, what it had packed together is put together again, and adapters are merged into
 * the matrices beside which they stand. */
#include "names.h"
#include "rt_dtype.h"
#include <stdlib.h>
#include <string.h>

typedef struct Export {
    trainc_step *step;
    void *bytes, *turned;
    bool failed;
} Export;

static const trainc_holder *holder_of(const trainc_program *p, const char *initializer) {
    for (uint32_t i = 0; i < p->n_holders; i++)
        if (strcmp(p->holders[i].initializer, initializer) == 0) return &p->holders[i];
    return NULL;
}

static uint64_t holder_elems(const trainc_holder *h) {
    uint64_t n = 1;
    for (int d = 0; d < h->rank; d++) n *= (uint64_t)h->dims[d];
    return n;
}

/* Puts what h's parameter has into its place in the initializer; the bytes of it, 0 where it does
 * not fit. */
static uint64_t put_part(Export *e, const trainc_holder *h, uint64_t bytes) {
    const trainc_symbol *y = h->param ? step_symbol(e->step, h->param, TRAINC_SYM_PARAM) : NULL;
    y = y ? state_weights(e->step, y) : NULL;
    uint64_t size = y ? rt_dtype[y->dtype].bytes : 0, at = h->first * size;
    if (!y || holder_elems(h) * size != bytes || at > bytes || y->bytes > bytes - at) return 0;
    e->failed |= state_take(e->step, y, e->bytes) != TRAINC_OK;
    e->failed |= adapters_merge(e->step, h->param, y, e->bytes) != TRAINC_OK;
    uint64_t n = y->bytes / (h->blocks ? strlen(h->blocks) : 1);
    for (uint64_t k = 0; k * n < y->bytes; k++) {
        uint64_t to = h->blocks ? (uint64_t)(h->blocks[k] - '0') : k;
        memcpy((char *)e->turned + at + to * n, (const char *)e->bytes + k * n, n);
    }
    return y->bytes;
}

/* An initializer of several parameters. */
static const void *fetch_parts(Export *e, const char *initializer, uint64_t bytes) {
    const trainc_program *p = e->step->program;
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n_holders; i++)
        if (strcmp(p->holders[i].initializer, initializer) == 0)
            n += put_part(e, &p->holders[i], bytes);
    return n == bytes ? e->turned : NULL;
}

static bool is_part(const trainc_holder *h, const trainc_symbol *y) {
    return h->first || h->blocks || (y && holder_elems(h) * rt_dtype[y->dtype].bytes != y->bytes);
}

static const void *fetch_weight(void *user, const char *name, uint64_t bytes) {
    Export *e = user;
    const trainc_holder *h = holder_of(e->step->program, name);
    const char *param = h ? h->param : name;
    const trainc_symbol *y = param ? step_symbol(e->step, param, TRAINC_SYM_PARAM) : NULL;
    y = y ? state_weights(e->step, y) : NULL;
    const void *parts = h && is_part(h, y) ? fetch_parts(e, name, bytes) : NULL;
    if (parts) return parts;
    bool is_rows = h && y && !h->n_readers && h->rank > y->rank && bytes > y->bytes && y->bytes;
    if (!y || (is_rows ? bytes % y->bytes != 0 : y->bytes != bytes)) return NULL;
    e->failed |= state_take(e->step, y, e->bytes) != TRAINC_OK;
    e->failed |= adapters_merge(e->step, param, y, e->bytes) != TRAINC_OK;
    for (uint64_t at = y->bytes; at < bytes; at += y->bytes)
        memcpy((char *)e->bytes + at, e->bytes, y->bytes);
    if (!h || !h->is_transposed || !bytes) return e->bytes;
    transpose_elements(e->turned, e->bytes, 0, (uint64_t)y->dims[1], (uint64_t)y->dims[0],
                       (uint64_t)y->dims[1], rt_dtype[y->dtype].bytes);
    return e->turned;
}

/* What stands in the file only as another, or not at all. */
static size_t splits_of(const trainc_step *s, onnx_split *splits) {
    const trainc_program *p = s->program;
    size_t n = 0;
    for (uint32_t i = 0; i < p->n_holders; i++) {
        const trainc_holder *h = &p->holders[i];
        const trainc_symbol *y = h->param ? step_symbol(s, h->param, TRAINC_SYM_PARAM) : NULL;
        if (!h->n_readers || (!h->from && !y)) continue;
        splits[n++] = (onnx_split){.name = h->initializer,
                                   .from = h->from,
                                   .readers = h->readers,
                                   .n_readers = h->n_readers,
                                   .dtype = y ? state_weights(s, y)->dtype : 0,
                                   .n = (uint64_t)h->dims[0]};
    }
    return n;
}

trainc_status model_export(trainc_step *s, const char *path) {
    const trainc_program *p = s->program;
    uint64_t most = 1;
    char *error = NULL;
    for (uint32_t i = 0; i < s->n_order; i++)
        most = s->order[i]->bytes > most ? s->order[i]->bytes : most;
    for (uint32_t i = 0; i < p->n_holders; i++) {
        uint64_t bytes = holder_elems(&p->holders[i]) * sizeof(double);
        most = bytes > most ? bytes : most;
    }
    Export e = {s, malloc(most), malloc(most), false};
    onnx_split *splits = calloc(p->n_holders + 1, sizeof *splits);
    trainc_status status = TRAINC_OK;
    if (!e.bytes || !e.turned || !splits)
        status = STEP_FAIL(s, TRAINC_NO_MEMORY, "no memory to export");
    else
        status = onnx_wire_export(p->model, path, fetch_weight, &e, splits, splits_of(s, splits),
                                  &error);
    if (status != TRAINC_OK && error) STEP_FAIL(s, status, "%s", error);
    free(error);
    free(splits);
    free(e.turned);
    free(e.bytes);
    return e.failed ? TRAINC_DEVICE : status;
}
