/* lora.c - low-rank adapters beside the matrices of linear layers (--lora RANK[:GLOB]).
 *
 * y = x W^T becomes y + alpha / rank (x A^T) B^T with new parameters A [rank, in] and B [out,
 * rank], which train; the product B A is never formed. A matrix is one of a linear layer where all
 * that read it, through transposes, reshapes that move no element and expansions, are dots of which
 * it is one operand; a layer that keeps it as [in, out] gets the same A and B. Without a glob every
 * such matrix is meant but the heads, whose results no further contraction reads. Names and layout
 * are those of peft (Hu et al. 2021, arXiv:2106.09685): base_model.model.MODULE.lora_A.weight. A
 * begins uniform in +-1/sqrt(in), drawn by Philox under seed 0 with the number of the adapter as
 * stream, B with zeros: the first step is the model's. Whether the model's own parameters train is
 * the frontend's business (params.c). */
#include "pass.h"
#include <fnmatch.h>
#include <math.h>
#include <string.h>

typedef struct Adapter {
    const char *weight, *a, *b;        /* names of states; a: NULL: not adapted */
    bool is_meant, is_linear, is_head; /* is_head: nothing contracts what some dot of it makes */
    uint32_t n_dots;
    int summed;         /* which axis of the matrix is `in`: the one that its first dot sums over */
    const char *others; /* what else reads it, for people */
} Adapter;

typedef struct Lora {
    PassContext *ctx;
    uint32_t rank;
    double scale;
    const char *glob;  /* NULL: every linear layer but the heads */
    Adapter *adapters; /* by state */
    uint32_t n_states;
} Lora;

/* Where a value has the two axes of the matrix that it shows; -1: an axis of extent 1, anywhere. */
typedef struct Sight {
    const State *state; /* NULL: it shows none */
    int64_t axis[2];
} Sight;

/* ---- what a value shows ---- */

static Sight nothing(void) { return (Sight){NULL, {-1, -1}}; }

static Sight through_transpose(const Graph *g, Value v, Sight s) {
    uint32_t n;
    const int64_t *perm = attr_list(g, v, A_PERM, &n);
    for (int k = 0; k < 2; k++) {
        int64_t from = s.axis[k];
        for (uint32_t i = 0; from >= 0 && i < n; i++)
            if (perm[i] == from) s.axis[k] = i;
    }
    return s;
}

static Sight through_expand(const Graph *g, Value v, Sight s) {
    const Type *to = graph_type_at(g, v), *from = graph_type_at(g, graph_operand(g, v, 0));
    for (int k = 0; k < 2; k++) {
        if (s.axis[k] < 0) continue;
        int64_t axis = s.axis[k] + to->rank - from->rank;
        if (to->dims[axis] != from->dims[s.axis[k]]) return nothing(); /* repeated, not shown */
        s.axis[k] = axis;
    }
    return s;
}

/* Axes of extent 1 may come and go. */
static Sight through_reshape(const Graph *g, Value v, Sight s) {
    const Type *to = graph_type_at(g, v), *from = graph_type_at(g, graph_operand(g, v, 0));
    Sight seen = {s.state, {-1, -1}};
    uint32_t j = 0;
    for (uint32_t i = 0; i < from->rank; i++) {
        if (from->dims[i] == 1) continue;
        while (j < to->rank && to->dims[j] == 1) j++;
        if (j == to->rank || to->dims[j] != from->dims[i]) return nothing();
        for (int k = 0; k < 2; k++)
            if (s.axis[k] == i) seen.axis[k] = j;
        j++;
    }
    return seen;
}

static Sight sight_of(const Graph *g, Value v) {
    OpCode op = graph_op(g, v);
    if (op == OP_state) {
        const State *s = graph_state(g, attr_s(g, v, A_NAME));
        bool is_matrix = s && s->cls == STATE_PARAM && g->types[s->type].rank == 2;
        return is_matrix ? (Sight){s, {0, 1}} : nothing();
    }
    if (op != OP_transpose && op != OP_expand && op != OP_reshape) return nothing();
    Sight s = sight_of(g, graph_operand(g, v, 0));
    if (!s.state) return s;
    return op == OP_transpose ? through_transpose(g, v, s)
           : op == OP_expand  ? through_expand(g, v, s)
                              : through_reshape(g, v, s);
}

