/* Tests that a tied parameter answers to each of its names, and that elements are turned right. */
#include "rt_test.h"
#include "names.h"
#include "toy/toy.h"

static const trainc_alias aliases[] = {{"head.weight", "w"}};

static trainc_step *open_with_aliases(trainc_program *copy) {
    trainc_step *s;
    *copy = *toy_program();
    copy->aliases = aliases;
    copy->n_aliases = 1;
    cr_assert_eq(trainc_open(copy, NULL, &s), TRAINC_OK);
    return s;
}

Test(names, a_tied_parameter_and_what_belongs_to_it_answer_to_each_name) {
    trainc_program program;
    trainc_step *s = open_with_aliases(&program);
    const trainc_symbol *w = name_symbol(s, "w"), *m = name_symbol(s, "m.w");
    cr_assert(w && name_symbol(s, "head.weight") == w);
    cr_assert(m && name_symbol(s, "m.head.weight") == m);
    cr_assert(!name_symbol(s, "weight") && !name_symbol(s, "xhead.weight"));
    float a[TOY_ROWS], b[TOY_ROWS] = {0};
    cr_assert_eq(trainc_get(s, "w", a, sizeof a), TRAINC_OK);
    cr_assert_eq(trainc_get(s, "head.weight", b, sizeof b), TRAINC_OK);
    cr_assert_arr_eq(a, b, sizeof a);
    trainc_close(s);
}

Test(names, a_file_may_hold_either_name) {
    trainc_program program;
    trainc_step *s = open_with_aliases(&program);
    StTensor tensors[] = {{.name = "head.weight"}, {.name = "m.head.weight"}};
    StFile f = {.tensors = tensors, .n = 2};
    cr_assert_eq(name_entry(s, &f, name_symbol(s, "w")), &tensors[0]);
    cr_assert_eq(name_entry(s, &f, name_symbol(s, "m.w")), &tensors[1]);
    trainc_close(s);
}

Test(names, a_block_of_rows_is_that_of_the_transpose) {
    enum { ROWS = 67, COLUMNS = 35, FIRST = 5, N = 41 };
    int16_t from[COLUMNS][ROWS], to[N][COLUMNS];
    for (int c = 0; c < COLUMNS; c++)
        for (int r = 0; r < ROWS; r++) from[c][r] = (int16_t)(c * ROWS + r);
    transpose_elements(to, from, FIRST, N, COLUMNS, ROWS, sizeof **to);
    for (int r = 0; r < N; r++)
        for (int c = 0; c < COLUMNS; c++) cr_assert_eq(to[r][c], from[c][FIRST + r]);
}
