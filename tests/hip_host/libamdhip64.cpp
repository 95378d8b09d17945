/* libamdhip64.cpp - a stand-in for AMD's HIP runtime, for machines without its GPUs: the product's HIP device runs on it unchanged.
 *
 * Device memory is host memory between guard pages, filled with NaN; everything happens at once, so streams and events are order only.
 * A module's kernels come from a library of host-compiled kernels (build_standin), found by the FNV-1a hash of the code object that the
 * product hands over: TRAINC_STANDIN_KERNELS/<16 hex digits>.so. A code object for another GPU than TRAINC_STANDIN_ARCH (gfx90a where
 * unset) is refused as the real runtime does. TRAINC_STANDIN_FAULT makes calls fail: nodevice, or alloc, launch, copy, load, each
 * with an optional :N (only the N-th such call, from 1). What failed inside a kernel goes to stderr. An upload of 64 MiB or more
 * (TRAINC_STANDIN_MAPPED bytes) straight from the mapping of a file fails too.
 */
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <map>
#include <string>
#include <sys/mman.h>
#include <time.h>

#define API extern "C" __attribute__((visibility("default")))

namespace {
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_COPY = 21, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
       NO_BINARY = 209, INVALID_HANDLE = 400, NOT_FOUND = 500, LAUNCH_FAILURE = 719, NOT_SUPPORTED = 801 };
enum : size_t { PAGE = 4096, DEVICE_BYTES = (size_t)16 << 30 };

struct Target { const char *name; unsigned mach; int wave, units; };
const Target targets[] = {{"gfx90a", 0x3f, 64, 110}, {"gfx942", 0x4c, 64, 304}, {"gfx1030", 0x36, 32, 40}, {"gfx1100", 0x41, 32, 48}, {"gfx1151", 0x4a, 32, 20}};

typedef int RunFn(const char *, const unsigned *, const unsigned *, void *const *, char *, size_t);
struct Function;
struct Module { void *library; RunFn *run; std::map<std::string, Function *> functions; };
struct Function { Module *module; std::string name; };
struct Block { char *base; size_t mapped, bytes; };
struct Event { double at; };
struct Stream { int dummy; };

std::map<char *, Block> blocks; /* by first byte */
size_t allocated;
bool initialized;
int last_error;

int answer(int status)
{
    if (status) last_error = status;
    return status;
}

const Target *target()
{
    const char *name = getenv("TRAINC_STANDIN_ARCH");
    for (const Target &t : targets)
        if (!strcmp(t.name, name && *name ? name : "gfx90a")) return &t;
    return nullptr;
}

/* Is this call to fail? Counts the calls of its kind. */
bool faulty(const char *kind)
{
    static std::map<std::string, long> calls;
    const long number = ++calls[kind];
    const char *fault = getenv("TRAINC_STANDIN_FAULT");
    const size_t n = strlen(kind);
    if (!fault || strncmp(fault, kind, n)) return false;
    return fault[n] == 0 || (fault[n] == ':' && strtol(fault + n + 1, nullptr, 10) == number);
}

bool no_device() { return faulty("nodevice") || !target(); }

double now_ms()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Does [p, p + n) lie inside one allocation? */
bool is_device(const void *p, size_t n)
{
    auto it = blocks.upper_bound(static_cast<char *>(const_cast<void *>(p)));
    if (it == blocks.begin()) return false;
    --it;
    const size_t at = (size_t)(static_cast<const char *>(p) - it->first);
    return at <= it->second.bytes && n <= it->second.bytes - at;
}

/* Does p lie in a mapping of a file? A line of the maps: from-to perms offset dev inode path; the inode of anonymous memory is 0. */
bool is_file_mapping(const void *p)
{
    FILE *f = fopen("/proc/self/maps", "r");
    bool found = false;
    char line[4500];
    while (f && !found && fgets(line, sizeof line, f)) {
        unsigned long from, to, inode;
        if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &from, &to, &inode) == 3)
            found = inode && (unsigned long)(uintptr_t)p - from < to - from;
    }
    if (f) fclose(f);
    return found;
}

