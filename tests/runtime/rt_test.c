/* rt_test.c - helpers of the runtime's tests. */
#include "rt_test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const int64_t toy_ids[][2] = {{0, 1}, {2, 2}, {4, 0}, {3, 1}, {1, 2}, {-1, 0},
                              {2, 3}, {4, 4}, {0, 0}, {1, 1}, {3, 4}};
const float toy_labels[] = {1, 0.5f, -1, 2, 0, 1.5f, 0.25f, 3, -2, 1, 0.75f};

const char *test_folder(const char *name) {
    static char path[1024];
    char command[2400];
    snprintf(path, sizeof path, "%s/runtime-tests/%s", BUILD_DIR, name);
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir -p '%s'", path, path);
    cr_assert_eq(system(command), 0);
    return path;
}

void write_file(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    cr_assert_not_null(f, "%s", path);
    cr_assert_eq(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

char *read_file(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f, "%s", path);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *p = calloc(1, *n + 1);
    cr_assert_eq(fread(p, 1, *n, f), *n);
    fclose(f);
    return p;
}

void write_npy(const char *path, const char *descr, const char *shape, const void *bytes,
               size_t n) {
    char head[256];
    int k = snprintf(head + 10, sizeof head - 10,
                     "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape);
    int total = (10 + k + 1 + 63) / 64 * 64;
    memcpy(head, "\x93NUMPY\1\0", 8);
    memset(head + 10 + k, ' ', (size_t)(total - 10 - k));
    head[total - 1] = '\n';
    head[8] = (char)((total - 10) & 255);
    head[9] = (char)((total - 10) >> 8);
    FILE *f = fopen(path, "wb");
    cr_assert_not_null(f);
    fwrite(head, 1, (size_t)total, f);
    fwrite(bytes, 1, n, f);
    fclose(f);
}

void toy_reference_step(ToyReference *t, const int64_t *ids, const float *labels, int n, double lr,
                        double momentum, double wd, double clip) {
    double squares = 0;
    memset(t->grad, 0, sizeof t->grad);
    t->loss = 0;
    for (int i = 0; i < n; i++) {
        int a = (int)((ids[2 * i] + TOY_ROWS) % TOY_ROWS),
            b = (int)((ids[2 * i + 1] + TOY_ROWS) % TOY_ROWS);
        double e = t->w[a] + t->w[b] - (double)labels[i];
        t->loss += e * e / n;
        t->grad[a] += 2 * e / n;
        t->grad[b] += 2 * e / n;
    }
    for (int r = 0; r < TOY_ROWS; r++) squares += t->grad[r] * t->grad[r];
    t->norm = sqrt(squares);
    double share = t->norm > clip ? clip / (t->norm + 1e-6) : 1;
    for (int r = 0; r < TOY_ROWS; r++) {
        double g = t->grad[r] * share + wd * t->w[r];
        t->m[r] = t->started ? momentum * t->m[r] + g : g;
        t->w[r] -= lr * t->m[r];
    }
    t->started = true;
}
