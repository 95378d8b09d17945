/* ops_shape.c - importers of the ops that rearrange: Reshape, Squeeze, Flatten, Transpose, Expand,
 * Tile, Concat, Split, Slice, Pad become reshape, transpose, expand, slice, concat, pad and gather
 * over static dims. Nothing here computes but index arithmetic at import. */
#include "import.h"
#include <string.h>

static int64_t clamp(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}

/* ---------------------------------------------------------------- reshape and its relatives */

void import_flatten(ImportNode *n) {
    Type t = *node_type(n, n->in[0]);
    int64_t dims[2] = {1, 1}, axis = node_int(n, "axis", 1);
    if (axis < -(int64_t)t.rank || axis > t.rank) {
        node_fail(n, "axis", "%lld is outside rank %d", (long long)axis, t.rank);
        return;
    }
    if (axis < 0) axis += t.rank;
    for (int64_t i = 0; i < t.rank; i++) dims[i >= axis] *= t.dims[i];
    n->out[0] = build_reshape(n->g, n->in[0], 2, dims);
}

/* 0 keeps the dim (unless allowzero), -1 takes what is left. Reshape-1 has the shape as attribute.
 */
void import_reshape(ImportNode *n) {
    const int64_t *list;
    uint32_t rank;
    int64_t dims[MAX_RANK], known = 1, free_axis = -1;
    if (!node_ints_of(n, "shape", 1, &list, &rank)) return;
    Type t = *node_type(n, n->in[0]);
    bool keeps_zero = node_int(n, "allowzero", 0) != 0, is_valid = rank <= MAX_RANK;
    for (uint32_t i = 0; i < rank && is_valid; i++) {
        dims[i] = list[i] == 0 && !keeps_zero && i < t.rank ? t.dims[i] : list[i];
        is_valid = dims[i] >= -1 && (dims[i] >= 0 || free_axis < 0);
        if (dims[i] < 0)
            free_axis = i;
        else
            is_valid &= !__builtin_mul_overflow(known, dims[i], &known);
    }
    if (is_valid && free_axis >= 0) dims[free_axis] = known ? type_elems(&t) / known : 0;
    if (is_valid && free_axis >= 0) known *= dims[free_axis];
    if (!is_valid || known != type_elems(&t))
        node_fail_shapes(n, "%lld elements cannot take the shape asked for",
                         (long long)type_elems(&t));
    else
        n->out[0] = build_reshape(n->g, n->in[0], rank, dims);
}

void import_squeeze(ImportNode *n) {
    const int64_t *axes;
    uint32_t count;
    int64_t sorted[MAX_RANK];
    if (!node_ints_of(n, "axes", 1, &axes, &count)) return;
    Type t = *node_type(n, n->in[0]);
    if (!axes) {
        for (uint32_t i = 0; i < t.rank; i++)
            if (t.dims[i] == 1) sorted[count++] = i;
    } else if (!node_axes(n, axes, count, t.rank, sorted))
        return;
    for (uint32_t i = 0; i < count; i++) {
        if (t.dims[sorted[i]] == 1) continue;
        node_fail_shapes(n, "axis %lld has extent %lld and cannot be squeezed",
                         (long long)sorted[i], (long long)t.dims[sorted[i]]);
        return;
    }
    n->out[0] = build_squeeze(n->g, n->in[0], sorted, count);
}

void import_unsqueeze(ImportNode *n) {
    const int64_t *axes;
    uint32_t count;
    int64_t sorted[MAX_RANK], dims[MAX_RANK];
    if (!node_ints_of(n, "axes", 1, &axes, &count)) return;
    Type t = *node_type(n, n->in[0]);
    uint32_t rank = t.rank + count, next = 0;
    if (rank > MAX_RANK) {
        node_fail_shapes(n, "rank %u is above %d", rank, MAX_RANK);
        return;
    }
    if (!node_axes(n, axes, count, rank, sorted)) return;
    for (uint32_t i = 0, from = 0; i < rank; i++) {
        bool is_new = next < count && sorted[next] == i;
        dims[i] = is_new ? 1 : t.dims[from];
        next += is_new;
        from += !is_new;
    }
    n->out[0] = build_reshape(n->g, n->in[0], rank, dims);
}

