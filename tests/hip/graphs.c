/* Tests that a graph, fused, lowered and printed as HIP, computes on the shim what the interpreter computes. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../passes/env.h"
#include "host.h"

typedef Value MakeFn(Graph *);

static Value input(Graph *g, const char *name, DType d, uint32_t rank, int64_t a, int64_t b, int64_t c, int64_t e)
{
    const int64_t dims[] = {a, b, c, e};
    graph_add_input(g, (Input){.name = graph_str(g, name), .type = graph_type_of(g, d, rank, dims), .batch_axis = -1, .index_limit = d == DT_I64 ? 5 : 0});
    return build_input(g, name);
}
static Value emit(Graph *g, OpCode op, const Value *v, uint32_t n, const AttrField *f, uint32_t nf, TypeId t) { return graph_emit(g, op, v, n, graph_attr(g, f, nf), t); }
static const int64_t axis0[] = {0}, axis1[] = {1}, axes01[] = {0, 1}, axes02[] = {0, 2};

/* pointwise */
static Value make_maps(Graph *g)
{
    const Value x = input(g, "x", DT_F32, 2, 6, 20, 0, 0), y = input(g, "z", DT_F32, 1, 20, 0, 0, 0);
    return build_binary(g, OP_mul, build_unary(g, OP_tanh, build_binary(g, OP_add, x, y)), build_unary(g, OP_exp, x));
}
static Value make_odd(Graph *g)
{
    const Value x = input(g, "x", DT_F32, 2, 7, 13, 0, 0);
    return build_unary(g, OP_sigmoid, build_transpose(g, x, (int64_t[]){1, 0}));
}
static Value make_scalar(Graph *g) { return build_unary(g, OP_sin, input(g, "x", DT_F32, 0, 0, 0, 0, 0)); }
static Value make_bf16(Graph *g)
{
    const Value x = input(g, "x", DT_BF16, 2, 8, 24, 0, 0);
    return build_cast(g, build_unary(g, OP_erf, build_cast(g, x, DT_F32)), DT_BF16);
}
static Value make_ints(Graph *g)
{
    const Value i = input(g, "i", DT_I64, 2, 9, 11, 0, 0), two = build_splat(g, graph_type_of(g, DT_I64, 0, NULL), 2);
    return build_cast(g, build_binary(g, OP_irem, i, two), DT_F32);
}
static Value make_pad_concat(Graph *g)
{
    const Value x = input(g, "x", DT_F32, 2, 5, 6, 0, 0);
    const Value p = build_pad(g, x, (int64_t[]){1, -1}, (int64_t[]){0, 2}, (int64_t[]){1, 0}, 0.5), s = build_slice(g, p, (int64_t[]){1, 0}, (int64_t[]){5, 7}, (int64_t[]){2, 1});
    return build_concat(g, (Value[]){s, build_unary(g, OP_neg, s)}, 2, 1);
}
static Value make_gather(Graph *g)
{
    const Value x = input(g, "x", DT_F32, 2, 5, 8, 0, 0), i = input(g, "i", DT_I64, 2, 3, 4, 0, 0);
    return build_unary(g, OP_exp, build_gather(g, x, i, 0));
}
static Value make_random(Graph *g)
{
    const Value x = input(g, "x", DT_F32, 2, 10, 12, 0, 0);
    const Value r = emit(g, OP_random, NULL, 0, (AttrField[]){attr_int(A_STREAM, 3)}, 1, graph_node(g, x)->type);
    return build_binary(g, OP_add, x, r);
}

