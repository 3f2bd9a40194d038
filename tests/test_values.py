"""Every operation, option, walk, dtype and layout against the per-segment NumPy loop."""

import cases
import jax.numpy as jnp
import numpy as np
import pytest

import segkernels as sk


def draw(rng, op, dtype, feature=(), n=cases.ROWS, s=cases.SEGMENTS):
    return [x.copy() for x in op.draw(rng, dtype, (s if op.kind == "spread" else n, *feature))]


def dtypes_of(row):
    """All for the first options by loops; a few where no other code is run."""
    op, options, walk = row
    if walk == "loop" and options is op.options[0]:
        return op.dtypes
    few = ("float32", "int8") if walk == "loop" else ("float32", "bfloat16", "int8") if cases.is_broad(row) else ("float32",)
    few = cases.NATIVE_DTYPES if walk == "native" else few
    return [dtype for dtype in few if dtype in op.dtypes]


def fast_dtype(row, dtype):
    op, options, walk = row
    if walk == "native":
        return dtype == "float32" or options is op.options[0]
    if walk == "loop":
        return dtype == "float32" or (cases.is_first(row) and dtype in (cases.FAST_DTYPES if op.broad else cases.FASTEST_DTYPES))
    return op.broad and options is op.options[0] and dtype == "float32"


@pytest.mark.parametrize(("row", "dtype"), [
    pytest.param(row, dtype, id=f"{cases.row_id(row)}-{dtype}", marks=() if fast_dtype(row, dtype) else pytest.mark.slow)
    for row in cases.OP_ROWS if row[2] in ("loop", "native") or row[1] is row[0].options[0] or row[0].name == "segmented_cumsum"
    for dtype in dtypes_of(row)
])  # fmt: skip
def test_every_layout(row, dtype, rng):
    with cases.scope(dtype):
        for lengths in cases.LAYOUTS.values():
            operands = draw(rng, row[0], dtype)
            if row[0].kind != "spread":
                for x in operands:
                    x[sum(lengths) :] = cases.poison(x.dtype)
            cases.check(row, operands, lengths, cases.SEGMENTS)


@pytest.mark.parametrize(("row", "feature"), [
    *cases.params([row for row in cases.FIRST_ROWS if not row[0].broad], [(3,), (0,)]),
    *cases.params([row for row in cases.THIN_ROWS if row[0].broad], [(3,), (1,), (2, 5), (40,), (100,), (0,), (2, 0)],
                  cases.is_broad),
])  # fmt: skip
def test_features(row, feature, rng):
    for dtype in ("float32", "bfloat16") if "bfloat16" in row[0].dtypes else ("float32",):
        cases.check(row, draw(rng, row[0], dtype, feature), cases.LAYOUTS["mixed"], cases.SEGMENTS)


