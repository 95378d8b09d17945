/* fuse_merge.c - may two groups become one kernel? The forms of plan.h, as one question asked of
 * pairs.
 *
 * Every member has a level in its group's space: FULL, ROW or OFF. The group with a reduction or
 * anchor gives the space; the other one, maps alone, enters it at the level that the reads between
 * the two imply, and all of them must imply the same one. OFF members are evaluated wherever they
 * are read, so they have no readers elsewhere and must be cheap or be read about once. */
#include "planning.h"

enum {
    MAX_MEMBERS = 192,
    MAX_READS = 48,
    CHEAP_COST = 4,
    CHEAP_SCALAR = 8,
    CHEAP_LOADS = 2,
    FEW_ROWS = 8,
    SMALL = 16384
};

bool is_row_reduction(const Graph *g, Value v) {
    OpCode op = graph_op(g, v);
    if (op != OP_sum && op != OP_prod && op != OP_rmax && op != OP_rmin) return false;
    return type_elems(graph_type_at(g, v)) != type_elems(graph_type_at(g, graph_operand(g, v, 0)));
}

static const Type *row_dims(const Fuse *f, const FuseGroup *d) {
    return graph_type_at(f->g, graph_operand(f->g, d->anchor, 0));
}
static const Type *row_result(const Fuse *f, const FuseGroup *d) {
    return graph_type_at(f->g, d->anchor);
}

static bool same_rows(const Fuse *f, const FuseGroup *a, const FuseGroup *b) {
    return dims_equal(row_dims(f, a), row_dims(f, b)) &&
           dims_equal(row_result(f, a), row_result(f, b));
}

/* May full-size values be stored by the row kernel? Where the reduced axes are the innermost ones
 * and there are rows enough. In apply a single row is a gradient's norm: no update shall hang on
 * it. */
static bool stores_full(const Fuse *f, const FuseGroup *d) {
    if (d->cls != FUSE_ROW) return true;
    const Type *t = row_dims(f, d), *r = row_result(f, d);
    bool reduced = false;
    for (int i = 0; i < t->rank; i++) {
        if (t->dims[i] == 1) continue;
        bool is_reduced = r->dims[i] == 1;
        if (reduced && !is_reduced) return false;
        reduced = is_reduced;
    }
    if (f->entry == ENTRY_APPLY && type_elems(r) == 1) return false;
    return type_elems(r) >= FEW_ROWS || type_elems(t) <= SMALL;
}

static bool is_row_expand(const Fuse *f, const FuseGroup *d, Value expand) {
    return d->cls == FUSE_ROW && expand &&
           dims_equal(graph_type_at(f->g, expand), row_dims(f, d)) &&
           dims_equal(graph_type_at(f->g, graph_operand(f->g, expand, 0)), row_result(f, d));
}

/* ---------------------------------------------------------------- levels */

/* The level at which member c of d, through r, reads something that is not yet in d. */
static Level level_read(const Fuse *f, const FuseGroup *d, Value c, const Read *r) {
    LowerClass l = op_info[graph_op(f->g, c)].lower;
    bool reduces = l == LOWER_REDUCE && d->cls == FUSE_ROW;
    if ((l == LOWER_REDUCE && !reduces) || l == LOWER_CONTRACT || f->level[c] == LEVEL_OFF)
        return LEVEL_OFF;
    Level at = reduces ? LEVEL_FULL : (Level)f->level[c];
    if (r->kind == READ_SAME) return at;
    return r->kind == READ_BCAST && at == LEVEL_FULL && is_row_expand(f, d, r->by) ? LEVEL_ROW
                                                                                   : LEVEL_OFF;
}

typedef struct Fit {
    bool legal, any;
    Level level;
    double evals;
} Fit;

static void fit_level(Fit *fit, Level level) {
    if (fit->any && fit->level != level) fit->legal = false;
    fit->any = true;
    fit->level = level;
}

/* The level at which the maps of m, read by d, enter d. */
static Fit fit_producer(Fuse *f, Value m, Value d) {
    Fit fit = {.legal = true};
    const FuseGroup *dg = &f->groups[d];
    for (Value v = f->groups[m].first; v && fit.legal; v = f->next[v])
        for (uint32_t i = f->first_reader[v]; i < f->first_reader[v + 1] && fit.legal; i++) {
            Value c = f->readers[i].node;
            if (fuse_find(f, c) != d) continue;
            if (op_info[graph_op(f->g, c)].lower == LOWER_CONTRACT) fit.legal = false;
            const Read *r = &f->reads[f->readers[i].read];
            fit_level(&fit, level_read(f, dg, c, r));
            fit.evals += (double)r->evals * f->repeat[c];
        }
    return fit;
}

