/* target_hip_tile.c - contractions as HIP source: the call of a tile routine of the prelude, and
 * the epilogue as its lambda.
 *
 * D[b,m,n] = sum_k A[b,m,k] B[b,k,n]. A block makes one bm x bn tile of one batch entry; the tile
 * is the largest that still gives enough blocks. Tiles are numbered in groups of eight along m, so
 * that blocks that run together share rows of A and columns of B. bf16 operands take the matrix
 * units where the target has them (target macros in the prelude), everything else the fp32 routine;
 * both use the same tile, so launches do not depend on the target. How an operand is read follows
 * from its strides.
 */
#include <assert.h>
#include "target_hip.h"

enum { ENOUGH_BLOCKS = 120, RASTER = 8 };

static int64_t blocks_of(const Tile *t, int64_t bm, int64_t bn) {
    return (t->m + bm - 1) / bm * ((t->n + bn - 1) / bn) * t->batch;
}

/* hip_tile - block tile and number of blocks. bf16 tiles are at least 64 x 64: four waves of 32
 * x 32. */
HipTile hip_tile(const Kernel *k) {
    const Tile *t = &k->tile;
    HipTile h = {.bm = 64, .bn = 64, .bk = 16};
    h.matrix = k->params[t->a].dtype == DT_BF16 && k->params[t->b].dtype == DT_BF16;
    if (t->m > 64 && t->n > 64 && blocks_of(t, 128, 128) >= ENOUGH_BLOCKS)
        h.bm = h.bn = 128, h.bk = 8;
    else if (!h.matrix && (t->m <= 32 || t->n <= 32 || blocks_of(t, 64, 64) < ENOUGH_BLOCKS / 4))
        h.bm = h.bn = h.bk = 32;
    h.tiles_m = (t->m + h.bm - 1) / h.bm;
    h.tiles_n = (t->n + h.bn - 1) / h.bn;
    h.blocks = h.tiles_m * h.tiles_n * t->batch;
    return h;
}

/* One operand as rows x k: its strides, and whether everything that is not the contiguous axis is a
 * multiple of `width`. */
typedef struct Operand {
    DType dtype;
    int64_t offset, row, k, n_rows, batch;
    const int64_t *batch_strides;
} Operand;

static bool rest_is_multiple(const Tile *t, const Operand *o, int64_t stride, int64_t extent,
                             int64_t width) {
    if (o->offset % width || stride % width || extent % width ||
        (!t->n_batch_axes && o->batch % width))
        return false;
    for (uint32_t i = 0; i < t->n_batch_axes; i++)
        if (o->batch_strides[i] % width) return false;
    return true;
}

static const char *mode_of(const Tile *t, const Operand *o) {
    const bool wide = o->dtype == DT_F32;
    if (wide && o->k == 1 && rest_is_multiple(t, o, o->row, t->k, 4)) return "TC_ALONG_K";
    if (wide && o->row == 1 && rest_is_multiple(t, o, o->k, o->n_rows, 4)) return "TC_ALONG_ROW";
    return o->k == 1 ? "TC_K_FAST" : "TC_ROW_FAST";
}

static const char *reader_of(DType d) {
    return d == DT_F64    ? "tc_as_f64"
           : d == DT_F16  ? "tc_as_f16"
           : d == DT_BF16 ? "tc_as_bf16"
                          : "tc_as_f32";
}

static void print_operand_f32(const Tile *t, const HipTile *h, const Operand *o, const char *name,
                              Text *out) {
    text_printf(out, "    typedef tc_operand<%s, %u, %u, %s, %lld, %lld, %lld, %lld> %s;\n",
                reader_of(o->dtype), h->bm, h->bk, mode_of(t, o), (long long)o->row,
                (long long)o->k, (long long)o->n_rows, (long long)t->k, name);
}

static void print_operand_bf16(const Tile *t, const HipTile *h, const Operand *o, const char *name,
                               Text *out) {
    const bool vec = o->k == 1 && rest_is_multiple(t, o, o->row, t->k, 8);
    text_printf(out, "    typedef tc_operand_bf16<%u, %s, %lld, %lld, %lld, %lld> %s;\n", h->bm,
                vec ? "true" : "false", (long long)o->row, (long long)o->k, (long long)o->n_rows,
                (long long)t->k, name);
}

