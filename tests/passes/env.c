#include "env.h"
#include <criterion/criterion.h>
#include <string.h>

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15ull;
    return x ^ (x >> 29);
}

static double unit(const char *name, int64_t i) { /* in [0, 1), exact in f32 */
    uint64_t h = 7;
    for (const char *c = name; *c; c++) h = mix(h + (uint64_t)*c);
    return (double)(mix(mix(h + (uint64_t)i * 977)) >> 44) / (double)(1 << 20);
}

static Tensor make(Env *e, const char *name, Type t, int64_t limit) {
    Tensor r = {.type = t};
    int64_t n = type_elems(&t);
    r.u.p = arena_alloc(e->arena, (size_t)(n + 1) * sizeof(double));
    bool positive = !strncmp(name, "v.", 2) || !strncmp(name, "loss_", 5) || strstr(name, "var");
    for (int64_t i = 0; i < n; i++) {
        double u = unit(name, i);
        if (dtype_info[t.dtype].cls == CLASS_FLT)
            r.u.f[i] = positive ? u + 0.25 : 2 * u - 1;
        else if (t.dtype == DT_BOOL)
            r.u.i[i] = u < 0.5;
        else
            r.u.i[i] = (int64_t)(u * (double)(limit > 0 ? limit : 4));
    }
    return r;
}

static Tensor *find(Env *e, const char *name, const Type *t, int64_t limit) {
    for (uint32_t i = 0; i < e->n; i++)
        if (!strcmp(e->names[i], name)) return &e->values[i];
    cr_assert(e->n < 256);
    e->names[e->n] = name;
    e->values[e->n] = make(e, name, *t, limit);
    return &e->values[e->n++];
}

Tensor *env_state(Env *e, const char *name) {
    const State *s = graph_state(e->g, name);
    cr_assert(s, "no state %s", name);
    return find(e, s->name, &e->g->types[s->type], 0);
}

Tensor *env_input(Env *e, const char *name) {
    const Input *in = graph_input(e->g, name);
    cr_assert(in, "no input %s", name);
    return find(e, in->name, &e->g->types[in->type], in->index_limit);
}

static const Tensor *state_of(void *user, const char *name) { return env_state(user, name); }
static const Tensor *input_of(void *user, const char *name) { return env_input(user, name); }

static double scalar_of(void *user, const char *name) {
    Env *e = user;
    for (uint32_t i = 0; i < e->n_scalars; i++)
        if (!strcmp(e->scalar_names[i], name)) return e->scalars[i];
    return 0.5;
}

void env_set_scalar(Env *e, const char *name, double x) {
    for (uint32_t i = 0; i < e->n_scalars; i++)
        if (!strcmp(e->scalar_names[i], name)) {
            e->scalars[i] = x;
            return;
        }
    e->scalar_names[e->n_scalars] = name;
    e->scalars[e->n_scalars++] = x;
}

void env_init(Env *e, const Graph *g, Arena *arena) {
    *e = (Env){.g = g, .arena = arena};
    e->interp = (InterpEnv){
        .input = input_of, .state = state_of, .scalar = scalar_of, .user = e, .seed = 1, .step = 1};
    env_set_scalar(e, "loss_scale", 1);
    env_set_scalar(e, "samples", 1e6);
    env_set_scalar(e, "clip", 1e30);
    env_set_scalar(e, "micro", 0);
}

Tensor *env_run(Env *e, const Graph *g, EntryKind kind) {
    Tensor *results = arena_alloc(e->arena, sizeof *results * (g->entries[kind].n + 1));
    e->g = g;
    cr_assert(interp_entry(g, kind, &e->interp, e->arena, results, stderr));
    return results;
}

Tensor env_root(Env *e, const Graph *g, EntryKind kind, bool is_update, const char *name) {
    Tensor *results = env_run(e, g, kind);
    const Root *r = graph_root(g, kind, is_update, name);
    cr_assert(r, "no root %s", name);
    return results[r - g->entries[kind].roots];
}

Graph *parse_or_fail(const char *text, const char *file) {
    Graph *g = graph_parse(text, file, stderr);
    cr_assert(g, "%s does not parse", file);
    return g;
}

PassOptions default_options(void) { return (PassOptions){.ignore_index = -100, .fuel = -1}; }
