"""The list call: dtypes, ownership, and how often it compiles."""

import cases
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import segkernels as sk
from segkernels import _compat, _host


def to_jax(arrays):
    return _compat.device_arrays(arrays, jax.devices()[0])


def lists(rng, total, count):
    """`count` float32 arrays of random lengths, empty ones too, with `total` rows of eighths: sums are exact in any order."""
    cuts = np.sort(rng.integers(0, total + 1, count - 1))
    return np.split(rng.integers(-32, 32, total).astype(np.float32) / 8, cuts)


def is_cumsum(got, arrays):
    return all(np.asarray(y).tobytes() == np.cumsum(np.asarray(x)).tobytes() for y, x in zip(got, arrays, strict=True))


@pytest.mark.parametrize(("kind", "times"), [
    ("numpy", 1000), ("jax", 30), pytest.param("jax", 1000, marks=pytest.mark.slow)])  # fmt: skip
def test_a_thousand_lists_of_one_bucket_compile_once(kind, times, rng, counter):
    for _ in range(times):
        arrays = lists(rng, int(rng.integers(4097, 5120)), int(rng.integers(1, 5001)))
        got = sk.segmented_cumsum(arrays if kind == "numpy" else to_jax(arrays))
        assert len(got) == len(arrays)
    assert is_cumsum(got, arrays)
    assert counter.compiles == 1


@pytest.mark.parametrize("kind", ["numpy", "jax"])
def test_one_compile_for_each_bucket(kind, rng, counter):
    totals = rng.integers(1000, 8000, 50)
    for total in totals:
        arrays = lists(rng, total, 20)
        assert is_cumsum(sk.segmented_cumsum(arrays if kind == "numpy" else to_jax(arrays)), arrays)
    assert counter.compiles == len({_host.row_bucket(n) for n in totals}) <= 13
    before = counter.compiles
    sizes = {(_host.row_bucket(n), _host.row_bucket(k)) for n in (1500, 3000) for k in (3, 100, 200, 300)}
    for n in (1500, 3000):
        for k in (3, 100, 200, 300):
            sk.segmented_sum(lists(rng, n, k))
    assert counter.compiles - before == len(sizes)


@pytest.mark.parametrize("kind", ["numpy", "jax"])
def test_ten_thousand_arrays_trace_nothing_of_their_own(kind, rng, counter):
    small, large = lists(rng, 50_000, 10), lists(rng, 50_000, 10_000)
    if kind == "jax":
        small, large = to_jax(small), to_jax(large)
    sk.segmented_cumsum(small)
    counter.reset()
    got = sk.segmented_cumsum(large)
    assert (counter.compiles, counter.traces) == (0, 0)
    assert is_cumsum(got, large)


FROM_ROWS = [op for op in cases.OPS if op.kind != "spread"]


@pytest.mark.parametrize("op", FROM_ROWS, ids=lambda op: op.name)
def test_every_form_gives_the_same(op, rng, counter):
    """Lists of NumPy and of JAX arrays, a `Ragged`, flat JAX and NumPy values, and a traced list."""
    lengths = [3, 0, 17, 1]
    flat = [x.copy() for x in op.draw(rng, "float32", (sum(lengths), 2))]
    segments, edges = sk.Segments.from_lengths(lengths), np.cumsum(lengths)[:-1]
    arrays = [np.split(x, edges) for x in flat]
    before = [x.copy() for x in flat]
    run = lambda operands, segments=None: op.call(op.function, operands, segments, **op.options[0])
    joined = lambda y: np.asarray(y if op.kind == "reduce" else np.concatenate(list(map(np.asarray, y))))

    got = run(arrays)
    want = joined(got)
    for y in got if op.kind != "reduce" else [got]:
        assert isinstance(y, np.ndarray) and y.flags.writeable and not any(np.shares_memory(y, x) for x in flat)
    assert [len(y) for y in got] == lengths if op.kind != "reduce" else want.shape[0] == 4
    assert counter.compiles == 1
    other = np.split(np.arange(5), [1, 1, 4, 5])
    run([[x[rows] for rows in other] for x in flat])
    assert counter.compiles == 1  # neither lengths nor their number count, in a bucket

    of_jax = run([[jnp.asarray(x) for x in operand] for operand in arrays])
    assert all(isinstance(y, jax.Array) for y in of_jax)
    # To the last bit or two: programs of other shapes may fuse in other ways.
    near = lambda y: np.testing.assert_allclose(y, want, rtol=2e-6, atol=1e-6)
    near(joined(of_jax))
    ragged = run([sk.Ragged.from_arrays(operand) for operand in arrays])
    assert isinstance(ragged, sk.Ragged if op.kind != "reduce" else jax.Array)
    near(joined(ragged))
    on_device, on_host = run([jnp.asarray(x) for x in flat], segments), run(flat, segments)
    assert isinstance(on_device, jax.Array) and isinstance(on_host, np.ndarray) and on_host.flags.writeable
    near(on_device)
    near(on_host)
    near(joined(jax.jit(lambda *operands: run(operands))(*[[jnp.asarray(x) for x in operand] for operand in arrays])))
    assert all(np.array_equal(x, y) for x, y in zip(flat, before))


