/* graph.c - nodes, states, inputs, entries; copying a graph through a map.
 *
 * A node is found or made by (op, operands, attribute, type, epoch). Operands precede users:
 * graph_emit asserts it, so the list is always in topological order and every walk here is one
 * loop. Fields of an attribute that the caller left out and that have a neutral value (strides 1,
 * padding 0, ...) are filled in, so that a node always carries all fields of its row.
 */
#include "intern.h"
#include "op_functions.h"
#include "scan.h"
#include <assert.h>
#include <math.h>
#include <string.h>

const char *const entry_name[N_ENTRIES] = {"init", "micro", "apply", "eval"};

Graph *graph_new(const char *name) {
    Arena *a = arena_new();
    Graph *g = arena_alloc(a, sizeof *g);
    g->arena = g->diags.arena = a;
    intern_init(g);
    g->name = graph_str(g, name);
    LIST_RESERVE(a, g->nodes, 0, g->cap_nodes);
    LIST_RESERVE(a, g->operands, 0, g->cap_operands);
    g->n_nodes = 1;
    return g;
}

void graph_free(Graph *g) {
    if (!g) return;
    for (uint32_t i = 0; i < g->n_bodies; i++)
        if (--g->bodies[i].g->n_refs == 0) graph_free(g->bodies[i].g);
    arena_free(g->arena);
}

static const char *str_or_null(Graph *g, const char *s) { return s ? graph_str(g, s) : NULL; }

static void diags_copy(Graph *to, const Graph *from) {
    DiagList *d = &to->diags;
    for (uint32_t i = 0; i < from->diags.n; i++) {
        const Diag *old = &from->diags.items[i];
        LIST_RESERVE(to->arena, d->items, d->n, d->cap);
        d->items[d->n++] =
            (Diag){.code = old->code,
                   .loc = old->loc,
                   .text = arena_strdup(to->arena, old->text),
                   .hint = arena_strdup(to->arena, old->hint),
                   .about = old->about ? arena_strdup(to->arena, old->about) : NULL,
                   .blocks = old->blocks ? arena_strdup(to->arena, old->blocks) : NULL};
    }
}

void body_hold(Graph *g, Body b) {
    LIST_RESERVE(g->arena, g->bodies, g->n_bodies, g->cap_bodies);
    b.name = graph_str(g, b.name);
    b.g->n_refs++;
    g->bodies[g->n_bodies++] = b;
}

static void bodies_share(Graph *to, const Graph *from) {
    for (uint32_t i = 0; i < from->n_bodies; i++) body_hold(to, from->bodies[i]);
}

Graph *graph_copy_empty(const Graph *from) {
    Graph *to = graph_new(from->name);
    intern_copy(to, from);
    for (uint32_t i = 0; i < from->n_states; i++) {
        State s = from->states[i];
        if (s.source.data)
            s.source.data =
                arena_grow(to->arena, (void *)s.source.data, s.source.bytes, s.source.bytes);
        graph_add_state(to, s);
    }
    for (uint32_t i = 0; i < from->n_inputs; i++) graph_add_input(to, from->inputs[i]);
    bodies_share(to, from);
    diags_copy(to, from);
    to->loc = from->loc;
    to->epoch = from->epoch;
    return to;
}

/* ---------------------------------------------------------------- attributes of nodes */

const AttrField *attr_find(const Graph *g, Value v, AttrKey key) {
    const Attr *a = &g->attrs[g->nodes[v].attr];
    for (uint32_t i = 0; i < a->n; i++)
        if (a->fields[i].key == key) return &a->fields[i];
    return NULL;
}

int64_t attr_i(const Graph *g, Value v, AttrKey key, int64_t otherwise) {
    const AttrField *f = attr_find(g, v, key);
    return f ? f->u.i : otherwise;
}

double attr_f(const Graph *g, Value v, AttrKey key, double otherwise) {
    const AttrField *f = attr_find(g, v, key);
    return f ? f->u.f : otherwise;
}

const char *attr_s(const Graph *g, Value v, AttrKey key) {
    const AttrField *f = attr_find(g, v, key);
    return f ? f->u.str : NULL;
}

const int64_t *attr_list(const Graph *g, Value v, AttrKey key, uint32_t *n) {
    const AttrField *f = attr_find(g, v, key);
    if (n) *n = f ? f->n : 0;
    return f ? f->u.ints : NULL;
}

static const AttrField *field_in(const Attr *a, AttrKey key) {
    for (uint32_t i = 0; i < a->n; i++)
        if (a->fields[i].key == key) return &a->fields[i];
    return NULL;
}

