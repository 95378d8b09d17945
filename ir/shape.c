/* shape.c - types of leaves, maps, views, reductions and macros. Contractions, windows and indexing
 * are in shape_contract.c.
 *
 * A rule returns the interned type of the result, or 0 after one diagnostic that names the op and
 * the operand types. Rules know nothing of how operands were made; attributes carry all fields of
 * the row (graph_emit sees to it).
 */
#include "shape_rules.h"
#include <assert.h>
#include <string.h>

/* Far beyond any tensor, and low enough that no sum or product of extents overflows. */
static const int64_t MAX_EXTENT = (int64_t)1 << 40, MAX_ELEMS = (int64_t)1 << 56;

/* ---------------------------------------------------------------- shared */

static const AttrField *field(const Graph *g, AttrId attr, AttrKey key) {
    const Attr *a = &g->attrs[attr];
    for (uint32_t i = 0; i < a->n; i++)
        if (a->fields[i].key == key) return &a->fields[i];
    return NULL;
}

Axes shape_axes(const Graph *g, AttrId attr, AttrKey key) {
    const AttrField *f = field(g, attr, key);
    return f ? (Axes){f->u.ints, f->n} : (Axes){NULL, 0};
}

int64_t shape_int(const Graph *g, AttrId attr, AttrKey key) {
    const AttrField *f = field(g, attr, key);
    return f ? f->u.i : 0;
}

TypeId shape_refuse(Graph *g, OpCode op, const Value *operands, uint32_t n, const char *what) {
    const char *types = "";
    for (uint32_t i = 0; i < n; i++)
        types = arena_printf(g->arena, "%s%s%s", types, i ? ", " : "",
                             type_text(g, graph_type_at(g, operands[i])));
    diag_add(g, E_SHAPES, g->loc,
             arena_printf(g->arena, "%s(%s): %s", op_info[op].name, types, what));
    return 0;
}

TypeId shape_refuse_dtype(Graph *g, OpCode op, DType d, const char *what) {
    diag_add(g, E_DTYPE, g->loc, dtype_info[d].name,
             arena_printf(g->arena, "%s: %s", op_info[op].name, what));
    return 0;
}

bool shape_lists_are(const Graph *g, OpCode op, AttrId attr, uint32_t n) {
    for (uint32_t i = 0; i < op_info[op].n_attrs; i++) {
        const AttrField *f = field(g, attr, op_info[op].attrs[i]);
        if (!f || attr_info[f->key].kind != ATTR_INTS) continue;
        int64_t limit = f->key == A_START ? MAX_EXTENT : INT32_MAX;
        if (f->n != n) return false;
        for (uint32_t j = 0; j < n; j++)
            if (f->u.ints[j] > limit || f->u.ints[j] < -limit) return false;
    }
    return true;
}

bool type_fits(const Type *t) {
    int64_t elems = 1;
    for (uint32_t i = 0; i < t->rank; i++) {
        if (t->dims[i] < 0 || t->dims[i] > MAX_EXTENT) return false;
        if (t->dims[i] && elems > MAX_ELEMS / t->dims[i]) return false;
        elems *= t->dims[i] ? t->dims[i] : 1;
    }
    return true;
}

TypeId shape_done(Graph *g, OpCode op, const Value *operands, uint32_t n, const Type *t) {
    return type_fits(t) ? graph_type(g, *t)
                        : shape_refuse(g, op, operands, n, "the result is too large");
}

/* ---------------------------------------------------------------- leaves */

static TypeId given_const(Graph *g, AttrId attr, TypeId given) {
    const Type *t = &g->types[given];
    const AttrField *data = field(g, attr, A_DATA);
    if (data->n == type_bytes(t) || data->n == dtype_info[t->dtype].bytes) return given;
    return shape_refuse(
        g, OP_const, NULL, 0,
        arena_printf(g->arena, "%u bytes do not fill %s", data->n, type_text(g, t)));
}

