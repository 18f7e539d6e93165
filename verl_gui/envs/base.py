"""The environment contract: what every GUI backend offers, and how it fails."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from verl_gui.actions import Action
from verl_gui.tasks.task import Task

_PNG_SIZE_AT = 16  # behind the signature and the beginning of the header chunk

FailureKind = Literal["reset", "step", "screenshot", "evaluate", "timeout", "capacity", "dead"]


class EnvFailure(RuntimeError):
    """The environment broke; the agent did nothing wrong.

    An episode that ends with this error is invalid: it has no score, and it must not reach training as a
    failed attempt.

    Attributes:
        kind: what was being done, or ``timeout`` / ``capacity`` / ``dead``.
        message: what happened, which value, what to do.
    """

    def __init__(self, kind: FailureKind, message: str) -> None:
        if kind not in get_args(FailureKind):
            raise ValueError(f"unknown failure kind {kind!r}; expected one of {get_args(FailureKind)}")
        super().__init__(f"[{kind}] {message}")
        self.kind: FailureKind = kind
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:  # exceptions of two arguments do not unpickle otherwise
        return (type(self), (self.kind, self.message))


@dataclass(frozen=True)
class Observation:
    """What the agent sees.

    Attributes:
        screenshot: the whole screen as PNG bytes, ``GuiEnv.screen`` pixels in size.
        info: facts beside the picture; ``instruction`` when the environment words the task at reset.
        timestamp: when it was taken, in seconds since the epoch by the clock of the environment's machine.
    """

    screenshot: bytes
    info: dict[str, Any] = field(default_factory=dict)
    timestamp: float = field(default_factory=time.time, compare=False)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the screenshot in pixels, as its header says."""
        width, height = struct.unpack_from(">II", self.screenshot, _PNG_SIZE_AT)
        return width, height


@dataclass(frozen=True)
class StepResult:
    """What one step led to.

    Attributes:
        observation: the screen after the actions.
        terminated: the task is over (the page says so, or the agent finished); further steps are refused.
        info: facts about the step.
    """

    observation: Observation
    terminated: bool
    info: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class GuiEnv(Protocol):
    """One desktop (or browser, or phone) that a single agent works on. Synchronous; not thread-safe.

    The order of calls is ``reset (step)* evaluate`` any number of times, then ``close`` once or more.
    Every method raises :class:`EnvFailure` when the environment is at fault, and nothing else for faults
    of its own; each returns within a bounded time.
    """

    screen: tuple[int, int]
    """Width and height of the screen in pixels."""

    def reset(self, task: Task, *, seed: int | None = None) -> Observation:
        """Prepare ``task`` from a clean state. The same task and seed give the same start."""
        ...

    def step(self, actions: Sequence[Action]) -> StepResult:
        """Carry out ``actions`` in order (possibly none) and look again."""
        ...

    def evaluate(self) -> float:
        """Score of the current state in [0, 1]."""
        ...

    def close(self) -> None:
        """Give back everything. Safe to call again, and after a failure."""
        ...


@runtime_checkable
class PausableEnv(Protocol):
    """What an environment may offer beside :class:`GuiEnv`: to rest while the policy thinks."""

    def pause(self) -> None:
        """Use no processor time until the next call, whatever that is; it wakes the environment by itself."""
        ...
