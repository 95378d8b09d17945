/* ops_contrib_attention.c - the attentions of com.microsoft without a cache (Attention,
 * MultiHeadAttention, GroupQueryAttention) and its RotaryEmbedding, as the macros `attention` and
 * `rope`. Inside, heads are an axis: q[B,H,S,D] k[B,G,T,D] v[B,G,T,E]. */
#include "attention.h"
#include "import.h"
#include <math.h>

static const double hidden = -10000; /* ONNX Runtime's mask_filter_value */

/* [B,S,H*D] (+ bias[H*D]) -> [B,H,S,D]; what has four axes is [B,H,S,D] already. */
static Value heads_of(ImportNode *n, Value v, Value bias, int64_t heads) {
    if (!v) return 0;
    Type t = *node_type(n, v);
    if (t.rank == 4) return v;
    if (t.rank != 3 || heads < 1 || t.dims[2] % heads) {
        node_fail(n, "num_heads", "%lld heads do not divide the input", (long long)heads);
        return 0;
    }
    if (bias) v = build_binary(n->g, OP_add, v, bias);
    v = build_reshape(n->g, v, 4, (int64_t[]){t.dims[0], t.dims[1], heads, t.dims[2] / heads});
    return build_transpose(n->g, v, (int64_t[]){0, 2, 1, 3});
}

static Value joined(ImportNode *n, Value v) {
    if (!v) return 0;
    Type t = *node_type(n, v);
    v = build_transpose(n->g, v, (int64_t[]){0, 2, 1, 3});
    return build_reshape(n->g, v, 3, (int64_t[]){t.dims[0], t.dims[2], t.dims[1] * t.dims[3]});
}

/* `count` elements of the axis from `from` on */
static Value part(ImportNode *n, Value v, uint32_t axis, int64_t from, int64_t count) {
    if (!v) return 0;
    Type t = *node_type(n, v);
    int64_t start[MAX_RANK] = {0};
    start[axis] = from;
    t.dims[axis] = count;
    return build_slice(n->g, v, start, t.dims, NULL);
}

/* Which keys count, as bool [B,1,1 or S,T]: a mask[B,T], [B,S,T] or [B,1,S,T] of 0 and 1, or the
 * number of keys of each sample [B], or the ends and the beginnings [2*B]. 0 after a diagnostic. */
static Value key_mask(ImportNode *n, Value mask, int64_t batch, int64_t keys) {
    Type t = *node_type(n, mask);
    Value is_set = build_cast(n->g, mask, DT_BOOL);
    if (t.rank == 4 && t.dims[0] == batch) return is_set;
    if (t.rank == 3)
        return build_reshape(n->g, is_set, 4, (int64_t[]){t.dims[0], 1, t.dims[1], t.dims[2]});
    if (t.rank == 2) return build_reshape(n->g, is_set, 4, (int64_t[]){t.dims[0], 1, 1, t.dims[1]});
    if (t.rank != 1 || (t.dims[0] != batch && t.dims[0] != 2 * batch)) {
        node_fail_shapes(n, "a mask of this shape is not supported");
        return 0;
    }
    Value at =
        build_iota(n->g, graph_type_of(n->g, (DType)t.dtype, 4, (int64_t[]){1, 1, 1, keys}), 3);
    int64_t column[] = {batch, 1, 1, 1};
    Value end = build_reshape(n->g, part(n, mask, 0, 0, batch), 4, column);
    Value seen = build_binary(n->g, OP_lt, at, end);
    if (t.dims[0] == batch) return seen;
    Value begin = build_reshape(n->g, part(n, mask, 0, batch, batch), 4, column);
    return build_binary(n->g, OP_and, seen, build_binary(n->g, OP_ge, at, begin));
}

typedef struct Parts {
    Value q, k, v, mask, bias;
} Parts;

static bool has_past(ImportNode *n, uint32_t first, uint32_t last) {
    for (uint32_t i = first; i <= last; i++) {
        if (!node_in(n, i)) continue;
        if (type_elems(node_type(n, n->in[i])) == 0) continue;
        node_fail(n, "past", "keys and values of earlier calls are not supported");
        return true;
    }
    return false;
}

