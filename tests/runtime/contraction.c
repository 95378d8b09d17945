/* Tests that products and convolutions through oneDNN equal their definition, in every layout that
 * the compiler may ask for. A machine without oneDNN has nothing to test here: the generated loops
 * run. */
#include "cpu_dnnl.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static float value(size_t i) { return (float)((i * 2654435761u >> 7) % 17) / 8 - 1; }

static float *filled(size_t n, bool zero) {
    float *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = zero ? -99 : value(i + n);
    return p;
}

/* Runs `c` over args a, b, d; false where the library does not take it. */
static bool through_library(Onednn *o, const trainc_contraction *c, void *const args[3]) {
    OnednnCall *call = onednn_prepare(o, c, false, args);
    if (!call) return false;
    void *scratch = aligned_alloc(4096, onednn_scratch_bytes(call) / 4096 * 4096 + 4096);
    cr_assert(onednn_set_scratch(call, scratch));
    cr_assert(onednn_run(call));
    onednn_call_free(call);
    free(scratch);
    return true;
}

static void check_matmul(Onednn *o, trainc_contraction c, size_t na, size_t nb, size_t nd,
                         const char *what) {
    float *a = filled(na, false), *b = filled(nb, false), *d = filled(nd, true);
    void *args[3] = {a, b, d};
    c.a_dtype = c.b_dtype = c.d_dtype = TRAINC_F32;
    c.b_arg = 1;
    c.d_arg = 2;
    c.scratch_arg = 255;
    cr_assert(through_library(o, &c, args), "%s is not taken", what);
    for (int64_t i = 0; i < c.batch; i++)
        for (int64_t m = 0; m < c.m; m++)
            for (int64_t n = 0; n < c.n; n++) {
                double sum = 0;
                for (int64_t k = 0; k < c.k; k++)
                    sum += (double)a[c.a_offset + i * c.a_strides[0] + m * c.a_strides[1] +
                                     k * c.a_strides[2]] *
                           (double)b[c.b_offset + i * c.b_strides[0] + k * c.b_strides[1] +
                                     n * c.b_strides[2]];
                double got =
                    (double)d[i * c.d_strides[0] + m * c.d_strides[1] + n * c.d_strides[2]];
                cr_assert(fabs(got - sum) < 1e-4, "%s: [%d,%d,%d] is %g, not %g", what, (int)i,
                          (int)m, (int)n, got, sum);
            }
    free(a);
    free(b);
    free(d);
}

Test(contraction, products_in_every_layout) {
    Onednn *o = onednn_open();
    if (!o) cr_skip("no oneDNN here");
    enum { M = 20, N = 24, K = 36, B = 3 };
    trainc_contraction plain = {.batch = 1,
                                .m = M,
                                .n = N,
                                .k = K,
                                .a_strides = {0, K, 1},
                                .b_strides = {0, N, 1},
                                .d_strides = {0, N, 1}};
    check_matmul(o, plain, M * K, K * N, M * N, "plain");
    trainc_contraction c = plain;
    c.a_strides[1] = 1, c.a_strides[2] = M;
    check_matmul(o, c, M * K, K * N, M * N, "a transposed");
    c = plain;
    c.b_strides[1] = 1, c.b_strides[2] = K;
    check_matmul(o, c, M * K, K * N, M * N, "b transposed");
    c.a_strides[1] = 1, c.a_strides[2] = M;
    check_matmul(o, c, M * K, K * N, M * N, "both transposed");
    c = plain;
    c.d_strides[1] = 1, c.d_strides[2] = M;
    check_matmul(o, c, M * K, K * N, M * N, "result transposed");
    c = plain;
    c.batch = B, c.a_strides[0] = M * K, c.b_strides[0] = K * N, c.d_strides[0] = M * N;
    check_matmul(o, c, B * M * K, B * K * N, B * M * N, "batch");
    c.b_strides[0] = 0;
    check_matmul(o, c, B * M * K, K * N, B * M * N, "batch, b shared");
    c = plain;
    c.a_offset = 5, c.b_offset = 7, c.a_strides[1] = K + 4, c.b_strides[1] = N + 8;
    check_matmul(o, c, M * (K + 4) + 5, K * (N + 8) + 7, M * N, "offsets and wide rows");
    c = plain;
    c.n = 1, c.b_strides[1] = 1, c.b_strides[2] = 1, c.d_strides[1] = 1;
    check_matmul(o, c, M * K, K, M, "a column");
    c = plain;
    c.m = 1;
    check_matmul(o, c, K, K * N, N, "a row");
    onednn_close(o);
}

