"""First calls, checked; then times, taken in turns."""

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable

import jax

from bench.compiles import Compiled, counter

_LEAST_ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Something to measure.

    Attributes:
      name: what tables call it.
      call: what is timed, without arguments.
      fault: what is wrong with a result of `call`, or None.
      units: how many elements, or arrays, a call works on: times are given for each.
      moved: the bytes that a call must at least read and write.
      on_jax: whether to wait for the result; NumPy has done its work when it returns.
      clear: whether to drop all that is compiled before the first call, as one must that shares functions with others.
    """

    name: str
    call: Callable[[], object]
    fault: Callable[[object], str | None]
    units: int
    moved: int = 0
    on_jax: bool = True
    clear: bool = False

    def run(self):
        """Call, and wait for the result."""
        out = self.call()
        return jax.block_until_ready(out) if self.on_jax else out


@dataclasses.dataclass(frozen=True)
class Result:
    """What was measured: seconds of each round (none if there is a fault), and what the first call compiled.

    `again` holds those of a second call right after each, where one was asked for.
    """

    candidate: Candidate
    fault: str | None
    first: Compiled
    first_seconds: float
    seconds: tuple[float, ...] = ()
    again: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The distance between the quartiles as a part of the median."""
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median

    def over(self, other: "Result") -> float:
        """The time of a unit over that of another: the median over rounds, for what slows a round slows both."""
        ratio = statistics.median(a / b for a, b in zip(self.seconds, other.seconds, strict=True))
        return ratio * other.candidate.units / self.candidate.units


def first_call(candidate: Candidate) -> Result:
    """Call once, and check the result."""
    if candidate.clear:
        jax.clear_caches()
    start = time.perf_counter()
    try:
        out, compiled = counter().of(candidate.run)
    except Exception as error:  # noqa: BLE001 - one broken peer must not end the run, and must not pass for a fast one
        return Result(candidate, f"{type(error).__name__}: {error}".splitlines()[0], Compiled(0, 0.0), 0.0)
    seconds = time.perf_counter() - start
    return Result(candidate, candidate.fault(out), compiled, seconds)


def in_turns(candidates, *, rounds: int, budget: float, twice=False, notify=lambda text: None) -> list[Result]:
    """Check each candidate, then time the right ones in turns: A B C A B C.

    Turns let a change of the machine's mood meet all alike, and each finds in the caches what the others left there; a
    second call, with `twice`, finds what the first one left. The collector is off meanwhile, as in `timeit`, and a
    result is let go after the clock has stopped.

    Args:
      candidates: what to measure.
      rounds: how many times each.
      budget: seconds after which no round begins, but for the least number of rounds.
      twice: whether each is called twice in its turn, and both are timed.
      notify: gets a line on where we are.
    """
    firsts = []
    for candidate in candidates:
        notify(f"checking {candidate.name}")
        firsts.append(first_call(candidate))
    right = [first.candidate for first in firsts if first.fault is None]
    notify("warming up")
    for candidate in right:
        candidate.run()
    taken = {candidate.name: ([], []) if twice else ([],) for candidate in right}
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + budget
        for done in range(rounds):
            if done >= _LEAST_ROUNDS and time.perf_counter() > end:
                break
            notify(f"round {done + 1} of at most {rounds}")
            for candidate in right:
                for times in taken[candidate.name]:
                    start = time.perf_counter()
                    out = candidate.run()
                    times.append(time.perf_counter() - start)
                    del out
    finally:
        gc.enable()
    measured = [map(tuple, taken.get(first.candidate.name, ())) for first in firsts]
    return [dataclasses.replace(first, **dict(zip(("seconds", "again"), times))) for first, times in zip(firsts, measured)]
