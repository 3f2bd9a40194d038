"""Checks of arguments, in one voice: which call, which argument, what came, what to do."""

import jax
import jax.numpy as jnp
import numpy as np

SUPPORTED = frozenset(map(np.dtype, (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", jnp.bfloat16,
    "float16", "float32", "float64", "complex64", "complex128")))  # fmt: skip

# With 32-bit offsets: the largest bucket of rows, which leaves room for the row arithmetic of kernels.
MOST_ROWS = 7 * 2**28


def is_traced(*arrays) -> bool:
    """Whether any of the arrays is a tracer."""
    return any(issubclass(kind, jax.core.Tracer) for kind in set(map(type, arrays)))


def concrete(x, *, wait: bool = True) -> np.ndarray | None:
    """`x` as NumPy if that takes no transfer, nor a wait if those are not wanted; never for tracers."""
    if isinstance(x, np.ndarray):
        return x
    if is_traced(x) or not isinstance(x, jax.Array):
        return None
    here = x.is_fully_addressable and all(d.platform == "cpu" for d in x.devices()) and (wait or x.is_ready())
    return np.asarray(x) if here else None


def kept(call: str, what: str, x) -> None:
    """Refuse a JAX array that has no memory any more."""
    if isinstance(x, jax.Array) and not is_traced(x) and x.is_deleted():
        raise ValueError(
            f"{call}: {what} is a JAX array whose memory was given away or deleted; use the result of the call it was donated "
            "to, or pass a copy there"
        )


def supported(call: str, argument: str, dtype) -> None:
    """Refuse a dtype that no operation takes."""
    if not isinstance(dtype, np.dtype) or dtype.newbyteorder("=") not in SUPPORTED:
        raise TypeError(
            f"{call}: `{argument}` has dtype {dtype}; give it a numeric dtype, one of bool, int8 to "
            "int64, uint8 to uint64, bfloat16, float16 to float64, complex64, complex128"
        )


def ordered(call: str, argument: str, dtype) -> None:
    """Refuse complex numbers where an operation has to order them."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"{call}: `{argument}` has dtype {dtype}, and complex numbers have no order; take their `abs` or `real`")


def keeps_imaginary(call: str, dtype, asked) -> None:
    """Refuse to make real numbers of complex ones."""
    if jnp.issubdtype(dtype, jnp.complexfloating) and not jnp.issubdtype(asked, jnp.complexfloating):
        raise TypeError(f"{call}: `dtype` must be complex for {dtype} values, got {asked}; take their `real` or `abs`")


def integer_vector(call: str, argument: str, x):
    """`x` as a 1-D integer array, NumPy for anything that is not a JAX array."""
    if not isinstance(x, jax.Array):
        try:
            array = np.asarray(x)
        except ValueError as error:
            raise TypeError(f"{call}: `{argument}` must be a 1-D array of integers, got {x!r}") from error
        x = array.astype(np.int32) if array.size == 0 and array.dtype == np.float64 else array
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"{call}: `{argument}` must be integers, got dtype {x.dtype}")
    if x.ndim != 1:
        raise ValueError(f"{call}: `{argument}` must be 1-D, got shape {x.shape}")
    return x


def flag(call: str, argument: str, x) -> bool:
    """`x` as True or False: what JAX compiles depends on it."""
    if isinstance(x, (bool, np.bool_)):
        return bool(x)
    raise TypeError(f"{call}: `{argument}` must be True or False, got {x!r}")


def size(call: str, argument: str, x) -> int:
    """`x` as a non-negative Python integer: array shapes depend on it."""
    try:
        value = x.__index__()
    except (AttributeError, TypeError, jax.errors.ConcretizationTypeError) as error:
        raise TypeError(f"{call}: `{argument}` must be a concrete integer, for a shape depends on it, got {x!r}") from error
    if value < 0:
        raise ValueError(f"{call}: `{argument}` must not be negative, got {value}")
    return value


def required_size(call: str, argument: str, x) -> int:
    """`x` as a size that cannot be read off traced data."""
    if x is None:
        raise ValueError(
            f"{call}: `{argument}` is required here, since the array shapes depend on it and the data is "
            "traced; pass it as a Python integer"
        )
    return size(call, argument, x)


def rows(call: str, values, segments) -> None:
    """Refuse values that have fewer rows than the layout describes, as far as the layout is known."""
    n = values.shape[0]
    if isinstance(n, int) and n > MOST_ROWS and segments.offsets.dtype.itemsize < 8:
        raise ValueError(f"{call}: {n} rows are too many for 32-bit offsets; give 64-bit ones, with x64, or split the data")
    known = concrete(segments.offsets, wait=False)  # calls on JAX arrays never block
    if known is not None and known[-1] > values.shape[0]:
        raise ValueError(
            f"{call}: the values have {values.shape[0]} rows but the segments describe {known[-1]}; "
            "build `Segments` from the lengths of these values"
        )
