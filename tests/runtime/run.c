/* Tests of `trainc run` on the toy's library: logs, resuming, gradients, and what it refuses. */
#include "run.h"
#include "rt_test.h"
#include "safetensors.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[1024];

static const char *in(const char *name) {
    static char paths[8][1300];
    static int next;
    char *p = paths[next++ % 8];
    snprintf(p, sizeof paths[0], "%s/%s", folder, name);
    return p;
}

static void begin(const char *name, int n) {
    char shape[64];
    snprintf(folder, sizeof folder, "%s", test_folder(name));
    cr_assert_eq(chdir(folder), 0);
    snprintf(shape, sizeof shape, "(%d, 2)", n);
    write_npy("ids.npy", "<i8", shape, toy_ids, (size_t)n * 16);
    snprintf(shape, sizeof shape, "(%d,)", n);
    write_npy("labels.npy", "<f4", shape, toy_labels, (size_t)n * 4);
}

/* Runs the driver with these options after the folder and the data; stderr goes to a file. */
static int run(const char *options) {
    char text[2000], *argv[64] = {"run", BUILD_DIR "/toy-step"};
    int argc = 2;
    snprintf(text, sizeof text, "%s", options);
    for (char *p = strtok(text, " "); p; p = strtok(NULL, " ")) argv[argc++] = p;
    cr_assert_not_null(freopen("stderr.txt", "w", stderr));
    int status = trainc_run_main(argc, argv);
    fflush(stderr);
    return status;
}

static void said(const char *what) {
    size_t n;
    char *s = read_file(in("stderr.txt"), &n);
    cr_assert(strstr(s, what), "wanted: %s\nsaid: %s", what, s);
    free(s);
}

#define DATA "--data ids=ids.npy --data labels=labels.npy "

static double field(const char *line, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\": ", key);
    const char *p = strstr(line, quoted);
    cr_assert_not_null(p, "no %s in %s", key, line);
    return strncmp(p + strlen(quoted), "null", 4) == 0 ? (double)NAN : atof(p + strlen(quoted));
}

Test(run, logs_every_step_and_wraps_around_the_data) {
    ToyReference ref = {.w = {0.5, -0.25, 1, 0, 2}};
    size_t n;
    begin("run-log", 11);
    cr_assert_eq(run(DATA "--steps 5 --lr 0.1 --momentum 0.9 --clip 1 --schedule linear --warmup 2 "
                          "--log l.jsonl"),
                 0);
    char *log = read_file("l.jsonl", &n), *line = strtok(log, "\n");
    const double lr[] = {0, 0.05, 0.1, 0.1 * 2 / 3, 0.1 / 3};
    for (int k = 0; k < 5; k++, line = strtok(NULL, "\n")) {
        int first = k % 2 ? 8 : 0, count = k % 2 ? 3 : 8;
        toy_reference_step(&ref, toy_ids[first], toy_labels + first, count, lr[k], 0.9, 0, 1);
        cr_assert_not_null(line);
        cr_assert_eq(field(line, "step"), k + 1);
        cr_assert_float_eq(field(line, "loss"), ref.loss, 1e-5);
        cr_assert_float_eq(field(line, "grad_norm"), ref.norm, 1e-5);
        cr_assert_float_eq(field(line, "lr"), lr[k], 1e-15);
        cr_assert_eq(field(line, "loss_scale"), 1);
        cr_assert_not_null(strstr(line, "\"skipped\": false"));
        cr_assert_eq(field(line, "arena_bytes"), 4096);
        cr_assert(field(line, "samples_per_s") > 0 && field(line, "tokens_per_s") > 0 &&
                  field(line, "ms") > 0);
    }
    cr_assert_null(line);
    free(log);
}

Test(run, one_epoch_is_the_default_and_its_last_batch_is_padded) {
    size_t n;
    begin("run-epoch", 11);
    cr_assert_eq(run(DATA "--log l.jsonl"), 0);
    char *log = read_file("l.jsonl", &n);
    cr_assert(strstr(log, "\"step\": 2,") && !strstr(log, "\"step\": 3,"));
    free(log);
    cr_assert_eq(run(DATA "--epochs 3 --log l.jsonl"), 0);
    log = read_file("l.jsonl", &n);
    cr_assert(strstr(log, "\"step\": 6,") && !strstr(log, "\"step\": 7,"));
    free(log);
}

