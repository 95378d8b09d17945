/* ops_create.c - importers of ops that make tensors of sizes: Constant, ConstantOfShape, Range,
 * Shape, Size, EyeLike, OneHot, Trilu. */
#include "context.h"
#include <math.h>
#include <string.h>

enum { MAX_INLINE_ELEMS = 1 << 16 };

/* ---------------------------------------------------------------- Constant */

static Value constant_tensor(ImportNode *n, const Onnx__TensorProto *t) {
    TensorSource s;
    if (!tensor_source(n->im->file, n->g, t, &s)) return 0;
    bool is_float = dtype_info[s.type.dtype].cls == CLASS_FLT;
    const char *output = n->proto->output[0];
    if (is_float && n->im->scope->depth == 0 &&
        (params_names_constant(n->im, output) || type_elems(&s.type) > MAX_INLINE_ELEMS))
        return params_add_constant(n->im, output, &s);
    return build_const(n->g, graph_type(n->g, s.type), s.data);
}

void import_constant(ImportNode *n) {
    Graph *g = n->g;
    uint32_t count;
    const Onnx__AttributeProto *value = find_attribute(n->im->scope, n->proto, "value");
    if (value && value->t)
        n->out[0] = constant_tensor(n, value->t);
    else if (node_has(n, "value_float"))
        n->out[0] = node_number(n, DT_F32, node_float(n, "value_float", 0));
    else if (node_has(n, "value_int"))
        n->out[0] = build_const(g, graph_type_of(g, DT_I64, 0, NULL),
                                (int64_t[]){node_int(n, "value_int", 0)});
    else if (node_has(n, "value_ints")) {
        const int64_t *list = node_ints(n, "value_ints", &count);
        n->out[0] = build_ints(g, list, count);
    } else if (node_has(n, "value_floats")) {
        const float *list = node_floats(n, "value_floats", &count);
        n->out[0] = build_const(g, graph_type_of(g, DT_F32, 1, (int64_t[]){count}), list);
    } else
        node_fail(n, "value", "only dense numbers are supported");
}

void import_constant_of_shape(ImportNode *n) {
    const int64_t *dims;
    uint32_t rank;
    if (!node_ints_at(n, 0, &dims, &rank)) return;
    const Onnx__AttributeProto *value = find_attribute(n->im->scope, n->proto, "value");
    TensorSource s = {.type = {.dtype = DT_F32}};
    if (value && value->t && !tensor_source(n->im->file, n->g, value->t, &s)) return;
    if (rank > MAX_RANK || (s.data && type_elems(&s.type) != 1)) {
        node_fail(n, "value", "one element and rank up to %d are supported", MAX_RANK);
        return;
    }
    Value one = s.data
                    ? build_const(n->g, graph_type_of(n->g, (DType)s.type.dtype, 0, NULL), s.data)
                    : node_number(n, DT_F32, 0);
    n->out[0] = build_expand(n->g, one, rank, dims);
}

/* ---------------------------------------------------------------- shapes */

/* Shape-15 has start and end. */
void import_shape(ImportNode *n) {
    Type t = *node_type(n, n->in[0]);
    int64_t start = node_int(n, "start", 0), end = node_int(n, "end", t.rank), rank = t.rank;
    start += start < 0 ? rank : 0;
    end += end < 0 ? rank : 0;
    start = start < 0 ? 0 : start > rank ? rank : start;
    end = end > rank ? rank : end < start ? start : end;
    n->out[0] = build_ints(n->g, t.dims + start, (uint32_t)(end - start));
}

void import_size(ImportNode *n) {
    int64_t elems = type_elems(node_type(n, n->in[0]));
    n->out[0] = build_const(n->g, graph_type_of(n->g, DT_I64, 0, NULL), &elems);
}

/* ---------------------------------------------------------------- Range */

static Value range_of(ImportNode *n, DType type, Value start, Value delta, double count) {
    int64_t extent = count > 0 ? (int64_t)count : 0;
    Value at = build_iota(n->g, graph_type_of(n->g, type, 1, &extent), 0);
    return node_rule(n, "(add a (mul b c))", (RuleBind[]){{"a", start}, {"b", delta}, {"c", at}},
                     3);
}

