/* Matrix products: C[m,n] += A[m,k] B[k,n] for one block of C that stays in cache. Both operands are packed into panels of TC_MR rows
 * and TC_NR columns (zeros pad the edges), so the inner loop reads memory in order and keeps TC_MR x TC_NR sums in registers.
 * Every element of C is one sum over k in order: the result depends on nothing but the operands. */
#ifdef __AVX512F__
#define TC_VL 16
#define TC_MR 12
#define TC_ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#else
#define TC_VL 8
#define TC_MR 6
#define TC_ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5)
#endif
#define TC_NR (2 * TC_VL)
#define TC_MB 144 /* multiples of every TC_MR and TC_NR; a kernel may use blocks of fewer rows */
#define TC_NB 128
#define TC_KB 256
typedef float tc_vec __attribute__((vector_size(4 * TC_VL), aligned(4), may_alias));
typedef struct tc_blocks { _Alignas(64) float a[TC_MB * TC_KB], b[TC_NB * TC_KB], c[TC_MB * TC_NB]; } tc_blocks;

TC_CALL void tc_micro(const float *restrict a, const float *restrict b, int64_t k, float *restrict c)
{
#define TC_ZERO(i) tc_vec c##i##l = {0}, c##i##h = {0};
    TC_ROWS(TC_ZERO)
    for (int64_t p = 0; p < k; p++, a += TC_MR, b += TC_NR) {
        const tc_vec l = *(const tc_vec *)b, h = *(const tc_vec *)(b + TC_VL);
#define TC_STEP(i) c##i##l += a[i] * l, c##i##h += a[i] * h;
        TC_ROWS(TC_STEP)
    }
#define TC_PUT(i) *(tc_vec *)(c + (i) * TC_NB) += c##i##l, *(tc_vec *)(c + (i) * TC_NB + TC_VL) += c##i##h;
    TC_ROWS(TC_PUT)
}

/* rows x k elements at strides (row, col) into panels of `width` rows: panel by panel, k by k. */
#define TC_PACK(NAME, TYPE, LOAD)                                                                                             \
    TC_CALL void tc_pack_##NAME(float *restrict to, const TYPE *restrict from, int64_t row, int64_t col, int64_t rows, int64_t k, int64_t width) \
    {                                                                                                                         \
        for (int64_t r0 = 0; r0 < rows; r0 += width, to += width * k) {                                                       \
            const int64_t n = rows - r0 < width ? rows - r0 : width;                                                          \
            const TYPE *restrict x = from + r0 * row;                                                                         \
            if (n < width)                                                                                                    \
                for (int64_t i = 0; i < width * k; i++) to[i] = 0;                                                            \
            if (row == 1)                                                                                                     \
                for (int64_t p = 0; p < k; p++)                                                                               \
                    for (int64_t r = 0; r < n; r++) to[p * width + r] = LOAD(x[p * col + r]);                                 \
            else                                                                                                              \
                for (int64_t r = 0; r < n; r++)                                                                               \
                    for (int64_t p = 0; p < k; p++) to[p * width + r] = LOAD(x[r * row + p * col]);                           \
        }                                                                                                                     \
    }
TC_PACK(any_f32, float, )
TC_PACK(f64, double, (float))
TC_PACK(bf16, uint16_t, tc_load_bf16)
TC_PACK(f16, uint16_t, tc_load_f16)

/* f32 whose k is contiguous: by transposing squares of 4 x 4 in registers. */
typedef float tc_quad __attribute__((vector_size(16), aligned(4), may_alias));
TC_CALL void tc_pack_f32(float *restrict to, const float *restrict from, int64_t row, int64_t col, int64_t rows, int64_t k, int64_t width)
{
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
    if (row != 1 && col == 1) {
        for (int64_t r0 = 0; r0 < rows; r0 += width, to += width * k) {
            const int64_t n = rows - r0 < width ? rows - r0 : width;
            const float *restrict x = from + r0 * row;
            int64_t r = 0;
            for (; r + 4 <= n; r += 4) {
                int64_t p = 0;
                for (; p + 4 <= k; p += 4) {
                    const tc_quad a = *(const tc_quad *)(x + r * row + p), b = *(const tc_quad *)(x + (r + 1) * row + p);
                    const tc_quad c = *(const tc_quad *)(x + (r + 2) * row + p), d = *(const tc_quad *)(x + (r + 3) * row + p);
                    const tc_quad ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
                    const tc_quad AB = __builtin_shufflevector(a, b, 2, 6, 3, 7), CD = __builtin_shufflevector(c, d, 2, 6, 3, 7);
                    *(tc_quad *)(to + p * width + r) = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
                    *(tc_quad *)(to + (p + 1) * width + r) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
                    *(tc_quad *)(to + (p + 2) * width + r) = __builtin_shufflevector(AB, CD, 0, 1, 4, 5);
                    *(tc_quad *)(to + (p + 3) * width + r) = __builtin_shufflevector(AB, CD, 2, 3, 6, 7);
                }
                for (; p < k; p++)
                    for (int64_t i = r; i < r + 4; i++) to[p * width + i] = x[i * row + p];
            }
            for (; r < width; r++)
                for (int64_t p = 0; p < k; p++) to[p * width + r] = r < n ? x[r * row + p] : 0;
        }
        return;
    }
#endif
#endif
    tc_pack_any_f32(to, from, row, col, rows, k, width);
}

