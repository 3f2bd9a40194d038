"""Tables on the terminal, and one JSON line for each row."""

import datetime
import json
import os
import pathlib
import platform
import subprocess

import jax
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.sections import Row

_WIDTH = 160  # of output that no terminal shows

# Figure: heading and format. Spread is the distance between the quartiles over the median.
COLUMNS = {
    "ms": ("median ms", "{:,.3f}"),
    "min_ms": ("min ms", "{:,.3f}"),
    "total_s": ("total s", "{:.3f}"),
    "spread": ("spread", "{:.0%}"),
    "ns": ("ns/element", "{:.3f}"),
    "us": ("us/array", "{:,.2f}"),
    "again": ("us again", "{:,.2f}"),
    "gb_s": ("GB/s", "{:.2f}"),
    "over_add": ("/ jit(x + 1)", "{:.2f}"),
    "over_copy": ("/ np.copy", "{:.2f}"),
    "over_numpy": ("/ np loop", "{:,.2f}"),
    "over_jit": ("/ warm jit loop", "{:,.2f}"),
    "over_float32": ("/ float32", "{:.2f}"),
    "over_one": ("/ f = 1", "{:.2f}"),
    "over_best": ("/ best", "{:.2f}"),
    "over_prange": ("/ numba", "{:.2f}"),
    "over_cumsum": ("/ cumsum", "{:.2f}"),
    "over_scatters": ("/ scatters", "{:.2f}"),
    "over_segment_sum": ("/ segment_sum", "{:.2f}"),
    "over_segment_max": ("/ segment_max", "{:.2f}"),
    "compile_s": ("compile s", "{:.3f}"),
    "compiles": ("compiles", "{:d}"),
    "rounds": ("rounds", "{:d}"),
}


def console() -> Console:
    """A console as wide as its terminal, or as the tables where there is none."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_WIDTH)


def table(rows: list[Row]) -> Table:
    """Rows of one workload side by side; a wrong answer has FAIL for its figures."""
    keys = [key for key in COLUMNS if any(key in row.figures for row in rows)] or ["ms"]
    out = Table(title=f"{rows[0].section}: {rows[0].workload}", title_justify="left", title_style="bold")
    out.add_column("implementation")
    for key in keys:
        out.add_column(COLUMNS[key][0], justify="right")
    for row in rows:
        cells = [COLUMNS[key][1].format(row.figures[key]) if key in row.figures else "" for key in keys]
        if row.fault:
            cells = [Text("FAIL", "bold red")] + [""] * (len(keys) - 1)
        out.add_row(Text(row.implementation), *cells)
    return out


def faults(rows: list[Row]) -> list[Text]:
    """A line on each wrong answer."""
    return [Text(f"FAIL {row.implementation}: {row.fault}", "bold red") for row in rows if row.fault]


def facts() -> dict:
    """What a time means nothing without."""
    return dict(commit=_commit(), jax=jax.__version__, numpy=np.__version__, python=platform.python_version(),
                device=_device(), cpus=os.cpu_count(),
                date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))  # fmt: skip


def json_line(row: Row, about: dict) -> str:
    """A row as one line of JSON."""
    return json.dumps(dict(about, section=row.section, workload=row.workload, implementation=row.implementation,
                           **row.figures, **({"fail": row.fault} if row.fault else {})))  # fmt: skip


def _commit():
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=pathlib.Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _device():
    """The device of JAX, and for a CPU the name of its processor where the system tells it."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return device.device_kind
    info = pathlib.Path("/proc/cpuinfo")
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
             ] if info.exists() else []  # fmt: skip
    return (names or [platform.processor() or platform.machine()])[0]
