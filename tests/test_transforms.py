"""`jit`, `vmap`, `remat`, `lax.scan` and export of every operation."""

import contextlib
import os
import subprocess
import sys

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segkernels as sk

N, B = 21, 3  # not a multiple of 32, nor of 8
LAYOUTS = np.array([[0, 3, 3, 10, 18], [0, 0, 5, 5, 21], [0, 0, 0, 0, 0]], np.int32)


def call(row, operands, offsets):
    op, options, walk = row
    return op.run(operands, sk.Segments.from_offsets(offsets), walk, N, **options)


def draw(rng, op, batch, feature=(), dtype="float32"):
    return [jnp.asarray(x) for x in op.draw(rng, dtype, (*batch, 4 if op.kind == "spread" else N, *feature))]


def one_by_one(f, *batched):
    return np.stack([np.asarray(f(*jax.tree.map(lambda x: x[i], batched))) for i in range(B)])


def agree(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("row", "feature"), [
    *cases.params(cases.THIN_ROWS, [()], cases.is_first_of_its_kind),
    *cases.params(cases.FIRST_ROWS, [(2,)], lambda row, feature: row in cases.BROAD_ROWS[:2]),
])  # fmt: skip
def test_vmap(row, feature, rng):
    """Shared layout, layouts of their own, and values shared by all layouts."""
    check_vmap(lambda x, o: call(row, x, o), draw(rng, row[0], (B,), feature))


@pytest.mark.parametrize(("row", "feature"), [
    *cases.params([row for row in cases.FIRST_ROWS if row[0].smooth], [()], lambda row, feature: row[0].broad),
    *cases.params([row for row in cases.BROAD_ROWS if row[0].smooth], [(2,)], lambda row, feature: False),
])  # fmt: skip
def test_vmap_of_gradients(row, feature, rng):
    def gradient(x, o):
        numbers = [i for i, v in enumerate(x) if v.dtype != bool]

        def loss(*values):
            operands = list(x)
            for i, v in zip(numbers, values):
                operands[i] = v
            y = call(row, operands, o)
            return jnp.sum(jnp.sin(jnp.where(jnp.isfinite(y), y, jnp.zeros_like(y))))

        return jnp.stack(jax.grad(loss, argnums=tuple(range(len(numbers))))(*(x[i] for i in numbers)))

    check_vmap(gradient, draw(rng, row[0], (B,), feature), out=1)


MULTIPLIED = [cases.BY_NAME[name] for name in ("cumprod", "linear_recurrence", "prod", "softmax")]


@pytest.mark.parametrize("row", cases.params([row for row in cases.FIRST_ROWS if row[0].smooth],
                                             fast=lambda row, _: row[0] in MULTIPLIED))  # fmt: skip
def test_gradients_of_a_vmap_keep_dead_rows_out(row, rng):
    """Dead rows of a member are rows of a segment while it is joined with others: what they hold must not come back."""
    operands = draw(rng, row[0], (B,))
    numbers = [i for i, x in enumerate(operands) if x.dtype != bool]

    def loss(f):
        def of(*values):
            x = list(operands)
            for i, v in zip(numbers, values):
                x[i] = v
            y = f(x, jnp.asarray(LAYOUTS))
            return jnp.sum(jnp.where(jnp.isfinite(y), y, jnp.zeros_like(y)) ** 2)

        return jax.jit(jax.grad(of, argnums=tuple(range(len(numbers)))))

    f = loss(jax.vmap(lambda x, o: call(row, x, o)))
    clean = [np.asarray(g) for g in f(*(operands[i] for i in numbers))]
    poisoned = [np.asarray(operands[i]).copy() for i in numbers]
    if row[0].kind != "spread":
        for x in poisoned:
            x[0, 18:], x[2] = np.nan, np.nan
    for got, want in zip(f(*map(jnp.asarray, poisoned)), clean):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        if row[0].kind != "spread":
            np.testing.assert_array_equal(got[0, 18:], 0)
            np.testing.assert_array_equal(got[2], 0)


