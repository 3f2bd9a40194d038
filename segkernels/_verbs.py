"""The three verbs as JAX primitives: the one file with shape, derivative, batching and lowering rules.

* ``scan(values, heads, n_live)``: fold each row into the rows of its segment before it.
* ``reduce(values, offsets)``: fold each segment into one row.
* ``spread(per_segment, offsets)``: repeat one row a segment over its rows.

All see values ``[n, f]``. The linear ones close under transposition: the transpose of a scan is the scan from the
other end, those of reduce and spread are each other; so reverse mode follows from forward mode, to any order.

Batching folds the batch away. With one layout for all, the batch joins the features: ``[n, b * f]``. With a layout
each, it joins the rows, ``[b * n, f]``, and the dead rows of each member become one more segment, so that nothing they
hold reaches another member.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from segkernels import _check, _select
from segkernels._algebra import ADD

ShapedArray = jax.core.ShapedArray


def columns(x):
    """``[n, *feature]`` as the verbs take it, ``[n, f]``."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


def scan(values: tuple, heads, n_live, *, monoid, reverse, exclusive, choice) -> tuple:
    """Fold ``[n, f]`` values along each segment; see `kernels.xla.scan` for the operands."""
    return tuple(scan_p.bind(*values, heads, n_live, monoid=monoid, reverse=reverse, exclusive=exclusive, choice=choice))


def reduce(values: tuple, offsets, *, monoid, choice) -> tuple:
    """Fold each segment of ``[n, f]`` values into a row of ``[s, f]``; empty ones give the identity."""
    return tuple(reduce_p.bind(*values, offsets, monoid=monoid, choice=choice))


def spread(per_segment, offsets, *, n, choice):
    """Repeat each row of ``[s, f]`` over its segment: ``[n, f]``, dead rows zero."""
    (out,) = spread_p.bind(per_segment, offsets, n=n, choice=choice)
    return out


# Shapes and lowering -------------------------------------------------------------------------------------------------


def _verb(name, shapes, run):
    """A primitive with its shape rule and, for every platform, the lowering to the machine that `_select` names."""
    primitive = Primitive(f"segmented_{name}")
    primitive.multiple_results = True
    primitive.def_abstract_eval(shapes)
    primitive.def_impl(functools.partial(_run_eagerly, primitive))
    for platform in _select.PLATFORMS:
        lowered = mlir.lower_fun(functools.partial(run, platform=platform), multiple_results=True)
        mlir.register_lowering(primitive, lowered, platform=platform)
    return primitive


def _run_eagerly(primitive, *operands, **params):
    with jax.disable_jit(False):  # a primitive is one computation under `disable_jit` too
        return _jitted(primitive, tuple(sorted(params.items(), key=lambda item: item[0])))(*operands)


@functools.lru_cache(maxsize=512)
def _jitted(primitive, params):
    return jax.jit(functools.partial(primitive.bind, **dict(params)))


def call_of(primitive, avals, params) -> _select.Call:
    """What `_select` is asked about an equation of one of the primitives."""
    verb = {scan_p: "scan", reduce_p: "reduce", spread_p: "spread"}[primitive]
    layout = 2 if primitive is scan_p else 1
    return _select.Call(verb, params.get("monoid"), tuple(avals[:-layout]), params["choice"])


def _choose(primitive, operands, params, platform):
    avals = [jax.typeof(x) for x in operands]
    machine, config = _select.choose(call_of(primitive, avals, params), platform)
    return machine.kernels, {name: value for name, value in params.items() if name != "choice"} | dict(config=config)


def _scan_shapes(*operands, **_):
    return [ShapedArray(x.shape, x.dtype) for x in operands[:-2]]


def _scan_run(*operands, platform, **params):
    kernels, params = _choose(scan_p, operands, params, platform)
    *values, heads, n_live = operands
    return list(kernels.scan(tuple(values), heads, n_live, **params))


def _reduce_shapes(*operands, **_):
    *values, offsets = operands
    return [ShapedArray((offsets.shape[0] - 1, x.shape[1]), x.dtype) for x in values]


