/* Text tests: every *.tir beside this file carries its own driver in its first comment lines.
 *   # passes: NAMES          # options: ...     as trainc-opt reads them
 *   # expect: TEXT           the printed result holds TEXT, after the one expected before
 *   # absent: TEXT           it holds TEXT nowhere
 *   # error: CODE            the passes fail, with this diagnostic
 *   # same: ENTRY [TOL]      the entry gives the same values before and after, for random leaves;
 * TOL relative, 1e-12 */
#include "env.h"
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *read_file(Arena *a, const char *path) {
    FILE *f = fopen(path, "r");
    cr_assert(f, "cannot read %s", path);
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f);
    rewind(f);
    char *text = arena_alloc(a, n + 1);
    cr_assert(fread(text, 1, n, f) == n);
    fclose(f);
    return text;
}

/* Roots of the same name and kind must agree. Reordered sums differ by rounding, folded constants
 * by that to their type. */
static void same_values(const char *path, Arena *a, const Graph *before, const Graph *after,
                        EntryKind kind, double tolerance) {
    Env e1, e2;
    env_init(&e1, before, a);
    env_init(&e2, after, a);
    Tensor *x = env_run(&e1, before, kind), *y = env_run(&e2, after, kind);
    for (uint32_t i = 0; i < before->entries[kind].n; i++) {
        const Root *r = &before->entries[kind].roots[i],
                   *s = graph_root(after, kind, r->is_update, r->name);
        cr_assert(s, "%s: root %s is gone", path, r->name);
        Tensor *p = &x[i], *q = &y[s - after->entries[kind].roots];
        bool is_float = dtype_info[p->type.dtype].cls == CLASS_FLT;
        cr_assert(dims_equal(&p->type, &q->type));
        for (int64_t k = 0; k < type_elems(&p->type); k++) {
            bool same = is_float
                            ? fabs(p->u.f[k] - q->u.f[k]) <= tolerance * (1 + fabs(p->u.f[k])) ||
                                  (p->u.f[k] != p->u.f[k] && q->u.f[k] != q->u.f[k])
                            : p->u.i[k] == q->u.i[k];
            cr_assert(same, "%s: root %s element %lld: %.17g became %.17g", path, r->name,
                      (long long)k, is_float ? p->u.f[k] : (double)p->u.i[k],
                      is_float ? q->u.f[k] : (double)q->u.i[k]);
        }
    }
}

static EntryKind entry_of(const char *name, size_t n) {
    for (int e = 0; e < N_ENTRIES; e++)
        if (strlen(entry_name[e]) == n && !memcmp(entry_name[e], name, n)) return (EntryKind)e;
    cr_assert(0, "no entry %s", name);
    return ENTRY_EVAL;
}

static char *printed(Arena *a, const Graph *g) {
    char *text;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    graph_print(g, f);
    fclose(f);
    char *copy = arena_strdup(a, text);
    free(text);
    return copy;
}

static bool has_diag(const Graph *g, const char *code) {
    for (uint32_t i = 0; i < g->diags.n; i++)
        if (!strcmp(diag_info[g->diags.items[i].code].code, code)) return true;
    return false;
}

typedef struct Driven {
    const char *path;
    Arena *arena;
    const Graph *before, *after;
    const char *at, *text;
    bool ok;
} Driven;

static void directive(Driven *d, const char *key, const char *value) {
    if (!strcmp(key, "expect")) {
        const char *found = strstr(d->at, value);
        cr_assert(found, "%s: this is not in the result (or not here): %s\n%s", d->path, value,
                  d->text);
        d->at = found + strlen(value);
    } else if (!strcmp(key, "absent")) {
        cr_assert(!strstr(d->text, value), "%s: this is in the result: %s\n%s", d->path, value,
                  d->text);
    } else if (!strcmp(key, "error")) {
        cr_assert(!d->ok && has_diag(d->after, value), "%s: no %s", d->path, value);
    } else if (!strcmp(key, "same")) {
        size_t n = strcspn(value, " ");
        same_values(d->path, d->arena, d->before, d->after, entry_of(value, n),
                    value[n] ? strtod(value + n, NULL) : 1e-12);
    }
}

static void drive(const char *path) {
    Arena *a = arena_new();
    char *text = read_file(a, path);
    PassOptions options = default_options();
    const char *names = passes_from_header(text, a, &options);
    cr_assert(names, "%s: no passes", path);
    Graph *before = parse_or_fail(text, path), *given = parse_or_fail(text, path);
    Plan plan = {0};
    PassContext ctx = {.g = given, .plan = &plan, .arena = a, .options = &options, .log = stderr};
    bool fails = strstr(text, "# error:") != NULL;
    Driven d = {path, a, before, NULL, NULL, NULL, passes_run(&ctx, names)};
    if (!d.ok && !fails) diag_print(ctx.g, stderr);
    cr_assert(d.ok != fails, "%s: the passes %s", path, fails ? "did not fail" : "failed");
    d.after = ctx.g;
    d.at = d.text = printed(a, ctx.g);
    char *rest = NULL, *lines = arena_strdup(a, text);
    for (char *line = strtok_r(lines, "\n", &rest); line && *line == '#';
         line = strtok_r(NULL, "\n", &rest)) {
        char *key = line + 1 + strspn(line + 1, " "), *colon = strchr(key, ':');
        if (!colon) continue;
        *colon = 0;
        directive(&d, key, colon + 1 + strspn(colon + 1, " "));
    }
    if (ctx.g != given) graph_free(ctx.g);
    graph_free(given);
    graph_free(before);
    arena_free(a);
}

Test(text, tests_that_files_drive_themselves) {
    DIR *dir = opendir(TEST_DIR);
    cr_assert(dir);
    uint32_t n = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        size_t len = strlen(e->d_name);
        if (len < 5 || strcmp(e->d_name + len - 4, ".tir")) continue;
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", TEST_DIR, e->d_name);
        drive(path);
        n++;
    }
    closedir(dir);
    cr_assert(n >= 10, "only %u files", n);
}
