/* Tests that every ONNX op that is imported computes what ONNX's own backend tests say, forward
 * through the interpreter: Debian's libonnx-testdata, and the newer cases that lie in the
 * repository. What is refused is refused by a diagnostic, with status 4, and listed
 * (ONNX_CASES_VERBOSE=1). tests/onnx_nodes runs the same cases on generated code. */
#include "onnx_case.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

typedef struct Counts {
    int dense, passed, wrong, refused, other_passed, other_refused, unreadable;
} Counts;

static void count(Counts *n, const ListedCase *l, CaseResult r) {
    n->dense += !l->not_dense;
    n->wrong += r == CASE_WRONG;
    n->passed += !l->not_dense && r == CASE_PASSED;
    n->refused += !l->not_dense && (r == CASE_REFUSED || r == CASE_UNREADABLE);
    n->other_passed += l->not_dense && r == CASE_PASSED;
    n->other_refused += l->not_dense && r == CASE_REFUSED;
    n->unreadable += l->not_dense && r == CASE_UNREADABLE;
}

static void run(const ListedCase *l, Counts *n) {
    Arena *arena = arena_new();
    OnnxCase c;
    CaseResult r = onnx_case_open(&c, l, arena);
    if (r == CASE_PASSED) r = onnx_case_interpret(&c);
    if (r == CASE_REFUSED) /* or 2: a dimension that is not bound, as none may be 0 */
        cr_expect(c.exit_status == 4 || strstr(c.why, "a dimension is at least 1"),
                  "%s: status %d: %s", l->name, c.exit_status, c.why);
    if (r == CASE_WRONG || (r != CASE_PASSED && getenv("ONNX_CASES_VERBOSE")))
        fprintf(stderr, "%s: %s: %s%s\n", l->name, r == CASE_WRONG ? "wrong" : "refused", c.why,
                l->not_dense ? arena_printf(arena, " (not dense: %s)", l->not_dense) : "");
    count(n, l, r);
    onnx_case_free(&c);
    arena_free(arena);
}

/* All cases under root; up to opset `newest`, or all where it is 0. */
static Counts run_all(const char *root, int64_t newest) {
    Arena *arena = arena_new();
    const CaseList list = onnx_cases(root, arena);
    Counts n = {0};
    if (!list.n) cr_skip_test("no cases in %s", root);
    for (uint32_t i = 0; i < list.n; i++)
        if (!newest || list.items[i].opset <= newest) run(&list.items[i], &n);
    fprintf(stderr,
            "ONNX cases: of %d dense ones %d agree, %d are refused; of the others %d agree, %d are "
            "refused, %d hold no tensors; %d differ\n",
            n.dense, n.passed, n.refused, n.other_passed, n.other_refused, n.unreadable, n.wrong);
    cr_assert_eq(n.wrong, 0);
    arena_free(arena);
    return n;
}

Test(node_tests, every_imported_op_agrees_with_onnx) {
    const char *newest = getenv("ONNX_CASES_OPSET");
    const Counts n = run_all(onnx_cases_installed(), newest ? atoi(newest) : 0);
    cr_assert_geq(n.passed * 100, n.dense * 95);
    if (!getenv("ONNX_CASES")) cr_assert_geq(n.passed, 989);
}

/* Up to opset 23; what later versions of ops brought is refused where it is not there. */
Test(node_tests, every_imported_op_agrees_with_newer_cases) {
    const Counts n = run_all(onnx_cases_newer(), 23);
    cr_assert_geq(n.passed, 813);
}

Test(node_tests, later_versions_of_ops_agree_or_are_refused) {
    const Counts n = run_all(onnx_cases_newer(), 0);
    cr_assert_geq(n.passed, 1254);
}
