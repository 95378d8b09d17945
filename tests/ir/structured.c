/* structured.c - tests that the gradient of every structured op agrees with finite differences, on
 * random geometries.
 *
 * One builder per op makes a random node from a seed; a row of op.def that has a gradient and no
 * builder here fails. */
#include "check.h"
#include "scan.h"
#include <criterion/criterion.h>
#include <string.h>

typedef Value Maker(Check *);

static uint32_t random_dims(Check *c, int64_t *dims, int64_t min_rank, int64_t max_rank,
                            int64_t max_dim) {
    uint32_t rank = (uint32_t)check_int(c, min_rank, max_rank);
    for (uint32_t i = 0; i < rank; i++) dims[i] = check_int(c, 1, max_dim);
    return rank;
}

static Value random_floats(Check *c, int64_t *dims, uint32_t *rank) {
    *rank = random_dims(c, dims, 1, 4, 3);
    return check_floats(c, *rank, dims);
}

static Value make_cast(Check *c) {
    Value x = check_floats(c, 1, (int64_t[]){3});
    return build_cast(c->g, build_cast(c->g, x, DT_F32), DT_F64);
}

static Value make_reshape(Check *c) {
    return build_reshape(c->g, check_floats(c, 3, (int64_t[]){2, 3, 2}), 2, (int64_t[]){4, 3});
}

static void random_perm(Check *c, int64_t *perm, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) perm[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        int64_t j = check_int(c, 0, i - 1), t = perm[j];
        perm[j] = perm[i - 1];
        perm[i - 1] = t;
    }
}

static Value make_transpose(Check *c) {
    int64_t dims[MAX_RANK], perm[MAX_RANK];
    uint32_t rank = random_dims(c, dims, 2, 4, 3);
    random_perm(c, perm, rank);
    Value x = check_floats(c, rank, dims);
    return graph_emit(c->g, OP_transpose, &x, 1,
                      graph_attr(c->g, (AttrField[]){attr_ints(A_PERM, perm, rank)}, 1), 0);
}

static Value make_expand(Check *c) {
    int64_t dims[MAX_RANK], wide[MAX_RANK];
    uint32_t rank;
    Value x = random_floats(c, dims, &rank);
    for (uint32_t i = 0; i < rank; i++) wide[i] = dims[i] == 1 ? check_int(c, 1, 3) : dims[i];
    return build_expand(c->g, x, rank, wide);
}

static Value make_slice(Check *c) {
    int64_t dims[MAX_RANK], start[MAX_RANK], extent[MAX_RANK], step[MAX_RANK];
    uint32_t rank = random_dims(c, dims, 1, 3, 5);
    for (uint32_t i = 0; i < rank; i++) {
        step[i] = check_int(c, 1, 3) * (check_int(c, 0, 1) ? 1 : -1);
        start[i] = check_int(c, 0, dims[i] - 1);
        int64_t room = step[i] > 0 ? (dims[i] - 1 - start[i]) / step[i] : start[i] / -step[i];
        extent[i] = check_int(c, 1, room + 1);
    }
    return build_slice(c->g, check_floats(c, rank, dims), start, extent, step);
}

static Value make_pad(Check *c) {
    int64_t dims[MAX_RANK], low[MAX_RANK], high[MAX_RANK], interior[MAX_RANK];
    uint32_t rank = random_dims(c, dims, 1, 3, 4);
    for (uint32_t i = 0; i < rank; i++) {
        interior[i] = check_int(c, 0, 2);
        low[i] = check_int(c, dims[i] > 2 ? -1 : 0, 2);
        high[i] = check_int(c, dims[i] > 2 ? -1 : 0, 2);
    }
    return build_pad(c->g, check_floats(c, rank, dims), low, high, interior, 0.5);
}

static Value make_concat(Check *c) {
    Value x[3];
    int64_t axis = check_int(c, 0, 1), dims[2] = {2, 2};
    for (int i = 0; i < 3; i++) {
        dims[axis] = check_int(c, 1, 3);
        x[i] = check_floats(c, 2, dims);
    }
    return build_concat(c->g, x, 3, axis);
}

