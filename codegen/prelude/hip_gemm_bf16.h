/* Contractions in bf16 on the matrix units, fp32 accumulation: MFMA 32x32x8 (gfx90a, gfx942), WMMA 16x16x16 (gfx11); targets that
 * have neither multiply on the vector units with the same tiles. LDS holds rows of 32 k as four 16-byte chunks, the chunk number
 * xor (row >> 1) & 3 so that no two lanes of a phase meet in a bank. The matrix unit is given B as its rows, so that a lane's
 * results are neighbours along n. Edges as in the fp32 routine. */
#if (defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx940__) || defined(__gfx950__))
#define TC_MFMA 1
#elif defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1103__) || defined(__gfx1150__) || defined(__gfx1151__)
#define TC_WMMA 1
#endif

/* Reads chunks of 8 k of one row. VEC: k is contiguous and NK a multiple of 8; else element by element, neighbouring lanes on neighbouring rows. */
template <int ROWS, bool VEC, int64_t SROW, int64_t SK, int NROWS, int NK> struct tc_operand_bf16 {
    typedef typename tc_index<((NROWS - 1) * SROW + (NK - 1) * SK > 0x7fffffff)>::type I;
    static constexpr int N = ROWS / 64; /* chunks of a thread: ROWS * 4 / 256 */
    TC_IN static int row_of(int t, int i) { return VEC ? (t + i * 256) / 4 : (t + i * 256) % ROWS; }
    TC_IN static int chunk_of(int t, int i) { return VEC ? (t + i * 256) % 4 : (t + i * 256) / ROWS; }
    TC_IN static void load(const uint16_t *p, int row0, int k0, int t, tc_s8 (&r)[N])
    {
        TC_UNROLL for (int i = 0; i < N; i++) {
            const int row = tc_min(row0 + row_of(t, i), NROWS - 1), k = k0 + chunk_of(t, i) * 8;
            if constexpr (VEC) {
                const int kc = NK % 32 ? tc_min(k, NK - 8) : k;
                const tc_s8 v = *(const tc_s8 *)(p + ((I)row * (I)SROW + (I)kc));
                r[i] = NK % 32 == 0 || k < NK ? v : (tc_s8)(short)0;
            } else {
                TC_UNROLL for (int j = 0; j < 8; j++) {
                    const int kc = NK % 32 ? tc_min(k + j, NK - 1) : k + j;
                    const short v = (short)p[(I)row * (I)SROW + (I)kc * (I)SK];
                    r[i][j] = NK % 32 == 0 || k + j < NK ? v : (short)0;
                }
            }
        }
    }
};
#define TC_SWIZZLE(row, chunk) ((row) * 4 + ((chunk) ^ ((row) >> 1 & 3)))
#if defined(TC_WMMA)
#define TC_B_ROW(n) (((n) & ~15) | ((n) & 7) << 1 | ((n) >> 3 & 1)) /* so that a lane owns eight neighbours along n */
#else
#define TC_B_ROW(n) (n)
#endif

