/* text_parse.c - text to graph, one statement per line (the form is in text.h).
 *
 * Recursive descent over characters; nodes go through graph_emit, so every type is inferred and a
 * written one is only compared. Types of leaves that are declared, and fields with a neutral value,
 * may be left out. The first error ends it: "file:line: what". No text, however broken, reaches an
 * assert.
 */
#include "intern.h"
#include "op_functions.h"
#include "scan.h"
#include "text.h"
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct Label {
    const char *text;
    Value value;
} Label;
typedef struct Parser {
    Graph *g;
    Arena *scratch;
    const char *at, *file;
    uint32_t line;
    FILE *errors;
    bool failed;
    LocId *locs;
    uint32_t n_locs, cap_locs; /* by written number */
    Label *labels;
    uint32_t n_labels, cap_labels;
    Table label_table;
    int entry; /* -1 before the first */
    uint32_t depth;
    bool is_at_end; /* of a body */
} Parser;

__attribute__((format(printf, 2, 3))) static bool fail(Parser *p, const char *fmt, ...) {
    if (!p->failed && p->errors) {
        va_list args;
        fprintf(p->errors, "%s:%u: ", p->file, p->line);
        va_start(args, fmt);
        vfprintf(p->errors, fmt, args);
        va_end(args);
        fputc('\n', p->errors);
    }
    p->failed = true;
    return false;
}

/* ---------------------------------------------------------------- characters and words */

static char skip_space(Parser *p) {
    while (*p->at == ' ' || *p->at == '\t' || *p->at == '\r') p->at++;
    if (*p->at == '#')
        while (*p->at && *p->at != '\n') p->at++;
    return *p->at;
}

static bool accept(Parser *p, char c) {
    if (skip_space(p) != c) return false;
    p->at++;
    return true;
}

static bool expect(Parser *p, char c) { return accept(p, c) || fail(p, "'%c' expected", c); }

