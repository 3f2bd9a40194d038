"""Grids over pairs of a block of rows and a tile of segments, for TPU kernels where segments are spread over blocks."""

import jax.numpy as jnp
from jax.experimental import pallas as pl

FIRST, SPARE = 1, 2
_MOST = 1 << 15  # steps: scalar memory holds four numbers for each


def fit(n, block, segments, tile):
    """Whether there are few enough of them."""
    return pl.cdiv(n, block) + pl.cdiv(segments, tile) <= _MOST


def steps(rows, block, blocks, tile, tiles, live=None):
    """What each step of a grid does: block after block, a tile for each that has rows in it, or one if none has.

    Args:
      rows: int32 ``[s]``, ascending: a row for each segment.
      block, blocks: rows of a block, and how many blocks there are.
      tile, tiles: segments of a tile, and how many tiles there are.
      live: so many blocks are visited; None is all.

    Returns:
      Three int32 arrays ``[blocks + tiles]``: the block, the tile, and whether the step is the `FIRST` of its block, or
      `SPARE`, which has the block and tile of the one before. And ``[blocks + 1]``: how many segments lie before each block.
    """
    edges = jnp.searchsorted(rows, jnp.arange(blocks + 1, dtype=jnp.int32) * block).astype(jnp.int32)
    low = edges[:-1] // tile
    number = jnp.maximum((edges[1:] + tile - 1) // tile - low, 1)
    if live is not None:
        number = jnp.where(jnp.arange(blocks) < live, number, 0)
    end = jnp.cumsum(number, dtype=jnp.int32)
    step = jnp.arange(blocks + tiles, dtype=jnp.int32)
    spare = step >= end[-1]
    step = jnp.minimum(step, jnp.maximum(end[-1] - 1, 0))
    of = jnp.minimum(jnp.searchsorted(end, step, side="right").astype(jnp.int32), blocks - 1)
    begin = end[of] - number[of]
    first = jnp.where(spare, SPARE, jnp.where(step == begin, FIRST, 0))
    return of, jnp.clip(low[of] + step - begin, 0, tiles - 1), first.astype(jnp.int32), edges