/* What a query must not see by the mask gets mask_filter_value, by order -infinity (the lowest
 * number), so that the band is cut in the macro and the mask is a bias. */
static Value attend(ImportNode *n, Parts p, AttentionForm form, double fill) {
    if (!p.q || !p.k || !p.v) return 0;
    Type q = *node_type(n, p.q), k = *node_type(n, p.k);
    if (q.rank != 4 || k.rank != 4 || !k.dims[1] || q.dims[1] % k.dims[1]) {
        node_fail_shapes(n, "query and key heads do not fit");
        return 0;
    }
    Value x[N_ATTENTION_OPERANDS] = {p.q, p.k, p.v, p.bias, 0, 0};
    double scale = node_float(n, "scale", 0);
    form.scale = scale != 0 ? scale : 1 / sqrt((double)q.dims[3]);
    if (p.mask) {
        Value keep = key_mask(n, p.mask, q.dims[0], k.dims[2]);
        DType type = (DType)q.dtype;
        Value more = node_rule(n, "(where m z f)",
                               (RuleBind[]){{"m", keep},
                                            {"z", node_number(n, type, 0)},
                                            {"f", node_number(n, type, fill)}},
                               3);
        if (!more) return 0;
        x[ATTENTION_BIAS] = p.bias ? build_binary(n->g, OP_add, p.bias, more) : more;
    }
    return build_attention(n->g, x, form);
}

static AttentionForm causal_form(ImportNode *n, bool is_causal, Value q, Value k) {
    AttentionForm f = attention_form_plain();
    if (is_causal && q && k) f.last = node_type(n, k)->dims[2] - node_type(n, q)->dims[2];
    return f;
}

/* input[B,S,K], weights[K, sizes of q, k, v], bias, mask_index, past, attention_bias */
void import_contrib_attention(ImportNode *n) {
    Type w = *node_type(n, n->in[1]);
    int64_t heads = node_int(n, "num_heads", 0), at = 0, sizes[3];
    uint32_t n_sizes = 0;
    const int64_t *given = node_ints(n, "qkv_hidden_sizes", &n_sizes);
    if (has_past(n, 4, 4)) return;
    if (node_int(n, "do_rotary", 0)) {
        node_fail(n, "do_rotary", "rotary tables inside Attention are not supported");
        return;
    }
    if (w.rank != 2 || (n_sizes && n_sizes != 3)) {
        node_fail_shapes(n, "weights [input, 3 * hidden] are wanted");
        return;
    }
    Value all = build_dot(n->g, n->in[0], n->in[1], false, false), of[3];
    if (all && node_in(n, 2)) all = build_binary(n->g, OP_add, all, n->in[2]);
    if (!all) return;
    for (int i = 0; i < 3; i++) {
        sizes[i] = given ? given[i] : w.dims[1] / 3;
        of[i] = heads_of(n, part(n, all, 2, at, sizes[i]), 0, heads);
        at += sizes[i];
    }
    Parts p = {of[0], of[1], of[2], node_in(n, 3), node_in(n, 5)};
    bool is_causal = node_int(n, "unidirectional", 0) != 0;
    n->out[0] = joined(n, attend(n, p, causal_form(n, is_causal, p.q, p.k),
                                 node_float(n, "mask_filter_value", hidden)));
}

/* [B,S,H,parts,D] -> part i as [B,H,S,D] */
static Value packed_part(ImportNode *n, Value v, int64_t i) {
    Type t = *node_type(n, v);
    v = part(n, v, 3, i, 1);
    v = build_reshape(n->g, v, 4, (int64_t[]){t.dims[0], t.dims[1], t.dims[2], t.dims[4]});
    return build_transpose(n->g, v, (int64_t[]){0, 2, 1, 3});
}

static Value piece(ImportNode *n, Value bias, int64_t from, int64_t count) {
    return bias ? part(n, bias, 0, from, count) : 0;
}

