/* Tests that contractions equal a plain loop in double: every way to read an operand, ragged edges,
 * batches, types, targets. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "host.h"

typedef struct Case {
    const char *what;
    DType dtype;
    int64_t batch, m, n, k;
    bool ta, tb;
    int64_t pad;
    bool split_batch;
} Case;

static const Case cases[] = {
    {"even NN", DT_F32, 1, 64, 64, 64, false, false, 0, false},
    {"even NT", DT_F32, 1, 64, 96, 32, false, true, 0, false},
    {"even TN", DT_F32, 1, 96, 64, 48, true, false, 0, false},
    {"even TT", DT_F32, 1, 32, 32, 32, true, true, 0, false},
    {"ragged NN", DT_F32, 1, 33, 65, 71, false, false, 0, false},
    {"ragged NT", DT_F32, 1, 70, 5, 19, false, true, 0, false},
    {"one row", DT_F32, 1, 1, 200, 37, false, true, 0, false},
    {"one column", DT_F32, 3, 130, 1, 4, false, false, 0, false},
    {"k of 1", DT_F32, 1, 40, 40, 1, true, false, 0, false},
    {"padded rows", DT_F32, 1, 40, 24, 20, false, false, 3, false},
    {"batch", DT_F32, 5, 20, 28, 12, false, true, 0, false},
    {"batch over two axes", DT_F32, 6, 20, 28, 12, false, false, 0, true},
    {"large tiles", DT_F32, 16, 256, 260, 20, false, false, 0, false},
    {"large tiles, ragged", DT_F32, 40, 130, 133, 9, true, true, 0, false},
    {"bf16 NT", DT_BF16, 1, 64, 64, 64, false, true, 0, false},
    {"bf16 NN", DT_BF16, 1, 96, 80, 40, false, false, 0, false},
    {"bf16 TN ragged", DT_BF16, 1, 33, 65, 71, true, false, 0, false},
    {"bf16 large", DT_BF16, 40, 130, 136, 40, false, true, 0, false},
    {"bf16 batch over two axes", DT_BF16, 6, 20, 28, 24, false, true, 0, true},
    {"f16", DT_F16, 1, 40, 50, 30, false, true, 0, false},
};

static float value_at(uint64_t i) {
    return (float)((int64_t)(i * 2654435761u >> 7 & 255) - 128) / 64.0f;
} /* exact in bf16 and f16 */

static void store_as(DType d, void *p, int64_t i, float v) {
    if (d == DT_F32)
        ((float *)p)[i] = v;
    else {
        Tensor t = {.type = {.dtype = (uint8_t)d}};
        double x = (double)v;
        t.u.f = &x;
        tensor_to_bytes(&t, (uint16_t *)p + i);
    }
}

/* [batch, rows, columns] stored row-major with `pad` more elements a row; `swap` stores it
 * transposed. */
static void strides_of(bool swap, int64_t rows, int64_t columns, int64_t pad, int64_t *row,
                       int64_t *column, int64_t *batch) {
    const int64_t line = (swap ? rows : columns) + pad;
    *row = swap ? 1 : line, *column = swap ? line : 1, *batch = line * (swap ? columns : rows);
}

static Kernel *make_kernel(const Case *c, Arena *a) {
    Kernel *k = arena_alloc(a, sizeof *k);
    k->name = "k", k->form = FORM_TILE, k->n_axes = 3;
    k->axes[0] = (Axis){c->batch, AXIS_PAR}, k->axes[1] = (Axis){c->m, AXIS_PAR},
    k->axes[2] = (Axis){c->n, AXIS_PAR};
    Param *p = arena_alloc(a, 3 * sizeof *p);
    p[0] = (Param){.dtype = c->dtype, .is_read = true}, p[1] = p[0],
    p[2] = (Param){.dtype = DT_F32, .is_written = true};
    k->params = p, k->n_params = 3;
    Tile *t = &k->tile;
    *t = (Tile){.batch = c->batch, .m = c->m, .n = c->n, .k = c->k, .a = 0, .b = 1, .acc = 1};
    strides_of(c->ta, c->m, c->k, c->pad, &t->a_m, &t->a_k, &t->a_batch);
    strides_of(c->tb, c->k, c->n, c->pad, &t->b_k, &t->b_n, &t->b_batch);
    if (c->split_batch) {
        t->n_batch_axes = 2;
        const int64_t outer = 2, inner = c->batch / 2;
        t->batch_dims[0] = outer, t->batch_dims[1] = inner;
        t->a_batch_strides[0] = t->a_batch,
        t->a_batch_strides[1] = t->a_batch * outer; /* stored inner first */
        t->b_batch_strides[0] = 0,
        t->b_batch_strides[1] = t->b_batch; /* shared by the outer axis */
    }
    k->let_type = arena_alloc(a, 2 * sizeof(DType));
    k->let_type[1] = DT_F32, k->n_lets = 2;
    const Ix at = ix_add(k, a,
                         ix_add(k, a, ix_mul(k, a, ix_axis(k, a, 0), c->m * c->n),
                                ix_mul(k, a, ix_axis(k, a, 1), c->n)),
                         ix_axis(k, a, 2));
    k->stages = arena_alloc(a, sizeof *k->stages), k->n_stages = 1;
    k->stages->stmts = arena_alloc(a, sizeof(Stmt)), k->stages->n = 1;
    *k->stages->stmts =
        (Stmt){.kind = ST_STORE, .dtype = DT_F32, .args = {1}, .param = 2, .ix = at};
    return k;
}

