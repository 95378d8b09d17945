/* loader.c - opens a .onnx file and says where the elements of each tensor lie.
 *
 * The file is mapped; strip.c takes the weights out, protobuf-c unpacks the rest into an arena. A
 * tensor's elements are then in the model file (raw_data), in an external data file (mapped once,
 * beside the model or below its folder), or in typed fields, which are small and decoded into
 * memory. Nothing here trusts a length: each is checked against dims and file size.
 */
#include "loader.h"
#include <fcntl.h>
#include <limits.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---------------------------------------------------------------- files */

static const char *file_map(const char *path, MappedFile *file) {
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return strerror(errno);
    const char *error = NULL;
    if (fstat(fd, &info) != 0)
        error = strerror(errno);
    else if (!S_ISREG(info.st_mode))
        error = "not a file";
    else if (info.st_size > 0) {
        void *p = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            error = strerror(errno);
        else
            file->bytes = p;
        file->size = (uint64_t)info.st_size;
        /* Of weights a few elements are looked at, far apart: reading ahead would read them all. */
        if (!error) posix_madvise(p, (size_t)info.st_size, POSIX_MADV_RANDOM);
    } else
        file->bytes = (const uint8_t *)"";
    close(fd);
    return error;
}

static void *arena_protobuf_alloc(void *arena, size_t bytes) {
    return arena_alloc(arena, bytes ? bytes : 1);
}
static void arena_protobuf_free(void *arena, void *p) { (void)arena, (void)p; }

static bool folder_of(ModelFile *m, Graph *g, const char *path) {
    char real[PATH_MAX];
    if (!realpath(path, real)) return false;
    m->path = arena_strdup(g->arena, real); /* weight sources keep it */
    char *folder = arena_strdup(m->arena, real);
    strrchr(folder, '/')[1] = 0;
    m->folder = folder;
    return true;
}

/* ---------------------------------------------------------------- absent strings become empty ones
 */

static void default_string(char **s) {
    static char empty[1];
    if (!*s) *s = empty;
}

static void graph_default_strings(Onnx__GraphProto *graph);

static void nodes_default_strings(Onnx__NodeProto **nodes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        default_string(&nodes[i]->op_type);
        default_string(&nodes[i]->domain);
        for (size_t k = 0; k < nodes[i]->n_attribute; k++) {
            default_string(&nodes[i]->attribute[k]->name);
            if (nodes[i]->attribute[k]->g) graph_default_strings(nodes[i]->attribute[k]->g);
        }
    }
}

static void graph_default_strings(Onnx__GraphProto *graph) {
    nodes_default_strings(graph->node, graph->n_node);
    for (size_t i = 0; i < graph->n_input; i++) default_string(&graph->input[i]->name);
    for (size_t i = 0; i < graph->n_output; i++) default_string(&graph->output[i]->name);
    for (size_t i = 0; i < graph->n_initializer; i++) default_string(&graph->initializer[i]->name);
}

static void model_default_strings(Onnx__ModelProto *m) {
    graph_default_strings(m->graph);
    for (size_t i = 0; i < m->n_functions; i++)
        nodes_default_strings(m->functions[i]->node, m->functions[i]->n_node);
}

bool model_file_open(ModelFile *m, Graph *g, const char *path) {
    *m = (ModelFile){.arena = arena_new()};
    if (!folder_of(m, g, path)) {
        diag_add(g, E_MODEL_READ, 0, path, strerror(errno));
        return false;
    }
    m->files = arena_alloc(m->arena, sizeof *m->files);
    m->n_files = 1;
    m->files[0].path = m->path;
    const char *error = file_map(m->path, &m->files[0]);
    size_t n = 0;
    uint8_t *bytes =
        error ? NULL : strip_weights(m->arena, m->files[0].bytes, m->files[0].size, &n, &error);
    ProtobufCAllocator allocator = {arena_protobuf_alloc, arena_protobuf_free, m->arena};
    if (bytes) m->proto = onnx__model_proto__unpack(&allocator, n, bytes);
    if (!error && (!m->proto || !m->proto->graph))
        error = m->proto ? "it holds no graph: is this an ONNX file?" : "not an ONNX file";
    if (error)
        diag_add(g, E_MODEL_READ, 0, path, error);
    else
        model_default_strings(m->proto);
    return !error;
}

