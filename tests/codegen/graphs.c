/* Tests that each form of kernel, at sizes that threads share, computes what the interpreter
 * computes, whatever the number of threads, to the bit; and that a product by a library, finished
 * by the epilogue, is the same value. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "run.h"

typedef Value MakeFn(Graph *);
static Value input(Graph *g, const char *name, DType d, uint32_t rank, int64_t a, int64_t b,
                   int64_t c, int64_t e) {
    const int64_t dims[] = {a, b, c, e};
    graph_add_input(g, (Input){.name = graph_str(g, name),
                               .type = graph_type_of(g, d, rank, dims),
                               .batch_axis = -1,
                               .index_limit = d == DT_I64 ? 5 : 0});
    return build_input(g, name);
}
static Value emit(Graph *g, OpCode op, const Value *v, uint32_t n, const AttrField *f, uint32_t nf,
                  TypeId t) {
    return graph_emit(g, op, v, n, graph_attr(g, f, nf), t);
}
static const int64_t axis0[] = {0}, axis1[] = {1}, all[] = {0, 1};

static Value make_map(Graph *g) {
    const Value x = input(g, "x", DT_F32, 3, 4, 50, 257, 0);
    return build_unary(g, OP_tanh, build_binary(g, OP_mul, x, build_unary(g, OP_sigmoid, x)));
}
static Value make_transpose(Graph *g) {
    return build_unary(
        g, OP_exp, build_transpose(g, input(g, "x", DT_F32, 2, 130, 270, 0, 0), (int64_t[]){1, 0}));
}
static Value make_softmax(Graph *g) {
    const Value x = input(g, "x", DT_F32, 2, 60, 1500, 0, 0);
    const Value e =
        build_unary(g, OP_exp, build_binary(g, OP_sub, x, build_reduce(g, OP_rmax, x, axis1, 1)));
    return build_binary(g, OP_div, e, build_reduce(g, OP_sum, e, axis1, 1));
}
/* Rows of unsigned and narrow integers: extremes of what has no sign, sums that wrap. */
static Value make_integer_rows(Graph *g) {
    const Value x = input(g, "x", DT_U32, 2, 30, 1500, 0, 0),
                y = input(g, "w", DT_U64, 2, 30, 1500, 0, 0);
    const Value z = input(g, "z", DT_U8, 2, 30, 1500, 0, 0);
    Value sum = build_cast(g, build_reduce(g, OP_sum, z, axis1, 1), DT_U64);
    sum =
        build_binary(g, OP_add, sum, build_cast(g, build_reduce(g, OP_rmax, x, axis1, 1), DT_U64));
    sum =
        build_binary(g, OP_add, sum, build_cast(g, build_reduce(g, OP_rmin, x, axis1, 1), DT_U64));
    sum = build_binary(g, OP_bitxor, sum, build_reduce(g, OP_rmax, y, axis1, 1));
    return build_binary(g, OP_idiv, sum, build_splat(g, graph_type_of(g, DT_U64, 0, NULL), 3));
}
/* The best of what is left, and the first of it: an extreme of the loop's own index beside another.
 */
