/* safetensors.c - reads and writes safetensors files without copying tensors.
 *
 * Reading maps the file and checks all of the header before it gives anything out: the length lies
 * inside the file, the JSON is strict, every dtype is known, every extent product fits 64 bits,
 * offsets tile the data part without gap or overlap, no name comes twice. Files come from
 * strangers, so no sum may wrap. Writing emits the header in the caller's order, padded to 8 bytes.
 */
#include "safetensors.h"
#include "json.h"
#include "rt_dtype.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 1024, MAX_HEADER = 100 << 20 };

uint64_t st_bytes(const StTensor *t) {
    uint64_t n = rt_dtype[t->dtype].bytes;
    for (int i = 0; i < t->rank; i++) n *= (uint64_t)t->dims[i];
    return n;
}

/* Product of the extents times the element size; false where it does not fit. */
static bool checked_bytes(const StTensor *t, uint64_t *out) {
    uint64_t n = rt_dtype[t->dtype].bytes;
    for (int i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(n, (uint64_t)t->dims[i], &n) || n > INT64_MAX) return false;
    *out = n;
    return true;
}

static void read_shape(Json *j, StTensor *t) {
    uint64_t d;
    for (json_enter(j, '['); json_next(j, ']');) {
        if (!json_uint(j, &d) || t->rank == 8 || d > INT64_MAX) {
            j->bad = true;
            return;
        }
        t->dims[t->rank++] = (int64_t)d;
    }
}

/* One entry's object; begin and end relative to the data part. */
static bool read_entry(Json *j, StTensor *t, uint64_t span[2]) {
    char key[32], dtype[16] = "";
    int seen = 0;
    for (json_enter(j, '{'); json_next(j, '}');) {
        if (!json_key(j, key, sizeof key)) return false;
        if (strcmp(key, "dtype") == 0 && !(seen & 1)) {
            json_string(j, dtype, sizeof dtype);
            seen |= 1;
        } else if (strcmp(key, "shape") == 0 && !(seen & 2)) {
            read_shape(j, t);
            seen |= 2;
        } else if (strcmp(key, "data_offsets") == 0 && !(seen & 4)) {
            json_enter(j, '[');
            for (int i = 0; i < 2; i++)
                if (!json_next(j, ']') || !json_uint(j, &span[i])) return false;
            if (json_next(j, ']')) return false;
            seen |= 4;
        } else {
            return false;
        }
    }
    t->dtype = rt_dtype_from_safetensors(dtype);
    return !j->bad && seen == 7;
}

static int by_data(const void *a, const void *b) {
    const StTensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const StTensor *)a)->name, ((const StTensor *)b)->name);
}

/* The tensors tile the data part exactly, and names differ; sorts a copy twice. */
static const char *check_layout(const StFile *s, const unsigned char *data,
                                const unsigned char *end) {
    const char *wrong = NULL;
    StTensor *copy = malloc((s->n ? s->n : 1) * sizeof *copy);
    if (!copy) return "no memory";
    if (s->n) memcpy(copy, s->tensors, s->n * sizeof *copy);
    qsort(copy, s->n, sizeof *copy, by_name);
    for (uint32_t i = 1; i < s->n && !wrong; i++)
        if (strcmp(copy[i].name, copy[i - 1].name) == 0) wrong = "a name comes twice";
    qsort(copy, s->n, sizeof *copy, by_data);
    for (uint32_t i = 0; i < s->n && !wrong; data += copy[i++].bytes)
        if (copy[i].data != data) wrong = "tensors overlap or leave a gap";
    if (!wrong && data != end) wrong = "the file is longer or shorter than its tensors";
    free(copy);
    return wrong;
}

static bool grow(StFile *s, uint32_t *cap) {
    if (s->n < *cap) return true;
    uint32_t more = *cap ? *cap * 2 : 64;
    StTensor *t = realloc(s->tensors, more * sizeof *t);
    if (!t) return false;
    s->tensors = t;
    *cap = more;
    return true;
}

static const char *read_header(StFile *s, uint64_t header, bool *no_memory) {
    Json j = json_open((const char *)s->map.bytes + 8, header);
    const unsigned char *data = s->map.bytes + 8 + header;
    uint64_t room = s->map.n - 8 - header;
    uint32_t cap = 0;
    char *name = s->names; /* decoded names are never longer than the header */
    for (json_enter(&j, '{'); json_next(&j, '}');) {
        StTensor t = {.name = name};
        uint64_t span[2] = {0, 0}, want = 0;
        if (!json_key(&j, name, MAX_NAME)) return "a name is too long or malformed";
        if (strcmp(name, "__metadata__") == 0) {
            json_skip(&j);
            continue;
        }
        if (!read_entry(&j, &t, span)) return "an entry is malformed";
        if (!t.dtype) return "a tensor's dtype is not supported";
        if (!checked_bytes(&t, &want) || span[0] > span[1] || span[1] > room ||
            span[1] - span[0] != want)
            return "a tensor's shape and offsets do not agree with the file";
        t.data = data + span[0];
        t.bytes = want;
        if (!grow(s, &cap)) {
            *no_memory = true;
            return "no memory";
        }
        s->tensors[s->n++] = t;
        name += strlen(name) + 1;
    }
    if (!json_finish(&j)) return "the header is not valid JSON";
    return check_layout(s, data, s->map.bytes + s->map.n);
}

