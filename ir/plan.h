/* plan.h - what the passes decide and the code generators obey: which nodes form a kernel, in which order, at which byte.
 *
 * A Group is a set of nodes of one entry that become one kernel launch. Views, splats and iota belong to no group: they are
 * index maps that each reader inlines. A cheap map may be a member of several groups, each of which computes it for itself.
 * Legal forms:
 *   MAP       maps only; every out has as many elements as `dims`
 *   ROW       maps and reductions (sum prod rmax rmin); all reductions reduce the axes `axes` of the dims `dims` (extents 1 do not
 *             count); every out has as many elements as `dims` ("full") or as `dims` with the axes at extent 1 ("row level").
 *             softmax and layer norm are of this form
 *   REDUCE    one anchor whose domain is its own: a sum/.. over anything, argmax, fold; maps that feed it (prologue, evaluated at
 *             the anchor's operand indices) and maps that follow (epilogue, as many elements as the anchor)
 *   CONTRACT  anchor dot or conv*: operands are stored buffers or affine views of them (plan_view_affine; conv*: dense ones); maps
 *             after it with as many elements as the anchor. Some out has the dtype of the anchor: a library may leave the raw result
 *             there, so no out is in place of a value that the group reads
 *   SCATTER   anchor scatter*: base, then updates in index order; operands are stored values, views of them or inlined leaves
 *   COPY      nodes[0] (any value: stored, leaf) element by element to the buffer `to`
 *   LOOP      scan nodes that are one loop, all of them outs; operands are dense row-major views of stored buffers from their first
 *             element on, or (first values of carries) splats. What it runs: struct PlanLoop
 * Within a group "the same element" is meant row-major: between members that are read element by element there may be reshapes, so an
 * out of dims [B,T,C] may follow an anchor of dims [B*T,C]. Element i of every full out belongs to point i of the iteration space,
 * element i of a row-level out to row i. A map member that is no out may also be read through any other view: it is evaluated
 * at the index at which it is read. Reductions and anchors are never read so: only at their own element, or (ROW) by an expand along
 * the reduced axes. A view or leaf node that is a member and an out is stored like a map (its readers then load it).
 * An out may have the buffer of a value that the group reads at the same element (in place; MAP, and states in REDUCE, ROW row level).
 * A state of class STATE_PACKED is read by contractions alone, as their whole operand b, and written by COPY groups alone.
 * A value that another group or a root needs is an `out` and has a Buffer; all else lives in registers. */
#ifndef TRAINC_PLAN_H
#define TRAINC_PLAN_H

typedef enum GroupKind { GROUP_MAP, GROUP_ROW, GROUP_REDUCE, GROUP_CONTRACT, GROUP_SCATTER, GROUP_COPY, GROUP_LOOP, N_GROUP_KINDS } GroupKind;
extern const char *const group_kind_name[N_GROUP_KINDS];

typedef struct Group {
    GroupKind kind;
    EntryKind entry;
    Value anchor;                                            /* 0 for MAP and ROW */
    Value *nodes; uint32_t n_nodes;                          /* members in graph order, the anchor among them */
    Value *outs; uint32_t n_outs;                            /* members that are stored */
    Type dims;                                               /* MAP, ROW: the iteration space */
    uint32_t n_axes; int64_t axes[MAX_RANK];                 /* ROW: the reduced axes */
    uint64_t workspace_bytes; uint64_t workspace_offset;     /* scratch during the launch */
    uint32_t root;                                           /* COPY: 1 + the root of the entry that it serves */
    uint32_t to;                                             /* COPY: 1 + the buffer it writes */
    struct PlanLoop *loop;                                   /* LOOP, once planned; else NULL */
} Group;

typedef enum BufferClass {                                   /* plan.json's classes */
    BUF_WEIGHTS, BUF_MASTER, BUF_OPTIMIZER, BUF_GRADIENTS, BUF_ACTIVATIONS, BUF_WORKSPACE, BUF_INPUTS, BUF_IO, N_BUFFER_CLASSES
} BufferClass;
extern const char *const buffer_class_name[N_BUFFER_CLASSES];

typedef struct Buffer {                                      /* a range of the arena */
    BufferClass cls;
    TypeId type;
    const char *symbol;                                      /* state, input or output name; NULL: internal */
    Value constant;                                          /* a non-splat const to upload at open; else 0 */
    uint64_t offset, bytes;                                  /* bytes rounded up to 256 */
    EntryKind entry; uint32_t first, last;                   /* internal ones: live launches of the entry, inclusive */
} Buffer;

typedef struct EntryPlan {
    uint32_t *order; uint32_t n;                             /* group indices, in launch order */
    uint32_t *buffer_of;                                     /* per Value: buffer index + 1 where the value is read from; 0: nowhere */
    uint32_t *out_buffer_of;                                 /* per Value: where its group stores it (differs for leaves only) */
} EntryPlan;

typedef struct Plan {
    Group *groups; uint32_t n_groups;
    Buffer *buffers; uint32_t n_buffers;
    EntryPlan entries[N_ENTRIES];
    uint64_t arena_bytes, lower_bound_bytes;                 /* lower bound: largest sum of live buffers at any launch */
    uint64_t bytes[N_BUFFER_CLASSES];
    uint64_t total_flops, recomputed_flops, moved_bytes;
    int64_t batch, micro_batch, accumulation_steps;
} Plan;

/* A loop: its body is a graph with a plan of its own, of which entry micro runs `trips` times. The buffers of that plan lie in buffers of
 * the plan around it: slices and stacked results at a place that moves by one step, whole operands and carries at one place, and what
 * the body alone knows in the workspace of the group. A carry whose last value is an out has that out's buffer from the first turn on. */
typedef struct PlanPlace {
    bool is_bound;                                           /* false: nothing in the body touches it */
    uint32_t buffer;                                         /* 1 + the buffer; 0: the workspace of the group */
    uint64_t offset;                                         /* there, in bytes, in the first turn */
    int64_t stride;                                          /* bytes from one turn to the next */
} PlanPlace;
typedef struct PlanLoop {
    const Graph *body;                                       /* the scan's body, of whose roots only those are left that the outs need */
    const Plan *plan;
    int64_t trips; bool is_reverse;
    PlanPlace *places;                                       /* per buffer of `plan` */
    uint64_t own_offset;                                     /* where in `plan` the bytes begin that lie in the workspace */
    Group *inits; uint32_t n_inits;                          /* COPY of a first value to its carry's buffer, before the first turn */
} PlanLoop;

/* Resolves views: the leaf or stored value that v reads, through reshape, transpose, expand, slice; 0 where a pad, concat, window,
 * gather or map lies between. */
Value plan_view_base(const Graph *, Value v);
/* The stored value (stored[base] != 0, as in EntryPlan.buffer_of) whose element offset + sum index[i] * strides[i] is v[index], through
 * reshape, transpose, expand and slice; 0 where there is none or the index is not affine. v itself where it is stored. */
Value plan_view_affine(const Graph *, const uint32_t *stored, Value v, int64_t *offset, int64_t strides[MAX_RANK]);
/* The state of class STATE_PACKED that a contraction reads as its operand b; NULL: none. */
const State *plan_packed_operand(const Graph *, Value contraction);
bool type_is_dense(const Type *, const int64_t *strides);    /* row-major without gaps; strides of extents 1 do not count */
uint64_t group_flops(const Graph *, const Group *);
uint64_t group_moved_bytes(const Graph *, const Plan *, const Group *);
#endif
