/* quantised.c - which initializers belong to quantised ops: weights stay what they are in the file,
 * a frozen state that DequantizeLinear is computed from in the step; scales are no parameters.
 * Floats of eight bits never train either, and large tables of narrow integers (an embedding that
 * is gathered before it is dequantised) are no constants of the code. */
#include "context.h"
#include <string.h>

enum { MAX_CONSTANT = 1 << 16 };

static const struct {
    const char *op, *weights, *scales; /* inputs, one digit each */
} readers[] = {{"DequantizeLinear", "0", "1"}, {"QuantizeLinear", "", "1"},
               {"MatMulInteger", "1", ""},     {"ConvInteger", "1", ""},
               {"QLinearMatMul", "3", "146"},  {"QLinearConv", "3", "146"},
               {"MatMulNBits", "1", "23"}};

static void mark_inputs(Import *im, const Onnx__NodeProto *node, const char *inputs, Mark mark) {
    uint32_t at;
    for (; *inputs; inputs++) {
        size_t k = (size_t)(*inputs - '0');
        if (k >= node->n_input) continue;
        if (!names_get(&im->shown_by_value, graph_str(im->g, node->input[k]), &at)) continue;
        Shown *s = &im->shown[at - 1];
        if (mark == MARK_QUANTISED || s->mark < MARK_BUFFER) s->mark = mark;
    }
}

void quantised_mark(Import *im) {
    const Onnx__GraphProto *graph = im->file->proto->graph;
    for (size_t i = 0; i < graph->n_node; i++)
        for (size_t k = 0; k < sizeof readers / sizeof *readers; k++) {
            if (strcmp(graph->node[i]->op_type, readers[k].op)) continue;
            mark_inputs(im, graph->node[i], readers[k].weights, MARK_QUANTISED);
            mark_inputs(im, graph->node[i], readers[k].scales, MARK_BUFFER);
        }
    for (uint32_t i = 0; i < im->n_shown; i++) {
        const Type *t = &im->sources[im->shown[i].initializer].type;
        const DTypeInfo *d = &dtype_info[t->dtype];
        bool is_table = d->cls == CLASS_INT && d->bytes <= 2 && t->rank == 2 &&
                        type_elems(t) > MAX_CONSTANT; /* causal masks of bytes have rank 4 */
        if ((d->cls == CLASS_FLT && d->bytes == 1) || is_table) im->shown[i].mark = MARK_QUANTISED;
    }
}
