/* identity.c - gives every initializer the parameters that it holds; see identity.h.
 *
 * All readers of an initializer say what they take it for. Where they agree, it shows that
 * parameter, kept, transposed or reshaped. Where they name several, the exporter has merged
 * parameters of equal values: each gets a value of its own, which its readers are made to read in
 * the unpacked file, so that nothing later knows of it. Readers in TorchScript's files that name
 * modules, and no Identity, may as well read one tied parameter: there only constants are split,
 * and other names are aliases. Where two initializers claim one name, they must hold the same
 * values, else they keep the graph's names. */
#include "identity.h"
#include <fnmatch.h>
#include <string.h>

static const char kind_key[] = "pkg.torch.export.graph_signature.InputSpec.kind";
enum { VALUE_INFO_METADATA = 4 };

bool name_is_made(const char *name) {
    return !strncmp(name, "onnx::", 6) || (*name && !name[strspn(name, "0123456789")]);
}

bool source_is_float(const TensorSource *s) {
    return s->data && dtype_info[s->type.dtype].cls == CLASS_FLT;
}

/* ---------------------------------------------------------------- marks and readers */

static void kinds_read(Identity *id) {
    Import *im = id->im;
    const Onnx__GraphProto *graph = id->graph;
    id->kinds = arena_alloc(im->arena, (graph->n_initializer + 1) * sizeof *id->kinds);
    for (size_t i = 0; i < graph->n_value_info + graph->n_input; i++) {
        const Onnx__ValueInfoProto *v =
            i < graph->n_value_info ? graph->value_info[i] : graph->input[i - graph->n_value_info];
        uint32_t at;
        if (!v->base.n_unknown_fields || !v->name ||
            !names_get(&im->initializers, graph_str(im->g, v->name), &at))
            continue;
        const char *kind = metadata_find(im->file->arena, &v->base, VALUE_INFO_METADATA, kind_key);
        bool is_param = kind && !strcmp(kind, "PARAMETER");
        if (kind) id->kinds[at - 1] = is_param ? MARK_PARAM : MARK_BUFFER;
        id->has_marks |= is_param;
    }
}

static void reader_add(Identity *id, Reader r) {
    if (id->n_readers == id->cap_readers) {
        uint32_t cap = id->cap_readers ? id->cap_readers * 2 : 256;
        id->readers = arena_grow(id->im->arena, id->readers, id->n_readers * sizeof *id->readers,
                                 cap * sizeof *id->readers);
        id->cap_readers = cap;
    }
    id->readers[id->n_readers++] = r;
    if (id->last[r.initializer])
        id->readers[id->last[r.initializer] - 1].next = id->n_readers;
    else
        id->first[r.initializer] = id->n_readers;
    id->last[r.initializer] = id->n_readers;
}

static void node_read(Identity *id, Onnx__NodeProto *node, uint32_t index, bool is_nested) {
    for (uint32_t k = 0; k < node->n_input; k++) {
        uint32_t at;
        if (names_get(&id->im->initializers, graph_str(id->im->g, node->input[k]), &at) &&
            source_is_float(&id->im->sources[at - 1]))
            reader_add(id, (Reader){.node = node,
                                    .index = index,
                                    .input = k,
                                    .initializer = at - 1,
                                    .is_nested = is_nested});
    }
    for (size_t a = 0; a < node->n_attribute; a++) {
        const Onnx__GraphProto *body = node->attribute[a]->g;
        for (size_t k = 0; body && k < body->n_node; k++) node_read(id, body->node[k], index, true);
    }
}

static void readers_read(Identity *id) {
    size_t n = id->graph->n_initializer + 1;
    for (size_t i = 0; i < id->graph->n_node; i++)
        for (size_t k = 0; k < id->graph->node[i]->n_output; k++)
            names_set(id->im->arena, &id->outputs,
                      graph_str(id->im->g, id->graph->node[i]->output[k]), 1);
    id->first = arena_alloc(id->im->arena, n * sizeof *id->first);
    id->last = arena_alloc(id->im->arena, n * sizeof *id->last);
    for (uint32_t i = 0; i < id->graph->n_node; i++) node_read(id, id->graph->node[i], i, false);
}