Test(contraction, a_call_moves_to_the_slices_of_each_turn) {
    Onednn *o = onednn_open();
    if (!o) cr_skip("no oneDNN here");
    enum { M = 16, N = 24, K = 36, TURNS = 3, OFFSET = 5 };
    trainc_contraction c = {.batch = 1,
                            .m = M,
                            .n = N,
                            .k = K,
                            .a_dtype = TRAINC_F32,
                            .b_dtype = TRAINC_F32,
                            .d_dtype = TRAINC_F32,
                            .b_arg = 1,
                            .d_arg = 2,
                            .scratch_arg = 255,
                            .a_offset = OFFSET,
                            .a_strides = {0, K, 1},
                            .b_strides = {0, N, 1},
                            .d_strides = {0, N, 1}};
    float *a = filled(TURNS * M * K + OFFSET, false), *b = filled(K * N, false),
          *d = filled(TURNS * M * N, true);
    OnednnCall *call = onednn_prepare(o, &c, false, (void *const[3]){a, b, d});
    cr_assert(call);
    void *scratch = aligned_alloc(4096, onednn_scratch_bytes(call) / 4096 * 4096 + 4096);
    cr_assert(onednn_set_scratch(call, scratch));
    for (int t = TURNS - 1; t >= 0; t--) {
        cr_assert(onednn_move(call, (void *const[3]){a + t * M * K, b, d + t * M * N}));
        cr_assert(onednn_run(call));
    }
    for (int i = 0; i < TURNS * M * N; i++) {
        double sum = 0;
        for (int k = 0; k < K; k++)
            sum += (double)a[OFFSET + i / N * K + k] * (double)b[k * N + i % N];
        cr_assert(fabs((double)d[i] - sum) < 1e-4, "[%d] is %g, not %g", i, (double)d[i], sum);
    }
    onednn_call_free(call);
    onednn_close(o);
    free(scratch);
    free(a);
    free(b);
    free(d);
}

typedef struct ConvCase {
    int rank;
    int64_t n, c, o, groups, in[3], k[3], stride[3], dilation[3], low[3], high[3];
} ConvCase;

static int64_t dim(const int64_t *d, int rank, int i) { return i < rank ? d[i] : 1; }

/* Calls `visit` terms y[..] += x[..] * w[..] as flat indices, in 3-D with missing axes of extent 1.
 */
static void convolve(const ConvCase *t, const int64_t out[3], int kind, const float *x,
                     const float *w, const float *y, double *result) {
    int64_t in[3], k[3], s[3], d[3], lo[3], o3[3], og = t->o / t->groups, cg = t->c / t->groups;
    for (int i = 0; i < 3; i++) {
        in[i] = dim(t->in, t->rank, i), k[i] = dim(t->k, t->rank, i),
        s[i] = dim(t->stride, t->rank, i), d[i] = dim(t->dilation, t->rank, i);
        lo[i] = i < t->rank ? t->low[i] : 0, o3[i] = dim(out, t->rank, i);
    }
    for (int64_t n = 0; n < t->n; n++)
        for (int64_t o = 0; o < t->o; o++)
            for (int64_t p = 0; p < o3[0] * o3[1] * o3[2]; p++)
                for (int64_t c = 0; c < cg; c++)
                    for (int64_t q = 0; q < k[0] * k[1] * k[2]; q++) {
                        int64_t po[3] = {p / (o3[1] * o3[2]), p / o3[2] % o3[1], p % o3[2]},
                                qo[3] = {q / (k[1] * k[2]), q / k[2] % k[1], q % k[2]}, at = 0;
                        bool inside = true;
                        for (int i = 0; i < 3; i++) {
                            int64_t pos = po[i] * s[i] + qo[i] * d[i] - lo[i];
                            inside = inside && pos >= 0 && pos < in[i];
                            at = at * in[i] + pos;
                        }
                        if (!inside) continue;
                        int64_t xi = (n * t->c + o / og * cg + c) * in[0] * in[1] * in[2] + at,
                                wi = (o * cg + c) * k[0] * k[1] * k[2] + q,
                                yi = (n * t->o + o) * o3[0] * o3[1] * o3[2] + p;
                        if (kind == 1)
                            result[yi] += (double)x[xi] * (double)w[wi];
                        else if (kind == 2)
                            result[xi] += (double)y[yi] * (double)w[wi];
                        else
                            result[wi] += (double)x[xi] * (double)y[yi];
                    }
}

