/* lower_anchor.c - anchors with an iteration domain of their own: dot, conv, conv_dx, conv_dw,
 * fold.
 *
 * Each is parallel dimensions (the result's, channels split into group and rest so that every index
 * is affine), reduction dimensions, and one term: a product of operand values at indices of both.
 * Operands are evaluated, not loaded, so prologues and views of any kind fuse; taps outside the
 * input are guarded and count as 0. */
#include <assert.h>
#include "lower.h"

typedef struct Conv { /* n c o count groups out: C = groups * c, O = groups * o; s[] spatial */
    int64_t n, g, c, o, in[3], out[3], k[3];
    const int64_t *strides, *dilations, *low;
    uint32_t rank;
} Conv;

static Conv conv_shape(const Graph *g, Value v) {
    OpCode op = graph_op(g, v);
    Value x = op == OP_conv_dx ? v : graph_operand(g, v, 0);
    Value w = op == OP_conv_dw ? v : graph_operand(g, v, 1);
    Value y = op == OP_conv      ? v
              : op == OP_conv_dx ? graph_operand(g, v, 0)
                                 : graph_operand(g, v, 1);
    const Type *tx = graph_type_at(g, x), *tw = graph_type_at(g, w), *ty = graph_type_at(g, y);
    Conv c = {.n = tx->dims[0], .g = attr_i(g, v, A_GROUPS, 1), .rank = tx->rank - 2u};
    uint32_t n;
    assert(c.rank <= 3);
    c.c = tx->dims[1] / c.g, c.o = tw->dims[0] / c.g;
    for (uint32_t s = 0; s < c.rank; s++)
        c.in[s] = tx->dims[2 + s], c.out[s] = ty->dims[2 + s], c.k[s] = tw->dims[2 + s];
    c.strides = attr_list(g, v, A_STRIDES, &n);
    c.dilations = attr_list(g, v, A_DILATIONS, &n);
    c.low = attr_list(g, v, A_LOW, &n);
    return c;
}

static void domain_add_all(Lower *L, const int64_t *extents, uint32_t n, AxisRole role) {
    for (uint32_t i = 0; i < n; i++) domain_add(L, extents[i], role);
}

/* The domains, in this order of dims:
 *   dot      par batch.. m n                red k
 *   conv     par n g o out..                red c k..
 *   conv_dx  par n g c in..                 red o k..
 *   conv_dw  par g o c k..                  red n out..
 *   fold     par the result's               red k.. */
void lower_anchor_domain(Lower *L, Value v) {
    const Graph *g = L->g;
    const Type *t = graph_type_at(g, v);
    OpCode op = graph_op(g, v);
    if (op == OP_dot) {
        domain_add_all(L, t->dims, t->rank, AXIS_PAR);
        const Type *ta = graph_type_at(g, graph_operand(g, v, 0));
        domain_add(L, ta->dims[attr_i(g, v, A_TA, 0) ? ta->rank - 2 : ta->rank - 1], AXIS_RED);
        return;
    }
    if (op == OP_fold) {
        uint32_t n;
        const int64_t *kernel = attr_list(g, v, A_KERNEL, &n);
        domain_add_all(L, t->dims, t->rank, AXIS_PAR);
        domain_add_all(L, kernel, n, AXIS_RED);
        return;
    }
    Conv c = conv_shape(g, v);
    if (op != OP_conv_dw) domain_add(L, c.n, AXIS_PAR);
    domain_add(L, c.g, AXIS_PAR);
    if (op == OP_conv_dw) {
        domain_add(L, c.o, AXIS_PAR), domain_add(L, c.c, AXIS_PAR);
        domain_add_all(L, c.k, c.rank, AXIS_PAR);
        domain_add(L, c.n, AXIS_RED);
        domain_add_all(L, c.out, c.rank, AXIS_RED);
    } else {
        domain_add(L, op == OP_conv ? c.o : c.c, AXIS_PAR);
        domain_add_all(L, op == OP_conv ? c.out : c.in, c.rank, AXIS_PAR);
        domain_add(L, op == OP_conv ? c.c : c.o, AXIS_RED);
        domain_add_all(L, c.k, c.rank, AXIS_RED);
    }
}

