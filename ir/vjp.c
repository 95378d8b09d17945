/* vjp.c - gradients of the structured ops: d loss / d operand as nodes, from dy = d loss / d
 * result.
 *
 * Every structured op's adjoint is another structured op: reshape and transpose invert, expand
 * sums, slice pads, pad slices, window folds, gather scatters (vjp_gather.c); the convolutions are
 * adjoint to each other in all three pairs. d[i] stays 0 where no gradient flows (indices,
 * integers). The caller (op_vjp) has cleared d and checked that v is a float. */
#include "op_functions.h"
#include <string.h>

static Type type_of(const Graph *g, Value v) { return *graph_type_at(g, v); }

static Value zeros_like(Graph *g, Value v) { return build_splat(g, graph_node(g, v)->type, 0); }

static Value number_like(Graph *g, Value v, double x) {
    return build_splat(g, graph_type_of(g, (DType)type_of(g, v).dtype, 0, NULL), x);
}

static Value select3(Graph *g, Value cond, Value yes, Value no) {
    return build_map(g, OP_where, (Value[]){cond, yes, no}, 3);
}

/* An attribute list of n numbers, `otherwise` where the node has none; copied, for emits move
 * nothing but the graph's lists. */
static void list_of(const Graph *g, Value v, AttrKey key, int64_t otherwise, uint32_t n,
                    int64_t *out) {
    uint32_t have = 0;
    const int64_t *list = attr_list(g, v, key, &have);
    for (uint32_t i = 0; i < n; i++) out[i] = list && i < have ? list[i] : otherwise;
}

static int64_t max0(int64_t x) { return x > 0 ? x : 0; }

/* ---------------------------------------------------------------- elementwise and views */

void vjp_cast(Graph *g, Value v, Value dy, Value *d) {
    DType dtype = (DType)type_of(g, graph_operand(g, v, 0)).dtype;
    if (dtype_info[dtype].cls == CLASS_FLT) d[0] = build_cast(g, dy, dtype);
}

void vjp_reshape(Graph *g, Value v, Value dy, Value *d) {
    Type t = type_of(g, graph_operand(g, v, 0));
    d[0] = build_reshape(g, dy, t.rank, t.dims);
}

void vjp_transpose(Graph *g, Value v, Value dy, Value *d) {
    int64_t perm[MAX_RANK], inverse[MAX_RANK] = {0};
    uint32_t rank = type_of(g, v).rank;
    list_of(g, v, A_PERM, 0, rank, perm);
    for (uint32_t i = 0; i < rank; i++) inverse[perm[i]] = i;
    d[0] = build_transpose(g, dy, inverse);
}

void vjp_expand(Graph *g, Value v, Value dy, Value *d) {
    Type t = type_of(g, graph_operand(g, v, 0));
    d[0] = build_sum_to(g, dy, &t);
}

/* Axes that are read backwards are first turned round, so that padding puts every element where it
 * was read. */
void vjp_slice(Graph *g, Value v, Value dy, Value *d) {
    Value a = graph_operand(g, v, 0);
    Type from = type_of(g, a), to = type_of(g, v);
    int64_t start[MAX_RANK], step[MAX_RANK], first[MAX_RANK] = {0}, turn[MAX_RANK];
    int64_t low[MAX_RANK], high[MAX_RANK], interior[MAX_RANK];
    bool turns = false;
    list_of(g, v, A_START, 0, to.rank, start);
    list_of(g, v, A_STEP, 1, to.rank, step);
    if (type_elems(&to) == 0) {
        d[0] = zeros_like(g, a);
        return;
    }
    for (uint32_t i = 0; i < to.rank; i++) {
        bool back = step[i] < 0;
        int64_t span = (to.dims[i] - 1) * step[i];
        turns |= back;
        turn[i] = back ? -1 : 1;
        first[i] = back ? to.dims[i] - 1 : 0;
        low[i] = back ? start[i] + span : start[i];
        high[i] = from.dims[i] - 1 - (back ? start[i] : start[i] + span);
        interior[i] = (back ? -step[i] : step[i]) - 1;
        if (interior[i] < 0) interior[i] = 0;
    }
    if (turns) dy = build_slice(g, dy, first, to.dims, turn);
    d[0] = build_pad(g, dy, low, high, interior, 0);
}

/* Negative padding cropped elements: they are padded back as zeros before the rest is picked out.
 */
