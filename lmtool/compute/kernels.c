/* Products of quantised matrices, the step of one text through the layers of a Transformer, and parts of a training step.

A matrix of O outputs and I inputs lies in blocks of 16 outputs, inputs in order within a block, so that a block is read
once from front to end and its 16 sums stay in registers. O is filled up to a multiple of 16, I of quantised ones to one of 32.

    float32, bfloat16, float16: (O / 16, I, 16)
    int8:  (O / 16, I / 4, 16, 4), values + 128, and a scale for each output
    int4:  (O / 16, I / 32) groups of 32 inputs: 256 bytes (4, 16, 4), inputs 0 to 15 in the low halves and 16 to 31 in the
           high ones, then 16 scales and 16 minima in float16; a weight is scale * value + minimum

Inputs of both have a scale for each group of 32, as sums of products are of whole numbers. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <omp.h>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

enum { FLOAT32, BFLOAT16, FLOAT16, INT8, INT4 };
enum { LINEAR, NORM, ROTATE, ATTEND, ACTIVATE, ADD, COPY };
enum { RELU, TANH, GELU, GELU_TANH, SILU };

typedef float v16f __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));
typedef uint32_t v16u __attribute__((vector_size(64)));
typedef uint16_t v16s __attribute__((vector_size(32)));
typedef uint8_t v64u __attribute__((vector_size(64)));
typedef _Float16 v16h __attribute__((vector_size(32)));
/* 16 numbers anywhere in memory */
typedef struct { v16f all; } __attribute__((packed, may_alias)) floats;
typedef struct { v16s all; } __attribute__((packed, may_alias)) shorts;
typedef struct { v64u all; } __attribute__((packed, may_alias)) bytes;
typedef struct { v16h all; } __attribute__((packed, may_alias)) halves;
#define BYTES(p) (((const bytes *)(p))->all)
#define FLOATS(p) (((const floats *)(p))->all)
#if defined(__AVX512F__)
#define HALVES(p) ((v16f)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p))))
#else
#define HALVES(p) __builtin_convertvector(((const halves *)(p))->all, v16f)
#endif

typedef struct {
    int32_t kind, dtype;      /* of the operation, and of the matrix, or which norm or activation */
    int32_t src, dst;         /* where vectors begin in the scratch memory, in floats */
    int32_t n_in, n_out;      /* widths; of heads: see the operations */
    int32_t n, m, k, flag;
    float eps;
    const void *weight;
    const float *scale, *bias;
    float *keys, *values;
} Op;

/* what a thread does of n parts */
static void share(int64_t n, int thread, int threads, int64_t *from, int64_t *to) {
    *from = n * thread / threads;
    *to = n * (thread + 1) / threads;
}

static inline v16f widened(const uint16_t *p, int dtype) {
    if (dtype == FLOAT16) return HALVES(p);
    v16u bits = __builtin_convertvector(((const shorts *)p)->all, v16u) << 16;
    return (v16f)bits;
}

/* sums += four products for each of 16 outputs; weights are unsigned, inputs signed */
static inline v16i dot4(v16i sums, v64u w, int32_t x4) {
#if defined(__AVX512VNNI__)
    return (v16i)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, _mm512_set1_epi32(x4));
#elif defined(__AVX2__)
    /* no overflow of 16 bits: inputs are below 64 here, or weights below 16 */
    const __m256i x = _mm256_set1_epi32(x4), ones = _mm256_set1_epi16(1);
    __m256i halves_of_w[2], halves_of_sums[2];
    memcpy(halves_of_w, &w, 64);
    memcpy(halves_of_sums, &sums, 64);
    for (int i = 0; i < 2; i++) {
        const __m256i pairs = _mm256_maddubs_epi16(halves_of_w[i], x);
        halves_of_sums[i] = _mm256_add_epi32(halves_of_sums[i], _mm256_madd_epi16(pairs, ones));
    }
    memcpy(&sums, halves_of_sums, 64);
    return sums;
