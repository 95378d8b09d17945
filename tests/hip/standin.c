/* Tests that the stand-in HIP runtime behaves as the real one where the product relies on it:
 * memory, modules by hash, faults. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "host.h"

static void *library;
static int call_count(int *n) {
    int (*f)(int *);
    void *p = dlsym(library, "hipGetDeviceCount");
    memcpy(&f, &p, sizeof f);
    return f(n);
}
static int call_malloc(void **out, size_t n) {
    int (*f)(void **, size_t);
    void *p = dlsym(library, "hipMalloc");
    memcpy(&f, &p, sizeof f);
    return f(out, n);
}
static int call_free(void *m) {
    int (*f)(void *);
    void *p = dlsym(library, "hipFree");
    memcpy(&f, &p, sizeof f);
    return f(m);
}
static int call_copy(void *to, const void *from, size_t n, int kind) {
    int (*f)(void *, const void *, size_t, int);
    void *p = dlsym(library, "hipMemcpy");
    memcpy(&f, &p, sizeof f);
    return f(to, from, n, kind);
}
static int call_load(void **m, const void *image) {
    int (*f)(void **, const void *);
    void *p = dlsym(library, "hipModuleLoadData");
    memcpy(&f, &p, sizeof f);
    return f(m, image);
}
static int call_function(void **out, void *m, const char *name) {
    int (*f)(void **, void *, const char *);
    void *p = dlsym(library, "hipModuleGetFunction");
    memcpy(&f, &p, sizeof f);
    return f(out, m, name);
}
static int call_unload(void *m) {
    int (*f)(void *);
    void *p = dlsym(library, "hipModuleUnload");
    memcpy(&f, &p, sizeof f);
    return f(m);
}
static int call_launch(void *kernel, void **args) {
    int (*f)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
             void **, void **);
    void *p = dlsym(library, "hipModuleLaunchKernel");
    memcpy(&f, &p, sizeof f);
    return f(kernel, 1, 1, 1, 256, 1, 1, 0, NULL, args, NULL);
}

static void open_library(void) {
    library = dlopen(BUILD_DIR "/hip_host/libamdhip64.so.6", RTLD_NOW | RTLD_LOCAL);
    cr_assert(library, "%s", dlerror());
}

TestSuite(standin, .init = open_library);

Test(standin, memory_is_poison_and_checked) {
    void *p;
    float f[8];
    cr_assert_eq(call_malloc(&p, 1000), 0);
    cr_assert_eq((uintptr_t)p % 256, 0);
    cr_assert_eq(call_copy(f, p, sizeof f, 2), 0);
    for (int i = 0; i < 8; i++) cr_assert(isnan(f[i]));
    cr_assert_eq(call_copy((char *)p + 990, f, 16, 1), 1, "a copy past the end");
    cr_assert_eq(call_copy(f, f, 16, 1), 1, "host memory as device memory");
    cr_assert_eq(call_free((char *)p + 1), 1);
    cr_assert_eq(call_free(p), 0);
}

Test(standin, memory_ends_at_a_guard_page) {
    void *p;
    int status = 0;
    cr_assert_eq(call_malloc(&p, 4096), 0);
    for (int at = 4095; at <= 4096; at++) {
        const pid_t child = fork();
        if (child == 0) {
            signal(SIGSEGV, SIG_DFL); /* no business of a sanitizer */
            ((volatile char *)p)[at] = 1;
            _exit(0);
        }
        cr_assert_eq(waitpid(child, &status, 0), child);
        const bool survived = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        cr_assert_eq(survived, at < 4096);
    }
}

Test(standin, faults_are_had_by_environment) {
    void *p;
    int n;
    cr_assert_eq(call_count(&n), 0);
    cr_assert_eq(n, 1);
    setenv("TRAINC_STANDIN_FAULT", "alloc:2", 1);
    cr_assert_eq(call_malloc(&p, 16), 0);
    cr_assert_eq(call_malloc(&p, 16), 2);
    cr_assert_eq(call_malloc(&p, 16), 0);
    setenv("TRAINC_STANDIN_FAULT", "nodevice", 1);
    cr_assert_eq(call_count(&n), 100);
    cr_assert_eq(n, 0);
}

static void *read_all(const char *path, Arena *a) {
    FILE *f = fopen(path, "rb");
    cr_assert(f);
    char *bytes = arena_alloc(a, 1 << 20);
    cr_assert(fread(bytes, 1, 1 << 20, f) > 0);
    fclose(f);
    return bytes;
}

Test(standin, kernels_are_found_by_the_hash_of_their_code_object) {
    Arena *a = arena_new();
    const char *hip = host_path(a, "module.hip"), *co = host_path(a, "module.co"),
               *other = host_path(a, "module2.co"), *folder = host_path(a, "module_kernels");
    char *error = NULL;
    host_write(hip, arena_printf(a,
                                 "%s\nTC_KERNEL void twice(float *__restrict p0, float p1)\n{\n    "
                                 "p0[tc_tid()] = p0[tc_tid()] * 2.0f + p1;\n}\n",
                                 host_prelude(a)));
    cr_assert(gpu_compile(hip, "gfx1100", co, NULL, a, &error), "%s", error);
    cr_assert(gpu_compile(hip, "gfx942", other, NULL, a, &error), "%s", error);
    cr_assert_eq(system(arena_printf(a, SOURCE_DIR "/tests/hip_host/build_standin %s gfx1100 %s %s",
                                     hip, folder, co)),
                 0);
    setenv("TRAINC_STANDIN_KERNELS", folder, 1);
    setenv("TRAINC_STANDIN_ARCH", "gfx1100", 1);
    void *module, *kernel, *memory;
    float values[256], one = 1;
    cr_assert_eq(call_load(&module, read_all(other, a)), 209, "a code object of another GPU");
    cr_assert_eq(call_load(&module, read_all(hip, a)), 200, "no code object");
    cr_assert_eq(call_load(&module, read_all(co, a)), 0);
    cr_assert_eq(call_function(&kernel, module, "thrice"), 500);
    cr_assert_eq(call_function(&kernel, module, "twice"), 0);
    for (int i = 0; i < 256; i++) values[i] = (float)i;
    cr_assert_eq(call_malloc(&memory, sizeof values), 0);
    cr_assert_eq(call_copy(memory, values, sizeof values, 1), 0);
    void *args[] = {&memory, &one};
    cr_assert_eq(call_launch(kernel, args), 0);
    cr_assert_eq(call_copy(values, memory, sizeof values, 2), 0);
    for (int i = 0; i < 256; i++) cr_assert_eq(values[i], (float)(2 * i + 1));
    setenv("TRAINC_STANDIN_FAULT", "launch", 1);
    cr_assert_eq(call_launch(kernel, args), 719);
    cr_assert_eq(call_unload(module), 0);
    cr_assert_eq(system(arena_printf(a, "rm -r %s %s %s %s", hip, co, other, folder)), 0);
    arena_free(a);
}
