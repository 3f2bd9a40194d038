"""`Ragged`: packing, operators, padding, indexing."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import segkernels as sk

ARRAYS = [np.float32([1, 2, 3]), np.zeros(0, np.float32), np.float32([4]), np.float32([5, 6])]


def lists(ragged):
    return [a.tolist() for a in ragged]


def test_round_trip():
    x = sk.Ragged.from_arrays(ARRAYS)
    assert lists(x) == lists(x.to_arrays()) == [a.tolist() for a in ARRAYS]
    assert len(x) == 4 and x[-1].tolist() == [5, 6]
    assert all(isinstance(a, jax.Array) for a in x.to_arrays())
    assert x.values.shape == (128,) and x.segments.heads is not None
    np.testing.assert_array_equal(x.values[6:], 6)  # dead rows repeat the last live one
    np.testing.assert_array_equal(sk.Ragged.from_arrays([]).values, 1)


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, np.complex64, ml_dtypes.bfloat16, np.float16, ">f4"], ids=str)
@pytest.mark.parametrize("jax_in", [False, True])
def test_dtypes_and_features(dtype, jax_in):
    arrays = [np.arange(6).reshape(3, 2).astype(dtype), np.ones((0, 2), dtype), np.ones((2, 2), dtype)]
    given = [jnp.asarray(a.astype(a.dtype.newbyteorder("="))) for a in arrays] if jax_in else arrays
    for got, want in zip(sk.Ragged.from_arrays(given), arrays):
        np.testing.assert_array_equal(got, want.astype(got.dtype))


def test_size_and_number_of_segments():
    x = sk.Ragged.from_arrays(ARRAYS, size=7, num_segments=6)
    assert x.values.shape == (7,) and len(x) == 6
    assert lists(sk.segmented_cumsum(x)) == [[1, 3, 6], [], [4], [5, 11], [], []]
    assert sk.segmented_sum(x, empty=-1).tolist() == [6, -1, 4, 11, -1, -1]


def test_operators():
    x = sk.Ragged.from_arrays(ARRAYS)
    assert lists(2 * x + 1) == lists(x + x + 1) == lists(1 + x * jnp.float32(2)) == [[3, 5, 7], [], [9], [11, 13]]
    assert lists(1 - x) == lists(-(x - 1)) == [[0, -1, -2], [], [-3], [-4, -5]]
    assert lists(x / x) == [[1, 1, 1], [], [1], [1, 1]]
    assert lists(2**x)[0] == [2, 4, 8] and lists(x**2)[3] == [25, 36] and lists(x // 2)[0] == [0, 1, 1]
    assert lists(x > 2) == [[False, False, True], [], [True], [True, True]]
    assert lists((x == x) & (x != 2))[0] == [True, False, True]
    assert lists(abs(-x)) == lists(+x) == lists(x)
    assert lists(x.map(jnp.maximum, x * 0 + 4))[0] == [4, 4, 4]
    again = sk.Ragged.from_arrays(ARRAYS)
    assert lists(x + again) == lists(2 * x)  # equal layouts, made apart


def test_padded():
    x = sk.Ragged.from_arrays(ARRAYS)
    want = [[1, 2, 3], [0, 0, 0], [4, 0, 0], [5, 6, 0]]
    assert x.to_padded().tolist() == want
    assert x.to_padded(4, fill=-1)[2].tolist() == [4, -1, -1, -1]
    assert jax.jit(lambda x: x.to_padded(3))(x).tolist() == want
    back = sk.Ragged.from_padded(np.float32(want), [3, 0, 1, 2])
    assert lists(back) == lists(x)
    traced = jax.jit(sk.Ragged.from_padded)(np.float32(want), jnp.array([3, 0, 1, 2]))
    assert traced.values.shape == (12,) and lists(traced) == lists(x)
    np.testing.assert_array_equal(traced.values[6:], 6)
    np.testing.assert_array_equal(sk.Ragged.from_padded(np.zeros((2, 3), np.float32), [0, 0]).values, 1)
    wide = sk.Ragged.from_arrays([np.ones((2, 3), np.float32)])
    assert wide.to_padded(3).shape == (1, 3, 3)


def test_the_callers_arrays_are_copied():
    flat = np.zeros(4, np.float32)
    for make in (lambda: sk.Ragged(flat, sk.Segments.from_lengths([4])), lambda: sk.Ragged.from_arrays([flat], size=4)):
        flat[:] = 1
        x = make()
        flat[:] = 2
        assert x.values.tolist() == [1, 1, 1, 1]


def test_is_a_pytree_that_does_not_validate():
    x = sk.Ragged.from_arrays(ARRAYS)
    assert len(jax.tree.leaves(x)) == 3
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(x)]
    assert paths == [".values", ".segments.offsets", ".segments.heads"]
    assert repr(jax.tree.map(lambda _: "leaf", x))
    assert repr(x) == "Ragged(values=float32[128], segments=Segments(num_segments=4, prepared))"
    assert hash(x) == hash(x)
    host = jax.device_get(x)
    assert lists(host) == lists(x) and host[2].tolist() == [4]
    assert lists(x.with_values(np.asarray(2 * x.values))) == lists(2 * x)


def test_numpy_leaves_the_operators_to_us():
    x = sk.Ragged.from_arrays(ARRAYS)
    assert isinstance(np.float32(2) * x, sk.Ragged)
    with pytest.raises(TypeError):
        np.ones(128, np.float32) * x
