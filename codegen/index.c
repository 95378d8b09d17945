/* index.c - the index algebra: integer expressions over axes, in one canonical form.
 *
 * An expression is a sum of terms coefficient * atom plus a constant; atoms are axes, lets, and DIV
 * or MOD of an expression. Building re-canonicalises, so equal indices are one node and views
 * cancel: div/mod by c splits off the terms that c divides, uses the proven range of the rest, and
 * a DIV and a MOD of the same expression that meet again in a sum become it again (c * (x / c) + x
 * % c = x). That makes reshape, transpose and slice chains affine wherever they are. DIV and MOD
 * are floor semantics with a positive divisor. */
#include <assert.h>
#include <string.h>
#include "kernel.h"

enum { MAX_TERMS = 64 };
typedef struct Term {
    Ix atom;
    int64_t coef;
} Term;
typedef struct Sum {
    Term terms[MAX_TERMS];
    uint32_t n;
    int64_t constant;
} Sum;

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
static int64_t floor_mod(int64_t a, int64_t b) { return a % b + (a % b < 0 ? b : 0); }
static int64_t gcd(int64_t a, int64_t b) {
    a = a < 0 ? -a : a, b = b < 0 ? -b : b;
    while (b) {
        int64_t t = a % b;
        a = b, b = t;
    }
    return a;
}

static Ix ix_node(Kernel *k, Arena *arena, IxNode n) {
    if (!k->n_ix) k->ix = arena_alloc(arena, 16 * sizeof *k->ix), k->n_ix = 1;
    for (Ix i = k->n_ix; i-- > 1;) {
        const IxNode *o = &k->ix[i];
        if (o->kind == n.kind && o->a == n.a && o->b == n.b && o->value == n.value) return i;
    }
    if (k->n_ix >= 16 && (k->n_ix & (k->n_ix - 1)) == 0)
        k->ix = arena_grow(arena, k->ix, k->n_ix * sizeof n, 2 * k->n_ix * sizeof n);
    k->ix[k->n_ix] = n;
    return k->n_ix++;
}

Ix ix_const(Kernel *k, Arena *arena, int64_t v) {
    return ix_node(k, arena, (IxNode){IX_CONST, 0, 0, v, v, v});
}

Ix ix_axis(Kernel *k, Arena *arena, uint32_t axis) {
    int64_t last = k->axes[axis].extent - 1;
    return ix_node(k, arena, (IxNode){IX_AXIS, 0, 0, axis, 0, last < 0 ? 0 : last});
}

Ix ix_let(Kernel *k, Arena *arena, Let let, int64_t lo, int64_t hi) {
    return ix_node(k, arena, (IxNode){IX_LET, 0, 0, let, lo, hi < lo ? lo : hi});
}

/* Adds coef * ix to the sum, flattening. */
static void sum_add(const Kernel *k, Sum *s, Ix ix, int64_t coef) {
    const IxNode *n = &k->ix[ix];
    if (coef == 0) return;
    switch (n->kind) {
    case IX_CONST:
        s->constant += coef * n->value;
        return;
    case IX_ADD:
        sum_add(k, s, n->a, coef), sum_add(k, s, n->b, coef);
        return;
    case IX_MUL:
        sum_add(k, s, n->a, coef * n->value);
        return;
    case IX_AXIS:
    case IX_DIV:
    case IX_MOD:
    case IX_LET:
    case IX_MIN:
    case IX_MAX:
        break;
    }
    for (uint32_t i = 0; i < s->n; i++)
        if (s->terms[i].atom == ix) {
            s->terms[i].coef += coef;
            if (s->terms[i].coef == 0) s->terms[i] = s->terms[--s->n];
            return;
        }
    assert(s->n < MAX_TERMS);
    s->terms[s->n++] = (Term){ix, coef};
}

/* c*k * DIV(x, c) + k * MOD(x, c) = k * x: looks for one such pair, true where it found one. */
static bool sum_join(const Kernel *k, Sum *s) {
    for (uint32_t i = 0; i < s->n; i++) {
        const IxNode *mod = &k->ix[s->terms[i].atom];
        if (mod->kind != IX_MOD) continue;
        for (uint32_t j = 0; j < s->n; j++) {
            const IxNode *div = &k->ix[s->terms[j].atom];
            if (div->kind != IX_DIV || div->a != mod->a || div->value != mod->value ||
                s->terms[j].coef != s->terms[i].coef * mod->value)
                continue;
            int64_t coef = s->terms[i].coef;
            Ix x = mod->a;
            uint32_t hi = i > j ? i : j, lo = i > j ? j : i;
            s->terms[hi] = s->terms[--s->n];
            s->terms[lo] = s->terms[--s->n];
            sum_add(k, s, x, coef);
            return true;
        }
    }
    return false;
}

