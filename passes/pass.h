/* pass.h - what the passes share among themselves; private to passes/.
 *
 * A pass returns false after an error diagnostic. It may append to ctx->g in place (nodes are
 * immutable, so what was there stays) or set ctx->g to a rewritten copy; the manager frees graphs,
 * a pass never does. Between two passes the graph alone carries what the next one must know: the
 * loss is the outputs loss_sum and loss_count of micro, the gradients its outputs grad.NAME, the
 * number that gradients are divided by the output static_count of apply. */
#ifndef TRAINC_PASS_H
#define TRAINC_PASS_H
#include "passes.h"

typedef enum PropertyId {
#define PROPERTY(id, ...) PROP_##id,
#include "property.def"
#undef PROPERTY
    N_PROPERTIES
} PropertyId;
#define PROP(id) (1u << PROP_##id)
#define PLAN (PROP(FUSED) | PROP(SCHEDULED) | PROP(PLANNED))

#define PASS(name, ...) PassFn pass_##name;
#include "pass.def"
#undef PASS

/* Does the property hold? Says in a sentence on `complaints` (may be NULL) why not. */
typedef bool PropertyFn(const PassContext *, FILE *complaints);
#define PROPERTY(id, ...) PropertyFn check_##id;
#include "property.def"
#undef PROPERTY
typedef struct PropertyInfo {
    const char *name;
    PropertyFn *check;
    const char *meaning;
} PropertyInfo;
extern const PropertyInfo property_info[N_PROPERTIES];

/* Takes one unit of rewrite fuel; false where none is left. */
bool pass_fuel(PassContext *);
/* Do --loss and --optimizer name what there is? Else a diagnostic. loss.c, optimizer.c */
bool loss_kind(PassContext *, LossKind *);
bool optimizer_is_known(PassContext *);
/* Notes a near miss at the ONNX node `at`: why it is no `macro`. Kept for trainc plan -v; the same
 * text is kept once per macro and location. */
void match_note(PassContext *, const char *macro, LocId at, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* A fresh copy of ctx->g through visit, set as ctx->g; dead nodes stay behind. */
void pass_rewrite(PassContext *, VisitFn *visit, void *pass);
/* The node v of `from` emitted in `to`, over mapped operands: for visitors that look at the copy.
 */
Value node_copied(const Graph *from, Value v, Graph *to, const Value *map);
/* pass_bodies - runs a pass that rewrites nodes on the bodies of all loops of ctx->g, too, a graph which that pass has just made;
 *   constants of more than one number in bodies become operands of their loops. */
bool pass_bodies(PassContext *, PassFn *pass);
OpCode pattern_op(const char *pattern); /* the first op of a pattern, by which rules are indexed */

const char *grad_name(Graph *, const char *parameter); /* "grad.NAME" */
/* The factor on raw gradients that makes them the clipped mean, from the raw gradients in `grads`;
 * writes the norm of the mean before clipping. `inverse` is static_count / (loss_count *
 * loss_scale). All rank 0, f32. */
Value clip_factor(PassContext *, const Value *grads, uint32_t n, Value inverse, Value *norm);
#endif
