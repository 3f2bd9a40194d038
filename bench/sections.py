"""Sections: functions that measure and yield rows, and sentences to print between tables."""

import dataclasses
import statistics
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from bench import answers, peers, timing, workloads
from bench.family import REDUCTION_PEERS, REDUCTIONS, ROW_PEERS, ROWS, SCANS, SCATTERS, SEGMENT_MAX, SEGMENT_SUM
from segkernels import segmented_cumsum

_SAMPLE = 50  # arrays of a cold loop: each costs a compile
_DTYPES = ("float32", "bfloat16", "float16", "float64", "int8", "int32", "int64", "complex64")
_FEATURES = (1, 3, 16, 64, 300)


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much to measure: sizes of flat calls, lengths of lists, and when a table has enough rounds."""

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    rounds: int
    budget: float
    seed: int
    notify: Callable[[str], None]

    def in_turns(self, candidates, *, twice=False):
        """Measure candidates as these settings say."""
        return timing.in_turns(candidates, rounds=self.rounds, budget=self.budget, twice=twice, notify=self.notify)


QUICK = dict(sizes=(2**20,), counts=(10, 1000), rounds=25, budget=3.0)
FULL = dict(sizes=(2**20, 2**24), counts=(10, 100, 1000, 10_000), rounds=100, budget=20.0)


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement: figures by the names of `report.COLUMNS`, or what is wrong with the answer."""

    section: str
    workload: str
    implementation: str
    figures: dict
    fault: str | None = None


def flat(settings):
    """One buffer on the device, against what memory allows and what users write."""
    for n in settings.sizes:
        workload = workloads.flat(settings.seed, n)
        results = settings.in_turns(_candidate(i, workload, n, workload.host.nbytes) for i in peers.FLAT)
        yield from _rows("flat", f"{_power(n)}, mean 100, float32", results, "ns", compiled=True,
                         over={"over_add": "jit(x + 1)", "over_copy": "np.copy"})  # fmt: skip
    workload = workloads.flat(settings.seed, 2**16)
    for implementation in (*peers.OURS_NATIVE[:1], peers.OURS_XLA, peers.ASSOCIATIVE):
        settings.notify(f"compiling {implementation.name}")
        result = timing.first_call(_candidate(implementation, workload, 2**16))
        yield Row("flat", "compiles at n = 2^16", result.candidate.name, _compiled(result), result.fault)


def lists(settings):
    """The drop-in call on a list of arrays."""
    yield "Lengths are uniform from 1 to 199. Compiles are those of the first call. 'Again' is a second call right after each."
    over = {"over_numpy": "np.cumsum loop, NumPy in", "over_jit": "warm jit loop, JAX in"}
    for count in settings.counts:
        workload = workloads.arrays(settings.seed, count)
        results = settings.in_turns([_candidate(i, workload, count) for i in peers.LISTS], twice=True)
        yield from _rows("lists", f"{count:,} arrays", results, "us", compiled=True, over=over)
    yield "One call each with nothing compiled. Every length that JAX has not seen costs the loop a compile, hence so few arrays."
    settings.notify("cold calls")
    sample = workloads.arrays(settings.seed + 1, _SAMPLE)
    for name, function in (("jit loop, JAX in", peers.jit_loop), ("segmented_cumsum, JAX in", segmented_cumsum)):
        yield _cold_row(f"cold, {_SAMPLE} sampled", name, function, sample)
    yield "Each length from 1 to 1,000 once."
    settings.notify("1,000 new lengths")
    new = workloads.new_lengths(settings.seed, 1000)
    yield _cold_row("cold, 1,000 new lengths", "segmented_cumsum, JAX in", segmented_cumsum, new)


def family(settings):
    """Every operation by xla, and by native where it serves, and what users write instead."""
    n = 2**20
    workload = workloads.flat(settings.seed, n)
    for what, operations, made in (("scans", SCANS, ()), ("from rows to rows", SCANS[:1] + ROWS, ROW_PEERS)):
        over = {"over_cumsum": "cumsum"} | ({"over_scatters": SCATTERS.name} if made else {})
        results = settings.in_turns(_of_family(operations, made, workload))
        yield from _rows("family", f"{what}, {_power(n)}, mean 100, float32", results, "ns", compiled=True, over=over)
    for law in workloads.LAWS[1:3]:
        results = settings.in_turns(_of_family(REDUCTIONS, REDUCTION_PEERS, workloads.flat(settings.seed, n, law)))
        yield from _rows("family", f"reductions, {_power(n)}, {law.name}, float32", results, "ns", compiled=True,
                         over={"over_segment_sum": SEGMENT_SUM.name, "over_segment_max": SEGMENT_MAX.name})  # fmt: skip


def _of_family(operations, made, workload):
    """Candidates of a table: operations of the family under jit, and peers."""
    owed = {operation.name: operation for operation in operations}

    def candidate(name, call, operation):
        return timing.Candidate(name, call, lambda got: answers.fault(got, operation.answer(workload)), len(workload.host))

    for operation in operations:
        for machine in ("xla", *(("native",) if operation.native and peers.OURS_NATIVE else ())):
            call = jax.jit(partial(operation.call, implementation=machine))
            name = operation.name if machine == "xla" else f"{operation.name}, {machine}"
            yield candidate(name, partial(call, workload.device, workload.prepared), operation)
    for peer in made:
        call = candidate(peer.name, peer.prepare(workload), owed[peer.owes])
        yield dataclasses.replace(call, on_jax=not peer.on_host)


