/* target_hip.c - kernels as HIP source: signature, pointwise kernels, prelude, launch shapes.
 *
 * One source serves clang's ahead-of-time compilation for every target, hipRTC, and the host: it
 * includes nothing, and what differs between targets is decided by target macros inside the
 * prelude. Launch shapes are the same for all targets: blocks of 256 threads, the grid along x (y
 * only where it would be too long). A pointwise thread makes a few neighbours of the last axis, so
 * that loads and stores become wide ones; flat indices are divided by constants once, before any
 * loop. Statements come from body.c; reductions are in target_hip_rows.c, contractions in
 * target_hip_tile.c. Parameters are __restrict: an in-place kernel reads an element in the thread
 * that then writes it.
 */
#include <assert.h>
#include "target_hip.h"
#include "hip_base.h.inc"
#include "hip_gemm_bf16.h.inc"
#include "hip_gemm_f32.h.inc"
#include "math.h.inc"

bool hip_is_wide(const Kernel *k) {
    for (uint32_t i = 1; i < k->n_ix; i++)
        if (k->ix[i].hi > INT32_MAX || k->ix[i].lo < INT32_MIN) return true;
    int64_t points = 1;
    for (uint32_t i = 0; i < k->n_axes; i++)
        if (k->axes[i].role == AXIS_PAR) points *= k->axes[i].extent;
    return points > INT32_MAX - HIP_THREADS * 4;
}

const char *hip_index_type(const Kernel *k) { return hip_is_wide(k) ? "int64_t" : "int"; }

BodyTarget hip_body(const Kernel *k, Arena *arena, const char *indent) {
    BodyTarget t = {.indent = indent, .is_gpu = true};
    for (uint32_t i = 0; i < k->n_axes; i++) t.axis_name[i] = arena_printf(arena, "a%u", i);
    return t;
}

HipPoints hip_points(const Kernel *k) {
    int64_t points = 1, inner = 1;
    for (uint32_t i = 0; i < k->n_axes; i++) {
        points *= k->axes[i].extent;
        inner = k->axes[i].extent;
    }
    const uint32_t vec = inner % 4 == 0 ? 4 : inner % 2 == 0 ? 2 : 1;
    return (HipPoints){vec, points / (int64_t)vec};
}

void hip_print_axes(const Kernel *k, uint32_t first, uint32_t last, uint32_t unit, const char *flat,
                    Text *out) {
    const char *type = hip_index_type(k);
    int64_t step = 1;
    for (uint32_t i = last + 1; i-- > first;) {
        const int64_t extent = k->axes[i].extent / (i == last ? unit : 1);
        text_printf(out, "    const %s a%u = ", type, i);
        if (extent == 1 && i != first)
            text_printf(out, "0");
        else if (step == 1)
            text_printf(out, "%s", flat);
        else
            text_printf(out, "%s / %lld", flat, (long long)step);
        if (i != first && extent != 1) text_printf(out, " %% %lld", (long long)extent);
        if (i == last && unit > 1) text_printf(out, " * %u", unit);
        text_printf(out, ";\n");
        step *= extent;
    }
}

static void print_signature(const Kernel *k, Text *out) {
    if (k->comment) text_printf(out, "/* %s */\n", k->comment);
    text_printf(out, "TC_KERNEL void %s(", k->name);
    for (uint32_t i = 0; i < k->n_params; i++) {
        const Param *p = &k->params[i];
        const char *type = dtype_info[p->dtype].c_name, *comma = i ? ", " : "";
        if (p->is_scalar)
            text_printf(out, "%s%s p%u", comma, type, i);
        else
            text_printf(out, "%s%s%s *__restrict p%u", comma, p->is_written ? "" : "const ", type,
                        i);
    }
    text_printf(out, ")\n{\n");
}

static void print_points(const Graph *g, const Kernel *k, Text *out) {
    const HipPoints shape = hip_points(k);
    const char *type = hip_index_type(k);
    const bool unrolled = shape.vec > 1;
    BodyTarget t = hip_body(k, out->arena, unrolled ? "        " : "    ");
    text_printf(out, "    const %s i = (%s)tc_block_id() * 256 + tc_tid();\n", type, type);
    if (shape.threads % HIP_THREADS || !shape.threads)
        text_printf(out, "    if (i >= %lld) return;\n", (long long)shape.threads);
    if (k->n_axes) hip_print_axes(k, 0, k->n_axes - 1, shape.vec, "i", out);
    if (unrolled) {
        t.axis_name[k->n_axes - 1] = arena_printf(out->arena, "(a%u + u)", k->n_axes - 1);
        text_printf(out, "    TC_UNROLL for (int u = 0; u < %u; u++) {\n", shape.vec);
    }
    for (uint32_t s = 0; s < k->n_stages; s++)
        for (uint32_t i = 0; i < k->stages[s].n; i++)
            body_print(g, k, &k->stages[s].stmts[i], &t, out);
    if (unrolled) text_printf(out, "    }\n");
}

/* target_hip_kernel - appends the kernel as HIP source. The launch is target_hip_launch's;
 * arguments are the params in order. */
void target_hip_kernel(const Graph *g, const Kernel *k, Text *out) {
    print_signature(k, out);
    switch (k->form) {
    case FORM_POINTS:
        print_points(g, k, out);
        break;
    case FORM_TILE:
        hip_print_tile(g, k, out);
        break;
    case FORM_ROWS:
    case FORM_CONV:
        hip_print_rows(g, k, out);
        break;
    case FORM_SCATTER:
        assert(0 && "a scatter on a GPU is lowered to rows");
        break;
    }
    text_printf(out, "}\n\n");
}

/* target_hip_prelude - appends what stands before all kernels: types, wave operations, math,
 * contraction routines. */
void target_hip_prelude(Text *out) {
    text_printf(out, "%s\n", prelude_hip_base);
    text_printf(out, "#ifdef __HIP__\n#pragma clang force_cuda_host_device begin\n#endif\n%s\n",
                prelude_math);
    text_printf(out, "#ifdef __HIP__\n#pragma clang force_cuda_host_device end\n#endif\n");
    text_printf(out, "%s\n%s\n", prelude_hip_gemm_f32, prelude_hip_gemm_bf16);
}

/* target_hip_launch - grid and block of the kernel, the same on every target. */
LaunchShape target_hip_launch(const Kernel *k) {
    int64_t blocks = 1;
    switch (k->form) {
    case FORM_POINTS:
        blocks = (hip_points(k).threads + HIP_THREADS - 1) / HIP_THREADS;
        break;
    case FORM_TILE:
        blocks = hip_tile(k).blocks;
        break;
    case FORM_ROWS:
    case FORM_CONV:
        blocks = hip_rows(k).blocks;
        break;
    case FORM_SCATTER:
        break;
    }
    if (blocks < 1) blocks = 1;
    const int64_t x = blocks < HIP_GRID_X ? blocks : HIP_GRID_X;
    return (LaunchShape){
        {(uint32_t)x, (uint32_t)((blocks + x - 1) / x), 1}, {HIP_THREADS, 1, 1}, 0};
}
