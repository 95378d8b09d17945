/* onnx_wire.c - reads and rewrites .onnx files at the level of protobuf's wire format; see
 * onnx_wire.h.
 *
 * A ModelProto is walked along model -> graph (7) -> initializer (5); every field keeps its bytes
 * but the ones that hold elements. Export runs over the same walk twice: first to learn the new
 * length of each changed tensor (so that lengths of the messages around it are right and as short
 * as a protobuf library writes them), then to write. Input is untrusted: each length is checked.
 */
#include "onnx_wire.h"
#include <errno.h>
#include <stdbool.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MODEL_GRAPH = 7, GRAPH_INITIALIZER = 5 };
enum {
    TENSOR_DIMS = 1,
    TENSOR_TYPE = 2,
    TENSOR_FLOATS = 4,
    TENSOR_INT32S = 5,
    TENSOR_STRINGS = 6,
    TENSOR_INT64S = 7,
    TENSOR_NAME = 8,
    TENSOR_RAW = 9,
    TENSOR_DOUBLES = 10,
    TENSOR_UINT64S = 11,
    TENSOR_EXTERNAL = 13,
    TENSOR_LOCATION = 14
};

static const unsigned char dtype_bytes[] = {0, 4, 8, 2, 2, 8, 4, 2, 1, 8, 4, 2, 1,
                                            1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}; /* by trainc_dtype */
static const int dtype_of_onnx[] = {0,
                                    TRAINC_F32,
                                    TRAINC_U8,
                                    TRAINC_I8,
                                    TRAINC_U16,
                                    TRAINC_I16,
                                    TRAINC_I32,
                                    TRAINC_I64,
                                    0,
                                    TRAINC_BOOL,
                                    TRAINC_F16,
                                    TRAINC_F64,
                                    TRAINC_U32,
                                    TRAINC_U64,
                                    0,
                                    0,
                                    TRAINC_BF16,
                                    TRAINC_F8E4M3FN,
                                    TRAINC_F8E4M3FNUZ,
                                    TRAINC_F8E5M2,
                                    TRAINC_F8E5M2FNUZ,
                                    TRAINC_U4,
                                    TRAINC_I4,
                                    TRAINC_F4E2M1,
                                    TRAINC_F8E8M0,
                                    TRAINC_U2,
                                    TRAINC_I2};

/* Elements of such a type lie packed in files, the first in the low bits; here each takes a byte.
 * 8: not packed. */
static unsigned packed_bits(int dtype) {
    if (dtype == TRAINC_I4 || dtype == TRAINC_U4 || dtype == TRAINC_F4E2M1) return 4;
    return dtype == TRAINC_I2 || dtype == TRAINC_U2 ? 2 : 8;
}

static void unpack(int dtype, const uint8_t *from, uint64_t n, uint8_t *to) {
    unsigned bits = packed_bits(dtype), sign = 1u << (bits - 1);
    bool is_signed = dtype == TRAINC_I4 || dtype == TRAINC_I2;
    for (uint64_t i = 0; i < n; i++) {
        unsigned x = from[i * bits / 8] >> (i * bits % 8) & ((1u << bits) - 1);
        to[i] = (uint8_t)(is_signed ? (x ^ sign) - sign : x);
    }
}

static trainc_status fail(char **error, trainc_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static trainc_status fail(char **error, trainc_status status, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    if (error && vasprintf(error, fmt, args) < 0) *error = NULL;
    va_end(args);
    return status;
}

/* ---------------------------------------------------------------- files */

typedef struct Mapped {
    const uint8_t *bytes;
    uint64_t size;
} Mapped;

static bool file_map(const char *path, Mapped *m) {
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    *m = (Mapped){(const uint8_t *)"", 0};
    if (fd < 0) return false;
    bool is_mapped = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    if (is_mapped && info.st_size > 0) {
        void *p = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        is_mapped = p != MAP_FAILED;
        if (is_mapped) *m = (Mapped){p, (uint64_t)info.st_size};
    }
    close(fd);
    return is_mapped;
}

static void file_unmap(Mapped *m) {
    if (m->size) munmap((void *)(uintptr_t)m->bytes, (size_t)m->size);
    m->size = 0;
}

/* ---------------------------------------------------------------- wire format */

typedef struct Span {
    const uint8_t *at, *end;
} Span;
typedef struct Field {
    uint32_t number, type;
    uint64_t value;
    Span bytes;
    const uint8_t *head, *tail;
} Field;
/* type 2: bytes is the content; others: value; [head, tail) is the whole field */

static bool varint_read(Span *s, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; shift < 70 && s->at < s->end; shift += 7) {
        uint8_t byte = *s->at++;
        if (shift < 64) *value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return true;
    }
    return false;
}

