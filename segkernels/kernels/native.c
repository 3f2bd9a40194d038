// Segmented scan, reduce and softmax on CPU, behind the XLA foreign-function interface. `native.py` is its only caller.
//
// Bits. A segment's result depends on its own elements alone: not on its place, its neighbours, the number of threads or the
// instruction set. With d the distance of a row from the end its segment is walked from, r = d % 16, b = (d / 16) % 240 and
// c = d / 3840, a row is C(c) . (L(b) . K(b, r)), where K is the Kogge-Stone prefix of a block of 16 (windows of 1, 2, 4 and 8
// rows), L the left fold of the blocks before it in its chunk of 3,840 rows, and C that of the chunks before it. A missing
// term is the exact identity: -0.0 of a sum. Each column of [n, f] is folded so; linear recurrences are folded from left to right.
// The reduction of a segment is the last row of its scan. Sums and products flush subnormals to zero, as XLA does; maxima and
// minima take them for zero, and keep their bits.
//
// `native_kernels.h` and `native_softmax.h` hold the kernels, and are included for each operation, dtype and instruction set;
// `native_interface.h` is what XLA calls; here are threads and dispatch.
//
// Kogge-Stone: P. M. Kogge and H. S. Stone, "A parallel algorithm for the efficient solution of a general class of recurrence
// equations", IEEE Trans. Computers C-22 (1973).

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#include <sys/mman.h>
#endif
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "head bits are read as bytes, least significant first"
#endif
#define INLINE static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define JOIN_(x, op, dtype, isa) x##_##op##_##dtype##_##isa
#define JOIN(x, op, dtype, isa) JOIN_(x, op, dtype, isa)
#ifdef __clang__
#define PICK(p, c, M, ...) __builtin_shufflevector(p, c, __VA_ARGS__)
#else
#define PICK(p, c, M, ...) __builtin_shuffle(p, c, (M){__VA_ARGS__})
#endif
#define CHUNK 3840      // rows; not 4096, which would put parallel streams on the same cache sets
#define STRIP 64        // columns of a recurrence or a softmax that are walked together
#define FEW 8           // columns from which on vectors go across them, not down
#define SERIAL 524288   // elements below which threads do not pay
#define GROUP 2048      // elements that go through all passes of a softmax before the next
#define MOST_TASKS 256

enum { ADD, MUL, MAX, MIN, AFFINE };
enum { LESS, LESS_BOTH, TIMES };  // steps of a softmax

typedef struct {
  const void *x, *gates;
  void *y;
  const uint32_t *heads;  // one bit a row, least bit first
  int64_t n, live, f;
  int isa, dtype, op, reverse, exclusive;
} Scan;

typedef struct {
  const void *x, *offsets;
  void *y;
  int64_t n, s, f;
  int isa, dtype, op, wide;  // whether offsets have 64 bits
  int logarithm;             // of softmax
} BySegment;

// Bits ------------------------------------------------------------------------------------------------------------------

INLINE int bit(const uint32_t *heads, int64_t i) { return heads[i >> 5] >> (i & 31) & 1; }

// 32 bits from bit `i` on, zeros outside of the words of live rows.
static uint32_t bits_from(const Scan *s, int64_t i) {
  const int64_t words = (s->live + 31) / 32, w = i >> 5;
  const uint64_t low = w >= 0 && w < words ? s->heads[w] : 0, high = w + 1 >= 0 && w + 1 < words ? s->heads[w + 1] : 0;
  return (uint32_t)((high << 32 | low) >> (i & 31));
}

static uint32_t flipped(uint32_t x) {
  x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1;
  x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
  x = (x >> 4 & 0x0f0f0f0f) | (x & 0x0f0f0f0f) << 4;
  return __builtin_bswap32(x);
}

