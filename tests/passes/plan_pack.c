/* Tests that a packed weight is a copy by value: made from the weight in init and apply, counted in
 * the plan, never the place where a kernel stores, and never read but by its product. */
#include "plan_run.h"
#include <criterion/criterion.h>
#include <string.h>

static uint64_t padded_bytes(const Graph *g, Value v, int which) {
    return which == 1 ? type_bytes(graph_type_at(g, graph_operand(g, v, 1))) + 1000 : 0;
}

/* y = relu(x w) w^T in micro; w = w - w * w in apply. */
static Graph *product_and_update(void) {
    Graph *g = graph_new("t");
    Value x = plan_input(g, "x", DT_F32, DIMS(4, 8)),
          w = plan_state(g, "w", STATE_PARAM, DT_F32, DIMS(8, 16));
    Value y =
        build_dot(g, build_unary(g, OP_relu, build_dot(g, x, w, false, false)), w, false, true);
    graph_add_root(g, ENTRY_MICRO, false, "y", y);
    graph_add_root(g, ENTRY_APPLY, true, "w",
                   build_binary(g, OP_sub, w, build_binary(g, OP_mul, w, w)));
    return g;
}

static Graph *packed(Graph *g, PassOptions *o) {
    PassContext ctx = {.g = g, .arena = arena_new(), .options = o, .log = stderr};
    cr_assert(passes_run(&ctx, "pack"));
    if (ctx.g != g) graph_free(g);
    arena_free(ctx.arena);
    return ctx.g;
}

static PassOptions options_of(PackMode mode) {
    PassOptions o = default_options();
    o.pack = mode;
    o.batch = o.micro_batch = 4;
    return o;
}

Test(plan_pack, a_copy_has_the_value_of_its_weight_and_products_stay_the_same) {
    PassOptions o = options_of(PACK_ALWAYS);
    Graph *plain = product_and_update(), *g = packed(product_and_update(), &o);
    Arena *arena = arena_new();
    Env e, f;
    env_init(&e, plain, arena);
    env_init(&f, g, arena);
    Tensor want = env_root(&e, plain, ENTRY_MICRO, false, "y");
    Tensor first = env_root(&f, g, ENTRY_INIT, true, "pack.w.0"),
           second = env_root(&f, g, ENTRY_INIT, true, "pack.w.1");
    *env_state(&f, "pack.w.0") = first;
    *env_state(&f, "pack.w.1") = second;
    Tensor got = env_root(&f, g, ENTRY_MICRO, false, "y");
    cr_expect_eq(memcmp(got.u.f, want.u.f, 4 * 8 * sizeof(double)), 0);
    Tensor w = env_root(&f, g, ENTRY_APPLY, true, "w"),
           copy = env_root(&f, g, ENTRY_APPLY, true, "pack.w.1");
    cr_expect_eq(memcmp(copy.u.f, w.u.f, 8 * 16 * sizeof(double)), 0);
    graph_free(plain), graph_free(g), arena_free(arena);
}

Test(plan_pack, copies_are_launches_of_their_own) {
    PassOptions o = options_of(PACK_ALWAYS);
    Planned p = plan_graph(packed(product_and_update(), &o), false);
    cr_expect_eq(plan_count(&p, ENTRY_INIT, GROUP_COPY), 2);
    cr_expect_eq(plan_count(&p, ENTRY_APPLY, GROUP_COPY), 2);
    cr_expect_eq(plan_launches(&p, ENTRY_APPLY), 3);
    cr_expect_eq(plan_count(&p, ENTRY_MICRO, GROUP_COPY), 0);
    plan_run_and_compare(&p, 1e-5);
    planned_free(&p);
}

