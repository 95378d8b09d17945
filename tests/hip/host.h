/* host.h - for tests: HIP source run on this machine through the shim of tests/hip_host. */
#ifndef TEST_HIP_HOST_H
#define TEST_HIP_HOST_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "codegen.h"
#include "kernel.h"
#include "step_table.h"

extern const char *const host_archs[2];                      /* gfx90a (waves of 64, MFMA), gfx1100 (waves of 32, WMMA) */
typedef struct Host Host;                                    /* compiled kernels */
Host *host_build(const char *source, const char *arch);      /* asserts that it compiles */
void host_free(Host *);
/* true, or false with a sentence in host_error() */
bool host_launch(Host *, const char *kernel, LaunchShape, void **args);
const char *host_error(void);
/* Memory that ends (rounded up to 16 bytes) at a page nobody may touch, filled with NaN. */
void *host_alloc(size_t bytes);
void host_release(void *, size_t bytes);
char *host_prelude(Arena *);
/* A file of this test run under BUILD_DIR/hip_tests. */
const char *host_path(Arena *, const char *name);
void host_write(const char *path, const char *text);
/* Prints the contraction kernels of tile.c's cases; everything: the prelude, every form, every pointwise op (targets.c). */
void tile_print(Text *);
char *targets_everything(Arena *);

/* One entry of a planned graph as launches: many can be printed into one source (a prefix each), built once, run one by one. */
typedef struct HostEntry { const StepTable *table; EntryKind entry; } HostEntry;
HostEntry host_print_entry(const Graph *, const Plan *, EntryKind, const char *prefix, Text *);
/* Runs its launches over `memory`, the plan's arena; scalars come from `scalar`. false: see host_error(). */
bool host_run_entry(Host *, const HostEntry *, unsigned char *memory, double (*scalar)(const char *));
#endif
