/* options.c - argv to Options, through getopt_long over the rows of options.def.
 *
 * All errors are reported, not the first alone; an unknown option gets the closest name. Repeatable
 * options keep their order
 * (--freeze and --train: later wins). */
#include "options.h"
#include "codegen.h"
#include "run_options.h"
#include <ctype.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

enum { C = COMMAND_COMPILE, P = COMMAND_PLAN, E = COMMAND_EVAL };
typedef enum OptionId {
#define OPTION(id, ...) OPT_##id,
#include "options.def"
#undef OPTION
    N_OPTIONS
} OptionId;
typedef struct OptionInfo {
    const char *name;
    int letter;
    const char *argument;
    int commands;
    const char *help;
} OptionInfo;
static const OptionInfo option_info[N_OPTIONS] = {
#define OPTION(id, ...) [OPT_##id] = {__VA_ARGS__},
#include "options.def"
#undef OPTION
};
enum { LONG_BASE = 1000 };

static const char *command_text(Command c) {
    switch (c) {
    case COMMAND_COMPILE:
        return "trainc MODEL.onnx";
    case COMMAND_PLAN:
        return "trainc plan MODEL.onnx";
    case COMMAND_EVAL:
        return "trainc eval MODEL.onnx";
    }
    return "trainc";
}

void options_help(Command c, FILE *f) {
    static const char *const what[] = {
        [COMMAND_COMPILE] = "compile a forward graph into a training-step library",
        [COMMAND_PLAN] = "the same decisions, printed; nothing is generated",
        [COMMAND_EVAL] =
            "the forward graph alone, once: outputs as .npy (-o DIR), or compared (--expect)"};
    fprintf(f, "usage: %s [options]\n%s\n\n", command_text(c), what[c]);
    for (int i = 0; i < N_OPTIONS; i++) {
        const OptionInfo *o = &option_info[i];
        if (!(o->commands & (int)c)) continue;
        char left[64];
        if (o->letter)
            snprintf(left, sizeof left, "-%c, --%s %s", o->letter, o->name,
                     o->argument ? o->argument : "");
        else
            snprintf(left, sizeof left, "--%s %s", o->name, o->argument ? o->argument : "");
        fprintf(f, "  %-30s %s\n", left, o->help);
    }
}

uint64_t parse_size(const char *s) {
    char *end;
    double x = strtod(s, &end);
    if (end == s || !(x > 0)) return 0;
    static const char letters[] = "KMGT";
    double unit = 1;
    const char *at = *end ? strchr(letters, toupper((unsigned char)*end)) : NULL;
    if (at) {
        bool decimal = end[1] == 'B' || end[1] == 'b';
        for (long i = 0; i <= at - letters; i++) unit *= decimal ? 1000.0 : 1024.0;
        end += decimal ? 2 : 1;
    }
    x *= unit;
    return *end || !(x >= 1 && x < 9e18) ? 0 : (uint64_t)x;
}

const char *format_bytes(Arena *a, uint64_t n) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)n;
    int i = 0;
    for (; x >= 1024 && i < 4; i++) x /= 1024;
    return arena_printf(a, i ? "%.2f %s" : "%.0f %s", x, unit[i]);
}

/* ---- values ---- */

typedef struct Parse {
    Options *o;
    int errors;
} Parse;

static void complain(Parse *p, const char *text, const char *name, const char *value) {
    fprintf(stderr, "trainc: --%s %s: %s\n", name, value ? value : "", text);
    p->errors++;
}

static void *list_add(Arena *a, void *list, uint32_t n, size_t size) {
    return arena_grow(a, list, n * size, (n + 1) * size);
}

static int64_t number(Parse *p, OptionId id, const char *s, int64_t least) {
    char *end;
    long long n = strtoll(s, &end, 10);
    if (end == s || *end || n < least) {
        complain(p, least > 0 ? "a positive whole number is wanted" : "a whole number is wanted",
                 option_info[id].name, s);
        return 0;
    }
    return n;
}

static double real(Parse *p, OptionId id, const char *s) {
    char *end;
    double x = strtod(s, &end);
    if (end == s || *end || !(x >= 0)) complain(p, "a number is wanted", option_info[id].name, s);
    return x;
}

