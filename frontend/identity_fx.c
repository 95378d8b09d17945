/* identity_fx.c - names of parameters from what dynamo writes beside the nodes.
 *
 * The graph's metadata holds the signature of the traced program, "p_0_weight: PARAMETER
 * target='0.weight'" line by line in the order of the state_dict, and each node the operation that
 * it was written for, "%linear : [..] = call_function[target=torch.ops.aten.linear.default](args =
 * (%mul_4, %p_0_weight), kwargs = {})". fx_roles.def says which argument an input of the node is;
 * without a row the operation must name the initializer's own parameter, or one alone whose layout
 * cannot have changed. Tied parameters have one argument name, that of the last; the module that
 * reads it (name_scopes) and the order of the signature give the others. */
#include "identity.h"
#include <string.h>

static const char signature_key[] = "pkg.torch.export.ExportedProgram.graph_signature";
static const char fx_key[] = "pkg.torch.onnx.fx_node";
static const char scopes_key[] = "pkg.torch.onnx.name_scopes";
enum { GRAPH_METADATA = 16, NODE_METADATA = 9, MAX_ARGS = 16 };

/* ---------------------------------------------------------------- the traced program */

static const char *interned(Identity *id, const char *text, size_t n) {
    return graph_str(id->im->g, arena_printf(id->im->arena, "%.*s", (int)n, text));
}

/* "ARG: KIND target='NAME' ..." */
static void signature_line(Identity *id, const char *line, size_t n) {
    const char *colon = memchr(line, ':', n), *end = line + n;
    if (!colon || end - colon < 3) return;
    const char *arg = interned(id, line, (size_t)(colon - line)), *kind = colon + 2;
    bool is_parameter = end - kind > 9 && !strncmp(kind, "PARAMETER", 9);
    bool is_buffer = end - kind > 6 && !strncmp(kind, "BUFFER", 6);
    const char *open = memchr(kind, '\'', (size_t)(end - kind));
    const char *close = open ? memchr(open + 1, '\'', (size_t)(end - open - 1)) : NULL;
    uint32_t known;
    if (!is_parameter && !is_buffer) names_set(id->im->arena, &id->had, arg, 1);
    if ((!is_parameter && !is_buffer) || !close) return;
    const char *name = interned(id, open + 1, (size_t)(close - open - 1));
    bool is_held = names_get(&id->im->initializers, name, &known);
    id->targets[id->n_targets++] = (Target){name, is_buffer, is_held, false};
    names_set(id->im->arena, &id->targets_by_arg, arg, id->n_targets);
    names_set(id->im->arena, &id->targets_by_name, name, id->n_targets);
}

static void signature_read(Identity *id) {
    const char *text =
        metadata_find(id->im->file->arena, &id->graph->base, GRAPH_METADATA, signature_key);
    const char *stop = text ? strstr(text, "# outputs") : NULL;
    size_t lines = 1;
    for (const char *p = text; p && *p; p++) lines += *p == '\n';
    id->targets = arena_alloc(id->im->arena, lines * sizeof *id->targets);
    for (const char *end; text && *text && text != stop; text = *end ? end + 1 : end) {
        end = text + strcspn(text, "\n");
        signature_line(id, text, (size_t)(end - text));
    }
    id->has_signature = id->n_targets > 0;
}

static size_t name_length(const char *text) {
    return strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
}

static const char *node_text(Identity *id, const Onnx__NodeProto *node, const char *key) {
    if (!node->base.n_unknown_fields) return NULL;
    return metadata_find(id->im->file->arena, &node->base, NODE_METADATA, key);
}

/* The target that the argument at `text`, behind its %, names; NULL where it is none. */
static Target *target_at(Identity *id, const char *text, size_t n, const char **name) {
    uint32_t at;
    *name = interned(id, text, n);
    return names_get(&id->targets_by_arg, *name, &at) ? &id->targets[at - 1] : NULL;
}

static void program_read(Identity *id) {
    for (size_t i = 0; i < id->graph->n_node; i++) {
        const char *text = node_text(id, id->graph->node[i], fx_key), *name;
        if (text && *text == '%')
            names_set(id->im->arena, &id->had, interned(id, text + 1, name_length(text + 1)), 1);
        for (const char *at = text ? strchr(text, '%') : NULL; at; at = strchr(at + 1, '%')) {
            Target *t = target_at(id, at + 1, name_length(at + 1), &name);
            if (t) t->is_named = true;
        }
    }
}

