/* lower.h - private to lower*.c: the state of one kernel under construction.
 *
 * Values are evaluated recursively at index vectors; every statement is placed by what it depends on: on a reduction axis (by
 * index, guard or argument) into the current loop stage, otherwise into the row stage before it. So loop-invariant code is hoisted
 * by construction, and equal statements visible at a place are made once. */
#ifndef TRAINC_LOWER_H
#define TRAINC_LOWER_H
#include "kernel.h"

enum { MAX_DIMS = 20, MAX_AXES = 2 * MAX_RANK, MAX_FACTORS = 4 };
typedef struct Dim {               /* one dimension of the iteration domain; it may be split into several axes, outer first */
    int64_t extent;
    AxisRole role;
    uint32_t n_factors; int64_t factors[MAX_FACTORS];
    uint32_t axes[MAX_FACTORS];    /* the axis of each factor; MAX_AXES where it has extent 1 and none */
    Ix ix;
} Dim;
typedef struct Domain { Dim dims[MAX_DIMS]; uint32_t n; } Domain;

typedef uint32_t Guard;            /* a chain of conditions under which a value is evaluated; 0: always */
typedef struct GuardNode { Guard parent; Cond cond; } GuardNode;
typedef struct StmtList { Stmt *s; uint32_t n, cap; } StmtList;
typedef struct MemoSlot { Value v; Guard guard; uint32_t stage; Let let; Ix ix[MAX_RANK]; } MemoSlot;
typedef struct AccSlot { Value v; Let let; } AccSlot;

typedef struct Lower {
    const Graph *g; const Plan *plan; const Group *group; const EntryPlan *entry; Arena *arena;
    bool for_gpu;
    Kernel *k;
    Domain dom;
    StmtList *rows, *loops;        /* by level: rows[0] loops[0] rows[1] ... */
    uint32_t level, n_levels;
    uint32_t *let_stage; uint32_t cap_lets; /* 0: visible from its row stage on; s + 1: only in loops[s] */
    GuardNode *guards; uint32_t n_guards, cap_guards;
    MemoSlot *memo; uint32_t n_memo, cap_memo;
    AccSlot accs[64]; uint32_t n_accs;
} Lower;

/* lower.c */
bool lower_is_member(const Lower *, Value);
void domain_add(Lower *, int64_t extent, AxisRole);          /* before domain_axes */
void domain_axes(Lower *);                                   /* makes the kernel's axes; dims' ix are then set */
/* lower_stmt.c: statements */
Let lower_new_let(Lower *, DType, bool in_loop);
Let lower_emit(Lower *, Stmt);                               /* placed, made once; returns its let */
Let lower_map(Lower *, OpCode, DType, Let a, Let b, Let c, LocId);
Let lower_index(Lower *, Ix, DType);
Let lower_constant(Lower *, double, DType);
Let lower_accum(Lower *, OpCode, DType, Let value, Let index, LocId);
uint32_t lower_param(Lower *, uint32_t buffer, Value, bool written);
uint32_t lower_scalar_param(Lower *, const char *name, DType);
uint32_t lower_constant_param(Lower *, int64_t);             /* a number that equal kernels may differ in */
void lower_store(Lower *, Value out, const Ix *idx, Let);    /* into its group's buffer of that value */
void lower_store_to(Lower *, uint32_t buffer, Value out, const Ix *idx, Let); /* into any buffer: copies */
Ix lower_linear(Lower *, const Type *, const Ix *idx);       /* row-major element index */
bool lower_ix_in_loop(const Lower *, Ix);
/* Guards. lower_guard adds a condition: *outcome is 1 where it always holds (guard unchanged), -1 where it never does, else 0. */
Guard lower_guard(Lower *, Guard, Cond, int *outcome);
uint32_t lower_guard_conds(const Lower *, Guard, Guard until, Cond *out); /* those from `guard` up to, without, `until` */
/* lower_value.c: the value v at an index vector of its rank; under `guard` memory outside is not touched */
Let lower_value(Lower *, Value v, const Ix *idx, Guard guard);
/* the same where `conds` hold, `outside` elsewhere */
Let lower_guarded(Lower *, Value v, const Ix *idx, Guard, const Cond *conds, uint32_t n, double outside);
/* lower_view.c */
Let lower_view(Lower *, Value v, const Ix *idx, Guard guard);
/* lower_anchor.c: anchors with a domain of their own */
void lower_anchor_domain(Lower *, Value anchor);
void lower_anchor_terms(Lower *, Value anchor);              /* the loop stage of level 0; registers the accumulator */
void lower_anchor_index(Lower *, Value anchor, Ix *idx);     /* the anchor's index vector at the parallel axes */
void lower_conv_tile(Lower *, Value anchor);
/* lower_scatter.c */
bool lower_is_scatter(OpCode);
void lower_scatter_domain(Lower *, Value anchor, bool sequential);
void lower_scatter_terms(Lower *, Value anchor);             /* predicate reduction */
void lower_scatter_updates(Lower *, Value anchor);           /* FORM_SCATTER */
/* lower_tile.c: fills k->tile; false where an operand is no affine view of a buffer */
bool lower_tile_operands(Lower *, Value anchor);
/* lower_finish.c */
bool lower_split(Lower *);                                   /* splits a dimension that an index divides; true: lower again */
void lower_finish(Lower *);                                  /* dead statements out, stages in, axes merged, params in order */
#endif
