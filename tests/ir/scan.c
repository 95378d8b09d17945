/* scan.c - tests that loops mean what their steps laid out one after the other mean, forward and in
 * gradients, and that bodies are shared, equal ones found, and misfits described. */
#include "scan.h"
#include "check.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

typedef struct Cell { /* a loop over random inputs, and the same steps laid out */
    Check *c;
    ScanSpec spec;
    Value first[3], carry[3], next[3], xs[3], x[3], ys[3];
    Value finals[3], stacks[3], laid_finals[3], laid_stacks[3];
} Cell;

static Value carry_of(Cell *k, uint32_t rank, const int64_t *dims) {
    uint32_t i = k->spec.n_carries++;
    k->first[i] = check_floats(k->c, rank, dims);
    return k->carry[i] = scan_hole(k->c->g, graph_node(k->c->g, k->first[i])->type);
}

static Value slice_of(Cell *k, uint32_t rank, const int64_t *dims) {
    int64_t whole[MAX_RANK] = {k->spec.trips};
    uint32_t i = k->spec.n_scanned++;
    memcpy(whole + 1, dims, rank * sizeof *dims);
    k->xs[i] = check_floats(k->c, rank + 1, whole);
    return k->x[i] = scan_hole(k->c->g, graph_type_of(k->c->g, DT_F64, rank, dims));
}

static void output_of(Cell *k, Value y) { k->ys[k->spec.n_ys++] = y; }

static Value slice_at(Cell *k, Value whole, int64_t t) {
    Type type = *graph_type_at(k->c->g, whole);
    int64_t start[MAX_RANK] = {t};
    type.dims[0] = 1;
    return build_reshape(k->c->g, build_slice(k->c->g, whole, start, type.dims, NULL),
                         type.rank - 1u, type.dims + 1);
}

/* The loop's steps one after the other, as a model without loops would say them. */
static void lay_out(Cell *k) {
    Graph *g = k->c->g;
    const ScanSpec *s = &k->spec;
    const Body *b = scan_body(g, s->n_ys ? k->stacks[0] : k->finals[0]);
    uint32_t n = body_n_operands(b);
    Value operands[16], steps[3][16], scan = s->n_ys ? k->stacks[0] : k->finals[0];
    for (uint32_t i = 0; i < n; i++) operands[i] = graph_operand(g, scan, i);
    for (int64_t j = 0; j < s->trips; j++) {
        int64_t t = s->is_reverse ? s->trips - 1 - j : j;
        Arena *scratch = arena_new();
        Value *map = arena_alloc(scratch, b->g->n_nodes * sizeof *map), now[16];
        memcpy(now, operands, sizeof now);
        for (uint32_t i = b->n_carries; i < b->n_carries + b->n_scanned; i++)
            now[i] = slice_at(k, graph_operand(g, scan, i), t);
        Graph *body = b->g;
        body_lay(g, b, now, build_splat(g, graph_type_of(g, DT_I64, 0, NULL), (double)t), map);
        b = scan_body(g, scan);
        for (uint32_t i = 0; i < body->entries[ENTRY_MICRO].n; i++) {
            const Root *r = &body->entries[ENTRY_MICRO].roots[i];
            if (r->is_update)
                operands[r->name[1] - '0'] = map[r->value];
            else
                steps[r->name[1] - '0'][t] = map[r->value];
        }
        arena_free(scratch);
    }
    for (uint32_t i = 0; i < s->n_carries; i++)
        k->laid_finals[i] = i < b->n_carries ? operands[i] : k->first[i];
    for (uint32_t i = 0; i < s->n_ys; i++) {
        for (int64_t t = 0; t < s->trips; t++) {
            Type type = *graph_type_at(g, steps[i][t]);
            memmove(type.dims + 1, type.dims, type.rank * sizeof *type.dims);
            type.dims[0] = 1;
            steps[i][t] = build_reshape(g, steps[i][t], type.rank + 1u, type.dims);
        }
        k->laid_stacks[i] = build_concat(g, steps[i], (uint32_t)s->trips, 0);
    }
}

static Cell *cell_new(uint64_t seed, int64_t trips, bool is_reverse) {
    Check *c = check_new(seed);
    Cell *k = arena_alloc(c->arena, sizeof *k);
    k->c = c;
    k->spec = (ScanSpec){.name = "cell", .trips = trips, .is_reverse = is_reverse};
    return k;
}

