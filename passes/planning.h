/* planning.h - from the final graph to its Plan: fuse forms groups, schedule orders them, memplan
 * gives every value a place.
 *
 * All three fill ctx->plan and leave the graph alone. Between them the plan carries everything:
 * fuse leaves groups, in an order that respects data; schedule fills EntryPlan.order; memplan the
 * rest. */
#ifndef TRAINC_PLANNING_H
#define TRAINC_PLANNING_H
#include "pass.h"

/* ---------------------------------------------------------------- fuse */

typedef enum ReadKind {
    READ_SAME,  /* row-major the same element: through reshapes only */
    READ_BCAST, /* one expand among reshapes */
    READ_TAKE,  /* one take: the same element but along its axis. An expand of extent 1 there makes
                   it READ_SAME again */
    READ_OTHER,
    N_READ_KINDS
} ReadKind;
/* One road from an operand of a node through views (and inlined maps) to a value that is stored or
 * computed. */
typedef struct Read {
    Value base, by;
    ReadKind kind;
    int64_t evals;
} Read; /* by: the expand or take; evals: elements that are read */
typedef struct Reader {
    Value node;
    uint32_t read;
} Reader;

typedef enum Level {
    LEVEL_FULL, /* evaluated once per point of the group's space, at that element */
    LEVEL_ROW,  /* ROW groups: once per row */
    LEVEL_OFF   /* wherever it is read; never stored */
} Level;
typedef enum FuseClass { FUSE_MAP, FUSE_ROW, FUSE_ANCHOR, FUSE_CONTRACT, FUSE_SCATTER, FUSE_LOOP } FuseClass;

typedef struct FuseGroup {
    FuseClass cls;
    Value anchor;      /* ROW: one of its reductions, which gives dims and axes */
    Value first, last; /* members, linked by Fuse.next */
    uint32_t n_members, n_reductions, cost;
    int64_t elems; /* points of its space */
    uint32_t ord;  /* topological: a group that reads another has the larger one */
} FuseGroup;

enum { FUSE_REGION = 512 }; /* groups that a search for cycles visits at most */
typedef struct Fuse {
    const Graph *g;
    Arena *arena;
    EntryKind entry;
    bool for_gpu, is_body;
    bool *live;       /* per Value, all of them */
    bool *computed;   /* belongs to one group */
    bool *stored;     /* input, state, constant: in memory before the entry begins */
    bool *inlined;    /* a map that every reader evaluates for itself */
    bool *forced;     /* must be stored: root, operand of a contraction, scatter or loop */
    bool *is_updated; /* a state leaf that this entry overwrites */
    bool *updates;    /* the new value of a state */
    uint32_t *first_read;
    Read *reads;
    uint32_t n_reads, cap_reads; /* of node v: first_read[v] .. first_read[v + 1] */
    uint32_t *first_reader;
    Reader *readers;      /* of base v likewise */
    Value *parent, *next; /* union-find; members of a group */
    uint8_t *level;
    float *repeat;     /* evaluations per element */
    FuseGroup *groups; /* at the representative's index */
    uint32_t *stamp, now, *held;
    Value *stack, *region; /* scratch of the cycle check */
} Fuse;

/* fuse_reads.c */
void fuse_classify(Fuse *); /* live .. is_updated; `inlined` may hold maps already */
void fuse_resolve(Fuse *);  /* reads, readers */
/* Appends every map that node v evaluates for itself, and marks it in f->held with `hold`; marked
 * ones not again. */
void fuse_inlined_maps(Fuse *, Value v, uint32_t hold, Value *list, uint32_t *n);
uint32_t node_cost(const Graph *, Value v); /* operations per element */

/* fuse_quotient.c: the graph of groups, kept acyclic */
Value fuse_find(Fuse *, Value v);
void fuse_groups_init(Fuse *);
bool fuse_can_join(
    Fuse *, Value a,
    Value b); /* no road between them through a third group; may say no where it is long */
Value fuse_join(Fuse *, Value a,
                Value b); /* right after fuse_can_join said yes; the union's representative */

/* fuse_merge.c: the forms of plan.h */
bool fuse_merge(Fuse *, Value producer,
                Value consumer); /* vertical; false: not legal, nothing changed */
bool fuse_merge_siblings(Fuse *, Value a, Value b);
bool fuse_is_out(Fuse *, Value v); /* needed outside its group */
bool is_row_reduction(const Graph *, Value v);

/* fuse_emit.c */
void fuse_emit(Fuse *, Plan *);
void fuse_copies(
    PassContext *,
    EntryKind); /* COPY groups of roots that no group can store in place; after fuse_emit */

/* ---------------------------------------------------------------- groups as others see them */

/* The stored values that a group reads (leaves in memory and outs of others), each once, with
 * whether every read of it is of the same element that is stored. `stored` as plan_stored gives it.
 * Owner: arena. */
typedef struct GroupRead {
    Value value;
    bool same_element;
} GroupRead;
GroupRead *group_reads(const Graph *, const bool *stored, const Group *, Arena *, uint32_t *n);
bool *plan_stored(const Graph *, const Plan *, EntryKind,
                  Arena *);                  /* per Value: leaf in memory, or an out */
bool leaf_in_memory(const Graph *, Value v); /* input, state, constant that is no splat */
/* Per Value, 1 + the root whose buffer its group stores it into; 0 where it has an internal buffer.
 */
uint32_t *plan_home_roots(const Graph *, const Plan *, EntryKind, Arena *);
bool root_is_idle(const Graph *, const Root *); /* update @w = the value of w */

/* ---------------------------------------------------------------- memplan */

typedef struct Span {
    uint64_t bytes, offset;
    uint32_t first, last;
} Span; /* bytes: multiples of 256 */
/* Places the spans so that none that meet in time overlap; returns the height. O(n^2) per order
 * tried. */
uint64_t place_spans(Span *, uint32_t n, uint64_t lower_bound, Arena *);
uint64_t spans_lower_bound(const Span *, uint32_t n, Arena *);

/* memplan_loop.c. loop_plan - the body of a LOOP group, with the roots that its outs need, planned. Owner: ctx->arena.
 *   loop_bind - where the body's buffers lie: `carries` holds, per carry, 1 + the buffer of ctx->plan; others have theirs. */
PlanLoop *loop_plan(PassContext *, const Group *);
bool loop_needs_carry(const PlanLoop *, uint32_t carry); /* the body reads or updates it, or its last value is an out */
void loop_bind(PassContext *, Group *, const uint32_t *carries);
uint32_t loop_leaf_number(const char *name); /* 3 of "x3" */
void fuse_detach_states(Graph *, EntryKind); /* in place: root values that groups cannot keep as they are, behind views */
/* plan_check_loop.c: everything about a LOOP group but what lies in memory when. */
bool plan_check_loop(const Graph *, const Plan *, const Group *, FILE *complaints);

/* plan_check - is the plan sound? Says what is wrong on `complaints` (may be NULL). Shares nothing
 * with the passes: derives reads and live ranges anew. Checks group forms, order, that every out is
 * stored and stays intact until its last reader, that no two live buffers overlap, that states
 * change by their update roots alone. */
bool plan_check(const Graph *, const Plan *, FILE *complaints);
#endif
