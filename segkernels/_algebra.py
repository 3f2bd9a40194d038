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


@dataclasses.dataclass(frozen=True)
class Monoid:
    """An associative way to combine, as kernels see it.

    Attributes:
      name: what messages and profiles call it.
      combine: ``(earlier, later) -> combined``, each a tuple of arrays of one shape.
      identity: ``dtype -> scalar``: changes nothing it is combined with; what an empty segment gives.
      segment: the ``jax.ops.segment_*`` function that reduces with it, or None where JAX has none.
    """

    name: str
    combine: Callable[[tuple, tuple], tuple]
    identity: Callable[[np.dtype], object]
    segment: Callable | None = None

    def __repr__(self):
        return self.name


def accumulator(dtype) -> np.dtype:
    """The dtype that values of `dtype` are combined in: 16-bit floats in float32, all else as they are."""
    dtype = np.dtype(dtype)
    return np.dtype(np.float32) if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4 else dtype


ADD = Monoid("add", lambda a, b: (a[0] + b[0],), lambda dtype: 0, jax.ops.segment_sum)

# The earlier piece wins: a scan with it carries the first row of each segment to all of its rows. It has no identity; what
# stands for one meets no live row, for each of them has a head before it.
FIRST = Monoid("first", lambda a, b: a, lambda dtype: 0)
