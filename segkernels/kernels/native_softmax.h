// Softmax of the segments of one float dtype T, for `native.c`: a row is e^(x - top) * (1 / total), its logarithm
// x - top - log(total), with the maximum of its segment and the sum of those powers folded as there. Segments of up to GROUP numbers
// go through all steps a few at a time, so that memory is read and written once.
//
// Given, beside what `native_kernels.h` has: BITS (the unsigned integer of its size), MANTISSA (its bits), BIAS (of its exponents),
// LN2_HIGH (ln 2 in so few bits that it has exact multiples), LN2_LOW (what that leaves), and TERMS (of the series of e^r).

#define NAME(x) JOIN(x, softmax, DTYPE, ISA)
#define BEST(x) JOIN(x, max, DTYPE, ISA)
#define SUM(x) JOIN(x, add, DTYPE, ISA)

enum { NAME(lanes) = 32 / sizeof(T) };
typedef T NAME(vec) __attribute__((vector_size(32), may_alias));
typedef BITS NAME(bits) __attribute__((vector_size(32), may_alias));

// e^x of x <= 0, as 2^k e^r with k the integer next to x / ln 2; 0 where that is below the normal numbers.
INLINE void NAME(power)(T *to, const T *from) {
  static const double series[] = {1, 1, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880,
                                  1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
  const T whole = (T)(3ll << (MANTISSA - 1));  // numbers of its size have no fractions
  const NAME(vec) least = (NAME(vec)){0} - (T)(BIAS * 0.6931471805599453);
  NAME(vec) x;
  memcpy(&x, from, sizeof x);
  const NAME(bits) low = (NAME(bits))(x < least);
  x = (NAME(vec))(((NAME(bits))least & low) | ((NAME(bits))x & ~low));
  const NAME(vec) shifted = x * (T)1.4426950408889634 + whole, k = shifted - whole, r = (x - k * LN2_HIGH) - k * LN2_LOW;
  NAME(vec) y = (NAME(vec)){0} + (T)series[TERMS];
  for (int i = TERMS - 1; i >= 0; i--) y = y * r + (T)series[i];
  y *= (NAME(vec))(((NAME(bits))shifted + BIAS) << MANTISSA);
  memcpy(to, &y, sizeof y);
}

// The exponentials of n numbers, in place, and of others up to a whole vector.
static NOINLINE void NAME(powers)(T *y, int64_t n) {
  for (int64_t i = 0; i < n; i += NAME(lanes)) NAME(power)(y + i, y + i);
}

#define STEPPED(x, a, b) (step == LESS ? (x) - (a) : step == LESS_BOTH ? (x) - (a) - (b) : (x) * (b))

// A step, of n rows of w columns that are fx and fy apart, each with an a and a b of its own. Whole vectors go up to `room` rows of
// x; y has as many.
INLINE void NAME(rows)(int step, const T *x, int64_t fx, T *y, int64_t fy, const T *a, const T *b, int64_t n, int64_t w,
                       int64_t room) {
  int64_t i = 0;
  if (fx == 1 && fy == 1) {
    const NAME(vec) a0 = *a - (NAME(vec)){0}, b0 = *b - (NAME(vec)){0};  // keeps -0.0
    for (; i < n && i + NAME(lanes) <= room; i += NAME(lanes)) {
      NAME(vec) v;
      memcpy(&v, x + i, sizeof v);
      v = STEPPED(v, a0, b0);
      memcpy(y + i, &v, sizeof v);
    }
  }
  for (; i < n; i++)
    for (int64_t j = 0; j < w; j++) y[i * fy + j] = STEPPED(x[i * fx + j], a[j], b[j]);
}

// For each of w columns, b: the reciprocal of the sum of its n powers, which are f apart, or the logarithm of the sum. `room`: rows
// that may be read.
INLINE void NAME(totals)(const BySegment *s, const T *powers, int64_t f, T *b, int64_t n, int64_t w, int64_t room) {
  if (f == 1 && n <= 16) b[0] = SUM(last)(powers + n, n);
  else SUM(fold)(powers, b, n, w, f, room);
  for (int64_t j = 0; j < w; j++) b[j] = s->logarithm ? (T)logarithm(b[j]) : 1 / b[j];
}

// Columns [left, left + w) of the segments from `first` on that together have up to GROUP numbers. Gives the next segment.
static int64_t NAME(group)(const BySegment *s, int64_t first, int64_t last, int64_t left, int64_t w) {
  const int64_t f = s->f;
  const T *x = (const T *)s->x + left;
  // Before the powers 16 rows that `last` reads, after them 32 that vectors and the last block of a fold do.
  T *y = (T *)s->y + left, tops[GROUP], b[STRIP], buffer[16 + GROUP + 32] = {0}, *powers = buffer + 16, *top = tops;
  int64_t next = first, done = 0;
  for (; next < last; next++) {
    const int64_t begin = offset(s, next), end = offset(s, next + 1), n = end - begin;
    if (n <= 0) continue;
    if ((done + n) * w > GROUP) break;
    if (f == 1 && n <= 16 && end >= 16) top[0] = BEST(last)(x + end, n);
    else BEST(fold)(x + begin * f, top, n, w, f, s->n - begin);
    NAME(rows)(LESS, x + begin * f, f, powers + done * w, w, top, top, n, w, s->n - begin);
    done += n, top += w;
  }
  NAME(powers)(powers, done * w);
  const int64_t high = offset(s, next);
  done = 0, top = tops;
  for (int64_t k = first; k < next; k++) {
    const int64_t begin = offset(s, k), end = offset(s, k + 1), n = end - begin;
    if (n <= 0) continue;
    NAME(totals)(s, powers + done * w, w, b, n, w, GROUP + 16 - done);
    if (s->logarithm) NAME(rows)(LESS_BOTH, x + begin * f, f, y + begin * f, f, top, b, n, w, high - begin);
    else NAME(rows)(TIMES, powers + done * w, w, y + begin * f, f, top, b, n, w, high - begin);
    done += n, top += w;
  }
  return next;
}

// Of one segment that has more. It is read three times.
static void NAME(alone)(const BySegment *s, int64_t k, int64_t left, int64_t w) {
  const int64_t f = s->f, begin = offset(s, k), end = offset(s, k + 1), n = end - begin, room = s->n - begin;
  const T *x = (const T *)s->x + begin * f + left;
  T *y = (T *)s->y + begin * f + left, top[STRIP], b[STRIP], powers[GROUP + 32];
  BEST(fold)(x, top, n, w, f, room);
  for (int64_t low = 0, rows; low < n; low += rows) {
    rows = n - low < GROUP / w ? n - low : GROUP / w;
    NAME(rows)(LESS, x + low * f, f, powers, w, top, top, rows, w, room - low);
    NAME(powers)(powers, rows * w);
    if (w == f) memcpy(y + low * f, powers, rows * w * sizeof(T));
    else for (int64_t i = 0; i < rows; i++) memcpy(y + (low + i) * f, powers + i * w, w * sizeof(T));
  }
  NAME(totals)(s, y, f, b, n, w, n);  // rows after it are another thread's
  if (s->logarithm) NAME(rows)(LESS_BOTH, x, f, y, f, top, b, n, w, n);
  else NAME(rows)(TIMES, y, f, y, f, top, b, n, w, n);
}

static void NAME(softmax)(const BySegment *s, int64_t first, int64_t last) {
  for (int64_t left = 0; left < s->f; left += STRIP) {
    const int64_t w = s->f - left < STRIP ? s->f - left : STRIP;
    for (int64_t k = first, next; k < last; k = next) {
      next = NAME(group)(s, k, last, left, w);
      if (next == k) NAME(alone)(s, next++, left, w);
    }
  }
}

#undef STEPPED
#undef BEST
#undef SUM
#undef NAME
