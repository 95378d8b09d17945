/* step_table.c - a plan becomes kernels, launches and arguments.
 *
 * A loop is the launches that set its carries and then, once, those of one turn; what its body's
 * plan calls a buffer is an address in the arena and a stride. Kernels of bodies and others share.
 *
 * Every group is lowered and printed; kernels whose text is equal but for the name are one kernel,
 * so that equal layers cost one. Arguments are byte offsets in the arena, in the order of the
 * kernel's parameters. */
#include <assert.h>
#include <string.h>
#include "step_table.h"
#include "target_c.h"

static uint64_t text_hash(uint64_t h, const char *s) {
    for (; s && *s; s++) h = (h ^ (uint8_t)*s) * 1099511628211u;
    return h * 31 + 1;
}

static bool same_text(const char *a, const char *b) {
    return a == b || (a && b && strcmp(a, b) == 0);
}

static uint32_t kernel_slot(StepTable *t, uint64_t hash, const StepKernel *k) {
    uint32_t i = (uint32_t)hash & (t->cap_slots - 1);
    for (; t->slots[i]; i = (i + 1) & (t->cap_slots - 1)) {
        const StepKernel *o = &t->kernels[t->slots[i] - 1];
        if (o->hash == hash && same_text(o->text, k->text) && same_text(o->epilogue, k->epilogue) &&
            same_text(o->contraction, k->contraction))
            break;
    }
    return i;
}

static void slots_grow(StepTable *t) {
    if (2 * t->n_kernels < t->cap_slots) return;
    t->cap_slots = t->cap_slots ? 2 * t->cap_slots : 256;
    t->slots = arena_alloc(t->arena, t->cap_slots * sizeof *t->slots);
    for (uint32_t i = 0; i < t->n_kernels; i++)
        t->slots[kernel_slot(t, t->kernels[i].hash, &t->kernels[i])] = i + 1;
}

static uint32_t kernel_intern(StepTable *t, StepKernel k) {
    slots_grow(t);
    k.hash =
        text_hash(text_hash(text_hash(14695981039346656037u, k.text), k.epilogue), k.contraction);
    uint32_t i = kernel_slot(t, k.hash, &k);
    if (t->slots[i]) {
        t->kernels[t->slots[i] - 1].n_users++;
        return t->slots[i] - 1;
    }
    if (t->n_kernels == t->cap_kernels) {
        uint32_t cap = t->cap_kernels ? 2 * t->cap_kernels : 64;
        t->kernels = arena_grow(t->arena, t->kernels, t->n_kernels * sizeof k, cap * sizeof k);
        t->cap_kernels = cap;
    }
    k.n_users = 1;
    t->kernels[t->n_kernels] = k;
    t->slots[i] = ++t->n_kernels;
    return t->n_kernels - 1;
}

static void print_ints(Text *out, const char *field, const int64_t *v, int n) {
    text_printf(out, ", .%s = {", field);
    for (int i = 0; i < n; i++) text_printf(out, "%s%lld", i ? ", " : "", (long long)v[i]);
    text_printf(out, "}");
}

/* Where a group stands: in the step, or in the body of the loop `around`, which stands in `outer`.
 */
typedef struct Scope {
    const Graph *g;
    const Plan *plan;
    const PackedBuffer *packed; /* NULL: no buffer is packed */
    const struct Scope *outer;  /* NULL: in the step itself */
    const Group *around;
    uint32_t depth; /* loops around it */
} Scope;

/* The initializer of a trainc_contraction whose raw product goes to param `d`. The library's
 * scratch, where the plan holds some, is one more argument of the launch, which the kernel's own
 * code never sees. */
