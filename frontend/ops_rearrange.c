/* ops_rearrange.c - DepthToSpace, SpaceToDepth, Col2Im, CenterCropPad: elements change place, views
 * and one fold. */
#include "ops_window.h"
#include <string.h>

/* ---- blocks of pixels to channels and back ---- */

static bool block_of(ImportNode *n, int64_t *b, int64_t divisor_power) {
    const Type *t = node_type(n, node_in(n, 0));
    *b = node_int(n, "blocksize", 0);
    bool ok = t->rank == 4 && *b > 0 && *b <= 65536 &&
              (divisor_power ? t->dims[1] % (*b * *b) == 0
                             : t->dims[2] % *b == 0 && t->dims[3] % *b == 0);
    if (!ok) node_fail(n, "blocksize", "%lld does not divide [N, C, H, W]", (long long)*b);
    return ok;
}

/* CRD: the channel is outermost; DCR: the place in the block is. */
static bool channel_first(ImportNode *n, bool *crd) {
    const char *mode = node_string(n, "mode", "DCR");
    *crd = !strcmp(mode, "CRD");
    if (*crd || !strcmp(mode, "DCR")) return true;
    node_fail(n, "mode", "'%s' is not known", mode);
    return false;
}

void import_depth_to_space(ImportNode *n) {
    int64_t b;
    bool crd;
    if (!block_of(n, &b, 1) || !channel_first(n, &crd)) return;
    const Type t = *node_type(n, node_in(n, 0));
    int64_t c = t.dims[1] / (b * b), h = t.dims[2], w = t.dims[3];
    Value v = build_reshape(n->g, node_in(n, 0), 6,
                            crd ? (int64_t[]){t.dims[0], c, b, b, h, w}
                                : (int64_t[]){t.dims[0], b, b, c, h, w});
    v = build_transpose(n->g, v,
                        crd ? (int64_t[]){0, 1, 4, 2, 5, 3} : (int64_t[]){0, 3, 4, 1, 5, 2});
    n->out[0] = build_reshape(n->g, v, 4, (int64_t[]){t.dims[0], c, h * b, w * b});
}

void import_space_to_depth(ImportNode *n) {
    int64_t b;
    bool crd;
    if (!block_of(n, &b, 0) || !channel_first(n, &crd)) return;
    const Type t = *node_type(n, node_in(n, 0));
    int64_t c = t.dims[1], h = t.dims[2] / b, w = t.dims[3] / b;
    Value v = build_reshape(n->g, node_in(n, 0), 6, (int64_t[]){t.dims[0], c, h, b, w, b});
    v = build_transpose(n->g, v,
                        crd ? (int64_t[]){0, 1, 3, 5, 2, 4} : (int64_t[]){0, 3, 5, 1, 2, 4});
    n->out[0] = build_reshape(n->g, v, 4, (int64_t[]){t.dims[0], c * b * b, h, w});
}

/* ---- Col2Im ---- */

static bool image_window(ImportNode *n, const int64_t *image, const int64_t *block, Window *w) {
    int64_t pads[2 * MAX_RANK];
    if (!window_list(n, "strides", w->rank, 1, w->strides) ||
        !window_list(n, "dilations", w->rank, 1, w->dilations) ||
        !window_list(n, "pads", 2 * w->rank, 0, pads))
        return false;
    for (uint32_t i = 0; i < w->rank; i++) {
        w->low[i] = pads[i], w->high[i] = pads[w->rank + i];
        w->in[i] = image[i] < INT32_MAX ? image[i] : -1;
        w->kernel[i] = block[i] < INT32_MAX ? block[i] : -1;
        int64_t room = w->in[i] + w->low[i] + w->high[i] - (w->kernel[i] - 1) * w->dilations[i] - 1;
        if (w->in[i] < 0 || w->strides[i] < 1 || w->dilations[i] < 1 || w->kernel[i] < 1 ||
            room < 0) {
            node_fail_shapes(n, "a block of %lld over an image of %lld", (long long)block[i],
                             (long long)image[i]);
            return false;
        }
        w->out[i] = room / w->strides[i] + 1;
    }
    return true;
}

