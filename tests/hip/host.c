/* host.c - builds and runs HIP source on this machine: build_standin makes a library, its shim_run
 * is called in this process. */
#include "host.h"
#include "../fuzz/step_launches.h"
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int RunFn(const char *, const unsigned *, const unsigned *, void *const *, char *, size_t);
struct Host {
    void *library;
    RunFn *run;
};
enum { PAGE = 4096 };

const char *const host_archs[2] = {"gfx90a", "gfx1100"};
static char error[1024];

const char *host_error(void) { return error; }

const char *host_path(Arena *a, const char *name) {
    mkdir(BUILD_DIR "/hip_tests", 0777);
    return arena_printf(a, BUILD_DIR "/hip_tests/%d_%s", (int)getpid(), name);
}

void host_write(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs(text, f) >= 0 && !fclose(f), "cannot write %s", path);
}

char *host_prelude(Arena *a) {
    Text t = {.arena = a};
    target_hip_prelude(&t);
    return t.s;
}

Host *host_build(const char *source, const char *arch) {
    static int number;
    Arena *a = arena_new();
    const char *base = arena_printf(a, "%d_%s", number++, arch),
               *hip = host_path(a, arena_printf(a, "%s.hip", base)),
               *so = host_path(a, arena_printf(a, "%s.so", base));
    host_write(hip, source);
    const int status =
        system(arena_printf(a, SOURCE_DIR "/tests/hip_host/build_standin %s %s %s", hip, arch, so));
    cr_assert(status == 0, "the source does not compile for the host: %s", hip);
    Host *h = calloc(1, sizeof *h);
    h->library = dlopen(so, RTLD_NOW | RTLD_LOCAL);
    cr_assert(h->library, "%s", dlerror());
    void *run = dlsym(h->library, "shim_run");
    memcpy(&h->run, &run, sizeof run);
    unlink(hip);
    unlink(so);
    arena_free(a);
    return h;
}

void host_free(Host *h) {
    dlclose(h->library);
    free(h);
}

bool host_launch(Host *h, const char *kernel, LaunchShape s, void **args) {
    error[0] = 0;
    const int status = h->run(kernel, s.grid, s.block, args, error, sizeof error);
    if (status == 1) snprintf(error, sizeof error, "no kernel %s", kernel);
    return status == 0;
}

static size_t mapped_bytes(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE + PAGE; }

void *host_alloc(size_t bytes) {
    const size_t rounded = (bytes + 15) & ~(size_t)15, mapped = mapped_bytes(rounded);
    char *m = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(m != MAP_FAILED);
    memset(m, 0xff, mapped - PAGE);
    mprotect(m + mapped - PAGE, PAGE, PROT_NONE);
    return m + mapped - PAGE - rounded;
}

void host_release(void *p, size_t bytes) {
    const size_t rounded = (bytes + 15) & ~(size_t)15, mapped = mapped_bytes(rounded);
    munmap((char *)p + rounded + PAGE - mapped, mapped);
}

typedef union Slot {
    void *p;
    float f;
    int64_t i;
    int32_t i4;
} Slot;

static void fill_arg(const StepArg *a, const int64_t *turn, unsigned char *arena,
                     double (*scalar)(const char *), Slot *slot) {
    const int64_t at = (int64_t)a->offset + turn[0] * a->stride[0] + turn[1] * a->stride[1];
    if (!a->scalar)
        slot->p = arena + at;
    else if (!*a->scalar)
        slot->i = at;
    else if (a->dtype == DT_F32)
        slot->f = (float)scalar(a->scalar);
    else
        slot->i = (int64_t)scalar(a->scalar);
}

HostEntry host_print_entry(const Graph *g, const Plan *plan, EntryKind entry, const char *prefix,
                           Text *out) {
    StepTable *t = arena_alloc(out->arena, sizeof *t);
    *t = step_table_build(g, plan, true, out->arena);
    bool *is_used = arena_alloc(out->arena, t->n_kernels + 1);
    for (uint32_t i = 0; i < t->n_launches[entry]; i++)
        is_used[t->launches[entry][i].kernel] = true;
    for (uint32_t i = 0; i < t->n_kernels; i++) {
        StepKernel *k = &t->kernels[i];
        if (!is_used[i]) continue;
        k->name = arena_printf(out->arena, "%s_k%u", prefix, i);
        step_text_named(out, k->text, k->name);
    }
    return (HostEntry){t, entry};
}

static bool run_launch(Host *h, const StepTable *t, const StepLaunch *l, const int64_t *turn,
                       unsigned char *memory, double (*scalar)(const char *)) {
    void *args[256];
    Slot slots[256];
    for (uint32_t i = 0; i < l->n_args; i++) {
        args[i] = &slots[i];
        fill_arg(&t->args[l->first_arg + i], turn, memory, scalar, &slots[i]);
    }
    return host_launch(h, t->kernels[l->kernel].name, l->shape, args);
}

bool host_run_entry(Host *h, const HostEntry *e, unsigned char *memory,
                    double (*scalar)(const char *)) {
    const StepTable *table = e->table;
    const trainc_entry entry = step_launches(table, e->entry, table->arena);
    for (Turn t = {0}; device_next(&entry, &t);)
        if (!run_launch(h, table, &table->launches[e->entry][t.launch], t.turn, memory, scalar))
            return false;
    return true;
}
