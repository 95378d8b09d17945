/* plan_check.c - is a plan sound? Proved by running it on paper, with nothing taken over from the
 * passes that made it.
 *
 * The memory of every buffer is tracked launch by launch: which value lies in it, or that other
 * bytes were written over it. Reads are found by walking from the stored outs of a group down to
 * what lies in memory, exactly as a kernel would. A read of a value whose bytes are gone, not yet
 * there, or (within one launch) written at another element, is a fault; so is a root that does not
 * lie in its buffer at the end of its entry, and a state, input or constant that changes otherwise.
 */
#include "planning.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { NOTHING = 0, WALK_DEPTH = 4000 };

typedef struct Check {
    const Graph *g;
    const Plan *plan;
    FILE *out;
    Arena *arena;
    EntryKind entry;
    const EntryPlan *ep;
    Value *holds;  /* per buffer: the value whose bytes lie there; NOTHING where they are lost */
    uint8_t *seen; /* per Value and group: ways it is read (1 same element, 2 otherwise) */
    Value *touched;
    uint32_t n_touched; /* what to clear in seen */
    bool *member, *is_out;
    bool sound;
} Check;

static bool fault(Check *c, const char *format, ...) {
    c->sound = false;
    if (!c->out) return false;
    va_list args;
    va_start(args, format);
    fprintf(c->out, "plan: ");
    vfprintf(c->out, format, args);
    fputc('\n', c->out);
    va_end(args);
    return false;
}

static const char *op_name(const Check *c, Value v) { return op_info[graph_op(c->g, v)].name; }
static LowerClass lower_of(const Check *c, Value v) { return op_info[graph_op(c->g, v)].lower; }
static int64_t elems(const Check *c, Value v) { return type_elems(graph_type_at(c->g, v)); }

/* ---------------------------------------------------------------- forms of groups */

static bool is_view_or_leaf(const Check *c, Value v) {
    return lower_of(c, v) == LOWER_VIEW || lower_of(c, v) == LOWER_LEAF;
}

static int64_t row_count(const Group *group) {
    int64_t n = 1;
    for (int i = 0; i < group->dims.rank; i++) {
        bool reduced = false;
        for (uint32_t k = 0; k < group->n_axes; k++) reduced |= group->axes[k] == i;
        n *= reduced ? 1 : group->dims.dims[i];
    }
    return n;
}

/* Reduces the axes of the group; axes of extent 1 do not count. */
static bool reduces_the_space(const Check *c, const Group *group, Value v) {
    const Type *from = graph_type_at(c->g, graph_operand(c->g, v, 0)), *to = graph_type_at(c->g, v);
    if (!dims_equal(from, &group->dims)) return false;
    for (int i = 0; i < from->rank; i++) {
        bool reduced = false;
        for (uint32_t k = 0; k < group->n_axes; k++) reduced |= group->axes[k] == i;
        if (to->dims[i] != (reduced ? 1 : from->dims[i])) return false;
    }
    return true;
}

static bool member_fits(Check *c, const Group *group, Value v) {
    LowerClass l = lower_of(c, v);
    if (group->kind == GROUP_LOOP) return l == LOWER_LOOP;
    if (v == group->anchor || l == LOWER_MAP) return true;
    if (is_view_or_leaf(c, v)) return c->is_out[v];
    return group->kind == GROUP_ROW && l == LOWER_REDUCE && reduces_the_space(c, group, v);
}

static bool anchor_fits(const Check *c, const Group *group) {
    LowerClass l = group->anchor ? lower_of(c, group->anchor) : LOWER_MAP;
    switch (group->kind) {
    case GROUP_MAP:
    case GROUP_ROW:
    case GROUP_COPY:
        return !group->anchor;
    case GROUP_REDUCE:
        return l == LOWER_REDUCE;
    case GROUP_CONTRACT:
        return l == LOWER_CONTRACT;
    case GROUP_SCATTER:
        return l == LOWER_SCATTER;
    case GROUP_LOOP:
        return l == LOWER_LOOP;
    case N_GROUP_KINDS:
        break;
    }
    return false;
}