void import_transpose(ImportNode *n) {
    uint32_t count;
    int64_t axes[MAX_RANK], sorted[MAX_RANK];
    const int64_t *perm = node_ints(n, "perm", &count);
    uint32_t rank = node_type(n, n->in[0])->rank;
    if (perm && count != rank) {
        node_fail(n, "perm", "%u axes for rank %u", count, rank);
        return;
    }
    for (uint32_t i = 0; i < rank; i++) axes[i] = perm ? perm[i] : rank - 1 - i;
    if (!node_axes(n, axes, rank, rank, sorted)) return;
    for (uint32_t i = 0; i < rank; i++) axes[i] += axes[i] < 0 ? rank : 0;
    n->out[0] = build_transpose(n->g, n->in[0], axes);
}

/* ---------------------------------------------------------------- expand, tile */

/* numpy's broadcasting both ways: a 1 in the asked shape keeps the operand's extent. */
void import_expand(ImportNode *n) {
    const int64_t *list;
    uint32_t count;
    int64_t dims[MAX_RANK];
    if (!node_ints_at(n, 1, &list, &count)) return;
    Type t = *node_type(n, n->in[0]);
    uint32_t rank = count > t.rank ? count : t.rank;
    for (uint32_t i = 0; i < rank && rank <= MAX_RANK; i++) {
        int64_t own = i + t.rank >= rank ? t.dims[i + t.rank - rank] : 1;
        int64_t asked = i + count >= rank ? list[i + count - rank] : 1;
        dims[i] = asked == 1 ? own : asked;
        if (own == 1 || own == dims[i]) continue;
        node_fail_shapes(n, "extent %lld cannot be expanded to %lld", (long long)own,
                         (long long)asked);
        return;
    }
    if (rank > MAX_RANK)
        node_fail_shapes(n, "rank %u is above %d", rank, MAX_RANK);
    else
        n->out[0] = build_expand(n->g, n->in[0], rank, dims);
}

/* Repeats one axis: [outer, d, inner] -> [outer, times, d, inner]. */
static Value tile_axis(ImportNode *n, Value v, uint32_t axis, int64_t times) {
    Type t = *node_type(n, v);
    int64_t outer = 1, inner = 1;
    for (uint32_t i = 0; i < axis; i++) outer *= t.dims[i];
    for (uint32_t i = axis + 1; i < t.rank; i++) inner *= t.dims[i];
    v = build_reshape(n->g, v, 4, (int64_t[]){outer, 1, t.dims[axis], inner});
    v = build_expand(n->g, v, 4, (int64_t[]){outer, times, t.dims[axis], inner});
    t.dims[axis] *= times;
    return build_reshape(n->g, v, t.rank, t.dims);
}

void import_tile(ImportNode *n) {
    const int64_t *repeats;
    uint32_t count;
    if (!node_ints_at(n, 1, &repeats, &count)) return;
    uint32_t rank = node_type(n, n->in[0])->rank;
    if (count != rank) {
        node_fail_shapes(n, "%u repeats for rank %u", count, rank);
        return;
    }
    Value v = n->in[0];
    for (uint32_t i = 0; i < rank; i++) {
        if (repeats[i] >= 0 && repeats[i] <= INT32_MAX) continue;
        node_fail_shapes(n, "%lld repeats", (long long)repeats[i]);
        return;
    }
    for (uint32_t i = 0; v && i < rank; i++)
        if (repeats[i] != 1) v = tile_axis(n, v, i, repeats[i]);
    n->out[0] = v;
}

/* ---------------------------------------------------------------- concat, split */

void import_concat(ImportNode *n) {
    int64_t axis;
    if (n->n_in && node_axis(n, node_int(n, "axis", 1), node_type(n, n->in[0])->rank, &axis))
        n->out[0] = build_concat(n->g, n->in, n->n_in, axis);
}

/* Sizes from the `split` attribute (until 12) or input, or equal parts, the last one smaller. NULL
 * after a diagnostic. */
