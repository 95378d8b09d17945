/* closest.c - the nearest of some names to a misspelt one, by Levenshtein's distance. */
#include "ir.h"
#include <string.h>

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Levenshtein's distance, by rows. */
static uint32_t edit_distance(Arena *arena, const char *a, const char *b) {
    uint32_t n = (uint32_t)strlen(b);
    uint32_t *row = arena_alloc(arena, (n + 1) * sizeof *row);
    for (uint32_t j = 0; j <= n; j++) row[j] = j;
    for (uint32_t i = 0; a[i]; i++) {
        uint32_t diagonal = row[0];
        row[0] = i + 1;
        for (uint32_t j = 0; j < n; j++) {
            uint32_t changed = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            row[j + 1] = least(changed, least(row[j], row[j + 1]) + 1);
        }
    }
    return row[n];
}

const char *closest_name(Arena *arena, const char *name, const char *const *names, uint32_t n) {
    const char *best = NULL;
    uint32_t best_distance = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        ArenaMark mark = arena_mark(arena);
        uint32_t d = edit_distance(arena, name, names[i]);
        arena_release(arena, mark);
        if (d < best_distance) best_distance = d, best = names[i];
    }
    return best && best_distance <= strlen(name) / 2 + 2 ? best : NULL;
}

const char *did_you_mean(Arena *arena, const char *name, const char *const *names, uint32_t n) {
    const char *closest = closest_name(arena, name, names, n);
    return closest ? arena_printf(arena, "did you mean %s? ", closest) : "";
}
