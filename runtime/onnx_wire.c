/* onnx_wire.c - reads .onnx files at the level of protobuf's wire format; see onnx_wire.h.
 *
 * A ModelProto is walked along model -> graph (7) -> initializer (5). Input is untrusted: each
 * length is checked. */
#include "onnx_format.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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
size_t wire_bytes(int dtype) { return dtype_bytes[dtype]; }

int wire_code(int dtype) {
    for (size_t i = 1; i < sizeof dtype_of_onnx / sizeof *dtype_of_onnx; i++)
        if (dtype_of_onnx[i] == dtype) return (int)i;
    return 0;
}

unsigned wire_bits(int dtype) {
    if (dtype == TRAINC_I4 || dtype == TRAINC_U4 || dtype == TRAINC_F4E2M1) return 4;
    return dtype == TRAINC_I2 || dtype == TRAINC_U2 ? 2 : 8;
}

static void unpack(int dtype, const uint8_t *from, uint64_t n, uint8_t *to) {
    unsigned bits = wire_bits(dtype), sign = 1u << (bits - 1);
    bool is_signed = dtype == TRAINC_I4 || dtype == TRAINC_I2;
    for (uint64_t i = 0; i < n; i++) {
        unsigned x = (unsigned)from[i * bits / 8] >> (i * bits % 8) & ((1u << bits) - 1);
        to[i] = (uint8_t)(is_signed ? (x ^ sign) - sign : x);
    }
}

