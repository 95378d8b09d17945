/* ops_roi.c - RoiAlign and MaxRoiPool: fixed grids of values out of boxes that come at run time.
 *
 * RoiAlign reads each bin at samples on a regular grid, bilinearly: x as rows [N*H*W, C], one
 * gather of four taps per sample, one reduction (sum or maximum) over samples and taps. How many
 * samples a bin has follows from sampling_ratio, or from boxes that are known at import. Where it
 * depends on boxes of run time (sampling_ratio 0), the average is still exact: bilinear sampling is
 * separable, so it is Wy X Wx^T with weights [bins, H] and [bins, W] that sum over as many samples
 * as can lie on the image. MaxRoiPool's maximum is separable too: first over columns, then over
 * rows, each the first of equals. No gradient reaches the boxes, as in torchvision. */
#include "import.h"
#include <math.h>
#include <string.h>

enum {
    MAX_SAMPLES = 16, /* along a side of a bin that are read one by one where boxes say how many */
    MAX_BINS = 4096   /* along a side, and samples that an attribute asks for */
};

typedef struct RoiAlign {
    ImportNode *n;
    DType d;                                           /* of positions */
    int64_t rois, batch, channels, extent[2], bins[2]; /* extent, bins: rows, columns */
    int64_t samples[2];                                /* per bin; -1: not known */
    bool fixed;                                        /* as many in each box */
    Value x, image, start[2], bin[2], count[2];        /* image i64 [R]; the others [R,1,1] */
} RoiAlign;

static Value number(const RoiAlign *r, double x) { return node_number(r->n, r->d, x); }

static Value iota3(const RoiAlign *r, int64_t extent, uint32_t axis) {
    int64_t dims[3] = {1, 1, 1};
    dims[axis] = extent;
    return build_iota(r->n->g, graph_type_of(r->n->g, r->d, 3, dims), axis);
}

/* Column `which` of the boxes, scaled: [R,1,1] */
static Value box_side(const RoiAlign *r, Value boxes, int64_t which, double scale, double offset) {
    Graph *g = r->n->g;
    Value c = build_slice(g, boxes, (int64_t[]){0, which}, (int64_t[]){r->rois, 1}, NULL);
    RuleBind binds[] = {{"c", build_reshape(g, c, 3, (int64_t[]){r->rois, 1, 1})},
                        {"s", number(r, scale)},
                        {"o", number(r, offset)}};
    return node_rule(r->n, "(sub (mul c s) o)", binds, 3);
}

/* ---------------------------------------------------------------- what the node asks for */

static bool align_shapes(RoiAlign *r) {
    ImportNode *n = r->n;
    Type x = *node_type(n, n->in[0]), boxes = *node_type(n, n->in[1]),
         image = *node_type(n, n->in[2]);
    r->bins[0] = node_int(n, "output_height", 1), r->bins[1] = node_int(n, "output_width", 1);
    bool fits = dtype_info[x.dtype].cls == CLASS_FLT && dtype_info[boxes.dtype].cls == CLASS_FLT &&
                x.rank == 4 && boxes.rank == 2 && boxes.dims[1] == 4 && image.rank == 1 &&
                image.dims[0] == boxes.dims[0] && type_elems(&x) > 0 && r->bins[0] > 0 &&
                r->bins[1] > 0 && r->bins[0] <= MAX_BINS && r->bins[1] <= MAX_BINS;
    if (!fits) {
        node_fail_shapes(n, "X %s, rois %s: [N, C, H, W] and [boxes, 4] are wanted",
                         type_text(n->g, &x), type_text(n->g, &boxes));
        return false;
    }
    r->rois = boxes.dims[0], r->batch = x.dims[0], r->channels = x.dims[1];
    r->extent[0] = x.dims[2], r->extent[1] = x.dims[3];
    r->d = dtype_info[boxes.dtype].bytes < 4 ? DT_F32 : (DType)boxes.dtype;
    return true;
}

