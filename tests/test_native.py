"""The native machine: its bits, its build, and that nothing outside of its buffers is touched."""

import concurrent.futures
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

import cases
import jax
import jax.numpy as jnp
import native_table
import numpy as np
import pytest

import segkernels as sk
from segkernels import _select
from segkernels.kernels import build_native, native

built = pytest.mark.skipif(not cases.NATIVE, reason=f"the native kernel is {native.missing()}")
compiler = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler")


@pytest.fixture(scope="module")
def kernel():
    return native_table.Kernel(native.LIBRARY)


# Bits ----------------------------------------------------------------------------------------------------------------


@built
@pytest.mark.parametrize("f", [1, 3, pytest.param(9, marks=pytest.mark.slow), pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("op", ["add", "mul", "max", "min", "affine"])
def test_the_fold_that_is_stated(op, dtype, f, kernel, rng):
    for isa in kernel.isas:
        with np.errstate(all="ignore"):
            native_table.check(kernel, rng, dtype, op, f, isa)


@built
@pytest.mark.parametrize("f", [1, 3, 9, pytest.param(70, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_softmax_that_is_stated(dtype, f, kernel, rng):
    for isa in kernel.isas:
        with np.errstate(all="ignore"):
            native_table.check_softmax(kernel, rng, dtype, f, isa)


@built
@pytest.mark.parametrize("rows", [1, 5, 16, 17, 100, 3839, 3841, 9000])
def test_bits_do_not_depend_on_the_place(rows, kernel, rng):
    """At every alignment, between other neighbours, with other threads, in place or not, by every instruction set."""
    one = (rng.standard_normal(rows) * 10.0 ** rng.integers(-3, 4, rows)).astype(np.float32)
    one[0] = -0.0
    want = kernel.scan(one[:, None], np.array([0, rows]), "add")[:, 0]
    for place in range(0, 66, 1 if rows < 200 else 13):
        before = np.sort(rng.integers(0, place + 1, rng.integers(0, 6)))
        after = place + rows + np.cumsum(rng.integers(0, 20, 9))
        offsets = np.array([0, *before, place, place + rows, *after])
        x = rng.choice(np.array([np.nan, np.inf, 1e30, -1.0, 1e-40], np.float32), (offsets[-1], 1))
        x[place : place + rows, 0] = one
        for threads in (1, 2, 5):
            for isa in kernel.isas:
                for in_place in (False, True):
                    got = kernel.scan(x, offsets, "add", isa=isa, threads=threads, in_place=in_place)
                    assert got[place : place + rows, 0].tobytes() == want.tobytes(), (place, threads, isa, in_place)
                assert kernel.reduce(x, offsets, "add", isa=isa, threads=threads)[len(before) + 1, 0] == want[-1]


@built
@pytest.mark.parametrize("threads", [2, 7, 11, 13, 30, 64])
def test_every_row_is_walked_by_some_thread(threads, kernel):
    """Whatever the number of rows: shares of them must add up, down to a last segment of one row."""
    for n in range(2, 400):
        x, offsets = np.ones((n, 1), np.float32), np.array([0, n - 1, n])
        want = np.append(np.arange(1, n), 1)
        np.testing.assert_array_equal(kernel.scan(x, offsets, "add", threads=threads)[:, 0], want)
        np.testing.assert_array_equal(kernel.reduce(x, offsets, "add", threads=threads)[:, 0], [n - 1, 1])
        assert kernel.softmax(x, offsets, threads=threads)[-1, 0] == 1


@built
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(("scan", "reduction"), [("cumsum", "sum"), ("cumprod", "prod"), ("cummax", "max"), ("cummin", "min")])
def test_the_last_row_of_a_scan_is_the_reduction(scan, reduction, dtype, rng):
    """Through JAX, with threads: bit for bit."""
    segments = sk.Segments.from_lengths([5000, 0, 1, 17, 70, 12_345])
    ends = np.asarray(segments.offsets)[1:][np.asarray(segments.lengths) > 0] - 1
    with cases.scope(dtype):
        for feature in ((), (3,)):
            x = jnp.asarray(cases.near_one(rng, dtype, (int(segments.offsets[-1]), *feature)))
            config = sk.Config("native", threads=3)
            scanned = getattr(sk, f"segmented_{scan}")(x, segments, implementation=config)
            reduced = getattr(sk, f"segmented_{reduction}")(x, segments, implementation=config)
            assert np.asarray(scanned)[ends].tobytes() == np.asarray(reduced)[np.asarray(segments.lengths) > 0].tobytes()


@built
def test_the_float_mode_is_put_back():
    """Subnormals are flushed inside, and nowhere else."""
    tiny = np.float32([1e-40, 1e-40])
    assert sk.segmented_cumsum(tiny, sk.Segments.from_lengths([2]), implementation="native")[1] == 0
    kernel = native_table.Kernel(native.LIBRARY)
    assert kernel.scan(tiny[:, None], np.array([0, 2]), "add", threads=3)[1, 0] == 0
    assert tiny[0] + tiny[1] > 0


# Under JAX -----------------------------------------------------------------------------------------------------------


@built
def test_many_at_once(rng):
    """Calls from many threads, each with threads of its own."""
    segments = sk.Segments.from_lengths(rng.integers(0, 3000, 300)).prepare(1 << 19)
    x = jnp.asarray(rng.standard_normal(1 << 19).astype(np.float32))
    run = jax.jit(lambda x: sk.segmented_cumsum(x, segments, implementation=sk.Config("native", threads=4)))
    want = np.asarray(run(x))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for got in pool.map(lambda _: np.asarray(run(x)), range(32)):
            assert got.tobytes() == want.tobytes()


@built
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_after_a_fork():
    """A call with threads leaves nothing behind that a fork could lose."""
    script = (
        "import os, sys, numpy as np, native_table as t; from segkernels.kernels import native; k = t.Kernel(native.LIBRARY)\n"
        "x, o = np.ones((1000, 1), np.float32), np.arange(0, 1001, 10)\n"
        "want = k.scan(x, o, 'add', threads=4).tobytes(); pid = os.fork()\n"
        "if pid == 0: os._exit(k.scan(x, o, 'add', threads=4).tobytes() != want)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    path = os.pathsep.join(map(str, (pathlib.Path(__file__).parent, pathlib.Path(sk.__file__).parent.parent)))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    assert subprocess.run([sys.executable, "-c", script], env=environment, timeout=60).returncode == 0


@built
def test_bad_layouts_under_jit_stay_in_bounds(rng):
    x = jnp.ones(100)
    for offsets in ([0, 200, 50, 1000], [-5, 3, 2**31 - 1, 7], [99, 0, 99, 0]):
        segments = jax.jit(lambda o: sk.Segments(o))(jnp.array(offsets, jnp.int32))
        for operation in (sk.segmented_cumsum, sk.segmented_sum, sk.segmented_softmax):
            jax.block_until_ready(jax.jit(lambda x, s, f=operation: f(x, s, implementation="native"))(x, segments))


@built
def test_one_custom_call_and_no_copy():
    segments = sk.Segments.from_lengths([500, 524]).prepare(1024)
    text = jax.jit(sk.segmented_cumsum).lower(jnp.ones(1024), segments).compile().as_text()
    assert text.count("custom-call(") == 1 and "while(" not in text and " copy(" not in text


@built
def test_export_falls_to_xla(capsys):
    x, segments = jnp.arange(8.0), sk.Segments.from_lengths([3, 5])
    exported = jax.export.export(jax.jit(lambda x: sk.segmented_cumsum(x, segments)))(x)
    assert "segkernels_scan" not in exported.mlir_module()
    np.testing.assert_array_equal(exported.call(x), sk.segmented_cumsum(x, segments))
    call = _select.Call("scan", native.ADD, (jax.core.ShapedArray((8, 1), jnp.float32),), _select.Choice("f", sk.Config()),
                        exporting=True)  # fmt: skip
    assert any(line == "  not native: jax.export takes no calls of it" for line in _select.explanation(call, "cpu"))


@built
@pytest.mark.parametrize(("call", "reason"), [
    (lambda x, s, i: sk.segmented_cumlogsumexp(x, s, implementation=i), "it has no scan of logaddexp"),
    (lambda x, s, i: sk.segmented_cumsum(x.astype(complex), s, implementation=i), "it takes .* not complex64"),
    (lambda x, s, i: sk.segmented_cummax(x.astype(jnp.uint8), s, implementation=i), "it takes .* not uint8"),
    (lambda x, s, i: sk.segmented_repeat(x[:2], s, implementation=i), "it has no spread"),
    (lambda x, s, i: sk.segmented_var(x, s, implementation=i), "it reduces values as they are"),
])  # fmt: skip
def test_refused_with_the_reason(call, reason):
    with pytest.raises(ValueError, match=f"`implementation` 'native' cannot serve .*{reason}"):
        call(jnp.ones(8), sk.Segments.from_lengths([3, 5]), "native")


def test_softmax_of_integers_is_refused():
    """The kernel has floats alone; operations make floats of integers before."""
    for dtype, refused in ((jnp.int32, True), (jnp.float32, bool(native.missing()))):
        call = _select.Call("softmax", None, (jax.core.ShapedArray((8, 1), dtype),), _select.Choice("f", sk.Config()))
        assert (native.unsupported(call) is not None) == refused


@pytest.mark.parametrize("threads", [0, 65, True, 1.5])
def test_threads_are_checked(threads):
    with pytest.raises(ValueError, match="must ask for 1 to 64 threads"):
        sk.segmented_cumsum(jnp.ones(3), sk.Segments.from_lengths([3]), implementation=sk.Config(threads=threads))
    with pytest.raises(ValueError, match="may set threads of native"):
        sk.segmented_cumsum(jnp.ones(3), sk.Segments.from_lengths([3]), implementation=sk.Config("xla", threads=2))


# The build -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cc", ["/bin/false", "no-such-compiler", "true"])
def test_without_a_compiler_nothing_is_built(cc, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", cc)
    library = tmp_path / "library"
    library.write_text("of an older build")
    assert build_native.compiled(library).startswith(cc)
    assert not library.exists()


@pytest.mark.parametrize(("change", "reason"), [
    (dict(LIBRARY=pathlib.Path("nowhere")), "not built: no C compiler found that builds it when segkernels was installed"),
    (dict(LIBRARY=pathlib.Path(__file__)), "it cannot be loaded: "),
    (dict(interface_version=lambda: (0, 99)), "built for versions 0.1 to 0.5 of XLA's .*, and this jaxlib has 0.99"),
    (dict(interface_version=lambda: (1, 0)), "and this jaxlib has 1.0"),
    (dict(interface_version=lambda: None), "and this jaxlib has none that it states"),
])  # fmt: skip
def test_what_is_missing_is_said_and_xla_serves(change, reason, monkeypatch, capsys):
    """Without the library, or with a jaxlib that may refuse it, nothing is registered."""
    if "LIBRARY" not in change:
        monkeypatch.setattr(native, "LIBRARY", pathlib.Path(__file__))
    for name, value in change.items():
        monkeypatch.setattr(native, name, value)
    registered = []
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda *a, **k: registered.append(a))
    missing = native.missing.__wrapped__
    assert re.search(reason, missing()) and not registered
    monkeypatch.setattr(native, "missing", missing)
    sk.explain(sk.segmented_cumsum, jnp.ones(8), sk.Segments.from_lengths([8]))
    text = capsys.readouterr().out
    assert ": xla, walk loop" in text and re.search(f"not native: .*{reason}", text)


def test_the_version_is_read_from_the_header():
    assert native._KNOWN[0] <= native.interface_version() <= native._KNOWN[1]


@pytest.mark.slow
@compiler
def test_sanitizers_find_nothing(tmp_path):
    """The whole table under AddressSanitizer and UndefinedBehaviorSanitizer; a read past the end, put in, is found."""
    for broken in (False, True):
        folder = tmp_path / str(broken)
        shutil.copytree(pathlib.Path(native.__file__).parent, folder)
        source = folder / "native.c"
        if broken:
            text = source.read_text()
            assert "x > s->n ? s->n : x" in text
            source.write_text(text.replace("x > s->n ? s->n : x", "x"))
        library = folder / "sanitized"
        flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
        script = f"import build_native, pathlib; print(build_native.compiled(pathlib.Path({str(library)!r}), *{flags}))"
        done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True)
        assert done.stdout.strip() == "None", done.stdout + done.stderr
        asked = [shutil.which("gcc") or "cc", "-print-file-name=libasan.so"]
        runtime = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
        environment = os.environ | {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
        table = pathlib.Path(__file__).with_name("native_table.py")
        done = subprocess.run([sys.executable, table, library], env=environment, capture_output=True, text=True, timeout=600)
        if broken:
            assert done.returncode != 0 and "AddressSanitizer" in done.stderr
        else:
            assert done.returncode == 0 and done.stdout == "all equal\n", done.stderr[-2000:]


@pytest.mark.slow
@compiler
@pytest.mark.parametrize("flags", [["-mavx2"], ["-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq"]])
@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are instruction sets of x86-64")
def test_it_compiles_for(flags, tmp_path, rng):
    """And has the same bits, where the processor has the instructions."""
    quiet = ("-Wno-maybe-uninitialized", "-Wno-tautological-compare")  # rows start at their first; NaN is not itself
    assert build_native.compiled(tmp_path / "library", "-Wall", "-Werror", *quiet, *flags) is None
    processor = pathlib.Path("/proc/cpuinfo")
    if {flag.removeprefix("-m") for flag in flags} <= set(processor.read_text().split() if processor.exists() else ()):
        kernel = native_table.Kernel(tmp_path / "library")
        with np.errstate(all="ignore"):
            native_table.check(kernel, rng, "float32", "add", 1, 0)
            native_table.check_softmax(kernel, rng, "float32", 3, 0)
