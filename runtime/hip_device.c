/* hip_device.c - an AMD GPU as a device, through the ROCm runtime that is found when the program
 * runs.
 *
 * The runtime is loaded with dlopen (.so.7, then .6, then .5), its functions are in hip_api.def.
 * One arena, one stream, and one pinned staging buffer: host bytes always go up through it in
 * pieces, since copies straight from a file mapping hang on some GPUs. The code object is the one
 * whose architecture begins the device's name (gfx942:sramecc+ takes gfx942); where none fits,
 * hipRTC compiles the embedded source. hipDeviceProp_t has had several layouts, so the name is
 * searched for in it instead of read at an offset. Free memory as reported is wrong on APUs: the
 * arena is simply asked for. Every call's own result is checked. */
#include "device.h"
#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct HipApi {
#define HIP(name, arguments) int(*name) arguments;
#include "hip_api.def"
#undef HIP
    const char *(*hipGetErrorString)(int);
    int (*properties)(void *, int);
} HipApi;
typedef struct RtcApi {
#define HIP(name, arguments)
#define RTC(name, arguments) int(*name) arguments;
#include "hip_api.def"
#undef RTC
#undef HIP
} RtcApi;

enum {
    COPY_UP = 1,
    COPY_DOWN = 2,
    STAGING_BYTES = 16 << 20,
    PROPERTIES_BYTES = 16384,
    ARCH_BYTES = 64
};

typedef struct HipDevice {
    Device base;
    const trainc_plan *plan;
    HipApi api;
    char arch[ARCH_BYTES];
    void *module, *stream, *staging;
    char *arena;
    void **functions;          /* by kernel number */
    void **pointers, **params; /* by argument number: device address; what kernelParams points to */
    int64_t *numbers;          /* likewise: the number that it holds */
} HipDevice;

static trainc_status check(const HipDevice *d, int code, const char *what, Fail *f) {
    if (code == 0) return TRAINC_OK;
    return fail_set(f, code == 2 ? TRAINC_NO_MEMORY : TRAINC_DEVICE, "%s failed: %s (HIP error %d)",
                    what, d->api.hipGetErrorString ? d->api.hipGetErrorString(code) : "?", code);
}

/* ---------------------------------------------------------------- the runtime */

static void *open_any(const char *const *names, size_t n) {
    void *lib = NULL;
    for (size_t i = 0; i < n && !lib; i++) lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return lib;
}

static bool look_up(void *lib, const char *name, void *slot) {
    void *p = dlsym(lib, name);
    if (p) memcpy(slot, &p, sizeof p);
    return p != NULL;
}

static void *open_runtime(void) {
    static const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"};
    return open_any(names, 3);
}

static trainc_status load_runtime(HipDevice *d, Fail *f) {
    void *lib = open_runtime();
    if (!lib)
        return fail_set(f, TRAINC_DEVICE,
                        "no ROCm runtime: libamdhip64.so.7, .6 and .5 are not found");
    const struct {
        const char *name;
        void *slot;
    } rows[] = {
#define HIP(name, arguments) {#name, (void *)&d->api.name},
#include "hip_api.def"
#undef HIP
        {"hipGetErrorString", (void *)&d->api.hipGetErrorString}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!look_up(lib, rows[i].name, rows[i].slot))
            return fail_set(f, TRAINC_DEVICE, "the ROCm runtime lacks %s", rows[i].name);
    if (!look_up(lib, "hipGetDevicePropertiesR0600", &d->api.properties) &&
        !look_up(lib, "hipGetDeviceProperties", &d->api.properties))
        return fail_set(f, TRAINC_DEVICE, "the ROCm runtime lacks hipGetDeviceProperties");
    return TRAINC_OK;
}

/* The first "gfx" followed by a hexadecimal digit, up to its end. */
static bool find_arch(const char *bytes, size_t n, char arch[ARCH_BYTES]) {
    for (size_t i = 0; i + 4 < n; i++) {
        if (memcmp(bytes + i, "gfx", 3) != 0 || !isxdigit((unsigned char)bytes[i + 3])) continue;
        size_t k = 0;
        while (k + 1 < ARCH_BYTES && i + k < n && isprint((unsigned char)bytes[i + k])) k++;
        memcpy(arch, bytes + i, k);
        arch[k] = 0;
        return true;
    }
    return false;
}

