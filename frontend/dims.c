/* dims.c - binds every dimension of the model's inputs to a number and adds the graph's inputs.
 *
 * Symbols are the dim_params of the inputs, or "INPUT[AXIS]" where a dimension has no name. --dim
 * gives values, --batch those of the batch symbol; the graph is built with the micro-batch in its
 * place. All that is wrong is reported at once: unbound symbols, names that the model lacks,
 * contradictions.
 */
#include "context.h"
#include <stdlib.h>
#include <string.h>

typedef struct Symbol {
    const char *name, *input;
    int64_t axis, value;
    bool is_batch;
} Symbol; /* value 0: unbound */
typedef struct InputDim {
    Symbol *symbol;
    int64_t value;
} InputDim; /* symbol NULL: fixed */
typedef struct InputInfo {
    const Onnx__ValueInfoProto *proto;
    uint32_t rank;
    DType dtype;
    InputDim dims[MAX_RANK];
    const InputValue *set; /* --set: a constant, not an input of the step */
} InputInfo;
typedef struct Binder {
    Import *im;
    Graph *g;
    InputInfo *inputs;
    uint32_t n_inputs;
    Symbol *symbols;
    uint32_t n_symbols;
    int64_t fixed_batch; /* the common axis 0, where it is a number in the model */
    Symbol *batch;
} Binder;

/* ---------------------------------------------------------------- what the model declares */

static bool is_named(const Onnx__TensorShapeProto__Dimension *d) {
    return d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM && *d->dim_param &&
           strcmp(d->dim_param, "?") && strcmp(d->dim_param, "-1");
}

static Symbol *symbol_add(Binder *b, const char *name, const char *input, int64_t axis) {
    for (uint32_t i = 0; i < b->n_symbols; i++)
        if (!strcmp(b->symbols[i].name, name)) return &b->symbols[i];
    Symbol *s = &b->symbols[b->n_symbols++];
    *s = (Symbol){.name = name, .input = input, .axis = axis};
    return s;
}

static InputDim dim_read(Binder *b, const char *input, const Onnx__TensorShapeProto__Dimension *d,
                         int64_t axis) {
    if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE && d->dim_value >= 0)
        return (InputDim){NULL, d->dim_value};
    const char *unnamed = arena_printf(b->g->arena, "%s[%lld]", input, (long long)axis);
    return (InputDim){symbol_add(b, is_named(d) ? d->dim_param : unnamed, input, axis), 0};
}

static bool input_read(Binder *b, InputInfo *info, const Onnx__ValueInfoProto *proto) {
    Graph *g = b->g;
    const Onnx__TypeProto *type = proto->type;
    info->proto = proto;
    if (!type || type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE ||
        !type->tensor_type->shape) {
        bool is_tensor = !type || type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
        const char *what = is_tensor ? "no tensor of known rank"
                                     : "a sequence, optional or map, and only tensors can be fed";
        diag_add(g, E_MODEL_INVALID, 0,
                 arena_printf(g->arena, "input %s is %s", proto->name, what));
        return false;
    }
    const Onnx__TensorShapeProto *shape = type->tensor_type->shape;
    info->dtype = dtype_from_onnx(type->tensor_type->elem_type);
    if (info->dtype == DT_NONE || shape->n_dim > MAX_RANK) {
        diag_add(g, E_DTYPE, 0,
                 info->dtype == DT_NONE ? element_type_name(g, type->tensor_type->elem_type)
                                        : "of rank above 8",
                 arena_printf(g->arena, "input %s", proto->name));
        return false;
    }
    info->rank = (uint32_t)shape->n_dim;
    for (uint32_t i = 0; i < info->rank; i++)
        info->dims[i] = dim_read(b, proto->name, shape->dim[i], i);
    return true;
}

static bool inputs_read(Binder *b) {
    const Onnx__GraphProto *graph = b->im->file->proto->graph;
    b->inputs = arena_alloc(b->g->arena, (graph->n_input + 1) * sizeof *b->inputs);
    b->symbols = arena_alloc(b->g->arena, (graph->n_input + 1) * MAX_RANK * sizeof *b->symbols);
    bool is_valid = true;
    for (size_t i = 0; i < graph->n_input; i++) {
        uint32_t initializer;
        if (!names_get(&b->im->initializers, graph_str(b->g, graph->input[i]->name), &initializer))
            is_valid &= input_read(b, &b->inputs[b->n_inputs++], graph->input[i]);
    }
    return is_valid;
}

