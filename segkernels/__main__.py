"""Run one operation on many arrays of unequal length, check it against NumPy, and say what it cost.

    python -m segkernels

takes the length of every line of every Python source file of the standard library, and gives the byte offset of each
line: an exclusive cumsum for each file, all files in one call.

    python -m segkernels --input=data.npz --op=sum --out=sums.jsonl

does the same with arrays of yours. The exit code is 0 if all is well, 1 if a result differs from NumPy, and 2 if a file
or an argument cannot be used.
"""

import contextlib
import functools
import io
import platform
import random
import sys
import time

import jax
import numpy as np
from absl import app, flags

import segkernels
from segkernels import _host, _job

_ROUNDS = 15
_SAMPLE = 50

_INPUT = flags.DEFINE_string(
    "input", None, "Arrays of yours instead of the standard library: an .npz file with one array an entry, or .jsonl, .ndjson "
    "or .json with one list of numbers a line. Integers are kept as integers if all numbers are.")  # fmt: skip
_OP = flags.DEFINE_enum("op", "cumsum", [*_job.OPERATIONS], "What to do with each array.")
_EXCLUSIVE = flags.DEFINE_boolean(
    "exclusive", None, "For scans: leave each value out of its own result. By default so for the standard library and not for "
    "--input.")  # fmt: skip
_REVERSE = flags.DEFINE_boolean("reverse", False, "For scans: go from the end of each array.")
_OUT = flags.DEFINE_string(
    "out", None, "Where to write the results: an .npz file gets one array for each of the input under its name (of a reduction "
    "`result` and `names`); .jsonl, .ndjson or .json gets one line for each, in the order of the input.")  # fmt: skip


def main(argv) -> int:
    """Run the job that the flags describe; returns the exit code."""
    if len(argv) > 1:
        return _fail(2, f"unexpected argument {argv[1]!r}; give a file of yours as --input=FILE")
    return run(_INPUT.value, _OP.value, exclusive=_EXCLUSIVE.value, reverse=_REVERSE.value, out=_OUT.value)


def run(path=None, op="cumsum", *, exclusive=None, reverse=False, out=None) -> int:
    """Do the job, print its table and return the exit code: 0, 1 if a check failed, 2 if a file or argument is no good.

    Args:
      path: the file to read, or None for the standard library.
      op: the name of the operation without ``segmented_``.
      exclusive, reverse: of a scan; `exclusive` by default for the standard library alone.
      out: the file to write the results to, or None.
    """
    operation, function = _job.OPERATIONS[op], getattr(segkernels, f"segmented_{op}")
    options = {}
    if operation.scan:
        options = dict(exclusive=path is None if exclusive is None else exclusive, reverse=reverse)
    try:
        if not operation.scan and (exclusive or reverse):
            raise ValueError(f"--exclusive and --reverse are for scans, and {op} gives one value an array; leave them out")
        if out is not None:
            _job.suffix(out)
        _status("reading")
        names, arrays = _job.standard_library() if path is None else _job.read(path)
        dtype = _host.arrays(f"segmented_{op}", arrays).dtype
    except (TypeError, ValueError) as error:
        return _fail(2, error)

    jax.devices()  # starts the backend, which is no part of the first call
    _status("first call")
    with compiles() as compiled:
        result, first = _timed(lambda: function(arrays, **options))
        _status("checking")
        faults, wrapped = _job.check(operation, names, arrays, result, **options)
        if faults:
            return _fail(1, f"check failed, {len(faults):,} of {len(arrays):,} arrays differ from NumPy: {faults[0]}")
        if out is not None:
            try:
                _job.write(out, names, result)
            except ValueError as error:
                return _fail(2, error)
        # To the dtype of the result: NumPy's own choice, 64 bits for integers, would write twice as much.
        ours, theirs = race(lambda: function(arrays, **options), lambda: [operation.numpy(x, result[0].dtype) for x in arrays])
    rows = [
        ("what", describe(path, op, **options)),
        *sizes(arrays, result),
        ("machine", machine(function, arrays, dtype, **options)),
        ("compiles", f"{len(compiled)}"),
        ("first call", f"{_seconds(first)}, compiling included"),
        ("warm call", _best(ours)),
        ("speed", f"{_bytes(arrays, result) / min(ours) / 1e9:.3g} GB/s of values read and written"),
        ("NumPy loop", f"{_best(theirs)}: {min(theirs) / min(ours):.2f} times the warm call"),
        ("", f"[{operation.shown}(x) for x in arrays], to {result[0].dtype}{', not shifted' * bool(options.get('exclusive'))}"),
        *zip(("cold jit loop", ""), cold_loop(operation, arrays)),
        ("check", f"checked against NumPy: all {len(arrays):,} arrays agree"),
        ("example", example(path, op, names, arrays, result, **options)),
    ]
    if wrapped:
        rows.append(("note", f"in {wrapped:,} arrays {result[0].dtype} cannot hold the values, which wrapped as in JAX"))
    if out is not None:
        rows.append(("written", out))
    _status("")
    for label, value in rows:
        print(f"{label:<15}{value}")
    return 0


# What was done -------------------------------------------------------------------------------------------------------