void model_file_close(ModelFile *m) {
    for (uint32_t i = 0; i < m->n_files; i++)
        if (m->files[i].bytes && m->files[i].size)
            munmap((void *)(uintptr_t)m->files[i].bytes, (size_t)m->files[i].size);
    arena_free(m->arena);
}

/* ---------------------------------------------------------------- packed elements */

/* Elements of such a type lie packed in files, the first in the low bits; here each takes a byte.
 * 8: not packed. */
static unsigned packed_bits(DType d) {
    if (d == DT_I4 || d == DT_U4 || d == DT_F4E2M1) return 4;
    return d == DT_I2 || d == DT_U2 ? 2 : 8;
}

static void unpack(TensorSource *s, const uint8_t *from, size_t stride, uint8_t *to) {
    unsigned bits = packed_bits((DType)s->type.dtype);
    for (uint64_t i = 0; i < type_bytes(&s->type); i++) {
        int64_t x = from[i * bits / 8 * stride] >> (i * bits % 8);
        if (s->type.dtype == DT_F4E2M1)
            to[i] = (uint8_t)(x & 15);
        else
            elem_store_int((DType)s->type.dtype, to + i, x);
    }
    s->data = to;
    s->bytes = type_bytes(&s->type);
    s->file = NULL, s->offset = 0;
}

/* ---------------------------------------------------------------- external data */

static const char *external_value(const Onnx__TensorProto *t, const char *key) {
    for (size_t i = 0; i < t->n_external_data; i++)
        if (t->external_data[i]->key && !strcmp(t->external_data[i]->key, key))
            return t->external_data[i]->value;
    return NULL;
}

static bool path_escapes(const char *location) {
    if (*location == '/' || !*location) return true;
    for (const char *p = location; p; p = strchr(p, '/')) {
        p += *p == '/';
        if (p[0] == '.' && p[1] == '.' && (p[2] == '/' || !p[2])) return true;
    }
    return false;
}

static const MappedFile *external_file(ModelFile *m, Graph *g, const char *location) {
    const char *path = arena_printf(g->arena, "%s%s", m->folder, location);
    for (uint32_t i = 1; i < m->n_files; i++)
        if (!strcmp(m->files[i].path, path)) return &m->files[i];
    m->files = arena_grow(m->arena, m->files, m->n_files * sizeof *m->files,
                          (m->n_files + 1) * sizeof *m->files);
    MappedFile *file = &m->files[m->n_files++];
    *file = (MappedFile){.path = path};
    const char *error = file_map(path, file);
    if (error) diag_add(g, E_WEIGHTS_READ, 0, location, error);
    return file;
}

static bool parse_size(const char *text, uint64_t otherwise, uint64_t *value) {
    char *end;
    *value = otherwise;
    if (!text) return true;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && *text >= '0' && *text <= '9' && !*end;
}

static bool external_source(ModelFile *m, Graph *g, const Onnx__TensorProto *t, TensorSource *s) {
    const char *location = external_value(t, "location");
    unsigned bits = packed_bits((DType)s->type.dtype);
    uint64_t length,
        expected = bits < 8 ? (type_bytes(&s->type) * bits + 7) / 8 : type_bytes(&s->type);
    if (!location || path_escapes(location)) {
        diag_add(g, E_WEIGHTS_READ, 0, location ? location : "without a location",
                 arena_printf(g->arena, "%s: the location must be a path below the model's folder",
                              t->name ? t->name : ""));
        return false;
    }
    if (!parse_size(external_value(t, "offset"), 0, &s->offset) ||
        !parse_size(external_value(t, "length"), expected, &length)) {
        diag_add(g, E_WEIGHTS_READ, 0, location,
                 arena_printf(g->arena, "%s: offset or length is no number", t->name));
        return false;
    }
    const MappedFile *file = external_file(m, g, location);
    if (!file->bytes) return false;
    if (length != expected || s->offset > file->size || length > file->size - s->offset) {
        diag_add(g, E_WEIGHTS_READ, 0, location,
                 arena_printf(g->arena,
                              length != expected
                                  ? "%s: its dims need %llu bytes, %llu are given"
                                  : "%s: too short, %llu bytes are needed at offset %llu",
                              t->name, (unsigned long long)expected,
                              (unsigned long long)(length != expected ? length : s->offset)));
        return false;
    }
    s->file = file->path;
    s->bytes = length;
    s->data = file->bytes + s->offset;
    if (bits < 8) unpack(s, s->data, 1, arena_alloc(g->arena, type_bytes(&s->type) + 1));
    return true;
}

