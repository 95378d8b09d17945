/* optimizer.c - the apply entry: from summed gradients to new weights.
 *
 * In: states grad.NAME, loss_sum and loss_count that micro sums over a step, and the output
 * static_count of apply. Out: apply gives loss, grad_norm (of the mean, before clipping), count and
 * grad_scale (the factor that makes a raw grad.NAME the mean), and updates every parameter that
 * trains and its moments by the rules of optimizer.def. Where no label may count in a step, every
 * update keeps the old value then. */
#include "optimizer_state.h"
#include "pass.h"
#include <assert.h>
#include <string.h>

typedef struct OptimizerRow {
    const char *name;
    uint32_t rank; /* of the parameters that it is for, at least */
    const char *moments, *rules;
} OptimizerRow;
static const OptimizerRow optimizers[] = {
#define OPTIM(name, rank, moments, rules) {#name, rank, moments, rules},
#include "optimizer.def"
#undef OPTIM
};
static const struct {
    const char *name, *of;
} int8_names[] = {
#define OPTIM(...)
#define OPTIM_INT8(name, of) {#name, #of},
#include "optimizer.def"
#undef OPTIM
};
enum { N_INT8 = sizeof int8_names / sizeof *int8_names };
static const char *const scalars[] = {"lr",  "weight_decay", "beta1",    "beta2", "bias1", "bias2",
                                      "eps", "momentum",     "nesterov", "first", "taken", "decay"};
enum { N_SCALARS = sizeof scalars / sizeof *scalars, MAX_BINDS = N_SCALARS + 16 };

static const OptimizerRow *find_optimizer(PassContext *ctx) {
    const char *name = ctx->options->optimizer ? ctx->options->optimizer : "adamw", *all = "";
    for (size_t i = 0; i < N_INT8; i++)
        if (!strcmp(int8_names[i].name, name)) {
            name = int8_names[i].of;
            ctx->options->state_int8 = true;
        }
    for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++) {
        if (!strcmp(optimizers[i].name, name)) return &optimizers[i];
        if (optimizers[i].rank) continue; /* another row has the name */
        all = arena_printf(ctx->arena, "%s%s%s", all, i ? ", " : "", optimizers[i].name);
    }
    for (size_t i = 0; i < N_INT8; i++)
        all = arena_printf(ctx->arena, "%s, %s", all, int8_names[i].name);
    diag_add(ctx->g, E_OPTIMIZER, 0, name);
    static const char *const names[] = {
#define OPTIM(name, ...) #name,
#define OPTIM_INT8(name, ...) #name,
#include "optimizer.def"
#undef OPTIM
#undef OPTIM_INT8
    };
    diag_hint(ctx->g, "%sone of %s",
              did_you_mean(ctx->arena, name, names, sizeof names / sizeof *names), all);
    return NULL;
}

bool optimizer_is_known(PassContext *ctx) { return find_optimizer(ctx) != NULL; }

typedef struct Optimizer {
    PassContext *ctx;
    Graph *g;
    const OptimizerRow *row;
    Value factor, keeps; /* keeps: predicate, false: nothing changes; 0: always true */
} Optimizer;

/* Locals of one parameter's rules; a later assignment of a name replaces the earlier one. */
typedef struct Names {
    RuleBind binds[MAX_BINDS];
    uint32_t n;
} Names;

static void assign(Names *names, const char *name, Value v) {
    for (uint32_t i = 0; i < names->n; i++)
        if (!strcmp(names->binds[i].name, name)) {
            names->binds[i].value = v;
            return;
        }
    names->binds[names->n++] = (RuleBind){name, v};
}

/* May the step's count be zero? Only where it is counted from what is fed. */
static bool count_may_be_zero(PassContext *ctx) {
    const Graph *g = ctx->g;
    Value count = graph_root(g, ENTRY_MICRO, true, "loss_count")->value;
    bool *fed = arena_alloc(ctx->arena, count + 1);
    for (Value v = 1; v <= count; v++) {
        fed[v] = graph_op(g, v) == OP_input;
        for (uint32_t i = 0; i < graph_node(g, v)->n_operands && !fed[v]; i++)
            fed[v] = fed[graph_operand(g, v, i)];
    }
    return fed[count];
}

static void add_update(const Optimizer *o, const char *name, Value old, Value v) {
    Graph *g = o->g;
    if (o->keeps) v = build_map(g, OP_where, (Value[]){o->keeps, v, old}, 3);
    graph_add_root(g, ENTRY_APPLY, true, name, v);
}

/* `moment` is its letter in the row: what stands behind it says along which axes it has one
 * element. */
static const char *moment_state(const Optimizer *o, const char *moment, const char *parameter,
                                TypeId type) {
    Graph *g = o->g;
    const char *name = arena_printf(g->arena, "%c.%s", *moment, parameter);
    Type t = g->types[type];
    if (moment[1] == '>') t.dims[t.rank - 1] = 1;
    if (moment[1] == '^') t.dims[t.rank - 2] = 1;
    if (!graph_state(g, name))
        graph_add_state(g, (State){.name = name,
                                   .type = graph_type(g, t),
                                   .cls = STATE_OPTIMIZER,
                                   .of = parameter});
    return name;
}

static const OptimizerRow *row_for(const OptimizerRow *row, uint32_t rank) {
    const char *name = row->name;
    while (row->rank > rank) row++;
    assert(!strcmp(row->name, name));
    return row;
}

/* @columns and @rows: some node that carries the axis */
static void assign_axes(const Optimizer *o, Names *names, Value w) {
    int64_t rank = graph_type_at(o->g, w)->rank;
    for (int64_t back = 1; back <= 2 && back <= rank; back++) {
        int64_t axis = rank - back;
        assign(names, back == 1 ? "@columns" : "@rows", build_reduce(o->g, OP_sum, w, &axis, 1));
    }
}