static int64_t batch_offset(const Tile *t, const int64_t *strides, int64_t one, int64_t b) {
    if (!t->n_batch_axes) return b * one;
    return b / t->batch_dims[1] * strides[0] + b % t->batch_dims[1] * strides[1];
}

static void *fill_operand(const Case *c, int64_t elems, size_t *bytes) {
    *bytes = (size_t)elems * dtype_info[c->dtype].bytes;
    void *p = host_alloc(*bytes);
    for (int64_t i = 0; i < elems; i++) store_as(c->dtype, p, i, value_at((uint64_t)i));
    return p;
}

static void check_case(const Case *c, const Kernel *k, Host *h, const char *arch) {
    const Tile *t = &k->tile;
    size_t a_bytes, b_bytes;
    void *pa = fill_operand(c, t->a_batch * c->batch, &a_bytes),
         *pb = fill_operand(c, t->b_batch * c->batch, &b_bytes);
    const size_t d_bytes = (size_t)(c->batch * c->m * c->n) * sizeof(float);
    float *pd = host_alloc(d_bytes);
    void *args[] = {&pa, &pb, &pd};
    cr_assert(host_launch(h, k->name, target_hip_launch(k), args), "%s: %s", c->what, host_error());
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t m = 0; m < c->m; m++)
            for (int64_t n = 0; n < c->n; n++) {
                double want = 0;
                const int64_t ao = batch_offset(t, t->a_batch_strides, t->a_batch, b),
                              bo = batch_offset(t, t->b_batch_strides, t->b_batch, b);
                for (int64_t x = 0; x < c->k; x++)
                    want += (double)value_at((uint64_t)(ao + m * t->a_m + x * t->a_k)) *
                            (double)value_at((uint64_t)(bo + x * t->b_k + n * t->b_n));
                const double got = (double)pd[(b * c->m + m) * c->n + n];
                cr_assert(fabs(got - want) <= 1e-4 * (1 + fabs(want)),
                          "%s on %s: [%d,%d,%d] is %g, not %g", c->what, arch, (int)b, (int)m,
                          (int)n, got, want);
            }
    host_release(pa, a_bytes), host_release(pb, b_bytes), host_release(pd, d_bytes);
}

enum { N_CASES = sizeof cases / sizeof *cases };

static void print_all(Kernel *k[N_CASES], Text *out) {
    for (int i = 0; i < N_CASES; i++) {
        k[i] = make_kernel(&cases[i], out->arena);
        k[i]->name = arena_printf(out->arena, "k%d", i);
        k[i]->comment = cases[i].what;
        target_hip_kernel(NULL, k[i], out);
    }
}

void tile_print(Text *out) {
    Kernel *k[N_CASES];
    print_all(k, out);
}

static void check_arch(const char *arch) {
    Arena *a = arena_new();
    Text source = {.arena = a};
    Kernel *k[N_CASES];
    target_hip_prelude(&source);
    print_all(k, &source);
    Host *h = host_build(source.s, arch);
    for (int i = 0; i < N_CASES; i++) check_case(&cases[i], k[i], h, arch);
    host_free(h);
    arena_free(a);
}

Test(tile, contractions_equal_a_plain_loop_on_gfx90a) { check_arch("gfx90a"); }
Test(tile, contractions_equal_a_plain_loop_on_gfx1100) { check_arch("gfx1100"); }
Test(tile, contractions_equal_a_plain_loop_on_gfx1030) { check_arch("gfx1030"); }