/* ---------------------------------------------------------------- what the user binds */

static void symbol_bind(Binder *b, Symbol *s, int64_t value) {
    if (s->value && s->value != value)
        diag_add(b->g, E_DIM_CONFLICT, 0, s->name, (long long)s->value, (long long)value);
    else if (value <= 0)
        diag_add(b->g, E_OPTION, 0,
                 arena_printf(b->g->arena, "--dim %s=%lld: a dimension is at least 1", s->name,
                              (long long)value));
    else
        s->value = value;
}

/* A symbol by its name, or by "INPUT[AXIS]" of any input that has it. A fixed dimension is *fixed,
 * which is -1 where there is no such dimension. */
static Symbol *symbol_find(Binder *b, const char *name, int64_t *fixed) {
    *fixed = -1;
    for (uint32_t i = 0; i < b->n_symbols; i++)
        if (!strcmp(b->symbols[i].name, name)) return &b->symbols[i];
    const char *bracket = strrchr(name, '[');
    for (uint32_t i = 0; bracket && i < b->n_inputs; i++) {
        const char *input = b->inputs[i].proto->name;
        if (strlen(input) != (size_t)(bracket - name) ||
            strncmp(input, name, (size_t)(bracket - name)))
            continue;
        char *end;
        long axis = strtol(bracket + 1, &end, 10);
        if (axis < 0) axis += (long)b->inputs[i].rank;
        if (end == bracket + 1 || strcmp(end, "]") || axis < 0 || axis >= (long)b->inputs[i].rank)
            return NULL;
        *fixed = b->inputs[i].dims[axis].value;
        return b->inputs[i].dims[axis].symbol;
    }
    return NULL;
}

/* "INPUT[AXIS]" of an input that the model lacks, as --data of `trainc eval` binds them too. */
static bool report_no_input(Binder *b, const char *name) {
    const char *bracket = strrchr(name, '['), *all = "";
    if (!bracket) return false;
    const char *input = arena_printf(b->g->arena, "%.*s", (int)(bracket - name), name);
    const char **names = arena_alloc(b->g->arena, (b->n_inputs + 1) * sizeof *names);
    for (uint32_t i = 0; i < b->n_inputs; i++) {
        names[i] = b->inputs[i].proto->name;
        if (!strcmp(names[i], input)) return false;
        all = arena_printf(b->g->arena, "%s%s%s", all, i ? ", " : "", names[i]);
    }
    diag_add(b->g, E_OPTION, 0, arena_printf(b->g->arena, "the model has no input %s", input));
    diag_hint(b->g, "%sit has: %s", did_you_mean(b->g->arena, input, names, b->n_inputs), all);
    return true;
}

static void report_unknown(Binder *b, const char *name) {
    Graph *g = b->g;
    if (report_no_input(b, name)) return;
    const char **names = arena_alloc(g->arena, (b->n_symbols + 1) * sizeof *names), *all = "";
    for (uint32_t i = 0; i < b->n_symbols; i++) {
        names[i] = b->symbols[i].name;
        all = arena_printf(g->arena, "%s%s%s", all, i ? ", " : "", names[i]);
    }
    diag_add(g, E_DIM_UNKNOWN, 0, name);
    if (!b->n_symbols)
        diag_hint(g, "all its dimensions are fixed");
    else
        diag_hint(g, "%sit has: %s", did_you_mean(g->arena, name, names, b->n_symbols), all);
}

static void bind_all(Binder *b) {
    const ImportOptions *o = b->im->options;
    for (uint32_t i = 0; i < o->n_dims; i++) {
        int64_t fixed;
        Symbol *s = symbol_find(b, o->dims[i].name, &fixed);
        if (s)
            symbol_bind(b, s, o->dims[i].value);
        else if (fixed < 0)
            report_unknown(b, o->dims[i].name);
        else if (fixed != o->dims[i].value)
            diag_add(b->g, E_DIM_CONFLICT, 0, o->dims[i].name, (long long)fixed,
                     (long long)o->dims[i].value);
    }
}

/* ---------------------------------------------------------------- constants given for inputs */

static void set_fail(Binder *b, const InputInfo *in, const char *why) {
    diag_add(b->g, E_OPTION, 0, arena_printf(b->g->arena, "--set %s: %s", in->proto->name, why));
}

