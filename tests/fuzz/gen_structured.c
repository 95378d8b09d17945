/* gen_structured.c - random views, windows, gathers, scatters, reductions, contractions and macros,
 * over random geometries. */
#include "gen.h"
#include <assert.h>
#include <math.h>
#include <string.h>

static DTypeClass any_class(Gen *f) {
    return gen_chance(f, 75) ? CLASS_FLT : gen_chance(f, 60) ? CLASS_INT : CLASS_BOOL;
}

static Type type_of(const Gen *f, Value v) { return *graph_type_at(f->g, v); }

/* ---------------------------------------------------------------- views */

static Value view_reshape(Gen *f, Value v, const Type *t) {
    int64_t dims[MAX_RANK], rest = type_elems(t);
    uint32_t rank = 0;
    while (rest > 1 && rank < 3) {
        int64_t d = gen_int(f, 1, rest < 6 ? rest : 6);
        if (rest % d) continue;
        dims[rank++] = d;
        rest /= d;
    }
    if (rest > 1 || gen_chance(f, 40)) dims[rank++] = rest;
    return build_reshape(f->g, v, rank, dims);
}

static Value view_transpose(Gen *f, Value v, const Type *t) {
    int64_t perm[MAX_RANK];
    for (uint32_t i = 0; i < t->rank; i++) perm[i] = i;
    for (uint32_t i = t->rank; i > 1; i--) {
        int64_t j = gen_int(f, 0, i - 1), keep = perm[j];
        perm[j] = perm[i - 1];
        perm[i - 1] = keep;
    }
    return build_transpose(f->g, v, perm);
}

static Value view_expand(Gen *f, Value v, const Type *t) {
    int64_t dims[MAX_RANK];
    uint32_t lead = t->rank < f->max_rank ? (uint32_t)gen_int(f, 0, 1) : 0;
    if (lead) dims[0] = gen_int(f, 1, 3);
    for (uint32_t i = 0; i < t->rank; i++)
        dims[lead + i] = t->dims[i] == 1 ? gen_int(f, 1, 4) : t->dims[i];
    return build_expand(f->g, v, lead + t->rank, dims);
}

static Value view_slice(Gen *f, Value v, const Type *t) {
    int64_t start[MAX_RANK], extent[MAX_RANK], step[MAX_RANK];
    for (uint32_t i = 0; i < t->rank; i++) {
        step[i] = gen_chance(f, 60) ? 1 : gen_int(f, 1, 3) * (gen_chance(f, 50) ? 1 : -1);
        start[i] = gen_chance(f, 40) && step[i] > 0 ? 0 : gen_int(f, 0, t->dims[i] - 1);
        int64_t room = step[i] > 0 ? (t->dims[i] - 1 - start[i]) / step[i] : start[i] / -step[i];
        extent[i] = gen_int(f, 1, room + 1);
    }
    return build_slice(f->g, v, start, extent, step);
}

static Value view_pad(Gen *f, Value v, const Type *t) {
    int64_t low[MAX_RANK] = {0}, high[MAX_RANK] = {0}, interior[MAX_RANK] = {0};
    for (uint32_t i = 0; i < t->rank; i++) {
        if (gen_chance(f, 50)) continue;
        low[i] = gen_int(f, t->dims[i] > 2 ? -1 : 0, 2);
        high[i] = gen_int(f, t->dims[i] > 2 ? -1 : 0, 2);
        interior[i] = gen_chance(f, 25) ? gen_int(f, 1, 2) : 0;
    }
    return build_pad(f->g, v, low, high, interior, gen_chance(f, 60) ? 0 : 1);
}

static Value view_concat(Gen *f, Value v, const Type *t, double *mag, bool *exact) {
    Value parts[4];
    uint32_t n = (uint32_t)gen_int(f, 2, 4);
    int64_t axis = gen_int(f, 0, t->rank - 1);
    parts[0] = v;
    for (uint32_t i = 1; i < n; i++) {
        Type u = *t;
        u.dims[axis] = gen_int(f, 1, 3);
        Item x = gen_chance(f, 20) || type_elems(&u) > FUZZ_MAX_ELEMS
                     ? (Item){v, *mag, *exact}
                     : gen_float_like(f, (Item){v, 0, false}, u.rank, u.dims);
        parts[i] = x.v;
        *mag = fmax(*mag, x.mag);
        *exact = *exact && x.exact;
    }
    return build_concat(f->g, parts, n, axis);
}

