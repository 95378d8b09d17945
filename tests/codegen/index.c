/* Tests that the index algebra keeps the value of every expression, and that reshapes and
 * transposes come out affine. */
#include <criterion/criterion.h>
#include "kernel.h"

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
static int64_t value(const Kernel *k, Ix ix, const int64_t *axes) {
    const IxNode *n = &k->ix[ix];
    switch (n->kind) {
    case IX_CONST:
        return n->value;
    case IX_AXIS:
        return axes[n->value];
    case IX_ADD:
        return value(k, n->a, axes) + value(k, n->b, axes);
    case IX_MUL:
        return value(k, n->a, axes) * n->value;
    case IX_DIV:
        return floor_div(value(k, n->a, axes), n->value);
    case IX_MOD:
        return value(k, n->a, axes) - n->value * floor_div(value(k, n->a, axes), n->value);
    case IX_LET:
    case IX_MIN:
    case IX_MAX:
        break;
    }
    cr_assert(false);
    return 0;
}

static uint64_t state = 1;
static int64_t pick(int64_t lo, int64_t hi) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return lo + (int64_t)((state >> 33) % (uint64_t)(hi - lo + 1));
}

enum { STEPS = 12, ROUNDS = 2000 };

/* Builds the same random expression twice: as an Ix, and as its values at sampled points. */
Test(index, random_expressions_keep_their_values_and_ranges) {
    Arena *arena = arena_new();
    for (int round = 0; round < ROUNDS; round++) {
        Kernel k = {.n_axes = 3};
        int64_t axes[4][3], values[3 + STEPS][4];
        Ix ix[3 + STEPS];
        for (uint32_t a = 0; a < 3; a++) {
            k.axes[a] = (Axis){pick(1, 12), AXIS_PAR};
            ix[a] = ix_axis(&k, arena, a);
            for (int p = 0; p < 4; p++) values[a][p] = axes[p][a] = pick(0, k.axes[a].extent - 1);
        }
        for (int s = 3; s < 3 + STEPS; s++) {
            const int64_t i = pick(0, s - 1), j = pick(0, s - 1), c = pick(1, 12), d = pick(-6, 6);
            switch (pick(0, 4)) {
            case 0:
                ix[s] = ix_add(&k, arena, ix[i], ix[j]);
                break;
            case 1:
                ix[s] = ix_mul(&k, arena, ix[i], d);
                break;
            case 2:
                ix[s] = ix_div(&k, arena, ix[i], c);
                break;
            case 3:
                ix[s] = ix_mod(&k, arena, ix[i], c);
                break;
            default:
                ix[s] = ix_add(&k, arena, ix[i], ix_const(&k, arena, d));
                break;
            }
            for (int p = 0; p < 4; p++) {
                values[s][p] = value(&k, ix[s], axes[p]);
                cr_assert(values[s][p] >= k.ix[ix[s]].lo && values[s][p] <= k.ix[ix[s]].hi);
            }
            for (int p = 0; p < 4; p++) {
                const Ix sum = ix_add(&k, arena, ix_mul(&k, arena, ix_div(&k, arena, ix[s], c), c),
                                      ix_mod(&k, arena, ix[s], c));
                cr_assert_eq(value(&k, sum, axes[p]), values[s][p]);
                cr_assert_eq(value(&k, ix_div(&k, arena, ix[s], c), axes[p]),
                             floor_div(values[s][p], c));
                cr_assert_eq(value(&k, ix_mod(&k, arena, ix[s], c), axes[p]),
                             values[s][p] - c * floor_div(values[s][p], c));
            }
        }
    }
    arena_free(arena);
}

Test(index, a_reshape_that_splits_and_merges_axes_is_affine) {
    Arena *arena = arena_new();
    Kernel k = {.axes = {{6, AXIS_PAR}, {4, AXIS_PAR}, {5, AXIS_PAR}}, .n_axes = 3};
    int64_t constant, coefficient[3];
    Ix linear = ix_add(
        &k, arena, ix_mul(&k, arena, ix_axis(&k, arena, 0), 20),
        ix_add(&k, arena, ix_mul(&k, arena, ix_axis(&k, arena, 1), 5), ix_axis(&k, arena, 2)));
    Ix column = ix_mod(&k, arena, linear, 20), row = ix_div(&k, arena, linear, 20);
    cr_assert(ix_affine(&k, column, &constant, coefficient));
    cr_assert(constant == 0 && coefficient[0] == 0 && coefficient[1] == 5 && coefficient[2] == 1);
    cr_assert_eq(row, ix_axis(&k, arena, 0));
    Ix awkward = ix_mod(&k, arena, linear, 7),
       again = ix_add(&k, arena, ix_mul(&k, arena, ix_div(&k, arena, linear, 7), 7), awkward);
    cr_assert_eq(again, linear, "c * (x / c) + x %% c is x again");
    arena_free(arena);
}
