/* Tests that a compiled step trains through the product's own HIP device, on the stand-in runtime,
 * as it does on the CPU, and that what the device refuses ends in the exit status and the sentence
 * that users are promised. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include "host.h"

#define EXAMPLES SOURCE_DIR "/docs/examples/"
static Arena *arena;
static const char *step; /* the compiled step folder of this test run */

/* Exit status of a command; its output goes to `out` (where not NULL), at most 8 kB. */
static int run(const char *command, char *out) {
    FILE *p = popen(arena_printf(arena, "%s 2>&1", command), "r");
    cr_assert(p);
    char text[8192] = "";
    const size_t n = fread(text, 1, sizeof text - 1, p);
    char rest[4096];
    while (fread(rest, 1, sizeof rest, p) > 0) {
    }
    text[n] = 0;
    if (out) memcpy(out, text, sizeof text);
    const int status = pclose(p);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256;
}

static void compile_step(void) {
    arena = arena_new();
    step = host_path(arena, "digits");
    char out[8192];
    cr_assert_eq(
        run(arena_printf(
                arena,
                BUILD_DIR
                "/trainc " EXAMPLES
                "digits.onnx -o %s --target cpu,gfx90a,gfx1100 --emit hip,co --precision fp32 "
                "--dim batch=16 --loss cross_entropy --optimizer adamw",
                step),
            out),
        0, "%s", out);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(
            run(arena_printf(arena, SOURCE_DIR "/tests/hip_host/build_standin %s %s %s/kernels",
                             step, host_archs[i], step),
                out),
            0, "%s", out);
}

static void remove_step(void) {
    run(arena_printf(arena, "rm -r %s*", step), NULL);
    arena_free(arena);
}

TestSuite(train, .init = compile_step, .fini = remove_step);

static const char *train_command(const char *environment, const char *options) {
    /* a leak checker cannot look through the fibres' stacks */
    return arena_printf(arena,
                        "ASAN_OPTIONS=detect_leaks=0 LD_LIBRARY_PATH=" BUILD_DIR
                        "/hip_host TRAINC_STANDIN_KERNELS=%s/kernels %s " BUILD_DIR
                        "/trainc run %s --data image=" EXAMPLES
                        "data/digits_x.npy --data labels=" EXAMPLES
                        "data/digits_labels.npy --steps 4 --lr 0.01 %s",
                        step, environment, step, options);
}

/* The number after `key` in line `n` of a log; NaN where there is none. */
static double log_number(const char *path, int n, const char *key) {
    char line[4096] = "";
    FILE *f = fopen(path, "r");
    cr_assert(f, "no log %s", path);
    for (int i = 0; i < n; i++)
        cr_assert(fgets(line, sizeof line, f), "%s ends before line %d", path, n);
    fclose(f);
    const char *at = strstr(line, arena_printf(arena, "\"%s\":", key));
    return at ? strtod(at + strlen(key) + 3, NULL) : NAN;
}

/* The tensors of a safetensors file, one after the other, as one vector. */
static float *tensors_of(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    uint64_t header;
    cr_assert(f && fread(&header, sizeof header, 1, f) == 1, "cannot read %s", path);
    fseek(f, 0, SEEK_END);
    *n = ((size_t)ftell(f) - 8 - header) / sizeof(float);
    float *values = arena_alloc(arena, (*n + 1) * sizeof *values);
    fseek(f, (long)(8 + header), SEEK_SET);
    cr_assert_eq(fread(values, sizeof *values, *n, f), *n);
    fclose(f);
    return values;
}

static double distance(const char *a_path, const char *b_path) {
    size_t n, m;
    const float *a = tensors_of(a_path, &n), *b = tensors_of(b_path, &m);
    double difference = 0, size = 0;
    cr_assert_eq(n, m);
    for (size_t i = 0; i < n; i++)
        difference += pow((double)a[i] - (double)b[i], 2), size += pow((double)b[i], 2);
    return sqrt(difference / size);
}

Test(train, hip_on_both_wave_sizes_follows_the_cpu) {
    char out[8192];
    cr_assert_eq(
        run(train_command(
                "", arena_printf(arena,
                                 "--device cpu --log %s/cpu.jsonl --save-grads %s/cpu.safetensors",
                                 step, step)),
            out),
        0, "%s", out);
    for (int i = 0; i < 2; i++) {
        const char *arch = host_archs[i];
        cr_assert_eq(
            run(train_command(
                    arena_printf(arena, "TRAINC_STANDIN_ARCH=%s", arch),
                    arena_printf(arena,
                                 "--device hip --log %s/%s.jsonl --save-grads %s/%s.safetensors",
                                 step, arch, step, arch)),
                out),
            0, "%s", out);
        for (int n = 1; n <= 4; n++) {
            const double want = log_number(arena_printf(arena, "%s/cpu.jsonl", step), n, "loss"),
                         got =
                             log_number(arena_printf(arena, "%s/%s.jsonl", step, arch), n, "loss");
            cr_assert(fabs(got - want) <= 1e-5 * fabs(want),
                      "%s step %d: loss %.9g, on the CPU %.9g", arch, n, got, want);
        }
        cr_assert_lt(distance(arena_printf(arena, "%s/%s.safetensors", step, arch),
                              arena_printf(arena, "%s/cpu.safetensors", step)),
                     1e-5, "gradients on %s", arch);
    }
}

Test(train, faults_of_the_device_are_told) {
    static const struct {
        const char *environment;
        int exit;
        const char *says;
    } rows[] = {
        {"TRAINC_STANDIN_FAULT=nodevice", 0, "hipInit"},
        {"TRAINC_STANDIN_FAULT=alloc", 3, "arena"},
        {"TRAINC_STANDIN_FAULT=launch:5", 0, "launch"},
        {"TRAINC_STANDIN_FAULT=load", 0, "hipModuleLoadData"},
        {"TRAINC_STANDIN_FAULT=copy:2", 0, "hipMemcpyAsync"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[8192];
        const int status = run(train_command(rows[i].environment, "--device hip"), out);
        cr_assert(rows[i].exit ? status == rows[i].exit : status > 0 && status < 128,
                  "%s: exit status %d, %s", rows[i].environment, status, out);
        cr_assert(strstr(out, rows[i].says), "%s: %s", rows[i].environment, out);
    }
}