static bool at_end_of_line(Parser *p) {
    char c = skip_space(p);
    return c == '\n' || c == 0;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static int hex_byte(const char *at) {
    int high = hex_digit(at[0]), low = high < 0 ? -1 : hex_digit(at[1]);
    return low < 0 ? -1 : high * 16 + low;
}

static const char *quoted(Parser *p) {
    const char *end = ++p->at;
    while (*end && *end != '\n' && *end != '"') end += *end == '\\' && end[1] ? 2 : 1;
    char *text = arena_alloc(p->scratch, (size_t)(end - p->at) + 1), *to = text;
    while (*p->at && *p->at != '\n' && *p->at != '"') {
        int c = (unsigned char)*p->at++;
        if (c == '\\' && *p->at == 'x') {
            c = hex_byte(p->at + 1);
            if (c <= 0) return fail(p, "\\x needs two digits and is not zero"), NULL;
            p->at += 3;
        } else if (c == '\\') {
            if (*p->at != '"' && *p->at != '\\') return fail(p, "unknown escape"), NULL;
            c = *p->at++;
        }
        *to++ = (char)c;
    }
    return expect(p, '"') ? text : NULL;
}

/* A name, bare or quoted; NULL after an error. */
static const char *name(Parser *p) {
    if (skip_space(p) == '"') return quoted(p);
    const char *from = p->at;
    while (name_char_is_bare((unsigned char)*p->at)) p->at++;
    if (p->at == from) return fail(p, "a name expected"), NULL;
    return arena_printf(p->scratch, "%.*s", (int)(p->at - from), from);
}

static bool integer(Parser *p, int64_t *i) {
    char c = skip_space(p), *end;
    errno = 0;
    if (!(c == '-' || (c >= '0' && c <= '9'))) return fail(p, "an integer expected");
    *i = strtoll(p->at, &end, 10);
    if (end == p->at || errno) return fail(p, "an integer expected");
    p->at = end;
    return true;
}

static bool natural(Parser *p, uint64_t *n) {
    char c = skip_space(p), *end;
    errno = 0;
    if (!(c >= '0' && c <= '9')) return fail(p, "a natural number expected");
    *n = strtoull(p->at, &end, 10);
    if (errno) return fail(p, "the number is too large");
    p->at = end;
    return true;
}

static bool real(Parser *p, double *f) {
    char c = skip_space(p), *end;
    if (c == '\n' || c == 0) return fail(p, "a number expected");
    *f = strtod(p->at, &end);
    if (end == p->at) return fail(p, "a number expected");
    p->at = end;
    return true;
}

static int index_of(const char *word, const char *const *list, int n) {
    for (int i = 0; i < n; i++)
        if (strcmp(list[i], word) == 0) return i;
    return -1;
}

/* ---------------------------------------------------------------- types, lists, elements */

static bool int_list(Parser *p, int64_t *ints, uint32_t cap, uint32_t *n) {
    *n = 0;
    if (!expect(p, '[')) return false;
    while (!accept(p, ']')) {
        if (*n && !expect(p, ',')) return false;
        if (*n == cap) return fail(p, "a list of more than %u", cap);
        if (!integer(p, &ints[(*n)++])) return false;
    }
    return true;
}

static TypeId type(Parser *p) {
    int64_t dims[MAX_RANK];
    uint32_t rank;
    const char *word = name(p);
    if (!word) return 0;
    DType d = dtype_from_name(word);
    if (!d) return fail(p, "%s is no type", word), 0;
    if (!int_list(p, dims, MAX_RANK, &rank)) return 0;
    Type t = {.dtype = (uint8_t)d, .rank = (uint8_t)rank};
    for (uint32_t i = 0; i < rank; i++) t.dims[i] = dims[i];
    if (!type_fits(&t)) return fail(p, "the type is too large"), 0;
    return graph_type(p->g, t);
}

static bool element(Parser *p, DType d, unsigned char *at) {
    double f = 0;
    int64_t i = 0;
    uint64_t u = 0;
    if (dtype_info[d].cls == CLASS_FLT) {
        if (!real(p, &f)) return false;
        elem_store(d, at, f);
        return true;
    }
    if (d == DT_U64 ? !natural(p, &u) : !integer(p, &i)) return false;
    elem_store_int(d, at, d == DT_U64 ? (int64_t)u : i);
    return true;
}

static unsigned char *hex_elements(Parser *p, uint32_t *bytes) {
    const char *end = p->at;
    while (hex_digit(*end) >= 0) end++;
    size_t n = (size_t)(end - p->at) / 2;
    unsigned char *data = arena_alloc(p->scratch, n);
    if ((end - p->at) % 2 || n > UINT32_MAX) return fail(p, "bytes are two hex digits each"), NULL;
    for (size_t i = 0; i < n; i++) data[i] = (unsigned char)hex_byte(p->at + 2 * i);
    p->at = end;
    *bytes = (uint32_t)n;
    return data;
}

static unsigned char *elements(Parser *p, DType d, uint32_t *bytes) {
    if (skip_space(p) == 'h' && strncmp(p->at, "hex:", 4) == 0) {
        p->at += 4;
        return hex_elements(p, bytes);
    }
    unsigned char *data = NULL;
    uint32_t n = 0, cap = 0, elem = dtype_info[d].bytes;
    if (!d) return fail(p, "elements need a type before them"), NULL;
    if (!expect(p, '[')) return NULL;
    while (!accept(p, ']')) {
        if (n && !expect(p, ',')) return NULL;
        data = list_reserve(p->scratch, data, n, &cap, elem);
        if (!element(p, d, data + (size_t)n++ * elem)) return NULL;
    }
    *bytes = n * elem;
    return data ? data : arena_alloc(p->scratch, 1);
}

/* ---------------------------------------------------------------- labels */

static uint64_t label_hash(const char *text) { return hash_bytes(7, text, strlen(text)); }

static Label *label_find(Parser *p, const char *text) {
    uint64_t h = label_hash(text);
    uint32_t cursor = (uint32_t)h, id;
    while ((id = table_next(&p->label_table, h, &cursor)))
        if (strcmp(p->labels[id - 1].text, text) == 0) return &p->labels[id - 1];
    return NULL;
}

static void label_add(Parser *p, const char *text, Value v) {
    LIST_RESERVE(p->scratch, p->labels, p->n_labels, p->cap_labels);
    p->labels[p->n_labels++] = (Label){text, v};
    table_add(p->scratch, &p->label_table, label_hash(text), p->n_labels);
}

static Value value(Parser *p) {
    if (!expect(p, '%')) return 0;
    const char *text = name(p);
    Label *l = text ? label_find(p, text) : NULL;
    if (text && !l) fail(p, "%%%s is not defined before this line", text);
    return l ? l->value : 0;
}

static bool loc_ref(Parser *p, LocId *loc) {
    uint64_t n;
    if (!natural(p, &n)) return false;
    if (n && n > p->n_locs) return fail(p, "location %llu is not defined", (unsigned long long)n);
    *loc = n ? p->locs[n - 1] : 0;
    return true;
}

/* ---------------------------------------------------------------- statements */

static void parse_graph(Parser *p) {
    const char *text = name(p);
    if (text) p->g->name = graph_str(p->g, text);
}

static void parse_loc(Parser *p) {
    uint64_t number;
    Loc loc = {.name = "", .op = "", .scope = ""};
    const char *kind = natural(p, &number) ? name(p) : NULL;
    if (!kind) return;
    int k = index_of(kind, loc_kind_text, N_LOC_KINDS);
    if (k < 0) {
        fail(p, "%s is no kind of location", kind);
        return;
    }
    if (number != p->n_locs + 1u) {
        fail(p, "locations are numbered from 1 on, in order");
        return;
    }
    loc.kind = (LocKind)k;
    if (!loc_ref(p, &loc.parent)) return;
    if (!at_end_of_line(p)) {
        loc.name = name(p);
        loc.op = loc.name ? name(p) : NULL;
        loc.scope = loc.op ? name(p) : NULL;
        if (!loc.scope) return;
    }
    LIST_RESERVE(p->scratch, p->locs, p->n_locs, p->cap_locs);
    p->locs[p->n_locs++] = graph_loc(p->g, loc);
}

/* A permutation of the digits from 0 on, as many as the rows are a multiple of. */
static bool blocks(Parser *p, State *s) {
    const Type *t = &p->g->types[s->type];
    const char *text = s->source.blocks = name(p);
    size_t n = text ? strlen(text) : 0;
    if (!text) return false;
    for (size_t k = 0; k < n; k++)
        if (n > 9 || !memchr(text, (int)('0' + k), n)) return fail(p, "%s is no order", text);
    if (!t->rank || t->dims[0] % (int64_t)n)
        return fail(p, "the rows are no %u blocks", (unsigned)n);
    return true;
}

static bool state_field(Parser *p, State *s, const char *key) {
    uint32_t bytes = 0;
    if (strcmp(key, "file") == 0) return (s->source.file = name(p)) != NULL;
    if (strcmp(key, "offset") == 0) return natural(p, &s->source.offset);
    if (strcmp(key, "bytes") == 0) return natural(p, &s->source.bytes);
    if (strcmp(key, "blocks") == 0) return blocks(p, s);
    if (strcmp(key, "fill") == 0) return real(p, &s->fill);
    if (strcmp(key, "of") == 0) return (s->of = name(p)) != NULL;
    if (strcmp(key, "adapts") == 0) return (s->adapts = name(p)) != NULL;
    if (strcmp(key, "scale") == 0) return real(p, &s->adapter_scale);
    if (strcmp(key, "axis") == 0) return integer(p, &s->adapter_axis);
    if (strcmp(key, "data") != 0) return fail(p, "a state has no %s", key);
    const Type *t = &p->g->types[s->type];
    const unsigned char *data = elements(p, (DType)t->dtype, &bytes);
    if (!data) return false;
    if (bytes != type_bytes(t)) return fail(p, "%u bytes do not fill the state", bytes);
    s->source.data = arena_grow(p->g->arena, (void *)data, bytes, bytes);
    s->source.bytes = bytes;
    return true;
}

static void parse_state(Parser *p) {
    State s = {.name = name(p)};
    if (!s.name || !expect(p, ':') || !(s.type = type(p))) return;
    const char *word = name(p);
    int cls = word ? index_of(word, state_class_text, N_STATE_CLASSES) : -1;
    if (cls < 0) {
        fail(p, "a class of state expected");
        return;
    }
    s.cls = (StateClass)cls;
    while (!at_end_of_line(p)) {
        if (!(word = name(p))) return;
        bool is_flag = !accept(p, '=');
        if (is_flag && strcmp(word, "trains") == 0)
            s.trains = true;
        else if (is_flag && strcmp(word, "buffer") == 0)
            s.is_buffer = true;
        else if (is_flag && strcmp(word, "transposed") == 0)
            s.source.is_transposed = true;
        else if (is_flag) {
            fail(p, "a state is not %s", word);
            return;
        } else if (!state_field(p, &s, word))
            return;
    }
    if (graph_state(p->g, s.name))
        fail(p, "state %s is declared twice", s.name);
    else
        graph_add_state(p->g, s);
}

static void parse_input(Parser *p) {
    Input in = {.name = name(p), .batch_axis = -1};
    if (!in.name || !expect(p, ':') || !(in.type = type(p))) return;
    while (!at_end_of_line(p)) {
        int64_t axis = 0;
        const char *key = name(p);
        if (!key || !expect(p, '=')) return;
        bool ok =
            strcmp(key, "batch") == 0
                ? integer(p, &axis) && (axis < p->g->types[in.type].rank || fail(p, "no such axis"))
            : strcmp(key, "limit") == 0 ? integer(p, &in.index_limit)
            : strcmp(key, "loc") == 0   ? loc_ref(p, &in.loc)
                                        : fail(p, "an input has no %s", key);
        if (!ok) return;
        if (strcmp(key, "batch") == 0) in.batch_axis = axis < 0 ? -1 : (int)axis;
    }
    if (graph_input(p->g, in.name))
        fail(p, "input %s is declared twice", in.name);
    else
        graph_add_input(p->g, in);
}

static void parse_entry(Parser *p) {
    const char *word = name(p);
    p->entry = word ? index_of(word, entry_name, N_ENTRIES) : -1;
    if (word && p->entry < 0) fail(p, "%s is no entry", word);
}

static void parse_root(Parser *p, bool is_update) {
    if (is_update && !expect(p, '@')) return;
    const char *text = name(p);
    Value v = text && expect(p, '=') ? value(p) : 0;
    if (!v) return;
    if (p->entry < 0) {
        fail(p, "a root outside an entry");
        return;
    }
    graph_add_root(p->g, (EntryKind)p->entry, is_update, text, v);
}

static void parse_update(Parser *p) { parse_root(p, true); }
static void parse_output(Parser *p) { parse_root(p, false); }

/* ---------------------------------------------------------------- nodes */

typedef struct Written {
    AttrField fields[N_ATTRS];
    uint32_t n_fields;
    LocId loc;
    uint32_t epoch;
    TypeId type;
} Written;

static bool field_value(Parser *p, AttrField *f, DType d) {
    int64_t *ints;
    switch (attr_info[f->key].kind) {
    case ATTR_INT:
        return integer(p, &f->u.i);
    case ATTR_FLOAT:
        return real(p, &f->u.f);
    case ATTR_STR:
        return (f->u.str = name(p)) != NULL;
    case ATTR_BYTES:
        return (f->u.bytes = elements(p, d, &f->n)) != NULL;
    case ATTR_INTS:
        break;
    }
    ints = arena_alloc(p->scratch, MAX_RANK * sizeof *ints);
    f->u.ints = ints;
    return int_list(p, ints, MAX_RANK, &f->n);
}

static bool node_field(Parser *p, Written *w) {
    const char *word = name(p);
    uint64_t epoch;
    if (!word || !expect(p, '=')) return false;
    if (strcmp(word, "loc") == 0) return loc_ref(p, &w->loc);
    if (strcmp(word, "epoch") == 0) {
        if (!natural(p, &epoch) || epoch > UINT32_MAX) return fail(p, "an epoch expected");
        w->epoch = (uint32_t)epoch;
        return true;
    }
    AttrField f = {.n = 1};
    for (int k = 1; k < N_ATTRS; k++)
        if (strcmp(attr_info[k].name, word) == 0) f.key = (AttrKey)k;
    if (!f.key) return fail(p, "%s is no field", word);
    for (uint32_t i = 0; i < w->n_fields; i++)
        if (w->fields[i].key == f.key) return fail(p, "field %s stands twice", word);
    if (!field_value(p, &f, (DType)(w->type ? p->g->types[w->type].dtype : 0))) return false;
    w->fields[w->n_fields++] = f;
    return true;
}

static Value *node_operands(Parser *p, uint32_t *n) {
    Value *operands = NULL;
    uint32_t cap = 0;
    *n = 0;
    while (skip_space(p) == '%') {
        LIST_RESERVE(p->scratch, operands, *n, cap);
        if (!(operands[*n] = value(p))) return NULL;
        ++*n;
        accept(p, ',');
    }
    return operands;
}

/* The type of an input or state that stands declared. */
static TypeId declared_type(const Graph *g, OpCode op, const Written *w) {
    for (uint32_t i = 0; i < w->n_fields; i++) {
        if (w->fields[i].key != A_NAME) continue;
        const Input *in = op == OP_input ? graph_input(g, w->fields[i].u.str) : NULL;
        const State *s = op == OP_state ? graph_state(g, w->fields[i].u.str) : NULL;
        return in ? in->type : s ? s->type : 0;
    }
    return 0;
}

static Value node_emit(Parser *p, OpCode op, const Value *operands, uint32_t n, const Written *w) {
    Graph *g = p->g;
    uint32_t n_diags = g->diags.n;
    AttrId attr = attr_complete(g, op, operands, graph_attr(g, w->fields, w->n_fields));
    AttrKey key = attr_misfit(g, op, attr);
    if (key)
        return fail(p, "%s: field %s is missing or does not belong here", op_info[op].name,
                    attr_info[key].name),
               0;
    g->loc = w->loc;
    g->epoch = w->epoch;
    Value v = graph_emit(g, op, operands, n, attr, w->type ? w->type : declared_type(g, op, w));
    g->loc = g->epoch = 0;
    if (!v)
        return fail(p, "%s",
                    g->diags.n > n_diags ? g->diags.items[g->diags.n - 1].text
                                         : "the type cannot be inferred"),
               0;
    TypeId inferred = graph_node(g, v)->type;
    if (w->type && w->type != inferred)
        return fail(p, "type is %s, inferred is %s", type_text(g, &g->types[w->type]),
                    type_text(g, &g->types[inferred])),
               0;
    return v;
}

static void parse_node(Parser *p) {
    Written w = {.n_fields = 0};
    uint32_t n = 0;
    p->at++;
    const char *label = name(p);
    const char *word = label && expect(p, '=') ? name(p) : NULL;
    if (!word) return;
    OpCode op = op_from_name(word);
    if (!op) {
        fail(p, "%s is no op", word);
        return;
    }
    if (label_find(p, label)) {
        fail(p, "%%%s is defined twice", label);
        return;
    }
    Value *operands = node_operands(p, &n);
    if (p->failed) return;
    int arity = op_info[op].arity;
    if (arity < 0 ? n == 0 || n > UINT16_MAX : n != (uint32_t)arity) {
        fail(p, "%s has %u operands", word, n);
        return;
    }
    if (accept(p, ':') && !(w.type = type(p))) return;
    while (!at_end_of_line(p))
        if (!node_field(p, &w)) return;
    Value v = node_emit(p, op, operands, n, &w);
    if (v) label_add(p, label, v);
}

static void parse_statement(Parser *p);

static void parse_lines(Parser *p) {
    while (!p->failed && skip_space(p)) {
        if (*p->at == '\n') {
            p->at++;
            p->line++;
            continue;
        }
        parse_statement(p);
        if (!p->failed && !at_end_of_line(p)) fail(p, "more on the line than its statement");
        if (p->is_at_end) return;
    }
}

/* A body is read by a parser of its own, which stands where this one does and leaves it at `end`.
 */
static void parse_body(Parser *p) {
    const char *text = name(p);
    if (!text) return;
    Parser in = *p;
    in.g = graph_new(text);
    in.locs = NULL, in.labels = NULL;
    in.n_locs = in.cap_locs = in.n_labels = in.cap_labels = 0;
    in.label_table = (Table){0};
    in.entry = -1;
    in.depth++;
    if (in.depth > 16)
        fail(&in, "bodies are nested too deep");
    else
        parse_lines(&in);
    if (!in.failed && !in.is_at_end) fail(&in, "the body %s has no end", text);
    Body b = body_of(text, in.g);
    const char *misfit = in.failed ? NULL : body_misfit(&b);
    if (misfit) fail(&in, "body %s: %s", text, misfit);
    p->at = in.at, p->line = in.line, p->failed = in.failed;
    if (p->failed)
        graph_free(in.g);
    else
        body_hold(p->g, b);
}

static void parse_end(Parser *p) {
    if (!p->depth)
        fail(p, "end without a body");
    else
        p->is_at_end = true;
}

static void parse_statement(Parser *p) {
    static const struct {
        const char *word;
        void (*parse)(Parser *);
    } statements[] = {
        {"graph", parse_graph},   {"loc", parse_loc},     {"state", parse_state},
        {"input", parse_input},   {"entry", parse_entry}, {"update", parse_update},
        {"output", parse_output}, {"body", parse_body},   {"end", parse_end},
    };
    if (*p->at == '%') {
        parse_node(p);
        return;
    }
    const char *word = name(p);
    if (!word) return;
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (strcmp(statements[i].word, word) == 0) {
            statements[i].parse(p);
            return;
        }
    fail(p, "%s is no statement", word);
}

Graph *graph_parse(const char *text, const char *file, FILE *errors) {
    Parser p = {.g = graph_new(""),
                .scratch = arena_new(),
                .at = text,
                .file = file,
                .line = 1,
                .errors = errors,
                .entry = -1};
    parse_lines(&p);
    arena_free(p.scratch);
    if (!p.failed) return p.g;
    graph_free(p.g);
    return NULL;
}
