/* target_c_scatter.c - sequential scatters: the base, then updates in index order.
 *
 * Threads share the parallel axes, the last one in blocks; each walks all index positions in order.
 * No two threads write the same element, so the result is that of the sequential loop. */
#include "target_c.h"

enum { SCATTER_LANES = 64 };

void c_scatter(const CKernel *c) {
    const Kernel *k = c->k;
    Text *out = c->out;
    const uint32_t lane = c->n_par - 1;
    uint32_t depth = c->n_par + 1;
    if (k->first) {
        CKernel base = c_kernel(c->g, k->first, out);
        text_printf(out, "    {\n");
        c_points(&base);
        text_printf(out, "    }\n");
    }
    c_uniform(c);
    if (c_is_large(c) && c->n_par) {
        text_printf(out, "#pragma omp parallel for ");
        if (c->n_par > 1) text_printf(out, "collapse(%u) ", c->n_par);
        text_printf(out, "schedule(static)\n");
    }
    for (uint32_t a = 0; a + 1 < c->n_par; a++) c_for(c, a, a + 1), text_printf(out, "\n");
    if (c->n_par) {
        const long long extent = k->axes[lane].extent;
        text_printf(out, "%sfor (int64_t block = 0; block < %lld; block += %d) {\n",
                    c_indent(c->n_par), extent, SCATTER_LANES);
        text_printf(out, "%sconst int64_t end = %lld - block < %d ? %lld : block + %d;\n",
                    c_indent(depth), extent, SCATTER_LANES, extent, SCATTER_LANES);
    }
    for (uint32_t a = c->n_par; a < k->n_axes; a++, depth++)
        c_for(c, a, depth), text_printf(out, " {\n");
    if (c->n_par) {
        const char *i = c->body.axis_name[lane];
        text_printf(out, "#pragma omp simd\n%sfor (int64_t %s = block; %s < end; %s++) {\n",
                    c_indent(depth), i, i, i);
        depth++;
    }
    for (uint32_t s = 0; s < k->n_stages; s++) c_statements(c, &k->stages[s], c_indent(depth));
    if (c->n_par) text_printf(out, "%s}\n", c_indent(--depth));
    for (uint32_t a = c->n_par; a < k->n_axes; a++) text_printf(out, "%s}\n", c_indent(--depth));
    if (c->n_par) text_printf(out, "%s}\n", c_indent(c->n_par));
}
