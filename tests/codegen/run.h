/* run.h - graphs planned for the CPU, printed as C, compiled into one shared object, and run on memory of their own. */
#ifndef TRAINC_CODEGEN_RUN_H
#define TRAINC_CODEGEN_RUN_H
#include "../fuzz/gen.h"
#include "passes.h"
#include "step_table.h"

typedef struct Case { const char *name; Graph *g; const Plan *plan; StepTable table; } Case;
/* Plans g (taken over) and appends its kernels to `out`; their names begin with `name`. */
void case_make(Case *, Graph *g, const char *name, Text *out);
void *cases_build(const Text *source);                       /* dlopen'ed; a failed assertion where it does not compile */
void *cases_build_at(const Text *source, const char *level); /* "-O2" is the product's; -O1 compiles many graphs sooner */
/* A fresh arena, NaN but for inputs, states and constants; caller frees. */
unsigned char *case_memory(const Case *, FuzzData *);
/* All launches of the entry; library: products go through their descriptions (by a plain loop here) and epilogues. */
void case_run(const Case *, void *lib, EntryKind, const InterpEnv *, unsigned char *memory, bool library);
const Buffer *case_root(const Case *, EntryKind, const Root *);
/* Compares every root of the entry with the interpreter; complaints on stderr. */
bool case_equal(const Case *, EntryKind, FuzzData *, const InterpEnv *, const unsigned char *memory, double tolerance);
#endif
