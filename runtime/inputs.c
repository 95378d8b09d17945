/* inputs.c - from a caller's tensors to a micro-batch in the arena.
 *
 * Binding checks everything before anything runs: names, types, shapes, the number of samples, and
 * that every index lies in its range (a value beyond it would make a kernel read elsewhere).
 * Uploading converts one micro-batch into staging, with the samples along the model's own batch
 * axis, and pads what is missing: labels with ignore_index, all else with zeros. */
#include "rt_dtype.h"
#include "step.h"
#include <stdlib.h>
#include <string.h>

static int64_t elems(const int64_t *dims, int rank) {
    int64_t n = 1;
    for (int i = 0; i < rank; i++) n *= dims[i];
    return n;
}

trainc_status inputs_init(trainc_step *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->plan->n_symbols; i++)
        n += s->plan->symbols[i].cls == TRAINC_SYM_INPUT;
    s->inputs = calloc(n ? n : 1, sizeof *s->inputs);
    if (!s->inputs) return STEP_FAIL(s, TRAINC_NO_MEMORY, "no memory for the inputs");
    for (uint32_t i = 0; i < s->plan->n_symbols; i++) {
        const trainc_symbol *y = &s->plan->symbols[i];
        if (y->cls != TRAINC_SYM_INPUT) continue;
        int axis = y->batch_axis;
        bool split = axis >= 0 && axis < y->rank;
        bool label = strcmp(y->name, "labels") == 0 && rt_dtype[y->dtype].cls == RT_INT;
        s->inputs[s->n_inputs++] = (Bound){y,
                                           NULL,
                                           label,
                                           split ? y->dims[axis] : 0,
                                           split ? elems(y->dims, axis) : 1,
                                           split ? elems(y->dims + axis + 1, y->rank - axis - 1)
                                                 : elems(y->dims, y->rank)};
        if (y->bytes > s->staging_bytes) s->staging_bytes = y->bytes;
    }
    return TRAINC_OK;
}

static Bound *find(trainc_step *s, const char *name) {
    for (uint32_t i = 0; i < s->n_inputs; i++)
        if (strcmp(s->inputs[i].symbol->name, name) == 0) return &s->inputs[i];
    return NULL;
}

static trainc_status unknown_input(trainc_step *s, const char *name) {
    char list[512] = "";
    for (uint32_t i = 0; i < s->n_inputs; i++) {
        if (strlen(list) + strlen(s->inputs[i].symbol->name) + 3 > sizeof list) break;
        strcat(strcat(list, i ? ", " : ""), s->inputs[i].symbol->name);
    }
    return STEP_FAIL(s, TRAINC_USAGE, "the program has no input %s; it has %s", name, list);
}

/* Equal extents but for extents of 1: the same elements in the same order. */
static bool same_but_ones(const int64_t *a, int na, const int64_t *b, int nb) {
    int i = 0, j = 0;
    for (;;) {
        while (i < na && a[i] == 1) i++;
        while (j < nb && b[j] == 1) j++;
        if (i == na || j == nb) return i == na && j == nb;
        if (a[i++] != b[j++]) return false;
    }
}

static trainc_status wrong_shape(trainc_step *s, const Bound *b) {
    char have[200], want[200];
    const trainc_symbol *y = b->symbol;
    fail_dims(have, sizeof have, b->tensor->rank, b->tensor->dims);
    fail_dims(want, sizeof want, y->rank, y->dims);
    if (b->rows == 0)
        return STEP_FAIL(s, TRAINC_BAD_DATA, "%s: the data have the shape %s, the model wants %s",
                         y->name, have, want);
    return STEP_FAIL(
        s, TRAINC_BAD_DATA,
        "%s: the data have the shape %s; samples come first, and each must fit %s along axis %d",
        y->name, have, want, y->batch_axis);
}