/* sampling_ratio 0 takes ceil(bin) samples: the most that any box has, where the boxes are known */
static void count_samples(RoiAlign *r, int axis, int64_t ratio) {
    Tensor t;
    r->samples[axis] = ratio > 0 ? ratio : -1;
    r->count[axis] = ratio > 0 ? number(r, (double)ratio)
                               : node_rule(r->n, "(ceil b)", (RuleBind[]){{"b", r->bin[axis]}}, 1);
    if (ratio > 0 || !node_known(r->n, r->count[axis], &t)) return;
    r->samples[axis] = 1;
    for (int64_t i = 0; i < type_elems(&t.type); i++)
        if (t.u.f[i] > (double)r->samples[axis])
            r->samples[axis] = t.u.f[i] < (double)MAX_BINS ? (int64_t)t.u.f[i] : MAX_BINS + 1;
    if (r->samples[axis] > MAX_BINS) r->samples[axis] = -1; /* absurd boxes: any number */
}

static bool align_read(ImportNode *n, RoiAlign *r) {
    *r = (RoiAlign){.n = n};
    if (!align_shapes(r)) return false;
    const char *mode = node_string(n, "coordinate_transformation_mode",
                                   n->opset < 16 ? "output_half_pixel" : "half_pixel");
    bool half = !strcmp(mode, "half_pixel");
    if (!half && strcmp(mode, "output_half_pixel")) {
        node_fail(n, "coordinate_transformation_mode", "'%s' is not known", mode);
        return false;
    }
    int64_t ratio = node_int(n, "sampling_ratio", 0);
    if (ratio > MAX_BINS) {
        node_fail(n, "sampling_ratio", "%lld is out of range", (long long)ratio);
        return false;
    }
    double scale = node_float(n, "spatial_scale", 1);
    Value boxes = build_unary(n->g, OP_detach, build_cast(n->g, n->in[1], r->d));
    for (int i = 0; i < 2; i++) {
        r->start[i] = box_side(r, boxes, 1 - i, scale, half ? 0.5 : 0);
        RuleBind binds[] = {{"a", r->start[i]},
                            {"b", box_side(r, boxes, 3 - i, scale, half ? 0.5 : 0)},
                            {"n", number(r, (double)r->bins[i])}};
        r->bin[i] =
            node_rule(n, half ? "(div (sub b a) n)" : "(div (max (sub b a) 1) n)", binds, 3);
        count_samples(r, i, ratio);
    }
    r->fixed = ratio > 0;
    r->x = n->in[0];
    r->image = node_index(n, n->in[2], r->batch);
    return r->image != 0;
}

/* ---------------------------------------------------------------- samples along one axis */

typedef struct AxisTaps {
    Value low, high, far, valid; /* [R,bins,S]: pixels (floats), weight of the high one, on the
                                    image and in the count? */
    Value counted;
} AxisTaps;

/* Sample k of a bin, k from 0, or from the first that can lie on the image. */
static AxisTaps axis_samples(const RoiAlign *r, int axis, int64_t samples, bool from_image) {
    ImportNode *n = r->n;
    RuleBind b[12] = {{"s", r->start[axis]},
                      {"b", r->bin[axis]},
                      {"c", r->count[axis]},
                      {"i", iota3(r, r->bins[axis], 1)},
                      {"k", iota3(r, samples, 2)},
                      {"e", number(r, (double)r->extent[axis])},
                      {"m", number(r, (double)r->extent[axis] - 1)}};
    AxisTaps taps;
    if (from_image)
        b[4].value = node_rule(
            n, "(add k (max (floor (sub (div (sub -1 (add s (mul i b))) (div b c)) 1.5)) 0))", b,
            7);
    taps.counted = r->fixed ? 0 : node_rule(n, "(lt k c)", b, 7);
    b[7] =
        (RuleBind){"p", node_rule(n, "(add (add s (mul i b)) (div (mul (add k 0.5) b) c))", b, 7)};
    taps.valid = node_rule(n, "(and (ge p -1) (le p e))", b, 8);
    if (taps.counted) taps.valid = build_binary(n->g, OP_and, taps.valid, taps.counted);
    b[8] = (RuleBind){"v", taps.valid};
    b[9] = (RuleBind){"q", node_rule(n, "(where v (max p 0) 0)", b, 9)};
    taps.low = node_rule(n, "(min (floor q) m)", b, 10);
    b[10] = (RuleBind){"l", taps.low};
    taps.high = node_rule(n, "(min (add l 1) m)", b, 11);
    taps.far = node_rule(n, "(where (ge l m) 0 (sub q l))", b, 11);
    return taps;
}

