/* lifted.c - tells constants that dynamo lifted out of the code from parameters that it folded.
 *
 * Dynamo marks parameters and buffers, but tensors that its optimizer makes carry no mark: the
 * transpose of a weight (val_79, must train) looks like the 0.5 of a GELU or the ones of a norm
 * without weights (must not). In a file with marks an unmarked initializer is lifted if
 *   - it is a scalar, or named after an operation that makes tensors from nothing, or
 *     the scale or bias of a norm that is 1 or 0 throughout, or holds what masks hold (infinite or
 *     next to it), or
 *   - the file has every parameter that the graph's signature lists, so that none was folded, or
 *   - the operations that its readers stand for take no lost parameter, and nothing unknown either
 *     where a lost parameter is named by none (position embeddings that were folded with their
 *     lookup; tables of rotary embeddings are not in doubt where each lost weight has its reader).
 * What stays in doubt trains.
 */
#include "context.h"
#include <fnmatch.h>
#include <math.h>
#include <string.h>

static const char signature_key[] = "pkg.torch.export.ExportedProgram.graph_signature";
static const char fx_key[] = "pkg.torch.onnx.fx_node";
enum { GRAPH_METADATA = 16, NODE_METADATA = 9, MAX_LOOKED_AT = 4096 };

typedef struct Lifted {
    Import *im;
    const Onnx__GraphProto *graph;
    NameMap had;  /* names of the traced program that the file has, or that are no parameter */
    NameMap lost; /* parameters that are not among the initializers; 2: an operation takes it */
    uint32_t n_lost, n_unnamed; /* and those of them that no operation takes */
    bool has_signature;
    uint8_t *in_doubt; /* per initializer: a reader may stand for something that was folded */
    uint8_t *is_read, *is_norm;
} Lifted;

/* ---------------------------------------------------------------- the traced program */

/* "p_0_weight: PARAMETER target='0.weight'", one line per input of the traced program. */
static void signature_line(Lifted *l, const char *line, size_t n) {
    const char *colon = memchr(line, ':', n);
    if (!colon || !memchr(colon, ' ', n - (size_t)(colon - line))) return;
    const char *kind = colon + 2, *end = line + n;
    const char *name =
        graph_str(l->im->g, arena_printf(l->im->arena, "%.*s", (int)(colon - line), line));
    uint32_t known;
    if (end - kind < 9 || strncmp(kind, "PARAMETER", 9)) {
        names_set(l->im->arena, &l->had, name, 1);
        return;
    }
    const char *open = memchr(kind, '\'', (size_t)(end - kind));
    const char *close = open ? memchr(open + 1, '\'', (size_t)(end - open - 1)) : NULL;
    if (!close) return;
    const char *target = arena_printf(l->im->arena, "%.*s", (int)(close - open - 1), open + 1);
    if (names_get(&l->im->initializers, graph_str(l->im->g, target), &known))
        names_set(l->im->arena, &l->had, name, 1);
    else
        names_set(l->im->arena, &l->lost, name, 1), l->n_lost++;
}

static bool signature_read(Lifted *l) {
    const char *text =
        metadata_find(l->im->file->arena, &l->graph->base, GRAPH_METADATA, signature_key);
    const char *stop = text ? strstr(text, "# outputs") : NULL;
    for (const char *end; text && *text && text != stop; text = *end ? end + 1 : end) {
        end = text + strcspn(text, "\n");
        signature_line(l, text, (size_t)(end - text));
    }
    return text != NULL;
}

static const char *fx_text(Lifted *l, const Onnx__NodeProto *node) {
    return metadata_find(l->im->file->arena, &node->base, NODE_METADATA, fx_key);
}

