/* interp_scan.c - loops in the reference interpreter: the body's entry is interpreted once per
 * step.
 *
 * Slices are read in place; carries and stacks are copied. Nodes that are one loop run once: the
 * first of them leaves all results in a list that the others look into. */
#include "interp.h"
#include "scan.h"
#include <stdlib.h>
#include <string.h>

typedef struct ScanMemo {
    struct ScanMemo *next;
    Value scan;      /* the node that ran */
    Tensor *results; /* carries, then stacks */
} ScanMemo;

typedef struct Step { /* what the body's leaves mean in one step */
    const Body *body;
    const Tensor *carries;
    Tensor *slices; /* scanned, moved along by each step */
    const Tensor *const *invariants;
    double t;
} Step;

static const Tensor *step_input(void *user, const char *name) {
    const Step *s = user;
    unsigned long i = strtoul(name + 1, NULL, 10);
    if (name[0] == 'x' && i < s->body->n_scanned) return &s->slices[i];
    return name[0] == 'w' && i < s->body->n_invariants ? s->invariants[i] : NULL;
}

static const Tensor *step_state(void *user, const char *name) {
    const Step *s = user;
    unsigned long i = strtoul(name + 1, NULL, 10);
    return name[0] == 'c' && i < s->body->n_carries ? &s->carries[i] : NULL;
}

static double step_scalar(void *user, const char *name) {
    (void)name;
    return ((const Step *)user)->t;
}

static size_t tensor_size(const Type *t) { return (size_t)type_elems(t) * sizeof(double); }

typedef struct Loop {
    Eval *e;
    const Body *body;
    const Graph *plain;
    int64_t trips;
    Tensor *results; /* the first n_carries: the carries as they are now */
    Tensor *roots;
    Step step;
} Loop;

static void begin_results(Loop *l) {
    const Body *b = l->body;
    Arena *arena = l->e->arena;
    l->results = arena_alloc(arena, (b->n_carries + b->n_ys + 1u) * sizeof *l->results);
    for (uint32_t i = 0; i < b->n_carries + b->n_ys; i++) {
        Tensor *r = &l->results[i];
        if (i < b->n_carries)
            r->type = l->e->in[i]->type;
        else {
            const Type *step = body_type(b, 'y', i - b->n_carries);
            r->type = (Type){step->dtype, (uint8_t)(step->rank + 1), {l->trips}};
            memcpy(r->type.dims + 1, step->dims, step->rank * sizeof(int64_t));
        }
        r->u.p = arena_alloc(arena, tensor_size(&r->type) + 1);
        if (i < b->n_carries) memcpy(r->u.p, l->e->in[i]->u.p, tensor_size(&r->type));
    }
}

static void move_slices(Loop *l, int64_t t) {
    for (uint32_t i = 0; i < l->body->n_scanned; i++) {
        const Tensor *whole = l->e->in[l->body->n_carries + i];
        Tensor *s = &l->step.slices[i];
        s->type = *body_type(l->body, 'x', i);
        s->u.i = whole->u.i + t * type_elems(&s->type);
    }
}

/* What the roots of one step say goes into the carries and the stacks. */
static void keep_roots(Loop *l, int64_t t) {
    const Entry *entry = &l->plain->entries[ENTRY_MICRO];
    for (uint32_t i = 0; i < entry->n; i++) {
        const Root *r = &entry->roots[i];
        uint32_t at = (uint32_t)strtoul(r->name + 1, NULL, 10);
        Tensor *to = &l->results[r->is_update ? at : l->body->n_carries + at];
        int64_t elems = type_elems(&l->roots[i].type);
        int64_t *place = to->u.i + (r->is_update ? 0 : t * elems);
        if (elems) memcpy(place, l->roots[i].u.p, (size_t)elems * sizeof *place);
    }
}

/* One step with the number and the slices that l->step holds; its outputs become row `row`. */
static bool run_body(Loop *l, int64_t row) {
    const InterpEnv *outer = l->e->env;
    InterpEnv env = {.input = step_input,
                     .state = step_state,
                     .scalar = step_scalar,
                     .user = &l->step,
                     .seed = outer ? outer->seed : 0,
                     .step = outer ? outer->step : 0,
                     .micro = outer ? outer->micro : 0};
    Arena *scratch = arena_new();
    bool ok = interp_entry(l->plain, ENTRY_MICRO, &env, scratch, l->roots, l->e->errors);
    if (ok) keep_roots(l, row);
    arena_free(scratch);
    return ok;
}

static void begin_loop(Loop *l) {
    const Body *b = l->body;
    Eval *e = l->e;
    begin_results(l);
    l->plain = interp_plain(b->g, e->arena, ENTRY_MICRO);
    l->roots = arena_alloc(e->arena, (b->g->entries[ENTRY_MICRO].n + 1u) * sizeof *l->roots);
    l->step = (Step){.body = b,
                     .carries = l->results,
                     .slices = arena_alloc(e->arena, (b->n_scanned + 1u) * sizeof(Tensor)),
                     .invariants = e->in + b->n_carries + b->n_scanned};
}

static void end_loop(Loop *l) {
    if (l->plain != l->body->g) graph_free((Graph *)(uintptr_t)l->plain);
}

static bool run_loop(Loop *l) {
    bool is_reverse = attr_i(l->e->g, l->e->v, A_REVERSE, 0) != 0, ok = true;
    begin_loop(l);
    for (int64_t i = 0; ok && i < l->trips; i++) {
        int64_t t = is_reverse ? l->trips - 1 - i : i;
        l->step.t = (double)t;
        move_slices(l, t);
        ok = run_body(l, t);
    }
    end_loop(l);
    return ok;
}

bool eval_scan(Eval *e) {
    ScanMemo *m = *e->scans;
    while (m && !scans_are_siblings(e->g, m->scan, e->v)) m = m->next;
    if (!m) {
        Loop l = {.e = e, .body = scan_body(e->g, e->v), .trips = attr_i(e->g, e->v, A_TRIPS, 0)};
        if (!run_loop(&l)) return false;
        m = arena_alloc(e->arena, sizeof *m);
        *m = (ScanMemo){*e->scans, e->v, l.results};
        *e->scans = m;
    }
    const Tensor *r = &m->results[attr_i(e->g, e->v, A_RESULT, 0)];
    if (type_elems(&r->type)) memcpy(e->out.u.p, r->u.p, tensor_size(&r->type));
    return true;
}

int64_t scan_count(const Body *b, const Tensor *operands, int64_t limit) {
    Arena *arena = arena_new();
    uint32_t n = body_n_operands(b);
    const Tensor **in = arena_alloc(arena, (n + 1) * sizeof *in);
    for (uint32_t i = 0; i < n; i++) in[i] = &operands[i];
    Eval e = {.g = b->g, .in = in, .n_in = n, .arena = arena};
    Loop l = {.e = &e, .body = b, .trips = 1};
    int64_t done = 0;
    begin_loop(&l);
    bool goes_on = true, ok = true;
    for (; ok && goes_on && done < limit; done++) {
        l.step.t = (double)done;
        ok = run_body(&l, 0);
        goes_on = l.results[b->n_carries].u.i[0] != 0;
    }
    end_loop(&l);
    arena_free(arena);
    return ok ? done : 0;
}
