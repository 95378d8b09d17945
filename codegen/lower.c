/* lower.c - a fused group of nodes becomes a kernel: the iteration domain, the stages, the stores.
 *
 * MAP and COPY run over their dims (POINTS). ROW and plain reductions run parallel dims outside and
 * reduced dims inside: a reduction whose operand depends on no other reduction accumulates in loop
 * stage 0, one that depends on those in stage 1, ...; full-size results are stored in the last loop
 * stage, row-size results after it (ROWS). Anchors with a domain of their own accumulate in loop
 * stage 0 and finish in the row stage after it. A dot over buffers is a tile, sequential scatters
 * run on the CPU. Lowering repeats with a finer domain while an index wants an axis split
 * (lower_finish.c). */
#include <assert.h>
#include <string.h>
#include "lower.h"

/* Another group of the entry stores v: then it is read from there, as the schedule and the live
 * ranges assume. */
static bool is_stored_elsewhere(const Lower *L, Value v) {
    if (!L->entry->buffer_of[v] || v == L->group->anchor) return false;
    for (uint32_t i = 0; i < L->group->n_outs; i++)
        if (L->group->outs[i] == v) return false;
    return true;
}

bool lower_is_member(const Lower *L, Value v) {
    const Group *group = L->group;
    if (group->kind == GROUP_COPY || is_stored_elsewhere(L, v)) return false;
    uint32_t lo = 0, hi = group->n_nodes;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (group->nodes[mid] == v) return true;
        if (group->nodes[mid] < v)
            lo = mid + 1;
        else
            hi = mid;
    }
    return false;
}

/* ---- domain ---- */

void domain_add(Lower *L, int64_t extent, AxisRole role) {
    assert(L->dom.n < MAX_DIMS);
    L->dom.dims[L->dom.n++] =
        (Dim){.extent = extent, .role = role, .n_factors = 1, .factors = {extent}};
}

void domain_axes(Lower *L) {
    Kernel *k = L->k;
    for (AxisRole role = AXIS_PAR; role <= AXIS_RED; role++)
        for (uint32_t d = 0; d < L->dom.n; d++) {
            Dim *dim = &L->dom.dims[d];
            for (uint32_t f = 0; dim->role == role && f < dim->n_factors; f++) {
                dim->axes[f] = dim->factors[f] == 1 ? MAX_AXES : k->n_axes;
                if (dim->factors[f] == 1) continue;
                assert(k->n_axes < MAX_AXES);
                k->axes[k->n_axes++] = (Axis){dim->factors[f], role};
            }
        }
    for (uint32_t d = 0; d < L->dom.n; d++) {
        Dim *dim = &L->dom.dims[d];
        dim->ix = ix_const(k, L->arena, 0);
        for (uint32_t f = 0; f < dim->n_factors; f++) {
            dim->ix = ix_mul(k, L->arena, dim->ix, dim->factors[f]);
            if (dim->axes[f] != MAX_AXES)
                dim->ix = ix_add(k, L->arena, dim->ix, ix_axis(k, L->arena, dim->axes[f]));
        }
    }
}

static void stages_reset(Lower *L, uint32_t n_levels) {
    L->n_levels = n_levels;
    L->rows = arena_alloc(L->arena, (n_levels + 1) * sizeof *L->rows);
    L->loops = arena_alloc(L->arena, (n_levels + 1) * sizeof *L->loops);
}

/* ---- outs ---- */

/* The index vector of type `t` at the element that `idx` names in `space`: outs may be reshapes of
 * their group's space. */
static void index_of_out(Lower *L, const Type *space, const Ix *idx, const Type *t, Ix *out) {
    if (dims_equal(space, t)) {
        memcpy(out, idx, t->rank * sizeof *out);
        return;
    }
    Ix rest = lower_linear(L, space, idx);
    for (uint32_t d = t->rank; d-- > 0;) {
        out[d] = t->dims[d] <= 1 ? ix_const(L->k, L->arena, 0)
                                 : ix_mod(L->k, L->arena, rest, t->dims[d]);
        if (t->dims[d] > 1) rest = ix_div(L->k, L->arena, rest, t->dims[d]);
    }
}

/* Stores the outs that have an element per point of `space`: all values first, for an out may lie
 * where another one's operand does. */
