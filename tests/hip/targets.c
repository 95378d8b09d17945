/* Tests that every kernel form and every pointwise op compiles for every GPU target, with nothing
 * in the code that the bars forbid. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "host.h"

static const char *const targets[] = {"gfx90a", "gfx942", "gfx1100", "gfx1151"};

/* One pointwise kernel with every map over float or int operands. */
static void print_maps(DTypeClass cls, const char *name, Text *out) {
    Arena *a = out->arena;
    const DType d = cls == CLASS_FLT ? DT_F32 : DT_I32;
    Kernel *k = arena_alloc(a, sizeof *k);
    *k = (Kernel){.name = name, .form = FORM_POINTS, .n_axes = 1, .axes = {{1000, AXIS_PAR}}};
    k->params = arena_alloc(a, 4 * sizeof *k->params), k->n_params = 4;
    for (int i = 0; i < 3; i++) k->params[i] = (Param){.dtype = d, .is_read = true, .elems = 1000};
    k->params[3] = (Param){.dtype = d, .is_written = true, .elems = 1000 * N_OPS};
    k->let_type = arena_alloc(a, (N_OPS + 8) * sizeof *k->let_type), k->n_lets = 4;
    k->stages = arena_alloc(a, sizeof *k->stages), k->n_stages = 1;
    Stmt *s = k->stages->stmts = arena_alloc(a, (2 * N_OPS + 8) * sizeof *s);
    const Ix x = ix_axis(k, a, 0);
    uint32_t n = 0;
    for (uint32_t i = 0; i < 3; i++)
        s[n++] = (Stmt){.kind = ST_LOAD, .dst = i + 1, .dtype = d, .param = i, .ix = x},
        k->let_type[i + 1] = d;
    for (OpCode op = OP_NONE; op < N_OPS; op++) {
        const OpInfo *info = &op_info[op];
        const bool fits = info->cls == OPC_NUM || info->cls == OPC_SEL || info->cls == OPC_CMP ||
                          info->cls == OPC_BOOL ||
                          (cls == CLASS_FLT ? info->cls == OPC_FLT || info->cls == OPC_TEST
                                            : info->cls == OPC_INT);
        if (!info->body || !fits) continue;
        k->let_type[k->n_lets] = d;
        s[n++] = (Stmt){.kind = ST_MAP, .dst = k->n_lets, .dtype = d, .op = op, .args = {1, 2, 3}};
        s[n++] = (Stmt){.kind = ST_STORE,
                        .dtype = d,
                        .args = {k->n_lets++},
                        .param = 3,
                        .ix = ix_add(k, a, x, ix_const(k, a, 1000 * (int64_t)op))};
    }
    k->stages->n = n;
    target_hip_kernel(NULL, k, out);
}

/* Rows of `extent` elements along the last axis, or columns: sum, largest and its place in one
 * kernel. */
static void print_rows(int64_t rows, int64_t extent, bool columns, const char *name, Text *out) {
    Arena *a = out->arena;
    Kernel *k = arena_alloc(a, sizeof *k);
    *k = (Kernel){.name = name,
                  .form = FORM_ROWS,
                  .n_axes = 2,
                  .axes = {{rows, AXIS_PAR}, {extent, AXIS_RED}}};
    k->params = arena_alloc(a, 3 * sizeof *k->params), k->n_params = 3;
    k->params[0] = (Param){.dtype = DT_F32, .is_read = true},
    k->params[1] = (Param){.dtype = DT_F32, .is_written = true},
    k->params[2] = (Param){.dtype = DT_I64, .is_written = true};
    static DType types[] = {DT_NONE, DT_F32, DT_F32, DT_F32, DT_I64, DT_I64};
    k->let_type = types, k->n_lets = 6;
    const Ix row = ix_axis(k, a, 0), i = ix_axis(k, a, 1);
    const Stmt loop[] = {
        {.kind = ST_LOAD,
         .dst = 1,
         .dtype = DT_F32,
         .param = 0,
         .ix = columns ? ix_add(k, a, ix_mul(k, a, i, rows), row)
                       : ix_add(k, a, ix_mul(k, a, row, extent), i)},
        {.kind = ST_INDEX, .dst = 5, .dtype = DT_I64, .ix = i},
        {.kind = ST_ACCUM, .dst = 2, .dtype = DT_F32, .op = OP_sum, .args = {1}},
        {.kind = ST_ACCUM, .dst = 3, .dtype = DT_F32, .op = OP_rmax, .args = {1}},
        {.kind = ST_ACCUM, .dst = 4, .dtype = DT_I64, .op = OP_argmax, .args = {1, 5}}};
    const Stmt after[] = {{.kind = ST_STORE, .dtype = DT_F32, .args = {2}, .param = 1, .ix = row},
                          {.kind = ST_STORE,
                           .dtype = DT_F32,
                           .args = {3},
                           .param = 1,
                           .ix = ix_add(k, a, row, ix_const(k, a, rows))},
                          {.kind = ST_STORE, .dtype = DT_I64, .args = {4}, .param = 2, .ix = row}};
    k->stages = arena_alloc(a, 2 * sizeof *k->stages), k->n_stages = 2;
    k->stages[0] = (Stage){true, arena_alloc(a, sizeof loop), 5},
    k->stages[1] = (Stage){false, arena_alloc(a, sizeof after), 3};
    memcpy(k->stages[0].stmts, loop, sizeof loop), memcpy(k->stages[1].stmts, after, sizeof after);
    target_hip_kernel(NULL, k, out);
}

