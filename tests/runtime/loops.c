/* Tests that the launches of loops come in the order of nested `for` loops, and that tables whose
 * loops or arguments leave the plan are refused. */
#include "device.h"
#include <criterion/criterion.h>

/* 0 | 3 times: 1, 2 times: 2 3, 4 | never: 5 6 | 2 times: 7 | 8 */
static const trainc_loop loops[] = {{1, 4, 3}, {2, 2, 2}, {5, 2, 0}, {6, 1, 9}, {7, 1, 2}};
static const trainc_entry entry = {NULL, 9, loops, 5};

typedef struct Seen {
    uint32_t launch;
    int64_t outer, inner;
} Seen;

Test(loops, launches_come_in_the_order_of_nested_loops) {
    Seen want[64];
    uint32_t n = 0, k = 0;
    want[n++] = (Seen){0, 0, 0};
    for (int64_t i = 0; i < 3; i++) {
        want[n++] = (Seen){1, i, 0};
        for (int64_t j = 0; j < 2; j++) {
            want[n++] = (Seen){2, i, j};
            want[n++] = (Seen){3, i, j};
        }
        want[n++] = (Seen){4, i, 0};
    }
    for (int64_t i = 0; i < 2; i++) want[n++] = (Seen){7, i, 0};
    want[n++] = (Seen){8, 0, 0};
    for (Turn t = {0}; device_next(&entry, &t); k++) {
        cr_assert_lt(k, n);
        cr_assert(t.launch == want[k].launch && t.turn[0] == want[k].outer &&
                      t.turn[1] == want[k].inner,
                  "launch %u in turn %lld, %lld comes at place %u", t.launch, (long long)t.turn[0],
                  (long long)t.turn[1], k);
    }
    cr_assert_eq(k, n);
}

Test(loops, an_outer_loop_may_begin_and_end_with_an_inner_one) {
    static const trainc_loop same[] = {{0, 2, 2}, {0, 2, 3}};
    const trainc_entry e = {NULL, 2, same, 2};
    uint32_t n = 0;
    for (Turn t = {0}; device_next(&e, &t); n++)
        cr_assert(t.launch == n % 2 && t.turn[1] == n / 2 % 3 && t.turn[0] == n / 6);
    cr_assert_eq(n, 12);
}

/* A plan of one launch in two loops of 4 and 3 turns, with one argument of 8 bytes in 256. */
static bool valid(trainc_arg arg, uint32_t n_loops, const trainc_loop *around) {
    const trainc_kernel kernel = {.name = "k"};
    const trainc_launch launch = {.kernel = 0, .n_args = 1};
    const trainc_plan plan = {.arena_bytes = 256,
                              .kernels = &kernel,
                              .n_kernels = 1,
                              .args = &arg,
                              .n_args = 1,
                              .entries = {[ENTRY_OF_MICRO] = {&launch, 1, around, n_loops}}};
    const char *bad;
    return device_args_valid(&plan, &bad);
}

Test(loops, arguments_stay_in_the_arena_in_every_turn) {
    static const trainc_loop two[] = {{0, 1, 4}, {0, 1, 3}};
    cr_expect(valid((trainc_arg){NULL, 0, 8, 1, 1, {80, 4}}, 2, two));
    cr_expect(valid((trainc_arg){NULL, 248, 8, 1, 1, {-80, -4}}, 2, two));
    cr_expect(!valid((trainc_arg){NULL, 4, 8, 1, 1, {80, 4}}, 2, two));
    cr_expect(!valid((trainc_arg){NULL, 240, 8, 1, 1, {-80, -4}}, 2, two));
    cr_expect(!valid((trainc_arg){NULL, 0, 8, 1, 1, {-1, 0}}, 2, two));
    cr_expect(!valid((trainc_arg){NULL, 0, 8, 1, 1, {INT64_MAX, 0}}, 2, two));
    cr_expect(valid((trainc_arg){NULL, 0, 8, 1, 1, {INT64_MAX, 0}}, 0, two), "in no loop");
    cr_expect(valid((trainc_arg){"", 0, 0, 1, 1, {-1, 0}}, 2, two), "a number may be negative");
}

Test(loops, loops_lie_within_the_launches_and_each_other) {
    static const trainc_loop beyond[] = {{0, 2, 4}}, empty[] = {{0, 0, 4}},
                             backwards[] = {{0, 1, -1}},
                             three[] = {{0, 1, 4}, {0, 1, 3}, {0, 1, 2}};
    const trainc_arg arg = {NULL, 0, 8, 1, 1, {0}};
    cr_expect(!valid(arg, 1, beyond));
    cr_expect(!valid(arg, 1, empty));
    cr_expect(!valid(arg, 1, backwards));
    cr_expect(valid(arg, 2, three));
    cr_expect(!valid(arg, 3, three));
}
