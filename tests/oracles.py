"""The specification: one plain NumPy loop per segment, in wide types."""

import numpy as np


def wide(x: np.ndarray) -> np.ndarray:
    """Floats in float64, complex in complex128; integers stay, for they wrap; booleans count as int32."""
    kind = "f" if x.dtype.name == "bfloat16" else x.dtype.kind
    return x.astype({"f": np.float64, "c": np.complex128, "b": np.int32}.get(kind, x.dtype))


def cumsum(x, exclusive=False, reverse=False):
    """Cumulative sum of one segment ``[n, *feature]``."""
    x = wide(x)[::-1] if reverse else wide(x)
    out = np.cumsum(x, axis=0, dtype=x.dtype)
    if exclusive:
        out = np.concatenate([np.zeros_like(x[:1]), out[:-1]])
    return out[::-1] if reverse else out


def total(x):
    """Sum of one segment; small integers are promoted by the caller's dtype."""
    x = wide(x)
    return np.sum(x, axis=0, dtype=x.dtype)


def magnitude(x):
    """The sum of absolute values of one segment, which bounds every partial sum."""
    return np.sum(np.abs(wide(x)), axis=0)


def split(x, lengths) -> list:
    """The segments of flat rows."""
    return np.split(x[: sum(lengths)], np.cumsum(lengths)[:-1]) if len(lengths) else []
