/* padding.c - which row of an embedding table is PyTorch's padding_idx.
 *
 * nn.Embedding(padding_idx=i) reads row i like any other but gives it no gradient through the
 * lookup (a tied head still does). Dynamo's metadata have the index, "aten.embedding.default](args
 * =
 * (%weight, %ids, 0), ..". Other files do not say so; what remains is that such a row starts as
 * zeros. A table of a PyTorch model of which exactly one of the rows that are used for padding, the
 * first four and the last, holds zeros alone is taken for one. Reading five rows costs nothing,
 * whatever the table's size. */
#include "context.h"
#include <stdlib.h>
#include <string.h>

static const char fx_key[] = "pkg.torch.onnx.fx_node";
enum { NODE_METADATA = 9, NOT_TOLD = -2 };

/* The index that the traced operation has; -1: it has none; NOT_TOLD where there is no metadata. */
static int64_t row_traced(const ImportNode *n) {
    static const char call[] = "aten.embedding.default](args = (";
    const char *text =
        n->proto->base.n_unknown_fields
            ? metadata_find(n->im->file->arena, &n->proto->base, NODE_METADATA, fx_key)
            : NULL;
    const char *at = text ? strstr(text, call) : NULL;
    if (!at) return NOT_TOLD;
    at += strlen(call);
    for (int i = 0; i < 2; i++) {
        at += strcspn(at, ",)");
        if (*at != ',') return -1;
        at++;
    }
    return strtoll(at, NULL, 10);
}

static bool row_is_zero(const TensorSource *s, int64_t row, uint64_t row_bytes) {
    const unsigned char *at = (const unsigned char *)s->data + (uint64_t)row * row_bytes;
    for (uint64_t i = 0; i < row_bytes; i++)
        if (at[i]) return false;
    return true;
}

int64_t node_padding_row(ImportNode *n, Value table, bool *is_guess) {
    int64_t traced = row_traced(n);
    *is_guess = traced == NOT_TOLD;
    if (!*is_guess) return traced < node_type(n, table)->dims[0] ? traced : -1;
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
