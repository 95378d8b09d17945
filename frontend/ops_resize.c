/* ops_resize.c - Resize and Upsample of every version.
 *
 * Interpolation is separable: along each axis the result is a sum of taps, gather(x, index_t) *
 * weight_t with constant indices and weights (one tap for nearest, two for linear, four for cubic,
 * Keys' kernel), so the gradient is the gathers' own. An integral nearest upscale in steps of whole
 * pixels becomes an expand instead. Coordinates follow the ONNX operator's text for each
 * coordinate_transformation_mode. */
#include "import.h"
#include <math.h>
#include <string.h>

typedef struct Resize {
    ImportNode *n;
    const char *mode, *coordinates, *rounding;
    double cubic_a;
    bool exclude_outside;
    double outside; /* extrapolation_value */
} Resize;
typedef struct AxisMap {
    int64_t in, out;
    double scale, roi_from, roi_to;
} AxisMap;

static double source_coordinate(const Resize *r, const AxisMap *m, int64_t o) {
    double x = (double)o, in = (double)m->in, out = m->scale * in;
    if (!strcmp(r->coordinates, "half_pixel")) return (x + 0.5) / m->scale - 0.5;
    if (!strcmp(r->coordinates, "pytorch_half_pixel"))
        return m->out > 1 ? (x + 0.5) / m->scale - 0.5 : 0;
    if (!strcmp(r->coordinates, "align_corners"))
        return m->out > 1 ? x * (in - 1) / ((double)m->out - 1) : 0;
    if (!strcmp(r->coordinates, "asymmetric")) return x / m->scale;
    if (!strcmp(r->coordinates, "half_pixel_symmetric"))
        return in / 2 * (1 - (double)m->out / out) + (x + 0.5) / m->scale - 0.5;
    if (!strcmp(r->coordinates, "tf_half_pixel_for_nn")) return (x + 0.5) / m->scale;
    if (!strcmp(r->coordinates, "tf_crop_and_resize"))
        return m->out > 1 ? m->roi_from * (in - 1) +
                                x * (m->roi_to - m->roi_from) * (in - 1) / ((double)m->out - 1)
                          : 0.5 * (m->roi_from + m->roi_to) * (in - 1);
    return NAN;
}

static double nearest(const Resize *r, double x) {
    if (!strcmp(r->rounding, "floor")) return floor(x);
    if (!strcmp(r->rounding, "ceil")) return ceil(x);
    if (!strcmp(r->rounding, "round_prefer_ceil")) return floor(x + 0.5);
    return ceil(x - 0.5);
}

