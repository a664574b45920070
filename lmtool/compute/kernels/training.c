/* Operators of training, forward and backward, on arrays of float32 or, where `is_bf16`, of bfloat16. */

#include "kernels.h"

INLINE float load(const void *p, int64_t i, int is_bf16) {
    if (!is_bf16) return ((const float *)p)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE void store(void *p, int64_t i, int is_bf16, float value) {
    if (!is_bf16) {
        ((float *)p)[i] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits += 0x7fff + (bits >> 16 & 1); /* to the nearest, of two the even one */
    ((uint16_t *)p)[i] = value == value ? bits >> 16 : 0x7fc0;
}

/* calls f with `is_bf16` as a constant, so that each loop is compiled for its numbers */
#define FOR_EACH_TYPE(is_bf16, f, ...) if (is_bf16) f(__VA_ARGS__, 1); else f(__VA_ARGS__, 0)

/* random bits of the i-th element, from a seed of 64 bits: an integer hash, so that the backward pass needs no mask */
INLINE uint32_t random_bits(uint32_t i, uint64_t seed) {
    uint32_t x = i * 0x9e3779b9u + (uint32_t)seed;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15 ^ (uint32_t)(seed >> 32)) * 0x846ca68bu;
    return x ^ x >> 16;
}

INLINE void drop_range(const void *x, void *y, int64_t from, int64_t to, uint64_t seed, uint32_t below, float factor,
                       const int is_bf16) {
    for (int64_t i = from; i < to; i++)
        store(y, i, is_bf16, random_bits((uint32_t)i, seed) < below ? 0 : factor * load(x, i, is_bf16));
}

/* y = factor x, but 0 with probability below / 2^32 */
void dropout(const void *x, void *y, int64_t n, const uint64_t *seed, uint32_t below, float factor, int32_t is_bf16,
             int32_t n_threads) {
#pragma omp parallel num_threads(n_threads)
    {
        int64_t from, to;
        split_range(n, omp_get_thread_num(), omp_get_num_threads(), &from, &to);
        FOR_EACH_TYPE(is_bf16, drop_range, x, y, from, to, *seed, below, factor);
    }
}

INLINE void swiglu_row(const void *x, const void *dy, void *out, int64_t row, int64_t n, const int is_bf16) {
    for (int64_t i = row * n; i < row * n + n; i++) {
        const int64_t j = i + row * n;
        const float g = load(x, j, is_bf16), value = load(x, j + n, is_bf16);
        const float e = exp_nonpositive(-fabsf(g)), s = (g > 0 ? 1 : e) / (1 + e);
        if (!dy) {
            store(out, i, is_bf16, g * s * value);
            continue;
        }
        const float grad = load(dy, i, is_bf16);
        store(out, j, is_bf16, grad * value * s * (1 + g * (1 - s)));
        store(out, j + n, is_bf16, grad * g * s);
    }
}

/* silu of the first n numbers of each row of x times the other n; with the gradient dy of that, the one of x */
void swiglu(const void *x, const void *dy, void *out, int64_t rows, int64_t n, int32_t is_bf16, int32_t n_threads) {
#pragma omp parallel for num_threads(n_threads)
    for (int64_t row = 0; row < rows; row++) {
        if (dy) { FOR_EACH_TYPE(is_bf16, swiglu_row, x, dy, out, row, n); }
        else { FOR_EACH_TYPE(is_bf16, swiglu_row, x, NULL, out, row, n); }
    }
}

/* whole numbers in the order of floats, and back */
INLINE int32_t to_ordered_int(int32_t bits) {
    return bits ^ (bits >> 31 & 0x7fffffff);
}

INLINE float cross_entropy_row(const void *x, void *grad, int64_t n, int64_t target, const float *mass, float weight,
                               const int is_bf16) {
    int32_t highest = INT32_MIN;
    float largest, total = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const float value = load(x, i, is_bf16);
        int32_t bits;
        memcpy(&bits, &value, 4);
        bits = to_ordered_int(bits);
        highest = bits > highest ? bits : highest;
    }
    highest = to_ordered_int(highest);
    memcpy(&largest, &highest, 4);
    for (int64_t i = 0; i < n;) { /* sums of few numbers each, whose rounding errors are smaller */
        const int64_t end = i + 256 < n ? i + 256 : n;
        float part_of_total = 0, part_of_sum = 0;
        for (; i < end; i++) {
            const float value = load(x, i, is_bf16);
            part_of_total += exp_nonpositive(value - largest);
            part_of_sum += value;
        }
        total += part_of_total;
        sum += part_of_sum;
    }
    const float shift = largest + logf(total), factor = weight / total;
    if (grad) {
        for (int64_t i = 0; i < n; i++)
            store(grad, i, is_bf16, exp_nonpositive(load(x, i, is_bf16) - largest) * factor - weight * mass[1]);
        const float p = exp_nonpositive(load(x, target, is_bf16) - largest) / total;
        store(grad, target, is_bf16, weight * (p - mass[0] - mass[1]));
    }
    return weight * (mass[0] * (shift - load(x, target, is_bf16)) + (mass[1] ? mass[1] * (n * shift - sum) : 0));
}

