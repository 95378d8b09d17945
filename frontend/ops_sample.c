/* ops_sample.c - GridSample and AffineGrid: a tensor read between its pixels.
 *
 * Every mode is one sum over taps: 1 (nearest), 2 (linear) or 4 (cubic) per axis. A tap is a flat
 * index and a weight, both computed from the position by maps, so x is read by one `take` and the
 * result is one reduction; the gradient of x is the take's own scatter, that of the position flows
 * through the weights. Positions on or beyond a border are constants, as in PyTorch: no gradient
 * there. Kernels: Keys' cubic with a = -0.75. */
#include "ops_sample.h"
#include <string.h>

typedef struct Taps {
    Value index, weight, inside; /* [B,P,K]; weight 0: 1; inside 0: all are */
    int64_t count;
} Taps;

Value sample_position(ImportNode *n, Value v) {
    bool is_narrow = v && dtype_info[node_type(n, v)->dtype].bytes < 4;
    return is_narrow ? build_cast(n->g, v, DT_F32) : v;
}

/* ---------------------------------------------------------------- positions at the borders */

/* Into [0, m]; NaN reads as 0. Only what lies between the ends is moved by c. */
static Value clip_position(ImportNode *n, Value c, double m) {
    return node_rule(
        n, "(where (and (gt c 0) (lt c m)) c (where (gt c 0) m 0))",
        (RuleBind[]){{"c", c}, {"m", node_number(n, (DType)node_type(n, c)->dtype, m)}}, 2);
}

/* To and fro between the first and the last pixel, or their outer edges. */
static Value reflect_position(const Sampler *s, Value c, double m) {
    ImportNode *n = s->n;
    DType d = (DType)node_type(n, c)->dtype;
    double low = s->align_corners ? 0 : -0.5, span = s->align_corners ? m : m + 1;
    if (span <= 0) return build_splat(n->g, graph_node(n->g, c)->type, 0);
    RuleBind binds[] = {{"c", c}, {"o", node_number(n, d, low)}, {"s", node_number(n, d, span)}};
    Value inner = node_rule(n,
                            "(let a (sub c o) (let b (where (lt a 0) (neg a) a) (let e (fmod b s)"
                            " (add o (where (eq (fmod (floor (div b s)) 2) 0) e (sub s e))))))",
                            binds, 3);
    return clip_position(n, inner, m);
}

/* Far points stay outside and become small numbers, so that they can be integers. */
static Value bound_position(ImportNode *n, Value c, double m) {
    return node_rule(
        n, "(where (and (gt c -3) (lt c m)) c -3)",
        (RuleBind[]){{"c", c}, {"m", node_number(n, (DType)node_type(n, c)->dtype, m + 3)}}, 2);
}

static Value pad_position(const Sampler *s, Value c, double m) {
    switch (s->padding) {
    case SAMPLE_BORDER:
        return clip_position(s->n, c, m);
    case SAMPLE_REFLECTION:
        return reflect_position(s, c, m);
    case SAMPLE_ZEROS:
        break;
    }
    return bound_position(s->n, c, m);
}

/* ---------------------------------------------------------------- taps of one axis */

static Value tap_numbers(ImportNode *n, DType d, int64_t count) {
    return build_iota(n->g, graph_type_of(n->g, d, 3, (int64_t[]){1, 1, count}), 2);
}

/* Keys' kernel at the distances f + 1, f, 1 - f, 2 - f of the four taps */
static const char cubic_weight[] = "(let d (abs (sub f (sub t 1))) (where (le d 1)"
                                   " (add (mul (mul (sub (mul 1.25 d) 2.25) d) d) 1)"
                                   " (add (mul (sub (mul (add (mul -0.75 d) 3.75) d) 6) d) 3)))";

