/* params.c - which initializers are parameters, and which of those train.
 *
 * Every float initializer shows a parameter (identity.c): the parameter becomes a state under
 * PyTorch's name and in PyTorch's layout, with the initializer's place in a file as source, and the
 * graph reads it turned as the file has it. Integers and truth values become constants, but for the
 * weights of quantised ops (quantised.c). A state trains unless the exporter marks it a buffer
 * (dynamo's InputSpec.kind) or lifted it out of the code (lifted.c), BatchNormalization keeps it as
 * a running statistic, or a --freeze rule says so; with adapters (--lora) none does that no --train
 * rule names;
 * --freeze and --train apply in order, the later wins, and take every name that the parameter has.
 * Whether it lies on a path to the loss is for the passes to find. What was lifted, and scalars
 * that an exporter made (val_3, zeros) and that do not train, are constants too: the patterns that
 * the matcher looks for hold numbers there.
 */
#include "context.h"
#include <fnmatch.h>
#include <string.h>

enum { MAX_NAMED = 6, MAX_CONSTANT_ELEMS = 1 << 16 };

/* Names that exporters give to constants which they lift out of the code. */
static const char *const lifted_globs[] = {
    "val_*", "_val_*", "onnx::*",        "zeros",     "zeros_*",    "ones",     "ones_*",
    "full",  "full_*", "scalar_tensor*", "new_ones*", "new_zeros*", "new_full*"};

static bool is_float(const TensorSource *s) { return dtype_info[s->type.dtype].cls == CLASS_FLT; }

static const Onnx__GraphProto *main_graph(const Import *im) { return im->file->proto->graph; }

/* ---------------------------------------------------------------- freeze and train */

static const char *graph_name(const Import *im, const Shown *s) {
    return s->layout == LAYOUT_PART ? im->shown[s->initializer].value : s->value;
}

/* Does the glob meet one of the parameter's names: its own, another of the state_dict, the graph's?
 */
static bool glob_meets(const Import *im, const char *glob, const char *name) {
    bool meets = !fnmatch(glob, name, 0);
    for (uint32_t i = 0; i < im->n_aliases && !meets; i++)
        meets = im->aliases[i].of == name && !fnmatch(glob, im->aliases[i].name, 0);
    for (uint32_t i = 0; i < im->n_shown && !meets; i++)
        meets = im->shown[i].name == name && !im->shown[i].is_split &&
                !fnmatch(glob, graph_name(im, &im->shown[i]), 0);
    return meets;
}

/* What the rules say about a parameter; `otherwise` where none matches. Notes which matched. */
static bool rules_apply(const Import *im, const char *name, bool otherwise, bool *is_matched) {
    const ImportOptions *o = im->options;
    bool trains = otherwise;
    for (uint32_t i = 0; i < o->n_freezes; i++) {
        if (!glob_meets(im, o->freezes[i].glob, name)) continue;
        is_matched[i] = true;
        trains = o->freezes[i].train;
    }
    return trains;
}

static bool is_glob(const char *text) { return strpbrk(text, "*?[") != NULL; }

bool params_names_constant(const Import *im, const char *output) {
    bool is_named = false;
    for (uint32_t i = 0; i < im->options->n_freezes; i++)
        if (!is_glob(im->options->freezes[i].glob) && !strcmp(im->options->freezes[i].glob, output))
            is_named = im->options->freezes[i].train;
    return is_named;
}

static void match_constants(Import *im, bool *is_matched) {
    const Onnx__GraphProto *graph = main_graph(im);
    for (size_t i = 0; i < graph->n_node; i++) {
        const Onnx__NodeProto *node = graph->node[i];
        if (strcmp(node->op_type, "Constant") || !node->n_output) continue;
        for (uint32_t k = 0; k < im->options->n_freezes; k++)
            is_matched[k] |= !strcmp(im->options->freezes[k].glob, node->output[0]);
    }
}

/* Would the glob meet an adapter of some parameter (passes/lora.c)? */
static bool meets_adapter(const Import *im, const char *glob) {
    Graph *g = im->g;
    for (uint32_t i = 0; i < 2 * g->n_states && im->options->adapters; i++) {
        const char *name = g->states[i / 2].name, *tail = strstr(name, ".weight");
        int n = (int)(tail && !tail[sizeof ".weight" - 1] ? tail - name : (long)strlen(name));
        const char *adapter = arena_printf(im->arena, "base_model.model.%.*s.lora_%c.weight", n,
                                           name, i % 2 ? 'B' : 'A');
        if (!fnmatch(glob, adapter, 0)) return true;
    }
    return false;
}

