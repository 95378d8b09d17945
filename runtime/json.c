/* json.c - a strict cursor over JSON text (RFC 8259), for headers whose shape is known.
 *
 * Nothing is allocated and nothing is read past `end`. The first violation sets `bad`, after which
 * every call fails, so a reader is written straight down and looks at `bad` once. Depth is bounded,
 * since headers come from strangers. */
#include "json.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 };

Json json_open(const char *text, size_t n) { return (Json){text, text + n, false, 0}; }

static bool fail(Json *j) {
    j->bad = true;
    return false;
}

static void skip_space(Json *j) {
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\t' || *j->at == '\n' || *j->at == '\r'))
        j->at++;
}

char json_peek(Json *j) {
    skip_space(j);
    return j->bad || j->at >= j->end ? 0 : *j->at;
}

static bool take(Json *j, char c) {
    if (json_peek(j) != c || c == 0) return fail(j);
    j->at++;
    return true;
}

bool json_enter(Json *j, char bracket) {
    if (!take(j, bracket) || ++j->depth > MAX_DEPTH) return fail(j);
    return true;
}

/* The previous character that matters tells a first member from a later one. */
bool json_next(Json *j, char close) {
    if (j->bad) return false;
    char before = j->at[-1];
    bool first = before == (close == '}' ? '{' : '[');
    char c = json_peek(j);
    if (c == close) {
        j->at++;
        j->depth--;
        return false;
    }
    if (first) return c != 0 || fail(j);
    if (!take(j, ',')) return false;
    c = json_peek(j);
    return (c != 0 && c != close) || fail(j);
}

static bool hex4(Json *j, uint32_t *out) {
    uint32_t v = 0;
    if (j->end - j->at < 4) return fail(j);
    for (int i = 0; i < 4; i++) {
        char c = *j->at++;
        if (c >= '0' && c <= '9')
            v = v * 16 + (uint32_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            v = v * 16 + (uint32_t)((c | 32) - 'a' + 10);
        else
            return fail(j);
    }
    *out = v;
    return true;
}

static size_t utf8_put(char *out, uint32_t c) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 63));
    out[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
    return n;
}

static size_t escape_read(Json *j, char *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = j->at < j->end ? *j->at++ : 0;
    const char *p = c ? strchr(from, c) : NULL;
    if (p) {
        out[0] = to[p - from];
        return 1;
    }
    uint32_t u = 0, low = 0;
    if (c != 'u' || !hex4(j, &u) || u == 0 || (u >= 0xdc00 && u < 0xe000)) return (size_t)fail(j);
    if (u >= 0xd800 && u < 0xdc00) {
        if (j->end - j->at < 6 || j->at[0] != '\\' || j->at[1] != 'u') return (size_t)fail(j);
        j->at += 2;
        if (!hex4(j, &low) || low < 0xdc00 || low >= 0xe000) return (size_t)fail(j);
        u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
    }
    return utf8_put(out, u);
}

bool json_string(Json *j, char *out, size_t cap) {
    size_t n = 0;
    if (!take(j, '"')) return false;
    for (;;) {
        char piece[4];
        size_t k = 1;
        if (j->at >= j->end || (unsigned char)*j->at < 0x20) return fail(j);
        piece[0] = *j->at++;
        if (piece[0] == '"') break;
        if (piece[0] == '\\' && (k = escape_read(j, piece)) == 0) return false;
        if (out && n + k >= cap) return fail(j);
        if (out) memcpy(out + n, piece, k);
        n += k;
    }
    if (out) out[n] = 0;
    return true;
}

bool json_key(Json *j, char *out, size_t cap) { return json_string(j, out, cap) && take(j, ':'); }

bool json_uint(Json *j, uint64_t *out) {
    uint64_t v = 0;
    char c = json_peek(j);
    if (c < '0' || c > '9') return fail(j);
    if (c == '0' && j->end - j->at > 1 && j->at[1] >= '0' && j->at[1] <= '9') return fail(j);
    while (j->at < j->end && *j->at >= '0' && *j->at <= '9') {
        uint64_t d = (uint64_t)(*j->at++ - '0');
        if (v > (UINT64_MAX - d) / 10) return fail(j);
        v = v * 10 + d;
    }
    if (j->at < j->end && (*j->at == '.' || *j->at == 'e' || *j->at == 'E')) return fail(j);
    *out = v;
    return true;
}

static void digits(Json *j, size_t *n) {
    while (j->at < j->end && *j->at >= '0' && *j->at <= '9') j->at++, ++*n;
}

bool json_number(Json *j, double *out) {
    char text[64];
    size_t whole = 0, part = 0;
    json_peek(j);
    const char *start = j->at;
    if (j->at < j->end && *j->at == '-') j->at++;
    const char *first = j->at;
    digits(j, &whole);
    if (whole == 0 || (whole > 1 && *first == '0')) return fail(j);
    if (j->at < j->end && *j->at == '.') {
        j->at++;
        digits(j, &part);
        if (part == 0) return fail(j);
    }
    if (j->at < j->end && (*j->at | 32) == 'e') {
        j->at++;
        if (j->at < j->end && (*j->at == '+' || *j->at == '-')) j->at++;
        part = 0;
        digits(j, &part);
        if (part == 0) return fail(j);
    }
    size_t n = (size_t)(j->at - start);
    if (n >= sizeof text) return fail(j);
    memcpy(text, start, n);
    text[n] = 0;
    *out = strtod(text, NULL);
    return true;
}

static bool word(Json *j, const char *w) {
    size_t n = strlen(w);
    json_peek(j);
    if ((size_t)(j->end - j->at) < n || memcmp(j->at, w, n) != 0) return fail(j);
    j->at += n;
    return true;
}

bool json_bool(Json *j, bool *out) {
    *out = json_peek(j) == 't';
    return word(j, *out ? "true" : "false");
}

void json_skip(Json *j) {
    double number;
    switch (json_peek(j)) {
    case '{':
        for (json_enter(j, '{'); json_next(j, '}');) {
            json_string(j, NULL, 0);
            take(j, ':');
            json_skip(j);
        }
        return;
    case '[':
        for (json_enter(j, '['); json_next(j, ']');) json_skip(j);
        return;
    case '"':
        json_string(j, NULL, 0);
        return;
    case 't':
        word(j, "true");
        return;
    case 'f':
        word(j, "false");
        return;
    case 'n':
        word(j, "null");
        return;
    default:
        json_number(j, &number);
        return;
    }
}

bool json_finish(Json *j) {
    skip_space(j);
    return !j->bad && j->at == j->end;
}
