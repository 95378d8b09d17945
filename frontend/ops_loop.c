/* ops_loop.c - Loop and Scan. A body whose carried values keep their types becomes a loop of the
 * IR; one whose steps differ (shapes that grow, sizes made of the step's number, a condition that
 * turns false, sequences) is laid out step by step, up to a limit.
 *
 * The body is imported once over holes (scan.h): what it reads from outside is simply there. Where
 * that fails the attempt leaves nothing behind and the steps are imported one after the other, with
 * all that is known of each. Random numbers within a body are made for all steps at once, outside.
 */
#include "context.h"
#include "scan.h"
#include <string.h>

enum { MAX_LAID_OUT = 1024, MAX_COUNTED = 1 << 17, MAX_LOOP_VALUES = 256 };

typedef struct Loop {
    ImportNode *n;
    const Onnx__GraphProto *body;
    int64_t trips; /* INT64_MAX: no number is given */
    bool starts;   /* the condition before the first step */
    uint32_t n_carried, n_stacked;
    const Value *first;
    Value finals[MAX_LOOP_VALUES], stacks[MAX_LOOP_VALUES];
} Loop;

/* ---------------------------------------------------------------- attempts */

typedef struct Attempt { /* what an import changes that nodes do not hold */
    uint32_t n_diags, n_roots[N_ENTRIES];
} Attempt;

static Attempt attempt_begin(const Graph *g) {
    Attempt a = {.n_diags = g->diags.n};
    for (int e = 0; e < N_ENTRIES; e++) a.n_roots[e] = g->entries[e].n;
    return a;
}

static bool attempt_failed(const Graph *g, const Attempt *a) {
    for (uint32_t i = a->n_diags; i < g->diags.n; i++)
        if (diag_info[g->diags.items[i].code].severity == SEV_ERROR) return true;
    return false;
}

static void roots_undo(Graph *g, const Attempt *a) {
    for (int e = 0; e < N_ENTRIES; e++) g->entries[e].n = a->n_roots[e];
}

static void attempt_undo(Graph *g, const Attempt *a) {
    g->diags.n = a->n_diags;
    roots_undo(g, a);
}

static bool adds_roots(const Graph *g, const Attempt *a) {
    bool any = false;
    for (int e = 0; e < N_ENTRIES; e++) any |= g->entries[e].n > a->n_roots[e];
    return any;
}

/* Statistics that several steps would move have no one value at the end of a micro-batch. */
static bool moves_statistics(ImportNode *n, const Attempt *a) {
    if (!adds_roots(n->g, a)) return false;
    roots_undo(n->g, a);
    diag_add(n->g, E_OP_UNSUPPORTED, n->g->loc, n->proto->op_type,
             " with running statistics in its body");
    return true;
}

/* ---------------------------------------------------------------- random numbers of a body */

/* The random nodes that the body's own ops have made: known by the streams under its prefix. */
static bool is_own_stream(const Import *im, int64_t stream, const char *prefix) {
    for (uint32_t i = 0; i < im->streams.cap; i++)
        if (im->streams.names[i] && im->streams.values[i] == stream)
            return !strncmp(im->streams.names[i], prefix, strlen(prefix));
    return false;
}

typedef struct Randoms {
    Value xs[MAX_LOOP_VALUES], x[MAX_LOOP_VALUES];
    uint32_t n;
    Value *map; /* what a node becomes where random numbers are below it */
} Randoms;

static Value hole_of_random(Graph *g, Randoms *r, Value v, int64_t trips) {
    Type t = *graph_type_at(g, v);
    if (r->n == MAX_LOOP_VALUES || t.rank == MAX_RANK) return 0;
    memmove(t.dims + 1, t.dims, t.rank * sizeof *t.dims);
    t.dims[0] = trips;
    t.rank++;
    AttrId attr = graph_node(g, v)->attr;
    r->xs[r->n] = graph_emit(g, OP_random, NULL, 0, attr, graph_type(g, t));
    r->x[r->n] = scan_hole(g, graph_node(g, v)->type);
    return r->x[r->n++];
}