void vjp_pad(Graph *g, Value v, Value dy, Value *d) {
    Value a = graph_operand(g, v, 0);
    Type t = type_of(g, a);
    int64_t low[MAX_RANK], high[MAX_RANK], step[MAX_RANK], none[MAX_RANK] = {0};
    bool crops = false;
    list_of(g, v, A_LOW, 0, t.rank, low);
    list_of(g, v, A_HIGH, 0, t.rank, high);
    list_of(g, v, A_INTERIOR, 0, t.rank, step);
    if (type_elems(&t) == 0) {
        d[0] = zeros_like(g, a);
        return;
    }
    int64_t back_low[MAX_RANK], back_high[MAX_RANK];
    for (uint32_t i = 0; i < t.rank; i++) {
        crops |= low[i] < 0 || high[i] < 0;
        back_low[i] = max0(-low[i]);
        back_high[i] = max0(-high[i]);
        low[i] = max0(low[i]);
        step[i]++;
    }
    if (crops) dy = build_pad(g, dy, back_low, back_high, none, 0);
    d[0] = build_slice(g, dy, low, t.dims, step);
}

void vjp_concat(Graph *g, Value v, Value dy, Value *d) {
    uint32_t n = graph_node(g, v)->n_operands;
    int64_t axis = attr_i(g, v, A_AXIS, 0), start[MAX_RANK] = {0};
    for (uint32_t i = 0; i < n; i++) {
        Type t = type_of(g, graph_operand(g, v, i));
        d[i] = build_slice(g, dy, start, t.dims, NULL);
        start[axis] += t.dims[axis];
    }
}

/* The geometry that window and fold share. `value`: window alone has one. */
static AttrId window_attr(Graph *g, Value v, bool with_value) {
    const AttrKey keys[] = {A_KERNEL, A_STRIDES, A_DILATIONS, A_LOW, A_HIGH};
    AttrField fields[6];
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const AttrField *f = attr_find(g, v, keys[i]);
        if (f) fields[n++] = *f;
    }
    if (with_value) fields[n++] = attr_float(A_VALUE, 0);
    return graph_attr(g, fields, n);
}

void vjp_window(Graph *g, Value v, Value dy, Value *d) {
    d[0] = graph_emit(g, OP_fold, &dy, 1, window_attr(g, v, false),
                      graph_node(g, graph_operand(g, v, 0))->type);
}

void vjp_fold(Graph *g, Value v, Value dy, Value *d) {
    d[0] = graph_emit(g, OP_window, &dy, 1, window_attr(g, v, true),
                      graph_node(g, graph_operand(g, v, 0))->type);
}

/* ---------------------------------------------------------------- reductions */

static Value expand_like(Graph *g, Value small, Value like) {
    Type t = type_of(g, like);
    return build_expand(g, small, t.rank, t.dims);
}

void vjp_sum(Graph *g, Value v, Value dy, Value *d) {
    d[0] = expand_like(g, dy, graph_operand(g, v, 0));
}

/* dy times the product of all others, right also where elements are 0: with P the product of the
 * nonzero ones, that is P / a where nothing is 0, P at the only 0, and 0 elsewhere. */
void vjp_prod(Graph *g, Value v, Value dy, Value *d) {
    Value a = graph_operand(g, v, 0);
    uint32_t n = 0;
    int64_t axes[MAX_RANK];
    const int64_t *list = attr_list(g, v, A_AXES, &n);
    memcpy(axes, list, n * sizeof *axes);
    Value zero = number_like(g, a, 0), one = number_like(g, a, 1);
    Value is_zero = build_binary(g, OP_eq, a, zero);
    Value safe = select3(g, is_zero, one, a);
    Value n_zeros =
        build_reduce(g, OP_sum, build_cast(g, is_zero, (DType)type_of(g, a).dtype), axes, n);
    Value rest = build_reduce(g, OP_prod, safe, axes, n);
    Value at_zero = select3(g, build_binary(g, OP_eq, n_zeros, one), rest, zero);
    Value elsewhere = build_binary(
        g, OP_div, select3(g, build_binary(g, OP_eq, n_zeros, zero), rest, zero), safe);
    d[0] = build_binary(g, OP_mul, dy, select3(g, is_zero, at_zero, elsewhere));
}

/* Ties share the gradient evenly, as torch.amax does. */
void vjp_extreme(Graph *g, Value v, Value dy, Value *d) {
    Value a = graph_operand(g, v, 0);
    uint32_t n = 0;
    int64_t axes[MAX_RANK];
    const int64_t *list = attr_list(g, v, A_AXES, &n);
    memcpy(axes, list, n * sizeof *axes);
    Value is_best = build_binary(g, OP_eq, a, v);
    Value n_best =
        build_reduce(g, OP_sum, build_cast(g, is_best, (DType)type_of(g, a).dtype), axes, n);
    d[0] = select3(g, is_best, build_binary(g, OP_div, dy, n_best), number_like(g, a, 0));
}

