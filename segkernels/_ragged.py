"""`Ragged`: flat values and their layout, passed around as one."""

import functools
import math
import operator

import jax
import jax.numpy as jnp
import numpy as np

from segkernels import _check, _host
from segkernels._segments import Segments, check_layout


@jax.tree_util.register_pytree_with_keys_class
class Ragged:
    """Arrays of unequal length as one flat buffer and the `Segments` that say which rows are whose.

    A pytree: it passes through `jax.jit`, `jax.vmap`, `jax.lax.scan`. Differentiate with respect to ``.values``.
    ``len``, indexing and iteration give the arrays; elementwise operators take scalars and a `Ragged` of the same
    layout.

    Attributes:
      values: ``[capacity, *feature]``; rows past the last segment are dead.
      segments: the layout.

    >>> x = Ragged.from_arrays([np.ones(2), np.zeros(0), np.ones(3)])
    >>> len(x), (2 * x + 1)[2].tolist()
    (3, [3.0, 3.0, 3.0])
    """

    __array_ufunc__ = None  # NumPy must not take our operators apart

    def __init__(self, values, segments: Segments):
        call = "Ragged(values, segments)"
        check_layout(call, segments)
        if not isinstance(values, jax.Array):
            values = _host.to_jax(call, _host.as_numpy(call, "`values`", values))
        if values.ndim == 0:
            raise ValueError(f"{call}: `values` needs a first axis, its rows, got a 0-d array")
        _check.supported(call, "values", values.dtype)
        _check.rows(call, values, segments)
        self.values, self.segments = values, segments

    @classmethod
    def _make(cls, values, segments):
        self = object.__new__(cls)
        self.values, self.segments = values, segments
        return self

    @classmethod
    def from_arrays(cls, arrays, *, size=None, num_segments=None) -> "Ragged":
        """Concatenate a list of arrays ``[n_k, *feature]`` on the host, without a compile.

        Args:
          arrays: NumPy or JAX arrays, or lists of numbers.
          size: rows of the buffer; by default the total rounded up by at most a quarter, so that a jitted function of
            a `Ragged` compiles for few sizes.
          num_segments: pad with empty segments to this number, so that the number of arrays changes no shape either.

        Raises:
          TypeError: an entry is no array of numbers.
          ValueError: trailing shapes differ, an entry is 0-d, or `size` or `num_segments` is too small.
        """
        call = "Ragged.from_arrays(arrays)"
        if not isinstance(arrays, (list, tuple)):
            raise TypeError(f"{call}: `arrays` must be a list or tuple of arrays, got {type(arrays).__name__}")
        if _check.is_traced(*arrays):
            raise TypeError(
                f"{call}: an entry is traced, and arrays are joined on the host; build the `Ragged` outside "
                "the transformed function and pass it in"
            )
        packed = _host.arrays(call, arrays)
        size = packed.capacity if size is None else _check.size(call, "size", size)
        s = len(packed.items) if num_segments is None else _check.size(call, "num_segments", num_segments)
        if size < packed.total:
            raise ValueError(f"{call}: `size` must hold all {packed.total} rows, got {size}")
        if s < len(packed.items):
            raise ValueError(f"{call}: `num_segments` must be at least the number of arrays, {len(packed.items)}, got {s}")
        values, kept = packed.pack(size), jax.dtypes.canonicalize_dtype(packed.dtype)
        _host.fits(call, values, kept)
        offsets = np.pad(packed.offsets, (0, s - len(packed.items)), mode="edge")
        segments = Segments.from_offsets(offsets).prepare(size)
        with np.errstate(over="ignore"):  # float64 past float32 is infinite, as in `jnp.asarray`
            values = values.astype(kept, copy=False)
        return cls._make(_host.put(values, packed.device), segments)

    @classmethod
    def from_padded(cls, dense, lengths) -> "Ragged":
        """Take the first ``lengths[k]`` rows of each ``dense[k]``, of a dense array ``[s, length, *feature]``.

        Traced lengths keep room for all ``s * length`` rows.
        """
        call = "Ragged.from_padded(dense, lengths)"
        if not isinstance(dense, jax.Array):
            dense = _host.to_jax(call, _host.as_numpy(call, "`dense`", dense))
        segments = Segments.from_lengths(lengths)
        if dense.ndim < 2 or dense.shape[0] != segments.num_segments:
            raise ValueError(
                f"{call}: `dense` must be [{segments.num_segments}, length, *feature] for as many lengths, "
                f"got shape {dense.shape}"
            )
        known = _check.concrete(segments.offsets)
        size = dense.shape[0] * dense.shape[1]
        if known is not None:
            longest = int(np.max(np.diff(known), initial=0))
            if longest > dense.shape[1]:
                raise ValueError(f"{call}: `lengths` must not exceed the {dense.shape[1]} rows of `dense`, got {longest}")
            row_bytes = math.prod(dense.shape[2:]) * dense.dtype.itemsize
            size = min(size, _host.row_bucket(int(known[-1]), row_bytes))
        return _from_padded(dense, segments, size=size)

    def with_values(self, values) -> "Ragged":
        """The same layout around other values ``[capacity, *feature]``."""
        if jnp.shape(values)[:1] != self.values.shape[:1]:
            raise ValueError(
                f"Ragged.with_values(values): `values` must have {self.values.shape[0]} rows, got shape {jnp.shape(values)}"
            )
        if not isinstance(values, jax.Array):
            values = _host.to_jax("Ragged.with_values(values)", _host.as_numpy("Ragged.with_values(values)", "`values`", values))
        return Ragged._make(values, self.segments)

    def map(self, f, *others: "Ragged") -> "Ragged":
        """Apply `f`, which must keep the first axis, to the values of this and other `Ragged` of the same layout."""
        for other in others:
            self._same_layout("Ragged.map(f, *others)", other)
        return self.with_values(f(self.values, *(other.values for other in others)))

    def to_arrays(self) -> list:
        """The arrays, as a list of JAX arrays made on the host."""
        edges, flat = self._on_host("Ragged.to_arrays()")
        return _host.split(flat, edges, _host.device_of(self.values))

    def to_padded(self, length=None, fill=0):
        """A dense array ``[num_segments, length, *feature]`` with `fill` where a segment is shorter.

        Args:
          length: the longest length by default; required under jit, where longer segments are cut.
          fill: a scalar.

        Raises:
          ValueError: a segment is known to be longer than `length`.
        """
        call = "Ragged.to_padded(length)"
        known = _check.concrete(self.segments.offsets)
        longest = None if known is None else int(np.max(np.diff(known), initial=0))
        length = _check.required_size(call, "length", longest if length is None else length)
        if longest is not None and longest > length:
            raise ValueError(f"{call}: `length` must hold the longest segment, {longest} rows, got {length}")
        return _to_padded(self.values, self.segments, fill, length=length)

    def _on_host(self, call):
        if _check.is_traced(self.values, self.segments.offsets):
            raise TypeError(
                f"{call}: the arrays have shapes of their own only outside jit, vmap and grad; inside, work "
                "on `.values` and `.segments`"
            )
        return np.asarray(self.segments.offsets), np.asarray(self.values)

    def _same_layout(self, call, other):
        if not isinstance(other, Ragged):
            raise TypeError(f"{call}: every operand must be a `Ragged`, got {type(other).__name__}")
        mine, its = self.segments.offsets, other.segments.offsets
        if self.values.shape[0] != other.values.shape[0] or mine.shape != its.shape:
            raise ValueError(f"{call}: the layouts differ, {self!r} and {other!r}")
        if mine is not its:
            a, b = _check.concrete(mine), _check.concrete(its)
            if a is not None and b is not None and not np.array_equal(a, b):
                raise ValueError(f"{call}: the layouts differ in their offsets, {self!r} and {other!r}")

    def __array__(self, *args, **kwargs):
        raise TypeError("a `Ragged` is no single array; take its `.values`, or `to_arrays()`, or `to_padded()`")

    def __bool__(self):
        raise TypeError("the truth of a `Ragged` is ambiguous; reduce its `.values`, or take `len`")

    def __len__(self):
        return self.segments.num_segments

    def __getitem__(self, index):
        call = "Ragged[index]"
        edges, flat = self._on_host(call)
        try:
            k = range(len(self))[index.__index__()]
        except AttributeError as error:
            raise TypeError(
                f"{call}: the index must be an integer, got {index!r}; for a part of the arrays take `to_arrays()`"
            ) from error
        except IndexError as error:
            raise IndexError(f"{call}: index {index} is out of range for {len(self)} segments") from error
        return _host.split(flat, edges[k : k + 2], _host.device_of(self.values))[0]

    def __iter__(self):
        return iter(self.to_arrays())

    def tree_flatten_with_keys(self):
        key = jax.tree_util.GetAttrKey
        return ((key("values"), self.values), (key("segments"), self.segments)), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls._make(*leaves)

    def __repr__(self):
        dtype, shape = getattr(self.values, "dtype", "?"), getattr(self.values, "shape", "?")
        return f"Ragged(values={dtype}{list(shape)}, segments={self.segments!r})"


