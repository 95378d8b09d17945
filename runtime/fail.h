/* fail.h - how the runtime says what went wrong: a status and one sentence in a caller's buffer. Nothing prints, nothing exits. */
#ifndef TRAINC_FAIL_H
#define TRAINC_FAIL_H
#include "trainc.h"
typedef struct Fail { trainc_status status; char text[1024]; } Fail;
/* fail_set - fills `f` and returns `status`, so that a function can `return fail_set(...)`. */
trainc_status fail_set(Fail *f, trainc_status status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* fail_dims - "[4, 6]" into buf, which is returned. */
const char *fail_dims(char *buf, size_t cap, int rank, const int64_t *dims);
#endif
