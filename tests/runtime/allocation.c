/* Tests that a step allocates nothing. */
#include "rt_test.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

Test(allocation, none_between_the_second_step_and_the_last) {
#ifdef SANITIZED
    cr_skip("the sanitizer has an allocator of its own");
#endif
    size_t n;
    long steps = 0, allocations = -1;
    cr_assert_eq(chdir(test_folder("allocation")), 0);
    write_npy("ids.npy", "<i8", "(11, 2)", toy_ids, 11 * 16);
    write_npy("labels.npy", "<f4", "(11,)", toy_labels, 11 * 4);
    cr_assert_eq(system("TRAINC_ALLOCATIONS=count.txt LD_PRELOAD=" BUILD_DIR
                        "/toy-step/tools/libmalloc_count.so " BUILD_DIR
                        "/toy-step/tools/toy_run " BUILD_DIR
                        "/toy-step --data ids=ids.npy --data labels=labels.npy --steps 20 "
                        "--shuffle --clip 1 --eval-data ids=ids.npy "
                        "--eval-data labels=labels.npy --eval-every 3 --log l.jsonl 2> stderr.txt"),
                 0);
    char *text = read_file("count.txt", &n);
    cr_assert_eq(sscanf(text, "steps %ld allocations %ld", &steps, &allocations), 2);
    cr_assert_eq(steps, 20);
    cr_assert_eq(allocations, 0, "%ld allocations", allocations);
    free(text);
}