static TypeId given_declared(Graph *g, OpCode op, const char *name, TypeId given) {
    const Input *in = op == OP_input ? graph_input(g, name) : NULL;
    const State *s = op == OP_state ? graph_state(g, name) : NULL;
    TypeId declared = in ? in->type : s ? s->type : 0;
    if (!declared)
        return shape_refuse(g, op, NULL, 0, arena_printf(g->arena, "%s is not declared", name));
    if (declared == given) return given;
    const char *types = arena_printf(g->arena, "%s is %s", name, type_text(g, &g->types[declared]));
    return shape_refuse(
        g, op, NULL, 0,
        arena_printf(g->arena, "%s, not %s", types, type_text(g, &g->types[given])));
}

TypeId shape_given(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                   TypeId given) {
    (void)operands, (void)n;
    if (!given) return shape_refuse(g, op, NULL, 0, "the type is not given");
    const Type *t = &g->types[given];
    if (!type_fits(t))
        return shape_refuse(g, op, NULL, 0, "the type is too large or has a negative extent");
    int64_t axis = shape_int(g, attr, A_AXIS);
    if (op == OP_const) return given_const(g, attr, given);
    if (op == OP_input && field(g, attr, A_NAME)->u.str[0] == '%') return given; /* a hole: scan.h */
    if (op == OP_input || op == OP_state)
        return given_declared(g, op, field(g, attr, A_NAME)->u.str, given);
    if (op == OP_scalar && t->rank) return shape_refuse(g, op, NULL, 0, "a step scalar has rank 0");
    if (op == OP_iota && (axis < 0 || axis >= t->rank))
        return shape_refuse(g, op, NULL, 0, "the axis is out of range");
    if (op == OP_random && dtype_class(t->dtype) != CLASS_FLT)
        return shape_refuse_dtype(g, op, (DType)t->dtype, "needs floats");
    return given;
}

/* ---------------------------------------------------------------- maps */

static bool class_takes(OpClass cls, uint32_t operand, DTypeClass d) {
    switch (cls) {
    case OPC_NUM:
        return d == CLASS_FLT || d == CLASS_INT;
    case OPC_FLT:
    case OPC_TEST:
        return d == CLASS_FLT;
    case OPC_INT:
        return d == CLASS_INT || d == CLASS_BOOL;
    case OPC_CMP:
        return true;
    case OPC_BOOL:
        return d == CLASS_BOOL;
    case OPC_SEL:
        return operand > 0 || d == CLASS_BOOL;
    case OPC_NONE:
        break;
    }
    return false;
}

static const char *class_wants(OpClass cls) {
    switch (cls) {
    case OPC_NUM:
        return "needs floats or integers";
    case OPC_FLT:
    case OPC_TEST:
        return "needs floats";
    case OPC_INT:
        return "needs integers or bool";
    case OPC_BOOL:
        return "needs bool";
    case OPC_SEL:
        return "the condition must be bool";
    case OPC_CMP:
    case OPC_NONE:
        break;
    }
    return "";
}

TypeId shape_map(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                 TypeId given) {
    (void)attr, (void)given;
    OpClass cls = op_info[op].cls;
    Type out = *graph_type_at(g, operands[n - 1]);
    for (uint32_t i = 0; i < n; i++) {
        const Type *t = graph_type_at(g, operands[i]);
        if (!class_takes(cls, i, dtype_class(t->dtype)))
            return shape_refuse_dtype(g, op, (DType)t->dtype, class_wants(cls));
        if (!dims_equal(t, &out)) return shape_refuse(g, op, operands, n, "dims differ");
        if (t->dtype != out.dtype && !(cls == OPC_SEL && i == 0))
            return shape_refuse_dtype(
                g, op, (DType)t->dtype,
                arena_printf(g->arena, "the other operand is %s", dtype_info[out.dtype].name));
    }
    if (cls == OPC_CMP || cls == OPC_TEST) out.dtype = DT_BOOL;
    return graph_type(g, out);
}

TypeId shape_cast(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                  TypeId given) {
    (void)attr;
    if (!given) return shape_refuse(g, op, operands, n, "the type is not given");
    Type t = *graph_type_at(g, operands[0]);
    t.dtype = g->types[given].dtype;
    return shape_done(g, op, operands, n, &t);
}

/* ---------------------------------------------------------------- views */

