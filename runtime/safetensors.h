/* safetensors.h - the format of Hugging Face's safetensors 0.x: eight bytes of header length, JSON, tensors. */
#ifndef TRAINC_SAFETENSORS_H
#define TRAINC_SAFETENSORS_H
#include "fail.h"
#include "file.h"
typedef struct StTensor {
    const char *name;                 /* owned by the file */
    trainc_dtype dtype;
    int rank; int64_t dims[8];
    const unsigned char *data;        /* inside the mapping, any alignment; writing: unused */
    uint64_t bytes;
} StTensor;
typedef struct StFile { FileMap map; char *names; StTensor *tensors; uint32_t n; } StFile;

/* st_open - maps and validates the whole header: dtypes, shapes, offsets in range, no gap, no overlap, no name twice. Tensors come in
 *   the order of the header. `status` is what an invalid file means to the caller. Owner: caller, st_close. Cost: one allocation per
 *   file; tensors are not read. Source: the format's README. */
trainc_status st_open(StFile *, const char *path, trainc_status status, Fail *);
const StTensor *st_find(const StFile *, const char *name);
void st_close(StFile *);

/* Writing streams: st_begin writes the header of all tensors (dtype, dims, name; data ignored), then their bytes follow in that order
 *   through file_write, then file_commit. `meta` is the text of a JSON object of strings, or NULL. */
trainc_status st_begin(FileOut *, const char *path, const StTensor *, uint32_t n, const char *meta, Fail *);
uint64_t st_bytes(const StTensor *);  /* elements times size */
#endif