static void check_conv(Onednn *o, const ConvCase *t, int kind, int row) {
    trainc_contraction c = {.kind = (uint8_t)kind,
                            .rank = t->rank,
                            .groups = t->groups,
                            .a_dtype = TRAINC_F32,
                            .b_dtype = TRAINC_F32,
                            .d_dtype = TRAINC_F32,
                            .b_arg = 1,
                            .d_arg = 2,
                            .scratch_arg = 255};
    int64_t out[3] = {1, 1, 1};
    size_t n[3] = {(size_t)(t->n * t->c), (size_t)(t->o * (t->c / t->groups)),
                   (size_t)(t->n * t->o)};
    c.x_dims[0] = c.y_dims[0] = t->n;
    c.x_dims[1] = t->c, c.y_dims[1] = t->o, c.w_dims[0] = t->o, c.w_dims[1] = t->c / t->groups;
    for (int i = 0; i < t->rank; i++) {
        out[i] = (t->in[i] + t->low[i] + t->high[i] - t->dilation[i] * (t->k[i] - 1) - 1) /
                     t->stride[i] +
                 1;
        c.x_dims[i + 2] = t->in[i], c.w_dims[i + 2] = t->k[i], c.y_dims[i + 2] = out[i];
        c.strides[i] = t->stride[i], c.dilations[i] = t->dilation[i], c.low[i] = t->low[i],
        c.high[i] = t->high[i];
        n[0] *= (size_t)t->in[i], n[1] *= (size_t)t->k[i], n[2] *= (size_t)out[i];
    }
    static const int order[3][3] = {
        {0, 1, 2}, {2, 1, 0}, {0, 2, 1}}; /* which of x, w, y are a, b and the result */
    const int *r = order[kind - 1];
    float *xwy[3] = {filled(n[0], r[2] == 0), filled(n[1], r[2] == 1), filled(n[2], r[2] == 2)};
    void *args[3] = {xwy[r[0]], xwy[r[1]], xwy[r[2]]};
    double *want = calloc(n[r[2]], sizeof *want);
    convolve(t, out, kind, xwy[0], xwy[1], xwy[2], want);
    if (through_library(o, &c, args))
        for (size_t i = 0; i < n[r[2]]; i++)
            cr_assert(fabs((double)xwy[r[2]][i] - want[i]) < 1e-3,
                      "row %d kind %d element %zu: %g, not %g", row, kind, i, (double)xwy[r[2]][i],
                      want[i]);
    else
        cr_assert_neq(row, 0, "an ordinary convolution is not taken");
    for (int i = 0; i < 3; i++) free(xwy[i]);
    free(want);
}

Test(contraction, convolutions_with_groups_strides_dilation_and_uneven_padding) {
    static const ConvCase rows[] = {
        {2, 2, 8, 16, 1, {9, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
        {2, 2, 8, 16, 1, {10, 9}, {3, 2}, {2, 3}, {1, 1}, {0, 1}, {1, 0}},
        {2, 2, 8, 8, 4, {9, 9}, {3, 3}, {1, 1}, {2, 2}, {2, 2}, {2, 2}},
        {2, 2, 6, 6, 6, {7, 8}, {3, 3}, {2, 1}, {1, 1}, {1, 0}, {1, 2}},
        {1, 2, 4, 6, 2, {17}, {5}, {2}, {1}, {2}, {1}},
        {3, 1, 3, 4, 1, {5, 6, 4}, {2, 3, 2}, {1, 2, 1}, {1, 1, 2}, {0, 1, 1}, {1, 1, 1}}};
    Onednn *o = onednn_open();
    if (!o) cr_skip("no oneDNN here");
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++)
        for (int kind = 1; kind <= 3; kind++) check_conv(o, &rows[i], kind, i);
    onednn_close(o);
}

Test(contraction, a_packed_operand_gives_the_same_product) {
    Onednn *o = onednn_open();
    if (!o) cr_skip("no oneDNN here");
    enum { M = 40, N = 96, K = 64, ROOM = 1 << 16 };
    float *a = filled(M * K, false), *b = filled(K * N, false), *d = filled(M * N, true),
          *packed = aligned_alloc(4096, ROOM), *plain = filled(M * N, true);
    trainc_contraction c = {.batch = 1,
                            .m = M,
                            .n = N,
                            .k = K,
                            .a_strides = {0, K, 1},
                            .b_strides = {0, 1, K},
                            .d_strides = {0, N, 1},
                            .a_dtype = TRAINC_F32,
                            .b_dtype = TRAINC_F32,
                            .d_dtype = TRAINC_F32,
                            .b_arg = 1,
                            .d_arg = 2,
                            .scratch_arg = 255};
    cr_assert(through_library(o, &c, (void *[]){a, b, plain}));
    c.packed = 2;
    c.packed_bytes = ROOM;
    OnednnCall *pack = onednn_prepare(o, &c, true, (void *[]){b, packed});
    cr_assert_not_null(pack);
    cr_assert(onednn_set_scratch(pack, d));
    cr_assert(onednn_run(pack));
    onednn_call_free(pack);
    cr_assert(through_library(o, &c, (void *[]){a, packed, d}));
    for (int i = 0; i < M * N; i++) cr_assert(fabsf(d[i] - plain[i]) < 1e-4f);
    c.packed_bytes = 16;
    cr_assert_null(onednn_prepare(o, &c, true, (void *[]){b, packed}),
                   "where there is no room both fall back");
    cr_assert_null(onednn_prepare(o, &c, false, (void *[]){a, packed, d}));
    onednn_close(o);
    free(a), free(b), free(d), free(packed), free(plain);
}
