/* ops_resize.c - Resize and Upsample of every version.
 *
 * Interpolation is separable: along each axis the result is a sum of taps, gather(x, index_t) *
 * weight_t with constant indices and weights (one tap for nearest, two for linear, four for cubic,
 * Keys' kernel; with antialiasing as many as the widened kernel reaches), so the gradient is the
 * gathers' own. An integral nearest upscale in steps of whole pixels becomes an expand instead.
 * Coordinates follow the ONNX operator's text for each coordinate_transformation_mode. Where they
 * are rounded to a pixel, the arithmetic is what PyTorch's is: exact quotients of extents where
 * sizes are given, float where scales are. */
#include "import.h"
#include <math.h>
#include <string.h>

enum {
    MAX_SINGLE_TAPS = 4, /* more are one gather and a reduction */
    MAX_EXTENT = 1 << 24 /* of an axis with a table of taps */
};
static const double MIN_SCALE = 1e-6, MAX_SCALE = 1e6;

typedef struct Resize {
    ImportNode *n;
    const char *mode, *coordinates, *rounding;
    double cubic_a;
    bool exclude_outside, antialias, crops;
    double outside; /* extrapolation_value */
} Resize;
typedef struct AxisMap {
    int64_t in, out;
    double scale, roi_from, roi_to;
    bool by_size; /* scale is out / in */
} AxisMap;
typedef struct AxisTaps { /* [count][out] */
    uint32_t count;
    int64_t *index;
    double *weight;
    uint8_t *inside; /* [out]: 0 reads as extrapolation_value */
    bool is_any_outside;
} AxisTaps;

/* x / scale */
static double quotient(const AxisMap *m, double x) {
    if (m->by_size) return x * (double)m->in / (double)m->out;
    return (double)((float)x / (float)m->scale);
}