static void report_unmatched(Import *im, const bool *is_matched) {
    Graph *g = im->g;
    const char **names = arena_alloc(g->arena, (g->n_states + 1) * sizeof *names);
    for (uint32_t i = 0; i < g->n_states; i++) names[i] = g->states[i].name;
    for (uint32_t i = 0; i < im->options->n_freezes; i++) {
        if (is_matched[i] || meets_adapter(im, im->options->freezes[i].glob)) continue;
        const FreezeRule *rule = &im->options->freezes[i];
        diag_add(g, E_GLOB_UNMATCHED, 0, rule->train ? "--train" : "--freeze", rule->glob);
        const char *closest = closest_name(g->arena, rule->glob, names, g->n_states);
        if (!closest && g->n_states) closest = names[0];
        bool is_name = !strpbrk(rule->glob, "*?[");
        if (closest)
            diag_hint(g, is_name ? "did you mean %s?" : "parameters have names like %s", closest);
    }
}

/* What the rules came to, so that a glob that met less than was meant is seen. */
static void report_trained(Import *im) {
    enum { SHOWN = 6 };
    Graph *g = im->g;
    uint32_t n_trained = 0, n = 0;
    const char *names = "";
    for (uint32_t i = 0; i < g->n_states; i++) {
        const State *s = &g->states[i];
        if (s->cls != STATE_PARAM || s->is_buffer) continue;
        n++;
        if (!s->trains || n_trained++ >= SHOWN) continue;
        names = arena_printf(g->arena, "%s%s%s", names, *names ? ", " : ": ", s->name);
    }
    diag_add(g, N_TRAINS, 0, (long long)n_trained, (long long)n, names,
             n_trained > SHOWN ? ", ..." : "");
}

/* ---------------------------------------------------------------- states */

static void transpose_bytes(const TensorSource *s, size_t bytes, uint8_t *to) {
    size_t rows = (size_t)s->type.dims[0], columns = (size_t)s->type.dims[1];
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            memcpy(to + (c * rows + r) * bytes,
                   (const uint8_t *)s->data + (r * columns + c) * bytes, bytes);
}

static WeightSource part_source(Import *im, const TensorSource *s, const Part *part) {
    size_t bytes = (size_t)type_bytes(&part->type);
    uint64_t at = part->first * dtype_info[part->type.dtype].bytes;
    const char *blocks = part->blocks, *from = (const char *)s->data + at;
    if (s->file) return (WeightSource){s->file, s->offset + at, bytes, NULL, false, blocks};
    char *turned = arena_alloc(im->arena, bytes + 1);
    size_t n = blocks ? bytes / strlen(blocks) : bytes;
    for (size_t k = 0; k * n < bytes; k++)
        memcpy(turned + k * n, from + (blocks ? (size_t)(blocks[k] - '0') : k) * n, n);
    return (WeightSource){.bytes = bytes, .data = turned};
}

/* Elements that were decoded into memory are turned there, those of a file when they are loaded. */
static WeightSource source_of(Import *im, const TensorSource *s, Layout layout) {
    WeightSource w = {s->file, s->offset, s->bytes, s->file ? NULL : s->data, false, NULL};
    if (layout != LAYOUT_TRANSPOSED) return w;
    w.is_transposed = s->file != NULL;
    if (!s->file) {
        uint8_t *turned = arena_alloc(im->arena, s->bytes + 1);
        transpose_bytes(s, dtype_info[s->type.dtype].bytes, turned);
        w.data = turned;
    }
    return w;
}

static Type state_type(const TensorSource *s, const Shown *shown) {
    Type t = s->type;
    switch (shown->layout) {
    case LAYOUT_KEPT:
    case LAYOUT_PACKED:
    case LAYOUT_ROWS: /* the parameter stands in the file as well */
        break;
    case LAYOUT_PART:
        return shown->part.type;
    case LAYOUT_TRANSPOSED:
        t.dims[0] = s->type.dims[1];
        t.dims[1] = s->type.dims[0];
        break;
    case LAYOUT_RESHAPED:
        t = (Type){.dtype = t.dtype, .rank = 1};
        t.dims[0] = type_elems(&s->type);
        break;
    }
    return t;
}

/* Every initializer that holds the parameter; none where it stands there alone, as it is. */
static void holders_list(Import *im, State *state) {
    uint32_t n = 0, n_splits = 0;
    bool is_plain = true;
    Holder *holders = arena_alloc(im->arena, (im->n_shown + 1) * sizeof *holders);
    for (uint32_t i = 0; i < im->n_shown; i++) {
        const Shown *s = &im->shown[i];
        bool is_original = s->is_split && !s->name && im->shown[s->initializer].name == state->name;
        if (s->name != state->name && !is_original) continue;
        bool is_part = s->layout == LAYOUT_PART;
        const char *from = s->is_split ? im->shown[s->initializer].value : NULL;
        n_splits += is_original;
        is_plain &=
            !s->is_split && !s->is_restored && s->value == s->name && s->layout == LAYOUT_KEPT;
        holders[n++] = (Holder){graph_name(im, s),
                                from,
                                im->sources[s->initializer].type,
                                s->layout == LAYOUT_TRANSPOSED,
                                is_original,
                                s->readers,
                                s->n_readers,
                                is_part ? s->part.first : 0,
                                is_part ? s->part.blocks : NULL};
    }
    if (n == 1 && is_plain && !n_splits) return;
    state->holders = holders;
    state->n_holders = n;
}

