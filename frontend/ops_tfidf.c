/* ops_tfidf.c - TfIdfVectorizer over integers: how often each n-gram of a pool occurs in a row, its
 * elements `skip` apart.
 *
 * An occurrence is a comparison of shifted slices of the row with the columns of the pool, [rows,
 * places, grams]; counts are its sum over places. Strings are no type here. */
#include "import.h"
#include <string.h>

typedef struct Pool {
    const int64_t *counts, *items, *columns;
    const float *weights;
    uint32_t n_counts, n_items, n_columns, n_weights;
    int64_t shortest, longest, skips;
} Pool;

static bool pool_read(ImportNode *n, Pool *p) {
    p->counts = node_ints(n, "ngram_counts", &p->n_counts);
    p->items = node_ints(n, "pool_int64s", &p->n_items);
    p->columns = node_ints(n, "ngram_indexes", &p->n_columns);
    p->weights = node_floats(n, "weights", &p->n_weights);
    p->shortest = node_int(n, "min_gram_length", 1);
    p->longest = node_int(n, "max_gram_length", 1);
    p->skips = node_int(n, "max_skip_count", 0);
    int64_t grams = 0;
    bool is_valid = p->items && p->counts && p->columns && p->skips >= 0 && p->skips < 1024;
    for (uint32_t i = 0; i < p->n_counts && is_valid; i++) {
        int64_t end = i + 1 < p->n_counts ? p->counts[i + 1] : p->n_items;
        is_valid = p->counts[i] >= 0 && p->counts[i] <= end && end <= p->n_items &&
                   (end - p->counts[i]) % (i + 1) == 0;
        grams += is_valid ? (end - p->counts[i]) / (i + 1) : 0;
    }
    for (uint32_t i = 0; i < p->n_columns && is_valid; i++)
        is_valid = p->columns[i] >= 0 && p->columns[i] < 1 << 24;
    if (is_valid && grams == p->n_columns && (!p->weights || p->n_weights == grams)) return true;
    node_fail(n, p->items ? "ngram_counts" : "pool_int64s", "is no pool of integers");
    return false;
}

/* Column k of the grams of one length, [1, 1, grams]. */
static Value pool_column(ImportNode *n, const int64_t *items, int64_t grams, int64_t length,
                         int64_t k) {
    int64_t *column = arena_alloc(n->arena, ((size_t)grams + 1) * sizeof *column);
    for (int64_t i = 0; i < grams; i++) column[i] = items[i * length + k];
    return build_reshape(n->g, build_ints(n->g, column, (uint32_t)grams), 3,
                         (int64_t[]){1, 1, grams});
}

/* Occurrences in x[rows, extent] of grams whose elements lie `step` apart: [rows, grams]. */
static Value occurrences(ImportNode *n, Value x, const int64_t *items, int64_t grams,
                         int64_t length, int64_t step) {
    Type t = *node_type(n, x);
    int64_t places = t.dims[1] - (length - 1) * step, axis = 1, start[2] = {0, 0};
    Value all = 0;
    if (places <= 0)
        return build_splat(n->g, graph_type_of(n->g, DT_F32, 2, (int64_t[]){t.dims[0], grams}), 0);
    for (int64_t k = 0; k < length; k++) {
        start[1] = k * step;
        Value part = build_slice(n->g, x, start, (int64_t[]){t.dims[0], places}, NULL);
        part = build_reshape(n->g, part, 3, (int64_t[]){t.dims[0], places, 1});
        Value hit = build_binary(n->g, OP_eq, part, pool_column(n, items, grams, length, k));
        all = all ? build_binary(n->g, OP_and, all, hit) : hit;
    }
    Value sum = build_reduce(n->g, OP_sum, build_cast(n->g, all, DT_F32), &axis, 1);
    return build_squeeze(n->g, sum, &axis, 1);
}

/* [rows, grams of the pool]; single elements have no distance, so they count once. */
static Value gram_counts(ImportNode *n, const Pool *p, Value x) {
    Value *parts = arena_alloc(n->arena, (p->n_counts + 1u) * sizeof *parts);
    uint32_t n_parts = 0;
    for (uint32_t i = 0; i < p->n_counts; i++) {
        int64_t length = i + 1, end = i + 1 < p->n_counts ? p->counts[i + 1] : p->n_items;
        int64_t grams = (end - p->counts[i]) / length, rows = node_type(n, x)->dims[0];
        if (!grams) continue;
        Value sum = build_splat(n->g, graph_type_of(n->g, DT_F32, 2, (int64_t[]){rows, grams}), 0);
        bool is_wanted = length >= p->shortest && length <= p->longest;
        for (int64_t step = 1; is_wanted && step <= (length > 1 ? p->skips : 0) + 1; step++)
            sum = build_binary(n->g, OP_add, sum,
                               occurrences(n, x, p->items + p->counts[i], grams, length, step));
        parts[n_parts++] = sum;
    }
    return n_parts ? build_concat(n->g, parts, n_parts, 1) : 0;
}

static Value weighted(ImportNode *n, const Pool *p, Value counts) {
    const char *mode = node_string(n, "mode", "TF");
    bool is_idf = !strcmp(mode, "IDF");
    if (is_idf) {
        RuleBind binds[] = {{"a", counts}};
        counts = node_rule(n, "(where (gt a 0) 1 0)", binds, 1);
    }
    if (!p->weights || !strcmp(mode, "TF")) return counts;
    Value weights =
        build_const(n->g, graph_type_of(n->g, DT_F32, 1, (int64_t[]){p->n_weights}), p->weights);
    return build_binary(n->g, OP_mul, counts, weights);
}

/* [n] or [rows, n] -> [columns] or [rows, columns], columns as ngram_indexes says */
void import_tfidf_vectorizer(ImportNode *n) {
    Pool p;
    Type t = *node_type(n, n->in[0]);
    int64_t width = 0, rows = t.rank == 2 ? t.dims[0] : 1;
    if (t.rank < 1 || t.rank > 2 || dtype_info[t.dtype].cls != CLASS_INT) {
        node_fail_shapes(n, "TfIdfVectorizer takes [n] or [rows, n] integers");
        return;
    }
    if (!pool_read(n, &p)) return;
    Value x = build_cast(n->g, n->in[0], DT_I64);
    Value counts =
        gram_counts(n, &p, build_reshape(n->g, x, 2, (int64_t[]){rows, t.dims[t.rank - 1]}));
    if (!counts) return;
    for (uint32_t i = 0; i < p.n_columns; i++)
        if (p.columns[i] >= width) width = p.columns[i] + 1;
    int64_t *from = arena_alloc(n->arena, ((size_t)width + 1) * sizeof *from);
    for (int64_t c = 0; c < width; c++) from[c] = p.n_columns; /* a column of zeros */
    for (uint32_t i = 0; i < p.n_columns; i++) from[p.columns[i]] = i;
    Value parts[2] = {weighted(n, &p, counts),
                      build_splat(n->g, graph_type_of(n->g, DT_F32, 2, (int64_t[]){rows, 1}), 0)};
    Value all = build_concat(n->g, parts, 2, 1);
    all = build_gather(n->g, all, build_ints(n->g, from, (uint32_t)width), 1);
    n->out[0] = t.rank == 2 ? all : build_reshape(n->g, all, 1, &width);
}
