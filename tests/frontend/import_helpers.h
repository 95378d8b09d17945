/* import_helpers.h - imports a file of tests/frontend/models and asks what came of it. */
#ifndef TRAINC_TESTS_IMPORT_HELPERS_H
#define TRAINC_TESTS_IMPORT_HELPERS_H
#include "frontend.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL(name) TEST_DIR "/models/" name ".onnx"
#define DIMS(...) .dims = (DimBinding[]){__VA_ARGS__}, .n_dims = sizeof((DimBinding[]){__VA_ARGS__}) / sizeof(DimBinding)
#define FREEZES(...) .freezes = (FreezeRule[]){__VA_ARGS__}, .n_freezes = sizeof((FreezeRule[]){__VA_ARGS__}) / sizeof(FreezeRule)

/* All diagnostics as text. */
static inline char *diag_text(const Graph *g) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    diag_print(g, f);
    fclose(f);
    return text;
}

static inline Model import_good(ImportOptions o) {
    Model m;
    bool is_imported = model_import(&o, &m);
    char *text = diag_text(m.graph);
    cr_assert(is_imported, "%s", text);
    cr_assert(graph_verify(m.graph, stderr));
    free(text);
    return m;
}

/* Expects a refusal with that exit status; the diagnostics must hold every one of the strings (NULL ends). */
static inline void import_bad(ImportOptions o, int exit_status, const char *const *strings) {
    Model m;
    cr_assert(!model_import(&o, &m));
    char *text = diag_text(m.graph);
    cr_assert_eq(diag_exit_status(m.graph), exit_status, "%s", text);
    for (; *strings; strings++) cr_assert(strstr(text, *strings), "'%s' is not in:\n%s", *strings, text);
    free(text);
    model_free(&m);
}
#define STRINGS(...) (const char *const[]){__VA_ARGS__, NULL}

static inline const Type *output_type(const Model *m, EntryKind entry, const char *name) {
    Root *root = graph_root(m->graph, entry, false, name);
    cr_assert(root, "output %s", name);
    return graph_type_at(m->graph, root->value);
}

static inline uint32_t count_op(const Graph *g, EntryKind entry, OpCode op) {
    Arena *arena = arena_new();
    bool *is_reached = graph_reachable(g, arena, entry);
    uint32_t n = 0;
    for (Value v = 1; v < g->n_nodes; v++) n += is_reached[v] && graph_op(g, v) == op;
    arena_free(arena);
    return n;
}
#endif
