/* match_attention.h - what the files that recognise attention share; private to passes/match*.c. */
#ifndef TRAINC_MATCH_ATTENTION_H
#define TRAINC_MATCH_ATTENTION_H
#include "attention.h"
#include "pass.h"
#include "strided.h"

/* The macro node, in the type of v, that v (a dot) is the last product of; 0 where it is none.
 * Notes near misses. */
Value match_attention(PassContext *, Graph *, Value v);
/* The macro node, in the type of v, that v is the last op of; 0 where it is none. */
Value match_rope(Graph *, Value v);

/* ---- match_mask.c ---- */

/* A conjunction: first <= j - i <= last, and keep where it is not 0. never: nothing is seen. */
typedef struct Mask {
    int64_t first, last;
    Value keep; /* bool, rank 4, each extent 1 or that of the scores */
    bool never;
} Mask;
typedef struct ScoreDims {
    int64_t b, h, s, t;
} ScoreDims;

/* v, of the dims of the scores or of rank 4 and broadcast to them, as rank 4 with repeated axes at
 * extent 1. */
Value mask_compact(Graph *, Value v, const ScoreDims *);
/* The mask that is true where cond (compact) is, or, negate, where it is not. */
Mask mask_of(Graph *, Value cond, bool negate, const ScoreDims *);
void mask_and(Graph *, Mask *, const Mask *);
/* Is the number x, wherever it is not 0, decided by a bool? Then that bool (negated: *negate). */
Value mask_truth(Graph *, Value x, bool *negate);
/* The bool that is true where x is 1, if x is 0 or 1 everywhere: a bool cast to a number, or a constant; 0 else. */
Value mask_of_ones(Graph *, Value x);
/* A view of a map is a map of views: pushes the view at v into the operands of the map below it; 0
 * where there is no such pair. */
Value view_pushed(Graph *, Value v);

/* ---- match_bias.c ---- */

typedef enum ScoreTermKind {
    SCORE_ADDED,
    SCORE_HIDDEN,
    SCORE_REPLACED,
    SCORE_SELECTED
} ScoreTermKind;
/* ADDED: score + value. HIDDEN: score + (mask ? 0 : fill). REPLACED: score + (mask ? value : fill).
 * SELECTED: mask ? score : fill. */
typedef struct ScoreTerm {
    ScoreTermKind kind;
    Value value;
    Mask mask;
    double fill;
} ScoreTerm;
enum { MAX_SCORE_TERMS = 8 };
/* The terms of x * times, which is added to scores; false where there are too many. */
bool bias_terms(Graph *, Value x, double times, const ScoreDims *, ScoreTerm *terms, uint32_t *n);
/* Terms in the order in which they are applied, as the bias, keep and form of one attention; what
 * cannot be said exactly, as a sentence. */
const char *bias_merge(Graph *, const ScoreTerm *terms, uint32_t n, const ScoreDims *, DType,
                       AttentionForm *, Value *bias, Value *keep);
#endif
