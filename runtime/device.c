/* device.c - what all devices share: step scalars by name, and the check that a plan's tables stay
 * inside themselves. */
#include "device.h"
#include <string.h>

static const char *const names[N_SCALARS] = {
#define SCALAR(name, dtype, meaning) #name,
#include "scalar.def"
#undef SCALAR
};

int scalar_find(const char *name) {
    for (int i = 0; i < N_SCALARS; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

void *scalar_address(const trainc_arg *a, ScalarValue *scalars) {
    return *a->scalar ? (void *)&scalars[scalar_find(a->scalar)] : (void *)(uintptr_t)&a->offset;
}

bool device_args_valid(const trainc_plan *p, const char **bad) {
    for (uint32_t i = 0; i < p->n_args; i++) {
        const trainc_arg *a = &p->args[i];
        *bad = a->scalar ? a->scalar : "an argument beyond the arena";
        if (a->scalar ? *a->scalar && scalar_find(a->scalar) < 0
                      : a->offset > p->arena_bytes || a->bytes > p->arena_bytes - a->offset)
            return false;
    }
    for (int e = 0; e < N_ENTRIES_OF; e++)
        for (uint32_t i = 0; i < p->entries[e].n; i++) {
            const trainc_launch *l = &p->entries[e].launches[i];
            *bad = "a launch beyond the tables";
            if (l->kernel >= p->n_kernels || l->first_arg > p->n_args ||
                l->n_args > p->n_args - l->first_arg)
                return false;
        }
    *bad = NULL;
    return true;
}
