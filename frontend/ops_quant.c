/* ops_quant.c - quantised arithmetic in core ops: QuantizeLinear, DequantizeLinear (per tensor, per
 * axis, in blocks), DynamicQuantizeLinear, MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv.
 *
 * Integers less their zero points are i32, products of them are exact; scales are applied in f32.
 * A quantised initializer is a frozen state (params.c): its bytes stay as they are in the file, and
 * DequantizeLinear is computed in the step. Gradients flow around it, to the other factor of a
 * product; through rounding flows none. */
#include "import.h"
#include <math.h>
#include <string.h>

static bool is_float(const ImportNode *n, Value v) {
    return dtype_info[node_type(n, v)->dtype].cls == CLASS_FLT;
}

/* ---------------------------------------------------------------- scales and zero points */

/* [blocks] along an axis, each repeated `block` times, the last cut to what is left. */
static Value repeated(ImportNode *n, Value v, int64_t axis, int64_t block, int64_t extent) {
    Type t = *node_type(n, v);
    int64_t outer = 1, inner = 1, start[MAX_RANK] = {0};
    for (int64_t i = 0; i < axis; i++) outer *= t.dims[i];
    for (int64_t i = axis + 1; i < t.rank; i++) inner *= t.dims[i];
    v = build_reshape(n->g, v, 4, (int64_t[]){outer, t.dims[axis], 1, inner});
    v = build_expand(n->g, v, 4, (int64_t[]){outer, t.dims[axis], block, inner});
    t.dims[axis] *= block;
    v = build_reshape(n->g, v, t.rank, t.dims);
    t.dims[axis] = extent;
    return v ? build_slice(n->g, v, start, t.dims, NULL) : 0;
}

/* Scales are no parameters. */
static void scales_freeze(ImportNode *n, uint32_t first, uint32_t second, uint32_t third) {
    node_buffer(n, node_in(n, first));
    node_buffer(n, node_in(n, second));
    node_buffer(n, node_in(n, third));
}

/* A scale or zero point of a tensor of type x as it broadcasts: one number, one per index of the
 * axis, or one per block of it. 0 after a diagnostic. */
static Value spread(ImportNode *n, Value v, const Type *x) {
    Type t = *node_type(n, v);
    int64_t axis, dims[MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1}, block = node_int(n, "block_size", 0);
    if (type_elems(&t) == 1) return build_reshape(n->g, v, 0, NULL);
    if (!node_axis(n, node_int(n, "axis", 1), x->rank, &axis)) return 0;
    bool is_blocked = t.rank == x->rank && t.rank > 0 && (block > 0 || t.rank > 1);
    if (is_blocked && !block && t.dims[axis])
        block = (x->dims[axis] + t.dims[axis] - 1) / t.dims[axis];
    bool fits = is_blocked ? block > 0 && t.dims[axis] * block >= x->dims[axis] &&
                                 (t.dims[axis] - 1) * block < x->dims[axis]
                           : t.rank == 1 && t.dims[0] == x->dims[axis];
    for (int64_t i = 0; is_blocked && fits && i < t.rank; i++)
        fits = i == axis || t.dims[i] == x->dims[i];
    if (!fits) {
        node_fail_shapes(n, "a scale of %s for %s", type_text(n->g, &t), type_text(n->g, x));
        return 0;
    }
    if (is_blocked) return repeated(n, v, axis, block, x->dims[axis]);
    dims[axis] = t.dims[0];
    return build_reshape(n->g, v, x->rank, dims);
}

/* The integers less their zero point as i32; floats of eight bits as f32. */
static Value centred(ImportNode *n, Value v, Value zero) {
    DType wide = is_float(n, v) ? DT_F32 : DT_I32;
    v = build_cast(n->g, v, wide);
    return zero ? build_binary(n->g, OP_sub, v, build_cast(n->g, zero, wide)) : v;
}

static double lowest(DType d) {
    switch (d) {
    case DT_I16:
        return -32768;
    case DT_I8:
        return -128;
    case DT_I4:
        return -8;
    case DT_I2:
        return -2;
    default:
        return 0;
    }
}

