/* ops_contrib_quant.c - com.microsoft operators over weights of a few bits (MatMulNBits), over
 * channels that stand last (NhwcConv), and BiasDropout.
 *
 * The packed bytes of MatMulNBits are a frozen state (quantised.c): they stay as they are in the
 * file and are unpacked in the step. Gradients flow to the other factor, and to the bias. */
#include "import.h"

/* ---------------------------------------------------------------- weights of a few bits */

/* bytes u8[.., n] -> i32[.., n * 8 / bits], the lowest bits first */
static Value unpacked(ImportNode *n, Value bytes, int64_t bits) {
    Type t = *node_type(n, bytes);
    Value wide = build_cast(n->g, bytes, DT_I32), part[8];
    if (bits == 8) return wide;
    uint32_t parts = (uint32_t)(8 / bits), last = t.rank;
    int64_t dims[MAX_RANK];
    for (uint32_t i = 0; i < last; i++) dims[i] = t.dims[i];
    dims[last] = 1;
    for (uint32_t i = 0; i < parts; i++) {
        RuleBind binds[] = {{"b", wide},
                            {"s", node_number(n, DT_I32, (double)(i * (uint32_t)bits))},
                            {"m", node_number(n, DT_I32, (double)((1 << bits) - 1))}};
        part[i] =
            build_reshape(n->g, node_rule(n, "(bitand (shr b s) m)", binds, 3), last + 1, dims);
    }
    dims[last - 1] *= parts;
    return build_reshape(n->g, build_concat(n->g, part, parts, (int64_t)last), last, dims);
}

typedef struct Packed {
    int64_t rows, columns, blocks, block, bits; /* N, K, blocks of a row, elements of a block */
} Packed;

static bool packed_read(ImportNode *n, Packed *p) {
    *p = (Packed){.rows = node_int(n, "N", 0),
                  .columns = node_int(n, "K", 0),
                  .block = node_int(n, "block_size", 32),
                  .bits = node_int(n, "bits", 4)};
    if (node_int(n, "weight_prepacked", 0)) {
        node_fail(n, "weight_prepacked", "the layout of one processor is not supported");
        return false;
    }
    if (p->bits != 2 && p->bits != 4 && p->bits != 8) {
        node_fail(n, "bits", "%lld: 2, 4 and 8 are supported", (long long)p->bits);
        return false;
    }
    if (p->rows < 1 || p->columns < 1 || p->block < 8 || p->block > 1 << 20 ||
        p->columns > INT32_MAX || p->rows > INT32_MAX) {
        node_fail(n, "block_size", "N, K and block_size do not describe a weight");
        return false;
    }
    p->blocks = (p->columns + p->block - 1) / p->block;
    if (node_type(n, n->in[1])->dtype != DT_U8 ||
        type_elems(node_type(n, n->in[1])) != p->rows * p->blocks * (p->block * p->bits / 8) ||
        type_elems(node_type(n, n->in[2])) != p->rows * p->blocks) {
        node_fail_shapes(n, "weights %s and scales %s do not hold %lld x %lld in blocks of %lld",
                         type_text(n->g, node_type(n, n->in[1])),
                         type_text(n->g, node_type(n, n->in[2])), (long long)p->rows,
                         (long long)p->columns, (long long)p->block);
        return false;
    }
    return true;
}

/* As the scales' type, [N, blocks]; packed by rows, or numbers; without: the middle. */
static Value zero_points(ImportNode *n, const Packed *p, DType type) {
    Value zero = node_in(n, 3);
    if (!zero) return node_number(n, type, (double)(1 << (p->bits - 1)));
    if (node_type(n, zero)->dtype == DT_U8) {
        int64_t bytes = (p->blocks * p->bits + 7) / 8, start[2] = {0};
        if (type_elems(node_type(n, zero)) != p->rows * bytes) {
            node_fail_shapes(n, "zero points %s", type_text(n->g, node_type(n, zero)));
            return 0;
        }
        zero = unpacked(n, build_reshape(n->g, zero, 2, (int64_t[]){p->rows, bytes}), p->bits);
        zero = build_slice(n->g, zero, start, (int64_t[]){p->rows, p->blocks}, NULL);
    }
    if (type_elems(node_type(n, zero)) != p->rows * p->blocks) {
        node_fail_shapes(n, "zero points %s", type_text(n->g, node_type(n, zero)));
        return 0;
    }
    return build_cast(n->g, build_reshape(n->g, zero, 2, (int64_t[]){p->rows, p->blocks}), type);
}