static double source_coordinate(const Resize *r, const AxisMap *m, int64_t o) {
    double x = (double)o, in = (double)m->in;
    if (!strcmp(r->coordinates, "half_pixel")) return quotient(m, x + 0.5) - 0.5;
    if (!strcmp(r->coordinates, "pytorch_half_pixel"))
        return m->out > 1 ? quotient(m, x + 0.5) - 0.5 : 0;
    if (!strcmp(r->coordinates, "align_corners"))
        return m->out > 1 ? x * (in - 1) / ((double)m->out - 1) : 0;
    if (!strcmp(r->coordinates, "asymmetric")) return quotient(m, x);
    if (!strcmp(r->coordinates, "half_pixel_symmetric")) /* middle to middle, exactly */
        return quotient(m, x + 0.5 - (double)m->out / 2) + in / 2 - 0.5;
    if (!strcmp(r->coordinates, "tf_half_pixel_for_nn")) return quotient(m, x + 0.5);
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

/* ---------------------------------------------------------------- taps */

static bool is_nearest(const Resize *r) { return !strcmp(r->mode, "nearest"); }

/* Linear's triangle or Keys' kernel at distance d */
static double kernel(const Resize *r, double d) {
    double a = r->cubic_a;
    d = fabs(d);
    if (!strcmp(r->mode, "linear")) return d < 1 ? 1 - d : 0;
    if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

/* How much narrower than a pixel of the input the kernel is: below 1 where it is widened. */
static double sharpness(const Resize *r, const AxisMap *m) {
    return r->antialias && m->scale < 1 ? m->scale : 1;
}

/* Taps before and at the pixel left of a coordinate; as many follow it. */
static int64_t reach(const Resize *r, const AxisMap *m) {
    double radius = !strcmp(r->mode, "linear") ? 1 : 2;
    return (int64_t)ceil(radius / sharpness(r, m));
}

static int64_t clamp_index(double x, int64_t n) {
    return x < 0 ? 0 : x > (double)(n - 1) ? n - 1 : (int64_t)x;
}

/* The kernel at the taps around x, scaled to a sum of 1 where it was widened or cut. */
static void taps_at(const Resize *r, const AxisMap *m, double x, int64_t o, AxisTaps *t) {
    double total = 0, first = floor(x) - (double)reach(r, m) + 1, s = sharpness(r, m);
    for (uint32_t k = 0; k < t->count; k++) {
        int64_t at = (int64_t)k * m->out + o;
        double pixel = first + k;
        bool is_out = r->exclude_outside && (pixel < 0 || pixel >= (double)m->in);
        t->weight[at] = is_out ? 0 : kernel(r, (pixel - x) * s);
        t->index[at] = clamp_index(pixel, m->in);
        total += t->weight[at];
    }
    bool scales = total != 0 && (r->exclude_outside || s < 1);
    for (uint32_t k = 0; scales && k < t->count; k++) t->weight[(int64_t)k * m->out + o] /= total;
}

static AxisTaps axis_taps(const Resize *r, const AxisMap *m) {
    AxisTaps t = {.count = is_nearest(r) ? 1 : 2 * (uint32_t)reach(r, m)};
    size_t n = (size_t)m->out;
    t.index = arena_alloc(r->n->arena, sizeof(int64_t) * (n * t.count + 1));
    t.weight = arena_alloc(r->n->arena, sizeof(double) * (n * t.count + 1));
    t.inside = arena_alloc(r->n->arena, n + 1);
    for (int64_t o = 0; o < m->out; o++) {
        double x = source_coordinate(r, m, o);
        t.inside[o] = !r->crops || (x >= 0 && x <= (double)(m->in - 1));
        t.is_any_outside |= !t.inside[o];
        if (is_nearest(r))
            t.index[o] = clamp_index(nearest(r, x), m->in);
        else
            taps_at(r, m, x, o, &t);
    }
    return t;
}

/* ---------------------------------------------------------------- one axis */

static Value weight_const(const Resize *r, Type t, const double *w) {
    uint32_t one = dtype_info[t.dtype].bytes;
    int64_t n = type_elems(&t);
    uint8_t *bytes = arena_alloc(r->n->arena, type_bytes(&t) + 1);
    for (int64_t i = 0; i < n; i++) elem_store((DType)t.dtype, bytes + i * one, w[i]);
    return build_const(r->n->g, graph_type(r->n->g, t), bytes);
}

/* Extent 1 but along `axis` and, where not 0, along the axis before it. */
static Type along(const Type *x, uint32_t axis, int64_t extent, int64_t before) {
    Type t = {.dtype = x->dtype, .rank = (uint8_t)(x->rank + (before ? 1 : 0))};
    for (uint32_t i = 0; i < t.rank; i++) t.dims[i] = 1;
    if (before) t.dims[axis] = before;
    t.dims[axis + (before ? 1 : 0)] = extent;
    return t;
}

/* One gather per tap, weighted and added. */
static Value few_taps(const Resize *r, Value x, uint32_t axis, const AxisMap *m,
                      const AxisTaps *t) {
    Graph *g = r->n->g;
    const Type type = *graph_type_at(g, x);
    Value sum = 0;
    for (uint32_t k = 0; k < t->count; k++) {
        Value at = build_ints(g, t->index + k * (size_t)m->out, (uint32_t)m->out);
        Value part = build_gather(g, x, at, axis);
        if (t->count > 1)
            part = build_binary(
                g, OP_mul, part,
                weight_const(r, along(&type, axis, m->out, 0), t->weight + k * (size_t)m->out));
        sum = k ? build_binary(g, OP_add, sum, part) : part;
    }
    return sum;
}

/* One gather of [count, out] before the axis, weighted and summed over the taps. */
static Value many_taps(const Resize *r, Value x, uint32_t axis, const AxisMap *m,
                       const AxisTaps *t) {
    Graph *g = r->n->g;
    Type type = *graph_type_at(g, x);
    int64_t at[] = {t->count, m->out};
    if (type.rank == MAX_RANK) {
        node_fail_shapes(r->n, "antialiasing of rank %d", MAX_RANK);
        return 0;
    }
    Value index = build_const(g, graph_type_of(g, DT_I64, 2, at), t->index);
    Value weight = weight_const(r, along(&type, axis, m->out, t->count), t->weight);
    Value y = build_binary(g, OP_mul, build_gather(g, x, index, axis), weight);
    y = build_reduce(g, OP_sum, y, (int64_t[]){axis}, 1);
    return build_squeeze(g, y, (int64_t[]){axis}, 1);
}

static Value resize_axis(const Resize *r, Value x, uint32_t axis, const AxisMap *m) {
    Graph *g = r->n->g;
    AxisTaps t = axis_taps(r, m);
    Value y =
        t.count <= MAX_SINGLE_TAPS ? few_taps(r, x, axis, m, &t) : many_taps(r, x, axis, m, &t);
    if (!y || !t.is_any_outside) return y;
    const Type type = *graph_type_at(g, y);
    Type flags = along(&type, axis, m->out, 0);
    flags.dtype = DT_BOOL;
    Value inside = build_const(g, graph_type(g, flags), t.inside);
    return build_map(g, OP_where,
                     (Value[]){inside, y, node_number(r->n, (DType)type.dtype, r->outside)}, 3);
}

/* Nearest by a whole factor where output o reads input o / factor: repeats instead of gathers. */
static bool repeats(const Resize *r, const AxisMap *m) {
    if (!is_nearest(r) || r->crops || !m->in || m->out % m->in) return false;
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
        .outside = node_float(n, "extrapolation_value", 0),
        .antialias = node_int(n, "antialias", 0) != 0};
    r->crops = !strcmp(r->coordinates, "tf_crop_and_resize");
    if (!strcmp(r->mode, "bilinear")) r->mode = "linear";
    if (strcmp(r->mode, "nearest") && strcmp(r->mode, "linear") && strcmp(r->mode, "cubic"))
        node_fail(n, "mode", "%s is unknown", r->mode);
    else if (isnan(source_coordinate(r, &(AxisMap){1, 1, 1, 0, 1, true}, 0)))
        node_fail(n, "coordinate_transformation_mode", "%s is unknown", r->coordinates);
    else
        return true;
    return false;
}

/* Sets the result's extent, from the scale or as given. */
static bool set_extent(ImportNode *n, AxisMap *m, int64_t out) {
    bool is_scale = m->scale >= MIN_SCALE && m->scale <= MAX_SCALE;
    if (!m->by_size && is_scale) out = (int64_t)floorf((float)m->in * (float)m->scale);
    m->out = out;
    if (out == m->in && (m->by_size || is_scale)) return true;
    if (out >= 0 && out <= MAX_EXTENT && (out == 0 || (m->in > 0 && is_scale))) return true;
    node_fail_shapes(n, "from %lld to %lld, scale %g", (long long)m->in, (long long)out, m->scale);
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
    bool stretches = !strcmp(policy, "stretch"), larger = !strcmp(policy, "not_smaller");
    if (!stretches && !larger && strcmp(policy, "not_larger")) {
        node_fail(n, "keep_aspect_ratio_policy", "'%s' is not known", policy);
        return false;
    }
    double common = 0;
    for (uint32_t i = 0; i < given; i++) {
        int64_t axis = i;
        if (axes && !node_axis(n, axes[i], t->rank, &axis)) return false;
        AxisMap *m = &maps[axis];
        m->by_size = !n_scales;
        m->scale = n_scales ? scales[i] : (double)sizes[i] / (double)m->in;
        if (!set_extent(n, m, n_scales ? -1 : sizes[i])) return false;
        if (!i || (larger ? m->scale > common : m->scale < common)) common = m->scale;
    }
    for (uint32_t i = 0; n_sizes && !stretches && i < given; i++) {
        AxisMap *m = &maps[axes ? axes[i] + (axes[i] < 0 ? t->rank : 0) : i];
        m->by_size = false, m->scale = common;
        if (!set_extent(n, m, -1)) return false;
        m->out = (int64_t)floor(common * (double)m->in + 0.5);
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
    for (uint32_t i = 0; i < t.rank; i++) maps[i] = (AxisMap){t.dims[i], t.dims[i], 1, 0, 1, true};
    if (!read_modes(n, &r) || !fill_maps(n, scales, n_scales, sizes, n_sizes, maps)) return;
    if (roi_input && r.crops) read_roi(n, roi_input, maps, t.rank);
    bool mixes_numbers = !is_nearest(&r) && dtype_info[t.dtype].cls != CLASS_FLT;
    if (mixes_numbers) x = build_cast(n->g, x, DT_F32);
    for (uint32_t i = 0; x && i < t.rank; i++) {
        bool identity = maps[i].in == maps[i].out && maps[i].scale == 1 && maps[i].roi_from == 0 &&
                        maps[i].roi_to == 1;
        if (identity) continue;
        x = repeats(&r, &maps[i]) ? repeat_axis(n->g, x, i, maps[i].out / maps[i].in)
                                  : resize_axis(&r, x, i, &maps[i]);
    }
    n->out[0] = mixes_numbers ? build_cast(n->g, x, (DType)t.dtype) : x;
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
