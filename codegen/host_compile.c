/* host_compile.c - runs the host's C compiler, archiver and linker as child processes, without a
 * shell.
 *
 * Jobs start and are waited for separately, so that several run at once. All run inside the step
 * folder with relative names, so no path gets into what they write. stderr goes to a file beside
 * the output, and from there into the message of a failure. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "step_table.h"

extern char **environ;

static bool in_path(Arena *arena, const char *name) {
    const char *path = getenv("PATH");
    if (strchr(name, '/')) return access(name, X_OK) == 0;
    while (path && *path) {
        size_t n = strcspn(path, ":");
        if (n && access(arena_printf(arena, "%.*s/%s", (int)n, path, name), X_OK) == 0) return true;
        path += n + (path[n] == ':');
    }
    return false;
}

const char *host_compiler(Arena *arena) {
    static const char *const names[] = {"gcc", "cc", "clang", "clang-19"};
    const char *given = getenv("CC");
    if (given && *given && in_path(arena, given)) return given;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (in_path(arena, names[i])) return names[i];
    return NULL;
}

Job job_start(Arena *arena, const char *folder, const char *const *argv, const char *log) {
    Job job = {.what = argv[0], .log = log};
    posix_spawn_file_actions_t actions;
    uint32_t n = 0;
    while (argv[n]) n++;
    char **copy = arena_alloc(arena, (n + 1) * sizeof *copy);
    for (uint32_t i = 0; i < n; i++) copy[i] = arena_strdup(arena, argv[i]);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addchdir_np(&actions, folder);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log, O_WRONLY | O_CREAT | O_TRUNC,
                                     0644);
    pid_t pid = 0;
    if (posix_spawnp(&pid, argv[0], &actions, NULL, copy, environ) == 0) job.pid = pid;
    posix_spawn_file_actions_destroy(&actions);
    return job;
}

static const char *first_lines(Arena *arena, const char *path) {
    char text[2001];
    FILE *f = fopen(path, "rb");
    if (!f) return "";
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    while (n && (text[n - 1] == '\n' || text[n - 1] == ' ')) n--;
    return arena_printf(arena, "%.*s", (int)n, text);
}

bool job_wait(Arena *arena, const char *folder, Job *job, char **error) {
    int status = 0;
    const char *log = arena_printf(arena, "%s/%s", folder, job->log);
    if (!job->pid) {
        *error = arena_printf(arena, "cannot be started");
        return false;
    }
    while (waitpid(job->pid, &status, 0) < 0 && errno == EINTR) {
    }
    bool ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!ok) *error = arena_printf(arena, "%s", first_lines(arena, log));
    unlink(log);
    return ok;
}