/* The body's nodes again, over slices of random numbers of all steps. */
static bool replace_randoms(Loop *l, const char *prefix, Randoms *r) {
    Graph *g = l->n->g;
    uint32_t n = g->n_nodes;
    bool any = false;
    r->map = arena_alloc(l->n->arena, n * sizeof *r->map);
    for (Value v = 1; v < n; v++) {
        const Node node = *graph_node(g, v);
        Value *operands = NULL;
        if (node.op == OP_random && is_own_stream(l->n->im, attr_i(g, v, A_STREAM, 0), prefix)) {
            if (!(r->map[v] = hole_of_random(g, r, v, l->trips))) return false;
            any = true;
            continue;
        }
        for (uint32_t i = 0; any && i < node.n_operands; i++)
            if (r->map[graph_operand(g, v, i)])
                operands = arena_alloc(l->n->arena, node.n_operands * sizeof *operands);
        for (uint32_t i = 0; operands && i < node.n_operands; i++) {
            Value o = graph_operand(g, v, i);
            operands[i] = r->map[o] ? r->map[o] : o;
        }
        if (operands)
            r->map[v] =
                graph_emit(g, (OpCode)node.op, operands, node.n_operands, node.attr, node.type);
    }
    return true;
}

static Value replaced(const Randoms *r, uint32_t n, Value v) {
    return v < n && r->map[v] ? r->map[v] : v;
}

/* ---------------------------------------------------------------- as a loop */

static bool define_inputs(Loop *l, Scope *inner, const Value *values, uint32_t n) {
    if (l->body->n_input > n) {
        diag_add(l->n->g, E_MODEL_INVALID, l->n->g->loc,
                 arena_printf(l->n->arena, "the body has %zu inputs, not %u", l->body->n_input, n));
        return false;
    }
    for (uint32_t i = 0; i < l->body->n_input; i++)
        names_set(l->n->arena, &inner->values, graph_str(l->n->g, l->body->input[i]->name),
                  values[i]);
    return true;
}

static bool keeps_types(const Loop *l, const Value *next) {
    const Graph *g = l->n->g;
    for (uint32_t i = 0; i < l->n_carried + l->n_stacked; i++) {
        if (!next[i] || next[i] & SEQUENCE_BIT) return false;
        if (i < l->n_carried && graph_node(g, next[i])->type != graph_node(g, l->first[i])->type)
            return false;
    }
    return true;
}

/* Carried and stacked values of one step over holes, in `next`, as a loop. */
static bool build_loop(Loop *l, const char *prefix, const Value *carry, Value t, Value *xs,
                       Value *x, uint32_t n_x, bool is_reverse, Value *next) {
    Graph *g = l->n->g;
    uint32_t n = g->n_nodes;
    Randoms r = {.n = n_x};
    if (n_x) memcpy(r.xs, xs, n_x * sizeof *xs), memcpy(r.x, x, n_x * sizeof *x);
    if (!replace_randoms(l, prefix, &r)) return false;
    for (uint32_t i = 0; i < l->n_carried + l->n_stacked; i++) next[i] = replaced(&r, n, next[i]);
    ScanSpec spec = {.name = l->body->name ? l->body->name : "",
                     .n_carries = l->n_carried,
                     .first = l->first,
                     .carry = carry,
                     .next = next,
                     .n_scanned = r.n,
                     .xs = r.xs,
                     .x = r.x,
                     .t = t,
                     .n_ys = l->n_stacked,
                     .ys = next + l->n_carried,
                     .trips = l->trips,
                     .is_reverse = is_reverse};
    return scan_build(g, &spec, l->finals, l->stacks);
}

static const char *prefix_of(Loop *l, const char *suffix) {
    return arena_printf(l->n->arena, "%s%s/", l->n->g->locs[l->n->g->loc].name, suffix);
}

