"""Derivatives of every operation: both modes, to second order, and what must not leak."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segkernels as sk

LENGTHS, N = [3, 0, 6, 1, 0, 9], 24  # five dead rows
SMOOTH = [row for row in cases.THIN_ROWS if row[0].smooth]


def rows_in(op):
    return len(LENGTHS) if op.kind == "spread" else N


def draw(rng, op, dtype, feature=()):
    return [jnp.asarray(x) for x in op.draw(rng, dtype, (rows_in(op), *feature))]


def bound(row, operands, segments=None):
    """The operation as a function of those of its operands that are numbers, and these operands."""
    op, options, walk = row
    segments = cases.segments_of(LENGTHS) if segments is None else segments
    numbers = [i for i, x in enumerate(operands) if jnp.issubdtype(x.dtype, jnp.inexact)]

    def f(*values):
        all_ = list(operands)
        for i, x in zip(numbers, values):
            all_[i] = x
        return op.run(all_, segments, walk, N, **options)

    return f, [operands[i] for i in numbers]


def check_to_second_order(f, x, rng):
    """Forward and reverse mode and all four of their pairs, against central differences and each other."""
    x = tuple(x)
    v, u = (tuple(jnp.asarray(rng.standard_normal(a.shape)) for a in x) for _ in range(2))
    w = jnp.asarray(rng.standard_normal(jax.eval_shape(f, *x).shape))

    @jax.jit
    def derivatives(x):
        forward, backward = (lambda *x: jax.jvp(f, x, v)[1]), (lambda *x: jax.vjp(f, *x)[1](w))
        of_forward, of_backward = (lambda g, x: jax.jvp(g, x, u)[1]), (lambda g, x, ct: jax.vjp(g, *x)[1](ct))
        return (f(*x), forward(*x), backward(*x), of_forward(forward, x), of_forward(backward, x), of_backward(forward, x, w),
                of_backward(backward, x, u))  # fmt: skip

    h = 1e-5
    _, jv, wj, jvu, wju, wjv_back, wju_back = derivatives(x)
    up, down = (tuple(a + t * b for a, b in zip(x, u)) for t in (h, -h))
    along_v = [derivatives(tuple(a + t * b for a, b in zip(x, v)))[0] for t in (h, -h)]
    close = lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    dot = lambda a, b: sum(np.vdot(p, q) for p, q in zip(a, b))
    close(jv, (along_v[0] - along_v[1]) / (2 * h))
    close(dot(wj, v), np.vdot(w, jv))
    for got, hi, lo in zip(wju, derivatives(up)[2], derivatives(down)[2]):
        close(got, (hi - lo) / (2 * h))
    close(np.vdot(w, jvu), dot(wju, v))
    close(dot(wjv_back, u), np.vdot(w, jvu))
    for got, want in zip(wju_back, wju):
        close(got, want)


@pytest.mark.parametrize(("row", "feature"), [
    *cases.params(SMOOTH, [()], cases.is_first_of_its_kind),
    *cases.params([row for row in SMOOTH if cases.is_first(row)], [(2,)], lambda row, feature: False),
])  # fmt: skip
def test_both_modes_to_second_order(row, feature, rng):
    op, options, _ = row
    with jax.enable_x64(True):
        f, numbers = bound(row, draw(rng, op, "float64", feature))
        # Identities are infinite, and segments without rows, or with one, may be NaN.
        keep = jnp.isfinite(f(*numbers))
        check_to_second_order(lambda *x: jnp.sin(jnp.where(keep, f(*x), 0.0)), numbers, rng)


@pytest.mark.parametrize("row", cases.params([r for r in SMOOTH if r[0].linear and r[2] == "loop"]))
def test_jacobian_is_that_of_the_oracle(row, rng):
    """Of a linear operation: column i of the Jacobian is the operation on the i-th unit vector."""
    op, options, _ = row
    operands = draw(rng, op, "float32")
    f, numbers = bound(row, operands)
    others = [np.asarray(x) for x in operands[1:]]
    columns = [cases.expected(op, options, [e, *others], LENGTHS, N, e.dtype)[0] for e in np.eye(rows_in(op), dtype=np.float32)]
    for jacobian in (jax.jacfwd, jax.jacrev):
        got = jacobian(lambda x: jnp.nan_to_num(f(x)))(numbers[0])
        np.testing.assert_allclose(got, np.nan_to_num(np.stack(columns, axis=1)), rtol=1e-6)


@pytest.mark.parametrize(("row", "dtype"), cases.params(
    [r for r in SMOOTH if r[2] == "loop" and r[1] is r[0].options[0]], [*cases.FLOATS, "complex64"],
    lambda row, dtype: row[0].broad and dtype in ("bfloat16", "complex64")))  # fmt: skip
def test_gradient_dtype_is_the_input_dtype(row, dtype, rng):
    if dtype not in row[0].dtypes:
        pytest.skip(f"{row[0].name} does not take {dtype}")
    with cases.scope(dtype):
        f, numbers = bound(row, draw(rng, row[0], dtype))
        loss = lambda *x: jnp.sum(jnp.nan_to_num(jnp.real(f(*x)).astype(jnp.float32)))
        gradients = jax.grad(loss, argnums=tuple(range(len(numbers))))(*numbers)
        for gradient, x in zip(gradients, numbers):
            assert gradient.dtype == x.dtype and gradient.shape == x.shape
            assert np.all(np.isfinite(np.asarray(gradient).astype(np.complex64)))


@pytest.mark.parametrize("row", cases.params([r for r in SMOOTH if r[0].kind != "spread"], fast=cases.is_first))
def test_nothing_leaks_between_segments(row, rng):
    """NaN in other segments and in dead rows, and their own NaN cotangents, leave a segment's gradient as it was."""
    op = row[0]
    operands = draw(rng, op, "float32")
    poisoned = [np.asarray(x).copy() for x in operands]
    for x in poisoned:
        if x.dtype != bool:
            x[[4, 19, 20, 23]] = np.reshape([np.nan, np.inf, np.nan, np.nan], (4,) + (1,) * (x.ndim - 1))

    def gradients(operands, keep):
        f, numbers = bound(row, operands)

        def loss(*x):
            y = f(*x)
            first = jnp.arange(y.shape[0]) < (1 if op.kind == "reduce" else 3)
            return jnp.sum(jnp.where(first.reshape(-1, *(1,) * (y.ndim - 1)), jnp.float32(1), jnp.float32(keep)) * y**2)

        return jax.grad(loss, argnums=tuple(range(len(numbers))))(*numbers)

    def clean_loss():
        f, numbers = bound(row, operands)
        first = 1 if op.kind == "reduce" else 3
        return jax.grad(lambda *x: jnp.sum(f(*x)[:first] ** 2), argnums=tuple(range(len(numbers))))(*numbers)

    for keep in (0.0, np.nan):
        for got, clean in zip(gradients([jnp.asarray(x) for x in poisoned], keep), clean_loss()):
            np.testing.assert_allclose(got[:3], clean[:3], rtol=1e-6)
            np.testing.assert_array_equal(got[19:], 0)


