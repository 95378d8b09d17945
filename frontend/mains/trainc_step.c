/* step.c - model and options to a planned step.
 *
 * The graph is built for one micro-batch, so trying another means importing again: a matter of
 * milliseconds, since weights stay in their files. The batch is never split on our own accord where
 * samples mix or where the loss is the model's own output. */
#include "step_plan.h"
#include "codegen.h"
#include <stdlib.h>
#include <string.h>

void step_free(PlannedStep *s) {
    if (s->passes.g && s->passes.g != s->model.graph) graph_free(s->passes.g);
    model_free(&s->model);
    *s = (PlannedStep){0};
}

static bool import(PlannedStep *s, const Options *o, int64_t micro) {
    ImportOptions io = {.path = o->model,
                        .dims = o->dims,
                        .n_dims = o->n_dims,
                        .freezes = o->freezes,
                        .n_freezes = o->n_freezes,
                        .adapters = o->lora.lora_rank != 0,
                        .sets = o->sets,
                        .n_sets = o->n_sets,
                        .ties = o->ties,
                        .n_ties = o->n_ties,
                        .tie_none = o->tie_none,
                        .renames = o->renames,
                        .n_renames = o->n_renames,
                        .batch_dim = o->batch_dim,
                        .batch = o->batch,
                        .micro_batch = micro,
                        .attention_dropout = o->attention_dropout,
                        .batchnorm_train = o->batchnorm_train,
                        .loss = o->loss ? o->loss : "output",
                        .bn_variance = o->bn_variance};
    return model_import(&io, &s->model);
}

static bool has_cpu_target(const Options *o) {
    for (uint32_t i = 0; i < o->n_targets; i++)
        if (!strcmp(o->targets[i], "cpu")) return true;
    return false;
}

/* The GPU's pipeline has a folder of its own where the cpu's is there too. */
static const char *dump_dir(const Options *o, bool for_gpu) {
    if (!o->emit || !strstr(o->emit, "tir") || !o->out) return NULL;
    return arena_printf(o->arena, for_gpu && has_cpu_target(o) ? "%s/emit/gpu" : "%s/emit", o->out);
}

/* TRAINC_PACK=always|never: for tests, and to find out whose fault a number is. */
static PackMode pack_mode(void) {
    const char *want = getenv("TRAINC_PACK");
    bool always = want && !strcmp(want, "always"), never = want && !strcmp(want, "never");
    return always ? PACK_ALWAYS : never ? PACK_NEVER : PACK_PAYS;
}

/* --freeze and --train mean adapters, too. */
static const AdapterRule *adapter_rules(const Options *o) {
    AdapterRule *rules = arena_alloc(o->arena, (o->n_freezes + 1) * sizeof *rules);
    for (uint32_t i = 0; i < o->n_freezes; i++)
        rules[i] = (AdapterRule){o->freezes[i].train, o->freezes[i].glob};
    return rules;
}

/* Of a model that was not imported, what else is wrong is told. */
static bool run_passes(PlannedStep *s, const Options *o, bool for_gpu, PackMode pack,
                       bool is_imported) {
    const char *fuel = getenv("TRAINC_FUEL");
    s->options = (PassOptions){.loss = o->loss,
                               .ignore_index = o->ignore_index,
                               .optimizer = o->optimizer,
                               .state_int8 = o->state_int8,
                               .batch = s->model.batch,
                               .micro_batch = s->model.micro_batch,
                               .lora_rank = o->lora.lora_rank,
                               .lora_glob = o->lora.lora_glob,
                               .lora_alpha = o->lora.lora_alpha,
                               .adapter_rules = adapter_rules(o),
                               .n_adapter_rules = o->n_freezes,
                               .for_gpu = for_gpu,
                               .verbose = o->verbose,
                               .dump_dir = dump_dir(o, for_gpu),
                               .fuel = fuel ? strtoll(fuel, NULL, 10) : -1,
                               .tensor_names = s->model.tensor_names,
                               .tensor_values = s->model.tensor_values,
                               .eval_values = s->model.eval_values,
                               .n_tensors = s->model.n_tensors,
                               .output_names = s->model.output_names,
                               .n_outputs = s->model.n_outputs,
                               .packed_bytes = for_gpu ? NULL : library_packed_bytes,
                               .pack = pack,
                               .scratch_bytes = for_gpu ? NULL : library_scratch_bytes};
    s->passes = (PassContext){.g = s->model.graph,
                              .plan = &s->plan,
                              .arena = o->arena,
                              .options = &s->options,
                              .log = stderr};
    if (is_imported) return passes_run(&s->passes, NULL);
    passes_check_options(&s->passes);
    return false;
}

