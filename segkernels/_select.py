"""Which machine serves a verb: the table, the choice, and the reason why not another."""

import dataclasses
from collections.abc import Callable
from types import ModuleType

import jax

from segkernels import _check, _compat
from segkernels._algebra import itself
from segkernels._config import Config, default_walk
from segkernels.kernels import native, pallas_tpu, xla

PLATFORMS = ("cpu", "tpu", "cuda", "rocm")


@dataclasses.dataclass(frozen=True)
class Machine:
    """A way to run the verbs.

    Attributes:
      name: what it is asked for by.
      platforms: those it runs on.
      kernels: its verbs, or None while there are none.
      interpreted: whether JAX's interpreter runs it on a CPU here and now, for those who ask for it.
    """

    name: str
    platforms: tuple[str, ...]
    kernels: ModuleType | None = None
    interpreted: Callable[[], bool] = bool


# The order of preference.
MACHINES = (
    Machine("pallas_gpu", ("cuda",)),
    Machine("pallas_tpu", ("tpu",), pallas_tpu, _compat.tpu_interpreter),
    Machine("native", ("cpu",), native),
    Machine("xla", PLATFORMS, xla),
)
NAMES = tuple(machine.name for machine in MACHINES)


@dataclasses.dataclass(frozen=True)
class Choice:
    """A wish for a machine: who made it, whether it is an error if it cannot be served, and whether memory may be reused.

    It binds the verb that the user called. Verbs that derivative rules make follow it where it can be served.
    """

    call: str
    config: Config
    strict: bool = True
    donate: bool = False

    def derived(self) -> "Choice":
        """The same wish for the verbs of a derivative, whose operands are not the caller's to give."""
        return dataclasses.replace(self, strict=False, donate=False)


@dataclasses.dataclass(frozen=True)
class Call:
    """A verb as machines are asked about it; `of`: what a reduction makes of rows, `exporting`: whether for `jax.export`."""

    verb: str
    monoid: object
    operands: tuple[jax.core.ShapedArray, ...]
    choice: Choice
    of: Callable = itself
    exporting: bool = False

    def __str__(self):
        monoid = f" {self.monoid}" if self.monoid else ""
        return f"{self.verb}{monoid} of {', '.join(a.str_short() for a in self.operands)}"


def requested(call: str, implementation, donate=False) -> Choice:
    """The choice that the arguments ``implementation=`` and ``donate=`` make."""
    config = implementation if isinstance(implementation, Config) else Config(implementation)
    if not all(x is None or isinstance(x, str) for x in (config.implementation, config.walk)):
        raise TypeError(f"{call}: `implementation` must be None, a name, or a `Config` of names, got {config}")
    if config.implementation is not None and config.implementation not in NAMES:
        raise ValueError(
            f"{call}: `implementation` must be None, one of {', '.join(NAMES)}, or a `Config`, got {config.implementation!r}"
        )
    walks = sorted({*xla.SCAN_WALKS, *xla.REDUCE_WALKS})
    if config.walk is not None and (config.walk not in walks or config.implementation != "xla"):
        raise ValueError(f"{call}: `implementation` may set a walk of xla, one of {', '.join(walks)}, got {config}")
    if config.threads is not None:
        if config.implementation != "native":
            raise ValueError(f"{call}: `implementation` may set threads of native, got {config}")
        if isinstance(config.threads, bool) or not isinstance(config.threads, int) or not 1 <= config.threads <= 64:
            raise ValueError(f"{call}: `implementation` must ask for 1 to 64 threads, got {config.threads!r}")
    return Choice(call, config, donate=_check.flag(call, "donate", donate))


def plain(choice: Choice, what: str) -> None:
    """Refuse an explicit choice of a machine for what is plain JAX on every one."""
    if choice.config.implementation not in (None, "xla"):
        raise ValueError(
            f"{choice.call}: `implementation` {choice.config.implementation!r} cannot serve it: {what}, in plain JAX everywhere; "
            "choose 'xla' or leave it to None"
        )


def unsupported(machine: Machine, call: Call, platform: str) -> str | None:
    """Why a machine cannot serve a call, or None if it can."""
    asked = call.choice.config.implementation == machine.name
    if platform not in machine.platforms and not (asked and platform == "cpu" and machine.interpreted()):
        return f"runs on {' and '.join(machine.platforms)}, and this call is for {platform}"
    if machine.kernels is None:
        return "this version of segkernels has no such kernel"
    return machine.kernels.unsupported(call)


def choose(call: Call, platform: str) -> tuple[Machine, Config]:
    """The machine for a call, and its `Config` filled in.

    An explicit choice is served or refused, never replaced; without one the first machine that serves is taken.
    """
    config = call.choice.config
    for machine in MACHINES:
        if config.implementation not in (None, machine.name):
            continue
        reason = unsupported(machine, call, platform)
        if reason is None:
            walk = config.walk or default_walk(platform) if machine.name == "xla" else None
            return machine, dataclasses.replace(config, implementation=machine.name, walk=walk)
        if config.implementation is not None:
            if call.choice.strict:
                raise ValueError(
                    f"{call.choice.call}: `implementation` {config.implementation!r} cannot serve {call}: {reason}; choose "
                    "another or leave it to None"
                )
            return choose(dataclasses.replace(call, choice=Choice(call.choice.call, Config())), platform)
    raise AssertionError("the xla machine serves every call")


def explanation(call: Call, platform: str) -> list[str]:
    """Lines that say which machine serves a call and why each other one does not."""
    chosen, config = choose(call, platform)
    lines = [f"{call}: {chosen.name}{f', walk {config.walk}' if config.walk else ''}"]
    for machine in MACHINES:
        if machine is not chosen:
            reason = unsupported(machine, call, platform) or f"could serve, but {chosen.name} was asked for or comes first"
            lines.append(f"  not {machine.name}: {reason}")
    return lines
