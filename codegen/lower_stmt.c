/* lower_stmt.c - emits statements: places each in the row or loop stage it belongs to, makes equal
 * ones once, keeps params and guards.
 *
 * A statement is a loop statement when its index, a condition or an argument depends on a reduction
 * axis. Everything but ACCUM, STORE and UPDATE is pure, so an equal earlier one that is visible
 * stands for it. */
#include <assert.h>
#include <string.h>
#include "lower.h"

Let lower_new_let(Lower *L, DType dtype, bool in_loop) {
    Kernel *k = L->k;
    if (!k->n_lets) k->n_lets = 1;
    if (k->n_lets >= L->cap_lets) {
        uint32_t cap = L->cap_lets ? 2 * L->cap_lets : 64;
        k->let_type = arena_grow(L->arena, k->let_type, L->cap_lets * sizeof *k->let_type,
                                 cap * sizeof *k->let_type);
        L->let_stage = arena_grow(L->arena, L->let_stage, L->cap_lets * sizeof *L->let_stage,
                                  cap * sizeof *L->let_stage);
        L->cap_lets = cap;
    }
    k->let_type[k->n_lets] = dtype;
    L->let_stage[k->n_lets] = in_loop ? L->level + 1 : 0;
    return k->n_lets++;
}

bool lower_ix_in_loop(const Lower *L, Ix ix) {
    const IxNode *n = &L->k->ix[ix];
    switch (n->kind) {
    case IX_CONST:
        return false;
    case IX_AXIS:
        return L->k->axes[n->value].role == AXIS_RED;
    case IX_LET:
        return L->let_stage[n->value] != 0;
    case IX_ADD:
    case IX_MIN:
    case IX_MAX:
        return lower_ix_in_loop(L, n->a) || lower_ix_in_loop(L, n->b);
    case IX_MUL:
    case IX_DIV:
    case IX_MOD:
        return lower_ix_in_loop(L, n->a);
    }
    return false;
}

static bool stmt_in_loop(const Lower *L, const Stmt *s) {
    if (s->kind == ST_ACCUM || s->kind == ST_UPDATE) return true;
    if (s->ix && lower_ix_in_loop(L, s->ix)) return true;
    for (uint32_t i = 0; i < 3; i++)
        if (s->args[i] && L->let_stage[s->args[i]]) return true;
    for (uint32_t i = 0; i < s->n_conds; i++)
        if (lower_ix_in_loop(L, s->conds[i].ix)) return true;
    return false;
}

static bool stmt_equal(const Stmt *a, const Stmt *b) {
    if (a->kind != b->kind || a->dtype != b->dtype || a->op != b->op || a->param != b->param ||
        a->ix != b->ix || a->n_conds != b->n_conds ||
        memcmp(a->args, b->args, sizeof a->args) != 0 ||
        memcmp(&a->value, &b->value, sizeof a->value) != 0)
        return false;
    for (uint32_t i = 0; i < a->n_conds; i++)
        if (a->conds[i].ix != b->conds[i].ix || a->conds[i].lo != b->conds[i].lo ||
            a->conds[i].hi != b->conds[i].hi || a->conds[i].modulus != b->conds[i].modulus)
            return false;
    return true;
}

static const Stmt *list_find(const StmtList *l, const Stmt *s) {
    for (uint32_t i = l->n; i-- > 0;)
        if (stmt_equal(&l->s[i], s)) return &l->s[i];
    return NULL;
}

Let lower_emit(Lower *L, Stmt s) {
    bool in_loop = stmt_in_loop(L, &s);
    bool pure = s.kind != ST_ACCUM && s.kind != ST_STORE && s.kind != ST_UPDATE;
    StmtList *list = in_loop ? &L->loops[L->level] : &L->rows[L->level];
    if (pure) {
        const Stmt *same = list_find(list, &s);
        for (uint32_t i = 0; !same && !in_loop && i < L->level; i++)
            same = list_find(&L->rows[i], &s);
        if (same) return same->dst;
        s.dst = lower_new_let(L, s.dtype, in_loop);
    }
    if (s.n_conds) {
        Cond *conds = arena_alloc(L->arena, s.n_conds * sizeof *conds);
        memcpy(conds, s.conds, s.n_conds * sizeof *conds);
        s.conds = conds;
    }
    if (list->n == list->cap) {
        uint32_t cap = list->cap ? 2 * list->cap : 16;
        list->s = arena_grow(L->arena, list->s, list->n * sizeof s, cap * sizeof s);
        list->cap = cap;
    }
    list->s[list->n++] = s;
    return s.dst;
}

Let lower_map(Lower *L, OpCode op, DType dtype, Let a, Let b, Let c, LocId loc) {
    return lower_emit(
        L, (Stmt){.kind = ST_MAP, .dtype = dtype, .op = op, .args = {a, b, c}, .loc = loc});
}

Let lower_index(Lower *L, Ix ix, DType dtype) {
    return lower_emit(L, (Stmt){.kind = ST_INDEX, .dtype = dtype, .ix = ix});
}

Let lower_constant(Lower *L, double v, DType dtype) {
    return lower_emit(L, (Stmt){.kind = ST_CONST, .dtype = dtype, .value = v});
}

Let lower_accum(Lower *L, OpCode op, DType dtype, Let value, Let index, LocId loc) {
    Let acc = lower_new_let(L, dtype, false);
    lower_emit(L, (Stmt){.kind = ST_ACCUM,
                         .dst = acc,
                         .dtype = dtype,
                         .op = op,
                         .args = {value, index},
                         .loc = loc});
    return acc;
}

