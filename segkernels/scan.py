"""Segmented scans: every prefix of every segment.

All take ``x`` in three forms and give the answer in the same form:

* a list or tuple of arrays ``[n_k, *feature]``: a list, of NumPy arrays if all are NumPy, else of JAX arrays. Runs at
  once and blocks; compiles once per dtype, feature shape and bucket of the total number of rows. Inside `jax.jit` or
  `jax.grad` the list is concatenated in the trace, which compiles for its lengths: pass a `Ragged` there.
* a `Ragged`: a `Ragged` of the same layout.
* an array ``[n, *feature]`` and its `Segments`: an array of the same shape; dead rows are 0.

The segment axis is the first; features are independent of each other. Every scan keeps NaN and infinities inside their
segment, in values and gradients, and has derivatives of any order in both modes. ``exclusive`` leaves each row out of its
own result, so that the first row of a segment gets the identity; ``reverse`` goes from the end of each segment.
``implementation`` is None for the best machine, its name, or a `Config`.

All raise a `TypeError` for an operand, a layout or a dtype that is not taken, and a `ValueError` for shapes, offsets or
names that do not fit.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from segkernels import _pieces, _select
from segkernels._algebra import ADD, AFFINE, LATEST, LOGADDEXP, MAX, MIN, MUL, wide
from segkernels._forms import Operation, apply, as_by
from segkernels._ragged import Ragged
from segkernels._segments import live_flags


def segmented_cumsum(x, segments=None, *, exclusive=False, reverse=False, dtype=None, donate=False, implementation=None):
    """Cumulative sum of each segment: a drop-in for ``[jnp.cumsum(a, axis=0) for a in arrays]``.

    Args:
      x: a list of arrays ``[n_k, *feature]``, a `Ragged`, or an array ``[n, *feature]`` with `segments`.
      segments: the `Segments` of an array.
      exclusive: leave each row out of its own sum; the first row of a segment is 0.
      reverse: sum from the end of each segment.
      dtype: of the result, by default as `jnp.cumsum`: integers keep theirs and wrap, booleans count as int32.
        Float16 and bfloat16 are summed in float32.
      donate: let the result take the memory of a JAX array or `Ragged`, which is gone then, as with ``donate_argnums`` of
        `jax.jit`. Inside `jax.jit` it only says that XLA may; other operands are copied anyway, and left alone.
      implementation: None for the best machine, its name, or a `Config`.

    Returns:
      The sums, in the form of `x`.

    Raises:
      TypeError: `x` or `segments` is of a kind that is not taken.
      ValueError: shapes, offsets or names do not fit.

    >>> segmented_cumsum([np.array([1, 2, 3]), np.array([10, 20])])
    [array([1, 3, 6]), array([10, 30])]
    """
    return _fold("segmented_cumsum", ADD, x, segments, exclusive, reverse, donate, implementation, like=jnp.cumsum, dtype=dtype)


def segmented_cumprod(x, segments=None, *, exclusive=False, reverse=False, dtype=None, donate=False, implementation=None):
    """Cumulative product of each segment: ``[jnp.cumprod(a, axis=0) for a in arrays]``.

    Takes what `segmented_cumsum` takes; an exclusive one begins with 1. Integers keep their dtype and wrap, booleans count
    as int32. Gradients are exact where factors are 0, for nothing is divided.

    Returns:
      The products, in the form of `x`.

    Along rays, the light that is left before each sample:

    >>> segmented_cumprod([np.array([0.5, 0.5, 1.0]), np.array([0.2, 0.0])], exclusive=True)
    [array([1.  , 0.5 , 0.25]), array([1. , 0.2])]
    """
    return _fold("segmented_cumprod", MUL, x, segments, exclusive, reverse, donate, implementation, like=jnp.cumprod, dtype=dtype)


def segmented_cummax(x, segments=None, *, exclusive=False, reverse=False, donate=False, implementation=None):
    """Running maximum of each segment: ``[jax.lax.cummax(a) for a in arrays]``.

    Takes what `segmented_cumsum` takes but complex numbers; an exclusive one begins with -inf, or the least integer. NaN
    propagates. The gradient of equal maxima goes to the first of them.

    Returns:
      The maxima, in the form and dtype of `x`.

    >>> segmented_cummax([np.array([3, 1, 4]), np.array([1, 5])])
    [array([3, 3, 4]), array([1, 5])]
    """
    return _fold("segmented_cummax", MAX, x, segments, exclusive, reverse, donate, implementation, ordered=True)


def segmented_cummin(x, segments=None, *, exclusive=False, reverse=False, donate=False, implementation=None):
    """Running minimum of each segment: ``[jax.lax.cummin(a) for a in arrays]``.

    Takes what `segmented_cumsum` takes but complex numbers; an exclusive one begins with +inf, or the largest integer. NaN
    propagates. The gradient of equal minima goes to the first of them.

    Returns:
      The minima, in the form and dtype of `x`.

    >>> segmented_cummin([np.array([3, 1, 4]), np.array([5, 1])])
    [array([3, 1, 1]), array([5, 1])]
    """
    return _fold("segmented_cummin", MIN, x, segments, exclusive, reverse, donate, implementation, ordered=True)


def segmented_cumlogsumexp(x, segments=None, *, exclusive=False, reverse=False, donate=False, implementation=None):
    """Logarithm of the cumulative sum of exponentials: ``[jax.lax.cumlogsumexp(a) for a in arrays]``.

    Takes what `segmented_cumsum` takes but complex numbers; integers become floats. An exclusive one begins with -inf. Rows
    of -inf before any other have gradient 0.

    Returns:
      An array of floats, in the form of `x`.

    >>> segmented_cumlogsumexp([np.log([1.0, 2.0, 3.0]), np.log([4.0])])[0].round(4)
    array([0.    , 1.0986, 1.7918])
    """
    return _fold("segmented_cumlogsumexp", LOGADDEXP, x, segments, exclusive, reverse, donate, implementation, like=jnp.exp,
                 ordered=True)  # fmt: skip


def segmented_linear_recurrence(a, b, segments=None, *, initial=None, reverse=False, donate=False, implementation=None):
    """The recurrence ``h = a * h + b`` along each segment, from `initial` or zero.

    The affine maps compose associatively (Blelloch, "Prefix sums and their applications", 1990), so that every machine that
    scans can walk it. Real and complex; differentiable in all three operands.

    Args:
      a: the gates: a scalar, or in the form of `b` one a row, ``[n]``, or one a value, ``[n, *feature]``. Booleans keep the
        state or drop it, by select: a NaN that is dropped is gone.
      b: the inputs: a list of arrays ``[n_k, *feature]``, a `Ragged`, or an array ``[n, *feature]`` with `segments`.
      segments: the `Segments` of an array.
      initial: the states before the first rows, ``[num_segments, *feature]``, by default zero. Without them the gate of a
        first row is not used, and gets gradient 0.
      reverse: go from the end of each segment; `initial` is then the state after the last row.
      donate: let the result take the memory of `b`; see `segmented_cumsum`.
      implementation: None for the best machine, its name, or a `Config`.

    Returns:
      The states ``h`` after each row, in the form of `b` and the common dtype of all operands.

    Raises:
      TypeError: an operand is of a kind that is not taken, or not of the form of `b`.
      ValueError: shapes, offsets or names do not fit.

    Discounted returns:

    >>> segmented_linear_recurrence(0.5, [np.array([1.0, 1.0, 1.0]), np.array([4.0])], reverse=True)
    [array([1.75, 1.5 , 1.  ]), array([4.])]
    """
    call = "segmented_linear_recurrence"
    choice = _select.requested(call, implementation, donate)
    rows, extra = {"b": b}, {} if initial is None else {"initial": initial}
    (rows if isinstance(a, (list, tuple, Ragged)) or np.ndim(a) else extra)["a"] = a
    operation = Operation(call, _recurrence, to_rows=True, by_heads=initial is None, per_segment=("initial",))
    return apply(operation, rows, segments, extra=extra, reverse=reverse, choice=choice)


def segmented_fill_forward(x, valid, segments=None, *, reverse=False, donate=False, implementation=None):
    """Carry the last valid row of each segment to the rows that are not valid, as ``DataFrame.ffill`` of each.

    Args:
      x: a list of arrays ``[n_k, *feature]``, a `Ragged`, or an array ``[n, *feature]`` with `segments`.
      valid: booleans in the form of `x`: one a row, ``[n]``, or one a value, ``[n, *feature]``.
      segments: the `Segments` of an array.
      reverse: carry the next valid row back.
      donate: let the result take the memory of `x`; see `segmented_cumsum`.
      implementation: None for the best machine, its name, or a `Config`.

    Returns:
      The filled rows, in the form and dtype of `x`; rows of a segment before its first valid one stay as they are.

    >>> segmented_fill_forward([np.array([1, 0, 3]), np.array([0, 5, 0])], [[True, False, True], [False, True, False]])
    [array([1, 1, 3]), array([0, 5, 5])]
    """
    call = "segmented_fill_forward"
    choice = _select.requested(call, implementation, donate)
    for flags in valid if isinstance(valid, (list, tuple)) else [getattr(valid, "values", valid)]:
        dtype = flags.dtype if hasattr(flags, "dtype") else np.asarray(flags).dtype
        if dtype.kind == "O":
            raise TypeError(f"{call}: `valid` must be booleans in the form of `x`, got {type(flags).__name__}")
        if dtype.kind != "b" and np.size(flags):
            raise TypeError(f"{call}: `valid` must be booleans, got dtype {dtype}; make them so with `astype(bool)`")
    operation = Operation(call, _fill, to_rows=True, by_heads=True)
    return apply(operation, {"x": x, "valid": valid}, segments, reverse=reverse, choice=choice)


def _fold(call, monoid, x, segments, exclusive, reverse, donate, implementation, *, like=None, ordered=False, dtype=None):
    choice = _select.requested(call, implementation, donate)
    operation = Operation(call, _folded, to_rows=True, by_heads=True, ordered=ordered)
    return apply(operation, {"x": x}, segments, monoid=monoid, like=like, exclusive=exclusive, reverse=reverse,
                 dtype=dtype, choice=choice)  # fmt: skip


def _folded(values, segments, *, monoid, like, exclusive, reverse, dtype, choice):
    values = as_by(like, values, dtype)
    return _pieces.scan(monoid, (values,), segments, exclusive=exclusive, reverse=reverse, choice=choice)


def _recurrence(b, segments, a, initial=None, *, reverse, choice):
    a = jnp.asarray(a)
    numbers = [x for x in (b, a, initial) if x is not None and x.dtype != bool]
    dtype = jnp.result_type(*numbers) if numbers else jnp.dtype(jnp.int32)
    b, a = b.astype(dtype), _one_a_value(a if a.dtype == bool else a.astype(dtype), b)
    if initial is not None:
        a, b, initial = a if a.dtype == bool else wide(a), wide(b), wide(initial.astype(dtype))
        b = _started(a, b, initial, segments, reverse)
    return _pieces.scan(AFFINE, (a, b), segments, exclusive=False, reverse=reverse, choice=choice).astype(dtype)


def _fill(values, segments, valid, *, reverse, choice):
    valid = valid.astype(bool)  # as they are, but for arrays without rows, whose dtype says nothing
    if valid.shape != values.shape[:1]:
        valid = _one_a_value(valid, values)
    return _filled(values, valid, segments, reverse, choice)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def _filled(values, valid, segments, reverse, choice):
    if valid.ndim < values.ndim:
        source = _sources(valid, segments, reverse, choice)
        return _pieces.take(values, source, live_flags(jnp.asarray(segments.offsets[-1]), source.shape[0]))
    return _pieces.scan(LATEST, (valid, values), segments, exclusive=False, reverse=reverse, choice=choice)


@_filled.defjvp
def _filled_jvp(reverse, choice, primals, tangents):
    values, valid, segments = primals
    choice = choice.derived()
    # Not by those indices, whose transpose would add in no fixed order on a GPU, but by an affine scan with gates.
    keeps = _pieces.over_features(_sources(valid, segments, reverse, choice) != _row_numbers(valid, segments), values)
    keeps = jnp.broadcast_to(keeps, values.shape)
    inputs = jnp.where(keeps, jnp.zeros_like(values), tangents[0])
    tangent = _pieces.scan(AFFINE, (keeps, inputs), segments, exclusive=False, reverse=reverse, choice=choice)
    return _filled(values, valid, segments, reverse, choice), tangent


def _row_numbers(valid, segments):
    return lax.broadcasted_iota(segments.offsets.dtype, valid.shape, 0)


def _sources(valid, segments, reverse, choice):
    """The row that each row is filled from: the last valid one of its segment, or itself."""
    rows = _row_numbers(valid, segments)
    return _pieces.scan(LATEST, (valid, rows), segments, exclusive=False, reverse=reverse, choice=choice)


def _one_a_value(x, values):
    """A scalar, one entry a row or one a value, as one a value."""
    return jnp.broadcast_to(_pieces.over_features(x, values), values.shape)


def _started(a, b, initial, segments, reverse):
    """The inputs, with the initial states passed through the gates of the first rows."""
    offsets = jnp.clip(jnp.asarray(segments.offsets), 0, b.shape[0])
    first = offsets[1:] - 1 if reverse else offsets[:-1]
    there = offsets[1:] > offsets[:-1]
    gates = _pieces.take(a, first, there)
    passed = jnp.where(gates, initial, jnp.zeros_like(initial)) if a.dtype == bool else gates * initial
    # The barrier keeps the product from being fused with the sum into one rounding, which XLA does by the place of a row.
    passed = lax.optimization_barrier(jnp.where(_pieces.over_features(there, b), passed, jnp.zeros_like(passed)))
    return b.at[jnp.where(there, first, b.shape[0])].add(passed, mode="drop")
