/* Tests of the library's calls, on the hand-written toy program. */
#include "rt_test.h"
#include <math.h>
#include <string.h>

#define CLOSE(a, b)                                                                                \
    cr_assert(fabs((double)(a) - (double)(b)) <= 1e-5 * (1 + fabs((double)(b))),                   \
              "%.9g is not %.9g", (double)(a), (double)(b))

static trainc_step *open_toy(const char *device) {
    trainc_options o = {.device = device,
                        .set = TRAINC_SET_LR | TRAINC_SET_MOMENTUM | TRAINC_SET_WEIGHT_DECAY,
                        .lr = 0.1f,
                        .momentum = 0.9f,
                        .weight_decay = 0.01f};
    trainc_step *s;
    cr_assert_eq(trainc_open(toy_program(), &o, &s), TRAINC_OK, "%s", trainc_error(s));
    return s;
}

static size_t toy_inputs(trainc_tensor t[2], int64_t first, int64_t n) {
    t[0] = (trainc_tensor){"ids", TRAINC_I64, 2, {n, 2}, toy_ids[first]};
    t[1] = (trainc_tensor){"labels", TRAINC_F32, 1, {n}, toy_labels + first};
    return 2;
}

Test(step, trains_like_the_reference_over_micro_batches_and_a_padded_batch) {
    ToyReference ref = {.w = {0.5, -0.25, 1, 0, 2}};
    trainc_step *s = open_toy(NULL);
    trainc_tensor t[2];
    const int64_t first[] = {0, 8, 0, 2}, n[] = {8, 3, 5, 4};
    for (int k = 0; k < 4; k++) {
        trainc_result r;
        float w[TOY_ROWS];
        toy_inputs(t, first[k], n[k]);
        cr_assert_eq(trainc_train(s, t, 2, &r), TRAINC_OK, "%s", trainc_error(s));
        toy_reference_step(&ref, toy_ids[first[k]], toy_labels + first[k], (int)n[k], 0.1, 0.9,
                           0.01, INFINITY);
        CLOSE(r.loss, ref.loss);
        CLOSE(r.grad_norm, ref.norm);
        cr_assert_eq(r.step, k + 1);
        cr_assert_eq(r.counted, n[k]);
        cr_assert_eq(trainc_get(s, "w", w, sizeof w), TRAINC_OK);
        for (int i = 0; i < TOY_ROWS; i++) CLOSE(w[i], ref.w[i]);
    }
    trainc_close(s);
}

Test(step, evaluates_any_number_of_samples_without_training) {
    trainc_step *s = open_toy("cpu");
    trainc_tensor t[2];
    trainc_result r;
    double want = 0;
    float w[TOY_ROWS] = {0.5f, -0.25f, 1, 0, 2}, after[TOY_ROWS];
    for (int i = 0; i < 11; i++) {
        double e = (double)w[(toy_ids[i][0] + TOY_ROWS) % TOY_ROWS] + (double)w[toy_ids[i][1]] -
                   (double)toy_labels[i];
        want += e * e / 11;
    }
    toy_inputs(t, 0, 11);
    cr_assert_eq(trainc_evaluate(s, t, 2, &r), TRAINC_OK, "%s", trainc_error(s));
    CLOSE(r.loss, want);
    cr_assert_eq(trainc_get(s, "w", after, sizeof after), TRAINC_OK);
    cr_assert_arr_eq(w, after, sizeof w);
    trainc_close(s);
}

Test(step, makes_derived_state_again_after_a_weight_was_set) {
    trainc_step *s = open_toy(NULL);
    trainc_tensor t[2];
    const float frozen[3] = {5, 6, 7};
    trainc_info info;
    toy_inputs(t, 0, 8);
    cr_assert_eq(trainc_train(s, t, 2, NULL), TRAINC_OK);
    cr_assert_eq(trainc_set(s, "frozen", frozen, sizeof frozen), TRAINC_OK);
    cr_assert_eq(trainc_train(s, t, 2, NULL), TRAINC_OK);
    float got[3];
    cr_assert_eq(trainc_get(s, "frozen", got, sizeof got), TRAINC_OK);
    cr_assert_arr_eq(got, frozen, sizeof got);
    cr_assert_eq(trainc_describe(s, 0, &info), TRAINC_OK);
    cr_assert_str_eq(info.name, "frozen");
    trainc_close(s);
}

Test(step, widens_integers_and_narrows_them_where_every_value_fits) {
    trainc_step *s = open_toy(NULL);
    uint16_t ids[8][2];
    double labels[8];
    trainc_result a, b;
    trainc_tensor t[2];
    for (int i = 0; i < 8; i++) {
        ids[i][0] = (uint16_t)((toy_ids[i][0] + TOY_ROWS) % TOY_ROWS);
        ids[i][1] = (uint16_t)toy_ids[i][1];
        labels[i] = (double)toy_labels[i];
    }
    toy_inputs(t, 0, 8);
    cr_assert_eq(trainc_train(s, t, 2, &a), TRAINC_OK);
    trainc_close(s);
    s = open_toy(NULL);
    t[0].dtype = TRAINC_U16;
    t[0].data = ids;
    t[1].dtype = TRAINC_F64;
    t[1].data = labels;
    cr_assert_eq(trainc_train(s, t, 2, &b), TRAINC_OK, "%s", trainc_error(s));
    cr_assert_eq(memcmp(&a.loss, &b.loss, sizeof a.loss), 0);
    trainc_close(s);
}