/* ---------------------------------------------------------------- windows and convolutions */

typedef struct Geometry {
    uint32_t n;
    int64_t in[3], kernel[3], strides[3], dilations[3], low[3], high[3];
} Geometry;

static Geometry random_geometry(Check *c) {
    Geometry geo = {.n = (uint32_t)check_int(c, 1, 3)};
    for (uint32_t i = 0; i < geo.n; i++) {
        geo.kernel[i] = check_int(c, 1, geo.n == 3 ? 2 : 3);
        geo.strides[i] = check_int(c, 1, 3);
        geo.dilations[i] = check_int(c, 1, 2);
        geo.low[i] = check_int(c, -1, 2);
        geo.high[i] = check_int(c, -1, 2);
        int64_t reach = (geo.kernel[i] - 1) * geo.dilations[i] + 1 - geo.low[i] - geo.high[i];
        geo.in[i] = (reach > 2 ? reach : 2) + check_int(c, 0, geo.n == 1 ? 3 : 1);
    }
    return geo;
}

static uint32_t geometry_fields(const Geometry *geo, AttrField *f) {
    f[0] = attr_ints(A_STRIDES, geo->strides, geo->n);
    f[1] = attr_ints(A_DILATIONS, geo->dilations, geo->n);
    f[2] = attr_ints(A_LOW, geo->low, geo->n);
    f[3] = attr_ints(A_HIGH, geo->high, geo->n);
    return 4;
}

static Value make_window(Check *c) {
    Geometry geo = random_geometry(c);
    AttrField f[6];
    uint32_t n = geometry_fields(&geo, f);
    int64_t dims[4] = {2, geo.in[0], geo.in[1], geo.in[2]};
    f[n++] = attr_ints(A_KERNEL, geo.kernel, geo.n);
    f[n++] = attr_float(A_VALUE, -0.25);
    Value x = check_floats(c, geo.n + 1, dims);
    return graph_emit(c->g, OP_window, &x, 1, graph_attr(c->g, f, n), 0);
}

static Value make_fold(Check *c) {
    Geometry geo = random_geometry(c);
    AttrField f[5];
    uint32_t n = geometry_fields(&geo, f);
    int64_t dims[4] = {2, geo.in[0], geo.in[1], geo.in[2]};
    f[n++] = attr_ints(A_KERNEL, geo.kernel, geo.n);
    AttrId attr = graph_attr(c->g, f, n);
    TypeId whole = graph_type_of(c->g, DT_F64, geo.n + 1, dims);
    Value zeros = build_splat(c->g, whole, 0);
    Type wide = *graph_type_at(c->g, graph_emit(c->g, OP_window, &zeros, 1, attr, 0));
    Value x = check_floats(c, wide.rank, wide.dims);
    return graph_emit(c->g, OP_fold, &x, 1, attr, whole);
}

/* The types of x, w and y of a random convolution. */
static AttrId conv_types(Check *c, Type *x, Type *w, Type *y) {
    Geometry geo = random_geometry(c);
    AttrField f[5];
    uint32_t n = geometry_fields(&geo, f);
    int64_t groups = check_int(c, 1, 2);
    f[n++] = attr_int(A_GROUPS, groups);
    AttrId attr = graph_attr(c->g, f, n);
    *x = (Type){
        .dtype = DT_F64,
        .rank = (uint8_t)(geo.n + 2),
        .dims = {check_int(c, 1, 2), groups * check_int(c, 1, 2), geo.in[0], geo.in[1], geo.in[2]}};
    *w = (Type){.dtype = DT_F64,
                .rank = x->rank,
                .dims = {groups * check_int(c, 1, 2), x->dims[1] / groups, geo.kernel[0],
                         geo.kernel[1], geo.kernel[2]}};
    for (uint32_t i = x->rank; i < MAX_RANK; i++) x->dims[i] = w->dims[i] = 0;
    Value operands[] = {build_splat(c->g, graph_type(c->g, *x), 0),
                        build_splat(c->g, graph_type(c->g, *w), 0)};
    *y = *graph_type_at(c->g, graph_emit(c->g, OP_conv, operands, 2, attr, 0));
    return attr;
}