/* ---------------------------------------------------------------- shown values */

const Shown *shown_find(const Import *im, const char *value) {
    uint32_t at;
    return names_get(&im->shown_by_value, graph_str(im->g, value), &at) ? &im->shown[at - 1] : NULL;
}

Shown *shown_add(Import *im, Shown s) {
    if (im->n_shown == im->cap_shown) {
        uint32_t cap = im->cap_shown ? im->cap_shown * 2 : 64;
        im->shown = arena_grow(im->arena, im->shown, im->n_shown * sizeof s, cap * sizeof s);
        im->cap_shown = cap;
    }
    im->shown[im->n_shown++] = s;
    names_set(im->arena, &im->shown_by_value, s.value, im->n_shown);
    return &im->shown[im->n_shown - 1];
}

void identity_alias(Identity *id, const char *name, const char *of) {
    Import *im = id->im;
    name = graph_str(im->g, name), of = graph_str(im->g, of);
    for (uint32_t i = 0; i < im->n_aliases; i++)
        if (im->aliases[i].name == name) return;
    if (name == of) return;
    if (im->n_aliases == im->cap_aliases) {
        uint32_t cap = im->cap_aliases ? im->cap_aliases * 2 : 16;
        im->aliases = arena_grow(im->arena, im->aliases, im->n_aliases * sizeof *im->aliases,
                                 cap * sizeof *im->aliases);
        im->cap_aliases = cap;
    }
    im->aliases[im->n_aliases++] = (OtherName){name, of};
}

/* ---------------------------------------------------------------- one initializer */

/* The readers of one initializer, by what they take it for. */
typedef struct Take {
    Claim claim;
    uint32_t first; /* reader + 1 */
    uint32_t n;
} Take;
typedef struct Takes {
    Take *items;
    uint32_t n, primary; /* that keeps the initializer; readers that know nothing belong to it */
} Takes;

static bool same_claim(const Claim *a, const Claim *b) {
    bool a_constant = a->kind == CLAIM_CONSTANT, b_constant = b->kind == CLAIM_CONSTANT;
    return a_constant == b_constant && a->name == b->name && a->layout == b->layout;
}

static Takes takes_of(Identity *id, uint32_t initializer) {
    const char *own = graph_str(id->im->g, id->graph->initializer[initializer]->name);
    uint32_t total = 0;
    for (uint32_t i = id->first[initializer]; i; i = id->readers[i - 1].next) total++;
    Takes g = {arena_alloc(id->im->arena, (total + 1) * sizeof *g.items), 0, UINT32_MAX};
    for (uint32_t i = id->first[initializer]; i; i = id->readers[i - 1].next) {
        const Claim *c = &id->readers[i - 1].claim;
        uint32_t k = 0;
        if (c->kind == CLAIM_NONE || c->is_alias) continue;
        while (k < g.n && !same_claim(&g.items[k].claim, c)) k++;
        if (k == g.n) g.items[g.n++] = (Take){*c, i, 0};
        g.items[k].n++;
    }
    for (uint32_t k = g.n; k-- > 0;)
        if (g.items[k].claim.kind != CLAIM_CONSTANT &&
            (g.primary == UINT32_MAX || g.items[g.primary].claim.name != own))
            g.primary = k;
    return g;
}

static bool value_exists(const Identity *id, const char *name) {
    uint32_t known;
    const char *key = graph_str(id->im->g, name);
    return shown_find(id->im, name) || names_get(&id->im->initializers, key, &known) ||
           names_get(&id->outputs, key, &known);
}