/* query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value */
void import_multi_head_attention(ImportNode *n) {
    int64_t heads = node_int(n, "num_heads", 0);
    Type t = *node_type(n, n->in[0]);
    Value bias = node_in(n, 3);
    bool is_known = true;
    Parts p = {.mask = node_in(n, 4), .bias = node_in(n, 5)};
    if (has_past(n, 6, 7)) return;
    if (t.rank == 5 && t.dims[3] == 3 && !bias) {
        p.q = packed_part(n, n->in[0], 0);
        p.k = packed_part(n, n->in[0], 1);
        p.v = packed_part(n, n->in[0], 2);
    } else if (t.rank == 3 && node_in(n, 1)) {
        int64_t size = t.dims[2];
        Value key = n->in[1], value = node_in(n, 2);
        p.q = heads_of(n, n->in[0], piece(n, bias, 0, size), heads);
        if (node_type(n, key)->rank == 5 && !value && !bias) {
            p.k = packed_part(n, key, 0);
            p.v = packed_part(n, key, 1);
        } else if (value) {
            Value vb =
                bias ? piece(n, bias, 2 * size, type_elems(node_type(n, bias)) - 2 * size) : 0;
            p.k = heads_of(n, key, piece(n, bias, size, size), heads);
            p.v = heads_of(n, value, vb, heads);
        } else {
            is_known = false;
        }
    } else {
        is_known = false;
    }
    if (!is_known) node_fail_shapes(n, "query, key and value of this form are not supported");
    if (!p.q || !p.k || !p.v) return;
    bool is_causal = node_int(n, "unidirectional", 0) != 0;
    n->out[0] = joined(n, attend(n, p, causal_form(n, is_causal, p.q, p.k),
                                 node_float(n, "mask_filter_value", hidden)));
    if (n->n_out > 1) n->out[1] = p.k;
    if (n->n_out > 2) n->out[2] = p.v;
}

/* ---------------------------------------------------------------- rotary */

/* The rows of a table [max, R/2] at the positions: [B or 1, 1, S, R/2]. positions 0: 0 .. S-1. One
 * number: the position of the first token. */
static Value table_at(ImportNode *n, Value table, Value positions, int64_t sequence) {
    Type t = *node_type(n, table);
    TypeId row = graph_type_of(n->g, DT_I64, 2, (int64_t[]){1, sequence});
    Value at = build_iota(n->g, row, 1);
    if (positions && type_elems(node_type(n, positions)) == 1) {
        Value first =
            build_reshape(n->g, build_cast(n->g, positions, DT_I64), 2, (int64_t[]){1, 1});
        at = build_binary(n->g, OP_add, at, first);
    } else if (positions) {
        at = positions;
    }
    at = node_index(n, at, t.dims[0]);
    if (!at) return 0;
    Type p = *node_type(n, at);
    return build_reshape(n->g, build_gather(n->g, table, at, 0), 4,
                         (int64_t[]){p.dims[0], 1, p.dims[1], t.dims[1]});
}

/* A table of R/2 columns serves both halves, or every pair of neighbours. */
static Value doubled(ImportNode *n, Value v, bool is_interleaved) {
    if (!v) return 0;
    Type t = *node_type(n, v);
    if (!is_interleaved) return build_concat(n->g, (Value[]){v, v}, 2, 3);
    int64_t wide[] = {t.dims[0], t.dims[1], t.dims[2], t.dims[3], 2};
    v = build_reshape(n->g, v, 5, (int64_t[]){t.dims[0], t.dims[1], t.dims[2], t.dims[3], 1});
    v = build_expand(n->g, v, 5, wide);
    return build_reshape(n->g, v, 4, (int64_t[]){t.dims[0], t.dims[1], t.dims[2], 2 * t.dims[3]});
}

static Value turned(ImportNode *n, Value x, Value positions, Value cos, Value sin, bool pairs) {
    if (!x || !cos || !sin) return 0;
    int64_t sequence = node_type(n, x)->dims[2];
    if (node_type(n, cos)->rank != 2 || node_type(n, sin)->rank != 2) {
        node_fail_shapes(n, "tables [positions, size / 2] are wanted");
        return 0;
    }
    Value c = doubled(n, table_at(n, cos, positions, sequence), pairs);
    Value s = doubled(n, table_at(n, sin, positions, sequence), pairs);
    return c && s ? build_rope(n->g, x, c, s, pairs) : 0;
}

