/* identity_packed.c - the parameters of recurrent layers, which both exporters pack.
 *
 * ONNX's LSTM, GRU and RNN read W and R [directions, gates * H, ..] and B [directions, 2 * gates *
 * H], the biases of the input before those of the recurrence; folding leaves an initializer each
 * that no module has. PyTorch has a weight_ih_l0, weight_hh_l0, bias_ih_l0 and bias_hh_l0 for every
 * layer and direction, with its gates in another order. Every one of them is a contiguous part of
 * the initializer, but for the order of its gates. Dynamo's operation lists them, TorchScript's
 * path is the module's, and the nodes of one call are its layers, in order. All readers must agree,
 * and nothing else may have such a name, else the initializer stays as it is.
 */
#include "identity.h"
#include <string.h>

enum { MAX_PARTS = 4 };

/* ONNX has i o f c, z r h; PyTorch i f g o, r z n. */
typedef struct Cell {
    const char *op, *blocks;
    int64_t gates;
} Cell;
static const Cell cells[] = {{"LSTM", "0231", 4}, {"GRU", "102", 3}, {"RNN", NULL, 1}};

typedef struct Parts {
    struct {
        const char *name;
        Part part;
    } items[MAX_PARTS];
    uint32_t n;
} Parts;

static const Cell *cell_of(const Onnx__NodeProto *node) {
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
        if (!strcmp(node->op_type, cells[i].op)) return &cells[i];
    return NULL;
}

/* Do the nodes belong to one call of a layer, by what the exporter says? */
static bool is_same_call(Identity *id, const Onnx__NodeProto *a, const Onnx__NodeProto *b) {
    if (strcmp(a->op_type, b->op_type)) return false;
    if (id->has_signature) {
        const char *x = fx_text(id, a), *y = fx_text(id, b);
        return x && y && !strcmp(x, y);
    }
    const char *x = strrchr(a->name, '/'), *y = strrchr(b->name, '/');
    return x && y && x - a->name == y - b->name && !memcmp(a->name, b->name, (size_t)(x - a->name));
}

static uint32_t layer_of(Identity *id, const Reader *r) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->index; i++) n += is_same_call(id, id->graph->node[i], r->node);
    return n;
}

/* role: weight_ih, weight_hh, bias_ih, bias_hh */
static const char *part_name(Identity *id, const Reader *r, uint32_t directions, uint32_t direction,
                             uint32_t role) {
    static const char *const words[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
    uint32_t layer = layer_of(id, r), each;
    if (id->has_signature) {
        if (!fx_listed(id, r->node, 0, &each) || role >= each) return NULL;
        return fx_listed(id, r->node, (layer * directions + direction) * each + role, &each);
    }
    const char *module = id->has_paths ? path_leaf(id, r->node) : NULL;
    if (!module) return NULL;
    return graph_str(id->im->g,
                     arena_printf(id->im->arena, "%s%s%s_l%u%s", module, *module ? "." : "",
                                  words[role], layer, direction ? "_reverse" : ""));
}

/* [directions, gates * H, columns], or [directions, 2 * gates * H] for B */
static bool has_form(const Type *t, bool is_bias, int64_t gates) {
    return t->rank == (is_bias ? 2 : 3) && (t->dims[0] == 1 || t->dims[0] == 2) && t->dims[1] > 0 &&
           t->dims[1] % (gates * (is_bias ? 2 : 1)) == 0;
}

static Parts parts_of(Identity *id, const Reader *r) {
    Parts p = {.n = 0};
    const Type *t = &id->im->sources[r->initializer].type;
    const Cell *cell = cell_of(r->node);
    bool is_bias = r->input == 3;
    if (!cell || r->is_nested || r->input < 1 || r->input > 3 || !has_form(t, is_bias, cell->gates))
        return p;
    Type type = {.dtype = t->dtype, .rank = is_bias ? 1 : 2};
    type.dims[0] = is_bias ? t->dims[1] / 2 : t->dims[1];
    if (!is_bias) type.dims[1] = t->dims[2];
    uint32_t directions = (uint32_t)t->dims[0], n_roles = is_bias ? 2 : 1;
    for (uint32_t i = 0; i < directions * n_roles; i++) {
        uint32_t role = is_bias ? 2 + i % 2 : r->input - 1;
        const char *name = part_name(id, r, directions, i / n_roles, role);
        if (!name) return (Parts){.n = 0};
        p.items[p.n].name = name;
        p.items[p.n++].part = (Part){type, i * (uint64_t)type_elems(&type), cell->blocks};
    }
    return p;
}

/* What all readers take the initializer for. */
static Parts parts_agreed(Identity *id, uint32_t initializer) {
    Parts p = {.n = 0};
    for (uint32_t i = id->first[initializer]; i; i = id->readers[i - 1].next) {
        Parts other = parts_of(id, &id->readers[i - 1]);
        bool is_first = i == id->first[initializer], is_same = other.n && other.n == p.n;
        if (is_first) p = other;
        for (uint32_t k = 0; is_same && k < p.n; k++)
            is_same = p.items[k].name == other.items[k].name;
        if (!p.n || (!is_first && !is_same)) return (Parts){.n = 0};
    }
    return p;
}

/* Nothing has the name, or the same part of an initializer of the same values: a layer that is
 * called twice. */
static bool is_free(const Identity *id, const char *name, const Part *part, uint32_t initializer) {
    const Import *im = id->im;
    bool is_constant;
    for (uint32_t i = 0; i < im->n_shown; i++) {
        const Shown *s = &im->shown[i];
        if (s->name != name) continue;
        const TensorSource *a = &im->sources[s->initializer], *b = &im->sources[initializer];
        if (s->layout != LAYOUT_PART || s->part.first != part->first ||
            a->type.dtype != b->type.dtype || !dims_equal(&a->type, &b->type) ||
            !bytes_equal(a, b, false, &is_constant))
            return false;
    }
    return true;
}

static bool is_own(Identity *id, uint32_t initializer) {
    uint32_t known;
    const char *name = id->im->shown[initializer].value;
    if (id->kinds[initializer] != MARK_NONE || id->im->shown[initializer].name != name) return true;
    return id->has_signature ? names_get(&id->targets_by_name, name, &known) : !name_is_made(name);
}

static void packed_begin(Import *im, uint32_t initializer) {
    Shown *s = &im->shown[initializer];
    s->name = NULL;
    s->layout = LAYOUT_PACKED;
    s->parts = im->n_shown;
}

static void part_add(Import *im, uint32_t initializer, const char *name, Part part) {
    const char *value = arena_printf(im->arena, "%s.%s", im->shown[initializer].value, name);
    im->shown[initializer].n_parts++;
    shown_add(im, (Shown){.value = graph_str(im->g, value),
                          .name = name,
                          .initializer = initializer,
                          .layout = LAYOUT_PART,
                          .mark = MARK_PARAM,
                          .is_named = true,
                          .part = part});
}

static void packed_show(Identity *id, uint32_t i) {
    Parts p = parts_agreed(id, i);
    bool is_good = p.n > 0;
    for (uint32_t k = 0; k < p.n; k++) is_good &= is_free(id, p.items[k].name, &p.items[k].part, i);
    if (!is_good) return;
    packed_begin(id->im, i);
    for (uint32_t k = 0; k < p.n; k++) part_add(id->im, i, p.items[k].name, p.items[k].part);
}

void packed_find(Identity *id) {
    for (uint32_t i = 0; i < id->graph->n_initializer; i++)
        if (id->first[i] && source_is_float(&id->im->sources[i]) && !is_own(id, i))
            packed_show(id, i);
}
