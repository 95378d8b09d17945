/* tables.c - prints the documentation tables that are generated from the .def files: `docs-tables
 * ops|attributes|passes|onnx|options|diagnostics|scalars`.
 *
 * docs/tables.sh writes them into docs/; a test fails when they drift. */
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

static void until(int64_t version) {
    if (version == INT64_MAX)
        printf("| ");
    else
        printf("| %" PRId64 " ", version);
}

static void onnx(void) {
    puts("# ONNX ops\n\nGenerated from `frontend/onnx.def`: what trainc reads, from which to which "
         "opset.\n\n| op | since | until | how |\n| --- | --- | --- | --- |");
#define LATEST INT64_MAX
#define ONNX(op, since, last, rule, attributes)                                                    \
    printf("| %s | %d ", #op, since), until(last), code_cell(rule), puts("|");
#define ONNX_C(op, needs, since, last, importer)                                                   \
    printf("| %s | %d ", #op, since), until(last), printf("| `%s` |\n", #importer);
#define ONNX_SEQUENCE(op, needs, since, last, importer) ONNX_C(op, needs, since, last, importer)
#define ONNX_DATA(op, needs, since, last, importer)                                                \
    printf("| %s | %d ", #op, since), until(last),                                                 \
        puts("| where the shape of its result is known, else refused |");
#include "onnx.def"
#undef ONNX
#undef ONNX_C
#undef ONNX_SEQUENCE
#undef ONNX_DATA
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
    } tables[] = {{"ops", ops},        {"attributes", attributes}, {"passes", passes},
                  {"onnx", onnx},      {"options", options},       {"diagnostics", diagnostics},
                  {"scalars", scalars}};
    for (size_t i = 0; argc == 2 && i < sizeof tables / sizeof *tables; i++)
        if (!strcmp(argv[1], tables[i].name)) {
            tables[i].print();
            return 0;
        }
    fputs("usage: docs-tables ops|attributes|passes|onnx|options|diagnostics|scalars\n", stderr);
    return 2;
}
