/* mappings.c - preload me: the sizes of the anonymous mappings that a program asks for, one a line,
 * in TRAINC_MAPPINGS. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 4096 };
static size_t sizes[MOST];
static unsigned n_sizes;

void *mmap(void *addr, size_t n, int prot, int flags, int fd, off_t offset) {
    if (flags & MAP_ANONYMOUS && n_sizes < MOST) sizes[n_sizes++] = n;
    return (void *)syscall(SYS_mmap, addr, n, prot, flags, fd, offset);
}

__attribute__((destructor)) static void report(void) {
    const char *path = getenv("TRAINC_MAPPINGS");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) return;
    for (unsigned i = 0; i < n_sizes; i++) fprintf(f, "%zu\n", sizes[i]);
    fclose(f);
}
