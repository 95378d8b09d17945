/* trainc_library.c - the scratch that a CPU library will want for a contraction, and the bytes of
 * its weights in the library's own layout, so that the plan holds them.
 *
 * The plan is made before operands have a layout in memory, so the runtime is asked for the most
 * over the layouts that a product may get. Where the library is another one at run time and wants
 * more, the runtime reserves the rest and reports it. */
#include "step_plan.h"
#include "cpu_dnnl.h"

enum {
    LEAST_FLOPS = 1 << 19
}; /* codegen/target_c.c asks for twice as many, and four times for products */

static void copy_list(const Graph *g, Value v, AttrKey key, int64_t *to, int rank,
                      int64_t otherwise) {
    uint32_t n = 0;
    const int64_t *list = attr_list(g, v, key, &n);
    for (int i = 0; i < rank; i++) to[i] = list && (uint32_t)i < n ? list[i] : otherwise;
}

static void convolution_of(const Graph *g, Value v, trainc_contraction *c) {
    const Type *a = graph_type_at(g, graph_operand(g, v, 0)),
               *b = graph_type_at(g, graph_operand(g, v, 1)), *d = graph_type_at(g, v);
    const Type *x = graph_op(g, v) == OP_conv_dx ? d : a, *w = graph_op(g, v) == OP_conv_dw ? d : b;
    const Type *y = graph_op(g, v) == OP_conv ? d : graph_op(g, v) == OP_conv_dx ? a : b;
    c->kind = graph_op(g, v) == OP_conv ? 1 : graph_op(g, v) == OP_conv_dx ? 2 : 3;
    c->rank = x->rank - 2;
    c->groups = attr_i(g, v, A_GROUPS, 1);
    for (int i = 0; i < x->rank && i < 5; i++)
        c->x_dims[i] = x->dims[i], c->w_dims[i] = w->dims[i], c->y_dims[i] = y->dims[i];
    copy_list(g, v, A_STRIDES, c->strides, c->rank, 1);
    copy_list(g, v, A_DILATIONS, c->dilations, c->rank, 1);
    copy_list(g, v, A_LOW, c->low, c->rank, 0);
    copy_list(g, v, A_HIGH, c->high, c->rank, 0);
}

static bool product_of(const Graph *g, Value v, trainc_contraction *c) {
    const Type *a = graph_type_at(g, graph_operand(g, v, 0)), *d = graph_type_at(g, v);
    if (d->rank < 2) return false;
    c->batch = 1;
    for (int i = 0; i < d->rank - 2; i++) c->batch *= d->dims[i];
    c->m = d->dims[d->rank - 2];
    c->n = d->dims[d->rank - 1];
    int64_t rows = c->batch * c->m;
    c->k = rows ? type_elems(a) / rows : 0;
    return rows > 0;
}

static uint64_t flops_of(const trainc_contraction *c) {
    uint64_t n = 2;
    if (c->kind == 0) return n * (uint64_t)(c->batch * c->m * c->n * c->k);
    for (int i = 0; i < c->rank + 2; i++)
        n *= (uint64_t)c->w_dims[i] * (uint64_t)(i == 1 ? 1 : c->y_dims[i]);
    return n;
}

typedef uint64_t QueryFn(Onednn *, const trainc_contraction *);

/* 0 where the library will not be asked to compute v, or is not there. */
static uint64_t ask(const Graph *g, Value v, QueryFn *query) {
    trainc_contraction c = {.a_dtype = TRAINC_F32, .b_dtype = TRAINC_F32, .d_dtype = TRAINC_F32};
    bool f32 = graph_type_at(g, graph_operand(g, v, 0))->dtype == DT_F32 &&
               graph_type_at(g, graph_operand(g, v, 1))->dtype == DT_F32;
    if (!f32 || graph_type_at(g, v)->rank > 5) return 0;
    if (graph_op(g, v) != OP_dot)
        convolution_of(g, v, &c);
    else if (!product_of(g, v, &c))
        return 0;
    Onednn *o = flops_of(&c) < (c.kind == 0 ? 3 : 1) * LEAST_FLOPS ? NULL : onednn_open();
    uint64_t bytes = o ? query(o, &c) : 0;
    onednn_close(o);
    return bytes;
}

uint64_t library_scratch_bytes(const Graph *g, Value v) { return ask(g, v, onednn_scratch_query); }

uint64_t library_packed_bytes(const Graph *g, Value v, int which) {
    return which == 1 && graph_op(g, v) == OP_dot ? ask(g, v, onednn_packed_query) : 0;
}
