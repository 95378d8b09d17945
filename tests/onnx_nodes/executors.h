/* executors.h - a case of ONNX's test data planned for a target; its kernels are printed into one source with those of many others. */
#ifndef TRAINC_ONNX_NODES_EXECUTORS_H
#define TRAINC_ONNX_NODES_EXECUTORS_H
#include "../frontend/onnx_case.h"
#include "passes.h"

/* The graph of the case that runs as ENTRY_EVAL, expanded and simplified as `trainc eval` does it, ready for fuse. Takes the model's
 * graph over: caller frees. */
Graph *node_graph(OnnxCase *, bool for_gpu, Arena *);
/* The bytes that every buffer has when the entry begins: inputs, states, constants; the rest stays as it is. */
void node_fill(OnnxCase *, const Graph *, const Plan *, unsigned char *memory);
/* Names the case on stderr where what follows crashes. */
void node_guard(const OnnxCase *);
/* What is wrong with the outputs that lie in memory now; NULL: nothing. */
const char *node_check(OnnxCase *, const Graph *, const Plan *, const unsigned char *memory);
/* The cases of a root that import, every `stride`-th from `first` on: an array in the arena. */
uint32_t node_open(const char *root, uint32_t first, uint32_t stride, Arena *, OnnxCase **);
#endif