static const char *contraction_text(const Scope *scope, const Kernel *k, int d,
                                    uint64_t scratch_bytes, Arena *arena) {
    Text out = {.arena = arena};
    const Tile *t = &k->tile;
    const ConvTile *c = &k->conv;
    const uint32_t a = k->form == FORM_TILE ? t->a : c->x, b = k->form == FORM_TILE ? t->b : c->w;
    const int kind = k->form == FORM_TILE ? 0 : c->op == OP_conv ? 1 : c->op == OP_conv_dx ? 2 : 3;
    text_printf(&out,
                "{.kind = %d, .a_dtype = %d, .b_dtype = %d, .d_dtype = %d, .a_arg = %u, .b_arg = "
                "%u, .d_arg = %d, .scratch_arg = %u, .scratch_bytes = %llu",
                kind, k->params[a].dtype, k->params[b].dtype, k->params[d].dtype, a, b, d,
                scratch_bytes ? k->n_params : 255, (unsigned long long)scratch_bytes);
    if (k->form == FORM_TILE) {
        text_printf(&out, ", .batch = %lld, .m = %lld, .n = %lld, .k = %lld", (long long)t->batch,
                    (long long)t->m, (long long)t->n, (long long)t->k);
        print_ints(&out, "a_strides", (const int64_t[]){t->a_batch, t->a_m, t->a_k}, 3);
        print_ints(&out, "b_strides", (const int64_t[]){t->b_batch, t->b_k, t->b_n}, 3);
        print_ints(&out, "d_strides", (const int64_t[]){t->m * t->n, t->n, 1}, 3);
        text_printf(&out, ", .a_offset = %lld, .b_offset = %lld", (long long)t->a_offset,
                    (long long)t->b_offset);
        const uint32_t buffer = k->params[b].buffer;
        if (scope->packed && scope->packed[buffer - 1].k)
            text_printf(&out, ", .packed = 2, .packed_bytes = %llu",
                        (unsigned long long)scope->plan->buffers[buffer - 1].bytes);
        text_printf(&out, "}");
        return out.s;
    }
    int64_t x[5] = {c->n, c->c}, w[5] = {c->o, c->c / c->groups}, y[5] = {c->n, c->o};
    for (int s = 0; s < c->rank; s++) x[2 + s] = c->in[s], w[2 + s] = c->k[s], y[2 + s] = c->out[s];
    text_printf(&out, ", .rank = %d, .groups = %lld", c->rank, (long long)c->groups);
    print_ints(&out, "x_dims", x, 2 + c->rank);
    print_ints(&out, "w_dims", w, 2 + c->rank);
    print_ints(&out, "y_dims", y, 2 + c->rank);
    print_ints(&out, "strides", c->strides, c->rank);
    print_ints(&out, "dilations", c->dilations, c->rank);
    print_ints(&out, "low", c->low, c->rank);
    print_ints(&out, "high", c->high, c->rank);
    text_printf(&out, "}");
    return out.s;
}

uint64_t step_symbol_bytes(const Graph *g, const Buffer *b) {
    Symbol s;
    const bool packed = buffer_symbol(g, b, &s) && s.state && s.state->cls == STATE_PACKED;
    return packed ? b->bytes : type_bytes(&g->types[b->type]);
}

/* A copy into a packed state: the library's product that will read it says how. */
static void print_pack(StepTable *t, const Scope *scope, const Group *group, const Kernel *k,
                       StepKernel *s) {
    const PackedBuffer *p =
        group->kind == GROUP_COPY && scope->packed ? &scope->packed[group->to - 1] : NULL;
    if (!p || !p->k) return;
    assert(k->n_params == 2 && !k->params[0].is_written && k->params[1].is_written);
    s->is_pack = true;
    s->contraction = contraction_text(scope, p->k, target_c_library_param(t->g, p->k), 0, t->arena);
}

