/* ops_list.h - what is known about each ONNX op, from onnx.def (rows, remarks) and onnx_tests.def (what ONNX's node tests showed): one
 * summary per op, for `trainc ops` and docs/operators.md. */
#ifndef TRAINC_OPS_LIST_H
#define TRAINC_OPS_LIST_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct OpRow { int64_t since, until; const char *how; bool needs_known_shape; } OpRow; /* until INT64_MAX: the newest */
enum { MOST_OP_ROWS = 8 };
typedef struct OpSummary {
    const char *domain, *name;                               /* domain "": ai.onnx */
    OpRow rows[MOST_OP_ROWS]; uint32_t n_rows;
    int cases, agree;                                        /* of ONNX's node tests; 0: it has none */
    const char *gradients;                                   /* inputs whose gradient was compared with differences, or "" */
    const char *remark;                                      /* or "" */
} OpSummary;
/* All ops, by domain and name. The list is static. */
const OpSummary *ops_list(size_t *n);
#endif
