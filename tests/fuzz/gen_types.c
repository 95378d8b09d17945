/* gen_types.c - random values of the floats of eight and four bits.
 *
 * They are storage: nobody computes in them. So each is read, or made by a cast of exact numbers,
 * goes through views, and is cast to f32. A graph also returns one now and then. */
#include "gen.h"
#include <math.h>

static Value number(Gen *f, Value like, double x) {
    return build_splat(f->g, graph_type_of(f->g, gen_dtype(f, like), 0, NULL), x);
}

static DType small_type(Gen *f) {
    static const DType types[] = {DT_F8E4M3FN, DT_F8E5M2, DT_F8E4M3FNUZ, DT_F8E5M2FNUZ,
                                  DT_F8E8M0,   DT_F4E2M1, DT_F16,        DT_BF16};
    return types[gen_int(f, 0, sizeof types / sizeof *types - 1)];
}

/* What every such type holds nearly: within 6, and where there is no sign and no zero, above. */
static Value rounded(Gen *f, Value v, DType to) {
    double low = to == DT_F8E8M0 ? 0.015625 : -6;
    Value x = build_map(f->g, OP_clip, (Value[]){v, number(f, v, low), number(f, v, 6)}, 3);
    return build_cast(f->g, x, to);
}

static Value viewed(Gen *f, Value v) {
    Type t = *graph_type_at(f->g, v);
    int64_t perm[MAX_RANK], dims[MAX_RANK];
    for (uint32_t i = 0; i < t.rank; i++) perm[i] = t.rank - 1 - i, dims[i] = t.dims[i];
    switch (gen_int(f, 0, 4)) {
    case 0:
        return build_transpose(f->g, v, perm);
    case 1:
        return build_concat(f->g, (Value[]){v, v}, 2, gen_int(f, 0, t.rank - 1));
    case 2: {
        int64_t zero[MAX_RANK] = {0}, one[MAX_RANK];
        for (uint32_t i = 0; i < t.rank; i++) one[i] = gen_int(f, 0, 1);
        return build_pad(f->g, v, one, one, zero, 1);
    }
    case 3:
        return build_gather(f->g, v, gen_indices(f, 1, (int64_t[]){3}, dims[0]), 0);
    default:
        return v;
    }
}

void gen_small(Gen *f) {
    DType d = small_type(f);
    Item x = gen_pick(f, CLASS_FLT, 1, 4);
    Value v;
    if (gen_chance(f, 50) && x.exact) {
        v = rounded(f, x.v, d);
    } else {
        Type t = *graph_type_at(f->g, x.v);
        x = gen_fresh(f, d, t.rank, t.dims);
        v = x.v;
        if (graph_op(f->g, v) == OP_random) x.exact = false;
    }
    v = viewed(f, v);
    if (x.exact && gen_chance(f, 30))
        graph_add_root(
            f->g, ENTRY_EVAL, false,
            graph_str(f->g, arena_printf(f->g->arena, "s%u", f->g->entries[ENTRY_EVAL].n)), v);
    gen_keep(f, build_cast(f->g, v, DT_F32), fmax(x.mag, 6), x.exact);
}
