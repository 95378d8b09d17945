/* check.c - random inputs, evaluation and finite differences for the tests of ir/; see check.h. */
#include "check.h"
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

Check *check_new(uint64_t seed) {
    Arena *arena = arena_new();
    Check *c = arena_alloc(arena, sizeof *c);
    c->arena = arena;
    c->g = graph_new("check");
    c->rng = seed * 0x9E3779B97F4A7C15u + 1;
    return c;
}

void check_free(Check *c) {
    graph_free(c->g);
    arena_free(c->arena);
}

/* splitmix64 */
uint64_t check_random(Check *c) {
    uint64_t z = c->rng += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

int64_t check_int(Check *c, int64_t lo, int64_t hi) {
    return lo + (int64_t)(check_random(c) % (uint64_t)(hi - lo + 1));
}

double check_real(Check *c, double lo, double hi) {
    return lo + (hi - lo) * (double)(check_random(c) >> 11) * 0x1p-53;
}

static bool is_near_jump(double x) { return fabs(2 * x - rint(2 * x)) < 0.04; }

static Value add_input(Check *c, Type t, Tensor values) {
    cr_assert(c->n < CHECK_MAX);
    snprintf(c->names[c->n], sizeof c->names[c->n], "x%u", c->n);
    c->tensors[c->n] = values;
    graph_add_input(c->g,
                    (Input){.name = c->names[c->n], .type = graph_type(c->g, t), .batch_axis = -1});
    c->inputs[c->n] = build_input(c->g, c->names[c->n]);
    return c->inputs[c->n++];
}

Value check_input(Check *c, DType dtype, uint32_t rank, const int64_t *dims, double lo, double hi) {
    Type t = {.dtype = (uint8_t)dtype, .rank = (uint8_t)rank};
    if (rank) memcpy(t.dims, dims, rank * sizeof *dims);
    int64_t n = type_elems(&t);
    Tensor values = {.type = t};
    values.u.p = arena_alloc(c->arena, (size_t)(n + 1) * sizeof(double));
    for (int64_t i = 0; i < n; i++) {
        double x;
        do x = check_real(c, lo, hi);
        while (dtype_info[dtype].cls == CLASS_FLT && is_near_jump(x));
        if (dtype_info[dtype].cls == CLASS_FLT)
            values.u.f[i] = x;
        else
            values.u.i[i] = check_int(c, (int64_t)lo, (int64_t)hi);
    }
    return add_input(c, t, values);
}

Value check_floats(Check *c, uint32_t rank, const int64_t *dims) {
    return check_input(c, DT_F64, rank, dims, -2, 2);
}

Value check_indices(Check *c, uint32_t rank, const int64_t *dims, int64_t limit) {
    return check_input(c, DT_I64, rank, dims, 0, (double)(limit - 1));
}

/* ---------------------------------------------------------------- evaluation */

static const Tensor *find_input(void *user, const char *name) {
    Check *c = user;
    for (uint32_t i = 0; i < c->n; i++)
        if (strcmp(c->names[i], name) == 0) return &c->tensors[i];
    return NULL;
}

static void eval_into(Check *c, Arena *arena, const Value *values, uint32_t n, Tensor *results) {
    InterpEnv env = {.input = find_input, .user = c, .seed = 7, .step = 1};
    c->g->entries[ENTRY_EVAL].n = 0;
    for (uint32_t i = 0; i < n; i++)
        graph_add_root(c->g, ENTRY_EVAL, false, arena_printf(c->g->arena, "r%u", i), values[i]);
    cr_assert(interp_entry(c->g, ENTRY_EVAL, &env, arena, results, stderr));
}

Tensor check_eval(Check *c, Value v) {
    Tensor result;
    diag_print(c->g, stderr);
    cr_assert(v != 0);
    eval_into(c, c->arena, &v, 1, &result);
    return result;
}

bool check_is_finite(Check *c, Value v) {
    Tensor t = check_eval(c, v);
    if (dtype_info[t.type.dtype].cls != CLASS_FLT) return true;
    for (int64_t i = 0; i < type_elems(&t.type); i++)
        if (!isfinite(t.u.f[i])) return false;
    return true;
}

void check_same(Check *c, Value a, Value b, double tolerance, const char *what) {
    Tensor x = check_eval(c, a), y = check_eval(c, b);
    double largest = 1e-300;
    cr_assert(dims_equal(&x.type, &y.type) && x.type.dtype == y.type.dtype, "%s: types differ",
              what);
    for (int64_t i = 0; i < type_elems(&x.type); i++) largest = fmax(largest, fabs(y.u.f[i]));
    for (int64_t i = 0; i < type_elems(&x.type); i++)
        cr_assert(fabs(x.u.f[i] - y.u.f[i]) <= tolerance * largest,
                  "%s: element %lld: %.17g and %.17g", what, (long long)i, x.u.f[i], y.u.f[i]);
}

/* ---------------------------------------------------------------- gradients */

void check_backward(Graph *g, Value y, Value dy, const Value *x, uint32_t n, Value *d) {
    Arena *arena = arena_new();
    Value *adjoint = arena_alloc(arena, (y + 1) * sizeof *adjoint);
    adjoint[y] = dy;
    for (Value v = y; v > 0; v--) {
        Value *parts;
        if (!adjoint[v]) continue;
        uint32_t n_operands = graph_node(g, v)->n_operands;
        parts = arena_alloc(arena, (n_operands + 1) * sizeof *parts);
        op_vjp(g, v, adjoint[v], parts);
        for (uint32_t i = 0; i < n_operands; i++) {
            Value a = graph_operand(g, v, i);
            if (!parts[i]) continue;
            cr_assert(graph_node(g, parts[i])->type == graph_node(g, a)->type,
                      "%s: the gradient of operand %u has another type than the operand",
                      op_info[graph_op(g, v)].name, i);
            adjoint[a] = adjoint[a] ? build_binary(g, OP_add, adjoint[a], parts[i]) : parts[i];
        }
    }
    for (uint32_t i = 0; i < n; i++) d[i] = x[i] <= y ? adjoint[x[i]] : 0;
    arena_free(arena);
}

/* sum of w * y */
static double weighted(Check *c, Value y, const Tensor *w) {
    Arena *arena = arena_new();
    Tensor t;
    double sum = 0;
    eval_into(c, arena, &y, 1, &t);
    for (int64_t i = 0; i < type_elems(&t.type); i++) sum += t.u.f[i] * w->u.f[i];
    arena_free(arena);
    return sum;
}

static double difference(Check *c, Value y, const Tensor *w, double *x, double h) {
    double at = *x, f[4], steps[4] = {-2, -1, 1, 2};
    for (int i = 0; i < 4; i++) {
        *x = at + steps[i] * h;
        f[i] = weighted(c, y, w);
    }
    *x = at;
    return (8 * (f[2] - f[1]) - (f[3] - f[0])) / (12 * h);
}

static void check_input_gradient(Check *c, Value y, const Tensor *w, uint32_t i, const Tensor *d,
                                 const char *what) {
    int64_t n = type_elems(&d->type), n_checked = 0;
    double scale = 1e-3;
    for (int64_t k = 0; k < n; k++) scale = fmax(scale, fabs(d->u.f[k]));
    for (int64_t k = 0; k < n; k++) {
        double *x = &c->tensors[i].u.f[k];
        double coarse = difference(c, y, w, x, 2e-4), fine = difference(c, y, w, x, 1e-4);
        if (!isfinite(fine) || fabs(coarse - fine) > 1e-6 * scale) continue;
        cr_assert(fabs(d->u.f[k] - fine) <= 1e-6 * scale,
                  "%s: d x%u[%lld] is %.12g, finite differences say %.12g", what, i, (long long)k,
                  d->u.f[k], fine);
        n_checked++;
    }
    cr_assert(2 * n_checked >= n, "%s: only %lld of %lld elements of x%u are smooth", what,
              (long long)n_checked, (long long)n, i);
}

void check_gradient(Check *c, Value y, const char *what) {
    Value d[CHECK_MAX];
    uint32_t n = c->n;
    Type t = *graph_type_at(c->g, y);
    Value w = check_input(c, (DType)t.dtype, t.rank, t.dims, -1, 1);
    check_backward(c->g, y, w, c->inputs, n, d);
    cr_assert(!diag_has_errors(c->g), "%s: the gradient does not build", what);
    for (uint32_t i = 0; i < n; i++) {
        const Type *x = &c->tensors[i].type;
        if (dtype_info[x->dtype].cls != CLASS_FLT) {
            cr_assert(d[i] == 0, "%s: a gradient of integers", what);
            continue;
        }
        if (!d[i]) d[i] = build_splat(c->g, graph_type(c->g, *x), 0);
        Tensor gradient = check_eval(c, d[i]);
        check_input_gradient(c, y, &c->tensors[n], i, &gradient, what);
    }
    c->n = n;
}
