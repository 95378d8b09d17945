/* attention_dropout.c - the dropout of attention weights that dynamo loses.
 *
 * Exporting a module in training mode, dynamo writes scaled_dot_product_attention without its
 * dropout: the rate stands in the metadata of the nodes alone, "aten.scaled_dot_product_attention
 * .default](args = (%q, %k, %v, %mask, 0.1), ..". The weights are found by following the softmax of
 * such an operation to the product that reads it; there, or in an Attention node, a dropout is put
 * back where --attention-dropout auto asks for it. A note says that it is missing otherwise. */
#include "context.h"
#include <stdlib.h>
#include <string.h>

static const char fx_key[] = "pkg.torch.onnx.fx_node";
static const char sdpa[] = "aten.scaled_dot_product_attention.";
enum { NODE_METADATA = 9, RATE_ARGUMENT = 4 };

/* The rate of the attention that the node is part of; 0 where it is none, or has none. */
static double rate_of(Import *im, const Onnx__NodeProto *node) {
    const char *text = node->base.n_unknown_fields
                           ? metadata_find(im->file->arena, &node->base, NODE_METADATA, fx_key)
                           : NULL;
    const char *op = text ? strstr(text, sdpa) : NULL;
    const char *args = op ? strstr(op, "(args = (") : NULL;
    const char *named = args ? strstr(args, "dropout_p: ") : NULL;
    if (!args) return 0;
    if (named) return strtod(named + strlen("dropout_p: "), NULL);
    int depth = 0, at = 0;
    const char *p = args + strlen("(args = (");
    for (; *p && (depth || *p != ')') && at < RATE_ARGUMENT; p++) {
        depth += *p == '(' || *p == '[';
        depth -= *p == ')' || *p == ']';
        at += *p == ',' && !depth;
    }
    return at == RATE_ARGUMENT ? strtod(p, NULL) : 0;
}

typedef struct Search {
    Import *im;
    NameMap weights; /* values that are attention weights, before the product */
    uint32_t n;
    double rate;
} Search;

static bool reads_weights(const Search *s, const Onnx__NodeProto *node, size_t first, size_t n) {
    uint32_t known;
    for (size_t k = first; k < first + n && k < node->n_input; k++)
        if (names_get(&s->weights, graph_str(s->im->g, node->input[k]), &known)) return true;
    return false;
}

static void search_node(Search *s, const Onnx__NodeProto *node) {
    static const char *const through[] = {"Where", "Cast", "Identity"};
    double rate = rate_of(s->im, node);
    if (!(rate > 0) || !node->n_output) return;
    const char *output = graph_str(s->im->g, node->output[0]);
    bool is_weights = !strcmp(node->op_type, "Softmax");
    for (size_t i = 0; i < sizeof through / sizeof *through; i++)
        is_weights |= !strcmp(node->op_type, through[i]) && reads_weights(s, node, 0, 3);
    if (is_weights) names_set(s->im->arena, &s->weights, output, 1);
    bool is_product = !strcmp(node->op_type, "MatMul") && reads_weights(s, node, 0, 1);
    if (!is_product && strcmp(node->op_type, "Attention")) return;
    s->n++;
    s->rate = rate;
    if (!s->im->options->attention_dropout) return;
    s->im->dropouts =
        arena_grow(s->im->arena, s->im->dropouts, s->im->n_dropouts * sizeof *s->im->dropouts,
                   (s->im->n_dropouts + 1) * sizeof *s->im->dropouts);
    s->im->dropouts[s->im->n_dropouts++] = rate;
    names_set(s->im->arena, &s->im->dropouts_by_output, output, s->im->n_dropouts);
}

void dropouts_find(Import *im) {
    const Onnx__GraphProto *graph = im->file->proto->graph;
    Search s = {.im = im};
    if (im->options->eval_only) return;
    for (size_t i = 0; i < graph->n_node; i++) search_node(&s, graph->node[i]);
    if (s.n)
        diag_add(im->g, im->options->attention_dropout ? N_DROPOUT_BACK : N_DROPOUT, 0, s.rate,
                 (long long)s.n);
}

Value node_lost_dropout(ImportNode *n, Value weights) {
    uint32_t at;
    if (!n->training || !n->n_out || !weights ||
        !names_get(&n->im->dropouts_by_output, graph_str(n->g, n->proto->output[0]), &at))
        return weights;
    Value mask;
    return node_dropout(n, weights, n->im->dropouts[at - 1], &mask);
}
