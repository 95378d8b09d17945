/* Tests that a checkpoint is whole, exact, and never half written. */
#include "rt_test.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static trainc_step *open_toy(void) {
    trainc_step *s;
    trainc_options o = {
        .set = TRAINC_SET_LR | TRAINC_SET_MOMENTUM, .lr = 0.05f, .momentum = 0.9f, .seed = 7};
    cr_assert_eq(trainc_open(toy_program(), &o, &s), TRAINC_OK);
    return s;
}

static void train(trainc_step *s, int n, double *loss) {
    trainc_tensor t[2] = {{"ids", TRAINC_I64, 2, {8, 2}, toy_ids},
                          {"labels", TRAINC_F32, 1, {8}, toy_labels}};
    for (int i = 0; i < n; i++) {
        trainc_result r;
        cr_assert_eq(trainc_train(s, t, 2, &r), TRAINC_OK, "%s", trainc_error(s));
        *loss = r.loss;
    }
}

static int entries(const char *folder) {
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

Test(checkpoint, a_resumed_step_goes_on_bit_for_bit) {
    char path[1200];
    double straight, resumed;
    float a[TOY_ROWS], b[TOY_ROWS];
    snprintf(path, sizeof path, "%s/c/", test_folder("resume"));
    trainc_step *s = open_toy();
    train(s, 5, &straight);
    cr_assert_eq(trainc_save(s, path), TRAINC_OK, "%s", trainc_error(s));
    train(s, 5, &straight);
    cr_assert_eq(trainc_get(s, "w", a, sizeof a), TRAINC_OK);
    trainc_close(s);
    s = open_toy();
    cr_assert_eq(trainc_load(s, path), TRAINC_OK, "%s", trainc_error(s));
    train(s, 5, &resumed);
    cr_assert_eq(trainc_get(s, "w", b, sizeof b), TRAINC_OK);
    cr_assert_eq(memcmp(a, b, sizeof a), 0);
    cr_assert_eq(memcmp(&straight, &resumed, sizeof straight), 0);
    trainc_close(s);
}

Test(checkpoint, an_old_one_is_replaced_whole_and_leaves_nothing_beside) {
    char path[1200], other[1300];
    double loss;
    const char *folder = test_folder("replace");
    snprintf(path, sizeof path, "%s/c", folder);
    trainc_step *s = open_toy();
    train(s, 1, &loss);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(trainc_save(s, path), TRAINC_OK, "%s", trainc_error(s));
    cr_assert_eq(entries(folder), 1);
    cr_assert_eq(entries(path), 3);
    snprintf(other, sizeof other, "%s/trainc.json", path);
    size_t n;
    char *json = read_file(other, &n);
    cr_assert(strstr(json, "\"step\": 1,"), "%s", json);
    free(json);
    trainc_close(s);
}

Test(checkpoint, a_folder_of_something_else_is_never_replaced) {
    char path[1200], inside[1300];
    double loss;
    snprintf(path, sizeof path, "%s/photos", test_folder("foreign"));
    snprintf(inside, sizeof inside, "%s/cat.jpg", path);
    mkdir(path, 0777);
    write_file(inside, "meow", 4);
    trainc_step *s = open_toy();
    train(s, 1, &loss);
    cr_assert_eq(trainc_save(s, path), TRAINC_BAD_DATA);
    cr_assert(strstr(trainc_error(s), "no checkpoint"), "%s", trainc_error(s));
    cr_assert_eq(access(inside, F_OK), 0);
    cr_assert_eq(trainc_save(s, "/proc/nowhere/c"), TRAINC_BAD_DATA);
    trainc_close(s);
}

Test(checkpoint, what_a_crash_left_half_written_hides_nothing) {
    char path[1200], half[1300];
    double loss;
    snprintf(path, sizeof path, "%s/c", test_folder("crash"));
    trainc_step *s = open_toy();
    train(s, 2, &loss);
    cr_assert_eq(trainc_save(s, path), TRAINC_OK);
    snprintf(half, sizeof half, "%s.tmp-abcdef", path);
    mkdir(half, 0777);
    snprintf(half, sizeof half, "%s.tmp-abcdef/model.safetensors", path);
    write_file(half, "half", 4);
    cr_assert_eq(trainc_load(s, path), TRAINC_OK);
    cr_assert_eq(trainc_save(s, path), TRAINC_OK);
    trainc_close(s);
}

static void spoil(const char *folder, const char *name, size_t keep) {
    char path[1400];
    size_t n;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    char *p = read_file(path, &n);
    write_file(path, p, keep < n ? keep : n - 1);
    free(p);
}

Test(checkpoint, a_damaged_one_is_refused_and_changes_nothing) {
    static const char *const files[] = {"model.safetensors", "state.safetensors", "trainc.json"};
    char path[1200];
    double loss;
    float before[TOY_ROWS], after[TOY_ROWS];
    snprintf(path, sizeof path, "%s/c", test_folder("damaged"));
    trainc_step *s = open_toy();
    for (int i = 0; i < 6; i++) {
        train(s, 1, &loss);
        cr_assert_eq(trainc_save(s, path), TRAINC_OK);
        train(s, 1, &loss);
        trainc_get(s, "w", before, sizeof before);
        spoil(path, files[i / 2], i % 2 ? 20 : 100000);
        trainc_status r = trainc_load(s, path);
        cr_assert_eq(r, i == 4 ? TRAINC_OK : TRAINC_BAD_MODEL, "%s: %s", files[i / 2],
                     trainc_error(s)); /* 4: only the last newline is gone */
        trainc_get(s, "w", after, sizeof after);
        cr_assert(i == 4 || memcmp(before, after, sizeof after) == 0);
        if (i == 5) cr_assert_eq(trainc_save(s, path), TRAINC_OK);
    }
    trainc_close(s);
}

Test(checkpoint, a_safetensors_file_of_another_shape_is_refused_by_name) {
    char path[1200];
    static const char header[] =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[1,5],\"data_offsets\":[0,20]}}      ";
    char all[200] = {0};
    size_t k = strlen(header);
    snprintf(path, sizeof path, "%s/w.safetensors", test_folder("shape"));
    all[0] = (char)k;
    memcpy(all + 8, header, k);
    write_file(path, all, 8 + k + 20);
    trainc_step *s = open_toy();
    cr_assert_eq(trainc_load(s, path), TRAINC_BAD_MODEL);
    cr_assert(strstr(trainc_error(s), "w is f32 [1, 5], the program wants f32 [5]"), "%s",
              trainc_error(s));
    trainc_close(s);
}
