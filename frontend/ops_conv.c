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

static bool transpose_window(ImportNode *n, Value x, Value wt, Window *w) {
    uint32_t have;
    const Type *tx = node_type(n, x), *tw = node_type(n, wt);
    *w = (Window){.rank = tx->rank - 2u};
    const int64_t *strides = node_ints(n, "strides", &have),
                  *dilations = node_ints(n, "dilations", &have);
    const int64_t *pads = node_ints(n, "pads", &have);
    if (pads && have != 2 * w->rank) {
        node_fail(n, "pads", "%u values are wanted", 2 * w->rank);
        return false;
    }
    const int64_t *extra = node_ints(n, "output_padding", &have), zero[MAX_RANK] = {0};
    const int64_t *shape = node_ints(n, "output_shape", &have);
    if (shape && have == tx->rank) shape += 2;
    for (uint32_t i = 0; i < w->rank; i++) {
        w->in[i] = tx->dims[i + 2], w->kernel[i] = tw->dims[i + 2];
        w->strides[i] = strides ? strides[i] : 1, w->dilations[i] = dilations ? dilations[i] : 1;
        w->low[i] = pads ? pads[i] : 0, w->high[i] = pads ? pads[w->rank + i] : 0;
        transpose_pads(n, w, extra ? extra : zero, shape, i);
        if (w->out[i] < 1) {
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
    Type t = *node_type(n, x);
    t.dims[1] = node_type(n, w)->dims[1] * groups;
    for (uint32_t i = 0; i < win.rank; i++) t.dims[i + 2] = win.out[i];
    Value y = graph_emit(n->g, OP_conv_dx, (Value[]){x, w}, 2, window_attr(n->g, &win, groups),
                         graph_type(n->g, t));
    n->out[0] = add_bias(n, y, node_in(n, 2));
}
