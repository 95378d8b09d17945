/* embed.c - a training step inside a program of your own: no files but the step library, no Python,
 * no driver.
 *
 * The program makes its own data (each class is a blob in a place of its own), trains on them,
 * evaluates on others, and reads a weight back. From the project's folder:
 *
 *   build/trainc docs/examples/digits.onnx -o out/digits --dim batch=32 --loss cross_entropy
 * --optimizer adamw cc docs/examples/embed.c -o out/embed $(PKG_CONFIG_PATH=out/digits pkg-config
 * --cflags --libs digits) out/embed
 */
#include "digits.h"
#include <stdio.h>
#include <stdlib.h>
#include <trainc.h>

enum { BATCH = 32, SIDE = 8, CLASSES = 10, STEPS = 60 };
typedef struct Samples {
    float image[BATCH][1][SIDE][SIDE];
    int64_t labels[BATCH];
} Samples;

static unsigned random_bits(unsigned *state) { return *state = *state * 1664525u + 1013904223u; }

/* A class is a bright 3x3 blob at its own place, on noise. */
static void make_samples(Samples *s, unsigned *state) {
    for (int i = 0; i < BATCH; i++) {
        int c = (int)((random_bits(state) >> 16) % CLASSES), top = c / 5 * 4, left = c % 5;
        s->labels[i] = c;
        for (int y = 0; y < SIDE; y++)
            for (int x = 0; x < SIDE; x++) {
                float noise = (float)(random_bits(state) >> 16) / 65536 * 6;
                int inside = y >= top && y < top + 3 && x >= left && x < left + 3;
                s->image[i][0][y][x] = noise + (inside ? 8 : 0);
            }
    }
}

/* Borrowed for one call; any number of samples up to the batch. */
static void bind(const Samples *s, trainc_tensor t[2]) {
    t[0] = (trainc_tensor){.name = "image",
                           .dtype = TRAINC_F32,
                           .rank = 4,
                           .dims = {BATCH, 1, SIDE, SIDE},
                           .data = s->image};
    t[1] = (trainc_tensor){
        .name = "labels", .dtype = TRAINC_I64, .rank = 1, .dims = {BATCH}, .data = s->labels};
}

static int fail(trainc_step *step, const char *what) {
    fprintf(stderr, "%s: %s\n", what, trainc_error(step));
    trainc_close(step);
    return 1;
}

static int list_parameters(trainc_step *step) {
    trainc_info info;
    for (size_t i = 0; i < trainc_count(step) && trainc_describe(step, i, &info) == TRAINC_OK; i++)
        if (info.trains) printf("  %-14s %llu bytes\n", info.name, (unsigned long long)info.bytes);
    return 0;
}

int main(void) {
    trainc_step *step;
    trainc_options options = {.seed = 1, .set = TRAINC_SET_LR, .lr = 3e-3f};
    trainc_result result;
    trainc_tensor inputs[2];
    Samples samples;
    unsigned state = 1;
    float before[CLASSES], after[CLASSES];

    if (trainc_open(digits_program(), &options, &step) != TRAINC_OK) return fail(step, "open");
    if (trainc_load(step, NULL) != TRAINC_OK) /* the weights of digits.onnx */
        return fail(step, "load");
    printf("one arena of %llu bytes; these parameters train:\n",
           (unsigned long long)trainc_arena_bytes(step));
    list_parameters(step);
    if (trainc_get(step, "head.bias", before, sizeof before) != TRAINC_OK) return fail(step, "get");

    bind(&samples, inputs);
    for (int i = 0; i < STEPS; i++) {
        make_samples(&samples, &state);
        if (trainc_train(step, inputs, 2, &result) != TRAINC_OK) return fail(step, "train");
        if (i % 10 == 0 || i == STEPS - 1)
            printf("step %2lld  loss %.4f  gradient norm %.3f\n", (long long)result.step,
                   result.loss, result.grad_norm);
    }
    make_samples(&samples, &state);
    if (trainc_evaluate(step, inputs, 2, &result) != TRAINC_OK) return fail(step, "evaluate");
    printf("loss on samples it has not seen: %.4f\n", result.loss);
    if (trainc_get(step, "head.bias", after, sizeof after) != TRAINC_OK) return fail(step, "get");
    printf("head.bias[0] was %.4f and is %.4f\n", (double)before[0], (double)after[0]);
    trainc_close(step);
    return result.loss < 0.5 ? 0 : 1;
}