/* The parameter that v is a view of, in whatever form; NULL: v is none. */
static const State *parameter_below(const Graph *g, Value v) {
    while (op_info[graph_op(g, v)].lower == LOWER_VIEW && graph_node(g, v)->n_operands == 1)
        v = graph_operand(g, v, 0);
    return graph_op(g, v) == OP_state ? graph_state(g, attr_s(g, v, A_NAME)) : NULL;
}

/* Which axis of the matrix (0, 1) the dot sums over, where operand `which` shows it; -1: it is no
 * product with the matrix as it is. */
static int summed_axis(const Graph *g, Value dot, uint32_t which, const Sight *s) {
    const Type *t = graph_type_at(g, graph_operand(g, dot, which));
    bool is_turned = attr_i(g, dot, which ? A_TB : A_TA, 0) != 0;
    int64_t summed = (which != 0) == is_turned ? t->rank - 1 : t->rank - 2,
            kept = 2 * (int64_t)t->rank - 3 - summed;
    for (int k = 0; k < 2; k++) {
        int64_t in = s->axis[k], out = s->axis[1 - k];
        if ((in == summed || (in < 0 && t->dims[summed] == 1)) &&
            (out == kept || (out < 0 && t->dims[kept] == 1)))
            return k;
    }
    return -1;
}

/* The operand of a dot that is the matrix of a layer, the second where both may be; 2: none. */
static uint32_t matrix_operand(const Graph *g, Value v, Sight *seen, int *summed) {
    if (graph_op(g, v) != OP_dot) return 2;
    for (uint32_t i = 2; i-- > 0;) {
        *seen = sight_of(g, graph_operand(g, v, i));
        *summed = seen->state ? summed_axis(g, v, i, seen) : -1;
        if (*summed >= 0) return i;
    }
    return 2;
}

/* ---- which matrices ---- */

static const char *reader_text(const Graph *g, Arena *a, Value v) {
    const Loc *l = &g->locs[graph_node(g, v)->loc];
    const char *op = l->op && *l->op ? l->op : op_info[graph_op(g, v)].name;
    return l->name && *l->name ? arena_printf(a, "%s (%s)", l->name, op) : op;
}

static void note_reader(Lora *p, const State *s, const char *reader) {
    Adapter *d = &p->adapters[s - p->ctx->g->states];
    if (d->others && strstr(d->others, reader)) return;
    d->others = arena_printf(p->ctx->arena, "%s%s%s", d->others ? d->others : "",
                             d->others ? ", " : "", reader);
}

static void look_at(Lora *p, Value v, bool feeds) {
    const Graph *g = p->ctx->g;
    Sight seen = nothing();
    int summed;
    uint32_t which = matrix_operand(g, v, &seen, &summed);
    bool is_view = op_info[graph_op(g, v)].lower == LOWER_VIEW && graph_node(g, v)->n_operands == 1;
    for (uint32_t i = 0; i < graph_node(g, v)->n_operands && !is_view; i++) {
        const State *s = parameter_below(g, graph_operand(g, v, i));
        if (!s) continue;
        Adapter *d = &p->adapters[s - g->states];
        if (i != which)
            note_reader(p, s, reader_text(g, p->ctx->arena, v));
        else
            d->n_dots++, d->is_head |= !feeds;
    }
}

/* feeds[v]: a contraction or a loop reads what v becomes. */
static bool *find_feeding(const Graph *g, Arena *a, const bool *live) {
    bool *feeds = arena_alloc(a, g->n_nodes);
    for (Value v = g->n_nodes - 1; v > 0; v--) {
        LowerClass lower = op_info[graph_op(g, v)].lower;
        bool does = feeds[v] || lower == LOWER_CONTRACT || lower == LOWER_LOOP;
        for (uint32_t i = 0; live[v] && i < graph_node(g, v)->n_operands; i++)
            feeds[graph_operand(g, v, i)] |= does;
    }
    return feeds;
}

static void look_at_entry(Lora *p, EntryKind e) {
    const Graph *g = p->ctx->g;
    const bool *live = graph_reachable(g, p->ctx->arena, e);
    const bool *feeds = find_feeding(g, p->ctx->arena, live);
    for (Value v = 1; v < g->n_nodes; v++)
        if (live[v]) look_at(p, v, feeds[v]);
    for (uint32_t i = 0; i < g->entries[e].n; i++) {
        const State *s = parameter_below(g, g->entries[e].roots[i].value);
        if (s) note_reader(p, s, "an output");
    }
}

