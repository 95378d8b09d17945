/* options.h - the command line of trainc, plan and eval as one struct. */
#ifndef TRAINC_OPTIONS_H
#define TRAINC_OPTIONS_H
#include "frontend.h"
#include "passes.h"

enum { MAX_TARGETS = 8 };
typedef enum Command { COMMAND_COMPILE = 1, COMMAND_PLAN = 2, COMMAND_EVAL = 4 } Command;
typedef struct NamedFile { const char *name, *file; } NamedFile;
typedef struct Options {
    Arena *arena;
    Command command;
    const char *model, *out, *emit, *cpu, *engine;
    uint64_t mem_bytes;                                  /* 0: the target's memory */
    const char *targets[MAX_TARGETS]; uint32_t n_targets; /* canonical names, cpu first */
    DimBinding *dims; uint32_t n_dims;
    InputValue *sets; uint32_t n_sets;
    FreezeRule *freezes; uint32_t n_freezes;
    PassOptions lora;                                    /* its lora_rank, lora_glob, lora_alpha */
    TieRule *ties; uint32_t n_ties; bool tie_none;
    RenameRule *renames; uint32_t n_renames;
    NamedFile *data; uint32_t n_data;
    NamedFile *expect; uint32_t n_expect;
    const char *batch_dim, *loss, *optimizer;
    int64_t batch, micro_batch, ignore_index;            /* 0: not given, or auto */
    bool state_int8, attention_dropout, batchnorm_train, verbose, help;
    int bn_variance;                                     /* 0 by producer, 1 pytorch, 2 onnx */
    double rtol, atol;
} Options;

/* options_parse - fills o from argv (after the command's name). Every error is written to stderr; false where there was one. */
bool options_parse(Options *o, Command command, int argc, char **argv);
void options_help(Command, FILE *);
bool set_parse(Options *, const char *arg);              /* trainc_set.c: appends to sets; false after a message */
bool tie_parse(Options *, const char *arg);              /* trainc_names.c: likewise */
bool rename_parse(Options *, const char *path);
/* "4G", "512MB", "1000": bytes, 0 where it is no size. */
uint64_t parse_size(const char *);
const char *format_bytes(Arena *, uint64_t);             /* "1.50 GiB" */

int command_compile(const Options *);
int command_plan(const Options *);
int command_eval(const Options *);
int command_doctor(void);
int command_ops(int n_names, char **names);
#endif
