/* cpu_dnnl_query.c - what the cpu target's library products need beside their operands: nothing that the plan must hold.
 *
 * Operands stay in plain layouts: measured, a packed copy of the weights does not pay for its memory here (docs/why.md). What a
 * primitive asks for as scratch the runtime keeps beside the arena and reports. */
#include "codegen.h"

uint64_t cpu_packed_bytes(const Graph *g, Value contraction, int which)
{
    (void)g, (void)contraction, (void)which;
    return 0;
}

uint64_t cpu_scratch_bytes(const Graph *g, Value contraction)
{
    (void)g, (void)contraction;
    return 0;
}
