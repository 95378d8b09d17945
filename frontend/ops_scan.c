/* ops_scan.c - Scan becomes a loop of the IR: axes move to the front, directions that differ from
 * the loop's are turned round. Before version 9 a Scan runs per sample: a loop over the batch
 * around it. */
#include "loop.h"
#include <string.h>

typedef struct Direction {
    int64_t axis;
    bool is_reverse;
} Direction;

static bool read_directions(ImportNode *n, const char *axes_name, const char *directions_name,
                            uint32_t count, Direction *d) {
    uint32_t n_axes, n_directions;
    const int64_t *axes = node_ints(n, axes_name, &n_axes),
                  *directions = node_ints(n, directions_name, &n_directions);
    if ((axes && n_axes != count) || (directions && n_directions != count)) {
        node_fail(n, axes ? axes_name : directions_name, "has not %u elements", count);
        return false;
    }
    for (uint32_t i = 0; i < count; i++)
        d[i] = (Direction){axes ? axes[i] : 0, directions && directions[i]};
    return true;
}

/* The axis first, or first to that axis. */
static Value move_axis(ImportNode *n, Value v, int64_t from, int64_t to) {
    int64_t perm[MAX_RANK], rank = node_type(n, v)->rank;
    uint32_t k = 0;
    if (from == to) return v;
    for (int64_t i = 0, next = 0; i < rank; i++) {
        if (next == from) next++;
        perm[k++] = i == to ? from : next++;
    }
    return build_transpose(n->g, v, perm);
}

static Value turned(ImportNode *n, Value v) {
    Type t = *node_type(n, v);
    int64_t start[MAX_RANK] = {t.dims[0] - 1}, step[MAX_RANK] = {-1, 1, 1, 1, 1, 1, 1, 1};
    return t.dims[0] > 1 ? build_slice(n->g, v, start, t.dims, step) : v;
}

static Value slice_hole(ImportNode *n, Value xs) {
    Type t = *node_type(n, xs);
    memmove(t.dims, t.dims + 1, (MAX_RANK - 1) * sizeof *t.dims);
    t.dims[--t.rank] = 0;
    return scan_hole(n->g, graph_type(n->g, t));
}

static bool scan_inputs(Loop *l, const Value *inputs, const Direction *d, uint32_t count,
                        bool is_reverse, Value *xs) {
    ImportNode *n = l->n;
    for (uint32_t i = 0; i < count; i++) {
        int64_t axis, rank = node_type(n, inputs[i])->rank;
        if (!node_axis(n, d[i].axis, (uint32_t)rank, &axis)) return false;
        xs[i] = move_axis(n, inputs[i], axis, 0);
        if (d[i].is_reverse != is_reverse) xs[i] = turned(n, xs[i]);
        int64_t steps = node_type(n, xs[i])->dims[0];
        if (i && steps != l->trips) {
            node_fail_shapes(n, "scan inputs of %lld and %lld steps", (long long)l->trips,
                             (long long)steps);
            return false;
        }
        l->trips = steps;
    }
    return true;
}

static bool all_reverse(const Direction *d, uint32_t n) {
    bool all = n > 0;
    for (uint32_t i = 0; i < n; i++) all &= d[i].is_reverse;
    return all;
}

/* Steps over the first axes of `inputs`; l->finals and l->stacks (steps first) on success. */
static bool scan_steps(Loop *l, const Value *inputs, const Direction *d, uint32_t n_inputs,
                       bool is_reverse) {
    ImportNode *n = l->n;
    Graph *g = n->g;
    Scope inner;
    Value holes[MAX_LOOP_VALUES], out[MAX_LOOP_VALUES] = {0}, xs[MAX_LOOP_VALUES];
    if (!scan_inputs(l, inputs, d, n_inputs, is_reverse, xs)) return false;
    Attempt before = attempt_begin(g);
    subgraph_open(n, l->body, &inner);
    for (uint32_t i = 0; i < l->n_carried; i++)
        holes[i] = scan_hole(g, graph_node(g, l->first[i])->type);
    for (uint32_t i = 0; i < n_inputs; i++) holes[l->n_carried + i] = slice_hole(n, xs[i]);
    if (!define_inputs(l, &inner, holes, l->n_carried + n_inputs)) return false;
    subgraph_import(n, &inner, l->body, "", l->n_carried + l->n_stacked, out);
    if (attempt_failed(g, &before)) return false;
    if (!keeps_types(l, out)) {
        node_fail_shapes(n, "a step of Scan changes the type of what it carries");
        return false;
    }
    if (moves_statistics(n, &before)) return false;
    const Holes h = {.carry = holes,
                     .xs = xs,
                     .x = holes + l->n_carried,
                     .n_x = n_inputs,
                     .is_reverse = is_reverse};
    return build_loop(l, &h, out);
}

