"""How values stand in the 32-bit words of a TPU: one by one, or two or four rows of narrow ones in a word."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import tpu as pltpu


@dataclasses.dataclass(frozen=True)
class Words:
    """Words of so many values each, those of rows that follow each other, the first one in the low bits.

    Attributes:
      per_word: 1, 2 or 4.
      packed: whether JAX's interpreter runs the kernel: it has no view of memory in words, so arrays are packed outside.
    """

    per_word: int
    packed: bool

    def dtype_of(self, held):
        """The dtype of words that hold values of a dtype of registers."""
        return held if self.per_word == 1 else jnp.int32

    def view(self, ref):
        """A block of values as one of words."""
        return ref if self.per_word == 1 or self.packed else ref.bitcast(jnp.int32)

    def unpack(self, words, dtype):
        """The values in words: a list of arrays, in the dtype of registers."""
        if self.per_word == 1:
            return [words]
        if dtype == jnp.bfloat16:
            high = np.int32(-(1 << 16))
            return [lax.bitcast_convert_type(x, jnp.float32) for x in (words << 16, words & high)]
        width = 32 // self.per_word
        shift = lax.shift_right_arithmetic if jnp.issubdtype(dtype, jnp.signedinteger) else lax.shift_right_logical
        return [shift(words << (32 - width * (h + 1)), np.int32(32 - width)) for h in range(self.per_word)]

    def shift(self, h):
        """What moves value `h` of a word to its high bits."""
        return 32 - 32 // self.per_word * (h + 1)

    def one(self, words, dtype, shift):
        """One value of each word, that of a `shift`, in the dtype of registers."""
        if self.per_word == 1:
            return words
        width = 32 // self.per_word
        words = words << shift
        if dtype == jnp.bfloat16:
            return lax.bitcast_convert_type(words & np.int32(-(1 << 16)), jnp.float32)
        move = lax.shift_right_arithmetic if jnp.issubdtype(dtype, jnp.signedinteger) else lax.shift_right_logical
        return move(words, np.int32(32 - width))

    def pack(self, values, dtype):
        """The other way."""
        if self.per_word == 1:
            return values[0]
        if dtype == jnp.bfloat16:
            if not self.packed:
                return pltpu.bitcast(pltpu.pack_elementwise(values, packed_dtype=jnp.bfloat16), jnp.int32)
            low, high = (lax.bitcast_convert_type(x.astype(jnp.bfloat16).astype(jnp.float32), jnp.int32) for x in values)
            return lax.shift_right_logical(low, np.int32(16)) | high
        width = 32 // self.per_word
        out = values[0] & np.int32((1 << width) - 1)
        for h, x in enumerate(values[1:-1], 1):
            out = out | ((x & np.int32((1 << width) - 1)) << (width * h))
        return out | (values[-1] << (32 - width))

    def rows_to_words(self, x):
        """An array ``[rows, lanes]`` as the kernel takes it."""
        if self.per_word == 1 or not self.packed:
            return x
        width = 32 // self.per_word
        x = lax.bitcast_convert_type(x, jnp.dtype(f"uint{width}")).astype(jnp.uint32)
        x = jnp.pad(x, ((0, -x.shape[0] % self.per_word), (0, 0)))
        x = x.reshape(-1, self.per_word, x.shape[1])
        words = sum(x[:, h] << jnp.uint32(width * h) for h in range(self.per_word))
        return lax.bitcast_convert_type(words, jnp.int32)

    def words_to_rows(self, words, dtype):
        """The other way."""
        if self.per_word == 1 or not self.packed:
            return words
        width = 32 // self.per_word
        words = lax.bitcast_convert_type(words, jnp.uint32)
        rows = jnp.stack([words >> jnp.uint32(width * h) for h in range(self.per_word)], axis=1)
        return lax.bitcast_convert_type(rows.reshape(-1, words.shape[1]).astype(jnp.dtype(f"uint{width}")), dtype)
