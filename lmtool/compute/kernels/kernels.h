/* What the kernels share. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <omp.h>

#define INLINE static inline __attribute__((always_inline))

enum { FLOAT32, BFLOAT16, FLOAT16, INT8, INT4 };

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

/* W x + b of rows of inputs, this thread's outputs of them; flag: added to what is there */
__attribute__((visibility("hidden")))
void linear(const Op *op, const float *x, float *y, int64_t n_rows, int thread, int threads);

/* what a thread does of n parts */
INLINE void share(int64_t n, int thread, int threads, int64_t *from, int64_t *to) {
    *from = n * thread / threads;
    *to = n * (thread + 1) / threads;
}

/* e^x for x <= 0, and 0 where that is hardly a number; without fmaxf and branches, so that several are computed at once */
INLINE float power(float x) {
    const float kept = (x < -87.0f ? -87.0f : x) * 1.44269504f;
    const float whole = rintf(kept), f = kept - whole;
    const float p = 1 + f * (0.69314718f + f * (0.24022651f + f * (0.055504109f + f * (0.0096181291f + f * (0.0013333558f + f * 0.00015469f)))));
    int32_t bits = ((int32_t)whole + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return x < -87.0f ? 0 : p * scale;
}
