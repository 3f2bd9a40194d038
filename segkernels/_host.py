"""Lists of arrays to one flat buffer and back, on the host: nothing here compiles, whatever the lengths.

`jnp.concatenate`, `jnp.split`, slices and `jnp.asarray` compile once per length. Here arrays are joined by NumPy into
an aligned buffer, whose rows are rounded up to a bucket so that one compile serves many totals, and results go back
as views, or as JAX arrays made from views.
"""

import contextlib
import dataclasses
import math
import operator

import jax
import jax.numpy as jnp
import numpy as np

from segkernels import _check, _compat
from segkernels._segments import fit, offsets_of

_ALIGNMENT = 64  # bytes: where JAX takes a NumPy buffer as it is, without a copy
_WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))


def row_bucket(n: int, row_bytes: int = 1) -> int:
    """The capacity for `n` rows: four buckets an octave, so at most a quarter more, and a multiple of 32 from 128 on.

    Small totals share the bucket of 128 rows, as long as it is small: rows of over 512 bytes get the rows there are.

    >>> [row_bucket(n) for n in (0, 128, 129, 1000, 1025)]
    [128, 128, 160, 1024, 1280]
    """
    if n <= 128:
        return 128 if row_bytes <= 512 else max(n, 1)
    step = 1 << (int(n) - 1).bit_length() - 3
    return -(-n // step) * step


def x64(*dtypes):
    """A scope in which JAX keeps these dtypes."""
    return jax.enable_x64(True) if any(np.dtype(d) in _WIDE for d in dtypes) else contextlib.nullcontext()


@dataclasses.dataclass
class Arrays:
    """A checked list of arrays of one trailing shape: its lengths, common dtype, and where they live.

    `device` is None for NumPy arrays, and the device of the first JAX array else; `uniform` says that all entries have
    one dtype already.
    """

    items: list
    offsets: np.ndarray
    feature: tuple
    dtype: np.dtype
    device: object
    uniform: bool = True

    @classmethod
    def of(cls, x) -> "Arrays":
        """One array ``[n, *feature]``, NumPy or JAX."""
        device = device_of(x) if isinstance(x, jax.Array) else None
        dtype = common_dtype([x.dtype], on_jax=device is not None)
        return cls([x], np.array([0, *x.shape[:1]]), x.shape[1:], dtype, device)

    @property
    def total(self) -> int:
        return int(self.offsets[-1])

    @property
    def capacity(self) -> int:
        """The bucket of rows."""
        return row_bucket(self.total, math.prod(self.feature) * self.dtype.itemsize)

    def pack(self, capacity: int) -> np.ndarray:
        """One buffer ``[capacity, *feature]``. The rows past the last repeat it: zeros would make a log's gradient NaN."""
        buffer = _aligned((capacity, *self.feature), self.dtype)
        live = buffer[: self.total]
        if live.size and not self._join(live):
            np.concatenate(self.items if self.device is None else jax.device_get(self.items), out=live, casting="unsafe")
        buffer[self.total :] = live[-1] if len(live) else 1
        return buffer

    def _join(self, live) -> bool:
        """Join JAX arrays by the buffer protocol, five times as fast as through NumPy; False if they have none."""
        if self.device is None or not self.uniform:
            return False
        try:
            memoryview(live.reshape(-1).view(np.uint8))[:] = b"".join(self.items)
        except (BufferError, TypeError, ValueError):  # bfloat16, or an array on an accelerator
            return False
        return True


def split(flat: np.ndarray, offsets: np.ndarray, device=None) -> list:
    """The arrays of a list from their rows in `flat`: views, which own it then, or JAX arrays on `device`."""
    edges = offsets.tolist()
    views = [flat[a:b] for a, b in zip(edges, edges[1:])]
    return views if device is None else _compat.device_arrays(views, device)


def put(buffer: np.ndarray, device=None) -> jax.Array:
    """Put a buffer of ours, which nobody writes to afterwards, on a device, by default JAX's."""
    return _compat.device_arrays([buffer], device or _compat.default_device(), copy=False)[0]


def same_memory(x, y) -> bool:
    """Whether two operands are the same JAX buffer, as far as that can be told."""
    if not (isinstance(x, jax.Array) and isinstance(y, jax.Array)):
        return False
    one = all(len(array.devices()) == 1 for array in (x, y))
    return x is y or not one or x.unsafe_buffer_pointer() == y.unsafe_buffer_pointer()


def _aligned(shape, dtype) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def arrays(call: str, items, device=None, name="arrays") -> Arrays:
    """Check a list of arrays; of traced ones only the shapes are of use afterwards.

    Args:
      call: the name of the public function, for messages.
      items: the list.
      device: where other operands of the call are, if they are JAX arrays: then these join them.
      name: of the argument, for messages.

    Raises:
      TypeError: an entry is no array of numbers, or its dtype is not supported.
      ValueError: an entry is 0-d, or the trailing shapes differ.
    """
    items, on_jax = _entries(call, items)
    on_jax = on_jax or device is not None
    shapes = [x.shape for x in items]
    try:
        lengths, feature = [n for (n,) in shapes], ()
    except ValueError:
        lengths, feature = _lengths(call, shapes)
    dtypes = set(map(operator.attrgetter("dtype"), items))
    uniform = len(dtypes) == 1
    if not uniform:
        dtypes = {x.dtype for x, n in zip(items, lengths) if n} or dtypes
    for dtype in dtypes:
        _check.supported(call, name, dtype)
    dtype = common_dtype(dtypes, on_jax)
    if not uniform or dtype not in dtypes:
        for x in items:
            fits(call, x, dtype)
    if device is None and on_jax:
        device = _device(call, items)
    return Arrays(items, fit(call, offsets_of(np.array(lengths, np.int64))), feature, dtype, device, uniform and dtype in dtypes)


def _device(call, items):
    """The device of the JAX arrays of a list: the one they are committed to, else that of the first; None if traced."""
    if _check.is_traced(*items):
        return None
    on_jax = [x for x in items if isinstance(x, jax.Array)]
    if any(map(operator.methodcaller("is_deleted"), on_jax)):
        for i, x in enumerate(items):
            _check.kept(call, f"entry {i} of the list", x)
    if jax.device_count() > 1:
        bound = [x for x in on_jax if x.committed]
        devices = {device for x in bound for device in x.devices()}
        if len(devices) > 1:
            raise ValueError(
                f"{call}: the arrays of a list must be on one device, got {', '.join(sorted(map(str, devices)))}; move them with "
                "`jax.device_put`"
            )
        on_jax = bound or on_jax
    return device_of(on_jax[0])


def device_of(x):
    """The device that results of a JAX array go to: its own, or the first of several."""
    return min(x.devices(), key=lambda device: device.id) if isinstance(x, jax.Array) else _compat.default_device()


def common_dtype(dtypes, on_jax: bool) -> np.dtype:
    """The dtype that `jnp.concatenate` would give, with x64 unless a JAX array is among them."""
    dtypes = [d.newbyteorder("=") for d in dtypes] or [np.dtype(np.float32)]
    dtypes = {jax.dtypes.canonicalize_dtype(d) for d in dtypes} if on_jax else dtypes
    if len(dtypes) == 1:
        return next(iter(dtypes))
    with contextlib.nullcontext() if on_jax else jax.enable_x64(True):
        return np.dtype(jnp.result_type(*dtypes))


def fits(call: str, x, dtype) -> None:
    """Refuse integers that a cut to `dtype`, which JAX makes without x64, would turn into other numbers."""
    if _check.is_traced(x) or x.dtype.kind not in "iu" or dtype.kind not in "iu" or np.can_cast(x.dtype, dtype) or not x.size:
        return
    x, info = np.asarray(x), np.iinfo(dtype)
    low, high = int(x.min()), int(x.max())
    if low < info.min or high > info.max:
        raise ValueError(
            f"{call}: values from {low} to {high} do not fit {dtype}, which JAX makes of {x.dtype}; enable x64 in JAX, or pass "
            "NumPy arrays only"
        )


def to_jax(call: str, x) -> jax.Array:
    """`x` as a JAX array: a copy of NumPy values in the byte order and width that JAX has."""
    if isinstance(x, jax.Array):
        return x
    kept = jax.dtypes.canonicalize_dtype(x.dtype.newbyteorder("="))
    fits(call, x, kept)
    return jnp.array(x.astype(kept, copy=False))


def _entries(call, items):
    """The entries as arrays, and whether there is a JAX array among them."""
    kinds = set(map(type, items))
    of_jax = {kind for kind in kinds if issubclass(kind, jax.Array | jax.core.Tracer)}
    on_jax = bool(of_jax)
    if kinds - of_jax <= {np.ndarray}:
        return list(items), on_jax
    return [x if isinstance(x, jax.Array) else as_numpy(call, f"entry {i}", x) for i, x in enumerate(items)], on_jax


def as_numpy(call: str, what: str, x) -> np.ndarray:
    """`x` as a NumPy array of numbers, or a `TypeError`."""
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{call}: {what} is a masked array, and no operation knows its mask; pass `x.filled(value)` or `x.compressed()`"
        )
    try:
        array = np.asarray(x)
    except jax.errors.TracerArrayConversionError as error:
        raise TypeError(f"{call}: {what} holds traced values; make an array of them by `jnp.stack` or `jnp.asarray`") from error
    except (TypeError, RuntimeError) as error:
        raise TypeError(f"{call}: {what} must be an array of numbers: {error}") from error
    except ValueError as error:
        raise TypeError(f"{call}: {what} must be an array of numbers, got a {type(x).__name__} that is none") from error
    if array.dtype.kind not in "biufcV":
        raise TypeError(f"{call}: {what} must be an array of numbers, got a {type(x).__name__} of dtype {array.dtype}")
    return array


def _lengths(call, shapes):
    """Lengths and trailing shape of entries that are not all 1-D."""
    first = shapes[0]
    for i, shape in enumerate(shapes):
        if not shape:
            raise ValueError(f"{call}: entry {i} of the list is 0-d; every entry needs a first axis, its rows: pass `x[None]`")
        if shape[1:] != first[1:]:
            raise ValueError(
                f"{call}: entries of one list must have equal shapes but for the first axis, got {first} at 0 and {shape} at "
                f"{i}; call once for each trailing shape"
            )
    return [shape[0] for shape in shapes], first[1:]
