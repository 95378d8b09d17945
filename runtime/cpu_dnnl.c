/* cpu_dnnl.c - one oneDNN primitive per contraction launch, made at open and bound to its buffers
 * in the arena.
 *
 * A descriptor of trainc_program.h becomes a matmul (batch, m, n, k with any strides; a batch
 * stride of 0 is oneDNN's broadcast extent 1; a result that is column-major is computed as its
 * transpose) or one of the three convolutions in plain layout. Scratch is the caller's (user
 * scratchpad), so running a primitive reserves no buffer. A reference implementation is refused:
 * the generated loops are faster and fuse the epilogue. A packed operand has the layout that the
 * primitive itself asks for; both the packing launch and its reader derive it from the same
 * descriptor, so they agree or both fall back. */
#include "cpu_dnnl.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if __has_include(<dnnl.h>)
#include <dnnl.h>

typedef struct Api {
#define DNNL(name) __typeof__(dnnl_##name) *name;
#include "dnnl_api.def"
#undef DNNL
} Api;
struct Onednn {
    void *lib;
    Api api;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
};
enum { MAX_ARGS = 4 };
struct OnednnCall {
    const Onednn *o;
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[MAX_ARGS];
    int n_args;
    uint8_t from[3]; /* of the first three: the launch's argument, and where in it they begin */
    uint64_t skip[3];
    dnnl_memory_desc_t scratch;
    uint64_t scratch_bytes;
};

static bool load(Api *api, void *lib) {
    const struct {
        const char *name;
        void *slot;
    } rows[] = {
#define DNNL(name) {"dnnl_" #name, (void *)&api->name},
#include "dnnl_api.def"
#undef DNNL
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        void *p = dlsym(lib, rows[i].name);
        if (!p) return false;
        memcpy(rows[i].slot, &p, sizeof p);
    }
    return true;
}

Onednn *onednn_open(void) {
    Onednn *o = calloc(1, sizeof *o);
    if (!o) return NULL;
    o->lib = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);
    bool good = o->lib && load(&o->api, o->lib) && o->api.version()->major == DNNL_VERSION_MAJOR &&
                DNNL_VERSION_MAJOR == 2;
    good = good && o->api.engine_create(&o->engine, dnnl_cpu, 0) == dnnl_success;
    good = good &&
           o->api.stream_create(&o->stream, o->engine, dnnl_stream_default_flags) == dnnl_success;
    if (good) return o;
    onednn_close(o);
    return NULL;
}

void onednn_close(Onednn *o) {
    if (!o) return;
    if (o->stream) o->api.stream_destroy(o->stream);
    if (o->engine) o->api.engine_destroy(o->engine);
    free(o); /* the library stays: its threads and caches may outlive a step */
}

const char *onednn_version(const Onednn *o, char *buf, size_t cap) {
    const dnnl_version_t *v = o->api.version();
    snprintf(buf, cap, "%d.%d.%d", v->major, v->minor, v->patch);
    return buf;
}

static dnnl_data_type_t type_of(uint8_t dtype) {
    switch (dtype) {
    case TRAINC_F32:
        return dnnl_f32;
    case TRAINC_F16:
        return dnnl_f16;
    case TRAINC_BF16:
        return dnnl_bf16;
    default:
        return dnnl_data_type_undef;
    }
}

/* ---------------------------------------------------------------- products */

typedef struct Operand {
    int64_t dims[3], strides[3];
    int64_t offset;
    uint8_t dtype, arg, is_packed;
} Operand;
typedef struct Product {
    Operand a, b, d;
} Product;

/* D = A B, or D^T = B^T A^T where D's columns are the contiguous ones. */
static Product product_of(const trainc_contraction *c) {
    const int64_t *a = c->a_strides, *b = c->b_strides, *d = c->d_strides;
    Product p = {{{a[0] ? c->batch : 1, c->m, c->k},
                  {a[0], a[1], a[2]},
                  c->a_offset,
                  c->a_dtype,
                  c->a_arg,
                  c->packed & 1},
                 {{b[0] ? c->batch : 1, c->k, c->n},
                  {b[0], b[1], b[2]},
                  c->b_offset,
                  c->b_dtype,
                  c->b_arg,
                  c->packed >> 1 & 1},
                 {{c->batch, c->m, c->n}, {d[0], d[1], d[2]}, 0, c->d_dtype, c->d_arg, 0}};
    if (d[2] == 1 || c->n == 1 || d[1] != 1) return p;
    Product t = {{{p.b.dims[0], c->n, c->k},
                  {b[0], b[2], b[1]},
                  c->b_offset,
                  c->b_dtype,
                  c->b_arg,
                  p.b.is_packed},
                 {{p.a.dims[0], c->k, c->m},
                  {a[0], a[2], a[1]},
                  c->a_offset,
                  c->a_dtype,
                  c->a_arg,
                  p.a.is_packed},
                 {{c->batch, c->n, c->m}, {d[0], d[2], d[1]}, 0, c->d_dtype, c->d_arg, 0}};
    return t;
}

