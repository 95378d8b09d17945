/* executors.c - from an imported case to a planned graph and back to the values of its outputs. */
#include "executors.h"
#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static const char *guarded;

static void say_and_die(int number) {
    const ssize_t written = write(2, guarded, strlen(guarded));
    signal(number, SIG_DFL);
    if (written < 0 || write(2, " crashes\n", 9) < 0) _exit(1);
    raise(number);
}

void node_guard(const OnnxCase *c) {
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    guarded = c->listed->name;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) signal(numbers[i], say_and_die);
}

uint32_t node_open(const char *root, uint32_t first, uint32_t stride, Arena *arena,
                   OnnxCase **cases) {
    const CaseList list = onnx_cases(root, arena);
    uint32_t n = 0;
    *cases = arena_alloc(arena, (list.n / stride + 1) * sizeof **cases);
    for (uint32_t i = first; i < list.n; i += stride) {
        OnnxCase *c = &(*cases)[n];
        if (onnx_case_open(c, &list.items[i], arena) == CASE_PASSED)
            n++;
        else
            onnx_case_free(c);
    }
    return n;
}

/* The outputs of the case's entry become those of eval, nothing else is left. */
static void keep_one_entry(Graph *g, EntryKind entry) {
    Entry all = g->entries[entry];
    for (int e = 0; e < N_ENTRIES; e++) g->entries[e] = (Entry){0};
    for (uint32_t i = 0; i < all.n; i++)
        if (!all.roots[i].is_update)
            graph_add_root(g, ENTRY_EVAL, false, all.roots[i].name, all.roots[i].value);
}

Graph *node_graph(OnnxCase *c, bool for_gpu, Arena *arena) {
    PassOptions *options = arena_alloc(arena, sizeof *options);
    *options = (PassOptions){.ignore_index = -100,
                             .fuel = -1,
                             .for_gpu = for_gpu,
                             .forward_only = true,
                             .keep_outputs = true,
                             .batch = c->model.batch,
                             .micro_batch = c->model.micro_batch};
    PassContext ctx = {.g = c->model.graph, .arena = arena, .options = options, .log = stderr};
    keep_one_entry(ctx.g, c->entry);
    c->in_float = true;
    cr_assert(passes_run(&ctx, "simplify,match,expand,simplify"), "%s: a pass fails",
              c->listed->name);
    if (ctx.g != c->model.graph) graph_free(c->model.graph);
    c->model.graph = NULL;
    return ctx.g;
}

static const Tensor *value_of(OnnxCase *c, const Graph *g, const Buffer *b) {
    if (!b->symbol || b->cls == BUF_IO) return NULL;
    return b->cls == BUF_INPUTS ? onnx_case_input(c, b->symbol) : onnx_case_state(c, g, b->symbol);
}

void node_fill(OnnxCase *c, const Graph *g, const Plan *plan, unsigned char *memory) {
    for (uint32_t i = 0; i < plan->n_buffers; i++) {
        const Buffer *b = &plan->buffers[i];
        Tensor folded;
        const Tensor *t = value_of(c, g, b);
        if (b->constant) {
            cr_assert(interp_fold(g, b->constant, c->arena, &folded, 1 << 22));
            t = &folded;
        }
        if (t) tensor_to_bytes(t, memory + b->offset);
    }
}

const char *node_check(OnnxCase *c, const Graph *g, const Plan *plan, const unsigned char *memory) {
    Tensor values[MAX_CASE_TENSORS];
    const Tensor *got[MAX_CASE_TENSORS] = {0};
    for (uint32_t i = 0; i < c->n_outputs; i++)
        for (uint32_t k = 0; k < plan->n_buffers; k++) {
            const Buffer *b = &plan->buffers[k];
            const char *name = c->outputs[i].items[0].name;
            if (b->cls != BUF_IO || !b->symbol || strcmp(b->symbol, name)) continue;
            const Root *root = graph_root(g, ENTRY_EVAL, false, name);
            values[i] =
                tensor_from_bytes(c->arena, *graph_type_at(g, root->value), memory + b->offset);
            got[i] = &values[i];
        }
    return onnx_case_check(c, got);
}
