"""The TPU machine: a Pallas kernel for each of flat values and columns, in one launch, compiled by Mosaic.

Blocks of values stream through vector memory in the order of the scan, with a carry from one to the next; the bodies are in
`pallas_tpu_walk`. Only blocks with live rows are read, and every row is written: dead ones are zero. Which rows are heads comes
as one bit a row, in the order in which the kernel needs them (`flat_plan`, `columns_plan`).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from segkernels import _compat
from segkernels._algebra import itself, of_nothing
from segkernels._segments import reset_bits, row_flags
from segkernels.kernels import scanned
from segkernels.kernels.pallas_tpu_heads import head_bits
from segkernels.kernels.pallas_tpu_walk import LANES, SUBLANES, Columns, Flat, Fold
from segkernels.kernels.pallas_tpu_words import Words

_DTYPES = ("float32", "bfloat16", "int32", "uint32", "int16", "uint16", "int8", "uint8")
_WIDENED = ("float16", "bool")  # outside of the kernel, which costs a pass of its own
_VMEM = 48 << 20  # bytes of vector memory that a kernel may take: v5e, v5p, v6e and tpu7x have 64 MiB and more
_SMALL = ("TPU v2", "TPU v3", "TPU v4")


def unsupported(call) -> str | None:
    """Why this machine cannot serve a call."""
    others = sorted({x.dtype.name for x in call.operands} - {*_DTYPES, *_WIDENED})
    if others:
        return f"it takes {', '.join(_DTYPES)} and, widened before, {' and '.join(_WIDENED)}, not {' and '.join(others)}"
    if call.monoid and call.monoid.order and any(x.dtype == np.uint32 for x in call.operands):
        return "it does not order uint32"
    kind = jax.devices()[0].device_kind if jax.default_backend() == "tpu" else ""
    if kind.startswith(_SMALL):
        return f"{kind} has too little vector memory for its blocks"
    sizes = [size for x in call.operands for size in x.shape]
    if not all(isinstance(size, int) for size in sizes):
        return "it takes no symbolic sizes"
    if max(sizes) >= 1 << 30:
        return "it numbers rows in 32 bits, less those of a block"
    return None


def scan(values, heads, n_live, *, monoid, reverse, exclusive, config, donate=False):
    """As `kernels.xla.scan`."""
    del config, donate
    n, f = values[0].shape
    if 0 in (n, f):
        return values[monoid.gives]
    (given,) = values[monoid.gives]
    n_live = jnp.clip(n_live, 0, n).astype(jnp.int32)
    fold = Fold(monoid, reverse, exclusive, tuple(x.dtype for x in values), _compat.tpu_interpreter())
    walk = walk_of(fold, n, f)
    if walk.words.per_word == 1:
        values = [_held(x, dtype) for x, dtype in zip(values, fold.held)]
    plan, run = FLAT if f == 1 else COLUMNS
    bits = reset_bits(heads, n_live, reverse)
    with jax.enable_x64(False):  # Mosaic has no 64-bit integers, which literals would be
        out = run(walk, values, plan(walk, bits, n), n_live)
    return (lax.bitcast_convert_type(out, given.dtype) if given.dtype == np.uint32 else out.astype(given.dtype),)


def reduce(values, per_segment, offsets, *, monoid, of, config):
    """As `kernels.xla.reduce`: a scan, and the last row of each segment."""
    n, f = values[0].shape
    s = offsets.shape[0] - 1
    if 0 in (n, f, s):
        return of_nothing(monoid, of, values, per_segment, offsets)
    offsets = jnp.clip(offsets, 0, n)
    if of is not itself:
        values = scanned.rows(functools.partial(spread, config=config), values, per_segment, offsets, of)
    forward = functools.partial(scan, reverse=False, exclusive=False, config=config)
    return scanned.reduce(forward, values, head_bits(offsets, n), offsets, monoid=monoid)


def spread(per_segment, offsets, *, n, config):
    """As `kernels.xla.spread`: a scan that carries the first row of each segment on."""
    s, f = per_segment.shape
    if 0 in (n, s, f):
        return jnp.zeros((n, f), per_segment.dtype)
    offsets = jnp.clip(offsets, 0, n)
    forward = functools.partial(scan, reverse=False, exclusive=False, config=config)
    return scanned.spread(forward, per_segment, head_bits(offsets, n), offsets, n=n)


softmax = functools.partial(scanned.softmax, reduce, spread)


def _held(x, dtype):
    """Values in the dtype of registers; uint32 as the int32 of the same bits."""
    return lax.bitcast_convert_type(x, dtype) if x.dtype == np.uint32 else x.astype(dtype)


def walk_of(fold, n, f):
    """The walk for ``[n, f]``: smaller blocks for few rows."""
    width, *others = {dtype.itemsize for dtype in fold.dtypes}
    # A word holds several values if all are as narrow and the kernel can take them so.
    per_word = 1 if others or any(dtype.name in _WIDENED for dtype in fold.dtypes) else max(1, 4 // width)
    words = Words(per_word, packed=fold.interpreted)
    if f > 1:
        few = n <= SUBLANES * Columns.group * per_word
        return Columns(fold, words, steps=Columns.group if few else 13 * Columns.group)
    if n <= SUBLANES * LANES * LANES * per_word:
        return Flat(fold, words, tiles=1, parts=1)
    # Two parts hide the carries where blocks are 2 MiB of narrow values; of pairs they would compile for over 3 s.
    return Flat(fold, words, tiles=4 // per_word, parts=2 if per_word > 1 and len(fold.dtypes) == 1 else 1)


# Plans: the bits of heads in the order of the kernel -----------------------------------------------------------------


def flat_plan(walk, bits, n):
    """For `flat_scan`: int32 ``[words / 128, 128]``, in the order part of a block, group, sublane, lane."""
    bits = jnp.pad(bits, (0, -(-n // walk.values) * walk.values // 32 - bits.shape[0]))
    bits = bits.reshape(-1, SUBLANES, LANES, walk.groups).transpose(0, 3, 1, 2)
    return lax.bitcast_convert_type(bits, jnp.int32).reshape(-1, LANES)


def columns_plan(walk, bits, n):
    """For `columns_scan`: int32 ``[blocks * 8, 128]``, the bits of a group in a word, its number the lane."""
    blocks = -(-n // walk.rows)
    flags = jnp.pad(row_flags(bits, n), (0, blocks * walk.rows - n)).reshape(blocks * SUBLANES, walk.groups, walk.group)
    words = jnp.sum(jnp.where(flags, jnp.int32(1) << jnp.arange(walk.group, dtype=jnp.int32), 0), axis=2, dtype=jnp.int32)
    return jnp.pad(words, ((0, 0), (0, LANES - walk.groups)))


# Launches ------------------------------------------------------------------------------------------------------------


def flat_scan(walk, values, plan, n_live, *, interpret=False, whole=False):
    """Scan ``[n, 1]`` values; without a copy if `n` is a multiple of 1,024 words. For the rest see `_launch`."""
    n, words = values[0].shape[0], walk.words
    tile = SUBLANES * LANES * words.per_word
    rows = [jnp.pad(x[:, 0], (0, -n % tile)).reshape(-1, LANES) for x in values]
    out = _launch(walk, rows, plan, n_live, block=walk.values // LANES, plan_block=walk.values // 32 // LANES,
                  flat=True, name="segkernels_flat", interpret=interpret, whole=whole)  # fmt: skip
    return out.reshape(-1)[:n, None]


def columns_scan(walk, values, plan, n_live, *, interpret=False, whole=False):
    """Scan ``[n, f]`` values as they are. For the rest see `_launch`."""
    return _launch(walk, values, plan, n_live, block=walk.rows, plan_block=SUBLANES, flat=False, name="segkernels_columns",
                   interpret=interpret, whole=whole)  # fmt: skip


FLAT, COLUMNS = (flat_plan, flat_scan), (columns_plan, columns_scan)


def _launch(walk, values, plan, n_live, *, block, plan_block, flat, name, interpret, whole):
    """Run a walk over blocks of rows of ``[rows, lanes]``, and over 128 lanes after the other.

    `whole` leaves out what dead rows need, to estimate the cost of live ones; `interpret` is that of `pl.pallas_call`.
    """
    fold, words = walk.fold, walk.words
    rows, lanes = values[0].shape
    blocks, scale = pl.cdiv(rows, block), LANES if flat else 1
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
    plan_spec = pl.BlockSpec((plan_block, LANES), lambda column, i, n_ref: (read(column, i, n_ref)[0], 0))
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
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=_VMEM),
        interpret=interpret,
        name=name,
    )(n_live.reshape(1), values, plan)
    return words.words_to_rows(out, fold.dtypes[-1])[:rows]


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
