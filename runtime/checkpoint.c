/* checkpoint.c - a folder that a run can go on from, bit for bit.
 *
 * model.safetensors holds every parameter under the model's own name (the master copy where there
 * is one; adapters also by themselves, as peft reads them), state.safetensors the optimizer's moments and two tensors of our own (position:
 * integers, scale: doubles), trainc.json the same numbers for people and scripts, and what they
 * belong to. The folder is written beside its place and exchanged whole (file.c). Loading checks
 * all of it before it changes anything. */
#include "file.h"
#include "json.h"
#include "names.h"
#include "rt_dtype.h"
#include "safetensors.h"
#include "step.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARKER "trainc.json"
#define POSITION "trainc.position"
#define SCALE "trainc.loss_scale"
enum {
    N_POSITION = 6
}; /* steps begun, taken, epoch, next sample, seed, good steps of the scaler */

static StTensor entry_of(const trainc_symbol *y, const char *name) {
    StTensor t = {.name = name, .dtype = (trainc_dtype)y->dtype, .rank = y->rank};
    memcpy(t.dims, y->dims, sizeof t.dims);
    return t;
}

/* Streams a state through staging, scaled where `factor` is not 1 (then it must be f32). */
static trainc_status stream(trainc_step *s, const trainc_symbol *y, double factor, FileOut *o) {
    trainc_status r = TRAINC_OK;
    uint64_t piece = s->staging_bytes / 16 * 16;
    for (uint64_t at = 0; at < y->bytes && r == TRAINC_OK; at += piece) {
        uint64_t n = y->bytes - at < piece ? y->bytes - at : piece;
        r = s->device->vt->download(s->device, y->offset + at, s->staging, n, &s->fail);
        for (uint64_t i = 0; factor != 1 && i < n / rt_dtype[y->dtype].bytes && r == TRAINC_OK; i++)
            rt_write_float(s->staging, (trainc_dtype)y->dtype, (int64_t)i,
                           factor * rt_read_float(s->staging, (trainc_dtype)y->dtype, (int64_t)i));
        if (r == TRAINC_OK) r = file_write(o, s->staging, n, &s->fail);
    }
    return r;
}

typedef struct Listing {
    StTensor *tensors;
    const trainc_symbol **from;
    uint32_t n;
} Listing;

static bool listing_new(Listing *l, const trainc_step *s) {
    size_t cap = s->n_order + 2;
    *l = (Listing){calloc(cap, sizeof *l->tensors), calloc(cap, sizeof *l->from), 0};
    return l->tensors && l->from;
}

static void listing_free(Listing *l) {
    free(l->tensors);
    free(l->from);
}

static void listing_add(Listing *l, const trainc_symbol *y, const char *name) {
    l->tensors[l->n] = entry_of(y, name);
    l->from[l->n++] = y;
}

static trainc_status write_listing(trainc_step *s, const Listing *l, const char *path,
                                   double factor, const void *const tail[2]) {
    FileOut o;
    trainc_status r = st_begin(&o, path, l->tensors, l->n, "{\"format\":\"pt\"}", &s->fail);
    if (r != TRAINC_OK) return r;
    uint32_t n_tail = 0;
    for (uint32_t i = 0; i < l->n && r == TRAINC_OK; i++)
        r = l->from[i] ? stream(s, l->from[i], factor, &o)
                       : file_write(&o, tail[n_tail++], st_bytes(&l->tensors[i]), &s->fail);
    if (r == TRAINC_OK) return file_commit(&o, &s->fail);
    file_abandon(&o);
    return r;
}

trainc_status grads_save(trainc_step *s, const char *path, double factor) {
    Listing l;
    trainc_status r = TRAINC_OK;
    if (!listing_new(&l, s)) r = STEP_FAIL(s, TRAINC_NO_MEMORY, "no memory to write %s", path);
    for (uint32_t i = 0; r == TRAINC_OK && i < s->n_order; i++)
        if (s->order[i]->cls == TRAINC_SYM_GRADIENT)
            listing_add(&l, s->order[i], s->order[i]->of ? s->order[i]->of : s->order[i]->name);
    if (r == TRAINC_OK) r = write_listing(s, &l, path, factor, NULL);
    listing_free(&l);
    return r;
}

