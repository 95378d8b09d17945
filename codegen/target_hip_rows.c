/* target_hip_rows.c - kernels with reduction axes as HIP source.
 *
 * A row is one point of the parallel axes. A team of 1, 8, 32 or 256 threads shares it: one long
 * reduction axis is split among the team and the others are plain loops, or all of them are split
 * and each thread counts its indices on with carries; no index is divided inside a loop. Partial
 * accumulators merge in a fixed order: neighbouring lanes by butterfly exchanges inside groups of
 * 32 (the same on waves of 32 and 64, and every lane ends with the same bits), the groups of a
 * block through LDS. Where the rows lie contiguously in memory (a sum down columns), neighbouring
 * lanes take neighbouring rows instead, and the team merges through LDS. Threads past the last row
 * compute it again and store nothing, because every lane must reach the exchanges. No statement of
 * a row stage has an effect but its store, which the team's first thread does.
 */
#include <stdlib.h>
#include <string.h>
#include "target_hip.h"

static uint32_t first_reduction(const Kernel *k) {
    uint32_t i = 0;
    while (i < k->n_axes && k->axes[i].role == AXIS_PAR) i++;
    return i;
}

/* unit[axis]: how many loads and stores of the loop stages step by one element along it. */
static void count_unit_strides(const Kernel *k, uint32_t *unit) {
    for (uint32_t s = 0; s < k->n_stages; s++) {
        if (!k->stages[s].loops) continue;
        for (uint32_t i = 0; i < k->stages[s].n; i++) {
            const Stmt *st = &k->stages[s].stmts[i];
            int64_t constant, c[2 * MAX_RANK] = {0};
            if (st->kind != ST_LOAD && st->kind != ST_STORE) continue;
            if (!ix_affine(k, st->ix, &constant, c)) continue;
            for (uint32_t a = 0; a < k->n_axes; a++)
                unit[a] += llabs((long long)c[a]) == 1 && k->axes[a].extent > 1;
        }
    }
}

static uint32_t best_split(const Kernel *k, uint32_t red, const uint32_t *unit) {
    uint32_t best = red;
    for (uint32_t a = red; a < k->n_axes; a++) {
        const bool longer = k->axes[a].extent > k->axes[best].extent;
        if (k->axes[a].extent < 16 ? longer && k->axes[best].extent < 16
                                   : unit[a] > unit[best] || (unit[a] == unit[best] && longer) ||
                                         k->axes[best].extent < 16)
            best = a;
    }
    return best;
}

/* Threads for a row of `length` points in all, where one axis is not long enough: some 8192
 * threads, eight points for each. */
static uint32_t flat_team(int64_t rows, int64_t length, bool columns) {
    if (length < 64 || rows >= 8192) return 1;
    if (columns) return length >= 512 && rows < 2048 ? 32 : 8;
    return length >= 2048 && rows < 256 ? 256 : 32;
}

static uint32_t axis_team(int64_t rows, int64_t extent, bool columns) {
    if (columns) return extent < 32 || rows >= 16384 ? 1 : extent >= 512 && rows < 4096 ? 32 : 8;
    if (extent < 16 || (rows >= 65536 && extent < 64)) return 1;
    return extent > 1024 || (rows <= 1024 && extent >= 512) || (rows < 64 && extent >= 256) ? 256
                                                                                            : 32;
}

/* hip_rows - how the rows of a kernel fall onto threads: by the strides of its accesses and its
 * extents alone. */
