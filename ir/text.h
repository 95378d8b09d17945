/* text.h - what printer and parser agree on; private to ir/text_*.c.
 *
 *   graph NAME
 *   loc N KIND PARENT [NAME OP SCOPE]
 *   state NAME : TYPE CLASS [trains] [buffer] [file=NAME offset=N bytes=N | data=ELEMENTS] [fill=X] [of=NAME]
 *   input NAME : TYPE [batch=AXIS] [limit=N] [loc=N]
 *   body NAME                                      the lines of a graph without its first, then
 *   end
 *   %N = OP %OPERAND... [: TYPE] [FIELD=VALUE...] [loc=N] [epoch=N]
 *   entry KIND
 *   update @NAME = %N
 *   output NAME = %N
 *
 * Bodies are numbered from 1 in their order; what a body declares and its roots say how many carries, slices, invariants and
 * outputs it has. One statement per line; '#' starts a comment. A NAME is bare where it has only letters, digits and _ . / - @, else in double
 * quotes with \" \\ and \xHH. Floats print in the fewest digits that read back exactly. ELEMENTS: [1, 2, ..], or hex:.. (bytes in memory
 * order) where numbers would be many or would not read back.
 */
#ifndef TRAINC_TEXT_H
#define TRAINC_TEXT_H
#include "ir.h"

extern const char *const loc_kind_text[N_LOC_KINDS];
extern const char *const state_class_text[N_STATE_CLASSES];
enum { TEXT_MAX_NUMBERS = 64 };                                  /* more elements print as hex */
static inline bool name_char_is_bare(int c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '/' || c == '-' || c == '@';
}
#endif