static bool out_fits(const Check *c, const Group *group, Value v) {
    int64_t n = elems(c, v);
    switch (group->kind) {
    case GROUP_MAP:
        return n == type_elems(&group->dims);
    case GROUP_ROW:
        return n == type_elems(&group->dims) || n == row_count(group);
    case GROUP_REDUCE:
    case GROUP_CONTRACT:
    case GROUP_SCATTER:
        return n == elems(c, group->anchor);
    case GROUP_LOOP:
        return true;
    case GROUP_COPY:
    case N_GROUP_KINDS:
        break;
    }
    return false;
}

static bool operands_fit(Check *c, const Group *group) {
    bool dense = graph_op(c->g, group->anchor) != OP_dot;
    for (uint32_t i = 0; i < 2; i++) {
        int64_t offset, strides[MAX_RANK];
        Value v = graph_operand(c->g, group->anchor, i);
        if (!plan_view_affine(c->g, c->ep->buffer_of, v, &offset, strides)) return false;
        if (dense && (offset || !type_is_dense(graph_type_at(c->g, v), strides))) return false;
    }
    return true;
}

static bool has_raw_out(const Check *c, const Group *group) {
    for (uint32_t i = 0; i < group->n_outs; i++)
        if (graph_type_at(c->g, group->outs[i])->dtype == graph_type_at(c->g, group->anchor)->dtype)
            return true;
    return false;
}

static bool check_form(Check *c, const Group *group) {
    const char *kind = group_kind_name[group->kind];
    if (!anchor_fits(c, group)) return fault(c, "a %s group has the wrong anchor", kind);
    for (uint32_t i = 0; i < group->n_nodes && group->kind != GROUP_COPY; i++) {
        if (!member_fits(c, group, group->nodes[i]))
            return fault(c, "%s is no member of a %s group", op_name(c, group->nodes[i]), kind);
        if (i && group->nodes[i] <= group->nodes[i - 1])
            return fault(c, "members out of graph order");
    }
    for (uint32_t i = 0; i < group->n_outs; i++)
        if (!out_fits(c, group, group->outs[i]))
            return fault(c, "an out %s of a %s group has other dims", op_name(c, group->outs[i]),
                         kind);
    if (group->kind != GROUP_COPY && !group->n_outs)
        return fault(c, "a %s group stores nothing", kind);
    if (group->kind == GROUP_LOOP && !plan_check_loop(c->g, c->plan, group, c->out))
        return fault(c, "a loop does not hold");
    if (group->kind != GROUP_CONTRACT) return true;
    if (!operands_fit(c, group))
        return fault(c, "an operand of %s is no affine view of memory", op_name(c, group->anchor));
    return has_raw_out(c, group) || fault(c, "no out has the dtype of the anchor");
}

/* ---------------------------------------------------------------- one launch */

/* Does the memory of v hold v now? */
static bool in_memory(Check *c, Value v) {
    uint32_t b = c->ep->buffer_of[v];
    if (!b) return fault(c, "%s is read but lies nowhere", op_name(c, v));
    if (c->holds[b - 1] != v)
        return fault(c, "%%%u (%s) is read, but its bytes are %s", v, op_name(c, v),
                     c->holds[b - 1] ? "another value" : "gone");
    return true;
}

static bool ends_walk(const Check *c, Value v) {
    return leaf_in_memory(c->g, v) || (c->ep->buffer_of[v] && !c->is_out[v]);
}

/* Everything a kernel touches to make v. `way` 1: at the element of the out. A reduction or anchor
 * may be met at its own element alone, or through one expand over the reduced axes (row). */
static bool visit(Check *c, const Group *group, Value v, uint8_t way, bool is_start,
                  uint32_t depth) {
    if (c->seen[v] & way) return true;
    if (!c->seen[v]) c->touched[c->n_touched++] = v;
    c->seen[v] |= way;
    if (depth > WALK_DEPTH) return fault(c, "a walk of views does not end");
    if (!is_start && ends_walk(c, v)) return in_memory(c, v);
    LowerClass l = lower_of(c, v);
    if (!is_view_or_leaf(c, v) && !c->member[v])
        return fault(c, "%%%u (%s) is needed but neither a member nor in memory", v, op_name(c, v));
    if (way == 2 && l != LOWER_MAP && !is_view_or_leaf(c, v) && group->kind != GROUP_ROW)
        return fault(c, "the anchor is read at another element");
    uint8_t next = l == LOWER_MAP || graph_op(c->g, v) == OP_reshape ? way : 2;
    for (uint32_t i = 0; i < graph_node(c->g, v)->n_operands; i++) {
        bool is_index = graph_op(c->g, v) == OP_take && i == 1; /* read at the take's own element */
        if (!visit(c, group, graph_operand(c->g, v, i), is_index ? way : next, false, depth + 1))
            return false;
    }
    return true;
}

