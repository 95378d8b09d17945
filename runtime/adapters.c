/* adapters.c - low-rank adapters outside the step: the configuration by which peft reads them, and
 * the matrix that a model has with them merged in, W + scale * B A. */
#include "file.h"
#include "rt_dtype.h"
#include "step.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- adapter_config.json ---- */

static void put_name(FILE *f, const char *name, size_t n) {
    fputc('"', f);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)name[i];
        if (c < 0x20)
            fprintf(f, "\\u%04x", c);
        else
            fprintf(f, c == '"' || c == '\\' ? "\\%c" : "%c", c);
    }
    fputc('"', f);
}

/* Modules are the names of matrices without ".weight"; peft wants a layer that keeps [in, out]
 * named. */
static void put_config(const trainc_step *s, FILE *f) {
    const trainc_adapter *all = s->program->adapters;
    const trainc_symbol *a = step_symbol(s, all[0].a, TRAINC_SYM_PARAM);
    long long rank = a ? (long long)a->dims[0] : 0;
    bool is_turned = true;
    for (uint32_t i = 0; i < s->program->n_adapters; i++) is_turned &= all[i].in_axis == 0;
    fprintf(f,
            "{\n  \"peft_type\": \"LORA\",\n  \"base_model_name_or_path\": null,\n  "
            "\"task_type\": null,\n  \"inference_mode\": true,\n  \"r\": %lld,\n  "
            "\"lora_alpha\": %.17g,\n  \"lora_dropout\": 0.0,\n  \"bias\": \"none\",\n  "
            "\"fan_in_fan_out\": %s,\n  \"init_lora_weights\": true,\n  \"modules_to_save\": "
            "null,\n  \"target_modules\": [",
            rank, all[0].scale * (double)rank, is_turned ? "true" : "false");
    for (uint32_t i = 0; i < s->program->n_adapters; i++) {
        size_t n = strlen(all[i].param), tail = sizeof ".weight" - 1;
        bool has_tail = n > tail && !strcmp(all[i].param + n - tail, ".weight");
        fputs(i ? ",\n    " : "\n    ", f);
        put_name(f, all[i].param, has_tail ? n - tail : n);
    }
    fputs("\n  ]\n}\n", f);
}

trainc_status adapters_config(trainc_step *s, const char *path) {
    char *text = NULL;
    size_t n = 0;
    FileOut o;
    FILE *f = open_memstream(&text, &n);
    if (!f) return STEP_FAIL(s, TRAINC_NO_MEMORY, "no memory to write %s", path);
    put_config(s, f);
    bool is_whole = !ferror(f);
    is_whole = fclose(f) == 0 && is_whole;
    trainc_status r = is_whole ? file_create(&o, path, &s->fail)
                               : STEP_FAIL(s, TRAINC_NO_MEMORY, "no memory to write %s", path);
    if (r == TRAINC_OK) {
        r = file_write(&o, text, n, &s->fail);
        if (r == TRAINC_OK)
            r = file_commit(&o, &s->fail);
        else
            file_abandon(&o);
    }
    free(text);
    return r;
}

/* ---- merging ---- */

typedef struct Factor {
    const trainc_symbol *y;
    void *bytes;
} Factor;

static trainc_status factor_take(trainc_step *s, const char *name, Factor *f) {
    f->y = step_symbol(s, name, TRAINC_SYM_PARAM);
    f->y = f->y ? state_weights(s, f->y) : NULL;
    if (!f->y) return STEP_FAIL(s, TRAINC_BAD_MODEL, "the program has no adapter %s", name);
    f->bytes = malloc(f->y->bytes + 1);
    if (!f->bytes) return STEP_FAIL(s, TRAINC_NO_MEMORY, "no memory to merge %s", name);
    return state_take(s, f->y, f->bytes);
}

/* In doubles, rounded once. */
static void add_product(const trainc_adapter *d, const Factor *a, const Factor *b,
                        const trainc_symbol *w, void *bytes) {
    int64_t rank = a->y->dims[0], in = a->y->dims[1], out = b->y->dims[0];
    trainc_dtype type = (trainc_dtype)w->dtype, of_a = (trainc_dtype)a->y->dtype,
                 of_b = (trainc_dtype)b->y->dtype;
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            int64_t at = d->in_axis ? o * in + i : i * out + o;
            double sum = 0;
            for (int64_t r = 0; r < rank; r++)
                sum += rt_read_float(b->bytes, of_b, o * rank + r) *
                       rt_read_float(a->bytes, of_a, r * in + i);
            rt_write_float(bytes, type, at, rt_read_float(bytes, type, at) + d->scale * sum);
        }
}

trainc_status adapters_merge(trainc_step *s, const char *param, const trainc_symbol *w,
                             void *bytes) {
    trainc_status r = TRAINC_OK;
    for (uint32_t i = 0; i < s->program->n_adapters && r == TRAINC_OK; i++) {
        const trainc_adapter *d = &s->program->adapters[i];
        Factor a = {0}, b = {0};
        if (strcmp(d->param, param) != 0) continue;
        r = factor_take(s, d->a, &a);
        if (r == TRAINC_OK) r = factor_take(s, d->b, &b);
        if (r == TRAINC_OK) add_product(d, &a, &b, w, bytes);
        free(a.bytes);
        free(b.bytes);
    }
    return r;
}