static bool glob_meets(const char *glob, const State *s) {
    bool meets = !fnmatch(glob, s->name, 0);
    for (uint32_t i = 0; i < s->n_aliases && !meets; i++) meets = !fnmatch(glob, s->aliases[i], 0);
    for (uint32_t i = 0; i < s->n_holders && !meets; i++)
        meets = !s->holders[i].from && !fnmatch(glob, s->holders[i].initializer, 0);
    return meets;
}

static void report_unmatched(Lora *p) {
    Graph *g = p->ctx->g;
    const char **names = arena_alloc(p->ctx->arena, (g->n_states + 1) * sizeof *names);
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_states; i++)
        if (p->adapters[i].is_linear) names[n++] = g->states[i].name;
    if (!p->glob) {
        diag_add(g, E_OPTION, 0, "--lora: no linear layer lies before the head of this model");
        return;
    }
    diag_add(g, E_GLOB_UNMATCHED, 0, "--lora", p->glob);
    const char *closest = n ? closest_name(g->arena, p->glob, names, n) : NULL;
    if (n)
        diag_hint(g, "matrices of linear layers have names like %s", closest ? closest : names[0]);
}

/* Sets is_meant; vectors that a glob meets are no matrices and stay as they are. */
static bool choose(Lora *p) {
    Graph *g = p->ctx->g;
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_states; i++) {
        const State *s = &g->states[i];
        Adapter *d = &p->adapters[i];
        bool is_wide = g->types[s->type].rank >= 2 && s->cls == STATE_PARAM && !s->is_buffer;
        d->is_linear = is_wide && d->n_dots && !d->others;
        d->is_meant = p->glob ? is_wide && glob_meets(p->glob, s) : d->is_linear && !d->is_head;
        n += d->is_meant;
        if (!d->is_meant || d->is_linear) continue;
        if (d->others)
            diag_add(g, E_LORA_READER, 0, s->name, d->others);
        else
            diag_add(g, W_UNTRAINED, 0, s->name);
        d->is_meant = false;
    }
    if (!n) report_unmatched(p);
    return n && !diag_has_errors(g);
}

/* ---- the adapters ---- */

static const char *adapter_name(Graph *g, const char *weight, const char *which) {
    size_t n = strlen(weight), tail = sizeof ".weight" - 1;
    if (n > tail && !strcmp(weight + n - tail, ".weight")) n -= tail;
    return arena_printf(g->arena, "base_model.model.%.*s.%s.weight", (int)n, weight, which);
}

/* Uniform in [-bound, bound), as kaiming_uniform_(a=sqrt(5)) draws a linear's weights. */
static void *drawn(Graph *g, const Type *t, uint32_t stream, double bound) {
    uint32_t bytes = dtype_info[t->dtype].bytes, four[4] = {0};
    uint8_t *data = arena_alloc(g->arena, type_bytes(t) + 1);
    for (uint64_t e = 0; e < (uint64_t)type_elems(t); e++) {
        const uint32_t counter[4] = {(uint32_t)(e >> 2), (uint32_t)(e >> 34), 0, stream},
                       key[2] = {0, 0};
        if (e % 4 == 0) philox4x32(counter, key, four);
        double u = (double)(four[e % 4] >> 8) * 0x1p-24;
        elem_store((DType)t->dtype, data + e * bytes, (2 * u - 1) * bound);
    }
    return data;
}

static bool adapter_trains(const PassOptions *o, const char *name) {
    bool trains = true;
    for (uint32_t i = 0; i < o->n_adapter_rules; i++)
        if (!fnmatch(o->adapter_rules[i].glob, name, 0)) trains = o->adapter_rules[i].trains;
    return trains;
}

