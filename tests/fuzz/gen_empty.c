/* gen_empty.c - random ops over nothing: each family with an extent of 0 where it may have one, and
 * what becomes of it where the result is not empty (a sum of nothing is 0, a product 1).
 *
 * An arg reduction of nothing is an error, so there is none. */
#include "gen.h"
#include "attention.h"
#include "scan.h"
#include <math.h>

static Item floats(Gen *f, uint32_t rank, const int64_t *dims) {
    return gen_fresh(f, gen_chance(f, 80) ? DT_F32 : DT_BF16, rank, dims);
}

static int64_t one_empty(Gen *f, uint32_t rank, int64_t *dims) {
    int64_t at = gen_int(f, 0, rank - 1);
    for (uint32_t i = 0; i < rank; i++) dims[i] = gen_int(f, 1, 3);
    dims[at] = 0;
    return at;
}

static void reduced(Gen *f) {
    static const OpCode ops[] = {OP_sum,     OP_prod,        OP_rmax,       OP_rmin,
                                 OP_softmax, OP_log_softmax, OP_layer_norm, OP_rms_norm,
                                 OP_gelu,    OP_gelu_tanh,   OP_silu};
    OpCode op = ops[gen_int(f, 0, sizeof ops / sizeof *ops - 1)];
    int64_t dims[MAX_RANK], axis;
    uint32_t rank = (uint32_t)gen_int(f, 1, 5);
    int64_t at = one_empty(f, rank, dims);
    Item x = floats(f, rank, dims);
    axis = op == OP_rmax || op == OP_rmin ? (at + 1) % rank
           : gen_chance(f, 60)            ? at
                                          : gen_int(f, 0, rank - 1);
    if (axis == at && (op == OP_rmax || op == OP_rmin)) return;
    AttrField fields[] = {attr_ints(A_AXES, &axis, 1), attr_float(A_EPS, 0.015625)};
    gen_keep(f, graph_emit(f->g, op, &x.v, 1, graph_attr(f->g, fields, op_info[op].n_attrs), 0), 2,
             op == OP_sum || op == OP_prod);
}

static void viewed(Gen *f) {
    int64_t dims[MAX_RANK], other[MAX_RANK], low[MAX_RANK] = {0}, interior[MAX_RANK] = {0};
    uint32_t rank = (uint32_t)gen_int(f, 1, 5);
    int64_t at = one_empty(f, rank, dims), swapped[] = {dims[rank - 1], 1, 0};
    Item x = floats(f, rank, dims), y;
    for (uint32_t i = 0; i < rank; i++) other[i] = dims[i];
    other[at] = gen_int(f, 1, 3), low[at] = gen_int(f, 0, 2);
    switch (gen_int(f, 0, 5)) {
    case 4:
        for (uint32_t i = 0; i < rank; i++) other[i] = rank - 1 - i;
        gen_keep(f, build_transpose(f->g, x.v, other), 0, true);
        return;
    case 5:
        for (uint32_t i = 0; i < rank; i++) /* backwards */
            low[i] = i == at ? 0 : dims[i] - 1, other[i] = i == at ? 1 : -1;
        gen_keep(f, build_slice(f->g, x.v, low, dims, other), 0, true);
        return;
    case 0:
        y = gen_float_like(f, x, rank, other);
        gen_keep(f, build_concat(f->g, (Value[]){x.v, y.v, x.v}, 3, at), y.mag, y.exact);
        return;
    case 1:
        gen_keep(f, build_pad(f->g, x.v, low, low, interior, 1), 1, true);
        return;
    case 2:
        gen_keep(f, build_reshape(f->g, x.v, 3, swapped), 0, true);
        return;
    default:
        y = gen_float_like(f, x, rank, other);
        for (uint32_t i = 0; i < rank; i++) other[i] = i == at ? 0 : dims[i];
        gen_keep(f, build_slice(f->g, y.v, low, other, NULL), 0, true);
        return;
    }
}

static void contracted(Gen *f) {
    int64_t m = gen_int(f, 0, 2), k = gen_int(f, 0, 2), n = gen_int(f, 0, 2),
            empty = gen_int(f, 0, 3);
    if (empty == 0) m = 0;
    if (empty == 1) k = 0;
    if (empty == 2) n = 0;
    int64_t batch = empty == 3 ? 0 : 2;
    Item a = floats(f, 3, (int64_t[]){batch, m, k}),
         b = gen_fresh(f, gen_dtype(f, a.v), 3, (int64_t[]){batch, k, n});
    AttrField fields[] = {attr_int(A_TA, 0), attr_int(A_TB, 0)};
    gen_keep(f, graph_emit(f->g, OP_dot, (Value[]){a.v, b.v}, 2, graph_attr(f->g, fields, 2), 0),
             fmin(a.mag, 2) * fmin(b.mag, 2) * 2, false);
}

