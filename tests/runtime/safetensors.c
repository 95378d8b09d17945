/* Tests that safetensors files are written as the format says, and that nothing malformed is taken.
 */
#include "safetensors.h"
#include "rt_test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char path[1200];

static void open_folder(const char *name) {
    snprintf(path, sizeof path, "%s/f.safetensors", test_folder(name));
}

/* Header text and n data bytes, with the right length unless `length` says another. */
static void write_st(const char *header, size_t n, int64_t length) {
    size_t k = strlen(header);
    char *all = calloc(1, 8 + k + n + 1);
    uint64_t len = length >= 0 ? (uint64_t)length : k;
    for (int i = 0; i < 8; i++) all[i] = (char)(len >> 8 * i & 255);
    memcpy(all + 8, header, k);
    write_file(path, all, 8 + k + n);
    free(all);
}

static trainc_status try_open(Fail *f) {
    StFile s;
    trainc_status r = st_open(&s, path, TRAINC_BAD_MODEL, f);
    if (r == TRAINC_OK) st_close(&s);
    return r;
}

#define ONE(dtype, shape, offsets)                                                                 \
    "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

Test(safetensors, reads_tensors_in_any_order_of_keys_and_bytes) {
    StFile s;
    Fail f;
    open_folder("st-read");
    write_st("{ \"__metadata__\" : {\"x\":\"{\\\"y\\\":[1]}\"},\n "
             "\"b\\u00e9\":{\"shape\":[],\"data_offsets\":[8,12],\"dtype\":\"F32\"},"
             "\"a\":{\"dtype\":\"I16\",\"shape\":[2,2],\"data_offsets\":[0,8]}, "
             "\"none\":{\"dtype\":\"F64\",\"shape\":[3,0],\"data_offsets\":[8,8]}}   ",
             12, -1);
    cr_assert_eq(st_open(&s, path, TRAINC_BAD_MODEL, &f), TRAINC_OK, "%s", f.text);
    cr_assert_eq(s.n, 3);
    const StTensor *a = st_find(&s, "a"), *b = st_find(&s, "b\xc3\xa9");
    cr_assert(a && b && a->rank == 2 && a->dims[1] == 2 && a->dtype == TRAINC_I16 &&
              a->bytes == 8 && b->rank == 0 && b->bytes == 4);
    cr_assert_eq(b->data - a->data, 8);
    st_close(&s);
}

Test(safetensors, malformed_files_are_refused) {
    static const struct {
        const char *header;
        size_t data;
        int64_t length;
    } wrong[] = {
        {"", 0, -1},
        {"{", 0, -1},
        {"[]", 0, -1},
        {"{}x", 0, -1},
        {"{}", 4, -1},
        {"{}", 0, 3},
        {"{}", 0, INT64_MAX},
        {"{,}", 0, -1},
        {ONE("F32", "[1]", "[0,4]"), 3, -1},
        {ONE("F32", "[1]", "[0,4]"), 5, -1},
        {ONE("F32", "[1]", "[4,0]"), 4, -1},
        {ONE("F32", "[1]", "[0,8]"), 8, -1},
        {ONE("F32", "[-1]", "[0,4]"), 4, -1},
        {ONE("F32", "[1.0]", "[0,4]"), 4, -1},
        {ONE("F32", "[01]", "[0,4]"), 4, -1},
        {ONE("F99", "[1]", "[0,4]"), 4, -1},
        {ONE("F32", "[1,]", "[0,4]"), 4, -1},
        {ONE("F32", "[1]", "[0,4,4]"), 4, -1},
        {ONE("F32", "[1]", "[0]"), 4, -1},
        {ONE("F32", "1", "[0,4]"), 4, -1},
        {ONE("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, -1},
        {ONE("F32", "[4611686018427387904,4]", "[0,0]"), 0, -1},
        {ONE("F32", "[18446744073709551616]", "[0,0]"), 0, -1},
        {ONE("F32", "[9223372036854775807]", "[0,4]"), 4, -1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, -1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1, -1},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, -1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\","
         "\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, -1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\","
         "\"shape\":[2],\"data_offsets\":[1,3]}}",
         3, -1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"b\":{\"dtype\":\"U8\","
         "\"shape\":[1],\"data_offsets\":[2,3]}}",
         3, -1},
        {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, -1},
        {"{\"a\\ud800\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, -1},
        {"{\"a\n\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, -1},
        {"{'a':{}}", 0, -1},
    };
    open_folder("st-wrong");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        Fail f = {0};
        write_st(wrong[i].header, wrong[i].data, wrong[i].length);
        cr_assert_eq(try_open(&f), TRAINC_BAD_MODEL, "row %zu is taken", i);
        cr_assert(strstr(f.text, "f.safetensors"), "%s", f.text);
    }
}

static void write_two(void) {
    FileOut o;
    Fail f;
    const StTensor t[] = {{.name = "x\"\\\n", .dtype = TRAINC_F32, .rank = 2, .dims = {2, 3}},
                          {.name = "y", .dtype = TRAINC_I64, .rank = 0}};
    const float x[6] = {1, 2, 3, 4, 5, 6};
    const int64_t y = -7;
    cr_assert_eq(st_begin(&o, path, t, 2, "{\"format\":\"pt\"}", &f), TRAINC_OK);
    cr_assert_eq(file_write(&o, x, sizeof x, &f), TRAINC_OK);
    cr_assert_eq(file_write(&o, &y, sizeof y, &f), TRAINC_OK);
    cr_assert_eq(file_commit(&o, &f), TRAINC_OK);
}

Test(safetensors, what_is_written_is_read_again) {
    StFile s;
    Fail f;
    open_folder("st-write");
    write_two();
    cr_assert_eq(st_open(&s, path, TRAINC_BAD_MODEL, &f), TRAINC_OK, "%s", f.text);
    cr_assert_eq(s.n, 2);
    cr_assert_str_eq(s.tensors[0].name, "x\"\\\n");
    cr_assert_eq(((const float *)(const void *)s.tensors[0].data)[5], 6.0f);
    cr_assert_eq(s.tensors[0].data - s.map.bytes, (s.tensors[0].data - s.map.bytes) / 8 * 8,
                 "data are aligned");
    st_close(&s);
}

Test(safetensors, no_truncation_and_no_flipped_bit_crashes_the_reader) {
    size_t n;
    Fail f;
    open_folder("st-fuzz");
    write_two();
    char *good = read_file(path, &n);
    for (size_t k = 0; k < n; k++) {
        write_file(path, good, k);
        cr_assert_eq(try_open(&f), TRAINC_BAD_MODEL, "cut to %zu bytes", k);
    }
    for (size_t bit = 0; bit < (n - 32) * 8; bit++) {
        good[bit / 8] = (char)(good[bit / 8] ^ 1 << bit % 8);
        write_file(path, good, n);
        trainc_status s = try_open(&f);
        cr_assert(s == TRAINC_OK || s == TRAINC_BAD_MODEL);
        good[bit / 8] = (char)(good[bit / 8] ^ 1 << bit % 8);
    }
    free(good);
}
