"""The TPU machine: Pallas kernels, compiled by Mosaic, that walk flat values or columns once.

What a walk does with a block of rows is in `pallas_tpu_walk`; `pallas_tpu_scan` writes all rows of it, and `pallas_tpu_reduce`
the last one of each segment. Which rows are heads comes as one bit a row, in the order in which the walk needs them (`plan_of`).
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from segkernels import _compat
from segkernels._algebra import LOGADDEXP, itself, of_nothing
from segkernels._segments import reset_bits
from segkernels.kernels import scanned
from segkernels.kernels.pallas_tpu_fold import LANES, SUBLANES, Fold
from segkernels.kernels.pallas_tpu_heads import head_bits
from segkernels.kernels.pallas_tpu_reduce import TILE, last_rows
from segkernels.kernels.pallas_tpu_scan import all_rows
from segkernels.kernels.pallas_tpu_steps import fit
from segkernels.kernels.pallas_tpu_walk import Columns, Flat
from segkernels.kernels.pallas_tpu_words import Words

_DTYPES = ("float32", "bfloat16", "int32", "uint32", "int16", "uint16", "int8", "uint8")
_WIDENED = ("float16", "bool")  # outside of the kernel, which costs a pass of its own
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
    n_live = jnp.clip(n_live, 0, n).astype(jnp.int32)
    walk, held = _walk(values, monoid, reverse, exclusive)
    with jax.enable_x64(False):  # Mosaic has no 64-bit integers, which literals would be
        out = all_rows(walk, held, plan_of(walk, reset_bits(heads, n_live, reverse), n), n_live)
    return _given(out, values, monoid)


def reduce(values, per_segment, offsets, *, monoid, of, config):
    """As `kernels.xla.reduce`."""
    n, f = values[0].shape
    s = offsets.shape[0] - 1
    if 0 in (n, f, s):
        return of_nothing(monoid, of, values, per_segment, offsets)
    offsets = jnp.clip(offsets, 0, n)
    if of is not itself:
        values = scanned.rows(functools.partial(spread, config=config), values, per_segment, offsets, of)
    heads, offsets = head_bits(offsets, n), offsets.astype(jnp.int32)
    walk, held = _walk(values, monoid, reverse=False, exclusive=False)
    if not fit(n, walk.rows * walk.per_row, s, TILE):
        forward = functools.partial(scan, reverse=False, exclusive=False, config=config)
        return scanned.reduce(forward, values, heads, offsets, monoid=monoid)
    with jax.enable_x64(False):
        rows = last_rows(walk, held, plan_of(walk, heads, n), offsets)
    (last,) = _given(rows, values, monoid)
    (identity,) = monoid.identity_of(values)[monoid.gives]
    return (jnp.where((offsets[1:] == offsets[:-1])[:, None], identity, last),)


def spread(per_segment, offsets, *, n, config):
    """As `kernels.xla.spread`: a scan that carries the first row of each segment on."""
    s, f = per_segment.shape
    if 0 in (n, s, f):
        return jnp.zeros((n, f), per_segment.dtype)
    offsets = jnp.clip(offsets, 0, n)
    forward = functools.partial(scan, reverse=False, exclusive=False, config=config)
    return scanned.spread(forward, per_segment, head_bits(offsets, n), offsets, n=n)


softmax = functools.partial(scanned.softmax, reduce, spread)


def _walk(values, monoid, reverse, exclusive):
    """The walk for values, and these as it takes them: in the dtype of registers, but for those narrow in words."""
    fold = Fold(monoid, reverse, exclusive, tuple(x.dtype for x in values), _compat.tpu_interpreter())
    walk = walk_of(fold, *values[0].shape)
    as_bits = lambda x, dtype: lax.bitcast_convert_type(x, dtype) if x.dtype == np.uint32 else x.astype(dtype)
    return walk, values if walk.words.per_word > 1 else [as_bits(x, dtype) for x, dtype in zip(values, fold.held)]


def _given(out, values, monoid):
    """The result of a walk in the dtype of the values that it is one of."""
    (given,) = values[monoid.gives]
    return (lax.bitcast_convert_type(out, given.dtype) if given.dtype == np.uint32 else out.astype(given.dtype),)


def walk_of(fold, n, f):
    """The walk for ``[n, f]``: smaller blocks for few rows."""
    width, *others = {dtype.itemsize for dtype in fold.dtypes}
    # A word holds several values if all are as narrow and the kernel can take them so.
    per_word = 1 if others or any(dtype.name in _WIDENED for dtype in fold.dtypes) else max(1, 4 // width)
    words = Words(per_word, packed=fold.interpreted)
    if f > 1:
        few = n <= SUBLANES * Columns.group * per_word
        return Columns(fold, words, steps=Columns.group if few else {1: 260, 2: 140, 4: 60}[per_word])
    if n <= SUBLANES * LANES * LANES * per_word:
        return Flat(fold, words, tiles=1, parts=1)
    # Two parts hide the carries where blocks are 2 MiB of narrow values; what has more to do would compile for over 3 s.
    light = len(fold.dtypes) == 1 and fold.monoid is not LOGADDEXP
    return Flat(fold, words, tiles=4 // per_word, parts=2 if per_word > 1 and light else 1)


# Plans: the bits of heads in the order of the kernel -----------------------------------------------------------------


def plan_of(walk, bits, n):
    """The plan that a walk takes, from the bits of `n` rows."""
    return (_flat_plan if walk.per_row > 1 else _columns_plan)(walk, bits, n)


def _flat_plan(walk, bits, n):
    """int32 ``[words / 128, 128]``, in the order part of a block, group, sublane, lane."""
    block = walk.rows * LANES
    bits = jnp.pad(bits, (0, -(-n // block) * block // 32 - bits.shape[0]))
    bits = bits.reshape(-1, SUBLANES, LANES, walk.groups).transpose(0, 3, 1, 2)
    return lax.bitcast_convert_type(bits, jnp.int32).reshape(-1, LANES)


def _columns_plan(walk, bits, n):
    """int32 ``[blocks * 8, 128]``, the bits of a group in a word, its number the lane."""
    blocks = -(-n // walk.rows)
    bits = jnp.pad(bits, (0, blocks * walk.rows // 32 - bits.shape[0]))
    period = math.lcm(walk.group, 32)  # bits, of whole words and groups
    words, groups = [bits[k :: period // 32] for k in range(period // 32)], []
    for start in range(0, period, walk.group):
        k, low = divmod(start, 32)
        group = words[k] >> low
        if low + walk.group > 32:
            group |= words[k + 1] << (32 - low)
        groups.append(group & ((1 << walk.group) - 1))
    groups = lax.bitcast_convert_type(jnp.stack(groups, axis=1), jnp.int32).reshape(-1, walk.groups)
    return jnp.pad(groups, ((0, 0), (0, LANES - walk.groups)))
