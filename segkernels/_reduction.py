"""What all reductions share: their forms, and what an empty segment gives."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from segkernels import _pieces, _select
from segkernels._forms import Operation, apply


def reduction(call, body, x, segments, empty, implementation, *, none=False, ordered=False, dtype=None, **options):
    """Run the body of a reduction, and give empty segments their value.

    Args:
      call: the name of the public function.
      body: ``(values, segments, *, dtype, choice, **options)`` to a row a segment, anything for empty ones.
      x, segments, implementation: the arguments of the public function.
      empty: what an empty segment gives.
      none: whether it may be None, for what `body` gives.
      ordered: whether it orders its values.
      dtype: the argument of the public function, if it has one.
      **options: further static options of the body.
    """
    choice = _select.requested(call, implementation)
    operation = Operation(call, _reduced, to_rows=False, ordered=ordered)
    empty = None if empty is None and none else Empty.of(call, empty)
    return apply(operation, {"x": x}, segments, body=body, empty=empty, dtype=dtype, choice=choice,
                 options=tuple(options.items()))  # fmt: skip


def _reduced(values, segments, *, body, empty, dtype, choice, options):
    out = body(values, segments, dtype=dtype, choice=choice, **dict(options))
    return out if empty is None else jnp.where(_pieces.lengths(segments, out) == 0, empty.to(out.dtype), out)


@dataclasses.dataclass(frozen=True)
class Empty:
    """The value of an empty segment, as text: as a static argument of jit NaN must equal itself."""

    call: str
    text: str

    @classmethod
    def of(cls, call, value) -> "Empty":
        """Check an argument ``empty=``."""
        if not isinstance(value, (bool, int, float, complex, np.number, np.bool_)):
            raise TypeError(f"{call}: `empty` must be a Python or NumPy number, got {type(value).__name__}")
        whole, imaginary = isinstance(value, (int, np.integer, np.bool_)), isinstance(value, (complex, np.complexfloating))
        return cls(call, repr(int(value) if whole else complex(value) if imaginary else float(value)))

    def to(self, dtype):
        """The value in the dtype of a result, or a `ValueError` if that has no such number."""
        whole = self.text.lstrip("-").isdigit()
        value = int(self.text) if whole else complex(self.text)
        if not whole and "j" not in self.text:
            value = value.real
        try:
            if isinstance(value, complex) and not jnp.issubdtype(dtype, jnp.complexfloating):
                raise ValueError
            if jnp.issubdtype(dtype, jnp.inexact):
                with np.errstate(over="ignore"):
                    return np.asarray(complex(value) if isinstance(value, complex) else float(value)).astype(dtype)
            low, high = (0, 1) if dtype.kind == "b" else (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
            if not low <= value <= high or value != int(value):
                raise ValueError
        except (OverflowError, ValueError) as error:
            raise ValueError(
                f"{self.call}: `empty` must be a number that {dtype}, the dtype of the result, has; got {self.text[:60]}"
            ) from error
        return np.asarray(int(value), dtype)
