"""Segmented scan, reduce, spread and softmax in plain JAX: every platform, and the meaning of the other kernels.

Three walks, named by `Config.walk` and tested against each other:

* ``loop``: sequential folds that XLA compiles to native CPU loops (`kernels.xla_loop`).
* ``associative``: trees of short loops over many rows side by side (`kernels.xla_tree`), one block of rows after the
  other: for machines on which a loop over rows is serial.
* ``segment_sum``: ``jax.ops.segment_*`` on segment ids, for reductions.
"""

import functools

import jax.numpy as jnp
from jax import lax

from segkernels._algebra import itself, of_nothing, wide
from segkernels._segments import head_bits, reset_bits, row_flags
from segkernels.kernels import scanned, xla_loop, xla_tree
from segkernels.kernels.xla_loop import slice_rows, update_rows

SCAN_WALKS = ("loop", "associative")
REDUCE_WALKS = ("loop", "associative", "segment_sum")
_BLOCK = 1 << 18  # rows of one associative block
_LONG = 8  # rows of a segment from which on a loop over segments spreads faster than a scan of rows


def unsupported(call) -> str | None:
    """Why this machine cannot serve a call; only a walk that the verb does not have is a reason."""
    walks, walk = SCAN_WALKS, call.choice.config.walk
    if call.verb == "softmax":
        walks = REDUCE_WALKS
    elif call.verb == "reduce":
        walks = REDUCE_WALKS if call.monoid.segment and call.operands[0].dtype != bool else SCAN_WALKS
    if walk in (None, *walks):
        return None
    return f"its walks for this are {' and '.join(walks)}, not {walk}"


def scan(values, heads, n_live, *, monoid, reverse, exclusive, config, donate=False):
    """Fold each row into the rows of its segment before it.

    Args:
      values: tuple of arrays ``[n, f]``, the parts of the state.
      heads: uint32 ``[ceil(n / 32)]``, one bit a row, least bit first, set at the first row of a segment.
      n_live: int32 scalar; rows from here on are dead: read by nobody, zero in the result.
      monoid, reverse, exclusive: what to fold, from which end, and whether a row leaves itself out.
      config: `Config` with a walk of `SCAN_WALKS`.
      donate: whether the result may take the memory of the last part. Here XLA decides on memory by itself.

    Returns:
      A tuple of arrays like those of `values` that the monoid gives.
    """
    del donate
    n, f = values[0].shape
    if 0 in (n, f):
        return values[monoid.gives]
    n_live = jnp.clip(n_live, 0, n)
    walk = _scan_associative if config.walk == "associative" else xla_loop.scan
    out = walk(_widened(values), heads, n_live, monoid=monoid, reverse=reverse, exclusive=exclusive)
    return tuple(y[:n].reshape(x.shape).astype(x.dtype) for y, x in zip(out, values[monoid.gives]))


def reduce(values, per_segment, offsets, *, monoid, of, config):
    """Fold what `of` makes of each row of a segment into one row.

    Args:
      values: tuple of arrays ``[n, f]``.
      per_segment: tuple of arrays ``[s, f]``, which `of` sees beside the rows of their segment; see `_verbs.reduce`.
      offsets: ``[s + 1]``.
      monoid, of: what to fold, and of what.
      config: `Config` with a walk of `REDUCE_WALKS`.

    Returns:
      A tuple of arrays ``[s, f]`` like what `of` makes; empty segments give the identity.
    """
    n, f = values[0].shape
    s = offsets.shape[0] - 1
    if 0 in (n, f, s):
        return of_nothing(monoid, of, values, per_segment, offsets)
    offsets = jnp.clip(offsets, 0, n)
    if config.walk == "loop":
        out = xla_loop.reduce(_widened(values), per_segment, offsets, monoid, of)
    else:
        if of is not itself:
            values = scanned.rows(functools.partial(spread, config=config), values, per_segment, offsets, of)
        if config.walk == "segment_sum":
            out = _reduce_by_ids(_widened(values), offsets, monoid)
        else:
            out = scanned.reduce(_FORWARD, _widened(values), head_bits(offsets, n), offsets, monoid=monoid)
    return tuple(y.astype(x.dtype) for y, x in zip(out, values[monoid.gives])) if of is itself else out