static void convolved(Gen *f) {
    int64_t one[] = {1, 1}, zero[] = {0, 0}, kernel[] = {2, 2};
    AttrField fields[] = {attr_ints(A_STRIDES, one, 2), attr_ints(A_DILATIONS, one, 2),
                          attr_ints(A_LOW, zero, 2), attr_ints(A_HIGH, zero, 2),
                          attr_int(A_GROUPS, 1)};
    Item x = floats(f, 4, (int64_t[]){0, 2, 3, 4}),
         w = gen_fresh(f, gen_dtype(f, x.v), 4, (int64_t[]){3, 2, 2, 2});
    Value y = graph_emit(f->g, OP_conv, (Value[]){x.v, w.v}, 2, graph_attr(f->g, fields, 5), 0);
    if (gen_chance(f, 50))
        gen_keep(f,
                 graph_emit(f->g, OP_conv_dw, (Value[]){x.v, y}, 2, graph_attr(f->g, fields, 5),
                            graph_node(f->g, w.v)->type),
                 0, true);
    else if (gen_chance(f, 50))
        gen_keep(f,
                 graph_emit(f->g, OP_conv_dx, (Value[]){y, w.v}, 2, graph_attr(f->g, fields, 5),
                            graph_node(f->g, x.v)->type),
                 0, true);
    else
        gen_keep(f, y, 0, true);
    fields[4] = attr_ints(A_KERNEL, kernel, 2);
    AttrField window[] = {fields[0], fields[1], fields[2],
                          fields[3], fields[4], attr_float(A_VALUE, 0)};
    Value wide = graph_emit(f->g, OP_window, &x.v, 1, graph_attr(f->g, window, 6), 0);
    gen_keep(f,
             graph_emit(f->g, OP_fold, &wide, 1, graph_attr(f->g, window, 5),
                        graph_node(f->g, x.v)->type),
             0, true);
}

/* No index: nothing is gathered, and a scatter leaves the base as it is. */
static void indexed(Gen *f) {
    static const OpCode gathers[] = {OP_gather, OP_take, OP_gather_nd},
                        scatters[] = {OP_scatter, OP_put, OP_scatter_nd};
    int64_t kind = gen_int(f, 0, 2), mode = gen_int(f, SCATTER_ADD, SCATTER_MAX);
    int64_t dims[3] = {gen_int(f, 1, 3), 2, 3}, none[3][3] = {{0}, {0, 2, 3}, {0, 2}};
    static const uint32_t ranks[] = {1, 3, 2};
    Item x = floats(f, 3, dims);
    Value idx = gen_fresh(f, DT_I64, ranks[kind], none[kind]).v;
    AttrField fields[] = {attr_int(kind == 2 ? A_BATCH : A_AXIS, 0), attr_int(A_MODE, mode)};
    Value picked =
        graph_emit(f->g, gathers[kind], (Value[]){x.v, idx}, 2, graph_attr(f->g, fields, 1), 0);
    gen_keep(f, picked, 0, true);
    gen_keep(f,
             graph_emit(f->g, scatters[kind], (Value[]){x.v, idx, picked}, 3,
                        graph_attr(f->g, fields, 2), 0),
             x.mag, x.exact);
}

static void macro(Gen *f) {
    int64_t batch = gen_chance(f, 50) ? 0 : 2, s = batch ? 0 : 3;
    if (gen_chance(f, 50)) {
        Value q = floats(f, 4, (int64_t[]){batch, 2, s, 3}).v,
              k = gen_fresh(f, gen_dtype(f, q), 4, (int64_t[]){batch, 2, 2, 3}).v;
        gen_keep(
            f,
            build_attention(f->g, (Value[N_ATTENTION_OPERANDS]){q, k, k}, attention_form_plain()),
            0, true);
        return;
    }
    Item x = floats(f, 2, (int64_t[]){0, 4});
    Value labels = gen_fresh(f, DT_I64, 2, (int64_t[]){0, 1}).v;
    AttrField fields[] = {attr_int(A_AXIS, 1), attr_int(A_IGNORE, -100)};
    gen_keep(f,
             graph_emit(f->g, OP_xent, (Value[]){x.v, labels}, 2, graph_attr(f->g, fields, 2), 0),
             0, true);
    gen_keep(f, build_rope(f->g, x.v, x.v, x.v, false), 0, true);
}

/* A loop whose carry or stack has no elements, or none of whose steps runs. */
static void looped(Gen *f) {
    int64_t trips = gen_int(f, 0, 2), rows[] = {trips, gen_int(f, 0, 1) * 2};
    Item x = gen_fresh(f, DT_F32, 2, rows), first = gen_fresh(f, DT_F32, 1, rows + 1);
    Value carry = scan_hole(f->g, graph_node(f->g, first.v)->type),
          row = scan_hole(f->g, graph_node(f->g, first.v)->type);
    Value next = build_unary(f->g, OP_tanh, build_binary(f->g, OP_add, carry, row)), final, stack;
    ScanSpec spec = {.name = "none",
                     .n_carries = 1,
                     .n_scanned = 1,
                     .n_ys = 1,
                     .first = &first.v,
                     .carry = &carry,
                     .next = &next,
                     .xs = &x.v,
                     .x = &row,
                     .ys = &next,
                     .trips = trips};
    if (!scan_build(f->g, &spec, &final, &stack)) return;
    gen_keep(f, final, fmax(first.mag, 1), false);
    gen_keep(f, stack, 1, false);
}

void gen_empty(Gen *f) {
    static void (*const families[])(Gen *) = {reduced,   reduced, viewed, viewed, contracted,
                                              convolved, indexed, macro,  looped};
    families[gen_int(f, 0, sizeof families / sizeof *families - 1)](f);
}
