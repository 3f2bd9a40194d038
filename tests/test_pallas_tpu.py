"""The TPU machine under JAX's interpreter of TPU kernels, on a CPU, which watches memory: `pytest -m interpreter`.

Memory that nothing was written to is NaN there, a read outside of a buffer raises, and accesses that race are found.
"""

import dataclasses

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import segkernels as sk
from segkernels._algebra import ADD, AFFINE, MAX, MIN
from segkernels._segments import head_bits, reset_bits
from segkernels.kernels import pallas_tpu, pallas_tpu_heads, pallas_tpu_scan, pallas_tpu_steps
from segkernels.kernels.pallas_tpu_fold import Fold
from segkernels.kernels.pallas_tpu_walk import Columns, Flat
from segkernels.kernels.pallas_tpu_words import Words

pytestmark = pytest.mark.interpreter

WATCHED = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan", out_of_bounds_reads="raise")
# Takes half the time, where memory is used as it is in a test that is watched.
FASTER = pltpu.InterpretParams(uninitialized_memory="nan", out_of_bounds_reads="raise")
ROWS = [(op, options, "pallas_tpu") for op in cases.OPS if op.name not in cases.OF_NO_KERNEL for options in op.options]
DTYPES = ("bfloat16", "float16", "int32", "int16", "int8", "uint32", "uint8", "bool")


@pytest.fixture(autouse=True)
def raced(capfd):
    """Whether a kernel raced since this was asked last: JAX 0.10 prints it, and later ones raise."""
    raced = lambda: "RACE DETECTED" in "".join(capfd.readouterr())
    with pltpu.force_tpu_interpret_mode(WATCHED):
        yield raced
    assert not raced()
    pltpu.reset_tpu_interpret_mode_state()


def draw(rng, op, dtype, lengths, feature, n, s):
    operands = [x.copy() for x in op.draw(rng, dtype, (s if op.kind == "spread" else n, *feature))]
    if op.kind != "spread":
        for x in operands:
            x[sum(lengths) :] = cases.poison(x.dtype)
    return operands


# Values --------------------------------------------------------------------------------------------------------------

N, S = 1600, 200  # of the layouts here, so that one compile serves them
# A run takes a second, however few rows it has: all layouts of the table in one.
JOINED = [length for lengths in cases.LAYOUTS.values() for length in lengths]


# A sum, a maximum reversed and exclusive, and a recurrence of pairs: they stand for all in what takes long.
BROADEST = [row for row in ROWS if cases.row_id(row) in ("cumsum-pallas_tpu", "cummax-exclusive-reverse-pallas_tpu",
                                                         "linear_recurrence-pallas_tpu")]  # fmt: skip
COMPOSED = ("mean", "var", "logsumexp", "argmax", "argmin", "softmax", "log_softmax", "standardize")  # of several verbs


@pytest.mark.parametrize("row", cases.params(ROWS))
def test_every_layout(row, rng):
    with pltpu.force_tpu_interpret_mode(WATCHED if row in BROADEST else FASTER):
        for lengths in (JOINED,) if row[0].name.removeprefix("segmented_") in COMPOSED else (JOINED, cases.LAYOUTS["mixed"], []):
            cases.check(row, draw(rng, row[0], "float32", lengths, (), N, S), lengths, S, N)


@pytest.mark.parametrize(("row", "dtype"), [
    pytest.param(row, dtype, id=f"{cases.row_id(row)}-{dtype}") for row in ROWS for dtype in DTYPES
    if dtype in row[0].dtypes and (row in BROADEST or (row[1] is row[0].options[0] and dtype in ("bfloat16", "int8")
                                                       and row[0].name.removeprefix("segmented_") not in COMPOSED))
    and not (dtype == "uint32" and row[0].name == "segmented_cummax")
])  # fmt: skip
def test_dtypes(row, dtype, rng):
    with pltpu.force_tpu_interpret_mode(WATCHED if row == BROADEST[0] else FASTER):
        cases.check(row, draw(rng, row[0], dtype, JOINED, (), N, S), JOINED, S, N)