void gen_view(Gen *f) {
    Item x = gen_pick(f, any_class(f), 1, f->max_rank);
    Type t = type_of(f, x.v);
    Value v = x.v;
    switch (gen_int(f, 0, 5)) {
    case 0:
        v = view_reshape(f, x.v, &t);
        break;
    case 1:
        v = view_transpose(f, x.v, &t);
        break;
    case 2:
        v = view_expand(f, x.v, &t);
        break;
    case 3:
        v = view_slice(f, x.v, &t);
        break;
    case 4:
        v = view_pad(f, x.v, &t);
        break;
    default:
        v = view_concat(f, x.v, &t, &x.mag, &x.exact);
        break;
    }
    gen_keep(f, v, fmax(x.mag, 1), x.exact);
}

/* ---------------------------------------------------------------- windows and convolutions */

typedef struct Geometry {
    uint32_t n;
    int64_t in[3], kernel[3], strides[3], dilations[3], low[3], high[3];
} Geometry;

static Geometry random_geometry(Gen *f, uint32_t n) {
    Geometry geo = {.n = n};
    for (uint32_t i = 0; i < n; i++) {
        geo.kernel[i] = gen_int(f, 1, n == 3 ? 2 : 3);
        geo.strides[i] = gen_chance(f, 60) ? 1 : gen_int(f, 1, 3);
        geo.dilations[i] = gen_chance(f, n == 3 ? 90 : 70) ? 1 : 2;
        geo.low[i] = gen_int(f, gen_chance(f, 10) ? -1 : 0, 2);
        geo.high[i] = gen_int(f, gen_chance(f, 10) ? -1 : 0, 2);
        int64_t reach = (geo.kernel[i] - 1) * geo.dilations[i] + 1 - geo.low[i] - geo.high[i];
        geo.in[i] = (reach > 2 ? reach : 2) + gen_int(f, 0, n == 3 ? 1 : 3);
    }
    return geo;
}

static int64_t elems_of(uint32_t rank, const int64_t *dims) {
    int64_t n = 1;
    for (uint32_t i = 0; i < rank; i++) n *= dims[i];
    return n;
}

static double kernel_size(const Geometry *geo) {
    int64_t size = 1;
    for (uint32_t i = 0; i < geo->n; i++) size *= geo->kernel[i];
    return (double)size;
}

static uint32_t geometry_fields(const Geometry *geo, AttrField *fields) {
    fields[0] = attr_ints(A_STRIDES, geo->strides, geo->n);
    fields[1] = attr_ints(A_DILATIONS, geo->dilations, geo->n);
    fields[2] = attr_ints(A_LOW, geo->low, geo->n);
    fields[3] = attr_ints(A_HIGH, geo->high, geo->n);
    return 4;
}

void gen_window(Gen *f) {
    Geometry geo = random_geometry(f, (uint32_t)gen_int(f, 1, f->max_rank > 4 ? 3 : 2));
    AttrField fields[6];
    uint32_t n = geometry_fields(&geo, fields);
    int64_t dims[4] = {gen_int(f, 1, 2), geo.in[0], geo.in[1], geo.in[2]};
    fields[n++] = attr_ints(A_KERNEL, geo.kernel, geo.n);
    AttrId fold = graph_attr(f->g, fields, n);
    fields[n++] = attr_float(A_VALUE, gen_chance(f, 70) ? 0 : -2);
    if (elems_of(geo.n + 1, dims) > FUZZ_MAX_ELEMS) return;
    Item x = gen_float_like(f, gen_pick(f, CLASS_FLT, 0, 4), geo.n + 1, dims);
    TypeId whole = graph_node(f->g, x.v)->type;
    Value wide = graph_emit(f->g, OP_window, &x.v, 1, graph_attr(f->g, fields, n), 0);
    gen_keep(f, wide, fmax(x.mag, 2), x.exact);
    if (gen_chance(f, 40)) {
        Type t = type_of(f, wide);
        Item y = type_elems(&t) <= FUZZ_MAX_ELEMS ? gen_float_like(f, x, t.rank, t.dims)
                                                  : (Item){wide, x.mag, false};
        gen_keep(f, graph_emit(f->g, OP_fold, &y.v, 1, fold, whole), y.mag * kernel_size(&geo),
                 false);
    } else if (gen_chance(f, 50)) {
        int64_t axes[3] = {geo.n + 1, geo.n + 2, geo.n + 3};
        gen_keep(f, build_reduce(f->g, gen_chance(f, 50) ? OP_rmax : OP_sum, wide, axes, geo.n),
                 fmax(x.mag, 2) * 27, false);
    }
}

