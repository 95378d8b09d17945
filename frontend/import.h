/* import.h - what an importer of one ONNX op sees. Private to frontend/.
 *
 * Every ONNX op is rows of onnx.def: a rule over its inputs, or a C importer. import.c walks the
 * ONNX graph twice (training, then inference) over one hash-consed IR graph and calls the row of
 * each node. An importer reads inputs and attributes, emits core ops and sets n->out[]. It never
 * sees an input that failed: nodes behind an obstacle are skipped and not reported again.
 *
 * Adding an op is a row in onnx.def,
 *
 *     ONNX(Softplus, 1, LATEST, "(log1p (exp a))", "")             inputs are a b c d e, in order
 *     ONNX(LeakyRelu, 1, LATEST, "(where (gt a 0) a (mul alpha a))", "alpha=0.01")
 *     ONNX_C(Flatten, 1, 1, LATEST, import_flatten)                a function of type ImportFn
 *
 * with the versions since <= the opset of the node's domain <= until. Integers that shape the result
 * (axes, sizes, ...) must be known now: node_ints_at folds them. Every output is folded to a constant
 * by import.c where its leaves are constants.
 */
#ifndef TRAINC_IMPORT_H
#define TRAINC_IMPORT_H
#include "frontend.h"
#include "onnx.pb-c.h"

typedef struct Import Import;
typedef struct ImportNode {
    Import *im;   /* import.c's own */
    Graph *g;     /* g->loc is set to the node */
    Arena *arena; /* the graph's; lists given out below live here */
    const Onnx__NodeProto *proto;
    int64_t opset;        /* version of the node's domain */
    bool training;        /* the walk for `micro`; false: for `eval` */
    bool batchnorm_train; /* --batchnorm train */
    uint32_t n_in, n_out; /* as written; trailing omitted ones included */
    const Value *in;      /* 0: an omitted optional input */
    Value *out; /* to be set; 0 with a diagnostic: blocked. Outputs nobody reads may stay 0 */
} ImportNode;

typedef void ImportFn(ImportNode *);

/* Inputs. node_in is 0 where input i is omitted or beyond the list; node_type is the type of any
 * value. */
static inline Value node_in(const ImportNode *n, uint32_t i) { return i < n->n_in ? n->in[i] : 0; }
static inline const Type *node_type(const ImportNode *n, Value v) { return graph_type_at(n->g, v); }
bool node_wants(const ImportNode *,
                uint32_t output); /* is output i named, so that someone may read it? */

/* Attributes: the value, or `otherwise` where the node has none. Lists live in the model; NULL and
 * *n = 0 where absent. */
bool node_has(const ImportNode *, const char *attribute);
int64_t node_int(const ImportNode *, const char *attribute, int64_t otherwise);
double node_float(const ImportNode *, const char *attribute, double otherwise);
const char *node_string(const ImportNode *, const char *attribute, const char *otherwise);
const int64_t *node_ints(const ImportNode *, const char *attribute, uint32_t *n);
const float *node_floats(const ImportNode *, const char *attribute, uint32_t *n);
const char *const *node_strings(const ImportNode *, const char *attribute, uint32_t *n);

/* Known constants. node_known folds v (constants, and initializers that hold scalars and lists):
 * false where its value depends on what is fed; no diagnostic. The tensor is the interpreter's:
 * floats as double, all else as int64. node_ints_at, node_floats_at: input i as a flat list. NULL
 * with *n = 0 where it is omitted; where it is not known, E_DYNAMIC_SHAPE and false. node_ints_of:
 * attribute `name` in old versions, else input i (axes of Squeeze, ReduceSum, ...). */
bool node_known(ImportNode *, Value v, Tensor *);
bool node_ints_at(ImportNode *, uint32_t input, const int64_t **list, uint32_t *n);
bool node_floats_at(ImportNode *, uint32_t input, const double **list, uint32_t *n);
bool node_ints_of(ImportNode *, const char *attribute, uint32_t input, const int64_t **list,
                  uint32_t *n);

/* Axes: negative ones count from the end; out of range: E_OP_ATTRIBUTE and false. node_axes sorts,
 * drops nothing, refuses repeats. */
bool node_axis(ImportNode *, int64_t axis, uint32_t rank, int64_t *result);
bool node_axes(ImportNode *, const int64_t *axes, uint32_t n, uint32_t rank, int64_t *sorted);

/* Diagnostics, all at the node's location, after which the outputs stay 0. */
void node_fail(ImportNode *, const char *attribute, const char *fmt, ...)
    __attribute__((format(printf, 3, 4))); /* E_OP_ATTRIBUTE */
void node_fail_shapes(ImportNode *, const char *fmt, ...)
    __attribute__((format(printf, 2, 3))); /* E_SHAPES */
void node_fail_dynamic(ImportNode *);      /* E_DYNAMIC_SHAPE */

/* Building helpers beyond ir.h's builders. */
Value node_rule(ImportNode *, const char *rule, const RuleBind *,
                uint32_t n);                    /* rule_build without context */
Value node_number(ImportNode *, DType, double); /* rank-0 constant */
Value node_index(ImportNode *, Value idx,
                 int64_t extent); /* i64 or i32 indices into an axis, made non-negative: known ones
are checked now, those of a graph input get `extent` as that input's limit (the feed checks it) */
int64_t
node_stream(ImportNode *); /* a random stream of its own per ONNX node, equal in both walks */

/* Training state. node_update gives state `state` (an initializer read by this node: running
 * statistics) a new value at each micro-batch: adds the update root, marks it a buffer that never
 * trains. false where `state` is no initializer. Only in the training walk. node_mixes notes that
 * samples mix (batch statistics), node_keeps_statistics that an inference-form BatchNorm was seen.
 */
bool node_update(ImportNode *, Value state, Value value);
void node_buffer(ImportNode *,
                 Value state); /* a running statistic: never trains, whatever the globs say */
/* Dropout of x at that rate, in the training walk; *mask: what was kept. node_lost_dropout: the same
 * for weights of an attention whose dropout the exporter lost, else the weights. */
Value node_dropout(ImportNode *, Value x, double ratio, Value *mask);
Value node_lost_dropout(ImportNode *, Value weights);
void node_mixes(ImportNode *);
bool node_from_pytorch(const ImportNode *);
bool node_unbiased_variance(const ImportNode *); /* of the running variance: --bn-variance, else
                                                    whether PyTorch made the model */
int64_t node_padding_row(
    ImportNode *, Value table,
    bool *is_guess); /* the row that PyTorch trains through no lookup (padding_idx); -1: none */

/* every C importer, declared from the table */
#define LATEST INT64_MAX
#define ONNX(...)
#define ONNX_C(op, needs, since, until, fn) ImportFn fn;
#define ONNX_SEQUENCE(op, needs, since, until, fn) ImportFn fn;
#define ONNX_DATA(op, needs, since, until, fn) ImportFn fn;
#include "onnx.def"
#undef ONNX
#undef ONNX_C
#undef ONNX_SEQUENCE
#undef ONNX_DATA
#endif