// The head bits of n rows from row `low` on, in the direction of the walk, and one where the next segment starts.
static void copy_bits(uint8_t *out, const Scan *s, int64_t low, int64_t n) {
  for (int64_t t = 0; t <= n + 32; t += 32) {
    uint32_t word = s->reverse ? flipped(bits_from(s, low + n - t - 31)) : bits_from(s, low + t);
    if (t + 31 >= n) word &= n >= t ? (uint32_t)((2ull << (n - t)) - 1) : 0;
    if (t <= n && n < t + 32) word |= 1u << (n - t);
    memcpy(out + t / 8, &word, 4);
  }
}

// The lowest (`up`) or highest row in [low, high] at which a segment starts, or -1.
static int64_t head_in(const Scan *s, int64_t low, int64_t high, int up) {
  const int64_t last = (up ? high : low) >> 5, step = up ? 1 : -1;
  for (int64_t w = (up ? low : high) >> 5;; w += step) {
    uint32_t word = s->heads[w];
    if (word && w == low >> 5) word &= ~0u << (low & 31);
    if (word && w == high >> 5) word &= ~0u >> (31 - (high & 31));
    if (word) return 32 * w + (up ? __builtin_ctz(word) : 31 - __builtin_clz(word));
    if (w == last) return -1;
  }
}

typedef struct { int64_t rows; int alone, whole; } Piece;  // `alone`: of one segment; `whole`: a segment ends with it

// The rows after the first `done` that are scanned together: whole segments, or a chunk of a longer one.
static Piece next_piece(const Scan *s, int64_t begin, int64_t end, int64_t done, int inside) {
  const int64_t left = end - begin - done, most = left < CHUNK ? left : CHUNK;
  if (left <= CHUNK && !inside) return (Piece){left, 0, 1};
  const int64_t at = s->reverse ? end - done : begin + done;
  // The next start of a segment if inside one, else the last one in reach.
  int64_t low = s->reverse ? at - most : at + 1, high = s->reverse ? at - 1 : at + most;
  if (!s->reverse && high >= end) high = end - 1;
  int64_t head = low > high ? -1 : head_in(s, low, high, inside != s->reverse);
  if (head < 0) return (Piece){most, 1, most == left};
  return (Piece){s->reverse ? at - head : head - at, inside, 1};
}

INLINE int64_t offset(const BySegment *s, int64_t k) {
  int64_t x = s->wide ? ((const int64_t *)s->offsets)[k] : ((const int32_t *)s->offsets)[k];
  return x < 0 ? 0 : x > s->n ? s->n : x;
}

// Of x >= 1, or NaN: the exponent, and for what is left in [sqrt 1/2, sqrt 2] the series of 2 atanh((x - 1) / (x + 1)).
static double logarithm(double x) {
  uint64_t bits, one = 0x3ff0000000000000, mantissa = 0x000fffffffffffff;
  if (!(x < __builtin_inf())) return x;
  memcpy(&bits, &x, sizeof x);
  double exponent = (double)(bits >> 52) - 1023, y = 0;
  bits = (bits & mantissa) | one;
  memcpy(&x, &bits, sizeof x);
  if (x > 1.4142135623730951) x /= 2, exponent += 1;
  const double z = (x - 1) / (x + 1), square = z * z;
  for (int k = 23; k >= 1; k -= 2) y = y * square + 1.0 / k;
  return exponent * 6.93147180369123816490e-01 + (exponent * 1.90821492927058770002e-10 + 2 * z * y);
}

// Kernels -----------------------------------------------------------------------------------------------------------------

#define ISA base
#include "native_dtypes.h"
#undef ISA
#if defined(__x86_64__) && !defined(__AVX2__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,bmi,lzcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,lzcnt")
#endif
#define ISA avx2
#include "native_dtypes.h"
#undef ISA
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#define HAS_AVX2 1
#endif

