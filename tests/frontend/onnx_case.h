/* onnx_case.h - a folder of ONNX's own test data: model.onnx and test_data_set_0/{input,output}_N.pb. The expected values are ONNX's. */
#ifndef TRAINC_TESTS_ONNX_CASE_H
#define TRAINC_TESTS_ONNX_CASE_H
#include "frontend.h"
#include "onnx_wire.h"

enum { MAX_CASE_TENSORS = 24 };
typedef struct OnnxCase {
    const char *folder;
    Arena *arena;
    onnx_tensors inputs[MAX_CASE_TENSORS], outputs[MAX_CASE_TENSORS];
    uint32_t n_inputs, n_outputs;
} OnnxCase;
typedef enum CaseResult { CASE_PASSED, CASE_UNREADABLE, CASE_REFUSED, CASE_WRONG } CaseResult;

/* Reads the tensors, imports the model, interprets `entry`, compares. *why says what was wrong, or which diagnostic refused. */
CaseResult onnx_case_run(const char *folder, EntryKind entry, const char **why, Arena *);
#endif
