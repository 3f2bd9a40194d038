"""The tables that the tests run over. A new operation, layout or dtype is a row here, not a function elsewhere."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

import segkernels as sk

ROWS, SEGMENTS = 256, 64  # of every layout in the table, so that one compile serves them all


@dataclasses.dataclass(frozen=True)
class Op:
    """A public operation: how to call it, what it must give for one segment, and which walks it has."""

    name: str
    oracle: Callable
    kind: str = "scan"  # scan: rows to rows; reduce: rows to one; spread: one to rows
    options: tuple = ({},)
    walks: tuple = ("loop", "associative")

    @property
    def function(self):
        return getattr(sk, self.name)

    def rows(self):
        """One test row for each option and walk."""
        return [(self, options, walk) for options in self.options for walk in self.walks]


DIRECTIONS = tuple(dict(exclusive=e, reverse=r) for e in (False, True) for r in (False, True))
OPS = (
    Op("segmented_cumsum", oracles.cumsum, options=DIRECTIONS),
    Op("segmented_sum", oracles.total, kind="reduce", walks=("loop", "associative", "segment_sum")),
    Op("segmented_repeat", lambda x: x, kind="spread"),
)
OP_ROWS = [row for op in OPS for row in op.rows()]


def row_id(row):
    op, options, walk = row
    return "-".join([op.name.removeprefix("segmented_"), *(k for k, v in options.items() if v), walk])


def tiered(rows):
    """The rows, those of walks that compile slowly in the slow tier but for the first of each operation and walk."""
    first = {(op.name, walk): options for op, options, walk in reversed(rows)}
    slow = [row[2] != "loop" and first[row[0].name, row[2]] is not row[1] for row in rows]
    return [pytest.param(row, id=row_id(row), marks=pytest.mark.slow if late else ()) for row, late in zip(rows, slow)]


def with_features(rows):
    """The rows without features and with two; of walks that compile slowly, all but the first in the slow tier."""
    late = {row.id: row.marks for row in tiered(rows)}
    return [
        pytest.param(row, feature, id=f"{row_id(row)}-{feature}",
                     marks=pytest.mark.slow if late[row_id(row)] or (feature and row[2] != "loop") else ())
        for row in rows for feature in ((), (2,))
    ]  # fmt: skip


def crossed(rows, values, fast):
    """Every row with every value; those of walks that compile slowly are in the slow tier but for the `fast` values."""
    return [
        pytest.param(row, value, id=f"{row_id(row)}-{value}", marks=() if row[2] == "loop" or value in fast else pytest.mark.slow)
        for row in rows
        for value in values
    ]


LAYOUTS = {
    "no segments": [],
    "only empty": [0, 0, 0],
    "one row": [1],
    "one": [200],
    "empty at head, middle, tail": [0, 0, 5, 0, 0, 7, 0],
    "single rows": [1] * 60,
    "a block": [8],
    "block edges": [7, 1, 8, 9, 7, 16, 15, 1],
    "word edges": [31, 1, 32, 33, 31, 64, 63],
    "short and one long": [1, 2, 3, 190, 2, 1],
    "full": [100, 100, 56],
    "full of blocks": [8] * 32,
    "mixed": [3, 0, 17, 1, 1, 0, 40, 2, 0, 0, 65, 9, 0],
}
DTYPES = ("float32", "float64", "bfloat16", "float16", "int8", "int16", "int32", "int64", "uint8", "uint32", "bool", "complex64",
          "complex128")  # fmt: skip
FLOATS = ("float32", "float64", "bfloat16", "float16")

# |error| <= BOUND * eps * sum|x|. A fold of n rows is bounded by n eps, n <= 256 here, and errs by far less on random values.
BOUND = 64


def dtype_of(name):
    return np.dtype(jnp.bfloat16) if name == "bfloat16" else np.dtype(name)


def draw(rng, dtype, shape):
    """Values of every magnitude the dtype has; integers that wrap when summed."""
    dtype = dtype_of(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.kind == "c" else x).astype(dtype)


def poison(dtype):
    """What no live row may meet."""
    dtype = dtype_of(dtype)
    return np.iinfo(dtype).max if dtype.kind in "iu" else dtype.kind == "b" or np.nan


def segments_of(lengths, num_segments=None):
    lengths = np.pad(np.array(lengths, np.int32), (0, (num_segments or len(lengths)) - len(lengths)))
    return sk.Segments.from_lengths(lengths)


def expected(op, options, x, lengths, n):
    """The oracle's answer for flat rows: values, and the sums of magnitudes that bound the error."""
    parts = oracles.split(x, lengths) if op.kind != "spread" else [np.repeat(x[k : k + 1], m, 0) for k, m in enumerate(lengths)]
    if op.kind == "reduce":
        parts = [p if len(p) else x[:0] for p in parts]
        want, size = [op.oracle(p, **options) for p in parts], [oracles.magnitude(p) for p in parts]
        shape = (len(lengths), *x.shape[1:])
        return np.array(want, oracles.wide(x[:0]).dtype).reshape(shape), np.array(size, float).reshape(shape)
    want = np.zeros((n, *x.shape[1:]), oracles.wide(x[:0]).dtype)
    size = np.zeros(want.shape)
    at = 0
    for p in parts:
        want[at : at + len(p)] = op.oracle(p, **options)
        size[at : at + len(p)] = op.oracle(np.abs(oracles.wide(p)), **options)
        at += len(p)
    return want, size


def assert_close(got, want, size, dtype):
    """Exact for integers; for floats within BOUND * eps * sum|x|, and one rounding of 16-bit results."""
    got = np.asarray(got)
    assert got.shape == want.shape
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want.astype(got.dtype))
        return
    eps = jnp.finfo(dtype).eps
    accumulated = jnp.finfo(jnp.float32 if dtype_of(dtype).itemsize == 2 else dtype).eps
    got = got.astype(want.dtype)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(got[~finite & ~np.isnan(want)], want[~finite & ~np.isnan(want)])
    one_rounding = float(eps) if dtype_of(dtype).itemsize == 2 else 0.0
    tolerance = BOUND * float(accumulated) * size + one_rounding * np.abs(want)
    assert np.all(np.abs(got - want)[finite] <= tolerance[finite]), np.max(np.abs(got - want)[finite] - tolerance[finite])


def scope(dtype):
    """The JAX scope in which a dtype exists."""
    return jax.enable_x64(dtype_of(dtype).itemsize // (2 if dtype_of(dtype).kind == "c" else 1) == 8)


def config(walk):
    return sk.Config(walk=walk)
