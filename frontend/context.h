/* context.h - the state of one import, shared by import.c, dims.c, params.c and node.c. Private to
 * frontend/. */
#ifndef TRAINC_CONTEXT_H
#define TRAINC_CONTEXT_H
#include "loader.h"

/* Interned names to numbers; open addressing over pointers of graph_str. */
typedef struct NameMap {
    const char **names;
    uint32_t *values;
    uint32_t n, cap;
} NameMap;
void names_set(Arena *, NameMap *, const char *interned, uint32_t value);
bool names_get(const NameMap *, const char *interned, uint32_t *value);

enum { WALK_MICRO, WALK_EVAL, N_WALKS };

/* One graph body being walked: the main graph, a branch of If, or a local function that is inlined.
 */
typedef struct Scope {
    const struct Scope *outer; /* names of an enclosing graph; NULL for main graph and functions */
    NameMap values;            /* ONNX value name -> Value; 0: blocked */
    const Onnx__NodeProto *caller; /* function: the node that calls it, for attribute references, */
    const struct Scope *calling;   /* and the scope of that node, */
    const Onnx__FunctionProto *function; /* the function itself, NULL in the main graph, */
    Onnx__AttributeProto **defaults;     /* and its attributes with a default */
    uint32_t n_defaults;
    Value gate; /* a branch whose condition is not known: the condition, rank 0; else 0 */
    bool is_else;
    Onnx__OperatorSetIdProto **opsets;
    size_t n_opsets;
    const char *prefix; /* of node names in diagnostics */
    int depth;
} Scope;

/* How a value of the graph is made of the parameter that it shows. */
typedef enum Layout {
    LAYOUT_KEPT,
    LAYOUT_TRANSPOSED, /* [c, r] shows [r, c] */
    LAYOUT_RESHAPED,   /* [C, 1, 1] shows [C] */
    LAYOUT_ROWS,       /* [.., C] shows [C] in every row */
    LAYOUT_PART,       /* no value of the graph: one of the parameters that a packed one shows */
    LAYOUT_PACKED      /* LSTM's W [directions, 4 H, I] and the like: shows its parts, by rows */
} Layout;
/* What the file or the code says about an initializer. */
typedef enum Mark { MARK_NONE, MARK_PARAM, MARK_BUFFER, MARK_STATISTIC, MARK_LIFTED, MARK_QUANTISED } Mark;

/* A parameter's rows in a packed initializer. */
typedef struct Part {
    Type type;          /* the parameter's */
    uint64_t first;     /* element of the initializer */
    const char *blocks; /* equal blocks of rows: the parameter's k-th is the initializer's
                           blocks[k]-th; NULL: the same */
} Part;

/* A value that an initializer holds, or held before it was split among its readers. */
typedef struct Shown {
    const char *value; /* the initializer's name, or a new one that its readers are given */
    const char *name;  /* the parameter's; NULL: a constant that the exporter found equal to one */
    uint32_t initializer;
    Layout layout;
    Mark mark;
    bool is_restored;        /* the exporter dropped it for being neutral: it is no initializer */
    bool is_split, is_named; /* is_named: file or metadata say that the name is PyTorch's */
    const uint32_t *readers; /* is_split, is_restored: pairs (node, input) */
    uint32_t n_readers;
    Part part;                  /* LAYOUT_PART */
    uint32_t parts, n_parts;    /* LAYOUT_PACKED: where its parts begin in Import.shown, in order */
} Shown;
typedef struct OtherName {
    const char *name, *of;
} OtherName;

typedef struct Sequence {
    const Value *items;
    uint32_t n;
    Value stack; /* [n, ..], of which the items are the rows; 0 where there is none */
} Sequence;

struct Import {
    Graph *g;
    Arena *arena; /* the graph's */
    ModelFile *file;
    const ImportOptions *options;
    Model *model;
    NameMap initializers;  /* name -> index + 1 */
    TensorSource *sources; /* of the initializers; type.dtype 0: could not be had */
    Shown *shown; /* values that show parameters; the first n_initializers are the initializers */
    uint32_t n_shown, cap_shown;
    NameMap shown_by_value; /* value name -> index + 1 */
    OtherName *aliases;     /* of parameters, in PyTorch's state_dict */
    uint32_t n_aliases, cap_aliases;
    NameMap dropouts_by_output; /* first output of a node whose dropout is put back -> index + 1 */
    double *dropouts;
    uint32_t n_dropouts;
    NameMap sets;          /* inputs that --set made constant -> Value */
    bool training;
    Scope *scope;
    Scope main[N_WALKS];
    uint8_t *folded;
    uint32_t n_folded,
        cap_folded; /* per value: 0 unknown, 1 constant leaves only, 2 reads what is fed */
    Sequence *sequences;
    uint32_t n_sequences;
    NameMap streams; /* prefix and first output of a node -> random stream */
    uint32_t n_streams;
    NameMap rows;                    /* ONNX op -> its first row in onnx.def, + 1 */
    const Onnx__NodeProto *top_node; /* the node of the main graph that is being imported */
    uint32_t n_inlined;              /* bodies of functions and branches so far */
    uint32_t n_gates;                /* branches around this node whose condition is not known */
    Value *blocked; /* what nodes read that could not be imported */
    uint32_t n_blocked, cap_blocked;
};