static bool is_true(ImportNode *n, Value v) {
    Tensor t;
    return node_known(n, v, &t) && type_elems(&t.type) == 1 && t.u.i[0];
}

static Value bool_const(ImportNode *n, bool b) {
    return build_splat(n->g, graph_type_of(n->g, DT_BOOL, 0, NULL), b);
}

static Value number_of_step(ImportNode *n, int64_t i) {
    return build_const(n->g, graph_type_of(n->g, DT_I64, 0, NULL), &i);
}

/* ---- a condition that only counts ---- */

typedef struct Control { /* what the condition is made from */
    uint32_t n;
    Value first[MAX_LOOP_VALUES], carry[MAX_LOOP_VALUES], next[MAX_LOOP_VALUES];
} Control;

/* Marks what v is made from; false where that is neither known nor a hole. */
static bool mark_below(const Graph *g, bool *marks, Value v) {
    bool ok = true;
    marks[v] = true;
    for (; v > 0; v--) {
        if (!marks[v]) continue;
        uint32_t n = graph_node(g, v)->n_operands;
        for (uint32_t i = 0; i < n; i++) marks[graph_operand(g, v, i)] = true;
        OpCode op = graph_op(g, v);
        ok &= n || op == OP_const || op == OP_iota || is_hole(g, v);
    }
    return ok;
}

/* The carried values that the condition and each other need. */
static bool find_control(Loop *l, const Value *holes, const Value *next, Control *c) {
    const Graph *g = l->n->g;
    bool *marks = arena_alloc(l->n->arena, g->n_nodes),
         *is_in = arena_alloc(l->n->arena, l->n_carried + 1u);
    bool ok = mark_below(g, marks, next[0]);
    for (bool grows = true; grows && ok;) {
        grows = false;
        for (uint32_t i = 0; i < l->n_carried && ok; i++) {
            if (is_in[i] || !marks[holes[i]]) continue;
            is_in[i] = grows = true;
            ok = mark_below(g, marks, next[1 + i]);
        }
    }
    for (uint32_t i = 0; i < l->n_carried && ok; i++) {
        if (!is_in[i]) continue;
        c->first[c->n] = l->first[i];
        c->carry[c->n] = holes[i];
        c->next[c->n++] = next[1 + i];
    }
    return ok;
}

/* How many steps the condition lets run, found by running what it is made from alone. */
static bool count_steps(Loop *l, Value t, const Value *holes, const Value *next) {
    ImportNode *n = l->n;
    Graph *g = n->g;
    Control c = {.n = 0};
    Value finals[MAX_LOOP_VALUES], stack, go = next[0];
    if (!find_control(l, holes, next, &c)) return false;
    ScanSpec spec = {.name = "count",
                     .n_carries = c.n,
                     .first = c.first,
                     .carry = c.carry,
                     .next = c.next,
                     .t = t,
                     .n_ys = 1,
                     .ys = &go,
                     .trips = INT32_MAX};
    if (!scan_build(g, &spec, finals, &stack)) return false;
    const Body *b = scan_body(g, stack);
    uint32_t n_operands = body_n_operands(b);
    Tensor *operands = arena_alloc(n->arena, (n_operands + 1) * sizeof *operands);
    for (uint32_t i = 0; i < n_operands; i++)
        if (!node_known(n, graph_operand(g, stack, i), &operands[i])) return false;
    if (b->n_scanned || type_elems(body_type(b, 'y', 0)) != 1) return false;
    int64_t counted = scan_count(b, operands, l->trips < MAX_COUNTED ? l->trips : MAX_COUNTED);
    if (!counted || (counted == MAX_COUNTED && l->trips > MAX_COUNTED)) return false;
    l->trips = counted;
    return true;
}

/* ---- sequences that grow by one tensor a step ---- */

