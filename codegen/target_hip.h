/* target_hip.h - what the HIP printer's files share: how a kernel's axes fall onto blocks and threads. Private to codegen/. */
#ifndef TRAINC_TARGET_HIP_H
#define TRAINC_TARGET_HIP_H
#include "kernel.h"

enum { HIP_THREADS = 256, HIP_GRID_X = 1 << 20 }; /* of a block; blocks beyond go to grid.y */

/* POINTS: a thread takes `vec` neighbours along the last axis. */
typedef struct HipPoints { uint32_t vec; int64_t threads; } HipPoints;

/* ROWS: `team` threads share a row, `rows` rows a block (team * rows = 256). Members of a team are neighbouring lanes, or, where rows
 * are contiguous in memory (columns), every rows-th thread. The team splits the reduction axis `split` (n_axes: none), `vec` at a time,
 * or, `flat`, all `length` points of the reduction axes. */
typedef struct HipRows { uint32_t team, rows, split, vec; bool columns, flat; int64_t n_rows, length, blocks; } HipRows;

/* TILE: bm x bn results a block. modes: how the fp32 routine reads its operands. */
typedef struct HipTile { uint32_t bm, bn, bk; int64_t tiles_m, tiles_n, blocks; bool matrix; } HipTile;

HipPoints hip_points(const Kernel *);
HipRows hip_rows(const Kernel *);
HipTile hip_tile(const Kernel *);
bool hip_is_wide(const Kernel *);                   /* an index may pass 2^31: 64-bit arithmetic */
const char *hip_index_type(const Kernel *);
/* "const int a0 = ..;" for axes [first, last] of the flat index `flat`, the last one in units of `unit`. */
void hip_print_axes(const Kernel *, uint32_t first, uint32_t last, uint32_t unit, const char *flat, Text *);
void hip_print_rows(const Graph *, const Kernel *, Text *);
void hip_print_tile(const Graph *, const Kernel *, Text *);
/* Names a0, a1, ... for all axes. */
BodyTarget hip_body(const Kernel *, Arena *, const char *indent);
#endif
