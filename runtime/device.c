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

/* A loop that never runs, and those in it. */
static void skip_loop(const trainc_entry *e, Turn *t) {
    t->at += e->loops[t->next_loop].n;
    while (t->next_loop < e->n_loops && e->loops[t->next_loop].first < t->at) t->next_loop++;
}

bool device_next(const trainc_entry *e, Turn *t) {
    for (;;) {
        const trainc_loop *in = t->depth ? &e->loops[t->loop[t->depth - 1]] : NULL,
                          *next = t->next_loop < e->n_loops ? &e->loops[t->next_loop] : NULL;
        if (in && t->at == in->first + in->n) {
            if (++t->turn[t->depth - 1] < in->trips) {
                t->at = in->first;
                t->next_loop = t->loop[t->depth - 1] + 1;
            } else
                t->turn[--t->depth] = 0;
        } else if (next && next->first == t->at && next->trips == 0)
            skip_loop(e, t);
        else if (next && next->first == t->at)
            t->loop[t->depth++] = t->next_loop++;
        else
            break;
    }
    t->launch = t->at++;
    return t->launch < e->n;
}

/* The loops around a launch, outer first; false where they are too many or cut each other. */
static bool loops_around(const trainc_entry *e, uint32_t launch, int64_t trips[TRAINC_LOOPS]) {
    const trainc_loop *in = NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < TRAINC_LOOPS; i++) trips[i] = 0;
    for (uint32_t i = 0; i < e->n_loops; i++) {
        const trainc_loop *l = &e->loops[i];
        if (launch < l->first || launch >= l->first + l->n) continue;
        if (n == TRAINC_LOOPS ||
            (in && (l->first < in->first || l->first + l->n > in->first + in->n)))
            return false;
        trips[n++] = l->trips;
        in = l;
    }
    return true;
}

static bool loops_valid(const trainc_entry *e) {
    int64_t trips[TRAINC_LOOPS];
    for (uint32_t i = 0; i < e->n_loops; i++) {
        const trainc_loop *l = &e->loops[i];
        if (!l->n || l->trips < 0 || l->first > e->n || l->n > e->n - l->first ||
            (i && l->first < e->loops[i - 1].first))
            return false;
    }
    for (uint32_t i = 0; i < e->n; i++)
        if (!loops_around(e, i, trips)) return false;
    return true;
}

/* Lie the bytes of an argument in the arena, in every turn? */
static bool in_arena(const trainc_plan *p, const trainc_arg *a, const int64_t *trips) {
    if (a->offset > p->arena_bytes || a->bytes > p->arena_bytes - a->offset) return false;
    const int64_t room = (int64_t)(p->arena_bytes - a->bytes);
    int64_t low = (int64_t)a->offset, high = low, moved;
    for (int i = 0; i < TRAINC_LOOPS; i++) {
        if (__builtin_mul_overflow(a->stride[i], trips[i] > 0 ? trips[i] - 1 : 0, &moved) ||
            __builtin_add_overflow(moved < 0 ? low : high, moved, moved < 0 ? &low : &high))
            return false;
    }
    return low >= 0 && high <= room;
}

static bool arg_valid(const trainc_plan *p, const trainc_arg *a, const int64_t *trips,
                      const char **bad) {
    *bad = a->scalar ? a->scalar : "an argument beyond the arena";
    return a->scalar ? !*a->scalar || scalar_find(a->scalar) >= 0 : in_arena(p, a, trips);
}

static bool launch_valid(const trainc_plan *p, const trainc_entry *e, uint32_t launch,
                         const char **bad) {
    const trainc_launch *l = &e->launches[launch];
    int64_t trips[TRAINC_LOOPS];
    loops_around(e, launch, trips);
    *bad = "a launch beyond the tables";
    if (l->kernel >= p->n_kernels || l->first_arg > p->n_args ||
        l->n_args > p->n_args - l->first_arg)
        return false;
    for (uint32_t i = 0; i < l->n_args; i++)
        if (!arg_valid(p, &p->args[l->first_arg + i], trips, bad)) return false;
    return true;
}

bool device_args_valid(const trainc_plan *p, const char **bad) {
    static const int64_t once[TRAINC_LOOPS] = {1, 1};
    for (uint32_t i = 0; i < p->n_args; i++)
        if (!arg_valid(p, &p->args[i], once, bad)) return false;
    for (int e = 0; e < N_ENTRIES_OF; e++) {
        *bad = "a loop beyond the launches";
        if (!loops_valid(&p->entries[e])) return false;
        for (uint32_t i = 0; i < p->entries[e].n; i++)
            if (!launch_valid(p, &p->entries[e], i, bad)) return false;
    }
    *bad = NULL;
    return true;
}
