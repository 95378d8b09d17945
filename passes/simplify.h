/* simplify.h - what simplify.c and view.c share; private. Every function gives an equal value in
 * simpler form, or 0. */
#ifndef TRAINC_SIMPLIFY_H
#define TRAINC_SIMPLIFY_H
#include "ir.h"
Value view_simplify(Graph *, Value);

/* layout.c: layout_wanted - by which perms readers transpose each value of g; NULL where none does. layout_sink - v of `to` with the
 * transpose behind it that its operands have, where a reader of `wanted_of`, v in the graph that `l` is of, undoes it; else 0. */
typedef struct Layout Layout;
Layout *layout_wanted(const Graph *g, Arena *);
Value layout_sink(const Layout *l, Value wanted_of, Graph *to, Value v);
#endif