static uint32_t uses_of(Onnx__NodeProto *const *nodes, size_t n, const char *name) {
    uint32_t uses = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < nodes[i]->n_input; k++) uses += !strcmp(nodes[i]->input[k], name);
        for (size_t k = 0; k < nodes[i]->n_attribute; k++) {
            const Onnx__GraphProto *inner = nodes[i]->attribute[k]->g;
            if (!inner) continue;
            uses += uses_of(inner->node, inner->n_node, name);
            for (size_t o = 0; o < inner->n_output; o++)
                uses += !strcmp(inner->output[o]->name, name);
        }
    }
    return uses;
}

/* Does a step do nothing with its carried value i but append one tensor to it? */
static bool only_appends(const Loop *l, uint32_t i) {
    const Onnx__GraphProto *body = l->body;
    if (body->n_input < i + 3u) return false;
    const char *in = body->input[2 + i]->name, *out = body->output[1 + i]->name;
    if (uses_of(body->node, body->n_node, in) != 1 || uses_of(body->node, body->n_node, out))
        return false;
    for (size_t k = 0; k < body->n_node; k++) {
        const Onnx__NodeProto *p = body->node[k];
        if (!strcmp(p->op_type, "SequenceInsert") && p->n_input == 2 && p->n_output == 1 &&
            !strcmp(p->input[0], in) && !strcmp(p->output[0], out))
            return true;
    }
    return false;
}

typedef struct Step { /* one step over holes: sequences stand among the stacked outputs */
    Loop loop;
    Value in[MAX_LOOP_VALUES + 2], out[MAX_LOOP_VALUES + 1];
    Value first[MAX_LOOP_VALUES], carry[MAX_LOOP_VALUES], next[MAX_LOOP_VALUES + 1];
    uint32_t n_sequences;
} Step;

static bool begin_step(const Loop *l, Step *s) {
    Graph *g = l->n->g;
    s->loop = *l;
    s->loop.first = s->first;
    s->loop.n_carried = 0;
    s->in[0] = scan_hole(g, graph_type_of(g, DT_I64, 0, NULL));
    s->in[1] = bool_const(l->n, true);
    for (uint32_t i = 0; i < l->n_carried; i++) {
        Value v = l->first[i];
        if (!v || (v & SEQUENCE_BIT && !only_appends(l, i))) return false;
        s->in[2 + i] =
            v & SEQUENCE_BIT ? sequence_new(l->n, NULL, 0) : scan_hole(g, graph_node(g, v)->type);
        s->n_sequences += (v & SEQUENCE_BIT) != 0;
        if (v & SEQUENCE_BIT) continue;
        s->first[s->loop.n_carried] = v;
        s->carry[s->loop.n_carried++] = s->in[2 + i];
    }
    s->loop.n_stacked += s->n_sequences;
    return true;
}

/* What the step makes, in the order of the loop: carried, appended, stacked. */
static bool end_step(const Loop *l, Step *s) {
    uint32_t carried = 0, n = s->loop.n_carried;
    s->next[0] = s->out[0];
    for (uint32_t i = 0; i < l->n_carried; i++) {
        Value v = s->out[1 + i];
        bool is_sequence = (v & SEQUENCE_BIT) != 0;
        if (is_sequence != ((l->first[i] & SEQUENCE_BIT) != 0)) return false;
        if (is_sequence && l->n->im->sequences[v & ~SEQUENCE_BIT].n != 1) return false;
        if (is_sequence) v = l->n->im->sequences[v & ~SEQUENCE_BIT].items[0];
        s->next[1 + (is_sequence ? n++ : carried++)] = v;
    }
    for (uint32_t i = 0; i < l->n_stacked; i++) s->next[1 + n + i] = s->out[1 + l->n_carried + i];
    return keeps_types(&s->loop, s->next + 1);
}

static void take_results(Loop *l, const Step *s) {
    uint32_t carried = 0, appended = 0;
    l->trips = s->loop.trips;
    for (uint32_t i = 0; i < l->n_carried; i++)
        l->finals[i] = l->first[i] & SEQUENCE_BIT
                           ? sequence_append(l->n, l->first[i], s->loop.stacks[appended++])
                           : s->loop.finals[carried++];
    memcpy(l->stacks, s->loop.stacks + appended, l->n_stacked * sizeof *l->stacks);
}

