/* ops_loop.c - Loop. A body whose carried values keep their types becomes a loop of the IR; one
 * whose steps differ (shapes that grow, sizes made of the step's number, sequences that are read)
 * is laid out step by step, up to a limit.
 *
 * The body is imported once over holes (scan.h): what it reads from outside is simply there. Where
 * that fails the attempt leaves nothing behind and the steps are imported one after the other, with
 * all that is known of each. A condition that is made of counters alone is run by itself and tells
 * the number of steps; a list that only grows by one tensor a step is a stacked result. */
#include "loop.h"
#include <string.h>

enum { MAX_LAID_OUT = 1024, MAX_COUNTED = 1 << 17 };

/* ---------------------------------------------------------------- as a loop */

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
         build_loop(&s->loop, &(Holes){.carry = s->carry, .t = s->in[0]}, s->next + 1);
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

/* ---------------------------------------------------------------- the node */

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
