/* cmd_plan_census.c - what `trainc plan -v` says about the forward graph: how many layers of each
 * kind were recognised, and which edge broke the match where one nearly was. */
#include "step_plan.h"
#include <string.h>

/* "q (MatMul) in encoder.layer.0", by what is known of the ONNX node. */
static void print_place(const Graph *g, LocId at) {
    const Loc *l = &g->locs[at];
    while (l->parent && l->kind != LOC_NODE) l = &g->locs[l->parent];
    printf("%s", l->name && *l->name ? l->name : "?");
    if (l->op && *l->op) printf(" (%s)", l->op);
    if (l->scope && *l->scope) printf(" in %s", l->scope);
}

/* Layers of a model differ in the numbers of their names. */
static bool same_but_numbers(const char *a, const char *b) {
    static const char digits[] = "_0123456789"; /* mul, mul_1, ... */
    for (;; a++, b++) {
        a += strspn(a, digits);
        b += strspn(b, digits);
        if (*a != *b) return false;
        if (!*a) return true;
    }
}

static bool is_same_miss(const MatchNote *a, const MatchNote *b) {
    return !strcmp(a->macro, b->macro) && same_but_numbers(a->why, b->why);
}

/* One line per cause: layers of a model repeat. */
static void print_notes(const Graph *g, const Census *c) {
    if (c->n_notes) printf("\n  near misses, and the edge that broke the match:\n");
    for (uint32_t i = 0; i < c->n_notes; i++) {
        uint32_t more = 0;
        bool is_first = true;
        for (uint32_t k = 0; k < c->n_notes; k++) {
            bool same = is_same_miss(&c->notes[i], &c->notes[k]);
            is_first &= k >= i || !same;
            more += k > i && same;
        }
        if (!is_first) continue;
        printf("    %s at ", c->notes[i].macro);
        print_place(g, c->notes[i].at);
        if (more) printf(" and %u more", more);
        printf(": %s\n", c->notes[i].why);
    }
}

void print_census(const PlannedStep *s) {
    const Census *c = &s->passes.census;
    printf("\n  found in the forward graph:\n");
    for (int i = 0; i < N_CENSUS; i++)
        if (c->count[i])
            printf("    %-22s %8u   %s\n", census_name[i], c->count[i], census_meaning[i]);
    print_notes(s->passes.g ? s->passes.g : s->model.graph, c);
}
