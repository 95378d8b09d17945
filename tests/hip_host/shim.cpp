/* shim.cpp - runs one kernel launch on the host: blocks one after the other, the threads of a block as fibres.
 *
 * A fibre runs until its kernel ends or it stands at a barrier or a wave operation that others have not reached. When the last one of the
 * wave (or block) arrives, all go on; if nobody can go on, the lanes diverged, and the launch fails with who stands where. So a
 * missing barrier shows as poison or an old value, an operation under a divergent branch as a failed launch. LDS is filled with NaN before
 * every block. Linked into every library of host-compiled kernels.
 */
#include "shim.h"
#undef global
#undef device
#undef shared
#undef address_space
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <vector>

#ifndef __x86_64__
#error the context switch below is for x86-64
#endif
/* shim_switch(save, load): pushes what a callee must keep, stores the stack pointer, continues on the other stack. */
asm(".text\n.hidden shim_switch\n.globl shim_switch\n.type shim_switch, @function\nshim_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n.size shim_switch, .-shim_switch\n");

extern "C" {
void shim_switch(void **save, void *load);
unsigned shim_thread, shim_block[3], shim_grid[3];
extern const ShimEntry shim_table[];
extern const int shim_wave_size;
extern char __start_tc_lds[], __stop_tc_lds[];
}

namespace {
enum { STACK = 256 << 10, PAGE = 4096, MAX_THREADS = 1024, MAX_PAYLOAD = 128 };
enum State { READY, AT_WAVE, AT_BARRIER, DONE };
struct Fibre { void *sp; char *stack; State state; const char *op; int line; unsigned wave_ops; };
struct Wave { unsigned arrived; const char *op; int line; alignas(64) char payload[2][64 * MAX_PAYLOAD]; };
struct Dirty { size_t from, to; };

Fibre fibres[MAX_THREADS];
std::vector<Wave> waves;
void *scheduler;
unsigned n_threads, barrier_arrived, running;
void (*kernel_run)(void *const *);
void *const *kernel_args;
bool failed;
char failure[512];

void fail(const char *format, ...)
{
    if (failed) return;
    failed = true;
    va_list args;
    va_start(args, format);
    vsnprintf(failure, sizeof failure, format, args);
    va_end(args);
}

void leave(State state)
{
    Fibre &f = fibres[running];
    f.state = state;
    shim_switch(&f.sp, scheduler);
}

void fibre_main()
{
    kernel_run(kernel_args);
    leave(DONE);
    abort();
}

void make_fibre(Fibre &f)
{
    if (!f.stack) {
        void *memory = mmap(nullptr, STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) abort();
        mprotect(memory, PAGE, PROT_NONE);
        f.stack = static_cast<char *>(memory) + PAGE;
    }
    void **top = reinterpret_cast<void **>(f.stack + STACK) - 2;
    top[0] = reinterpret_cast<void *>(&fibre_main); /* returned into with the stack as after a call */
    top[1] = nullptr;
    f.sp = top - 6;
    memset(f.sp, 0, 6 * sizeof(void *));
    f.state = READY;
    f.wave_ops = 0;
}

void explain_divergence()
{
    int waiting = -1, other = -1;
    for (unsigned t = 0; t < n_threads; t++)
        if (fibres[t].state != DONE && waiting < 0) waiting = (int)t;
    for (unsigned t = 0; t < n_threads; t++)
        if (fibres[t].state != fibres[waiting].state || fibres[t].line != fibres[waiting].line) other = (int)t;
    const Fibre &w = fibres[waiting];
    if (other < 0) fail("threads wait at %s (line %d) for ever", w.op, w.line);
    else if (fibres[other].state == DONE) fail("diverged: thread %d waits at %s (line %d), thread %d has ended", waiting, w.op, w.line, other);
    else fail("diverged: thread %d waits at %s (line %d), thread %d at %s (line %d)", waiting, w.op, w.line, other, fibres[other].op, fibres[other].line);
}

bool run_block()
{
    for (unsigned t = 0; t < n_threads; t++) make_fibre(fibres[t]);
    for (Wave &w : waves) w.arrived = 0;
    barrier_arrived = 0;
    for (unsigned left = n_threads; left && !failed;) {
        bool progress = false;
        for (unsigned t = 0; t < n_threads && !failed; t++) {
            if (fibres[t].state != READY) continue;
            progress = true;
            running = shim_thread = t;
            shim_switch(&scheduler, fibres[t].sp);
            if (fibres[t].state == DONE) left--;
        }
        if (!progress && left && !failed) explain_divergence();
    }
    return !failed;
}

size_t lds_bytes() { return (size_t)(__stop_tc_lds - __start_tc_lds); }

/* Which parts of the LDS section a kernel wrote, so that not all of it is poisoned for every block. */
std::vector<Dirty> find_dirty()
{
    std::vector<Dirty> found;
    static const char poison[64] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                    -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    for (size_t at = 0; at < lds_bytes(); at += 64) {
        const size_t n = lds_bytes() - at < 64 ? lds_bytes() - at : 64;
        if (!memcmp(__start_tc_lds + at, poison, n)) continue;
        if (!found.empty() && at - found.back().to <= 1024) found.back().to = at + n;
        else found.push_back({at, at + n});
    }
    return found;
}
void poison(const std::vector<Dirty> &dirty)
{
    for (const Dirty &d : dirty) memset(__start_tc_lds + d.from, 0xff, d.to - d.from);
}
} // namespace