def describe(path, op, exclusive=False, reverse=False) -> str:
    """What the job does, in one sentence."""
    what = f"{'reverse ' * reverse}{'exclusive ' * exclusive}{op}"
    if path is not None:
        return f"The {what} of each array in {path}, all in one call."
    library = f"for each source file of the Python {platform.python_version()} standard library"
    if (op, exclusive, reverse) == ("cumsum", True, False):
        return f"The byte offset of every line, {library} ({what} of lengths)."
    return f"The {what} of line lengths in bytes, {library}."


def sizes(arrays, result) -> list[tuple[str, str]]:
    """Rows that say how much there was to do."""
    lengths = [len(x) for x in arrays]
    dtypes = " and ".join(sorted({str(x.dtype) for x in arrays if x.size} or {str(arrays[0].dtype)}))
    return [
        ("arrays", f"{len(arrays):,}"),
        ("elements", f"{sum(x.size for x in arrays):,} {dtypes}"),
        ("bytes", f"{_bytes(arrays):,} in, {_bytes(result):,} out"),
        ("lengths", f"{min(lengths):,} / {np.median(lengths):,.0f} / {max(lengths):,} (min / median / max)"),
    ]


def machine(function, arrays, dtype, **options) -> str:
    """What `explain` says would serve the call, in short: ``xla, walk loop, on cpu``."""
    with contextlib.redirect_stdout(io.StringIO()) as text, _host.x64(dtype):
        segkernels.explain(function, arrays, **options)
    title, *lines = text.getvalue().splitlines()
    chosen = dict.fromkeys(line.rsplit(": ", 1)[1] for line in lines if not line.startswith("    "))
    return f"{' and '.join(chosen)}, on {title.rsplit(' ', 1)[1]}"


def example(path, op, names, arrays, result, exclusive=False, reverse=False) -> str:
    """One value of the result, for a person to look at."""
    k = names.index("os.py") if path is None and "os.py" in names else int(np.argmax([len(x) > 0 for x in arrays]))
    n = len(arrays[k])
    if (path, op, exclusive, reverse) == (None, "cumsum", True, False) and n:
        return f"{names[k]}: its last line, {n:,} of {n:,}, begins at byte {result[k][-1]:,} of {arrays[k].sum():,}"
    if not isinstance(result, list):
        return f"{names[k]}: {op} of its {n:,} rows is {_short(result[k])}"
    return f"{names[k]}: the last of its {n:,} rows is {_short(result[k][-1])}" if n else f"{names[k]}: empty, as its input"


# What it cost --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def compiles():
    """A scope that gives a list, which gets the seconds of each compile in the scope."""
    seen = []

    def listen(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def race(*functions) -> list[list[float]]:
    """The seconds that each function takes, called in turn so that all meet the same disturbances."""
    times = [[] for _ in functions]
    start = time.perf_counter()
    while len(times[0]) < 3 or (len(times[0]) < _ROUNDS and time.perf_counter() - start < 5):
        _status(f"warm calls, {len(times[0]) + 1} of {_ROUNDS}")
        for function, seconds in zip(functions, times):
            with np.errstate(all="ignore"):
                seconds.append(_timed(function)[1])
    return times


def cold_loop(operation, arrays) -> list[str]:
    """Time `jax.jit` on one array after the other, which compiles for each length: on a sample, and said so."""
    sample = random.Random(0).sample(arrays, min(_SAMPLE, len(arrays)))
    function = jax.jit(functools.partial(operation.jnp, axis=0))
    with compiles() as compiled, _host.x64(*(x.dtype for x in sample)):
        start = time.perf_counter()
        for k, x in enumerate(sample, 1):
            _status(f"cold jit loop, {k} of {len(sample)}")
            function(x).block_until_ready()
        seconds = time.perf_counter() - start
    whole = len(sample) == len(arrays)
    sampled = f"{'all' if whole else 'a sample of'} {len(sample)} arrays"
    lines = [f"jax.jit on one array after the other, {sampled}: {_seconds(seconds)}, {len(compiled)} compiles"]
    if not whole:
        shapes = len({(x.shape, x.dtype) for x in arrays})
        estimate = seconds / max(len(compiled), 1) * shapes
        lines.append(f"for all arrays, of {shapes:,} lengths, about {_seconds(estimate)} if the rest are alike (an estimate)")
    return lines


def _timed(function):
    start = time.perf_counter()
    out = function()
    return out, time.perf_counter() - start


def _bytes(*parts):
    return sum(x.nbytes for part in parts for x in part)


def _best(times):
    return f"{_seconds(min(times))} (best of {len(times)}; median {_seconds(np.median(times))})"


def _seconds(t):
    return f"{t:,.1f} s" if t >= 1 else f"{1e3 * t:.3g} ms"


def _short(value):
    return np.array2string(np.asarray(value), threshold=6)


def _status(text):
    """Say on a terminal what is going on, in one line that the next one overwrites."""
    if sys.stderr.isatty():
        print(f"\r{text:<60}\r", end="", file=sys.stderr, flush=True)


def _fail(code, message):
    _status("")
    print("segkernels:", *str(message).splitlines(), file=sys.stderr)
    return code


def _parse(argv):
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        sys.exit(_fail(2, f"{error}; see --help"))


if __name__ == "__main__":
    flags.FLAGS.verbosity = -1  # warnings, and not which backends JAX looked for
    app.run(main, flags_parser=_parse)
