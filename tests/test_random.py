"""Random layouts, operations, options and dtypes against the oracle, in one bucket so that nothing compiles twice.

`pytest --hypothesis-profile=long tests/test_random.py` tries ten thousand.
"""

import cases
import hypothesis
import hypothesis.strategies as st
import numpy as np

DTYPES = ("float32", "int8", "bfloat16", "complex64", "float64", "bool")
LENGTHS = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=20).filter(lambda n: sum(n) <= 128)


@hypothesis.given(LENGTHS, st.integers(0, 2**31), st.data())
def test_lists_of_random_lengths(lengths, seed, data):
    op = data.draw(st.sampled_from([op for op in cases.OPS if op.kind != "spread"]), label="operation")
    options = data.draw(st.sampled_from(op.options), label="options")
    dtype = data.draw(st.sampled_from([d for d in DTYPES if d in op.dtypes]), label="dtype")
    rng = np.random.default_rng(seed)
    flat = op.draw(rng, dtype, (sum(lengths),))
    got = op.call(op.function, [np.split(x, np.cumsum(lengths)[:-1]) for x in flat], None, **options)
    got = got if op.kind == "reduce" else np.concatenate(got)
    with cases.scope(dtype):
        want, size = cases.expected(op, options, flat, lengths, len(flat[0]), cases.result_dtype(op, flat[0]))
    cases.assert_close(got, want, size)
