/* intern.h - the hash tables behind a Graph; private to ir/.
 *
 * A table maps a 64-bit hash to ids (never 0) that the caller compares; it owns nothing else. Open
 * addressing, at most half full, memory from the graph's arena.
 */
#ifndef TRAINC_INTERN_H
#define TRAINC_INTERN_H
#include "ir.h"

typedef struct Table {
    uint64_t *hashes;
    uint32_t *ids;
    uint32_t n, cap;
} Table;
struct Interner {
    Table types, attrs, locs, strings, nodes, states, inputs;
    const char **string_at;
    uint32_t n_strings, cap_strings; /* id - 1 */
};

uint64_t hash_bytes(uint64_t seed, const void *, size_t n);
static inline uint64_t hash_word(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}
/* Ids of equal hash, one per call, 0 at the end; *cursor starts as (uint32_t)hash. */
uint32_t table_next(const Table *, uint64_t hash, uint32_t *cursor);
void table_add(Arena *, Table *, uint64_t hash, uint32_t id);

/* The list with room for one more; old contents are copied. */
void *list_reserve(Arena *, void *list, uint32_t n, uint32_t *cap, size_t item_bytes);
#define LIST_RESERVE(arena, list, n, cap)                                                          \
    ((list) = list_reserve(arena, list, n, &(cap), sizeof *(list)))

const char *intern_find(const Graph *, const char *); /* the interned string, NULL where there is none */
void intern_init(Graph *);
void intern_copy(Graph *to,
                 const Graph *from); /* types, attributes, locations: the ids stay the same */
#endif
