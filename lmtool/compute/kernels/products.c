/* Products of quantized matrices.

A matrix of O outputs and I inputs lies in blocks of 16 outputs, inputs in order within a block, so that a block is read
once from front to end and its 16 sums stay in registers. O is padded to a multiple of 16; I of quantized matrices is a
multiple of 32.

    float32, bfloat16, float16: (O / 16, I, 16)
    int8:  (O / 16, I / 4, 16, 4), values + 128, and a scale for each output
    int4:  (O / 16, I / 32) groups of 32 inputs: 256 bytes (4, 16, 4), inputs 0 to 15 in the low halves and 16 to 31 in
           the high ones, then 16 scales and 16 minima in float16; a weight is scale * value + minimum

Inputs of both are rounded to whole numbers, too, with a scale for each group of 32. */

#include "kernels.h"
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

typedef float v16f __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));
typedef uint32_t v16u __attribute__((vector_size(64)));
typedef uint16_t v16s __attribute__((vector_size(32)));
typedef uint8_t v64u __attribute__((vector_size(64)));
/* 16 numbers anywhere in memory */
typedef struct { v16f all; } __attribute__((packed, may_alias)) floats;
typedef struct { v16s all; } __attribute__((packed, may_alias)) shorts;
typedef struct { v64u all; } __attribute__((packed, may_alias)) bytes;
#define LOAD_BYTES(p) (((const bytes *)(p))->all)
#define LOAD_FLOATS(p) (((const floats *)(p))->all)
#if defined(__AVX512F__)
#define LOAD_HALVES(p) ((v16f)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p))))
#elif defined(__FLT16_MAX__)
typedef _Float16 v16h __attribute__((vector_size(32)));
typedef struct { v16h all; } __attribute__((packed, may_alias)) halves;
#define LOAD_HALVES(p) __builtin_convertvector(((const halves *)(p))->all, v16f)
#else
/* the exponents differ by 112, but for infinity and NaN */
INLINE v16f halves_as_floats(const void *p) {
    const v16u half = __builtin_convertvector(((const shorts *)p)->all, v16u), magnitude = half & 0x7fff;
    const v16u bits = (v16u)((v16f)(magnitude << 13) * 0x1p112f);
    return (v16f)(bits | (half & 0x8000) << 16 | (v16u)(magnitude >= 0x7c00) & 0x7f800000u);
}
#define LOAD_HALVES(p) halves_as_floats(p)
#endif

static inline v16f load_16bit(const uint16_t *p, int dtype) {
    if (dtype == FLOAT16) return LOAD_HALVES(p);
    v16u bits = __builtin_convertvector(((const shorts *)p)->all, v16u) << 16;
    return (v16f)bits;
}

