"""Segmented reductions: one row for every segment.

They take ``x`` in the three forms of `segkernels.scan` and give one array ``[num_segments, *feature]``: NumPy for a list
of NumPy arrays or for NumPy values, else JAX. A list compiles once per dtype, feature shape, bucket of rows and bucket of
segments. Empty segments give the identity of the operation, or ``empty=``, and disturb nothing else.
"""

import math

import jax
import jax.numpy as jnp

from segkernels import _select, _verbs
from segkernels._algebra import ADD
from segkernels._forms import apply


def segmented_sum(x, segments=None, *, empty=0, dtype=None, implementation=None):
    """Sum of each segment: ``[jnp.sum(a, axis=0) for a in arrays]``, stacked.

    Sums are folded in pieces, so that the error of a long float32 segment stays near that of pairwise summation.

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
    return _reduction("segmented_sum", _sum, x, segments, empty, dtype, implementation)


def _reduction(call, body, x, segments, empty, dtype, implementation):
    config = _select.requested(call, implementation)
    if isinstance(empty, jax.Array) or not jnp.isscalar(empty):
        raise TypeError(f"{call}: `empty` must be a Python or NumPy scalar, got {type(empty).__name__}")
    return apply(call, body, x, segments, to_rows=False, dtype=dtype, empty=empty, config=config)


def _sum(values, segments, *, empty, dtype, config):
    values = values.astype(dtype or jax.eval_shape(jnp.sum, jax.ShapeDtypeStruct((1,), values.dtype)).dtype)
    return _walk(ADD, values, segments, empty=empty, config=config)


def _walk(monoid, values, segments, *, empty, config):
    n, *feature = values.shape
    (out,) = _verbs.reduce((values.reshape(n, math.prod(feature)),), jnp.asarray(segments.offsets), monoid=monoid, config=config)
    out = out.reshape(segments.num_segments, *feature)
    if empty == monoid.identity(values.dtype):
        return out
    lengths = jnp.asarray(segments.lengths).reshape(-1, *(1 for _ in feature))
    return jnp.where(lengths == 0, jnp.asarray(empty).astype(out.dtype), out)
