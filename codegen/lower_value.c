/* lower_value.c - one value at an index vector, as a let: stored values are loaded, everything else
 * is computed where it is used.
 *
 * Recursion over the graph, memoised per (value, index vector, guard, stage). Reductions and
 * contractions are found as the accumulators that the driver registered before. A load whose index
 * is proven inside its buffer drops its guard: it is safe anywhere, so it can be shared and
 * hoisted. */
#include <assert.h>
#include <string.h>
#include "lower.h"

enum { MAX_CONDS = 128 };

static bool memo_find(const Lower *L, const MemoSlot *key, Let *let) {
    for (uint32_t i = L->n_memo; i-- > 0;) {
        const MemoSlot *m = &L->memo[i];
        if (m->v == key->v && m->guard == key->guard &&
            (m->stage == 0 || m->stage == L->level + 1) &&
            memcmp(m->ix, key->ix, sizeof key->ix) == 0) {
            *let = m->let;
            return true;
        }
    }
    return false;
}

static void memo_add(Lower *L, MemoSlot key, Let let) {
    if (L->n_memo == L->cap_memo) {
        uint32_t cap = L->cap_memo ? 2 * L->cap_memo : 64;
        L->memo = arena_grow(L->arena, L->memo, L->n_memo * sizeof key, cap * sizeof key);
        L->cap_memo = cap;
    }
    key.let = let, key.stage = L->let_stage[let];
    L->memo[L->n_memo++] = key;
}

static Let lower_load(Lower *L, Value v, const Ix *idx, Guard guard) {
    const Type *t = graph_type_at(L->g, v);
    Cond conds[MAX_CONDS];
    Stmt s = {.kind = ST_LOAD,
              .dtype = (DType)t->dtype,
              .ix = lower_linear(L, t, idx),
              .conds = conds,
              .loc = graph_node(L->g, v)->loc};
    const IxNode *n = &L->k->ix[s.ix];
    bool is_safe = n->lo >= 0 && n->hi < type_elems(t);
    if (!is_safe) s.n_conds = lower_guard_conds(L, guard, 0, conds);
    assert(s.n_conds <= MAX_CONDS);
    s.param = lower_param(L, L->entry->buffer_of[v] - 1, v, false);
    return lower_emit(L, s);
}

static Let lower_scalar(Lower *L, const char *name, DType dtype, LocId loc) {
    return lower_emit(L, (Stmt){.kind = ST_SCALAR,
                                .dtype = dtype,
                                .param = lower_scalar_param(L, name, dtype),
                                .loc = loc});
}

/* An integer type that does not hold the last index: it wraps. */
static Let lower_iota(Lower *L, Value v, const Type *t, const Ix *idx) {
    const int64_t axis = attr_i(L->g, v, A_AXIS, 0);
    if (dtype_info[t->dtype].cls != CLASS_INT || dtype_info[t->dtype].bytes > 2)
        return lower_index(L, idx[axis], (DType)t->dtype);
    const Let wide = lower_index(L, idx[axis], DT_I32);
    return lower_emit(L, (Stmt){.kind = ST_CAST,
                                .dtype = (DType)t->dtype,
                                .args = {wide},
                                .loc = graph_node(L->g, v)->loc});
}

static Let lower_leaf(Lower *L, Value v, const Ix *idx) {
    const Node *n = graph_node(L->g, v);
    const Type *t = graph_type_at(L->g, v);
    switch ((OpCode)n->op) {
    case OP_scalar:
        return lower_scalar(L, attr_s(L->g, v, A_NAME), (DType)t->dtype, n->loc);
    case OP_iota:
        return lower_iota(L, v, t, idx);
    case OP_random: {
        Stmt s = {.kind = ST_RANDOM,
                  .dtype = (DType)t->dtype,
                  .ix = lower_linear(L, t, idx),
                  .param = lower_constant_param(L, attr_i(L->g, v, A_STREAM, 0)),
                  .value = (double)type_elems(t),
                  .loc = n->loc};
        s.args[0] = lower_scalar(L, "seed", DT_I64, n->loc);
        s.args[1] = lower_scalar(L, "step", DT_I64, n->loc);
        s.args[2] = lower_scalar(L, "micro", DT_I64, n->loc);
        return lower_emit(L, s);
    }
    default:
        break;
    }
    assert(0 && "a leaf that has no buffer");
    return 0;
}

