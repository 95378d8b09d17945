/* cpu_device.c - the host as a device: one mapped arena, kernels called with pointers into it,
 * contractions through oneDNN.
 *
 * open resolves every argument of every launch to a pointer, makes the library primitive of each
 * contraction, and lays their scratch into the launch's own scratch buffer or, where that is too
 * small or absent, into one shared block beside the arena (launches run one after another, so one
 * block serves all; it is counted in reserved_bytes). run is then a loop over the table. OpenMP is
 * looked up where it is already loaded: generated code may have been built without it. */
#include "cpu_dnnl.h"
#include "device.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct CpuCall { /* the library first, then fn where not NULL, then a plain copy of args[0]
                            to args[1] */
    trainc_host_fn *fn;
    void *const *args;
    OnednnCall *library;
    uint64_t copy_bytes;
} CpuCall;
typedef struct CpuDevice {
    Device base;
    const trainc_plan *plan;
    char *arena;
    uint64_t mapped_bytes;
    void *scratch;    /* shared block beside the arena */
    void **args;      /* by argument number; in a loop they move */
    int64_t *numbers; /* likewise, of those that hold one */
    CpuCall *calls[N_ENTRIES_OF];
    Onednn *onednn;
} CpuDevice;

static void cpu_close(Device *base) {
    CpuDevice *d = (CpuDevice *)base;
    for (int e = 0; e < N_ENTRIES_OF; e++) {
        for (uint32_t i = 0; d->calls[e] && i < d->plan->entries[e].n; i++)
            onednn_call_free(d->calls[e][i].library);
        free(d->calls[e]);
    }
    onednn_close(d->onednn);
    if (d->arena) munmap(d->arena, d->mapped_bytes);
    free(d->scratch);
    free(d->args);
    free(d->numbers);
    free(d);
}

static void set_threads(int threads) {
    static const char *const where[] = {NULL, "libgomp.so.1", "libomp.so.5", "libomp.so",
                                        "libiomp5.so"};
    void (*set)(int);
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        void *h = where[i] ? dlopen(where[i], RTLD_NOW | RTLD_NOLOAD) : RTLD_DEFAULT;
        if (where[i] && !h) continue;
        void *p = dlsym(h, "omp_set_num_threads");
        if (p) {
            memcpy(&set, &p, sizeof set);
            set(threads);
        }
        if (where[i]) dlclose(h);
    }
}

static void *argument(CpuDevice *d, uint32_t i, ScalarValue *scalars) {
    const trainc_arg *a = &d->plan->args[i];
    return a->scalar ? scalar_address(a, scalars, &d->numbers[i]) : d->arena + a->offset;
}

/* Own loops where there is no library call, or what the library leaves to do. */
static trainc_status prepare_call(CpuDevice *d, const trainc_launch *l, CpuCall *c, Fail *f) {
    const trainc_kernel *k = &d->plan->kernels[l->kernel];
    c->args = d->args + l->first_arg;
    c->fn = k->host;
    if (k->contraction && d->onednn)
        c->library = onednn_prepare(d->onednn, k->contraction, k->is_pack, c->args);
    if (c->library) c->fn = k->is_pack ? NULL : k->host_epilogue;
    if (!c->library && !c->fn &&
        k->is_pack) { /* whoever reads it has no library either, and reads it plain */
        const trainc_arg *a = &d->plan->args[l->first_arg];
        c->copy_bytes = a[0].bytes < a[1].bytes ? a[0].bytes : a[1].bytes;
    } else if (!c->library && !c->fn)
        return fail_set(f, TRAINC_DEVICE,
                        "kernel %s has no code for this machine: it was compiled to run through "
                        "oneDNN, which is missing",
                        k->name);
    return TRAINC_OK;
}

static uint64_t scratch_beside(const CpuDevice *d, const trainc_launch *l, const CpuCall *c) {
    const trainc_contraction *x = d->plan->kernels[l->kernel].contraction;
    uint64_t need = c->library ? onednn_scratch_bytes(c->library) : 0;
    return need == 0 || (x->scratch_arg != 255 && x->scratch_bytes >= need) ? 0 : need;
}

static trainc_status place_scratch(CpuDevice *d, Fail *f) {
    uint64_t most = 0;
    for (int e = 0; e < N_ENTRIES_OF; e++)
        for (uint32_t i = 0; i < d->plan->entries[e].n; i++) {
            uint64_t n = scratch_beside(d, &d->plan->entries[e].launches[i], &d->calls[e][i]);
            most = n > most ? n : most;
        }
    most = (most + 4095) / 4096 * 4096;
    if (most && !(d->scratch = aligned_alloc(4096, most)))
        return fail_set(f, TRAINC_NO_MEMORY, "no memory for %llu bytes of library scratch",
                        (unsigned long long)most);
    d->base.reserved_bytes += most;
    for (int e = 0; e < N_ENTRIES_OF; e++)
        for (uint32_t i = 0; i < d->plan->entries[e].n; i++) {
            const trainc_launch *l = &d->plan->entries[e].launches[i];
            CpuCall *c = &d->calls[e][i];
            if (!c->library) continue;
            bool beside = scratch_beside(d, l, c) > 0;
            uint8_t arg = d->plan->kernels[l->kernel].contraction->scratch_arg;
            void *p = beside ? d->scratch : arg != 255 ? c->args[arg] : NULL;
            if (!onednn_set_scratch(c->library, p))
                return fail_set(f, TRAINC_NO_MEMORY, "no memory for oneDNN");
        }
    return TRAINC_OK;
}