static double highest(DType d) {
    switch (d) {
    case DT_U16:
        return 65535;
    case DT_I16:
        return 32767;
    case DT_U8:
        return 255;
    case DT_I8:
        return 127;
    case DT_U4:
        return 15;
    case DT_I4:
        return 7;
    case DT_U2:
        return 3;
    default:
        return 1;
    }
}

/* What is already divided by its scale, as a quantised type: rounded to even, shifted, saturated.
 */
static Value quantised(ImportNode *n, Value v, Value zero, DType to) {
    if (dtype_info[to].cls == CLASS_FLT) {
        uint8_t code = to == DT_F8E4M3FN ? 0x7e : to == DT_F8E5M2 ? 0x7b : 0x7f;
        double most = elem_load(to, &code);
        RuleBind f8[] = {
            {"a", v}, {"l", node_number(n, DT_F32, -most)}, {"h", node_number(n, DT_F32, most)}};
        if (to != DT_F4E2M1 && node_int(n, "saturate", 1)) v = node_rule(n, "(clip a l h)", f8, 3);
        return build_cast(n->g, v, to);
    }
    RuleBind binds[] = {{"a", v},
                        {"z", zero ? build_cast(n->g, zero, DT_F32) : node_number(n, DT_F32, 0)},
                        {"l", node_number(n, DT_F32, lowest(to))},
                        {"h", node_number(n, DT_F32, highest(to))}};
    return build_cast(n->g, node_rule(n, "(clip (add (round a) z) l h)", binds, 4), to);
}

/* ---------------------------------------------------------------- QuantizeLinear, DequantizeLinear
 */

void import_quantize_linear(ImportNode *n) {
    scales_freeze(n, 1, 1, 1);
    Type t = *node_type(n, n->in[0]);
    Value zero = node_in(n, 2), scale = spread(n, n->in[1], &t);
    int64_t code = node_int(n, "output_dtype", 0);
    DType to = zero ? (DType)node_type(n, zero)->dtype : code ? dtype_from_onnx((int)code) : DT_U8;
    if (zero) zero = spread(n, zero, &t);
    if (!scale || (node_in(n, 2) && !zero)) return;
    if (to == DT_NONE || (dtype_info[to].cls == CLASS_INT && dtype_info[to].bytes > 2)) {
        node_fail(n, "output_dtype", "is no quantised type");
        return;
    }
    Value ratio = build_binary(n->g, OP_div, build_cast(n->g, n->in[0], DT_F32),
                               build_cast(n->g, scale, DT_F32));
    n->out[0] = quantised(n, ratio, zero, to);
}

void import_dequantize_linear(ImportNode *n) {
    scales_freeze(n, 1, 1, 1);
    Type t = *node_type(n, n->in[0]);
    Value zero = node_in(n, 2), scale = spread(n, n->in[1], &t);
    int64_t code = node_int(n, "output_dtype", 0);
    if (zero) zero = spread(n, zero, &t);
    if (!scale || (node_in(n, 2) && !zero)) return;
    DType own = (DType)node_type(n, scale)->dtype, to = code ? dtype_from_onnx((int)code) : own;
    if (own == DT_F8E8M0 && !code) to = DT_F32;
    Value v = build_cast(n->g, centred(n, n->in[0], zero), DT_F32);
    v = build_binary(n->g, OP_mul, v, build_cast(n->g, scale, DT_F32));
    n->out[0] = v && to ? build_cast(n->g, v, to) : 0;
}

/* Onto 0 to 255 by the range of the data, which 0 is part of. */
void import_dynamic_quantize_linear(ImportNode *n) {
    Type t = *node_type(n, n->in[0]);
    int64_t axes[MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};
    Value high =
        build_squeeze(n->g, build_reduce(n->g, OP_rmax, n->in[0], axes, t.rank), axes, t.rank);
    Value low =
        build_squeeze(n->g, build_reduce(n->g, OP_rmin, n->in[0], axes, t.rank), axes, t.rank);
    RuleBind range[] = {{"h", high}, {"l", low}};
    Value scale =
        node_rule(n, "(let s (div (sub (max h 0) (min l 0)) 255) (where (eq s 0) 1 s))", range, 2);
    RuleBind binds[] = {{"l", low}, {"s", scale}};
    Value zero = node_rule(n, "(clip (round (sub 0 (div (min l 0) s))) 0 255)", binds, 2);
    zero = build_cast(n->g, zero, DT_U8);
    n->out[0] = quantised(n, build_binary(n->g, OP_div, n->in[0], scale), zero, DT_U8);
    if (n->n_out > 1) n->out[1] = scale;
    if (n->n_out > 2) n->out[2] = zero;
}

