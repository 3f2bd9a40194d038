"""`Segments`: where each segment of a flat buffer begins and ends."""

import jax
import jax.numpy as jnp
import numpy as np

from segkernels import _check


@jax.tree_util.register_pytree_with_keys_class
class Segments:
    """Consecutive segments of the rows of a flat buffer: segment k has the rows ``offsets[k] : offsets[k + 1]``.

    Empty segments are segments. Rows from ``offsets[-1]`` on are dead: they belong to no segment, may hold anything,
    and are zero in every result. Layouts built from NumPy arrays, lists, or JAX arrays in host memory are checked;
    traced ones, and ones that live on an accelerator, are trusted: wrong ones give wrong numbers, but never a read or
    write outside a buffer.

    A pytree: it passes through `jax.jit`, `jax.vmap`, `jax.lax.scan` and has no tangent.

    Attributes:
      offsets: int32 ``[num_segments + 1]``, from 0, never decreasing (int64 where a total needs it and x64 is on).
      heads: uint32 ``[ceil(n / 32)]`` once `prepare` has made them, else None.

    >>> segments = Segments.from_lengths([2, 0, 3])
    >>> segments.num_segments, segments.offsets.tolist()
    (3, [0, 2, 2, 5])
    """

    def __init__(self, offsets):
        self.offsets, self.heads = _checked_offsets("Segments(offsets)", offsets), None

    @classmethod
    def _make(cls, offsets, heads=None):
        self = object.__new__(cls)
        self.offsets, self.heads = offsets, heads
        return self

    @classmethod
    def from_offsets(cls, offsets) -> "Segments":
        """Segments from ``[s + 1]`` offsets of any integer dtype: 0 first, never decreasing.

        Raises:
          TypeError: they are not integers.
          ValueError: they are not 1-D, are empty, do not start at 0, decrease, or do not fit 32 bits without x64.
        """
        return cls._make(_checked_offsets("Segments.from_offsets(offsets)", offsets))

    @classmethod
    def from_lengths(cls, lengths) -> "Segments":
        """Segments from ``[s]`` lengths, none negative."""
        call = "Segments.from_lengths(lengths)"
        lengths = _check.integer_vector(call, "lengths", lengths)
        known = _check.concrete(lengths)
        if known is not None:
            if known.size and known.min() < 0:
                raise ValueError(f"{call}: `lengths` must not be negative, got {known.min()} at {known.argmin()}")
            offsets = fit(call, offsets_of(known))
            if not isinstance(lengths, jax.Array):
                return cls._make(offsets)
        dtype = _index_dtype(lengths.dtype)
        return cls._make(jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(lengths, dtype=dtype)]))

    @classmethod
    def from_ids(cls, ids, num_segments=None) -> "Segments":
        """Segments from ``[n]`` ids that never decrease: row i belongs to segment ``ids[i]``.

        Args:
          ids: sorted integers from 0. Trailing ids >= `num_segments` mark dead rows. For unsorted ids see `group`.
          num_segments: how many segments; by default one more than the last id, required under jit.
        """
        call = "Segments.from_ids(ids)"
        ids = _check.integer_vector(call, "ids", ids)
        known = _check.concrete(ids)
        if known is not None and known.size:
            if known[0] < 0:
                raise ValueError(f"{call}: `ids` must not be negative, got {known[0]}")
            if np.any(known[1:] < known[:-1]):
                raise ValueError(
                    f"{call}: `ids` must never decrease; for unsorted ids take "
                    "`order, segments = Segments.group(ids, num_segments)` and values[order]"
                )
        if num_segments is None and known is not None:
            num_segments = int(known[-1]) + 1 if known.size else 0
        s = _check.required_size(call, "num_segments", num_segments)
        if isinstance(ids, np.ndarray):
            return cls._make(fit(call, np.searchsorted(ids, np.arange(s + 1))))
        dtype = _index_dtype(ids.dtype)
        ids = jnp.minimum(ids, _last(ids.dtype, s)).astype(dtype)  # first, for a dead marker may not fit
        return cls._make(jnp.searchsorted(ids, jnp.arange(s + 1, dtype=dtype)).astype(dtype))

    @classmethod
    def from_flags(cls, flags, *, num_segments=None, ends=False) -> "Segments":
        """Segments from ``[n]`` flags, true at the first row of each segment.

        Args:
          flags: booleans. Row 0 starts a segment whether flagged or not.
          num_segments: how many segments, required under jit; missing ones are empty, rows of further ones dead.
          ends: the flags mark last rows instead, as the ``done`` of an episode does; rows after the last flag, an
            unfinished episode, are a segment too.

        >>> Segments.from_flags(np.array([False, True, False, False, True]), ends=True).offsets.tolist()
        [0, 2, 5]
        """
        call = "Segments.from_flags(flags)"
        flags = flags if isinstance(flags, jax.Array) else np.asarray(flags)
        if flags.dtype != np.bool_ or flags.ndim != 1:
            raise TypeError(
                f"{call}: `flags` must be a 1-D array of booleans, got {flags.dtype}{list(flags.shape)}; "
                "make them so with `astype(bool)`"
            )
        n, xp = flags.shape[0], jnp if isinstance(flags, jax.Array) else np
        heads = xp.concatenate([xp.ones(min(n, 1), bool), flags[:-1] if ends else flags[1:]])
        known = _check.concrete(heads)
        if num_segments is None and known is not None:
            num_segments = int(np.count_nonzero(known))
        s = _check.required_size(call, "num_segments", num_segments)
        if xp is jnp:
            return cls._make(jnp.nonzero(heads, size=s + 1, fill_value=n)[0].astype(jnp.int32))
        starts = np.flatnonzero(heads)[: s + 1]
        return cls._make(fit(call, np.concatenate([starts, np.full(s + 1 - len(starts), n)])))

    @classmethod
    def group(cls, ids, num_segments):
        """Sort unsorted ids: ``(order, segments)`` such that ``values[order]`` has the rows of segment k together.

        Rows keep their order within a segment; ids outside ``0 .. num_segments - 1`` come last, as dead rows.

        >>> order, segments = Segments.group(np.array([1, 0, 1]), 2)
        >>> order.tolist(), segments.offsets.tolist()
        ([1, 0, 2], [0, 1, 3])
        """
        call = "Segments.group(ids, num_segments)"
        ids = _check.integer_vector(call, "ids", ids)
        s = _check.required_size(call, "num_segments", num_segments)
        xp = jnp if isinstance(ids, jax.Array) else np
        dead = (ids < 0) | (ids > _last(ids.dtype, s - 1)) if s else xp.ones(ids.shape, bool)
        ids = xp.where(dead, s, ids.astype(_index_dtype(ids.dtype) if xp is jnp else np.int64))
        order = xp.argsort(ids, kind="stable") if xp is np else jnp.argsort(ids, stable=True)
        return order, cls.from_ids(ids[order], s)

    @property
    def num_segments(self) -> int:
        """How many segments, empty ones too."""
        return self.offsets.shape[0] - 1

    @property
    def lengths(self):
        """The rows of each segment, ``[num_segments]``."""
        return self.offsets[1:] - self.offsets[:-1]

    def ids(self, n: int):
        """The segment of each of `n` rows, ``[n]``; `num_segments` for dead rows. No kernel needs them."""
        n = _check.size("Segments.ids(n)", "n", n)
        ends = jnp.clip(jnp.asarray(self.offsets), 0, n)[1:]
        return jnp.cumsum(jnp.zeros(n, ends.dtype).at[ends].add(1, mode="drop"), dtype=ends.dtype)

    def positions(self, n: int):
        """The index of each of `n` rows within its segment, ``[n]``; 0 for dead rows."""
        ids, offsets = self.ids(n), jnp.asarray(self.offsets)
        rows = jnp.arange(n, dtype=offsets.dtype)
        return jnp.where(ids < self.num_segments, rows - offsets[ids], 0)

    def rows(self, index):
        """Flat rows of indices counted from the heads of segments.

        Args:
          index: integers ``[num_segments, *feature]``, as an argmax gives; -1 for none.

        Returns:
          Integers of the same shape; ``offsets[-1]``, the first row past the live ones, for -1. There may be no such row:
          a scatter with ``mode="drop"`` leaves it out, and what is gathered has to be masked with ``index >= 0``.
        """
        index = index if isinstance(index, jax.Array) else np.asarray(index)
        if not jnp.issubdtype(index.dtype, jnp.integer):
            raise TypeError(f"Segments.rows(index): `index` must be integers, got dtype {index.dtype}")
        if index.shape[:1] != (self.num_segments,):
            raise ValueError(
                f"Segments.rows(index): `index` must have one entry a segment, got shape {index.shape} "
                f"for {self.num_segments} segments"
            )
        xp = np if isinstance(index, np.ndarray) and isinstance(self.offsets, np.ndarray) else jnp
        starts = self.offsets[:-1].reshape((-1,) + (1,) * (index.ndim - 1))
        return xp.where(index < 0, self.offsets[-1], starts + index.astype(self.offsets.dtype)).astype(self.offsets.dtype)

    def prepare(self, n: int) -> "Segments":
        """The same layout with the head bits for a buffer of `n` rows made, as every scan needs them.

        Made once, they pass through jit, scan and vmap with the layout; otherwise each call makes them from the
        offsets, which costs little unless segments are very short.
        """
        call = "Segments.prepare(n)"
        n = _check.size(call, "n", n)
        known = _check.concrete(self.offsets)
        if known is not None and known[-1] > n:
            raise ValueError(f"{call}: the segments describe {known[-1]} rows, got n={n}")
        return Segments._make(self.offsets, head_bits(self.offsets, n))

    def head_bits(self, n):
        """The head bits for `n` rows: the prepared ones, or made here."""
        return self.heads if self.is_prepared(n) else head_bits(self.offsets, n)

    def is_prepared(self, n):
        """Whether there are head bits for `n` rows."""
        return self.heads is not None and self.heads.shape == ((n + 31) // 32,)

    def tree_flatten_with_keys(self):
        key = jax.tree_util.GetAttrKey
        return ((key("offsets"), self.offsets), (key("heads"), self.heads)), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls._make(*leaves)

    def __repr__(self):
        shape = getattr(self.offsets, "shape", None)
        size = shape[-1] - 1 if shape else "?"
        return f"Segments(num_segments={size}{', prepared' if self.heads is not None else ''})"


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Offsets of integer lengths, in 64 bits; a total that does not fit those is the largest number that does."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(dtype=np.int64, out=offsets[1:])
    if lengths.sum(dtype=np.float64) > 2.0**62:
        offsets[-1] = np.iinfo(np.int64).max
    return offsets


def head_bits(offsets, n):
    """One bit a row, set at the first row of each non-empty segment: uint32 ``[ceil(n / 32)]``, least bit first."""
    words = (n + 31) // 32
    if isinstance(offsets, np.ndarray):
        starts = offsets[:-1][offsets[1:] > offsets[:-1]]
        flags = np.zeros(32 * words, bool)
        flags[starts] = True
        return np.packbits(flags, bitorder="little").view(np.uint32)
    offsets = jnp.clip(offsets, 0, n)
    # Empty segments share their first row with the next one and leave no bit, so each bit is added once.
    starts = jnp.where(offsets[1:] > offsets[:-1], offsets[:-1], 32 * words)
    bits = jnp.uint32(1) << (starts % 32).astype(jnp.uint32)
    return jnp.zeros(words, jnp.uint32).at[starts // 32].add(bits, mode="drop")


def reset_bits(heads, n_live, reverse):
    """Bits of the rows that start a fold: the first row of each segment, in reverse the last one."""
    if not reverse:
        return heads
    words = jnp.arange(heads.shape[0], dtype=n_live.dtype)
    tails = (heads >> 1) | (jnp.roll(heads, -1) << 31)
    last = jnp.uint32(1) << ((n_live - 1) & 31).astype(jnp.uint32)
    return jnp.where(words == (n_live - 1) >> 5, tails | last, tails)


def row_flags(bits, n):
    """Bits as booleans ``[n]``; of no meaning past the last word."""
    flags = (bits[:, None] >> jnp.arange(32, dtype=jnp.uint32)[None]) & 1 == 1  # a gather of words takes a TPU far longer
    return flags.reshape(-1)[:n]


def live_flags(n_live, n):
    """Whether a row is live, ``[n]``."""
    return jnp.arange(n, dtype=n_live.dtype) < n_live


def only_live(values, n_live, fill=0):
    """Values ``[n, ...]``, and `fill` in dead rows."""
    live = live_flags(n_live, values.shape[0])
    return jnp.where(live.reshape(live.shape + (1,) * (values.ndim - 1)), values, jnp.asarray(fill, values.dtype))


def start_flags(heads, n_live, n, reverse):
    """Whether a row starts a fold, ``[n]``; true of dead rows too, which must meet no live one."""
    return row_flags(reset_bits(heads, n_live, reverse), n) | ~live_flags(n_live, n)


def moved(x, on):
    """Each row one place on, or one back; the row at that end stays."""
    return jnp.concatenate([x[:1], x[:-1]] if on else [x[1:], x[-1:]])


def check_layout(call, segments):
    """Refuse anything but one `Segments`: ids and offsets look alike, and several layouts come from a `vmap` left out."""
    if not isinstance(segments, Segments):
        raise TypeError(
            f"{call}: `segments` must be a `Segments`, got {type(segments).__name__}; build one with "
            "`Segments.from_offsets`, `from_lengths`, `from_ids` (sorted), `group` (unsorted) or `from_flags`"
        )
    if segments.offsets.ndim != 1:
        raise ValueError(
            f"{call}: `segments` holds several layouts, its offsets have shape {segments.offsets.shape}; map the call over them "
            "with `jax.vmap`"
        )


def fit(call, offsets: np.ndarray) -> np.ndarray:
    """Offsets as a locked int32 array, or int64 where they need it and JAX has it."""
    dtype = np.int32
    if offsets[-1] > _check.MOST_ROWS:
        if not jax.config.jax_enable_x64:
            raise ValueError(f"{call}: {offsets[-1]} rows do not fit 32-bit offsets; enable x64 in JAX, or split the data")
        dtype = np.int64
    offsets = np.array(offsets, dtype)
    offsets.flags.writeable = False
    return offsets


def _checked_offsets(call, offsets):
    offsets = _check.integer_vector(call, "offsets", offsets)
    if offsets.shape[0] == 0:
        raise ValueError(f"{call}: `offsets` must have one entry more than there are segments, got none")
    known = _check.concrete(offsets)
    if known is not None:
        if known[0] != 0:
            raise ValueError(f"{call}: `offsets` must start at 0, got {known[0]}")
        if np.any(known[1:] < known[:-1]):
            at = int(np.argmax(known[1:] < known[:-1]))
            raise ValueError(f"{call}: `offsets` must never decrease, got {known[at]} before {known[at + 1]}")
        fitted = fit(call, known)
        if isinstance(offsets, np.ndarray):
            return fitted
    return offsets.astype(_index_dtype(offsets.dtype))


def _last(dtype, value):
    """`value` in `dtype`, or the largest number there is in it."""
    return np.asarray(min(value, jnp.iinfo(dtype).max), dtype)


def _index_dtype(dtype):
    """The dtype of offsets made of JAX integers: 64 bits where those have them, which takes x64."""
    return jnp.int64 if dtype.itemsize == 8 else jnp.int32
