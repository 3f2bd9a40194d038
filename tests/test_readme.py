"""Everything the README and the docstrings show runs, and says what they say."""

import doctest
import importlib
import pathlib
import pkgutil
import re

import jax.numpy as jnp
import numpy as np
import pytest

import segkernels

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)
NAMES = {name: getattr(segkernels, name) for name in segkernels.__all__} | dict(np=np, jnp=jnp)
MODULES = [m.name for m in pkgutil.walk_packages(segkernels.__path__, "segkernels.") if not m.name.endswith("__main__")]


def run(name, text, names):
    test = doctest.DocTestParser().get_doctest(text, names, name, name, 0)
    failed, tried = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(
        test, clear_globs=False
    )
    assert failed == 0
    return tried, test.globs


def test_readme_examples():
    assert len(BLOCKS) >= 4
    names, tried = {}, 0
    for i, block in enumerate(BLOCKS):  # one session from top to bottom
        more, names = run(f"README block {i}", block, names)
        tried += more
    assert tried >= 15


def test_the_runner_sees_a_wrong_example():
    with pytest.raises(AssertionError):
        run("wrong", ">>> 1 + 1\n3\n", {})


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples(module):
    finder, examples = doctest.DocTestFinder(), 0
    loaded = importlib.import_module(module)
    for test in finder.find(loaded, module, extraglobs=NAMES):
        if test.examples:
            examples += len(test.examples)
            failed, _ = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
            assert failed == 0
    public = [
        f
        for f in vars(loaded).values()
        if getattr(f, "__module__", "") == module and getattr(f, "__name__", "").startswith("segmented_")
    ]
    assert examples >= len(public)


def test_the_readme_names_every_operation():
    for name in segkernels.__all__:
        assert f"`{name}" in README, name


def test_ci_runs_the_commands_of_the_readme():
    """The two commands of the front door: the main job, and the tests."""
    commands = re.search(r"```sh\n(.*?)```", README, re.S)[1].strip().splitlines()
    commands = [line.split("#")[0].strip() for line in commands]
    script = (ROOT / ".ci" / "run").read_text()
    for command in commands:
        assert command in script, command
    assert "python -m segkernels" in commands[0] and commands[1].endswith("pytest")


def test_figures_are_those_of_the_stored_run():
    """The table of speeds is what the benchmark's own command prints."""
    pytest.importorskip("matplotlib", reason="the benchmark's own requirements are not installed: pip install '.[bench]'")
    from bench import picture

    table = picture.markdown(picture.rows(picture.RESULT))
    assert table in README
