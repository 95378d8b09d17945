/* op.c - op_info, the registry as a table: each row of op.def becomes one OpInfo.
 *
 * Nothing is said here that op.def does not say; a map's shape rule and every macro's lowering class follow from the kind of row.
 */
#include "op_functions.h"
#include <string.h>

#define vjp_none NULL
#define FIRST(x, ...) x
#define FIELDS(...)                                                                        \
    .n_attrs = sizeof((AttrKey[]){__VA_ARGS__}) / sizeof(AttrKey) -                         \
               (FIRST(__VA_ARGS__, 0) == A_NONE),                                          \
    .attrs = {__VA_ARGS__}

const OpInfo op_info[N_OPS] = {
    [OP_NONE] = {.name = "none"},
#define MAP(row, n_operands, in, policy, flops, text, rules)                              \
    [OP_##row] = {.name = #row, .arity = n_operands, .cls = OPC_##in, .cast = CAST_##policy, \
                  .lower = LOWER_MAP, .cost = flops, .body = #text, .grad = rules,          \
                  .shape = shape_map},
#define OP(row, n_operands, policy, flops, how, type, gradient, ...)                       \
    [OP_##row] = {.name = #row, .arity = n_operands, .cast = CAST_##policy,                \
                  .lower = LOWER_##how, .cost = flops, .shape = shape_##type,              \
                  .vjp = vjp_##gradient, FIELDS(__VA_ARGS__)},
#define MACRO(row, n_operands, policy, flops, type, rule, rules, ...)                      \
    [OP_##row] = {.name = #row, .arity = n_operands, .cast = CAST_##policy,                \
                  .lower = LOWER_MACRO, .cost = flops, .grad = rules, .expansion = rule,   \
                  .shape = shape_##type, FIELDS(__VA_ARGS__)},
#include "op.def"
};

OpCode op_from_name(const char *name) {
    for (int op = 1; op < N_OPS; op++)
        if (strcmp(op_info[op].name, name) == 0) return (OpCode)op;
    return OP_NONE;
}
