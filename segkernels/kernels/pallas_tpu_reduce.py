"""Reductions on a TPU from the walk of a scan that stays in vector memory: only the last row of each segment leaves it.

The grid goes over pairs of a block of rows and a tile of segments that end in it. A step walks its block, if none before it
has, and takes from it the rows in which segments of its tile end, eight into a register.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from segkernels.kernels.pallas_tpu_fold import LANES, PLACES, SUBLANES
from segkernels.kernels.pallas_tpu_scan import VMEM
from segkernels.kernels.pallas_tpu_steps import FIRST, SPARE, steps

TILE = SUBLANES * LANES  # segments; in the flat kernel segment ``8 lane + sublane`` of it is in that place of a register
AT_ONCE = 64  # segments that are taken beside each other


def last_rows(walk, values, plan, offsets, *, interpret=False):
    """The last row of each segment of a scan, ``[s, f]`` in the dtype of registers; of empty segments anything.

    Args:
      walk: of the scan, forward and inclusive.
      values, plan: as `all_rows` of `pallas_tpu_scan` takes them.
      offsets: int32 ``[s + 1]``, within the rows.
      interpret: that of `pl.pallas_call`.
    """
    values = [walk.rows_of(x) for x in values]
    words, flat, s = walk.words, walk.per_row > 1, offsets.shape[0] - 1
    rows, lanes = values[0].shape
    size = walk.rows * walk.per_row
    blocks, tiles = pl.cdiv(rows, walk.rows), pl.cdiv(s, TILE)
    ends = offsets[1:] - 1
    grid = steps(ends, size, blocks, TILE, tiles, pl.cdiv(offsets[-1], size))
    row, lane, shift = walk.place_of(jnp.pad(jnp.maximum(ends, 0) % size, (0, tiles * TILE - s)))
    places = (lane << 5 | shift).reshape(tiles, LANES, SUBLANES).swapaxes(1, 2).reshape(-1, LANES)
    shape = PLACES if flat else (TILE, LANES)

    def kernel(block_ref, tile_ref, first_ref, edge_ref, value_refs, bits_ref, row_ref, place_ref, out_ref, *scratch):
        step = pl.program_id(1)
        *_, carry_refs = scratch

        @pl.when(step == 0)
        def _():
            for ref in carry_refs:
                ref[...] = jnp.zeros_like(ref)

        @pl.when(first_ref[step] == FIRST)
        def _():
            walk([words.view(ref) for ref in value_refs], bits_ref, None, *scratch)

        @pl.when(first_ref[step] != SPARE)
        def _():
            low, high = (edge_ref[block_ref[step] + after] - tile_ref[step] * TILE for after in (0, 1))
            one = functools.partial(words.one, dtype=walk.fold.dtypes[-1])
            take = _take_values if flat else _take_rows
            take(walk.results(scratch), row_ref, place_ref, out_ref, jnp.maximum(low, 0), jnp.minimum(high, TILE), one)

    of_block = lambda column, step, block, *_: (block[step], column)
    of_tile = lambda column, step, block, tile, *_: (tile[step], column)
    shrink = words.per_word if words.packed else 1
    out = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(grid),
            grid=(pl.cdiv(lanes, LANES), blocks + tiles),
            in_specs=[
                [pl.BlockSpec((walk.rows // shrink, LANES), of_block)] * len(values),
                pl.BlockSpec((walk.plan_rows, LANES), lambda column, *step: of_block(0, *step)),
                pl.BlockSpec(PLACES, lambda column, *step: of_tile(0, *step), memory_space=pltpu.SMEM),
                pl.BlockSpec(PLACES, lambda column, *step: of_tile(0, *step)),
            ],
            out_specs=pl.BlockSpec(shape, of_tile),
            scratch_shapes=walk.scratch(stays=True),
        ),
        out_shape=jax.ShapeDtypeStruct((tiles * shape[0], lanes), walk.fold.held[-1]),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM),
        interpret=interpret,
        name="segkernels_reduce" if flat else "segkernels_reduce_columns",
    )(*grid, [words.rows_to_words(x) for x in values], plan, row.reshape(-1, LANES), places)
    return out.reshape(tiles, *PLACES).swapaxes(1, 2).reshape(-1, 1)[:s] if flat else out[:s]


def _take_values(walked_ref, row_ref, place_ref, out_ref, low, high, one):
    """Take the segments from `low` to `high` of a tile: each from its own lane of its row."""
    sublane, lane = (lax.broadcasted_iota(jnp.int32, PLACES, axis) for axis in (0, 1))
    number, place = lane * SUBLANES + sublane, place_ref[...]

    def register(i, out):
        taken = jnp.take_along_axis(_eight(walked_ref, row_ref, i), place >> 5, axis=1, mode="promise_in_bounds")
        return jnp.where(lane == i, taken, out)

    taken = _registers(low, high, register, jnp.zeros(PLACES, walked_ref.dtype))
    out_ref[...] = jnp.where((number >= low) & (number < high), one(taken, shift=place & 31), out_ref[...])


def _take_rows(walked_ref, row_ref, place_ref, out_ref, low, high, one):
    """Take the segments from `low` to `high` of a tile: their rows as they are."""

    def register(i, _):
        at = pl.ds(pl.multiple_of(i * SUBLANES, SUBLANES), SUBLANES)
        number = i * SUBLANES + lax.broadcasted_iota(jnp.int32, PLACES, 0)
        shift = jnp.take_along_axis(place_ref[...], jnp.full(PLACES, i), axis=1, mode="promise_in_bounds")
        taken = one(_eight(walked_ref, row_ref, i), shift=shift)
        out_ref[at, :] = jnp.where((number >= low) & (number < high), taken, out_ref[at, :])

    _registers(low, high, register, None)


def _registers(low, high, step, state):
    """``step(number, state)`` for the registers that hold the segments from `low` to `high`, and some beside them."""

    def together(i, state):
        registers = AT_ONCE // SUBLANES
        for j in range(registers):
            state = step(i * registers + j, state)
        return state

    return lax.fori_loop(lax.div(low, AT_ONCE), lax.div(high + (AT_ONCE - 1), AT_ONCE), together, state)


def _eight(walked_ref, row_ref, i):
    """A register of the rows that the segments of register `i` end in."""
    sublane = lax.broadcasted_iota(jnp.int32, PLACES, 0)
    rows, x = row_ref.at[i >> 4, pl.ds((i & 15) * SUBLANES, SUBLANES)], jnp.zeros(PLACES, walked_ref.dtype)
    for j in range(SUBLANES):
        x = jnp.where(sublane == j, walked_ref[pl.ds(rows[j], 1), :], x)
    return x