typedef void (*ScanKernel)(const Scan *, int64_t, int64_t);
typedef void (*BySegmentKernel)(const BySegment *, int64_t, int64_t);
#define DTYPES(verb, op, isa) {verb##_##op##_f32_##isa, verb##_##op##_f64_##isa, verb##_##op##_s32_##isa, verb##_##op##_s64_##isa}
#define FOLDS(verb, isa) DTYPES(verb, add, isa), DTYPES(verb, mul, isa), DTYPES(verb, max, isa), DTYPES(verb, min, isa)
static const ScanKernel SCANS[][5][4] = {
    {FOLDS(scan, base), DTYPES(scan, affine, base)},
#ifdef HAS_AVX2
    {FOLDS(scan, avx2), DTYPES(scan, affine, avx2)},
#endif
};
static const BySegmentKernel REDUCES[][4][4] = {
    {FOLDS(reduce, base)},
#ifdef HAS_AVX2
    {FOLDS(reduce, avx2)},
#endif
};
static const BySegmentKernel SOFTMAXES[][2] = {
    {softmax_softmax_f32_base, softmax_softmax_f64_base},
#ifdef HAS_AVX2
    {softmax_softmax_f32_avx2, softmax_softmax_f64_avx2},
#endif
};

int segkernels_best_isa(void) {
#ifdef HAS_AVX2
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");  // those have lzcnt, which GCC 10 cannot ask for
#else
  return 0;
#endif
}

// Threads -----------------------------------------------------------------------------------------------------------------

typedef struct {
  void (*work)(const void *call, int64_t begin, int64_t end);
  const void *call;
  const int64_t *cuts;
  int64_t tasks, next;
} Job;

// Flushes subnormals to zero, as XLA does around it, and rounds to nearest; gives what was set before.
static uint64_t float_mode(uint64_t set, int restore) {
#if defined(__x86_64__)
  uint64_t before = _mm_getcsr();
  _mm_setcsr((unsigned)(restore ? set : ((before & ~0xE040u) | 0x9fc0u)));
  return before;
#elif defined(__aarch64__)
  uint64_t before, after;
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  after = restore ? set : ((before & ~(3ull << 22)) | 1ull << 24);
  __asm__ volatile("msr fpcr, %0" : : "r"(after));
  return before;
#else
  (void)set, (void)restore;
  return 0;
#endif
}

static void *tasks_of(void *job) {
  Job *j = job;
  uint64_t mode = float_mode(0, 0);
  for (;;) {
    int64_t t = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
    if (t >= j->tasks) break;
    if (j->cuts[t] < j->cuts[t + 1]) j->work(j->call, j->cuts[t], j->cuts[t + 1]);
  }
  float_mode(mode, 1);
  return NULL;
}

static int64_t processors(void) {
#ifdef __linux__
  cpu_set_t set;
  if (!sched_getaffinity(0, sizeof set, &set)) return CPU_COUNT(&set);
#endif
  int64_t count = sysconf(_SC_NPROCESSORS_ONLN);
  return count < 1 ? 1 : count;
}

// Threads for so many elements: as asked for, or those of the process that have enough to do.
static int64_t threads_for(int64_t elements, int64_t asked) {
  int64_t threads = asked;
  if (!asked) {
    threads = elements / (SERIAL / 2);
    if (threads > 1 && threads > processors()) threads = processors();
  }
  if (threads > MOST_TASKS / 4) threads = MOST_TASKS / 4;
  return threads < 1 ? 1 : threads;
}

// Threads live as long as the call: nothing is shared with other calls, nor lost by a fork.
static void run(Job *job, int64_t threads) {
  pthread_t helpers[MOST_TASKS];
  int64_t started = 0, tasks = 0;
  for (int64_t t = 0; t < job->tasks; t++) tasks += job->cuts[t] < job->cuts[t + 1];
  if (threads > tasks) threads = tasks;
  while (started < threads - 1 && !pthread_create(&helpers[started], NULL, tasks_of, job)) started++;
  tasks_of(job);
  for (int64_t i = 0; i < started; i++) pthread_join(helpers[i], NULL);
}

