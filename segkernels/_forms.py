"""The three input forms of every operation: a list of arrays, a `Ragged`, flat values with their `Segments`.

An operation is a *body*: a function ``(values [n, *feature], segments, **options)`` of JAX arrays whose options are
static. This file brings each form to a body and its result back. Concrete lists and NumPy values go through the host:
packed into a bucket, so that neither lengths nor their number are part of what JAX compiles for.
"""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np

from segkernels import _check, _compat, _host
from segkernels._ragged import Ragged
from segkernels._segments import Segments, head_bits


@functools.cache
def jitted(body):
    """The body under `jax.jit`, its keyword-only arguments static."""
    names = [p.name for p in inspect.signature(body).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return jax.jit(body, static_argnames=names)


def apply(call, body, x, segments, *, to_rows, dtype=None, **options):
    """Run `body` on `x` in whichever form it comes.

    Args:
      call: the name of the public function, for messages.
      body: what to run; it gives rows ``[n, *feature]`` if `to_rows`, else one row a segment.
      x, segments: the arguments of the public function.
      to_rows: whether the layout of the result is that of the input; such a body needs head bits only.
      dtype: the dtype asked for, or None.
      options: of the body.
    """
    if isinstance(x, (list, tuple, Ragged)) and segments is not None:
        raise TypeError(
            f"{call}: a {'Ragged' if isinstance(x, Ragged) else 'list'} has a layout of its own; pass no `segments` with it"
        )
    options["dtype"] = _dtype(call, dtype)
    if isinstance(x, (list, tuple)):
        run = _traced_list if _check.is_traced(*x) else _list
        return run(call, body, x, to_rows, options)
    if isinstance(x, Ragged):
        out = jitted(body)(x.values, _plan(x.segments, x.values.shape[0]) if to_rows else x.segments, **options)
        return x.with_values(out) if to_rows else out
    return _flat(call, body, x, segments, to_rows, options)


def as_by(function, values, dtype):
    """Values in `dtype`, or in that of a `jax.numpy` function of them if it is None."""
    return values.astype(dtype or jax.eval_shape(function, jax.ShapeDtypeStruct((1,), values.dtype)).dtype)


def flat_values(call, argument, x, segments):
    """Check a flat array and its layout; the array is NumPy unless it is a JAX array."""
    if segments is None:
        raise TypeError(
            f"{call}: `{argument}` must be a list of arrays, a `Ragged`, or an array together with `segments`, got "
            f"{type(x).__name__}"
        )
    layout(call, segments)
    if not isinstance(x, jax.Array):
        x = _host.as_numpy(call, f"`{argument}`", x)
    _check.supported(call, argument, x.dtype)
    if x.ndim == 0:
        raise ValueError(f"{call}: `{argument}` needs a first axis, its rows, got a 0-d array")
    return x


def layout(call, segments):
    """Refuse anything but a `Segments`: ids and offsets look alike."""
    if not isinstance(segments, Segments):
        raise TypeError(
            f"{call}: `segments` must be a `Segments`, got {type(segments).__name__}; build one with "
            "`Segments.from_offsets`, `from_lengths`, `from_ids` (sorted), `group` (unsorted) or `from_flags`"
        )


def on_host(body, values, segments, device, options):
    """Run a body on host buffers at once, outside any trace, and give its result as a NumPy array we may not write to."""
    with _compat.now():
        return np.asarray(jitted(body)(_host.put(values, device), segments, **options))


def _dtype(call, dtype):
    if dtype is None:
        return None
    try:
        dtype = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"{call}: `dtype` must be a dtype, got {dtype!r}") from error
    _check.supported(call, "dtype", dtype)
    return dtype.newbyteorder("=")


def _plan(segments: Segments, n) -> Segments:
    """What a scan needs of a layout: head bits and the total; how many segments there are changes no shape in it."""
    if not isinstance(segments.offsets, np.ndarray):
        return segments
    return Segments._make(segments.offsets[[0, -1]], segments.head_bits(n))


def padded(offsets) -> Segments:
    """A layout with trailing empty segments up to a bucket of their number."""
    s = len(offsets) - 1
    return Segments._make(np.pad(offsets, (0, _host.row_bucket(s) - s), mode="edge"))


def _list(call, body, items, to_rows, options):
    packed = _host.arrays(call, items)
    capacity, s = packed.capacity, len(packed.items)
    offsets = packed.offsets
    if to_rows:
        segments = Segments._make(offsets[[0, -1]], head_bits(offsets, capacity))
    else:
        segments = padded(offsets)
    wide = (packed.dtype, options["dtype"] or packed.dtype) if packed.device is None else ()
    with _host.x64(*wide):
        flat = on_host(body, packed.pack(capacity), segments, packed.device, options)
    if packed.device is None:
        flat = flat[: packed.total if to_rows else s].copy()
    if to_rows:
        return _host.split(flat, offsets, packed.device)
    return flat if packed.device is None else _host.put(flat[:s].copy(), packed.device)


def _traced_list(call, body, items, to_rows, options):
    listed = _host.arrays(call, items)
    values = jnp.concatenate([_host.to_jax(call, x).astype(listed.dtype) for x in listed.items])
    out = _flat(call, body, values, Segments._make(listed.offsets), to_rows, options)
    edges = listed.offsets.tolist()
    return [jax.lax.slice_in_dim(out, a, b) for a, b in zip(edges, edges[1:])] if to_rows else out


def _flat(call, body, x, segments, to_rows, options):
    values = flat_values(call, "x", x, segments)
    _check.rows(call, values, segments)
    n = values.shape[0]
    if isinstance(values, jax.Array):
        return jitted(body)(values, _plan(segments, n) if to_rows else segments, **options)
    if _check.is_traced(segments.offsets):
        return jitted(body)(_host.to_jax(call, values), segments, **options)
    offsets, s = np.asarray(segments.offsets), segments.num_segments
    packed = _host.Arrays([values], np.array([0, n]), values.shape[1:], _host.common_dtype([values.dtype], False), None)
    capacity = packed.capacity
    segments = Segments._make(offsets, segments.heads)
    with _host.x64(packed.dtype, options["dtype"] or packed.dtype):
        plan = _plan(segments, capacity) if to_rows else padded(offsets)
        return on_host(body, packed.pack(capacity), plan, None, options)[: n if to_rows else s].copy()
