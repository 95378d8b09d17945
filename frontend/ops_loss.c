/* ops_loss.c - losses that stand in the model itself: NegativeLogLikelihoodLoss and
 * SoftmaxCrossEntropyLoss.
 *
 * Scores [N,C,d..] and labels [N,d..]; labels get the class axis at extent 1. A label that is
 * ignored counts with weight 0. */
#include "import.h"
#include <string.h>

static Value with_class_axis(ImportNode *n, Value labels) {
    Type t = *node_type(n, labels);
    int64_t dims[MAX_RANK] = {t.dims[0], 1};
    for (uint32_t i = 1; i < t.rank && i + 1 < MAX_RANK; i++) dims[i + 1] = t.dims[i];
    return build_reshape(n->g, build_cast(n->g, labels, DT_I64), t.rank + 1u, dims);
}

/* The weight of each label: that of its class, 0 where it is ignored; 0 (none) where all weigh 1.
 */
static Value label_weights(ImportNode *n, Value labels, Value safe, DType type) {
    bool has_ignore = node_has(n, "ignore_index");
    Value one = node_number(n, type, 1), weights = 0;
    if (node_in(n, 2))
        weights = build_gather(n->g, n->in[2], safe, 0);
    else if (has_ignore)
        weights = build_expand(n->g, one, node_type(n, labels)->rank, node_type(n, labels)->dims);
    if (!weights || !has_ignore) return weights;
    Value ignored = build_binary(n->g, OP_eq, labels,
                                 node_number(n, DT_I64, (double)node_int(n, "ignore_index", 0)));
    return build_map(n->g, OP_where, (Value[]){ignored, node_number(n, type, 0), weights}, 3);
}

static Value sum_all(ImportNode *n, Value v) {
    int64_t axes[MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};
    return build_reshape(n->g, build_reduce(n->g, OP_sum, v, axes, node_type(n, v)->rank), 0, NULL);
}

static Value reduce_loss(ImportNode *n, Value loss, Value weights) {
    const char *reduction = node_string(n, "reduction", "mean");
    const int64_t class_axis = 1;
    if (!strcmp(reduction, "none")) return build_squeeze(n->g, loss, &class_axis, 1);
    Value sum = sum_all(n, loss);
    if (!strcmp(reduction, "sum")) return sum;
    if (strcmp(reduction, "mean") != 0) {
        node_fail(n, "reduction", "'%s' is not known", reduction);
        return 0;
    }
    const Type *t = node_type(n, loss);
    Value count =
        weights ? sum_all(n, weights) : node_number(n, (DType)t->dtype, (double)type_elems(t));
    return build_binary(n->g, OP_div, sum, count);
}

/* -logp at each label. Indices are clamped into the classes, so that an ignored label reads
 * something. */
static Value loss_of(ImportNode *n, Value logp) {
    const int64_t axis = 1;
    Type t = *node_type(n, logp);
    Value labels = with_class_axis(n, n->in[1]);
    RuleBind binds[] = {{"l", labels},
                        {"low", node_number(n, DT_I64, 0)},
                        {"high", node_number(n, DT_I64, (double)(t.dims[1] - 1))}};
    Value safe = node_rule(n, "(clip l low high)", binds, 3);
    Value picked = graph_emit(n->g, OP_take, (Value[]){logp, safe}, 2,
                              graph_attr(n->g, (AttrField[]){attr_int(A_AXIS, axis)}, 1), 0);
    Value loss = picked ? build_unary(n->g, OP_neg, picked) : 0,
          weights = label_weights(n, labels, safe, (DType)t.dtype);
    if (loss && weights) loss = build_binary(n->g, OP_mul, loss, weights);
    return loss ? reduce_loss(n, loss, weights) : 0;
}

static bool fits(ImportNode *n) {
    uint32_t rank = node_type(n, n->in[0])->rank;
    if (rank >= 2 && node_type(n, n->in[1])->rank + 1u == rank) return true;
    node_fail_shapes(n, "scores [N,C,..] and labels [N,..] are wanted");
    return false;
}

void import_nll_loss(ImportNode *n) {
    if (fits(n)) n->out[0] = loss_of(n, n->in[0]);
}

void import_softmax_cross_entropy_loss(ImportNode *n) {
    const int64_t axis = 1;
    if (!fits(n)) return;
    Value logp = graph_emit(n->g, OP_log_softmax, n->in, 1,
                            graph_attr(n->g, (AttrField[]){attr_ints(A_AXES, &axis, 1)}, 1), 0);
    if (!logp) return;
    n->out[0] = loss_of(n, logp);
    if (n->n_out > 1) n->out[1] = logp;
}
