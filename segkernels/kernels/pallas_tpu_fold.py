"""What TPU kernels do with registers: fold them by a monoid, and carry folds over the places of a register.

A boundary is a select: what lies before a head never meets what follows it, and no identity is needed but as the answer of
an exclusive scan. The first live row is a head, so what the carry is at first, and dead rows, are met by no live row.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from segkernels._algebra import Monoid

SUBLANES, LANES = PLACES = (8, 128)
_WINDOW = 8  # lanes of a window: 7 rolls and then 16 go in parallel, where a scan by doubling waits for 7 in turn


@dataclasses.dataclass(frozen=True)
class Fold:
    """How registers are folded: the monoid, on parts as they are held, and the direction.

    Attributes:
      monoid, reverse, exclusive: of the scan.
      dtypes: of the parts, as the monoid knows them; booleans are held as int32.
      interpreted: whether JAX's interpreter runs it; else loops over the rows of a group become straight code.
    """

    monoid: Monoid
    reverse: bool
    exclusive: bool
    dtypes: tuple
    interpreted: bool

    @property
    def held(self):
        """The dtypes of the parts in registers."""
        floats = lambda dtype: jnp.issubdtype(dtype, jnp.floating)
        return tuple(np.dtype(np.float32 if floats(dtype) else np.int32) for dtype in self.dtypes)

    @property
    def empty(self):
        """What an exclusive scan gives at the head of a segment."""
        fill = self.monoid.identity(*self.dtypes)[-1]
        return self.held[-1].type(fill)

    def combine(self, before, x):
        """The parts of both, in scan order."""
        carried = [d.kind == "b" for d in self.dtypes[: self.monoid.carried]]  # a boolean gate is one to its monoid
        lifted = [tuple(p != 0 if b else p for p, b in zip(parts, carried)) + parts[len(carried) :] for parts in (before, x)]
        combined = self.monoid.combine(*lifted)
        return tuple(jnp.where(p, 1, 0).astype(jnp.int32) if p.dtype == np.bool_ else p for p in combined)

    def step(self, before, x, resets):
        """`x` where a fold starts, else both combined."""
        return select(resets, x, self.combine(before, x))

    def join(self, before, after):
        """Pieces of a segment or more, each with flags that are not 0 where a fold starts in it."""
        (a, starts), (b, resets) = before, after
        return self.step(a, b, resets != 0), jnp.where(resets != 0, resets, starts)

    def tree(self, pieces):
        """Pieces in scan order, joined two by two."""
        while len(pieces) > 1:
            pairs = [self.join(*pieces[i : i + 2]) for i in range(0, len(pieces) - 1, 2)]
            pieces = pairs + pieces[2 * len(pairs) :]
        return pieces[0]

    def moved(self, piece, places, axis):
        """A piece moved on by so many places, in scan order."""
        parts, flags = piece
        by = PLACES[axis] - places if self.reverse else places
        return tuple(pltpu.roll(p, by, axis) for p in parts), pltpu.roll(flags, by, axis)

    def place(self, axis):
        """The number of each place along an axis, in scan order."""
        number = lax.broadcasted_iota(jnp.int32, PLACES, axis)
        return PLACES[axis] - 1 - number if self.reverse else number

    def last(self, x, axis):
        """The last place along an axis, in all of them."""
        last = 0 if self.reverse else PLACES[axis] - 1
        return jnp.broadcast_to(lax.slice_in_dim(x, last, last + 1, axis=axis), PLACES)

    def order(self, count):
        """Numbers below `count` in scan order."""
        return range(count - 1, -1, -1) if self.reverse else range(count)

    def loop(self, start, count, step, state):
        """``step(number, state)`` for the numbers below `count` in scan order, from the `start`-th one on."""
        at = lambda i: count - 1 - i if self.reverse else i
        return lax.fori_loop(start, count, lambda i, s: step(at(i), s), state, unroll=not self.interpreted)

    def last_start(self, bits):
        """The bit of the last row of a group that starts a fold, in scan order; past all of them if there is none."""
        return lax.population_count((bits & -bits) - 1) if self.reverse else 31 - lax.clz(bits)

    def after(self, row, start):
        """Whether a row comes after the one that started a fold."""
        return start > row if self.reverse else start < row


def select(condition, x, y):
    """Part by part."""
    return tuple(jnp.where(condition, a, b) for a, b in zip(x, y))


# Carries -------------------------------------------------------------------------------------------------------------


def over_lanes(fold, piece):
    """From the total of each place: what the lanes before it in its sublane give, and what each whole sublane gives."""
    parts, flags = piece
    lane, starts = fold.place(1), jnp.where(flags != 0, 1, 0)
    # The second bit keeps out, at the first lane, what a roll has brought round from the last ones.
    piece = parts, jnp.where(lane == 0, starts | 2, starts)
    window = fold.tree([fold.moved(piece, d, 1) for d in range(_WINDOW - 1, 0, -1)] + [piece])
    before, stop = fold.tree([fold.moved(window, d, 1) for d in range(LANES + 1 - _WINDOW, 0, -_WINDOW)])
    stop = stop & 1
    whole = fold.step(before, parts, (lane == 0) | (starts != 0)), jnp.where(lane == 0, starts, starts | stop)
    return (before, stop), (tuple(fold.last(p, 1) for p in whole[0]), fold.last(whole[1], 1))


def over_sublanes(fold, piece, carry_refs):
    """What comes into each sublane, the carry included; that of the block after this one goes to `carry_refs`."""
    parts, starts = piece
    sublane = fold.place(0)
    barred = parts, jnp.where(sublane == 0, starts | 2, starts)
    before, stop = fold.tree([fold.moved(barred, d, 0) for d in range(SUBLANES - 1, 0, -1)])
    carry = tuple(ref[...] for ref in carry_refs)
    into = select(sublane == 0, carry, fold.step(carry, before, (stop & 1) != 0))
    for ref, x in zip(carry_refs, fold.step(into, parts, starts != 0)):
        ref[...] = fold.last(x, 0)
    return into


def over_groups(fold, into, pieces):
    """What comes into each group of a chunk, from what comes into the chunk: by the number of the group."""
    out = {}
    for g in fold.order(len(pieces)):
        out[g], (total, bits) = into, pieces[g]
        into = fold.step(into, total, bits != 0)
    return out
