"""The house itself: layers, private names, the public list, sizes of files."""

import ast
import importlib.metadata
import pathlib
import re

import cases
import pytest

import segkernels

ROOT = pathlib.Path(segkernels.__file__).parent
FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
# A file may import from the layers above it in this list: from none below, and from none of its own.
LAYERS = (
    ("_algebra.py", "_compat.py", "kernels/build_native.py"),
    ("_check.py",),
    ("_segments.py",),
    ("_host.py", "_config.py"),
    ("_ragged.py",),
    ("kernels/__init__.py", "kernels/xla_loop.py", "kernels/xla_tree.py", "kernels/scanned.py", "kernels/pallas_tpu_words.py",
     "kernels/pallas_tpu_fold.py", "kernels/pallas_tpu_steps.py"),
    ("kernels/pallas_tpu_walk.py", "kernels/pallas_tpu_scan.py", "kernels/pallas_tpu_heads.py"),
    ("kernels/pallas_tpu_reduce.py",),
    ("kernels/xla.py", "kernels/native.py", "kernels/pallas_tpu.py"),
    ("_select.py",),
    ("_verbs.py",),
    ("_rules.py", "_pieces.py"),
    ("_forms.py",),
    ("_reduction.py",),
    ("scan.py", "associative.py", "reduce.py", "locate.py", "compose.py", "_explain.py"),
    ("__init__.py",),
    ("_job.py",),
    ("__main__.py",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(source):
    """The modules a file imports, with the names it takes from them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(module):
    """The file of the package that an import reaches, or None."""
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        for name in ("/".join(parts[1:end]) + ".py", "/".join([*parts[1:end], "__init__.py"])):
            if parts[0] == "segkernels" and name in LEVEL:
                return name
    return None


def upward(name, source):
    """The files that a file imports though they stand beside or above it."""
    reached = {file_of(module) for module in imports(source)} - {None, name}
    return sorted(other for other in reached if LEVEL[other] >= LEVEL[name])


def private(source):
    """The private JAX names in a source."""
    return re.findall(r"jax\._src|jaxlib\._|from jaxlib import|import jaxlib|_DO_NOT_USE", source)


@pytest.mark.parametrize("name", FILES)
def test_imports_go_down(name):
    assert name in LEVEL, f"{name} has no layer"
    assert upward(name, (ROOT / name).read_text()) == []


@pytest.mark.parametrize("name", FILES)
def test_private_names_of_jax_are_in_one_file(name):
    source = (ROOT / name).read_text()
    assert name == "_compat.py" or private(source) == []
    assert name in ("_verbs.py", "_rules.py") or "jax.interpreters" not in source
    assert name.startswith("kernels/pallas") or "jax.experimental.pallas" not in " ".join(imports(source))


def test_the_checks_see_what_they_look_for():
    assert upward("_segments.py", "from segkernels import _verbs\nfrom segkernels.scan import segmented_cumsum") == [
        "_verbs.py",
        "scan.py",
    ]
    assert upward("kernels/xla.py", "import segkernels._select") == ["_select.py"]
    assert len(set(private((ROOT / "_compat.py").read_text()))) == 2  # of JAX, and of jaxlib


def test_every_public_operation_has_a_test_row():
    operations = {name for name in segkernels.__all__ if name.startswith("segmented_")}
    assert operations == {op.name for op in cases.OPS}


def test_the_public_list_is_what_is_exported():
    assert sorted(segkernels.__all__) == segkernels.__all__
    exported = {name for name, value in vars(segkernels).items() if not name.startswith("_") and not hasattr(value, "__path__")}
    modules = {name for name in exported if f"{name}.py" in FILES}
    assert exported - modules == set(segkernels.__all__)
    for name in segkernels.__all__:
        assert getattr(segkernels, name).__doc__


def test_the_version_is_that_of_the_package():
    try:
        installed = importlib.metadata.version("segkernels")
    except importlib.metadata.PackageNotFoundError:
        pyproject = (ROOT.parent / "pyproject.toml").read_text()
        installed = re.search(r'^version = "(.*)"$', pyproject, re.M)[1]
    assert segkernels.__version__ == installed


@pytest.mark.parametrize("folder", ["segkernels", "tests", "bench"])
def test_files_stay_small(folder):
    root = pathlib.Path(__file__).parent.parent / folder
    if not root.exists():
        pytest.skip("an installed package has no bench beside it")
    long = {path.name: n for path in root.rglob("*.py") if (n := len(path.read_text().splitlines())) > 350}
    assert long == {}
