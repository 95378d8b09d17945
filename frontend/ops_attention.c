/* ops_attention.c - Attention and RotaryEmbedding of opset 23, written as the matmuls, softmax and
 * products that exporters write at older opsets, so that one set of patterns fits both.
 *
 * Attention follows the operator's own picture: q and k scaled by the root of the scale, softcap,
 * mask, softmax, product with v. A row in which everything is masked gives zeros. Inside, heads are
 * an axis: q[B,H,S,D] k[B,H,T,D] v[B,H,T,E]. */
#include "import.h"
#include <math.h>

/* ---------------------------------------------------------------- heads */

/* [B,S,H*D] -> [B,H,S,D]; a rank of 4 is there already. 0 after a diagnostic. */
static Value split_heads(ImportNode *n, Value v, const char *attribute) {
    Type t = *node_type(n, v);
    if (t.rank == 4) return v;
    int64_t heads = node_int(n, attribute, 0);
    if (t.rank != 3 || heads < 1 || t.dims[2] % heads) {
        node_fail(n, attribute, "%lld heads do not divide the input", (long long)heads);
        return 0;
    }
    v = build_reshape(n->g, v, 4, (int64_t[]){t.dims[0], t.dims[1], heads, t.dims[2] / heads});
    return build_transpose(n->g, v, (int64_t[]){0, 2, 1, 3});
}

static Value join_heads(ImportNode *n, Value v) {
    Type t = *node_type(n, v);
    v = build_transpose(n->g, v, (int64_t[]){0, 2, 1, 3});
    return build_reshape(n->g, v, 3, (int64_t[]){t.dims[0], t.dims[2], t.dims[1] * t.dims[3]});
}

/* Grouped heads: each key/value head serves `times` query heads that follow one another. */
static Value repeat_heads(ImportNode *n, Value v, int64_t times) {
    Type t = *node_type(n, v);
    if (times == 1) return v;
    v = build_reshape(n->g, v, 5, (int64_t[]){t.dims[0], t.dims[1], 1, t.dims[2], t.dims[3]});
    v = build_expand(n->g, v, 5, (int64_t[]){t.dims[0], t.dims[1], times, t.dims[2], t.dims[3]});
    return build_reshape(n->g, v, 4,
                         (int64_t[]){t.dims[0], t.dims[1] * times, t.dims[2], t.dims[3]});
}

static Value times_number(ImportNode *n, Value v, double by) {
    return build_binary(n->g, OP_mul, v, node_number(n, (DType)node_type(n, v)->dtype, by));
}

/* ---------------------------------------------------------------- scores */

/* true where query i may see key j: j <= i + past */
static Value causal_mask(ImportNode *n, int64_t queries, int64_t keys, int64_t past) {
    TypeId type = graph_type_of(n->g, DT_I64, 2, (int64_t[]){queries, keys});
    RuleBind binds[] = {{"i", build_iota(n->g, type, 0)},
                        {"j", build_iota(n->g, type, 1)},
                        {"p", node_number(n, DT_I64, (double)past)}};
    return node_rule(n, "(le j (add i p))", binds, 3);
}

static Value masked(ImportNode *n, Value scores, Value mask) {
    DType type = (DType)node_type(n, scores)->dtype;
    if (node_type(n, mask)->dtype != DT_BOOL) return build_binary(n->g, OP_add, scores, mask);
    return build_map(n->g, OP_where, (Value[]){mask, scores, node_number(n, type, -INFINITY)}, 3);
}

static Value softmax_last(ImportNode *n, Value v) {
    const int64_t last = 3;
    DType type = (DType)node_type(n, v)->dtype, wide = type;
    if (node_has(n, "softmax_precision"))
        wide = dtype_from_onnx((int)node_int(n, "softmax_precision", 0));
    if (wide == DT_NONE) wide = type;
    v = build_cast(n->g, v, wide);
    v = graph_emit(n->g, OP_softmax, &v, 1,
                   graph_attr(n->g, (AttrField[]){attr_ints(A_AXES, &last, 1)}, 1), 0);
    return build_cast(n->g, v, type);
}

/* The weights; out[3] is what qk_matmul_output_mode asks for: 0 products, 1 capped, 2 masked, 3
 * weights. */
static Value attention_weights(ImportNode *n, Value q, Value k, int64_t past) {
    Type t = *node_type(n, q);
    double root = sqrt(node_float(n, "scale", 1 / sqrt((double)t.dims[3]))),
           cap = node_float(n, "softcap", 0);
    int64_t mode = node_int(n, "qk_matmul_output_mode", 0);
    Value stages[4];
    stages[0] = build_dot(n->g, times_number(n, q, root),
                          build_transpose(n->g, times_number(n, k, root), (int64_t[]){0, 1, 3, 2}),
                          false, false);
    if (!stages[0]) return 0;
    stages[1] =
        cap > 0
            ? times_number(n, build_unary(n->g, OP_tanh, times_number(n, stages[0], 1 / cap)), cap)
            : stages[0];
    stages[2] = stages[1];
    if (node_int(n, "is_causal", 0))
        stages[2] = masked(n, stages[2], causal_mask(n, t.dims[2], node_type(n, k)->dims[2], past));
    if (node_in(n, 3)) stages[2] = masked(n, stages[2], n->in[3]);
    if (!stages[2]) return 0;
    stages[3] = softmax_last(n, stages[2]);
    if (node_in(n, 3))
        stages[3] = node_rule(n, "(where (isnan p) 0 p)", (RuleBind[]){{"p", stages[3]}}, 1);
    if (n->n_out > 3 && mode >= 0 && mode <= 3) n->out[3] = stages[mode];
    return stages[3];
}

