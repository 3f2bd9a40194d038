"""`explain`: which machine would run a call, and why each other one would not."""

import jax
import numpy as np
from jax.extend.core import subjaxprs

from segkernels import _host, _select, _verbs
from segkernels._ragged import Ragged
from segkernels._segments import Segments


def explain(function, *args, platform=None, **kwargs) -> None:
    """Print which machine and walk serve each verb of a call, and why each other machine does not.

    Args:
      function: an operation, or any function of yours that calls some.
      *args: its arguments, as the call would get them. Nothing is computed.
      platform: ``"cpu"``, ``"cuda"``, ``"rocm"`` or ``"tpu"``; by default where the call would run.
      **kwargs: its keyword arguments.

    Raises:
      ValueError: `platform` is none of these, or an explicit `implementation` cannot serve the call.

    >>> explain(segmented_cumsum, [np.ones(3, np.float32), np.ones(2, np.float32)], platform="cuda")
    segmented_cumsum on cuda
      scan add of float32[128,1]: xla, walk associative
        not pallas_gpu: this version of segkernels has no such kernel
        not pallas_tpu: runs on tpu, and this call is for cuda
        not native: runs on cpu, and this call is for cuda
    """
    platform = {"gpu": "cuda", None: _default_platform(args)}.get(platform, platform)
    if platform not in _select.PLATFORMS:
        raise ValueError(f"explain: `platform` must be one of {', '.join(_select.PLATFORMS)}, got {platform!r}")
    flat = any(isinstance(x, Segments) for x in (*args, *kwargs.values()))
    args = [_packed(x, flat) for x in args]
    kwargs = {name: _packed(x, flat or name in ("initial", "identity")) for name, x in kwargs.items()}
    leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=_is_operand)
    values = [leaf.values if isinstance(leaf, Ragged) else leaf if _is_array(leaf) else None for leaf in leaves]

    def traced(values):
        # Layouts, and whatever is no array, stay as they are: sizes may be read off them.
        args, kwargs = jax.tree.unflatten(tree, map(_with_values, leaves, values))
        return function(*args, **kwargs)

    wide = [v.dtype for v in values if isinstance(v, np.ndarray)]
    with _host.x64(*wide, *([kwargs["dtype"]] if wide and kwargs.get("dtype") is not None else [])):
        jaxpr = jax.make_jaxpr(traced)(values)
    print(f"{getattr(function, '__name__', 'the call')} on {platform}")
    equations = list(_equations(jaxpr.jaxpr))
    if not equations:
        print("  plain JAX, with no kernel of ours")
    for eqn in equations:
        avals = [v.aval for v in eqn.invars]
        call = _verbs.call_of(eqn.primitive, avals, eqn.params)
        print("\n".join(f"  {line}" for line in _select.explanation(call, platform)))


def _is_array(x):
    return isinstance(x, (np.ndarray, jax.Array, jax.ShapeDtypeStruct))


def _is_operand(x):
    return x is None or isinstance(x, (Ragged, Segments)) or _is_array(x)


def _packed(x, flat):
    """A list of arrays as its call packs it, for the machines are asked about the bucket; as an array in a flat call."""
    if flat:
        return np.asarray(x) if isinstance(x, list) else x
    if not isinstance(x, (list, tuple)) or not x or not all(np.ndim(entry) for entry in x):
        return x
    packed = _host.arrays("explain", x)
    return Ragged._make(packed.pack(packed.capacity), Segments._make(packed.offsets))


def _with_values(leaf, values):
    return leaf if values is None else Ragged._make(values, leaf.segments) if isinstance(leaf, Ragged) else values


def _default_platform(args):
    arrays = [leaf for leaf in jax.tree.leaves(args) if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)]
    platform = next(iter(arrays[0].devices())).platform if arrays else jax.default_backend()
    return "cuda" if platform == "gpu" else platform


def _equations(jaxpr):
    """The verbs of a jaxpr, inner functions included."""
    for eqn in jaxpr.eqns:
        if eqn.primitive in _verbs.PRIMITIVES:
            yield eqn
    for inner in subjaxprs(jaxpr):
        yield from _equations(inner)
