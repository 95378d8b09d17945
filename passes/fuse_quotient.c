/* fuse_quotient.c - the graph whose nodes are groups, kept acyclic and in topological order while
 * groups are joined.
 *
 * Union-find gives the group of a value; the edges of a group are the reads of its members. Every
 * group has an `ord` that grows along edges. Joining a and b (ord a < ord b) is legal where no road
 * leads from a to b through a third group; such a road stays between the two ords, so only that
 * region is searched, and then reordered as in Pearce and Kelly's dynamic topological sort: what b
 * needs, the union, what a feeds. Searches give up after FUSE_REGION groups: then the answer is no.
 */
#include "planning.h"
#include <assert.h>
#include <stdlib.h>

Value fuse_find(Fuse *f, Value v) {
    while (f->parent[v] != v) v = f->parent[v] = f->parent[f->parent[v]];
    return v;
}

void fuse_groups_init(Fuse *f) {
    for (Value v = 1; v < f->g->n_nodes; v++) f->parent[v] = v;
}

/* Groups strictly between the two ords that a feeds (forward) or b needs (backward), into `region`;
 * -1 where there are too many, or where b is met on the way from a. */
static int search(Fuse *f, Value a, Value b, bool forward, Value *region) {
    uint32_t lo = f->groups[a].ord, hi = f->groups[b].ord;
    int n = 0, at = -1;
    f->now += N_READ_KINDS;
    for (Value from = forward ? a : b; at < n; from = ++at < n ? region[at] : 0) {
        for (Value m = from ? f->groups[from].first : 0; m; m = f->next[m]) {
            uint32_t begin = forward ? f->first_reader[m] : f->first_read[m],
                     end = forward ? f->first_reader[m + 1] : f->first_read[m + 1];
            for (uint32_t i = begin; i < end; i++) {
                Value to = forward ? f->readers[i].node : f->reads[i].base;
                if (!f->computed[to]) continue;
                to = fuse_find(f, to);
                uint32_t ord = f->groups[to].ord;
                if (to == b && from != a && forward) return -1;
                if (to == from || ord <= lo || ord >= hi || f->stamp[to] == f->now) continue;
                if (n == FUSE_REGION) return -1;
                f->stamp[to] = f->now;
                region[n++] = to;
            }
        }
    }
    return n;
}

bool fuse_can_join(Fuse *f, Value a, Value b) {
    if (f->groups[a].ord > f->groups[b].ord) {
        Value t = a;
        a = b;
        b = t;
    }
    return search(f, a, b, true, f->region) >= 0 && search(f, a, b, false, f->region) >= 0;
}

typedef struct Placed {
    uint32_t ord;
    Value group;
} Placed;
static int by_ord(const void *a, const void *b) {
    uint32_t x = ((const Placed *)a)->ord, y = ((const Placed *)b)->ord;
    return x < y ? -1 : x > y;
}

static int collect(Fuse *f, const Value *region, int n, Placed *placed) {
    for (int i = 0; i < n; i++) placed[i] = (Placed){f->groups[region[i]].ord, region[i]};
    qsort(placed, (size_t)n, sizeof *placed, by_ord);
    return n;
}

/* Gives the region its new ords: what b needs, then the union (at a), then what a feeds. */
static void reorder(Fuse *f, Value a, Value b) {
    Placed placed[2 * FUSE_REGION + 2];
    uint32_t ords[2 * FUSE_REGION + 2];
    int n_needs = search(f, a, b, false, f->region);
    assert(n_needs >= 0);
    int n = collect(f, f->region, n_needs, placed);
    placed[n++] = (Placed){f->groups[a].ord, a};
    int n_feeds = search(f, a, b, true, f->region);
    assert(n_feeds >= 0);
    n += collect(f, f->region, n_feeds, placed + n);
    placed[n] = (Placed){f->groups[b].ord, b};
    Placed sorted[2 * FUSE_REGION + 2];
    for (int i = 0; i <= n; i++) sorted[i] = placed[i];
    qsort(sorted, (size_t)n + 1, sizeof *sorted, by_ord);
    for (int i = 0; i <= n; i++) ords[i] = sorted[i].ord;
    for (int i = 0; i < n; i++) f->groups[placed[i].group].ord = ords[i];
}

Value fuse_join(Fuse *f, Value a, Value b) {
    if (f->groups[a].ord > f->groups[b].ord) {
        Value t = a;
        a = b;
        b = t;
    }
    reorder(f, a, b);
    FuseGroup *x = &f->groups[a], *y = &f->groups[b];
    f->next[x->last] = y->first;
    x->last = y->last;
    x->n_members += y->n_members;
    x->n_reductions += y->n_reductions;
    x->cost += y->cost;
    f->parent[b] = a;
    return a;
}
