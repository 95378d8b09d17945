/* statistics.c - running statistics that the exporter has spoilt.
 *
 * torch.onnx.export with TrainingMode.TRAINING runs the module once, and that moves the running
 * statistics of its BatchNorms by one batch of example input before they are written. A module that
 * was fresh (mean 0, variance 1) then shows keep + (1 - keep) * v as variance and (1 - keep) * m as
 * mean in every channel of every BatchNorm, with v and m of the order of one. Only where the whole
 * model looks so does training start from 0 and 1, as PyTorch's own would, and a note says it.
 * Trained statistics do not fall into that band; other files than PyTorch's are never touched.
 */
#include "context.h"
#include <math.h>
#include <string.h>

static const double largest_moment = 4; /* of v and |m| */

/* Before opset 14 no attribute says so, but outputs for the statistics are there. */
static bool is_training_norm(const Onnx__NodeProto *node) {
    const Onnx__AttributeProto *mode = find_attribute(NULL, node, "training_mode");
    return !strcmp(node->op_type, "BatchNormalization") && node->n_input >= 5 &&
           (mode ? mode->i == 1 : node->n_output > 1);
}

static bool lies_within(Import *im, const char *name, double low, double high) {
    const Shown *shown = shown_find(im, name);
    if (!shown) return false;
    const TensorSource *s = &im->sources[shown->initializer];
    if (s->type.dtype != DT_F32 || !s->data) return false;
    for (int64_t k = 0; k < type_elems(&s->type); k++) {
        float x;
        memcpy(&x, (const char *)s->data + (size_t)k * sizeof x, sizeof x);
        if (!((double)x >= low && (double)x <= high)) return false;
    }
    return true;
}

static bool is_once_moved(Import *im, const Onnx__NodeProto *node) {
    const Onnx__AttributeProto *momentum = find_attribute(NULL, node, "momentum");
    double keep = momentum ? (double)momentum->f : 0.9, band = (1 - keep) * largest_moment;
    return lies_within(im, node->input[3], -band, band) &&
           lies_within(im, node->input[4], keep - 1e-6, keep + band);
}

static void state_reset(Import *im, const char *name, double value) {
    State *s = shown_state(im, name);
    s->source = (WeightSource){0};
    s->fill = value;
}

void statistics_restore(Import *im) {
    const Onnx__GraphProto *graph = im->file->proto->graph;
    bool is_found = false;
    if (!im->model->from_pytorch || im->options->eval_only) return;
    for (size_t i = 0; i < graph->n_node; i++) {
        if (!is_training_norm(graph->node[i])) continue;
        if (!is_once_moved(im, graph->node[i])) return;
        is_found = true;
    }
    for (size_t i = 0; i < graph->n_node; i++) {
        if (!is_training_norm(graph->node[i])) continue;
        state_reset(im, graph->node[i]->input[3], 0);
        state_reset(im, graph->node[i]->input[4], 1);
    }
    if (is_found) diag_add(im->g, N_STATISTICS, 0);
}
