#include <criterion/criterion.h>
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "run.h"
#include "../fuzz/step_launches.h"

typedef void HostFn(void *const *);

void case_make(Case *c, Graph *g, const char *name, Text *out) {
    *c = (Case){.name = name, .g = g};
    PassOptions *options = arena_alloc(out->arena, sizeof *options);
    *options = (PassOptions){.ignore_index = -100, .fuel = -1};
    PassContext ctx = {.g = g, .arena = out->arena, .options = options, .log = stderr};
    cr_assert(passes_run(&ctx, "expand,fuse,schedule,memplan"), "graph %s cannot be planned", name);
    if (ctx.g != g) graph_free(g);
    c->g = ctx.g, c->plan = ctx.plan;
    c->table = step_table_build(c->g, c->plan, false, out->arena);
    for (uint32_t i = 0; i < c->table.n_kernels; i++) {
        c->table.kernels[i].name =
            arena_printf(out->arena, "%s_%s", name, c->table.kernels[i].name);
        step_source_kernel(out, &c->table.kernels[i], "f");
    }
}

void *cases_build(const Text *source) { return cases_build_at(source, "-O1"); }

void *cases_build_at(const Text *source, const char *level) {
    char folder[] = "/tmp/trainc-codegen-XXXXXX", command[512];
    cr_assert(mkdtemp(folder));
    snprintf(command, sizeof command, "%s/k.c", folder);
    FILE *f = fopen(command, "wb");
    cr_assert(f && fwrite(source->s, 1, source->n, f) == source->n && fclose(f) == 0);
    snprintf(command, sizeof command,
             "cd %s && ${CC:-gcc} -std=gnu17 %s -march=native -ftree-vectorize -fopenmp -fPIC "
             "-fno-math-errno -fno-trapping-math -w -shared k.c -o k.so",
             folder, level);
    cr_assert_eq(system(command), 0, "the kernels do not compile: %s/k.c", folder);
    snprintf(command, sizeof command, "%s/k.so", folder);
    void *lib = dlopen(command, RTLD_NOW | RTLD_NODELETE); /* OpenMP's threads outlive a dlclose */
    cr_assert(lib, "%s", dlerror());
    snprintf(command, sizeof command, "rm -r %s", folder);
    if (!getenv("TRAINC_FUZZ_KEEP")) cr_assert_eq(system(command), 0);
    return lib;
}

unsigned char *case_memory(const Case *c, FuzzData *data) {
    const uint64_t bytes = (c->plan->arena_bytes / 256 + 1) * 256;
    unsigned char *memory = aligned_alloc(256, bytes);
    memset(memory, 0xff, bytes); /* nothing may be read that was not written */
    for (uint32_t i = 0; i < c->plan->n_buffers; i++) {
        const Buffer *b = &c->plan->buffers[i];
        Tensor t;
        if (b->constant)
            cr_assert(interp_fold(c->g, b->constant, data->arena, &t, 1 << 20));
        else if (b->symbol && b->cls != BUF_IO)
            t = fuzz_tensor(c->g, b->symbol, data->seed, data->arena);
        else
            continue;
        tensor_to_bytes(&t, memory + b->offset);
    }
    return memory;
}

static double scalar_of(const InterpEnv *env, const char *name) {
    if (!strcmp(name, "seed")) return (double)env->seed;
    if (!strcmp(name, "step")) return (double)env->step;
    if (!strcmp(name, "micro")) return (double)env->micro;
    return env->scalar(env->user, name);
}

static void call(void *lib, const char *name, void *const *args) {
    void *symbol = dlsym(lib, name);
    HostFn *fn;
    memcpy(&fn, &symbol, sizeof fn);
    cr_assert(symbol, "%s", name);
    fn(args);
}