/* `summed`: the axis of the matrix that its dots sum over. */
static bool add_states(Lora *p, uint32_t index, int summed, uint32_t stream) {
    Graph *g = p->ctx->g;
    Adapter *d = &p->adapters[index];
    const char *weight = g->states[index].name;
    Type t = g->types[g->states[index].type];
    int64_t in = t.dims[summed], out = t.dims[1 - summed];
    Type a = {t.dtype, 2, {p->rank, in}}, b = {t.dtype, 2, {out, p->rank}};
    d->a = graph_str(g, adapter_name(g, weight, "lora_A"));
    d->b = graph_str(g, adapter_name(g, weight, "lora_B"));
    d->summed = summed;
    if (graph_state(g, d->a) || graph_state(g, d->b)) {
        diag_add(g, E_OPTION, 0,
                 arena_printf(g->arena, "--lora: the model has a parameter %s already", d->a));
        return false;
    }
    const void *start = drawn(g, &a, stream, 1 / sqrt((double)(in ? in : 1)));
    graph_add_state(g, (State){.name = d->a,
                               .type = graph_type(g, a),
                               .cls = STATE_PARAM,
                               .trains = adapter_trains(p->ctx->options, d->a),
                               .source = {.data = start, .bytes = type_bytes(&a)},
                               .adapts = weight,
                               .adapter_scale = p->scale,
                               .adapter_axis = summed});
    graph_add_state(g, (State){.name = d->b,
                               .type = graph_type(g, b),
                               .cls = STATE_PARAM,
                               .trains = adapter_trains(p->ctx->options, d->b),
                               .adapts = weight});
    return true;
}

/* In the order of the dots. */
static bool add_adapters(Lora *p) {
    Graph *g = p->ctx->g;
    uint32_t stream = 0;
    bool ok = true;
    for (Value v = 1; v < g->n_nodes && ok; v++) {
        Sight seen = nothing();
        int summed;
        if (matrix_operand(g, v, &seen, &summed) == 2) continue;
        Adapter *d = &p->adapters[seen.state - g->states];
        if (d->is_meant && !d->a)
            ok = add_states(p, (uint32_t)(seen.state - g->states), summed, stream++);
    }
    return ok;
}

/* x W^T is summed over `in` and gets (x A^T) B^T; where the same matrix is read the other way
 * round, x W gets (x B) A. */
static Value beside(Lora *p, Graph *g, Value x, bool is_turned, uint32_t which, Value a, Value b,
                    bool is_back) {
    Value first = is_back ? b : a, second = is_back ? a : b;
    Value low = which ? build_dot(g, x, first, is_turned, !is_back)
                      : build_dot(g, first, x, is_back, is_turned);
    if (p->scale != 1)
        low = build_binary(g, OP_mul, low, build_splat(g, graph_node(g, low)->type, p->scale));
    return which ? build_dot(g, low, second, false, !is_back)
                 : build_dot(g, second, low, is_back, false);
}

/* The dot with its adapter beside it. */
static Value visit(void *pass, const Graph *from, Value v, Graph *to, const Value *map) {
    Lora *p = pass;
    Sight seen = nothing();
    int summed;
    uint32_t which = matrix_operand(from, v, &seen, &summed);
    if (which == 2) return 0;
    const Adapter *d = &p->adapters[seen.state - from->states];
    if (!d->a || !pass_fuel(p->ctx)) return 0;
    Value y = node_copied(from, v, to, map), x = map[graph_operand(from, v, 1 - which)];
    bool is_turned = attr_i(from, v, which ? A_TA : A_TB, 0) != 0;
    Type t = *graph_type_at(to, y);
    Value wide = beside(p, to, x, is_turned, which, build_state(to, d->a), build_state(to, d->b),
                        summed != d->summed);
    return build_binary(to, OP_add, y, build_reshape(to, wide, t.rank, t.dims));
}

static void report(Lora *p) {
    Graph *g = p->ctx->g;
    long long n = 0, trained = 0, frozen = 0;
    for (uint32_t i = 0; i < g->n_states; i++) {
        const State *s = &g->states[i];
        if (s->cls == STATE_PARAM)
            *(s->trains ? &trained : &frozen) += type_elems(&g->types[s->type]);
        n += i < p->n_states && p->adapters[i].a;
    }
    diag_add(g, N_LORA, 0, (long long)p->rank, n, trained, frozen, p->scale);
}

bool pass_lora(PassContext *ctx) {
    const PassOptions *o = ctx->options;
    if (!o->lora_rank) return true;
    Lora p = {.ctx = ctx,
              .rank = o->lora_rank,
              .scale = o->lora_alpha > 0 ? o->lora_alpha / o->lora_rank : 1,
              .glob = o->lora_glob,
              .adapters = arena_alloc(ctx->arena, (ctx->g->n_states + 1) * sizeof(Adapter)),
              .n_states = ctx->g->n_states};
    look_at_entry(&p, ENTRY_MICRO);
    look_at_entry(&p, ENTRY_EVAL);
    if (!choose(&p) || !add_adapters(&p)) return false;
    pass_rewrite(ctx, visit, &p);
    report(&p);
    return !diag_has_errors(ctx->g);
}