static void lower_outs(Lower *L, const Type *space, const Ix *idx) {
    const Group *group = L->group;
    const int64_t elems = type_elems(space);
    Let *values = arena_alloc(L->arena, (group->n_outs + 1) * sizeof *values);
    Ix at[MAX_RANK];
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < group->n_outs; i++) {
            const Type *t = graph_type_at(L->g, group->outs[i]);
            if (type_elems(t) != elems) continue;
            index_of_out(L, space, idx, t, at);
            if (pass == 0)
                values[i] = lower_value(L, group->outs[i], at, 0);
            else
                lower_store(L, group->outs[i], at, values[i]);
        }
}

/* ---- maps and copies ---- */

static void lower_points(Lower *L, const Type *dims) {
    if (!L->dom.n) /* else: a finer one, from the attempt before */
        for (uint32_t d = 0; d < dims->rank; d++) domain_add(L, dims->dims[d], AXIS_PAR);
    domain_axes(L);
    stages_reset(L, 0);
    L->k->form = FORM_POINTS;
    Ix idx[MAX_RANK];
    for (uint32_t d = 0; d < dims->rank; d++) idx[d] = L->dom.dims[d].ix;
    if (L->group->kind == GROUP_COPY) {
        Value v = L->group->nodes[0];
        lower_store_to(L, L->group->to - 1, v, idx, lower_value(L, v, idx, 0));
    }
    lower_outs(L, dims, idx);
}

/* ---- rows ---- */

static bool is_reduction(const Graph *g, Value v) {
    return op_info[graph_op(g, v)].lower == LOWER_REDUCE && graph_op(g, v) != OP_fold;
}

/* How many reductions of the group lie one behind the other up to v; levels[] holds level + 1, 0
 * where unknown. */
static uint32_t value_level(const Lower *L, Value v, uint32_t *levels) {
    if (levels[v]) return levels[v] - 1;
    uint32_t level = 0;
    bool is_inner = lower_is_member(L, v) || !L->entry->buffer_of[v];
    for (uint32_t i = 0; is_inner && i < graph_node(L->g, v)->n_operands; i++) {
        uint32_t l = value_level(L, graph_operand(L->g, v, i), levels);
        if (l > level) level = l;
    }
    if (is_reduction(L->g, v) && lower_is_member(L, v)) level++;
    levels[v] = level + 1;
    return level;
}

/* The level of every member, in the order of the group. */
static uint32_t *group_levels(const Lower *L) {
    uint32_t *own = arena_alloc(L->arena, (L->group->n_nodes + 1) * sizeof *own);
    ArenaMark mark = arena_mark(L->arena);
    uint32_t *levels = arena_alloc(L->arena, L->g->n_nodes * sizeof *levels);
    for (uint32_t i = 0; i < L->group->n_nodes; i++)
        own[i] = value_level(L, L->group->nodes[i], levels);
    arena_release(L->arena, mark);
    return own;
}

static Let arg_index(Lower *L, Value v, const Ix *full) {
    return lower_index(L, full[attr_i(L->g, v, A_AXIS, 0)], DT_I64);
}

static void reduction_accum(Lower *L, Value v, const Ix *full, const bool *reduced) {
    Value a = graph_operand(L->g, v, 0);
    const Type *t = graph_type_at(L->g, a);
    OpCode op = graph_op(L->g, v);
    bool is_arg = op == OP_argmax || op == OP_argmin, is_row = true;
    for (uint32_t d = 0; d < t->rank; d++) is_row = is_row && (!reduced[d] || t->dims[d] == 1);
    DType dtype = (DType)graph_type_at(L->g, v)->dtype;
    Let value = lower_value(L, a, full, 0), acc;
    if (is_row)
        acc = is_arg ? lower_constant(L, 0, dtype) : value; /* reduces extents of 1: the identity */
    else
        acc = lower_accum(L, op, dtype, value, is_arg ? arg_index(L, v, full) : 0,
                          graph_node(L->g, v)->loc);
    L->accs[L->n_accs++] = (AccSlot){v, acc};
}