TypeId shape_reshape(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                     TypeId given) {
    (void)attr;
    const Type *a = graph_type_at(g, operands[0]);
    if (!given) return shape_refuse(g, op, operands, n, "the type is not given");
    Type t = g->types[given];
    t.dtype = a->dtype;
    if (!type_fits(&t) || type_elems(a) != type_elems(&t))
        return shape_refuse(
            g, op, operands, n,
            arena_printf(g->arena, "%s has another number of elements", type_text(g, &t)));
    return shape_done(g, op, operands, n, &t);
}

TypeId shape_transpose(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                       TypeId given) {
    (void)given;
    Axes perm = shape_axes(g, attr, A_PERM);
    const Type *a = graph_type_at(g, operands[0]);
    Type t = *a;
    unsigned seen = 0;
    if (perm.n != a->rank) return shape_refuse(g, op, operands, n, "perm has another rank");
    for (uint32_t i = 0; i < perm.n; i++) {
        if (perm.at[i] < 0 || perm.at[i] >= a->rank || seen >> perm.at[i] & 1)
            return shape_refuse(g, op, operands, n, "perm is no permutation");
        seen |= 1u << perm.at[i];
        t.dims[i] = a->dims[perm.at[i]];
    }
    return shape_done(g, op, operands, n, &t);
}

TypeId shape_expand(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                    TypeId given) {
    (void)attr;
    const Type *a = graph_type_at(g, operands[0]);
    if (!given) return shape_refuse(g, op, operands, n, "the type is not given");
    Type t = g->types[given];
    t.dtype = a->dtype;
    bool fits = t.rank == a->rank;
    for (uint32_t i = 0; fits && i < t.rank; i++) fits = a->dims[i] == t.dims[i] || a->dims[i] == 1;
    if (!fits)
        return shape_refuse(g, op, operands, n,
                            arena_printf(g->arena, "does not broadcast to %s", type_text(g, &t)));
    return shape_done(g, op, operands, n, &t);
}

static bool slice_fits(int64_t dim, int64_t first, int64_t extent, int64_t step) {
    if (extent == 0) return true;
    if (extent < 0 || first < 0 || first >= dim || step == 0) return false;
    int64_t most = step > 0 ? (dim - 1 - first) / step : first / -step;
    return extent - 1 <= most;
}

/* slice: the only view whose extents are given and whose dtype and rank are the operand's */
TypeId shape_given_rank(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                        TypeId given) {
    Axes start = shape_axes(g, attr, A_START), step = shape_axes(g, attr, A_STEP);
    const Type *a = graph_type_at(g, operands[0]);
    if (!given) return shape_refuse(g, op, operands, n, "the type is not given");
    Type t = g->types[given];
    t.dtype = a->dtype;
    if (t.rank != a->rank || !shape_lists_are(g, op, attr, a->rank))
        return shape_refuse(g, op, operands, n, "ranks differ");
    for (uint32_t i = 0; i < t.rank; i++)
        if (!slice_fits(a->dims[i], start.at[i], t.dims[i], step.at[i]))
            return shape_refuse(
                g, op, operands, n,
                arena_printf(g->arena, "%s from %lld in steps of %lld leaves axis %u",
                             type_text(g, &t), (long long)start.at[i], (long long)step.at[i], i));
    return shape_done(g, op, operands, n, &t);
}

TypeId shape_pad(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                 TypeId given) {
    (void)given;
    Type t = *graph_type_at(g, operands[0]);
    Axes low = shape_axes(g, attr, A_LOW), high = shape_axes(g, attr, A_HIGH),
         holes = shape_axes(g, attr, A_INTERIOR);
    if (!shape_lists_are(g, op, attr, t.rank))
        return shape_refuse(g, op, operands, n, "paddings have another rank");
    for (uint32_t i = 0; i < t.rank; i++) {
        int64_t gaps = t.dims[i] > 1 ? t.dims[i] - 1 : 0;
        if (holes.at[i] < 0 || (gaps && holes.at[i] > MAX_EXTENT / gaps))
            return shape_refuse(g, op, operands, n, "impossible holes");
        t.dims[i] += low.at[i] + high.at[i] + gaps * holes.at[i];
        if (t.dims[i] < 0) return shape_refuse(g, op, operands, n, "negative extents");
    }
    return shape_done(g, op, operands, n, &t);
}

