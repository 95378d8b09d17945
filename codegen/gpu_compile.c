/* gpu_compile.c - from HIP source to code objects with clang's AMDGPU backend.
 *
 * The compiler is a child process (posix_spawn, no shell): the newest clang found under the PATH,
 * /usr/lib/llvm-N/bin or ROCm. Neither HIP headers nor device libraries are used, so Debian's
 * clang-19 is enough. Its stderr goes to a file beside the output, and from there into the message
 * of a failure. Debug data is stripped by the linker; no path, time or id gets into the output.
 */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "kernel.h"

extern char **environ;

/* ---------------------------------------------------------------- the compiler */

static bool is_executable(const char *path) { return access(path, X_OK) == 0; }

static const char *find_in_path(Arena *arena, const char *name) {
    const char *path = getenv("PATH");
    while (path && *path) {
        const size_t n = strcspn(path, ":");
        const char *file = arena_printf(arena, "%.*s/%s", (int)n, path, name);
        if (n && is_executable(file)) return file;
        path += n + (path[n] == ':');
    }
    return NULL;
}

/* gpu_compiler - path of a clang that knows all our targets (17 or later), or NULL. TRAINC_CLANG
 * names another. Owner: arena. */
const char *gpu_compiler(Arena *arena) {
    const char *given = getenv("TRAINC_CLANG");
    if (given && *given) return given;
    for (int version = 24; version >= 17; version--) {
        const char *file = find_in_path(arena, arena_printf(arena, "clang-%d", version));
        if (file) return file;
        file = arena_printf(arena, "/usr/lib/llvm-%d/bin/clang", version);
        if (is_executable(file)) return file;
    }
    if (is_executable("/opt/rocm/llvm/bin/clang")) return "/opt/rocm/llvm/bin/clang";
    return NULL;
}

static char *read_text(Arena *arena, const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return arena_strdup(arena, "");
    char *text = arena_alloc(arena, 16384);
    const size_t n = fread(text, 1, 16383, f);
    text[n] = 0;
    fclose(f);
    return text;
}

/* Starts argv[0] with stderr in a file; 0 where it cannot. */
static pid_t start(char *const *argv, const char *stderr_path) {
    posix_spawn_file_actions_t actions;
    if (posix_spawn_file_actions_init(&actions)) return 0;
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, stderr_path,
                                     O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    pid_t pid = 0;
    const int status = posix_spawn(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    return status ? 0 : pid;
}

static bool finish(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return false;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* gpu_compile_start - begins compiling; finish it with gpu_compile_wait. asm_path non-NULL:
 * assembly is written there instead of a code object. Several may run at once. Returns a job, or
 * one with pid 0 and an error. */
GpuJob gpu_compile_start(const char *hip_path, const char *target, const char *out_path,
                         bool assembly, Arena *arena) {
    GpuJob job = {.target = target,
                  .out_path = out_path,
                  .log_path = arena_printf(arena, "%s.log", out_path)};
    const char *clang = gpu_compiler(arena);
    if (!clang) {
        job.error =
            arena_strdup(arena, "no clang 17 or later found (PATH, /usr/lib/llvm-*/bin, "
                                "/opt/rocm/llvm/bin); on Debian: apt-get install clang-19 lld-19");
        return job;
    }
    char *argv[24];
    int n = 0;
    const char *const fixed[] = {clang,
                                 "-x",
                                 "hip",
                                 "--cuda-device-only",
                                 "--no-gpu-bundle-output",
                                 "-nogpulib",
                                 "-nogpuinc",
                                 "-O3",
                                 "-std=c++17",
                                 "-fno-ident",
                                 "-fuse-cuid=none",
                                 "-w",
                                 "-mcode-object-version=4"};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        argv[n++] = arena_strdup(arena, fixed[i]);
    argv[n++] = arena_printf(arena, "--offload-arch=%s", target);
    if (assembly)
        argv[n++] = arena_strdup(arena, "-S");
    else
        argv[n++] = arena_strdup(arena, "-Wl,--strip-debug,--build-id=none");
    argv[n++] = arena_strdup(arena, hip_path);
    argv[n++] = arena_strdup(arena, "-o");
    argv[n++] = arena_strdup(arena, out_path);
    argv[n] = NULL;
    job.pid = (int)start(argv, job.log_path);
    if (!job.pid) job.error = arena_printf(arena, "cannot start %s: %s", clang, strerror(errno));
    return job;
}

/* gpu_compile_wait - true where the job has written its output; else job->error says why. */
bool gpu_compile_wait(GpuJob *job, Arena *arena) {
    if (!job->pid) return false;
    const bool ok = finish((pid_t)job->pid);
    if (!ok)
        job->error = arena_printf(arena, "compiling for %s failed:\n%s", job->target,
                                  read_text(arena, job->log_path));
    unlink(job->log_path);
    return ok;
}

/* gpu_compile - code object (and assembly, where asm_path is not NULL) of HIP source for one
 * target. errors  false, and *error (in the arena) holds the compiler's words        cost  a
 * compiler run, or two */
bool gpu_compile(const char *hip_path, const char *target, const char *co_path,
                 const char *asm_path, Arena *arena, char **error) {
    GpuJob object = gpu_compile_start(hip_path, target, co_path, false, arena);
    GpuJob text = {.pid = 0};
    if (asm_path) text = gpu_compile_start(hip_path, target, asm_path, true, arena);
    const bool object_ok = gpu_compile_wait(&object, arena),
               text_ok = !asm_path || gpu_compile_wait(&text, arena);
    if (!object_ok || !text_ok) *error = object_ok ? text.error : object.error;
    return object_ok && text_ok;
}
