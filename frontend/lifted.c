/* lifted.c - tells constants that dynamo lifted out of the code from parameters that it folded.
 *
 * Dynamo marks parameters and buffers, but tensors that its optimizer makes carry no mark: the
 * transpose of a weight (val_79, must train) looks like the 0.5 of a GELU or the ones of a norm
 * without weights (must not). identity.c finds the parameter that most of the former hold; what is
 * left, in a file with marks, is lifted if
 *   - it is one number, or named after an operation that makes tensors from nothing, or
 *     the scale or bias of a norm, or the first state of a recurrence, that is 1 or 0 throughout,
 * or holds what masks hold (infinite or next to it), or
 *   - the operations that its readers stand for take no parameter that the file lacks, and nothing
 *     unknown either where a lost parameter is named by none.
 * What stays in doubt trains.
 */
#include "context.h"
#include <fnmatch.h>
#include <math.h>

enum { MAX_LOOKED_AT = 4096 };

/* The first elements; a mask shows its kind there, and large weights are not read from disk. */
static Tensor first_elems(Import *im, const TensorSource *s) {
    int64_t n = type_elems(&s->type);
    Type head = {.dtype = s->type.dtype, .rank = 1};
    head.dims[0] = n < MAX_LOOKED_AT ? n : MAX_LOOKED_AT;
    return tensor_from_bytes(im->arena, head, s->data);
}

bool is_made_from_nothing(const char *name) {
    static const char *const makers[] = {
        "zeros",  "zeros_[0-9]*",  "ones",      "ones_[0-9]*", "full",      "full_[0-9]*",
        "*_like", "*_like_[0-9]*", "new_ones*", "new_zeros*",  "new_full*", "scalar_tensor*",
        "arange", "arange_[0-9]*", "eye",       "eye_[0-9]*",  "linspace",  "linspace_[0-9]*"};
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++)
        if (!fnmatch(makers[i], name, 0)) return true;
    return false;
}

static bool is_number_of_masks(double x) { return !isfinite(x) || fabs(x) > 1e30; }

bool mask_is(Import *im, const Shown *shown) {
    const TensorSource *s = &im->sources[shown->initializer];
    if (!s->data) return false;
    Tensor t = first_elems(im, s);
    for (int64_t k = 0; k < type_elems(&t.type); k++)
        if (is_number_of_masks(t.u.f[k])) return true;
    return false;
}

bool lifted_is(Import *im, const Shown *shown, bool is_known, bool is_norm) {
    const TensorSource *s = &im->sources[shown->initializer];
    if (is_known || type_elems(&s->type) == 1 || is_made_from_nothing(shown->value)) return true;
    Tensor t = first_elems(im, s);
    int64_t n = type_elems(&t.type);
    bool is_uniform = is_norm && n && (t.u.f[0] == 0 || t.u.f[0] == 1);
    for (int64_t k = 0; k < n; k++) {
        if (is_number_of_masks(t.u.f[k])) return true;
        is_uniform &= t.u.f[k] == t.u.f[0];
    }
    return is_uniform;
}