def _reduce_run(*operands, platform, **params):
    kernels, params = _choose(reduce_p, operands, params, platform)
    *values, offsets = operands
    return list(kernels.reduce(tuple(values), offsets, **params))


def _spread_shapes(per_segment, offsets, *, n, **_):
    del offsets
    return [ShapedArray((n, per_segment.shape[1]), per_segment.dtype)]


def _spread_run(per_segment, offsets, *, platform, **params):
    kernels, params = _choose(spread_p, (per_segment, offsets), params, platform)
    return [kernels.spread(per_segment, offsets, **params)]


scan_p = _verb("scan", _scan_shapes, _scan_run)
reduce_p = _verb("reduce", _reduce_shapes, _reduce_run)
spread_p = _verb("spread", _spread_shapes, _spread_run)
PRIMITIVES = (scan_p, reduce_p, spread_p)


# Derivatives ---------------------------------------------------------------------------------------------------------


def _linear_jvp(primitive, layout, primals, tangents, **params):
    """All three verbs are linear with ADD (and spread always is): the tangent is the verb of the tangent."""
    if params.get("monoid", ADD) is not ADD:
        raise NotImplementedError(f"segmented {params['monoid']} has no derivative rule")
    out = primitive.bind(*primals, **params)
    values, plan = tangents[:-layout], primals[-layout:]
    if all(type(t) is ad.Zero for t in values):
        return out, [ad.Zero.from_primal_value(y) for y in out]
    values = map(ad.instantiate_zeros, values)
    return out, primitive.bind(*values, *plan, **dict(params, choice=params["choice"].derived()))


def _scan_transpose(cotangents, *operands, reverse, choice, **params):
    # d/dx sum(w * scan(x)): row i meets the weights of the rows after it in its segment.
    *values, heads, n_live = operands
    if all(type(ct) is ad.Zero for ct in cotangents):
        return [*map(_no_cotangent, values), None, None]
    values = scan_p.bind(*map(ad.instantiate_zeros, cotangents), heads, n_live, reverse=not reverse,
                         choice=choice.derived(), **params)  # fmt: skip
    return [*values, None, None]


def _reduce_transpose(cotangents, values, offsets, *, choice, **_):
    (ct,) = cotangents
    if type(ct) is ad.Zero:
        return [_no_cotangent(values), None]
    return [*spread_p.bind(ct, offsets, n=values.aval.shape[0], choice=choice.derived()), None]


def _spread_transpose(cotangents, per_segment, offsets, *, choice, **_):
    (ct,) = cotangents
    if type(ct) is ad.Zero:
        return [_no_cotangent(per_segment), None]
    return [*reduce_p.bind(ct, offsets, monoid=ADD, choice=choice.derived()), None]


def _no_cotangent(operand):
    return ad.Zero(operand.aval) if ad.is_undefined_primal(operand) else None


for _primitive, _layout, _transpose in ((scan_p, 2, _scan_transpose), (reduce_p, 1, _reduce_transpose),
                                        (spread_p, 1, _spread_transpose)):  # fmt: skip
    ad.primitive_jvps[_primitive] = functools.partial(_linear_jvp, _primitive, _layout)
    ad.primitive_transposes[_primitive] = _transpose


# Batching ------------------------------------------------------------------------------------------------------------


def _join_features(x, dim, b):
    """``[n, f]`` with a batch at `dim`, or none, to ``[n, b * f]``."""
    x = jnp.broadcast_to(x[:, None], (x.shape[0], b, x.shape[1])) if dim is None else jnp.moveaxis(x, dim, 1)
    return x.reshape(x.shape[0], b * x.shape[2])


def _part_features(y, b, f):
    return y.reshape(y.shape[0], b, f)


def _at_front(x, dim, b):
    return jnp.broadcast_to(x, (b, *x.shape)) if dim is None else jnp.moveaxis(x, dim, 0)


def _pad_rows(x, rows):
    """``[b, n, f]`` to ``[b, rows, f]``."""
    return jnp.pad(x, ((0, 0), (0, rows - x.shape[1]), (0, 0)))


def _batch_size(operands, dims):
    return next(x.shape[d] for x, d in zip(operands, dims) if d is not None)


