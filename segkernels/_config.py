"""What a caller, or we, may choose about how a verb is walked. A choice changes no result beyond rounding and signs of 0."""

import dataclasses
import numbers


@dataclasses.dataclass(frozen=True)
class Config:
    """How to walk, where a name alone does not say it: pass it as ``implementation=``.

    Attributes:
      implementation: the name of a machine (``"xla"``, ``"native"``, ``"pallas_tpu"``, ``"pallas_gpu"``), or None for
        the best one that serves the call.
      walk: of the ``"xla"`` machine: ``"loop"``, ``"associative"`` or, for reductions, ``"segment_sum"``; None for
        the best one.
      threads: of the ``"native"`` machine: how many to use; None for those of the process where they pay.

    >>> Config(walk="associative")
    Config(implementation='xla', walk='associative', threads=None)
    """

    implementation: str | None = None
    walk: str | None = None
    threads: int | None = None

    def __post_init__(self):
        if isinstance(self.threads, numbers.Integral) and not isinstance(self.threads, bool):
            object.__setattr__(self, "threads", int(self.threads))
        if self.walk is not None and self.implementation is None:
            object.__setattr__(self, "implementation", "xla")
        if self.threads is not None and self.implementation is None:
            object.__setattr__(self, "implementation", "native")


def default_walk(platform: str) -> str:
    """The walk of the XLA machine: a loop over rows is native on a CPU and serial anywhere else."""
    return "loop" if platform == "cpu" else "associative"
