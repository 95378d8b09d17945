/* schedule.c - learning-rate curves, formula by formula those of transformers.optimization, with
 * the least rate given absolutely. */
#include "schedule.h"
#include <math.h>

const char *const schedule_name[N_SCHEDULES] = {
#define SCHEDULE(id, name, what) #name,
#include "schedule.def"
#undef SCHEDULE
};
const char *const schedule_what[N_SCHEDULES] = {
#define SCHEDULE(id, name, what) what,
#include "schedule.def"
#undef SCHEDULE
};

static double at_least_one(int64_t n) { return n > 1 ? (double)n : 1.0; }

static double half_cosine(double progress) {
    return 0.5 * (1.0 + cos(3.14159265358979323846 * progress));
}

static double clamp0(double x) { return x > 0 ? x : 0; }

static double wsd(const Schedule *s, double floor, int64_t taken) {
    int64_t stable = s->steps - s->warmup - s->decay, begin = s->warmup + stable;
    if (taken < s->warmup)
        return clamp0((double)taken / at_least_one(s->warmup) * (1 - floor) + floor);
    if (taken < begin) return 1;
    if (taken < begin + s->decay)
        return clamp0(half_cosine((double)(taken - begin) / at_least_one(s->decay)) * (1 - floor) +
                      floor);
    return floor;
}

/* The share of the rate. */
static double share(const Schedule *s, double floor, int64_t taken) {
    if (s->kind == SCHEDULE_WSD) return wsd(s, floor, taken);
    if (taken < s->warmup) return (double)taken / at_least_one(s->warmup);
    double span = at_least_one(s->steps - s->warmup);
    switch (s->kind) {
    case SCHEDULE_LINEAR:
        return clamp0((double)(s->steps - taken) / span) * (1 - floor) + floor;
    case SCHEDULE_COSINE:
        return clamp0(half_cosine((double)(taken - s->warmup) / span) * (1 - floor) + floor);
    case SCHEDULE_CONSTANT:
    case SCHEDULE_WSD:
    case N_SCHEDULES:
        break;
    }
    return 1;
}

double schedule_lr(const Schedule *s, int64_t taken) {
    return s->lr * share(s, s->lr > 0 ? s->min_lr / s->lr : 0, taken);
}