@pytest.mark.parametrize(("row", "n"), [
    *cases.params([row for row in cases.FIRST_ROWS if not row[0].broad], [0, 33]),
    *cases.params([row for row in cases.THIN_ROWS if row[0].broad and row[2] == "loop"],
                  [0, 1, 2, 7, 8, 9, 15, 31, 32, 33, 63, 100], lambda row, n: cases.is_first(row) or n == 33),
    *cases.params([row for row in cases.THIN_ROWS if row[2] != "loop"], [0, 1, 33], lambda row, n: False),
])  # fmt: skip
def test_every_size(row, n, rng):
    for feature in ((), (2,)) if row[2] == "loop" and row[0].broad else ((),):
        lengths = [n // 3, 0, n - n // 3 - n // 5]
        operands = draw(rng, row[0], "float32", feature, n, 3)
        if row[0].kind != "spread":
            for x in operands:
                x[sum(lengths) :] = cases.poison(x.dtype)
        cases.check(row, operands, lengths, n=n)


@pytest.mark.parametrize(("name", "dtype", "feature"), [
    *(("repeat", dtype, ()) for dtype in ("float32", "bfloat16", "int8", "bool", "complex64")),
    ("repeat", "float32", (3,)), ("repeat", "bfloat16", (40,)), ("softmax", "float32", ()), ("standardize", "bfloat16", (3,)),
    ("argmax", "float32", (3,)), ("sum", "int8", ()),
])  # fmt: skip
def test_few_long_segments(name, dtype, feature, rng):
    """Segments so long on average that they are walked one by one, up to the last row of the buffer."""
    op = cases.BY_NAME[name]
    for lengths in ([256], [100, 100, 56], [3, 250, 3], [1, 0, 250, 0, 5], [31, 1, 32, 33, 31, 64, 63], [200], [0, 17, 0]):
        cases.check((op, {}, "loop"), draw(rng, op, dtype, feature, s=7), lengths, 7)


@pytest.mark.parametrize("row", cases.params([r for r in cases.THIN_ROWS if r[0].kind != "spread"], fast=cases.is_first))
def test_nan_and_inf_stay_in_their_segment(row, rng):
    lengths = [5, 40, 0, 3, 60, 1, 50]
    for value in (np.nan, np.inf, -np.inf):
        operands = draw(rng, row[0], "float32")
        operands[0][[3, 6, 7, 46, 100]] = value
        cases.check(row, operands, lengths, cases.SEGMENTS)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reverse", [False, True])
def test_loop_bits_are_those_of_np_cumsum(dtype, reverse, rng):
    """Wherever a segment stands and whatever its neighbours hold, its bits are those of NumPy on it alone."""
    with cases.scope(dtype):
        one = cases.draw(rng, dtype, (77,)) * 10.0 ** rng.integers(-3, 4, 77).astype(dtype)
        one[0] = -0.0
        for place in [*range(0, 70), 200, 500]:
            lengths = [place // 3, place - place // 3, 77, 30, 0, 600 - place]
            x = np.concatenate([cases.draw(rng, dtype, (place,)) * np.nan, one, cases.draw(rng, dtype, (630 - place,)) * 1e30])
            got = sk.segmented_cumsum(jnp.asarray(x), cases.segments_of(lengths), reverse=reverse, implementation="xla")
            want = np.cumsum(one[::-1])[::-1] if reverse else np.cumsum(one)
            assert np.asarray(got)[place : place + 77].tobytes() == np.ascontiguousarray(want).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_loop_bits_of_features(dtype, rng):
    with cases.scope(dtype):
        x = cases.draw(rng, dtype, (100, 70))
        got = sk.segmented_cumsum(jnp.asarray(x), cases.segments_of([30, 70]), implementation="xla")
        want = np.concatenate([np.cumsum(x[:30], 0), np.cumsum(x[30:], 0)])
        assert np.asarray(got).tobytes() == want.tobytes()


@pytest.mark.parametrize("walk", ["loop", "associative"])
@pytest.mark.parametrize("feature", [(), (2,)], ids=str)
def test_long_sums_keep_their_accuracy(walk, feature):
    x = np.full((200_000, *feature), np.float32(0.1))
    (got,) = sk.segmented_sum(jnp.asarray(x), cases.segments_of([200_000]), implementation=cases.config(walk))
    np.testing.assert_allclose(got, np.sum(x.astype(np.float64), axis=0), rtol=2e-6)


def test_sums_of_two_to_the_24_ones():
    n = 1 << 24
    segments = cases.segments_of([n])
    assert sk.segmented_sum(jnp.ones(n, jnp.float32), segments)[0] == n
    assert sk.segmented_sum(jnp.ones(n, jnp.float16), segments, dtype=jnp.float32)[0] == n
    assert sk.segmented_sum(jnp.ones(n, jnp.float16), segments)[0] == jnp.inf  # the type ends at 65,504
    assert sk.segmented_mean(jnp.ones(n, jnp.float16), segments)[0] == 1  # summed in float32
    assert sk.segmented_cumsum(jnp.ones(n, jnp.float32), segments)[-1] == n
    np.testing.assert_allclose(sk.segmented_logsumexp(jnp.zeros(n), segments)[0], np.log(n), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["cumsum", "sum", "mean", "softmax", "cumlogsumexp", "linear_recurrence"])
def test_narrow_floats_are_rounded_once(name, dtype, rng):
    """16-bit results are those in float32, rounded."""
    op = cases.BY_NAME[name]
    operands = [jnp.asarray(x) for x in op.draw(rng, dtype, (cases.ROWS,))]
    segments = cases.segments_of([100, 0, 150], cases.SEGMENTS)
    got = op.run(operands, segments)
    want = op.run([x.astype(jnp.float32) for x in operands], segments).astype(got.dtype)
    np.testing.assert_array_equal(got.astype(jnp.float32), want.astype(jnp.float32))
