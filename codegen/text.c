/* text.c - a growing string in an arena: every generated file is one Text.
 *
 * The string is always terminated; it doubles, so appending is linear overall. Old copies stay in
 * the arena. */
#include <stdarg.h>
#include <string.h>
#include "kernel.h"

static void text_reserve(Text *t, size_t more) {
    if (t->n + more + 1 <= t->cap) return;
    size_t cap = t->cap ? t->cap : 256;
    while (cap < t->n + more + 1) cap *= 2;
    t->s = arena_grow(t->arena, t->s, t->s ? t->n + 1 : 0, cap);
    t->cap = cap;
}

void text_printf(Text *t, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n > 0) {
        text_reserve(t, (size_t)n);
        vsnprintf(t->s + t->n, (size_t)n + 1, fmt, again);
        t->n += (size_t)n;
    }
    va_end(again);
}
