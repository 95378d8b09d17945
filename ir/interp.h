/* interp.h - private to ir/: what the files of the reference interpreter share.
 *
 * Every element is eight bytes (a double or an int64_t), so that copies need no dtype. All movement
 * and accumulation of strided data, from transposes to convolutions, is one function: walk. */
#ifndef TRAINC_INTERP_H
#define TRAINC_INTERP_H
#include "ir.h"

typedef struct Eval { /* one node being evaluated: out.type is set and its elements allocated, not
                         zeroed */
    const Graph *g;
    Value v;
    Tensor out;
    const Tensor *const *in;
    uint32_t n_in;
    bool is_float;        /* class of the result */
    const InterpEnv *env; /* NULL while folding: only constant leaves have a value */
    Arena *arena;
    FILE *errors; /* NULL: silent */
    struct ScanMemo **scans; /* loops that have run: siblings take their results from it */
} Eval;

/* One function per structured row of op.def: eval_NAME writes e->out; false after a message. */
#define OP(name, ...) bool eval_##name(Eval *);
#include "op.def"
bool eval_map(Eval *); /* interp_map.c: every MAP row, from its body */
bool eval_fail(const Eval *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* `g` itself, or a copy without macros, which the caller frees. */
const Graph *interp_plain(const Graph *g, Arena *, EntryKind);

enum { WALK_RANK = 2 * MAX_RANK };
/* UMIN, UMAX: of u64 */
typedef enum WalkMode { WALK_COPY, WALK_ADD, WALK_MUL, WALK_MIN, WALK_MAX, WALK_UMIN, WALK_UMAX, WALK_MADD } WalkMode;
typedef struct Walk { /* a nest of loops, the last innermost, with a stride per loop of dst and both
                         sources */
    uint32_t rank;
    int64_t dims[WALK_RANK], d[WALK_RANK], a[WALK_RANK], b[WALK_RANK];
} Walk;
/* For every point of w: dst[..] (mode)= a[..], or dst[..] += a[..] * b[..] for MADD. NaN wins in
 * MIN and MAX. */
void walk(WalkMode, bool is_float, const Walk *w, void *dst, const void *a, const void *b);
void walk_row(WalkMode, bool is_float, int64_t n, void *dst, const void *a); /* contiguous */
void walk_axis(Walk *, int64_t dim, int64_t d, int64_t a,
               int64_t b); /* adds a loop inside those there are */

void strides_of(const Type *, int64_t strides[MAX_RANK]); /* row-major, in elements */
bool index_next(int64_t *index, const int64_t *dims,
                uint32_t rank); /* row-major; false after the last */
void list_of(const Graph *, Value, AttrKey, int64_t otherwise, uint32_t n,
             int64_t *out); /* an INTS field, or n times `otherwise` */
void tensor_fill(Tensor *, double value);
void tensor_wrap(
    Tensor *); /* integers narrower than 64 bits back into their range, bool into 0 or 1 */
bool dtype_is_float(int dtype);
#endif