static Taps axis_taps(const Sampler *s, Value at, int64_t extent) {
    ImportNode *n = s->n;
    Type t = *node_type(n, at);
    double m = (double)(extent - 1);
    bool pads_taps = s->mode == SAMPLE_CUBIC && s->padding != SAMPLE_ZEROS;
    Taps taps = {.count = s->mode == SAMPLE_NEAREST ? 1 : s->mode == SAMPLE_LINEAR ? 2 : 4};
    Value c = build_reshape(n->g, pads_taps ? at : pad_position(s, at, m), 3,
                            (int64_t[]){t.dims[0], t.dims[1], 1});
    RuleBind binds[6] = {{"c", c},
                         {"m", node_number(n, (DType)t.dtype, m)},
                         {"t", tap_numbers(n, (DType)t.dtype, taps.count)}};
    binds[3] =
        (RuleBind){"b", build_unary(n->g, s->mode == SAMPLE_NEAREST ? OP_round : OP_floor, c)};
    binds[4] = (RuleBind){"f", build_binary(n->g, OP_sub, c, binds[3].value)};
    Value place =
        s->mode == SAMPLE_NEAREST
            ? binds[3].value
            : node_rule(n, s->mode == SAMPLE_CUBIC ? "(add b (sub t 1))" : "(add b t)", binds, 4);
    if (s->mode == SAMPLE_LINEAR)
        taps.weight = node_rule(n, "(where (eq t 0) (sub 1 f) f)", binds, 5);
    if (s->mode == SAMPLE_CUBIC) taps.weight = node_rule(n, cubic_weight, binds, 5);
    binds[5] = (RuleBind){"p", place};
    if (s->padding == SAMPLE_ZEROS || s->mode == SAMPLE_LINEAR)
        taps.inside = node_rule(n, "(and (ge p 0) (le p m))", binds, 6);
    place = pads_taps ? pad_position(s, place, m) : node_rule(n, "(clip p 0 m)", binds, 6);
    taps.index = build_cast(n->g, place, DT_I64);
    return taps;
}

/* ---------------------------------------------------------------- all axes together */

/* [B,P,K] -> [B,P,1..,K,..1] */
static Value on_axis(ImportNode *n, Value v, uint32_t axis, uint32_t rank) {
    if (!v) return 0;
    Type t = *node_type(n, v);
    int64_t dims[MAX_RANK] = {t.dims[0], t.dims[1], 1, 1, 1, 1, 1, 1};
    dims[axis + 2] = t.dims[2];
    return build_reshape(n->g, v, rank + 2, dims);
}

static Value joined(ImportNode *n, OpCode op, Value all, Value one) {
    return all && one ? build_binary(n->g, op, all, one) : all ? all : one;
}

static Taps all_taps(const Sampler *s, const Type *x, const Value *at) {
    ImportNode *n = s->n;
    Taps all = {.count = 1};
    uint32_t rank = x->rank - 2u;
    for (uint32_t i = 0; i < rank; i++) {
        Taps one = axis_taps(s, at[i], x->dims[i + 2]);
        Value width = node_number(n, DT_I64, (double)x->dims[i + 2]);
        if (all.index) all.index = build_binary(n->g, OP_mul, all.index, width);
        all.index = joined(n, OP_add, all.index, on_axis(n, one.index, i, rank));
        all.weight = joined(n, OP_mul, all.weight, on_axis(n, one.weight, i, rank));
        all.inside = joined(n, OP_and, all.inside, on_axis(n, one.inside, i, rank));
        all.count *= one.count;
    }
    return all;
}

/* x[B,C,S] at the taps, weighted and summed: [B,C,P] */
static Value sum_of_taps(ImportNode *n, Value x, const Taps *taps, int64_t points) {
    Graph *g = n->g;
    Type t = *node_type(n, x);
    int64_t flat[] = {t.dims[0], 1, points * taps->count},
            wide[] = {t.dims[0], t.dims[1], points * taps->count};
    int64_t each[] = {t.dims[0], 1, points, taps->count},
            dims[] = {t.dims[0], t.dims[1], points, taps->count};
    Value idx = build_expand(g, build_reshape(g, taps->index, 3, flat), 3, wide);
    Value v = graph_emit(g, OP_take, (Value[]){x, idx}, 2,
                         graph_attr(g, (AttrField[]){attr_int(A_AXIS, 2)}, 1), 0);
    v = build_reshape(g, v, 4, dims);
    if (taps->inside) {
        Value zero = build_splat(g, graph_type_of(g, (DType)t.dtype, 0, NULL), 0);
        v = build_map(g, OP_where, (Value[]){build_reshape(g, taps->inside, 4, each), v, zero}, 3);
    }
    if (!taps->weight) return build_reshape(g, v, 3, dims);
    Value w = build_reshape(g, build_cast(g, taps->weight, (DType)t.dtype), 4, each);
    Value sum = build_reduce(g, OP_sum, build_binary(g, OP_mul, v, w), (int64_t[]){3}, 1);
    return build_reshape(g, sum, 3, dims);
}

