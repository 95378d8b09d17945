/* ops_index.c - Gather, GatherElements, GatherND and the Scatter family become gather, take,
 * gather_nd and scatter, put, scatter_nd.
 *
 * Core indices are non-negative; node_index (import.h) makes ONNX's so, and GatherND's tuples are
 * treated here the same way, with one extent per component. */
#include "import.h"
#include <string.h>

static Value with_axis(ImportNode *n, OpCode op, const Value *operands, uint32_t count,
                       int64_t axis, int mode) {
    AttrField fields[] = {attr_int(A_AXIS, axis), attr_int(A_MODE, mode)};
    return graph_emit(n->g, op, operands, count, graph_attr(n->g, fields, mode < 0 ? 1 : 2), 0);
}

static bool index_axis(ImportNode *n, int64_t *axis) {
    return node_axis(n, node_int(n, "axis", 0), node_type(n, n->in[0])->rank, axis);
}

/* The same values, but no gradient flows where the index is `row`. */
static Value without_padding(ImportNode *n, Value y, Value idx, int64_t row) {
    Type t = *node_type(n, y);
    int64_t dims[MAX_RANK];
    memcpy(dims, t.dims, sizeof dims);
    dims[t.rank - 1] = 1;
    idx = build_expand(n->g, build_reshape(n->g, idx, t.rank, dims), t.rank, t.dims);
    RuleBind binds[] = {{"a", y},
                        {"i", idx},
                        {"row", node_number(n, (DType)node_type(n, idx)->dtype, (double)row)}};
    return node_rule(n, "(where (eq i row) (detach a) a)", binds, 3);
}

void import_gather(ImportNode *n) {
    int64_t axis;
    Tensor known;
    if (!index_axis(n, &axis)) return;
    Value idx = node_index(n, n->in[1], node_type(n, n->in[0])->dims[axis]);
    n->out[0] = idx ? build_gather(n->g, n->in[0], idx, axis) : 0;
    bool is_guess = true, is_sought = n->out[0] && n->training && axis == 0;
    int64_t padding = is_sought ? node_padding_row(n, n->in[0], &is_guess) : -1;
    if (padding < 0 || node_known(n, idx, &known)) return;
    n->out[0] = without_padding(n, n->out[0], idx, padding);
    if (is_guess) diag_add(n->g, N_PADDING, 0, (long long)padding, attr_s(n->g, n->in[0], A_NAME));
}

void import_gather_elements(ImportNode *n) {
    int64_t axis;
    if (!index_axis(n, &axis)) return;
    Value idx = node_index(n, n->in[1], node_type(n, n->in[0])->dims[axis]);
    n->out[0] = with_axis(n, OP_take, (Value[]){n->in[0], idx}, 2, axis, -1);
}

/* ---------------------------------------------------------------- tuples of indices */

/* Known tuples: checked, negatives counted from the end. */
static Value known_tuples(ImportNode *n, Value idx, const Tensor *t, const int64_t *extents,
                          int64_t depth) {
    int64_t elems = type_elems(&t->type);
    bool is_any_negative = false;
    int64_t *fixed = arena_alloc(n->arena, ((size_t)elems + 1) * sizeof *fixed);
    for (int64_t i = 0; i < elems; i++) {
        int64_t at = t->u.i[i], extent = extents[i % depth];
        is_any_negative |= at < 0;
        fixed[i] = at < 0 ? at + extent : at;
        if (fixed[i] >= 0 && fixed[i] < extent) continue;
        node_fail_shapes(n, "index %lld is outside an axis of %lld", (long long)at,
                         (long long)extent);
        return 0;
    }
    return is_any_negative
               ? build_const(n->g, graph_type_of(n->g, DT_I64, t->type.rank, t->type.dims), fixed)
               : idx;
}

static Value index_tuples(ImportNode *n, Value idx, int64_t batch) {
    Tensor known;
    Type a = *node_type(n, n->in[0]), t = *node_type(n, idx);
    int64_t depth = t.rank ? t.dims[t.rank - 1] : 0;
    if (depth < 1 || batch + depth > a.rank) {
        node_fail_shapes(n, "%lld indices into rank %d", (long long)depth, a.rank);
        return 0;
    }
    if (node_known(n, idx, &known)) return known_tuples(n, idx, &known, a.dims + batch, depth);
    idx = build_cast(n->g, idx, DT_I64);
    RuleBind binds[] = {{"a", idx}, {"b", build_ints(n->g, a.dims + batch, (uint32_t)depth)}};
    return node_rule(n, "(where (lt a 0) (add a b) a)", binds, 2);
}

