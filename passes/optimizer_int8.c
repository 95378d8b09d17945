/* optimizer_int8.c - moments in 8 bits: blocks of 256 elements, each with its largest magnitude in
 * f32, and a code of seven decades per element (Dettmers et al. 2021, dynamic block-wise
 * quantisation; the format of bitsandbytes).
 *
 * Magnitudes are shares of the block's largest. Decade e = 0..6 covers [10^(e-7), 10^(e-6)) with
 * 2^e codes of each sign (twice as many where the moment has none), at the middles of equal parts;
 * besides there are 0 and 1. With p counting the codes of one sign from 1 up, e is floor(log2 p),
 * so both ways are arithmetic: no table is read, and all of it fuses with the update. */
#include "pass.h"
#include "optimizer_state.h"

enum { BLOCK = 256, SMALLEST = 4096 };

bool moment_is_packed(const Type *t) { return type_elems(t) >= SMALLEST; }

/* by decades of the share a, from the bounds to 10^(e-7) (1 + 1.8 / codes of the decade): half way
 * between the last code of one decade and the first of the next; by p: 10^(e - 6) */
#define BY_BOUNDS(b6, b5, b4, b3, b2, b1, a6, a5, a4, a3, a2, a1, a0)                              \
    "(where (ge a " b6 ") " a6 " (where (ge a " b5 ") " a5 " (where (ge a " b4 ") " a4             \
    " (where (ge a " b3 ") " a3 " (where (ge a " b2 ") " a2 " (where (ge a " b1 ") " a1 " " a0     \
    "))))))"
#define BY_DECADE(...)                                                                             \
    BY_BOUNDS("0.1028125", "0.0105625", "0.0011125", "1.225e-4", "1.45e-5", "1.9e-6", __VA_ARGS__)
#define BY_UNSIGNED(...)                                                                           \
    BY_BOUNDS("0.10140625", "0.01028125", "0.00105625", "1.1125e-4", "1.225e-5", "1.45e-6",        \
              __VA_ARGS__)
#define BY_CODE(a6, a5, a4, a3, a2, a1, a0)                                                        \
    "(where (ge p 64) " a6 " (where (ge p 32) " a5 " (where (ge p 16) " a4 " (where (ge p 8) " a3  \
    " (where (ge p 4) " a2 " (where (ge p 2) " a1 " " a0 "))))))"

/* share of one sign -> p in 0 .. 128: floor(2^e (1 + (a 10^(6-e) - 0.1) / 0.9)), within the decade
 */
static const char encode[] =
    "(let two " BY_DECADE("64", "32", "16", "8", "4", "2", "1") "(let ten " BY_DECADE(
        "1", "10", "100", "1000", "1e4", "1e5",
        "1e6") "(let q (floor (mul two (add 1 (mul (sub (mul a ten) 0.1) 1.1111111111111112))))"
               "(where (lt a 2.75e-7) 0 (where (gt a 0.9964844) 128 "
               "(min (max q two) (sub (mul 2 two) 1)))))))";
/* p -> share: 10^(e-6) (0.1 + 0.9 ((p + 0.5) / 2^e - 1)) */
static const char decode[] =
    "(let two " BY_CODE("64", "32", "16", "8", "4", "2", "1") "(let ten " BY_CODE(
        "1", "0.1", "0.01", "0.001", "1e-4", "1e-5",
        "1e-6") "(where (lt p 1) 0 (where (ge p 128) 1 "
                "(mul ten (add 0.1 (mul 0.9 (sub (div (add p 0.5) two) 1))))))))";

/* without a sign: q in 1 .. 256, e = floor(log2 q) in 1 .. 7, the code is q - 1 */
static const char encode_unsigned[] =
    "(let two " BY_UNSIGNED("128", "64", "32", "16", "8", "4", "2") "(let ten " BY_UNSIGNED(
        "1", "10", "100", "1000", "1e4", "1e5",
        "1e6") "(let q (floor (mul two (add 1 (mul (sub (mul a ten) 0.1) 1.1111111111111112))))"
               "(where (lt a 1.625e-7) 0 (where (gt a 0.9982422) 255 "
               "(sub (min (max q two) (sub (mul 2 two) 1)) 1))))))";