/* The readers of a group read a value of their own from now on. */
static void split_off(Identity *id, uint32_t initializer, const Take *group) {
    Import *im = id->im;
    const char *own = id->graph->initializer[initializer]->name;
    const Claim *c = &group->claim;
    bool is_constant = c->kind == CLAIM_CONSTANT, is_plain = c->layout == LAYOUT_KEPT;
    const char *value = is_constant ? arena_printf(im->arena, "%s.constant", own)
                        : is_plain  ? c->name
                                    : arena_printf(im->arena, "%s.%s", own, c->name);
    while (value_exists(id, value)) value = arena_printf(im->arena, "%s.%s", own, value);
    uint32_t *readers = arena_alloc(im->arena, 2 * group->n * sizeof *readers), n = 0;
    for (uint32_t i = id->first[initializer]; i; i = id->readers[i - 1].next) {
        Reader *r = &id->readers[i - 1];
        if (r->claim.kind == CLAIM_NONE || r->claim.is_alias || !same_claim(&r->claim, c)) continue;
        r->node->input[r->input] = arena_strdup(im->file->arena, value);
        readers[2 * n] = r->index;
        readers[2 * n++ + 1] = r->input;
    }
    shown_add(im, (Shown){.value = graph_str(im->g, value),
                          .name = is_constant ? NULL : c->name,
                          .initializer = initializer,
                          .layout = c->layout,
                          .mark = is_constant              ? MARK_LIFTED
                                  : c->kind == CLAIM_PARAM ? MARK_PARAM
                                                           : MARK_BUFFER,
                          .is_split = true,
                          .is_named = true,
                          .readers = readers,
                          .n_readers = n});
}

/* A body inside a node keeps reading what it read. */
static bool may_split(Identity *id, uint32_t initializer) {
    for (uint32_t i = id->first[initializer]; i; i = id->readers[i - 1].next)
        if (id->readers[i - 1].is_nested) return false;
    return true;
}

static void initializer_show(Identity *id, uint32_t i) {
    Import *im = id->im;
    Takes g = takes_of(id, i);
    bool has_name = g.primary != UINT32_MAX;
    const Claim *c = has_name ? &g.items[g.primary].claim : NULL;
    Shown *s = &im->shown[i];
    if (!source_is_float(&im->sources[i])) return;
    if (has_name && (id->has_signature || name_is_made(s->value) || c->is_exact)) {
        s->name = c->name;
        s->layout = c->layout;
        s->is_named = true;
        if (id->has_marks && s->mark == MARK_NONE)
            s->mark = c->kind == CLAIM_PARAM ? MARK_PARAM : MARK_BUFFER;
    }
    for (uint32_t k = 0; has_name && k < g.n && may_split(id, i); k++)
        if (k != g.primary &&
            (g.items[k].claim.kind != CLAIM_CONSTANT || bytes_constant(&im->sources[i])))
            split_off(id, i, &g.items[k]);
}

/* What an Identity makes of an initializer shows the same parameter. */
static void identities_show(Identity *id) {
    for (uint32_t i = 0; i < id->n_readers; i++) {
        const Onnx__NodeProto *node = id->readers[i].node;
        uint32_t at;
        if (!strcmp(node->op_type, "Identity") && !id->readers[i].is_nested &&
            node->n_output == 1 &&
            names_get(&id->im->shown_by_value, graph_str(id->im->g, node->input[0]), &at))
            names_set(id->im->arena, &id->im->shown_by_value, graph_str(id->im->g, node->output[0]),
                      at);
    }
}

/* ---------------------------------------------------------------- TorchScript's merges and ties
 */

/* Readers in other modules: copies of the parameter, or other names of it. */
static void paths_judge(Identity *id, uint32_t i) {
    const char *own = graph_str(id->im->g, id->graph->initializer[i]->name);
    const Reader *like = NULL;
    bool is_shared = false, is_made = name_is_made(own);
    for (uint32_t k = id->first[i]; k; k = id->readers[k - 1].next) {
        Reader *r = &id->readers[k - 1];
        is_shared |= !strcmp(r->node->op_type, "Gather") && r->input == 0;
        if (r->claim.kind != CLAIM_NONE && (!like || r->claim.name == own)) like = r;
    }
    if (!like) return;
    bool has_own = like->claim.name == own;
    for (uint32_t k = id->first[i]; k; k = id->readers[k - 1].next) {
        Reader *r = &id->readers[k - 1];
        if (r->claim.kind == CLAIM_NONE || r == like || r->claim.name == like->claim.name) continue;
        bool is_copy = r->claim.is_exact || like->claim.is_exact ||
                       (!is_shared && (is_made || has_own) && bytes_constant(&id->im->sources[i]));
        r->claim.is_alias = !is_copy;
    }
    for (uint32_t k = id->first[i]; k && !is_made; k = id->readers[k - 1].next) {
        const Reader *r = &id->readers[k - 1];
        bool is_other = r->claim.kind != CLAIM_NONE && r->claim.name != own;
        if (is_other && (r->claim.is_alias || !has_own) && !value_exists(id, r->claim.name))
            identity_alias(id, r->claim.name, own);
    }
}

