/* Tests that random typed graphs, fused, lowered, printed as C and compiled, compute what the interpreter computes: the kernels of
 * hundreds of graphs in one translation unit. A fixed sample; TRAINC_FUZZ=first:count runs others. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../fuzz/gen.h"
#include "passes.h"
#include "step_table.h"

enum { PER_SOURCE = 100, SAMPLE = 300 };
typedef struct Case { uint64_t seed; Graph *g; const Plan *plan; StepTable table; } Case;
typedef void HostFn(void *const *);
static const EntryKind kinds[2] = {ENTRY_EVAL, ENTRY_MICRO};
static FuzzData data;
static InterpEnv interp;

static double scalar_of(const char *name)
{
    if (!strcmp(name, "seed")) return (double)interp.seed;
    if (!strcmp(name, "step")) return (double)interp.step;
    if (!strcmp(name, "micro")) return (double)interp.micro;
    return interp.scalar(interp.user, name);
}

static void make_case(Case *c, uint64_t seed, Text *out)
{
    *c = (Case){.seed = seed, .g = fuzz_graph(seed)};
    PassOptions options = {.ignore_index = -100, .fuel = -1};
    PassContext ctx = {.g = c->g, .arena = out->arena, .options = &options, .log = stderr};
    cr_assert(passes_run(&ctx, "expand,fuse,schedule,memplan"), "graph %d cannot be planned", (int)seed);
    c->g = ctx.g, c->plan = ctx.plan;
    c->table = step_table_build(c->g, c->plan, false, out->arena);
    for (uint32_t i = 0; i < c->table.n_kernels; i++) {
        c->table.kernels[i].name = arena_printf(out->arena, "g%d_%s", (int)seed, c->table.kernels[i].name);
        step_source_kernel(out, &c->table.kernels[i], "f");
    }
}

static void *build(const Text *source)
{
    char folder[] = "/tmp/trainc-fuzz-XXXXXX", command[512];
    cr_assert(mkdtemp(folder));
    snprintf(command, sizeof command, "%s/k.c", folder);
    FILE *f = fopen(command, "wb");
    cr_assert(f && fwrite(source->s, 1, source->n, f) == source->n && fclose(f) == 0);
    snprintf(command, sizeof command, "cd %s && ${CC:-gcc} -std=gnu17 -O1 -march=native -ftree-vectorize -fopenmp -fPIC -fno-math-errno -fno-trapping-math -w -shared k.c -o k.so", folder);
    cr_assert_eq(system(command), 0, "the kernels do not compile: %s/k.c", folder);
    snprintf(command, sizeof command, "%s/k.so", folder);
    void *lib = dlopen(command, RTLD_NOW);
    cr_assert(lib, "%s", dlerror());
    snprintf(command, sizeof command, "rm -r %s", folder);
    if (!getenv("TRAINC_FUZZ_KEEP")) cr_assert_eq(system(command), 0);
    return lib;
}

static void fill(const Graph *g, const Plan *plan, unsigned char *memory)
{
    memset(memory, 0xff, plan->arena_bytes);                 /* NaN: nothing may be read that was not written */
    for (uint32_t i = 0; i < plan->n_buffers; i++) {
        const Buffer *b = &plan->buffers[i];
        Tensor t;
        if (b->constant) {
            cr_assert(interp_fold(g, b->constant, data.arena, &t, 1 << 20));
            tensor_to_bytes(&t, memory + b->offset);
        } else if (b->symbol && (graph_input(g, b->symbol) || graph_state(g, b->symbol))) {
            t = fuzz_tensor(g, b->symbol, data.seed, data.arena);
            tensor_to_bytes(&t, memory + b->offset);
        }
    }
}

static void launch(const Case *c, void *lib, const StepLaunch *l, unsigned char *memory)
{
    void *args[128];
    union { float f; int64_t i; } values[128];
    for (uint32_t i = 0; i < l->n_args; i++) {
        const StepArg *a = &c->table.args[l->first_arg + i];
        args[i] = a->scalar ? (void *)&values[i] : memory + a->offset;
        if (!a->scalar) cr_assert(a->offset + a->bytes <= c->plan->arena_bytes);
        else if (a->dtype == DT_F32) values[i].f = (float)scalar_of(a->scalar);
        else values[i].i = (int64_t)scalar_of(a->scalar);
    }
    void *symbol = dlsym(lib, arena_printf(data.arena, "f_%s", c->table.kernels[l->kernel].name));
    HostFn *fn;
    memcpy(&fn, &symbol, sizeof fn);
    cr_assert(symbol);
    fn(args);
}

