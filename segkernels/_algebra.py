"""The algebra: one row of data for each way of combining two neighbouring pieces.

A segmented operation is a monoid walked over a layout. A row knows how two pieces combine and which piece changes
nothing; it knows nothing of segments, machines or derivatives. Pieces are tuples, one array for each part of the
state, so that a row with two parts (a linear recurrence, say) needs nothing new anywhere.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclasses.dataclass(frozen=True, eq=False)  # a row is itself and no other
class Monoid:
    """An associative way to combine, as kernels see it.

    Attributes:
      name: what messages and profiles call it.
      combine: ``(earlier, later) -> combined``, each a tuple of arrays of one shape. What is reduced with (and not only
        scanned) must commute too, for reductions fold rows in any order.
      identity: the dtypes of the parts to a tuple of scalars: changes nothing it is combined with; what an empty segment
        gives.
      carried: how many leading parts of the state only carry it along, and are no part of the result.
      order: 1 if it takes the larger of two, -1 if the smaller, else 0: walks may compare by other means.
      segment: the ``jax.ops.segment_*`` function that reduces with it, or None where JAX has none.
    """

    name: str
    combine: Callable[[tuple, tuple], tuple]
    identity: Callable[..., tuple]
    carried: int = 0
    order: int = 0
    segment: Callable | None = None

    @property
    def gives(self) -> slice:
        """The parts of the state that are the result."""
        return slice(self.carried, None)

    def identity_of(self, parts) -> tuple:
        """The identity, as scalars in the dtypes of the parts."""
        dtypes = [x.dtype for x in parts]
        return tuple(jnp.asarray(e, dtype) for e, dtype in zip(self.identity(*dtypes), dtypes))

    def __repr__(self):
        return self.name


def accumulator(dtype) -> np.dtype:
    """The dtype that values of `dtype` are combined in: 16-bit floats in float32, all else as they are."""
    dtype = np.dtype(dtype)
    return np.dtype(np.float32) if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4 else dtype


def wide(x):
    """Values in the dtype they are combined in: what is made in several steps is rounded once."""
    return x.astype(accumulator(x.dtype))


def attains(x, best):
    """Where values are the best one that a maximum or minimum gave; NaN is NaN."""
    return (x == best) | ((x != x) & (best != best))


def itself(rows, per_segment, position):
    """What a reduction folds, if not something that it makes of each row on the way."""
    del per_segment, position
    return rows


def power(rows, tops, position):
    """The exponential of a row, taken below the top of its segment if one is given; for reductions to fold."""
    del position
    return (jnp.exp(rows[0] - tops[0] if tops else rows[0]),)


def made(of, values, per_segment, offsets):
    """What a reduction makes of a row, as shapes ``[1, f]`` and dtypes."""
    row = lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype)
    position = jax.ShapeDtypeStruct((1, 1), offsets.dtype)
    return jax.eval_shape(of, tuple(map(row, values)), tuple(map(row, per_segment)), position)


def of_nothing(monoid, of, values, per_segment, offsets):
    """What a reduction gives where no segment has a row: its identity, ``[s, f]`` for each part of the result."""
    identity = monoid.identity_of(made(of, values, per_segment, offsets))
    return tuple(jnp.full((offsets.shape[0] - 1, values[0].shape[1]), e) for e in identity[monoid.gives])


def lowest(dtype):
    """The least number of a dtype: what a maximum of nothing is."""
    return -np.inf if jnp.issubdtype(dtype, jnp.inexact) else False if dtype.kind == "b" else jnp.iinfo(dtype).min


def highest(dtype):
    """The largest number of a dtype: what a minimum of nothing is."""
    return np.inf if jnp.issubdtype(dtype, jnp.inexact) else True if dtype.kind == "b" else jnp.iinfo(dtype).max


ADD = Monoid("add", lambda a, b: (a[0] + b[0],), lambda dtype: (0,), segment=jax.ops.segment_sum)
MUL = Monoid("mul", lambda a, b: (a[0] * b[0],), lambda dtype: (1,), segment=jax.ops.segment_prod)
# Both propagate NaN; of booleans they are "any" and "all".
MAX = Monoid("max", lambda a, b: (lax.max(a[0], b[0]),), lambda dtype: (lowest(dtype),), order=1, segment=jax.ops.segment_max)
MIN = Monoid("min", lambda a, b: (lax.min(a[0], b[0]),), lambda dtype: (highest(dtype),), order=-1, segment=jax.ops.segment_min)


def _logaddexp(a, b):
    high, low = lax.max(a[0], b[0]), lax.min(a[0], b[0])
    # Where both are the same infinity their difference is NaN; 0 instead gives that infinity.
    gap = jnp.where(high == low, jnp.zeros_like(low), low - high)
    return (high + lax.log1p(lax.exp(gap)),)


LOGADDEXP = Monoid("logaddexp", _logaddexp, lambda dtype: (-np.inf,))


def _affine(a, b):
    (gate, state), (later, more) = a, b
    if later.dtype == bool:
        return gate & later, jnp.where(later, state + more, more)
    return gate * later, later * state + more


# h <- gate * h + x on pairs (gate, x). A boolean gate keeps the state or drops it, by select: a NaN that is dropped is gone.
AFFINE = Monoid("affine", _affine, lambda gate, dtype: (1, 0), carried=1)

# The earlier piece wins: a scan with it carries the first row of each segment to all of its rows. It has no identity; what
# stands for one meets no live row, for each of them has a head before it.
FIRST = Monoid("first", lambda a, b: a, lambda dtype: (0,))

# On pairs (valid, x): the last valid x so far, and before the first one what is there. It takes no part of x apart.
LATEST = Monoid("latest", lambda a, b: (a[0] | b[0], jnp.where(b[0] | ~a[0], b[1], a[1])), lambda valid, dtype: (False, 0),
                carried=1)  # fmt: skip
