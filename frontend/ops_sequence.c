/* ops_sequence.c - sequences of tensors of known length: SplitToSequence, SequenceEmpty,
 * SequenceConstruct, SequenceInsert, SequenceErase, SequenceAt, SequenceLength, ConcatFromSequence;
 * SequenceMap; and optionals: Optional, OptionalHasElement, OptionalGetElement. A sequence is a
 * list of Values that import.c's values refer to; no node of the IR holds one. An optional that
 * holds something is that value; an empty one is a sequence of no length at all. */
#include "context.h"
#include <string.h>

Value sequence_new(ImportNode *n, const Value *items, uint32_t count) {
    Import *im = n->im;
    im->sequences = arena_grow(im->arena, im->sequences, im->n_sequences * sizeof *im->sequences,
                               (im->n_sequences + 1) * sizeof *im->sequences);
    im->sequences[im->n_sequences] = (Sequence){items, count, 0};
    return SEQUENCE_BIT | im->n_sequences++;
}

Value sequence_append(ImportNode *n, Value sequence, Value stack) {
    Import *im = n->im;
    const Sequence before = im->sequences[sequence & ~SEQUENCE_BIT];
    Type t = *node_type(n, stack);
    uint32_t rows = (uint32_t)t.dims[0];
    Value *items = arena_alloc(n->arena, (before.n + rows + 1u) * sizeof *items);
    for (uint32_t i = 0; i < before.n; i++) items[i] = before.items[i];
    t.dims[0] = 1;
    for (uint32_t i = 0; i < rows; i++) {
        int64_t start[MAX_RANK] = {i};
        items[before.n + i] = build_reshape(n->g, build_slice(n->g, stack, start, t.dims, NULL),
                                            t.rank - 1u, t.dims + 1);
    }
    Value v = sequence_new(n, items, before.n + rows);
    if (!before.n) im->sequences[v & ~SEQUENCE_BIT].stack = stack;
    return v;
}

static const Sequence *sequence_at(ImportNode *n, uint32_t input) {
    Value v = node_in(n, input);
    if (v & SEQUENCE_BIT) return &n->im->sequences[v & ~SEQUENCE_BIT];
    diag_add(n->g, E_DTYPE, n->g->loc, "tensor", "a sequence is wanted");
    return NULL;
}

void import_sequence_empty(ImportNode *n) { n->out[0] = sequence_new(n, NULL, 0); }
void import_sequence_construct(ImportNode *n) { n->out[0] = sequence_new(n, n->in, n->n_in); }

/* Parts of one size (a scalar; 1 where absent, and then keepdims=0 drops the axis), or of listed
 * sizes. */
void import_split_to_sequence(ImportNode *n) {
    const int64_t *sizes;
    uint32_t n_sizes, count = 0;
    int64_t axis, start[MAX_RANK] = {0};
    Type t = *node_type(n, n->in[0]);
    if (!node_ints_at(n, 1, &sizes, &n_sizes) ||
        !node_axis(n, node_int(n, "axis", 0), t.rank, &axis))
        return;
    bool is_listed = sizes && node_type(n, n->in[1])->rank == 1,
         drops = !sizes && !node_int(n, "keepdims", 1);
    int64_t extent = t.dims[axis], each = sizes && !is_listed ? sizes[0] : 1;
    Value *items = arena_alloc(n->arena, ((size_t)extent + n_sizes + 1) * sizeof *items);
    while (start[axis] < extent && each > 0 && (!is_listed || count < n_sizes)) {
        int64_t left = extent - start[axis], size = is_listed ? sizes[count] : each;
        t.dims[axis] = size < left ? size : left;
        Value part = build_slice(n->g, n->in[0], start, t.dims, NULL);
        items[count++] = drops ? build_squeeze(n->g, part, &axis, 1) : part;
        start[axis] += t.dims[axis];
    }
    if (start[axis] != extent)
        node_fail_shapes(n, "the parts of a split do not add up to the extent %lld",
                         (long long)extent);
    else
        n->out[0] = sequence_new(n, items, count);
}

void import_sequence_at(ImportNode *n) {
    const Sequence *s = sequence_at(n, 0);
    const int64_t *at;
    uint32_t count;
    if (!s || !node_ints_at(n, 1, &at, &count)) return;
    int64_t i = count ? at[0] : 0;
    i += i < 0 ? s->n : 0;
    if (i < 0 || i >= s->n)
        node_fail_shapes(n, "position %lld in a sequence of %u", (long long)i, s->n);
    else
        n->out[0] = s->items[i];
}

/* Where to insert (0 to n) or what to erase (0 to n - 1); the end where the input is omitted. */
static bool position(ImportNode *n, uint32_t input, int64_t places, int64_t length, int64_t *at) {
    const int64_t *list;
    uint32_t count;
    *at = places - 1;
    if (!node_in(n, input)) return places > 0;
    if (!node_ints_at(n, input, &list, &count)) return false;
    *at = count ? list[0] + (list[0] < 0 ? length : 0) : -1;
    if (*at >= 0 && *at < places) return true;
    node_fail_shapes(n, "position %lld in a sequence of %lld", (long long)(count ? list[0] : 0),
                     (long long)length);
    return false;
}

void import_sequence_insert(ImportNode *n) {
    const Sequence *s = sequence_at(n, 0);
    int64_t at;
    if (!s || !position(n, 2, (int64_t)s->n + 1, s->n, &at)) return;
    Value *items = arena_alloc(n->arena, (s->n + 1u) * sizeof *items);
    for (int64_t i = 0; i <= s->n; i++) items[i] = i == at ? n->in[1] : s->items[i - (i > at)];
    n->out[0] = sequence_new(n, items, s->n + 1);
}

