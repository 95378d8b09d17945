/* loop.h - what Loop and Scan share: a body imported over holes, and the loop that it makes. Private to frontend/. */
#ifndef TRAINC_FRONTEND_LOOP_H
#define TRAINC_FRONTEND_LOOP_H
#include "context.h"
#include "scan.h"

enum { MAX_LOOP_VALUES = 256 };

typedef struct Loop {
    ImportNode *n;
    const Onnx__GraphProto *body;
    int64_t trips;                                           /* INT64_MAX: no number is given */
    bool starts;                                             /* the condition before the first step */
    uint32_t n_carried, n_stacked;
    const Value *first;
    Value finals[MAX_LOOP_VALUES], stacks[MAX_LOOP_VALUES];  /* steps first */
} Loop;

typedef struct Attempt {                                     /* what an import changes that nodes do not hold */
    uint32_t n_diags, n_roots[N_ENTRIES];
} Attempt;
Attempt attempt_begin(const Graph *);
bool attempt_failed(const Graph *, const Attempt *);         /* an error has been added since */
void attempt_undo(Graph *, const Attempt *);
bool adds_roots(const Graph *, const Attempt *);
/* Statistics that several steps would move have no one value at the end of a micro-batch: true, and said. */
bool moves_statistics(ImportNode *, const Attempt *);

const Onnx__GraphProto *body_of_node(ImportNode *);          /* NULL after a diagnostic */
bool define_inputs(Loop *, Scope *inner, const Value *values, uint32_t n);
/* Are these n_carried + n_stacked values tensors, the carried ones of the types they began with? */
bool keeps_types(const Loop *, const Value *next);
/* build_loop - carried and stacked values of one step over holes, in `next`, as a loop: l->finals, l->stacks. Random numbers that the
 *   body's own ops have made are drawn for all steps at once. */
typedef struct Holes {
    const Value *carry, *xs, *x;
    Value t;
    uint32_t n_x;
    bool is_reverse;
} Holes;
bool build_loop(Loop *, const Holes *, Value *next);
#endif