/* Real runtimes have spun for ever on copies of large file mappings: such a copy fails here, from TRAINC_STANDIN_MAPPED bytes on. */
bool is_mapped_upload(const void *from, size_t n)
{
    static const char *limit = getenv("TRAINC_STANDIN_MAPPED");
    return n >= (limit ? strtoull(limit, nullptr, 10) : (size_t)64 << 20) && is_file_mapping(from);
}

/* Bytes of an ELF file in memory, which ends with its section headers or its last segment. */
size_t elf_bytes(const unsigned char *image, unsigned *mach)
{
    Elf64_Ehdr h;
    memcpy(&h, image, sizeof h);
    if (memcmp(h.e_ident, ELFMAG, SELFMAG) || h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_machine != 224) return 0;
    *mach = h.e_flags & 0xff;
    size_t end = h.e_shoff + (size_t)h.e_shnum * h.e_shentsize;
    for (unsigned i = 0; i < h.e_phnum; i++) {
        Elf64_Phdr p;
        memcpy(&p, image + h.e_phoff + i * sizeof p, sizeof p);
        if (p.p_offset + p.p_filesz > end) end = p.p_offset + p.p_filesz;
    }
    return end;
}

uint64_t fnv64(const unsigned char *p, size_t n)
{
    uint64_t h = 14695981039346656037ull;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 1099511628211ull;
    return h;
}

int copy(void *to, const void *from, size_t n, int kind)
{
    if (faulty("copy")) return answer(LAUNCH_FAILURE);
    if (kind < 0 || kind > 4) return answer(INVALID_COPY);
    const bool to_device = kind == 1 || kind == 3, from_device = kind == 2 || kind == 3;
    if ((to_device && !is_device(to, n)) || (from_device && !is_device(from, n))) return answer(INVALID_VALUE);
    if (kind == 1 && is_mapped_upload(from, n)) return answer(INVALID_VALUE);
    memmove(to, from, n);
    return SUCCESS;
}
} // namespace

/* ---------------------------------------------------------------- device */

API int hipInit(unsigned flags)
{
    initialized = true;
    return answer(flags ? INVALID_VALUE : no_device() ? NO_DEVICE : SUCCESS);
}
API int hipGetDeviceCount(int *n) { return *n = no_device() ? 0 : 1, answer(*n ? SUCCESS : NO_DEVICE); }
API int hipSetDevice(int device) { return answer(device || no_device() ? INVALID_DEVICE : SUCCESS); }
API int hipGetDevice(int *device) { return *device = 0, answer(no_device() ? NO_DEVICE : SUCCESS); }
API int hipDeviceGet(int *device, int ordinal) { return *device = ordinal, answer(ordinal || no_device() ? INVALID_DEVICE : SUCCESS); }
API int hipDeviceGetName(char *name, int n, int device)
{
    if (device || no_device()) return answer(INVALID_DEVICE);
    snprintf(name, (size_t)n, "AMD stand-in");
    return SUCCESS;
}
API int hipDeviceTotalMem(size_t *bytes, int) { return *bytes = DEVICE_BYTES, SUCCESS; }
API int hipMemGetInfo(size_t *free_bytes, size_t *total) { return *total = DEVICE_BYTES, *free_bytes = DEVICE_BYTES - allocated, SUCCESS; }
API int hipDriverGetVersion(int *v) { return *v = 60000000, SUCCESS; }
API int hipRuntimeGetVersion(int *v) { return *v = 60000000, SUCCESS; }