static Value make_best_left(Graph *g) {
    const Value x = input(g, "x", DT_F32, 2, 4, 50257, 0, 0),
                k = input(g, "k", DT_I64, 2, 4, 1, 0, 0);
    const Type t = *graph_type_at(g, x);
    const Value at = build_iota(g, graph_type_of(g, DT_I64, 2, t.dims), 1);
    const Value left = build_binary(g, OP_ne, at, k);
    const TypeId number = graph_type_of(g, DT_F32, 0, NULL),
                 index = graph_type_of(g, DT_I64, 0, NULL);
    const Value low = build_splat(g, number, -INFINITY), end = build_splat(g, index, 50257);
    const Value known =
        build_map(g, OP_where,
                  (Value[]){build_unary(g, OP_isnan, x), build_splat(g, number, INFINITY), x}, 3);
    const Value top =
        build_reduce(g, OP_rmax, build_map(g, OP_where, (Value[]){left, known, low}, 3), axis1, 1);
    const Value first =
        build_reduce(g, OP_rmin, build_map(g, OP_where, (Value[]){left, at, end}, 3), axis1, 1);
    const Value best = input(g, "b", DT_I64, 2, 4, 1, 0, 0);
    return build_map(g, OP_where, (Value[]){build_binary(g, OP_eq, top, low), first, best}, 3);
}
static Value make_softmax_columns(Graph *g) {
    const Value x = input(g, "x", DT_F32, 2, 600, 90, 0, 0);
    const Value e =
        build_unary(g, OP_exp, build_binary(g, OP_sub, x, build_reduce(g, OP_rmax, x, axis0, 1)));
    return build_binary(g, OP_div, e, build_reduce(g, OP_sum, e, axis0, 1));
}
static Value make_all_sum(Graph *g) {
    return build_reduce(g, OP_sum, build_unary(g, OP_exp, input(g, "x", DT_F32, 2, 300, 700, 0, 0)),
                        all, 2);
}
static Value make_all_max(Graph *g) {
    return build_reduce(g, OP_rmax, input(g, "x", DT_F32, 2, 300, 700, 0, 0), all, 2);
}
static Value make_column_sum(Graph *g) {
    return build_reduce(g, OP_sum, input(g, "x", DT_F32, 2, 3000, 70, 0, 0), axis0, 1);
}
static Value make_argmax(Graph *g) {
    return emit(g, OP_argmax, (Value[]){input(g, "x", DT_F32, 2, 300, 100, 0, 0)}, 1,
                (AttrField[]){attr_int(A_AXIS, 1)}, 1, 0);
}
static Value make_argmin_columns(Graph *g) {
    return emit(g, OP_argmin, (Value[]){input(g, "x", DT_F32, 2, 300, 100, 0, 0)}, 1,
                (AttrField[]){attr_int(A_AXIS, 0)}, 1, 0);
}
static Value make_dot(Graph *g) {
    const Value d = build_dot(g, input(g, "x", DT_F32, 2, 150, 300, 0, 0),
                              input(g, "y", DT_F32, 2, 300, 170, 0, 0), false, false);
    return build_unary(g, OP_relu,
                       build_binary(g, OP_add, d, input(g, "z", DT_F32, 1, 170, 0, 0, 0)));
}
static Value make_dot_transposed(Graph *g) {
    return build_dot(g, input(g, "x", DT_F32, 3, 3, 260, 90, 0),
                     input(g, "y", DT_F32, 3, 3, 75, 260, 0), true, true);
}
static Value make_dot_small(Graph *g) {
    return build_dot(g, input(g, "x", DT_F32, 2, 5, 7, 0, 0), input(g, "y", DT_F32, 2, 3, 7, 0, 0),
                     false, true);
}
/* Few rows, of every number; b by rows and by columns, a transposed, columns and terms that fill no
 * vector. */