/* ---------------------------------------------------------------- gathered samples */

/* low and high side by side: [R,bins,2S], samples outermost */
static Value pair(const RoiAlign *r, Value low, Value high) {
    Graph *g = r->n->g;
    Type t = *node_type(r->n, low);
    int64_t one[] = {t.dims[0], t.dims[1], t.dims[2], 1},
            flat[] = {t.dims[0], t.dims[1], 2 * t.dims[2]};
    Value both = build_concat(
        g, (Value[]){build_reshape(g, low, 4, one), build_reshape(g, high, 4, one)}, 2, 3);
    return build_reshape(g, both, 3, flat);
}

/* [R,bins,2S] of one axis -> [R,bh,bw,2Sy,2Sx] by broadcasting */
static Value spread(const RoiAlign *r, Value v, int axis) {
    Type t = *node_type(r->n, v);
    int64_t dims[] = {t.dims[0], 1, 1, 1, 1};
    dims[1 + axis] = t.dims[1], dims[3 + axis] = t.dims[2];
    return build_reshape(r->n->g, v, 5, dims);
}

static Value both_axes(const RoiAlign *r, OpCode op, const Value *axes) {
    return build_binary(r->n->g, op, spread(r, axes[0], 0), spread(r, axes[1], 1));
}

typedef struct Gathered {
    Value values, weights, counted; /* [R,P,T,C], [R,P,T,1], bool [R,P,T,1] or 0 */
} Gathered;

static Gathered gather_samples(const RoiAlign *r) {
    ImportNode *n = r->n;
    Graph *g = n->g;
    Value index[2], weight[2], valid[2], counted[2];
    for (int i = 0; i < 2; i++) {
        AxisTaps t = axis_samples(r, i, r->samples[i], false);
        RuleBind f[] = {{"f", t.far}};
        index[i] = build_cast(g, pair(r, t.low, t.high), DT_I64);
        weight[i] = pair(r, node_rule(n, "(sub 1 f)", f, 1), t.far);
        valid[i] = pair(r, t.valid, t.valid);
        counted[i] = t.counted ? pair(r, t.counted, t.counted) : 0;
    }
    int64_t points = r->bins[0] * r->bins[1], taps = 4 * r->samples[0] * r->samples[1];
    int64_t flat[] = {r->rois, points, taps, 1};
    Value width = node_number(n, DT_I64, (double)r->extent[1]),
          area = node_number(n, DT_I64, (double)(r->extent[0] * r->extent[1]));
    index[0] = build_binary(g, OP_mul, index[0], width);
    Value image =
        build_reshape(g, build_cast(g, r->image, DT_I64), 5, (int64_t[]){r->rois, 1, 1, 1, 1});
    Value at =
        build_binary(g, OP_add, both_axes(r, OP_add, index), build_binary(g, OP_mul, image, area));
    Value rows = build_reshape(g, build_transpose(g, r->x, (int64_t[]){0, 2, 3, 1}), 2,
                               (int64_t[]){r->batch * r->extent[0] * r->extent[1], r->channels});
    RuleBind w[] = {{"v", both_axes(r, OP_and, valid)}, {"w", both_axes(r, OP_mul, weight)}};
    Gathered s;
    s.weights = build_reshape(g, node_rule(n, "(where v w 0)", w, 2), 4, flat);
    s.weights = build_cast(g, s.weights, (DType)node_type(n, r->x)->dtype);
    s.counted = counted[0] ? build_reshape(g, both_axes(r, OP_and, counted), 4, flat) : 0;
    s.values = build_gather(g, rows, build_reshape(g, at, 3, flat), 0);
    return s;
}

