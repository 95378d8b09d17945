/* accumulate.c - from gradients of one micro-batch to sums over the micro-batches of an optimizer
 * step.
 *
 * In: outputs loss_sum, loss_count and grad.NAME of micro. Out: states of those names and updates
 * of them in place of the outputs. With k = batch / micro_batch steps, the first one stores and
 * later ones add: no pass over memory clears a gradient. With k = 1 every update is a store. */
#include "pass.h"
#include <string.h>

static Value accumulated(Graph *g, const char *name, Value v, bool many) {
    if (!many) return v;
    g->loc = graph_loc_derived(g, LOC_ACCUMULATE, graph_node(g, v)->loc);
    Value zero = build_splat(g, graph_node(g, v)->type, 0);
    Value later = build_binary(g, OP_gt, build_scalar(g, "micro", DT_I64),
                               build_splat(g, graph_type_of(g, DT_I64, 0, NULL), 0));
    Value sum = build_map(g, OP_where, (Value[]){later, build_state(g, name), zero}, 3);
    return gradient_add(g, sum, v);
}

static void add_state(Graph *g, const char *name, TypeId type) {
    bool gradient = !strncmp(name, "grad.", 5);
    graph_add_state(g, (State){.name = name,
                               .type = type,
                               .cls = gradient ? STATE_GRADIENT : STATE_COUNTER,
                               .of = gradient ? name + 5 : NULL});
}

bool pass_accumulate(PassContext *ctx) {
    Graph *g = ctx->g;
    Entry *e = &g->entries[ENTRY_MICRO];
    int64_t batch = ctx->options->batch, micro = ctx->options->micro_batch;
    bool many = micro > 0 && batch > micro;
    for (uint32_t i = 0; i < e->n; i++) {
        Root r = e->roots[i];
        bool summed = !strncmp(r.name, "grad.", 5) || !strcmp(r.name, "loss_sum") ||
                      !strcmp(r.name, "loss_count");
        if (r.is_update || !summed) continue;
        add_state(g, r.name, graph_node(g, r.value)->type);
        e->roots[i] = (Root){true, r.name, accumulated(g, r.name, r.value, many)};
    }
    g->loc = 0;
    return !diag_has_errors(g);
}