/* The next field; false at the end or where the bytes are no field (then s->at != s->end). */
static bool field_next(Span *s, Field *f) {
    uint64_t tag, length;
    const uint8_t *head = s->at;
    Span t = *s;
    if (t.at == t.end || !varint_read(&t, &tag)) return false;
    *f = (Field){.number = (uint32_t)(tag >> 3), .type = (uint32_t)(tag & 7), .head = head};
    if (f->type == 0) {
        if (!varint_read(&t, &f->value)) return false;
    } else if (f->type == 2) {
        if (!varint_read(&t, &length) || length > (uint64_t)(t.end - t.at)) return false;
        f->bytes = (Span){t.at, t.at + length};
        t.at += length;
    } else if (f->type == 1 || f->type == 5) {
        size_t n = f->type == 1 ? 8 : 4;
        if ((size_t)(t.end - t.at) < n) return false;
        memcpy(&f->value, t.at, n);
        f->bytes = (Span){t.at, t.at + n};
        t.at += n;
    } else
        return false;
    f->tail = s->at = t.at;
    return true;
}

static char *span_text(Span s) { return strndup((const char *)s.at, (size_t)(s.end - s.at)); }
static bool span_is(Span s, const char *text) {
    return (size_t)(s.end - s.at) == strlen(text) && !memcmp(s.at, text, strlen(text));
}

/* ---------------------------------------------------------------- one TensorProto */

typedef struct External {
    char *location;
    uint64_t offset, length;
    bool has_length, is_external, is_bad;
} External;
typedef struct Reader {
    const char *path;
    Mapped file;
    bool keeps_bytes; /* .pb: inline bytes are copied to data */
    char **error;
    trainc_status bad;
} Reader;

static bool number_of(Span s, uint64_t *value) {
    char text[24], *end;
    size_t n = (size_t)(s.end - s.at);
    if (n == 0 || n >= sizeof text || *s.at < '0' || *s.at > '9') return false;
    memcpy(text, s.at, n);
    text[n] = 0;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return !errno && !*end;
}

static void external_entry(Span s, External *e) {
    Field f;
    Span key = {0}, value = {0};
    while (field_next(&s, &f)) {
        if (f.number == 1 && f.type == 2) key = f.bytes;
        if (f.number == 2 && f.type == 2) value = f.bytes;
    }
    if (!key.at || !value.at) return;
    if (span_is(key, "location")) {
        free(e->location);
        e->location = span_text(value);
    } else if (span_is(key, "offset"))
        e->is_bad |= !number_of(value, &e->offset);
    else if (span_is(key, "length"))
        e->is_bad |= !number_of(value, &e->length), e->has_length = true;
}

static bool path_escapes(const char *location) {
    if (*location == '/' || !*location) return true;
    for (const char *p = location; p; p = strchr(p, '/')) {
        p += *p == '/';
        if (p[0] == '.' && p[1] == '.' && (p[2] == '/' || !p[2])) return true;
    }
    return false;
}

/* model folder + location */
static char *path_beside(const char *model, const char *location) {
    const char *slash = strrchr(model, '/');
    char *path = NULL;
    if (asprintf(&path, "%.*s%s", slash ? (int)(slash - model + 1) : 0, model, location) < 0)
        return NULL;
    return path;
}

static trainc_status external_check(const Reader *r, onnx_tensor *t, External *e,
                                    uint64_t expected) {
    struct stat info;
    if (!e->location || path_escapes(e->location) || e->is_bad)
        return fail(r->error, r->bad,
                    "%s: %s: its external data lies at no valid place below the model's folder",
                    r->path, t->name);
    t->file = path_beside(r->path, e->location);
    if (!t->file) return fail(r->error, TRAINC_FAULT, "no memory");
    if (stat(t->file, &info) != 0)
        return fail(r->error, r->bad, "%s: %s", t->file, strerror(errno));
    if ((e->has_length && e->length != expected) || e->offset > (uint64_t)info.st_size ||
        expected > (uint64_t)info.st_size - e->offset)
        return fail(r->error, r->bad, "%s: too short for %s", t->file, t->name);
    t->offset = e->offset;
    return TRAINC_OK;
}