def dtypes(settings):
    """One buffer for each dtype; 64-bit ones inside a scope of x64."""
    n = 2**20
    candidates = []
    for dtype in _DTYPES:
        candidates.append(_ours(dtype, workloads.flat(settings.seed, n, dtype=jnp.dtype(dtype)), n))
    yield from _rows("dtypes", f"{_power(n)}, mean 100, segmented_cumsum prepared", settings.in_turns(candidates), "ns",
                     over={"over_float32": "float32"})  # fmt: skip


def features(settings):
    """As many scalars, in rows of more and more features."""
    candidates = []
    for f in _FEATURES:
        n = 2**20 // f
        workload = workloads.flat(settings.seed, n, feature=() if f == 1 else (f,))
        candidates.append(_ours(f"f = {f}", workload, n * f))
    yield "Each element is a scalar; segments have 100 rows on average, of f scalars each."
    yield from _rows("features", "n * f near 2^20, float32, segmented_cumsum prepared", settings.in_turns(candidates), "ns",
                     over={"over_one": "f = 1"})  # fmt: skip


def laws(settings):
    """One buffer cut in several ways, by each machine and by numba, all in turns."""
    yield from (f"{law.name}: {law.sentence}" for law in workloads.LAWS)
    implementations = (*peers.OURS_NATIVE[:1], peers.OURS_XLA, peers.NUMBA)
    for n in settings.sizes:
        cut = {law.name: workloads.flat(settings.seed, n, law) for law in workloads.LAWS}
        made = {(i.name, law): _candidate(i, workload, n, workload.host.nbytes) for law, workload in cut.items()
                for i in implementations}  # fmt: skip
        candidates = [dataclasses.replace(c, name=f"{of}; {law}", clear=False) for (of, law), c in made.items()]
        results = dict(zip(made, settings.in_turns(candidates)))
        for implementation in implementations:
            of_it = {law: results[implementation.name, law] for law in cut}
            several = {law: r for law, r in of_it.items() if r.seconds}
            best = min((r for law, r in several.items() if law != workloads.ALL_ONES.name), key=lambda r: r.median, default=None)
            for law, result in of_it.items():
                over = {"over_prange": results[peers.NUMBA.name, law]} | ({"over_best": best} if best else {})
                yield _row("laws", f"{_power(n)}, float32, {implementation.name}", law, result, "ns", over)
            if best:
                ratios = {law: r.over(best) for law, r in several.items()}
                ones = ratios.pop(workloads.ALL_ONES.name, None)
                worst = max(ratios, key=ratios.get)
                yield f"worst / best: {ratios[worst]:.2f} ({worst})" + (f"; all ones / best: {ones:.2f}" if ones else "")


SECTIONS = {section.__name__: section for section in (flat, lists, family, dtypes, features, laws)}


# Pieces --------------------------------------------------------------------------------------------------------------


def _power(n):
    return f"n = 2^{n.bit_length() - 1}"


def _candidate(implementation, workload, units, nbytes=0):
    return timing.Candidate(implementation.name, implementation.prepare(workload),
                            lambda got: answers.fault(got, implementation.answer(workload)), units, 2 * nbytes,
                            implementation.on_jax, implementation.clear)  # fmt: skip


def _ours(name, workload, units):
    """The flat call on a workload, in the scope that its dtype needs."""
    values, segments = workload.device, workload.prepared

    def wide():
        with jax.enable_x64(True):
            return segmented_cumsum(values, segments)

    def fault(got):
        # The answer is made here and let go: those of a whole table are gigabytes.
        return answers.fault(got, answers.cumsums(workload.host, workload.lengths))

    call = wide if workload.wide else lambda: segmented_cumsum(values, segments)
    return timing.Candidate(name, call, fault, units, 2 * workload.host.nbytes)


def _rows(section, workload, results, unit, *, over, compiled=False):
    """Rows of one table: times, and ratios to the rows that `over` names."""
    timed = {r.candidate.name: r for r in results}
    bases = {key: timed[base] for key, base in over.items() if base in timed}
    for result in results:
        yield _row(section, workload, result.candidate.name, result, unit, bases, compiled)


def _row(section, workload, name, result, unit, over, compiled=False):
    """One row: times, ratios to the results in `over`, and what the first call compiled."""
    figures = {}
    if result.seconds:
        figures = dict(ms=1e3 * result.median, min_ms=1e3 * min(result.seconds), spread=result.spread)
        figures[unit] = {"ns": 1e9, "us": 1e6}[unit] * result.median / result.candidate.units
        if result.again:
            figures["again"] = 1e6 * statistics.median(result.again) / result.candidate.units
        if result.candidate.moved:
            figures["gb_s"] = result.candidate.moved / result.median / 1e9
        figures |= {key: result.over(base) for key, base in over.items() if base.seconds}
        figures |= _compiled(result) if compiled else {}
        figures["rounds"] = len(result.seconds)
    return Row(section, workload, name, figures, result.fault)


def _compiled(result):
    """What the first call compiled, for calls that JAX has a part in."""
    return dict(compile_s=result.first.seconds, compiles=result.first.number) if result.first.number else {}


def _cold_row(name, implementation, function, workload):
    """The row of one call of a function of a list of JAX arrays, with nothing compiled."""
    arrays = workload.device
    result = timing.first_call(
        timing.Candidate(
            implementation,
            lambda: function(arrays),
            lambda got: answers.fault(got, workload.flat.answer),
            len(arrays),
            clear=True,
        )
    )
    seconds = result.first_seconds
    figures = dict(total_s=seconds, us=1e6 * seconds / len(arrays), **_compiled(result)) if result.fault is None else {}
    return Row("lists", name, implementation, figures, result.fault)
