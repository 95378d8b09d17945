/* philox.c - the counter-based generator of every random op: Philox4x32-10 (Salmon et al.,
 * "Parallel random numbers: as easy as 1, 2, 3", SC 2011). A value depends on its counter and key
 * alone, so that a recomputed dropout is the same dropout. */
#include "interp.h"

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0],
             k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

bool eval_random(Eval *e) {
    uint64_t n = (uint64_t)type_elems(&e->out.type);
    if (!e->env) return false;
    uint32_t key[2] = {(uint32_t)e->env->seed, (uint32_t)(e->env->seed >> 32)}, out[4];
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = i + e->env->micro * n;
        uint32_t counter[4] = {(uint32_t)(at >> 2), (uint32_t)(at >> 34), (uint32_t)e->env->step,
                               (uint32_t)attr_i(e->g, e->v, A_STREAM, 0)};
        philox4x32(counter, key, out);
        e->out.u.f[i] = (double)(out[at & 3] >> 8) * 0x1p-24;
    }
    return true;
}
