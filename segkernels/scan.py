"""Segmented scans: every prefix of every segment.

All take ``x`` in three forms and give the answer in the same form:

* a list or tuple of arrays ``[n_k, *feature]``: a list, of NumPy arrays if all are NumPy, else of JAX arrays. Runs at
  once and blocks; compiles once per dtype, feature shape and bucket of the total number of rows. Inside `jax.jit` or
  `jax.grad` the list is concatenated in the trace, which compiles for its lengths: pass a `Ragged` there.
* a `Ragged`: a `Ragged` of the same layout.
* an array ``[n, *feature]`` and its `Segments`: an array of the same shape; dead rows are 0.

The segment axis is the first; features are independent of each other. Every scan keeps NaN and infinities inside their
segment, in values and gradients, and has derivatives of any order in both modes.
"""

import jax.numpy as jnp

from segkernels import _select, _verbs
from segkernels._algebra import ADD
from segkernels._forms import apply, as_by


def segmented_cumsum(x, segments=None, *, exclusive=False, reverse=False, dtype=None, implementation=None):
    """Cumulative sum of each segment: a drop-in for ``[jnp.cumsum(a, axis=0) for a in arrays]``.

    Args:
      x: a list of arrays ``[n_k, *feature]``, a `Ragged`, or an array ``[n, *feature]`` with `segments`.
      segments: the `Segments` of an array.
      exclusive: leave each row out of its own sum; the first row of a segment is 0.
      reverse: sum from the end of each segment.
      dtype: of the result, by default as `jnp.cumsum`: integers keep theirs and wrap, booleans count as int32.
        Float16 and bfloat16 are summed in float32.
      implementation: None for the best machine, its name, or a `Config`.

    Returns:
      The sums, in the form of `x`.

    Raises:
      TypeError: `x` or `segments` is of a kind that is not taken.
      ValueError: shapes, offsets or names do not fit.

    >>> segmented_cumsum([np.array([1, 2, 3]), np.array([10, 20])])
    [array([1, 3, 6]), array([10, 30])]
    """
    return _scan("segmented_cumsum", _cumsum, x, segments, exclusive, reverse, dtype, implementation)


def _scan(call, body, x, segments, exclusive, reverse, dtype, implementation):
    choice = _select.requested(call, implementation)
    return apply(call, body, x, segments, to_rows=True, dtype=dtype, exclusive=bool(exclusive), reverse=bool(reverse),
                 choice=choice)  # fmt: skip


def _cumsum(values, segments, *, exclusive, reverse, dtype, choice):
    return _walk(ADD, as_by(jnp.cumsum, values, dtype), segments, exclusive=exclusive, reverse=reverse, choice=choice)


def _walk(monoid, values, segments, **options):
    heads, n_live = segments.head_bits(values.shape[0]), jnp.asarray(segments.offsets[-1])
    (out,) = _verbs.scan((_verbs.columns(values),), heads, n_live, monoid=monoid, **options)
    return out.reshape(values.shape)
