"""The data of the main job: arrays from files, results to files, and the check against NumPy."""

import dataclasses
import json
import pathlib
import sysconfig
import zipfile
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from segkernels._algebra import accumulator, highest, lowest

_JSON = (".jsonl", ".ndjson", ".json")
_KINDS = "`.npz`, or JSON lines in `.jsonl`, `.ndjson` or `.json`"


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation that the job offers, and what it is measured against.

    Attributes:
      numpy: ``(array, dtype) -> array``: the same on one array, in NumPy; it must also bound the rounding errors when it
        is given magnitudes.
      shown: what a person would write for that.
      jnp: the JAX function of one array.
      identity: of a scan, a dtype to what an exclusive one begins with; None for a reduction.
    """

    numpy: Callable
    shown: str
    jnp: Callable
    identity: Callable | None = None

    @property
    def scan(self) -> bool:
        return self.identity is not None


def _along(function):
    return lambda x, dtype: function(x, axis=0, dtype=dtype)


def _accumulated(function):
    return lambda x, dtype: function.accumulate(x, axis=0)


def _best(function, worst):
    """Of no rows too, which have no best one."""
    return lambda x, axis: function(x, axis=axis, initial=worst(x.dtype))


# By the name of the operation without ``segmented_``: one row for each.
OPERATIONS = {
    "cumsum": Operation(_along(np.cumsum), "np.cumsum", jnp.cumsum, lambda dtype: 0),
    "cumprod": Operation(_along(np.cumprod), "np.cumprod", jnp.cumprod, lambda dtype: 1),
    "cummax": Operation(_accumulated(np.maximum), "np.maximum.accumulate", jax.lax.cummax, lowest),
    "cummin": Operation(_accumulated(np.minimum), "np.minimum.accumulate", jax.lax.cummin, highest),
    "sum": Operation(_along(np.sum), "np.sum", jnp.sum),
    "prod": Operation(_along(np.prod), "np.prod", jnp.prod),
    "max": Operation(lambda x, dtype: _best(np.max, lowest)(x, 0), "np.max", _best(jnp.max, lowest)),
    "min": Operation(lambda x, dtype: _best(np.min, highest)(x, 0), "np.min", _best(jnp.min, highest)),
}


# Files ---------------------------------------------------------------------------------------------------------------


def standard_library() -> tuple[list[str], list[np.ndarray]]:
    """The length in bytes of each line of every Python source file of the running interpreter's standard library.

    Returns:
      The paths of the files below the library's folder, sorted, and an int32 array ``[lines]`` for each.

    Raises:
      ValueError: there are none, or one cannot be read.
    """
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    paths = sorted(path.relative_to(root) for path in root.rglob("*.py") if path.is_file())
    paths = [path for path in paths if not {"site-packages", "dist-packages"} & {*path.parts}]
    if not paths:
        raise ValueError(f"no Python source files under {root}; give a file of yours with --input")
    try:
        return [path.as_posix() for path in paths], [line_lengths((root / path).read_bytes()) for path in paths]
    except OSError as error:
        raise ValueError(f"cannot read the standard library: {error}; give a file of yours with --input") from error


def line_lengths(text: bytes) -> np.ndarray:
    """The length in bytes of each line, its end included: int32 ``[lines]``."""
    return np.array([len(line) for line in text.splitlines(keepends=True)], np.int32)


def read(path) -> tuple[list[str], list[np.ndarray]]:
    """Read the arrays of a file, in the order of the file.

    Args:
      path: an ``.npz`` file with one array an entry; or ``.jsonl``, ``.ndjson`` or ``.json`` with one list of numbers a
        line: int64 if all are integers, else float64. Blank lines are skipped.

    Returns:
      The names of the arrays (``line1`` and so on for lines) and the arrays.

    Raises:
      ValueError: the file cannot be read, holds no arrays, or holds anything else.
    """
    kind = suffix(path)
    try:
        pairs = _read_npz(path) if kind == ".npz" else _read_json_lines(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
    if not pairs:
        raise ValueError(f"{path} holds no arrays")
    return [name for name, _ in pairs], [array for _, array in pairs]


def suffix(path) -> str:
    """The suffix of a file that can be read and written, or a `ValueError`."""
    found = pathlib.Path(path).suffix.lower()
    if found not in (".npz", *_JSON):
        raise ValueError(f"{str(path)!r} is of an unknown kind; a file must be {_KINDS}")
    return found


def _read_npz(path):
    pairs = []
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                with archive.open(member) as file:
                    pairs.append((member.removesuffix(".npy"), np.lib.format.read_array(file, allow_pickle=False)))
    except OSError:
        raise
    except Exception as error:  # a damaged archive fails in many ways
        raise ValueError(f"{path} is no `.npz` file of arrays of numbers: {error}") from error
    for name, array in pairs:
        if array.dtype.kind not in "biufc":
            raise ValueError(f"{path}: entry {name!r} has dtype {array.dtype}; every entry must be an array of numbers")
    return [(name, array.astype(array.dtype.newbyteorder("="), copy=False)) for name, array in pairs]


def _read_json_lines(path):
    try:
        with open(path, encoding="utf-8-sig") as file:
            return [(f"line{k}", _numbers(path, k, line)) for k, line in enumerate(file, 1) if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text: {error}") from error


def _numbers(path, k, line):
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {k}: must be a JSON list of numbers on one line ({error})") from error
    if not isinstance(values, list) or not all(type(v) in (int, float) for v in values):
        start = line.strip()
        raise ValueError(f"{path}, line {k}: must be one flat list of numbers, got {start[:40]}{'...' * (len(start) > 40)}")
    whole = values and all(type(v) is int for v in values)
    try:
        return np.array(values, np.int64 if whole else np.float64)
    except OverflowError as error:
        raise ValueError(f"{path}, line {k}: holds an integer that does not fit {'64 bits' if whole else 'a float'}") from error


def write(path, names, result) -> None:
    """Write a result: a list of arrays, or for a reduction one array with a row for each name.

    ``.npz`` gets each array of a list under its name, and a reduction as ``result`` beside ``names``; JSON lines get one
    line for each array, in their order.

    Raises:
      ValueError: the file cannot be written, or JSON has no such numbers.
    """
    kind = suffix(path)
    pairs = list(zip(names, result)) if isinstance(result, list) else [("result", result), ("names", np.array(names))]
    try:
        if kind == ".npz":
            _write_npz(path, pairs)
        else:
            text = "".join(json.dumps(row.tolist()) + "\n" for row in result)
            pathlib.Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from error
    except TypeError as error:
        raise ValueError(f"cannot write {path}: JSON has no complex numbers; write an `.npz` file") from error


def _write_npz(path, pairs):
    # Not np.savez, which takes names as keywords and has some of its own.
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in pairs:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


# The check -----------------------------------------------------------------------------------------------------------


def check(operation, names, arrays, result, *, exclusive=False, reverse=False) -> tuple[list[str], int]:
    """Compare a result with a NumPy loop over the arrays.

    Integers must be equal, to NumPy's 64 bits cut to the dtype of the result. Floats are compared with those of float64 and
    may be off by ``(1 + n) * eps`` of the operation on magnitudes, which bounds the rounding of n terms in any order.

    Returns:
      A sentence for each array that differs, and the number of arrays in which integers wrapped, which is no fault.
    """
    if len(result) != len(arrays):
        return [f"{len(arrays)} arrays gave {len(result)} results"] * len(arrays), 0
    faults, wrapped = [], 0
    with np.errstate(all="ignore"):
        for name, x, got in zip(names, arrays, result):
            want, agree = _compare(operation, x, got, exclusive, reverse)
            if got.shape != want.shape:
                faults.append(f"{name}: the shape is {got.shape}, NumPy gives {want.shape}")
            elif not np.all(agree):
                at = np.flatnonzero(np.logical_not(agree))[0]
                faults.append(f"{name}: value {at} is {np.ravel(got)[at]}, NumPy gives {np.ravel(want)[at]}")
            elif got.dtype.kind in "iu":
                wrapped += not np.array_equal(got, want)
    return faults, wrapped


def _compare(operation, x, got, exclusive, reverse):
    """What NumPy gives, and where `got` agrees with it; nowhere if the shapes differ."""
    exact = got.dtype.kind in "biu"
    x = x if exact else x.astype(np.result_type(got.dtype, np.float64))
    want = expected(operation, x, exclusive, reverse)
    if got.shape != want.shape or exact:
        return want, got.shape == want.shape and got == want.astype(got.dtype)
    magnitude = expected(operation, np.abs(x), exclusive, reverse)
    out, within = np.finfo(got.dtype), np.finfo(accumulator(got.dtype))
    bound = out.eps * magnitude + out.tiny + len(x) * (within.eps * magnitude + within.tiny)
    finite = np.isfinite(magnitude)
    overflow = ~np.isfinite(got) & (magnitude > out.max)
    return want, (got == want) | np.isnan(got) & np.isnan(want) | finite & ((np.abs(got - want) <= bound) | overflow)


def expected(operation, x, exclusive=False, reverse=False) -> np.ndarray:
    """The operation on one array by NumPy, in 64 bits."""
    if not operation.scan:
        return operation.numpy(x, None)
    x = x[::-1] if reverse else x
    y = operation.numpy(x, None)
    if exclusive:
        y = np.concatenate([np.full_like(y[:1], operation.identity(y.dtype)), y[:-1]])
    return y[::-1] if reverse else y
