/* case_gradient.h - is autodiff's gradient of a case of ONNX's node tests the slope of its result?
 *
 * A case becomes a function of its float inputs: in double throughout (casts between floats are the identity, for a rounded value has no
 * slope), its outputs weighted by fixed random numbers and summed. Autodiff's gradient, evaluated by the interpreter, must equal
 * extrapolated central differences to 1e-6; coordinates that lie on a kink are left out and counted. Twice: of the graph as it was
 * imported, so that every rule of the registry is met, and after simplify and match, so that the macros' gradients are.
 * ONNX_CASES_VERBOSE=1 lists what has no gradient, and why. */
#ifndef TRAINC_GRADIENTS_CASE_GRADIENT_H
#define TRAINC_GRADIENTS_CASE_GRADIENT_H
#include "../frontend/onnx_case.h"

typedef struct GradientTally { int differentiated, without, unexplained, coordinates, kinks, wrong; } GradientTally;
/* Adds what was found to the tally, sentences about what is wrong to stderr. checked[i] is set where a slope of what the op reads
 * i-th (listed->op_inputs) was confirmed; NULL: nobody asks. */
void gradient_check(const ListedCase *, GradientTally *, bool *checked);
#endif
