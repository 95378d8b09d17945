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

void *scalar_address(const trainc_arg *a, ScalarValue *scalars, int64_t *number) {
    if (*a->scalar) return &scalars[scalar_find(a->scalar)];
    *number = (int64_t)a->offset;
    return number;
}

bool device_stretch(const trainc_entry *e, Stretch *s) {
    const uint32_t at = s->first + s->n;
    const trainc_loop *next = s->loops_done < e->n_loops ? &e->loops[s->loops_done] : NULL;
    s->first = at;
    if (next && next->first == at) {
        s->n = next->n;
        s->trips = next->trips;
        s->loops_done++;
    } else {
        s->n = (next ? next->first : e->n) - at;
        s->trips = 1;
    }
    return at < e->n;
}

/* The bytes of an argument, in the first and in the last turn. */
static bool in_arena(const trainc_plan *p, const trainc_arg *a, int64_t trips) {
    if (a->offset > p->arena_bytes || a->bytes > p->arena_bytes - a->offset) return false;
    const int64_t room = (int64_t)(p->arena_bytes - a->bytes), from = (int64_t)a->offset;
    int64_t moved, to;
    return !__builtin_mul_overflow(a->stride, trips > 0 ? trips - 1 : 0, &moved) &&
           !__builtin_add_overflow(from, moved, &to) && to >= 0 && to <= room;
}

static bool arg_valid(const trainc_plan *p, const trainc_arg *a, int64_t trips, const char **bad) {
    *bad = a->scalar ? a->scalar : "an argument beyond the arena";
    return a->scalar ? !*a->scalar || scalar_find(a->scalar) >= 0 : in_arena(p, a, trips);
}

static bool launch_valid(const trainc_plan *p, const trainc_launch *l, int64_t trips,
                         const char **bad) {
    *bad = "a launch beyond the tables";
    if (l->kernel >= p->n_kernels || l->first_arg > p->n_args ||
        l->n_args > p->n_args - l->first_arg)
        return false;
    for (uint32_t i = 0; i < l->n_args; i++)
        if (!arg_valid(p, &p->args[l->first_arg + i], trips, bad)) return false;
    return true;
}

static bool loops_valid(const trainc_entry *e) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < e->n_loops; i++) {
        const trainc_loop *l = &e->loops[i];
        if (l->first < at || !l->n || l->trips < 0 || l->first > e->n || l->n > e->n - l->first)
            return false;
        at = l->first + l->n;
    }
    return true;
}

bool device_args_valid(const trainc_plan *p, const char **bad) {
    for (uint32_t i = 0; i < p->n_args; i++)
        if (!arg_valid(p, &p->args[i], 1, bad)) return false;
    for (int e = 0; e < N_ENTRIES_OF; e++) {
        *bad = "a loop beyond the launches";
        if (!loops_valid(&p->entries[e])) return false;
        for (Stretch s = {0}; device_stretch(&p->entries[e], &s);)
            for (uint32_t i = 0; i < s.n; i++)
                if (!launch_valid(p, &p->entries[e].launches[s.first + i], s.trips, bad))
                    return false;
    }
    *bad = NULL;
    return true;
}
