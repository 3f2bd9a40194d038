"""Derivatives of every operation: both modes, to second order, and what must not leak."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import segkernels as sk

LENGTHS, N = [3, 0, 6, 1, 0, 9], 24  # five dead rows


def bound(row, segments=None, n=N):
    """The operation as a function of its values alone."""
    op, options, walk = row
    segments = cases.segments_of(LENGTHS) if segments is None else segments
    extra = dict(size=n) if op.kind == "spread" else {}
    return lambda x: op.function(x, segments, implementation=cases.config(walk), **options, **extra)


def rows_in(op):
    return len(LENGTHS) if op.kind == "spread" else N


@pytest.mark.parametrize(("row", "feature"), cases.with_features(cases.OP_ROWS))
def test_both_modes_to_second_order(row, feature, rng):
    with jax.enable_x64(True):
        x = jnp.asarray(cases.draw(rng, "float64", (rows_in(row[0]), *feature)))
        f = jax.jit(bound(row))
        check_grads(lambda x: jnp.sin(f(x)), (x,), order=2, modes=("fwd", "rev"), rtol=1e-6)


@pytest.mark.parametrize("row", cases.tiered(cases.OP_ROWS))
def test_jacobian_is_that_of_the_oracle(row, rng):
    """All operations so far are linear: column i of the Jacobian is the operation on the i-th unit vector."""
    op, options, _ = row
    n = rows_in(op)
    columns = [cases.expected(op, options, e, LENGTHS, N)[0] for e in np.eye(n, dtype=np.float32)]
    x = jnp.asarray(cases.draw(rng, "float32", (n,)))
    for jacobian in (jax.jacfwd, jax.jacrev):
        np.testing.assert_array_equal(jacobian(bound(row))(x), np.stack(columns, axis=1))


@pytest.mark.parametrize("dtype", [*cases.FLOATS, "complex64"])
@pytest.mark.parametrize("row", cases.tiered(cases.OP_ROWS))
def test_gradient_dtype_is_the_input_dtype(row, dtype, rng):
    with cases.scope(dtype):
        x = jnp.asarray(cases.draw(rng, dtype, (rows_in(row[0]),)))
        gradient = jax.grad(lambda x: jnp.sum(jnp.real(bound(row)(x)).astype(jnp.float32)))(x)
        assert gradient.dtype == x.dtype
        assert np.all(np.isfinite(np.asarray(gradient).astype(np.complex64)))


@pytest.mark.parametrize("row", cases.tiered([r for r in cases.OP_ROWS if r[0].kind != "spread"]))
def test_nothing_leaks_between_segments(row, rng):
    """NaN in other segments and in dead rows, and their own NaN cotangents, leave a segment's gradient as it was."""
    op = row[0]
    x = cases.draw(rng, "float32", (N,))
    poisoned = x.copy()
    poisoned[[4, 19, 20, 23]] = np.nan, np.inf, np.nan, np.nan

    def loss(x, keep):
        y = bound(row)(x)
        weights = jnp.where(jnp.arange(y.shape[0]) < (1 if op.kind == "reduce" else 3), jnp.float32(1), jnp.float32(keep))
        return jnp.sum(weights * y**2)

    clean = jax.grad(loss)(jnp.asarray(x), 0.0)
    for keep in (0.0, np.nan):
        got = jax.grad(loss)(jnp.asarray(poisoned), keep)
        np.testing.assert_array_equal(got[:3], clean[:3])
        np.testing.assert_array_equal(got[19:], 0)


@pytest.mark.parametrize("row", cases.tiered(cases.OP_ROWS))
def test_layouts_have_no_tangent(row, rng):
    op, options, walk = row
    offsets = jnp.asarray(np.cumsum([0, *LENGTHS]), jnp.int32)
    x = jnp.asarray(cases.draw(rng, "float32", (rows_in(op),)))
    out, back = jax.vjp(lambda x, offsets: bound(row, sk.Segments.from_offsets(offsets))(x), x, offsets)
    of_x, of_offsets = back(jnp.ones_like(out))
    assert of_offsets.dtype == jax.dtypes.float0
    assert of_x.shape == x.shape


@pytest.mark.parametrize("row", cases.tiered(cases.OP_ROWS))
def test_integers_pass_through_jvp_and_vjp(row):
    x = jnp.ones(rows_in(row[0]), jnp.int32)
    out, tangent = jax.jvp(bound(row), (x,), (np.zeros(x.shape, jax.dtypes.float0),))
    assert out.dtype == jnp.int32 and tangent.dtype == jax.dtypes.float0


def test_dead_rows_of_a_ragged_do_not_spoil_a_later_log():
    x = sk.Ragged.from_arrays([np.float32([1, 2]), np.float32([3])])

    def loss(values):
        y = sk.segmented_cumsum(x.with_values(jnp.log(values)))
        return jnp.sum(sk.segmented_sum(y))

    np.testing.assert_allclose(jax.grad(loss)(x.values)[:3], [2, 1 / 2, 1 / 3], rtol=1e-6)
    assert np.all(np.isfinite(jax.grad(loss)(x.values)))


def test_gradient_of_a_list():
    gradient = jax.grad(lambda arrays: sum(jnp.sum(y**2) for y in sk.segmented_cumsum(arrays)))
    got = gradient([jnp.ones(2), jnp.ones(0), jnp.ones(3)])
    for g, want in zip(got, [[6, 4], [], [12, 10, 6]]):
        np.testing.assert_array_equal(g, want)


@pytest.mark.parametrize("kind", ["jvp of vjp", "vjp of jvp", "jvp of jvp", "vjp of vjp"])
def test_mixed_second_order(kind, rng):
    x, v = (jnp.asarray(cases.draw(rng, "float32", (N,))) for _ in range(2))
    f = lambda x: jnp.sum(jnp.sin(sk.segmented_cumsum(x, cases.segments_of(LENGTHS))))
    want = jax.hessian(lambda x: jnp.sum(jnp.sin(dense(x))))(x) @ v
    forward = lambda f: lambda x: jax.jvp(f, (x,), (v,))[1]
    got = {
        "jvp of vjp": lambda: forward(jax.grad(f))(x),
        "vjp of jvp": lambda: jax.grad(forward(f))(x),
        "jvp of jvp": lambda: forward(forward(f))(x),
        "vjp of vjp": lambda: jax.grad(lambda x: jnp.vdot(jax.grad(f)(x), v))(x),
    }[kind]()
    want = jnp.vdot(want, v) if kind == "jvp of jvp" else want
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def dense(x):
    """The same cumsum as a dense matrix."""
    matrix = np.zeros((N, N), np.float32)
    at = 0
    for n in LENGTHS:
        matrix[at : at + n, at : at + n] = np.tri(n)
        at += n
    return jnp.asarray(matrix) @ x