/* Finite: whether 0 of the padding times an infinite weight is NaN is up to who computes it. */
static Item operand(Gen *f, Item like, uint32_t rank, const int64_t *dims) {
    return gen_tame(f, gen_finite(f, gen_float_like(f, like, rank, dims)), 4);
}

static void conv(Gen *f) {
    Geometry geo = random_geometry(f, (uint32_t)gen_int(f, 1, f->max_rank > 4 ? 3 : 2));
    AttrField fields[5];
    uint32_t n = geometry_fields(&geo, fields), rank = geo.n + 2;
    int64_t groups = gen_chance(f, 60) ? 1 : 2, in = groups * gen_int(f, 1, 3),
            out = groups * gen_int(f, 1, 3);
    fields[n++] = attr_int(A_GROUPS, groups);
    AttrId attr = graph_attr(f->g, fields, n);
    int64_t x_dims[5] = {gen_int(f, 1, 2), in, geo.in[0], geo.in[1], geo.in[2]},
            w_dims[5] = {out, in / groups, geo.kernel[0], geo.kernel[1], geo.kernel[2]};
    if (elems_of(rank, x_dims) > FUZZ_MAX_ELEMS || elems_of(rank, w_dims) > FUZZ_MAX_ELEMS) return;
    Item x = operand(f, gen_pick(f, CLASS_FLT, 0, 4), rank, x_dims),
         w = operand(f, x, rank, w_dims);
    double terms = (double)(in / groups) * kernel_size(&geo);
    Value y = graph_emit(f->g, OP_conv, (Value[]){x.v, w.v}, 2, attr, 0);
    Type t = type_of(f, y);
    if (type_elems(&t) > FUZZ_MAX_ELEMS || gen_chance(f, 40)) {
        gen_keep(f, y, x.mag * w.mag * terms, false);
        return;
    }
    Item dy = operand(f, x, rank, t.dims);
    bool is_dx = gen_chance(f, 50);
    Value operands[2] = {is_dx ? dy.v : x.v, is_dx ? w.v : dy.v};
    gen_keep(f,
             graph_emit(f->g, is_dx ? OP_conv_dx : OP_conv_dw, operands, 2, attr,
                        graph_node(f->g, is_dx ? x.v : w.v)->type),
             dy.mag * 200, false);
}