@pytest.mark.parametrize("row", cases.params([row for row in cases.FIRST_ROWS if row[0] in FROM_ROWS], fast=cases.is_broad))
def test_nothing_and_empty_arrays(row):
    op = row[0]
    run = lambda *operands: op.call(op.function, operands, None, **op.options[0])
    count = len(op.draw(np.random.default_rng(0), "float32", (1,)))
    nothing = np.zeros((0, 2, 2) if op.draw is cases.matrices else (0, 2), np.float32)
    empty = [[nothing] * 2] * count
    got = run(*empty)
    assert len(got) == 2 and (op.kind == "reduce" or all(y.shape == nothing.shape for y in got))
    assert len(run(*[[]] * count)) == 0
    none = [jnp.zeros(nothing.shape)] * count
    assert len(op.call(op.function, none, sk.Segments.from_lengths([]), **op.options[0])) == 0


def test_few_wide_rows_are_not_padded_to_many():
    packed = _host.arrays("test", [np.zeros((1, 100_000), np.float32), np.zeros((0, 100_000), np.float32)])
    assert packed.capacity == 1
    assert sk.segmented_cumsum([np.ones((2, 1000), np.float32)])[0][1].tolist() == [2] * 1000
    assert sk.Ragged.from_arrays([np.zeros((2, 1000), np.float32)]).values.shape == (2, 1000)
    assert sk.segmented_sum([np.zeros((0, 1000), np.float32)]).shape == (1, 1000)


def test_an_empty_value_of_nan_compiles_once(counter):
    for _ in range(3):
        got = sk.segmented_sum([np.float32([1, 2]), np.float32([])], empty=np.nan)
    np.testing.assert_array_equal(got, [3, np.nan])
    assert counter.compiles == 1


def test_flat_numpy_compiles_for_buckets_too(rng, counter):
    for n, k in [(1500, 5), (1510, 100), (1520, 60)]:
        x, lengths = rng.standard_normal(n).astype(np.float32), [1] * (k - 1) + [n - k + 1]
        segments = sk.Segments.from_lengths(lengths)
        np.testing.assert_allclose(sk.segmented_sum(x, segments)[: k - 1], x[: k - 1], rtol=1e-6)
        assert sk.segmented_cumsum(x, segments).shape == (n,)
        assert sk.segmented_repeat(x[:k], segments).shape == (n,)
    assert counter.compiles == 3


def test_buckets():
    sizes = [_host.row_bucket(n) for n in range(1, 20_000)]
    assert all(size >= n and size % 32 == 0 for n, size in enumerate(sizes, 1))
    assert all(size <= 1.25 * n for n, size in enumerate(sizes, 1) if n > 128)
    assert len(set(sizes)) <= 1 + 4 * 8


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_numpy_lists_keep_their_dtype_with_x64_off(dtype, rng):
    arrays = [cases.draw(rng, dtype, (n, 3)) for n in (4, 0, 9)]
    got = sk.segmented_cumsum(arrays)
    for y, x in zip(got, arrays):
        want = np.cumsum(x, axis=0, dtype=np.int32 if dtype == "bool" else None if x.dtype.name == "bfloat16" else x.dtype)
        assert isinstance(y, np.ndarray) and y.dtype == (np.int32 if dtype == "bool" else x.dtype)
        if x.dtype.kind in "biu":
            assert y.tobytes() == want.tobytes()
        elif dtype in ("float32", "float64"):
            np.testing.assert_allclose(y, want, rtol=16 * np.finfo(dtype).eps, atol=16 * np.finfo(dtype).eps)
        y[...] = 0  # they are the caller's


def test_wide_numbers_come_back_exact():
    assert [a.tolist() for a in sk.segmented_cumsum([np.array([2**40, 1]), np.array([-(2**62)])])] == [
        [2**40, 2**40 + 1],
        [-(2**62)],
    ]
    assert sk.segmented_cumsum([np.array([1e300, 1e300])])[0].tolist() == [1e300, 2e300]
    assert sk.segmented_sum([np.array([2**40, 1])]).tolist() == [2**40 + 1]
    assert sk.segmented_sum([np.float32([1, 2])], dtype=np.float64).dtype == np.float64
    assert sk.segmented_cumsum(np.array([2**40, 1]), sk.Segments.from_lengths([2])).tolist() == [2**40, 2**40 + 1]
    assert sk.segmented_repeat(np.array([2**40]), sk.Segments.from_lengths([2])).tolist() == [2**40] * 2
    assert not jax.config.jax_enable_x64