void fx_read(Identity *id) {
    signature_read(id);
    if (id->has_signature) program_read(id);
}

/* ---------------------------------------------------------------- one operation */

typedef struct Call {
    const char *op; /* "aten.linear.default](args.." */
    uint32_t n_args;
    const char *args[MAX_ARGS]; /* where each begins */
    Target *named[MAX_ARGS];    /* the parameter that is the whole argument */
    uint32_t n_targets;         /* anywhere in the call */
    Target *only;               /* the last of them */
    bool has_lost;              /* one of them is no initializer */
    bool is_unsure;             /* it takes what the file does not have */
} Call;

static void call_arg(Identity *id, Call *c, const char *from, const char *to) {
    const char *name;
    from += strspn(from, " ");
    if (c->n_args == MAX_ARGS) return;
    c->args[c->n_args] = from;
    size_t n = *from == '%' ? name_length(from + 1) : 0;
    if (n && from + 1 + n == to) c->named[c->n_args] = target_at(id, from + 1, n, &name);
    c->n_args++;
}

static void call_names(Identity *id, Call *c, const char *text) {
    uint32_t known;
    const char *name;
    for (const char *at = strchr(text, '%'); at; at = strchr(at + 1, '%')) {
        Target *t = target_at(id, at + 1, name_length(at + 1), &name);
        c->n_targets += t && t != c->only;
        if (t) c->only = t;
        c->has_lost |= t && !t->is_held;
        c->is_unsure |= !t && !names_get(&id->had, name, &known) && !is_made_from_nothing(name);
    }
}

static bool call_parse(Identity *id, const char *text, Call *c) {
    static const char ops[] = "target=torch.ops.", open[] = "](args = (";
    *c = (Call){0};
    const char *op = text ? strstr(text, ops) : NULL;
    const char *args = op ? strstr(op, open) : NULL;
    if (!args) return false;
    c->op = op + sizeof ops - 1;
    const char *from = args + sizeof open - 1, *p = from;
    for (int depth = 0; *p && (depth || *p != ')'); p++) {
        depth += *p == '(' || *p == '[' || *p == '{';
        depth -= *p == ')' || *p == ']' || *p == '}';
        if (*p != ',' || depth) continue;
        call_arg(id, c, from, p);
        from = p + 1;
    }
    if (p > from) call_arg(id, c, from, p);
    call_names(id, c, args);
    return true;
}

/* ---------------------------------------------------------------- claims */

typedef enum RoleLayout { KEPT, TRANSPOSED, GEMM, GEMM_T, RESHAPED } RoleLayout;
typedef struct Role {
    const char *aten, *onnx;
    int input, argument;
    RoleLayout layout;
} Role;
static const Role roles[] = {
#define FX_ROLE(aten, onnx, input, argument, layout) {aten, onnx, input, argument, layout},
#include "fx_roles.def"
#undef FX_ROLE
};

static const Role *role_find(const Call *c, const Reader *r) {
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strncmp(c->op, roles[i].aten, strlen(roles[i].aten)) &&
            !strcmp(r->node->op_type, roles[i].onnx) &&
            (roles[i].input < 0 || roles[i].input == (int)r->input))
            return &roles[i];
    return NULL;
}

/* A vector in a form that broadcasts along one axis: [C,1,1] or [1,C,1,1] for [C]. */
static bool is_column(const Type *t) {
    int n_long = 0;
    for (int d = 0; d < t->rank; d++) n_long += t->dims[d] != 1;
    return t->rank > 1 && n_long <= 1;
}

/* false where the initializer's type is not possible for that role */
static bool role_layout(const Role *role, const Reader *r, const Type *t, Layout *layout) {
    const Onnx__AttributeProto *flip = find_attribute(NULL, r->node, "transB");
    bool is_flipped = flip && flip->i;
    *layout = LAYOUT_KEPT;
    switch (role->layout) {
    case KEPT:
        return true;
    case TRANSPOSED:
        *layout = LAYOUT_TRANSPOSED;
        return t->rank == 2;
    case GEMM:
        *layout = is_flipped ? LAYOUT_KEPT : LAYOUT_TRANSPOSED;
        return t->rank == 2;
    case GEMM_T:
        *layout = is_flipped ? LAYOUT_TRANSPOSED : LAYOUT_KEPT;
        return t->rank == 2;
    case RESHAPED:
        *layout = is_column(t) ? LAYOUT_RESHAPED : LAYOUT_KEPT;
        return t->rank == 1 || is_column(t);
    }
    return false;
}

