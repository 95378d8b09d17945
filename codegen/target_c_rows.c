/* target_c_rows.c - kernels with reductions, in one of two vectorizations.
 *
 * Along the reduction: parallel points are shared among threads; inside, simd loops run over the
 * innermost reduction axis, sums in blocks of 1024 floats that are added up in double. A kernel
 * that reduces everything to one point is cut into 32 fixed chunks whose partials are combined in
 * order, so that threads may share it too. Across the last parallel axis: blocks of up to 64 points
 * keep lets that outlive a stage and accumulators in small arrays; the reduction loops run outside
 * the simd loop over the block. The order of every sum is fixed by extents alone. */
#include <string.h>
#include "target_c.h"

enum { SUM_BLOCK = 1024, CHUNKS = 32, CHUNK_WORK = 65536, LANES = 64, FLUSH = 256 };

static bool is_arg(const Stmt *s) { return s->op == OP_argmax || s->op == OP_argmin; }
static bool is_float_sum(const Stmt *s) {
    return s->kind == ST_ACCUM && s->op == OP_sum && dtype_info[s->dtype].cls == CLASS_FLT;
}

/* ---- along the reduction ---- */

/* Sums of narrow integers wrap at every step, which no reduction clause says. */
static bool is_ordered(const Stmt *s) {
    const DTypeInfo *d = &dtype_info[s->dtype];
    bool adds = s->op == OP_sum || s->op == OP_prod;
    return s->kind == ST_ACCUM && (is_arg(s) || (adds && d->cls == CLASS_INT && d->bytes < 4));
}

/* gcc 12 (with -fno-trapping-math) does not vectorize a loop where an extreme of integers that come
 * from the loop's own index stands beside another reduction, but leaves the lanes' arrays in it and
 * indexes them beyond their end. Integer extremes therefore are alone or plain. */
static bool is_extreme_of_integers(const Stmt *s) {
    bool is_extreme = s->op == OP_rmax || s->op == OP_rmin;
    return s->kind == ST_ACCUM && is_extreme && dtype_info[s->dtype].cls != CLASS_FLT;
}

static void reduction_pragma(const Stage *stage, Text *out) {
    bool ordered = false, has_extreme = false;
    uint32_t n_accums = 0;
    for (uint32_t i = 0; i < stage->n; i++) {
        n_accums += stage->stmts[i].kind == ST_ACCUM;
        has_extreme |= is_extreme_of_integers(&stage->stmts[i]);
        ordered = ordered || is_ordered(&stage->stmts[i]);
    }
    if (ordered || (has_extreme && n_accums > 1)) return;
    text_printf(out, "#pragma omp simd");
    for (uint32_t i = 0; i < stage->n; i++) {
        const Stmt *s = &stage->stmts[i];
        if (s->kind != ST_ACCUM) continue;
        const char *how = s->op == OP_sum    ? "+"
                          : s->op == OP_prod ? "*"
                          : s->op == OP_rmax ? "tc_max"
                                             : "tc_min";
        text_printf(out, " reduction(%s:v%u)", how, s->dst);
    }
    text_printf(out, "\n");
}

static void accum_begin(const CKernel *c, const Stage *stage, bool outer, uint32_t depth) {
    BodyTarget t = c->body;
    t.indent = c_indent(depth);
    for (uint32_t i = 0; i < stage->n; i++) {
        const Stmt *s = &stage->stmts[i];
        if (s->kind != ST_ACCUM) continue;
        if (is_float_sum(s) && outer)
            text_printf(c->out, "%sdouble s%u = 0;\n", t.indent, s->dst);
        else if (is_float_sum(s) || outer)
            body_accum_init(c->k, s, &t, c->out);
    }
}

/* The loops of a stage; float sums are left in double s<n>, all else in v<n>. `first`, `last`:
 * bounds of the outermost axis. */
