/* ops_signal.c - DFT, STFT, the window functions and MelWeightMatrix.
 *
 * A transform is one matrix product. A complex number is a pair (real, imaginary) on the last axis,
 * so a transform of n numbers of c parts into m of e parts is x[.., n*c] times a matrix [n*c, m*e]
 * of cosines; where it is small it folds to a constant, else it is computed from coordinates. The
 * gradient is the product's. Long transforms of a length that factors go in two steps (Cooley and
 * Tukey): a length of a * b costs a + b per element, not a * b. */
#include "import.h"
#include <math.h>
#include <string.h>

enum {
    MAX_DIRECT = 512, /* a longer transform is split where its length has a divisor */
    MAX_LENGTH = 1 << 24
};
static const double PI = 3.14159265358979323846;

/* ---------------------------------------------------------------- the matrix of a transform */

typedef struct Transform {
    int64_t in, in_parts, out, out_parts, length; /* parts: 1 real, 2 complex */
    bool inverse, mirrored; /* mirrored: the missing half of the input is the conjugate */
} Transform;

/* cos(pi / 2 * units / length) at [in, in_parts, out, out_parts]: units = 4 (j k mod length) +-
 * length turns cosine into sine where one part is imaginary. */
static Value transform_matrix(ImportNode *n, const Transform *t, DType d) {
    int64_t dims[] = {t->in, t->in_parts, t->out, t->out_parts};
    TypeId type = graph_type_of(n->g, DT_I64, 4, dims);
    int64_t length = t->length > 0 ? t->length : 1;
    RuleBind b[] = {{"j", build_iota(n->g, type, 0)},
                    {"c", build_iota(n->g, type, 1)},
                    {"k", build_iota(n->g, type, 2)},
                    {"e", build_iota(n->g, type, 3)},
                    {"l", node_number(n, DT_I64, (double)length)},
                    {"s", node_number(n, DT_I64, (double)(t->inverse ? length : -length))},
                    {"f", node_number(n, DT_I64, 4)}};
    Value units = node_rule(n, "(add (mul f (irem (mul j k) l)) (mul s (sub c e)))", b, 7);
    double scale = t->inverse ? 1 / (double)length : 1;
    RuleBind m[] = {{"u", build_cast(n->g, units, DT_F64)},
                    {"w", node_number(n, DT_F64, PI / 2 / (double)length)},
                    {"g", node_number(n, DT_F64, scale)},
                    {"j", b[0].value},
                    {"l", b[4].value}};
    Value a = node_rule(n, "(mul g (cos (mul u w)))", m, 5);
    if (t->mirrored) {
        m[0].value = a;
        a = node_rule(n, "(where (or (eq j 0) (eq (mul j 2) l)) u (mul u 2))", m, 5);
    }
    return build_cast(n->g, a, d);
}

/* x[.., in, in_parts] -> [.., out, out_parts] */
static Value transform_last(ImportNode *n, Value x, const Transform *t) {
    Graph *g = n->g;
    if (!x) return 0;
    Type type = *node_type(n, x);
    int64_t rows = 1;
    for (uint32_t i = 0; i + 2 < type.rank; i++) rows *= type.dims[i];
    int64_t wide = t->in * t->in_parts, narrow = t->out * t->out_parts;
    Value a =
        build_reshape(g, transform_matrix(n, t, (DType)type.dtype), 2, (int64_t[]){wide, narrow});
    Value y = build_dot(g, build_reshape(g, x, 2, (int64_t[]){rows, wide}), a, false, false);
    type.dims[type.rank - 2] = t->out, type.dims[type.rank - 1] = t->out_parts;
    return build_reshape(g, y, type.rank, type.dims);
}

/* ---------------------------------------------------------------- long transforms */

/* The divisor nearest to the root, or 1. */
static int64_t divisor(int64_t length) {
    int64_t best = 1;
    for (int64_t i = 2; i * i <= length; i++)
        if (length % i == 0) best = i;
    return best;
}

