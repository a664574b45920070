/* What the kernels share. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <omp.h>

#define INLINE static inline __attribute__((always_inline))

enum { FLOAT32, BFLOAT16, FLOAT16, INT8, INT4 };

/* weights in the layouts that products.c describes; scale: of the outputs of int8; bias: of each output, or NULL */
typedef struct {
    const void *weight;
    const float *scale, *bias;
    int32_t n_in, n_out, dtype;
} Matrix;

/* W x + b of rows of inputs, this thread's outputs of them, which are added to what is there if `adds` */
__attribute__((visibility("hidden")))
void linear(const Matrix *m, const float *x, float *y, int64_t n_rows, int adds, int thread, int n_threads);

/* the part of n numbers that a thread computes */
INLINE void split_range(int64_t n, int thread, int n_threads, int64_t *from, int64_t *to) {
    *from = n * thread / n_threads;
    *to = n * (thread + 1) / n_threads;
}

/* e^x for x <= 0, and 0 where that is hardly a number, with a relative error of 3e-7 near 0 and of at most 4e-6.
It has no fmaxf and no branches, so that several are computed at once */
INLINE float exp_nonpositive(float x) {
    const float kept = (x < -87.0f ? -87.0f : x) * 1.44269504f;
    const float whole = rintf(kept), f = kept - whole;
    const float tail = 0.055504109f + f * (0.0096181291f + f * (0.0013333558f + f * 0.00015469f));
    const float p = 1 + f * (0.69314718f + f * (0.24022651f + f * tail));
    int32_t bits = ((int32_t)whole + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return x < -87.0f ? 0 : p * scale;
}
