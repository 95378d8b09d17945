/* names.c - a map from interned names to numbers, and the nearest name to a misspelt one. Keys are
 * compared as pointers. */
#include "context.h"
#include <string.h>

static uint32_t slot_of(const NameMap *m, const char *name) {
    uint64_t hash = (uint64_t)(uintptr_t)name * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t slot = (uint32_t)(hash >> 32) & (m->cap - 1);
    while (m->names[slot] && m->names[slot] != name) slot = (slot + 1) & (m->cap - 1);
    return slot;
}

static void names_rehash(Arena *arena, NameMap *m) {
    NameMap old = *m;
    m->cap = old.cap ? old.cap * 2 : 64;
    m->names = arena_alloc(arena, m->cap * sizeof *m->names);
    m->values = arena_alloc(arena, m->cap * sizeof *m->values);
    for (uint32_t i = 0; i < old.cap; i++) {
        if (!old.names[i]) continue;
        uint32_t slot = slot_of(m, old.names[i]);
        m->names[slot] = old.names[i];
        m->values[slot] = old.values[i];
    }
}

void names_set(Arena *arena, NameMap *m, const char *interned, uint32_t value) {
    if (m->n * 2 >= m->cap) names_rehash(arena, m);
    uint32_t slot = slot_of(m, interned);
    m->n += !m->names[slot];
    m->names[slot] = interned;
    m->values[slot] = value;
}

bool names_get(const NameMap *m, const char *interned, uint32_t *value) {
    if (!m->cap) return false;
    uint32_t slot = slot_of(m, interned);
    if (!m->names[slot]) return false;
    *value = m->values[slot];
    return true;
}

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
