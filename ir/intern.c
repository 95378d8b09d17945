/* intern.c - types, attributes, locations and strings: equal content is one id, so that a node is a
 * handful of integers.
 *
 * Everything is copied into the graph's arena. Attribute fields are sorted by key and compared by
 * content (doubles by bits).
 */
#include "intern.h"
#include <assert.h>
#include <string.h>

/* ---------------------------------------------------------------- tables */

uint64_t hash_bytes(uint64_t h, const void *bytes, size_t n) {
    const unsigned char *p = bytes;
    uint64_t word;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&word, p, 8);
        h = hash_word(h, word);
    }
    word = n;
    if (n) memcpy((unsigned char *)&word + 1, p, n);
    return hash_word(h, word);
}

uint32_t table_next(const Table *t, uint64_t hash, uint32_t *cursor) {
    if (!t->cap) return 0;
    for (uint32_t s = *cursor & (t->cap - 1); t->ids[s]; s = (s + 1) & (t->cap - 1)) {
        *cursor = s + 1;
        if (t->hashes[s] == hash) return t->ids[s];
    }
    return 0;
}

static void table_put(Table *t, uint64_t hash, uint32_t id) {
    uint32_t s = (uint32_t)hash & (t->cap - 1);
    while (t->ids[s]) s = (s + 1) & (t->cap - 1);
    t->ids[s] = id;
    t->hashes[s] = hash;
}

void table_add(Arena *a, Table *t, uint64_t hash, uint32_t id) {
    if (t->n * 2 >= t->cap) {
        Table old = *t;
        t->cap = old.cap ? old.cap * 2 : 64;
        t->ids = arena_alloc(a, t->cap * sizeof *t->ids);
        t->hashes = arena_alloc(a, t->cap * sizeof *t->hashes);
        for (uint32_t s = 0; s < old.cap; s++)
            if (old.ids[s]) table_put(t, old.hashes[s], old.ids[s]);
    }
    table_put(t, hash, id);
    t->n++;
}

void *list_reserve(Arena *a, void *list, uint32_t n, uint32_t *cap, size_t item_bytes) {
    if (n < *cap) return list;
    uint32_t grown = *cap ? *cap * 2 : 16;
    list = arena_grow(a, list, n * item_bytes, grown * item_bytes);
    *cap = grown;
    return list;
}

/* ---------------------------------------------------------------- strings */

static const char *str_find(const struct Interner *in, const char *s, uint64_t *hash) {
    *hash = hash_bytes(1, s, strlen(s));
    uint32_t cursor = (uint32_t)*hash, id;
    while ((id = table_next(&in->strings, *hash, &cursor)))
        if (strcmp(in->string_at[id - 1], s) == 0) return in->string_at[id - 1];
    return NULL;
}

const char *intern_find(const Graph *g, const char *s) {
    uint64_t hash;
    return str_find(g->interner, s, &hash);
}

const char *graph_str(Graph *g, const char *s) {
    struct Interner *in = g->interner;
    uint64_t h;
    const char *known = str_find(in, s, &h);
    if (known) return known;
    LIST_RESERVE(g->arena, in->string_at, in->n_strings, in->cap_strings);
    in->string_at[in->n_strings++] = arena_strdup(g->arena, s);
    table_add(g->arena, &in->strings, h, in->n_strings);
    return in->string_at[in->n_strings - 1];
}

/* ---------------------------------------------------------------- types */

static bool types_equal(const Type *a, const Type *b) {
    return a->dtype == b->dtype && dims_equal(a, b);
}

static uint64_t type_hash(const Type *t) {
    uint64_t h = hash_word(2, (uint64_t)t->dtype << 8 | t->rank);
    for (uint32_t i = 0; i < t->rank; i++) h = hash_word(h, (uint64_t)t->dims[i]);
    return h;
}

