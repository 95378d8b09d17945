/* identity_ties.c - ties that an exporter broke, ties and names that the user gives.
 *
 * TorchScript folds the transpose of a matrix that the embedding shares with the last layer into a
 * copy of its own. A table that a lookup reads and a folded matrix of the same elements,
 * transposed, are tied again; nothing but a tie makes them equal, unless all elements are one
 * number: then the layer must be called like one that is usually tied. Values are compared where
 * few are read at first: a sample, then all of them up to MAX_COMPARED bytes, and a larger sample
 * beyond. */
#include "identity.h"
#include <string.h>

enum { SAMPLE = 512, LARGE_SAMPLE = 1 << 16, TILE = 64, MAX_CONSTANT = 1 << 16 };
static const uint64_t MAX_COMPARED = UINT64_C(1) << 28;

/* ---------------------------------------------------------------- values */

typedef struct Pair {
    const uint8_t *a, *b; /* a is [rows, columns], b the same or transposed */
    uint64_t rows, columns;
    size_t bytes; /* of an element */
    bool is_transposed, is_constant;
} Pair;

static bool pair_same(Pair *p, uint64_t row, uint64_t column) {
    const uint8_t *a = p->a + (row * p->columns + column) * p->bytes;
    const uint8_t *b =
        p->b + (p->is_transposed ? column * p->rows + row : row * p->columns + column) * p->bytes;
    p->is_constant &= !memcmp(a, p->a, p->bytes);
    return !memcmp(a, b, p->bytes);
}

/* Elements that lie anywhere, by a fixed sequence (Knuth's MMIX constants). */
static bool sample_same(Pair *p, uint32_t n) {
    uint64_t x = 1;
    for (uint32_t i = 0; i < n; i++) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint64_t at = (x >> 11) % (p->rows * p->columns);
        if (!pair_same(p, at / p->columns, at % p->columns)) return false;
    }
    return true;
}

static bool all_same(Pair *p) {
    for (uint64_t r0 = 0; r0 < p->rows; r0 += TILE)
        for (uint64_t c0 = 0; c0 < p->columns; c0 += TILE)
            for (uint64_t r = r0; r < p->rows && r < r0 + TILE; r++)
                for (uint64_t c = c0; c < p->columns && c < c0 + TILE; c++)
                    if (!pair_same(p, r, c)) return false;
    return true;
}

bool bytes_equal(const TensorSource *a, const TensorSource *b, bool is_transposed,
                 bool *is_constant) {
    uint64_t n = (uint64_t)type_elems(&a->type);
    uint64_t rows = a->type.rank ? (uint64_t)a->type.dims[0] : 1;
    Pair p = {a->data,       b->data, rows, rows ? n / rows : 0, dtype_info[a->type.dtype].bytes,
              is_transposed, true};
    *is_constant = true;
    if (!n || a->bytes != b->bytes) return a->bytes == b->bytes;
    bool is_same = sample_same(&p, SAMPLE) &&
                   (a->bytes <= MAX_COMPARED ? all_same(&p) : sample_same(&p, LARGE_SAMPLE));
    *is_constant = p.is_constant;
    return is_same;
}

bool bytes_constant(const TensorSource *s) {
    size_t bytes = dtype_info[s->type.dtype].bytes;
    const uint8_t *at = s->data;
    for (uint64_t i = bytes; i < s->bytes && i < MAX_CONSTANT * bytes; i += bytes)
        if (memcmp(at, at + i, bytes)) return false;
    return s->bytes > 0;
}

/* ---------------------------------------------------------------- broken ties */

static bool reads(const Identity *id, uint32_t initializer, const char *op, uint32_t input) {
    for (uint32_t i = id->first[initializer]; i; i = id->readers[i - 1].next)
        if (!strcmp(id->readers[i - 1].node->op_type, op) && id->readers[i - 1].input == input)
            return true;
    return false;
}

static bool is_swapped(const Type *a, const Type *b) {
    return a->rank == 2 && b->rank == 2 && a->dtype == b->dtype && a->dims[0] == b->dims[1] &&
           a->dims[1] == b->dims[0];
}

static void tie(Identity *id, Shown *head, const Shown *table) {
    if (head->name != head->value) identity_alias(id, head->name, table->name);
    diag_add(id->im->g, N_TIED, 0, head->value, table->value, table->name);
    head->name = table->name;
    head->layout = LAYOUT_TRANSPOSED;
    head->mark = table->mark;
    head->is_named = true;
}

static void tie_find(Identity *id, Shown *head) {
    Import *im = id->im;
    const Type *type = &im->sources[head->initializer].type;
    bool is_called_so = head->name != head->value && path_is_head(head->name);
    for (uint32_t i = 0; i < id->graph->n_initializer; i++) {
        const Shown *table = &im->shown[i];
        bool is_constant;
        if (im->sources[i].data && table->name == table->value && !name_is_made(table->value) &&
            is_swapped(&im->sources[i].type, type) && reads(id, i, "Gather", 0) &&
            bytes_equal(&im->sources[i], &im->sources[head->initializer], true, &is_constant) &&
            (is_called_so || !is_constant)) {
            tie(id, head, table);
            return;
        }
    }
}

