/* names.h - parameters by any of their names, and in the form that a file has them in. Not public. */
#ifndef TRAINC_NAMES_H
#define TRAINC_NAMES_H
#include "onnx_wire.h"
#include "safetensors.h"
#include "step.h"

/* name_symbol - what is called `name`, or "grad.", "m.", "v." and another name of its parameter. NULL where nothing is. */
const trainc_symbol *name_symbol(const trainc_step *, const char *name);
/* name_entry - the tensor of a file that holds y, under its own name or another of its parameter's. NULL where there is none. */
const StTensor *name_entry(const trainc_step *, const StFile *, const trainc_symbol *y);
/* name_initializer - the initializer of a model that holds parameter y, and in which form; NULL where there is none.
 *   *holder: NULL where it stands there as it is */
const onnx_tensor *name_initializer(const trainc_step *, const onnx_tensors *, const trainc_symbol *y, const trainc_holder **holder);
/* state_put_transposed - as state_put, from the elements of the transpose: y is [r, c], bytes hold [c, r].
 *   cost  one pass in pieces of a few MiB; errors  TRAINC_NO_MEMORY and state_put's */
trainc_status state_put_transposed(trainc_step *, const trainc_symbol *y, const void *bytes, trainc_dtype from);
/* state_put_blocks - as state_put, from equal blocks of rows in another order: y's k-th is the blocks[k]-th of bytes; NULL: the same. */
trainc_status state_put_blocks(trainc_step *, const trainc_symbol *y, const void *bytes, trainc_dtype from, const char *blocks);
/* model_export - `trainc run --export`: the program's own model with the step's weights, at `path`; see onnx_wire_export. */
trainc_status model_export(trainc_step *, const char *path);
/* transpose_elements - `to` [rows, columns] from `from` [columns, rows], `size` bytes an element; `first` .. `first + rows` of
 * `all` rows that the whole has. */
void transpose_elements(void *to, const void *from, uint64_t first, uint64_t rows, uint64_t columns, uint64_t all, size_t size);
#endif
