"""What depends on the version of JAX, and every private name: each with a public way round it, and the day it may go."""

import contextlib
import functools

import jax
import numpy as np

try:
    from jaxlib import _jax as _jaxlib
except ImportError:  # a jaxlib that has moved it: the public way serves
    _jaxlib = None
try:
    from jax._src.core import trace_state_clean as _trace_state_clean
except ImportError:
    _trace_state_clean = None
try:
    from jax._src.config import pallas_tpu_interpret_mode_context_manager as _tpu_interpreter
except ImportError:
    _tpu_interpreter = None

# Whether a native loop on CPU holds no more than 1,024 bytes an iteration. Goes with the versions of JAX before 0.12.
SMALL_LOOPS = jax.__version_info__ < (0, 12)

# The sharding of arrays that lie whole on one device. Goes with the versions of JAX before 0.12.1, where the new name is not.
sharding_on = getattr(jax.sharding, "make_single_device_sharding", None) or jax.sharding.SingleDeviceSharding


def now():
    """A scope in which calls on concrete arrays run at once, inside a trace of the user's too.

    Inside a trace that is the public `jax.ensure_compile_time_eval`. Outside it is no scope at all, for in that one
    JAX compiles each constant of a function it traces. Goes when it no longer does.
    """
    return jax.ensure_compile_time_eval() if tracing() else contextlib.nullcontext()


def tracing() -> bool:
    """Whether a trace of the user's is going on, as far as we can tell."""
    return _trace_state_clean is None or not _trace_state_clean()


def exporting(ctx) -> bool:
    """Whether a lowering is for `jax.export`, which takes no custom calls but its own. Goes when it has a public name."""
    module = getattr(ctx, "module_context", None)
    return bool(getattr(getattr(module, "lowering_parameters", None), "for_export", False))


def tpu_interpreter() -> bool:
    """Whether this is a scope of JAX's TPU interpreter, which runs kernels for TPU on a CPU. Goes when that has a public name."""
    return getattr(_tpu_interpreter, "value", None) is not None


def alike(operands) -> tuple:
    """Operands that all vary over the mesh axes that one does, inside `jax.shard_map` that keeps count of it.

    What does not vary is cast, and the transpose of that cast sums its cotangents, as for operands of `jax.numpy`.
    """
    over = [_varying(jax.typeof(x)) for x in operands]
    every = frozenset().union(*over)
    return tuple(x if axes == every else jax.lax.pcast(x, tuple(every - axes), to="varying") for x, axes in zip(operands, over))


def varying_like(aval, like):
    """An abstract value ``[n, f]`` that varies over the mesh axes that `like`, one of such a shape, does."""
    return like.update(shape=aval.shape, dtype=aval.dtype, weak_type=False) if _varying(like) else aval


def _varying(aval) -> frozenset:
    return getattr(getattr(aval, "manual_axis_type", None), "varying", frozenset())


def device_arrays(views: list, device, *, copy: bool = True) -> list:
    """Make a `jax.Array` on `device` of each NumPy array; without `copy` it may be the same memory, then ours no more.

    Making the arrays is the whole cost of a list call. The private call takes a third of the time of the public one
    and, as jit does, leaves arrays on the default device free to follow others (uncommitted). Goes when
    `jax.device_put` of a list costs under 8 us an array.
    """
    put = _private_put() or _public_put
    return put(views, sharding_on(device), device, device != default_device(), copy)


def default_device():
    """The device on which JAX puts what nothing else decides on."""
    chosen = jax.config.jax_default_device
    return chosen if isinstance(chosen, jax.Device) else jax.local_devices(backend=chosen)[0]


def _public_put(views, sharding, device, committed, copy):
    del device, committed  # always committed
    views = [v.copy() for v in views] if copy else views
    return [jax.make_array_from_callback(v.shape, sharding, lambda index, v=v: v[index]) for v in views]


def _fast_put(views, sharding, device, committed, copy):
    put, devices, avals, out = _jaxlib.batched_device_put, [device], {}, []
    mesh = jax.sharding.get_abstract_mesh()
    for v in views:
        n = len(v)
        aval = avals.get(n)  # the views of one call share dtype and trailing shape
        if aval is None:
            aval = avals[n] = _aval(v.shape, v.dtype, mesh)
        out.append(put(aval, sharding, [v], devices, committed, copy))
    return out


@functools.lru_cache(maxsize=8192)
def _aval(shape, dtype, mesh):
    """The abstract value of an array, which costs 7 us to make, and holds the mesh it was made under."""
    del mesh
    return jax.core.ShapedArray(shape, dtype)


@functools.cache
def _private_put():
    """The private call if it still does what we need, tried once at first use: importing must not start a backend."""
    try:
        device = jax.local_devices(backend="cpu")[0]
        sample = np.arange(3, dtype=np.float32)
        (made,) = _fast_put([sample], sharding_on(device), device, False, True)
        right = isinstance(made, jax.Array) and made.shape == (3,) and np.array_equal(np.asarray(made), sample)
    except Exception:  # noqa: BLE001 - whatever a future private name does, the public way serves
        return None
    return _fast_put if right else None