static void lower_rows(Lower *L, const Type *dims, const int64_t *axes, uint32_t n_axes) {
    const Group *group = L->group;
    bool reduced[MAX_RANK] = {false};
    for (uint32_t i = 0; i < n_axes; i++) reduced[axes[i]] = true;
    if (!L->dom.n)
        for (uint32_t d = 0; d < dims->rank; d++)
            domain_add(L, dims->dims[d], reduced[d] ? AXIS_RED : AXIS_PAR);
    domain_axes(L);
    uint32_t *levels = group_levels(L), n_levels = 0, last = 0;
    bool has_full = false;
    Type rows = *dims;
    for (uint32_t d = 0; d < dims->rank; d++)
        if (reduced[d]) rows.dims[d] = 1;
    int64_t n_full = type_elems(dims);
    bool is_all_rows = type_elems(&rows) == n_full;
    for (uint32_t i = 0; i < group->n_nodes; i++)
        if (is_reduction(L->g, group->nodes[i]) && levels[i] > n_levels) n_levels = levels[i];
    if (n_levels) last = n_levels - 1;
    for (uint32_t i = 0; i < group->n_outs; i++)
        for (uint32_t j = 0; j < group->n_nodes; j++)
            if (group->nodes[j] == group->outs[i] && !is_all_rows &&
                type_elems(graph_type_at(L->g, group->outs[i])) == n_full) {
                has_full = true;
                if (levels[j] > last) last = levels[j];
            }
    if (has_full && last + 1 > n_levels) n_levels = last + 1;
    stages_reset(L, n_levels);
    L->k->form = FORM_ROWS;
    Ix full[MAX_RANK], row[MAX_RANK];
    for (uint32_t d = 0; d < dims->rank; d++) full[d] = row[d] = L->dom.dims[d].ix;
    for (uint32_t d = 0; d < dims->rank; d++)
        if (reduced[d]) row[d] = ix_const(L->k, L->arena, 0);
    for (L->level = 0; L->level < n_levels; L->level++) {
        for (uint32_t i = 0; i < group->n_nodes; i++)
            if (is_reduction(L->g, group->nodes[i]) && levels[i] == L->level + 1)
                reduction_accum(L, group->nodes[i], full, reduced);
        if (L->level == last && !is_all_rows) lower_outs(L, dims, full);
    }
    lower_outs(L, &rows, row);
}

static void lower_reduction(Lower *L, Value anchor) {
    const Type *t = graph_type_at(L->g, graph_operand(L->g, anchor, 0));
    uint32_t n = 1;
    int64_t axis = attr_i(L->g, anchor, A_AXIS, 0);
    bool is_arg = graph_op(L->g, anchor) == OP_argmax || graph_op(L->g, anchor) == OP_argmin;
    const int64_t *axes = is_arg ? &axis : attr_list(L->g, anchor, A_AXES, &n);
    lower_rows(L, t, axes, n);
}

/* ---- anchors ---- */

static void lower_own_domain(Lower *L, Value anchor) {
    bool scatters = lower_is_scatter(graph_op(L->g, anchor));
    if (!L->dom.n) {
        if (scatters)
            lower_scatter_domain(L, anchor, false);
        else
            lower_anchor_domain(L, anchor);
    }
    domain_axes(L);
    stages_reset(L, 1);
    L->k->form = FORM_ROWS;
    Ix idx[MAX_RANK];
    if (scatters)
        lower_scatter_terms(L, anchor);
    else
        lower_anchor_terms(L, anchor);
    L->level = 1;
    if (scatters)
        for (uint32_t d = 0; d < graph_type_at(L->g, anchor)->rank; d++) idx[d] = L->dom.dims[d].ix;
    else
        lower_anchor_index(L, anchor, idx);
    lower_outs(L, graph_type_at(L->g, anchor), idx);
}

