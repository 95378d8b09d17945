/* toy.c - the tables and kernels that a compiler would have written for toy.h, so the runtime is
 * tested by itself.
 *
 * Arena (bytes): w 0, frozen 256, m.w 512, grad.w 768, loss_sum 1024, loss_count 1280, ids 1536,
 * labels 1792, loss 2048, grad_norm 2304, loss_sum, loss_count and close_sum of eval 2560, 2816 and
 * 3328, derived 3072 (what `init` makes: twice the frozen values). close_sum is a metric: how many
 * predictions are within 1. */
#include "toy.h"
#include "trainc_program.h"
#include <math.h>

static float predict(const float *w, const int64_t *ids, int64_t i) {
    int64_t a = ids[2 * i], b = ids[2 * i + 1];
    return w[a < 0 ? a + TOY_ROWS : a] + w[b < 0 ? b + TOY_ROWS : b];
}

/* w ids labels grad sum count | micro samples loss_scale */
static void micro(void *const *args) {
    const float *w = args[0], *labels = args[2];
    const int64_t *ids = args[1], m = *(const int64_t *)args[6],
                  samples = *(const int64_t *)args[7];
    float *grad = args[3], *sum = args[4], *count = args[5], scale = *(const float *)args[8];
    for (int r = 0; m == 0 && r < TOY_ROWS; r++) grad[r] = 0;
    *sum = m ? *sum : 0;
    *count = m ? *count : 0;
    for (int64_t i = 0; i < samples; i++) {
        float e = predict(w, ids, i) - labels[i];
        *sum += e * e;
        *count += 1;
        for (int k = 0; k < 2; k++) {
            int64_t row = ids[2 * i + k];
            grad[row < 0 ? row + TOY_ROWS : row] += 2 * e * scale / (float)TOY_BATCH;
        }
    }
}

/* w m grad sum count loss norm | lr weight_decay momentum clip loss_scale first */
static void apply(void *const *args) {
    float *w = args[0], *m = args[1], *loss = args[5], *norm = args[6];
    const float *grad = args[2], sum = *(const float *)args[3], count = *(const float *)args[4];
    const float lr = *(const float *)args[7], wd = *(const float *)args[8],
                momentum = *(const float *)args[9], clip = *(const float *)args[10],
                scale = *(const float *)args[11], first = *(const float *)args[12];
    float factor = (float)TOY_BATCH / (count * scale), squares = 0;
    for (int r = 0; r < TOY_ROWS; r++) squares += grad[r] * factor * grad[r] * factor;
    *norm = sqrtf(squares);
    *loss = sum / count;
    if (!isfinite(*norm)) return;
    if (*norm > clip) factor *= clip / (*norm + 1e-6f);
    for (int r = 0; r < TOY_ROWS; r++) {
        float g = grad[r] * factor + wd * w[r];
        m[r] = first != 0 ? g : momentum * m[r] + g;
        w[r] -= lr * m[r];
    }
}

/* w ids labels sum count close | samples */
static void eval(void *const *args) {
    const float *w = args[0], *labels = args[2];
    float *sum = args[3], *count = args[4], *close = args[5];
    *sum = *count = *close = 0;
    for (int64_t i = 0; i < *(const int64_t *)args[6]; i++) {
        float e = predict(w, args[1], i) - labels[i];
        *sum += e * e;
        *count += 1;
        *close += fabsf(e) <= 1;
    }
}

static void init(void *const *args) {
    for (int i = 0; i < 3; i++) ((float *)args[1])[i] = 2 * ((const float *)args[0])[i];
}

static const float first_w[TOY_ROWS] = {0.5f, -0.25f, 1, 0, 2}, frozen[3] = {1, 2, 3};

#define STATE(name_, cls_, at, n, trains_, of_, data_)                                             \
    {                                                                                              \
        .name = name_, .cls = cls_, .dtype = TRAINC_F32, .rank = (n) > 0, .trains = trains_,       \
        .dims = {n}, .offset = at, .bytes = 4 * ((n) > 0 ? (n) : 1), .of = of_, .file = -1,        \
        .data = data_, .batch_axis = -1                                                            \
    }
