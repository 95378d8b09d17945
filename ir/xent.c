/* xent.c - softmax cross-entropy per label: its expansion and its gradient, too long for the rule
 * language.
 *
 * loss = log sum exp(a - max a) - (a - max a)[label], 0 where the label is `ignore`; d loss/d a =
 * softmax(a) - onehot(label). Both are spelled like the expansions of softmax, so that equal parts
 * become equal nodes. Labels have the dims of the logits with the class axis at extent 1, or
 * without it. */
#include "rule.h"

/* The labels with the class axis at extent 1. */
static Value labels_kept(Graph *g, Value v, int64_t axis) {
    Type dims = *graph_type_at(g, graph_operand(g, v, 0));
    Value labels = graph_operand(g, v, 1);
    dims.dims[axis] = 1;
    return dims_equal(graph_type_at(g, labels), &dims)
               ? labels
               : build_reshape(g, labels, dims.rank, dims.dims);
}

static Value number_like(Graph *g, Value v, double x) {
    return build_splat(g, graph_type_of(g, (DType)graph_type_at(g, v)->dtype, 0, NULL), x);
}

static Value map3(Graph *g, OpCode op, Value a, Value b, Value c) {
    return build_map(g, op, (Value[]){a, b, c}, 3);
}

static Value counted(Graph *g, Value v, Value labels) {
    return build_binary(g, OP_ne, labels,
                        number_like(g, labels, (double)attr_i(g, v, A_IGNORE, -100)));
}

Value expand_xent(Graph *g, Value v, Value dy) {
    int64_t axis = attr_i(g, v, A_AXIS, 0);
    Type result = *graph_type_at(g, v);
    Value a = graph_operand(g, v, 0), labels = labels_kept(g, v, axis),
          counts = counted(g, v, labels);
    Value safe = map3(g, OP_where, counts, labels, number_like(g, labels, 0));
    Value shifted = build_binary(g, OP_sub, a, build_reduce(g, OP_rmax, a, &axis, 1));
    Value total =
        build_unary(g, OP_log, build_reduce(g, OP_sum, build_unary(g, OP_exp, shifted), &axis, 1));
    AttrField field = attr_int(A_AXIS, axis);
    Value picked = graph_emit(g, OP_take, (Value[]){shifted, safe}, 2, graph_attr(g, &field, 1), 0);
    Value loss =
        map3(g, OP_where, counts, build_binary(g, OP_sub, total, picked), number_like(g, a, 0));
    (void)dy;
    return build_reshape(g, loss, result.rank, result.dims);
}

Value vjp_xent(Graph *g, Value v, Value dy) {
    int64_t axis = attr_i(g, v, A_AXIS, 0);
    AttrField axes = attr_ints(A_AXES, &axis, 1);
    Value a = graph_operand(g, v, 0), labels = labels_kept(g, v, axis);
    Type kept = *graph_type_at(g, labels), dims = *graph_type_at(g, a);
    Value softmax = graph_emit(g, OP_softmax, &a, 1, graph_attr(g, &axes, 1), 0);
    TypeId classes = graph_type_of(g, (DType)kept.dtype, dims.rank, dims.dims);
    Value hit = build_binary(g, OP_eq, build_iota(g, classes, axis), labels);
    Value onehot = map3(g, OP_where, hit, number_like(g, a, 1), number_like(g, a, 0));
    Value seed = map3(g, OP_where, counted(g, v, labels),
                      build_reshape(g, dy, kept.rank, kept.dims), number_like(g, dy, 0));
    return build_binary(g, OP_mul, seed, build_binary(g, OP_sub, softmax, onehot));
}
