/* device.h - what a step asks of a device: one arena, bytes in and out, an entry's launches run in order. Not public.
 *
 * A device prepares every launch at open (pointers of arguments, library primitives, kernels' handles), so that running an entry
 * neither looks anything up nor allocates. Scalars are read through stable addresses when a launch happens. */
#ifndef TRAINC_DEVICE_H
#define TRAINC_DEVICE_H
#include "fail.h"
#include "trainc_program.h"
#include <stdbool.h>

typedef enum ScalarId {
#define SCALAR(name, dtype, meaning) SCALAR_##name,
#include "scalar.def"
#undef SCALAR
    N_SCALARS
} ScalarId;
typedef union ScalarValue { float f; int64_t i; } ScalarValue;
int scalar_find(const char *name);                       /* -1: no such scalar */
/* Where the value of a scalar argument lies: a step scalar, or `*number`, which is set to the number that the argument itself holds. */
void *scalar_address(const trainc_arg *, ScalarValue *scalars, int64_t *number);
enum { ENTRY_OF_INIT, ENTRY_OF_MICRO, ENTRY_OF_APPLY, ENTRY_OF_EVAL, N_ENTRIES_OF }; /* trainc_plan.entries */

typedef struct DeviceSetup {
    const trainc_plan *plan;
    ScalarValue *scalars;                                /* N_SCALARS, outlives the device */
    int ordinal;                                         /* which of several */
    int threads;                                         /* 0: all */
} DeviceSetup;

typedef struct Device Device;
typedef struct DeviceVtable {
    const char *kind;                                    /* "cpu", "hip": trainc_plan.device */
    /* Reserves the arena and prepares all launches. TRAINC_DEVICE: not usable here; TRAINC_NO_MEMORY: the arena cannot be had. */
    trainc_status (*open)(const DeviceSetup *, Device **, Fail *);
    trainc_status (*upload)(Device *, uint64_t offset, const void *, uint64_t bytes, Fail *);
    trainc_status (*download)(Device *, uint64_t offset, void *, uint64_t bytes, Fail *);  /* waits for what was launched before */
    trainc_status (*run)(Device *, int entry, Fail *);   /* launches in order; may return before they are done */
    trainc_status (*sync)(Device *, Fail *);
    void (*close)(Device *);
} DeviceVtable;
struct Device {
    const DeviceVtable *vt;
    uint64_t reserved_bytes;                             /* the arena, and what libraries need beside it */
    bool is_zero;                                        /* the arena came as zeros and no state was written yet */
};
extern const DeviceVtable cpu_device, hip_device;
/* device_next - the next launch of an entry, and in which turn of the loops around it (outer, inner) it is. Begin with {0}; false at
 *   the end. */
typedef struct Turn { uint32_t launch, depth; int64_t turn[TRAINC_LOOPS]; uint32_t at, next_loop, loop[TRAINC_LOOPS]; } Turn;
bool device_next(const trainc_entry *, Turn *);
/* device_arg_offset - where an argument is in that turn, or what its number is. */
static inline int64_t device_arg_offset(const trainc_arg *a, const int64_t turn[TRAINC_LOOPS]) {
    return (int64_t)a->offset + turn[0] * a->stride[0] + turn[1] * a->stride[1];
}
static inline bool device_arg_moves(const trainc_arg *a) { return a->stride[0] || a->stride[1]; }
/* device_args_valid - scalars exist, buffers lie in the arena, launches name kernels and arguments that exist; else *bad says what. */
bool device_args_valid(const trainc_plan *, const char **bad);
#endif
