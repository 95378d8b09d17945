/* lower_tile.c - a dot over buffers as a Tile: strides of both operands over batch, row and column.
 *
 * Each operand is evaluated in a scratch kernel whose axes are the batch dims, rows and columns;
 * where that is one unguarded load with an affine index, its coefficients are the strides. Batch
 * dims that both operands step through evenly become one. */
#include <string.h>
#include "lower.h"

typedef struct Operand {
    Value base;
    DType dtype;
    int64_t constant, strides[MAX_AXES];
} Operand;

/* Views as strides, where the plan knows them: reshapes that split and merge axes included. */
static bool view_strides(const Lower *L, Value v, Operand *o) {
    Value base = plan_view_affine(L->g, L->entry->buffer_of, v, &o->constant, o->strides);
    if (!base || lower_is_member(L, base)) return false;
    o->base = base;
    o->dtype = (DType)graph_type_at(L->g, base)->dtype;
    return true;
}

static bool operand_strides(const Lower *outer, Value v, uint32_t rank, Operand *o) {
    if (view_strides(outer, v, o)) return true;
    const Type *t = graph_type_at(outer->g, v);
    Kernel scratch = {.n_axes = rank};
    StmtList rows[1] = {{0}}, loops[1] = {{0}};
    Lower L = {.g = outer->g,
               .plan = outer->plan,
               .group = outer->group,
               .entry = outer->entry,
               .arena = outer->arena,
               .k = &scratch,
               .rows = rows,
               .loops = loops};
    Ix idx[MAX_RANK];
    for (uint32_t d = 0; d < rank; d++) scratch.axes[d] = (Axis){t->dims[d], AXIS_PAR};
    for (uint32_t d = 0; d < rank; d++)
        idx[d] = t->dims[d] == 1 ? ix_const(&scratch, L.arena, 0) : ix_axis(&scratch, L.arena, d);
    lower_value(&L, v, idx, 0);
    if (rows[0].n != 1 || loops[0].n || rows[0].s[0].kind != ST_LOAD || rows[0].s[0].n_conds)
        return false;
    o->base = scratch.params[rows[0].s[0].param].value;
    o->dtype = scratch.params[rows[0].s[0].param].dtype;
    return ix_affine(&scratch, rows[0].s[0].ix, &o->constant, o->strides);
}

/* Lists the batch dims of extent > 1, joining neighbours that both operands step through as through
 * one. */
static void tile_batch(Tile *t, const Type *type, const Operand *a, const Operand *b) {
    uint32_t n = 0;
    for (uint32_t d = 0; d + 2 < type->rank; d++) {
        int64_t extent = type->dims[d];
        if (extent == 1) continue;
        bool joins = n > 0 && t->a_batch_strides[n - 1] == a->strides[d] * extent &&
                     t->b_batch_strides[n - 1] == b->strides[d] * extent;
        if (joins) extent *= t->batch_dims[--n];
        t->batch_dims[n] = extent, t->a_batch_strides[n] = a->strides[d],
        t->b_batch_strides[n] = b->strides[d];
        n++;
    }
    t->n_batch_axes = n > 1 ? n : 0;
    if (n == 1) t->a_batch = t->a_batch_strides[0], t->b_batch = t->b_batch_strides[0];
}

bool lower_tile_operands(Lower *L, Value v) {
    const Graph *g = L->g;
    const Type *t = graph_type_at(g, v);
    if (graph_op(g, v) != OP_dot || dtype_info[t->dtype].cls != CLASS_FLT) return false;
    Value va = graph_operand(g, v, 0), vb = graph_operand(g, v, 1);
    if (lower_is_member(L, va) || lower_is_member(L, vb)) return false;
    Operand a = {0}, b = {0};
    uint32_t r = t->rank;
    if (!operand_strides(L, va, r, &a) || !operand_strides(L, vb, r, &b)) return false;
    bool ta = attr_i(g, v, A_TA, 0) != 0, tb = attr_i(g, v, A_TB, 0) != 0;
    Tile *tile = &L->k->tile;
    *tile = (Tile){.batch = 1,
                   .m = t->dims[r - 2],
                   .n = t->dims[r - 1],
                   .k = graph_type_at(g, va)->dims[ta ? r - 2 : r - 1],
                   .a_offset = a.constant,
                   .b_offset = b.constant,
                   .a_m = a.strides[ta ? r - 1 : r - 2],
                   .a_k = a.strides[ta ? r - 2 : r - 1],
                   .b_k = b.strides[tb ? r - 1 : r - 2],
                   .b_n = b.strides[tb ? r - 2 : r - 1]};
    for (uint32_t d = 0; d + 2 < r; d++) tile->batch *= t->dims[d];
    tile_batch(tile, t, &a, &b);
    tile->a = lower_param(L, L->entry->buffer_of[a.base] - 1, a.base, false);
    tile->b = lower_param(L, L->entry->buffer_of[b.base] - 1, b.base, false);
    return true;
}
