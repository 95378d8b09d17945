/* ir.h - the whole intermediate representation of trainc in one header.
 *
 * A Graph is one linear list of immutable, hash-consed nodes; operands always precede users, so an analysis is one loop up and
 * autodiff one loop down. Types, attributes and locations are interned beside it. State (parameters, moments, ...) is named and
 * functional: a root `update @w = %42` of an entry is the only write. Four entries are sets of roots over the same node list.
 * Everything in a graph lives in its arena and is freed with it. Indices are stable, pointers into the lists are not: hold
 * indices across an emit. Index 0 is "none" everywhere.
 */
#ifndef TRAINC_IR_H
#define TRAINC_IR_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---------------------------------------------------------------- arena */

typedef struct Arena Arena;
typedef struct ArenaMark { void *block; size_t used; } ArenaMark;
Arena *arena_new(void);
void arena_free(Arena *);
void *arena_alloc(Arena *, size_t bytes);                    /* zeroed, 16-byte aligned; no memory is fatal */
void *arena_grow(Arena *, void *old, size_t old_bytes, size_t new_bytes); /* copies; old stays valid */
char *arena_strdup(Arena *, const char *);
char *arena_printf(Arena *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
ArenaMark arena_mark(Arena *);
void arena_release(Arena *, ArenaMark);                      /* frees all that was allocated since the mark */

/* ---------------------------------------------------------------- types */

enum { MAX_RANK = 8 };
typedef enum DType {
    DT_NONE,
#define DTYPE(id, ...) DT_##id,
#include "dtype.def"
#undef DTYPE
    N_DTYPES
} DType;
typedef enum DTypeClass { CLASS_FLT = 1, CLASS_INT, CLASS_BOOL } DTypeClass;
typedef struct DTypeInfo { const char *name; uint32_t bytes; DTypeClass cls; int onnx; const char *safetensors, *npy, *c_name; } DTypeInfo;
extern const DTypeInfo dtype_info[N_DTYPES];
DType dtype_from_onnx(int code);                             /* DT_NONE where we have no such type */
DType dtype_from_name(const char *);                         /* "f32", ... */
/* One element in storage form: floats round to nearest even, integers wrap, a float to an integer truncates. */
double elem_load(DType, const void *at);
int64_t elem_load_int(DType, const void *at);                /* integers and bool only: exact */
void elem_store(DType, void *at, double);
void elem_store_int(DType, void *at, int64_t);

typedef uint32_t TypeId, AttrId, LocId, Value;
typedef struct Type { uint8_t dtype, rank; int64_t dims[MAX_RANK]; } Type; /* dims past rank are 0 */

/* ---------------------------------------------------------------- attributes */

typedef enum AttrKey {
    A_NONE,
#define ATTR(id, ...) A_##id,
#include "attr.def"
#undef ATTR
    N_ATTRS
} AttrKey;
typedef enum AttrKind { ATTR_INT = 1, ATTR_INTS, ATTR_FLOAT, ATTR_STR, ATTR_BYTES } AttrKind;
typedef struct AttrField {
    AttrKey key;
    uint32_t n;                                              /* INTS: how many; BYTES: how many bytes */
    union { int64_t i; double f; const int64_t *ints; const char *str; const void *bytes; } u;
} AttrField;
typedef struct Attr { uint32_t n; const AttrField *fields; } Attr; /* fields sorted by key */
typedef struct AttrInfo { const char *name; AttrKind kind; } AttrInfo;
extern const AttrInfo attr_info[N_ATTRS];
/* field builders, for compound literals:  graph_attr(g, (AttrField[]){attr_int(A_AXIS, 1)}, 1) */
static inline AttrField attr_int(AttrKey k, int64_t i) { return (AttrField){k, 1, {.i = i}}; }
static inline AttrField attr_float(AttrKey k, double f) { return (AttrField){k, 1, {.f = f}}; }
static inline AttrField attr_str(AttrKey k, const char *s) { return (AttrField){k, 1, {.str = s}}; }
static inline AttrField attr_ints(AttrKey k, const int64_t *v, uint32_t n) { return (AttrField){k, n, {.ints = v}}; }
static inline AttrField attr_bytes(AttrKey k, const void *b, uint32_t n) { return (AttrField){k, n, {.bytes = b}}; }

/* ---------------------------------------------------------------- locations */

typedef enum LocKind { LOC_NODE, LOC_GRADIENT, LOC_RECOMPUTE, LOC_CAST, LOC_LOSS, LOC_OPTIMIZER, LOC_CLIP, LOC_ACCUMULATE, N_LOC_KINDS } LocKind;
typedef struct Loc {                                         /* LOC_NODE: the ONNX node; else "gradient of" parent, ... */
    LocKind kind;
    const char *name, *op, *scope;                           /* node name, ONNX op type, module path ("" where unknown) */
    LocId parent;
} Loc;

/* ---------------------------------------------------------------- ops */

typedef enum OpCode {
    OP_NONE,
#define MAP(name, ...) OP_##name,
#define OP(name, ...) OP_##name,
#define MACRO(name, ...) OP_##name,
#include "op.def"
    N_OPS
} OpCode;
typedef enum OpClass { OPC_NONE, OPC_NUM, OPC_FLT, OPC_INT, OPC_CMP, OPC_BOOL, OPC_SEL, OPC_TEST } OpClass;
typedef enum CastClass { CAST_LOWER, CAST_FP32, CAST_ACC32, CAST_WIDEST, CAST_ANY } CastClass;
typedef enum LowerClass { LOWER_LEAF, LOWER_VIEW, LOWER_MAP, LOWER_REDUCE, LOWER_CONTRACT, LOWER_SCATTER, LOWER_LOOP, LOWER_MACRO } LowerClass;
typedef enum ScatterMode { SCATTER_ADD, SCATTER_SET, SCATTER_MUL, SCATTER_MIN, SCATTER_MAX } ScatterMode;

typedef struct Graph Graph;
/* The type of a result, or 0 after a diagnostic. `given` is what the caller asked for (0: none). */
typedef TypeId ShapeFn(Graph *, OpCode, const Value *operands, uint32_t n, AttrId, TypeId given);
/* Writes d loss / d operand into d[i], or 0 where none flows. */
typedef void VjpFn(Graph *, Value v, Value dy, Value *d);
typedef struct OpInfo {
    const char *name;
    int arity;                                               /* -1: any number */
    OpClass cls;                                             /* maps only */
    CastClass cast;
    LowerClass lower;
    uint32_t cost;
    const char *body;                                        /* maps: C text */
    const char *grad;                                        /* maps, macros: rules */
    const char *expansion;                                   /* macros: a rule */
    ShapeFn *shape;
    VjpFn *vjp;                                              /* structured ops; NULL: no gradient */
    uint32_t n_attrs;
    AttrKey attrs[8];                                        /* the fields this op carries */
} OpInfo;
extern const OpInfo op_info[N_OPS];
OpCode op_from_name(const char *);                           /* OP_NONE where there is none */

/* ---------------------------------------------------------------- diagnostics */

typedef enum DiagCode {
    DIAG_NONE,
#define DIAG(id, ...) id,
#include "diag.def"
#undef DIAG
    N_DIAGS
} DiagCode;
typedef enum Severity { SEV_NOTE, SEV_WARNING, SEV_ERROR } Severity;
typedef struct DiagInfo { const char *code; Severity severity; int exit_status; const char *format, *hint; } DiagInfo;
extern const DiagInfo diag_info[N_DIAGS];
typedef struct Diag { DiagCode code; LocId loc; const char *text, *hint, *about, *blocks; } Diag;
        /* about: what the place holds (op version, inputs with their types); blocks: what cannot be had because of it; NULL: nothing is known */
typedef struct DiagList { Arena *arena; Diag *items; uint32_t n, cap; } DiagList;
/* Collects; never prints or exits. Arguments fill the format of the row. Equal diagnostics are kept once. */
void diag_add(Graph *, DiagCode, LocId, ...);
void diag_hint(Graph *, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* replaces the last one's hint */
void diag_detail(Graph *, const char *about, const char *blocks); /* of the last one; strings in the graph's arena, or NULL */
/* closest_name - the nearest of n names to a misspelt one; NULL where none is near (closest.c) */
const char *closest_name(Arena *, const char *name, const char *const *names, uint32_t n);
const char *did_you_mean(Arena *, const char *name, const char *const *names, uint32_t n); /* "did you mean X? ", or "" */
/* W_UNTRAINED or E_NO_GRADIENT: the node `at` lets no gradient through to the parameter; 0: no road leads from it to the loss. */
void diag_no_gradient(Graph *, DiagCode, Value at, const char *parameter);
bool diag_has_errors(const Graph *);
int diag_exit_status(const Graph *);                         /* that of the first error; 0 where none */
void diag_print(const Graph *, FILE *);                      /* all of them: "error[E_...]: text", node, op, module, hint */

/* ---------------------------------------------------------------- graph */

typedef struct Node {                                        /* immutable; equal nodes are one node */
    uint16_t op, n_operands;
    uint32_t operands;                                       /* first index in Graph.operands */
    TypeId type;
    AttrId attr;
    LocId loc;                                               /* not part of identity: the first maker's */
    uint32_t epoch;                                          /* part of identity: a recomputed copy is never merged back */
} Node;

typedef enum StateClass {
    STATE_PARAM,       /* an initializer; `trains` says whether it does */
    STATE_MASTER, STATE_OPTIMIZER, STATE_GRADIENT, STATE_COUNTER,
    STATE_CARRY,       /* of a body: what one step of a loop leaves to the next */
    STATE_PACKED,      /* a copy of the parameter `of`, of its type and value; how its bytes lie is the library's business */
    N_STATE_CLASSES
} StateClass;
typedef struct WeightSource { const char *file; uint64_t offset, bytes; const void *data; bool is_transposed; const char *blocks; } WeightSource;
        /* file bytes (offset from its start), or data in memory where file is NULL, or neither: `fill`. is_transposed: the file
         * holds [c, r] where the state is [r, c]. blocks, "0231": the rows are that many equal blocks, of which the state's k-th is
         * the file's blocks[k]-th; NULL: the same. data is never turned */
/* An initializer of the model's file that holds a parameter in a form of its own: another name, other dims, transposed. */
typedef struct Holder {
    const char *initializer, *from;                          /* from: not in the file yet, to be made like this one. NULL with
                                                              * readers: to be made anew */
    Type type;                                               /* the initializer's */
    bool is_transposed, is_original;                         /* is_original, with `from`: the file's elements, whatever was trained */
    const uint32_t *readers; uint32_t n_readers;             /* what is not in the file: pairs (node, input) of the graph that read it */
    uint64_t first; const char *blocks;                      /* of `type`, the parameter is the elements from `first` on, its blocks of rows as
                                                              * in WeightSource */
} Holder;
typedef struct State {
    const char *name;
    TypeId type;
    StateClass cls;
    bool trains, is_buffer;                                  /* is_buffer: the exporter says it is no parameter, or a running statistic */
    WeightSource source;
    double fill;                                             /* value of every element at open, where there is no source */
    const char *of;                                          /* moments, gradients: the parameter they belong to, else NULL */
    const char *const *aliases; uint32_t n_aliases;          /* other names of the same parameter in PyTorch's state_dict */
    const Holder *holders; uint32_t n_holders;               /* 0: the initializer of its own name and type */
    const char *adapts;                                      /* factor of a low-rank adapter: the matrix beside which it stands, else NULL */
    double adapter_scale; int64_t adapter_axis;              /* of its factor A [rank, in]: what B A counts, and which axis of the matrix
                                                              * is `in`; of B [out, rank]: 0, 0 */
} State;
typedef struct Input { const char *name; TypeId type; int batch_axis; int64_t index_limit; LocId loc; } Input;
        /* batch_axis -1: not split into samples. index_limit > 0: values must lie in [-limit, limit) (gather, labels) */

typedef enum EntryKind { ENTRY_INIT, ENTRY_MICRO, ENTRY_APPLY, ENTRY_EVAL, N_ENTRIES } EntryKind;
extern const char *const entry_name[N_ENTRIES];
typedef struct Root { bool is_update; const char *name; Value value; } Root; /* update @name = value | output name = value */
typedef struct Entry { Root *roots; uint32_t n, cap; } Entry;

/* The body of a loop (op scan): one step as a graph of its own, all in its ENTRY_MICRO. States "c0", "c1", ... are the carries (update
 * @c0 = what the next step gets; without that root it stays), inputs "x0", ... the slices of one step, "w0", ... what every step reads
 * whole, outputs "y0", ... what a step leaves to be stacked; scalar "t" (i64) is the step's number. No random and no macro state in
 * it; scans may be. It is immutable once added and shared by the copies of a graph, each of which holds one reference. */
typedef struct Body { const char *name; Graph *g; uint32_t n_carries, n_scanned, n_invariants, n_ys; } Body;

struct Graph {
    Arena *arena;
    const char *name;
    Node *nodes; uint32_t n_nodes, cap_nodes;
    Value *operands; uint32_t n_operands, cap_operands;
    Type *types; uint32_t n_types, cap_types;
    Attr *attrs; uint32_t n_attrs, cap_attrs;
    Loc *locs; uint32_t n_locs, cap_locs;
    State *states; uint32_t n_states, cap_states;            /* indices from 0, looked up by name */
    Input *inputs; uint32_t n_inputs, cap_inputs;
    Entry entries[N_ENTRIES];
    Body *bodies; uint32_t n_bodies, cap_bodies;             /* A_BODY is an index from 1, body 0 is none: graph_body */
    uint32_t n_refs;                                         /* of a body: how many graphs hold it */
    DiagList diags;
    LocId loc;                                               /* given to nodes that are emitted now */
    uint32_t epoch;                                          /* likewise */
    struct Interner *interner;                               /* hash tables; private to ir/graph.c */
};

Graph *graph_new(const char *name);
void graph_free(Graph *);
Graph *graph_copy_empty(const Graph *from);                  /* same name, states, inputs, bodies, locs, diags; no nodes, no roots */

TypeId graph_type(Graph *, Type);
TypeId graph_type_of(Graph *, DType, uint32_t rank, const int64_t *dims);
AttrId graph_attr(Graph *, const AttrField *, uint32_t n);   /* copies; 0 where n is 0 */
LocId graph_loc(Graph *, Loc);
LocId graph_loc_derived(Graph *, LocKind, LocId parent);
const char *graph_str(Graph *, const char *);                /* interned: equal strings are one pointer */

/* graph_emit - the node op(operands), made or found. Infers the type through the op's shape rule (`given` where the row
 *   says the type is given) and asserts that operands precede it. 0 after a diagnostic (a user's shapes do not fit) or
 *   when an operand is 0: errors flow through, all are collected. */
Value graph_emit(Graph *, OpCode, const Value *operands, uint32_t n, AttrId, TypeId given);
static inline const Node *graph_node(const Graph *g, Value v) { return &g->nodes[v]; }
static inline const Type *graph_type_at(const Graph *g, Value v) { return &g->types[g->nodes[v].type]; }
static inline Value graph_operand(const Graph *g, Value v, uint32_t i) { return g->operands[g->nodes[v].operands + i]; }
static inline OpCode graph_op(const Graph *g, Value v) { return (OpCode)g->nodes[v].op; }
const AttrField *attr_find(const Graph *, Value, AttrKey);   /* NULL where the node has no such field */
int64_t attr_i(const Graph *, Value, AttrKey, int64_t otherwise);
double attr_f(const Graph *, Value, AttrKey, double otherwise);
const char *attr_s(const Graph *, Value, AttrKey);
const int64_t *attr_list(const Graph *, Value, AttrKey, uint32_t *n);
int64_t type_elems(const Type *);                            /* 1 for rank 0; may be 0 */
uint64_t type_bytes(const Type *);
bool dims_equal(const Type *, const Type *);
bool type_fits(const Type *);                                /* no negative or absurd extent: check what a file says */
const char *type_text(Graph *, const Type *);                /* "f32[2,3]", in the graph's arena */
bool const_splat(const Graph *, Value, double *value);       /* const of one repeated element, through views that keep that */

State *graph_state(const Graph *, const char *name);         /* NULL where there is none */
State *graph_add_state(Graph *, State);                      /* name must be new */
Input *graph_input(const Graph *, const char *name);
Input *graph_add_input(Graph *, Input);
void graph_add_root(Graph *, EntryKind, bool is_update, const char *name, Value);
Root *graph_root(const Graph *, EntryKind, bool is_update, const char *name); /* NULL where there is none */
/* graph_add_body - the index of this body, or of the equal one that is there. Takes over the caller's graph (frees it where an
 *   equal one is found). graph_set_body puts another graph of the same function and interface in its place (simplified, expanded). */
uint32_t graph_add_body(Graph *, Body);
void graph_set_body(Graph *, uint32_t body, Graph *);
static inline const Body *graph_body(const Graph *g, uint32_t body) { return &g->bodies[body - 1]; }
const Body *scan_body(const Graph *, Value scan);            /* of a scan node; its own A_BODY is the index */
/* marks[v] = true for every node that the roots of the entry reach; `marks` has n_nodes slots, arena-allocated */
bool *graph_reachable(const Graph *, Arena *, EntryKind);
/* Copies every node that any entry reaches through `map` (0 = not yet mapped) into `to`, and the roots. A pass sets map[v]
 * beforehand, or gives `visit`, which returns the new value (0: copy as it is). */
typedef Value VisitFn(void *pass, const Graph *from, Value v, Graph *to, const Value *map);
void graph_rewrite(const Graph *from, Graph *to, VisitFn *visit, void *pass, Value *map);

/* ---------------------------------------------------------------- builders (build.c) */

/* All take and return Values of the current location; an operand 0 gives 0. */
Value build_const(Graph *, TypeId, const void *elements);    /* row-major, storage dtype */
Value build_splat(Graph *, TypeId, double);                  /* rank-0 const, expanded to the type */
Value build_ints(Graph *, const int64_t *, uint32_t n);      /* i64 [n] */
Value build_input(Graph *, const char *name);
Value build_state(Graph *, const char *name);
Value build_scalar(Graph *, const char *name, DType);        /* rank 0 */
Value build_map(Graph *, OpCode, const Value *operands, uint32_t n); /* numpy broadcasting made explicit, then the op */
Value build_unary(Graph *, OpCode, Value);
Value build_binary(Graph *, OpCode, Value, Value);
Value build_cast(Graph *, Value, DType);                     /* no node where it is that type already */
Value build_reshape(Graph *, Value, uint32_t rank, const int64_t *dims);
Value build_expand(Graph *, Value, uint32_t rank, const int64_t *dims); /* numpy's broadcast_to: adds leading axes */
Value build_transpose(Graph *, Value, const int64_t *perm);
Value build_slice(Graph *, Value, const int64_t *start, const int64_t *extent, const int64_t *step); /* step NULL: ones */
Value build_pad(Graph *, Value, const int64_t *low, const int64_t *high, const int64_t *interior, double value);
Value build_concat(Graph *, const Value *, uint32_t n, int64_t axis);
Value build_reduce(Graph *, OpCode, Value, const int64_t *axes, uint32_t n); /* extents become 1 */
Value build_mean(Graph *, Value, const int64_t *axes, uint32_t n);
Value build_squeeze(Graph *, Value, const int64_t *axes, uint32_t n);
Value build_dot(Graph *, Value a, Value b, bool ta, bool tb); /* broadcasts batch dims; folds them into m where b has none */
Value build_iota(Graph *, TypeId, int64_t axis);
Value build_gather(Graph *, Value, Value idx, int64_t axis);
Value build_sum_to(Graph *, Value, const Type *dims);        /* adjoint of build_expand: sums down to those dims */

/* ---------------------------------------------------------------- rules (rule.c) */

/* S-expressions over a b c y dy (and any names the caller binds). Atoms: names, numbers, @field (copies that attribute of the
 * context node), $field (its value as a literal). Forms: (op x ...), (let n x body), (mean x @axes), (square x), (product x ...), (C function).
 * Numbers take the dtype of their peers; operands broadcast as in numpy. */
typedef struct RuleBind { const char *name; Value value; } RuleBind;
/* `context`: the node whose attributes @field and $field mean; 0 where none. 0 after a diagnostic. */
Value rule_build(Graph *, const char *rule, const RuleBind *, uint32_t n, Value context);
/* Splits "r1; r2; r3": the i-th part, or NULL past the end. */
const char *rule_part(Arena *, const char *rules, uint32_t i);
/* Does the graph at v match the pattern? Lower-case names bind (the same name, the same value), numbers match constants
 * through expand and cast (relative 1e-6), commutative ops match both ways; `@name` after an op binds "@name" to the
 * node that carries the attribute (rule_build finds it again), and the same name means the same attribute. A form matches through
 * `expand` too, so what a rule builds from the binds may have to be expanded to the dims of v. (product x ...) matches its factors in
 * any order and association, numbers and divisions by numbers as one constant. A number in fp16 or bf16 matches what rounds to it.
 * *n_binds: given ones, then all. */
bool rule_match(const Graph *, const char *pattern, Value v, RuleBind *binds, uint32_t *n_binds, uint32_t cap);
/* Does all of the pattern but one edge match at v? The operand `value` of `user` is not the `wanted` term (its text; `bound` is the
 * value that this name has elsewhere, or 0). Only for patterns of at least four ops, and where at most one op goes with the edge. */
typedef struct RuleMiss { Value user, value, bound; uint32_t term; const char *wanted; } RuleMiss;
bool rule_nearly(const Graph *, const char *pattern, Value v, RuleMiss *);
/* d of every operand of v, through the registry: rules of maps and macros, or the row's function. */
void op_vjp(Graph *, Value v, Value dy, Value *d);
Value gradient_add(Graph *, Value a, Value b);               /* a + b; either may be 0: none. Onto a scatter where that adds to zeros */
Value macro_expand(Graph *, Value v);                        /* the expansion of the macro node v, over its operands */
enum { MAX_MACRO_OPERANDS = 6 };

/* ---------------------------------------------------------------- verifier, text */

bool graph_verify(Graph *, FILE *complaints);                /* structure: order, types re-inferred, attributes, roots */
void graph_print(const Graph *, FILE *);
Graph *graph_parse(const char *text, const char *file, FILE *errors); /* NULL after "file:line: what"; owner: caller */

/* ---------------------------------------------------------------- interpreter */

typedef struct Tensor { Type type; union { double *f; int64_t *i; void *p; } u; } Tensor; /* floats as double, others as int64 */
typedef struct InterpEnv {                                   /* what leaves mean */
    const Tensor *(*input)(void *user, const char *name);
    const Tensor *(*state)(void *user, const char *name);
    double (*scalar)(void *user, const char *name);
    void *user;
    uint64_t seed, step, micro;                              /* random */
} InterpEnv;
/* Evaluates what the roots of the entry need. results[i] is the value of root i; all in `arena`. false after a message. */
bool interp_entry(const Graph *, EntryKind, const InterpEnv *, Arena *, Tensor *results, FILE *errors);
/* One value by itself, where its leaves are constants only (shape folding): false where they are not, or it is too large. */
bool interp_fold(const Graph *, Value, Arena *, Tensor *result, int64_t max_elems);
Tensor tensor_from_bytes(Arena *, Type, const void *elements); /* widens storage */
Tensor tensor_from_source(Arena *, Type, const WeightSource *, const void *elements); /* the state's, from the file's bytes */
void tensor_to_bytes(const Tensor *, void *elements);        /* rounds to nearest even */
void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* random: element e (row-major, e + micro * elements) of stream s at step t under seed k:
 *   philox(counter {e>>2 low, e>>2 high, step, stream}, key {seed low, seed high})[e & 3] >> 8, times 2^-24 */

#include "plan.h"
#endif