/* ---------------------------------------------------------------- two initializers, one name */

static Type shown_type(const Import *im, const Shown *s) {
    Type t = im->sources[s->initializer].type;
    if (s->layout == LAYOUT_TRANSPOSED) {
        int64_t rows = t.dims[0];
        t.dims[0] = t.dims[1];
        t.dims[1] = rows;
    } else if (s->layout == LAYOUT_RESHAPED) {
        int64_t n = type_elems(&t);
        t = (Type){.dtype = t.dtype, .rank = 1};
        t.dims[0] = n;
    }
    return t;
}

static void shown_forget(Shown *s) {
    s->name = s->value;
    s->layout = LAYOUT_KEPT;
    s->is_named = false;
}

/* Dynamo folds a weight once for each use that turns it: the same parameter, if values agree. */
static void names_settle(Identity *id) {
    Import *im = id->im;
    NameMap owners = {0};
    for (uint32_t i = 0; i < im->n_shown; i++) {
        Shown *s = &im->shown[i];
        uint32_t at;
        if (!s->name || s->layout == LAYOUT_PART) continue;
        if (!names_get(&owners, s->name, &at)) {
            names_set(im->arena, &owners, s->name, i + 1);
            continue;
        }
        Shown *first = &im->shown[at - 1];
        bool is_turned = (s->layout == LAYOUT_TRANSPOSED) != (first->layout == LAYOUT_TRANSPOSED);
        Type a = shown_type(im, s), b = shown_type(im, first);
        bool is_constant,
            is_same = id->has_signature && dims_equal(&a, &b) && a.dtype == b.dtype &&
                      bytes_equal(&im->sources[first->initializer], &im->sources[s->initializer],
                                  is_turned, &is_constant);
        if (is_same) continue;
        bool is_own = first->name != first->value && s->name == s->value;
        Shown *loser = is_own ? first : s;
        if (!id->has_signature && first->name != first->value) shown_forget(first);
        if (loser->name != loser->value) shown_forget(loser);
        if (is_own) names_set(im->arena, &owners, s->name, i + 1);
    }
}

/* The name that named_parameters() gives a tied parameter: the first in the state_dict. */
static void names_canonical(Identity *id) {
    Import *im = id->im;
    for (uint32_t t = id->n_targets; t-- > 0;) { /* the first comes last, and stays */
        const char *name = id->targets[t].name, *old = NULL;
        for (uint32_t i = 0; i < im->n_aliases; i++)
            if (im->aliases[i].name == name) old = im->aliases[i].of;
        uint32_t at;
        bool is_earlier = old && names_get(&id->targets_by_name, old, &at) && at - 1 > t;
        if (!is_earlier) continue;
        for (uint32_t i = 0; i < im->n_aliases; i++) {
            if (im->aliases[i].of == old) im->aliases[i].of = name;
            if (im->aliases[i].name == name) im->aliases[i].name = old;
        }
        for (uint32_t i = 0; i < im->n_shown; i++)
            if (im->shown[i].name == old) im->shown[i].name = name;
    }
}

/* ---------------------------------------------------------------- what is no parameter */

/* The first states of a recurrence: zeros where the code gives none. */
static bool reader_is_first_state(const Reader *r) {
    const char *op = r->node->op_type;
    return (r->input == 5 || r->input == 6) &&
           (!strcmp(op, "LSTM") || !strcmp(op, "GRU") || !strcmp(op, "RNN"));
}

bool reader_is_norm(const Reader *r) {
    static const char *const norms[] = {"LayerNormalization", "InstanceNormalization",
                                        "GroupNormalization", "BatchNormalization",
                                        "RMSNormalization"};
    for (size_t i = 0; (r->input == 1 || r->input == 2) && i < sizeof norms / sizeof *norms; i++)
        if (!strcmp(r->node->op_type, norms[i])) return true;
    return false;
}