static StepKernel kernel_print(StepTable *t, const Scope *scope, const Kernel *k,
                               const Group *group) {
    StepKernel s = {
        .k = k, .name = k->name, .comment = k->comment, .g = scope->g, .kind = group->kind};
    Kernel *bare = arena_alloc(t->arena, sizeof *bare);
    Text text = {.arena = t->arena};
    *bare = *k;
    bare->name = "@", bare->comment = NULL;
    if (t->is_gpu)
        target_hip_kernel(scope->g, bare, &text);
    else
        target_c_kernel(scope->g, bare, &text);
    s.text = text.s;
    print_pack(t, scope, group, k, &s);
    const int d = t->is_gpu ? -1 : target_c_library_param(scope->g, k);
    if (d < 0) return s;
    s.contraction = contraction_text(scope, k, d, group->workspace_bytes, t->arena);
    if (!target_c_has_epilogue(scope->g, k)) return s;
    Text epilogue = {.arena = t->arena};
    target_c_epilogue(scope->g, bare, &epilogue);
    s.epilogue = epilogue.s;
    return s;
}

/* ---- arguments ---- */

/* Where in the arena the bytes lie that are so far into the plan of the scope, and that it alone
 * knows. */
static uint64_t own_offset(const Scope *scope, uint64_t offset) {
    if (!scope->outer) return offset;
    return own_offset(scope->outer, scope->around->workspace_offset) + offset -
           scope->around->loop->own_offset;
}

static void place_buffer(const Scope *scope, uint32_t buffer, StepArg *a) {
    const uint64_t offset = scope->plan->buffers[buffer].offset;
    const PlanPlace *p = scope->outer ? &scope->around->loop->places[buffer] : NULL;
    assert(!p || p->is_bound);
    if (!p || !p->buffer) {
        a->offset = own_offset(scope, offset);
        return;
    }
    place_buffer(scope->outer, p->buffer - 1, a);
    a->offset += p->offset;
    a->stride[scope->depth - 1] = p->stride;
}

/* The number of the turn: a number that moves by 1. */
static void place_number(const Scope *scope, StepArg *a) {
    if (!scope->outer || strcmp(a->scalar, "t") != 0) return;
    const PlanLoop *l = scope->around->loop;
    a->scalar = "";
    a->offset = (uint64_t)(l->is_reverse && l->trips > 0 ? l->trips - 1 : 0);
    a->stride[scope->depth - 1] = l->is_reverse ? -1 : 1;
}

static void add_arg(StepTable *t, const Scope *scope, const Group *group, const Param *p) {
    if (t->n_args == t->cap_args) {
        uint32_t cap = t->cap_args ? 2 * t->cap_args : 256;
        t->args = arena_grow(t->arena, t->args, t->n_args * sizeof *t->args, cap * sizeof *t->args);
        t->cap_args = cap;
    }
    StepArg a = {.scalar = p->scalar,
                 .dtype = p->dtype,
                 .access = (uint8_t)(p->is_read | p->is_written << 1),
                 .value = p->value};
    if (p->is_workspace) {
        a.offset = own_offset(scope, group->workspace_offset);
        a.bytes = group->workspace_bytes;
    } else if (p->is_scalar) {
        a.offset = (uint64_t)p->constant;
        place_number(scope, &a);
    } else {
        place_buffer(scope, p->buffer - 1, &a);
        a.bytes = (uint64_t)p->elems * dtype_info[p->dtype].bytes;
    }
    if (p->buffer && scope->packed && scope->packed[p->buffer - 1].k)
        a.bytes = scope->plan->buffers[p->buffer - 1].bytes;
    t->args[t->n_args++] = a;
}

/* ---- launches ---- */

/* No point to compute: such a launch is an error on GPUs, and tiles of no extent have no kernel. A
 * scatter of nothing still writes its base. */
static bool is_empty(const Kernel *k) {
    for (uint32_t i = 0; i < k->n_axes && k->form != FORM_SCATTER; i++)
        if (k->axes[i].role == AXIS_PAR && k->axes[i].extent == 0) return true;
    return false;
}

