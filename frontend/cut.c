/* cut.c - which parameters no gradient would reach, in a model that other obstacles keep from being
 * differentiated, so that all that is wrong is told at once.
 *
 * A value carries gradient where it is a float made from a parameter that trains, through ops whose
 * rules let one through. A parameter is well where such a value is an output of the model, or is
 * read by a node that could not be imported: what lies behind is not known. Of any other, the first
 * op that lets nothing through is named. */
#include "context.h"
#include <string.h>

typedef struct Cut {
    Import *im;
    bool *is_read; /* per value: by a blocked node, or as an output */
    bool *carries; /* per value: the gradient of the parameter at hand */
} Cut;

static bool lets_through(Graph *g, Value v, uint32_t operand) {
    const OpInfo *info = &op_info[graph_op(g, v)];
    if (dtype_info[graph_type_at(g, v)->dtype].cls != CLASS_FLT) return false;
    if (!info->grad) return info->vjp || info->lower == LOWER_LOOP;
    const char *rule = rule_part(g->arena, info->grad, operand);
    return rule && strcmp(rule, "0") != 0;
}

/* The first op from the state on that lets nothing through; 0 where all is well or nothing reads
 * it. */
static Value find_cut(Cut *c, Value state) {
    Graph *g = c->im->g;
    bool *carries = memset(c->carries, 0, g->n_nodes);
    Value cut = 0;
    carries[state] = true;
    bool is_well = c->is_read[state];
    for (Value v = state + 1; v < g->n_nodes && !is_well; v++) {
        for (uint32_t i = 0; i < graph_node(g, v)->n_operands; i++) {
            if (!carries[graph_operand(g, v, i)]) continue;
            if (lets_through(g, v, i))
                carries[v] = true;
            else if (!cut)
                cut = v;
        }
        is_well = carries[v] && c->is_read[v];
    }
    return is_well ? 0 : cut;
}

void cut_report(Import *im) {
    Graph *g = im->g;
    Cut c = {.im = im,
             .is_read = arena_alloc(im->arena, g->n_nodes + 1),
             .carries = arena_alloc(im->arena, g->n_nodes + 1)};
    for (uint32_t i = 0; i < im->n_blocked; i++) c.is_read[im->blocked[i]] = true;
    for (uint32_t i = 0; i < g->entries[ENTRY_MICRO].n; i++)
        c.is_read[g->entries[ENTRY_MICRO].roots[i].value] = true;
    for (Value v = 1; v < g->n_nodes; v++) {
        const State *s = graph_op(g, v) == OP_state ? graph_state(g, attr_s(g, v, A_NAME)) : NULL;
        Value cut = s && s->trains ? find_cut(&c, v) : 0;
        if (cut) diag_no_gradient(g, W_UNTRAINED, cut, s->name);
    }
}