static Value with_batch(ImportNode *n, OpCode op, const Value *operands, uint32_t count,
                        int64_t batch, int mode) {
    AttrField fields[] = {attr_int(A_BATCH, batch), attr_int(A_MODE, mode)};
    return graph_emit(n->g, op, operands, count, graph_attr(n->g, fields, mode < 0 ? 1 : 2), 0);
}

void import_gather_nd(ImportNode *n) {
    int64_t batch = node_int(n, "batch_dims", 0);
    Value idx = index_tuples(n, n->in[1], batch);
    n->out[0] = with_batch(n, OP_gather_nd, (Value[]){n->in[0], idx}, 2, batch, -1);
}

/* ---------------------------------------------------------------- scatter */

static bool scatter_mode(ImportNode *n, int *mode) {
    static const struct {
        const char *name;
        ScatterMode mode;
    } modes[] = {{"none", SCATTER_SET},
                 {"add", SCATTER_ADD},
                 {"mul", SCATTER_MUL},
                 {"min", SCATTER_MIN},
                 {"max", SCATTER_MAX}};
    const char *name = node_string(n, "reduction", "none");
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (!strcmp(modes[i].name, name)) {
            *mode = (int)modes[i].mode;
            return true;
        }
    node_fail(n, "reduction", "'%s' is not known", name);
    return false;
}

/* Scatter-9 is ScatterElements without a reduction. */
void import_scatter_elements(ImportNode *n) {
    int64_t axis;
    int mode;
    if (!index_axis(n, &axis) || !scatter_mode(n, &mode)) return;
    Value idx = node_index(n, n->in[1], node_type(n, n->in[0])->dims[axis]);
    n->out[0] = with_axis(n, OP_put, (Value[]){n->in[0], idx, n->in[2]}, 3, axis, mode);
}

void import_scatter_nd(ImportNode *n) {
    int mode;
    if (!scatter_mode(n, &mode)) return;
    Value idx = index_tuples(n, n->in[1], 0);
    n->out[0] = with_batch(n, OP_scatter_nd, (Value[]){n->in[0], idx, n->in[2]}, 3, 0, mode);
}

/* The present lengths of a cache grow by what is written: update[.., u, ..] goes to
 * write_indices[b] + u along the axis, or round its end. */
void import_tensor_scatter(ImportNode *n) {
    Type t = *node_type(n, n->in[0]), u = *node_type(n, n->in[1]);
    int64_t axis, first[MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (!node_axis(n, node_int(n, "axis", -2), t.rank, &axis)) return;
    bool is_circular = !strcmp(node_string(n, "mode", "linear"), "circular");
    if (u.rank != t.rank || u.dims[axis] > t.dims[axis] || axis == 0) {
        node_fail_shapes(n, "an update of %s for a cache of %s", type_text(n->g, &u),
                         type_text(n->g, &t));
        return;
    }
    u.dtype = DT_I64;
    first[0] = t.dims[0];
    Value from = node_in(n, 2)
                     ? build_reshape(n->g, build_cast(n->g, n->in[2], DT_I64), t.rank, first)
                     : node_number(n, DT_I64, 0);
    RuleBind binds[] = {{"i", build_iota(n->g, graph_type(n->g, u), axis)},
                        {"f", from},
                        {"e", node_number(n, DT_I64, (double)t.dims[axis])}};
    Value at = node_rule(n, is_circular ? "(irem (add i f) e)" : "(add i f)", binds, 3);
    n->out[0] = with_axis(n, OP_put, (Value[]){n->in[0], at, n->in[1]}, 3, axis, SCATTER_SET);
}

/* The first lengths[b] steps of each sequence backwards, the others as they are. */
void import_reverse_sequence(ImportNode *n) {
    Type t = *node_type(n, n->in[0]), l = *node_type(n, n->in[1]);
    int64_t time, batch, dims[MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (!node_axis(n, node_int(n, "time_axis", 0), t.rank, &time) ||
        !node_axis(n, node_int(n, "batch_axis", 1), t.rank, &batch))
        return;
    if (time == batch || l.rank != 1 || l.dims[0] != t.dims[batch]) {
        node_fail_shapes(n, "lengths of %s for %s", type_text(n->g, &l), type_text(n->g, &t));
        return;
    }
    dims[batch] = l.dims[0];
    Type places = t;
    places.dtype = DT_I64;
    RuleBind binds[] = {
        {"i", build_iota(n->g, graph_type(n->g, places), time)},
        {"l", build_reshape(n->g, build_cast(n->g, n->in[1], DT_I64), t.rank, dims)}};
    Value from = node_rule(n, "(where (lt i l) (sub (sub l 1) i) i)", binds, 2);
    n->out[0] = with_axis(n, OP_take, (Value[]){n->in[0], from}, 2, time, -1);
}