#else
    const int8_t *x = (const int8_t *)&x4;
    for (int r = 0; r < 16; r++)
        for (int j = 0; j < 4; j++) sums[r] += w[4 * r + j] * x[j];
    return sums;
#endif
}

static inline int32_t four(const int8_t *x) {
    int32_t x4;
    memcpy(&x4, x, 4);
    return x4;
}

#if defined(__AVX512VNNI__)
const int largest_input = 127;
#else
const int largest_input = 63;
#endif

/* whole numbers of a group, with their sum; returns the scale */
static float quantise(const float *x, int n, int8_t *whole, int32_t *sum) {
    float largest = 1e-30f, none = 0;
    for (int i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i])), none += x[i] * 0;
    if (none != 0) { /* NaN or infinity among them */
        memset(whole, 0, n);
        *sum = 0;
        return NAN;
    }
    const float inverse = largest_input / largest;
    int32_t total = 0;
    for (int i = 0; i < n; i++) {
        int value = (int)(x[i] * inverse + 256.5f) - 256;
        whole[i] = (int8_t)value;
        total += value;
    }
    *sum = total;
    return largest / largest_input;
}

#define ROWS 8 /* at most, at once; their number is known to the compiler, so that sums are in registers */
#define INLINE static inline __attribute__((always_inline))

INLINE void block_of_floats(const Op *op, int64_t block, const float *x, v16f *out, const int rows) {
    const int n = op->n_in, is_float = op->dtype == FLOAT32;
    const float *w = (const float *)op->weight + block * n * 16;
    const uint16_t *narrow = (const uint16_t *)op->weight + block * n * 16;
    v16f sums[ROWS][2] = {0};
    for (int i = 0; i < n; i += 2) {
        const v16f even = is_float ? FLOATS(w + 16 * i) : widened(narrow + 16 * i, op->dtype);
        for (int r = 0; r < rows; r++) sums[r][0] += even * x[r * n + i];
        if (i + 1 == n) break;
        const v16f odd = is_float ? FLOATS(w + 16 * i + 16) : widened(narrow + 16 * i + 16, op->dtype);
        for (int r = 0; r < rows; r++) sums[r][1] += odd * x[r * n + i + 1];
    }
    for (int r = 0; r < rows; r++) out[r] = sums[r][0] + sums[r][1];
}

typedef struct {
    int8_t *whole; /* (rows, I) */
    float *scales; /* (rows, I / 32) */
    int32_t *sums; /* the same */
} Inputs;

INLINE void block_of_int8(const Op *op, int64_t block, const Inputs *in, v16f *out, const int rows) {
    const int n = op->n_in, groups = n / 32;
    const uint8_t *w = (const uint8_t *)op->weight + block * n * 16;
    v16f sums[ROWS] = {0};
    for (int g = 0; g < groups; g++) {
        v16i whole[ROWS][2] = {0};
        for (int i = 0; i < 32; i += 8, w += 128) {
            const v64u first = BYTES(w), second = BYTES(w + 64);
            for (int r = 0; r < rows; r++) {
                const int8_t *x = in->whole + r * n + 32 * g + i;
                whole[r][0] = dot4(whole[r][0], first, four(x));
                whole[r][1] = dot4(whole[r][1], second, four(x + 4));
            }
        }
        for (int r = 0; r < rows; r++) {
            const v16i all = whole[r][0] + whole[r][1] - 128 * in->sums[r * groups + g];
            sums[r] += __builtin_convertvector(all, v16f) * in->scales[r * groups + g];
        }
    }
    for (int r = 0; r < rows; r++) out[r] = sums[r] * FLOATS(op->scale + 16 * block);
}

