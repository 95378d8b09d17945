/* opt.c - the main of `trainc-opt`: runs any list of passes on a graph in text form and prints the
 * result.
 *
 * A reproducer that the pass manager wrote runs as it is: its first lines hold the pass list and
 * the options. */
#include "passes.h"
#include <stdlib.h>
#include <string.h>

static const char usage[] = "usage: trainc-opt [--passes=LIST] [--loss=KIND] [--optimizer=NAME] "
                            "[--batch=N] [--micro-batch=N] [--gpu] [--list] FILE.tir|-\n";

static char *read_all(Arena *a, FILE *f) {
    size_t n = 0, cap = 1 << 16;
    char *text = arena_alloc(a, cap);
    for (size_t got; (got = fread(text + n, 1, cap - n - 1, f)) > 0;) {
        n += got;
        if (cap - n > 1) continue;
        text = arena_grow(a, text, cap, 2 * cap);
        cap *= 2;
    }
    text[n] = 0;
    return text;
}

static int list_passes(void) {
    for (uint32_t i = 0; i < n_passes; i++)
        printf("%-12s %s\n", pass_info[i].name, pass_info[i].what);
    return 0;
}

static const char *value_of(const char *arg, const char *name) {
    size_t n = strlen(name);
    return !strncmp(arg, name, n) && arg[n] == '=' ? arg + n + 1 : NULL;
}

static bool take(const char *arg, PassOptions *o, const char **passes) {
    const char *v;
    if ((v = value_of(arg, "--passes")))
        *passes = v;
    else if ((v = value_of(arg, "--loss")))
        o->loss = v;
    else if ((v = value_of(arg, "--optimizer")))
        o->optimizer = v;
    else if ((v = value_of(arg, "--batch")))
        o->batch = strtoll(v, NULL, 10);
    else if ((v = value_of(arg, "--micro-batch")))
        o->micro_batch = strtoll(v, NULL, 10);
    else if (!strcmp(arg, "--gpu"))
        o->for_gpu = true;
    else
        return false;
    return true;
}

static int run(Arena *a, const char *path, const char *text, PassOptions *o, const char *passes) {
    Graph *g = graph_parse(text, path, stderr);
    if (!g) return 4;
    Plan plan = {0};
    PassContext ctx = {.g = g, .plan = &plan, .arena = a, .options = o, .log = stderr};
    bool ok = passes_run(&ctx, passes);
    diag_print(ctx.g, stderr);
    if (ok) graph_print(ctx.g, stdout);
    int status = ok ? 0 : diag_exit_status(ctx.g);
    if (ctx.g != g) graph_free(ctx.g);
    graph_free(g);
    return ok ? 0 : status ? status : 1;
}

int main(int argc, char **argv) {
    Arena *a = arena_new();
    const char *fuel = getenv("TRAINC_FUEL"), *passes = NULL, *path = NULL;
    PassOptions o = {
        .ignore_index = -100, .optimizer = "adamw", .fuel = fuel ? strtoll(fuel, NULL, 10) : -1};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--list")) return list_passes();
        if (argv[i][0] != '-' || !argv[i][1]) path = argv[i];
    }
    FILE *f = !path ? NULL : strcmp(path, "-") ? fopen(path, "r") : stdin;
    if (!f) {
        if (path) perror(path);
        fputs(usage, stderr);
        return path ? 5 : 2;
    }
    char *text = read_all(a, f);
    passes = passes_from_header(text, a, &o); /* the command line may override */
    for (int i = 1; i < argc; i++)
        if (argv[i] != path && !take(argv[i], &o, &passes)) {
            fprintf(stderr, "trainc-opt: %s?\n%s", argv[i], usage);
            return 2;
        }
    int status = run(a, path, text, &o, passes ? passes : "");
    arena_free(a);
    return status;
}