/* The dims of the value bind what is unbound, and must agree with what is bound. */
static void set_bind(Binder *b, const InputInfo *in) {
    const InputValue *v = in->set;
    if (v->data && v->type.rank != in->rank)
        set_fail(b, in, "the value has another rank than the input");
    bool is_list = !v->data && in->rank == 1 && v->n_numbers > 1;
    for (uint32_t i = 0; i < in->rank && (is_list || (v->data && v->type.rank == in->rank)); i++) {
        int64_t extent = v->data ? v->type.dims[i] : v->n_numbers;
        if (in->dims[i].symbol && extent > 0)
            symbol_bind(b, in->dims[i].symbol, extent);
        else if (in->dims[i].value != extent)
            set_fail(b, in, "the value has other dims than the input");
    }
}

static void bind_sets(Binder *b) {
    const ImportOptions *o = b->im->options;
    for (uint32_t k = 0; k < o->n_sets; k++) {
        const char **names = arena_alloc(b->g->arena, (b->n_inputs + 1) * sizeof *names);
        InputInfo *found = NULL;
        for (uint32_t i = 0; i < b->n_inputs; i++) {
            names[i] = b->inputs[i].proto->name;
            if (!strcmp(names[i], o->sets[k].name)) found = &b->inputs[i];
        }
        if (found) {
            found->set = &o->sets[k];
            set_bind(b, found);
            continue;
        }
        diag_add(b->g, E_OPTION, 0,
                 arena_printf(b->g->arena, "--set names no input: %s", o->sets[k].name));
        const char *all = "";
        for (uint32_t i = 0; i < b->n_inputs; i++)
            all = arena_printf(b->g->arena, "%s%s%s", all, i ? ", " : "", names[i]);
        diag_hint(b->g, "%sit has: %s",
                  did_you_mean(b->g->arena, o->sets[k].name, names, b->n_inputs), all);
    }
}

/* The constant itself: as many numbers as elements, or one for all. */
static void set_add(Binder *b, const InputInfo *in, TypeId type) {
    Graph *g = b->g;
    Type t = g->types[type];
    const InputValue *v = in->set;
    int64_t elems = type_elems(&t);
    Value made;
    if (v->data) {
        TypeId given = graph_type(g, v->type);
        made = build_cast(g, build_const(g, given, v->data), in->dtype);
    } else {
        if (v->n_numbers != 1 && v->n_numbers != elems) {
            set_fail(b, in,
                     arena_printf(g->arena, "%u numbers are given, the input has %lld elements",
                                  v->n_numbers, (long long)elems));
            return;
        }
        Tensor numbers = {.type = t};
        numbers.u.p = arena_alloc(g->arena, ((size_t)elems + 1) * sizeof(double));
        for (int64_t i = 0; i < elems; i++) {
            double x = v->numbers[v->n_numbers == 1 ? 0 : i];
            if (dtype_info[in->dtype].cls == CLASS_FLT)
                numbers.u.f[i] = x;
            else
                numbers.u.i[i] = (int64_t)x;
        }
        void *bytes = arena_alloc(g->arena, type_bytes(&t) + 1);
        tensor_to_bytes(&numbers, bytes);
        made = build_const(g, type, bytes);
    }
    names_set(g->arena, &b->im->sets, graph_str(g, in->proto->name), made);
}

/* ---------------------------------------------------------------- the batch */

/* Axis 0 where all inputs share it: one symbol, or one number. */
static void batch_by_default(Binder *b) {
    uint32_t fed = 0;
    while (fed < b->n_inputs && b->inputs[fed].set) fed++;
    InputDim first =
        fed < b->n_inputs && b->inputs[fed].rank ? b->inputs[fed].dims[0] : (InputDim){0};
    for (uint32_t i = fed; i < b->n_inputs; i++) {
        const InputInfo *in = &b->inputs[i];
        if (in->set) continue;
        bool is_same =
            in->rank && in->dims[0].symbol == first.symbol && in->dims[0].value == first.value;
        bool is_same_value = in->rank && in->dims[0].symbol && first.symbol &&
                             first.symbol->value &&
                             in->dims[0].symbol->value == first.symbol->value;
        if (!is_same && !is_same_value) return;
    }
    b->batch = first.symbol;
    b->fixed_batch = first.value;
    for (uint32_t i = fed; i < b->n_inputs && first.symbol; i++)
        if (!b->inputs[i].set) b->inputs[i].dims[0].symbol->is_batch = true;
}

static void batch_find(Binder *b) {
    const char *name = b->im->options->batch_dim;
    if (!name) {
        batch_by_default(b);
        return;
    }
    int64_t fixed;
    b->batch = symbol_find(b, name, &fixed);
    if (b->batch)
        b->batch->is_batch = true;
    else if (fixed < 0)
        report_unknown(b, name);
}

