/* target_table.c - the rows of target.def: names, aliases, memory, and a roofline for predictions.
 */
#include <string.h>
#include <unistd.h>
#include "codegen.h"
#include "step_table.h"

typedef struct Target {
    const char *name, *canonical;
    uint64_t memory_bytes;
    double matrix_tflops, vector_tflops, gb_per_s, launch_us;
} Target;
static const Target targets[] = {
#define TARGET(name, canonical, memory, matrix, vector, gb, us)                                    \
    {#name, #canonical, memory, matrix, vector, gb, us},
#include "target.def"
#undef TARGET
};
enum { N_TARGETS = sizeof targets / sizeof *targets };

static const Target *target_find(const char *name) {
    for (size_t i = 0; i < N_TARGETS; i++)
        if (strcmp(targets[i].name, name) == 0) return &targets[i];
    return NULL;
}

bool target_known(const char *name, const char **canonical) {
    const Target *t = target_find(name);
    if (t && canonical) *canonical = t->canonical;
    return t != NULL;
}

bool target_is_gpu(const char *canonical) { return strncmp(canonical, "gfx", 3) == 0; }

uint64_t target_memory_bytes(const char *name) {
    const Target *t = target_find(name);
    if (!t) return 0;
    if (t->memory_bytes) return t->memory_bytes;
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

double target_predict_ms(const char *name, const Kernel *k) {
    const Target *t = target_find(name);
    if (!t) return 0;
    bool is_product = k->form == FORM_TILE || k->form == FORM_CONV;
    bool is_low = is_product && k->form == FORM_TILE && k->params[k->tile.a].dtype == DT_BF16;
    double flops_ms = (double)k->flops / (1e9 * (is_low ? t->matrix_tflops : t->vector_tflops));
    double bytes_ms = (double)k->bytes / (1e6 * t->gb_per_s);
    return (flops_ms > bytes_ms ? flops_ms : bytes_ms) + 1e-3 * t->launch_us;
}
