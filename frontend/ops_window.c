/* ops_window.c - reads strides, dilations, pads, auto_pad and ceil_mode into one struct.
 *
 * Output extent: floor((in + low + high - span) / stride) + 1 with span = (kernel - 1) * dilation +
 * 1; ceil_mode rounds up, but the last window must begin inside the input or its low padding
 * (PyTorch's rule, ONNX's since opset 19). Pads may then grow at the high end. */
#include "ops_window.h"
#include <string.h>

bool window_list(ImportNode *n, const char *name, uint32_t want, int64_t otherwise, int64_t *out) {
    uint32_t have;
    const int64_t *list = node_ints(n, name, &have);
    if (list && have != want) {
        node_fail(n, name, "%u values are wanted, %u are there", want, have);
        return false;
    }
    for (uint32_t i = 0; i < want; i++) {
        out[i] = list ? list[i] : otherwise;
        if (out[i] >= -INT32_MAX && out[i] <= INT32_MAX) continue;
        node_fail(n, name, "%lld is out of range", (long long)out[i]);
        return false;
    }
    return true;
}

static void same_pads(Window *w, uint32_t i, bool upper) {
    int64_t out = (w->in[i] + w->strides[i] - 1) / w->strides[i];
    int64_t total = (out - 1) * w->strides[i] + (w->kernel[i] - 1) * w->dilations[i] + 1 - w->in[i];
    if (total < 0) total = 0;
    w->low[i] = upper ? total / 2 : total - total / 2;
    w->high[i] = total - w->low[i];
}

static bool read_pads(ImportNode *n, Window *w) {
    const char *mode = node_string(n, "auto_pad", "NOTSET");
    int64_t pads[2 * MAX_RANK] = {0};
    if (!strcmp(mode, "NOTSET") && !window_list(n, "pads", 2 * w->rank, 0, pads)) return false;
    bool same = !strcmp(mode, "SAME_UPPER") || !strcmp(mode, "SAME_LOWER");
    if (!same && strcmp(mode, "NOTSET") && strcmp(mode, "VALID")) {
        node_fail(n, "auto_pad", "%s is unknown", mode);
        return false;
    }
    for (uint32_t i = 0; i < w->rank; i++) {
        w->low[i] = pads[i], w->high[i] = pads[w->rank + i];
        if (same) same_pads(w, i, !strcmp(mode, "SAME_UPPER"));
    }
    return true;
}

static bool out_extent(ImportNode *n, Window *w, uint32_t i, bool ceil_mode) {
    int64_t span = (w->kernel[i] - 1) * w->dilations[i] + 1,
            room = w->in[i] + w->low[i] + w->high[i] - span;
    w->stated_high[i] = w->high[i];
    if (room < 0) {
        node_fail_shapes(n, "a window of %lld over %lld elements (padding %lld and %lld)",
                         (long long)span, (long long)w->in[i], (long long)w->low[i],
                         (long long)w->high[i]);
        return false;
    }
    w->out[i] = room / w->strides[i] + 1;
    if (ceil_mode && room % w->strides[i] && w->out[i] * w->strides[i] < w->in[i] + w->low[i]) {
        w->high[i] += w->strides[i] - room % w->strides[i];
        w->out[i]++;
    }
    return true;
}

bool window_read(ImportNode *n, Value x, const int64_t *kernel, Window *w) {
    const Type *t = node_type(n, x);
    *w = (Window){.rank = t->rank < 2u ? 0u : t->rank - 2u};
    if (!w->rank) {
        node_fail_shapes(n, "[N, C, spatial...] is wanted, the rank is %u", t->rank);
        return false;
    }
    if (!window_list(n, "strides", w->rank, 1, w->strides) ||
        !window_list(n, "dilations", w->rank, 1, w->dilations))
        return false;
    for (uint32_t i = 0; i < w->rank; i++) {
        w->in[i] = t->dims[i + 2], w->kernel[i] = kernel[i];
        if (w->kernel[i] < 1 || w->kernel[i] > INT32_MAX || w->strides[i] < 1 ||
            w->dilations[i] < 1) {
            node_fail(n, "kernel_shape", "kernel, strides and dilations must be positive");
            return false;
        }
    }
    if (!read_pads(n, w)) return false;
    for (uint32_t i = 0; i < w->rank; i++)
        if (!out_extent(n, w, i, node_int(n, "ceil_mode", 0) != 0)) return false;
    return true;
}

AttrId window_attr(Graph *g, const Window *w, int64_t groups) {
    return graph_attr(g,
                      (AttrField[]){attr_ints(A_STRIDES, w->strides, w->rank),
                                    attr_ints(A_DILATIONS, w->dilations, w->rank),
                                    attr_ints(A_LOW, w->low, w->rank),
                                    attr_ints(A_HIGH, w->high, w->rank),
                                    attr_int(A_GROUPS, groups)},
                      5);
}

Value window_view(Graph *g, Value x, const Window *w, double outside) {
    AttrId a =
        graph_attr(g,
                   (AttrField[]){attr_ints(A_KERNEL, w->kernel, w->rank),
                                 attr_ints(A_STRIDES, w->strides, w->rank),
                                 attr_ints(A_DILATIONS, w->dilations, w->rank),
                                 attr_ints(A_LOW, w->low, w->rank),
                                 attr_ints(A_HIGH, w->high, w->rank), attr_float(A_VALUE, outside)},
                   6);
    return graph_emit(g, OP_window, &x, 1, a, 0);
}
