"""Faults that other libraries had, from public reports: the values that are right. A row a report."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import segkernels as sk

nan, inf = np.nan, np.inf
cumsum, total = sk.segmented_cumsum, sk.segmented_sum
f4, i1, i4, i8, b1 = (lambda *arrays, d=d: [np.array(a, d) for a in arrays] for d in ("f4", "i1", "i4", "i8", bool))

# the fault, where it was reported, what is called, what is right
LISTS = [
    ("infinity in one segment", "tensorflow#58790", lambda: cumsum(f4([3, 1], [1, inf], [9, 2])), [[3, 4], [1, inf], [9, 11]]),
    ("infinities of both signs", "tensorflow#58790", lambda: total(f4([inf], [-inf], [1, 2])), [inf, -inf, 3]),
    ("compensation makes NaN of infinity", "pandas#53623", lambda: total(f4([inf, inf], [-inf, -inf, 1], [2, 3])), [inf, -inf, 5]),
    ("NaN in one column", "pandas#48064", lambda: cumsum([np.float32([[22, 1], [nan, 1], [2, 3]])]), [[[22, 1], [nan, 2], [nan, 5]]]),
    ("an empty segment takes its neighbour", "numpy Trac 236", lambda: total(f4([1], [], [2, 3])), [1, 0, 5]),
    ("a trailing empty segment is dropped", "awkward#3456", lambda: total(f4([1, 2], [])), [3, 0]),
    ("every segment is empty", "cudf#10876", lambda: total(f4([], [])), [0, 0]),
    ("runs of empty segments", "jax#3763", lambda: cumsum(f4([], [4, 2], [], [], [7], [])), [[], [4, 6], [], [], [7], []]),
    ("no arrays at all", "pytorch_scatter#39", lambda: cumsum([]), []),
    ("booleans sum as booleans", "jax#37991", lambda: cumsum(b1([1, 1, 0], [1])), [[1, 2, 2], [1]]),
    ("small integers", "jax#37920", lambda: total(i1([100, 100, 100], [1, 2])), [300, 3]),
    ("integers through floats", "pandas#6620", lambda: cumsum(i4([16777217, 1], [16777219])), [[16777217, 16777218], [16777219]]),
    ("64-bit integers through floats", "pandas#25741", lambda: total(i8([2**53 + 1, 0])), [2**53 + 1]),
    ("bfloat16 saturates at 256", "ml_dtypes#63", lambda: total([np.ones(512, ml_dtypes.bfloat16), np.ones(3, ml_dtypes.bfloat16)]), [512, 3]),
    ("a large segment before a small one", "numpy cumsum of varying lengths", lambda: cumsum(f4([1e8, 1e8], [0.1, 0.2])),
     [np.float32([1e8, 2e8]), np.float32([0.1, np.float32(0.1) + np.float32(0.2)])]),
    ("overflow stays at home", "tensorflow#58790", lambda: cumsum(f4([3e38, 3e38], [1, 2])), [[np.float32(3e38), inf], [1, 3]]),
    ("exclusive by subtraction", "tvm#7391", lambda: cumsum(f4([inf, 1], [2, 3]), exclusive=True), [[0, inf], [0, 2]]),
    ("exclusive and reverse", "onnx#2030", lambda: cumsum(f4([1, 2, 3], [4, 5]), exclusive=True, reverse=True), [[5, 3, 0], [5, 0]]),
    ("reverse of odd lengths", "pytorch#137943", lambda: cumsum(i4(range(9), [9, 1, 0]), reverse=True),
     [[36, 36, 35, 33, 30, 26, 21, 15, 8], [10, 1, 0]]),
    ("a segment over many blocks", "thrust#1635", lambda: [y[[0, -1]] for y in cumsum([np.ones(70001, "i4"), np.ones(3, "i4")])],
     [[1, 70001], [1, 3]]),
    ("signed zero", "julia#18336", lambda: [np.signbit(y) for y in cumsum(f4([-0.0, -0.0], [0.0]))], [[True, True], [False]]),
    ("complex", "pytorch#53183", lambda: cumsum([np.array([1 + 2j, 3 - 1j], "c8"), np.array([2j], "c8")]), [[1 + 2j, 4 + 1j], [2j]]),
    ("mixed dtypes", "jax#1013", lambda: cumsum([np.int8([1, 2]), np.int32([2**20])]), [[1, 3], [2**20]]),
    ("the same array twice", "jax#9635", lambda: cumsum([np.ones(3, "f4")] * 2), [[1, 2, 3]] * 2),
    ("traced lists", "jax#6350", lambda: jax.jit(total)(f4([1, 2], [], [3])), [3, 0, 3]),
]  # fmt: skip
FLAT = [
    ("rows after the last offset", "FBGEMM#1454", lambda: total(np.float32([1, 2, 3, 99]), sk.Segments.from_offsets([0, 2, 3])), [3, 3]),
    ("narrow offsets", "cupy#9867", lambda: total(np.ones(250, "f4"), sk.Segments.from_offsets(np.uint8([0, 100, 200, 250]))), [100, 100, 50]),
    ("missing ids", "jax#4034", lambda: total(np.float32([5, 1, 2]), sk.Segments.from_ids([0, 3, 3], 4)), [5, 0, 0, 3]),
    ("gradient dtype", "jax#23779", lambda: jax.grad(lambda x: jnp.sum(cumsum(x, sk.Segments.from_lengths([2, 1]))))(jnp.ones(3, jnp.bfloat16)),
     np.array([2, 1, 1], ml_dtypes.bfloat16)),
    ("integer offsets in a gradient", "jax#18113", lambda: jax.jit(jax.grad(lambda x, o: jnp.sum(cumsum(x, sk.Segments.from_offsets(o)))))(
        jnp.ones(3), jnp.array([0, 2, 3])), [2, 1, 1]),
    ("second derivatives vanish", "pytorch_scatter#299", lambda: jax.hessian(lambda x: jnp.sum(cumsum(x, sk.Segments.from_lengths([2, 1])) ** 2))(
        jnp.ones(3)), [[4, 2, 0], [2, 2, 0], [0, 0, 2]]),
    ("vmap with one layout", "jax#24547", lambda: jax.vmap(lambda x: cumsum(x, sk.Segments.from_lengths([2, 1])))(jnp.ones((2, 3))),
     [[1, 2, 1], [1, 2, 1]]),
]  # fmt: skip


@pytest.mark.parametrize(("run", "want"), [pytest.param(run, want, id=f"{what} ({where})") for what, where, run, want in LISTS])
def test_lists(run, want):
    with jax.numpy_dtype_promotion("standard"):
        got = list(run())
    assert len(got) == len(want)
    for y, w in zip(got, want):
        np.testing.assert_array_equal(y, np.asarray(w))


@pytest.mark.parametrize(("run", "want"), [pytest.param(run, want, id=f"{what} ({where})") for what, where, run, want in FLAT])
def test_flat(run, want):
    got = run()
    np.testing.assert_array_equal(got, np.asarray(want, np.asarray(got).dtype))
