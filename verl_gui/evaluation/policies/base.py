"""What a policy is to an evaluation."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Protocol

from verl_gui.envs.base import Observation
from verl_gui.rollout.episode import Episode


class PolicyFailure(RuntimeError):
    """The policy could not be asked: the endpoint is down, late or refuses the request.

    Like an environment's fault, it makes a run invalid, never failed.
    """


class PolicySetupError(RuntimeError):
    """The policy cannot be used at all: unknown, unreachable, not allowed. Nothing is run."""


@dataclass(frozen=True)
class View:
    """A screenshot as a policy is shown it.

    Attributes:
        image: what stands for it in the conversation (for an endpoint, a data URL).
        frame: width and height in pixels the model sees.
    """

    image: Any
    frame: tuple[int, int]


@dataclass(frozen=True)
class Answer:
    """What a policy said, and what that cost in tokens (0 where no model was asked)."""

    text: str
    prompt_tokens: int = 0
    sampled_tokens: int = 0


class Policy(Protocol):
    """Answers screenshots. Used by many episodes at once; keeps nothing between them."""

    def look(self, png: bytes, screen: tuple[int, int]) -> View:
        """How the policy is shown a screenshot of ``screen`` pixels. Called from several threads."""
        ...

    async def answer(self, episode: Episode, observation: Observation, rng: random.Random) -> Answer | None:
        """The answer to the last screenshot; None when the context is full (the episode then ends).

        Args:
            episode: so far: ``instruction``, ``images`` (from :meth:`look`), ``answers``.
            observation: the last one, with what the environment says beside the picture.
            rng: the same for the same run and turn, whatever else runs.

        Raises:
            PolicyFailure: no answer could be had.
        """
        ...

    async def close(self) -> None:
        """Give back everything."""
        ...
