"""The bodies of the TPU kernels: segmented scans in vector registers, one for flat values and one for columns.

A register holds one row in each of its places, 8 sublanes by 128 lanes. Each place walks rows of its own, a *chunk*, so that
a walk moves nothing between places. Both kernels go in three steps over a block that is in vector memory:

1. *Totals*: fold what comes after the last head of each group of rows, some groups of a chunk side by side.
2. *Carries*: scan the totals of the chunks, over places and from block to block. This alone moves data between places.
3. *Walk*: fold each group again from the carry that comes into it, and write every row.
"""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from segkernels.kernels.pallas_tpu_fold import LANES, PLACES, SUBLANES, Fold, over_groups, over_lanes, over_sublanes, select
from segkernels.kernels.pallas_tpu_words import Words

_APART = LANES + 1  # rows between transposed tiles: one place of 8 tiles is a load from 8 banks


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
    per_row = LANES  # values

    @property
    def groups(self):
        """Groups of 32 values in a chunk."""
        return self.tiles * self.words.per_word * LANES // 32

    @property
    def rows(self):
        """Rows of a block, of 128 values each."""
        return self.parts * self.tiles * self.words.per_word * SUBLANES * LANES

    @property
    def plan_rows(self):
        """Rows of its bits."""
        return self.rows // 32

    def results(self, scratch):
        """Where the words of results are, transposed."""
        return scratch[1]

    def rows_of(self, x):
        """Values ``[n, 1]`` as rows: without a copy if `n` is a multiple of 1,024 words."""
        return jnp.pad(x[:, 0], (0, -x.shape[0] % (SUBLANES * LANES * self.words.per_word))).reshape(-1, LANES)

    def place_of(self, row):
        """Where rows of a block are in `results`: the row there, its lane, and the shift that `Words.one` takes."""
        row, place = row // LANES, row % LANES
        word, h = row // self.words.per_word, row % self.words.per_word
        chunk, tile = word // self.tiles, word % self.tiles
        part, chunk = chunk // (SUBLANES * LANES), chunk % (SUBLANES * LANES)
        sublane, lane = chunk // LANES, chunk % LANES
        return ((part * self.tiles + tile) * SUBLANES + sublane) * _APART + place, lane, self.words.shift(h)

    def scratch(self, stays=False):
        """The vector memory it works in: transposed values, transposed results, totals of groups, carries."""
        del stays
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
        """Scan a block: words of values and bits to words of results, which stay in `results` if `out_ref` is None."""
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
                for q in range(SUBLANES) if out_ref is not None else ():
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
    per_row = 1
    plan_rows = SUBLANES

    @property
    def groups(self):
        """Groups of a chunk."""
        return self.steps * self.words.per_word // self.group

    @property
    def rows(self):
        """Rows of a block."""
        return SUBLANES * self.steps * self.words.per_word

    def rows_of(self, x):
        """Values ``[n, f]`` as rows, which they are."""
        return x

    def place_of(self, row):
        """As that of `Flat`; they are in every lane."""
        return row // self.words.per_word, 0, self.words.shift(row % self.words.per_word)

    def scratch(self, stays=False):
        """The vector memory it works in: results that do not go out, carries."""
        results = pltpu.VMEM((SUBLANES * self.steps, LANES), self.words.dtype_of(self.fold.held[-1]))
        return [results] * stays + [[pltpu.VMEM(PLACES, dtype) for dtype in self.fold.held]]

    def results(self, scratch):
        """Where the words of results are that do not go out."""
        return scratch[0]

    def __call__(self, value_refs, bits_ref, out_ref, *scratch):
        """Scan a block: words of values and bits to words of results, which stay in `results` if `out_ref` is None."""
        out_ref, carry_refs = self.results(scratch) if out_ref is None else out_ref, scratch[-1]
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
