/* Tests that states change in place where they may and by a copy where not, that the arena is no
 * larger than it must be, and that the checker finds planted faults. */
#include "plan_run.h"
#include <criterion/criterion.h>
#include <string.h>

static Value scalar_like(Graph *g, const char *name, Value like) {
    const Type *t = graph_type_at(g, like);
    return build_expand(g, build_scalar(g, name, DT_F32), t->rank, t->dims);
}

static Value times(Graph *g, Value a, Value b) { return build_binary(g, OP_mul, a, b); }

/* m, v, w of one parameter, as the rows of optimizer.def say it. */
static void adam_update(Graph *g, const char *w_name, const char *m_name, const char *v_name,
                        const char *g_name) {
    Value w = plan_state(g, w_name, STATE_PARAM, DT_F32, DIMS(16, 8)),
          m = plan_state(g, m_name, STATE_OPTIMIZER, DT_F32, DIMS(16, 8));
    Value v = plan_state(g, v_name, STATE_OPTIMIZER, DT_F32, DIMS(16, 8)),
          d = plan_state(g, g_name, STATE_GRADIENT, DT_F32, DIMS(16, 8));
    Value b1 = scalar_like(g, "beta1", w), b2 = scalar_like(g, "beta2", w);
    m = build_binary(g, OP_add, times(g, b1, m), d);
    v = build_binary(g, OP_add, times(g, b2, v), times(g, d, d));
    Value step =
        build_binary(g, OP_div, m,
                     build_binary(g, OP_add, build_unary(g, OP_sqrt, v), scalar_like(g, "eps", w)));
    graph_add_root(g, ENTRY_APPLY, true, m_name, m);
    graph_add_root(g, ENTRY_APPLY, true, v_name, v);
    graph_add_root(g, ENTRY_APPLY, true, w_name,
                   build_binary(g, OP_sub, w, times(g, scalar_like(g, "lr", w), step)));
}

Test(plan_memory, adam_is_one_kernel_per_parameter_and_in_place) {
    Graph *g = graph_new("t");
    adam_update(g, "w", "m.w", "v.w", "grad.w");
    adam_update(g, "u", "m.u", "v.u", "grad.u");
    Planned p = plan_graph(g, false);
    cr_expect_eq(plan_launches(&p, ENTRY_APPLY), 2);
    cr_expect_eq(p.plan->arena_bytes, 8 * 512, "nothing but the states");
    cr_expect_eq(p.plan->bytes[BUF_OPTIMIZER], 4 * 512);
    plan_run_and_compare(&p, 1e-5);
    planned_free(&p);
}

Test(plan_memory, an_update_that_reads_other_elements_of_the_state_is_copied_at_the_end) {
    Graph *g = graph_new("t");
    Value w = plan_state(g, "w", STATE_PARAM, DT_F32, DIMS(8, 8));
    graph_add_root(g, ENTRY_APPLY, true, "w",
                   build_binary(g, OP_add, w, build_transpose(g, w, (int64_t[]){1, 0})));
    Planned p = plan_graph(g, false);
    cr_expect_eq(plan_count(&p, ENTRY_APPLY, GROUP_COPY), 1);
    plan_run_and_compare(&p, 1e-6);
    planned_free(&p);
}

Test(plan_memory, readers_of_a_state_run_before_it_is_overwritten) {
    Graph *g = graph_new("t");
    Value w = plan_state(g, "w", STATE_PARAM, DT_F32, DIMS(8, 8)),
          x = plan_input(g, "x", DT_F32, DIMS(8, 8));
    graph_add_root(g, ENTRY_APPLY, true, "w", build_binary(g, OP_add, w, x));
    graph_add_root(g, ENTRY_APPLY, false, "y", build_dot(g, x, w, false, false));
    Planned p = plan_graph(g, false);
    cr_expect_eq(plan_count(&p, ENTRY_APPLY, GROUP_COPY), 0);
    cr_expect_eq(p.plan->groups[p.plan->entries[ENTRY_APPLY].order[0]].kind, GROUP_CONTRACT);
    plan_run_and_compare(&p, 1e-5);
    planned_free(&p);
}

