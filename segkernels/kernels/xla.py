"""Segmented scan, reduce and spread in plain JAX: every platform, and the meaning of the other kernels.

Three walks, named by `Config.walk` and tested against each other:

* ``loop``: a sequential fold that XLA compiles to one native CPU loop. Inclusive bits equal ``np.cumsum`` of the
  segment alone, for they are folded left to right from the segment's own first row.
* ``associative``: ``lax.associative_scan`` over (value, head) pairs, one block of rows after the other: for
  machines on which a loop over rows is serial.
* ``segment_sum``: ``jax.ops.segment_*`` on segment ids, for reductions.

XLA turns a while loop into one native loop only while an iteration stays small (under 1,024 bytes in jaxlib 0.10);
past that each operation of the body is a task of its own and a row costs 50 times more. Hence the widths below. The
tests read the compiled text for the native loop, for every monoid and dtype.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax

from segkernels._algebra import FIRST, accumulator
from segkernels._segments import head_bits, reset_bits, row_flags

SCAN_WALKS = ("loop", "associative")
REDUCE_WALKS = ("loop", "associative", "segment_sum")
_BLOCK = 1 << 16  # rows of one associative block: 16 levels of code to compile, whatever the number of rows
_SCAN_BYTES, _REDUCE_BYTES = 128, 32  # of a row of features in one iteration of the loop
_PIECE = 64  # steps of a reduction in a piece, and pieces in a group


def unsupported(verb, monoid, operands, config) -> str | None:
    """Why this machine cannot serve a call; only a walk that the verb does not have is a reason."""
    walks = SCAN_WALKS
    if verb == "reduce":
        walks = REDUCE_WALKS if monoid.segment and operands[0].dtype != bool else SCAN_WALKS
    if config.walk in (None, *walks):
        return None
    return f"its walks for this are {' and '.join(walks)}, not {config.walk}"


def scan(values, heads, n_live, *, monoid, reverse, exclusive, config):
    """Fold each row into the rows of its segment before it.

    Args:
      values: tuple of arrays ``[n, f]``, the parts of the state.
      heads: uint32 ``[ceil(n / 32)]``, one bit a row, least bit first, set at the first row of a segment.
      n_live: int32 scalar; rows from here on are dead: read by nobody, zero in the result.
      monoid, reverse, exclusive: what to fold, from which end, and whether a row leaves itself out.
      config: `Config` with a walk of `SCAN_WALKS`.

    Returns:
      A tuple of arrays like those of `values` that the monoid gives.
    """
    n, f = values[0].shape
    if 0 in (n, f):
        return values[monoid.gives]
    n_live = jnp.clip(n_live, 0, n)
    wide = _widened(values)
    fold = dict(monoid=monoid, reverse=reverse, exclusive=exclusive)
    if config.walk == "associative":
        out = _scan_associative(wide, heads, n_live, **fold)
    elif f == 1 and not (isinstance(n, int) and n < 8):
        out = _scan_lanes(tuple(x[:, 0] for x in wide), reset_bits(heads, n_live, reverse), n_live, **fold)
    else:
        out = _scan_rows(wide, reset_bits(heads, n_live, reverse), n_live, **fold)
    return tuple(y[:n].reshape(x.shape).astype(x.dtype) for y, x in zip(out, values[monoid.gives]))


def reduce(values, offsets, *, monoid, config):
    """Fold each segment of ``[n, f]`` into one row: a tuple of arrays ``[s, f]``; empty ones give the identity."""
    n, f = values[0].shape
    if 0 in (n, f, offsets.shape[0] - 1):
        return tuple(jnp.full((offsets.shape[0] - 1, f), e) for e in _identity(monoid, values)[monoid.gives])
    offsets = jnp.clip(offsets, 0, n)
    wide = _widened(values)
    if config.walk == "segment_sum":
        out = _reduce_by_ids(wide, offsets, monoid)
    elif config.walk == "associative":
        out = _reduce_associative(wide, offsets, monoid)
    else:
        out = _reduce_loop(wide, offsets, monoid)
    return tuple(y.astype(x.dtype) for y, x in zip(out, values[monoid.gives]))


def spread(per_segment, offsets, *, n, config):
    """Repeat each row of ``[s, f]`` over the rows of its segment: ``[n, f]``, dead rows zero."""
    offsets = jnp.clip(offsets, 0, n)
    starts = jnp.where(offsets[1:] > offsets[:-1], offsets[:-1], n)
    at_heads = jnp.zeros((n, per_segment.shape[1]), per_segment.dtype).at[starts].set(per_segment, mode="drop")
    heads = head_bits(offsets, n)
    (out,) = scan((at_heads,), heads, offsets[-1], monoid=FIRST, reverse=False, exclusive=False, config=config)
    return out


def _widened(values):
    """Values in the dtype they are combined in; with a symbolic number of rows, one that holds any block of a loop."""
    wide = tuple(x.astype(accumulator(x.dtype)) for x in values)
    return wide if isinstance(values[0].shape[0], int) else tuple(jnp.pad(x, ((0, 64), (0, 0))) for x in wide)


# The loop ------------------------------------------------------------------------------------------------------------


def _slice(x, start, size):
    return lax.dynamic_slice_in_dim(x, start, size, allow_negative_indices=False)


def _update(x, piece, start):
    return lax.dynamic_update_slice_in_dim(x, piece, start, 0, allow_negative_indices=False)


def _bits_from(heads, row):
    """The head bits from `row` to the end of its word."""
    return _slice(heads, row >> 5, 1)[0] >> (row & 31).astype(jnp.uint32)


def _fold(state, row, reset, monoid, exclusive):
    """One row: what to store for it, and the state after it. Reset by select: 0 * state would keep a NaN."""
    after = tuple(jnp.where(reset, r, c) for r, c in zip(row, monoid.combine(state, row)))
    if not exclusive:
        return after[monoid.gives], after
    return tuple(jnp.where(reset, e, s) for e, s in zip(_identity(monoid, row), state))[monoid.gives], after


def _identity(monoid, parts):
    """The identity, as scalars in the dtypes of the parts."""
    dtypes = [x.dtype for x in parts]
    return tuple(jnp.asarray(e, dtype) for e, dtype in zip(monoid.identity(*dtypes), dtypes))


def _scan_lanes(values, resets, n, *, monoid, reverse, exclusive):
    """Scan 1-D values: two lanes of rows at once, split where a segment starts near the middle.

    A fold is a chain in which each step waits for the one before; two chains in one iteration hide half of that
    wait. No segment is folded by both lanes, so the bits are those of one fold. Lanes begin and end at multiples of
    8 rows, where a block finds its bits in one word. Both fold the block with the split; the first lane, which knows
    the rows before the split, stores it last.
    """

    def step(start, done, state, out, width):
        low = start - done - width if reverse else start + done
        bits = _bits_from(resets, low)
        block = [_slice(x, low, width) for x in values]
        stored = [None] * width
        for u in reversed(range(width)) if reverse else range(width):
            reset = (bits & np.uint32(1 << u)) != 0
            stored[u], state = _fold(state, tuple(b[u] for b in block), reset, monoid, exclusive)
        return state, tuple(_update(y, jnp.stack(column), low) for y, column in zip(out, zip(*stored)))

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
    state = _identity(monoid, values)
    out = tuple(jnp.zeros_like(x) for x in values[monoid.gives])
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
    rest, out = run(left, right, pick(first, second), out, width)
    if in_blocks:
        return tuple(_clear_last(y, n, whole) for y in out)
    return out if reverse else run(whole, n, pick(second, rest), out, 1)[1]


def _clear_last(y, n, whole):
    """Zero the dead rows of the block that ends before row `whole`."""
    low = jnp.maximum(whole - 8, 0)
    return _update(y, jnp.where(low + jnp.arange(8, dtype=n.dtype) < n, _slice(y, low, 8), jnp.zeros((), y.dtype)), low)


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

        start = tuple(jnp.full((1, width), e) for e in _identity(monoid, values))
        return lax.fori_loop(0, n, row, (start, out))[1]

    out = tuple(jnp.zeros_like(x) for x in values[monoid.gives])
    return lax.fori_loop(0, -(-f // width), columns, out) if width < f else columns(0, out)


def _columns(values, limit):
    """How many columns of features one iteration takes: those that `limit` bytes hold."""
    return min(values[0].shape[1], max(1, limit // sum(x.dtype.itemsize for x in values)))


def _reduce_loop(values, offsets, monoid):
    """Fold segment by segment, each in pieces of `_PIECE` steps and groups of `_PIECE` pieces.

    Three levels keep a long sum accurate: a value goes through `_PIECE` roundings in its piece, as many in its group,
    and then one a group: a few hundred for a million rows, not a million. One loop runs over columns, segments and
    pieces alike, and one inside over a piece: a third would cost the native loop. A step takes several rows of a
    single column at once, or one row of several columns.
    """
    n, f = values[0].shape
    s = offsets.shape[0] - 1
    width = _columns(values, _REDUCE_BYTES)
    rows = 1 if f > 1 else _block_rows(n, s, values)
    row = lax.broadcasted_iota(offsets.dtype, (rows, 1), 0)
    identity = _identity(monoid, values)

    def take(i, left):
        return tuple(lax.dynamic_slice(x, (i, left), (rows, width), allow_negative_indices=False) for x in values)

    def anew(when, fold):
        return tuple(jnp.where(when, e, x) for x, e in zip(fold, identity))

    def piece(state):
        task, start, group, total, out = state
        k, left = task % s, jnp.minimum(task // s * width, f - width)
        begin, end = _slice(offsets, k, 1)[0], _slice(offsets, k + 1, 1)[0]
        start = jnp.maximum(start, begin)
        stop = start + jnp.minimum(end - start, _PIECE * rows)  # in this order: start + _PIECE * rows may not fit
        steps = (stop - start) // rows
        fold = tuple(jnp.full((rows, width), e) for e in identity)
        fold = lax.fori_loop(0, steps, lambda t, fold: monoid.combine(fold, take(start + t * rows, left)), fold)
        if rows > 1:
            low = jnp.minimum(start + steps * rows, n - rows)
            live = (low + row >= start + steps * rows) & (low + row < stop)
            fold = monoid.combine(fold, anew(~live, take(low, left)))
            fold = tuple(x[None] for x in lax.reduce(fold, identity, monoid.combine, (0,)))
        group = monoid.combine(group, fold)
        sum_ = monoid.combine(total, group)
        kept = zip(out, sum_[monoid.gives])
        out = tuple(lax.dynamic_update_slice(y, z, (k, left), allow_negative_indices=False) for y, z in kept)
        done, full = stop >= end, (stop - begin) % (_PIECE * _PIECE * rows) == 0
        total = anew(done, tuple(jnp.where(full, a, b) for a, b in zip(sum_, total)))
        return jnp.where(done, task + 1, task), jnp.where(done, 0, stop), anew(done | full, group), total, out

    tasks = -(-f // width) * s
    start = tuple(jnp.full((1, width), e) for e in identity)
    out = tuple(jnp.full((s, f), e) for e in identity[monoid.gives])
    zero = jnp.zeros((), offsets.dtype)
    return lax.while_loop(lambda state: state[0] < tasks, piece, (zero, zero, start, start, out))[4]


def _block_rows(n, s, values):
    """Rows a step takes of one column: 64 bytes of them, half of that for short segments, and no more than there are."""
    itemsize = sum(x.dtype.itemsize for x in values)
    if not (isinstance(n, int) and isinstance(s, int)):
        return max(1, 32 // itemsize)
    return next((rows for rows, mean in ((64 // itemsize, 64), (32 // itemsize, 0)) if n >= max(rows, mean * s)), 1)


# Accelerators and user functions -------------------------------------------------------------------------------------


def _scan_associative(values, heads, n, *, monoid, reverse, exclusive):
    """Scan one block of rows after the other, each by `lax.associative_scan`; blocks of dead rows are not visited."""
    rows, f = values[0].shape
    block = min(_BLOCK, 1 << (rows - 1).bit_length()) if isinstance(rows, int) else _BLOCK
    capacity = (rows + block - 1) // block * block
    resets = row_flags(reset_bits(heads, n, reverse), capacity)
    values = tuple(jnp.pad(x, ((0, capacity - rows), (0, 0))) for x in values)
    blocks = (n + block - 1) // block

    def combine(earlier, later):
        (was_reset, a), (reset, b) = earlier, later
        return was_reset | reset, tuple(jnp.where(reset, y, z) for y, z in zip(b, monoid.combine(a, b)))

    def visit(t, s):
        state, out = s
        low = (blocks - 1 - t if reverse else t) * block
        piece = tuple(_slice(x, low, block) for x in values)
        here = _slice(resets, low, block)[:, None]
        seen, local = lax.associative_scan(combine, (here, piece), reverse=reverse)
        after = tuple(jnp.where(seen, x, y) for x, y in zip(local, monoid.combine(state, local)))
        state_after = tuple(x[:1] if reverse else x[-1:] for x in after)
        if exclusive:
            shifted = [jnp.concatenate([x[1:], c] if reverse else [c, x[:-1]]) for x, c in zip(after, state)]
            after = tuple(jnp.where(here, e, x) for e, x in zip(identity, shifted))
        live = (low + jnp.arange(block, dtype=n.dtype) < n)[:, None]
        out = tuple(_update(y, jnp.where(live, x, jnp.zeros((), x.dtype)), low) for y, x in zip(out, after[monoid.gives]))
        return state_after, out

    identity = _identity(monoid, values)
    start = tuple(jnp.full((1, f), e) for e in identity)
    out = lax.fori_loop(0, blocks, visit, (start, tuple(jnp.zeros_like(x) for x in values[monoid.gives])))[1]
    return tuple(y[:rows] for y in out)


def _reduce_associative(values, offsets, monoid):
    """Scan, and take the last row of each segment."""
    heads = head_bits(offsets, values[0].shape[0])
    scanned = _scan_associative(values, heads, offsets[-1], monoid=monoid, reverse=False, exclusive=False)
    empty = (offsets[1:] == offsets[:-1])[:, None]
    last = jnp.maximum(offsets[1:] - 1, 0)
    # The barrier: see `Ragged.to_padded`.
    identity = _identity(monoid, values)[monoid.gives]
    return tuple(jnp.where(empty, e, lax.optimization_barrier(y[last])) for e, y in zip(identity, scanned))


def _reduce_by_ids(values, offsets, monoid):
    n, s = values[0].shape[0], offsets.shape[0] - 1
    ids = jnp.cumsum(jnp.zeros(n, offsets.dtype).at[offsets[1:]].add(1, mode="drop"))
    return tuple(monoid.segment(x, ids, s, indices_are_sorted=True) for x in values)