Value sample_points(const Sampler *s, Value x, const Value *at) {
    ImportNode *n = s->n;
    Type t = *node_type(n, x);
    DType own = (DType)t.dtype;
    int64_t area = 1;
    for (uint32_t i = 2; i < t.rank; i++) area *= t.dims[i];
    for (uint32_t i = 0; i + 2 < t.rank; i++)
        if (!at[i]) return 0;
    const Type *p = node_type(n, at[0]);
    int64_t points = p->dims[1];
    bool mixes_numbers = s->mode != SAMPLE_NEAREST && dtype_info[own].cls != CLASS_FLT;
    if (mixes_numbers) x = build_cast(n->g, x, (DType)p->dtype);
    x = build_reshape(n->g, x, 3, (int64_t[]){t.dims[0], t.dims[1], area});
    Taps taps = all_taps(s, &t, at);
    Value y = taps.index ? sum_of_taps(n, x, &taps, points) : 0;
    return mixes_numbers && y ? build_cast(n->g, y, own) : y;
}

/* ---------------------------------------------------------------- GridSample */

static bool read_sampler(ImportNode *n, Sampler *s) {
    static const struct {
        const char *name;
        SampleMode mode;
    } modes[] = {{"linear", SAMPLE_LINEAR},
                 {"bilinear", SAMPLE_LINEAR},
                 {"nearest", SAMPLE_NEAREST},
                 {"cubic", SAMPLE_CUBIC},
                 {"bicubic", SAMPLE_CUBIC}};
    static const char *const paddings[] = {"zeros", "border", "reflection"};
    const char *mode = node_string(n, "mode", "linear"),
               *padding = node_string(n, "padding_mode", "zeros");
    *s = (Sampler){.n = n, .align_corners = node_int(n, "align_corners", 0) != 0};
    size_t i = 0, k = 0;
    while (i < sizeof modes / sizeof *modes && strcmp(modes[i].name, mode)) i++;
    while (k < sizeof paddings / sizeof *paddings && strcmp(paddings[k], padding)) k++;
    if (i == sizeof modes / sizeof *modes)
        node_fail(n, "mode", "'%s' is not known", mode);
    else if (k == sizeof paddings / sizeof *paddings)
        node_fail(n, "padding_mode", "'%s' is not known", padding);
    else {
        s->mode = modes[i].mode;
        s->padding = (SamplePadding)k;
        return true;
    }
    return false;
}

/* Component `which` of grid[N,P,d], from [-1, 1] to pixels. */
static Value pixels(const Sampler *s, Value grid, uint32_t which, int64_t extent) {
    ImportNode *n = s->n;
    Type t = *node_type(n, grid);
    int64_t start[] = {0, 0, which}, one[] = {t.dims[0], t.dims[1], 1};
    Value c = build_reshape(n->g, build_slice(n->g, grid, start, one, NULL), 2, one);
    DType d = (DType)t.dtype;
    RuleBind binds[] = {{"c", c},
                        {"h", node_number(n, d, ((double)extent - 1) / 2)},
                        {"w", node_number(n, d, (double)extent)}};
    return node_rule(n,
                     s->align_corners ? "(mul (add c 1) h)" : "(mul (sub (mul (add c 1) w) 1) 0.5)",
                     binds, 3);
}