static const char decode_unsigned[] = "(let p (mul 0.5 (add c 1)) (let two " BY_CODE(
    "64", "32", "16", "8", "4", "2",
    "1") "(let ten " BY_CODE("1", "0.1", "0.01", "0.001", "1e-4", "1e-5",
                             "1e-6") "(where (lt c 1) 0 (where (ge c 255) 1 "
                                     "(mul ten (add 0.1 (mul 0.9 (sub (div (add p 0.25) two) "
                                     "1)))))))))";

static Value rule(Graph *g, const char *text, const char *name, Value v) {
    return rule_build(g, text, (RuleBind[]){{name, v}}, 1, 0);
}

static int64_t blocks_of(const Type *t) { return (type_elems(t) + BLOCK - 1) / BLOCK; }

/* [elements of the parameter] -> [blocks, 256], zeros behind the last */
static Value blocked(Graph *g, Value v) {
    const Type t = *graph_type_at(g, v);
    int64_t n = type_elems(&t), blocks = blocks_of(&t), low = 0, high = blocks * BLOCK - n;
    v = build_reshape(g, v, 1, &n);
    if (high) v = build_pad(g, v, &low, &high, NULL, 0);
    return build_reshape(g, v, 2, (int64_t[]){blocks, BLOCK});
}

static Value unblocked(Graph *g, Value v, const Type *t) {
    int64_t n = type_elems(t), all = blocks_of(t) * BLOCK, start = 0;
    v = build_reshape(g, v, 1, &all);
    if (all != n) v = build_slice(g, v, &start, &n, NULL);
    return build_reshape(g, v, t->rank, t->dims);
}

static void add_state(Graph *g, const char *name, DType dtype, int64_t blocks, int64_t width,
                      const char *of) {
    if (graph_state(g, name)) return;
    TypeId type = graph_type_of(g, dtype, 2, (int64_t[]){blocks, width});
    graph_add_state(g, (State){.name = name, .type = type, .cls = STATE_OPTIMIZER, .of = of});
}

Value packed_moment_read(Graph *g, PackedMoment *m, const char *parameter, const Type *t) {
    add_state(g, m->codes, DT_U8, blocks_of(t), BLOCK, parameter);
    add_state(g, m->largest, DT_F32, blocks_of(t), 1, parameter);
    m->old_codes = build_state(g, m->codes);
    m->old_largest = build_state(g, m->largest);
    Value code = build_cast(g, m->old_codes, DT_F32), share;
    if (m->is_signed) {
        Value p = rule(g, "(sub c 127)", "c", code);
        share = rule(g, decode, "p", rule(g, "(abs p)", "p", p));
        share =
            rule_build(g, "(where (lt p 0) (neg s) s)", (RuleBind[]){{"p", p}, {"s", share}}, 2, 0);
    } else {
        share = rule(g, decode_unsigned, "c", code);
    }
    return unblocked(g, build_binary(g, OP_mul, share, m->old_largest), t);
}

void packed_moment_write(Graph *g, const PackedMoment *m, Value v, Value *codes, Value *largest) {
    const int64_t last = 1;
    Value x = blocked(g, build_cast(g, v, DT_F32));
    *largest = build_reduce(g, OP_rmax, build_unary(g, OP_abs, x), &last, 1);
    RuleBind binds[] = {{"x", x}, {"l", *largest}, {"p", 0}};
    Value share = rule_build(g, "(where (gt l 0) (div (abs x) l) 0)", binds, 2, 0);
    binds[2].value = rule(g, m->is_signed ? encode : encode_unsigned, "a", share);
    Value code = m->is_signed
                     ? rule_build(g, "(add 127 (where (lt x 0) (neg (min p 127)) p))", binds, 3, 0)
                     : binds[2].value;
    *codes = build_cast(g, code, DT_U8);
}