/* rows */
static Value softmax(Graph *g, Value x, int64_t axis)
{
    const Value e = build_unary(g, OP_exp, build_binary(g, OP_sub, x, build_reduce(g, OP_rmax, x, &axis, 1)));
    return build_binary(g, OP_div, e, build_reduce(g, OP_sum, e, &axis, 1));
}
static Value make_softmax_short(Graph *g) { return softmax(g, input(g, "x", DT_F32, 2, 37, 10, 0, 0), 1); }
static Value make_softmax_wave(Graph *g) { return softmax(g, input(g, "x", DT_F32, 2, 37, 100, 0, 0), 1); }
static Value make_softmax_vector(Graph *g) { return softmax(g, input(g, "x", DT_F32, 2, 21, 384, 0, 0), 1); }
static Value make_softmax_block(Graph *g) { return softmax(g, input(g, "x", DT_F32, 2, 3, 5003, 0, 0), 1); }
/* Rows of unsigned and narrow integers: extremes of what has no sign, sums that wrap. */
static Value make_integer_rows(Graph *g)
{
    const Value x = input(g, "x", DT_U32, 2, 30, 1500, 0, 0), y = input(g, "w", DT_U64, 2, 30, 1500, 0, 0);
    const Value z = input(g, "z", DT_U8, 2, 30, 1500, 0, 0);
    Value sum = build_cast(g, build_reduce(g, OP_sum, z, axis1, 1), DT_U64);
    sum = build_binary(g, OP_add, sum, build_cast(g, build_reduce(g, OP_rmax, x, axis1, 1), DT_U64));
    sum = build_binary(g, OP_add, sum, build_cast(g, build_reduce(g, OP_rmin, x, axis1, 1), DT_U64));
    sum = build_binary(g, OP_bitxor, sum, build_reduce(g, OP_rmax, y, axis1, 1));
    return build_binary(g, OP_idiv, sum, build_splat(g, graph_type_of(g, DT_U64, 0, NULL), 3));
}
static Value make_softmax_columns(Graph *g) { return softmax(g, input(g, "x", DT_F32, 2, 200, 45, 0, 0), 0); }
static Value make_softmax_middle(Graph *g) { return softmax(g, input(g, "x", DT_F32, 3, 4, 33, 7, 0), 1); }
static Value make_column_sum(Graph *g) { return build_reduce(g, OP_sum, input(g, "x", DT_F32, 2, 700, 50, 0, 0), axis0, 1); }
static Value make_row_product(Graph *g) { return build_reduce(g, OP_prod, input(g, "x", DT_F32, 2, 30, 40, 0, 0), axis1, 1); }
static Value make_all_sum(Graph *g) { return build_reduce(g, OP_sum, input(g, "x", DT_F32, 2, 90, 130, 0, 0), axes01, 2); }
static Value make_two_axes(Graph *g) { return build_reduce(g, OP_rmin, input(g, "x", DT_F32, 3, 20, 6, 35, 0), axes02, 2); }
static Value make_flat_block(Graph *g) { return build_reduce(g, OP_sum, input(g, "x", DT_F32, 3, 50, 3, 60, 0), axes02, 2); }
static Value make_flat_columns(Graph *g) { return build_reduce(g, OP_rmax, input(g, "x", DT_F32, 4, 24, 3, 30, 50), axes02, 2); }
static Value make_int_sum(Graph *g) { return build_reduce(g, OP_sum, input(g, "i", DT_I64, 2, 5, 600, 0, 0), axis1, 1); }
static Value make_argmax_wave(Graph *g) { return emit(g, OP_argmax, (Value[]){input(g, "x", DT_F32, 2, 19, 77, 0, 0)}, 1, (AttrField[]){attr_int(A_AXIS, 1)}, 1, 0); }
static Value make_argmin_block(Graph *g) { return emit(g, OP_argmin, (Value[]){input(g, "x", DT_F32, 2, 2, 3000, 0, 0)}, 1, (AttrField[]){attr_int(A_AXIS, 1)}, 1, 0); }
static Value make_argmax_ties(Graph *g)
{
    const Value x = build_cast(g, input(g, "i", DT_I64, 2, 6, 300, 0, 0), DT_F32);
    return emit(g, OP_argmax, &x, 1, (AttrField[]){attr_int(A_AXIS, 1)}, 1, 0);
}
static Value make_layer_norm(Graph *g)
{
    const Value x = input(g, "x", DT_F32, 3, 2, 17, 48, 0), w = input(g, "w", DT_F32, 1, 48, 0, 0, 0);
    const int64_t axes[] = {2};
    return build_binary(g, OP_mul, emit(g, OP_layer_norm, &x, 1, (AttrField[]){attr_ints(A_AXES, axes, 1), attr_float(A_EPS, 1e-5)}, 2, 0), w);
}

