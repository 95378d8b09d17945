/* memplan_offsets.c - places buffers that live for a span of launches so that none that meet
 * overlap (dynamic storage allocation).
 *
 * A portfolio of greedy orders (size, area, lifetime, birth), each placed first-fit and best-fit;
 * the lowest arena wins, and the first that reaches the lower bound (the largest sum of buffers
 * alive at one launch) ends the search. */
#include "planning.h"
#include <stdlib.h>
#include <string.h>

typedef enum Order { ORDER_SIZE, ORDER_AREA, ORDER_LIFETIME, ORDER_BIRTH, N_ORDERS } Order;
typedef struct Item {
    uint64_t key;
    uint32_t span;
} Item;

/* Largest key first; equal keys in the order given. */
static int by_key(const void *a, const void *b) {
    const Item *x = a, *y = b;
    if (x->key != y->key) return x->key > y->key ? -1 : 1;
    return x->span < y->span ? -1 : x->span > y->span;
}

static uint64_t order_key(const Span *s, Order order) {
    uint64_t life = (uint64_t)s->last - s->first + 1;
    switch (order) {
    case ORDER_SIZE:
        return s->bytes;
    case ORDER_AREA:
        return s->bytes * life;
    case ORDER_LIFETIME:
        return life;
    case ORDER_BIRTH:
        return UINT32_MAX - s->first;
    case N_ORDERS:
        break;
    }
    return 0;
}

uint64_t spans_lower_bound(const Span *spans, uint32_t n, Arena *arena) {
    uint32_t end = 0;
    for (uint32_t i = 0; i < n; i++)
        if (spans[i].last + 1 > end) end = spans[i].last + 1;
    int64_t *change = arena_alloc(arena, sizeof *change * (end + 1)), live = 0, most = 0;
    for (uint32_t i = 0; i < n; i++) {
        change[spans[i].first] += (int64_t)spans[i].bytes;
        change[spans[i].last + 1] -= (int64_t)spans[i].bytes;
    }
    for (uint32_t t = 0; t < end; t++) {
        live += change[t];
        if (live > most) most = live;
    }
    return (uint64_t)most;
}

/* The lowest gap among the spans in `placed` (sorted by offset) that meet s, or the tightest one.
 */
static uint64_t find_gap(const Span *spans, const uint32_t *placed, uint32_t n, const Span *s,
                         bool tightest) {
    uint64_t at = 0, best = UINT64_MAX, best_room = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        const Span *o = &spans[placed[i]];
        if (o->first > s->last || s->first > o->last || !o->bytes) continue;
        uint64_t room = o->offset > at ? o->offset - at : 0;
        if (room >= s->bytes && room < best_room) {
            best = at;
            best_room = room;
            if (!tightest) return best;
        }
        if (o->offset + o->bytes > at) at = o->offset + o->bytes;
    }
    return best == UINT64_MAX ? at : best;
}

static uint64_t place_in_order(Span *spans, const Item *items, uint32_t n, bool tightest,
                               uint32_t *placed) {
    uint64_t height = 0;
    for (uint32_t i = 0; i < n; i++) {
        Span *s = &spans[items[i].span];
        s->offset = find_gap(spans, placed, i, s, tightest);
        uint32_t k = i;
        for (; k > 0 && spans[placed[k - 1]].offset > s->offset; k--) placed[k] = placed[k - 1];
        placed[k] = items[i].span;
        if (s->offset + s->bytes > height) height = s->offset + s->bytes;
    }
    return height;
}

uint64_t place_spans(Span *spans, uint32_t n, uint64_t lower_bound, Arena *arena) {
    Item *items = arena_alloc(arena, sizeof *items * (n + 1));
    uint32_t *placed = arena_alloc(arena, sizeof *placed * (n + 1));
    uint64_t *best = arena_alloc(arena, sizeof *best * (n + 1)), height = UINT64_MAX;
    for (int trial = 0; trial < 2 * N_ORDERS && height > lower_bound; trial++) {
        for (uint32_t i = 0; i < n; i++)
            items[i] = (Item){order_key(&spans[i], (Order)(trial / 2)), i};
        qsort(items, n, sizeof *items, by_key);
        uint64_t h = place_in_order(spans, items, n, trial % 2, placed);
        if (h >= height) continue;
        height = h;
        for (uint32_t i = 0; i < n; i++) best[i] = spans[i].offset;
    }
    for (uint32_t i = 0; i < n; i++) spans[i].offset = best[i];
    return n ? height : 0;
}
