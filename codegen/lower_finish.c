/* lower_finish.c - from statement lists to a kernel: split axes where an index divides them, drop
 * dead statements, merge axes.
 *
 * Splitting: an index DIV or MOD by c over a term coef * axis becomes affine when the axis is split
 * at c / coef; the driver lowers again with the finer domain. Merging is the inverse, for what
 * needed no split: two neighbouring axes of one role become one when every index uses them as one.
 * Dead statements are what no STORE, UPDATE or ACCUM needs. */
#include <assert.h>
#include <string.h>
#include "lower.h"

/* ---- split ---- */

static bool dim_split(Lower *L, uint32_t axis, int64_t inner) {
    if (L->k->n_axes >= MAX_AXES) return false;
    for (uint32_t d = 0; d < L->dom.n; d++) {
        Dim *dim = &L->dom.dims[d];
        for (uint32_t f = 0; f < dim->n_factors; f++) {
            if (dim->axes[f] != axis || dim->n_factors == MAX_FACTORS) continue;
            memmove(&dim->factors[f + 1], &dim->factors[f],
                    (dim->n_factors - f) * sizeof *dim->factors);
            dim->n_factors++;
            dim->factors[f] /= inner, dim->factors[f + 1] = inner;
            return true;
        }
    }
    return false;
}

static bool term_split(Lower *L, Ix x, int64_t coef, int64_t divisor) {
    const IxNode *n = &L->k->ix[x];
    if (n->kind == IX_ADD)
        return term_split(L, n->a, coef, divisor) || term_split(L, n->b, coef, divisor);
    if (n->kind == IX_MUL) return term_split(L, n->a, coef * n->value, divisor);
    if (n->kind != IX_AXIS || coef <= 0 || divisor % coef) return false;
    int64_t inner = divisor / coef, extent = L->k->axes[n->value].extent;
    return inner > 1 && inner < extent && extent % inner == 0 &&
           dim_split(L, (uint32_t)n->value, inner);
}

bool lower_split(Lower *L) {
    for (Ix i = 1; i < L->k->n_ix; i++) {
        const IxNode *n = &L->k->ix[i];
        if ((n->kind == IX_DIV || n->kind == IX_MOD) && term_split(L, n->a, 1, n->value))
            return true;
    }
    return false;
}

/* ---- dead statements ---- */

static void mark_ix(const Kernel *k, Ix ix, bool *live) {
    if (!ix) return;
    const IxNode *n = &k->ix[ix];
    if (n->kind == IX_LET) live[n->value] = true;
    mark_ix(k, n->a, live);
    mark_ix(k, n->b, live);
}

static bool is_effect(const Stmt *s) { return s->kind == ST_STORE || s->kind == ST_UPDATE; }

static void list_mark(const Kernel *k, StmtList *list, bool *live) {
    for (uint32_t i = list->n; i-- > 0;) {
        const Stmt *s = &list->s[i];
        if (!is_effect(s) && !live[s->dst]) continue;
        for (uint32_t j = 0; j < 3; j++) live[s->args[j]] = true;
        mark_ix(k, s->ix, live);
        for (uint32_t j = 0; j < s->n_conds; j++) mark_ix(k, s->conds[j].ix, live);
    }
}

static void list_sweep(StmtList *list, const bool *live) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < list->n; i++)
        if (is_effect(&list->s[i]) || live[list->s[i].dst]) list->s[n++] = list->s[i];
    list->n = n;
}

static void sweep(Lower *L) {
    bool *live = arena_alloc(L->arena, L->k->n_lets + 1);
    for (uint32_t i = L->n_levels + 1; i-- > 0;)
        list_mark(L->k, &L->loops[i], live), list_mark(L->k, &L->rows[i], live);
    for (uint32_t i = 0; i <= L->n_levels; i++)
        list_sweep(&L->loops[i], live), list_sweep(&L->rows[i], live);
}

/* ---- merge ---- */

typedef struct Uses {
    int64_t outer, inner;
    bool ok;
} Uses;

/* In every sum: coefficient of axis `a` is extent(a + 1) times that of a + 1. */
static void sum_uses(const Kernel *k, Ix ix, int64_t coef, uint32_t a, Uses *u);
static bool ix_mergeable(const Kernel *k, Ix ix, uint32_t a) {
    Uses u = {0, 0, true};
    sum_uses(k, ix, 1, a, &u);
    return u.ok && u.outer == u.inner * k->axes[a + 1].extent;
}
static void sum_uses(const Kernel *k, Ix ix, int64_t coef, uint32_t a, Uses *u) {
    const IxNode *n = &k->ix[ix];
    switch (n->kind) {
    case IX_CONST:
    case IX_LET:
        return;
    case IX_AXIS:
        if (n->value == a) u->outer += coef;
        if (n->value == a + 1) u->inner += coef;
        return;
    case IX_ADD:
        sum_uses(k, n->a, coef, a, u), sum_uses(k, n->b, coef, a, u);
        return;
    case IX_MUL:
        sum_uses(k, n->a, coef * n->value, a, u);
        return;
    case IX_DIV:
    case IX_MOD:
        u->ok = u->ok && ix_mergeable(k, n->a, a);
        return;
    case IX_MIN:
    case IX_MAX:
        u->ok = u->ok && ix_mergeable(k, n->a, a) && ix_mergeable(k, n->b, a);
        return;
    }
}

