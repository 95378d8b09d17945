/* manager.c - runs passes over a graph and holds them to their word.
 *
 * For each pass: what it needs must hold; it runs; the graph is verified and every property it
 * gives is proved by the checker of property.def; then it is dumped and timed where the options
 * ask. What holds at the start is found by the same checkers, so a text file may enter the pipeline
 * at any point. On a fault of ours the graph as the pass received it is written to
 * trainc-repro-PASS.tir, whose first lines hold the passes and options that trainc-opt needs to run
 * it again.
 *
 * Nodes are immutable and passes append or copy, so the graph before a pass is restored by its
 * entries alone. */
#include "pass.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

const PassInfo pass_info[] = {
#define PASS(name, needs, gives, breaks, what) {#name, pass_##name, needs, gives, breaks, what},
#include "pass.def"
#undef PASS
};
const uint32_t n_passes = sizeof pass_info / sizeof *pass_info;

static const char training[] = "loss,simplify,lora,match,census,autodiff,accumulate,optimizer,expand,"
                               "simplify,pack,fuse,schedule,memplan";
static const char forward[] = "simplify,match,census,expand,simplify,fuse,schedule,memplan";

bool pass_fuel(PassContext *ctx) {
    if (ctx->options->fuel < 0) return true;
    if (ctx->options->fuel == 0) return false;
    ctx->options->fuel--;
    return true;
}

void pass_rewrite(PassContext *ctx, VisitFn *visit, void *pass) {
    Graph *to = graph_copy_empty(ctx->g);
    Value *map = arena_alloc(ctx->arena, sizeof *map * ctx->g->n_nodes);
    graph_rewrite(ctx->g, to, visit, pass, map);
    ctx->g = to;
}

Value node_copied(const Graph *from, Value v, Graph *to, const Value *map) {
    const Node *n = graph_node(from, v);
    Value few[8], *operands = n->n_operands <= 8
                                  ? few
                                  : arena_alloc(to->arena, sizeof *operands * n->n_operands);
    for (uint32_t i = 0; i < n->n_operands; i++) operands[i] = map[graph_operand(from, v, i)];
    to->loc = n->loc;
    to->epoch = n->epoch;
    AttrId attr = n->attr ? graph_attr(to, from->attrs[n->attr].fields, from->attrs[n->attr].n) : 0;
    return graph_emit(to, (OpCode)n->op, operands, n->n_operands, attr,
                      graph_type(to, from->types[n->type]));
}