INLINE void block_of_int4(const Op *op, int64_t block, const Inputs *in, v16f *out, const int rows) {
    const int n = op->n_in, groups = n / 32;
    const uint8_t *w = (const uint8_t *)op->weight + block * groups * 320;
    v16f sums[ROWS] = {0};
    for (int g = 0; g < groups; g++, w += 320) {
        const v16f scale = HALVES(w + 256), least = HALVES(w + 288);
        v16i whole[ROWS][2] = {0};
        for (int i = 0; i < 4; i++) {
            const v64u both = BYTES(w + 64 * i), low = both & 15, high = both >> 4;
            for (int r = 0; r < rows; r++) {
                const int8_t *x = in->whole + r * n + 32 * g + 4 * i;
                whole[r][0] = dot4(whole[r][0], low, four(x));
                whole[r][1] = dot4(whole[r][1], high, four(x + 16));
            }
        }
        for (int r = 0; r < rows; r++) {
            const v16f all = __builtin_convertvector(whole[r][0] + whole[r][1], v16f);
            sums[r] += (all * scale + least * (float)in->sums[r * groups + g]) * in->scales[r * groups + g];
        }
    }
    for (int r = 0; r < rows; r++) out[r] = sums[r];
}

INLINE void block_of(const Op *op, int64_t block, const float *x, const Inputs *in, v16f *out, const int rows) {
    if (op->dtype == INT8) block_of_int8(op, block, in, out, rows);
    else if (op->dtype == INT4) block_of_int4(op, block, in, out, rows);
    else block_of_floats(op, block, x, out, rows);
}

/* W x + b of rows of inputs, this thread's outputs of them; flag: added to what is there */
static void linear(const Op *op, const float *x, float *y, int64_t n_rows, int thread, int threads) {
    const int n = op->n_in, groups = n / 32;
    int64_t from, to;
    share((op->n_out + 15) / 16, thread, threads, &from, &to);
    if (from == to) return;
    Inputs in = {0};
    if (op->dtype >= INT8) {
        char *memory = malloc(ROWS * (n + 8 * (int64_t)groups));
        in.sums = (int32_t *)memory;
        in.scales = (float *)(in.sums + ROWS * groups);
        in.whole = (int8_t *)(in.scales + ROWS * groups);
    }
    for (int64_t first = 0, rows = ROWS; first < n_rows; first += rows) {
        while (rows > n_rows - first) rows /= 2;
        const float *here = x + first * n;
        if (op->dtype >= INT8)
            for (int i = 0; i < rows * groups; i++)
                in.scales[i] = quantise(here + 32 * (int64_t)i, 32, in.whole + 32 * (int64_t)i, in.sums + i);
        for (int64_t block = from; block < to; block++) {
            v16f out[ROWS];
            switch (rows) {
            case 1: block_of(op, block, here, &in, out, 1); break;
            case 2: block_of(op, block, here, &in, out, 2); break;
            case 4: block_of(op, block, here, &in, out, 4); break;
            default: block_of(op, block, here, &in, out, ROWS);
            }
            const int count = op->n_out - 16 * block < 16 ? op->n_out - 16 * block : 16;
            for (int r = 0; r < rows; r++) {
                float *to_row = y + (first + r) * op->n_out + 16 * block;
                for (int i = 0; i < count; i++) {
                    float value = out[r][i] + (op->bias ? op->bias[16 * block + i] : 0);
                    to_row[i] = op->flag ? to_row[i] + value : value;
                }
            }
        }
    }
    free(in.sums);
}

