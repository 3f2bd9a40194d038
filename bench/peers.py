"""What is measured: named functions in tables, each with the answer it owes.

A peer is what a user would have written; a yardstick does less than a segmented sum and says how fast memory is. Peers
get what helps them: prepared flags, arrays cut before, results left as views.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numba
import numpy as np

from bench import answers
from bench.workloads import Arrays, Flat
from segkernels import Config, segmented_cumsum
from segkernels.kernels import native


@dataclasses.dataclass(frozen=True)
class Implementation:
    """A row of a table of implementations.

    Attributes:
      name: what tables call it.
      prepare: workload to the call to time; what it does before that is not timed.
      answer: workload to what the call must give.
      on_jax: whether the call gives JAX arrays.
      clear: whether to drop all that is compiled before the first call, since rows of one table share it. Rows that do
        come first, so that what the others compile is compiled once.
    """

    name: str
    prepare: Callable[[object], Callable[[], object]]
    answer: Callable[[object], answers.Answer]
    on_jax: bool = True
    clear: bool = False


cumsum = jax.jit(jnp.cumsum)
cumsum_rows = jax.jit(jax.vmap(jnp.cumsum))
add_one = jax.jit(lambda x: x + 1)


@jax.jit
def associative(values, heads):
    """The segmented sum that JAX users write: a scan of (value, head) pairs."""

    def combine(earlier, later):
        (a, was_head), (b, head) = earlier, later
        return jnp.where(head, b, a + b), was_head | head

    return jax.lax.associative_scan(combine, (values, heads))[0]


@numba.njit(parallel=True)
def _prange(values, offsets, out):
    for k in numba.prange(len(offsets) - 1):
        total = values.dtype.type(0)
        for i in range(offsets[k], offsets[k + 1]):
            total += values[i]
            out[i] = total


def numba_prange(values, offsets):
    """The loop over segments that numba spreads over threads, to memory of NumPy's, which asks for huge pages."""
    out = np.empty_like(values)
    _prange(values, offsets, out)
    return out


def padded(arrays):
    """Pad to the longest, sum all rows at once, cut back."""
    lengths = [len(x) for x in arrays]
    dense = np.zeros((len(arrays), max(lengths)), arrays[0].dtype)
    for row, x in zip(dense, arrays, strict=True):
        row[: len(x)] = x
    return [row[:n] for row, n in zip(np.asarray(cumsum_rows(dense)), lengths, strict=True)]


def grouped(arrays):
    """Stack the arrays of each length, sum each stack at once, put the rows back in order."""
    groups = {}
    for i, x in enumerate(arrays):
        groups.setdefault(len(x), []).append(i)
    stacks = [(members, cumsum_rows(np.stack([arrays[i] for i in members]))) for members in groups.values()]
    out = [None] * len(arrays)
    for members, stack in stacks:
        for i, row in zip(members, np.asarray(stack), strict=True):
            out[i] = row
    return out


def jit_loop(arrays):
    """The jitted function on each array: one compile for each length."""
    return [cumsum(x) for x in arrays]


def numpy_loop(arrays):
    """NumPy on each array."""
    return [np.cumsum(x) for x in arrays]


def _heads(flat: Flat):
    heads = np.zeros(len(flat.host), bool)
    heads[flat.segments.offsets[:-1]] = True
    return jax.device_put(heads)


def _segmented(flat: Flat):
    return flat.answer


def _of_list(arrays: Arrays):
    return arrays.flat.answer


def _unsegmented(flat: Flat):
    return answers.cumsums(flat.host, np.array([len(flat.host)]))


def ours(how, segments="prepared", **choice):
    """A row of the flat call; `how` says which."""
    return Implementation(f"segmented_cumsum, {how}",
                          lambda w: partial(segmented_cumsum, w.device, getattr(w, segments), **choice), _segmented,
                          clear=True)  # fmt: skip


def _donated(workload: Flat, **choice):
    """Calls that each take the memory of the result before, the first one that of a copy."""
    held = [workload.device * 1]

    def call():
        held[0] = segmented_cumsum(held[0], workload.prepared, donate=True, **choice)
        return held[0]

    return call


_ONE = Config("native", threads=1)
OURS_XLA = ours("xla", implementation="xla")
# The machine that is chosen by itself is native where it is built.
OURS_NATIVE = () if native.missing() else (
    ours("native", implementation="native"),
    ours("native, 1 thread", implementation=_ONE),
    Implementation("segmented_cumsum, native, donated", partial(_donated, implementation="native"), _segmented, clear=True),
    Implementation("segmented_cumsum, native, donated, 1 thread", partial(_donated, implementation=_ONE), _segmented, clear=True),
)  # fmt: skip
NUMBA = Implementation("numba, prange over segments", lambda w: partial(numba_prange, w.host, np.asarray(w.segments.offsets)),
                       _segmented, False)  # fmt: skip
ASSOCIATIVE = Implementation("associative_scan of pairs, jit", lambda w: partial(associative, w.device, _heads(w)), _segmented)

FLAT = (
    *OURS_NATIVE,
    OURS_XLA,
    ours("xla, unprepared", segments="segments", implementation="xla"),
    ASSOCIATIVE,
    NUMBA,
    Implementation("np.cumsum of each view", lambda w: partial(numpy_loop, w.views), _segmented, False),
    Implementation("np.cumsum, unsegmented", lambda w: partial(np.cumsum, w.host), _unsegmented, False),
    Implementation("jit(x + 1)", lambda w: partial(add_one, w.device), lambda w: answers.exactly(w.host + 1)),
    Implementation("np.copy", lambda w: partial(np.copy, w.host), lambda w: answers.exactly(w.host), False),
)  # fmt: skip

LISTS = (
    Implementation("segmented_cumsum, NumPy in", lambda w: partial(segmented_cumsum, w.host), _of_list, False, clear=True),
    Implementation("segmented_cumsum, JAX in", lambda w: partial(segmented_cumsum, w.device), _of_list, clear=True),
    Implementation("np.cumsum loop, NumPy in", lambda w: partial(numpy_loop, w.host), _of_list, False),
    Implementation("warm jit loop, JAX in", lambda w: partial(jit_loop, w.device), _of_list),
    Implementation("pad, vmap, cut, NumPy in", lambda w: partial(padded, w.host), _of_list, False),
    Implementation("group by shape, NumPy in", lambda w: partial(grouped, w.host), _of_list, False),
)