/* [R,P,1,C] -> [R,C,bh,bw] */
static Value channels_first(const RoiAlign *r, Value v) {
    Graph *g = r->n->g;
    int64_t points = r->bins[0] * r->bins[1];
    v = build_reshape(g, v, 3, (int64_t[]){r->rois, points, r->channels});
    v = build_transpose(g, v, (int64_t[]){0, 2, 1});
    return build_reshape(g, v, 4, (int64_t[]){r->rois, r->channels, r->bins[0], r->bins[1]});
}

/* Weighted values, 0 where a sample lies off the image, whatever stands at pixel 0. */
static Value weighted(const RoiAlign *r, const Gathered *s) {
    RuleBind b[] = {{"v", s->values}, {"w", s->weights}};
    return node_rule(r->n, "(where (eq w 0) 0 (mul v w))", b, 2);
}

static Value inverse_count(const RoiAlign *r) {
    RuleBind b[] = {{"a", r->count[0]}, {"b", r->count[1]}};
    return node_rule(r->n, "(recip (max (mul (max a 0) (max b 0)) 1))", b, 2);
}

static Value align_average(const RoiAlign *r) {
    ImportNode *n = r->n;
    Gathered s = gather_samples(r);
    Value sum = build_reduce(n->g, OP_sum, weighted(r, &s), (int64_t[]){2}, 1);
    if (!sum) return 0;
    Value share = build_cast(n->g, inverse_count(r), (DType)node_type(n, sum)->dtype);
    if (!r->fixed) share = build_reshape(n->g, share, 4, (int64_t[]){r->rois, 1, 1, 1});
    return channels_first(r, build_binary(n->g, OP_mul, sum, share));
}

/* The greatest along `axis`, and where it stands: the gradient goes to the first of equals. */
static Value first_max(ImportNode *n, Value v, int64_t axis) {
    Graph *g = n->g;
    if (!v) return 0;
    Type t = *node_type(n, v);
    t.dtype = DT_I64;
    Value best =
        graph_emit(g, OP_argmax, &v, 1, graph_attr(g, (AttrField[]){attr_int(A_AXIS, axis)}, 1), 0);
    RuleBind b[] = {{"i", build_iota(g, graph_type(g, t), axis)}, {"b", best}, {"v", v}};
    return build_reduce(g, OP_sum, node_rule(n, "(where (eq i b) v 0)", b, 3), &axis, 1);
}

/* ONNX's maximum is over weighted taps, not over samples. */
static Value align_max(const RoiAlign *r) {
    ImportNode *n = r->n;
    Gathered s = gather_samples(r);
    Value v = weighted(r, &s);
    if (!s.counted || !v) return channels_first(r, first_max(n, v, 2));
    RuleBind b[] = {{"c", s.counted},
                    {"v", v},
                    {"x", node_number(n, (DType)node_type(n, v)->dtype, -INFINITY)}};
    Value best = first_max(n, node_rule(n, "(where c v x)", b, 3), 2);
    return channels_first(r, node_rule(n, "(where (isinf m) 0 m)", (RuleBind[]){{"m", best}}, 1));
}

/* ---------------------------------------------------------------- any number of samples */

/* Weights [R,bins,extent] of the pixels of one axis: the sum over samples of the two taps of each.
 * A bin of b pixels has ceil(b) samples, b / ceil(b) apart: at most extent + 3 of them lie in
 * [-1, extent], wherever the bin is; the rest is room for the rounding of the first. */
static Value axis_weights(const RoiAlign *r, int axis) {
    ImportNode *n = r->n;
    int64_t extent = r->extent[axis];
    AxisTaps t = axis_samples(r, axis, extent + 6, true);
    Type type = *node_type(n, t.low);
    int64_t dims[] = {type.dims[0], type.dims[1], 1, type.dims[2]}, along[] = {1, 1, extent, 1};
    RuleBind b[] = {{"l", build_reshape(n->g, t.low, 4, dims)},
                    {"h", build_reshape(n->g, t.high, 4, dims)},
                    {"f", build_reshape(n->g, t.far, 4, dims)},
                    {"v", build_reshape(n->g, t.valid, 4, dims)},
                    {"p", build_iota(n->g, graph_type_of(n->g, r->d, 4, along), 2)}};
    Value w =
        node_rule(n, "(where v (add (where (eq p l) (sub 1 f) 0) (where (eq p h) f 0)) 0)", b, 5);
    w = build_reduce(n->g, OP_sum, w, (int64_t[]){3}, 1);
    return build_reshape(n->g, w, 3, (int64_t[]){r->rois, r->bins[axis], extent});
}

