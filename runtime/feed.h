/* feed.h - data files as tensors: .npy, .safetensors#tensor, .pb, and flat .bin streams. Nothing is copied but a .pb. */
#ifndef TRAINC_FEED_H
#define TRAINC_FEED_H
#include "file.h"
#include "onnx_wire.h"
#include "trainc_program.h"
#include "safetensors.h"
typedef struct Feed {
    trainc_tensor tensor;             /* name: the input's; data: inside the mapping, any alignment; dims: samples first */
    char *path;                       /* without #tensor or :dtype */
    FileMap map; StFile st; onnx_tensors pb;
    trainc_dtype stored;              /* the type in the file */
    int64_t left_over;                /* elements of a .bin beyond the last whole sample */
} Feed;
/* feed_open - opens `spec` for the input `y`: FILE.npy, FILE.safetensors#TENSOR, FILE.pb or FILE.bin:dtype[:d0xd1..]. A .bin without a
 *   shape is cut into samples of the input's size. The tensor is checked to lie in the file, not to fit the input.
 *   errors  TRAINC_USAGE: no such kind of file; TRAINC_BAD_DATA: missing, truncated, wrong      owner  caller: feed_close, also after an error */
trainc_status feed_open(Feed *, const trainc_symbol *y, const char *spec, Fail *);
void feed_close(Feed *);
/* npy.c: the header of a .npy file (NEP 1, versions 1 to 3), C order and little-endian only. */
trainc_status npy_parse(const FileMap *, const char *path, trainc_tensor *, Fail *);
#endif
