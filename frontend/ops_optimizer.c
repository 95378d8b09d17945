/* ops_optimizer.c - the optimizers of ai.onnx.preview.training, forward: one step of arithmetic
 * over groups of tensors. Inputs are the rate r, the count of updates t, and k tensors each of x,
 * the gradients g and the states; outputs k each of the new x and the new states. (The
 * specification of each op gives the formulas.) */
#include "import.h"
#include <string.h>

enum { MOST_STATES = 2, MOST_BINDS = 12 };
typedef struct Optimizer {
    uint32_t n_states;
    const char *rules[1 + MOST_STATES]; /* of the new x and the new states, over r t x g s0 s1 */
    const char *attributes[4];
    double defaults[4];
} Optimizer;

/* r and t are tensors of one element, of any rank: here scalars of x's type. */
static Value scalar_like(ImportNode *n, Value v, Value x) {
    return build_cast(n->g, build_reshape(n->g, v, 0, NULL), (DType)node_type(n, x)->dtype);
}

static void import_group(ImportNode *n, const Optimizer *o, uint32_t i, uint32_t k) {
    const Value x = node_in(n, 2 + i);
    RuleBind binds[MOST_BINDS] = {{"r", scalar_like(n, node_in(n, 0), x)},
                                  {"t", scalar_like(n, node_in(n, 1), x)},
                                  {"x", x},
                                  {"g", node_in(n, 2 + k + i)},
                                  {"s0", node_in(n, 2 + 2 * k + i)},
                                  {"s1", o->n_states > 1 ? node_in(n, 2 + 3 * k + i) : 0}};
    uint32_t count = 4 + o->n_states;
    for (uint32_t a = 0; a < 4 && o->attributes[a]; a++)
        binds[count++] = (RuleBind){o->attributes[a],
                                    node_number(n, (DType)node_type(n, x)->dtype,
                                                node_float(n, o->attributes[a], o->defaults[a]))};
    for (uint32_t s = 0; s <= o->n_states; s++)
        if (s * k + i < n->n_out) n->out[s * k + i] = node_rule(n, o->rules[s], binds, count);
}

static void import_groups(ImportNode *n, const Optimizer *o) {
    const uint32_t per_tensor = 2 + o->n_states, k = (n->n_in - 2) / per_tensor;
    if ((n->n_in - 2) % per_tensor) {
        node_fail_shapes(n, "%u inputs are no groups of %u", n->n_in - 2, per_tensor);
        return;
    }
    for (uint32_t i = 0; i < k; i++) import_group(n, o, i, k);
}

void import_adagrad(ImportNode *n) {
    static const Optimizer adagrad = {
        1,
        {"(let d (add (mul norm_coefficient x) g) (sub x (div (mul (div r (add 1 (mul t "
         "decay_factor))) d) "
         "(add (sqrt (add s0 (mul d d))) epsilon))))",
         "(let d (add (mul norm_coefficient x) g) (add s0 (mul d d)))"},
        {"norm_coefficient", "decay_factor", "epsilon"},
        {0, 0, (double)1e-6f}};
    import_groups(n, &adagrad);
}

#define ADAM_V "(add (mul alpha s0) (mul (sub 1 alpha) (add (mul norm_coefficient x) g)))"
#define ADAM_H                                                                                     \
    "(let d (add (mul norm_coefficient x) g) (add (mul beta s1) (mul (sub 1 beta) (mul d d))))"

void import_adam(ImportNode *n) {
    static const Optimizer adam = {2,
                                   {"(sub x (div (mul (where (gt t 0) (div (mul r (sqrt (sub 1 "
                                    "(pow beta t)))) (sub 1 (pow alpha t))) r) " ADAM_V
                                    ") (add (sqrt " ADAM_H ") epsilon)))",
                                    ADAM_V, ADAM_H},
                                   {"norm_coefficient", "alpha", "beta", "epsilon"},
                                   {0, (double)0.9f, (double)0.999f, (double)1e-6f}};
    import_groups(n, &adam);
    const double post = node_float(n, "norm_coefficient_post", 0);
    for (uint32_t i = 0; post != 0 && i < n->n_out / 3; i++)
        if (n->out[i])
            n->out[i] =
                build_binary(n->g, OP_mul, n->out[i],
                             node_number(n, (DType)node_type(n, n->out[i])->dtype, 1 - post));
}

#define MOMENTUM_V                                                                                 \
    "(add (mul alpha s0) (mul (where (gt t 0) beta 1) (add (mul norm_coefficient x) g)))"

void import_momentum(ImportNode *n) {
    static const Optimizer standard = {1,
                                       {"(sub x (mul r " MOMENTUM_V "))", MOMENTUM_V},
                                       {"norm_coefficient", "alpha", "beta"},
                                       {0, 0, 0}};
    static const Optimizer nesterov = {
        1,
        {"(sub x (mul r (add (add (mul norm_coefficient x) g) (mul alpha " MOMENTUM_V "))))",
         MOMENTUM_V},
        {"norm_coefficient", "alpha", "beta"},
        {0, 0, 0}};
    const char *mode = node_string(n, "mode", "");
    const bool is_nesterov = !strcmp(mode, "nesterov");
    if (!is_nesterov && strcmp(mode, "standard") != 0)
        node_fail(n, "mode", "%s is neither standard nor nesterov", mode);
    else
        import_groups(n, is_nesterov ? &nesterov : &standard);
}
