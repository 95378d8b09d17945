/* compare.c - is the first step of a compiled library the step that the reference interpreter
 * takes?
 *
 *   trainc-compare MODEL.onnx [compile options] --step DIR --device cpu|hip --data NAME=FILE ...
 * [--rtol X]
 *
 * Runs one optimizer step of DIR's library on the first samples of the data, and the same
 * micro-batches through interp_entry on the graph that the passes made of the model; compares the
 * loss and every gradient (relative L2 error). Exit 0 where all are within --rtol (1e-5). */
#include "feed.h"
#include "step_plan.h"
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>

typedef struct Compare {
    Options o;
    const char *step_dir, *device;
    NamedFile data[16];
    uint32_t n_data;
    double rtol;
    Feed feeds[16];
    PlannedStep planned;
    const Graph *g;
    int64_t micro;
    Tensor *states; /* by state index, as the entry sees them */
} Compare;

static bool take_own(Compare *c, const char *name, char *value) {
    if (!strcmp(name, "--step"))
        c->step_dir = value;
    else if (!strcmp(name, "--device"))
        c->device = value;
    else if (!strcmp(name, "--rtol"))
        c->rtol = strtod(value, NULL);
    else if (!strcmp(name, "--data") && c->n_data < 16 && strchr(value, '=')) {
        char *eq = strchr(value, '=');
        *eq = 0;
        c->data[c->n_data++] = (NamedFile){value, eq + 1};
    } else
        return false;
    return true;
}

static bool parse(Compare *c, int argc, char **argv) {
    char **rest = arena_alloc(c->o.arena, sizeof *rest * (size_t)(argc + 1));
    int n = 0;
    for (int i = 0; i < argc; i++)
        if (i + 1 < argc && take_own(c, argv[i], argv[i + 1]))
            i++;
        else
            rest[n++] = argv[i];
    return options_parse(&c->o, COMMAND_COMPILE, n, rest) && c->step_dir;
}

/* ---- what the interpreter's leaves mean ---- */

static Tensor zeros(Arena *a, const Type *t, double fill) {
    Tensor r = {.type = *t, .u.p = arena_alloc(a, 8 * (size_t)type_elems(t) + 8)};
    for (int64_t i = 0; i < type_elems(t); i++)
        if (dtype_info[t->dtype].cls == CLASS_FLT)
            r.u.f[i] = fill;
        else
            r.u.i[i] = (int64_t)fill;
    return r;
}

static Tensor initial(Compare *c, const State *s) {
    const Type *t = &c->g->types[s->type];
    if (s->source.data) return tensor_from_bytes(c->o.arena, *t, s->source.data);
    if (!s->source.file) return zeros(c->o.arena, t, s->fill);
    void *bytes = arena_alloc(c->o.arena, type_bytes(t) + 1);
    int fd = open(s->source.file, O_RDONLY);
    if (fd < 0 ||
        pread(fd, bytes, type_bytes(t), (off_t)s->source.offset) != (ssize_t)type_bytes(t))
        perror(s->source.file), exit(5);
    close(fd);
    return tensor_from_source(c->o.arena, *t, &s->source, bytes);
}

static const Tensor *get_state(void *user, const char *name) {
    Compare *c = user;
    return &c->states[graph_state(c->g, name) - c->g->states];
}

static const Feed *feed_of(const Compare *c, const char *name) {
    const Feed *only = NULL;
    for (uint32_t i = 0; i < c->n_data; i++)
        if (!strcmp(c->data[i].name, name)) return &c->feeds[i];
    for (uint32_t i = 0; i < c->n_data; i++)
        if (c->feeds[i].tensor.dtype >= TRAINC_I64) only = &c->feeds[i];
    return only; /* causal_lm: labels default to the ids */
}

