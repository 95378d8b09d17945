/* target_c.h - private to target_c*.c: how a kernel's function is printed in pieces. */
#ifndef TRAINC_TARGET_C_H
#define TRAINC_TARGET_C_H
#include "kernel.h"

typedef struct CKernel {           /* what the printers of one function share */
    const Graph *g;
    const Kernel *k;
    Text *out;
    BodyTarget body;
    bool *is_uniform;              /* per let: made once, at the top of the function */
    uint32_t n_par, n_red;
} CKernel;

CKernel c_kernel(const Graph *, const Kernel *, Text *);
void c_signature(const CKernel *, const char *suffix);       /* up to and with the opening brace */
void c_uniform(const CKernel *);                             /* the statements made once */
void c_statements(const CKernel *, const Stage *, const char *indent); /* all others of the stage */
bool c_is_large(const CKernel *);                            /* worth several threads */
const char *c_indent(uint32_t depth);
void c_for(const CKernel *, uint32_t axis, uint32_t depth);  /* "for (int64_t i2 = 0; i2 < 7; i2++)" and newline */
void c_points(const CKernel *);
void c_rows(const CKernel *);
void c_scatter(const CKernel *);
void c_tile(const CKernel *);
/* Is a contraction of this kernel worth a library call, and to which param does the raw product go? -1: none. */
int target_c_library_param(const Graph *, const Kernel *);
void target_c_epilogue(const Graph *, const Kernel *, Text *); /* NAME_epilogue: finishes the raw product in place; needs a library param */
bool target_c_has_epilogue(const Graph *, const Kernel *);
#endif
