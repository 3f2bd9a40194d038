"""The native kernel called as it is, without JAX, and its table of cases; `python native_table.py LIBRARY` runs it alone.

The answer is the fold that `native.c` states, in NumPy: equal to the bit.
"""

import ctypes
import functools
import math
import sys

import numpy as np

OPS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
DTYPES = ("float32", "float64", "int32", "int64")
CHUNK, BLOCK = 3840, 16
_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


class Scan(ctypes.Structure):
    _fields_ = [*((name, _POINTER) for name in ("x", "gates", "y", "heads")), *((name, _LONG) for name in ("n", "live", "f")),
                *((name, _INT) for name in ("isa", "dtype", "op", "reverse", "exclusive"))]  # fmt: skip


class BySegment(ctypes.Structure):
    _fields_ = [*((name, _POINTER) for name in ("x", "offsets", "y")), *((name, _LONG) for name in ("n", "s", "f")),
                *((name, _INT) for name in ("isa", "dtype", "op", "wide", "logarithm"))]  # fmt: skip


class Kernel:
    """The functions of a library."""

    def __init__(self, library):
        self.library = ctypes.CDLL(str(library))
        self.isas = range(1 + self.library.segkernels_best_isa())

    def scan(self, x, offsets, op, reverse=False, exclusive=False, *, isa=0, threads=1, gates=None, in_place=False):
        n, f = x.shape
        y = x.copy() if in_place else np.full_like(x, 77)
        x = y if in_place else x
        heads = np.zeros(-(-n // 32) * 32, bool)
        heads[offsets[:-1][offsets[1:] > offsets[:-1]]] = True
        heads = np.packbits(heads, bitorder="little")
        names = ("add", "mul", "max", "min", "affine")
        call = Scan(x.ctypes.data, None if gates is None else gates.ctypes.data, y.ctypes.data, heads.ctypes.data, n, offsets[-1],
                    f, isa, DTYPES.index(x.dtype.name), names.index(op), reverse, exclusive)  # fmt: skip
        self.library.segkernels_scan(ctypes.byref(call), _LONG(threads))
        return y

    def reduce(self, x, offsets, op, *, isa=0, threads=1):
        y = np.full((len(offsets) - 1, x.shape[1]), 77, x.dtype)
        call = self._by_segment(x, offsets, y, isa, op=list(OPS).index(op))
        self.library.segkernels_reduce(ctypes.byref(call), _LONG(threads))
        return y

    def softmax(self, x, offsets, logarithm=False, *, isa=0, threads=1):
        y = np.full_like(x, 77)
        call = self._by_segment(x, offsets, y, isa, logarithm=logarithm)
        self.library.segkernels_softmax(ctypes.byref(call), _LONG(threads))
        return y

    def _by_segment(self, x, offsets, y, isa, op=0, logarithm=False):
        n, f = x.shape
        return BySegment(x.ctypes.data, offsets.ctypes.data, y.ctypes.data, n, len(offsets) - 1, f, isa,
                         DTYPES.index(x.dtype.name), op, offsets.dtype == np.int64, logarithm)  # fmt: skip


# The answers ---------------------------------------------------------------------------------------------------------


def prefix(x, op):
    """The Kogge-Stone prefix of a block."""
    x = x.copy()
    for window in (1, 2, 4, 8):
        x[window:] = op(x[:-window].copy(), x[window:]) if len(x) > window else x[window:]
    return x


def in_pieces(x, op, rows, inner):
    """Fold pieces by `inner`, and their totals from left to right."""
    parts = [inner(x[i : i + rows]) for i in range(0, len(x), rows)]
    for i in range(1, len(parts)):
        parts[i] = op(parts[i - 1][-1:], parts[i])
    return np.concatenate(parts)


def folded(x, op):
    """The inclusive scan of one segment ``[n, f]``."""
    return in_pieces(x, op, CHUNK, lambda chunk: in_pieces(chunk, op, BLOCK, lambda block: prefix(block, op)))


def recurrence(gates, x):
    out = x.copy()
    for i in range(1, len(x)):
        out[i] = gates[i] * out[i - 1] + x[i]
    return out


def power(x):
    """e^x of x <= 0, as 2^k e^r."""
    single = x.dtype == np.float32
    mantissa, bias, terms = (23, 127, 7) if single else (52, 1023, 13)
    high, low = (0.693359375, -2.12194440e-4) if single else (6.93147180369123816490e-01, 1.90821492927058770002e-10)
    number = x.dtype.type
    x = np.where(x < number(-bias * np.log(2)), number(-bias * np.log(2)), x)
    k = np.rint(x * number(np.log2(np.e)))
    r = (x - k * number(high)) - k * number(low)
    y = np.full_like(x, 1 / math.factorial(terms))
    for i in reversed(range(terms)):
        y = y * r + number(1 / math.factorial(i))
    scale = (np.nan_to_num(k).astype(f"i{x.itemsize}") + bias << mantissa).view(x.dtype)
    return flushed(y * scale)


def logarithm(x):
    """Of x >= 1, in float64: the exponent, and 2 atanh((m - 1) / (m + 1)) of what is left."""
    m, exponent = np.frexp(x.astype(np.float64))
    m, exponent = np.where(m * 2 > np.sqrt(2), m, 2 * m), np.where(m * 2 > np.sqrt(2), exponent, exponent - 1)
    z, y = (m - 1) / (m + 1), np.zeros_like(m)
    for k in range(23, 0, -2):
        y = y * (z * z) + 1 / k
    return (exponent * 6.93147180369123816490e-01 + (exponent * 1.90821492927058770002e-10 + 2 * z * y)).astype(x.dtype)


def softmax(x, is_logarithm):
    """Of one segment ``[n, f]``."""
    below = x - np.max(x, axis=0)
    powers = power(below)
    total = folded(powers, np.add)[-1]
    return below - logarithm(total) if is_logarithm else flushed(powers * (1 / total))


def flushed(x):
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.zeros((), x.dtype), x)


def nothing(op, dtype):
    real = dtype.kind == "f"
    info = None if real else np.iinfo(dtype)
    return {"add": 0, "mul": 1, "max": -np.inf if real else info.min, "min": np.inf if real else info.max}.get(op, 0)


def scanned(fold, parts, offsets, op, reverse, exclusive):
    """`fold` of each segment, from its end if `reverse`, a row later if `exclusive`."""
    out = np.zeros_like(parts[-1])
    step = -1 if reverse else 1
    for begin, end in zip(offsets[:-1], offsets[1:]):
        if begin < end:
            y = fold(*(x[begin:end][::step] for x in parts))
            if exclusive:
                y = np.concatenate([np.full_like(y[:1], nothing(op, y.dtype)), y[:-1]])
            out[begin:end] = y[::step]
    return out


def same(got, want):
    """Equal to the bit, but for the bits of NaN."""
    return bool(np.all(np.isnan(got) == np.isnan(want))) and np.where(got == got, got, 0).tobytes() == np.where(
        want == want, want, 0
    ).tobytes()


# The table -----------------------------------------------------------------------------------------------------------


def layouts(rng):
    yield from ([0], [0, 0, 0], [0, 1], [0, 16], [0, 17], [0, 31, 31, 32, 33, 50], [0, *range(1, 130)], [0, 3840], [0, 3841])
    yield from ([0, 100, 3940, 3940, 7790, 20000], [0, 9000])
    yield [0, *np.sort(rng.integers(0, 5000, 900)), 5000]
    yield np.cumsum([0, *rng.integers(0, 40, 300)])
    yield np.cumsum([0, *rng.integers(0, 4000, 8)])


def draw(rng, dtype, n, f, op):
    if np.dtype(dtype).kind == "i":
        return rng.integers(-9, 9, (n, f)).astype(dtype)
    x = rng.standard_normal((n, f)).astype(dtype)
    if op == "mul":
        return (1 + x / 100).astype(dtype)
    x[::29], x[3::401], x[5::997] = -0.0, np.nan, np.inf
    return x


def check(kernel, rng, dtype, op, f, isa):
    """Every layout, direction, thread count, in place and not, and the reduction, against the answer."""
    for offsets in layouts(rng):
        offsets = np.asarray(offsets, np.int64)
        for dead in (0, 37):
            x = draw(rng, dtype, offsets[-1] + dead, f, op)
            gates = draw(rng, dtype, len(x), f, "mul") if op == "affine" else None
            fold, parts = (recurrence, (gates, x)) if op == "affine" else (lambda x: folded(x, OPS[op]), (x,))
            for reverse in (False, True):
                for exclusive in (False, True):
                    want = scanned(fold, parts, offsets, op, reverse, exclusive)
                    for threads in (1, 3):
                        for in_place in (False, True):
                            how = dict(isa=isa, threads=threads, in_place=in_place, gates=gates)
                            got = kernel.scan(x, offsets, op, reverse, exclusive, **how)
                            assert same(got, want), (list(offsets[:9]), dead, reverse, exclusive, how)
            if op != "affine":
                full = offsets[1:] > offsets[:-1]
                want = np.full((len(full), f), nothing(op, x.dtype), dtype)
                want[full] = scanned(fold, parts, offsets, op, False, False)[offsets[1:][full] - 1]
                for threads in (1, 3):
                    for kind in (np.int32, np.int64):
                        got = kernel.reduce(x, offsets.astype(kind), op, isa=isa, threads=threads)
                        assert same(got, want), (list(offsets[:9]), dead, threads, kind)


def check_softmax(kernel, rng, dtype, f, isa):
    """Every layout, thread count and dtype of offsets, and the logarithm, against the answer."""
    for offsets in layouts(rng):
        offsets = np.asarray(offsets, np.int64)
        for dead in (0, 37):
            x = 9 * draw(rng, dtype, offsets[-1] + dead, f, "add")
            x[: offsets[-1] // 2] = np.nan_to_num(x[: offsets[-1] // 2], posinf=-np.inf)
            for is_logarithm in (False, True):
                want = scanned(functools.partial(softmax, is_logarithm=is_logarithm), (x,), offsets, "add", False, False)
                for threads in (1, 3):
                    for kind in (np.int32, np.int64):
                        got = kernel.softmax(x, offsets.astype(kind), is_logarithm, isa=isa, threads=threads)
                        assert same(got, want), (list(offsets[:9]), dead, is_logarithm, threads, kind)


def check_bad_layouts(kernel, rng):
    """Offsets and head bits that no check has seen: any result, but nothing outside of the buffers."""
    backward = [np.array([0, 2040, 0, 10])]  # a short segment after one that nearly fills a group, where nothing is before it
    for round in range(300):
        n, s, f = rng.integers(0, 300 if round % 3 else 9000), rng.integers(0, 20), rng.choice([1, 2, 3, 9, 64, 65, 70])
        x = draw(rng, "float32", n, f, "add")
        for low, high in ((-(2**31), 2**31), (-5, n + 5)):
            offsets = backward.pop() if backward else rng.integers(low, high, s + 1)
            offsets = offsets.astype(rng.choice(["int32", "int64"]))
            kernel.reduce(x, offsets, "add", threads=3)
            kernel.softmax(x, offsets, threads=3)
        heads, y = rng.integers(0, 2**32, -(-n // 32), dtype=np.uint32), np.empty_like(x)
        call = Scan(x.ctypes.data, None, y.ctypes.data, heads.ctypes.data, n, rng.integers(-5, n + 50), f, 0, 0, 0,
                    rng.integers(0, 2), rng.integers(0, 2))  # fmt: skip
        kernel.library.segkernels_scan(ctypes.byref(call), _LONG(3))


def main(library):
    kernel, rng = Kernel(library), np.random.default_rng(0)
    check_bad_layouts(kernel, rng)
    with np.errstate(all="ignore"):
        for op in (*OPS, "affine"):
            for dtype in DTYPES:
                for f in (1, 3, 9):
                    check(kernel, rng, dtype, op, f, kernel.isas[-1])
        for dtype in DTYPES[:2]:
            for f in (1, 3, 9, 70):
                check_softmax(kernel, rng, dtype, f, kernel.isas[-1])
    print("all equal")


if __name__ == "__main__":
    main(sys.argv[1])