static const Tensor *get_input(void *user, const char *name) {
    Compare *c = user;
    const Input *in = graph_input(c->g, name);
    const Type *t = &c->g->types[in->type];
    const trainc_tensor *f = &feed_of(c, name)->tensor;
    int64_t elems = type_elems(t);
    Type raw = {.dtype = (uint8_t)f->dtype, .rank = 1, .dims = {elems}};
    const char *from = (const char *)f->data +
                       (in->batch_axis == 0 ? c->micro * elems * dtype_info[f->dtype].bytes : 0);
    Tensor have = tensor_from_bytes(c->o.arena, raw, from),
           *out = arena_alloc(c->o.arena, sizeof *out);
    *out = zeros(c->o.arena, t, 0);
    bool is_float = dtype_info[raw.dtype].cls == CLASS_FLT,
         to_float = dtype_info[t->dtype].cls == CLASS_FLT;
    for (int64_t i = 0; i < elems; i++) {
        double x = is_float ? have.u.f[i] : (double)have.u.i[i];
        if (to_float)
            out->u.f[i] = x;
        else
            out->u.i[i] = (int64_t)x;
    }
    return out;
}

static double get_scalar(void *user, const char *name) {
    const Compare *c = user;
    if (!strcmp(name, "micro")) return (double)c->micro;
    if (!strcmp(name, "samples")) return (double)c->planned.plan.micro_batch;
    return !strcmp(name, "loss_scale") || !strcmp(name, "step") ? 1 : 0;
}

/* An entry once; states take their updates. */
static bool run_entry(Compare *c, EntryKind kind) {
    const Entry *e = &c->g->entries[kind];
    Tensor *results = arena_alloc(c->o.arena, sizeof *results * (e->n + 1));
    InterpEnv env = {get_input, get_state, get_scalar, c, 0, 1, (uint64_t)c->micro};
    if (!interp_entry(c->g, kind, &env, c->o.arena, results, stderr)) return false;
    for (uint32_t i = 0; i < e->n; i++)
        if (e->roots[i].is_update)
            c->states[graph_state(c->g, e->roots[i].name) - c->g->states] = results[i];
    return true;
}

/* init, then the micro entry k times. */
static bool interpret(Compare *c) {
    const Graph *g = c->g;
    c->states = arena_alloc(c->o.arena, sizeof *c->states * (g->n_states + 1));
    for (uint32_t i = 0; i < g->n_states; i++) c->states[i] = initial(c, &g->states[i]);
    bool good = run_entry(c, ENTRY_INIT);
    for (; good && c->micro < c->planned.plan.accumulation_steps; c->micro++)
        good = run_entry(c, ENTRY_MICRO);
    return good;
}

/* ---- the library ---- */

static int check(trainc_step *step, trainc_status status, const char *what) {
    if (status)
        fprintf(stderr, "%s: %s\n", what, step ? trainc_error(step) : "no memory"),
            exit((int)status);
    return 0;
}

static trainc_step *train_once(Compare *c, double *loss_sum) {
    char *base = arena_strdup(c->o.arena, c->o.model), *dot = strrchr(base, '.');
    if (dot) *dot = 0;
    const char *name = strrchr(base, '/') ? strrchr(base, '/') + 1 : base;
    void *lib = dlopen(arena_printf(c->o.arena, "%s/lib%s.so", c->step_dir, name), RTLD_NOW);
    const trainc_program *(*program)(void) = NULL;
    if (lib) *(void **)&program = dlsym(lib, arena_printf(c->o.arena, "%s_program", name));
    if (!program) fprintf(stderr, "%s\n", dlerror()), exit(1);
    trainc_step *step = NULL;
    trainc_options options = {.device = c->device, .set = TRAINC_SET_LR, .lr = 0};
    check(step, trainc_open(program(), &options, &step), "open");
    check(step, trainc_load(step, NULL), "load");
    trainc_tensor t[16];
    for (uint32_t i = 0; i < c->n_data; i++) {
        t[i] = c->feeds[i].tensor;
        const Input *in = graph_input(c->g, c->data[i].name);
        const Type *type = in ? &c->g->types[in->type] : NULL;
        if (type && t[i].rank == 1 && type->rank > 1) { /* a flat stream, cut into samples */
            t[i].rank = type->rank;
            memcpy(t[i].dims, type->dims, sizeof(int64_t) * type->rank);
        }
        if (t[i].rank && (!in || in->batch_axis == 0)) t[i].dims[0] = c->planned.plan.batch;
    }
    trainc_result result;
    check(step, trainc_train(step, t, c->n_data, &result), "train");
    *loss_sum = result.loss * (double)result.counted;
    return step;
}