static Value with_past(ImportNode *n, uint32_t input, Value v) {
    Value past = node_in(n, input);
    return past ? build_concat(n->g, (Value[]){past, v}, 2, 2) : v;
}

/* What opset 24 and 25 added. */
static bool has_newer_parts(ImportNode *n) {
    if (node_in(n, 6)) node_fail(n, "nonpad_kv_seqlen", "lengths per sample are not supported");
    if (node_int(n, "left_window_size", -1) >= 0 || node_int(n, "right_window_size", -1) >= 0)
        node_fail(n, "left_window_size", "windows are not supported, but as a mask");
    return node_in(n, 6) || node_int(n, "left_window_size", -1) >= 0 ||
           node_int(n, "right_window_size", -1) >= 0;
}

void import_attention(ImportNode *n) {
    if (has_newer_parts(n)) return;
    bool is_flat = node_type(n, n->in[0])->rank == 3;
    Value q = split_heads(n, n->in[0], "q_num_heads");
    Value k = split_heads(n, n->in[1], "kv_num_heads"),
          v = split_heads(n, n->in[2], "kv_num_heads");
    if (!q || !k || !v) return;
    int64_t past = node_in(n, 4) ? node_type(n, n->in[4])->dims[2] : 0;
    k = with_past(n, 4, k);
    v = with_past(n, 5, v);
    if (!k || !v) return;
    if (n->n_out > 1) n->out[1] = k;
    if (n->n_out > 2) n->out[2] = v;
    int64_t heads = node_type(n, q)->dims[1], kv_heads = node_type(n, k)->dims[1];
    if (kv_heads < 1 || heads % kv_heads) {
        node_fail_shapes(n, "%lld query heads for %lld key heads", (long long)heads,
                         (long long)kv_heads);
        return;
    }
    Value weights = attention_weights(n, q, repeat_heads(n, k, heads / kv_heads), past);
    weights = node_lost_dropout(n, weights);
    Value y =
        weights ? build_dot(n->g, weights, repeat_heads(n, v, heads / kv_heads), false, false) : 0;
    n->out[0] = y && is_flat ? join_heads(n, y) : y;
}

/* ---------------------------------------------------------------- RotaryEmbedding */

/* Every `step`-th element of the last axis, `count` of them from `from`. */
static Value last_axis(ImportNode *n, Value v, int64_t from, int64_t count, int64_t step) {
    Type t = *node_type(n, v);
    int64_t start[MAX_RANK] = {0}, steps[MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    start[t.rank - 1] = from;
    steps[t.rank - 1] = step;
    t.dims[t.rank - 1] = count;
    return build_slice(n->g, v, start, t.dims, steps);
}

/* cos or sin as [B,1,S,R/2]: the table's rows at the positions, or given per token */
static Value rotary_table(ImportNode *n, uint32_t input) {
    Value table = n->in[input];
    if (node_in(n, 3)) {
        Value idx = node_index(n, n->in[3], node_type(n, table)->dims[0]);
        table = idx ? build_gather(n->g, table, idx, 0) : 0;
    }
    if (!table) return 0;
    Type t = *node_type(n, table);
    return build_reshape(n->g, table, 4, (int64_t[]){t.dims[0], 1, t.dims[1], t.dims[2]});
}

static Value rotate(ImportNode *n, Value x, int64_t half) {
    bool is_interleaved = node_int(n, "interleaved", 0) != 0;
    Value cos = rotary_table(n, 1), sin = rotary_table(n, 2);
    RuleBind binds[] = {
        {"a", last_axis(n, x, 0, half, is_interleaved ? 2 : 1)},
        {"b", last_axis(n, x, is_interleaved ? 1 : half, half, is_interleaved ? 2 : 1)},
        {"c", cos},
        {"s", sin}};
    Value parts[2] = {node_rule(n, "(sub (mul a c) (mul b s))", binds, 4),
                      node_rule(n, "(add (mul b c) (mul a s))", binds, 4)};
    if (!parts[0] || !parts[1] || !is_interleaved)
        return parts[0] && parts[1] ? build_concat(n->g, parts, 2, 3) : 0;
    Type t = *node_type(n, parts[0]);
    for (int i = 0; i < 2; i++)
        parts[i] =
            build_reshape(n->g, parts[i], 5, (int64_t[]){t.dims[0], t.dims[1], t.dims[2], half, 1});
    return build_reshape(n->g, build_concat(n->g, parts, 2, 4), 4,
                         (int64_t[]){t.dims[0], t.dims[1], t.dims[2], 2 * half});
}

void import_rotary_embedding(ImportNode *n) {
    bool is_flat = node_type(n, n->in[0])->rank == 3;
    Value x = split_heads(n, n->in[0], "num_heads");
    if (!x) return;
    int64_t size = node_type(n, x)->dims[3], rotated = node_int(n, "rotary_embedding_dim", 0);
    if (rotated <= 0) rotated = size;
    uint32_t rank = node_in(n, 3) ? 2 : 3;
    if (rotated > size || rotated % 2 || node_type(n, n->in[1])->rank != rank ||
        node_type(n, n->in[2])->rank != rank) {
        node_fail_shapes(n, "%lld of %lld elements cannot be rotated by these tables",
                         (long long)rotated, (long long)size);
        return;
    }
    Value y = rotate(n, last_axis(n, x, 0, rotated, 1), rotated / 2);
    if (y && rotated < size)
        y = build_concat(n->g, (Value[]){y, last_axis(n, x, rotated, size - rotated, 1)}, 2, 3);
    n->out[0] = y && is_flat ? join_heads(n, y) : y;
}
