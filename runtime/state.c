/* state.c - what a step holds by name: reading and writing one tensor, the first weights, the list
 * of all.
 *
 * Weights lie in files as (file, offset, bytes) and go up from the mapping in pieces; states
 * without a source are filled with one value. A parameter with a master copy is written to both,
 * and read from the master. Anything written makes derived state stale: `init` runs again before
 * the next step. */
#include "file.h"
#include "names.h"
#include "rt_dtype.h"
#include "step.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool symbol_is_state(const trainc_symbol *y) { return y->cls <= TRAINC_SYM_PACKED; }

static trainc_status put(trainc_step *s, const trainc_symbol *y, const void *bytes) {
    return y->bytes ? s->device->vt->upload(s->device, y->offset, bytes, y->bytes, &s->fail)
                    : TRAINC_OK;
}

static trainc_status fill(trainc_step *s, const trainc_symbol *y) {
    uint32_t size = rt_dtype[y->dtype].bytes;
    uint64_t at = 0, piece = s->staging_bytes / size * size;
    trainc_status r = TRAINC_OK;
    for (uint64_t i = 0; i * size < piece && i * size < y->bytes; i++)
        rt_write_float(s->staging, (trainc_dtype)y->dtype, (int64_t)i, y->fill);
    for (; at < y->bytes && r == TRAINC_OK; at += piece) {
        uint64_t n = y->bytes - at < piece ? y->bytes - at : piece;
        r = s->device->vt->upload(s->device, y->offset + at, s->staging, n, &s->fail);
    }
    return r;
}

trainc_status state_constants(trainc_step *s) {
    trainc_status r = TRAINC_OK;
    for (uint32_t i = 0; i < s->plan->n_symbols && r == TRAINC_OK; i++) {
        const trainc_symbol *y = &s->plan->symbols[i];
        if (y->cls == TRAINC_SYM_CONST && y->data) r = put(s, y, y->data);
    }
    return r;
}

/* Zeros are not written to an arena that was reserved as zeros: its pages are then touched when
 * they are used. */
trainc_status state_reset(trainc_step *s) {
    trainc_status r = TRAINC_OK;
    for (uint32_t i = 0; i < s->plan->n_symbols && r == TRAINC_OK; i++) {
        const trainc_symbol *y = &s->plan->symbols[i];
        bool is_zero = s->device->is_zero && y->fill == 0 && !signbit(y->fill);
        if (!symbol_is_state(y) || y->file >= 0) continue;
        if (y->data)
            r = put(s, y, y->data);
        else if (!is_zero)
            r = fill(s, y);
    }
    s->device->is_zero = false;
    return r;
}

const trainc_symbol *state_weights(const trainc_step *s, const trainc_symbol *param) {
    for (uint32_t i = 0; i < s->plan->n_symbols; i++) {
        const trainc_symbol *y = &s->plan->symbols[i];
        if (y->cls == TRAINC_SYM_MASTER && y->of && strcmp(y->of, param->name) == 0) return y;
    }
    return param;
}

/* `n` elements from number `first` on; in pieces of the staging buffer, where the types differ. */
static trainc_status put_range(trainc_step *s, const trainc_symbol *y, uint64_t first, uint64_t n,
                               const void *from_bytes, trainc_dtype from) {
    trainc_dtype to = (trainc_dtype)y->dtype;
    uint64_t size = rt_dtype[to].bytes, piece = s->staging_bytes / 8,
             offset = y->offset + first * size;
    trainc_status r = TRAINC_OK;
    if (from == to)
        return n ? s->device->vt->upload(s->device, offset, from_bytes, n * size, &s->fail) : r;
    if (!rt_converts(from, to))
        return STEP_FAIL(s, TRAINC_BAD_MODEL, "%s: %s cannot become %s", y->name,
                         rt_dtype[from].name, rt_dtype[to].name);
    for (uint64_t at = 0; at < n && r == TRAINC_OK; at += piece) {
        uint64_t k = n - at < piece ? n - at : piece;
        if (rt_convert(s->staging, to, (const char *)from_bytes + at * rt_dtype[from].bytes, from,
                       (int64_t)k) >= 0)
            return STEP_FAIL(s, TRAINC_BAD_MODEL, "%s: a value does not fit %s", y->name,
                             rt_dtype[to].name);
        r = s->device->vt->upload(s->device, offset + at * size, s->staging, k * size, &s->fail);
    }
    return r;
}

