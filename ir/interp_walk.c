/* interp_walk.c - the loop nest of the reference interpreter: strided copy, accumulation and
 * multiply-add in any rank.
 *
 * The innermost loop is a row function, the others an odometer over offsets. Sums run in the order
 * of the loops, in double or wrapping int64. */
#include "interp.h"
#include <math.h>

#define DEFINE_ROW(name, T, U)                                                                     \
    static void name(WalkMode mode, int64_t n, T *d, int64_t ds, const T *a, int64_t as,           \
                     const T *b, int64_t bs) {                                                     \
        switch (mode) {                                                                            \
        case WALK_COPY:                                                                            \
            for (int64_t i = 0; i < n; i++) d[i * ds] = a[i * as];                                 \
            break;                                                                                 \
        case WALK_ADD:                                                                             \
            for (int64_t i = 0; i < n; i++) d[i * ds] = (T)((U)d[i * ds] + (U)a[i * as]);          \
            break;                                                                                 \
        case WALK_MUL:                                                                             \
            for (int64_t i = 0; i < n; i++) d[i * ds] = (T)((U)d[i * ds] * (U)a[i * as]);          \
            break;                                                                                 \
        case WALK_MIN:                                                                             \
            for (int64_t i = 0; i < n; i++)                                                        \
                if (!(a[i * as] >= d[i * ds]) && IS_NUMBER(d[i * ds])) d[i * ds] = a[i * as];      \
            break;                                                                                 \
        case WALK_MAX:                                                                             \
            for (int64_t i = 0; i < n; i++)                                                        \
                if (!(a[i * as] <= d[i * ds]) && IS_NUMBER(d[i * ds])) d[i * ds] = a[i * as];      \
            break;                                                                                 \
        case WALK_UMIN:                                                                            \
            for (int64_t i = 0; i < n; i++)                                                        \
                if ((uint64_t)a[i * as] < (uint64_t)d[i * ds]) d[i * ds] = a[i * as];              \
            break;                                                                                 \
        case WALK_UMAX:                                                                            \
            for (int64_t i = 0; i < n; i++)                                                        \
                if ((uint64_t)a[i * as] > (uint64_t)d[i * ds]) d[i * ds] = a[i * as];              \
            break;                                                                                 \
        case WALK_MADD:                                                                            \
            if (ds == 0) {                                                                         \
                U sum = (U)*d;                                                                     \
                for (int64_t i = 0; i < n; i++) sum += (U)a[i * as] * (U)b[i * bs];                \
                *d = (T)sum;                                                                       \
            } else if (ds == 1 && as == 0 && bs == 1) {                                            \
                for (int64_t i = 0; i < n; i++) d[i] = (T)((U)d[i] + (U)*a * (U)b[i]);             \
            } else {                                                                               \
                for (int64_t i = 0; i < n; i++)                                                    \
                    d[i * ds] = (T)((U)d[i * ds] + (U)a[i * as] * (U)b[i * bs]);                   \
            }                                                                                      \
            break;                                                                                 \
        }                                                                                          \
    }

#define IS_NUMBER(x) !isnan(x)
DEFINE_ROW(row_float, double, double)
#undef IS_NUMBER
#define IS_NUMBER(x) true
DEFINE_ROW(row_int, int64_t, uint64_t)

static void row(WalkMode mode, bool is_float, int64_t n, int64_t *d, int64_t ds, const int64_t *a,
                int64_t as, const int64_t *b, int64_t bs) {
    if (is_float)
        row_float(mode, n, (double *)(void *)d, ds, (const double *)(const void *)a, as,
                  (const double *)(const void *)b, bs);
    else
        row_int(mode, n, d, ds, a, as, b, bs);
}

void walk(WalkMode mode, bool is_float, const Walk *w, void *dst, const void *a, const void *b) {
    int64_t *d = dst, index[WALK_RANK] = {0};
    const int64_t *x = a, *y = b ? b : a;
    uint32_t last = w->rank - 1;
    if (w->rank == 0) {
        row(mode, is_float, 1, d, 1, x, 1, y, 1);
        return;
    }
    for (uint32_t i = 0; i < w->rank; i++)
        if (w->dims[i] <= 0) return;
    for (;;) {
        uint32_t i = last;
        row(mode, is_float, w->dims[last], d, w->d[last], x, w->a[last], y, w->b[last]);
        while (i-- > 0) {
            d += w->d[i], x += w->a[i], y += w->b[i];
            if (++index[i] < w->dims[i]) break;
            d -= w->d[i] * w->dims[i], x -= w->a[i] * w->dims[i], y -= w->b[i] * w->dims[i];
            index[i] = 0;
        }
        if (i == UINT32_MAX) return;
    }
}

void walk_row(WalkMode mode, bool is_float, int64_t n, void *dst, const void *a) {
    row(mode, is_float, n, dst, 1, a, 1, a, 1);
}

void walk_axis(Walk *w, int64_t dim, int64_t d, int64_t a, int64_t b) {
    w->dims[w->rank] = dim;
    w->d[w->rank] = d;
    w->a[w->rank] = a;
    w->b[w->rank++] = b;
}
