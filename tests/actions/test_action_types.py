from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from verl_gui.actions import Action, ActionType, Grammar, get_grammar, grammar_names, register_grammar

T = ActionType


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "fly"},
        {"type": T.CLICK},
        {"type": T.CLICK, "x": 1},
        {"type": T.CLICK, "x": 1, "y": -1},
        {"type": T.CLICK, "x": 1, "y": float("nan")},
        {"type": T.CLICK, "x": 1, "y": 1, "text": "a"},
        {"type": T.DRAG, "x": 1, "y": 1},
        {"type": T.DRAG, "x": 1, "end_x": 1, "end_y": 1},
        {"type": T.SCROLL, "x": 1, "y": 1, "direction": "up"},
        {"type": T.SCROLL, "direction": "north", "amount": 1},
        {"type": T.SCROLL, "direction": "up", "amount": 0},
        {"type": T.SCROLL, "direction": "up", "amount": 1.5},
        {"type": T.TYPE, "text": ""},
        {"type": T.TYPE, "text": "\r"},
        {"type": T.HOTKEY, "keys": ()},
        {"type": T.HOTKEY, "keys": ("Ctrl",)},
        {"type": T.PRESS, "keys": ("ctrl", "c")},
        {"type": T.WAIT, "seconds": -1.0},
        {"type": T.WAIT, "seconds": float("inf")},
        {"type": T.FINISHED, "text": "\ud800"},
    ],
)
def test_half_filled_actions_cannot_exist(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Action(**fields)


def test_actions_are_values() -> None:
    action = Action("hotkey", keys=["ctrl", "c"])
    assert action == Action(T.HOTKEY, keys=("ctrl", "c")) and action.type is T.HOTKEY
    assert hash(action) == hash(pickle.loads(pickle.dumps(action)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        action.keys = ()


def test_registry() -> None:
    assert {"uitars", "uitars_rel", "qwen_vl", "qwen3_vl"} <= set(grammar_names())
    uitars = get_grammar("uitars")
    assert register_grammar(uitars) is uitars
    with pytest.raises(KeyError, match="uitars_rel"):
        get_grammar("klingon")

    class Impostor(type(uitars)):  # type: ignore[misc]
        pass

    with pytest.raises(ValueError, match="registered already"):
        register_grammar(Impostor("uitars", relative=False))
    assert isinstance(get_grammar("uitars"), Grammar)
