/* ops_det.c - Det: determinants of small matrices, batched, as sums of products.
 *
 * The determinant of the first k rows and a set of k columns follows from those of k - 1 rows
 * (Laplace's expansion along the last row), 2^n sets in all, so that no division and no pivot is
 * needed and the gradient, the cofactors, is that of sums and products: right for singular matrices
 * too. Matrices larger than MAX_N are refused by name. */
#include "import.h"

enum { MAX_N = 6 };

/* Element (row, column) of each matrix of x[.., n, n]: [..,1,1] */
static Value element(ImportNode *n, Value x, int64_t row, int64_t column) {
    Type t = *node_type(n, x);
    int64_t start[MAX_RANK] = {0};
    start[t.rank - 2] = row, start[t.rank - 1] = column;
    t.dims[t.rank - 2] = t.dims[t.rank - 1] = 1;
    return build_slice(n->g, x, start, t.dims, NULL);
}

static int size_of(unsigned set) {
    int size = 0;
    for (; set; set &= set - 1) size++;
    return size;
}

/* Of the rows above the set's size and its columns; `minors` holds those of all smaller sets. */
static Value minor_of(ImportNode *n, Value x, unsigned set, const Value *minors) {
    int row = size_of(set) - 1, at = 0;
    Value sum = 0;
    for (int column = 0; column < MAX_N; column++) {
        if (!(set >> column & 1)) continue;
        Value term = element(n, x, row, column), rest = minors[set & ~(1u << column)];
        if (rest) term = build_binary(n->g, OP_mul, term, rest);
        bool is_minus = (row + at++) % 2;
        if (sum)
            sum = build_binary(n->g, is_minus ? OP_sub : OP_add, sum, term);
        else
            sum = is_minus ? build_unary(n->g, OP_neg, term) : term;
    }
    return sum;
}

void import_det(ImportNode *n) {
    Value x = n->in[0], minors[1 << MAX_N] = {0};
    Type t = *node_type(n, x);
    int64_t size = t.rank < 2 ? 0 : t.dims[t.rank - 1];
    if (size < 1 || t.dims[t.rank - 2] != size) {
        node_fail_shapes(n, "%s holds no square matrices", type_text(n->g, &t));
        return;
    }
    if (size > MAX_N) {
        node_fail_shapes(n,
                         "determinants of %lld x %lld matrices: only up to %d x %d are written out",
                         (long long)size, (long long)size, MAX_N, MAX_N);
        return;
    }
    unsigned all = (1u << size) - 1;
    for (unsigned set = 1; set <= all; set++) minors[set] = minor_of(n, x, set, minors);
    n->out[0] = build_squeeze(n->g, minors[all], (int64_t[]){-1, -2}, 2);
}