static void finish(Cell *k) {
    ScanSpec *s = &k->spec;
    s->first = k->first, s->carry = k->carry, s->next = k->next;
    s->xs = k->xs, s->x = k->x, s->ys = k->ys;
    cr_assert(scan_build(k->c->g, s, k->finals, k->stacks));
    Graph *clean = graph_copy_empty(k->c->g);
    cr_assert(graph_verify(k->c->g, stderr));
    graph_free(clean);
    if (s->trips) lay_out(k);
}

static Value flat(Check *c, Value v) {
    return build_reshape(c->g, v, 1, (int64_t[]){type_elems(graph_type_at(c->g, v))});
}

static bool is_float_result(const Cell *k, Value v) {
    const Graph *g = k->c->g;
    return graph_op(g, v) == OP_scan && dtype_info[graph_type_at(g, v)->dtype].cls == CLASS_FLT;
}

/* All results of the loop in one vector, or what they are when laid out. */
static Value all_of(Cell *k, const Value *finals, const Value *stacks) {
    Value parts[6];
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->spec.n_carries; i++)
        if (is_float_result(k, k->finals[i])) parts[n++] = flat(k->c, finals[i]);
    for (uint32_t i = 0; i < k->spec.n_ys; i++) parts[n++] = flat(k->c, stacks[i]);
    return build_concat(k->c->g, parts, n, 0);
}