static void add_launch(StepTable *t, const Scope *scope, EntryKind e, const Group *group,
                       uint32_t number, double times) {
    const Kernel *k = kernel_lower_group(scope->g, scope->plan, group, number, t->is_gpu, t->arena);
    if (is_empty(k)) return;
    StepLaunch l = {.k = k, .first_arg = t->n_args, .n_args = k->n_params, .times = times};
    l.kernel = kernel_intern(t, kernel_print(t, scope, k, group));
    if (t->is_gpu) l.shape = target_hip_launch(k);
    for (uint32_t i = 0; i < k->n_params; i++) add_arg(t, scope, group, &k->params[i]);
    if (t->kernels[l.kernel].contraction && group->workspace_bytes) {
        add_arg(t, scope, group,
                &(Param){.is_workspace = true, .is_written = true, .dtype = DT_U8});
        l.n_args++;
    }
    const uint32_t n = t->n_launches[e];
    if (n == t->cap_launches[e]) {
        t->cap_launches[e] = n ? 2 * n : 64;
        t->launches[e] =
            arena_grow(t->arena, t->launches[e], n * sizeof l, t->cap_launches[e] * sizeof l);
    }
    t->launches[e][t->n_launches[e]++] = l;
}

static StepLoop *new_loop(StepTable *t, EntryKind e, uint32_t *number) {
    const uint32_t n = *number = t->n_loops[e];
    if (n == t->cap_loops[e]) {
        t->cap_loops[e] = n ? 2 * n : 8;
        t->loops[e] = arena_grow(t->arena, t->loops[e], n * sizeof **t->loops,
                                 t->cap_loops[e] * sizeof **t->loops);
    }
    return &t->loops[e][t->n_loops[e]++];
}

static void add_group(StepTable *t, const Scope *scope, EntryKind e, uint32_t group, double times);

static void add_loop(StepTable *t, const Scope *scope, EntryKind e, const Group *group,
                     double times) {
    const PlanLoop *l = group->loop;
    const EntryPlan *ep = &l->plan->entries[ENTRY_MICRO];
    const Scope body = {
        .g = l->body, .plan = l->plan, .outer = scope, .around = group, .depth = scope->depth + 1};
    uint32_t number;
    assert(scope->depth < 2 && "the frontend lays loops out that lie deeper");
    for (uint32_t i = 0; i < l->n_inits; i++)
        add_launch(t, scope, e, &l->inits[i], t->n_numbers++, times);
    if (!ep->n) return; /* a body that changes nothing leaves the first values */
    const uint32_t first = t->n_launches[e];
    *new_loop(t, e, &number) = (StepLoop){
        .first = first, .n_inits = l->n_inits, .trips = l->trips, .is_reverse = l->is_reverse};
    for (uint32_t i = 0; i < ep->n; i++)
        add_group(t, &body, e, ep->order[i], times * (double)l->trips);
    t->loops[e][number].n = t->n_launches[e] - first;
}

static void add_group(StepTable *t, const Scope *scope, EntryKind e, uint32_t group, double times) {
    const Group *it = &scope->plan->groups[group];
    if (it->kind == GROUP_LOOP)
        add_loop(t, scope, e, it, times);
    else
        add_launch(t, scope, e, it, scope->outer ? t->n_numbers++ : group, times);
}

StepTable step_table_build(const Graph *g, const Plan *plan, bool is_gpu, Arena *arena) {
    StepTable t = {
        .g = g, .plan = plan, .is_gpu = is_gpu, .arena = arena, .n_numbers = plan->n_groups};
    if (!is_gpu) t.packed = step_packed(g, plan, arena);
    const Scope scope = {.g = g, .plan = plan, .packed = t.packed};
    for (EntryKind e = 0; e < N_ENTRIES; e++)
        for (uint32_t i = 0; i < plan->entries[e].n; i++)
            add_group(&t, &scope, e, plan->entries[e].order[i], 1);
    return t;
}

void step_text_named(Text *out, const char *text, const char *name) {
    for (const char *at; (at = strchr(text, '@')); text = at + 1)
        text_printf(out, "%.*s%s", (int)(at - text), text, name);
    text_printf(out, "%s", text);
}