/* The neutral value of a field, or key A_NONE where it has none. Lists have one element per axis
 * that the op works on. */
static AttrField field_neutral(AttrKey key, uint32_t n_list) {
    static const int64_t zeros[MAX_RANK], ones[MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    switch (key) {
    case A_TA:
    case A_TB:
    case A_BATCH:
    case A_MODE:
    case A_REVERSE:
    case A_MASKED:
    case A_GUARD:
    case A_INTERLEAVED:
        return attr_int(key, 0);
    case A_FIRST:
        return attr_int(key, INT32_MIN);
    case A_LAST:
        return attr_int(key, INT32_MAX);
    case A_SCALE:
        return attr_float(key, 1);
    case A_SOFTCAP:
        return attr_float(key, 0);
    case A_FILL:
        return attr_float(key, -INFINITY);
    case A_GROUPS:
        return attr_int(key, 1);
    case A_VALUE:
        return attr_float(key, 0);
    case A_LOW:
    case A_HIGH:
    case A_INTERIOR:
        return attr_ints(key, zeros, n_list);
    case A_STEP:
    case A_STRIDES:
    case A_DILATIONS:
        return attr_ints(key, ones, n_list);
    case A_NONE:
    case A_AXIS:
    case A_AXES:
    case A_PERM:
    case A_START:
    case A_KERNEL:
    case A_NAME:
    case A_STREAM:
    case A_EPS:
    case A_IGNORE:
    case A_BODY:
    case A_TRIPS:
    case A_RESULT:
    case A_DATA:
    case N_ATTRS:
        break;
    }
    return (AttrField){.key = A_NONE};
}

/* How many axes the lists of this op speak of. */
static uint32_t n_listed_axes(const Graph *g, OpCode op, const Value *operands, const Attr *a) {
    const AttrField *kernel = field_in(a, A_KERNEL);
    if (kernel) return kernel->n < MAX_RANK ? kernel->n : MAX_RANK;
    uint32_t rank = graph_type_at(g, operands[0])->rank;
    bool is_conv = op == OP_conv || op == OP_conv_dx || op == OP_conv_dw;
    return is_conv && rank >= 2 ? rank - 2 : rank;
}

AttrId attr_complete(Graph *g, OpCode op, const Value *operands, AttrId attr) {
    const OpInfo *info = &op_info[op];
    const Attr *a = &g->attrs[attr];
    if (a->n == info->n_attrs) return attr;
    AttrField fields[N_ATTRS];
    uint32_t n = 0, n_known = 0;
    for (uint32_t i = 0; i < info->n_attrs; i++) {
        const AttrField *f = field_in(a, info->attrs[i]);
        n_known += f != NULL;
        fields[n] =
            f ? *f
              : field_neutral(info->attrs[i], info->arity ? n_listed_axes(g, op, operands, a) : 0);
        if (fields[n].key) n++;
    }
    return n_known == a->n ? graph_attr(g, fields, n)
                           : attr; /* a field of another row: attr_misfit will say so */
}

AttrKey attr_misfit(const Graph *g, OpCode op, AttrId attr) {
    const OpInfo *info = &op_info[op];
    const Attr *a = &g->attrs[attr];
    for (uint32_t i = 0; i < info->n_attrs; i++)
        if (!field_in(a, info->attrs[i])) return info->attrs[i];
    for (uint32_t i = 0; i < a->n; i++) {
        uint32_t j = 0;
        while (j < info->n_attrs && info->attrs[j] != a->fields[i].key) j++;
        if (j == info->n_attrs) return a->fields[i].key;
    }
    return A_NONE;
}

/* ---------------------------------------------------------------- nodes */

static uint64_t node_hash(const Node *n, const Value *operands) {
    uint64_t h = hash_word(5, (uint64_t)n->op << 32 | n->n_operands);
    h = hash_word(h, (uint64_t)n->type << 32 | n->attr);
    h = hash_word(h, n->epoch);
    for (uint32_t i = 0; i < n->n_operands; i++) h = hash_word(h, operands[i]);
    return h;
}

static bool nodes_equal(const Graph *g, const Node *a, const Node *b, const Value *b_operands) {
    return a->op == b->op && a->n_operands == b->n_operands && a->type == b->type &&
           a->attr == b->attr && a->epoch == b->epoch &&
           (!a->n_operands ||
            memcmp(&g->operands[a->operands], b_operands, a->n_operands * sizeof(Value)) == 0);
}

static uint32_t operands_add(Graph *g, const Value *operands, uint32_t n) {
    uint32_t first = g->n_operands;
    for (uint32_t i = 0; i < n; i++) {
        LIST_RESERVE(g->arena, g->operands, g->n_operands, g->cap_operands);
        g->operands[g->n_operands++] = operands[i];
    }
    return first;
}

static Value lookup(const Graph *g, uint64_t h, const Node *n, const Value *operands) {
    uint32_t cursor = (uint32_t)h, id;
    while ((id = table_next(&g->interner->nodes, h, &cursor)))
        if (nodes_equal(g, &g->nodes[id], n, operands)) return id;
    return 0;
}

Value node_find(const Graph *g, const Node *n, const Value *operands) {
    return lookup(g, node_hash(n, operands), n, operands);
}

static Value node_intern(Graph *g, Node n, const Value *operands) {
    uint64_t h = node_hash(&n, operands);
    Value found = lookup(g, h, &n, operands);
    if (found) return found;
    n.operands = operands_add(g, operands, n.n_operands);
    LIST_RESERVE(g->arena, g->nodes, g->n_nodes, g->cap_nodes);
    g->nodes[g->n_nodes] = n;
    table_add(g->arena, &g->interner->nodes, h, g->n_nodes);
    return g->n_nodes++;
}

Value graph_emit(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                 TypeId given) {
    assert(op > OP_NONE && op < N_OPS);
    assert(op_info[op].arity < 0 ? n > 0 && n <= UINT16_MAX : n == (uint32_t)op_info[op].arity);
    for (uint32_t i = 0; i < n; i++) {
        assert(operands[i] < g->n_nodes);
        if (!operands[i]) return 0;
    }
    attr = attr_complete(g, op, operands, attr);
    assert(!attr_misfit(g, op, attr));
    TypeId type = op_info[op].shape(g, op, operands, n, attr, given);
    if (!type) return 0;
    Node node = {.op = (uint16_t)op,
                 .n_operands = (uint16_t)n,
                 .type = type,
                 .attr = attr,
                 .loc = g->loc,
                 .epoch = g->epoch};
    return node_intern(g, node, operands);
}

/* ---------------------------------------------------------------- states, inputs, roots */

static uint32_t name_lookup(const Graph *g, bool of_state, const char *name, uint64_t *hash) {
    const Table *t = of_state ? &g->interner->states : &g->interner->inputs;
    *hash = hash_bytes(6, name, strlen(name));
    uint32_t cursor = (uint32_t)*hash, id;
    while ((id = table_next(t, *hash, &cursor)))
        if (strcmp(of_state ? g->states[id - 1].name : g->inputs[id - 1].name, name) == 0)
            return id;
    return 0;
}

State *graph_state(const Graph *g, const char *name) {
    uint64_t h;
    uint32_t id = name_lookup(g, true, name, &h);
    return id ? &g->states[id - 1] : NULL;
}

/* Names and lists of a state come to lie in the graph's own arena. */
static void own_lists(Graph *g, State *s) {
    const char **aliases = arena_alloc(g->arena, (s->n_aliases + 1) * sizeof *aliases);
    Holder *holders = arena_alloc(g->arena, (s->n_holders + 1) * sizeof *holders);
    for (uint32_t i = 0; i < s->n_aliases; i++) aliases[i] = graph_str(g, s->aliases[i]);
    for (uint32_t i = 0; i < s->n_holders; i++) {
        Holder *h = &holders[i];
        *h = s->holders[i];
        h->initializer = graph_str(g, h->initializer);
        h->from = str_or_null(g, h->from);
        h->blocks = str_or_null(g, h->blocks);
        size_t bytes = 2 * h->n_readers * sizeof *h->readers;
        if (bytes) h->readers = arena_grow(g->arena, (void *)(uintptr_t)h->readers, bytes, bytes);
    }
    s->aliases = aliases;
    s->holders = holders;
}

State *graph_add_state(Graph *g, State s) {
    uint64_t h;
    uint32_t id = name_lookup(g, true, s.name, &h);
    assert(!id);
    s.name = graph_str(g, s.name);
    s.of = str_or_null(g, s.of);
    s.adapts = str_or_null(g, s.adapts);
    s.source.file = str_or_null(g, s.source.file);
    s.source.blocks = str_or_null(g, s.source.blocks);
    if (s.n_aliases || s.n_holders) own_lists(g, &s);
    LIST_RESERVE(g->arena, g->states, g->n_states, g->cap_states);
    g->states[g->n_states++] = s;
    table_add(g->arena, &g->interner->states, h, g->n_states);
    return &g->states[g->n_states - 1];
}

Input *graph_input(const Graph *g, const char *name) {
    uint64_t h;
    uint32_t id = name_lookup(g, false, name, &h);
    return id ? &g->inputs[id - 1] : NULL;
}

Input *graph_add_input(Graph *g, Input in) {
    uint64_t h;
    uint32_t id = name_lookup(g, false, in.name, &h);
    assert(!id);
    in.name = graph_str(g, in.name);
    LIST_RESERVE(g->arena, g->inputs, g->n_inputs, g->cap_inputs);
    g->inputs[g->n_inputs++] = in;
    table_add(g->arena, &g->interner->inputs, h, g->n_inputs);
    return &g->inputs[g->n_inputs - 1];
}

Root *graph_root(const Graph *g, EntryKind e, bool is_update, const char *name) {
    const char *key = intern_find(g, name); /* names of roots are interned */
    for (uint32_t i = 0; key && i < g->entries[e].n; i++) {
        Root *r = &g->entries[e].roots[i];
        if (r->is_update == is_update && r->name == key) return r;
    }
    return NULL;
}

void graph_add_root(Graph *g, EntryKind e, bool is_update, const char *name, Value v) {
    Entry *entry = &g->entries[e];
    assert(v < g->n_nodes);
    LIST_RESERVE(g->arena, entry->roots, entry->n, entry->cap);
    entry->roots[entry->n++] = (Root){is_update, graph_str(g, name), v};
}

/* ---------------------------------------------------------------- bodies of loops */

static bool attrs_equal(const Graph *a, const Graph *b, AttrId x, AttrId y) {
    const Attr *p = &a->attrs[x], *q = &b->attrs[y];
    if (p->n != q->n) return false;
    for (uint32_t i = 0; i < p->n; i++) {
        const AttrField *f = &p->fields[i], *h = &q->fields[i];
        if (f->key != h->key || f->n != h->n) return false;
        switch (attr_info[f->key].kind) {
        case ATTR_INT:
        case ATTR_FLOAT:
            if (f->u.i != h->u.i) return false;
            break;
        case ATTR_STR:
            if (strcmp(f->u.str, h->u.str) != 0) return false;
            break;
        case ATTR_INTS:
            if (f->n && memcmp(f->u.ints, h->u.ints, f->n * sizeof(int64_t)) != 0) return false;
            break;
        case ATTR_BYTES:
            if (f->n && memcmp(f->u.bytes, h->u.bytes, f->n) != 0) return false;
            break;
        }
    }
    return true;
}

static bool types_equal(const Graph *a, const Graph *b, TypeId x, TypeId y) {
    return memcmp(&a->types[x], &b->types[y], sizeof(Type)) == 0;
}

static bool node_equals(const Graph *a, const Graph *b, Value v) {
    const Node *m = &a->nodes[v], *n = &b->nodes[v];
    return m->op == n->op && m->n_operands == n->n_operands && m->epoch == n->epoch &&
           types_equal(a, b, m->type, n->type) && attrs_equal(a, b, m->attr, n->attr) &&
           (!m->n_operands || memcmp(&a->operands[m->operands], &b->operands[n->operands],
                                     m->n_operands * sizeof(Value)) == 0);
}

static bool root_equals(const Graph *a, const Graph *b, uint32_t i) {
    const Root *r = &a->entries[ENTRY_MICRO].roots[i], *s = &b->entries[ENTRY_MICRO].roots[i];
    return r->is_update == s->is_update && r->value == s->value && strcmp(r->name, s->name) == 0;
}

/* Node by node, in the same order; bodies within are the same graphs or equal ones. */
static bool body_equals(const Body *x, const Body *y) {
    const Graph *a = x->g, *b = y->g;
    bool ok = x->n_carries == y->n_carries && x->n_scanned == y->n_scanned &&
              x->n_invariants == y->n_invariants && x->n_ys == y->n_ys &&
              a->n_nodes == b->n_nodes && a->n_bodies == b->n_bodies &&
              a->n_states == b->n_states && a->n_inputs == b->n_inputs &&
              a->entries[ENTRY_MICRO].n == b->entries[ENTRY_MICRO].n;
    for (uint32_t i = 0; ok && i < a->n_states; i++)
        ok = types_equal(a, b, a->states[i].type, b->states[i].type);
    for (uint32_t i = 0; ok && i < a->n_inputs; i++)
        ok = types_equal(a, b, a->inputs[i].type, b->inputs[i].type);
    for (uint32_t i = 0; ok && i < a->n_bodies; i++)
        ok = a->bodies[i].g == b->bodies[i].g || body_equals(&a->bodies[i], &b->bodies[i]);
    for (Value v = 1; ok && v < a->n_nodes; v++) ok = node_equals(a, b, v);
    for (uint32_t i = 0; ok && i < a->entries[ENTRY_MICRO].n; i++) ok = root_equals(a, b, i);
    return ok;
}

uint32_t graph_add_body(Graph *g, Body b) {
    for (uint32_t i = 0; i < g->n_bodies; i++) {
        if (g->bodies[i].g != b.g && !body_equals(&g->bodies[i], &b)) continue;
        if (b.g->n_refs == 0) graph_free(b.g);
        return i + 1;
    }
    body_hold(g, b);
    return g->n_bodies;
}

void graph_set_body(Graph *g, uint32_t body, Graph *by) {
    Graph *old = g->bodies[body - 1].g;
    by->n_refs++;
    g->bodies[body - 1].g = by;
    if (--old->n_refs == 0) graph_free(old);
}

const Body *scan_body(const Graph *g, Value scan) {
    int64_t i = attr_i(g, scan, A_BODY, 0);
    return i > 0 && i <= g->n_bodies ? graph_body(g, (uint32_t)i) : NULL;
}

/* ---------------------------------------------------------------- walks */

static void mark_roots(const Graph *g, EntryKind e, bool *marks) {
    for (uint32_t i = 0; i < g->entries[e].n; i++) marks[g->entries[e].roots[i].value] = true;
}

/* Spreads marks to operands; does not go below a node that `stop` maps already. */
static void mark_operands(const Graph *g, bool *marks, const Value *stop) {
    for (Value v = g->n_nodes; v-- > 1;) {
        if (!marks[v] || (stop && stop[v])) continue;
        for (uint32_t i = 0; i < g->nodes[v].n_operands; i++) marks[graph_operand(g, v, i)] = true;
    }
    marks[0] = false;
}

bool *graph_reachable(const Graph *g, Arena *a, EntryKind e) {
    bool *marks = arena_alloc(a, g->n_nodes * sizeof *marks);
    mark_roots(g, e, marks);
    mark_operands(g, marks, NULL);
    return marks;
}

static Value node_copy(const Graph *from, Value v, Graph *to, const Value *map, const TypeId *types,
                       const AttrId *attrs) {
    Node n = from->nodes[v];
    Value few[8], *operands = n.n_operands > 8
                                  ? arena_alloc(to->arena, n.n_operands * sizeof *operands)
                                  : few;
    for (uint32_t i = 0; i < n.n_operands; i++) {
        operands[i] = map[graph_operand(from, v, i)];
        assert(operands[i]);
    }
    n.type = types[n.type];
    n.attr = attrs[n.attr];
    return node_intern(to, n, operands);
}

void graph_rewrite(const Graph *from, Graph *to, VisitFn *visit, void *pass, Value *map) {
    Arena *scratch = arena_new();
    bool *marks = arena_alloc(scratch, from->n_nodes * sizeof *marks);
    TypeId *types = arena_alloc(scratch, from->n_types * sizeof *types);
    AttrId *attrs = arena_alloc(scratch, from->n_attrs * sizeof *attrs);
    for (TypeId i = 1; i < from->n_types; i++) types[i] = graph_type(to, from->types[i]);
    for (AttrId i = 1; i < from->n_attrs; i++)
        attrs[i] = graph_attr(to, from->attrs[i].fields, from->attrs[i].n);
    for (int e = 0; e < N_ENTRIES; e++) mark_roots(from, (EntryKind)e, marks);
    mark_operands(from, marks, map);
    LocId loc = to->loc;
    uint32_t epoch = to->epoch;
    for (Value v = 1; v < from->n_nodes; v++) {
        if (!marks[v] || map[v]) continue;
        to->loc = from->nodes[v].loc;
        to->epoch = from->nodes[v].epoch;
        if (visit) map[v] = visit(pass, from, v, to, map);
        if (!map[v]) map[v] = node_copy(from, v, to, map, types, attrs);
    }
    to->loc = loc;
    to->epoch = epoch;
    for (int e = 0; e < N_ENTRIES; e++)
        for (uint32_t i = 0; i < from->entries[e].n; i++) {
            const Root *r = &from->entries[e].roots[i];
            graph_add_root(to, (EntryKind)e, r->is_update, r->name, map[r->value]);
        }
    arena_free(scratch);
}
