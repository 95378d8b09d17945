/* feed.c - from "FILE.npy", "FILE.safetensors#TENSOR", "FILE.pb" or "FILE.bin:dtype[:shape]" to a
 * tensor over the mapped file.
 *
 * A .bin is a flat stream: without a shape it is cut into samples of the input's own size, and what
 * is left over at the end is not used; with a shape it must have that length, the first extent may
 * be -1. */
#include "feed.h"
#include "rt_dtype.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n > k && strcmp(s + n - k, end) == 0;
}

static char *copy(const char *s, size_t n) {
    char *p = malloc(n + 1);
    if (p) {
        memcpy(p, s, n);
        p[n] = 0;
    }
    return p;
}

static trainc_status open_npy(Feed *d, Fail *f) {
    trainc_status s = file_map(&d->map, d->path, TRAINC_BAD_DATA, f);
    return s == TRAINC_OK ? npy_parse(&d->map, d->path, &d->tensor, f) : s;
}

static trainc_status open_safetensors(Feed *d, const char *tensor, Fail *f) {
    trainc_status s = st_open(&d->st, d->path, TRAINC_BAD_DATA, f);
    if (s != TRAINC_OK) return s;
    const StTensor *t = st_find(&d->st, tensor);
    if (!t)
        return fail_set(f, TRAINC_BAD_DATA, "%s holds no tensor %s%s%s", d->path, tensor,
                        d->st.n ? "; it has " : "", d->st.n ? d->st.tensors[0].name : "");
    d->tensor.dtype = t->dtype;
    d->tensor.rank = t->rank;
    memcpy(d->tensor.dims, t->dims, sizeof t->dims);
    d->tensor.data = t->data;
    return TRAINC_OK;
}

static trainc_status open_pb(Feed *d, Fail *f) {
    char *error = NULL;
    trainc_status s = onnx_wire_tensor(d->path, &d->pb, &error);
    if (s != TRAINC_OK) fail_set(f, s, "%s", error ? error : d->path);
    free(error);
    if (s != TRAINC_OK) return s;
    const onnx_tensor *t = &d->pb.items[0];
    if (!t->dtype || t->rank < 0)
        return fail_set(f, TRAINC_BAD_DATA, "%s has an element type or rank that is not supported",
                        d->path);
    d->tensor.dtype = (trainc_dtype)t->dtype;
    d->tensor.rank = t->rank;
    memcpy(d->tensor.dims, t->dims, sizeof t->dims);
    d->tensor.data = t->data;
    return TRAINC_OK;
}

/* "24x16", "24,16", "-1x16". */
static bool parse_shape(const char *s, trainc_tensor *t) {
    for (t->rank = 0; *s && t->rank < 8; t->rank++) {
        char *end;
        long long v = strtoll(s, &end, 10);
        if (end == s || v < -1 || (v == -1 && t->rank > 0) ||
            (*end != 0 && *end != 'x' && *end != ','))
            return false;
        t->dims[t->rank] = v;
        s = *end ? end + 1 : end;
    }
    return *s == 0 && t->rank > 0;
}

static trainc_status shaped_bin(Feed *d, const char *shape, int64_t have, Fail *f) {
    trainc_tensor *t = &d->tensor;
    int64_t rest = 1;
    if (!parse_shape(shape, t))
        return fail_set(f, TRAINC_USAGE, "%s: the shape %s is not like 24x16 or -1x16", d->path,
                        shape);
    for (int i = t->dims[0] == -1; i < t->rank; i++)
        if (__builtin_mul_overflow(rest, t->dims[i], &rest))
            return fail_set(f, TRAINC_USAGE, "%s: impossible shape %s", d->path, shape);
    if (t->dims[0] == -1)
        t->dims[0] = rest > 0 ? have / rest : 0;
    else if (rest != have)
        return fail_set(f, TRAINC_BAD_DATA, "%s holds %lld elements, the shape %s has %lld",
                        d->path, (long long)have, shape, (long long)rest);
    if (t->dims[0] == 0 || (shape[0] == '-' && have % rest != 0))
        return fail_set(f, TRAINC_BAD_DATA,
                        "%s holds %lld elements, not a whole number of samples of %lld", d->path,
                        (long long)have, (long long)rest);
    return TRAINC_OK;
}

