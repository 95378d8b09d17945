/* Tests that ONNX's node tests, planned for a GPU and printed as HIP, compute on the host shim what
 * ONNX expects: a fixed tenth, half of it on waves of 64 and half on waves of 32;
 * ONNX_CASES_SHIM=all runs every case on both. */
#include "../hip/host.h"
#include "executors.h"
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>

enum { PARTS = 20 };
typedef struct Planned {
    Graph *g;
    const Plan *plan;
    HostEntry entry;
} Planned;

static Planned make(OnnxCase *c, uint32_t i, Text *out) {
    PassOptions options = {.ignore_index = -100, .fuel = -1, .for_gpu = true};
    PassContext ctx = {.g = node_graph(c, true, out->arena),
                       .arena = out->arena,
                       .options = &options,
                       .log = stderr};
    Graph *before = ctx.g;
    cr_assert(passes_run(&ctx, "fuse,schedule,memplan"), "%s cannot be planned", c->listed->name);
    if (ctx.g != before) graph_free(before);
    return (Planned){
        ctx.g, ctx.plan,
        host_print_entry(ctx.g, ctx.plan, ENTRY_EVAL, arena_printf(out->arena, "n%u", i), out)};
}

static double no_scalar(const char *name) { return (void)name, 0; }

static const char *run_one(OnnxCase *c, const Planned *p, Host *h) {
    unsigned char *memory = host_alloc(p->plan->arena_bytes);
    node_guard(c);
    node_fill(c, p->g, p->plan, memory);
    const char *why = host_run_entry(h, &p->entry, memory, no_scalar)
                          ? node_check(c, p->g, p->plan, memory)
                          : arena_strdup(c->arena, host_error());
    host_release(memory, p->plan->arena_bytes);
    return why;
}

static void run_part(const char *root, uint32_t part, const char *arch) {
    Text source = {.arena = arena_new()};
    OnnxCase *cases;
    const uint32_t n = node_open(root, part, PARTS, source.arena, &cases);
    Planned *planned = arena_alloc(source.arena, (n + 1) * sizeof *planned);
    int wrong = 0;
    if (!n) cr_skip_test("no cases in %s", root);
    target_hip_prelude(&source);
    for (uint32_t i = 0; i < n; i++) planned[i] = make(&cases[i], i, &source);
    Host *h = host_build(source.s, arch);
    for (uint32_t i = 0; i < n; i++) {
        const char *why = run_one(&cases[i], &planned[i], h);
        if (why) fprintf(stderr, "%s on %s: %s\n", cases[i].listed->name, arch, why), wrong++;
        graph_free(planned[i].g);
        onnx_case_free(&cases[i]);
    }
    host_free(h);
    arena_free(source.arena);
    cr_assert_eq(wrong, 0, "%d of %u cases differ on %s", wrong, n, arch);
}

/* Parts alternate between the two kinds of waves. */
static void run(const char *root, uint32_t part) {
    const bool is_all = getenv("ONNX_CASES_SHIM") != NULL;
    if (is_all || part % 2 == 0) run_part(root, part, host_archs[0]);
    if (is_all || part % 2 == 1) run_part(root, part, host_archs[1]);
}

static struct criterion_test_params parts(void) {
    const uint32_t n = getenv("ONNX_CASES_SHIM") ? PARTS : 2;
    uint32_t *list = cr_malloc(n * sizeof *list);
    for (uint32_t i = 0; i < n; i++) list[i] = n == PARTS ? i : 7 + i;
    return cr_make_param_array(uint32_t, list, n);
}

ParameterizedTestParameters(hip, installed_cases_agree_with_onnx) { return parts(); }
ParameterizedTest(uint32_t *part, hip, installed_cases_agree_with_onnx) {
    run(onnx_cases_installed(), *part);
}
ParameterizedTestParameters(hip, newer_cases_agree_with_onnx) { return parts(); }
ParameterizedTest(uint32_t *part, hip, newer_cases_agree_with_onnx) {
    run(onnx_cases_newer(), *part);
}
