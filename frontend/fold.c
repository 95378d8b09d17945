/* fold.c - what is known at import: shape arithmetic, masks, tables.
 *
 * A value is constant where all its leaves are const or iota nodes; the interpreter evaluates it
 * then and a const node takes its place. import.c does so for every ONNX output, so each value is
 * evaluated once. Large ones stay unevaluated: kernels compute a causal mask faster than they read
 * it. A frozen initializer is not constant (other weights may be loaded), but where an importer
 * asks for the list in it (sizes, scales, axes), its bytes in the file are the answer.
 */
#include "context.h"
#include <string.h>

enum { MAX_FOLDED_ELEMS = 1 << 16, MAX_KNOWN_ELEMS = 1 << 24 };

static uint8_t classify(const Import *im, Value v) {
    OpCode op = graph_op(im->g, v);
    if (op == OP_const || op == OP_iota) return 1;
    uint32_t n = graph_node(im->g, v)->n_operands;
    for (uint32_t i = 0; i < n; i++)
        if (im->folded[graph_operand(im->g, v, i)] != 1) return 2;
    return n ? 1 : 2;
}

bool fold_is_constant(Import *im, Value v) {
    if (v >= im->n_folded) {
        uint32_t n = im->g->n_nodes;
        if (n > im->cap_folded) {
            im->folded = arena_grow(im->arena, im->folded, im->cap_folded, n * 2);
            im->cap_folded = n * 2;
        }
        for (uint32_t i = im->n_folded ? im->n_folded : 1; i < n; i++)
            im->folded[i] = classify(im, i);
        im->n_folded = n;
    }
    return im->folded[v] == 1;
}

static bool is_uniform(const uint8_t *bytes, uint64_t n, uint32_t element_bytes) {
    return n > element_bytes && !memcmp(bytes, bytes + element_bytes, n - element_bytes);
}

Value fold_value(Import *im, Value v) {
    Graph *g = im->g;
    if (!v || v & SEQUENCE_BIT || graph_op(g, v) == OP_const || !fold_is_constant(im, v)) return v;
    TypeId type = graph_node(g, v)->type;
    Type t = g->types[type];
    if (type_elems(&t) > MAX_FOLDED_ELEMS) return v;
    Tensor result;
    if (!interp_fold(g, v, im->arena, &result, MAX_FOLDED_ELEMS)) return v;
    uint64_t n = type_bytes(&t);
    uint8_t *bytes = arena_alloc(im->arena, n + 1);
    tensor_to_bytes(&result, bytes);
    uint32_t one = dtype_info[t.dtype].bytes;
    if (is_uniform(bytes, n, one)) {
        AttrId data = graph_attr(g, (AttrField[]){attr_bytes(A_DATA, bytes, one)}, 1);
        return graph_emit(g, OP_const, NULL, 0, data, type);
    }
    return build_const(g, type, bytes);
}

static bool source_tensor(Import *im, Value v, Tensor *result) {
    const char *name = attr_s(im->g, v, A_NAME);
    uint32_t i;
    if (!name || !names_get(&im->initializers, graph_str(im->g, name), &i)) return false;
    const TensorSource *s = &im->sources[i - 1];
    if (!s->data || type_elems(&s->type) > MAX_FOLDED_ELEMS) return false;
    *result = tensor_from_bytes(im->arena, s->type, s->data);
    return true;
}

bool fold_tensor(Import *im, Value v, Tensor *result) {
    if (!v || v & SEQUENCE_BIT) return false;
    if (graph_op(im->g, v) == OP_state) return source_tensor(im, v, result);
    return fold_is_constant(im, v) && interp_fold(im->g, v, im->arena, result, MAX_KNOWN_ELEMS);
}
