"""What client, server and the processes of environments say to each other: MessagePack, never pickle.

Every message is a tagged struct that is checked when decoded. A server that is taken over can therefore give
wrong pictures and scores, but cannot run code in its clients, nor can a client in the server.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from verl_gui.actions import Action
from verl_gui.envs.base import EnvFailure, FailureKind, Observation, StepResult
from verl_gui.tasks.task import Task, TaskFormatError

CONTENT_TYPE = "application/msgpack"
T = TypeVar("T")


class WireError(ValueError):
    """Bytes that are no message of the expected kind; the message says why."""


# -- calls ------------------------------------------------------------------------------------------------


class StartCall(msgspec.Struct, tag="start", frozen=True):
    """First word to the process of an environment: what to build."""

    backend: str
    options: dict[str, Any]


class ResetCall(msgspec.Struct, tag="reset", frozen=True):
    """``GuiEnv.reset``; the task as ``Task.to_dict()`` gives it."""

    task: dict[str, Any]
    seed: int | None = None


class StepCall(msgspec.Struct, tag="step", frozen=True):
    """``GuiEnv.step``; the actions check themselves when decoded."""

    actions: tuple[Action, ...]


class EvaluateCall(msgspec.Struct, tag="evaluate", frozen=True):
    """``GuiEnv.evaluate``."""


class PauseCall(msgspec.Struct, tag="pause", frozen=True):
    """``PausableEnv.pause``."""


EnvCall = ResetCall | StepCall | EvaluateCall | PauseCall
"""What a client may ask of the environment it holds."""

# -- answers ----------------------------------------------------------------------------------------------


class Started(msgspec.Struct, tag="started", frozen=True):
    """The environment is built: width and height of its screen in pixels."""

    screen: tuple[int, int]


class Seen(msgspec.Struct, tag="seen", frozen=True):
    """Answer to a reset or a step: the picture, and what belongs to it."""

    screenshot: bytes
    info: dict[str, Any]
    timestamp: float
    terminated: bool = False
    step_info: dict[str, Any] = {}  # msgspec copies it


class Scored(msgspec.Struct, tag="scored", frozen=True):
    """Answer to an evaluation."""

    score: float


class Done(msgspec.Struct, tag="done", frozen=True):
    """Answer to a call that gives nothing back."""


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """The environment broke: an :class:`EnvFailure`."""

    kind: FailureKind
    message: str


class BadTask(msgspec.Struct, tag="bad_task", frozen=True):
    """The task cannot be used: a :class:`TaskFormatError`."""

    file: str
    field: str
    why: str


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """The call came in the wrong order, such as a step after the end of the episode."""

    message: str


Answer = Started | Seen | Scored | Done | Failed | BadTask | Refused


class LeaseGrant(msgspec.Struct, frozen=True):
    """One environment of a server, lent to a client until it gives it back or falls silent.

    Attributes:
        id: its secret name.
        screen: width and height in pixels.
        ttl_s: how long it lives without a call or a renewal.
        timeout_s: the server's own limit of each call, by tag.
    """

    id: str
    screen: tuple[int, int]
    ttl_s: float
    timeout_s: dict[str, float]


class ServerStatus(msgspec.Struct, frozen=True):
    """How busy a server is."""

    backend: str
    capacity: int
    leased: int


def encode(message: Any) -> bytes:
    """The bytes of a message.

    Raises:
        WireError: it holds something that is no plain data.
    """
    try:
        return msgspec.msgpack.encode(message)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"cannot send a {type(message).__name__}: {error}") from error


def decode(data: bytes, kind: Any) -> Any:
    """The message of type ``kind`` (a struct or a union of structs) in ``data``.

    Raises:
        WireError: it is none.
    """
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"{len(data)} bytes that begin with {data[:24]!r}: {error}") from error


def failure_of(error: Exception, kind: FailureKind) -> Answer:
    """The answer that carries ``error``; what is no failure of its own becomes one of ``kind``."""
    if isinstance(error, EnvFailure):
        return Failed(error.kind, error.message)
    if isinstance(error, TaskFormatError):
        return BadTask(error.file, error.field, error.why)
    if isinstance(error, RuntimeError):
        return Refused(str(error))
    return Failed(kind, f"{type(error).__name__}: {error}")


def raise_failure(answer: Answer) -> None:
    """Raise what an answer reports, if it reports an error.

    Raises:
        EnvFailure, TaskFormatError, RuntimeError: as the environment did.
    """
    if isinstance(answer, Failed):
        raise EnvFailure(answer.kind, answer.message)
    if isinstance(answer, BadTask):
        raise TaskFormatError(answer.file, answer.field, answer.why)
    if isinstance(answer, Refused):
        raise RuntimeError(answer.message)


def seen(observation: Observation, step: StepResult | None = None) -> Seen:
    """The answer that carries an observation, or a step's result."""
    return Seen(
        observation.screenshot,
        observation.info,
        observation.timestamp,
        step.terminated if step else False,
        step.info if step else {},
    )


def observation_of(answer: Seen) -> Observation:
    """The observation in an answer."""
    return Observation(answer.screenshot, answer.info, answer.timestamp)


def task_of(call: ResetCall) -> Task:
    """The task in a call.

    Raises:
        TaskFormatError: it is none.
    """
    return Task.from_dict(call.task)
