/* npy.c - the header of a .npy file, strictly: magic, version, and the one Python literal that
 * numpy writes.
 *
 * Fortran order and big-endian elements are refused instead of being read as something else; an
 * array with at most one extent above 1 is the same in both orders. The data must have exactly the
 * length that the shape says. */
#include "feed.h"
#include "rt_dtype.h"
#include <stdio.h>
#include <string.h>

typedef struct Cursor {
    const char *at, *end;
    bool bad;
} Cursor;

static void spaces(Cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
        c->at++;
}

static bool take(Cursor *c, char want) {
    spaces(c);
    if (c->at >= c->end || *c->at != want) return false;
    c->at++;
    return true;
}

static void need(Cursor *c, char want) { c->bad |= !take(c, want); }

static void text(Cursor *c, char *out, size_t cap) {
    size_t n = 0;
    spaces(c);
    char quote = c->at < c->end && (*c->at == '\'' || *c->at == '"') ? *c->at++ : 0;
    while (quote && c->at < c->end && *c->at != quote && n + 1 < cap) out[n++] = *c->at++;
    out[n] = 0;
    c->bad |= quote == 0;
    if (quote) need(c, quote);
}

static bool word(Cursor *c, const char *w) {
    size_t n = strlen(w);
    spaces(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, w, n) != 0) return false;
    c->at += n;
    return true;
}

static void shape(Cursor *c, trainc_tensor *t) {
    need(c, '(');
    while (!c->bad && !take(c, ')')) {
        int64_t v = 0;
        spaces(c);
        c->bad |= t->rank == 8 || c->at >= c->end || *c->at < '0' || *c->at > '9';
        while (!c->bad && c->at < c->end && *c->at >= '0' && *c->at <= '9')
            c->bad |=
                __builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *c->at++ - '0', &v);
        if (c->bad) return;
        t->dims[t->rank++] = v;
        if (!take(c, ',')) {
            need(c, ')');
            return;
        }
    }
}

static trainc_dtype dtype_of(const char *descr) {
    for (int i = 1; i < N_RT_DTYPES; i++)
        if (rt_dtype[i].npy[0] && strcmp(rt_dtype[i].npy, descr + 1) == 0) return (trainc_dtype)i;
    return (trainc_dtype)0;
}

typedef struct Header {
    char descr[32];
    bool fortran;
    int seen;
} Header;

static void header(Cursor *c, Header *h, trainc_tensor *t) {
    char key[32];
    need(c, '{');
    while (!c->bad && !take(c, '}')) {
        text(c, key, sizeof key);
        need(c, ':');
        if (strcmp(key, "descr") == 0 && !(h->seen & 1)) {
            text(c, h->descr, sizeof h->descr);
            h->seen |= 1;
        } else if (strcmp(key, "fortran_order") == 0 && !(h->seen & 2)) {
            h->fortran = word(c, "True");
            c->bad |= !h->fortran && !word(c, "False");
            h->seen |= 2;
        } else if (strcmp(key, "shape") == 0 && !(h->seen & 4)) {
            shape(c, t);
            h->seen |= 4;
        } else {
            c->bad = true;
        }
        if (!c->bad && !take(c, ',')) {
            need(c, '}');
            break;
        }
    }
    spaces(c);
    c->bad |= h->seen != 7 || c->at != c->end;
}

static trainc_status check_header(const Header *h, const char *path, trainc_tensor *t, Fail *f) {
    int wide = 0;
    for (int i = 0; i < t->rank; i++) wide += t->dims[i] > 1;
    if (h->fortran && wide > 1)
        return fail_set(
            f, TRAINC_BAD_DATA,
            "%s is in Fortran order (columns first); write it with numpy.ascontiguousarray", path);
    t->dtype = h->descr[0] && strchr("<>|=", h->descr[0]) ? dtype_of(h->descr) : (trainc_dtype)0;
    if (!t->dtype)
        return fail_set(f, TRAINC_BAD_DATA, "%s has the element type '%s', which is not supported",
                        path, h->descr);
    if (h->descr[0] == '>' && rt_dtype[t->dtype].bytes > 1)
        return fail_set(f, TRAINC_BAD_DATA, "%s is big-endian ('%s'); write it with .astype('<%s')",
                        path, h->descr, h->descr + 1);
    return TRAINC_OK;
}

trainc_status npy_parse(const FileMap *m, const char *path, trainc_tensor *t, Fail *f) {
    uint64_t start = m->n >= 10 && m->bytes[6] >= 2 ? 12 : 10, n = 0;
    if (m->n < start || memcmp(m->bytes, "\x93NUMPY", 6) != 0 || m->bytes[6] < 1 ||
        m->bytes[6] > 3 || m->bytes[7] != 0)
        return fail_set(f, TRAINC_BAD_DATA, "%s is no .npy file", path);
    for (uint64_t i = start; i-- > 8;) n = n << 8 | m->bytes[i];
    if (n > m->n - start)
        return fail_set(f, TRAINC_BAD_DATA, "%s is truncated in its header", path);
    Cursor c = {(const char *)m->bytes + start, (const char *)m->bytes + start + n, false};
    Header h = {"", false, 0};
    header(&c, &h, t);
    if (c.bad) return fail_set(f, TRAINC_BAD_DATA, "%s has a malformed header", path);
    trainc_status s = check_header(&h, path, t, f);
    if (s != TRAINC_OK) return s;
    uint64_t want = rt_dtype[t->dtype].bytes, have = m->n - start - n;
    for (int i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(want, (uint64_t)t->dims[i], &want))
            return fail_set(f, TRAINC_BAD_DATA, "%s has an impossible shape", path);
    if (have != want)
        return fail_set(f, TRAINC_BAD_DATA, "%s is %s: its shape needs %llu bytes, %llu are there",
                        path, have < want ? "truncated" : "too long", (unsigned long long)want,
                        (unsigned long long)have);
    t->data = m->bytes + start + n;
    return TRAINC_OK;
}