HipRows hip_rows(const Kernel *k) {
    const uint32_t red = first_reduction(k);
    uint32_t unit[2 * MAX_RANK] = {0}, par_unit = 0, n_long = 0;
    HipRows r = {
        .team = 1, .rows = HIP_THREADS, .split = k->n_axes, .vec = 1, .n_rows = 1, .length = 1};
    for (uint32_t a = 0; a < red; a++) r.n_rows *= k->axes[a].extent;
    for (uint32_t a = red; a < k->n_axes; a++)
        r.length *= k->axes[a].extent, n_long += k->axes[a].extent > 1;
    if (red < k->n_axes) {
        count_unit_strides(k, unit);
        for (uint32_t a = 0; a < red; a++)
            if (unit[a] > par_unit) par_unit = unit[a];
        const uint32_t split = best_split(k, red, unit);
        const int64_t extent = k->axes[split].extent;
        r.columns = par_unit > unit[split];
        r.flat = n_long > 1 && extent < 128 && r.length < INT32_MAX;
        r.team = r.flat ? flat_team(r.n_rows, r.length, r.columns)
                        : axis_team(r.n_rows, extent, r.columns);
        if (r.team == 1) r.columns = r.flat = false;
        if (r.team > 1 && !r.flat) r.split = split;
        if (r.team > 1 && !r.flat && !r.columns && unit[split] && extent % 4 == 0 &&
            extent >= 4 * (int64_t)r.team)
            r.vec = 4;
        r.rows = HIP_THREADS / r.team;
    }
    r.blocks = (r.n_rows + r.rows - 1) / r.rows;
    return r;
}

static void print_row_index(const Kernel *k, const HipRows *r, Text *out) {
    const char *type = hip_index_type(k);
    const uint32_t red = first_reduction(k);
    const bool ragged = r->n_rows % r->rows != 0;
    if (!r->n_rows) text_printf(out, "    return;\n"); /* a launch has one block at least */
    if (r->team == 1) {
        text_printf(out, "    const %s row = (%s)tc_block_id() * 256 + tc_tid();\n", type, type);
        if (ragged) text_printf(out, "    if (row >= %lld) return;\n", (long long)r->n_rows);
    } else {
        text_printf(out, "    const int lane = tc_tid() %s %u, place = tc_tid() %s %u;\n",
                    r->columns ? "/" : "%", r->columns ? r->rows : r->team, r->columns ? "%" : "/",
                    r->columns ? r->rows : r->team);
        text_printf(out, "    const %s mine = (%s)tc_block_id() * %u + place;\n", type, type,
                    r->rows);
        if (ragged) {
            text_printf(out,
                        "    const bool in = mine < %lld;\n    const %s row = in ? mine : %lld;\n",
                        (long long)r->n_rows, type, (long long)r->n_rows - 1);
        } else {
            text_printf(out, "    const %s row = mine;\n", type);
        }
    }
    if (red)
        hip_print_axes(k, 0, red - 1, 1, "row", out);
    else
        text_printf(out, "    (void)row;\n");
}

static bool has_accumulators(const Stage *s) {
    for (uint32_t i = 0; i < s->n; i++)
        if (s->stmts[i].kind == ST_ACCUM) return true;
    return false;
}

static bool is_arg(const Stmt *s) { return s->op == OP_argmax || s->op == OP_argmin; }

static void print_merge(const Kernel *k, const Stmt *s, const BodyTarget *t, const char *indent,
                        const char *value, const char *best, Text *out) {
    BodyTarget inner = *t;
    inner.indent = indent;
    text_printf(out, "%sconst auto x = %s;\n", indent, value);
    if (is_arg(s)) text_printf(out, "%sconst auto y = %s;\n", indent, best);
    body_accum_merge(k, s, "x", "y", &inner, out);
}

/* Neighbouring lanes exchange until all hold the merge of their group. */
static void print_butterfly(const Kernel *k, const Stmt *s, const BodyTarget *t, Text *out) {
    text_printf(out, "    TC_UNROLL for (int o = 1; o < 32; o *= 2) {\n");
    print_merge(k, s, t, "        ", arena_printf(out->arena, "tc_xor(v%u, o)", s->dst),
                arena_printf(out->arena, "tc_xor(b%u, o)", s->dst), out);
    text_printf(out, "    }\n");
}

/* One accumulator through LDS: `lines` partials of each of `columns` rows; thread (line, column)
 * has written its own. */
