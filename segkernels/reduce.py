"""Segmented reductions: one row for every segment.

They take ``x`` in the three forms of `segkernels.scan` and give one array ``[num_segments, *feature]``: NumPy for a list
of NumPy arrays or for NumPy values, else JAX. A list compiles once per dtype, feature shape, bucket of rows and bucket of
segments. NaN and infinities stay in their segment, in values and gradients. Empty segments give ``empty``, which each
operation has a default for, and disturb nothing else. ``implementation`` is None for the best machine, its name, or a
`Config`.

All raise a `TypeError` for an operand, a layout or a dtype that is not taken, and a `ValueError` for shapes, offsets or
names that do not fit, or an ``empty`` that the dtype of the result does not have.
"""

import jax.numpy as jnp
import numpy as np

from segkernels import _pieces
from segkernels._algebra import ADD, MAX, MIN, MUL, power, wide
from segkernels._forms import as_by
from segkernels._reduction import reduction


def segmented_sum(x, segments=None, *, empty=0, dtype=None, implementation=None):
    """Sum of each segment: ``[jnp.sum(a, axis=0) for a in arrays]``, stacked.

    On a CPU sums are folded in pieces, so that the error of a long float32 segment stays near that of pairwise summation.

    Args:
      x: a list of arrays ``[n_k, *feature]``, a `Ragged`, or an array ``[n, *feature]`` with `segments`.
      segments: the `Segments` of an array.
      empty: the scalar that an empty segment gives.
      dtype: of the result, by default as `jnp.sum`: small integers and booleans become int32 or uint32 (64 bits with
        x64). Float16 and bfloat16 are summed in float32.
      implementation: None for the best machine, its name, or a `Config`.

    Returns:
      An array ``[num_segments, *feature]``.

    Raises:
      TypeError: `x` or `segments` is of a kind that is not taken.
      ValueError: shapes, offsets or names do not fit.

    >>> segmented_sum([np.array([1, 2, 3]), np.array([], int), np.array([10, 20])])
    array([ 6,  0, 30])
    """
    return reduction("segmented_sum", _fold, x, segments, empty, implementation, monoid=ADD, like=jnp.sum, dtype=dtype)


def segmented_prod(x, segments=None, *, empty=1, dtype=None, implementation=None):
    """Product of each segment: ``[jnp.prod(a, axis=0) for a in arrays]``, stacked.

    Takes what `segmented_sum` takes, and promotes as it does. Gradients are exact where factors are 0, for nothing is
    divided.

    Returns:
      An array ``[num_segments, *feature]``.

    >>> segmented_prod([np.array([1, 2, 3]), np.array([], int), np.array([10, 20])])
    array([  6,   1, 200])
    """
    return reduction("segmented_prod", _fold, x, segments, empty, implementation, monoid=MUL, like=jnp.prod, dtype=dtype)


def segmented_max(x, segments=None, *, empty=None, implementation=None):
    """Maximum of each segment: ``[jnp.max(a, axis=0) for a in arrays]``, stacked.

    Takes `x` and `segments` as `segmented_sum` does, but no complex numbers. NaN propagates. Equal maxima share
    the gradient, as in `jnp.max`.

    Returns:
      An array ``[num_segments, *feature]``, of an empty segment by default -inf, or the least integer.

    >>> segmented_max([np.array([1.0, 3.0]), np.array([]), np.array([-2.0])])
    array([  3., -inf,  -2.])
    """
    return reduction("segmented_max", _fold, x, segments, empty, implementation, monoid=MAX, none=True, ordered=True)


def segmented_min(x, segments=None, *, empty=None, implementation=None):
    """Minimum of each segment: ``[jnp.min(a, axis=0) for a in arrays]``, stacked.

    Takes `x` and `segments` as `segmented_sum` does, but no complex numbers. NaN propagates. Equal minima share
    the gradient, as in `jnp.min`.

    Returns:
      An array ``[num_segments, *feature]``, of an empty segment by default +inf, or the largest integer.

    >>> segmented_min([np.array([1.0, 3.0]), np.array([]), np.array([-2.0])])
    array([ 1., inf, -2.])
    """
    return reduction("segmented_min", _fold, x, segments, empty, implementation, monoid=MIN, none=True, ordered=True)


def segmented_any(x, segments=None, *, empty=False, implementation=None):
    """Whether any row of each segment is not 0: ``[jnp.any(a, axis=0) for a in arrays]``, stacked. NaN is not 0.

    Takes `x` and `segments` as `segmented_sum` does.

    Returns:
      Booleans ``[num_segments, *feature]``.

    >>> segmented_any([np.array([0, 2]), np.array([], int), np.array([0])])
    array([ True, False, False])
    """
    return reduction("segmented_any", _truth, x, segments, empty, implementation, monoid=MAX)


