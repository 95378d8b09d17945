/* Tests that the gradient of every op of ONNX's node tests is the slope of its result
 * (case_gradient.h says how): all dense cases, installed and newer. */
#include "case_gradient.h"
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <string.h>

enum { PARTS = 8 };

static void run_part(const char *root, uint32_t part) {
    Arena *arena = arena_new();
    const CaseList list = onnx_cases(root, arena);
    GradientTally tally = {0};
    if (!list.n) cr_skip_test("no cases in %s", root);
    for (uint32_t i = part; i < list.n; i += PARTS)
        if (!list.items[i].not_dense) gradient_check(&list.items[i], &tally, NULL);
    fprintf(stderr,
            "gradients, part %u: %d graphs, %d slopes, %d coordinates on kinks; %d graphs without "
            "gradient; %d differ\n",
            part, tally.differentiated, tally.coordinates, tally.kinks, tally.without, tally.wrong);
    cr_assert_eq(tally.wrong + tally.unexplained, 0);
    cr_assert_gt(tally.differentiated, 0);
    arena_free(arena);
}

static struct criterion_test_params parts(void) {
    uint32_t *list = cr_malloc(PARTS * sizeof *list);
    for (uint32_t i = 0; i < PARTS; i++) list[i] = i;
    return cr_make_param_array(uint32_t, list, PARTS);
}

ParameterizedTestParameters(nodes, gradients_are_slopes_of_installed_cases) { return parts(); }
ParameterizedTest(uint32_t *part, nodes, gradients_are_slopes_of_installed_cases) {
    run_part(onnx_cases_installed(), *part);
}
ParameterizedTestParameters(nodes, gradients_are_slopes_of_newer_cases) { return parts(); }
ParameterizedTest(uint32_t *part, nodes, gradients_are_slopes_of_newer_cases) {
    run_part(onnx_cases_newer(), *part);
}