Test(plan_memory, a_reader_that_needs_the_new_value_forces_a_copy) {
    Graph *g = graph_new("t"); /* y = (w + x) . w : the product reads old and new w */
    Value w = plan_state(g, "w", STATE_PARAM, DT_F32, DIMS(8, 8)),
          x = plan_input(g, "x", DT_F32, DIMS(8, 8));
    Value next = build_binary(g, OP_add, w, x);
    graph_add_root(g, ENTRY_APPLY, true, "w", next);
    graph_add_root(g, ENTRY_APPLY, false, "y", build_dot(g, next, w, false, false));
    Planned p = plan_graph(g, false);
    cr_expect_eq(plan_count(&p, ENTRY_APPLY, GROUP_COPY), 1);
    plan_run_and_compare(&p, 1e-5);
    planned_free(&p);
}

Test(plan_memory, two_roots_on_one_value_and_roots_on_leaves_and_views) {
    Graph *g = graph_new("t");
    Value x = plan_input(g, "x", DT_F32, DIMS(4, 6)),
          w = plan_state(g, "w", STATE_PARAM, DT_F32, DIMS(4, 6));
    Value y = build_unary(g, OP_exp, x);
    graph_add_root(g, ENTRY_EVAL, false, "y", y);
    graph_add_root(g, ENTRY_EVAL, false, "again", y);
    graph_add_root(g, ENTRY_EVAL, false, "input", x);
    graph_add_root(g, ENTRY_EVAL, false, "weight", w);
    graph_add_root(g, ENTRY_EVAL, false, "turned", build_transpose(g, y, (int64_t[]){1, 0}));
    graph_add_root(g, ENTRY_EVAL, false, "two", build_splat(g, graph_node(g, x)->type, 2));
    graph_add_root(g, ENTRY_EVAL, true, "w", w);
    Planned p = plan_graph(g, false);
    plan_run_and_compare(&p, 1e-6);
    planned_free(&p);
}

Test(plan_memory, accumulation_reads_the_state_behind_the_product_on_a_cpu_and_in_it_on_a_gpu) {
    for (int gpu = 0; gpu < 2; gpu++) {
        Graph *g = graph_new("t");
        Value x = plan_input(g, "x", DT_F32, DIMS(32, 8)),
              dy = plan_input(g, "dy", DT_F32, DIMS(32, 16));
        Value old = plan_state(g, "grad.w", STATE_GRADIENT, DT_F32, DIMS(8, 16)),
              dw = build_dot(g, x, dy, true, false);
        graph_add_root(g, ENTRY_MICRO, true, "grad.w", build_binary(g, OP_add, old, dw));
        Planned p = plan_graph(g, gpu);
        cr_expect_eq(plan_launches(&p, ENTRY_MICRO), gpu ? 1 : 2);
        plan_run_and_compare(&p, 1e-5);
        planned_free(&p);
    }
}

Test(plan_memory, two_states_change_places) {
    Graph *g = graph_new("t");
    Value a = plan_state(g, "a", STATE_PARAM, DT_F32, DIMS(4, 6)),
          b = plan_state(g, "b", STATE_PARAM, DT_F32, DIMS(4, 6));
    graph_add_root(g, ENTRY_APPLY, true, "a", b);
    graph_add_root(g, ENTRY_APPLY, true, "b", a);
    Planned p = plan_graph(g, false);
    plan_run_and_compare(&p, 0);
    planned_free(&p);
}

/* A chain of products: each needs its operand and its result, so the bound is two neighbours. */
static Graph *chain(void) {
    Graph *g = graph_new("t");
    Value x = plan_input(g, "x", DT_F32, DIMS(16, 16)),
          w = plan_input(g, "w", DT_F32, DIMS(16, 16));
    for (int i = 0; i < 6; i++) x = build_dot(g, x, w, false, false);
    graph_add_root(g, ENTRY_EVAL, false, "y", x);
    return g;
}

Test(plan_memory, a_chain_needs_two_buffers) {
    Planned p = plan_graph(chain(), false);
    cr_expect_eq(p.plan->arena_bytes, p.plan->lower_bound_bytes);
    cr_expect_eq(p.plan->bytes[BUF_ACTIVATIONS], 2 * 1024);
    cr_expect_eq(p.plan->total_flops, 0, "eval is no part of a step");
    plan_run_and_compare(&p, 1e-5);
    planned_free(&p);
}