/* ---------------------------------------------------------------- saving */

static trainc_status write_model(trainc_step *s, const char *folder) {
    char path[4400];
    Listing l;
    trainc_status r = TRAINC_OK;
    if (!listing_new(&l, s)) r = STEP_FAIL(s, TRAINC_NO_MEMORY, "no memory to write a checkpoint");
    for (uint32_t i = 0; r == TRAINC_OK && i < s->n_order; i++)
        if (s->order[i]->cls == TRAINC_SYM_PARAM)
            listing_add(&l, state_weights(s, s->order[i]), s->order[i]->name);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (r == TRAINC_OK) r = write_listing(s, &l, path, 1, NULL);
    listing_free(&l);
    return r;
}

/* The adapters alone, as peft keeps them. */
static trainc_status write_adapters(trainc_step *s, const char *folder) {
    char path[4400];
    Listing l;
    trainc_status r = TRAINC_OK;
    if (!s->program->n_adapters) return r;
    if (!listing_new(&l, s)) r = STEP_FAIL(s, TRAINC_NO_MEMORY, "no memory to write a checkpoint");
    for (uint32_t i = 0; r == TRAINC_OK && i < s->program->n_adapters; i++) {
        const char *const names[] = {s->program->adapters[i].a, s->program->adapters[i].b};
        for (int k = 0; k < 2; k++) {
            const trainc_symbol *y = step_symbol(s, names[k], TRAINC_SYM_PARAM);
            if (y) listing_add(&l, state_weights(s, y), y->name);
        }
    }
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    if (r == TRAINC_OK) r = write_listing(s, &l, path, 1, NULL);
    listing_free(&l);
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    return r == TRAINC_OK ? adapters_config(s, path) : r;
}

static trainc_status write_state(trainc_step *s, const char *folder) {
    char path[4400];
    const int64_t position[N_POSITION] = {s->begun,     s->taken,         s->data.epoch,
                                          s->data.next, (int64_t)s->seed, s->scaler.good_steps};
    const void *const tail[2] = {position, &s->scaler.scale};
    Listing l;
    trainc_status r = TRAINC_OK;
    if (!listing_new(&l, s)) r = STEP_FAIL(s, TRAINC_NO_MEMORY, "no memory to write a checkpoint");
    for (uint32_t i = 0; r == TRAINC_OK && i < s->n_order; i++)
        if (s->order[i]->cls == TRAINC_SYM_OPTIMIZER)
            listing_add(&l, s->order[i], s->order[i]->name);
    snprintf(path, sizeof path, "%s/state.safetensors", folder);
    if (r == TRAINC_OK) {
        l.tensors[l.n++] =
            (StTensor){.name = POSITION, .dtype = TRAINC_I64, .rank = 1, .dims = {N_POSITION}};
        l.tensors[l.n++] = (StTensor){.name = SCALE, .dtype = TRAINC_F64, .rank = 0};
        r = write_listing(s, &l, path, 1, tail);
    }
    listing_free(&l);
    return r;
}

static trainc_status write_json(trainc_step *s, const char *folder) {
    char path[4400], text[1024];
    FileOut o;
    int n = snprintf(text, sizeof text,
                     "{\n  \"format\": 1,\n  \"program\": \"%s\",\n  \"optimizer\": \"%s\",\n  "
                     "\"step\": %" PRId64 ",\n  \"taken\": %" PRId64 ",\n  \"epoch\": %" PRId64
                     ",\n  \"next_sample\": %" PRId64 ",\n  \"seed\": %" PRIu64
                     ",\n  \"loss_scale\": %.17g\n}\n",
                     s->program->name, s->program->optimizer, s->begun, s->taken, s->data.epoch,
                     s->data.next, s->seed, s->scaler.scale);
    snprintf(path, sizeof path, "%s/" MARKER, folder);
    trainc_status r = file_create(&o, path, &s->fail);
    if (r != TRAINC_OK) return r;
    r = file_write(&o, text, (uint64_t)n, &s->fail);
    if (r == TRAINC_OK) return file_commit(&o, &s->fail);
    file_abandon(&o);
    return r;
}

