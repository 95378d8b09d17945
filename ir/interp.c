/* interp.c - the reference interpreter: what a graph means, in double and int64, by one loop over
 * its nodes.
 *
 * Float values are not rounded to their storage type between ops; only casts round (to f16, bf16
 * and integers). Macros are expanded first. Values that nothing needs any more give their memory to
 * later ones, so a step of a small model interprets in little more than the compiled step's memory
 * times two. interp_fold evaluates one constant value from its leaves up, with a memo of its own
 * size only, for the importer asks for many small ones. */
#include "interp.h"
#include <assert.h>
#include <stdarg.h>
#include <string.h>

static bool (*const eval_functions[N_OPS])(Eval *) = {
#define MAP(name, ...) [OP_##name] = eval_map,
#define OP(name, ...) [OP_##name] = eval_##name,
#include "op.def"
};

bool eval_fail(const Eval *e, const char *fmt, ...) {
    va_list args;
    if (!e->errors) return false;
    const Loc *loc = &e->g->locs[graph_node(e->g, e->v)->loc];
    fprintf(e->errors, "interpreter: %%%u = %s", e->v, op_info[graph_op(e->g, e->v)].name);
    if (loc->name && *loc->name) fprintf(e->errors, " (%s)", loc->name);
    fprintf(e->errors, ": ");
    va_start(args, fmt);
    vfprintf(e->errors, fmt, args);
    va_end(args);
    fprintf(e->errors, "\n");
    return false;
}

/* ---------------------------------------------------------------- memory of values */

/* Buffers of a power of two bytes, recycled through one free list per size. */
typedef struct Pool {
    Arena *arena;
    void *free[64];
} Pool;

static uint32_t size_class(size_t bytes) {
    uint32_t c = 5;
    while (((size_t)1 << c) < bytes) c++;
    return c;
}

static void *pool_get(Pool *p, size_t bytes) {
    uint32_t c = size_class(bytes);
    void *buffer = p->free[c];
    if (!buffer) return arena_alloc(p->arena, (size_t)1 << c);
    memcpy(&p->free[c], buffer, sizeof(void *));
    return buffer;
}

static void pool_put(Pool *p, void *buffer, size_t bytes) {
    uint32_t c = size_class(bytes);
    memcpy(buffer, &p->free[c], sizeof(void *));
    p->free[c] = buffer;
}

static size_t tensor_size(const Type *t) { return (size_t)type_elems(t) * sizeof(double); }

/* ---------------------------------------------------------------- entries */

typedef struct Run {
    const Graph *g;
    const InterpEnv *env;
    Arena *arena;
    Pool pool;
    FILE *errors;
    Tensor *values;
    uint32_t *n_uses;
    struct ScanMemo *scans;
} Run;

static bool eval_node(Run *r, Value v) {
    const Node *n = graph_node(r->g, v);
    const Tensor **in = arena_alloc(r->arena, (n->n_operands + 1u) * sizeof *in);
    Type type = r->g->types[n->type];
    Eval e = {.g = r->g,
              .v = v,
              .in = in,
              .n_in = n->n_operands,
              .env = r->env,
              .arena = r->arena,
              .errors = r->errors,
              .scans = &r->scans};
    for (uint32_t i = 0; i < n->n_operands; i++) in[i] = &r->values[graph_operand(r->g, v, i)];
    e.out.type = type;
    e.out.u.p = pool_get(&r->pool, tensor_size(&type));
    e.is_float = dtype_is_float(type.dtype);
    assert(eval_functions[n->op] && "macros are expanded before");
    bool ok = eval_functions[n->op](&e);
    r->values[v] = e.out;
    return ok;
}

static void release_operands(Run *r, Value v) {
    for (uint32_t i = 0; i < graph_node(r->g, v)->n_operands; i++) {
        Value a = graph_operand(r->g, v, i);
        if (--r->n_uses[a] == 0)
            pool_put(&r->pool, r->values[a].u.p, tensor_size(&r->values[a].type));
    }
}

static Tensor tensor_copy(Arena *arena, const Tensor *t) {
    Tensor copy = {.type = t->type};
    copy.u.p = arena_alloc(arena, tensor_size(&t->type));
    memcpy(copy.u.p, t->u.p, tensor_size(&t->type));
    return copy;
}

static bool run_entry(Run *r, EntryKind kind, Arena *to, Tensor *results) {
    const Entry *entry = &r->g->entries[kind];
    bool *needed = graph_reachable(r->g, r->arena, kind);
    r->values = arena_alloc(r->arena, r->g->n_nodes * sizeof *r->values);
    r->n_uses = arena_alloc(r->arena, r->g->n_nodes * sizeof *r->n_uses);
    for (Value v = 1; v < r->g->n_nodes; v++)
        for (uint32_t i = 0; needed[v] && i < graph_node(r->g, v)->n_operands; i++)
            r->n_uses[graph_operand(r->g, v, i)]++;
    for (uint32_t i = 0; i < entry->n; i++) r->n_uses[entry->roots[i].value]++;
    for (Value v = 1; v < r->g->n_nodes; v++) {
        if (!needed[v]) continue;
        if (!eval_node(r, v)) return false;
        release_operands(r, v);
    }
    for (uint32_t i = 0; i < entry->n; i++)
        results[i] = tensor_copy(to, &r->values[entry->roots[i].value]);
    return true;
}