char *targets_everything(Arena *a) {
    Text out = {.arena = a};
    target_hip_prelude(&out);
    print_maps(CLASS_FLT, "float_maps", &out);
    print_maps(CLASS_INT, "int_maps", &out);
    print_rows(1000, 7, false, "rows_thread", &out);
    print_rows(1000, 512, false, "rows_wave", &out);
    print_rows(10, 5000, false, "rows_block", &out);
    print_rows(100, 900, true, "rows_columns", &out);
    print_rows(100000, 9, true, "rows_columns_thread", &out);
    tile_print(&out);
    return out.s;
}

/* Lines of the assembly that say what gpu.md's bars forbid. */
static void check_assembly(const char *path, const char *target) {
    static const char *const forbidden[] = {"flat_load",         "flat_store",     "flat_atomic",
                                            "scratch_",          "atomic_add_f32", "atomic_cmpswap",
                                            "buffer_store_dword"};
    FILE *f = fopen(path, "r");
    cr_assert(f);
    char line[4096];
    while (fgets(line, sizeof line, f))
        for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++)
            cr_assert(!strstr(line, forbidden[i]) ||
                          strchr(line, '.') == line + strspn(line, "\t "),
                      "%s: %s", target, line);
    fclose(f);
}

static void check_target(const char *source, const char *target) {
    Arena *a = arena_new();
    const char *hip = host_path(a, arena_printf(a, "%s.hip", target)),
               *co = host_path(a, arena_printf(a, "%s.co", target)),
               *s = host_path(a, arena_printf(a, "%s.s", target));
    host_write(hip, source);
    char *error = NULL;
    cr_assert(gpu_compile(hip, target, co, s, a, &error), "%s", error);
    static const char *const kernels[] = {"float_maps", "int_maps",     "rows_thread", "rows_wave",
                                          "rows_block", "rows_columns", "k0",          "k5",
                                          "k12",        "k17",          "k18",         "k19"};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        int vgprs, sgprs, lds, spills;
        cr_assert(gpu_kernel_resources(co, kernels[i], &vgprs, &sgprs, &lds, &spills, a),
                  "%s has no %s", target, kernels[i]);
        cr_assert_eq(spills, 0, "%s %s spills %d", target, kernels[i], spills);
        cr_assert(vgprs > 0 && vgprs <= 256 && lds <= 65536, "%s %s: %d registers, %d bytes of LDS",
                  target, kernels[i], vgprs, lds);
    }
    int n;
    cr_assert_not(gpu_kernel_resources(co, "no_such_kernel", &n, &n, &n, &n, a));
    cr_assert_not(gpu_kernel_resources(hip, "k0", &n, &n, &n, &n, a));
    check_assembly(s, target);
    unlink(hip), unlink(co), unlink(s);
    arena_free(a);
}

Test(targets, every_form_and_op_compiles_without_spills_scratch_or_flat_accesses) {
    Arena *a = arena_new();
    const char *source = targets_everything(a);
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) check_target(source, targets[i]);
    arena_free(a);
}

Test(targets, a_compile_error_is_told) {
    Arena *a = arena_new();
    const char *hip = host_path(a, "broken.hip"), *co = host_path(a, "broken.co");
    char *error = NULL;
    host_write(hip, "int x = nothing_here;\n");
    cr_assert_not(gpu_compile(hip, "gfx90a", co, NULL, a, &error));
    cr_assert(strstr(error, "nothing_here") && strstr(error, "gfx90a"), "%s", error);
    unlink(hip);
    arena_free(a);
}

Test(targets, two_compiles_give_the_same_bytes) {
    Arena *a = arena_new();
    const char *hip = host_path(a, "same.hip"),
               *co[] = {host_path(a, "same1.co"), host_path(a, "same2.co")};
    Text out = {.arena = a};
    target_hip_prelude(&out);
    print_rows(100, 900, false, "rows", &out);
    host_write(hip, out.s);
    char *error = NULL;
    for (int i = 0; i < 2; i++)
        cr_assert(gpu_compile(hip, "gfx942", co[i], NULL, a, &error), "%s", error);
    cr_assert_eq(system(arena_printf(a, "cmp %s %s", co[0], co[1])), 0);
    unlink(hip), unlink(co[0]), unlink(co[1]);
    arena_free(a);
}

Test(targets, hiprtc_accepts_the_source) {
    Arena *a = arena_new();
    const char *hip = host_path(a, "rtc.hip");
    host_write(hip, targets_everything(a));
    static const char *const known[] = {"gfx90a",
                                        "gfx1030"}; /* what hipRTC 5.2.3 can compile for */
    for (int i = 0; i < 2; i++) {
        const int status =
            system(arena_printf(a, "ASAN_OPTIONS=detect_leaks=0 %s/tests/hiprtc_compile %s %s",
                                BUILD_DIR, hip, known[i]));
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
            cr_skip_test("no hipRTC on this machine");
        cr_assert_eq(status, 0, "hipRTC refuses the source for %s", known[i]);
    }
    unlink(hip);
    arena_free(a);
}
