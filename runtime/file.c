/* file.c - files read by mapping and written so that a crash leaves the old or the new one, never
 * half.
 *
 * A file is written beside its place, flushed (fsync), renamed, and the folder's entry is flushed
 * too. A folder is exchanged with the old one in a single renameat2(RENAME_EXCHANGE); where the
 * file system has no exchange, the old one is moved aside first, and the next writer that finds no
 * folder at `path` but one at `path`.old moves that back (checkpoint.c looks there when it loads).
 */
#include "file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

trainc_status file_map(FileMap *m, const char *path, trainc_status status, Fail *f) {
    static const unsigned char nothing[1];
    struct stat st;
    *m = (FileMap){NULL, 0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail_set(f, status, "cannot read %s: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return fail_set(f, status, "cannot read %s: not a file", path);
    }
    if (st.st_size == 0) {
        close(fd);
        *m = (FileMap){nothing, 0};
        return TRAINC_OK;
    }
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    int why = errno;
    close(fd);
    if (p == MAP_FAILED) return fail_set(f, status, "cannot map %s: %s", path, strerror(why));
    *m = (FileMap){p, (uint64_t)st.st_size};
    return TRAINC_OK;
}

void file_unmap(FileMap *m) {
    if (m->n > 0) munmap((void *)(uintptr_t)m->bytes, m->n);
    *m = (FileMap){NULL, 0};
}

static trainc_status cannot_write(const char *path, Fail *f) {
    return fail_set(f, TRAINC_BAD_DATA, "cannot write %s: %s", path, strerror(errno));
}

trainc_status file_create(FileOut *o, const char *path, Fail *f) {
    o->fd = -1;
    if (strlen(path) >= sizeof o->path) {
        errno = ENAMETOOLONG;
        return cannot_write(path, f);
    }
    snprintf(o->path, sizeof o->path, "%s", path);
    snprintf(o->tmp, sizeof o->tmp, "%s.tmp-XXXXXX", path);
    if (path_is_folder(path)) {
        errno = EISDIR;
        return cannot_write(path, f);
    }
    o->fd = mkstemp(o->tmp);
    if (o->fd < 0) return cannot_write(path, f);
    mode_t mask = umask(0);
    umask(mask);
    fchmod(o->fd, 0666 & ~mask);
    return TRAINC_OK;
}

trainc_status file_write(FileOut *o, const void *data, uint64_t bytes, Fail *f) {
    const char *p = data;
    while (bytes > 0) {
        size_t piece = bytes < (1u << 30) ? (size_t)bytes : 1u << 30;
        ssize_t n = write(o->fd, p, piece);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return cannot_write(o->path, f);
        p += n;
        bytes -= (uint64_t)n;
    }
    return TRAINC_OK;
}

static void flush_folder_of(const char *path) {
    char dir[4200];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash == dir)
        slash[1] = 0;
    else if (slash)
        *slash = 0;
    int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
}

trainc_status file_commit(FileOut *o, Fail *f) {
    int bad = fsync(o->fd);
    bad |= close(o->fd);
    o->fd = -1;
    if (bad || rename(o->tmp, o->path) != 0) {
        trainc_status s = cannot_write(o->path, f);
        unlink(o->tmp);
        return s;
    }
    flush_folder_of(o->path);
    return TRAINC_OK;
}

void file_abandon(FileOut *o) {
    if (o->fd < 0) return;
    close(o->fd);
    unlink(o->tmp);
    o->fd = -1;
}

bool path_is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool folder_is_empty(const char *path) {
    DIR *d = opendir(path);
    bool empty = d != NULL;
    for (struct dirent *e; empty && (e = readdir(d));)
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    if (d) closedir(d);
    return empty;
}

/* "a/b/" and "a/b" are one folder: the temporary one must stand beside it, not in it. */
static void trim_slashes(char *path) {
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--) path[n - 1] = 0;
}

trainc_status folder_begin(const char *path, const char *marker, char *tmp, size_t cap, Fail *f) {
    char inside[4400];
    struct stat st;
    snprintf(inside, sizeof inside, "%s/%s", path, marker);
    if (lstat(path, &st) == 0 &&
        !(S_ISDIR(st.st_mode) && (access(inside, F_OK) == 0 || folder_is_empty(path))))
        return fail_set(f, TRAINC_BAD_DATA,
                        "%s exists and is no checkpoint: it will not be replaced", path);
    if (strlen(path) + 16 > cap) {
        errno = ENAMETOOLONG;
        return cannot_write(path, f);
    }
    snprintf(tmp, cap, "%s", path);
    trim_slashes(tmp);
    snprintf(tmp + strlen(tmp), cap - strlen(tmp), ".tmp-XXXXXX");
    if (!mkdtemp(tmp)) return cannot_write(path, f);
    mode_t mask = umask(0);
    umask(mask);
    chmod(tmp, 0777 & ~mask);
    return TRAINC_OK;
}

void folder_remove(const char *path) {
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlinkat(dirfd(d), e->d_name, 0);
    if (d) closedir(d);
    rmdir(path);
}

trainc_status folder_commit(const char *tmp, const char *path, Fail *f) {
    char to[4300], old[4320];
    snprintf(to, sizeof to - 8, "%s", path);
    trim_slashes(to);
    int fd = open(tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    if (!path_is_folder(to)) {
        if (rename(tmp, to) != 0) return cannot_write(path, f);
    } else if (renameat2(AT_FDCWD, tmp, AT_FDCWD, to, RENAME_EXCHANGE) == 0) {
        flush_folder_of(to);
        folder_remove(tmp);
    } else {
        snprintf(old, sizeof old, "%s.old", to);
        folder_remove(old);
        if (rename(to, old) != 0 || rename(tmp, to) != 0) return cannot_write(path, f);
        flush_folder_of(to);
        folder_remove(old);
    }
    flush_folder_of(to);
    return TRAINC_OK;
}
