/* step_table.h - private to codegen/: a planned step as tables, between lowering and the files that are written from it. */
#ifndef TRAINC_STEP_TABLE_H
#define TRAINC_STEP_TABLE_H
#include "codegen.h"
#include "kernel.h"

typedef struct StepKernel {        /* distinct text: equal kernels share one */
    const Kernel *k;               /* of its first user */
    const char *name, *text, *epilogue, *contraction; /* `@` stands for the name in text and epilogue; NULL: none */
    const char *comment;
    const Graph *g;                /* whose nodes k is made of: the step's, or a loop's body */
    GroupKind kind;                /* of its first user */
    bool is_pack;                  /* a copy that the library makes in its own layout, for `contraction` */
    uint32_t n_users;
    uint64_t hash;
} StepKernel;
typedef struct StepArg { const char *scalar; DType dtype; uint64_t offset, bytes; uint8_t access; Value value; int64_t stride[2]; } StepArg;
        /* access 1 r, 2 w, 3 rw; scalar "": the number in offset; stride: what offset grows by with each turn of the outer loop around the launch, of the one in it */
typedef struct StepLaunch { uint32_t kernel, first_arg, n_args; const Kernel *k; LaunchShape shape; double times; } StepLaunch; /* times: in one run */
typedef struct StepLoop {          /* launches first .. first + n - 1, `trips` times; n_inits launches before them set the carries */
    uint32_t first, n, n_inits;    /* in launch order, an outer loop before those in it */
    int64_t trips; bool is_reverse;
} StepLoop;
/* k: the product by which the buffer of a packed state is laid out; NULL: plain, as every other buffer. is_plain: its readers differ */
typedef struct PackedBuffer { const Kernel *k; bool is_plain; } PackedBuffer;
typedef struct StepTable {
    const Graph *g; const Plan *plan;
    bool is_gpu;
    Arena *arena;
    PackedBuffer *packed;                  /* NULL on a GPU */
    StepKernel *kernels; uint32_t n_kernels, cap_kernels;
    uint32_t *slots; uint32_t cap_slots;   /* hash table of kernel numbers + 1 */
    StepArg *args; uint32_t n_args, cap_args;
    StepLaunch *launches[N_ENTRIES]; uint32_t n_launches[N_ENTRIES], cap_launches[N_ENTRIES];
    StepLoop *loops[N_ENTRIES]; uint32_t n_loops[N_ENTRIES], cap_loops[N_ENTRIES];
    uint32_t n_numbers;                    /* the next free number of a kernel that is no group of the plan */
} StepTable;

/* step_pack.c: per buffer of the plan */
PackedBuffer *step_packed(const Graph *, const Plan *, Arena *);
/* step_table.c: the number of bytes of a symbol: those of its elements, for a packed state the whole buffer */
uint64_t step_symbol_bytes(const Graph *, const Buffer *);
/* step_table.c: lowers every group of the plan, in launch order. Owner of everything: arena. */
StepTable step_table_build(const Graph *, const Plan *, bool is_gpu, Arena *);
/* The text of a kernel with its name in place of `@`. */
void step_text_named(Text *, const char *text, const char *name);

/* step_source.c: C text of the tables of one plan, and of the program */
typedef struct StepImages { const char *const *arch; const char *const *path; uint64_t *bytes; uint32_t n; const char *source; } StepImages; /* GPU: code object files */
bool step_source_images(Text *, Arena *, const CodegenOptions *, StepImages *); /* sets images->bytes; false: one cannot be read */
void step_source_program(Text *, const StepTable *const *tables, uint32_t n, const CodegenOptions *, const StepImages *);
void step_source_kernels(Text *, const StepTable *, const CodegenOptions *, uint32_t part, uint32_t n_parts); /* C of a CPU plan */
void step_source_kernel(Text *, const StepKernel *, const char *lib); /* one of them: NAME, and LIB_NAME for the runtime */
void step_source_hip(Text *, const StepTable *);
void step_string(Text *, const char *);    /* as a C literal; NULL is written as NULL */
/* step_names.c: the tables `aliases` and `holders` of a program */
typedef struct NameCounts { uint32_t aliases, holders, adapters; } NameCounts;
void step_source_names(Text *, const Graph *, NameCounts *);
uint32_t step_files(const Graph *, Arena *, const char ***files); /* distinct weight files, in order of first use */

/* manifest.c */
typedef struct ManifestTarget { const TargetPlan *target; const StepTable *table; const char *co_path; } ManifestTarget;
void manifest_plan(Text *, const ManifestTarget *, uint32_t n, const CodegenOptions *);
void manifest_weights(Text *, const Graph *, const CodegenOptions *);
void manifest_string(Text *, const char *);
/* The symbol of a plan's buffer: its class in trainc_symbol_class's order and its state or input; false: an internal one. */
typedef enum SymbolClass { SYMBOL_STATE, SYMBOL_INPUT, SYMBOL_OUTPUT, SYMBOL_CONST } SymbolClass;
typedef struct Symbol { SymbolClass cls; const State *state; const Input *input; } Symbol;
bool buffer_symbol(const Graph *, const Buffer *, Symbol *);

/* package.c: NAME.h, NAME.pc, NAME-config.cmake */
void package_header(Text *, const CodegenOptions *);
void package_pkg_config(Text *, const CodegenOptions *);
void package_cmake(Text *, const CodegenOptions *);

/* host_compile.c */
typedef struct Job { int pid; const char *what, *log; } Job;
const char *host_compiler(Arena *);            /* $CC, cc, gcc or clang on the PATH; NULL: none */
Job job_start(Arena *, const char *folder, const char *const *argv, const char *log); /* pid 0: could not start */
bool job_wait(Arena *, const char *folder, Job *, char **error);
double target_predict_ms(const char *name, const Kernel *);
#endif
