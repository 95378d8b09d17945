/* hiprtc_compile - compiles a HIP source file with hipRTC: hiprtc_compile SOURCE ARCH [OUT.co]. A
 * process of its own, because hipRTC 5.2.3 ends the process on targets that it does not know. Exit
 * status: 0 compiled, 1 refused (the log on stderr), 77 no hipRTC here. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Api {
    int (*create)(void **, const char *, const char *, int, const char *const *,
                  const char *const *);
    int (*compile)(void *, int, const char *const *);
    int (*log_size)(void *, size_t *);
    int (*log)(void *, char *);
    int (*code_size)(void *, size_t *);
    int (*code)(void *, char *);
} Api;

/* dlsym without casting an object pointer to a function pointer */
static int load(void *library, const char *name, void *slot) {
    void *symbol = dlsym(library, name);
    memcpy(slot, &symbol, sizeof symbol);
    return symbol != NULL;
}

static int load_api(Api *a) {
    static const char *const names[] = {"libhiprtc.so.7", "libhiprtc.so.6", "libamdhip64.so.5"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
        if (library && load(library, "hiprtcCreateProgram", &a->create) &&
            load(library, "hiprtcCompileProgram", &a->compile) &&
            load(library, "hiprtcGetProgramLogSize", &a->log_size) &&
            load(library, "hiprtcGetProgramLog", &a->log) &&
            load(library, "hiprtcGetCodeSize", &a->code_size) &&
            load(library, "hiprtcGetCode", &a->code))
            return 1;
    }
    return 0;
}

static char *read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) return NULL;
    const long n = ftell(f);
    char *text = n < 0 ? NULL : malloc((size_t)n + 1);
    if (text) {
        rewind(f);
        text[fread(text, 1, (size_t)n, f)] = 0;
    }
    fclose(f);
    return text;
}

static int write_code(const Api *a, void *program, const char *path) {
    size_t n = 0;
    if (a->code_size(program, &n)) return 1;
    char *code = malloc(n);
    FILE *f = fopen(path, "wb");
    const int ok = code && f && !a->code(program, code) && fwrite(code, 1, n, f) == n;
    if (f && fclose(f)) return 1;
    free(code);
    return !ok;
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: hiprtc_compile SOURCE ARCH [OUT.co]\n"), 2;
    char *source = read_file(argv[1]), option[64];
    Api a;
    if (!source) return fprintf(stderr, "cannot read %s\n", argv[1]), 2;
    if (!load_api(&a)) return fprintf(stderr, "no hipRTC: %s\n", dlerror()), 77;
    void *program = NULL;
    snprintf(option, sizeof option, "--gpu-architecture=%s", argv[2]);
    const char *const options[] = {option};
    if (a.create(&program, source, "step.hip", 0, NULL, NULL)) return 1;
    const int status = a.compile(program, 1, options);
    size_t n = 0;
    if (!a.log_size(program, &n) && n > 1) {
        char *log = calloc(n + 1, 1);
        if (log && !a.log(program, log)) fprintf(stderr, "%s\n", log);
        free(log);
    }
    free(source);
    if (status) return 1;
    return argc > 3 ? write_code(&a, program, argv[3]) : 0;
}
