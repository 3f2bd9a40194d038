"""The tables that the tests run over. A new operation, layout or dtype is a row here, not a function elsewhere."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from bounds import BOUND, exact, of_logarithm, of_magnitudes, of_scores, of_softmax, of_squares

import segkernels as sk
from segkernels.kernels import native

ROWS, SEGMENTS = 256, 64  # of every layout in the table, so that one compile serves them all

REALS = ("float32", "float64", "bfloat16", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
         "bool")  # fmt: skip
DTYPES = (*REALS, "complex64", "complex128")
FLOATS = ("float32", "float64", "bfloat16", "float16")
FAST_DTYPES = ("float32", "float64", "bfloat16", "int8", "bool", "complex64")  # the others are in the slow tier
FASTEST_DTYPES = ("float32", "bfloat16", "int8")  # of operations that share their code with others


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


def near_one(rng, dtype, shape):
    """Factors whose products neither vanish nor overflow."""
    dtype = dtype_of(dtype)
    if dtype.kind in "biu":
        return draw(rng, dtype, shape)
    x = rng.choice([-1.0, 1.0], shape) * np.exp(0.02 * rng.standard_normal(shape))
    return (x * np.exp(1j * rng.standard_normal(shape)) if dtype.kind == "c" else x).astype(dtype)


def alone(draw):
    """One operand."""
    return lambda rng, dtype, shape: (draw(rng, dtype, shape),)


def with_gates(rng, dtype, shape):
    """Inputs, and gates of magnitude up to 1."""
    gates = draw(rng, dtype, shape)
    if gates.dtype.kind not in "biu":
        gates = (gates / (1 + np.abs(gates))).astype(gates.dtype)
    return draw(rng, dtype, shape), gates


def with_flags(rng, dtype, shape):
    return draw(rng, dtype, shape), rng.random(shape) < 0.3


def matrices(rng, dtype, shape):
    x = draw(rng, dtype, (*shape, 2, 2))
    return (x if x.dtype.kind in "biu" else (x / 2).astype(x.dtype),)


@dataclasses.dataclass(frozen=True)
class Op:
    """A public operation: how to call it, what it must give for one segment, and which walks it has.

    Attributes:
      name: of the function.
      oracle: the operands of one segment to what it gives.
      kind: scan: rows to rows, row by row; rows: rows to rows; reduce: rows to one; spread: one to rows.
      options: the keyword arguments to try, the first ones in every test.
      walks: of the XLA machine, and "native" for the machine of that name.
      draw: ``(rng, dtype, shape) -> operands``.
      call: ``(function, operands, segments, **keywords)``, where operands are not just the first arguments.
      like: what gives the dtype of the result of one row.
      size: how large an error may be.
      dtypes: those that it takes.
      smooth: whether it has derivatives; where it is `linear` they are those of the oracle.
      broad: whether it stands for all that share its code, in tests of sizes and shapes.
    """

    name: str
    oracle: Callable
    kind: str = "scan"
    options: tuple = ({},)
    walks: tuple = ("loop", "associative")
    draw: Callable = alone(draw)
    call: Callable = lambda f, operands, segments, **keywords: f(*operands, segments, **keywords)
    like: Callable = lambda x: x
    size: Callable = exact
    dtypes: tuple = DTYPES
    smooth: bool = True
    linear: bool = False
    broad: bool = False

    @property
    def function(self):
        return getattr(sk, self.name)

    def run(self, operands, segments, walk=None, n=ROWS, **options):
        """Call it on flat operands."""
        extra = dict(size=n) if self.kind == "spread" else {}
        choice = {} if walk is None else dict(implementation=config(walk))
        return self.call(self.function, operands, segments, **options, **extra, **choice)

    def rows(self):
        """One test row for each option and walk."""
        return [(self, options, walk) for options in self.options for walk in self.walks]


ONE_WALK = ("loop",)  # of what is made of the verbs of others, or is no verb
DIRECTIONS = tuple(dict(exclusive=e, reverse=r) for e in (False, True) for r in (False, True))
WAYS = tuple(dict(reverse=r) for r in (False, True))
NATIVE = () if native.missing() else ("native",)  # without a C compiler all else is tested
SCANS, SUMS = ("loop", "associative", *NATIVE), ("loop", "associative", "segment_sum", *NATIVE)
NATIVE_DTYPES = ("float32", "float64", "bfloat16", "int32")


def reals(**row):
    return dict(dtypes=REALS, **row)


def index(x):
    return x.astype(jnp.int32)


def linear_recurrence(f, operands, segments, **keywords):
    return f(operands[1], operands[0], segments, **keywords)


def associative_scan(f, operands, segments, exclusive=False, **keywords):
    identity = dict(identity=np.eye(2)) if exclusive else {}
    return f(jnp.matmul, operands[0], segments, exclusive=exclusive, **identity, **keywords)


OPS = (
    Op("segmented_cumsum", oracles.cumsum, options=DIRECTIONS, walks=SCANS, like=jnp.cumsum, size=of_magnitudes, linear=True,
       broad=True),
    Op("segmented_cumprod", oracles.cumprod, options=DIRECTIONS, walks=SCANS, like=jnp.cumprod, size=of_magnitudes,
       draw=alone(near_one)),
    Op("segmented_cummax", oracles.cummax, options=DIRECTIONS, walks=SCANS, **reals()),
    Op("segmented_cummin", oracles.cummin, options=DIRECTIONS, walks=SCANS, **reals()),
    Op("segmented_cumlogsumexp", oracles.cumlogsumexp, options=DIRECTIONS, like=jnp.exp, size=of_logarithm, **reals()),
    Op("segmented_linear_recurrence", oracles.recurrence, options=WAYS, walks=SCANS, like=jnp.cumsum, size=of_magnitudes,
       draw=with_gates, call=linear_recurrence, broad=True),
    Op("segmented_fill_forward", oracles.fill_forward, options=WAYS, draw=with_flags, linear=True),
    Op("segmented_associative_scan", oracles.matrix_products, options=DIRECTIONS, size=of_magnitudes, draw=matrices,
       call=associative_scan, dtypes=("float32", "float64", "int8", "int32", "complex64")),
    Op("segmented_sum", oracles.total, kind="reduce", walks=SUMS, like=jnp.sum, size=of_magnitudes, linear=True, broad=True),
    Op("segmented_prod", oracles.prod, kind="reduce", walks=SUMS, like=jnp.prod, size=of_magnitudes, draw=alone(near_one)),
    Op("segmented_max", oracles.maximum, kind="reduce", walks=SUMS, broad=True, **reals()),
    Op("segmented_min", oracles.minimum, kind="reduce", walks=SUMS, **reals()),
    Op("segmented_any", lambda x: np.any(x != 0, axis=0), kind="reduce", like=lambda x: x.astype(bool), smooth=False),
    Op("segmented_all", lambda x: np.all(x != 0, axis=0), kind="reduce", like=lambda x: x.astype(bool), smooth=False),
    Op("segmented_mean", oracles.mean, kind="reduce", walks=ONE_WALK, like=jnp.mean, size=of_magnitudes, linear=True),
    Op("segmented_var", oracles.var, kind="reduce", walks=ONE_WALK, options=({}, dict(ddof=1)), like=jnp.var,
       size=of_squares),
    Op("segmented_logsumexp", oracles.logsumexp, kind="reduce", walks=ONE_WALK, like=jnp.exp, size=of_logarithm, **reals()),
    Op("segmented_argmax", oracles.argmax, kind="reduce", like=index, smooth=False, broad=True, **reals()),
    Op("segmented_argmin", oracles.argmin, kind="reduce", like=index, smooth=False, **reals()),
    Op("segmented_first", oracles.first, kind="reduce", walks=ONE_WALK, linear=True),
    Op("segmented_last", oracles.last, kind="reduce", walks=ONE_WALK, linear=True),
    Op("segmented_softmax", oracles.softmax, kind="rows", walks=SUMS, like=jnp.exp, size=of_softmax, **reals()),
    Op("segmented_log_softmax", oracles.log_softmax, kind="rows", walks=(*ONE_WALK, *NATIVE), like=jnp.exp, size=of_logarithm,
       **reals()),
    Op("segmented_standardize", oracles.standardize, kind="rows", walks=ONE_WALK, like=jnp.exp, size=of_scores),
    Op("segmented_sort", oracles.sort, kind="rows", walks=ONE_WALK, **reals()),
    Op("segmented_argsort", oracles.argsort, kind="rows", walks=ONE_WALK, like=index, smooth=False, **reals()),
    Op("segmented_repeat", lambda x: x, kind="spread", linear=True, broad=True),
)  # fmt: skip
BY_NAME = {op.name.removeprefix("segmented_"): op for op in OPS}
OP_ROWS = [row for op in OPS for row in op.rows()]
FIRST_ROWS = [(op, op.options[0], op.walks[0]) for op in OPS]
BROAD_ROWS = [row for row in FIRST_ROWS if row[0].broad]
# Where a test takes seconds: each operation by loops with every option, and those that stand for others by every walk.
THIN_ROWS = [row for row in OP_ROWS if row[2] == "loop" or (row[0].broad and row[1] is row[0].options[0])]


# Those that look rows up, sort, or run a function of the user's: plain JAX, with no kernel of ours to choose.
PLAIN = ("segmented_first", "segmented_last", "segmented_associative_scan")
OF_NO_KERNEL = (*PLAIN, "segmented_sort", "segmented_argsort")


# Tiers: what is fast, and what `-m slow` runs -------------------------------------------------------------------------


def row_id(row):
    op, options, walk = row
    return "-".join([op.name.removeprefix("segmented_"), *(k for k, v in options.items() if v), walk])


def params(rows, values=None, fast=lambda row, value: True):
    """Test parameters: the rows, or every row with every value; those that are not fast are in the slow tier."""
    return [
        pytest.param(*((row,) if values is None else (row, value)), id=row_id(row) + f"-{value}" * (values is not None),
                     marks=() if fast(row, value) else pytest.mark.slow)
        for row in rows for value in values or (None,)
    ]  # fmt: skip


def is_loop(row, value=None):
    """Whether a row is walked by loops, which compile fast."""
    return row[2] == "loop"


def is_first(row, value=None):
    """Whether a row is the first of its operation, and the value if there is one says nothing."""
    op, options, walk = row
    return options is op.options[0] and walk == op.walks[0] and not value


# Their rules and bodies are those of others in the table, or made of them.
ALIKE = {"cummin", "min", "argmin", "all", "last", "mean", "var", "log_softmax", "standardize", "argsort"}


def is_first_of_its_kind(row, value=None):
    """Whether a row is the first of an operation with rules of its own."""
    return is_first(row, value) and row[0].name.removeprefix("segmented_") not in ALIKE


def is_broad(row, value=None):
    """Whether a row is the first of an operation that stands for others, or all of a cumsum by the loop."""
    op, _, walk = row
    return op.broad and (is_first(row) or (op.name == "segmented_cumsum" and walk == "loop"))


# Layouts -------------------------------------------------------------------------------------------------------------

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


def poison(dtype):
    """What no live row may meet."""
    dtype = dtype_of(dtype)
    return np.iinfo(dtype).max if dtype.kind in "iu" else dtype.kind == "b" or np.nan


def segments_of(lengths, num_segments=None):
    lengths = np.pad(np.array(lengths, np.int32), (0, (num_segments or len(lengths)) - len(lengths)))
    return sk.Segments.from_lengths(lengths)


# Answers -------------------------------------------------------------------------------------------------------------


def result_dtype(op, x):
    return jax.eval_shape(op.like, jax.ShapeDtypeStruct((1,), x.dtype)).dtype


def expected(op, options, operands, lengths, n, dtype):
    """The oracle's answer for flat rows in the dtype of the result: values, and how large an error may be."""
    wraps = dtype.kind in "iu" and op.like in (jnp.cumsum, jnp.cumprod, jnp.sum, jnp.prod)  # integers, in the dtype of the result
    operands = [oracles.wide(x.astype(dtype) if wraps and x.dtype.kind in "biu" else x) for x in operands]
    if op.kind == "spread":
        parts = [(np.repeat(operands[0][k : k + 1], m, 0),) for k, m in enumerate(lengths)]
    else:
        parts = list(zip(*(oracles.split(x, lengths) for x in operands)))
    feature, shown = operands[0].shape[1:], operands[0].dtype
    with np.errstate(all="ignore"):
        want = [np.asarray(op.oracle(*p, **options)) for p in parts]
        size = [np.asarray(op.size(op, options, p, w)) for p, w in zip(parts, want)]
    if want:
        shown = want[0].dtype
    if op.kind == "reduce":
        shape = (len(lengths), *feature)
        return np.array(want, shown).reshape(shape), np.array(size, float).reshape(shape)
    flat, bound = np.zeros((n, *feature), shown), np.zeros((n, *feature))
    live = sum(lengths)
    if live:
        flat[:live], bound[:live] = np.concatenate(want), np.concatenate(size)
    return flat, bound