def test_promotion():
    with jax.numpy_dtype_promotion("standard"):
        check_promotion()


def check_promotion():
    f4, i4, u4, f8, i8 = (lambda *v, d=d: np.array(v, d) for d in ("f4", "i4", "u4", "f8", "i8"))
    for arrays, want in [
        ([f4(1), i4(2)], "f4"), ([f4(1), f8()], "f4"), ([f4(), f8()], "f8"), ([f4(1), f8(1)], "f8"), ([i4(1), i8(2)], "i8"),
        ([u4(2**31 + 5), i4(1)], "i8"), ([np.bool_([1]), i4(2)], "i4"), ([], "f4"),
    ]:  # fmt: skip
        assert sk.segmented_sum(arrays, dtype=None).dtype == np.dtype(want)
        for y, x in zip(sk.segmented_cumsum(arrays), arrays):
            np.testing.assert_array_equal(y, np.cumsum(x, dtype=want))
    mixed = sk.segmented_cumsum([jnp.float32([1]), np.array([2**20]), []])
    assert all(isinstance(a, jax.Array) and a.dtype == jnp.float32 for a in mixed)
    unsigned = sk.segmented_cumsum([jnp.ones(3, jnp.uint32), jnp.ones(2, jnp.int32)])
    assert [a.tolist() for a in unsigned] == [[1, 2, 3], [1, 2]] and unsigned[0].dtype == jnp.int32
    with pytest.raises(ValueError, match="do not fit int32"):
        sk.segmented_cumsum([jnp.int32([1]), np.array([2**40])])


@pytest.mark.parametrize("form", [list, tuple])
def test_kinds_of_entries(form):
    assert [a.tolist() for a in sk.segmented_cumsum(form([[1, 2], (3,), np.array([4])]))] == [[1, 3], [3], [4]]
    strided = np.arange(10, dtype=np.float32)[::2]
    locked = np.ones(3, np.float32)
    locked.flags.writeable = False
    swapped = np.array([1, 2], ">f4")
    got = sk.segmented_cumsum(form([strided, locked, swapped, strided]))
    assert [a.tolist() for a in got] == [[0, 2, 6, 12, 20], [1, 2, 3], [1, 3], [0, 2, 6, 12, 20]]
    half = sk.segmented_cumsum([jnp.ones(3, jnp.bfloat16), jnp.ones(300, jnp.bfloat16)])
    assert half[1].dtype == ml_dtypes.bfloat16 and half[1][-1] == 300
    assert sk.segmented_cumsum([]) == [] and sk.segmented_sum([]).shape == (0,)
    assert [a.shape for a in sk.segmented_cumsum([np.ones((0, 2)), np.ones((3, 2))])] == [(0, 2), (3, 2)]


def test_nothing_of_the_callers_is_changed_or_aliased():
    for size in (5, 256, 70_000):
        arrays = [np.ones(size, np.float32), np.ones(size // 2, np.float32)]
        before = [a.copy() for a in arrays]
        got, total = sk.segmented_cumsum(arrays), sk.segmented_sum(arrays)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(arrays, before))
        for y in got:
            y[...] = -1
        assert all(a.tobytes() == b.tobytes() for a, b in zip(arrays, before))
        assert not any(np.shares_memory(x, y) for x in arrays for y in [*got, total])
        assert not np.shares_memory(got[0], got[1])
        given = [jnp.ones(size), jnp.ones(size // 2)]
        result = sk.segmented_cumsum(given)
        given[0].delete()
        assert result[0][-1] == size


def test_device_results_follow_other_arrays():
    """As the results of jit they are not bound to a device, so they mix with arrays on others."""
    (got,) = sk.segmented_cumsum([jnp.ones(3)])
    assert not got.committed


def test_the_public_way_to_make_arrays_serves_too(monkeypatch):
    monkeypatch.setattr(_compat, "_private_put", lambda: None)
    arrays = [jnp.arange(3.0), jnp.zeros(0), jnp.ones(2)]
    assert [a.tolist() for a in sk.segmented_cumsum(arrays)] == [[0, 1, 3], [], [1, 2]]
    monkeypatch.undo()
    assert _compat._private_put() is not None  # or the fast way is lost in this JAX: say so in the release


def test_constants_inside_a_trace():
    """NumPy lists inside jit are constants: computed at once, as NumPy."""
    arrays = [np.float32([1, 2]), np.float32([3])]

    @jax.jit
    def f(x):
        return x + sk.segmented_cumsum(arrays)[0][-1], jnp.asarray(sk.segmented_sum(arrays))

    assert jax.tree.map(lambda a: a.tolist(), f(jnp.float32(1))) == (4, [3, 3])