static void print_batch_offset(const Tile *t, const Operand *o, const char *name, uint32_t param,
                               Text *out) {
    text_printf(out, "    const auto *%s = p%u + %lld", name, param, (long long)o->offset);
    if (!t->n_batch_axes && t->batch > 1 && o->batch)
        text_printf(out, " + (int64_t)a0 * %lld", (long long)o->batch);
    int64_t step = t->batch;
    for (uint32_t i = 0; i < t->n_batch_axes; i++) {
        step /= t->batch_dims[i];
        if (t->batch_dims[i] > 1 && o->batch_strides[i])
            text_printf(out, " + (int64_t)(a0 / %lld %% %lld) * %lld", (long long)step,
                        (long long)t->batch_dims[i], (long long)o->batch_strides[i]);
    }
    text_printf(out, ";\n");
}

static void print_tile_number(const Kernel *k, const HipTile *h, Text *out) {
    const long long tiles = (long long)(h->tiles_m * h->tiles_n),
                    per_group = (long long)h->tiles_n * RASTER;
    text_printf(out, "    const int block = (int)tc_block_id(), a0 = %s, tile = block %% %lld;\n",
                k->tile.batch > 1 ? arena_printf(out->arena, "block / %lld", tiles) : "0", tiles);
    if (h->tiles_m % RASTER == 0 && h->tiles_n > 1) {
        text_printf(out,
                    "    const int m0 = (tile / %lld * %d + tile %% %d) * %u, n0 = tile %% %lld / "
                    "%d * %u;\n",
                    per_group, RASTER, RASTER, h->bm, per_group, RASTER, h->bn);
    } else {
        text_printf(out, "    const int m0 = tile / %lld * %u, n0 = tile %% %lld * %u;\n",
                    (long long)h->tiles_n, h->bm, (long long)h->tiles_n, h->bn);
    }
    text_printf(out, "    (void)a0;\n");
}

static void print_epilogue(const Graph *g, const Kernel *k, Text *out) {
    const BodyTarget t = hip_body(k, out->arena, "        ");
    const char *type = hip_index_type(k);
    text_printf(
        out, "    auto epilogue = [=](%s a1, %s a2, float v%u) __attribute__((always_inline)) {\n",
        type, type, k->tile.acc);
    text_printf(out, "        (void)a1, (void)a2;\n");
    for (uint32_t s = 0; s < k->n_stages; s++)
        for (uint32_t i = 0; i < k->stages[s].n; i++)
            body_print(g, k, &k->stages[s].stmts[i], &t, out);
    text_printf(out, "    };\n");
}

static void print_call(const Tile *t, const HipTile *h, const char *routine, const char *extra,
                       Text *out) {
    text_printf(out,
                "    %s<%u, %u, %sOperandA, OperandB, %lld, %lld, %lld>(a, b, m0, n0, epilogue);\n",
                routine, h->bm, h->bn, extra, (long long)t->m, (long long)t->n, (long long)t->k);
}

/* hip_print_tile - the inside of a kernel of form TILE. */
void hip_print_tile(const Graph *g, const Kernel *k, Text *out) {
    const Tile *t = &k->tile;
    HipTile h = hip_tile(k);
    const Operand a = {k->params[t->a].dtype, t->a_offset, t->a_m, t->a_k, t->m, t->a_batch,
                       t->a_batch_strides};
    const Operand b = {k->params[t->b].dtype, t->b_offset, t->b_n, t->b_k, t->n, t->b_batch,
                       t->b_batch_strides};
    assert(h.blocks <= INT32_MAX);
    print_tile_number(k, &h, out);
    print_batch_offset(t, &a, "a", t->a, out);
    print_batch_offset(t, &b, "b", t->b, out);
    print_epilogue(g, k, out);
    if (h.matrix) {
        text_printf(out, "#if defined(TC_MFMA) || defined(TC_WMMA)\n");
        print_operand_bf16(t, &h, &a, "OperandA", out);
        print_operand_bf16(t, &h, &b, "OperandB", out);
        print_call(t, &h, "tc_gemm_bf16", "", out);
        text_printf(out, "#else\n");
    }
    print_operand_f32(t, &h, &a, "OperandA", out);
    print_operand_f32(t, &h, &b, "OperandB", out);
    print_call(t, &h, "tc_gemm_f32", arena_printf(out->arena, "%u, ", h.bk), out);
    if (h.matrix) text_printf(out, "#endif\n");
}