void import_grid_sample(ImportNode *n) {
    Sampler s;
    Type x = *node_type(n, n->in[0]), t = *node_type(n, n->in[1]);
    uint32_t rank = x.rank < 2 ? 0 : x.rank - 2u;
    int64_t dims[MAX_RANK] = {x.dims[0], x.dims[1]}, points = 1;
    bool fits = rank >= 1 && rank <= 3 && t.rank == x.rank && t.dims[0] == x.dims[0] &&
                dtype_info[t.dtype].cls == CLASS_FLT && t.dims[t.rank - 1] == rank;
    for (uint32_t i = 0; fits && i < rank; i++) {
        fits = x.dims[i + 2] > 0;
        points *= dims[i + 2] = t.dims[i + 1];
    }
    if (!fits)
        node_fail_shapes(n, "X %s, grid %s: [N, C, spatial...] and [N, out..., %u] are wanted",
                         type_text(n->g, &x), type_text(n->g, &t), rank);
    if (!fits || !read_sampler(n, &s)) return;
    Value grid = build_reshape(n->g, sample_position(n, n->in[1]), 3,
                               (int64_t[]){t.dims[0], points, rank}),
          at[MAX_RANK];
    for (uint32_t i = 0; i < rank; i++) at[i] = pixels(&s, grid, rank - 1 - i, x.dims[i + 2]);
    n->out[0] = build_reshape(n->g, sample_points(&s, n->in[0], at), x.rank, dims);
}

/* ---------------------------------------------------------------- AffineGrid */

/* Pixel centres along one axis in [-1, 1]: [out.., 1] */
static Value axis_positions(ImportNode *n, DType d, uint32_t rank, const int64_t *out,
                            uint32_t axis, bool align_corners) {
    int64_t dims[MAX_RANK];
    memcpy(dims, out, sizeof dims);
    dims[rank] = 1;
    double extent = (double)out[axis];
    double step = align_corners ? (extent > 1 ? 2 / (extent - 1) : 0) : 2 / extent;
    double start = align_corners ? (extent > 1 ? -1 : 0) : -1 + step / 2;
    RuleBind binds[] = {{"i", build_iota(n->g, graph_type_of(n->g, d, rank + 1, dims), axis)},
                        {"s", node_number(n, d, step)},
                        {"b", node_number(n, d, start)}};
    return node_rule(n, "(add (mul i s) b)", binds, 3);
}

/* theta[N,d,d+1] times the homogeneous positions (x, y, z, 1) of the output's pixels */
void import_affine_grid(ImportNode *n) {
    const int64_t *size;
    uint32_t count;
    Type t = *node_type(n, n->in[0]);
    if (!node_ints_at(n, 1, &size, &count)) return;
    uint32_t rank = count < 2 ? 0 : count - 2;
    bool fits = rank >= 1 && rank <= 3 && t.rank == 3 && dtype_info[t.dtype].cls == CLASS_FLT &&
                t.dims[1] == rank && t.dims[2] == rank + 1 && t.dims[0] == size[0];
    Type whole = {.rank = (uint8_t)(rank + 1), .dims = {rank}};
    for (uint32_t i = 0; fits && i < rank; i++)
        fits = size[i + 2] > 0 && size[i + 2] <= INT32_MAX, whole.dims[i + 1] = size[i + 2];
    if (!fits || !type_fits(&whole)) {
        node_fail_shapes(n,
                         "theta %s and %u sizes: [N, d, d + 1] and [N, C, spatial...] are wanted",
                         type_text(n->g, &t), count);
        return;
    }
    int64_t out[MAX_RANK] = {0}, dims[MAX_RANK] = {size[0]}, points = 1;
    for (uint32_t i = 0; i < rank; i++) points *= out[i] = dims[i + 1] = size[i + 2];
    dims[rank + 1] = rank;
    Value parts[4], theta = sample_position(n, n->in[0]);
    DType d = (DType)node_type(n, theta)->dtype;
    bool align = node_int(n, "align_corners", 0) != 0;
    for (uint32_t i = 0; i < rank; i++)
        parts[i] = axis_positions(n, d, rank, out, rank - 1 - i, align);
    out[rank] = 1;
    parts[rank] = build_splat(n->g, graph_type_of(n->g, d, rank + 1, out), 1);
    Value base = build_reshape(n->g, build_concat(n->g, parts, rank + 1, rank), 3,
                               (int64_t[]){1, points, rank + 1});
    Value grid = build_reshape(n->g, build_dot(n->g, base, theta, false, true), rank + 2, dims);
    n->out[0] = build_cast(n->g, grid, (DType)t.dtype);
}
