/* manifest.c - plan.json, the whole plan in a form that can be replayed by hand, and weights.json.
 *
 * Top level: what the step costs and decides; `targets`: per target its arena, symbols, kernels and
 * launches. Every argument of every launch is there as bytes of the arena or as the name of a step
 * scalar. One line per item, so that plans compare with diff. */
#include <string.h>
#include "step_table.h"

void manifest_string(Text *out, const char *s) {
    text_printf(out, "\"");
    for (; s && *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            text_printf(out, "\\%c", c);
        else if (c < 32)
            text_printf(out, "\\u%04x", c);
        else
            text_printf(out, "%c", c);
    }
    text_printf(out, "\"");
}

static void manifest_dims(Text *out, const Type *t) {
    text_printf(out, "[");
    for (uint32_t d = 0; d < t->rank; d++)
        text_printf(out, "%s%lld", d ? ", " : "", (long long)t->dims[d]);
    text_printf(out, "]");
}

static const char *symbol_class(const Buffer *b, const Symbol *s) {
    static const char *const of_state[N_STATE_CLASSES] = {
        [STATE_PARAM] = "parameter",   [STATE_MASTER] = "master",   [STATE_OPTIMIZER] = "optimizer",
        [STATE_GRADIENT] = "gradient", [STATE_COUNTER] = "counter", [STATE_PACKED] = "packed"};
    switch (s->cls) {
    case SYMBOL_STATE:
        return of_state[s->state->cls];
    case SYMBOL_INPUT:
        return "input";
    case SYMBOL_OUTPUT:
        return strcmp(b->symbol, "loss") == 0 || strcmp(b->symbol, "loss_sum") == 0 ? "loss"
                                                                                    : "metric";
    case SYMBOL_CONST:
        return "constant";
    }
    return "";
}

static void print_symbols(Text *out, const StepTable *t) {
    const char *comma = "";
    text_printf(out, "      \"symbols\": [");
    for (uint32_t i = 0; i < t->plan->n_buffers; i++) {
        const Buffer *b = &t->plan->buffers[i];
        const Type *type = &t->g->types[b->type];
        Symbol s;
        if (!buffer_symbol(t->g, b, &s)) continue;
        text_printf(out, "%s\n        {\"name\": ", comma), comma = ",";
        manifest_string(out, b->symbol ? b->symbol : "");
        text_printf(out, ", \"class\": \"%s\", \"dtype\": \"%s\", \"shape\": ", symbol_class(b, &s),
                    dtype_info[type->dtype].name);
        manifest_dims(out, type);
        text_printf(out, ", \"layout\": \"%s\", \"offset\": %llu, \"bytes\": %llu",
                    t->packed && t->packed[i].k ? "packed" : "row-major",
                    (unsigned long long)b->offset, (unsigned long long)step_symbol_bytes(t->g, b));
        if (s.cls == SYMBOL_OUTPUT) text_printf(out, ", \"entry\": \"%s\"", entry_name[b->entry]);
        text_printf(out, "}");
    }
    text_printf(out, "\n      ],\n");
}

static void print_kernels(Text *out, const ManifestTarget *m) {
    const StepTable *t = m->table;
    text_printf(out, "      \"kernels\": [");
    for (uint32_t i = 0; i < t->n_kernels; i++) {
        const StepKernel *s = &t->kernels[i];
        const Kernel *k = s->k;
        uint32_t n_names = 0;
        text_printf(out,
                    "%s\n        {\"name\": \"%s\", \"kind\": \"%s\", \"uses\": %u, \"nodes\": [",
                    i ? "," : "", s->name, group_kind_name[s->kind], s->n_users);
        for (uint32_t l = 0; l < k->n_locs; l++) {
            const Loc *loc = &s->g->locs[k->locs[l]];
            while (loc->parent && loc->kind != LOC_NODE) loc = &s->g->locs[loc->parent];
            if (loc->kind != LOC_NODE || !loc->name || !loc->name[0]) continue;
            text_printf(out, n_names++ ? ", " : "");
            manifest_string(out, loc->name);
        }
        text_printf(out, "], \"flops\": %llu, \"bytes\": %llu, \"ms\": %.6g",
                    (unsigned long long)k->flops, (unsigned long long)k->bytes,
                    target_predict_ms(m->target->target, k));
        int vgprs, sgprs, lds, spills;
        if (m->co_path &&
            gpu_kernel_resources(m->co_path, s->name, &vgprs, &sgprs, &lds, &spills, t->arena))
            text_printf(
                out,
                ", \"registers\": {\"vgpr\": %d, \"sgpr\": %d}, \"lds_bytes\": %d, \"spills\": %d",
                vgprs, sgprs, lds, spills);
        text_printf(out, "}");
    }
    text_printf(out, "\n      ],\n");
}