extern "C" void shim_fail(const char *what, int line)
{
    fail("%s (line %d, thread %u)", what, line, shim_thread);
    leave(DONE);
}

extern "C" void shim_barrier(int line)
{
    Fibre &f = fibres[running];
    f.op = "the barrier";
    f.line = line;
    if (++barrier_arrived < n_threads) return leave(AT_BARRIER);
    barrier_arrived = 0;
    for (unsigned t = 0; t < n_threads; t++) {
        if (t != running && fibres[t].line != line) fail("diverged: thread %u is at the barrier of line %d, thread %u at that of line %d", running, line, t, fibres[t].line);
        fibres[t].state = READY;
    }
}

extern "C" const void *shim_wave(const char *op, int line, const void *mine, size_t bytes)
{
    const unsigned size = (unsigned)shim_wave_size, first = running / size * size, lanes = n_threads - first < size ? n_threads - first : size;
    Fibre &f = fibres[running];
    Wave &w = waves[running / size];
    f.op = op;
    f.line = line;
    if (w.arrived && (w.op != op || w.line != line)) {
        fail("diverged: thread %u is at %s (line %d), its wave at %s (line %d)", running, op, line, w.op, w.line);
        leave(DONE);
    }
    w.op = op;
    w.line = line;
    char *payload = w.payload[f.wave_ops++ & 1]; /* two, because a fast lane may be at the next operation already */
    if (bytes > MAX_PAYLOAD) abort();
    memcpy(payload + (running - first) * bytes, mine, bytes);
    if (++w.arrived < lanes) {
        leave(AT_WAVE);
    } else {
        w.arrived = 0;
        for (unsigned t = first; t < first + lanes; t++) fibres[t].state = READY;
    }
    return payload;
}

/* shim_run - one launch. 0, or -1 with a sentence in `error`; 1: no kernel of that name. */
extern "C" __attribute__((visibility("default"))) int shim_run(const char *name, const unsigned *grid, const unsigned *block, void *const *args,
                                                               char *error, size_t error_bytes)
{
    const ShimEntry *entry = shim_table;
    while (entry->name && strcmp(entry->name, name)) entry++;
    if (!entry->name) return 1;
    if (!grid) return 0; /* asked only whether it is there */
    static bool poisoned;
    if (!poisoned) memset(__start_tc_lds, 0xff, lds_bytes());
    poisoned = true;
    static std::vector<std::vector<Dirty>> dirty_of;
    static std::vector<bool> known;
    const size_t number = (size_t)(entry - shim_table);
    if (known.size() <= number) known.resize(number + 1), dirty_of.resize(number + 1);
    n_threads = block[0] * block[1] * block[2];
    if (n_threads > MAX_THREADS || block[0] != n_threads) return snprintf(error, error_bytes, "blocks are one-dimensional here"), -1;
    waves.resize((n_threads + (unsigned)shim_wave_size - 1) / (unsigned)shim_wave_size);
    kernel_run = entry->run;
    kernel_args = args;
    failed = false;
    memcpy(shim_grid, grid, sizeof shim_grid);
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                shim_block[0] = x, shim_block[1] = y, shim_block[2] = z;
                if (!run_block()) {
                    snprintf(error, error_bytes, "kernel %s, block %u,%u,%u: %s", name, x, y, z, failure);
                    memset(__start_tc_lds, 0xff, lds_bytes());
                    return -1;
                }
                if (!known[number]) dirty_of[number] = find_dirty(), known[number] = true;
                poison(dirty_of[number]);
            }
    return 0;
}