enum {
    ELSEWHERE = -1,
    TAKEN = -2
}; /* an element of no known place; one of the row, at an index that was read */

/* From row level to full size, along the reduced axes. */
static bool expands_rows(const Check *c, const Group *group, Value v) {
    const Type *from = graph_type_at(c->g, graph_operand(c->g, v, 0));
    if (!dims_equal(graph_type_at(c->g, v), &group->dims) || type_elems(from) != row_count(group))
        return false;
    for (uint32_t k = 0; k < group->n_axes; k++)
        if (from->dims[group->axes[k]] != 1) return false;
    return true;
}

/* One element of each row, along the one reduced axis (of an extent other than 1). */
static bool takes_from_row(const Check *c, const Group *group, Value v) {
    int64_t axis = attr_i(c->g, v, A_AXIS, 0);
    for (uint32_t k = 0; k < group->n_axes; k++)
        if (group->axes[k] != axis && group->dims.dims[group->axes[k]] != 1) return false;
    return elems(c, v) == row_count(group) &&
           dims_equal(graph_type_at(c->g, graph_operand(c->g, v, 0)), &group->dims);
}

/* In a row group every reduction is met at its row: full level reads row level through an expand of
 * just these dims. */
static bool check_rows(Check *c, const Group *group, Value v, int64_t n, uint32_t depth) {
    if (ends_walk(c, v) || lower_of(c, v) == LOWER_LEAF) return true;
    int64_t rows = row_count(group), full = type_elems(&group->dims);
    const Node *node = graph_node(c->g, v);
    LowerClass l = lower_of(c, v);
    if (l == LOWER_REDUCE) {
        if (n != rows) return fault(c, "a reduction is read at another element than its row's");
        if (c->seen[v] & 4) return true;
        c->seen[v] |= 4;
        return check_rows(c, group, graph_operand(c->g, v, 0), full, depth + 1);
    }
    uint8_t bit = n == rows ? 8 : n == full ? 16 : n == TAKEN ? 32 : 64;
    if (c->seen[v] & bit) return true;
    c->seen[v] |= bit;
    int64_t next = l == LOWER_MAP ? n : graph_op(c->g, v) == OP_reshape && n > 0 ? n : ELSEWHERE;
    if (graph_op(c->g, v) == OP_expand && (n == full || n == TAKEN) && expands_rows(c, group, v))
        next = rows;
    if (graph_op(c->g, v) == OP_take && n == rows && takes_from_row(c, group, v)) next = TAKEN;
    for (uint32_t i = 0; i < node->n_operands; i++)
        if (!check_rows(c, group, graph_operand(c->g, v, i), next, depth + 1)) return false;
    return true;
}

static bool check_reads(Check *c, const Group *group) {
    for (uint32_t i = 0; i < group->n_outs; i++)
        if (!visit(c, group, group->outs[i], 1, true, 0)) return false;
    if (group->kind == GROUP_COPY && leaf_in_memory(c->g, group->nodes[0]))
        return in_memory(c, group->nodes[0]);
    if (group->kind == GROUP_COPY && !is_view_or_leaf(c, group->nodes[0]))
        return in_memory(c, group->nodes[0]);
    for (uint32_t i = 0; i < group->n_outs && group->kind == GROUP_ROW; i++)
        if (!check_rows(c, group, group->outs[i], elems(c, group->outs[i]), 0)) return false;
    return true;
}

static bool is_packed(const Check *c, Value v) {
    return v && graph_op(c->g, v) == OP_state &&
           graph_state(c->g, attr_s(c->g, v, A_NAME))->cls == STATE_PACKED;
}

