/* report.c - onnx-report: what ONNX's node tests say about each op, as rows of
 * frontend/onnx_tests.def, which `trainc ops` and docs/operators.md show.
 *
 *   onnx-report > frontend/onnx_tests.def        writes it anew
 *   onnx-report --check                          fails where the file that it was compiled with
 *                                                claims more than is so
 *
 * Counted are the cases of dense tensors that consist of the op alone, installed and newer; an
 * input is listed where its gradient was confirmed by differences (tests/gradients). Names of
 * inputs are those of the op's first case, or their number. */
#include "../../gradients/case_gradient.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OPS = 512, MOST_INPUTS = 64 };
typedef struct OpFacts {
    const char *op, *domain;
    int cases, agree;
    const char *inputs[MOST_INPUTS]; /* of the first case that has one there */
    bool gradient[MOST_INPUTS];
} OpFacts;
typedef struct Facts {
    OpFacts ops[MOST_OPS];
    uint32_t n;
} Facts;

static OpFacts *facts_of(Facts *f, const ListedCase *l) {
    for (uint32_t i = 0; i < f->n; i++)
        if (!strcmp(f->ops[i].op, l->op) && !strcmp(f->ops[i].domain, l->domain)) return &f->ops[i];
    f->ops[f->n] = (OpFacts){.op = l->op, .domain = l->domain};
    return &f->ops[f->n++];
}

static bool agrees(const ListedCase *l) {
    Arena *arena = arena_new();
    OnnxCase c;
    const bool ok =
        onnx_case_open(&c, l, arena) == CASE_PASSED && onnx_case_interpret(&c) == CASE_PASSED;
    onnx_case_free(&c);
    arena_free(arena);
    return ok;
}

static void add_case(Facts *f, const ListedCase *l) {
    OpFacts *o = facts_of(f, l);
    GradientTally tally = {0};
    bool checked[MOST_INPUTS] = {0};
    o->cases++;
    if (!agrees(l) || l->n_op_inputs > MOST_INPUTS) return;
    o->agree++;
    gradient_check(l, &tally, checked);
    for (uint32_t k = 0; k < l->n_op_inputs; k++) {
        const bool is_named = *l->op_inputs[k] && !isdigit((unsigned char)*l->op_inputs[k]);
        if (!o->inputs[k] && is_named) o->inputs[k] = l->op_inputs[k];
        o->gradient[k] = o->gradient[k] || checked[k];
    }
}

static int by_op(const void *a, const void *b) {
    const OpFacts *x = a, *y = b;
    const int domain = strcmp(x->domain, y->domain);
    return domain ? domain : strcmp(x->op, y->op);
}

static void collect(Facts *f, Arena *arena) {
    const char *const roots[] = {onnx_cases_installed(), onnx_cases_newer()};
    for (int r = 0; r < 2; r++) {
        const CaseList list = onnx_cases(roots[r], arena);
        for (uint32_t i = 0; i < list.n; i++)
            if (list.items[i].op && !list.items[i].not_dense) add_case(f, &list.items[i]);
    }
    qsort(f->ops, f->n, sizeof *f->ops, by_op);
}

static void list_inputs(const OpFacts *o, char *text, size_t size) {
    *text = 0;
    for (uint32_t k = 0; k < MOST_INPUTS; k++)
        if (o->gradient[k])
            o->inputs[k] ? snprintf(text + strlen(text), size - strlen(text), "%s%s",
                                    *text ? " " : "", o->inputs[k])
                         : snprintf(text + strlen(text), size - strlen(text), "%sinput%u",
                                    *text ? " " : "", k);
}

static void print(const Facts *f) {
    puts("/* Written by onnx-report (tests/onnx_nodes/report): of an op's cases among ONNX's node "
         "tests how many there are and agree, and the inputs\n * whose gradient was confirmed by "
         "differences. ONNX_TESTS(domain, op, cases, agree, inputs) */");
    for (uint32_t i = 0; i < f->n; i++) {
        char inputs[512];
        list_inputs(&f->ops[i], inputs, sizeof inputs);
        if (f->ops[i].agree)
            printf("ONNX_TESTS(\"%s\", %s, %d, %d, \"%s\")\n", f->ops[i].domain, f->ops[i].op,
                   f->ops[i].cases, f->ops[i].agree, inputs);
    }
}

/* Are all words of `claimed` among those of `found`? */
static bool covers(const char *found, const char *claimed, Arena *arena) {
    char *rest = NULL, *words = arena_strdup(arena, claimed);
    for (char *w = strtok_r(words, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        if (!strstr(arena_printf(arena, " %s ", found), arena_printf(arena, " %s ", w)))
            return false;
    return true;
}

static int check(Facts *f, Arena *arena) {
    static const struct {
        const char *domain, *op;
        int cases, agree;
        const char *inputs;
    } claims[] = {
#define ONNX_TESTS(domain, op, cases, agree, inputs) {domain, #op, cases, agree, inputs},
#include "onnx_tests.def"
#undef ONNX_TESTS
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        const ListedCase l = {.op = claims[i].op, .domain = claims[i].domain};
        const OpFacts *o = facts_of(f, &l);
        char inputs[512];
        list_inputs(o, inputs, sizeof inputs);
        if (o->agree >= claims[i].agree && covers(inputs, claims[i].inputs, arena)) continue;
        fprintf(stderr, "%s: %d cases agree and gradients of %s, not %d and %s\n", claims[i].op,
                o->agree, inputs, claims[i].agree, claims[i].inputs);
        wrong++;
    }
    return wrong ? 1 : 0;
}

int main(int argc, char **argv) {
    static Facts facts;
    Arena *arena = arena_new();
    const bool is_check = argc > 1 && !strcmp(argv[1], "--check");
    collect(&facts, arena);
    const int status = !is_check ? (print(&facts), 0) : facts.n ? check(&facts, arena) : 77;
    arena_free(arena);
    return status;
}