trainc_status state_put_range(trainc_step *s, const trainc_symbol *y, uint64_t first, uint64_t n,
                              const void *bytes, trainc_dtype from) {
    trainc_status r = put_range(s, y, first, n, bytes, from);
    const trainc_symbol *master = y->cls == TRAINC_SYM_PARAM ? state_weights(s, y) : y;
    if (r == TRAINC_OK && master != y) r = put_range(s, master, first, n, bytes, from);
    s->is_derived = false;
    return r;
}

trainc_status state_put(trainc_step *s, const trainc_symbol *y, const void *bytes,
                        trainc_dtype from) {
    return state_put_range(s, y, 0, y->bytes / rt_dtype[y->dtype].bytes, bytes, from);
}

trainc_status state_take(trainc_step *s, const trainc_symbol *y, void *bytes) {
    return y->bytes ? s->device->vt->download(s->device, y->offset, bytes, y->bytes, &s->fail)
                    : TRAINC_OK;
}

/* ---------------------------------------------------------------- first weights */

static trainc_status load_file(trainc_step *s, uint32_t file) {
    FileMap map;
    trainc_status r = file_map(&map, s->program->files[file], TRAINC_BAD_MODEL, &s->fail);
    const uint64_t then = s->program->file_bytes ? s->program->file_bytes[file] : 0;
    if (r == TRAINC_OK && then && map.n != then)
        r = STEP_FAIL(
            s, TRAINC_BAD_MODEL,
            "%s has changed since it was compiled: %llu bytes then, %llu now; compile it again",
            s->program->files[file], (unsigned long long)then, (unsigned long long)map.n);
    for (uint32_t i = 0; i < s->plan->n_symbols && r == TRAINC_OK; i++) {
        const trainc_symbol *y = &s->plan->symbols[i];
        if (y->file != (int32_t)file) continue;
        if (y->file_offset > map.n || y->bytes > map.n - y->file_offset)
            r = STEP_FAIL(s, TRAINC_BAD_MODEL,
                          "%s is shorter than when it was compiled: weight %s lies beyond its end",
                          s->program->files[file], y->name);
        else if (y->is_transposed)
            r = state_put_transposed(s, y, map.bytes + y->file_offset, (trainc_dtype)y->dtype);
        else if (y->blocks)
            r = state_put_blocks(s, y, map.bytes + y->file_offset, (trainc_dtype)y->dtype,
                                 y->blocks);
        else
            r = put(s, y, map.bytes + y->file_offset);
    }
    file_unmap(&map);
    return r;
}

/* Everything as it was before the first step: weights from where the compiler found them, the rest
 * filled. */
static trainc_status load_own(trainc_step *s) {
    trainc_status r = state_reset(s);
    for (uint32_t f = 0; f < s->program->n_files && r == TRAINC_OK; f++) {
        bool used = false;
        for (uint32_t i = 0; i < s->plan->n_symbols; i++)
            used |= s->plan->symbols[i].file == (int32_t)f;
        r = used ? load_file(s, f) : TRAINC_OK;
    }
    s->begun = s->taken = 0;
    s->data = (DataPosition){0, 0};
    return r;
}

/* h: the form in which the program's own model holds y, or NULL. */
static trainc_status check_same(trainc_step *s, const trainc_symbol *y, const onnx_tensor *t,
                                const trainc_holder *h, const char *path) {
    char have[200], want[200];
    int rank = h ? h->rank : y->rank;
    const int64_t *dims = h ? h->dims : y->dims;
    bool same = t->rank == rank;
    for (int i = 0; same && i < rank; i++) same = t->dims[i] == dims[i];
    if (same && t->dtype && rt_converts((trainc_dtype)t->dtype, (trainc_dtype)y->dtype))
        return TRAINC_OK;
    return STEP_FAIL(s, TRAINC_BAD_MODEL, "%s: %s is %s, the program wants %s", path, t->name,
                     fail_dims(have, sizeof have, t->rank, t->dims),
                     fail_dims(want, sizeof want, rank, dims));
}

static trainc_status put_turned(trainc_step *s, const trainc_symbol *y, const char *bytes, int from,
                                const trainc_holder *h) {
    trainc_dtype dtype = (trainc_dtype)from;
    if (!h) return state_put(s, y, bytes, dtype);
    if (h->is_transposed) return state_put_transposed(s, y, bytes, dtype);
    return state_put_blocks(s, y, bytes + h->first * rt_dtype[dtype].bytes, dtype, h->blocks);
}

