/* live.c - which nodes and outputs a training step needs: obstacles elsewhere are none.
 *
 * Where the option --loss says which tensor the loss is taken of, outputs beside it may stay away:
 * by name (KIND:TENSOR, or the output `logits` of a loss over classes), or by shape (the loss is
 * the model's own scalar: an output declared with more elements is not it). In all other cases
 * every output is needed. A node is live where an output that is needed depends on it. */
#include "context.h"
#include <string.h>

typedef struct Liveness {
    Import *im;
    NameMap names;
} Liveness;

static void live_name(Liveness *l, const char *name) {
    names_set(l->im->arena, &l->names, graph_str(l->im->g, name), 1);
}

static void live_inputs(Liveness *l, const Onnx__NodeProto *node) {
    for (size_t i = 0; i < node->n_input; i++) live_name(l, node->input[i]);
    for (size_t i = 0; i < node->n_attribute; i++) {
        const Onnx__GraphProto *body = node->attribute[i]->g;
        for (size_t k = 0; body && k < body->n_node; k++) live_inputs(l, body->node[k]);
        for (size_t k = 0; body && k < body->n_output; k++) live_name(l, body->output[k]->name);
    }
}

static bool has_output(const Import *im, const char *name) {
    const Onnx__GraphProto *graph = im->file->proto->graph;
    for (size_t i = 0; i < graph->n_output; i++)
        if (!strcmp(graph->output[i]->name, name)) return true;
    return false;
}

static bool has_tensor(const Import *im, const char *name) {
    const Onnx__GraphProto *graph = im->file->proto->graph;
    for (size_t i = 0; i < graph->n_node; i++)
        for (size_t k = 0; k < graph->node[i]->n_output; k++)
            if (!strcmp(graph->node[i]->output[k], name)) return true;
    return has_output(im, name);
}

/* The tensor that the loss is taken of, or NULL where the option does not say it, or says it wrong.
 */
static const char *loss_tensor(const Import *im) {
    const char *loss = im->options->loss, *colon = loss ? strchr(loss, ':') : NULL;
    if (colon) return has_tensor(im, colon + 1) ? colon + 1 : NULL;
    return loss && strcmp(loss, "output") && has_output(im, "logits") ? "logits" : NULL;
}

void loss_report(Import *im) {
    const Onnx__GraphProto *graph = im->file->proto->graph;
    const char *loss = im->options->loss, *colon = loss ? strchr(loss, ':') : NULL;
    if (!colon || has_tensor(im, colon + 1)) return;
    size_t n = 0, total = 1;
    for (size_t i = 0; i < graph->n_node; i++) total += graph->node[i]->n_output;
    const char **names = arena_alloc(im->arena, total * sizeof *names);
    for (size_t i = 0; i < graph->n_node; i++)
        for (size_t k = 0; k < graph->node[i]->n_output; k++)
            names[n++] = graph->node[i]->output[k];
    const char *closest = closest_name(im->arena, colon + 1, names, (uint32_t)n);
    diag_add(im->g, E_LOSS_TENSOR, 0, colon + 1);
    diag_hint(im->g, closest ? "did you mean %s?" : "KIND:TENSOR names an output%s of a node",
              closest ? closest : "");
}

/* Is an output declared with more elements than one? */
static bool is_declared_wide(const Onnx__ValueInfoProto *output) {
    const Onnx__TypeProto *type = output->type;
    bool is_tensor = type && type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    const Onnx__TensorShapeProto *shape = is_tensor ? type->tensor_type->shape : NULL;
    for (size_t i = 0; shape && i < shape->n_dim; i++) {
        const Onnx__TensorShapeProto__Dimension *d = shape->dim[i];
        if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE &&
            d->dim_value != 1)
            return true;
    }
    return false;
}

/* May the model's own scalar be among the outputs? */
static bool has_narrow_output(const Import *im) {
    const Onnx__GraphProto *graph = im->file->proto->graph;
    for (size_t i = 0; i < graph->n_output; i++)
        if (!is_declared_wide(graph->output[i])) return true;
    return false;
}

bool output_is_needed(const Import *im, size_t i) {
    const Onnx__ValueInfoProto *output = im->file->proto->graph->output[i];
    const char *loss = im->options->loss, *tensor = loss_tensor(im);
    if (tensor) return !strcmp(output->name, tensor);
    bool is_own = loss && !strcmp(loss, "output") && has_narrow_output(im);
    return !is_own || !is_declared_wide(output);
}

bool *live_nodes(Import *im) {
    const Onnx__GraphProto *graph = im->file->proto->graph;
    bool *is_live = arena_alloc(im->arena, graph->n_node + 1);
    Liveness l = {.im = im};
    if (loss_tensor(im)) live_name(&l, loss_tensor(im));
    for (size_t i = 0; i < graph->n_output; i++)
        if (output_is_needed(im, i)) live_name(&l, graph->output[i]->name);
    for (size_t i = graph->n_node; i-- > 0;) {
        const Onnx__NodeProto *node = graph->node[i];
        uint32_t used;
        for (size_t k = 0; k < node->n_output; k++)
            is_live[i] |= names_get(&l.names, graph_str(im->g, node->output[k]), &used);
        if (is_live[i]) live_inputs(&l, node);
    }
    return is_live;
}