/* ---------------------------------------------------------------- contractions */

/* y[m,n] = a[m,k] b[k,n]: da[m,k] = dy b^T, db[k,n] = a^T dy; a transposed operand takes the
 * transposed equation. */
void vjp_dot(Graph *g, Value v, Value dy, Value *d) {
    Value a = graph_operand(g, v, 0), b = graph_operand(g, v, 1);
    bool ta = attr_i(g, v, A_TA, 0), tb = attr_i(g, v, A_TB, 0);
    d[0] = ta ? build_dot(g, b, dy, tb, true) : build_dot(g, dy, b, false, !tb);
    d[1] = tb ? build_dot(g, dy, a, true, ta) : build_dot(g, a, dy, !ta, false);
}

static Value conv_like(Graph *g, Value v, OpCode op, Value a, Value b, Value result) {
    return graph_emit(g, op, (Value[]){a, b}, 2, graph_node(g, v)->attr,
                      graph_node(g, result)->type);
}

void vjp_conv(Graph *g, Value v, Value dy, Value *d) {
    Value x = graph_operand(g, v, 0), w = graph_operand(g, v, 1);
    d[0] = conv_like(g, v, OP_conv_dx, dy, w, x);
    d[1] = conv_like(g, v, OP_conv_dw, x, dy, w);
}

/* conv_dx(u, w) is linear in both; its adjoint in u is the convolution itself. */
void vjp_conv_dx(Graph *g, Value v, Value dy, Value *d) {
    Value u = graph_operand(g, v, 0), w = graph_operand(g, v, 1);
    d[0] = conv_like(g, v, OP_conv, dy, w, u);
    d[1] = conv_like(g, v, OP_conv_dw, dy, u, w);
}

void vjp_conv_dw(Graph *g, Value v, Value dy, Value *d) {
    Value x = graph_operand(g, v, 0), u = graph_operand(g, v, 1);
    d[0] = conv_like(g, v, OP_conv_dx, u, dy, x);
    d[1] = conv_like(g, v, OP_conv, x, dy, u);
}

/* ---------------------------------------------------------------- gathers and scatters */

static AttrId index_attr(Graph *g, Value v, AttrKey key, int64_t mode) {
    AttrField fields[] = {attr_int(key, attr_i(g, v, key, 0)), attr_int(A_MODE, mode)};
    return graph_attr(g, fields, mode < 0 ? 1 : 2);
}

static Value scatter_like(Graph *g, Value v, OpCode op, AttrKey key, ScatterMode mode, Value base,
                          Value idx, Value upd) {
    return graph_emit(g, op, (Value[]){base, idx, upd}, 3, index_attr(g, v, key, mode), 0);
}

static void gather_vjp(Graph *g, Value v, Value dy, Value *d, OpCode scatter, AttrKey key) {
    Value base = zeros_like(g, graph_operand(g, v, 0));
    d[0] = scatter_like(g, v, scatter, key, SCATTER_ADD, base, graph_operand(g, v, 1), dy);
}

void vjp_take(Graph *g, Value v, Value dy, Value *d) { gather_vjp(g, v, dy, d, OP_put, A_AXIS); }
void vjp_gather_nd(Graph *g, Value v, Value dy, Value *d) {
    gather_vjp(g, v, dy, d, OP_scatter_nd, A_BATCH);
}

static Value gather_like(Graph *g, Value v, OpCode op, AttrKey key, Value a, Value idx) {
    return graph_emit(g, op, (Value[]){a, idx}, 2, index_attr(g, v, key, -1), 0);
}

/* The result's extremes: base and updates that equal it share its gradient evenly
 * (torch.scatter_reduce, amax). */
static void scatter_extreme_vjp(Graph *g, Value v, Value dy, Value *d, OpCode op, OpCode gather,
                                AttrKey key) {
    Value base = graph_operand(g, v, 0), idx = graph_operand(g, v, 1), upd = graph_operand(g, v, 2);
    DType dtype = (DType)type_of(g, base).dtype;
    Value zero = number_like(g, base, 0);
    Value base_hit = build_binary(g, OP_eq, base, v);
    Value upd_hit = build_binary(g, OP_eq, upd, gather_like(g, v, gather, key, v, idx));
    Value n_hits = scatter_like(g, v, op, key, SCATTER_ADD, build_cast(g, base_hit, dtype), idx,
                                build_cast(g, upd_hit, dtype));
    Value share = build_binary(g, OP_div, dy, n_hits);
    d[0] = select3(g, base_hit, share, zero);
    d[2] = select3(g, upd_hit, gather_like(g, v, gather, key, share, idx), zero);
}