void import_sequence_erase(ImportNode *n) {
    const Sequence *s = sequence_at(n, 0);
    int64_t at;
    if (!s || !position(n, 1, s->n, s->n, &at)) return;
    Value *items = arena_alloc(n->arena, (s->n + 1u) * sizeof *items);
    for (int64_t i = 0; i + 1 < s->n; i++) items[i] = s->items[i + (i >= at)];
    n->out[0] = sequence_new(n, items, s->n - 1);
}

/* ---------------------------------------------------------------- optionals */

static const uint32_t nothing = UINT32_MAX; /* the length of an empty optional */

void import_optional(ImportNode *n) {
    n->out[0] = node_in(n, 0) ? n->in[0] : sequence_new(n, NULL, nothing);
}

static bool has_element(const ImportNode *n) {
    Value v = node_in(n, 0);
    return v && !(v & SEQUENCE_BIT && n->im->sequences[v & ~SEQUENCE_BIT].n == nothing);
}

void import_optional_has_element(ImportNode *n) {
    uint8_t truth = has_element(n);
    n->out[0] = build_const(n->g, graph_type_of(n->g, DT_BOOL, 0, NULL), &truth);
}

void import_optional_get_element(ImportNode *n) {
    if (has_element(n))
        n->out[0] = n->in[0];
    else
        node_fail_shapes(n, "this optional is empty");
}

void import_sequence_length(ImportNode *n) {
    const Sequence *s = sequence_at(n, 0);
    int64_t length = s ? s->n : 0;
    if (s) n->out[0] = build_const(n->g, graph_type_of(n->g, DT_I64, 0, NULL), &length);
}

/* Rows of a stack put together again: its first axis moves, or is merged with `axis`. */
static Value concat_rows(ImportNode *n, Value stack, int64_t axis, bool is_stack) {
    Type t = *node_type(n, stack);
    int64_t perm[MAX_RANK], k = 0;
    for (int64_t i = 1; i <= t.rank; i++) {
        if (i - 1 == axis) perm[k++] = 0;
        if (i < t.rank) perm[k++] = i;
    }
    Value y = build_transpose(n->g, stack, perm);
    if (is_stack) return y;
    t = *node_type(n, y);
    t.dims[axis] *= t.dims[axis + 1];
    memmove(t.dims + axis + 1, t.dims + axis + 2, (size_t)(t.rank - axis - 2) * sizeof *t.dims);
    return build_reshape(n->g, y, t.rank - 1u, t.dims);
}

void import_concat_from_sequence(ImportNode *n) {
    const Sequence *s = sequence_at(n, 0);
    bool is_stack = node_int(n, "new_axis", 0) != 0;
    int64_t axis, dims[MAX_RANK];
    if (!s || !s->n) return;
    Type t = *node_type(n, s->items[0]);
    if (t.rank + is_stack > MAX_RANK ||
        !node_axis(n, node_int(n, "axis", 0), t.rank + (uint32_t)is_stack, &axis))
        return;
    if (s->stack) {
        n->out[0] = concat_rows(n, s->stack, axis, is_stack);
        return;
    }
    Value *items = arena_alloc(n->arena, s->n * sizeof *items);
    for (uint32_t i = 0; i < s->n; i++) {
        t = *node_type(n, s->items[i]);
        for (int64_t k = 0, from = 0; k <= t.rank && is_stack; k++)
            dims[k] = k == axis ? 1 : t.dims[from++];
        items[i] = is_stack ? build_reshape(n->g, s->items[i], t.rank + 1u, dims) : s->items[i];
    }
    n->out[0] = build_concat(n->g, items, s->n, axis);
}

/* ---------------------------------------------------------------- SequenceMap */

/* One copy of the body per element: other inputs are sequences of the same length, or the same for
 * all. */
void import_sequence_map(ImportNode *n) {
    const Sequence *s = sequence_at(n, 0);
    const Onnx__AttributeProto *body = find_attribute(n->im->scope, n->proto, "body");
    if (!s) return;
    if (!body || !body->g || body->g->n_input != n->n_in || body->g->n_output < n->n_out) {
        node_fail(n, "body", "has other inputs or outputs");
        return;
    }
    uint32_t length = s->n;
    Value *all = arena_alloc(n->arena, ((size_t)length * n->n_out + 1) * sizeof *all),
          *out = arena_alloc(n->arena, (n->n_out + 1u) * sizeof *out);
    for (uint32_t i = 0; i < length; i++) {
        Scope inner;
        subgraph_open(n, body->g, &inner);
        for (uint32_t k = 0; k < n->n_in; k++) {
            const Sequence *other =
                n->in[k] & SEQUENCE_BIT ? &n->im->sequences[n->in[k] & ~SEQUENCE_BIT] : NULL;
            if (other && other->n != length) {
                node_fail_shapes(n, "sequences of %u and %u", length, other->n);
                return;
            }
            names_set(n->arena, &inner.values, graph_str(n->g, body->g->input[k]->name),
                      other ? other->items[i] : n->in[k]);
        }
        subgraph_import(n, &inner, body->g, arena_printf(n->arena, "[%u]", i), n->n_out, out);
        for (uint32_t k = 0; k < n->n_out; k++) {
            if (!out[k] || out[k] & SEQUENCE_BIT) return; /* what is wrong has been said */
            all[k * length + i] = out[k];
        }
    }
    for (uint32_t k = 0; k < n->n_out; k++)
        n->out[k] = sequence_new(n, all + (size_t)k * length, length);
}
