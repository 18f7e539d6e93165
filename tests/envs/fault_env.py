"""An environment that breaks on command: the faults of real desktops without a desktop."""

from __future__ import annotations

import io
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from verl_gui.actions import Action
from verl_gui.envs import EnvFailure, Observation, StepResult
from verl_gui.envs.leftovers import private_directory
from verl_gui.tasks.task import Task

FOREVER_S = 3600.0


def png(size: tuple[int, int] = (64, 48)) -> bytes:
    """A complete PNG of this size."""
    buffer = io.BytesIO()
    Image.new("RGB", size, (10, 200, 30)).save(buffer, "PNG")
    return buffer.getvalue()


def faulty_task(fault: str = "", *, at: str = "step", times: int = 1_000, marker: Path | str = "") -> Task:
    """A task during which the environment shows ``fault``.

    Args:
        fault: ``raise``, ``bug``, ``hang``, ``die``, ``half_png``, ``no_png``, ``wrong_size`` or none.
        at: the call it happens in: ``reset``, ``step`` or ``evaluate``.
        times: how often, over all processes; counted in the file ``marker`` when that is given.
    """
    fields = {"fault": fault, "at": at, "times": times, "marker": str(marker)}
    return Task(id=f"{fault or 'good'}-{at}", config=({"type": "fault", "parameters": fields},))


class FaultEnv:
    """A :class:`GuiEnv` whose task says what goes wrong.

    Args:
        start_fault: ``raise`` or ``hang`` while being built.
        child: run ``sleep`` with this argument, as a process that has to be gone afterwards.
        step_s: duration of a healthy step. reset_s: of a reset.
        directory: keep a private directory and never remove it; its path is in the info of a reset.
        log: file that every ``reset`` is noted in, as ``pid serial-number-of-the-environment task``.
    """

    built = 0

    def __init__(
        self,
        *,
        start_fault: str = "",
        child: str = "",
        step_s: float = 0.0,
        reset_s: float = 0.0,
        directory: bool = False,
        log: str = "",
    ) -> None:
        FaultEnv.built += 1
        self.screen = (64, 48)
        self._serial, self._step_s, self._reset_s, self._log = FaultEnv.built, step_s, reset_s, log
        self._fault: dict[str, Any] = {}
        if start_fault == "raise":
            raise EnvFailure("reset", "asked to fail at start")
        if start_fault == "hang":
            time.sleep(FOREVER_S)
        self._directory = private_directory("drill") if directory else None
        self._child: subprocess.Popen[bytes] | None = None
        if child:
            # Like bubblewrap's --die-with-parent: dies with the thread that started it.
            self._child = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "sleep", child])

    def reset(self, task: Task, *, seed: int | None = None) -> Observation:
        self._fault = dict(task.config[0]["parameters"]) if task.config else {}
        time.sleep(self._reset_s)
        if self._log:
            with open(self._log, "a") as log:
                log.write(f"{os.getpid()} {self._serial} {task.id}\n")
        info = {"pid": os.getpid(), "serial": self._serial, "seed": seed, "directory": str(self._directory)}
        return Observation(self._screenshot("reset"), info)

    def step(self, actions: Sequence[Action]) -> StepResult:
        time.sleep(self._step_s)
        return StepResult(Observation(self._screenshot("step")), terminated=False)

    def evaluate(self) -> float:
        self._screenshot("evaluate")
        return float(self._fault.get("score", 1.0))

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def _screenshot(self, call: str) -> bytes:
        fault = self._fault.get("fault") if self._fault.get("at") == call and self._due() else ""
        if fault == "raise":
            raise EnvFailure("step" if call == "step" else "reset", "asked to fail")
        if fault == "bug":
            raise KeyError("asked to have a bug")
        if fault == "hang":
            time.sleep(FOREVER_S)
        if fault == "die":
            os._exit(7)
        picture = png(self.screen)
        if fault == "half_png":
            return picture[: len(picture) // 2]
        if fault == "no_png":
            return None  # type: ignore[return-value]
        if fault == "wrong_size":
            return png((32, 32))
        return picture

    def _due(self) -> bool:
        """Whether the fault is still to be shown, over all processes."""
        marker = self._fault["marker"]
        if not marker:
            return True
        with open(marker, "ab+") as count:
            shown = count.tell()
            count.write(b"x")
        return shown < self._fault["times"]
