/* params.c - which initializers are parameters, and which of those train.
 *
 * Every float initializer becomes a state with its place in a file as source; integers and truth
 * values become constants. A state trains unless the exporter marks it a buffer (dynamo's
 * InputSpec.kind) or lifted it out of the code (lifted.c), BatchNormalization keeps it as a running
 * statistic, or a --freeze rule says so;
 * --freeze and --train apply in order, the later wins. Whether it lies on a path to the loss is for
 * the passes to find. What was lifted, and scalars that an exporter made (val_3, zeros) and that
 * do not train, are constants too: the patterns that the matcher looks for hold numbers there.
 */
#include "context.h"
#include <fnmatch.h>
#include <string.h>

static const char kind_key[] = "pkg.torch.export.graph_signature.InputSpec.kind";
enum { VALUE_INFO_METADATA = 4, MAX_NAMED = 6, MARK_LIFTED = 4, MAX_CONSTANT_ELEMS = 1 << 16 };

/* Names that exporters give to constants which they lift out of the code. */
static const char *const lifted_globs[] = {
    "val_*", "_val_*", "onnx::*",        "zeros",     "zeros_*",    "ones",     "ones_*",
    "full",  "full_*", "scalar_tensor*", "new_ones*", "new_zeros*", "new_full*"};

static bool is_float(const TensorSource *s) { return dtype_info[s->type.dtype].cls == CLASS_FLT; }

static const Onnx__GraphProto *main_graph(const Import *im) { return im->file->proto->graph; }

/* ---------------------------------------------------------------- marks in the file */

typedef struct Marks {
    NameMap kinds;
} Marks; /* name -> 1 parameter, 2 buffer, 3 running statistic, 4 lifted constant */

static void marks_read(Import *im, Marks *marks) {
    bool has_params = false;
    const Onnx__GraphProto *graph = main_graph(im);
    size_t total = graph->n_value_info + graph->n_input;
    for (size_t i = 0; i < total; i++) {
        const Onnx__ValueInfoProto *v =
            i < graph->n_value_info ? graph->value_info[i] : graph->input[i - graph->n_value_info];
        const char *kind = v->base.n_unknown_fields ? metadata_find(im->file->arena, &v->base,
                                                                    VALUE_INFO_METADATA, kind_key)
                                                    : NULL;
        if (!kind || !v->name) continue;
        names_set(im->arena, &marks->kinds, graph_str(im->g, v->name),
                  strcmp(kind, "PARAMETER") ? 2 : 1);
        has_params |= !strcmp(kind, "PARAMETER");
    }
    for (size_t i = 0; i < graph->n_node; i++) {
        const Onnx__NodeProto *node = graph->node[i];
        bool is_norm = node->op_type && !strcmp(node->op_type, "BatchNormalization");
        for (size_t k = 3; is_norm && k < node->n_input && k < 5; k++)
            names_set(im->arena, &marks->kinds, graph_str(im->g, node->input[k]), 3);
    }
    if (has_params) lifted_mark(im, &marks->kinds, MARK_LIFTED);
}

/* ---------------------------------------------------------------- freeze and train */