typedef struct Wrong {
    const char *what, *says;
    trainc_status status;
} Wrong;

Test(step, refuses_wrong_calls_with_a_status_and_a_sentence_and_stays_usable) {
    trainc_step *s = open_toy(NULL);
    trainc_tensor t[3];
    trainc_result r;
    int64_t ids[8][2];
    float buffer[TOY_ROWS];
    toy_inputs(t, 0, 8);
    cr_assert_eq(trainc_train(s, t, 1, &r), TRAINC_USAGE);
    cr_assert_str_eq(trainc_error(s), "no data for input labels");
    t[2] = (trainc_tensor){"mask", TRAINC_F32, 1, {8}, toy_labels};
    cr_assert_eq(trainc_train(s, t, 3, &r), TRAINC_USAGE);
    cr_assert_str_eq(trainc_error(s), "the program has no input mask; it has ids, labels");
    t[1].dims[0] = 7;
    cr_assert_eq(trainc_train(s, t, 2, &r), TRAINC_BAD_DATA);
    cr_assert_str_eq(trainc_error(s), "labels has 7 samples, others have 8");
    toy_inputs(t, 0, 9);
    cr_assert_eq(trainc_train(s, t, 2, &r), TRAINC_BAD_DATA);
    cr_assert_str_eq(trainc_error(s), "9 samples for a batch of 8");
    toy_inputs(t, 0, 8);
    t[1].rank = 2;
    t[1].dims[1] = 3;
    cr_assert_eq(trainc_train(s, t, 2, &r), TRAINC_BAD_DATA);
    cr_assert(strstr(trainc_error(s), "[8, 3]") && strstr(trainc_error(s), "[4]"), "%s",
              trainc_error(s));
    toy_inputs(t, 0, 8);
    t[0].dtype = TRAINC_F32;
    cr_assert_eq(trainc_train(s, t, 2, &r), TRAINC_BAD_DATA);
    toy_inputs(t, 0, 8);
    memcpy(ids, toy_ids, sizeof ids);
    ids[6][1] = 99;
    t[0].data = ids;
    cr_assert_eq(trainc_train(s, t, 2, &r), TRAINC_BAD_DATA);
    cr_assert_str_eq(trainc_error(s),
                     "ids: value 99 in sample 6 is out of range: the table has 5 rows (0 to 4)");
    cr_assert_eq(trainc_get(s, "nothing", buffer, sizeof buffer), TRAINC_USAGE);
    cr_assert_eq(trainc_get(s, "w", buffer, 4), TRAINC_USAGE);
    cr_assert_eq(trainc_load(s, "/nonexistent.safetensors"), TRAINC_BAD_MODEL);
    toy_inputs(t, 0, 8);
    cr_assert_eq(trainc_train(s, t, 2, &r), TRAINC_OK);
    cr_assert_eq(r.step, 1, "a refused call begins no step");
    trainc_close(s);
}

Test(step, a_device_that_is_not_there_is_an_error_with_a_sentence) {
    trainc_step *s;
    trainc_tensor t[2];
    toy_inputs(t, 0, 8);
    cr_assert_eq(trainc_open(toy_program(), &(trainc_options){.device = "tpu"}, &s), TRAINC_USAGE);
    cr_assert_str_eq(trainc_error(s), "no such device: tpu (cpu, hip or hip:N)");
    cr_assert_eq(trainc_train(s, t, 2, NULL), TRAINC_USAGE);
    trainc_close(s);
    cr_assert_eq(trainc_open(toy_program(), &(trainc_options){.device = "hip"}, &s), TRAINC_USAGE);
    cr_assert_str_eq(trainc_error(s), "toy was not compiled for device hip");
    trainc_close(s);
    trainc_close(NULL);
}

Test(step, describes_parameters_moments_gradients_inputs_outputs_in_that_order) {
    trainc_step *s = open_toy(NULL);
    static const char *const want[] = {"frozen",   "w",          "m.w",      "grad.w",
                                       "ids",      "labels",     "loss",     "grad_norm",
                                       "loss_sum", "loss_count", "close_sum"};
    cr_assert_eq(trainc_count(s), 11);
    for (size_t i = 0; i < 11; i++) {
        trainc_info info;
        cr_assert_eq(trainc_describe(s, i, &info), TRAINC_OK);
        cr_assert_str_eq(info.name, want[i]);
    }
    cr_assert_eq(trainc_describe(s, 11, &(trainc_info){0}), TRAINC_USAGE);
    cr_assert_eq(trainc_arena_bytes(s), 4096);
    trainc_close(s);
}