static trainc_status choose_device(HipDevice *d, int ordinal, Fail *f) {
    int n = 0;
    trainc_status s = check(d, d->api.hipInit(0), "hipInit", f);
    if (s == TRAINC_OK) s = check(d, d->api.hipGetDeviceCount(&n), "hipGetDeviceCount", f);
    if (s != TRAINC_OK) {
        f->status = TRAINC_DEVICE; /* no driver, or no GPU: another target may still do */
        return TRAINC_DEVICE;
    }
    if (ordinal >= n) return fail_set(f, TRAINC_DEVICE, "there is no GPU %d: %d found", ordinal, n);
    s = check(d, d->api.hipSetDevice(ordinal), "hipSetDevice", f);
    char *p = s == TRAINC_OK ? calloc(1, PROPERTIES_BYTES) : NULL;
    if (s == TRAINC_OK && !p) return fail_set(f, TRAINC_NO_MEMORY, "no memory");
    if (s == TRAINC_OK) s = check(d, d->api.properties(p, ordinal), "hipGetDeviceProperties", f);
    if (s == TRAINC_OK && !find_arch(p, PROPERTIES_BYTES, d->arch))
        s = fail_set(f, TRAINC_DEVICE, "GPU %d does not say what it is", ordinal);
    free(p);
    return s;
}

/* ---------------------------------------------------------------- code */

static bool arch_fits(const char *device, const char *image) {
    size_t n = strlen(image);
    return strncmp(device, image, n) == 0 && (device[n] == 0 || device[n] == ':');
}

static trainc_status load_rtc(RtcApi *rtc, Fail *f) {
    static const char *const names[] = {"libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5"};
    const struct {
        const char *name;
        void *slot;
    } rows[] = {
#define HIP(name, arguments)
#define RTC(name, arguments) {#name, (void *)&rtc->name},
#include "hip_api.def"
#undef RTC
#undef HIP
    };
    void *lib = open_any(names, 3);
    if (!lib) lib = open_runtime(); /* ROCm 5 and before: the same library */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!lib || !look_up(lib, rows[i].name, rows[i].slot))
            return fail_set(f, TRAINC_DEVICE, "hipRTC is not there (%s)", rows[i].name);
    return TRAINC_OK;
}

static trainc_status rtc_failed(const RtcApi *rtc, void *program, const char *arch, Fail *f) {
    size_t n = 0;
    char *log = NULL;
    if (rtc->hiprtcGetProgramLogSize(program, &n) == 0 && n > 0 && (log = calloc(1, n + 1)))
        rtc->hiprtcGetProgramLog(program, log);
    trainc_status s = fail_set(f, TRAINC_DEVICE, "hipRTC cannot compile the kernels for %s: %.600s",
                               arch, log ? log : "no log");
    free(log);
    return s;
}

static trainc_status compile_source(HipDevice *d, Fail *f) {
    char option[ARCH_BYTES + 32];
    const char *options[] = {option, "-O3"};
    RtcApi rtc;
    void *program = NULL;
    size_t bytes = 0;
    char *code = NULL;
    trainc_status s = load_rtc(&rtc, f);
    if (s != TRAINC_OK) return s;
    snprintf(option, sizeof option, "--offload-arch=%s", d->arch);
    if (rtc.hiprtcCreateProgram(&program, d->plan->source, "step.hip", 0, NULL, NULL) != 0)
        return fail_set(f, TRAINC_DEVICE, "hipRTC takes no program");
    if (rtc.hiprtcCompileProgram(program, 2, options) != 0)
        s = rtc_failed(&rtc, program, d->arch, f);
    else if (rtc.hiprtcGetCodeSize(program, &bytes) != 0 || !(code = malloc(bytes + 1)) ||
             rtc.hiprtcGetCode(program, code) != 0)
        s = fail_set(f, TRAINC_DEVICE, "hipRTC gave no code");
    else
        s = check(d, d->api.hipModuleLoadData(&d->module, code), "hipModuleLoadData", f);
    rtc.hiprtcDestroyProgram(&program);
    free(code);
    return s;
}

