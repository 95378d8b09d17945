/* cmd_doctor.c - `trainc doctor`: what this machine can run, and why not more. Every line is a
 * probe, none a guess. */
#include "codegen.h"
#include "options.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The first line that the command prints, or NULL where it fails. */
static const char *first_line(const char *command, char *line, int n) {
    FILE *p = popen(command, "r");
    if (!p) return NULL;
    bool got = fgets(line, n, p) != NULL;
    while (fgetc(p) != EOF) {
    }
    line[got ? strcspn(line, "\n") : 0] = 0;
    return pclose(p) == 0 && got ? line : NULL;
}

static void host_compiler(void) {
    char line[256];
    const char *cc = getenv("CC") ? getenv("CC") : "cc";
    char command[512];
    snprintf(command, sizeof command, "%s --version 2>&1", cc);
    const char *v = first_line(command, line, sizeof line);
    printf("%-14s %s\n", "host compiler",
           v ? v : "none: install gcc or clang, or set CC; no cpu target without one");
}

static void gpu_compiler(void) {
    static const char *const places[] = {"clang-19", "/usr/lib/llvm-19/bin/clang",
                                         "/opt/rocm/llvm/bin/clang", "clang"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char command[512], line[256];
        snprintf(command, sizeof command, "%s --print-targets 2>&1 | grep amdgcn", places[i]);
        if (!first_line(command, line, sizeof line)) continue;
        snprintf(command, sizeof command, "%s --version 2>&1", places[i]);
        printf("%-14s %s (gfx90a gfx942 gfx1100 gfx1151)\n", "GPU compiler",
               first_line(command, line, sizeof line));
        return;
    }
    printf("%-14s none: no clang with the AMDGPU backend (Debian: clang-19 lld-19); no gfx target "
           "without one\n",
           "GPU compiler");
}

static void library(const char *what, const char *const *names, const char *without) {
    for (; *names; names++) {
        void *lib = dlopen(*names, RTLD_LAZY | RTLD_LOCAL);
        if (!lib) continue;
        printf("%-14s %s\n", what, *names);
        dlclose(lib);
        return;
    }
    printf("%-14s none: %s\n", what, without);
}

static void hip_devices(void) {
    static const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"};
    void *lib = NULL;
    const char *found = NULL;
    for (size_t i = 0; i < 3 && !lib; i++) lib = dlopen(found = names[i], RTLD_LAZY | RTLD_LOCAL);
    if (!lib) {
        printf("%-14s no libamdhip64.so.7, .6 or .5: install the ROCm runtime to use an AMD GPU\n",
               "HIP");
        return;
    }
    int (*count)(int *);
    *(void **)&count = dlsym(lib, "hipGetDeviceCount");
    int n = 0, error = count ? count(&n) : -1;
    if (error || n < 1)
        printf("%-14s %s is here, but finds no device (error %d): is /dev/kfd there and may you "
               "read it?\n",
               "HIP", found, error);
    else
        printf("%-14s %s, %d device%s\n", "HIP", found, n, n > 1 ? "s" : "");
    dlclose(lib);
}

static void machine(void) {
    char line[256];
    const char *cpu = first_line("grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | cut -c2-",
                                 line, sizeof line);
    printf("%-14s %s, %ld cores\n", "cpu", cpu ? cpu : "unknown", sysconf(_SC_NPROCESSORS_ONLN));
    Arena *a = arena_new();
    printf("%-14s %s\n", "memory",
           format_bytes(a, (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE)));
    arena_free(a);
}

int command_doctor(void) {
    printf("%-14s %s\n", "trainc", TRAINC_VERSION);
    machine();
    host_compiler();
    library("oneDNN", (const char *const[]){"libdnnl.so.2", NULL},
            "products and convolutions run in generated loops, slower (Debian: libdnnl2)");
    gpu_compiler();
    hip_devices();
    return 0;
}