typedef bool IxTest(const Kernel *, Ix, uint32_t axis);
static bool list_test(const Kernel *k, const StmtList *l, IxTest *test, uint32_t a) {
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->s[i].ix && !test(k, l->s[i].ix, a)) return false;
        for (uint32_t c = 0; c < l->s[i].n_conds; c++)
            if (!test(k, l->s[i].conds[c].ix, a)) return false;
    }
    return true;
}

/* Rebuilds ix over the merged axes: axis a + 1 is the joint axis a, axes behind move down. */
static Ix ix_merged(Lower *L, const Kernel *old, Ix ix, uint32_t a) {
    const IxNode n = old->ix[ix];
    Kernel *k = L->k;
    switch (n.kind) {
    case IX_CONST:
        return ix_const(k, L->arena, n.value);
    case IX_LET:
        return ix_let(k, L->arena, (Let)n.value, n.lo, n.hi);
    case IX_AXIS:
        if (n.value == a)
            return ix_const(
                k, L->arena,
                0); /* its part is in the joint axis, whose coefficient is the inner one */
        return ix_axis(k, L->arena, (uint32_t)(n.value > a ? n.value - 1 : n.value));
    case IX_ADD:
        return ix_add(k, L->arena, ix_merged(L, old, n.a, a), ix_merged(L, old, n.b, a));
    case IX_MUL:
        return ix_mul(k, L->arena, ix_merged(L, old, n.a, a), n.value);
    case IX_DIV:
        return ix_div(k, L->arena, ix_merged(L, old, n.a, a), n.value);
    case IX_MOD:
        return ix_mod(k, L->arena, ix_merged(L, old, n.a, a), n.value);
    case IX_MIN:
    case IX_MAX:
        break;
    }
    assert(0 && "no index");
    return 0;
}

static void list_merge(Lower *L, const Kernel *old, StmtList *l, uint32_t a) {
    for (uint32_t i = 0; i < l->n; i++) {
        Stmt *s = &l->s[i];
        if (s->ix) s->ix = ix_merged(L, old, s->ix, a);
        Cond *conds = arena_alloc(L->arena, (s->n_conds + 1) * sizeof *conds);
        for (uint32_t c = 0; c < s->n_conds; c++)
            conds[c] = s->conds[c], conds[c].ix = ix_merged(L, old, s->conds[c].ix, a);
        s->conds = s->n_conds ? conds : NULL;
    }
}

static bool merge_once(Lower *L) {
    Kernel *k = L->k;
    for (uint32_t a = 0; a + 1 < k->n_axes; a++) {
        if (k->axes[a].role != k->axes[a + 1].role) continue;
        bool ok = true;
        for (uint32_t i = 0; ok && i <= L->n_levels; i++)
            ok = list_test(k, &L->rows[i], ix_mergeable, a) &&
                 list_test(k, &L->loops[i], ix_mergeable, a);
        if (!ok) continue;
        Kernel old = *k;
        k->ix = NULL, k->n_ix = 0;
        k->axes[a].extent *= k->axes[a + 1].extent;
        for (uint32_t i = a + 1; i + 1 < k->n_axes; i++) k->axes[i] = k->axes[i + 1];
        k->n_axes--;
        for (uint32_t i = 0; i <= L->n_levels; i++)
            list_merge(L, &old, &L->rows[i], a), list_merge(L, &old, &L->loops[i], a);
        return true;
    }
    return false;
}

/* ---- params ---- */

static void params_order(Lower *L) {
    Kernel *k = L->k;
    uint32_t *to = arena_alloc(L->arena, (k->n_params + 1) * sizeof *to), n = 0;
    Param *sorted = arena_alloc(L->arena, (k->n_params + 1) * sizeof *sorted);
    for (int scalars = 0; scalars < 2; scalars++)
        for (uint32_t i = 0; i < k->n_params; i++)
            if (k->params[i].is_scalar == scalars) sorted[n] = k->params[i], to[i] = n++;
    k->params = sorted;
    for (uint32_t i = 0; i <= L->n_levels; i++) {
        StmtList *lists[2] = {&L->rows[i], &L->loops[i]};
        for (uint32_t l = 0; l < 2; l++)
            for (uint32_t s = 0; s < lists[l]->n; s++)
                lists[l]->s[s].param = k->n_params ? to[lists[l]->s[s].param] : 0;
    }
    if (!k->n_params) return;
    k->tile.a = to[k->tile.a], k->tile.b = to[k->tile.b];
    k->conv.x = to[k->conv.x], k->conv.w = to[k->conv.w];
}

void lower_finish(Lower *L) {
    Kernel *k = L->k;
    sweep(L);
    if (k->form != FORM_TILE)
        while (merge_once(L)) {
        }
    params_order(L);
    k->stages = arena_alloc(L->arena, 2 * (L->n_levels + 1) * sizeof *k->stages);
    for (uint32_t i = 0; i <= L->n_levels; i++) {
        if (L->rows[i].n) k->stages[k->n_stages++] = (Stage){false, L->rows[i].s, L->rows[i].n};
        if (L->loops[i].n) k->stages[k->n_stages++] = (Stage){true, L->loops[i].s, L->loops[i].n};
    }
}