/* x[rows, b, a.., 2] times e^(-+ 2 pi i q p / length), q the first and p the second of two axes */
static Value twiddle(ImportNode *n, Value x, int64_t q, int64_t p, bool inverse) {
    Graph *g = n->g;
    Type t = *node_type(n, x);
    TypeId type = graph_type_of(g, DT_I64, 4, (int64_t[]){1, q, p, 1});
    double step = 2 * PI / (double)(q * p) * (inverse ? 1 : -1);
    RuleBind b[] = {{"q", build_iota(g, type, 1)},
                    {"p", build_iota(g, type, 2)},
                    {"s", node_number(n, DT_F64, step)}};
    Value angle = build_cast(g, node_rule(n, "(mul q p)", b, 2), DT_F64);
    angle = build_binary(g, OP_mul, angle, b[2].value);
    RuleBind m[] = {
        {"c", build_cast(g, build_unary(g, OP_cos, angle), (DType)t.dtype)},
        {"s", build_cast(g, build_unary(g, OP_sin, angle), (DType)t.dtype)},
        {"r", build_slice(g, x, (int64_t[]){0, 0, 0, 0}, (int64_t[]){t.dims[0], q, p, 1}, NULL)},
        {"i", build_slice(g, x, (int64_t[]){0, 0, 0, 1}, (int64_t[]){t.dims[0], q, p, 1}, NULL)}};
    Value parts[] = {node_rule(n, "(sub (mul r c) (mul i s))", m, 4),
                     node_rule(n, "(add (mul r s) (mul i c))", m, 4)};
    return parts[0] && parts[1] ? build_concat(g, parts, 2, 3) : 0;
}

/* All `length` outputs of x[rows, length, parts]: with j = j1 b + j2 and k = k2 a + k1, transforms
 * of length a over j1, a turn by j2 k1 / length, transforms of length b over j2. */
static Value transform_whole(ImportNode *n, Value x, int64_t length, bool inverse) {
    Graph *g = n->g;
    if (!x) return 0;
    Type t = *node_type(n, x);
    int64_t rows = t.dims[0], parts = t.dims[2], a = divisor(length), b = length / a;
    if (length <= MAX_DIRECT || a == 1)
        return transform_last(n, x, &(Transform){length, parts, length, 2, length, inverse, false});
    x = build_transpose(g, build_reshape(g, x, 4, (int64_t[]){rows, a, b, parts}),
                        (int64_t[]){0, 2, 1, 3});
    x = transform_whole(n, build_reshape(g, x, 3, (int64_t[]){rows * b, a, parts}), a, inverse);
    x = build_reshape(g, x, 4, (int64_t[]){rows, b, a, 2});
    x = x ? twiddle(n, x, b, a, inverse) : 0;
    x = build_transpose(g, x, (int64_t[]){0, 2, 1, 3});
    x = transform_whole(n, build_reshape(g, x, 3, (int64_t[]){rows * a, b, 2}), b, inverse);
    x = build_transpose(g, build_reshape(g, x, 4, (int64_t[]){rows, a, b, 2}),
                        (int64_t[]){0, 2, 1, 3});
    return build_reshape(g, x, 3, (int64_t[]){rows, length, 2});
}

/* x[.., s, c] cut or padded to `extent` numbers */
static Value resized(ImportNode *n, Value x, int64_t extent) {
    Type t = *node_type(n, x);
    int64_t low[MAX_RANK] = {0}, high[MAX_RANK] = {0};
    high[t.rank - 2] = extent - t.dims[t.rank - 2];
    return build_pad(n->g, x, low, high, NULL, 0);
}

/* The transform of x[.., in, parts] along its last axis but one; as many of the input as it reads.
 */
static Value transform_any(ImportNode *n, Value x, Transform t) {
    Graph *g = n->g;
    Type type = *node_type(n, x);
    int64_t have = type.dims[type.rank - 2], rows = 1;
    int64_t reads = t.mirrored ? t.length / 2 + 1 : t.length;
    t.in_parts = type.dims[type.rank - 1];
    t.in = have < reads ? have : reads;
    if (t.length <= MAX_DIRECT || t.mirrored || divisor(t.length) == 1)
        return transform_last(n, resized(n, x, t.in), &t);
    for (uint32_t i = 0; i + 2 < type.rank; i++) rows *= type.dims[i];
    x = build_reshape(g, resized(n, x, t.length), 3, (int64_t[]){rows, t.length, t.in_parts});
    x = transform_whole(n, x, t.length, t.inverse);
    x = build_slice(g, x, (int64_t[]){0, 0, 0}, (int64_t[]){rows, t.out, 2}, NULL);
    type.dims[type.rank - 2] = t.out, type.dims[type.rank - 1] = 2;
    return build_reshape(g, x, type.rank, type.dims);
}

/* ---------------------------------------------------------------- DFT */

static bool known_number(ImportNode *n, uint32_t input, int64_t otherwise, int64_t *value) {
    const int64_t *list;
    uint32_t count;
    if (!node_ints_at(n, input, &list, &count)) return false;
    *value = list && count ? list[0] : otherwise;
    return true;
}