trainc_status st_open(StFile *s, const char *path, trainc_status status, Fail *f) {
    uint64_t header = 0;
    bool no_memory = false;
    const char *wrong = "too short";
    *s = (StFile){0};
    trainc_status r = file_map(&s->map, path, status, f);
    if (r != TRAINC_OK) return r;
    for (int i = 0; i < 8 && s->map.n >= 8; i++) header |= (uint64_t)s->map.bytes[i] << 8 * i;
    if (s->map.n >= 8) {
        wrong = "the header's length is beyond the file";
        if (header <= s->map.n - 8 && header <= MAX_HEADER) {
            s->names = malloc(header + MAX_NAME);
            wrong = s->names ? read_header(s, header, &no_memory) : "no memory";
            no_memory |= !s->names;
        }
    }
    if (!wrong) return TRAINC_OK;
    st_close(s);
    return fail_set(f, no_memory ? TRAINC_NO_MEMORY : status, "%s is no valid safetensors file: %s",
                    path, wrong);
}

const StTensor *st_find(const StFile *s, const char *name) {
    for (uint32_t i = 0; i < s->n; i++)
        if (strcmp(s->tensors[i].name, name) == 0) return &s->tensors[i];
    return NULL;
}

void st_close(StFile *s) {
    file_unmap(&s->map);
    free(s->names);
    free(s->tensors);
    *s = (StFile){0};
}

/* ---------------------------------------------------------------- writing */

typedef struct Header {
    char *s;
    size_t n, cap;
    bool bad;
} Header;

static void put(Header *h, const char *s, size_t n) {
    if (h->n + n > h->cap && !h->bad) {
        size_t cap = (h->cap + n) * 2;
        char *p = realloc(h->s, cap);
        h->bad = !p;
        if (p) {
            h->s = p;
            h->cap = cap;
        }
    }
    if (h->bad) return;
    memcpy(h->s + h->n, s, n);
    h->n += n;
}

static void put_text(Header *h, const char *s) { put(h, s, strlen(s)); }

static void put_quoted(Header *h, const char *s) {
    char u[8];
    put(h, "\"", 1);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') put(h, "\\", 1);
        if ((unsigned char)*s < 0x20) {
            snprintf(u, sizeof u, "\\u%04x", (unsigned)*s);
            put_text(h, u);
        } else {
            put(h, s, 1);
        }
    }
    put(h, "\"", 1);
}

static void put_entry(Header *h, const StTensor *t, uint64_t at) {
    char piece[96];
    put_quoted(h, t->name);
    snprintf(piece, sizeof piece, ":{\"dtype\":\"%s\",\"shape\":[", rt_dtype[t->dtype].safetensors);
    put_text(h, piece);
    for (int i = 0; i < t->rank; i++) {
        snprintf(piece, sizeof piece, i ? ",%lld" : "%lld", (long long)t->dims[i]);
        put_text(h, piece);
    }
    snprintf(piece, sizeof piece, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
             (unsigned long long)(at + st_bytes(t)));
    put_text(h, piece);
}

trainc_status st_begin(FileOut *o, const char *path, const StTensor *t, uint32_t n,
                       const char *meta, Fail *f) {
    Header h = {0};
    unsigned char length[8];
    uint64_t at = 0;
    put_text(&h, "{");
    if (meta) {
        put_text(&h, "\"__metadata__\":");
        put_text(&h, meta);
    }
    for (uint32_t i = 0; i < n; at += st_bytes(&t[i++])) {
        put_text(&h, i || meta ? "," : "");
        put_entry(&h, &t[i], at);
    }
    put_text(&h, "}");
    while (h.n % 8 && !h.bad) put(&h, " ", 1);
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(h.n >> 8 * i);
    trainc_status s = h.bad ? fail_set(f, TRAINC_NO_MEMORY, "no memory to write %s", path)
                            : file_create(o, path, f);
    if (s == TRAINC_OK && (s = file_write(o, length, 8, f)) == TRAINC_OK)
        s = file_write(o, h.s, h.n, f);
    if (s != TRAINC_OK && !h.bad) file_abandon(o);
    free(h.s);
    return s;
}