@pytest.mark.parametrize("row", cases.params(cases.FIRST_ROWS, fast=cases.is_broad))
def test_layouts_have_no_tangent(row, rng):
    op = row[0]
    offsets = jnp.asarray(np.cumsum([0, *LENGTHS]), jnp.int32)
    operands = draw(rng, op, "float32")

    def f(x, offsets):
        return bound(row, [x, *operands[1:]], sk.Segments.from_offsets(offsets))[0](x)

    out, back = jax.vjp(f, operands[0], offsets)
    seed = np.zeros(out.shape, jax.dtypes.float0) if not jnp.issubdtype(out.dtype, jnp.inexact) else jnp.ones_like(out)
    of_x, of_offsets = back(seed)
    assert of_offsets.dtype == jax.dtypes.float0
    assert of_x.shape == operands[0].shape


@pytest.mark.parametrize("row", cases.params(cases.FIRST_ROWS, fast=cases.is_broad))
def test_integers_pass_through_jvp(row, rng):
    op = row[0]
    if "int32" not in op.dtypes:
        pytest.skip(f"{op.name} does not take integers")
    operands = draw(rng, op, "int32")
    still = [np.zeros(x.shape, jax.dtypes.float0) for x in operands]
    out, tangent = jax.jvp(lambda *x: op.run(x, cases.segments_of(LENGTHS), n=N), operands, still)
    if jnp.issubdtype(out.dtype, jnp.inexact):
        np.testing.assert_array_equal(tangent, 0)
    else:
        assert tangent.dtype == jax.dtypes.float0


