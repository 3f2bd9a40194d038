"""`Segments`: constructors, accessors, head bits, and the layouts that hypothesis finds."""

import cases
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segkernels as sk

LENGTHS = st.lists(st.integers(0, 40) | st.sampled_from([0, 1, 8, 31, 32, 33, 64]), max_size=30)
few = hypothesis.settings(max_examples=40, deadline=None)


def starts(lengths):
    return np.cumsum([0, *lengths]).tolist()


def ids_of(lengths):
    return np.repeat(np.arange(len(lengths)), lengths)


@pytest.mark.parametrize(
    "convert", [list, np.asarray, jnp.asarray, lambda x: np.asarray(x, np.uint8), lambda x: np.asarray(x, ">i8")]
)
@pytest.mark.parametrize("lengths", cases.LAYOUTS.values(), ids=cases.LAYOUTS)
def test_constructors_agree(lengths, convert):
    if np.asarray(convert([0])).dtype == np.uint8 and sum(lengths) > 255:
        lengths = [100, 0, 155]
    convert_ints = lambda x: convert(x) if len(x) else np.zeros(0, int)
    made = {
        "offsets": sk.Segments.from_offsets(convert(starts(lengths))),
        "lengths": sk.Segments.from_lengths(convert_ints(lengths)),
        "ids": sk.Segments.from_ids(convert_ints(ids_of(lengths).tolist()), len(lengths)),
        "direct": sk.Segments(convert(starts(lengths))),
    }
    for segments in made.values():
        assert segments.offsets.tolist() == starts(lengths)
        assert segments.offsets.dtype == np.int32
        assert segments.num_segments == len(lengths)
        assert segments.lengths.tolist() == list(lengths)


@hypothesis.settings(max_examples=15, deadline=None)
@hypothesis.given(LENGTHS, st.integers(0, 40))
def test_accessors(lengths, dead):
    n = sum(lengths) + dead
    segments = sk.Segments.from_lengths(lengths)
    with jax.disable_jit():  # many shapes: compiling them all tells nothing
        check_accessors(segments, lengths, dead, n)