@pytest.mark.parametrize(("row", "dtype", "feature"), [
    pytest.param(row, dtype, feature, id=f"{cases.row_id(row)}-{dtype}-{feature}")
    for row in ROWS if row[0].broad and row[1] is row[0].options[0] and row[0].name != "segmented_argmax"
    for dtype, feature in (("float32", (3,)), ("float32", (2, 70)), ("bfloat16", (3,)), ("int8", (130,)))
])  # fmt: skip
def test_columns(row, dtype, feature, rng):
    with pltpu.force_tpu_interpret_mode(WATCHED if row[0].name == "segmented_cumsum" else FASTER):
        cases.check(row, draw(rng, row[0], dtype, JOINED, feature, N, S), JOINED, S, N)


def test_uint32_is_not_ordered(rng):
    with pytest.raises(ValueError, match="segmented_cummax: .*'pallas_tpu' cannot serve .*: it does not order uint32"):
        sk.segmented_cummax(jnp.ones(4, jnp.uint32), cases.segments_of([4]), implementation="pallas_tpu")


# Blocks: the carry from one to the next, and what is past the live rows -------------------------------------------------

WALKS = {  # operation, options, dtype, columns, parts and tiles (or steps) of a block
    "sum": ("cumsum", {}, "float32", 1, dict(tiles=1, parts=1)),
    "sum in two parts": ("cumsum", {}, "float32", 1, dict(tiles=1, parts=2)),
    "exclusive maximum, reverse": ("cummax", dict(exclusive=True, reverse=True), "float32", 1, dict(tiles=1, parts=2)),
    "narrow sum, reverse": ("cumsum", dict(reverse=True), "bfloat16", 1, dict(tiles=1, parts=1)),
    "recurrence": ("linear_recurrence", {}, "float32", 1, dict(tiles=1, parts=1)),
    "sum as it is": ("cumsum", {}, "float32", 1, None),  # blocks of 512 K rows: few layouts
    "exclusive maximum, reverse, narrow, as it is": ("cummax", dict(exclusive=True, reverse=True), "bfloat16", 1, None),
    "minimum of bytes, as it is": ("cummin", {}, "int8", 1, None),
    "sum of columns": ("cumsum", {}, "float32", 130, dict(steps=20)),
    "maximum of narrow columns, reverse": ("cummax", dict(reverse=True), "bfloat16", 130, dict(steps=20)),
    "recurrence of columns": ("linear_recurrence", dict(reverse=True), "float32", 3, dict(steps=20)),
    "sum of columns as it is": ("cumsum", {}, "float32", 2, None),
}
MONOIDS = {"cumsum": ADD, "cummax": MAX, "cummin": MIN, "linear_recurrence": AFFINE}


def ragged(rng, n):
    """Segments of every length, some of them empty."""
    ends = np.sort(rng.integers(0, n + 1, 300))
    ends[100:103] = ends[100]
    return np.diff([0, *ends, n])


IN_PLAIN_JAX = ("sum in two parts", "exclusive maximum, reverse", "maximum of narrow columns, reverse")


@pytest.mark.parametrize("name", [name for name in WALKS if name not in IN_PLAIN_JAX])
def test_blocks(name, rng):
    watched = name in ("sum", "narrow sum, reverse", "sum of columns")
    with pltpu.force_tpu_interpret_mode(WATCHED if watched else FASTER):
        check_blocks(name, rng)


@pytest.mark.parametrize("name", IN_PLAIN_JAX)
def test_blocks_as_plain_jax(name, rng):
    """Under the other interpreter, which makes JAX of a kernel and runs it compiled."""
    with pltpu.force_tpu_interpret_mode(None):
        check_blocks(name, rng, interpret=True)


