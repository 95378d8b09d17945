/* Tests that every ONNX op that is imported computes what ONNX's own backend tests say:
 * /usr/share/libonnx-testdata (Debian's libonnx-testdata), forward through the interpreter. Cases
 * of ops that are refused are counted, not hidden. */
#include "onnx_case.h"
#include <criterion/criterion.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

static const char *data_folder(void) {
    const char *other = getenv("ONNX_CASES");
    return other ? other : "/usr/share/libonnx-testdata/data";
}

/* What cannot agree: random results; window functions that the files compute with pi = 3.1415; bf16
 * that the files hold as another type; align_corners with an extent that is no integer (PyTorch and
 * onnxruntime round it down first). */
static const char *const unequal[] = {"test_training_dropout",
                                      "test_bernoulli",
                                      "test_blackmanwindow",
                                      "test_hammingwindow",
                                      "test_hannwindow",
                                      "test_cast_BFLOAT16",
                                      "test_cast_FLOAT_to_BFLOAT16",
                                      "test_castlike_BFLOAT16",
                                      "test_castlike_FLOAT_to_BFLOAT16",
                                      "test_resize_downsample_scales_cubic_align_corners",
                                      "test_resize_downsample_scales_linear_align_corners"};

static bool is_unequal(const char *name) {
    for (size_t i = 0; i < sizeof unequal / sizeof *unequal; i++)
        if (!strncmp(name, unequal[i], strlen(unequal[i])) && !strstr(name, "zero_ratio"))
            return true;
    return false;
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

typedef struct Counts {
    int passed, wrong, refused, unreadable;
} Counts;

static void run_folder(const char *suite, Counts *counts) {
    struct dirent **entries;
    char folder[512], path[1024];
    snprintf(folder, sizeof folder, "%s/%s", data_folder(), suite);
    int n = scandir(folder, &entries, NULL, by_name);
    for (int i = 0; i < n; i++) {
        const char *why, *name = entries[i]->d_name;
        snprintf(path, sizeof path, "%s/%s", folder, name);
        if (!strncmp(name, "test_", 5) && !is_unequal(name)) {
            Arena *arena = arena_new();
            CaseResult r = onnx_case_run(path, strstr(name, "training") ? ENTRY_MICRO : ENTRY_EVAL,
                                         &why, arena);
            counts->passed += r == CASE_PASSED;
            counts->wrong += r == CASE_WRONG;
            counts->refused += r == CASE_REFUSED;
            counts->unreadable += r == CASE_UNREADABLE;
            if (r == CASE_WRONG || (r == CASE_REFUSED && getenv("ONNX_CASES_VERBOSE")))
                fprintf(stderr, "%s: %s: %s\n", name, r == CASE_WRONG ? "wrong" : "refused", why);
            arena_free(arena);
        }
        free(entries[i]);
    }
    if (n >= 0) free(entries);
}

Test(node_tests, every_imported_op_agrees_with_onnx) {
    static const char *const suites[] = {"node", "pytorch-operator", "pytorch-converted", "simple"};
    Counts counts = {0};
    DIR *there = opendir(data_folder());
    if (!there) cr_skip_test("libonnx-testdata is not installed");
    closedir(there);
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++) run_folder(suites[i], &counts);
    fprintf(stderr, "ONNX cases: %d agree, %d differ, %d refused, %d with strings or sequences\n",
            counts.passed, counts.wrong, counts.refused, counts.unreadable);
    cr_assert_eq(counts.wrong, 0);
    if (!getenv("ONNX_CASES")) cr_assert_geq(counts.passed, 860);
}
