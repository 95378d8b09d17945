/* codegen.h - from a planned graph to a step library. Includes ir/ alone (and writes code that includes runtime/). */
#ifndef TRAINC_CODEGEN_H
#define TRAINC_CODEGEN_H
#include "ir.h"

typedef struct TargetPlan { const char *target; const Graph *g; const Plan *plan; } TargetPlan; /* "cpu", "gfx90a", ... */
typedef struct CodegenOptions {
    const char *name;              /* library name: lib<name>.so, <name>.h */
    const char *out_dir;
    const char *model_path;        /* absolute, for trainc_load's default and weights.json */
    const char *runtime_include, *runtime_lib;  /* where trainc.h and libtrainc_runtime.a lie */
    const char *emit;              /* "tir,c,hip,asm,co" or NULL */
    const char *cpu;               /* -march */
    const char *optimizer, *loss;
    uint64_t mem_limit_bytes;
    int64_t ignore_index;
    bool samples_mix;              /* go into the program table */
    const char *const *macro_names; /* what the forward graph is made of, for plan.json */
    const uint32_t *macro_counts;
    uint32_t n_macros;
    bool verbose, plan_only;       /* plan_only: plan.json alone */
} CodegenOptions;
typedef struct PhaseTimes { double own_s, host_compile_s, gpu_compile_s; } PhaseTimes; /* own: all but external compilers */

/* Writes the library of all targets. All gfx targets share one Graph and Plan (one HIP source; a code object per target).
 * false after diagnostics in plans[0].g->diags. Deterministic: the same input gives the same bytes. */
bool codegen_library(const TargetPlan *plans, uint32_t n, const CodegenOptions *, PhaseTimes *);
/* Only the source text of one target, for tests: C or HIP. Owner: arena. */
char *codegen_source(const TargetPlan *, Arena *);
bool target_known(const char *name, const char **canonical); /* "mi300x" -> "gfx942"; "cpu" -> "cpu" */
bool target_is_gpu(const char *canonical);
uint64_t target_memory_bytes(const char *name);              /* default --mem */
#endif
