/* rule.c - tests of the rule language: what it builds, what it refuses, what a pattern matches. */
#include "check.h"
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <time.h>

static const int64_t dims[] = {2, 3};

static Value build(Check *c, const char *rule, Value a, Value b) {
    RuleBind binds[] = {{"a", a}, {"b", b}};
    return rule_build(c->g, rule, binds, b ? 2 : 1, 0);
}

Test(rule, builds_nested_forms) {
    Check *c = check_new(1);
    Value a = check_floats(c, 2, dims), b = check_floats(c, 2, dims);
    Value expected =
        build_binary(c->g, OP_add, build_binary(c->g, OP_mul, a, b), build_unary(c->g, OP_exp, a));
    cr_assert(build(c, "(add (mul a b)   (exp a))", a, b) == expected);
    cr_assert(
        build(c, "(let s (exp a) (mul s s))", a, b) ==
        build_binary(c->g, OP_mul, build_unary(c->g, OP_exp, a), build_unary(c->g, OP_exp, a)));
    check_free(c);
}

Test(rule, numbers_take_the_dtype_of_their_peers) {
    Check *c = check_new(1);
    Value a = check_input(c, DT_I32, 2, dims, 0, 5), b = check_input(c, DT_BF16, 2, dims, 0, 5);
    cr_assert(graph_type_at(c->g, build(c, "(add 2 a)", a, b))->dtype == DT_I32);
    cr_assert(
        graph_type_at(c->g, build(c, "(mul b (where (gt a 1) 1 (where (eq a 0) 0.5 0)))", a, b))
            ->dtype == DT_BF16);
    cr_assert(graph_type_at(c->g, build(c, "(mul (where (gt a 1) 1 0) b)", a, b))->dtype ==
              DT_BF16);
    cr_assert(graph_type_at(c->g, build(c, "(where (and (gt a 1) (lt b 2)) b 0)", a, b))->dtype ==
              DT_BF16);
    cr_assert(!diag_has_errors(c->g));
    check_free(c);
}

Test(rule, operands_broadcast_and_reductions_take_all_axes_by_default) {
    Check *c = check_new(1);
    Value a = check_floats(c, 2, dims), b = check_floats(c, 1, dims + 1);
    Value v = build(c, "(sum (mul a b))", a, b);
    Tensor t = check_eval(c, v);
    double sum = 0;
    for (int i = 0; i < 6; i++) sum += c->tensors[0].u.f[i] * c->tensors[1].u.f[i % 3];
    cr_assert(type_elems(&t.type) == 1 && t.type.rank == 2 && fabs(t.u.f[0] - sum) < 1e-12);
    check_free(c);
}

Test(rule, a_wrong_rule_is_a_diagnostic) {
    const char *wrong[] = {"(add a", "(add a)",       "(nope a)", "(add a q)", "(exp a) b",
                           "",       "(sum a @nope)", "(C nope)", "@axes"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        Check *c = check_new(1);
        cr_assert(build(c, wrong[i], check_floats(c, 2, dims), 0) == 0, "%s", wrong[i]);
        cr_assert(c->g->diags.n == 1 && c->g->diags.items[0].code == E_RULE, "%s", wrong[i]);
        check_free(c);
    }
}

Test(rule, parts_are_split_and_trimmed) {
    Arena *arena = arena_new();
    cr_assert_str_eq(rule_part(arena, "0; (neg dy) ;dy", 0), "0");
    cr_assert_str_eq(rule_part(arena, "0; (neg dy) ;dy", 1), "(neg dy)");
    cr_assert_str_eq(rule_part(arena, "0; (neg dy) ;dy", 2), "dy");
    cr_assert(rule_part(arena, "0; (neg dy) ;dy", 3) == NULL);
    arena_free(arena);
}

/* ---------------------------------------------------------------- matching */

static bool matches(Check *c, const char *pattern, Value v, RuleBind *binds, uint32_t *n) {
    *n = 0;
    return rule_match(c->g, pattern, v, binds, n, 8);
}

static Value bound(const RuleBind *binds, uint32_t n, const char *name) {
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(binds[i].name, name) == 0) return binds[i].value;
    return 0;
}