/* input [B,S,H*D] or [B,H,S,D], position_ids, cos_cache, sin_cache */
void import_contrib_rotary(ImportNode *n) {
    Type t = *node_type(n, n->in[0]);
    bool is_flat = t.rank == 3;
    int64_t heads = node_int(n, "num_heads", 0), rotated = node_int(n, "rotary_embedding_dim", 0);
    const Type *table = node_type(n, n->in[2]);
    bool has_table = table->rank == 2 && table->dims[1] > 0;
    if (is_flat && heads == 0) /* the tables say how wide a head is */
        heads = rotated || !has_table ? 0 : t.dims[2] / (2 * table->dims[1]);
    Value x = heads_of(n, n->in[0], 0, heads);
    Value y = turned(n, x, n->in[1], n->in[2], n->in[3], node_int(n, "interleaved", 0) != 0);
    double scale = node_float(n, "scale", 1);
    if (y && scale != 1)
        y = build_binary(n->g, OP_mul, y, node_number(n, (DType)node_type(n, y)->dtype, scale));
    n->out[0] = y && is_flat ? joined(n, y) : y;
}

/* query (or q, k and v in one), key, value, past_key, past_value, seqlens_k, total_sequence_length,
 * cos_cache, sin_cache, position_ids, attention_bias. Without a cache a sample's keys end at
 * seqlens_k; later rows are padding, which the queries before them do not see. */
void import_group_query_attention(ImportNode *n) {
    int64_t heads = node_int(n, "num_heads", 0), groups = node_int(n, "kv_num_heads", 0);
    bool pairs = node_int(n, "rotary_interleaved", 0) != 0;
    Type t = *node_type(n, n->in[0]);
    Parts p = {.bias = node_in(n, 10)};
    if (has_past(n, 3, 4)) return;
    if (heads < 1 || groups < 1 || heads > INT32_MAX || groups > INT32_MAX || t.rank != 3) {
        node_fail(n, "num_heads",
                  "query [batch, sequence, size] and the numbers of heads are wanted");
        return;
    }
    if (node_in(n, 1) && node_in(n, 2)) {
        p.q = heads_of(n, n->in[0], 0, heads);
        p.k = heads_of(n, n->in[1], 0, groups);
        p.v = heads_of(n, n->in[2], 0, groups);
    } else {
        int64_t d = t.dims[2] / (heads + 2 * groups);
        p.q = heads_of(n, part(n, n->in[0], 2, 0, heads * d), 0, heads);
        p.k = heads_of(n, part(n, n->in[0], 2, heads * d, groups * d), 0, groups);
        p.v = heads_of(n, part(n, n->in[0], 2, (heads + groups) * d, groups * d), 0, groups);
    }
    if (node_int(n, "do_rotary", 0)) {
        if (!node_in(n, 7) || !node_in(n, 8)) {
            node_fail(n, "do_rotary", "cos_cache and sin_cache are missing");
            return;
        }
        p.q = turned(n, p.q, node_in(n, 9), n->in[7], n->in[8], pairs);
        p.k = turned(n, p.k, node_in(n, 9), n->in[7], n->in[8], pairs);
    }
    if (!p.q || !p.k || !p.v) return;
    if (node_in(n, 11)) {
        node_fail(n, "head_sink", "a sink per head is not supported");
        return;
    }
    AttentionForm f = causal_form(n, true, p.q, p.k);
    int64_t window = node_int(n, "local_window_size", -1);
    if (window > 0) f.first = f.last - window + 1;
    f.softcap = node_float(n, "softcap", 0);
    n->out[0] = joined(n, attend(n, p, f, hidden));
    if (n->n_out > 1) n->out[1] = p.k;
    if (n->n_out > 2) n->out[2] = p.v;
}