/* What a library would do: the raw product of a tile to the param that the description names. */
static void plain_product(const Kernel *k, int d, void *const *args) {
    const Tile *t = &k->tile;
    const float *a = (const float *)args[t->a] + t->a_offset,
                *b = (const float *)args[t->b] + t->b_offset;
    for (int64_t batch = 0; batch < t->batch; batch++)
        for (int64_t i = 0; i < t->m; i++)
            for (int64_t j = 0; j < t->n; j++) {
                double sum = 0;
                for (int64_t p = 0; p < t->k; p++)
                    sum += (double)a[batch * t->a_batch + i * t->a_m + p * t->a_k] *
                           (double)b[batch * t->b_batch + p * t->b_k + j * t->b_n];
                ((float *)args[d])[(batch * t->m + i) * t->n + j] = (float)sum;
            }
}

int target_c_library_param(const Graph *, const Kernel *);

static void launch(const Case *c, void *lib, const StepLaunch *l, const int64_t *turn,
                   const InterpEnv *env, unsigned char *memory, bool library) {
    void *args[128];
    union {
        float f;
        int64_t i;
    } values[128];
    char name[160];
    const StepKernel *k = &c->table.kernels[l->kernel];
    for (uint32_t i = 0; i < l->n_args; i++) {
        const StepArg *a = &c->table.args[l->first_arg + i];
        const int64_t at = (int64_t)a->offset + turn[0] * a->stride[0] + turn[1] * a->stride[1];
        args[i] = a->scalar ? (void *)&values[i] : memory + at;
        if (!a->scalar)
            cr_assert(at >= 0 && (uint64_t)at + a->bytes <= c->plan->arena_bytes);
        else if (!*a->scalar)
            values[i].i = at;
        else if (a->dtype == DT_F32)
            values[i].f = (float)scalar_of(env, a->scalar);
        else
            values[i].i = (int64_t)scalar_of(env, a->scalar);
    }
    snprintf(name, sizeof name, "f_%s", k->name);
    if (!library || !k->contraction || k->k->form != FORM_TILE) {
        call(lib, name, args);
        return;
    }
    plain_product(k->k, target_c_library_param(c->g, k->k), args);
    snprintf(name, sizeof name, "f_%s_epilogue", k->name);
    if (k->epilogue) call(lib, name, args);
}

void case_run(const Case *c, void *lib, EntryKind e, const InterpEnv *env, unsigned char *memory,
              bool library) {
    const trainc_entry entry = step_launches(&c->table, e, c->table.arena);
    for (Turn t = {0}; device_next(&entry, &t);)
        launch(c, lib, &c->table.launches[e][t.launch], t.turn, env, memory, library);
}

const Buffer *case_root(const Case *c, EntryKind entry, const Root *root) {
    for (uint32_t i = 0; i < c->plan->n_buffers; i++) {
        const Buffer *b = &c->plan->buffers[i];
        bool is_output = b->cls == BUF_IO;
        if (b->symbol && !strcmp(b->symbol, root->name) &&
            (root->is_update ? !is_output : is_output && b->entry == entry))
            return b;
    }
    return NULL;
}

bool case_equal(const Case *c, EntryKind e, FuzzData *data, const InterpEnv *env,
                const unsigned char *memory, double tolerance) {
    const Entry *entry = &c->g->entries[e];
    Tensor *want = arena_alloc(data->arena, (entry->n + 1) * sizeof *want);
    bool ok = true;
    cr_assert(interp_entry(c->g, e, env, data->arena, want, stderr));
    for (uint32_t i = 0; i < entry->n; i++) {
        const Buffer *b = case_root(c, e, &entry->roots[i]);
        cr_assert(b);
        const Tensor got = tensor_from_bytes(data->arena, want[i].type, memory + b->offset);
        char why[96];
        if (fuzz_agrees(&want[i], &got, tolerance, why)) continue;
        fprintf(stderr, "graph %s: %s %s\n", c->name, entry->roots[i].name, why);
        ok = false;
    }
    return ok;
}