static void print_lds_write(const Stmt *s, uint32_t lines, uint32_t columns, const char *line,
                            const char *column, const char *guard, Text *out) {
    const uint32_t d = s->dst;
    text_printf(out, "    TC_LDS decltype(v%u) l%u[%u][%u];\n", d, d, lines, columns);
    if (is_arg(s))
        text_printf(out, "    TC_LDS decltype(b%u) m%u[%u][%u];\n", d, d, lines, columns);
    text_printf(out, "    %s{ l%u[%s][%s] = v%u;", guard, d, line, column, d);
    if (is_arg(s)) text_printf(out, " m%u[%s][%s] = b%u;", d, line, column, d);
    text_printf(out, " }\n");
}

static void print_lds_read(const Kernel *k, const Stmt *s, const BodyTarget *t, uint32_t lines,
                           const char *column, Text *out) {
    const uint32_t d = s->dst;
    text_printf(out, "    v%u = l%u[0][%s];%s\n", d, d, column,
                is_arg(s) ? arena_printf(out->arena, " b%u = m%u[0][%s];", d, d, column) : "");
    text_printf(out, "    TC_UNROLL for (int o = 1; o < %u; o++) {\n", lines);
    print_merge(k, s, t, "        ", arena_printf(out->arena, "l%u[o][%s]", d, column),
                arena_printf(out->arena, "m%u[o][%s]", d, column), out);
    text_printf(out, "    }\n");
}

static void print_merges(const Kernel *k, const Stage *stage, const HipRows *r, const BodyTarget *t,
                         Text *out) {
    const bool through_lds = r->columns || r->team > 32;
    const uint32_t lines = r->columns ? r->team : r->team / 32, columns = r->columns ? r->rows : 1;
    const char *line = r->columns ? "lane" : "lane / 32", *column = r->columns ? "place" : "0";
    const char *guard = r->columns ? "" : "if (lane % 32 == 0) ";
    for (uint32_t i = 0; i < stage->n; i++)
        if (stage->stmts[i].kind == ST_ACCUM) {
            if (!r->columns) print_butterfly(k, &stage->stmts[i], t, out);
            if (through_lds)
                print_lds_write(&stage->stmts[i], lines, columns, line, column, guard, out);
        }
    if (!through_lds) return;
    text_printf(out, "    tc_barrier();\n");
    for (uint32_t i = 0; i < stage->n; i++)
        if (stage->stmts[i].kind == ST_ACCUM)
            print_lds_read(k, &stage->stmts[i], t, lines, column, out);
}

static void print_stmts(const Graph *g, const Kernel *k, const Stage *stage, const BodyTarget *t,
                        const char *store_guard, Text *out) {
    for (uint32_t i = 0; i < stage->n; i++) {
        const Stmt *s = &stage->stmts[i];
        if (s->kind == ST_STORE && *store_guard) {
            BodyTarget inner = *t;
            inner.indent = arena_printf(out->arena, "%s    ", t->indent);
            text_printf(out, "%sif (%s) {\n", t->indent, store_guard);
            body_print(g, k, s, &inner, out);
            text_printf(out, "%s}\n", t->indent);
        } else {
            body_print(g, k, s, t, out);
        }
    }
}

/* Plain loops over the axes that the team does not split, then the split one. Few copies of the
 * body: bodies with many conditions would keep a mask for each. Returns the indent inside. */
