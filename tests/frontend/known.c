/* known.c - compares what the interpreter says of a model with what the model's file says; known.h.
 */
#include "known.h"
#include "import_helpers.h"
#include "passes.h"
#include <math.h>

static const Tensor *state_of(void *user, const char *name) {
    Known *k = user;
    const State *s = graph_state(k->g, name);
    Tensor *t = arena_alloc(k->arena, sizeof *t);
    char *bytes = arena_alloc(k->arena, s->source.bytes + 1);
    FILE *f = s->source.file ? fopen(s->source.file, "rb") : NULL;
    if (f) {
        cr_assert(!fseek(f, (long)s->source.offset, SEEK_SET));
        cr_assert_eq(fread(bytes, 1, s->source.bytes, f), s->source.bytes);
        fclose(f);
    }
    *t = tensor_from_bytes(k->arena, k->g->types[s->type], f ? bytes : s->source.data);
    return t;
}

static const Tensor *input_of(void *user, const char *name) {
    Known *k = user;
    Tensor *t = arena_alloc(k->arena, sizeof *t);
    cr_assert_str_eq(name, "one");
    *t = tensor_from_bytes(k->arena, k->g->types[graph_input(k->g, name)->type], &(float){1});
    return t;
}

static double scalar_of(void *user, const char *name) {
    (void)user;
    return !strcmp(name, "micro") ? 0 : 1;
}

static Tensor *values(Known *k, EntryKind entry) {
    InterpEnv env = {.input = input_of, .state = state_of, .scalar = scalar_of, .user = k};
    Tensor *t = arena_alloc(k->arena, (k->g->entries[entry].n + 1) * sizeof *t);
    cr_assert(interp_entry(k->g, entry, &env, k->arena, t, stderr));
    return t;
}

static const Tensor *root_value(const Known *k, EntryKind entry, const Tensor *all,
                                const char *name) {
    const Root *r = graph_root(k->g, entry, false, name);
    return r ? &all[r - k->g->entries[entry].roots] : NULL;
}

static void expect_equal(const char *name, const Tensor *got, const Tensor *want,
                         double tolerance) {
    cr_assert(got, "%s is missing", name);
    cr_assert(want, "nothing is known of %s", name);
    cr_assert(dims_equal(&got->type, &want->type), "%s has other dims", name);
    bool is_float = dtype_info[want->type.dtype].cls == CLASS_FLT;
    double scale = 1e-3;
    for (int64_t i = 0; is_float && i < type_elems(&want->type); i++)
        if (isfinite(want->u.f[i])) scale = fmax(scale, fabs(want->u.f[i]));
    for (int64_t i = 0; i < type_elems(&want->type); i++)
        if (!is_float)
            cr_expect_eq(got->u.i[i], want->u.i[i], "%s[%lld] is %lld, not %lld", name,
                         (long long)i, (long long)got->u.i[i], (long long)want->u.i[i]);
        else if (!isfinite(want->u.f[i]))
            cr_expect(got->u.f[i] == want->u.f[i] || (isnan(got->u.f[i]) && isnan(want->u.f[i])),
                      "%s[%lld] is %g, not %g", name, (long long)i, got->u.f[i], want->u.f[i]);
        else
            cr_expect(fabs(got->u.f[i] - want->u.f[i]) <= tolerance * scale,
                      "%s[%lld] is %.9g, not %.9g", name, (long long)i, got->u.f[i], want->u.f[i]);
}

uint32_t known_results(Known *k, double tolerance) {
    const Entry *e = &k->g->entries[ENTRY_EVAL];
    const Tensor *all = values(k, ENTRY_EVAL);
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n; i++) {
        const char *end = strstr(e->roots[i].name, ".want");
        if (!end) continue;
        char *name =
            arena_printf(k->arena, "%.*s", (int)(end - e->roots[i].name), e->roots[i].name);
        expect_equal(name, root_value(k, ENTRY_EVAL, all, name), &all[i], tolerance);
        n++;
    }
    return n;
}

/* What the file says, per state. */
static const Tensor **known_of_states(Graph *g, Arena *arena) {
    Known k = {g, arena};
    const Tensor *outputs = values(&k, ENTRY_EVAL);
    const Tensor **wants = arena_alloc(arena, (g->n_states + 1) * sizeof(Tensor *));
    for (uint32_t i = 0; i < g->n_states; i++)
        wants[i] =
            root_value(&k, ENTRY_EVAL, outputs, arena_printf(arena, "%s.grad", g->states[i].name));
    return wants;
}

uint32_t known_gradients(Graph *g, Arena *arena, double tolerance) {
    const Tensor **wants = known_of_states(g, arena);
    uint32_t n = 0, n_states = g->n_states;
    PassOptions o = {
        .ignore_index = -100, .fuel = -1, .batch = 1, .micro_batch = 1, .loss = "output:loss"};
    PassContext ctx = {.g = g, .arena = arena, .options = &o, .log = stderr};
    bool ok = passes_run(&ctx, "loss,simplify,autodiff,simplify");
    if (!ok) diag_print(ctx.g, stderr);
    cr_assert(ok);
    Known after = {ctx.g, arena};
    const Tensor *found = values(&after, ENTRY_MICRO);
    for (uint32_t i = 0; i < n_states; i++) {
        const char *name = g->states[i].name;
        const Tensor *got =
            root_value(&after, ENTRY_MICRO, found, arena_printf(arena, "grad.%s", name));
        if (got) {
            expect_equal(name, got, wants[i], tolerance);
            n++;
            continue;
        }
        cr_assert(wants[i], "nothing is known of %s", name);
        for (int64_t at = 0; at < type_elems(&wants[i]->type); at++)
            cr_expect_eq(wants[i]->u.f[at], 0, "%s has a gradient", name);
    }
    if (ctx.g != g) graph_free(ctx.g);
    return n;
}
