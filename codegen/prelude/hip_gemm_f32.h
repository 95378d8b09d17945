/* Contractions on the vector units: D[m,n] = sum_k A[m,k] B[k,n] in fp32, any strides, any storage type.
 * A block makes BM x BN results, a thread TM x TN of them (16 x 16 threads). LDS holds two tiles, [k][m] and [k][n]; the next tile travels
 * from memory to registers while this one is multiplied: one barrier a tile. Edges: m and n are clamped (their results are not
 * stored), k beyond the end reads as 0. */
enum { TC_ALONG_ROW = 0, TC_ALONG_K = 1, TC_ROW_FAST = 2, TC_K_FAST = 3 }; /* 16-byte loads along rows, along k; element loads */

struct tc_as_f32 { typedef float storage; TC_IN static float value(float x) { return x; } };
struct tc_as_f64 { typedef double storage; TC_IN static float value(double x) { return (float)x; } };
struct tc_as_f16 { typedef uint16_t storage; TC_IN static float value(uint16_t x) { return (float)__builtin_bit_cast(_Float16, x); } };
struct tc_as_bf16 { typedef uint16_t storage; TC_IN static float value(uint16_t x) { return __builtin_bit_cast(float, (uint32_t)x << 16); } };
template <bool WIDE> struct tc_index { typedef unsigned type; };
template <> struct tc_index<true> { typedef int64_t type; };

/* One operand, NROWS x NK elements with strides SROW and SK, of which a block stages ROWS x BK at a time. */
template <class T, int ROWS, int BK, int MODE, int64_t SROW, int64_t SK, int NROWS, int NK> struct tc_operand {
    typedef typename T::storage S;
    typedef typename tc_index<((NROWS - 1) * SROW + (NK - 1) * SK > 0x7fffffff)>::type I;
    static constexpr int N = ROWS * BK / 256;   /* elements a thread moves */
    static constexpr int PAD = 4;
    TC_IN static int row_of(int t, int i)
    {
        return MODE == TC_ALONG_ROW ? (t + (i >> 2) * 256) % (ROWS / 4) * 4 + (i & 3)
             : MODE == TC_ALONG_K ? (t + (i >> 2) * 256) / (BK / 4)
             : MODE == TC_ROW_FAST ? (t + i * 256) % ROWS : (t + i * 256) / BK;
    }
    TC_IN static int k_of(int t, int i)
    {
        return MODE == TC_ALONG_ROW ? (t + (i >> 2) * 256) / (ROWS / 4)
             : MODE == TC_ALONG_K ? (t + (i >> 2) * 256) % (BK / 4) * 4 + (i & 3)
             : MODE == TC_ROW_FAST ? (t + i * 256) / ROWS : (t + i * 256) % BK;
    }
    TC_IN static void load(const S *p, int row0, int k0, int t, float (&r)[N])
    {
        if constexpr (MODE == TC_ALONG_ROW || MODE == TC_ALONG_K) {
            TC_UNROLL for (int i = 0; i < N; i += 4) {
                const int row = tc_min(row0 + row_of(t, i), MODE == TC_ALONG_ROW ? NROWS - 4 : NROWS - 1);
                const int k = k0 + k_of(t, i), kc = NK % BK ? tc_min(k, MODE == TC_ALONG_K ? NK - 4 : NK - 1) : k;
                const tc_f4 v = *(const tc_f4 *)(p + ((I)row * (I)SROW + (I)kc * (I)SK));
                const bool in = NK % BK == 0 || k < NK;
                TC_UNROLL for (int j = 0; j < 4; j++) r[i + j] = in ? v[j] : 0.0f;
            }
        } else {
            TC_UNROLL for (int i = 0; i < N; i++) {
                const int row = tc_min(row0 + row_of(t, i), NROWS - 1);
                const int k = k0 + k_of(t, i), kc = NK % BK ? tc_min(k, NK - 1) : k;
                const float v = T::value(p[(I)row * (I)SROW + (I)kc * (I)SK]);
                r[i] = NK % BK == 0 || k < NK ? v : 0.0f;
            }
        }
    }
    TC_IN static void store(float (*lds)[ROWS + PAD], int t, const float (&r)[N])
    {
        if constexpr (MODE == TC_ALONG_ROW) {
            TC_UNROLL for (int i = 0; i < N; i += 4)
                *(tc_f4 *)&lds[k_of(t, i)][row_of(t, i)] = tc_f4{r[i], r[i + 1], r[i + 2], r[i + 3]};
        } else {
            TC_UNROLL for (int i = 0; i < N; i++) lds[k_of(t, i)][row_of(t, i)] = r[i];
        }
    }
};

