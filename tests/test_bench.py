"""The benchmark's gate: a wrong peer is never timed."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("rich", reason="the benchmark's own requirements are not installed: pip install '.[bench]'")

from bench import answers, family, peers, report, sections, timing, workloads  # noqa: E402


def measure(implementations, workload):
    candidates = [
        timing.Candidate(i.name, i.prepare(workload), lambda got, i=i: answers.fault(got, i.answer(workload)), 1, on_jax=i.on_jax)
        for i in implementations
    ]
    return timing.in_turns(candidates, rounds=3, budget=10)


@pytest.mark.parametrize(
    ("table", "workload"), [("FLAT", workloads.flat(0, 3000)), ("LISTS", workloads.arrays(0, 20))], ids=["flat", "lists"]
)
def test_every_peer_gives_the_right_answer(table, workload):
    for result in measure(getattr(peers, table), workload):
        assert result.fault is None, result.candidate.name
        assert len(result.seconds) == 3


@pytest.mark.slow
def test_every_operation_of_the_family_and_its_peers():
    workload = workloads.flat(0, 3000)
    for operations, made in ((family.SCANS + family.ROWS, family.ROW_PEERS), (family.REDUCTIONS, family.REDUCTION_PEERS)):
        for candidate in sections._of_family(operations, made, workload):
            assert timing.first_call(candidate).fault is None, candidate.name
            assert candidate.fault(np.roll(np.asarray(candidate.run()), 1)), candidate.name


@pytest.mark.parametrize("spoil", [
    lambda y: y + np.float32(1e-3), lambda y: np.roll(y, 1), lambda y: y[:-1], lambda y: y.astype(np.float64),
    lambda y: np.where(np.arange(len(y)) == 1500, np.nan, y).astype(y.dtype),
])  # fmt: skip
def test_a_wrong_peer_prints_fail(spoil):
    workload = workloads.flat(0, 3000)
    right = peers.FLAT[0]
    wrong = dataclasses.replace(
        right, name="wrong", prepare=lambda w: lambda: spoil(np.asarray(right.prepare(w)())), on_jax=False
    )
    good, bad = measure([right, wrong], workload)
    assert good.fault is None and bad.fault and not bad.seconds
    rows = list(sections._rows("flat", "planted", [good, bad], "ns", over={}))
    console = report.console()
    with console.capture() as text:
        console.print(report.table(rows), *report.faults(rows))
    assert "FAIL" in text.get() and "FAIL wrong: " in text.get()


def test_a_peer_that_raises_is_a_failure():
    def broken(workload):
        return lambda: 1 / 0

    (result,) = measure([dataclasses.replace(peers.FLAT[0], prepare=broken)], workloads.flat(0, 100))
    assert "ZeroDivisionError" in result.fault and not result.seconds


def test_laws_fill_the_buffer():
    for law in workloads.LAWS:
        lengths = law.lengths(np.random.default_rng(0), 10_000)
        assert lengths.sum() == 10_000 and lengths.min() >= 1
