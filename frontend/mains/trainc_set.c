/* trainc_set.c - `--set INPUT=VALUE`: a number, a list ("1,2,3", brackets allowed) or a data file.
 */
#include "feed.h"
#include "options.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* "16000", "1,2,3", "[1 2 3]": the numbers, or 0 where the text is something else. */
static uint32_t read_numbers(Arena *a, const char *text, double **numbers) {
    uint32_t n = 0, cap = 0;
    for (const char *s = text; *s;) {
        if (isspace((unsigned char)*s) || strchr("[],", *s)) {
            s++;
            continue;
        }
        char *end;
        double x = strtod(s, &end);
        if (end == s || (*end && !isspace((unsigned char)*end) && !strchr("[],", *end))) return 0;
        if (n == cap) {
            *numbers =
                arena_grow(a, *numbers, cap * sizeof **numbers, (2 * cap + 8) * sizeof **numbers);
            cap = 2 * cap + 8;
        }
        (*numbers)[n++] = x;
        s = end;
    }
    return n;
}

/* The file's tensor, copied: the feed is closed at once. */
static bool read_file(Arena *a, InputValue *v, const char *path) {
    Feed feed = {0};
    Fail fail = {0};
    trainc_symbol any = {.name = v->name, .cls = TRAINC_SYM_INPUT, .dtype = TRAINC_F32};
    bool ok = feed_open(&feed, &any, path, &fail) == TRAINC_OK;
    if (ok) {
        v->type = (Type){.dtype = (uint8_t)feed.tensor.dtype, .rank = (uint8_t)feed.tensor.rank};
        for (int i = 0; i < feed.tensor.rank; i++) v->type.dims[i] = feed.tensor.dims[i];
        void *bytes = arena_alloc(a, type_bytes(&v->type) + 1);
        memcpy(bytes, feed.tensor.data, type_bytes(&v->type));
        v->data = bytes;
    } else
        fprintf(stderr, "trainc: --set %s: neither a number, a list, nor a data file: %s\n",
                v->name, fail.text);
    feed_close(&feed);
    return ok;
}

bool set_parse(Options *o, const char *arg) {
    char *name = arena_strdup(o->arena, arg), *eq = strchr(name, '=');
    if (!eq || eq == name || !eq[1]) {
        fprintf(stderr, "trainc: --set %s: INPUT=VALUE is wanted\n", arg);
        return false;
    }
    *eq = 0;
    InputValue v = {.name = name};
    double *numbers = NULL;
    v.n_numbers = read_numbers(o->arena, eq + 1, &numbers);
    v.numbers = numbers;
    if (!v.n_numbers && !read_file(o->arena, &v, eq + 1)) return false;
    o->sets = arena_grow(o->arena, o->sets, o->n_sets * sizeof *o->sets,
                         (o->n_sets + 1) * sizeof *o->sets);
    o->sets[o->n_sets++] = v;
    return true;
}
