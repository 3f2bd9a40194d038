// The kernels of one dtype T, for `native.c`, which says what they fold and in which order.
//
// Given: T, U (T, or the unsigned integer that wraps as T does), I (the integer of its size), W (how many fill 16 bytes), ZERO,
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

INLINE T NAME(identity)(int op) { return op == ADD ? ZERO : op == MUL ? 1 : op == MAX ? LOWEST : HIGHEST; }

// What nothing at all gives.
INLINE T NAME(nothing)(int op) { return op == ADD || op == AFFINE ? 0 : NAME(identity)(op); }

INLINE V NAME(splat)(T x) {
  V v = {0};
  for (int i = 0; i < W; i++) v[i] = x;
  return v;
}

INLINE V NAME(where)(M k, V a, V b) { return (V)(((M)a & k) | ((M)b & ~k)); }

INLINE M NAME(all)(uint32_t bits) { return (M){0} + (I)bits; }

// NaN wins a comparison; of equal zeros the later one.
INLINE V NAME(of)(int op, V a, V b) {
  if (op == ADD) return (V)((NAME(sum))a + (NAME(sum))b);
  if (op == MUL) return (V)((NAME(sum))a * (NAME(sum))b);
  return NAME(where)((op == MAX ? a > b : a < b) | (a != a), a, b);
}

INLINE T NAME(of_two)(int op, T a, T b) {
  if (op == ADD) return (T)((U)a + (U)b);
  if (op == MUL) return (T)((U)a * (U)b);
  return ((op == MAX ? a > b : a < b) | (a != a)) ? a : b;
}

INLINE B NAME(load)(const T *x) {
  B a;
  memcpy(&a, x, sizeof a);
  return a;
}

// The first `n` rows of a block, and identities.
INLINE B NAME(load_part)(const T *x, int64_t n, int op) {
  T t[16];
  for (int i = 0; i < 16; i++) t[i] = i < n ? x[i] : NAME(identity)(op);
  return NAME(load)(t);
}

