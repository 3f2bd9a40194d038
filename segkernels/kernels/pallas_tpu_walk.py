"""The bodies of the TPU kernels: segmented scans in vector registers, one for flat values and one for columns.

A register holds one row in each of its places, 8 sublanes by 128 lanes. Each place walks rows of its own, a *chunk*, so that
a walk moves nothing between places. Both kernels go in three steps over a block that is in vector memory:

1. *Totals*: fold what comes after the last head of each group of rows, some groups of a chunk side by side.
2. *Carries*: scan the totals of the chunks, over places and from block to block. This alone moves data between places.
3. *Walk*: fold each group again from the carry that comes into it, and write every row.

A boundary is a select: what lies before a head never meets what follows it, and no identity is needed but as the answer of
an exclusive scan. The first live row is a head, so what the carry is at first, and dead rows, are met by no live row.
"""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from segkernels._algebra import Monoid
from segkernels.kernels.pallas_tpu_words import Words

SUBLANES, LANES = PLACES = (8, 128)
_APART = LANES + 1  # rows between transposed tiles: one place of 8 tiles is a load from 8 banks
_WINDOW = 16  # lanes of a window: 15 rolls and then 8 go in parallel, where a scan by doubling waits for 7 in turn


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


# Flat values ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Flat:
    """The kernel for flat values, seen as ``[rows, 128]``.

    A chunk is `tiles` rows of 128 words, and a part of a block is 1,024 chunks: word ``(sublane, lane, place)`` of it is row
    ``(sublane * 128 + lane) * tiles + place // 128``. Tiles of 128 rows are transposed on their way in and out, so that a
    place of all chunks is one register.

    Attributes:
      fold, words: how to fold, and how values stand in 32-bit words.
      tiles: rows of words of a chunk.
      parts: parts of a block. From the second one on, the carries of one are made beside the totals of the next.
    """

    fold: Fold
    words: Words
    tiles: int
    parts: int

    @property
    def groups(self):
        """Groups of 32 values in a chunk."""
        return self.tiles * self.words.per_word * LANES // 32

    @property
    def values(self):
        """Values of a block."""
        return self.parts * self.groups * 32 * SUBLANES * LANES

    def scratch(self):
        """The vector memory it works in: transposed values, transposed results, totals of groups, carries."""
        tiles = (self.parts * self.tiles * SUBLANES * _APART, LANES)
        held = self.fold.held
        word = [self.words.dtype_of(dtype) for dtype in held]
        return [
            [pltpu.VMEM(tiles, dtype) for dtype in word],
            pltpu.VMEM(tiles, word[-1]),
            [pltpu.VMEM((self.parts * self.groups * SUBLANES, LANES), dtype) for dtype in held],
            [pltpu.VMEM(PLACES, dtype) for dtype in held],
        ]

    def __call__(self, value_refs, bits_ref, out_ref, in_refs, made_ref, total_refs, carry_refs):
        """Scan a block: words of values and bits to words of results."""
        fold, words, tiles, halves = self.fold, self.words, self.tiles, range(self.words.per_word)
        at = lambda part, tile: (part * tiles + tile) * SUBLANES * _APART
        rows = lambda part, tile, q: pl.ds((part * SUBLANES + q) * LANES * tiles + tile, LANES, stride=tiles)
        of_group = lambda part, g: pl.ds((part * self.groups + g) * SUBLANES, SUBLANES)
        groups_of = lambda tile, j: [(tile * len(halves) + h) * 4 + j for h in halves]  # 4 of 32 in 128 lanes

        def load(part, tile, place):
            """The values at one place of every chunk: for each value of a word its parts."""
            refs = [ref[pl.ds(at(part, tile) + place, SUBLANES, stride=_APART), :] for ref in in_refs]
            return tuple(zip(*map(words.unpack, refs, fold.dtypes)))

        def totals(part):
            for tile in fold.order(tiles):
                for ref, to in zip(value_refs, in_refs):
                    for q in range(SUBLANES):
                        to[pl.ds(at(part, tile) + q * _APART, LANES), :] = ref[rows(part, tile, q), :].T
                for j in range(4):
                    groups = groups_of(tile, j)
                    starts = [fold.last_start(bits_ref[of_group(part, g), :]) for g in groups]

                    def step(b, states, part=part, tile=tile, j=j, starts=starts):
                        values = load(part, tile, 32 * j + b)
                        return tuple(select(fold.after(b, start), fold.combine(state, x), x)
                                     for state, x, start in zip(states, values, starts))  # fmt: skip

                    first = load(part, tile, 32 * j + fold.order(32)[0])
                    for g, state in zip(groups, fold.loop(1, 32, step, first)):
                        for ref, x in zip(total_refs, state):
                            ref[of_group(part, g), :] = x

        def carries(part):
            pieces = [(tuple(ref[of_group(part, g), :] for ref in total_refs), bits_ref[of_group(part, g), :])
                      for g in range(self.groups)]  # fmt: skip
            chunk = functools.reduce(fold.join, [pieces[g] for g in fold.order(self.groups)])
            (before, stop), sublanes = over_lanes(fold, chunk)
            into = over_sublanes(fold, sublanes, carry_refs)
            into = select(fold.place(1) == 0, into, fold.step(into, before, stop != 0))
            return over_groups(fold, into, pieces)

        def walk(part, into):
            for tile in fold.order(tiles):
                for j in range(4):
                    groups = groups_of(tile, j)
                    bits = [bits_ref[of_group(part, g), :] for g in groups]

                    def step(b, states, part=part, tile=tile, j=j, bits=bits):
                        after, made = [], []
                        for state, x, word in zip(states, load(part, tile, 32 * j + b), bits):
                            starts = (word & lax.shift_left(np.int32(1), b)) != 0
                            after.append(fold.step(state, x, starts))
                            made.append(jnp.where(starts, fold.empty, state[-1]) if fold.exclusive else after[-1][-1])
                        to = pl.ds(at(part, tile) + 32 * j + b, SUBLANES, stride=_APART)
                        made_ref[to, :] = words.pack(made, fold.dtypes[-1])
                        return tuple(after)

                    fold.loop(0, 32, step, tuple(into[g] for g in groups))
                for q in range(SUBLANES):
                    out_ref[rows(part, tile, q), :] = made_ref[pl.ds(at(part, tile) + q * _APART, LANES), :].T

        waiting = None
        for part in fold.order(self.parts):
            totals(part)
            if waiting is not None:
                walk(waiting, carries(waiting))
            waiting = part
        walk(waiting, carries(waiting))


