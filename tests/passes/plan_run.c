#include "plan_run.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

Value plan_input(Graph *g, const char *name, DType dtype, uint32_t rank, const int64_t *dims) {
    graph_add_input(
        g, (Input){.name = name, .type = graph_type_of(g, dtype, rank, dims), .batch_axis = -1});
    return build_input(g, name);
}

Value plan_state(Graph *g, const char *name, StateClass cls, DType dtype, uint32_t rank,
                 const int64_t *dims) {
    graph_add_state(g,
                    (State){.name = name, .cls = cls, .type = graph_type_of(g, dtype, rank, dims)});
    return build_state(g, name);
}

Planned plan_graph(Graph *g, bool for_gpu) {
    Planned p = {.g = g, .arena = arena_new(), .options = default_options()};
    p.options.for_gpu = for_gpu;
    p.options.batch = p.options.micro_batch = 1;
    PassContext ctx = {.g = g, .arena = p.arena, .options = &p.options, .log = stderr};
    cr_assert(graph_verify(g, stderr));
    cr_assert(pass_fuse(&ctx));
    cr_assert(pass_schedule(&ctx));
    cr_assert(pass_memplan(&ctx));
    p.plan = ctx.plan;
    p.ctx = ctx;
    cr_assert(plan_check(g, p.plan, stderr));
    p.ctx.options = NULL;
    return p;
}

void planned_free(Planned *p) {
    graph_free(p->g);
    arena_free(p->arena);
}

uint32_t plan_count(const Planned *p, EntryKind e, GroupKind kind) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->plan->n_groups; i++)
        n += p->plan->groups[i].entry == e && p->plan->groups[i].kind == kind;
    return n;
}

uint32_t plan_launches(const Planned *p, EntryKind e) { return p->plan->entries[e].n; }

/* ---- one launch ---- */

typedef struct Runner {
    const Graph *g;
    const Plan *plan;
    EntryKind entry;
    Arena *arena;
    const InterpEnv *env;
    unsigned char *memory; /* the step's arena */
    const struct Runner
        *around; /* in a loop: what runs it, its group there, and which turn it is */
    const Group *loop;
    int64_t turn;
    Graph *mini; /* the group as a graph of its own: what it reads are inputs named v<id> */
    Value *map;
    const Group *group;
} Runner;

static const Buffer *buffer_at(const Runner *r, uint32_t b) { return &r->plan->buffers[b - 1]; }

/* Bytes that the runner's plan alone knows. */
static unsigned char *own_bytes(const Runner *r, uint64_t offset) {
    if (!r->around) return r->memory + offset;
    return own_bytes(r->around, r->loop->workspace_offset) + offset - r->loop->loop->own_offset;
}

static unsigned char *bytes_at(const Runner *r, uint32_t b) {
    if (!r->around) return r->memory + buffer_at(r, b)->offset;
    const PlanPlace *p = &r->loop->loop->places[b - 1];
    cr_assert(p->is_bound);
    if (!p->buffer) return own_bytes(r, buffer_at(r, b)->offset);
    return bytes_at(r->around, p->buffer) + ((int64_t)p->offset + r->turn * p->stride);
}

static bool is_own_out(const Group *group, Value v) {
    for (uint32_t i = 0; i < group->n_outs; i++)
        if (group->outs[i] == v) return true;
    return false;
}

static Value copied(Runner *r, Value v, bool is_start) {
    const Graph *g = r->g;
    const Node *n = graph_node(g, v);
    const Type *t = graph_type_at(g, v);
    if (r->map[v]) return r->map[v];
    bool loads = leaf_in_memory(g, v) ||
                 (r->plan->entries[r->entry].buffer_of[v] && !is_own_out(r->group, v));
    if (loads && !is_start) {
        char *name = arena_printf(r->mini->arena, "v%u", v);
        return r->map[v] = plan_input(r->mini, name, (DType)t->dtype, t->rank, t->dims);
    }
    Value operands[64];
    cr_assert(n->n_operands <= 64);
    for (uint32_t i = 0; i < n->n_operands; i++)
        operands[i] = copied(r, graph_operand(g, v, i), false);
    AttrId attr = graph_attr(r->mini, g->attrs[n->attr].fields, g->attrs[n->attr].n);
    return r->map[v] = graph_emit(r->mini, (OpCode)n->op, operands, n->n_operands, attr,
                                  graph_type(r->mini, *t));
}

static const Tensor *from_memory(void *user, const char *name) {
    Runner *r = user;
    Value v = (Value)strtoul(name + 1, NULL, 10);
    Tensor *t = arena_alloc(r->arena, sizeof *t);
    *t = tensor_from_bytes(r->arena, *graph_type_at(r->g, v),
                           bytes_at(r, r->plan->entries[r->entry].buffer_of[v]));
    return t;
}

static double scalar_of(void *user, const char *name) {
    const Runner *r = user;
    if (r->around && !strcmp(name, "t"))
        return (double)(r->loop->loop->is_reverse ? r->loop->loop->trips - 1 - r->turn : r->turn);
    return r->env->scalar(r->env->user, name);
}

static void run_entry(Runner *r);
static void launch(Runner *r, const Group *group);

/* First values, then the body's own plan, turn after turn; what the body alone knows is NaN at the
 * beginning of each. */
static void launch_loop(Runner *r, const Group *group) {
    const PlanLoop *l = group->loop;
    for (uint32_t i = 0; i < l->n_inits; i++) launch(r, &l->inits[i]);
    Runner body = *r;
    body.g = l->body;
    body.plan = l->plan;
    body.entry = ENTRY_MICRO;
    body.around = r;
    body.loop = group;
    for (body.turn = 0; body.turn < l->trips; body.turn++) {
        memset(own_bytes(&body, l->own_offset), 0xff, group->workspace_bytes);
        run_entry(&body);
    }
}