static Value conv_of(Check *c, OpCode op, const Type *a, const Type *b, AttrId attr, Type result) {
    Value operands[] = {check_floats(c, a->rank, a->dims), check_floats(c, b->rank, b->dims)};
    return graph_emit(c->g, op, operands, 2, attr, graph_type(c->g, result));
}

static Value make_conv(Check *c) {
    Type x, w, y;
    AttrId attr = conv_types(c, &x, &w, &y);
    return conv_of(c, OP_conv, &x, &w, attr, y);
}

static Value make_conv_dx(Check *c) {
    Type x, w, y;
    AttrId attr = conv_types(c, &x, &w, &y);
    return conv_of(c, OP_conv_dx, &y, &w, attr, x);
}

static Value make_conv_dw(Check *c) {
    Type x, w, y;
    AttrId attr = conv_types(c, &x, &w, &y);
    return conv_of(c, OP_conv_dw, &x, &y, attr, w);
}

static Value make_dot(Check *c) {
    bool ta = check_int(c, 0, 1), tb = check_int(c, 0, 1);
    int64_t m = check_int(c, 1, 3), k = check_int(c, 1, 3), n = check_int(c, 1, 3),
            batch = check_int(c, 1, 2);
    uint32_t rank = (uint32_t)check_int(c, 2, 3);
    int64_t a[3] = {batch, ta ? k : m, ta ? m : k}, b[3] = {batch, tb ? n : k, tb ? k : n};
    Value operands[] = {check_floats(c, rank, a + 3 - rank), check_floats(c, rank, b + 3 - rank)};
    AttrField f[] = {attr_int(A_TA, ta), attr_int(A_TB, tb)};
    return graph_emit(c->g, OP_dot, operands, 2, graph_attr(c->g, f, 2), 0);
}

/* ---------------------------------------------------------------- reductions */

static Value make_reduction(Check *c, OpCode op) {
    int64_t dims[MAX_RANK], axes[MAX_RANK];
    uint32_t rank, n = 0;
    Value x = random_floats(c, dims, &rank);
    for (uint32_t i = 0; i < rank; i++)
        if (check_int(c, 0, 1) || (i == rank - 1 && !n)) axes[n++] = i;
    return build_reduce(c->g, op, x, axes, n);
}

static Value make_sum(Check *c) { return make_reduction(c, OP_sum); }
static Value make_prod(Check *c) { return make_reduction(c, OP_prod); }
static Value make_rmax(Check *c) { return make_reduction(c, OP_rmax); }
static Value make_rmin(Check *c) { return make_reduction(c, OP_rmin); }

/* ---------------------------------------------------------------- gathers and scatters */

static AttrId axis_mode(Check *c, AttrKey key, int64_t at, int64_t mode) {
    AttrField f[] = {attr_int(key, at), attr_int(A_MODE, mode)};
    return graph_attr(c->g, f, mode < 0 ? 1 : 2);
}

static Value make_gather(Check *c) {
    int64_t dims[] = {2, 3, 2}, axis = check_int(c, 0, 2), idx[] = {2, 2};
    Value a = check_floats(c, 3, dims),
          i = check_indices(c, (uint32_t)check_int(c, 0, 2), idx, dims[axis]);
    return graph_emit(c->g, OP_gather, (Value[]){a, i}, 2, axis_mode(c, A_AXIS, axis, -1), 0);
}

