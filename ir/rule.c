/* rule.c - builds nodes from S-expressions: gradients, macro expansions, ONNX lowering, optimizer
 * updates.
 *
 * A rule is parsed into terms (rule_parse.c) and built top down. A number has no type of its own:
 * it takes the dtype of the other operands of its form, or, where all of them are numbers, the one
 * its form is wanted in (`want`), or f32 at last. Operands of maps broadcast as in numpy (build_map
 * makes that explicit), so a rule never thinks about shapes. Gradients are fitted to their operand
 * at the end: cast to its dtype, summed or expanded to its dims. */
#include "rule.h"
#include <assert.h>
#include <string.h>

typedef struct Builder {
    Graph *g;
    const Rule *rule;
    Value context;
    uint32_t n;
    struct {
        const char *name;
        uint32_t len;
        Value value;
    } binds[RULE_MAX_BINDS];
} Builder;

static const struct {
    const char *name;
    Value (*fn)(Graph *, Value v, Value dy);
} rule_functions[] = {
    {"expand_xent", expand_xent},
    {"vjp_xent", vjp_xent},
    {"expand_attention", expand_attention},
    {"vjp_attention_q", vjp_attention_q},
    {"vjp_attention_k", vjp_attention_k},
    {"vjp_attention_v", vjp_attention_v},
    {"vjp_attention_bias", vjp_attention_bias},
    {"vjp_attention_drop", vjp_attention_drop},
    {"expand_rope", expand_rope},
    {"vjp_rope_x", vjp_rope_x},
    {"vjp_rope_cos", vjp_rope_cos},
    {"vjp_rope_sin", vjp_rope_sin},
};

static Value complain(Builder *b, const char *what, const Term *t) {
    if (t && t->text)
        diag_add(b->g, E_RULE, b->g->loc,
                 arena_printf(b->g->arena, "%s: %.*s", what, (int)t->len, t->text));
    else
        diag_add(b->g, E_RULE, b->g->loc, what);
    return 0;
}

static bool lookup(const Builder *b, const char *name, uint32_t len, Value *v) {
    for (uint32_t i = b->n; i-- > 0;) /* the innermost `let` first */
        if (b->binds[i].len == len && memcmp(b->binds[i].name, name, len) == 0) {
            *v = b->binds[i].value;
            return true;
        }
    return false;
}

static const Term *term_at(const Builder *b, uint32_t t) { return &b->rule->terms[t]; }

/* ---------------------------------------------------------------- dtypes of terms */

static DType term_dtype(const Builder *b, uint32_t t);

/* The dtype that the operands of a form share, from those that have one. The condition of a SEL is
 * none of them. */
static DType peer_dtype(const Builder *b, uint32_t form) {
    uint32_t child = term_at(b, form)->first;
    DType dtype = DT_NONE;
    if (term_at(b, form)->kind == TERM_OP && op_info[term_at(b, form)->op].cls == OPC_SEL && child)
        child = term_at(b, child)->next;
    for (; child && dtype == DT_NONE; child = term_at(b, child)->next) dtype = term_dtype(b, child);
    return dtype;
}

static DType term_dtype(const Builder *b, uint32_t t) {
    const Term *term = term_at(b, t);
    Value v;
    switch (term->kind) {
    case TERM_NAME:
        return lookup(b, term->text, term->len, &v) && v ? (DType)graph_type_at(b->g, v)->dtype
                                                         : DT_NONE;
    case TERM_NUMBER:
    case TERM_VALUE:
    case TERM_FIELD:
    case TERM_CALL:
        return DT_NONE;
    case TERM_LET:
        return term_dtype(b, term_at(b, term->first)->next);
    case TERM_MEAN:
    case TERM_SQUARE:
    case TERM_PRODUCT:
        return peer_dtype(b, t);
    case TERM_OP:
        break;
    }
    switch (op_info[term->op].cls) {
    case OPC_CMP:
    case OPC_BOOL:
    case OPC_TEST:
        return DT_BOOL;
    case OPC_NONE:
        if (term->op == OP_argmax || term->op == OP_argmin) return DT_I64;
        break;
    case OPC_NUM:
    case OPC_FLT:
    case OPC_INT:
    case OPC_SEL:
        break;
    }
    return peer_dtype(b, t);
}

/* ---------------------------------------------------------------- building */

static Value build_term(Builder *b, uint32_t t, DType want);

static Value build_number(Builder *b, double number, DType want) {
    return build_splat(b->g, graph_type_of(b->g, want == DT_NONE ? DT_F32 : want, 0, NULL), number);
}

/* The field that @name means: of the node bound to "@name" (by a pattern), else of the context.
 * `op`: who will carry it. */
static const AttrField *find_field(Builder *b, const Term *t, OpCode op) {
    Value node = b->context;
    AttrKey key = rule_attr_key(t->text, t->len);
    for (uint32_t i = 0; i < b->n; i++)
        if (b->binds[i].name[0] == '@' && name_is(b->binds[i].name + 1, t->text, t->len))
            node = b->binds[i].value;
    if (key == A_NONE && op != OP_NONE) key = op_info[op].attrs[0];
    const AttrField *f = node && key != A_NONE ? attr_find(b->g, node, key) : NULL;
    if (!f) complain(b, "no such attribute", t);
    return f;
}

