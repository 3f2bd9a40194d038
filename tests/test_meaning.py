"""What is decided once for all operations: empty segments, dtypes, order, and keywords."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segkernels as sk

nan, inf = np.nan, np.inf
LOW, HIGH = np.iinfo(np.int32).min, np.iinfo(np.int32).max
LENGTHS = [0, 2, 0, 3, 0]

# What an empty segment gives: of float32, of int32.
EMPTY = {
    "sum": (0, 0), "prod": (1, 1), "max": (-inf, LOW), "min": (inf, HIGH), "any": (False, False), "all": (True, True),
    "mean": (nan, nan), "var": (nan, nan), "logsumexp": (-inf, -inf), "argmax": (-1, -1), "argmin": (-1, -1), "first": (0, 0),
    "last": (0, 0),
}  # fmt: skip
FORMS = ("list", "list of jax", "ragged", "flat", "numpy")


def reduced(name, form, dtype="float32", **options):
    x = np.arange(1, 6).astype(dtype)
    arrays = np.split(x, np.cumsum(LENGTHS)[:-1])
    args = {
        "list": lambda: (arrays,),
        "list of jax": lambda: ([jnp.asarray(a) for a in arrays],),
        "ragged": lambda: (sk.Ragged.from_arrays(arrays),),
        "flat": lambda: (jnp.asarray(x), cases.segments_of(LENGTHS)),
        "numpy": lambda: (x, cases.segments_of(LENGTHS)),
    }[form]()
    return np.asarray(cases.BY_NAME[name].function(*args, **options))


def test_every_reduction_is_in_the_table():
    assert set(EMPTY) == {name for name, op in cases.BY_NAME.items() if op.kind == "reduce"}


@pytest.mark.parametrize("name", EMPTY)
def test_what_an_empty_segment_gives(name):
    of_float, of_int = EMPTY[name]
    for form in FORMS if name in ("sum", "argmax") else ("list",):
        for dtype, want in (("float32", of_float), ("int32", of_int), (jnp.bfloat16, of_float)):
            np.testing.assert_array_equal(reduced(name, form, dtype)[[0, 2, 4]].astype(np.float64), [float(want)] * 3)


VALUES_OF = {"b": (True, np.bool_(False)), "i": (-7, np.int8(3)), "f": (-7.5, nan, inf)}


@pytest.mark.parametrize(("name", "form"), [(n, f) for n in EMPTY for f in FORMS if f == "list" or n in ("sum", "argmax")])
def test_empty_overrides(name, form):
    plain = reduced(name, form)
    for value in VALUES_OF[plain.dtype.kind]:
        got = reduced(name, form, empty=value)
        np.testing.assert_array_equal(got[[0, 2, 4]], [value] * 3)
        np.testing.assert_array_equal(got[[1, 3]], plain[[1, 3]])
        assert got.dtype == plain.dtype


@pytest.mark.parametrize("name", ["sum", "mean", "max", "logsumexp"])
def test_an_empty_value_takes_no_gradient(name):
    x, segments = jnp.arange(1.0, 6), cases.segments_of(LENGTHS)
    f = lambda empty: jax.grad(lambda x: jnp.sum(jnp.square(cases.BY_NAME[name].function(x, segments, empty=empty)[:4])))(x)
    assert np.all(np.isfinite(f(0)))
    np.testing.assert_array_equal(f(nan), f(0))


# Whether a dtype is kept, by the operations that take one.
DTYPE_OF = ("cumsum", "cumprod", "sum", "prod", "mean", "var")


@pytest.mark.parametrize("name", DTYPE_OF)
def test_a_dtype_is_that_of_the_result(name):
    op = cases.BY_NAME[name]
    x, segments = np.arange(1, 6, dtype=np.int8), cases.segments_of([2, 3])
    for dtype, args in ((jnp.bfloat16, [np.split(x, [2])]), (np.float64, [x, segments]), (np.complex64, [np.split(x, [2])])):
        got = op.function(*args, dtype=dtype)
        got = np.concatenate(got) if isinstance(got, list) else got
        real = {np.complex64: np.float32}.get(dtype, dtype) if name == "var" else dtype
        assert got.dtype == real
        want = [op.oracle(part.astype(np.float64)) for part in np.split(x, [2])]
        want = np.concatenate(want) if op.kind == "scan" else np.array(want)
        np.testing.assert_allclose(got.astype(np.complex128), want, rtol=5e-3)
    with pytest.raises(TypeError, match=f"segmented_{name}: `dtype` must be a dtype"):
        op.function(x, segments, dtype="none")
    if name in ("mean", "var"):
        with pytest.raises(TypeError, match=f"segmented_{name}: `dtype` must be floating or complex, got int32"):
            op.function(x, segments, dtype=np.int32)


@pytest.mark.parametrize("name", [name for name, op in cases.BY_NAME.items() if op.dtypes == cases.REALS])
def test_complex_numbers_have_no_order(name):
    for args in ([[np.complex64([1j, 2])]], [jnp.ones(2, jnp.complex64), cases.segments_of([2])]):
        with pytest.raises(TypeError, match=f"segmented_{name}: `x` has dtype complex64, and complex numbers have no order"):
            cases.BY_NAME[name].function(*args)


# Values that are easily wrong: the operation, its options, the segments, and what is right.
VALUES = {
    "exclusive is a shift": ("cumsum", dict(exclusive=True), [[inf, 1], [2, 3]], [[0, inf], [0, 2]]),
    "exclusive product": ("cumprod", dict(exclusive=True), [[0, 5, 3], [2]], [[1, 0, 0], [1]]),
    "exclusive maximum": ("cummax", dict(exclusive=True), [[3, 1, 4]], [[-inf, 3, 3]]),
    "exclusive from the end": ("cummin", dict(exclusive=True, reverse=True), [[3, 1, 4]], [[1, 4, inf]]),
    "exclusive logarithm": ("cumlogsumexp", dict(exclusive=True), [[1, 2]], [[-inf, 1]]),
    "NaN goes on": ("cummax", {}, [[1, nan, 3], [2]], [[1, nan, nan], [2]]),
    "NaN from the end": ("cummin", dict(reverse=True), [[1, nan, 3], [2]], [[nan, nan, 3], [2]]),
    "NaN in a logarithm": ("cumlogsumexp", {}, [[1, nan, 2], [0]], [[1, nan, nan], [0]]),
    "-inf to a logarithm": ("cumlogsumexp", {}, [[-inf, -inf, 1], [2]], [[-inf, -inf, 1], [2]]),
    "inf to a logarithm": ("cumlogsumexp", {}, [[inf, 1, -inf], [2]], [[inf, inf, inf], [2]]),
    "NaN in a maximum": ("max", {}, [[1, nan, 3], [-nan, 5], [5, 4]], [nan, nan, 5]),
    "NaN in a minimum": ("min", {}, [[1, nan, 3], [-nan, 5], [5, 4]], [nan, nan, 4]),
    "infinite maxima": ("max", {}, [[-inf, -inf], [inf, 1], [-inf, -3e38]], [-inf, inf, np.float32(-3e38)]),
    "NaN first in argmax": ("argmax", {}, [[10, 30, 20, 30], [3, nan, 1, nan], [2, 8]], [1, 1, 1]),
    "NaN first in argmin": ("argmin", {}, [[10, 30, 20, 10], [3, nan, 1, nan], [2, 8]], [0, 1, 0]),
    "NaN last in a sort": ("sort", {}, [[3, nan, 1], [2, -inf, inf], [0]], [[1, 3, nan], [-inf, 2, inf], [0]]),
    "a stable order": ("argsort", {}, [[1, 0, 1, 0, nan, 1]], [[1, 3, 0, 2, 5, 4]]),
    "logarithms of infinities": ("logsumexp", {}, [[-inf, -inf], [inf, 1], [inf, -inf]], [-inf, inf, inf]),
    "softmax of -inf is NaN at home": ("softmax", {}, [[-inf, -inf], [0, 0]], [[nan, nan], [0.5, 0.5]]),
    "softmax of inf is NaN at home": ("softmax", {}, [[inf, 0, 1], [0, 0]], [[nan, nan, nan], [0.5, 0.5]]),
    "softmax of large numbers": ("softmax", {}, [[3e38, 3e38], [-3e38, -3e38], [0]], [[0.5, 0.5], [0.5, 0.5], [1]]),
    "NaN is not 0": ("all", {}, [[nan, 1], [0, 1]], [True, False]),
    "NaN is something": ("any", {}, [[nan, 0], [0, 0]], [True, False]),
    "a variance far from 0": ("var", {}, [[1e4, 1e4 + 2], [5]], [1, 0]),
    "too few rows": ("var", dict(ddof=1), [[5], [1, 3]], [nan, 2]),
    "far too few rows": ("var", dict(ddof=2), [[5], [1, 3]], [nan, nan]),
    "rows that are all alike": ("standardize", {}, [[2, 2, 2], [1]], [[0, 0, 0], [0]]),
}  # fmt: skip


@pytest.mark.parametrize("what", VALUES)
def test_values_at_the_edges(what):
    name, options, arrays, want = VALUES[what]
    got = cases.BY_NAME[name].function([np.float32(a) for a in arrays], **options)
    for y, w in zip(got, want, strict=True):
        np.testing.assert_allclose(y, np.asarray(w, np.asarray(y).dtype), rtol=1e-6)


def test_maxima_of_every_pattern_of_bits():
    """Floats are compared by their bits on the way: subnormals, both zeros, both signs of NaN, the largest numbers."""
    for dtype, bits in (("float32", np.uint32), ("float64", np.uint64)):
        info, width = np.finfo(dtype), np.iinfo(bits).bits
        special = np.array([0.0, -0.0, 1.5, -1.5, info.max, info.min, inf, -inf, info.tiny, -info.tiny], dtype)
        nans = np.array([nan], dtype).view(bits) | np.array([0, 1 << (width - 1), 5, (1 << (width - 1)) + 77], bits)
        with cases.scope(dtype):
            for name, oracle in (("max", np.max), ("min", np.min)):
                f = cases.BY_NAME[name].function
                pairs = [np.array([a, b], dtype) for a in special for b in special]
                np.testing.assert_array_equal(f(pairs), [oracle(pair) for pair in pairs])
                assert np.all(np.isnan(f([np.array([a, b], bits).view(dtype) for a in nans for b in special.view(bits)])))


@pytest.mark.parametrize("b", ["bfloat16", "float16", "float32", "int32", "complex64", "bool"])
def test_python_scalars_promote_nothing(b):
    """A gate that is a Python number is as weak as in JAX; a NumPy or JAX number is not."""
    x, segments = jnp.ones(3, b), cases.segments_of([3])
    with jax.numpy_dtype_promotion("standard"):
        weak = jnp.result_type(jnp.zeros((), b), 0.5)
        assert sk.segmented_linear_recurrence(0.5, x, segments).dtype == weak
        assert sk.segmented_linear_recurrence(0.5, [np.ones(3, np.float32)])[0].dtype == np.float32
        assert sk.segmented_linear_recurrence(np.float64(0.5), [np.ones(3, np.float32)])[0].dtype == np.float64


def test_operands_promote_together():
    with jax.numpy_dtype_promotion("standard"):
        a, b, h = [np.float64([2.0, 2.0])], [np.float32([1, 1])], np.float32([1])
        (got,) = sk.segmented_linear_recurrence(a, b, initial=h)
        assert got.dtype == np.float64 and got.tolist() == [3, 7]
        (got,) = sk.segmented_linear_recurrence([jnp.ones(2)], [np.int32([1, 1])])
        assert isinstance(got, jax.Array) and got.dtype == jnp.float32 and got.tolist() == [1, 2]


def test_rows_that_a_flag_a_row_fills():
    x, segments = jnp.arange(12.0).reshape(6, 2), cases.segments_of([4, 2])
    valid = jnp.asarray([False, True, False, False, False, True])
    got = sk.segmented_fill_forward(x, valid, segments)
    np.testing.assert_array_equal(got[:, 0], [0, 2, 2, 2, 8, 10])
    np.testing.assert_array_equal(got, sk.segmented_fill_forward(x, jnp.stack([valid, valid], 1), segments))


def test_any_pytree_of_any_form():
    """Pairs of which one has features, as flat arrays and as `Ragged`; exclusive ones begin with the identity."""
    compose = lambda f, g: dict(a=f["a"] * g["a"], b=g["a"][:, None] * f["b"] + g["b"])
    elems = dict(a=jnp.asarray([2.0, 3.0, 5.0]), b=jnp.ones((3, 2)))
    identity, segments = dict(a=1, b=np.zeros(2)), cases.segments_of([2, 1])
    got = sk.segmented_associative_scan(compose, elems, segments)
    np.testing.assert_array_equal(got["a"], [2, 6, 5])
    np.testing.assert_array_equal(got["b"][:, 0], [1, 4, 1])
    for reverse, a in ((False, [1, 2, 1]), (True, [3, 1, 1])):
        shifted = sk.segmented_associative_scan(compose, elems, segments, identity=identity, exclusive=True, reverse=reverse)
        np.testing.assert_array_equal(shifted["a"], a)
    ragged = sk.segmented_associative_scan(compose, jax.tree.map(lambda x: sk.Ragged(x, segments), elems))
    np.testing.assert_array_equal(ragged["b"].values, got["b"])


@pytest.mark.parametrize("walk", ["loop", "associative"])
@pytest.mark.parametrize("reverse", [False, True])
def test_infinite_gradients_of_a_function_do_not_matter_where_it_is_not_called(walk, reverse):
    """The first row is 0, where the root has none; it is joined with nothing."""
    root = lambda a, b: jnp.sqrt(a**2 + b**2)
    x, segments = jnp.asarray([0.0, 3.0, 4.0] if not reverse else [4.0, 3.0, 0.0]), cases.segments_of([3])
    f = lambda x: jnp.sum(sk.segmented_associative_scan(root, x, segments, reverse=reverse, implementation=cases.config(walk)))
    np.testing.assert_allclose(jax.grad(f)(x), [1, 1.6, 0.8] if not reverse else [0.8, 1.6, 1], rtol=1e-6)


def test_functions_that_close_over_what_is_traced():
    f = lambda x, *layout: lambda w: jnp.sum(sk.segmented_associative_scan(lambda a, b: a + b * w, x, *layout)[0])
    segments = cases.segments_of([3])
    for args in (([jnp.ones(3)],), ([np.ones(3, np.float32)],), (jnp.ones((3, 1)).T.reshape(3), segments)):
        assert np.isfinite(jax.grad(f(*args))(2.0))
    assert jax.grad(lambda w: f([np.ones(3, np.float32)])(w))(2.0) == 3


def test_operands_that_are_seldom_tried():
    """Other byte orders, no jit, nothing beside something traced, 64 bits in a trace."""
    recur, fill = sk.segmented_linear_recurrence, sk.segmented_fill_forward
    big = np.array([1.0], ">f8")
    np.testing.assert_array_equal(recur(np.array(0.5, ">f8"), [np.ones(2)], initial=big)[0], [1.5, 1.75])
    with jax.disable_jit():
        np.testing.assert_array_equal(recur(0.5, jnp.ones(2), cases.segments_of([2])), [1, 1.5])
    assert jax.jit(lambda a: recur(a, []))(0.5) == []
    got = jax.jit(lambda v: fill([np.arange(3)], [v]))(jnp.array([True, False, False]))
    np.testing.assert_array_equal(got[0], [0, 0, 0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_initial_states_are_rounded_once(dtype, rng):
    b, a = (jnp.asarray(x) for x in cases.with_gates(rng, dtype, (200,)))
    h, segments = jnp.asarray(cases.draw(rng, dtype, (50,))), cases.segments_of([4] * 50)
    wide = [x.astype(jnp.float32) for x in (a, b, h)]
    got = sk.segmented_linear_recurrence(a, b, segments, initial=h)
    want = sk.segmented_linear_recurrence(*wide[:2], segments, initial=wide[2]).astype(dtype)
    np.testing.assert_array_equal(got.astype(jnp.float32), want.astype(jnp.float32))


@pytest.mark.parametrize("name", ["first", "last", "sort", "argsort", "associative_scan"])
def test_what_is_plain_jax_refuses_machines(name):
    op, x = cases.BY_NAME[name], jnp.ones((3, 2, 2))
    with pytest.raises(ValueError, match=f"segmented_{name}: `implementation` 'native' cannot serve it: it .*, in plain JAX"):
        op.call(op.function, [x], cases.segments_of([3]), implementation="native")
    op.call(op.function, [x], cases.segments_of([3]), implementation="xla")


def test_initial_states_in_every_form():
    b, h = [np.float32([1, 2]), np.float32([]), np.float32([3])], np.float32([10, 20, 30])
    segments, flat = cases.segments_of([2, 0, 1]), np.float32([1, 2, 3])
    forward, backward = [6, 5, 18], [4.5, 7, 18]
    for reverse, want in ((False, forward), (True, backward)):
        options = dict(initial=h, reverse=reverse)
        run = lambda a, *x, options=options: sk.segmented_linear_recurrence(a, *x, **options)
        np.testing.assert_array_equal(np.concatenate(run(0.5, b)), want)
        np.testing.assert_array_equal(np.concatenate(run(0.5, [jnp.asarray(x) for x in b])), want)
        np.testing.assert_array_equal(run(0.5, sk.Ragged.from_arrays(b)).values[:3], want)
        np.testing.assert_array_equal(run(0.5, flat, segments), want)
        np.testing.assert_array_equal(run(jnp.full(3, 0.5), jnp.asarray(flat), segments), want)
    nan_initial = np.float32([10, nan, 30])  # of the empty segment
    np.testing.assert_array_equal(sk.segmented_linear_recurrence(0.5, flat, segments, initial=nan_initial), forward)
