/* tensor.c - the interpreter's tensors: eight bytes an element, to and from storage form, and small
 * helpers on them. */
#include "interp.h"
#include <math.h>
#include <string.h>

bool dtype_is_float(int dtype) { return dtype_info[dtype].cls == CLASS_FLT; }

void strides_of(const Type *t, int64_t strides[MAX_RANK]) {
    int64_t stride = 1;
    for (uint32_t i = t->rank; i-- > 0;) {
        strides[i] = stride;
        stride *= t->dims[i];
    }
}

bool index_next(int64_t *index, const int64_t *dims, uint32_t rank) {
    for (uint32_t i = rank; i-- > 0;) {
        if (++index[i] < dims[i]) return true;
        index[i] = 0;
    }
    return false;
}

void list_of(const Graph *g, Value v, AttrKey key, int64_t otherwise, uint32_t n, int64_t *out) {
    uint32_t have = 0;
    const int64_t *list = attr_list(g, v, key, &have);
    for (uint32_t i = 0; i < n; i++) out[i] = list && i < have ? list[i] : otherwise;
}

static int64_t saturated(double x) {
    if (isnan(x)) return 0;
    if (x >= 0x1p63) return INT64_MAX;
    return x < -0x1p63 ? INT64_MIN : (int64_t)x;
}

void tensor_fill(Tensor *t, double value) {
    int64_t n = type_elems(&t->type), whole = saturated(value);
    bool is_float = dtype_is_float(t->type.dtype);
    for (int64_t i = 0; i < n; i++) {
        if (is_float)
            t->u.f[i] = value;
        else
            t->u.i[i] = whole;
    }
}

void tensor_wrap(Tensor *t) {
    DType dtype = (DType)t->type.dtype;
    int64_t n = type_elems(&t->type), element;
    if (dtype_is_float((int)dtype) || dtype_info[dtype].bytes == 8) return;
    for (int64_t i = 0; i < n; i++) {
        elem_store_int(dtype, &element, t->u.i[i]);
        t->u.i[i] = elem_load_int(dtype, &element);
    }
}

Tensor tensor_from_bytes(Arena *arena, Type type, const void *elements) {
    Tensor t = {.type = type};
    int64_t n = type_elems(&type);
    size_t bytes = dtype_info[type.dtype].bytes;
    bool is_float = dtype_is_float(type.dtype);
    t.u.p = arena_alloc(arena, (size_t)n * sizeof(double));
    for (int64_t i = 0; i < n; i++) {
        const char *at = (const char *)elements + (size_t)i * bytes;
        if (is_float)
            t.u.f[i] = elem_load((DType)type.dtype, at);
        else
            t.u.i[i] = elem_load_int((DType)type.dtype, at);
    }
    return t;
}

static Tensor tensor_from_blocks(Arena *arena, Type type, const char *blocks,
                                 const void *elements) {
    Tensor from = tensor_from_bytes(arena, type, elements), to = {.type = type};
    size_t n = (size_t)type_elems(&type) / strlen(blocks);
    to.u.f = arena_alloc(arena, (n * strlen(blocks) + 1) * sizeof *to.u.f);
    for (size_t k = 0; blocks[k]; k++)
        memcpy(to.u.f + k * n, from.u.f + (size_t)(blocks[k] - '0') * n, n * sizeof *to.u.f);
    return to;
}

Tensor tensor_from_source(Arena *arena, Type type, const WeightSource *s, const void *elements) {
    Type stored = type;
    if (s->blocks) return tensor_from_blocks(arena, type, s->blocks, elements);
    if (!s->is_transposed) return tensor_from_bytes(arena, type, elements);
    stored.dims[0] = type.dims[1];
    stored.dims[1] = type.dims[0];
    Tensor from = tensor_from_bytes(arena, stored, elements), to = {.type = type};
    int64_t rows = type.dims[0], columns = type.dims[1];
    to.u.f = arena_alloc(arena, (size_t)(rows * columns) * sizeof *to.u.f);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) to.u.f[r * columns + c] = from.u.f[c * rows + r];
    return to;
}

void tensor_to_bytes(const Tensor *t, void *elements) {
    int64_t n = type_elems(&t->type);
    size_t bytes = dtype_info[t->type.dtype].bytes;
    bool is_float = dtype_is_float(t->type.dtype);
    for (int64_t i = 0; i < n; i++) {
        char *at = (char *)elements + (size_t)i * bytes;
        if (is_float)
            elem_store((DType)t->type.dtype, at, t->u.f[i]);
        else
            elem_store_int((DType)t->type.dtype, at, t->u.i[i]);
    }
}