static Value build_literal(Builder *b, const Term *t, DType want) {
    const AttrField *f = find_field(b, t, OP_NONE);
    if (!f) return 0;
    switch (attr_info[f->key].kind) {
    case ATTR_INT:
        return build_number(b, (double)f->u.i, want);
    case ATTR_FLOAT:
        return build_number(b, f->u.f, want);
    case ATTR_INTS:
    case ATTR_STR:
    case ATTR_BYTES:
        break;
    }
    return complain(b, "not a number", t);
}

/* The axes of a reduction: those of its @field, or all. */
static bool reduced_axes(Builder *b, const Term *form, Value x, int64_t axes[MAX_RANK],
                         uint32_t *n) {
    *n = graph_type_at(b->g, x)->rank;
    for (uint32_t i = 0; i < *n; i++) axes[i] = i;
    for (uint32_t c = form->first; c; c = term_at(b, c)->next) {
        if (term_at(b, c)->kind != TERM_FIELD) continue;
        const AttrField *f = find_field(b, term_at(b, c), OP_sum);
        if (!f) return false;
        *n = attr_info[f->key].kind == ATTR_INT ? 1 : f->n;
        if (attr_info[f->key].kind == ATTR_INT)
            axes[0] = f->u.i;
        else
            memcpy(axes, f->u.ints, f->n * sizeof *axes);
    }
    return true;
}

static Value build_structured(Builder *b, const Term *form, const Value *args, uint32_t n) {
    AttrField fields[8];
    uint32_t n_fields = 0;
    int64_t axes[MAX_RANK];
    uint32_t n_axes;
    if (op_info[form->op].attrs[0] == A_AXES && form->n_args == 1) {
        if (!args[0] || !reduced_axes(b, form, args[0], axes, &n_axes)) return 0;
        fields[n_fields++] = attr_ints(A_AXES, axes, n_axes);
    }
    for (uint32_t c = form->first; c; c = term_at(b, c)->next) {
        if (term_at(b, c)->kind != TERM_FIELD) continue;
        const AttrField *f = find_field(b, term_at(b, c), form->op);
        if (!f) return 0;
        if (f->key == A_AXES || (n_fields && fields[0].key == A_AXES && f->key == A_AXIS)) continue;
        if (n_fields == 8) return complain(b, "too many attributes", form);
        fields[n_fields++] = *f;
    }
    return graph_emit(b->g, form->op, args, n, graph_attr(b->g, fields, n_fields), 0);
}

static Value build_form(Builder *b, uint32_t t, DType want) {
    const Term *form = term_at(b, t);
    Value args[RULE_MAX_ARGS];
    uint32_t n = 0;
    OpClass cls = op_info[form->op].cls;
    DType peers = peer_dtype(b, t);
    if (cls == OPC_BOOL) peers = DT_BOOL;
    if (peers == DT_NONE && cls != OPC_CMP && cls != OPC_TEST) peers = want;
    for (uint32_t c = form->first; c; c = term_at(b, c)->next) {
        if (term_at(b, c)->kind == TERM_FIELD) continue;
        args[n] = build_term(b, c, cls == OPC_SEL && n == 0 ? DT_BOOL : peers);
        if (!args[n++]) return 0;
    }
    if (cls != OPC_NONE) return build_map(b->g, form->op, args, n);
    return build_structured(b, form, args, n);
}

static Value build_mean_form(Builder *b, const Term *form, DType want) {
    int64_t axes[MAX_RANK];
    uint32_t n;
    Value x = build_term(b, form->first, want);
    if (!x || !reduced_axes(b, form, x, axes, &n)) return 0;
    return build_mean(b->g, x, axes, n);
}

static Value build_let(Builder *b, const Term *form, DType want) {
    if (b->n == RULE_MAX_BINDS) return complain(b, "too many names", form);
    Value x = build_term(b, form->first, DT_NONE);
    if (!x) return 0;
    uint32_t at = b->n++;
    b->binds[at].name = form->text;
    b->binds[at].len = form->len;
    b->binds[at].value = x;
    Value v = build_term(b, term_at(b, form->first)->next, want);
    b->n = at;
    return v;
}

static Value build_call(Builder *b, const Term *form) {
    Value dy = 0;
    lookup(b, "dy", 2, &dy);
    for (size_t i = 0; i < sizeof rule_functions / sizeof *rule_functions; i++)
        if (name_is(rule_functions[i].name, form->text, form->len))
            return rule_functions[i].fn(b->g, b->context, dy);
    return complain(b, "no such function", form);
}