Test(plan_memory, a_dying_operand_gives_its_buffer_to_a_map) {
    Graph *g = graph_new("t");
    Value x = plan_input(g, "x", DT_F32, DIMS(16, 16)),
          w = plan_input(g, "w", DT_F32, DIMS(16, 16));
    Value h = build_dot(g, x, w, false, false);
    Value turned = build_unary(
        g, OP_exp, build_binary(g, OP_add, h, build_reduce(g, OP_sum, h, (int64_t[]){0}, 1)));
    graph_add_root(g, ENTRY_EVAL, false, "y", build_dot(g, turned, w, false, false));
    Planned p = plan_graph(g, false);
    cr_expect_eq(p.plan->bytes[BUF_ACTIVATIONS], 1024 + 256);
    plan_run_and_compare(&p, 1e-5);
    planned_free(&p);
}

static uint64_t scratch_of_512(const Graph *g, Value v) { return (void)g, (void)v, 512; }

Test(plan_memory, library_scratch_lies_apart_from_what_the_launch_touches) {
    Graph *g = chain();
    PassOptions options = default_options();
    options.scratch_bytes = scratch_of_512;
    PassContext ctx = {.g = g, .arena = arena_new(), .options = &options, .log = stderr};
    cr_assert(pass_fuse(&ctx) && pass_schedule(&ctx) && pass_memplan(&ctx));
    cr_expect(plan_check(g, ctx.plan, stderr));
    cr_expect_eq(ctx.plan->bytes[BUF_WORKSPACE], 512);
    cr_expect_eq(ctx.plan->bytes[BUF_ACTIVATIONS] + ctx.plan->bytes[BUF_WORKSPACE], 2 * 1024 + 512);
    arena_free(ctx.arena);
    graph_free(g);
}

/* ---- planted faults ---- */

static bool found(const Planned *p, const char *what) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    bool sound = plan_check(p->g, p->plan, f);
    fclose(f);
    bool named = strstr(text, what) != NULL;
    if (!named) fprintf(stderr, "said: %s\n", text);
    free(text);
    return !sound && named;
}

Test(plan_check, finds_a_launch_before_its_operands) {
    Planned p = plan_graph(chain(), false);
    uint32_t *order = p.plan->entries[ENTRY_EVAL].order, t = order[1];
    order[1] = order[2];
    order[2] = t;
    cr_expect(found(&p, "is read, but its bytes are"));
    planned_free(&p);
}

Test(plan_check, finds_buffers_that_overlap_while_both_are_needed) {
    Planned p = plan_graph(chain(), false);
    uint64_t at = UINT64_MAX;
    for (uint32_t i = 0; i < p.plan->n_buffers; i++) {
        Buffer *b = &p.plan->buffers[i];
        if (b->symbol) continue;
        if (at == UINT64_MAX) at = b->offset;
        b->offset = at;
    }
    cr_expect(found(&p, "is overwritten by the launch that reads it"));
    planned_free(&p);
}

Test(plan_check, finds_a_lost_state) {
    Graph *g = graph_new("t");
    adam_update(g, "w", "m.w", "v.w", "grad.w");
    Planned p = plan_graph(g, false);
    EntryPlan *e = &p.plan->entries[ENTRY_APPLY];
    Value w = graph_root(g, ENTRY_APPLY, true, "w")->value,
          m = graph_root(g, ENTRY_APPLY, true, "m.w")->value;
    uint32_t t = e->out_buffer_of[w];
    e->out_buffer_of[w] = e->buffer_of[w] = e->out_buffer_of[m];
    e->out_buffer_of[m] = e->buffer_of[m] = t;
    cr_expect(found(&p, "is written by no root of that name"));
    planned_free(&p);
}

Test(plan_check, finds_a_group_of_no_legal_form) {
    Planned p = plan_graph(chain(), false);
    p.plan->groups[0].kind = GROUP_MAP;
    cr_expect(found(&p, "wrong anchor"));
    planned_free(&p);
}

Test(plan_check, finds_a_value_that_no_group_makes) {
    Planned p = plan_graph(chain(), false);
    p.plan->entries[ENTRY_EVAL].n--;
    cr_expect(found(&p, "does not lie in its buffer"));
    planned_free(&p);
}

Test(plan_check, finds_a_buffer_outside_the_arena) {
    Planned p = plan_graph(chain(), false);
    p.plan->arena_bytes -= 256;
    cr_expect(found(&p, "outside the arena"));
    planned_free(&p);
}
