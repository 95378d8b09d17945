/* step_names.c - the names of parameters as tables: aliases of tied ones, and which initializer of
 * the model's file holds what, in which form. Loading and exporting a model need it; a parameter
 * that stands in the file under its own name, as it is, has no row. */
#include <string.h>
#include "step_table.h"

static void print_aliases(Text *out, const Graph *g, uint32_t *n) {
    *n = 0;
    text_printf(out, "static const trainc_alias aliases[] = {\n");
    for (uint32_t i = 0; i < g->n_states; i++)
        for (uint32_t k = 0; k < g->states[i].n_aliases; k++, ++*n) {
            text_printf(out, "    {");
            step_string(out, g->states[i].aliases[k]);
            text_printf(out, ", ");
            step_string(out, g->states[i].name);
            text_printf(out, "},\n");
        }
    text_printf(out, "    {NULL, NULL}\n};\n");
}

static void print_readers(Text *out, const Holder *h, uint32_t row) {
    if (!h->n_readers) return;
    text_printf(out, "static const uint32_t readers%u[] = {", row);
    for (uint32_t i = 0; i < 2 * h->n_readers; i++)
        text_printf(out, "%s%u", i ? ", " : "", h->readers[i]);
    text_printf(out, "};\n");
}

static void print_holder(Text *out, const State *s, const Holder *h, uint32_t row) {
    text_printf(out, "    {");
    step_string(out, h->initializer);
    text_printf(out, ", ");
    step_string(out, h->from);
    text_printf(out, ", ");
    step_string(out, h->is_original ? NULL : s->name);
    text_printf(out, ", %d, %u, {", h->is_transposed, h->type.rank);
    for (uint32_t d = 0; d < MAX_RANK; d++)
        text_printf(out, "%s%lld", d ? ", " : "", (long long)h->type.dims[d]);
    if (h->n_readers)
        text_printf(out, "}, readers%u, %u, ", row, h->n_readers);
    else
        text_printf(out, "}, NULL, 0, ");
    text_printf(out, "%llu, ", (unsigned long long)h->first);
    step_string(out, h->blocks);
    text_printf(out, "},\n");
}

static void print_holders(Text *out, const Graph *g, uint32_t *n) {
    uint32_t row = 0;
    *n = 0;
    for (uint32_t i = 0; i < g->n_states; i++)
        for (uint32_t k = 0; k < g->states[i].n_holders; k++)
            print_readers(out, &g->states[i].holders[k], row++);
    text_printf(out, "static const trainc_holder holders[] = {\n");
    for (uint32_t i = 0; i < g->n_states; i++)
        for (uint32_t k = 0; k < g->states[i].n_holders; k++)
            print_holder(out, &g->states[i], &g->states[i].holders[k], (*n)++);
    text_printf(out, "    {NULL, NULL, NULL, 0, 0, {0}, NULL, 0, 0, NULL}\n};\n");
}

static const State *other_factor(const Graph *g, const State *a) {
    for (uint32_t i = 0; i < g->n_states; i++)
        if (&g->states[i] != a && g->states[i].adapts && !strcmp(g->states[i].adapts, a->adapts))
            return &g->states[i];
    return NULL;
}

static void print_adapters(Text *out, const Graph *g, uint32_t *n) {
    *n = 0;
    text_printf(out, "static const trainc_adapter adapters[] = {\n");
    for (uint32_t i = 0; i < g->n_states; i++) {
        const State *a = &g->states[i],
                    *b = a->adapts && a->adapter_scale != 0 ? other_factor(g, a) : NULL;
        if (!b) continue;
        text_printf(out, "    {");
        step_string(out, a->adapts);
        text_printf(out, ", ");
        step_string(out, a->name);
        text_printf(out, ", ");
        step_string(out, b->name);
        text_printf(out, ", %.17g, %d},\n", a->adapter_scale, (int)a->adapter_axis);
        ++*n;
    }
    text_printf(out, "    {NULL, NULL, NULL, 0, 0}\n};\n");
}

void step_source_names(Text *out, const Graph *g, NameCounts *n) {
    print_aliases(out, g, &n->aliases);
    print_holders(out, g, &n->holders);
    print_adapters(out, g, &n->adapters);
}
