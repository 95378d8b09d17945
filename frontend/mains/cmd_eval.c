/* cmd_eval.c - `trainc eval MODEL.onnx`: the forward graph alone, once, compiled for the cpu or
 * interpreted.
 *
 * Dimensions that no --dim binds come from the data. Outputs are written as .npy (-o DIR), or
 * compared with reference outputs
 * (--expect): |got - want| <= atol + rtol * |want| everywhere, NaN equal to NaN. */
#include "eval_engine.h"
#include "feed.h"
#include <math.h>
#include <string.h>

static int fail_out(const Fail *f) {
    fprintf(stderr, "trainc: %s\n", f->text);
    return f->status ? (int)f->status : 5;
}

static int open_feed(const NamedFile *file, Feed *feed, Fail *fail) {
    trainc_symbol any = {.name = file->name, .cls = TRAINC_SYM_INPUT, .dtype = TRAINC_F32};
    return feed_open(feed, &any, file->file, fail) ? fail_out(fail) : 0;
}

static Type type_of(const trainc_tensor *t) {
    Type type = {.dtype = (uint8_t)t->dtype, .rank = (uint8_t)t->rank};
    for (int i = 0; i < t->rank; i++) type.dims[i] = t->dims[i];
    return type;
}

static void bind_dims(Options *o, const EvalInput *in) {
    for (uint32_t a = 0; a < in->type.rank; a++) {
        o->dims = arena_grow(o->arena, o->dims, o->n_dims * sizeof *o->dims,
                             (o->n_dims + 1) * sizeof *o->dims);
        o->dims[o->n_dims++] =
            (DimBinding){arena_printf(o->arena, "%s[%u]", in->name, a), in->type.dims[a]};
    }
}

/* ---- outputs ---- */

static int write_npy(const Options *o, const EvalOutput *out) {
    const DTypeInfo *d = &dtype_info[out->type.dtype];
    char *name = arena_strdup(o->arena, out->name);
    for (char *c = name; *c; c++)
        if (*c == '/') *c = '_';
    const char *path = arena_printf(o->arena, "%s/%s.npy", o->out, name);
    char shape[256] = "", header[512];
    for (uint32_t i = 0; i < out->type.rank; i++)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%lld,",
                 (long long)out->type.dims[i]);
    int n = snprintf(header, sizeof header,
                     "{'descr': '%c%s', 'fortran_order': False, 'shape': (%s), }",
                     d->bytes > 1 ? '<' : '|', d->npy, shape);
    int padded = (n + 1 + 10 + 63) / 64 * 64 - 10;
    FILE *f = fopen(path, "wb");
    if (!f) {
        perror(path);
        return 5;
    }
    unsigned char magic[10] = {0x93,
                               'N',
                               'U',
                               'M',
                               'P',
                               'Y',
                               1,
                               0,
                               (unsigned char)(padded & 255),
                               (unsigned char)(padded >> 8)};
    bool ok = fwrite(magic, 1, 10, f) == 10 && fprintf(f, "%-*s\n", padded - 1, header) == padded;
    ok = ok && fwrite(out->bytes, 1, type_bytes(&out->type), f) == type_bytes(&out->type);
    if (fclose(f) || !ok) {
        fprintf(stderr, "trainc: cannot write %s\n", path);
        return 5;
    }
    printf("%s\n", path);
    return 0;
}

static double element(const Tensor *t, int64_t i) {
    return dtype_info[t->type.dtype].cls == CLASS_FLT ? t->u.f[i] : (double)t->u.i[i];
}

/* 0 where all elements agree; a line says how far they are apart */
static int compare(const Options *o, const EvalOutput *out, const Feed *want) {
    Type t = type_of(&want->tensor);
    if (!dims_equal(&t, &out->type)) {
        printf("%-30s FAIL: its shape is not that of the reference\n", out->name);
        return 1;
    }
    Tensor a = tensor_from_bytes(o->arena, out->type, out->bytes),
           b = tensor_from_bytes(o->arena, t, want->tensor.data);
    double worst = 0;
    int64_t bad = 0, n = type_elems(&t);
    for (int64_t i = 0; i < n; i++) {
        double x = element(&a, i), y = element(&b, i), d = fabs(x - y);
        if (x == y || (isnan(x) && isnan(y))) continue;
        if (!(d <= o->atol + o->rtol * fabs(y))) bad++;
        if (!(d <= worst)) worst = d;
    }
    printf("%-30s %s: largest error %.3g, %lld of %lld elements beyond tolerance\n", out->name,
           bad ? "FAIL" : "ok", worst, (long long)bad, (long long)n);
    return bad ? 1 : 0;
}

static int finish_output(const Options *o, const EvalOutput *outs, uint32_t n) {
    int status = 0;
    for (uint32_t i = 0; o->out && i < n && !status; i++) status = write_npy(o, &outs[i]);
    for (uint32_t e = 0; e < o->n_expect && status < 2; e++) {
        const EvalOutput *out = NULL;
        for (uint32_t i = 0; i < n; i++)
            if (!strcmp(outs[i].name, o->expect[e].name)) out = &outs[i];
        if (!out) {
            const char **names = arena_alloc(o->arena, (n + 1) * sizeof *names);
            for (uint32_t i = 0; i < n; i++) names[i] = outs[i].name;
            fprintf(stderr, "trainc: --expect %s: the model has no such output %s\n",
                    o->expect[e].name, did_you_mean(o->arena, o->expect[e].name, names, n));
            return 2;
        }
        Feed want = {0};
        Fail fail = {0};
        int opened = open_feed(&o->expect[e], &want, &fail);
        status = opened ? opened : status | compare(o, out, &want);
        feed_close(&want);
    }
    if (!o->out && !o->n_expect)
        for (uint32_t i = 0; i < n; i++)
            printf("%-30s %lld elements (-o DIR writes them, --expect compares)\n", outs[i].name,
                   (long long)type_elems(&outs[i].type));
    return status;
}

int command_eval(const Options *given) {
    Options o = *given;
    Feed *feeds = arena_alloc(o.arena, (o.n_data + 1) * sizeof *feeds);
    EvalInput *in = arena_alloc(o.arena, (o.n_data + 1) * sizeof *in);
    int status = 0;
    for (uint32_t i = 0; i < o.n_data && !status; i++) {
        Fail fail = {0};
        status = open_feed(&o.data[i], &feeds[i], &fail);
        if (status) break;
        in[i] = (EvalInput){o.data[i].name, type_of(&feeds[i].tensor), feeds[i].tensor.data};
        bind_dims(&o, &in[i]);
    }
    EvalOutput *outs = NULL;
    uint32_t n = 0;
    if (!status)
        status = !strcmp(o.engine, "interp") ? eval_interpreted(&o, in, o.n_data, &outs, &n)
                                             : eval_compiled(&o, in, o.n_data, &outs, &n);
    if (!status && o.out) status = make_folders(o.out);
    if (!status) status = finish_output(&o, outs, n);
    for (uint32_t i = 0; i < o.n_data; i++) feed_close(&feeds[i]);
    return status;
}
