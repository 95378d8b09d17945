/* Tests that a loop is one launch of its plan, whose body is planned by itself: what the outs do
 * not need is not run, carries and stacked results lie where the loop's operands and outs do, the
 * number of steps changes nothing but numbers; and that the checker finds planted faults. */
#include "plan_run.h"
#include "scan.h"
#include <criterion/criterion.h>
#include <string.h>

/* h' = tanh(h w + x + n), n' = n + t, with outputs h', h' * h' and t. Micro wants all, eval the
 * first. */
static Graph *cell_graph(int64_t trips, bool reverse) {
    Graph *g = graph_new("t");
    Value x = plan_input(g, "x", DT_F32, DIMS(trips, 3, 4)),
          h = plan_input(g, "h", DT_F32, DIMS(3, 4)),
          w = plan_state(g, "w", STATE_PARAM, DT_F32, DIMS(4, 4)),
          zero = build_splat(g, graph_type_of(g, DT_I64, 0, NULL), 0);
    TypeId row = graph_node(g, h)->type, number = graph_node(g, zero)->type;
    Value carry[2] = {scan_hole(g, row), scan_hole(g, number)}, slice = scan_hole(g, row),
          t = scan_hole(g, number);
    Value product = build_dot(g, carry[0], w, false, false),
          count = build_expand(
              g, build_reshape(g, build_cast(g, carry[1], DT_F32), 2, (int64_t[]){1, 1}), 2,
              (int64_t[]){3, 4});
    Value next = build_unary(
        g, OP_tanh, build_binary(g, OP_add, build_binary(g, OP_add, product, slice), count));
    Value nexts[2] = {next, build_binary(g, OP_add, carry[1], t)},
          ys[3] = {next, build_binary(g, OP_mul, next, next), build_cast(g, t, DT_F32)};
    Value finals[2], stacks[3], firsts[2] = {h, zero};
    ScanSpec spec = {.name = "cell",
                     .n_carries = 2,
                     .n_scanned = 1,
                     .n_ys = 3,
                     .first = firsts,
                     .carry = carry,
                     .next = nexts,
                     .xs = &x,
                     .x = &slice,
                     .t = t,
                     .ys = ys,
                     .trips = trips,
                     .is_reverse = reverse};
    cr_assert(scan_build(g, &spec, finals, stacks));
    graph_add_root(g, ENTRY_MICRO, false, "h", finals[0]);
    graph_add_root(g, ENTRY_MICRO, false, "n", finals[1]);
    for (int i = 0; i < 3; i++)
        graph_add_root(g, ENTRY_MICRO, false, arena_printf(g->arena, "y%d", i), stacks[i]);
    graph_add_root(g, ENTRY_EVAL, false, "y0", build_unary(g, OP_neg, stacks[0]));
    Graph *live = graph_copy_empty(g); /* without the holes */
    graph_rewrite(g, live, NULL, NULL, arena_alloc(g->arena, sizeof(Value) * g->n_nodes));
    graph_free(g);
    return live;
}

static Group *loop_of(Planned *p, EntryKind e) {
    for (uint32_t i = 0; i < p->plan->n_groups; i++)
        if (p->plan->groups[i].entry == e && p->plan->groups[i].kind == GROUP_LOOP)
            return &p->plan->groups[i];
    cr_assert_fail("no loop");
    return NULL;
}

static uint32_t body_launches(const Group *loop) {
    return loop->loop->plan->entries[ENTRY_MICRO].n;
}

/* The place of the body's buffer of that name; where it is an output, of the class. */
static PlanPlace *place_of(const Group *group, const char *symbol, bool is_output) {
    const Plan *plan = group->loop->plan;
    for (uint32_t i = 0; i < plan->n_buffers; i++)
        if (plan->buffers[i].symbol && !strcmp(plan->buffers[i].symbol, symbol) &&
            (plan->buffers[i].cls == BUF_IO) == is_output)
            return &group->loop->places[i];
    cr_assert_fail("no buffer %s", symbol);
    return NULL;
}

static uint32_t buffer_of_out(const Planned *p, const Group *group, int64_t result) {
    for (uint32_t i = 0; i < group->n_outs; i++)
        if (attr_i(p->g, group->outs[i], A_RESULT, -1) == result)
            return p->plan->entries[group->entry].buffer_of[group->outs[i]];
    return 0;
}

Test(plan_loop, loops_compute_what_the_interpreter_does) {
    for (int gpu = 0; gpu < 2; gpu++)
        for (int reverse = 0; reverse < 2; reverse++)
            for (int64_t trips = 0; trips < 4; trips++) {
                Planned p = plan_graph(cell_graph(trips, reverse), gpu);
                plan_run_and_compare(&p, 1e-6);
                planned_free(&p);
            }
}

Test(plan_loop, one_launch_with_the_body_that_its_outs_need) {
    Planned p = plan_graph(cell_graph(5, false), false);
    Group *micro = loop_of(&p, ENTRY_MICRO), *eval = loop_of(&p, ENTRY_EVAL);
    cr_expect_eq(plan_count(&p, ENTRY_MICRO, GROUP_LOOP), 1);
    cr_expect_eq(micro->n_outs, 5);
    cr_expect_eq(eval->n_outs, 1);
    cr_expect_eq(eval->loop->body->entries[ENTRY_MICRO].n, 3, "h and n, for h reads n; y0");
    planned_free(&p);
}

