/* lower_scatter.c - scatter, put, scatter_nd: base, then updates in index order.
 *
 * Two lowerings of the same meaning. Predicate reduction (any target, any fusion): every element of
 * the result reduces over the updates whose indices name it, in index order; `set` finds the last
 * such update by a maximum over positions and loads it after the loop. Sequential (FORM_SCATTER,
 * CPU): a POINTS kernel writes the base; then the dimensions of the updates that no index moves are
 * parallel, and for each of them the index positions run in order and update memory: no two threads
 * meet. */
#include <assert.h>
#include "lower.h"
#include <math.h>

bool lower_is_scatter(OpCode op) { return op == OP_scatter || op == OP_put || op == OP_scatter_nd; }

static const OpCode mode_op[] = {[SCATTER_ADD] = OP_add,
                                 [SCATTER_SET] = OP_NONE,
                                 [SCATTER_MUL] = OP_mul,
                                 [SCATTER_MIN] = OP_min,
                                 [SCATTER_MAX] = OP_max};
static const OpCode mode_reduce[] = {[SCATTER_ADD] = OP_sum,
                                     [SCATTER_SET] = OP_rmax,
                                     [SCATTER_MUL] = OP_prod,
                                     [SCATTER_MIN] = OP_rmin,
                                     [SCATTER_MAX] = OP_rmax};

/* Which dims of idx and upd are walked, and where they lead in the base. */
typedef struct Scatter {
    OpCode op;
    const Type *base, *idx, *upd;
    Value vbase, vidx, vupd;
    uint32_t axis, batch, n_named; /* n_named: base dims that the indices name */
    ScatterMode mode;
} Scatter;

static Scatter scatter_shape(const Graph *g, Value v) {
    Scatter s = {.op = graph_op(g, v),
                 .vbase = graph_operand(g, v, 0),
                 .vidx = graph_operand(g, v, 1),
                 .vupd = graph_operand(g, v, 2)};
    s.base = graph_type_at(g, s.vbase), s.idx = graph_type_at(g, s.vidx),
    s.upd = graph_type_at(g, s.vupd);
    s.axis = (uint32_t)attr_i(g, v, A_AXIS, 0), s.batch = (uint32_t)attr_i(g, v, A_BATCH, 0);
    s.mode = (ScatterMode)attr_i(g, v, A_MODE, SCATTER_ADD);
    s.n_named = s.op == OP_scatter_nd ? (uint32_t)s.idx->dims[s.idx->rank - 1] : 1;
    return s;
}

/* Is dimension d of the updates an index position (its order matters)? The others map to a base
 * dimension. */
static bool is_position(const Scatter *s, uint32_t d) {
    if (s->op == OP_put) return d == s->axis;
    if (s->op == OP_scatter) return d >= s->axis && d < s->axis + s->idx->rank;
    return d >= s->batch && d + 1 < s->idx->rank;
}
static uint32_t base_dim(const Scatter *s, uint32_t d) {
    if (s->op == OP_put) return d;
    if (s->op == OP_scatter) return d < s->axis ? d : d + 1 - s->idx->rank;
    return d < s->batch ? d : d - (s->idx->rank - 1) + s->batch + s->n_named;
}
static uint32_t named_dim(const Scatter *s, uint32_t i) {
    return s->op == OP_scatter_nd ? s->batch + i : s->axis;
}

/* predicate: par the base's, red the index positions. Sequential: par the rest of the updates, red
 * the index positions. */
void lower_scatter_domain(Lower *L, Value v, bool sequential) {
    Scatter s = scatter_shape(L->g, v);
    if (!sequential)
        for (uint32_t d = 0; d < s.base->rank; d++) domain_add(L, s.base->dims[d], AXIS_PAR);
    else
        for (uint32_t d = 0; d < s.upd->rank; d++)
            if (!is_position(&s, d)) domain_add(L, s.upd->dims[d], AXIS_PAR);
    for (uint32_t d = 0; d < s.upd->rank; d++)
        if (is_position(&s, d)) domain_add(L, s.upd->dims[d], AXIS_RED);
}

/* The index of an update `at` of upd's rank, the i-th named dimension: the let of the index tensor
 * there. */
static Let scatter_index(Lower *L, const Scatter *s, const Ix *at, uint32_t i, Guard guard) {
    Ix in[MAX_RANK];
    for (uint32_t d = 0; d < s->idx->rank; d++)
        in[d] = s->op == OP_scatter ? at[s->axis + d] : at[d];
    if (s->op == OP_scatter_nd) in[s->idx->rank - 1] = ix_const(L->k, L->arena, i);
    return lower_value(L, s->vidx, in, guard);
}

/* The largest or the least number of a let. */
static double neutral(DType d, bool is_largest) {
    bool is_unsigned = d == DT_U32 || d == DT_U64;
    int bits = dtype_info[d].bytes <= 4 ? 32 : 64;
    if (dtype_info[d].cls == CLASS_FLT) return is_largest ? INFINITY : -INFINITY;
    if (is_unsigned) return is_largest ? ldexp(1, bits) - 1 : 0;
    return is_largest ? ldexp(1, bits - 1) - 1 : -ldexp(1, bits - 1);
}

