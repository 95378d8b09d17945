/* onnx_expect.h - are the values of a case's outputs those that ONNX expects? Types are equal already; NULL, or what differs. */
#ifndef TRAINC_TESTS_ONNX_EXPECT_H
#define TRAINC_TESTS_ONNX_EXPECT_H
#include "onnx_case.h"
const char *onnx_expect(OnnxCase *, const Tensor *want, const Tensor *const *got);
#endif
