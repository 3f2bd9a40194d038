"""Every operation, option, walk, dtype and layout against the per-segment NumPy loop."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segkernels as sk


def run(row, x, lengths, num_segments=None, n=None):
    op, options, walk = row
    segments = cases.segments_of(lengths, num_segments)
    extra = dict(size=n) if op.kind == "spread" else {}
    return op.function(jnp.asarray(x), segments, implementation=cases.config(walk), **options, **extra)


def result_dtype(op, x):
    like = {"scan": jnp.cumsum, "reduce": jnp.sum, "spread": lambda v: v}[op.kind]
    return jax.eval_shape(like, jax.ShapeDtypeStruct((1,), x.dtype)).dtype


def check(row, x, lengths, dtype, num_segments=None, n=cases.ROWS):
    op, options, _ = row
    got = run(row, x, lengths, num_segments, n)
    assert got.dtype == result_dtype(op, x)
    promoted = np.asarray(x).astype(got.dtype) if got.dtype.kind in "iu" else np.asarray(x)
    want, size = cases.expected(op, options, promoted, lengths, n)
    if op.kind == "reduce":
        empty = np.zeros((got.shape[0] - len(lengths), *want.shape[1:]), want.dtype)
        want, size = np.concatenate([want, empty]), np.concatenate([size, np.abs(empty)])
    cases.assert_close(got, want, size, dtype)


def draw(rng, op, dtype, feature=()):
    return cases.draw(rng, dtype, (cases.SEGMENTS if op.kind == "spread" else cases.ROWS, *feature))


@pytest.mark.parametrize(("row", "dtype"), cases.crossed(cases.OP_ROWS, cases.DTYPES, fast=("float32", "bfloat16", "int8")))
def test_every_layout(row, dtype, rng):
    with cases.scope(dtype):
        for lengths in cases.LAYOUTS.values():
            x = draw(rng, row[0], dtype)
            if row[0].kind != "spread":
                x[sum(lengths) :] = cases.poison(dtype)
            check(row, x, lengths, dtype, cases.SEGMENTS)


@pytest.mark.parametrize(("row", "feature"), cases.crossed(
    cases.OP_ROWS, [(1,), (3,), (2, 5), (40,), (100,), (0,), (2, 0)], fast=((3,), (0,))))  # fmt: skip
def test_features(row, feature, rng):
    for dtype in ("float32", "bfloat16"):
        check(row, draw(rng, row[0], dtype, feature), cases.LAYOUTS["mixed"], dtype, cases.SEGMENTS)


@pytest.mark.parametrize(("row", "n"), cases.crossed(
    cases.OP_ROWS, [0, 1, 2, 7, 8, 9, 15, 31, 32, 33, 63, 100], fast=(0, 1, 33)))  # fmt: skip
def test_every_size(row, n, rng):
    for feature in ((), (2,)) if row[2] == "loop" else ((),):
        lengths = [n // 3, 0, n - n // 3 - n // 5]
        x = cases.draw(rng, "float32", (3 if row[0].kind == "spread" else n, *feature))
        if row[0].kind != "spread":
            x[sum(lengths) :] = np.nan
        check(row, x, lengths, "float32", n=n)


@pytest.mark.parametrize("row", cases.tiered([r for r in cases.OP_ROWS if r[0].kind != "spread"]))
def test_nan_and_inf_stay_in_their_segment(row, rng):
    lengths = [5, 40, 0, 3, 60, 1, 50]
    for value in (np.nan, np.inf, -np.inf):
        x = cases.draw(rng, "float32", (cases.ROWS,))
        x[[3, 6, 7, 46, 100]] = value
        with np.errstate(invalid="ignore"):
            check(row, x, lengths, "float32", cases.SEGMENTS)


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
    assert sk.segmented_cumsum(jnp.ones(n, jnp.float32), segments)[-1] == n


@pytest.mark.parametrize("form", ["list", "ragged", "flat", "numpy"])
def test_options_of_sum(form):
    lengths, x = [2, 0, 3], np.arange(5, dtype=np.float32)
    segments = cases.segments_of(lengths)
    args = {
        "list": (np.split(x, [2, 2]),),
        "ragged": (sk.Ragged(x, segments),),
        "flat": (jnp.asarray(x), segments),
        "numpy": (x, segments),
    }[form]
    np.testing.assert_array_equal(sk.segmented_sum(*args, empty=-7.5), [1, -7.5, 9])
    np.testing.assert_array_equal(sk.segmented_sum(*args, empty=np.nan), [1, np.nan, 9])
    assert sk.segmented_sum(*args, dtype=jnp.int32).dtype == jnp.int32
    assert sk.segmented_cumsum(*args, dtype=jnp.bfloat16)[0].dtype == (jnp.bfloat16)