static void lifted_mark(Identity *id) {
    for (uint32_t i = 0; i < id->graph->n_initializer; i++) {
        Shown *s = &id->im->shown[i];
        bool is_known = id->has_signature && id->first[i], is_norm = id->first[i] != 0;
        if (s->mark != MARK_NONE || !source_is_float(&id->im->sources[i])) continue;
        for (uint32_t k = id->first[i]; k; k = id->readers[k - 1].next) {
            is_known &= id->readers[k - 1].claim.kind == CLAIM_CONSTANT;
            is_norm &=
                reader_is_norm(&id->readers[k - 1]) || reader_is_first_state(&id->readers[k - 1]);
        }
        if (lifted_is(id->im, s, is_known, is_norm)) s->mark = MARK_LIFTED;
    }
}

static void statistics_mark(Import *im) {
    const Onnx__GraphProto *graph = im->file->proto->graph;
    for (size_t i = 0; i < graph->n_node; i++) {
        const Onnx__NodeProto *node = graph->node[i];
        bool is_norm = node->op_type && !strcmp(node->op_type, "BatchNormalization");
        for (size_t k = 3; is_norm && k < node->n_input && k < 5; k++) {
            uint32_t at;
            if (names_get(&im->shown_by_value, graph_str(im->g, node->input[k]), &at))
                im->shown[at - 1].mark = MARK_STATISTIC;
        }
    }
}

/* ---------------------------------------------------------------- the whole file */

/* Names of a state_dict, or names that the exporter made. */
static bool is_own_name(Identity *id, const char *name) {
    uint32_t known;
    if (id->has_signature) return names_get(&id->targets_by_name, name, &known);
    return !name_is_made(name) && fnmatch("val_[0-9]*", name, 0);
}

/* In a file without marks (an optimizer dropped them, or the exporter writes none): masks, and
 * single numbers that have no name of their own, as exponents and epsilons. */
static void constants_mark(Identity *id) {
    for (uint32_t i = 0; i < id->graph->n_initializer; i++) {
        Shown *s = &id->im->shown[i];
        const TensorSource *source = &id->im->sources[i];
        if (s->mark != MARK_NONE || !source_is_float(source)) continue;
        bool is_named = is_own_name(id, s->value) && *s->value != '/';
        bool is_number = type_elems(&source->type) == 1 && !is_named;
        if (is_number || mask_is(id->im, s)) s->mark = MARK_LIFTED;
    }
}

static void shown_begin(Identity *id) {
    Import *im = id->im;
    for (uint32_t i = 0; i < id->graph->n_initializer; i++) {
        const char *name = graph_str(im->g, id->graph->initializer[i]->name);
        shown_add(im, (Shown){.value = name,
                              .name = name,
                              .initializer = i,
                              .mark = id->kinds[i],
                              .is_named = id->kinds[i] != MARK_NONE || is_own_name(id, name)});
    }
}

void identity_find(Import *im) {
    Identity id = {.im = im, .graph = im->file->proto->graph};
    kinds_read(&id);
    readers_read(&id);
    fx_read(&id);
    shown_begin(&id);
    if (!id.has_signature) path_read(&id);
    for (uint32_t i = 0; i < id.n_readers; i++) {
        Reader *r = &id.readers[i];
        if (id.has_signature)
            r->claim = fx_claim(&id, r);
        else if (id.has_paths)
            r->claim = path_claim(&id, r);
    }
    if (id.has_signature) fx_aliases(&id);
    for (uint32_t i = 0; i < id.graph->n_initializer && id.has_paths; i++)
        if (source_is_float(&im->sources[i])) paths_judge(&id, i);
    for (uint32_t i = 0; i < id.graph->n_initializer; i++) initializer_show(&id, i);
    if (id.has_signature) zeros_restore(&id);
    packed_find(&id);
    identities_show(&id);
    names_settle(&id);
    if (id.has_signature) names_canonical(&id);
    if (id.has_signature) rows_restore(&id);
    if (id.has_marks || id.has_signature)
        lifted_mark(&id);
    else
        constants_mark(&id);
    statistics_mark(im);
    ties_find(&id);
    if (!im->options->eval_only) identity_report(&id);
}
