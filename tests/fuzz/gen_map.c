/* gen_map.c - random elementwise nodes: every map of the registry, over operands brought into its
 * domain. */
#include "gen.h"
#include <assert.h>
#include <math.h>

/* Where a float map of one operand is defined and tame. A new row of op.def is tried in (0.1, 0.9).
 */
typedef enum Domain {
    DOMAIN_UNIT,
    DOMAIN_ALL,
    DOMAIN_SMALL,
    DOMAIN_POSITIVE,
    DOMAIN_ABOVE_ONE,
    DOMAIN_JUMPS
} Domain;
static const struct {
    Domain domain;
    double mag;
} domains[N_OPS] = {
    [OP_neg] = {DOMAIN_ALL, 0},        [OP_abs] = {DOMAIN_ALL, 0},
    [OP_relu] = {DOMAIN_ALL, 0},       [OP_sign] = {DOMAIN_JUMPS, 1},
    [OP_floor] = {DOMAIN_JUMPS, 0},    [OP_ceil] = {DOMAIN_JUMPS, 0},
    [OP_round] = {DOMAIN_JUMPS, 0},    [OP_exp] = {DOMAIN_SMALL, 56},
    [OP_expm1] = {DOMAIN_SMALL, 55},   [OP_sinh] = {DOMAIN_SMALL, 28},
    [OP_cosh] = {DOMAIN_SMALL, 28},    [OP_sin] = {DOMAIN_SMALL, 1},
    [OP_cos] = {DOMAIN_SMALL, 1},      [OP_atan] = {DOMAIN_ALL, 1.6},
    [OP_asinh] = {DOMAIN_ALL, 12},     [OP_tanh] = {DOMAIN_ALL, 1},
    [OP_sigmoid] = {DOMAIN_ALL, 1},    [OP_erf] = {DOMAIN_ALL, 1},
    [OP_log] = {DOMAIN_POSITIVE, 1},   [OP_log1p] = {DOMAIN_POSITIVE, 2},
    [OP_sqrt] = {DOMAIN_POSITIVE, 2},  [OP_rsqrt] = {DOMAIN_POSITIVE, 2},
    [OP_recip] = {DOMAIN_POSITIVE, 2}, [OP_acosh] = {DOMAIN_ABOVE_ONE, 2},
};

static Value number(Gen *f, Value like, double x) {
    return build_splat(f->g, graph_type_of(f->g, gen_dtype(f, like), 0, NULL), x);
}

/* lo + (hi - lo) * sigmoid(x) */
static Value within(Gen *f, Value x, double lo, double hi) {
    Value scaled =
        build_binary(f->g, OP_mul, build_unary(f->g, OP_sigmoid, x), number(f, x, hi - lo));
    return build_binary(f->g, OP_add, scaled, number(f, x, lo));
}

static OpCode random_op(Gen *f, int arity, OpClass a, OpClass b) {
    OpCode found = OP_NONE;
    int64_t n = 0;
    for (int op = 1; op < N_OPS; op++) {
        const OpInfo *info = &op_info[op];
        if (info->arity != arity || info->cls == OPC_NONE || (info->cls != a && info->cls != b))
            continue;
        if (gen_int(f, 0, n++) == 0) found = (OpCode)op;
    }
    return found;
}

static void unary_float(Gen *f) {
    OpCode op = random_op(f, 1, OPC_FLT, OPC_NUM);
    Item x = gen_pick(f, CLASS_FLT, 0, MAX_RANK);
    double mag = domains[op].mag > 0 ? domains[op].mag : x.mag + 1;
    bool exact = false;
    switch (domains[op].domain) {
    case DOMAIN_UNIT:
        x.v = within(f, x.v, 0.1, 0.9);
        mag = 4;
        break;
    case DOMAIN_ALL:
        exact = x.exact && domains[op].mag == 0;
        break;
    case DOMAIN_SMALL:
        x = gen_tame(f, x, 4);
        break;
    case DOMAIN_POSITIVE:
        x.v = within(f, x.v, 0.5, 1.5);
        break;
    case DOMAIN_ABOVE_ONE:
        x.v = within(f, x.v, 1.5, 2.5);
        break;
    case DOMAIN_JUMPS:
        if (!x.exact) return;
        exact = true;
        break;
    }
    gen_keep(f, build_unary(f->g, op, x.v), mag, exact);
}