/* d of every input, of all nodes of the loop at once and of the steps laid out. */
static void compare_gradients(Cell *k, const char *what) {
    Check *c = k->c;
    Graph *g = c->g;
    uint32_t n_results = k->spec.n_carries + k->spec.n_ys, n = c->n;
    Value laid = all_of(k, k->laid_finals, k->laid_stacks), dy[6] = {0}, d[16], laid_d[CHECK_MAX];
    Type t = *graph_type_at(g, laid);
    Value weights = build_unary(
        g, OP_sin, build_cast(g, build_iota(g, graph_type_of(g, DT_I64, 1, t.dims), 0), DT_F64));
    int64_t at = 0;
    for (uint32_t i = 0; i < n_results; i++) {
        Value r = i < k->spec.n_carries ? k->finals[i] : k->stacks[i - k->spec.n_carries];
        Type type = *graph_type_at(g, r);
        int64_t elems = type_elems(&type);
        if (!is_float_result(k, r)) continue;
        dy[attr_i(g, r, A_RESULT, 0)] =
            build_reshape(g, build_slice(g, weights, &at, &elems, NULL), type.rank, type.dims);
        at += elems;
    }
    check_backward(g, laid, weights, c->inputs, n, laid_d);
    Value scan = k->spec.n_ys ? k->stacks[0] : k->finals[0];
    bool needs[16];
    uint32_t n_operands = graph_node(g, scan)->n_operands;
    for (uint32_t i = 0; i < n_operands; i++)
        needs[i] = dtype_info[graph_type_at(g, graph_operand(g, scan, i))->dtype].cls == CLASS_FLT;
    memset(d, 0, sizeof d);
    cr_assert(scan_vjp(g, scan, dy, needs, "w", d));
    Value mine[CHECK_MAX] = {0}, part[CHECK_MAX];
    for (uint32_t o = 0; o < n_operands; o++) {
        if (!d[o]) continue;
        check_backward(g, graph_operand(g, scan, o), d[o], c->inputs, n, part);
        for (uint32_t i = 0; i < n; i++) mine[i] = gradient_add(g, mine[i], part[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (dtype_info[graph_type_at(g, c->inputs[i])->dtype].cls != CLASS_FLT) continue;
        if (!laid_d[i]) laid_d[i] = build_splat(g, graph_node(g, c->inputs[i])->type, 0);
        if (!mine[i]) mine[i] = build_splat(g, graph_node(g, c->inputs[i])->type, 0);
        check_same(c, mine[i], laid_d[i], 1e-12, what);
    }
    cr_assert(graph_verify(g, stderr));
}

static void check_cell(Cell *k, const char *what) {
    finish(k);
    check_same(k->c, all_of(k, k->finals, k->stacks), all_of(k, k->laid_finals, k->laid_stacks),
               1e-13, what);
    compare_gradients(k, what);
    check_gradient(k->c, k->spec.n_ys ? k->stacks[0] : k->finals[0], what);
    check_free(k->c);
}

/* h' = tanh(x w + h r + b), c' = c + h' * x0; y = h' * c */
static Cell *recurrent_cell(uint64_t seed, bool is_reverse) {
    Cell *k = cell_new(seed, 3, is_reverse);
    Graph *g = k->c->g;
    int64_t state[] = {2, 4}, in[] = {2, 3};
    Value h = carry_of(k, 2, state), c = carry_of(k, 2, state), x = slice_of(k, 2, in);
    Value w = check_floats(k->c, 2, (int64_t[]){3, 4}),
          r = check_floats(k->c, 2, (int64_t[]){4, 4});
    Value b = check_floats(k->c, 1, (int64_t[]){4});
    Value sum =
        build_binary(g, OP_add, build_dot(g, x, w, false, false), build_dot(g, h, r, false, true));
    k->next[0] = build_unary(g, OP_tanh, build_binary(g, OP_add, sum, b));
    k->next[1] = build_binary(g, OP_add, c, build_binary(g, OP_mul, k->next[0], b));
    output_of(k, build_binary(g, OP_mul, k->next[0], c));
    return k;
}

Test(scan, a_recurrent_cell) {
    check_cell(recurrent_cell(1, false), "forward");
    check_cell(recurrent_cell(2, true), "reverse");
}

/* Weights that every step changes by what it reads, the step's number among it. */
Test(scan, steps_count_and_gather) {
    Cell *k = cell_new(3, 4, false);
    Graph *g = k->c->g;
    Value table = check_floats(k->c, 2, (int64_t[]){4, 3});
    k->spec.t = scan_hole(g, graph_type_of(g, DT_I64, 0, NULL));
    Value s = carry_of(k, 1, (int64_t[]){3}), row = build_gather(g, table, k->spec.t, 0);
    Value t = build_cast(g, k->spec.t, DT_F64);
    k->next[0] =
        build_binary(g, OP_mul, build_binary(g, OP_add, s, row), build_unary(g, OP_cos, t));
    output_of(k, build_unary(g, OP_sin, k->next[0]));
    check_cell(k, "count and gather");
}

/* A carry that stays, one that only the gradient of another reaches, one of integers. */
Test(scan, carries_of_all_kinds) {
    Cell *k = cell_new(4, 3, true);
    Graph *g = k->c->g;
    Value a = carry_of(k, 1, (int64_t[]){2});
    uint32_t i = k->spec.n_carries++;
    k->first[i] = build_splat(g, graph_type_of(g, DT_I64, 0, NULL), 2);
    k->carry[i] = scan_hole(g, graph_node(g, k->first[i])->type);
    k->next[i] = build_binary(g, OP_add, k->carry[i], k->carry[i]);
    Value still = carry_of(k, 1, (int64_t[]){2});
    k->next[0] =
        build_binary(g, OP_mul, a, build_unary(g, OP_sin, build_binary(g, OP_mul, a, still)));
    output_of(k, build_binary(g, OP_mul, a, build_cast(g, k->carry[i], DT_F64)));
    check_cell(k, "carries");
}

Test(scan, only_stacks_and_nothing_carried) {
    Cell *k = cell_new(5, 2, false);
    Value x = slice_of(k, 1, (int64_t[]){3}), w = check_floats(k->c, 1, (int64_t[]){3});
    output_of(k, build_binary(k->c->g, OP_mul, x, w));
    output_of(k, build_unary(k->c->g, OP_exp, x));
    check_cell(k, "stacks");
}

/* A value of the step itself is the gradient of an invariant: summed by a carry. */
Test(scan, sums_that_stay_inside) {
    Cell *k = cell_new(6, 3, false);
    Graph *g = k->c->g;
    Value h = carry_of(k, 2, (int64_t[]){2, 2}), w = check_floats(k->c, 2, (int64_t[]){2, 2});
    k->next[0] = build_unary(g, OP_tanh, build_unary(g, OP_sin, build_binary(g, OP_mul, h, w)));
    output_of(k, build_binary(g, OP_add, build_dot(g, w, k->next[0], false, false), w));
    check_cell(k, "sums inside");
}

Test(scan, a_loop_within_a_loop) {
    for (int is_reverse = 0; is_reverse < 2; is_reverse++) {
        Cell *k = cell_new(7, 2, is_reverse != 0);
        Graph *g = k->c->g;
        Value h = carry_of(k, 2, (int64_t[]){1, 3}), x = slice_of(k, 2, (int64_t[]){3, 3});
        Value w = check_floats(k->c, 2, (int64_t[]){3, 3});
        TypeId type = graph_node(g, h)->type;
        Value inner = scan_hole(g, type),
              row = scan_hole(g, graph_type_of(g, DT_F64, 1, (int64_t[]){3}));
        Value next = build_unary(g, OP_tanh,
                                 build_binary(g, OP_add, build_dot(g, inner, w, false, false),
                                              build_binary(g, OP_mul, row, h)));
        ScanSpec spec = {.name = "inner",
                         .n_carries = 1,
                         .n_scanned = 1,
                         .n_ys = 1,
                         .first = &h,
                         .carry = &inner,
                         .next = &next,
                         .xs = &x,
                         .x = &row,
                         .ys = &next,
                         .trips = 3};
        Value stack;
        cr_assert(scan_build(g, &spec, &k->next[0], &stack));
        output_of(k, build_reduce(g, OP_sum, stack, (int64_t[]){0}, 1));
        check_cell(k, "nested");
    }
}

Test(scan, no_steps_at_all) {
    Cell *k = cell_new(8, 0, false);
    Graph *g = k->c->g;
    Value h = carry_of(k, 1, (int64_t[]){3}), x = slice_of(k, 1, (int64_t[]){3});
    k->next[0] = build_binary(g, OP_mul, h, x);
    output_of(k, k->next[0]);
    finish(k);
    cr_expect(k->finals[0] == k->first[0] && !type_elems(graph_type_at(g, k->stacks[0])));
    uint32_t body = g->n_bodies;
    cr_expect(body == 0, "nothing is built");
    check_free(k->c);
    Graph *empty = graph_parse("graph g\ninput x : f32[0,2]\nstate h : f32[2] param\nbody b\n"
                               "state c0 : f32[2] carry\ninput x0 : f32[2]\n%1 = state name=c0\n"
                               "%2 = input name=x0\n%3 = mul %1 %2\nentry micro\nupdate @c0 = %3\n"
                               "output y0 = %3\nend\n%1 = const : f32[0,2] data=hex:\n"
                               "%2 = const : f32[2] data=[3, 4]\n"
                               "%3 = scan %2 %1 body=1 trips=0 result=0\n"
                               "%4 = scan %2 %1 body=1 trips=0 result=1\n",
                               "t", stderr);
    Arena *a = arena_new();
    Tensor t;
    cr_assert(empty && interp_fold(empty, 3, a, &t, 100) && t.u.f[0] == 3 && t.u.f[1] == 4);
    cr_assert(interp_fold(empty, 4, a, &t, 100) && type_elems(&t.type) == 0);
    arena_free(a);
    graph_free(empty);
}

Test(scan, one_step_is_no_loop) {
    Cell *k = cell_new(10, 1, false);
    Graph *g = k->c->g;
    Value h = carry_of(k, 1, (int64_t[]){3}), x = slice_of(k, 1, (int64_t[]){3});
    k->next[0] = build_binary(g, OP_mul, h, x);
    output_of(k, build_unary(g, OP_sin, k->next[0]));
    k->spec.first = k->first, k->spec.carry = k->carry, k->spec.next = k->next;
    k->spec.xs = k->xs, k->spec.x = k->x, k->spec.ys = k->ys;
    cr_assert(scan_build(g, &k->spec, k->finals, k->stacks));
    cr_expect(graph_op(g, k->finals[0]) == OP_mul && graph_op(g, k->stacks[0]) == OP_reshape);
    check_gradient(k->c, k->stacks[0], "one step");
    check_free(k->c);
}

Test(scan, products_of_weights_leave_the_loop) {
    Cell *k = recurrent_cell(9, false);
    Graph *g = k->c->g;
    finish(k);
    Value scan = k->stacks[0], dy[3] = {0, 0, k->stacks[0]}, d[16] = {0};
    bool needs[16];
    memset(needs, true, sizeof needs);
    cr_assert(scan_vjp(g, scan, dy, needs, "w", d));
    const Body *back = NULL;
    for (uint32_t i = 1; i <= g->n_bodies; i++)
        if (strcmp(graph_body(g, i)->name, "cell.gradient") == 0) back = graph_body(g, i);
    cr_assert(back);
    cr_expect(back->n_carries == 3, "dh, dc, and what products of values add to db, not %u",
              back->n_carries);
    uint32_t n_dots = 0;
    for (Value v = 1; v < back->g->n_nodes; v++) n_dots += graph_op(back->g, v) == OP_dot;
    cr_expect(n_dots == 1, "dh is a product of a step, nothing else: %u", n_dots);
    const Body *forward = scan_body(g, scan);
    n_dots = 0;
    for (Value v = 1; v < forward->g->n_nodes; v++) n_dots += graph_op(forward->g, v) == OP_dot;
    cr_expect(n_dots == 1, "x w of all steps is one product: %u", n_dots);
    check_free(k->c);
}

/* ---------------------------------------------------------------- the graph's side */

Test(scan, equal_bodies_are_one_and_copies_share_them) {
    Check *c = check_new(1);
    Graph *g = c->g;
    Value first = check_floats(c, 1, (int64_t[]){2}), w = check_floats(c, 1, (int64_t[]){2}),
          ends[2];
    for (int i = 0; i < 2; i++) {
        Value hole = scan_hole(g, graph_node(g, first)->type),
              next = build_binary(g, OP_mul, hole, w);
        ScanSpec s = {.name = "b",
                      .n_carries = 1,
                      .first = &first,
                      .carry = &hole,
                      .next = &next,
                      .trips = 3};
        cr_assert(scan_build(g, &s, &ends[i], NULL));
    }
    cr_expect(ends[0] == ends[1] && g->n_bodies == 1);
    graph_add_root(g, ENTRY_EVAL, false, "y", ends[0]);
    Graph *copy = graph_copy_empty(g);
    Arena *scratch = arena_new();
    graph_rewrite(g, copy, NULL, NULL, arena_alloc(scratch, g->n_nodes * sizeof(Value)));
    cr_expect(copy->n_bodies == 1 && copy->bodies[0].g == g->bodies[0].g);
    cr_expect(copy->n_nodes < g->n_nodes, "the holes stay behind");
    check_free(c);
    cr_expect(graph_verify(copy, stderr), "the body outlives the graph that it came from");
    graph_free(copy);
    arena_free(scratch);
}

static const char loop_text[] = "graph g\ninput x : f32[3,2]\nstate h : f32[2] param\n"
                                "body b\n%s"
                                "end\n"
                                "%%1 = input name=x\n%%2 = state name=h\n"
                                "%%3 = scan %%2 %%1 body=1 trips=%d result=%d\n"
                                "entry micro\noutput y = %%3\n";
static const char good_body[] = "state c0 : f32[2] carry\ninput x0 : f32[2]\n%1 = state name=c0\n"
                                "%2 = input name=x0\n%3 = mul %1 %2\nentry micro\nupdate @c0 = %3\n"
                                "output y0 = %3\n";

static void expect_refused(const char *body, int trips, int result, const char *what) {
    char text[2048], *said = NULL;
    size_t size;
    FILE *errors = open_memstream(&said, &size);
    snprintf(text, sizeof text, loop_text, body, trips, result);
    Graph *g = graph_parse(text, "t", errors);
    fclose(errors);
    cr_expect(!g && strstr(said, what), "%s: %s", what, said);
    graph_free(g);
    free(said);
}

Test(scan, misfits_are_described) {
    expect_refused(good_body, 2, 0, "a scanned operand is not [trips, ..] of what the body reads");
    expect_refused(good_body, 3, 2, "its body has no such result");
    expect_refused("state c0 : f32[3] carry\ninput x0 : f32[2]\n", 3, 0,
                   "an operand has another type than in the body");
    expect_refused("state c0 : f32[2] param\ninput x0 : f32[2]\n", 3, 0,
                   "its states are not carries");
    expect_refused("state c0 : f32[2] carry\ninput z : f32[2]\n", 3, 0, "its inputs are not x0");
    expect_refused("%1 = random : f32[2] stream=1\n", 3, 0, "random stands in a body");
    expect_refused("%1 = scalar : f32[] name=lr\n", 3, 0, "its only scalar is t");
    expect_refused("%1 = const : f32[] data=[1]\nentry eval\noutput y0 = %1\n", 3, 0,
                   "only entry micro");
    expect_refused("%1 = const : f32[] data=[1]\nentry micro\noutput y1 = %1\n", 3, 0,
                   "its outputs are not y0");
    expect_refused("state c0 : f32[2] carry\n%1 = const : f32[] data=[1]\nentry micro\nupdate @c0 "
                   "= %1\n",
                   3, 0, "an update does not fit its carry");
}

static void expect_line_refused(const char *text, const char *what) {
    char *said = NULL;
    size_t size;
    FILE *errors = open_memstream(&said, &size);
    Graph *g = graph_parse(text, "t", errors);
    fclose(errors);
    cr_expect(!g && strstr(said, what), "%s: %s", what, said);
    graph_free(g);
    free(said);
}

Test(scan, bodies_begin_and_end) {
    expect_line_refused("graph g\nbody b\n", "the body b has no end");
    expect_line_refused("graph g\nend\n", "end without a body");
    expect_line_refused("graph g\nbody b\nend end\n", "more on the line");
    expect_line_refused(
        "graph g\nbody b\nbody b\nbody b\nbody b\nbody b\nbody b\nbody b\nbody "
        "b\nbody b\nbody b\nbody b\nbody b\nbody b\nbody b\nbody b\nbody b\nbody b\n",
        "nested too deep");
}
