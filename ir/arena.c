/* arena.c - memory that lives as long as a graph, or until a mark.
 *
 * A chain of blocks, newest first; an allocation bumps `used` of the newest block or opens a larger
 * one. A mark is (newest block, used): releasing frees every younger block. Memory is zeroed when
 * handed out, since a released range is used again. The one place beside runtime/ that calls
 * malloc; no memory is fatal here.
 */
#include "ir.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BLOCK_BYTES = 1 << 14, MAX_BLOCK_BYTES = 1 << 20, ALIGN_BYTES = 16 };

typedef struct Block {
    struct Block *prev;
    size_t cap, used;
    _Alignas(ALIGN_BYTES) unsigned char bytes[];
} Block;
struct Arena {
    Block *block;
};

static void *must(void *p) {
    if (!p) {
        fputs("trainc: out of memory\n", stderr);
        abort();
    }
    return p;
}

Arena *arena_new(void) { return must(calloc(1, sizeof(Arena))); }

void arena_free(Arena *a) {
    if (!a) return;
    arena_release(a, (ArenaMark){NULL, 0});
    free(a);
}

static void block_open(Arena *a, size_t bytes) {
    size_t cap = a->block ? a->block->cap * 2 : FIRST_BLOCK_BYTES;
    if (cap > MAX_BLOCK_BYTES) cap = MAX_BLOCK_BYTES;
    if (cap < bytes) cap = bytes;
    Block *b = must(malloc(sizeof(Block) + cap));
    *b = (Block){a->block, cap, 0};
    a->block = b;
}

void *arena_alloc(Arena *a, size_t bytes) {
    bytes = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    if (!a->block || a->block->cap - a->block->used < bytes) block_open(a, bytes);
    void *p = a->block->bytes + a->block->used;
    a->block->used += bytes;
    return bytes ? memset(p, 0, bytes) : p;
}

void *arena_grow(Arena *a, void *old, size_t old_bytes, size_t new_bytes) {
    void *p = arena_alloc(a, new_bytes);
    if (old_bytes) memcpy(p, old, old_bytes);
    return p;
}

char *arena_strdup(Arena *a, const char *s) {
    size_t bytes = strlen(s) + 1;
    return memcpy(arena_alloc(a, bytes), s, bytes);
}

char *arena_printf(Arena *a, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    size_t bytes = (n < 0 ? 0 : (size_t)n) + 1;
    char *s = arena_alloc(a, bytes);
    va_start(args, fmt);
    vsnprintf(s, bytes, fmt, args);
    va_end(args);
    return s;
}

ArenaMark arena_mark(Arena *a) { return (ArenaMark){a->block, a->block ? a->block->used : 0}; }

void arena_release(Arena *a, ArenaMark mark) {
    while (a->block && a->block != mark.block) {
        Block *prev = a->block->prev;
        free(a->block);
        a->block = prev;
    }
    if (a->block) a->block->used = mark.used;
}