static void red_loops(const CKernel *c, const Stage *stage, const char *first, const char *last,
                      uint32_t depth) {
    const Kernel *k = c->k;
    const uint32_t inner = k->n_axes - 1;
    bool has_sum = false;
    for (uint32_t i = 0; i < stage->n; i++) has_sum = has_sum || is_float_sum(&stage->stmts[i]);
    if (!c->n_red) {
        text_printf(c->out, "%s{\n", c_indent(depth));
        accum_begin(c, stage, false, depth + 1);
        c_statements(c, stage, c_indent(depth + 1));
    }
    for (uint32_t a = c->n_par; a < inner && c->n_red; a++, depth++) {
        const char *i = c->body.axis_name[a];
        bool bounded = first && a == c->n_par;
        text_printf(c->out, "%sfor (int64_t %s = %s; %s < ", c_indent(depth), i,
                    bounded ? first : "0", i);
        if (bounded)
            text_printf(c->out, "%s; %s++) {\n", last, i);
        else
            text_printf(c->out, "%lld; %s++) {\n", (long long)k->axes[a].extent, i);
    }
    const uint32_t top = depth;
    if (c->n_red) {
        const char *i = c->body.axis_name[inner], *lo = "0",
                   *hi = arena_printf(c->out->arena, "%lld", (long long)k->axes[inner].extent);
        bool blocked = has_sum && k->axes[inner].extent > SUM_BLOCK;
        if (first && inner == c->n_par) lo = first, hi = last;
        if (blocked) {
            text_printf(c->out, "%sfor (int64_t r = %s; r < %s; r += %d) {\n", c_indent(depth), lo,
                        hi, SUM_BLOCK);
            text_printf(c->out, "%sconst int64_t end = r + %d < %s ? r + %d : %s;\n",
                        c_indent(depth + 1), SUM_BLOCK, hi, SUM_BLOCK, hi);
            lo = "r", hi = "end", depth++;
        } else
            text_printf(c->out, "%s{\n", c_indent(depth)), depth++;
        accum_begin(c, stage, false, depth);
        reduction_pragma(stage, c->out);
        text_printf(c->out, "%sfor (int64_t %s = %s; %s < %s; %s++) {\n", c_indent(depth), i, lo, i,
                    hi, i);
        c_statements(c, stage, c_indent(depth + 1));
        text_printf(c->out, "%s}\n", c_indent(depth));
    }
    for (uint32_t i = 0; i < stage->n; i++)
        if (is_float_sum(&stage->stmts[i]))
            text_printf(c->out, "%ss%u += (double)v%u;\n", c_indent(top + 1), stage->stmts[i].dst,
                        stage->stmts[i].dst);
    text_printf(c->out, "%s}\n", c_indent(top));
    for (uint32_t d = top; c->n_red && d-- > top - (inner - c->n_par);)
        text_printf(c->out, "%s}\n", c_indent(d));
}

static void accum_end(const CKernel *c, const Stage *stage, uint32_t depth) {
    for (uint32_t i = 0; i < stage->n; i++)
        if (is_float_sum(&stage->stmts[i]))
            text_printf(c->out, "%sconst float v%u = (float)s%u;\n", c_indent(depth),
                        stage->stmts[i].dst, stage->stmts[i].dst);
}

/* One loop stage in CHUNKS parts of the outermost reduction axis. */
static void chunked_stage(const CKernel *c, const Stage *stage) {
    const Kernel *k = c->k;
    const long long extent = k->axes[c->n_par].extent, size = (extent + CHUNKS - 1) / CHUNKS;
    Text *out = c->out;
    BodyTarget t = c->body;
    for (uint32_t i = 0; i < stage->n; i++) {
        const Stmt *s = &stage->stmts[i];
        if (s->kind != ST_ACCUM) continue;
        text_printf(out, "    %s part%u[%d];\n",
                    is_float_sum(s) ? "double"
                    : is_arg(s)     ? "int64_t"
                                    : body_ctype(s->dtype),
                    s->dst, CHUNKS);
        if (is_arg(s))
            text_printf(out, "    %s best%u[%d];\n", body_ctype(k->let_type[s->args[0]]), s->dst,
                        CHUNKS);
    }
    text_printf(out,
                "#pragma omp parallel for schedule(static)\n    for (int64_t chunk = 0; chunk < "
                "%d; chunk++) {\n",
                CHUNKS);
    text_printf(out,
                "        const int64_t first = chunk * %lld, last = first + %lld < %lld ? first + "
                "%lld : %lld;\n",
                size, size, extent, size, extent);
    accum_begin(c, stage, true, 2);
    red_loops(c, stage, "first", "last", 2);
    for (uint32_t i = 0; i < stage->n; i++) {
        const Stmt *s = &stage->stmts[i];
        if (s->kind != ST_ACCUM) continue;
        text_printf(out, "        part%u[chunk] = %s%u;\n", s->dst, is_float_sum(s) ? "s" : "v",
                    s->dst);
        if (is_arg(s)) text_printf(out, "        best%u[chunk] = b%u;\n", s->dst, s->dst);
    }
    text_printf(out, "    }\n");
    accum_begin(c, stage, true, 1);
    for (uint32_t i = 0; i < stage->n; i++) {
        const Stmt *s = &stage->stmts[i];
        if (s->kind != ST_ACCUM) continue;
        text_printf(out, "    for (int64_t chunk = 0; chunk < %d; chunk++) ", CHUNKS);
        t.indent = "";
        if (is_float_sum(s))
            text_printf(out, "s%u += part%u[chunk];\n", s->dst, s->dst);
        else
            body_accum_merge(k, s, arena_printf(out->arena, "part%u[chunk]", s->dst),
                             arena_printf(out->arena, "best%u[chunk]", s->dst), &t, out);
    }
    accum_end(c, stage, 1);
}