/* weight (-mass[0] log p(target) - mass[1] sum log p) of each row of n logits, and, unless `grad` is NULL, the gradient
of the logits */
void cross_entropy(const void *x, void *grad, float *loss, const int64_t *targets, const float *weights,
                   const float *mass, int64_t rows, int64_t n, int32_t is_bf16, int32_t n_threads) {
#pragma omp parallel for num_threads(n_threads)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t from = row * n * (is_bf16 ? 2 : 4);
        const char *logits = (const char *)x + from;
        char *to = grad ? (char *)grad + from : NULL;
        if (is_bf16) loss[row] = cross_entropy_row(logits, to, n, targets[row], mass, weights[row], 1);
        else loss[row] = cross_entropy_row(logits, to, n, targets[row], mass, weights[row], 0);
    }
}

/* rows of n numbers to mean square 1, times a gain; factors: what each row was multiplied by */
void rms_norm(const float *x, const float *gain, float *y, float *factors, int64_t rows, int64_t n, float eps,
              int32_t n_threads) {
#pragma omp parallel for num_threads(n_threads)
    for (int64_t row = 0; row < rows; row++) {
        const float *from = x + row * n;
        float square = 0, *to = y + row * n;
        for (int64_t i = 0; i < n; i++) square += from[i] * from[i];
        const float factor = factors[row] = 1 / sqrtf(square / n + eps);
        for (int64_t i = 0; i < n; i++) to[i] = from[i] * factor * gain[i];
    }
}

/* the gradients of that: dx (rows, n), and of each thread the one of the gain (n_threads, n), to which it adds */
void rms_norm_backward(const float *x, const float *gain, const float *factors, const float *dy, float *dx,
                       float *dgain, int64_t rows, int64_t n, int32_t n_threads) {
#pragma omp parallel num_threads(n_threads)
    {
        int64_t first, last;
        const int thread = omp_get_thread_num();
        split_range(rows, thread, omp_get_num_threads(), &first, &last);
        float *sums = dgain + thread * n;
        for (int64_t row = first; row < last; row++) {
            const float *from = x + row * n, *grad = dy + row * n, factor = factors[row];
            float *to = dx + row * n, common = 0;
            for (int64_t i = 0; i < n; i++) common += grad[i] * gain[i] * from[i];
            common *= factor * factor / n;
            for (int64_t i = 0; i < n; i++) {
                to[i] = factor * (grad[i] * gain[i] - from[i] * common);
                sums[i] += grad[i] * from[i] * factor;
            }
        }
    }
}

typedef struct {
    int64_t rows, heads, positions, width, rotated;
    int64_t row, head, position; /* strides of the input, in numbers */
    int64_t of_row;              /* from one row of angles to the next, 0 if all rows have the same */
} Rotation;

INLINE void rotate_head(const Rotation *t, const void *x, void *y, const void *cosine, const void *sine, float sign,
                        int64_t number, const int is_bf16) {
    const int64_t row = number / (t->heads * t->positions), head = number / t->positions % t->heads;
    const int64_t position = number % t->positions;
    const int64_t half = t->rotated / 2, angle = row * t->of_row + position * t->rotated;
    const int64_t from = row * t->row + head * t->head + position * t->position, to = number * t->width;
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        const float a = load(x, from + i, is_bf16), b = load(x, from + half + i, is_bf16);
        const int64_t second = angle + half + i;
        store(y, to + i, is_bf16, a * load(cosine, angle + i, is_bf16) + sign * b * load(sine, angle + i, is_bf16));
        store(y, to + half + i, is_bf16, b * load(cosine, second, is_bf16) + sign * a * load(sine, second, is_bf16));
    }
    for (int64_t i = t->rotated; i < t->width; i++) store(y, to + i, is_bf16, load(x, from + i, is_bf16));
}

/* heads rotated in pairs as in `rotate`, y without gaps; sign -1 rotates back, which is the gradient */
void rotary(const Rotation *t, const void *x, void *y, const void *cosine, const void *sine, float sign,
            int32_t is_bf16, int32_t n_threads) {
#pragma omp parallel for num_threads(n_threads)
    for (int64_t number = 0; number < t->rows * t->heads * t->positions; number++)
        FOR_EACH_TYPE(is_bf16, rotate_head, t, x, y, cosine, sine, sign, number);
}
