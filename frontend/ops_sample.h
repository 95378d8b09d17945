/* ops_sample.h - reading a tensor between its pixels, shared by GridSample and DeformConv. Private to frontend/. */
#ifndef TRAINC_OPS_SAMPLE_H
#define TRAINC_OPS_SAMPLE_H
#include "import.h"

typedef enum SampleMode { SAMPLE_NEAREST, SAMPLE_LINEAR, SAMPLE_CUBIC } SampleMode;
typedef enum SamplePadding { SAMPLE_ZEROS, SAMPLE_BORDER, SAMPLE_REFLECTION } SamplePadding;
typedef struct Sampler {
    ImportNode *n;
    SampleMode mode;
    SamplePadding padding;
    bool align_corners;           /* reflection is about pixel centres, else about pixel edges */
} Sampler;

/* x[B,C,s..] at the points at[i][B,P] along spatial axis i, in pixels, 0 the centre of the first: [B,C,P]. The gradient reaches x and the
 * points, with PyTorch's kinks. Points are f32 or f64; NaN reads as 0 or as the border. */
Value sample_points(const Sampler *, Value x, const Value *at);
/* v, or v in f32 where it is narrower: positions are not kept in half precision. */
Value sample_position(ImportNode *, Value v);
#endif
