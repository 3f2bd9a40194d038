"""What the compiler for TPUs makes of the kernels: ``python -m bench.tpu_cost``, on any machine, with libtpu.

Cycles are its own static estimates, of what one block more costs, for nothing is executed. Its model of copies is optimistic, so
the bound by bandwidth stands beside them: what takes fewer cycles than that waits for memory. Of reductions it estimates nothing:
bundles, of the walk, stand for cycles, and those of the loop over segments beside them. The exit status is 1 if a row takes over
5 % more cycles (or bundles, where there are none) than the same one of ``--against``.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import jax.numpy as jnp
from absl import app, flags
from rich.table import Table

from bench import ahead, report
from segkernels.kernels import pallas_tpu_reduce

_CHIPS = flags.DEFINE_multi_enum("chip", ["v5e", "v6e", "tpu7x"], [*ahead.CHIPS], "Repeat it for more.")
_OUT = flags.DEFINE_string("out", None, "A file for the rows as JSON lines. It is written anew.")
_AGAINST = flags.DEFINE_string("against", None, "The rows of an earlier run.")
_REDUCES = flags.DEFINE_bool("reduces", False, "For its own use: reductions instead of scans.")
_DUMP = flags.DEFINE_string("dump", None, "For its own use: where the compiler writes what this process reads.")

# Bytes and cycles a second of one core: the former as published, the latter assumed.
_SPEEDS = {"v5e": (819e9, 1.5e9), "v6e": (1640e9, 1.75e9), "v5p": (1382e9, 1.75e9), "tpu7x": (3690e9, 2.2e9)}
_BUNDLES_ONLY = ("v5p", "tpu7x")  # for these the estimator of libtpu ends the process
_VARIANTS = (
    ahead.Variant("add"), ahead.Variant("add", "bfloat16"), ahead.Variant("add", "int32"), ahead.Variant("add", "int8"),
    ahead.Variant("max", reverse=True, exclusive=True), ahead.Variant("max", "bfloat16", reverse=True, exclusive=True),
    ahead.Variant("affine"), ahead.Variant("affine", "bfloat16"), ahead.Variant("logaddexp"),
    ahead.Variant("add", f=128), ahead.Variant("add", "bfloat16", f=128), ahead.Variant("affine", f=128),
    ahead.Variant("add", reduces=True), ahead.Variant("max", "bfloat16", reduces=True), ahead.Variant("add", f=128, reduces=True),
)  # fmt: skip
_WORSE = 1.05  # times an earlier cost


def main(argv):
    """Measure each chip in a process of its own, for libtpu reads its flags once."""
    if len(argv) > 1:
        raise app.UsageError(f"no arguments but flags, got {' '.join(argv[1:])}")
    if _DUMP.value:
        return print(*map(json.dumps, measured(_CHIPS.value[0], pathlib.Path(_DUMP.value))), sep="\n")
    console, rows = report.console(), []
    with console.status("compiling") as status:
        for chip in _CHIPS.value:
            for reduces in (False, True):
                status.update(f"compiling {'reductions' if reduces else 'scans'} for {chip}")
                rows += _in_a_process(chip, reduces)
    before = {_key(row): row for row in map(json.loads, pathlib.Path(_AGAINST.value).open())} if _AGAINST.value else {}
    console.print(_table(rows, before))
    if _OUT.value:
        about = {name: report.facts()[name] for name in ("commit", "jax")}
        pathlib.Path(_OUT.value).write_text("".join(json.dumps(about | row) + "\n" for row in rows))
    return int(any(_worse(row, before) for row in rows))


def _in_a_process(chip, reduces):
    with tempfile.TemporaryDirectory() as dump:
        options = f"--xla_jf_dump_to={dump}/code --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=final.*"
        if chip not in _BUNDLES_ONLY and not reduces:  # it knows no copies to scalar memory
            options += f" --xla_jf_dump_static_llo_profile_to={dump}/cycles"
        command = [sys.executable, "-m", "bench.tpu_cost", f"--chip={chip}", f"--dump={dump}", f"--reduces={reduces}"]
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "LIBTPU_INIT_ARGS": options}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise RuntimeError(f"no figures for {chip}: {done.stderr[-2000:]}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def measured(chip, dump):
    """The rows of a chip, from what its compiler writes into a folder."""
    for variant in (variant for variant in _VARIANTS if variant.reduces == _REDUCES.value):
        walk = variant.walk(1 << 27)
        block = walk.rows * walk.per_row
        registers = block * variant.f / 1024
        few, more = (2, 4) if variant.f == 1 else (8, 16)
        cycles = []
        for blocks in (few, more):
            start = time.perf_counter()
            lowered = ahead.lowered(*variant.kernel(blocks * block, **{} if variant.reduces else dict(whole=True)), chip)
            seconds = time.perf_counter() - start
            lowered.compile()
            cycles.append(_cycles(dump))
            bundles, of_loop, spills = _bundles(dump)
        row = dict(chip=chip) | variant._asdict()
        if cycles[0] is not None:
            row["cycles"] = round((cycles[1] - cycles[0]) / (more - few) / registers, 3)
        if variant.reduces:
            row["segment"] = round(of_loop / pallas_tpu_reduce.AT_ONCE, 2)
        yield row | dict(bound=round(_bound(variant, chip), 2), bundles=round((bundles - of_loop) / registers, 2), spills=spills,
                         lowering_s=round(seconds, 2))  # fmt: skip


def _cycles(dump):
    """The estimate for the kernel compiled last, or None where there is none."""
    profiles = _taken(dump / "cycles")
    return max(int(n) for text in profiles.values() for n in re.findall(r"estimated_cycles: (\d+)", text)) if profiles else None


def _bundles(dump):
    """The instructions of the kernel compiled last, those of them in the loop over segments, and the registers it spills."""
    files = _taken(dump / "code")
    code = [text for name, text in files.items() if name.endswith("final_bundles.txt")]
    use = [text for name, text in files.items() if "final_hlo-static-per-bundle-utilization" in name]
    bundle = r"^\s*0(?:x[0-9a-f]+)?\s+(?:[A-Z]{2})?\s*:"  # what is in the loop over the grid has one mark, in a loop there two
    bundles, of_loop = (len(re.findall(pattern, code[-1], re.M)) for pattern in (bundle, bundle + r"\s*>\s*>"))
    spills = sum(int(line.split()[8]) for line in use[-1].splitlines() if re.fullmatch(r"\s*(\d+\s+){9}\d+\s*", line))
    return bundles, of_loop, spills


def _taken(folder):
    """What was written into a folder about the kernel compiled last, by name; the folder is empty then."""
    texts = {path.name: path.read_text() for path in sorted(folder.glob("*segkernels*"))}
    for path in folder.glob("*"):
        path.unlink()
    return texts


def _bound(variant, chip):
    """The cycles in which 1,024 values of each operand come, and those of a scan go."""
    bandwidth, clock = _SPEEDS[chip]
    return (len(variant.fold.dtypes) + (not variant.reduces)) * 1024 * jnp.dtype(variant.dtype).itemsize / bandwidth * clock


def _key(row):
    return tuple(row.get(name, False) for name in ("chip", *ahead.Variant._fields))


def _worse(row, before):
    cost = "cycles" if "cycles" in row else "bundles"
    return row[cost] > _WORSE * before.get(_key(row), row)[cost]


def _table(rows, before):
    table = Table(title="For 1,024 values, as the compiler for TPUs estimates; nothing was run", title_justify="left")
    for heading in ("chip", "kernel", "dtype", "f", "cycles", "before", "bound by bandwidth", "bundles", "a segment", "spills",
                    "lowering s"):  # fmt: skip
        table.add_column(heading, justify="right" if heading not in ("chip", "kernel", "dtype") else "left")
    for row in rows:
        scan = " ".join([row["monoid"], *(way for way in ("reverse", "exclusive") if row[way])])
        earlier = before.get(_key(row), {}).get("cycles", "")
        table.add_row(row["chip"], scan, row["dtype"], str(row["f"]), str(row.get("cycles", "")), str(earlier), str(row["bound"]),
                      str(row["bundles"]), str(row.get("segment", "")), str(row["spills"]), str(row["lowering_s"]),
                      style="bold red" if _worse(row, before) else None)  # fmt: skip
    return table


if __name__ == "__main__":
    app.run(main)
