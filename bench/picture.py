"""The README's table and picture of a stored run: ``python -m bench.picture [RESULT [PICTURE]]``.

Prints the table in Markdown and draws the picture, from the JSON lines that ``python -m bench --out=RESULT`` wrote.
"""

import json
import pathlib

import matplotlib
from absl import app

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

RESULT = pathlib.Path(__file__).parent / "results" / "cpu.jsonl"
_OURS, _REST = "tab:blue", "0.65"


def rows(path) -> list[dict]:
    """The rows of a stored run."""
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def of(stored, section, workload):
    """The timed rows of one workload, by the start of its name."""
    return [r for r in stored if r["section"] == section and r["workload"].startswith(workload) and "ms" in r]


def markdown(stored) -> str:
    """The table of the README."""
    first = stored[0]
    lines = [
        f"Measured on {first['device']}, {first['cpus']} cores, JAX {first['jax']}, Python {first['python']}, "
        f"commit {first['commit']}.",
        "",
        "| float32, one flat buffer of 2^24, mean length 100 | ns / element | of `jit(x + 1)` | of `np.copy` | compile |",
        "|---|---|---|---|---|",
    ]
    for r in sorted(of(stored, "flat", "n = 2^24"), key=lambda r: r["ns"]):
        lines.append(f"| {r['implementation']} | {r['ns']:.2f} | {r['over_add']:.2f} | {r['over_copy']:.2f} | {_compile(r)} |")
    counts = ("10 arrays", "100 arrays", "1,000 arrays", "10,000 arrays")
    table = {count: {r["implementation"]: r for r in of(stored, "lists", count)} for count in counts}
    lines += [
        "",
        "| list call, us / array; again at once (compiles of the first call) | " + " | ".join(counts) + " |",
        "|---|" + "---|" * len(counts),
    ]
    for name in table[counts[0]]:
        cells = [_cell(table[count].get(name)) for count in counts]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| float32, 2^20, mean length 100, xla if not said | ns / element | of cumsum | compile |", "|---|---|---|---|"]
    lines += [f"| {r['implementation']} | {r['ns']:.2f} | {r['over_cumsum']:.2f} | {r['compile_s']:.2f} s |"
              for what in ("scans", "from rows to rows") for r in of(stored, "family", what) if "compile_s" in r]  # fmt: skip
    reductions = [of(stored, "family", f"reductions, n = 2^20, mean {mean}") for mean in ("100,", "1e4,")]
    laws = [{r["implementation"]: r for r in rows} for rows in reductions]
    lines += [
        "",
        "| reduction, 2^20, xla if not said | ns, mean 100 | of `segment_sum` | ns, mean 1e4 | of `segment_sum` | compile |",
        "|---|---|---|---|---|---|",
    ]
    for name, r in laws[0].items():
        cells = " | ".join(f"{law[name]['ns']:.2f} | {law[name]['over_segment_sum']:.2f}" for law in laws)
        lines.append(f"| {name} | {cells} | {_compile(r)} |")
    return "\n".join(lines)


def _compile(row):
    return f"{row['compile_s']:.2f} s" if "compile_s" in row else "-"


def _cell(row):
    if row is None:
        return "-"
    return f"{row['us']:.2f}; {row['again']:.2f}" + (f" ({row['compiles']})" if row.get("compiles") else "")


def draw(stored, path) -> None:
    """Bars of the flat call, and cost an array against the number of arrays."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4), layout="constrained")
    flat = sorted(of(stored, "flat", "n = 2^24"), key=lambda r: -r["ns"])
    names = [r["implementation"] for r in flat]
    left.barh(names, [r["ns"] for r in flat], color=[_OURS if "segmented_cumsum" in name else _REST for name in names])
    left.bar_label(left.containers[0], fmt=" %.2g")
    left.set(xscale="log", xlabel="ns / element (log)", title="One flat buffer, 2^24 float32, mean length 100")
    left.spines[["top", "right"]].set_visible(False)
    lists = [r for r in stored if r["section"] == "lists" and r["workload"].endswith(" arrays") and "us" in r]
    for name in dict.fromkeys(r["implementation"] for r in lists):
        points = sorted((int(r["workload"].split()[0].replace(",", "")), r["us"]) for r in lists if r["implementation"] == name)
        ours = "segmented_cumsum" in name
        line = "-" if name.endswith("NumPy in") else "--"
        right.plot(
            *zip(*points, strict=True), line, marker="o", label=name, linewidth=2.5 if ours else 1.2, zorder=3 if ours else 2
        )
    right.set(
        xscale="log",
        yscale="log",
        xlabel="arrays in the list",
        ylabel="us / array",
        title="List call, lengths 1 to 199, all compiled",
    )
    right.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    right.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def main(argv):
    """Print the table, draw the picture."""
    result = pathlib.Path(argv[1] if len(argv) > 1 else RESULT)
    stored = rows(result)
    print(markdown(stored))
    draw(stored, argv[2] if len(argv) > 2 else result.with_suffix(".png"))


if __name__ == "__main__":
    app.run(main)