/* contractions and anchors */
static Value make_linear(Graph *g)
{
    const Value x = input(g, "x", DT_F32, 3, 2, 9, 24, 0), w = input(g, "w", DT_F32, 2, 40, 24, 0, 0), b = input(g, "b", DT_F32, 1, 40, 0, 0, 0);
    return build_unary(g, OP_relu, build_binary(g, OP_add, build_dot(g, x, w, false, true), b));
}
static Value make_attention_scores(Graph *g)
{
    const Value q = input(g, "q", DT_F32, 4, 2, 6, 3, 8), k = input(g, "k", DT_F32, 4, 2, 6, 3, 8);
    const int64_t perm[] = {0, 2, 1, 3};
    return softmax(g, build_dot(g, build_transpose(g, q, perm), build_transpose(g, k, perm), false, true), 3);
}
static Value make_dot_bf16(Graph *g)
{
    const Value x = input(g, "x", DT_BF16, 2, 40, 72, 0, 0), w = input(g, "w", DT_BF16, 2, 48, 72, 0, 0);
    return build_dot(g, x, w, false, true);
}
static const int64_t ones[] = {1, 1}, twos[] = {2, 2};
static Value make_conv(Graph *g)
{
    const Value x = input(g, "x", DT_F32, 4, 2, 4, 9, 8), w = input(g, "w", DT_F32, 4, 6, 2, 3, 3);
    return emit(g, OP_conv, (Value[]){x, w}, 2, (AttrField[]){attr_ints(A_LOW, ones, 2), attr_ints(A_HIGH, ones, 2), attr_ints(A_STRIDES, twos, 2), attr_ints(A_DILATIONS, ones, 2), attr_int(A_GROUPS, 2)}, 5, 0);
}
static Value make_conv_dw(Graph *g)
{
    const Value x = input(g, "x", DT_F32, 4, 2, 4, 9, 8), y = input(g, "dy", DT_F32, 4, 2, 6, 5, 4);
    return emit(g, OP_conv_dw, (Value[]){x, y}, 2, (AttrField[]){attr_ints(A_LOW, ones, 2), attr_ints(A_HIGH, ones, 2), attr_ints(A_STRIDES, twos, 2), attr_ints(A_DILATIONS, ones, 2), attr_int(A_GROUPS, 2)}, 5,
                graph_type_of(g, DT_F32, 4, (int64_t[]){6, 2, 3, 3}));
}
static Value make_scatter(Graph *g)
{
    const Value base = input(g, "x", DT_F32, 2, 5, 6, 0, 0), i = input(g, "i", DT_I64, 1, 40, 0, 0, 0), u = input(g, "u", DT_F32, 2, 40, 6, 0, 0);
    return emit(g, OP_scatter, (Value[]){base, i, u}, 3, (AttrField[]){attr_int(A_AXIS, 0), attr_int(A_MODE, SCATTER_ADD)}, 2, 0);
}

static const struct { const char *name; MakeFn *make; double tolerance; } table[] = {
    {"maps", make_maps, 1e-5}, {"odd", make_odd, 1e-5}, {"scalar", make_scalar, 1e-5}, {"bf16", make_bf16, 1e-2}, {"ints", make_ints, 0},
    {"pad_concat", make_pad_concat, 0}, {"gather", make_gather, 1e-5}, {"random", make_random, 1e-6}, {"softmax_short", make_softmax_short, 1e-5},
    {"softmax_wave", make_softmax_wave, 1e-5}, {"softmax_vector", make_softmax_vector, 1e-5}, {"softmax_block", make_softmax_block, 1e-5},
    {"integer_rows", make_integer_rows, 0}, {"softmax_columns", make_softmax_columns, 1e-5}, {"softmax_middle", make_softmax_middle, 1e-5}, {"column_sum", make_column_sum, 1e-5},
    {"row_product", make_row_product, 1e-5}, {"all_sum", make_all_sum, 1e-4}, {"two_axes", make_two_axes, 0}, {"flat_block", make_flat_block, 1e-4},
    {"flat_columns", make_flat_columns, 0}, {"int_sum", make_int_sum, 0},
    {"argmax_wave", make_argmax_wave, 0}, {"argmin_block", make_argmin_block, 0}, {"argmax_ties", make_argmax_ties, 0}, {"layer_norm", make_layer_norm, 1e-4},
    {"linear", make_linear, 1e-5}, {"attention_scores", make_attention_scores, 1e-5}, {"dot_bf16", make_dot_bf16, 1e-2}, {"conv", make_conv, 1e-5},
    {"conv_dw", make_conv_dw, 1e-5}, {"scatter", make_scatter, 1e-5},
};

static Env env;
static double scalar_of(const char *name)
{
    if (!strcmp(name, "seed")) return (double)env.interp.seed;
    if (!strcmp(name, "step")) return (double)env.interp.step;
    return env.interp.scalar(env.interp.user, name);
}

