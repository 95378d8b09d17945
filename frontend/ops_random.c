/* ops_random.c - RandomUniform, RandomNormal, their Like forms, Bernoulli and Multinomial over the
 * core's counter-based uniform numbers.
 *
 * Each node has a stream of its own (nodes with the same `seed` attribute share one), equal in
 * training and inference; what --seed says and the step's number are the key. A normal number takes
 * two uniform ones (Box and Muller, "A note on the generation of random normal deviates", 1958); a
 * choice among classes is the largest of logits plus Gumbel noise (Gumbel, "Statistical theory of
 * extreme values", 1954). */
#include "import.h"
#include <string.h>

enum { SEEDED = 1 << 29, SECOND = 1 << 30 };

/* Uniform in [0, 1). */
static Value uniform(ImportNode *n, Type t, int64_t second) {
    int64_t stream = node_stream(n);
    if (node_has(n, "seed")) {
        float seed = (float)node_float(n, "seed", 0);
        uint32_t bits;
        memcpy(&bits, &seed, sizeof bits);
        stream = SEEDED | (int64_t)(bits * 2654435761u >> 3);
    }
    t.dtype = DT_F32;
    return graph_emit(n->g, OP_random, NULL, 0,
                      graph_attr(n->g, (AttrField[]){attr_int(A_STREAM, stream | second)}, 1),
                      graph_type(n->g, t));
}

/* The type of the result: the attributes dtype and shape, or those of the input. */
static bool result_type(ImportNode *n, Type *t) {
    uint32_t rank = 0;
    bool is_like = n->n_in > 0;
    int64_t code = node_int(n, "dtype", is_like ? 0 : 1);
    const int64_t *dims = is_like ? NULL : node_ints(n, "shape", &rank);
    *t = is_like ? *node_type(n, n->in[0]) : (Type){.rank = (uint8_t)(rank <= MAX_RANK ? rank : 0)};
    for (uint32_t i = 0; i < rank && i < MAX_RANK; i++) t->dims[i] = dims[i];
    if (code) t->dtype = (uint8_t)dtype_from_onnx((int)code);
    if (!t->dtype || rank > MAX_RANK || !type_fits(t)) {
        node_fail(n, t->dtype ? "shape" : "dtype", "is not possible");
        return false;
    }
    return true;
}

static bool result_float(ImportNode *n, Type *t) {
    if (!result_type(n, t)) return false;
    if (dtype_info[t->dtype].cls == CLASS_FLT) return true;
    diag_add(n->g, E_DTYPE, n->g->loc, dtype_info[t->dtype].name, "random numbers are floats");
    return false;
}

void import_random_uniform(ImportNode *n) {
    Type t;
    if (!result_float(n, &t)) return;
    double low = node_float(n, "low", 0), high = node_float(n, "high", 1);
    RuleBind binds[] = {{"u", uniform(n, t, 0)},
                        {"l", node_number(n, DT_F32, low)},
                        {"s", node_number(n, DT_F32, high - low)}};
    n->out[0] = build_cast(n->g, node_rule(n, "(add l (mul s u))", binds, 3), (DType)t.dtype);
}

void import_random_normal(ImportNode *n) {
    Type t;
    if (!result_float(n, &t)) return;
    RuleBind binds[] = {{"u", uniform(n, t, 0)},
                        {"v", uniform(n, t, SECOND)},
                        {"m", node_number(n, DT_F32, node_float(n, "mean", 0))},
                        {"s", node_number(n, DT_F32, node_float(n, "scale", 1))}};
    Value y = node_rule(n,
                        "(add m (mul s (mul (sqrt (mul -2 (log (sub 1 u)))) (cos (mul "
                        "6.283185307179586 v)))))",
                        binds, 4);
    n->out[0] = build_cast(n->g, y, (DType)t.dtype);
}

/* 1 with the probability that the input holds. */
void import_bernoulli(ImportNode *n) {
    Type t;
    if (!result_type(n, &t)) return;
    RuleBind binds[] = {{"u", uniform(n, t, 0)}, {"p", build_cast(n->g, n->in[0], DT_F32)}};
    n->out[0] = build_cast(n->g, node_rule(n, "(lt u p)", binds, 2), (DType)t.dtype);
}

/* logits [batch, classes] -> classes [batch, samples] */
void import_multinomial(ImportNode *n) {
    Type t = *node_type(n, n->in[0]);
    int64_t samples = node_int(n, "sample_size", 1), axis = 2;
    DType to = dtype_from_onnx((int)node_int(n, "dtype", 6));
    if (t.rank != 2 || t.dims[1] < 1 || samples < 1 || dtype_info[to].cls != CLASS_INT) {
        node_fail_shapes(n, "Multinomial takes [batch, classes]");
        return;
    }
    Type noise = {.rank = 3, .dims = {t.dims[0], samples, t.dims[1]}};
    RuleBind binds[] = {{"u", uniform(n, noise, 0)},
                        {"a", build_reshape(n->g, build_cast(n->g, n->in[0], DT_F32), 3,
                                            (int64_t[]){t.dims[0], 1, t.dims[1]})}};
    Value noisy = node_rule(n, "(sub a (log (neg (log (max u 1e-12)))))", binds, 2);
    Value best = graph_emit(n->g, OP_argmax, &noisy, 1,
                            graph_attr(n->g, (AttrField[]){attr_int(A_AXIS, axis)}, 1), 0);
    n->out[0] = build_cast(n->g, build_squeeze(n->g, best, &axis, 1), to);
}