TypeId graph_type(Graph *g, Type t) {
    assert(t.dtype > DT_NONE && t.dtype < N_DTYPES && t.rank <= MAX_RANK);
    for (uint32_t i = t.rank; i < MAX_RANK; i++) t.dims[i] = 0;
    uint64_t h = type_hash(&t);
    uint32_t cursor = (uint32_t)h, id;
    while ((id = table_next(&g->interner->types, h, &cursor)))
        if (types_equal(&g->types[id], &t)) return id;
    LIST_RESERVE(g->arena, g->types, g->n_types, g->cap_types);
    g->types[g->n_types] = t;
    table_add(g->arena, &g->interner->types, h, g->n_types);
    return g->n_types++;
}

TypeId graph_type_of(Graph *g, DType dtype, uint32_t rank, const int64_t *dims) {
    assert(rank <= MAX_RANK);
    Type t = {.dtype = (uint8_t)dtype, .rank = (uint8_t)rank};
    for (uint32_t i = 0; i < rank; i++) t.dims[i] = dims[i];
    return graph_type(g, t);
}

int64_t type_elems(const Type *t) {
    int64_t n = 1;
    for (uint32_t i = 0; i < t->rank; i++) n *= t->dims[i];
    return n;
}

uint64_t type_bytes(const Type *t) { return (uint64_t)type_elems(t) * dtype_info[t->dtype].bytes; }

bool dims_equal(const Type *a, const Type *b) {
    return a->rank == b->rank && memcmp(a->dims, b->dims, a->rank * sizeof a->dims[0]) == 0;
}

const char *type_text(Graph *g, const Type *t) {
    char text[16 + MAX_RANK * 21] = "";
    int at = snprintf(text, sizeof text, "%s[", dtype_info[t->dtype].name);
    for (uint32_t i = 0; i < t->rank; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%lld", i ? "," : "",
                       (long long)t->dims[i]);
    return arena_printf(g->arena, "%s]", text);
}

/* ---------------------------------------------------------------- attributes */

static const void *field_content(const AttrField *f, size_t *bytes) {
    switch (attr_info[f->key].kind) {
    case ATTR_INT:
        *bytes = sizeof f->u.i;
        return &f->u.i;
    case ATTR_FLOAT:
        *bytes = sizeof f->u.f;
        return &f->u.f;
    case ATTR_INTS:
        *bytes = f->n * sizeof *f->u.ints;
        return f->u.ints;
    case ATTR_STR:
        *bytes = strlen(f->u.str) + 1;
        return f->u.str;
    case ATTR_BYTES:
        *bytes = f->n;
        return f->u.bytes;
    }
    assert(0 && "an attribute kind");
    return NULL;
}

static bool fields_equal(const AttrField *a, const AttrField *b) {
    size_t a_bytes, b_bytes;
    if (a->key != b->key) return false;
    const void *x = field_content(a, &a_bytes), *y = field_content(b, &b_bytes);
    return a_bytes == b_bytes && (!a_bytes || memcmp(x, y, a_bytes) == 0);
}

static AttrField field_copy(Graph *g, AttrField f) {
    size_t bytes;
    const void *content = field_content(&f, &bytes);
    switch (attr_info[f.key].kind) {
    case ATTR_INT:
    case ATTR_FLOAT:
        f.n = 1;
        break;
    case ATTR_INTS:
        f.u.ints = arena_grow(g->arena, (void *)content, bytes, bytes);
        break;
    case ATTR_BYTES:
        f.u.bytes = arena_grow(g->arena, (void *)content, bytes, bytes);
        break;
    case ATTR_STR:
        f.n = 1;
        f.u.str = graph_str(g, f.u.str);
        break;
    }
    return f;
}

static uint64_t attr_hash(const AttrField *fields, uint32_t n) {
    uint64_t h = hash_word(3, n);
    for (uint32_t i = 0; i < n; i++) {
        size_t bytes;
        const void *content = field_content(&fields[i], &bytes);
        h = hash_bytes(hash_word(h, fields[i].key), content, bytes);
    }
    return h;
}