static bool has_small_floats(const Graph *g)
{
    for (Value v = 1; v < g->n_nodes; v++)
        if (graph_type_at(g, v)->dtype == DT_BF16 || graph_type_at(g, v)->dtype == DT_F16) return true;
    return false;
}

/* Where a root of the entry ends up: a state, or that entry's own output. */
static const Buffer *buffer_of_root(const Plan *plan, EntryKind entry, const Root *root)
{
    for (uint32_t i = 0; i < plan->n_buffers; i++) {
        const Buffer *b = &plan->buffers[i];
        bool is_output = b->cls == BUF_IO;
        if (b->symbol && !strcmp(b->symbol, root->name) && (root->is_update ? !is_output : is_output && b->entry == entry)) return b;
    }
    return NULL;
}

static bool equal(const Case *c, const Root *root, const Tensor *want, const unsigned char *bytes)
{
    const Tensor got = tensor_from_bytes(data.arena, want->type, bytes);
    const int64_t n = type_elems(&want->type);
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        if (dtype_info[want->type.dtype].cls != CLASS_FLT) {
            if (got.u.i[i] == want->u.i[i]) continue;
            fprintf(stderr, "graph %d: %s[%d] is %lld, not %lld\n", (int)c->seed, root->name, (int)i, (long long)got.u.i[i], (long long)want->u.i[i]);
            return false;
        }
        difference += (got.u.f[i] - want->u.f[i]) * (got.u.f[i] - want->u.f[i]);
        size += want->u.f[i] * want->u.f[i];
    }
    const double limit = has_small_floats(c->g) ? 3e-2 : 1e-5;
    if (sqrt(difference) <= limit * (sqrt(size) + sqrt((double)n) * 0.1)) return true;
    fprintf(stderr, "graph %d: %s is off by %.3g of %.3g\n", (int)c->seed, root->name, sqrt(difference), sqrt(size));
    return false;
}

static bool run_case(const Case *c, void *lib)
{
    bool ok = true;
    data = (FuzzData){c->g, c->seed + 1000, arena_new()};
    interp = fuzz_env(&data);
    for (int e = 0; e < 2; e++) {
        const Entry *entry = &c->g->entries[kinds[e]];
        Tensor *want = arena_alloc(data.arena, (entry->n + 1) * sizeof *want);
        cr_assert(interp_entry(c->g, kinds[e], &interp, data.arena, want, stderr));
        unsigned char *memory = aligned_alloc(256, c->plan->arena_bytes + 256 - c->plan->arena_bytes % 256);
        fill(c->g, c->plan, memory);
        for (uint32_t i = 0; i < c->table.n_launches[kinds[e]]; i++) launch(c, lib, &c->table.launches[kinds[e]][i], memory);
        for (uint32_t i = 0; i < entry->n; i++) {
            const Buffer *b = buffer_of_root(c->plan, kinds[e], &entry->roots[i]);
            cr_assert(b);
            ok = equal(c, &entry->roots[i], &want[i], memory + b->offset) && ok;
        }
        free(memory);
    }
    arena_free(data.arena);
    return ok;
}

static int run_batch(uint64_t first, int n)
{
    static Case cases[PER_SOURCE];
    Text source = {.arena = arena_new()};
    int wrong = 0;
    target_c_prelude(&source);
    for (int i = 0; i < n; i++) make_case(&cases[i], first + (uint64_t)i, &source);
    void *lib = build(&source);
    for (int i = 0; i < n; i++) wrong += !run_case(&cases[i], lib);
    dlclose(lib);
    for (int i = 0; i < n; i++) graph_free(cases[i].g);
    arena_free(source.arena);
    return wrong;
}

Test(fuzz, random_graphs_equal_the_interpreter)
{
    long long first = 1, count = SAMPLE;
    const char *given = getenv("TRAINC_FUZZ");
    int wrong = 0;
    if (given) sscanf(given, "%lld:%lld", &first, &count);
    for (; count > 0; first += PER_SOURCE, count -= PER_SOURCE) wrong += run_batch((uint64_t)first, count < PER_SOURCE ? (int)count : PER_SOURCE);
    cr_assert_eq(wrong, 0, "%d graphs differ", wrong);
}
