/* ops_dynamic.c - ops whose result has a shape that depends on the data: NonZero, Compress, Unique,
 * NonMaxSuppression. Where what decides the shape is known at import they are evaluated (or become
 * a gather); else they are refused, for shapes are static. */
#include "import.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool known_or_refused(ImportNode *n, uint32_t input, Tensor *t) {
    if (node_known(n, node_in(n, input), t)) return true;
    node_fail_dynamic(n);
    diag_hint(n->g,
              "give input %u a value with --set, or keep all elements and mask them in the model",
              input + 1);
    return false;
}

static bool is_float(const Tensor *t) { return dtype_info[t->type.dtype].cls == CLASS_FLT; }
static double number_at(const Tensor *t, int64_t i) {
    return is_float(t) ? t->u.f[i] : (double)t->u.i[i];
}

/* [rank, count], row-major order */
void import_non_zero(ImportNode *n) {
    Tensor t;
    if (!known_or_refused(n, 0, &t)) return;
    int64_t elems = type_elems(&t.type), count = 0, dims[2] = {t.type.rank, 0};
    int64_t *found = arena_alloc(n->arena, ((size_t)elems + 1) * sizeof *found);
    for (int64_t i = 0; i < elems; i++)
        if (is_float(&t) ? t.u.f[i] != 0 : t.u.i[i] != 0) found[count++] = i;
    int64_t *result = arena_alloc(n->arena, ((size_t)(count * t.type.rank) + 1) * sizeof *result);
    for (int64_t i = 0; i < count; i++)
        for (int64_t axis = t.type.rank - 1, rest = found[i]; axis >= 0;
             rest /= t.type.dims[axis--])
            result[axis * count + i] = rest % t.type.dims[axis];
    dims[1] = count;
    n->out[0] = build_const(n->g, graph_type_of(n->g, DT_I64, 2, dims), result);
}

/* The slices of an axis (or the elements of all) where the condition holds. */
void import_compress(ImportNode *n) {
    Tensor t;
    int64_t axis = 0;
    uint32_t count = 0;
    if (!known_or_refused(n, 1, &t)) return;
    bool is_flat = !node_has(n, "axis");
    Value x = n->in[0];
    if (is_flat) x = build_reshape(n->g, x, 1, (int64_t[]){type_elems(node_type(n, x))});
    if (!is_flat && !node_axis(n, node_int(n, "axis", 0), node_type(n, x)->rank, &axis)) return;
    int64_t extent = node_type(n, x)->dims[axis], elems = type_elems(&t.type);
    int64_t *kept = arena_alloc(n->arena, ((size_t)elems + 1) * sizeof *kept);
    for (int64_t i = 0; i < elems && i < extent; i++)
        if (t.u.i[i]) kept[count++] = i;
    n->out[0] = build_gather(n->g, x, build_ints(n->g, kept, count), axis);
}

/* ---------------------------------------------------------------- Unique */

/* Slices along one axis: [outer, extent, inner]. */
typedef struct Slices {
    const Tensor *t;
    int64_t outer, extent, inner;
} Slices;

static int compare_numbers(const Tensor *t, int64_t i, int64_t j) {
    if (!is_float(t)) return (t->u.i[i] > t->u.i[j]) - (t->u.i[i] < t->u.i[j]);
    double a = t->u.f[i], b = t->u.f[j];
    if (isnan(a) || isnan(b)) return !!isnan(a) - !!isnan(b);
    return (a > b) - (a < b);
}

static int compare_slices(const Slices *s, int64_t a, int64_t b) {
    for (int64_t o = 0; o < s->outer; o++)
        for (int64_t i = 0; i < s->inner; i++) {
            int c = compare_numbers(s->t, (o * s->extent + a) * s->inner + i,
                                    (o * s->extent + b) * s->inner + i);
            if (c) return c;
        }
    return 0;
}

/* The distinct slices by their first place, in order of place or of value; of every slice the
 * number of its like. */
static uint32_t distinct(const Slices *s, bool is_sorted, int64_t *first, int64_t *counts,
                         int64_t *like) {
    uint32_t n = 0;
    for (int64_t a = 0; a < s->extent; a++) {
        uint32_t at = 0;
        while (at < n && compare_slices(s, first[at], a)) at++;
        if (at == n) first[n++] = a;
    }
    for (uint32_t i = 1; i < n && is_sorted; i++)
        for (uint32_t j = i; j > 0 && compare_slices(s, first[j - 1], first[j]) > 0; j--) {
            int64_t held = first[j];
            first[j] = first[j - 1], first[j - 1] = held;
        }
    for (int64_t a = 0; a < s->extent; a++)
        for (uint32_t at = 0; at < n; at++)
            if (!compare_slices(s, first[at], a)) {
                like[a] = at;
                counts[at]++;
            }
    return n;
}

