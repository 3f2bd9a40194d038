"""Reductions that pick a row of each segment. They take ``x`` as the reductions of `segkernels.reduce` do."""

import jax.numpy as jnp
from jax import lax

from segkernels import _pieces, _select
from segkernels._algebra import MAX, MIN, attains, highest, wide
from segkernels._reduction import reduction


def segmented_argmax(x, segments=None, *, empty=-1, implementation=None):
    """The index of the maximum of each segment: ``[jnp.argmax(a, axis=0) for a in arrays]``, stacked.

    Takes `x` and `segments` as `segmented_sum` does, but no complex numbers. The first of equal ones counts, and
    NaN is more than any number.

    Returns:
      Integers ``[num_segments, *feature]`` of the dtype of offsets, counted from the head of each segment; `Segments.rows`
      makes flat rows of them.

    >>> segmented_argmax([np.array([1, 3, 3]), np.array([], int), np.array([7])])
    array([ 1, -1,  0], dtype=int32)
    """
    return reduction("segmented_argmax", _index, x, segments, empty, implementation, monoid=MAX, ordered=True)


def segmented_argmin(x, segments=None, *, empty=-1, implementation=None):
    """The index of the minimum of each segment: ``[jnp.argmin(a, axis=0) for a in arrays]``, stacked.

    Takes `x` and `segments` as `segmented_sum` does, but no complex numbers. The first of equal ones counts, and
    NaN is less than any number.

    Returns:
      Integers ``[num_segments, *feature]`` of the dtype of offsets, counted from the head of each segment; `Segments.rows`
      makes flat rows of them.

    >>> segmented_argmin([np.array([3, 1, 1]), np.array([], int), np.array([7])])
    array([ 1, -1,  0], dtype=int32)
    """
    return reduction("segmented_argmin", _index, x, segments, empty, implementation, monoid=MIN, ordered=True)


def segmented_first(x, segments=None, *, empty=0, implementation=None):
    """The first row of each segment: ``[a[0] for a in arrays]``, stacked.

    Takes `x` and `segments` as `segmented_sum` does, and keeps the dtype. A gather in plain JAX on every machine.

    Returns:
      An array ``[num_segments, *feature]``.

    >>> segmented_first([np.array([5, 6]), np.array([], int), np.array([7])])
    array([5, 0, 7])
    """
    return reduction("segmented_first", _row, x, segments, empty, implementation, last=False)


def segmented_last(x, segments=None, *, empty=0, implementation=None):
    """The last row of each segment: ``[a[-1] for a in arrays]``, stacked.

    Takes `x` and `segments` as `segmented_sum` does, and keeps the dtype. A gather in plain JAX on every machine.

    Returns:
      An array ``[num_segments, *feature]``.

    >>> segmented_last([np.array([5, 6]), np.array([], int), np.array([7])])
    array([6, 0, 7])
    """
    return reduction("segmented_last", _row, x, segments, empty, implementation, last=True)


def _index(values, segments, *, monoid, dtype, choice):
    """The first of the rows that attain the best value of their segment."""
    del dtype
    values = wide(lax.stop_gradient(values))
    best = _pieces.reduce(monoid, values, segments, choice=choice)
    return _pieces.reduce(MIN, values, segments, of=_where_attained, per_segment=(best,), choice=choice)


def _where_attained(rows, best, position):
    """The position of a row that attains the best value, and the largest integer of others."""
    (x,), (best,) = rows, best
    others = jnp.where(attains(x, best), 0, highest(position.dtype)).astype(position.dtype)
    return (position | others,)


def _row(values, segments, *, last, dtype, choice):
    del dtype
    _select.plain(choice, "it is a gather")
    offsets = jnp.asarray(segments.offsets)
    rows, there = offsets[1:] - 1 if last else offsets[:-1], offsets[1:] > offsets[:-1]
    return _pieces.take(values, rows, there)
