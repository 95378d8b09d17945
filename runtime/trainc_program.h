/* trainc_program.h - the ABI between generated code and the runtime: a step as constant tables. Only generated code and runtime/ include it. */
#ifndef TRAINC_PROGRAM_H
#define TRAINC_PROGRAM_H
#include "trainc.h"
#ifdef __cplusplus
extern "C" {
#endif
enum { TRAINC_ABI = 4, TRAINC_LOOPS = 2 /* one within the other */ };
typedef enum trainc_symbol_class { TRAINC_SYM_PARAM, TRAINC_SYM_MASTER, TRAINC_SYM_OPTIMIZER, TRAINC_SYM_GRADIENT, TRAINC_SYM_COUNTER, TRAINC_SYM_PACKED,
    TRAINC_SYM_INPUT, TRAINC_SYM_OUTPUT, TRAINC_SYM_CONST } trainc_symbol_class;   /* the first six: the lasting classes of ir.h's StateClass */

typedef struct trainc_symbol {
    const char *name;                 /* CONST: "" */
    uint8_t cls, dtype, rank, trains, is_buffer, is_transposed; /* is_transposed: the file holds [c, r] where this is [r, c] */
    int64_t dims[8];
    uint64_t offset, bytes;           /* in the arena; bytes: elements alone, without padding */
    double fill;                      /* no source: every element, at open */
    const char *of;                   /* the parameter it belongs to, or NULL */
    int32_t file;                     /* index into files, -1 none */
    uint64_t file_offset;
    const void *data;                 /* initial bytes inside the library, or NULL */
    int32_t batch_axis;               /* INPUT: where samples lie; -1 none */
    int64_t index_limit;              /* INPUT: values must lie in [-limit, limit), or be ignore_index for labels; 0: any */
    const char *blocks;               /* "0231": of that many equal blocks of rows the k-th is the file's blocks[k]-th; NULL: the same */
} trainc_symbol;

typedef struct trainc_arg { const char *scalar; uint64_t offset, bytes; uint8_t dtype, access; int64_t stride[TRAINC_LOOPS]; } trainc_arg;
        /* scalar NULL: arena + offset, access 1 r, 2 w, 3 rw; "": the i64 number in `offset`; else a step scalar of dtype F32 or I64
         * (runtime/scalar.def). stride: what `offset` grows by with each turn of the outer loop around the launch, of the one in it */

/* A product or convolution that a library may take: raw result to arg `d`; host_epilogue then finishes in place. */
typedef struct trainc_contraction {
    uint8_t kind;                     /* 0 matmul, 1 conv, 2 conv_dx, 3 conv_dw */
    uint8_t a_dtype, b_dtype, d_dtype;
    uint8_t a_arg, b_arg, d_arg, scratch_arg; /* argument numbers; scratch 255: none */
    uint8_t packed;                   /* bit 0: a, bit 1: b is in the library's own layout (made by a PACK launch) */
    int rank; int64_t batch, m, n, k; /* matmul; strides in elements */
    int64_t a_strides[3], b_strides[3], d_strides[3]; /* batch, row, column */
    int64_t a_offset, b_offset;       /* elements */
    int64_t groups, x_dims[5], w_dims[5], y_dims[5], strides[3], dilations[3], low[3], high[3]; /* conv: N C s.., O C/G k.., N O o.. */
    uint64_t scratch_bytes, packed_bytes;
} trainc_contraction;

typedef void trainc_host_fn(void *const *args); /* args[i]: pointer to the buffer, or to the scalar's value */
typedef struct trainc_kernel {
    const char *name;
    trainc_host_fn *host;             /* CPU: the whole kernel by own loops; NULL on GPU targets */
    trainc_host_fn *host_epilogue;    /* CPU, with a contraction: what remains after the library call; NULL: nothing */
    const trainc_contraction *contraction;
    uint8_t is_pack;                  /* CPU: packs args[0] to args[1] for `contraction` (its b, or a) */
} trainc_kernel;
typedef struct trainc_launch { uint32_t kernel; uint32_t grid[3], block[3], lds_bytes; uint32_t first_arg, n_args; } trainc_launch;
typedef struct trainc_loop { uint32_t first, n; int64_t trips; } trainc_loop; /* launches first .. first + n - 1 in order, `trips` times */
typedef struct trainc_entry { const trainc_launch *launches; uint32_t n; const trainc_loop *loops; uint32_t n_loops; } trainc_entry;
        /* loops: in launch order, an outer one before those in it */
typedef struct trainc_image { const char *arch; const unsigned char *bytes; uint64_t n; } trainc_image;

typedef struct trainc_plan {          /* per target kind: "cpu" or "hip" */
    const char *device;
    uint64_t arena_bytes;
    const trainc_symbol *symbols; uint32_t n_symbols;
    const trainc_kernel *kernels; uint32_t n_kernels;
    const trainc_arg *args; uint32_t n_args;
    trainc_entry entries[4];          /* init micro apply eval */
    const trainc_image *images; uint32_t n_images; const char *source; /* HIP: code objects, and the source for hipRTC */
} trainc_plan;

/* Names. An alias is another name of a parameter in PyTorch's state_dict (tied matrices). A holder is an initializer of the model's
 * file that holds a parameter under another name or in another form; with `from` it is none yet: an export makes it like `from` and
 * has the nodes of `readers`, pairs (node, input) of the graph, read it (`param` NULL: with the elements of `from` as they were). Readers without `from`: an initializer made
 * anew, a bias that the exporter dropped for being zeros. Several rows of one initializer, without `from`: each is a part of it. A parameter without a row is the initializer of its name. */
typedef struct trainc_alias { const char *name, *param; } trainc_alias;
typedef struct trainc_holder {
    const char *initializer, *from, *param;
    uint8_t is_transposed, rank; int64_t dims[8];   /* the initializer's */
    const uint32_t *readers; uint32_t n_readers;    /* pairs */
    uint64_t first; const char *blocks;             /* the parameter is the elements from `first` on; blocks as trainc_symbol's */
} trainc_holder;

/* A low-rank adapter: beside the matrix `param` stands scale * B A; a [rank, in] and b [out, rank] are parameters, too. */
typedef struct trainc_adapter {
    const char *param, *a, *b;
    double scale;
    uint8_t in_axis;                  /* which axis of the matrix is `in`: 1, or 0 where it is kept as [in, out] */
} trainc_adapter;

struct trainc_program {
    uint32_t abi;
    const char *name, *version, *model; /* model: absolute path of the .onnx */
    const char *optimizer, *loss;
    int64_t batch, micro_batch, accumulation_steps, ignore_index;
    int64_t tokens_per_sample;        /* label elements per sample: tokens/s; 1 where samples are meant */
    uint8_t mean_counts_labels;       /* 1: counts come from labels; 0: from samples (or micro-batches: `output`) */
    uint8_t samples_mix, labels_default_to_input; /* causal_lm: labels = the first integer input where not given */
    const char *const *files; uint32_t n_files;   /* weight files, absolute */
    const uint64_t *file_bytes;       /* what they held when offsets were taken from them; 0 or NULL: not known */
    const trainc_plan *plans; uint32_t n_plans;
    const trainc_alias *aliases; uint32_t n_aliases;
    const trainc_holder *holders; uint32_t n_holders;
    const trainc_adapter *adapters; uint32_t n_adapters;
};

/* Names that entries use. States: NAME (parameter), grad.NAME, m.NAME, v.NAME (moments), loss_sum, loss_count.
 * apply's outputs: loss, grad_norm, count. eval's outputs: loss_sum, loss_count, and the model's outputs where kept. */
#ifdef __cplusplus
}
#endif
#endif
