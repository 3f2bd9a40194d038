// The kernels of one operation OP and dtype T, for `native.c`, which says in which order they fold.
//
// Given: OP, T, U (T, or the unsigned integer that wraps as T does), I (the integer of its size), W (how many fill 16 bytes), ZERO,
// LOWEST and HIGHEST (what sums, maxima and minima are not changed by), and NAME(x), which makes names unique.


typedef T NAME(vec) __attribute__((vector_size(16), may_alias));
typedef I NAME(mask) __attribute__((vector_size(16), may_alias));
typedef U NAME(sum) __attribute__((vector_size(16), may_alias));
typedef struct { NAME(vec) r[16 / W]; } NAME(block);
#define V NAME(vec)
#define M NAME(mask)
#define B NAME(block)
#define R (16 / W)  // registers of a block

#if W == 4
#define AFTER_1(p, c) PICK(p, c, M, 3, 4, 5, 6)
#define AFTER_2(p, c) PICK(p, c, M, 2, 3, 4, 5)
#define EVEN(p, c) PICK(p, c, M, 0, 2, 4, 6)
#define ODD(p, c) PICK(p, c, M, 1, 3, 5, 7)
#define LAST(c) PICK(c, c, M, 3, 3, 3, 3)
#define LANES(j) ((M){1, 2, 4, 8} << (4 * (j)))
#else
#define AFTER_1(p, c) PICK(p, c, M, 1, 2)
#define EVEN(p, c) PICK(p, c, M, 0, 2)
#define ODD(p, c) PICK(p, c, M, 1, 3)
#define LAST(c) PICK(c, c, M, 1, 1)
#define LANES(j) ((M){1, 2} << (2 * (j)))
#endif

INLINE T NAME(identity)(void) { return OP == ADD ? ZERO : OP == MUL ? 1 : OP == MAX ? LOWEST : HIGHEST; }

// What nothing at all gives.
INLINE T NAME(nothing)(void) { return OP == ADD ? 0 : NAME(identity)(); }

INLINE V NAME(splat)(T x) {
  V v = {0};
  for (int i = 0; i < W; i++) v[i] = x;
  return v;
}

INLINE V NAME(where)(M k, V a, V b) { return (V)(((M)a & k) | ((M)b & ~k)); }

INLINE M NAME(all)(uint32_t bits) { return (M){0} + (I)bits; }

// NaN wins a comparison; of equal zeros the later one.
INLINE V NAME(of)(V a, V b) {
  if (OP == ADD) return (V)((NAME(sum))a + (NAME(sum))b);
  if (OP == MUL) return (V)((NAME(sum))a * (NAME(sum))b);
  return NAME(where)((OP == MAX ? a > b : a < b) | (a != a), a, b);
}

INLINE T NAME(of_two)(T a, T b) {
  if (OP == ADD) return (T)((U)a + (U)b);
  if (OP == MUL) return (T)((U)a * (U)b);
  return ((OP == MAX ? a > b : a < b) | (a != a)) ? a : b;
}

// Register by register: a copy of the whole would go through memory.
INLINE B NAME(load)(const T *x) {
  B a;
  for (int j = 0; j < R; j++) memcpy(&a.r[j], x + j * W, sizeof(V));
  return a;
}

// The first `n` rows of a block, and identities.
INLINE B NAME(load_part)(const T *x, int64_t n) {
  T t[16];
  for (int i = 0; i < 16; i++) t[i] = i < n ? x[i] : NAME(identity)();
  return NAME(load)(t);
}

INLINE B NAME(load_up_to)(const T *x, int64_t n, int64_t room) { return room >= 16 ? NAME(load)(x) : NAME(load_part)(x, n); }

INLINE void NAME(store)(T *y, B a, int64_t n) {
  if (n >= 16) {
    for (int j = 0; j < R; j++) memcpy(y + j * W, &a.r[j], sizeof(V));
  } else {
    T t[16];
    memcpy(t, &a, sizeof a);
    for (int i = 0; i < n; i++) y[i] = t[i];
  }
}

INLINE T NAME(lane)(B a, int64_t i) {
  T t[16];
  memcpy(t, &a, sizeof a);
  return t[i];
}

// Register j of a block moved up by n rows, identities coming in.
INLINE V NAME(moved)(B a, int j, int n, V none) {
  V before = j ? a.r[j - 1] : none;
  if (n == 1) return AFTER_1(before, a.r[j]);
#if W == 4
  if (n == 2) return AFTER_2(before, a.r[j]);
#endif
  return j >= n / W ? a.r[j - n / W] : none;
}