/* e^x for x <= 0, and 0 where that is hardly a number; without fmaxf and branches, so that several are computed at once */
static inline float power(float x) {
    const float kept = (x < -87.0f ? -87.0f : x) * 1.44269504f;
    const float whole = rintf(kept), f = kept - whole;
    const float p = 1 + f * (0.69314718f + f * (0.24022651f + f * (0.055504109f + f * (0.0096181291f + f * (0.0013333558f + f * 0.00015469f)))));
    int32_t bits = ((int32_t)whole + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return x < -87.0f ? 0 : p * scale;
}

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

/* products of rows of inputs */
void multiply(const Op *op, const float *x, float *y, int64_t n_rows, int32_t threads) {
#pragma omp parallel num_threads(threads)
    linear(op, x, y, n_rows, omp_get_thread_num(), omp_get_num_threads());
}

/* Training: arrays of float32 or, where `narrow`, of bfloat16, and what autograd needs of the same. */

INLINE float at(const void *p, int64_t i, int narrow) {
    if (!narrow) return ((const float *)p)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE void put(void *p, int64_t i, int narrow, float value) {
    if (!narrow) {
        ((float *)p)[i] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits += 0x7fff + (bits >> 16 & 1); /* to the nearest, of two the even one */
    ((uint16_t *)p)[i] = value == value ? bits >> 16 : 0x7fc0;
}

/* calls f with `narrow` as a constant, so that each loop is compiled for its numbers */
#define FOR_BOTH(narrow, f, ...) if (narrow) f(__VA_ARGS__, 1); else f(__VA_ARGS__, 0)

/* random bits of the i-th element, from a seed of 64 bits: an integer hash, so that the backward pass needs no mask */
INLINE uint32_t random_bits(uint32_t i, uint64_t seed) {
    uint32_t x = i * 0x9e3779b9u + (uint32_t)seed;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15 ^ (uint32_t)(seed >> 32)) * 0x846ca68bu;
    return x ^ x >> 16;
}

INLINE void drop_part(const void *x, void *y, int64_t from, int64_t to, uint64_t seed, uint32_t below, float factor, const int narrow) {
    for (int64_t i = from; i < to; i++)
        put(y, i, narrow, random_bits((uint32_t)i, seed) < below ? 0 : factor * at(x, i, narrow));
}

/* y = factor x, but 0 with probability below / 2^32 */
void drop(const void *x, void *y, int64_t n, uint64_t seed, uint32_t below, float factor, int32_t narrow, int32_t threads) {
#pragma omp parallel num_threads(threads)
    {
        int64_t from, to;
        share(n, omp_get_thread_num(), omp_get_num_threads(), &from, &to);
        FOR_BOTH(narrow, drop_part, x, y, from, to, seed, below, factor);
    }
}

INLINE void gate_row(const void *x, const void *dy, void *out, int64_t row, int64_t n, const int narrow) {
    for (int64_t i = row * n; i < row * n + n; i++) {
        const int64_t j = i + row * n;
        const float g = at(x, j, narrow), value = at(x, j + n, narrow);
        const float e = power(-fabsf(g)), s = (g > 0 ? 1 : e) / (1 + e);
        if (!dy) {
            put(out, i, narrow, g * s * value);
            continue;
        }
        const float slope = at(dy, i, narrow);
        put(out, j, narrow, slope * value * s * (1 + g * (1 - s)));
        put(out, j + n, narrow, slope * g * s);
    }
}

/* silu of the first n numbers of each row of x times the other n; with the gradient dy of that, the one of x */
void gate(const void *x, const void *dy, void *out, int64_t rows, int64_t n, int32_t narrow, int32_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        if (dy) { FOR_BOTH(narrow, gate_row, x, dy, out, row, n); }
        else { FOR_BOTH(narrow, gate_row, x, NULL, out, row, n); }
    }
}

/* whole numbers in the order of floats, and back */
INLINE int32_t ordered(int32_t bits) {
    return bits ^ (bits >> 31 & 0x7fffffff);
}

INLINE float entropy_row(const void *x, void *slope, int64_t n, int64_t target, const float *mass, float weight, const int narrow) {
    int32_t highest = INT32_MIN;
    float largest, total = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const float value = at(x, i, narrow);
        int32_t bits;
        memcpy(&bits, &value, 4);
        bits = ordered(bits);
        highest = bits > highest ? bits : highest;
    }
    highest = ordered(highest);
    memcpy(&largest, &highest, 4);
    for (int64_t i = 0; i < n; i++) {
        const float value = at(x, i, narrow);
        total += power(value - largest);
        sum += value;
    }
    const float shift = largest + logf(total), factor = weight / total;
    if (slope) {
        for (int64_t i = 0; i < n; i++) put(slope, i, narrow, power(at(x, i, narrow) - largest) * factor - weight * mass[1]);
        const float p = power(at(x, target, narrow) - largest) / total;
        put(slope, target, narrow, weight * (p - mass[0] - mass[1]));
    }
    return weight * (mass[0] * (shift - at(x, target, narrow)) + (mass[1] ? mass[1] * (n * shift - sum) : 0));
}