static trainc_status load_code(HipDevice *d, Fail *f) {
    const trainc_plan *p = d->plan;
    for (uint32_t i = 0; i < p->n_images; i++)
        if (arch_fits(d->arch, p->images[i].arch))
            return check(d, d->api.hipModuleLoadData(&d->module, p->images[i].bytes),
                         "hipModuleLoadData", f);
    char has[256] = "", why[512];
    for (uint32_t i = 0; i < p->n_images; i++) {
        size_t n = strlen(has);
        snprintf(has + n, sizeof has - n, "%s%s", i ? ", " : "", p->images[i].arch);
    }
    trainc_status s =
        p->source ? compile_source(d, f) : fail_set(f, TRAINC_DEVICE, "it holds no source either");
    if (s == TRAINC_OK) return s;
    snprintf(why, sizeof why, "%.500s", f->text);
    return fail_set(f, s,
                    "the library holds no code object for %s (it has %s), and its source cannot be "
                    "compiled here: %s",
                    d->arch, has, why);
}

/* ---------------------------------------------------------------- launches */

static trainc_status prepare_all(HipDevice *d, ScalarValue *scalars, Fail *f) {
    const trainc_plan *p = d->plan;
    trainc_status s = TRAINC_OK;
    d->functions = calloc(p->n_kernels ? p->n_kernels : 1, sizeof(void *));
    d->pointers = calloc(p->n_args ? p->n_args : 1, sizeof(void *));
    d->params = calloc(p->n_args ? p->n_args : 1, sizeof(void *));
    d->numbers = calloc(p->n_args ? p->n_args : 1, sizeof *d->numbers);
    if (!d->functions || !d->pointers || !d->params || !d->numbers)
        return fail_set(f, TRAINC_NO_MEMORY, "no memory to prepare the launches");
    for (uint32_t i = 0; i < p->n_kernels && s == TRAINC_OK; i++)
        s = check(d, d->api.hipModuleGetFunction(&d->functions[i], d->module, p->kernels[i].name),
                  p->kernels[i].name, f);
    for (uint32_t i = 0; i < p->n_args; i++) {
        d->pointers[i] = p->args[i].scalar ? NULL : d->arena + p->args[i].offset;
        d->params[i] = p->args[i].scalar ? scalar_address(&p->args[i], scalars, &d->numbers[i])
                                         : (void *)&d->pointers[i];
    }
    return s;
}

static trainc_status launch(HipDevice *d, const trainc_launch *l, Fail *f) {
    int code = d->api.hipModuleLaunchKernel(
        d->functions[l->kernel], l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1],
        l->block[2], l->lds_bytes, d->stream, d->params + l->first_arg, NULL);
    return check(d, code, d->plan->kernels[l->kernel].name, f);
}

/* The arguments of a launch as they are in this turn of the loops around it. The runtime copies
 * them when it is asked to launch. */
static void place_args(HipDevice *d, const trainc_launch *l, const int64_t *turn) {
    for (uint32_t i = l->first_arg; i < l->first_arg + l->n_args; i++) {
        const trainc_arg *a = &d->plan->args[i];
        if (!device_arg_moves(a)) continue;
        if (a->scalar)
            d->numbers[i] = device_arg_offset(a, turn);
        else
            d->pointers[i] = d->arena + device_arg_offset(a, turn);
    }
}

static trainc_status hip_run(Device *base, int entry, Fail *f) {
    HipDevice *d = (HipDevice *)base;
    const trainc_entry *e = &d->plan->entries[entry];
    trainc_status status = TRAINC_OK;
    for (Turn t = {0}; status == TRAINC_OK && device_next(e, &t);) {
        if (t.depth) place_args(d, &e->launches[t.launch], t.turn);
        status = launch(d, &e->launches[t.launch], f);
    }
    return status;
}

