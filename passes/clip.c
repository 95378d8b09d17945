/* clip.c - the global gradient norm, and the one factor that turns raw gradients into the clipped
 * mean.
 *
 * In: the raw gradients (sums over the step, times loss_scale / static_count). The norm is one
 * partial sum of squares per parameter, then the sum of those in a balanced tree: a fixed order,
 * and short chains of roundings. As in torch.nn.utils.clip_grad_norm_, the factor is min(1, clip /
 * (norm + 1e-6)); clip is infinite where clipping is off. */
#include "pass.h"

static Value square_sum(Graph *g, Value v) {
    int64_t n = type_elems(graph_type_at(g, v));
    Value flat = build_cast(g, build_reshape(g, v, 1, &n), DT_F32);
    Value sum = build_reduce(g, OP_sum, build_binary(g, OP_mul, flat, flat), (int64_t[]){0}, 1);
    return build_reshape(g, sum, 0, NULL);
}

static Value tree_sum(Graph *g, Value *v, uint32_t n) {
    for (; n > 1; n = (n + 1) / 2)
        for (uint32_t i = 0; i < n / 2 + n % 2; i++)
            v[i] = 2 * i + 1 < n ? build_binary(g, OP_add, v[2 * i], v[2 * i + 1]) : v[2 * i];
    return v[0];
}

Value clip_factor(PassContext *ctx, const Value *grads, uint32_t n, Value inverse, Value *norm) {
    Graph *g = ctx->g;
    Value *sums = arena_alloc(ctx->arena, sizeof *sums * n);
    for (uint32_t i = 0; i < n; i++) {
        g->loc = graph_loc_derived(g, LOC_CLIP, graph_node(g, grads[i])->loc);
        sums[i] = square_sum(g, grads[i]);
    }
    g->loc = graph_loc_derived(g, LOC_CLIP, 0);
    *norm = build_binary(g, OP_mul, build_unary(g, OP_sqrt, tree_sum(g, sums, n)), inverse);
    RuleBind binds[] = {
        {"inverse", inverse}, {"norm", *norm}, {"clip", build_scalar(g, "clip", DT_F32)}};
    return rule_build(g, "(mul inverse (min 1 (div clip (add norm 1e-6))))", binds, 3, 0);
}