// A step of the prefix over windows of n rows: where `on` has a bit, else everywhere.
INLINE B NAME(step)(B a, int n, V none, int masked, uint32_t on) {
  B b = a;
  for (int j = n / W; j < R; j++) {
    V up = NAME(moved)(a, j, n, none);
    if (masked) up = NAME(where)(((NAME(all)(on) & LANES(j)) != 0), up, none);
    b.r[j] = NAME(of)(up, a.r[j]);
  }
  return b;
}

INLINE B NAME(prefix)(B a, V none) {
  a = NAME(step)(a, 1, none, 0, 0);
  a = NAME(step)(a, 2, none, 0, 0);
  a = NAME(step)(a, 4, none, 0, 0);
  return NAME(step)(a, 8, none, 0, 0);
}

// The prefix of a block in which segments start at the rows of `heads`.
INLINE B NAME(prefixes)(B a, V none, uint32_t heads) {
  uint32_t on1 = ~heads & 0xfffe, on2 = on1 & (on1 << 1), on4 = on2 & (on2 << 2), on8 = on4 & (on4 << 4);
  a = NAME(step)(a, 1, none, 1, on1);
  a = NAME(step)(a, 2, none, 1, on2);
  a = NAME(step)(a, 4, none, 1, on4);
  return NAME(step)(a, 8, none, 1, on8);
}

// Scan n rows, at most a chunk: segments that start at row 0 and at the bits of `heads`, or (`alone`) a chunk of a longer one
// that `carry` was before. Returns what comes after. May run in place. `room`: rows that may be read, at least n. The bit of row 0
// is number `at`.
static NOINLINE T NAME(piece)(const T *x, T *y, int64_t n, int64_t room, const uint8_t *heads, int64_t at, int alone, T carry) {
  const V none = NAME(splat)(NAME(identity)()), before = NAME(splat)(carry);
  V fold = none;
  B ahead;
  int loaded = 0;
  for (int64_t p = 0, next; p < n; p = next) {
    uint32_t starts = 0;  // bit r: a segment starts at row p + r, for r in 1..16
    if (!alone) {
      memcpy(&starts, heads + ((at + p) >> 3), 4);
      starts = (starts >> ((at + p) & 7)) & 0x1fffe;
    }
    B a = loaded ? ahead : NAME(load_up_to)(x + p, n - p, room - p), k;
    loaded = 0;
    uint32_t inside = starts & 0xffff;
    if (!inside) {
      next = p + 16;
      k = NAME(prefix)(a, none);
      V total = LAST(k.r[R - 1]);
      for (int j = 0; j < R; j++) {
        k.r[j] = NAME(of)(fold, k.r[j]);
        if (alone) k.r[j] = NAME(of)(before, k.r[j]);
      }
      if (alone && next >= n) carry = NAME(lane)(k, n - p - 1);
      fold = starts ? none : NAME(of)(fold, total);
    } else {  // up to the last head; the next block starts there
      int64_t rows = 31 - __builtin_clz(starts);
      uint32_t carried = (inside & -inside) - 1, kept = (1u << rows) - 1;
      next = p + rows;
      if (carried == kept) {  // the only head: nothing of what is kept is past it
        k = NAME(prefix)(a, none);
        for (int j = 0; j < R; j++) k.r[j] = NAME(of)(fold, k.r[j]);
      } else {
        k = NAME(prefixes)(a, none, inside);
        for (int j = 0; j < R; j++)
          k.r[j] = NAME(of)(NAME(where)(((NAME(all)(carried) & LANES(j)) != 0), fold, none), k.r[j]);
      }
      for (int j = 0; j < R; j++) k.r[j] = NAME(where)(((NAME(all)(kept) & LANES(j)) != 0), k.r[j], a.r[j]);
      fold = none;
      // In place the next rows are loaded before: a load of what was just stored waits until that is in memory.
      if (x == y) ahead = NAME(load_up_to)(x + next, n - next, room - next), loaded = 1;
    }
    NAME(store)(y + p, k, n - p);
  }
  return carry;
}

// The fold of a whole block: neighbours first, as the last row of its prefix.
INLINE T NAME(total)(B a) {
  for (int m = R; m > 1; m /= 2)
    for (int j = 0; j < m / 2; j++) a.r[j] = NAME(of)(EVEN(a.r[2 * j], a.r[2 * j + 1]), ODD(a.r[2 * j], a.r[2 * j + 1]));
  for (int m = W; m > 1; m /= 2) a.r[0] = NAME(of)(EVEN(a.r[0], a.r[0]), ODD(a.r[0], a.r[0]));
  return a.r[0][0];
}

