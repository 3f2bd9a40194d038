"""The rules of the verbs: every derivative and every batching rule there is, in this one file.

Derivatives close over three linear walks: the transpose of a sum is the sum from the other end, that of an affine scan
the affine scan from the other end with its gates moved by a row, and `reduce` with ADD and `spread` are each other's.
The derivative of any other scan *is* an affine scan: a row of `_LINEARIZED` says with which gates and inputs; a row of
`_REDUCED` says the same of a reduction. No rule divides by a value. Reverse mode follows from forward mode, and so does any
order.

Batching folds the batch away. With one layout for all, the batch joins the features: ``[n, b * f]``. With a layout
each, it joins the rows, ``[b * n, f]``, and the dead rows of each member become one more segment, so that nothing they
hold reaches another member.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching

from segkernels import _check, _verbs
from segkernels._algebra import ADD, AFFINE, LOGADDEXP, MAX, MIN, MUL, attains, itself, wide
from segkernels._segments import live_flags, moved, only_live, start_flags
from segkernels._verbs import heads_p, reduce_p, scan_p, softmax_p, spread_p

# Scans ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Walk:
    """The rows, the layout and the direction of a scan, for the scans that its derivative is made of."""

    n: int
    heads: jax.Array
    n_live: jax.Array
    reverse: bool
    choice: object

    def scan(self, monoid, *values, exclusive=False):
        (out,) = _verbs.scan(values, self.heads, self.n_live, monoid=monoid, reverse=self.reverse, exclusive=exclusive,
                             choice=self.choice)  # fmt: skip
        return out

    @functools.cached_property
    def live(self):
        return live_flags(self.n_live, self.n)[:, None]

    @functools.cached_property
    def starts(self):
        return start_flags(self.heads, self.n_live, self.n, self.reverse)[:, None]

    def before(self, y, start):
        """What an inclusive scan `y` was one row before, and `start` where no row is before."""
        return jnp.where(self.starts, jnp.asarray(start, y.dtype), moved(y, on=not self.reverse))


def _linearized_mul(walk, x, y):
    before = walk.before(y, 1)
    return x, lambda dx: before * dx


def _linearized_best(holds):
    """Of a maximum or minimum, whose tangent is that of the first row that attains it: gates close where it is replaced."""

    def rule(walk, x, y):
        before = walk.before(y, 0)
        keeps = ~walk.starts & (holds(before, x) | (before != before))
        return keeps, lambda dx: jnp.where(keeps, jnp.zeros_like(dx), dx)

    return rule


def _linearized_logaddexp(walk, x, y):
    def share(part):
        gap = jnp.where((part == y) & jnp.isinf(y), jnp.zeros_like(y), part - y)  # of equal infinities
        return jnp.where(y == -jnp.inf, jnp.zeros_like(y), jnp.exp(gap))

    of_x = share(jnp.where(walk.live, x, y))
    return share(walk.before(y, -np.inf)), lambda dx: of_x * dx


# From a walk, the values and the inclusive result: the gates of the affine scan of tangents, and its inputs.
_LINEARIZED = {
    MUL: _linearized_mul,
    MAX: _linearized_best(jnp.greater_equal),
    MIN: _linearized_best(jnp.less_equal),
    LOGADDEXP: _linearized_logaddexp,
}


def _still(tangent):
    return type(tangent) is ad.Zero or tangent.dtype == jax.dtypes.float0


def _zero(y):
    return ad.Zero(jax.typeof(y).to_tangent_aval())


def _scan_jvp(primals, tangents, *, monoid, reverse, exclusive, choice):
    *values, heads, n_live = primals
    bind = functools.partial(scan_p.bind, monoid=monoid, reverse=reverse, exclusive=exclusive)
    tangents = tangents[:-2]
    if all(map(_still, tangents)):
        out = bind(*primals, choice=choice)
        return out, [_zero(y) for y in out]
    if monoid is ADD or (monoid is AFFINE and _still(tangents[0])):  # linear in the last part
        out = bind(*primals, choice=choice)
        return out, bind(*values[:-1], tangents[-1], heads, n_live, choice=choice.derived())

    values = [wide(x) for x in values]
    walk = _Walk(values[-1].shape[0], heads, n_live, reverse, choice.derived())
    y = dataclasses.replace(walk, choice=choice).scan(monoid, *values)
    dx = wide(ad.instantiate_zeros(tangents[-1]))
    if monoid is AFFINE:
        gate, state = values[0], walk.before(y, 0)
        # By select: the gate of a first row meets no state, whatever the two are.
        inputs = dx + jnp.where(walk.starts, jnp.zeros_like(state), wide(tangents[0]) * state)
    else:
        gate, of = _LINEARIZED[monoid](walk, *values, y)
        inputs = of(dx)
    dy = walk.scan(AFFINE, gate, inputs, exclusive=exclusive)
    if exclusive:
        y = walk.before(y, monoid.identity_of(values)[-1])
        y = jnp.where(walk.live, y, jnp.zeros_like(y))
    dtype = primals[len(values) - 1].dtype
    return [y.astype(dtype)], [dy.astype(dtype)]


def _scan_transpose(cotangents, *operands, monoid, reverse, exclusive, choice):
    # d/dx sum(w * scan(x)): row i meets the weights of the rows after it in its segment.
    *gates, x, heads, n_live = operands
    (ct,) = cotangents
    if type(ct) is ad.Zero:
        return [None] * len(gates) + [_no_cotangent(x), None, None]
    if not exclusive:  # what came in at a row passes the gates of the rows after it
        gates = [moved(gate, on=reverse) for gate in gates]
    (out,) = scan_p.bind(*gates, ct, heads, n_live, monoid=monoid, reverse=not reverse, exclusive=exclusive,
                         choice=choice.derived())  # fmt: skip
    return [None] * len(gates) + [out, None, None]


# Reductions and spreads ----------------------------------------------------------------------------------------------


def _product_tangent(x, dx, y, offsets, total, choice):
    """Each row counts the product of all others, without dividing."""
    del y
    walk = _Walk(x.shape[0], _verbs.heads(offsets, x.shape[0]), jnp.asarray(offsets[-1]), False, choice)
    back = dataclasses.replace(walk, reverse=True)
    return total(walk.scan(MUL, x, exclusive=True) * back.scan(MUL, x, exclusive=True) * dx)


def _best_tangent(x, dx, y, offsets, total, choice):
    """The rows that attain a maximum or minimum share its tangent."""
    best = _verbs.spread(y, offsets, n=x.shape[0], choice=choice)
    shares = attains(x, best)
    ties = jnp.maximum(total(shares.astype(jnp.int32)), 1)
    return total(jnp.where(shares, dx, jnp.zeros_like(dx))) / ties.astype(dx.dtype)


# From the values, their tangent and the result, the tangent of the result; `total` sums each segment.
_REDUCED = {MUL: _product_tangent, MAX: _best_tangent, MIN: _best_tangent}


def _reduce_jvp(primals, tangents, *, monoid, choice, of, given):
    *values, offsets = primals
    out = reduce_p.bind(*primals, monoid=monoid, choice=choice, of=of, given=given)
    if all(map(_still, tangents)) or not jnp.issubdtype(out[0].dtype, jnp.inexact):
        return out, [_zero(y) for y in out]
    if of is not itself:  # the tangent is that of what it makes, in a pass of its own
        made = functools.partial(_made, offsets=offsets, of=of, given=given, choice=choice.derived())
        values, tangents = jax.jvp(made, values, [ad.instantiate_zeros(t) for t in tangents[:-1]])

    def total(x):
        return _verbs.reduce((x,), offsets, monoid=ADD, choice=choice.derived())[0]

    if monoid is ADD:
        return out, [total(tangents[0])]
    dy = _REDUCED[monoid](wide(values[0]), wide(tangents[0]), wide(out[0]), offsets, total, choice.derived())
    return out, [dy.astype(values[0].dtype)]


def _made(*operands, offsets, of, given, choice):
    """What a reduction makes of its rows, as arrays ``[n, f]``. Dead rows are cleared: they must not come back as NaN."""
    values, per_segment, _ = _verbs.parted((*operands, offsets), given)
    n = values[0].shape[0]
    row = jax.lax.broadcasted_iota(offsets.dtype, (n, 1), 0)
    spread = functools.partial(_verbs.spread, offsets=offsets, n=n, choice=choice)
    cleared = tuple(only_live(x, offsets[-1]) for x in values)
    return of(cleared, tuple(map(spread, per_segment)), row - spread(offsets[:-1, None]))


def _reduce_transpose(cotangents, values, offsets, *, choice, **_):
    (ct,) = cotangents
    if type(ct) is ad.Zero:
        return [_no_cotangent(values), None]
    return [*spread_p.bind(ct, offsets, n=values.aval.shape[0], choice=choice.derived()), None]


def _spread_jvp(primals, tangents, *, n, choice):
    per_segment, offsets = primals
    out = spread_p.bind(per_segment, offsets, n=n, choice=choice)
    if _still(tangents[0]):
        return out, [_zero(y) for y in out]
    return out, spread_p.bind(tangents[0], offsets, n=n, choice=choice.derived())


def _spread_transpose(cotangents, per_segment, offsets, *, choice, **_):
    (ct,) = cotangents
    if type(ct) is ad.Zero:
        return [_no_cotangent(per_segment), None]
    return [*_verbs.reduce((ct,), offsets, monoid=ADD, choice=choice.derived()), None]


def _softmax_jvp(primals, tangents, *, logarithm, choice):
    """By the result, which takes fewer passes: dy = y (dx - sum(y dx)), and of the logarithm dx - sum(e^y dx)."""
    values, offsets = primals
    (out,) = softmax_p.bind(values, offsets, logarithm=logarithm, choice=choice)
    if _still(tangents[0]):
        return [out], [_zero(out)]
    choice, n = choice.derived(), out.shape[0]
    tangent = only_live(tangents[0], offsets[-1])
    shares = jnp.exp(out) if logarithm else out
    (total,) = _verbs.reduce((shares * tangent,), offsets, monoid=ADD, choice=choice)
    away = tangent - _verbs.spread(total, offsets, n=n, choice=choice)
    return [out], [away if logarithm else out * away]


def _no_cotangent(operand):
    return ad.Zero(operand.aval) if ad.is_undefined_primal(operand) else None


for _primitive, _jvp, _transpose in ((scan_p, _scan_jvp, _scan_transpose), (reduce_p, _reduce_jvp, _reduce_transpose),
                                     (spread_p, _spread_jvp, _spread_transpose)):  # fmt: skip
    ad.primitive_jvps[_primitive] = _jvp
    ad.primitive_transposes[_primitive] = _transpose
ad.primitive_jvps[softmax_p] = _softmax_jvp


# Batching ------------------------------------------------------------------------------------------------------------


def _join_features(x, dim, b):
    """``[n, f]`` with a batch at `dim`, or none, to ``[n, b * f]``."""
    x = jnp.broadcast_to(x[:, None], (x.shape[0], b, x.shape[1])) if dim is None else jnp.moveaxis(x, dim, 1)
    return x.reshape(x.shape[0], b * x.shape[2])


def _at_front(x, dim, b):
    return jnp.broadcast_to(x, (b, *x.shape)) if dim is None else jnp.moveaxis(x, dim, 0)


def _pad_rows(x, rows):
    """``[b, n, f]`` to ``[b, rows, f]``."""
    return jnp.pad(x, ((0, 0), (0, rows - x.shape[1]), (0, 0)))


def _with_dead_segment(per_segment):
    """Members ``[b, s, f]``, each with a row of zeros for its dead rows, joined: ``[b * (s + 1), f]``."""
    b, s, f = per_segment.shape
    return _pad_rows(per_segment, s + 1).reshape(b * (s + 1), f)


def _cleared(values, n_live):
    """Members ``[b, n, f]`` with zeros in dead rows: once joined these are live, and must not come back from a derivative."""
    return [jax.vmap(only_live)(x, n_live) for x in values]


def _batching(primitive, layout, join):
    """The rule of a verb with so many operands that are its layout; `join` takes members ``[b, ...]`` of a layout each."""

    def rule(operands, dims, **params):
        b = next(x.shape[dim] for x, dim in zip(operands, dims) if dim is not None)
        if any(dim is not None for dim in dims[-layout:]):
            out = join(*(_at_front(x, dim, b) for x, dim in zip(operands, dims)), **params)
            return out, [0] * len(out)
        values = [_join_features(x, d, b) for x, d in zip(operands[:-layout], dims)]
        out = primitive.bind(*values, *operands[-layout:], **params)
        _, f = (size for axis, size in enumerate(operands[0].shape) if axis != dims[0])
        return [y.reshape(y.shape[0], b, f) for y in out], [1] * len(out)

    batching.primitive_batchers[primitive] = rule


def _dead_heads(n_live, words):
    """The bit of the first dead row of each member, ``[b, words]``: once joined, a member is whole words with a head there."""
    bit = jnp.uint32(1) << (n_live & 31).astype(jnp.uint32)
    return jnp.where(jnp.arange(words, dtype=n_live.dtype)[None] == (n_live >> 5)[:, None], bit[:, None], jnp.uint32(0))


def _join_heads(offsets, *, n):
    words = (n + 31) // 32
    offsets = jnp.clip(offsets, 0, n)
    bits = _verbs.heads(_joined_offsets("scan", offsets, 32 * words), 32 * words * offsets.shape[0])
    return [bits.reshape(-1, words) & ~_dead_heads(offsets[:, -1], words)]


def _join_scans(*operands, **params):
    *values, heads, n_live = operands
    (b, n, _), words = values[0].shape, heads.shape[1]
    n_live = jnp.clip(n_live, 0, n)
    total = _total_rows("scan", b, 32 * words, n_live.dtype)
    values = [_pad_rows(x, 32 * words).reshape(total, x.shape[2]) for x in _cleared(values, n_live)]
    out = scan_p.bind(*values, (heads | _dead_heads(n_live, words)).reshape(-1), jnp.asarray(total, n_live.dtype), **params)
    return _cleared([y.reshape(b, 32 * words, y.shape[1])[:, :n] for y in out], n_live)


def _joined_offsets(verb, offsets, n):
    """Offsets ``[b, s + 1]`` of members of `n` rows, to those of all: ``[b * (s + 1) + 1]``, dead rows the last of each."""
    b = offsets.shape[0]
    total = _total_rows(verb, b, n, offsets.dtype)
    starts = jnp.arange(b, dtype=offsets.dtype)[:, None] * n
    return jnp.append((jnp.clip(offsets, 0, n) + starts).reshape(-1), jnp.asarray(total, offsets.dtype))


def _total_rows(verb, b, n, dtype):
    if isinstance(b * n, int) and b * n > (_check.MOST_ROWS if np.dtype(dtype).itemsize < 8 else jnp.iinfo(dtype).max):
        raise ValueError(
            f"vmap of segmented {verb}: {b} members of {n} rows do not fit {np.dtype(dtype)} offsets; map over "
            "parts of the batch with `jax.lax.map`"
        )
    return b * n


def _join_reductions(*operands, **params):
    values, per_segment, offsets = _verbs.parted(operands, params["given"])
    (b, n, _), s = values[0].shape, offsets.shape[1] - 1
    values = [x.reshape(b * n, x.shape[2]) for x in _cleared(values, offsets[:, -1])]
    per_segment = [_with_dead_segment(x) for x in per_segment]
    out = reduce_p.bind(*values, *per_segment, _joined_offsets("reduce", offsets, n), **params)
    return [y.reshape(b, s + 1, y.shape[1])[:, :s] for y in out]


def _join_spreads(per_segment, offsets, *, n, choice):
    b, _, f = per_segment.shape
    out = _verbs.spread(_with_dead_segment(per_segment), _joined_offsets("spread", offsets, n), n=b * n, choice=choice)
    return [out.reshape(b, n, f)]


def _join_softmaxes(values, offsets, **params):
    b, n, f = values.shape
    (cleared,) = _cleared((values,), offsets[:, -1])
    out = _verbs.softmax(cleared.reshape(b * n, f), _joined_offsets("softmax", offsets, n), **params)
    return _cleared([out.reshape(b, n, f)], offsets[:, -1])


for _primitive, _layout, _join in ((heads_p, 1, _join_heads), (scan_p, 2, _join_scans), (reduce_p, 1, _join_reductions),
                                   (spread_p, 1, _join_spreads), (softmax_p, 1, _join_softmaxes)):  # fmt: skip
    _batching(_primitive, _layout, _join)