@pytest.mark.parametrize("name", [op.name for op in cases.OPS if not op.smooth])
def test_steps_have_no_gradient(name, rng):
    x = jnp.asarray(cases.draw(rng, "float32", (N,)))
    f = lambda x: jnp.sum(getattr(sk, name)(x, cases.segments_of(LENGTHS)).astype(jnp.float32) * x[0])
    gradient = jax.jit(jax.grad(f))(x)
    np.testing.assert_array_equal(gradient[1:], 0)


# Products, maxima and logarithms, where derivatives are easily wrong ----------------------------------------------------

ZEROS = {"one zero": [2.0, 0, 3, 5], "two zeros": [2.0, 0, 3, 0], "all zeros": [0.0, 0, 0, 0], "none": [2.0, -1, 3, 5]}


@pytest.mark.parametrize("name", ["prod", "cumprod"])
def test_products_are_exact_at_zeros_to_second_order(name):
    """Against products written out, which JAX differentiates as polynomials."""

    def plain(x):
        out = [x[1]]
        for i in range(2, 5):
            out.append(out[-1] * x[i])
        return jnp.stack([x[0], *(out if name == "cumprod" else out[-1:]), x[5]])

    def derivatives(f):
        pairs = [(a, b) for a in (jax.jacfwd, jax.jacrev) for b in (jax.jacfwd, jax.jacrev)]
        return jax.jit(lambda x: [jax.jacfwd(f)(x), jax.jacrev(f)(x), *(a(b(f))(x) for a, b in pairs)])

    with jax.enable_x64(True):
        f = derivatives(lambda x: cases.BY_NAME[name].function(x, cases.segments_of([1, 4, 1])))
        for factors in ZEROS.values():
            x = jnp.asarray([7.0, *factors, 11.0])
            for got, want in zip(f(x), derivatives(plain)(x)):
                np.testing.assert_array_equal(got, want)


def grad_of(name, x, lengths, weights, **options):
    f = cases.BY_NAME[name].function
    weights = jnp.asarray(weights, jnp.float32)
    return jax.grad(lambda x: jnp.vdot(f(x, cases.segments_of(lengths), **options), weights))(jnp.asarray(x, jnp.float32))


