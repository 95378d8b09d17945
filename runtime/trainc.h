/* trainc.h - embed a compiled training step. C17 and C++; no global state, nothing prints, nothing exits.
 *
 * A program is what `trainc MODEL.onnx` generated (its header declares `const trainc_program *NAME_program(void)`). A step is one
 * program opened on one device: one arena, reserved in trainc_open, and nothing is allocated from the second trainc_train on.
 * Every call returns a status and leaves the step usable; trainc_error has the sentence. A step belongs to one thread at a time. */
#ifndef TRAINC_H
#define TRAINC_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef enum trainc_status {      /* the values are trainc's exit statuses */
    TRAINC_OK = 0,
    TRAINC_FAULT = 1,             /* a fault of ours */
    TRAINC_USAGE = 2,             /* an unknown name, a bad option, a missing input */
    TRAINC_NO_MEMORY = 3,         /* the arena cannot be had */
    TRAINC_BAD_MODEL = 4,         /* weights, checkpoint or library invalid, or do not match */
    TRAINC_BAD_DATA = 5,          /* wrong type or shape, value out of range, file unreadable or unwritable */
    TRAINC_DEVICE = 6             /* no usable device, or the device failed */
} trainc_status;

typedef enum trainc_dtype { TRAINC_F32 = 1, TRAINC_F64, TRAINC_F16, TRAINC_BF16, TRAINC_I64, TRAINC_I32, TRAINC_I16, TRAINC_I8,
    TRAINC_U64, TRAINC_U32, TRAINC_U16, TRAINC_U8, TRAINC_BOOL,
    TRAINC_F8E4M3FN, TRAINC_F8E4M3FNUZ, TRAINC_F8E5M2, TRAINC_F8E5M2FNUZ, TRAINC_F8E8M0, TRAINC_F4E2M1, TRAINC_I4, TRAINC_U4,
    TRAINC_I2, TRAINC_U2 } trainc_dtype;   /* the order of ir/dtype.def; i4, u4, i2, u2 and f4e2m1 are one byte each */

typedef struct trainc_program trainc_program;
typedef struct trainc_step trainc_step;

typedef struct trainc_options {   /* zero-initialise, then set what matters: 0 and NULL mean the default */
    const char *device;           /* "cpu", "hip", "hip:1"; NULL: the first usable target */
    uint64_t seed;
    float lr, weight_decay, beta1, beta2, eps, momentum, clip;  /* NaN or, with `set`, what stands here */
    unsigned set;                 /* TRAINC_SET_* bits: which of the above are meant */
    int nesterov;
    int threads;                  /* cpu; 0: all */
} trainc_options;
enum { TRAINC_SET_LR = 1, TRAINC_SET_WEIGHT_DECAY = 2, TRAINC_SET_BETA1 = 4, TRAINC_SET_BETA2 = 8, TRAINC_SET_EPS = 16,
       TRAINC_SET_MOMENTUM = 32, TRAINC_SET_CLIP = 64 };

typedef struct trainc_tensor {    /* borrowed for the call; host memory, row-major */
    const char *name;
    trainc_dtype dtype;           /* converted where it widens without loss, or float to float */
    int rank;
    int64_t dims[8];              /* [samples of the whole optimizer step, ...]; fewer samples than the batch: padded, uncounted */
    const void *data;
} trainc_tensor;

typedef struct trainc_result {
    double loss;                  /* mean over the counted labels of the step; NaN where none counted (then skipped is 1) */
    double grad_norm;             /* L2 over all gradients, before clipping */
    double lr, loss_scale;
    int skipped;
    int64_t step;                 /* optimizer steps so far, from 1 */
    int64_t counted;              /* labels or samples that counted */
    double ms;
} trainc_result;

trainc_status trainc_open(const trainc_program *, const trainc_options *, trainc_step **step);  /* *step is set even on failure, for trainc_error; NULL: no memory */
trainc_status trainc_load(trainc_step *, const char *path);  /* .onnx, .safetensors or a checkpoint folder; NULL: where weights.json says, which
                                                                the first call that needs weights does by itself where none were loaded */
trainc_status trainc_train(trainc_step *, const trainc_tensor *inputs, size_t n, trainc_result *);
trainc_status trainc_evaluate(trainc_step *, const trainc_tensor *inputs, size_t n, trainc_result *);
trainc_status trainc_get(trainc_step *, const char *name, void *, size_t bytes);  /* parameter, "grad.NAME", "m.NAME", output of the last entry */
trainc_status trainc_set(trainc_step *, const char *name, const void *, size_t bytes);
trainc_status trainc_set_lr(trainc_step *, float lr);
trainc_status trainc_save(trainc_step *, const char *folder); /* old or new checkpoint after a crash, never half */
const char *trainc_error(const trainc_step *);                /* of the last call that failed; lives until the next call */
void trainc_close(trainc_step *);
const char *trainc_version(void);

/* What a step is made of, in a fixed order: parameters, moments, gradients, inputs, outputs. */
typedef struct trainc_info { const char *name, *cls; trainc_dtype dtype; int rank; int64_t dims[8]; uint64_t offset, bytes; int trains; } trainc_info;
size_t trainc_count(const trainc_step *);
trainc_status trainc_describe(const trainc_step *, size_t i, trainc_info *);
uint64_t trainc_arena_bytes(const trainc_step *);
#ifdef __cplusplus
}
#endif
#endif
