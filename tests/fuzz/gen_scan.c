/* gen_scan.c - random loops: a few nodes over carries, slices, the number of the step and values
 * from around the loop, scanned forwards or backwards.
 *
 * One in four has another loop within. A carry must not grow: what the next step gets is brought
 * back to its magnitude. Integer carries count. */
#include "gen.h"
#include "scan.h"
#include <assert.h>
#include <string.h>

enum { MAX_CARRIES = 3, MAX_SCANNED = 3, MAX_YS = 3, CARRY_ELEMS = 60 };

typedef struct ScanGen {
    ScanSpec spec;
    Value first[MAX_CARRIES], carry[MAX_CARRIES], next[MAX_CARRIES];
    Value xs[MAX_SCANNED], x[MAX_SCANNED], ys[MAX_YS];
    double y_mag[MAX_YS];
    bool y_exact[MAX_YS];
} ScanGen;

static Value hole_like(Gen *f, Value v) { return scan_hole(f->g, graph_node(f->g, v)->type); }

static void add_carries(Gen *f, Gen *body, ScanGen *s) {
    s->spec.n_carries = (uint32_t)gen_int(f, 0, MAX_CARRIES);
    for (uint32_t i = 0; i < s->spec.n_carries; i++) {
        Item x = gen_pick(f, gen_chance(f, 80) ? CLASS_FLT : CLASS_INT, 0, 3);
        bool counts = dtype_info[gen_dtype(f, x.v)].cls == CLASS_INT;
        if (type_elems(graph_type_at(f->g, x.v)) > CARRY_ELEMS || (counts && x.mag > 64))
            x = gen_fresh(f, DT_F32, 2, (int64_t[]){2, 3});
        x = gen_tame(f, x, counts ? 64 : 2);
        if (!counts && gen_chance(f, 20)) x.v = build_splat(f->g, graph_node(f->g, x.v)->type, 0.5);
        s->first[i] = x.v;
        s->carry[i] = hole_like(f, x.v);
        gen_keep(body, s->carry[i], counts ? 128 : 2, counts);
    }
}

/* Slices of whatever has as many rows as there are steps. */
static void add_scanned(Gen *f, Gen *body, ScanGen *s) {
    s->spec.n_scanned = (uint32_t)gen_int(f, s->spec.n_carries ? 0 : 1, MAX_SCANNED);
    for (uint32_t i = 0; i < s->spec.n_scanned; i++) {
        Item x = gen_pick(f, gen_chance(f, 85) ? CLASS_FLT : CLASS_INT, 1, 4);
        Type t = *graph_type_at(f->g, x.v),
             slice = {.dtype = t.dtype, .rank = (uint8_t)(t.rank - 1)};
        if (t.dims[0] != s->spec.trips) {
            t.dims[0] = s->spec.trips;
            if (type_elems(&t) > FUZZ_MAX_ELEMS) t = (Type){DT_F32, 2, {s->spec.trips, 3}};
            x = gen_fresh(f, t.dtype == DT_BF16 ? DT_F32 : (DType)t.dtype, t.rank, t.dims);
            t = *graph_type_at(f->g, x.v);
            slice = (Type){.dtype = t.dtype, .rank = (uint8_t)(t.rank - 1)};
        }
        memcpy(slice.dims, t.dims + 1, slice.rank * sizeof *slice.dims);
        s->xs[i] = x.v;
        s->x[i] = scan_hole(f->g, graph_type(f->g, slice));
        gen_keep(body, s->x[i], x.mag, x.exact);
    }
}

/* The last value of the body that has the carry's type, or a little of the carry and a number. */
static Value next_of(Gen *body, Value carry) {
    Graph *g = body->g;
    bool counts = dtype_info[gen_dtype(body, carry)].cls == CLASS_INT;
    for (uint32_t i = body->n; i-- > 0 && !counts;)
        if (graph_node(g, body->items[i].v)->type == graph_node(g, carry)->type &&
            body->items[i].v != carry)
            return gen_tame(body, body->items[i], 2).v;
    Value number =
        build_splat(g, graph_type_of(g, gen_dtype(body, carry), 0, NULL), counts ? 1 : 0.25);
    Value grown = build_binary(g, OP_add, carry, number);
    return counts ? grown : build_unary(g, OP_tanh, grown);
}

static void add_results(Gen *f, Gen *body, ScanGen *s) {
    for (uint32_t i = 0; i < s->spec.n_carries; i++)
        s->next[i] = gen_chance(f, 10) ? 0 : next_of(body, s->carry[i]);
    s->spec.n_ys = (uint32_t)gen_int(f, s->spec.n_carries ? 0 : 1, MAX_YS);
    for (uint32_t i = 0; i < s->spec.n_ys; i++) {
        int64_t a = gen_int(f, 0, body->n - 1), b = gen_int(f, 0, body->n - 1);
        const Item *y = &body->items[a > b ? a : b];
        s->ys[i] = y->v;
        s->y_mag[i] = y->mag;
        s->y_exact[i] = y->exact;
    }
}

static void scan_at(Gen *f, int depth) {
    ScanGen s = {
        .spec = {.name = "fuzz", .trips = gen_int(f, 1, 5), .is_reverse = gen_chance(f, 40)}};
    Gen body = {.g = f->g,
                .rng = f->rng ^ 0x5CA9,
                .has_specials = f->has_specials,
                .in_body = true,
                .max_rank = f->max_rank};
    s.spec.first = s.first, s.spec.carry = s.carry, s.spec.next = s.next;
    s.spec.xs = s.xs, s.spec.x = s.x, s.spec.ys = s.ys;
    for (uint32_t i = f->n > 3 ? f->n - 3 : 0; i < f->n; i++)
        gen_keep(&body, f->items[i].v, f->items[i].mag, f->items[i].exact);
    add_scanned(f, &body, &s);
    add_carries(f, &body, &s);
    if (gen_chance(f, 50)) {
        s.spec.t = scan_hole(f->g, graph_type_of(f->g, DT_I64, 0, NULL));
        gen_keep(&body, s.spec.t, 8, true);
    }
    for (int64_t n = gen_int(f, 1, 7); n > 0; n--) gen_grow(&body);
    if (depth == 0 && gen_chance(f, 25)) scan_at(&body, 1);
    add_results(f, &body, &s);
    Value finals[MAX_CARRIES + 1], stacks[MAX_YS + 1];
    bool built = scan_build(f->g, &s.spec, finals, stacks);
    assert(built);
    (void)built;
    for (uint32_t i = 0; i < s.spec.n_carries; i++) {
        bool counts = dtype_info[gen_dtype(f, finals[i])].cls == CLASS_INT;
        gen_keep(f, finals[i], counts ? 128 : 2, counts);
    }
    for (uint32_t i = 0; i < s.spec.n_ys; i++) gen_keep(f, stacks[i], s.y_mag[i], s.y_exact[i]);
}

void gen_scan(Gen *f) { scan_at(f, 0); }