static bool try_as_loop(Loop *l) {
    ImportNode *n = l->n;
    Graph *g = n->g;
    Scope inner;
    Step *s = arena_alloc(n->arena, sizeof *s);
    Attempt before = attempt_begin(g);
    if (!begin_step(l, s)) return false;
    subgraph_open(n, l->body, &inner);
    bool ok = define_inputs(l, &inner, s->in, l->n_carried + 2);
    if (ok) subgraph_import(n, &inner, l->body, "", l->n_carried + l->n_stacked + 1, s->out);
    ok = ok && !attempt_failed(g, &before) && !adds_roots(g, &before) && s->out[0] &&
         !(s->out[0] & SEQUENCE_BIT) && end_step(l, s) &&
         (is_true(n, s->out[0]) || count_steps(&s->loop, s->in[0], s->carry, s->next)) &&
         s->loop.trips < INT32_MAX &&
         build_loop(&s->loop, prefix_of(l, ""), s->carry, s->in[0], NULL, NULL, 0, false,
                    s->next + 1);
    if (ok)
        take_results(l, s);
    else
        attempt_undo(g, &before);
    return ok;
}

/* ---------------------------------------------------------------- step by step */

typedef struct Steps {
    Value *rows[MAX_LOOP_VALUES]; /* per stacked output: one value per step */
    int64_t n;
} Steps;

static bool known_bool(ImportNode *n, Value v, bool *b) {
    Tensor t;
    if (v && !(v & SEQUENCE_BIT) && node_known(n, v, &t) && type_elems(&t.type) == 1)
        return *b = t.u.i[0] != 0, true;
    diag_add(n->g, E_OP_UNSUPPORTED, n->g->loc, "Loop", " where the condition depends on the data");
    return false;
}

/* One step with all that is known of it. false after diagnostics. */
static bool lay_step(Loop *l, Value *carried, Steps *s, bool *goes_on) {
    ImportNode *n = l->n;
    Scope inner;
    Value in[MAX_LOOP_VALUES + 2], out[MAX_LOOP_VALUES + 1] = {0};
    Attempt before = attempt_begin(n->g);
    subgraph_open(n, l->body, &inner);
    in[0] = number_of_step(n, s->n);
    in[1] = bool_const(n, true);
    for (uint32_t i = 0; i < l->n_carried; i++) in[2 + i] = carried[i];
    if (!define_inputs(l, &inner, in, l->n_carried + 2)) return false;
    subgraph_import(n, &inner, l->body, arena_printf(n->arena, "[%lld]", (long long)s->n),
                    l->n_carried + l->n_stacked + 1, out);
    if (attempt_failed(n->g, &before)) return false;
    if (l->trips != 1 && moves_statistics(n, &before)) return false;
    for (uint32_t i = 0; i < l->n_carried; i++) carried[i] = out[1 + i];
    for (uint32_t i = 0; i < l->n_stacked; i++) s->rows[i][s->n] = out[1 + l->n_carried + i];
    s->n++;
    return known_bool(n, out[0], goes_on);
}

/* [1, ..] of each step, one after the other */
static Value stack_rows(Loop *l, Value *rows, int64_t count) {
    Graph *g = l->n->g;
    TypeId type = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!rows[i] || rows[i] & SEQUENCE_BIT) return 0;
        if (!i) type = graph_node(g, rows[0])->type;
        Type t = *graph_type_at(g, rows[i]);
        if (t.rank == MAX_RANK || graph_node(g, rows[i])->type != type) {
            node_fail_shapes(l->n, "the steps of a scan output have different shapes");
            return 0;
        }
        memmove(t.dims + 1, t.dims, t.rank * sizeof *t.dims);
        t.dims[0] = 1;
        rows[i] = build_reshape(g, rows[i], t.rank + 1u, t.dims);
    }
    return build_concat(g, rows, (uint32_t)count, 0);
}

