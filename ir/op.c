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
#define MAP(name_, arity_, cls_, cast_, cost_, body_, grad_)                               \
    [OP_##name_] = {.name = #name_, .arity = arity_, .cls = OPC_##cls_, .cast = CAST_##cast_, \
                    .lower = LOWER_MAP, .cost = cost_, .body = #body_, .grad = grad_,       \
                    .shape = shape_map},
#define OP(name_, arity_, cast_, cost_, lower_, shape_, vjp_, ...)                         \
    [OP_##name_] = {.name = #name_, .arity = arity_, .cast = CAST_##cast_,                  \
                    .lower = LOWER_##lower_, .cost = cost_, .shape = shape_##shape_,        \
                    .vjp = vjp_##vjp_, FIELDS(__VA_ARGS__)},
#define MACRO(name_, arity_, cast_, cost_, shape_, expansion_, grad_, ...)                 \
    [OP_##name_] = {.name = #name_, .arity = arity_, .cast = CAST_##cast_,                  \
                    .lower = LOWER_MACRO, .cost = cost_, .grad = grad_,                     \
                    .expansion = expansion_, .shape = shape_##shape_, FIELDS(__VA_ARGS__)},
#include "op.def"
};

OpCode op_from_name(const char *name) {
    for (int op = 1; op < N_OPS; op++)
        if (strcmp(op_info[op].name, name) == 0) return (OpCode)op;
    return OP_NONE;
}