/* Elements in typed fields: packed or one by one. */
typedef struct Typed {
    uint8_t *out;
    uint64_t n, cap;
    size_t bytes;
    bool is_bad;
} Typed;

static void typed_put(Typed *t, uint64_t value) {
    if (t->n < t->cap) memcpy(t->out + t->n * t->bytes, &value, t->bytes);
    t->n++;
}

static void typed_field(Typed *t, const Field *f) {
    bool is_varint =
        f->number == TENSOR_INT32S || f->number == TENSOR_INT64S || f->number == TENSOR_UINT64S;
    size_t width = f->number == TENSOR_DOUBLES ? 8 : 4;
    if (f->type != 2) {
        typed_put(t, f->value);
        return;
    }
    Span s = f->bytes;
    uint64_t value = 0;
    while (s.at < s.end) {
        if (is_varint && !varint_read(&s, &value)) break;
        if (!is_varint && (size_t)(s.end - s.at) < width) break;
        if (!is_varint) memcpy(&value, s.at, width), s.at += width;
        typed_put(t, value);
    }
    t->is_bad |= s.at != s.end;
}

static uint32_t typed_field_of(int dtype) {
    switch (dtype) {
    case TRAINC_F32:
        return TENSOR_FLOATS;
    case TRAINC_F64:
        return TENSOR_DOUBLES;
    case TRAINC_I64:
        return TENSOR_INT64S;
    case TRAINC_U64:
    case TRAINC_U32:
        return TENSOR_UINT64S;
    default:
        return TENSOR_INT32S;
    }
}

static trainc_status typed_read(const Reader *r, Span s, onnx_tensor *t) {
    uint32_t wanted = typed_field_of(t->dtype);
    size_t bytes = dtype_bytes[t->dtype];
    unsigned bits = packed_bits(t->dtype);
    Typed typed = {.cap = bits < 8 ? (t->bytes * bits + 7) / 8 : t->bytes / bytes, .bytes = bytes};
    Field f;
    if (typed.cap > r->file.size)
        return fail(r->error, r->bad, "%s: tensor %s lacks its elements", r->path, t->name);
    typed.out = calloc(1, t->bytes + 1);
    if (!typed.out) return fail(r->error, TRAINC_FAULT, "no memory");
    t->data = typed.out;
    while (field_next(&s, &f))
        if (f.number == wanted) typed_field(&typed, &f);
    if (bits < 8 && typed.n == typed.cap) {
        t->data = malloc(t->bytes + 1);
        if (t->data) unpack(t->dtype, typed.out, t->bytes, t->data);
        free(typed.out);
        if (!t->data) return fail(r->error, TRAINC_FAULT, "no memory");
    }
    if (typed.n == typed.cap && !typed.is_bad) return TRAINC_OK;
    return fail(r->error, r->bad, "%s: tensor %s holds %llu elements, its dims say %llu", r->path,
                t->name, (unsigned long long)typed.n, (unsigned long long)typed.cap);
}

static void dims_add(onnx_tensor *t, const Field *f) {
    Span s = f->bytes;
    uint64_t d = f->value;
    bool is_packed = f->type == 2;
    while (is_packed ? s.at < s.end && varint_read(&s, &d) : f != NULL) {
        if (t->rank >= 0 && t->rank < 8)
            t->dims[t->rank++] = (int64_t)d;
        else
            t->rank = -1;
        if (!is_packed) break;
    }
}

static bool tensor_bytes(const onnx_tensor *t, uint64_t *bytes) {
    *bytes = dtype_bytes[t->dtype];
    for (int i = 0; i < t->rank; i++)
        if (t->dims[i] < 0 || __builtin_mul_overflow(*bytes, (uint64_t)t->dims[i], bytes))
            return false;
    return t->rank >= 0 && *bytes < INT64_MAX;
}

typedef struct Proto {
    onnx_tensor tensor;
    External external;
    Span raw;
} Proto;

