/* scan.c - what a loop node is: its body's interface, its operands and the type of its result.
 *
 * Operands stand in the order carries, scanned, invariants. Everything is compared with what the
 * body declares, so a body and its nodes cannot drift apart. */
#include "scan.h"
#include "shape_rules.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *body_leaf(char name[BODY_LEAF], char kind, uint32_t i) {
    snprintf(name, BODY_LEAF, "%c%u", kind, i);
    return name;
}

const Type *body_type(const Body *b, char kind, uint32_t i) {
    char name[BODY_LEAF];
    body_leaf(name, kind, i);
    if (kind == 'y') {
        const Root *r = graph_root(b->g, ENTRY_MICRO, false, name);
        return r ? graph_type_at(b->g, r->value) : NULL;
    }
    const State *s = kind == 'c' ? graph_state(b->g, name) : NULL;
    const Input *in = kind == 'c' ? NULL : graph_input(b->g, name);
    return s ? &b->g->types[s->type] : in ? &b->g->types[in->type] : NULL;
}

static bool is_leaf_name(const char *name, char kind, uint32_t n) {
    char expected[BODY_LEAF];
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(name, body_leaf(expected, kind, i)) == 0) return true;
    return false;
}

Body body_of(const char *name, Graph *g) {
    Body b = {.name = name, .g = g, .n_carries = g->n_states};
    for (uint32_t i = 0; i < g->n_inputs; i++) {
        b.n_scanned += g->inputs[i].name[0] == 'x';
        b.n_invariants += g->inputs[i].name[0] != 'x';
    }
    const Entry *entry = &g->entries[ENTRY_MICRO];
    for (uint32_t i = 0; i < entry->n; i++) b.n_ys += !entry->roots[i].is_update;
    return b;
}

static const char *root_misfit(const Body *b, const Root *r) {
    if (!r->value || r->value >= b->g->n_nodes) return "a root dangles";
    if (!r->is_update)
        return is_leaf_name(r->name, 'y', b->n_ys) ? NULL : "its outputs are not y0, y1, ..";
    const State *s = graph_state(b->g, r->name);
    return s && s->type == b->g->nodes[r->value].type ? NULL : "an update does not fit its carry";
}

const char *body_misfit(const Body *b) {
    const Graph *g = b->g;
    for (int e = 0; e < N_ENTRIES; e++)
        if (e != ENTRY_MICRO && g->entries[e].n) return "only entry micro has roots in a body";
    for (uint32_t i = 0; i < g->n_states; i++)
        if (g->states[i].cls != STATE_CARRY || !is_leaf_name(g->states[i].name, 'c', b->n_carries))
            return "its states are not carries c0, c1, ..";
    for (uint32_t i = 0; i < g->n_inputs; i++)
        if (!is_leaf_name(g->inputs[i].name, 'x', b->n_scanned) &&
            !is_leaf_name(g->inputs[i].name, 'w', b->n_invariants))
            return "its inputs are not x0, x1, .. and w0, w1, ..";
    for (uint32_t i = 0; i < g->entries[ENTRY_MICRO].n; i++) {
        const char *misfit = root_misfit(b, &g->entries[ENTRY_MICRO].roots[i]);
        if (misfit) return misfit;
    }
    for (Value v = 1; v < g->n_nodes; v++) {
        const char *leaf = g->nodes[v].op == OP_scalar ? attr_s(g, v, A_NAME) : NULL;
        if (g->nodes[v].op == OP_random) return "random stands in a body";
        if (leaf && (strcmp(leaf, "t") != 0 || graph_type_at(g, v)->dtype != DT_I64))
            return "its only scalar is t, an i64";
    }
    return NULL;
}

uint32_t body_operand(const Body *b, const char *leaf) {
    uint32_t i = (uint32_t)strtoul(leaf + 1, NULL, 10);
    return leaf[0] == 'c' ? i : b->n_carries + (leaf[0] == 'x' ? i : b->n_scanned + i);
}

uint32_t body_n_operands(const Body *b) { return b->n_carries + b->n_scanned + b->n_invariants; }