/* Samples first, then the model's dims without its batch axis. */
static trainc_status check_shape(trainc_step *s, const Bound *b) {
    const trainc_symbol *y = b->symbol;
    const trainc_tensor *t = b->tensor;
    int64_t one[8];
    int n = 0;
    if (t->rank < 0 || t->rank > 8)
        return STEP_FAIL(s, TRAINC_BAD_DATA, "%s: rank %d", y->name, t->rank);
    for (int i = 0; i < y->rank; i++)
        if (b->rows == 0 || i != y->batch_axis) one[n++] = y->dims[i];
    int skip = b->rows ? 1 : 0;
    if (t->rank < skip || !same_but_ones(t->dims + skip, t->rank - skip, one, n))
        return wrong_shape(s, b);
    return TRAINC_OK;
}

static trainc_status check_range(trainc_step *s, const Bound *b) {
    const trainc_symbol *y = b->symbol;
    const trainc_tensor *t = b->tensor;
    if (y->index_limit <= 0 || rt_dtype[t->dtype].cls != RT_INT) return TRAINC_OK;
    int64_t n = elems(t->dims, t->rank), low = b->is_label ? 0 : -y->index_limit,
            per = b->rows ? b->outer * b->inner : n;
    for (int64_t i = 0; i < n; i++) {
        int64_t v = rt_read_int(t->data, t->dtype, i);
        if ((v >= low && v < y->index_limit) || (b->is_label && v == s->program->ignore_index))
            continue;
        int64_t sample = per > 0 ? i / per : 0;
        if (b->is_label)
            return STEP_FAIL(s, TRAINC_BAD_DATA,
                             "%s: value %lld in sample %lld is out of range: there are %lld "
                             "classes (0 to %lld, or %lld for none)",
                             y->name, (long long)v,
                             (long long)(s->row_names ? s->row_names[sample] : sample),
                             (long long)y->index_limit, (long long)y->index_limit - 1,
                             (long long)s->program->ignore_index);
        return STEP_FAIL(
            s, TRAINC_BAD_DATA,
            "%s: value %lld in sample %lld is out of range: the table has %lld rows (0 to %lld)",
            y->name, (long long)v, (long long)(s->row_names ? s->row_names[sample] : sample),
            (long long)y->index_limit, (long long)y->index_limit - 1);
    }
    return TRAINC_OK;
}

static trainc_status check_one(trainc_step *s, Bound *b, int64_t *samples) {
    const trainc_tensor *t = b->tensor;
    if (t->dtype < 1 || (int)t->dtype >= N_RT_DTYPES ||
        !rt_converts(t->dtype, (trainc_dtype)b->symbol->dtype))
        return STEP_FAIL(s, TRAINC_BAD_DATA, "%s: data of type %s cannot become the model's %s",
                         b->symbol->name,
                         t->dtype >= 1 && (int)t->dtype < N_RT_DTYPES ? rt_dtype[t->dtype].name : "?",
                         rt_dtype[b->symbol->dtype].name);
    trainc_status r = check_shape(s, b);
    if (r != TRAINC_OK) return r;
    if (b->rows && *samples >= 0 && *samples != t->dims[0])
        return STEP_FAIL(s, TRAINC_BAD_DATA, "%s has %lld samples, others have %lld",
                         b->symbol->name, (long long)t->dims[0], (long long)*samples);
    if (b->rows) *samples = t->dims[0];
    return check_range(s, b);
}

static void default_labels(trainc_step *s) {
    Bound *labels = find(s, "labels");
    if (!labels || labels->tensor || !s->program->labels_default_to_input) return;
    for (uint32_t i = 0; i < s->n_inputs && !labels->tensor; i++)
        if (s->inputs[i].tensor && rt_dtype[s->inputs[i].symbol->dtype].cls == RT_INT)
            labels->tensor = s->inputs[i].tensor;
}

