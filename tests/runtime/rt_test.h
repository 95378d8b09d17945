/* rt_test.h - what the runtime's tests share: criterion, a folder of their own, files, the toy's reference. */
#ifndef RT_TEST_H
#define RT_TEST_H
#include "toy/toy.h"
#include <criterion/criterion.h>
#include <stdbool.h>
/* A fresh empty folder below the build folder; removed files are the next run's business. */
const char *test_folder(const char *name);
void write_file(const char *path, const void *bytes, size_t n);
char *read_file(const char *path, size_t *n);          /* malloc'd, ends with a NUL beyond n */
void write_npy(const char *path, const char *descr, const char *shape, const void *bytes, size_t n);
/* The toy in double, written independently: one step over `n` samples. */
typedef struct ToyReference { double w[TOY_ROWS], m[TOY_ROWS], grad[TOY_ROWS], loss, norm; bool started; } ToyReference;
void toy_reference_step(ToyReference *, const int64_t *ids, const float *labels, int n, double lr, double momentum, double wd, double clip);
extern const int64_t toy_ids[][2];
extern const float toy_labels[];
#endif