static void print_args(Text *out, const StepTable *t, const StepLaunch *l) {
    static const char *const access[4] = {"", "r", "w", "rw"};
    for (uint32_t i = 0; i < l->n_args; i++) {
        const StepArg *a = &t->args[l->first_arg + i];
        text_printf(out, i ? ", " : "");
        if (a->scalar && !*a->scalar)
            text_printf(out, "{\"scalar\": %lld, \"dtype\": \"%s\"", (long long)a->offset,
                        dtype_info[a->dtype].name);
        else if (a->scalar)
            text_printf(out, "{\"scalar\": \"%s\", \"dtype\": \"%s\"", a->scalar,
                        dtype_info[a->dtype].name);
        else
            text_printf(
                out, "{\"offset\": %llu, \"bytes\": %llu, \"access\": \"%s\", \"value\": \"%%%u\"",
                (unsigned long long)a->offset, (unsigned long long)a->bytes, access[a->access],
                a->value);
        if (a->stride[0] || a->stride[1])
            text_printf(out, ", \"stride\": [%lld, %lld]", (long long)a->stride[0],
                        (long long)a->stride[1]);
        text_printf(out, "}");
    }
}

static void print_launch(Text *out, const StepTable *t, const StepLaunch *l, const char *indent) {
    const uint32_t *g = l->shape.grid, *b = l->shape.block;
    text_printf(out,
                "\n%s{\"kernel\": \"%s\", \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], "
                "\"lds_bytes\": %u, \"args\": [",
                indent, t->kernels[l->kernel].name, g[0], g[1], g[2], b[0], b[1], b[2],
                l->shape.lds_bytes);
    print_args(out, t, l);
    text_printf(out, "]}");
}

/* Launches and loops that begin at *at, up to `end`; *loop is the next one. A loop is one item:
 * what sets its carries, then the launches of one turn. */
static void print_items(Text *out, const StepTable *t, EntryKind e, uint32_t *at, uint32_t end,
                        uint32_t *loop, uint32_t depth) {
    const char *indent = arena_printf(t->arena, "%*s", (int)(10 + 2 * depth), "");
    for (bool is_first = true; *at < end; is_first = false) {
        const StepLoop *l = *loop < t->n_loops[e] ? &t->loops[e][*loop] : NULL;
        text_printf(out, is_first ? "" : ",");
        if (!l || *at + l->n_inits != l->first) {
            print_launch(out, t, &t->launches[e][(*at)++], indent);
            continue;
        }
        ++*loop;
        text_printf(out, "\n%s{\"loop\": {\"trips\": %lld, \"reverse\": %s, \"before\": [", indent,
                    (long long)l->trips, l->is_reverse ? "true" : "false");
        for (; *at < l->first; ++*at) {
            print_launch(out, t, &t->launches[e][*at], indent);
            text_printf(out, *at + 1 < l->first ? "," : "");
        }
        text_printf(out, "], \"launches\": [");
        print_items(out, t, e, at, l->first + l->n, loop, depth + 1);
        text_printf(out, "]}}");
    }
}

static void print_entries(Text *out, const StepTable *t) {
    text_printf(out, "      \"entries\": {");
    for (EntryKind e = 0; e < N_ENTRIES; e++) {
        uint32_t at = 0, loop = 0;
        text_printf(out, "%s\n        \"%s\": [", e ? "," : "", entry_name[e]);
        print_items(out, t, e, &at, t->n_launches[e], &loop, 0);
        text_printf(out, t->n_launches[e] ? "\n        ]" : "]");
    }
    text_printf(out, "\n      }\n");
}