static Ix sum_build(Kernel *k, Arena *arena, Sum *s) {
    while (sum_join(k, s)) {
    }
    for (uint32_t i = 1; i < s->n; i++) /* by coefficient, then atom: outer strides first */
        for (uint32_t j = i; j > 0; j--) {
            Term *p = &s->terms[j - 1], *q = &s->terms[j];
            if (p->coef > q->coef || (p->coef == q->coef && p->atom < q->atom)) break;
            Term t = *p;
            *p = *q, *q = t;
        }
    Ix sum = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        Ix atom = s->terms[i].atom;
        int64_t c = s->terms[i].coef, lo = k->ix[atom].lo, hi = k->ix[atom].hi;
        Ix t = c == 1 ? atom
                      : ix_node(k, arena,
                                (IxNode){IX_MUL, atom, 0, c, c > 0 ? c * lo : c * hi,
                                         c > 0 ? c * hi : c * lo});
        sum = !sum ? t
                   : ix_node(k, arena,
                             (IxNode){IX_ADD, sum, t, 0, k->ix[sum].lo + k->ix[t].lo,
                                      k->ix[sum].hi + k->ix[t].hi});
    }
    if (!sum) return ix_const(k, arena, s->constant);
    if (!s->constant) return sum;
    Ix t = ix_const(k, arena, s->constant);
    return ix_node(
        k, arena,
        (IxNode){IX_ADD, sum, t, 0, k->ix[sum].lo + s->constant, k->ix[sum].hi + s->constant});
}

Ix ix_add(Kernel *k, Arena *arena, Ix a, Ix b) {
    Sum s = {0};
    sum_add(k, &s, a, 1);
    sum_add(k, &s, b, 1);
    return sum_build(k, arena, &s);
}

Ix ix_mul(Kernel *k, Arena *arena, Ix a, int64_t c) {
    Sum s = {0};
    sum_add(k, &s, a, c);
    return sum_build(k, arena, &s);
}

/* Splits x = c * *whole + rest; the constant of the rest lies in [0, c). */
static void sum_split(const Kernel *k, Ix x, int64_t c, Sum *whole, Sum *rest) {
    Sum s = {0};
    sum_add(k, &s, x, 1);
    whole->constant = floor_div(s.constant, c);
    rest->constant = floor_mod(s.constant, c);
    for (uint32_t i = 0; i < s.n; i++)
        if (s.terms[i].coef % c == 0)
            whole->terms[whole->n++] = (Term){s.terms[i].atom, s.terms[i].coef / c};
        else
            rest->terms[rest->n++] = s.terms[i];
}

static int64_t sum_gcd(const Sum *s, int64_t c) {
    for (uint32_t i = 0; i < s->n; i++) c = gcd(c, s->terms[i].coef);
    return c;
}

Ix ix_div(Kernel *k, Arena *arena, Ix x, int64_t c) {
    assert(c > 0);
    if (c == 1) return x;
    Sum whole = {0}, rest = {0};
    sum_split(k, x, c, &whole, &rest);
    Ix r = sum_build(k, arena, &rest);
    int64_t lo = floor_div(k->ix[r].lo, c), hi = floor_div(k->ix[r].hi, c);
    if (lo == hi) {
        whole.constant += lo;
        return sum_build(k, arena, &whole);
    }
    int64_t d = sum_gcd(&rest, c);
    if (d > 1 && (rest.constant % d == 0 ||
                  c != d)) { /* floor((d*y + e) / (d*f)) = floor((y + floor(e/d)) / f) */
        for (uint32_t i = 0; i < rest.n; i++) rest.terms[i].coef /= d;
        rest.constant = floor_div(rest.constant, d);
        r = sum_build(k, arena, &rest), c /= d;
    }
    const IxNode *n = &k->ix[r];
    Ix q = c == 1 ? r
           : n->kind == IX_DIV
               ? ix_div(k, arena, n->a, n->value * c)
               : ix_node(k, arena,
                         (IxNode){IX_DIV, r, 0, c, floor_div(n->lo, c), floor_div(n->hi, c)});
    sum_add(k, &whole, q, 1);
    return sum_build(k, arena, &whole);
}

Ix ix_mod(Kernel *k, Arena *arena, Ix x, int64_t c) {
    assert(c > 0);
    if (c == 1) return ix_const(k, arena, 0);
    Sum whole = {0}, rest = {0};
    sum_split(k, x, c, &whole, &rest);
    Ix r = sum_build(k, arena, &rest);
    int64_t lo = floor_div(k->ix[r].lo, c), hi = floor_div(k->ix[r].hi, c);
    if (lo == hi) return ix_add(k, arena, r, ix_const(k, arena, -lo * c));
    int64_t d = sum_gcd(&rest, c);
    if (d > 1 && rest.constant % d == 0) {
        for (uint32_t i = 0; i < rest.n; i++) rest.terms[i].coef /= d;
        rest.constant /= d;
        r = sum_build(k, arena, &rest);
        return ix_mul(k, arena, ix_mod(k, arena, r, c / d), d);
    }
    const IxNode *n = &k->ix[r];
    if (n->kind == IX_MOD && n->value % c == 0) return ix_mod(k, arena, n->a, c);
    return ix_node(k, arena, (IxNode){IX_MOD, r, 0, c, 0, c - 1});
}

bool ix_affine(const Kernel *k, Ix ix, int64_t *constant, int64_t *coefficient) {
    Sum s = {0};
    sum_add(k, &s, ix, 1);
    *constant = s.constant;
    for (uint32_t i = 0; i < k->n_axes; i++) coefficient[i] = 0;
    for (uint32_t i = 0; i < s.n; i++) {
        const IxNode *n = &k->ix[s.terms[i].atom];
        if (n->kind != IX_AXIS) return false;
        coefficient[n->value] += s.terms[i].coef;
    }
    return true;
}
