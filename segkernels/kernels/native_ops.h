// The operations of one dtype, for `native.c`: four that share their kernels, the linear recurrence, and of floats softmax.

#define OP ADD
#define NAME(x) JOIN(x, add, DTYPE, ISA)
#include "native_kernels.h"
#define OP MUL
#define NAME(x) JOIN(x, mul, DTYPE, ISA)
#include "native_kernels.h"
#define OP MAX
#define NAME(x) JOIN(x, max, DTYPE, ISA)
#include "native_kernels.h"
#define OP MIN
#define NAME(x) JOIN(x, min, DTYPE, ISA)
#include "native_kernels.h"

#define NAME(x) JOIN(x, affine, DTYPE, ISA)
// The recurrence y <- gate * y + x along rows [begin, end).
INLINE void NAME(recur)(const Scan *s, int64_t begin, int64_t end, int64_t f) {
  const T *x = s->x, *gates = s->gates;
  T *y = s->y;
  for (int64_t left = 0; left < f; left += STRIP) {
    const int64_t w = f - left < STRIP ? f - left : STRIP;
    T now[STRIP] = {0};
    for (int64_t t = begin; t < end; t++) {
      const int64_t i = s->reverse ? begin + end - 1 - t : t, at = i * f + left;
      const int starts = t == begin || bit(s->heads, s->reverse ? i + 1 : i);
      for (int64_t j = 0; j < w; j++) {
        const T before = starts ? 0 : now[j], next = (T)((U)gates[at + j] * (U)now[j] + (U)x[at + j]);
        now[j] = starts ? x[at + j] : next;
        y[at + j] = s->exclusive ? before : now[j];
      }
    }
  }
}

static void NAME(scan)(const Scan *s, int64_t begin, int64_t end) {
  if (s->f == 1) NAME(recur)(s, begin, end, 1);
  else NAME(recur)(s, begin, end, s->f);
}

#undef NAME

#ifdef FLOAT
#include "native_softmax.h"
#undef FLOAT
#undef BITS
#undef MANTISSA
#undef BIAS
#undef LN2_HIGH
#undef LN2_LOW
#undef TERMS
#endif
#undef DTYPE
#undef T
#undef I
#undef U
#undef W
#undef ZERO
#undef LOWEST
#undef HIGHEST