Test(plan_pack, the_plan_holds_the_bytes_that_the_library_asks_for) {
    PassOptions o = options_of(PACK_ALWAYS);
    o.packed_bytes = padded_bytes;
    PassContext ctx = {
        .g = product_and_update(), .arena = arena_new(), .options = &o, .log = stderr};
    Graph *given = ctx.g;
    cr_assert(passes_run(&ctx, "pack,fuse,schedule,memplan"));
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < ctx.plan->n_buffers; i++)
        if (ctx.plan->buffers[i].symbol && !strncmp(ctx.plan->buffers[i].symbol, "pack.", 5))
            bytes += ctx.plan->buffers[i].bytes;
    cr_expect_eq(bytes, 2 * 1536); /* 8 * 16 * 4 + 1000, in whole 256 */
    cr_expect_eq(ctx.plan->bytes[BUF_WEIGHTS], 512 + bytes);
    graph_free(ctx.g), graph_free(given), arena_free(ctx.arena);
}

/* 256 x 1024 x 1024, launched once a step or 16 times. */
static uint32_t copies(PackMode mode, int64_t batch, bool trains, bool for_gpu) {
    Graph *g = graph_new("t");
    Value x = plan_input(g, "x", DT_F32, DIMS(256, 1024)),
          w = plan_state(g, "w", STATE_PARAM, DT_F32, DIMS(1024, 1024));
    graph_add_root(g, ENTRY_MICRO, false, "y", build_dot(g, x, w, false, false));
    if (trains) graph_add_root(g, ENTRY_APPLY, true, "w", build_unary(g, OP_neg, w));
    PassOptions o = options_of(mode);
    o.packed_bytes = padded_bytes;
    o.batch = batch, o.micro_batch = 256, o.for_gpu = for_gpu;
    g = packed(g, &o);
    uint32_t n = g->n_states - 1;
    graph_free(g);
    return n;
}

Test(plan_pack, is_done_where_the_copy_is_read_often_enough) {
    cr_expect_eq(copies(PACK_PAYS, 256, true, false), 0, "read once, made once");
    cr_expect_eq(copies(PACK_PAYS, 4096, true, false), 1);
    cr_expect_eq(copies(PACK_PAYS, 256, false, false), 1, "frozen: made once for all");
    cr_expect_eq(copies(PACK_ALWAYS, 256, true, false), 1);
    cr_expect_eq(copies(PACK_NEVER, 4096, true, false), 0);
    cr_expect_eq(copies(PACK_ALWAYS, 256, true, true), 0, "not for GPUs");
}

Test(plan_pack, the_checker_finds_who_reads_packed_bytes_by_himself) {
    Graph *g = graph_new("t");
    Value x = plan_input(g, "x", DT_F32, DIMS(8, 8)),
          w = plan_state(g, "w", STATE_PARAM, DT_F32, DIMS(8, 8));
    graph_add_root(g, ENTRY_MICRO, false, "y", build_binary(g, OP_add, x, w));
    Planned p = plan_graph(g, false);
    graph_state(g, "w")->cls = STATE_PACKED;
    cr_expect(!plan_check(g, p.plan, NULL), "a map");
    planned_free(&p);
    g = graph_new("t");
    w = plan_state(g, "w", STATE_PARAM, DT_F32, DIMS(8, 8));
    graph_add_root(g, ENTRY_MICRO, false, "y",
                   build_dot(g, w, plan_input(g, "x", DT_F32, DIMS(8, 8)), false, false));
    p = plan_graph(g, false);
    graph_state(g, "w")->cls = STATE_PACKED;
    cr_expect(!plan_check(g, p.plan, NULL), "operand a");
    planned_free(&p);
    g = graph_new("t");
    w = plan_state(g, "w", STATE_PARAM, DT_F32, DIMS(8, 8));
    graph_add_root(
        g, ENTRY_APPLY, true, "w",
        build_unary(g, OP_neg, build_unary(g, OP_exp, plan_input(g, "x", DT_F32, DIMS(8, 8)))));
    p = plan_graph(g, false);
    cr_assert_eq(plan_count(&p, ENTRY_APPLY, GROUP_COPY), 0);
    graph_state(g, "w")->cls = STATE_PACKED;
    cr_expect(!plan_check(g, p.plan, NULL), "a kernel writes it");
    planned_free(&p);
}