void lower_scatter_terms(Lower *L, Value v) {
    Scatter s = scatter_shape(L->g, v);
    DType dtype = (DType)s.base->dtype;
    LocId loc = graph_node(L->g, v)->loc;
    Ix at[MAX_RANK], base[MAX_RANK], position = ix_const(L->k, L->arena, 0);
    Cond conds[2 * MAX_RANK];
    uint32_t n = 0, red = s.base->rank;
    int64_t positions = 1;
    for (uint32_t d = 0; d < s.base->rank; d++) base[d] = L->dom.dims[d].ix;
    for (uint32_t d = 0; d < s.upd->rank; d++) {
        at[d] = is_position(&s, d) ? L->dom.dims[red++].ix : base[base_dim(&s, d)];
        if (!is_position(&s, d)) {
            if (s.upd->dims[d] < s.base->dims[base_dim(&s, d)])
                conds[n++] = (Cond){at[d], 0, s.upd->dims[d] - 1, 1};
            continue;
        }
        position = ix_add(L->k, L->arena, ix_mul(L->k, L->arena, position, s.upd->dims[d]), at[d]);
        positions *= s.upd->dims[d];
    }
    Guard guard = 0;
    int outcome = 1;
    for (uint32_t i = 0; i < n && outcome >= 0; i++)
        guard = lower_guard(L, guard, conds[i], &outcome);
    for (uint32_t i = 0; i < s.n_named; i++) {
        uint32_t bd = named_dim(&s, i);
        Ix named =
            ix_let(L->k, L->arena, scatter_index(L, &s, at, i, guard), 0, s.base->dims[bd] - 1);
        conds[n++] =
            (Cond){ix_add(L->k, L->arena, named, ix_mul(L->k, L->arena, base[bd], -1)), 0, 0, 1};
    }
    Let result, b = lower_value(L, s.vbase, base, 0);
    if (!positions) {
        L->level = 1;
        result = b;
    } else if (s.mode == SCATTER_SET) {
        Let hit = lower_index(L, position, DT_I64), miss = lower_constant(L, -1, DT_I64);
        Let found = n ? lower_emit(L, (Stmt){.kind = ST_SELECT,
                                             .dtype = DT_I64,
                                             .args = {hit, miss},
                                             .conds = conds,
                                             .n_conds = n})
                      : hit;
        Let last = lower_accum(L, OP_rmax, DT_I64, found, 0, loc);
        L->level = 1;
        Ix p = ix_let(L->k, L->arena, last, -1, positions - 1), rest = p;
        Cond some = {p, 0, positions - 1, 1};
        for (uint32_t d = s.upd->rank; d-- > 0;)
            if (is_position(&s, d)) {
                const int64_t extent =
                    s.upd->dims[d] ? s.upd->dims[d] : 1; /* of none: never read */
                at[d] = ix_mod(L->k, L->arena, rest, extent);
                rest = ix_div(L->k, L->arena, rest, extent);
            }
        Guard inner = lower_guard(L, 0, some, &outcome);
        Let u = lower_value(L, s.vupd, at, inner);
        result = lower_emit(L, (Stmt){.kind = ST_SELECT,
                                      .dtype = dtype,
                                      .args = {u, b},
                                      .conds = &some,
                                      .n_conds = 1,
                                      .loc = loc});
    } else {
        double none = s.mode == SCATTER_ADD   ? 0
                      : s.mode == SCATTER_MUL ? 1
                                              : neutral(dtype, s.mode == SCATTER_MIN);
        Let term = lower_guarded(L, s.vupd, at, 0, conds, n, none);
        Let acc = lower_accum(L, mode_reduce[s.mode], dtype, term, 0, loc);
        L->level = 1;
        result = lower_map(L, mode_op[s.mode], dtype, b, acc, 0, loc);
    }
    L->accs[L->n_accs++] = (AccSlot){v, result};
}

void lower_scatter_updates(Lower *L, Value v) {
    Scatter s = scatter_shape(L->g, v);
    Ix at[MAX_RANK], base[MAX_RANK];
    uint32_t par = 0, red = 0;
    for (uint32_t d = 0; d < L->dom.n; d++) red += L->dom.dims[d].role == AXIS_PAR;
    for (uint32_t d = 0; d < s.upd->rank; d++) {
        at[d] = L->dom.dims[is_position(&s, d) ? red++ : par++].ix;
        if (!is_position(&s, d)) base[base_dim(&s, d)] = at[d];
    }
    for (uint32_t i = 0; i < s.n_named; i++) {
        uint32_t bd = named_dim(&s, i);
        base[bd] = ix_let(L->k, L->arena, scatter_index(L, &s, at, i, 0), 0, s.base->dims[bd] - 1);
    }
    Let u = lower_value(L, s.vupd, at, 0);
    uint32_t param = lower_param(L, L->entry->out_buffer_of[v] - 1, v, true);
    L->k->params[param].is_read = true;
    lower_emit(L, (Stmt){.kind = ST_UPDATE,
                         .dtype = (DType)s.base->dtype,
                         .op = mode_op[s.mode],
                         .args = {u},
                         .param = param,
                         .ix = lower_linear(L, s.base, base),
                         .loc = graph_node(L->g, v)->loc});
}
