/* Tests that the arena hands out zeroed, aligned memory that stays where it is, and gives it back
 * at a mark. */
#include "text_helpers.h"

Test(arena, memory_is_zeroed_and_aligned_also_after_a_release) {
    Arena *a = arena_new();
    for (size_t bytes = 1; bytes < 5000; bytes = bytes * 3 + 1) {
        ArenaMark mark = arena_mark(a);
        unsigned char *p = arena_alloc(a, bytes);
        cr_assert((uintptr_t)p % 16 == 0);
        for (size_t i = 0; i < bytes; i++) cr_assert(p[i] == 0);
        memset(p, 0xaa, bytes);
        arena_release(a, mark);
        unsigned char *again = arena_alloc(a, bytes);
        cr_assert(again[0] == 0 && again[bytes - 1] == 0);
    }
    arena_free(a);
}

Test(arena, release_keeps_what_was_there_before_the_mark) {
    Arena *a = arena_new();
    char *kept = arena_strdup(a, "kept");
    ArenaMark mark = arena_mark(a);
    for (int i = 0; i < 100; i++) arena_alloc(a, 100000);
    arena_release(a, mark);
    cr_assert_str_eq(kept, "kept");
    arena_free(a);
}

Test(arena, grow_copies_and_leaves_the_old_valid) {
    Arena *a = arena_new();
    int *old = arena_alloc(a, 2 * sizeof *old);
    old[0] = 1, old[1] = 2;
    int *new = arena_grow(a, old, 2 * sizeof *old, 4 * sizeof *old);
    cr_assert(new[0] == 1 && new[1] == 2 && new[2] == 0 && old[1] == 2);
    arena_free(a);
}

Test(arena, printf_formats_any_length) {
    Arena *a = arena_new();
    char *s = arena_printf(a, "%0*d", 100000, 7);
    cr_assert(strlen(s) == 100000 && s[99999] == '7');
    arena_free(a);
}
