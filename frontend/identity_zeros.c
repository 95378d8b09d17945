/* identity_zeros.c - biases of zeros that dynamo's optimizer drops.
 *
 * A bias that holds zeros alone is taken off Gemm, Conv and ConvTranspose, so that a fresh model
 * loses parameters that it would train. The operation that the node stands for names the bias
 * still, its extent is that of the weight, and its values are known: it becomes a parameter again,
 * and the node's third input. */
#include "identity.h"
#include <string.h>

enum { BIAS = 2, MAX_LISTED = 6 };

/* Elements of the bias; 0 where the node is no such product, or has a bias. */
static int64_t bias_extent(const Identity *id, const Onnx__NodeProto *node, uint32_t weight) {
    const Type *t = &id->im->sources[weight].type;
    const Onnx__AttributeProto *flip = find_attribute(NULL, node, "transB"),
                               *group = find_attribute(NULL, node, "group");
    bool is_gemm = !strcmp(node->op_type, "Gemm");
    if (is_gemm && t->rank == 2) return flip && flip->i ? t->dims[0] : t->dims[1];
    if (!strcmp(node->op_type, "Conv") && t->rank > 2) return t->dims[0];
    if (!strcmp(node->op_type, "ConvTranspose") && t->rank > 2)
        return t->dims[1] * (group ? group->i : 1);
    return 0;
}

static uint32_t source_add(Identity *id, DType dtype, int64_t n) {
    Import *im = id->im;
    uint32_t at = (uint32_t)id->graph->n_initializer + id->n_zeros++;
    TensorSource s = {.type = {.dtype = (uint8_t)dtype, .rank = 1}};
    s.type.dims[0] = n;
    s.bytes = type_bytes(&s.type);
    s.data = arena_alloc(im->arena, s.bytes + 1);
    im->sources = arena_grow(im->arena, im->sources, at * sizeof s, ((size_t)at + 1) * sizeof s);
    im->sources[at] = s;
    return at;
}

static void bias_add(Identity *id, Onnx__NodeProto *node, uint32_t index, const char *name,
                     uint32_t source) {
    Import *im = id->im;
    char **inputs = arena_alloc(im->file->arena, (BIAS + 1) * sizeof *inputs);
    memcpy(inputs, node->input, BIAS * sizeof *inputs);
    inputs[BIAS] = arena_strdup(im->file->arena, name);
    node->input = inputs;
    node->n_input = BIAS + 1;
    uint32_t *readers = arena_alloc(im->arena, 2 * sizeof *readers);
    readers[0] = index;
    readers[1] = BIAS;
    shown_add(im, (Shown){.value = name,
                          .name = name,
                          .initializer = source,
                          .mark = MARK_PARAM,
                          .is_restored = true,
                          .is_named = true,
                          .readers = readers,
                          .n_readers = 1});
}

static const char *bias_find(Identity *id, Onnx__NodeProto *node, uint32_t index) {
    const Shown *weight = node->n_input >= BIAS ? shown_find(id->im, node->input[1]) : NULL;
    bool has_bias = node->n_input > BIAS && *node->input[BIAS];
    if (!weight || has_bias) return NULL;
    int64_t n = bias_extent(id, node, weight->initializer);
    const char *name = n > 0 ? fx_lost(id, node, BIAS) : NULL;
    DType dtype = (DType)id->im->sources[weight->initializer].type.dtype;
    if (!name || dtype_info[dtype].cls != CLASS_FLT || shown_find(id->im, name)) return NULL;
    bias_add(id, node, index, name, source_add(id, dtype, n));
    return name;
}

void zeros_restore(Identity *id) {
    const char *names = "";
    uint32_t n = 0;
    for (uint32_t i = 0; i < id->graph->n_node; i++) {
        const char *name = bias_find(id, id->graph->node[i], i);
        if (name && n++ < MAX_LISTED)
            names = arena_printf(id->im->arena, "%s%s%s", names, *names ? ", " : "", name);
    }
    if (n && !id->im->options->eval_only)
        diag_add(id->im->g, N_ZEROS, 0, (long long)n, names, n > MAX_LISTED ? ", ..." : "");
}
