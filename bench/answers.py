"""The gate: right answers by a plain NumPy loop in 64 bits, and what is wrong with an answer."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np

# An error may be this many machine epsilons of the sum of magnitudes up to its row. Left to right, row i has at most
# i/2 of them, so rows 1 to 8 cannot exceed it; roundings of zero-mean values partly cancel and stay below 1 after
# that, whatever the length. A row added to the wrong segment costs 1/epsilon of them.
ERROR = 4.0


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is right: the expected values, the error each may have (None: no error), and the lengths of a list."""

    expected: np.ndarray
    bound: np.ndarray | None
    dtype: np.dtype
    lengths: np.ndarray


def cumsums(x: np.ndarray, lengths: np.ndarray) -> Answer:
    """The cumulative sums of each segment of `x`; integers wrap as their dtype does."""
    edges = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    if jnp.issubdtype(x.dtype, jnp.integer):
        return Answer(_loop(x.astype(np.int64), edges).astype(x.dtype), None, x.dtype, lengths)
    wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    bound = ERROR * float(jnp.finfo(x.dtype).eps) * _loop(np.abs(wide), edges)
    return Answer(_loop(wide, edges), bound, x.dtype, lengths)


def of_each(x: np.ndarray, lengths: np.ndarray, one, size, *, stacked: bool) -> Answer:
    """What a function of one segment gives of each, joined or `stacked`; ``size(segment, answer)`` bounds the errors.

    Floats come back in the dtype of `x`, and integers as int32.
    """
    edges = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    wide = x.astype(np.float64)
    parts = [(wide[a:b], one(wide[a:b])) for a, b in itertools.pairwise(edges)]
    join = np.array if stacked else np.concatenate
    expected = join([y for _, y in parts])
    dtype = {"f": x.dtype, "i": np.dtype(np.int32)}.get(expected.dtype.kind, expected.dtype)
    if size is None:
        return Answer(expected.astype(dtype), None, dtype, lengths)
    bound = ERROR * float(jnp.finfo(x.dtype).eps) * join([size(x, y) for x, y in parts]) + float(jnp.finfo(x.dtype).tiny)
    return Answer(expected, bound, dtype, lengths)


def exactly(expected: np.ndarray) -> Answer:
    """These very values."""
    return Answer(expected, None, expected.dtype, np.array([len(expected)]))


def _loop(x, edges):
    out = np.empty_like(x)
    for a, b in itertools.pairwise(edges):
        np.cumsum(x[a:b], axis=0, out=out[a:b])
    return out


def fault(got, answer: Answer) -> str | None:
    """What is wrong with an array or a list of arrays, in a few words, or None."""
    if isinstance(got, list):
        parts = [np.asarray(part) for part in got]
        if [len(part) for part in parts] != answer.lengths.tolist():
            return "the lengths differ"
        got = np.concatenate(parts)
    got = np.asarray(got)
    if (got.dtype, got.shape) != (answer.dtype, answer.expected.shape):
        return f"{got.dtype}{list(got.shape)} instead of {answer.dtype}{list(answer.expected.shape)}"
    if answer.bound is None:
        wrong = got != answer.expected
    else:
        wrong = ~(np.abs(got.astype(answer.expected.dtype) - answer.expected) <= answer.bound)  # so that NaN is wrong
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{np.count_nonzero(wrong)} of {wrong.size} wrong, at {list(at)} {got[at]} instead of {answer.expected[at]}"
