"""Operations made of the verbs."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from segkernels import _check, _forms, _host, _select, _verbs


def segmented_repeat(x, segments, *, size=None, implementation=None):
    """Repeat one value a segment over the rows of the segment, as ``np.repeat(x, segments.lengths, axis=0)``.

    Args:
      x: an array ``[num_segments, *feature]``.
      segments: the `Segments` to spread over.
      size: rows of the result; by default those the layout describes, required under jit. Dead rows are 0.
      implementation: None for the best machine, its name, or a `Config`.

    Returns:
      An array ``[size, *feature]``, NumPy if `x` is, else JAX.

    Raises:
      TypeError: `segments` is no `Segments`, or `x` no array of numbers.
      ValueError: `x` has not one entry a segment, or `size` is too small or missing.

    >>> segmented_repeat(np.array([7, 8, 9]), Segments.from_lengths([2, 0, 3]))
    array([7, 7, 9, 9, 9])
    """
    call = "segmented_repeat"
    choice = _select.requested(call, implementation)
    x = _forms.flat_values(call, "x", x, segments)
    if x.shape[0] != segments.num_segments:
        raise ValueError(f"{call}: `x` must have one entry a segment, got shape {x.shape} for {segments.num_segments} segments")
    known = _check.concrete(segments.offsets)
    total = None if known is None else int(known[-1])
    n = _check.required_size(call, "size", total if size is None else size)
    if total is not None and n < total:
        raise ValueError(f"{call}: `size` must hold all {total} rows, got {n}")
    if isinstance(x, jax.Array) or known is None:
        return _forms.jitted(_repeat)(_host.to_jax(call, x), segments, n=n, choice=choice)
    dtype = _host.common_dtype([x.dtype], on_jax=False)
    with _host.x64(dtype):
        rows = _host.row_bucket(n, math.prod(x.shape[1:]) * dtype.itemsize)
        layout = _forms.padded(known)
        values = np.zeros((layout.num_segments, *x.shape[1:]), dtype)
        values[: len(x)] = x
        return _forms.on_host(_repeat, values, layout, None, dict(n=rows, choice=choice))[:n].copy()


def _repeat(values, segments, *, n, choice):
    out = _verbs.spread(_verbs.columns(values), jnp.asarray(segments.offsets), n=n, choice=choice)
    return out.reshape(n, *values.shape[1:])
