"""Workloads: seeded values, and the lengths they are cut into. A law of lengths is a row of data."""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bench.answers import Answer, cumsums
from segkernels import Segments


@dataclasses.dataclass(frozen=True)
class Law:
    """How long segments are.

    Attributes:
      name: what tables call it.
      sentence: what it means.
      mean: a guess of the mean, from which the number of draws follows.
      draw: ``(rng, count) -> lengths``.
    """

    name: str
    sentence: str
    mean: int
    draw: Callable[[np.random.Generator, int], np.ndarray]

    def lengths(self, rng, n: int) -> np.ndarray:
        """Lengths that add up to `n`; the last one is cut to fit."""
        ends = np.zeros(1, np.int64)
        while ends[-1] < n:
            ends = np.append(ends, ends[-1] + np.cumsum(self.draw(rng, n // self.mean + 1)))
        whole = ends[: np.searchsorted(ends, n)]
        return np.diff(whole, append=n)


def _uniform(mean):
    return lambda rng, count: rng.integers(1, 2 * mean, count)


MEAN_100 = Law("mean 100", "Lengths are uniform from 1 to 199.", 100, _uniform(100))
ALL_ONES = Law("all ones", "Every segment has one row: as many resets as rows.", 1, lambda rng, count: np.ones(count, np.int64))

LAWS = (
    Law("mean 10", "Lengths are uniform from 1 to 19.", 10, _uniform(10)),
    MEAN_100,
    Law("mean 1e4", "Lengths are uniform from 1 to 19,999.", 10_000, _uniform(10_000)),
    Law("one giant", "One segment has all rows.", 2**60, lambda rng, count: np.full(count, 2**60)),
    Law("power law", "Lengths follow a Pareto law with exponent 1.2: most have a few rows, a few have most rows.", 6,
        lambda rng, count: np.minimum(rng.pareto(1.2, count) + 1, 2**40).astype(np.int64)),
    ALL_ONES,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Flat:
    """Values ``[n, *feature]`` and lengths that fill them.

    NumPy reads the memory that JAX does: pages of another size alone make `np.copy` of 2^24 values 1.5 times as fast.
    """

    device: jax.Array
    lengths: np.ndarray

    @classmethod
    def of(cls, values, lengths):
        with jax.enable_x64(True):
            return cls(jax.block_until_ready(jax.device_put(values)), lengths)

    @functools.cached_property
    def host(self) -> np.ndarray:
        return np.asarray(self.device)

    @functools.cached_property
    def segments(self) -> Segments:
        return Segments.from_lengths(self.lengths)

    @functools.cached_property
    def prepared(self) -> Segments:
        return self.segments.prepare(len(self.device))

    @property
    def wide(self) -> bool:
        """Whether JAX keeps the dtype only with x64."""
        return self.device.dtype.name in ("int64", "float64", "complex128")

    @functools.cached_property
    def views(self) -> list:
        return [self.host[a:b] for a, b in itertools.pairwise(self.segments.offsets.tolist())]

    @functools.cached_property
    def answer(self) -> Answer:
        return cumsums(self.host, self.lengths)


@dataclasses.dataclass(frozen=True)
class Arrays:
    """A list of arrays, as NumPy has them and as JAX does."""

    flat: Flat

    @functools.cached_property
    def host(self) -> list:
        return [view.copy() for view in self.flat.views]

    @functools.cached_property
    def device(self) -> list:
        return jax.block_until_ready(jax.device_put(self.host))


def values(rng, shape, dtype=np.float32) -> np.ndarray:
    """Standard normal floats, whose sums stay small enough for every float; integers over the whole range of theirs."""
    dtype = np.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def flat(seed, n, law=MEAN_100, *, feature=(), dtype=np.float32) -> Flat:
    """Values of `n` rows cut by a law; the same for the same arguments."""
    rng = np.random.default_rng([seed, n, *law.name.encode(), *feature, *np.dtype(dtype).name.encode()])
    return Flat.of(values(rng, (n, *feature), dtype), law.lengths(rng, n))


def arrays(seed, count) -> Arrays:
    """`count` float32 arrays whose lengths are uniform from 1 to 199."""
    rng = np.random.default_rng([seed, count])
    lengths = MEAN_100.draw(rng, count)
    return Arrays(Flat.of(values(rng, int(lengths.sum())), lengths))


def new_lengths(seed, count) -> Arrays:
    """`count` arrays that have every length from 1 to `count` once, in random order."""
    rng = np.random.default_rng([seed, count, 1])
    lengths = rng.permutation(np.arange(1, count + 1))
    return Arrays(Flat.of(values(rng, int(lengths.sum())), lengths))