static trainc_status map_arena(CpuDevice *d, Fail *f) {
    d->mapped_bytes = (d->plan->arena_bytes + 4095) / 4096 * 4096;
    d->mapped_bytes += d->mapped_bytes == 0 ? 4096 : 0;
    void *p =
        mmap(NULL, d->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return fail_set(f, TRAINC_NO_MEMORY, "the arena of %llu bytes cannot be had",
                        (unsigned long long)d->plan->arena_bytes);
    d->arena = p;
    madvise(p, d->mapped_bytes, MADV_HUGEPAGE);
    d->base.reserved_bytes = d->plan->arena_bytes;
    d->base.is_zero = true;
    return TRAINC_OK;
}

static trainc_status prepare_all(CpuDevice *d, ScalarValue *scalars, Fail *f) {
    const trainc_plan *p = d->plan;
    trainc_status s = TRAINC_OK;
    d->args = calloc(p->n_args ? p->n_args : 1, sizeof *d->args);
    d->numbers = calloc(p->n_args ? p->n_args : 1, sizeof *d->numbers);
    bool memory = d->args && d->numbers;
    for (uint32_t i = 0; memory && i < p->n_args; i++) d->args[i] = argument(d, i, scalars);
    for (int e = 0; memory && s == TRAINC_OK && e < N_ENTRIES_OF; e++) {
        d->calls[e] = calloc(p->entries[e].n ? p->entries[e].n : 1, sizeof *d->calls[e]);
        memory = d->calls[e] != NULL;
        for (uint32_t i = 0; memory && s == TRAINC_OK && i < p->entries[e].n; i++)
            s = prepare_call(d, &p->entries[e].launches[i], &d->calls[e][i], f);
    }
    if (!memory) return fail_set(f, TRAINC_NO_MEMORY, "no memory to prepare the launches");
    return s == TRAINC_OK ? place_scratch(d, f) : s;
}

static trainc_status cpu_open(const DeviceSetup *setup, Device **out, Fail *f) {
    CpuDevice *d = calloc(1, sizeof *d);
    if (!d) return fail_set(f, TRAINC_NO_MEMORY, "no memory for the device");
    d->base.vt = &cpu_device;
    d->plan = setup->plan;
    if (setup->threads > 0) set_threads(setup->threads);
    const char *want =
        getenv("TRAINC_ONEDNN"); /* 0: own loops only, to find out whose fault a number is */
    d->onednn = want && strcmp(want, "0") == 0 ? NULL : onednn_open();
    trainc_status s = map_arena(d, f);
    if (s == TRAINC_OK) s = prepare_all(d, setup->scalars, f);
    if (s != TRAINC_OK) {
        cpu_close(&d->base);
        return s;
    }
    *out = &d->base;
    return TRAINC_OK;
}

static trainc_status cpu_upload(Device *base, uint64_t offset, const void *from, uint64_t bytes,
                                Fail *f) {
    (void)f;
    memcpy(((CpuDevice *)base)->arena + offset, from, bytes);
    return TRAINC_OK;
}

static trainc_status cpu_download(Device *base, uint64_t offset, void *to, uint64_t bytes,
                                  Fail *f) {
    (void)f;
    memcpy(to, ((CpuDevice *)base)->arena + offset, bytes);
    return TRAINC_OK;
}

static trainc_status run_launch(CpuDevice *d, int entry, uint32_t i, Fail *f) {
    CpuCall *c = &d->calls[entry][i];
    if (c->library && !onednn_run(c->library))
        return fail_set(f, TRAINC_DEVICE, "oneDNN failed in kernel %s",
                        d->plan->kernels[d->plan->entries[entry].launches[i].kernel].name);
    if (c->fn) c->fn(c->args);
    if (c->copy_bytes) memcpy(c->args[1], c->args[0], c->copy_bytes);
    return TRAINC_OK;
}

/* The arguments of a launch as they are in this turn of the loops around it. */
static trainc_status place_args(CpuDevice *d, const trainc_launch *l, const CpuCall *c,
                                const int64_t *turn, Fail *f) {
    bool moved = false;
    for (uint32_t i = l->first_arg; i < l->first_arg + l->n_args; i++) {
        const trainc_arg *a = &d->plan->args[i];
        if (!device_arg_moves(a)) continue;
        moved = true;
        if (a->scalar)
            d->numbers[i] = device_arg_offset(a, turn);
        else
            d->args[i] = d->arena + device_arg_offset(a, turn);
    }
    if (moved && c->library && !onednn_move(c->library, c->args))
        return fail_set(f, TRAINC_DEVICE, "oneDNN takes no other memory");
    return TRAINC_OK;
}

static trainc_status cpu_run(Device *base, int entry, Fail *f) {
    CpuDevice *d = (CpuDevice *)base;
    const trainc_entry *e = &d->plan->entries[entry];
    trainc_status status = TRAINC_OK;
    for (Turn t = {0}; status == TRAINC_OK && device_next(e, &t);) {
        if (t.depth)
            status = place_args(d, &e->launches[t.launch], &d->calls[entry][t.launch], t.turn, f);
        if (status == TRAINC_OK) status = run_launch(d, entry, t.launch, f);
    }
    return status;
}

static trainc_status cpu_sync(Device *base, Fail *f) {
    (void)base;
    (void)f;
    return TRAINC_OK;
}

const DeviceVtable cpu_device = {"cpu",   cpu_open, cpu_upload, cpu_download,
                                 cpu_run, cpu_sync, cpu_close};