static trainc_status hip_sync(Device *base, Fail *f) {
    HipDevice *d = (HipDevice *)base;
    return check(d, d->api.hipStreamSynchronize(d->stream), "hipStreamSynchronize", f);
}

static trainc_status hip_upload(Device *base, uint64_t offset, const void *from, uint64_t bytes,
                                Fail *f) {
    HipDevice *d = (HipDevice *)base;
    trainc_status s = TRAINC_OK;
    for (uint64_t at = 0; at < bytes && s == TRAINC_OK; at += STAGING_BYTES) {
        size_t n = bytes - at < STAGING_BYTES ? (size_t)(bytes - at) : STAGING_BYTES;
        memcpy(d->staging, (const char *)from + at, n);
        s = check(d,
                  d->api.hipMemcpyAsync(d->arena + offset + at, d->staging, n, COPY_UP, d->stream),
                  "hipMemcpyAsync", f);
        if (s == TRAINC_OK) s = hip_sync(base, f);
    }
    return s;
}

static trainc_status hip_download(Device *base, uint64_t offset, void *to, uint64_t bytes,
                                  Fail *f) {
    HipDevice *d = (HipDevice *)base;
    trainc_status s = TRAINC_OK;
    for (uint64_t at = 0; at < bytes && s == TRAINC_OK; at += STAGING_BYTES) {
        size_t n = bytes - at < STAGING_BYTES ? (size_t)(bytes - at) : STAGING_BYTES;
        s = check(
            d, d->api.hipMemcpyAsync(d->staging, d->arena + offset + at, n, COPY_DOWN, d->stream),
            "hipMemcpyAsync", f);
        if (s == TRAINC_OK) s = hip_sync(base, f);
        if (s == TRAINC_OK) memcpy((char *)to + at, d->staging, n);
    }
    return s;
}

static void hip_close(Device *base) {
    HipDevice *d = (HipDevice *)base;
    if (d->stream) {
        d->api.hipStreamSynchronize(d->stream);
        d->api.hipStreamDestroy(d->stream);
    }
    if (d->module) d->api.hipModuleUnload(d->module);
    if (d->arena) d->api.hipFree(d->arena);
    if (d->staging) d->api.hipHostFree(d->staging);
    free(d->functions);
    free(d->pointers);
    free(d->params);
    free(d->numbers);
    free(d);
}

static trainc_status reserve(HipDevice *d, Fail *f) {
    void *p = NULL;
    uint64_t bytes = d->plan->arena_bytes ? d->plan->arena_bytes : 256;
    if (d->api.hipMalloc(&p, bytes) != 0)
        return fail_set(f, TRAINC_NO_MEMORY, "the arena of %llu bytes cannot be had on the GPU",
                        (unsigned long long)bytes);
    d->arena = p;
    d->base.reserved_bytes = d->plan->arena_bytes;
    trainc_status s =
        check(d, d->api.hipHostMalloc(&d->staging, STAGING_BYTES, 0), "hipHostMalloc", f);
    return s == TRAINC_OK ? check(d, d->api.hipStreamCreate(&d->stream), "hipStreamCreate", f) : s;
}

static trainc_status hip_open(const DeviceSetup *setup, Device **out, Fail *f) {
    HipDevice *d = calloc(1, sizeof *d);
    if (!d) return fail_set(f, TRAINC_NO_MEMORY, "no memory for the device");
    d->base.vt = &hip_device;
    d->plan = setup->plan;
    trainc_status s = load_runtime(d, f);
    if (s == TRAINC_OK) s = choose_device(d, setup->ordinal, f);
    if (s == TRAINC_OK) s = load_code(d, f);
    if (s == TRAINC_OK) s = reserve(d, f);
    if (s == TRAINC_OK) s = prepare_all(d, setup->scalars, f);
    if (s != TRAINC_OK) {
        hip_close(&d->base);
        return s;
    }
    *out = &d->base;
    return TRAINC_OK;
}

const DeviceVtable hip_device = {"hip",   hip_open, hip_upload, hip_download,
                                 hip_run, hip_sync, hip_close};