/* The name after the % at `text`; `*end` behind it. */
static const char *fx_name(Lifted *l, const char *text, const char **end) {
    size_t n = strspn(text + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    *end = text + 1 + n;
    return graph_str(l->im->g, arena_printf(l->im->arena, "%.*s", (int)n, text + 1));
}

static void program_read(Lifted *l) {
    l->n_unnamed = l->n_lost;
    for (size_t i = 0; i < l->graph->n_node; i++) {
        const char *at = fx_text(l, l->graph->node[i]);
        if (at && *at == '%') names_set(l->im->arena, &l->had, fx_name(l, at, &at), 1);
        while (at && (at = strchr(at, '%'))) {
            const char *name = fx_name(l, at, &at);
            uint32_t how;
            if (!names_get(&l->lost, name, &how) || how == 2) continue;
            names_set(l->im->arena, &l->lost, name, 2);
            l->n_unnamed--;
        }
    }
}

/* Does the node stand for an operation that takes a lost parameter, or may? */
static bool takes_lost(Lifted *l, const Onnx__NodeProto *node) {
    const char *text = fx_text(l, node);
    uint32_t known;
    if (!text) return true;
    for (const char *at = strchr(text, '%'); at; at = strchr(at, '%')) {
        const char *name = fx_name(l, at, &at);
        if (names_get(&l->lost, name, &known)) return true;
        if (l->n_unnamed && !names_get(&l->had, name, &known)) return true;
    }
    return false;
}

/* ---------------------------------------------------------------- readers */

static bool is_norm_input(const Onnx__NodeProto *node, size_t k) {
    static const char *const norms[] = {"LayerNormalization", "InstanceNormalization",
                                        "GroupNormalization", "BatchNormalization",
                                        "RMSNormalization"};
    for (size_t i = 0; (k == 1 || k == 2) && i < sizeof norms / sizeof *norms; i++)
        if (!strcmp(node->op_type, norms[i])) return true;
    return false;
}

static void readers_read(Lifted *l) {
    for (size_t i = 0; i < l->graph->n_node; i++) {
        const Onnx__NodeProto *node = l->graph->node[i];
        for (size_t k = 0; k < node->n_input; k++) {
            uint32_t at;
            if (!names_get(&l->im->initializers, graph_str(l->im->g, node->input[k]), &at))
                continue;
            at--;
            l->is_norm[at] = is_norm_input(node, k) && (l->is_norm[at] || !l->is_read[at]);
            l->is_read[at] = 1;
            l->in_doubt[at] |= takes_lost(l, node);
        }
    }
}

/* ---------------------------------------------------------------- values */

/* The first elements; a mask shows its kind there, and large weights are not read from disk. */
static Tensor first_elems(const Lifted *l, const TensorSource *s) {
    int64_t n = type_elems(&s->type);
    Type head = {.dtype = s->type.dtype, .rank = 1};
    head.dims[0] = n < MAX_LOOKED_AT ? n : MAX_LOOKED_AT;
    return tensor_from_bytes(l->im->arena, head, s->data);
}

static bool is_made_from_nothing(const char *name) {
    static const char *const makers[] = {
        "zeros",  "zeros_[0-9]*",  "ones",      "ones_[0-9]*", "full",      "full_[0-9]*",
        "*_like", "*_like_[0-9]*", "new_ones*", "new_zeros*",  "new_full*", "scalar_tensor*",
        "arange", "arange_[0-9]*", "eye",       "eye_[0-9]*",  "linspace",  "linspace_[0-9]*"};
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++)
        if (!fnmatch(makers[i], name, 0)) return true;
    return false;
}

static bool is_lifted(const Lifted *l, uint32_t i, const char *name) {
    const TensorSource *s = &l->im->sources[i];
    if (is_made_from_nothing(name)) return true;
    bool is_known = l->has_signature && l->is_read[i];
    if (!s->type.rank || (is_known && (!l->n_lost || !l->in_doubt[i]))) return true;
    Tensor t = first_elems(l, s);
    int64_t n = type_elems(&t.type);
    bool is_uniform = l->is_norm[i] && n && (t.u.f[0] == 0 || t.u.f[0] == 1);
    for (int64_t k = 0; k < n; k++) {
        if (!isfinite(t.u.f[k]) || fabs(t.u.f[k]) > 1e30) return true;
        is_uniform &= t.u.f[k] == t.u.f[0];
    }
    return is_uniform;
}

void lifted_mark(Import *im, NameMap *marks, uint32_t mark) {
    const Onnx__GraphProto *graph = im->file->proto->graph;
    size_t n = graph->n_initializer;
    Lifted l = {.im = im, .graph = graph};
    l.in_doubt = arena_alloc(im->arena, n + 1);
    l.is_read = arena_alloc(im->arena, n + 1);
    l.is_norm = arena_alloc(im->arena, n + 1);
    l.has_signature = signature_read(&l);
    program_read(&l);
    readers_read(&l);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t known;
        const char *name =
            graph_str(im->g, graph->initializer[i]->name ? graph->initializer[i]->name : "");
        if (im->sources[i].data && dtype_info[im->sources[i].type.dtype].cls == CLASS_FLT &&
            !names_get(marks, name, &known) && is_lifted(&l, i, name))
            names_set(im->arena, marks, name, mark);
    }
}
