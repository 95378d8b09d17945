/* strip.c - takes the weights out of a serialized ModelProto before it is unpacked.
 *
 * Walks protobuf's wire format along the messages that can hold tensors (graph, node, attribute,
 * function, tensor) and copies everything but TensorProto.raw_data, for which it writes the long
 * unused field `segment` {begin, end}: the place of the bytes in the file. So unpacking costs what
 * the structure costs, whatever the weights weigh. Lengths of rewritten messages are five-byte
 * varints, since they are known only afterwards. Input is untrusted: every length is checked
 * against its message.
 */
#include "loader.h"
#include <string.h>

typedef enum Message {
    M_OTHER,
    M_MODEL,
    M_GRAPH,
    M_NODE,
    M_ATTRIBUTE,
    M_TENSOR,
    M_FUNCTION
} Message;
typedef struct Child {
    Message parent;
    uint32_t field;
    Message kind;
} Child;
static const Child children[] = {
    {M_MODEL, 7, M_GRAPH},     {M_MODEL, 25, M_FUNCTION},     {M_GRAPH, 1, M_NODE},
    {M_GRAPH, 5, M_TENSOR},    {M_NODE, 5, M_ATTRIBUTE},      {M_ATTRIBUTE, 5, M_TENSOR},
    {M_ATTRIBUTE, 6, M_GRAPH}, {M_ATTRIBUTE, 10, M_TENSOR},   {M_ATTRIBUTE, 11, M_GRAPH},
    {M_FUNCTION, 7, M_NODE},   {M_FUNCTION, 11, M_ATTRIBUTE},
};
enum { TENSOR_SEGMENT = 3, TENSOR_RAW_DATA = 9, MAX_DEPTH = 64, LENGTH_BYTES = 5 };

typedef struct Stripper {
    Arena *arena;
    const uint8_t *in;
    uint64_t at;
    uint8_t *out;
    size_t n_out, cap_out;
    const char *error;
} Stripper;

static bool fail(Stripper *s, const char *what) {
    if (!s->error)
        s->error = arena_printf(s->arena, "%s at byte %llu", what, (unsigned long long)s->at);
    return false;
}

static void put(Stripper *s, const void *bytes, size_t n) {
    if (s->n_out + n > s->cap_out) {
        size_t cap = s->cap_out * 2 > s->n_out + n ? s->cap_out * 2 : s->n_out + n + 4096;
        s->out = arena_grow(s->arena, s->out, s->n_out, cap);
        s->cap_out = cap;
    }
    if (n) memcpy(s->out + s->n_out, bytes, n);
    s->n_out += n;
}

static bool read_varint(Stripper *s, uint64_t end, uint64_t *value) {
    *value = 0;
    for (uint32_t shift = 0; shift < 70; shift += 7) {
        if (s->at >= end) return fail(s, "truncated number");
        uint8_t byte = s->in[s->at++];
        if (shift < 64) *value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return true;
    }
    return fail(s, "number of more than ten bytes");
}

static size_t write_varint(uint8_t *to, uint64_t value) {
    size_t n = 0;
    for (; value >= 0x80; value >>= 7) to[n++] = (uint8_t)(value | 0x80);
    to[n++] = (uint8_t)value;
    return n;
}

static Message child_kind(Message parent, uint64_t field) {
    for (size_t i = 0; i < sizeof children / sizeof *children; i++)
        if (children[i].parent == parent && children[i].field == field) return children[i].kind;
    return M_OTHER;
}

/* segment { begin: from, end: to } */
static void put_segment(Stripper *s, uint64_t from, uint64_t to) {
    uint8_t inner[24], outer[32];
    size_t n = 0;
    inner[n++] = 1 << 3;
    n += write_varint(inner + n, from);
    inner[n++] = 2 << 3;
    n += write_varint(inner + n, to);
    outer[0] = TENSOR_SEGMENT << 3 | 2;
    size_t head = 1 + write_varint(outer + 1, n);
    put(s, outer, head);
    put(s, inner, n);
}

static bool strip_message(Stripper *, Message, uint64_t end, int depth);

/* A length-prefixed child that may hold tensors: its length is patched in afterwards. */
static bool strip_child(Stripper *s, Message kind, uint64_t end, int depth) {
    size_t length_at = s->n_out;
    put(s, (uint8_t[LENGTH_BYTES]){0}, LENGTH_BYTES);
    if (!strip_message(s, kind, end, depth + 1)) return false;
    uint64_t n = s->n_out - length_at - LENGTH_BYTES;
    if (n > UINT32_MAX / 2) return fail(s, "more than 2 GB of structure");
    for (int i = 0; i < LENGTH_BYTES; i++, n >>= 7)
        s->out[length_at + (size_t)i] = (uint8_t)((n & 0x7f) | (i < LENGTH_BYTES - 1 ? 0x80 : 0));
    return true;
}

static bool strip_bytes(Stripper *s, Message kind, uint64_t field, uint64_t head_at, uint64_t end,
                        int depth) {
    uint64_t tag_end = s->at, length;
    if (!read_varint(s, end, &length)) return false;
    if (length > end - s->at)
        return fail(s, "a field reaches beyond its message: the file is truncated or damaged");
    uint64_t stop = s->at + length;
    Message child = child_kind(kind, field);
    if (kind == M_TENSOR && field == TENSOR_SEGMENT) return fail(s, "a tensor in segments");
    if (kind == M_TENSOR && field == TENSOR_RAW_DATA) {
        put_segment(s, s->at, stop);
    } else if (child != M_OTHER) {
        put(s, s->in + head_at, tag_end - head_at);
        if (!strip_child(s, child, stop, depth)) return false;
    } else {
        put(s, s->in + head_at, stop - head_at);
    }
    s->at = stop;
    return true;
}

static bool strip_message(Stripper *s, Message kind, uint64_t end, int depth) {
    if (depth > MAX_DEPTH) return fail(s, "messages nested too deeply");
    while (s->at < end) {
        uint64_t head_at = s->at, tag, skipped;
        if (!read_varint(s, end, &tag)) return false;
        switch (tag & 7) {
        case 0:
            if (!read_varint(s, end, &skipped)) return false;
            break;
        case 1:
        case 5: {
            uint64_t n = (tag & 7) == 1 ? 8 : 4;
            if (n > end - s->at) return fail(s, "truncated field");
            s->at += n;
            break;
        }
        case 2:
            if (!strip_bytes(s, kind, tag >> 3, head_at, end, depth)) return false;
            continue;
        default:
            return fail(s, "not a protobuf field");
        }
        put(s, s->in + head_at, s->at - head_at);
    }
    return true;
}

uint8_t *strip_weights(Arena *arena, const uint8_t *bytes, uint64_t size, size_t *stripped_size,
                       const char **error) {
    Stripper s = {.arena = arena, .in = bytes};
    put(&s, NULL, 0);
    bool done = strip_message(&s, M_MODEL, size, 0);
    *stripped_size = s.n_out;
    *error = s.error;
    if (done && !s.out) s.out = arena_alloc(arena, 1);
    return done ? s.out : NULL;
}