/* A second operand: of any dims that broadcast with a's, brought to a's dtype. */
static Item partner(Gen *f, Item a) {
    const Type t = *graph_type_at(f->g, a.v);
    Item b = gen_pick(f, (DTypeClass)dtype_info[t.dtype].cls, 0, MAX_RANK);
    Type u = *graph_type_at(f->g, b.v);
    int64_t wide = type_elems(&t), dims[MAX_RANK];
    for (uint32_t i = 0; i < u.rank && i < t.rank; i++) {
        int64_t x = t.dims[t.rank - 1 - i], y = u.dims[u.rank - 1 - i];
        if (x != y && x != 1 && y != 1) wide = INT64_MAX / 2;
        if (x == 1 && wide < INT64_MAX / 2) wide *= y;
    }
    for (uint32_t i = t.rank; i < u.rank; i++)
        wide = wide < INT64_MAX / 2 ? wide * u.dims[u.rank - 1 - i] : wide;
    if (wide <= FUZZ_MAX_ELEMS) {
        b.v = build_cast(f->g, b.v, (DType)t.dtype);
        return b;
    }
    uint32_t lead = (uint32_t)gen_int(f, 0, t.rank);
    for (uint32_t i = lead; i < t.rank; i++) dims[i - lead] = gen_chance(f, 25) ? 1 : t.dims[i];
    return gen_fresh(f, (DType)t.dtype, t.rank - lead, dims);
}

static void binary_float(Gen *f) {
    OpCode op = random_op(f, 2, OPC_FLT, OPC_NUM);
    Item a = gen_pick(f, CLASS_FLT, 0, MAX_RANK), b = partner(f, a);
    double mag = 16;
    bool exact = false;
    if (op == OP_max || op == OP_min) {
        exact = a.exact && b.exact;
        mag = fmax(a.mag, b.mag);
    } else if (op == OP_fmod || op == OP_trunc_div) { /* jump where a / b is whole */
        if (!a.exact || !b.exact || a.mag > 4 || gen_dtype(f, a.v) != DT_F32) return;
        b.v = build_binary(f->g, OP_max, build_unary(f->g, OP_abs, b.v), number(f, b.v, 0.5));
        exact = true;
    } else if (op == OP_add || op == OP_sub) {
        mag = a.mag + b.mag;
    } else {
        a = gen_tame(f, a, 8), b = gen_tame(f, b, 8);
        if (op == OP_mul)
            mag = a.mag * b.mag;
        else
            b.v = within(f, b.v, 0.5, 1.5);
        if (op == OP_pow) a.v = within(f, a.v, 0.5, 1.5);
    }
    gen_keep(f, build_binary(f->g, op, a.v, b.v), mag, exact);
}

static void integer(Gen *f) {
    bool unary = gen_chance(f, f->has_all_types ? 35 : 20);
    OpCode op = random_op(f, unary ? 1 : 2, OPC_INT, OPC_NUM);
    Item a = gen_pick(f, CLASS_INT, 0, MAX_RANK), b;
    if (unary) {
        gen_keep(f, build_unary(f->g, op, a.v), gen_integer_mag(gen_dtype(f, a.v), a.mag + 1),
                 true);
        return;
    }
    b = partner(f, a);
    if ((op == OP_shl || op == OP_shr) && !f->has_specials) {
        b.v = build_binary(f->g, OP_bitand, b.v, number(f, b.v, 3));
        b.mag = 8;
    }
    b.mag = gen_integer_mag(gen_dtype(f, b.v), b.mag);
    double mag = op == OP_mul || op == OP_shl ? a.mag * b.mag : 2 * (a.mag + b.mag) + 2;
    DType d = gen_dtype(f, a.v);
    bool wraps = f->has_specials || (d != DT_I64 && d != DT_I32);
    if (wraps || mag < 1e6)
        gen_keep(f, build_binary(f->g, op, a.v, b.v), gen_integer_mag(d, mag), true);
}

