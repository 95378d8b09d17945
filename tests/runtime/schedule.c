/* Tests that the learning-rate curves are those of transformers.optimization. */
#include "schedule.h"
#include <criterion/criterion.h>
#include <math.h>

typedef struct Row {
    Schedule schedule;
    int n;
    double want[16];
} Row;
static const Row rows[] = {
#include "schedule_values.inc"
};

Test(schedule, every_rate_equals_transformers) {
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int i = 0; i < rows[r].n; i++) {
            double got = schedule_lr(&rows[r].schedule, i), want = rows[r].want[i];
            cr_assert(fabs(got - want) <= 1e-15,
                      "row %zu (%s) step %d: %.17g, transformers has %.17g", r,
                      schedule_name[rows[r].schedule.kind], i, got, want);
        }
}
