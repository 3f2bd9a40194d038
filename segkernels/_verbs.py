"""The verbs as JAX primitives: their shapes, and their lowering to the machine that serves them.

* ``scan(values, heads, n_live)``: fold each row into the rows of its segment before it.
* ``reduce(values, offsets)``: fold each segment into one row.
* ``spread(per_segment, offsets)``: repeat one row a segment over its rows.
* ``softmax(values, offsets)``: what is made of the others, but by some machines in one pass.

and, of the layout alone, ``heads(offsets)``: its head bits, as the platform makes them best, whatever machine takes them.

All see values ``[n, f]``. Their derivative and batching rules are in `_rules`.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from segkernels import _compat, _segments, _select
from segkernels._algebra import itself, made
from segkernels.kernels import pallas_tpu_heads

ShapedArray = jax.core.ShapedArray


def columns(x):
    """``[n, *feature]`` as the verbs take it, ``[n, f]``."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


def scan(values: tuple, heads, n_live, *, monoid, reverse, exclusive, choice) -> tuple:
    """Fold ``[n, f]`` values along each segment; see `kernels.xla.scan` for the operands and results."""
    return tuple(scan_p.bind(*values, heads, n_live, monoid=monoid, reverse=reverse, exclusive=exclusive, choice=choice))


def reduce(values: tuple, offsets, *, monoid, choice, of=itself, per_segment=()) -> tuple:
    """Fold each segment of ``[n, f]`` values into a row of ``[s, f]``; empty ones give the identity.

    Args:
      values, offsets, monoid, choice: what to fold, over which segments, how, and where.
      of: a function of this package, the same object in every call: ``(rows, per_segment, position) -> parts`` makes what
        is folded of some rows ``[r, f]`` of the values, the rows ``[1, f]`` of `per_segment` for their segment, and
        their numbers in it, ``[r, 1]``. Element by element, in the dtypes it is folded in.
      per_segment: arrays ``[s, f]``, spread over their segments only as the fold goes along.
    """
    return tuple(reduce_p.bind(*values, *per_segment, offsets, monoid=monoid, choice=choice, of=of, given=len(per_segment)))


def spread(per_segment, offsets, *, n, choice):
    """Repeat each row of ``[s, f]`` over its segment: ``[n, f]``, dead rows zero."""
    (out,) = spread_p.bind(per_segment, offsets, n=n, choice=choice)
    return out


def softmax(values, offsets, *, logarithm, choice):
    """Softmax of each segment of ``[n, f]`` floats, or its logarithm; dead rows zero."""
    (out,) = softmax_p.bind(values, offsets, logarithm=logarithm, choice=choice)
    return out


def heads(offsets, n):
    """One bit a row, set at the first row of each non-empty segment: see `_segments.head_bits`."""
    (out,) = heads_p.bind(offsets, n=n)
    return out


# Shapes and lowering -------------------------------------------------------------------------------------------------


class _Verb(Primitive):
    """A primitive whose operands all vary over the same axes of a mesh, and its results with them."""

    multiple_results = True

    def bind(self, *operands, **params):
        return super().bind(*_compat.alike(operands), **params)


def _verb(name, shapes, run):
    """A primitive with its shape rule and, for every platform, the lowering to the machine that `_select` names."""
    primitive = _Verb(f"segmented_{name}")
    primitive.def_effectful_abstract_eval(functools.partial(_trace, shapes, run))
    primitive.def_impl(functools.partial(_run_eagerly, primitive))
    for platform in _select.PLATFORMS:
        mlir.register_lowering(primitive, functools.partial(_lower, run, platform), platform=platform)
    return primitive


def _trace(shapes, run, *avals, **params):
    """The shapes of the results, and the effects: none, but JAX's interpreter of TPU kernels orders what it does."""
    effects = frozenset()
    if _compat.tpu_interpreter() and "choice" in params and params["choice"].config.implementation == "pallas_tpu":
        effects = jax.make_jaxpr(functools.partial(run, where=("cpu", False), **params))(*avals).effects
    return [_compat.varying_like(aval, avals[0]) for aval in shapes(*avals, **params)], effects


