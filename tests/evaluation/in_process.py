"""Environments without processes, for the engine: real episodes, scripted screens and faults."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Callable
from functools import lru_cache

from PIL import Image

from verl_gui.envs.base import EnvFailure, Observation, StepResult
from verl_gui.evaluation.policies import Answer, View
from verl_gui.tasks import Task, TaskInstance

SCREEN = (56, 84)


@lru_cache(maxsize=8)
def png(shade: int = 0, size: tuple[int, int] = SCREEN) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, (shade, 0, 0)).save(out, "PNG")
    return out.getvalue()


def instances(*names: str) -> list[TaskInstance]:
    return [TaskInstance(Task(name, f"do {name}", "os", evaluator={"func": "x"})) for name in names]


class ScriptedEnv:
    """A task ends after two steps; ``verdict(task_id, nth run of it)`` gives its score, or raises."""

    screen = SCREEN

    def __init__(self, verdict: Callable[[str, int], float], count: dict[str, int]) -> None:
        self._verdict, self._count, self._steps, self._task = verdict, count, 0, ""

    async def reset(self, task, *, seed=None):
        self._task = task.id
        self._count[task.id] = self._count.get(task.id, 0) + 1
        return Observation(png(), {"instruction": task.instruction})

    async def step(self, actions):
        self._steps += 1
        return StepResult(Observation(png(self._steps)), self._steps >= 2)

    async def evaluate(self):
        return self._verdict(self._task, self._count[self._task] - 1)


class Leases:
    """Gives a fresh :class:`ScriptedEnv` each time; counts how many are out at once."""

    def __init__(self, verdict: Callable[[str, int], float] = lambda task, n: 1.0) -> None:
        self.verdict, self.runs, self.out, self.most = verdict, {}, 0, 0

    @contextlib.asynccontextmanager
    async def lease(self, *, task, seed) -> AsyncIterator[ScriptedEnv]:
        self.out += 1
        self.most = max(self.most, self.out)
        try:
            yield ScriptedEnv(self.verdict, self.runs)
        finally:
            self.out -= 1


class SayClick:
    """A policy that always clicks, after ``pause`` has been awaited."""

    def __init__(self, pause=None):
        self.pause, self.asked = pause, []

    def look(self, picture, screen):
        return View("picture", screen)

    async def answer(self, episode, observation, rng):
        await asyncio.sleep(0)
        if self.pause is not None:
            await self.pause()
        self.asked.append((episode.task.id, len(episode.answers), rng.random()))
        return Answer("Thought: b\nAction: click(start_box='(28,56)')", 10, 3)

    async def close(self):
        pass


def broken(*_):
    raise EnvFailure("dead", "the desktop is gone")
