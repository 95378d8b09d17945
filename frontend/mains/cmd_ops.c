/* cmd_ops.c - `trainc ops [NAME]`: what it reads of ONNX, as a table, or all about one op. */
#include "ops_list.h"
#include "options.h"
#include "run_options.h"
#include <inttypes.h>
#include <string.h>
#include <strings.h>

static const char *version_range(const OpRow *first, const OpRow *last, char *text, size_t size) {
    if (last->until == INT64_MAX)
        snprintf(text, size, "%" PRId64 "-", first->since);
    else
        snprintf(text, size, "%" PRId64 "-%" PRId64, first->since, last->until);
    return text;
}

static const OpRow *earliest(const OpSummary *o) {
    const OpRow *r = &o->rows[0];
    for (uint32_t i = 1; i < o->n_rows; i++)
        if (o->rows[i].since < r->since) r = &o->rows[i];
    return r;
}

static const OpRow *newest(const OpSummary *o) {
    const OpRow *r = &o->rows[0];
    for (uint32_t i = 1; i < o->n_rows; i++)
        if (o->rows[i].until > r->until) r = &o->rows[i];
    return r;
}

static void print_line(const OpSummary *o) {
    char versions[48], tests[32] = "";
    if (o->cases) snprintf(tests, sizeof tests, "%d of %d", o->agree, o->cases);
    printf("%-28s %-7s %-11s %s\n", o->name,
           version_range(earliest(o), newest(o), versions, sizeof versions), tests, o->gradients);
}

static void print_all(const OpSummary *ops, size_t n) {
    printf("%zu ops; every one runs on every target. NAME shows all about one.\n\n%-28s %-7s "
           "%-11s %s\n",
           n, "op", "opset", "node tests", "gradient confirmed to");
    for (size_t i = 0; i < n; i++) {
        if (i && strcmp(ops[i].domain, ops[i - 1].domain)) printf("\n%s\n", ops[i].domain);
        print_line(&ops[i]);
    }
}

static void print_one(const OpSummary *o) {
    printf("%s%s%s\n", o->name, *o->domain ? " of " : "", o->domain);
    for (uint32_t i = 0; i < o->n_rows; i++) {
        const OpRow *r = &o->rows[i];
        char versions[48];
        printf("  opset %-7s %s%s\n", version_range(r, r, versions, sizeof versions), r->how,
               r->needs_known_shape ? " (where the shape of its result is known)" : "");
    }
    if (o->cases) printf("  ONNX's node tests: %d of %d agree\n", o->agree, o->cases);
    if (*o->gradients)
        printf("  gradient confirmed by differences to: %s\n", o->gradients);
    else if (o->cases)
        puts("  no float input has a gradient in ONNX's node tests");
    if (*o->remark) printf("  %s\n", o->remark);
}

static int fail_unknown(const char *name, const OpSummary *ops, size_t n) {
    const char *names[1024];
    for (size_t i = 0; i < n; i++) names[i] = ops[i].name;
    const char *near = run_closest_name(name, names, n);
    fprintf(stderr, "trainc: no op %s is supported", name);
    if (near) fprintf(stderr, " (did you mean %s?)", near);
    fputc('\n', stderr);
    return 2;
}

int command_ops(int n_names, char **names) {
    size_t n;
    const OpSummary *ops = ops_list(&n);
    int status = 0;
    if (!n_names) print_all(ops, n);
    for (int k = 0; k < n_names; k++) {
        bool is_found = false;
        for (size_t i = 0; i < n; i++)
            if (!strcasecmp(ops[i].name, names[k])) print_one(&ops[i]), is_found = true;
        if (!is_found) status = fail_unknown(names[k], ops, n);
    }
    return status;
}