static void launch(Runner *r, const Group *group) {
    bool copies = group->kind == GROUP_COPY;
    uint32_t n = copies ? 1 : group->n_outs;
    if (group->kind == GROUP_LOOP) {
        launch_loop(r, group);
        return;
    }
    r->group = group;
    r->mini = graph_new("group");
    r->map = arena_alloc(r->arena, sizeof *r->map * r->g->n_nodes);
    for (uint32_t i = 0; i < n; i++) {
        Value v = copies ? group->nodes[0] : group->outs[i];
        graph_add_root(r->mini, ENTRY_EVAL, false, arena_printf(r->mini->arena, "o%u", i),
                       copied(r, v, !copies));
    }
    const InterpEnv *env = r->env;
    InterpEnv mine = {.input = from_memory,
                      .scalar = scalar_of,
                      .user = r,
                      .seed = env->seed,
                      .step = env->step,
                      .micro = env->micro};
    Tensor *results = arena_alloc(r->arena, sizeof *results * (n + 1));
    cr_assert(interp_entry(r->mini, ENTRY_EVAL, &mine, r->arena, results, stderr));
    for (uint32_t i = 0; i < n; i++)
        tensor_to_bytes(
            &results[i],
            bytes_at(r, copies ? group->to
                               : r->plan->entries[r->entry].out_buffer_of[group->outs[i]]));
    graph_free(r->mini);
}

static void run_entry(Runner *r) {
    const EntryPlan *ep = &r->plan->entries[r->entry];
    for (uint32_t i = 0; i < ep->n; i++) launch(r, &r->plan->groups[ep->order[i]]);
}

/* ---- an entry ---- */

static void fill_lasting(Runner *r) {
    const Graph *g = r->g;
    memset(r->memory, 0xff, r->plan->arena_bytes);
    for (uint32_t i = 0; i < r->plan->n_buffers; i++) {
        const Buffer *b = buffer_at(r, i + 1);
        Tensor t = {0};
        if (b->constant) {
            cr_assert(interp_fold(g, b->constant, r->arena, &t, 1 << 20));
            tensor_to_bytes(&t, r->memory + b->offset);
        } else if (b->symbol && b->cls != BUF_IO) {
            t = *(b->cls == BUF_INPUTS ? r->env->input : r->env->state)(r->env->user, b->symbol);
            tensor_to_bytes(&t, r->memory + b->offset);
        }
    }
}

static const Buffer *root_buffer(const Runner *r, const Root *root) {
    for (uint32_t i = 0; i < r->plan->n_buffers; i++) {
        const Buffer *b = buffer_at(r, i + 1);
        if (!b->symbol || strcmp(b->symbol, root->name) || b->cls == BUF_INPUTS ||
            (b->cls != BUF_IO) != root->is_update)
            continue;
        if (b->cls != BUF_IO || b->entry == r->entry) return b;
    }
    cr_assert_fail("root %s has no buffer", root->name);
    return NULL;
}

/* Relative to the largest element, for stored values are rounded to their type on the way. */
static void compare(const Root *root, const Tensor *want, const Tensor *got, double tolerance) {
    bool is_float = dtype_info[want->type.dtype].cls == CLASS_FLT;
    double scale = 0;
    for (int64_t i = 0; i < type_elems(&want->type) && is_float; i++)
        if (fabs(want->u.f[i]) > scale && !isinf(want->u.f[i])) scale = fabs(want->u.f[i]);
    for (int64_t i = 0; i < type_elems(&want->type); i++) {
        bool same = is_float ? fabs(want->u.f[i] - got->u.f[i]) <= tolerance * (scale + 1e-2) ||
                                   want->u.f[i] == got->u.f[i] ||
                                   (isnan(want->u.f[i]) && isnan(got->u.f[i]))
                             : want->u.i[i] == got->u.i[i];
        cr_assert(same, "root %s, element %lld: %.9g, the plan makes %.9g", root->name,
                  (long long)i, is_float ? want->u.f[i] : (double)want->u.i[i],
                  is_float ? got->u.f[i] : (double)got->u.i[i]);
    }
}

void plan_run_entry(Planned *p, EntryKind e, const InterpEnv *env, double tolerance) {
    const Entry *entry = &p->g->entries[e];
    Tensor *want = arena_alloc(p->arena, sizeof *want * (entry->n + 1));
    cr_assert(interp_entry(p->g, e, env, p->arena, want, stderr));
    Runner r = {.g = p->g,
                .plan = p->plan,
                .arena = p->arena,
                .entry = e,
                .env = env,
                .memory = arena_alloc(p->arena, p->plan->arena_bytes + 1)};
    fill_lasting(&r);
    run_entry(&r);
    for (uint32_t i = 0; i < entry->n; i++) {
        Tensor got = tensor_from_bytes(p->arena, want[i].type,
                                       r.memory + root_buffer(&r, &entry->roots[i])->offset);
        compare(&entry->roots[i], &want[i], &got, tolerance);
    }
}

void plan_run_and_compare(Planned *p, double tolerance) {
    Env *env = arena_alloc(p->arena, sizeof *env);
    env_init(env, p->g, p->arena);
    for (int e = 0; e < N_ENTRIES; e++)
        if (p->g->entries[e].n) plan_run_entry(p, (EntryKind)e, &env->interp, tolerance);
}