/* What every buffer holds when the entry begins: inputs, constants; all else is poison. */
static unsigned char *fill_arena(const Graph *g, const Plan *plan)
{
    unsigned char *memory = host_alloc(plan->arena_bytes);
    for (uint32_t i = 0; i < plan->n_buffers; i++) {
        const Buffer *b = &plan->buffers[i];
        if (b->constant) {
            Arena *a = arena_new();
            Tensor t;
            cr_assert(interp_fold(g, b->constant, a, &t, 1 << 20));
            tensor_to_bytes(&t, memory + b->offset);
            arena_free(a);
        } else if (b->symbol && graph_input(g, b->symbol)) {
            Tensor *t = env_input(&env, b->symbol);
            tensor_to_bytes(t, memory + b->offset);
            *t = tensor_from_bytes(env.arena, t->type, memory + b->offset); /* as rounded as the kernel sees it */
        }
    }
    return memory;
}

static void compare(const char *name, const char *arch, const Tensor *want, const unsigned char *bytes, double tolerance)
{
    Arena *a = arena_new();
    const Tensor got = tensor_from_bytes(a, want->type, bytes);
    const int64_t n = type_elems(&want->type);
    for (int64_t i = 0; i < n; i++) {
        if (dtype_info[want->type.dtype].cls != CLASS_FLT) cr_assert_eq(got.u.i[i], want->u.i[i], "%s on %s: [%d] is %lld, not %lld", name, arch, (int)i, (long long)got.u.i[i], (long long)want->u.i[i]);
        else cr_assert(fabs(got.u.f[i] - want->u.f[i]) <= tolerance * (1 + fabs(want->u.f[i])), "%s on %s: [%d] is %.9g, not %.9g", name, arch, (int)i, got.u.f[i], want->u.f[i]);
    }
    arena_free(a);
}

enum { N = sizeof table / sizeof *table };
typedef struct Case { Graph *g; const Plan *plan; HostEntry entry; } Case;

static void make_case(Case *c, int i, Text *out)
{
    c->g = graph_new("test");
    const Value v = table[i].make(c->g);
    cr_assert(v && !diag_has_errors(c->g), "%s is no graph", table[i].name);
    graph_add_root(c->g, ENTRY_EVAL, false, "y", v);
    PassOptions options = default_options();
    options.for_gpu = true;
    PassContext ctx = {.g = c->g, .arena = out->arena, .options = &options, .log = stderr};
    cr_assert(passes_run(&ctx, "expand,fuse,schedule,memplan"), "%s cannot be planned", table[i].name);
    if (ctx.g != c->g) graph_free(c->g);
    c->g = ctx.g, c->plan = ctx.plan;
    c->entry = host_print_entry(c->g, c->plan, ENTRY_EVAL, table[i].name, out);
}

static const Buffer *buffer_named(const Plan *plan, const char *symbol)
{
    for (uint32_t i = 0; i < plan->n_buffers; i++)
        if (plan->buffers[i].symbol && !strcmp(plan->buffers[i].symbol, symbol)) return &plan->buffers[i];
    return NULL;
}

static void run_case(Case *c, int i, Host *h, const char *arch, Arena *arena)
{
    env_init(&env, c->g, arena);
    unsigned char *memory = fill_arena(c->g, c->plan);
    const Tensor *want = env_run(&env, c->g, ENTRY_EVAL);
    cr_assert(host_run_entry(h, &c->entry, memory, scalar_of), "%s on %s: %s", table[i].name, arch, host_error());
    const Buffer *y = buffer_named(c->plan, "y");
    cr_assert(y, "%s: no buffer of the output", table[i].name);
    compare(table[i].name, arch, &want[0], memory + y->offset, table[i].tolerance);
    host_release(memory, c->plan->arena_bytes);
}

static void check_all(const char *arch)
{
    static Case cases[N];
    Text source = {.arena = arena_new()};
    target_hip_prelude(&source);
    for (int i = 0; i < N; i++) make_case(&cases[i], i, &source);
    Host *h = host_build(source.s, arch);
    for (int i = 0; i < N; i++) run_case(&cases[i], i, h, arch, source.arena);
    for (int i = 0; i < N; i++) graph_free(cases[i].g);
    host_free(h);
    arena_free(source.arena);
}

Test(graphs, equal_the_interpreter_on_waves_of_64) { check_all("gfx90a"); }
Test(graphs, equal_the_interpreter_on_waves_of_32) { check_all("gfx1100"); }