#if defined(TC_MFMA) || defined(TC_WMMA)
template <int BM, int BN, class A, class B, int M, int N, int K, class E>
TC_FN void tc_gemm_bf16(const uint16_t *a, const uint16_t *b, int m0, int n0, E epilogue)
{
    constexpr int NT = (K + 31) / 32;
    TC_LDS __attribute__((aligned(16))) tc_s8 sa[2][BM * 4];
    TC_LDS __attribute__((aligned(16))) tc_s8 sb[2][BN * 4];
#ifdef TC_MFMA
    constexpr int WM = 2, WN = 2, TILE = 32;      /* waves along m and n; side of a matrix tile */
    typedef tc_f16 Acc;
#else
    constexpr int WM = 4, WN = 2, TILE = 16;
    typedef tc_f8 Acc;
#endif
    constexpr int TM = BM / WM / TILE, TN = BN / WN / TILE;
    const int t = tc_tid(), lane = t & (TC_WAVE - 1), wave = __builtin_amdgcn_readfirstlane(t / TC_WAVE);
    const int row = lane % TILE, half = lane / TILE;
    const int wm = wave % WM * (BM / WM), wn = wave / WM * (BN / WN);
    tc_s8 ra[A::N], rb[B::N];
    Acc acc[TM][TN];
    TC_UNROLL for (int i = 0; i < TM; i++)
        TC_UNROLL for (int j = 0; j < TN; j++) acc[i][j] = (Acc)0.0f;
    A::load(a, m0, 0, t, ra);
    B::load(b, n0, 0, t, rb);
    TC_UNROLL for (int i = 0; i < A::N; i++) sa[0][TC_SWIZZLE(A::row_of(t, i), A::chunk_of(t, i))] = ra[i];
    TC_UNROLL for (int i = 0; i < B::N; i++) sb[0][TC_SWIZZLE(TC_B_ROW(B::row_of(t, i)), B::chunk_of(t, i))] = rb[i];
    tc_barrier();
#pragma unroll 1
    for (int s = 0; s < NT; s++) {
        const int next = s + 1 < NT ? s + 1 : s, now = s & 1;
        A::load(a, m0, next * 32, t, ra);
        B::load(b, n0, next * 32, t, rb);
        TC_UNROLL for (int step = 0; step < 2; step++) { /* 16 k each */
#ifdef TC_MFMA
            tc_s8 fa[TM], fb[TN];
            TC_UNROLL for (int i = 0; i < TM; i++) fa[i] = sa[now][TC_SWIZZLE(wm + i * TILE + row, step * 2 + half)];
            TC_UNROLL for (int j = 0; j < TN; j++) fb[j] = sb[now][TC_SWIZZLE(wn + j * TILE + row, step * 2 + half)];
            /* A lane holds k = 8 half .. 8 half + 7: the first product takes 0-3 and 8-11, the second the rest. */
            TC_UNROLL for (int h = 0; h < 2; h++)
                TC_UNROLL for (int i = 0; i < TM; i++)
                    TC_UNROLL for (int j = 0; j < TN; j++) {
                        const tc_s4 x = h ? __builtin_shufflevector(fa[i], fa[i], 4, 5, 6, 7) : __builtin_shufflevector(fa[i], fa[i], 0, 1, 2, 3);
                        const tc_s4 y = h ? __builtin_shufflevector(fb[j], fb[j], 4, 5, 6, 7) : __builtin_shufflevector(fb[j], fb[j], 0, 1, 2, 3);
                        acc[i][j] = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(y, x, acc[i][j], 0, 0, 0);
                    }
#else
            tc_s16 fa[TM], fb[TN];
            TC_UNROLL for (int i = 0; i < TM; i++)
                fa[i] = __builtin_shufflevector(sa[now][TC_SWIZZLE(wm + i * TILE + row, step * 2)], sa[now][TC_SWIZZLE(wm + i * TILE + row, step * 2 + 1)],
                                                0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            TC_UNROLL for (int j = 0; j < TN; j++)
                fb[j] = __builtin_shufflevector(sb[now][TC_SWIZZLE(wn + j * TILE + row, step * 2)], sb[now][TC_SWIZZLE(wn + j * TILE + row, step * 2 + 1)],
                                                0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            TC_UNROLL for (int j = 0; j < TN; j++)
                TC_UNROLL for (int i = 0; i < TM; i++) acc[i][j] = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(fb[j], fa[i], acc[i][j]);
#endif
        }
        tc_in_order();
        TC_UNROLL for (int i = 0; i < A::N; i++) sa[now ^ 1][TC_SWIZZLE(A::row_of(t, i), A::chunk_of(t, i))] = ra[i];
        TC_UNROLL for (int i = 0; i < B::N; i++) sb[now ^ 1][TC_SWIZZLE(TC_B_ROW(B::row_of(t, i)), B::chunk_of(t, i))] = rb[i];
        tc_barrier();
    }
#ifdef TC_MFMA
    constexpr int RUN = 4, RUNS = 4;              /* a lane's results: RUNS runs of RUN neighbours along n */
#else
    constexpr int RUN = 8, RUNS = 1;
#endif
    TC_UNROLL for (int i = 0; i < TM; i++) {
        const int m = m0 + wm + i * TILE + row;
        TC_UNROLL for (int j = 0; j < TN; j++)
            TC_UNROLL for (int g = 0; g < RUNS; g++) {
                const int n = n0 + wn + j * TILE + g * 8 + half * RUN;
                if (N % RUN == 0) {
                    if (m < M && n < N) TC_UNROLL for (int e = 0; e < RUN; e++) epilogue(m, n + e, acc[i][j][g * RUN + e]);
                } else {
                    TC_UNROLL for (int e = 0; e < RUN; e++) if (m < M && n + e < N) epilogue(m, n + e, acc[i][j][g * RUN + e]);
                }
            }
    }
}
#endif