static Value expand_macro(void *pass, const Graph *from, Value v, Graph *to, const Value *map) {
    const Node *n = graph_node(from, v);
    Value operands[MAX_MACRO_OPERANDS] = {0};
    (void)pass;
    if (op_info[n->op].lower != LOWER_MACRO) return 0;
    for (uint32_t i = 0; i < n->n_operands; i++) operands[i] = map[graph_operand(from, v, i)];
    AttrId attr = graph_attr(to, from->attrs[n->attr].fields, from->attrs[n->attr].n);
    return macro_expand(to, graph_emit(to, (OpCode)n->op, operands, n->n_operands, attr,
                                       graph_type(to, from->types[n->type])));
}

static bool has_macros(const Graph *g, Arena *arena, EntryKind kind) {
    bool *needed = graph_reachable(g, arena, kind);
    for (Value v = 1; v < g->n_nodes; v++)
        if (needed[v] && op_info[graph_op(g, v)].lower == LOWER_MACRO) return true;
    return false;
}

/* Also those inside of expansions. */
const Graph *interp_plain(const Graph *g, Arena *arena, EntryKind kind) {
    const Graph *now = g;
    while (has_macros(now, arena, kind)) {
        Graph *next = graph_copy_empty(now);
        graph_rewrite(now, next, expand_macro, NULL,
                      arena_alloc(arena, now->n_nodes * sizeof(Value)));
        if (now != g) graph_free((Graph *)(uintptr_t)now);
        now = next;
    }
    return now;
}

bool interp_entry(const Graph *g, EntryKind kind, const InterpEnv *env, Arena *arena,
                  Tensor *results, FILE *errors) {
    Arena *scratch = arena_new();
    const Graph *plain = interp_plain(g, scratch, kind);
    Run r = {
        .g = plain, .env = env, .arena = scratch, .pool = {.arena = scratch}, .errors = errors};
    bool ok = run_entry(&r, kind, arena, results);
    if (plain != g) graph_free((Graph *)(uintptr_t)plain);
    arena_free(scratch);
    return ok;
}

/* ---------------------------------------------------------------- folding */

typedef struct Fold {
    const Graph *g;
    Arena *arena;
    int64_t max_elems;
    Value *keys;
    Tensor *values;
    uint32_t n, cap;
    struct ScanMemo *scans;
} Fold;

static uint32_t fold_slot(const Fold *f, Value v) {
    uint32_t i = v * 2654435761u & (f->cap - 1);
    while (f->keys[i] && f->keys[i] != v) i = (i + 1) & (f->cap - 1);
    return i;
}

static void fold_grow(Fold *f) {
    Fold old = *f;
    f->cap = old.cap ? 2 * old.cap : 16;
    f->keys = arena_alloc(f->arena, f->cap * sizeof *f->keys);
    f->values = arena_alloc(f->arena, f->cap * sizeof *f->values);
    for (uint32_t i = 0; i < old.cap; i++) {
        if (!old.keys[i]) continue;
        uint32_t to = fold_slot(f, old.keys[i]);
        f->keys[to] = old.keys[i];
        f->values[to] = old.values[i];
    }
}

static bool fold_value(Fold *f, Value v, Tensor *out) {
    const Node *n = graph_node(f->g, v);
    Type type = f->g->types[n->type];
    if (f->cap && f->keys[fold_slot(f, v)]) {
        *out = f->values[fold_slot(f, v)];
        return true;
    }
    if (!eval_functions[n->op] || type_elems(&type) > f->max_elems) return false;
    Tensor *operands = arena_alloc(f->arena, (n->n_operands + 1u) * sizeof *operands);
    const Tensor **in = arena_alloc(f->arena, (n->n_operands + 1u) * sizeof *in);
    for (uint32_t i = 0; i < n->n_operands; i++) {
        if (!fold_value(f, graph_operand(f->g, v, i), &operands[i])) return false;
        in[i] = &operands[i];
    }
    Eval e = {.g = f->g,
              .v = v,
              .in = in,
              .n_in = n->n_operands,
              .arena = f->arena,
              .is_float = dtype_is_float(type.dtype),
              .scans = &f->scans};
    e.out.type = type;
    e.out.u.p = arena_alloc(f->arena, tensor_size(&type));
    if (!eval_functions[n->op](&e)) return false;
    if (2 * f->n >= f->cap) fold_grow(f);
    uint32_t at = fold_slot(f, v);
    f->keys[at] = v;
    f->values[at] = e.out;
    f->n++;
    *out = e.out;
    return true;
}

bool interp_fold(const Graph *g, Value v, Arena *arena, Tensor *result, int64_t max_elems) {
    Fold f = {.g = g, .arena = arena, .max_elems = max_elems};
    return v && fold_value(&f, v, result);
}
