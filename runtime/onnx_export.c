/* onnx_export.c - writes a .onnx file again with other elements in its initializers; see
 * onnx_wire.h.
 *
 * Every field keeps its bytes but the ones that hold elements, and those of nodes that read a split
 * initializer. The model is walked twice: first to learn the new length of each changed message (so
 * that lengths of the messages around it are right and as short as a protobuf library writes them),
 * then to write. */
#include "onnx_format.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What becomes of each initializer, in file order. */
typedef struct Change {
    onnx_tensor tensor;
    const onnx_split *split; /* not in the file: made of the one before it */
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
    const onnx_split *splits;
    size_t n_splits;
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

static uint64_t string_size(const char *s) { return 1 + varint_size(strlen(s)) + strlen(s); }

static void put_string(Export *e, uint32_t number, const char *s) {
    put_head(e, number, strlen(s));
    put(e, s, strlen(s));
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
static bool is_renamed(const Change *c, uint32_t number) {
    return c->split && number == TENSOR_NAME;
}

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
    if (!wire_map(t->file, &m)) return false;
    bool is_whole = t->offset + t->bytes <= m.size &&
                    fwrite(m.bytes + t->offset, 1, t->bytes, e->data) == t->bytes;
    wire_unmap(&m);
    return is_whole;
}

static const char *change_name(const Change *c) {
    return c->split ? c->split->name : c->tensor.name;
}

static void data_write(Export *e, Change *c) {
    static const uint8_t zeros[4096];
    size_t gap = (size_t)(-e->data_at & 4095);
    const void *bytes = e->fetch(e->user, change_name(c), c->tensor.bytes);
    e->is_broken |= gap && fwrite(zeros, 1, gap, e->data) != gap;
    c->new_offset = e->data_at + gap;
    e->data_at = c->new_offset + c->tensor.bytes;
    e->is_broken |= bytes ? fwrite(bytes, 1, c->tensor.bytes, e->data) != c->tensor.bytes
                          : !data_copy(e, &c->tensor);
}

static trainc_status change_add(Export *e, Span s, const onnx_split *split) {
    Proto p = {0};
    trainc_status status = wire_tensor(&e->reader, s, &p);
    if ((e->n & (e->n - 1)) == 0) {
        Change *grown = realloc(e->changes, (e->n ? e->n * 2 : 1) * sizeof *grown);
        if (!grown)
            status = wire_fail(e->reader.error, TRAINC_FAULT, "no memory");
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
    *c = (Change){.tensor = p.tensor,
                  .split = split,
                  .is_external = p.external.is_external && p.tensor.dtype};
    if (c->is_external)
        data_write(e, c);
    else if (p.tensor.dtype)
        c->is_replaced = wire_bits(c->tensor.dtype) == 8 &&
                         e->fetch(e->user, change_name(c), c->tensor.bytes) != NULL;
    c->new_size = c->is_external || c->is_replaced ? rewritten_size(e, c) : 0;
    Field f;
    while (field_next(&s, &f))
        if (is_renamed(c, f.number))
            c->new_size += string_size(c->split->name);
        else if (!is_rewritten(c, f.number))
            c->new_size += (uint64_t)(f.tail - f.head);
    return TRAINC_OK;
}

/* The initializer and those that are split from it. */
static trainc_status changes_add(Export *e, Span s) {
    size_t at = e->n;
    trainc_status status = change_add(e, s, NULL);
    for (size_t i = 0; i < e->n_splits && status == TRAINC_OK; i++)
        if (e->splits[i].from && strcmp(e->splits[i].from, e->changes[at].tensor.name) == 0)
            status = change_add(e, s, &e->splits[i]);
    return status;
}

static void put_rewritten(Export *e, const Change *c) {
    const char *keys[3], *texts[3];
    char values[3][64];
    if (c->is_external) {
        external_texts(e, c, keys, values, texts);
        for (int i = 0; i < 3; i++) put_entry(e, keys[i], texts[i]);
        return;
    }
    const void *bytes = e->fetch(e->user, change_name(c), c->tensor.bytes);
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
        if (is_renamed(c, f.number))
            put_string(e, TENSOR_NAME, c->split->name);
        else if (!is_old)
            put(e, f.head, (size_t)(f.tail - f.head));
        else if (!is_done)
            put_rewritten(e, c);
        is_done |= is_old;
    }
    if (!is_done) put_rewritten(e, c);
}

/* ---------------------------------------------------------------- nodes and graph */

/* What a node reads there from now on; NULL: what it read. */
static const char *new_input(const Export *e, uint32_t node, uint32_t input) {
    for (size_t i = 0; i < e->n_splits; i++)
        for (uint32_t k = 0; k < e->splits[i].n_readers; k++)
            if (e->splits[i].readers[2 * k] == node && e->splits[i].readers[2 * k + 1] == input)
                return e->splits[i].name;
    return NULL;
}

static bool is_input(const Field *f) { return f->number == NODE_INPUT && f->type == 2; }

static uint64_t node_size(const Export *e, Span s, uint32_t node) {
    Field f;
    uint32_t input = 0;
    uint64_t n = 0;
    while (field_next(&s, &f)) {
        const char *name = is_input(&f) ? new_input(e, node, input++) : NULL;
        n += name ? string_size(name) : (uint64_t)(f.tail - f.head);
    }
    const char *more = new_input(e, node, input);
    return more ? n + string_size(more) : n;
}

static void put_node(Export *e, Span s, uint32_t node) {
    Field f;
    uint32_t input = 0;
    put_head(e, GRAPH_NODE, node_size(e, s, node));
    while (field_next(&s, &f)) {
        const char *name = is_input(&f) ? new_input(e, node, input++) : NULL;
        if (name)
            put_string(e, NODE_INPUT, name);
        else
            put(e, f.head, (size_t)(f.tail - f.head));
    }
    const char *more = new_input(e, node, input);
    if (more) put_string(e, NODE_INPUT, more);
}

/* ---------------------------------------------------------------- vectors that are new */

static uint64_t vector_size(const onnx_split *v) {
    uint64_t bytes = v->n * wire_bytes(v->dtype);
    return 1 + varint_size(v->n) + 1 + varint_size((uint64_t)wire_code(v->dtype)) +
           string_size(v->name) + 1 + varint_size(bytes) + bytes;
}

static void put_vector(Export *e, const onnx_split *v) {
    uint64_t bytes = v->n * wire_bytes(v->dtype);
    const void *elements = e->fetch(e->user, v->name, bytes);
    put_head(e, GRAPH_INITIALIZER, vector_size(v));
    put_varint(e, TENSOR_DIMS << 3);
    put_varint(e, v->n);
    put_varint(e, TENSOR_TYPE << 3);
    put_varint(e, (uint64_t)wire_code(v->dtype));
    put_string(e, TENSOR_NAME, v->name);
    put_head(e, TENSOR_RAW, bytes);
    if (elements) put(e, elements, bytes);
    e->is_broken |= !elements;
}

static bool is_node(const Export *e, const Field *f) {
    return f->number == GRAPH_NODE && f->type == 2 && e->n_splits;
}

static bool is_initializer(const Field *f) {
    return f->number == GRAPH_INITIALIZER && f->type == 2;
}

static uint64_t message_size(uint64_t n) { return 1 + varint_size(n) + n; }

static uint64_t graph_size(const Export *e, Span s, size_t next) {
    Field f;
    uint32_t node = 0;
    uint64_t n = 0;
    while (field_next(&s, &f)) {
        if (is_initializer(&f)) do
                n += message_size(e->changes[next++].new_size);
            while (next < e->n && e->changes[next].split);
        else if (is_node(e, &f))
            n += message_size(node_size(e, f.bytes, node++));
        else
            n += (uint64_t)(f.tail - f.head);
    }
    for (size_t i = 0; i < e->n_splits; i++)
        if (!e->splits[i].from) n += message_size(vector_size(&e->splits[i]));
    return n;
}

static void put_initializers(Export *e, Span s) {
    do {
        const Change *c = &e->changes[e->next++];
        put_head(e, GRAPH_INITIALIZER, c->new_size);
        put_tensor(e, c, s);
    } while (e->next < e->n && e->changes[e->next].split);
}

static void put_graph(Export *e, Span s) {
    Field f;
    uint32_t node = 0;
    put_head(e, MODEL_GRAPH, graph_size(e, s, e->next));
    while (field_next(&s, &f)) {
        if (is_initializer(&f))
            put_initializers(e, f.bytes);
        else if (is_node(e, &f))
            put_node(e, f.bytes, node++);
        else
            put(e, f.head, (size_t)(f.tail - f.head));
    }
    for (size_t i = 0; i < e->n_splits; i++)
        if (!e->splits[i].from) put_vector(e, &e->splits[i]);
}

static trainc_status export_plan(Export *e) {
    Span s = {e->reader.file.bytes, e->reader.file.bytes + e->reader.file.size};
    Field f, g;
    trainc_status status = TRAINC_OK;
    while (status == TRAINC_OK && field_next(&s, &f)) {
        Span graph = f.bytes;
        while (f.number == MODEL_GRAPH && f.type == 2 && status == TRAINC_OK &&
               field_next(&graph, &g))
            if (g.number == GRAPH_INITIALIZER && g.type == 2) status = changes_add(e, g.bytes);
        if (status == TRAINC_OK && f.number == MODEL_GRAPH && graph.at != graph.end)
            status = wire_damaged(&e->reader, graph);
    }
    return status == TRAINC_OK && s.at != s.end ? wire_damaged(&e->reader, s) : status;
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
                : wire_fail(error, TRAINC_BAD_DATA, "cannot write %s: %s", out, strerror(errno));
    if (status == TRAINC_OK) export_write(e);
    bool is_good = status == TRAINC_OK && !e->is_broken;
    bool data_good = !e->data || file_finish(e->data, data_part, data, is_good && e->data_at);
    bool out_good = !e->out || file_finish(e->out, part, out, is_good && data_good);
    if (status == TRAINC_OK && (!is_good || !data_good || !out_good))
        status = wire_fail(error, TRAINC_BAD_DATA, "cannot write %s: %s", out,
                           errno ? strerror(errno) : "the disk is full");
    return status;
}

trainc_status onnx_wire_export(const char *path, const char *out, onnx_fetch *fetch, void *user,
                               const onnx_split *splits, size_t n_splits, char **error) {
    Export e = {.reader = {.path = path, .error = error, .bad = TRAINC_BAD_MODEL},
                .fetch = fetch,
                .user = user,
                .splits = splits,
                .n_splits = n_splits};
    char *part = NULL, *data = NULL, *data_part = NULL;
    trainc_status status = TRAINC_FAULT;
    if (!wire_map(path, &e.reader.file))
        return wire_fail(error, TRAINC_BAD_MODEL, "%s: %s", path, strerror(errno));
    if (asprintf(&part, "%s.part", out) > 0 && asprintf(&data, "%s.data", out) > 0 &&
        asprintf(&data_part, "%s.data.part", out) > 0) {
        const char *slash = strrchr(data, '/');
        e.data_name = slash ? slash + 1 : data;
        status = export_to(&e, out, part, data, data_part);
    } else
        wire_fail(error, status, "no memory");
    for (size_t i = 0; i < e.n; i++) free(e.changes[i].tensor.name), free(e.changes[i].tensor.file);
    free(e.changes);
    free(part), free(data), free(data_part);
    wire_unmap(&e.reader.file);
    return status;
}
