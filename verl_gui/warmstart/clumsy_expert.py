"""An expert with two bad habits: its hand shakes, and it gives up.

A policy cloned from such demonstrations recognises what to click, but often misses it or says that it is
done without having done anything, as base agents do. Reinforcement learning can repair that within minutes,
for all it has to find out is which of the policy's own answers were good. (An element that was never
recognised takes far longer to learn from a reward.)
"""

from __future__ import annotations

import random
from dataclasses import replace

from verl_gui.actions import Action, ActionType, get_grammar, parse
from verl_gui.warmstart.behaviour_cloning import Demonstration

GIVING_UP = "done"
"""The thought of an expert that gives up."""


def shake(
    demo: Demonstration, rng: random.Random, *, sigma: float, grid: int = 7, grammar: str = "uitars"
) -> Demonstration:
    """The same demonstration with other coordinates in its answers; ``targets`` keep the true ones.

    Args:
        demo: recorded on screens of the size that the model sees.
        rng: source of the noise.
        sigma: standard deviation of the aim in pixels, each way; 0 changes nothing.
        grid: pixels between the coordinates that the answers use.
        grammar: what the answers are written in.
    """
    height, width = demo.frames[0].shape[:2]
    writer = get_grammar(grammar)
    answers = []
    for answer in demo.answers:
        response = parse(answer, grammar=grammar, frame=(width, height), screen=(width, height))
        actions = [
            action
            if action.x is None or action.y is None
            else replace(
                action,
                x=_shaken(action.x, width, rng, sigma, grid),
                y=_shaken(action.y, height, rng, sigma, grid),
            )
            for action in response.actions
        ]
        answers.append(
            writer.format(actions, thought=response.thought, frame=(width, height), screen=(width, height))
        )
    return replace(demo, answers=answers)


def _shaken(value: float, size: int, rng: random.Random, sigma: float, grid: int) -> float:
    """``value`` moved by whole steps of the grid, inside ``0 <= value < size``."""
    moved = value + grid * round(rng.gauss(0.0, sigma) / grid)
    return min(max(moved, 0.0), float((size - 1) // grid * grid))


def give_up(
    demo: Demonstration, rng: random.Random, *, probability: float, grammar: str = "uitars"
) -> Demonstration:
    """The demonstration up to a turn at which the expert gives up, drawn anew at every turn.

    Args:
        demo: any.
        rng: source of the draws.
        probability: of giving up at a turn; 0 changes nothing.
        grammar: what the answers are written in.
    """
    height, width = demo.frames[0].shape[:2]
    for turn in range(len(demo.answers)):
        if probability and rng.random() < probability:
            answer = get_grammar(grammar).format(
                [Action(ActionType.FINISHED)],
                thought=GIVING_UP,
                frame=(width, height),
                screen=(width, height),
            )
            end = turn + 1
            return Demonstration(
                demo.instruction,
                demo.frames[:end],
                [*demo.answers[:turn], answer],
                [*demo.targets[:turn], None],
                demo.elements[:end],
            )
    return demo
