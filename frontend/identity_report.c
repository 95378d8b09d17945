/* identity_report.c - what is said about the parameters of a file: which were merged, which keep
 * the graph's names, which the exporter dropped, and which tables may be no parameters at all. */
#include "identity.h"
#include <string.h>

enum { MAX_LISTED = 6 };

static void report_list(Import *im, DiagCode code,
                        bool (*is_meant)(const Import *, const Shown *)) {
    const char *names = "";
    uint32_t n = 0;
    for (uint32_t i = 0; i < im->n_shown; i++) {
        const Shown *s = &im->shown[i];
        if (!is_meant(im, s) || n++ >= MAX_LISTED) continue;
        names = arena_printf(im->arena, "%s%s%s", names, *names ? ", " : "", s->name);
    }
    if (n) diag_add(im->g, code, 0, (long long)n, names, n > MAX_LISTED ? ", ..." : "");
}

static bool is_split_param(const Import *im, const Shown *s) {
    return s->is_split && s->name && im->shown[s->initializer].name;
}

static bool keeps_graph_name(const Import *im, const Shown *s) {
    return s->name == s->value && !s->is_named && s->mark < MARK_BUFFER &&
           source_is_float(&im->sources[s->initializer]);
}

/* Inputs that layers take parameters by. */
static bool is_layer_input(const Reader *r) {
    static const struct {
        const char *op;
        uint32_t first, last;
    } rows[] = {{"Conv", 1, 2},   {"ConvTranspose", 1, 2}, {"Gemm", 0, 2},  {"MatMul", 0, 1},
                {"Gather", 0, 0}, {"GatherND", 0, 0},      {"LSTM", 1, 7},  {"GRU", 1, 7},
                {"RNN", 1, 7},    {"PRelu", 1, 1},         {"Einsum", 0, 7}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(r->node->op_type, rows[i].op) && r->input >= rows[i].first &&
            r->input <= rows[i].last)
            return true;
    return reader_is_norm(r);
}

/* A table without a mark that no layer takes, and that is not called like a parameter: it may be
 * one (a position table, a class token), or a constant of the code. */
static const char *table_text(Identity *id, const Shown *s) {
    const TensorSource *source = &id->im->sources[s->initializer];
    const char *word = name_suffix(s->value);
    if (!source_is_float(source) || s->mark != MARK_NONE || s->is_split || !s->name ||
        type_elems(&source->type) < 2 || !strncmp(word, "weight", 6) || !strncmp(word, "bias", 4) ||
        keeps_graph_name(id->im, s))
        return NULL;
    const Reader *first = NULL;
    for (uint32_t k = id->first[s->initializer]; k; k = id->readers[k - 1].next) {
        if (is_layer_input(&id->readers[k - 1]) || id->readers[k - 1].claim.is_exact) return NULL;
        if (!first) first = &id->readers[k - 1];
    }
    return first ? arena_printf(id->im->arena, "%s %s read by %s", s->name,
                                type_text(id->im->g, &source->type), first->node->op_type)
                 : NULL;
}

static void report_tables(Identity *id) {
    const char *text = "";
    uint32_t n = 0;
    for (uint32_t i = 0; i < id->im->n_shown && !id->has_marks; i++) {
        const char *table = table_text(id, &id->im->shown[i]);
        if (!table || n++ >= MAX_LISTED) continue;
        text = arena_printf(id->im->arena, "%s%s%s", text, *text ? ", " : "", table);
    }
    if (n) diag_add(id->im->g, N_TABLES, 0, (long long)n, text, n > MAX_LISTED ? ", ..." : "");
}

/* Parameters of the traced program that no initializer holds: of neutral value, and so optimized
 * away, or fused into others. */
static void report_lost(Identity *id) {
    Import *im = id->im;
    NameMap held = {0};
    const char *names = "";
    uint32_t n = 0, known;
    for (uint32_t i = 0; i < im->n_shown; i++)
        if (im->shown[i].name) names_set(im->arena, &held, im->shown[i].name, 1);
    for (uint32_t i = 0; i < im->n_aliases; i++)
        names_set(im->arena, &held, im->aliases[i].name, 1);
    for (uint32_t i = 0; i < id->n_targets; i++) {
        const Target *t = &id->targets[i];
        if (t->is_buffer || names_get(&held, t->name, &known)) continue;
        if (n++ < MAX_LISTED)
            names = arena_printf(im->arena, "%s%s%s", names, *names ? ", " : "", t->name);
    }
    if (n) diag_add(im->g, N_LOST, 0, (long long)n, names, n > MAX_LISTED ? ", ..." : "");
}

void identity_report(Identity *id) {
    report_list(id->im, N_SPLIT, is_split_param);
    report_list(id->im, N_NAMES, keeps_graph_name);
    report_lost(id);
    if (id->im->model->from_pytorch) report_tables(id);
}
