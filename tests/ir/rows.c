/* rows.c - tests that loop over the registry: each row's rules parse, type and agree with finite
 * differences.
 *
 * Nothing here names a map: a new row is tested as it is. Each is tried in four domains, and counts
 * where its value is finite there. */
#include "attention.h"
#include "check.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const double domains[][2] = {{-2.9, -1.1}, {-0.9, -0.1}, {0.1, 0.9}, {1.1, 2.9}};
enum { N_DOMAINS = sizeof domains / sizeof *domains };
static const int64_t map_dims[] = {2, 3};

/* y = op(x0, ..) with the operands of its class */
static Value map_of_inputs(Check *c, OpCode op, DType dtype, const double *domain) {
    const OpInfo *info = &op_info[op];
    Value x[3];
    for (int i = 0; i < info->arity; i++) {
        bool is_bool = info->cls == OPC_BOOL || (info->cls == OPC_SEL && i == 0);
        if (is_bool)
            x[i] = check_input(c, DT_BOOL, 2, map_dims, 0, 1);
        else
            x[i] = check_input(c, dtype, 2, map_dims, domain[0], domain[1]);
    }
    return graph_emit(c->g, op, x, (uint32_t)info->arity, 0, 0);
}

static bool is_float_map(OpCode op) {
    OpClass cls = op_info[op].cls;
    return cls == OPC_NUM || cls == OPC_FLT || cls == OPC_SEL;
}

Test(rows, every_map_agrees_with_finite_differences) {
    for (int op = 1; op < N_OPS; op++) {
        int n_tested = 0;
        if (op_info[op].lower != LOWER_MAP || !op_info[op].body || !is_float_map((OpCode)op))
            continue;
        if (!strcmp(op_info[op].body, "a"))
            continue; /* the identity, without a gradient on purpose */
        for (int i = 0; i < N_DOMAINS; i++) {
            Check *c = check_new((uint64_t)op * 16 + (uint64_t)i);
            Value y = map_of_inputs(c, (OpCode)op, DT_F64, domains[i]);
            cr_assert(y != 0, "%s does not type", op_info[op].name);
            if (check_is_finite(c, y)) {
                check_gradient(c, y, op_info[op].name);
                n_tested++;
            }
            check_free(c);
        }
        cr_assert(n_tested > 0, "%s is finite in no domain", op_info[op].name);
    }
}

Test(rows, maps_without_float_results_have_no_gradient) {
    for (int op = 1; op < N_OPS; op++) {
        OpClass cls = op_info[op].cls;
        if (cls == OPC_NONE || is_float_map((OpCode)op)) continue;
        Check *c = check_new((uint64_t)op);
        Value d[3], y = map_of_inputs(c, (OpCode)op, cls == OPC_INT ? DT_I64 : DT_F64, domains[3]);
        cr_assert(y != 0, "%s does not type", op_info[op].name);
        Type t = *graph_type_at(c->g, y);
        cr_assert(t.dtype == (cls == OPC_INT ? DT_I64 : DT_BOOL), "%s has a strange type",
                  op_info[op].name);
        op_vjp(c->g, y, build_splat(c->g, graph_type_of(c->g, DT_F64, t.rank, t.dims), 1), d);
        for (int i = 0; i < op_info[op].arity; i++) cr_assert(d[i] == 0, "%s", op_info[op].name);
        check_eval(c, y);
        check_free(c);
    }
}

Test(rows, number_maps_give_the_same_for_integers_and_doubles) {
    for (int op = 1; op < N_OPS; op++) {
        if (op_info[op].cls != OPC_NUM && op_info[op].cls != OPC_SEL && op_info[op].cls != OPC_CMP)
            continue;
        Check *c = check_new((uint64_t)op);
        Value y = map_of_inputs(c, (OpCode)op, DT_I64, (double[]){-3, 4}), x[3] = {0};
        for (int i = 0; i < op_info[op].arity; i++) {
            bool is_bool = graph_type_at(c->g, c->inputs[i])->dtype == DT_BOOL;
            x[i] = is_bool ? c->inputs[i] : build_cast(c->g, c->inputs[i], DT_F64);
        }
        Value f = graph_emit(c->g, (OpCode)op, x, (uint32_t)op_info[op].arity, 0, 0);
        check_same(c, build_cast(c->g, y, DT_F64), build_cast(c->g, f, DT_F64), 0,
                   op_info[op].name);
        check_free(c);
    }
}

/* ---------------------------------------------------------------- macros */

/* A random attention: grouped heads, a mask of any kind with two keys at least in each row
 * (one has no gradient), a cap, a bias and a dropout mask that broadcast somehow. */