inf, nan = np.inf, np.nan
# the operation, its input, lengths, the weights of the results, and the right gradient
GRADIENTS = {
    "tied maxima share": ("max", [1, 3, 3, 2, 2], [3, 2], [1, 10], [0, 0.5, 0.5, 5, 5]),
    "tied minima share": ("min", [3, 1, 1, 1], [4], [3], [0, 1, 1, 1]),
    "NaN maxima share": ("max", [nan, 1, nan, 4], [3, 1], [1, 1], [0.5, 0, 0.5, 1]),
    "infinite maxima share": ("max", [-inf, -inf, 4], [2, 1], [1, 1], [0.5, 0.5, 1]),
    "cummax takes the first": ("cummax", [1, 1, 2, 2, 1], [5], [1, 1, 1, 1, 1], [2, 0, 3, 0, 0]),
    "cummax of -inf": ("cummax", [-inf, -inf, 1], [3], [1, 1, 1], [2, 0, 1]),
    "cummin takes the first": ("cummin", [2, 2, 1, 5, 1], [4, 1], [1, 1, 1, 1, 1], [2, 0, 2, 0, 1]),
    "logsumexp of -inf": ("logsumexp", [-inf, -inf, 0, 0], [2, 2], [1, 1], [0, 0, 0.5, 0.5]),
    "cumlogsumexp of -inf": ("cumlogsumexp", [-inf, -inf, 0, 0], [4], [1, 1, 1, 1], [0, 0, 1.5, 0.5]),
    "softmax beside a huge segment": ("softmax", [1e30, 3e38, 0, 0], [2, 2], [0, 0, 1, 0], [0, 0, 0.25, -0.25]),
    "softmax beside -inf": ("softmax", [-inf, -inf, 0, 0], [2, 2], [0, 0, 1, 0], [nan, nan, 0.25, -0.25]),
    "log_softmax": ("log_softmax", [0, 0, 5], [2, 1], [1, 0, 1], [0.5, -0.5, 0]),
    "mean of an empty segment": ("mean", [1, 2, 6], [2, 0, 1], [1, 1, 1], [0.5, 0.5, 1]),
    "sort": ("sort", [3, 1, 2, 5, 4], [3, 2], [1, 10, 100, 1, 10], [100, 1, 10, 10, 1]),
    "first": ("first", [3, 1, 2], [2, 0, 1], [5, 7, 9], [5, 0, 9]),
    "last": ("last", [3, 1, 2], [2, 0, 1], [5, 7, 9], [0, 5, 9]),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_at_the_edges(name):
    op, x, lengths, weights, want = GRADIENTS[name]
    np.testing.assert_allclose(grad_of(op, x, lengths, weights), want, rtol=1e-6)


def test_gates_and_initial_states_of_a_recurrence():
    """The gate of a first row is not used without an initial state, whatever it and its tangent are."""
    a, b = jnp.asarray([nan, 0.5, inf, 2.0]), jnp.asarray([1.0, 2.0, 3.0, 4.0])
    segments = cases.segments_of([2, 0, 2])
    f = lambda a, b, h: jnp.sum(sk.segmented_linear_recurrence(a, b, segments, initial=h))
    of_a, of_b = jax.grad(f, (0, 1))(a, b, None)
    np.testing.assert_array_equal(of_a, [0, 1, 0, 3])
    np.testing.assert_array_equal(of_b, [1.5, 1, 3, 1])
    _, tangent = jax.jvp(lambda a: sk.segmented_linear_recurrence(a, b, segments), (a,), (jnp.asarray([nan, 1, inf, 1.0]),))
    np.testing.assert_array_equal(tangent, [0, 1, 0, 3])
    a, h = jnp.asarray([3.0, 0.5, 5.0, 2.0]), jnp.asarray([1.0, nan, 2.0])
    of_a, of_b, of_h = jax.grad(f, (0, 1, 2))(a, b, h)
    np.testing.assert_array_equal(of_a, [1.5, 4, 6, 13])
    np.testing.assert_array_equal(of_h, [4.5, 0, 15])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("feature", [(), pytest.param((2,), marks=pytest.mark.slow)], ids=str)
def test_recurrences_with_initial_states_to_second_order(reverse, feature, rng):
    with jax.enable_x64(True):
        a, b = (jnp.asarray(cases.draw(rng, "float64", (N, *feature))) for _ in range(2))
        h = jnp.asarray(cases.draw(rng, "float64", (len(LENGTHS), *feature)))
        segments = cases.segments_of(LENGTHS)
        f = lambda a, b, h: jnp.sin(sk.segmented_linear_recurrence(a, b, segments, initial=h, reverse=reverse))
        check_to_second_order(f, [a, b, h], rng)


def test_gates_of_rows_and_scalar_gates_to_second_order(rng):
    with jax.enable_x64(True):
        a, b = jnp.asarray(cases.draw(rng, "float64", (N,))), jnp.asarray(cases.draw(rng, "float64", (N, 2)))
        segments = cases.segments_of(LENGTHS)
        f = lambda a, s, b: sk.segmented_linear_recurrence(a, b, segments) + sk.segmented_linear_recurrence(s, b, segments)
        check_to_second_order(f, [a, jnp.float64(0.7), b], rng)


@pytest.mark.parametrize("walk", ["loop", pytest.param("associative", marks=pytest.mark.slow)])
@pytest.mark.parametrize("identity", [None, (1.0, 0.0)])
def test_any_associative_function_has_derivatives(walk, identity, rng):
    """A pair of arrays with other features, by a function that does not commute: the composition of affine maps."""

    def compose(f, g):
        return f[0] * g[0], g[0][:, None] * f[1] + g[1]

    with jax.enable_x64(True):
        a, b = jnp.asarray(cases.draw(rng, "float64", (N,))), jnp.asarray(cases.draw(rng, "float64", (N, 2)))
        segments = cases.segments_of(LENGTHS)

        def f(a, b):
            choice = cases.config(walk)
            return sk.segmented_associative_scan(compose, (a, b), segments, identity=identity, implementation=choice)[1]

        np.testing.assert_allclose(f(a, b), sk.segmented_linear_recurrence(a, b, segments), rtol=1e-12, atol=1e-12)
        check_to_second_order(f, [a, b], rng)


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
