/* identity_rows.c - biases that dynamo's optimizer folded into the first step of a recurrence.
 *
 * A linear layer that reads the zeros a recurrence begins with is a constant to that optimizer, and
 * its result is the bias in every row: [1, batch, C] of [C]. Where the same bias stands in the file
 * for the later steps, the gradient of the first one would be missing. Rows that are a parameter,
 * bit by bit, and no single number repeated, can come from nowhere else: they are expanded from it
 * again. */
#include "identity.h"
#include <string.h>

static bool rows_are(const TensorSource *rows, const TensorSource *vector) {
    const uint8_t *a = rows->data, *b = vector->data;
    if (rows->type.dtype != vector->type.dtype || vector->type.rank != 1 || rows->type.rank < 2 ||
        rows->type.dims[rows->type.rank - 1] != vector->type.dims[0] || !vector->bytes)
        return false;
    for (uint64_t at = 0; at < rows->bytes; at += vector->bytes)
        if (memcmp(a + at, b, vector->bytes) != 0) return false;
    return !bytes_constant(vector);
}

/* A value that is no parameter: a computation that was folded. */
static bool is_folded(const Identity *id, const Shown *s) {
    return s->mark == MARK_NONE && !s->is_named && !s->is_split && s->name == s->value &&
           source_is_float(&id->im->sources[s->initializer]);
}

static const Shown *vector_of(const Identity *id, const Shown *rows) {
    for (uint32_t i = 0; i < id->graph->n_initializer; i++) {
        const Shown *s = &id->im->shown[i];
        uint32_t at;
        if (s->name && s->is_named && s->layout == LAYOUT_KEPT && s->mark == MARK_PARAM &&
            names_get(&id->targets_by_name, s->name, &at) && !id->targets[at - 1].is_buffer &&
            rows_are(&id->im->sources[rows->initializer], &id->im->sources[i]))
            return s;
    }
    return NULL;
}

void rows_restore(Identity *id) {
    for (uint32_t i = 0; i < id->graph->n_initializer; i++) {
        Shown *s = &id->im->shown[i];
        const Shown *vector = is_folded(id, s) ? vector_of(id, s) : NULL;
        if (!vector) continue;
        s->name = vector->name;
        s->layout = LAYOUT_ROWS;
        s->mark = MARK_PARAM;
        s->is_named = true;
    }
}
