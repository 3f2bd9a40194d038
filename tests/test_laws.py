"""Laws that hold whatever the values: they need no oracle, and find what an oracle shares with the code."""

import bounds
import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segkernels as sk

LENGTHS = [5, 0, 40, 1, 0, 90, 7]
N = sum(LENGTHS)
FROM_ROWS = [row for row in cases.THIN_ROWS if row[0].kind != "spread"]
SCANS = [row for row in FROM_ROWS if row[0].kind == "scan"]
# Sums of eighths below 2**10 are exact in float32, in any order.
EIGHTHS = np.arange(-32, 32, dtype=np.float32) / 8


def call(row, operands, lengths, **options):
    op, first, walk = row
    operands = [jnp.asarray(x) for x in operands]
    rows = operands[0].shape[0]
    return np.asarray(op.run(operands, cases.segments_of(lengths), walk, rows, **dict(first, **options)))


def draw(rng, op, n=N, feature=()):
    """Operands of which no rounding depends on an order: eighths, and signs for what is multiplied."""
    like = op.draw(rng, "float32", (n, *feature))
    values = [rng.choice(EIGHTHS, x.shape) if x.dtype != bool else x for x in like]
    if op.draw in (cases.with_gates, cases.matrices) or "prod" in op.name:
        values = [np.sign(x) if x.dtype != bool else x for x in values]
    if op.draw is cases.matrices:  # permutations, turned
        values = [np.float32(rng.choice([-1, 1], (n, *feature)))[..., None, None] * np.float32([[0, 1], [1, 0]])]
    return values


def near(got, want, row):
    """Equal, or for what has roundings nearly so."""
    if row[0].size in (bounds.exact, bounds.of_magnitudes) and "mean" not in row[0].name:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row", cases.params(FROM_ROWS, fast=cases.is_first_of_its_kind))
def test_of_a_concatenation_is_the_concatenation(row, rng):
    op, options, walk = row
    operands = draw(rng, op)
    run = lambda *lists: op.call(op.function, lists, None, **options, implementation=cases.config(walk))
    edges = np.cumsum(LENGTHS)[:-1]
    parts = [run(*([part] for part in each))[0] for each in zip(*(np.split(x, edges) for x in operands))]
    near(call(row, operands, LENGTHS), np.stack(parts) if op.kind == "reduce" else np.concatenate(parts), row)


@pytest.mark.parametrize("row", cases.params(SCANS, fast=cases.is_first))
def test_reversal(row, rng):
    operands = draw(rng, row[0])
    turned = call(row, [x[::-1] for x in operands], LENGTHS[::-1], reverse=not row[1]["reverse"])[::-1]
    near(call(row, operands, LENGTHS), turned, row)


@pytest.mark.parametrize(("row", "feature"), [
    *cases.params(FROM_ROWS, [()], cases.is_first),
    *cases.params(cases.BROAD_ROWS[:-1], [(2,)]),
])  # fmt: skip
def test_a_poisoned_segment_leaves_the_bits_of_all_others(row, feature, rng):
    operands = row[0].draw(rng, "float32", (N, *feature))
    clean = call(row, operands, LENGTHS)
    poisoned = [x.copy() for x in operands]
    for x, before in zip(poisoned, operands):
        if x.dtype != bool:
            x[45:46], x[46:50], x[60:] = np.nan, np.inf, -np.inf  # the segment of 1, and one of 90
            x[136:] = before[136:]
    got = call(row, poisoned, LENGTHS)
    untouched = [0, 1, 2, 4, 6] if row[0].kind == "reduce" else [*range(45), *range(136, N)]
    assert got[untouched].tobytes() == clean[untouched].tobytes()


@pytest.mark.parametrize("row", cases.params(cases.THIN_ROWS, fast=cases.is_first))
def test_twice_the_same_bits(row, rng):
    operands = row[0].draw(rng, "float32", (len(LENGTHS) if row[0].kind == "spread" else N,))
    operands = [jnp.asarray(x) for x in operands]
    once, again = (np.asarray(row[0].run(operands, cases.segments_of(LENGTHS), row[2], N, **row[1])) for _ in range(2))
    assert once.tobytes() == again.tobytes()


