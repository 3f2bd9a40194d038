"""Counts what XLA compiles, by the events that JAX reports."""

import functools
from typing import NamedTuple

import jax


class Compiled(NamedTuple):
    """How many modules were compiled, and the seconds that the compiler of the backend took for them."""

    number: int
    seconds: float


class Counter:
    """A listener that adds up compiles from the time it is made."""

    def __init__(self):
        self.number, self.seconds = 0, 0.0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event, seconds, **_):
        if "backend_compile" in event:
            self.number, self.seconds = self.number + 1, self.seconds + seconds

    def of(self, function):
        """Call a function of no arguments; its result and what was `Compiled` meanwhile."""
        number, seconds = self.number, self.seconds
        out = function()
        return out, Compiled(self.number - number, self.seconds - seconds)


@functools.cache
def counter() -> Counter:
    """The one counter: not every JAX can take a listener back."""
    return Counter()
