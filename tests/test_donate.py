"""`donate=True` gives the memory of an operand away; without it nothing of the caller's is touched."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segkernels as sk

SEGMENTS = sk.Segments.from_lengths([3, 0, 90, 7])
SCANS = [op for op in cases.OPS if op.kind == "scan" and "associative" not in op.name]
WALKS = ("loop", *cases.NATIVE)


def served(op, walk):
    return walk in op.walks


@pytest.mark.parametrize(("op", "walk"), [(op, walk) for op in SCANS for walk in WALKS if served(op, walk)],
                         ids=lambda x: getattr(x, "name", x))  # fmt: skip
def test_the_operand_is_gone_and_the_result_the_same(op, walk, rng):
    for dtype in ("float32", "bfloat16", "int8", "bool"):
        if walk == "native" and dtype not in cases.NATIVE_DTYPES or dtype not in op.dtypes:
            continue
        for feature in ((), (3,)):
            operands = [jnp.asarray(x) for x in op.draw(rng, dtype, (100, *feature))]
            want = op.run(operands, SEGMENTS, walk)
            assert not any(x.is_deleted() for x in operands)
            got = op.run(operands, SEGMENTS, walk, donate=True)
            assert np.asarray(got).tobytes() == np.asarray(want).tobytes()
            # Given away where the result has the dtype, and only then.
            assert operands[0].is_deleted() == (got.dtype == operands[0].dtype)
            assert not any(x.is_deleted() for x in operands[1:])


@pytest.mark.skipif(not cases.NATIVE, reason="the native kernel is not built")
def test_in_place():
    x, segments = jnp.arange(1 << 16, dtype=jnp.float32), sk.Segments.from_lengths([1 << 16]).prepare(1 << 16)
    place = x.unsafe_buffer_pointer()
    assert sk.segmented_cumsum(x, segments, donate=True, implementation="native").unsafe_buffer_pointer() == place
    # Values that were NumPy are not JAX's to write to; those that it computed are.
    ragged = 1 * sk.Ragged.from_arrays([np.ones(4000, np.float32), np.ones(96, np.float32)])
    place = ragged.values.unsafe_buffer_pointer()
    assert sk.segmented_cumsum(ragged, donate=True, implementation="native").values.unsafe_buffer_pointer() == place
    assert ragged.values.is_deleted()


@pytest.mark.parametrize("walk", WALKS)
def test_what_is_not_the_callers_to_lose_is_kept(walk, rng):
    """Inside jit with a later use, under gradients and vmap, and for NumPy operands and lists."""
    host = rng.integers(-9, 9, 100).astype(np.float32)
    x, keep = jnp.asarray(host), host.copy()
    run = lambda x, donate=True: sk.segmented_cumsum(x, SEGMENTS, donate=donate, implementation=cases.config(walk))
    want = np.asarray(run(x, False))
    np.testing.assert_array_equal(jax.jit(lambda x: run(x) + x)(x), want + host)
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(run(x) ** 2 * x))(x),
                                  jax.grad(lambda x: jnp.sum(run(x, False) ** 2 * x))(x))  # fmt: skip
    np.testing.assert_array_equal(jax.vmap(run)(jnp.stack([x, x])), [want, want])
    assert not x.is_deleted()
    np.testing.assert_array_equal(run(host), want)
    listed = np.split(host, [3, 3, 93])
    for items in (listed, [jnp.asarray(part) for part in listed]):
        got = sk.segmented_cumsum(items, donate=True, implementation=cases.config(walk))
        np.testing.assert_array_equal(np.concatenate(got), want)
        np.testing.assert_array_equal(np.concatenate(items), keep)
    np.testing.assert_array_equal(host, keep)


def test_memory_that_another_operand_has_is_kept(rng):
    """The same array, or a view of it, as values and as gates: given away once it would be gone for the other."""
    x = jnp.asarray(rng.standard_normal(100).astype(np.float32))
    want = np.asarray(sk.segmented_linear_recurrence(x, x, SEGMENTS))
    for gates in (x, x[:]):
        np.testing.assert_array_equal(sk.segmented_linear_recurrence(gates, x, SEGMENTS, donate=True), want)
    flags = x > 0
    np.testing.assert_array_equal(sk.segmented_fill_forward(flags, flags, SEGMENTS, donate=True),
                                  sk.segmented_fill_forward(flags, flags, SEGMENTS))  # fmt: skip
    assert not x.is_deleted() and not flags.is_deleted()


def test_traced_layouts_give_nothing_away(rng):
    x = jnp.asarray(rng.standard_normal(100).astype(np.float32))
    offsets = jnp.array([[0, 3, 100], [0, 50, 100]], jnp.int32)
    run = lambda donate: jax.vmap(lambda o: sk.segmented_cumsum(x, sk.Segments(o), donate=donate))(offsets)
    np.testing.assert_array_equal(run(True), run(False))
    assert not x.is_deleted()