static double predicted_ms(const ManifestTarget *m) {
    const StepTable *t = m->table;
    double ms = 0;
    for (EntryKind e = ENTRY_MICRO; e <= ENTRY_APPLY; e++) {
        double times = e == ENTRY_MICRO ? (double)t->plan->accumulation_steps : 1;
        for (uint32_t i = 0; i < t->n_launches[e]; i++) {
            const StepLaunch *l = &t->launches[e][i];
            ms += times * l->times * target_predict_ms(m->target->target, l->k);
        }
    }
    return ms;
}

/* Live bytes after each launch of micro and apply: what lasts, and the internal buffers alive
 * there. */
static void print_timeline(Text *out, const StepTable *t) {
    const Plan *p = t->plan;
    uint64_t lasting = 0;
    const char *comma = "";
    for (uint32_t i = 0; i < p->n_buffers; i++)
        if (p->buffers[i].symbol || p->buffers[i].constant) lasting += p->buffers[i].bytes;
    text_printf(out, "  \"timeline\": [");
    for (EntryKind e = ENTRY_MICRO; e <= ENTRY_APPLY; e++) {
        uint32_t n = p->entries[e].n;
        int64_t *change = arena_alloc(t->arena, (n + 2) * sizeof *change), live = 0;
        for (uint32_t i = 0; i < p->n_buffers; i++) {
            const Buffer *b = &p->buffers[i];
            if (b->symbol || b->constant || b->entry != e || b->first >= n) continue;
            change[b->first] += (int64_t)b->bytes;
            change[(b->last < n ? b->last : n - 1) + 1] -= (int64_t)b->bytes;
        }
        for (uint32_t i = 0; i < n; i++) {
            live += change[i];
            text_printf(out, "%s\n    {\"entry\": \"%s\", \"launch\": %u, \"bytes\": %llu}", comma,
                        entry_name[e], i, (unsigned long long)(lasting + (uint64_t)live));
            comma = ",";
        }
    }
    text_printf(out, "\n  ],\n");
}

static void print_casts(Text *out, const Graph *g) {
    const char *comma = "";
    text_printf(out, "  \"casts\": [");
    for (Value v = 1; v < g->n_nodes; v++) {
        const Loc *loc = &g->locs[graph_node(g, v)->loc];
        if (graph_op(g, v) != OP_cast || !graph_node(g, v)->loc || loc->kind != LOC_CAST) continue;
        text_printf(out, "%s\n    {\"node\": ", comma), comma = ",";
        manifest_string(out,
                        loc->parent && g->locs[loc->parent].name ? g->locs[loc->parent].name : "");
        text_printf(out, ", \"from\": \"%s\", \"to\": \"%s\", \"why\": \"cast class of the op\"}",
                    dtype_info[graph_type_at(g, graph_operand(g, v, 0))->dtype].name,
                    dtype_info[graph_type_at(g, v)->dtype].name);
    }
    text_printf(out, "%s],\n", comma[0] ? "\n  " : "");
}