static bool is_signal(ImportNode *n, Value x, const Type *t) {
    bool fits = t->rank >= 2 && (t->dims[t->rank - 1] == 1 || t->dims[t->rank - 1] == 2) &&
                dtype_info[t->dtype].cls == CLASS_FLT;
    if (!fits)
        node_fail_shapes(n, "%s is no signal: the last axis holds 1 or 2 parts",
                         type_text(n->g, node_type(n, x)));
    return fits;
}

/* DFT-17 has its axis as an attribute, later ones as an input. */
void import_dft(ImportNode *n) {
    Value x = n->in[0];
    Type t = *node_type(n, x);
    int64_t axis, length, written = -2, perm[MAX_RANK];
    if (!is_signal(n, x, &t)) return;
    if (n->opset < 20)
        written = node_int(n, "axis", 1);
    else if (!known_number(n, 2, -2, &written))
        return;
    bool inverse = node_int(n, "inverse", 0) != 0, onesided = node_int(n, "onesided", 0) != 0;
    if (!node_axis(n, written, t.rank, &axis)) return;
    int64_t natural = inverse && onesided ? 2 * (t.dims[axis] - 1) : t.dims[axis];
    if (!known_number(n, 1, natural, &length)) return;
    if (axis == t.rank - 1 || length < 1 || length > MAX_LENGTH) {
        node_fail_shapes(n, "a transform of length %lld along axis %lld of %s", (long long)length,
                         (long long)axis, type_text(n->g, &t));
        return;
    }
    for (uint32_t i = 0; i < t.rank; i++) perm[i] = i;
    perm[axis] = t.rank - 2, perm[t.rank - 2] = axis;
    Transform f = {.out = onesided && !inverse ? length / 2 + 1 : length,
                   .out_parts = onesided && inverse ? 1 : 2,
                   .length = length,
                   .inverse = inverse,
                   .mirrored = onesided && inverse};
    Value y = transform_any(n, build_transpose(n->g, x, perm), f);
    n->out[0] = y ? build_transpose(n->g, y, perm) : 0;
}

/* ---------------------------------------------------------------- STFT */

static bool frame_lengths(ImportNode *n, int64_t samples, int64_t *step, int64_t *length) {
    Value window = node_in(n, 2);
    int64_t own = window ? type_elems(node_type(n, window)) : samples;
    if (!known_number(n, 1, 0, step) || !known_number(n, 3, own, length)) return false;
    if (*step > 0 && *length > 0 && *length <= samples) return true;
    node_fail_shapes(n, "frames of %lld in steps of %lld over %lld samples", (long long)*length,
                     (long long)*step, (long long)samples);
    return false;
}

/* signal[B,T,c] -> frames[B,F,L,c], each times the window, -> their transforms [B,F,bins,2] */
void import_stft(ImportNode *n) {
    Graph *g = n->g;
    Type t = *node_type(n, n->in[0]);
    int64_t step, length, one = 1, zero = 0;
    if (t.rank == 2) {
        t.rank = 3, t.dims[2] = 1;
    }
    Value signal = build_reshape(g, n->in[0], t.rank, t.dims), window = node_in(n, 2);
    if (t.rank != 3 || !is_signal(n, signal, &t) || !frame_lengths(n, t.dims[1], &step, &length)) {
        if (t.rank != 3) node_fail_shapes(n, "a signal has rank 3: [batch, samples, parts]");
        return;
    }
    int64_t own = window ? type_elems(node_type(n, window)) : length;
    if (own > length) own = length;
    int64_t frames = (t.dims[1] - length) / step + 1, high = (frames - 1) * step + own - t.dims[1];
    AttrField fields[] = {attr_ints(A_KERNEL, &own, 1),    attr_ints(A_STRIDES, &step, 1),
                          attr_ints(A_DILATIONS, &one, 1), attr_ints(A_LOW, &zero, 1),
                          attr_ints(A_HIGH, &high, 1),     attr_float(A_VALUE, 0)};
    Value x = build_transpose(g, signal, (int64_t[]){0, 2, 1});
    x = graph_emit(g, OP_window, &x, 1, graph_attr(g, fields, 6), 0);
    if (x && window) {
        window = build_reshape(g, window, 1, (int64_t[]){type_elems(node_type(n, window))});
        x = build_binary(g, OP_mul, x, build_slice(g, window, &zero, &own, NULL));
    }
    x = build_transpose(g, x, (int64_t[]){0, 2, 3, 1});
    bool onesided = node_int(n, "onesided", 1) != 0;
    Transform f = {.out = onesided ? length / 2 + 1 : length, .out_parts = 2, .length = length};
    n->out[0] = x ? transform_any(n, x, f) : 0;
}

/* ---------------------------------------------------------------- windows */

