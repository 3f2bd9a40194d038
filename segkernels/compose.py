"""Operations made of the verbs: from rows to rows, but for `segmented_repeat`.

They take ``x`` in the three forms of `segkernels.scan` and give rows in the same form. A list compiles once per dtype,
feature shape, bucket of rows and bucket of segments. NaN and infinities stay in their segment, in values and gradients;
derivatives have any order. All raise a `TypeError` for an operand, a layout or a dtype that is not taken, and a `ValueError`
for shapes, offsets or names that do not fit.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from segkernels import _check, _forms, _host, _pieces, _select, _verbs
from segkernels._algebra import wide
from segkernels._segments import check_layout


def segmented_softmax(x, segments=None, *, implementation=None):
    """Softmax of each segment: ``[jax.nn.softmax(a, axis=0) for a in arrays]``.

    Takes what `segmented_cumsum` takes but complex numbers; integers become floats. The maximum of each segment is taken out
    before. A segment of -inf alone is NaN.

    Returns:
      Floats, in the form of `x`.

    >>> segmented_softmax([np.array([0.0, 0.0]), np.array([1000.0])])
    [array([0.5, 0.5]), array([1.])]
    """
    return _rows("segmented_softmax", _softmax, x, segments, implementation, ordered=True, logarithm=False)


def segmented_log_softmax(x, segments=None, *, implementation=None):
    """Logarithm of the softmax of each segment: ``[jax.nn.log_softmax(a, axis=0) for a in arrays]``.

    Takes what `segmented_softmax` takes.

    Returns:
      Floats, in the form of `x`.

    >>> segmented_log_softmax([np.log([1.0, 3.0]), np.array([1000.0])])[0].round(4)
    array([-1.3863, -0.2877])
    """
    return _rows("segmented_log_softmax", _softmax, x, segments, implementation, ordered=True, logarithm=True)


def segmented_standardize(x, segments=None, *, epsilon=1e-5, implementation=None):
    """Each row minus the mean of its segment, over its deviation: ``[jax.nn.standardize(a, axis=0) for a in arrays]``.

    Takes what `segmented_cumsum` takes; integers become floats. The variance is the mean squared distance from the mean, in
    two passes, and `epsilon` is added to it.

    Returns:
      Floats, in the form of `x`.

    >>> segmented_standardize([np.array([1.0, 3.0]), np.array([5.0])], epsilon=0.0)[0]
    array([-1.,  1.])
    """
    call = "segmented_standardize"
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float, np.integer, np.floating)):
        raise TypeError(f"{call}: `epsilon` must be a number, got {epsilon!r}")
    if not epsilon >= 0:
        raise ValueError(f"{call}: `epsilon` must not be negative, got {epsilon!r}")
    return _rows(call, _standardize, x, segments, implementation, epsilon=float(epsilon))


def segmented_sort(x, segments=None, *, implementation=None):
    """The rows of each segment in ascending order: ``[jnp.sort(a, axis=0) for a in arrays]``, NaN last.

    Takes what `segmented_cumsum` takes but complex numbers. Sorts by `jax.lax.sort` on every machine.

    Returns:
      The rows, in the form and dtype of `x`.

    >>> segmented_sort([np.array([3.0, np.nan, 1.0]), np.array([2.0, -1.0])])
    [array([ 1.,  3., nan]), array([-1.,  2.])]
    """
    return _rows("segmented_sort", _sort, x, segments, implementation, ordered=True, indices=False)


def segmented_argsort(x, segments=None, *, implementation=None):
    """The order that sorts each segment: ``[jnp.argsort(a, axis=0) for a in arrays]``; stable, NaN last.

    Takes what `segmented_sort` takes.

    Returns:
      Integers of the dtype of offsets, in the form of `x`, counted from the head of each segment.

    >>> segmented_argsort([np.array([3.0, np.nan, 1.0]), np.array([2.0, 2.0])])
    [array([2, 0, 1], dtype=int32), array([0, 1], dtype=int32)]
    """
    return _rows("segmented_argsort", _sort, x, segments, implementation, ordered=True, indices=True)


def segmented_repeat(x, segments, *, size=None, implementation=None):
    """Repeat one value a segment over the rows of the segment, as ``np.repeat(x, segments.lengths, axis=0)``.

    Args:
      x: an array ``[num_segments, *feature]``.
      segments: the `Segments` to spread over.
      size: rows of the result; by default those the layout describes, required under jit. Dead rows are 0.
      implementation: None for the best machine, its name, or a `Config`.

    Returns:
      An array ``[size, *feature]``: JAX if `x` is a JAX array, else NumPy.

    Raises:
      TypeError: `segments` is no `Segments`, or `x` no array of numbers.
      ValueError: `x` has not one entry a segment, or `size` is too small or missing.

    >>> segmented_repeat(np.array([7, 8, 9]), Segments.from_lengths([2, 0, 3]))
    array([7, 7, 9, 9, 9])
    """
    call = "segmented_repeat"
    choice = _select.requested(call, implementation)
    check_layout(call, segments)
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
        repeat = _forms.Operation(call, _repeat, to_rows=True)
        return repeat.on_host({"x": values}, layout, {}, None, dict(n=rows, choice=choice))[:n].copy()


# The bodies ----------------------------------------------------------------------------------------------------------


def _rows(call, body, x, segments, implementation, *, ordered=False, **options):
    choice = _select.requested(call, implementation)
    operation = _forms.Operation(call, body, to_rows=True, ordered=ordered)
    return _forms.apply(operation, {"x": x}, segments, choice=choice, **options)


def _repeat(values, segments, *, n, choice):
    out = _verbs.spread(_verbs.columns(values), jnp.asarray(segments.offsets), n=n, choice=choice)
    return out.reshape(n, *values.shape[1:])


def _softmax(values, segments, *, logarithm, choice):
    values = _forms.as_by(jnp.exp, values)
    columns = wide(_verbs.columns(values))
    out = _verbs.softmax(columns, jnp.asarray(segments.offsets), logarithm=logarithm, choice=choice)
    return out.reshape(values.shape).astype(values.dtype)


def _standardize(values, segments, *, epsilon, choice):
    values = _forms.as_by(jnp.mean, values)
    away = _pieces.deviations(wide(values), segments, choice=choice)
    scale = lax.rsqrt(_pieces.mean(_pieces.squares(away), segments, choice=choice) + epsilon).astype(away.dtype)
    out = away * _pieces.spread(scale, segments, values.shape[0], choice=choice)
    return out.astype(values.dtype)


def _sort(values, segments, *, indices, choice):
    _select.plain(choice, "it sorts by lax.sort")
    n, offsets = values.shape[0], jnp.asarray(segments.offsets)
    spread = functools.partial(_pieces.spread, segments=segments, n=n, choice=choice)
    s = segments.num_segments
    # Dead rows are sorted as a segment after all others.
    ids = _pieces.live(spread(jnp.arange(s, dtype=offsets.dtype)), segments, fill=s)
    keys = [jnp.broadcast_to(_pieces.over_features(ids, values), values.shape), values]
    if indices:
        position = jnp.arange(n, dtype=offsets.dtype) - spread(offsets[:-1])
        keys.append(jnp.broadcast_to(_pieces.over_features(position, values), values.shape))
    return _pieces.live(lax.sort(keys, dimension=0, num_keys=2)[-1], segments)