# Columns -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Columns:
    """The kernel for columns ``[n, f]``, 128 of them at a time, one in each lane.

    Each sublane walks a chunk of consecutive rows, so nothing is transposed. The rows of a word follow each other.

    Attributes:
      fold, words: how to fold, and how values stand in 32-bit words.
      steps: rows of words of a chunk: 4 more than a multiple of 8, to load them from 8 banks.
    """

    fold: Fold
    words: Words
    steps: int
    group = 20  # rows of a group

    @property
    def groups(self):
        """Groups of a chunk."""
        return self.steps * self.words.per_word // self.group

    @property
    def rows(self):
        """Rows of a block."""
        return SUBLANES * self.steps * self.words.per_word

    def scratch(self):
        """The vector memory it works in: carries."""
        return [[pltpu.VMEM(PLACES, dtype) for dtype in self.fold.held]]

    def __call__(self, value_refs, bits_ref, out_ref, carry_refs):
        """Scan a block: words of values and bits to words of results."""
        fold, words, per_word = self.fold, self.words, self.words.per_word
        steps = self.group // per_word
        rows = lambda g, step: pl.ds(g * steps + step, SUBLANES, stride=self.steps)
        bits = [jnp.broadcast_to(bits_ref[:, g : g + 1], PLACES) for g in range(self.groups)]

        def load(g, step):
            return list(zip(*[words.unpack(ref[rows(g, step), :], dtype) for ref, dtype in zip(value_refs, fold.dtypes)]))

        pieces = {}
        for g in fold.order(self.groups):
            start = fold.last_start(bits[g])

            def total(step, state, g=g, start=start):
                values = load(g, step)
                for h in fold.order(per_word):
                    goes_on = fold.after(step * per_word + h, start)
                    state = values[h] if state is None else select(goes_on, fold.combine(state, values[h]), values[h])
                return state

            pieces[g] = fold.loop(1, steps, total, total(fold.order(steps)[0], None)), bits[g]
        chunk = functools.reduce(fold.join, [pieces[g] for g in fold.order(self.groups)])
        into = over_sublanes(fold, (chunk[0], jnp.where(chunk[1] != 0, 1, 0)), carry_refs)
        into = over_groups(fold, into, [pieces[g] for g in range(self.groups)])
        for g in fold.order(self.groups):

            def walk(step, state, g=g):
                values, made = load(g, step), [None] * per_word
                for h in fold.order(per_word):
                    starts = (bits[g] & lax.shift_left(np.int32(1), step * per_word + h)) != 0
                    before, state = state, fold.step(state, values[h], starts)
                    made[h] = jnp.where(starts, fold.empty, before[-1]) if fold.exclusive else state[-1]
                out_ref[rows(g, step), :] = words.pack(made, fold.dtypes[-1])
                return state

            fold.loop(0, steps, walk, into[g])