def _lower(run, platform, ctx, *operands, **params):
    """Lower to the machine that serves, which for `jax.export` may be another one."""
    run = functools.partial(run, where=(platform, _compat.exporting(ctx)))
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):  # nothing is split here: kernels know of no mesh
        inner = ctx.replace(avals_in=[ShapedArray(x.shape, x.dtype) for x in ctx.avals_in])
        out = mlir.lower_fun(run, multiple_results=True)(inner, *operands, **params)
    if inner.tokens_out is not None:
        ctx.set_tokens_out(inner.tokens_out)
    return out


def _run_eagerly(primitive, *operands, **params):
    with jax.disable_jit(False):  # a primitive is one computation under `disable_jit` too
        return _jitted(primitive, tuple(sorted(params.items(), key=lambda item: item[0])))(*operands)


@functools.lru_cache(maxsize=512)
def _jitted(primitive, params):
    return jax.jit(functools.partial(primitive.bind, **dict(params)))


def call_of(primitive, avals, params, exporting=False) -> _select.Call:
    """What `_select` is asked about an equation of one of the primitives."""
    verb = primitive.name.removeprefix("segmented_")
    layout = 2 if primitive is scan_p else 1
    return _select.Call(verb, params.get("monoid"), tuple(avals[:-layout]), params["choice"], params.get("of", itself), exporting)


def _choose(primitive, operands, params, where):
    avals = [jax.typeof(x) for x in operands]
    platform, exporting = where
    machine, config = _select.choose(call_of(primitive, avals, params, exporting), platform)
    return machine.kernels, {name: value for name, value in params.items() if name != "choice"} | dict(config=config)


def _scan_shapes(*operands, monoid, **_):
    return [ShapedArray(x.shape, x.dtype) for x in operands[:-2][monoid.gives]]


def _scan_run(*operands, where, **params):
    donate = params["choice"].donate
    kernels, params = _choose(scan_p, operands, params, where)
    *values, heads, n_live = operands
    return list(kernels.scan(tuple(values), heads, n_live, donate=donate, **params))


def parted(operands, given):
    """The operands of `reduce_p`: values, `given` arrays of rows a segment, offsets."""
    *rows, offsets = operands
    return tuple(rows[: len(rows) - given]), tuple(rows[len(rows) - given :]), offsets


def _reduce_shapes(*operands, monoid, of, given, **_):
    values, per_segment, offsets = parted(operands, given)
    parts = made(of, values, per_segment, offsets)
    return [ShapedArray((offsets.shape[0] - 1, x.shape[1]), x.dtype) for x in parts[monoid.gives]]


def _reduce_run(*operands, where, given, **params):
    kernels, params = _choose(reduce_p, operands, params, where)
    return list(kernels.reduce(*parted(operands, given), **params))


def _spread_shapes(per_segment, offsets, *, n, **_):
    del offsets
    return [ShapedArray((n, per_segment.shape[1]), per_segment.dtype)]


def _spread_run(per_segment, offsets, *, where, **params):
    kernels, params = _choose(spread_p, (per_segment, offsets), params, where)
    return [kernels.spread(per_segment, offsets, **params)]


def _softmax_shapes(values, offsets, **_):
    del offsets
    return [ShapedArray(values.shape, values.dtype)]


def _softmax_run(values, offsets, *, where, **params):
    kernels, params = _choose(softmax_p, (values, offsets), params, where)
    return [kernels.softmax(values, offsets, **params)]


def _heads_shapes(offsets, *, n):
    del offsets
    return [ShapedArray(((n + 31) // 32,), jnp.uint32)]


def _heads_run(offsets, *, where, n):
    platform, _ = where
    sizes = isinstance(n, int) and isinstance(offsets.shape[0], int) and min(n, offsets.shape[0] - 1) > 0
    return [(pallas_tpu_heads if platform == "tpu" and sizes and n < 1 << 30 else _segments).head_bits(offsets, n)]


heads_p = _verb("heads", _heads_shapes, _heads_run)
scan_p = _verb("scan", _scan_shapes, _scan_run)
reduce_p = _verb("reduce", _reduce_shapes, _reduce_run)
spread_p = _verb("spread", _spread_shapes, _spread_run)
softmax_p = _verb("softmax", _softmax_shapes, _softmax_run)
PRIMITIVES = (scan_p, reduce_p, spread_p, softmax_p)
