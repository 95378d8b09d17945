/* node.c - what importers call: attributes, known constants, axes, diagnostics, and a few builders.
 * See import.h. */
#include "context.h"
#include <stdarg.h>
#include <string.h>

/* ---------------------------------------------------------------- attributes */

/* What a function's body refers to: the caller's attribute, else the function's default. */
static const Onnx__AttributeProto *passed_attribute(const Scope *scope, const char *name) {
    const Onnx__AttributeProto *given = find_attribute(scope->calling, scope->caller, name);
    for (uint32_t i = 0; !given && i < scope->n_defaults; i++)
        if (!strcmp(scope->defaults[i]->name, name)) given = scope->defaults[i];
    return given;
}

const Onnx__AttributeProto *find_attribute(const Scope *scope, const Onnx__NodeProto *node,
                                           const char *name) {
    for (size_t i = 0; i < node->n_attribute; i++) {
        const Onnx__AttributeProto *a = node->attribute[i];
        if (!a->name || strcmp(a->name, name)) continue;
        if (!a->ref_attr_name || !*a->ref_attr_name) return a;
        return scope && scope->caller ? passed_attribute(scope, a->ref_attr_name) : NULL;
    }
    return NULL;
}

static const Onnx__AttributeProto *attribute(const ImportNode *n, const char *name) {
    return find_attribute(n->im->scope, n->proto, name);
}

bool node_has(const ImportNode *n, const char *name) { return attribute(n, name) != NULL; }

int64_t node_int(const ImportNode *n, const char *name, int64_t otherwise) {
    const Onnx__AttributeProto *a = attribute(n, name);
    return a && a->has_i ? a->i : a ? 0 : otherwise;
}

double node_float(const ImportNode *n, const char *name, double otherwise) {
    const Onnx__AttributeProto *a = attribute(n, name);
    return a && a->has_f ? (double)a->f : a ? 0 : otherwise;
}

const char *node_string(const ImportNode *n, const char *name, const char *otherwise) {
    const Onnx__AttributeProto *a = attribute(n, name);
    return a ? arena_printf(n->arena, "%.*s", (int)a->s.len, (const char *)a->s.data) : otherwise;
}

const int64_t *node_ints(const ImportNode *n, const char *name, uint32_t *count) {
    const Onnx__AttributeProto *a = attribute(n, name);
    *count = a ? (uint32_t)a->n_ints : 0;
    return !a ? NULL : a->ints ? a->ints : arena_alloc(n->arena, sizeof(int64_t));
}

const float *node_floats(const ImportNode *n, const char *name, uint32_t *count) {
    const Onnx__AttributeProto *a = attribute(n, name);
    *count = a ? (uint32_t)a->n_floats : 0;
    return a ? a->floats : NULL;
}

const char *const *node_strings(const ImportNode *n, const char *name, uint32_t *count) {
    const Onnx__AttributeProto *a = attribute(n, name);
    *count = a ? (uint32_t)a->n_strings : 0;
    const char **list = arena_alloc(n->arena, (*count + 1) * sizeof *list);
    for (uint32_t i = 0; i < *count; i++)
        list[i] = arena_printf(n->arena, "%.*s", (int)a->strings[i].len,
                               (const char *)a->strings[i].data);
    return list;
}

bool node_wants(const ImportNode *n, uint32_t output) {
    return output < n->proto->n_output && *n->proto->output[output];
}

/* ---------------------------------------------------------------- diagnostics */

void node_fail(ImportNode *n, const char *name, const char *fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    diag_add(n->g, E_OP_ATTRIBUTE, n->g->loc, n->proto->op_type, name, text);
}

void node_fail_shapes(ImportNode *n, const char *fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    diag_add(n->g, E_SHAPES, n->g->loc, text);
}

void node_fail_dynamic(ImportNode *n) {
    diag_add(n->g, E_DYNAMIC_SHAPE, n->g->loc, n->proto->op_type);
}

/* ---------------------------------------------------------------- known constants */

bool node_known(ImportNode *n, Value v, Tensor *result) { return fold_tensor(n->im, v, result); }

static bool known_input(ImportNode *n, uint32_t input, DTypeClass cls, Tensor *t) {
    if (!node_known(n, node_in(n, input), t)) {
        node_fail_dynamic(n);
        return false;
    }
    bool is_float = dtype_info[t->type.dtype].cls == CLASS_FLT;
    if (is_float != (cls == CLASS_FLT)) {
        diag_add(n->g, E_DTYPE, n->g->loc, dtype_info[t->type.dtype].name, n->proto->op_type);
        return false;
    }
    return true;
}

bool node_ints_at(ImportNode *n, uint32_t input, const int64_t **list, uint32_t *count) {
    Tensor t;
    *list = NULL, *count = 0;
    if (!node_in(n, input)) return true;
    if (!known_input(n, input, CLASS_INT, &t)) return false;
    *list = t.u.i;
    *count = (uint32_t)type_elems(&t.type);
    return true;
}

bool node_floats_at(ImportNode *n, uint32_t input, const double **list, uint32_t *count) {
    Tensor t;
    *list = NULL, *count = 0;
    if (!node_in(n, input)) return true;
    if (!known_input(n, input, CLASS_FLT, &t)) return false;
    *list = t.u.f;
    *count = (uint32_t)type_elems(&t.type);
    return true;
}

bool node_ints_of(ImportNode *n, const char *name, uint32_t input, const int64_t **list,
                  uint32_t *count) {
    *list = node_ints(n, name, count);
    return *list || node_ints_at(n, input, list, count);
}

/* ---------------------------------------------------------------- axes */