/* ---------------------------------------------------------------- products */

/* Per row of the first factor: [M] -> [M,1]. Per column of the second, and one number, broadcast as
 * they are. */
static Value by_row(ImportNode *n, Value v) {
    if (!v) return 0;
    Type t = *node_type(n, v);
    if (type_elems(&t) == 1) return build_reshape(n->g, v, 0, NULL);
    return t.rank == 1 ? build_reshape(n->g, v, 2, (int64_t[]){t.dims[0], 1}) : v;
}

static Value by_column(ImportNode *n, Value v) {
    return v && type_elems(node_type(n, v)) == 1 ? build_reshape(n->g, v, 0, NULL) : v;
}

void import_matmul_integer(ImportNode *n) {
    Value a = centred(n, n->in[0], by_row(n, node_in(n, 2)));
    Value b = centred(n, n->in[1], by_column(n, node_in(n, 3)));
    n->out[0] = a && b ? build_dot(n->g, a, b, false, false) : 0;
}

/* acc times the factors' scales over that of the result, quantised. */
static Value requantised(ImportNode *n, Value acc, Value a_scale, Value b_scale, Value y_scale,
                         Value y_zero) {
    if (!acc) return 0;
    RuleBind binds[] = {{"a", build_cast(n->g, acc, DT_F32)},
                        {"s", build_cast(n->g, a_scale, DT_F32)},
                        {"t", build_cast(n->g, b_scale, DT_F32)},
                        {"y", build_cast(n->g, by_column(n, y_scale), DT_F32)}};
    return quantised(n, node_rule(n, "(mul a (div (mul s t) y))", binds, 4), by_column(n, y_zero),
                     (DType)node_type(n, y_zero)->dtype);
}

void import_qlinear_matmul(ImportNode *n) {
    scales_freeze(n, 1, 4, 6);
    Value a = centred(n, n->in[0], by_row(n, n->in[2])),
          b = centred(n, n->in[3], by_column(n, n->in[5]));
    Value acc = a && b ? build_dot(n->g, a, b, false, false) : 0;
    n->out[0] =
        requantised(n, acc, by_row(n, n->in[1]), by_column(n, n->in[4]), n->in[6], n->in[7]);
}

/* Per output channel of weights of the given rank, or one number. */
static Value by_channel(ImportNode *n, Value v, uint32_t rank, uint32_t axis) {
    int64_t dims[MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (!v) return 0;
    dims[axis] = type_elems(node_type(n, v));
    return dims[axis] == 1 ? build_reshape(n->g, v, 0, NULL) : build_reshape(n->g, v, rank, dims);
}

static Value integer_conv(ImportNode *n, Value x, Value x_zero, Value w, Value w_zero) {
    uint32_t rank = node_type(n, w)->rank;
    Value in[2] = {centred(n, x, by_column(n, x_zero)),
                   centred(n, w, by_channel(n, w_zero, rank, 0))};
    Value out[1] = {0};
    ImportNode conv = *n;
    conv.in = in, conv.n_in = 2;
    conv.out = out, conv.n_out = 1;
    if (in[0] && in[1]) import_conv(&conv);
    return out[0];
}

void import_conv_integer(ImportNode *n) {
    n->out[0] = integer_conv(n, n->in[0], node_in(n, 2), n->in[1], node_in(n, 3));
}

void import_qlinear_conv(ImportNode *n) {
    scales_freeze(n, 1, 4, 6);
    Value acc = integer_conv(n, n->in[0], n->in[2], n->in[3], n->in[5]), bias = node_in(n, 8);
    uint32_t rank = node_type(n, n->in[3])->rank;
    if (bias && acc) acc = build_binary(n->g, OP_add, acc, by_channel(n, bias, rank, 1));
    n->out[0] = requantised(n, acc, by_column(n, n->in[1]), by_channel(n, n->in[4], rank, 1),
                            n->in[6], n->in[7]);
}
