/* fuzz_reach.c - tests that the random graphs reach what there is: every op of the registry, every
 * storage type, every rank, and the corners by which ops differ. What is added to a table and not
 * to the generator fails here by name. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include "gen.h"

enum { N_SEEDS = 20000 };
typedef struct Reach {
    uint32_t op[N_OPS], dtype[N_DTYPES], rank[MAX_RANK + 1];
    uint32_t integer_map[N_OPS][N_DTYPES];
    uint32_t view[N_OPS][N_DTYPES]; /* what moves elements, by their type */
    uint32_t scatter[N_OPS][SCATTER_MAX + 1];
    uint32_t conv[N_OPS][4][2]; /* spatial axes, grouped */
    uint32_t empty_in[N_OPS], empty_out, filled_of_empty;
    uint32_t broadcast[3]; /* the first operand, the second, both */
    uint32_t batched_gather, reverse, nested;
} Reach;

static bool is_conv(OpCode op) { return op == OP_conv || op == OP_conv_dx || op == OP_conv_dw; }

static void reach_map(Reach *r, const Graph *g, Value v) {
    bool expanded[2];
    if (op_info[graph_op(g, v)].arity != 2) return;
    for (uint32_t i = 0; i < 2; i++) expanded[i] = graph_op(g, graph_operand(g, v, i)) == OP_expand;
    if (expanded[0] || expanded[1]) r->broadcast[expanded[0] + 2 * expanded[1] - 1]++;
}

static void reach_node(Reach *r, const Graph *g, Value v) {
    OpCode op = graph_op(g, v);
    const Node *n = graph_node(g, v);
    const Type *t = graph_type_at(g, v),
               *first = n->n_operands ? graph_type_at(g, graph_operand(g, v, 0)) : t;
    bool takes_empty = false;
    r->op[op]++, r->dtype[t->dtype]++, r->rank[t->rank]++;
    for (uint32_t i = 0; i < n->n_operands; i++)
        takes_empty = takes_empty || !type_elems(graph_type_at(g, graph_operand(g, v, i)));
    r->empty_in[op] += takes_empty;
    r->empty_out += !type_elems(t);
    r->filled_of_empty += takes_empty && type_elems(t);
    if (op_info[op].lower == LOWER_VIEW) r->view[op][t->dtype]++;
    if (op_info[op].lower == LOWER_SCATTER) r->scatter[op][attr_i(g, v, A_MODE, 0)]++;
    if (is_conv(op)) r->conv[op][first->rank - 2][attr_i(g, v, A_GROUPS, 1) > 1]++;
    if (op == OP_gather_nd) r->batched_gather += attr_i(g, v, A_BATCH, 0) > 0;
    if (op_info[op].cls == OPC_NUM || op_info[op].cls == OPC_INT || op_info[op].cls == OPC_CMP)
        r->integer_map[op][first->dtype]++;
    if (op_info[op].cls != OPC_NONE) reach_map(r, g, v);
}

static void reach_graph(Reach *r, const Graph *g, int depth) {
    for (Value v = 1; v < g->n_nodes; v++) {
        reach_node(r, g, v);
        if (graph_op(g, v) != OP_scan) continue;
        r->reverse += attr_i(g, v, A_REVERSE, 0) != 0;
        r->nested += depth > 0;
        reach_graph(r, scan_body(g, v)->g, depth + 1);
    }
}

static const Reach *reached(void) {
    static Reach r;
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        Graph *g = fuzz_graph(seed);
        reach_graph(&r, g, 0);
        graph_free(g);
    }
    return &r;
}

Test(fuzz_reach, every_op_type_and_rank) {
    const Reach *r = reached();
    for (int op = 1; op < N_OPS; op++)
        cr_expect(r->op[op] > 0, "no graph has %s", op_info[op].name);
    for (int d = 1; d < N_DTYPES; d++)
        cr_expect(r->dtype[d] > 0, "no graph has %s", dtype_info[d].name);
    for (int rank = 0; rank <= MAX_RANK; rank++)
        cr_expect(r->rank[rank] > 0, "no graph has rank %d", rank);
}

Test(fuzz_reach, integers_of_every_type_in_every_map) {
    const Reach *r = reached();
    for (int op = 1; op < N_OPS; op++)
        for (int d = 1; d < N_DTYPES; d++) {
            OpClass cls = op_info[op].cls;
            if (dtype_info[d].cls == CLASS_INT &&
                (cls == OPC_NUM || cls == OPC_INT || cls == OPC_CMP))
                cr_expect(r->integer_map[op][d] > 0, "no graph has %s of %s", op_info[op].name,
                          dtype_info[d].name);
        }
}

Test(fuzz_reach, views_of_every_type) {
    const Reach *r = reached();
    for (int d = 1; d < N_DTYPES; d++) {
        uint32_t n = 0;
        for (int op = 1; op < N_OPS; op++) n += r->view[op][d] > 0;
        cr_expect(n >= 4, "only %u kinds of view of %s", n, dtype_info[d].name);
    }
}

Test(fuzz_reach, corners_of_structured_ops) {
    const Reach *r = reached();
    for (int op = 1; op < N_OPS; op++) {
        for (int mode = 0; mode <= SCATTER_MAX && op_info[op].lower == LOWER_SCATTER; mode++)
            cr_expect(r->scatter[op][mode] > 0, "no %s of mode %d", op_info[op].name, mode);
        for (int i = 2; i < 8 && is_conv((OpCode)op); i++)
            cr_expect(r->conv[op][i / 2][i % 2] > 0, "no %s over %d axes%s", op_info[op].name,
                      i / 2, i % 2 ? " in groups" : "");
        LowerClass lower = op_info[op].lower;
        bool takes_nothing =
            lower != LOWER_LEAF && lower != LOWER_LOOP && op != OP_argmax && op != OP_argmin;
        cr_expect(!takes_nothing || r->empty_in[op] > 0, "no %s of nothing", op_info[op].name);
    }
    for (int i = 0; i < 3; i++)
        cr_expect(r->broadcast[i] > 0, "operands %d never broadcast", i + 1);
    cr_expect(r->empty_out > 0 && r->filled_of_empty > 0);
    cr_expect(r->batched_gather > 0 && r->reverse > 0 && r->nested > 0);
}

/* Inputs and states of the graphs that ask for them. */
Test(fuzz_reach, special_values) {
    uint32_t n_nan = 0, n_inf = 0, n_minus_zero = 0, n_least = 0, n_most = 0;
    Arena *arena = arena_new();
    for (uint64_t seed = 0; seed < 700; seed++) {
        Graph *g = fuzz_graph(seed);
        for (uint32_t i = 0; i < g->n_inputs; i++) {
            Tensor t = fuzz_tensor(g, g->inputs[i].name, seed, arena);
            bool is_float = dtype_info[t.type.dtype].cls == CLASS_FLT;
            for (int64_t k = 0; k < type_elems(&t.type); k++) {
                if (!is_float) n_least += t.u.i[k] == INT64_MIN, n_most += t.u.i[k] == INT64_MAX;
                if (!is_float) continue;
                n_nan += isnan(t.u.f[k]), n_inf += isinf(t.u.f[k]);
                n_minus_zero += t.u.f[k] == 0 && signbit(t.u.f[k]);
            }
        }
        graph_free(g);
    }
    cr_expect(n_nan && n_inf && n_minus_zero && n_least && n_most);
    arena_free(arena);
}
