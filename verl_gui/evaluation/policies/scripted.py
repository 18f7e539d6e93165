"""Policies without a model: chance, and an expert that knows the way.

The random policy is the floor of a benchmark: what it solves is solved by luck. The expert is its ceiling,
a check of tasks and environments, and the source of demonstrations.
"""

from __future__ import annotations

import random
from typing import Any

from verl_gui.actions import Action, ActionType, get_grammar
from verl_gui.actions.errors import UnsupportedActionError
from verl_gui.envs.base import Observation
from verl_gui.evaluation.policies.base import Answer, PolicyFailure, View
from verl_gui.rollout.episode import Episode


class _Scripted:
    """What a policy without a model has: words, and no eyes.

    Args:
        grammar: what the answers are written in.
    """

    def __init__(self, grammar: str) -> None:
        self._grammar = get_grammar(grammar)

    def look(self, png: bytes, screen: tuple[int, int]) -> View:
        """The screenshot itself is not looked at."""
        return View(None, screen)

    async def close(self) -> None:
        """Nothing is held."""


class RandomPolicy(_Scripted):
    """Left clicks, uniform over the screen."""

    async def answer(self, episode: Episode, observation: Observation, rng: random.Random) -> Answer:
        """A click somewhere."""
        width, height = episode.screen
        click = Action(ActionType.CLICK, x=float(rng.randrange(width)), y=float(rng.randrange(height)))
        text = self._grammar.format([click], thought="", frame=episode.frame, screen=episode.screen)
        return Answer(text)


class ExpertPolicy(_Scripted):
    """Says what :class:`verl_gui.evaluation.expert_env.ExpertEnv` whispers."""

    async def answer(self, episode: Episode, observation: Observation, rng: random.Random) -> Answer:
        """The expert's next actions.

        Raises:
            PolicyFailure: the expert does not know this task, is lost, or the grammar lacks the words.
        """
        hint: dict[str, Any] = observation.info.get("expert") or {}
        if "actions" not in hint:
            raise PolicyFailure(hint.get("error", "no expert speaks in this environment"))
        try:
            text = self._grammar.format(
                hint["actions"], thought=hint["thought"], frame=episode.frame, screen=episode.screen
            )
        except UnsupportedActionError as error:
            raise PolicyFailure(f"the expert cannot say what to do: {error}") from error
        return Answer(text)
