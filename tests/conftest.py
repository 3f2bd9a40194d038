"""Strictness for every test: no silent promotion of dtypes or ranks; warnings are errors (pyproject.toml)."""

import hypothesis
import jax
import numpy as np
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# `--hypothesis-profile=long` tries more.
hypothesis.settings.register_profile("usual", max_examples=100, deadline=None)
hypothesis.settings.register_profile("long", max_examples=10_000, deadline=None)
hypothesis.settings.load_profile("usual")


@pytest.fixture
def rng(request):
    """Random numbers seeded by the test's own name."""
    return np.random.default_rng(list(request.node.name.encode()))


class Counter:
    """Counts what JAX traces and compiles from the moment it is reset."""

    def __init__(self):
        self.compiles = self.traces = 0

    def reset(self):
        self.compiles = self.traces = 0

    def listen(self, event, duration, **_):
        del duration
        self.compiles += "backend_compile" in event
        self.traces += "jaxpr_trace" in event


_COUNTER = Counter()
jax.monitoring.register_event_duration_secs_listener(_COUNTER.listen)


@pytest.fixture
def counter():
    """A `Counter` from zero, with nothing compiled before."""
    jax.clear_caches()
    _COUNTER.reset()
    return _COUNTER