INLINE void NAME(store)(T *y, B a, int64_t n) {
  if (n >= 16) {
    memcpy(y, &a, sizeof a);
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
INLINE B NAME(step)(B a, int n, int op, V none, int masked, uint32_t on) {
  B b = a;
  for (int j = n / W; j < R; j++) {
    V up = NAME(moved)(a, j, n, none);
    if (masked) up = NAME(where)(((NAME(all)(on) & LANES(j)) != 0), up, none);
    b.r[j] = NAME(of)(op, up, a.r[j]);
  }
  return b;
}

INLINE B NAME(prefix)(B a, int op, V none) {
  a = NAME(step)(a, 1, op, none, 0, 0);
  a = NAME(step)(a, 2, op, none, 0, 0);
  a = NAME(step)(a, 4, op, none, 0, 0);
  return NAME(step)(a, 8, op, none, 0, 0);
}

// The prefix of a block in which segments start at the rows of `heads`.
INLINE B NAME(prefixes)(B a, int op, V none, uint32_t heads) {
  uint32_t on1 = ~heads & 0xfffe, on2 = on1 & (on1 << 1), on4 = on2 & (on2 << 2), on8 = on4 & (on4 << 4);
  a = NAME(step)(a, 1, op, none, 1, on1);
  a = NAME(step)(a, 2, op, none, 1, on2);
  a = NAME(step)(a, 4, op, none, 1, on4);
  return NAME(step)(a, 8, op, none, 1, on8);
}

// Scan n rows, at most a chunk: segments that start at row 0 and at the bits of `heads`, or (`alone`) a chunk of a longer one
// that `carry` was before. Returns what comes after. May run in place. `room`: rows that may be read, at least n.
INLINE T NAME(piece)(const T *x, T *y, int64_t n, int64_t room, const uint8_t *heads, int op, int alone, T carry) {
  const V none = NAME(splat)(NAME(identity)(op)), before = NAME(splat)(carry);
  V fold = none;
  for (int64_t p = 0, next; p < n; p = next) {
    uint32_t starts = 0;  // bit r: a segment starts at row p + r, for r in 1..16
    if (!alone) {
      memcpy(&starts, heads + (p >> 3), 4);
      starts = (starts >> (p & 7)) & 0x1fffe;
    }
    B a = p + 16 <= room ? NAME(load)(x + p) : NAME(load_part)(x + p, n - p, op), k;
    uint32_t inside = starts & 0xffff;
    if (!inside) {
      next = p + 16;
      k = NAME(prefix)(a, op, none);
      V total = LAST(k.r[R - 1]);
      for (int j = 0; j < R; j++) {
        k.r[j] = NAME(of)(op, fold, k.r[j]);
        if (alone) k.r[j] = NAME(of)(op, before, k.r[j]);
      }
      if (alone && next >= n) carry = NAME(lane)(k, n - p - 1);
      fold = starts ? none : NAME(of)(op, fold, total);
    } else {  // up to the last head; the next block starts there
      int64_t rows = 31 - __builtin_clz(starts);
      uint32_t carried = (inside & -inside) - 1, kept = (1u << rows) - 1;
      next = p + rows;
      if (carried == kept) {  // the only head: nothing of what is kept is past it
        k = NAME(prefix)(a, op, none);
        for (int j = 0; j < R; j++) k.r[j] = NAME(of)(op, fold, k.r[j]);
      } else {
        k = NAME(prefixes)(a, op, none, inside);
        for (int j = 0; j < R; j++)
          k.r[j] = NAME(of)(op, NAME(where)(((NAME(all)(carried) & LANES(j)) != 0), fold, none), k.r[j]);
      }
      for (int j = 0; j < R; j++) k.r[j] = NAME(where)(((NAME(all)(kept) & LANES(j)) != 0), k.r[j], a.r[j]);
      fold = none;
    }
    NAME(store)(y + p, k, n - p);
  }
  return carry;
}

// The fold of a whole block: neighbours first, as the last row of its prefix.
INLINE T NAME(total)(B a, int op) {
  for (int m = R; m > 1; m /= 2)
    for (int j = 0; j < m / 2; j++) a.r[j] = NAME(of)(op, EVEN(a.r[2 * j], a.r[2 * j + 1]), ODD(a.r[2 * j], a.r[2 * j + 1]));
  for (int m = W; m > 1; m /= 2) a.r[0] = NAME(of)(op, EVEN(a.r[0], a.r[0]), ODD(a.r[0], a.r[0]));
  return a.r[0][0];
}

// The fold of one segment of n rows, of which `room` may be read.
INLINE T NAME(folded)(const T *x, int64_t n, int64_t room, int op) {
  const T none = NAME(identity)(op);
  T all = none;
  for (int64_t begin = 0; begin < n; begin += CHUNK) {
    int64_t end = begin + CHUNK < n ? begin + CHUNK : n, p = begin;
    T fold = none;
    for (; p + 16 <= end; p += 16) fold = NAME(of_two)(op, fold, NAME(total)(NAME(load)(x + p), op));
    if (p < end) {
      B a = p + 16 <= room ? NAME(load)(x + p) : NAME(load_part)(x + p, end - p, op);
      fold = NAME(of_two)(op, fold, NAME(lane)(NAME(prefix)(a, op, NAME(splat)(none)), end - p - 1));
    }
    all = NAME(of_two)(op, all, fold);
  }
  return all;
}

INLINE void NAME(copy)(T *to, const T *from, int64_t n, int reverse) {
  if (!reverse) memcpy(to, from, n * sizeof(T));
  for (int64_t i = 0; reverse && i < n; i++) to[i] = from[n - 1 - i];
}

// Scan rows [begin, end) of one column, which start and end at segments.
INLINE void NAME(column)(const Scan *s, int64_t begin, int64_t end, int op) {
  const T *x = s->x;
  T *y = s->y, carry = NAME(identity)(op);
  T buffer[CHUNK + 17], *rows = buffer + 1;  // the row before, the piece, and room for a block
  uint8_t heads[CHUNK / 8 + 16];
  Piece piece = {.whole = 1};
  for (int64_t done = 0; done < end - begin; done += piece.rows) {
    int fresh = piece.whole;
    piece = next_piece(s, begin, end, done, !fresh);
    int64_t n = piece.rows, low = s->reverse ? end - done - n : begin + done;
    if (!piece.alone) copy_bits(heads, s, low, n);
    // Forward and inclusive goes from buffer to buffer, all else through rows in the direction of the walk.
    const int direct = !s->reverse && !s->exclusive;
    if (!direct) {
      NAME(copy)(rows, x + low, n, s->reverse);
      rows[-1] = fresh ? NAME(nothing)(op) : carry;
    }
    carry = NAME(piece)(direct ? x + low : rows, direct ? y + low : rows, n, direct ? end - low : CHUNK, heads, op, piece.alone,
                        carry);
    if (!direct) {
      for (int64_t i = 0; s->exclusive && !piece.alone && i < n; i += 64) {
        uint64_t starts;
        memcpy(&starts, heads + i / 8, 8);
        for (; starts; starts &= starts - 1) rows[i + __builtin_ctzll(starts) - 1] = NAME(nothing)(op);
      }
      NAME(copy)(y + low, s->exclusive ? rows - 1 : rows, n, s->reverse);
    }
    if (piece.whole) carry = NAME(identity)(op);
  }
}

// The rows [begin, end) of columns, STRIP at a time: from left to right in pieces of STEPS rows, and those from left to right; a
// linear recurrence in one piece. `y` takes a row each if it is a scan, else the last one of them all.
INLINE void NAME(rows)(const T *x, const T *gates, T *y, int64_t f, int64_t begin, int64_t end, int op, const Scan *scan) {
  for (int64_t left = 0; left < f; left += STRIP) {
    const int64_t w = f - left < STRIP ? f - left : STRIP;
    T done[STRIP], piece[STRIP], now[STRIP];  // all pieces before, this one, and both together
    const int reverse = scan && scan->reverse;
    for (int64_t t = begin, steps = 0; t < end; t++, steps++) {
      const int64_t i = reverse ? begin + end - 1 - t : t;
      const T *row = x + i * f + left, *gate = gates + (op == AFFINE ? i * f + left : 0);
      T *out = scan ? y + i * f + left : y + left;
      const int starts = t == begin || (scan && bit(scan->heads, reverse ? i + 1 : i));
      for (int64_t j = 0; j < w; j++) {
        const T before = starts ? NAME(nothing)(op) : now[j], value = row[j];
        if (starts) {
          done[j] = NAME(identity)(op);
          piece[j] = now[j] = value;
        } else if (op == AFFINE) {
          now[j] = (T)((U)gate[j] * (U)now[j] + (U)value);
        } else {
          if (steps == STEPS) done[j] = NAME(of_two)(op, done[j], piece[j]);
          piece[j] = steps == STEPS ? value : NAME(of_two)(op, piece[j], value);
          now[j] = NAME(of_two)(op, done[j], piece[j]);
        }
        if (scan) out[j] = scan->exclusive ? before : now[j];
      }
      if (starts || steps == STEPS) steps = 0;
      if (!scan && t == end - 1)
        for (int64_t j = 0; j < w; j++) out[j] = now[j];
    }
  }
}

static void NAME(scan)(const Scan *s, int64_t begin, int64_t end) {
  switch (s->op) {
#define ROWS(op, f) NAME(rows)(s->x, s->gates, s->y, f, begin, end, op, s)
    case AFFINE: if (s->f == 1) ROWS(AFFINE, 1); else ROWS(AFFINE, s->f); break;
#define CASE(op) case op: if (s->f == 1) NAME(column)(s, begin, end, op); else ROWS(op, s->f); break;
    CASE(ADD) CASE(MUL) CASE(MAX) CASE(MIN)
#undef CASE
#undef ROWS
  }
}

INLINE void NAME(segments)(const Reduce *r, int64_t first, int64_t last, int op) {
  const T *x = r->x;
  T *y = r->y;
  const int64_t f = r->f;
  for (int64_t k = first; k < last; k++) {
    int64_t begin = offset(r, k), end = offset(r, k + 1);
    if (f == 1 && begin < end) {
      y[k] = NAME(folded)(x + begin, end - begin, r->n - begin, op);
    } else if (begin < end) {
      NAME(rows)(x, NULL, y + k * f, f, begin, end, op, NULL);
    } else {
      for (int64_t j = 0; j < f; j++) y[k * f + j] = NAME(nothing)(op);
    }
  }
}

static void NAME(reduce)(const Reduce *r, int64_t first, int64_t last) {
  switch (r->op) {
#define CASE(op) case op: NAME(segments)(r, first, last, op); break;
    CASE(ADD) CASE(MUL) CASE(MAX) CASE(MIN)
#undef CASE
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
#undef T
#undef I
#undef U
#undef W
#undef ZERO
#undef LOWEST
#undef HIGHEST
#undef NAME
