/* shape_rules.h - what the shape rules share; private to shape*.c. */
#ifndef TRAINC_SHAPE_RULES_H
#define TRAINC_SHAPE_RULES_H
#include "op_functions.h"

typedef struct Axes {
    const int64_t *at;
    uint32_t n;
} Axes;

Axes shape_axes(const Graph *, AttrId, AttrKey); /* the list of that field */
int64_t shape_int(const Graph *, AttrId, AttrKey);
/* "op: what (operand types)" under E_SHAPES or E_DTYPE; returns 0 */
TypeId shape_refuse(Graph *, OpCode, const Value *operands, uint32_t n, const char *what);
TypeId shape_refuse_dtype(Graph *, OpCode, DType, const char *what);
TypeId shape_done(Graph *, OpCode, const Value *operands, uint32_t n,
                  const Type *); /* interned, or refused as too large */
bool shape_lists_are(const Graph *, OpCode, AttrId,
                     uint32_t n); /* all lists of the row have n elements of sane size */
/* Extent of a window over s: positions of a kernel k with stride, dilation and padding; -1 where it
 * fits nowhere. */
int64_t window_extent(int64_t s, int64_t k, int64_t stride, int64_t dilation, int64_t low,
                      int64_t high);
static inline DTypeClass dtype_class(uint32_t d) { return dtype_info[d].cls; }
#endif
