"""Reductions, spreads and softmax made of scans, for machines and walks that have nothing better.

`scan`, `reduce` and `spread` are those of the machine; but for `softmax`, with all else bound: ``scan(values, heads, n_live,
monoid=...)``, ``spread(per_segment, offsets, n=...)``, offsets are within the rows, `heads` are their bits, and neither rows,
segments nor features are none.
"""

import jax.numpy as jnp
from jax import lax

from segkernels._algebra import ADD, FIRST, MAX, itself, power
from segkernels._segments import only_live


def reduce(scan, values, heads, offsets, *, monoid):
    """The last row of each segment of a scan, ``[s, f]`` for each part that the monoid gives."""
    scanned = scan(values, heads, offsets[-1], monoid=monoid)
    empty = (offsets[1:] == offsets[:-1])[:, None]
    last = jnp.maximum(offsets[1:] - 1, 0)
    # The barrier: see `Ragged.to_padded`.
    identity = monoid.identity_of(values)[monoid.gives]
    return tuple(jnp.where(empty, e, lax.optimization_barrier(y[last])) for e, y in zip(identity, scanned))


def rows(spread, values, per_segment, offsets, of):
    """What `of` makes of each row: see `_verbs.reduce`."""
    n = values[0].shape[0]
    row = lax.broadcasted_iota(offsets.dtype, (n, 1), 0)
    starts, *per_segment = (spread(x, offsets, n=n) for x in (offsets[:-1, None], *per_segment))
    return of(values, tuple(per_segment), row - starts)


def spread(scan, per_segment, heads, offsets, *, n):
    """Each row of ``[s, f]`` put at the head of its segment and carried on: ``[n, f]``, dead rows zero."""
    starts = jnp.where(offsets[1:] > offsets[:-1], offsets[:-1], n)
    at_heads = jnp.zeros((n, per_segment.shape[1]), per_segment.dtype).at[starts].set(per_segment, mode="drop")
    (out,) = scan((at_heads,), heads, offsets[-1], monoid=FIRST)
    return out


def softmax(reduce, spread, values, offsets, *, logarithm, config):
    """Softmax of each segment of ``[n, f]`` floats, the maximum of it taken out before, or its logarithm; dead rows zero."""
    n, f = values.shape
    shape = (n,) if f == 1 else (n, f)  # XLA walks many rows of one column slowly where it works element by element

    def of_segment(monoid, x, of=itself):
        (out,) = reduce((x.reshape(n, f),), (), offsets, monoid=monoid, of=of, config=config)
        return out

    def spread_out(per_segment):
        return spread(per_segment, offsets, n=n, config=config).reshape(shape)

    below = values.reshape(shape) - spread_out(of_segment(MAX, values))
    if logarithm:
        out = below - spread_out(jnp.log(of_segment(ADD, below, power)))
    else:
        powers = jnp.exp(below)
        out = powers / spread_out(of_segment(ADD, powers))
    return only_live(out, offsets[-1]).reshape(n, f)