static Value make_dot_thin(Graph *g) {
    static const struct {
        int64_t m, k, n;
        bool ta, tb;
    } shapes[] = {
        {1, 50, 70, false, false},  {2, 33, 64, true, false},    {3, 40, 37, false, false},
        {4, 17, 161, false, false}, {5, 100, 45, false, true},   {6, 133, 29, false, true},
        {7, 64, 16, false, true},   {8, 257, 131, false, false}, {8, 90, 300, false, true},
        {1, 1200, 1, false, false}, {2, 70, 40, true, true}};
    enum { N = sizeof shapes / sizeof *shapes };
    Value flat[N];
    for (int i = 0; i < N; i++) {
        const char *names[2] = {arena_printf(g->arena, "x%d", i), arena_printf(g->arena, "y%d", i)};
        int64_t m = shapes[i].m, k = shapes[i].k, n = shapes[i].n;
        Value a = shapes[i].ta ? input(g, names[0], DT_F32, 2, k, m, 0, 0)
                               : input(g, names[0], DT_F32, 2, m, k, 0, 0),
              b = shapes[i].tb ? input(g, names[1], DT_F32, 2, n, k, 0, 0)
                               : input(g, names[1], DT_F32, 2, k, n, 0, 0);
        flat[i] =
            build_reshape(g, build_dot(g, a, b, shapes[i].ta, shapes[i].tb), 1, (int64_t[]){m * n});
    }
    return emit(g, OP_concat, flat, N, (AttrField[]){attr_int(A_AXIS, 0)}, 1, 0);
}
static Value make_dot_bf16(Graph *g) {
    return build_dot(g, input(g, "x", DT_BF16, 2, 40, 60, 0, 0),
                     input(g, "y", DT_BF16, 2, 60, 50, 0, 0), false, false);
}
static Value make_scatter(Graph *g) {
    const Value base = input(g, "x", DT_F32, 2, 5, 300, 0, 0),
                i = input(g, "i", DT_I64, 1, 200, 0, 0, 0),
                u = input(g, "u", DT_F32, 2, 200, 300, 0, 0);
    return emit(g, OP_scatter, (Value[]){base, i, u}, 3,
                (AttrField[]){attr_int(A_AXIS, 0), attr_int(A_MODE, SCATTER_ADD)}, 2, 0);
}
static Value make_conv(Graph *g) {
    const int64_t one[] = {1, 1}, two[] = {2, 2};
    const AttrField f[] = {attr_ints(A_LOW, one, 2), attr_ints(A_HIGH, one, 2),
                           attr_ints(A_STRIDES, two, 2), attr_ints(A_DILATIONS, one, 2),
                           attr_int(A_GROUPS, 2)};
    return emit(
        g, OP_conv,
        (Value[]){input(g, "x", DT_F32, 4, 2, 8, 17, 20), input(g, "w", DT_F32, 4, 6, 4, 3, 3)}, 2,
        f, 5, 0);
}
static const struct {
    const char *name;
    MakeFn *make;
} graphs[] = {{"map", make_map},
              {"transpose", make_transpose},
              {"softmax", make_softmax},
              {"integer_rows", make_integer_rows},
              {"best_left", make_best_left},
              {"softmax_columns", make_softmax_columns},
              {"all_sum", make_all_sum},
              {"all_max", make_all_max},
              {"column_sum", make_column_sum},
              {"argmax", make_argmax},
              {"argmin_columns", make_argmin_columns},
              {"dot", make_dot},
              {"dot_transposed", make_dot_transposed},
              {"dot_small", make_dot_small},
              {"dot_thin", make_dot_thin},
              {"dot_bf16", make_dot_bf16},
              {"scatter", make_scatter},
              {"conv", make_conv}};
enum { N_GRAPHS = sizeof graphs / sizeof *graphs };

static void set_threads(void *lib, int n) {
    void *symbol = dlsym(lib, "omp_set_num_threads");
    void (*set)(int);
    memcpy(&set, &symbol, sizeof set);
    if (symbol) set(n);
}

Test(graphs, every_form_equals_the_interpreter_on_any_number_of_threads) {
    static Case cases[N_GRAPHS];
    Text source = {.arena = arena_new()};
    int wrong = 0;
    target_c_prelude(&source);
    for (int i = 0; i < N_GRAPHS; i++) {
        Graph *g = graph_new(graphs[i].name);
        graph_add_root(g, ENTRY_EVAL, false, "out", graphs[i].make(g));
        case_make(&cases[i], g, graphs[i].name, &source);
    }
    void *lib = cases_build_at(&source, "-O2");
    for (int i = 0; i < N_GRAPHS; i++) {
        FuzzData data = {cases[i].g, 7, arena_new()};
        InterpEnv env = fuzz_env(&data);
        unsigned char *one = case_memory(&cases[i], &data), *three = case_memory(&cases[i], &data),
                      *library = case_memory(&cases[i], &data);
        set_threads(lib, 1);
        case_run(&cases[i], lib, ENTRY_EVAL, &env, one, false);
        set_threads(lib, 3);
        case_run(&cases[i], lib, ENTRY_EVAL, &env, three, false);
        case_run(&cases[i], lib, ENTRY_EVAL, &env, library, true);
        double tolerance = !strcmp(graphs[i].name, "dot_bf16") ? 1e-2 : 1e-5;
        wrong += !case_equal(&cases[i], ENTRY_EVAL, &data, &env, one, tolerance);
        wrong += !case_equal(&cases[i], ENTRY_EVAL, &data, &env, library, tolerance);
        cr_assert_eq(memcmp(one, three, cases[i].plan->arena_bytes), 0,
                     "%s depends on the number of threads", graphs[i].name);
        free(one), free(three), free(library);
        arena_free(data.arena);
    }
    cr_assert_eq(wrong, 0, "%d results differ", wrong);
    dlclose(lib);
    for (int i = 0; i < N_GRAPHS; i++) graph_free(cases[i].g);
    arena_free(source.arena);
}
