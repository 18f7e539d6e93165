"""An environment that runs under another Python, in a process that is killed when it hangs."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import verl_gui
from verl_gui.actions import Action
from verl_gui.envs.base import EnvFailure, FailureKind, Observation, StepResult
from verl_gui.envs.leftovers import private_directory
from verl_gui.envs.osworld.env import PYTHON_VARIABLE
from verl_gui.envs.osworld.foreign_python import ForeignPython
from verl_gui.envs.remote import wire
from verl_gui.envs.worker import check_screenshot
from verl_gui.tasks.task import Task

_LENGTH = struct.Struct(">I")
_MAX_ANSWER_BYTES = 64 << 20
_CLOSE_TIMEOUT_S = 30.0


class ProcessEnv:
    """Implements ``GuiEnv`` and ``PausableEnv`` by asking a process of another interpreter.

    The process is killed after a failure, and the next reset starts another one.

    Args:
        python: the interpreter; it needs ``msgspec`` beside what the environment imports.
        factory: the environment there, as ``package.module:factory``.
        options: its arguments.
        start_timeout_s, reset_timeout_s, step_timeout_s, evaluate_timeout_s: longest such call.

    Raises:
        EnvFailure: ``reset``; it does not start.
    """

    def __init__(
        self,
        python: str,
        factory: str,
        options: dict[str, Any],
        *,
        start_timeout_s: float = 300.0,
        reset_timeout_s: float = 300.0,
        step_timeout_s: float = 120.0,
        evaluate_timeout_s: float = 180.0,
    ) -> None:
        self._python, self._factory, self._options = python, factory, options
        self._start_timeout_s = start_timeout_s
        self._timeouts = {"reset": reset_timeout_s, "step": step_timeout_s, "evaluate": evaluate_timeout_s}
        self._process: ForeignPython | None = None
        self._closed = False
        # Our package alone: the packages beside it are not for that interpreter.
        self._directory = private_directory("package")
        (self._directory / "verl_gui").symlink_to(Path(verl_gui.__file__).parent)
        try:
            self.screen = self._start()
        except BaseException:
            self.close()
            raise

    def reset(self, task: Task, *, seed: int | None = None) -> Observation:
        """Prepare ``task``, in a new process if the last one failed."""
        if self._closed:
            raise EnvFailure("dead", "the environment is closed")
        if self._process is None:
            self._start()
        return wire.observation_of(self._picture(wire.ResetCall(task.to_dict(), seed), "reset"))

    def step(self, actions: Sequence[Action]) -> StepResult:
        """Carry out ``actions`` and look again."""
        answer = self._picture(wire.StepCall(tuple(actions)), "step")
        return StepResult(wire.observation_of(answer), answer.terminated, answer.step_info)

    def evaluate(self) -> float:
        """Score of the current state in [0, 1]."""
        answer = self._ask(wire.EvaluateCall(), self._timeouts["evaluate"])
        if not isinstance(answer, wire.Scored) or not 0.0 <= answer.score <= 1.0:
            raise EnvFailure("evaluate", f"expected a score in [0, 1], got {answer!r:.200}")
        return answer.score

    def pause(self) -> None:
        """Let the environment rest until the next call."""
        self._ask(wire.PauseCall(), self._timeouts["step"])

    def close(self) -> None:
        """Close the environment and end its process. Safe to call again."""
        self._closed = True
        if self._process is not None:
            self._process.socket.close()  # it sees the end of its calls, and closes the environment
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.process.wait(_CLOSE_TIMEOUT_S)
        self._kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    # -- inside ---------------------------------------------------------------------------------------

    def _start(self) -> tuple[int, int]:
        self._process = ForeignPython(
            self._python,
            ["-m", "verl_gui.envs.server.host"],
            cwd=str(self._directory),
            variables={"PYTHONPATH": str(self._directory)},
        )
        answer = self._ask(wire.StartCall(self._factory, self._options), self._start_timeout_s)
        if not isinstance(answer, wire.Started):
            raise EnvFailure("reset", f"expected a start, got {answer!r:.200}")
        return answer.screen

    def _picture(self, question: wire.EnvCall, kind: FailureKind) -> wire.Seen:
        answer = self._ask(question, self._timeouts[kind])
        if not isinstance(answer, wire.Seen):
            raise EnvFailure(kind, f"expected a screenshot, got {answer!r:.200}")
        check_screenshot(answer.screenshot, self.screen)
        return answer

    def _ask(self, question: wire.StartCall | wire.EnvCall, timeout_s: float) -> wire.Answer:
        if self._process is None:
            raise EnvFailure("dead", "no process runs; reset() starts one")
        data, deadline = wire.encode(question), time.monotonic() + timeout_s
        try:
            self._process.socket.settimeout(timeout_s)
            self._process.socket.sendall(_LENGTH.pack(len(data)) + data)
            (length,) = _LENGTH.unpack(self._receive(_LENGTH.size, deadline))
            if length > _MAX_ANSWER_BYTES:
                raise wire.WireError(f"an answer of {length} bytes")
            answer = wire.decode(self._receive(length, deadline), wire.Answer)
        except TimeoutError as error:
            self._kill()
            raise EnvFailure("timeout", f"{self._factory} took longer than {timeout_s:g} s") from error
        except (OSError, EOFError, wire.WireError) as error:
            self._kill()
            raise EnvFailure("dead", f"the process of {self._factory} has ended: {error}") from error
        if isinstance(answer, wire.Failed):
            self._kill()
        wire.raise_failure(answer)
        return answer

    def _receive(self, count: int, deadline: float) -> bytes:
        assert self._process is not None
        data = bytearray()
        while len(data) < count:
            self._process.socket.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = self._process.socket.recv(min(1 << 20, count - len(data)))
            if not chunk:
                raise EOFError("it closed its socket")
            data += chunk
        return bytes(data)

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None


def osworld_desktop_env(
    screen: tuple[int, int] = (1920, 1080), *, osworld_python: str | None = None, **options: Any
) -> ProcessEnv:
    """The backend ``osworld-desktop-env``: the unmodified ``DesktopEnv`` in its own Python.

    Args:
        screen: width and height in pixels.
        osworld_python: see :class:`verl_gui.envs.osworld.env.OsworldEnv`.
        options: of :class:`.desktop_env_adapter.DesktopEnvAdapter`.

    Raises:
        ValueError: no interpreter is given.
        EnvFailure: ``reset``; it does not start.
    """
    python = osworld_python or os.environ.get(PYTHON_VARIABLE)
    if not python:
        raise ValueError(f"set osworld_python or {PYTHON_VARIABLE}; `verl-gui env osworld-venv` makes one")
    factory = "verl_gui.envs.osworld.desktop_env_adapter:DesktopEnvAdapter"
    return ProcessEnv(python, factory, {"screen": list(screen), **options})
