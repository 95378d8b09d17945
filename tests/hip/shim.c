/* Tests that the host shim keeps AMD's rules: lanes, waves, barriers, LDS, matrix layouts - and
 * that it sees who breaks them. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include "host.h"

static const LaunchShape one_block = {{1, 1, 1}, {256, 1, 1}, 0};

static Host *build(const char *kernels, const char *arch) {
    Arena *a = arena_new();
    Host *h = host_build(arena_printf(a, "%s\n%s", host_prelude(a), kernels), arch);
    arena_free(a);
    return h;
}

/* One kernel over ints: out[thread]. */
static bool run_ints(const char *kernel, const char *arch, int out[256]) {
    Host *h = build(kernel, arch);
    memset(out, 0, 256 * sizeof *out);
    int *p = out;
    void *args[] = {&p};
    const bool ok = host_launch(h, "k", one_block, args);
    host_free(h);
    return ok;
}

Test(shim, lanes_exchange_inside_their_wave) {
    const char *kernel = "TC_KERNEL void k(int *__restrict p0)\n{ p0[tc_tid()] = tc_xor(tc_tid() * "
                         "10, 5) + __builtin_amdgcn_readfirstlane(tc_tid()) * 100000; }\n";
    for (int a = 0; a < 2; a++) {
        int out[256];
        cr_assert(run_ints(kernel, host_archs[a], out), "%s", host_error());
        const int wave = a ? 32 : 64;
        for (int t = 0; t < 256; t++) cr_assert_eq(out[t], (t ^ 5) * 10 + t / wave * wave * 100000);
    }
}

Test(shim, a_barrier_makes_lds_visible) {
    const char *kernel = "TC_KERNEL void k(int *__restrict p0)\n{ TC_LDS int l[256]; l[tc_tid()] = "
                         "tc_tid(); tc_barrier(); p0[tc_tid()] = l[255 - tc_tid()]; }\n";
    for (int a = 0; a < 2; a++) {
        int out[256];
        cr_assert(run_ints(kernel, host_archs[a], out), "%s", host_error());
        for (int t = 0; t < 256; t++) cr_assert_eq(out[t], 255 - t);
    }
}

Test(shim, a_missing_barrier_reads_poison) {
    const char *kernel = "TC_KERNEL void k(int *__restrict p0)\n{ TC_LDS int l[256]; l[tc_tid()] = "
                         "tc_tid(); p0[tc_tid()] = l[255 - tc_tid()]; }\n";
    int out[256], wrong = 0;
    cr_assert(run_ints(kernel, "gfx90a", out), "%s", host_error());
    for (int t = 0; t < 256; t++) wrong += out[t] == -1;
    cr_assert_gt(wrong, 0);
}

Test(shim, lds_is_poison_in_every_block) {
    const char *kernel = "TC_KERNEL void k(int *__restrict p0)\n{ TC_LDS int l[256]; p0[tc_tid()] "
                         "+= l[tc_tid()]; l[tc_tid()] = 7; }\n";
    Host *h = build(kernel, "gfx1100");
    int out[256] = {0}, *p = out;
    void *args[] = {&p};
    cr_assert(host_launch(h, "k", (LaunchShape){{3, 1, 1}, {256, 1, 1}, 0}, args), "%s",
              host_error());
    for (int t = 0; t < 256; t++) cr_assert_eq(out[t], -3);
    host_free(h);
}

Test(shim, a_barrier_under_a_divergent_branch_is_reported) {
    const char *kernel = "TC_KERNEL void k(int *__restrict p0)\n{ if (tc_tid() < 100) "
                         "tc_barrier(); p0[tc_tid()] = 1; }\n";
    int out[256];
    cr_assert_not(run_ints(kernel, "gfx90a", out));
    cr_assert(strstr(host_error(), "diverged"), "%s", host_error());
}

Test(shim, a_wave_operation_under_a_divergent_branch_is_reported) {
    const char *kernel = "TC_KERNEL void k(int *__restrict p0)\n{ if (tc_tid() & 1) p0[tc_tid()] = "
                         "tc_xor(1, 1); }\n";
    int out[256];
    cr_assert_not(run_ints(kernel, "gfx1100", out));
    cr_assert(strstr(host_error(), "ds_bpermute"), "%s", host_error());
}

Test(shim, lanes_at_different_wave_operations_are_reported) {
    const char *kernel = "TC_KERNEL void k(int *__restrict p0)\n{ if (tc_tid() & 1)\n p0[tc_tid()] "
                         "= __builtin_amdgcn_ds_bpermute(0, 1);\n else\n p0[tc_tid()] = "
                         "__builtin_amdgcn_ds_bpermute(0, 2); }\n";
    int out[256];
    cr_assert_not(run_ints(kernel, "gfx90a", out));
    cr_assert(strstr(host_error(), "diverged"), "%s", host_error());
}