static trainc_status put_initializer(trainc_step *s, const trainc_symbol *y, const onnx_tensor *t,
                                     const trainc_holder *h) {
    FileMap map;
    if (!t->file) return put_turned(s, y, t->data, t->dtype, h);
    trainc_status r = file_map(&map, t->file, TRAINC_BAD_MODEL, &s->fail);
    if (r != TRAINC_OK) return r;
    r = t->offset > map.n || t->bytes > map.n - t->offset
            ? STEP_FAIL(s, TRAINC_BAD_MODEL, "%s is too short for %s", t->file, y->name)
            : put_turned(s, y, (const char *)map.bytes + t->offset, t->dtype, h);
    file_unmap(&map);
    return r;
}

static trainc_status load_onnx(trainc_step *s, const char *path) {
    onnx_tensors list = {0};
    char *error = NULL;
    size_t n = 0;
    trainc_status r = onnx_wire_model(path, &list, &error);
    if (r != TRAINC_OK) STEP_FAIL(s, r, "%s", error ? error : path);
    for (int pass = 0; pass < 2 && r == TRAINC_OK;
         pass++) /* all is checked before anything is changed */
        for (uint32_t i = 0; i < s->n_order && r == TRAINC_OK; i++) {
            const trainc_symbol *y = s->order[i];
            const trainc_holder *h = NULL;
            const onnx_tensor *t =
                y->cls == TRAINC_SYM_PARAM ? name_initializer(s, &list, y, &h) : NULL;
            n += t != NULL;
            if (t) r = pass ? put_initializer(s, y, t, h) : check_same(s, y, t, h, path);
        }
    if (r == TRAINC_OK && n == 0)
        r = STEP_FAIL(s, TRAINC_BAD_MODEL, "%s holds no parameter of this program", path);
    onnx_wire_free(&list);
    free(error);
    return r;
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

trainc_status trainc_load(trainc_step *s, const char *path) {
    int64_t taken;
    const char *missing;
    trainc_status r = TRAINC_OK;
    if (!s->device) return TRAINC_USAGE;
    if (path && path_is_folder(path)) {
        r = checkpoint_load(s, path);
    } else {
        if (!path || !s->is_loaded) r = load_own(s);
        if (r == TRAINC_OK && path)
            r = ends_with(path, ".onnx") ? load_onnx(s, path)
                                         : weights_load(s, path, &taken, &missing);
    }
    if (r == TRAINC_OK) {
        s->is_loaded = true;
        s->is_derived = false;
    }
    return r;
}

/* ---------------------------------------------------------------- by name */

static trainc_status checked(trainc_step *s, const char *name, size_t bytes,
                             const trainc_symbol **y) {
    if (!s->device) return TRAINC_USAGE;
    *y = name_symbol(s, name);
    if (!*y) return STEP_FAIL(s, TRAINC_USAGE, "nothing is called %s", name);
    if ((*y)->bytes != bytes)
        return STEP_FAIL(s, TRAINC_USAGE, "%s has %llu bytes, not %zu", name,
                         (unsigned long long)(*y)->bytes, bytes);
    return (*y)->cls == TRAINC_SYM_OUTPUT || s->is_loaded ? TRAINC_OK : trainc_load(s, NULL);
}

trainc_status trainc_get(trainc_step *s, const char *name, void *to, size_t bytes) {
    const trainc_symbol *y;
    trainc_status r = checked(s, name, bytes, &y);
    return r == TRAINC_OK ? state_take(s, y, to) : r;
}

trainc_status trainc_set(trainc_step *s, const char *name, const void *from, size_t bytes) {
    const trainc_symbol *y;
    trainc_status r = checked(s, name, bytes, &y);
    if (r == TRAINC_OK && y->cls == TRAINC_SYM_OUTPUT)
        r = STEP_FAIL(s, TRAINC_USAGE, "%s is an output", name);
    return r == TRAINC_OK ? state_put(s, y, from, (trainc_dtype)y->dtype) : r;
}

size_t trainc_count(const trainc_step *s) { return s->n_order; }

trainc_status trainc_describe(const trainc_step *s, size_t i, trainc_info *info) {
    static const char *const cls[] = {"parameter", "master", "optimizer", "gradient", "counter",
                                      "packed",    "input",  "output",    "constant"};
    if (i >= s->n_order) return TRAINC_USAGE;
    const trainc_symbol *y = s->order[i];
    *info = (trainc_info){y->name,  cls[y->cls], (trainc_dtype)y->dtype, y->rank, {0}, y->offset,
                          y->bytes, y->trains};
    memcpy(info->dims, y->dims, sizeof info->dims);
    return TRAINC_OK;
}
