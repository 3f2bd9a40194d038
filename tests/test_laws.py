"""Laws that hold whatever the values: they need no oracle, and find what an oracle shares with the code."""

import cases
import jax.numpy as jnp
import numpy as np
import pytest

import segkernels as sk

LENGTHS = [5, 0, 40, 1, 0, 90, 7]
N = sum(LENGTHS)
SCANS = [row for row in cases.OP_ROWS if row[0].kind == "scan"]
REDUCTIONS = [row for row in cases.OP_ROWS if row[0].kind == "reduce"]
# Sums of eighths below 2**10 are exact in float32, in any order.
EIGHTHS = np.arange(-32, 32, dtype=np.float32) / 8


def call(row, x, lengths):
    op, options, walk = row
    return np.asarray(op.function(jnp.asarray(x), cases.segments_of(lengths), implementation=cases.config(walk), **options))


@pytest.mark.parametrize("row", cases.tiered(SCANS + REDUCTIONS))
def test_of_a_concatenation_is_the_concatenation(row, rng):
    x = rng.choice(EIGHTHS, N)
    parts = [call(row, part, [len(part)]) for part in np.split(x, np.cumsum(LENGTHS)[:-1])]
    np.testing.assert_array_equal(call(row, x, LENGTHS), np.concatenate(parts))


@pytest.mark.parametrize("row", cases.tiered(SCANS))
def test_reversal(row, rng):
    op, options, walk = row
    x = rng.choice(EIGHTHS, N)
    other = (op, dict(options, reverse=not options["reverse"]), walk)
    np.testing.assert_array_equal(call(row, x, LENGTHS), call(other, x[::-1], LENGTHS[::-1])[::-1])


@pytest.mark.parametrize(("row", "feature"), cases.with_features(SCANS + REDUCTIONS))
def test_a_poisoned_segment_leaves_the_bits_of_all_others(row, feature, rng):
    x = cases.draw(rng, "float32", (N, *feature))
    clean = call(row, x, LENGTHS)
    poisoned = x.copy()
    poisoned[45:46], poisoned[46:50], poisoned[60:] = np.nan, np.inf, -np.inf  # the segment of 1, and one of 90
    poisoned[136:] = x[136:]
    got = call(row, poisoned, LENGTHS)
    untouched = [0, 1, 2, 4, 6] if row[0].kind == "reduce" else [*range(45), *range(136, N)]
    assert got[untouched].tobytes() == clean[untouched].tobytes()


@pytest.mark.parametrize("row", cases.tiered(cases.OP_ROWS))
def test_twice_the_same_bits(row, rng):
    x = cases.draw(rng, "float32", (len(LENGTHS) if row[0].kind == "spread" else N,))
    assert call(row, x, LENGTHS).tobytes() == call(row, x, LENGTHS).tobytes()


@pytest.mark.parametrize("walk", ["loop", "associative"])
def test_last_of_the_scan_is_the_sum(walk, rng):
    x = rng.choice(EIGHTHS, N)
    config = cases.config(walk)
    scanned = np.asarray(sk.segmented_cumsum(jnp.asarray(x), cases.segments_of(LENGTHS), implementation=config))
    sums = np.asarray(sk.segmented_sum(jnp.asarray(x), cases.segments_of(LENGTHS), implementation=config))
    for end, n, total in zip(np.cumsum(LENGTHS), LENGTHS, sums):
        assert total == (scanned[end - 1] if n else 0)


def test_inclusive_minus_exclusive_is_the_input(rng):
    x = rng.choice(EIGHTHS, N)
    segments = cases.segments_of(LENGTHS)
    for reverse in (False, True):
        inclusive, exclusive = (sk.segmented_cumsum(x, segments, exclusive=e, reverse=reverse) for e in (False, True))
        np.testing.assert_array_equal(inclusive - exclusive, x)


def test_repeat_is_np_repeat_and_sum_takes_it_back(rng):
    x = rng.choice(EIGHTHS, len(LENGTHS))
    segments = cases.segments_of(LENGTHS)
    np.testing.assert_array_equal(sk.segmented_repeat(x, segments), np.repeat(x, LENGTHS))
    np.testing.assert_array_equal(sk.segmented_sum(sk.segmented_repeat(x, segments), segments), x * np.float32(LENGTHS))


@pytest.mark.parametrize("row", cases.tiered(SCANS))
@pytest.mark.parametrize("n_dead", [0, 1, 7, 100])
def test_dead_rows_change_nothing(row, n_dead, rng):
    x = cases.draw(rng, "float32", (N + n_dead,))
    got = call(row, x, LENGTHS)
    assert got[:N].tobytes() == call(row, x[:N], LENGTHS).tobytes()
    np.testing.assert_array_equal(got[N:], 0)
