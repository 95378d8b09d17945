/* torch_model.h - a model with what PyTorch says beside it; see torch_model.c. `least`: there must be that many comparisons. */
#ifndef TRAINC_TESTS_TORCH_MODEL_H
#define TRAINC_TESTS_TORCH_MODEL_H
#include <stdint.h>
void torch_model_values(const char *path, uint32_t least);
void torch_model_gradients(const char *path, uint32_t least);
#endif