static bool lay_out(Loop *l) {
    ImportNode *n = l->n;
    Steps s = {.n = 0};
    bool goes_on = l->starts;
    for (uint32_t i = 0; i < l->n_stacked; i++)
        s.rows[i] = arena_alloc(n->arena, MAX_LAID_OUT * sizeof(Value));
    for (uint32_t i = 0; i < l->n_carried; i++) l->finals[i] = l->first[i];
    while (goes_on && s.n < l->trips) {
        if (s.n == MAX_LAID_OUT) {
            diag_add(n->g, E_OP_UNSUPPORTED, n->g->loc, "Loop",
                     arena_printf(n->arena, " of more than %d steps that differ from each other",
                                  MAX_LAID_OUT));
            return false;
        }
        if (!lay_step(l, l->finals, &s, &goes_on)) return false;
    }
    for (uint32_t i = 0; i < l->n_stacked && s.n; i++) l->stacks[i] = stack_rows(l, s.rows[i], s.n);
    return true;
}

/* ---------------------------------------------------------------- Loop */

static const Onnx__GraphProto *body_of_node(ImportNode *n) {
    const Onnx__AttributeProto *a = find_attribute(n->im->scope, n->proto, "body");
    if (a && a->g) return a->g;
    node_fail(n, "body", "is missing");
    return NULL;
}

static bool read_trips(Loop *l) {
    ImportNode *n = l->n;
    Tensor t;
    l->trips = INT64_MAX;
    l->starts = true;
    if (node_in(n, 0)) {
        if (!node_known(n, n->in[0], &t) || type_elems(&t.type) != 1) {
            diag_add(n->g, E_OP_UNSUPPORTED, n->g->loc, "Loop",
                     " where the number of steps depends on the data");
            return false;
        }
        l->trips = t.u.i[0] > 0 ? t.u.i[0] : 0;
    }
    return !node_in(n, 1) || known_bool(n, n->in[1], &l->starts);
}

void import_loop(ImportNode *n) {
    Loop l = {.n = n,
              .body = body_of_node(n),
              .n_carried = n->n_in > 2 ? n->n_in - 2 : 0,
              .first = n->in + 2};
    if (!l.body || nests_too_deep(n) || !read_trips(&l)) return;
    size_t n_body = l.body->n_output;
    if (n_body < l.n_carried + 1u || n_body > MAX_LOOP_VALUES) {
        diag_add(n->g, E_MODEL_INVALID, n->g->loc,
                 arena_printf(n->arena, "the body of Loop has %zu outputs for %u carried values",
                              n_body, l.n_carried));
        return;
    }
    l.n_stacked = (uint32_t)n_body - l.n_carried - 1;
    if (!l.starts) l.trips = 0;
    bool ok = try_as_loop(&l) || lay_out(&l);
    for (uint32_t i = 0; ok && i < n->n_out; i++)
        n->out[i] = i < l.n_carried ? l.finals[i] : l.stacks[i - l.n_carried];
}

/* ---------------------------------------------------------------- Scan */

typedef struct Direction {
    int64_t axis;
    bool is_reverse;
} Direction;

static bool read_directions(ImportNode *n, const char *axes_name, const char *directions_name,
                            uint32_t count, Direction *d) {
    uint32_t n_axes, n_directions;
    const int64_t *axes = node_ints(n, axes_name, &n_axes),
                  *directions = node_ints(n, directions_name, &n_directions);
    if ((axes && n_axes != count) || (directions && n_directions != count)) {
        node_fail(n, axes ? axes_name : directions_name, "has not %u elements", count);
        return false;
    }
    for (uint32_t i = 0; i < count; i++)
        d[i] = (Direction){axes ? axes[i] : 0, directions && directions[i]};
    return true;
}