def check_blocks(name, rng, **how):
    which, options, dtype, f, shape = WALKS[name]
    op = cases.BY_NAME[which]
    options = dict(exclusive=False, reverse=False) | options
    dtypes = (cases.dtype_of(dtype),) * (2 if which == "linear_recurrence" else 1)
    fold = Fold(MONOIDS[which], options["reverse"], options["exclusive"], dtypes, interpreted=True)
    walk = pallas_tpu.walk_of(fold, 1 << 22, f)
    if shape is not None:
        walk = (Flat if f == 1 else Columns)(fold, Words(4 // dtypes[0].itemsize, packed=True), **shape)
    block = walk.rows * walk.per_row
    n = 3 * block - 8 * 128 * (4 // dtypes[0].itemsize) if f == 1 else 3 * block - 1

    @jax.jit
    def scan(values, offsets, n_live):
        bits = reset_bits(head_bits(offsets, n), n_live, fold.reverse)
        return pallas_tpu_scan.all_rows(walk, values, pallas_tpu.plan_of(walk, bits, n), n_live, **how)

    edges = [block - 1, 1, block, 1] if shape is not None else [block - 1]
    for lengths in ([n], [*edges, n - sum(edges)], ragged(rng, n), [1], [block], [block - 1], [block + 1], []):
        if name.endswith("as it is") and len(lengths) < 9:
            continue
        offsets = jnp.asarray(np.pad(np.cumsum([0, *lengths]), (0, 302 - len(lengths)), mode="edge"), jnp.int32)
        operands = [x.copy() for x in op.draw(rng, dtype, (n, f))]
        if dtypes[0].kind not in "iu" and len(lengths) > 2:  # what must stay in its segment
            odd = [np.nan] if which == "linear_recurrence" else [np.nan, np.inf, -np.inf]  # a regrouped product makes NaN of inf
            operands[0][rng.integers(0, sum(lengths), 9)] = rng.choice(odd, (9, 1))
        for x in operands:
            x[sum(lengths) :] = cases.poison(x.dtype)
        values = [jnp.asarray(x) for x in (operands[::-1] if which == "linear_recurrence" else operands)]
        got = scan(values, offsets, offsets[-1])
        given = options if which != "linear_recurrence" else dict(reverse=options["reverse"])
        want, size = cases.expected(op, given, operands, lengths, n, got.dtype)
        cases.assert_close(got, want, size)


@pytest.mark.parametrize(("name", "dtype", "f", "shape"), [
    ("sum", "float32", 1, dict(tiles=1, parts=1)),
    ("max", "bfloat16", 1, dict(tiles=1, parts=2)),
    ("min", "int8", 1, dict(tiles=1, parts=1)),
    ("sum", "uint32", 1, dict(tiles=2, parts=1)),
    ("sum", "float32", 130, dict(steps=20)),
    ("max", "uint8", 2, dict(steps=20)),
])  # fmt: skip
def test_reductions_of_blocks(name, dtype, f, shape, rng, monkeypatch):
    """Blocks where many segments end, more than a tile of them, and where none does; ends at every edge; no row at all."""
    op, narrow = cases.BY_NAME[name], cases.dtype_of(dtype).itemsize
    walk = (Flat if f == 1 else Columns)(None, Words(4 // narrow, packed=True), **shape)
    monkeypatch.setattr(pallas_tpu, "walk_of", lambda fold, n, f: dataclasses.replace(walk, fold=fold))
    block, s = walk.rows * walk.per_row, 3000 if f == 1 else 1100
    n, ones = 3 * block - 1, min(s - 500, 2 * block)

    @jax.jit
    def reduce(values, offsets):
        return op.run([values], sk.Segments.from_offsets(offsets), "pallas_tpu", n)

    with pltpu.force_tpu_interpret_mode(FASTER):
        for lengths in ([n], [block - 1, 1, block, 1], [*np.ones(ones, int), 0, block - 1], []):
            operands = draw(rng, op, dtype, lengths, (f,) if f > 1 else (), n, s)
            offsets = np.pad(np.cumsum([0, *lengths]), (0, s - len(lengths)), mode="edge")
            got = reduce(jnp.asarray(operands[0]), jnp.asarray(offsets, jnp.int32))
            want, size = cases.expected(op, {}, operands, np.diff(offsets), s, got.dtype)
            cases.assert_close(got, want, size)


@pytest.mark.parametrize("n", [1, 100, (1 << 19) - 1, 1 << 19, (1 << 20) + 77])
def test_heads(n, rng):
    """The bits of heads by matrix products: few and many starts a block, none in some, more than a tile in others."""
    for lengths in ([n], np.ones(min(n, 5000), int), np.diff([0, *np.sort(rng.integers(0, n + 1, 3000)), n // 2 + n // 3])):
        offsets = np.minimum(np.cumsum([0, *np.maximum(lengths, 0)]), n).astype(np.int32)
        offsets = np.pad(offsets, (0, 5002 - len(offsets)), mode="edge")
        got = jax.jit(pallas_tpu_heads.head_bits, static_argnums=1)(jnp.asarray(offsets), n)
        np.testing.assert_array_equal(got, head_bits(offsets, n))


def test_heads_of_more_tiles_than_scalar_memory_holds(monkeypatch):
    monkeypatch.setattr(pallas_tpu_steps, "_MOST", 1)
    traced = jax.make_jaxpr(lambda offsets: pallas_tpu_heads.head_bits(offsets, 100))(jnp.asarray([0, 3, 100]))
    assert "scatter" in str(traced) and "pallas_call" not in str(traced)


# Derivatives and batches ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cumprod", "cummax", "linear_recurrence", "max"])
def test_derivatives(name, rng):
    """Those of the loop, to second order: machines share their rules, and here the verbs of derivatives run on this one too."""
    op = cases.BY_NAME[name]
    operands = [jnp.asarray(x) for x in op.draw(rng, "float32", (40,))]
    segments = cases.segments_of([3, 0, 9, 1, 20])

    def loss(walk):
        def of(*x):
            y = op.run(x, segments, walk, 40)
            return jnp.sum(jnp.sin(jnp.where(jnp.isfinite(y), y, jnp.zeros_like(y))))

        return of

    def slopes(walk):
        one = jax.grad(loss(walk), argnums=tuple(range(len(operands))))
        return jax.jit(lambda *x: jax.jvp(one, x, tuple(map(jnp.cos, x))))(*operands)

    with pltpu.force_tpu_interpret_mode(FASTER):
        got = jax.tree.leaves(slopes("pallas_tpu"))
    for ours, by_loops in zip(got, jax.tree.leaves(slopes("loop")), strict=True):
        np.testing.assert_allclose(ours, by_loops, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["cumsum", "linear_recurrence", "max"])
def test_vmap(name, rng):
    op, layouts = cases.BY_NAME[name], jnp.asarray([[0, 3, 3, 10, 18], [0, 0, 5, 5, 21], [0, 0, 0, 0, 0]], jnp.int32)
    operands = [jnp.asarray(x) for x in op.draw(rng, "float32", (3, 21))]
    of = lambda walk: lambda x, o: op.run(x, sk.Segments.from_offsets(o), walk, 21)
    for axes, offsets in (((0, 0), layouts), ((0, None), layouts[0])):
        want = jax.vmap(of("loop"), axes)(operands, offsets)
        np.testing.assert_allclose(jax.jit(jax.vmap(of("pallas_tpu"), axes))(operands, offsets), want, rtol=1e-5, atol=1e-5)


# One compile; and what the interpreter would have said ---------------------------------------------------------------


def test_one_trace_for_every_layout_of_a_capacity():
    traces = []

    @jax.jit
    def scan(x, offsets):
        traces.append(x)
        return sk.segmented_cumsum(x, sk.Segments.from_offsets(offsets), implementation="pallas_tpu")

    for lengths in ([5, 9], [1, 0], [2048, 0]):
        got = scan(jnp.ones(2048), jnp.asarray(np.cumsum([0, *lengths]), jnp.int32))
        want = np.concatenate([np.arange(1, length + 1) for length in lengths] + [np.zeros(2048 - sum(lengths))])
        np.testing.assert_array_equal(got, want)
    assert len(traces) == 1


def test_a_race_is_seen(raced):
    """A kernel that reads what a copy has not brought yet."""

    def kernel(x_ref, out_ref, here_ref, done):
        copy = pltpu.make_async_copy(x_ref, here_ref, done)
        copy.start()
        out_ref[...] = here_ref[...]
        copy.wait()

    shape = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    run = pl.pallas_call(kernel, in_specs=[pl.BlockSpec(memory_space=pl.ANY)], out_shape=shape,
                         scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA])  # fmt: skip
    try:
        run(jnp.ones((8, 128))).block_until_ready()
        seen = raced()
    except Exception as error:  # noqa: BLE001 - whatever this JAX raises
        seen = "race" in str(error).lower()
    assert seen


def test_a_read_out_of_bounds_is_seen():
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[pl.ds(pl.program_id(0) + 4, 8), :]

    spec, shape = pl.BlockSpec((8, 128), lambda i: (0, 0)), jax.ShapeDtypeStruct((8, 128), jnp.float32)
    run = pl.pallas_call(kernel, grid=(1,), in_specs=[spec], out_specs=spec, out_shape=shape)
    with pytest.raises(Exception, match="(?i)out.of.bounds"):
        run(jnp.ones((8, 128))).block_until_ready()
