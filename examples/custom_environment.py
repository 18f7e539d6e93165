"""An environment of your own in under 60 lines: a screen with one square, to be clicked.

Train on it with ``gui.env.backend=examples.custom_environment:SquareEnv`` and task files whose tasks have an
``id`` and an ``instruction``. Run this file to put it through the contract.
"""

from __future__ import annotations

import io
import random
from collections.abc import Sequence

from PIL import Image, ImageDraw

from verl_gui.actions import Action
from verl_gui.envs.base import EnvFailure, Observation, StepResult
from verl_gui.tasks.task import Task


class SquareEnv:
    """Scores 1 when the last click was on the red square, which the seed places."""

    def __init__(self, screen: tuple[int, int] = (224, 224), side: int = 56) -> None:
        self.screen, self._side, self._closed, self._over = (screen[0], screen[1]), side, False, True

    def reset(self, task: Task, *, seed: int | None = None) -> Observation:
        if self._closed:
            raise EnvFailure("dead", "the environment is closed")
        place = random.Random(seed)
        self._corner = tuple(place.randrange(length - self._side) for length in self.screen)
        self._hit, self._over = False, False
        return Observation(self._draw(), {"instruction": task.instruction})

    def step(self, actions: Sequence[Action]) -> StepResult:
        if self._over:
            raise RuntimeError("no episode is running; call reset() first")
        for action in actions:
            if action.type.value == "click" and action.x is not None and action.y is not None:
                near = zip((action.x, action.y), self._corner, strict=True)
                self._hit = all(0 <= at - corner < self._side for at, corner in near)
            self._over = self._over or action.type.is_terminal
        return StepResult(Observation(self._draw()), self._over)

    def evaluate(self) -> float:
        return float(self._hit)

    def close(self) -> None:
        self._closed = self._over = True

    def _draw(self) -> bytes:
        picture, data = Image.new("RGB", self.screen, "white"), io.BytesIO()
        x, y = self._corner
        ImageDraw.Draw(picture).rectangle((x, y, x + self._side - 1, y + self._side - 1), fill="red")
        picture.save(data, "PNG")
        return data.getvalue()