def check_accessors(segments, lengths, dead, n):
    assert segments.ids(n).tolist() == ids_of(lengths).tolist() + [len(lengths)] * dead
    assert segments.positions(n).tolist() == [i for k in lengths for i in range(k)] + [0] * dead
    want = np.zeros(n, bool)
    want[[a for a, k in zip(starts(lengths), lengths) if k]] = True
    for made in (segments.prepare(n), jax.jit(lambda o: sk.Segments.from_offsets(o).prepare(n))(segments.offsets)):
        bits = np.unpackbits(np.asarray(made.heads).view(np.uint8), bitorder="little")
        np.testing.assert_array_equal(bits[:n], want)
        assert not bits[n:].any()
        assert made.heads.dtype == np.uint32 and made.heads.shape == ((n + 31) // 32,)


@few
@hypothesis.given(st.lists(st.booleans(), max_size=70), st.booleans())
def test_from_flags(flags, ends):
    flags = np.array(flags, bool)
    want, run = [], 0
    for i, flag in enumerate(flags):
        if not ends and flag and i:
            want, run = [*want, run], 0
        run += 1
        if ends and flag:
            want, run = [*want, run], 0
    want = [*want, run] if run else want
    segments = sk.Segments.from_flags(flags, ends=ends)
    assert segments.lengths.tolist() == want
    padded = jax.jit(lambda f: sk.Segments.from_flags(f, num_segments=len(want) + 2, ends=ends).offsets)(jnp.asarray(flags))
    assert padded.tolist() == segments.offsets.tolist() + [len(flags)] * 2
    if len(want) > 1:  # rows of further segments are dead
        assert sk.Segments.from_flags(flags, num_segments=1, ends=ends).offsets.tolist() == [0, want[0]]


@few
@hypothesis.given(st.lists(st.integers(-2, 9), max_size=50))
def test_group(ids):
    ids = np.array(ids, np.int32)
    for make in (sk.Segments.group, jax.jit(sk.Segments.group, static_argnums=1)):
        order, segments = make(ids, 7)
        assert sorted(np.asarray(order).tolist()) == list(range(len(ids)))
        for k, rows in enumerate(np.split(np.asarray(order), np.asarray(segments.offsets[1:]))[:7]):
            assert rows.tolist() == np.flatnonzero(ids == k).tolist()


def test_from_ids_with_dead_rows_and_a_guessed_number():
    assert sk.Segments.from_ids([0, 0, 2, 5, 5], 3).offsets.tolist() == [0, 2, 2, 3]
    assert sk.Segments.from_ids([0, 0, 2]).offsets.tolist() == [0, 2, 2, 3]
    assert sk.Segments.from_ids([]).num_segments == 0
    traced = jax.jit(lambda ids: sk.Segments.from_ids(ids, 3).offsets)(jnp.array([0, 0, 2, 5, 5]))
    assert traced.tolist() == [0, 2, 2, 3]


def test_ids_past_32_bits_are_dead():
    ids = jnp.concatenate([jnp.array([0, 0, 1], jnp.uint32), jnp.full(9, 0xFFFFFFFF, jnp.uint32)])
    assert sk.Segments.from_ids(ids, 2).offsets.tolist() == [0, 2, 3]
    order, segments = sk.Segments.group(ids[::-1], 2)
    assert segments.offsets.tolist() == [0, 2, 3] and order[:3].tolist() == [10, 11, 9]


def test_rows():
    segments = sk.Segments.from_lengths([2, 0, 3])
    assert segments.rows(np.array([1, -1, 2])).tolist() == [1, 5, 4]
    assert segments.rows(jnp.array([[0, 1], [-1, -1], [2, 0]])).tolist() == [[0, 1], [5, 5], [4, 2]]


def test_the_callers_offsets_are_copied():
    offsets = np.array([0, 2, 5], np.int32)
    segments = sk.Segments.from_offsets(offsets)
    offsets[:] = 9
    assert segments.offsets.tolist() == [0, 2, 5]
    with pytest.raises(ValueError, match="read-only"):
        segments.offsets[0] = 1


def test_64_bit_offsets_with_x64():
    with jax.enable_x64(True):
        assert sk.Segments.from_lengths([2**31, 5]).offsets.tolist() == [0, 2**31, 2**31 + 5]
        x = jnp.arange(20.0)
        segments = sk.Segments.from_offsets(jnp.array([0, 3, 20]))
        assert segments.offsets.dtype == np.int64
        assert sk.segmented_sum(x, segments).tolist() == [3, 187]
        assert sk.segmented_cumsum(x, segments)[-1] == 187
        assert sk.segmented_cumsum(jnp.ones((20, 2)), segments, reverse=True)[0].tolist() == [3, 3]


@pytest.mark.parametrize("bad", [[0, 7, 3, 30], [0, 40, 50, 60], [-5, 3, 2, 9], [4, 3, 2, 1]], ids=str)
@pytest.mark.parametrize("row", cases.params(cases.FIRST_ROWS + [r for r in cases.OP_ROWS if r[0].broad and r[2] != "loop"],
                                             fast=lambda row, _: row[2] == "loop"))  # fmt: skip
def test_wrong_traced_offsets_touch_nothing_outside(row, bad, rng):
    """They are trusted, and may give wrong numbers; but shapes hold and a neighbouring buffer is never read."""
    op, options, walk = row
    operands = [jnp.asarray(x) for x in op.draw(rng, "float32", (3 if op.kind == "spread" else 21,))]
    if op.name in ("segmented_cumsum", "segmented_sum", "segmented_repeat", "segmented_max"):
        operands = [jnp.ones_like(x) for x in operands]
    f = jax.jit(lambda o, *x: op.run(x, sk.Segments.from_offsets(o), walk, 21, **options))
    out = np.asarray(f(jnp.array(bad, jnp.int32), *operands))
    assert out.shape == ((3,) if op.kind == "reduce" else (21,)) + operands[0].shape[1:]
    if op.broad and op.name not in ("segmented_linear_recurrence", "segmented_argmax"):
        out = np.where(np.isneginf(out), 0, out)  # of a segment without rows
        assert np.all((0 <= out) & (out <= 21))


def test_repr_takes_no_transfer():
    assert repr(sk.Segments.from_lengths([1, 2])) == "Segments(num_segments=2)"
    assert repr(sk.Segments.from_lengths([1, 2]).prepare(3)) == "Segments(num_segments=2, prepared)"
    assert repr(jax.tree.map(lambda _: None, sk.Segments.from_lengths([1]))) == "Segments(num_segments=?)"