static Value attention_of_inputs(Check *c) {
    int64_t groups = check_int(c, 1, 2), heads = groups * check_int(c, 1, 2),
            s = check_int(c, 1, 3), t = s + check_int(c, 1, 2);
    int64_t q[] = {2, heads, s, 2}, k[] = {2, groups, t, 2}, v[] = {2, groups, t, 3},
            bias[] = {1, check_int(c, 0, 1) ? heads : 1, check_int(c, 0, 1) ? s : 1, t},
            keep[] = {2, 1, 1, t}, drop[] = {2, heads, s, check_int(c, 0, 1) ? t : 1};
    AttentionForm f = attention_form_plain();
    f.scale = check_real(c, 0.3, 1.5);
    f.softcap = check_int(c, 0, 1) ? check_real(c, 0.5, 2) : 0;
    f.fill = check_int(c, 0, 1) ? -INFINITY : check_real(c, -3, 0); /* small: its gradient shows */
    f.masked = f.fill == -INFINITY ? 0 : check_int(c, 0, 3);
    f.guard = check_int(c, 0, 1);
    if (check_int(c, 0, 1)) f.last = t - s + check_int(c, 0, 1);
    if (check_int(c, 0, 1)) f.first = -check_int(c, 0, 1);
    bool keeps = f.fill != -INFINITY && check_int(c, 0, 1);
    Value x[N_ATTENTION_OPERANDS] = {check_floats(c, 4, q), check_floats(c, 4, k),
                                     check_floats(c, 4, v)};
    if (check_int(c, 0, 1)) x[ATTENTION_BIAS] = check_floats(c, 4, bias);
    if (keeps) x[ATTENTION_KEEP] = check_input(c, DT_BOOL, 4, keep, 0, 1);
    if (check_int(c, 0, 1)) x[ATTENTION_DROP] = check_floats(c, 4, drop);
    return build_attention(c->g, x, f);
}

static Value rope_of_inputs(Check *c) {
    int64_t turned = 2 * check_int(c, 1, 2), x[] = {2, 3, turned + check_int(c, 0, 2)},
            cos[] = {check_int(c, 1, 2), 3, turned},
            sin[] = {1, check_int(c, 0, 1) ? 3 : 1, turned};
    Value a = check_floats(c, 3, x), b = check_floats(c, 3, cos);
    return build_rope(c->g, a, b, check_floats(c, 3, sin), check_int(c, 0, 1));
}

/* One typical node of a macro: reductions over the last axis, or the field's own kind of value. */
static Value macro_of_inputs(Check *c, OpCode op) {
    static const int64_t dims[] = {2, 2, 3}, axes[] = {1, 2}, label_dims[] = {2, 2, 1};
    const OpInfo *info = &op_info[op];
    AttrField fields[8];
    Value x[3];
    if (op == OP_attention) return attention_of_inputs(c);
    if (op == OP_rope) return rope_of_inputs(c);
    for (uint32_t i = 0; i < info->n_attrs; i++) {
        AttrKey key = info->attrs[i];
        if (key == A_AXES)
            fields[i] = attr_ints(key, axes, 2);
        else if (key == A_EPS)
            fields[i] = attr_float(key, 0.01);
        else
            fields[i] = attr_int(key, key == A_AXIS ? 2 : 1);
    }
    x[0] = check_floats(c, 3, dims);
    for (int i = 1; i < info->arity; i++)
        x[i] = op == OP_xent ? check_indices(c, 3, label_dims, 3) : check_floats(c, 3, dims);
    return graph_emit(c->g, op, x, (uint32_t)info->arity, graph_attr(c->g, fields, info->n_attrs),
                      0);
}

Test(rows, every_macro_agrees_with_finite_differences) {
    for (int op = 1; op < N_OPS; op++) {
        if (op_info[op].lower != LOWER_MACRO) continue;
        for (uint64_t seed = 0; seed < (op == OP_attention || op == OP_rope ? 40u : 3u); seed++) {
            Check *c = check_new((uint64_t)op * 64 + seed);
            Value y = macro_of_inputs(c, (OpCode)op);
            cr_assert(y != 0, "%s does not type", op_info[op].name);
            check_gradient(c, y, op_info[op].name);
            check_free(c);
        }
    }
}

static void has_gradient_of_expansion(OpCode op, uint64_t seed) {
    Check *c = check_new(seed);
    Value own[CHECK_MAX], expanded[CHECK_MAX];
    Value y = macro_of_inputs(c, op), e = macro_expand(c->g, y);
    uint32_t n = c->n;
    cr_assert(e != 0 && graph_node(c->g, e)->type == graph_node(c->g, y)->type,
              "%s: the expansion has another type", op_info[op].name);
    Type t = *graph_type_at(c->g, y);
    Value dy = check_floats(c, t.rank, t.dims);
    check_backward(c->g, y, dy, c->inputs, n, own);
    check_backward(c->g, e, dy, c->inputs, n, expanded);
    for (uint32_t i = 0; i < n; i++) {
        cr_assert(!own[i] == !expanded[i], "%s", op_info[op].name);
        if (own[i]) check_same(c, own[i], expanded[i], 1e-12, op_info[op].name);
    }
    check_free(c);
}

Test(rows, every_macro_has_the_gradient_of_its_expansion) {
    for (int op = 1; op < N_OPS; op++) {
        if (op_info[op].lower != LOWER_MACRO) continue;
        for (uint64_t seed = 0; seed < (op == OP_attention || op == OP_rope ? 40u : 1u); seed++)
            has_gradient_of_expansion((OpCode)op, (uint64_t)op * 64 + seed);
    }
}