static const Graph *graph_of(const PlannedStep *s) {
    return s->passes.g ? s->passes.g : s->model.graph;
}

/* One attempt: 0, or the exit status after its diagnostics were printed. */
static int attempt_packed(PlannedStep *s, const Options *o, bool for_gpu, int64_t micro,
                          PackMode pack) {
    bool ok = run_passes(s, o, for_gpu, pack, import(s, o, micro));
    const Graph *g = graph_of(s);
    bool is_first = micro == o->micro_batch && !(for_gpu && has_cpu_target(o)); /* notes once */
    if (g && (!ok || (g->diags.n && is_first))) diag_print(g, stderr);
    if (ok) return 0;
    int status = g ? diag_exit_status(g) : 0;
    return status ? status : 1;
}

static bool has_packed(const Graph *g) {
    for (uint32_t i = 0; i < g->n_states; i++)
        if (g->states[i].cls == STATE_PACKED) return true;
    return false;
}

/* Packed copies are left out before anything else is given up. */
static int attempt(PlannedStep *s, const Options *o, bool for_gpu, int64_t micro, uint64_t budget) {
    int status = attempt_packed(s, o, for_gpu, micro, pack_mode());
    if (status || !budget || s->plan.arena_bytes <= budget || !has_packed(graph_of(s)))
        return status;
    step_free(s);
    return attempt_packed(s, o, for_gpu, micro, PACK_NEVER);
}

static int64_t smaller_divisor(int64_t n, int64_t of) {
    for (int64_t d = of - 1; d > 0; d--)
        if (n % d == 0) return d;
    return 0;
}

static int refuse(const PlannedStep *s, const Options *o, uint64_t budget, uint64_t smallest) {
    const DiagInfo *info = &diag_info[E_DOES_NOT_FIT];
    const char *sizes[2];
    uint64_t bytes[2] = {s->plan.arena_bytes, budget};
    for (int i = 0; i < 2; i++)
        sizes[i] = arena_printf(o->arena, "%s (%llu bytes)", format_bytes(o->arena, bytes[i]),
                                (unsigned long long)bytes[i]);
    fprintf(stderr, "error[%s]: ", info->code);
    fprintf(stderr, info->format, sizes[0], sizes[1]);
    fputc('\n', stderr);
    fprintf(stderr, "  smallest budget that would do: --mem %llu\n  largest terms:",
            (unsigned long long)smallest);
    bool done[N_BUFFER_CLASSES] = {0};
    for (int i = 0; i < 3; i++) {
        int best = -1;
        for (int c = 0; c < N_BUFFER_CLASSES; c++)
            if (!done[c] && s->plan.bytes[c] &&
                (best < 0 || s->plan.bytes[c] > s->plan.bytes[best]))
                best = c;
        if (best < 0) break;
        done[best] = true;
        fprintf(stderr, "%s %s %s", i ? "," : "", buffer_class_name[best],
                format_bytes(o->arena, s->plan.bytes[best]));
    }
    fprintf(stderr,
            "\n  hint: %s--state int8, --optimizer sgd and --freeze shrink the state; shorter "
            "sequences or "
            "smaller images the activations\n",
            s->plan.micro_batch > 1 ? "--micro-batch 1, " : "");
    return info->exit_status;
}

int step_plan(PlannedStep *s, const Options *o, bool for_gpu, uint64_t budget) {
    *s = (PlannedStep){0};
    int status = attempt(s, o, for_gpu, o->micro_batch, budget);
    if (status || !budget || s->plan.arena_bytes <= budget) return status;
    uint64_t smallest = s->plan.arena_bytes;
    bool may_split = !o->micro_batch && !s->model.samples_mix && !s->options.loss_is_output;
    int64_t batch = s->model.batch;
    for (int64_t micro = batch; may_split && (micro = smaller_divisor(batch, micro)) > 0;) {
        step_free(s);
        if ((status = attempt(s, o, for_gpu, micro, budget))) return status;
        if (s->plan.arena_bytes < smallest) smallest = s->plan.arena_bytes;
        if (s->plan.arena_bytes <= budget) return 0;
    }
    return refuse(s, o, budget, smallest);
}