static void aliases_list(Import *im, State *state) {
    const char **names = arena_alloc(im->arena, (im->n_aliases + 1) * sizeof *names);
    for (uint32_t i = 0; i < im->n_aliases; i++)
        if (im->aliases[i].of == state->name) names[state->n_aliases++] = im->aliases[i].name;
    state->aliases = names;
}

static void state_add(Import *im, const Shown *shown, bool *is_matched) {
    const TensorSource *s = &im->sources[shown->initializer];
    Mark mark = shown->mark;
    if (graph_state(im->g, shown->name)) return; /* a tie: the first source is taken */
    if (shown->layout == LAYOUT_ROWS) return;
    bool trains =
        rules_apply(im, shown->name, mark < MARK_BUFFER && !im->options->adapters, is_matched);
    Type type = state_type(s, shown);
    State state = {.name = shown->name, .cls = STATE_PARAM, .is_buffer = mark >= MARK_BUFFER};
    if (mark == MARK_LIFTED && !trains && type_elems(&s->type) <= MAX_CONSTANT_ELEMS) {
        return; /* params_value makes it a constant */
    }
    state.type = graph_type(im->g, type);
    bool may_train = mark != MARK_STATISTIC && mark != MARK_QUANTISED;
    state.trains = trains && may_train && !im->options->eval_only;
    state.source = shown->layout == LAYOUT_PART ? part_source(im, s, &shown->part)
                                                : source_of(im, s, shown->layout);
    holders_list(im, &state);
    aliases_list(im, &state);
    graph_add_state(im->g, state);
}

bool params_add(Import *im) {
    const Onnx__GraphProto *graph = main_graph(im);
    bool *is_matched = arena_alloc(im->arena, im->options->n_freezes + 1), is_valid = true;
    for (uint32_t i = 0; i < graph->n_initializer; i++) is_valid &= im->sources[i].data != NULL;
    if (!is_valid) return false;
    identity_find(im);
    quantised_mark(im);
    for (uint32_t i = 0; i < im->n_shown; i++) {
        const Shown *s = &im->shown[i];
        if (s->name && (is_float(&im->sources[s->initializer]) || s->mark == MARK_QUANTISED))
            state_add(im, s, is_matched);
        else if (s->name)
            rules_apply(im, s->name, false,
                        is_matched); /* a glob that meets integers alone is no mistake */
    }
    match_constants(im, is_matched);
    report_unmatched(im, is_matched);
    if (im->options->n_freezes && !im->options->eval_only && !im->options->adapters)
        report_trained(im);
    return true;
}

static bool is_lifted_value(Import *im, const Shown *shown) {
    if (shown->layout == LAYOUT_PART || shown->layout == LAYOUT_PACKED) return false;
    const State *state = shown->name ? graph_state(im->g, shown->name) : NULL;
    if (!state) return true;
    if (type_elems(&im->sources[shown->initializer].type) != 1 || state->trains || state->is_buffer)
        return false;
    for (size_t i = 0; i < sizeof lifted_globs / sizeof *lifted_globs; i++)
        if (!fnmatch(lifted_globs[i], shown->value, 0)) return true;
    return false;
}

State *shown_state(const Import *im, const char *value) {
    const Shown *s = shown_find(im, value);
    return s && s->name ? graph_state(im->g, s->name) : NULL;
}

const TensorSource *state_source(const Import *im, const char *name) {
    for (uint32_t i = 0; i < im->n_shown; i++)
        if (im->shown[i].name == name && im->shown[i].layout == LAYOUT_KEPT)
            return &im->sources[im->shown[i].initializer];
    return NULL;
}

/* The part's rows in the initializer's order, appended to `rows`. */
static uint32_t part_rows(Import *im, const Shown *shown, Value *rows) {
    Value v = build_state(im->g, shown->name);
    const char *blocks = shown->part.blocks;
    uint32_t n = blocks ? (uint32_t)strlen(blocks) : 1;
    Type t = shown->part.type;
    if (n == 1) rows[0] = v;
    t.dims[0] /= n;
    for (uint32_t k = 0; n > 1 && k < n; k++) {
        int64_t start[MAX_RANK] = {k * t.dims[0]};
        rows[blocks[k] - '0'] = build_slice(im->g, v, start, t.dims, NULL);
    }
    return n;
}

