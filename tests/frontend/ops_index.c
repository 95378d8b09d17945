/* Tests that operators on indices, orders, reductions and types compute what PyTorch and numpy
 * compute, and have PyTorch's gradients, where it is easy to go wrong: ties, duplicate indices,
 * zeros, wraparound, NaN. models/index.onnx is written by tests/gradients/torch_index.py. */
#include "import_helpers.h"
#include "torch_model.h"

Test(index, odd_numbers_give_what_pytorch_and_numpy_give) {
    torch_model_values(MODEL("index"), 40);
}

Test(index, gradients_are_pytorchs_at_ties_and_duplicates) {
    torch_model_gradients(MODEL("index"), 100);
}
