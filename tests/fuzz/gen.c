/* gen.c - the random graph generator's frame: leaves, the pool of values, entries, and the data
 * that feeds them. */
#include "gen.h"
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* splitmix64 */
static uint64_t next(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

int64_t gen_int(Gen *f, int64_t lo, int64_t hi) {
    return lo + (int64_t)(next(&f->rng) % (uint64_t)(hi - lo + 1));
}

bool gen_chance(Gen *f, int percent) { return gen_int(f, 0, 99) < percent; }

DType gen_dtype(const Gen *f, Value v) { return (DType)graph_type_at(f->g, v)->dtype; }

void gen_keep(Gen *f, Value v, double mag, bool exact) {
    assert(v && "the generator builds only what types");
    const Type *t = graph_type_at(f->g, v);
    if (f->in_body && t->rank == MAX_RANK) return;
    if (f->n < FUZZ_ITEMS && type_elems(t) <= FUZZ_MAX_ELEMS)
        f->items[f->n++] = (Item){v, mag, exact};
}

/* ---------------------------------------------------------------- leaves */

static Item fresh_input(Gen *f, TypeId type, double mag) {
    const char *name = arena_printf(f->g->arena, "x%u", f->g->n_inputs);
    graph_add_input(f->g, (Input){.name = graph_str(f->g, name), .type = type, .batch_axis = -1});
    return (Item){build_input(f->g, name), mag, true};
}

static Item fresh_state(Gen *f, TypeId type, double mag) {
    const char *name = arena_printf(f->g->arena, "w%u", f->g->n_states);
    graph_add_state(
        f->g,
        (State){.name = graph_str(f->g, name), .type = type, .cls = STATE_PARAM, .trains = true});
    return (Item){build_state(f->g, name), mag, true};
}

/* One in nine is special, where that is asked for. */
static void random_element(uint64_t *rng, DType d, int64_t limit, bool specials, void *at) {
    static const double floats[] = {NAN, INFINITY, -INFINITY, -0.0};
    static const int64_t integers[] = {INT64_MIN, INT64_MAX, INT32_MIN, INT32_MAX, INT16_MIN,
                                       INT16_MAX, INT8_MIN,  INT8_MAX,  -1,        UINT32_MAX};
    int64_t x = (int64_t)(next(rng) % 257) - 128;
    bool is_special = specials && limit == 0 && next(rng) % 9 == 0;
    if (d == DT_F8E8M0) x = 1 + (x < 0 ? -x : x); /* no sign, no zero */
    if (is_special && dtype_info[d].cls == CLASS_FLT)
        elem_store(d, at, floats[next(rng) % 4]);
    else if (is_special && d != DT_BOOL)
        elem_store_int(d, at, integers[next(rng) % 10]);
    else if (dtype_info[d].cls == CLASS_FLT)
        elem_store(d, at, (double)x / 64);
    else if (d == DT_BOOL)
        elem_store_int(d, at, x & 1);
    else if (limit > 0)
        elem_store_int(d, at, (x + 128) % limit);
    else
        elem_store_int(d, at, x % 6);
}

static Item fresh_const(Gen *f, TypeId type, double mag) {
    unsigned char bytes[FUZZ_MAX_ELEMS * 8];
    const Type *t = &f->g->types[type];
    uint32_t size = dtype_info[t->dtype].bytes;
    for (int64_t i = 0; i < type_elems(t); i++)
        random_element(&f->rng, (DType)t->dtype, 0, f->has_specials, bytes + (size_t)i * size);
    return (Item){build_const(f->g, type, bytes), mag, true};
}

Item gen_fresh(Gen *f, DType d, uint32_t rank, const int64_t *dims) {
    TypeId type = graph_type_of(f->g, d, rank, dims);
    double mag = d == DT_BOOL ? 1 : dtype_info[d].cls == CLASS_FLT ? 2 : gen_integer_mag(d, 5);
    if (f->has_specials && d != DT_BOOL) mag = INFINITY;
    assert(type_elems(&f->g->types[type]) <= FUZZ_MAX_ELEMS);
    if (gen_chance(f, 40)) return fresh_input(f, type, mag);
    if (dtype_info[d].cls == CLASS_FLT && gen_chance(f, 50)) return fresh_state(f, type, mag);
    if ((d == DT_F32 ||
         (f->has_all_types && dtype_info[d].bytes > 1 && dtype_info[d].cls == CLASS_FLT)) &&
        gen_chance(f, 20)) {
        AttrField stream = attr_int(A_STREAM, gen_int(f, 0, 9));
        return (Item){graph_emit(f->g, OP_random, NULL, 0, graph_attr(f->g, &stream, 1), type), 1,
                      dtype_info[d].bytes >= 4};
    }
    if ((d == DT_I64 || (f->has_all_types && dtype_info[d].cls == CLASS_INT)) && rank &&
        gen_chance(f, 30))
        return (Item){build_iota(f->g, type, gen_int(f, 0, rank - 1)), gen_integer_mag(d, 70),
                      true};
    if (d == DT_F32 && !rank && gen_chance(f, 50))
        return (Item){build_scalar(f->g, "lr", d), 2, true};
    if (d == DT_I64 && !rank && gen_chance(f, 50))
        return (Item){build_scalar(f->g, "step", d), 8, true};
    return fresh_const(f, type, mag);
}

/* Integers are i64, in every sixth graph of any type. */
static DType integer_type(Gen *f) {
    static const DType types[] = {DT_I64, DT_I32, DT_I16, DT_I8, DT_U64, DT_U32,
                                  DT_U16, DT_U8,  DT_I4,  DT_U4, DT_I2,  DT_U2};
    return f->has_all_types ? types[gen_int(f, 0, 11)] : DT_I64;
}

double gen_integer_mag(DType d, double mag) {
    bool is_unsigned = d == DT_U64 || d == DT_U32 || d == DT_U16 || d == DT_U8;
    double most = ldexp(1, 8 * (int)dtype_info[d].bytes - !is_unsigned);
    if (dtype_info[d].cls != CLASS_INT) return mag;
    return is_unsigned || mag > most ? most : mag;
}

static Item fresh_any(Gen *f, DTypeClass cls, uint32_t min_rank, uint32_t max_rank) {
    static const int64_t extents[] = {1, 2, 2, 3, 3, 4, 5, 7, 8};
    int64_t dims[MAX_RANK], elems = 1;
    uint32_t rank = (uint32_t)gen_int(f, min_rank, max_rank < f->max_rank ? max_rank : f->max_rank);
    for (uint32_t i = 0; i < rank; i++) {
        dims[i] = extents[gen_int(f, 0, 8)];
        if (elems * dims[i] > 120) dims[i] = 1;
        elems *= dims[i];
    }
    if (rank == 1 && gen_chance(f, 20)) dims[0] = gen_int(f, 9, 70);
    if (rank && f->takes_empty && gen_chance(f, 15)) dims[gen_int(f, 0, rank - 1)] = 0;
    DType d = cls == CLASS_BOOL                       ? DT_BOOL
              : cls == CLASS_INT                      ? integer_type(f)
              : gen_chance(f, 70)                     ? DT_F32
              : f->has_all_types && gen_chance(f, 60) ? (gen_chance(f, 50) ? DT_F64 : DT_F16)
                                                      : DT_BF16;
    return gen_fresh(f, d, rank, dims);
}

/* ---------------------------------------------------------------- the pool */

static bool is_fit(const Gen *f, Value v, DTypeClass cls, uint32_t min_rank, uint32_t max_rank) {
    const Type *t = graph_type_at(f->g, v);
    return dtype_info[t->dtype].cls == cls && t->rank >= min_rank && t->rank <= max_rank &&
           (f->takes_empty || type_elems(t) > 0);
}

/* Later values are likelier, so that graphs grow deep. */
Item gen_pick(Gen *f, DTypeClass cls, uint32_t min_rank, uint32_t max_rank) {
    for (int tries = 0; f->n && tries < 12; tries++) {
        int64_t a = gen_int(f, 0, f->n - 1), b = gen_int(f, 0, f->n - 1);
        const Item *item = &f->items[a > b ? a : b];
        if (is_fit(f, item->v, cls, min_rank, max_rank)) return *item;
    }
    return fresh_any(f, cls, min_rank, max_rank);
}

Item gen_tame(Gen *f, Item x, double mag) {
    if (x.mag <= mag) return x;
    return (Item){build_unary(f->g, OP_tanh, x.v), 1, false};
}

Item gen_finite(Gen *f, Item x) {
    if (!f->has_specials) return x;
    Value odd = build_binary(f->g, OP_or, build_unary(f->g, OP_isnan, x.v),
                             build_unary(f->g, OP_isinf, x.v));
    Value half = build_splat(f->g, graph_type_of(f->g, gen_dtype(f, x.v), 0, NULL), 0.5);
    return (Item){build_map(f->g, OP_where, (Value[]){odd, half, x.v}, 3), 64, x.exact};
}

Item gen_float_like(Gen *f, Item like, uint32_t rank, const int64_t *dims) {
    DType d = gen_dtype(f, like.v);
    for (uint32_t i = 0; i < f->n; i++) {
        const Type *t = graph_type_at(f->g, f->items[i].v);
        if (t->dtype != d || t->rank != rank ||
            (rank && memcmp(t->dims, dims, rank * sizeof *dims)) || gen_chance(f, 50))
            continue;
        return f->items[i];
    }
    return gen_fresh(f, d, rank, dims);
}

/* i64 in [0, limit): an input with that limit, a constant, or any integers brought into range. */
Value gen_indices(Gen *f, uint32_t rank, const int64_t *dims, int64_t limit) {
    Item x = gen_fresh(f, DT_I64, rank, dims);
    if (graph_op(f->g, x.v) == OP_input && gen_chance(f, 70)) {
        graph_input(f->g, attr_s(f->g, x.v, A_NAME))->index_limit = limit;
        return x.v;
    }
    Value bound = build_splat(f->g, graph_type_of(f->g, DT_I64, 0, NULL), (double)limit);
    if (f->has_specials) /* the smallest has no absolute value */
        return build_unary(f->g, OP_abs, build_binary(f->g, OP_irem, x.v, bound));
    return build_binary(f->g, OP_irem, build_unary(f->g, OP_abs, x.v), bound);
}

/* ---------------------------------------------------------------- graphs */

void gen_grow(Gen *f) {
    static void (*const families[])(Gen *) = {gen_map,      gen_map,    gen_map,   gen_view,
                                              gen_view,     gen_window, gen_index, gen_reduce,
                                              gen_contract, gen_macro};
    families[gen_int(f, 0, sizeof families / sizeof *families - 1)](f);
}

static Item pick_any(Gen *f) {
    int64_t a = gen_int(f, 0, f->n - 1), b = gen_int(f, 0, f->n - 1);
    return f->items[a > b ? a : b];
}

static void add_outputs(Gen *f, EntryKind kind) {
    int64_t n = gen_int(f, 1, 4);
    for (int64_t i = 0; i < n; i++)
        graph_add_root(f->g, kind, false,
                       graph_str(f->g, arena_printf(f->g->arena, "y%lld", (long long)i)),
                       i ? pick_any(f).v : f->items[f->n - 1].v);
}

/* A state becomes some value of its type, or itself and a little of another. */
static void add_updates(Gen *f) {
    for (uint32_t i = 0; i < f->g->n_states; i++) {
        const State s = f->g->states[i];
        Value old = build_state(f->g, s.name), value = 0;
        if (gen_chance(f, 30)) continue;
        const DTypeInfo *type = &dtype_info[f->g->types[s.type].dtype];
        if (type->cls == CLASS_FLT && type->bytes == 1) continue; /* nobody computes in them */
        for (uint32_t j = f->n; j > 0 && !value; j--)
            if (graph_node(f->g, f->items[j - 1].v)->type == s.type && f->items[j - 1].v != old)
                value = f->items[j - 1].v;
        if (!value)
            value = build_binary(
                f->g, OP_mul, old,
                build_splat(f->g, graph_type_of(f->g, gen_dtype(f, old), 0, NULL), 0.5));
        graph_add_root(f->g, ENTRY_MICRO, true, s.name, value);
    }
}

Graph *fuzz_graph(uint64_t seed) {
    bool is_wide = seed % 8 == 6, has_specials = seed % 7 == 5;
    Gen f = {.g = graph_new(has_specials ? "fuzz_specials" : "fuzz"),
             .rng = seed * 0xD1342543DE82EF95u + 7,
             .has_all_types = seed % 6 == 4,
             .has_specials = has_specials,
             .max_rank = is_wide ? MAX_RANK : 4};
    int64_t n_leaves = gen_int(&f, 2, 4), n = gen_int(&f, 3, 14);
    for (int64_t i = 0; i < n_leaves; i++) {
        Item x = fresh_any(&f, i || gen_chance(&f, 80) ? CLASS_FLT : CLASS_INT, 0, 4);
        gen_keep(&f, x.v, x.mag, x.exact);
    }
    for (int64_t i = 0; i < n; i++) {
        gen_grow(&f);
        if (is_wide && i % 3 == 1) gen_empty(&f);
        if (f.has_all_types && i % 4 == 1) gen_small(&f);
        if (seed % 5 == 3 && i % 4 == 2)
            gen_scan(&f); /* other seeds are what they were before there were loops */
    }
    add_outputs(&f, ENTRY_EVAL);
    add_outputs(&f, ENTRY_MICRO);
    add_updates(&f);
    assert(!diag_has_errors(f.g));
    return f.g;
}

/* ---------------------------------------------------------------- data */

Tensor fuzz_tensor(const Graph *g, const char *name, uint64_t data_seed, Arena *arena) {
    const Input *in = graph_input(g, name);
    const State *s = in ? NULL : graph_state(g, name);
    unsigned char bytes[8];
    assert(in || s);
    Tensor t = {.type = g->types[in ? in->type : s->type]};
    int64_t n = type_elems(&t.type), limit = in ? in->index_limit : 0;
    uint64_t rng = data_seed;
    for (const char *p = name; *p; p++) rng = rng * 31 + (unsigned char)*p;
    t.u.p = arena_alloc(arena, (size_t)n * sizeof(double));
    for (int64_t i = 0; i < n; i++) {
        random_element(&rng, (DType)t.type.dtype, limit, fuzz_has_specials(g), bytes);
        if (dtype_info[t.type.dtype].cls == CLASS_FLT)
            t.u.f[i] = elem_load((DType)t.type.dtype, bytes);
        else
            t.u.i[i] = elem_load_int((DType)t.type.dtype, bytes);
    }
    return t;
}

static const Tensor *find_tensor(void *user, const char *name) {
    const FuzzData *data = user;
    Tensor *t = arena_alloc(data->arena, sizeof *t);
    *t = fuzz_tensor(data->g, name, data->seed, data->arena);
    return t;
}

static double find_scalar(void *user, const char *name) {
    const FuzzData *data = user;
    return strcmp(name, "lr") == 0 ? 0.25 + (double)(data->seed % 5) / 4
                                   : (double)(data->seed % 7) + 1;
}

InterpEnv fuzz_env(FuzzData *data) {
    return (InterpEnv){.input = find_tensor,
                       .state = find_tensor,
                       .scalar = find_scalar,
                       .user = data,
                       .seed = data->seed,
                       .step = data->seed % 7 + 1};
}

bool fuzz_has_specials(const Graph *g) { return strcmp(g->name, "fuzz_specials") == 0; }

bool fuzz_agrees(const Tensor *want, const Tensor *got, double tolerance, char why[96]) {
    const int64_t n = type_elems(&want->type);
    const bool is_float = dtype_info[want->type.dtype].cls == CLASS_FLT;
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = is_float ? want->u.f[i] : 0, y = is_float ? got->u.f[i] : 0;
        const bool same = is_float ? x == y || (isnan(x) && isnan(y)) : want->u.i[i] == got->u.i[i];
        if (!same && is_float && isfinite(x) && isfinite(y)) {
            difference += (x - y) * (x - y);
        } else if (!same) {
            if (is_float)
                snprintf(why, 96, "[%lld] is %g, not %g", (long long)i, y, x);
            else
                snprintf(why, 96, "[%lld] is %lld, not %lld", (long long)i, (long long)got->u.i[i],
                         (long long)want->u.i[i]);
            return false;
        }
        if (isfinite(x)) size += x * x;
    }
    snprintf(why, 96, "is off by %.3g of %.3g", sqrt(difference), sqrt(size));
    return sqrt(difference) <= tolerance * (sqrt(size) + sqrt((double)n) * 0.1);
}

double fuzz_tolerance(const Graph *g) {
    double tolerance = 1e-5;
    for (Value v = 1; v < g->n_nodes; v++) {
        const DType dtype = graph_type_at(g, v)->dtype;
        if (dtype != DT_BF16 && dtype != DT_F16) continue;
        if (graph_op(g, v) == OP_layer_norm) return 1e-1;
        tolerance = 3e-2;
    }
    return tolerance;
}