TypeId shape_concat(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                    TypeId given) {
    (void)given;
    int64_t axis = shape_int(g, attr, A_AXIS);
    Type t = *graph_type_at(g, operands[0]);
    if (axis < 0 || axis >= t.rank)
        return shape_refuse(g, op, operands, n, "the axis is out of range");
    for (uint32_t i = 1; i < n; i++) {
        Type other = *graph_type_at(g, operands[i]);
        int64_t extent = other.rank == t.rank ? other.dims[axis] : 0;
        if (other.dtype != t.dtype)
            return shape_refuse_dtype(g, op, (DType)other.dtype, "operands have one type");
        other.dims[axis] = t.dims[axis];
        if (!dims_equal(&other, &t))
            return shape_refuse(g, op, operands, n, "dims beside the axis differ");
        t.dims[axis] += extent;
    }
    return shape_done(g, op, operands, n, &t);
}

/* ---------------------------------------------------------------- reductions, macros */

static bool axes_fit(Axes axes, uint32_t rank) {
    for (uint32_t i = 0; i < axes.n; i++)
        if (axes.at[i] < 0 || axes.at[i] >= rank || (i && axes.at[i - 1] >= axes.at[i]))
            return false;
    return true;
}

TypeId shape_reduce(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                    TypeId given) {
    (void)given;
    Axes axes = shape_axes(g, attr, A_AXES);
    Type t = *graph_type_at(g, operands[0]);
    if (dtype_class(t.dtype) == CLASS_BOOL)
        return shape_refuse_dtype(g, op, DT_BOOL, "needs floats or integers");
    if (!axes_fit(axes, t.rank))
        return shape_refuse(g, op, operands, n, "axes must be sorted and in range");
    for (uint32_t i = 0; i < axes.n; i++) t.dims[axes.at[i]] = 1;
    return shape_done(g, op, operands, n, &t);
}

TypeId shape_argreduce(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                       TypeId given) {
    (void)given;
    int64_t axis = shape_int(g, attr, A_AXIS);
    Type t = *graph_type_at(g, operands[0]);
    if (dtype_class(t.dtype) == CLASS_BOOL)
        return shape_refuse_dtype(g, op, DT_BOOL, "needs floats or integers");
    if (axis < 0 || axis >= t.rank)
        return shape_refuse(g, op, operands, n, "the axis is out of range");
    if (t.dims[axis] == 0) return shape_refuse(g, op, operands, n, "nothing to choose from");
    t.dims[axis] = 1;
    t.dtype = DT_I64;
    return shape_done(g, op, operands, n, &t);
}

TypeId shape_same(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                  TypeId given) {
    (void)given;
    const Node *a = graph_node(g, operands[0]);
    const Type *t = &g->types[a->type];
    if (dtype_class(t->dtype) != CLASS_FLT)
        return shape_refuse_dtype(g, op, (DType)t->dtype, "needs floats");
    if (!axes_fit(shape_axes(g, attr, A_AXES), t->rank))
        return shape_refuse(g, op, operands, n, "axes must be sorted and in range");
    return a->type;
}

TypeId shape_xent(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                  TypeId given) {
    (void)given;
    int64_t axis = shape_int(g, attr, A_AXIS);
    Type t = *graph_type_at(g, operands[0]);
    const Type *labels = graph_type_at(g, operands[1]);
    if (dtype_class(t.dtype) != CLASS_FLT)
        return shape_refuse_dtype(g, op, (DType)t.dtype, "logits are floats");
    if (labels->dtype != DT_I64)
        return shape_refuse_dtype(g, op, (DType)labels->dtype, "labels are i64");
    if (axis < 0 || axis >= t.rank)
        return shape_refuse(g, op, operands, n, "the axis is out of range");
    t.dims[axis] = 1;
    if (!dims_equal(&t, labels))
        return shape_refuse(g, op, operands, n, "labels have the dims of the logits, one class");
    return shape_done(g, op, operands, n, &t);
}