/* COLUMNS of a thread: VW neighbours, then a step of 16 * VW. */
template <int W> struct tc_span {
    static constexpr int VW = W < 4 ? W : 4;
    TC_IN static int at(int t, int i) { return i / VW * 16 * VW + t * VW + i % VW; }
    TC_IN static void read(const float *row, int t, float (&v)[W])
    {
        TC_UNROLL for (int i = 0; i < W; i += VW) {
            if constexpr (VW == 4) {
                const tc_f4 x = *(const tc_f4 *)(row + at(t, i));
                TC_UNROLL for (int j = 0; j < 4; j++) v[i + j] = x[j];
            } else {
                TC_UNROLL for (int j = 0; j < VW; j++) v[i + j] = row[at(t, i) + j];
            }
        }
    }
};

template <int BM, int BN, int BK, class A, class B, int M, int N, int K, class E>
TC_FN void tc_gemm_f32(const typename A::S *a, const typename B::S *b, int m0, int n0, E epilogue)
{
    constexpr int TM = BM / 16, TN = BN / 16, NT = (K + BK - 1) / BK;
    TC_LDS __attribute__((aligned(16))) float sa[2][BK][BM + A::PAD];
    TC_LDS __attribute__((aligned(16))) float sb[2][BK][BN + B::PAD];
    const int t = tc_tid(), tn = t & 15, tm = t >> 4;
    float ra[A::N], rb[B::N], acc[TM][TN];
    TC_UNROLL for (int i = 0; i < TM; i++)
        TC_UNROLL for (int j = 0; j < TN; j++) acc[i][j] = 0.0f;
    A::load(a, m0, 0, t, ra);
    B::load(b, n0, 0, t, rb);
    A::store(sa[0], t, ra);
    B::store(sb[0], t, rb);
    tc_barrier();
#pragma unroll 1
    for (int s = 0; s < NT; s++) {
        const int next = s + 1 < NT ? s + 1 : s; /* the last tile is read again, and not used */
        A::load(a, m0, next * BK, t, ra);
        B::load(b, n0, next * BK, t, rb);
        TC_UNROLL for (int k = 0; k < BK; k++) {
            float va[TM], vb[TN];
            tc_span<TM>::read(sa[s & 1][k], tm, va);
            tc_span<TN>::read(sb[s & 1][k], tn, vb);
            TC_UNROLL for (int i = 0; i < TM; i++)
                TC_UNROLL for (int j = 0; j < TN; j++) acc[i][j] = __builtin_fmaf(va[i], vb[j], acc[i][j]);
        }
        tc_in_order();
        A::store(sa[(s + 1) & 1], t, ra);
        B::store(sb[(s + 1) & 1], t, rb);
        tc_barrier();
    }
    constexpr int VW = tc_span<TN>::VW;
    TC_UNROLL for (int i = 0; i < TM; i++) {
        const int m = m0 + tc_span<TM>::at(tm, i);
        TC_UNROLL for (int j = 0; j < TN; j += VW) {
            const int n = n0 + tc_span<TN>::at(tn, j);
            if (N % VW == 0) {
                if (m < M && n < N) TC_UNROLL for (int e = 0; e < VW; e++) epilogue(m, n + e, acc[i][j + e]);
            } else {
                TC_UNROLL for (int e = 0; e < VW; e++) if (m < M && n + e < N) epilogue(m, n + e, acc[i][j + e]);
            }
        }
    }
}
