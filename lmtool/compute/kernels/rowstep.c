/* The step of one text through the layers of a Transformer, as a list of operations on vectors in a scratch memory. */

#include "kernels.h"

enum { LINEAR, NORM, ROTATE, ATTEND, ACTIVATE, ADD, COPY, GATE }; /* the order of the fields of `Operation` */
enum { RELU, TANH, GELU, GELU_TANH, SILU, RELU_SQUARED };

/* y = W x + b, or y += that */
typedef struct { Matrix matrix; int32_t adds; } Linear;

/* parts of `width` numbers, each to mean square 1 and, if centred as in LayerNorm, to mean 0 before; gain, bias: may be
NULL */
typedef struct { const float *gain, *bias; int32_t n_parts, width, is_centered; float eps; } Norm;

/* heads whose first `n_rotated` numbers turn in pairs (i, i + n_rotated / 2), by the angles (positions, n_rotated) */
typedef struct { const float *cosines, *sines; int32_t n_heads, width, n_rotated; } Rotate;

/* attention of one position to keys and values (n_kv_heads, n_slots, width). The queries of all heads lie at src, and
behind them, unless a source was read, the keys and values of this position.
    bias: (n_heads, n_slots) by the distance to the key, or NULL. window: 0 for all.
    n_source: positions of a source, or 0 */
typedef struct {
    float *keys, *values;
    const float *bias;
    int32_t n_heads, n_kv_heads, key_width, value_width, n_slots, window, n_source;
    float scale;
} Attend;

/* `width` numbers, which are gates of as many that follow them if is_gated */
typedef struct { int32_t function, width, is_gated; } Activate;

/* y = own_scale y + scale x */
typedef struct { int32_t width; float own_scale, scale; } Add;

/* y = x */
typedef struct { int32_t width; } Copy;

/* each of `n_gates` parts of y, `width` numbers, times the sigmoid of its gate in x */
typedef struct { int32_t n_gates, width; } Gate;

typedef struct {
    int32_t kind;
    int32_t src, dst; /* where x and y begin, in numbers */
    union { Linear linear; Norm norm; Rotate rotate; Attend attend; Activate activate; Add add; Copy copy; Gate gate; };
} Operation;

static void norm(const Norm *op, const float *x, float *y) {
    for (int part = 0; part < op->n_parts; part++, x += op->width, y += op->width) {
        float mean = 0, square = 0;
        if (op->is_centered) {
            for (int i = 0; i < op->width; i++) mean += x[i];
            mean /= op->width;
        }
        for (int i = 0; i < op->width; i++) square += (x[i] - mean) * (x[i] - mean);
        const float factor = 1 / sqrtf(square / op->width + op->eps);
        for (int i = 0; i < op->width; i++)
            y[i] = (x[i] - mean) * factor * (op->gain ? op->gain[i] : 1) + (op->bias ? op->bias[i] : 0);
    }
}

static void rotate(const Rotate *op, float *x, int64_t position) {
    const int half = op->n_rotated / 2;
    const float *cosine = op->cosines + position * op->n_rotated, *sine = op->sines + position * op->n_rotated;
    for (int head = 0; head < op->n_heads; head++, x += op->width)
        for (int i = 0; i < half; i++) {
            const float a = x[i], b = x[i + half];
            x[i] = a * cosine[i] + b * sine[i];
            x[i + half] = b * cosine[i + half] + a * sine[i + half];
        }
}

/* keys and values of this position, which lie behind the queries, go where the caches have them */
static void append_to_cache(const Attend *op, const float *x, int64_t position) {
    const float *keys = x + op->n_heads * op->key_width, *values = keys + op->n_kv_heads * op->key_width;
    for (int64_t head = 0; head < op->n_kv_heads; head++) {
        const int64_t slot = head * op->n_slots + position;
        memcpy(op->keys + slot * op->key_width, keys + head * op->key_width, op->key_width * sizeof(float));
        memcpy(op->values + slot * op->value_width, values + head * op->value_width, op->value_width * sizeof(float));
    }
}

