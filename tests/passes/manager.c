/* Tests that the pass manager limits rewrites to its fuel, dumps after each pass, proves what
 * passes claim, and writes a reproducer on a fault of ours. */
#include "env.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char text[] = "graph small\nstate w : f32[3] param trains\n%1 = state : f32[3] "
                           "name=w\n%2 = neg %1\n%3 = neg %2\n%4 = neg %3\n%5 = neg %4\n"
                           "%6 = sum %5 axes=[0]\n%7 = reshape %6 : f32[]\nentry micro\noutput "
                           "loss = %7\nentry eval\noutput loss = %7\n";

static uint32_t count(const Graph *g, OpCode op) {
    uint32_t n = 0;
    for (Value v = 1; v < g->n_nodes; v++) n += graph_op(g, v) == op;
    return n;
}

static uint32_t negs_left(int64_t fuel) {
    Arena *a = arena_new();
    Graph *g = parse_or_fail(text, "small");
    PassOptions options = default_options();
    options.fuel = fuel;
    PassContext ctx = {.g = g, .arena = a, .options = &options, .log = stderr};
    cr_assert(passes_run(&ctx, "simplify"));
    uint32_t n = count(ctx.g, OP_neg);
    graph_free(ctx.g);
    graph_free(g);
    arena_free(a);
    return n;
}

Test(manager, fuel_limits_rewrites) {
    cr_assert(negs_left(0) == 4);
    cr_assert(negs_left(1) == 2);
    cr_assert(negs_left(-1) == 0);
}

Test(manager, dumps_after_each_pass_and_the_dump_parses) {
    Arena *a = arena_new();
    char dir[] = "/tmp/trainc-passes-XXXXXX";
    cr_assert(mkdtemp(dir));
    Graph *g = parse_or_fail(text, "small");
    PassOptions options = default_options();
    options.dump_dir = dir;
    options.loss = "output";
    PassContext ctx = {.g = g, .arena = a, .options = &options, .log = stderr};
    cr_assert(passes_run(&ctx, "loss,simplify,autodiff"));
    const char *names[] = {"01_loss", "02_simplify", "03_autodiff"};
    for (int i = 0; i < 3; i++) {
        char path[256], dumped[8192];
        snprintf(path, sizeof path, "%s/%s.tir", dir, names[i]);
        FILE *f = fopen(path, "r");
        cr_assert(f, "%s", path);
        size_t n = fread(dumped, 1, sizeof dumped - 1, f);
        dumped[n] = 0;
        fclose(f);
        unlink(path);
        graph_free(parse_or_fail(dumped, path));
    }
    rmdir(dir);
    graph_free(ctx.g);
    graph_free(g);
    arena_free(a);
}

Test(manager, writes_a_reproducer_that_says_how_to_run_it) {
    Arena *a = arena_new();
    char dir[] = "/tmp/trainc-passes-XXXXXX", repro[8192];
    cr_assert(mkdtemp(dir) && !chdir(dir));
    Graph *g = parse_or_fail(text, "small");
    g->nodes[2].type =
        graph_type_of(g, DT_I64, 1, (int64_t[]){3}); /* a fault that no pass would make */
    PassOptions options = default_options();
    options.loss = "output";
    options.batch = 6;
    PassContext ctx = {.g = g, .arena = a, .options = &options, .log = NULL};
    cr_assert(!passes_run(&ctx, "loss"));
    FILE *f = fopen("trainc-repro-loss.tir", "r");
    cr_assert(f);
    size_t n = fread(repro, 1, sizeof repro - 1, f);
    repro[n] = 0;
    fclose(f);
    unlink("trainc-repro-loss.tir");
    rmdir(dir);
    PassOptions again = default_options();
    const char *names = passes_from_header(repro, a, &again);
    cr_assert_str_eq(names, "loss");
    cr_assert_str_eq(again.loss, "output");
    cr_assert(again.batch == 6);
    cr_assert(!strstr(repro, "static_count"), "the graph is the one that the pass was given");
    graph_free(g);
    arena_free(a);
}

Test(manager, refuses_an_unknown_pass) {
    Arena *a = arena_new();
    Graph *g = parse_or_fail(text, "small");
    PassOptions options = default_options();
    PassContext ctx = {.g = g, .arena = a, .options = &options};
    cr_assert(!passes_run(&ctx, "simplyfy") && diag_exit_status(ctx.g) == 2);
    graph_free(g);
    arena_free(a);
}
