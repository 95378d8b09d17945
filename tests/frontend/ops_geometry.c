/* Tests that geometric operators compute what PyTorch computes, and have its gradients, where it is
 * easy to go wrong: on borders and ties, at infinities, NaN and least integers.
 * models/geometry.onnx is written by tests/gradients/torch_geometry.py, with what PyTorch says as
 * outputs NAME.grad and NAME.want; here the interpreter says the same in double. */
#include "import_helpers.h"
#include "passes.h"
#include <math.h>

typedef struct Known {
    Graph *g;
    Arena *arena;
} Known;

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

static void expect_equal(const char *name, const Tensor *got, const Tensor *want) {
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
            cr_expect(fabs(got->u.f[i] - want->u.f[i]) <= 1e-6 * scale,
                      "%s[%lld] is %.9g, not %.9g", name, (long long)i, got->u.f[i], want->u.f[i]);
}

static Model geometry(void) {
    return import_good((ImportOptions){.path = MODEL("geometry"), DIMS({"batch", 1})});
}

Test(geometry, odd_numbers_give_what_pytorch_gives) {
    Arena *arena = arena_new();
    Model m = geometry();
    Known k = {m.graph, arena};
    const Entry *e = &m.graph->entries[ENTRY_EVAL];
    const Tensor *all = values(&k, ENTRY_EVAL);
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n; i++) {
        const char *end = strstr(e->roots[i].name, ".want");
        if (!end) continue;
        char *name = arena_printf(arena, "%.*s", (int)(end - e->roots[i].name), e->roots[i].name);
        expect_equal(name, root_value(&k, ENTRY_EVAL, all, name), &all[i]);
        n++;
    }
    cr_assert_geq(n, 15);
    model_free(&m);
    arena_free(arena);
}

Test(geometry, gradients_are_pytorchs_on_borders_and_ties) {
    Arena *arena = arena_new();
    Model m = geometry();
    Known before = {m.graph, arena};
    const Tensor *outputs = values(&before, ENTRY_EVAL);
    uint32_t n = 0, n_states = m.graph->n_states;
    const Tensor **wants = arena_alloc(arena, (n_states + 1) * sizeof(Tensor *));
    for (uint32_t i = 0; i < n_states; i++)
        wants[i] = root_value(&before, ENTRY_EVAL, outputs,
                              arena_printf(arena, "%s.grad", m.graph->states[i].name));
    PassOptions o = {
        .ignore_index = -100, .fuel = -1, .batch = 1, .micro_batch = 1, .loss = "output:loss"};
    PassContext ctx = {.g = m.graph, .arena = arena, .options = &o, .log = stderr};
    bool ok = passes_run(&ctx, "loss,simplify,autodiff");
    if (!ok) diag_print(ctx.g, stderr);
    cr_assert(ok);
    Known after = {ctx.g, arena};
    const Tensor *found = values(&after, ENTRY_MICRO);
    for (uint32_t i = 0; i < n_states; i++) {
        const char *name = m.graph->states[i].name;
        const Tensor *want = wants[i], *got = root_value(&after, ENTRY_MICRO, found,
                                                         arena_printf(arena, "grad.%s", name));
        if (got || !want) {
            expect_equal(name, got, want);
            n++;
            continue;
        }
        for (int64_t at = 0; at < type_elems(&want->type); at++) /* cut off: boxes */
            cr_expect_eq(want->u.f[at], 0, "%s has a gradient", name);
    }
    cr_assert_geq(n, 100);
    if (ctx.g != m.graph) graph_free(ctx.g);
    model_free(&m);
    arena_free(arena);
}

Test(geometry, what_cannot_be_is_refused_at_once_and_by_name) {
    import_bad((ImportOptions){.path = MODEL("geometry_refused")}, 4,
               STRINGS("'quintic' is not known", "'mirror' is not known", "grid f32[3,4]",
                       "7 x 7 matrices", "f32[3,4] holds no square", "samples a bin has",
                       "'median' is not known", "[boxes, 5]", "length 0",
                       "f32[1,2,7,7] is no signal", "frames of 90", "from 7 to -1",
                       "'crop' is not known", "3 does not divide", "values and indices",
                       "an extent of -1", "offset f32[1,2,7,7]", "blocks of 90"));
}

/* Constants are tables of one axis at most, whatever the extents. */
Test(geometry, wide_images_and_long_signals_make_no_large_constants) {
    Model m = import_good((ImportOptions){.path = MODEL("geometry_wide")});
    Arena *arena = arena_new();
    const bool *is_reached = graph_reachable(m.graph, arena, ENTRY_EVAL);
    uint64_t bytes = 0;
    for (Value v = 1; v < m.graph->n_nodes; v++)
        if (is_reached[v] && graph_op(m.graph, v) == OP_const)
            bytes += attr_find(m.graph, v, A_DATA)->n;
    cr_assert_lt(bytes, 1 << 20);
    cr_assert_eq(output_type(&m, ENTRY_EVAL, "h")->dims[1], 998);
    model_free(&m);
    arena_free(arena);
}