/* The axis first, or first to that axis. */
static Value move_axis(ImportNode *n, Value v, int64_t from, int64_t to) {
    int64_t perm[MAX_RANK], rank = node_type(n, v)->rank;
    uint32_t k = 0;
    if (from == to) return v;
    for (int64_t i = 0, next = 0; i < rank; i++) {
        if (next == from) next++;
        perm[k++] = i == to ? from : next++;
    }
    return build_transpose(n->g, v, perm);
}

static Value turned(ImportNode *n, Value v) {
    Type t = *node_type(n, v);
    int64_t start[MAX_RANK] = {t.dims[0] - 1}, step[MAX_RANK] = {-1, 1, 1, 1, 1, 1, 1, 1};
    return t.dims[0] > 1 ? build_slice(n->g, v, start, t.dims, step) : v;
}

static Value slice_hole(ImportNode *n, Value xs) {
    Type t = *node_type(n, xs);
    memmove(t.dims, t.dims + 1, (MAX_RANK - 1) * sizeof *t.dims);
    t.dims[--t.rank] = 0;
    return scan_hole(n->g, graph_type(n->g, t));
}

static bool scan_inputs(Loop *l, const Value *inputs, const Direction *d, uint32_t count,
                        bool is_reverse, Value *xs) {
    ImportNode *n = l->n;
    for (uint32_t i = 0; i < count; i++) {
        int64_t axis, rank = node_type(n, inputs[i])->rank;
        if (!node_axis(n, d[i].axis, (uint32_t)rank, &axis)) return false;
        xs[i] = move_axis(n, inputs[i], axis, 0);
        if (d[i].is_reverse != is_reverse) xs[i] = turned(n, xs[i]);
        int64_t steps = node_type(n, xs[i])->dims[0];
        if (i && steps != l->trips) {
            node_fail_shapes(n, "scan inputs of %lld and %lld steps", (long long)l->trips,
                             (long long)steps);
            return false;
        }
        l->trips = steps;
    }
    return true;
}

static bool all_reverse(const Direction *d, uint32_t n) {
    bool all = n > 0;
    for (uint32_t i = 0; i < n; i++) all &= d[i].is_reverse;
    return all;
}

/* Steps over the first axes of `inputs`; l->finals and l->stacks (steps first) on success. */
static bool scan_steps(Loop *l, const Value *inputs, const Direction *d, uint32_t n_inputs,
                       bool is_reverse) {
    ImportNode *n = l->n;
    Graph *g = n->g;
    Scope inner;
    Value holes[MAX_LOOP_VALUES], out[MAX_LOOP_VALUES] = {0}, xs[MAX_LOOP_VALUES];
    if (!scan_inputs(l, inputs, d, n_inputs, is_reverse, xs)) return false;
    Attempt before = attempt_begin(g);
    subgraph_open(n, l->body, &inner);
    for (uint32_t i = 0; i < l->n_carried; i++)
        holes[i] = scan_hole(g, graph_node(g, l->first[i])->type);
    for (uint32_t i = 0; i < n_inputs; i++) holes[l->n_carried + i] = slice_hole(n, xs[i]);
    if (!define_inputs(l, &inner, holes, l->n_carried + n_inputs)) return false;
    subgraph_import(n, &inner, l->body, "", l->n_carried + l->n_stacked, out);
    if (attempt_failed(g, &before)) return false;
    if (!keeps_types(l, out)) {
        node_fail_shapes(n, "a step of Scan changes the type of what it carries");
        return false;
    }
    if (moves_statistics(n, &before)) return false;
    return build_loop(l, prefix_of(l, ""), holes, 0, xs, holes + l->n_carried, n_inputs, is_reverse,
                      out);
}