const char *grad_name(Graph *g, const char *parameter) {
    return arena_printf(g->arena, "grad.%s", parameter);
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* ---- options as text: "loss=mse:y optimizer=sgd batch=8 ..." ---- */

static void print_options(const PassOptions *o, FILE *f) {
    fputs("# options:", f);
    if (o->loss) fprintf(f, " loss=%s", o->loss);
    if (o->optimizer) fprintf(f, " optimizer=%s", o->optimizer);
    fprintf(f, " ignore_index=%lld batch=%lld micro_batch=%lld", (long long)o->ignore_index,
            (long long)o->batch, (long long)o->micro_batch);
    if (o->state_int8) fputs(" state_int8=1", f);
    if (o->lora_rank) fprintf(f, " lora=%u", o->lora_rank);
    if (o->lora_rank && o->lora_glob) fprintf(f, ":%s", o->lora_glob);
    if (o->lora_alpha > 0) fprintf(f, " lora_alpha=%.17g", o->lora_alpha);
    if (o->keep_outputs) fputs(" keep_outputs=1", f);
    if (o->forward_only) fputs(" forward_only=1", f);
    if (o->for_gpu) fputs(" for_gpu=1", f);
    if (o->pack) fputs(o->pack == PACK_ALWAYS ? " pack=always" : " pack=never", f);
    fputc('\n', f);
}

bool lora_option_parse(const char *text, PassOptions *o) {
    char *end;
    unsigned long rank = strtoul(text, &end, 10);
    if (*text < '1' || *text > '9' || rank > INT32_MAX || (*end && (*end != ':' || !end[1])))
        return false;
    o->lora_rank = (uint32_t)rank;
    o->lora_glob = *end ? end + 1 : NULL;
    return true;
}

static bool set_option(Arena *a, PassOptions *o, const char *key, const char *value) {
    long long n = strtoll(value, NULL, 10);
    if (!strcmp(key, "loss"))
        o->loss = arena_strdup(a, value);
    else if (!strcmp(key, "optimizer"))
        o->optimizer = arena_strdup(a, value);
    else if (!strcmp(key, "lora"))
        return lora_option_parse(arena_strdup(a, value), o);
    else if (!strcmp(key, "lora_alpha"))
        o->lora_alpha = strtod(value, NULL);
    else if (!strcmp(key, "ignore_index"))
        o->ignore_index = n;
    else if (!strcmp(key, "batch"))
        o->batch = n;
    else if (!strcmp(key, "micro_batch"))
        o->micro_batch = n;
    else if (!strcmp(key, "state_int8"))
        o->state_int8 = n != 0;
    else if (!strcmp(key, "keep_outputs"))
        o->keep_outputs = n != 0;
    else if (!strcmp(key, "forward_only"))
        o->forward_only = n != 0;
    else if (!strcmp(key, "for_gpu"))
        o->for_gpu = n != 0;
    else if (!strcmp(key, "pack"))
        o->pack = !strcmp(value, "always") ? PACK_ALWAYS : PACK_NEVER;
    else if (!strcmp(key, "fuel"))
        o->fuel = n;
    else
        return false;
    return true;
}

bool pass_options_parse(const char *text, Arena *a, PassOptions *o) {
    char *words = arena_strdup(a, text), *rest = NULL;
    for (char *w = strtok_r(words, " \t\r\n", &rest); w; w = strtok_r(NULL, " \t\r\n", &rest)) {
        char *eq = strchr(w, '=');
        if (!eq) return false;
        *eq = 0;
        if (!set_option(a, o, w, eq + 1)) return false;
    }
    return true;
}

/* The text behind "# KEY:" among the comment lines that begin a file; NULL where there is none. */
static const char *header_line(Arena *a, const char *text, const char *key) {
    size_t n = strlen(key);
    for (const char *line = text; line && *line == '#';
         line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
        const char *p = line + 1 + strspn(line + 1, "# ");
        if (strncmp(p, key, n) || p[n] != ':') continue;
        char *copy = arena_strdup(a, p + n + 1 + strspn(p + n + 1, " "));
        copy[strcspn(copy, "\r\n")] = 0;
        return copy;
    }
    return NULL;
}

const char *passes_from_header(const char *text, Arena *a, PassOptions *o) {
    const char *options = header_line(a, text, "options");
    if (options && !pass_options_parse(options, a, o)) return NULL;
    return header_line(a, text, "passes");
}

/* ---- one pass ---- */

typedef struct Snapshot {
    Graph *g;
    Entry entries[N_ENTRIES];
    uint32_t n_states, n_inputs;
    bool *trains;
} Snapshot;

static Snapshot snapshot(PassContext *ctx) {
    Graph *g = ctx->g;
    Snapshot s = {.g = g, .n_states = g->n_states, .n_inputs = g->n_inputs};
    for (int e = 0; e < N_ENTRIES; e++) {
        s.entries[e] = (Entry){arena_alloc(ctx->arena, sizeof(Root) * (g->entries[e].n + 1)),
                               g->entries[e].n, g->entries[e].n};
        if (g->entries[e].n)
            memcpy(s.entries[e].roots, g->entries[e].roots, sizeof(Root) * g->entries[e].n);
    }
    s.trains = arena_alloc(ctx->arena, g->n_states + 1);
    for (uint32_t i = 0; i < g->n_states; i++) s.trains[i] = g->states[i].trains;
    return s;
}

/* Writes the graph of the snapshot; ctx->g keeps its diagnostics but is not usable as a program
 * afterwards. */
static void write_reproducer(PassContext *ctx, const PassInfo *p, const Snapshot *s) {
    const char *path = arena_printf(ctx->arena, "trainc-repro-%s.tir", p->name);
    FILE *f = fopen(path, "w");
    if (!f) return;
    Graph *g = s->g;
    memcpy(g->entries, s->entries, sizeof g->entries);
    g->n_states = s->n_states;
    g->n_inputs = s->n_inputs;
    for (uint32_t i = 0; i < g->n_states; i++) g->states[i].trains = s->trains[i];
    Graph *clean = graph_copy_empty(g);
    graph_rewrite(g, clean, NULL, NULL, arena_alloc(ctx->arena, sizeof(Value) * g->n_nodes));
    fprintf(f, "# passes: %s\n",
            p->needs & PLAN ? arena_printf(ctx->arena, "fuse,schedule,%s", p->name) : p->name);
    print_options(ctx->options, f);
    graph_print(clean, f);
    fclose(f);
    graph_free(clean);
    if (ctx->log)
        fprintf(ctx->log, "trainc: pass %s failed; what it was given: %s\n", p->name, path);
}

static void dump(PassContext *ctx, const PassInfo *p, uint32_t number) {
    const char *dir = ctx->options->dump_dir;
    if (!dir) return;
    mkdir(dir, 0777);
    const char *path = arena_printf(ctx->arena, "%s/%02u_%s.tir", dir, number, p->name);
    FILE *f = fopen(path, "w");
    if (!f) {
        diag_add(ctx->g, E_OUTPUT, 0, path, "the folder cannot be written");
        return;
    }
    graph_print(ctx->g, f);
    fclose(f);
}

static uint32_t holding(const PassContext *ctx) {
    uint32_t props = 0;
    for (uint32_t i = 0; i < N_PROPERTIES; i++)
        if (property_info[i].check(ctx, NULL)) props |= 1u << i;
    return props;
}

/* Structure, and each property in `claimed`. */
static bool verified(PassContext *ctx, const PassInfo *p, uint32_t claimed) {
    FILE *log = ctx->log;
    if (!graph_verify(ctx->g, log)) return false;
    for (uint32_t i = 0; i < N_PROPERTIES; i++) {
        if (!(claimed & (1u << i)) || property_info[i].check(ctx, log)) continue;
        if (log)
            fprintf(log, "trainc: after %s this does not hold: %s\n", p->name,
                    property_info[i].meaning);
        return false;
    }
    return true;
}

static const char *missing_names(PassContext *ctx, uint32_t missing) {
    const char *names = "";
    for (uint32_t i = 0; i < N_PROPERTIES; i++)
        if (missing & (1u << i))
            names = arena_printf(ctx->arena, "%s%s%s", names, *names ? ", " : "",
                                 property_info[i].name);
    return names;
}

static bool run_one(PassContext *ctx, const PassInfo *p, uint32_t *props, uint32_t number) {
    if (p->needs & ~*props) {
        diag_add(ctx->g, E_OPTION, 0,
                 arena_printf(ctx->arena, "pass %s needs %s", p->name,
                              missing_names(ctx, p->needs & ~*props)));
        return false;
    }
    Snapshot before = snapshot(ctx);
    double start = now_ms();
    uint32_t n_before = ctx->g->n_nodes;
    bool ran = p->run(ctx);
    double took = now_ms() - start;
    if (!ran || diag_has_errors(ctx->g)) {
        if (diag_exit_status(ctx->g) <= 1)
            write_reproducer(ctx, p, &before); /* no user's error: ours */
        return false;
    }
    *props = (*props & ~p->breaks) | p->gives;
    if (!verified(ctx, p, *props & (p->gives | ~PLAN))) {
        write_reproducer(ctx, p, &before);
        return false;
    }
    if (ctx->options->verbose && ctx->log)
        fprintf(ctx->log, "%-11s %8.2f ms  %6u -> %-6u nodes  %s\n", p->name, took, n_before,
                ctx->g->n_nodes, p->what);
    dump(ctx, p, number);
    return true;
}

static const PassInfo *find_pass(const char *name, size_t n) {
    for (uint32_t i = 0; i < n_passes; i++)
        if (strlen(pass_info[i].name) == n && !memcmp(pass_info[i].name, name, n))
            return &pass_info[i];
    return NULL;
}

/* What the pipeline will not need is dropped before anything looks at it. */
static void keep_eval_only(Graph *g) {
    for (int e = 0; e < N_ENTRIES; e++)
        if (e != ENTRY_EVAL) g->entries[e].n = 0;
}

void passes_check_options(PassContext *ctx) {
    LossKind kind;
    loss_kind(ctx, &kind);
    optimizer_is_known(ctx);
}

bool passes_run(PassContext *ctx, const char *names) {
    Graph *given = ctx->g;
    if (!names) names = ctx->options->forward_only ? forward : training;
    if (ctx->options->forward_only) keep_eval_only(ctx->g);
    const char *fuel = getenv("TRAINC_FUEL");
    if (fuel) ctx->options->fuel = strtoll(fuel, NULL, 10);
    uint32_t props = holding(ctx), number = 0;
    for (const char *p = names; *p;) {
        size_t n = strcspn(p, ",");
        const PassInfo *pass = find_pass(p, n);
        if (!pass) {
            diag_add(ctx->g, E_OPTION, 0,
                     arena_printf(ctx->arena, "no such pass: %.*s", (int)n, p));
            return false;
        }
        Graph *before = ctx->g;
        bool ok = run_one(ctx, pass, &props, ++number);
        if (before != ctx->g && before != given) graph_free(before);
        if (!ok) return false;
        p += n + (p[n] == ',');
    }
    return true;
}