static bool batch_fail(Binder *b, const char *text) {
    diag_add(b->g, E_BATCH, 0, text);
    return false;
}

static bool batch_bind(Binder *b) {
    const ImportOptions *o = b->im->options;
    Model *m = b->im->model;
    Arena *arena = b->g->arena;
    batch_find(b);
    int64_t bound = b->batch ? b->batch->value : 0; /* --dim N=1 --batch 4: micro-batches of one */
    bool is_micro = o->batch && bound && bound != o->batch && o->batch % bound == 0;
    if (is_micro) b->batch->value = o->batch;
    if (b->batch && o->batch) symbol_bind(b, b->batch, o->batch);
    m->batch = b->batch         ? b->batch->value
               : o->batch       ? o->batch
               : b->fixed_batch ? b->fixed_batch
                                : 1;
    if (b->batch && !m->batch) return false; /* reported as unbound */
    m->micro_batch = o->micro_batch   ? o->micro_batch
                     : b->fixed_batch ? b->fixed_batch
                     : is_micro       ? bound
                                      : m->batch;
    if (!b->batch && !b->fixed_batch && (m->batch > 1 || m->micro_batch > 1)) {
        batch_fail(b, "the inputs share no axis 0 that could count samples");
        diag_hint(b->g, "name the dimension with --batch-dim");
        return false;
    }
    if (b->fixed_batch && m->micro_batch != b->fixed_batch)
        return batch_fail(
            b, arena_printf(
                   arena, "the model is exported for %lld samples: --micro-batch can only be that",
                   (long long)b->fixed_batch));
    if (m->micro_batch < 1 || m->batch % m->micro_batch)
        return batch_fail(
            b, arena_printf(arena,
                            "the batch of %lld samples is no multiple of the micro-batch of %lld",
                            (long long)m->batch, (long long)m->micro_batch));
    return true;
}

/* ---------------------------------------------------------------- the result */

static void report_unbound(Binder *b) {
    for (uint32_t i = 0; i < b->n_symbols; i++) {
        const Symbol *s = &b->symbols[i];
        if (s->value) continue;
        diag_add(b->g, E_DIM_UNBOUND, 0, s->name, s->input);
        diag_hint(b->g, "bind it with --dim %s=N", s->name);
    }
}

/* A type that can be, and for a constant one that can be held; 0 after a diagnostic. */
static TypeId input_type(Binder *b, const InputInfo *in, const int64_t *dims) {
    enum { MOST_SET = 1 << 27 };
    Type t = {.dtype = (uint8_t)in->dtype, .rank = (uint8_t)in->rank};
    memcpy(t.dims, dims, in->rank * sizeof *dims);
    if (!type_fits(&t))
        diag_add(b->g, E_MODEL_INVALID, 0,
                 arena_printf(b->g->arena, "input %s has impossible dims", in->proto->name));
    else if (in->set && type_elems(&t) > MOST_SET)
        set_fail(b, in, "a constant of so many elements is too large");
    else
        return graph_type(b->g, t);
    return 0;
}

static void inputs_add(Binder *b) {
    for (uint32_t i = 0; i < b->n_inputs; i++) {
        const InputInfo *in = &b->inputs[i];
        Input input = {.name = graph_str(b->g, in->proto->name),
                       .batch_axis = b->fixed_batch ? 0 : -1};
        int64_t dims[MAX_RANK];
        for (uint32_t k = 0; k < in->rank; k++) {
            const Symbol *s = in->dims[k].symbol;
            bool is_batch = s && s->is_batch;
            dims[k] = is_batch ? b->im->model->micro_batch : s ? s->value : in->dims[k].value;
            if (is_batch && input.batch_axis < 0) input.batch_axis = (int)k;
        }
        if (!(input.type = input_type(b, in, dims))) continue;
        if (in->set)
            set_add(b, in, input.type);
        else
            graph_add_input(b->g, input);
    }
}

bool dims_bind(Import *im) {
    Binder b = {.im = im, .g = im->g};
    if (!inputs_read(&b)) return false;
    bind_all(&b);
    bind_sets(&b);
    bool has_batch = batch_bind(&b);
    report_unbound(&b);
    if (!has_batch || diag_has_errors(im->g)) return false;
    inputs_add(&b);
    return !diag_has_errors(im->g);
}
