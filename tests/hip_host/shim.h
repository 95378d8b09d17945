/* shim.h - HIP source on the host: included before emitted source that clang++ compiles for this machine.
 *
 * The AMD builtins that the source may use become calls of shim.cpp, which runs a block's threads as fibres. LDS variables go to a section
 * of their own, poisoned before every block. Compile with -D__gfx90a__ -DTC_WAVE64 (waves of 64, MFMA) or -D__gfx1100__ (waves of 32, WMMA).
 * Matrix operands and results lie in the lanes as AMD's matrix instruction calculator says.
 */
#ifndef SHIM_H
#define SHIM_H
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#ifdef TC_WAVE64
enum { SHIM_WAVE = 64 };
#else
enum { SHIM_WAVE = 32 };
#endif

extern "C" {
extern unsigned shim_thread, shim_block[3], shim_grid[3];
void shim_barrier(int line);
/* Waits until all lanes of the wave are at this operation; returns what each passed, lane after lane. */
const void *shim_wave(const char *op, int line, const void *mine, size_t bytes);
void shim_fail(const char *what, int line);
}

typedef float shim_f4 __attribute__((ext_vector_type(4)));
typedef float shim_f8 __attribute__((ext_vector_type(8)));
typedef float shim_f16 __attribute__((ext_vector_type(16)));
typedef short shim_s4 __attribute__((ext_vector_type(4)));
typedef short shim_s16 __attribute__((ext_vector_type(16)));

static inline int shim_lane() { return (int)(shim_thread % SHIM_WAVE); }
template <class T> static inline const T *shim_all(const char *op, int line, const T &mine)
{
    return static_cast<const T *>(shim_wave(op, line, &mine, sizeof mine));
}
static inline int shim_bpermute(int address, int value, int line)
{
    return shim_all("ds_bpermute", line, value)[(address >> 2) & (SHIM_WAVE - 1)];
}
static inline int shim_first(int value, int line) { return shim_all("readfirstlane", line, value)[0]; }

static inline float shim_bf16(short bits)
{
    float f = __builtin_bit_cast(float, (uint32_t)(uint16_t)bits << 16);
#ifdef __gfx90a__
    if (std::fabs(f) < 1.17549435e-38f) f = std::copysign(0.0f, f); /* the *_1k instructions flush subnormals there */
#endif
    return f;
}

/* M x N x K with M = N = 32 or 16: lane = row (or column) + M * (k / per_lane). */
template <int M, int K, class V, class D> static inline D shim_mfma_bf16(const char *op, V a, V b, D c, int line)
{
    struct Pair { V a, b; };
    const Pair *all = shim_all(op, line, Pair{a, b});
    const int lane = shim_lane(), column = lane % M;
    for (int r = 0; r < M * M / 64; r++) {
        const int row = M == 32 ? 8 * (r / 4) + 4 * (lane / 32) + r % 4 : 4 * (lane / 16) + r;
        float sum = c[r];
        for (int k = 0; k < K; k++) sum += shim_bf16(all[row + M * (k / 4)].a[k % 4]) * shim_bf16(all[column + M * (k / 4)].b[k % 4]);
        c[r] = sum;
    }
    return c;
}
static inline shim_f16 shim_mfma_f32(float a, float b, shim_f16 c, int line)
{
    struct Pair { float a, b; };
    const Pair *all = shim_all("mfma_32x32x2f32", line, Pair{a, b});
    const int lane = shim_lane(), column = lane % 32;
    for (int r = 0; r < 16; r++) {
        const int row = 8 * (r / 4) + 4 * (lane / 32) + r % 4;
        for (int k = 0; k < 2; k++) c[r] += all[row + 32 * k].a * all[column + 32 * k].b;
    }
    return c;
}
static inline shim_f8 shim_wmma_bf16(shim_s16 a, shim_s16 b, shim_f8 c, int line)
{
    struct Pair { shim_s16 a, b; };
    const Pair *all = shim_all("wmma_16x16x16", line, Pair{a, b});
    const int lane = shim_lane(), column = lane % 16;
    for (int k = 0; k < 16; k++)
        if (a[k] != all[lane % 16].a[k] || b[k] != all[lane % 16].b[k]) shim_fail("WMMA: lanes 16-31 do not repeat lanes 0-15", line);
    for (int r = 0; r < 8; r++) {
        const int row = 2 * r + lane / 16;
        for (int k = 0; k < 16; k++) c[r] += shim_bf16(all[row].a[k]) * shim_bf16(all[column].b[k]);
    }
    return c;
}

#define __builtin_amdgcn_workitem_id_x() shim_thread
#define __builtin_amdgcn_workgroup_id_x() shim_block[0]
#define __builtin_amdgcn_workgroup_id_y() shim_block[1]
#define __builtin_amdgcn_workgroup_id_z() shim_block[2]
#define __builtin_amdgcn_s_barrier() shim_barrier(__LINE__)
#define __builtin_amdgcn_fence(...) ((void)0)
#define __builtin_amdgcn_sched_barrier(x) ((void)0)
#define __builtin_amdgcn_sched_group_barrier(...) ((void)0)
#define __builtin_amdgcn_ds_bpermute(address, value) shim_bpermute(address, value, __LINE__)
#define __builtin_amdgcn_readfirstlane(value) shim_first(value, __LINE__)
#define __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a, b, c, x, y, z) shim_mfma_bf16<32, 8>("mfma_32x32x8bf16_1k", a, b, c, __LINE__)
#define __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, x, y, z) shim_mfma_bf16<16, 16>("mfma_16x16x16bf16_1k", a, b, c, __LINE__)
#define __builtin_amdgcn_mfma_f32_32x32x2f32(a, b, c, x, y, z) shim_mfma_f32(a, b, c, __LINE__)
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c) shim_wmma_bf16(a, b, c, __LINE__)

/* Kernels by name, for shim.cpp: SHIM_TABLE(SHIM_ENTRY(k1) SHIM_ENTRY(k2)) after the emitted source. */
template <class F> struct ShimCall;
template <class... P> struct ShimCall<void (*)(P...)> {
    template <size_t... I> static void call(void (*f)(P...), void *const *args, std::index_sequence<I...>) { f(*static_cast<P *>(args[I])...); }
    static void run(void (*f)(P...), void *const *args) { call(f, args, std::index_sequence_for<P...>{}); }
};
struct ShimEntry { const char *name; void (*run)(void *const *args); };
#define SHIM_ENTRY(k) {#k, [](void *const *args) { ShimCall<decltype(&k)>::run(&k, args); }},
#define SHIM_TABLE(entries) \
    extern "C" { extern const ShimEntry shim_table[]; const ShimEntry shim_table[] = {entries {nullptr, nullptr}}; \
    extern const int shim_wave_size; const int shim_wave_size = SHIM_WAVE; \
    __attribute__((section("tc_lds"), used)) char shim_lds_line[64]; }

/* Attributes of the device language. After every include above. */
#define global visibility("default")
#define device unused
#define shared section("tc_lds")
#define amdgpu_flat_work_group_size(low, high) unused
#define amdgpu_waves_per_eu(...) unused
#define address_space(n) unused
#pragma clang diagnostic ignored "-Wunknown-pragmas"
#pragma clang diagnostic ignored "-Wunused-function"
#pragma clang diagnostic ignored "-Wpsabi"
#endif
