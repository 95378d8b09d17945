/* json.h - a strict cursor over JSON text: what safetensors headers, trainc.json and plan.json need, and no tree. */
#ifndef TRAINC_JSON_H
#define TRAINC_JSON_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
typedef struct Json { const char *at, *end; bool bad; int depth; } Json; /* bad is sticky: check it once, at the end */
Json json_open(const char *text, size_t n);
/* Objects and arrays:  json_enter(j, '{'); while (json_next(j, '}')) { json_key(j, ...); value }  */
bool json_enter(Json *, char bracket);
bool json_next(Json *, char close);                    /* true: another member stands here; false: closed (or bad) */
bool json_key(Json *, char *out, size_t cap);          /* a string and the colon */
bool json_string(Json *, char *out, size_t cap);       /* UTF-8; too long for `out`, or a NUL inside: bad */
bool json_uint(Json *, uint64_t *);                    /* digits only, no sign, point or exponent */
bool json_number(Json *, double *);
bool json_bool(Json *, bool *);
void json_skip(Json *);                                /* any one value */
char json_peek(Json *);                                /* first character of the next token; 0 at the end */
bool json_finish(Json *);                              /* only white space is left, and nothing was bad */
#endif
