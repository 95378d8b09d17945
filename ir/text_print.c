/* text_print.c - a graph as text, complete and exact: graph_parse gives the same graph back. The
 * form is in text.h. */
#include "text.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const loc_kind_text[N_LOC_KINDS] = {
    [LOC_NODE] = "node",           [LOC_GRADIENT] = "gradient",
    [LOC_RECOMPUTE] = "recompute", [LOC_CAST] = "cast",
    [LOC_LOSS] = "loss",           [LOC_OPTIMIZER] = "optimizer",
    [LOC_CLIP] = "clip",           [LOC_ACCUMULATE] = "accumulate",
};
const char *const state_class_text[N_STATE_CLASSES] = {
    [STATE_PARAM] = "param",       [STATE_MASTER] = "master",   [STATE_OPTIMIZER] = "optimizer",
    [STATE_GRADIENT] = "gradient", [STATE_COUNTER] = "counter", [STATE_CARRY] = "carry",
    [STATE_PACKED] = "packed",
};

static void name_print(const char *s, FILE *f) {
    const char *p = s;
    while (*p && name_char_is_bare((unsigned char)*p)) p++;
    if (*s && !*p) {
        fputs(s, f);
        return;
    }
    fputc('"', f);
    for (p = s; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c == '"' || c == '\\')
            fprintf(f, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            fprintf(f, "\\x%02x", c);
        else
            fputc(c, f);
    }
    fputc('"', f);
}

static void float_text(char *text, size_t bytes, double x) {
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, bytes, "%.*g", digits, x);
        if (strtod(text, NULL) == x || isnan(x)) return;
    }
}

static void type_print(const Type *t, FILE *f) {
    fprintf(f, "%s[", dtype_info[t->dtype].name);
    for (uint32_t i = 0; i < t->rank; i++) fprintf(f, "%s%" PRId64, i ? "," : "", t->dims[i]);
    fputc(']', f);
}

/* ---------------------------------------------------------------- elements */

/* The shortest number that stores to the very same bytes; false where none does (a NaN with
 * payload). */
static bool element_text(DType d, const unsigned char *at, char *text, size_t text_bytes) {
    unsigned char again[8];
    uint32_t bytes = dtype_info[d].bytes;
    if (dtype_info[d].cls != CLASS_FLT) {
        int64_t i = elem_load_int(d, at);
        snprintf(text, text_bytes, d == DT_U64 ? "%" PRIu64 : "%" PRId64, i);
        elem_store_int(d, again, i);
        return memcmp(at, again, bytes) == 0;
    }
    double x = elem_load(d, at);
    for (int digits = 3; digits <= 17; digits++) {
        snprintf(text, text_bytes, "%.*g", digits, x);
        elem_store(d, again, strtod(text, NULL));
        if (memcmp(at, again, bytes) == 0) return true;
    }
    return false;
}

static bool elements_are_numbers(DType d, const unsigned char *at, uint64_t bytes) {
    char text[40];
    uint32_t elem = dtype_info[d].bytes;
    if (bytes % elem || bytes / elem > TEXT_MAX_NUMBERS) return false;
    for (uint64_t i = 0; i < bytes; i += elem)
        if (!element_text(d, at + i, text, sizeof text)) return false;
    return true;
}

static void elements_print(DType d, const void *elements, uint64_t bytes, FILE *f) {
    const unsigned char *at = elements;
    char text[40];
    if (!elements_are_numbers(d, at, bytes)) {
        fputs("hex:", f);
        for (uint64_t i = 0; i < bytes; i++) fprintf(f, "%02x", at[i]);
        return;
    }
    fputc('[', f);
    for (uint64_t i = 0; i < bytes; i += dtype_info[d].bytes) {
        element_text(d, at + i, text, sizeof text);
        fprintf(f, "%s%s", i ? ", " : "", text);
    }
    fputc(']', f);
}

/* ---------------------------------------------------------------- statements */

static void loc_print(const Graph *g, LocId id, FILE *f) {
    const Loc *l = &g->locs[id];
    fprintf(f, "loc %u %s %u", id, loc_kind_text[l->kind], l->parent);
    if (l->name[0] || l->op[0] || l->scope[0]) {
        const char *strings[] = {l->name, l->op, l->scope};
        for (int i = 0; i < 3; i++) {
            fputc(' ', f);
            name_print(strings[i], f);
        }
    }
    fputc('\n', f);
}