/* ---------------------------------------------------------------- inline data */

/* Typed fields hold small element types in wider ones; storage is little-endian as the host. */
static const void *typed_elements(const Onnx__TensorProto *t, DType dtype, size_t *n,
                                  size_t *stride) {
    switch (dtype) {
    case DT_F32:
        *n = t->n_float_data, *stride = sizeof(float);
        return t->float_data;
    case DT_F64:
        *n = t->n_double_data, *stride = sizeof(double);
        return t->double_data;
    case DT_I64:
        *n = t->n_int64_data, *stride = sizeof(int64_t);
        return t->int64_data;
    case DT_U64:
    case DT_U32:
        *n = t->n_uint64_data, *stride = sizeof(uint64_t);
        return t->uint64_data;
    case DT_F16:
    case DT_BF16:
    case DT_I32:
    case DT_I16:
    case DT_I8:
    case DT_U16:
    case DT_U8:
    case DT_BOOL:
    default:
        *n = t->n_int32_data, *stride = sizeof(int32_t);
        return t->int32_data;
    }
}

static bool typed_source(Graph *g, const Onnx__TensorProto *t, TensorSource *s) {
    size_t n, stride, bytes = dtype_info[s->type.dtype].bytes;
    const uint8_t *from = typed_elements(t, s->type.dtype, &n, &stride);
    unsigned bits = packed_bits((DType)s->type.dtype);
    int64_t wanted = (type_elems(&s->type) * bits + 7) / 8;
    if (bits == 8) wanted = type_elems(&s->type);
    if ((uint64_t)wanted != n) {
        diag_add(g, E_MODEL_INVALID, 0,
                 arena_printf(g->arena, "tensor %s holds %zu elements, its dims say %lld",
                              t->name ? t->name : "", n, (long long)wanted));
        return false;
    }
    if (bits < 8) {
        unpack(s, from, stride, arena_alloc(g->arena, type_bytes(&s->type) + 1));
        return true;
    }
    uint8_t *to = arena_alloc(g->arena, n * bytes + 1);
    for (size_t i = 0; i < n; i++) memcpy(to + i * bytes, from + i * stride, bytes);
    s->data = to;
    s->bytes = n * bytes;
    return true;
}

static bool raw_source(ModelFile *m, Graph *g, const Onnx__TensorProto *t, TensorSource *s) {
    unsigned bits = packed_bits((DType)s->type.dtype);
    uint64_t begin = (uint64_t)t->segment->begin, end = (uint64_t)t->segment->end,
             wanted = (type_bytes(&s->type) * bits + 7) / 8;
    if (bits == 8) wanted = type_bytes(&s->type);
    if (end - begin != wanted) {
        diag_add(g, E_MODEL_INVALID, 0,
                 arena_printf(g->arena, "tensor %s holds %llu bytes, its dims say %llu",
                              t->name ? t->name : "", (unsigned long long)(end - begin),
                              (unsigned long long)wanted));
        return false;
    }
    s->file = m->path;
    s->offset = begin;
    s->bytes = wanted;
    s->data = m->files[0].bytes + begin;
    if (bits < 8) unpack(s, s->data, 1, arena_alloc(g->arena, type_bytes(&s->type) + 1));
    return true;
}

const char *element_type_name(Graph *g, int64_t code) {
    DType d = code >= 0 && code <= INT32_MAX ? dtype_from_onnx((int)code) : DT_NONE;
    if (d != DT_NONE) return dtype_info[d].name;
    return code == 8    ? "string"
           : code == 14 ? "complex64"
           : code == 15 ? "complex128"
                        : arena_printf(g->arena, "number %lld", (long long)code);
}