static uint32_t attr_lookup(const Graph *g, uint64_t h, const AttrField *fields, uint32_t n) {
    uint32_t cursor = (uint32_t)h, id;
    while ((id = table_next(&g->interner->attrs, h, &cursor))) {
        const Attr *a = &g->attrs[id];
        uint32_t i = 0;
        while (a->n == n && i < n && fields_equal(&a->fields[i], &fields[i])) i++;
        if (a->n == n && i == n) return id;
    }
    return 0;
}

AttrId graph_attr(Graph *g, const AttrField *given, uint32_t n) {
    AttrField fields[N_ATTRS];
    assert(n < N_ATTRS);
    if (n == 0) return 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && fields[at - 1].key > given[i].key; at--) fields[at] = fields[at - 1];
        assert(at == 0 || fields[at - 1].key < given[i].key);
        fields[at] = given[i];
    }
    uint64_t h = attr_hash(fields, n);
    uint32_t id = attr_lookup(g, h, fields, n);
    if (id) return id;
    AttrField *own = arena_alloc(g->arena, n * sizeof *own);
    for (uint32_t i = 0; i < n; i++) own[i] = field_copy(g, fields[i]);
    LIST_RESERVE(g->arena, g->attrs, g->n_attrs, g->cap_attrs);
    g->attrs[g->n_attrs] = (Attr){n, own};
    table_add(g->arena, &g->interner->attrs, h, g->n_attrs);
    return g->n_attrs++;
}

/* ---------------------------------------------------------------- locations */

LocId graph_loc(Graph *g, Loc loc) {
    loc.name = graph_str(g, loc.name ? loc.name : "");
    loc.op = graph_str(g, loc.op ? loc.op : "");
    loc.scope = graph_str(g, loc.scope ? loc.scope : "");
    uint64_t h = hash_word(hash_word(4, loc.kind), loc.parent);
    h = hash_word(hash_word(h, (uintptr_t)loc.name), (uintptr_t)loc.op);
    h = hash_word(h, (uintptr_t)loc.scope);
    uint32_t cursor = (uint32_t)h, id;
    while ((id = table_next(&g->interner->locs, h, &cursor))) {
        const Loc *l = &g->locs[id];
        if (l->kind == loc.kind && l->parent == loc.parent && l->name == loc.name &&
            l->op == loc.op && l->scope == loc.scope)
            return id;
    }
    LIST_RESERVE(g->arena, g->locs, g->n_locs, g->cap_locs);
    g->locs[g->n_locs] = loc;
    table_add(g->arena, &g->interner->locs, h, g->n_locs);
    return g->n_locs++;
}

LocId graph_loc_derived(Graph *g, LocKind kind, LocId parent) {
    return graph_loc(g, (Loc){kind, "", "", "", parent});
}

/* ---------------------------------------------------------------- the whole */

void intern_init(Graph *g) {
    g->interner = arena_alloc(g->arena, sizeof *g->interner);
    LIST_RESERVE(g->arena, g->types, 0, g->cap_types);
    LIST_RESERVE(g->arena, g->attrs, 0, g->cap_attrs);
    LIST_RESERVE(g->arena, g->locs, 0, g->cap_locs);
    g->n_types = g->n_attrs = g->n_locs = 1;
    g->locs[0] = (Loc){LOC_NODE, "", "", "", 0};
}

void intern_copy(Graph *to, const Graph *from) {
    for (TypeId i = 1; i < from->n_types; i++) graph_type(to, from->types[i]);
    for (AttrId i = 1; i < from->n_attrs; i++)
        graph_attr(to, from->attrs[i].fields, from->attrs[i].n);
    for (LocId i = 1; i < from->n_locs; i++) graph_loc(to, from->locs[i]);
    assert(to->n_types == from->n_types && to->n_attrs == from->n_attrs &&
           to->n_locs == from->n_locs);
}
