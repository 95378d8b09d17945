/* mutate.h - an ONNX model made wrong at a place or two. */
#ifndef TRAINC_TESTS_MUTATE_H
#define TRAINC_TESTS_MUTATE_H
#include "onnx.pb-c.h"
#include <stddef.h>

typedef struct Dice { uint64_t state; } Dice;
uint32_t dice(Dice *, uint32_t n); /* 0 .. n - 1; n > 0 */

/* Changes the model in place; what it did is appended to `text`. Strings and lists that it puts in are never freed. */
void mutate(Onnx__ModelProto *, Dice *, char *text, size_t size);
#endif