/* Strides of extents of 1 mean nothing; oneDNN wants them plausible. */
static bool operand_desc(const Api *api, const Operand *x, int n_dims, bool as_packed,
                         dnnl_memory_desc_t *md) {
    dnnl_dims_t dims, strides;
    const int64_t *from = x->dims + (3 - n_dims), *at = x->strides + (3 - n_dims);
    int64_t span = 1;
    for (int i = n_dims - 1; i >= 0; i--) {
        dims[i] = from[i];
        strides[i] = at[i];
        if (dims[i] > 1 && strides[i] <= 0) return false;
        span = dims[i] > 1 && strides[i] * dims[i] > span ? strides[i] * dims[i] : span;
    }
    for (int i = 0; i < n_dims; i++)
        if (dims[i] == 1) strides[i] = i == n_dims - 1 ? 1 : span;
    dnnl_data_type_t t = type_of(x->dtype);
    if (as_packed)
        return api->memory_desc_init_by_tag(md, n_dims, dims, t, dnnl_format_tag_any) ==
               dnnl_success;
    return api->memory_desc_init_by_strides(md, n_dims, dims, t, strides) == dnnl_success;
}

typedef struct Chosen { /* operands a, b and result, in the order of the primitive */
    dnnl_primitive_desc_t pd;
    dnnl_memory_desc_t plain[3];
    dnnl_query_t query[3];
    int arg_id[3];
    uint8_t arg[3], packed[3], dtype[3];
    int64_t offset[3];
} Chosen;

static bool is_fast(const Onednn *o, dnnl_primitive_desc_t pd) {
    const char *name = "ref";
    return o->api.primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) == dnnl_success &&
           strstr(name, "ref") == NULL;
}

static dnnl_primitive_desc_t describe(const Onednn *o, const void *op, dnnl_primitive_desc_t hint) {
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    if (o->api.primitive_attr_create(&attr) != dnnl_success) return NULL;
    if (o->api.primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) !=
            dnnl_success ||
        o->api.primitive_desc_create(&pd, op, attr, o->engine, hint) != dnnl_success)
        pd = NULL;
    o->api.primitive_attr_destroy(attr);
    return pd;
}

static bool choose_product(const Onednn *o, const trainc_contraction *c, Chosen *x) {
    Product p = product_of(c);
    const Operand *operands[3] = {&p.a, &p.b, &p.d};
    static const dnnl_query_t query[3] = {dnnl_query_src_md, dnnl_query_weights_md,
                                          dnnl_query_dst_md};
    static const int id[3] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    int n_dims = c->batch == 1 ? 2 : 3;
    dnnl_memory_desc_t asked[3];
    dnnl_matmul_desc_t desc;
    for (int i = 0; i < 3; i++) {
        if (!operand_desc(&o->api, operands[i], n_dims, false, &x->plain[i]) ||
            !operand_desc(&o->api, operands[i], n_dims, operands[i]->is_packed, &asked[i]))
            return false;
        x->query[i] = query[i];
        x->arg_id[i] = id[i];
        x->arg[i] = operands[i]->arg;
        x->packed[i] = operands[i]->is_packed;
        x->offset[i] = operands[i]->offset;
        x->dtype[i] = operands[i]->dtype;
    }
    if (o->api.matmul_desc_init(&desc, &asked[0], &asked[1], NULL, &asked[2]) != dnnl_success)
        return false;
    x->pd = describe(o, &desc, NULL);
    return x->pd != NULL;
}

/* ---------------------------------------------------------------- convolutions */

