/* ops_shape.c - importers of the ops that rearrange: Reshape, Squeeze, Flatten, Transpose, Expand, ... become reshape, transpose, expand,
 * slice, concat and pad over static dims. Nothing here computes but index arithmetic at import. */
#include "import.h"

void import_flatten(ImportNode *n)
{
    const Type *t = node_type(n, n->in[0]);
    int64_t dims[2] = {1, 1}, axis = node_int(n, "axis", 1);
    if (axis < -(int64_t)t->rank || axis > t->rank) {
        node_fail(n, "axis", "%lld is outside rank %d", (long long)axis, t->rank);
        return;
    }
    if (axis < 0)
        axis += t->rank;
    for (int64_t i = 0; i < t->rank; i++)
        dims[i >= axis] *= t->dims[i];
    n->out[0] = build_reshape(n->g, n->in[0], 2, dims);
}