static bool lower_tile(Lower *L, Value anchor) {
    const Type *t = graph_type_at(L->g, anchor);
    stages_reset(L, 0);
    if (!lower_tile_operands(L, anchor)) return false;
    Kernel *k = L->k;
    k->form = FORM_TILE;
    k->n_axes = 3;
    k->axes[0] = (Axis){k->tile.batch, AXIS_PAR};
    k->axes[1] = (Axis){k->tile.m, AXIS_PAR};
    k->axes[2] = (Axis){k->tile.n, AXIS_PAR};
    k->tile.acc = lower_new_let(L, (DType)t->dtype, false);
    L->accs[L->n_accs++] = (AccSlot){anchor, k->tile.acc};
    Ix idx[MAX_RANK], rest = ix_axis(k, L->arena, 0);
    idx[t->rank - 2] = ix_axis(k, L->arena, 1), idx[t->rank - 1] = ix_axis(k, L->arena, 2);
    for (uint32_t d = t->rank - 2u; d-- > 0;) {
        idx[d] = t->dims[d] > 1 ? ix_mod(k, L->arena, rest, t->dims[d]) : ix_const(k, L->arena, 0);
        rest = t->dims[d] > 1 ? ix_div(k, L->arena, rest, t->dims[d]) : rest;
    }
    lower_outs(L, t, idx);
    return true;
}

static bool in_place_base(const Lower *L, Value anchor) {
    Value base = graph_operand(L->g, anchor, 0);
    uint32_t from = L->entry->buffer_of[base], to = L->entry->out_buffer_of[anchor];
    return from && !lower_is_member(L, base) &&
           L->plan->buffers[from - 1].offset == L->plan->buffers[to - 1].offset;
}

/* The POINTS kernel of a sequential scatter that writes its base; shares the params of L. */
static void lower_base(Lower *L, Value anchor) {
    Kernel *first = arena_alloc(L->arena, sizeof *first);
    Lower B = {.g = L->g,
               .plan = L->plan,
               .group = L->group,
               .entry = L->entry,
               .arena = L->arena,
               .for_gpu = L->for_gpu,
               .k = first};
    const Type *t = graph_type_at(L->g, anchor);
    first->params = L->k->params, first->n_params = L->k->n_params;
    for (uint32_t d = 0; d < t->rank; d++) domain_add(&B, t->dims[d], AXIS_PAR);
    domain_axes(&B);
    stages_reset(&B, 0);
    Ix idx[MAX_RANK];
    for (uint32_t d = 0; d < t->rank; d++) idx[d] = B.dom.dims[d].ix;
    lower_store(&B, anchor, idx, lower_value(&B, graph_operand(L->g, anchor, 0), idx, 0));
    L->k->params = first->params, L->k->n_params = first->n_params;
    lower_finish(&B);
    L->k->first = first;
}

static void lower_sequential_scatter(Lower *L, Value anchor) {
    if (!L->dom.n) lower_scatter_domain(L, anchor, true);
    domain_axes(L);
    stages_reset(L, 1);
    L->k->form = FORM_SCATTER;
    lower_scatter_updates(L, anchor);
    if (!in_place_base(L, anchor)) lower_base(L, anchor);
}

/* A sequential scatter stores the anchor itself and nothing after it. */
static bool scatter_alone(const Group *group) {
    return group->n_outs == 1 && group->outs[0] == group->anchor;
}

static void lower_group(Lower *L) {
    const Group *group = L->group;
    Value anchor = group->anchor;
    switch (group->kind) {
    case GROUP_MAP:
        lower_points(L, &group->dims);
        return;
    case GROUP_ROW:
        lower_rows(L, &group->dims, group->axes, group->n_axes);
        return;
    case GROUP_COPY:
        lower_points(L, graph_type_at(L->g, group->nodes[0]));
        return;
    case GROUP_SCATTER:
        if (!L->for_gpu && scatter_alone(group))
            lower_sequential_scatter(L, anchor);
        else
            lower_own_domain(L, anchor);
        return;
    case GROUP_REDUCE:
        if (is_reduction(L->g, anchor))
            lower_reduction(L, anchor);
        else
            lower_own_domain(L, anchor);
        return;
    case GROUP_CONTRACT:
        if (graph_op(L->g, anchor) == OP_dot && lower_tile(L, anchor)) return;
        *L->k = (Kernel){.ix = NULL};
        L->n_accs = 0, L->n_memo = 0, L->cap_lets = 0, L->let_stage = NULL;
        lower_own_domain(L, anchor);
        if (graph_op(L->g, anchor) != OP_dot && !L->for_gpu)
            L->k->form = FORM_CONV, lower_conv_tile(L, anchor);
        return;
    case GROUP_LOOP: /* its body's groups are lowered one by one */
    case N_GROUP_KINDS:
        break;
    }
    assert(0 && "no such group");
}

/* ---- names ---- */

