"""How a scripted expert puts what it does into words. Imports no torch, for it runs beside environments."""

from __future__ import annotations

from typing import Any

from verl_gui.actions import Action

Box = tuple[float, float, float, float]


def snap(value: float, grid: int) -> float:
    """``value`` on the nearest line of a grid of ``grid`` pixels.

    A tiny policy picks a coordinate as one token; fewer of them are learnt faster.
    """
    return float(round(value / grid) * grid)


def element_name(element: dict[str, Any]) -> str:
    """What an element is called in thoughts and in the labels of the warm start."""
    return " ".join(f"{element['kind']} {element['text']}".split())[:32]


def describe(shown: list[tuple[str, Box]], action: Action, instruction: str) -> str:
    """A short reason for an action: the smallest element under the pointer, or what kind of action it is.

    Words that the instruction does not have are left out: the expert reads them off the page, but they say
    nothing about the task.
    """
    if action.x is None or action.y is None:
        return action.type.value
    under = [(n, b) for n, b in shown if b[0] <= action.x <= b[2] and b[1] <= action.y <= b[3]]
    if not under:
        return action.type.value
    name = min(under, key=lambda e: (e[1][2] - e[1][0]) * (e[1][3] - e[1][1]))[0]
    kind, _, words = name.partition(" ")
    return name if words and words in instruction else kind