static void dot(Gen *f) {
    static const int64_t extents[] = {1, 2, 3, 4, 5, 8, 9, 16, 17};
    bool ta = gen_chance(f, 30), tb = gen_chance(f, 30);
    int64_t m = extents[gen_int(f, 0, 8)], k = extents[gen_int(f, 0, 8)],
            n = extents[gen_int(f, 0, 8)];
    uint32_t rank = (uint32_t)gen_int(f, 2, f->in_body ? 4 : f->max_rank), at = rank - 2;
    int64_t a[MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1}, b[MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (rank > 2 && gen_chance(f, 60)) a[0] = b[0] = 2;
    a[at] = ta ? k : m, a[at + 1] = ta ? m : k, b[at] = tb ? n : k, b[at + 1] = tb ? k : n;
    Item x = gen_tame(f, gen_float_like(f, gen_pick(f, CLASS_FLT, 0, 4), rank, a), 4),
         y = gen_tame(f, gen_float_like(f, x, rank, b), 4);
    AttrField fields[] = {attr_int(A_TA, ta), attr_int(A_TB, tb)};
    gen_keep(f, graph_emit(f->g, OP_dot, (Value[]){x.v, y.v}, 2, graph_attr(f->g, fields, 2), 0),
             x.mag * y.mag * (double)k, false);
}

void gen_contract(Gen *f) {
    if (gen_chance(f, 50))
        conv(f);
    else
        dot(f);
}

/* ---------------------------------------------------------------- reductions and macros */

static uint32_t random_axes(Gen *f, uint32_t rank, int64_t *axes) {
    uint32_t n = 0;
    if (gen_chance(f, 40)) return axes[0] = rank - 1, 1;
    for (uint32_t i = 0; i < rank; i++)
        if (gen_chance(f, 50) || (i == rank - 1 && !n)) axes[n++] = i;
    return n;
}

void gen_reduce(Gen *f) {
    static const OpCode ops[] = {OP_sum, OP_sum, OP_rmax, OP_rmin, OP_prod, OP_argmax, OP_argmin};
    OpCode op = ops[gen_int(f, 0, 6)];
    Item x = gen_pick(f, gen_chance(f, 85) ? CLASS_FLT : CLASS_INT, 1, f->max_rank);
    Type t = type_of(f, x.v);
    int64_t axes[MAX_RANK];
    bool is_float = dtype_info[t.dtype].cls == CLASS_FLT;
    if (op == OP_argmax || op == OP_argmin) {
        AttrField axis = attr_int(A_AXIS, gen_int(f, 0, t.rank - 1));
        if (x.exact)
            gen_keep(f, graph_emit(f->g, op, &x.v, 1, graph_attr(f->g, &axis, 1), 0), 600, true);
        return;
    }
    uint32_t n = random_axes(f, t.rank, axes);
    double mag = x.mag, terms = (double)type_elems(&t);
    if (op == OP_sum) mag *= terms;
    if (op == OP_prod && (!is_float || terms > 64)) op = OP_rmax;
    if (op == OP_prod) {
        x = gen_tame(f, x, 1);
        mag = 1;
    }
    if (!is_float && mag > 1e6 && !f->has_specials) return;
    gen_keep(f, build_reduce(f->g, op, x.v, axes, n), mag,
             !is_float || (x.exact && (op == OP_rmax || op == OP_rmin)));
}

static void cross_entropy(Gen *f) {
    Item x = gen_pick(f, CLASS_FLT, 2, f->max_rank);
    Type t = type_of(f, x.v);
    int64_t axis = gen_chance(f, 50) ? 1 : t.rank - 1, classes = t.dims[axis];
    t.dims[axis] = 1;
    Value labels = gen_indices(f, t.rank, t.dims, classes);
    AttrField fields[] = {attr_int(A_AXIS, axis), attr_int(A_IGNORE, gen_chance(f, 50) ? 0 : -100)};
    gen_keep(f,
             graph_emit(f->g, OP_xent, (Value[]){x.v, labels}, 2, graph_attr(f->g, fields, 2), 0),
             2 * x.mag + 7, false);
}

void gen_macro(Gen *f) {
    static const OpCode ops[] = {OP_softmax,   OP_log_softmax, OP_layer_norm, OP_rms_norm,
                                 OP_gelu,      OP_gelu_tanh,   OP_silu,       OP_xent,
                                 OP_attention, OP_rope};
    OpCode op = ops[gen_int(f, 0, 9)];
    int64_t axes[MAX_RANK];
    if (op == OP_attention) {
        gen_attention(f);
        return;
    }
    if (op == OP_rope) {
        gen_rope(f);
        return;
    }
    if (op == OP_xent) {
        cross_entropy(f);
        return;
    }
    Item x = gen_pick(f, CLASS_FLT, 1, f->max_rank);
    if (f->in_body && dtype_info[gen_dtype(f, x.v)].bytes < 4 &&
        (op == OP_layer_norm ||
         op == OP_rms_norm)) /* step after step, what is close is far apart */
        op = OP_softmax;
    uint32_t n = random_axes(f, type_of(f, x.v).rank, axes);
    AttrField fields[] = {attr_ints(A_AXES, axes, n), attr_float(A_EPS, 0.015625)};
    Value v = graph_emit(f->g, op, &x.v, 1, graph_attr(f->g, fields, op_info[op].n_attrs), 0);
    gen_keep(f, v, op == OP_layer_norm || op == OP_rms_norm ? 25 : 2 * x.mag + 7, false);
}

/* ---------------------------------------------------------------- gathers and scatters */

static AttrId index_attr(Gen *f, AttrKey key, int64_t at, int64_t mode) {
    AttrField fields[] = {attr_int(key, at), attr_int(A_MODE, mode)};
    return graph_attr(f->g, fields, mode < 0 ? 1 : 2);
}

/* [rows, depth] with a limit per column: columns concatenated; with batch [dims[0], rows, depth] */
static Value index_vectors(Gen *f, const Type *t, int64_t rows, int64_t batch) {
    Value columns[3];
    uint32_t most = t->rank - (uint32_t)batch, depth = (uint32_t)gen_int(f, 1, most < 3 ? most : 3);
    int64_t all = batch ? t->dims[0] * rows : rows;
    for (uint32_t i = 0; i < depth; i++)
        columns[i] = gen_indices(f, 2, (int64_t[]){all, 1}, t->dims[i + batch]);
    Value vectors = build_concat(f->g, columns, depth, 1);
    return batch ? build_reshape(f->g, vectors, 3, (int64_t[]){t->dims[0], rows, depth}) : vectors;
}

void gen_index(Gen *f) {
    static const OpCode gathers[] = {OP_gather, OP_take, OP_gather_nd},
                        scatters[] = {OP_scatter, OP_put, OP_scatter_nd};
    int64_t kind = gen_int(f, 0, 2), mode = gen_int(f, SCATTER_ADD, SCATTER_MAX), at = 0,
            dims[MAX_RANK] = {0};
    Item x = gen_pick(f, gen_chance(f, 85) ? CLASS_FLT : CLASS_INT, 1, f->max_rank);
    Type t = type_of(f, x.v);
    Value idx;
    AttrKey key = kind == 2 ? A_BATCH : A_AXIS;
    if (kind == 2) {
        at = t.rank > 1 && f->max_rank > 4 && gen_chance(f, 50);
        idx = index_vectors(f, &t, gen_int(f, 1, 4), at);
    } else {
        at = gen_int(f, 0, t.rank - 1);
        uint32_t rank =
            kind ? t.rank
                 : (uint32_t)gen_int(f, 0, t.rank < 3 || (t.rank < 7 && f->max_rank > 4) ? 2 : 1);
        for (uint32_t i = 0; i < rank; i++)
            dims[i] = kind && i != at ? gen_int(f, 1, t.dims[i]) : gen_int(f, 1, 4);
        int64_t elems = 1;
        for (uint32_t i = 0; i < rank; i++) elems *= dims[i];
        if (elems > FUZZ_MAX_ELEMS) return;
        idx = gen_indices(f, rank, dims, t.dims[at]);
    }
    Value picked =
        graph_emit(f->g, gathers[kind], (Value[]){x.v, idx}, 2, index_attr(f, key, at, -1), 0);
    Type u = type_of(f, picked);
    if (type_elems(&u) > FUZZ_MAX_ELEMS || gen_chance(f, 45)) {
        gen_keep(f, picked, x.mag, x.exact);
        return;
    }
    Item upd = gen_float_like(f, x, u.rank, u.dims);
    bool is_float = dtype_info[t.dtype].cls == CLASS_FLT,
         moves = mode == SCATTER_SET || mode == SCATTER_MIN || mode == SCATTER_MAX;
    if (mode == SCATTER_MUL) mode = is_float && upd.mag <= 1 ? mode : SCATTER_ADD;
    double mag = moves ? fmax(x.mag, upd.mag) : x.mag + upd.mag * 16;
    if (!is_float && mag > 1e6 && !f->has_specials) return;
    gen_keep(f,
             graph_emit(f->g, scatters[kind], (Value[]){x.v, idx, upd.v}, 3,
                        index_attr(f, key, at, mode), 0),
             mag, !is_float || (moves && x.exact && upd.exact));
}
