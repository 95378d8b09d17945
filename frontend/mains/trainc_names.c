/* trainc_names.c - `--tie auto|none|A=B` and `--rename FILE.json`: what parameters are called.
 *
 * FILE.json is an object: "name" -> "new name", or "name" -> {"name": "new name", "transpose":
 * true} for a matrix that the exporter has transposed without a trace. Names are the graph's or
 * those of `trainc plan -v`. */
#include "file.h"
#include "json.h"
#include "options.h"
#include <string.h>

enum { NAME_BYTES = 512 };

bool tie_parse(Options *o, const char *arg) {
    char *a = arena_strdup(o->arena, arg), *eq = strchr(a, '=');
    if (!strcmp(arg, "auto") || !strcmp(arg, "none")) {
        o->tie_none = *arg == 'n';
        return true;
    }
    if (!eq || eq == a || !eq[1]) {
        fprintf(stderr, "trainc: --tie %s: auto, none or A=B is wanted\n", arg);
        return false;
    }
    *eq = 0;
    o->ties = arena_grow(o->arena, o->ties, o->n_ties * sizeof *o->ties,
                         (o->n_ties + 1) * sizeof *o->ties);
    o->ties[o->n_ties++] = (TieRule){a, eq + 1};
    return true;
}

static void read_form(Json *j, char *to, bool *is_transposed) {
    char key[32];
    if (json_peek(j) != '{') {
        json_string(j, to, NAME_BYTES);
        return;
    }
    for (json_enter(j, '{'); json_next(j, '}');) {
        json_key(j, key, sizeof key);
        if (!strcmp(key, "name"))
            json_string(j, to, NAME_BYTES);
        else if (!strcmp(key, "transpose"))
            json_bool(j, is_transposed);
        else
            j->bad = true;
    }
}

bool rename_parse(Options *o, const char *path) {
    FileMap map;
    Fail fail = {0};
    char from[NAME_BYTES], to[NAME_BYTES];
    if (file_map(&map, path, TRAINC_BAD_DATA, &fail) != TRAINC_OK) {
        fprintf(stderr, "trainc: --rename %s: %s\n", path, fail.text);
        return false;
    }
    Json j = json_open((const char *)map.bytes, map.n);
    for (json_enter(&j, '{'); json_next(&j, '}');) {
        bool is_transposed = false;
        *to = 0;
        json_key(&j, from, sizeof from);
        read_form(&j, to, &is_transposed);
        j.bad |= !*to || !*from;
        o->renames = arena_grow(o->arena, o->renames, o->n_renames * sizeof *o->renames,
                                (o->n_renames + 1) * sizeof *o->renames);
        o->renames[o->n_renames++] =
            (RenameRule){arena_strdup(o->arena, from), arena_strdup(o->arena, to), is_transposed};
    }
    bool is_good = json_finish(&j);
    file_unmap(&map);
    if (!is_good)
        fprintf(stderr, "trainc: --rename %s: an object of \"name\": \"new name\" is wanted\n",
                path);
    return is_good;
}
