/* eval_engine.h - one evaluation of the forward graph, by either engine. */
#ifndef TRAINC_EVAL_ENGINE_H
#define TRAINC_EVAL_ENGINE_H
#include "codegen.h"
#include "options.h"

typedef struct EvalInput {
    const char *name;
    Type type;
    const void *data;
} EvalInput; /* any storage type that converts */
typedef struct EvalOutput {
    const char *name;
    Type type;
    void *bytes;
} EvalOutput; /* in the options' arena */

/* Both: 0 and the model's outputs in its order, or the exit status after a message. */
int eval_interpreted(const Options *, const EvalInput *, uint32_t n, EvalOutput **,
                     uint32_t *n_out);
int eval_compiled(const Options *, const EvalInput *, uint32_t n, EvalOutput **, uint32_t *n_out);

/* cmd_compile.c */
int make_folders(const char *path); /* mkdir -p; 0 or 5 after a message */
void find_runtime(const Options *, CodegenOptions *);
char *library_name(const Options *);
#endif