static Value build_term(Builder *b, uint32_t t, DType want) {
    const Term *term = term_at(b, t);
    Value v = 0;
    switch (term->kind) {
    case TERM_NAME:
        if (!lookup(b, term->text, term->len, &v)) return complain(b, "unbound name", term);
        return v;
    case TERM_NUMBER:
        return build_number(b, term->number, want);
    case TERM_VALUE:
        return build_literal(b, term, want);
    case TERM_FIELD:
        return complain(b, "an attribute stands where a value must", term);
    case TERM_OP:
        return build_form(b, t, want);
    case TERM_MEAN:
        return build_mean_form(b, term, want);
    case TERM_SQUARE:
        v = build_term(b, term->first, want);
        return build_binary(b->g, OP_mul, v, v);
    case TERM_PRODUCT:
        if (want == DT_NONE) want = peer_dtype(b, t);
        v = build_term(b, term->first, want);
        for (uint32_t f = term_at(b, term->first)->next; f; f = term_at(b, f)->next)
            v = build_binary(b->g, OP_mul, v, build_term(b, f, want));
        return v;
    case TERM_LET:
        return build_let(b, term, want);
    case TERM_CALL:
        return build_call(b, term);
    }
    return 0;
}

static Value build_span(Graph *g, const char *text, size_t len, const RuleBind *binds, uint32_t n,
                        Value context, DType want) {
    Rule rule;
    Builder b = {.g = g, .rule = &rule, .context = context, .n = n};
    assert(n < RULE_MAX_BINDS);
    for (uint32_t i = 0; i < n; i++) {
        b.binds[i].name = binds[i].name;
        b.binds[i].len = (uint32_t)strlen(binds[i].name);
        b.binds[i].value = binds[i].value;
    }
    if (!rule_parse(&rule, text, len)) {
        diag_add(g, E_RULE, g->loc,
                 arena_printf(g->arena, "%s in: %.*s", rule.error, (int)len, text));
        return 0;
    }
    return build_term(&b, rule.root, want);
}

Value rule_build(Graph *g, const char *rule, const RuleBind *binds, uint32_t n, Value context) {
    return build_span(g, rule, strlen(rule), binds, n, context, DT_NONE);
}

const char *rule_part(Arena *arena, const char *rules, uint32_t i) {
    size_t len;
    const char *p = rule_span(rules, i, &len);
    return p ? arena_printf(arena, "%.*s", (int)len, p) : NULL;
}

/* ---------------------------------------------------------------- the registry's rules */

static uint32_t bind_operands(const Graph *g, Value v, RuleBind *binds) {
    static const char *const names[MAX_MACRO_OPERANDS] = {"a", "b", "c", "d", "e", "f"};
    uint32_t n = graph_node(g, v)->n_operands;
    assert(n <= MAX_MACRO_OPERANDS);
    for (uint32_t i = 0; i < n; i++) binds[i] = (RuleBind){names[i], graph_operand(g, v, i)};
    return n;
}

/* A gradient in the type of its operand: rules may give a scalar for the whole, or keep broadcast
 * dims. */
static Value fit_gradient(Graph *g, Value d, Value operand) {
    Type t = *graph_type_at(g, operand);
    if (!d) return 0;
    d = build_cast(g, d, (DType)t.dtype);
    if (dims_equal(graph_type_at(g, d), &t)) return d;
    if (type_elems(graph_type_at(g, d)) > type_elems(&t)) return build_sum_to(g, d, &t);
    return build_expand(g, d, t.rank, t.dims);
}

static bool is_float(const Graph *g, Value v) {
    return dtype_info[graph_type_at(g, v)->dtype].cls == CLASS_FLT;
}

static void rule_vjp(Graph *g, Value v, Value dy, Value *d) {
    const OpInfo *info = &op_info[graph_op(g, v)];
    DType dtype = (DType)graph_type_at(g, v)->dtype;
    RuleBind binds[MAX_MACRO_OPERANDS + 2];
    uint32_t n = bind_operands(g, v, binds);
    binds[n] = (RuleBind){"y", v};
    binds[n + 1] = (RuleBind){"dy", dy};
    for (uint32_t i = 0; i < n; i++) {
        size_t len;
        const char *rule = rule_span(info->grad, i, &len);
        assert(rule && "a gradient rule per operand");
        if (name_is("0", rule, len) || !is_float(g, binds[i].value)) continue;
        d[i] = fit_gradient(g, build_span(g, rule, len, binds, n + 2, v, dtype), binds[i].value);
    }
}

void op_vjp(Graph *g, Value v, Value dy, Value *d) {
    const OpInfo *info = &op_info[graph_op(g, v)];
    for (uint32_t i = 0; i < graph_node(g, v)->n_operands; i++) d[i] = 0;
    if (!dy || !is_float(g, v)) return;
    if (info->grad)
        rule_vjp(g, v, dy, d);
    else if (info->vjp)
        info->vjp(g, v, dy, d);
}

Value macro_expand(Graph *g, Value v) {
    const OpInfo *info = &op_info[graph_op(g, v)];
    RuleBind binds[MAX_MACRO_OPERANDS];
    assert(info->expansion && "only macros expand");
    uint32_t n = bind_operands(g, v, binds);
    return build_span(g, info->expansion, strlen(info->expansion), binds, n, v,
                      (DType)graph_type_at(g, v)->dtype);
}
