"""Bad input of every kind: one sentence that names the call, the argument, what came and what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import segkernels as sk
from segkernels import Segments as S

X, LAYOUT = np.ones(5, np.float32), S.from_lengths([2, 3])
cumsum, total, repeat = sk.segmented_cumsum, sk.segmented_sum, sk.segmented_repeat
recur, fill, scan = sk.segmented_linear_recurrence, sk.segmented_fill_forward, sk.segmented_associative_scan
RAGGED = sk.Ragged.from_arrays([X, X])

STACKED = jax.tree.map(lambda *x: np.stack(x), LAYOUT, S.from_lengths([1, 4]))


class Fails:
    def __array__(self, *args, **kwargs):
        raise RuntimeError("it requires grad")


def gone():
    """A JAX array whose memory another call has got."""
    x = jnp.ones(5)
    x.delete()
    return x


# what is tried, what it raises, and words that the sentence must have
BAD = {
    # the input
    "array without segments": (lambda: cumsum(X), TypeError, "segmented_cumsum: `x` must be a list of arrays, a `Ragged`, or an"),
    "generator": (lambda: cumsum(x for x in [X]), TypeError, "segmented_cumsum: .* got generator"),
    "dict": (lambda: total({"a": X}), TypeError, "segmented_sum: .* got dict"),
    "none": (lambda: cumsum(None), TypeError, "got NoneType"),
    "ids for segments": (lambda: total(X, np.array([0, 0, 1, 1, 1])), TypeError, "`segments` must be a `Segments`, got ndarray.*from_"),
    "list for segments": (lambda: cumsum(X, [2, 3]), TypeError, "`segments` must be a `Segments`, got list"),
    "list and segments": (lambda: cumsum([X], LAYOUT), TypeError, "a list has a layout of its own"),
    "ragged and segments": (lambda: cumsum(RAGGED, LAYOUT), TypeError, "a Ragged has a layout of its own"),
    "too few rows": (lambda: cumsum(X[:4], LAYOUT), ValueError, "the values have 4 rows but the segments describe 5"),
    "too few rows, jax": (lambda: total(jnp.ones(4), LAYOUT), ValueError, "the values have 4 rows but the segments describe 5"),
    "0-d array": (lambda: cumsum(jnp.float32(3), LAYOUT), ValueError, "`x` needs a first axis"),
    "0-d entry": (lambda: cumsum([X, np.float32(3)]), ValueError, "entry 1 of the list is 0-d"),
    "scalar entries": (lambda: cumsum([1.0, 2.0]), ValueError, "entry 0 of the list is 0-d"),
    "trailing shapes": (lambda: cumsum([np.ones((2, 3)), np.ones((1, 4))]), ValueError, r"equal shapes .* \(2, 3\) at 0 and \(1, 4\) at 1"),
    "ranks": (lambda: total([X, np.ones((1, 4))]), ValueError, "equal shapes but for the first axis"),
    "traced trailing shapes": (lambda: jax.jit(lambda x: cumsum([x, x[None]]))(X), ValueError, "equal shapes but for the first axis"),
    "strings": (lambda: cumsum([np.array(["a"])]), TypeError, "`x` has dtype <U1; give it a numeric dtype"),
    "objects": (lambda: cumsum([[None]]), TypeError, "entry 0 must be an array of numbers, got a list"),
    "ragged entry": (lambda: cumsum([[[1], [1, 2]]]), TypeError, "entry 0 must be an array of numbers"),
    "dates": (lambda: cumsum([np.array(["2026-01-01"], "M8[D]")]), TypeError, "datetime64"),
    "masked": (lambda: cumsum([np.ma.array([1.0], mask=[True])]), TypeError, "masked array"),
    "float8": (lambda: cumsum([jnp.ones(2, jnp.float8_e4m3fn)]), TypeError, "has dtype float8_e4m3fn; give it a numeric dtype"),
    "longdouble": (lambda: cumsum([np.ones(2, np.longdouble)]), TypeError, "has dtype"),
    "random keys": (lambda: cumsum([jax.random.split(jax.random.key(0))]), TypeError, "has dtype key"),
    "list of ragged": (lambda: cumsum([RAGGED]), TypeError, "a `Ragged` is no single array"),
    "past the buffer": (lambda: total(X[:4], S.from_offsets(jnp.array([0, 2, 9]))), ValueError, "have 4 rows but the segments describe 9"),
    "past the buffer, jax": (lambda: cumsum(jnp.ones(4), S.from_offsets(jnp.array([0, 2, 9]))), ValueError, "the segments describe 9"),
    "too many rows": (lambda: jax.eval_shape(lambda x: total(x, LAYOUT), jax.ShapeDtypeStruct((2**31 - 8,), jnp.int8)), ValueError, "rows are too many for 32-bit offsets"),
    "wide in a trace": (lambda: jax.jit(lambda s: cumsum(np.array([2**40, 1]), s))(S.from_lengths([2])), ValueError, "do not fit int32"),
    "wide in a traced list": (lambda: jax.jit(lambda x: cumsum([x, np.array([2**40])]))(jnp.arange(2)), ValueError, "do not fit int32"),
    # options
    "dtype": (lambda: cumsum([X], dtype="many"), TypeError, "`dtype` must be a dtype, got 'many'"),
    "dtype kind": (lambda: total([X], dtype="M8[s]"), TypeError, "segmented_sum: `dtype` has dtype datetime64"),
    "machine": (lambda: cumsum([X], implementation="fast"), ValueError, "`implementation` must be None, one of .*xla, or a `Config`, got 'fast'"),
    "walk": (lambda: cumsum([X], implementation=sk.Config(walk="run")), ValueError, "`implementation` may set a walk of xla"),
    "walk of another": (lambda: cumsum([X], implementation=sk.Config("native", "loop")), ValueError, "may set a walk of xla"),
    "machine of numbers": (lambda: cumsum([X], implementation=X), TypeError, "`implementation` must be None, a name, or a `Config` of names, got Config"),
    "walk of numbers": (lambda: total([X], implementation=sk.Config(walk=X)), TypeError, "a `Config` of names"),
    "machine of a tracer": (lambda: jax.jit(lambda m: cumsum([X], implementation=m))(1), TypeError, "a `Config` of names"),
    "threads of numbers": (lambda: cumsum([X], implementation=sk.Config(threads=X)), ValueError, "must ask for 1 to 64 threads"),
    "threads of a fraction": (lambda: cumsum([X], implementation=sk.Config(threads=2.0)), ValueError, "must ask for 1 to 64 threads, got 2.0"),
    "reverse text": (lambda: cumsum([X], reverse="False"), TypeError, "segmented_cumsum: `reverse` must be True or False, got 'False'"),
    "reverse of a tracer": (lambda: jax.jit(lambda r: recur(0.5, [X], reverse=r))(True), TypeError, "segmented_linear_recurrence: `reverse` must be True or False"),
    "reverse of flags": (lambda: fill(X, X > 0, LAYOUT, reverse=X > 0), TypeError, "segmented_fill_forward: `reverse` must be True or False"),
    "exclusive": (lambda: cumsum([X], exclusive=1), TypeError, "`exclusive` must be True or False, got 1"),
    "exclusive of a function": (lambda: scan(jnp.add, [X], exclusive=X), TypeError, "segmented_associative_scan: `exclusive` must be True or False"),
    "donate": (lambda: cumsum(jnp.ones(5), LAYOUT, donate=X), TypeError, "`donate` must be True or False"),
    "given away": (lambda: cumsum(gone(), LAYOUT), ValueError, "segmented_cumsum: `x` is a JAX array whose memory was given away"),
    "given away, entry": (lambda: total([jnp.ones(2), gone()]), ValueError, "segmented_sum: entry 1 of the list is a JAX array whose memory was given away"),
    "given away, ragged": (lambda: cumsum(sk.Ragged._make(gone(), LAYOUT)), ValueError, "`x` is a JAX array whose memory was given away"),
    "given away, gates": (lambda: recur(gone(), X, LAYOUT), ValueError, "`a` is a JAX array whose memory was given away"),
    "given away, initial": (lambda: recur(0.5, X, S.from_lengths([1] * 5), initial=gone()), ValueError, "`initial` is a JAX array whose memory was given away"),
    "an array that fails": (lambda: cumsum([Fails()]), TypeError, "segmented_cumsum: entry 0 must be an array of numbers: it requires grad"),
    "several layouts": (lambda: cumsum(X, STACKED), ValueError, r"segmented_cumsum: `segments` holds several layouts, its offsets have shape \(2, 3\); map"),
    "several layouts, traced": (lambda: jax.jit(lambda x, s: total(x, s))(X, STACKED), ValueError, "segmented_sum: `segments` holds several layouts"),
    "several layouts, repeat": (lambda: repeat(X, STACKED), ValueError, "segmented_repeat: `segments` holds several layouts"),
    "several layouts, ragged": (lambda: sk.segmented_max(jax.tree.map(lambda x: jnp.stack([x, x]), RAGGED)), ValueError, "segmented_max: `segments` holds several layouts"),
    "several layouts for a ragged": (lambda: sk.Ragged(X, STACKED), ValueError, "`segments` holds several layouts"),
    "empty": (lambda: total([X], empty=np.ones(2)), TypeError, "`empty` must be a Python or NumPy number, got ndarray"),
    "empty text": (lambda: total([X], empty="a"), TypeError, "`empty` must be a Python or NumPy number, got str"),
    "empty of integers": (lambda: total([np.array([1])], empty=np.nan), ValueError, "segmented_sum: `empty` must be a number that int64.* has; got nan"),
    "empty fraction": (lambda: total([np.array([1])], empty=1.5), ValueError, "got 1.5"),
    "empty too large": (lambda: total(jnp.arange(5), LAYOUT, empty=2**40), ValueError, "that int32.* has; got 1099511627776"),
    "empty far too large": (lambda: total(jnp.arange(5), LAYOUT, empty=2**70), ValueError, "that int32.* has; got 1180591620717411303424"),
    "empty sign": (lambda: total([np.uint32([1])], empty=-1), ValueError, "that uint32.* has; got -1"),
    "empty of nothing": (lambda: sk.segmented_mean([X], empty=None), TypeError, "segmented_mean: `empty` must be a Python or NumPy number, got NoneType"),
    "empty beyond every float": (lambda: total([X], empty=10**400), ValueError, "that float32.* has; got 1000"),
    "empty complex": (lambda: total([X], empty=1j), ValueError, "that float32.* has; got 1j"),
    # repeat
    "repeat shape": (lambda: repeat(X, LAYOUT), ValueError, r"one entry a segment, got shape \(5,\) for 2 segments"),
    "repeat nothing": (lambda: repeat(X, None), TypeError, "segmented_repeat: `segments` must be a `Segments`, got NoneType"),
    "repeat a ragged": (lambda: repeat(RAGGED, LAYOUT), TypeError, "segmented_repeat: `x` must be an array of numbers: a `Ragged` is no single array"),
    "repeat size": (lambda: repeat(X[:2], LAYOUT, size=4), ValueError, "`size` must hold all 5 rows, got 4"),
    "repeat traced": (lambda: jax.jit(lambda s: repeat(X[:2], s))(LAYOUT), ValueError, "`size` is required here"),
    "repeat list": (lambda: repeat([1, 2], [2, 3]), TypeError, "`segments` must be a `Segments`"),
    # recurrences, fills, functions of the user's
    "gates of no shape": (lambda: recur(X[:, None], np.ones((5, 2), np.float32), LAYOUT), ValueError, r"segmented_linear_recurrence: `a` must have one entry a row, or one a value of `b`, got rows of shape \(1,\) for rows of shape \(2,\)"),
    "too few gates": (lambda: recur(X[:4], X, LAYOUT), ValueError, "`a` must have a row for each of `b`, got shape .4,. for 5 rows"),
    "gates of other lengths": (lambda: recur([X[:2], X[:3]], [X[:3], X[:2]]), ValueError, "the arrays of `a` must be as many and as long as those of `b`"),
    "fewer gates than arrays": (lambda: recur([X], [X, X]), ValueError, "the arrays of `a` must be as many and as long"),
    "traced gates of other lengths": (lambda: jax.jit(lambda a: recur([a], [X[:4]]))(X), ValueError, "the arrays of `a` must be as many"),
    "gates in another form": (lambda: recur(X, [X]), TypeError, "`a` must come in the form of `b`, a list of arrays, got ndarray"),
    "gates in another form, ragged": (lambda: recur([X], RAGGED), TypeError, "`a` must come in the form of `b`, a Ragged, got list"),
    "gates of another layout": (lambda: recur(sk.Ragged.from_arrays([X]), RAGGED), ValueError, "segmented_linear_recurrence: the layouts differ"),
    "gates of text": (lambda: recur("a", X, LAYOUT), TypeError, "`a` must be an array of numbers, got a str"),
    "no inputs": (lambda: recur(0.5, X), TypeError, "`b` must be a list of arrays, a `Ragged`, or an array together"),
    "initial states": (lambda: recur(0.5, X, LAYOUT, initial=X[:3]), ValueError, r"`initial` must have one entry a segment, \(2,\), got shape \(3,\)"),
    "initial scalar": (lambda: recur(0.5, X, LAYOUT, initial=1.0), ValueError, r"`initial` must have one entry a segment, \(2,\), got shape \(\)"),
    "initial features": (lambda: recur(0.5, X, LAYOUT, initial=np.ones((2, 3), np.float32)), ValueError, r"`initial` must have one entry a segment, \(2,\), got shape \(2, 3\)"),
    "initial features of a list": (lambda: recur(0.5, [np.ones((3, 2))], initial=np.zeros(1)), ValueError, r"`initial` must have one entry a segment, \(1, 2\), got shape \(1,\)"),
    "initial list of tracers": (lambda: jax.jit(lambda t: recur(0.5, jnp.ones(3), S.from_lengths([3]), initial=[t]))(1.0), TypeError, "`initial` holds traced values; make an array of them"),
    "a gate too large": (lambda: recur(2**70, X, LAYOUT), TypeError, "`a` must be an array of numbers, got a int of dtype object"),
    "valid numbers": (lambda: fill(X, X, LAYOUT), TypeError, "segmented_fill_forward: `valid` must be booleans, got dtype float32"),
    "valid forgotten": (lambda: fill(X, LAYOUT), TypeError, "segmented_fill_forward: `valid` must be booleans in the form of `x`, got Segments"),
    "valid of no shape": (lambda: fill(X, np.ones((5, 2), bool), LAYOUT), ValueError, "`valid` must have one entry a row, or one a value of `x`, got rows of shape"),
    "exclusive without identity": (lambda: scan(jnp.add, X, LAYOUT, exclusive=True), ValueError, "segmented_associative_scan: `identity` is needed for an exclusive scan"),
    "identity of another tree": (lambda: scan(jnp.add, X, LAYOUT, identity=(0, 1)), ValueError, "`identity` must be a pytree like `elems`"),
    "identity of no shape": (lambda: scan(jnp.add, X, LAYOUT, identity=np.ones(3)), ValueError, r"`identity` must be a scalar or of shape \(\), got shape \(3,\)"),
    "identity too large": (lambda: scan(jnp.minimum, [np.ones(3, np.int8)], identity=300), ValueError, "`identity` must be of numbers that int8, the dtype of `elems`, has, got 300"),
    "identity fraction": (lambda: scan(jnp.add, jnp.ones(5, jnp.int32), LAYOUT, identity=0.5), ValueError, "that int32, the dtype of `elems`, has, got 0.5"),
    "identity complex": (lambda: scan(jnp.add, RAGGED, identity=1j), ValueError, "that float32, the dtype of `elems`, has, got 1j"),
    "no function": (lambda: scan(None, [X]), TypeError, "segmented_associative_scan: `fn` must be a function, and hashable, got NoneType"),
    "a function that grows": (lambda: scan(lambda a, b: jnp.concatenate([a, b]), X, LAYOUT), TypeError, "`fn` must give what it gets, float32.1.; it gives float32.2."),
    "a function of another dtype": (lambda: scan(lambda a, b: (a + b).astype(jnp.int32), X, LAYOUT), TypeError, "`fn` must give what it gets"),
    "no elements": (lambda: scan(jnp.add, (), LAYOUT), ValueError, "`elems` must hold an array, got none"),
    "a machine for a function": (lambda: scan(jnp.add, X, LAYOUT, implementation="native"), ValueError, "'native' cannot serve it: it folds with a function of yours"),
    "ddof": (lambda: sk.segmented_var([X], ddof="1"), TypeError, "segmented_var: `ddof` must be a number, got '1'"),
    "ddof infinite": (lambda: sk.segmented_var([X], ddof=np.inf), ValueError, "segmented_var: `ddof` must be finite, got inf"),
    "epsilon": (lambda: sk.segmented_standardize([X], epsilon=-1), ValueError, "`epsilon` must not be negative, got -1"),
    "epsilon text": (lambda: sk.segmented_standardize([X], epsilon="1"), TypeError, "`epsilon` must be a number, got '1'"),
    "real of complex": (lambda: sk.segmented_mean([np.complex64([1j])], dtype=np.float32), TypeError, "segmented_mean: `dtype` must be complex for complex64 values, got float32"),
    # layouts
    "offsets start": (lambda: S.from_offsets([1, 3, 4]), ValueError, "`offsets` must start at 0, got 1"),
    "offsets decrease": (lambda: S.from_offsets([0, 3, 2, 4]), ValueError, "`offsets` must never decrease, got 3 before 2"),
    "offsets decrease, jax": (lambda: S.from_offsets(jnp.array([0, 3, 2])), ValueError, "must never decrease"),
    "offsets negative": (lambda: S.from_offsets([-1, 2]), ValueError, "must start at 0, got -1"),
    "offsets none": (lambda: S.from_offsets([]), ValueError, "one entry more than there are segments"),
    "offsets 2-D": (lambda: S.from_offsets(np.zeros((2, 2), int)), ValueError, r"`offsets` must be 1-D, got shape \(2, 2\)"),
    "offsets float": (lambda: S.from_offsets([0.0, 2.0]), TypeError, "`offsets` must be integers, got dtype float64"),
    "offsets bool": (lambda: S.from_offsets(np.array([False, True])), TypeError, "`offsets` must be integers, got dtype bool"),
    "offsets nothing": (lambda: S.from_offsets(None), TypeError, "must be integers, got dtype object"),
    "offsets too large": (lambda: S.from_offsets([0, 2**31]), ValueError, "2147483648 rows do not fit 32-bit offsets; enable x64"),
    "offsets unsigned": (lambda: S.from_offsets(np.array([0, 5, 3], np.uint8)), ValueError, "never decrease, got 5 before 3"),
    "lengths negative": (lambda: S.from_lengths([2, -1]), ValueError, "`lengths` must not be negative, got -1 at 1"),
    "lengths float": (lambda: S.from_lengths([2.0]), TypeError, "`lengths` must be integers"),
    "lengths too many": (lambda: S.from_lengths([2**30, 2**30]), ValueError, "do not fit 32-bit offsets"),
    "lengths too many, jax": (lambda: S.from_lengths(jnp.array([2**30] * 3)), ValueError, "3221225472 rows do not fit 32-bit offsets"),
    "lengths past 64 bits": (lambda: S.from_lengths([2**62] * 4), ValueError, "do not fit 32-bit offsets"),
    "lengths past 64 bits, unsigned": (lambda: S.from_lengths(np.array([2**63, 1], np.uint64)), ValueError, "do not fit 32-bit offsets|must not be"),
    "offsets too large, jax": (lambda: S.from_offsets(jnp.array([0, 3_000_000_000], jnp.uint32)), ValueError, "3000000000 rows do not fit"),
    "lengths ragged": (lambda: S.from_lengths([[1], [1, 2]]), TypeError, "`lengths` must be a 1-D array of integers"),
    "ids unsorted": (lambda: S.from_ids([1, 0]), ValueError, r"never decrease; for unsorted ids take .*Segments\.group"),
    "ids negative": (lambda: S.from_ids([-1, 0], 2), ValueError, "`ids` must not be negative, got -1"),
    "ids traced": (lambda: jax.jit(lambda i: S.from_ids(i).offsets)(jnp.array([0])), ValueError, "`num_segments` is required here"),
    "ids number": (lambda: S.from_ids([0], -1), ValueError, "`num_segments` must not be negative, got -1"),
    "ids number kind": (lambda: S.from_ids([0], 1.5), TypeError, "`num_segments` must be a concrete integer"),
    "traced number": (lambda: jax.jit(lambda n: S.from_ids(jnp.array([0]), n).offsets)(2), TypeError, "must be a concrete integer"),
    "flags kind": (lambda: S.from_flags([0, 1]), TypeError, r"`flags` must be a 1-D array of booleans, got int64\[2\]"),
    "flags traced": (lambda: jax.jit(lambda f: S.from_flags(f).offsets)(jnp.array([True])), ValueError, "`num_segments` is required"),
    "group number": (lambda: S.group([0, 1], None), ValueError, "`num_segments` is required here"),
    "prepare": (lambda: LAYOUT.prepare(4), ValueError, "the segments describe 5 rows, got n=4"),
    "rows kind": (lambda: LAYOUT.rows([0.0, 1.0]), TypeError, "`index` must be integers, got dtype float64"),
    "rows": (lambda: LAYOUT.rows(np.zeros(3, int)), ValueError, r"one entry a segment, got shape \(3,\) for 2 segments"),
    # Ragged
    "ragged layout": (lambda: sk.Ragged(X, [2, 3]), TypeError, "`segments` must be a `Segments`, got list"),
    "ragged rows": (lambda: sk.Ragged(X[:4], LAYOUT), ValueError, "the values have 4 rows but the segments describe 5"),
    "ragged 0-d": (lambda: sk.Ragged(1.0, LAYOUT), ValueError, "`values` needs a first axis"),
    "from_arrays kind": (lambda: sk.Ragged.from_arrays(X), TypeError, "`arrays` must be a list or tuple of arrays, got ndarray"),
    "from_arrays traced": (lambda: jax.jit(lambda x: sk.Ragged.from_arrays([x]))(X), TypeError, "an entry is traced"),
    "from_arrays size": (lambda: sk.Ragged.from_arrays([X], size=4), ValueError, "`size` must hold all 5 rows, got 4"),
    "from_arrays number": (lambda: sk.Ragged.from_arrays([X, X], num_segments=1), ValueError, "at least the number of arrays, 2, got 1"),
    "from_arrays wide": (lambda: sk.Ragged.from_arrays([np.array([2**40])]), ValueError, "do not fit int32.*enable x64"),
    "from_padded": (lambda: sk.Ragged.from_padded(np.ones((2, 3)), [1]), ValueError, r"for as many lengths, got shape \(2, 3\)"),
    "from_padded length": (lambda: sk.Ragged.from_padded(np.ones((1, 3)), [4]), ValueError, "must not exceed the 3 rows of `dense`, got 4"),
    "to_padded": (lambda: RAGGED.to_padded(4), ValueError, "`length` must hold the longest segment, 5 rows, got 4"),
    "to_padded traced": (lambda: jax.jit(lambda x: x.to_padded())(RAGGED), ValueError, "`length` is required here"),
    "ragged wide": (lambda: sk.Ragged(np.array([2**40, 1]), S.from_lengths([2])), ValueError, "do not fit int32"),
    "from_padded wide": (lambda: sk.Ragged.from_padded(np.array([[2**40]]), [1]), ValueError, "do not fit int32"),
    "truth": (lambda: bool(RAGGED == RAGGED), TypeError, "the truth of a `Ragged` is ambiguous"),
    "as an array": (lambda: np.asarray(RAGGED), TypeError, "take its `.values`"),
    "with_values wide": (lambda: RAGGED.with_values(np.full(128, 2**40)), ValueError, "do not fit int32"),
    "with_values": (lambda: RAGGED.with_values(jnp.ones(3)), ValueError, r"`values` must have 128 rows, got shape \(3,\)"),
    "other layout": (lambda: RAGGED + sk.Ragged.from_arrays([X[:4], np.ones(6, np.float32)]), ValueError, "the layouts differ in their offsets"),
    "other size": (lambda: RAGGED + sk.Ragged.from_arrays([X]), ValueError, r"Ragged\.__add__: the layouts differ"),
    "map": (lambda: RAGGED.map(jnp.add, X), TypeError, "every operand must be a `Ragged`, got ndarray"),
    "index": (lambda: RAGGED[2], IndexError, "index 2 is out of range for 2 segments"),
    "slice": (lambda: RAGGED[0:1], TypeError, "the index must be an integer, got slice"),
    "index traced": (lambda: jax.jit(lambda x: x[0])(RAGGED), TypeError, "only outside jit, vmap and grad"),
    "iteration traced": (lambda: jax.jit(lambda x: list(x))(RAGGED), TypeError, "only outside jit, vmap and grad"),
    "array operand": (lambda: RAGGED + jnp.ones(128), TypeError, "unsupported operand|add requires"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_one_clear_sentence(name):
    run, kind, words = BAD[name]
    with pytest.raises(kind, match=words) as caught:
        run()
    message = str(caught.value).split("\n---")[0]
    assert "\n" not in message and len(message) < 400


def test_nothing_is_changed_by_a_refused_call():
    arrays = [np.ones(3, np.float32), np.ones((1, 4), np.float32)]
    before = [a.copy() for a in arrays]
    with pytest.raises(ValueError, match="equal shapes"):
        cumsum(arrays)
    assert len(arrays) == 2 and all(np.array_equal(a, b) for a, b in zip(arrays, before))