trainc_status wire_fail(char **error, trainc_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
trainc_status wire_fail(char **error, trainc_status status, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    if (error && vasprintf(error, fmt, args) < 0) *error = NULL;
    va_end(args);
    return status;
}

/* ---------------------------------------------------------------- files */

bool wire_map(const char *path, Mapped *m) {
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

void wire_unmap(Mapped *m) {
    if (m->size) munmap((void *)(uintptr_t)m->bytes, (size_t)m->size);
    m->size = 0;
}

/* ---------------------------------------------------------------- wire format */

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
bool field_next(Span *s, Field *f) {
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
        return wire_fail(
            r->error, r->bad,
            "%s: %s: its external data lies at no valid place below the model's folder", r->path,
            t->name);
    t->file = path_beside(r->path, e->location);
    if (!t->file) return wire_fail(r->error, TRAINC_FAULT, "no memory");
    if (stat(t->file, &info) != 0)
        return wire_fail(r->error, r->bad, "%s: %s", t->file, strerror(errno));
    if ((e->has_length && e->length != expected) || e->offset > (uint64_t)info.st_size ||
        expected > (uint64_t)info.st_size - e->offset)
        return wire_fail(r->error, r->bad, "%s: too short for %s", t->file, t->name);
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
    unsigned bits = wire_bits(t->dtype);
    Typed typed = {.cap = bits < 8 ? (t->bytes * bits + 7) / 8 : t->bytes / bytes, .bytes = bytes};
    Field f;
    if (typed.cap > r->file.size)
        return wire_fail(r->error, r->bad, "%s: tensor %s lacks its elements", r->path, t->name);
    typed.out = calloc(1, t->bytes + 1);
    if (!typed.out) return wire_fail(r->error, TRAINC_FAULT, "no memory");
    t->data = typed.out;
    while (field_next(&s, &f))
        if (f.number == wanted) typed_field(&typed, &f);
    if (bits < 8 && typed.n == typed.cap) {
        t->data = malloc(t->bytes + 1);
        if (t->data) unpack(t->dtype, typed.out, t->bytes, t->data);
        free(typed.out);
        if (!t->data) return wire_fail(r->error, TRAINC_FAULT, "no memory");
    }
    if (typed.n == typed.cap && !typed.is_bad) return TRAINC_OK;
    return wire_fail(r->error, r->bad, "%s: tensor %s holds %llu elements, its dims say %llu",
                     r->path, t->name, (unsigned long long)typed.n, (unsigned long long)typed.cap);
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
    if (!p->tensor.name) return wire_fail(r->error, TRAINC_FAULT, "no memory");
    return s.at == s.end ? TRAINC_OK
                         : wire_fail(r->error, r->bad, "%s: damaged at byte %zu", r->path,
                                     (size_t)(s.at - r->file.bytes));
}

static trainc_status raw_read(const Reader *r, Proto *p) {
    onnx_tensor *t = &p->tensor;
    unsigned bits = wire_bits(t->dtype);
    if ((uint64_t)(p->raw.end - p->raw.at) != (t->bytes * bits + 7) / 8)
        return wire_fail(r->error, r->bad, "%s: tensor %s holds %zu bytes, its dims say %llu",
                         r->path, t->name, (size_t)(p->raw.end - p->raw.at),
                         (unsigned long long)t->bytes);
    if (r->keeps_bytes || bits < 8) {
        t->data = malloc(t->bytes + 1);
        if (!t->data) return wire_fail(r->error, TRAINC_FAULT, "no memory");
        if (bits < 8)
            unpack(t->dtype, p->raw.at, t->bytes, t->data);
        else
            memcpy(t->data, p->raw.at, t->bytes);
        return TRAINC_OK;
    }
    t->file = strdup(r->path);
    t->offset = (uint64_t)(p->raw.at - r->file.bytes);
    return t->file ? TRAINC_OK : wire_fail(r->error, TRAINC_FAULT, "no memory");
}

trainc_status wire_tensor(const Reader *r, Span s, Proto *p) {
    trainc_status status = proto_read(r, s, p);
    onnx_tensor *t = &p->tensor;
    if (status != TRAINC_OK || !t->dtype) return status;
    if (!tensor_bytes(t, &t->bytes))
        return wire_fail(r->error, r->bad, "%s: tensor %s has impossible dims", r->path, t->name);
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
    trainc_status status = wire_tensor(r, s, &p);
    onnx_tensor *t = tensors_grow(list);
    free(p.external.location);
    if (!t) return wire_fail(r->error, TRAINC_FAULT, "no memory");
    *t = p.tensor;
    return status;
}

trainc_status wire_damaged(const Reader *r, Span s) {
    return wire_fail(r->error, r->bad, "%s: truncated or damaged at byte %zu", r->path,
                     (size_t)(s.at - r->file.bytes));
}

trainc_status onnx_wire_model(const char *path, onnx_tensors *list, char **error) {
    Reader r = {.path = path, .error = error, .bad = TRAINC_BAD_MODEL};
    trainc_status status = TRAINC_OK;
    Field f, g;
    *list = (onnx_tensors){0};
    if (!wire_map(path, &r.file)) return wire_fail(error, r.bad, "%s: %s", path, strerror(errno));
    Span s = {r.file.bytes, r.file.bytes + r.file.size};
    bool has_graph = false;
    while (status == TRAINC_OK && field_next(&s, &f)) {
        if (f.number != MODEL_GRAPH || f.type != 2) continue;
        Span graph = f.bytes;
        has_graph = true;
        while (status == TRAINC_OK && field_next(&graph, &g))
            if (g.number == GRAPH_INITIALIZER && g.type == 2)
                status = tensors_add(&r, g.bytes, list);
        if (status == TRAINC_OK && graph.at != graph.end) status = wire_damaged(&r, graph);
    }
    if (status == TRAINC_OK && s.at != s.end) status = wire_damaged(&r, s);
    if (status == TRAINC_OK && !has_graph)
        status = wire_fail(error, r.bad, "%s: not an ONNX file", path);
    wire_unmap(&r.file);
    return status;
}

trainc_status onnx_wire_tensor(const char *path, onnx_tensors *list, char **error) {
    Reader r = {.path = path, .error = error, .bad = TRAINC_BAD_DATA, .keeps_bytes = true};
    *list = (onnx_tensors){0};
    if (!wire_map(path, &r.file)) return wire_fail(error, r.bad, "%s: %s", path, strerror(errno));
    trainc_status status = tensors_add(&r, (Span){r.file.bytes, r.file.bytes + r.file.size}, list);
    wire_unmap(&r.file);
    if (status == TRAINC_OK && !list->items[0].data)
        status = wire_fail(error, r.bad, "%s: not a tensor whose elements are in the file", path);
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
