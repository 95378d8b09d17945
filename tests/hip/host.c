/* host.c - builds and runs HIP source on this machine: build_standin makes a library, its shim_run
 * is called in this process. */
#include "host.h"
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

static void fill_args(const Kernel *k, const Plan *plan, const Group *group, unsigned char *arena,
                      double (*scalar)(const char *), Slot *slots, void **args) {
    for (uint32_t i = 0; i < k->n_params; i++) {
        const Param *p = &k->params[i];
        args[i] = &slots[i];
        if (!p->is_scalar)
            slots[i].p = arena + (p->is_workspace ? group->workspace_offset
                                                  : plan->buffers[p->buffer - 1].offset);
        else if (!*p->scalar)
            slots[i].i = p->constant;
        else if (p->dtype == DT_F32)
            slots[i].f = (float)scalar(p->scalar);
        else
            slots[i].i = (int64_t)scalar(p->scalar);
    }
}

HostEntry host_print_entry(const Graph *g, const Plan *plan, EntryKind entry, const char *prefix,
                           Text *out) {
    const EntryPlan *e = &plan->entries[entry];
    HostEntry h = {plan, e, arena_alloc(out->arena, (e->n + 1) * sizeof(Kernel *))};
    for (uint32_t i = 0; i < e->n; i++) {
        h.kernels[i] = kernel_lower(g, plan, e->order[i], true, out->arena);
        h.kernels[i]->name = arena_printf(out->arena, "%s_k%u", prefix, i);
        target_hip_kernel(g, h.kernels[i], out);
    }
    return h;
}

bool host_run_entry(Host *h, const HostEntry *e, unsigned char *memory,
                    double (*scalar)(const char *)) {
    for (uint32_t i = 0; i < e->order->n; i++) {
        void *args[256];
        Slot slots[256];
        fill_args(e->kernels[i], e->plan, &e->plan->groups[e->order->order[i]], memory, scalar,
                  slots, args);
        if (!host_launch(h, e->kernels[i]->name, target_hip_launch(e->kernels[i]), args))
            return false;
    }
    return true;
}