/* sums += four products for each of 16 outputs; weights are unsigned, inputs signed */
static inline v16i add_dot4(v16i sums, v64u w, int32_t x4) {
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

static inline int32_t load_4_inputs(const int8_t *x) {
    int32_t x4;
    memcpy(&x4, x, 4);
    return x4;
}

#if defined(__AVX512VNNI__)
const int max_quantized_input = 127;
#else
const int max_quantized_input = 63;
#endif

/* whole numbers of a group, with their sum; returns the scale */
static float quantize_group(const float *x, int n, int8_t *whole, int32_t *sum) {
    float largest = 1e-30f;
    int32_t highest, bits; /* of magnitudes, whose bits are in their order */
    memcpy(&highest, &largest, 4);
    for (int i = 0; i < n; i++) {
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        highest = bits > highest ? bits : highest;
    }
    if (highest >= 0x7f800000) { /* NaN or infinity among them */
        memset(whole, 0, n);
        *sum = 0;
        return NAN;
    }
    memcpy(&largest, &highest, 4);
    const float inverse = max_quantized_input / largest;
    int32_t total = 0;
    for (int i = 0; i < n; i++) {
        int value = (int)(x[i] * inverse + 256.5f) - 256;
        whole[i] = (int8_t)value;
        total += value;
    }
    *sum = total;
    return largest / max_quantized_input;
}

#define ROWS 8 /* at most, at once; their number is known to the compiler, so that sums are in registers */

INLINE void multiply_float_block(const Matrix *m, int64_t block, const float *x, v16f *out, const int rows) {
    const int n = m->n_in, is_float = m->dtype == FLOAT32;
    const float *w = (const float *)m->weight + block * n * 16;
    const uint16_t *w16 = (const uint16_t *)m->weight + block * n * 16;
    v16f sums[ROWS][2] = {0};
    for (int i = 0; i < n; i += 2) {
        const v16f even = is_float ? LOAD_FLOATS(w + 16 * i) : load_16bit(w16 + 16 * i, m->dtype);
        for (int r = 0; r < rows; r++) sums[r][0] += even * x[r * n + i];
        if (i + 1 == n) break;
        const v16f odd = is_float ? LOAD_FLOATS(w + 16 * i + 16) : load_16bit(w16 + 16 * i + 16, m->dtype);
        for (int r = 0; r < rows; r++) sums[r][1] += odd * x[r * n + i + 1];
    }
    for (int r = 0; r < rows; r++) out[r] = sums[r][0] + sums[r][1];
}

typedef struct {
    int8_t *whole; /* (rows, I) */
    float *scales; /* (rows, I / 32) */
    int32_t *sums; /* the same */
} QuantizedInputs;

INLINE void multiply_int8_block(const Matrix *m, int64_t block, const QuantizedInputs *in, v16f *out, const int rows) {
    const int n = m->n_in, groups = n / 32;
    const uint8_t *w = (const uint8_t *)m->weight + block * n * 16;
    v16f sums[ROWS] = {0};
    for (int g = 0; g < groups; g++) {
        v16i whole[ROWS][2] = {0};
        for (int i = 0; i < 32; i += 8, w += 128) {
            const v64u first = LOAD_BYTES(w), second = LOAD_BYTES(w + 64);
            for (int r = 0; r < rows; r++) {
                const int8_t *x = in->whole + r * n + 32 * g + i;
                whole[r][0] = add_dot4(whole[r][0], first, load_4_inputs(x));
                whole[r][1] = add_dot4(whole[r][1], second, load_4_inputs(x + 4));
            }
        }
        for (int r = 0; r < rows; r++) {
            const v16i all = whole[r][0] + whole[r][1] - 128 * in->sums[r * groups + g];
            sums[r] += __builtin_convertvector(all, v16f) * in->scales[r * groups + g];
        }
    }
    for (int r = 0; r < rows; r++) out[r] = sums[r] * LOAD_FLOATS(m->scale + 16 * block);
}

INLINE void multiply_int4_block(const Matrix *m, int64_t block, const QuantizedInputs *in, v16f *out, const int rows) {
    const int n = m->n_in, groups = n / 32;
    const uint8_t *w = (const uint8_t *)m->weight + block * groups * 320;
    v16f sums[ROWS] = {0};
    for (int g = 0; g < groups; g++, w += 320) {
        const v16f scale = LOAD_HALVES(w + 256), least = LOAD_HALVES(w + 288);
        v16i whole[ROWS][2] = {0};
        for (int i = 0; i < 4; i++) {
            const v64u both = LOAD_BYTES(w + 64 * i), low = both & 15, high = both >> 4;
            for (int r = 0; r < rows; r++) {
                const int8_t *x = in->whole + r * n + 32 * g + 4 * i;
                whole[r][0] = add_dot4(whole[r][0], low, load_4_inputs(x));
                whole[r][1] = add_dot4(whole[r][1], high, load_4_inputs(x + 16));
            }
        }
        for (int r = 0; r < rows; r++) {
            const v16f all = __builtin_convertvector(whole[r][0] + whole[r][1], v16f);
            sums[r] += (all * scale + least * (float)in->sums[r * groups + g]) * in->scales[r * groups + g];
        }
    }
    for (int r = 0; r < rows; r++) out[r] = sums[r];
}

INLINE void multiply_block(const Matrix *m, int64_t block, const float *x, const QuantizedInputs *in, v16f *out,
                           const int rows) {
    if (m->dtype == INT8) multiply_int8_block(m, block, in, out, rows);
    else if (m->dtype == INT4) multiply_int4_block(m, block, in, out, rows);
    else multiply_float_block(m, block, x, out, rows);
}

void linear(const Matrix *m, const float *x, float *y, int64_t n_rows, int adds, int thread, int n_threads) {
    const int n = m->n_in, groups = n / 32;
    int64_t from, to;
    split_range((m->n_out + 15) / 16, thread, n_threads, &from, &to);
    if (from == to) return;
    QuantizedInputs in = {0};
    if (m->dtype >= INT8) {
        char *memory = malloc(ROWS * (n + 8 * (int64_t)groups));
        in.sums = (int32_t *)memory;
        in.scales = (float *)(in.sums + ROWS * groups);
        in.whole = (int8_t *)(in.scales + ROWS * groups);
    }
    for (int64_t first = 0, rows = ROWS; first < n_rows; first += rows) {
        while (rows > n_rows - first) rows /= 2;
        const float *here = x + first * n;
        if (m->dtype >= INT8)
            for (int i = 0; i < rows * groups; i++)
                in.scales[i] = quantize_group(here + 32 * (int64_t)i, 32, in.whole + 32 * (int64_t)i, in.sums + i);
        for (int64_t block = from; block < to; block++) {
            v16f out[ROWS];
            switch (rows) {
            case 1: multiply_block(m, block, here, &in, out, 1); break;
            case 2: multiply_block(m, block, here, &in, out, 2); break;
            case 4: multiply_block(m, block, here, &in, out, 4); break;
            default: multiply_block(m, block, here, &in, out, ROWS);
            }
            const int count = m->n_out - 16 * block < 16 ? m->n_out - 16 * block : 16;
            for (int r = 0; r < rows; r++) {
                float *to_row = y + (first + r) * m->n_out + 16 * block;
                for (int i = 0; i < count; i++) {
                    float value = out[r][i] + (m->bias ? m->bias[16 * block + i] : 0);
                    to_row[i] = adds ? to_row[i] + value : value;
                }
            }
        }
    }
    free(in.sums);
}

/* products of rows of inputs */
void multiply(const Matrix *m, const float *x, float *y, int64_t n_rows, int32_t n_threads) {
#pragma omp parallel num_threads(n_threads)
    linear(m, x, y, n_rows, 0, omp_get_thread_num(), omp_get_num_threads());
}