@functools.partial(jax.jit, static_argnames="length")
def _to_padded(values, segments, fill, *, length):
    offsets = jnp.asarray(segments.offsets)
    position = jnp.arange(length, dtype=offsets.dtype)[None]
    rows = jnp.minimum(offsets[:-1, None] + position, max(values.shape[0] - 1, 0))
    live = (position < segments.lengths[:, None]).reshape(rows.shape + (1,) * (values.ndim - 1))
    fill = jnp.asarray(fill).astype(values.dtype)
    if values.shape[0] == 0:
        return jnp.full(live.shape[:2] + values.shape[1:], fill)
    # The barrier keeps jaxlib 0.12 on CPU from fusing the gather with the select, where it makes live values zero.
    return jnp.where(live, jax.lax.optimization_barrier(values[rows]), fill)


@functools.partial(jax.jit, static_argnames="size")
def _from_padded(dense, segments, *, size):
    s, length = dense.shape[:2]
    if 0 in (s, length, size):
        return Ragged._make(jnp.ones((size, *dense.shape[2:]), dense.dtype), segments)
    # Dead rows repeat the last live one, and are ones where there is none.
    total = jnp.asarray(segments.offsets)[-1]
    rows = jnp.minimum(jnp.arange(size, dtype=total.dtype), jnp.maximum(total - 1, 0))
    k, position = segments.ids(size)[rows], segments.positions(size)[rows]
    values = dense[jnp.minimum(k, s - 1), position]
    return Ragged._make(jnp.where(total > 0, values, jnp.ones((), dense.dtype)), segments)


def _binary(name, swapped=False):
    function = getattr(operator, name)
    label = f"Ragged.__{'r' if swapped else ''}{name.strip('_')}__"

    def method(self, other):
        if isinstance(other, Ragged):
            self._same_layout(label, other)
            other = other.values
        elif np.ndim(other) != 0 or isinstance(other, (str, bytes)) or other is None:
            return NotImplemented
        return self.with_values(function(other, self.values) if swapped else function(self.values, other))

    method.__name__ = label.split(".")[1]
    return method


def _unary(name):
    function = getattr(operator, name)
    return lambda self: self.with_values(function(self.values))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor"):
    setattr(Ragged, f"__{_name.strip('_')}__", _binary(_name))
    setattr(Ragged, f"__r{_name.strip('_')}__", _binary(_name, swapped=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Ragged, f"__{_name}__", _binary(_name))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Ragged, f"__{_name}__", _unary(_name))
Ragged.__hash__ = object.__hash__