static const int64_t *split_sizes(ImportNode *n, int64_t extent) {
    const int64_t *given;
    uint32_t count, parts = n->n_out;
    if (!node_ints_of(n, "split", 1, &given, &count)) return NULL;
    int64_t total = 0, *sizes = arena_alloc(n->arena, (parts + 1) * sizeof *sizes);
    int64_t each = (extent + parts - 1) / (parts ? parts : 1);
    for (uint32_t i = 0; i < parts; i++) {
        sizes[i] = given ? (i < count ? clamp(given[i], 0, extent + 1) : 0)
                         : clamp(extent - each * i, 0, each);
        total += sizes[i];
    }
    if (total == extent && (!given || count == parts)) return sizes;
    node_fail_shapes(n, "the parts of a split do not add up to the extent %lld", (long long)extent);
    return NULL;
}

void import_split(ImportNode *n) {
    int64_t axis, start[MAX_RANK] = {0};
    Type t = *node_type(n, n->in[0]);
    if (!node_axis(n, node_int(n, "axis", 0), t.rank, &axis)) return;
    const int64_t *sizes = split_sizes(n, t.dims[axis]);
    for (uint32_t i = 0; sizes && i < n->n_out; i++) {
        t.dims[axis] = sizes[i];
        n->out[i] = build_slice(n->g, n->in[0], start, t.dims, NULL);
        start[axis] += sizes[i];
    }
}

/* ---------------------------------------------------------------- slice */

typedef struct SliceLists {
    const int64_t *starts, *ends, *axes, *steps;
    uint32_t n, n_ends, n_axes, n_steps;
} SliceLists;

/* Slice-1: attributes; since 10: inputs, with steps. */
static bool slice_lists(ImportNode *n, SliceLists *s) {
    if (n->opset < 10) {
        s->starts = node_ints(n, "starts", &s->n);
        s->ends = node_ints(n, "ends", &s->n_ends);
        s->axes = node_ints(n, "axes", &s->n_axes);
        s->steps = NULL, s->n_steps = 0;
    } else if (!node_ints_at(n, 1, &s->starts, &s->n) ||
               !node_ints_at(n, 2, &s->ends, &s->n_ends) ||
               !node_ints_at(n, 3, &s->axes, &s->n_axes) ||
               !node_ints_at(n, 4, &s->steps, &s->n_steps))
        return false;
    if (s->n == s->n_ends && (!s->axes || s->n_axes == s->n) && (!s->steps || s->n_steps == s->n))
        return true;
    node_fail_shapes(n, "starts, ends, axes and steps differ in length");
    return false;
}

static void slice_axis(int64_t d, int64_t from, int64_t to, int64_t step, int64_t *start,
                       int64_t *extent) {
    from += from < 0 ? d : 0;
    to += to < 0 ? d : 0;
    from = step > 0 ? clamp(from, 0, d) : clamp(from, 0, d - 1);
    to = step > 0 ? clamp(to, 0, d) : clamp(to, -1, d - 1);
    int64_t span = step > 0 ? to - from : from - to, by = step > 0 ? step : -step;
    *extent = span > 0 ? (span - 1) / by + 1 : 0;
    *start = *extent ? from : 0;
}

