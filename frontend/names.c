/* names.c - a map from interned names to numbers. Keys are compared as pointers. */
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
