/* passes.h - from a forward graph to a planned training step.
 *
 * The frontend leaves the model's outputs as output roots of the `micro` entry (training mode, with
 * BatchNorm's update roots) and of the `eval` entry (inference mode). The passes add loss,
 * backward, accumulation and optimizer, and then the Plan. */
#ifndef TRAINC_PASSES_H
#define TRAINC_PASSES_H
#include "ir.h"

typedef enum LossKind {
    LOSS_NONE,
    LOSS_OUTPUT,
#define LOSS(id, ...) LOSS_##id,
#include "loss.def"
#undef LOSS
    N_LOSSES
} LossKind;

typedef enum PackMode { PACK_PAYS, PACK_ALWAYS, PACK_NEVER } PackMode;

typedef struct AdapterRule { /* --freeze, --train on the names of adapters, in order; later wins */
    bool trains;
    const char *glob;
} AdapterRule;

typedef struct PassOptions {
    const char *loss; /* "cross_entropy", "mse:TENSOR", ... or NULL: the one scalar float output */
    int64_t ignore_index;
    const char *optimizer;      /* a row of optimizer.def */
    bool state_int8;            /* moments of large parameters in 8 bits */
    int64_t batch, micro_batch; /* accumulation steps = batch / micro_batch */
    uint32_t lora_rank;         /* adapters beside the matrices of linear layers; 0: none */
    const char *lora_glob;      /* which; NULL: all but those of heads */
    double lora_alpha;          /* they count alpha / rank times; 0: rank */
    const AdapterRule *adapter_rules;
    uint32_t n_adapter_rules;
    bool keep_outputs;          /* eval entry keeps the model's outputs (trainc eval) */
    bool forward_only;          /* trainc eval: no loss, no training entries */
    bool for_gpu;               /* target kind: decides fusing and workspace */
    bool is_body;               /* of a loop: few launches count */
    bool verbose;
    const char *dump_dir; /* --emit tir: the IR after each pass, numbered; NULL: none */
    int64_t fuel;         /* rewrites left (TRAINC_FUEL); < 0: no limit */
    PackMode pack;        /* weights in the library's own layout: where that pays */
    /* Bytes of the packed form of operand `which` (1: b, the weights) of a contraction, 0: keep it
     * plain. NULL: pack where PACK_ALWAYS says so, in as many bytes as the weights have. */
    uint64_t (*packed_bytes)(const Graph *, Value contraction, int which);
    uint64_t (*scratch_bytes)(
        const Graph *, Value contraction); /* library scratch of a CONTRACT group; NULL: none */
    const char *const *tensor_names;
    const Value *tensor_values, *eval_values;
    uint32_t n_tensors; /* ONNX value name -> node, in the graph passes_run is given: the loss pass
                           runs first */
    const char *const *output_names;
    uint32_t n_outputs;  /* the model's outputs, in its order */
    bool loss_is_output; /* set by the loss pass: the mean is over micro-batches, the batch is not
                            split on our own accord */
} PassOptions;

/* What the forward graph is made of (census.c), and near misses: places where all but one edge of a
 * pattern was there. `macro` is what it nearly was, `at` the ONNX node, `why` the edge that broke
 * it. */
typedef enum CensusId {
#define CENSUS(id, ...) CENSUS_##id,
#include "census.def"
#undef CENSUS
    N_CENSUS
} CensusId;
extern const char *const census_name[N_CENSUS], *const census_meaning[N_CENSUS];
typedef struct MatchNote {
    const char *macro;
    LocId at;
    const char *why;
} MatchNote;
typedef struct Census {
    uint32_t count[N_CENSUS];
    MatchNote *notes;
    uint32_t n_notes, cap_notes;
} Census;

/* What a pass is: it copies the graph (or changes the plan). Needs, gives and breaks are bits of
 * PASS_PROPERTIES. */
typedef struct PassContext {
    Graph *g;
    Plan *plan;
    Arena *arena;
    PassOptions *options;
    FILE *log;
    Census census; /* of the forward graph; in the context's arena */
} PassContext;
typedef bool PassFn(PassContext *);
typedef struct PassInfo {
    const char *name;
    PassFn *run;
    uint32_t needs, gives, breaks;
    const char *what;
} PassInfo;
extern const PassInfo pass_info[];
extern const uint32_t n_passes;

/* Runs the named passes ("simplify,match,autodiff") or, where names is NULL, the whole pipeline for
 * these options. Verifies after each. Replaces ctx->g. false after diagnostics (in ctx->g->diags)
 * or a fault (reproducer written, named in the log). */
bool passes_run(PassContext *, const char *names);
/* Of a model that was not imported: what the options say that cannot be, into ctx->g's diagnostics, so
 * that it is told with the rest. */
void passes_check_options(PassContext *);
/* Reads "loss=mse:y optimizer=sgd ignore_index=-100 batch=8 micro_batch=4 forward_only=1 fuel=9
 * ..." over *o. false: an unknown word. */
bool pass_options_parse(const char *text, Arena *, PassOptions *o);
/* "RANK" or "RANK:GLOB" into lora_rank and lora_glob, which points into the text. false: it is neither. */
bool lora_option_parse(const char *text, PassOptions *o);
/* A text file may say how it wants to be run in its first comment lines, "# passes: NAMES" and "#
 * options: ...": returns the names (NULL where it does not say, or says it wrongly) and sets the
 * options. Reproducers are such files. */
const char *passes_from_header(const char *text, Arena *, PassOptions *o);
#endif
