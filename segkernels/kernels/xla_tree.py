"""Scans of rows in parallel, as a tree of short loops: for machines on which a loop over all rows is serial.

`lax.associative_scan` does less work, but has code for each power of two below the number of rows, for which the compilers of
TPUs and GPUs take tens of seconds.
"""

import jax
import jax.numpy as jnp
from jax import lax

_STEPS = 64  # of a loop: there are two loops for each power of it


def scan(join, resets, parts, *, reverse=False):
    """Scan rows, starting anew where `resets` are set: whether a row or one before it is reset, and the rows.

    Args:
      join: ``(earlier, reset, later)``: `later` where `reset` is set, else both combined; lists of arrays of some rows each.
      resets: booleans ``[n]``, n known and not 0.
      parts: a list of arrays ``[n, ...]``.
      reverse: from the last row on.
    """
    flip = lambda x: lax.rev(x, (0,)) if reverse else x
    rows = jax.tree.map(flip, (resets.astype(jnp.int32), list(parts)))
    first = jnp.arange(resets.shape[0]) == 0  # which nothing comes before: the second bit

    def step(earlier, later):
        (flags, a), (more, b) = earlier, later
        after = flags | more, join(a, more != 0, b)
        return after, after

    flags, out = jax.tree.map(flip, _scan(step, (rows[0] | jnp.where(first, 2, 0), rows[1])))
    return flags & 1 != 0, out


def _scan(step, rows):
    flags, parts = rows
    n = flags.shape[0]
    steps = min(_STEPS, n)
    chunks = -(-n // steps)  # of consecutive rows: all of them go through a loop side by side
    spare = (0, chunks * steps - n)
    rows = jnp.pad(flags, spare, constant_values=1), [jnp.pad(x, [spare] + [(0, 0)] * (x.ndim - 1)) for x in parts]
    rows = jax.tree.map(lambda x: x.reshape(chunks, steps, *x.shape[1:]).swapaxes(0, 1), rows)
    before = first = jax.tree.map(lambda x: x[0], rows)
    if chunks > 1:
        totals, _ = lax.scan(lambda state, row: (step(state, row)[0], None), first, jax.tree.map(lambda x: x[1:], rows))
        before = jax.tree.map(lambda x: jnp.concatenate([x[:1], x[:-1]]), _scan(step, totals))
    _, out = lax.scan(step, before, rows)
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:])[:n], out)