def test_vmap_of_initial_states(rng):
    offsets, x = jnp.asarray(LAYOUTS), jnp.asarray(cases.draw(rng, "float32", (B, N)))
    h = jnp.asarray(cases.draw(rng, "float32", (B, 4)))
    f = lambda x, h, o: sk.segmented_linear_recurrence(0.5, x, sk.Segments.from_offsets(o), initial=h)
    agree(jax.vmap(f)(x, h, offsets), one_by_one(f, x, h, offsets))
    agree(jax.vmap(f, (0, 0, None))(x, h, offsets[0]), one_by_one(lambda x, h: f(x, h, offsets[0]), x, h))
    agree(jax.vmap(f, (None, 0, None))(x[0], h, offsets[0]), one_by_one(lambda h: f(x[0], h, offsets[0]), h))


def test_a_batch_that_does_not_fit_its_offsets_is_refused():
    x, offsets = jax.ShapeDtypeStruct((1 << 20, 1 << 12), jnp.int8), jax.ShapeDtypeStruct((1 << 20, 3), jnp.int32)
    for f in (sk.segmented_cumsum, sk.segmented_sum):
        with pytest.raises(ValueError, match="1048576 members of 4[0-9]* rows do not fit int32 offsets; map over parts"):
            jax.eval_shape(jax.vmap(lambda x, o, f=f: f(x, sk.Segments.from_offsets(o))), x, offsets)


def check_vmap(f, x, out=0):
    offsets = jnp.asarray(LAYOUTS)
    single = jax.jit(f)
    shared = jax.jit(jax.vmap(f, (0, None)))(x, offsets[0])
    agree(shared, one_by_one(lambda x: single(x, offsets[0]), x))
    if x[0].ndim > 2:  # a batch at the second axis
        second = jax.jit(jax.vmap(f, (1, None), 1 + out))([jnp.moveaxis(v, 0, 1) for v in x], offsets[0])
        np.testing.assert_array_equal(np.moveaxis(np.asarray(second), 1 + out, 0), shared)
    agree(jax.jit(jax.vmap(f))(x, offsets), one_by_one(single, x, offsets))
    first = [v[0] for v in x]
    agree(jax.jit(jax.vmap(f, (None, 0)))(first, offsets), one_by_one(lambda o: single(first, o), offsets))


@pytest.mark.parametrize("row", cases.params([r for r in cases.THIN_ROWS if r[1] is r[0].options[0]],
                                             fast=lambda row, _: row in cases.BROAD_ROWS))  # fmt: skip
def test_vmap_keeps_members_apart(row, rng):
    """NaN in one member, in its dead rows too, reaches no other, and dead rows are zero."""
    operands = draw(rng, row[0], (B,))
    f = jax.jit(jax.vmap(lambda x, o: call(row, x, o)))
    clean = f(operands, jnp.asarray(LAYOUTS))
    poisoned = [np.asarray(x).copy() for x in operands]
    for x in poisoned:
        x[0] = cases.poison(x.dtype)
        if row[0].kind != "spread":
            x[2] = cases.poison(x.dtype)  # a member without live rows
    got = f([jnp.asarray(x) for x in poisoned], jnp.asarray(LAYOUTS))
    np.testing.assert_array_equal(got[1], clean[1])
    np.testing.assert_array_equal(got[2], clean[2])
    if row[0].kind != "reduce":
        np.testing.assert_array_equal(got[0, 18:], 0)


@pytest.mark.parametrize("row", cases.params(
    cases.FIRST_ROWS, fast=lambda row, _: row in cases.BROAD_ROWS[:1]))  # fmt: skip