static const char *kernel_name(const Graph *g, const Group *group, uint32_t number, Arena *arena) {
    char text[80];
    uint32_t n = 0, n_ops = 0;
    OpCode seen[4] = {OP_NONE};
    text[0] = 0;
    if (group->anchor) {
        seen[n_ops++] = graph_op(g, group->anchor);
        n = (uint32_t)snprintf(text, sizeof text, "_%s", op_info[seen[0]].name);
    }
    for (uint32_t i = 0; i < group->n_nodes && n_ops < 4; i++) {
        OpCode op = graph_op(g, group->nodes[i]);
        bool is_new =
            op != OP_cast && op_info[op].lower != LOWER_VIEW && op_info[op].lower != LOWER_LEAF;
        for (uint32_t j = 0; j < n_ops; j++) is_new = is_new && seen[j] != op;
        if (!is_new) continue;
        seen[n_ops++] = op;
        n += (uint32_t)snprintf(text + n, sizeof text - n, "_%s", op_info[op].name);
    }
    return arena_printf(arena, "k%u%s", number, n ? text : "_copy");
}

static const char *loc_text(const Graph *g, LocId id, Arena *arena) {
    static const char *const kinds[N_LOC_KINDS] = {
        [LOC_GRADIENT] = "gradient of ",  [LOC_RECOMPUTE] = "recompute of ",
        [LOC_CAST] = "cast for ",         [LOC_LOSS] = "loss",
        [LOC_OPTIMIZER] = "optimizer",    [LOC_CLIP] = "clip",
        [LOC_ACCUMULATE] = "accumulation"};
    if (!id) return "";
    const Loc *loc = &g->locs[id];
    if (loc->kind == LOC_NODE)
        return loc->name && loc->name[0] ? loc->name : loc->op ? loc->op : "";
    const char *parent = loc_text(g, loc->parent, arena), *kind = kinds[loc->kind];
    size_t n = strlen(kind);
    if (!parent[0]) return kind;
    return arena_printf(arena, "%s%s%s", kind, n && kind[n - 1] == ' ' ? "" : " of ", parent);
}

static void kernel_locs(const Graph *g, const Group *group, Kernel *k, Arena *arena) {
    Text t = {.arena = arena};
    k->locs = arena_alloc(arena, (group->n_nodes + 1) * sizeof *k->locs);
    for (uint32_t i = 0; i < group->n_nodes; i++) {
        LocId loc = graph_node(g, group->nodes[i])->loc;
        bool is_new = loc != 0;
        for (uint32_t j = 0; is_new && j < k->n_locs; j++) is_new = k->locs[j] != loc;
        if (is_new) k->locs[k->n_locs++] = loc;
    }
    for (uint32_t i = 0; i < k->n_locs && i < 6; i++) {
        const char *s = loc_text(g, k->locs[i], arena);
        if (!s[0]) continue;
        text_printf(&t, "%s%s", t.n ? ", " : "", s);
    }
    if (k->n_locs > 6) text_printf(&t, ", ... (%u places)", k->n_locs);
    k->comment = t.s ? t.s : "";
}

Kernel *kernel_lower(const Graph *g, const Plan *plan, uint32_t number, bool for_gpu,
                     Arena *arena) {
    return kernel_lower_group(g, plan, &plan->groups[number], number, for_gpu, arena);
}

Kernel *kernel_lower_group(const Graph *g, const Plan *plan, const Group *group, uint32_t number,
                           bool for_gpu, Arena *arena) {
    Domain dom = {.n = 0};
    Kernel *k;
    for (uint32_t attempt = 0;; attempt++) {
        k = arena_alloc(arena, sizeof *k);
        Lower L = {.g = g,
                   .plan = plan,
                   .group = group,
                   .entry = &plan->entries[group->entry],
                   .arena = arena,
                   .for_gpu = for_gpu,
                   .k = k,
                   .dom = dom};
        lower_group(&L);
        bool again = k->form != FORM_TILE && attempt < 16 && lower_split(&L);
        dom = L.dom;
        if (again) continue;
        lower_finish(&L);
        break;
    }
    k->name = kernel_name(g, group, number, arena);
    k->flops = group_flops(g, group);
    k->bytes = group_moved_bytes(g, plan, group);
    kernel_locs(g, group, k, arena);
    return k;
}
