"""Segmented reductions: one row for every segment.

They take ``x`` in the three forms of `segkernels.scan` and give one array ``[num_segments, *feature]``: NumPy for a list
of NumPy arrays or for NumPy values, else JAX. A list compiles once per dtype, feature shape, bucket of rows and bucket of
segments. Empty segments give the identity of the operation, or ``empty=``, and disturb nothing else.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from segkernels import _select, _verbs
from segkernels._algebra import ADD
from segkernels._forms import apply, as_by


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
    choice = _select.requested(call, implementation)
    if not isinstance(empty, (bool, int, float, complex, np.number, np.bool_)):
        raise TypeError(f"{call}: `empty` must be a Python or NumPy number, got {type(empty).__name__}")
    whole, imaginary = isinstance(empty, (int, np.integer, np.bool_)), isinstance(empty, (complex, np.complexfloating))
    empty = Empty(call, repr(int(empty) if whole else complex(empty) if imaginary else float(empty)))
    return apply(call, body, x, segments, to_rows=False, dtype=dtype, empty=empty, choice=choice)


@dataclasses.dataclass(frozen=True)
class Empty:
    """The value of an empty segment, as text: as a static argument of jit NaN must equal itself."""

    call: str
    text: str

    def to(self, dtype):
        """The value in the dtype of a result, or a `ValueError` if that has no such number."""
        value = int(self.text) if self.text.lstrip("-").isdigit() else complex(self.text)
        if "j" not in self.text and isinstance(value, complex):
            value = value.real
        if jnp.issubdtype(dtype, jnp.inexact) and (jnp.issubdtype(dtype, jnp.complexfloating) or not isinstance(value, complex)):
            with np.errstate(over="ignore"):
                return np.asarray(value, np.complex128 if isinstance(value, complex) else np.float64).astype(dtype)
        info = jnp.iinfo(dtype) if dtype.kind in "iu" else None
        low, high = (info.min, info.max) if info else (0, 1 if dtype.kind == "b" else -1)
        if isinstance(value, complex) or not low <= value <= high or value != int(value):
            raise ValueError(f"{self.call}: `empty` must be a number that {dtype}, the dtype of the result, has; got {self.text}")
        return np.asarray(int(value), dtype)


def _sum(values, segments, *, empty, dtype, choice):
    return _walk(ADD, as_by(jnp.sum, values, dtype), segments, empty=empty, choice=choice)


def _walk(monoid, values, segments, *, empty, choice):
    feature = values.shape[1:]
    (out,) = _verbs.reduce((_verbs.columns(values),), jnp.asarray(segments.offsets), monoid=monoid, choice=choice)
    out = out.reshape(segments.num_segments, *feature)
    value = empty.to(out.dtype)
    if value == monoid.identity(out.dtype):
        return out
    lengths = jnp.asarray(segments.lengths).reshape(-1, *(1 for _ in feature))
    return jnp.where(lengths == 0, value, out)
