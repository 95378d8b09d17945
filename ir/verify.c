/* verify.c - is this list of nodes a graph? Every complaint is a sentence that names the node.
 *
 * Checks: operands precede users; arity; attributes are exactly the row's, of the right kind; the
 * type is what the shape rule infers; locations exist; no two nodes are equal; roots exist, are
 * unique and fit their state. Nothing is assumed that is checked later, so a damaged graph is
 * described and not crashed on.
 */
#include "op_functions.h"
#include "scan.h"
#include <stdarg.h>
#include <string.h>

typedef struct Check {
    Graph *g;
    FILE *out;
    bool ok;
} Check;

__attribute__((format(printf, 3, 4))) static void complain(Check *c, Value v, const char *fmt,
                                                           ...) {
    c->ok = false;
    if (!c->out) return;
    if (v)
        fprintf(c->out, "%%%u (%s): ", v,
                c->g->nodes[v].op < N_OPS ? op_info[c->g->nodes[v].op].name : "?");
    va_list args;
    va_start(args, fmt);
    vfprintf(c->out, fmt, args);
    va_end(args);
    fputc('\n', c->out);
}

static bool node_operands_ok(Check *c, Value v) {
    const Graph *g = c->g;
    const Node *n = &g->nodes[v];
    if (n->op == OP_NONE || n->op >= N_OPS) return complain(c, v, "op %u is no op", n->op), false;
    int arity = op_info[n->op].arity;
    if (arity < 0 ? n->n_operands == 0 : n->n_operands != arity)
        return complain(c, v, "%u operands, not %d", n->n_operands, arity), false;
    if ((uint64_t)n->operands + n->n_operands > g->n_operands)
        return complain(c, v, "operands lie outside the list"), false;
    for (uint32_t i = 0; i < n->n_operands; i++) {
        Value a = graph_operand(g, v, i);
        if (a == 0 || a >= v)
            return complain(c, v, "operand %u is %%%u, which does not precede it", i, a), false;
        if (g->nodes[a].type == 0 || g->nodes[a].type >= g->n_types)
            return false; /* said of the operand already */
    }
    return true;
}

static bool node_attr_ok(Check *c, Value v) {
    const Graph *g = c->g;
    const Node *n = &g->nodes[v];
    if (n->attr >= g->n_attrs) return complain(c, v, "attribute %u does not exist", n->attr), false;
    AttrKey key = attr_misfit(g, (OpCode)n->op, n->attr);
    if (key)
        return complain(c, v, "field %s is missing or does not belong here", attr_info[key].name),
               false;
    const Attr *a = &g->attrs[n->attr];
    for (uint32_t i = 1; i < a->n; i++)
        if (a->fields[i - 1].key >= a->fields[i].key)
            return complain(c, v, "fields are not sorted"), false;
    return true;
}

/* The shape rule again; its diagnostics become complaints and leave the graph. */
static void node_type_check(Check *c, Value v) {
    Graph *g = c->g;
    Node n = g->nodes[v];
    if (n.type == 0 || n.type >= g->n_types) {
        complain(c, v, "type %u does not exist", n.type);
        return;
    }
    uint32_t n_diags = g->diags.n;
    LocId loc = g->loc;
    g->loc = n.loc;
    TypeId type = op_info[n.op].shape(g, (OpCode)n.op, &g->operands[n.operands], n.n_operands,
                                      n.attr, n.type);
    g->loc = loc;
    if (!type)
        complain(c, v, "%s",
                 g->diags.n > n_diags ? g->diags.items[g->diags.n - 1].text
                                      : "its type cannot be inferred");
    else if (type != n.type)
        complain(c, v, "type is %s, inferred is %s", type_text(g, &g->types[n.type]),
                 type_text(g, &g->types[type]));
    g->diags.n = n_diags;
}

static void node_unique_check(Check *c, Value v) {
    Graph *g = c->g;
    Node n = g->nodes[v];
    Value first = node_find(g, &n, &g->operands[n.operands]);
    if (first != v)
        complain(c, v, first ? "is the same node as %%%u" : "is not in the table (%u)", first);
}

static void loc_check(Check *c, LocId l) {
    const Loc *loc = &c->g->locs[l];
    if (loc->kind >= N_LOC_KINDS) complain(c, 0, "location %u has no kind", l);
    if (loc->parent >= l) complain(c, 0, "location %u precedes its parent %u", l, loc->parent);
}

static void root_check(Check *c, EntryKind e, uint32_t i) {
    Graph *g = c->g;
    const Root *r = &g->entries[e].roots[i];
    const char *what = r->is_update ? "update @" : "output ";
    if (r->value == 0 || r->value >= g->n_nodes) {
        complain(c, 0, "%s: %s%s = %%%u dangles", entry_name[e], what, r->name, r->value);
        return;
    }
    if (graph_root(g, e, r->is_update, r->name) != r)
        complain(c, 0, "%s: %s%s stands twice", entry_name[e], what, r->name);
    if (!r->is_update || g->nodes[r->value].type >= g->n_types) return;
    const State *s = graph_state(g, r->name);
    TypeId type = g->nodes[r->value].type;
    if (!s)
        complain(c, 0, "%s: %s%s: there is no such state", entry_name[e], what, r->name);
    else if (s->type != type)
        complain(c, 0, "%s: %s%s = %%%u: the state is %s, the value %s", entry_name[e], what,
                 r->name, r->value, type_text(g, &g->types[s->type]),
                 type_text(g, &g->types[type]));
}

static void body_check(Check *c, uint32_t i) {
    const Body *b = graph_body(c->g, i + 1);
    Body counted = body_of(b->name, b->g);
    if (!graph_verify(b->g, c->out)) {
        complain(c, 0, "... in body %u, %s", i + 1, b->name);
        return;
    }
    const char *misfit = body_misfit(b);
    if (misfit) complain(c, 0, "body %u, %s: %s", i + 1, b->name, misfit);
    if (counted.n_carries != b->n_carries || counted.n_scanned != b->n_scanned ||
        counted.n_invariants != b->n_invariants || counted.n_ys != b->n_ys)
        complain(c, 0, "body %u, %s, does not declare what it counts", i + 1, b->name);
}

bool graph_verify(Graph *g, FILE *complaints) {
    Check c = {g, complaints, true};
    for (uint32_t i = 0; i < g->n_bodies; i++) body_check(&c, i);
    for (LocId l = 1; l < g->n_locs; l++) loc_check(&c, l);
    for (Value v = 1; v < g->n_nodes; v++) {
        if (g->nodes[v].loc >= g->n_locs)
            complain(&c, v, "location %u does not exist", g->nodes[v].loc);
        if (!node_operands_ok(&c, v) || !node_attr_ok(&c, v)) continue;
        node_type_check(&c, v);
        node_unique_check(&c, v);
    }
    for (int e = 0; e < N_ENTRIES; e++)
        for (uint32_t i = 0; i < g->entries[e].n; i++) root_check(&c, (EntryKind)e, i);
    return c.ok;
}