static Value make_take(Check *c) {
    int64_t dims[] = {2, 3, 2}, idx[] = {2, 2, 1}, axis = check_int(c, 0, 2);
    Value a = check_floats(c, 3, dims), i = check_indices(c, 3, idx, dims[axis]);
    return graph_emit(c->g, OP_take, (Value[]){a, i}, 2, axis_mode(c, A_AXIS, axis, -1), 0);
}

/* indices [batch.., 2, depth]: a constant grid, for each column has its own limit */
static Value index_vectors(Check *c, const int64_t *dims, uint32_t batch, uint32_t depth,
                           bool distinct) {
    int64_t elements[2 * 2 * 3], idx[] = {2, 2, depth};
    for (uint32_t i = 0; i < 4 * depth; i++) {
        elements[i] = check_int(c, 0, dims[batch + i % depth] - 1);
        if (distinct && i % depth == 0) elements[i] = (int64_t)(i / depth % 2) % dims[batch];
    }
    uint32_t skip = batch ? 0 : 1;
    return build_const(c->g, graph_type_of(c->g, DT_I64, 3 - skip, idx + skip), elements);
}

static Value make_gather_nd(Check *c) {
    int64_t dims[] = {2, 3, 2, 2};
    uint32_t batch = (uint32_t)check_int(c, 0, 1), depth = (uint32_t)check_int(c, 1, 3);
    Value a = check_floats(c, 4, dims), i = index_vectors(c, dims, batch, depth, false);
    return graph_emit(c->g, OP_gather_nd, (Value[]){a, i}, 2, axis_mode(c, A_BATCH, batch, -1), 0);
}

static int64_t random_mode(Check *c) { return check_int(c, SCATTER_ADD, SCATTER_MAX); }

static Value scatter_of(Check *c, OpCode op, OpCode gather, Value base, Value idx, AttrKey key,
                        int64_t at, int64_t mode) {
    Value picked = graph_emit(c->g, gather, (Value[]){base, idx}, 2, axis_mode(c, key, at, -1), 0);
    Type t = *graph_type_at(c->g, picked);
    Value upd = check_floats(c, t.rank, t.dims);
    return graph_emit(c->g, op, (Value[]){base, idx, upd}, 3, axis_mode(c, key, at, mode), 0);
}

/* SET with equal indices keeps the last and gives all the gradient, so there the indices are
 * distinct. */
static Value make_scatter(Check *c) {
    int64_t dims[] = {2, 3, 2}, mode = random_mode(c), distinct[] = {2, 0};
    Value base = check_floats(c, 3, dims);
    Value idx = mode == SCATTER_SET ? build_ints(c->g, distinct, 2)
                                    : check_indices(c, 1, (int64_t[]){4}, 3);
    return scatter_of(c, OP_scatter, OP_gather, base, idx, A_AXIS, 1, mode);
}

static Value make_put(Check *c) {
    int64_t dims[] = {2, 3, 2}, mode = random_mode(c), axis = 1;
    Value base = check_floats(c, 3, dims);
    Value idx = check_indices(c, 3, (int64_t[]){2, mode == SCATTER_SET ? 1 : 3, 2}, dims[axis]);
    return scatter_of(c, OP_put, OP_take, base, idx, A_AXIS, axis, mode);
}

static Value make_scatter_nd(Check *c) {
    int64_t dims[] = {2, 3, 2, 2}, mode = random_mode(c);
    uint32_t batch = (uint32_t)check_int(c, 0, 1), depth = (uint32_t)check_int(c, 1, 3);
    Value base = check_floats(c, 4, dims),
          idx = index_vectors(c, dims, batch, depth, mode == SCATTER_SET);
    return scatter_of(c, OP_scatter_nd, OP_gather_nd, base, idx, A_BATCH, batch, mode);
}