static Value packed_value(Import *im, const Shown *shown) {
    enum { MAX_BLOCKS = 9 };
    const Type *t = &im->sources[shown->initializer].type;
    Value *rows = arena_alloc(im->arena, shown->n_parts * MAX_BLOCKS * sizeof *rows);
    uint32_t n = 0;
    for (uint32_t i = 0; i < shown->n_parts; i++)
        n += part_rows(im, &im->shown[shown->parts + i], rows + n);
    Value v = n > 1 ? build_concat(im->g, rows, n, 0) : rows[0];
    return build_reshape(im->g, v, t->rank, t->dims);
}

Value shown_value(Import *im, const Shown *shown) {
    const TensorSource *s = &im->sources[shown->initializer];
    if ((!is_float(s) && shown->mark != MARK_QUANTISED) || is_lifted_value(im, shown))
        return build_const(im->g, graph_type(im->g, s->type), s->data);
    if (shown->layout == LAYOUT_PACKED) return packed_value(im, shown);
    Value v = build_state(im->g, shown->name);
    switch (shown->layout) {
    case LAYOUT_KEPT:
    case LAYOUT_PART:
    case LAYOUT_PACKED:
        return v;
    case LAYOUT_TRANSPOSED:
        return build_transpose(im->g, v, (int64_t[]){1, 0});
    case LAYOUT_RESHAPED:
        return build_reshape(im->g, v, s->type.rank, s->type.dims);
    case LAYOUT_ROWS:
        return build_expand(im->g, v, s->type.rank, s->type.dims);
    }
    return v;
}

Value params_add_constant(Import *im, const char *output, const TensorSource *s) {
    const char *name = graph_str(im->g, output);
    if (!graph_state(im->g, name))
        graph_add_state(
            im->g, (State){.name = name,
                           .cls = STATE_PARAM,
                           .type = graph_type(im->g, s->type),
                           .trains = params_names_constant(im, output) && !im->options->eval_only,
                           .is_buffer = !params_names_constant(im, output),
                           .source = source_of(im, s, LAYOUT_KEPT)});
    return build_state(im->g, name);
}

/* ---------------------------------------------------------------- what an obstacle cuts off */

typedef struct Behind {
    Import *im;
    NameMap makers; /* value name -> node index + 1 */
    bool *is_seen;
    const char *text;
    uint32_t n;
    NameMap listed;
} Behind;

static void behind_state(Behind *b, const State *s) {
    uint32_t known;
    if (!s || !s->trains || names_get(&b->listed, s->name, &known)) return;
    names_set(b->im->arena, &b->listed, s->name, 1);
    if (b->n++ < MAX_NAMED)
        b->text = arena_printf(b->im->arena, "%s%s%s", b->text ? b->text : "", b->text ? ", " : "",
                               s->name);
}

static void behind_param(Behind *b, const char *name) {
    const Shown *s = shown_find(b->im, name);
    for (uint32_t i = 0; s && s->layout == LAYOUT_PACKED && i < s->n_parts; i++)
        behind_state(b, graph_state(b->im->g, b->im->shown[s->parts + i].name));
    behind_state(b, shown_state(b->im, name));
}

/* What the node reads, and the bodies and branches in its attributes. */
static void behind_node(Behind *b, const Onnx__NodeProto *node) {
    for (size_t k = 0; k < node->n_input; k++) {
        uint32_t maker;
        const char *name = graph_str(b->im->g, node->input[k]);
        if (names_get(&b->makers, name, &maker))
            b->is_seen[maker - 1] = true;
        else
            behind_param(b, name);
    }
    for (size_t k = 0; k < node->n_attribute; k++) {
        const Onnx__GraphProto *body = node->attribute[k]->g;
        for (size_t i = 0; body && i < body->n_node; i++) behind_node(b, body->node[i]);
    }
}

/* Nodes are in topological order, so one loop down from the node visits everything behind it. */
static void behind_walk(Behind *b, const Onnx__NodeProto *from) {
    const Onnx__GraphProto *graph = main_graph(b->im);
    for (size_t i = graph->n_node; i-- > 0;) {
        if (graph->node[i] == from || b->is_seen[i]) behind_node(b, graph->node[i]);
    }
}

const char *params_behind(Import *im, const Onnx__NodeProto *from) {
    const Onnx__GraphProto *graph = main_graph(im);
    Behind b = {.im = im, .is_seen = arena_alloc(im->arena, graph->n_node + 1)};
    for (uint32_t i = 0; i < graph->n_node; i++)
        for (size_t k = 0; k < graph->node[i]->n_output; k++)
            names_set(im->arena, &b.makers, graph_str(im->g, graph->node[i]->output[k]), i + 1);
    behind_walk(&b, from);
    return b.n > MAX_NAMED ? arena_printf(im->arena, "%s and %u more", b.text, b.n - MAX_NAMED)
                           : b.text;
}
