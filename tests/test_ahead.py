"""The TPU kernels by the compiler for TPUs itself, ahead of time and without a TPU: `pytest -m ahead`, with libtpu.

What is compiled is what runs on a chip: layouts, vector memory, schedule. Nothing is executed here.
"""

import itertools
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segkernels as sk
from bench import ahead

pytestmark = pytest.mark.ahead

def pairwise(rows):
    """Some of the rows that hold every pair of values of two factors that all of them hold: greedily, the same each time."""
    pairs = lambda row: set(itertools.combinations(row.items(), 2))
    left, chosen = set().union(*map(pairs, rows)), []
    while left:
        chosen.append(max(rows, key=lambda row: len(pairs(row) & left)))
        left -= pairs(chosen[-1])
    return chosen


VARIANTS = pairwise(list(ahead.grid()))


def large(text, size):
    """The operations of a compiled module that make arrays of so many numbers, each once."""
    found = set()
    for shape, operation in re.findall(r"= \w+\[([\d,]*)\]\S* ([\w-]+)\(", text):
        if np.prod([int(d) for d in shape.split(",") if d], dtype=int) >= size:
            found.add(operation)
    return found


def test_variants_are_few_and_hold_every_pair():
    assert len(VARIANTS) <= 40
    for a, b in itertools.combinations(ahead.FACTORS, 2):
        assert len({(row[a], row[b]) for row in VARIANTS}) >= len(ahead.FACTORS[a]) * len(ahead.FACTORS[b]) - 3


@pytest.mark.parametrize("row", VARIANTS, ids=lambda row: "-".join(map(str, row.values())))
def test_one_kernel_and_nothing_around_it(row):
    n = 1 << 27 if row["f"] == 1 else 1 << 20  # XLA fetches small arrays before it calls
    compiled = ahead.lowered(*ahead.variant_of(row).kernel(n), row["chip"]).compile()
    text, memory = compiled.as_text(), compiled.memory_analysis().temp_size_in_bytes
    assert text.count('custom_call_target="tpu_custom_call"') == 1
    if row["way"] == "reduction":  # the scan is nowhere; of 1,000 segments there are some numbers
        assert large(text, n * row["f"] // 100) <= {"parameter", "bitcast"}
        assert memory < n * row["f"] // 100
    else:
        assert large(text, n * row["f"]) <= {"parameter", "custom-call", "bitcast"}
        assert memory == 0


N = 5000  # no multiple of anything


@pytest.mark.parametrize(("row", "x64"), [
    *cases.params([row for row in cases.FIRST_ROWS if row[0].name not in cases.OF_NO_KERNEL], [False]),
    *cases.params(cases.BROAD_ROWS, [True]),
])  # fmt: skip
def test_whole_calls(row, x64, rng):
    """Every operation with its gradient, from traced offsets on, and with 64-bit integers about."""
    op, options, _ = row
    operands = op.draw(rng, "float32", (4 if op.kind == "spread" else N,))
    numbers = [x for x in operands if x.dtype == np.float32]

    def call(offsets, *x):
        x = (*x, *operands[len(x) :])
        return op.call(op.function, [jnp.asarray(v) for v in x], sk.Segments.from_offsets(offsets), **options,
                       **(dict(size=N) if op.kind == "spread" else {}))  # fmt: skip

    def slopes(offsets, *x):
        return jax.grad(lambda *x: jnp.sum(jnp.sin(call(offsets, *x))), argnums=tuple(range(len(x))))(*x)

    with jax.enable_x64(x64):
        shapes = [jax.ShapeDtypeStruct((5,), jnp.int64 if x64 else jnp.int32)]
        shapes += [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in numbers]
        text = ahead.lowered(slopes if op.smooth else call, shapes, "v5e").compile().as_text()
    assert text.count('custom_call_target="tpu_custom_call"') >= 1