/* A sequence (SplitToSequence, ...) is a Value with this bit: the rest indexes Import.sequences. */
#define SEQUENCE_BIT 0x80000000u
/* What a function's omitted optional input is bound to: reading it is reading no input at all. */
#define OMITTED UINT32_MAX

/* cut.c: names the parameters that no gradient would reach; for models that have errors. */
void cut_report(Import *);
/* live.c: a tensor that --loss names and the model lacks; for models that have errors. */
void loss_report(Import *);
/* dims.c: binds every dimension of the inputs, adds the graph's inputs. false after diagnostics. */
bool dims_bind(Import *);
/* identity.c: fills Import.shown: which parameter each initializer holds, under which name; gives
 * readers that mean another one a value of their own. Needs sources. */
void identity_find(Import *);
const Shown *shown_find(const Import *, const char *value); /* NULL: no float initializer */
/* What a shown value is made of: its state, turned as the graph has it, or a constant. */
Value shown_value(Import *, const Shown *);
/* The state that shows as `value`; NULL where there is none. */
State *shown_state(const Import *, const char *value);
/* params.c: adds a state for every float initializer, with freeze and train rules applied. false
 * after diagnostics. */
bool params_add(Import *);
/* lifted.c: is the unmarked initializer a constant that dynamo lifted out of the code? is_known: its
 * readers take no parameter there. */
bool is_made_from_nothing(const char *name); /* "ones_1": does dynamo call so what takes no tensor? */
bool lifted_is(Import *, const Shown *, bool is_known, bool is_norm);
bool mask_is(Import *, const Shown *); /* does it hold numbers that only masks hold? */
/* attention_dropout.c: what dynamo lost, and with --attention-dropout auto puts back. */
void dropouts_find(Import *);
/* statistics.c: running statistics that the export itself has moved start afresh. */
void statistics_restore(Import *);
/* Where the elements of state `name` lie in the state's own layout; NULL where they do not. */
const TensorSource *state_source(const Import *, const char *name);
/* A Constant node's float tensor becomes a parameter where --train names its output. */
bool params_names_constant(const Import *, const char *output);
Value params_add_constant(Import *, const char *output, const TensorSource *);
/* Names of the trained parameters that lie behind a node, "a, b and 3 more", or NULL where none
 * does. */
const char *params_behind(Import *, const Onnx__NodeProto *);

/* quantised.c: marks the initializers that quantised ops read. */
void quantised_mark(Import *);

/* fold.c */
bool fold_is_constant(Import *, Value); /* do its leaves hold constants only? */
Value fold_value(Import *,
                 Value); /* the constant it equals, where it is one and small; else itself */
bool fold_tensor(Import *, Value, Tensor *);

/* ops_sequence.c: a sequence of these; the given one and the rows of a stack behind it. */
Value sequence_new(ImportNode *, const Value *items, uint32_t n);
Value sequence_append(ImportNode *, Value sequence, Value stack);

/* import.c */
void import_nodes(Import *, Onnx__NodeProto *const *, size_t n); /* into the current scope */
bool scope_find(Import *, const Scope *, const char *name,
                Value *); /* false where nothing defines it; 0: blocked */
void scope_define(Import *, const char *name, Value);

/* live.c: nodes that an output that is needed depends on, by their place in the graph; and whether the
 * graph's i-th output is. */
bool *live_nodes(Import *);
bool output_is_needed(const Import *, size_t i);

/* inline.c: If with a known condition, and local functions. false where the node is neither.
 * is_open: no input is blocked. */
bool import_inline(ImportNode *, bool is_open);
bool nests_too_deep(ImportNode *); /* says so */
/* What a value from outside is within a branch whose condition is not known: the same number, but
 * where the branch is not taken no gradient flows back. */
Value branch_gate(Import *, const Scope *, Value);
/* A graph that is an attribute of the node: a scope over the current one that knows its initializers
 * (the caller defines its inputs in it), then its nodes, in that scope, and its outputs. Nodes are
 * called NODE + suffix + "/" + their name. */
void subgraph_open(ImportNode *, const Onnx__GraphProto *, Scope *inner);
void subgraph_import(ImportNode *, Scope *inner, const Onnx__GraphProto *, const char *suffix,
                     uint32_t n_out, Value *out);

/* node.c: the attribute of a node, references of function bodies resolved; NULL where absent */
const Onnx__AttributeProto *find_attribute(const Scope *, const Onnx__NodeProto *,
                                           const char *name);
#endif