/* t->c (rows of TC_NB) = A B over m x n x k; the packers know the storage types. */
#define TC_TILE(t, pack_x, x, x_m, x_k, pack_y, y, y_k, y_n, rows, columns, terms)                                           \
    do {                                                                                                                      \
        for (int64_t i = 0; i < ((rows) + TC_MR - 1) / TC_MR * TC_MR * TC_NB; i++) (t)->c[i] = 0;                             \
        for (int64_t p = 0; p < (terms); p += TC_KB) {                                                                        \
            const int64_t depth = (terms) - p < TC_KB ? (terms) - p : TC_KB;                                                  \
            pack_x((t)->a, (x) + p * (x_k), x_m, x_k, rows, depth, TC_MR);                                                    \
            pack_y((t)->b, (y) + p * (y_k), y_n, y_k, columns, depth, TC_NR);                                                 \
            for (int64_t j = 0; j < (columns); j += TC_NR)                                                                    \
                for (int64_t i = 0; i < (rows); i += TC_MR)                                                                   \
                    tc_micro((t)->a + i * depth, (t)->b + j * depth, depth, (t)->c + i * TC_NB + j);                          \
        }                                                                                                                     \
    } while (0)

/* Few rows (at most TC_THIN) of f32: packing b would cost as much as the product. Either b's rows are contiguous, and each is read
 * once for all rows of a; or its columns are, and so are a's rows, and each element is a sum over lanes. `rows` is a constant where it
 * is called. c: rows of TC_NB. */
#define TC_THIN 8
TC_FN void tc_thin_rows(float *restrict c, const float *restrict a, int64_t a_m, int64_t a_k, const float *restrict b, int64_t b_k,
                        int rows, int64_t columns, int64_t terms)
{
    int64_t j = 0;
    for (; j + TC_NR <= columns; j += TC_NR) {
        tc_vec low[TC_THIN], high[TC_THIN];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) low[r] = high[r] = (tc_vec){0};
        for (int64_t p = 0; p < terms; p++) {
            const tc_vec l = *(const tc_vec *)(b + p * b_k + j), h = *(const tc_vec *)(b + p * b_k + j + TC_VL);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const float x = a[r * a_m + p * a_k];
                low[r] += x * l, high[r] += x * h;
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) *(tc_vec *)(c + r * TC_NB + j) = low[r], *(tc_vec *)(c + r * TC_NB + j + TC_VL) = high[r];
    }
    for (; j < columns; j++)
        for (int r = 0; r < rows; r++) {
            float sum = 0;
            for (int64_t p = 0; p < terms; p++) sum += a[r * a_m + p * a_k] * b[p * b_k + j];
            c[r * TC_NB + j] = sum;
        }
}

TC_FN void tc_thin_columns(float *restrict c, const float *restrict a, int64_t a_m, const float *restrict b, int64_t b_n, int rows,
                           int64_t columns, int64_t terms)
{
    for (int64_t j = 0; j < columns; j++) {
        tc_vec lanes[TC_THIN];
        int64_t p = 0;
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) lanes[r] = (tc_vec){0};
        for (; p + TC_VL <= terms; p += TC_VL) {
            const tc_vec y = *(const tc_vec *)(b + j * b_n + p);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) lanes[r] += *(const tc_vec *)(a + r * a_m + p) * y;
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            float sum = 0;
            for (int i = 0; i < TC_VL; i++) sum += lanes[r][i];
            for (int64_t q = p; q < terms; q++) sum += a[r * a_m + q] * b[j * b_n + q];
            c[r * TC_NB + j] = sum;
        }
    }
}