static void same_file(const char *a, const char *b) {
    size_t n, m;
    char *x = read_file(a, &n), *y = read_file(b, &m);
    cr_assert(n == m && memcmp(x, y, n) == 0, "%s and %s differ", a, b);
    free(x);
    free(y);
}

Test(run, resumed_shuffled_and_repeated_runs_are_the_same_bits) {
    begin("run-resume", 11);
#define HOW DATA "--shuffle --seed 5 --lr 0.05 --momentum 0.9 "
    cr_assert_eq(run(HOW "--steps 9 --save whole"), 0);
    cr_assert_eq(run(HOW "--steps 9 --save again --save-every 2"), 0);
    cr_assert_eq(run(HOW "--steps 4 --save part"), 0);
    cr_assert_eq(run(HOW "--steps 9 --save rest --resume part"), 0);
    same_file("whole/model.safetensors", "again/model.safetensors");
    same_file("whole/model.safetensors", "rest/model.safetensors");
    same_file("whole/state.safetensors", "rest/state.safetensors");
    same_file("whole/trainc.json", "rest/trainc.json");
    cr_assert_eq(run(DATA "--shuffle --seed 6 --lr 0.05 --momentum 0.9 --steps 9 --save other"), 0);
    size_t n, m;
    char *x = read_file("whole/model.safetensors", &n),
         *y = read_file("other/model.safetensors", &m);
    cr_assert(n == m && memcmp(x, y, n) != 0, "another seed gives another order");
    free(x);
    free(y);
}

Test(run, saved_gradients_are_means_before_clipping) {
    ToyReference ref = {.w = {0.5, -0.25, 1, 0, 2}};
    StFile s;
    Fail f;
    begin("run-grads", 6);
    cr_assert_eq(run(DATA "--steps 1 --clip 0.01 --loss-scale 1024 --save-grads g.safetensors"), 0);
    toy_reference_step(&ref, toy_ids[0], toy_labels, 6, 0, 0, 0, 1);
    cr_assert_eq(st_open(&s, "g.safetensors", TRAINC_BAD_MODEL, &f), TRAINC_OK);
    cr_assert_eq(s.n, 1);
    cr_assert_str_eq(s.tensors[0].name, "w");
    for (int i = 0; i < TOY_ROWS; i++)
        cr_assert_float_eq(((const float *)(const void *)s.tensors[0].data)[i], ref.grad[i], 1e-5);
    st_close(&s);
}

Test(run, evaluates_all_held_back_samples_after_the_steps_that_were_asked_for) {
    size_t n;
    begin("run-eval", 11);
    cr_assert_eq(run(DATA "--steps 5 --lr 0 --eval-data ids=ids.npy --eval-data labels=labels.npy "
                          "--eval-every 2 --log l.jsonl"),
                 0);
    char *log = read_file("l.jsonl", &n), *line = strtok(log, "\n");
    const float w[TOY_ROWS] = {0.5f, -0.25f, 1, 0, 2};
    double want = 0, close = 0;
    for (int i = 0; i < 11; i++) {
        double e =
            (double)w[(toy_ids[i][0] + 5) % 5] + (double)w[toy_ids[i][1]] - (double)toy_labels[i];
        want += e * e / 11;
        close += fabs(e) <= 1 ? 1.0 / 11 : 0;
    }
    for (int k = 1; line; k++, line = strtok(NULL, "\n")) {
        cr_assert_eq(strstr(line, "eval_loss") != NULL, k % 2 == 0);
        if (k % 2 == 0)
            cr_assert(fabs(field(line, "eval_loss") - want) < 1e-5 &&
                          fabs(field(line, "eval_close") - close) < 1e-6,
                      "%s", line);
    }
    free(log);
}

