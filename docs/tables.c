/* tables.c - prints the documentation tables that are generated from the .def files: `docs-tables
 * ops|attributes|passes|operators|options|diagnostics|scalars`.
 *
 * docs/tables.sh writes them into docs/; a test fails when they drift. */
#include "ops_list.h"
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* '|' ends a cell of a markdown table. */
static void cell(const char *s) {
    for (; *s; s++) *s == '|' ? (void)fputs("\\|", stdout) : (void)putchar(*s);
}

static void code_cell(const char *s) {
    fputs(*s ? "| `" : "| ", stdout);
    cell(s);
    fputs(*s ? "` " : " ", stdout);
}

static void ops(void) {
    puts("# Core ops\n\nGenerated from `ir/op.def`; `attributes.md` lists the fields.\n\n## "
         "Maps\n\n| op | operands | class | cast | cost | body | gradient |\n| --- | --- | --- | "
         "--- | --- | --- | --- |");
#define MAP(name, arity, cls, cast, cost, body, grad)                                              \
    printf("| `%s` | %d | %s | %s | %d ", #name, arity, #cls, #cast, cost), code_cell(#body),      \
        code_cell(grad), puts("|");
#include "op.def"
    puts("\n## Structured ops\n\n| op | operands | cast | lowering | shape rule | gradient | "
         "attributes |\n| --- | --- | --- | --- | --- | --- | --- |");
#define OP(name, arity, cast, cost, lower, shape, vjp, ...)                                        \
    printf("| `%s` | %d | %s | %s | %s | %s | %s |\n", #name, arity, #cast, #lower, #shape, #vjp,  \
           strcmp(#__VA_ARGS__, "A_NONE") ? #__VA_ARGS__ : "");
#include "op.def"
    puts("\n## Macro ops\n\n| op | operands | cast | expansion | gradient |\n| --- | --- | --- | "
         "--- | --- |");
#define MACRO(name, arity, cast, cost, shape, expansion, grad, ...)                                \
    printf("| `%s` | %d | %s ", #name, arity, #cast), code_cell(expansion), code_cell(grad),       \
        puts("|");
#include "op.def"
}

static void attributes(void) {
    puts("# Attribute fields\n\nGenerated from `ir/attr.def`.\n\n| field | kind |\n| --- | --- |");
#define ATTR(id, text, kind) printf("| `%s` | %s |\n", #text, #kind);
#include "attr.def"
#undef ATTR
    puts("\n# Storage types\n\nGenerated from `ir/dtype.def`.\n\n| type | bytes | class | "
         "safetensors |\n| --- | --- | --- | --- |");
#define DTYPE(id, text, bytes, cls, onnx, st, ...)                                                 \
    printf("| `%s` | %d | %s | %s |\n", #text, bytes, #cls, st);
#include "dtype.def"
#undef DTYPE
}

/* "PROP(A) | PROP(B)" -> "A B"; "0" -> "" */
static void properties(const char *s) {
    for (const char *p = s; (p = strstr(p, "PROP(")); p++)
        printf("%s%.*s", p == s ? "" : " ", (int)strcspn(p + 5, ")"), p + 5);
}

static void passes(void) {
    puts("# Passes, in order\n\nGenerated from `passes/pass.def`. `trainc-opt --passes=LIST "
         "FILE.tir` runs any of them on a graph in text form.\n\n| pass | needs | gives | what it "
         "does |\n| --- | --- | --- | --- |");
#define PASS(name, needs, gives, breaks, what)                                                     \
    printf("| `%s` | ", #name), properties(#needs), printf(" | "), properties(#gives),             \
        printf(" | %s |\n", what);
#include "pass.def"
#undef PASS
    puts("\n## Properties\n\nWhat a pass gives is proved by a checker after it has run.\n\n| "
         "property | meaning |\n| --- | --- |");
#define PROPERTY(id, meaning) printf("| %s | %s |\n", #id, meaning);
#include "property.def"
#undef PROPERTY
    puts("\n# Losses\n\nGenerated from `passes/loss.def`.\n\n| loss | takes | labels |\n| --- | "
         "--- | --- |");
#define LOSS(id, text, takes, labels, ...) printf("| `%s` | %s | %s |\n", text, #takes, #labels);
#include "loss.def"
#undef LOSS
}

static void versions(const OpSummary *o) {
    for (uint32_t i = 0; i < o->n_rows; i++) {
        printf("%s%" PRId64, i ? ", " : "", o->rows[i].since);
        if (o->rows[i].until == INT64_MAX)
            printf("-");
        else if (o->rows[i].until != o->rows[i].since)
            printf("-%" PRId64, o->rows[i].until);
    }
}

static void operator_row(const OpSummary *o) {
    printf("| %s | ", o->name), versions(o);
    printf(" | %s | ",
           o->rows[0].needs_known_shape ? "where the shape of the result is known" : "yes");
    if (o->cases) printf("%d of %d", o->agree, o->cases);
    printf(" | "), cell(o->gradients), printf(" | all | "), cell(o->remark), puts(" |");
}

static void operators(void) {
    size_t n;
    const OpSummary *o = ops_list(&n);
    printf(
        "# Operators\n\nGenerated from `frontend/onnx.def` and `frontend/onnx_tests.def`; `trainc "
        "ops "
        "[NAME]` prints the same. %zu ops.\n\n"
        "- **opset**: the versions of the op's domain from which and to which it is read; `13-` "
        "has "
        "no end.\n"
        "- **node tests**: of ONNX's own tests of dense tensors that consist of the op alone "
        "(Debian's data of 1.12, and what is newer in onnx 1.23) how many agree, in the "
        "interpreter; "
        "generated C and HIP agree on the same ones, and the others are refused with a message.\n"
        "- **gradient to**: the inputs, under the names of ONNX's tests, whose gradient those "
        "tests "
        "confirmed by central differences in double. Where an op's row shows none, it has none, or "
        "no "
        "such test; a gradient follows from the core ops that an op becomes "
        "([tables/ops.md](tables/ops.md)).\n"
        "- **targets**: an op becomes core ops, and those run on the cpu and on every GPU.\n",
        n);
    for (size_t i = 0; i < n; i++) {
        if (!i || strcmp(o[i].domain, o[i - 1].domain))
            printf(
                "\n## %s\n\n| op | opset | forward | node tests | gradient to | targets | remarks "
                "|\n| --- | --- | --- | --- | --- | --- | --- |\n",
                *o[i].domain ? o[i].domain : "ai.onnx");
        operator_row(&o[i]);
    }
}

enum { C = 1, P = 2, E = 4 };

static void option(const char *name, const char *argument, int commands, const char *help) {
    printf("| `--%s%s", name, argument ? " " : "");
    cell(argument ? argument : "");
    printf("` | %s%s%s | ", commands & C ? "compile " : "", commands & P ? "plan " : "",
           commands & E ? "eval" : "");
    cell(help);
    puts(" |");
}

static void options(void) {
    puts("# Options of trainc, trainc plan and trainc eval\n\nGenerated from "
         "`frontend/mains/options.def`; `trainc run --help` prints those of the driver.\n\n| "
         "option | commands | meaning |\n| --- | --- | --- |");
#define OPTION(id, name, letter, argument, commands, help) option(name, argument, commands, help);
#include "options.def"
#undef OPTION
}

static void diagnostics(void) {
    puts("# Diagnostics\n\nGenerated from `ir/diag.def`.\n\n| code | severity | exit status | text "
         "| hint |\n| --- | --- | --- | --- | --- |");
#define DIAG(id, severity, status, format, hint)                                                   \
    printf("| %s | %s | %d ", #id, #severity, status), code_cell(format), printf("| "),            \
        cell(hint), puts(" |");
#include "diag.def"
#undef DIAG
}

static void scalars(void) {
    puts("# Step scalars\n\nGenerated from `runtime/scalar.def`: what a compiled step reads "
         "besides its arena.\n\n| scalar | type | meaning |\n| --- | --- | --- |");
#define SCALAR(name, dtype, meaning) printf("| `%s` | %s | %s |\n", #name, #dtype, meaning);
#include "scalar.def"
#undef SCALAR
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*print)(void);
    } tables[] = {{"ops", ops},         {"attributes", attributes},
                  {"passes", passes},   {"operators", operators},
                  {"options", options}, {"diagnostics", diagnostics},
                  {"scalars", scalars}};
    for (size_t i = 0; argc == 2 && i < sizeof tables / sizeof *tables; i++)
        if (!strcmp(argv[1], tables[i].name)) {
            tables[i].print();
            return 0;
        }
    fputs("usage: docs-tables ops|attributes|passes|operators|options|diagnostics|scalars\n",
          stderr);
    return 2;
}