def test_nested_vmap_jit_and_remat(row, rng):
    operands, offsets = draw(rng, row[0], (B, 2)), jnp.asarray(LAYOUTS)
    smooth = row[0].smooth and [x.dtype for x in operands] == [jnp.float32] * len(operands)

    def f(x, o):
        y = call(row, x, o)
        return jnp.sin(jnp.where(jnp.isfinite(y), y, jnp.zeros_like(y))) if smooth else y

    want = jax.vmap(lambda x, o: jax.vmap(lambda x: f(x, o))(x))(operands, offsets)
    loss = lambda f: lambda x: jnp.sum(f(x, offsets[0]))
    for variant in (jax.jit(f), jax.checkpoint(f), jax.remat(jax.jit(f))):
        got = jax.vmap(lambda x, o, v=variant: jax.vmap(lambda x: v(x, o))(x))(operands, offsets)
        np.testing.assert_array_equal(got, want)
        if smooth:
            one = [x[0, 0] for x in operands]
            for got, by_hand in zip(jax.grad(loss(variant))(one), jax.grad(loss(f))(one)):
                np.testing.assert_allclose(got, by_hand, rtol=1e-6)


@pytest.mark.parametrize("row", cases.params(cases.FIRST_ROWS, fast=lambda row, _: row[0].broad))
def test_without_jit_and_without_members(row, rng):
    operands, offsets = draw(rng, row[0], ()), jnp.asarray(LAYOUTS[0])
    want = call(row, operands, offsets)
    with jax.disable_jit():
        np.testing.assert_allclose(call(row, operands, offsets), want, rtol=1e-6)
    none = [jnp.zeros((0, *x.shape), x.dtype) for x in operands]
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
    assert "segmented_heads" not in str(traced)
    unprepared = sk.Segments._make(segments.offsets)
    assert "segmented_heads" in str(jax.make_jaxpr(lambda x, s: sk.segmented_cumsum(x, s))(x[0], unprepared))


def test_ragged_passes_through_jit_scan_and_vmap():
    x = sk.Ragged.from_arrays([np.float32([1, 2]), np.float32([3])])
    y = jax.jit(lambda x: sk.segmented_cumsum(2 * x))(x)
    assert [a.tolist() for a in y] == [[2, 6], [6]]
    carried, _ = jax.lax.scan(lambda x, _: (sk.segmented_cumsum(x), None), x, None, length=2)
    assert [a.tolist() for a in carried] == [[1, 4], [3]]
    stacked = jax.tree.map(lambda a: jnp.stack([jnp.asarray(a)] * 2), x)
    assert jax.vmap(sk.segmented_sum)(stacked).tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize(("row", "platform"), [
    *cases.params(cases.BROAD_ROWS, ["cpu", "tpu", "cuda"]),
    *cases.params([row for row in cases.FIRST_ROWS if not row[0].broad], ["tpu"], lambda row, platform: False),
])  # fmt: skip
def test_exports_for_every_platform(row, platform, rng):
    op = row[0]
    operands = [jnp.asarray(x) for x in op.draw(rng, "float32", (4 if op.kind == "spread" else 64,))]
    layout = jnp.asarray([0, 3, 3, 40, 60], jnp.int32)
    walk = row[2] if platform == "cpu" else None
    f = jax.jit(lambda o, *x: op.run(x, sk.Segments.from_offsets(o), walk, n=64))
    exported = jax.export.export(f, platforms=[platform])(layout, *operands)
    if platform == "cpu":
        np.testing.assert_array_equal(exported.call(layout, *operands), f(layout, *operands))


SYMBOLIC = [row for row in cases.FIRST_ROWS if row[0].kind != "spread"]


@pytest.mark.parametrize(("row", "feature"), cases.params(
    SYMBOLIC, [(), (3,)], lambda row, feature: row[0].broad and not feature))  # fmt: skip