/* weight (-mass[0] log p(target) - mass[1] sum log p) of each row of n logits, and its gradient in them, if `slope` is there */
void cross_entropy(const void *x, void *slope, float *loss, const int64_t *targets, const float *weights, const float *mass,
                   int64_t rows, int64_t n, int32_t narrow, int32_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t from = row * n * (narrow ? 2 : 4);
        const char *logits = (const char *)x + from;
        char *to = slope ? (char *)slope + from : NULL;
        if (narrow) loss[row] = entropy_row(logits, to, n, targets[row], mass, weights[row], 1);
        else loss[row] = entropy_row(logits, to, n, targets[row], mass, weights[row], 0);
    }
}

/* rows of n numbers to mean square 1, times a gain; factors: what each row was multiplied by */
void normalise(const float *x, const float *gain, float *y, float *factors, int64_t rows, int64_t n, float eps, int32_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        const float *from = x + row * n;
        float square = 0, *to = y + row * n;
        for (int64_t i = 0; i < n; i++) square += from[i] * from[i];
        const float factor = factors[row] = 1 / sqrtf(square / n + eps);
        for (int64_t i = 0; i < n; i++) to[i] = from[i] * factor * gain[i];
    }
}

/* the gradients of that: dx (rows, n), and of each thread the one of the gain (threads, n), to which it adds */
void normalise_slopes(const float *x, const float *gain, const float *factors, const float *dy, float *dx, float *dgain,
                      int64_t rows, int64_t n, int32_t threads) {
#pragma omp parallel num_threads(threads)
    {
        int64_t first, last;
        const int thread = omp_get_thread_num();
        share(rows, thread, omp_get_num_threads(), &first, &last);
        float *sums = dgain + thread * n;
        for (int64_t row = first; row < last; row++) {
            const float *from = x + row * n, *slope = dy + row * n, factor = factors[row];
            float *to = dx + row * n, common = 0;
            for (int64_t i = 0; i < n; i++) common += slope[i] * gain[i] * from[i];
            common *= factor * factor / n;
            for (int64_t i = 0; i < n; i++) {
                to[i] = factor * (slope[i] * gain[i] - from[i] * common);
                sums[i] += slope[i] * from[i] * factor;
            }
        }
    }
}

typedef struct {
    int64_t rows, heads, positions, width, rotated;
    int64_t row, head, position; /* strides of the input, in numbers */
    int64_t of_row;              /* from one row of angles to the next, 0 if all rows have the same */
} Rotation;

INLINE void rotate_head(const Rotation *t, const void *x, void *y, const void *cosine, const void *sine, float sign, int64_t number, const int narrow) {
    const int64_t row = number / (t->heads * t->positions), head = number / t->positions % t->heads, position = number % t->positions;
    const int64_t half = t->rotated / 2, angle = row * t->of_row + position * t->rotated;
    const int64_t from = row * t->row + head * t->head + position * t->position, to = number * t->width;
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        const float a = at(x, from + i, narrow), b = at(x, from + half + i, narrow);
        put(y, to + i, narrow, a * at(cosine, angle + i, narrow) + sign * b * at(sine, angle + i, narrow));
        put(y, to + half + i, narrow, b * at(cosine, angle + half + i, narrow) + sign * a * at(sine, angle + half + i, narrow));
    }
    for (int64_t i = t->rotated; i < t->width; i++) put(y, to + i, narrow, at(x, from + i, narrow));
}

/* heads rotated in pairs as in `rotate`, y without gaps; sign -1 rotates back, which is the gradient */
void rotate_heads(const Rotation *t, const void *x, void *y, const void *cosine, const void *sine, float sign, int32_t narrow, int32_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t number = 0; number < t->rows * t->heads * t->positions; number++)
        FOR_BOTH(narrow, rotate_head, t, x, y, cosine, sine, sign, number);
}