/* The layout of HIP 6: what is filled in here stands at the offsets of hipDeviceProp_tR0600. */
API int hipGetDevicePropertiesR0600(void *properties, int device)
{
    if (device || no_device()) return answer(INVALID_DEVICE);
    char *p = static_cast<char *>(properties);
    const size_t memory = DEVICE_BYTES, lds = 65536;
    const int wave = target()->wave, units = target()->units;
    memset(p, 0, 1472);
    snprintf(p, 256, "AMD stand-in");
    memcpy(p + 288, &memory, sizeof memory);
    memcpy(p + 296, &lds, sizeof lds);
    memcpy(p + 308, &wave, sizeof wave);
    memcpy(p + 388, &units, sizeof units);
    snprintf(p + 1160, 256, "%s%s", target()->name, target()->wave == 64 ? ":sramecc+:xnack-" : "");
    return SUCCESS;
}
API int hipDeviceGetAttribute(int *value, int attribute, int device)
{
    if (device || no_device()) return answer(INVALID_DEVICE);
    switch (attribute) {
    case 16: *value = 0; return SUCCESS;                /* integrated */
    case 56: *value = 1024; return SUCCESS;             /* threads of a block */
    case 63: *value = target()->units; return SUCCESS;  /* multiprocessors */
    case 87: *value = target()->wave; return SUCCESS;   /* warp size */
    }
    return answer(INVALID_VALUE);
}
API int hipDeviceSynchronize() { return SUCCESS; }
API int hipGetLastError()
{
    const int error = last_error;
    last_error = SUCCESS;
    return error;
}
API const char *hipGetErrorString(int error)
{
    switch (error) {
    case SUCCESS: return "no error";
    case INVALID_VALUE: return "invalid argument";
    case OUT_OF_MEMORY: return "out of memory";
    case NO_DEVICE: return "no ROCm-capable device is detected";
    case INVALID_DEVICE: return "invalid device ordinal";
    case INVALID_IMAGE: return "device kernel image is invalid";
    case NO_BINARY: return "no kernel image is available for execution on the device";
    case NOT_FOUND: return "named symbol not found";
    case LAUNCH_FAILURE: return "unspecified launch failure";
    }
    return "unknown error";
}
API const char *hipGetErrorName(int error) { return error ? "hipError" : "hipSuccess"; }

/* ---------------------------------------------------------------- memory */

API int hipMalloc(void **p, size_t n)
{
    *p = nullptr;
    if (faulty("alloc") || n > DEVICE_BYTES - allocated) return answer(OUT_OF_MEMORY);
    if (!n) return SUCCESS;
    const size_t rounded = (n + 255) & ~(size_t)255, inner = (rounded + PAGE - 1) & ~(PAGE - 1);
    void *m = mmap(nullptr, inner + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED) return answer(OUT_OF_MEMORY);
    char *base = static_cast<char *>(m), *end = base + PAGE + inner, *first = end - rounded; /* ends at the guard */
    mprotect(base, PAGE, PROT_NONE);
    mprotect(end, PAGE, PROT_NONE);
    memset(base + PAGE, 0xff, inner);
    blocks[first] = {base, inner + 2 * PAGE, n};
    allocated += n;
    *p = first;
    return SUCCESS;
}
API int hipFree(void *p)
{
    if (!p) return SUCCESS;
    auto it = blocks.find(static_cast<char *>(p));
    if (it == blocks.end()) return answer(INVALID_VALUE);
    munmap(it->second.base, it->second.mapped);
    allocated -= it->second.bytes;
    blocks.erase(it);
    return SUCCESS;
}
API int hipHostMalloc(void **p, size_t n, unsigned)
{
    *p = faulty("hostalloc") ? nullptr : aligned_alloc(PAGE, (n + PAGE - 1) & ~(PAGE - 1));
    return answer(*p ? SUCCESS : OUT_OF_MEMORY);
}
API int hipHostFree(void *p) { return free(p), SUCCESS; }
API int hipMemcpy(void *to, const void *from, size_t n, int kind) { return copy(to, from, n, kind); }
API int hipMemcpyAsync(void *to, const void *from, size_t n, int kind, void *) { return copy(to, from, n, kind); }
API int hipMemcpyHtoD(void *to, void *from, size_t n) { return copy(to, from, n, 1); }
API int hipMemcpyDtoH(void *to, void *from, size_t n) { return copy(to, from, n, 2); }
API int hipMemset(void *p, int value, size_t n) { return is_device(p, n) ? (memset(p, value, n), SUCCESS) : answer(INVALID_VALUE); }
API int hipMemsetAsync(void *p, int value, size_t n, void *) { return hipMemset(p, value, n); }
API int hipMemsetD8(void *p, unsigned char value, size_t n) { return hipMemset(p, value, n); }
API int hipMemsetD8Async(void *p, unsigned char value, size_t n, void *) { return hipMemset(p, value, n); }