/* n_cached: number of keys in the cache */
static void attend(const Attend *op, const float *x, float *y, int64_t n_cached, int thread, int n_threads) {
    int64_t from, to;
    split_range(op->n_heads, thread, n_threads, &from, &to);
    const int64_t first = op->window && n_cached > op->window ? n_cached - op->window : 0, n_keys = n_cached - first;
    float *scores = malloc(n_keys * sizeof *scores);
    for (int64_t head = from; head < to; head++) {
        const int64_t slot = head / (op->n_heads / op->n_kv_heads) * op->n_slots + first;
        const float *query = x + head * op->key_width;
        const float *key = op->keys + slot * op->key_width, *value = op->values + slot * op->value_width;
        float largest = -INFINITY, total = 0;
        for (int64_t s = 0; s < n_keys; s++, key += op->key_width) {
            float sum = 0;
            for (int i = 0; i < op->key_width; i++) sum += query[i] * key[i];
            sum *= op->scale;
            if (op->bias) sum += op->bias[head * op->n_slots + n_keys - 1 - s];
            scores[s] = sum;
            largest = fmaxf(largest, sum);
        }
        for (int64_t s = 0; s < n_keys; s++) total += scores[s] = exp_nonpositive(scores[s] - largest);
        float *out = y + head * op->value_width;
        for (int i = 0; i < op->value_width; i++) out[i] = 0;
        for (int64_t s = 0; s < n_keys; s++, value += op->value_width)
            for (int i = 0; i < op->value_width; i++) out[i] += scores[s] * value[i];
        for (int i = 0; i < op->value_width; i++) out[i] /= total;
    }
    free(scores);
}

static inline float fast_tanh(float x) {
    const float e = exp_nonpositive(-2 * fabsf(x));
    return copysignf((1 - e) / (1 + e), x);
}

static inline float apply_activation(float x, int function) {
    switch (function) {
    case RELU: return fmaxf(x, 0);
    case RELU_SQUARED: return fmaxf(x, 0) * fmaxf(x, 0);
    case TANH: return fast_tanh(x);
    case GELU: return 0.5f * x * (1 + erff(x * 0.70710678f));
    case GELU_TANH: return 0.5f * x * (1 + fast_tanh(0.79788456f * (x + 0.044715f * x * x * x)));
    default: {
        const float e = exp_nonpositive(-fabsf(x));
        return x > 0 ? x / (1 + e) : x * e / (1 + e);
    }
    }
}

static void activate(const Activate *op, const float *x, float *y, int thread, int n_threads) {
    int64_t from, to;
    split_range(op->width, thread, n_threads, &from, &to);
    for (int64_t i = from; i < to; i++)
        y[i] = apply_activation(x[i], op->function) * (op->is_gated ? x[op->width + i] : 1);
}

static void gate(const Gate *op, const float *x, float *y, int thread, int n_threads) {
    int64_t from, to;
    split_range(op->n_gates, thread, n_threads, &from, &to);
    for (int64_t i = from; i < to; i++)
        for (int64_t j = i * op->width; j < (i + 1) * op->width; j++) y[j] *= 0.5f + 0.5f * fast_tanh(0.5f * x[i]);
}

/* one operation by a thread; where only the first computes, the others wait */
static void compute(const Operation *op, float *memory, int64_t position, int thread, int n_threads) {
    const float *x = memory + op->src;
    float *y = memory + op->dst;
    const int is_first = thread == 0;
    switch (op->kind) {
    case LINEAR: linear(&op->linear.matrix, x, y, 1, op->linear.adds, thread, n_threads); break;
    case NORM: if (is_first) norm(&op->norm, x, y); break;
    case ROTATE: if (is_first) rotate(&op->rotate, y, position); break;
    case ATTEND:
        if (!op->attend.n_source) {
            if (is_first) append_to_cache(&op->attend, x, position);
#pragma omp barrier
        }
        attend(&op->attend, x, y, op->attend.n_source ? op->attend.n_source : position + 1, thread, n_threads);
        break;
    case ACTIVATE: activate(&op->activate, x, y, thread, n_threads); break;
    case ADD:
        if (is_first) for (int i = 0; i < op->add.width; i++) y[i] = op->add.own_scale * y[i] + op->add.scale * x[i];
        break;
    case GATE: gate(&op->gate, x, y, thread, n_threads); break;
    case COPY: if (is_first) memcpy(y, x, op->copy.width * sizeof(float));
    }
#pragma omp barrier
}

/* one token through the operations; position: its own, from 0 */
void step(const Operation *operations, int32_t n, float *memory, int64_t position, int32_t n_threads) {
#pragma omp parallel num_threads(n_threads)
    for (int i = 0; i < n; i++) compute(operations + i, memory, position, omp_get_thread_num(), omp_get_num_threads());
}
