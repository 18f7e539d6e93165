"""What the trajectories of a run say about its tasks, and which of them to show."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any

from verl_gui.report.injections import read_injections
from verl_gui.report.pictures import PictureBook
from verl_gui.rollout.trajectory import Trajectory, TrajectoryStep, read_trajectories


def succeeded(trajectory: Trajectory) -> bool:
    """Whether the environment gave the full score."""
    return trajectory.score is not None and trajectory.score >= 1.0


def kind(trajectory: Trajectory) -> str:
    """``success``, ``failure``, ``malformed`` (failed, and an answer could not be parsed) or ``broken``."""
    if trajectory.env_failure is not None or trajectory.score is None:
        return "broken"
    if succeeded(trajectory):
        return "success"
    return "malformed" if any(step.error for step in trajectory.steps) else "failure"


@dataclass
class TaskStatistics:
    """How a task went over the run; episodes whose environment broke do not count as attempts.

    Attributes:
        task_id: the task.
        instruction: an example of what the agent was told.
        train, validation: success rate and number of attempts by step.
        broken: number of episodes without a score.
        malformed: number of attempts with an answer that could not be parsed.
        turns: number of answers in all attempts.
    """

    task_id: str
    instruction: str = ""
    train: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    validation: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    broken: int = 0
    malformed: int = 0
    turns: int = 0

    def add(self, trajectory: Trajectory) -> None:
        """Count one episode."""
        self.instruction = trajectory.instruction or self.instruction
        if kind(trajectory) == "broken":
            self.broken += 1
            return
        by_step = self.validation if trajectory.validate else self.train
        by_step[trajectory.global_step].append(float(succeeded(trajectory)))
        self.malformed += any(step.error for step in trajectory.steps)
        self.turns += trajectory.num_turns

    def to_json(self) -> dict[str, Any]:
        """The row of the task table."""
        attempts = sum(map(len, self.train.values())) + sum(map(len, self.validation.values()))
        return {
            "task": self.task_id,
            "instruction": self.instruction,
            "attempts": attempts,
            "broken": self.broken,
            "malformed": self.malformed / attempts if attempts else None,
            "turns": self.turns / attempts if attempts else None,
            "train": _rates(self.train),
            "validation": _rates(self.validation),
        }


def _rates(by_step: dict[int, list[float]]) -> list[tuple[int, float]]:
    return [(step, sum(wins) / len(wins)) for step, wins in sorted(by_step.items())]


@dataclass
class Survey:
    """A first look at every trajectory of a run, without pictures.

    Attributes:
        tasks: statistics by task id.
        failures: environment failures by step.
        total: number of trajectories.
        chosen: identities of those to show.
    """

    tasks: dict[str, TaskStatistics]
    failures: dict[int, int]
    total: int
    chosen: set[tuple[Any, ...]]


def survey(directory: str | os.PathLike[str], limit: int) -> Survey:
    """Count all trajectories and choose up to ``limit`` to show.

    The choice takes turns among tasks and kinds of ending, late and early episodes alternating, so that every
    task shows what it was like before and after, and a rare kind of ending is not lost among the common ones.
    """
    tasks: dict[str, TaskStatistics] = {}
    failures: dict[int, int] = defaultdict(int)
    piles: dict[tuple[str, str], list[tuple[int, tuple[Any, ...]]]] = defaultdict(list)
    total = 0
    for trajectory in read_trajectories(directory, with_screenshots=lambda _: False):
        total += 1
        tasks.setdefault(trajectory.task_id, TaskStatistics(trajectory.task_id)).add(trajectory)
        failures[trajectory.global_step] += kind(trajectory) == "broken"
        pile = piles[trajectory.task_id, kind(trajectory)]
        pile.append((trajectory.global_step, _identity(trajectory)))
    by_step = [sorted(pile, key=lambda entry: entry[0]) for pile in piles.values()]
    rounds = zip_longest(*map(_late_and_early, by_step))
    order = dict.fromkeys(entry[1] for turn in rounds for entry in turn if entry is not None)
    return Survey(tasks, failures, total, set(islice(order, limit)))


def _late_and_early(entries: list[Any]) -> Iterable[Any]:
    """Last, first, last but one, second …"""
    low, high = 0, len(entries) - 1
    while low <= high:
        yield entries[high]
        if low < high:
            yield entries[low]
        low, high = low + 1, high - 1


def _identity(trajectory: Trajectory) -> tuple[Any, ...]:
    """Tells trajectories apart; equal for exact repetitions only."""
    texts = hash(tuple(step.text for step in trajectory.steps))
    return (
        trajectory.uid,
        trajectory.global_step,
        trajectory.validate,
        trajectory.seed,
        trajectory.outcome,
        texts,
    )


def shown(
    directory: str | os.PathLike[str],
    chosen: set[tuple[Any, ...]],
    book: PictureBook,
    picture_bytes: int,
) -> list[dict[str, Any]]:
    """The chosen trajectories for the page, by task and step; their pictures go into ``book``.

    When the book has grown past ``picture_bytes``, the rest is shown without pictures.
    """
    left = set(chosen)
    injected: dict[Any, int] = {(i.step, i.uid, i.session): i.stored_step for i in read_injections(directory)}
    wanted: Callable[[Trajectory], bool] = lambda t: _identity(t) in left and book.size < picture_bytes  # noqa: E731
    episodes = []
    for trajectory in read_trajectories(directory, with_screenshots=wanted):
        if _identity(trajectory) in left:
            left.remove(_identity(trajectory))
            place = (trajectory.global_step, trajectory.uid, trajectory.session)
            episodes.append({**_to_json(trajectory, book), "replaced_by": injected.get(place)})
    episodes.sort(key=lambda episode: (episode["task"], episode["step"], episode["validate"]))
    return episodes


def _to_json(trajectory: Trajectory, book: PictureBook) -> dict[str, Any]:
    return {
        "task": trajectory.task_id,
        "instruction": trajectory.instruction,
        "seed": trajectory.seed,
        "group": trajectory.uid,
        "step": trajectory.global_step,
        "validate": trajectory.validate,
        "kind": kind(trajectory),
        "score": trajectory.score,
        "format": trajectory.format_penalty,
        "reward": trajectory.reward,
        "screen": trajectory.screen,
        "frame": trajectory.frame,
        "outcome": trajectory.outcome,
        "failure": trajectory.env_failure,
        "turns": [_turn(step, book) for step in trajectory.steps],
        "final": book.add(trajectory.final_screenshot),
    }


def _turn(step: TrajectoryStep, book: PictureBook) -> dict[str, Any]:
    return {
        "picture": book.add(step.screenshot),
        "text": step.text,
        "thought": step.thought,
        "actions": step.actions,
        "error": step.error,
        "logprob": step.log_prob_mean,
        "seconds": step.seconds,
    }