/* What the rules say about a name; `otherwise` where none matches. Notes which rules matched. */
static bool rules_apply(const ImportOptions *o, const char *name, bool otherwise,
                        bool *is_matched) {
    bool trains = otherwise;
    for (uint32_t i = 0; i < o->n_freezes; i++) {
        if (fnmatch(o->freezes[i].glob, name, 0)) continue;
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

static void report_unmatched(Import *im, const bool *is_matched) {
    Graph *g = im->g;
    const char **names = arena_alloc(g->arena, (g->n_states + 1) * sizeof *names);
    for (uint32_t i = 0; i < g->n_states; i++) names[i] = g->states[i].name;
    for (uint32_t i = 0; i < im->options->n_freezes; i++) {
        if (is_matched[i]) continue;
        const FreezeRule *rule = &im->options->freezes[i];
        diag_add(g, E_GLOB_UNMATCHED, 0, rule->train ? "--train" : "--freeze", rule->glob);
        const char *closest = closest_name(g->arena, rule->glob, names, g->n_states);
        if (!closest && g->n_states) closest = names[0];
        if (closest) diag_hint(g, "parameters have names like %s", closest);
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

static void state_add(Import *im, const char *name, const TensorSource *s, uint32_t mark,
                      bool *is_matched) {
    bool trains = rules_apply(im->options, name, mark < 2, is_matched);
    State state = {.name = name, .cls = STATE_PARAM, .is_buffer = mark >= 2};
    state.type = graph_type(im->g, s->type);
    if (mark == MARK_LIFTED && !trains && type_elems(&s->type) <= MAX_CONSTANT_ELEMS) {
        return; /* params_value makes it a constant */
    }
    state.trains = trains && mark != 3 && !im->options->eval_only;
    state.source = (WeightSource){s->file, s->offset, s->bytes, s->file ? NULL : s->data};
    graph_add_state(im->g, state);
}

bool params_add(Import *im) {
    const Onnx__GraphProto *graph = main_graph(im);
    Marks marks = {0};
    bool *is_matched = arena_alloc(im->arena, im->options->n_freezes + 1), is_valid = true;
    marks_read(im, &marks);
    for (uint32_t i = 0; i < graph->n_initializer; i++) {
        const char *name =
            graph_str(im->g, graph->initializer[i]->name ? graph->initializer[i]->name : "");
        uint32_t mark = 0;
        if (!im->sources[i].data) {
            is_valid = false;
            continue;
        }
        names_get(&marks.kinds, name, &mark);
        if (is_float(&im->sources[i]))
            state_add(im, name, &im->sources[i], mark, is_matched);
        else
            rules_apply(im->options, name, false,
                        is_matched); /* a glob that meets integers alone is no mistake */
    }
    match_constants(im, is_matched);
    report_unmatched(im, is_matched);
    if (im->options->n_freezes && !im->options->eval_only) report_trained(im);
    return is_valid;
}

static bool is_lifted_value(Import *im, const char *name, const TensorSource *s) {
    const State *state = graph_state(im->g, name);
    if (!state) return true;
    if (type_elems(&s->type) != 1 || state->trains || state->is_buffer) return false;
    for (size_t i = 0; i < sizeof lifted_globs / sizeof *lifted_globs; i++)
        if (!fnmatch(lifted_globs[i], name, 0)) return true;
    return false;
}

Value params_value(Import *im, uint32_t i) {
    const TensorSource *s = &im->sources[i];
    const char *name = graph_str(im->g, main_graph(im)->initializer[i]->name);
    if (is_float(s) && !is_lifted_value(im, name, s)) return build_state(im->g, name);
    return build_const(im->g, graph_type(im->g, s->type), s->data);
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
                           .source = {s->file, s->offset, s->bytes, s->file ? NULL : s->data}});
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

static void behind_param(Behind *b, const char *name) {
    uint32_t known;
    const State *s = graph_state(b->im->g, name);
    if (!s || !s->trains || names_get(&b->listed, name, &known)) return;
    names_set(b->im->arena, &b->listed, name, 1);
    if (b->n++ < MAX_NAMED)
        b->text =
            arena_printf(b->im->arena, "%s%s%s", b->text ? b->text : "", b->text ? ", " : "", name);
}

/* Nodes are in topological order, so one loop down from the node visits everything behind it. */
static void behind_walk(Behind *b, const Onnx__NodeProto *from) {
    const Onnx__GraphProto *graph = main_graph(b->im);
    for (size_t i = graph->n_node; i-- > 0;) {
        const Onnx__NodeProto *node = graph->node[i];
        if (node != from && !b->is_seen[i]) continue;
        for (size_t k = 0; k < node->n_input; k++) {
            uint32_t maker;
            const char *name = graph_str(b->im->g, node->input[k]);
            if (names_get(&b->makers, name, &maker))
                b->is_seen[maker - 1] = true;
            else
                behind_param(b, name);
        }
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