/* The level at which the maps of m, which read values of d, enter d. OFF: they cannot. */
static Fit fit_consumer(Fuse *f, Value d, Value m) {
    Fit fit = {.legal = true};
    const FuseGroup *dg = &f->groups[d];
    for (Value c = f->groups[m].first; c && fit.legal; c = f->next[c])
        for (uint32_t i = f->first_read[c]; i < f->first_read[c + 1] && fit.legal; i++) {
            const Read *r = &f->reads[i];
            if (!f->computed[r->base] || fuse_find(f, r->base) != d) continue;
            Level at = (Level)f->level[r->base];
            bool broadcasts =
                r->kind == READ_BCAST && at == LEVEL_ROW && is_row_expand(f, dg, r->by);
            if (f->level[c] != LEVEL_FULL || at == LEVEL_OFF ||
                (r->kind != READ_SAME && !broadcasts))
                fit.legal = false;
            else
                fit_level(&fit, broadcasts ? LEVEL_FULL : at);
        }
    return fit;
}

/* Do the reads of two row groups of the same space meet at the levels that the members have? */
static bool fit_rows(Fuse *f, Value p, Value c) {
    for (Value v = f->groups[c].first; v; v = f->next[v])
        for (uint32_t i = f->first_read[v]; i < f->first_read[v + 1]; i++) {
            Value base = f->reads[i].base;
            if (!f->computed[base] || fuse_find(f, base) != p) continue;
            if (f->level[base] == LEVEL_OFF ||
                level_read(f, &f->groups[c], v, &f->reads[i]) != (Level)f->level[base])
                return false;
        }
    return true;
}

/* ---------------------------------------------------------------- conditions */

static bool needed_outside(Fuse *f, Value v, Value a, Value b) {
    if (f->forced[v]) return true;
    for (uint32_t i = f->first_reader[v]; i < f->first_reader[v + 1]; i++) {
        Value c = fuse_find(f, f->readers[i].node);
        if (c != a && c != b) return true;
    }
    return false;
}

bool fuse_is_out(Fuse *f, Value v) {
    Value own = fuse_find(f, v);
    return needed_outside(f, v, own, own);
}

static bool any_full_out(Fuse *f, Value in, Value a, Value b) {
    for (Value v = f->groups[in].first; v; v = f->next[v])
        if (f->level[v] == LEVEL_FULL && needed_outside(f, v, a, b)) return true;
    return false;
}

/* A row kernel cannot overwrite a state element by element: it may read it again in a later loop.
 */
static bool updates_full(Fuse *f, Value in) {
    for (Value v = f->groups[in].first; v; v = f->next[v])
        if (f->level[v] == LEVEL_FULL && f->updates[v]) return true;
    return false;
}

static bool any_out(Fuse *f, Value in, Value a, Value b) {
    for (Value v = f->groups[in].first; v; v = f->next[v])
        if (needed_outside(f, v, a, b)) return true;
    return false;
}

/* Distinct values from outside that the two groups read together. */
static uint32_t n_loads(Fuse *f, Value a, Value b) {
    uint32_t n = 0;
    f->now += N_READ_KINDS;
    for (int side = 0; side < 2; side++)
        for (Value v = f->groups[side ? b : a].first; v; v = f->next[v])
            for (uint32_t i = f->first_read[v]; i < f->first_read[v + 1]; i++) {
                Value base = f->reads[i].base;
                if (f->stamp[base] == f->now) continue;
                f->stamp[base] = f->now;
                if (f->computed[base]) {
                    Value own = fuse_find(f, base);
                    if (own == a || own == b) continue;
                }
                n++;
            }
    return n;
}

static bool within_limits(Fuse *f, Value a, Value b) {
    if (f->groups[a].n_members + f->groups[b].n_members > MAX_MEMBERS) return false;
    return n_loads(f, a, b) <= MAX_READS;
}

/* Being evaluated wherever it is read: about once per element, or cheap. */
static bool cheap_off(Fuse *f, Value m, Value d, const Fit *fit) {
    const FuseGroup *mg = &f->groups[m];
    if (any_out(f, m, m, d)) return false;
    if (fit->evals <= 1.25 * (double)mg->elems) return true;
    uint32_t limit = mg->elems == 1 ? CHEAP_SCALAR : CHEAP_COST;
    return mg->cost <= limit && n_loads(f, m, m) <= CHEAP_LOADS;
}

