"""Scans on a TPU: blocks of rows stream through vector memory in the order of the scan, with a carry from one to the next.

Only blocks with live rows are read, and every row is written: dead ones are zero. On a v5p, whose two cores share a grid, flat
values are left to one of them: the other could begin only with the total of the first half, a pass of its own over it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from segkernels.kernels.pallas_tpu_fold import LANES, SUBLANES

VMEM = 48 << 20  # bytes of vector memory that a kernel may take: v5e, v5p, v6e and tpu7x have 64 MiB and more


def all_rows(walk, values, plan, n_live, *, interpret=False, whole=False):
    """Scan values ``[n, f]``: every row of the walk, in the dtype of the values or of registers.

    Args:
      walk: of the scan.
      values: its parts, as the walk takes them.
      plan: the bits of heads as the walk takes them.
      n_live: int32: how many rows are live.
      interpret: that of `pl.pallas_call`.
      whole: leave out what dead rows need, to estimate the cost of live ones.
    """
    n, f = values[0].shape
    values = [walk.rows_of(x) for x in values]
    fold, words = walk.fold, walk.words
    rows, lanes = values[0].shape
    block, scale, flat = walk.rows, walk.per_row, walk.per_row > 1
    blocks = pl.cdiv(rows, block)
    values = [words.rows_to_words(x) for x in values]
    shape = jax.ShapeDtypeStruct(values[-1].shape, values[-1].dtype)
    shrink = words.per_word if words.packed else 1

    def live(n_ref):
        return pl.cdiv(n_ref[0], block * scale)

    def number(i):
        return blocks - 1 - i if fold.reverse else i

    def read(column, i, n_ref):  # past the live ones the last of them again, which is there already
        return jnp.minimum(number(i), jnp.maximum(live(n_ref) - 1, 0)), column

    value_spec = pl.BlockSpec((block // shrink, LANES), read)
    plan_spec = pl.BlockSpec((walk.plan_rows, LANES), lambda column, i, n_ref: (read(column, i, n_ref)[0], 0))
    out_spec = pl.BlockSpec((block // shrink, LANES), lambda column, i, n_ref: (number(i), column))

    def kernel(n_ref, value_refs, bits_ref, out_ref, *scratch):
        i = number(pl.program_id(1))
        *_, carry_refs = scratch

        @pl.when(pl.program_id(1) == 0)
        def _():
            for ref in carry_refs:
                ref[...] = jnp.zeros_like(ref)

        def run():
            walk([words.view(ref) for ref in value_refs], bits_ref, words.view(out_ref), *scratch)

        if whole:
            return run()
        pl.when(i < live(n_ref))(run)

        @pl.when(i >= live(n_ref))
        def _():
            out_ref[...] = jnp.zeros_like(out_ref)

        @pl.when((n_ref[0] > i * block * scale) & (n_ref[0] < (i + 1) * block * scale))
        def _():
            _clear(words, words.view(out_ref), n_ref[0] - i * block * scale, flat)

    out = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(pl.cdiv(lanes, LANES), blocks),
            in_specs=[[value_spec] * len(values), plan_spec],
            out_specs=out_spec,
            scratch_shapes=walk.scratch(),
        ),
        out_shape=shape,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM),
        interpret=interpret,
        name="segkernels_scan" if flat else "segkernels_scan_columns",
    )(n_live.reshape(1), values, plan)
    return words.words_to_rows(out, fold.dtypes[-1])[:rows].reshape(-1, f)[:n]


def _clear(words, ref, first, flat):
    """Zero the values of a block from the `first` one on, counted along lanes too if they are flat."""
    per_word, rows = words.per_word, ref.shape[0]
    row, lane = (lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), axis) for axis in (0, 1))

    def visit(tile, _):
        at = pl.ds(pl.multiple_of(tile * SUBLANES, SUBLANES), SUBLANES)
        x, keep = ref[at, :], []
        for h in range(per_word):
            number = (tile * SUBLANES + row) * per_word + h
            keep.append((number * LANES + lane if flat else number) < first)
        if per_word == 1:
            ref[at, :] = jnp.where(keep[0], x, jnp.zeros_like(x))
        else:
            ones = (1 << 32 // per_word) - 1
            masks = [jnp.where(k, np.uint32(ones << h * 32 // per_word).astype(np.int32), 0) for h, k in enumerate(keep)]
            ref[at, :] = x & functools.reduce(jnp.bitwise_or, masks)

    lax.fori_loop(0, rows // SUBLANES, visit, None)