static bool plain_desc(const Api *api, const int64_t *dims, int n, uint8_t dtype,
                       dnnl_memory_desc_t *md) {
    dnnl_dims_t d, strides;
    int64_t step = 1;
    for (int i = n - 1; i >= 0; i--) {
        d[i] = dims[i];
        strides[i] = step;
        step *= dims[i];
    }
    return api->memory_desc_init_by_strides(md, n, d, type_of(dtype), strides) == dnnl_success;
}

/* Weights [O, C/G, k..] are [G, O/G, C/G, k..] to oneDNN where there are groups: the same bytes. */
static int grouped_dims(const trainc_contraction *c, int64_t out[6]) {
    int n = 0;
    if (c->groups > 1) {
        out[n++] = c->groups;
        out[n++] = c->w_dims[0] / c->groups;
    } else {
        out[n++] = c->w_dims[0];
    }
    for (int i = 1; i < c->rank + 2; i++) out[n++] = c->w_dims[i];
    return n;
}

typedef struct Window {
    dnnl_dims_t strides, dilations, low, high;
} Window; /* oneDNN counts dilation from 0 */

static Window window_of(const trainc_contraction *c) {
    Window w = {{0}, {0}, {0}, {0}};
    for (int i = 0; i < c->rank; i++) {
        w.strides[i] = c->strides[i];
        w.dilations[i] = c->dilations[i] - 1;
        w.low[i] = c->low[i];
        w.high[i] = c->high[i];
    }
    return w;
}

/* The descriptor of the forward pass, which the two backward ones take as a hint; then that of
 * `kind` itself. */
static dnnl_primitive_desc_t convolution(const Onednn *o, int kind, const Window *w,
                                         const dnnl_memory_desc_t *x, const dnnl_memory_desc_t *k,
                                         const dnnl_memory_desc_t *y) {
    dnnl_convolution_desc_t forward, desc;
    if (o->api.dilated_convolution_forward_desc_init(
            &forward, dnnl_forward_training, dnnl_convolution_direct, x, k, NULL, y, w->strides,
            w->dilations, w->low, w->high) != dnnl_success)
        return NULL;
    dnnl_primitive_desc_t hint = describe(o, &forward, NULL), pd = NULL;
    if (!hint || kind == 1) return hint;
    dnnl_status_t s =
        kind == 2
            ? o->api.dilated_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, x,
                                                                 k, y, w->strides, w->dilations,
                                                                 w->low, w->high)
            : o->api.dilated_convolution_backward_weights_desc_init(&desc, dnnl_convolution_direct,
                                                                    x, k, NULL, y, w->strides,
                                                                    w->dilations, w->low, w->high);
    if (s == dnnl_success) pd = describe(o, &desc, hint);
    o->api.primitive_desc_destroy(hint);
    return pd;
}

/* Operands a, b and result of the three: x w y | dy w dx | x dy dw. */
static bool choose_convolution(const Onednn *o, const trainc_contraction *c, Chosen *x) {
    static const int ids[3][3] = {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
                                  {DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC},
                                  {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS}};
    static const uint8_t role[3][3] = {
        {0, 1, 2}, {2, 1, 0}, {0, 2, 1}}; /* which of x, w, y each operand is */
    int64_t w_dims[6];
    if (c->packed || c->rank < 1 || c->rank > 3) return false;
    int n_w = grouped_dims(c, w_dims), k = c->kind - 1;
    const int64_t *dims[3] = {c->x_dims, w_dims, c->y_dims};
    const int n_dims[3] = {c->rank + 2, n_w, c->rank + 2};
    const uint8_t dtypes[3] = {c->a_dtype, c->b_dtype, c->d_dtype},
                  args[3] = {c->a_arg, c->b_arg, c->d_arg};
    dnnl_memory_desc_t md[3];
    for (int i = 0; i < 3; i++) {
        int r = role[k][i];
        if (!plain_desc(&o->api, dims[r], n_dims[r], dtypes[i], &md[r])) return false;
        x->plain[i] = md[r];
        x->arg_id[i] = ids[k][i];
        x->arg[i] = args[i];
        x->dtype[i] = dtypes[i];
    }
    x->offset[0] = c->a_offset;
    x->offset[1] = c->b_offset;
    Window w = window_of(c);
    x->pd = convolution(o, c->kind, &w, &md[0], &md[1], &md[2]);
    return x->pd != NULL;
}

/* ---------------------------------------------------------------- binding */

static uint64_t element_bytes(uint8_t dtype) { return dtype == TRAINC_F32 ? 4 : 2; }