trainc_status inputs_bind(trainc_step *s, const trainc_tensor *t, size_t n, int64_t most,
                          int64_t *samples) {
    trainc_status r = TRAINC_OK;
    *samples = -1;
    for (uint32_t i = 0; i < s->n_inputs; i++) s->inputs[i].tensor = NULL;
    for (size_t i = 0; i < n; i++) {
        Bound *b = t[i].name ? find(s, t[i].name) : NULL;
        if (!b) return unknown_input(s, t[i].name ? t[i].name : "(NULL)");
        if (b->tensor) return STEP_FAIL(s, TRAINC_USAGE, "%s is given twice", t[i].name);
        b->tensor = &t[i];
    }
    default_labels(s);
    for (uint32_t i = 0; i < s->n_inputs && r == TRAINC_OK; i++)
        r = s->inputs[i].tensor
                ? check_one(s, &s->inputs[i], samples)
                : STEP_FAIL(s, TRAINC_USAGE, "no data for input %s", s->inputs[i].symbol->name);
    if (r != TRAINC_OK) return r;
    if (*samples < 0) *samples = most > 0 ? most : s->program->micro_batch;
    if (*samples < 1) return STEP_FAIL(s, TRAINC_BAD_DATA, "the data hold no sample");
    if (most > 0 && *samples > most)
        return STEP_FAIL(s, TRAINC_BAD_DATA, "%lld samples for a batch of %lld",
                         (long long)*samples, (long long)most);
    return TRAINC_OK;
}

static void pad(const trainc_step *s, const Bound *b, int64_t from) {
    trainc_dtype d = (trainc_dtype)b->symbol->dtype;
    uint32_t size = rt_dtype[d].bytes;
    int64_t value = b->is_label ? s->program->ignore_index : 0;
    for (int64_t o = 0; o < b->outer; o++)
        for (int64_t r = from; r < b->rows; r++) {
            char *at = (char *)s->staging + (uint64_t)((o * b->rows + r) * b->inner) * size;
            for (int64_t i = 0; i < b->inner; i++)
                rt_convert(at + (uint64_t)i * size, d, &value, TRAINC_I64, 1);
        }
}

static trainc_status does_not_fit(trainc_step *s, const Bound *b, int64_t sample) {
    return STEP_FAIL(s, TRAINC_BAD_DATA,
                     "%s: a value in sample %lld does not fit the model's type %s", b->symbol->name,
                     (long long)(s->row_names ? s->row_names[sample] : sample),
                     rt_dtype[b->symbol->dtype].name);
}

/* Sample r of the data, [outer, inner], to position r of the batch axis: [outer, rows, inner]. */
static trainc_status convert_rows(trainc_step *s, const Bound *b, int64_t first, int64_t count) {
    trainc_dtype to = (trainc_dtype)b->symbol->dtype, from = b->tensor->dtype;
    uint64_t dst_row = (uint64_t)b->inner * rt_dtype[to].bytes,
             src_row = (uint64_t)b->inner * rt_dtype[from].bytes;
    for (int64_t r = 0; r < count; r++)
        for (int64_t o = 0; o < b->outer; o++) {
            const char *src =
                (const char *)b->tensor->data + (uint64_t)((first + r) * b->outer + o) * src_row;
            if (rt_convert((char *)s->staging + (uint64_t)(o * b->rows + r) * dst_row, to, src,
                           from, b->inner) >= 0)
                return does_not_fit(s, b, first + r);
        }
    return TRAINC_OK;
}

trainc_status inputs_upload(trainc_step *s, int64_t first, int64_t count) {
    trainc_status r = TRAINC_OK;
    for (uint32_t i = 0; i < s->n_inputs && r == TRAINC_OK; i++) {
        const Bound *b = &s->inputs[i];
        trainc_dtype to = (trainc_dtype)b->symbol->dtype, from = b->tensor->dtype;
        bool as_it_is = to == from && b->outer == 1 && (b->rows == 0 || count == b->rows);
        const char *src = b->tensor->data;
        if (as_it_is) {
            src += (uint64_t)(b->rows ? first * b->inner : 0) * rt_dtype[from].bytes;
        } else if (b->rows) {
            r = convert_rows(s, b, first, count);
            pad(s, b, count);
            src = s->staging;
        } else {
            r = rt_convert(s->staging, to, src, from, b->inner) >= 0 ? does_not_fit(s, b, 0)
                                                                     : TRAINC_OK;
            src = s->staging;
        }
        if (r == TRAINC_OK)
            r = s->device->vt->upload(s->device, b->symbol->offset, src, b->symbol->bytes,
                                      &s->fail);
    }
    return r;
}