/* Wy as [R*bh, N*H], zero beside the box's own image, times x as [N*H, W*C]; then Wx per box. */
static Value align_separably(const RoiAlign *r) {
    ImportNode *n = r->n;
    Graph *g = n->g;
    DType d = (DType)node_type(n, r->x)->dtype;
    int64_t h = r->extent[0], w = r->extent[1], c = r->channels, bh = r->bins[0], bw = r->bins[1];
    Value share = build_reshape(g, inverse_count(r), 3, (int64_t[]){r->rois, 1, 1});
    Value wy = build_binary(g, OP_mul, axis_weights(r, 0), share), wx = axis_weights(r, 1);
    RuleBind b[] = {
        {"w", build_reshape(g, wy, 4, (int64_t[]){r->rois, bh, 1, h})},
        {"i", build_reshape(g, build_cast(g, r->image, DT_I64), 4, (int64_t[]){r->rois, 1, 1, 1})},
        {"k", build_iota(g, graph_type_of(g, DT_I64, 4, (int64_t[]){1, 1, r->batch, 1}), 2)}};
    wy = build_cast(g, node_rule(n, "(where (eq i k) w 0)", b, 3), d);
    wy = build_reshape(g, wy, 2, (int64_t[]){r->rois * bh, r->batch * h});
    Value rows = build_reshape(g, build_transpose(g, r->x, (int64_t[]){0, 2, 3, 1}), 2,
                               (int64_t[]){r->batch * h, w * c});
    Value y =
        build_reshape(g, build_dot(g, wy, rows, false, false), 4, (int64_t[]){r->rois, bh, w, c});
    wx = build_reshape(g, build_cast(g, wx, d), 4, (int64_t[]){r->rois, 1, bw, w});
    y = build_dot(g, wx, y, false, false);
    return build_transpose(g, y, (int64_t[]){0, 3, 1, 2});
}

void import_roi_align(ImportNode *n) {
    RoiAlign r;
    const char *mode = node_string(n, "mode", "avg");
    if (!align_read(n, &r)) return;
    bool averages = !strcmp(mode, "avg"), is_known = r.samples[0] > 0 && r.samples[1] > 0;
    bool few = is_known && r.samples[0] <= MAX_SAMPLES && r.samples[1] <= MAX_SAMPLES;
    if (!averages && strcmp(mode, "max"))
        node_fail(n, "mode", "'%s' is not known", mode);
    else if (!averages && !is_known)
        node_fail(n, "sampling_ratio",
                  "0 in mode max needs boxes that are known at import: their sizes say how many "
                  "samples a bin has");
    else
        n->out[0] = !averages        ? align_max(&r)
                    : few || r.fixed ? align_average(&r)
                                     : align_separably(&r);
}

/* ---------------------------------------------------------------- MaxRoiPool */

typedef struct RoiPool {
    ImportNode *n;
    DType d;
    int64_t rois, bins[2], extent[2];
    Value boxes;
} RoiPool;

/* bool [R,bins,extent]: which pixels of an axis are in the bin. Sides are rounded to whole pixels,
 * halves away from zero; a box has one pixel at least. */