static void state_print(const Graph *g, const State *s, FILE *f) {
    char text[40];
    const Type *t = &g->types[s->type];
    fputs("state ", f);
    name_print(s->name, f);
    fputs(" : ", f);
    type_print(t, f);
    fprintf(f, " %s%s%s", state_class_text[s->cls], s->trains ? " trains" : "",
            s->is_buffer ? " buffer" : "");
    if (s->source.file) {
        fputs(" file=", f);
        name_print(s->source.file, f);
        fprintf(f, " offset=%" PRIu64 " bytes=%" PRIu64 "%s", s->source.offset, s->source.bytes,
                s->source.is_transposed ? " transposed" : "");
        if (s->source.blocks) fprintf(f, " blocks=%s", s->source.blocks);
    } else if (s->source.data) {
        fputs(" data=", f);
        elements_print((DType)t->dtype, s->source.data, s->source.bytes, f);
    }
    if (s->fill != 0 || signbit(s->fill)) {
        float_text(text, sizeof text, s->fill);
        fprintf(f, " fill=%s", text);
    }
    if (s->of) {
        fputs(" of=", f);
        name_print(s->of, f);
    }
    if (s->adapts) {
        float_text(text, sizeof text, s->adapter_scale);
        fputs(" adapts=", f);
        name_print(s->adapts, f);
        fprintf(f, " scale=%s axis=%" PRId64, text, s->adapter_axis);
    }
    fputc('\n', f);
}

static void input_print(const Graph *g, const Input *in, FILE *f) {
    fputs("input ", f);
    name_print(in->name, f);
    fputs(" : ", f);
    type_print(&g->types[in->type], f);
    if (in->batch_axis >= 0) fprintf(f, " batch=%d", in->batch_axis);
    if (in->index_limit) fprintf(f, " limit=%" PRId64, in->index_limit);
    if (in->loc) fprintf(f, " loc=%u", in->loc);
    fputc('\n', f);
}

static void field_print(const AttrField *a, DType d, FILE *f) {
    char text[40];
    fprintf(f, " %s=", attr_info[a->key].name);
    switch (attr_info[a->key].kind) {
    case ATTR_INT:
        fprintf(f, "%" PRId64, a->u.i);
        break;
    case ATTR_STR:
        name_print(a->u.str, f);
        break;
    case ATTR_BYTES:
        elements_print(d, a->u.bytes, a->n, f);
        break;
    case ATTR_FLOAT:
        float_text(text, sizeof text, a->u.f);
        fputs(text, f);
        break;
    case ATTR_INTS:
        fputc('[', f);
        for (uint32_t i = 0; i < a->n; i++) fprintf(f, "%s%" PRId64, i ? "," : "", a->u.ints[i]);
        fputc(']', f);
        break;
    }
}

static void node_print(const Graph *g, Value v, FILE *f) {
    const Node *n = &g->nodes[v];
    const Attr *a = &g->attrs[n->attr];
    fprintf(f, "%%%u = %s", v, op_info[n->op].name);
    for (uint32_t i = 0; i < n->n_operands; i++) fprintf(f, " %%%u", graph_operand(g, v, i));
    fputs(" : ", f);
    type_print(&g->types[n->type], f);
    for (uint32_t i = 0; i < a->n; i++)
        field_print(&a->fields[i], (DType)g->types[n->type].dtype, f);
    if (n->loc) fprintf(f, " loc=%u", n->loc);
    if (n->epoch) fprintf(f, " epoch=%u", n->epoch);
    fputc('\n', f);
}

static void statements_print(const Graph *g, FILE *f);

static void body_print(const Body *b, FILE *f) {
    char *text = NULL;
    size_t size;
    FILE *lines = open_memstream(&text, &size);
    statements_print(b->g, lines);
    fclose(lines);
    fputs("body ", f);
    name_print(b->name, f);
    for (char *line = text, *end; *line; line = end + 1) {
        end = line + strcspn(line, "\n");
        fprintf(f, "\n  %.*s", (int)(end - line), line);
    }
    fputs("\nend\n", f);
    free(text);
}

static void statements_print(const Graph *g, FILE *f) {
    for (LocId l = 1; l < g->n_locs; l++) loc_print(g, l, f);
    for (uint32_t i = 0; i < g->n_states; i++) state_print(g, &g->states[i], f);
    for (uint32_t i = 0; i < g->n_inputs; i++) input_print(g, &g->inputs[i], f);
    for (uint32_t i = 0; i < g->n_bodies; i++) body_print(&g->bodies[i], f);
    for (Value v = 1; v < g->n_nodes; v++) node_print(g, v, f);
    for (int e = 0; e < N_ENTRIES; e++) {
        const Entry *entry = &g->entries[e];
        if (entry->n) fprintf(f, "entry %s\n", entry_name[e]);
        for (uint32_t i = 0; i < entry->n; i++) {
            fputs(entry->roots[i].is_update ? "update @" : "output ", f);
            name_print(entry->roots[i].name, f);
            fprintf(f, " = %%%u\n", entry->roots[i].value);
        }
    }
}

void graph_print(const Graph *g, FILE *f) {
    fputs("graph ", f);
    name_print(g->name, f);
    fputc('\n', f);
    statements_print(g, f);
}
