/* main.c - onnx-mutations SEED COUNT WORK [NAME]: models made wrong, and what is said of them.
 *
 * Takes the models of ONNX's node tests (installed and newer; those whose folder's name holds
 * NAME), changes each at a few places (mutate.h) and imports it, COUNT times all in all. Whatever
 * the change was: no crash, no assert, no sanitizer's finding, no hang, and a model that is not
 * imported leaves an error that is the user's (exit status 2 to 5). What is imported is verified
 * and, some of it, planned as a training step with the loss of its first output.
 *
 * Models are handled by children of this process, many each; a child that dies leaves the mutant in
 * WORK/SEED-NUMBER.onnx, is reported, and the next goes on behind it. */
#include "../frontend/onnx_case.h"
#include "mutate.h"
#include "passes.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS_EACH = 20, TEXT_BYTES = 1024 };
typedef struct Progress {
    uint32_t next, n_imported, n_planned, n_wrong;
    char text[TEXT_BYTES], path[TEXT_BYTES];
} Progress;
typedef struct Run {
    const CaseList *list;
    const uint32_t *chosen;
    uint32_t n_chosen;
    uint64_t seed;
    uint32_t count;
    const char *work;
    Progress *progress; /* shared with the children */
} Run;

static uint8_t *file_read(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    uint8_t *bytes = malloc((size_t)size + 1);
    *n = fread(bytes, 1, (size_t)size, f);
    fclose(f);
    return bytes;
}

static bool file_write(const char *path, const uint8_t *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    bool is_written = f && fwrite(bytes, 1, n, f) == n;
    return f && !fclose(f) && is_written;
}

/* The mutant in a file; false where the original cannot be read. */
static bool make_mutant(Run *r, const ListedCase *c, Dice *d) {
    char path[TEXT_BYTES];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/model.onnx", c->folder);
    uint8_t *bytes = file_read(path, &n);
    Onnx__ModelProto *model = bytes ? onnx__model_proto__unpack(NULL, n, bytes) : NULL;
    if (!model || !model->graph) return false;
    snprintf(r->progress->text, TEXT_BYTES, "%s: ", c->name);
    size_t at = strlen(r->progress->text);
    mutate(model, d, r->progress->text + at, TEXT_BYTES - at);
    size_t size = onnx__model_proto__get_packed_size(model);
    uint8_t *packed = malloc(size + 1);
    onnx__model_proto__pack(model, packed);
    for (uint32_t k = dice(d, 8) ? 0 : 1 + dice(d, 4); k > 0 && size; k--)
        packed[dice(d, (uint32_t)size)] = (uint8_t)dice(d, 256);
    bool is_written = file_write(r->progress->path, packed, size);
    free(packed);
    free(bytes); /* the message, in part replaced, is left to the end of the child */
    return is_written;
}

/* Constants for some inputs, as --set gives them. */
static uint32_t choose_sets(const ListedCase *c, Dice *d, InputValue *sets) {
    static const double numbers[] = {0, 1, 2, -1, 3, 5, -7, 1e9};
    uint32_t n = 0, how = dice(d, 3); /* none, integers, all but the first */
    for (uint32_t i = 0; i < c->n_inputs && n < MAX_CASE_TENSORS; i++) {
        bool is_float = dtype_info[c->inputs[i].type.dtype].cls == CLASS_FLT;
        if (how == 0 || (how == 1 ? is_float : i == 0)) continue;
        sets[n++] = (InputValue){.name = c->inputs[i].name,
                                 .numbers = &numbers[dice(d, sizeof numbers / sizeof *numbers)],
                                 .n_numbers = 1};
    }
    return n;
}

static void plan(Run *r, Model *m, const char *loss) {
    Arena *arena = arena_new();
    Plan made = {0};
    PassOptions o = {.loss = loss,
                     .ignore_index = -100,
                     .optimizer = "sgd",
                     .batch = m->batch,
                     .micro_batch = m->micro_batch,
                     .forward_only = !loss,
                     .keep_outputs = true,
                     .fuel = -1,
                     .tensor_names = m->tensor_names,
                     .tensor_values = m->tensor_values,
                     .eval_values = m->eval_values,
                     .n_tensors = m->n_tensors,
                     .output_names = m->output_names,
                     .n_outputs = m->n_outputs};
    PassContext ctx = {.g = m->graph, .plan = &made, .arena = arena, .options = &o, .log = stderr};
    bool ok = passes_run(&ctx, NULL);
    int status = diag_exit_status(ctx.g);
    r->progress->n_planned += ok;
    if (!ok && status <= 1) {
        printf("WRONG %u %s: not planned, exit status %d\n", r->progress->next, r->progress->text,
               status);
        diag_print(ctx.g, stdout);
        r->progress->n_wrong++;
    }
    m->graph = ctx.g;
    arena_free(arena);
}