bool node_axis(ImportNode *n, int64_t axis, uint32_t rank, int64_t *result) {
    if (axis < -(int64_t)rank || axis >= (int64_t)rank) {
        node_fail(n, "axis", "%lld is outside rank %u", (long long)axis, rank);
        return false;
    }
    *result = axis < 0 ? axis + rank : axis;
    return true;
}

bool node_axes(ImportNode *n, const int64_t *axes, uint32_t count, uint32_t rank, int64_t *sorted) {
    bool is_taken[MAX_RANK] = {false};
    uint32_t k = 0;
    for (uint32_t i = 0; i < count; i++) {
        int64_t axis;
        if (!node_axis(n, axes[i], rank, &axis)) return false;
        if (is_taken[axis]) {
            node_fail(n, "axes", "%lld stands twice", (long long)axes[i]);
            return false;
        }
        is_taken[axis] = true;
    }
    for (uint32_t axis = 0; axis < rank; axis++)
        if (is_taken[axis]) sorted[k++] = axis;
    return true;
}

/* ---------------------------------------------------------------- builders */

Value node_rule(ImportNode *n, const char *rule, const RuleBind *binds, uint32_t count) {
    return rule_build(n->g, rule, binds, count, 0);
}

Value node_number(ImportNode *n, DType dtype, double value) {
    if (dtype == DT_NONE) return 0; /* the type of a value that could not be made */
    return build_splat(n->g, graph_type_of(n->g, dtype, 0, NULL), value);
}

/* Views and casts keep values: is v made from a graph input by them alone? */
static Input *index_source(Graph *g, Value v) {
    for (;;) {
        switch (graph_op(g, v)) {
        case OP_input:
            return graph_input(g, attr_s(g, v, A_NAME));
        case OP_cast:
        case OP_reshape:
        case OP_transpose:
        case OP_expand:
        case OP_slice:
            v = graph_operand(g, v, 0);
            break;
        default:
            return NULL;
        }
    }
}

/* Known indices: checked now, and written anew only where one counts from the end. */
static Value index_of_constant(ImportNode *n, Value idx, const Tensor *t, int64_t extent) {
    int64_t elems = type_elems(&t->type);
    bool is_any_negative = false;
    int64_t *fixed = arena_alloc(n->arena, ((size_t)elems + 1) * sizeof *fixed);
    for (int64_t i = 0; i < elems; i++) {
        int64_t at = t->u.i[i];
        is_any_negative |= at < 0;
        fixed[i] = at < 0 ? at + extent : at;
        if (fixed[i] < 0 || fixed[i] >= extent) {
            node_fail_shapes(n, "index %lld is outside an axis of %lld", (long long)at,
                             (long long)extent);
            return 0;
        }
    }
    return is_any_negative
               ? build_const(n->g, graph_type_of(n->g, DT_I64, t->type.rank, t->type.dims), fixed)
               : idx;
}

Value node_index(ImportNode *n, Value idx, int64_t extent) {
    Graph *g = n->g;
    Tensor known;
    if (!idx) return 0;
    if (dtype_info[node_type(n, idx)->dtype].cls != CLASS_INT) {
        diag_add(g, E_DTYPE, g->loc, dtype_info[node_type(n, idx)->dtype].name,
                 "indices are i32 or i64");
        return 0;
    }
    if (node_known(n, idx, &known)) return index_of_constant(n, idx, &known, extent);
    Input *source = index_source(g, idx);
    if (source && (source->index_limit == 0 || source->index_limit > extent))
        source->index_limit = extent;
    Value zero = node_number(n, (DType)node_type(n, idx)->dtype, 0);
    Value from_end = build_binary(g, OP_add, idx,
                                  node_number(n, (DType)node_type(n, idx)->dtype, (double)extent));
    return build_map(g, OP_where, (Value[]){build_binary(g, OP_lt, idx, zero), from_end, idx}, 3);
}

int64_t node_stream(ImportNode *n) {
    Import *im = n->im;
    const char *key =
        graph_str(n->g, arena_printf(im->arena, "%s%s", im->scope->prefix, n->proto->output[0]));
    uint32_t stream;
    if (!names_get(&im->streams, key, &stream)) {
        stream = ++im->n_streams;
        names_set(im->arena, &im->streams, key, stream);
    }
    return stream;
}

/* ---------------------------------------------------------------- training state */

static State *state_of(ImportNode *n, Value v) {
    return v && graph_op(n->g, v) == OP_state ? graph_state(n->g, attr_s(n->g, v, A_NAME)) : NULL;
}

void node_buffer(ImportNode *n, Value v) {
    State *s = state_of(n, v);
    if (s) s->trains = false, s->is_buffer = true;
}

bool node_update(ImportNode *n, Value state, Value value) {
    State *s = state_of(n, state);
    if (!s || !value) return false;
    if (n->im->n_gates) {
        diag_add(n->g, E_OP_UNSUPPORTED, n->g->loc, n->proto->op_type,
                 ": running statistics in a branch of If whose condition depends on the data");
        return false;
    }
    node_buffer(n, state);
    if (n->training && !graph_root(n->g, ENTRY_MICRO, true, s->name))
        graph_add_root(n->g, ENTRY_MICRO, true, s->name, value);
    return true;
}

void node_mixes(ImportNode *n) { n->im->model->samples_mix = true; }
bool node_from_pytorch(const ImportNode *n) { return n->im->model->from_pytorch; }

bool node_unbiased_variance(const ImportNode *n) {
    int given = n->im->options->bn_variance;
    return given ? given == 1 : n->im->model->from_pytorch;
}