static Claim claim_of(const Target *t, Layout layout) {
    return (Claim){
        .kind = t->is_buffer ? CLAIM_BUFFER : CLAIM_PARAM, .name = t->name, .layout = layout};
}

static Claim claim_by_role(const Role *role, const Call *c, const Reader *r, const Type *t) {
    Layout layout;
    if (role->argument < 0) return (Claim){.kind = CLAIM_CONSTANT};
    const Target *target = (uint32_t)role->argument < c->n_args ? c->named[role->argument] : NULL;
    if (!target || !role_layout(role, r, t, &layout)) return (Claim){0};
    return claim_of(target, layout);
}

/* Without a role: its own parameter among the arguments, or with the same last word where several
 * are; else one alone, if the initializer is held under another's name for being equal to it, or is
 * a vector, which no folding can have turned. */
static Claim claim_by_name(const Call *c, const char *own, bool is_marked, const Type *t) {
    const Target *alike = NULL;
    uint32_t n_alike = 0;
    for (uint32_t i = 0; i < c->n_args; i++) {
        const Target *target = c->named[i];
        if (!target) continue;
        if (!strcmp(target->name, own)) return claim_of(target, LAYOUT_KEPT);
        bool is_alike = !strcmp(name_suffix(target->name), name_suffix(own));
        n_alike += is_alike;
        if (is_alike) alike = target;
    }
    if (is_marked && n_alike == 1) return claim_of(alike, LAYOUT_KEPT);
    if (c->n_targets == 1 && c->only &&
        (is_marked || (t->rank == 1 && t->dims[0] > 1 && !c->only->is_held)))
        return claim_of(c->only, LAYOUT_KEPT);
    return (Claim){0};
}

static bool is_held(Identity *id, const char *name) {
    uint32_t known;
    return names_get(&id->targets_by_name, graph_str(id->im->g, name), &known);
}

Claim fx_claim(Identity *id, const Reader *r) {
    Call c;
    const Type *t = &id->im->sources[r->initializer].type;
    const char *own = id->graph->initializer[r->initializer]->name;
    if (!call_parse(id, node_text(id, r->node, fx_key), &c)) return (Claim){0};
    const Role *role = role_find(&c, r);
    if (role) {
        Claim claim = claim_by_role(role, &c, r, t);
        if (claim.kind != CLAIM_NONE) return claim;
    }
    bool is_marked = id->kinds[r->initializer] != MARK_NONE;
    if (!c.n_targets || (!is_marked && !c.has_lost && !is_held(id, own)))
        return (Claim){.kind = CLAIM_CONSTANT, .is_unsure = c.is_unsure};
    return claim_by_name(&c, own, is_marked, t);
}

const char *fx_lost(Identity *id, Onnx__NodeProto *node, uint32_t input) {
    Call c;
    const Reader r = {.node = node, .input = input};
    if (!call_parse(id, node_text(id, node, fx_key), &c)) return NULL;
    const Role *role = role_find(&c, &r);
    const Target *t = role && role->argument >= 0 && (uint32_t)role->argument < c.n_args
                          ? c.named[role->argument]
                          : NULL;
    return t && !t->is_buffer && !t->is_held ? t->name : NULL;
}

/* ---------------------------------------------------------------- recurrent layers */

const char *fx_text(Identity *id, const Onnx__NodeProto *node) {
    return node_text(id, node, fx_key);
}

/* "[%a, %b]": the names that are targets, from the first on; all must be. */
static uint32_t list_targets(Identity *id, const char *text, uint32_t at, Target **found) {
    const char *name;
    uint32_t n = 0;
    for (; *text && *text != ']'; text++) {
        if (*text != '%') continue;
        Target *t = target_at(id, text + 1, name_length(text + 1), &name);
        if (!t || t->is_buffer) return 0;
        if (n++ == at) *found = t;
    }
    return n;
}