static bool bind(OnednnCall *call, int id, const dnnl_memory_desc_t *md, void *at) {
    dnnl_exec_arg_t *a = &call->args[call->n_args];
    a->arg = id;
    if (call->o->api.memory_create(&a->memory, md, call->o->engine, at) != dnnl_success)
        return false;
    call->n_args++;
    return true;
}

/* The layout that the primitive wants for a packed operand; NULL where it does not fit the room
 * that was planned. */
static const dnnl_memory_desc_t *packed_layout(const Onednn *o, const Chosen *x, int i,
                                               uint64_t room) {
    const dnnl_memory_desc_t *md = o->api.primitive_desc_query_md(x->pd, x->query[i], 0);
    return md && o->api.memory_desc_get_size(md) <= room ? md : NULL;
}

static bool make_product(OnednnCall *call, const trainc_contraction *c, const Chosen *x,
                         void *const *args) {
    const Onednn *o = call->o;
    const dnnl_memory_desc_t *md[3];
    for (int i = 0; i < 3; i++) {
        md[i] = x->packed[i] ? packed_layout(o, x, i, c->packed_bytes) : &x->plain[i];
        if (!md[i]) return false;
    }
    if (!is_fast(o, x->pd) || o->api.primitive_create(&call->primitive, x->pd) != dnnl_success)
        return false;
    for (int i = 0; i < 3; i++) {
        call->from[i] = x->arg[i];
        call->skip[i] = x->packed[i] ? 0 : (uint64_t)x->offset[i] * element_bytes(x->dtype[i]);
        if (!bind(call, x->arg_id[i], md[i], (char *)args[x->arg[i]] + call->skip[i])) return false;
    }
    const dnnl_memory_desc_t *scratch =
        o->api.primitive_desc_query_md(x->pd, dnnl_query_scratchpad_md, 0);
    if (scratch) {
        call->scratch = *scratch;
        call->scratch_bytes = o->api.memory_desc_get_size(scratch);
    }
    return true;
}

/* The one packed operand, from its plain layout in args[0] to the primitive's in args[1]. */
static bool make_pack(OnednnCall *call, const trainc_contraction *c, const Chosen *x,
                      void *const *args) {
    const Onednn *o = call->o;
    int i = x->packed[0] ? 0 : 1;
    const dnnl_memory_desc_t *to =
        x->packed[i] && is_fast(o, x->pd) ? packed_layout(o, x, i, c->packed_bytes) : NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_attr_t attr = NULL;
    if (!to || o->api.primitive_attr_create(&attr) != dnnl_success) return false;
    bool good = o->api.primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) ==
                    dnnl_success &&
                o->api.reorder_primitive_desc_create(&pd, &x->plain[i], o->engine, to, o->engine,
                                                     attr) == dnnl_success &&
                o->api.primitive_create(&call->primitive, pd) == dnnl_success;
    o->api.primitive_attr_destroy(attr);
    char *from = (char *)args[0] + (uint64_t)x->offset[i] * element_bytes(x->dtype[i]);
    good = good && bind(call, DNNL_ARG_FROM, &x->plain[i], from) &&
           bind(call, DNNL_ARG_TO, to, args[1]);
    const dnnl_memory_desc_t *scratch =
        good ? o->api.primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0) : NULL;
    if (scratch) {
        call->scratch = *scratch;
        call->scratch_bytes = o->api.memory_desc_get_size(scratch);
    }
    if (pd) o->api.primitive_desc_destroy(pd);
    return good;
}

OnednnCall *onednn_prepare(Onednn *o, const trainc_contraction *c, bool is_pack,
                           void *const *args) {
    Chosen x = {0};
    OnednnCall *call = calloc(1, sizeof *call);
    if (!call) return NULL;
    call->o = o;
    bool good =
        c->kind == 0 ? choose_product(o, c, &x) : c->kind <= 3 && choose_convolution(o, c, &x);
    good = good && (is_pack ? make_pack(call, c, &x, args) : make_product(call, c, &x, args));
    if (x.pd) o->api.primitive_desc_destroy(x.pd);
    if (good) return call;
    onednn_call_free(call);
    return NULL;
}