def spread(per_segment, offsets, *, n, config):
    """Repeat each row of ``[s, f]`` over the rows of its segment: ``[n, f]``, dead rows zero."""
    offsets = jnp.clip(offsets, 0, n)
    s, f = per_segment.shape
    if 0 in (n, s, f):
        return jnp.zeros((n, f), per_segment.dtype)
    if config.walk == "loop" and isinstance(n, int) and isinstance(s, int) and n >= _LONG * s:
        return xla_loop.spread(per_segment, offsets, n)
    forward = functools.partial(scan, reverse=False, exclusive=False, config=config)
    return scanned.spread(forward, per_segment, head_bits(offsets, n), offsets, n=n)


softmax = functools.partial(scanned.softmax, reduce, spread)


def _widened(values):
    """Values in the dtype they are combined in; with a symbolic number of rows, one that holds any block of a loop."""
    values = tuple(map(wide, values))
    return values if isinstance(values[0].shape[0], int) else tuple(jnp.pad(x, ((0, 64), (0, 0))) for x in values)


# The other walks -----------------------------------------------------------------------------------------------------


def _scan_associative(values, heads, n, *, monoid, reverse, exclusive):
    """Scan one block of rows after the other, each as a tree of loops; blocks of dead rows are not visited."""
    rows, f = values[0].shape
    block = min(_BLOCK, 1 << (rows - 1).bit_length()) if isinstance(rows, int) else _BLOCK
    capacity = (rows + block - 1) // block * block
    resets = jnp.pad(row_flags(reset_bits(heads, n, reverse), rows), (0, capacity - rows))
    values = tuple(jnp.pad(x, ((0, capacity - rows), (0, 0))) for x in values)
    blocks = (n + block - 1) // block

    def join(earlier, reset, later):
        return [jnp.where(reset[:, None], y, z) for y, z in zip(later, monoid.combine(tuple(earlier), tuple(later)))]

    def visit(t, s):
        state, out = s
        low = (blocks - 1 - t if reverse else t) * block
        piece = tuple(slice_rows(x, low, block) for x in values)
        here = slice_rows(resets, low, block)
        seen, local = xla_tree.scan(join, here, piece, reverse=reverse)
        after = tuple(jnp.where(seen[:, None], x, y) for x, y in zip(local, monoid.combine(state, tuple(local))))
        state_after = tuple(x[:1] if reverse else x[-1:] for x in after)
        if exclusive:
            shifted = [jnp.concatenate([x[1:], c] if reverse else [c, x[:-1]]) for x, c in zip(after, state)]
            after = tuple(jnp.where(here[:, None], e, x) for e, x in zip(identity, shifted))
        live = (low + jnp.arange(block, dtype=n.dtype) < n)[:, None]
        out = tuple(update_rows(y, jnp.where(live, x, jnp.zeros((), x.dtype)), low) for y, x in zip(out, after[monoid.gives]))
        return state_after, out

    identity = monoid.identity_of(values)
    start = tuple(jnp.full((1, f), e) for e in identity)
    out = lax.fori_loop(0, blocks, visit, (start, tuple(jnp.zeros_like(x) for x in values[monoid.gives])))[1]
    return tuple(y[:rows] for y in out)


_FORWARD = functools.partial(_scan_associative, reverse=False, exclusive=False)


def _reduce_by_ids(values, offsets, monoid):
    n, s = values[0].shape[0], offsets.shape[0] - 1
    ids = jnp.cumsum(jnp.zeros(n, offsets.dtype).at[offsets[1:]].add(1, mode="drop"))
    return tuple(monoid.segment(x, ids, s, indices_are_sorted=True) for x in values)