/* h' = tanh(h r + x w) over a few steps, one way or the other; the last h or all of them */
static Value make_scan(Check *c) {
    Graph *g = c->g;
    int64_t n = check_int(c, 1, 3), m = check_int(c, 1, 3), trips = check_int(c, 1, 3);
    Value first = check_floats(c, 2, (int64_t[]){2, n}), final, stack;
    Value xs = check_floats(c, 3, (int64_t[]){trips, 2, m});
    Value h = scan_hole(g, graph_node(g, first)->type),
          x = scan_hole(g, graph_type_of(g, DT_F64, 2, (int64_t[]){2, m}));
    Value r = build_dot(g, h, check_floats(c, 2, (int64_t[]){n, n}), false, false),
          w = build_dot(g, x, check_floats(c, 2, (int64_t[]){m, n}), false, false);
    Value next = build_unary(g, OP_tanh, build_binary(g, OP_add, r, w));
    ScanSpec s = {.name = "cell",
                  .n_carries = 1,
                  .first = &first,
                  .carry = &h,
                  .next = &next,
                  .n_scanned = 1,
                  .xs = &xs,
                  .x = &x,
                  .n_ys = 1,
                  .ys = &next,
                  .trips = trips,
                  .is_reverse = check_int(c, 0, 1) != 0};
    scan_build(g, &s, &final, &stack);
    return check_int(c, 0, 1) ? final : stack;
}

static Maker *const makers[N_OPS] = {
    [OP_cast] = make_cast,
    [OP_reshape] = make_reshape,
    [OP_transpose] = make_transpose,
    [OP_expand] = make_expand,
    [OP_slice] = make_slice,
    [OP_pad] = make_pad,
    [OP_concat] = make_concat,
    [OP_window] = make_window,
    [OP_fold] = make_fold,
    [OP_sum] = make_sum,
    [OP_prod] = make_prod,
    [OP_rmax] = make_rmax,
    [OP_rmin] = make_rmin,
    [OP_dot] = make_dot,
    [OP_conv] = make_conv,
    [OP_conv_dx] = make_conv_dx,
    [OP_conv_dw] = make_conv_dw,
    [OP_gather] = make_gather,
    [OP_take] = make_take,
    [OP_gather_nd] = make_gather_nd,
    [OP_scatter] = make_scatter,
    [OP_put] = make_put,
    [OP_scatter_nd] = make_scatter_nd,
    [OP_scan] = make_scan,
};

Test(structured, every_gradient_agrees_with_finite_differences) {
    for (int op = 1; op < N_OPS; op++) {
        if (!op_info[op].vjp) continue;
        cr_assert(makers[op], "%s has a gradient and no test", op_info[op].name);
        for (uint64_t seed = 0; seed < 12; seed++) {
            Check *c = check_new((uint64_t)op * 100 + seed);
            Value y = makers[op](c);
            if (!y) diag_print(c->g, stderr);
            cr_assert(y != 0, "%s does not type (seed %d)", op_info[op].name, (int)seed);
            check_gradient(c, y, op_info[op].name);
            check_free(c);
        }
    }
}

Test(structured, prod_has_a_gradient_at_zeros) {
    for (int zeros = 1; zeros <= 2; zeros++) {
        Check *c = check_new((uint64_t)zeros);
        Value x = check_floats(c, 2, (int64_t[]){2, 3});
        for (int i = 0; i < zeros; i++) c->tensors[0].u.f[i] = 0;
        check_gradient(c, build_reduce(c->g, OP_prod, x, (int64_t[]){1}, 1), "prod");
        check_free(c);
    }
}

Test(structured, ties_of_a_maximum_share_the_gradient) {
    Check *c = check_new(1);
    Value d, x = check_floats(c, 1, (int64_t[]){4});
    memcpy(c->tensors[0].u.f, (double[]){1, 3, 3, 2}, 4 * sizeof(double));
    Value y = build_reduce(c->g, OP_rmax, x, (int64_t[]){0}, 1);
    check_backward(c->g, y, build_splat(c->g, graph_node(c->g, y)->type, 8), &x, 1, &d);
    Tensor t = check_eval(c, d);
    cr_assert(memcmp(t.u.f, (double[]){0, 4, 4, 0}, 4 * sizeof(double)) == 0);
    check_free(c);
}
