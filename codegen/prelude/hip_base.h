/* HIP without headers: types, qualifiers, wave operations. Waves are 64 lanes on gfx9 and 32 elsewhere; blocks have 256 threads. */
#if defined(__GFX9__) || defined(TC_WAVE64)
#define TC_WAVE 64
#else
#define TC_WAVE 32
#endif
/* Own types behind the standard names: hipRTC's versions declare some of them, not all, and not alike. */
typedef signed char tc_int8;
typedef unsigned char tc_uint8;
typedef short tc_int16;
typedef unsigned short tc_uint16;
typedef int tc_int32;
typedef unsigned int tc_uint32;
typedef long tc_int64;
typedef unsigned long tc_uint64;
#define int8_t tc_int8
#define uint8_t tc_uint8
#define int16_t tc_int16
#define uint16_t tc_uint16
#define int32_t tc_int32
#define uint32_t tc_uint32
#define int64_t tc_int64
#define uint64_t tc_uint64
#ifndef INFINITY
#define INFINITY __builtin_inff()
#endif
#ifndef NAN
#define NAN __builtin_nanf("")
#endif
#define TC_KERNEL extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(256, 256)))
#define TC_FN static __attribute__((device)) __attribute__((always_inline)) inline
#define TC_IN __attribute__((device)) __attribute__((always_inline)) /* a member */
#define TC_LDS static __attribute__((shared))
#pragma clang diagnostic ignored "-Wc++17-extensions"
#pragma clang diagnostic ignored "-Wbitwise-conditional-parentheses"
#pragma clang diagnostic ignored "-Wtautological-compare"
#define TC_UNROLL _Pragma("unroll")

typedef float tc_f2 __attribute__((ext_vector_type(2)));
typedef float tc_f4 __attribute__((ext_vector_type(4)));
typedef float tc_f8 __attribute__((ext_vector_type(8)));
typedef float tc_f16 __attribute__((ext_vector_type(16)));
typedef short tc_s4 __attribute__((ext_vector_type(4)));
typedef short tc_s8 __attribute__((ext_vector_type(8)));
typedef short tc_s16 __attribute__((ext_vector_type(16)));
typedef unsigned int tc_u4 __attribute__((ext_vector_type(4)));

TC_FN int tc_tid() { return (int)__builtin_amdgcn_workitem_id_x(); }
/* Blocks are numbered along x, then y; a grid that has y is 2^20 blocks wide. */
TC_FN unsigned tc_block_id() { return __builtin_amdgcn_workgroup_id_y() << 20 | __builtin_amdgcn_workgroup_id_x(); }

/* The compiler moves nothing across: reads of one LDS buffer stay before writes to the other, so that their order can be checked. */
TC_FN void tc_in_order()
{
#if __has_builtin(__builtin_amdgcn_sched_barrier)
    __builtin_amdgcn_sched_barrier(0);
#endif
}

/* Every LDS write before it is seen by every LDS read after it; nothing moves across, whatever the scheduler was told. */
TC_FN void tc_barrier()
{
    tc_in_order();
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
    tc_in_order();
}

/* The value that the lane with number `lane ^ mask` holds; mask < 32, so that 32 lanes are closed on either wave size. */
TC_FN int tc_xor(int v, int mask) { return __builtin_amdgcn_ds_bpermute(((tc_tid() & (TC_WAVE - 1)) ^ mask) << 2, v); }
TC_FN float tc_xor(float v, int mask) { return __builtin_bit_cast(float, tc_xor(__builtin_bit_cast(int, v), mask)); }
TC_FN int64_t tc_xor(int64_t v, int mask)
{
    const int low = tc_xor((int)(uint32_t)(uint64_t)v, mask), high = tc_xor((int)(uint32_t)((uint64_t)v >> 32), mask);
    return (int64_t)((uint64_t)(uint32_t)high << 32 | (uint32_t)low);
}
TC_FN uint32_t tc_xor(uint32_t v, int mask) { return (uint32_t)tc_xor((int)v, mask); }
TC_FN uint64_t tc_xor(uint64_t v, int mask) { return (uint64_t)tc_xor((int64_t)v, mask); }
TC_FN int tc_min(int a, int b) { return a < b ? a : b; }