static const trainc_symbol symbols[] = {
    STATE("frozen", TRAINC_SYM_PARAM, 256, 3, 0, NULL, frozen),
    STATE("w", TRAINC_SYM_PARAM, 0, TOY_ROWS, 1, NULL, first_w),
    STATE("m.w", TRAINC_SYM_OPTIMIZER, 512, TOY_ROWS, 0, "w", NULL),
    STATE("grad.w", TRAINC_SYM_GRADIENT, 768, TOY_ROWS, 0, "w", NULL),
    STATE("loss_sum", TRAINC_SYM_COUNTER, 1024, 0, 0, NULL, NULL),
    STATE("loss_count", TRAINC_SYM_COUNTER, 1280, 0, 0, NULL, NULL),
    STATE("derived", TRAINC_SYM_PACKED, 3072, 3, 0, NULL, NULL),
    {.name = "ids",
     .cls = TRAINC_SYM_INPUT,
     .dtype = TRAINC_I64,
     .rank = 2,
     .dims = {TOY_MICRO, 2},
     .offset = 1536,
     .bytes = TOY_MICRO * 16,
     .file = -1,
     .batch_axis = 0,
     .index_limit = TOY_ROWS},
    {.name = "labels",
     .cls = TRAINC_SYM_INPUT,
     .dtype = TRAINC_F32,
     .rank = 1,
     .dims = {TOY_MICRO},
     .offset = 1792,
     .bytes = TOY_MICRO * 4,
     .file = -1,
     .batch_axis = 0},
    STATE("loss", TRAINC_SYM_OUTPUT, 2048, 0, 0, NULL, NULL),
    STATE("grad_norm", TRAINC_SYM_OUTPUT, 2304, 0, 0, NULL, NULL),
    STATE("loss_sum", TRAINC_SYM_OUTPUT, 2560, 0, 0, NULL, NULL),
    STATE("loss_count", TRAINC_SYM_OUTPUT, 2816, 0, 0, NULL, NULL),
    STATE("close_sum", TRAINC_SYM_OUTPUT, 3328, 0, 0, NULL, NULL),
};

#define AT(at, n, access)                                                                          \
    {                                                                                              \
        NULL, at, 4 * (n), TRAINC_F32, access, { 0 }                                               \
    }
#define SCALAR_OF(name, dtype)                                                                     \
    {                                                                                              \
        name, 0, 0, dtype, 1, { 0 }                                                                \
    }
static const trainc_arg args[] = {
    AT(0, TOY_ROWS, 1),
    {NULL, 1536, TOY_MICRO * 16, TRAINC_I64, 1, {0}},
    AT(1792, TOY_MICRO, 1),
    AT(768, TOY_ROWS, 3),
    AT(1024, 1, 3),
    AT(1280, 1, 3),
    SCALAR_OF("micro", TRAINC_I64),
    SCALAR_OF("samples", TRAINC_I64),
    SCALAR_OF("loss_scale", TRAINC_F32),
    AT(0, TOY_ROWS, 3),
    AT(512, TOY_ROWS, 3),
    AT(768, TOY_ROWS, 1),
    AT(1024, 1, 1),
    AT(1280, 1, 1),
    AT(2048, 1, 2),
    AT(2304, 1, 2),
    SCALAR_OF("lr", TRAINC_F32),
    SCALAR_OF("weight_decay", TRAINC_F32),
    SCALAR_OF("momentum", TRAINC_F32),
    SCALAR_OF("clip", TRAINC_F32),
    SCALAR_OF("loss_scale", TRAINC_F32),
    SCALAR_OF("first", TRAINC_F32),
    AT(0, TOY_ROWS, 1),
    {NULL, 1536, TOY_MICRO * 16, TRAINC_I64, 1, {0}},
    AT(1792, TOY_MICRO, 1),
    AT(2560, 1, 2),
    AT(2816, 1, 2),
    AT(3328, 1, 2),
    SCALAR_OF("samples", TRAINC_I64),
    AT(256, 3, 1),
    AT(3072, 3, 2),
};
static const trainc_kernel kernels[] = {{.name = "k0_micro", .host = micro},
                                        {.name = "k1_apply", .host = apply},
                                        {.name = "k2_eval", .host = eval},
                                        {.name = "k3_init", .host = init}};
static const trainc_launch micro_launches[] = {{.kernel = 0, .first_arg = 0, .n_args = 9}};
static const trainc_launch apply_launches[] = {{.kernel = 1, .first_arg = 9, .n_args = 13}};
static const trainc_launch eval_launches[] = {{.kernel = 2, .first_arg = 22, .n_args = 7}};
static const trainc_launch init_launches[] = {{.kernel = 3, .first_arg = 29, .n_args = 2}};
static const trainc_plan plans[] = {{.device = "cpu",
                                     .arena_bytes = 4096,
                                     .symbols = symbols,
                                     .n_symbols = sizeof symbols / sizeof *symbols,
                                     .kernels = kernels,
                                     .n_kernels = 4,
                                     .args = args,
                                     .n_args = sizeof args / sizeof *args,
                                     .entries = {{init_launches, 1, NULL, 0},
                                                 {micro_launches, 1, NULL, 0},
                                                 {apply_launches, 1, NULL, 0},
                                                 {eval_launches, 1, NULL, 0}}}};
static const trainc_program program = {.abi = TRAINC_ABI,
                                       .name = "toy",
                                       .version = "0",
                                       .model = "/nonexistent/toy.onnx",
                                       .optimizer = "sgd",
                                       .loss = "mse",
                                       .batch = TOY_BATCH,
                                       .micro_batch = TOY_MICRO,
                                       .accumulation_steps = TOY_BATCH / TOY_MICRO,
                                       .ignore_index = -100,
                                       .tokens_per_sample = 1,
                                       .plans = plans,
                                       .n_plans = 1};

const trainc_program *toy_program(void) { return &program; }