// The fold of the last n <= 16 of the 16 rows before `end`.
INLINE T NAME(last)(const T *end, int64_t n) {
  B a = NAME(load)(end - 16);
  for (int j = 0; j < R; j++)
    a.r[j] = NAME(where)((NAME(all)(0xffffu >> n) & LANES(j)) != 0, NAME(splat)(NAME(identity)()), a.r[j]);
  return NAME(total)(a);
}

// The fold of one segment of n rows, of which `room` may be read.
static NOINLINE T NAME(folded)(const T *x, int64_t n, int64_t room) {
  const T none = NAME(identity)();
  T all = none;
  for (int64_t begin = 0; begin < n; begin += CHUNK) {
    int64_t end = begin + CHUNK < n ? begin + CHUNK : n, p = begin;
    T fold = none;
    for (; p + 16 <= end; p += 16) fold = NAME(of_two)(fold, NAME(total)(NAME(load)(x + p)));
    if (p < end) {
      B a = p + 16 <= room ? NAME(load)(x + p) : NAME(load_part)(x + p, end - p);
      fold = NAME(of_two)(fold, NAME(lane)(NAME(prefix)(a, NAME(splat)(none)), end - p - 1));
    }
    all = NAME(of_two)(all, fold);
  }
  return all;
}

// n rows of a column of f, between a buffer and an array that is walked in reverse or not.
INLINE void NAME(gather)(T *to, const T *from, int64_t n, int64_t f, int reverse) {
  if (f == 1 && !reverse) memcpy(to, from, n * sizeof(T));
  else if (f == 1) for (int64_t i = 0; i < n; i++) to[i] = from[n - 1 - i];
  else for (int64_t i = 0; i < n; i++) to[i] = from[(reverse ? n - 1 - i : i) * f];
}

INLINE void NAME(scatter)(T *to, const T *from, int64_t n, int64_t f, int reverse) {
  if (f == 1) NAME(gather)(to, from, n, 1, reverse);
  else for (int64_t i = 0; i < n; i++) to[(reverse ? n - 1 - i : i) * f] = from[i];
}

// Scan rows [begin, end) of column j, which start and end at segments.
static void NAME(column)(const Scan *s, int64_t j, int64_t begin, int64_t end) {
  const int64_t f = s->f;
  const T *x = (const T *)s->x + j;
  T *y = (T *)s->y + j, carry = NAME(identity)();
  T buffer[CHUNK + 17], *rows = buffer + 1;  // the row before, the piece, and room for a block
  uint8_t heads[CHUNK / 8 + 16];
  Piece piece = {.whole = 1};
  for (int64_t done = 0; done < end - begin; done += piece.rows) {
    int fresh = piece.whole;
    piece = next_piece(s, begin, end, done, !fresh);
    int64_t n = piece.rows, low = s->reverse ? end - done - n : begin + done;
    // One column, forward and inclusive, goes from array to array, all else through rows in the direction of the walk; so do the
    // head bits, but for the last ones.
    const int direct = f == 1 && !s->reverse && !s->exclusive, in_array = direct && low + n + 32 <= s->live;
    if (!piece.alone && !in_array) copy_bits(heads, s, low, n);
    if (!direct) {
      NAME(gather)(rows, x + low * f, n, f, s->reverse);
      rows[-1] = fresh ? NAME(nothing)() : carry;
    }
    carry = NAME(piece)(direct ? x + low : rows, direct ? y + low : rows, n, direct ? end - low : CHUNK,
                        in_array ? (const uint8_t *)s->heads : heads, in_array ? low : 0, piece.alone, carry);
    if (!direct) {
      for (int64_t i = 0; s->exclusive && !piece.alone && i < n; i += 64) {
        uint64_t starts;
        memcpy(&starts, heads + i / 8, 8);
        for (; starts; starts &= starts - 1) rows[i + __builtin_ctzll(starts) - 1] = NAME(nothing)();
      }
      NAME(scatter)(y + low * f, s->exclusive ? rows - 1 : rows, n, f, s->reverse);
    }
    if (piece.whole) carry = NAME(identity)();
  }
}