def _batch_by_features(primitive, operands, dims, layout, params):
    b = _batch_size(operands, dims)
    values = [_join_features(x, d, b) for x, d in zip(operands[:-layout], dims)]
    out = primitive.bind(*values, *operands[-layout:], **params)
    f = operands[0].shape[-1] if dims[0] != operands[0].ndim - 1 else operands[0].shape[-2]
    return [_part_features(y, b, f) for y in out], [1] * len(out)


def _scan_batch(operands, dims, **params):
    if dims[-2] is None and dims[-1] is None:
        return _batch_by_features(scan_p, operands, dims, 2, params)
    b = _batch_size(operands, dims)
    *values, heads, n_live = [_at_front(x, d, b) for x, d in zip(operands, dims)]
    n, words = values[0].shape[1], heads.shape[1]
    n_live = jnp.clip(n_live, 0, n)
    # Whole words a member, and a head where its dead rows begin.
    word = jnp.arange(words, dtype=n_live.dtype)[None]
    bit = jnp.uint32(1) << (n_live & 31).astype(jnp.uint32)
    dead = jnp.where(word == (n_live >> 5)[:, None], bit[:, None], jnp.uint32(0))
    total = _total_rows("scan", b, 32 * words, n_live.dtype)
    values = [_pad_rows(x, 32 * words).reshape(total, x.shape[2]) for x in values]
    out = scan_p.bind(*values, (heads | dead).reshape(-1), jnp.asarray(total, n_live.dtype), **params)
    live = (jnp.arange(n, dtype=n_live.dtype)[None] < n_live[:, None])[..., None]
    out = [y.reshape(b, 32 * words, y.shape[1])[:, :n] for y in out]
    return [jnp.where(live, y, jnp.zeros((), y.dtype)) for y in out], [0] * len(out)


def _joined_offsets(offsets, n):
    """Offsets ``[b, s + 1]`` of members of `n` rows, to those of all: ``[b * (s + 1) + 1]``, dead rows the last of each."""
    b = offsets.shape[0]
    total = _total_rows("reduce", b, n, offsets.dtype)
    starts = jnp.arange(b, dtype=offsets.dtype)[:, None] * n
    return jnp.append((jnp.clip(offsets, 0, n) + starts).reshape(-1), jnp.asarray(total, offsets.dtype))


def _total_rows(verb, b, n, dtype):
    if isinstance(b * n, int) and b * n > (_check.MOST_ROWS if np.dtype(dtype).itemsize < 8 else jnp.iinfo(dtype).max):
        raise ValueError(
            f"vmap of segmented {verb}: {b} members of {n} rows do not fit {np.dtype(dtype)} offsets; map over "
            "parts of the batch with `jax.lax.map`"
        )
    return b * n


def _reduce_batch(operands, dims, **params):
    if dims[-1] is None:
        return _batch_by_features(reduce_p, operands, dims, 1, params)
    b = _batch_size(operands, dims)
    *values, offsets = [_at_front(x, d, b) for x, d in zip(operands, dims)]
    n, s = values[0].shape[1], offsets.shape[1] - 1
    values = [x.reshape(b * n, x.shape[2]) for x in values]
    out = reduce_p.bind(*values, _joined_offsets(offsets, n), **params)
    return [y.reshape(b, s + 1, y.shape[1])[:, :s] for y in out], [0] * len(out)


def _spread_batch(operands, dims, *, n, choice):
    if dims[-1] is None:
        return _batch_by_features(spread_p, operands, dims, 1, dict(n=n, choice=choice))
    b = _batch_size(operands, dims)
    per_segment, offsets = [_at_front(x, d, b) for x, d in zip(operands, dims)]
    s, f = per_segment.shape[1:]
    per_segment = _pad_rows(per_segment, s + 1).reshape(b * (s + 1), f)  # zero for the dead rows
    (out,) = spread_p.bind(per_segment, _joined_offsets(offsets, n), n=b * n, choice=choice)
    return [out.reshape(b, n, f)], [0]


batching.primitive_batchers[scan_p] = _scan_batch
batching.primitive_batchers[reduce_p] = _reduce_batch
batching.primitive_batchers[spread_p] = _spread_batch