static const char *open_loops(const Kernel *k, const HipRows *r, BodyTarget *t, Text *out) {
    const char *type = hip_index_type(k), *indent = "    ";
    for (uint32_t a = first_reduction(k); a < k->n_axes; a++) {
        if (a == r->split) continue;
        const bool innermost = r->split == k->n_axes && a + 1 == k->n_axes;
        if (r->length > 16) text_printf(out, "#pragma unroll %d\n", innermost ? 4 : 1);
        text_printf(out, "%sfor (%s a%u = 0; a%u < %lld; a%u++) {\n", indent, type, a, a,
                    (long long)k->axes[a].extent, a);
        indent = arena_printf(out->arena, "%s    ", indent);
    }
    if (r->split == k->n_axes) return indent;
    const uint32_t a = r->split;
    text_printf(out, "%sfor (%s a%u = lane * %u; a%u < %lld; a%u += %u) {\n", indent, type, a,
                r->vec, a, (long long)k->axes[a].extent, a, r->team * r->vec);
    indent = arena_printf(out->arena, "%s    ", indent);
    if (r->vec == 1) return indent;
    text_printf(out, "%sTC_UNROLL for (int u = 0; u < %u; u++) {\n", indent, r->vec);
    t->axis_name[a] = arena_printf(out->arena, "(a%u + u)", a);
    return arena_printf(out->arena, "%s    ", indent);
}

/* All reduction axes at once: thread `lane` takes points lane, lane + team, ...; the indices are
 * decomposed once, then count on by the digits of `team` in the mixed radix of the extents. */
static const char *open_flat_loop(const Kernel *k, const HipRows *r, Text *out) {
    int64_t step = 1;
    text_printf(out, "    {\n");
    for (uint32_t a = k->n_axes; a-- > first_reduction(k);) {
        text_printf(out, "        int a%u = lane / %lld %% %lld;\n", a, (long long)step,
                    (long long)k->axes[a].extent);
        step *= k->axes[a].extent;
    }
    text_printf(out, "        for (int point = lane; point < %lld; point += %u) {\n",
                (long long)r->length, r->team);
    return "            ";
}

static void close_flat_loop(const Kernel *k, const HipRows *r, Text *out) {
    int64_t digits = r->team;
    const uint32_t red = first_reduction(k);
    for (uint32_t a = k->n_axes; a-- > red;) {
        const int64_t extent = k->axes[a].extent, digit = a == red ? digits : digits % extent;
        digits /= extent;
        if (digit) text_printf(out, "            a%u += %lld;\n", a, (long long)digit);
        if (a > red)
            text_printf(out, "            if (a%u >= %lld) a%u -= %lld, a%u++;\n", a,
                        (long long)extent, a, (long long)extent, a - 1);
    }
    text_printf(out, "        }\n    }\n");
}

static void print_loop_stage(const Graph *g, const Kernel *k, const Stage *stage, const HipRows *r,
                             const char *guard, Text *out) {
    BodyTarget t = hip_body(k, out->arena, "    ");
    for (uint32_t i = 0; i < stage->n; i++)
        if (stage->stmts[i].kind == ST_ACCUM) body_accum_init(k, &stage->stmts[i], &t, out);
    const char *indent = t.indent = r->flat ? open_flat_loop(k, r, out) : open_loops(k, r, &t, out);
    print_stmts(g, k, stage, &t, guard, out);
    if (r->flat)
        close_flat_loop(k, r, out);
    else
        while (strlen(indent) > 4) {
            indent += 4;
            text_printf(out, "%s}\n", indent);
        }
    t = hip_body(k, out->arena, "    ");
    if (r->team > 1 && has_accumulators(stage)) print_merges(k, stage, r, &t, out);
}

/* hip_print_rows - the inside of a kernel of form ROWS. */
void hip_print_rows(const Graph *g, const Kernel *k, Text *out) {
    const HipRows r = hip_rows(k);
    const BodyTarget t = hip_body(k, out->arena, "    ");
    const bool guarded = r.team > 1 && r.n_rows % r.rows;
    print_row_index(k, &r, out);
    const char *row_guard = r.team == 1 ? "" : guarded ? "lane == 0 && in" : "lane == 0";
    for (uint32_t s = 0; s < k->n_stages; s++) {
        const Stage *stage = &k->stages[s];
        if (stage->loops)
            print_loop_stage(g, k, stage, &r, guarded ? "in" : "", out);
        else
            print_stmts(g, k, stage, &t, row_guard, out);
    }
}
