/* Tests that in the machine code of every kernel a barrier stands between a write to LDS and the
 * next read of it.
 *
 * The compiler may move a barrier above the writes that it should follow when it is told how to
 * group instructions (LLVM 19 does, fences or not): a race that the shim, which runs the source,
 * cannot see. So the assembly is read: along the code, and around every loop. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "host.h"

enum { MAX_LINES = 200000 };
typedef struct Code {
    char **lines;
    int n;
} Code;

static char kind_of(const char *line) {
    const char *s = line + strspn(line, " \t");
    if (!strncmp(s, "ds_read", 7) || !strncmp(s, "ds_load", 7)) return 'R';
    if (!strncmp(s, "ds_write", 8) || !strncmp(s, "ds_store", 8)) return 'W';
    return !strncmp(s, "s_barrier", 9) ? 'B' : 0;
}

/* The first read after a write without a barrier between, in lines [from, to] taken `rounds` times;
 * -1: none. */
static int race_in(const Code *c, int from, int to, int rounds) {
    bool written = false;
    for (int round = 0; round < rounds; round++)
        for (int i = from; i <= to; i++) {
            const char kind = kind_of(c->lines[i]);
            if (kind == 'W')
                written = true;
            else if (kind == 'B')
                written = false;
            else if (kind == 'R' && written)
                return i;
        }
    return -1;
}

static int label_line(const Code *c, int before, const char *label, size_t n) {
    for (int i = before; i >= 0; i--)
        if (!strncmp(c->lines[i], label, n) && c->lines[i][n] == ':') return i;
    return -1;
}

/* The line of a race in the assembly, or NULL. */
static const char *find_race(const Code *c) {
    int begin = 0;
    for (int i = 0; i < c->n; i++) {
        const char *s = c->lines[i] + strspn(c->lines[i], " \t"), *target = strstr(s, ".LBB");
        if (!strncmp(s, "s_endpgm", 8)) {
            const int at = race_in(c, begin, i, 1);
            if (at >= 0) return c->lines[at];
            begin = i;
        }
        if ((strncmp(s, "s_cbranch", 9) && strncmp(s, "s_branch", 8)) || !target) continue;
        const int start = label_line(c, i, target, strcspn(target, " \t\n"));
        const int at = start < 0 ? -1 : race_in(c, start, i, 2);
        if (at >= 0) return c->lines[at];
    }
    return NULL;
}

static Code assembly_of(const char *source, const char *target, Arena *a) {
    const char *hip = host_path(a, arena_printf(a, "order_%s.hip", target)),
               *s = host_path(a, arena_printf(a, "order_%s.s", target));
    host_write(hip, source);
    GpuJob job = gpu_compile_start(hip, target, s, true, a);
    cr_assert(gpu_compile_wait(&job, a), "%s", job.error);
    Code c = {arena_alloc(a, MAX_LINES * sizeof(char *)), 0};
    FILE *f = fopen(s, "r");
    char line[4096];
    cr_assert(f);
    while (fgets(line, sizeof line, f)) {
        cr_assert_lt(c.n, MAX_LINES);
        c.lines[c.n++] = arena_strdup(a, line);
    }
    fclose(f);
    unlink(hip), unlink(s);
    return c;
}

Test(order, a_barrier_stands_between_write_and_read_in_every_kernel) {
    static const char *const targets[] = {"gfx90a", "gfx942", "gfx1100", "gfx1151"};
    Arena *a = arena_new();
    const char *source = targets_everything(a);
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        const Code c = assembly_of(source, targets[i], a);
        const char *race = find_race(&c);
        cr_assert(!race, "%s reads LDS after a write without a barrier: %s", targets[i], race);
    }
    arena_free(a);
}

static char *replaced(Arena *a, const char *text, const char *old, const char *new, bool all) {
    Text out = {.arena = a};
    const char *at;
    cr_assert(strstr(text, old), "the prelude has no `%s`", old);
    while ((at = strstr(text, old))) {
        text_printf(&out, "%.*s%s", (int)(at - text), text, new);
        text = at + strlen(old);
        if (!all) break;
    }
    text_printf(&out, "%s", text);
    return out.s;
}

/* The bf16 routine as it must not be: a barrier of fences alone, and instruction groups in its
 * loop. */
Test(order, the_race_of_scheduling_groups_is_caught) {
    Arena *a = arena_new();
    char *source =
        replaced(a, host_prelude(a), "    __builtin_amdgcn_sched_barrier(0);\n", "", false);
    source = replaced(a, source, "        tc_barrier();\n    }\n#ifdef TC_MFMA\n",
                      "        tc_barrier();\n"
                      "        TC_UNROLL for (int q = 0; q < 8; q++) { "
                      "__builtin_amdgcn_sched_group_barrier(0x100, 1, 0); "
                      "__builtin_amdgcn_sched_group_barrier(0x8, 1, 0); }\n"
                      "        TC_UNROLL for (int q = 0; q < 4; q++) { "
                      "__builtin_amdgcn_sched_group_barrier(0x200, 1, 0); "
                      "__builtin_amdgcn_sched_group_barrier(0x8, 2, 0); }\n"
                      "    }\n#ifdef TC_MFMA\n",
                      false);
    source = arena_printf(
        a,
        "%s\nTC_KERNEL void k(const uint16_t *__restrict p0, const uint16_t *__restrict p1, float "
        "*__restrict p2)\n{\n"
        "    const int m0 = (int)tc_block_id() / 4 * 128, n0 = (int)tc_block_id() %% 4 * 128;\n"
        "    auto epilogue = [=](int m, int n, float v) __attribute__((always_inline)) { p2[m * "
        "512 + n] = v; };\n"
        "    typedef tc_operand_bf16<128, true, 768, 1, 512, 768> Operand;\n"
        "    tc_gemm_bf16<128, 128, Operand, Operand, 512, 512, 768>(p0, p1, m0, n0, "
        "epilogue);\n}\n",
        source);
    const Code c = assembly_of(source, "gfx942", a);
    cr_assert(find_race(&c), "the check does not see the race");
    arena_free(a);
}