static bool read_scan(Loop *l, uint32_t first_input, uint32_t *n_inputs) {
    ImportNode *n = l->n;
    int64_t count = node_int(n, "num_scan_inputs", 0);
    if (!(l->body = body_of_node(n)) || nests_too_deep(n)) return false;
    if (count < 1 || count + first_input > n->n_in || n->n_in > MAX_LOOP_VALUES) {
        node_fail(n, "num_scan_inputs", "%lld", (long long)count);
        return false;
    }
    *n_inputs = (uint32_t)count;
    l->n_carried = n->n_in - first_input - *n_inputs;
    l->first = n->in + first_input;
    if (l->body->n_output < l->n_carried || l->body->n_output > MAX_LOOP_VALUES) {
        diag_add(n->g, E_MODEL_INVALID, n->g->loc, "the body of Scan has too few outputs");
        return false;
    }
    l->n_stacked = (uint32_t)l->body->n_output - l->n_carried;
    return true;
}

void import_scan(ImportNode *n) {
    Loop l = {.n = n};
    Direction in[MAX_LOOP_VALUES], out[MAX_LOOP_VALUES];
    uint32_t n_inputs;
    if (!read_scan(&l, 0, &n_inputs) ||
        !read_directions(n, "scan_input_axes", "scan_input_directions", n_inputs, in) ||
        !read_directions(n, "scan_output_axes", "scan_output_directions", l.n_stacked, out))
        return;
    bool is_reverse = all_reverse(in, n_inputs);
    if (!scan_steps(&l, n->in + l.n_carried, in, n_inputs, is_reverse)) return;
    for (uint32_t i = 0; i < n->n_out && i < l.n_carried + l.n_stacked; i++) {
        uint32_t y = i - l.n_carried;
        int64_t axis;
        n->out[i] = i < l.n_carried ? l.finals[i] : l.stacks[y];
        if (i < l.n_carried) continue;
        if (!node_axis(n, out[y].axis, node_type(n, n->out[i])->rank, &axis)) return;
        if (out[y].is_reverse != is_reverse) n->out[i] = turned(n, n->out[i]);
        n->out[i] = move_axis(n, n->out[i], 0, axis);
    }
}

/* ---------------------------------------------------------------- Scan-8: samples one by one */

/* A loop over the batch whose step is the scan of one sample. */
void import_scan_batch(ImportNode *n) {
    Graph *g = n->g;
    Loop l = {.n = n};
    Direction in[MAX_LOOP_VALUES];
    uint32_t n_inputs, total;
    Value holes[MAX_LOOP_VALUES], ys[MAX_LOOP_VALUES], stacks[MAX_LOOP_VALUES];
    if (node_in(n, 0)) {
        node_fail(n, "sequence_lens", "sequences of different lengths are not supported");
        return;
    }
    if (!read_scan(&l, 1, &n_inputs) || !read_directions(n, "axes", "directions", n_inputs, in))
        return;
    total = l.n_carried + n_inputs;
    int64_t batch = -1;
    for (uint32_t i = 0; i < total; i++) {
        const Type *t = node_type(n, n->in[1 + i]);
        if (t->rank < (i < l.n_carried ? 1 : 2) || (batch >= 0 && t->dims[0] != batch)) {
            node_fail_shapes(n, "input %u has not the batch as its first axis", i + 2);
            return;
        }
        batch = t->dims[0];
        holes[i] = slice_hole(n, n->in[1 + i]);
    }
    l.first = holes;
    bool is_reverse = all_reverse(in, n_inputs);
    if (!scan_steps(&l, holes + l.n_carried, in, n_inputs, is_reverse)) return;
    uint32_t n_results = l.n_carried + l.n_stacked;
    for (uint32_t i = 0; i < n_results; i++) {
        ys[i] = i < l.n_carried ? l.finals[i] : l.stacks[i - l.n_carried];
        if (i >= l.n_carried && is_reverse) ys[i] = turned(n, ys[i]);
    }
    ScanSpec spec = {.name = "samples",
                     .n_scanned = total,
                     .xs = n->in + 1,
                     .x = holes,
                     .n_ys = n_results,
                     .ys = ys,
                     .trips = batch};
    if (!scan_build(g, &spec, NULL, stacks)) return;
    for (uint32_t i = 0; i < n->n_out && i < n_results; i++) n->out[i] = stacks[i];
}
