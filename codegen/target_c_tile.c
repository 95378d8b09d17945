/* target_c_tile.c - a contraction by own loops: blocks of the result are shared among threads, each
 * computed by the prelude's packed tile routine (or, of few rows, straight from memory) into a
 * local block and finished by the epilogue's statements on the way out. Where a library computes
 * the raw product instead, target_c.c prints the epilogue alone. */
#include "target_c.h"

static const char *packer(DType d) {
    return d == DT_F64    ? "tc_pack_f64"
           : d == DT_BF16 ? "tc_pack_bf16"
           : d == DT_F16  ? "tc_pack_f16"
                          : "tc_pack_f32";
}

/* "const int64_t a0 = ...;" the element offset of batch i0 of an operand */
static void print_offset(const CKernel *c, const char *name, int64_t constant, int64_t stride,
                         const int64_t *strides) {
    const Tile *t = &c->k->tile;
    text_printf(c->out, "        const int64_t %s = %lld", name, (long long)constant);
    if (!t->n_batch_axes) text_printf(c->out, " + i0 * %lld", (long long)stride);
    int64_t below = 1;
    for (uint32_t d = t->n_batch_axes; d-- > 0; below *= t->batch_dims[d])
        text_printf(c->out, " + i0 / %lld %% %lld * %lld", (long long)below,
                    (long long)t->batch_dims[d], (long long)strides[d]);
    text_printf(c->out, ";\n");
}

/* Rows of a block: many, for packing the other operand is their cost; fewer where threads would go
 * without work. */
static int block_rows(const Tile *t) {
    const int64_t tall = t->batch * ((t->n + 127) / 128) * ((t->m + 143) / 144);
    return tall >= 8 ? 144 : 72;
}

enum { THIN_ROWS = 8, THIN_ELEMS = 1024 }; /* TC_THIN; smaller operands are packed in no time */

typedef enum Thin { NOT_THIN, THIN_BY_ROWS, THIN_BY_COLUMNS } Thin;

/* Few rows of a meet a b that is read as it lies. */
static Thin is_thin(const Kernel *k) {
    const Tile *t = &k->tile;
    bool plain = k->params[t->a].dtype == DT_F32 && k->params[t->b].dtype == DT_F32;
    if (!plain || t->m > THIN_ROWS || t->n * t->k < THIN_ELEMS) return NOT_THIN;
    if (t->b_n == 1) return THIN_BY_ROWS;
    return t->b_k == 1 && t->a_k == 1 ? THIN_BY_COLUMNS : NOT_THIN;
}

static void print_thin(const CKernel *c, Thin thin) {
    const Tile *t = &c->k->tile;
    text_printf(c->out, "        tc_thin_%s(blocks.c, p%u + a0, %lld, ",
                thin == THIN_BY_ROWS ? "rows" : "columns", t->a, (long long)t->a_m);
    if (thin == THIN_BY_ROWS)
        text_printf(c->out, "%lld, p%u + b0 + n0, %lld, M, n, K);\n", (long long)t->a_k, t->b,
                    (long long)t->b_k);
    else
        text_printf(c->out, "p%u + b0 + n0 * %lld, %lld, M, n, K);\n", t->b, (long long)t->b_n,
                    (long long)t->b_n);
}

static void print_packed(const CKernel *c) {
    const Kernel *k = c->k;
    const Tile *t = &k->tile;
    text_printf(c->out, "        TC_TILE(&blocks, %s, p%u + a0 + m0 * %lld, %lld, %lld,\n",
                packer(k->params[t->a].dtype), t->a, (long long)t->a_m, (long long)t->a_m,
                (long long)t->a_k);
    text_printf(c->out, "                %s, p%u + b0 + n0 * %lld, %lld, %lld, m, n, K);\n",
                packer(k->params[t->b].dtype), t->b, (long long)t->b_n, (long long)t->b_k,
                (long long)t->b_n);
}

void c_tile(const CKernel *c) {
    const Kernel *k = c->k;
    const Tile *t = &k->tile;
    Text *out = c->out;
    c_uniform(c);
    text_printf(out, "    enum { M = %lld, N = %lld, K = %lld, ROWS = %d };\n", (long long)t->m,
                (long long)t->n, (long long)t->k, block_rows(t));
    const bool large = k->flops >= 1u << 20; /* some 20 us on one thread */
    if (large) text_printf(out, "#pragma omp parallel\n");
    text_printf(out, "    {\n    tc_blocks blocks;\n");
    if (large) text_printf(out, "#pragma omp for collapse(3) schedule(static)\n");
    text_printf(out,
                "    for (int64_t i0 = 0; i0 < %lld; i0++)\n    for (int64_t n0 = 0; n0 < N; n0 += "
                "TC_NB)\n    for (int64_t m0 = 0; m0 < M; m0 += ROWS) {\n",
                (long long)t->batch);
    print_offset(c, "a0", t->a_offset, t->a_batch, t->a_batch_strides);
    print_offset(c, "b0", t->b_offset, t->b_batch, t->b_batch_strides);
    text_printf(out, "        const int64_t m = M - m0 < ROWS ? M - m0 : ROWS, n = N - n0 < TC_NB "
                     "? N - n0 : TC_NB;\n");
    if (is_thin(k))
        print_thin(c, is_thin(k));
    else
        print_packed(c);
    text_printf(out, "        for (int64_t i1 = m0; i1 < m0 + m; i1++) {\n#pragma omp simd\n       "
                     "     for (int64_t i2 = n0; i2 < n0 + n; i2++) {\n");
    text_printf(out, "                const float v%u = blocks.c[(i1 - m0) * TC_NB + i2 - n0];\n",
                t->acc);
    for (uint32_t s = 0; s < k->n_stages; s++) c_statements(c, &k->stages[s], c_indent(4));
    text_printf(out, "            }\n        }\n    }\n    }\n");
}
