"""`jit`, `vmap`, `remat`, `lax.scan` and export of every operation."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segkernels as sk

N, B = 21, 3  # not a multiple of 32, nor of 8
LAYOUTS = np.array([[0, 3, 3, 10, 18], [0, 0, 5, 5, 21], [0, 0, 0, 0, 0]], np.int32)


def call(row, x, offsets):
    op, options, walk = row
    extra = dict(size=N) if op.kind == "spread" else {}
    return op.function(x, sk.Segments.from_offsets(offsets), implementation=cases.config(walk), **options, **extra)


def draw(rng, op, batch, feature):
    return jnp.asarray(cases.draw(rng, "float32", (*batch, 4 if op.kind == "spread" else N, *feature)))


def one_by_one(f, *batched):
    return np.stack([np.asarray(f(*(x[i] for x in batched))) for i in range(B)])


@pytest.mark.parametrize(("row", "feature"), cases.with_features(cases.OP_ROWS))
def test_vmap(row, feature, rng):
    """Shared layout, layouts of their own, and values shared by all layouts; gradients of each."""
    offsets = jnp.asarray(LAYOUTS)
    x = draw(rng, row[0], (B,), feature)
    f = lambda x, o: call(row, x, o)
    g = lambda x, o: jax.grad(lambda x: jnp.sum(jnp.sin(f(x, o))))(x)
    for h in (f, g):
        shared = jax.jit(jax.vmap(h, (0, None)))(x, offsets[0])
        np.testing.assert_allclose(shared, one_by_one(lambda x: h(x, offsets[0]), x), rtol=1e-5, atol=1e-5)
        last = jax.jit(jax.vmap(h, (1, None), 1))(jnp.moveaxis(x, 0, 1), offsets[0])
        np.testing.assert_array_equal(np.moveaxis(np.asarray(last), 1, 0), shared)
        own = jax.jit(jax.vmap(h))(x, offsets)
        np.testing.assert_allclose(own, one_by_one(h, x, offsets), rtol=1e-5, atol=1e-5)
        only = jax.jit(jax.vmap(h, (None, 0)))(x[0], offsets)
        np.testing.assert_allclose(only, one_by_one(lambda o: h(x[0], o), offsets), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row", cases.tiered(cases.OP_ROWS))
def test_vmap_keeps_members_apart(row, rng):
    """NaN in one member, in its dead rows too, reaches no other, and dead rows are zero."""
    x = np.asarray(draw(rng, row[0], (B,), ())).copy()
    clean = jax.vmap(lambda x, o: call(row, x, o))(jnp.asarray(x), jnp.asarray(LAYOUTS))
    x[0] = np.nan
    if row[0].kind != "spread":
        x[2] = np.nan  # a member without live rows
    got = jax.vmap(lambda x, o: call(row, x, o))(jnp.asarray(x), jnp.asarray(LAYOUTS))
    np.testing.assert_array_equal(got[1], clean[1])
    np.testing.assert_array_equal(got[2], clean[2])
    if row[0].kind != "reduce":
        np.testing.assert_array_equal(got[0, 18:], 0)


@pytest.mark.parametrize("row", cases.tiered(cases.OP_ROWS))
def test_nested_vmap_jit_and_remat(row, rng):
    x = draw(rng, row[0], (B, 2), ())
    offsets = jnp.asarray(LAYOUTS)
    f = lambda x, o: jnp.sin(call(row, x, o))
    want = jax.vmap(lambda x, o: jax.vmap(lambda x: f(x, o))(x))(x, offsets)
    for variant in (jax.jit(f), jax.checkpoint(f), jax.remat(jax.jit(f))):
        got = jax.vmap(lambda x, o, v=variant: jax.vmap(lambda x: v(x, o))(x))(x, offsets)
        np.testing.assert_array_equal(got, want)
        grad = jax.grad(lambda x, v=variant: jnp.sum(v(x, offsets[0])))(x[0, 0])
        np.testing.assert_allclose(grad, jax.grad(lambda x: jnp.sum(f(x, offsets[0])))(x[0, 0]), rtol=1e-6)


@pytest.mark.parametrize("row", cases.tiered(cases.OP_ROWS))
def test_without_jit_and_without_members(row, rng):
    x = draw(rng, row[0], (), ())
    offsets = jnp.asarray(LAYOUTS[0])
    want = call(row, x, offsets)
    with jax.disable_jit():
        np.testing.assert_array_equal(call(row, x, offsets), want)
        jax.grad(lambda x: jnp.sum(call(row, x, offsets)))(x)
    none = jnp.zeros((0, *x.shape))
    assert jax.vmap(lambda x: call(row, x, offsets))(none).shape == (0, *want.shape)
    assert jax.vmap(lambda x, o: call(row, x, o))(none, jnp.zeros((0, 5), jnp.int32)).shape == (0, *want.shape)


def test_prepared_layouts_pass_through_everything(rng):
    """Head bits made once are the same leaf inside jit, scan and vmap, and nothing makes them again."""
    x = jnp.asarray(cases.draw(rng, "float32", (4, N)))
    segments = sk.Segments.from_offsets(LAYOUTS[0]).prepare(N)
    want = np.stack([np.asarray(sk.segmented_cumsum(row, segments)) for row in x])

    def step(segments, row):
        assert segments.heads is not None
        return segments, sk.segmented_cumsum(row, segments)

    np.testing.assert_array_equal(jax.jit(lambda x, s: jax.lax.scan(step, s, x)[1])(x, segments), want)
    np.testing.assert_array_equal(jax.vmap(sk.segmented_cumsum, (0, None))(x, segments), want)
    several = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[segments] * 4)
    np.testing.assert_array_equal(jax.vmap(sk.segmented_cumsum)(x, several), want)
    traced = jax.make_jaxpr(lambda x, s: sk.segmented_cumsum(x, s))(x[0], segments)
    assert "scatter" not in str(traced)
    assert "scatter" in str(jax.make_jaxpr(lambda x, s: sk.segmented_cumsum(x, s))(x[0], sk.Segments._make(segments.offsets)))


def test_ragged_passes_through_jit_scan_and_vmap():
    x = sk.Ragged.from_arrays([np.float32([1, 2]), np.float32([3])])
    y = jax.jit(lambda x: sk.segmented_cumsum(2 * x))(x)
    assert [a.tolist() for a in y] == [[2, 6], [6]]
    carried, _ = jax.lax.scan(lambda x, _: (sk.segmented_cumsum(x), None), x, None, length=2)
    assert [a.tolist() for a in carried] == [[1, 4], [3]]
    stacked = jax.tree.map(lambda a: jnp.stack([jnp.asarray(a)] * 2), x)
    assert jax.vmap(sk.segmented_sum)(stacked).tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])
@pytest.mark.parametrize("op", cases.OPS, ids=lambda op: op.name)
def test_exports_for_every_platform(op, platform):
    x = jax.ShapeDtypeStruct((4 if op.kind == "spread" else 64,), jnp.float32)
    offsets = jax.ShapeDtypeStruct((5,), jnp.int32)
    extra = dict(size=64) if op.kind == "spread" else {}
    f = jax.jit(lambda x, o: op.function(x, sk.Segments.from_offsets(o), **extra))
    exported = jax.export.export(f, platforms=[platform])(x, offsets)
    if platform == "cpu":
        values = jnp.arange(x.shape[0], dtype=jnp.float32)
        layout = jnp.asarray([0, 3, 3, 40, 60], jnp.int32)
        np.testing.assert_array_equal(exported.call(values, layout), f(values, layout))


@pytest.mark.parametrize("op", [op for op in cases.OPS if op.kind != "spread"], ids=lambda op: op.name)
def test_exports_with_symbolic_sizes(op):
    """One artifact for any number of rows and segments."""
    n, s = jax.export.symbolic_shape("n, s")
    f = jax.jit(lambda x, o: op.function(x, sk.Segments.from_offsets(o)))
    shapes = jax.ShapeDtypeStruct((n,), jnp.float32), jax.ShapeDtypeStruct((s + 1,), jnp.int32)
    exported = jax.export.export(f, platforms=["cpu"])(*shapes)
    for lengths in ([3, 0, 6], [100], [1] * 50, [8, 8]):
        x = jnp.arange(sum(lengths), dtype=jnp.float32)
        offsets = jnp.asarray(np.cumsum([0, *lengths]), jnp.int32)
        np.testing.assert_array_equal(exported.call(x, offsets), f(x, offsets))
