"""Run the benchmarks: ``python -m bench``, or ``python -m bench --quick``.

The exit status is 1 if any answer was wrong.
"""

import contextlib
import itertools

from absl import app, flags, logging

from bench import report, sections

_QUICK = flags.DEFINE_bool("quick", False, "Small sizes and few rounds: under two minutes instead of a quarter of an hour.")
_SECTION = flags.DEFINE_multi_enum("section", [*sections.SECTIONS], [*sections.SECTIONS], "What to run; repeat it for more.")
_OUT = flags.DEFINE_string("out", None, "A file for the rows as JSON lines. It is written anew.")
_SEED = flags.DEFINE_integer("seed", 0, "Of all values and lengths.", lower_bound=0)


def main(argv):
    """Run the sections asked for and print their tables."""
    if len(argv) > 1:
        raise app.UsageError(f"no arguments but flags, got {' '.join(argv[1:])}")
    logging.set_verbosity(logging.WARNING)  # JAX reports at INFO each accelerator that is not there
    console, about, failed = report.console(), report.facts(), False
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(open(_OUT.value, "w")) if _OUT.value else None
        console.print(", ".join(f"{key} {value}" for key, value in about.items()))
        console.print(
            "Times are taken in turns. A ratio is the median over rounds of the ratio in one round; spread is the "
            "distance between the quartiles over the median.\n"
        )
        status = stack.enter_context(console.status("starting"))
        for name in _SECTION.value:
            settings = sections.Settings(**(sections.QUICK if _QUICK.value else sections.FULL), seed=_SEED.value,
                                         notify=lambda text, name=name: status.update(f"{name}: {text}"))  # fmt: skip
            items = sections.SECTIONS[name](settings)
            for workload, group in itertools.groupby(items, key=lambda item: getattr(item, "workload", None)):
                rows = list(group)
                if workload is None:
                    console.print(*rows, "", sep="\n", markup=False)
                    continue
                console.print(report.table(rows), *report.faults(rows), "", sep="\n")
                failed = failed or any(row.fault for row in rows)
                for row in rows if out else ():
                    print(report.json_line(row, about), file=out, flush=True)
    return int(failed)


if __name__ == "__main__":
    app.run(main)