/* Reads the fields that say what and where; elements are not looked at. */
static trainc_status proto_read(const Reader *r, Span s, Proto *p) {
    Field f;
    while (field_next(&s, &f)) {
        if (f.number == TENSOR_DIMS)
            dims_add(&p->tensor, &f);
        else if (f.number == TENSOR_TYPE && f.type == 0 &&
                 f.value < sizeof dtype_of_onnx / sizeof *dtype_of_onnx)
            p->tensor.dtype = dtype_of_onnx[f.value];
        else if (f.number == TENSOR_NAME && f.type == 2) {
            free(p->tensor.name);
            p->tensor.name = span_text(f.bytes);
        } else if (f.number == TENSOR_RAW && f.type == 2)
            p->raw = f.bytes;
        else if (f.number == TENSOR_EXTERNAL && f.type == 2)
            external_entry(f.bytes, &p->external);
        else if (f.number == TENSOR_LOCATION && f.type == 0)
            p->external.is_external = f.value == 1;
    }
    if (!p->tensor.name) p->tensor.name = strdup("");
    if (!p->tensor.name) return fail(r->error, TRAINC_FAULT, "no memory");
    return s.at == s.end ? TRAINC_OK
                         : fail(r->error, r->bad, "%s: damaged at byte %zu", r->path,
                                (size_t)(s.at - r->file.bytes));
}

static trainc_status raw_read(const Reader *r, Proto *p) {
    onnx_tensor *t = &p->tensor;
    unsigned bits = packed_bits(t->dtype);
    if ((uint64_t)(p->raw.end - p->raw.at) != (t->bytes * bits + 7) / 8)
        return fail(r->error, r->bad, "%s: tensor %s holds %zu bytes, its dims say %llu", r->path,
                    t->name, (size_t)(p->raw.end - p->raw.at), (unsigned long long)t->bytes);
    if (r->keeps_bytes || bits < 8) {
        t->data = malloc(t->bytes + 1);
        if (!t->data) return fail(r->error, TRAINC_FAULT, "no memory");
        if (bits < 8)
            unpack(t->dtype, p->raw.at, t->bytes, t->data);
        else
            memcpy(t->data, p->raw.at, t->bytes);
        return TRAINC_OK;
    }
    t->file = strdup(r->path);
    t->offset = (uint64_t)(p->raw.at - r->file.bytes);
    return t->file ? TRAINC_OK : fail(r->error, TRAINC_FAULT, "no memory");
}

static trainc_status tensor_read(const Reader *r, Span s, Proto *p) {
    trainc_status status = proto_read(r, s, p);
    onnx_tensor *t = &p->tensor;
    if (status != TRAINC_OK || !t->dtype) return status;
    if (!tensor_bytes(t, &t->bytes))
        return fail(r->error, r->bad, "%s: tensor %s has impossible dims", r->path, t->name);
    if (p->external.is_external) return external_check(r, t, &p->external, t->bytes);
    return p->raw.at ? raw_read(r, p) : typed_read(r, s, t);
}

/* ---------------------------------------------------------------- reading */

static onnx_tensor *tensors_grow(onnx_tensors *list) {
    if ((list->n & (list->n - 1)) == 0) {
        onnx_tensor *items = realloc(list->items, (list->n ? list->n * 2 : 1) * sizeof *items);
        if (!items) return NULL;
        list->items = items;
    }
    return &list->items[list->n++];
}

static trainc_status tensors_add(const Reader *r, Span s, onnx_tensors *list) {
    Proto p = {0};
    trainc_status status = tensor_read(r, s, &p);
    onnx_tensor *t = tensors_grow(list);
    free(p.external.location);
    if (!t) return fail(r->error, TRAINC_FAULT, "no memory");
    *t = p.tensor;
    return status;
}

static trainc_status damaged(const Reader *r, Span s) {
    return fail(r->error, r->bad, "%s: truncated or damaged at byte %zu", r->path,
                (size_t)(s.at - r->file.bytes));
}