/* The size of what `what` of its primitive describes; 0 where the library would not be used. */
static uint64_t query_one(Onednn *o, const trainc_contraction *c, dnnl_query_t what) {
    Chosen x = {0};
    uint64_t bytes = 0;
    bool good =
        c->kind == 0 ? choose_product(o, c, &x) : c->kind <= 3 && choose_convolution(o, c, &x);
    const dnnl_memory_desc_t *md =
        good && is_fast(o, x.pd) ? o->api.primitive_desc_query_md(x.pd, what, 0) : NULL;
    if (md) bytes = o->api.memory_desc_get_size(md);
    if (x.pd) o->api.primitive_desc_destroy(x.pd);
    return bytes;
}

/* The most over the layouts of both operands. */
static uint64_t query_product(Onednn *o, const trainc_contraction *given, dnnl_query_t what) {
    trainc_contraction c = *given;
    uint64_t most = 0;
    for (int turned = 0; turned < 4; turned++) {
        bool a = turned & 1, b = turned & 2;
        memcpy(c.a_strides, (int64_t[]){c.m * c.k, a ? 1 : c.k, a ? c.m : 1}, sizeof c.a_strides);
        memcpy(c.b_strides, (int64_t[]){c.k * c.n, b ? 1 : c.n, b ? c.k : 1}, sizeof c.b_strides);
        memcpy(c.d_strides, (int64_t[]){c.m * c.n, c.n, 1}, sizeof c.d_strides);
        uint64_t bytes = query_one(o, &c, what);
        most = bytes > most ? bytes : most;
    }
    return most;
}

uint64_t onednn_scratch_query(Onednn *o, const trainc_contraction *c) {
    return c->kind == 0 ? query_product(o, c, dnnl_query_scratchpad_md)
                        : query_one(o, c, dnnl_query_scratchpad_md);
}

uint64_t onednn_packed_query(Onednn *o, const trainc_contraction *given) {
    trainc_contraction c = *given;
    c.packed = 2;
    return c.kind == 0 ? query_product(o, &c, dnnl_query_weights_md) : 0;
}

uint64_t onednn_scratch_bytes(const OnednnCall *c) { return c->scratch_bytes; }

bool onednn_set_scratch(OnednnCall *c, void *p) {
    return c->scratch_bytes == 0 || bind(c, DNNL_ARG_SCRATCHPAD, &c->scratch, p);
}

bool onednn_move(OnednnCall *c, void *const *args) {
    for (int i = 0; i < 3; i++)
        if (c->o->api.memory_set_data_handle(c->args[i].memory,
                                             (char *)args[c->from[i]] + c->skip[i]) != dnnl_success)
            return false;
    return true;
}

bool onednn_run(OnednnCall *c) {
    return c->o->api.primitive_execute(c->primitive, c->o->stream, c->n_args, c->args) ==
               dnnl_success &&
           c->o->api.stream_wait(c->o->stream) == dnnl_success;
}

void onednn_call_free(OnednnCall *c) {
    if (!c) return;
    for (int i = 0; i < c->n_args; i++) c->o->api.memory_destroy(c->args[i].memory);
    if (c->primitive) c->o->api.primitive_destroy(c->primitive);
    free(c);
}

#else /* built without oneDNN's headers: the generated loops do everything */

Onednn *onednn_open(void) { return NULL; }
void onednn_close(Onednn *o) { (void)o; }
const char *onednn_version(const Onednn *o, char *buf, size_t cap) {
    (void)o;
    snprintf(buf, cap, "none");
    return buf;
}
OnednnCall *onednn_prepare(Onednn *o, const trainc_contraction *c, bool is_pack,
                           void *const *args) {
    (void)o, (void)c, (void)is_pack, (void)args;
    return NULL;
}
uint64_t onednn_scratch_query(Onednn *o, const trainc_contraction *c) {
    (void)o, (void)c;
    return 0;
}
uint64_t onednn_packed_query(Onednn *o, const trainc_contraction *c) {
    (void)o, (void)c;
    return 0;
}
uint64_t onednn_scratch_bytes(const OnednnCall *c) {
    (void)c;
    return 0;
}
bool onednn_set_scratch(OnednnCall *c, void *p) {
    (void)c, (void)p;
    return true;
}
bool onednn_move(OnednnCall *c, void *const *args) {
    (void)c, (void)args;
    return false;
}
bool onednn_run(OnednnCall *c) {
    (void)c;
    return false;
}
void onednn_call_free(OnednnCall *c) { (void)c; }
#endif