/* Splits " name = rule" in place; returns the rule. */
static const char *split_rule(char *text, const char **name) {
    char *eq = strchr(text, '=');
    *name = text + strspn(text, " ");
    ((char *)*name)[strcspn(*name, " =")] = 0;
    return eq + 1;
}

/* What lives between steps under one letter: the weight, or a moment, plain or packed. */
typedef struct Kept {
    const char *name;
    Value old;
    bool is_packed;
    PackedMoment packed;
} Kept;

/* m moments have a sign, v (means of squares) none. */
static void keep_moment(const Optimizer *o, Kept *kept, const char *moment, const char *parameter,
                        TypeId type) {
    Graph *g = o->g;
    const Type t = g->types[type];
    kept->is_packed = o->ctx->options->state_int8 && moment_is_packed(&t);
    if (!kept->is_packed) {
        kept->name = moment_state(o, moment, parameter, type);
        kept->old = build_state(g, kept->name);
        return;
    }
    kept->packed =
        (PackedMoment){.codes = arena_printf(g->arena, "%c.%s", *moment, parameter),
                       .largest = arena_printf(g->arena, "%c.%s.absmax", *moment, parameter),
                       .is_signed = *moment != 'v'};
    kept->name = kept->packed.codes;
    kept->old = packed_moment_read(g, &kept->packed, parameter, &t);
}

static void add_kept(const Optimizer *o, const Kept *kept, Value v) {
    Value codes, largest;
    if (!kept->is_packed) {
        add_update(o, kept->name, kept->old, v);
        return;
    }
    packed_moment_write(o->g, &kept->packed, v, &codes, &largest);
    add_update(o, kept->packed.codes, kept->packed.old_codes, codes);
    add_update(o, kept->packed.largest, kept->packed.old_largest, largest);
}

static void update_parameter(const Optimizer *o, const char *parameter, TypeId type, Value grad) {
    Graph *g = o->g;
    DType dtype = (DType)g->types[type].dtype;
    Names names = {.n = 0};
    Kept kept[128] = {0};
    Kept *w = &kept['w'];
    *w = (Kept){.name = parameter, .old = build_state(g, parameter)};
    g->loc = graph_loc_derived(g, LOC_OPTIMIZER, graph_node(g, w->old)->loc);
    const OptimizerRow *row = row_for(o->row, g->types[type].rank);
    for (const char *m = row->moments; *m; m++) {
        if (*m == '>' || *m == '^') continue;
        keep_moment(o, &kept[(unsigned char)*m], m, parameter, type);
        assign(&names, arena_printf(o->ctx->arena, "%c", *m), kept[(unsigned char)*m].old);
    }
    for (uint32_t i = 0; i < N_SCALARS; i++)
        assign(&names, scalars[i], build_cast(g, build_scalar(g, scalars[i], DT_F32), dtype));
    assign(&names, "w", w->old);
    assign_axes(o, &names, w->old);
    assign(&names, "g", build_binary(g, OP_mul, grad, build_cast(g, o->factor, dtype)));
    for (uint32_t i = 0;; i++) {
        const char *part = rule_part(o->ctx->arena, row->rules, i), *name;
        if (!part) break;
        const char *rule = split_rule(arena_strdup(o->ctx->arena, part), &name);
        assign(&names, name, rule_build(g, rule, names.binds, names.n, 0));
    }
    for (uint32_t i = 0; i < names.n; i++) {
        unsigned char c = (unsigned char)names.binds[i].name[0];
        if (!names.binds[i].name[1] && kept[c].name) add_kept(o, &kept[c], names.binds[i].value);
    }
}

bool pass_optimizer(PassContext *ctx) {
    Graph *g = ctx->g;
    Optimizer o = {.ctx = ctx, .g = g, .row = find_optimizer(ctx)};
    const Root *given = graph_root(g, ENTRY_APPLY, false, "static_count");
    if (!o.row || !given) return false;
    Value static_count = given->value;
    g->entries[ENTRY_APPLY].n = 0;
    g->loc = graph_loc_derived(g, LOC_OPTIMIZER, 0);
    Value count = build_state(g, "loss_count");
    Value inverse =
        build_binary(g, OP_div, static_count,
                     build_binary(g, OP_mul, count, build_scalar(g, "loss_scale", DT_F32)));
    if (count_may_be_zero(ctx))
        o.keeps = build_binary(g, OP_gt, count, build_splat(g, graph_node(g, count)->type, 0));

    uint32_t n_states = g->n_states, n = 0;
    Value *grads = arena_alloc(ctx->arena, sizeof *grads * (n_states + 1)), norm;
    for (uint32_t i = 0; i < n_states; i++)
        if (g->states[i].trains) grads[n++] = build_state(g, grad_name(g, g->states[i].name));
    graph_add_root(g, ENTRY_APPLY, false, "loss",
                   build_binary(g, OP_div, build_state(g, "loss_sum"), count));
    o.factor = clip_factor(ctx, grads, n, inverse, &norm);
    graph_add_root(g, ENTRY_APPLY, false, "grad_norm", norm);
    graph_add_root(g, ENTRY_APPLY, false, "count", count);
    graph_add_root(g, ENTRY_APPLY, false, "grad_scale", inverse);
    for (uint32_t i = 0, k = 0; i < n_states; i++)
        if (g->states[i].trains)
            update_parameter(&o, g->states[i].name, g->states[i].type, grads[k++]);
    g->loc = 0;
    return !diag_has_errors(g);
}
