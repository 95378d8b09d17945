/* Tests that ONNX's node tests, planned and printed as C, compute what ONNX expects: the kernels of
 * many cases in one translation unit. What the importer refuses, the interpreter's test counts
 * (tests/frontend/node_tests.c): here nothing that imports may differ. */
#include "../codegen/run.h"
#include "executors.h"
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <dlfcn.h>
#include <stdlib.h>

enum { PARTS = 16 };

static const char *run_one(OnnxCase *c, const Case *k, void *lib) {
    const InterpEnv env = {0};
    const uint64_t bytes = (k->plan->arena_bytes / 256 + 1) * 256;
    unsigned char *memory = aligned_alloc(256, bytes);
    memset(memory, 0xff, bytes); /* nothing may be read that was not written */
    node_guard(c);
    node_fill(c, k->g, k->plan, memory);
    case_run(k, lib, ENTRY_EVAL, &env, memory, false);
    const char *why = node_check(c, k->g, k->plan, memory);
    free(memory);
    return why;
}

static void run_part(const char *root, uint32_t part) {
    Text source = {.arena = arena_new()};
    OnnxCase *cases;
    const uint32_t n = node_open(root, part, PARTS, source.arena, &cases);
    Case *kernels = arena_alloc(source.arena, (n + 1) * sizeof *kernels);
    int wrong = 0;
    if (!n) cr_skip_test("no cases in %s", root);
    target_c_prelude(&source);
    for (uint32_t i = 0; i < n; i++)
        case_make(&kernels[i], node_graph(&cases[i], false, source.arena),
                  arena_printf(source.arena, "n%u_%.60s", i, cases[i].listed->name), &source);
    void *lib = cases_build(&source);
    for (uint32_t i = 0; i < n; i++) {
        const char *why = run_one(&cases[i], &kernels[i], lib);
        if (why) fprintf(stderr, "%s on the cpu: %s\n", cases[i].listed->name, why), wrong++;
        graph_free(kernels[i].g);
        onnx_case_free(&cases[i]);
    }
    dlclose(lib);
    arena_free(source.arena);
    cr_assert_eq(wrong, 0, "%d of %u cases differ", wrong, n);
}

static struct criterion_test_params parts(void) {
    uint32_t *list = cr_malloc(PARTS * sizeof *list);
    for (uint32_t i = 0; i < PARTS; i++) list[i] = i;
    return cr_make_param_array(uint32_t, list, PARTS);
}

ParameterizedTestParameters(cpu, installed_cases_agree_with_onnx) { return parts(); }
ParameterizedTest(uint32_t *part, cpu, installed_cases_agree_with_onnx) {
    run_part(onnx_cases_installed(), *part);
}
ParameterizedTestParameters(cpu, newer_cases_agree_with_onnx) { return parts(); }
ParameterizedTest(uint32_t *part, cpu, newer_cases_agree_with_onnx) {
    run_part(onnx_cases_newer(), *part);
}