void import_unique(ImportNode *n) {
    Tensor t;
    int64_t axis = 0;
    if (!known_or_refused(n, 0, &t)) return;
    bool is_flat = !node_has(n, "axis");
    if (!is_flat && !node_axis(n, node_int(n, "axis", 0), t.type.rank, &axis)) return;
    Slices s = {&t, 1, is_flat ? type_elems(&t.type) : t.type.dims[axis], 1};
    for (int64_t i = 0; i < axis; i++) s.outer *= t.type.dims[i];
    for (int64_t i = axis + 1; i < t.type.rank && !is_flat; i++) s.inner *= t.type.dims[i];
    size_t bytes = ((size_t)s.extent + 1) * sizeof(int64_t);
    int64_t *first = arena_alloc(n->arena, bytes), *counts = arena_alloc(n->arena, bytes),
            *like = arena_alloc(n->arena, bytes);
    uint32_t count = distinct(&s, node_int(n, "sorted", 1) != 0, first, counts, like);
    Value x = is_flat ? build_reshape(n->g, n->in[0], 1, &s.extent) : n->in[0];
    Value outs[4] = {build_gather(n->g, x, build_ints(n->g, first, count), axis),
                     build_ints(n->g, first, count), build_ints(n->g, like, (uint32_t)s.extent),
                     build_ints(n->g, counts, count)};
    for (uint32_t i = 0; i < n->n_out && i < 4; i++) n->out[i] = outs[i];
}

/* ---------------------------------------------------------------- NonMaxSuppression */

typedef struct Box {
    double y0, x0, y1, x1;
} Box;

static Box box_at(const Tensor *t, int64_t i, bool is_centre) {
    double v[4];
    for (int k = 0; k < 4; k++) v[k] = number_at(t, i * 4 + k);
    if (is_centre) return (Box){v[1] - v[3] / 2, v[0] - v[2] / 2, v[1] + v[3] / 2, v[0] + v[2] / 2};
    return (Box){fmin(v[0], v[2]), fmin(v[1], v[3]), fmax(v[0], v[2]), fmax(v[1], v[3])};
}

static double overlap(Box a, Box b) {
    double h = fmax(fmin(a.y1, b.y1) - fmax(a.y0, b.y0), 0),
           w = fmax(fmin(a.x1, b.x1) - fmax(a.x0, b.x0), 0);
    double both = h * w, all = (a.y1 - a.y0) * (a.x1 - a.x0) + (b.y1 - b.y0) * (b.x1 - b.x0) - both;
    return all > 0 ? both / all : 0;
}

typedef struct Suppression {
    Tensor boxes, scores;
    double most, iou, least;
    bool is_centre, has_least;
    int64_t *result;
    uint32_t n;
} Suppression;

/* Of one class: the best box that no chosen one overlaps too much, again and again. */
static void suppress(Suppression *s, int64_t batch, int64_t class_at, int64_t *chosen) {
    int64_t n_boxes = s->boxes.type.dims[1], n_classes = s->scores.type.dims[1], n = 0;
    while ((double)n < s->most) {
        int64_t best = -1;
        double best_score = 0;
        for (int64_t i = 0; i < n_boxes; i++) {
            double score = number_at(&s->scores, (batch * n_classes + class_at) * n_boxes + i);
            bool is_left = !s->has_least || score > s->least;
            for (int64_t k = 0; k < n && is_left; k++)
                is_left =
                    i != chosen[k] &&
                    overlap(box_at(&s->boxes, batch * n_boxes + i, s->is_centre),
                            box_at(&s->boxes, batch * n_boxes + chosen[k], s->is_centre)) <= s->iou;
            if (is_left && (best < 0 || score > best_score)) best = i, best_score = score;
        }
        if (best < 0) return;
        chosen[n++] = best;
        int64_t *row = s->result + 3 * s->n++;
        row[0] = batch, row[1] = class_at, row[2] = best;
    }
}

static bool known_scalar(ImportNode *n, uint32_t input, double *x) {
    Tensor t;
    if (!node_in(n, input)) return true;
    if (!known_or_refused(n, input, &t)) return false;
    if (type_elems(&t.type)) *x = number_at(&t, 0);
    return true;
}

void import_non_max_suppression(ImportNode *n) {
    Suppression s = {.is_centre = node_int(n, "center_point_box", 0) != 0,
                     .has_least = node_in(n, 4) != 0};
    if (!known_or_refused(n, 0, &s.boxes) || !known_or_refused(n, 1, &s.scores) ||
        !known_scalar(n, 2, &s.most) || !known_scalar(n, 3, &s.iou) ||
        !known_scalar(n, 4, &s.least))
        return;
    const Type *b = &s.boxes.type, *c = &s.scores.type;
    if (b->rank != 3 || c->rank != 3 || b->dims[2] != 4 || b->dims[0] != c->dims[0] ||
        b->dims[1] != c->dims[2]) {
        node_fail_shapes(n, "boxes are [batch, boxes, 4], scores [batch, classes, boxes]");
        return;
    }
    s.result = arena_alloc(n->arena, ((size_t)type_elems(c) * 3 + 1) * sizeof *s.result);
    int64_t *chosen = arena_alloc(n->arena, ((size_t)b->dims[1] + 1) * sizeof *chosen);
    for (int64_t i = 0; i < c->dims[0]; i++)
        for (int64_t k = 0; k < c->dims[1]; k++) suppress(&s, i, k, chosen);
    n->out[0] = build_const(n->g, graph_type_of(n->g, DT_I64, 2, (int64_t[]){s.n, 3}), s.result);
}