/* The published lane layouts, as (lane, element) -> (row, k): one matrix product of small integers
 * through each instruction. */
typedef struct Layout {
    const char *call, *vector, *accumulator, *arch;
    int side, k, per_lane, results;
} Layout;

static int k_of(const Layout *l, int lane, int e) {
    return l->per_lane == 16 ? e : l->per_lane * (lane / l->side) + e;
}

static int row_of_result(const Layout *l, int lane, int r) {
    if (l->per_lane == 16)
        return 2 * r + lane / 16; /* WMMA: even rows in lanes 0-15, odd ones above */
    return l->side == 32 ? 8 * (r / 4) + 4 * (lane / 32) + r % 4 : 4 * (lane / 16) + r;
}

static void check_layout(const Layout *l) {
    Arena *a = arena_new();
    const bool is_float = l->k == 2;
    const char *element = is_float ? "float" : "short";
    Host *h = host_build(
        arena_printf(a,
                     "%s\nTC_KERNEL void k(const %s *__restrict p0, const %s *__restrict p1, float "
                     "*__restrict p2)\n{\n    %s a, b; %s d;\n"
                     "    for (int i = 0; i < %d; i++) { %s = p0[(tc_tid() & (TC_WAVE - 1)) * %d + "
                     "i]; %s = p1[(tc_tid() & (TC_WAVE - 1)) * %d + i]; }\n"
                     "    for (int i = 0; i < %d; i++) d[i] = 1.0f;\n    d = %s;\n    if (tc_tid() "
                     "< TC_WAVE) for (int i = 0; i < %d; i++) p2[tc_tid() * %d + i] = d[i];\n}\n",
                     host_prelude(a), element, element, l->vector, l->accumulator, l->per_lane,
                     is_float ? "a" : "a[i]", l->per_lane, is_float ? "b" : "b[i]", l->per_lane,
                     l->results, l->call, l->results, l->results),
        l->arch);
    const int wave = l->per_lane == 16 ? 32 : 64;
    float A[32][16], B[16][32];
    for (int i = 0; i < l->side; i++)
        for (int k = 0; k < l->k; k++)
            A[i][k] = (float)((i * 7 + k * 3) % 11 - 5),
            B[k][i] = (float)((i * 5 + k * 13) % 9 - 4);
    static float af[64 * 16], bf[64 * 16], d[64 * 16];
    static uint16_t as[64 * 16], bs[64 * 16];
    for (int lane = 0; lane < wave; lane++)
        for (int e = 0; e < l->per_lane; e++) {
            const int at = lane * l->per_lane + e;
            af[at] = A[lane % l->side][k_of(l, lane, e)],
            bf[at] = B[k_of(l, lane, e)][lane % l->side];
            uint32_t bits[2];
            memcpy(&bits[0], &af[at], 4), memcpy(&bits[1], &bf[at], 4);
            as[at] = (uint16_t)(bits[0] >> 16), bs[at] = (uint16_t)(bits[1] >> 16);
        }
    void *pa = is_float ? (void *)af : (void *)as, *pb = is_float ? (void *)bf : (void *)bs,
         *pd = d, *args[] = {&pa, &pb, &pd};
    cr_assert(host_launch(h, "k", one_block, args), "%s", host_error());
    for (int lane = 0; lane < wave; lane++)
        for (int r = 0; r < l->results; r++) {
            float want = 1.0f;
            for (int k = 0; k < l->k; k++)
                want += A[row_of_result(l, lane, r)][k] * B[k][lane % l->side];
            cr_assert_eq(d[lane * l->results + r], want, "%s lane %d register %d", l->call, lane,
                         r);
        }
    host_free(h);
    arena_free(a);
}

Test(shim, matrix_instructions_have_amds_lane_layouts) {
    check_layout(&(Layout){"__builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a, b, d, 0, 0, 0)", "tc_s4",
                           "tc_f16", "gfx90a", 32, 8, 4, 16});
    check_layout(&(Layout){"__builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, d, 0, 0, 0)", "tc_s4",
                           "tc_f4", "gfx942", 16, 16, 4, 4});
    check_layout(&(Layout){"__builtin_amdgcn_mfma_f32_32x32x2f32(a, b, d, 0, 0, 0)", "float",
                           "tc_f16", "gfx90a", 32, 2, 1, 16});
    check_layout(&(Layout){"__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, d)", "tc_s16",
                           "tc_f8", "gfx1100", 16, 16, 16, 8});
}

Test(shim, wmma_wants_both_halves_of_the_wave_equal) {
    const char *kernel =
        "TC_KERNEL void k(int *__restrict p0)\n{ tc_s16 a = (short)tc_tid(); tc_f8 d = 0.0f; d = "
        "__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, a, d); p0[tc_tid()] = (int)d[0]; }\n";
    int out[256];
    cr_assert_not(run_ints(kernel, "gfx1151", out));
    cr_assert(strstr(host_error(), "repeat"), "%s", host_error());
}