/* dy times the product of all other factors, right also where some are 0 (torch.scatter_reduce,
 * prod): at the only 0 of its place the product without it, elsewhere the result over the factor.
 */
static void scatter_product_vjp(Graph *g, Value v, Value dy, Value *d, OpCode op, OpCode gather,
                                AttrKey key) {
    Value base = graph_operand(g, v, 0), idx = graph_operand(g, v, 1), upd = graph_operand(g, v, 2);
    Value zero = number_like(g, upd, 0), one = number_like(g, upd, 1);
    Value is_zero = build_binary(g, OP_eq, upd, zero);
    Value n_zeros = scatter_like(g, v, op, key, SCATTER_ADD, zeros_like(g, base), idx,
                                 build_cast(g, is_zero, (DType)type_of(g, upd).dtype));
    Value is_only = build_binary(g, OP_eq, gather_like(g, v, gather, key, n_zeros, idx), one);
    is_only = build_binary(g, OP_and, is_only, is_zero);
    Value without =
        scatter_like(g, v, op, key, SCATTER_MUL, base, idx, select3(g, is_only, one, upd));
    Value at_zero = gather_like(g, v, gather, key, build_binary(g, OP_mul, dy, without), idx);
    Value elsewhere =
        build_binary(g, OP_div, gather_like(g, v, gather, key, build_binary(g, OP_mul, dy, v), idx),
                     select3(g, is_zero, one, upd));
    d[0] = scatter_like(g, v, op, key, SCATTER_MUL, dy, idx, upd);
    d[2] = select3(g, is_only, at_zero, elsewhere);
}

/* SET: where indices repeat, each update gets the gradient, as in torch. */
static void scatter_vjp(Graph *g, Value v, Value dy, Value *d, OpCode op, OpCode gather,
                        AttrKey key) {
    Value idx = graph_operand(g, v, 1), upd = graph_operand(g, v, 2);
    switch ((ScatterMode)attr_i(g, v, A_MODE, SCATTER_ADD)) {
    case SCATTER_ADD:
        d[0] = dy;
        d[2] = gather_like(g, v, gather, key, dy, idx);
        break;
    case SCATTER_SET:
        d[0] = scatter_like(g, v, op, key, SCATTER_SET, dy, idx, zeros_like(g, upd));
        d[2] = gather_like(g, v, gather, key, dy, idx);
        break;
    case SCATTER_MUL:
        scatter_product_vjp(g, v, dy, d, op, gather, key);
        break;
    case SCATTER_MIN:
    case SCATTER_MAX:
        scatter_extreme_vjp(g, v, dy, d, op, gather, key);
        break;
    }
}

void vjp_scatter(Graph *g, Value v, Value dy, Value *d) {
    scatter_vjp(g, v, dy, d, OP_scatter, OP_gather, A_AXIS);
}
void vjp_put(Graph *g, Value v, Value dy, Value *d) {
    scatter_vjp(g, v, dy, d, OP_put, OP_take, A_AXIS);
}
void vjp_scatter_nd(Graph *g, Value v, Value dy, Value *d) {
    scatter_vjp(g, v, dy, d, OP_scatter_nd, OP_gather_nd, A_BATCH);
}

/* ---------------------------------------------------------------- sums of gradients */

/* A scatter that adds onto zeros may as well add onto the other term: no zeros are written, nothing
 * is added twice. */
static Value scatter_onto(Graph *g, Value base, Value s) {
    OpCode op = graph_op(g, s);
    double fill;
    if (op != OP_scatter && op != OP_put && op != OP_scatter_nd) return 0;
    if (attr_i(g, s, A_MODE, SCATTER_ADD) != SCATTER_ADD ||
        graph_node(g, s)->type != graph_node(g, base)->type)
        return 0;
    if (!const_splat(g, graph_operand(g, s, 0), &fill) || fill != 0) return 0;
    Value operands[] = {base, graph_operand(g, s, 1), graph_operand(g, s, 2)};
    return graph_emit(g, op, operands, 3, graph_node(g, s)->attr, graph_node(g, s)->type);
}

Value gradient_add(Graph *g, Value a, Value b) {
    if (!a || !b) return a ? a : b;
    Value onto = scatter_onto(g, a, b);
    if (!onto) onto = scatter_onto(g, b, a);
    return onto ? onto : build_binary(g, OP_add, a, b);
}
