"""The whole family on one buffer: every operation with the answer it owes, and what users write instead.

An operation is a row: what to call on values and a prepared layout, the same of one segment in NumPy in 64 bits, and the
magnitudes that its rounding errors are bounded by.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import segkernels as sk
from bench import answers
from bench.workloads import Flat


@dataclasses.dataclass(frozen=True)
class Operation:
    """A row.

    Attributes:
      name: what tables call it.
      call: ``(values, segments, implementation=) -> array``.
      one: what it gives for one segment ``[n]`` of float64.
      size: ``(segment, answer) -> magnitudes``, of which errors may be a few epsilons; None if it makes none.
      rows: whether it gives rows; else one row a segment.
      native: whether the native machine serves it whole.
    """

    name: str
    call: Callable
    one: Callable
    size: Callable | None = None
    rows: bool = True
    native: bool = False

    def answer(self, workload: Flat) -> answers.Answer:
        return answers.of_each(workload.host, workload.lengths, self.one, self.size, stacked=not self.rows)


def _recurrence(x):
    out, h = np.empty_like(x), 0.0
    for i, b in enumerate(x.tolist()):
        out[i] = h = 0.9 * h + b
    return out


def _filled(x):
    last = np.maximum.accumulate(np.where(x > 0, np.arange(len(x)), -1))
    return np.where(last < 0, x, x[last])


def _logsumexp(x):
    return np.log(np.sum(np.exp(x - x.max()))) + x.max()


def _softmax(x):
    powers = np.exp(x - x.max())
    return powers / powers.sum()


def _product(x, y):
    return 16 * np.abs(y) + 1e-28  # partial products below the least normal number are flushed to 0


def _magnitude(x, y):
    return 1 + np.abs(y) + np.abs(x).max()


SCANS = (
    Operation("cumsum", sk.segmented_cumsum, np.cumsum, lambda x, y: np.cumsum(np.abs(x)), native=True),
    Operation("cumprod", sk.segmented_cumprod, np.cumprod, _product, native=True),
    Operation("cummax", sk.segmented_cummax, np.maximum.accumulate, native=True),
    Operation("cummin", sk.segmented_cummin, np.minimum.accumulate, native=True),
    Operation("cumlogsumexp", sk.segmented_cumlogsumexp, np.logaddexp.accumulate, lambda x, y: 4 * _magnitude(x, y)),
    Operation("linear_recurrence, one gate", lambda x, s, **how: sk.segmented_linear_recurrence(0.9, x, s, **how),
              _recurrence, lambda x, y: _recurrence(np.abs(x)), native=True),
    Operation("linear_recurrence, a gate a value",
              lambda x, s, **how: sk.segmented_linear_recurrence(jnp.full_like(x, 0.9), x, s, **how),
              _recurrence, lambda x, y: _recurrence(np.abs(x)), native=True),
    Operation("fill_forward, half valid", lambda x, s, **how: sk.segmented_fill_forward(x, x > 0, s, **how), _filled),
    Operation("associative_scan, multiply",
              lambda x, s, **how: sk.segmented_associative_scan(jnp.multiply, x, s, **how), np.cumprod, _product),
)  # fmt: skip

REDUCTIONS = (
    Operation("sum", sk.segmented_sum, np.sum, lambda x, y: np.sum(np.abs(x)), rows=False, native=True),
    Operation("prod", sk.segmented_prod, np.prod, _product, rows=False, native=True),
    Operation("max", sk.segmented_max, np.max, rows=False, native=True),
    Operation("min", sk.segmented_min, np.min, rows=False, native=True),
    Operation("any", lambda x, s, **how: sk.segmented_any(x > 2.5, s, **how), lambda x: np.any(x > 2.5), rows=False),
    Operation("all", lambda x, s, **how: sk.segmented_all(x < 2.5, s, **how), lambda x: np.all(x < 2.5), rows=False),
    Operation("mean", sk.segmented_mean, np.mean, lambda x, y: np.mean(np.abs(x)), rows=False, native=True),
    # The peer sums ten thousand rows left to right, and errs by several times as much as ours.
    Operation("var", sk.segmented_var, np.var, lambda x, y: 8 * (y + np.mean(x**2)), rows=False),
    Operation("logsumexp", sk.segmented_logsumexp, _logsumexp, _magnitude, rows=False),
    Operation("argmax", sk.segmented_argmax, np.argmax, rows=False),
    Operation("argmin", sk.segmented_argmin, np.argmin, rows=False),
    Operation("first", sk.segmented_first, lambda x: x[0], rows=False),
    Operation("last", sk.segmented_last, lambda x: x[-1], rows=False),
)

ROWS = (
    Operation("softmax", sk.segmented_softmax, _softmax, lambda x, y: y * _magnitude(x, y), native=True),
    Operation("log_softmax", sk.segmented_log_softmax, lambda x: x - _logsumexp(x), _magnitude, native=True),
    Operation("standardize", sk.segmented_standardize, lambda x: (x - x.mean()) / np.sqrt(x.var() + 1e-5),
              lambda x, y: 1 + np.abs(y) + np.abs(x).max() / np.sqrt(x.var() + 1e-5)),
    Operation("sort", sk.segmented_sort, np.sort),
    Operation("argsort", sk.segmented_argsort, lambda x: np.argsort(x, kind="stable")),
)  # fmt: skip


# What users write ----------------------------------------------------------------------------------------------------


def _of_ids(function):
    return lambda values, ids, segments: function(values, ids, segments.num_segments, indices_are_sorted=True)


def _three_scatters(values, ids, segments):
    """Softmax by a maximum, a sum and two gathers."""
    powers = jnp.exp(values - _of_ids(jax.ops.segment_max)(values, ids, segments)[ids])
    return powers / _of_ids(jax.ops.segment_sum)(powers, ids, segments)[ids]


def _scattered_var(values, ids, segments):
    total, lengths = _of_ids(jax.ops.segment_sum), segments.lengths.astype(values.dtype)
    away = values - (total(values, ids, segments) / lengths)[ids]
    return total(away * away, ids, segments) / lengths


def _scattered_logsumexp(values, ids, segments):
    top = _of_ids(jax.ops.segment_max)(values, ids, segments)
    return jnp.log(_of_ids(jax.ops.segment_sum)(jnp.exp(values - top[ids]), ids, segments)) + top


def _scattered_argmax(values, ids, segments):
    rows = jnp.arange(values.shape[0], dtype=jnp.int32)
    top = _of_ids(jax.ops.segment_max)(values, ids, segments)
    at = jnp.where(values == top[ids], rows, jnp.int32(2**31 - 1))
    return _of_ids(jax.ops.segment_min)(at, ids, segments) - segments.offsets[:-1]


@dataclasses.dataclass(frozen=True)
class Peer:
    """What a user would have written: its name, the operation whose answer it owes, a function of values, ids and layout.

    On the host it is a function of NumPy values and offsets.
    """

    name: str
    owes: str
    function: Callable
    ids_given: bool = True
    on_host: bool = False

    def prepare(self, workload: Flat) -> Callable:
        """The call to time; ids that are given are made here."""
        if self.on_host:
            return partial(self.function, workload.host, np.asarray(workload.segments.offsets))
        n, segments = len(workload.host), workload.prepared

        def ids_of(segments):
            return jnp.repeat(jnp.arange(segments.num_segments), segments.lengths, total_repeat_length=n)

        if self.ids_given:
            ids, jitted = jax.block_until_ready(jax.jit(ids_of)(segments)), jax.jit(self.function)
            return lambda: jitted(workload.device, ids, segments)
        jitted = jax.jit(lambda values, segments: self.function(values, ids_of(segments), segments))
        return lambda: jitted(workload.device, segments)


SEGMENT_SUM = Peer("jax.ops.segment_sum, ids given", "sum", _of_ids(jax.ops.segment_sum))
SEGMENT_MAX = Peer("jax.ops.segment_max, ids given", "max", _of_ids(jax.ops.segment_max))
SCATTERS = Peer("softmax by three scatters, ids from offsets", "softmax", _three_scatters, ids_given=False)
REDUCTION_PEERS = (
    Peer("np.add.reduceat", "sum", lambda values, offsets: np.add.reduceat(values, offsets[:-1]), on_host=True),
    SEGMENT_SUM, Peer("jax.ops.segment_prod, ids given", "prod", _of_ids(jax.ops.segment_prod)), SEGMENT_MAX,
    Peer("var by two scatters, ids given", "var", _scattered_var),
    Peer("logsumexp by two scatters, ids given", "logsumexp", _scattered_logsumexp),
    Peer("argmax by two scatters, ids given", "argmax", _scattered_argmax),
)  # fmt: skip
ROW_PEERS = (Peer("softmax by three scatters, ids given", "softmax", _three_scatters), SCATTERS)