Test(rule, a_pattern_binds_names) {
    Check *c = check_new(1);
    RuleBind binds[8];
    uint32_t n;
    Value a = check_floats(c, 2, dims), b = check_floats(c, 2, dims),
          v = build(c, "(sub (exp a) b)", a, b);
    cr_assert(matches(c, "(sub (exp x) long_name)", v, binds, &n));
    cr_assert(n == 2 && bound(binds, n, "x") == a && bound(binds, n, "long_name") == b);
    cr_assert(!matches(c, "(sub x (exp y))", v, binds, &n));
    cr_assert(!matches(c, "(sub (exp x) x)", v, binds, &n));
    check_free(c);
}

Test(rule, commutative_ops_match_both_ways_and_backtrack) {
    Check *c = check_new(1);
    RuleBind binds[8];
    uint32_t n;
    Value a = check_floats(c, 2, dims), b = check_floats(c, 2, dims),
          v = build(c, "(add (mul a b) b)", a, b);
    cr_assert(matches(c, "(add x (mul x y))", v, binds, &n));
    cr_assert(bound(binds, n, "x") == b && bound(binds, n, "y") == a);
    check_free(c);
}

Test(rule, numbers_match_constants_of_any_shape) {
    Check *c = check_new(1);
    RuleBind binds[8];
    uint32_t n;
    Value a = check_input(c, DT_F32, 2, dims, 0, 1);
    cr_assert(
        matches(c, "(mul 0.7071067811865476 x)", build(c, "(mul a 0.70710678)", a, 0), binds, &n));
    cr_assert(!matches(c, "(mul 0.7071 x)", build(c, "(mul a 0.70710678)", a, 0), binds, &n));
    check_free(c);
}

Test(rule, fields_bind_and_must_agree) {
    Check *c = check_new(1);
    RuleBind binds[8];
    uint32_t n;
    Value a = check_floats(c, 2, dims);
    AttrField f = attr_ints(A_AXES, (int64_t[]){1}, 1);
    Value like = graph_emit(c->g, OP_softmax, &a, 1, graph_attr(c->g, &f, 1), 0);
    Value v = macro_expand(c->g, like);
    const char *pattern =
        "(div (exp (sub x (rmax x @axes))) (sum (exp (sub x (rmax x @axes))) @axes))";
    cr_assert(matches(c, pattern, v, binds, &n));
    cr_assert(rule_build(c->g, "(softmax x @axes)", binds, n, 0) == like);
    Value other =
        rule_build(c->g, "(div (exp (sub a (rmax a))) (sum (exp (sub a (rmax a))) @axes))",
                   (RuleBind[]){{"a", a}}, 1, like);
    cr_assert(!matches(c, pattern, other, binds, &n));
    check_free(c);
}

Test(rule, a_product_matches_in_any_order_and_association) {
    Check *c = check_new(1);
    RuleBind binds[8];
    uint32_t n;
    Value a = check_input(c, DT_F32, 2, dims, 0, 1), b = check_input(c, DT_F32, 2, dims, 0, 1);
    const char *pattern = "(product (exp x) x 0.5)",
               *same[] = {"(mul 0.5 (mul a (exp a)))", "(mul (mul a 0.5) (exp a))",
                          "(div (mul (exp a) a) 2)", "(mul (mul a 2) (div (exp a) 4))",
                          "(neg (mul -0.5 (mul a (exp a))))"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        cr_assert(matches(c, pattern, build(c, same[i], a, b), binds, &n), "%s", same[i]);
        cr_assert(n == 1 && bound(binds, n, "x") == a);
    }
    const char *other[] = {"(mul a (exp a))", "(mul 0.5 (mul b (exp a)))", "(mul 0.5 (exp a))",
                           "(mul (mul 0.5 a) (mul a (exp a)))", "(div 0.5 (mul a (exp a)))"};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        cr_assert(!matches(c, pattern, build(c, other[i], a, b), binds, &n), "%s", other[i]);
    Value p = build(c, "(mul a b)", a, b);
    cr_assert(matches(c, pattern, build(c, "(mul (mul 0.5 a) (exp a))", p, b), binds, &n));
    cr_assert(bound(binds, n, "x") == p, "a factor may be a product itself");
    check_free(c);
}

