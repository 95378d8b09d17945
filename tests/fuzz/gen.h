/* gen.h - random small graphs for comparisons: text and back, before and after a pass, interpreter
 * and generated code.
 *
 * Every graph is well typed and tame: values stay finite and moderate, and what jumps (roundings,
 * comparisons, arg reductions, float to integer) is applied only to values that float and double
 * arithmetic compute exactly alike, so that a comparison in tolerance is meaningful. */
#ifndef TRAINC_FUZZ_GEN_H
#define TRAINC_FUZZ_GEN_H
#include "ir.h"

/* fuzz_graph - a graph of 10 to 60 nodes from a seed: dtypes f32, bf16, i64, bool, in every sixth all; ranks up to 4, in every
 * eighth 8, and extents of 0; in every seventh NaN, infinities, -0 and the extremes of integers (fuzz_has_specials);
 * all families of ops; inputs x0.., states w0..; the entry `eval` with outputs y0.., the entry `micro` with outputs
 * and state updates. Never 0; owner: caller. */
Graph *fuzz_graph(uint64_t seed);
bool fuzz_has_specials(const Graph *); /* NaN and infinities among its data */
/* Does a result agree with the interpreter's? Integers and bools exactly, NaN and infinities in the same places, the rest
 * in relative L2. Says which element differs, or by how much, in `why`. */
bool fuzz_agrees(const Tensor *want, const Tensor *got, double tolerance, char why[96]);
/* How far generated code may be from the interpreter on a graph of fuzz_graph, relative L2. Small
 * floats are rounded where they are stored, which the interpreter does not do, and a layer norm of
 * them, with its eps of 1/64, makes a rounding of close numbers eight times as large. */
double fuzz_tolerance(const Graph *);
/* The elements of an input or state for a data seed: floats are multiples of 1/64 in [-2, 2],
 * integers lie in [-5, 5] or [0, index_limit), so that every storage type holds them exactly. */
Tensor fuzz_tensor(const Graph *, const char *name, uint64_t data_seed, Arena *);
/* An environment over fuzz_tensor; `user` of its functions is the FuzzData. Step scalars: floats in
 * [0.25, 1.25], integers small. */
typedef struct FuzzData {
    const Graph *g;
    uint64_t seed;
    Arena *arena;
} FuzzData;
InterpEnv fuzz_env(FuzzData *);

/* ---- private to gen*.c ---- */
enum { FUZZ_ITEMS = 96, FUZZ_MAX_ELEMS = 600 };
typedef struct Item {
    Value v;
    double mag;
    bool exact;
} Item; /* |elements| <= mag (INFINITY: specials, too); exact: alike in float and double */
typedef struct Gen {
    Graph *g;
    uint64_t rng;
    bool has_all_types; /* floats and integers of every width and sign */
    bool has_specials;  /* NaN, infinities, -0, extremes of integers */
    bool takes_empty;   /* what is picked now may have no elements */
    bool in_body;       /* of a loop: its stacks need one rank more */
    uint32_t max_rank;
    uint32_t n;
    Item items[FUZZ_ITEMS];
} Gen;

int64_t gen_int(Gen *, int64_t lo, int64_t hi);
bool gen_chance(Gen *, int percent);
double gen_integer_mag(DType, double mag); /* of a result that wraps in the type */
void gen_keep(Gen *, Value, double mag, bool exact);
Item gen_fresh(Gen *, DType, uint32_t rank, const int64_t *dims);
Item gen_pick(Gen *, DTypeClass, uint32_t min_rank,
              uint32_t max_rank);       /* from the pool, or fresh */
Item gen_tame(Gen *, Item, double mag); /* a float with |elements| <= mag */
Item gen_finite(Gen *, Item);             /* numbers instead of NaN and infinities */
Item gen_float_like(Gen *, Item like, uint32_t rank,
                    const int64_t *dims); /* of like's dtype, with these dims */
Value gen_indices(Gen *, uint32_t rank, const int64_t *dims, int64_t limit);
DType gen_dtype(const Gen *, Value);
void gen_grow(Gen *); /* one more op of any family but loops */
void gen_scan(Gen *); /* gen_scan.c */
void gen_map(Gen *);  /* gen_map.c */
void gen_view(Gen *); /* gen_structured.c */
void gen_window(Gen *);
void gen_index(Gen *);
void gen_reduce(Gen *);
void gen_contract(Gen *);
void gen_macro(Gen *);
void gen_attention(Gen *); /* gen_attention.c */
void gen_rope(Gen *);
void gen_small(Gen *); /* gen_types.c */
void gen_empty(Gen *); /* gen_empty.c */
#endif
