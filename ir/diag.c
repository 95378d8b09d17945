/* diag.c - diagnostics: collected with the graph, printed by the caller, never fatal.
 *
 * Text and hint are formatted from the row of diag.def with the same arguments. Equal ones (code,
 * place, text) are kept once.
 */
#include "intern.h"
#include <stdarg.h>
#include <string.h>

const DiagInfo diag_info[N_DIAGS] = {
#define DIAG(id, severity, exit_status, format, hint)                                              \
    [id] = {#id, SEV_##severity, exit_status, format, hint},
#include "diag.def"
#undef DIAG
};

static const char *text_format(Arena *a, const char *fmt, va_list args) {
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    size_t bytes = (n < 0 ? 0 : (size_t)n) + 1;
    char *text = arena_alloc(a, bytes);
    vsnprintf(text, bytes, fmt, args);
    return text;
}

void diag_add(Graph *g, DiagCode code, LocId loc, ...) {
    DiagList *d = &g->diags;
    va_list args;
    va_start(args, loc);
    const char *text = text_format(d->arena, diag_info[code].format, args);
    va_end(args);
    for (uint32_t i = 0; i < d->n; i++)
        if (d->items[i].code == code && d->items[i].loc == loc &&
            strcmp(d->items[i].text, text) == 0)
            return;
    va_start(args, loc);
    const char *hint = text_format(d->arena, diag_info[code].hint, args);
    va_end(args);
    LIST_RESERVE(d->arena, d->items, d->n, d->cap);
    d->items[d->n++] = (Diag){.code = code, .loc = loc, .text = text, .hint = hint};
}

void diag_hint(Graph *g, const char *fmt, ...) {
    if (!g->diags.n) return;
    va_list args;
    va_start(args, fmt);
    g->diags.items[g->diags.n - 1].hint = text_format(g->diags.arena, fmt, args);
    va_end(args);
}

void diag_detail(Graph *g, const char *about, const char *blocks) {
    if (!g->diags.n) return;
    Diag *last = &g->diags.items[g->diags.n - 1];
    if (about) last->about = about;
    if (blocks) last->blocks = blocks;
}

/* "inputs f32[4,8], i64[4]" */
static const char *operands_text(Graph *g, Value at) {
    const char *text = "";
    for (uint32_t i = 0; i < graph_node(g, at)->n_operands; i++)
        text = arena_printf(g->diags.arena, "%s%s%s", text, i ? ", " : "inputs ",
                            type_text(g, graph_type_at(g, graph_operand(g, at, i))));
    return text;
}

void diag_no_gradient(Graph *g, DiagCode code, Value at, const char *parameter) {
    LocId loc = at ? graph_node(g, at)->loc : 0;
    const char *op = loc && g->locs[loc].op && *g->locs[loc].op ? g->locs[loc].op
                     : at                                       ? op_info[graph_op(g, at)].name
                                                                : "";
    if (code == E_NO_GRADIENT)
        diag_add(g, code, loc, op, parameter);
    else
        diag_add(g, code, loc, parameter);
    if (!at) return;
    diag_detail(g, operands_text(g, at),
                arena_printf(g->diags.arena, "no gradient: %s would not train", parameter));
    if (code == W_UNTRAINED)
        diag_hint(
            g, "op %s on its way to the loss has no gradient; --freeze says that it need not train",
            op);
}

bool diag_has_errors(const Graph *g) { return diag_exit_status(g) != 0; }

int diag_exit_status(const Graph *g) {
    for (uint32_t i = 0; i < g->diags.n; i++) {
        const DiagInfo *info = &diag_info[g->diags.items[i].code];
        if (info->severity == SEV_ERROR) return info->exit_status;
    }
    return 0;
}

static void loc_print(const Graph *g, LocId loc, FILE *f) {
    static const char *const what[N_LOC_KINDS] = {
        [LOC_NODE] = "",
        [LOC_GRADIENT] = "gradient of ",
        [LOC_RECOMPUTE] = "recomputation of ",
        [LOC_CAST] = "cast for ",
        [LOC_LOSS] = "loss of ",
        [LOC_OPTIMIZER] = "optimizer, ",
        [LOC_CLIP] = "clipping, ",
        [LOC_ACCUMULATE] = "accumulation of ",
    };
    if (!loc) return;
    fputs("  ", f);
    for (; loc && g->locs[loc].kind != LOC_NODE; loc = g->locs[loc].parent)
        fputs(what[g->locs[loc].kind], f);
    const Loc *l = &g->locs[loc];
    if (loc)
        fprintf(f, "node %s", l->name[0] ? l->name : "without a name");
    else
        fputs("the graph", f);
    if (l->op[0]) fprintf(f, " (%s)", l->op);
    if (l->scope[0]) fprintf(f, ", module %s", l->scope);
    fputc('\n', f);
}

/* Equal obstacles of nodes of one op are told once; their other places follow in a line. */
static bool is_alike(const Graph *g, const Diag *a, const Diag *b) {
    bool is_node = a->loc && b->loc && a->code == b->code;
    return is_node && !strcmp(a->text, b->text) && !strcmp(g->locs[a->loc].op, g->locs[b->loc].op);
}

static bool is_told(const Graph *g, uint32_t at) {
    for (uint32_t i = 0; i < at; i++)
        if (is_alike(g, &g->diags.items[i], &g->diags.items[at])) return true;
    return false;
}

static void print_others(const Graph *g, uint32_t at, FILE *f) {
    enum { NAMED = 12 };
    uint32_t n = 0;
    for (uint32_t i = at + 1; i < g->diags.n; i++)
        n += is_alike(g, &g->diags.items[at], &g->diags.items[i]);
    if (!n) return;
    fprintf(f, "  and %u more:", n);
    for (uint32_t i = at + 1, k = 0; i < g->diags.n && k < NAMED; i++)
        if (is_alike(g, &g->diags.items[at], &g->diags.items[i]))
            fprintf(f, "%s %s", k++ ? "," : "", g->locs[g->diags.items[i].loc].name);
    fputs(n > NAMED ? ", ...\n" : "\n", f);
}

void diag_print(const Graph *g, FILE *f) {
    static const char *const severity[] = {
        [SEV_NOTE] = "note", [SEV_WARNING] = "warning", [SEV_ERROR] = "error"};
    for (uint32_t i = 0; i < g->diags.n; i++) {
        const Diag *d = &g->diags.items[i];
        if (is_told(g, i)) continue;
        fprintf(f, "%s[%s]: %s\n", severity[diag_info[d->code].severity], diag_info[d->code].code,
                d->text);
        loc_print(g, d->loc, f);
        print_others(g, i, f);
        if (d->about) fprintf(f, "  %s\n", d->about);
        if (d->blocks) fprintf(f, "  %s\n", d->blocks);
        if (d->hint[0]) fprintf(f, "  hint: %s\n", d->hint);
    }
}
