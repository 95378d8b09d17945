/* step.h - an open step from inside: what trainc.h's functions share, and what the driver reads besides. Not public. */
#ifndef TRAINC_STEP_H
#define TRAINC_STEP_H
#include "device.h"

typedef struct Hyper { double lr, weight_decay, beta1, beta2, eps, momentum, clip; int nesterov; } Hyper;
typedef enum ScalerMode { SCALER_OFF, SCALER_FIXED, SCALER_DYNAMIC } ScalerMode;
typedef struct Scaler { ScalerMode mode; double scale; int64_t good_steps; } Scaler;  /* GradScaler: x2 after 2000 good steps, x0.5 on inf */

typedef struct Bound {                /* an input of the program, and what a call gives for it */
    const trainc_symbol *symbol;
    const trainc_tensor *tensor;      /* NULL: not given */
    bool is_label;                    /* padded with ignore_index, which is also a valid value */
    int64_t rows;                     /* samples in one micro-batch; 0: not split */
    int64_t outer, inner;             /* elements before and after the batch axis */
} Bound;

/* Where a run stands in its data; kept in checkpoints for the driver. */
typedef struct DataPosition { int64_t epoch, next; } DataPosition;

/* A metric of the eval entry: an f32 scalar output NAME_sum beside loss_sum, whose mean is taken over loss_count. */
typedef struct Metric { char name[56]; const trainc_symbol *symbol; double value; } Metric;
enum { MAX_METRICS = 8 };

struct trainc_step {
    const trainc_program *program;
    const trainc_plan *plan;
    Device *device;                   /* NULL where open failed */
    Fail fail;
    ScalarValue scalars[N_SCALARS];
    Hyper hyper;
    Scaler scaler;
    uint64_t seed;
    int64_t begun, taken;             /* optimizer steps: all, and those that changed weights */
    bool is_loaded, is_derived;       /* weights are in; `init` has run on them */
    Bound *inputs; uint32_t n_inputs;
    const trainc_symbol **order; uint32_t n_order;   /* trainc_describe's */
    const trainc_symbol *out_loss, *out_grad_norm, *out_eval_sum, *out_eval_count, *sum_loss_count;
    Metric metrics[MAX_METRICS]; uint32_t n_metrics; /* value: of the last evaluation */
    void *staging; uint64_t staging_bytes;           /* one micro-batch of the largest input */
    const int64_t *row_names;         /* the driver's: sample number in the file by sample of the batch; NULL: as given */
    DataPosition data;
};

#define STEP_FAIL(s, ...) fail_set(&(s)->fail, __VA_ARGS__)
const trainc_symbol *step_symbol(const trainc_step *, const char *name, trainc_symbol_class);   /* NULL: none */
bool symbol_is_state(const trainc_symbol *);
double step_static_count(const trainc_step *);   /* what counts in a whole optimizer step when nothing is left out */
bool step_needs_full_batch(const trainc_step *); /* padding would change the loss: samples mix, or the loss is the model's own */
trainc_status step_scalar_out(trainc_step *, const trainc_symbol *, double *);
trainc_status step_ready(trainc_step *);         /* weights loaded, derived state made */
Hyper hyper_defaults(const char *optimizer);

/* inputs.c: names, types, shapes and index ranges of all inputs, before anything runs; *samples: how many there are. */
trainc_status inputs_bind(trainc_step *, const trainc_tensor *, size_t n, int64_t most, int64_t *samples);
trainc_status inputs_upload(trainc_step *, int64_t first, int64_t count); /* samples [first, first+count) as one micro-batch, padded */
trainc_status inputs_init(trainc_step *);

/* state.c */
trainc_status state_constants(trainc_step *);    /* uploads the plan's constants */
trainc_status state_reset(trainc_step *);        /* every state that comes from no file: its bytes in the library, or its fill */
trainc_status state_put(trainc_step *, const trainc_symbol *, const void *, trainc_dtype from); /* converts floats */
trainc_status state_put_range(trainc_step *, const trainc_symbol *, uint64_t first, uint64_t n, const void *, trainc_dtype from); /* elements */
trainc_status state_take(trainc_step *, const trainc_symbol *, void *); /* the symbol's own type */
const trainc_symbol *state_weights(const trainc_step *, const trainc_symbol *param); /* its master copy where there is one */

/* checkpoint.c */
trainc_status checkpoint_load(trainc_step *, const char *folder);
trainc_status weights_load(trainc_step *, const char *safetensors, int64_t *taken, const char **first_missing);
/* save_try - may a checkpoint be written to `folder`? Leaves nothing behind. Errors: as trainc_save's. */
trainc_status save_try(const char *folder, Fail *);
trainc_status grads_save(trainc_step *, const char *path, double factor);

/* adapters.c */
trainc_status adapters_config(trainc_step *, const char *path);  /* writes peft's adapter_config.json; there is an adapter */
/* adapters_merge - adds scale * B A to the elements of the matrix `w`, called `param`, that lie in `bytes`; nothing where no adapter
 *   stands beside it. Errors: TRAINC_NO_MEMORY, the device's. */
trainc_status adapters_merge(trainc_step *, const char *param, const trainc_symbol *w, void *bytes);
#endif