static bool source_type(Graph *g, const Onnx__TensorProto *t, Type *type) {
    DType dtype = dtype_from_onnx(t->data_type);
    if (dtype == DT_NONE) {
        diag_add(g, E_DTYPE, 0, element_type_name(g, t->data_type),
                 arena_printf(g->arena, "tensor %s", t->name ? t->name : ""));
        return false;
    }
    *type = (Type){.dtype = (uint8_t)dtype};
    int64_t elems = 1;
    bool is_valid = t->n_dims <= MAX_RANK;
    for (size_t i = 0; i < t->n_dims && is_valid; i++) {
        type->dims[i] = t->dims[i];
        is_valid = t->dims[i] >= 0 && !__builtin_mul_overflow(elems, t->dims[i], &elems) &&
                   elems < INT64_MAX / 16;
    }
    type->rank = (uint8_t)(is_valid ? t->n_dims : 0);
    if (!is_valid)
        diag_add(g, E_MODEL_INVALID, 0,
                 arena_printf(g->arena, "tensor %s has impossible dims", t->name ? t->name : ""));
    return is_valid;
}

bool tensor_source(ModelFile *m, Graph *g, const Onnx__TensorProto *t, TensorSource *s) {
    *s = (TensorSource){0};
    if (!source_type(g, t, &s->type)) return false;
    if (t->has_data_location && t->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL)
        return external_source(m, g, t, s);
    return t->segment ? raw_source(m, g, t, s) : typed_source(g, t, s);
}

/* ---------------------------------------------------------------- metadata */

/* The payload of a length-prefixed unknown field; false where it is another field or broken. */
static bool newer_payload(const ProtobufCMessageUnknownField *f, uint32_t tag, const uint8_t **from,
                          size_t *n) {
    if (f->tag != tag || f->wire_type != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) return false;
    size_t skip = 0;
    while (skip < f->len && f->data[skip] & 0x80) skip++;
    if (++skip > f->len) return false;
    *from = f->data + skip;
    *n = f->len - skip;
    return true;
}

const char *newer_string(Arena *arena, const ProtobufCMessage *message, uint32_t tag) {
    const uint8_t *from;
    size_t n;
    for (unsigned i = 0; i < message->n_unknown_fields; i++)
        if (newer_payload(&message->unknown_fields[i], tag, &from, &n))
            return arena_printf(arena, "%.*s", (int)n, (const char *)from);
    return "";
}

Onnx__AttributeProto **function_defaults(Arena *arena, const Onnx__FunctionProto *f, uint32_t *n) {
    enum { ATTRIBUTE_PROTO = 11 };
    ProtobufCAllocator allocator = {arena_protobuf_alloc, arena_protobuf_free, arena};
    Onnx__AttributeProto **list = arena_alloc(arena, (f->base.n_unknown_fields + 1) * sizeof *list);
    *n = 0;
    for (unsigned i = 0; i < f->base.n_unknown_fields; i++) {
        const uint8_t *from;
        size_t length;
        if (!newer_payload(&f->base.unknown_fields[i], ATTRIBUTE_PROTO, &from, &length)) continue;
        Onnx__AttributeProto *a = onnx__attribute_proto__unpack(&allocator, length, from);
        if (!a || !a->name) continue;
        a->g = NULL; /* a graph has no default */
        list[(*n)++] = a;
    }
    return list;
}

char *metadata_find(Arena *arena, const ProtobufCMessage *message, uint32_t tag, const char *key) {
    for (unsigned i = 0; i < message->n_unknown_fields; i++) {
        const uint8_t *from;
        size_t n;
        if (!newer_payload(&message->unknown_fields[i], tag, &from, &n)) continue;
        ProtobufCAllocator allocator = {arena_protobuf_alloc, arena_protobuf_free, arena};
        Onnx__StringStringEntryProto *entry =
            onnx__string_string_entry_proto__unpack(&allocator, n, from);
        if (entry && entry->key && !strcmp(entry->key, key)) return entry->value;
    }
    return NULL;
}
