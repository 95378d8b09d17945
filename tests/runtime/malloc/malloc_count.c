/* malloc_count.c - preload me: how many allocations a run makes between its second log line and its
 * last.
 *
 *   TRAINC_ALLOCATIONS=out.txt LD_PRELOAD=libmalloc_count.so trainc run DIR ... --log l.jsonl
 *
 * The driver flushes its log once per step, so fflush marks the steps. At exit the file holds
 * "steps N allocations M", and where M is not 0 the return addresses of the first few are on
 * stderr. Memory that is mapped directly counts too. */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);

static atomic_long count, at_second, at_last, steps, shown;

static void one(void *from) {
    atomic_fetch_add(&count, 1);
    if (atomic_load(&steps) >= 2 && atomic_load(&shown) < 8 && getenv("TRAINC_ALLOCATIONS_SHOW")) {
        atomic_fetch_add(&shown, 1);
        Dl_info info = {0};
        dladdr(from, &info);
        fprintf(stderr, "allocation from %s (%s)\n", info.dli_fname ? info.dli_fname : "?",
                info.dli_sname ? info.dli_sname : "?");
    }
}

void *malloc(size_t n) {
    one(__builtin_return_address(0));
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size) {
    one(__builtin_return_address(0));
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n) {
    one(__builtin_return_address(0));
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n) {
    one(__builtin_return_address(0));
    return __libc_memalign(align, n);
}

void *memalign(size_t align, size_t n) {
    one(__builtin_return_address(0));
    return __libc_memalign(align, n);
}

int posix_memalign(void **p, size_t align, size_t n) {
    one(__builtin_return_address(0));
    *p = __libc_memalign(align, n);
    return *p ? 0 : ENOMEM;
}

void *mmap(void *addr, size_t n, int prot, int flags, int fd, off_t offset) {
    static void *(*next)(void *, size_t, int, int, int, off_t);
    if (!next) {
        void *p = dlsym(RTLD_NEXT, "mmap");
        memcpy(&next, &p, sizeof next);
    }
    one(__builtin_return_address(0));
    return next(addr, n, prot, flags, fd, offset);
}

int fflush(FILE *f) {
    static int (*next)(FILE *);
    if (!next) {
        void *p = dlsym(RTLD_NEXT, "fflush");
        memcpy(&next, &p, sizeof next);
    }
    if (f && f != stderr && f != stdout) {
        atomic_store(&at_last, atomic_load(&count));
        if (atomic_fetch_add(&steps, 1) + 1 == 2) atomic_store(&at_second, atomic_load(&count));
    }
    return next(f);
}

__attribute__((destructor)) static void report(void) {
    const char *path = getenv("TRAINC_ALLOCATIONS");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) return;
    fprintf(f, "steps %ld allocations %ld\n", atomic_load(&steps),
            atomic_load(&at_last) - atomic_load(&at_second));
    fclose(f);
}