Test(plan_loop, carries_lie_in_the_buffers_of_their_last_values) {
    Planned p = plan_graph(cell_graph(5, false), false);
    Group *micro = loop_of(&p, ENTRY_MICRO), *eval = loop_of(&p, ENTRY_EVAL);
    cr_expect_eq(place_of(micro, "c0", false)->buffer, buffer_of_out(&p, micro, 0));
    cr_expect_eq(place_of(micro, "c1", false)->buffer, buffer_of_out(&p, micro, 1));
    cr_expect_eq(place_of(micro, "c0", false)->stride, 0);
    cr_expect_eq(place_of(micro, "y1", true)->buffer, buffer_of_out(&p, micro, 3));
    cr_expect_eq(place_of(micro, "y1", true)->stride, 3 * 4 * 4);
    cr_expect_eq(place_of(eval, "c0", false)->is_bound, true);
    cr_expect_eq(p.plan->buffers[place_of(eval, "c0", false)->buffer - 1].symbol, NULL);
    planned_free(&p);
}

Test(plan_loop, a_reversed_loop_begins_at_the_last_slice) {
    Planned p = plan_graph(cell_graph(5, true), false);
    PlanPlace *x = place_of(loop_of(&p, ENTRY_MICRO), "x0", false);
    cr_expect_eq(x->offset, 4 * 48);
    cr_expect_eq(x->stride, -48);
    planned_free(&p);
}

Test(plan_loop, the_number_of_steps_changes_numbers_alone) {
    Planned few = plan_graph(cell_graph(3, false), false),
            many = plan_graph(cell_graph(3000, false), false);
    for (int e = 0; e < N_ENTRIES; e++)
        cr_expect_eq(plan_launches(&few, (EntryKind)e), plan_launches(&many, (EntryKind)e));
    cr_expect_eq(few.plan->n_buffers, many.plan->n_buffers);
    cr_expect_eq(few.g->n_nodes, many.g->n_nodes);
    Group *a = loop_of(&few, ENTRY_MICRO), *b = loop_of(&many, ENTRY_MICRO);
    cr_expect_eq(body_launches(a), body_launches(b));
    cr_expect_eq(group_flops(many.g, b), 1000 * group_flops(few.g, a));
    planned_free(&few);
    planned_free(&many);
}

/* ---- planted faults ---- */

typedef enum Fault {
    OTHER_STRIDE,
    OTHER_OFFSET,
    NO_PLACE,
    SWAPPED_CARRIES,
    NO_FIRST_VALUE,
    OTHER_FIRST_VALUE,
    OTHER_TRIPS,
    OTHER_WAY,
    ROOT_LEFT_OUT,
    ANOTHER_ROOT,
    SMALL_WORKSPACE,
    OWN_BYTES_ELSEWHERE,
    SMALL_RESULT,
    WORKSPACE_ON_AN_OPERAND,
    WORKSPACE_ON_A_RESULT,
    INNER_OUT_ELSEWHERE,
    N_FAULTS
} Fault;

static Buffer *inner_buffer(Group *l) {
    Plan *plan = (Plan *)(uintptr_t)l->loop->plan;
    for (uint32_t i = 0; i < plan->n_buffers; i++)
        if (!plan->buffers[i].symbol && plan->buffers[i].bytes) return &plan->buffers[i];
    cr_assert_fail("the body has no buffer of its own");
    return NULL;
}

static void plant(Planned *p, Group *l, Fault fault) {
    Entry *roots = &((Graph *)(uintptr_t)l->loop->body)->entries[ENTRY_MICRO];
    PlanPlace *c0 = place_of(l, "c0", false), *c1 = place_of(l, "c1", false);
    uint32_t x = place_of(l, "x0", false)->buffer, y = place_of(l, "y1", true)->buffer;
    switch (fault) {
    case OTHER_STRIDE:
        place_of(l, "x0", false)->stride += 4;
        break;
    case OTHER_OFFSET:
        place_of(l, "y1", true)->offset += 4;
        break;
    case NO_PLACE:
        place_of(l, "w0", false)->is_bound = false;
        break;
    case SWAPPED_CARRIES: {
        uint32_t keep = c0->buffer;
        c0->buffer = c1->buffer;
        c1->buffer = keep;
        break;
    }
    case NO_FIRST_VALUE:
        l->loop->n_inits--;
        break;
    case OTHER_FIRST_VALUE:
        l->loop->inits[0].nodes[0] = l->loop->inits[1].nodes[0];
        break;
    case OTHER_TRIPS:
        l->loop->trips++;
        break;
    case OTHER_WAY:
        l->loop->is_reverse = true;
        break;
    case ROOT_LEFT_OUT:
        roots->n--;
        break;
    case ANOTHER_ROOT:
        roots->roots[0].value = roots->roots[3].value;
        break;
    case SMALL_WORKSPACE:
        l->workspace_bytes -= 256;
        break;
    case OWN_BYTES_ELSEWHERE:
        l->loop->own_offset += 256;
        break;
    case SMALL_RESULT:
        p->plan->buffers[y - 1].bytes -= 256;
        break;
    case WORKSPACE_ON_AN_OPERAND:
        l->workspace_offset = p->plan->buffers[x - 1].offset;
        break;
    case WORKSPACE_ON_A_RESULT:
        l->workspace_offset = p->plan->buffers[y - 1].offset;
        break;
    case INNER_OUT_ELSEWHERE:
        inner_buffer(l)->offset = 0;
        break;
    case N_FAULTS:
        break;
    }
}

Test(plan_loop, the_checker_finds_planted_faults) {
    for (Fault fault = 0; fault < N_FAULTS; fault++) {
        Planned p = plan_graph(cell_graph(7, false), false);
        plant(&p, loop_of(&p, ENTRY_MICRO), fault);
        cr_expect(!plan_check(p.g, p.plan, NULL), "fault %d is not found", (int)fault);
        planned_free(&p);
    }
}