trainc_status onnx_wire_model(const char *path, onnx_tensors *list, char **error) {
    Reader r = {.path = path, .error = error, .bad = TRAINC_BAD_MODEL};
    trainc_status status = TRAINC_OK;
    Field f, g;
    *list = (onnx_tensors){0};
    if (!file_map(path, &r.file)) return fail(error, r.bad, "%s: %s", path, strerror(errno));
    Span s = {r.file.bytes, r.file.bytes + r.file.size};
    bool has_graph = false;
    while (status == TRAINC_OK && field_next(&s, &f)) {
        if (f.number != MODEL_GRAPH || f.type != 2) continue;
        Span graph = f.bytes;
        has_graph = true;
        while (status == TRAINC_OK && field_next(&graph, &g))
            if (g.number == GRAPH_INITIALIZER && g.type == 2)
                status = tensors_add(&r, g.bytes, list);
        if (status == TRAINC_OK && graph.at != graph.end) status = damaged(&r, graph);
    }
    if (status == TRAINC_OK && s.at != s.end) status = damaged(&r, s);
    if (status == TRAINC_OK && !has_graph)
        status = fail(error, r.bad, "%s: not an ONNX file", path);
    file_unmap(&r.file);
    return status;
}

trainc_status onnx_wire_tensor(const char *path, onnx_tensors *list, char **error) {
    Reader r = {.path = path, .error = error, .bad = TRAINC_BAD_DATA, .keeps_bytes = true};
    *list = (onnx_tensors){0};
    if (!file_map(path, &r.file)) return fail(error, r.bad, "%s: %s", path, strerror(errno));
    trainc_status status = tensors_add(&r, (Span){r.file.bytes, r.file.bytes + r.file.size}, list);
    file_unmap(&r.file);
    if (status == TRAINC_OK && !list->items[0].data)
        status = fail(error, r.bad, "%s: not a tensor whose elements are in the file", path);
    return status;
}

void onnx_wire_free(onnx_tensors *list) {
    for (size_t i = 0; i < list->n; i++) {
        free(list->items[i].name);
        free(list->items[i].file);
        free(list->items[i].data);
    }
    free(list->items);
    *list = (onnx_tensors){0};
}

/* ---------------------------------------------------------------- export */

/* What becomes of each initializer, in file order. */
typedef struct Change {
    onnx_tensor tensor;
    bool is_external, is_replaced;
    uint64_t new_offset, new_size; /* external: place in the new data file; new_size: the
                                      TensorProto's bytes as written */
} Change;
typedef struct Export {
    Reader reader;
    Change *changes;
    size_t n, next;
    onnx_fetch *fetch;
    void *user;
    FILE *out, *data;
    uint64_t data_at;
    const char *data_name; /* location written into the model */
    bool is_broken;        /* a write failed */
} Export;

static size_t varint_size(uint64_t v) {
    size_t n = 1;
    for (; v >= 0x80; v >>= 7) n++;
    return n;
}

static void put(Export *e, const void *bytes, size_t n) {
    e->is_broken |= n && fwrite(bytes, 1, n, e->out) != n;
}

static void put_varint(Export *e, uint64_t v) {
    uint8_t bytes[10];
    size_t n = 0;
    for (; v >= 0x80; v >>= 7) bytes[n++] = (uint8_t)(v | 0x80);
    bytes[n++] = (uint8_t)v;
    put(e, bytes, n);
}

static void put_head(Export *e, uint32_t number, uint64_t length) {
    put_varint(e, (uint64_t)number << 3 | 2);
    put_varint(e, length);
}

static size_t entry_size(const char *key, size_t value) {
    return 2 + strlen(key) + 1 + varint_size(value) + value;
}

static void put_entry(Export *e, const char *key, const char *value) {
    put_head(e, TENSOR_EXTERNAL, entry_size(key, strlen(value)));
    put_head(e, 1, strlen(key));
    put(e, key, strlen(key));
    put_head(e, 2, strlen(value));
    put(e, value, strlen(value));
}

static bool holds_elements(uint32_t number) {
    return number == TENSOR_RAW || number == TENSOR_FLOATS || number == TENSOR_INT32S ||
           number == TENSOR_INT64S || number == TENSOR_DOUBLES || number == TENSOR_UINT64S;
}

/* Is this field of a changed tensor written anew? */
static bool is_rewritten(const Change *c, uint32_t number) {
    return c->is_external ? number == TENSOR_EXTERNAL : c->is_replaced && holds_elements(number);
}

static void external_texts(const Export *e, const Change *c, const char *keys[3],
                           char values[3][64], const char *texts[3]) {
    keys[0] = "location", keys[1] = "offset", keys[2] = "length";
    snprintf(values[1], 64, "%llu", (unsigned long long)c->new_offset);
    snprintf(values[2], 64, "%llu", (unsigned long long)c->tensor.bytes);
    texts[0] = e->data_name, texts[1] = values[1], texts[2] = values[2];
}