static bool read_scan(Loop *l, uint32_t first_input, uint32_t *n_inputs) {
    ImportNode *n = l->n;
    int64_t count = node_int(n, "num_scan_inputs", 0);
    if (!(l->body = body_of_node(n)) || nests_too_deep(n)) return false;
    if (count < 1 || count + first_input > n->n_in || n->n_in > MAX_LOOP_VALUES) {
        node_fail(n, "num_scan_inputs", "%lld", (long long)count);
        return false;
    }
    *n_inputs = (uint32_t)count;
    l->n_carried = n->n_in - first_input - *n_inputs;
    l->first = n->in + first_input;
    if (l->body->n_output < l->n_carried || l->body->n_output > MAX_LOOP_VALUES) {
        diag_add(n->g, E_MODEL_INVALID, n->g->loc, "the body of Scan has too few outputs");
        return false;
    }
    l->n_stacked = (uint32_t)l->body->n_output - l->n_carried;
    return true;
}

void import_scan(ImportNode *n) {
    Loop l = {.n = n};
    Direction in[MAX_LOOP_VALUES], out[MAX_LOOP_VALUES];
    uint32_t n_inputs;
    if (!read_scan(&l, 0, &n_inputs) ||
        !read_directions(n, "scan_input_axes", "scan_input_directions", n_inputs, in) ||
        !read_directions(n, "scan_output_axes", "scan_output_directions", l.n_stacked, out))
        return;
    bool is_reverse = all_reverse(in, n_inputs);
    if (!scan_steps(&l, n->in + l.n_carried, in, n_inputs, is_reverse)) return;
    for (uint32_t i = 0; i < n->n_out && i < l.n_carried + l.n_stacked; i++) {
        uint32_t y = i - l.n_carried;
        int64_t axis;
        n->out[i] = i < l.n_carried ? l.finals[i] : l.stacks[y];
        if (i < l.n_carried) continue;
        if (!node_axis(n, out[y].axis, node_type(n, n->out[i])->rank, &axis)) return;
        if (out[y].is_reverse != is_reverse) n->out[i] = turned(n, n->out[i]);
        n->out[i] = move_axis(n, n->out[i], 0, axis);
    }
}

/* ---------------------------------------------------------------- Scan-8: samples one by one */

/* A loop over the batch whose step is the scan of one sample. */
void import_scan_batch(ImportNode *n) {
    Graph *g = n->g;
    Loop l = {.n = n};
    Direction in[MAX_LOOP_VALUES];
    uint32_t n_inputs, total;
    Value holes[MAX_LOOP_VALUES], ys[MAX_LOOP_VALUES], stacks[MAX_LOOP_VALUES];
    if (node_in(n, 0)) {
        node_fail(n, "sequence_lens", "sequences of different lengths are not supported");
        return;
    }
    if (!read_scan(&l, 1, &n_inputs) || !read_directions(n, "axes", "directions", n_inputs, in))
        return;
    total = l.n_carried + n_inputs;
    int64_t batch = -1;
    for (uint32_t i = 0; i < total; i++) {
        const Type *t = node_type(n, n->in[1 + i]);
        if (t->rank < (i < l.n_carried ? 1 : 2) || (batch >= 0 && t->dims[0] != batch)) {
            node_fail_shapes(n, "input %u has not the batch as its first axis", i + 2);
            return;
        }
        batch = t->dims[0];
        holes[i] = slice_hole(n, n->in[1 + i]);
    }
    l.first = holes;
    bool is_reverse = all_reverse(in, n_inputs);
    if (!scan_steps(&l, holes + l.n_carried, in, n_inputs, is_reverse)) return;
    uint32_t n_results = l.n_carried + l.n_stacked;
    for (uint32_t i = 0; i < n_results; i++) {
        ys[i] = i < l.n_carried ? l.finals[i] : l.stacks[i - l.n_carried];
        if (i >= l.n_carried && is_reverse) ys[i] = turned(n, ys[i]);
    }
    ScanSpec spec = {.name = "samples",
                     .n_scanned = total,
                     .xs = n->in + 1,
                     .x = holes,
                     .n_ys = n_results,
                     .ys = ys,
                     .trips = batch};
    if (!scan_build(g, &spec, NULL, stacks)) return;
    for (uint32_t i = 0; i < n->n_out && i < n_results; i++) n->out[i] = stacks[i];
}
