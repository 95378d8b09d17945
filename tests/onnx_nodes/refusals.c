/* Tests that what cannot be had of ONNX's node tests is refused by `trainc eval` as a user runs it:
 * exit status 4 and a diagnostic with a code, for ops, types, strings, sequences and shapes that
 * depend on data; or, where an extent is a symbol, 2 and how to bind it. */
#include "../frontend/onnx_case.h"
#include <criterion/criterion.h>
#include <string.h>
#include <sys/wait.h>

static bool is_imported(const ListedCase *l) {
    Arena *arena = arena_new();
    OnnxCase c;
    const CaseResult r = onnx_case_open(&c, l, arena);
    onnx_case_free(&c);
    arena_free(arena);
    return r == CASE_PASSED;
}

/* The command's exit status; what it says goes to `text`. */
static int run(const char *command, char *text, size_t size) {
    FILE *p = popen(command, "r");
    size_t n = p ? fread(text, 1, size - 1, p) : 0;
    text[n] = 0;
    const int status = p ? pclose(p) : -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void check_all(const char *root) {
    Arena *arena = arena_new();
    const CaseList list = onnx_cases(root, arena);
    int refused = 0;
    if (!list.n) cr_skip_test("no cases in %s", root);
    for (uint32_t i = 0; i < list.n; i++) {
        const ListedCase *l = &list.items[i];
        static char text[1 << 16];
        if (is_imported(l)) continue;
        const int status =
            run(arena_printf(arena, BUILD_DIR "/trainc eval %s/model.onnx 2>&1", l->folder), text,
                sizeof text);
        const bool is_unbound = status == 2 && strstr(text, "hint: bind it with --dim");
        cr_expect(is_unbound || (status == 4 && strstr(text, "error[E_")), "%s: exit status %d: %s",
                  l->name, status, text);
        refused++;
    }
    fprintf(stderr, "ONNX cases: %d are refused by trainc eval\n", refused);
    arena_free(arena);
}

Test(refusals, of_installed_cases) { check_all(onnx_cases_installed()); }
Test(refusals, of_newer_cases) { check_all(onnx_cases_newer()); }