static uint32_t param_add(Lower *L, Param p) {
    Kernel *k = L->k;
    if ((k->n_params & (k->n_params - 1)) == 0)
        k->params = arena_grow(L->arena, k->params, k->n_params * sizeof p,
                               (k->n_params ? 2 * k->n_params : 1) * sizeof p);
    k->params[k->n_params] = p;
    return k->n_params++;
}

uint32_t lower_param(Lower *L, uint32_t buffer, Value v, bool written) {
    Kernel *k = L->k;
    const Buffer *b = &L->plan->buffers[buffer];
    DType dtype = (DType)graph_type_at(L->g, v)->dtype;
    uint32_t i = 0;
    for (; i < k->n_params; i++) {
        if (k->params[i].is_scalar || k->params[i].dtype != dtype) continue;
        if (L->plan->buffers[k->params[i].buffer - 1].offset == b->offset) break;
    }
    int64_t elems = type_elems(graph_type_at(L->g, v));
    if (i == k->n_params)
        i = param_add(L, (Param){.dtype = dtype, .elems = elems, .value = v, .buffer = buffer + 1});
    if (written)
        k->params[i].is_written = true, k->params[i].buffer = buffer + 1, k->params[i].value = v;
    else
        k->params[i].is_read = true;
    if (k->params[i].elems < elems) k->params[i].elems = elems;
    return i;
}

uint32_t lower_scalar_param(Lower *L, const char *name, DType dtype) {
    for (uint32_t i = 0; i < L->k->n_params; i++)
        if (L->k->params[i].is_scalar && strcmp(L->k->params[i].scalar, name) == 0) return i;
    return param_add(
        L, (Param){.is_scalar = true, .scalar = name, .dtype = dtype, .is_read = true, .elems = 1});
}

uint32_t lower_constant_param(Lower *L, int64_t constant) {
    for (uint32_t i = 0; i < L->k->n_params; i++)
        if (L->k->params[i].is_scalar && !*L->k->params[i].scalar &&
            L->k->params[i].constant == constant)
            return i;
    return param_add(L, (Param){.is_scalar = true,
                                .scalar = "",
                                .constant = constant,
                                .dtype = DT_I64,
                                .is_read = true,
                                .elems = 1});
}

Ix lower_linear(Lower *L, const Type *t, const Ix *idx) {
    Ix sum = ix_const(L->k, L->arena, 0);
    int64_t stride = 1;
    for (uint32_t d = t->rank; d-- > 0; stride *= t->dims[d])
        if (t->dims[d] != 1)
            sum = ix_add(L->k, L->arena, sum, ix_mul(L->k, L->arena, idx[d], stride));
    return sum;
}

void lower_store_to(Lower *L, uint32_t buffer, Value out, const Ix *idx, Let value) {
    const Type *t = graph_type_at(L->g, out);
    lower_emit(L, (Stmt){.kind = ST_STORE,
                         .dtype = (DType)t->dtype,
                         .args = {value},
                         .param = lower_param(L, buffer, out, true),
                         .ix = lower_linear(L, t, idx),
                         .loc = graph_node(L->g, out)->loc});
}

void lower_store(Lower *L, Value out, const Ix *idx, Let value) {
    uint32_t buffer = L->entry->out_buffer_of[out];
    assert(buffer != 0);
    lower_store_to(L, buffer - 1, out, idx, value);
}

Guard lower_guard(Lower *L, Guard parent, Cond c, int *outcome) {
    const Ix remainder =
        c.modulus > 1 ? ix_mod(L->k, L->arena, c.ix, c.modulus) : 0; /* may move k->ix */
    const bool divides = c.modulus <= 1 || L->k->ix[remainder].hi == 0;
    const IxNode *n = &L->k->ix[c.ix];
    *outcome = n->hi < c.lo || n->lo > c.hi                ? -1
               : n->lo >= c.lo && n->hi <= c.hi && divides ? 1
                                                           : 0;
    if (*outcome) return parent;
    if (divides) c.modulus = 1;
    for (Guard p = parent; p; p = L->guards[p].parent) {
        const Cond *o = &L->guards[p].cond;
        if (o->ix == c.ix && o->lo == c.lo && o->hi == c.hi && o->modulus == c.modulus) {
            *outcome = 1;
            return parent;
        }
    }
    for (Guard i = 1; i < L->n_guards; i++) {
        const GuardNode *o = &L->guards[i];
        if (o->parent == parent && o->cond.ix == c.ix && o->cond.lo == c.lo && o->cond.hi == c.hi &&
            o->cond.modulus == c.modulus)
            return i;
    }
    if (!L->n_guards) L->n_guards = 1;
    if (L->n_guards >= L->cap_guards) {
        uint32_t cap = L->cap_guards ? 2 * L->cap_guards : 16;
        L->guards = arena_grow(L->arena, L->guards, L->cap_guards * sizeof *L->guards,
                               cap * sizeof *L->guards);
        L->cap_guards = cap;
    }
    L->guards[L->n_guards] = (GuardNode){parent, c};
    return L->n_guards++;
}

uint32_t lower_guard_conds(const Lower *L, Guard guard, Guard until, Cond *out) {
    uint32_t n = 0;
    for (; guard != until; guard = L->guards[guard].parent) out[n++] = L->guards[guard].cond;
    return n;
}
