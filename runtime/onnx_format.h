/* onnx_format.h - protobuf's wire format as far as .onnx files need it: shared by reading (onnx_wire.c) and writing (onnx_export.c).
 * Not public. */
#ifndef TRAINC_ONNX_FORMAT_H
#define TRAINC_ONNX_FORMAT_H
#include "onnx_wire.h"
#include <stdbool.h>

enum { MODEL_GRAPH = 7, GRAPH_NODE = 1, GRAPH_INITIALIZER = 5, NODE_INPUT = 1 };
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

typedef struct Mapped {
    const uint8_t *bytes;
    uint64_t size;
} Mapped;

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

typedef struct Proto {
    onnx_tensor tensor;
    External external;
    Span raw;
} Proto;

trainc_status wire_fail(char **error, trainc_status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool wire_map(const char *path, Mapped *); /* errno says why not */
void wire_unmap(Mapped *);
/* The next field; false at the end or where the bytes are no field (then s->at != s->end). */
bool field_next(Span *, Field *);
/* A TensorProto: what, and where its elements lie. Owner of the strings and of tensor.data: caller, also after an error. */
trainc_status wire_tensor(const Reader *, Span, Proto *);
trainc_status wire_damaged(const Reader *, Span);
unsigned wire_bits(int dtype); /* of an element that shares its byte with others; else 8 */
size_t wire_bytes(int dtype);  /* of an element of a plain type */
int wire_code(int dtype);      /* ONNX's number of a trainc_dtype; 0 where it has none */
#endif
