/* ops_list.c - gathers the rows of onnx.def and of onnx_tests.def by op. */
#include "ops_list.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_OPS = 1024 };
static OpSummary ops[MOST_OPS];
static size_t n_ops;
static const char *domain; /* of the rows being added */

static OpSummary *find(const char *of, const char *name) {
    for (size_t i = 0; i < n_ops; i++)
        if (!strcmp(ops[i].name, name) && !strcmp(ops[i].domain, of)) return &ops[i];
    return NULL;
}

static OpSummary *find_or_add(const char *name) {
    OpSummary *o = find(domain, name);
    if (o || n_ops == MOST_OPS) return o;
    ops[n_ops] = (OpSummary){.domain = domain, .name = name, .gradients = "", .remark = ""};
    return &ops[n_ops++];
}

static void add_row(const char *name, int64_t since, int64_t until, const char *how,
                    bool needs_known_shape) {
    OpSummary *o = find_or_add(name);
    if (o && o->n_rows < MOST_OP_ROWS)
        o->rows[o->n_rows++] = (OpRow){since, until, how, needs_known_shape};
}

static void add_remark(const char *name, const char *text) {
    OpSummary *o = find_or_add(name);
    if (o) o->remark = text;
}

static void add_tests(const char *of, const char *name, int cases, int agree,
                      const char *gradients) {
    OpSummary *o = find(of, name);
    if (o) o->cases = cases, o->agree = agree, o->gradients = gradients;
}

static int by_name(const void *a, const void *b) {
    const OpSummary *x = a, *y = b;
    const int order = strcmp(x->domain, y->domain);
    return order ? order : strcmp(x->name, y->name);
}

static void gather(void) {
    domain = "";
#define LATEST INT64_MAX
#define ONNX(op, since, until, rule, attributes) add_row(#op, since, until, rule, false);
#define ONNX_C(op, needs, since, until, fn) add_row(#op, since, until, #fn, false);
#define ONNX_SEQUENCE(op, needs, since, until, fn) add_row(#op, since, until, #fn, false);
#define ONNX_DATA(op, needs, since, until, fn) add_row(#op, since, until, #fn, true);
#define ONNX_DOMAIN(name) domain = name;
#define ONNX_REMARK(op, text) add_remark(#op, text);
#include "onnx.def"
#define ONNX_TESTS(of, op, cases, agree, inputs) add_tests(of, #op, cases, agree, inputs);
#include "onnx_tests.def"
    qsort(ops, n_ops, sizeof *ops, by_name);
}

const OpSummary *ops_list(size_t *n) {
    if (!n_ops) gather();
    *n = n_ops;
    return ops;
}