/* ---------------------------------------------------------------- the user's */

/* By parameter's name, else by the graph's. */
static Shown *shown_named(Import *im, const char *name) {
    for (uint32_t i = 0; i < im->n_shown; i++)
        if (im->shown[i].name && !strcmp(im->shown[i].name, name)) return &im->shown[i];
    for (uint32_t i = 0; i < im->n_shown; i++)
        if (im->shown[i].name && !strcmp(im->shown[i].value, name)) return &im->shown[i];
    return NULL;
}

static void name_unknown(Identity *id, const char *option, const char *name) {
    Import *im = id->im;
    const char **names = arena_alloc(im->arena, (im->n_shown + 1) * sizeof *names);
    uint32_t n = 0;
    for (uint32_t i = 0; i < im->n_shown; i++)
        if (im->shown[i].name) names[n++] = im->shown[i].name;
    diag_add(im->g, E_GLOB_UNMATCHED, 0, option, name);
    const char *closest = closest_name(im->arena, name, names, n);
    diag_hint(im->g, closest ? "did you mean %s?" : "trainc plan -v lists the parameters%s",
              closest ? closest : "");
}

static void tie_given(Identity *id, const TieRule *rule) {
    Import *im = id->im;
    Shown *a = shown_named(im, rule->a), *b = shown_named(im, rule->b);
    if (!a || !b) {
        name_unknown(id, "--tie", a ? rule->b : rule->a);
        return;
    }
    const Type *ta = &im->sources[a->initializer].type, *tb = &im->sources[b->initializer].type;
    bool is_same = dims_equal(ta, tb) && ta->dtype == tb->dtype && a->layout == b->layout;
    bool is_part = a->layout == LAYOUT_PART || b->layout == LAYOUT_PART;
    if (a->name == b->name) return;
    if (is_part) {
        diag_add(im->g, E_OPTION, 0,
                 arena_printf(im->arena, "--tie %s=%s: the file packs one of them with others",
                              rule->a, rule->b));
        return;
    }
    if (!is_same && (!is_swapped(ta, tb) || (a->layout == b->layout && a->layout))) {
        diag_add(im->g, E_OPTION, 0,
                 arena_printf(im->arena, "--tie %s=%s: they have other shapes", rule->a, rule->b));
        return;
    }
    const char *old = b->name;
    bool is_a_turned = a->layout == LAYOUT_TRANSPOSED;
    for (uint32_t i = 0; i < im->n_shown; i++) {
        Shown *s = &im->shown[i];
        if (s->name != old) continue;
        if (!is_same) s->layout = is_a_turned ? LAYOUT_KEPT : LAYOUT_TRANSPOSED;
        s->name = a->name;
        s->mark = a->mark;
    }
    identity_alias(id, old, a->name);
    diag_add(im->g, N_TIED, 0, b->value, a->value, a->name);
}

static void rename_given(Identity *id, const RenameRule *rule) {
    Import *im = id->im;
    Shown *s = shown_named(im, rule->from);
    if (!s) {
        name_unknown(id, "--rename", rule->from);
        return;
    }
    if (shown_named(im, rule->to) && shown_named(im, rule->to)->name != s->name) {
        diag_add(im->g, E_OPTION, 0,
                 arena_printf(im->arena, "--rename: another parameter is called %s", rule->to));
        return;
    }
    if (rule->is_transposed &&
        (s->layout == LAYOUT_PART || im->sources[s->initializer].type.rank != 2)) {
        diag_add(im->g, E_OPTION, 0,
                 arena_printf(im->arena, "--rename: %s is no matrix", rule->from));
        return;
    }
    const char *old = s->name, *name = graph_str(im->g, rule->to);
    for (uint32_t i = 0; i < im->n_shown; i++) {
        Shown *x = &im->shown[i];
        if (x->name != old) continue;
        x->name = name;
        x->is_named = true;
        if (rule->is_transposed)
            x->layout = x->layout == LAYOUT_TRANSPOSED ? LAYOUT_KEPT : LAYOUT_TRANSPOSED;
    }
    for (uint32_t i = 0; i < im->n_aliases; i++)
        if (im->aliases[i].of == old) im->aliases[i].of = name;
}

void ties_find(Identity *id) {
    const ImportOptions *o = id->im->options;
    bool is_asked = !id->has_signature && !o->tie_none && !o->eval_only;
    for (uint32_t i = 0; i < id->graph->n_initializer && is_asked; i++) {
        Shown *s = &id->im->shown[i];
        if (name_is_made(s->value) && s->name && id->im->sources[i].data &&
            reads(id, i, "MatMul", 1))
            tie_find(id, s);
    }
    for (uint32_t i = 0; i < o->n_ties; i++) tie_given(id, &o->ties[i]);
    for (uint32_t i = 0; i < o->n_renames; i++) rename_given(id, &o->renames[i]);
}
