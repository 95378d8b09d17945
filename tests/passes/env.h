/* env.h - what the pass tests share: leaves of a graph as random but repeatable values, by name,
 * for the interpreter. */
#ifndef TEST_ENV_H
#define TEST_ENV_H
#include "passes.h"

typedef struct Env {
    InterpEnv interp; /* pass this to interp_entry */
    const Graph *g;
    Arena *arena;
    const char *names[256]; /* values made or set so far */
    Tensor values[256];
    uint32_t n;
    const char *scalar_names[32];
    double scalars[32];
    uint32_t n_scalars;
} Env;

/* Floats in (-1, 1), positive for second moments (v.*) and counters; integers in [0, limit).
 * Scalars: set below, else 0.5. */
void env_init(Env *, const Graph *, Arena *);
void env_set_scalar(Env *, const char *name, double);
Tensor *env_state(Env *, const char *name); /* made where it is not there yet; may be changed */
Tensor *env_input(Env *, const char *name);
/* The values of the entry's roots, in their order; fails the test where the interpreter does. */
Tensor *env_run(Env *, const Graph *, EntryKind);
/* The value of one root. */
Tensor env_root(Env *, const Graph *, EntryKind, bool is_update, const char *name);
Graph *parse_or_fail(const char *text, const char *file);
PassOptions default_options(void);
#endif
