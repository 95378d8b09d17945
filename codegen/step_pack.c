/* step_pack.c - which states lie in the library's own layout, and by which product that layout is
 * found.
 *
 * The launch that packs and the product that reads derive the layout from one descriptor
 * (runtime/cpu_dnnl.c). So a packed state is laid out so only where all its readers go to the
 * library and agree in all that a layout may depend on; else it stays a plain copy, which is slower
 * and as right. */
#include <string.h>
#include "step_table.h"
#include "target_c.h"

static bool same_product(const Kernel *a, const Kernel *b) {
    const Tile *s = &a->tile, *t = &b->tile;
    return s->batch == t->batch && s->m == t->m && s->n == t->n && s->k == t->k &&
           s->a_offset == t->a_offset && s->a_batch == t->a_batch && s->a_m == t->a_m &&
           s->a_k == t->a_k && s->b_offset == t->b_offset && s->b_batch == t->b_batch &&
           s->b_k == t->b_k && s->b_n == t->b_n;
}

/* The buffer of the packed state that a group reads + 1; 0: none. */
static uint32_t packed_buffer(const Graph *g, const Plan *plan, const Group *group) {
    const State *s = group->kind == GROUP_CONTRACT ? plan_packed_operand(g, group->anchor) : NULL;
    for (uint32_t i = 0; s && i < plan->n_buffers; i++)
        if (plan->buffers[i].symbol && strcmp(plan->buffers[i].symbol, s->name) == 0) return i + 1;
    return 0;
}

PackedBuffer *step_packed(const Graph *g, const Plan *plan, Arena *arena) {
    PackedBuffer *packed = arena_alloc(arena, (plan->n_buffers + 1) * sizeof *packed);
    for (EntryKind e = 0; e < N_ENTRIES; e++)
        for (uint32_t i = 0; i < plan->entries[e].n; i++) {
            const uint32_t group = plan->entries[e].order[i],
                           b = packed_buffer(g, plan, &plan->groups[group]);
            if (!b) continue;
            PackedBuffer *p = &packed[b - 1];
            const Kernel *k = kernel_lower(g, plan, group, false, arena);
            if (k->form != FORM_TILE || target_c_library_param(g, k) < 0 ||
                (p->k && !same_product(k, p->k)))
                p->is_plain = true;
            if (!p->k) p->k = k;
        }
    for (uint32_t i = 0; i < plan->n_buffers; i++)
        if (packed[i].is_plain) packed[i].k = NULL;
    return packed;
}
