/* identity.h - which parameter of PyTorch's state_dict an initializer holds, and in which form.
 * Private to frontend/.
 *
 * Exporters fold transposes into weights and lose their names, hold equal parameters once, and
 * hold tied ones twice. identity.c asks every reader of an initializer what it takes it for: the
 * traced program in dynamo's metadata (identity_fx.c), or the module path in TorchScript's node
 * names (identity_path.c). What comes out is Import.shown: every ONNX value that shows a parameter,
 * with the parameter's name and how the value is made of it. params.c makes states of them. */
#ifndef TRAINC_IDENTITY_H
#define TRAINC_IDENTITY_H
#include "context.h"

typedef enum ClaimKind {
    CLAIM_NONE,     /* nothing is known */
    CLAIM_CONSTANT, /* the traced program takes no parameter here */
    CLAIM_PARAM,
    CLAIM_BUFFER
} ClaimKind;
typedef struct Claim {
    ClaimKind kind;
    const char *name; /* in the state_dict; interned */
    Layout layout;
    bool is_alias;   /* a second name of what the initializer is called after, not another one */
    bool is_exact;   /* TorchScript itself says that this is another parameter */
    bool is_unsure;  /* CLAIM_CONSTANT, but it takes what is not in the file any more */
} Claim;

/* One input of one node that is an initializer. */
typedef struct Reader {
    Onnx__NodeProto *node;
    uint32_t index, input; /* of the node in the main graph; of the input in the node */
    uint32_t initializer;
    uint32_t next; /* of the same initializer, + 1 */
    bool is_nested;
    Claim claim;
} Reader;

typedef struct Target { /* a parameter or buffer of the traced program, in state_dict order */
    const char *name;
    bool is_buffer, is_held, is_named; /* an initializer is called so; an operation takes it */
} Target;

typedef struct Identity {
    Import *im;
    const Onnx__GraphProto *graph;
    Reader *readers;
    uint32_t n_readers, cap_readers;
    uint32_t *first, *last; /* per initializer: readers + 1 */
    Mark *kinds;            /* per initializer, as the file says */
    bool has_marks;         /* dynamo marks parameters */
    bool has_signature, has_paths;
    Target *targets;
    uint32_t n_targets;
    NameMap targets_by_arg, targets_by_name; /* index + 1 */
    NameMap had;     /* names of the traced program that the file still has */
    NameMap modules; /* TorchScript: module path -> MODULE_LEAF or MODULE_INNER */
    NameMap prefixes; /* module path -> number of what the state_dict has before it, + 1 */
    const char **prefix;
    uint32_t n_prefixes, cap_prefixes;
    NameMap outputs; /* of nodes */
    uint32_t n_zeros; /* sources behind those of the initializers */
} Identity;

/* identity_fx.c: reads signature and metadata; then what each reader of an unfolded or folded
 * initializer takes it for; then aliases, for which claims must be known. */
void fx_read(Identity *);
Claim fx_claim(Identity *, const Reader *);
void fx_aliases(Identity *);
/* The parameter that input `input` of the node would be, where no initializer holds it; NULL. */
const char *fx_lost(Identity *, Onnx__NodeProto *, uint32_t input);
/* identity_path.c: the same by module paths. */
void path_read(Identity *);
Claim path_claim(Identity *, const Reader *);
/* "/bert/encoder/layer.0/output/MatMul" -> "bert.encoder.layer.0.output"; NULL where the name is no
 * path */
const char *path_module(Identity *, const Onnx__NodeProto *);
bool path_is_head(const char *name); /* does the parameter belong to a layer that is called after its
                                        being the model's last? */
/* identity_ties.c: ties that the exporter broke, by bytes and names or by --tie. */
void ties_find(Identity *);
bool bytes_equal(const TensorSource *, const TensorSource *, bool is_transposed, bool *is_constant);
bool bytes_constant(const TensorSource *);

/* identity_zeros.c: biases that were dropped for being zeros */
void zeros_restore(Identity *);

/* identity_rows.c: biases that were folded into rows of them */
void rows_restore(Identity *);

/* identity_packed.c: the parameters of recurrent layers, which exporters pack */
void packed_find(Identity *);
/* The parameter that is number `at` of the recurrent layer's list in the node's operation, of
 * `each` in a direction of a layer; *each: 2 without biases. NULL where there is none. */
const char *fx_listed(Identity *, const Onnx__NodeProto *, uint32_t at, uint32_t *each);
/* The text of the operation that the node was written for; NULL. */
const char *fx_text(Identity *, const Onnx__NodeProto *);
/* The module's name in the state_dict, where the node is of a module without modules inside; NULL. */
const char *path_leaf(Identity *, const Onnx__NodeProto *);

/* identity_report.c: notes */
void identity_report(Identity *);

bool source_is_float(const TensorSource *);
bool reader_is_norm(const Reader *); /* scale or bias of a norm */
Shown *shown_add(Import *, Shown);
void identity_alias(Identity *, const char *name, const char *of);
bool name_is_made(const char *name); /* "onnx::MatMul_12"; before PyTorch 1.12 "12" */
const char *name_suffix(const char *name);  /* "a.b.weight" -> "weight" */
const char *name_module(Identity *, const char *name); /* "a.b.weight" -> "a.b"; "" */
#endif