void manifest_plan(Text *out, const ManifestTarget *targets, uint32_t n, const CodegenOptions *o) {
    const Plan *p = targets[0].table->plan;
    text_printf(out, "{\n  \"name\": \"%s\",\n  \"model\": ", o->name);
    manifest_string(out, o->model_path ? o->model_path : "");
    text_printf(out, ",\n  \"optimizer\": ");
    manifest_string(out, o->optimizer);
    text_printf(out, ",\n  \"loss\": ");
    manifest_string(out, o->loss);
    text_printf(out,
                ",\n  \"mem_limit_bytes\": %llu,\n  \"peak_bytes\": %llu,\n  "
                "\"lower_bound_bytes\": %llu,\n",
                (unsigned long long)o->mem_limit_bytes, (unsigned long long)p->arena_bytes,
                (unsigned long long)p->lower_bound_bytes);
    text_printf(out,
                "  \"batch\": %lld,\n  \"micro_batch\": %lld,\n  \"accumulation_steps\": %lld,\n  "
                "\"bytes\": {",
                (long long)p->batch, (long long)p->micro_batch, (long long)p->accumulation_steps);
    for (int c = 0; c < N_BUFFER_CLASSES; c++)
        text_printf(out, "%s\"%s\": %llu", c ? ", " : "", buffer_class_name[c],
                    (unsigned long long)p->bytes[c]);
    text_printf(out,
                "},\n  \"recomputed_flops\": %llu,\n  \"total_flops\": %llu,\n  \"moved_bytes\": "
                "%llu,\n  \"predicted_step_ms\": {",
                (unsigned long long)p->recomputed_flops, (unsigned long long)p->total_flops,
                (unsigned long long)p->moved_bytes);
    for (uint32_t i = 0; i < n; i++)
        text_printf(out, "%s\"%s\": %.6g", i ? ", " : "", targets[i].target->target,
                    predicted_ms(&targets[i]));
    text_printf(out, "},\n  \"macros\": {");
    for (uint32_t i = 0; i < o->n_macros; i++)
        text_printf(out, "%s\"%s\": %u", i ? ", " : "", o->macro_names[i], o->macro_counts[i]);
    text_printf(out, "},\n  \"remat\": [],\n");
    print_casts(out, targets[0].table->g);
    print_timeline(out, targets[0].table);
    text_printf(out, "  \"targets\": {");
    for (uint32_t i = 0; i < n; i++) {
        text_printf(out, "%s\n    \"%s\": {\n      \"arena_bytes\": %llu,\n", i ? "," : "",
                    targets[i].target->target,
                    (unsigned long long)targets[i].table->plan->arena_bytes);
        print_symbols(out, targets[i].table);
        print_kernels(out, &targets[i]);
        print_entries(out, targets[i].table);
        text_printf(out, "    }");
    }
    text_printf(out, "\n  }\n}\n");
}

/* Other names of the parameter, and the initializers of the model that hold it. */
static void print_names(Text *out, const State *s) {
    for (uint32_t i = 0; i < s->n_aliases; i++) {
        text_printf(out, i ? ", " : ", \"aliases\": [");
        manifest_string(out, s->aliases[i]);
    }
    if (s->n_aliases) text_printf(out, "]");
    for (uint32_t i = 0; i < s->n_holders; i++) {
        text_printf(out, i ? ", " : ", \"initializers\": [");
        manifest_string(out, s->holders[i].initializer);
    }
    if (s->n_holders) text_printf(out, "]");
}

void manifest_weights(Text *out, const Graph *g, const CodegenOptions *o) {
    const char *comma = "";
    text_printf(out, "{\n  \"model\": ");
    manifest_string(out, o->model_path ? o->model_path : "");
    text_printf(out, ",\n  \"weights\": [");
    for (uint32_t i = 0; i < g->n_states; i++) {
        const State *s = &g->states[i];
        const Type *t = &g->types[s->type];
        if (s->cls != STATE_PARAM) continue;
        text_printf(out, "%s\n    {\"name\": ", comma), comma = ",";
        manifest_string(out, s->name);
        text_printf(out, ", \"dtype\": \"%s\", \"shape\": ", dtype_info[t->dtype].name);
        manifest_dims(out, t);
        text_printf(out, ", \"trains\": %s, \"file\": ", s->trains ? "true" : "false");
        if (s->source.file)
            manifest_string(out, s->source.file);
        else
            text_printf(out, "null");
        text_printf(out, ", \"offset\": %llu, \"bytes\": %llu",
                    (unsigned long long)s->source.offset,
                    (unsigned long long)(s->source.file ? s->source.bytes : type_bytes(t)));
        if (s->source.is_transposed) text_printf(out, ", \"transposed\": true");
        if (s->source.blocks) text_printf(out, ", \"blocks\": \"%s\"", s->source.blocks);
        print_names(out, s);
        text_printf(out, "}");
    }
    text_printf(out, "\n  ]\n}\n");
}