static uint64_t rewritten_size(const Export *e, const Change *c) {
    const char *keys[3], *texts[3];
    char values[3][64];
    uint64_t n = 0;
    if (!c->is_external) return 1 + varint_size(c->tensor.bytes) + c->tensor.bytes;
    external_texts(e, c, keys, values, texts);
    for (int i = 0; i < 3; i++) {
        size_t entry = entry_size(keys[i], strlen(texts[i]));
        n += 1 + varint_size(entry) + entry;
    }
    return n;
}

/* Copies [offset, offset + bytes) of an external file. */
static bool data_copy(Export *e, const onnx_tensor *t) {
    Mapped m;
    if (!file_map(t->file, &m)) return false;
    bool is_whole = t->offset + t->bytes <= m.size &&
                    fwrite(m.bytes + t->offset, 1, t->bytes, e->data) == t->bytes;
    file_unmap(&m);
    return is_whole;
}

static void data_write(Export *e, Change *c) {
    static const uint8_t zeros[4096];
    size_t gap = (size_t)(-e->data_at & 4095);
    const void *bytes = e->fetch(e->user, c->tensor.name, c->tensor.bytes);
    e->is_broken |= gap && fwrite(zeros, 1, gap, e->data) != gap;
    c->new_offset = e->data_at + gap;
    e->data_at = c->new_offset + c->tensor.bytes;
    e->is_broken |= bytes ? fwrite(bytes, 1, c->tensor.bytes, e->data) != c->tensor.bytes
                          : !data_copy(e, &c->tensor);
}

static trainc_status change_add(Export *e, Span s) {
    Proto p = {0};
    trainc_status status = tensor_read(&e->reader, s, &p);
    if ((e->n & (e->n - 1)) == 0) {
        Change *grown = realloc(e->changes, (e->n ? e->n * 2 : 1) * sizeof *grown);
        if (!grown)
            status = fail(e->reader.error, TRAINC_FAULT, "no memory");
        else
            e->changes = grown;
    }
    free(p.external.location);
    free(p.tensor.data);
    p.tensor.data = NULL;
    if (status != TRAINC_OK) {
        free(p.tensor.name);
        free(p.tensor.file);
        return status;
    }
    Change *c = &e->changes[e->n++];
    *c = (Change){.tensor = p.tensor, .is_external = p.external.is_external && p.tensor.dtype};
    if (c->is_external)
        data_write(e, c);
    else if (p.tensor.dtype)
        c->is_replaced = packed_bits(c->tensor.dtype) == 8 &&
                         e->fetch(e->user, c->tensor.name, c->tensor.bytes) != NULL;
    c->new_size = c->is_external || c->is_replaced ? rewritten_size(e, c) : 0;
    Field f;
    while (field_next(&s, &f))
        if (!is_rewritten(c, f.number)) c->new_size += (uint64_t)(f.tail - f.head);
    return TRAINC_OK;
}

static void put_rewritten(Export *e, const Change *c) {
    const char *keys[3], *texts[3];
    char values[3][64];
    if (c->is_external) {
        external_texts(e, c, keys, values, texts);
        for (int i = 0; i < 3; i++) put_entry(e, keys[i], texts[i]);
        return;
    }
    const void *bytes = e->fetch(e->user, c->tensor.name, c->tensor.bytes);
    put_head(e, TENSOR_RAW, c->tensor.bytes);
    if (bytes) put(e, bytes, c->tensor.bytes);
    e->is_broken |= !bytes;
}

/* The new elements stand where the old ones did; a tensor without any (no elements field) gets them
 * at its end. */
static void put_tensor(Export *e, const Change *c, Span s) {
    Field f;
    bool is_done = !c->is_external && !c->is_replaced;
    while (field_next(&s, &f)) {
        bool is_old = is_rewritten(c, f.number);
        if (!is_old)
            put(e, f.head, (size_t)(f.tail - f.head));
        else if (!is_done)
            put_rewritten(e, c);
        is_done |= is_old;
    }
    if (!is_done) put_rewritten(e, c);
}

static uint64_t graph_size(const Export *e, Span s, size_t first) {
    Field f;
    uint64_t n = 0;
    while (field_next(&s, &f)) {
        bool is_tensor = f.number == GRAPH_INITIALIZER && f.type == 2;
        uint64_t size = is_tensor ? e->changes[first++].new_size : 0;
        n += is_tensor ? 1 + varint_size(size) + size : (uint64_t)(f.tail - f.head);
    }
    return n;
}

