/* Tests that LSTM, GRU, RNN, Scan and Loop compute what their specification says, step by step in
 * PyTorch, and have the gradients that PyTorch says: all directions, layouts, lengths, activations.
 * models/recurrent.onnx is written by tests/gradients/torch_recurrent.py, with results beside
 * outputs NAME.want and gradients beside NAME.grad; here the interpreter says the same in double.
 */
#include "import_helpers.h"
#include "known.h"
#include "passes.h"
#include "scan.h"

static Model recurrent(void) {
    return import_good((ImportOptions){.path = MODEL("recurrent"), DIMS({"batch", 1})});
}

Test(recurrent, results_are_those_of_the_specification) {
    Arena *arena = arena_new();
    Model m = recurrent();
    Known k = {m.graph, arena};
    cr_assert_geq(known_results(&k, 1e-6), 150);
    model_free(&m);
    arena_free(arena);
}

Test(recurrent, gradients_are_pytorchs) {
    Arena *arena = arena_new();
    Model m = recurrent();
    cr_assert_geq(known_gradients(m.graph, arena, 1e-6), 500);
    model_free(&m);
    arena_free(arena);
}

/* The loops of the entry, siblings counted once. */
static uint32_t n_loops(const Graph *g, EntryKind e, Arena *arena) {
    const bool *live = graph_reachable(g, arena, e);
    uint32_t n = 0;
    for (Value v = 1; v < g->n_nodes; v++) {
        bool is_first = live[v] && graph_op(g, v) == OP_scan;
        for (Value u = 1; u < v && is_first; u++)
            is_first = !live[u] || !scans_are_siblings(g, u, v);
        n += is_first;
    }
    return n;
}

static Model long_model(const char *name, int64_t steps) {
    return import_good((ImportOptions){.path = name, DIMS({"batch", 2}, {"sequence", steps})});
}

Test(recurrent, a_thousand_steps_are_one_body) {
    Arena *arena = arena_new();
    uint32_t n_nodes[2];
    for (int i = 0; i < 2; i++) {
        Model m = long_model(MODEL("recurrent_long"), i ? 1000 : 10);
        cr_expect_eq(n_loops(m.graph, ENTRY_EVAL, arena), 3);
        PassOptions o = {
            .ignore_index = -100, .fuel = -1, .batch = 2, .micro_batch = 2, .loss = "mse"};
        PassContext ctx = {.g = m.graph, .arena = arena, .options = &o, .log = stderr};
        cr_assert(passes_run(&ctx, "loss,simplify,match,autodiff,simplify"));
        cr_expect_eq(n_loops(ctx.g, ENTRY_MICRO, arena), 6, "forward and backward of each");
        n_nodes[i] = ctx.g->n_nodes;
        if (ctx.g != m.graph) graph_free(ctx.g);
        model_free(&m);
    }
    cr_expect_eq(n_nodes[0], n_nodes[1]);
    arena_free(arena);
}

Test(recurrent, both_walks_share_one_loop) {
    Model m = long_model(MODEL("recurrent_long"), 7);
    Arena *arena = arena_new();
    const Root *a = graph_root(m.graph, ENTRY_MICRO, false, "y"),
               *b = graph_root(m.graph, ENTRY_EVAL, false, "y");
    cr_expect_eq(a->value, b->value);
    arena_free(arena);
    model_free(&m);
}

Test(recurrent, a_list_that_grows_by_one_is_a_stack) {
    Arena *arena = arena_new();
    Model m = import_good((ImportOptions){.path = MODEL("recurrent_sequence"), DIMS({"batch", 1})});
    Known k = {m.graph, arena};
    cr_expect_eq(known_results(&k, 1e-12), 5);
    cr_expect_eq(n_loops(m.graph, ENTRY_EVAL, arena), 1);
    model_free(&m);
    arena_free(arena);
}

Test(recurrent, zeros_that_dynamo_folded_are_no_parameter) {
    Model m = import_good((ImportOptions){.path = MODEL("recurrent_lifted")});
    const State *zeros = graph_state(m.graph, "val_5");
    cr_expect(!zeros || !zeros->trains);
    cr_expect(graph_state(m.graph, "w")->trains && graph_state(m.graph, "r")->trains);
    model_free(&m);
}

/* Random numbers of a body differ from step to step, and backward sees those of forward. */
Test(recurrent, dropout_in_a_body_is_drawn_for_all_steps) {
    Model m = import_good((ImportOptions){.path = MODEL("recurrent_dropout"), DIMS({"batch", 2})});
    Graph *g = m.graph;
    Arena *arena = arena_new();
    const bool *live = graph_reachable(g, arena, ENTRY_MICRO);
    uint32_t n = 0;
    for (Value v = 1; v < g->n_nodes; v++)
        if (live[v] && graph_op(g, v) == OP_random) {
            cr_expect_eq(graph_type_at(g, v)->rank, 3);
            cr_expect_eq(graph_type_at(g, v)->dims[0], 5, "one draw for each of five steps");
            n++;
        }
    cr_expect_eq(n, 1);
    cr_expect_eq(n_loops(g, ENTRY_MICRO, arena), 1);
    arena_free(arena);
    model_free(&m);
}

Test(recurrent, what_cannot_be_is_refused_at_once_and_by_name) {
    import_bad((ImportOptions){.path = MODEL("recurrent_refused"), DIMS({"batch", 2})}, 4,
               STRINGS("'sideways' is not known", "'Odd' is not known", "2 functions, not 3",
                       "W is f32[1,8,3], not [1, 12, 3]", "sequence_lens is i64[3], not [2]",
                       "where the condition depends on the data",
                       "where the number of steps depends on the data", "more than 1024 steps",
                       "changes the type of what it carries", "scan inputs of 4 and 5 steps",
                       "num_scan_inputs", "Loop is not supported with running statistics",
                       "Scan is not supported with running statistics"));
}