static Let lower_member(Lower *L, Value v) {
    for (uint32_t i = 0; i < L->n_accs; i++)
        if (L->accs[i].v == v) return L->accs[i].let;
    assert(0 && "a reduction that is not of this group, or read before its stage");
    return 0;
}

static Let lower_elementwise(Lower *L, Value v, const Ix *idx, Guard guard) {
    const Node *n = graph_node(L->g, v);
    DType dtype = (DType)graph_type_at(L->g, v)->dtype;
    Let args[3] = {0};
    for (uint32_t i = 0; i < n->n_operands; i++)
        args[i] = lower_value(L, graph_operand(L->g, v, i), idx, guard);
    Stmt s = {.kind = n->op == OP_cast ? ST_CAST : ST_MAP,
              .dtype = dtype,
              .op = (OpCode)n->op,
              .args = {args[0], args[1], args[2]},
              .loc = n->loc};
    return lower_emit(L, s);
}

Let lower_value(Lower *L, Value v, const Ix *idx, Guard guard) {
    const Type *t = graph_type_at(L->g, v);
    MemoSlot key = {.v = v, .guard = guard};
    for (uint32_t d = 0; d < t->rank; d++)
        key.ix[d] = t->dims[d] == 1 ? ix_const(L->k, L->arena, 0) : idx[d];
    Let let = 0;
    double splat = 0;
    if (memo_find(L, &key, &let)) return let;
    OpCode op = graph_op(L->g, v);
    bool is_splat = const_splat(L->g, v, &splat);
    bool has_home =
        op == OP_state || op == OP_input ||
        (op == OP_const && !is_splat); /* a member of these is copied out: read where it lies */
    bool is_stored = L->entry->buffer_of[v] != 0 && (has_home || !lower_is_member(L, v));
    if (is_stored)
        let = lower_load(L, v, key.ix, guard);
    else if (is_splat)
        let = lower_constant(L, splat, (DType)t->dtype);
    else
        switch (op_info[graph_op(L->g, v)].lower) {
        case LOWER_LEAF:
            let = lower_leaf(L, v, key.ix);
            break;
        case LOWER_VIEW:
            let = lower_view(L, v, key.ix, guard);
            break;
        case LOWER_MAP:
            let = lower_elementwise(L, v, key.ix, guard);
            break;
        case LOWER_REDUCE:
        case LOWER_CONTRACT:
        case LOWER_SCATTER:
        case LOWER_LOOP:
        case LOWER_MACRO:
            let = lower_member(L, v);
            break;
        }
    memo_add(L, key, let);
    return let;
}

static const Stmt *let_stmt(const Lower *L, Let let) {
    const StmtList *lists[2] = {&L->loops[L->level], &L->rows[L->level]};
    for (uint32_t i = 0; i < 2; i++)
        if (lists[i]->n && lists[i]->s[lists[i]->n - 1].dst == let)
            return &lists[i]->s[lists[i]->n - 1];
    return NULL;
}

Let lower_guarded(Lower *L, Value v, const Ix *idx, Guard guard, const Cond *conds, uint32_t n,
                  double outside) {
    Guard inner = guard;
    DType dtype = (DType)graph_type_at(L->g, v)->dtype;
    for (uint32_t i = 0; i < n; i++) {
        int outcome;
        inner = lower_guard(L, inner, conds[i], &outcome);
        if (outcome < 0) return lower_constant(L, outside, dtype);
    }
    Let let = lower_value(L, v, idx, inner);
    if (inner == guard) return let;
    Cond own[MAX_CONDS];
    uint32_t n_own = lower_guard_conds(L, inner, guard, own);
    const Stmt *s = let_stmt(L, let);
    if (outside == 0 && s && s->kind == ST_LOAD && s->n_conds >= n_own)
        return let; /* a guarded load is 0 outside */
    return lower_emit(L, (Stmt){.kind = ST_SELECT,
                                .dtype = dtype,
                                .args = {let, lower_constant(L, outside, dtype)},
                                .conds = own,
                                .n_conds = n_own,
                                .loc = graph_node(L->g, v)->loc});
}