static void put_graph(Export *e, Span s) {
    Field f;
    put_head(e, MODEL_GRAPH, graph_size(e, s, e->next));
    while (field_next(&s, &f)) {
        if (f.number == GRAPH_INITIALIZER && f.type == 2) {
            const Change *c = &e->changes[e->next++];
            put_head(e, GRAPH_INITIALIZER, c->new_size);
            put_tensor(e, c, f.bytes);
        } else
            put(e, f.head, (size_t)(f.tail - f.head));
    }
}

static trainc_status export_plan(Export *e) {
    Span s = {e->reader.file.bytes, e->reader.file.bytes + e->reader.file.size};
    Field f, g;
    trainc_status status = TRAINC_OK;
    while (status == TRAINC_OK && field_next(&s, &f)) {
        Span graph = f.bytes;
        while (f.number == MODEL_GRAPH && f.type == 2 && status == TRAINC_OK &&
               field_next(&graph, &g))
            if (g.number == GRAPH_INITIALIZER && g.type == 2) status = change_add(e, g.bytes);
        if (status == TRAINC_OK && f.number == MODEL_GRAPH && graph.at != graph.end)
            status = damaged(&e->reader, graph);
    }
    return status == TRAINC_OK && s.at != s.end ? damaged(&e->reader, s) : status;
}

static void export_write(Export *e) {
    Span s = {e->reader.file.bytes, e->reader.file.bytes + e->reader.file.size};
    Field f;
    while (field_next(&s, &f)) {
        if (f.number == MODEL_GRAPH && f.type == 2)
            put_graph(e, f.bytes);
        else
            put(e, f.head, (size_t)(f.tail - f.head));
    }
}

static bool file_finish(FILE *f, const char *from, const char *to, bool is_kept) {
    bool is_whole = f && fflush(f) == 0 && fsync(fileno(f)) == 0;
    is_whole &= f && fclose(f) == 0;
    if (is_whole && is_kept && rename(from, to) == 0) return true;
    unlink(from);
    return !is_kept;
}

static trainc_status export_to(Export *e, const char *out, const char *part, const char *data,
                               const char *data_part) {
    char **error = e->reader.error;
    e->out = fopen(part, "wb");
    e->data = e->out ? fopen(data_part, "wb") : NULL;
    trainc_status status =
        e->data ? export_plan(e)
                : fail(error, TRAINC_BAD_DATA, "cannot write %s: %s", out, strerror(errno));
    if (status == TRAINC_OK) export_write(e);
    bool is_good = status == TRAINC_OK && !e->is_broken;
    bool data_good = !e->data || file_finish(e->data, data_part, data, is_good && e->data_at);
    bool out_good = !e->out || file_finish(e->out, part, out, is_good && data_good);
    if (status == TRAINC_OK && (!is_good || !data_good || !out_good))
        status = fail(error, TRAINC_BAD_DATA, "cannot write %s: %s", out,
                      errno ? strerror(errno) : "the disk is full");
    return status;
}

trainc_status onnx_wire_export(const char *path, const char *out, onnx_fetch *fetch, void *user,
                               char **error) {
    Export e = {.reader = {.path = path, .error = error, .bad = TRAINC_BAD_MODEL},
                .fetch = fetch,
                .user = user};
    char *part = NULL, *data = NULL, *data_part = NULL;
    trainc_status status = TRAINC_FAULT;
    if (!file_map(path, &e.reader.file))
        return fail(error, TRAINC_BAD_MODEL, "%s: %s", path, strerror(errno));
    if (asprintf(&part, "%s.part", out) > 0 && asprintf(&data, "%s.data", out) > 0 &&
        asprintf(&data_part, "%s.data.part", out) > 0) {
        const char *slash = strrchr(data, '/');
        e.data_name = slash ? slash + 1 : data;
        status = export_to(&e, out, part, data, data_part);
    } else
        fail(error, status, "no memory");
    for (size_t i = 0; i < e.n; i++) free(e.changes[i].tensor.name), free(e.changes[i].tensor.file);
    free(e.changes);
    free(part), free(data), free(data_part);
    file_unmap(&e.reader.file);
    return status;
}
