/* ops_conv.c - Conv and ConvTranspose, any number of spatial axes, groups, dilations, auto_pad.
 *
 * ConvTranspose is conv_dx: the gradient of a Conv with the same window, from y back to x. */
#include "ops_window.h"
#include <string.h>

static Value add_bias(ImportNode *n, Value y, Value bias) {
    if (!y || !bias) return y;
    const Type *t = node_type(n, y), *b = node_type(n, bias);
    int64_t dims[MAX_RANK] = {1, type_elems(b)};
    for (uint32_t i = 2; i < t->rank; i++) dims[i] = 1;
    return build_binary(n->g, OP_add, y, build_reshape(n->g, bias, t->rank, dims));
}

static bool weights_fit(ImportNode *n, Value x, Value w) {
    const Type *tx = node_type(n, x), *tw = node_type(n, w);
    uint32_t n_kernel;
    const int64_t *kernel = node_ints(n, "kernel_shape", &n_kernel);
    bool ok = tx->rank >= 3 && tw->rank == tx->rank && (!kernel || n_kernel == tx->rank - 2u);
    for (uint32_t i = 0; ok && kernel && i < n_kernel; i++) ok = kernel[i] == tw->dims[i + 2];
    if (!ok)
        node_fail_shapes(n, "input of rank %u, weights of rank %u, kernel_shape of %u", tx->rank,
                         tw->rank, n_kernel);
    return ok;
}

void import_conv(ImportNode *n) {
    Value x = node_in(n, 0), w = node_in(n, 1);
    Window win;
    if (!weights_fit(n, x, w) || !window_read(n, x, node_type(n, w)->dims + 2, &win)) return;
    Value y = graph_emit(n->g, OP_conv, (Value[]){x, w}, 2,
                         window_attr(n->g, &win, node_int(n, "group", 1)), 0);
    n->out[0] = add_bias(n, y, node_in(n, 2));
}

/* Pads of ConvTranspose: out = (in - 1) * stride + output_padding + span - low - high, where
 * output_shape or auto_pad may fix out. */
static void transpose_pads(ImportNode *n, Window *w, const int64_t *extra, const int64_t *shape,
                           uint32_t i) {
    const char *mode = node_string(n, "auto_pad", "NOTSET");
    bool same = !strncmp(mode, "SAME", 4);
    int64_t full =
        (w->in[i] - 1) * w->strides[i] + extra[i] + (w->kernel[i] - 1) * w->dilations[i] + 1;
    if (shape || same) {
        int64_t out = shape ? shape[i] : w->in[i] * w->strides[i], total = full - out;
        w->low[i] = !strcmp(mode, "SAME_UPPER") ? total / 2 : total - total / 2;
        w->high[i] = total - w->low[i];
        if (total < 0) w->low[i] = 0, w->high[i] = total;
    }
    w->out[i] = full - w->low[i] - w->high[i];
}

/* output_shape has the spatial extents, or all. */
static bool read_output_shape(ImportNode *n, const Window *w, int64_t *shape) {
    uint32_t have;
    const int64_t *list = node_ints(n, "output_shape", &have);
    if (have != w->rank + 2) return window_list(n, "output_shape", w->rank, 0, shape);
    for (uint32_t i = 0; i < w->rank; i++) shape[i] = list[i + 2];
    return true;
}

static bool transpose_window(ImportNode *n, Value x, Value wt, Window *w) {
    const Type *tx = node_type(n, x), *tw = node_type(n, wt);
    *w = (Window){.rank = tx->rank - 2u};
    int64_t pads[2 * MAX_RANK], extra[MAX_RANK], shape[MAX_RANK];
    if (!window_list(n, "strides", w->rank, 1, w->strides) ||
        !window_list(n, "dilations", w->rank, 1, w->dilations) ||
        !window_list(n, "pads", 2 * w->rank, 0, pads) ||
        !window_list(n, "output_padding", w->rank, 0, extra) || !read_output_shape(n, w, shape))
        return false;
    for (uint32_t i = 0; i < w->rank; i++) {
        w->in[i] = tx->dims[i + 2], w->kernel[i] = tw->dims[i + 2];
        w->low[i] = pads[i], w->high[i] = pads[w->rank + i];
        bool fits = w->strides[i] > 0 && w->dilations[i] > 0 && w->kernel[i] > 0 &&
                    w->kernel[i] <= INT32_MAX && w->in[i] <= INT32_MAX;
        if (fits) transpose_pads(n, w, extra, node_has(n, "output_shape") ? shape : NULL, i);
        if (!fits || w->out[i] < 1 || w->out[i] > INT32_MAX) {
            node_fail_shapes(n, "output extent %lld", (long long)w->out[i]);
            return false;
        }
    }
    return true;
}

/* output_padding makes the mirrored Conv's last window end before the input does: its high padding
 * shrinks by as much. */
static void mirror_pads(Window *w) {
    for (uint32_t i = 0; i < w->rank; i++)
        w->high[i] = (w->in[i] - 1) * w->strides[i] + (w->kernel[i] - 1) * w->dilations[i] + 1 -
                     w->out[i] - w->low[i];
}

void import_conv_transpose(ImportNode *n) {
    Value x = node_in(n, 0), w = node_in(n, 1);
    Window win;
    if (!weights_fit(n, x, w) || !transpose_window(n, x, w, &win)) return;
    mirror_pads(&win);
    int64_t groups = node_int(n, "group", 1);
    if (groups < 1 || groups > INT32_MAX) {
        node_fail(n, "group", "%lld is out of range", (long long)groups);
        return;
    }
    Type t = *node_type(n, x);
    t.dims[1] = node_type(n, w)->dims[1] * groups;
    for (uint32_t i = 0; i < win.rank; i++) t.dims[i + 2] = win.out[i];
    Value y = graph_emit(n->g, OP_conv_dx, (Value[]){x, w}, 2, window_attr(n->g, &win, groups),
                         graph_type(n->g, t));
    n->out[0] = add_bias(n, y, node_in(n, 2));
}