// W columns of up to 16 rows, `step` apart: their prefix down the rows, after `fold` and `done`. Gives the last row, and stores all
// if there is a `y`: each one, or if `before` is given the one before it, which is that for the first.
static NOINLINE V NAME(down)(const T *x, T *y, int64_t step, int64_t rows, int64_t w, V *fold, V *done, V *before, int ends) {
  V k[16], last = *done;
  for (int r = 0; r < 16; r++) {
    k[r] = NAME(splat)(NAME(identity)());
    if (r < rows && w == W) memcpy(&k[r], x + r * step, sizeof(V));
    else if (r < rows) memcpy(&k[r], x + r * step, w * sizeof(T));
  }
  for (int n = 1; n < 16; n *= 2)
    for (int r = 15; r >= n; r--) k[r] = NAME(of)(k[r - n], k[r]);
  for (int r = y ? 0 : (int)rows - 1; r < 16 && r < rows; r++) {
    V now = NAME(of)(*fold, k[r]), all = NAME(of)(*done, now);
    if (y && w == W) memcpy(y + r * step, before ? before : &all, sizeof(V));
    else if (y) memcpy(y + r * step, before ? before : &all, w * sizeof(T));
    if (before) *before = all;
    last = all;
    if (r == 15) *fold = now;
  }
  if (ends) *done = last, *fold = NAME(splat)(NAME(identity)());
  return last;
}

// One segment of many columns, a cache line of them after the other. `y` takes its rows if it is a scan, else the last of them.
static void NAME(strips)(const T *x, T *y, int64_t rows, int64_t step, int64_t f, int scan, int exclusive) {
  enum { G = 4 };
  for (int64_t left = 0; left < f; left += G * W) {
    V fold[G], done[G], before[G], last[G];
    const int64_t right = f - left < G * W ? f : left + G * W;
    for (int g = 0; g < G; g++) fold[g] = done[g] = NAME(splat)(NAME(identity)()), before[g] = last[g] = NAME(splat)(NAME(nothing)());
    for (int64_t t = 0; t < rows; t += 16)
      for (int64_t j = left, g = 0; j < right; j += W, g++)
        last[g] = NAME(down)(x + t * step + j, scan ? y + t * step + j : NULL, step, rows - t < 16 ? rows - t : 16,
                             right - j < W ? right - j : W, &fold[g], &done[g], exclusive ? &before[g] : NULL,
                             (t + 16) % CHUNK == 0);
    if (!scan) memcpy(y + left, last, (right - left) * sizeof(T));
  }
}

// Scan the segments of rows [begin, end) of many columns.
static void NAME(many)(const Scan *s, int64_t begin, int64_t end) {
  const T *x = s->x;
  T *y = s->y;
  for (int64_t low = begin, high; low < end; low = high) {
    int64_t head = low + 1 < end ? head_in(s, low + 1, end - 1, 1) : -1;
    high = head < 0 ? end : head;
    int64_t first = (s->reverse ? high - 1 : low) * s->f;
    NAME(strips)(x + first, y + first, high - low, s->reverse ? -s->f : s->f, s->f, 1, s->exclusive);
  }
}

static void NAME(scan)(const Scan *s, int64_t begin, int64_t end) {
  if (s->f >= FEW) return NAME(many)(s, begin, end);
  for (int64_t j = 0; j < s->f; j++) NAME(column)(s, j, begin, end);
}

// The fold of one segment of a column of f.
static T NAME(folded_column)(const T *x, int64_t n, int64_t f) {
  T rows[CHUNK + 16], all = NAME(identity)();
  for (int64_t begin = 0; begin < n; begin += CHUNK) {
    int64_t size = n - begin < CHUNK ? n - begin : CHUNK;
    NAME(gather)(rows, x + begin * f, size, f, 0);
    all = NAME(of_two)(all, NAME(folded)(rows, size, CHUNK + 16));
  }
  return all;
}

// The fold of one segment of w columns, f apart. `room`: rows that may be read.
INLINE void NAME(fold)(const T *x, T *y, int64_t n, int64_t w, int64_t f, int64_t room) {
  if (f == 1) *y = NAME(folded)(x, n, room);
  else if (w < FEW) for (int64_t j = 0; j < w; j++) y[j] = NAME(folded_column)(x + j, n, f);
  else NAME(strips)(x, y, n, f, w, 0, 0);
}

static void NAME(reduce)(const BySegment *s, int64_t first, int64_t last) {
  const int64_t f = s->f;
  for (int64_t k = first; k < last; k++) {
    const int64_t begin = offset(s, k), end = offset(s, k + 1);
    T *y = (T *)s->y + k * f;
    if (begin < end) NAME(fold)((const T *)s->x + begin * f, y, end - begin, f, f, s->n - begin);
    else for (int64_t j = 0; j < f; j++) y[j] = NAME(nothing)();
  }
}

#undef V
#undef M
#undef B
#undef R
#undef AFTER_1
#undef AFTER_2
#undef EVEN
#undef ODD
#undef LAST
#undef LANES
#undef NAME
#undef OP
