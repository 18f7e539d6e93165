"""OSWorld's tasks on a guest that speaks its interface."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from verl_gui.actions import Action, ActionType, to_pyautogui
from verl_gui.envs.base import EnvFailure, Observation, StepResult
from verl_gui.envs.osworld.client import GuestClient
from verl_gui.envs.osworld.guests import FixedGuest, GuestSource, LocalGuests
from verl_gui.envs.osworld.scoring import OsworldScorer, guest_facts
from verl_gui.envs.osworld.setup_steps import Preparation, check_steps
from verl_gui.tasks.task import Task, TaskFormatError

PYTHON_VARIABLE = "VERL_GUI_OSWORLD_PYTHON"
"""Environment variable with the interpreter that has ``desktop_env``."""

_POLL_S = 0.2
_LAST_ACTIONS = {
    ActionType.FINISHED: "DONE",
    ActionType.FAIL: "FAIL",
    ActionType.CALL_USER: "FAIL",
    ActionType.WAIT: "WAIT",
}


class OsworldEnv:
    """One guest that OSWorld's tasks are played on. Implements ``GuiEnv``.

    Steps are sent as pyautogui source of calls with literal arguments. Scores are those of OSWorld's own
    evaluators, in a process of their own; only the rule about giving up is applied here, since it needs no
    look at the guest: FAIL (or calling the user) is right for infeasible tasks and wrong for all others.

    Args:
        screen: width and height in pixels.
        guest: ``local``, the address of a guest that somebody else keeps, or an own source of guests.
        revert_command: see :class:`.guests.FixedGuest`.
        osworld_python: interpreter with ``desktop_env``; None takes the variable
            ``VERL_GUI_OSWORLD_PYTHON``. Without one only infeasible tasks can be scored.
        password: the guest user's password.
        cache: directory for downloads and the evaluators' files; None takes one in the temporary directory.
        pause_s: wait between the actions of a step and the look at the screen.
        start_timeout_s: longest wait for a guest to show its screen.
        evaluate_timeout_s: longest evaluation.
        chromium_port, vlc_port: where the guest's browser and player can be reached, for the evaluators.
    """

    def __init__(
        self,
        screen: tuple[int, int] = (1920, 1080),
        *,
        guest: str | GuestSource = "local",
        revert_command: Sequence[str] | None = None,
        osworld_python: str | None = None,
        password: str = "password",
        cache: str | None = None,
        pause_s: float = 1.0,
        start_timeout_s: float = 180.0,
        evaluate_timeout_s: float = 120.0,
        chromium_port: int = 9222,
        vlc_port: int = 8080,
    ) -> None:
        self.screen = (int(screen[0]), int(screen[1]))
        self._password, self._pause_s, self._start_timeout_s = password, pause_s, start_timeout_s
        self._cache = Path(cache or Path(tempfile.gettempdir()) / "verl-gui-osworld-cache")
        self._ports = {"chromium_port": chromium_port, "vlc_port": vlc_port}
        self._guests = _source(guest, self.screen, revert_command)
        self._paused = False
        python = osworld_python or os.environ.get(PYTHON_VARIABLE)
        self._scorer = OsworldScorer(python, self._cache / "scores", evaluate_timeout_s) if python else None
        self._client: GuestClient | None = None
        self._task: Task | None = None
        self._last = ""
        self._terminated = True
        self._closed = False

    def reset(self, task: Task, *, seed: int | None = None) -> Observation:
        """Prepare ``task``, which has one instance, on a fresh guest: ``seed`` changes nothing.

        Raises:
            TaskFormatError: this guest or this version of OSWorld cannot do the task; it says why.
            EnvFailure: ``reset``, ``screenshot``, ``timeout`` or ``dead``; the guest is not used again.
        """
        if self._closed:
            raise EnvFailure("dead", "the environment is closed")
        check_steps(task)
        if self._scorer is None and not task.infeasible:
            why = f"OSWorld's evaluators are needed; set osworld_python or {PYTHON_VARIABLE}"
            raise TaskFormatError(task.id, "evaluator", why)
        self._task, self._client, self._terminated, self._paused = None, None, True, False
        try:
            client = GuestClient(self._guests.fresh())
            self._wait_for(client)
            if self._scorer is not None and not task.infeasible:
                self._scorer.check(task, self._facts(client))
            Preparation(client, self.screen, self._password, self._cache).prepare(task)
            observation = Observation(client.screenshot(self.screen), {"instruction": task.instruction})
        except BaseException:
            self._guests.close()
            raise
        self._client, self._task, self._last, self._terminated = client, task, "", False
        return observation

    def step(self, actions: Sequence[Action]) -> StepResult:
        """Carry out ``actions`` in the guest and look again.

        Raises:
            RuntimeError: the episode is over, or none was started.
            EnvFailure: ``step``, ``screenshot``, ``timeout`` or ``dead``.
        """
        if self._terminated or self._client is None:
            raise RuntimeError("no episode is running; call reset() first")
        self._resume()
        terminal = next((action.type for action in actions if action.type.is_terminal), None)
        source = to_pyautogui(actions)
        if source:
            result = self._client.execute(["python", "-c", source], kind="step")
            if result.code:
                raise EnvFailure("step", f"the guest could not act: {result.error[-300:]}")
        if actions:
            self._last = _LAST_ACTIONS.get(terminal or actions[-1].type, "ACT")
            time.sleep(self._pause_s)
        self._terminated = terminal is not None
        picture = self._client.screenshot(self.screen)
        info = {"ended_by": terminal.value if terminal else None}
        return StepResult(Observation(picture), self._terminated, info)

    def evaluate(self) -> float:
        """OSWorld's score of the guest as it is.

        Raises:
            RuntimeError: no task was started.
            EnvFailure: ``evaluate``, ``timeout`` or ``dead``.
        """
        if self._task is None or self._client is None:
            raise RuntimeError("no episode to score; call reset() first")
        gave_up = self._last == "FAIL"
        if self._task.infeasible or gave_up:
            return float(self._task.infeasible and gave_up)
        self._resume()
        # A guest that is gone would look like a task that is not done.
        self._client.screenshot(self.screen)
        assert self._scorer is not None
        score = self._scorer.score(self._task, self._facts(self._client), self._last)
        self._client.screenshot(self.screen)
        return score

    def pause(self) -> None:
        """Stop the guest until the next call."""
        if self._client is not None and not self._paused:
            self._guests.pause()
            self._paused = True

    def close(self) -> None:
        """Give back the guest and end the scoring process. Safe to call again."""
        self._closed = self._terminated = True
        self._client = self._task = None
        self._guests.close()
        if self._scorer is not None:
            self._scorer.close()

    def _resume(self) -> None:
        if self._paused:
            self._guests.resume()
        self._paused = False

    def _facts(self, client: GuestClient) -> dict[str, object]:
        return guest_facts(client.url, self.screen, self._password, **self._ports)

    def _wait_for(self, client: GuestClient) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while True:
            try:
                client.screenshot(self.screen)
                return
            except EnvFailure as failure:
                if time.monotonic() > deadline:
                    why = f"the guest showed no screen within {self._start_timeout_s:g} s: {failure.message}"
                    raise EnvFailure("reset", why) from failure
            time.sleep(_POLL_S)


def _source(
    guest: str | GuestSource, screen: tuple[int, int], revert_command: Sequence[str] | None
) -> GuestSource:
    if not isinstance(guest, str):
        return guest
    return LocalGuests(screen) if guest == "local" else FixedGuest(guest, revert_command)
