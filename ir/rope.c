/* rope.c - the macro `rope`, rotary position embedding (Su et al. 2021): shape, expansion,
 * gradients.
 *
 * y = x cos + turn(x) sin on the first R elements of the last axis, R the extent of cos and sin.
 * turn is a quarter turn of each pair, so its adjoint is -turn: dx = dy cos - turn(dy sin). */
#include "attention.h"
#include "shape_rules.h"
#include "rule.h"

Value build_rope(Graph *g, Value x, Value cos, Value sin, bool is_interleaved) {
    AttrField f = attr_int(A_INTERLEAVED, is_interleaved);
    return graph_emit(g, OP_rope, (Value[]){x, cos, sin}, 3, graph_attr(g, &f, 1), 0);
}

TypeId shape_rope(Graph *g, OpCode op, const Value *x, uint32_t n, AttrId attr, TypeId given) {
    (void)attr, (void)given;
    const Type *t = graph_type_at(g, x[0]);
    uint32_t last = t->rank - 1u;
    if (dtype_info[t->dtype].cls != CLASS_FLT)
        return shape_refuse_dtype(g, op, (DType)t->dtype, "needs floats");
    if (t->rank < 1 || t->rank >= MAX_RANK) return shape_refuse(g, op, x, n, "rank 1 to 7");
    for (uint32_t k = 1; k < 3; k++) {
        const Type *table = graph_type_at(g, x[k]), *other = graph_type_at(g, x[1]);
        if (table->dtype != t->dtype)
            return shape_refuse_dtype(g, op, (DType)table->dtype, "x, cos and sin have one type");
        if (table->rank != t->rank || table->dims[last] != other->dims[last] ||
            table->dims[last] > t->dims[last] || table->dims[last] % 2)
            return shape_refuse(g, op, x, n, "cos and sin turn an even part of x");
        for (uint32_t i = 0; i < last; i++)
            if (table->dims[i] != 1 && table->dims[i] != t->dims[i])
                return shape_refuse(g, op, x, n, "cos and sin broadcast to x");
    }
    return graph_node(g, x[0])->type;
}

/* `count` elements of the last axis from `from` in steps. */
static Value part(Graph *g, Value v, int64_t from, int64_t count, int64_t step) {
    int64_t start[MAX_RANK] = {0}, steps[MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    Type t = *graph_type_at(g, v);
    start[t.rank - 1] = from;
    steps[t.rank - 1] = step;
    t.dims[t.rank - 1] = count;
    return build_slice(g, v, start, t.dims, steps);
}

static int64_t extent(const Graph *g, Value v) {
    const Type *t = graph_type_at(g, v);
    return t->dims[t->rank - 1];
}

static Value turn(Graph *g, Value v, bool is_interleaved) {
    int64_t half = extent(g, v) / 2;
    Type t = *graph_type_at(g, v), pair = t;
    Value a = part(g, v, 0, half, is_interleaved ? 2 : 1),
          b = part(g, v, is_interleaved ? 1 : half, half, is_interleaved ? 2 : 1);
    Value parts[] = {build_unary(g, OP_neg, b), a};
    if (!is_interleaved) return build_concat(g, parts, 2, t.rank - 1);
    pair.dims[t.rank - 1] = half;
    pair.dims[pair.rank++] = 1;
    for (int i = 0; i < 2; i++) parts[i] = build_reshape(g, parts[i], pair.rank, pair.dims);
    return build_reshape(g, build_concat(g, parts, 2, t.rank), t.rank, t.dims);
}

/* The turned part, and behind it what is not turned: `rest` of v. */
static Value with_rest(Graph *g, Value turned, Value rest) {
    int64_t r = extent(g, turned), d = extent(g, rest);
    if (r == d) return turned;
    Value parts[] = {turned, part(g, rest, r, d - r, 1)};
    return build_concat(g, parts, 2, graph_type_at(g, rest)->rank - 1);
}

static bool is_interleaved(const Graph *g, Value v) { return attr_i(g, v, A_INTERLEAVED, 0) != 0; }

/* The first R elements of x or of its gradient. */
static Value turned_part(Graph *g, Value v, Value x) {
    return part(g, x, 0, extent(g, graph_operand(g, v, 1)), 1);
}

Value expand_rope(Graph *g, Value v, Value dy) {
    Value x = graph_operand(g, v, 0), a = turned_part(g, v, x);
    Value straight = build_binary(g, OP_mul, a, graph_operand(g, v, 1));
    Value across =
        build_binary(g, OP_mul, turn(g, a, is_interleaved(g, v)), graph_operand(g, v, 2));
    (void)dy;
    return with_rest(g, build_binary(g, OP_add, straight, across), x);
}

Value vjp_rope_x(Graph *g, Value v, Value dy) {
    Value a = turned_part(g, v, dy);
    Value straight = build_binary(g, OP_mul, a, graph_operand(g, v, 1));
    Value across = build_binary(g, OP_mul, a, graph_operand(g, v, 2));
    return with_rest(g, build_binary(g, OP_sub, straight, turn(g, across, is_interleaved(g, v))),
                     dy);
}

static Value to_table(Graph *g, Value v, uint32_t table, Value d) {
    return build_sum_to(g, d, graph_type_at(g, graph_operand(g, v, table)));
}

Value vjp_rope_cos(Graph *g, Value v, Value dy) {
    Value a = turned_part(g, v, graph_operand(g, v, 0));
    return to_table(g, v, 1, build_binary(g, OP_mul, turned_part(g, v, dy), a));
}

Value vjp_rope_sin(Graph *g, Value v, Value dy) {
    Value a = turn(g, turned_part(g, v, graph_operand(g, v, 0)), is_interleaved(g, v));
    return to_table(g, v, 2, build_binary(g, OP_mul, turned_part(g, v, dy), a));
}
