"""Every TPU kernel by the compiler for TPUs: ``python -m bench.tpu_grid``, on any machine, with libtpu and an hour.

Nothing is executed. Times are those of tracing, lowering and compiling a plan and its kernel, or an operation that is left to
``xla``; with ``--jobs`` they are longer. The exit status is 1 if something does not compile.
"""

import concurrent.futures
import functools
import json
import multiprocessing
import pathlib
import statistics
import time

import jax
from absl import app, flags
from rich.progress import track
from rich.table import Table

from bench import ahead, report

_CHIPS = flags.DEFINE_multi_enum("chip", [*ahead.CHIPS], [*ahead.CHIPS], "Repeat it for more.")
_PART = flags.DEFINE_multi_enum("part", ["kernels", "xla"], ["kernels", "xla"], "What to compile; repeat it for more.")
_OUT = flags.DEFINE_string("out", None, "A file for JSON lines: one of the machine, and the rows. It is written anew.")
_JOBS = flags.DEFINE_integer("jobs", 1, "How many compile at once.", lower_bound=1)


def main(argv):
    """Compile the kernels of each chip asked for, and print how long that takes."""
    if len(argv) > 1:
        raise app.UsageError(f"no arguments but flags, got {' '.join(argv[1:])}")
    parts = dict(kernels=list(ahead.grid()), xla=[dict(chip=chip, operation=operation, dtype=dtype) for chip in ahead.CHIPS
                                                  for operation, dtype in ahead.LEFT])  # fmt: skip
    console, grid = report.console(), [row for part in _PART.value for row in parts[part] if row["chip"] in _CHIPS.value]
    with concurrent.futures.ProcessPoolExecutor(_JOBS.value, multiprocessing.get_context("spawn")) as pool:
        rows = list(track(pool.map(compiled, grid), "compiling", len(grid), console=console))
    console.print(_table(rows))
    faults = [row for row in rows if "fault" in row]
    console.print(*map(json.dumps, faults), sep="\n", markup=False)
    if _OUT.value:
        about = {name: report.facts()[name] for name in ("commit", "jax", "device", "cpus")} | dict(jobs=_JOBS.value)
        pathlib.Path(_OUT.value).write_text("".join(json.dumps(row) + "\n" for row in (about, *rows)))
    return int(bool(faults))


def compiled(row):
    """A row of the grid with how long it took to compile, or why it did not."""
    _warm(row["chip"])
    try:
        if "operation" not in row:
            variant = ahead.variant_of(row)
            return row | _seconds(row["chip"], *variant.whole(1 << 24 if variant.f == 1 else 1 << 20))
        with jax.enable_x64(True):
            return row | _seconds(row["chip"], *ahead.left(row["operation"], row["dtype"], 1 << 20))
    except Exception as error:  # noqa: BLE001 - whatever a compiler says
        return row | dict(fault=str(error)[:500])


def _seconds(chip, function, avals):
    start = time.perf_counter()
    lowered = ahead.lowered(function, avals, chip)
    middle = time.perf_counter()
    lowered.compile()
    return dict(lowering_s=round(middle - start, 2), compile_s=round(time.perf_counter() - middle, 2))


@functools.cache
def _warm(chip):
    """Leave to no row what the first one of a process takes longer."""
    _seconds(chip, *ahead.Variant("max", "int32", 2).whole(1 << 20))


def _table(rows):
    table = Table(title="What the compiler for TPUs compiled; nothing was run", title_justify="left")
    for heading in ("chip", "what", "dtype", "compiled", "median s", "longest s", "longest of"):
        table.add_column(heading, justify="left" if heading in ("chip", "what", "dtype", "longest of") else "right")
    about = lambda row: (row["chip"], row.get("operation", "kernels"), row["dtype"])
    for kind in dict.fromkeys(map(about, rows)):
        every = [row for row in rows if about(row) == kind]
        done = [row for row in every if "fault" not in row]
        seconds = lambda row: row["lowering_s"] + row["compile_s"]
        longest = max(done, key=seconds, default=None)
        cells = [f"{statistics.median(map(seconds, done)):.2f}", f"{seconds(longest):.2f}"] if done else []
        if done and "monoid" in longest:
            cells.append(f"{longest['monoid']} f = {longest['f']}, {longest['way']}")
        table.add_row(*kind, f"{len(done)} of {len(every)}", *cells)
    return table


if __name__ == "__main__":
    app.run(main)