static Value bin_pixels(const RoiPool *r, int axis, double scale) {
    Graph *g = r->n->g;
    int64_t one[] = {r->rois, 1}, dims[] = {r->rois, 1, 1};
    RuleBind b[8];
    for (int end = 0; end < 2; end++) {
        Value side = build_slice(g, r->boxes, (int64_t[]){0, 1 + 2 * end + (1 - axis)}, one, NULL);
        RuleBind c[] = {{"c", build_reshape(g, side, 3, dims)},
                        {"s", node_number(r->n, r->d, scale)}};
        b[end] = (RuleBind){end ? "b" : "a",
                            node_rule(r->n,
                                      "(let p (mul c s) (where (lt p 0) (ceil (sub p 0.5))"
                                      " (floor (add p 0.5))))",
                                      c, 2)};
    }
    b[2] = (RuleBind){"n", node_number(r->n, r->d, (double)r->bins[axis])};
    b[3] = (RuleBind){
        "i", build_iota(g, graph_type_of(g, r->d, 3, (int64_t[]){1, r->bins[axis], 1}), 1)};
    b[4] = (RuleBind){
        "p", build_iota(g, graph_type_of(g, r->d, 3, (int64_t[]){1, 1, r->extent[axis]}), 2)};
    b[5] = (RuleBind){"s", node_rule(r->n, "(div (max (add (sub b a) 1) 1) n)", b, 3)};
    return node_rule(
        r->n, "(and (ge p (add a (floor (mul i s)))) (lt p (add a (ceil (mul (add i 1) s)))))", b,
        6);
}

void import_max_roi_pool(ImportNode *n) {
    Graph *g = n->g;
    uint32_t count;
    Type x = *node_type(n, n->in[0]), boxes = *node_type(n, n->in[1]);
    const int64_t *bins = node_ints(n, "pooled_shape", &count);
    if (dtype_info[x.dtype].cls != CLASS_FLT || dtype_info[boxes.dtype].cls != CLASS_FLT ||
        x.rank != 4 || boxes.rank != 2 || boxes.dims[1] != 5 || count != 2 || bins[0] < 1 ||
        bins[1] < 1 || bins[0] > MAX_BINS || bins[1] > MAX_BINS || !type_elems(&x)) {
        node_fail_shapes(n, "X %s, rois %s: [N, C, H, W] and [boxes, 5] are wanted",
                         type_text(g, &x), type_text(g, &boxes));
        return;
    }
    RoiPool r = {.n = n,
                 .d = dtype_info[boxes.dtype].bytes < 4 ? DT_F32 : (DType)boxes.dtype,
                 .rois = boxes.dims[0],
                 .bins = {bins[0], bins[1]},
                 .extent = {x.dims[2], x.dims[3]}};
    int64_t c = x.dims[1], h = x.dims[2], w = x.dims[3];
    double scale = node_float(n, "spatial_scale", 1);
    r.boxes = build_unary(g, OP_detach, build_cast(g, n->in[1], r.d));
    Value image = build_slice(g, r.boxes, (int64_t[]){0, 0}, (int64_t[]){r.rois, 1}, NULL);
    RuleBind i[] = {{"i", build_reshape(g, image, 1, &r.rois)},
                    {"m", node_number(n, r.d, (double)x.dims[0] - 1)}};
    image = build_cast(g, node_rule(n, "(where (gt i 0) (min i m) 0)", i, 2), DT_I64);
    Value rows = bin_pixels(&r, 0, scale), columns = bin_pixels(&r, 1, scale);
    Value none = node_number(n, (DType)x.dtype, -INFINITY);
    RuleBind b[] = {{"v", build_reshape(g, build_gather(g, n->in[0], image, 0), 5,
                                        (int64_t[]){r.rois, c, h, 1, w})},
                    {"k", build_reshape(g, columns, 5, (int64_t[]){r.rois, 1, 1, bins[1], w})},
                    {"x", none}};
    Value best = first_max(n, node_rule(n, "(where k v x)", b, 3), 4);
    b[0].value = build_reshape(g, best, 5, (int64_t[]){r.rois, c, 1, h, bins[1]});
    b[1].value = build_reshape(g, rows, 5, (int64_t[]){r.rois, 1, bins[0], h, 1});
    best = first_max(n, node_rule(n, "(where k v x)", b, 3), 3);
    best = build_reshape(g, best, 4, (int64_t[]){r.rois, c, bins[0], bins[1]});
    n->out[0] = node_rule(n, "(where (and (isinf m) (lt m 0)) 0 m)", (RuleBind[]){{"m", best}}, 1);
}
