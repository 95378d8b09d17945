/* target_c.c - kernels as C17 with OpenMP: signature, pointwise loops, and what a library product
 * leaves to do.
 *
 * Outer parallel axes become one `parallel for` with a static schedule, the innermost a simd loop.
 * Every element is computed by one thread in a fixed order, so results do not depend on the number
 * of threads. Statements that depend on nothing but constants and step scalars are made once, at
 * the top. Parameters are restrict: an in-place kernel has one parameter for both. */
#include <assert.h>
#include <string.h>
#include "target_c.h"
#include "math.h.inc"
#include "cpu.h.inc"
#include "cpu_tile.h.inc"

/* Operations x points from which on threads pay: some 20 us on one of them, where starting and
 * joining the others takes a few, and far more on a machine that has other things to do. */
enum { PARALLEL_WORK = 1 << 18 };

const char *c_indent(uint32_t depth) {
    static const char spaces[] =
        "                                                                                ";
    uint32_t n = 4 * depth;
    return spaces + (sizeof spaces - 1 > n ? sizeof spaces - 1 - n : 0);
}

static void mark_uniform(CKernel *c) {
    for (uint32_t s = 0; s < c->k->n_stages; s++) {
        const Stage *stage = &c->k->stages[s];
        for (uint32_t i = 0; !stage->loops && i < stage->n; i++) {
            const Stmt *x = &stage->stmts[i];
            bool pure = x->kind == ST_MAP || x->kind == ST_CAST;
            bool args = c->is_uniform[x->args[0]] && (!x->args[1] || c->is_uniform[x->args[1]]) &&
                        (!x->args[2] || c->is_uniform[x->args[2]]);
            if (x->kind == ST_CONST || x->kind == ST_SCALAR || (pure && args))
                c->is_uniform[x->dst] = true;
        }
    }
}

CKernel c_kernel(const Graph *g, const Kernel *k, Text *out) {
    CKernel c = {.g = g, .k = k, .out = out, .body = {.indent = "    "}};
    c.is_uniform = arena_alloc(out->arena, k->n_lets + 1);
    for (uint32_t i = 0; i < k->n_axes; i++) {
        c.body.axis_name[i] = arena_printf(out->arena, "i%u", i);
        if (k->axes[i].role == AXIS_PAR)
            c.n_par++;
        else
            c.n_red++;
    }
    mark_uniform(&c);
    return c;
}

void c_signature(const CKernel *c, const char *suffix) {
    const Kernel *k = c->k;
    text_printf(c->out, "static void %s%s(", k->name, suffix);
    for (uint32_t i = 0; i < k->n_params; i++) {
        const Param *p = &k->params[i];
        const char *type = dtype_info[p->dtype].c_name, *comma = i ? ", " : "";
        if (p->is_scalar)
            text_printf(c->out, "%sconst %s p%u", comma, type, i);
        else
            text_printf(c->out, "%s%s%s *restrict p%u", comma, p->is_written ? "" : "const ", type,
                        i);
    }
    text_printf(c->out, ")\n{\n");
    for (uint32_t i = 0; i < k->n_params; i++)
        text_printf(c->out, "%s(void)p%u;%s", i ? " " : "    ", i,
                    i + 1 == k->n_params ? "\n" : "");
}

void c_uniform(const CKernel *c) {
    BodyTarget t = c->body;
    t.indent = "    ";
    for (uint32_t s = 0; s < c->k->n_stages; s++)
        for (uint32_t i = 0; !c->k->stages[s].loops && i < c->k->stages[s].n; i++) {
            const Stmt *x = &c->k->stages[s].stmts[i];
            bool is_effect = x->kind == ST_STORE || x->kind == ST_UPDATE || x->kind == ST_ACCUM;
            if (!is_effect && c->is_uniform[x->dst]) body_print(c->g, c->k, x, &t, c->out);
        }
}

void c_statements(const CKernel *c, const Stage *stage, const char *indent) {
    BodyTarget t = c->body;
    t.indent = indent;
    for (uint32_t i = 0; i < stage->n; i++) {
        const Stmt *x = &stage->stmts[i];
        bool is_effect = x->kind == ST_STORE || x->kind == ST_UPDATE || x->kind == ST_ACCUM;
        if (is_effect || !c->is_uniform[x->dst]) body_print(c->g, c->k, x, &t, c->out);
    }
}

bool c_is_large(const CKernel *c) {
    double points = 1, work = 0;
    for (uint32_t i = 0; i < c->k->n_axes; i++) points *= (double)c->k->axes[i].extent;
    for (uint32_t s = 0; s < c->k->n_stages; s++)
        for (uint32_t i = 0; i < c->k->stages[s].n; i++) {
            const Stmt *x = &c->k->stages[s].stmts[i];
            uint32_t cost = x->kind == ST_MAP      ? op_info[x->op].cost
                            : x->kind == ST_RANDOM ? op_info[OP_random].cost
                                                   : 1;
            work += cost > 1 ? cost : 1;
        }
    return points * (work + 1) >= (double)PARALLEL_WORK;
}

void c_for(const CKernel *c, uint32_t axis, uint32_t depth) {
    const char *i = c->body.axis_name[axis];
    text_printf(c->out, "%sfor (int64_t %s = 0; %s < %lld; %s++)", c_indent(depth), i, i,
                (long long)c->k->axes[axis].extent, i);
}

