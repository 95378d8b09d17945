/* gen_attention.c - random attentions and rotary embeddings.
 *
 * Products are scaled down so that a rounding of a score stays one of the result, and where a row
 * may see no key there is a guard or a finite fill. */
#include "attention.h"
#include "gen.h"
#include <math.h>

static Value floats(Gen *f, int64_t a, int64_t b, int64_t c, int64_t d) {
    return gen_fresh(f, DT_F32, 4, (int64_t[]){a, b, c, d}).v;
}

void gen_attention(Gen *f) {
    int64_t batch = gen_int(f, 1, 2), groups = gen_int(f, 1, 2), heads = groups * gen_int(f, 1, 2),
            s = gen_int(f, 1, 4), t = gen_int(f, 1, 5), d = gen_int(f, 1, 3), e = gen_int(f, 1, 3);
    Value x[N_ATTENTION_OPERANDS] = {floats(f, batch, heads, s, d), floats(f, batch, groups, t, d),
                                     floats(f, batch, groups, t, e)};
    AttentionForm form = attention_form_plain();
    form.scale = 0.125;
    form.softcap = gen_chance(f, 25) ? 1.5 : 0;
    if (gen_chance(f, 40)) form.last = gen_int(f, -1, t - 1);
    if (gen_chance(f, 30)) form.first = gen_int(f, -s, 1);
    if (gen_chance(f, 40)) form.fill = -2;
    form.masked = gen_int(f, 0, HIDDEN_SCORE | HIDDEN_BIAS);
    form.guard = isinf(form.fill) || gen_chance(f, 20);
    if (gen_chance(f, 40))
        x[ATTENTION_BIAS] =
            floats(f, 1, gen_chance(f, 50) ? heads : 1, gen_chance(f, 50) ? s : 1, t);
    if (gen_chance(f, 40))
        x[ATTENTION_KEEP] = gen_fresh(f, DT_BOOL, 4, (int64_t[]){batch, 1, 1, t}).v;
    if (gen_chance(f, 25))
        x[ATTENTION_DROP] = floats(f, batch, heads, s, gen_chance(f, 50) ? t : 1);
    gen_keep(f, build_attention(f->g, x, form), 4, false);
}

void gen_rope(Gen *f) {
    Item x = gen_pick(f, CLASS_FLT, 2, 4);
    Type t = *graph_type_at(f->g, x.v);
    uint32_t last = t.rank - 1u;
    if (t.dims[last] < 2) return;
    t.dims[last] = 2 * gen_int(f, 1, t.dims[last] / 2);
    for (uint32_t i = 0; i < last; i++)
        if (gen_chance(f, 40)) t.dims[i] = 1;
    Item cos = gen_fresh(f, (DType)t.dtype, t.rank, t.dims),
         sin = gen_fresh(f, (DType)t.dtype, t.rank, t.dims);
    gen_keep(f, build_rope(f->g, x.v, cos.v, sin.v, gen_chance(f, 50)),
             x.mag * (1 + cos.mag + sin.mag), false);
}