static Ix dim_ix(const Lower *L, uint32_t d) { return L->dom.dims[d].ix; }
static Ix grouped(Lower *L, Ix group, Ix rest, int64_t extent) {
    return ix_add(L->k, L->arena, ix_mul(L->k, L->arena, group, extent), rest);
}
/* o * stride + k * dilation - low */
static Ix tap(Lower *L, Ix o, int64_t stride, Ix k, int64_t dilation, int64_t low) {
    Ix at = ix_add(L->k, L->arena, ix_mul(L->k, L->arena, o, stride),
                   ix_mul(L->k, L->arena, k, dilation));
    return ix_add(L->k, L->arena, at, ix_const(L->k, L->arena, -low));
}
/* i + low - k * dilation: stride times the output position that tap k of input i belongs to */
static Ix untap(Lower *L, Ix i, Ix k, int64_t dilation, int64_t low) {
    Ix at = ix_add(L->k, L->arena, i, ix_mul(L->k, L->arena, k, -dilation));
    return ix_add(L->k, L->arena, at, ix_const(L->k, L->arena, low));
}

static void anchor_accum(Lower *L, Value v, Let a, Let b) {
    LocId loc = graph_node(L->g, v)->loc;
    DType dtype = (DType)graph_type_at(L->g, v)->dtype;
    Let term = b ? lower_map(L, OP_mul, dtype, a, b, 0, loc) : a;
    L->accs[L->n_accs++] = (AccSlot){v, lower_accum(L, OP_sum, dtype, term, 0, loc)};
}

static void dot_terms(Lower *L, Value v) {
    const Graph *g = L->g;
    uint32_t r = graph_type_at(g, v)->rank;
    bool ta = attr_i(g, v, A_TA, 0) != 0, tb = attr_i(g, v, A_TB, 0) != 0;
    Ix a[MAX_RANK], b[MAX_RANK], m = dim_ix(L, r - 2), n = dim_ix(L, r - 1), k = dim_ix(L, r);
    for (uint32_t d = 0; d + 2 < r; d++) a[d] = b[d] = dim_ix(L, d);
    a[r - 2] = ta ? k : m, a[r - 1] = ta ? m : k;
    b[r - 2] = tb ? n : k, b[r - 1] = tb ? k : n;
    anchor_accum(L, v, lower_value(L, graph_operand(g, v, 0), a, 0),
                 lower_value(L, graph_operand(g, v, 1), b, 0));
}

static void fold_terms(Lower *L, Value v) {
    const Type *t = graph_type_at(L->g, v);
    Value a = graph_operand(L->g, v, 0);
    uint32_t n, lead;
    attr_list(L->g, v, A_KERNEL, &n);
    const int64_t *strides = attr_list(L->g, v, A_STRIDES, &n),
                  *dilations = attr_list(L->g, v, A_DILATIONS, &n);
    const int64_t *low = attr_list(L->g, v, A_LOW, &n);
    lead = t->rank - n;
    Ix in[MAX_RANK];
    Cond conds[MAX_RANK];
    for (uint32_t d = 0; d < lead; d++) in[d] = dim_ix(L, d);
    for (uint32_t s = 0; s < n; s++) {
        Ix k = dim_ix(L, t->rank + s), at = untap(L, dim_ix(L, lead + s), k, dilations[s], low[s]);
        conds[s] =
            (Cond){at, 0, (graph_type_at(L->g, a)->dims[lead + s] - 1) * strides[s], strides[s]};
        in[lead + s] = ix_div(L->k, L->arena, at, strides[s]);
        in[lead + n + s] = k;
    }
    anchor_accum(L, v, lower_guarded(L, a, in, 0, conds, n, 0), 0);
}

