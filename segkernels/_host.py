"""Lists of arrays to one flat buffer and back, on the host: nothing here compiles, whatever the lengths.

`jnp.concatenate`, `jnp.split`, slices and `jnp.asarray` compile once per length. Here arrays are joined by NumPy into
an aligned buffer, whose rows are rounded up to a bucket so that one compile serves many totals, and results go back
as views, or as JAX arrays made from views.
"""

import contextlib
import dataclasses
import operator

import jax
import jax.numpy as jnp
import numpy as np

from segkernels import _check, _compat
from segkernels._segments import fit, offsets_of

_ALIGNMENT = 64  # bytes: where JAX takes a NumPy buffer as it is, without a copy
_WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))


def row_bucket(n: int) -> int:
    """The capacity for `n` rows: four buckets an octave, so at most a quarter more, and a multiple of 32 from 128 on.

    >>> [row_bucket(n) for n in (0, 128, 129, 1000, 1025)]
    [128, 128, 160, 1024, 1280]
    """
    if n <= 128:
        return 128
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

    @property
    def total(self) -> int:
        return int(self.offsets[-1])

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

    def split(self, flat: np.ndarray) -> list:
        """The arrays of the list back from their rows in `flat`, which is then theirs."""
        edges = self.offsets.tolist()
        views = [flat[a:b] for a, b in zip(edges, edges[1:])]
        return views if self.device is None else _compat.device_arrays(views, self.device)


def put(buffer: np.ndarray, device=None) -> jax.Array:
    """Put a buffer of ours, which nobody writes to afterwards, on a device, by default JAX's."""
    return _compat.device_arrays([buffer], device or _compat.default_device(), copy=False)[0]


def _aligned(shape, dtype) -> np.ndarray:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def arrays(call: str, items) -> Arrays:
    """Check a list of arrays; of traced ones only the shapes are of use afterwards.

    Raises:
      TypeError: an entry is no array of numbers, or its dtype is not supported.
      ValueError: an entry is 0-d, or the trailing shapes differ.
    """
    items, on_jax = _entries(call, items)
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
        _check.supported(call, "arrays", dtype)
    device = None
    if on_jax and not _check.is_traced(*items):
        device = next(iter(next(x for x in items if isinstance(x, jax.Array)).devices()))
    dtype = common_dtype(dtypes, on_jax)
    if on_jax and not uniform:
        for x in items:
            fits(call, x, dtype)
    return Arrays(items, fit(call, offsets_of(lengths)), feature, dtype, device, uniform)


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
    if x.dtype.kind in "iu" and dtype.kind in "iu" and x.size and not np.can_cast(x.dtype, dtype):
        low, high, info = x.min(), x.max(), np.iinfo(dtype)
        if low < info.min or high > info.max:
            raise ValueError(
                f"{call}: values from {low} to {high} do not fit {dtype}, which JAX makes of {x.dtype}; enable "
                "x64 in JAX, or pass NumPy arrays only"
            )


def _entries(call, items):
    """The entries as arrays, and whether there is a JAX array among them."""
    kinds = set(map(type, items))
    on_jax = any(issubclass(kind, jax.Array) for kind in kinds)
    if all(kind is np.ndarray or issubclass(kind, jax.Array) for kind in kinds):
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
            raise ValueError(f"{call}: entry {i} of the list is 0-d; every entry needs a first axis, its rows")
        if shape[1:] != first[1:]:
            raise ValueError(
                f"{call}: entries of one list must have equal shapes but for the first axis, got {first} at 0 and {shape} at {i}"
            )
    return [shape[0] for shape in shapes], first[1:]
