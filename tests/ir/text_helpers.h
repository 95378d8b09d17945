/* text_helpers.h - graphs from text and text from graphs, for the tests of ir/. */
#ifndef TEXT_HELPERS_H
#define TEXT_HELPERS_H
#include "ir.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* The graph of `text`, or NULL with the parser's complaint in *errors (to be freed) where errors is
 * given. */
static inline Graph *parse(const char *text, char **errors) {
    char *said = NULL;
    size_t bytes;
    FILE *f = open_memstream(&said, &bytes);
    Graph *g = graph_parse(text, "t", f);
    fclose(f);
    if (!errors) {
        cr_assert(g, "%s", said);
        free(said);
    } else
        *errors = said;
    return g;
}

static inline char *printed(const Graph *g) {
    char *text;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    graph_print(g, f);
    fclose(f);
    return text;
}

/* What the verifier says; "" where all is well. To be freed. */
static inline char *complaints(Graph *g) {
    char *text;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    bool ok = graph_verify(g, f);
    fclose(f);
    cr_assert(ok == (text[0] == 0));
    return text;
}

static inline char *diags_printed(const Graph *g) {
    char *text;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    diag_print(g, f);
    fclose(f);
    return text;
}

static inline Value input_of(Graph *g, const char *name, DType d, uint32_t rank,
                             const int64_t *dims) {
    graph_add_input(
        g, (Input){.name = name, .type = graph_type_of(g, d, rank, dims), .batch_axis = -1});
    return build_input(g, name);
}
#define DIMS(...)                                                                                  \
    (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }

static inline void expect_type(Graph *g, Value v, const char *type) {
    cr_assert(v);
    cr_assert_str_eq(type_text(g, graph_type_at(g, v)), type);
}
#endif