static void add_dims(Parse *p, const char *arg) {
    Options *o = p->o;
    char *save = NULL, *list = arena_strdup(o->arena, arg);
    for (char *item = strtok_r(list, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
        char *eq = strrchr(item, '='), *end = NULL;
        long long n = eq ? strtoll(eq + 1, &end, 10) : 0;
        if (!eq || eq == item || end == eq + 1 || *end || n < 1) {
            complain(p, "NAME=N with a positive N is wanted", "dim", item);
            continue;
        }
        *eq = 0;
        o->dims = list_add(o->arena, o->dims, o->n_dims, sizeof *o->dims);
        o->dims[o->n_dims++] = (DimBinding){item, n};
    }
}

static void add_freeze(Parse *p, const char *glob, bool train) {
    Options *o = p->o;
    o->freezes = list_add(o->arena, o->freezes, o->n_freezes, sizeof *o->freezes);
    o->freezes[o->n_freezes++] = (FreezeRule){train, glob};
}

static void add_file(Parse *p, OptionId id, const char *arg, NamedFile **list, uint32_t *n) {
    char *item = arena_strdup(p->o->arena, arg), *eq = strchr(item, '=');
    if (!eq || eq == item || !eq[1]) {
        complain(p, "NAME=FILE is wanted", option_info[id].name, arg);
        return;
    }
    *eq = 0;
    *list = list_add(p->o->arena, *list, *n, sizeof **list);
    (*list)[(*n)++] = (NamedFile){item, eq + 1};
}

/* What is none of the names that there are: the closest, and all of them. */
static void complain_choice(Parse *p, const char *option, const char *value,
                            const char *const *names, size_t n) {
    const char *near = run_closest_name(value, names, n);
    fprintf(stderr, "trainc: --%s %s: %s%s%sone of", option, value, near ? "did you mean " : "",
            near ? near : "", near ? "? " : "");
    for (size_t i = 0; i < n; i++) fprintf(stderr, "%s %s", i ? "," : "", names[i]);
    fputc('\n', stderr);
    p->errors++;
}

static const char *const target_names[] = {
#define TARGET(name, ...) #name,
#include "target.def"
#undef TARGET
};
enum { N_TARGET_NAMES = sizeof target_names / sizeof *target_names };

static void add_targets(Parse *p, const char *arg) {
    Options *o = p->o;
    char *save = NULL, *list = arena_strdup(o->arena, arg);
    for (char *item = strtok_r(list, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
        const char *name;
        if (!target_known(item, &name)) {
            complain_choice(p, "target", item, target_names, N_TARGET_NAMES);
            continue;
        }
        bool have = false;
        for (uint32_t i = 0; i < o->n_targets; i++) have |= !strcmp(o->targets[i], name);
        if (!have && o->n_targets < MAX_TARGETS) o->targets[o->n_targets++] = name;
    }
}

static void check_emit(Parse *p, const char *arg) {
    static const char *const kinds[] = {"tir", "c", "hip", "asm", "co"};
    char *save = NULL, *list = arena_strdup(p->o->arena, arg);
    for (char *item = strtok_r(list, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
        bool known = false;
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) known |= !strcmp(item, kinds[i]);
        if (!known) complain_choice(p, "emit", item, kinds, sizeof kinds / sizeof *kinds);
    }
}

static bool one_of(Parse *p, OptionId id, const char *value, const char *const *choices) {
    size_t n = 0;
    for (; choices[n]; n++)
        if (!strcmp(value, choices[n])) return true;
    complain_choice(p, option_info[id].name, value, choices, n);
    return false;
}
#define CHOICE(id, value, ...) one_of(p, id, value, (const char *const[]){__VA_ARGS__, NULL})

static void take(Parse *p, OptionId id, const char *arg) {
    Options *o = p->o;
    switch (id) {
    case OPT_OUT:
        o->out = arg;
        break;
    case OPT_MEM:
        o->mem_bytes = parse_size(arg);
        if (!o->mem_bytes) complain(p, "not a size (128G, 512MB, 1000000)", "mem", arg);
        break;
    case OPT_TARGET:
        add_targets(p, arg);
        break;
    case OPT_DIM:
        add_dims(p, arg);
        break;
    case OPT_SET:
        p->errors += !set_parse(o, arg);
        break;
    case OPT_BATCH_DIM:
        o->batch_dim = arg;
        break;
    case OPT_BATCH:
        o->batch = number(p, id, arg, 1);
        break;
    case OPT_MICRO:
        o->micro_batch = strcmp(arg, "auto") ? number(p, id, arg, 1) : 0;
        break;
    case OPT_LOSS:
        o->loss = arg;
        break;
    case OPT_IGNORE:
        o->ignore_index = number(p, id, arg, INT64_MIN);
        break;
    case OPT_OPTIMIZER:
        o->optimizer = arg;
        break;
    case OPT_PRECISION:
        CHOICE(id, arg, "fp32");
        break;
    case OPT_STATE:
        CHOICE(id, arg, "fp32", "int8");
        o->state_int8 = !strcmp(arg, "int8");
        break;
    case OPT_REMAT:
        CHOICE(id, arg, "none", "auto");
        break;
    case OPT_FREEZE:
        add_freeze(p, arg, false);
        break;
    case OPT_TRAIN:
        add_freeze(p, arg, true);
        break;
    case OPT_LORA:
        if (!lora_option_parse(arg, &o->lora))
            complain(p, "RANK or RANK:GLOB with a positive RANK is wanted", "lora", arg);
        break;
    case OPT_LORA_ALPHA:
        o->lora.lora_alpha = real(p, id, arg);
        if (!(o->lora.lora_alpha > 0))
            complain(p, "a positive number is wanted", "lora-alpha", arg);
        break;
    case OPT_TIE:
        p->errors += !tie_parse(o, arg);
        break;
    case OPT_RENAME:
        p->errors += !rename_parse(o, arg);
        break;
    case OPT_ATTENTION_DROPOUT:
        o->attention_dropout = CHOICE(id, arg, "graph", "auto") && !strcmp(arg, "auto");
        break;
    case OPT_BATCHNORM:
        o->batchnorm_train = CHOICE(id, arg, "graph", "train") && !strcmp(arg, "train");
        break;
    case OPT_BN_VARIANCE:
        o->bn_variance = !CHOICE(id, arg, "pytorch", "onnx") ? 0 : arg[0] == 'p' ? 1 : 2;
        break;
    case OPT_EMIT:
        o->emit = arg;
        check_emit(p, arg);
        break;
    case OPT_CPU:
        o->cpu = arg;
        break;
    case OPT_DATA:
        add_file(p, id, arg, &o->data, &o->n_data);
        break;
    case OPT_EXPECT:
        add_file(p, id, arg, &o->expect, &o->n_expect);
        break;
    case OPT_RTOL:
        o->rtol = real(p, id, arg);
        break;
    case OPT_ATOL:
        o->atol = real(p, id, arg);
        break;
    case OPT_ENGINE:
        CHOICE(id, arg, "cpu", "interp");
        o->engine = arg;
        break;
    case OPT_VERBOSE:
        o->verbose = true;
        break;
    case OPT_HELP:
        o->help = true;
        break;
    case N_OPTIONS:
        break;
    }
}

/* ---- names that are nearly right ---- */

static void unknown_option(Parse *p, const char *arg) {
    char name[64];
    const char *names[N_OPTIONS];
    size_t n = 0;
    snprintf(name, sizeof name, "%s", arg + strspn(arg, "-"));
    name[strcspn(name, "=")] = 0;
    for (int i = 0; i < N_OPTIONS; i++)
        if (option_info[i].commands & (int)p->o->command) names[n++] = option_info[i].name;
    const char *near = run_closest_name(name, names, n);
    fprintf(stderr, "trainc: unknown option %s", arg);
    if (near) fprintf(stderr, "; did you mean --%s?", near);
    fputc('\n', stderr);
    p->errors++;
}

/* getopt_long takes any unique beginning of a name; a typo must not pass for an option. */
static void refuse_abbreviations(Parse *p, int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) {
        if (strncmp(argv[i], "--", 2)) continue;
        const OptionInfo *found = NULL;
        size_t n = strcspn(argv[i] + 2, "=");
        for (int k = 0; k < N_OPTIONS; k++)
            if ((option_info[k].commands & (int)p->o->command) &&
                strlen(option_info[k].name) == n && !memcmp(option_info[k].name, argv[i] + 2, n))
                found = &option_info[k];
        if (!found)
            unknown_option(p, argv[i]);
        else if (found->argument && !argv[i][n + 2])
            i++;
    }
}

static uint32_t long_options(Command c, struct option *out) {
    uint32_t n = 0;
    for (int i = 0; i < N_OPTIONS; i++)
        if (option_info[i].commands & (int)c)
            out[n++] = (struct option){option_info[i].name,
                                       option_info[i].argument ? required_argument : no_argument,
                                       NULL, LONG_BASE + i};
    out[n] = (struct option){0};
    return n;
}

static OptionId option_of(int code) {
    for (int i = 0; i < N_OPTIONS; i++)
        if (code == LONG_BASE + i || (option_info[i].letter && code == option_info[i].letter))
            return (OptionId)i;
    return N_OPTIONS;
}

static void finish(Parse *p, int argc, char **argv) {
    Options *o = p->o;
    if (o->help) return;
    if (optind < argc)
        o->model = argv[optind++];
    else if (!p->errors)
        fprintf(stderr, "trainc: a model is missing: %s (see --help)\n", command_text(o->command)),
            p->errors++;
    for (; optind < argc && !p->errors; optind++) /* else they may belong to what was wrong */
        fprintf(stderr, "trainc: one model at a time: what is %s?\n", argv[optind]), p->errors++;
    if (o->lora.lora_alpha > 0 && !o->lora.lora_rank)
        complain(p, "only with --lora RANK", "lora-alpha", NULL);
    if (!o->n_targets) o->targets[o->n_targets++] = "cpu";
}

bool options_parse(Options *o, Command command, int argc, char **argv) {
    *o = (Options){.arena = o->arena,
                   .command = command,
                   .ignore_index = -100,
                   .optimizer = "adamw",
                   .cpu = "native",
                   .engine = "cpu",
                   .rtol = 1e-4,
                   .atol = 1e-5};
    Parse p = {o, 0};
    struct option longs[N_OPTIONS + 1];
    long_options(command, longs);
    refuse_abbreviations(&p, argc, argv);
    opterr = 0;
    optind = 1;
    for (int code; (code = getopt_long(argc, argv, ":o:vh", longs, NULL)) != -1;) {
        OptionId id = option_of(code);
        if (code == ':')
            fprintf(stderr, "trainc: %s: an argument is missing\n", argv[optind - 1]), p.errors++;
        else if (id != N_OPTIONS && option_info[id].commands & (int)command)
            take(&p, id, optarg);
        else if (optopt) /* a letter; names were looked at above */
            unknown_option(&p, argv[optind - 1]);
    }
    finish(&p, argc, argv);
    return p.errors == 0;
}
