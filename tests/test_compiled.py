"""What XLA makes of the loops on CPU: one native loop each, or a row costs 50 times more."""

import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segkernels as sk

NATIVE = 'xla_cpu_small_call="true"'


def compiled(op, options, dtype, shape, walk="loop"):
    segments = cases.segments_of([shape[0] // 2] * 2).prepare(shape[0])
    rng = np.random.default_rng(0)
    operands = op.draw(rng, dtype, (2, *shape[1:]) if op.kind == "spread" else shape)
    f = jax.jit(lambda s, *x: op.run(x, s, walk, shape[0], **options))
    return f.lower(segments, *operands).compile().as_text()


def loops(text):
    """Loops that are native, and those that run operation by operation at the top level."""
    entry = text[text.index("\nENTRY") :]
    return text.count(NATIVE), len(re.findall(r" while\(", entry))


# What is not made of loops over rows: it sorts, looks rows up, or folds with a function of the user's.
LOOPS = [row for row in cases.OP_ROWS if row[2] == "loop" and row[0].name.removeprefix("segmented_") not in (
    "first", "last", "sort", "argsort", "associative_scan")]  # fmt: skip


def fast_dtype(row, dtype):
    return cases.is_first(row) and (dtype == "float32" or row[0].broad and dtype in ("float64", "bfloat16", "bool"))


@pytest.mark.parametrize(("row", "dtype"), [
    pytest.param(row, dtype, id=f"{cases.row_id(row)}-{dtype}", marks=() if fast_dtype(row, dtype) else pytest.mark.slow)
    for row in LOOPS for dtype in row[0].dtypes if dtype == "float32" or row[1] is row[0].options[0] and row[0].kind != "rows"
])  # fmt: skip
def test_every_loop_is_native(row, dtype):
    op, options, _ = row
    with cases.scope(dtype):
        for shape in ((4096,), (4096, 3), (4096, 16), (4095,)) if op.broad else ((4096,), (4096, 3)):
            native, interpreted = loops(compiled(op, options, dtype, shape))
            wide = len(shape) > 1 and shape[-1] * max(4, cases.dtype_of(dtype).itemsize) > 32
            # Of wide rows the loop over blocks of columns is none; it has native ones inside.
            assert native >= 1 and interpreted <= wide * native, shape


@pytest.mark.parametrize("name", ["cumprod", "associative_scan"])
def test_trees_have_little_code(name):
    """Compilers of accelerators take seconds for each product: they grow with powers of 64, not of 2, of the rows."""
    op, segments = cases.BY_NAME[name], cases.segments_of([9])
    products = lambda n: jax.jit(lambda *x: op.run(x, segments, "associative", n)).lower(
        *(x[:1].repeat(n, 0) for x in op.draw(np.random.default_rng(0), "float32", (1,)))).as_text().count(
            "stablehlo.multiply" if name == "cumprod" else "stablehlo.dot_general")  # fmt: skip
    assert 1 <= products(1 << 6) and products(1 << 18) <= 8


@pytest.mark.parametrize(("row", "f"), cases.params(
    [row for row in LOOPS if cases.is_first(row)], [64, 300], lambda row, f: row[0].broad))
def test_wide_features_loop_natively_over_rows(row, f):
    """At most the loops over blocks of columns run operation by operation."""
    native, interpreted = loops(compiled(row[0], row[1], "float32", (4096, f)))
    assert native >= 1 and interpreted <= native


def test_the_check_sees_a_loop_that_is_not_native():
    """The negative control: 64 rows in one iteration are over the limit of jaxlib 0.10; a sort is over any."""

    def body(i, x):
        return jnp.sort(x + i.astype(x.dtype))

    text = jax.jit(lambda x: jax.lax.fori_loop(0, 10, body, x)).lower(jnp.ones(4096)).compile().as_text()
    native, interpreted = loops(text)
    assert native == 0 and interpreted == 1


def test_work_follows_the_live_rows():
    """The trip count of every loop over rows is computed from the layout: none is the capacity."""
    capacity = 1 << 20
    text = str(
        jax.make_jaxpr(lambda x, s: sk.segmented_cumsum(x, s))(
            jnp.ones(capacity), sk.Segments.from_lengths([3]).prepare(capacity)
        )
    )
    assert "segmented_scan" in text
    run = lambda x, s: sk.segmented_cumsum(x, s, implementation=cases.config("loop"))
    lowered = jax.jit(run).lower(jnp.ones(capacity), sk.Segments.from_lengths([3]).prepare(capacity)).as_text()
    assert lowered.count("stablehlo.while") >= 2
    bounds = re.findall(r"stablehlo.compare\s+(?:LT|NE), %\w+, %(\w+)", lowered)
    constants = dict(re.findall(r"%(\w+) = stablehlo.constant dense<(\d+)> : tensor<i32>", lowered))
    assert bounds and all(constants.get(name) not in (str(capacity), str(capacity // 8)) for name in bounds)


@pytest.mark.parametrize("row", cases.params(cases.FIRST_ROWS, fast=cases.is_broad))
def test_programs_do_not_grow_with_the_data(row):
    sizes = [len(compiled(row[0], row[1], "float32", (n,))) for n in (1 << 12, 1 << 18)]
    assert sizes[1] < 1.05 * sizes[0]
    np.testing.assert_array_less(sizes, 300_000)