def segmented_all(x, segments=None, *, empty=True, implementation=None):
    """Whether no row of each segment is 0: ``[jnp.all(a, axis=0) for a in arrays]``, stacked. NaN is not 0.

    Takes `x` and `segments` as `segmented_sum` does.

    Returns:
      Booleans ``[num_segments, *feature]``.

    >>> segmented_all([np.array([0, 2]), np.array([], int), np.array([1])])
    array([False,  True,  True])
    """
    return reduction("segmented_all", _truth, x, segments, empty, implementation, monoid=MIN)


def segmented_mean(x, segments=None, *, empty=np.nan, dtype=None, implementation=None):
    """Mean of each segment: ``[jnp.mean(a, axis=0) for a in arrays]``, stacked.

    Takes what `segmented_sum` takes; means of integers and booleans are floats.

    Returns:
      An array ``[num_segments, *feature]``, of an empty segment by default NaN.

    >>> segmented_mean([np.array([1.0, 2.0]), np.array([]), np.array([5.0])], empty=0)
    array([1.5, 0. , 5. ])
    """
    return reduction("segmented_mean", _mean, x, segments, empty, implementation, dtype=dtype)


def segmented_var(x, segments=None, *, ddof=0, empty=np.nan, dtype=None, implementation=None):
    """Variance of each segment: ``[jnp.var(a, axis=0, ddof=ddof) for a in arrays]``, stacked.

    Takes what `segmented_sum` takes; it is the mean squared distance from the mean, in two passes. Of complex numbers it is
    real, of integers and booleans a float. Segments of at most `ddof` rows give NaN.

    Returns:
      An array ``[num_segments, *feature]``, of an empty segment by default NaN.

    >>> segmented_var([np.array([1.0, 3.0]), np.array([5.0])])
    array([1., 0.])
    """
    call = "segmented_var"
    if isinstance(ddof, bool) or not isinstance(ddof, (int, float, np.integer, np.floating)):
        raise TypeError(f"{call}: `ddof` must be a number, got {ddof!r}")
    if not np.isfinite(ddof):
        raise ValueError(f"{call}: `ddof` must be finite, got {ddof!r}")
    return reduction(call, _var, x, segments, empty, implementation, ddof=ddof, dtype=dtype)


def segmented_logsumexp(x, segments=None, *, empty=-np.inf, implementation=None):
    """Logarithm of the sum of exponentials of each segment: ``[jax.nn.logsumexp(a, axis=0) for a in arrays]``, stacked.

    Takes `x` and `segments` as `segmented_sum` does, but no complex numbers; integers become floats. The maximum of each
    segment is taken out before. A segment of -inf alone gives -inf, with gradient 0.

    Returns:
      Floats ``[num_segments, *feature]``.

    >>> segmented_logsumexp([np.log([1.0, 2.0]), np.array([1000.0])]).round(4)
    array([   1.0986, 1000.    ])
    """
    return reduction("segmented_logsumexp", _logsumexp, x, segments, empty, implementation, ordered=True)


# The bodies ----------------------------------------------------------------------------------------------------------


def _fold(values, segments, *, monoid, choice, like=None, dtype=None):
    return _pieces.reduce(monoid, as_by(like, values, dtype), segments, choice=choice)


def _truth(values, segments, *, monoid, dtype, choice):
    del dtype
    return _pieces.reduce(monoid, values != jnp.zeros((), values.dtype), segments, choice=choice)


def _floats(values, dtype, choice):
    """Values in `dtype`, or as floats, and these in the dtype they are combined in."""
    if dtype is not None and not jnp.issubdtype(dtype, jnp.inexact):
        raise TypeError(f"{choice.call}: `dtype` must be floating or complex, got {dtype}; cast the result instead")
    values = as_by(jnp.mean, values, dtype)
    return wide(values), values.dtype


def _mean(values, segments, *, dtype, choice):
    values, dtype = _floats(values, dtype, choice)
    return _pieces.mean(values, segments, choice=choice).astype(dtype)


def _var(values, segments, *, ddof, dtype, choice):
    values, dtype = _floats(values, dtype, choice)
    mean = _pieces.mean(values, segments, choice=choice)
    total = _pieces.reduce(ADD, values, segments, of=_pieces.squared_distance, per_segment=(mean,), choice=choice)
    freedom = _pieces.lengths(segments, total).astype(total.dtype) - ddof
    enough = freedom > 0
    out = jnp.where(enough, total / jnp.where(enough, freedom, jnp.ones_like(freedom)), jnp.nan)
    return out.astype(jnp.zeros((), dtype).real.dtype)


def _logsumexp(values, segments, *, dtype, choice):
    del dtype
    values = as_by(jnp.exp, values)
    dtype, values = values.dtype, wide(values)
    top = _pieces.top(values, segments, choice=choice)
    top = jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top))  # infinities stay, and exp takes them as they are
    total = _pieces.reduce(ADD, values, segments, of=power, per_segment=(top,), choice=choice)
    none = total == 0
    return jnp.where(none, -jnp.inf, jnp.log(jnp.where(none, jnp.ones_like(total), total)) + top).astype(dtype)
