/* mutate.c - one change of a model: of a node's inputs or outputs, an attribute, a declared input,
 * an initializer, the opset, or the order of nodes; numbers become those that importers trip over.
 * The graphs in attributes (bodies, branches) and the bodies of local functions are changed as the
 * main graph is. */
#include "mutate.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t dice(Dice *d, uint32_t n) { /* splitmix64 */
    uint64_t z = d->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ (z >> 31)) % n);
}

/* What is being changed: nodes, and the graph that they are of (NULL: a function's body). */
typedef struct Place {
    Onnx__GraphProto *graph;
    Onnx__NodeProto **nodes;
    size_t n_nodes;
} Place;
typedef struct Mutation {
    Onnx__ModelProto *model;
    Dice *dice;
    char *text;
    size_t size;
    Place place;
} Mutation;

static void say(Mutation *m, const char *what, const char *of) {
    size_t n = strlen(m->text);
    snprintf(m->text + n, m->size - n, "%s%s %s", n ? "; " : "", what, of ? of : "");
}

static int64_t odd_number(Mutation *m) {
    static const int64_t numbers[] = {
        -1, 0,  1,   2,    3,       5,       7,         -2,        -3,        -9,       8,
        9,  64, 100, 1000, 1 << 20, 1 << 30, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
    return dice(m->dice, 12) == 0 ? (int64_t)1 << (32 + dice(m->dice, 30))
                                  : numbers[dice(m->dice, sizeof numbers / sizeof *numbers)];
}

static float odd_float(Mutation *m) {
    static const float numbers[] = {0,      -1,  1,        0.5f,      -0.0f, 1e30f,
                                    1e-30f, NAN, INFINITY, -INFINITY, 3};
    return numbers[dice(m->dice, sizeof numbers / sizeof *numbers)];
}

/* ---- nodes ---- */

static char *odd_name(Mutation *m, const Onnx__NodeProto *n) {
    const Place *p = &m->place;
    switch (dice(m->dice, 5)) {
    case 0:
        return "";
    case 1:
        return "no such value";
    case 2:
        return n->n_output ? n->output[0] : "";
    case 3:
        if (p->graph && p->graph->n_input)
            return p->graph->input[dice(m->dice, (uint32_t)p->graph->n_input)]->name;
        return "";
    default: {
        const Onnx__NodeProto *other = p->nodes[dice(m->dice, (uint32_t)p->n_nodes)];
        return other->n_output ? other->output[dice(m->dice, (uint32_t)other->n_output)] : "";
    }
    }
}

static void list_append(char ***list, size_t *n, char *name) {
    char **longer = calloc(*n + 1, sizeof *longer);
    if (*n) memcpy(longer, *list, *n * sizeof *longer);
    longer[(*n)++] = name;
    *list = longer;
}

static void change_inputs(Mutation *m, Onnx__NodeProto *n) {
    say(m, "inputs of", n->op_type);
    uint32_t a = n->n_input ? dice(m->dice, (uint32_t)n->n_input) : 0,
             b = n->n_input ? dice(m->dice, (uint32_t)n->n_input) : 0;
    char *name = odd_name(m, n);
    switch (n->n_input ? dice(m->dice, 5) : 4) {
    case 0:
        n->n_input--;
        break;
    case 1: {
        char *kept = n->input[a];
        n->input[a] = n->input[b], n->input[b] = kept;
        break;
    }
    case 2:
        n->n_input = dice(m->dice, (uint32_t)n->n_input);
        break;
    case 3:
        n->input[a] = name;
        break;
    default:
        list_append(&n->input, &n->n_input, name);
    }
}

static void change_outputs(Mutation *m, Onnx__NodeProto *n) {
    say(m, "outputs of", n->op_type);
    char *name = odd_name(m, n);
    switch (n->n_output ? dice(m->dice, 3) : 2) {
    case 0:
        n->n_output--;
        break;
    case 1:
        n->output[dice(m->dice, (uint32_t)n->n_output)] = name;
        break;
    default:
        list_append(&n->output, &n->n_output, dice(m->dice, 2) ? name : "another output");
    }
}

static void change_ints(Mutation *m, Onnx__AttributeProto *a) {
    if (a->n_ints && dice(m->dice, 3)) {
        a->ints[dice(m->dice, (uint32_t)a->n_ints)] = odd_number(m);
    } else if (a->n_ints && dice(m->dice, 2)) {
        a->n_ints = dice(m->dice, (uint32_t)a->n_ints);
    } else {
        int64_t *longer = calloc(a->n_ints + 1, sizeof *longer);
        if (a->n_ints) memcpy(longer, a->ints, a->n_ints * sizeof *longer);
        longer[a->n_ints++] = odd_number(m);
        a->ints = longer;
    }
}

static void change_tensor(Mutation *m, Onnx__TensorProto *t);

static void change_attribute(Mutation *m, Onnx__NodeProto *n) {
    if (!n->n_attribute) return;
    Onnx__AttributeProto *a = n->attribute[dice(m->dice, (uint32_t)n->n_attribute)];
    static char *const strings[] = {"",       "XYZ",          "SAME_UPPER", "NHWC",
                                    "linear", "bij,bjk->bik", "i->"};
    say(m, "attribute", a->name);
    if (dice(m->dice, 6) == 0) {
        a->name = dice(m->dice, 2) ? "unheard_of" : NULL;
    } else if (dice(m->dice, 10) == 0) { /* the type says nothing of the fields */
        a->has_type = 1;
        a->type = (Onnx__AttributeProto__AttributeType)dice(m->dice, 16);
        a->has_i = a->has_f = a->has_s = 0;
        a->n_ints = 0, a->t = NULL, a->g = NULL;
    } else if (a->has_s) {
        char *s = strings[dice(m->dice, sizeof strings / sizeof *strings)];
        a->s = (ProtobufCBinaryData){strlen(s), (uint8_t *)s};
    } else if (a->t) {
        change_tensor(m, a->t);
    } else if (a->has_f) {
        a->f = odd_float(m);
    } else if (a->n_floats) {
        a->floats[dice(m->dice, (uint32_t)a->n_floats)] = odd_float(m);
    } else if (a->n_ints) {
        change_ints(m, a);
    } else {
        a->has_i = 1;
        a->i = odd_number(m);
    }
}

static void change_order(Mutation *m) {
    Place *p = &m->place;
    uint32_t a = dice(m->dice, (uint32_t)p->n_nodes), b = dice(m->dice, (uint32_t)p->n_nodes);
    Onnx__NodeProto *kept = p->nodes[a];
    say(m, "order of nodes", "");
    p->nodes[a] = p->nodes[b], p->nodes[b] = kept;
}

static void change_op(Mutation *m, Onnx__NodeProto *n) {
    static char *const ops[] = {"Add",      "Conv",      "Reshape",       "Gather",
                                "Concat",   "Loop",      "Scan",          "If",
                                "Resize",   "LSTM",      "Einsum",        "Split",
                                "TopK",     "Pad",       "Slice",         "Transpose",
                                "MatMul",   "Attention", "MaxPool",       "Where",
                                "Cast",     "OneHot",    "RoiAlign",      "",
                                "Constant", "ScatterND", "ConvTranspose", "BatchNormalization"};
    say(m, "op", n->op_type);
    n->op_type = ops[dice(m->dice, sizeof ops / sizeof *ops)];
    say(m, "becomes", n->op_type);
}

/* ---- what the graph declares ---- */

static void change_dims(Mutation *m, Onnx__TypeProto__Tensor *t) {
    Onnx__TensorShapeProto *s = t->shape;
    if (!s || dice(m->dice, 8) == 0) {
        t->shape = NULL;
        return;
    }
    if (s->n_dim && dice(m->dice, 3) == 0) {
        s->n_dim--;
        return;
    }
    if (dice(m->dice, 4) == 0) {
        Onnx__TensorShapeProto__Dimension **longer = calloc(s->n_dim + 1, sizeof *longer);
        if (s->n_dim) memcpy(longer, s->dim, s->n_dim * sizeof *longer);
        longer[s->n_dim] = malloc(sizeof **longer);
        onnx__tensor_shape_proto__dimension__init(longer[s->n_dim]);
        s->dim = longer, s->n_dim++;
    }
    if (!s->n_dim) return;
    Onnx__TensorShapeProto__Dimension *d = s->dim[dice(m->dice, (uint32_t)s->n_dim)];
    d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
    d->dim_value = odd_number(m);
}

static void change_value(Mutation *m, Onnx__ValueInfoProto *v) {
    Onnx__TypeProto *type = v->type;
    say(m, "declaration of", v->name);
    if (!type || dice(m->dice, 16) == 0) {
        v->type = NULL;
    } else if (type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE) {
        if (dice(m->dice, 3) == 0) {
            type->tensor_type->has_elem_type = 1;
            type->tensor_type->elem_type = (int32_t)dice(m->dice, 26);
        } else
            change_dims(m, type->tensor_type);
    }
}

static void change_tensor(Mutation *m, Onnx__TensorProto *t) {
    say(m, "tensor", t->name);
    switch (dice(m->dice, 6)) {
    case 0:
        t->has_data_type = 1;
        t->data_type = (int32_t)dice(m->dice, 26);
        break;
    case 1:
        if (t->n_dims) t->dims[dice(m->dice, (uint32_t)t->n_dims)] = odd_number(m);
        break;
    case 2:
        if (t->n_dims) t->n_dims--;
        break;
    case 3:
        if (t->raw_data.len) t->raw_data.len = dice(m->dice, (uint32_t)t->raw_data.len);
        t->n_float_data /= 2, t->n_int64_data /= 2;
        break;
    case 4: /* another number, of the same type */
        if (t->n_int64_data)
            t->int64_data[dice(m->dice, (uint32_t)t->n_int64_data)] = odd_number(m);
        if (t->has_raw_data && t->raw_data.len >= 8) {
            int64_t x = odd_number(m);
            memcpy(t->raw_data.data + 8 * dice(m->dice, (uint32_t)(t->raw_data.len / 8)), &x, 8);
        }
        break;
    default:
        t->has_data_location = 1;
        t->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    }
}

static void change_model(Mutation *m) {
    Onnx__ModelProto *p = m->model;
    say(m, "the model's head", "");
    switch (dice(m->dice, 5)) {
    case 0:
        p->n_opset_import = 0;
        break;
    case 1:
        p->graph->n_output = 0;
        break;
    case 2:
        p->graph->n_node = 0;
        break;
    default:
        if (!p->n_opset_import) break;
        p->opset_import[0]->has_version = 1;
        p->opset_import[0]->version = 1 + dice(m->dice, 26);
    }
}

/* ---- the place, and the change ---- */

static void descend(Mutation *m) {
    Place *p = &m->place;
    for (int depth = 0; p->n_nodes && depth < 4; depth++) {
        const Onnx__NodeProto *n = p->nodes[dice(m->dice, (uint32_t)p->n_nodes)];
        if (!n->n_attribute || dice(m->dice, 3) == 0) return;
        Onnx__GraphProto *body = n->attribute[dice(m->dice, (uint32_t)n->n_attribute)]->g;
        if (!body) return;
        *p = (Place){body, body->node, body->n_node};
    }
}

static void change_node(Mutation *m) {
    Onnx__NodeProto *n = m->place.nodes[dice(m->dice, (uint32_t)m->place.n_nodes)];
    switch (dice(m->dice, 12)) {
    case 0:
    case 1:
    case 2:
        change_inputs(m, n);
        break;
    case 3:
        change_outputs(m, n);
        break;
    case 4:
        change_order(m);
        break;
    case 5:
        change_op(m, n);
        break;
    default:
        change_attribute(m, n);
    }
}

static void change(Mutation *m) {
    Onnx__GraphProto *main_graph = m->model->graph, *g;
    m->place = (Place){main_graph, main_graph->node, main_graph->n_node};
    if (m->model->n_functions && dice(m->dice, 3) == 0) {
        const Onnx__FunctionProto *f =
            m->model->functions[dice(m->dice, (uint32_t)m->model->n_functions)];
        m->place = (Place){NULL, f->node, f->n_node};
    }
    descend(m);
    g = m->place.graph;
    uint32_t what = dice(m->dice, 16);
    if (what == 0)
        change_model(m);
    else if (what < 6 && g && g->n_input)
        change_value(m, g->input[dice(m->dice, (uint32_t)g->n_input)]);
    else if (what < 7 && g && g->n_output)
        change_value(m, g->output[dice(m->dice, (uint32_t)g->n_output)]);
    else if (what < 9 && g && g->n_initializer)
        change_tensor(m, g->initializer[dice(m->dice, (uint32_t)g->n_initializer)]);
    else if (m->place.n_nodes)
        change_node(m);
}

void mutate(Onnx__ModelProto *model, Dice *d, char *text, size_t size) {
    Mutation m = {.model = model, .dice = d, .text = text, .size = size};
    *text = 0;
    for (uint32_t n = 1 + dice(d, 3); n > 0; n--) change(&m);
}
