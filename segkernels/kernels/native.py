"""The native machine: one C file (`native.c`) behind XLA's foreign-function interface, on CPU, where a compiler built it.

The bits of a segment depend on its own elements alone: the head of `native.c` says in which order they are folded. Threads
are used above a size, no more than the process may run on if nobody asks for more, and end with the call; a segment is
walked by one.
"""

import ctypes
import functools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np

from segkernels._algebra import ADD, AFFINE, MAX, MIN, MUL, accumulator, itself, of_nothing, wide

LIBRARY = pathlib.Path(__file__).with_name("native.shared")
_OPS = {ADD: 0, MUL: 1, MAX: 2, MIN: 3, AFFINE: 4}  # as in native.c
_DTYPES = ("float32", "float64", "int32", "int64")
_KNOWN = ((0, 1), (0, 5))  # the versions of the interface that native.c knows the layout of


def unsupported(call) -> str | None:
    """Why this machine cannot serve a call."""
    if call.verb == "spread":
        return "it has no spread"
    if call.verb != "softmax" and (call.monoid not in _OPS or (call.verb == "reduce" and call.monoid is AFFINE)):
        return f"it has no {call.verb} of {call.monoid}"
    if call.of is not itself:
        return "it reduces values as they are, not what is made of them on the way"
    dtypes, taken = sorted({accumulator(x.dtype).name for x in call.operands}), _DTYPES
    if call.verb == "softmax":
        taken = _DTYPES[:2]
    if len(dtypes) > 1 or dtypes[0] not in taken:
        return f"it takes {', '.join(taken)} and, through float32, 16-bit floats, not {' and '.join(dtypes)}"
    if not all(isinstance(size, int) for x in call.operands for size in x.shape):
        return "it takes no symbolic sizes"
    if call.exporting:
        return "jax.export takes no calls of it"
    return missing()


@functools.cache
def missing() -> str | None:
    """Why the library is not there, or None once its handlers are registered.

    Versions are compared before: jaxlib refuses a handler of another version by giving up the whole CPU backend.
    """
    if not LIBRARY.exists():
        return "not built: no C compiler found that builds it when segkernels was installed"
    version = interface_version()
    if version is None or not _KNOWN[0] <= version <= _KNOWN[1]:
        known = " to ".join(f"{major}.{minor}" for major, minor in _KNOWN)
        return f"built for versions {known} of XLA's foreign-function interface, and this jaxlib has {_dotted(version)}"
    try:
        library = ctypes.CDLL(str(LIBRARY))
        handlers = {verb: getattr(library, f"segkernels_{verb}_handler") for verb in ("scan", "reduce", "softmax")}
    except (OSError, AttributeError) as error:
        return f"it cannot be loaded: {error}"
    for verb, handler in handlers.items():
        jax.ffi.register_ffi_target(f"segkernels_{verb}", jax.ffi.pycapsule(handler), platform="cpu")
    return None


def interface_version() -> tuple[int, int] | None:
    """The version of XLA's foreign-function interface in this jaxlib, as its header states it."""
    header = pathlib.Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    text = header.read_text() if header.exists() else ""
    found = [re.search(rf"^#define XLA_FFI_API_{part} (\d+)$", text, re.MULTILINE) for part in ("MAJOR", "MINOR")]
    return (int(found[0][1]), int(found[1][1])) if all(found) else None


def _dotted(version):
    return "none that it states" if version is None else "{}.{}".format(*version)


def scan(values, heads, n_live, *, monoid, reverse, exclusive, config, donate=False):
    """As `kernels.xla.scan`. In place only if the memory is given: XLA would copy it before, which costs three times more."""
    x = values[-1]
    if 0 in x.shape:
        return values[monoid.gives]
    mode = _mode(monoid, config) | reverse << 4 | exclusive << 5
    values = tuple(map(_flat, values))
    last = len(values) - 1
    out = jax.ShapeDtypeStruct(values[last].shape, values[last].dtype)
    call = jax.ffi.ffi_call("segkernels_scan", out, input_output_aliases={last: 0} if donate else None)
    return (call(*values, heads, n_live, mode=np.int64(mode)).reshape(x.shape).astype(x.dtype),)


def reduce(values, per_segment, offsets, *, monoid, of, config):
    """As `kernels.xla.reduce`, of values as they are."""
    (x,) = values
    shape = (offsets.shape[0] - 1, x.shape[1])
    if 0 in (*x.shape, *shape):
        return of_nothing(monoid, of, values, per_segment, offsets)
    x = _flat(x)
    call = jax.ffi.ffi_call("segkernels_reduce", jax.ShapeDtypeStruct((shape[0], *x.shape[1:]), x.dtype))
    return (call(x, offsets, mode=np.int64(_mode(monoid, config))).reshape(shape).astype(values[0].dtype),)


def softmax(values, offsets, *, logarithm, config):
    """As `kernels.xla.softmax`."""
    if 0 in (*values.shape, offsets.shape[0] - 1):
        return jnp.zeros_like(values)
    x = _flat(values)
    call = jax.ffi.ffi_call("segkernels_softmax", jax.ShapeDtypeStruct(x.shape, x.dtype))
    mode = logarithm << 4 | _threads(config)
    return call(x, offsets, mode=np.int64(mode)).reshape(values.shape).astype(values.dtype)


def _mode(monoid, config):
    return _OPS[monoid] | _threads(config)


def _threads(config):
    return (config.threads or 0) << 8


def _flat(x):
    """One column as ``[n]``, which is most often what the caller has: a reshape before a call in place is a copy to XLA."""
    return wide(x.reshape(-1) if x.shape[1] == 1 else x)


missing()  # compiled functions that come from elsewhere find their handlers then