/* a0 - a1 cos(2 pi i / n) + a2 cos(4 pi i / n), n the size or, where not periodic, one less */
static void import_window(ImportNode *n, double a0, double a1, double a2) {
    const int64_t *list;
    uint32_t count;
    if (!node_ints_at(n, 0, &list, &count)) return;
    DType d = dtype_from_onnx((int)node_int(n, "output_datatype", 1));
    if (count != 1 || list[0] < 0 || d == DT_NONE) {
        node_fail(n, d == DT_NONE ? "output_datatype" : "size", "is not supported");
        return;
    }
    int64_t period = node_int(n, "periodic", 1) ? list[0] : list[0] - 1;
    double turn = 2 * PI / (double)(period > 0 ? period : 1);
    RuleBind b[] = {{"i", build_iota(n->g, graph_type_of(n->g, DT_F64, 1, list), 0)},
                    {"t", node_number(n, DT_F64, turn)},
                    {"a", node_number(n, DT_F64, a0)},
                    {"b", node_number(n, DT_F64, a1)},
                    {"c", node_number(n, DT_F64, a2)}};
    Value w = node_rule(
        n, "(let p (mul i t) (add (sub a (mul b (cos p))) (mul c (cos (mul 2 p)))))", b, 5);
    n->out[0] = build_cast(n->g, w, d);
}

void import_hann_window(ImportNode *n) { import_window(n, 0.5, 0.5, 0); }
void import_hamming_window(ImportNode *n) { import_window(n, 25.0 / 46, 21.0 / 46, 0); }
void import_blackman_window(ImportNode *n) { import_window(n, 0.42, 0.5, 0.08); }

/* ---------------------------------------------------------------- MelWeightMatrix */

static double mel_of(double hertz) { return 2595 * log10(1 + hertz / 700); }
static double hertz_of(double mel) { return 700 * (pow(10, mel / 2595) - 1); }

/* Triangle i rises from edge i to i + 1 and falls to i + 2; edges are spaced evenly in mels and
 * rounded down to bins of the spectrum. */
static void mel_triangle(float *column, int64_t bins, int64_t stride, const int64_t *edge) {
    int64_t rise = edge[1] - edge[0], fall = edge[2] - edge[1];
    for (int64_t j = 0; j < bins; j++) {
        double up = rise ? (double)(j - edge[0]) / (double)rise : 1,
               down = fall ? (double)(edge[2] - j) / (double)fall : 0;
        bool rises = j >= edge[0] && j <= edge[1], falls = j >= edge[1] && j < edge[2];
        column[j * stride] = (float)(falls ? down : rises ? up : 0);
    }
}

static bool mel_numbers(ImportNode *n, double *numbers) {
    for (uint32_t i = 0; i < 5; i++) {
        Tensor t;
        if (!node_known(n, n->in[i], &t)) {
            node_fail_dynamic(n);
            return false;
        }
        if (type_elems(&t.type) != 1) {
            node_fail_shapes(n, "input %u is no single number", i + 1);
            return false;
        }
        numbers[i] = dtype_info[t.type.dtype].cls == CLASS_FLT ? t.u.f[0] : (double)t.u.i[0];
    }
    return true;
}

void import_mel_weight_matrix(ImportNode *n) {
    double number[5];
    if (!mel_numbers(n, number)) return;
    DType d = dtype_from_onnx((int)node_int(n, "output_datatype", 1));
    bool fits = number[0] >= 1 && number[0] <= 65536 && number[1] >= 1 && number[1] <= 1 << 24 &&
                number[2] > 0 && number[3] >= 0 && number[4] >= number[3] && d != DT_NONE;
    int64_t mels = fits ? (int64_t)number[0] : 0, bins = fits ? (int64_t)number[1] / 2 + 1 : 0;
    if (!fits || mels * bins > 1 << 26) {
        node_fail_shapes(n, "%g mel bins over a transform of %g", number[0], number[1]);
        return;
    }
    double low = mel_of(number[3]), step = (mel_of(number[4]) - low) / (double)(mels + 2);
    int64_t *edges = arena_alloc(n->arena, ((size_t)mels + 2) * sizeof *edges);
    for (int64_t i = 0; i < mels + 2; i++)
        edges[i] = (int64_t)fmin(
            floor((number[1] + 1) * hertz_of(low + (double)i * step) / number[2]), 1e9);
    float *weights = arena_alloc(n->arena, (size_t)(mels * bins) * sizeof *weights);
    for (int64_t i = 0; i < mels; i++) mel_triangle(weights + i, bins, mels, edges + i);
    n->out[0] = build_cast(
        n->g, build_const(n->g, graph_type_of(n->g, DT_F32, 2, (int64_t[]){bins, mels}), weights),
        d);
}