static bool is_chunked(const CKernel *c) {
    double points = 1;
    for (uint32_t i = 0; i < c->k->n_axes; i++) points *= (double)c->k->axes[i].extent;
    return c->n_par == 0 && c->n_red && c->k->axes[0].extent >= CHUNKS &&
           points >= (double)CHUNK_WORK;
}

static void rows_along(const CKernel *c) {
    const Kernel *k = c->k;
    bool large = c_is_large(c), chunked = is_chunked(c);
    const uint32_t depth = c->n_par + 1;
    if (large && c->n_par) {
        text_printf(c->out, "#pragma omp parallel for ");
        if (c->n_par > 1) text_printf(c->out, "collapse(%u) ", c->n_par);
        text_printf(c->out, "schedule(static)\n");
    }
    for (uint32_t a = 0; a < c->n_par; a++) {
        c_for(c, a, a + 1);
        text_printf(c->out, a + 1 == c->n_par ? " {\n" : "\n");
    }
    for (uint32_t s = 0; s < k->n_stages; s++) {
        const Stage *stage = &k->stages[s];
        if (!stage->loops)
            c_statements(c, stage, c_indent(depth));
        else if (chunked)
            chunked_stage(c, stage);
        else {
            accum_begin(c, stage, true, depth);
            red_loops(c, stage, NULL, NULL, depth);
            accum_end(c, stage, depth);
        }
    }
    if (c->n_par) text_printf(c->out, "%s}\n", c_indent(c->n_par));
}

/* ---- across the last parallel axis ---- */

static bool ix_uses(const Kernel *k, Ix ix, Let let) {
    if (!ix) return false;
    const IxNode *n = &k->ix[ix];
    return (n->kind == IX_LET && n->value == let) || ix_uses(k, n->a, let) || ix_uses(k, n->b, let);
}
static bool stmt_uses(const Kernel *k, const Stmt *s, Let let) {
    for (uint32_t i = 0; i < 3; i++)
        if (s->args[i] == let) return true;
    if (ix_uses(k, s->ix, let)) return true;
    for (uint32_t i = 0; i < s->n_conds; i++)
        if (ix_uses(k, s->conds[i].ix, let)) return true;
    return false;
}
static bool stage_uses(const Kernel *k, const Stage *stage, Let let) {
    for (uint32_t i = 0; i < stage->n; i++)
        if (stmt_uses(k, &stage->stmts[i], let)) return true;
    return false;
}
static bool stage_makes(const Stage *stage, Let let) {
    for (uint32_t i = 0; i < stage->n; i++)
        if (stage->stmts[i].kind != ST_STORE && stage->stmts[i].kind != ST_UPDATE &&
            stage->stmts[i].dst == let)
            return true;
    return false;
}
static const Stmt *stage_accum(const Stage *stage, Let let) {
    for (uint32_t i = 0; i < stage->n; i++)
        if (stage->stmts[i].kind == ST_ACCUM && stage->stmts[i].dst == let) return &stage->stmts[i];
    return NULL;
}

/* Row lets that a later stage uses live in arrays x<n>. */
static bool *crossing_lets(const CKernel *c) {
    const Kernel *k = c->k;
    bool *crosses = arena_alloc(c->out->arena, k->n_lets + 1);
    for (uint32_t s = 0; s < k->n_stages; s++)
        for (uint32_t i = 0; i < k->stages[s].n; i++) {
            const Stmt *x = &k->stages[s].stmts[i];
            if (x->kind == ST_STORE || x->kind == ST_UPDATE ||
                (k->stages[s].loops && x->kind != ST_ACCUM) || c->is_uniform[x->dst])
                continue;
            if (x->kind == ST_ACCUM) crosses[x->dst] = true;
            for (uint32_t l = s + 1; l < k->n_stages && !crosses[x->dst]; l++)
                crosses[x->dst] = stage_uses(k, &k->stages[l], x->dst);
        }
    return crosses;
}

