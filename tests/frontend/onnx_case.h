/* onnx_case.h - folders of ONNX's own test data: model.onnx and test_data_set_0/{input,output}_N.pb. The expected values are ONNX's.
 *
 * A case is listed (what is it, is it dense?), read and imported once, and then run on any executor: the caller gives the values of
 * the graph's outputs, onnx_case_check says what is wrong with them. */
#ifndef TRAINC_TESTS_ONNX_CASE_H
#define TRAINC_TESTS_ONNX_CASE_H
#include "frontend.h"
#include "onnx_wire.h"

/* ---- which cases there are (onnx_list.c) ---- */

typedef struct CaseValue { const char *name; Type type; } CaseValue; /* dtype 0: none that we have, or no tensor; symbolic extents are 0 */
typedef struct ListedCase {
    const char *suite, *name, *folder;
    const char *op, *domain;   /* of the model's only node ("": ai.onnx), else NULL */
    const char **op_inputs; uint32_t n_op_inputs; /* and what it reads, in its order */
    int64_t opset;             /* of the default domain, or where the model does not import it, of its first */
    const char *not_dense;     /* why the case is none of dense tensors, or NULL */
    CaseValue *inputs, *outputs; /* as the model declares them; inputs without initializers */
    uint32_t n_inputs, n_outputs, n_nodes;
} ListedCase;
typedef struct CaseList { ListedCase *items; uint32_t n; } CaseList;
/* Every case under root/SUITE/test_*, by suite and name. n = 0 where the folder is not there.
 * Dense: every input, output and node attribute of the graph and of its subgraphs is a tensor of floats (float8 too), integers or
 * truth values of whole bytes; no op is one of quantized arithmetic, has a result whose shape depends on data, or is of ai.onnx.ml. */
CaseList onnx_cases(const char *root, Arena *);
/* Folders of cases: Debian's libonnx-testdata, or what ONNX_CASES names; and the newer ones that lie in the repository. */
const char *onnx_cases_installed(void);
const char *onnx_cases_newer(void);

/* ---- one case (onnx_case.c) ---- */

enum { MAX_CASE_TENSORS = 64 };
typedef struct OnnxCase {
    const ListedCase *listed;
    Arena *arena;
    onnx_tensors inputs[MAX_CASE_TENSORS], outputs[MAX_CASE_TENSORS];
    uint32_t n_inputs, n_outputs;
    EntryKind entry;           /* micro: of training mode */
    Model model;               /* imported where CASE_PASSED */
    int attempt;               /* which inputs became constants: 0 none, 1 integers and truth values, 2 all but the first, 3 all */
    int exit_status;           /* of the refusal */
    bool in_float;             /* the executor computes f64 in float: what float cannot hold is infinite */
    const char *why;           /* what was wrong, or which diagnostic refused */
} OnnxCase;
typedef enum CaseResult { CASE_PASSED, CASE_UNREADABLE, CASE_REFUSED, CASE_WRONG } CaseResult;

/* Reads and imports; CASE_PASSED: c->model can be run. Shape-like inputs (shapes, axes, pads) are bound to the values of the data
 * set where the model cannot be imported without. Free it in any case. */
CaseResult onnx_case_open(OnnxCase *c, const ListedCase *, Arena *);
void onnx_case_free(OnnxCase *);
/* Values of the graph's leaves; NULL where there is none. */
const Tensor *onnx_case_input(OnnxCase *, const char *name);
const Tensor *onnx_case_state(OnnxCase *, const Graph *, const char *name);
/* NULL where the values of the model's outputs, in the order of c->outputs, are what ONNX expects, else a sentence. */
const char *onnx_case_check(OnnxCase *, const Tensor *const *got);
/* The interpreter on c->model, checked. */
CaseResult onnx_case_interpret(OnnxCase *);
#endif
