/* fail.c - status and sentence of a failure, in the caller's buffer. */
#include "fail.h"
#include <stdarg.h>
#include <stdio.h>

trainc_status fail_set(Fail *f, trainc_status status, const char *fmt, ...) {
    va_list ap;
    f->status = status;
    va_start(ap, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, ap);
    va_end(ap);
    return status;
}

const char *fail_dims(char *buf, size_t cap, int rank, const int64_t *dims) {
    size_t n = (size_t)snprintf(buf, cap, "[");
    for (int i = 0; i < rank && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, i ? ", %lld" : "%lld", (long long)dims[i]);
    if (n < cap) snprintf(buf + n, cap - n, "]");
    return buf;
}
