/* padding.c - which row of an embedding table is PyTorch's padding_idx.
 *
 * nn.Embedding(padding_idx=i) reads row i like any other but gives it no gradient through the
 * lookup (a tied head still does). The ONNX file does not say so; what remains is that such a row
 * starts as zeros. A table of a PyTorch model of which exactly one of the rows that are used for
 * padding, the first four and the last, holds zeros alone is taken for one. Reading five rows costs
 * nothing, whatever the table's size. */
#include "context.h"
#include <string.h>

static bool row_is_zero(const TensorSource *s, int64_t row, uint64_t row_bytes) {
    const unsigned char *at = (const unsigned char *)s->data + (uint64_t)row * row_bytes;
    for (uint64_t i = 0; i < row_bytes; i++)
        if (at[i]) return false;
    return true;
}

int64_t node_padding_row(ImportNode *n, Value table) {
    if (!node_from_pytorch(n) || graph_op(n->g, table) != OP_state ||
        node_type(n, table)->rank != 2)
        return -1;
    const char *name = attr_s(n->g, table, A_NAME);
    const TensorSource *s = state_source(n->im, graph_str(n->g, name));
    if (!graph_state(n->g, name)->trains || !s) return -1;
    const int64_t rows = s->type.dims[0], candidates[] = {0, 1, 2, 3, rows - 1};
    int64_t found = -1;
    uint32_t n_zero = 0;
    if (!s->data || rows <= 4 || !s->type.dims[1]) return -1;
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++)
        if (row_is_zero(s, candidates[i], type_bytes(&s->type) / (uint64_t)rows)) {
            found = candidates[i];
            n_zero++;
        }
    return n_zero == 1 ? found : -1;
}
