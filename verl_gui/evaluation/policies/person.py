"""A person as the policy: plays in a web page, by the same actions, screenshots and rules as a model.

The page shows what the model would be shown and the instruction it would be given; a click on it, a text or
a key becomes an :class:`~verl_gui.actions.Action` and is written in the grammar, so the recording reads like
an answer of the model. One person plays one episode at a time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import threading
from dataclasses import dataclass, field
from typing import Any

from verl_gui.actions import Action, get_grammar
from verl_gui.actions.errors import UnsupportedActionError
from verl_gui.envs.base import Observation
from verl_gui.evaluation.policies.base import Answer, PolicyFailure, View
from verl_gui.rollout.episode import Episode


class NotAnAnswer(ValueError):
    """What the page sent cannot be played; the person is told why and tries again."""


@dataclass
class Turn:
    """A screenshot that waits for the person's answer.

    Attributes:
        number: counts all turns of the sitting, so that a late click cannot answer the next screenshot.
        step: answers given in this episode so far.
        instruction: the task in words. screen: size in pixels. png: the screenshot.
        answer: what the person did.
    """

    number: int
    step: int
    instruction: str
    screen: tuple[int, int]
    frame: tuple[int, int]
    png: bytes
    answer: concurrent.futures.Future[str] = field(default_factory=concurrent.futures.Future)


class Desk:
    """Where one turn at a time is handed to the person and the answer handed back; safe between threads.

    Args:
        grammar: name of the grammar of the answers.
    """

    def __init__(self, grammar: str) -> None:
        self._grammar = get_grammar(grammar)
        self._lock = threading.Lock()
        self._turns = 0
        self._turn: Turn | None = None

    @property
    def turn(self) -> Turn | None:
        """The turn that waits; None between turns."""
        with self._lock:
            return self._turn

    def put(self, episode: Episode, png: bytes) -> Turn:
        """Show the last screenshot of an episode."""
        with self._lock:
            self._turns += 1
            self._turn = Turn(
                self._turns, len(episode.answers), episode.instruction, episode.screen, episode.frame, png
            )
            return self._turn

    def take_back(self, turn: Turn) -> None:
        """Nobody waits for this turn any more."""
        with self._lock:
            if self._turn is turn:
                self._turn = None

    def play(self, number: int, actions: list[dict[str, Any]], thought: str) -> str:
        """Answer turn ``number`` with actions (fields of :class:`Action`); returns the answer in words.

        Raises:
            NotAnAnswer: that turn is over, an action is none, or the grammar lacks the words for it.
        """
        turn = self._waiting(number)
        try:
            played = [Action(**action) for action in actions]
            text = self._grammar.format(played, thought=thought, frame=turn.frame, screen=turn.screen)
        except (TypeError, ValueError, UnsupportedActionError) as error:
            raise NotAnAnswer(str(error)) from error
        self.take_back(turn)
        turn.answer.set_result(text)
        return text

    def skip(self, number: int) -> None:
        """Give the task up without a verdict: its run becomes invalid. Raises NotAnAnswer."""
        turn = self._waiting(number)
        self.take_back(turn)
        turn.answer.set_exception(PolicyFailure("the person skipped this task"))

    def _waiting(self, number: int) -> Turn:
        with self._lock:
            if self._turn is None or self._turn.number != number:
                raise NotAnAnswer("this screenshot is no longer waiting for an answer")
            return self._turn


class PersonPolicy:
    """Asks a person at a :class:`Desk`.

    Args:
        desk: where they sit.
        timeout_s: longest time for one answer; then the run is invalid.
    """

    def __init__(self, desk: Desk, timeout_s: float) -> None:
        self._desk, self._timeout_s = desk, timeout_s

    def look(self, png: bytes, screen: tuple[int, int]) -> View:
        """A person sees the screen as it is."""
        return View(None, screen)

    async def answer(self, episode: Episode, observation: Observation, rng: random.Random) -> Answer:
        """What the person does next.

        Raises:
            PolicyFailure: they skipped the task, or did nothing for too long.
        """
        turn = self._desk.put(episode, observation.screenshot)
        try:
            return Answer(await asyncio.wait_for(asyncio.wrap_future(turn.answer), self._timeout_s))
        except TimeoutError:
            raise PolicyFailure(f"nobody answered within {self._timeout_s:g} s") from None
        finally:
            self._desk.take_back(turn)

    async def close(self) -> None:
        """The page is closed by who opened it."""
