/* kernel.h - a kernel as both targets see it: axes, index expressions, stages of statements in order.
 *
 * A kernel runs its row stages once per point of the parallel axes, its loop stages once per point of parallel x reduction axes.
 * Lets of a row stage and accumulators are visible in all later stages; lets of a loop stage only within it. Bodies compute in
 * float, int32_t or int64_t by the class of their dtype; storage dtypes convert in LOAD and STORE only. No statement has side
 * effects but STORE and ACCUM, so a target may run points in any order and vectorize them. */
#ifndef TRAINC_KERNEL_H
#define TRAINC_KERNEL_H
#include "ir.h"

typedef uint32_t Ix;               /* index expression, hash-consed in the kernel; 0 none */
typedef enum IxKind { IX_CONST, IX_AXIS, IX_ADD, IX_MUL, IX_DIV, IX_MOD, IX_LET, IX_MIN, IX_MAX } IxKind;
typedef struct IxNode { IxKind kind; Ix a, b; int64_t value; int64_t lo, hi; } IxNode;
        /* CONST value; AXIS value = axis number; LET value = let number (an integer let: gathered index); MUL, DIV, MOD by the constant
         * `value` (DIV, MOD: floor semantics, value > 0; MUL: any sign); [lo, hi] is the proven range. ADD chains are flat sums
         * of terms in a canonical order, so equal indices are one Ix. The constant 0 is a node too, not Ix 0 */
typedef struct Cond { Ix ix; int64_t lo, hi, modulus; } Cond;
        /* lo <= ix <= hi, and ix % modulus == 0 where modulus > 1 */

typedef enum AxisRole { AXIS_PAR, AXIS_RED } AxisRole;
typedef struct Axis { int64_t extent; AxisRole role; } Axis;
typedef uint32_t Let;              /* number of a let-binding or accumulator; 0 none */
typedef enum StmtKind { ST_CONST, ST_SCALAR, ST_INDEX, ST_LOAD, ST_MAP, ST_CAST, ST_SELECT, ST_RANDOM, ST_ACCUM, ST_STORE, ST_UPDATE } StmtKind;
        /* SCALAR: dst = the scalar parameter. INDEX: dst = ix. RANDOM: dst = the uniform of element ix + args[2] * value of the stream that parameter `param` holds,
         * where args are the lets seed, step, micro (i64) and `value` is the number of elements. ACCUM: dst = dst (op) args[0].
         * STORE: memory[ix] = args[0]. UPDATE (FORM_SCATTER alone): memory[ix] = memory[ix] (op) args[0], OP_NONE: = args[0] */
typedef struct Stmt {
    StmtKind kind;
    Let dst;
    DType dtype;                   /* of dst (STORE: of memory) */
    OpCode op;                     /* MAP: its body; ACCUM: sum prod rmax rmin argmax argmin (args[1]: the index let of arg*) */
    Let args[3];                   /* MAP: a b c; CAST: the source; SELECT: conds hold ? args[0] : args[1] */
    uint32_t param;                /* LOAD, STORE: parameter number; SCALAR: scalar parameter number; RANDOM: of the stream */
    Ix ix;                         /* LOAD, STORE, RANDOM: element index; INDEX: the value */
    const Cond *conds; uint32_t n_conds; /* LOAD: outside, the let is 0 and memory is not touched. STORE: outside, nothing happens */
    double value;                  /* CONST; RANDOM */
    LocId loc;
} Stmt;
typedef struct Stage { bool loops; Stmt *stmts; uint32_t n; } Stage; /* loops: over the reduction axes */

typedef struct Param {             /* pointers into the arena, then scalars, in this order in the signature */
    bool is_scalar; const char *scalar; /* "": the number `constant`, so that kernels that differ in it alone are one */
    int64_t constant; DType dtype; bool is_read, is_written; int64_t elems; Value value;
    bool is_workspace;
    uint32_t buffer;               /* index + 1 into Plan.buffers; 0: a scalar or the workspace */
} Param;                           /* one parameter per byte range and dtype: in-place kernels read and write the same one */

typedef struct Tile {              /* GROUP_CONTRACT: D[b,m,n] = sum_k A[b,m,k] B[b,k,n]; element strides. The kernel has exactly the three
                                    * parallel axes b, m, n (extent 1 too) and at most one stage, the epilogue, where the let `acc` (never
                                    * assigned by a statement) is D[b,m,n] */
    int64_t batch, m, n, k;
    uint32_t a, b;                 /* params */
    int64_t a_offset, a_batch, a_m, a_k, b_offset, b_batch, b_k, b_n;
    uint32_t n_batch_axes;         /* 0: offset of b is b * a_batch. Else b is the row-major index over batch_dims (all of them; a_batch
                                    * and b_batch unused) and its offset the sum of index * stride */
    int64_t batch_dims[MAX_RANK], a_batch_strides[MAX_RANK], b_batch_strides[MAX_RANK];
    Let acc;
} Tile;
/* FORM_CONV is FORM_ROWS in full (the stages compute everything) plus this description, by which a library may compute `acc`, the
 * accumulator, instead of the loop stage; then only the later stages run. acc 0: no description. */
typedef struct ConvTile { OpCode op; int rank; int64_t n, c, o, groups; int64_t in[3], out[3], k[3], strides[3], dilations[3], low[3], high[3]; uint32_t x, w; Let acc; } ConvTile;

