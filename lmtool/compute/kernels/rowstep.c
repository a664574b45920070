/* The step of one text through the layers of a Transformer, as a list of operations. */

#include "kernels.h"

enum { LINEAR, NORM, ROTATE, ATTEND, ACTIVATE, ADD, COPY };
enum { RELU, TANH, GELU, GELU_TANH, SILU };

/* n parts of n_in numbers, each to mean square 1, and for LayerNorm (dtype 1) to mean 0 before */
static void norm(const Op *op, const float *x, float *y) {
    for (int part = 0; part < op->n; part++, x += op->n_in, y += op->n_in) {
        float mean = 0, square = 0;
        if (op->dtype) {
            for (int i = 0; i < op->n_in; i++) mean += x[i];
            mean /= op->n_in;
        }
        for (int i = 0; i < op->n_in; i++) square += (x[i] - mean) * (x[i] - mean);
        const float factor = 1 / sqrtf(square / op->n_in + op->eps);
        const float *gain = op->scale;
        for (int i = 0; i < op->n_in; i++)
            y[i] = (x[i] - mean) * factor * (gain ? gain[i] : 1) + (op->bias ? op->bias[i] : 0);
    }
}

/* n heads of n_in numbers; the first n_out of each turn in pairs (i, i + n_out / 2), by cosines and sines of the position */
static void rotate(const Op *op, float *x, int64_t position) {
    const int half = op->n_out / 2;
    const float *cosine = op->scale + position * op->n_out, *sine = op->bias + position * op->n_out;
    for (int head = 0; head < op->n; head++, x += op->n_in)
        for (int i = 0; i < half; i++) {
            const float a = x[i], b = x[i + half];
            x[i] = a * cosine[i] + b * sine[i];
            x[i + half] = b * cosine[i + half] + a * sine[i + half];
        }
}

/* n heads of queries of n_in, m of keys and values, these of n_out; k slots of each; eps: factor of the scores; flag: the
window, 0 for all; bias: (n, k) by the distance to the key. `used`: the keys that there are */
static void attend(const Op *op, const float *q, float *y, int64_t used, int thread, int threads) {
    int64_t from, to;
    share(op->n, thread, threads, &from, &to);
    const int64_t first = op->flag && used > op->flag ? used - op->flag : 0, n_keys = used - first;
    float *scores = malloc(n_keys * sizeof *scores);
    for (int64_t head = from; head < to; head++) {
        const int64_t group = head / (op->n / op->m);
        const float *query = q + head * op->n_in;
        const float *key = op->keys + (group * op->k + first) * op->n_in;
        const float *value = op->values + (group * op->k + first) * op->n_out;
        float largest = -INFINITY, total = 0;
        for (int64_t s = 0; s < n_keys; s++, key += op->n_in) {
            float sum = 0;
            for (int i = 0; i < op->n_in; i++) sum += query[i] * key[i];
            sum *= op->eps;
            if (op->bias) sum += op->bias[head * op->k + n_keys - 1 - s];
            scores[s] = sum;
            largest = fmaxf(largest, sum);
        }
        for (int64_t s = 0; s < n_keys; s++) total += scores[s] = power(scores[s] - largest);
        float *out = y + head * op->n_out;
        for (int i = 0; i < op->n_out; i++) out[i] = 0;
        for (int64_t s = 0; s < n_keys; s++, value += op->n_out)
            for (int i = 0; i < op->n_out; i++) out[i] += scores[s] * value[i];
        for (int i = 0; i < op->n_out; i++) out[i] /= total;
    }
    free(scores);
}

static inline float hyperbolic(float x) {
    const float e = power(-2 * fabsf(x));
    return copysignf((1 - e) / (1 + e), x);
}

static inline float activated(float x, int how) {
    switch (how) {
    case RELU: return fmaxf(x, 0);
    case TANH: return hyperbolic(x);
    case GELU: return 0.5f * x * (1 + erff(x * 0.70710678f));
    case GELU_TANH: return 0.5f * x * (1 + hyperbolic(0.79788456f * (x + 0.044715f * x * x * x)));
    default: {
        const float e = power(-fabsf(x));
        return x > 0 ? x / (1 + e) : x * e / (1 + e);
    }
    }
}

/* flag: n_in gates, and then as many numbers that they multiply */
static void activate(const Op *op, const float *x, float *y, int thread, int threads) {
    int64_t from, to;
    share(op->n_in, thread, threads, &from, &to);
    for (int64_t i = from; i < to; i++) y[i] = activated(x[i], op->dtype) * (op->flag ? x[op->n_in + i] : 1);
}

/* keys and values of this position go where the caches have them, heads of n_in and n_out, m of them, from src and n */
static void remember(const Op *op, const float *memory, int64_t position) {
    for (int64_t head = 0; head < op->m; head++) {
        memcpy(op->keys + (head * op->k + position) * op->n_in, memory + op->src + op->n * op->n_in + head * op->n_in,
               op->n_in * sizeof(float));
        memcpy(op->values + (head * op->k + position) * op->n_out,
               memory + op->src + (op->n + op->m) * op->n_in + head * op->n_out, op->n_out * sizeof(float));
    }
}

static void one(const Op *op, float *memory, int64_t position, int thread, int threads) {
    const float *x = memory + op->src;
    float *y = memory + op->dst;
    switch (op->kind) {
    case LINEAR: linear(op, x, y, 1, thread, threads); break;
    case ATTEND: {
        /* n_rows of a source in `dtype`, whose keys are there */
        const int64_t used = op->dtype ? op->dtype : position + 1;
        if (!op->dtype) {
            if (thread == 0) remember(op, memory, position);
#pragma omp barrier
        }
        attend(op, x, y, used, thread, threads);
        break;
    }
    case ACTIVATE: activate(op, x, y, thread, threads); break;
    default:
        if (thread) break;
        if (op->kind == NORM) norm(op, x, y);
        if (op->kind == ROTATE) rotate(op, y, position);
        if (op->kind == ADD) for (int i = 0; i < op->n_in; i++) y[i] += x[i];
        if (op->kind == COPY) memcpy(y, x, op->n_in * sizeof(float));
    }
#pragma omp barrier
}

/* one token through the operations; position: its own, from 0 */
void step(const Op *ops, int32_t n_ops, float *memory, int64_t position, int32_t threads) {
#pragma omp parallel num_threads(threads)
    for (int i = 0; i < n_ops; i++) one(ops + i, memory, position, omp_get_thread_num(), omp_get_num_threads());
}