/* What a block has, [N, blocks], for each column, [N, K]: by block, or by g_idx[K]. */
static Value by_column(ImportNode *n, const Packed *p, Value v, Value group) {
    int64_t start[2] = {0};
    if (!v || node_type(n, v)->rank == 0) return v;
    if (group) return build_gather(n->g, v, group, 1);
    v = build_reshape(n->g, v, 3, (int64_t[]){p->rows, p->blocks, 1});
    v = build_expand(n->g, v, 3, (int64_t[]){p->rows, p->blocks, p->block});
    v = build_reshape(n->g, v, 2, (int64_t[]){p->rows, p->blocks * p->block});
    return build_slice(n->g, v, start, (int64_t[]){p->rows, p->columns}, NULL);
}

/* A[.., K], B[N, blocks, bytes], scales, zero points, g_idx, bias[N] */
void import_matmul_nbits(ImportNode *n) {
    Packed p;
    if (!packed_read(n, &p)) return;
    for (uint32_t i = 1; i < 4; i++) node_buffer(n, node_in(n, i));
    DType type = (DType)node_type(n, n->in[2])->dtype;
    int64_t rows[] = {p.rows, p.blocks * (p.block * p.bits / 8)}, start[2] = {0};
    Value group = node_in(n, 4), zero = zero_points(n, &p, type);
    if (group && type_elems(node_type(n, group)) == p.columns)
        group = node_index(n, build_reshape(n->g, group, 1, &p.columns), p.blocks);
    else if (group)
        group = 0;
    if (!zero || (node_in(n, 4) && !group)) {
        if (zero) node_fail_shapes(n, "g_idx has one index per column");
        return;
    }
    Value w = unpacked(n, build_reshape(n->g, n->in[1], 2, rows), p.bits);
    w = build_slice(n->g, w, start, (int64_t[]){p.rows, p.columns}, NULL);
    Value scale = build_reshape(n->g, n->in[2], 2, (int64_t[]){p.rows, p.blocks});
    RuleBind binds[] = {{"w", build_cast(n->g, w, type)},
                        {"z", by_column(n, &p, zero, group)},
                        {"s", by_column(n, &p, scale, group)}};
    w = build_cast(n->g, node_rule(n, "(mul (sub w z) s)", binds, 3),
                   (DType)node_type(n, n->in[0])->dtype);
    Value y = build_dot(n->g, n->in[0], w, false, true);
    n->out[0] = y && node_in(n, 5) ? build_binary(n->g, OP_add, y, n->in[5]) : y;
}

/* ---------------------------------------------------------------- channels last, dropout */

/* x[N, H, W, C], the weights as Conv has them */
void import_nhwc_conv(ImportNode *n) {
    Value in[3] = {n->in[0], n->in[1], node_in(n, 2)}, out[1] = {0};
    if (node_type(n, in[0])->rank != 4) {
        node_fail_shapes(n, "x[N, H, W, C] is wanted");
        return;
    }
    in[0] = build_transpose(n->g, in[0], (int64_t[]){0, 3, 1, 2});
    ImportNode conv = *n;
    conv.in = in, conv.n_in = in[2] ? 3 : 2;
    conv.out = out, conv.n_out = 1;
    import_conv(&conv);
    if (out[0]) n->out[0] = build_transpose(n->g, out[0], (int64_t[]){0, 2, 3, 1});
}

/* data, bias, residual, ratio, training_mode: dropout(data + bias) + residual */
void import_bias_dropout(ImportNode *n) {
    Value in[3] = {build_binary(n->g, OP_add, n->in[0], n->in[1]), node_in(n, 3), node_in(n, 4)};
    ImportNode dropout = *n;
    if (!in[0]) return;
    dropout.in = in, dropout.n_in = 3;
    dropout.opset = 13; /* whose Dropout it contains */
    import_dropout(&dropout);
    if (n->out[0] && node_in(n, 2)) n->out[0] = build_binary(n->g, OP_add, n->out[0], n->in[2]);
}