typedef enum KernelForm { FORM_POINTS, FORM_ROWS, FORM_TILE, FORM_CONV, FORM_SCATTER } KernelForm;
typedef struct Kernel {
    const char *name;              /* k12_gelu_add: number and what it does; equal kernels share one */
    KernelForm form;               /* POINTS: no reduction axes. ROWS: parallel axes, then reduction axes; stages as said above.
                                    * SCATTER (CPU only): `first` has run; then for each point of the parallel axes, the reduction axes run
                                    * sequentially, in order, and UPDATE memory: points of the parallel axes touch disjoint elements */
    const struct Kernel *first;    /* SCATTER: the POINTS kernel that writes the base, over the same params; else NULL */
    Axis axes[2 * MAX_RANK]; uint32_t n_axes; /* parallel axes first, row-major; then reduction axes */
    IxNode *ix; uint32_t n_ix;
    Stage *stages; uint32_t n_stages;
    Param *params; uint32_t n_params;
    DType *let_type; uint32_t n_lets; /* by let number */
    Tile tile; ConvTile conv;
    const char *comment;           /* ONNX node names and kinds of origin */
    uint64_t flops, bytes;
    uint64_t workspace_bytes;
    LocId *locs; uint32_t n_locs;
} Kernel;

/* lower.c: the kernel of a group. For CPU and GPU the same but for FORM_CONV (the CPU calls a library; GPUs get FORM_ROWS). */
Kernel *kernel_lower(const Graph *, const Plan *, uint32_t group, bool for_gpu, Arena *);
/* The same of a group that stands in no list of the plan (first values of carries), or with another number in its name. */
Kernel *kernel_lower_group(const Graph *, const Plan *, const Group *, uint32_t number, bool for_gpu, Arena *);
/* index.c */
Ix ix_let(Kernel *, Arena *, Let, int64_t lo, int64_t hi);
Ix ix_const(Kernel *, Arena *, int64_t);
Ix ix_axis(Kernel *, Arena *, uint32_t axis);
Ix ix_add(Kernel *, Arena *, Ix, Ix);
Ix ix_mul(Kernel *, Arena *, Ix, int64_t);
Ix ix_div(Kernel *, Arena *, Ix, int64_t);   /* simplified: (x*6 + y)/6 = x where 0 <= y < 6 */
Ix ix_mod(Kernel *, Arena *, Ix, int64_t);
bool ix_affine(const Kernel *, Ix, int64_t *constant, int64_t *coefficient /* n_axes */); /* false: DIV, MOD or LET inside */

/* text: a growing string in an arena, shared by both targets */
typedef struct Text { Arena *arena; char *s; size_t n, cap; } Text;
void text_printf(Text *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* body.c: prints one statement as C, the one place that does; `t` says what differs */
typedef struct BodyTarget {
    const char *axis_name[2 * MAX_RANK];   /* expression of each axis */
    const char *indent;
    bool is_gpu;
} BodyTarget;
void body_print(const Graph *, const Kernel *, const Stmt *, const BodyTarget *, Text *);
void body_index(const Kernel *, Ix, const BodyTarget *, Text *);
/* Names in bodies: param n is `p<n>`, let n is `v<n>` (declared by the statement that makes it; a STORE's and an ACCUM's dst is not
 * declared), accumulator n is `v<n>` too, and argmax/argmin n keeps its best value in `b<n>` and its index in `v<n>`. A frame
 * declares accumulators before the loop; a target that splits the loop among threads merges their partials in a fixed order. */
const char *body_ctype(DType);                                    /* what a let of that dtype is in C: float, int32_t, int64_t */
void body_accum_init(const Kernel *, const Stmt *accum, const BodyTarget *, Text *);  /* "float v5 = 0.0f;" with the op's identity */
/* v5 = v5 (op) `value`; arg*: takes `value` as the index and `best` as the value where it is better (ties: the smaller index). */
void body_accum_merge(const Kernel *, const Stmt *accum, const char *value, const char *best, const BodyTarget *, Text *);

/* the two printers: one kernel, and what stands before all kernels */
void target_c_kernel(const Graph *, const Kernel *, Text *);
void target_c_prelude(Text *);
void target_hip_kernel(const Graph *, const Kernel *, Text *);
void target_hip_prelude(Text *);
typedef struct LaunchShape { uint32_t grid[3], block[3], lds_bytes; } LaunchShape;
LaunchShape target_hip_launch(const Kernel *);
/* clang driver (gpu_compile.c): the code object of HIP source for a target; false after a message in *error. */
bool gpu_compile(const char *hip_path, const char *target, const char *co_path, const char *asm_path, Arena *, char **error);
/* The same in two halves, so that several targets compile at once: start all, then wait for each. */
typedef struct GpuJob { int pid; const char *target, *out_path, *log_path; char *error; } GpuJob;
GpuJob gpu_compile_start(const char *hip_path, const char *target, const char *out_path, bool assembly, Arena *);
bool gpu_compile_wait(GpuJob *, Arena *);
const char *gpu_compiler(Arena *);   /* path of the clang that is used; NULL: none found */
/* What a code object's metadata says of a kernel (gpu_resources.c); false where it is not an AMD code object or has no such kernel. */
bool gpu_kernel_resources(const char *co_path, const char *kernel, int *vgprs, int *sgprs, int *lds, int *spills, Arena *);
#endif
