"""What all reductions share: their forms, and what an empty segment gives."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from segkernels import _pieces, _select
from segkernels._forms import Operation, apply


def reduction(call, body, x, segments, empty, implementation, **options):
    """Run the body of a reduction, with `empty` checked."""
    choice = _select.requested(call, implementation)
    if empty is not None:
        if not isinstance(empty, (bool, int, float, complex, np.number, np.bool_)):
            raise TypeError(f"{call}: `empty` must be a Python or NumPy number, got {type(empty).__name__}")
        whole, imaginary = isinstance(empty, (int, np.integer, np.bool_)), isinstance(empty, (complex, np.complexfloating))
        empty = Empty(call, repr(int(empty) if whole else complex(empty) if imaginary else float(empty)))
    return apply(Operation(call, body, to_rows=False), {"x": x}, segments, call=call, empty=empty, choice=choice, **options)


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


def where_empty(empty, out, segments):
    """The result, with the value of `empty` for empty segments unless that is None."""
    return out if empty is None else jnp.where(_pieces.lengths(segments, out) == 0, empty.to(out.dtype), out)