static trainc_status cut_bin(Feed *d, const trainc_symbol *y, int64_t have, Fail *f) {
    trainc_tensor *t = &d->tensor;
    int64_t sample = 1;
    bool split = y->batch_axis >= 0;
    t->rank = split ? 1 : 0;
    for (int i = 0; i < y->rank; i++)
        if (!split || i != y->batch_axis) {
            t->dims[t->rank++] = y->dims[i];
            sample *= y->dims[i];
        }
    if (sample < 1 || have < sample)
        return fail_set(f, TRAINC_BAD_DATA,
                        "%s holds %lld of the %lld elements of one sample of %s", d->path,
                        (long long)have, (long long)sample, y->name);
    if (split) t->dims[0] = have / sample;
    d->left_over = split ? have % sample : have - sample;
    return TRAINC_OK;
}

static trainc_status open_bin(Feed *d, const trainc_symbol *y, const char *type, Fail *f) {
    const char *colon = strchr(type, ':');
    d->tensor.dtype = rt_dtype_from_name(type, colon ? (size_t)(colon - type) : strlen(type));
    if (!d->tensor.dtype)
        return fail_set(f, TRAINC_USAGE, "%s: no such type: %s (u8 u16 u32 i32 i64 f32 ...)",
                        d->path, type);
    trainc_status s = file_map(&d->map, d->path, TRAINC_BAD_DATA, f);
    if (s != TRAINC_OK) return s;
    uint32_t size = rt_dtype[d->tensor.dtype].bytes;
    if (d->map.n % size)
        return fail_set(f, TRAINC_BAD_DATA, "%s: %llu bytes are no whole number of %s", d->path,
                        (unsigned long long)d->map.n, rt_dtype[d->tensor.dtype].name);
    d->tensor.data = d->map.bytes;
    int64_t have = (int64_t)(d->map.n / size);
    return colon ? shaped_bin(d, colon + 1, have, f) : cut_bin(d, y, have, f);
}

trainc_status feed_open(Feed *d, const trainc_symbol *y, const char *spec, Fail *f) {
    const char *hash = strstr(spec, ".safetensors#"), *bin = strstr(spec, ".bin:");
    size_t n = hash  ? (size_t)(hash - spec) + strlen(".safetensors")
               : bin ? (size_t)(bin - spec) + strlen(".bin")
                     : strlen(spec);
    *d = (Feed){.tensor = {.name = y->name}};
    d->path = copy(spec, n);
    if (!d->path) return fail_set(f, TRAINC_NO_MEMORY, "no memory");
    trainc_status s;
    if (hash)
        s = open_safetensors(d, spec + n + 1, f);
    else if (bin)
        s = open_bin(d, y, spec + n + 1, f);
    else if (ends_with(spec, ".npy"))
        s = open_npy(d, f);
    else if (ends_with(spec, ".pb"))
        s = open_pb(d, f);
    else if (ends_with(spec, ".bin"))
        s = fail_set(f, TRAINC_USAGE, "%s: say what it holds, as in %s:u16", spec, spec);
    else if (ends_with(spec, ".safetensors"))
        s = fail_set(f, TRAINC_USAGE, "%s: say which tensor, as in %s#%s", spec, spec, y->name);
    else
        s = fail_set(f, TRAINC_USAGE, "%s: not a .npy, .safetensors#tensor, .pb or .bin:dtype file",
                     spec);
    d->stored = d->tensor.dtype;
    return s;
}

void feed_close(Feed *d) {
    file_unmap(&d->map);
    if (d->st.map.bytes) st_close(&d->st);
    onnx_wire_free(&d->pb);
    free(d->path);
    *d = (Feed){0};
}