// Where share t of n rows begins; that of the one past the last is n.
static int64_t share(int64_t n, int64_t tasks, int64_t t) { return n / tasks * t + n % tasks * t / tasks; }

static void scan_work(const void *call, int64_t begin, int64_t end) {
  const Scan *s = call;
  SCANS[s->isa][s->op][s->dtype](s, begin, end);
}

static void reduce_work(const void *call, int64_t begin, int64_t end) {
  const BySegment *s = call;
  REDUCES[s->isa][s->op][s->dtype](s, begin, end);
}

static void softmax_work(const void *call, int64_t begin, int64_t end) {
  const BySegment *s = call;
  SOFTMAXES[s->isa][s->dtype](s, begin, end);
}

static int size_of(int dtype) { return dtype == 0 || dtype == 2 ? 4 : 8; }

// Ask for huge pages where a large result will be written for the first time.
static void advise(void *y, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const uintptr_t page = 1 << 21, begin = ((uintptr_t)y + page - 1) & -page, end = ((uintptr_t)y + bytes) & -page;
  if (bytes >= 4 * (int64_t)page && begin < end) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
  (void)y, (void)bytes;
#endif
}

// The scan of rows [0, live) of [n, f]; zeros from there on. `y` may be `x`.
void segkernels_scan(Scan *s, int64_t threads) {
  int64_t cuts[MOST_TASKS + 1] = {0};
  s->live = s->live < 0 ? 0 : s->live > s->n ? s->n : s->live;
  const int64_t row = s->f * size_of(s->dtype);
  if (s->x != s->y) advise(s->y, s->n * row);
  threads = threads_for(s->live * s->f, threads);
  Job job = {scan_work, s, cuts, threads > 1 ? 4 * threads : 1, 0};
  for (int64_t t = 1; t <= job.tasks; t++) {  // cut where segments start
    const int64_t at = share(s->live, job.tasks, t);
    if (at <= cuts[t - 1]) {
      cuts[t] = cuts[t - 1];
    } else {
      int64_t head = t < job.tasks ? head_in(s, at, s->live - 1, 1) : -1;
      cuts[t] = head < 0 ? s->live : head;
    }
  }
  run(&job, threads);
  memset((char *)s->y + s->live * row, 0, (s->n - s->live) * row);
}

// Segments over threads, as many as pay for so many `elements`.
static void run_by_segment(BySegment *s, void (*work)(const void *, int64_t, int64_t), int64_t elements, int64_t threads) {
  int64_t cuts[MOST_TASKS + 1] = {0};
  threads = threads_for(elements, threads);
  Job job = {work, s, cuts, threads > 1 ? 4 * threads : 1, 0};
  for (int64_t t = 1, k = 0; t <= job.tasks; t++) {  // the first segment past an equal share of the rows
    const int64_t at = share(s->n, job.tasks, t);
    int64_t high = s->s;
    while (k < high && t < job.tasks) {
      int64_t middle = k + (high - k) / 2;
      if (offset(s, middle) < at) k = middle + 1; else high = middle;
    }
    cuts[t] = t < job.tasks ? k : s->s;
  }
  run(&job, threads);
}

// The reduction of each of s segments; offsets that are out of bounds are cut to them. An element takes a quarter of the
// time of one of a scan.
void segkernels_reduce(BySegment *s, int64_t threads) { run_by_segment(s, reduce_work, s->n * s->f / 4, threads); }

// Softmax of each of s segments, or its logarithm; zeros before the first and past the last. An element takes as long as four of a
// scan.
void segkernels_softmax(BySegment *s, int64_t threads) {
  const int64_t row = s->f * size_of(s->dtype), first = offset(s, 0), live = offset(s, s->s);
  advise(s->y, s->n * row);
  run_by_segment(s, softmax_work, 4 * s->n * s->f, threads);
  memset(s->y, 0, first * row);
  memset((char *)s->y + live * row, 0, (s->n - live) * row);
}

#include "native_interface.h"
