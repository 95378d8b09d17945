/* Tests that data files mean what they say, or are refused. */
#include "feed.h"
#include "rt_dtype.h"
#include "rt_test.h"
#include <stdio.h>
#include <string.h>

static char folder[1024];
static const trainc_symbol window = {.name = "ids",
                                     .dtype = TRAINC_I64,
                                     .rank = 2,
                                     .dims = {4, 6},
                                     .batch_axis = 0,
                                     .index_limit = 70000};

static const char *file(const char *name, const char *tail) {
    static char path[1200];
    snprintf(path, sizeof path, "%s/%s%s", folder, name, tail);
    return path;
}

static void begin(const char *name) { snprintf(folder, sizeof folder, "%s", test_folder(name)); }

static trainc_status open_feed(Feed *d, const char *name, const char *tail, Fail *f) {
    return feed_open(d, &window, file(name, tail), f);
}

Test(feed, an_npy_file_is_mapped_as_it_is) {
    const float x[6] = {1, 2, 3, 4, 5, 6};
    Feed d;
    Fail f;
    begin("npy-good");
    write_npy(file("x.npy", ""), "<f4", "(3, 2)", x, sizeof x);
    cr_assert_eq(open_feed(&d, "x.npy", "", &f), TRAINC_OK, "%s", f.text);
    cr_assert(d.tensor.dtype == TRAINC_F32 && d.tensor.rank == 2 && d.tensor.dims[0] == 3 &&
              d.tensor.dims[1] == 2);
    cr_assert_eq(memcmp(d.tensor.data, x, sizeof x), 0);
    feed_close(&d);
    write_npy(file("y.npy", ""), "|u1", "(5,)", x, 5);
    cr_assert_eq(open_feed(&d, "y.npy", "", &f), TRAINC_OK, "%s", f.text);
    cr_assert(d.tensor.dtype == TRAINC_U8 && d.tensor.rank == 1);
    feed_close(&d);
}

Test(feed, an_npy_file_that_is_not_plain_is_refused) {
    static const struct {
        const char *head, *says;
        size_t data;
    } wrong[] = {
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }", "Fortran order", 16},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (2, 2), }", "big-endian", 16},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }", "truncated", 15},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }", "too long", 17},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }", "'<c8'", 16},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", "'|O'", 16},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", "malformed", 16},
        {"{'descr': '<f4', 'shape': (2,), }", "malformed", 8},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, -1), }", "malformed", 8},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
         "malformed", 8},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
         "impossible", 8},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), } import os", "malformed", 8},
    };
    begin("npy-wrong");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char all[400] = "\x93NUMPY\1";
        Feed d;
        Fail f;
        size_t n = strlen(wrong[i].head);
        all[8] = (char)n;
        memcpy(all + 10, wrong[i].head, n);
        write_file(file("x.npy", ""), all, 10 + n + wrong[i].data);
        cr_assert_eq(open_feed(&d, "x.npy", "", &f), TRAINC_BAD_DATA, "row %zu", i);
        cr_assert(strstr(f.text, wrong[i].says), "%s", f.text);
        feed_close(&d);
    }
}

Test(feed, an_npy_file_of_another_kind_is_refused) {
    Feed d;
    Fail f;
    begin("npy-magic");
    for (size_t n = 0; n < 12; n++) {
        write_file(file("x.npy", ""), "\x93NUMPY\2\0\377\377\377\377", n);
        cr_assert_eq(open_feed(&d, "x.npy", "", &f), TRAINC_BAD_DATA);
        feed_close(&d);
    }
    cr_assert_eq(open_feed(&d, "missing.npy", "", &f), TRAINC_BAD_DATA);
    cr_assert(strstr(f.text, "No such file"), "%s", f.text);
    feed_close(&d);
    cr_assert_eq(open_feed(&d, "x.csv", "", &f), TRAINC_USAGE);
    feed_close(&d);
}

Test(feed, a_token_stream_is_cut_into_windows_and_never_wraps) {
    uint16_t tokens[26];
    Feed d;
    Fail f;
    for (int i = 0; i < 26; i++) tokens[i] = (uint16_t)(65535 - i);
    begin("bin");
    write_file(file("t.bin", ""), tokens, 24 * 2);
    cr_assert_eq(open_feed(&d, "t.bin", ":u16", &f), TRAINC_OK, "%s", f.text);
    cr_assert(d.tensor.rank == 2 && d.tensor.dims[0] == 4 && d.tensor.dims[1] == 6 &&
              d.left_over == 0);
    cr_assert_eq(rt_read_int(d.tensor.data, d.tensor.dtype, 0), 65535);
    feed_close(&d);
    write_file(file("t.bin", ""), tokens, 26 * 2);
    cr_assert_eq(open_feed(&d, "t.bin", ":u16", &f), TRAINC_OK);
    cr_assert(d.tensor.dims[0] == 4 && d.left_over == 2);
    feed_close(&d);
    write_file(file("t.bin", ""), tokens, 3 * 2);
    cr_assert_eq(open_feed(&d, "t.bin", ":u16", &f), TRAINC_BAD_DATA);
    cr_assert(strstr(f.text, "3 of the 6 elements"), "%s", f.text);
    feed_close(&d);
    write_file(file("t.bin", ""), tokens, 25);
    cr_assert_eq(open_feed(&d, "t.bin", ":u16", &f), TRAINC_BAD_DATA);
    feed_close(&d);
    cr_assert_eq(open_feed(&d, "t.bin", "", &f), TRAINC_USAGE);
    feed_close(&d);
    cr_assert_eq(open_feed(&d, "t.bin", ":u24", &f), TRAINC_USAGE);
    feed_close(&d);
}

Test(feed, a_bin_with_a_shape_has_that_shape) {
    const float x[12] = {0};
    Feed d;
    Fail f;
    begin("bin-shape");
    write_file(file("x.bin", ""), x, sizeof x);
    cr_assert_eq(open_feed(&d, "x.bin", ":f32:-1x2x3", &f), TRAINC_OK, "%s", f.text);
    cr_assert(d.tensor.rank == 3 && d.tensor.dims[0] == 2);
    feed_close(&d);
    cr_assert_eq(open_feed(&d, "x.bin", ":f32:3,4", &f), TRAINC_OK);
    feed_close(&d);
    static const struct {
        const char *tail;
        trainc_status s;
    } wrong[] = {{":f32:5x2", TRAINC_BAD_DATA},
                 {":f32:-1x5", TRAINC_BAD_DATA},
                 {":f32:2x-1", TRAINC_USAGE},
                 {":f32:", TRAINC_USAGE},
                 {":f32:2y6", TRAINC_USAGE}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(open_feed(&d, "x.bin", wrong[i].tail, &f), wrong[i].s, "%s", wrong[i].tail);
        feed_close(&d);
    }
}
