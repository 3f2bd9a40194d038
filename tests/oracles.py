"""The specification: one plain NumPy loop per segment, in wide types.

Every oracle takes the rows of one segment ``[n, *feature]``, as `wide` makes them, and gives its scan, its row or its rows.
"""

import numpy as np


def wide(x: np.ndarray) -> np.ndarray:
    """Floats in float64, complex in complex128; integers and booleans stay, for they wrap or count as the result does."""
    kind = "f" if x.dtype.name == "bfloat16" else x.dtype.kind
    return x.astype({"f": np.float64, "c": np.complex128}.get(kind, x.dtype))


def floating(x):
    """Integers and booleans as floats, for operations that give floats."""
    return x.astype(np.float64) if x.dtype.kind in "biu" else x


def lowest(dtype):
    return -np.inf if dtype.kind == "f" else False if dtype.kind == "b" else np.iinfo(dtype).min


def highest(dtype):
    return np.inf if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max


def split(x, lengths) -> list:
    """The segments of flat rows."""
    return np.split(x[: sum(lengths)], np.cumsum(lengths)[:-1]) if len(lengths) else []


# Scans ---------------------------------------------------------------------------------------------------------------


def scan(combine, identity):
    """The scan of a segment by a function of two rows, left to right."""

    def oracle(x, exclusive=False, reverse=False):
        x = x[::-1] if reverse else x
        out = x.copy()
        for i in range(1, len(x)):
            out[i] = combine(out[i - 1], x[i])
        if exclusive:
            out = np.concatenate([np.full_like(x[:1], identity(x.dtype)), out[:-1]])
        return out[::-1] if reverse else out

    return oracle


cumsum = scan(np.add, lambda dtype: 0)
cumprod = scan(np.multiply, lambda dtype: 1)
cummax = scan(np.maximum, lowest)
cummin = scan(np.minimum, highest)


def cumlogsumexp(x, exclusive=False, reverse=False):
    return scan(np.logaddexp, lambda dtype: -np.inf)(floating(x), exclusive, reverse)


def recurrence(b, a, initial=None, reverse=False):
    """``h = a * h + b`` row by row."""
    rows = range(len(b))[::-1] if reverse else range(len(b))
    out, h = b.copy(), initial
    for i in rows:
        out[i] = h = b[i] if h is None else (np.where(a[i], h, 0) if a.dtype == bool else a[i] * h) + b[i]
    return out


def fill_forward(x, valid, reverse=False):
    out, filled = x.copy(), np.zeros(x.shape[1:], bool)
    last = np.zeros(x.shape[1:], x.dtype)
    for i in range(len(x))[::-1] if reverse else range(len(x)):
        here = np.broadcast_to(valid[i], x.shape[1:])
        last, filled = np.where(here, x[i], last), filled | here
        out[i] = np.where(filled, last, x[i])
    return out


def matrix_products(x, exclusive=False, reverse=False):
    """Products of square matrices in the last two axes, from the first row on, in reverse from the last."""
    x = x[::-1] if reverse else x
    out = x.copy()
    for i in range(1, len(x)):
        out[i] = out[i - 1] @ x[i]
    if exclusive:
        out = np.concatenate([np.broadcast_to(np.eye(x.shape[-1]), x[:1].shape).astype(x.dtype), out[:-1]])
    return out[::-1] if reverse else out


# Reductions ----------------------------------------------------------------------------------------------------------


def total(x):
    return np.sum(x, axis=0, dtype=x.dtype)


def prod(x):
    return np.prod(x, axis=0, dtype=x.dtype)


def maximum(x):
    return np.max(x, axis=0, initial=lowest(x.dtype))


def minimum(x):
    return np.min(x, axis=0, initial=highest(x.dtype))


def mean(x):
    x = floating(x)
    return np.sum(x, axis=0) / len(x) if len(x) else np.full(x.shape[1:], np.nan, x.dtype)


def var(x, ddof=0):
    x = floating(x)
    away = np.abs(x - mean(x)) ** 2
    return np.sum(away, axis=0) / (len(x) - ddof) if len(x) > ddof else np.full(x.shape[1:], np.nan)


def logsumexp(x):
    x = floating(x)
    top = np.max(x, axis=0, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    return np.log(np.sum(np.exp(x - top), axis=0)) + top


def argmax(x):
    return np.argmax(x, axis=0) if len(x) and x.size else np.full(x.shape[1:], -1)


def argmin(x):
    return np.argmin(x, axis=0) if len(x) and x.size else np.full(x.shape[1:], -1)


def first(x):
    return x[0] if len(x) else np.zeros(x.shape[1:], x.dtype)


def last(x):
    return x[-1] if len(x) else np.zeros(x.shape[1:], x.dtype)


# From rows to rows ---------------------------------------------------------------------------------------------------


def softmax(x):
    x = floating(x)
    powers = np.exp(x - np.max(x, axis=0, initial=-np.inf))
    return powers / np.sum(powers, axis=0)


def log_softmax(x):
    x = floating(x)
    below = x - np.max(x, axis=0, initial=-np.inf)
    return below - np.log(np.sum(np.exp(below), axis=0))


def standardize(x, epsilon=1e-5):
    x = floating(x)
    return (x - mean(x)) / np.sqrt(var(x) + epsilon)


def sort(x):
    return np.sort(x, axis=0)


def argsort(x):
    return np.argsort(x, axis=0, kind="stable")