/* A library leaves the raw product in an out of the group; a state that is updated in place must
 * not be read behind it. */
static bool reads_updated_state(Fuse *f, Value m) {
    for (Value v = f->groups[m].first; v; v = f->next[v])
        for (uint32_t i = f->first_read[v]; i < f->first_read[v + 1]; i++)
            if (f->is_updated[f->reads[i].base]) return true;
    return false;
}

/* ---------------------------------------------------------------- merging */

static void enter(Fuse *f, Value m, const Fit *fit) {
    double factor = fit->level == LEVEL_OFF
                        ? fit->evals / (double)(f->groups[m].elems ? f->groups[m].elems : 1)
                        : 1;
    for (Value v = f->groups[m].first; v; v = f->next[v]) {
        if (f->level[v] != LEVEL_OFF) f->level[v] = (uint8_t)fit->level;
        f->repeat[v] = (float)(f->repeat[v] * factor);
    }
}

/* Space and form are those of d. */
static void join(Fuse *f, Value m, Value d) {
    FuseGroup space = f->groups[d];
    FuseGroup *u = &f->groups[fuse_join(f, m, d)];
    u->cls = space.cls;
    u->anchor = space.anchor;
    u->elems = space.elems;
}

/* Joins the maps of m to d, which gives the space. */
static bool join_maps(Fuse *f, Value m, Value d, const Fit *fit) {
    const FuseGroup *dg = &f->groups[d];
    if (!fit->legal || !fit->any) return false;
    if (dg->cls == FUSE_CONTRACT && !f->for_gpu && reads_updated_state(f, m)) return false;
    if (fit->level == LEVEL_FULL && !stores_full(f, dg) && any_full_out(f, m, m, d)) return false;
    if (fit->level == LEVEL_FULL && dg->cls == FUSE_ROW && updates_full(f, m)) return false;
    if (fit->level == LEVEL_OFF && !cheap_off(f, m, d, fit)) return false;
    if (!within_limits(f, m, d) || !fuse_can_join(f, m, d)) return false;
    enter(f, m, fit);
    join(f, m, d);
    return true;
}

bool fuse_merge(Fuse *f, Value p, Value c) {
    FuseClass pc = f->groups[p].cls, cc = f->groups[c].cls;
    if (pc >= FUSE_SCATTER || cc >= FUSE_SCATTER) return false;
    if (pc == FUSE_MAP) {
        Fit fit = fit_producer(f, p, c);
        return join_maps(f, p, c, &fit);
    }
    if (cc == FUSE_MAP) {
        Fit fit = fit_consumer(f, p, c);
        return join_maps(f, c, p, &fit);
    }
    if (pc != FUSE_ROW || cc != FUSE_ROW || !same_rows(f, &f->groups[p], &f->groups[c]) ||
        !fit_rows(f, p, c))
        return false;
    if (!stores_full(f, &f->groups[p]) && (any_full_out(f, p, p, c) || any_full_out(f, c, p, c)))
        return false;
    if (!within_limits(f, p, c) || !fuse_can_join(f, p, c)) return false;
    join(f, p, c);
    return true;
}

static bool shares_a_read(Fuse *f, Value a, Value b) {
    f->now += N_READ_KINDS;
    for (Value v = f->groups[a].first; v; v = f->next[v])
        for (uint32_t i = f->first_read[v]; i < f->first_read[v + 1]; i++)
            f->stamp[f->reads[i].base] = f->now;
    for (Value v = f->groups[b].first; v; v = f->next[v])
        for (uint32_t i = f->first_read[v]; i < f->first_read[v + 1]; i++)
            if (f->stamp[f->reads[i].base] == f->now) return true;
    return false;
}

/* Groups that do not read each other: reductions of one space that read the same memory, single
 * elements, and in bodies of loops maps of any size. */
bool fuse_merge_siblings(Fuse *f, Value a, Value b) {
    const FuseGroup *x = &f->groups[a], *y = &f->groups[b];
    if (x->cls != y->cls || x->elems != y->elems) return false;
    bool rows = x->cls == FUSE_ROW && same_rows(f, x, y) && shares_a_read(f, a, b);
    bool maps = x->cls == FUSE_MAP && (x->elems == 1 || f->is_body);
    if (!rows && !maps) return false;
    if (!fit_rows(f, a, b) || !fit_rows(f, b, a)) return false;
    if (!within_limits(f, a, b) || !fuse_can_join(f, a, b)) return false;
    join(f, a, b);
    return true;
}