def test_exports_with_symbolic_sizes(row, feature, rng):
    """One artifact for any number of rows and segments."""
    op = row[0]
    n, s = jax.export.symbolic_shape("n, s")
    f = jax.jit(lambda o, *x: op.run(x, sk.Segments.from_offsets(o), row[2]))
    shapes = [jax.ShapeDtypeStruct((n, *x.shape[1:]), x.dtype) for x in op.draw(rng, "float32", (1, *feature))]
    exported = jax.export.export(f, platforms=["cpu"])(jax.ShapeDtypeStruct((s + 1,), jnp.int32), *shapes)
    for lengths in ([3, 0, 6], [100], [1] * 50, [8, 8]):
        operands = [jnp.asarray(x) for x in op.draw(rng, "float32", (sum(lengths), *feature))]
        offsets = jnp.asarray(np.cumsum([0, *lengths]), jnp.int32)
        np.testing.assert_allclose(exported.call(offsets, *operands), f(offsets, *operands), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("row", "inside"), [
    *cases.params(cases.FIRST_ROWS, [True], lambda row, inside: row[0].broad),
    *cases.params(cases.BROAD_ROWS[:2], [False], lambda row, inside: True),
])  # fmt: skip
def test_arrays_split_along_explicit_axes_of_a_mesh(row, inside, rng):
    """As `jax.make_mesh` makes them: gathered, in the scope of the mesh and outside it, for derivatives too."""
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    operands, offsets = draw(rng, row[0], (), (2,) if row[0].broad else ()), jnp.asarray(LAYOUTS[0])
    split = [jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))) for x in operands]

    def loss(x, *others):
        y = call(row, (x, *others), offsets)
        return jnp.sum(jnp.sin(jnp.where(jnp.isfinite(y), y, jnp.zeros_like(y))))

    want = call(row, operands, offsets)
    smooth = row[0].smooth and operands[0].dtype == jnp.float32
    slope = jax.grad(loss)(*operands) if smooth else None
    with jax.set_mesh(mesh) if inside else contextlib.nullcontext():
        np.testing.assert_array_equal(call(row, split, offsets), want)
        np.testing.assert_allclose(jax.jit(lambda x: call(row, x, offsets))(split), want, rtol=1e-6)
        if smooth:
            np.testing.assert_allclose(jax.jit(jax.grad(loss))(*split), slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("row", cases.params(cases.FIRST_ROWS, fast=lambda row, _: row[0].broad))
def test_shard_map(row, rng):
    """A layout for each device; values of each, and the same values for all, whose gradients are summed."""
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    split, shared = jax.sharding.PartitionSpec("d"), jax.sharding.PartitionSpec()
    operands, offsets = draw(rng, row[0], ()), jnp.asarray(LAYOUTS[0])
    smooth = row[0].smooth and all(x.dtype == jnp.float32 for x in operands)

    def loss(f):
        def of(*x):
            y = f(offsets, *x)
            return jnp.sum(jnp.sin(jnp.where(jnp.isfinite(y), y, jnp.zeros_like(y))))

        return jax.jit(jax.grad(of, argnums=tuple(range(len(operands)))))(*operands)

    alone = lambda o, *x: call(row, x, o)
    want, slopes = alone(offsets, *operands), loss(alone) if smooth else ()
    for spec, check in ((split, True), (shared, True), (split, False)):
        f = jax.shard_map(alone, mesh=mesh, in_specs=(split,) + (spec,) * len(operands), out_specs=split, check_vma=check)
        np.testing.assert_allclose(jax.jit(f)(offsets, *operands), want, rtol=1e-6)
        if smooth and check:
            for got, slope in zip(loss(f), slopes, strict=True):
                np.testing.assert_allclose(got, slope, rtol=1e-6, atol=1e-6)


def test_shard_map_over_two_devices():
    script = """
import jax, jax.numpy as jnp, numpy as np, segkernels as sk
P = jax.sharding.PartitionSpec
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
offsets, x = jnp.array([[0, 3, 8], [0, 0, 6]]), jnp.arange(8.0)
one = lambda o, x: sk.segmented_cumsum(x, sk.Segments.from_offsets(o))
f = jax.jit(jax.shard_map(lambda o, x: one(o[0], x)[None], mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d")))
np.testing.assert_array_equal(f(offsets, x), jnp.stack([one(o, x) for o in offsets]))
slope = jax.grad(lambda x: jnp.sum(f(offsets, x) ** 2))(x)
np.testing.assert_allclose(slope, sum(jax.grad(lambda x: jnp.sum(one(o, x) ** 2))(x) for o in offsets), rtol=1e-6)
"""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