def assert_close(got, want, size):
    """Exact for integers; for floats within BOUND * eps of a size, and one rounding of 16-bit results."""
    dtype, got = got.dtype, np.asarray(got)
    assert got.shape == want.shape
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want.astype(got.dtype))
        return
    narrow = dtype_of(dtype).itemsize == 2
    accumulated = float(jnp.finfo(jnp.float32 if narrow else dtype).eps)
    got = got.astype(np.complex128 if got.dtype.kind == "c" else np.float64)
    finite = np.isfinite(want) & np.isfinite(got)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    there = ~finite & ~np.isnan(want)
    if narrow:  # what the type cannot hold is infinite
        there &= ~(np.isfinite(want) & (np.abs(want) > float(jnp.finfo(dtype).max)))
    np.testing.assert_array_equal(got[there], want[there])
    one_rounding = float(jnp.finfo(dtype).eps) if narrow else 0.0
    with np.errstate(invalid="ignore"):
        excess = np.abs(got - want) - (BOUND * accumulated * size + one_rounding * np.abs(want) + float(jnp.finfo(dtype).tiny))
    assert np.all(excess[finite] <= 0), np.max(excess[finite])


def check(row, operands, lengths, num_segments=None, n=ROWS):
    """An operation on flat operands against its oracle."""
    op, options, walk = row
    got = op.run([jnp.asarray(x) for x in operands], segments_of(lengths, num_segments), walk, n, **options)
    dtype = result_dtype(op, operands[0])
    assert got.dtype == dtype
    missing = got.shape[0] - len(lengths) if op.kind == "reduce" else 0
    want, size = expected(op, options, operands, [*lengths, *[0] * missing], n, dtype)
    assert_close(got, want, size)


def scope(dtype):
    """The JAX scope in which a dtype exists."""
    return jax.enable_x64(dtype_of(dtype).itemsize // (2 if dtype_of(dtype).kind == "c" else 1) == 8)


def config(walk):
    return sk.Config(walk) if walk in ("native", "pallas_tpu") else sk.Config(walk=walk)
