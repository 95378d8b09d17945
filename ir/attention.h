/* attention.h - the macro `attention`: how passes and importers build it and read its form.
 *
 *   score = scale q k^T               q[B,H,S,D] k[B,G,T,D], G divides H: head h reads group h / (H / G)
 *   score = softcap tanh(score / softcap)                            where softcap > 0
 *   score = score + bias                                             bias broadcasts to [B,H,S,T]
 *   score = seen ? score : hidden     seen(i, j) = keep and first <= j - i <= last
 *   p     = softmax over T, in f32 at least; where guard, NaN (a row without a key) is 0
 *   y     = (p * drop) v              v[B,G,T,E] -> y[B,H,S,E]
 *
 * hidden = fill, + the scaled and capped product where `masked` has HIDDEN_SCORE, + bias where it has
 * HIDDEN_BIAS: masks that select replace the score, masks that are added keep it, and in a row where
 * all is masked by a finite number that makes a difference. */
#ifndef TRAINC_ATTENTION_H
#define TRAINC_ATTENTION_H
#include "ir.h"

enum { ATTENTION_Q, ATTENTION_K, ATTENTION_V, ATTENTION_BIAS, ATTENTION_KEEP, ATTENTION_DROP, N_ATTENTION_OPERANDS };
enum { HIDDEN_SCORE = 1, HIDDEN_BIAS = 2 };
#define BAND_FIRST INT32_MIN /* no bound on keys before, ... */
#define BAND_LAST  INT32_MAX /* ... and behind the query */

typedef struct AttentionForm {
    double scale, softcap, fill;
    int64_t first, last;
    int64_t masked;
    bool guard;
} AttentionForm;

/* scale 1, no cap, no band, fill -infinity */
AttentionForm attention_form_plain(void);
AttentionForm attention_form(const Graph *, Value attention);
/* build_attention - the node over x[N_ATTENTION_OPERANDS]; bias, keep and drop may be 0: none. Bounds that no
 *   (i, j) reaches become BAND_FIRST, BAND_LAST, and what an absent mask leaves without meaning its neutral value, so that
 *   equal attentions are one node.    errors  E_SHAPES, E_DTYPE -> 0 */
Value build_attention(Graph *, const Value *x, AttentionForm);
/* Is the operand there: not the splat that means none? */
bool attention_has(const Graph *, Value attention, uint32_t operand);
/* build_rope - macro `rope`: x[.., D] turned by cos and sin [.., R], R <= D even, which broadcast to x[.., :R]:
 *   y = x cos + turn(x) sin on the first R elements, the rest as it is. turn((a, b)) = (-b, a), where a and b are the halves,
 *   or where interleaved the even and the odd elements. */
Value build_rope(Graph *, Value x, Value cos, Value sin, bool is_interleaved);
#endif
