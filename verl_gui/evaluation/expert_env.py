"""A backend around a backend: every observation also says what a scripted expert would do next.

The expert of MiniWoB++ reads the page, that of the built-in desktop tasks plays the solution in the task's
file. Both need the environment itself, so they live where it lives, in the worker's process. What they say
travels in ``Observation.info["expert"]``: ``{"actions": [Action], "thought": str}``, or ``{"error": why}``
where they do not know; :class:`verl_gui.evaluation.policies.scripted.ExpertPolicy` repeats it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from typing import Any, Protocol

from verl_gui.actions import Action, ActionType
from verl_gui.envs.base import GuiEnv, Observation, StepResult
from verl_gui.tasks.task import Task

BACKEND = "verl_gui.evaluation.expert_env:ExpertEnv"
"""Name of this backend for ``gui.env.backend``."""


MAX_WAITS = 10  # turns that a solution waits for windows


class Expert(Protocol):
    """Plays one episode."""

    def next(self) -> tuple[list[Action], str]:
        """The next actions and a thought. Raises ExpertError."""
        ...


class ExpertError(RuntimeError):
    """The expert does not know the task, or no longer knows the way."""


class PageExpert:
    """The oracle of a MiniWoB++ page.

    Args:
        env: shows the page.
        instruction: what the agent was told; thoughts use its words only.
        grid: coordinates are put on multiples of it, where the element is still hit or nearly so.
    """

    def __init__(self, env: Any, instruction: str, grid: int) -> None:
        self._env, self._instruction, self._grid = env, instruction, grid

    def next(self) -> tuple[list[Action], str]:
        """See :class:`Expert`."""
        from verl_gui.envs.miniwob import OracleError, elements, oracle
        from verl_gui.warmstart.words import describe, element_name, snap

        try:
            shown = [(element_name(e), e["box"]) for e in elements(self._env)]
            actions = [
                replace(a, x=snap(a.x, self._grid), y=snap(a.y, self._grid))
                if a.x is not None and a.y is not None
                else a
                for a in oracle(self._env, None)
            ]
        except OracleError as error:
            raise ExpertError(str(error)) from error
        return actions, describe(shown, actions[0], self._instruction)


class SolutionExpert:
    """Plays the ``solution`` of a task's file: a list of turns.

    A turn is a list of actions, or ``{"until_windows": n}``: wait until the desktop shows n windows.

    Args:
        env: the desktop. task_id: the task.
    """

    def __init__(self, env: Any, task_id: str) -> None:
        if task_id not in _solutions():
            raise ExpertError(f"no solution is known of task {task_id!r}")
        self._env, self._turns = env, list(_solutions()[task_id])
        self._waits = 0

    def next(self) -> tuple[list[Action], str]:
        """See :class:`Expert`."""
        while self._turns and isinstance(self._turns[0], dict):
            if len(self._env._windows.windows()) != self._turns[0]["until_windows"]:
                self._waits += 1
                if self._waits > MAX_WAITS:
                    raise ExpertError("the window that the solution waits for does not come")
                return [Action(ActionType.WAIT)], "wait"
            self._turns.pop(0)
        if not self._turns:
            raise ExpertError("the solution is over, the episode is not")
        # No grammar says how long to wait.
        actions = [replace(Action(**action), seconds=None) for action in self._turns.pop(0)]
        return actions, actions[0].type.value


class ExpertEnv:
    """Implements ``GuiEnv`` by another backend, and adds the expert's advice.

    Args:
        backend: name of the backend that does the work.
        grid: see :class:`PageExpert`; 1 leaves coordinates where they are, on whole pixels.
        options: of that backend.
    """

    def __init__(self, backend: str, grid: int = 1, options: Mapping[str, Any] | None = None) -> None:
        from verl_gui.envs.worker import build_env

        self._env: GuiEnv = build_env(backend, dict(options or {}))
        self._grid = grid
        self._expert: Expert | None = None
        self._unknown = ""

    @property
    def screen(self) -> tuple[int, int]:
        """Width and height of the screen in pixels."""
        return self._env.screen

    def reset(self, task: Task, *, seed: int | None = None) -> Observation:
        """As the backend's."""
        observation = self._env.reset(task, seed=seed)
        self._unknown = ""
        try:
            if task.id.startswith("miniwob:"):
                instruction = observation.info.get("instruction", "")
                self._expert = PageExpert(self._env, instruction, self._grid)
            else:
                self._expert = SolutionExpert(self._env, task.id)
        except ExpertError as error:
            self._expert, self._unknown = None, str(error)
        return self._advise(observation)

    def step(self, actions: Sequence[Action]) -> StepResult:
        """As the backend's."""
        result = self._env.step(actions)
        if result.terminated:
            return result
        return replace(result, observation=self._advise(result.observation))

    def evaluate(self) -> float:
        """As the backend's."""
        return self._env.evaluate()

    def close(self) -> None:
        """As the backend's."""
        self._env.close()

    def _advise(self, observation: Observation) -> Observation:
        advice: dict[str, Any]
        try:
            if self._expert is None:
                raise ExpertError(self._unknown)
            actions, thought = self._expert.next()
            advice = {"actions": actions, "thought": thought}
        except ExpertError as error:
            advice = {"error": str(error)}
        return replace(observation, info={**observation.info, "expert": advice})


@lru_cache(maxsize=1)
def _solutions() -> dict[str, list[Any]]:
    """Task id -> solution, of the built-in desktop tasks."""
    found = {}
    for file in resources.files("verl_gui.tasks").joinpath("desktop").iterdir():
        if file.name.endswith(".json"):
            task = json.loads(file.read_text(encoding="utf-8"))
            if "solution" in task:
                found[task["id"]] = task["solution"]
    return found
