/* optimizer_state.h - how moments are kept between steps; private to passes/. */
#ifndef TRAINC_OPTIMIZER_STATE_H
#define TRAINC_OPTIMIZER_STATE_H
#include "ir.h"

/* A moment in blocks of 8-bit codes: the names of its two states, and their values when the step began. */
typedef struct PackedMoment {
    const char *codes, *largest; /* u8 [blocks, 256], f32 [blocks, 1] */
    bool is_signed;
    Value old_codes, old_largest;
} PackedMoment;
/* Is a parameter of that type large enough? Below 4,096 elements moments stay in f32, as in bitsandbytes. */
bool moment_is_packed(const Type *);
/* Adds the states where they are missing; the moment in f32, of the parameter's dims. */
Value packed_moment_read(Graph *, PackedMoment *, const char *parameter, const Type *);
void packed_moment_write(Graph *, const PackedMoment *, Value v, Value *codes, Value *largest);
#endif
