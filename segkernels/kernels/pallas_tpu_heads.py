"""Head bits from offsets on a TPU, where a scatter takes ten cycles a segment: here the matrix unit adds them up.

A block is 128 by 128 words of 32 bits. A start sets one bit of the word in row r and lane l: the product of a unit vector for r
with one for l times a power of two. The sum over 128 starts is one matrix product. Powers of two in halves of 16 bits and their
sums are exact in it, for the starts are distinct.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from segkernels import _segments
from segkernels.kernels.pallas_tpu_steps import FIRST, SPARE, fit, steps

_SIDE = 128
_BLOCK = 32 * _SIDE * _SIDE  # rows of the layout whose bits are a block
_ROWS = 16  # of 128 starts in a tile
_TILE = _ROWS * _SIDE


def head_bits(offsets, n):
    """As `_segments.head_bits` of offsets on a device; neither rows nor segments are none."""
    offsets = jnp.clip(offsets, 0, n)
    if not fit(n, _BLOCK, offsets.shape[0] - 1, _TILE):
        return _segments.head_bits(offsets, n)
    with jax.enable_x64(False):  # Mosaic has no 64-bit integers, which literals would be
        return _head_bits(offsets.astype(jnp.int32), n)


def _head_bits(offsets, n):
    starts = jnp.where(offsets[1:] > offsets[:-1], offsets[:-1], -1)
    blocks, tiles = pl.cdiv(n, _BLOCK), pl.cdiv(starts.shape[0], _TILE)
    starts = jnp.pad(starts, (0, tiles * _TILE - starts.shape[0]), constant_values=-1)
    block, tile, first, _ = steps(offsets[:-1], _BLOCK, blocks, _TILE, tiles)
    bits = pl.pallas_call(
        _kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(blocks + tiles,),
            in_specs=[pl.BlockSpec((_ROWS, _SIDE), lambda step, block, tile, first: (tile[step], 0))],
            out_specs=pl.BlockSpec((_SIDE, _SIDE), lambda step, block, tile, first: (block[step], 0)),
            scratch_shapes=[pltpu.VMEM((_SIDE, 2 * _SIDE), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((blocks * _SIDE, _SIDE), jnp.int32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        name="segkernels_heads",
    )(block, tile, first, starts.reshape(-1, _SIDE))
    return lax.bitcast_convert_type(bits.reshape(-1)[: (n + 31) // 32], jnp.uint32)


def _kernel(block_ref, tile_ref, first_ref, starts_ref, out_ref, sum_ref):
    del tile_ref
    step = pl.program_id(0)
    first = first_ref[step]
    place = lax.broadcasted_iota(jnp.int32, (_SIDE, _SIDE), 0)
    wide = lambda x: jnp.broadcast_to(x, (_SIDE, _SIDE))
    units = lambda where, x: jnp.where(where, x, np.float32(0)).astype(jnp.bfloat16)

    @pl.when(first == FIRST)
    def _():
        sum_ref[...] = jnp.zeros_like(sum_ref)

    @pl.when(first != SPARE)
    def _():
        for row in range(_ROWS):
            start = starts_ref[row : row + 1, :] - block_ref[step] * _BLOCK  # those of other blocks have a row of none
            bit = start & 31
            power = lax.shift_left(jnp.ones_like(bit), bit & 15).astype(jnp.float32)
            halves = [jnp.where(half, power, np.float32(0)) for half in (bit < 16, bit >= 16)]
            rows = units(place == wide(start >> 12), np.float32(1))  # [row, start]
            here = place == wide((start >> 5) & (_SIDE - 1))
            lanes = jnp.concatenate([units(here, wide(half)) for half in halves])  # [lane of either half, start]
            sum_ref[...] += lax.dot_general(rows, lanes, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        words = sum_ref[...].astype(jnp.int32)
        out_ref[...] = words[:, :_SIDE] | (words[:, _SIDE:] << 16)