static void judge(Run *r, const ListedCase *c, Dice *d) {
    Model m = {0};
    InputValue sets[MAX_CASE_TENSORS];
    char loss[TEXT_BYTES];
    snprintf(loss, sizeof loss, "mse:%s", c->n_outputs ? c->outputs[0].name : "y");
    ImportOptions o = {.path = r->progress->path, .sets = sets, .loss = dice(d, 2) ? loss : NULL};
    o.eval_only = !o.loss;
    o.n_sets = choose_sets(c, d, sets);
    bool ok = model_import(&o, &m);
    int status = diag_exit_status(m.graph);
    bool is_well = ok ? graph_verify(m.graph, stdout) : status >= 2 && status <= 5;
    if (!is_well) {
        printf("WRONG %u %s: %s, exit status %d\n", r->progress->next, r->progress->text,
               ok ? "imported" : "not imported", status);
        diag_print(m.graph, stdout);
        r->progress->n_wrong++;
    }
    r->progress->n_imported += ok;
    if (ok && is_well && dice(d, 3) == 0) plan(r, &m, o.loss);
    model_free(&m);
}

static void one(Run *r) {
    uint32_t at = r->progress->next;
    Dice d = {r->seed * 1000003u + at};
    const ListedCase *c = &r->list->items[r->chosen[dice(&d, r->n_chosen)]];
    alarm(SECONDS_EACH);
    if (make_mutant(r, c, &d)) judge(r, c, &d);
    alarm(0);
    r->progress->next++;
}

static void report_death(Run *r, int status) {
    char kept[2 * TEXT_BYTES];
    Progress *p = r->progress;
    snprintf(kept, sizeof kept, "%s/%llu-%u.onnx", r->work, (unsigned long long)r->seed, p->next);
    rename(p->path, kept);
    printf("DIED %u %s: %s %d; the model: %s\n", p->next, p->text,
           WIFSIGNALED(status) ? "signal" : "status",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), kept);
    p->n_wrong++;
    p->next++;
}

static void run(Run *r) {
    while (r->progress->next < r->count) {
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            uint32_t end = r->progress->next + 200;
            while (r->progress->next < r->count && r->progress->next < end) one(r);
            fflush(stdout);
            _exit(0);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) < 0) exit(1);
        if (status) report_death(r, status);
    }
}

int main(int argc, char **argv) {
    if (argc < 4) return fprintf(stderr, "usage: onnx-mutations SEED COUNT WORK [NAME]\n"), 2;
    Arena *arena = arena_new();
    const char *const roots[] = {onnx_cases_newer(), onnx_cases_installed()};
    CaseList all = {0};
    for (int i = 0; i < 2; i++) {
        const CaseList list = onnx_cases(roots[i], arena);
        ListedCase *items = arena_alloc(arena, (all.n + list.n + 1) * sizeof *items);
        if (all.n) memcpy(items, all.items, all.n * sizeof *items);
        if (list.n) memcpy(items + all.n, list.items, list.n * sizeof *items);
        all = (CaseList){items, all.n + list.n};
    }
    uint32_t *chosen = arena_alloc(arena, (all.n + 1) * sizeof *chosen), n = 0;
    for (uint32_t i = 0; i < all.n; i++)
        if (argc < 5 || strstr(all.items[i].name, argv[4])) chosen[n++] = i;
    Progress *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!n || p == MAP_FAILED) return fprintf(stderr, "onnx-mutations: no models\n"), 1;
    snprintf(p->path, sizeof p->path, "%s/mutant-%d.onnx", argv[3], (int)getpid());
    Run r = {&all,    chosen, n, strtoull(argv[1], NULL, 10), (uint32_t)strtoul(argv[2], NULL, 10),
             argv[3], p};
    run(&r);
    remove(p->path);
    printf("seed %s: %u mutants of %u models, %u imported, %u planned, %u wrong\n", argv[1],
           p->next, n, p->n_imported, p->n_planned, p->n_wrong);
    arena_free(arena);
    return p->n_wrong ? 1 : 0;
}