static void lane_loop(const CKernel *c, const char *count, uint32_t depth) {
    const char *i = c->body.axis_name[c->n_par - 1];
    text_printf(c->out, "#pragma omp simd\n%sfor (int64_t j = 0; j < %s; j++) {\n", c_indent(depth),
                count);
    text_printf(c->out, "%sconst int64_t %s = block + j;\n%s(void)%s;\n", c_indent(depth + 1), i,
                c_indent(depth + 1), i);
}

/* One stage's simd loop; `part`: accumulators are the partial ones y<n>. */
static void lane_stage(const CKernel *c, const Stage *stage, const bool *crosses, const char *count,
                       bool part, uint32_t depth) {
    const Kernel *k = c->k;
    const char *in = c_indent(depth + 1);
    lane_loop(c, count, depth);
    for (Let l = 1; l < k->n_lets; l++) {
        if (!crosses[l]) continue;
        const Stmt *accum = stage_accum(stage, l);
        if (accum) {
            text_printf(c->out, "%s%s v%u = %c%u[j];\n", in,
                        is_arg(accum) ? "int64_t" : body_ctype(k->let_type[l]), l,
                        part && is_float_sum(accum) ? 'y' : 'x', l);
            if (is_arg(accum))
                text_printf(c->out, "%s%s b%u = z%u[j];\n", in,
                            body_ctype(k->let_type[accum->args[0]]), l, l);
        } else if (!stage_makes(stage, l) && stage_uses(k, stage, l))
            text_printf(c->out, "%sconst %s v%u = x%u[j];\n", in, body_ctype(k->let_type[l]), l, l);
    }
    c_statements(c, stage, in);
    for (Let l = 1; l < k->n_lets; l++) {
        if (!crosses[l] || !stage_makes(stage, l)) continue;
        const Stmt *accum = stage_accum(stage, l);
        text_printf(c->out, "%s%c%u[j] = v%u;\n", in,
                    accum && part && is_float_sum(accum) ? 'y' : 'x', l, l);
        if (accum && is_arg(accum)) text_printf(c->out, "%sz%u[j] = b%u;\n", in, l, l);
    }
    text_printf(c->out, "%s}\n", c_indent(depth));
}

static void lane_init(const CKernel *c, const Stage *stage, const char *count, uint32_t depth) {
    BodyTarget t = c->body;
    t.indent = c_indent(depth + 1);
    for (uint32_t i = 0; i < stage->n; i++) {
        const Stmt *s = &stage->stmts[i];
        if (s->kind != ST_ACCUM) continue;
        text_printf(c->out, "%sfor (int64_t j = 0; j < %s; j++) {\n", c_indent(depth), count);
        body_accum_init(c->k, s, &t, c->out);
        text_printf(c->out, "%sx%u[j] = v%u;\n", t.indent, s->dst, s->dst);
        if (is_arg(s)) text_printf(c->out, "%sz%u[j] = b%u;\n", t.indent, s->dst, s->dst);
        text_printf(c->out, "%s}\n", c_indent(depth));
    }
}

static void lane_loops(const CKernel *c, const Stage *stage, const bool *crosses, const char *count,
                       int lanes, uint32_t depth) {
    const Kernel *k = c->k;
    bool has_sum = false;
    for (uint32_t i = 0; i < stage->n; i++) has_sum = has_sum || is_float_sum(&stage->stmts[i]);
    bool part = has_sum && c->n_red && k->axes[c->n_par].extent > 2 * FLUSH;
    uint32_t d = depth;
    lane_init(c, stage, count, depth);
    for (uint32_t a = c->n_par; a < k->n_axes; a++, d++) {
        const char *i = c->body.axis_name[a];
        long long extent = k->axes[a].extent;
        if (part && a == c->n_par) {
            text_printf(c->out, "%sfor (int64_t r = 0; r < %lld; r += %d) {\n", c_indent(d), extent,
                        FLUSH);
            text_printf(c->out, "%sconst int64_t end = r + %d < %lld ? r + %d : %lld;\n",
                        c_indent(d + 1), FLUSH, extent, FLUSH, extent);
            for (uint32_t s = 0; s < stage->n; s++)
                if (is_float_sum(&stage->stmts[s]))
                    text_printf(c->out, "%sfloat y%u[%d] = {0};\n", c_indent(d + 1),
                                stage->stmts[s].dst, lanes);
            d++;
            text_printf(c->out, "%sfor (int64_t %s = r; %s < end; %s++) {\n", c_indent(d), i, i, i);
        } else {
            c_for(c, a, d);
            text_printf(c->out, " {\n");
        }
    }
    lane_stage(c, stage, crosses, count, part, d);
    while (d-- > depth) {
        if (part && d == depth)
            for (uint32_t s = 0; s < stage->n; s++)
                if (is_float_sum(&stage->stmts[s]))
                    text_printf(c->out, "%sfor (int64_t j = 0; j < %s; j++) x%u[j] += y%u[j];\n",
                                c_indent(d + 1), count, stage->stmts[s].dst, stage->stmts[s].dst);
        text_printf(c->out, "%s}\n", c_indent(d));
    }
}

