/* onnx_wire.h - .onnx and .pb files at the level of protobuf's wire format, without a protobuf library.
 *
 * Finds the initializers of a model (or the one TensorProto of a .pb file) as name, type, dims and the place of their bytes, and
 * writes a model again with other bytes in them, everything else untouched. Not public: only runtime/ includes it. */
#ifndef TRAINC_ONNX_WIRE_H
#define TRAINC_ONNX_WIRE_H
#include "trainc.h"

typedef struct onnx_tensor {
    char *name;
    int dtype;                    /* trainc_dtype; 0 where we have no such type (strings, complex numbers) */
    int rank;                     /* -1 where above 8 */
    int64_t dims[8];
    char *file;                   /* the file that holds the bytes: the model itself or an external data file; NULL: `data` */
    uint64_t offset, bytes;       /* row-major little-endian elements; bytes fits dtype and dims (checked) */
    void *data;                   /* decoded typed fields (float_data, ...) and inline bytes of .pb; owned by the list */
} onnx_tensor;
typedef struct onnx_tensors { onnx_tensor *items; size_t n; } onnx_tensors;

/* onnx_wire_model - the initializers of the graph, in file order. External files are not opened, but their length is checked.
 *   errors  TRAINC_BAD_MODEL, *error is the sentence (malloc'd)     owner  caller: onnx_wire_free, also after an error */
trainc_status onnx_wire_model(const char *path, onnx_tensors *, char **error);

/* onnx_wire_tensor - the TensorProto of a .pb file: one item, its bytes always in `data`.
 *   errors  TRAINC_BAD_DATA      owner  caller: onnx_wire_free */
trainc_status onnx_wire_tensor(const char *path, onnx_tensors *, char **error);
void onnx_wire_free(onnx_tensors *);

/* onnx_wire_export - writes the model at `path` to `out`, with the bytes that `fetch` returns for an initializer (NULL: as it was).
 *   External data goes to a new file `out`.data beside it; the order and bytes of everything else stay. `fetch` is given the bytes
 *   that the initializer's dtype and dims need; it may be asked twice, and what it returns is read before it is called again.
 *   errors  TRAINC_BAD_MODEL, TRAINC_BAD_DATA (cannot write); then `out` is not touched */
typedef const void *onnx_fetch(void *user, const char *name, uint64_t bytes);
/* A new initializer `name`, made like `from` and written behind it, which the inputs in `readers` read: pairs (node, input), an input
 * that the node has or the next. from NULL: a vector of `n` elements of trainc_dtype `dtype`. */
typedef struct onnx_split { const char *name, *from; const uint32_t *readers; uint32_t n_readers; int dtype; uint64_t n; } onnx_split;
trainc_status onnx_wire_export(const char *path, const char *out, onnx_fetch *fetch, void *user, const onnx_split *, size_t n_splits,
                               char **error);
#endif