/* ---------------------------------------------------------------- modules and launches */

API int hipModuleLoadData(void **module, const void *image)
{
    *module = nullptr;
    unsigned mach = 0;
    const size_t n = elf_bytes(static_cast<const unsigned char *>(image), &mach);
    if (faulty("load") || !n) return answer(INVALID_IMAGE);
    if (no_device() || mach != target()->mach) return answer(NO_BINARY);
    const char *folder = getenv("TRAINC_STANDIN_KERNELS");
    char path[4096];
    snprintf(path, sizeof path, "%s/%016llx.so", folder ? folder : ".", (unsigned long long)fnv64(static_cast<const unsigned char *>(image), n));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *run = library ? dlsym(library, "shim_run") : nullptr;
    if (!run) {
        fprintf(stderr, "stand-in: no host kernels for this code object: %s\n", dlerror());
        return answer(NO_BINARY);
    }
    Module *m = new Module{library, nullptr, {}};
    memcpy(&m->run, &run, sizeof run);
    *module = m;
    return SUCCESS;
}
API int hipModuleLoadDataEx(void **module, const void *image, unsigned, void *, void *) { return hipModuleLoadData(module, image); }
API int hipModuleUnload(void *module)
{
    Module *m = static_cast<Module *>(module);
    if (!m) return answer(INVALID_HANDLE);
    for (auto &f : m->functions) delete f.second;
    dlclose(m->library);
    delete m;
    return SUCCESS;
}
API int hipModuleGetFunction(void **function, void *module, const char *name)
{
    Module *m = static_cast<Module *>(module);
    if (m->run(name, nullptr, nullptr, nullptr, nullptr, 0)) return *function = nullptr, answer(NOT_FOUND);
    Function *&f = m->functions[name];
    if (!f) f = new Function{m, name};
    *function = f;
    return SUCCESS;
}
API int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned lds, void *,
                              void **params, void **extra)
{
    const Function *f = static_cast<Function *>(function);
    if (!f || extra || lds > 65536 || !gx || !gy || !gz || !bx || !by || !bz) return answer(INVALID_VALUE);
    if (faulty("launch")) return answer(LAUNCH_FAILURE);
    const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
    char error[1024] = "";
    if (!f->module->run(f->name.c_str(), grid, block, params, error, sizeof error)) return SUCCESS;
    fprintf(stderr, "stand-in: %s\n", error);
    return answer(LAUNCH_FAILURE);
}

/* ---------------------------------------------------------------- streams and events */

API int hipStreamCreate(void **stream) { return *stream = new Stream{0}, SUCCESS; }
API int hipStreamCreateWithFlags(void **stream, unsigned) { return hipStreamCreate(stream); }
API int hipStreamDestroy(void *stream) { return delete static_cast<Stream *>(stream), SUCCESS; }
API int hipStreamSynchronize(void *) { return SUCCESS; }
API int hipStreamQuery(void *) { return SUCCESS; }
API int hipStreamWaitEvent(void *, void *, unsigned) { return SUCCESS; }
API int hipEventCreate(void **event) { return *event = new Event{0}, SUCCESS; }
API int hipEventCreateWithFlags(void **event, unsigned) { return hipEventCreate(event); }
API int hipEventDestroy(void *event) { return delete static_cast<Event *>(event), SUCCESS; }
API int hipEventRecord(void *event, void *) { return static_cast<Event *>(event)->at = now_ms(), SUCCESS; }
API int hipEventSynchronize(void *) { return SUCCESS; }
API int hipEventQuery(void *) { return SUCCESS; }
API int hipEventElapsedTime(float *ms, void *from, void *to)
{
    *ms = (float)(static_cast<Event *>(to)->at - static_cast<Event *>(from)->at);
    return SUCCESS;
}