Test(rule, numbers_of_few_bits_match_what_rounds_to_them) {
    Check *c = check_new(1);
    RuleBind binds[8];
    uint32_t n;
    Value a = check_input(c, DT_BF16, 2, dims, 0, 1);
    Value v = build(c, "(mul a 1.702)", a, 0);
    cr_assert(matches(c, "(mul x 1.702)", v, binds, &n));
    cr_assert(matches(c, "(product x 1.702)", v, binds, &n));
    cr_assert(!matches(c, "(mul x 1.75)", v, binds, &n));
    cr_assert(!matches(c, "(product x 1.75)", v, binds, &n));
    cr_assert(matches(c, "(product x 3.404)", build(c, "(mul (mul a 2) 1.702)", a, 0), binds, &n));
    cr_assert(matches(c, "(product x 0.587544)", build(c, "(div a 1.702)", a, 0), binds, &n));
    check_free(c);
}

Test(rule, a_pattern_that_fails_at_one_edge_names_it) {
    Check *c = check_new(1);
    RuleMiss miss;
    const char *pattern = "(mul x (recip (sqrt (add (square x) 1))))";
    Value a = check_floats(c, 2, dims), b = check_floats(c, 2, dims);
    Value v = build(c, "(mul a (recip (sqrt (add (mul b b) 1))))", a, b);
    cr_assert(rule_nearly(c->g, pattern, v, &miss));
    cr_assert(miss.bound && miss.value != miss.bound);
    v = build(c, "(mul a (recip (sqrt (add (mul a a) 2))))", a, b);
    cr_assert(rule_nearly(c->g, pattern, v, &miss));
    cr_assert_str_eq(miss.wanted, "1");
    v = build(c, "(mul a (recip (sqrt (add (exp a) 1))))", a, b);
    cr_assert(rule_nearly(c->g, pattern, v, &miss));
    cr_assert_str_eq(miss.wanted, "(square x)");
    cr_assert(!rule_nearly(c->g, pattern,
                           build(c, "(mul a (recip (sqrt (add (mul a a) 1))))", a, b), &miss),
              "it matches");
    cr_assert(!rule_nearly(c->g, pattern, build(c, "(mul a (recip b))", a, b), &miss),
              "too little of it is there");
    check_free(c);
}

Test(rule, every_expansion_of_a_macro_matches_itself) {
    for (int op = 1; op < N_OPS; op++) {
        Check *c = check_new(1);
        RuleBind binds[8];
        uint32_t n;
        AttrField f[] = {attr_ints(A_AXES, (int64_t[]){1}, 1), attr_float(A_EPS, 1e-5)};
        const OpInfo *info = &op_info[op];
        if (info->lower == LOWER_MACRO && info->arity == 1 && !strchr(info->expansion, '$')) {
            Value a = check_input(c, DT_F32, 2, dims, -1, 1);
            Value v = graph_emit(c->g, (OpCode)op, &a, 1, graph_attr(c->g, f, info->n_attrs), 0);
            cr_assert(matches(c, info->expansion, macro_expand(c->g, v), binds, &n), "%s",
                      info->name);
            cr_assert(bound(binds, n, "a") == a);
        }
        check_free(c);
    }
}

Test(rule, mean_and_square_match_what_they_build) {
    Check *c = check_new(1);
    RuleBind binds[8];
    uint32_t n;
    Value a = check_floats(c, 2, dims);
    AttrField f[] = {attr_ints(A_AXES, (int64_t[]){1}, 1), attr_float(A_EPS, 1e-5)};
    Value norm = graph_emit(c->g, OP_layer_norm, &a, 1, graph_attr(c->g, f, 2), 0),
          v = macro_expand(c->g, norm);
    cr_assert(matches(
        c,
        "(mul (sub x (mean x @axes)) (rsqrt (add (mean (square (sub x (mean x @axes))) @axes) e)))",
        v, binds, &n));
    double eps;
    cr_assert(bound(binds, n, "x") == a && const_splat(c->g, bound(binds, n, "e"), &eps) &&
              eps == 1e-5);
    check_free(c);
}

/* ---------------------------------------------------------------- speed */

Test(rule, gradients_of_ten_thousand_nodes_take_milliseconds) {
    Check *c = check_new(1);
    Value x = check_floats(c, 2, dims), v = x, d;
    for (int i = 0; i < 5000; i++)
        v = build_binary(c->g, OP_div, build_unary(c->g, OP_tanh, v), build_unary(c->g, OP_exp, v));
    clock_t start = clock();
    check_backward(c->g, v, build_splat(c->g, graph_node(c->g, v)->type, 1), &x, 1, &d);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    fprintf(stderr, "15000 vjps: %.1f ms\n", seconds * 1e3);
    cr_assert(seconds < 2, "%.3f s", seconds);
    check_free(c);
}
