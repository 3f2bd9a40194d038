"""The main job: `python -m segkernels`, on real data and on a user's files."""

import json
import os
import pathlib
import subprocess
import sys

import cases
import jax
import numpy as np
import pytest

import segkernels
from segkernels import __main__ as job
from segkernels import _job

ARRAYS = {"a": np.float32([1, 2, 3]), "empty": np.zeros(0, np.float32), "b": np.float32([0.5])}


@pytest.fixture
def npz(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, **ARRAYS)
    return path


def test_the_job_on_the_standard_library():
    """As a stranger runs it: offsets of every line of the standard library, checked, in one compile."""
    done = subprocess.run([sys.executable, "-W", "error", "-m", "segkernels"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    table = {line[:15].strip(): line[15:] for line in done.stdout.splitlines() if line[:15].strip()}
    assert table["machine"] == ("native, on cpu" if cases.NATIVE else "xla, walk loop, on cpu")
    assert table["compiles"] == "1"
    assert table["check"].startswith("checked against NumPy: all ")
    assert table["cold jit loop"].startswith("jax.jit on one array after the other, a sample of 50 arrays: ")
    for row in ("what", "arrays", "elements", "bytes", "lengths", "first call", "warm call", "speed", "NumPy loop", "example"):
        assert table[row]
    assert done.stderr == ""  # progress is for terminals


def test_standard_library_arrays_are_line_lengths():
    names, arrays = _job.standard_library()
    k = names.index("os.py")
    source = pathlib.Path(os.__file__).read_bytes()
    assert arrays[k].sum() == len(source) and arrays[k].dtype == np.int32
    ends = segkernels.segmented_cumsum([arrays[k]])[0]
    assert all(source[end - 1 : end] == b"\n" for end in ends[:-1])


@pytest.mark.parametrize("suffix", [".npz", ".jsonl"])
@pytest.mark.parametrize(("op", "options", "want"), [
    ("cumsum", {}, [[1, 3, 6], [], [0.5]]),
    ("cumsum", dict(exclusive=True), [[0, 1, 3], [], [0]]),
    ("cumsum", dict(exclusive=False, reverse=True), [[6, 5, 3], [], [0.5]]),
    ("cummin", dict(reverse=True), [[1, 2, 3], [], [0.5]]),
    ("sum", {}, [6, 0, 0.5]),
    ("prod", {}, [6, 1, 0.5]),
])  # fmt: skip
def test_a_users_file(op, options, want, suffix, npz, tmp_path, capsys):
    out = tmp_path / f"out{suffix}"
    assert job.run(str(npz), op, out=str(out), **options) == 0
    assert "checked against NumPy: all 3 arrays agree" in capsys.readouterr().out
    if suffix == ".jsonl":
        assert [json.loads(line) for line in out.read_text().splitlines()] == want
    elif op in ("sum", "prod"):
        with np.load(out) as got:
            assert got["result"].tolist() == want and got["names"].tolist() == list(ARRAYS)
    else:
        with np.load(out) as got:
            assert [got[name].tolist() for name in ARRAYS] == want


@pytest.mark.parametrize("op", [op for op in _job.OPERATIONS if op not in ("cumsum", "sum")])
def test_every_operation_of_the_job(op, tmp_path, capsys):
    path = tmp_path / "data.npz"
    rng = np.random.default_rng(0)
    np.savez(path, a=rng.integers(-9, 9, (7, 2)), empty=np.zeros((0, 2), np.int64), b=rng.integers(-9, 9, (300, 2)))
    assert job.run(str(path), op, exclusive=_job.OPERATIONS[op].scan) == 0
    assert "checked against NumPy: all 3 arrays agree" in capsys.readouterr().out


def test_json_lines_keep_integers(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(f"[1, {2**40}]\n\n[]\n[0.5, 1]\n")
    names, arrays = _job.read(path)
    assert names == ["line1", "line3", "line4"]
    assert [a.dtype.kind for a in arrays] == ["i", "f", "f"]
    with jax.numpy_dtype_promotion("standard"):
        assert job.run(str(path)) == 0


@pytest.mark.parametrize(("op", "spoil"), [
    ("cumsum", lambda y: [y[0] + 1e-3, *y[1:]]),
    ("cumsum", lambda y: [y[0][:-1], *y[1:]]),
    ("cumsum", lambda y: [np.full_like(y[0], np.nan), *y[1:]]),
    ("cumsum", lambda y: y[:-1]),
    ("sum", lambda y: y + np.float32([0, 1, 0])),
])  # fmt: skip
def test_a_wrong_result_ends_with_1(op, spoil, npz, tmp_path, monkeypatch, capsys):
    right = getattr(segkernels, f"segmented_{op}")
    monkeypatch.setattr(segkernels, f"segmented_{op}", lambda *args, **options: spoil(right(*args, **options)))
    assert job.run(str(npz), op, out=str(tmp_path / "out.npz")) == 1
    assert "check failed" in capsys.readouterr().err
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(("name", "content", "words"), [
    ("missing.npz", None, "cannot read .*missing.npz: No such file"),
    ("data.txt", "1", "is of an unknown kind; a file must be `.npz`, or JSON lines"),
    ("data.npz", "no archive", "is no `.npz` file of arrays of numbers"),
    ("data.jsonl", "", "holds no arrays"),
    ("data.jsonl", "[[1], [2, 3]]", "line 1: must be one flat list of numbers"),
    ("data.jsonl", "[1]\n{oops", "line 2: must be a JSON list of numbers"),
    ("data.jsonl", "[1, \"a\"]", "line 1: must be one flat list of numbers"),
    ("data.jsonl", f"[{2**70}]", "does not fit 64 bits"),
])  # fmt: skip
def test_a_bad_file_ends_with_2(name, content, words, tmp_path, capsys):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    assert job.run(str(path)) == 2
    error = capsys.readouterr().err
    assert error.startswith("segkernels: ") and len(error.splitlines()) == 1
    with pytest.raises(ValueError, match=words):
        _job.read(path)


def test_bad_options_end_with_2(npz, tmp_path, capsys):
    assert job.run(str(npz), "sum", reverse=True) == 2
    assert job.run(str(npz), out=str(tmp_path / "out.csv")) == 2
    assert job.run(str(npz), out=str(tmp_path / "no" / "out.npz")) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_every_row_of_the_job_is_an_operation():
    assert all(hasattr(segkernels, f"segmented_{name}") for name in _job.OPERATIONS)
    for row in _job.OPERATIONS.values():
        assert eval(row.shown, {"np": np})  # what is shown is there
