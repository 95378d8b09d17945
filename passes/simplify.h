/* simplify.h - what simplify.c and view.c share; private. Every function gives an equal value in
 * simpler form, or 0. */
#ifndef TRAINC_SIMPLIFY_H
#define TRAINC_SIMPLIFY_H
#include "ir.h"
Value view_simplify(Graph *, Value);
#endif