void import_slice(ImportNode *n) {
    SliceLists s;
    int64_t start[MAX_RANK] = {0}, step[MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    Type t = *node_type(n, n->in[0]);
    if (!slice_lists(n, &s)) return;
    for (uint32_t i = 0; i < s.n; i++) {
        int64_t axis, by = s.steps ? s.steps[i] : 1;
        if (!node_axis(n, s.axes ? s.axes[i] : i, t.rank, &axis)) return;
        if (by == 0 || by == INT64_MIN) {
            node_fail_shapes(n, "a slice with step %lld", (long long)by);
            return;
        }
        step[axis] = by;
        slice_axis(t.dims[axis], s.starts[i], s.ends[i], by, &start[axis], &t.dims[axis]);
    }
    n->out[0] = build_slice(n->g, n->in[0], start, t.dims, step);
}

/* ---------------------------------------------------------------- pad */

typedef enum PadMode { PAD_CONSTANT, PAD_REFLECT, PAD_EDGE, PAD_WRAP, PAD_UNKNOWN } PadMode;
static const char *const pad_names[] = {"constant", "reflect", "edge", "wrap"};

enum { MAX_TABLE = 1 << 24 }; /* elements of an axis whose places are a table */

static int64_t floor_mod(int64_t a, int64_t b) { return ((a % b) + b) % b; }

/* Where element i (before 0, after d - 1) of a padded axis of extent d comes from. */
static int64_t pad_source(PadMode mode, int64_t i, int64_t d) {
    if (mode == PAD_EDGE) return clamp(i, 0, d - 1);
    if (mode == PAD_WRAP) return floor_mod(i, d);
    int64_t period = d > 1 ? 2 * (d - 1) : 1, at = floor_mod(i, period);
    return at < d ? at : period - at;
}

static Value pad_by_gather(ImportNode *n, Value v, PadMode mode, const int64_t *low,
                           const int64_t *high) {
    uint32_t rank = node_type(n, v)->rank;
    for (uint32_t axis = 0; v && axis < rank; axis++) {
        int64_t d = node_type(n, v)->dims[axis], extent = d + low[axis] + high[axis];
        if (!low[axis] && !high[axis]) continue;
        if (d < 1 || extent < 0 || extent > MAX_TABLE) {
            node_fail_shapes(n, "an axis of %lld cannot be padded by %lld and %lld", (long long)d,
                             (long long)low[axis], (long long)high[axis]);
            return 0;
        }
        int64_t *source = arena_alloc(n->arena, ((size_t)extent + 1) * sizeof *source);
        for (int64_t i = 0; i < extent; i++) source[i] = pad_source(mode, i - low[axis], d);
        v = build_gather(n->g, v, build_ints(n->g, source, (uint32_t)extent), axis);
    }
    return v;
}

/* What padding reads as: an attribute before 11, an input since. */
static Value pad_constant(ImportNode *n, const int64_t *low, const int64_t *high) {
    Tensor t = {.type = {.dtype = DT_NONE}};
    Value x = n->in[0], fed = node_in(n, 2);
    double value = node_float(n, "value", 0);
    if (fed && type_elems(node_type(n, fed)) != 1) {
        node_fail(n, "constant_value", "must be one number");
        return 0;
    }
    bool is_known = fed && node_known(n, fed, &t);
    if (is_known) value = dtype_info[t.type.dtype].cls == CLASS_FLT ? t.u.f[0] : (double)t.u.i[0];
    Value y = build_pad(n->g, x, low, high, NULL, is_known || !fed ? value : 0);
    if (!fed || is_known || !y) return y;
    Type flags = *node_type(n, x);
    flags.dtype = DT_BOOL;
    Value inside =
        build_pad(n->g, build_splat(n->g, graph_type(n->g, flags), 1), low, high, NULL, 0);
    return build_map(n->g, OP_where, (Value[]){inside, y, build_reshape(n->g, fed, 0, NULL)}, 3);
}

static bool pad_amounts(ImportNode *n, uint32_t rank, int64_t *low, int64_t *high) {
    const int64_t *pads, *axes;
    uint32_t count, n_axes;
    const char *name = n->opset < 2 ? "paddings" : "pads";
    if (!node_ints_of(n, name, 1, &pads, &count) || !node_ints_at(n, 3, &axes, &n_axes))
        return false;
    if (!axes) n_axes = rank;
    if (count != 2 * n_axes) {
        node_fail(n, "pads", "%u amounts for %u axes", count, n_axes);
        return false;
    }
    for (uint32_t i = 0; i < n_axes; i++) {
        int64_t axis;
        if (!node_axis(n, axes ? axes[i] : i, rank, &axis)) return false;
        low[axis] = clamp(pads[i], -INT32_MAX, INT32_MAX);
        high[axis] = clamp(pads[i + n_axes], -INT32_MAX, INT32_MAX);
    }
    return true;
}

void import_pad(ImportNode *n) {
    int64_t low[MAX_RANK] = {0}, high[MAX_RANK] = {0};
    const char *name = node_string(n, "mode", "constant");
    int mode = PAD_CONSTANT;
    while (mode < PAD_UNKNOWN && strcmp(pad_names[mode], name)) mode++;
    if (mode == PAD_UNKNOWN)
        node_fail(n, "mode", "'%s' is not known", name);
    else if (pad_amounts(n, node_type(n, n->in[0])->rank, low, high))
        n->out[0] = mode == PAD_CONSTANT ? pad_constant(n, low, high)
                                         : pad_by_gather(n, n->in[0], (PadMode)mode, low, high);
}