/* Bytes that lie as a library wants them are read as the whole operand b of its product alone. */
static bool check_packed_reads(Check *c, const Group *group) {
    Value whole = 0;
    if (group->kind == GROUP_CONTRACT) {
        Value b = graph_operand(c->g, group->anchor, 1);
        whole = plan_view_base(c->g, b);
        if (whole && elems(c, whole) != elems(c, b)) whole = 0;
    }
    for (uint32_t i = 0; i < group->n_nodes; i++)
        for (uint32_t k = 0; k < graph_node(c->g, group->nodes[i])->n_operands; k++) {
            Value base = plan_view_base(c->g, graph_operand(c->g, group->nodes[i], k));
            if (is_packed(c, base) && (base != whole || group->nodes[i] != group->anchor || k != 1))
                return fault(c, "packed bytes are read element by element");
        }
    for (uint32_t i = 0; i < c->n_touched; i++)
        if (is_packed(c, c->touched[i]) && c->touched[i] != whole)
            return fault(c, "packed bytes are read by no product");
    return group->kind != GROUP_COPY || !is_packed(c, plan_view_base(c->g, group->nodes[0])) ||
           fault(c, "packed bytes are copied");
}

static bool overlap(const Buffer *a, const Buffer *b) {
    return a->bytes && b->bytes && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

static bool is_lasting(const Buffer *b) { return b->symbol || b->constant; }

/* May the launch write v where it reads r? */
static bool written_in_step(const Check *c, const Group *group, Value v, Value r) {
    if (c->seen[r] & 2 || elems(c, v) != elems(c, r)) return false;
    if (dtype_info[graph_type_at(c->g, v)->dtype].bytes !=
        dtype_info[graph_type_at(c->g, r)->dtype].bytes)
        return false;
    switch (group->kind) {
    case GROUP_MAP:
    case GROUP_REDUCE:
        return true;
    case GROUP_ROW:
        return elems(c, v) == row_count(group) && elems(c, v) != type_elems(&group->dims);
    case GROUP_CONTRACT:
        return is_lasting(&c->plan->buffers[c->ep->buffer_of[r] - 1]);
    case GROUP_SCATTER:
    case GROUP_COPY:
    case GROUP_LOOP:
    case N_GROUP_KINDS:
        break;
    }
    return false;
}

/* Writing `bytes` at `offset`: no value that this launch reads may lie there, but in step; all
 * others there are lost. */
static bool check_write(Check *c, const Group *group, Value v, const Buffer *to) {
    for (uint32_t i = 0; i < c->n_touched; i++) {
        Value r = c->touched[i];
        if (!ends_walk(c, r) || !c->ep->buffer_of[r]) continue;
        const Buffer *from = &c->plan->buffers[c->ep->buffer_of[r] - 1];
        if (!overlap(to, from)) continue;
        if (!v || from->offset != to->offset || !written_in_step(c, group, v, r))
            return fault(c, "%%%u (%s) is overwritten by the launch that reads it", r,
                         op_name(c, r));
    }
    for (uint32_t b = 0; b < c->plan->n_buffers; b++)
        if (overlap(to, &c->plan->buffers[b])) c->holds[b] = NOTHING;
    return true;
}

static bool fits_buffer(Check *c, Value v, const Buffer *b, uint32_t at) {
    if (type_bytes(graph_type_at(c->g, v)) > b->bytes)
        return fault(c, "a buffer is too small for %s", op_name(c, v));
    if (b->offset % 64) return fault(c, "a buffer is not aligned");
    if (b->offset + b->bytes > c->plan->arena_bytes)
        return fault(c, "a buffer lies outside the arena");
    if (!is_lasting(b) && (b->entry != c->entry || at < b->first || at > b->last))
        return fault(c, "%s is stored outside its buffer's life", op_name(c, v));
    if (b->constant || b->cls == BUF_INPUTS)
        return fault(c, "a constant or an input is overwritten");
    return true;
}

/* A lasting buffer may be written by a root of that name alone. */
static bool may_write(Check *c, Value v, const Buffer *b) {
    if (!b->symbol) return true;
    const Entry *e = &c->g->entries[c->entry];
    for (uint32_t i = 0; i < e->n; i++)
        if (e->roots[i].value == v && e->roots[i].is_update == (b->cls != BUF_IO) &&
            !strcmp(e->roots[i].name, b->symbol))
            return true;
    return fault(c, "%s is written by no root of that name", b->symbol);
}

static bool is_out_buffer(const Check *c, const Group *group, uint32_t b) {
    for (uint32_t i = 0; i < group->n_outs; i++)
        if (c->ep->out_buffer_of[group->outs[i]] == b) return true;
    return false;
}

/* The carries of a loop that are no outs: alive in this launch alone, apart from all that it reads
 * or writes. */
static bool check_carries(Check *c, const Group *group, const Buffer *scratch, uint32_t at) {
    for (uint32_t i = 0; i < group->loop->n_inits; i++) {
        const uint32_t b = group->loop->inits[i].to;
        const Buffer *to = &c->plan->buffers[b - 1];
        if (is_out_buffer(c, group, b)) continue;
        if (is_lasting(to)) return fault(c, "a carry lies in another's buffer");
        if (!fits_buffer(c, group->loop->inits[i].nodes[0], to, at) ||
            !check_write(c, group, 0, to))
            return false;
        if (scratch && overlap(scratch, to)) return fault(c, "the workspace overlaps a carry");
        for (uint32_t k = 0; k < group->n_outs; k++)
            if (overlap(to, &c->plan->buffers[c->ep->out_buffer_of[group->outs[k]] - 1]))
                return fault(c, "a carry overlaps an out");
        for (uint32_t k = 0; k < i; k++)
            if (overlap(to, &c->plan->buffers[group->loop->inits[k].to - 1]))
                return fault(c, "two carries overlap");
    }
    return true;
}

static bool check_writes(Check *c, const Group *group, uint32_t at) {
    const Buffer *scratch = NULL;
    Buffer workspace = {.bytes = group->workspace_bytes, .offset = group->workspace_offset};
    if (group->workspace_bytes) scratch = &workspace;
    if (scratch && !check_write(c, group, 0, scratch)) return false;
    if (group->loop && !check_carries(c, group, scratch, at)) return false;
    if (group->kind == GROUP_COPY) {
        if (!group->to || !group->root) return fault(c, "a copy leads nowhere");
        const Buffer *to = &c->plan->buffers[group->to - 1];
        if (!fits_buffer(c, group->nodes[0], to, at) || !may_write(c, group->nodes[0], to) ||
            !check_write(c, group, 0, to))
            return false;
        c->holds[group->to - 1] = group->nodes[0];
        return true;
    }
    for (uint32_t i = 0; i < group->n_outs; i++) {
        Value v = group->outs[i];
        uint32_t b = c->ep->out_buffer_of[v];
        if (!b || b != c->ep->buffer_of[v]) return fault(c, "out %s has no buffer", op_name(c, v));
        const Buffer *to = &c->plan->buffers[b - 1];
        if (scratch && overlap(scratch, to)) return fault(c, "the workspace overlaps an out");
        if (to->symbol && to->cls == BUF_WEIGHTS &&
            graph_state(c->g, to->symbol)->cls == STATE_PACKED)
            return fault(c, "packed bytes are written by a kernel that is no copy");
        for (uint32_t k = 0; k < i; k++)
            if (overlap(to, &c->plan->buffers[c->ep->out_buffer_of[group->outs[k]] - 1]))
                return fault(c, "two outs of a launch overlap");
        if (!fits_buffer(c, v, to, at) || !may_write(c, v, to) || !check_write(c, group, v, to))
            return false;
    }
    for (uint32_t i = 0; i < group->n_outs; i++)
        c->holds[c->ep->out_buffer_of[group->outs[i]] - 1] = group->outs[i];
    return true;
}

static void mark_members(Check *c, const Group *group, bool on) {
    for (uint32_t i = 0; i < group->n_nodes; i++) c->member[group->nodes[i]] = on;
    for (uint32_t i = 0; i < group->n_outs; i++) c->is_out[group->outs[i]] = on;
}

static bool check_launch(Check *c, uint32_t at) {
    const Group *group = &c->plan->groups[c->ep->order[at]];
    mark_members(c, group, true);
    bool holds = check_form(c, group) && check_reads(c, group) && check_packed_reads(c, group) &&
                 check_writes(c, group, at);
    mark_members(c, group, false);
    for (uint32_t i = 0; i < c->n_touched; i++) c->seen[c->touched[i]] = 0;
    c->n_touched = 0;
    if (!holds && c->out)
        fprintf(c->out, "plan: ... in launch %u of %s (%s)\n", at, entry_name[c->entry],
                group_kind_name[group->kind]);
    return holds;
}

/* ---------------------------------------------------------------- an entry */

/* At the beginning of an entry the lasting buffers hold the leaves that name them. */
static void begin_entry(Check *c) {
    memset(c->holds, 0, sizeof *c->holds * c->plan->n_buffers);
    for (Value v = 1; v < c->g->n_nodes; v++)
        if (leaf_in_memory(c->g, v) && c->ep->buffer_of[v]) c->holds[c->ep->buffer_of[v] - 1] = v;
}

static bool check_leaves(Check *c) {
    const bool *live = graph_reachable(c->g, c->arena, c->entry);
    for (Value v = 1; v < c->g->n_nodes; v++) {
        if (!live[v] || !leaf_in_memory(c->g, v)) continue;
        if (!c->ep->buffer_of[v]) return fault(c, "a leaf %s lies nowhere", op_name(c, v));
        const Buffer *b = &c->plan->buffers[c->ep->buffer_of[v] - 1];
        const char *name = attr_s(c->g, v, A_NAME);
        if (b->constant != (name ? 0 : v) || (name && (!b->symbol || strcmp(name, b->symbol))))
            return fault(c, "a leaf lies in another's buffer");
    }
    return true;
}

static bool check_root(Check *c, const Root *r) {
    for (uint32_t b = 0; b < c->plan->n_buffers; b++) {
        const Buffer *buf = &c->plan->buffers[b];
        bool named = buf->symbol && !strcmp(buf->symbol, r->name) && buf->cls != BUF_INPUTS &&
                     (buf->cls != BUF_IO) == r->is_update;
        if (!named || (buf->cls == BUF_IO && buf->entry != c->entry)) continue;
        Value held = c->holds[b];
        bool idle =
            r->is_update && held && graph_op(c->g, r->value) == OP_state && held == r->value;
        return held == r->value || idle ||
               fault(c, "root %s does not lie in its buffer at the end of %s", r->name,
                     entry_name[c->entry]);
    }
    return fault(c, "root %s has no buffer", r->name);
}

/* States that the entry does not update hold what they held. */
static bool check_untouched(Check *c) {
    for (Value v = 1; v < c->g->n_nodes; v++) {
        if (!leaf_in_memory(c->g, v) || !c->ep->buffer_of[v]) continue;
        const char *name = graph_op(c->g, v) == OP_state ? attr_s(c->g, v, A_NAME) : NULL;
        if (name && graph_root(c->g, c->entry, true, name)) continue;
        Value held = c->holds[c->ep->buffer_of[v] - 1];
        if (!held || !leaf_in_memory(c->g, held))
            return fault(c, "a lasting buffer is lost in %s", entry_name[c->entry]);
    }
    return true;
}

static bool check_entry(Check *c) {
    const Entry *e = &c->g->entries[c->entry];
    if (!c->ep->buffer_of)
        return e->n == 0 || fault(c, "entry %s is not planned", entry_name[c->entry]);
    begin_entry(c);
    if (!check_leaves(c)) return false;
    for (uint32_t i = 0; i < c->ep->n; i++)
        if (!check_launch(c, i)) return false;
    for (uint32_t i = 0; i < e->n; i++)
        if (!check_root(c, &e->roots[i])) return false;
    return check_untouched(c);
}

static bool check_lasting_apart(Check *c) {
    for (uint32_t i = 0; i < c->plan->n_buffers; i++) {
        if (!is_lasting(&c->plan->buffers[i])) continue;
        for (uint32_t k = 0; k < c->plan->n_buffers; k++)
            if (k != i && overlap(&c->plan->buffers[i], &c->plan->buffers[k]))
                return fault(c, "a lasting buffer shares bytes with another");
    }
    return true;
}

bool plan_check(const Graph *g, const Plan *plan, FILE *complaints) {
    Arena *arena = arena_new();
    Check c = {.g = g, .plan = plan, .out = complaints, .arena = arena, .sound = true};
    c.holds = arena_alloc(arena, sizeof *c.holds * (plan->n_buffers + 1));
    c.seen = arena_alloc(arena, g->n_nodes);
    c.touched = arena_alloc(arena, sizeof *c.touched * g->n_nodes);
    c.member = arena_alloc(arena, g->n_nodes);
    c.is_out = arena_alloc(arena, g->n_nodes);
    bool sound = check_lasting_apart(&c);
    for (int e = 0; e < N_ENTRIES && sound; e++) {
        c.entry = (EntryKind)e;
        c.ep = &plan->entries[e];
        sound = check_entry(&c);
    }
    arena_free(arena);
    return sound;
}