/* Loops over the parallel axes; prints the head down to the opening brace of the innermost body,
 * returns its depth. */
static uint32_t points_head(const CKernel *c, bool large) {
    const uint32_t n = c->n_par;
    int64_t outer = 1;
    for (uint32_t i = 0; i + 1 < n; i++) outer *= c->k->axes[i].extent;
    bool splits_last = n == 1 || outer < 8;
    if (large && !splits_last) {
        text_printf(c->out, "#pragma omp parallel for ");
        if (n > 2) text_printf(c->out, "collapse(%u) ", n - 1);
        text_printf(c->out, "schedule(static)\n");
    }
    for (uint32_t i = 0; i + 1 < n; i++) {
        c_for(c, i, 1 + i);
        text_printf(c->out, " {\n");
        if (i + 2 < n && large && !splits_last)
            c->out->n -= 3, text_printf(c->out, "\n"); /* collapsed loops are nested perfectly */
    }
    text_printf(c->out, large && splits_last ? "#pragma omp parallel for simd schedule(static)\n"
                                             : "#pragma omp simd\n");
    c_for(c, n - 1, n);
    text_printf(c->out, " {\n");
    return n + 1;
}

static void points_tail(const CKernel *c, bool large) {
    const uint32_t n = c->n_par;
    int64_t outer = 1;
    for (uint32_t i = 0; i + 1 < n; i++) outer *= c->k->axes[i].extent;
    bool collapsed = large && !(n == 1 || outer < 8);
    for (uint32_t i = n; i-- > 0;)
        if (i + 1 == n || i + 2 == n || !collapsed) text_printf(c->out, "%s}\n", c_indent(1 + i));
}

static void points_nest(const CKernel *c, const char *first_line) {
    bool large = c_is_large(c);
    uint32_t depth = c->n_par ? points_head(c, large) : 1;
    if (first_line) text_printf(c->out, "%s%s\n", c_indent(depth), first_line);
    for (uint32_t s = 0; s < c->k->n_stages; s++)
        if (!c->k->stages[s].loops) c_statements(c, &c->k->stages[s], c_indent(depth));
    if (c->n_par) points_tail(c, large);
}

void c_points(const CKernel *c) {
    c_uniform(c);
    points_nest(c, NULL);
}

void target_c_kernel(const Graph *g, const Kernel *k, Text *out) {
    CKernel c = c_kernel(g, k, out);
    c_signature(&c, "");
    switch (k->form) {
    case FORM_POINTS:
        c_points(&c);
        break;
    case FORM_ROWS:
    case FORM_CONV:
        c_rows(&c);
        break;
    case FORM_TILE:
        c_tile(&c);
        break;
    case FORM_SCATTER:
        c_scatter(&c);
        break;
    }
    text_printf(out, "}\n");
}

/* ---- what a library call leaves ---- */

static Let contraction_acc(const Kernel *k) {
    return k->form == FORM_TILE ? k->tile.acc : k->form == FORM_CONV ? k->conv.acc : 0;
}

static const Stmt *store_to(const Kernel *k, uint32_t param) {
    for (uint32_t s = 0; s < k->n_stages; s++)
        for (uint32_t i = 0; i < k->stages[s].n; i++)
            if (k->stages[s].stmts[i].kind == ST_STORE && k->stages[s].stmts[i].param == param)
                return &k->stages[s].stmts[i];
    return NULL;
}

int target_c_library_param(const Graph *g, const Kernel *k) {
    const uint32_t a = k->form == FORM_TILE ? k->tile.a : k->conv.x,
                   b = k->form == FORM_TILE ? k->tile.b : k->conv.w;
    (void)g;
    if (!contraction_acc(k) || k->flops < (k->form == FORM_TILE ? 1u << 21 : 1u << 20))
        return -1; /* own tiles are as fast on small products */
    if (k->form == FORM_TILE && k->tile.n_batch_axes) return -1;
    if (k->params[a].dtype != DT_F32 || k->params[b].dtype != DT_F32) return -1;
    for (uint32_t i = 0; i < k->n_params; i++) {
        const Param *p = &k->params[i];
        if (p->is_written && !p->is_read && p->dtype == DT_F32 && store_to(k, i)) return (int)i;
    }
    return -1;
}

bool target_c_has_epilogue(const Graph *g, const Kernel *k) {
    const Stmt *to = store_to(k, (uint32_t)target_c_library_param(g, k));
    uint32_t n_stores = 0;
    for (uint32_t s = 0; s < k->n_stages; s++)
        for (uint32_t i = 0; i < k->stages[s].n; i++)
            n_stores += k->stages[s].stmts[i].kind == ST_STORE;
    return n_stores > 1 || to->args[0] != contraction_acc(k);
}

void target_c_epilogue(const Graph *g, const Kernel *k, Text *out) {
    CKernel c = c_kernel(g, k, out);
    const Stmt *to = store_to(k, (uint32_t)target_c_library_param(g, k));
    Text line = {.arena = out->arena};
    text_printf(&line, "const float v%u = p%u[", contraction_acc(k), to->param);
    body_index(k, to->ix, &c.body, &line);
    text_printf(&line, "];");
    c_signature(&c, "_epilogue");
    c_uniform(&c);
    points_nest(&c, line.s);
    text_printf(out, "}\n");
}

void target_c_prelude(Text *out) {
    text_printf(out, "%s\n%s\n%s\n", prelude_cpu, prelude_math, prelude_cpu_tile);
}
