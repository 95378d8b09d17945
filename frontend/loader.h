/* loader.h - the .onnx file as protobuf-c structs without its weights. Private to frontend/. */
#ifndef TRAINC_LOADER_H
#define TRAINC_LOADER_H
#include "import.h"

typedef struct MappedFile {
    const char *path;
    const uint8_t *bytes;
    uint64_t size;
} MappedFile; /* bytes NULL: cannot be read */
typedef struct ModelFile {
    Arena *arena;              /* the messages live here */
    const char *path, *folder; /* absolute path; folder with its final '/' */
    MappedFile *files;         /* [0] the model itself, then external data files */
    uint32_t n_files;
    Onnx__ModelProto
        *proto; /* raw_data is stripped: TensorProto.segment tells where it lies in the file */
} ModelFile;

/* Where the elements of a tensor are. data is mapped or decoded; file NULL: only decoded. */
typedef struct TensorSource {
    Type type;
    const char *file;
    uint64_t offset, bytes;
    const void *data;
} TensorSource;

/* model_file_open - maps and unpacks. false after E_MODEL_READ or E_MODEL_INVALID. Close even then.
 */
bool model_file_open(ModelFile *, Graph *, const char *path);
void model_file_close(ModelFile *);
/* tensor_source - the place of a tensor's elements, checked against its dims. false after a
 * diagnostic (E_WEIGHTS_READ, E_DTYPE, E_MODEL_INVALID). */
bool tensor_source(ModelFile *, Graph *, const Onnx__TensorProto *, TensorSource *);

/* "f32", or "string" and the like where ONNX has a type that we have not. */
const char *element_type_name(Graph *, int64_t code);

/* strip_weights - the model's bytes with every TensorProto.raw_data replaced by segment {begin,
 * end} (places in `bytes`). NULL and *error where the wire format is broken. cost one pass over the
 * structure; weight bytes are never touched. */
uint8_t *strip_weights(Arena *, const uint8_t *bytes, uint64_t size, size_t *stripped_size,
                       const char **error);

/* Metadata fields that are newer than the system's onnx.proto: the value of `key` among the
 * StringStringEntryProto of unknown field `tag`, or NULL. */
char *metadata_find(Arena *, const ProtobufCMessage *, uint32_t tag, const char *key);
/* Unknown field `tag`, a string: "" where it is absent. */
const char *newer_string(Arena *, const ProtobufCMessage *, uint32_t tag);
/* The defaults of a function's attributes (attribute_proto), in the arena. */
Onnx__AttributeProto **function_defaults(Arena *, const Onnx__FunctionProto *, uint32_t *n);
#endif