void import_range(ImportNode *n) {
    Tensor t[3];
    for (uint32_t i = 0; i < 3; i++)
        if (!node_known(n, node_in(n, i), &t[i])) {
            node_fail_dynamic(n);
            return;
        }
    bool is_float = dtype_info[t[0].type.dtype].cls == CLASS_FLT;
    double count;
    if (is_float)
        count = ceil((t[1].u.f[0] - t[0].u.f[0]) / t[2].u.f[0]);
    else {
        int64_t span = t[1].u.i[0] - t[0].u.i[0], step = t[2].u.i[0];
        count = step ? ceil((double)span / (double)step) : -1;
    }
    if (!(count < 1e9) || (!is_float && t[2].u.i[0] == 0))
        node_fail_shapes(n, "this range does not end");
    else
        n->out[0] = range_of(n, (DType)t[0].type.dtype, build_reshape(n->g, n->in[0], 0, NULL),
                             build_reshape(n->g, n->in[2], 0, NULL), count);
}

/* ---------------------------------------------------------------- coordinates */

void import_eye_like(ImportNode *n) {
    Type t = *node_type(n, n->in[0]);
    DType to =
        node_has(n, "dtype") ? dtype_from_onnx((int)node_int(n, "dtype", 0)) : (DType)t.dtype;
    if (t.rank != 2 || to == DT_NONE) {
        node_fail_shapes(n, "EyeLike takes a matrix of a supported type");
        return;
    }
    t.dtype = DT_I64;
    TypeId type = graph_type(n->g, t);
    Value row = build_iota(n->g, type, 0), column = build_iota(n->g, type, 1);
    Value shifted =
        build_binary(n->g, OP_add, row, node_number(n, DT_I64, (double)node_int(n, "k", 0)));
    n->out[0] = build_cast(n->g, build_binary(n->g, OP_eq, shifted, column), to);
}

void import_trilu(ImportNode *n) {
    Type t = *node_type(n, n->in[0]);
    bool is_upper = node_int(n, "upper", 1) != 0;
    if (t.rank < 2) {
        node_fail_shapes(n, "Trilu takes matrices");
        return;
    }
    TypeId type = graph_type_of(n->g, DT_I64, 2, t.dims + t.rank - 2);
    Value k = node_in(n, 1) ? build_reshape(n->g, build_cast(n->g, n->in[1], DT_I64), 0, NULL)
                            : node_number(n, DT_I64, 0);
    RuleBind binds[] = {{"r", build_iota(n->g, type, 0)},
                        {"c", build_iota(n->g, type, 1)},
                        {"k", k},
                        {"a", n->in[0]},
                        {"z", node_number(n, (DType)t.dtype, 0)}};
    n->out[0] = node_rule(
        n, is_upper ? "(where (le (add r k) c) a z)" : "(where (ge (add r k) c) a z)", binds, 5);
}

/* indices, depth, [off, on] -> a new axis of extent depth; negative indices count from its end */
void import_one_hot(ImportNode *n) {
    const int64_t zero[1] = {0}, one[1] = {1};
    Tensor depth;
    if (!node_known(n, node_in(n, 1), &depth)) {
        node_fail_dynamic(n);
        return;
    }
    Type t = *node_type(n, n->in[0]);
    int64_t extent = dtype_info[depth.type.dtype].cls == CLASS_FLT ? (int64_t)depth.u.f[0]
                                                                   : depth.u.i[0],
            axis, dims[MAX_RANK];
    if (t.rank + 1 > MAX_RANK || extent < 0 || extent > INT32_MAX ||
        !node_axis(n, node_int(n, "axis", -1), t.rank + 1u, &axis))
        return;
    for (int64_t i = 0, from = 0; i <= t.rank; i++) dims[i] = i == axis ? 1 : t.dims[from++];
    Value at = build_reshape(n->g, build_cast(n->g, n->in[0], DT_I64), t.rank + 1u, dims);
    dims[axis] = extent;
    RuleBind binds[] = {
        {"i", at},
        {"p", build_iota(n->g, graph_type_of(n->g, DT_I64, t.rank + 1u, dims), axis)},
        {"d", node_number(n, DT_I64, (double)extent)},
        {"off", build_reshape(n->g, build_slice(n->g, n->in[2], zero, one, NULL), 0, NULL)},
        {"on", build_reshape(n->g, build_slice(n->g, n->in[2], one, one, NULL), 0, NULL)}};
    n->out[0] = node_rule(n, "(where (eq (where (lt i 0) (add i d) i) p) on off)", binds, 5);
}
