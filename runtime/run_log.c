/* run_log.c - one JSON object per step with all digits of a double, and progress on stderr: a bar
 * that is redrawn at most ten times a second on a terminal, every tenth step and the last as a line
 * elsewhere. The file has a buffer of its own and is flushed per step. */
#include "run_log.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 16, BAR = 24 };

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static trainc_status cannot(const char *path, Fail *f) {
    return fail_set(f, TRAINC_BAD_DATA, "cannot write %s: %s", path, strerror(errno));
}

trainc_status log_open(RunLog *l, const char *path, bool append, Fail *f) {
    *l = (RunLog){.is_terminal = isatty(STDERR_FILENO) == 1, .begun_ms = now_ms(), .first = -1};
    if (!path) return TRAINC_OK;
    l->file = fopen(path, append ? "ae" : "we");
    if (!l->file) return cannot(path, f);
    l->buffer = malloc(BUFFER_BYTES);
    if (l->buffer) setvbuf(l->file, l->buffer, _IOFBF, BUFFER_BYTES);
    return TRAINC_OK;
}

trainc_status log_close(RunLog *l, const char *path, Fail *f) {
    bool bad = l->file && fclose(l->file) != 0;
    free(l->buffer);
    *l = (RunLog){0};
    return bad ? cannot(path, f) : TRAINC_OK;
}

static void put_number(FILE *out, const char *key, double x) {
    if (isfinite(x))
        fprintf(out, ", \"%s\": %.17g", key, x);
    else
        fprintf(out, ", \"%s\": null", key);
}

static void write_json(FILE *out, const StepReport *p) {
    const trainc_result *r = &p->result;
    double s = r->ms > 0 ? 1e3 / r->ms : 0;
    fprintf(out, "{\"step\": %" PRId64, r->step);
    put_number(out, "loss", r->counted > 0 ? r->loss : (double)NAN);
    put_number(out, "lr", r->lr);
    put_number(out, "grad_norm", r->skipped ? (double)NAN : r->grad_norm);
    put_number(out, "loss_scale", r->loss_scale);
    fprintf(out, ", \"skipped\": %s", r->skipped ? "true" : "false");
    put_number(out, "samples_per_s", (double)p->samples * s);
    put_number(out, "tokens_per_s", (double)p->tokens * s);
    put_number(out, "ms", r->ms);
    fprintf(out, ", \"arena_bytes\": %" PRIu64, p->arena_bytes);
    if (p->has_eval) put_number(out, "eval_loss", p->eval_loss);
    for (uint32_t i = 0; p->has_eval && i < p->n_metrics; i++) {
        char key[64];
        snprintf(key, sizeof key, "eval_%s", p->metrics[i].name);
        put_number(out, key, p->metrics[i].value);
    }
    fputs("}\n", out);
}

static const char *size_text(char *buf, size_t cap, double bytes) {
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB"};
    int u = 0;
    for (; bytes >= 1000 && u < 4; u++) bytes /= 1000;
    snprintf(buf, cap, "%.*f %s", bytes < 10 && u ? 2 : bytes < 100 && u ? 1 : 0, bytes, units[u]);
    return buf;
}

static const char *time_text(char *buf, size_t cap, double seconds) {
    long s = (long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(buf, cap, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(buf, cap, "%ld:%02ld", s / 60, s % 60);
    return buf;
}

static void rate_text(char *buf, size_t cap, const StepReport *p) {
    double s = p->result.ms > 0 ? 1e3 / p->result.ms : 0;
    bool tokens = p->tokens != p->samples;
    snprintf(buf, cap, "%.*f %s/s", (double)(tokens ? p->tokens : p->samples) * s < 10 ? 1 : 0,
             (double)(tokens ? p->tokens : p->samples) * s, tokens ? "tokens" : "samples");
}

static const char *loss_text(char *buf, size_t cap, const StepReport *p, int digits) {
    if (p->result.skipped)
        return p->result.counted > 0 ? "skipped (gradients overflow)" : "skipped (no label counts)";
    snprintf(buf, cap, "loss %.*f", digits, p->result.loss);
    return buf;
}

static void draw_bar(RunLog *l, const StepReport *p, double now) {
    char memory[32], eta[32], rate[64], loss[48], bar[BAR + 1];
    int64_t done = p->result.step, total = p->total_steps;
    int filled = total > 0 ? (int)(done * BAR / total) : BAR;
    for (int i = 0; i < BAR; i++) bar[i] = i < filled ? '#' : '.';
    bar[BAR] = 0;
    rate_text(rate, sizeof rate, p);
    int64_t here = done - l->first;
    double left = here > 0 ? (now - l->begun_ms) / (double)here * (double)(total - done) / 1e3 : 0;
    fprintf(stderr, "\r[%s] %" PRId64 "/%" PRId64 "  %s  %.1f ms  %s  %s  %s left\033[K", bar, done,
            total, loss_text(loss, sizeof loss, p, 4), p->result.ms, rate,
            size_text(memory, sizeof memory, (double)p->arena_bytes),
            time_text(eta, sizeof eta, left));
    fflush(stderr);
    l->drawn_ms = now;
}

static void print_line(const StepReport *p) {
    char rate[64], memory[32], loss[48];
    rate_text(rate, sizeof rate, p);
    fprintf(stderr, "step %" PRId64 "/%" PRId64 "  %s  lr %.3g  %.1f ms  %s  %s\n", p->result.step,
            p->total_steps, loss_text(loss, sizeof loss, p, 6), p->result.lr, p->result.ms, rate,
            size_text(memory, sizeof memory, (double)p->arena_bytes));
}

static void say_eval(RunLog *l, const StepReport *p) {
    char text[512];
    int n = snprintf(text, sizeof text, "step %" PRId64 "  eval_loss %.6f", p->result.step,
                     p->eval_loss);
    for (uint32_t i = 0; i < p->n_metrics && n > 0 && (size_t)n < sizeof text; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "  %s %.4f", p->metrics[i].name,
                      p->metrics[i].value);
    log_say(l, "%s", text);
}

trainc_status log_step(RunLog *l, const StepReport *p, const char *path, Fail *f) {
    double now = now_ms();
    bool last = p->result.step >= p->total_steps;
    if (l->first < 0) l->first = p->result.step - 1;
    if (l->is_terminal && (last || now - l->drawn_ms >= 100)) draw_bar(l, p, now);
    if (l->is_terminal && last) fputs("\n", stderr);
    if (!l->is_terminal && (last || p->result.step % 10 == 0)) print_line(p);
    if (p->has_eval) say_eval(l, p);
    if (!l->file) return TRAINC_OK;
    write_json(l->file, p);
    return fflush(l->file) == 0 && !ferror(l->file) ? TRAINC_OK : cannot(path, f);
}

void log_say(RunLog *l, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    if (l->is_terminal) fputs("\r\033[K", stderr);
    vfprintf(stderr, fmt, ap);
    fputs("\n", stderr);
    va_end(ap);
}