/* aten.lstm(x, [h, c], [w_ih, w_hh, b_ih, b_hh, ..], has_biases, layers, ..), gru, rnn_tanh */
const char *fx_listed(Identity *id, const Onnx__NodeProto *node, uint32_t at, uint32_t *each) {
    static const char *const ops[] = {"aten.lstm.", "aten.gru.", "aten.rnn_tanh.",
                                      "aten.rnn_relu."};
    enum { LIST = 2, HAS_BIASES = 3 };
    Call c;
    Target *t = NULL;
    bool is_layer = false;
    if (!call_parse(id, node_text(id, node, fx_key), &c) || c.n_args <= HAS_BIASES) return NULL;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        is_layer |= !strncmp(c.op, ops[i], strlen(ops[i]));
    if (!is_layer || *c.args[LIST] != '[' || !list_targets(id, c.args[LIST], at, &t)) return NULL;
    *each = strncmp(c.args[HAS_BIASES], "False", 5) ? 4 : 2;
    return t ? t->name : NULL;
}

/* ---------------------------------------------------------------- aliases */

/* "['', 'layer3', 'layer3.0', 'relu_24']": the last but one */
static const char *scope_module(Identity *id, const Onnx__NodeProto *node) {
    const char *text = node_text(id, node, scopes_key);
    const char *end = text ? strrchr(text, ',') : NULL;
    if (!end) return NULL;
    const char *close = end;
    while (close > text && *close != '\'') close--;
    const char *open = close;
    while (open > text && open[-1] != '\'') open--;
    return interned(id, open, close > open ? (size_t)(close - open) : 0);
}

static Target *lost_target(Identity *id, const char *name) {
    uint32_t at;
    if (!names_get(&id->targets_by_name, graph_str(id->im->g, name), &at)) return NULL;
    Target *t = &id->targets[at - 1];
    return t->is_held || t->is_named ? NULL : t;
}

static void alias_take(Identity *id, Target *t, const char *of) {
    t->is_named = true;
    identity_alias(id, t->name, of);
}

/* The module that reads a parameter has one of that name too, which nothing else is. */
static void alias_of_reader(Identity *id, const Reader *r) {
    if (r->claim.kind != CLAIM_PARAM && r->claim.kind != CLAIM_BUFFER) return;
    const char *module = scope_module(id, r->node);
    if (!module || !*module) return;
    Target *t =
        lost_target(id, arena_printf(id->im->arena, "%s.%s", module, name_suffix(r->claim.name)));
    if (t) alias_take(id, t, r->claim.name);
}

/* What only the architecture tells: cls.predictions.bias is cls.predictions.decoder.bias, and
 * shared.weight is a table that has other names already. */
static void alias_of_architecture(Identity *id) {
    for (uint32_t i = 0; i < id->n_targets; i++) {
        const char *name = id->targets[i].name, *module = name_module(id, name);
        if (!id->targets[i].is_held || !path_is_head(name) || !*module) continue;
        const char *outer = name_module(id, module);
        Target *t = lost_target(
            id, arena_printf(id->im->arena, "%s%s%s", outer, *outer ? "." : "", name_suffix(name)));
        if (t) alias_take(id, t, name);
    }
    for (uint32_t i = 0; i < id->n_targets; i++) {
        const char *name = id->targets[i].name, *module = name_module(id, name);
        const char *of = id->im->n_aliases ? id->im->aliases[0].of : NULL;
        bool is_one = of != NULL;
        for (uint32_t k = 0; k < id->im->n_aliases; k++) is_one &= id->im->aliases[k].of == of;
        if (is_one && !strcmp(name_suffix(module), "shared") && lost_target(id, name) &&
            !strcmp(name_suffix(name), name_suffix(of)))
            alias_take(id, &id->targets[i], of);
    }
}

void fx_aliases(Identity *id) {
    uint32_t n_unnamed = 0;
    for (uint32_t i = 0; i < id->n_readers; i++) alias_of_reader(id, &id->readers[i]);
    alias_of_architecture(id);
    for (uint32_t i = 0; i < id->n_targets; i++)
        n_unnamed +=
            !id->targets[i].is_buffer && !id->targets[i].is_held && !id->targets[i].is_named;
    for (uint32_t i = 0; i < id->n_readers; i++) {
        Claim *c = &id->readers[i].claim;
        if (c->kind == CLAIM_CONSTANT && c->is_unsure && n_unnamed) c->kind = CLAIM_NONE;
    }
}