Test(run, starts_from_other_weights) {
    static const char header[] =
        "{\"w\":{\"dtype\":\"F64\",\"shape\":[5],\"data_offsets\":[0,40]}}         ";
    char all[300] = {0};
    const double w[5] = {1, 2, 3, 4, 5};
    size_t k = strlen(header);
    StFile s;
    Fail f;
    begin("run-init", 8);
    all[0] = (char)k;
    memcpy(all + 8, header, k);
    memcpy(all + 8 + k, w, sizeof w);
    write_file("init.safetensors", all, 8 + k + sizeof w);
    cr_assert_eq(run(DATA "--steps 1 --lr 0 --init init.safetensors --save c"), 0);
    cr_assert_eq(st_open(&s, "c/model.safetensors", TRAINC_BAD_MODEL, &f), TRAINC_OK);
    const float *got = (const float *)(const void *)st_find(&s, "w")->data;
    for (int i = 0; i < 5; i++) cr_assert_eq((double)got[i], w[i]);
    st_close(&s);
}

typedef struct Refusal {
    const char *options;
    int status;
    const char *says;
} Refusal;

Test(run, what_cannot_work_is_refused_before_it_starts) {
    static const Refusal rows[] = {
        {"--data ids=ids.npy --stpes 3 --lr x --warmup -1", 2,
         "unknown option --stpes (did you mean --steps?)"},
        {"--data ids=ids.npy --stpes 3 --lr x --warmup -1", 2, "--lr x is not a number"},
        {"--data ids=ids.npy --stpes 3 --lr x --warmup -1", 2, "--warmup -1 is not a whole number"},
        {"--data ids=ids.npy --steps 3", 2, "no data for input labels"},
        {DATA "--data lables=labels.npy", 2,
         "the program has no input lables (did you mean labels?)"},
        {DATA "--steps 2 --epochs 1", 2, "--steps and --epochs exclude each other"},
        {DATA "--schedule cosin", 2, "did you mean cosine"},
        {DATA "--schedule wsd", 2, "--schedule wsd needs --decay"},
        {DATA "--betas 0.9,0.99", 2, "sgd has no --betas"},
        {DATA "--nesterov", 2, "--nesterov needs --momentum"},
        {DATA "--save-every 3", 2, "--save-every needs --save"},
        {DATA "--device gpu", 2, "no such device: gpu"},
        {"--data ids=nowhere.npy --data labels=labels.npy", 5, "No such file"},
        {"--data ids=labels.npy --data labels=labels.npy", 5,
         "data of type f32 cannot become the model's i64"},
        {"--data ids=ids.npy --data labels=ids.npy", 5, "cannot become the model's f32"},
        {DATA "--resume nowhere", 4, "nowhere is no checkpoint folder"},
        {DATA "--init nowhere.safetensors", 4, "No such file"},
        {DATA "--log nowhere/l.jsonl", 5, "cannot write nowhere/l.jsonl"},
        {DATA "--steps 1 --save nowhere/c", 5, "cannot write nowhere/c"},
        {DATA "another", 2, "one step folder is enough"},
    };
    begin("run-refuse", 8);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert_eq(run(rows[i].options), rows[i].status, "%s", rows[i].options);
        said(rows[i].says);
    }
}

Test(run, an_index_out_of_range_names_value_limit_and_sample) {
    int64_t ids[10][2] = {{0}};
    begin("run-range", 10);
    ids[9][1] = 99;
    write_npy("ids.npy", "<i8", "(10, 2)", ids, sizeof ids);
    cr_assert_eq(run(DATA "--steps 5"), 5);
    said("ids: value 99 in sample 9 is out of range: the table has 5 rows");
}

Test(run, a_folder_without_a_library_is_no_step_folder) {
    char data[] = "x=x.npy", *argv[] = {"run", folder, "--data", data};
    begin("run-nolib", 8);
    char *nowhere[] = {"run", "nowhere"};
    cr_assert_not_null(freopen("stderr.txt", "w", stderr));
    cr_assert_eq(trainc_run_main(4, argv), 4);
    data[1] = '=';
    cr_assert_eq(trainc_run_main(2, nowhere), 4);
    write_file("libbroken.so", "not ELF", 7);
    cr_assert_eq(trainc_run_main(4, argv), 4);
    fflush(stderr);
    said("no step library");
    said("nowhere is no step folder");
    said("cannot load the step library");
}
