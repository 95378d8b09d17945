/* op_functions.h - the functions that rows of op.def name: shape_NAME (shape*.c) and vjp_NAME (vjp.c).
 *
 * Declared from the registry itself; a row that names a new one needs only its definition. vjp `none` is NULL in the table.
 */
#ifndef TRAINC_OP_FUNCTIONS_H
#define TRAINC_OP_FUNCTIONS_H
#include "ir.h"

ShapeFn shape_map; /* every MAP row */
#define OP(name, arity, cast, cost, lower, shape, vjp, ...) \
    ShapeFn shape_##shape;                                  \
    VjpFn vjp_##vjp;
#define MACRO(name, arity, cast, cost, shape, ...) ShapeFn shape_##shape;
#include "op.def"

AttrId attr_complete(Graph *, OpCode, const Value *operands, AttrId); /* adds the fields of the row that have a neutral value */
AttrKey attr_misfit(const Graph *, OpCode, AttrId); /* a field that the row lacks or that lacks; A_NONE where all is well */
Value node_find(const Graph *, const Node *, const Value *operands); /* the node equal to this one, or 0 */
#endif