trainc_status save_try(const char *folder, Fail *f) {
    char tmp[4300];
    trainc_status r = folder_begin(folder, MARKER, tmp, sizeof tmp, f);
    if (r == TRAINC_OK) folder_remove(tmp);
    return r;
}

trainc_status trainc_save(trainc_step *s, const char *folder) {
    char tmp[4300];
    if (!s->device) return TRAINC_USAGE;
    trainc_status r = s->is_loaded ? TRAINC_OK : trainc_load(s, NULL);
    if (r == TRAINC_OK) r = folder_begin(folder, MARKER, tmp, sizeof tmp, &s->fail);
    if (r != TRAINC_OK) return r;
    r = write_model(s, tmp);
    if (r == TRAINC_OK) r = write_adapters(s, tmp);
    if (r == TRAINC_OK) r = write_state(s, tmp);
    if (r == TRAINC_OK) r = write_json(s, tmp);
    if (r == TRAINC_OK) r = folder_commit(tmp, folder, &s->fail);
    if (r != TRAINC_OK) folder_remove(tmp);
    return r;
}

/* ---------------------------------------------------------------- loading */

/* Types that share their name in a checkpoint (i4 is written as I8) are what the program says. */
static trainc_dtype stored_type(const StTensor *t, const trainc_symbol *y) {
    bool is_same = !strcmp(rt_dtype[t->dtype].safetensors, rt_dtype[y->dtype].safetensors);
    return is_same ? (trainc_dtype)y->dtype : t->dtype;
}

static trainc_status check_entry(trainc_step *s, const trainc_symbol *y, const StTensor *t,
                                 const char *name, const char *path) {
    char have[200], want[200];
    if (!t)
        return STEP_FAIL(s, TRAINC_BAD_MODEL, "%s does not belong to this program: it lacks %s",
                         path, name);
    bool same = t->rank == y->rank && rt_converts(stored_type(t, y), (trainc_dtype)y->dtype);
    for (int i = 0; same && i < y->rank; i++) same = t->dims[i] == y->dims[i];
    if (same) return TRAINC_OK;
    return STEP_FAIL(s, TRAINC_BAD_MODEL, "%s: %s is %s %s, the program wants %s %s", path, name,
                     rt_dtype[t->dtype].name, fail_dims(have, sizeof have, t->rank, t->dims),
                     rt_dtype[y->dtype].name, fail_dims(want, sizeof want, y->rank, y->dims));
}

static trainc_status check_class(trainc_step *s, const StFile *f, trainc_symbol_class cls,
                                 const char *path) {
    trainc_status r = TRAINC_OK;
    for (uint32_t i = 0; i < s->n_order && r == TRAINC_OK; i++)
        if (s->order[i]->cls == cls)
            r = check_entry(s, s->order[i], name_entry(s, f, s->order[i]), s->order[i]->name, path);
    return r;
}

static trainc_status put_class(trainc_step *s, const StFile *f, trainc_symbol_class cls) {
    trainc_status r = TRAINC_OK;
    for (uint32_t i = 0; i < s->n_order && r == TRAINC_OK; i++) {
        const StTensor *t = s->order[i]->cls == cls ? name_entry(s, f, s->order[i]) : NULL;
        if (t) r = state_put(s, s->order[i], t->data, stored_type(t, s->order[i]));
    }
    return r;
}

static trainc_status check_json(trainc_step *s, const char *path) {
    FileMap map;
    char key[64], optimizer[64] = "";
    uint64_t format = 0;
    trainc_status r = file_map(&map, path, TRAINC_BAD_MODEL, &s->fail);
    if (r != TRAINC_OK) return r;
    Json j = json_open((const char *)map.bytes, map.n);
    for (json_enter(&j, '{'); json_next(&j, '}');) {
        json_key(&j, key, sizeof key);
        if (strcmp(key, "format") == 0)
            json_uint(&j, &format);
        else if (strcmp(key, "optimizer") == 0)
            json_string(&j, optimizer, sizeof optimizer);
        else
            json_skip(&j);
    }
    bool good = json_finish(&j) && format == 1;
    file_unmap(&map);
    if (!good) return STEP_FAIL(s, TRAINC_BAD_MODEL, "%s is no checkpoint of this version", path);
    if (strcmp(optimizer, s->program->optimizer) != 0)
        return STEP_FAIL(s, TRAINC_BAD_MODEL,
                         "%s was written with optimizer %s, the program has %s", path, optimizer,
                         s->program->optimizer);
    return TRAINC_OK;
}

