/* run_data.h - the driver's data: files by input, sample order by epoch, batches gathered. Not public. */
#ifndef TRAINC_RUN_DATA_H
#define TRAINC_RUN_DATA_H
#include "feed.h"
#include "run_options.h"
typedef struct RunData {
    Feed feeds[MAX_DATA]; int n;
    trainc_tensor batch[MAX_DATA];    /* one batch: data points to buffers of our own, or into the file where the input is not split */
    void *buffers[MAX_DATA];
    uint64_t sample_bytes[MAX_DATA];  /* 0: not split into samples */
    int64_t rows;                     /* samples */
    int64_t usable;                   /* without the last incomplete batch, where that must be left out */
    int64_t *order;                   /* of this epoch; NULL: file order */
    int64_t *row_names;               /* file rows of the batch */
    int64_t ordered_epoch;
} RunData;
/* data_open - opens every file, checks all of it against the program (types, shapes, index ranges) and reserves a batch. Every failed
 *   file is told in `errors`; the status is that of the first. */
trainc_status data_open(RunData *, trainc_step *, const DataOption *, int n, bool shuffle, char *errors, size_t cap);
/* data_next - gathers the next batch at s->data and moves on; a new epoch begins past the end. Returns the number of samples. */
int64_t data_next(RunData *, trainc_step *, int64_t batch);
int64_t data_steps_per_epoch(const RunData *, int64_t batch);
void data_close(RunData *);
#endif
