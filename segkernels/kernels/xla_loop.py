"""The loop walk of the XLA machine: sequential folds that XLA compiles to one native CPU loop each.

Inclusive bits equal ``np.cumsum`` of the segment alone, for they are folded left to right from the segment's own first
row.

XLA turns a while loop into one native loop only while an iteration stays small (under 1,024 bytes in jaxlib 0.10);
past that each operation of the body is a task of its own and a row costs 50 times more. Hence the widths below. The
tests read the compiled text for the native loop, for every monoid and dtype.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax

from segkernels import _compat
from segkernels._algebra import LATEST, MAX, MIN, itself, made
from segkernels._segments import only_live, reset_bits

_SCAN_BYTES, _REDUCE_BYTES = 128, 32  # of a row of features in one iteration of the loop
_PIECE = 64  # steps of a reduction in a piece, and pieces in a group


def scan(values, heads, n_live, *, monoid, reverse, exclusive):
    """As `kernels.xla.scan`, of values in the dtype they are combined in."""
    resets = reset_bits(heads, n_live, reverse)
    if monoid is LATEST and not exclusive:
        return (_scan_latest(*values, resets, n_live, reverse),)
    return _scan(values, resets, n_live, monoid=monoid, reverse=reverse, exclusive=exclusive)


def _scan(values, resets, n_live, **fold):
    if _in_lanes(values[0].shape):
        return _scan_lanes(tuple(x[:, 0] for x in values), resets, n_live, **fold)
    return _scan_rows(values, resets, n_live, **fold)


def _in_lanes(shape):
    n, f = shape
    return f == 1 and not (isinstance(n, int) and n < 8)


def _scan_latest(valid, values, resets, n_live, reverse):
    """By the numbers of valid rows, whose maximum (from the end: minimum) needs no select a row, which would be a branch."""
    monoid = MIN if reverse else MAX
    rows = lax.broadcasted_iota(n_live.dtype, values.shape, 0)
    none = monoid.identity_of((rows,))[0]
    numbers = (jnp.where(valid, rows, none),)
    fold = dict(monoid=monoid, reverse=reverse, exclusive=False)
    if _in_lanes(values.shape):
        return _scan(numbers, resets, n_live, look_up=values[:, 0], **fold)[0]
    (found,) = _scan_rows(numbers, resets, n_live, **fold)
    out = jnp.take_along_axis(values, jnp.where(found == none, rows, found), 0, mode="clip")
    return only_live(lax.optimization_barrier(out), n_live)


def reduce(values, per_segment, offsets, monoid, of):
    """As `kernels.xla.reduce`, of values in the dtype they are combined in."""
    dtype = values[0].dtype
    if of is itself and monoid.order and jnp.issubdtype(dtype, jnp.floating):
        (keys,) = _fold_segments(values, (), offsets, MAX, lambda rows, *_: (_as_keys(rows[0], monoid.order),))
        return (_from_keys(keys, dtype, monoid.order),)
    return _fold_segments(values, per_segment, offsets, monoid, of)


def slice_rows(x, start, size):
    return lax.dynamic_slice_in_dim(x, start, size, allow_negative_indices=False)


def update_rows(x, piece, start):
    return lax.dynamic_update_slice_in_dim(x, piece, start, 0, allow_negative_indices=False)


def _bits_from(heads, row):
    """The head bits from `row` to the end of its word."""
    return slice_rows(heads, row >> 5, 1)[0] >> (row & 31).astype(jnp.uint32)


def _fold(state, row, reset, monoid, exclusive):
    """One row: what to store for it, and the state after it. Reset by select: 0 * state would keep a NaN."""
    after = tuple(jnp.where(reset, r, c) for r, c in zip(row, monoid.combine(state, row)))
    if not exclusive:
        return after[monoid.gives], after
    return tuple(jnp.where(reset, e, s) for e, s in zip(monoid.identity_of(row), state))[monoid.gives], after


def _scan_lanes(values, resets, n, *, monoid, reverse, exclusive, look_up=None):
    """Scan 1-D values: two lanes of rows at once, split where a segment starts near the middle.

    A fold is a chain in which each step waits for the one before; two chains in one iteration hide half of that
    wait. No segment is folded by both lanes, so the bits are those of one fold. Lanes begin and end at multiples of
    8 rows, where a block finds its bits in one word. Both fold the block with the split; the first lane, which knows
    the rows before the split, stores it last.

    With `look_up`, rows ``[n]``, a result is the number of the row to store, and the identity means the row at hand.
    """

    def step(start, done, state, out, width):
        low = start - done - width if reverse else start + done
        bits = _bits_from(resets, low)
        block = [slice_rows(x, low, width) for x in values]
        stored = [None] * width
        for u in reversed(range(width)) if reverse else range(width):
            reset = (bits & np.uint32(1 << u)) != 0
            stored[u], state = _fold(state, tuple(b[u] for b in block), reset, monoid, exclusive)
            if look_up is not None:
                (found,) = stored[u]
                stored[u] = (slice_rows(look_up, jnp.where(found == identity[0], low + u, found), 1)[0],)
        return state, tuple(update_rows(y, jnp.stack(column), low) for y, column in zip(out, zip(*stored)))

    def run(start, end, state, out, width):
        rows = abs(end - start)
        body = lambda s: (s[0] + width, *step(start, *s, width))
        return lax.while_loop(lambda s: s[0] < rows, body, (zero, state, out))[1:]

    def both(s):
        done, first, second, out = s
        second, out = step(split_start, done, second, out, width // 2)
        first, out = step(start, done, first, out, width // 2)
        return done + width // 2, first, second, out

    width = 8 // len(values)
    state = identity = monoid.identity_of(values)
    out = tuple(jnp.zeros_like(x) for x in (values[monoid.gives] if look_up is None else (look_up,)))
    # Where blocks of 8 fill the buffer the last one may run into dead rows; else a loop of single rows ends the fold.
    in_blocks = out[0].shape[0] % 8 == 0
    whole = (n + 7 if in_blocks else n) // 8 * 8
    zero = jnp.zeros((), n.dtype)
    start, end = (whole, zero) if reverse else (zero, whole)
    if reverse and not in_blocks:
        state, out = run(n, whole, state, out, 1)
    block = _block_with_reset(resets, n)
    edges = (block + 8, block) if reverse else (block, block + 8)
    split_start, split_end = (jnp.where(block < whole, edge, start) for edge in edges)

    rows = jnp.minimum(abs(split_end - start), abs(end - split_start))
    _, first, second, out = lax.while_loop(lambda s: s[0] < rows, both, (zero, state, state, out))
    go = -rows if reverse else rows
    first_left = start + go != split_end
    left, right = jnp.where(first_left, start + go, split_start + go), jnp.where(first_left, split_end, end)
    pick = lambda one, other: tuple(jnp.where(first_left, a, b) for a, b in zip(one, other))
    alone = min(width, 32 // values[0].dtype.itemsize)  # eight exponentials of float64 would be over the limit
    rest, out = run(left, right, pick(first, second), out, alone)
    if in_blocks:
        return tuple(_clear_last(y, n, whole) for y in out)
    return out if reverse else run(whole, n, pick(second, rest), out, 1)[1]


def _clear_last(y, n, whole):
    """Zero the dead rows of the block that ends before row `whole`."""
    low = jnp.maximum(whole - 8, 0)
    return update_rows(y, jnp.where(low + jnp.arange(8, dtype=n.dtype) < n, slice_rows(y, low, 8), jnp.zeros((), y.dtype)), low)


def _block_with_reset(resets, n):
    """The first row of the first block of 8 rows, from the middle on, in which a segment starts; else past row n."""
    byte = lambda block: _bits_from(resets, 8 * block) & 255
    return 8 * lax.while_loop(lambda block: (8 * block < n) & (byte(block) == 0), lambda block: block + 1, n // 16)


def _scan_rows(values, resets, n, *, monoid, reverse, exclusive):
    """Scan rows of features, in columns of at most `_SCAN_BYTES` so that XLA keeps the native loop."""
    f = values[0].shape[1]
    width = _columns(values, _SCAN_BYTES)

    def columns(j, out):
        left = jnp.minimum(j * width, f - width).astype(n.dtype)  # the last columns may be done twice, to the same bits

        def row(t, s):
            state, out = s
            i = n - 1 - t if reverse else t
            reset = (_bits_from(resets, i) & 1) != 0
            block = tuple(lax.dynamic_slice(x, (i, left), (1, width), allow_negative_indices=False) for x in values)
            stored, state = _fold(state, block, reset, monoid, exclusive)
            out = tuple(lax.dynamic_update_slice(y, z, (i, left), allow_negative_indices=False) for y, z in zip(out, stored))
            return state, out

        start = tuple(jnp.full((1, width), e) for e in monoid.identity_of(values))
        return lax.fori_loop(0, n, row, (start, out))[1]

    out = tuple(jnp.zeros_like(x) for x in values[monoid.gives])
    return lax.fori_loop(0, -(-f // width), columns, out) if width < f else columns(0, out)


def _columns(values, limit):
    """How many columns of features one iteration takes: those that `limit` bytes hold."""
    return min(values[0].shape[1], max(1, limit // sum(x.dtype.itemsize for x in values)))


def _fold_segments(values, per_segment, offsets, monoid, of):
    """Fold what `of` makes of rows, segment by segment, each in pieces of `_PIECE` steps and groups of `_PIECE` pieces.

    Three levels keep a long sum accurate: a value goes through `_PIECE` roundings in its piece, as many in its group,
    and then one a group: a few hundred for a million rows, not a million. One loop runs over columns, segments and
    pieces alike, and one inside over a piece: a third would cost the native loop. A step takes several rows of a
    single column at once, or one row of several columns.
    """
    n, f = values[0].shape
    s = offsets.shape[0] - 1
    width = _columns(values, _REDUCE_BYTES)
    parts = made(of, values, per_segment, offsets)
    identity = monoid.identity_of(parts)
    rows = 1 if f > 1 else _block_rows(n, s, values, parts)
    row = lax.broadcasted_iota(offsets.dtype, (rows, 1), 0)

    def blocks(arrays, i, left, size):
        return tuple(lax.dynamic_slice(x, (i, left), (size, width), allow_negative_indices=False) for x in arrays)

    def take(i, left, k, begin):
        return of(blocks(values, i, left, rows), blocks(per_segment, k, left, 1), i - begin + row)


    def anew(when, fold):
        return tuple(jnp.where(when, e, x) for x, e in zip(fold, identity))

    def piece(state):
        task, start, group, total, out = state
        k, left = task % s, jnp.minimum(task // s * width, f - width)
        begin, end = slice_rows(offsets, k, 1)[0], slice_rows(offsets, k + 1, 1)[0]
        start = jnp.maximum(start, begin)
        stop = start + jnp.minimum(end - start, _PIECE * rows)  # in this order: start + _PIECE * rows may not fit
        steps = (stop - start) // rows
        fold = tuple(jnp.full((rows, width), e) for e in identity)
        if rows > 1:  # the rows that fill no block
            low = jnp.minimum(start + steps * rows, n - rows)
            live = (low + row >= start + steps * rows) & (low + row < stop)
            fold = anew(~live, take(low, left, k, begin))
        fold = lax.fori_loop(0, steps, lambda t, fold: monoid.combine(fold, take(start + t * rows, left, k, begin)), fold)
        if rows > 1:
            fold = tuple(x[None] for x in lax.reduce(fold, identity, monoid.combine, (0,)))
        group = monoid.combine(group, fold)
        sum_ = monoid.combine(total, group)
        kept = zip(out, sum_[monoid.gives])
        out = tuple(lax.dynamic_update_slice(y, z, (k, left), allow_negative_indices=False) for y, z in kept)
        done, full = stop >= end, (stop - begin) % (_PIECE * _PIECE * rows) == 0
        total = anew(done, tuple(jnp.where(full, a, b) for a, b in zip(sum_, total)))
        return jnp.where(done, task + 1, task), jnp.where(done, 0, stop), anew(done | full, group), total, out

    tasks, zero = -(-f // width) * s, jnp.zeros((), offsets.dtype)
    start = tuple(jnp.full((1, width), e) for e in identity)
    out = tuple(jnp.full((s, f), e) for e in identity[monoid.gives])
    return lax.while_loop(lambda state: state[0] < tasks, piece, (zero, zero, start, start, out))[4]


def _block_rows(n, s, values, parts):
    """Rows a step takes of one column: at most 64 bytes and 32 rows, half of that for short segments.

    Blocks of more are not vectorized any more by jaxlib 0.10, whose loops must hold what is made of values, too.
    """
    held = {x.dtype for x in parts} - {x.dtype for x in values} if _compat.SMALL_LOOPS else ()
    itemsize = sum(x.dtype.itemsize for x in values) + sum(dtype.itemsize for dtype in held)
    few, many = (min(32, _power_of_two(size // itemsize)) for size in (32, 64))
    if not (isinstance(n, int) and isinstance(s, int)):
        return few
    return next((rows for rows, mean in ((many, 64), (few, 0)) if n >= max(rows, mean * s)), 1)


def _power_of_two(n):
    return 1 << (max(n, 1).bit_length() - 1)


# Integers are compared by vector instructions in every jaxlib, floats only from 0.12 on, for the sake of NaN. So a largest or
# smallest float is found by its bits, as unsigned integers of the same order (of the opposite one for a smallest). They
# begin with 0 for the identity, and both kinds of NaN wrap around to the top: NaN is above every number either way.


def _as_keys(x, order):
    bits = x.dtype.itemsize * 8
    key = _flipped(lax.bitcast_convert_type(x, f"int{bits}"), jnp)
    worst = _worst(x.dtype, order)
    return lax.bitcast_convert_type(key - worst if order > 0 else worst - key, f"uint{bits}")


def _from_keys(keys, dtype, order):
    key = lax.bitcast_convert_type(keys, f"int{dtype.itemsize * 8}")
    worst = _worst(dtype, order)
    return lax.bitcast_convert_type(_flipped(key + worst if order > 0 else worst - key, jnp), dtype)


def _worst(dtype, order):
    """The signed integer of the infinity that is the identity."""
    return _flipped(np.asarray(-order * np.inf, dtype).view(f"int{dtype.itemsize * 8}"), np)


def _flipped(bits, xp):
    """The bits of floats as signed integers of the same order, and back."""
    info = np.iinfo(bits.dtype)
    return bits ^ ((bits >> (info.bits - 1)) & xp.asarray(info.max, bits.dtype))


def spread(per_segment, offsets, n):
    """Write segment by segment, in blocks of rows: what a block has too much is written over by the segments after it."""
    if per_segment.dtype == jnp.bfloat16:  # jaxlib 0.10 would convert the whole buffer in each step
        return lax.bitcast_convert_type(spread(lax.bitcast_convert_type(per_segment, jnp.uint16), offsets, n), jnp.bfloat16)
    s, f = per_segment.shape
    width = _columns((per_segment,), _SCAN_BYTES)
    rows = min(32, _power_of_two(64 // (width * per_segment.dtype.itemsize)), _power_of_two(n))

    def columns(j, out):
        left = jnp.minimum(j * width, f - width).astype(offsets.dtype)

        def write(start, steps, block, out):
            def put(t, out):
                return lax.dynamic_update_slice(out, block, (start + t * len(block), left), allow_negative_indices=False)

            return lax.fori_loop(0, steps, put, out)

        def segment(k, out):
            begin, end = slice_rows(offsets, k, 1)[0], slice_rows(offsets, k + 1, 1)[0]
            row = lax.dynamic_slice(per_segment, (k, left), (1, width), allow_negative_indices=False)
            # Blocks while they fit into the buffer, and single rows for what is left.
            blocks = jnp.clip((n - begin) // rows, 0, (end - begin + rows - 1) // rows)
            out = write(begin, blocks, jnp.broadcast_to(row, (rows, width)), out)
            done = begin + blocks * rows
            return write(done, jnp.maximum(end - done, 0), row, out)

        return lax.fori_loop(jnp.zeros((), offsets.dtype), jnp.asarray(s, offsets.dtype), segment, out)

    out = jnp.zeros((n, f), per_segment.dtype)
    out = lax.fori_loop(0, -(-f // width), columns, out) if width < f else columns(0, out)
    low = jnp.minimum(offsets[-1], n - rows)  # the last segment may have written into dead rows
    dead = low + lax.broadcasted_iota(offsets.dtype, (rows, 1), 0) >= offsets[-1]
    out = update_rows(out, jnp.where(dead, jnp.zeros((), out.dtype), slice_rows(out, low, rows)), low)
    return lax.optimization_barrier(out)  # fused with what comes after, the update would copy the buffer