static void conv_terms(Lower *L, Value v) {
    const Graph *g = L->g;
    OpCode op = graph_op(g, v);
    Conv c = conv_shape(g, v);
    Ix x[MAX_RANK], w[MAX_RANK], y[MAX_RANK];
    Cond conds[3];
    /* dims: conv n g o s.. | c k..; conv_dx n g c s.. | o k..; conv_dw g o c k.. | n s.. */
    bool dw = op == OP_conv_dw;
    uint32_t red = dw ? 3 + c.rank : 3 + c.rank;
    Ix n = dim_ix(L, dw ? red : 0), group = dim_ix(L, dw ? 0 : 1);
    Ix o = dw ? dim_ix(L, 1) : op == OP_conv ? dim_ix(L, 2) : dim_ix(L, red);
    Ix ch = dw ? dim_ix(L, 2) : op == OP_conv ? dim_ix(L, red) : dim_ix(L, 2);
    x[0] = y[0] = n, x[1] = grouped(L, group, ch, c.c), y[1] = w[0] = grouped(L, group, o, c.o),
    w[1] = ch;
    for (uint32_t s = 0; s < c.rank; s++) {
        Ix k = w[2 + s] = dim_ix(L, dw ? 3 + s : red + 1 + s);
        if (op == OP_conv_dx) {
            Ix at = untap(L, dim_ix(L, 3 + s), k, c.dilations[s], c.low[s]);
            conds[s] = (Cond){at, 0, (c.out[s] - 1) * c.strides[s], c.strides[s]};
            y[2 + s] = ix_div(L->k, L->arena, at, c.strides[s]);
        } else {
            y[2 + s] = dim_ix(L, dw ? red + 1 + s : 3 + s);
            x[2 + s] = tap(L, y[2 + s], c.strides[s], k, c.dilations[s], c.low[s]);
            conds[s] = (Cond){x[2 + s], 0, c.in[s] - 1, 1};
        }
    }
    Value first = graph_operand(g, v, 0), second = graph_operand(g, v, 1);
    Let a = lower_guarded(L, first, op == OP_conv_dx ? y : x, 0, conds, c.rank, 0);
    anchor_accum(L, v, a, lower_value(L, second, dw ? y : w, 0));
}

void lower_anchor_terms(Lower *L, Value v) {
    switch (graph_op(L->g, v)) {
    case OP_dot:
        dot_terms(L, v);
        return;
    case OP_fold:
        fold_terms(L, v);
        return;
    case OP_conv:
    case OP_conv_dx:
    case OP_conv_dw:
        conv_terms(L, v);
        return;
    default:
        assert(0 && "no anchor with a domain of its own");
    }
}

void lower_anchor_index(Lower *L, Value v, Ix *idx) {
    const Type *t = graph_type_at(L->g, v);
    OpCode op = graph_op(L->g, v);
    if (op == OP_dot || op == OP_fold) {
        for (uint32_t d = 0; d < t->rank; d++) idx[d] = dim_ix(L, d);
        return;
    }
    Conv c = conv_shape(L->g, v);
    uint32_t at = op == OP_conv_dw ? 0 : 1;
    if (at) idx[0] = dim_ix(L, 0);
    idx[at] = grouped(L, dim_ix(L, at), dim_ix(L, at + 1), op == OP_conv_dx ? c.c : c.o);
    for (uint32_t d = at + 1; d < t->rank; d++) idx[d] = dim_ix(L, d + 1);
}

/* Where both operands are plain buffers, what a library needs to know. */
void lower_conv_tile(Lower *L, Value v) {
    Conv c = conv_shape(L->g, v);
    Value a = graph_operand(L->g, v, 0), b = graph_operand(L->g, v, 1);
    if (!L->entry->buffer_of[a] || !L->entry->buffer_of[b] || lower_is_member(L, a) ||
        lower_is_member(L, b))
        return;
    uint32_t n;
    const int64_t *high = attr_list(L->g, v, A_HIGH, &n);
    ConvTile *t = &L->k->conv;
    *t = (ConvTile){.op = graph_op(L->g, v),
                    .rank = (int)c.rank,
                    .n = c.n,
                    .c = c.c * c.g,
                    .o = c.o * c.g,
                    .groups = c.g};
    for (uint32_t s = 0; s < c.rank; s++) {
        t->in[s] = c.in[s], t->out[s] = c.out[s], t->k[s] = c.k[s], t->strides[s] = c.strides[s];
        t->dilations[s] = c.dilations[s], t->low[s] = c.low[s], t->high[s] = high[s];
    }
    t->x = lower_param(L, L->entry->buffer_of[a] - 1, a, false);
    t->w = lower_param(L, L->entry->buffer_of[b] - 1, b, false);
    t->acc = L->accs[0].let;
}