/* [N, C * block, positions] -> [N, C, positions.., block..], folded onto the image */
void import_col2im(ImportNode *n) {
    Graph *g = n->g;
    const int64_t *image, *block;
    uint32_t n_image, n_block;
    Window w = {0};
    Type x = *node_type(n, n->in[0]);
    if (!node_ints_at(n, 1, &image, &n_image) || !node_ints_at(n, 2, &block, &n_block)) return;
    w.rank = n_image;
    if (n_image != n_block || n_image < 1 || 2 + 2 * n_image > MAX_RANK || x.rank != 3) {
        node_fail_shapes(n, "columns %s, an image of rank %u, a block of rank %u", type_text(g, &x),
                         n_image, n_block);
        return;
    }
    if (!image_window(n, image, block, &w)) return;
    int64_t taps = 1, places = 1, dims[MAX_RANK], perm[MAX_RANK] = {0, 1};
    for (uint32_t i = 0; i < w.rank; i++) taps *= w.kernel[i], places *= w.out[i];
    if (x.dims[1] % taps || x.dims[2] != places) {
        node_fail_shapes(n, "%s does not hold %lld columns of blocks of %lld", type_text(g, &x),
                         (long long)places, (long long)taps);
        return;
    }
    Type t = {
        .dtype = x.dtype, .rank = (uint8_t)(2 + w.rank), .dims = {x.dims[0], x.dims[1] / taps}};
    dims[0] = t.dims[0], dims[1] = t.dims[1];
    for (uint32_t i = 0; i < w.rank; i++) {
        dims[2 + i] = w.kernel[i], dims[2 + w.rank + i] = w.out[i];
        perm[2 + i] = 2 + w.rank + i, perm[2 + w.rank + i] = 2 + i;
        t.dims[2 + i] = w.in[i];
    }
    Value v = build_transpose(g, build_reshape(g, n->in[0], 2 + 2 * w.rank, dims), perm);
    AttrField fields[] = {attr_ints(A_KERNEL, w.kernel, w.rank),
                          attr_ints(A_STRIDES, w.strides, w.rank),
                          attr_ints(A_DILATIONS, w.dilations, w.rank),
                          attr_ints(A_LOW, w.low, w.rank), attr_ints(A_HIGH, w.high, w.rank)};
    n->out[0] = graph_emit(g, OP_fold, &v, 1, graph_attr(g, fields, 5), graph_type(g, t));
}

/* ---- CenterCropPad ---- */

/* An odd one too many is cropped, or padded, at the end. */
void import_center_crop_pad(ImportNode *n) {
    const int64_t *shape;
    uint32_t count, n_axes;
    Type t = *node_type(n, n->in[0]);
    const int64_t *axes = node_ints(n, "axes", &n_axes);
    int64_t low[MAX_RANK] = {0}, high[MAX_RANK] = {0}, unique[MAX_RANK];
    if (!node_ints_at(n, 1, &shape, &count)) return;
    if (count != (axes ? n_axes : t.rank)) {
        node_fail_shapes(n, "%u extents for %u axes", count, axes ? n_axes : t.rank);
        return;
    }
    if (axes && !node_axes(n, axes, n_axes, t.rank, unique)) return;
    for (uint32_t i = 0; i < count; i++) {
        int64_t axis = axes ? axes[i] + (axes[i] < 0 ? t.rank : 0) : i;
        if (shape[i] < 0 || shape[i] > INT32_MAX) {
            node_fail_shapes(n, "an extent of %lld", (long long)shape[i]);
            return;
        }
        int64_t more = shape[i] - t.dims[axis];
        low[axis] = more / 2, high[axis] = more - more / 2;
    }
    n->out[0] = build_pad(n->g, n->in[0], low, high, NULL, 0);
}