/* Relative L2 error of a state of the step against the interpreter's. */
static double error_of(Compare *c, trainc_step *step, const State *s, double floor) {
    const Type *t = &c->g->types[s->type];
    void *bytes = arena_alloc(c->o.arena, type_bytes(t) + 1);
    check(step, trainc_get(step, s->name, bytes, type_bytes(t)), s->name);
    Tensor got = tensor_from_bytes(c->o.arena, *t, bytes);
    const Tensor *want = &c->states[s - c->g->states];
    double d2 = 0, w2 = 0;
    for (int64_t i = 0; i < type_elems(t); i++) {
        double d = got.u.f[i] - want->u.f[i];
        d2 += d * d, w2 += want->u.f[i] * want->u.f[i];
    }
    return sqrt(d2) / fmax(sqrt(w2), floor);
}

/* A gradient that is truly zero or cancels (a key bias before softmax, a bias before BatchNorm) has
 * rounding errors on the scale of all gradients: the floor is a tenth of the global norm, by the
 * root of its share of the elements, so that 1e-5 of it is the golden cases' floor of 1e-6. */
static double norm_and_elems(const Compare *c, double *elems) {
    double n2 = 0;
    for (uint32_t i = 0; i < c->g->n_states; i++)
        for (int64_t k = 0;
             c->g->states[i].cls == STATE_GRADIENT && k < type_elems(&c->states[i].type); k++)
            n2 += c->states[i].u.f[k] * c->states[i].u.f[k], ++*elems;
    return sqrt(n2);
}
int main(int argc, char **argv) {
    static Compare c = {.device = "cpu", .rtol = 1e-5};
    c.o.arena = arena_new();
    if (!parse(&c, argc, argv)) return 2;
    for (uint32_t i = 0; i < c.n_data; i++) {
        Fail fail = {0};
        trainc_symbol y = {.name = c.data[i].name, .cls = TRAINC_SYM_INPUT, .dtype = TRAINC_I64};
        if (feed_open(&c.feeds[i], &y, c.data[i].file, &fail))
            return fprintf(stderr, "%s\n", fail.text), 5;
    }
    if (step_plan(&c.planned, &c.o, !strncmp(c.device, "hip", 3), 0)) return 4;
    c.g = c.planned.passes.g;
    if (!interpret(&c)) return 1;
    double loss_sum, elems = 0, norm = norm_and_elems(&c, &elems);
    trainc_step *step = train_once(&c, &loss_sum);
    double want = get_state(&c, "loss_sum")->u.f[0], worst = fabs(loss_sum - want) / fabs(want);
    const char *where = "loss";
    uint32_t n = 1;
    for (uint32_t i = 0; i < c.g->n_states; i++) {
        const State *s = &c.g->states[i];
        if (s->cls != STATE_GRADIENT &&
            !(s->is_buffer && graph_root(c.g, ENTRY_MICRO, true, s->name)))
            continue;
        double e = error_of(&c, step, s,
                            0.1 * norm * sqrt((double)type_elems(&c.g->types[s->type]) / elems));
        if (e > c.rtol || c.o.verbose)
            printf("%-60s %.3g%s\n", s->name, e, e > c.rtol ? "  FAIL" : "");
        if (!(e <= worst)) worst = e, where = s->name;
        n++;
    }
    printf("%s on %s: %u tensors, largest relative error %.3g (%s)\n",
           worst <= c.rtol ? "PASS" : "FAIL", c.device, n, worst, where);
    trainc_close(step);
    step_free(&c.planned);
    arena_free(c.o.arena);
    return worst <= c.rtol ? 0 : 1;
}