PAIRS = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min", "cumlogsumexp": "logsumexp"}


@pytest.mark.parametrize("walk", ["loop", pytest.param("associative", marks=pytest.mark.slow)])
@pytest.mark.parametrize("scan", PAIRS)
def test_last_of_the_scan_is_the_reduction(scan, walk, rng):
    op = cases.BY_NAME[scan]
    operands = draw(rng, op)
    scanned = call((op, op.options[0], walk), operands, LENGTHS)
    reduction = cases.BY_NAME[PAIRS[scan]]
    reduced = call((reduction, {}, walk), operands, LENGTHS)
    full = np.array(LENGTHS) > 0
    lasts = scanned[np.cumsum(LENGTHS)[full] - 1]
    near(lasts, reduced[full], (op, {}, walk))
    np.testing.assert_array_equal(sk.segmented_last(scanned, cases.segments_of(LENGTHS))[full], lasts)


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


def test_an_order_sorts_and_an_index_finds(rng):
    x = rng.choice(EIGHTHS, N)
    segments = cases.segments_of(LENGTHS)
    heads = np.repeat(np.cumsum([0, *LENGTHS[:-1]]), LENGTHS)
    np.testing.assert_array_equal(x[heads + sk.segmented_argsort(x, segments)], sk.segmented_sort(x, segments))
    rows = segments.rows(sk.segmented_argmax(x, segments))
    np.testing.assert_array_equal(np.append(x, -np.inf)[rows], sk.segmented_max(x, segments))


def test_softmax_is_the_exponential_of_log_softmax_and_sums_to_one(rng):
    x = cases.draw(rng, "float32", (N,)) * np.float32(30)
    segments = cases.segments_of(LENGTHS)
    y = sk.segmented_softmax(x, segments)
    np.testing.assert_allclose(y, np.exp(sk.segmented_log_softmax(x, segments)), rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(sk.segmented_sum(y, segments), np.array(LENGTHS) > 0, rtol=1e-5)


def test_a_recurrence_with_gates_of_one_is_a_sum_and_of_zero_is_nothing(rng):
    x = rng.choice(EIGHTHS, N)
    segments = cases.segments_of(LENGTHS)
    for gate, want in ((1, sk.segmented_cumsum(x, segments)), (True, sk.segmented_cumsum(x, segments)), (0, x), (False, x)):
        np.testing.assert_array_equal(sk.segmented_linear_recurrence(gate, x, segments), want)


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="the compiler of JAX before 0.12 rounds the first row by its place")
@pytest.mark.parametrize("machine", ["xla", *cases.NATIVE])
def test_bits_of_a_recurrence_from_a_state_do_not_depend_on_the_place(machine, rng):
    gates, x, state = (rng.standard_normal((rows, 65)).astype(np.float32) for rows in (9, 9, 1))

    def run(copies):
        segments = sk.Segments.from_lengths([9] * copies)
        operands = (jnp.tile(y, (copies, 1)) for y in (gates, x))
        return np.asarray(sk.segmented_linear_recurrence(*operands, segments, initial=jnp.tile(state, (copies, 1)),
                                                         implementation=machine))  # fmt: skip

    for copies in (2, 3, 20):
        np.testing.assert_array_equal(run(copies), np.tile(run(1), (copies, 1)))


def test_boolean_gates_drop_a_nan():
    h = sk.segmented_linear_recurrence([np.array([True, True, False])], [np.array([1.0, np.nan, 3.0])])
    np.testing.assert_array_equal(h[0], [1, np.nan, 3])


@pytest.mark.parametrize(("row", "n_dead"), cases.params(SCANS, [1, 7, 100], lambda row, n: cases.is_first(row) and n == 7))
def test_dead_rows_change_nothing(row, n_dead, rng):
    operands = row[0].draw(rng, "float32", (N + n_dead,))
    got = call(row, operands, LENGTHS)
    assert got[:N].tobytes() == call(row, [x[:N] for x in operands], LENGTHS).tobytes()
    np.testing.assert_array_equal(got[N:], 0)
