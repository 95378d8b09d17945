/* frontend.h - from a .onnx file to a forward graph. Includes ir/ alone. */
#ifndef TRAINC_FRONTEND_H
#define TRAINC_FRONTEND_H
#include "ir.h"

typedef struct DimBinding { const char *name; int64_t value; } DimBinding; /* "batch" or "INPUT[AXIS]" */
typedef struct FreezeRule { bool train; const char *glob; } FreezeRule;    /* in command-line order; later wins */
typedef struct InputValue {        /* --set: the input is a constant from now on */
    const char *name;
    const double *numbers; uint32_t n_numbers; /* one fills the input, else row-major elements; a list binds an unbound extent of a vector */
    const void *data; Type type;   /* instead of numbers: elements of that type, which binds the input's unbound dimensions */
} InputValue;
typedef struct TieRule { const char *a, *b; } TieRule;         /* --tie A=B: b is a; names of parameters, or the graph's */
typedef struct RenameRule { const char *from, *to; bool is_transposed; } RenameRule; /* --rename; is_transposed: and turned */
typedef struct ImportOptions {
    const char *path;
    const DimBinding *dims; uint32_t n_dims;
    const FreezeRule *freezes; uint32_t n_freezes;
    bool adapters;                 /* --lora: of the model's own parameters only those train that a rule names */
    const InputValue *sets; uint32_t n_sets;
    const char *batch_dim;         /* --batch-dim; NULL: axis 0 where all inputs share it */
    int64_t batch;                 /* --batch; 0: the bound batch dimension */
    int64_t micro_batch;           /* samples the graph is built for; 0: batch */
    bool batchnorm_train;
    int bn_variance;               /* 0: unbiased where PyTorch made the model; 1: unbiased (pytorch), 2: population (onnx) */
    const TieRule *ties; uint32_t n_ties;
    bool tie_none;                 /* --tie none: ties that the exporter broke stay broken */
    const RenameRule *renames; uint32_t n_renames;
    const char *loss;              /* --loss, which decides what outputs are needed; NULL: all are */
    bool attention_dropout;        /* --attention-dropout auto: put back what dynamo lost */
    bool eval_only;                /* trainc eval: only the eval entry; nothing trains */
} ImportOptions;

typedef struct Model {             /* what the import learned besides the graph */
    Graph *graph;                  /* output roots of `micro` (training mode) and `eval`; inputs; states with sources */
    int64_t batch, micro_batch;    /* samples; batch_axis of the inputs says where */
    bool samples_mix;              /* BatchNorm in training form: never split the batch on our own accord */
    bool from_pytorch;             /* producer_name; decides the running variance */
    const char *producer, *producer_version;
    const char *const *output_names; uint32_t n_outputs;
    const char *const *tensor_names; const Value *tensor_values; uint32_t n_tensors; /* ONNX value name -> micro-mode Value (losses on inner tensors) */
    const Value *eval_values;      /* the same tensors in eval mode */
} Model;

/* Imports the model. All obstacles are collected in model->graph->diags; false where there is an error. The graph exists in any case.
 * Weights stay in their files: states carry (file, offset, bytes). */
bool model_import(const ImportOptions *, Model *);
void model_free(Model *);
#endif
