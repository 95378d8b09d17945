/* names.c - parameters by any of their names, and in the form that a file has them in.
 *
 * The program's tables say which names of PyTorch's state_dict mean one parameter, and which
 * initializer of the model's file holds it, transposed or not (trainc_program.h). A state is always
 * in PyTorch's layout; what is turned is turned here, on its way up. */
#include "names.h"
#include "rt_dtype.h"
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 4 << 20, TILE = 32 };

static const trainc_symbol *find_any(const trainc_step *s, const char *name, size_t n,
                                     const char *rest) {
    for (uint32_t i = 0; i < s->n_order; i++) {
        const trainc_symbol *y = s->order[i];
        if (y->cls != TRAINC_SYM_INPUT && strncmp(y->name, name, n) == 0 &&
            strcmp(y->name + n, rest) == 0)
            return y;
    }
    return NULL;
}

const trainc_symbol *name_symbol(const trainc_step *s, const char *name) {
    const trainc_symbol *y = find_any(s, name, 0, name);
    for (uint32_t i = 0; !y && i < s->program->n_aliases; i++) {
        const trainc_alias *a = &s->program->aliases[i];
        size_t n = strlen(name), k = strlen(a->name);
        bool is_it =
            n >= k && strcmp(name + n - k, a->name) == 0 && (n == k || name[n - k - 1] == '.');
        if (is_it) y = find_any(s, name, n - k, a->param);
    }
    return y;
}

const StTensor *name_entry(const trainc_step *s, const StFile *f, const trainc_symbol *y) {
    const StTensor *t = st_find(f, y->name);
    const char *param = y->of ? y->of : y->name;
    size_t n = strlen(y->name), k = strlen(param);
    for (uint32_t i = 0; !t && n >= k && i < s->program->n_aliases; i++) {
        const trainc_alias *a = &s->program->aliases[i];
        char name[1024];
        if (strcmp(a->param, param) != 0 || n - k + strlen(a->name) >= sizeof name) continue;
        memcpy(name, y->name, n - k);
        strcpy(name + n - k, a->name);
        t = st_find(f, name);
    }
    return t;
}

static const onnx_tensor *tensor_named(const onnx_tensors *list, const char *name) {
    for (size_t i = 0; name && i < list->n; i++)
        if (strcmp(list->items[i].name, name) == 0) return &list->items[i];
    return NULL;
}

const onnx_tensor *name_initializer(const trainc_step *s, const onnx_tensors *list,
                                    const trainc_symbol *y, const trainc_holder **holder) {
    const trainc_program *p = s->program;
    for (int split = 0; split < 2; split++)
        for (uint32_t i = 0; i < p->n_holders; i++) {
            const trainc_holder *h = &p->holders[i];
            if (!h->param || strcmp(h->param, y->name) != 0) continue;
            const onnx_tensor *t = tensor_named(list, split ? h->from : h->initializer);
            *holder = h;
            if (t) return t;
        }
    *holder = NULL;
    const onnx_tensor *t = tensor_named(list, y->name);
    for (uint32_t i = 0; !t && i < p->n_aliases; i++)
        if (strcmp(p->aliases[i].param, y->name) == 0) t = tensor_named(list, p->aliases[i].name);
    return t;
}

/* ---------------------------------------------------------------- turning */

void transpose_elements(void *to, const void *from, uint64_t first, uint64_t rows, uint64_t columns,
                        uint64_t all, size_t size) {
    for (uint64_t r0 = 0; r0 < rows; r0 += TILE)
        for (uint64_t c = 0; c < columns; c++)
            for (uint64_t r = r0; r < rows && r < r0 + TILE; r++)
                memcpy((char *)to + (r * columns + c) * size,
                       (const char *)from + (c * all + first + r) * size, size);
}

trainc_status state_put_blocks(trainc_step *s, const trainc_symbol *y, const void *bytes,
                               trainc_dtype from, const char *blocks) {
    if (!blocks) return state_put(s, y, bytes, from);
    uint64_t n = y->bytes / rt_dtype[y->dtype].bytes / strlen(blocks);
    trainc_status r = TRAINC_OK;
    for (uint64_t k = 0; blocks[k] && r == TRAINC_OK; k++) {
        uint64_t at = (uint64_t)(blocks[k] - '0') * n;
        r = state_put_range(s, y, k * n, n, (const char *)bytes + at * rt_dtype[from].bytes, from);
    }
    return r;
}

trainc_status state_put_transposed(trainc_step *s, const trainc_symbol *y, const void *bytes,
                                   trainc_dtype from) {
    uint64_t all = (uint64_t)y->dims[0], columns = (uint64_t)y->dims[1];
    size_t size = rt_dtype[from].bytes;
    uint64_t row_bytes = columns * size, rows = row_bytes ? PIECE_BYTES / row_bytes : all;
    if (!y->bytes) return TRAINC_OK;
    rows = rows < 1 ? 1 : rows < all ? rows : all;
    void *piece = malloc(rows * row_bytes);
    if (!piece) return STEP_FAIL(s, TRAINC_NO_MEMORY, "no memory to load %s", y->name);
    trainc_status r = TRAINC_OK;
    for (uint64_t at = 0; at < all && r == TRAINC_OK; at += rows) {
        uint64_t n = all - at < rows ? all - at : rows;
        transpose_elements(piece, bytes, at, n, columns, all, size);
        r = state_put_range(s, y, at * columns, n * columns, piece, from);
    }
    free(piece);
    return r;
}
