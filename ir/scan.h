/* scan.h - loops: how a body names what it reads, building one, its gradient.
 *
 * A body is built in the graph that will hold the loop: holes (inputs whose names begin with '%') stand for the carries, slices and
 * the step's number, ops are emitted over them as anywhere, and scan_build lifts what depends on holes out into a graph of its own.
 * What does not depend on any hole is computed once, outside, and becomes an invariant.
 */
#ifndef TRAINC_SCAN_H
#define TRAINC_SCAN_H
#include "ir.h"

enum { BODY_LEAF = 16 };
const char *body_leaf(char name[BODY_LEAF], char kind, uint32_t i);   /* "c0", "x3", "w1", "y2" */
const Type *body_type(const Body *, char kind, uint32_t i);           /* NULL where the body does not declare it */
uint32_t body_n_operands(const Body *);
void body_hold(Graph *, Body);                                        /* as the last body, one reference more */
uint32_t body_operand(const Body *, const char *leaf);                 /* which operand of the loop "c0", "x3", "w1" is */
Body body_of(const char *name, Graph *);                              /* counts what the graph declares */
const char *body_misfit(const Body *);                                /* what keeps the graph from being a body, or NULL */
/* Do two nodes differ in A_RESULT alone (or not at all)? Then they are one loop. */
bool scans_are_siblings(const Graph *, Value a, Value b);
Value scan_emit(Graph *, const Value *operands, uint32_t body, int64_t trips, bool is_reverse, uint32_t result);

typedef struct ScanSpec {
    const char *name;                                        /* of the body, for people */
    uint32_t n_carries, n_scanned, n_ys;
    const Value *first, *carry, *next;                       /* n_carries: initial value, its hole, what the next step gets (0: the same) */
    const Value *xs, *x;                                     /* n_scanned: [trips, ..] and the hole of one slice */
    Value t;                                                 /* the hole of the step's number, i64 rank 0, or 0 */
    const Value *ys;                                         /* n_ys: what a step leaves to be stacked */
    int64_t trips;
    bool is_reverse;
} ScanSpec;
Value scan_hole(Graph *, TypeId);                            /* a new hole */
bool is_hole(const Graph *, Value);
/* The loop: finals[i] is the last value of carry i, stacks[i] the stacked ys[i]. false where one of the given values is 0. */
bool scan_build(Graph *, const ScanSpec *, Value *finals, Value *stacks);
/* Lays one step of the body into g: map[v], for nodes v of the body that its roots reach, becomes the node of g over the operands of
 * that step (in the loop's order, slices instead of what is scanned) and the step's number. Given entries of map stay. */
void body_lay(Graph *, const Body *, const Value *operands, Value t, Value *map);
/* A node of one graph in another, over operands there; its location, and the body of a loop, come with it. */
Value node_carry_over(Graph *to, const Graph *from, Value v, const Value *operands);
LocId loc_carry_over(Graph *to, const Graph *from, LocId);

/* How many steps run until output y0, one truth value, is false after a step (that step counts), from the values of the carries and then
 * the invariants; `limit` where it stays true so long, 0 where a step does not evaluate. The body scans nothing. */
int64_t scan_count(const Body *, const Tensor *operands, int64_t limit);

/* scan_extended - the body that also outputs each carry as it was before the step, and the results of its contractions: what the
 *   gradient reads. Results of the given body keep their numbers.
 * scan_vjp - d of every operand of a loop, from dy per result (0: none), of all nodes that are this loop at once. needs[i]: operand i
 *   wants one. Reads the results of the extended loop: where the graph has that one already, the forward runs once. `parameter` is
 *   who is named where an op within has no gradient. false after diagnostics. */
uint32_t scan_extended(Graph *, uint32_t body);
bool scan_vjp(Graph *, Value scan, const Value *dy, const bool *needs, const char *parameter, Value *d);
#endif
