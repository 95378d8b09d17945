/* ops_window.h - the sliding window that convolutions and pools share. Private to frontend/. */
#ifndef TRAINC_OPS_WINDOW_H
#define TRAINC_OPS_WINDOW_H
#include "import.h"

typedef struct Window {           /* one entry per spatial axis */
    uint32_t rank;
    int64_t in[MAX_RANK], out[MAX_RANK], kernel[MAX_RANK], strides[MAX_RANK], dilations[MAX_RANK], low[MAX_RANK], high[MAX_RANK];
    int64_t stated_high[MAX_RANK]; /* high as the node says, before ceil_mode widened it */
} Window;

/* Attribute `name`, a list of `want` numbers, or `otherwise` for each where it is absent.
 *   errors  E_OP_ATTRIBUTE where it has another length or a number beyond 31 bits: false */
bool window_list(ImportNode *, const char *name, uint32_t want, int64_t otherwise, int64_t *out);
/* window_read - strides, dilations, pads, auto_pad and ceil_mode of a Conv or pool over x[N,C,s..] with the given kernel extents.
 *   errors  E_OP_ATTRIBUTE, E_SHAPES at the node: false */
bool window_read(ImportNode *, Value x, const int64_t *kernel, Window *);
AttrId window_attr(Graph *, const Window *, int64_t groups);      /* of conv, conv_dx, conv_dw */
Value window_view(Graph *, Value x, const Window *, double outside); /* [N,C,o..,k..] */
#endif