static trainc_status restore(trainc_step *s, const StFile *model, const StFile *state,
                             const StTensor *position, const StTensor *scale) {
    trainc_status r = state_reset(s);
    if (r == TRAINC_OK) r = put_class(s, model, TRAINC_SYM_PARAM);
    if (r == TRAINC_OK) r = put_class(s, state, TRAINC_SYM_OPTIMIZER);
    s->begun = rt_read_int(position->data, TRAINC_I64, 0);
    s->taken = rt_read_int(position->data, TRAINC_I64, 1);
    s->data.epoch = rt_read_int(position->data, TRAINC_I64, 2);
    s->data.next = rt_read_int(position->data, TRAINC_I64, 3);
    s->seed = (uint64_t)rt_read_int(position->data, TRAINC_I64, 4);
    s->scaler.good_steps = rt_read_int(position->data, TRAINC_I64, 5);
    s->scaler.scale = rt_read_float(scale->data, TRAINC_F64, 0);
    return r;
}

static trainc_status load_files(trainc_step *s, const char *model_path, const char *state_path) {
    StFile model, state = {0};
    trainc_status r = st_open(&model, model_path, TRAINC_BAD_MODEL, &s->fail);
    if (r == TRAINC_OK) r = st_open(&state, state_path, TRAINC_BAD_MODEL, &s->fail);
    const StTensor *position = r == TRAINC_OK ? st_find(&state, POSITION) : NULL,
                   *scale = r == TRAINC_OK ? st_find(&state, SCALE) : NULL;
    if (r == TRAINC_OK && (!position || position->dtype != TRAINC_I64 || position->rank != 1 ||
                           position->dims[0] != N_POSITION || !scale ||
                           scale->dtype != TRAINC_F64 || scale->rank != 0))
        r = STEP_FAIL(s, TRAINC_BAD_MODEL, "%s does not say where training stands", state_path);
    if (r == TRAINC_OK) r = check_class(s, &model, TRAINC_SYM_PARAM, model_path);
    if (r == TRAINC_OK) r = check_class(s, &state, TRAINC_SYM_OPTIMIZER, state_path);
    if (r == TRAINC_OK) r = restore(s, &model, &state, position, scale);
    st_close(&state);
    st_close(&model);
    return r;
}

trainc_status checkpoint_load(trainc_step *s, const char *folder) {
    char model[4400], state[4400], json[4400];
    snprintf(json, sizeof json, "%s/" MARKER, folder);
    snprintf(model, sizeof model, "%s/model.safetensors", folder);
    snprintf(state, sizeof state, "%s/state.safetensors", folder);
    trainc_status r = check_json(s, json);
    return r == TRAINC_OK ? load_files(s, model, state) : r;
}

trainc_status weights_load(trainc_step *s, const char *path, int64_t *taken,
                           const char **first_missing) {
    StFile f;
    trainc_status r = st_open(&f, path, TRAINC_BAD_MODEL, &s->fail);
    *taken = 0;
    *first_missing = NULL;
    if (r != TRAINC_OK) return r;
    for (uint32_t i = 0; i < s->n_order && r == TRAINC_OK; i++) {
        const trainc_symbol *y = s->order[i];
        const StTensor *t = y->cls == TRAINC_SYM_PARAM ? name_entry(s, &f, y) : NULL;
        *taken += t != NULL;
        if (y->cls == TRAINC_SYM_PARAM && y->trains && !t && !*first_missing)
            *first_missing = y->name;
        r = t ? check_entry(s, y, t, y->name, path) : TRAINC_OK;
    }
    if (r == TRAINC_OK && *taken == 0)
        r = STEP_FAIL(s, TRAINC_BAD_MODEL, "%s holds no parameter of this program", path);
    if (r == TRAINC_OK) r = put_class(s, &f, TRAINC_SYM_PARAM);
    st_close(&f);
    return r;
}