static void rows_across(const CKernel *c) {
    const Kernel *k = c->k;
    const uint32_t lane = c->n_par - 1;
    const long long extent = k->axes[lane].extent;
    int lanes = extent < LANES ? (int)extent : LANES;
    double outer = 1;
    for (uint32_t a = 0; a < lane; a++) outer *= (double)k->axes[a].extent;
    if (outer * (double)(extent / lanes) < 4 && extent >= 64) lanes = 16;
    bool *crosses = crossing_lets(c);
    if (c_is_large(c)) {
        text_printf(c->out, "#pragma omp parallel for ");
        if (lane) text_printf(c->out, "collapse(%u) ", lane + 1);
        text_printf(c->out, "schedule(static)\n");
    }
    for (uint32_t a = 0; a < lane; a++) c_for(c, a, a + 1), text_printf(c->out, "\n");
    const uint32_t depth = lane + 2;
    text_printf(c->out, "%sfor (int64_t block = 0; block < %lld; block += %d) {\n",
                c_indent(lane + 1), extent, lanes);
    const char *count = arena_printf(c->out->arena, "%d", lanes);
    if (extent % lanes) {
        text_printf(c->out, "%sconst int64_t n = %lld - block < %d ? %lld - block : %d;\n",
                    c_indent(depth), extent, lanes, extent, lanes);
        count = "n";
    }
    for (uint32_t s = 0; s < k->n_stages; s++)
        for (uint32_t i = 0; i < k->stages[s].n; i++) {
            const Stmt *x = &k->stages[s].stmts[i];
            if (x->kind == ST_STORE || x->kind == ST_UPDATE || !crosses[x->dst]) continue;
            bool arg = x->kind == ST_ACCUM && is_arg(x);
            text_printf(c->out, "%s%s x%u[%d];\n", c_indent(depth),
                        arg ? "int64_t" : body_ctype(k->let_type[x->dst]), x->dst, lanes);
            if (arg)
                text_printf(c->out, "%s%s z%u[%d];\n", c_indent(depth),
                            body_ctype(k->let_type[x->args[0]]), x->dst, lanes);
        }
    for (uint32_t s = 0; s < k->n_stages; s++) {
        if (k->stages[s].loops)
            lane_loops(c, &k->stages[s], crosses, count, lanes, depth);
        else
            lane_stage(c, &k->stages[s], crosses, count, false, depth);
    }
    text_printf(c->out, "%s}\n", c_indent(lane + 1));
}

/* ---- which ---- */

/* Accesses of the loop stages that step by 1 along `axis`, less those that stride; their places in
 * the nest count alike. */
static int unit_strides(const CKernel *c, uint32_t axis) {
    int score = 0;
    for (uint32_t s = 0; s < c->k->n_stages; s++)
        for (uint32_t i = 0; c->k->stages[s].loops && i < c->k->stages[s].n; i++) {
            const Stmt *x = &c->k->stages[s].stmts[i];
            int64_t constant, coef[2 * MAX_RANK];
            if (x->kind != ST_LOAD && x->kind != ST_STORE) continue;
            if (!ix_affine(c->k, x->ix, &constant, coef))
                score -= 2;
            else
                score += coef[axis] == 1 ? 1 : coef[axis] == 0 ? 0 : -2;
        }
    return score;
}

static bool goes_across(const CKernel *c) {
    if (!c->n_par) return false;
    if (!c->n_red) return true;
    const int64_t par = c->k->axes[c->n_par - 1].extent, red = c->k->axes[c->k->n_axes - 1].extent;
    int across = unit_strides(c, c->n_par - 1), along = unit_strides(c, c->k->n_axes - 1);
    if (par < 8 && red >= 16) return false;
    if (red < 8 && par >= 16) return true;
    return across > along || (across == along && red < 16);
}

void c_rows(const CKernel *c) {
    c_uniform(c);
    if (goes_across(c))
        rows_across(c);
    else
        rows_along(c);
}