static double keys(double a, double d) {
    d = fabs(d);
    if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

static uint32_t tap_number(const Resize *r) {
    return !strcmp(r->mode, "nearest") ? 1 : !strcmp(r->mode, "linear") ? 2 : 4;
}

/* The taps of output o: unclamped indices and weights. */
static void taps_at(const Resize *r, double x, double *index, double *weight) {
    double base = floor(x);
    switch (tap_number(r)) {
    case 1:
        index[0] = nearest(r, x), weight[0] = 1;
        break;
    case 2:
        index[0] = base, index[1] = base + 1, weight[1] = x - base, weight[0] = 1 - weight[1];
        break;
    default:
        for (int t = 0; t < 4; t++)
            index[t] = base - 1 + t, weight[t] = keys(r->cubic_a, x - index[t]);
    }
}

static void exclude(const AxisMap *m, const double *index, double *weight, uint32_t taps) {
    double total = 0;
    for (uint32_t t = 0; t < taps; t++) {
        if (index[t] < 0 || index[t] >= (double)m->in) weight[t] = 0;
        total += weight[t];
    }
    for (uint32_t t = 0; t < taps && total != 0; t++) weight[t] /= total;
}

static int64_t clamp_index(double x, int64_t n) {
    return x < 0 ? 0 : x > (double)(n - 1) ? n - 1 : (int64_t)x;
}

/* One gather per tap along the axis, weighted and added. */
static Value resize_axis(const Resize *r, Value x, uint32_t axis, const AxisMap *m) {
    Graph *g = r->n->g;
    uint32_t taps = tap_number(r);
    const Type t = *graph_type_at(g, x);
    size_t n = (size_t)m->out;
    int64_t *index = arena_alloc(r->n->arena, sizeof(int64_t) * n * taps);
    float *weight = arena_alloc(r->n->arena, sizeof(float) * n * taps),
          *out = arena_alloc(r->n->arena, sizeof(float) * n);
    bool crops = !strcmp(r->coordinates, "tf_crop_and_resize"), any_outside = false;
    for (int64_t o = 0; o < m->out; o++) {
        double at[4], w[4], c = source_coordinate(r, m, o);
        taps_at(r, c, at, w);
        if (r->exclude_outside && taps == 4) exclude(m, at, w, taps);
        out[o] = crops && (c < 0 || c > (double)(m->in - 1));
        any_outside |= out[o] != 0;
        for (uint32_t k = 0; k < taps; k++) {
            index[k * n + (size_t)o] = clamp_index(at[k], m->in);
            weight[k * n + (size_t)o] = out[o] != 0 ? 0 : (float)w[k];
        }
    }
    int64_t dims[MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    dims[axis] = m->out;
    TypeId wt = graph_type_of(g, DT_F32, t.rank, dims);
    Value sum = 0;
    for (uint32_t k = 0; k < taps; k++) {
        Value part = build_gather(g, x, build_ints(g, index + k * n, (uint32_t)n), axis);
        if (taps > 1 || any_outside)
            part = build_binary(g, OP_mul, part,
                                build_cast(g, build_const(g, wt, weight + k * n), (DType)t.dtype));
        sum = k ? build_binary(g, OP_add, sum, part) : part;
    }
    if (!any_outside) return sum;
    Value add = build_binary(g, OP_mul, build_cast(g, build_const(g, wt, out), (DType)t.dtype),
                             node_number(r->n, (DType)t.dtype, r->outside));
    return build_binary(g, OP_add, sum, add);
}

/* Nearest by a whole factor where output o reads input o / factor: repeats instead of gathers. */
static bool repeats(const Resize *r, const AxisMap *m) {
    if (strcmp(r->mode, "nearest") || !m->in || m->out % m->in) return false;
    for (int64_t o = 0; o < m->out; o++)
        if (clamp_index(nearest(r, source_coordinate(r, m, o)), m->in) != o / (m->out / m->in))
            return false;
    return true;
}

static Value repeat_axis(Graph *g, Value x, uint32_t axis, int64_t factor) {
    Type t = *graph_type_at(g, x);
    int64_t dims[MAX_RANK + 1];
    if (t.rank >= MAX_RANK) return 0;
    for (uint32_t i = 0, k = 0; i < t.rank; i++) {
        dims[k++] = t.dims[i];
        if (i == axis) dims[k++] = 1;
    }
    Value wide = build_reshape(g, x, t.rank + 1u, dims);
    dims[axis + 1] = factor;
    wide = build_expand(g, wide, t.rank + 1u, dims);
    t.dims[axis] *= factor;
    return build_reshape(g, wide, t.rank, t.dims);
}

/* ---- what the node asks for ---- */

static bool read_modes(ImportNode *n, Resize *r) {
    *r = (Resize){
        .n = n,
        .mode = node_string(n, "mode", "nearest"),
        .cubic_a = node_float(n, "cubic_coeff_a", -0.75),
        .coordinates = node_string(n, "coordinate_transformation_mode",
                                   n->opset < 11 ? "asymmetric" : "half_pixel"),
        .rounding = node_string(n, "nearest_mode", n->opset < 11 ? "floor" : "round_prefer_floor"),
        .exclude_outside = node_int(n, "exclude_outside", 0) != 0,
        .outside = node_float(n, "extrapolation_value", 0)};
    if (!strcmp(r->mode, "bilinear")) r->mode = "linear";
    if (strcmp(r->mode, "nearest") && strcmp(r->mode, "linear") && strcmp(r->mode, "cubic"))
        node_fail(n, "mode", "%s is unknown", r->mode);
    else if (isnan(source_coordinate(r, &(AxisMap){1, 1, 1, 0, 1}, 0)))
        node_fail(n, "coordinate_transformation_mode", "%s is unknown", r->coordinates);
    else if (node_int(n, "antialias", 0))
        node_fail(n, "antialias", "antialiased resizing is not supported");
    else
        return true;
    return false;
}

/* scales or sizes for the axes given; the others stay as they are */
static bool fill_maps(ImportNode *n, const double *scales, uint32_t n_scales, const int64_t *sizes,
                      uint32_t n_sizes, AxisMap *maps) {
    const Type *t = node_type(n, node_in(n, 0));
    uint32_t n_axes, given = n_scales ? n_scales : n_sizes;
    const int64_t *axes = node_ints(n, "axes", &n_axes);
    if (given != (axes ? n_axes : t->rank)) {
        node_fail_shapes(n, "%u scales or sizes for %u axes", given, axes ? n_axes : t->rank);
        return false;
    }
    const char *policy = node_string(n, "keep_aspect_ratio_policy", "stretch");
    double common = 0;
    for (uint32_t i = 0; i < given; i++) {
        int64_t axis = i;
        if (axes && !node_axis(n, axes[i], t->rank, &axis)) return false;
        AxisMap *m = &maps[axis];
        m->scale = n_scales ? scales[i] : (double)sizes[i] / (double)m->in;
        m->out = n_scales ? (int64_t)floor((double)m->in * m->scale) : sizes[i];
        bool larger = !strcmp(policy, "not_smaller");
        if (!i || (larger ? m->scale > common : m->scale < common)) common = m->scale;
    }
    for (uint32_t i = 0; n_sizes && strcmp(policy, "stretch") && i < given; i++) {
        AxisMap *m = &maps[axes ? axes[i] + (axes[i] < 0 ? t->rank : 0) : i];
        m->scale = common, m->out = (int64_t)floor(common * (double)m->in + 0.5);
    }
    return true;
}

/* [starts, ends] of the axes given by `axes`, or of all. */
static void read_roi(ImportNode *n, uint32_t input, AxisMap *maps, uint32_t rank) {
    uint32_t count, n_axes;
    const double *roi;
    const int64_t *axes = node_ints(n, "axes", &n_axes);
    if (!node_in(n, input) || !node_floats_at(n, input, &roi, &count)) return;
    for (uint32_t i = 0; i < count / 2 && i < (axes ? n_axes : rank); i++) {
        int64_t axis = i;
        if (axes && !node_axis(n, axes[i], rank, &axis)) return;
        maps[axis].roi_from = roi[i], maps[axis].roi_to = roi[count / 2 + i];
    }
}

static void resize(ImportNode *n, const double *scales, uint32_t n_scales, const int64_t *sizes,
                   uint32_t n_sizes, uint32_t roi_input) {
    Resize r;
    Value x = node_in(n, 0);
    Type t = *node_type(n, x);
    AxisMap maps[MAX_RANK];
    for (uint32_t i = 0; i < t.rank; i++) maps[i] = (AxisMap){t.dims[i], t.dims[i], 1, 0, 1};
    if (!read_modes(n, &r) || !fill_maps(n, scales, n_scales, sizes, n_sizes, maps)) return;
    if (roi_input) read_roi(n, roi_input, maps, t.rank);
    for (uint32_t i = 0; i < t.rank; i++) {
        bool identity = maps[i].in == maps[i].out && maps[i].scale == 1 && maps[i].roi_from == 0 &&
                        maps[i].roi_to == 1;
        if (identity) continue;
        x = repeats(&r, &maps[i]) ? repeat_axis(n->g, x, i, maps[i].out / maps[i].in)
                                  : resize_axis(&r, x, i, &maps[i]);
    }
    n->out[0] = x;
}

void import_resize(ImportNode *n) {
    const double *scales = NULL;
    const int64_t *sizes = NULL;
    uint32_t n_scales = 0, n_sizes = 0, scales_at = n->opset < 11 ? 1 : 2;
    if (node_in(n, scales_at) && !node_floats_at(n, scales_at, &scales, &n_scales)) return;
    if (!n_scales && !node_ints_at(n, 3, &sizes, &n_sizes)) return;
    resize(n, scales, n_scales, sizes, n_sizes, n->opset < 11 ? 0 : 1);
}

void import_upsample(ImportNode *n) {
    uint32_t count = 0;
    if (n->opset >= 9) {
        const double *scales;
        if (node_floats_at(n, 1, &scales, &count)) resize(n, scales, count, NULL, 0, 0);
        return;
    }
    const float *list = node_floats(n, "scales", &count);
    double scales[MAX_RANK] = {1, 1, 1, 1};
    if (!list) { /* Upsample-1: of [N, C, H, W] */
        scales[2] = node_float(n, "height_scale", 1), scales[3] = node_float(n, "width_scale", 1);
        resize(n, scales, 4, NULL, 0, 0);
        return;
    }
    for (uint32_t i = 0; i < count && i < MAX_RANK; i++) scales[i] = list[i];
    resize(n, scales, count < MAX_RANK ? count : MAX_RANK, NULL, 0, 0);
}
