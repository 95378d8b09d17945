/* gpu_resources.c - what an AMD code object says about its kernels: registers, LDS, spills.
 *
 * The facts are in an ELF note (name "AMDGPU", type 32) as one msgpack map; `amdhsa.kernels` is a
 * list of maps. The reader walks msgpack values by their lengths, never past the end of the note: a
 * file that is anything else answers false.
 */
#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "kernel.h"

typedef struct Reader {
    const uint8_t *at, *end;
    bool bad;
} Reader;
typedef enum PackKind { PACK_OTHER, PACK_INT, PACK_STR, PACK_LIST, PACK_MAP } PackKind;
typedef struct Pack {
    PackKind kind;
    uint64_t n;
    const char *s;
} Pack; /* the integer; bytes; items; pairs */

static uint64_t take(Reader *r, uint32_t bytes) {
    uint64_t v = 0;
    if ((size_t)(r->end - r->at) < bytes) {
        r->bad = true;
        return 0;
    }
    for (uint32_t i = 0; i < bytes; i++) v = v << 8 | *r->at++;
    return v;
}

static Pack string_of(Reader *r, PackKind kind, uint64_t n) {
    const Pack p = {kind, n, (const char *)r->at};
    if ((uint64_t)(r->end - r->at) < n)
        r->bad = true;
    else
        r->at += n;
    return p;
}

/* The next value's head; strings are taken whole, of lists and maps the items follow. */
static Pack next(Reader *r) {
    const uint8_t b = (uint8_t)take(r, 1);
    if (r->bad) return (Pack){0};
    if (b < 0x80) return (Pack){PACK_INT, b, NULL};
    if (b < 0x90) return (Pack){PACK_MAP, b & 15u, NULL};
    if (b < 0xa0) return (Pack){PACK_LIST, b & 15u, NULL};
    if (b < 0xc0) return string_of(r, PACK_STR, b & 31u);
    switch (b) {
    case 0xc4:
    case 0xc5:
    case 0xc6:
        return string_of(r, PACK_OTHER, take(r, 1u << (b - 0xc4)));
    case 0xca:
    case 0xcb:
        return take(r, 4u << (b - 0xca)), (Pack){PACK_OTHER, 0, NULL};
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
        return (Pack){PACK_INT, take(r, 1u << (b - 0xcc)), NULL};
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
        return (Pack){PACK_INT, take(r, 1u << (b - 0xd0)), NULL};
    case 0xd9:
    case 0xda:
    case 0xdb:
        return string_of(r, PACK_STR, take(r, 1u << (b - 0xd9)));
    case 0xdc:
    case 0xdd:
        return (Pack){PACK_LIST, take(r, 2u << (b - 0xdc)), NULL};
    case 0xde:
    case 0xdf:
        return (Pack){PACK_MAP, take(r, 2u << (b - 0xde)), NULL};
    }
    return (Pack){PACK_OTHER, 0, NULL};
}

static void skip(Reader *r) {
    uint64_t left = 1;
    while (left-- && !r->bad) {
        const Pack p = next(r);
        left += p.kind == PACK_LIST ? p.n : p.kind == PACK_MAP ? 2 * p.n : 0;
    }
}

static bool is_text(Pack p, const char *text) {
    return p.kind == PACK_STR && p.n == strlen(text) && !memcmp(p.s, text, p.n);
}

typedef struct Resources {
    int vgprs, sgprs, lds, spills, scratch;
} Resources;

/* One kernel's map: true where its name is `kernel`. */
static bool read_kernel(Reader *r, const char *kernel, Resources *out) {
    const Pack map = next(r);
    bool found = false;
    *out = (Resources){0};
    for (uint64_t i = 0; map.kind == PACK_MAP && i < map.n && !r->bad; i++) {
        const Pack key = next(r);
        const Reader before = *r;
        const Pack value = next(r);
        const int n = (int)value.n;
        if (is_text(key, ".name"))
            found = is_text(value, kernel);
        else if (is_text(key, ".vgpr_count"))
            out->vgprs = n;
        else if (is_text(key, ".sgpr_count"))
            out->sgprs = n;
        else if (is_text(key, ".group_segment_fixed_size"))
            out->lds = n;
        else if (is_text(key, ".private_segment_fixed_size"))
            out->scratch = n;
        else if (is_text(key, ".vgpr_spill_count") || is_text(key, ".sgpr_spill_count"))
            out->spills += n;
        *r = before;
        skip(r);
    }
    return found;
}

static bool read_metadata(Reader r, const char *kernel, Resources *out) {
    const Pack map = next(&r);
    for (uint64_t i = 0; map.kind == PACK_MAP && i < map.n && !r.bad; i++) {
        if (!is_text(next(&r), "amdhsa.kernels")) {
            skip(&r);
            continue;
        }
        const Pack list = next(&r);
        for (uint64_t j = 0; list.kind == PACK_LIST && j < list.n && !r.bad; j++)
            if (read_kernel(&r, kernel, out)) return !r.bad;
        return false;
    }
    return false;
}

static bool read_notes(const uint8_t *file, size_t bytes, const char *kernel, Resources *out) {
    const Elf64_Ehdr *h = (const void *)file;
    if (bytes < sizeof *h || memcmp(h->e_ident, ELFMAG, SELFMAG) ||
        h->e_ident[EI_CLASS] != ELFCLASS64)
        return false;
    for (uint32_t i = 0; i < h->e_phnum; i++) {
        if (h->e_phoff + (i + 1) * sizeof(Elf64_Phdr) > bytes) return false;
        Elf64_Phdr p;
        memcpy(&p, file + h->e_phoff + i * sizeof p, sizeof p);
        if (p.p_type != PT_NOTE || p.p_offset > bytes || p.p_filesz > bytes - p.p_offset) continue;
        const uint8_t *at = file + p.p_offset, *end = at + p.p_filesz;
        while ((size_t)(end - at) >= sizeof(Elf64_Nhdr)) {
            Elf64_Nhdr n;
            memcpy(&n, at, sizeof n);
            const size_t name = (n.n_namesz + 3u) & ~3u, data = (n.n_descsz + 3u) & ~3u;
            if ((size_t)(end - at) < sizeof n + name + data) break;
            const uint8_t *desc = at + sizeof n + name;
            if (n.n_type == 32 && n.n_namesz == 7 && !memcmp(at + sizeof n, "AMDGPU", 7) &&
                read_metadata((Reader){desc, desc + n.n_descsz, false}, kernel, out))
                return true;
            at = desc + data;
        }
    }
    return false;
}

/* gpu_kernel_resources - registers (vector ones with the accumulators), LDS bytes and spills of a
 * kernel in a code object. errors  false where the file cannot be read, is no AMD code object, or
 * has no such kernel */
bool gpu_kernel_resources(const char *co_path, const char *kernel, int *vgprs, int *sgprs, int *lds,
                          int *spills, Arena *arena) {
    (void)arena;
    const int fd = open(co_path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0) return false;
    void *file = fstat(fd, &st) || st.st_size <= 0
                     ? MAP_FAILED
                     : mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (file == MAP_FAILED) return false;
    Resources r;
    const bool found = read_notes(file, (size_t)st.st_size, kernel, &r);
    munmap(file, (size_t)st.st_size);
    if (!found) return false;
    *vgprs = r.vgprs, *sgprs = r.sgprs, *lds = r.lds, *spills = r.spills;
    return true;
}