static bool stacks(const Type *t, const Type *step, int64_t trips) {
    return step->rank + 1 == t->rank && t->dtype == step->dtype && t->dims[0] == trips &&
           (!step->rank || memcmp(t->dims + 1, step->dims, step->rank * sizeof *t->dims) == 0);
}

/* What is wrong with operand i, or NULL. */
static const char *operand_misfit(const Body *b, uint32_t i, const Type *t, int64_t trips) {
    bool is_scanned = i >= b->n_carries && i < b->n_carries + b->n_scanned;
    char kind = i < b->n_carries ? 'c' : is_scanned ? 'x' : 'w';
    uint32_t at = i < b->n_carries ? i
                  : is_scanned     ? i - b->n_carries
                                   : i - b->n_carries - b->n_scanned;
    const Type *want = body_type(b, kind, at);
    if (!want) return "its body does not declare one of its operands";
    bool fits = is_scanned ? stacks(t, want, trips) : memcmp(t, want, sizeof *t) == 0;
    if (fits) return NULL;
    return is_scanned ? "a scanned operand is not [trips, ..] of what the body reads"
                      : "an operand has another type than in the body";
}

static TypeId result_type(Graph *g, const Body *b, const Value *operands, int64_t trips,
                          int64_t result) {
    if (result < b->n_carries) return graph_node(g, operands[result])->type;
    const Type *step = body_type(b, 'y', (uint32_t)result - b->n_carries);
    if (!step || step->rank == MAX_RANK) return 0;
    Type t = {.dtype = step->dtype, .rank = (uint8_t)(step->rank + 1), .dims = {trips}};
    memcpy(t.dims + 1, step->dims, step->rank * sizeof *t.dims);
    return type_fits(&t) ? graph_type(g, t) : 0;
}

TypeId shape_scan(Graph *g, OpCode op, const Value *operands, uint32_t n, AttrId attr,
                  TypeId given) {
    int64_t body = shape_int(g, attr, A_BODY), trips = shape_int(g, attr, A_TRIPS),
            result = shape_int(g, attr, A_RESULT);
    (void)given;
    if (body < 1 || body > g->n_bodies)
        return shape_refuse(g, op, operands, n, "there is no such body");
    const Body *b = graph_body(g, (uint32_t)body);
    if (trips < 0 || trips > INT32_MAX)
        return shape_refuse(g, op, operands, n, "the number of steps is out of range");
    if (n != body_n_operands(b))
        return shape_refuse(g, op, operands, n, "not as many operands as its body reads");
    if (result < 0 || result >= (int64_t)b->n_carries + b->n_ys)
        return shape_refuse(g, op, operands, n, "its body has no such result");
    for (uint32_t i = 0; i < n; i++) {
        const char *misfit = operand_misfit(b, i, graph_type_at(g, operands[i]), trips);
        if (misfit) return shape_refuse(g, op, operands, n, misfit);
    }
    TypeId type = result_type(g, b, operands, trips, result);
    return type ? type : shape_refuse(g, op, operands, n, "the stacked result does not fit a type");
}

bool scans_are_siblings(const Graph *g, Value a, Value b) {
    const Node *m = graph_node(g, a), *n = graph_node(g, b);
    return m->op == OP_scan && n->op == OP_scan && m->n_operands == n->n_operands &&
           m->epoch == n->epoch && attr_i(g, a, A_BODY, 0) == attr_i(g, b, A_BODY, 0) &&
           attr_i(g, a, A_TRIPS, 0) == attr_i(g, b, A_TRIPS, 0) &&
           attr_i(g, a, A_REVERSE, 0) == attr_i(g, b, A_REVERSE, 0) &&
           memcmp(&g->operands[m->operands], &g->operands[n->operands],
                  n->n_operands * sizeof(Value)) == 0;
}

Value scan_emit(Graph *g, const Value *operands, uint32_t body, int64_t trips, bool is_reverse,
                uint32_t result) {
    AttrField fields[] = {attr_int(A_BODY, body), attr_int(A_TRIPS, trips),
                          attr_int(A_REVERSE, is_reverse), attr_int(A_RESULT, result)};
    return graph_emit(g, OP_scan, operands, body_n_operands(graph_body(g, body)),
                      graph_attr(g, fields, 4), 0);
}