static void compare(Gen *f, DTypeClass cls) {
    Item a = gen_pick(f, cls, 0, MAX_RANK), b = partner(f, a);
    if (a.exact && b.exact)
        gen_keep(f, build_binary(f->g, random_op(f, 2, OPC_CMP, OPC_CMP), a.v, b.v), 1, true);
}

static void boolean(Gen *f) {
    Item a = gen_pick(f, CLASS_BOOL, 0, MAX_RANK);
    if (gen_chance(f, 25))
        gen_keep(f, build_unary(f->g, OP_not, a.v), 1, true);
    else if (gen_chance(f, 25))
        gen_keep(f,
                 build_unary(f->g, random_op(f, 1, OPC_TEST, OPC_TEST),
                             gen_pick(f, CLASS_FLT, 0, MAX_RANK).v),
                 1, true);
    else
        gen_keep(f, build_binary(f->g, random_op(f, 2, OPC_BOOL, OPC_BOOL), a.v, partner(f, a).v),
                 1, true);
}

static void ternary(Gen *f, DTypeClass cls) {
    Item b = gen_pick(f, cls, 0, MAX_RANK), c = partner(f, b);
    double mag = fmax(b.mag, c.mag);
    if (gen_chance(f, 30)) {
        gen_keep(f,
                 build_map(f->g, OP_clip, (Value[]){b.v, number(f, b.v, -1), number(f, b.v, 1)}, 3),
                 b.mag, b.exact);
        return;
    }
    Type t = *graph_type_at(f->g, build_binary(f->g, OP_add, b.v, c.v));
    Item a = gen_fresh(f, DT_BOOL, t.rank, t.dims);
    gen_keep(f, build_map(f->g, OP_where, (Value[]){a.v, b.v, c.v}, 3), mag, b.exact && c.exact);
}

static void cast(Gen *f) {
    Item x = gen_pick(f,
                      gen_chance(f, 50)   ? CLASS_FLT
                      : gen_chance(f, 70) ? CLASS_INT
                                          : CLASS_BOOL,
                      0, MAX_RANK);
    static const DType dtypes[] = {DT_F32, DT_F32, DT_BF16, DT_I64, DT_BOOL, DT_I32,
                                   DT_I16, DT_I8,  DT_U64,  DT_U32, DT_U16,  DT_U8,
                                   DT_I4,  DT_U4,  DT_I2,   DT_U2,  DT_F16,  DT_F64};
    DType to = dtypes[gen_int(f, 0, f->has_all_types ? 17 : 4)];
    bool jumps = dtype_info[to].cls != CLASS_FLT, is_large = x.mag > 1 << 24;
    if (jumps && !x.exact) return;
    if (dtype_info[to].cls == CLASS_INT && is_large &&
        dtype_info[gen_dtype(f, x.v)].cls == CLASS_FLT)
        return;
    Value v = build_cast(f->g, x.v, to);
    gen_keep(f, v, gen_integer_mag(to, x.mag + 1),
             x.exact && !(is_large && !jumps && dtype_info[gen_dtype(f, x.v)].cls == CLASS_INT));
}

static void grow_map(Gen *f) {
    if (f->has_all_types && gen_chance(f, 40)) {
        if (gen_chance(f, 50))
            integer(f);
        else if (gen_chance(f, 30))
            compare(f, CLASS_INT);
        else if (gen_chance(f, 40))
            ternary(f, CLASS_INT);
        else
            cast(f);
        return;
    }
    switch (gen_int(f, 0, 9)) {
    case 0:
    case 1:
    case 2:
        unary_float(f);
        break;
    case 3:
    case 4:
        binary_float(f);
        break;
    case 5:
        integer(f);
        break;
    case 6:
        compare(f, gen_chance(f, 50) ? CLASS_FLT : CLASS_INT);
        break;
    case 7:
        boolean(f);
        break;
    case 8:
        ternary(f, gen_chance(f, 80) ? CLASS_FLT : CLASS_INT);
        break;
    default:
        cast(f);
        break;
    }
}

void gen_map(Gen *f) {
    f->takes_empty = f->max_rank > 4;
    grow_map(f);
    f->takes_empty = false;
}
